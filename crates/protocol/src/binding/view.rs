//! How many flows of a peer there are, and how they go, as people are told.

use std::collections::{BTreeSet, HashMap};

use whimbrel_wire::FlowTuple;

use crate::base::event::Carried;
use crate::base::op::{Carrier, PeerId};
use crate::binding::BindingLayer;
use crate::flow::known::Flow;

impl BindingLayer {
    /// Introduced flows whose sockets are gone and that are still known, and how many of them are moved, of each peer.
    pub(crate) fn ended(&self) -> HashMap<PeerId, (usize, usize)> {
        let mut ended: HashMap<PeerId, (usize, usize)> = HashMap::new();
        // A socket that was opened anew and closed again is there twice.
        let flows: BTreeSet<&FlowTuple> = self.flow.flows().lingering().collect();
        for flow in flows {
            let Some(entry) = self.flow.flows().get(flow).filter(|known| known.is_closed()).and_then(Flow::entry)
            else {
                continue;
            };
            let Some(peer) = bound!(self, &entry.peer) else { continue };
            let count = ended.entry(entry.peer).or_default();
            count.0 += 1;
            count.1 += usize::from(entry.home != peer.current_places());
        }
        ended
    }

    /// Introduced flows of a peer whose sockets are there: what is told of it counts these.
    pub(crate) fn living(&self, id: PeerId) -> usize {
        let ended = self.ended().get(&id).map_or(0, |ended| ended.0);
        self.flow.peer(&id).map_or(0, |peer| peer.flow.flows().len()).saturating_sub(ended)
    }

    /// How a peer's flows go now whose sockets are there.
    pub(crate) fn carried(&self, id: PeerId) -> Carried {
        let ended = self.ended().get(&id).map_or(0, |ended| ended.1);
        let peer = bound!(self, &id);
        Carried {
            flows: peer.as_ref().map_or(0, |peer| peer.moved_flows()).saturating_sub(ended),
            carrier: peer.map_or(Carrier::Hold, |peer| peer.binding.carrier),
        }
    }
}
