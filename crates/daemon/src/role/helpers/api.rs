//! The loop's part.

use crate::clock;
use crate::event_loop::EventLoop;
use crate::reactor::LoopError;

/// Waits for helper programs.
///
/// # Errors
/// When the kernel has no room.
pub(crate) fn register(this: &mut EventLoop) -> Result<(), LoopError> {
    this.reactor.on(this.effects.helping.helpers_wake(), |this| {
        this.effects.helping.handle_helpers(&mut this.effects.host, clock::now());
    })
}
