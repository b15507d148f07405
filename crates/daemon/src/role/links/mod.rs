//! Networks of this host that fall silent (decision 0106).

pub(crate) mod config;
pub(crate) mod wishes;
