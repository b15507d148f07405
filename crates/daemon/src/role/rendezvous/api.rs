//! The loop's part.

use whimbrel_kernel::neighbour_proxy::Seen;

use crate::clock;
use crate::event_loop::{DATAGRAMS, EventLoop};
use crate::reactor::LoopError;

/// Waits for what comes for hosts that have left.
///
/// # Errors
/// When the kernel has no room.
pub(crate) fn register(this: &mut EventLoop) -> Result<(), LoopError> {
    match this.effects.proxy.fd() {
        Some(fd) => this.reactor.on(fd, EventLoop::handle_for_others),
        None => Ok(()),
    }
}

impl EventLoop {
    /// Takes in what came for hosts that have left this host's links.
    fn handle_for_others(&mut self) {
        for _ in 0..DATAGRAMS {
            match self.effects.proxy.receive() {
                Some(Seen::Datagram { address, source, payload }) => {
                    self.node.handle_intercepted(clock::now(), address, source, &payload);
                }
                Some(Seen::Claimed { .. } | Seen::Other) => {}
                None => return,
            }
        }
    }
}
