//! Looks at this host's sockets that peers cause: each has its turn (P-143).

use crate::Time;
use crate::base::Base;
use crate::base::op::{BindingOp, FlowOp, PeerId};
use crate::base::output::Asked;
use crate::base::timer::Timer;
use crate::flow::FlowLayer;

impl FlowLayer {
    /// Something that a peer has said lets its flows go on: their senders are woken, at once where that is not asked
    /// too often.
    pub(crate) fn wake_senders(&mut self, now: Time, id: PeerId, lost: bool, base: &mut Base) {
        self.looks.want_wake(id, lost);
        self.search_for_senders(now, base);
    }

    /// The sockets of a peer are to be looked for, with its claims or this host's own.
    pub(super) fn search_for(&mut self, now: Time, id: PeerId, base: &mut Base) {
        self.looks.want_find(id, self.held(id).flows);
        self.search_for_connections(now, base);
    }

    /// There may be looks again.
    pub(crate) fn continue_looks(&mut self, now: Time, base: &mut Base) {
        self.search_for_senders(now, base);
        self.search_for_connecting(now, base);
        self.search_for_connections(now, base);
    }

    fn search_for_connecting(&mut self, now: Time, base: &mut Base) {
        match self.looks.take_to_end(now) {
            Err(until) => base.set_timer_earlier(Timer::Looks, until),
            Ok(remotes) if remotes.is_empty() => {}
            Ok(remotes) => {
                let asked = Asked::Effect("ending connections that were being made");
                base.ask(FlowOp::EndConnecting { remotes }, asked);
            }
        }
    }

    fn search_for_senders(&mut self, now: Time, base: &mut Base) {
        match self.looks.take_to_wake(now) {
            Err(until) => base.set_timer_earlier(Timer::Looks, until),
            Ok(peers) => peers.into_iter().for_each(|(peer, lost)| {
                base.ask(BindingOp::Kick { peer, lost }, Asked::Effect("waking senders"));
            }),
        }
    }

    fn search_for_connections(&mut self, now: Time, base: &mut Base) {
        loop {
            match self.looks.take_to_find(now) {
                Err(until) => return base.set_timer_earlier(Timer::Looks, until),
                Ok(peers) if peers.is_empty() => return,
                Ok(peers) => peers.into_iter().for_each(|id| self.find_sockets_of(id, base)),
            }
        }
    }
}
