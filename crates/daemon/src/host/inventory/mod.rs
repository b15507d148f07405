//! Which connections and servers this host has.

pub(crate) mod flows;
pub(crate) mod servers;
pub(crate) mod unmoved;
