//! Where a peer's flows go: how either end moves, what carries them, and what is wanted of the kernel for it.

pub(crate) mod absence;
pub(crate) mod carrier;
pub(crate) mod chain;
pub(crate) mod desired;
pub(crate) mod handoff;
pub(crate) mod update;
