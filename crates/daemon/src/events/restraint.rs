//! What of that which others cause is told.

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_protocol::Time;

use super::{Causer, Kind, Report, told};

/// Events of a kind that others can cause at will, that are told in a row.
const CAUSED_BY_OTHERS: u32 = 64;
/// After that, one in so long.
const CAUSED_BY_OTHERS_PAUSE: Duration = Duration::from_secs(1);

/// Events of one kind that peers with connections cause in a row, all together, and in each pause after that.
const CAUSED_BY_PEERS: u32 = 16 * CAUSED_BY_OTHERS;
const CAUSED_BY_PEERS_EACH: u32 = 16;
/// Events of one kind about moves that one host causes in a row: it may have so many connections, and move them all.
const CAUSED_BY_MOVES: u32 = 4 * CAUSED_BY_OTHERS;

/// Keeps what strangers cause from pushing everything else out: anybody can make a key, a session and a message that is
/// refused, and with a connection of his own move without end (P-143).
#[derive(Debug, Default)]
pub(crate) struct Restraint {
    /// Whether it is of strangers: they are not to push others out.
    kinds: BTreeMap<(Kind, bool), Allowed>,
    /// Of each that is no stranger.
    causers: BTreeMap<(Kind, Causer), Allowed>,
}

#[derive(Debug)]
struct Allowed {
    most: u32,
    /// So many more in each pause.
    each: u32,
    left: u32,
    since: Time,
    left_out: u64,
}

impl Allowed {
    fn new(now: Time, most: u32, each: u32) -> Self {
        Self { most, each, left: most, since: now, left_out: 0 }
    }

    fn fill(&mut self, now: Time) {
        let pauses = now.since(self.since).as_micros() / CAUSED_BY_OTHERS_PAUSE.as_micros();
        if pauses > 0 {
            let more = self.each.saturating_mul(u32::try_from(pauses).unwrap_or(u32::MAX));
            self.left = self.most.min(self.left.saturating_add(more));
            self.since = now;
        }
    }

    fn take(&mut self, now: Time) -> bool {
        self.fill(now);
        let there = self.left > 0;
        self.left -= u32::from(there);
        there
    }
}

impl Restraint {
    /// Whether this is told; else it is counted.
    pub(crate) fn admits(&mut self, now: Time, told: &Report) -> bool {
        let (kind, Some(causer)) = (told.kind, told.causer) else { return true };
        let ((most, each), own) = match causer {
            Causer::Strangers => ((CAUSED_BY_OTHERS, 1), None),
            Causer::Peer(_) => ((CAUSED_BY_PEERS, CAUSED_BY_PEERS_EACH), Some(CAUSED_BY_OTHERS)),
            Causer::Host(_) => ((CAUSED_BY_PEERS, CAUSED_BY_PEERS_EACH), Some(CAUSED_BY_MOVES)),
        };
        let own = own.is_none_or(|most| {
            self.causers.entry((kind, causer)).or_insert_with(|| Allowed::new(now, most, 1)).take(now)
        });
        let strangers = causer == Causer::Strangers;
        let allowed = self.kinds.entry((kind, strangers)).or_insert_with(|| Allowed::new(now, most, each));
        let admitted = own && allowed.take(now);
        allowed.left_out += u64::from(!admitted);
        admitted
    }

