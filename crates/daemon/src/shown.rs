//! Flows as the local API shows them, and what is shown of peers in more than one place.

use std::time::Duration;

use whimbrel_ipc as ipc;
use whimbrel_wire::{FlowTuple, Transport};

pub(crate) fn flow(tuple: FlowTuple) -> ipc::Flow {
    let transport = match tuple.transport {
        Transport::Tcp => ipc::Transport::Tcp,
        Transport::Udp => ipc::Transport::Udp,
    };
    ipc::Flow { transport, local: tuple.local, remote: tuple.remote }
}

/// Whether a peer was heard a moment ago, since it owes an answer. `heard`, `unanswered`: how long ago that began.
pub(crate) fn is_heard(heard: Duration, unanswered: Duration) -> bool {
    heard < unanswered.min(Duration::from_secs(10))
}
