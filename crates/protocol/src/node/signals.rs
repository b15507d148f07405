//! Who is told what: facts of layers and of roles, and whom they concern.

use crate::Time;
use crate::base::signal::Signal;
use crate::node::Node;

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
    }

    /// Tells a fact to the bindings, and to all roles.
    pub(super) fn deliver(&mut self, now: Time, signal: Signal) {
        let (low, base) = (&mut self.binding, &mut self.base);
        low.handle_signal(now, &signal, base);
        self.roles.handle_signal(now, &signal, low, base);
    }
}
