//! What everything else stands on: time, randomness, what a node is told once, and what it gives out.

pub(crate) mod arrival;
pub(crate) mod bucket;
pub(crate) mod config;
pub(crate) mod deadlines;
pub(crate) mod event;
pub(crate) mod flow_name;
pub(crate) mod op;
pub(crate) mod output;
pub(crate) mod random;
pub(crate) mod time;
pub(crate) mod timer;
