//! The local API: its socket, who may ask what, and what programs are shown and told.

pub(crate) mod access;
pub(crate) mod desk;
pub(crate) mod kept;
mod naming;
pub(crate) mod pings;
pub mod server;
pub(crate) mod socket_names;
pub(crate) mod sockets;
pub(crate) mod views;

/// What comes of a request: its answer, nothing where that is given later, or why it is refused.
pub(crate) type Answer = Result<Option<whimbrel_ipc::Reply>, whimbrel_ipc::Failure>;
