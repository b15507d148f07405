//! What of that which others cause is told.

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Event, MoveEvent, PeerId, Time};

use super::{Kind, Report};

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
    /// Whether it is of peers with connections: others are not to push these out.
    kinds: BTreeMap<(Kind, bool), Allowed>,
    /// Of each peer with connections.
    peers: BTreeMap<(Kind, PeerId), Allowed>,
    /// Of each host that takes part in moves.
    hosts: BTreeMap<(Kind, PublicKey), Allowed>,
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
    /// Whether this event is told; else it is counted.
    pub(crate) fn admits(&mut self, now: Time, event: &Event) -> bool {
        let (kind, all, own) = if let Some(kind) = caused_by_strangers(event) {
            (self.kinds.entry((kind, false)), (CAUSED_BY_OTHERS, 1), true)
        } else if let Some((kind, peer)) = caused_by_peer(event) {
            let own =
                self.peers.entry((kind, peer)).or_insert_with(|| Allowed::new(now, CAUSED_BY_OTHERS, 1)).take(now);
            (self.kinds.entry((kind, true)), (CAUSED_BY_PEERS, CAUSED_BY_PEERS_EACH), own)
        } else {
            return true;
        };
        let allowed = kind.or_insert_with(|| Allowed::new(now, all.0, all.1));
        let told = own && allowed.take(now);
        allowed.left_out += u64::from(!told);
        told
    }

    /// The same for what is told of a move under this kind.
    pub(crate) fn admits_of_move(&mut self, now: Time, kind: Kind, event: &MoveEvent) -> bool {
        let (all, own) = if let Some(host) = caused_by_host(event) {
            let own = self.hosts.entry((kind, host)).or_insert_with(|| Allowed::new(now, CAUSED_BY_MOVES, 1)).take(now);
            ((CAUSED_BY_PEERS, CAUSED_BY_PEERS_EACH), own)
        } else if matches!(event, MoveEvent::OpFailed { .. }) {
            // Whoever can have it fail can have it fail again.
            ((CAUSED_BY_OTHERS, 1), true)
        } else {
            return true;
        };
        let allowed = self.kinds.entry((kind, true)).or_insert_with(|| Allowed::new(now, all.0, all.1));
        let told = own && allowed.take(now);
        allowed.left_out += u64::from(!told);
        told
    }

    /// What was left out since the last call.
    pub(crate) fn left_out(&mut self, now: Time) -> Vec<Report> {
        let is_low = |allowed: &mut Allowed| {
            allowed.fill(now);
            allowed.left < allowed.most
        };
        self.peers.retain(|_, allowed| is_low(allowed));
        self.hosts.retain(|_, allowed| is_low(allowed));
        let told = |((kind, _), allowed): (&(Kind, bool), &mut Allowed)| match std::mem::take(&mut allowed.left_out) {
            0 => None,
            count => {
                let sentence = format!("{count} more events `{}` came than are told", kind.word());
                Some(Report::new(Kind::LeftOut, sentence).with("of", kind.word()).with("count", count))
            }
        };
        self.kinds.iter_mut().filter_map(told).collect()
    }
}

/// The kind of an event that others can cause at will.
fn caused_by_strangers(event: &Event) -> Option<Kind> {
    match event {
        Event::PeerReached { .. } => Some(Kind::PeerReached),
        // A crawler asks a score of hosts in a second, all day long.
        Event::NobodyThere { .. } => Some(Kind::NobodyThere),
        Event::Refused { .. } => Some(Kind::Refused),
        Event::Claimed { .. } => Some(Kind::AddressConflict),
        Event::HandshakeRefused { .. } => Some(Kind::HandshakeRefused),
        Event::PeerMoved { flows: 0, .. } => Some(Kind::PeerMoved),
        Event::PeerFound { .. } => Some(Kind::PeerFound),
        Event::StandsIn { .. } => Some(Kind::StandsIn),
        Event::StoodAside { .. } => Some(Kind::StoodAside),
        _ => None,
    }
}

/// The kind of an event that may be left out.
pub(crate) fn restrained(event: &Event) -> Option<Kind> {
    caused_by_strangers(event).or_else(|| caused_by_peer(event).map(|(kind, _)| kind))
}

