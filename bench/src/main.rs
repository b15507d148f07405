//! What make bench runs: every figure beside its baseline.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use whimbrel_bench::tunnel;

/// Measures Whimbrel beside what it is held against, on this machine, in network namespaces of its own. As root.
///
/// Each measurement prints a table and, last, a line that begins with BENCH, and writes target/bench/NAME.json. The exit
/// status is 0 also when a bound is missed, which the report says, and 1 when something could not be measured.
#[derive(Parser)]
#[command(name = "whimbrel-bench")]
struct Arguments {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Subcommand)]
enum Measurement {
    /// TCP through the tunnel carrier, plain and sealed, beside wireguard-go
    Tunnel(tunnel::Options),
    /// All measurements, with their defaults
    All,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().measurement {
        Measurement::Tunnel(options) => tunnel::run(&options),
        Measurement::All => tunnel::run(&tunnel::Options::default()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("whimbrel-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
