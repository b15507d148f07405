//! The networks that this host is attached to.

pub(crate) mod attachments;
pub(crate) mod route_lookup;
