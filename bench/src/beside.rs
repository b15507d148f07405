//! Any measurement by two programs in turns: what a change has made faster or slower.
//!
//! Each turn is one short run of the measurement in a process of its own, so that neither program finds what the other
//! one has left. Turns go A B, B A, A B: what drifts on the machine meets both alike.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::Result;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

/// How much slower than the other program the one that is measured may be.
const AT_LEAST: f64 = 0.98;
const AT_MOST: f64 = 1.02;

/// Which program has its turn.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turn {
    /// The one that is measured.
    Measured,
    /// The one beside it.
    Beside,
}

/// The last line of a measurement.
#[derive(Debug, Deserialize)]
struct Last {
    figures: Vec<One>,
}

#[derive(Debug, Deserialize)]
struct One {
    id: String,
    /// None where a value is no number, since nothing was measured.
    value: Option<f64>,
    unit: String,
}

/// One figure of both programs.
#[derive(Debug, Default)]
struct Both {
    unit: String,
    measured: Samples,
    beside: Samples,
}

/// Measures `name` by both programs in turns, and reports the ratio of each figure. For `tunnel`, whose pumps are the
/// bench's own, the other program is the `whimbrel-bench` in the folder of `beside`.
///
/// # Errors
/// When a run fails, or says nothing that can be compared.
pub fn run(name: &str, beside: &Path, options: &Options) -> Result<()> {
    let own = std::env::current_exe()?;
    let mut figures: BTreeMap<String, Both> = BTreeMap::new();
    let rounds = options.runs(15, 2);
    for round in 0..rounds {
        for turn in turns(round) {
            let mut command = match (name, turn) {
                ("tunnel", Turn::Measured) => tunnel(&own, options),
                ("tunnel", Turn::Beside) => tunnel(&beside.with_file_name("whimbrel-bench"), options),
                (_, Turn::Measured) => short(&own, name, options.setup.whimbrel.as_deref(), options),
                (_, Turn::Beside) => short(&own, name, Some(beside), options),
            };
            eprintln!("{}/{rounds} {name}, {turn:?}", round + 1);
            for one in figures_of(&mut command)? {
                let Some(value) = one.value else { continue };
                let both = figures.entry(one.id).or_default();
                both.unit = one.unit;
                match turn {
                    Turn::Measured => both.measured.push(value),
                    Turn::Beside => both.beside.push(value),
                }
            }
        }
    }
    let mut report = Report::new(&format!("beside-{name}"));
    for (id, Both { unit, measured, beside }) in figures {
        // What only one of the programs has measured, or not always, cannot be put side by side.
        if measured.values().len() != beside.values().len() || beside.values().contains(&0.0) {
            eprintln!("{id}: cannot be compared");
            continue;
        }
        let figure = Figure::paired(&id, &unit, &measured, &beside);
        report.add(match bound(&unit) {
            Some(bound) => figure.bound(bound),
            None => figure,
        });
    }
    report.finish()?;
    Ok(())
}

fn turns(round: usize) -> [Turn; 2] {
    if round.is_multiple_of(2) { [Turn::Measured, Turn::Beside] } else { [Turn::Beside, Turn::Measured] }
}

/// What a figure of this unit is held to: rates may not fall, times and sizes may not grow. Counts are not held to
/// anything here.
fn bound(unit: &str) -> Option<Bound> {
    match unit {
        "" => None,
        "pps" => Some(Bound::RatioAtLeast(AT_LEAST)),
        unit if unit.ends_with("/s") => Some(Bound::RatioAtLeast(AT_LEAST)),
        "ns" | "us" | "ms" | "s" | "s/GB" | "bytes" | "kB" | "MB" => Some(Bound::RatioAtMost(AT_MOST)),
        _ => None,
    }
}

fn short(bench: &Path, name: &str, whimbrel: Option<&Path>, options: &Options) -> Command {
    let mut command = Command::new(bench);
    command.args([name, "--quick", "--runs", "1", "--only", &options.only]);
    if let Some(whimbrel) = whimbrel {
        command.arg("--whimbrel").arg(whimbrel);
    }
    command.arg("--wireguard-go").arg(&options.setup.wireguard_go);
    command
}

fn tunnel(bench: &Path, options: &Options) -> Command {
    let mut command = Command::new(bench);
    command.args(["tunnel", "--rounds", "1", "--seconds", "2", "--only", &options.only]);
    command.arg("--wireguard-go").arg(&options.setup.wireguard_go);
    command
}

fn figures_of(command: &mut Command) -> Result<Vec<One>> {
    let program = PathBuf::from(command.get_program());
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(line) = text.lines().rev().find_map(|line| line.strip_prefix("BENCH ")) else {
        return Err(format!("{} {:?}: no BENCH line; {}", program.display(), command.get_args(), output.status).into());
    };
    Ok(serde_json::from_str::<Last>(line)?.figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_is_first_as_often_as_the_other() {
        let first = |turn| (0..10).filter(|&round| turns(round)[0] == turn).count();
        assert_eq!((first(Turn::Measured), first(Turn::Beside)), (5, 5));
        assert!((0..10).all(|round| turns(round)[0] != turns(round)[1]));
    }

    #[test]
    fn rates_may_not_fall_and_times_may_not_grow() {
        assert_eq!(bound("Gbit/s"), Some(Bound::RatioAtLeast(AT_LEAST)));
        assert_eq!(bound("1/s"), Some(Bound::RatioAtLeast(AT_LEAST)));
        assert_eq!(bound("s/GB"), Some(Bound::RatioAtMost(AT_MOST)));
        assert_eq!(bound("segments"), None);
        assert_eq!(bound(""), None);
    }
}
