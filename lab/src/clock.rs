//! The monotonic clock as a number that processes can exchange.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point of `CLOCK_MONOTONIC`, in nanoseconds. Comparable between processes of one machine, unlike
/// [`std::time::Instant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct MonoTime(pub u64);

impl MonoTime {
    /// Now.
    pub fn now() -> Self {
        let t = clock_gettime(ClockId::Monotonic);
        Self(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }

    /// Time since `earlier`, zero if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for MonoTime {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0 + d.as_nanos() as u64)
    }
}

impl Sub for MonoTime {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for MonoTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1000)
    }
}
