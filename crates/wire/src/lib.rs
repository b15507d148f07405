//! Message and tunnel formats of the control protocol; no I/O.
//!
//! Everything here turns bytes into values and back. Numbers on the wire are in network order; the normative
//! description with its numbered rules is `docs/protocol.md`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod flow;

pub use flow::{FlowTuple, Transport};
