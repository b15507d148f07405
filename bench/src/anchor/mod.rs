//! What an anchor costs: packets through it, time on the way, and sockets of programs that are their own anchor.

mod bed;
mod hop;
mod local;
mod pair;
mod vpn;

use crate::Result;
use crate::report::Report;
use crate::roam::Options;

/// Measures and reports.
///
/// # Errors
/// When something could not be measured; what could be is reported first.
pub fn run(options: &Options) -> Result<()> {
    let (report, failed) = measure(options);
    report.finish()?;
    failed
}

/// What was measured, and what could not be.
pub(crate) fn measure(options: &Options) -> (Report, Result<()>) {
    crate::machine::warn_if_busy();
    let mut report = Report::new("anchor");
    let mut failures = Vec::new();
    for (name, measure) in [
        ("hop", hop::measure as fn(&Options, &mut Report) -> Result<()>),
        ("path", pair::measure),
        ("local", local::measure),
    ] {
        if !name.contains(&options.only) {
            continue;
        }
        if let Err(error) = measure(options, &mut report) {
            failures.push(format!("{name}: {error}"));
        }
    }
    (report, if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) })
}
