//! Which flow the later fragments of an inner packet belong to: only the first one has ports.

use std::net::IpAddr;

use whimbrel_wire::packet::{Fragment, Headers};

use crate::message::Message;

/// Fragmented packets that are remembered at once.
const REMEMBERED: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    identification: u32,
}

/// The last fragmented packets whose first fragment passed, each with what the caller noted about it. A later fragment
/// that overtakes its first one is not found; its packet is lost, as UDP allows.
#[derive(Debug)]
pub struct FragmentMemory<T> {
    seen: Vec<(Key, T)>,
    next: usize,
}

impl<T> Default for FragmentMemory<T> {
    fn default() -> Self {
        Self { seen: Vec::new(), next: 0 }
    }
}

impl<T: Clone> FragmentMemory<T> {
    /// Notes `value` for the packet whose first fragment this is.
    pub fn remember(&mut self, packet: &impl Piece, value: T) {
        let Some(key) = key(packet) else { return };
        if self.seen.len() < REMEMBERED {
            self.seen.push((key, value));
        } else {
            self.seen[self.next] = (key, value);
            self.next = (self.next + 1) % REMEMBERED;
        }
    }

    /// What was noted for the packet that this is a later fragment of.
    #[must_use]
    pub fn recall(&self, packet: &impl Piece) -> Option<T> {
        let key = key(packet)?;
        // An identification comes round again: the newest entry counts.
        let (old, new) = self.seen.split_at(self.next.min(self.seen.len()));
        let newest_first = old.iter().rev().chain(new.iter().rev());
        newest_first.filter(|(seen, _)| *seen == key).map(|(_, value)| value.clone()).next()
    }
}

/// What may be a fragment.
pub trait Piece {
    /// Source, destination and protocol number, by which fragments are put together (RFC 791, RFC 8200 §4.5).
    fn names(&self) -> (IpAddr, IpAddr, u8);
    /// Which fragment it is.
    fn fragment(&self) -> Fragment;
}

impl Piece for Headers {
    fn names(&self) -> (IpAddr, IpAddr, u8) {
        (self.source.ip(), self.destination.ip(), self.transport.protocol())
    }

    fn fragment(&self) -> Fragment {
        self.fragment
    }
}

impl Piece for Message {
    fn names(&self) -> (IpAddr, IpAddr, u8) {
        (self.source, self.destination, self.protocol())
    }

    fn fragment(&self) -> Fragment {
        self.fragment
    }
}

fn key(packet: &impl Piece) -> Option<Key> {
    let identification = match packet.fragment() {
        Fragment::Whole => return None,
        Fragment::First(identification) | Fragment::Later(identification) => identification,
    };
    let (source, destination, protocol) = packet.names();
    Some(Key { source, destination, protocol, identification })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::Made;

    #[test]
    fn later_fragments_find_their_first_and_memory_is_bounded() {
        let mut packet = Made::udp(vec![0; 32]).build(false);
        let mut fragment = |id: u16, later: bool| {
            packet[4..6].copy_from_slice(&id.to_be_bytes());
            packet[6..8].copy_from_slice(if later { &[0, 4] } else { &[0x20, 0] });
            Headers::parse(&packet).unwrap()
        };
        let mut memory = FragmentMemory::default();
        for id in 0..100 {
            memory.remember(&fragment(id, false), id);
        }
        memory.remember(&fragment(99, false), 1000);
        assert_eq!(memory.recall(&fragment(99, true)), Some(1000));
        assert_eq!(memory.recall(&fragment(98, true)), Some(98));
        assert_eq!(memory.recall(&fragment(3, true)), None);
        assert_eq!(memory.seen.len(), REMEMBERED);
    }
}
