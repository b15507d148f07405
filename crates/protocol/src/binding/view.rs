//! How many flows of a peer there are, and how they go, as people are told.

use crate::base::event::Carried;
use crate::base::op::{Carrier, PeerId};
use crate::binding::BindingLayer;

impl BindingLayer {
    /// Introduced flows of a peer whose sockets are gone and that are still known, and how many of them are moved.
    pub(crate) fn ended(&self, id: PeerId) -> (usize, usize) {
        let (Some(over), Some(peer)) = (self.flow.flows().over(id), bound!(self, &id)) else { return (0, 0) };
        (over.all(), over.moved(peer.current_places()))
    }

    /// Introduced flows of a peer whose sockets are there: what is told of it counts these.
    pub(crate) fn living(&self, id: PeerId) -> usize {
        let (ended, _) = self.ended(id);
        self.flow.peer(&id).map_or(0, |peer| peer.flow.flows().len()).saturating_sub(ended)
    }

    /// How a peer's flows go now whose sockets are there.
    pub(crate) fn carried(&self, id: PeerId) -> Carried {
        let (_, ended) = self.ended(id);
        let peer = bound!(self, &id);
        Carried {
            flows: peer.as_ref().map_or(0, |peer| peer.moved_flows()).saturating_sub(ended),
            carrier: peer.map_or(Carrier::Hold, |peer| peer.binding.carrier),
        }
    }
}
