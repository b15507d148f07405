//! Which flow the later fragments of an inner packet belong to: only the first one has ports.

use std::net::IpAddr;

use crate::packet::{Fragment, Headers};

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
    pub fn remember(&mut self, headers: &Headers, value: T) {
        let Some(key) = key(headers) else { return };
        if self.seen.len() < REMEMBERED {
            self.seen.push((key, value));
        } else {
            self.seen[self.next] = (key, value);
            self.next = (self.next + 1) % REMEMBERED;
        }
    }

    /// What was noted for the packet that this is a later fragment of.
    #[must_use]
    pub fn recall(&self, headers: &Headers) -> Option<T> {
        let key = key(headers)?;
        // An identification comes round again: the newest entry counts.
        let (old, new) = self.seen.split_at(self.next.min(self.seen.len()));
        let newest_first = old.iter().rev().chain(new.iter().rev());
        newest_first.filter(|(seen, _)| *seen == key).map(|(_, value)| value.clone()).next()
    }
}

fn key(headers: &Headers) -> Option<Key> {
    let identification = match headers.fragment {
        Fragment::Whole => return None,
        Fragment::First(identification) | Fragment::Later(identification) => identification,
    };
    Some(Key {
        source: headers.source.ip(),
        destination: headers.destination.ip(),
        protocol: headers.transport.protocol(),
        identification,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::Made;

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
