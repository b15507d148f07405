//! Deterministic clock and network, for tests of the protocol.
//!
//! A [`World`] holds hosts, each with a [`whimbrel_protocol::Node`] and a model of the kernel under it, and access
//! networks that are open, behind a firewall or behind a NAT. Time is virtual and all chance is drawn from one seed,
//! so a run can be repeated exactly; the seed and the last events are printed when a test panics.
//!
//! ```text
//! random.rs     chance from a seed
//! packet.rs     what travels
//! network.rs    access networks and the core between them; links that delay, lose, duplicate, reorder
//! nat.rs        address translation and stateful filtering
//! dataplane.rs  the maps and programs of one host: native, rewritten, tunnelled, held
//! chains.rs     chains of transforms, and whose packets come through them
//! drain.rs      in which order a daemon sees to what its node gives out
//! host.rs       one host: sockets, attachments, what outlives its daemon
//! relocation.rs connections whose sockets change hosts
//! world.rs      the event loop; carries packets, runs the nodes, carries out what they ask for
//! world/owners.rs who may have what a connection's ends send, and what is seen on a link
//! ledger.rs     what must never happen: wrong sockets, resets, storms, more than the allowance
//! faults.rs     what goes wrong on purpose
//! traffic.rs    when something last came from a peer, and what is overdue
//! speaker.rs    somebody who holds a session and says what he likes, and takes what is not his where he can
//! ```
//!
//! Data segments are not only a verdict on the state of the maps: they are sent, travel with delay like everything
//! else, and are judged where they arrive, so that races between the two ends show.
#![forbid(unsafe_code)]

mod chains;
mod dataplane;
mod drain;
mod faults;
mod host;
mod ledger;
mod nat;
mod network;
mod packet;
mod random;
mod relocation;
mod speaker;
mod traffic;

mod world;

pub use chains::Transforms;
pub use dataplane::{DataPlane, Guards, Verdict};
pub use drain::Drain;
pub use faults::{Faults, Mutation, Parting};
pub use host::{Host, HostId, Powers};
pub use ledger::{Kind, Violation};
pub use nat::{Filter, Nat, NatPorts, Unsolicited};
pub use network::{Access, Link, NetworkId};
pub use packet::{Body, Packet};
pub use random::Random;
pub use relocation::{Connection, ConnectionId, Copy, SavedMoves};
pub use speaker::Speaker;

pub use world::{Answering, Carried, Flow, FlowId, Process, Standing, World};
