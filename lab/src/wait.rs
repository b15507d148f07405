//! Waiting on conditions. Nothing in the lab sleeps for a fixed time and hopes.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Pause before a condition that nobody announces is looked at again, at least and at the most. Between them four times
/// what a look takes: many run a program, and who waits is not to keep what he waits for from the processors.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_LONGEST: Duration = Duration::from_millis(150);

/// What every limit on time is multiplied by: `WHIMBREL_LAB_PATIENCE`, or 1. For guests under software emulation, where
/// all is right but nothing is prompt.
pub fn patience() -> u32 {
    static PATIENCE: LazyLock<u32> = LazyLock::new(|| {
        let said = std::env::var("WHIMBREL_LAB_PATIENCE").ok();
        said.and_then(|number| number.parse().ok()).filter(|number| *number > 0).unwrap_or(1)
    });
    *PATIENCE
}

/// Calls `check` until it gives a value, at most for `timeout` (times [`patience`]). `what` names the condition in the
/// error.
pub fn wait_for<T>(timeout: Duration, what: &str, mut check: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let timeout = timeout * patience();
    let start = Instant::now();
    loop {
        let looked = Instant::now();
        if let Some(value) = check()? {
            return Ok(value);
        }
        if start.elapsed() > timeout {
            return Err(Error::Timeout { what: what.into(), after: timeout, last: String::new() });
        }
        std::thread::sleep((4 * looked.elapsed()).clamp(PAUSE, PAUSE_LONGEST));
    }
}

/// Calls `check` until it is true, at most for `timeout` (times [`patience`]).
pub fn wait_until(timeout: Duration, what: &str, mut check: impl FnMut() -> bool) -> Result<()> {
    wait_for(timeout, what, || Ok(check().then_some(())))
}
