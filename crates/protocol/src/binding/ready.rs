//! Which paths are kept ready to a peer, beside the one in use (P-180).

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::attachments::Attachment;
use crate::base::id::LinkId;
use crate::base::op::PeerId;
use crate::binding::BindingLayer;
use crate::flow::peers::Away;

impl BindingLayer {
    /// See [`Node::keep_paths`](crate::Node::keep_paths).
    pub(crate) fn keep_paths(&mut self, now: Time, id: PeerId, from: BTreeSet<IpAddr>, base: &mut Base) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.keeps_from = from;
        self.keep_ready(now, id, base);
    }

    /// Keeps the paths to a peer ready that are wanted, and those no longer that are not. None is where nothing depends
    /// on it.
    pub(crate) fn keep_ready(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let keeps = self.flow.session().keeps(id);
        let Some(peer) = bound!(self, &id) else { return };
        let needed = keeps || !peer.flow.flows().is_empty();
        // Who is not heard may be where another network leads.
        let away =
            if peer.binding.keeps_all { peer.flow.away() == Some(Away::Announced) } else { peer.flow.away().is_some() };
        let needed = needed && !away && peer.has_session() && !base.is_suspended();
        let (in_use, choice) = (peer.path.attachment(), peer.path.choice());
        // A peer does not heed what it is told of a path which it takes to be in use.
        let is_settled = peer.binding.update.is_none();
        let is_kept = |attachment: &Attachment| peer.path.kept().any(|kept| kept.attachment == *attachment);
        // Where the routes lead (P-236), and the family that nobody answered by (P-53).
        let is_watched = |attachment: &Attachment| [choice.natural, choice.unanswered].contains(&Some(*attachment));
        let mut links: BTreeSet<LinkId> = in_use.iter().map(|attachment| attachment.link).collect();
        let attachments = base.attachments().addresses().filter_map(|address| base.attachments().get(address));
        let mut attachments: Vec<Attachment> = attachments.collect();
        // Of each link that which leads to where the peer is comes first.
        attachments.sort_by_key(|attachment| attachment.address.is_ipv4() != peer.path.remote().is_ipv4());
        let each = base.config().keep_paths || peer.binding.keeps_all;
        // By hand as it was said; else one of each link that is not in use.
        let mut wanted: Vec<Attachment> = attachments
            .into_iter()
            .filter(|attachment| {
                let by_hand = peer.binding.keeps_from.contains(&attachment.address)
                    || peer.binding.sides.keeps_from(attachment.address)
                    || (is_watched(attachment) && (is_settled || is_kept(attachment)));
                // One of its link is enough, and that of the family in use.
                let is_first = links.insert(attachment.link);
                by_hand || (each && attachment.link.leads_out() && is_first)
            })
            .filter(|attachment| needed && Some(*attachment) != in_use)
            .collect();
        // There is room for so many: those come first that placed flows go by, then those of which it is to be seen
        // whether they answer, then those by hand.
        let (by_hand, sides) = (&peer.binding.keeps_from, &peer.binding.sides);
        wanted.sort_by_key(|attachment| {
            let address = attachment.address;
            (!sides.keeps_from(address), !is_watched(attachment), !by_hand.contains(&address))
        });
        self.flow.path_mut().keep_from(now, id, &wanted, base);
    }

    /// A peer keeps the path ready that something came by.
    pub(super) fn on_path_kept(&mut self, now: Time, id: PeerId, arrival: &Arrival, path: u32, base: &mut Base) {
        let keeps = self.flow.session().keeps(id);
        let Some(peer) = bound!(self, &id) else { return };
        // P-44; and where nothing depends on it, it serves nobody.
        let needed = keeps || !peer.flow.flows().is_empty();
        if !needed || peer.flow.away() == Some(Away::Announced) || base.is_suspended() {
            return;
        }
        // P-143: a path is looked at as a move is, where it is not known.
        let is_told = self.flow.path().paths(&id).is_some_and(|paths| paths.is_told(now, arrival.source));
        if is_told || self.flow.follows(now, id) {
            self.flow.path_mut().on_kept(now, id, arrival, path, base);
        }
    }
}
