//! Tables of peers, and of flows with them.

use whimbrel_protocol::{FlowEntry, PeerId, SavedPeer};
use whimbrel_wire::FlowTuple;

use super::{Store, gateway};
use crate::store::{Change, table};

table! {
    /// Peers, by the numbers that they have at this host.
    Peers = "peer": PeerId => SavedPeer
}

table! {
    /// Flows that were introduced.
    Flows = "flow": FlowTuple => FlowEntry
}

table! {
    /// There where this host is suspended.
    Suspended = "suspended": () => bool
}

impl Store {
    /// Keeps what is known of a peer.
    pub(crate) fn save_peer(&mut self, peer: &SavedPeer) {
        self.log.append(Change::default().put::<Peers>(&peer.id, peer));
        if let Some(lasting) = &mut self.lasting {
            lasting.append(Change::default().put::<Peers>(&peer.id, peer));
        }
    }

    /// Drops a peer, and flows with it.
    pub(crate) fn forget_peer(&mut self, peer: PeerId, flows: &[FlowTuple]) {
        for log in [Some(&mut self.log), self.lasting.as_mut()].into_iter().flatten() {
            let change = Change::default().remove::<Peers>(&peer);
            log.append(flows.iter().fold(change, |change, flow| change.remove::<Flows>(flow)));
        }
    }

    /// Keeps a flow. `before`: as it was until now.
    pub(crate) fn save_flow(&mut self, flow: &FlowTuple, entry: &FlowEntry, before: Option<&FlowEntry>) {
        self.log.append(Change::default().put::<Flows>(flow, entry));
        if let Some(lasting) = &mut self.lasting {
            if gateway::outlives(entry) {
                lasting.append(Change::default().put::<Flows>(flow, entry));
            } else if before.is_some_and(gateway::outlives) {
                lasting.append(Change::default().remove::<Flows>(flow));
            }
        }
    }

    /// Drops a flow.
    pub(crate) fn forget_flow(&mut self, flow: &FlowTuple, entry: &FlowEntry) {
        self.log.append(Change::default().remove::<Flows>(flow));
        if let Some(lasting) = self.lasting.as_mut().filter(|_| gateway::outlives(entry)) {
            lasting.append(Change::default().remove::<Flows>(flow));
        }
    }

    /// Keeps whether this host is suspended.
    pub(crate) fn save_suspended(&mut self, suspended: bool) {
        match suspended {
            true => self.put::<Suspended>(&(), &true),
            false => self.remove::<Suspended>(&()),
        }
    }
}
