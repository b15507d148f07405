//! What the daemon knows, in the words of the local API.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use whimbrel_datapath::SocketsApart;
use whimbrel_ipc as ipc;
use whimbrel_kernel::process;
use whimbrel_protocol::{
    Carrier, Doubt, FlowState, FlowView, Greeting, LocalEnd, PeerId, PeerView, RendezvousBy, RendezvousStanding,
    RendezvousView, STAND_IN_PORTS, Standing, Time, Trust,
};
use whimbrel_wire::hello::Capabilities;
use whimbrel_wire::{FlowTuple, Transport};

use crate::host::inventory::left_behind::{self, LeftBehind};
use crate::host::inventory::servers::Inhabitants;
use crate::host::inventory::{servers, unmoved};
use crate::known_keys::KnownKeys;
pub(crate) use crate::shown::flow;
use crate::shown::is_heard;

pub(crate) fn trust(trust: Trust) -> ipc::Trust {
    match trust {
        Trust::Tofu => ipc::Trust::Tofu,
        Trust::Pinned => ipc::Trust::Pinned,
        Trust::Psk => ipc::Trust::Psk,
    }
}

/// A rendezvous and how it stands.
pub(crate) fn rendezvous(view: RendezvousView) -> ipc::Rendezvous {
    let (state, peers) = match view.standing {
        RendezvousStanding::Unneeded => (ipc::RendezvousState::Unneeded, 0),
        RendezvousStanding::Unanswered => (ipc::RendezvousState::Unanswered, 0),
        RendezvousStanding::Registered { peers } => (ipc::RendezvousState::Registered, peers),
        RendezvousStanding::Full { peers } => (ipc::RendezvousState::Full, peers),
        RendezvousStanding::Refused => (ipc::RendezvousState::Refused, 0),
    };
    let by = match view.by {
        RendezvousBy::Configured => ipc::RendezvousBy::Configured,
        RendezvousBy::Named => ipc::RendezvousBy::Named,
        RendezvousBy::Community => ipc::RendezvousBy::Community,
    };
    ipc::Rendezvous { address: view.address, by, state, peers }
}

/// Who meets here. `serves`: this host is everybody's rendezvous, whether or not anybody comes.
pub(crate) fn meetings((hosts, pairs): (usize, usize), serves: bool) -> Option<ipc::Meetings> {
    (serves || hosts > 0).then_some(ipc::Meetings { hosts, pairs })
}

fn carrier(carrier: Carrier) -> ipc::Carrier {
    match carrier {
        Carrier::Hold => ipc::Carrier::Hold,
        Carrier::Tunnel => ipc::Carrier::Tunnel,
        Carrier::Rewrite => ipc::Carrier::Rewrite,
        Carrier::FollowRewrite => ipc::Carrier::FollowRewrite,
    }
}

pub(crate) fn name(view: &PeerView) -> ipc::PeerName {
    ipc::PeerName { id: view.id.0, key: view.key.to_string(), name: None }
}

/// How many flows there are of each kind, as [`ConnectionsQuestion`] shows them. `lost`: whether a move has left one
/// behind.
pub(crate) fn counts(
    peers: &[PeerView],
    flows: impl Iterator<Item = FlowView>,
    lost: impl Fn(&FlowView) -> bool,
) -> ipc::Counts {
    let peer_of: HashMap<PeerId, &PeerView> = peers.iter().map(|peer| (peer.id, peer)).collect();
    let mut counts = ipc::Counts {
        peers: peers.len(),
        sessions: peers.iter().filter(|peer| peer.session).count(),
        ..ipc::Counts::default()
    };
    for flow in flows.filter(FlowView::is_connection) {
        counts.connections += 1;
        counts.introduced += usize::from(flow.entry.is_some());
        counts.lost += usize::from(lost(&flow));
        if let Some(entry) = &flow.entry {
            counts.suspended += usize::from(entry.waits.here);
            counts.suspended_by_peers += usize::from(entry.waits.there);
        }
        match state(&flow, flow.peer.and_then(|peer| peer_of.get(&peer).copied())) {
            ipc::ConnectionState::Held => counts.held += 1,
            ipc::ConnectionState::Moved => counts.moved += 1,
            ipc::ConnectionState::NotConfirmed => counts.not_confirmed += 1,
            _ => {}
        }
    }
    counts
}

