//! Who is told what: facts of lower layers and of roles, and whom they concern.

use crate::Time;
use crate::base::signal::Signal;
use crate::node::Node;

impl Node {
    /// Tells all facts that have come up to those whom they concern.
    pub(crate) fn settle(&mut self, now: Time) {
        self.settled = now;
        while let Some(signal) = self.base.poll_signal() {
            self.deliver(now, signal);
        }
    }

    fn deliver(&mut self, now: Time, signal: Signal) {
        match signal {
            Signal::Listening => self.listen_also(now),
            Signal::Waiting(id) => self.put_binding_in_force(now, id),
            Signal::Misled(id) => self.announce_again(now, id),
            Signal::FlowsBegun => self.meet_later(now),
            Signal::FlowEnded(name) => self.end_moved_flow(name),
            Signal::Closing(name) => {
                self.with_moves(now, |moves, at| moves.say_ending(at, name));
            }
            Signal::FlowsGone => self.refresh_sets(),
            Signal::Direct { flow, former } => self.note_direct(now, flow, former),
            Signal::Moving(id) => self.try_found_again(now, id),
            Signal::Unanswered(id) => {
                self.check_rendezvous(now, id);
                self.want_stand_in(now, id);
            }
            Signal::Answered(id) => self.stand_in_no_more(now, id),
            Signal::Granted(grant) => self.grant(grant),
            Signal::Members { members, revoked, limited } => self.set_permitted(now, members, revoked, limited),
        }
    }
}
