//! Message and tunnel formats of the control protocol; no I/O.
//!
//! Everything here turns bytes into values and back. Numbers on the wire are in network order; the normative
//! description with its numbered rules is `docs/protocol.md`.
//!
//! From the outside in: [`datagram`] is what a UDP payload looks like before any key is used, [`hello`] what handshake
//! messages carry, [`message`] what a control datagram holds once it is opened, and [`introduction`] the mark that is
//! put into a flow itself; [`chain`] is how tunnels are adapted, [`snapshot`] is a socket on its way to another host,
//! and [`moving`] what is said about its way. All of them read and write through [`codec`], whose only error is
//! [`Malformed`]. [`replay`] and [`tunnel_keys`] are what both ends of a session keep of its datagrams; [`number`] is
//! what the parts of one host call peers and bindings; [`packet`] and [`checksum`] are about the packets of flows.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod binding;
pub mod chain;
pub mod checksum;
pub mod codec;
pub mod community;
pub mod datagram;
pub mod flow;
pub mod hello;
pub mod hex;
pub mod introduction;
pub mod lending;
pub mod message;
pub mod moving;
pub mod number;
pub mod packet;
pub mod replay;
pub mod snapshot;
pub mod tunnel_keys;

pub use binding::BindingNumber;
pub use chain::{ChainNumber, ChainSpec, Stage, TransformId};
pub use codec::Malformed;
pub use datagram::Datagram;
pub use flow::{FlowTuple, Transport};
pub use hello::{Capabilities, Hello};
pub use introduction::Introduction;
pub use message::Message;
pub use number::{BindingId, NoPeerId, PeerId};
pub use replay::ReplayWindow;
pub use snapshot::Snapshot;
pub use tunnel_keys::TunnelKeys;