/// How a flow stands; one that nothing is known of and that is not under way, by [`state_of_unknown`].
pub(crate) fn state(view: &FlowView, peer: Option<&PeerView>) -> ipc::ConnectionState {
    let waits = view.entry.is_some_and(|entry| entry.waits.any());
    match view.state {
        FlowState::Native | FlowState::Moved if waits => ipc::ConnectionState::Held,
        FlowState::Native if peer.is_some_and(|peer| peer.doubt.is_some()) => ipc::ConnectionState::NotConfirmed,
        FlowState::Native => ipc::ConnectionState::Native,
        FlowState::Moved if peer.is_some_and(|peer| peer.carrier == Carrier::Hold) => ipc::ConnectionState::Held,
        FlowState::Moved if peer.is_some_and(|peer| is_doubtful(view, peer)) => ipc::ConnectionState::NotConfirmed,
        FlowState::Moved => ipc::ConnectionState::Moved,
        FlowState::Introducing | FlowState::Unknown => ipc::ConnectionState::Pending,
        FlowState::Failed(_) | FlowState::Excluded(_) => ipc::ConnectionState::Unprotected,
    }
}

/// Whether nothing shows that a flow which is carried arrives. One that goes by a path of its own does so by that
/// path's challenges, where there is a session.
fn is_doubtful(view: &FlowView, peer: &PeerView) -> bool {
    let by_the_first = view.entry.is_none_or(|entry| entry.side == 0);
    !peer.session || (by_the_first && peer.doubt.is_some())
}

/// A peer. `since`: when its session came up. `of`: how it came to be trusted.
pub(crate) fn peer(view: &PeerView, now: Time, since: Option<Time>, of: Trust, known_keys: &KnownKeys) -> ipc::Peer {
    let heard = now.since(view.last_heard);
    ipc::Peer {
        id: view.id.0,
        key: view.key.to_string(),
        address: view.remote,
        trust: trust(of),
        name: None,
        remembered: known_keys.addresses_of(view.key),
        session: view.session.then(|| ipc::Session {
            age_ms: millis(since.map_or(Duration::ZERO, |since| now.since(since))),
            round_trip_ms: view.round_trip.map(fraction),
            heard_ms: Some(millis(heard)),
            version: PROTOCOL_VERSION,
            capabilities: view.capabilities.map(capabilities).unwrap_or_default(),
        }),
        sequence: ipc::Sequence { sent: view.sequences.0, accepted: view.sequences.1 },
        places: ipc::Places { local: view.places.local, peer: view.places.peer },
        locators: view.locators.clone(),
        carrier: (view.moved > 0).then(|| carrier(view.carrier)),
        flows: ipc::PeerFlows { introduced: view.flows, moved: view.moved },
        away: view.away.map(|announced| if announced { ipc::Away::Announced } else { ipc::Away::Silent }),
        unanswered_ms: view.doubt.map(|(_, since)| millis(now.since(since))),
    }
}

/// Of `docs/protocol.md`.
const PROTOCOL_VERSION: u8 = 1;

/// What a peer is able to do, in the words of `docs/json.md`.
fn capabilities(of: Capabilities) -> Vec<String> {
    let words = [
        (Capabilities::REWRITE, "rewrite"),
        (Capabilities::TUNNEL_PLAIN, "tunnel-plain"),
        (Capabilities::TUNNEL_SEALED, "tunnel-sealed"),
        (Capabilities::IPV6_LOCATORS, "ipv6"),
        (Capabilities::TUNNEL_AES, "aes"),
        (Capabilities::TRANSFORMS, "transforms"),
    ];
    words.into_iter().filter(|(bit, _)| of.contains(*bit)).map(|(_, word)| word.to_owned()).collect()
}

/// The ways to a peer: the one in use, one that it announced and that is not confirmed, and those that could be used,
/// which are neither active nor confirmed. `mtu`: of the one in use, in bytes. `possible`: own address and the peer's.
pub(crate) fn paths(
    view: &PeerView,
    now: Time,
    mtu: Option<u32>,
    possible: impl IntoIterator<Item = (IpAddr, SocketAddr)>,
) -> Vec<ipc::Path> {
    // Where nobody answers, what was measured says nothing of how it is now.
    let doubtful = view.doubt.is_some() || !view.session;
    let active = ipc::Path {
        peer: name(view),
        local: view.source,
        remote: view.remote,
        active: view.candidate.is_none(),
        confirmed: !doubtful,
        by_tcp: view.by_tcp,
        heard_ms: Some(millis(now.since(view.last_heard))),
        carrier: (view.moved > 0 && view.candidate.is_none()).then(|| carrier(view.carrier)),
        translated: view.observed.filter(|_| !doubtful).map(|_| view.translated),
        round_trip_ms: view.round_trip.filter(|_| !doubtful).map(fraction),
        mtu,
    };
    let candidate = view.candidate.map(|remote| ipc::Path {
        remote,
        active: true,
        confirmed: false,
        by_tcp: STAND_IN_PORTS.contains(&remote.port()),
        carrier: (view.moved > 0).then(|| carrier(view.carrier)),
        translated: None,
        round_trip_ms: None,
        mtu: None,
        ..active.clone()
    });
    let mut paths: Vec<ipc::Path> = [Some(active), candidate].into_iter().flatten().collect();
    for (local, remote) in possible {
        if !paths.iter().any(|path| (path.local, path.remote.ip()) == (Some(local), remote.ip())) {
            paths.push(ipc::Path {
                peer: name(view),
                local: Some(local),
                remote,
                active: false,
                confirmed: false,
                by_tcp: false,
                carrier: None,
                translated: None,
                round_trip_ms: None,
                mtu: None,
                heard_ms: None,
            });
        }
    }
    paths
}

