//! Ways to a peer: which are confirmed, and which are shared with others.

pub(crate) mod challenge;
mod send;
pub(crate) mod shared;
pub(crate) mod shown;