/// The kind of an event that a peer can cause at will which has a connection, and which peer.
fn caused_by_peer(event: &Event) -> Option<(Kind, PeerId)> {
    match event {
        Event::PeerMoved { peer, .. } => Some((Kind::PeerMoved, *peer)),
        Event::PathConfirmed { peer, .. } => Some((Kind::PathConfirmed, *peer)),
        Event::CarrierChanged { peer, .. } => Some((Kind::CarrierChanged, *peer)),
        Event::PeerAway { peer, .. } => Some((Kind::PeerAway, *peer)),
        Event::PeerBack { peer, .. } => Some((Kind::PeerBack, *peer)),
        Event::Paused { peer, by_peer: true, wait: true, .. } => Some((Kind::FlowsWait, *peer)),
        Event::Paused { peer, by_peer: true, wait: false, .. } => Some((Kind::FlowsGoOn, *peer)),
        _ => None,
    }
}

/// The host that can cause an event of a move at will.
fn caused_by_host(event: &MoveEvent) -> Option<PublicKey> {
    match event {
        MoveEvent::Rebound { flow, .. } => Some(flow.peer()),
        MoveEvent::NotTaken { name, .. } => Some(PublicKey::from(name.donor)),
        MoveEvent::Lent { to, .. } | MoveEvent::LeaseOver { to } => Some(*to),
        MoveEvent::Reached { anchor, .. } => Some(*anchor),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use whimbrel_protocol::{Carried, Carrier, FlowName, MoveName};

    use super::*;

    #[test]
    fn strangers_push_nothing_out() {
        let mut restraint = Restraint::default();
        let at = |seconds: u64| Time::from_micros(seconds * 1_000_000);
        let refused = Event::Refused { peer: PeerId(1), reason: "a test" };
        let admitted = (0..1000).filter(|_| restraint.admits(at(9), &refused)).count();
        assert_eq!(admitted, CAUSED_BY_OTHERS as usize);
        assert!(restraint.admits(at(9), &moved(2, 0)), "one kind does not push out another");
        let nobody = |last: u8| Event::NobodyThere { address: [192, 0, 2, last].into(), again_in: Duration::ZERO };
        assert_eq!((0..=255).filter(|last| restraint.admits(at(9), &nobody(*last))).count(), CAUSED_BY_OTHERS as usize);
        assert_eq!(restraint.kinds.remove(&(Kind::NobodyThere, false)).map(|allowed| allowed.left_out), Some(256 - 64));
        let told = restraint.left_out(at(9));
        assert_eq!((told.len(), &told[0].fields["count"]), (1, &Value::from(1000 - CAUSED_BY_OTHERS)));
        assert!(restraint.left_out(at(9)).is_empty());
        assert_eq!((0..1000).filter(|_| restraint.admits(at(12), &refused)).count(), 3);
    }

    fn moved(peer: u32, flows: usize) -> Event {
        let (to, carried) = (([192, 0, 2, 1], 2031).into(), Carried { flows, carrier: Carrier::Tunnel });
        Event::PeerMoved { peer: PeerId(peer), to, translated: false, flows, carried }
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
        assert!(restraint.peers.is_empty());
    }

    #[test]
    fn hosts_that_move_without_end_do_not_fill_the_log() {
        // P-143
        let mut restraint = Restraint::default();
        let at = |seconds: u64| Time::from_micros(seconds * 1_000_000);
        let rebound = |of: u8, number| {
            let flow = FlowName::new(PublicKey::from([of; 32]), number);
            MoveEvent::Rebound { flow, far: None }
        };
        let mut admits = |at, event: &MoveEvent| restraint.admits_of_move(at, Kind::FlowRebound, event);
        let each = CAUSED_BY_MOVES as usize;
        assert_eq!((0..1000).filter(|number| admits(at(9), &rebound(1, *number))).count(), each);
        assert!(admits(at(9), &rebound(2, 0)), "another host's is told");
        // Keys are free, and all together may so much.
        let many = (3..=250).map(|of| (0..9).filter(|number| admits(at(9), &rebound(of, *number))).count());
        assert_eq!(many.sum::<usize>(), CAUSED_BY_PEERS as usize - each - 1);
        let failed = MoveEvent::OpFailed { what: "a test", error: String::new() };
        let told = (0..1000).filter(|_| restraint.admits_of_move(at(9), Kind::OpFailed, &failed)).count();
        assert_eq!(told, CAUSED_BY_OTHERS as usize);
        // What this host does of its own accord is always told.
        let given = MoveEvent::Given { name: MoveName { donor: [1; 32], number: 1 }, to: PublicKey::from([1; 32]) };
        assert!((0..1000).all(|_| restraint.admits_of_move(at(9), Kind::SocketGiven, &given)));
        let told = restraint.left_out(at(9));
        let of: Vec<&Value> = told.iter().map(|told| &told.fields["of"]).collect();
        assert_eq!(of, ["flow-rebound", "op-failed"]);
        restraint.left_out(at(9000));
        assert!(restraint.hosts.is_empty());
    }
}
