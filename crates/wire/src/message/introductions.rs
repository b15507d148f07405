//! What the ends of a flow say of it while they introduce it.

use crate::flow::FlowTuple;

/// What the introducer knows of a flow when it has seen both nonces travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Nonce that the introducer put into the flow.
    pub introducer_nonce: u64,
    /// Nonce that the responder put into the flow, as it arrived.
    pub responder_nonce: u64,
    /// The introducer's place (P-14).
    pub introducer_place: u32,
    /// The responder's place as the introducer knows it (P-14).
    pub responder_place: u32,
    /// The introducer's wire port (P-16).
    pub wire_port: u16,
    /// The flow as the introducer sees it.
    pub tuple: FlowTuple,
}

/// A MAC over the initial sequence numbers of a connection (P-50).
pub type PairingProof = [u8; 16];

/// What the introducer says of a flow that nonces do not travel on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// Nonce that the introducer put into the flow, in vain.
    pub introducer_nonce: u64,
    /// The introducer's proof.
    pub proof: PairingProof,
    /// The introducer's place (P-14).
    pub introducer_place: u32,
    /// The responder's place as the introducer knows it (P-14).
    pub responder_place: u32,
    /// The introducer's wire port (P-16).
    pub wire_port: u16,
    /// The flow as the introducer sees it.
    pub tuple: FlowTuple,
    /// Type 0x2d: the introducer has left the address that it has the flow from (P-204). Else type 0x25.
    pub late: bool,
}

/// The responder's name for an introduced flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduced {
    /// The responder's wire port (P-16).
    pub wire_port: u16,
    /// The flow as the responder sees it.
    pub tuple: FlowTuple,
}
