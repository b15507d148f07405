//! Programs that are reached at an address of another host (decision 0019).

pub(crate) mod api;
pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod executor;
pub(crate) mod offer;
pub(crate) mod table;
