//! Loads the eBPF programs and gives typed access to their maps.
//!
//! [`Datapath`] is one instance: the maps, programs and attachments of one network namespace, pinned in a directory of
//! a bpffs, so that they outlive the process. Whoever opens the same directory again takes over what is there. This
//! crate is the only user of bpf(2).
//!
//! Names follow `docs/protocol.md`: a flow's *own tuple* is what this host's socket has; its *wire tuple* is what
//! rewritten packets carry, made of the binding's locators and the flow's wire ports.

mod abi;
mod bpffs;
mod cgroup;
mod datapath;
mod error;
mod events;
mod features;
mod greetings;
mod hook;
#[cfg(test)]
mod layout;
mod leases;
mod names;
mod object;
mod sockets;
mod table;
mod windows;

pub use abi::{
    Alias, AliasUse, Binding, Carrier, Delivery, Endpoint, FlowEntry, Follow, HelpedFlow, HelpedPhase, Home,
    INNER_HARDWARE_ADDRESS, Lent, LentEnd, LocatorPair, TUNNELLED, Unknown,
};
pub use bpffs::{bpffs, common_bpffs};
pub use cgroup::cgroup_root;
pub use datapath::{Datapath, FormerName, Guard, Role, Sent, Traffic, Watched};
pub use error::Error;
pub use events::{Event, Introduction, Most, Origin};
pub use features::{Features, features, has_tcx};
pub use leases::LeasedPorts;
pub use sockets::{Fitted, Position, SocketsApart, TcpSocket};
pub use windows::{Resumption, Windows, monotonic};
