//! Peers and the sessions with them: who is asked, whose key is believed, and a channel that loses nothing.

pub(crate) mod channel;
pub(crate) mod contact;
pub(crate) mod peer;
pub(crate) mod permits;
pub(crate) mod records;
mod stream;
