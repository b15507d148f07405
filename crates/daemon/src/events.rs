//! What happened, kept for `whimbrel events`: the last few thousand, each as a sentence and in parts.

mod community;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{EventRecord, EventsQuery, rfc3339};
use whimbrel_protocol::{Carried, Carrier, Event, MoveEvent, PeerId, StandInStatus, Time};
use whimbrel_wire::FlowTuple;

/// Events that are kept of each sort.
const KEPT: usize = 4096;

/// What can happen (`docs/json.md`).
pub(crate) const KINDS: [&str; 77] = [
    "address-conflict",
    "can-lend",
    "cannot-lend",
    "carrier-changed",
    "claim-refused",
    "claimed-again",
    "code-guessed",
    "community-joined",
    "community-revoked",
    "connection-granted",
    "flow-gone",
    "flow-introduced",
    "flow-rebound",
    "flow-taken-over",
    "flows-go-on",
    "flows-wait",
    "handshake-refused",
    "helper-failed",
    "helper-over",
    "helper-started",
    "host-joined",
    "host-revoked",
    "introduction-failed",
    "join-failed",
    "key-mismatch",
    "lease",
    "lease-lost",
    "lease-over",
    "lease-reached",
    "lease-refused",
    "lease-returned",
    "lease-unreached",
    "left-behind",
    "left-out",
    "lending-started",
    "lending-stopped",
    "lent",
    "may-receive",
    "moved",
    "moving",
    "name-refused",
    "name-taken",
    "name-unanswered",
    "name-updated",
    "nobody-there",
    "not-moved",
    "not-stood-in-for",
    "op-failed",
    "other-key-known",
    "path-confirmed",
    "peer-away",
    "peer-back",
    "peer-found",
    "peer-moved",
    "peer-reached",
    "peer-restarted",
    "peer-silent",
    "process-continued",
    "process-stopped",
    "refused",
    "reload-failed",
    "reloaded",
    "resumed",
    "socket-given",
    "socket-kept",
    "socket-lost",
    "socket-not-taken",
    "socket-prepared",
    "socket-taken",
    "socket-undecided",
    "stands-in",
    "started",
    "stood-aside",
    "stood-in-for",
    "stopping",
    "suspended",
    "taken-back",
];

/// Connections of whose names an event tells.
const NAMED: usize = 16;

/// The newest events, oldest first. Those about single connections are kept apart: where connections come and go by the
/// thousand they would push out what became of all of them.
#[derive(Debug, Default)]
pub(crate) struct EventRing {
    general: VecDeque<EventRecord>,
    of_connections: VecDeque<EventRecord>,
    newest: u64,
}

/// The word, the sentence and the parts of something that happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    /// A word that stays the same over releases.
    pub(crate) kind: &'static str,
    /// For people.
    pub(crate) sentence: String,
    /// The particulars.
    pub(crate) fields: Map<String, Value>,
}

impl EventRing {
    /// Stamps and keeps an event.
    pub(crate) fn push(&mut self, wall: SystemTime, monotonic: Duration, told: Told) -> &EventRecord {
        let records = if told.is_of_connection() { &mut self.of_connections } else { &mut self.general };
        if records.len() == KEPT {
            records.pop_front();
        }
        self.newest += 1;
        records.push_back(EventRecord {
            number: self.newest,
            time: rfc3339(wall),
            monotonic_ms: u64::try_from(monotonic.as_millis()).unwrap_or(u64::MAX),
            kind: told.kind.to_owned(),
            sentence: told.sentence,
            fields: told.fields,
        });
        &records[records.len() - 1]
    }

