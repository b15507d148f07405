//! Nodes on a simulated network. `WHIMBREL_SIM_TRACE=1` shows what happens; `WHIMBREL_SIM_SEED` and
//! `WHIMBREL_SIM_RUNS` choose what the random runs do.

mod adversary;
mod chance;
mod common;
mod contact;
mod faults;
mod growth;
mod moves;
mod nat;
mod random;