/// What is needed to describe connections apart from the event loop: finding out which program has a socket takes a
/// while where there are many programs.
pub(crate) struct ConnectionsQuestion {
    pub(crate) flows: Vec<FlowView>,
    pub(crate) peers: Vec<PeerView>,
    /// Of the remote addresses of flows that are not introduced.
    pub(crate) standings: HashMap<IpAddr, Standing>,
    /// Flows that were heard rewritten, so are answered rewritten where the carrier follows.
    pub(crate) heard: HashSet<FlowTuple>,
    /// This host's addresses.
    pub(crate) own: BTreeSet<IpAddr>,
    /// Those that it has no more.
    pub(crate) left: LeftBehind,
    /// Interfaces by which flows go that have a path of their own, and by which they go as well.
    pub(crate) apart: HashMap<FlowTuple, (String, Option<String>)>,
    /// Whether this host is suspended.
    pub(crate) suspended: bool,
    /// What helps which.
    pub(crate) helpers: HashMap<FlowTuple, ipc::Helper>,
    /// What peers are called in the community, by their keys.
    pub(crate) names: HashMap<String, String>,
    /// Where this host's own sockets without another end are met, the preferred address first.
    pub(crate) met_at: Vec<IpAddr>,
    /// Sockets without another end in endpoint namespaces.
    pub(crate) elsewhere: Vec<Inhabitants>,
    /// For looking at sockets.
    pub(crate) sockets: Option<SocketsApart>,
    pub(crate) now: Time,
    pub(crate) wall: SystemTime,
}

