//! Which connections are introduced from their first moment, and which wait (P-15, P-200): by rate, for each peer and
//! in all, so that a host that opens very many short ones pays for few of them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Time;
use crate::base::bucket::Bucket;
use crate::base::op::PeerId;

/// Connections with one peer that have their turn at once, and when there is another: all that a busy laptop opens, and
/// of a storm of short ones as many a second as cost nothing that is measured.
const OF_PEER: f64 = 1024.0;
const OF_PEER_PAUSE: Duration = Duration::from_millis(20);
/// Connections in all, whoever is at their other ends.
const OF_ALL: f64 = 2048.0;
const OF_ALL_PAUSE: Duration = Duration::from_millis(10);
/// So many times more are answered than begun: whoever keeps to the rule is never refused by it.
const ANSWERED: f64 = 2.0;

/// What has had its turn of late.
#[derive(Debug)]
pub(super) struct Turns {
    all: Bucket,
    peers: BTreeMap<PeerId, Bucket>,
    share: f64,
}

impl Turns {
    /// Of connections that this host introduces, or asks on account of.
    pub(super) fn begun() -> Self {
        Self::of(1.0)
    }

    /// Of young connections whose introductions it answers.
    pub(super) fn answered() -> Self {
        Self::of(ANSWERED)
    }

    fn of(share: f64) -> Self {
        Self { all: Bucket::of(OF_ALL * share, OF_ALL_PAUSE.div_f64(share)), peers: BTreeMap::new(), share }
    }

    /// Whether a young connection has its turn now. `id`: the peer at its other end, where that is known.
    pub(super) fn take(&mut self, now: Time, id: Option<PeerId>) -> bool {
        if !self.all.holds(now, 1.0) {
            return false;
        }
        if let Some(id) = id {
            self.peers.retain(|known, bucket| *known == id || !bucket.is_full(now));
            let bucket = || Bucket::of(OF_PEER * self.share, OF_PEER_PAUSE.div_f64(self.share));
            if !self.peers.entry(id).or_insert_with(bucket).take(now) {
                return false;
            }
        }
        self.all.take(now)
    }

    /// Forgets a peer.
    pub(super) fn forget(&mut self, id: PeerId) {
        self.peers.remove(&id);
    }

    /// Entries of all tables together.
    pub(super) fn entries(&self) -> usize {
        self.peers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(turns: &mut Turns, now: Time, id: Option<PeerId>, tries: usize) -> usize {
        (0..tries).filter(|_| turns.take(now, id)).count()
    }

    #[test]
    fn a_burst_has_its_turn_and_what_is_more_waits() {
        // P-200
        let (mut turns, now) = (Turns::begun(), Time::from_micros(5_000_000));
        assert_eq!(count(&mut turns, now, Some(PeerId(1)), 5000), 1024);
        assert_eq!(count(&mut turns, now + Duration::from_secs(1), Some(PeerId(1)), 5000), 50);
        // 20,000 a second, for a minute.
        let mut turns = Turns::begun();
        let at = |ms| now + Duration::from_millis(ms);
        let had: usize = (0..60_000).map(|ms| count(&mut turns, at(ms), Some(PeerId(1)), 20)).sum();
        assert!((4020..=4024).contains(&had), "{had} of 1,200,000");
    }

    #[test]
    fn peers_share_what_there_is_for_all() {
        // P-200
        let (mut turns, now) = (Turns::begun(), Time::from_micros(5_000_000));
        let had: usize = (0..1000).map(|peer| count(&mut turns, now, Some(PeerId(peer)), 10)).sum();
        assert_eq!((had, count(&mut turns, now, None, 10)), (2048, 0));
        // One that is refused by what all may takes nothing of its own.
        assert_eq!(count(&mut turns, now + Duration::from_secs(1), Some(PeerId(999)), 1000), 100);
        assert!(turns.entries() <= 1000);
        assert!(turns.take(now + Duration::from_secs(60), Some(PeerId(7))));
        assert_eq!(turns.entries(), 1, "who has all of its own again is not remembered");
    }

    #[test]
    fn whoever_keeps_to_the_rule_is_answered() {
        // P-201
        let now = Time::from_micros(5_000_000);
        let (mut begun, mut answered) = (Turns::begun(), Turns::answered());
        for ms in 0..20_000 {
            let at = now + Duration::from_millis(ms);
            let begins = count(&mut begun, at, Some(PeerId(1)), 3);
            // What is begun in one moment may arrive in another.
            let at = at + Duration::from_millis(ms % 7);
            assert_eq!(count(&mut answered, at, Some(PeerId(1)), begins), begins);
        }
    }
}