    /// What was left out since the last call.
    pub(crate) fn left_out(&mut self, now: Time) -> Vec<Report> {
        let is_low = |allowed: &mut Allowed| {
            allowed.fill(now);
            allowed.left < allowed.most
        };
        self.causers.retain(|_, allowed| is_low(allowed));
        let told = |((kind, _), allowed): (&(Kind, bool), &mut Allowed)| match std::mem::take(&mut allowed.left_out) {
            0 => None,
            count => {
                let of = kind.word();
                Some(told!(LeftOut { of, count }, "{count} more events `{of}` came than are told"))
            }
        };
        self.kinds.iter_mut().filter_map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use whimbrel_handshake::PublicKey;
    use whimbrel_protocol::{Carried, Carrier, Event, PeerId};

    use super::*;
    use crate::events::report;

    fn of(event: &Event) -> Report {
        report(event).expect("it is told")
    }

    #[test]
    fn strangers_push_nothing_out() {
        let mut restraint = Restraint::default();
        let at = |seconds: u64| Time::from_micros(seconds * 1_000_000);
        let refused = of(&Event::Refused { peer: PeerId(1), reason: "a test" });
        let admitted = (0..1000).filter(|_| restraint.admits(at(9), &refused)).count();
        assert_eq!(admitted, CAUSED_BY_OTHERS as usize);
        assert!(restraint.admits(at(9), &moved(2, 0)), "one kind does not push out another");
        let nobody = |last: u8| of(&Event::NobodyThere { address: [192, 0, 2, last].into(), again_in: Duration::ZERO });
        assert_eq!((0..=255).filter(|last| restraint.admits(at(9), &nobody(*last))).count(), CAUSED_BY_OTHERS as usize);
        assert_eq!(restraint.kinds.remove(&(Kind::NobodyThere, true)).map(|allowed| allowed.left_out), Some(256 - 64));
        let told = restraint.left_out(at(9));
        assert_eq!((told.len(), &told[0].fields["count"]), (1, &Value::from(1000 - CAUSED_BY_OTHERS)));
        assert!(restraint.left_out(at(9)).is_empty());
        assert_eq!((0..1000).filter(|_| restraint.admits(at(12), &refused)).count(), 3);
    }

    fn moved(peer: u32, flows: usize) -> Report {
        let (to, carried) = (([192, 0, 2, 1], 2031).into(), Carried { flows, carrier: Carrier::Tunnel });
        of(&Event::PeerMoved { peer: PeerId(peer), to, translated: false, flows, carried })
    }

    #[test]
    fn peers_with_connections_do_not_fill_the_log() {
        // P-143
        let mut restraint = Restraint::default();
        let at = |seconds: u64| Time::from_micros(seconds * 1_000_000);
        let each = CAUSED_BY_OTHERS as usize;
        assert_eq!((0..1000).filter(|_| restraint.admits(at(9), &moved(2, 1))).count(), each);
        // Neither another peer's moves, nor those of strangers, are left out for that.
        assert!(restraint.admits(at(9), &moved(3, 1)) && restraint.admits(at(9), &moved(4, 0)));
        let told = restraint.left_out(at(9));
        assert_eq!((&told[0].fields["of"], &told[0].fields["count"]), (&"peer-moved".into(), &(1000 - each).into()));
        // Keys are free, and all together may so much.
        let many = (10..2010).filter(|peer| restraint.admits(at(9), &moved(*peer, 1))).count();
        assert_eq!(many, CAUSED_BY_PEERS as usize - each - 1);
        assert_eq!((10..2010).filter(|peer| restraint.admits(at(10), &moved(*peer, 1))).count(), 16);
        // Nothing is remembered of who has not moved for a while.
        restraint.left_out(at(9000));
        assert!(restraint.causers.is_empty());
    }

    #[test]
    fn hosts_that_move_without_end_do_not_fill_the_log() {
        // P-143
        let mut restraint = Restraint::default();
        let at = |seconds: u64| Time::from_micros(seconds * 1_000_000);
        let rebound = |of: u8| Report::new(Kind::FlowRebound, "a test").by(Causer::Host(PublicKey::from([of; 32])));
        let mut admits = |of| restraint.admits(at(9), &rebound(of));
        let each = CAUSED_BY_MOVES as usize;
        assert_eq!((0..1000).filter(|_| admits(1)).count(), each);
        assert!(admits(2), "another host's is told");
        // Keys are free, and all together may so much.
        let many = (3..=250).map(|of| (0..9).filter(|_| admits(of)).count());
        assert_eq!(many.sum::<usize>(), CAUSED_BY_PEERS as usize - each - 1);
        let failed = Report::new(Kind::OpFailed, "a test").by(Causer::Strangers);
        let told = (0..1000).filter(|_| restraint.admits(at(9), &failed)).count();
        assert_eq!(told, CAUSED_BY_OTHERS as usize);
        // What this host does of its own accord is always told.
        assert!((0..1000).all(|_| restraint.admits(at(9), &Report::new(Kind::SocketGiven, "a test"))));
        let told = restraint.left_out(at(9));
        let of: Vec<&Value> = told.iter().map(|told| &told.fields["of"]).collect();
        assert_eq!(of, ["flow-rebound", "op-failed"]);
        restraint.left_out(at(9000));
        assert!(restraint.causers.is_empty());
    }
}
