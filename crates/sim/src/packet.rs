//! What travels.

use std::fmt;
use std::net::SocketAddr;

use whimbrel_wire::{ChainNumber, FlowTuple, Transport};

use crate::host::HostId;
use crate::world::FlowId;

/// Bytes of a data segment on the wire, headers included.
pub(crate) const SEGMENT: usize = 1000;
/// What the tunnel adds.
pub(crate) const TUNNEL_OVERHEAD: usize = 60;

/// An IP packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// TCP or UDP.
    pub transport: Transport,
    /// As it stands in the header now.
    pub source: SocketAddr,
    /// As it stands in the header now.
    pub destination: SocketAddr,
    /// Who really sent it.
    pub origin: HostId,
    /// The rest.
    pub body: Body,
}

/// What a packet is about.
#[derive(Clone, Debug)]
pub enum Body {
    /// UDP of the control port.
    Control(Vec<u8>),
    /// A segment of a flow. `end` is the sender's (0: who opened it).
    Data {
        /// Whose it is in truth.
        flow: FlowId,
        /// The end that sent it.
        end: usize,
        /// Whether it only acknowledges, so that nothing answers it.
        acknowledgement: bool,
    },
    /// A keepalive-shaped segment with the option, in a flow or as a carrier probe.
    Introduction {
        /// The receiver's session.
        index: u32,
        /// The nonce.
        nonce: u64,
        /// The flow that it is in, in truth, and the end that sent it; `None` for a probe.
        flow: Option<(FlowId, usize)>,
    },
    /// UDP of the control port with a packet inside.
    Tunnel {
        /// The receiver's session.
        index: u32,
        /// Names of the inner packet, as its receiver's socket has them.
        inner: FlowTuple,
        /// Whose it is in truth.
        flow: FlowId,
        /// The end that sent it.
        end: usize,
        /// As in data.
        acknowledgement: bool,
        /// The chain of transforms that it has gone through: its number, and which it is in truth.
        chain: Option<(ChainNumber, u64)>,
        /// The counter of a datagram that goes by two paths.
        twice: Option<u64>,
    },
    /// A reset, or an ICMP error that a UDP socket hears.
    Reset,
    /// ICMP port unreachable about a control datagram to this endpoint, with how that began.
    Unreachable(SocketAddr, Option<[u8; 8]>),
}

impl Packet {
    /// Length in bytes, as P-18 counts it: without IP and UDP headers for control.
    #[must_use]
    pub fn length(&self) -> usize {
        match &self.body {
            Body::Control(payload) => payload.len(),
            Body::Data { acknowledgement: true, .. } | Body::Introduction { .. } => 60,
            Body::Data { .. } => SEGMENT,
            Body::Tunnel { acknowledgement: true, .. } => 60 + TUNNEL_OVERHEAD,
            Body::Tunnel { .. } => SEGMENT + TUNNEL_OVERHEAD,
            Body::Reset | Body::Unreachable(..) => 40,
        }
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} ", self.source, self.destination)?;
        match &self.body {
            Body::Control(payload) => {
                let kind = match payload.first() {
                    Some(1) => "initiation",
                    Some(2) => "response",
                    Some(3) => "finish",
                    Some(4) => "cookie",
                    Some(0x10) => "control",
                    _ => "datagram",
                };
                write!(f, "{kind} {}", payload.len())
            }
            Body::Data { flow, end, acknowledgement } => {
                write!(f, "{} of {flow:?} from end {end}", if *acknowledgement { "ack" } else { "data" })
            }
            Body::Introduction { index, nonce, flow: Some(flow) } => {
                write!(f, "introduction {nonce:x} to {index:x} in {flow:?}")
            }
            Body::Introduction { index, nonce, flow: None } => write!(f, "probe {nonce:x} to {index:x}"),
            Body::Tunnel { inner, flow, end, chain: None, .. } => {
                write!(f, "tunnel of {flow:?} from end {end} ({inner})")
            }
            Body::Tunnel { flow, end, chain: Some((number, name)), .. } => {
                write!(f, "tunnel of {flow:?} from end {end} by chain {number} ({name:x})")
            }
            Body::Reset => f.write_str("reset"),
            Body::Unreachable(endpoint, _) => write!(f, "unreachable {endpoint}"),
        }
    }
}
