//! Who is told what: facts of layers and of roles, and whom they concern.

use crate::Time;
use crate::base::signal::Signal;
use crate::node::Node;
use crate::role::Role;

impl Node {
    /// Tells all facts that have come up to those whom they concern.
    pub(crate) fn settle(&mut self, now: Time) {
        self.settled = now;
        while let Some(signal) = self.base.poll_signal() {
            self.deliver(now, signal);
        }
    }

    /// Tells a fact to the bindings, and to all roles.
    pub(super) fn deliver(&mut self, now: Time, signal: Signal) {
        let (low, base) = (&mut self.binding, &mut self.base);
        low.handle_signal(now, &signal, base);
        self.rendezvous.handle_signal(now, &signal, low, base);
        self.referral.handle_signal(now, &signal, low, base);
        self.gateway.handle_signal(now, &signal, low, base);
        // Before the community, which it may be told of.
        self.tell_moves(now, &signal);
        self.community.handle_signal(now, &signal, &mut self.binding, &mut self.base);
    }

    fn tell_moves(&mut self, now: Time, signal: &Signal) {
        match signal {
            Signal::SessionUp(id) => self.on_move_session(now, *id),
            Signal::FlowEnded(name) => self.end_moved_flow(*name),
            Signal::Closing(name) => self.send_ending(now, *name),
            Signal::Granted(grant) => self.grant(*grant),
            Signal::Members { members, revoked, limited } => {
                self.set_permitted(now, members.clone(), revoked.clone(), *limited);
            }
            _ => {}
        }
    }
}
