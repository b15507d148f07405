//! Measurements, each beside its baseline in the same interleaved run, and the report that all of them end in.

pub mod report;
pub mod tunnel;
