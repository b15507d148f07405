//! The kernel's clocks.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Since the machine was started, sleep included (CLOCK_BOOTTIME): who was asleep must know it.
#[must_use]
pub fn boottime() -> Duration {
    read(ClockId::Boottime)
}

/// By CLOCK_MONOTONIC, for stamps that other programs compare with their own.
#[must_use]
pub fn monotonic() -> Duration {
    read(ClockId::Monotonic)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // Neither clock is ever before its start.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
