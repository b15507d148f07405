//! Addresses that several hosts share, as behind a NAT: what comes from one may be anybody's there (`docs/protocol.md`
//! §5, P-136).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;

use crate::Time;

/// How long an address counts as shared after that was last seen: as long as a NAT keeps a mapping that is not used
/// (RFC 4787, REQ-5), which is four checks of a path behind it ([`KEEPALIVE`](crate::base::pace::KEEPALIVE)).
pub(crate) const SHARED: Duration = Duration::from_secs(120);
/// Addresses of a family that are remembered. Each stands for a host that has shown that it is there, so that only who
/// has so many addresses can push one out; the longest unseen goes first.
const SIGHTINGS_MOST: usize = 4096;

/// Who was seen last at an address.
#[derive(Debug)]
struct Sighting {
    key: PublicKey,
    seen: Time,
    /// Until when it counts as shared.
    shared: Option<Time>,
}

/// Who was seen where of late.
#[derive(Debug, Default)]
pub(crate) struct Sightings {
    at: HashMap<IpAddr, Sighting>,
}

impl Sightings {
    /// Who has this key has shown to be at an address, `translated`: behind a NAT there. Tells whether the address
    /// counts as shared since then and not before.
    pub(crate) fn record(&mut self, now: Time, address: IpAddr, key: PublicKey, translated: bool) -> bool {
        if !self.at.contains_key(&address) {
            self.make_room(now, address.is_ipv4());
        }
        let seen = self.at.entry(address).or_insert(Sighting { key, seen: now, shared: None });
        let before = seen.shared.is_some_and(|until| until > now);
        let other = seen.key != key && seen.seen + SHARED > now;
        if translated || other {
            seen.shared = Some(now + SHARED);
        }
        (seen.key, seen.seen) = (key, now);
        !before && (translated || other)
    }

    fn make_room(&mut self, now: Time, ipv4: bool) {
        if self.at.keys().filter(|address| address.is_ipv4() == ipv4).count() < SIGHTINGS_MOST {
            return;
        }
        self.at.retain(|_, sighting| sighting.seen + SHARED > now || sighting.shared.is_some_and(|until| until > now));
        let alike = self.at.iter().filter(|(address, _)| address.is_ipv4() == ipv4);
        if alike.clone().count() >= SIGHTINGS_MOST {
            let oldest =
                alike.min_by_key(|(address, sighting)| (sighting.seen, **address)).map(|(address, _)| *address);
            oldest.and_then(|address| self.at.remove(&address));
        }
    }

    /// Whether an address counts as shared now.
    pub(crate) fn is_shared(&self, now: Time, address: IpAddr) -> bool {
        self.at.get(&address).and_then(|sighting| sighting.shared).is_some_and(|until| until > now)
    }

    /// Takes the addresses that count as shared no more, and tells when the next one does not.
    pub(crate) fn take_over(&mut self, now: Time) -> (Vec<IpAddr>, Option<Time>) {
        let mut over = Vec::new();
        for (address, sighting) in &mut self.at {
            if sighting.shared.take_if(|until| *until <= now).is_some() {
                over.push(*address);
            }
        }
        self.at.retain(|_, sighting| sighting.shared.is_some() || sighting.seen + SHARED > now);
        over.sort_unstable();
        (over, self.at.values().filter_map(|sighting| sighting.shared).min())
    }

    pub(crate) fn entries(&self) -> usize {
        self.at.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(of: u8) -> PublicKey {
        whimbrel_handshake::StaticKey::from_bytes([of; 32]).public()
    }

    fn at(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn an_address_is_shared_while_several_are_seen_there() {
        // P-136
        let here = IpAddr::from([192, 0, 2, 1]);
        let mut sightings = Sightings::default();
        assert!(!sightings.record(at(0), here, key(1), false));
        assert!(!sightings.record(at(20), here, key(1), false), "one host alone");
        assert!(sightings.record(at(139), here, key(2), false));
        assert!(!sightings.record(at(150), here, key(1), false), "it was before");
        assert!(sightings.is_shared(at(269), here) && !sightings.is_shared(at(270), here));
        assert_eq!(sightings.take_over(at(269)), (Vec::new(), Some(at(270))));
        assert_eq!(sightings.take_over(at(270)), (vec![here], None));
        // Who comes long after another had the address has it alone.
        assert!(!sightings.record(at(400), here, key(2), false));
        assert!(!sightings.record(at(520), here, key(1), false));
        assert!(sightings.record(at(530), here, key(1), true), "a NAT");
    }

    #[test]
    fn addresses_that_are_remembered_are_bounded_by_family() {
        let mut sightings = Sightings::default();
        let here = IpAddr::from([192, 0, 2, 1]);
        sightings.record(at(0), here, key(1), true);
        for host in 0..SIGHTINGS_MOST as u16 + 100 {
            sightings.record(at(1), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host]), key(2), false);
        }
        assert_eq!(sightings.entries(), SIGHTINGS_MOST + 1, "a flood of the other family pushes nobody out");
        assert!(sightings.is_shared(at(1), here));
        for host in 0..SIGHTINGS_MOST as u32 - 1 {
            sightings.record(at(2), IpAddr::from((0x0a00_0000 + host).to_be_bytes()), key(2), false);
        }
        sightings.record(at(3), here, key(1), true);
        sightings.record(at(4), IpAddr::from([198, 51, 100, 1]), key(2), false);
        assert!(sightings.is_shared(at(4), here), "the longest unseen goes first");
        assert_eq!(sightings.entries(), 2 * SIGHTINGS_MOST);
    }
}
