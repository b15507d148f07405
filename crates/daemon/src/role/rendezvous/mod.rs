//! What comes for hosts that have left a link of this one, and where name servers say that peers are.

pub(crate) mod names;
pub(crate) mod proxy;
