//! The loop's part.

use whimbrel_kernel::conntrack::Tracking;

use crate::clock;
use crate::event_loop::EventLoop;
use crate::reactor::LoopError;

/// Follows what hosts behind this one open.
///
/// # Errors
/// When the kernel has no room.
pub(crate) fn register(this: &mut EventLoop) -> Result<(), LoopError> {
    if this.settings.config.gateway.behind.is_empty() {
        return Ok(());
    }
    let node = &this.node;
    match Tracking::open(|flow| node.is_behind(flow.local.ip())) {
        Ok((tracking, found)) => {
            let now = clock::now();
            found.into_iter().for_each(|flow| this.node.handle_passing_opened(now, flow));
            this.reactor.on(&tracking, EventLoop::handle_tracked)?;
            this.tracking = Some(tracking);
        }
        Err(error) => {
            tracing::warn!(%error, "connections that hosts behind this one open themselves cannot be moved");
        }
    }
    Ok(())
}

impl EventLoop {
    fn handle_tracked(&mut self) {
        let Self { tracking, node, .. } = self;
        let now = clock::now();
        if let Some(tracking) = tracking {
            tracking.take(|flow| node.handle_passing_opened(now, flow));
        }
    }
}
