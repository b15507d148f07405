//! The loop's part.

use whimbrel_kernel::stand_in::Seen;

use crate::clock;
use crate::event_loop::{DATAGRAMS, EventLoop};
use crate::reactor::LoopError;

/// Waits for what comes for hosts that have left.
///
/// # Errors
/// When the kernel has no room.
pub(crate) fn register(this: &mut EventLoop) -> Result<(), LoopError> {
    match this.effects.deputy.fd() {
        Some(fd) => this.reactor.on(fd, EventLoop::take_in_for_others),
        None => Ok(()),
    }
}

impl EventLoop {
    /// Takes in what came for hosts that have left this host's links.
    fn take_in_for_others(&mut self) {
        for _ in 0..DATAGRAMS {
            match self.effects.deputy.receive() {
                Some(Seen::Datagram { address, source, payload }) => {
                    self.node.handle_intercepted(clock::now(), address, source, &payload);
                }
                Some(Seen::Claimed { .. } | Seen::Other) => {}
                None => return,
            }
        }
    }
}