impl ConnectionsQuestion {
    /// Looks the programs up and describes the connections, sorted.
    pub(crate) fn answer(mut self) -> Vec<ipc::Connection> {
        let mut places = std::mem::take(&mut self.elsewhere);
        places.push(Inhabitants::here(self.met_at.clone()));
        let sockets = inodes_of(&places);
        // The host's own are the last.
        let unconnected = places.last().map(|place| place.udp.clone()).unwrap_or_default();
        let socket_of = |flow: &FlowView| match flow.unconnected {
            true => servers::at(&unconnected, flow.tuple.local).first().copied(),
            false => sockets.get(&flow.tuple).copied(),
        };
        self.flows.retain(FlowView::is_connection);
        let inodes: HashSet<u32> = self.flows.iter().filter_map(socket_of).collect();
        let owners = process::owners(&inodes);
        let traffic = self.traffic();
        let peers: HashMap<PeerId, &PeerView> = self.peers.iter().map(|peer| (peer.id, peer)).collect();
        let mut connections: Vec<_> = self
            .flows
            .iter()
            .map(|flow| {
                let peer = flow.peer.and_then(|peer| peers.get(&peer).copied());
                let mut connection = connection(flow, peer, self.heard.contains(&flow.tuple), self.suspended, self.now);
                let standing = self.standings.get(&flow.tuple.remote.ip()).copied().unwrap_or(Standing::Unasked);
                let asks = flow.state == FlowState::Unknown && standing == Standing::Known;
                if self.left.is_lost(self.now, flow, asks || flow.state == FlowState::Introducing) {
                    connection.state = ipc::ConnectionState::Lost;
                    connection.reason = Some(left_behind::why(flow, standing));
                } else if flow.state == FlowState::Unknown {
                    (connection.state, connection.reason) = self.unknown(flow, standing);
                }
                let age = self.now.since(flow.opened);
                connection.since = ipc::rfc3339(self.wall.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH));
                if let Some(peer) = &mut connection.peer {
                    peer.name = self.names.get(&peer.key).cloned();
                }
                if let Some((network, second)) = self.apart.get(&flow.tuple) {
                    (connection.network, connection.second_network) = (Some(network.clone()), second.clone());
                }
                connection.helper = self.helpers.get(&flow.tuple).cloned();
                connection.bytes = traffic.get(&flow.tuple).copied();
                connection.process = socket_of(flow)
                    .and_then(|inode| owners.get(&inode))
                    .map(|owner| ipc::Process { pid: owner.pid, name: owner.name.clone() });
                connection
            })
            .collect();
        connections.extend(unmoved::connections(&self.own, &ipc::rfc3339(self.wall)));
        connections.extend(servers::shown(&places, &ipc::rfc3339(self.wall)));
        connections.sort_unstable_by_key(|connection| {
            (connection.flow.transport, connection.flow.remote, connection.flow.local)
        });
        connections
    }

    /// What each TCP connection of this host's own namespace has carried.
    fn traffic(&self) -> HashMap<FlowTuple, ipc::Bytes> {
        // What has no socket there is looked for at each interface.
        let here = |flow: &&FlowView| flow.entry.is_none_or(|entry| entry.end == LocalEnd::Here);
        let of_tcp = |flow: &FlowTuple| flow.transport == Transport::Tcp;
        let flows: Vec<FlowTuple> = self.flows.iter().filter(here).map(|flow| flow.tuple).filter(of_tcp).collect();
        let found = self.sockets.as_ref().map_or_else(|| Ok(Vec::new()), |sockets| sockets.look_up(&flows));
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look up what connections have carried");
            Vec::new()
        });
        found
            .into_iter()
            .map(|socket| (socket.flow, ipc::Bytes { sent: socket.acknowledged, received: socket.received }))
            .collect()
    }

    /// Why a flow is not introduced that nothing is under way for.
    fn unknown(&self, flow: &FlowView, standing: Standing) -> (ipc::ConnectionState, Option<String>) {
        let unprotected = |reason: &str| (ipc::ConnectionState::Unprotected, Some(reason.to_owned()));
        match standing {
            Standing::Silent { until } if until > self.now => {
                unprotected(&format!("{ASKED} until {}", minute(self.wall, self.now, until)))
            }
            Standing::Silent { .. } => unprotected(&format!("{ASKED}; asked again with the next connection")),
            _ if flow.accepted => unprotected("the other end opened it and has not asked"),
            Standing::Barred => unprotected("`ask` or `trust` in the configuration keeps this host from asking"),
            Standing::Known | Standing::Asking | Standing::Unasked => (state_of_unknown(flow, standing), None),
        }
    }
}

/// How the reason begins where the other host was asked in vain.
pub(crate) const ASKED: &str = "asked, silent";

/// Until a silence ends, by the wall clock and to the minute, so that addresses asked together share a line.
fn minute(wall: SystemTime, now: Time, until: Time) -> String {
    let time = ipc::rfc3339(wall.checked_add(until.since(now)).unwrap_or(wall));
    format!("{} UTC", time.chars().take(16).collect::<String>().replace('T', " "))
}

/// The inode of each connection's socket, in this host's own namespace and in `elsewhere`.
pub(crate) fn sockets(mut elsewhere: Vec<Inhabitants>) -> HashMap<FlowTuple, u32> {
    elsewhere.push(Inhabitants::here(Vec::new()));
    inodes_of(&elsewhere)
}

/// Those of `flows` whose sockets a process has open.
pub(crate) fn of_process(flows: &[FlowView], pid: u32, sockets: &HashMap<FlowTuple, u32>) -> Vec<FlowTuple> {
    let open = process::sockets(pid);
    let has = |flow: &&FlowView| sockets.get(&flow.tuple).is_some_and(|inode| open.contains(inode));
    flows.iter().filter(has).map(|flow| flow.tuple).collect()
}

/// The inode of each connection's socket. Of two of one name this host's own counts, which is the last.
fn inodes_of(places: &[Inhabitants]) -> HashMap<FlowTuple, u32> {
    places.iter().flat_map(|place| &place.connected).map(|socket| (socket.tuple, socket.inode)).collect()
}

/// How a flow stands that is not introduced, and that nothing is under way for.
pub(crate) fn state_of_unknown(flow: &FlowView, standing: Standing) -> ipc::ConnectionState {
    match standing {
        // Asked at once, or when it is a second old (P-15, P-200).
        Standing::Known | Standing::Asking | Standing::Unasked if !flow.accepted => ipc::ConnectionState::Pending,
        _ => ipc::ConnectionState::Unprotected,
    }
}

