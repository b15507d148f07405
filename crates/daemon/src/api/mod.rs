//! The local API: its socket, who may ask what, and the answers.

pub(crate) mod access;
pub(crate) mod requests;
pub mod server;
pub(crate) mod views;