    /// The number of the newest event; 0 where there is none.
    #[must_use]
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// The events that a query asks for, oldest first.
    pub(crate) fn select(&self, query: &EventsQuery) -> impl Iterator<Item = &EventRecord> {
        let after = query.since.unwrap_or(0);
        let fresh = |records: &'_ VecDeque<EventRecord>| records.partition_point(|record| record.number <= after);
        let (general, of_connections) = (fresh(&self.general), fresh(&self.of_connections));
        let all = self.general.len() - general + self.of_connections.len() - of_connections;
        let skipped = all.saturating_sub(query.last.unwrap_or(usize::MAX));
        let mut general = self.general.iter().skip(general).peekable();
        let mut of_connections = self.of_connections.iter().skip(of_connections).peekable();
        let merged = std::iter::from_fn(move || match (general.peek(), of_connections.peek()) {
            (Some(one), Some(other)) if one.number > other.number => of_connections.next(),
            (Some(_), _) => general.next(),
            (None, _) => of_connections.next(),
        });
        merged.skip(skipped)
    }
}

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
    kinds: BTreeMap<(&'static str, bool), Allowed>,
    /// Of each peer with connections.
    peers: BTreeMap<(&'static str, PeerId), Allowed>,
    /// Of each host that takes part in moves.
    hosts: BTreeMap<(&'static str, PublicKey), Allowed>,
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
    pub(crate) fn admits_of_move(&mut self, now: Time, kind: &'static str, event: &MoveEvent) -> bool {
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
    pub(crate) fn left_out(&mut self, now: Time) -> Vec<Told> {
        let is_low = |allowed: &mut Allowed| {
            allowed.fill(now);
            allowed.left < allowed.most
        };
        self.peers.retain(|_, allowed| is_low(allowed));
        self.hosts.retain(|_, allowed| is_low(allowed));
        let told =
            |((kind, _), allowed): (&(&'static str, bool), &mut Allowed)| match std::mem::take(&mut allowed.left_out) {
                0 => None,
                count => {
                    let sentence = format!("{count} more events `{kind}` came than are told");
                    Some(Told::new("left-out", sentence).with("of", *kind).with("count", count))
                }
            };
        self.kinds.iter_mut().filter_map(told).collect()
    }
}

/// The kind of an event that others can cause at will.
fn caused_by_strangers(event: &Event) -> Option<&'static str> {
    match event {
        Event::PeerReached { .. } => Some("peer-reached"),
        // A crawler asks a score of hosts in a second, all day long.
        Event::NobodyThere { .. } => Some("nobody-there"),
        Event::Refused { .. } => Some("refused"),
        Event::Claimed { .. } => Some("address-conflict"),
        Event::HandshakeRefused { .. } => Some("handshake-refused"),
        Event::PeerMoved { flows: 0, .. } => Some("peer-moved"),
        Event::PeerFound { .. } => Some("peer-found"),
        Event::StandsIn { .. } => Some("stands-in"),
        Event::StoodAside { .. } => Some("stood-aside"),
        _ => None,
    }
}

/// The kind of an event that may be left out.
pub(crate) fn restrained(event: &Event) -> Option<&'static str> {
    caused_by_strangers(event).or_else(|| caused_by_peer(event).map(|(kind, _)| kind))
}

/// The kind of an event that a peer can cause at will which has a connection, and which peer.
fn caused_by_peer(event: &Event) -> Option<(&'static str, PeerId)> {
    match event {
        Event::PeerMoved { peer, .. } => Some(("peer-moved", *peer)),
        Event::PathConfirmed { peer, .. } => Some(("path-confirmed", *peer)),
        Event::CarrierChanged { peer, .. } => Some(("carrier-changed", *peer)),
        Event::PeerAway { peer, .. } => Some(("peer-away", *peer)),
        Event::PeerBack { peer, .. } => Some(("peer-back", *peer)),
        Event::Waiting { peer, by_peer: true, wait: true, .. } => Some(("flows-wait", *peer)),
        Event::Waiting { peer, by_peer: true, wait: false, .. } => Some(("flows-go-on", *peer)),
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

impl Told {
    /// Something that the daemon itself has to say.
    #[must_use]
    pub(crate) fn new(kind: &'static str, sentence: impl Into<String>) -> Self {
        Self { kind, sentence: sentence.into(), fields: Map::new() }
    }

    /// Adds a particular.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Whether it is about a single connection.
    pub(crate) fn is_of_connection(&self) -> bool {
        matches!(self.kind, "flow-introduced" | "flow-taken-over" | "introduction-failed" | "flow-gone")
    }

    /// Whether something that was asked for could not be done.
    pub(crate) fn is_a_failure(&self) -> bool {
        const FAILURES: [&str; 6] =
            ["reload-failed", "key-mismatch", "helper-failed", "name-refused", "name-unanswered", "cannot-lend"];
        FAILURES.contains(&self.kind)
    }

    /// Something about a socket that changes hosts. `what` goes on with "the socket of …".
    pub(crate) fn of_socket(kind: &'static str, flow: Option<FlowTuple>, what: impl std::fmt::Display) -> Self {
        match flow {
            Some(flow) => {
                let of = if flow.is_unconnected() { crate::shown::flow(flow).called() } else { format!("of {flow}") };
                Self::new(kind, format!("the socket {of} {what}")).with("flow", flow.to_string())
            }
            None => Self::new(kind, format!("a socket {what}")),
        }
    }

    /// A connection that a daemon before this one introduced.
    pub(crate) fn taken_over(flow: &FlowTuple, peer: PeerId) -> Self {
        Self::new("flow-taken-over", format!("{flow} outlives moves since before this daemon was started"))
            .with("flow", flow.to_string())
            .with("peer", peer.0)
    }

    fn address(self, name: &str, address: Option<IpAddr>) -> Self {
        self.with(name, address.map(|address| address.to_string()))
    }

    fn endpoint(self, name: &str, endpoint: SocketAddr) -> Self {
        self.with(name, endpoint.to_string())
    }

    /// How the peer's connections go from now on.
    fn carried(self, carried: Carried) -> Self {
        let carrier = (carried.flows > 0).then(|| word(carried.carrier));
        self.with("carried", carried.flows).with("carrier", carrier)
    }
}

/// Why nobody stands in for an address.
fn not_stood_in(status: StandInStatus) -> &'static str {
    match status {
        StandInStatus::Accepted => "it is",
        StandInStatus::Unproven => "this host was not met there",
        StandInStatus::OffLink => "it is on none of its links",
        StandInStatus::Taken => "somebody has it",
        StandInStatus::Refused => "`stand_in` is not set there, or there are too many",
        StandInStatus::Other(_) => "for a reason that this version does not know",
    }
}

impl Told {
    /// What people are told of an event of the node's. Of what moves the loop knows more, and tells it itself.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::PeerReached { peer, key, remote, took } => Self::new(
                "peer-reached",
                match took.is_zero() {
                    // It asked, in one message.
                    true => format!("peer {peer} at {remote} runs Whimbrel too: it asked for a session, which is up"),
                    false => format!("peer {peer} at {remote} runs Whimbrel too: a session is up after {}", human(*took)),
                },
            )
            .with("peer", peer.0)
            .with("key", key.to_string())
            .endpoint("remote", *remote)
            .with("took_ms", millis(*took)),
            Event::NobodyThere { address, again_in } => Self::new(
                "nobody-there",
                format!(
                    "{address} did not answer: it runs no Whimbrel, or UDP is dropped on the way, or its `trust` is \
                     another; asked again in {}",
                    human(*again_in)
                ),
            )
            .address("address", Some(*address))
            .with("again_in_ms", millis(*again_in)),
            Event::KeyMismatch { address, expected, found } => Self::new(
                "key-mismatch",
                match found {
                    Some(found) => format!(
                        "{address} answered with the key {found}, but {expected} is known for it: not trusted. Where the \
                         host was set up anew, `whimbrel peers forget {address}` drops the old key"
                    ),
                    None => format!("{address} does not have the key {expected} that is known for it: not trusted"),
                },
            )
            .address("address", Some(*address))
            .with("expected", expected.to_string())
            .with("found", found.map(|key| key.to_string())),
            Event::FlowIntroduced { flow, peer, translated } => Self::new(
                "flow-introduced",
                format!(
                    "{flow} will outlive a move: both ends agree on it{}",
                    if *translated { ", through a NAT" } else { "" }
                ),
            )
            .with("flow", flow.to_string())
            .with("peer", peer.0)
            .with("translated", *translated),
            Event::IntroductionFailed { flow, reason } => {
                Self::new("introduction-failed", format!("{flow} will not outlive a move: {reason}"))
                    .with("flow", flow.to_string())
                    .with("reason", *reason)
            }
            Event::FlowGone { flow, peer } => Self::new("flow-gone", format!("{flow} has ended"))
                .with("flow", flow.to_string())
                .with("peer", peer.0),
            Event::Waiting { peer, wait, by_peer, flows, waiting } => Self::new(
                if *wait { "flows-wait" } else { "flows-go-on" },
                format!(
                    "{} of peer {peer} {} as {} asked",
                    connections(flows.len()),
                    match (*wait, flows.len()) {
                        (true, 1) => "waits",
                        (true, _) => "wait",
                        (false, 1) => "goes on",
                        (false, _) => "go on",
                    },
                    if *by_peer { "the peer" } else { "somebody here" }
                ),
            )
            .with("peer", peer.0)
            .with("by", if *by_peer { "peer" } else { "this-host" })
            .with("flows", flows.len())
            .with("waiting", *waiting)
            .with("named", flows.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>()),
            Event::Moving { peer, from, to, flows, kept } => Self::new(
                "moving",
                match (from, to) {
                    (_, None) => format!("no way to peer {peer} any more: {} on hold", connections(*flows)),
                    (None, Some(to)) => format!("there is a way to peer {peer} from {to}: {} to move", connections(*flows)),
                    (Some(from), Some(to)) if from == to => {
                        format!("announcing {to} once more to peer {peer}: {}", connections(*flows))
                    }
                    (Some(from), Some(to)) => {
                        format!("moving from {from} to {to} towards peer {peer}: {}", connections(*flows))
                    }
                },
            )
            .with("peer", peer.0)
            .address("from", *from)
            .address("to", *to)
            .with("flows", *flows)
            .with("kept", *kept),
            Event::Moved { peer, to, translated, took, flows, carried } => Self::new(
                "moved",
                format!(
                    "moved to {to}{} towards peer {peer} in {}: {}",
                    if *translated { " (behind a NAT)" } else { "" },
                    human(*took),
                    connections(*flows)
                ),
            )
            .with("peer", peer.0)
            .address("to", Some(*to))
            .with("translated", *translated)
            .with("took_ms", millis(*took))
            .with("flows", *flows)
            .carried(*carried),
            Event::NotMoved { peer, at, flows, carried } => {
                let told = Self::new(
                    "not-moved",
                    format!("peer {peer} does not answer, but this network is the old one: {} as before", connections(*flows)),
                );
                let told = told.with("peer", peer.0).with("flows", *flows).carried(*carried);
                match at {
                    Some(at) => told.with("at", at.to_string()),
                    None => told,
                }
            }
            Event::PeerAway { peer, announced, flows } => Self::new(
                "peer-away",
                format!(
                    "peer {peer} {}: {} for it",
                    if *announced { "goes away" } else { "is not heard any more" },
                    wait(*flows)
                ),
            )
            .with("peer", peer.0)
            .with("announced", *announced)
            .with("flows", *flows),
            Event::PeerRestarted { peer, flows } => Self::new(
                "peer-restarted",
                format!("the host of peer {peer} was started anew: {} ended with it", connections(*flows)),
            )
            .with("peer", peer.0)
            .with("flows", *flows),
            Event::PeerBack { peer, flows, carried } => {
                Self::new("peer-back", format!("peer {peer} is heard again: {} on", go(*flows)))
                    .with("peer", peer.0)
                    .with("flows", *flows)
                    .carried(*carried)
            }
            Event::Suspended { flows } => {
                Self::new("suspended", format!("this host goes away: {} until it is back", wait(*flows)))
                    .with("flows", *flows)
            }
            Event::Resumed => Self::new("resumed", "this host is back"),
            Event::PeerFound { peer, remote, rendezvous } => Self::new(
                "peer-found",
                format!("peer {peer} was found at {remote}, as the rendezvous (peer {rendezvous}) said"),
            )
            .with("peer", peer.0)
            .endpoint("remote", *remote)
            .with("rendezvous", rendezvous.0),
            Event::StandsIn { peer, address } => Self::new(
                "stands-in",
                format!("peer {peer} has left {address}, and what is said to it there is passed on to it"),
            )
            .with("peer", peer.0)
            .address("address", Some(*address)),
            Event::StoodAside { peer, address, reason } => Self::new(
                "stood-aside",
                format!("{address}, which peer {peer} has left, is not stood in for: {}", not_stood_in(*reason)),
            )
            .with("peer", peer.0)
            .address("address", Some(*address))
            .with("reason", not_stood_in(*reason)),
            Event::StoodInFor { by, address, status: StandInStatus::Accepted } => Self::new(
                "stood-in-for",
                format!("peer {by} passes on what is said to this host at {address}, which it has left"),
            )
            .with("peer", by.0)
            .address("address", Some(*address))
            .with("reason", Value::Null),
            Event::StoodInFor { by, address, status } => Self::new(
                "not-stood-in-for",
                format!("peer {by} does not stand in for this host at {address}: {}", not_stood_in(*status)),
            )
            .with("peer", by.0)
            .address("address", Some(*address))
            .with("reason", not_stood_in(*status)),
            Event::TakenBack { peer, from, flows } => Self::new(
                "taken-back",
                format!("no answer of peer {peer} arrives at {from}: {} as before", connections(*flows)),
            )
            .with("peer", peer.0)
            .with("from", from.to_string())
            .with("flows", *flows),
            Event::PeerMoved { peer, to, translated, flows, carried } => Self::new(
                "peer-moved",
                format!(
                    "peer {peer} moved to {to}{}: {}",
                    if *translated { " (behind a NAT)" } else { "" },
                    connections(*flows)
                ),
            )
            .with("peer", peer.0)
            .endpoint("to", *to)
            .with("translated", *translated)
            .with("flows", *flows)
            .carried(*carried),
            Event::PathConfirmed { peer, remote, round_trip, carried } => Self::new(
                "path-confirmed",
                format!("the path to peer {peer} at {remote} is confirmed, round trip {}", human(*round_trip)),
            )
            .with("peer", peer.0)
            .endpoint("remote", *remote)
            .with("round_trip_ms", millis(*round_trip))
            .carried(*carried),
            Event::CarrierChanged { peer, carrier } => {
                let sentence = match carrier {
                    Carrier::Hold => "are held",
                    Carrier::Tunnel => "go through the tunnel",
                    Carrier::FollowRewrite => "are answered as they come, rewritten or through the tunnel,",
                    Carrier::Rewrite => "are rewritten",
                };
                Self::new("carrier-changed", format!("moved connections of peer {peer} {sentence} from now on"))
                    .with("peer", peer.0)
                    .with("carrier", word(*carrier))
            }
            Event::Claimed { flow, peer, given_up } => Self::new(
                "address-conflict",
                format!(
                    "whoever is at {} now, which peer {peer} has left, opens a connection under the very names of {flow}: {}",
                    flow.remote.ip(),
                    if *given_up { "this one is aborted for it" } else { "it is refused as long as this one is open" }
                ),
            )
            .with("flow", flow.to_string())
            .with("peer", peer.0)
            .with("outcome", if *given_up { "aborted" } else { "refused" }),
            Event::Refused { peer, reason } => {
                Self::new("refused", format!("refused what peer {peer} asked for: {reason}"))
                    .with("peer", peer.0)
                    .with("reason", *reason)
            }
            Event::HandshakeRefused { remote, reason } => Self::new(
                "handshake-refused",
                format!("no session with {remote}: {reason}. `trust` and `psk_file` have to be the same at both ends"),
            )
            .endpoint("remote", *remote)
            .with("reason", *reason),
            Event::PeerSilent { peer, remote, flows } => Self::new(
                "peer-silent",
                format!(
                    "peer {peer} at {remote} does not answer: {} would not survive a move before it does. Whether it runs, \
                     lets UDP in and has the same `trust` is to be seen there (`whimbrel doctor`, `whimbrel events`)",
                    connections(*flows)
                ),
            )
            .with("peer", peer.0)
            .endpoint("remote", *remote)
            .with("flows", *flows),
            Event::Community(event) => Self::from(event),
            Event::OpFailed { what, error } => Self::new("op-failed", format!("{what} failed: {error}"))
                .with("what", what.clone())
                .with("error", error.clone()),
            Event::Move(_) => return None,
        })
    }
}

