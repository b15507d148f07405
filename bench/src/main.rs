//! What make bench runs: every figure beside its baseline.
fn main() {}
