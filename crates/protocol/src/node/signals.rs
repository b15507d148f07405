//! Who is told what: facts of layers and of roles, and whom they concern.

use crate::Time;
use crate::base::signal::Signal;
use crate::node::Node;
use crate::node::roles::Roles;
use crate::role::At;

impl Node {
    /// Tells all facts that have come up to those whom they concern, and sends what these have to say.
    pub(crate) fn settle(&mut self, now: Time) {
        self.settled = now;
        loop {
            while let Some(signal) = self.base.poll_signal() {
                self.deliver(now, signal);
            }
            if !self.binding.send_records(now, &mut self.base) {
                break;
            }
        }
        self.binding.refresh_sides(now, &mut self.base);
    }

    /// Has roles do something, and tells what follows from it.
    pub(super) fn act<T>(&mut self, now: Time, act: impl FnOnce(&mut Roles, &mut At<'_>) -> T) -> T {
        let done = act(&mut self.roles, &mut At::new(now, &mut self.binding, &mut self.base));
        self.settle(now);
        done
    }

    /// Tells a fact to the bindings, and to all roles.
    pub(super) fn deliver(&mut self, now: Time, signal: Signal) {
        self.binding.handle_signal(now, &signal, &mut self.base);
        self.roles.handle_signal(&signal, &mut At::new(now, &mut self.binding, &mut self.base));
    }
}
