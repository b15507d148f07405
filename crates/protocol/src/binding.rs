//! Where a peer's flows go: how either end moves, what carries them, and what is wanted of the kernel for it.

pub(crate) mod absence;
pub(crate) mod carrier;
mod confirm;
pub(crate) mod desired;
pub(crate) mod handoff;
mod install;
mod keepalive;
mod pairs;
mod stall;
pub(crate) mod update;
mod view;
