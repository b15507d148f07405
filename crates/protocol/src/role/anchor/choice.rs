//! Which host is to be a socket's anchor, where its program leaves that to a policy.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;

use crate::Time;

/// What a refused, lost or silent anchor costs, as a round trip: as much as people notice (auto).
const FAILURE_COST: f64 = 1.0;
/// What an anchor costs for each time that it moves in a day (auto): its peers that run nothing lose it.
const MOVE_COST: f64 = 0.2;
/// Round trip of a host that was not measured.
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(500);
/// A host is not judged by less than this: what moved once in its first minute does not move a thousand times a day.
const LEAST_DAYS: f64 = 0.05;

/// What a program leaves to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The one with the shortest round trip.
    Nearest,
    /// The one that has moved least.
    Stable,
    /// What has been best so far: round trip, moves and failures together, this host itself among them.
    Auto,
}

impl Policy {
    /// By the name that programs give it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "nearest" => Some(Self::Nearest),
            "stable" => Some(Self::Stable),
            "auto" => Some(Self::Auto),
            _ => None,
        }
    }
}

/// A host that may be asked.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Which.
    pub key: PublicKey,
    /// As it was measured last.
    pub round_trip: Option<Duration>,
}

/// How hosts have done so far, in this daemon's life.
#[derive(Debug, Default)]
pub struct Experience {
    of: HashMap<PublicKey, Record>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    since: Time,
    /// Where it was seen last.
    at: Option<IpAddr>,
    moves: u32,
    lent: u32,
    failed: u32,
}

impl Experience {
    fn record(&mut self, now: Time, of: PublicKey) -> &mut Record {
        self.of.entry(of).or_insert(Record { since: now, at: None, moves: 0, lent: 0, failed: 0 })
    }

    /// A host is known, and seen at this address. Of one that nothing depended on as it moved, nobody has told that.
    pub fn meet(&mut self, now: Time, of: PublicKey, at: Option<IpAddr>) {
        let record = self.record(now, of);
        let another = at.is_some() && record.at.is_some() && record.at != at;
        record.moves += u32::from(another);
        record.at = at.or(record.at);
    }

    /// A host has another address: this one, where it is another than this host.
    pub fn moved(&mut self, now: Time, of: PublicKey, to: Option<IpAddr>) {
        let record = self.record(now, of);
        record.moves += 1;
        record.at = to.or(record.at);
    }

    /// A host has lent endpoints, or has not, or not as long as they were needed.
    pub fn lent(&mut self, now: Time, of: PublicKey, well: bool) {
        let record = self.record(now, of);
        if well {
            record.lent += 1;
        } else {
            record.failed += 1;
        }
    }

    /// Moves a day.
    fn restlessness(&self, now: Time, of: &PublicKey) -> f64 {
        let Some(record) = self.of.get(of) else { return 0.0 };
        let days = (now.since(record.since).as_secs_f64() / 86_400.0).max(LEAST_DAYS);
        f64::from(record.moves) / days
    }

    /// How often it fails, with one success and one failure to begin with (rule of succession).
    fn failure(&self, of: &PublicKey) -> f64 {
        let (lent, failed) = self.of.get(of).map_or((0, 0), |record| (record.lent, record.failed));
        f64::from(failed + 1) / f64::from(lent + failed + 2)
    }

