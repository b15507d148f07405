//! Nodes on a simulated network. `WHIMBREL_SIM_TRACE=1` shows what happens; `WHIMBREL_SIM_LONG=1` tries every step and
//! many random runs; `WHIMBREL_SIM_SEED` and `WHIMBREL_SIM_RUNS` choose which.

mod absence;
mod adversary;
mod chains;
mod chance;
mod common;
mod community;
mod contact;
mod costs;
mod datagrams;
mod doubt;
mod families;
mod faults;
mod gateway;
mod growth;
mod late;
mod leases;
mod moves;
mod nat;
mod neighbour_proxy;
mod orders;
mod pairing;
mod placed;
mod policy;
mod processes;
mod random;
mod ready;
mod relocation;
mod rendezvous;
mod resumes;
mod returns;
mod rules;
mod shared_nat;
mod strange_moves;
mod taking;
mod young;
