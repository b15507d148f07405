//! What is told of what is done for connections whose peer is away.

use crate::events::kinds;

kinds! {
    /// It is not used any more, and the connection waits; or what serves it cannot be stopped or continued. With `pid`
    /// or `cgroup` where one is known.
    HelperFailed = "helper-failed" (flow, helper, pid, cgroup) failure;
    /// The peer is back and has what was kept.
    HelperOver = "helper-over" (flow, helper, kept, answered);
    /// It answers for the peer.
    HelperStarted = "helper-started" (flow, helper, pid);
    /// What serves the connection goes on. With `pid` or `cgroup`.
    ProcessContinued = "process-continued" (flow, helper, pid, cgroup);
    /// What serves the connection is stopped, since its peer is away. With `pid` or `cgroup`.
    ProcessStopped = "process-stopped" (flow, helper, pid, cgroup);
}
