//! Flows as the local API shows them.

use whimbrel_ipc as ipc;
use whimbrel_wire::{FlowTuple, Transport};

pub(crate) fn flow(tuple: FlowTuple) -> ipc::Flow {
    let transport = match tuple.transport {
        Transport::Tcp => ipc::Transport::Tcp,
        Transport::Udp => ipc::Transport::Udp,
    };
    ipc::Flow { transport, local: tuple.local, remote: tuple.remote }
}
