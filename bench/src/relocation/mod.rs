//! Sockets that change hosts: what the far end notices, what it costs, how many at once. Anchors are reported with
//! them.

pub mod bare;
pub mod bulk;
pub mod call;
pub mod criu;
pub mod crowd;
pub mod gap;
mod phases;
mod stage;
pub mod thesis;
pub mod tune;

use crate::Result;
use crate::report::Report;
use crate::roam::Options;

/// All of them, and one report.
///
/// # Errors
/// When something could not be measured; what could be is reported first.
pub fn run(options: &Options) -> Result<()> {
    let mut all = Report::new("move");
    let mut failures = Vec::new();
    for (name, measure) in [
        ("gap", gap::measure as fn(&Options) -> Result<Report>),
        ("bare", bare::measure),
        ("crowd", crowd::measure),
        ("call", call::measure),
        ("bulk", bulk::measure),
        ("tune", tune::measure),
        ("thesis", thesis::measure),
        ("criu", criu::measure),
    ] {
        match measure(options) {
            Ok(report) => all.absorb(name, report),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    let (report, failed) = crate::anchor::measure(options);
    all.absorb("anchor", report);
    failures.extend(failed.err().map(|error| format!("anchor: {error}")));
    all.finish()?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}
