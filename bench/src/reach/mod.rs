//! Every connection from its first moment, and the first moments of a network: each figure is a file.

mod ages;
mod both;
mod crowd;
mod datagram_moves;
mod datagrams;
mod first_byte;
mod introduced;
mod place;
mod short;

use crate::report::Report;
use crate::roam::Options;
use crate::{Result, machine};

type Measure = fn(&Options) -> Result<Report>;

/// What a server of UDP with one socket feels, alone.
///
/// # Errors
/// When hosts cannot be set up, or a datagram is lost.
pub fn udp(options: &Options) -> Result<()> {
    machine::warn_if_busy();
    datagrams::measure(options)?.finish()?;
    Ok(())
}

/// All of them, and one report of everything.
///
/// # Errors
/// When something could not be measured; what could be is reported first.
pub fn run(options: &Options) -> Result<()> {
    machine::warn_if_busy();
    let mut all = Report::new("reach");
    let mut failures = Vec::new();
    // Its measurement, and whether that has cases that may be measured alone.
    let figures: [(&str, Measure, bool); 8] = [
        ("first_byte", first_byte::measure, true),
        ("introduced", introduced::measure, true),
        ("ages", ages::measure, true),
        ("both", both::measure, false),
        ("short", short::measure, false),
        ("datagrams", datagrams::measure, false),
        ("datagram_moves", datagram_moves::measure, false),
        ("crowd", crowd::measure, false),
    ];
    // The name of a figure has that measured whole; anything else is looked for among the cases.
    let whole = options.only.is_empty() || figures.iter().any(|(name, ..)| *name == options.only);
    let all_of_it = Options { only: String::new(), ..options.clone() };
    let wanted = |name: &str, cases: bool| options.only.is_empty() || name == options.only || (!whole && cases);
    for (name, measure, _) in figures.into_iter().filter(|(name, _, cases)| wanted(name, *cases)) {
        match measure(if whole { &all_of_it } else { options }) {
            Ok(report) => all.absorb(name, report),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    all.finish()?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}
