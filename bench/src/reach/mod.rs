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
    let figures: [(&str, Measure); 8] = [
        ("first_byte", first_byte::measure),
        ("introduced", introduced::measure),
        ("ages", ages::measure),
        ("both", both::measure),
        ("short", short::measure),
        ("datagrams", datagrams::measure),
        ("datagram_moves", datagram_moves::measure),
        ("crowd", crowd::measure),
    ];
    // Its name alone has one measured whole; else `only` is of the cases within.
    let alone = figures.iter().any(|(name, _)| *name == options.only);
    let all_of_it = Options { only: String::new(), ..options.clone() };
    for (name, measure) in figures.into_iter().filter(|(name, _)| !alone || *name == options.only) {
        let options = if alone { &all_of_it } else { options };
        match measure(options) {
            Ok(report) => all.absorb(name, report),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    all.finish()?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}
