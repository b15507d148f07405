//! How a path fares, by what has come back on it.

use std::time::Duration;

/// What is known of the round trips of a path: RFC 6298's smoothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    smoothed: Option<Duration>,
}

impl Estimate {
    /// Something has come back after that time, and it is certain what it answers.
    pub(super) fn sample(&mut self, took: Duration) {
        self.smoothed = Some(self.smoothed.map_or(took, |smoothed| (smoothed * 7 + took) / 8));
    }

    /// The smoothed round trip, where one was measured.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }
}
