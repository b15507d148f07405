//! The flows that are in force at this host: what the daemon's parts are told of them by. The node decides about them,
//! and the store keeps them for the next daemon; neither is asked.

use std::collections::HashMap;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{FlowEntry, PeerId, SavedPeer};
use whimbrel_wire::FlowTuple;

/// Flows that were installed, and the keys of their peers.
#[derive(Debug, Default)]
pub(crate) struct Installed {
    flows: HashMap<FlowTuple, FlowEntry>,
    keys: HashMap<PeerId, PublicKey>,
}

impl Installed {
    /// Those that a daemon before this one has left.
    pub(crate) fn restored<'a>(
        flows: &HashMap<FlowTuple, FlowEntry>,
        peers: impl Iterator<Item = &'a SavedPeer>,
    ) -> Self {
        Self { flows: flows.clone(), keys: peers.map(|peer| (peer.id, peer.key)).collect() }
    }

    /// All of them.
    pub(crate) fn all(&self) -> &HashMap<FlowTuple, FlowEntry> {
        &self.flows
    }

    /// One of them.
    pub(crate) fn get(&self, flow: &FlowTuple) -> Option<&FlowEntry> {
        self.flows.get(flow)
    }

    /// The flow of a peer that is called so. Another peer may have one of the same name (protocol.md P-132).
    pub(crate) fn called(&self, peer: PeerId, name: u64) -> Option<(FlowTuple, FlowEntry)> {
        let found = self.flows.iter().find(|(_, entry)| (entry.peer, entry.name) == (peer, name));
        found.map(|(flow, entry)| (*flow, *entry))
    }

    /// The key of a peer.
    pub(crate) fn key_of(&self, peer: PeerId) -> Option<PublicKey> {
        self.keys.get(&peer).copied()
    }

    /// A flow is in force from now on, or in another manner.
    pub(crate) fn insert(&mut self, flow: FlowTuple, entry: FlowEntry) {
        self.flows.insert(flow, entry);
    }

    /// It is not any more.
    pub(crate) fn remove(&mut self, flow: &FlowTuple) -> Option<FlowEntry> {
        self.flows.remove(flow)
    }

    /// A peer is there from now on.
    pub(crate) fn record_peer(&mut self, peer: &SavedPeer) {
        self.keys.insert(peer.id, peer.key);
    }

    /// A peer is gone: its number, and the flows that go with it.
    pub(crate) fn forget_peer(&mut self, key: PublicKey) -> Option<(PeerId, Vec<FlowTuple>)> {
        let peer = self.keys.iter().find(|(_, known)| **known == key).map(|(peer, _)| *peer)?;
        self.keys.remove(&peer);
        let flows = self.flows.extract_if(|_, entry| entry.peer == peer).map(|(flow, _)| flow).collect();
        Some((peer, flows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::restored::tests::{entry, flow, peer};

    #[test]
    fn a_flow_is_found_by_its_name_among_those_of_its_peer() {
        // Also where another peer's is called the same: whoever has it closed is not to have that one closed.
        let mut installed = Installed::default();
        for peer in [2, 1, 3] {
            installed.insert(flow(7000 + peer), entry(u32::from(peer)));
        }
        let name = entry(1).name;
        for peer in [1, 2, 3] {
            assert_eq!(installed.called(PeerId(peer), name), Some((flow(7000 + peer as u16), entry(peer))));
        }
        assert_eq!(installed.called(PeerId(4), name), None);
        assert_eq!(installed.called(PeerId(1), name + 1), None);
    }

    #[test]
    fn flows_go_with_their_peer() {
        let peers = [peer(1), peer(2)];
        let mut installed = Installed::restored(&[(flow(1), entry(1)), (flow(2), entry(2))].into(), peers.iter());
        assert_eq!(installed.forget_peer(peers[0].key), Some((PeerId(1), vec![flow(1)])));
        assert_eq!((installed.get(&flow(1)), installed.key_of(PeerId(1))), (None, None));
        assert_eq!((installed.get(&flow(2)), installed.key_of(PeerId(2))), (Some(&entry(2)), Some(peers[1].key)));
        assert_eq!(installed.forget_peer(peers[0].key), None);
    }
}
