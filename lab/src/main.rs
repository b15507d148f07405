//! Runs scenarios of the lab, and the traffic programs that they start.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use whimbrel_lab::scenarios::{self, Scenario};
use whimbrel_lab::{Error, Lab, Options, Result, clean, demo, traffic};

/// Hosts in network namespaces, emulated links, and scenarios with real daemons and real programs.
///
/// Needs root. Everything that a run makes has a random name and is gone when it ends; see docs/lab.md.
#[derive(Parser)]
#[command(name = "whimbrel-lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the scenarios
    List,
    /// Run scenarios; the exit status is 1 if one fails
    Run(RunOptions),
    /// Show a download and an ssh session crossing a move
    Demo {
        /// Where the plot of the throughput goes (SVG)
        #[arg(long, default_value = "target/demo/throughput.svg")]
        plot: PathBuf,
        /// The whimbrel binary [default: WHIMBREL_BIN, or the one beside this program]
        #[arg(long, value_name = "PATH")]
        whimbrel: Option<PathBuf>,
    },
    /// Remove what killed runs left
    Clean,
    /// A traffic program inside a host
    #[command(hide = true)]
    Traffic {
        #[command(subcommand)]
        role: traffic::Role,
    },
}

#[derive(clap::Args)]
struct RunOptions {
    /// Their names
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    scenarios: Vec<String>,
    /// All of them
    #[arg(long)]
    all: bool,
    /// Keep logs, and captures of all emulated links, in a directory under the system's temporary one
    #[arg(long)]
    keep: bool,
    /// Seed of the links' randomness [default: a fresh one, printed with a failure]
    #[arg(long)]
    seed: Option<u64>,
    /// The whimbrel binary [default: WHIMBREL_BIN, or the one beside this program]
    #[arg(long, value_name = "PATH")]
    whimbrel: Option<PathBuf>,
    /// How much the daemons log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Run each so many times
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    times: usize,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::List => {
            list();
            Ok(true)
        }
        Command::Run(options) => run(&options),
        Command::Demo { plot, whimbrel } => Lab::new(Options { whimbrel, ..Options::default() })
            .and_then(|mut lab| demo::run(&mut lab, &plot))
            .map(|()| true),
        Command::Clean => clean().map(|removed| {
            for left in removed {
                let (n, p) = (left.namespaces.len(), left.processes.len());
                println!("removed run {}: {n} namespaces, {p} processes", left.id);
            }
            true
        }),
        Command::Traffic { role } => traffic::run(role).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("whimbrel-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for scenario in scenarios::all() {
        println!("{:26} {}", scenario.name, scenario.description);
    }
}

fn run(options: &RunOptions) -> Result<bool> {
    let chosen: Vec<&Scenario> = if options.all {
        scenarios::all().collect()
    } else {
        let find = |name: &String| {
            scenarios::find(name).ok_or_else(|| Error::Usage(format!("no scenario {name}; see whimbrel-lab list")))
        };
        options.scenarios.iter().map(find).collect::<Result<_>>()?
    };
    let mut good = true;
    for scenario in chosen {
        for _ in 0..options.times {
            good &= run_one(scenario, options)?;
        }
    }
    Ok(good)
}

fn run_one(scenario: &Scenario, options: &RunOptions) -> Result<bool> {
    let start = Instant::now();
    let kept = options.keep.then(|| {
        std::env::temp_dir().join(format!(
            "whimbrel-lab-{}-{:x}",
            scenario.name,
            start.elapsed().as_nanos() as u32 ^ std::process::id()
        ))
    });
    let mut lab = Lab::new(Options {
        seed: options.seed,
        whimbrel: options.whimbrel.clone(),
        log_level: options.log.clone(),
        captures: kept.as_ref().map(|dir| dir.join("captures")),
    })?;
    let result = (scenario.run)(&mut lab);
    let seconds = start.elapsed().as_secs_f64();
    match &result {
        Ok(()) => println!("PASS {} ({seconds:.1} s)", scenario.name),
        Err(error) => {
            println!("FAIL {} ({seconds:.1} s, --seed {}): {error}", scenario.name, lab.seed());
            for (host, log) in lab.daemon_logs() {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                println!("--- end of the daemon's log on {host}:");
                for line in &lines[lines.len().saturating_sub(30)..] {
                    println!("    {line}");
                }
            }
        }
    }
    if let Some(dir) = kept {
        lab.keep_files(&dir)?;
        println!("logs and captures are in {}", dir.display());
    }
    Ok(result.is_ok())
}
