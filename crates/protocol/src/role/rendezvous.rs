//! Third hosts: they tell where a peer is, and take in what is said to whom has left their link.

pub(crate) mod client;
pub(crate) mod proxy;
pub(crate) mod server;
