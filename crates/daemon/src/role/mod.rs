//! What hosts do for each other, one folder a role.

pub(crate) mod anchor;
pub(crate) mod community;
pub(crate) mod gateway;
pub mod helpers;
pub(crate) mod links;
pub(crate) mod programs;
pub(crate) mod relocation;
pub(crate) mod rendezvous;
