//! What a daemon costs that nothing happens to: how soon it is ready, and its memory.

use std::time::Instant;

use whimbrel_lab::Lab;

use crate::report::{Figure, Report, Samples};
use crate::roam::Options;
use crate::{Result, machine};

/// Measures and reports.
///
/// # Errors
/// When a host cannot be set up or the daemon does not start.
pub fn run(options: &Options) -> Result<()> {
    machine::warn_if_busy();
    let [mut ready, mut memory, mut anonymous, mut maps] = std::array::from_fn(|_| Samples::default());
    for _ in 0..options.runs(15, 3) {
        let mut lab = Lab::new(options.setup.lab_options())?;
        let host = lab.host("idle")?;
        let begun = Instant::now();
        let mut daemon = host.whimbrel()?;
        ready.push(begun.elapsed().as_secs_f64() * 1e3);
        let pid = daemon.process().pid();
        machine::wait_idle(pid)?;
        memory.push(machine::status_bytes(pid, "VmRSS")? as f64);
        // The rest are pages of files, which the kernel may drop, and several daemons share.
        anonymous.push(machine::status_bytes(pid, "RssAnon")? as f64);
        maps.push(machine::map_bytes(pid)? as f64);
    }
    let mut report = Report::new("idle");
    report.add(Figure::new("ready", "ms", &ready));
    report.add(Figure::new("memory", "bytes", &memory));
    report.add(Figure::new("anonymous_memory", "bytes", &anonymous));
    report.add(Figure::new("map_memory", "bytes", &maps));
    report.finish()?;
    Ok(())
}
