//! Leave for one connection to go to a stranger, or to come from one (P-83).

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::MoveName;

use crate::Time;

/// That one connection may go to a stranger, or come from one. It does not outlive the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) number: u16,
    /// The stranger.
    pub(crate) host: PublicKey,
    /// The connection that may be given, as this host's socket has it; `None` where one may be received.
    pub(crate) flow: Option<FlowTuple>,
    pub(crate) until: Time,
    /// The move that uses it. Where that comes to nothing it may be used again.
    pub(crate) used_by: Option<MoveName>,
}
