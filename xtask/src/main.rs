//! Checks and runs that cargo itself does not make: `cargo run -p xtask -- --help`.
#![forbid(unsafe_code)]

mod edges;
mod failure;
mod fuzz;
mod kernels;
mod layers;
mod process;
mod sources;
mod suite;
mod tally;
mod workspace;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::failure::Failure;
use crate::kernels::{Limits, Part, System};
use crate::suite::{Choice, Request};

#[derive(Debug, Parser)]
#[command(about = "Checks and runs that cargo itself does not make")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// All static checks: edges, unsafe, file-length, width of prose
    Check,
    /// Which crate may depend on which, and which layer of a crate may use which
    Edges {
        /// Records how far the layers are from what they are to be, as what may only fall
        #[arg(long)]
        record: bool,
    },
    /// `unsafe` only where it may stand
    Unsafe,
    /// Warn of files with more than 800 lines that are not tests
    FileLength,
    /// The whole suite; the last line is `N passed, N failed, N skipped`, the record `target/test/results.json`
    Test {
        /// A choice of it that takes eight minutes
        #[arg(long)]
        quick: bool,
        /// Also what takes hours: programs, days of absence, every fault step, ten minutes of fuzzing, other kernels
        #[arg(long, conflicts_with = "quick")]
        all: bool,
        /// Only what has this in its name
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
        /// Draw the order and the seeds from this number, as an earlier run did
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Run every fuzz target
    Fuzz {
        /// How long for each
        #[arg(long, default_value_t = 30)]
        seconds: u64,
    },
    /// Boot other kernels and run the core scenario there
    TestKernels {
        /// Series of Debian's cloud kernels, of another processor with its name: 6.1, 6.12, 6.1-arm64; arm64 is the
        /// newest of these; 6.1-wifi is Debian's usual kernel with simulated radios
        #[arg(value_name = "SYSTEM", default_values = ["6.1", "6.12"])]
        systems: Vec<System>,
        /// Only the tests of the crates that make system calls, no scenario
        #[arg(long, conflicts_with_all = ["test", "scenario", "command"])]
        tests: bool,
        /// Only this test program (may be repeated), and what it says
        #[arg(long, value_name = "NAME")]
        test: Vec<String>,
        /// Only this scenario of the lab (may be repeated)
        #[arg(long, value_name = "NAME")]
        scenario: Vec<String>,
        /// Only this shell command (may be repeated); `whimbrel`, `whimbrel-lab` and the programs in /tests are there
        #[arg(long, value_name = "COMMAND")]
        command: Vec<String>,
        /// Seconds that a guest may take from its start to its end; emulated on two processors it takes some 40 minutes
        #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
        guest_limit: u64,
        /// Seconds that a test program or a scenario may take in a guest
        #[arg(long, default_value_t = 1200, value_name = "SECONDS")]
        step_limit: u64,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Does a task; whether all was well.
fn run(task: Task) -> Result<bool, Failure> {
    let root = workspace::root();
    match task {
        Task::Check => {
            warn(&sources::long_files(&root)?);
            let mut faults = all_edges(&root)?;
            faults.extend(sources::misplaced_unsafe(&root)?);
            faults.extend(sources::wide_lines(&root)?);
            Ok(report(&faults))
        }
        Task::Edges { record } => {
            if record {
                layers::record(&root)?;
            }
            Ok(report(&all_edges(&root)?))
        }
        Task::Unsafe => Ok(report(&sources::misplaced_unsafe(&root)?)),
        Task::FileLength => {
            warn(&sources::long_files(&root)?);
            Ok(true)
        }
        Task::Test { quick, all, only, seed } => {
            let choice = match (quick, all) {
                (true, _) => Choice::Quick,
                (false, true) => Choice::Long,
                (false, false) => Choice::All,
            };
            suite::run(&root, &Request { choice, only, seed })
        }
        Task::Fuzz { seconds } => Ok(fuzz::long(&root, seconds)?.failed == 0),
        Task::TestKernels { systems, tests, test, scenario, command, guest_limit, step_limit } => {
            let part = match (tests, test.is_empty() && scenario.is_empty() && command.is_empty()) {
                (true, _) => Some(Part::tests()),
                (false, true) => None,
                (false, false) => Some(Part::only(test, scenario, command)),
            };
            let [guest, step] = [guest_limit, step_limit].map(Duration::from_secs);
            kernels::run(&root, &systems, part.as_ref(), Limits { guest, step })
        }
    }
}

/// What is wrong between crates and inside them.
fn all_edges(root: &Path) -> Result<Vec<String>, Failure> {
    let mut faults = edges::faults(root)?;
    let (risen, fallen) = layers::faults(root)?;
    warn(&fallen);
    faults.extend(risen);
    Ok(faults)
}

fn report(faults: &[String]) -> bool {
    for fault in faults {
        eprintln!("error: {fault}");
    }
    faults.is_empty()
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
}
