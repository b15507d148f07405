//! What is told of sockets and processes that change hosts.

use crate::events::kinds;

kinds! {
    /// This host holds the far end of a socket that has changed hosts.
    FlowRebound = "flow-rebound" (flow);
    /// A whole process is with the host `to`.
    ProcessGiven = "process-given" (pid, to);
    /// A whole process stays here.
    ProcessKept = "process-kept" (pid);
    /// A whole process that was the host's `from` is lost.
    ProcessLost = "process-lost" (from);
    /// A whole process has come from the host `from`.
    ProcessTaken = "process-taken" (pid, from);
    /// Here and in the following ones: a socket that changes hosts, as its donor, its acceptor and the holder of its
    /// far end tell; `flow`: where it is known.
    SocketGiven = "socket-given" (flow);
    /// It stays with its donor.
    SocketKept = "socket-kept" (flow);
    /// A socket had waited for its program for too long, and was closed.
    SocketLapsed = "socket-lapsed" ();
    /// It is lost, or may be.
    SocketLost = "socket-lost" (flow);
    /// It does not come here.
    SocketNotTaken = "socket-not-taken" (flow);
    /// All is ready for it where it may go.
    SocketPrepared = "socket-prepared" (flow);
    /// One that has come by the name of another that waits has another name here; no event tells names.
    SocketRenamed = "socket-renamed" (flow);
    /// It goes on here.
    SocketTaken = "socket-taken" (flow);
    /// It rests, since nobody can tell yet whose it is.
    SocketUndecided = "socket-undecided" (flow);
}
