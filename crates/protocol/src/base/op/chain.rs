//! What is asked of the tunnel about the chains of transforms of a peer's packets.

use whimbrel_wire::{ChainNumber, ChainSpec};

use crate::base::op::PeerId;

/// An effect on the chains of a peer's packets. In order: a chain is made before it is sent through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainOp {
    /// Make a chain of transforms, and receive by it (P-173). Answered by [`OpDone::ChainRefused`] where it cannot be
    /// made.
    ///
    /// [`OpDone::ChainRefused`]: crate::OpDone::ChainRefused
    Set {
        /// Whose packets.
        peer: PeerId,
        /// Its number, which no other chain of the peer's has.
        chain: ChainNumber,
        /// Its transforms.
        spec: ChainSpec,
    },
    /// Change the parameters of a chain's transforms, all or none; answered as [`ChainOp::Set`].
    SetParameters {
        /// Whose packets.
        peer: PeerId,
        /// Its number.
        chain: ChainNumber,
        /// Its transforms, which stay the same.
        spec: ChainSpec,
    },
    /// What is sent to a peer goes through this chain from now on, whatever its path; `None`: through none. The chain
    /// before gives out what it keeps.
    SendThrough {
        /// Whose packets.
        peer: PeerId,
        /// The chain.
        chain: Option<ChainNumber>,
    },
    /// Forget a chain, which is neither sent nor received by any longer.
    Remove {
        /// Whose packets.
        peer: PeerId,
        /// Its number.
        chain: ChainNumber,
    },
}
