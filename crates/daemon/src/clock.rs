//! Now, in the terms of the protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use whimbrel_kernel::clock::boottime;
pub(crate) use whimbrel_kernel::clock::monotonic;
use whimbrel_protocol::Time;

/// Now, by the clock that counts while the machine sleeps (CLOCK_BOOTTIME): a laptop that was asleep must know it.
#[must_use]
pub(crate) fn now() -> Time {
    of(boottime())
}

/// A moment of that clock.
pub(crate) fn of(since_boot: Duration) -> Time {
    Time::from_micros(u64::try_from(since_boot.as_micros()).unwrap_or(u64::MAX))
}

/// What the wall clock, in milliseconds since 1970, would have shown when [`now`]'s clock started. It gives handshakes
/// time stamps that rise over reboots too; a wall clock that is wrong, or jumps later, does no harm beyond.
#[must_use]
pub(crate) fn wall_clock_at_zero() -> u64 {
    let wall: Duration = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.saturating_sub(boottime()).as_millis()).unwrap_or(u64::MAX)
}
