//! Hosts behind this one, for which it speaks (decision 0024).

pub(crate) mod config;
pub(crate) mod executor;
pub(crate) mod table;
