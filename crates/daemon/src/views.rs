//! What the daemon knows, in the words of the local API.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use whimbrel_ipc as ipc;
use whimbrel_kernel::process;
use whimbrel_kernel::sock_diag::{MOVABLE, SockDiag};
use whimbrel_protocol::{Carrier, FlowState, FlowView, PeerId, PeerView, Time, Trust};
use whimbrel_wire::{FlowTuple, Transport};

use crate::known_keys::KnownKeys;

pub(crate) fn flow(tuple: FlowTuple) -> ipc::Flow {
    let transport = match tuple.transport {
        Transport::Tcp => ipc::Transport::Tcp,
        Transport::Udp => ipc::Transport::Udp,
    };
    ipc::Flow { transport, local: tuple.local, remote: tuple.remote }
}

pub(crate) fn trust(trust: Trust) -> ipc::Trust {
    match trust {
        Trust::Tofu => ipc::Trust::Tofu,
        Trust::Pinned => ipc::Trust::Pinned,
        Trust::Psk => ipc::Trust::Psk,
    }
}

fn carrier(carrier: Carrier) -> ipc::Carrier {
    match carrier {
        Carrier::Hold => ipc::Carrier::Hold,
        Carrier::Tunnel | Carrier::FollowRewrite => ipc::Carrier::Tunnel,
        Carrier::Rewrite => ipc::Carrier::Rewrite,
    }
}

pub(crate) fn name(view: &PeerView) -> ipc::PeerName {
    ipc::PeerName { id: view.id.0, key: view.key.to_string() }
}

/// How many flows there are of each kind.
pub(crate) fn counts(peers: &[PeerView], flows: impl Iterator<Item = FlowView>) -> ipc::Counts {
    let holding: HashSet<PeerId> =
        peers.iter().filter(|peer| peer.carrier == Carrier::Hold).map(|peer| peer.id).collect();
    let mut counts = ipc::Counts {
        peers: peers.len(),
        sessions: peers.iter().filter(|peer| peer.session).count(),
        ..ipc::Counts::default()
    };
    for flow in flows {
        counts.connections += 1;
        counts.introduced += usize::from(flow.entry.is_some());
        if flow.state == FlowState::Moved {
            match flow.peer.is_some_and(|peer| holding.contains(&peer)) {
                true => counts.held += 1,
                false => counts.moved += 1,
            }
        }
    }
    counts
}

/// A peer. `since`: when its session came up.
pub(crate) fn peer(view: &PeerView, now: Time, since: Option<Time>, of: Trust, known_keys: &KnownKeys) -> ipc::Peer {
    let heard = now.since(view.last_heard);
    ipc::Peer {
        id: view.id.0,
        key: view.key.to_string(),
        address: view.remote,
        trust: trust(of),
        remembered: known_keys.addresses_of(view.key),
        session: view.session.then(|| ipc::Session {
            age_ms: millis(since.map_or(Duration::ZERO, |since| now.since(since))),
            round_trip_ms: view.round_trip.map(fraction),
            heard_ms: Some(millis(heard)),
            version: PROTOCOL_VERSION,
            capabilities: Vec::new(),
        }),
        sequence: ipc::Sequence { sent: view.sequences.0, accepted: view.sequences.1 },
        places: ipc::Places { local: view.places.local, peer: view.places.peer },
        locators: view.locators.clone(),
        carrier: (view.moved > 0).then(|| carrier(view.carrier)),
        flows: ipc::PeerFlows { introduced: view.flows, moved: view.moved },
    }
}

/// Of `docs/protocol.md`.
const PROTOCOL_VERSION: u8 = 1;

/// The ways to a peer. `mtu`: of the one in use, in bytes.
pub(crate) fn paths(view: &PeerView, mtu: Option<u32>) -> impl Iterator<Item = ipc::Path> {
    let active = ipc::Path {
        peer: name(view),
        local: view.source,
        remote: view.remote,
        active: view.candidate.is_none(),
        confirmed: true,
        carrier: (view.moved > 0 && view.candidate.is_none()).then(|| carrier(view.carrier)),
        translated: view.observed.map(|_| view.translated),
        round_trip_ms: view.round_trip.map(fraction),
        mtu,
    };
    let candidate = view.candidate.map(|remote| ipc::Path {
        remote,
        active: true,
        confirmed: false,
        carrier: (view.moved > 0).then(|| carrier(view.carrier)),
        translated: None,
        round_trip_ms: None,
        mtu: None,
        ..active.clone()
    });
    [Some(active), candidate].into_iter().flatten()
}

