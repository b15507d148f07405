//! A host with several networks: how soon one that fails is left, what that costs, and what TCP has in the first
//! moments after a hand-off.

mod course;
mod fairness;
mod moments;
mod net;
mod others;
mod silence;
mod traces;

use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::Report;
use crate::roam::Options;

/// Measures and reports; what could be measured is reported before an error is.
///
/// # Errors
/// When something could not be measured.
pub fn run(options: &Options) -> Result<()> {
    warn_if_busy();
    let mut report = Report::new("links");
    let mut failures = Vec::new();
    for measure in [
        moments::add_to as fn(&mut Report, &Options) -> Result<()>,
        fairness::add_to,
        traces::add_to,
        silence::add_to,
        others::add_to,
    ] {
        if let Err(error) = measure(&mut report, options) {
            failures.push(error.to_string());
        }
    }
    report.finish()?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}