    /// The hosts that are to be asked, the best first. `own`: this host, where it comes into question, which needs no
    /// lease, so that those behind it need not be asked; None is in its place.
    #[must_use]
    pub fn order(
        &self,
        now: Time,
        policy: Policy,
        own: Option<&PublicKey>,
        candidates: &[Candidate],
    ) -> Vec<Option<PublicKey>> {
        let far = |candidate: &Candidate| candidate.round_trip.unwrap_or(UNKNOWN_ROUND_TRIP).as_secs_f64();
        let cost = |candidate: &Candidate| match policy {
            Policy::Nearest => far(candidate),
            // Of hosts that never move the nearer one.
            Policy::Stable => self.restlessness(now, &candidate.key) + far(candidate) / 1e6,
            Policy::Auto => {
                let moves = MOVE_COST * self.restlessness(now, &candidate.key);
                far(candidate) + moves + FAILURE_COST * self.failure(&candidate.key)
            }
        };
        let mut costs: Vec<(f64, Option<PublicKey>)> =
            candidates.iter().map(|candidate| (cost(candidate), Some(candidate.key))).collect();
        if policy == Policy::Auto
            && let Some(own) = own
        {
            // It is no detour and does not refuse; but where it moves its peers that run nothing lose it.
            costs.push((MOVE_COST * self.restlessness(now, own), None));
        }
        costs.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let mut order: Vec<Option<PublicKey>> = costs.into_iter().map(|(_, key)| key).collect();
        if let Some(own) = order.iter().position(Option::is_none) {
            order.truncate(own + 1);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey::from([byte; 32])
    }

    fn at(hours: u64) -> Time {
        Time::from_micros(hours * 3_600_000_000)
    }

    fn candidates() -> [Candidate; 3] {
        [(1, Some(40)), (2, Some(5)), (3, None)].map(|(number, milliseconds)| Candidate {
            key: key(number),
            round_trip: milliseconds.map(Duration::from_millis),
        })
    }

    fn order(experience: &Experience, policy: Policy) -> Vec<Option<u8>> {
        let order = experience.order(at(10), policy, Some(&key(9)), &candidates());
        order.into_iter().map(|key| key.map(|key| key.as_bytes()[0])).collect()
    }

    #[test]
    fn the_nearest_is_asked_first() {
        assert_eq!(order(&Experience::default(), Policy::Nearest), [Some(2), Some(1), Some(3)]);
    }

    #[test]
    fn the_one_that_moves_least_is_asked_first() {
        let mut experience = Experience::default();
        (1..=3).for_each(|number| experience.meet(at(0), key(number), None));
        assert_eq!(order(&experience, Policy::Stable), [Some(2), Some(1), Some(3)], "none has moved");
        experience.moved(at(1), key(2), None);
        experience.moved(at(1), key(2), None);
        experience.moved(at(2), key(1), None);
        assert_eq!(order(&experience, Policy::Stable), [Some(3), Some(1), Some(2)]);
    }

    #[test]
    fn a_move_that_nobody_has_told_is_seen_and_counts_once() {
        let mut experience = Experience::default();
        let [here, there] = ["192.0.2.1", "203.0.113.1"].map(|at| at.parse().ok());
        (1..=3).for_each(|number| experience.meet(at(0), key(number), here));
        experience.meet(at(1), key(2), there);
        experience.meet(at(2), key(2), there);
        assert_eq!(experience.of[&key(2)].moves, 1);
        assert_eq!(order(&experience, Policy::Stable), [Some(1), Some(3), Some(2)]);
        // Of one that was told, and is seen there then.
        experience.moved(at(3), key(1), there);
        experience.meet(at(4), key(1), there);
        experience.meet(at(5), key(1), None);
        assert_eq!(experience.of[&key(1)].moves, 1);
    }

    #[test]
    fn what_stays_is_its_own_anchor_and_what_moves_asks_who_has_done_well() {
        let mut experience = Experience::default();
        experience.meet(at(0), key(9), None);
        assert_eq!(order(&experience, Policy::Auto), [None], "a host that does not move");
        // What has to have another host's address has it of one.
        let others = experience.order(at(10), Policy::Auto, None, &candidates());
        assert_eq!(others, [2, 1, 3].map(|number| Some(key(number))));
        (0..20).for_each(|_| experience.moved(at(5), key(9), None));
        assert_eq!(order(&experience, Policy::Auto), [Some(2), Some(1), Some(3), None]);
        (0..4).for_each(|_| experience.lent(at(6), key(2), false));
        experience.lent(at(6), key(1), true);
        assert_eq!(order(&experience, Policy::Auto), [Some(1), Some(2), Some(3), None], "one has refused");
    }
}
