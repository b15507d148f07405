//! What everything else stands on: what is asked of the caller, and the words for it.

pub(crate) mod event;
pub(crate) mod flow_name;
pub(crate) mod op;
pub(crate) mod output;
