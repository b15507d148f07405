//! Runs the fuzz targets of `fuzz/`, a workspace of its own with its own runner.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::failure::Failure;
use crate::process::{self, End};
use crate::tally::Tally;
use crate::workspace::files;

/// Building takes longer than running: all of it is instrumented, without what other builds have made.
const BUILD_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Every target for so many seconds.
pub(crate) fn long(root: &Path, seconds: u64) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    for source in files(&root.join("fuzz/targets"), "rs")? {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        println!("-- {name}, {seconds} s");
        let mut command = Command::new(root.join("fuzz/run"));
        command.arg(&name).arg(format!("-max_total_time={seconds}"));
        match process::run(&mut command, BUILD_LIMIT + Duration::from_secs(seconds), |line| println!("{line}"))? {
            End::Success => tally.pass(),
            _ => tally.fail(format!("fuzz target {name}")),
        }
    }
    println!("{} targets found nothing, {} found something", tally.passed, tally.failed);
    Ok(tally)
}
