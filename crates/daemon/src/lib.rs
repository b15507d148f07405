//! The daemon: runs the protocol's [`whimbrel_protocol::Node`] on a real kernel.
mod attachments;
mod clock;
pub mod config;
mod events;
pub mod identity;
pub mod instance;
pub mod journal;
pub mod known_keys;
pub mod server;
pub mod tunnel;
