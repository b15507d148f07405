//! Packet transforms and the chain of a tunnel.
//!
//! Everything between a super-packet of a TUN device and the datagrams of the tunnel, as pure functions over bytes:
//! segmentation and coalescing (what a network card does for TCP), translation of addresses, framing, sealing and the
//! ordered list of transforms that later stages (compression, aggregation, erasure coding) are put into. Nothing here
//! reads a clock, a socket or a random number.
#![forbid(unsafe_code)]

pub mod batch;
pub mod chain;
pub mod checksum;
pub mod coalesce;
pub mod datagram;
pub mod fragment;
pub mod message;
pub mod packet;
pub mod rewrite;
pub mod seal;
pub mod segment;
pub mod vnet;

pub use batch::{Batch, Span};
pub use chain::{Chain, PacketTransform, TransformError};
pub use coalesce::Coalescer;
pub use message::Message;
pub use packet::{Fragment, Headers, PacketError};
pub use seal::{Aead, Algorithm, TAG_LEN};
pub use vnet::VnetHeader;
