//! The clocks: the only place where one is read.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use whimbrel_protocol::Time;

/// Now, by the clock that counts while the machine sleeps (CLOCK_BOOTTIME): a laptop that was asleep must know it.
#[must_use]
pub(crate) fn now() -> Time {
    Time::from_micros(micros(read(ClockId::Boottime)))
}

/// Now by CLOCK_MONOTONIC, for stamps that other programs compare with their own.
#[must_use]
pub(crate) fn monotonic() -> Duration {
    read(ClockId::Monotonic)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // Neither clock is ever before its start.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
