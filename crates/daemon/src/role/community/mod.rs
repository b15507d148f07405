//! Between whom sockets move (decision 0017).

pub(crate) mod api;
pub(crate) mod events;
