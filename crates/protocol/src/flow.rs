//! The flows of this host: which are known, whose they are, and what is done about them with peers.

#[macro_use]
pub(crate) mod peers;
pub(crate) mod asking;
pub(crate) mod introduction;
pub(crate) mod known;
pub(crate) mod life;
mod looks;
pub(crate) mod messages;
pub(crate) mod pairing;
mod pairings;
mod pause;
pub(crate) mod paused;
pub(crate) mod policy;
pub(crate) mod ports;
mod search;
pub(crate) mod stall;
pub(crate) mod table;
pub(crate) mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::base::op::{PeerId, SavedPeer};
use crate::flow::looks::Looks;
use crate::flow::peers::{FlowPeer, PeerRef};
use crate::flow::table::Flows;
use crate::path::PathLayer;
use crate::session::pins::Held;

/// The flows of this host, and what is done about them with peers.
pub(crate) struct FlowLayer {
    pub(crate) path: PathLayer,
    pub(crate) peers: BTreeMap<PeerId, FlowPeer>,
    pub(crate) flows: Flows,
    pub(crate) looks: Looks,
    /// Peers that flows of other peers were bound to, whose senders are to be woken.
    pub(crate) rebound: BTreeSet<PeerId>,
}

impl FlowLayer {
    pub(crate) fn new(path: PathLayer, flows: Flows) -> Self {
        Self { path, peers: BTreeMap::new(), flows, looks: Looks::default(), rebound: BTreeSet::new() }
    }

    /// A peer is known from now on, or is already.
    pub(crate) fn know(&mut self, id: PeerId, remote: SocketAddr) {
        self.path.know(id, remote);
        self.peers.entry(id).or_default();
    }

    /// Takes over what a daemon before this one knew of a peer.
    pub(crate) fn restore(&mut self, saved: &SavedPeer) {
        self.path.restore(saved);
        self.peers.insert(saved.id, FlowPeer::restored(saved));
    }

    /// What a peer's session is for.
    pub(crate) fn held(&self, id: PeerId) -> Held {
        let of = |peer: &FlowPeer| Held {
            flows: !peer.flows.is_empty(),
            introductions: !peer.introductions.active.is_empty(),
            away: peer.away.is_some(),
            updating: false,
        };
        self.peers.get(&id).map_or(Held::default(), of)
    }

    /// All peers, by number, with their flows.
    pub(crate) fn each(&self) -> impl Iterator<Item = PeerRef<'_>> {
        self.path.session.peers.keys().filter_map(|id| peer!(self, id))
    }
}
