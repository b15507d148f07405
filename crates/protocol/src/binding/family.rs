//! Both address families lead to a peer, and it answers by one of them (P-53).

use crate::Time;
use crate::base::Base;
use crate::base::attachments::Attachment;
use crate::base::op::{NOWHERE, PeerId};
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::handoff::SEQUENCES;
use crate::binding::peers::CarrierProbe;
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
        let due = waits && !update.absent && update.has_tried_family(now);
        // Who has asked a host behind this one is answered from there alone (P-100).
        let (choice, before) = (peer.path.choice(), peer.path.attachment());
        let due = due && before.is_some_and(|before| base.attachments().is_current(&before));
        let is_other = |other: &Attachment| due && Some(*other) != before && base.attachments().is_current(other);
        let Some(other) = choice.otherwise.filter(is_other) else { return };
        peer.retire_path();
        peer.path.choose(Choice { otherwise: before, unanswered: before, ..choice });
        peer.path.move_to(other);
        peer.binding.probe = CarrierProbe { leading: true, ..CarrierProbe::default() };
        peer.binding.only_tunnel = false;
        base.stop_timer(Timer::Probe(id));
        peer.binding.sequence_sent = (peer.binding.sequence_sent + 1).min(SEQUENCES - 1);
        let sequence = peer.binding.sequence_sent;
        if let Some(update) = peer.binding.update.as_mut() {
            *update = update.by_other_family(sequence, now);
        }
        base.signal(Signal::Moving(id));
        self.hold_back(now, id, base);
        self.accept_former(now, id, base);
        self.refresh_sets(base);
    }

    /// The family that was left since nobody answered by it is asked by a path that is kept ready for that
    /// ([`BindingLayer::keep_ready`]). Once the peer has answered there, its flows go by that again if more of them are
    /// at home there: make before break, since the other one works. Where the update stays unanswered after all it is
    /// taken back.
    pub(super) fn try_family_again(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let choice = peer.path.choice();
        let (Some(left), Some(here)) = (choice.unanswered, peer.path.attachment()) else { return };
        let answers = peer.path.kept().any(|kept| kept.attachment == left && kept.state == PathState::Confirmed);
        if !answers || peer.binding.update.is_some() || !base.attachments().is_current(&left) {
            return;
        }
        // What somebody wants of the way counts more, and may end.
        if choice.wants.is_some() || choice.chosen() == Some(here) {
            return;
        }
        peer.path.choose(Choice { unanswered: None, otherwise: Some(here), ..choice });
        let home = |at: &Attachment| (peer.flows_at_home(at.address), peer.flows_of_family(at.address));
        if home(&left) > home(&here) {
            let meanwhile = self.present_path(id);
            self.arrive(now, id, left, meanwhile, base);
            if let Some(update) = bound_mut!(self, &id).and_then(|peer| peer.binding.update.as_mut()) {
                update.returns = true;
            }
        }
        self.keep_ready(now, id, base);
        self.refresh_sets(base);
    }
}
