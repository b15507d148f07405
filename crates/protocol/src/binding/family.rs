//! Both address families lead to a peer, and it answers by one of them (P-53).

use crate::Time;
use crate::base::Base;
use crate::base::attachments::Attachment;
use crate::base::op::{NOWHERE, PeerId};
use crate::binding::BindingLayer;
use crate::binding::handoff::SEQUENCES;
use crate::path::kept::PathState;
use crate::path::paths::Choice;

impl BindingLayer {
    /// An update stays unanswered in one family, and nothing carries the flows meanwhile: the other one is tried. An
    /// address may be there long before it is routed, and many a network gives out addresses of a family that leads
    /// nowhere.
    pub(super) fn try_other_family(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        let Some(update) = peer.binding.update.as_ref() else { return };
        // What is native after all (P-39), or goes by the path before, waits for no answer.
        let waits = update.held && update.meanwhile.is_none() && peer.flow.places().local == NOWHERE;
        let due = waits && !update.absent && update.has_tried_family();
        let choice = peer.path.choice();
        let other = choice.otherwise.filter(|other| due && base.attachments().is_current(other));
        let Some(other) = other else { return };
        peer.retire_path();
        let before = peer.path.attachment();
        peer.path.choose(Choice { otherwise: before, unanswered: before, ..choice });
        peer.path.move_to(other);
        peer.binding.sequence_sent = (peer.binding.sequence_sent + 1).min(SEQUENCES - 1);
        let sequence = peer.binding.sequence_sent;
        if let Some(update) = peer.binding.update.as_mut() {
            *update = update.by_other_family(sequence, now);
        }
        self.hold_back(now, id, base);
        self.accept_former(now, id, base);
        self.refresh_sets(base);
    }

    /// The family that was left since nobody answered by it is asked by a path that is kept ready for that
    /// ([`BindingLayer::keep_ready`]). Once the peer has answered there, its flows go by that again if more of them are
    /// at home there: make before break, since the other one works.
    pub(super) fn try_family_again(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let choice = peer.path.choice();
        let (Some(left), Some(here)) = (choice.unanswered, peer.path.attachment()) else { return };
        let answers = peer.path.kept().any(|kept| kept.attachment == left && kept.state == PathState::Confirmed);
        if !answers || peer.binding.update.is_some() || !base.attachments().is_current(&left) {
            return;
        }
        peer.path.choose(Choice { unanswered: None, otherwise: Some(here), ..choice });
        let home = |at: &Attachment| (peer.flows_at_home(at.address), peer.flows_of_family(at.address));
        let is_chosen = choice.preferred == Some(here) || choice.wants.is_some();
        if !is_chosen && home(&left) > home(&here) {
            let meanwhile = self.present_path(id);
            self.arrive(now, id, left, meanwhile, base);
        }
        self.keep_ready(now, id, base);
        self.refresh_sets(base);
    }
}