/// What is needed to describe connections apart from the event loop: finding out which program has a socket takes a
/// while where there are many programs.
pub(crate) struct ConnectionsQuestion {
    pub(crate) flows: Vec<FlowView>,
    pub(crate) peers: Vec<PeerView>,
    pub(crate) now: Time,
    pub(crate) wall: SystemTime,
}

impl ConnectionsQuestion {
    /// Looks the programs up and describes the connections, sorted.
    pub(crate) fn answer(self) -> Vec<ipc::Connection> {
        let sockets = sockets();
        let inodes: HashSet<u32> = self.flows.iter().filter_map(|flow| sockets.get(&flow.tuple).copied()).collect();
        let owners = process::owners(&inodes);
        let peers: HashMap<PeerId, &PeerView> = self.peers.iter().map(|peer| (peer.id, peer)).collect();
        let mut connections: Vec<_> = self
            .flows
            .iter()
            .map(|flow| {
                let mut connection = connection(flow, flow.peer.and_then(|peer| peers.get(&peer).copied()));
                let age = self.now.since(flow.opened);
                connection.since = ipc::rfc3339(self.wall.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH));
                connection.process = sockets
                    .get(&flow.tuple)
                    .and_then(|inode| owners.get(inode))
                    .map(|owner| ipc::Process { pid: owner.pid, name: owner.name.clone() });
                connection
            })
            .collect();
        connections.sort_unstable_by_key(|connection| {
            (connection.flow.transport, connection.flow.remote, connection.flow.local)
        });
        connections
    }
}

/// The inode of each socket.
fn sockets() -> HashMap<FlowTuple, u32> {
    let listed = SockDiag::open().and_then(|mut diag| Ok((diag.tcp(&MOVABLE)?, diag.udp()?)));
    match listed {
        Ok((tcp, udp)) => tcp.into_iter().chain(udp).map(|socket| (socket.tuple, socket.inode)).collect(),
        Err(error) => {
            tracing::warn!(%error, "cannot look up which program has which connection");
            HashMap::new()
        }
    }
}

fn connection(view: &FlowView, peer: Option<&PeerView>) -> ipc::Connection {
    let (state, reason) = match view.state {
        FlowState::Native => (ipc::ConnectionState::Native, None),
        FlowState::Moved if peer.is_some_and(|peer| peer.carrier == Carrier::Hold) => {
            (ipc::ConnectionState::Held, None)
        }
        FlowState::Moved => (ipc::ConnectionState::Moved, None),
        FlowState::Introducing => (ipc::ConnectionState::Pending, None),
        FlowState::Unknown if view.peer.is_some() => (ipc::ConnectionState::Pending, None),
        FlowState::Unknown => {
            (ipc::ConnectionState::Unprotected, Some("the other end is not known to run Whimbrel (yet)".to_owned()))
        }
        FlowState::Failed(reason) => (ipc::ConnectionState::Unprotected, Some(reason.to_owned())),
    };
    let carried = matches!(state, ipc::ConnectionState::Moved | ipc::ConnectionState::Held);
    let entry = view.entry.as_ref();
    // Locators of the other family cannot be rewritten to.
    let own_carrier = |peer: &PeerView| match peer.carrier {
        Carrier::Rewrite | Carrier::FollowRewrite if peer.remote.is_ipv4() != view.tuple.local.is_ipv4() => {
            Carrier::Tunnel
        }
        other => other,
    };
    let rewritten = peer.filter(|peer| carried && own_carrier(peer) == Carrier::Rewrite);
    ipc::Connection {
        flow: flow(view.tuple),
        state,
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
        peer_flow: entry.map(|entry| flow(entry.peer_tuple)),
        process: None,
        since: String::new(),
        reason,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn fraction(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
