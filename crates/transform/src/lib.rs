//! Packet transforms and the chain of a tunnel.
//!
//! Everything between a super-packet of a TUN device and the datagrams of the tunnel, as pure functions over bytes:
//! segmentation and coalescing (what a network card does for TCP), translation of addresses, framing, sealing, and the
//! [`chain`] of [`transform`]s that packets go through where a link needs it (compression, aggregation, erasure
//! coding). Nothing here reads a clock, a socket or a random number.
#![forbid(unsafe_code)]

pub mod batch;
pub mod chain;
pub mod coalesce;
pub mod datagram;
pub mod fragment;
pub mod message;
pub mod registry;
pub mod rewrite;
pub mod seal;
pub mod segment;
pub mod transform;
pub mod vnet;

pub use batch::{Batch, Span};
pub use chain::{Chain, StageCounters, Traffic};
pub use coalesce::Coalescer;
pub use message::Message;
pub use registry::{KNOWN, Kind, ParameterKind, Registry, SpecError};
pub use seal::{Aead, Algorithm, TAG_LEN};
pub use transform::{Direction, DropReason, Drops, Packets, ParameterError, Transform};
pub use vnet::VnetHeader;

#[cfg(test)]
#[path = "../../wire/tests/support/made.rs"]
mod made;
