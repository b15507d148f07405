//! The clocks: the only place where one is read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// What the wall clock, in milliseconds since 1970, would have shown when [`now`]'s clock started. It gives handshakes
/// time stamps that rise over reboots too; a wall clock that is wrong, or jumps later, does no harm beyond.
#[must_use]
pub(crate) fn wall_clock_at_zero() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.saturating_sub(read(ClockId::Boottime)).as_millis()).unwrap_or(u64::MAX)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // Neither clock is ever before its start.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
