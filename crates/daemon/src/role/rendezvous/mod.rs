//! What comes for hosts that have left a link of this one.

pub(crate) mod proxy;
