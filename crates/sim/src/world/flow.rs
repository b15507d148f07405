//! A flow as the world knows it, which is more than any host knows.

use whimbrel_protocol::Time;
use whimbrel_wire::FlowTuple;

use crate::host::HostId;

/// A flow's number, the same at both ends: the truth that no host knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub usize);

/// A flow between two hosts. End 0 opened it.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Who has it.
    pub hosts: [HostId; 2],
    /// As each end's socket has it.
    pub tuples: [FlowTuple; 2],
    /// Whether the end's socket is there.
    pub open: [bool; 2],
    /// Segments that each end's socket made.
    pub sent: [u64; 2],
    /// Segments that came to it.
    pub received: [u64; 2],
    /// When each end last received something.
    pub arrived: [Option<Time>; 2],
    /// How that came.
    pub carried: [Option<Carried>; 2],
    /// A reset reached it.
    pub broken: bool,
    /// Whether each end's socket is frozen, as while it changes hosts: it neither sends nor takes in.
    pub frozen: [bool; 2],
}

/// How a segment came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// As its socket made it.
    Native,
    /// With other names.
    Rewritten,
    /// In UDP.
    Tunnelled,
}
