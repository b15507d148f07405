//! What a host does for others, or has others do for it. No role knows another.

pub(crate) mod anchor;
pub(crate) mod community;
pub(crate) mod gateway;
pub(crate) mod relocation;
pub(crate) mod rendezvous;
