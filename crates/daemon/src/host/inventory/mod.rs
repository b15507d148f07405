//! Which connections and servers this host has.

pub(crate) mod flows;
pub(crate) mod left_behind;
pub(crate) mod servers;
pub(crate) mod unconnected;
pub(crate) mod unmoved;
