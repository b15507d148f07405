//! Safe wrappers of the system calls that Whimbrel uses.
//!
//! All calls are synchronous and work in the network namespace that the calling thread is in when it opens a socket.
//! The only `unsafe` code of the workspace beside the BPF loader's is here.

pub mod checkpoint;
pub mod child;
pub mod client;
pub mod clock;
pub mod conntrack;
pub mod dead_link;
pub mod duplicated;
pub mod endpoint;
pub mod error;
pub mod ethernet;
mod generic_netlink;
pub mod in_their_name;
pub mod inject;
pub mod kept_address;
pub mod namespace;
pub mod neighbour;
mod netlink;
pub mod network;
pub mod optimistic;
pub mod other_protocols;
pub mod owner;
mod packet;
pub mod peer_route;
pub mod privilege;
pub mod process;
pub mod process_tree;
pub mod program;
pub mod route;
pub mod saved_sysctl;
pub mod signals;
pub mod sock_diag;
pub mod sockopt;
pub mod source_routing;
pub mod sysctl;
pub mod tun;
pub mod udp;
pub mod wireless;

pub use error::{Effect, Error};
