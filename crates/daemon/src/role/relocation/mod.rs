//! Sockets and processes that change hosts (decisions 0015, 0020).

pub(crate) mod api;
pub(crate) mod events;
pub(crate) mod executor;
pub(crate) mod process;
pub(crate) mod table;
