//! Hosts in network namespaces, emulated links, scenarios with real programs.
fn main() {}