/// Why nothing is sent for a flow that could be. `suspended`: whether this host is.
fn held_since(view: &FlowView, peer: Option<&PeerView>, suspended: bool) -> &'static str {
    let waits = view.entry.map(|entry| entry.waits).unwrap_or_default();
    match (waits.here, waits.there, peer.map(|peer| (peer.away, peer.source))) {
        _ if suspended => "this host is suspended",
        (true, true, _) => "suspended by hand, here and by the peer",
        (true, false, _) => "suspended by hand",
        (false, true, _) => "suspended by the peer",
        (.., Some((Some(true), _))) => "the peer is away, and said so",
        (.., Some((Some(false), _))) => "the peer is not heard",
        (.., Some((None, None))) => "no network of this host leads to the peer",
        _ => "where an end is now is not confirmed yet",
    }
}

/// Why nothing shows that a flow arrives, or, where nothing carries it (`native`), that it would survive a move.
fn unconfirmed_since(peer: &PeerView, native: bool, now: Time) -> String {
    let what = match peer.doubt {
        _ if native => "nothing carries it, and the peer does not answer",
        None => "there is no session with the peer any more",
        Some((Doubt::Moved, _)) => "the peer has not answered since this host moved",
        Some((Doubt::PeerMoved, _)) => "the peer has moved and does not answer from there",
        Some((Doubt::Silent, since)) if is_heard(now.since(peer.last_heard), now.since(since)) => {
            "the peer is heard, and does not answer"
        }
        Some((Doubt::Silent, _)) => "the peer does not answer",
    };
    format!("{what}, last heard {} ago", ipc::duration(now.since(peer.last_heard)))
}

/// `heard`: whether it was heard rewritten. `suspended`: whether this host is.
fn connection(view: &FlowView, peer: Option<&PeerView>, heard: bool, suspended: bool, now: Time) -> ipc::Connection {
    let waits = view.entry.is_some_and(|entry| entry.waits.any());
    let (state, native) = (state(view, peer), view.state == FlowState::Native);
    let reason = match view.state {
        FlowState::Failed(reason) => Some(reason.to_owned()),
        FlowState::Excluded(line) => Some(format!("policy at line {line}")),
        _ if state == ipc::ConnectionState::Held => Some(held_since(view, peer, suspended).to_owned()),
        _ if state == ipc::ConnectionState::NotConfirmed => peer.map(|peer| unconfirmed_since(peer, native, now)),
        _ => None,
    };
    let waits_for_word = matches!(state, ipc::ConnectionState::NotConfirmed | ipc::ConnectionState::Held);
    let carried = match state {
        ipc::ConnectionState::NotConfirmed => !native,
        ipc::ConnectionState::Held | ipc::ConnectionState::Moved => true,
        _ => false,
    };
    let entry = view.entry.as_ref();
    // Locators of the other family cannot be rewritten to.
    let own_carrier = |peer: &PeerView| match peer.carrier {
        _ if waits => Carrier::Hold,
        // By a path of its own it goes inside (P-187).
        _ if entry.is_some_and(|entry| entry.side != 0) => Carrier::Tunnel,
        Carrier::Rewrite | Carrier::FollowRewrite if peer.remote.is_ipv4() != view.tuple.local.is_ipv4() => {
            Carrier::Tunnel
        }
        // P-24
        Carrier::FollowRewrite if heard => Carrier::Rewrite,
        Carrier::FollowRewrite => Carrier::Tunnel,
        other => other,
    };
    let rewritten = peer.filter(|peer| carried && own_carrier(peer) == Carrier::Rewrite);
    ipc::Connection {
        carrier: peer.filter(|_| carried).map(|peer| carrier(own_carrier(peer))),
        peer: peer.map(name),
        translated: entry.map(|entry| entry.peer_tuple.mirrored() != view.tuple),
        wire: rewritten.zip(entry).and_then(|(peer, entry)| {
            Some(ipc::Flow {
                transport: flow(view.tuple).transport,
                local: (peer.source?, entry.wire_local_port).into(),
                remote: (peer.remote.ip(), entry.wire_remote_port).into(),
            })
        }),
        present: peer.filter(|_| carried).and_then(|peer| present(view, peer)).map(flow),
        peer_flow: entry.map(|entry| flow(entry.peer_tuple)),
        greeting: view
            .greeting
            .map(|Greeting { near_translated, far_translated }| ipc::Greeting { near_translated, far_translated }),
        by_tcp: peer.is_some_and(|peer| {
            let by_the_first = entry.is_none_or(|entry| entry.side == 0);
            carried && peer.by_tcp && by_the_first && own_carrier(peer) == Carrier::Tunnel
        }),
        passed_on: entry.is_some_and(|entry| entry.end == LocalEnd::Behind),
        unconnected: view.unconnected,
        reason,
        heard_ms: peer.filter(|_| waits_for_word).map(|peer| millis(now.since(peer.last_heard))),
        ..ipc::Connection::bare(flow(view.tuple), state)
    }
}

