//! Counts of what is run in one piece: other kernels, and long fuzzing. What the suite runs has verdicts instead
//! (`suite`).

use std::time::Duration;

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Names of those that failed.
    failures: Vec<String>,
    /// What this machine lacks something for, each with why. It neither passed nor failed.
    skipped: Vec<String>,
}

impl Tally {
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, name: impl Into<String>) {
        self.failed += 1;
        self.failures.push(name.into());
    }

    pub(crate) fn skip(&mut self, name: impl Into<String>) {
        self.skipped.push(name.into());
    }

    pub(crate) fn add(&mut self, part: Self) {
        self.passed += part.passed;
        self.failed += part.failed;
        self.failures.extend(part.failures);
        self.skipped.extend(part.skipped);
    }

    /// Prints what failed, what was skipped, and how much there was of each.
    pub(crate) fn print(&self, took: Duration) {
        for name in &self.failures {
            println!("FAILED: {name}");
        }
        for name in &self.skipped {
            println!("SKIPPED: {name}");
        }
        println!("took {} s", took.as_secs());
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped.len());
    }
}
