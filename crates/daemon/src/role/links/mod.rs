//! Networks of this host: when they are silent (decision 0106), and which are preferred (decision 0108).

pub(crate) mod api;
pub(crate) mod config;
pub(crate) mod wishes;