fn word(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Hold => "hold",
        Carrier::Tunnel => "tunnel",
        Carrier::FollowRewrite => "follow-rewrite",
        Carrier::Rewrite => "rewrite",
    }
}

/// Milliseconds with microseconds behind the point.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn human(duration: Duration) -> String {
    match duration.as_millis() {
        0..1_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        1_000..120_000 => format!("{:.1} s", duration.as_secs_f64()),
        120_000..7_200_000 => format!("{} min", duration.as_secs() / 60),
        _ => format!("{} h", duration.as_secs() / 3600),
    }
}

fn connections(count: usize) -> String {
    match count {
        1 => "1 connection".into(),
        _ => format!("{count} connections"),
    }
}

fn wait(count: usize) -> String {
    format!("{} {}", connections(count), if count == 1 { "waits" } else { "wait" })
}

fn go(count: usize) -> String {
    format!("{} {}", connections(count), if count == 1 { "goes" } else { "go" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_protocol::{FlowName, MoveName, PeerId};
    use whimbrel_wire::FlowTuple;

    fn filled(count: usize) -> EventRing {
        let mut ring = EventRing::default();
        for number in 0..count {
            ring.push(SystemTime::UNIX_EPOCH, Duration::from_millis(number as u64), Told::new("test", "something"));
        }
        ring
    }

    fn numbers(ring: &EventRing, query: &EventsQuery) -> Vec<u64> {
        ring.select(query).map(|record| record.number).collect()
    }

    #[test]
    fn queries_select_by_number_and_count() {
        let ring = filled(5);
        assert_eq!(numbers(&ring, &EventsQuery::default()), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(&ring, &EventsQuery { last: Some(2), ..Default::default() }), [4, 5]);
        assert_eq!(numbers(&ring, &EventsQuery { since: Some(3), ..Default::default() }), [4, 5]);
        assert_eq!(numbers(&ring, &EventsQuery { since: Some(1), last: Some(1), ..Default::default() }), [5]);
        assert_eq!(numbers(&ring, &EventsQuery { since: Some(99), ..Default::default() }), [] as [u64; 0]);
    }

    #[test]
    fn connections_that_come_and_go_push_nothing_else_out() {
        let mut ring = filled(2);
        for _ in 0..KEPT + 1 {
            ring.push(SystemTime::UNIX_EPOCH, Duration::ZERO, Told::new("flow-gone", "a connection has ended"));
        }
        ring.push(SystemTime::UNIX_EPOCH, Duration::ZERO, Told::new("test", "something"));
        let last = (KEPT + 4) as u64;
        let all = numbers(&ring, &EventsQuery::default());
        assert_eq!((all.len(), &all[..3], all.last()), (KEPT + 3, &[1, 2, 4][..], Some(&last)));
        assert!(all.is_sorted());
        let query = EventsQuery { last: Some(2), ..Default::default() };
        assert_eq!(numbers(&ring, &query), [last - 1, last]);
        let query = EventsQuery { since: Some(2), last: Some(KEPT + 9), ..Default::default() };
        assert_eq!(numbers(&ring, &query).len(), KEPT + 1);
    }

    #[test]
    fn the_ring_forgets_the_oldest() {
        let ring = filled(KEPT + 3);
        let all = numbers(&ring, &EventsQuery::default());
        assert_eq!((all.len(), all[0], ring.newest()), (KEPT, 4, (KEPT + 3) as u64));
    }

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
        assert_eq!(restraint.kinds.remove(&("nobody-there", false)).map(|allowed| allowed.left_out), Some(256 - 64));
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
        let mut admits = |at, event: &MoveEvent| restraint.admits_of_move(at, "flow-rebound", event);
        let each = CAUSED_BY_MOVES as usize;
        assert_eq!((0..1000).filter(|number| admits(at(9), &rebound(1, *number))).count(), each);
        assert!(admits(at(9), &rebound(2, 0)), "another host's is told");
        // Keys are free, and all together may so much.
        let many = (3..=250).map(|of| (0..9).filter(|number| admits(at(9), &rebound(of, *number))).count());
        assert_eq!(many.sum::<usize>(), CAUSED_BY_PEERS as usize - each - 1);
        let failed = MoveEvent::OpFailed { what: "a test", error: String::new() };
        let told = (0..1000).filter(|_| restraint.admits_of_move(at(9), "op-failed", &failed)).count();
        assert_eq!(told, CAUSED_BY_OTHERS as usize);
        // What this host does of its own accord is always told.
        let given = MoveEvent::Given { name: MoveName { donor: [1; 32], number: 1 }, to: PublicKey::from([1; 32]) };
        assert!((0..1000).all(|_| restraint.admits_of_move(at(9), "socket-given", &given)));
        let told = restraint.left_out(at(9));
        let of: Vec<&Value> = told.iter().map(|told| &told.fields["of"]).collect();
        assert_eq!(of, ["flow-rebound", "op-failed"]);
        restraint.left_out(at(9000));
        assert!(restraint.hosts.is_empty());
    }

    /// Kinds and fields as they stand in the code above: whoever adds one is reminded of the documentation.
    #[test]
    fn every_kind_and_its_fields_are_documented() {
        let text = include_str!("../../../docs/json.md").split_whitespace().collect::<Vec<_>>().join(" ");
        let list = text.split("Kinds and their fields:").nth(1).expect("a list of kinds");
        let list: Vec<&str> = list.split("Others may be added").next().expect("its end").split(" · ").collect();
        let quoted = |text: &str| text.split('"').nth(1).expect("a word").to_owned();
        let code = include_str!("events.rs").split("fn of(event: &Event)").nth(1).expect("the code");
        let arms: Vec<&str> = code.split("#[cfg(test)]").next().expect("its end").split("Event::").skip(1).collect();
        let community =
            include_str!("events/community.rs").split("impl From<&CommunityEvent>").nth(1).expect("the code");
        let arms = arms.into_iter().filter(|arm| !arm.starts_with("Community(") && !arm.starts_with("Move("));
        let arms: Vec<&str> = arms.chain(community.split("CommunityEvent::").skip(1)).collect();
        assert!(arms.len() > 20, "{}", arms.len());
        for arm in arms {
            let kind = quoted(arm.split("Self::new(").nth(1).expect("a kind"));
            assert!(KINDS.contains(&kind.as_str()), "`{kind}` is not counted");
            let described = list.iter().find(|part| part.contains(&format!("`{kind}`")));
            let described = described.unwrap_or_else(|| panic!("`{kind}` is not in docs/json.md"));
            for call in [".with(", ".address(", ".endpoint("] {
                for field in arm.split(call).skip(1).map(quoted) {
                    assert!(described.contains(&field), "{kind}: `{field}` is not in docs/json.md");
                }
            }
        }
    }

    #[test]
    fn a_move_to_the_same_address_is_not_called_one() {
        let here = "192.0.2.9".parse().ok();
        let told = |to| {
            Told::of(&Event::Moving { peer: PeerId(3), from: here, to, flows: 1, kept: true })
                .expect("a sentence")
                .sentence
        };
        assert_eq!(told(here), "announcing 192.0.2.9 once more to peer #3: 1 connection");
        assert_eq!(
            told("192.0.2.10".parse().ok()),
            "moving from 192.0.2.9 to 192.0.2.10 towards peer #3: 1 connection"
        );
    }

    #[test]
    fn sentences_are_for_people_and_fields_for_programs() {
        let told = Told::of(&Event::Moved {
            peer: PeerId(3),
            to: "192.0.2.9".parse().expect("address"),
            translated: true,
            took: Duration::from_micros(41_250),
            flows: 1,
            carried: Carried { flows: 1, carrier: Carrier::Tunnel },
        })
        .expect("a sentence");
        assert_eq!(told.sentence, "moved to 192.0.2.9 (behind a NAT) towards peer #3 in 41.2 ms: 1 connection");
        assert_eq!(told.fields["took_ms"], 41.25);
        assert_eq!(told.fields["peer"], 3);
        assert_eq!((&told.fields["carried"], &told.fields["carrier"]), (&1.into(), &"tunnel".into()));
    }

    #[test]
    fn all_kinds_are_documented() {
        let documentation = include_str!("../../../docs/json.md");
        for kind in KINDS {
            assert!(documentation.contains(&format!("`{kind}`")), "{kind}");
        }
        assert!(KINDS.is_sorted());
    }

    #[test]
    fn what_is_at_home_is_carried_by_nothing() {
        let carried = Carried { flows: 0, carrier: Carrier::Tunnel };
        let told = Told::of(&Event::PeerBack { peer: PeerId(3), flows: 2, carried }).expect("a sentence");
        assert_eq!((&told.fields["carried"], &told.fields["carrier"]), (&0.into(), &Value::Null));
    }

    #[test]
    fn connections_that_wait_are_named_up_to_a_number() {
        let flow = |port| FlowTuple {
            transport: whimbrel_wire::Transport::Tcp,
            local: ([192, 0, 2, 1], port).into(),
            remote: ([203, 0, 113, 5], 22).into(),
        };
        let flows = (1..=100).map(flow).collect();
        let told = Told::of(&Event::Waiting { peer: PeerId(3), wait: true, by_peer: false, flows, waiting: 101 })
            .expect("a sentence");
        assert_eq!((told.kind, &told.fields["by"]), ("flows-wait", &"this-host".into()));
        assert_eq!(told.sentence, "100 connections of peer #3 wait as somebody here asked");
        assert_eq!((&told.fields["flows"], &told.fields["waiting"]), (&100.into(), &101.into()));
        assert_eq!(told.fields["named"].as_array().map(Vec::len), Some(NAMED));
        assert_eq!(told.fields["named"][0], "tcp 192.0.2.1:1 -> 203.0.113.5:22");
        let one = Event::Waiting { peer: PeerId(3), wait: false, by_peer: true, flows: vec![flow(1)], waiting: 0 };
        assert_eq!(Told::of(&one).expect("a sentence").sentence, "1 connection of peer #3 goes on as the peer asked");
    }
}
