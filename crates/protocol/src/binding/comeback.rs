//! Senders that come back to networks where they have been are told what they had there (P-246, P-247).

use crate::Time;
use crate::base::Base;
use crate::base::op::windows::{Left, SendWindows};
use crate::base::op::{BindingOp, PeerId};
use crate::base::output::Asked;
use crate::binding::BindingLayer;

impl BindingLayer {
    /// A peer's flows may go by other networks from now on.
    pub(super) fn turn_windows(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let Some(networks) = peer.networks() else { return };
        let Some(left) = peer.binding.windows.turn(now, networks) else { return };
        if peer.flow.flows().is_empty() {
            return;
        }
        let comeback = peer.binding.windows.comeback(now);
        base.ask(BindingOp::Windows { peer: id, comeback }, Asked::Windows(id, left));
    }

    /// What the senders of a peer's flows had where they were.
    pub(crate) fn handle_windows(&mut self, now: Time, id: PeerId, left: Left, had: Option<SendWindows>) {
        if let (Some(peer), Some(had)) = (bound_mut!(self, &id), had) {
            peer.binding.windows.record(now, left, had);
        }
    }
}
