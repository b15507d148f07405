//! What the caller could not make so is asked for again.

use std::time::Duration;

use crate::Time;
use crate::base::Base;
use crate::base::op::{PeerId, TunnelOp};
use crate::base::output::{Asked, OpId, State};
use crate::base::timer::Timer;
use crate::binding::BindingLayer;

/// Pause before failed ops are asked for again, at first and at the longest.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_DOUBLINGS: u32 = 7;

impl BindingLayer {
    /// The caller could not make this so, of which this op was the last try.
    pub(crate) fn on_failed(&mut self, now: Time, state: State, op: OpId, base: &mut Base) {
        self.failed.insert(state);
        base.set_timer_earlier(Timer::Mend, now + PAUSE * 2u32.pow(self.mended.min(PAUSE_DOUBLINGS)));
        if let State::Binding(of) = state {
            self.on_binding_done(now, of.peer(), op, base);
        }
    }

    /// Asks again for what failed.
    pub(super) fn mend(&mut self, now: Time, base: &mut Base) {
        self.mended = self.mended.saturating_add(1);
        for state in std::mem::take(&mut self.failed) {
            match state {
                State::Keys(id) => self.add_keys(id, base),
                State::Path(of) | State::Binding(of) if !of.is_first() => self.lead_again(now, of, base),
                State::Path(of) => self.set_tunnel_path(of.peer(), base),
                State::Binding(of) => self.apply_binding(now, of.peer(), base),
                State::Entry(flow) => self.flow.install_again(flow, base),
                State::Sets => self.apply_sets(base),
                State::Listening => self.apply_listening(base),
            }
        }
        // Once they have succeeded for long enough, the next failure is the first one.
        base.set_timer_earlier(Timer::Mended, now + PAUSE * 2u32.pow(PAUSE_DOUBLINGS));
    }

    /// Nothing has failed for a while.
    pub(super) fn rest_mending(&mut self, now: Time, base: &mut Base) {
        if self.failed.is_empty() {
            self.mended = 0;
        } else {
            base.set_timer_earlier(Timer::Mended, now + PAUSE * 2u32.pow(PAUSE_DOUBLINGS));
        }
    }

    fn add_keys(&mut self, id: PeerId, base: &mut Base) {
        let Some(peer) = self.flow.session().peer(&id) else { return };
        for slot in peer.slots() {
            let (receive_index, keys) = (slot.local_index(), slot.session().tunnel_keys().clone());
            let asked = Asked::State("adding tunnel keys", State::Keys(id));
            base.ask(TunnelOp::AddKeys { peer: id, receive_index, keys, aes: slot.seals_with_aes() }, asked);
        }
        self.set_tunnel_path(id, base);
    }
}