/// A flow as programs are shown it that are to see where its ends are now, if that is elsewhere than where it began
/// (`bpf/names.bpf.c`).
pub(crate) fn present(view: &FlowView, peer: &PeerView) -> Option<FlowTuple> {
    let FlowTuple { transport, local, remote } = view.tuple;
    // What is passed on is another host's.
    if view.entry.is_none_or(|entry| entry.end == LocalEnd::Behind) {
        return None;
    }
    let here = peer.source.unwrap_or(local.ip());
    let there = peer.candidate.unwrap_or(peer.remote).ip();
    let now = FlowTuple {
        transport,
        local: SocketAddr::new(here, local.port()),
        remote: SocketAddr::new(there, remote.port()),
    };
    (now != view.tuple).then_some(now)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn fraction(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Whether `wanted` names a peer: its number, its key or at least four characters of its beginning, which are not taken
/// for a name in the community, or an address of it.
pub(crate) fn names(view: &PeerView, wanted: &str) -> bool {
    view.id.0.to_string() == wanted.trim_start_matches('#')
        || (wanted.len() >= 4 && view.key.to_string().starts_with(wanted))
        || wanted.parse().is_ok_and(|address: IpAddr| view.remote.ip() == address || view.locators.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_handshake::StaticKey;
    use whimbrel_protocol::{FlowEntry, Places};

    fn tuple(local: &str, remote: &str) -> FlowTuple {
        FlowTuple { transport: Transport::Tcp, local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    fn peer_view(carrier: Carrier) -> PeerView {
        PeerView {
            id: PeerId(3),
            key: StaticKey::from_bytes([1; 32]).public(),
            remote: "198.51.100.7:2031".parse().unwrap(),
            candidate: None,
            by_tcp: false,
            source: "203.0.113.5".parse().ok(),
            observed: None,
            session: true,
            round_trip: None,
            places: Places { local: 0, peer: 1 },
            carrier,
            translated: false,
            path: whimbrel_protocol::PathId(0),
            kept: Vec::new(),
            flows: 1,
            moved: 1,
            locators: Vec::new(),
            sequences: (0, 1),
            last_heard: Time::default(),
            mapped: false,
            ping: None,
            doubt: None,
            away: None,
            capabilities: Some(Capabilities::REWRITE | Capabilities::TUNNEL_SEALED),
        }
    }

    fn flow_view(state: FlowState, accepted: bool) -> FlowView {
        let own = tuple("203.0.113.5:22", "192.0.2.10:40000");
        let entry = (state == FlowState::Moved).then(|| FlowEntry {
            peer: PeerId(3),
            name: 7,
            side: 0,
            waits: whimbrel_protocol::Waits::default(),
            manner: whimbrel_protocol::Manner::default(),
            home: Places::default(),
            peer_tuple: own.mirrored(),
            wire_local_port: 22,
            wire_remote_port: 7232,
            end: LocalEnd::Here,
            passed_on: false,
            hidden: false,
            beyond: false,
            late: false,
            unconnected: false,
            begun: false,
        });
        let peer = entry.map(|entry| entry.peer);
        FlowView {
            tuple: own,
            state,
            peer,
            entry,
            opened: Time::default(),
            accepted,
            unconnected: false,
            greeting: None,
        }
    }

    #[test]
    fn the_end_that_follows_says_how_it_answers_each_connection() {
        let (flow, peer) = (flow_view(FlowState::Moved, true), peer_view(Carrier::FollowRewrite));
        let heard = connection(&flow, Some(&peer), true, false, Time::default());
        assert_eq!(heard.carrier, Some(ipc::Carrier::Rewrite));
        assert_eq!(heard.wire.unwrap().remote, "198.51.100.7:7232".parse().unwrap());
        let not_yet = connection(&flow, Some(&peer), false, false, Time::default());
        assert_eq!((not_yet.carrier, not_yet.wire), (Some(ipc::Carrier::Tunnel), None));
        assert_eq!(carrier(peer.carrier), ipc::Carrier::FollowRewrite);
        // Whatever was heard, a binding that tunnels does so.
        let tunnelled = connection(&flow, Some(&peer_view(Carrier::Tunnel)), true, false, Time::default());
        assert_eq!(tunnelled.carrier, Some(ipc::Carrier::Tunnel));
    }

    #[test]
    fn where_the_ends_are_now_is_told_of_what_has_moved() {
        let (moved, peer) = (flow_view(FlowState::Moved, true), peer_view(Carrier::Tunnel));
        let shown = |flow: &FlowView, peer: &PeerView| {
            connection(flow, Some(peer), false, false, Time::default()).present.map(|flow| (flow.local, flow.remote))
        };
        let endpoint = |text: &str| -> SocketAddr { text.parse().unwrap() };
        // The ports are those that its socket has.
        let now = (endpoint("203.0.113.5:22"), endpoint("198.51.100.7:40000"));
        assert_eq!(shown(&moved, &peer), Some(now));
        let announced = PeerView { candidate: Some(endpoint("198.51.100.8:4500")), ..peer.clone() };
        assert_eq!(shown(&moved, &announced), Some((now.0, endpoint("198.51.100.8:40000"))));
        let back = PeerView { remote: endpoint("192.0.2.10:2031"), ..peer.clone() };
        assert_eq!(shown(&moved, &back), None);
        let native = FlowView { state: FlowState::Native, ..moved };
        assert_eq!(shown(&native, &peer), None);
    }

    #[test]
    fn what_waits_is_counted_as_it_is_shown() {
        let peers = [peer_view(Carrier::Tunnel)];
        let moved = flow_view(FlowState::Moved, true);
        let mut waits = moved.clone();
        if let Some(entry) = waits.entry.as_mut() {
            entry.waits.here = true;
        }
        // One that is at home may wait by request, too.
        let at_home = FlowView { state: FlowState::Native, ..waits.clone() };
        let flows = [moved, waits, at_home];
        let shown: Vec<_> =
            flows.iter().map(|flow| connection(flow, peers.first(), false, false, Time::default()).state).collect();
        assert_eq!(shown, [ipc::ConnectionState::Moved, ipc::ConnectionState::Held, ipc::ConnectionState::Held]);
        let counted = counts(&peers, flows.into_iter(), |_| false);
        assert_eq!((counted.introduced, counted.moved, counted.held), (3, 1, 2));
        assert_eq!((counted.suspended, counted.suspended_by_peers), (2, 0));
        let held = counts(&[peer_view(Carrier::Hold)], [flow_view(FlowState::Moved, true)].into_iter(), |_| false);
        assert_eq!((held.moved, held.held), (0, 1));
    }

    #[test]
    fn what_is_held_says_why() {
        let why = |here, there, away, source: Option<&str>, suspended| {
            let mut flow = flow_view(FlowState::Moved, true);
            if let Some(entry) = flow.entry.as_mut() {
                entry.waits = whimbrel_protocol::Waits { here, there };
            }
            let source = source.map(|address| address.parse().unwrap());
            let peer = PeerView { away, source, ..peer_view(Carrier::Hold) };
            let shown = connection(&flow, Some(&peer), false, suspended, Time::default());
            assert_eq!(shown.state, ipc::ConnectionState::Held);
            shown.reason.unwrap()
        };
        let here = Some("203.0.113.5");
        assert_eq!(why(true, false, None, here, true), "this host is suspended");
        assert_eq!(why(true, false, None, here, false), "suspended by hand");
        assert_eq!(why(false, true, None, here, false), "suspended by the peer");
        assert_eq!(why(true, true, Some(true), here, false), "suspended by hand, here and by the peer");
        assert_eq!(why(false, false, Some(true), here, false), "the peer is away, and said so");
        assert_eq!(why(false, false, Some(false), here, false), "the peer is not heard");
        assert_eq!(why(false, false, None, None, false), "no network of this host leads to the peer");
        assert_eq!(why(false, false, None, here, false), "where an end is now is not confirmed yet");
        let moved = connection(
            &flow_view(FlowState::Moved, true),
            Some(&peer_view(Carrier::Tunnel)),
            false,
            false,
            Time::default(),
        );
        assert_eq!(moved.reason, None);
    }

    #[test]
    fn what_goes_by_a_path_of_its_own_goes_inside() {
        let rewritten = peer_view(Carrier::Rewrite);
        let [by_first, by_own] = [0, 1].map(|side| {
            let mut flow = flow_view(FlowState::Moved, false);
            flow.entry.iter_mut().for_each(|entry| entry.side = side);
            connection(&flow, Some(&rewritten), false, false, Time::default())
        });
        assert_eq!(by_first.carrier, Some(ipc::Carrier::Rewrite));
        assert_eq!((by_own.carrier, by_own.wire), (Some(ipc::Carrier::Tunnel), None));
    }

    #[test]
    fn what_is_not_confirmed_is_not_called_moved() {
        let flow = flow_view(FlowState::Moved, true);
        let now = Time::default() + Duration::from_secs(28);
        let why = |doubt: Option<Doubt>, session| {
            let doubt = doubt.map(|doubt| (doubt, Time::default()));
            let peer = PeerView { doubt, session, ..peer_view(Carrier::Tunnel) };
            let shown = connection(&flow, Some(&peer), false, false, now);
            let counted = counts(std::slice::from_ref(&peer), [flow.clone()].into_iter(), |_| false);
            assert_eq!(shown.state, ipc::ConnectionState::NotConfirmed);
            assert_eq!((counted.moved, counted.not_confirmed, shown.heard_ms), (0, 1, Some(28_000)));
            shown.reason.unwrap()
        };
        let last = "last heard 28 s ago";
        assert_eq!(why(Some(Doubt::Moved), true), format!("the peer has not answered since this host moved, {last}"));
        assert!(why(Some(Doubt::PeerMoved), true).starts_with("the peer has moved and does not answer from there"));
        assert_eq!(why(Some(Doubt::Silent), true), format!("the peer does not answer, {last}"));
        assert!(why(None, false).starts_with("there is no session"));
        // What is at home is carried by nothing, and would not survive; what is held is said to be so already.
        let peer = PeerView { doubt: Some((Doubt::Silent, now)), ..peer_view(Carrier::Tunnel) };
        let native = flow_view(FlowState::Native, true);
        let shown = connection(&native, Some(&peer), false, false, now);
        assert_eq!((shown.state, shown.carrier), (ipc::ConnectionState::NotConfirmed, None));
        assert!(shown.reason.is_some_and(|reason| reason.starts_with("nothing carries it")));
        let held = PeerView { carrier: Carrier::Hold, ..peer.clone() };
        assert_eq!(state(&flow, Some(&held)), ipc::ConnectionState::Held);
        // Nor is a path in use that nobody answers on, with what was measured before.
        let measured = PeerView { round_trip: Some(Duration::from_millis(7)), ..peer };
        let shown = paths(&measured, now, None, []);
        assert_eq!((shown[0].active, shown[0].confirmed, shown[0].round_trip_ms), (true, false, None));
        assert_eq!(shown[0].heard_ms, Some(28_000));
    }

    #[test]
    fn what_a_peer_can_do_is_told() {
        let path = std::env::temp_dir().join(format!("whimbrel-views-{}", std::process::id()));
        let known_keys = KnownKeys::open(&path).unwrap();
        let told = peer(&peer_view(Carrier::Hold), Time::default(), None, Trust::Pinned, &known_keys);
        assert_eq!(told.session.unwrap().capabilities, ["rewrite", "tunnel-sealed"]);
        assert_eq!(told.trust, ipc::Trust::Pinned);
    }

    #[test]
    fn what_is_not_introduced_says_why() {
        let (now, wall) = (Time::default(), SystemTime::UNIX_EPOCH);
        let question = ConnectionsQuestion {
            flows: Vec::new(),
            peers: Vec::new(),
            standings: HashMap::new(),
            heard: HashSet::new(),
            apart: HashMap::new(),
            own: BTreeSet::new(),
            left: LeftBehind::default(),
            suspended: false,
            helpers: HashMap::new(),
            names: HashMap::new(),
            met_at: Vec::new(),
            elsewhere: Vec::new(),
            sockets: None,
            now,
            wall,
        };
        let told = |standing, accepted| question.unknown(&flow_view(FlowState::Unknown, accepted), standing);
        let (state, reason) = told(Standing::Silent { until: now + Duration::from_secs(600) }, false);
        assert_eq!(state, ipc::ConnectionState::Unprotected);
        assert_eq!(reason.as_deref(), Some("asked, silent until 1970-01-01 00:10 UTC"));
        assert_eq!(told(Standing::Asking, false), (ipc::ConnectionState::Pending, None));
        assert!(told(Standing::Unasked, true).1.unwrap().contains("the other end opened it"));
        assert!(told(Standing::Barred, false).1.unwrap().contains("`ask`"));
    }

    #[test]
    fn paths_show_what_could_be_used() {
        let view = peer_view(Carrier::Rewrite);
        let (here, there) = (view.source.unwrap(), view.remote);
        let second: IpAddr = "203.0.113.200".parse().unwrap();
        let paths = paths(&view, Time::default(), Some(1500), [(here, there), (second, there)]);
        let shown: Vec<_> = paths.iter().map(|path| (path.local, path.active, path.confirmed)).collect();
        assert_eq!(shown, [(Some(here), true, true), (Some(second), false, false)]);
    }
}
