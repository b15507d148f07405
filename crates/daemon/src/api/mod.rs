//! The local API: its socket, who may ask what, and the answers.

pub(crate) mod access;
pub(crate) mod requests;
pub mod server;
pub(crate) mod views;

/// What comes of a request: its answer, nothing where that is given later, or why it is refused.
pub(crate) type Answer = Result<Option<whimbrel_ipc::Reply>, whimbrel_ipc::Failure>;
