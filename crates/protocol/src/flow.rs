//! The flows of this host: which are known, whose they are, and what is done about them with peers.

#[macro_use]
pub(crate) mod peers;
pub(crate) mod asking;
mod askings;
mod failure;
pub(crate) mod introduction;
pub(crate) mod known;
mod late;
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
mod turns;
mod unaccepted;
pub(crate) mod unconnected;
pub(crate) mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::op::{FlowEntry, PeerId, SavedPeer};
use crate::flow::askings::Askings;
use crate::flow::looks::Looks;
use crate::flow::peers::{FlowPeer, PeerMut, PeerRef};
use crate::flow::table::Flows;
use crate::flow::turns::Turns;
use crate::path::PathLayer;
use crate::session::SessionLayer;
use crate::session::pins::Held;

/// The flows of this host, and what is done about them with peers.
pub(crate) struct FlowLayer {
    path: PathLayer,
    peers: BTreeMap<PeerId, FlowPeer>,
    flows: Flows,
    looks: Looks,
    /// Flows that peers claim late, whose far ends are asked whether they are still there.
    askings: Askings,
    /// Young connections that are introduced, and those of peers that are answered.
    begun: Turns,
    answered: Turns,
    /// Peers that flows of other peers were bound to, whose senders are to be woken.
    rebound: BTreeSet<PeerId>,
    /// Flows that peers have named late, while whoever else has them may be heard of (P-206).
    doubted: BTreeSet<FlowTuple>,
}

impl FlowLayer {
    pub(crate) fn new(path: PathLayer, flows: Flows) -> Self {
        let (begun, answered) = (Turns::begun(), Turns::answered());
        let (looks, askings) = (Looks::default(), Askings::default());
        let (rebound, doubted) = (BTreeSet::new(), BTreeSet::new());
        Self { path, peers: BTreeMap::new(), flows, looks, askings, begun, answered, rebound, doubted }
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
        self.path.session().ids().into_iter().filter_map(|id| peer!(self, &id))
    }

    /// One peer, with its flows.
    pub(crate) fn peer(&self, id: &PeerId) -> Option<PeerRef<'_>> {
        peer!(self, id)
    }

    /// The peer with this key.
    pub(crate) fn peer_with(&self, key: &PublicKey) -> Option<PeerRef<'_>> {
        self.peer(&self.path.session().with_key(key)?)
    }

    /// One peer, to be changed.
    pub(crate) fn peer_mut(&mut self, id: &PeerId) -> Option<PeerMut<'_>> {
        peer_mut!(self, id)
    }

    /// The flows of a peer of whose entries this is so.
    pub(crate) fn flows_with(&self, id: PeerId, is_so: impl Fn(&FlowTuple, &FlowEntry) -> bool) -> Vec<FlowTuple> {
        let flows = self.peers.get(&id).into_iter().flat_map(FlowPeer::flows);
        flows.filter(|flow| self.flows.entry(flow).is_some_and(|entry| is_so(flow, entry))).copied().collect()
    }

    /// What is agreed of some flow of a peer.
    pub(crate) fn entry_with(&self, id: PeerId) -> Option<&FlowEntry> {
        self.peers.get(&id)?.flows().iter().find_map(|flow| self.flows.entry(flow))
    }

    /// The flows that peers introduce, and that this host has answered.
    pub(crate) fn answered(&self) -> impl Iterator<Item = FlowTuple> {
        self.peers.values().flat_map(FlowPeer::answered)
    }

    /// See [`FlowPeer::take_ended`].
    pub(crate) fn take_ended(&mut self, id: PeerId) -> Option<(Vec<u64>, bool)> {
        self.peers.get_mut(&id).map(FlowPeer::take_ended)
    }

    /// Whether another move of a peer is followed now.
    pub(crate) fn follows(&mut self, now: Time, id: PeerId) -> bool {
        self.looks.follows(now, id)
    }

    /// Flows of other peers are bound to this one from now on, whose senders are to be woken.
    pub(crate) fn add_rebound(&mut self, id: PeerId) {
        self.rebound.insert(id);
    }

    /// Peers that flows of other peers were bound to, whose senders are to be woken.
    pub(crate) fn rebound(&self) -> &BTreeSet<PeerId> {
        &self.rebound
    }

    /// A peer is forgotten. Tells whether anything of what is wanted of the kernel was on its account.
    pub(crate) fn forget_peer(&mut self, id: PeerId) -> bool {
        let Some(peer) = self.peers.remove(&id) else { return false };
        self.rebound.remove(&id);
        self.looks.forget(id);
        self.begun.forget(id);
        self.answered.forget(id);
        for responding in peer.introductions.responding.values() {
            self.flows.forget_nonce(responding.nonce);
        }
        peer.is_in_sets()
    }

    /// Entries of what is remembered of whose turn it was, and of flows that peers claim.
    pub(crate) fn turns(&self) -> usize {
        self.begun.entries() + self.answered.entries() + self.askings.len()
    }

    pub(crate) fn flows(&self) -> &Flows {
        &self.flows
    }

    pub(crate) fn flows_mut(&mut self) -> &mut Flows {
        &mut self.flows
    }

    pub(crate) fn path(&self) -> &PathLayer {
        &self.path
    }

    pub(crate) fn path_mut(&mut self) -> &mut PathLayer {
        &mut self.path
    }

    pub(crate) fn session(&self) -> &SessionLayer {
        self.path.session()
    }

    pub(crate) fn session_mut(&mut self) -> &mut SessionLayer {
        self.path.session_mut()
    }
}
