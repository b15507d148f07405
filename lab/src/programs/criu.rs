//! CRIU, which Whimbrel moves whole processes with.

use std::process::Command;
use std::time::{Duration, Instant};

/// Why processes cannot be moved on this machine, if they cannot.
pub fn criu_lacks() -> Option<String> {
    let said = match Command::new("criu").arg("check").output() {
        Ok(output) if output.status.success() => return None,
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().next_back().unwrap_or("it fails").to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!("`criu check` says: {said}"))
}

/// How long `criu check` takes now, at the most of three times: what a machine that is busy with other things needs to
/// start a program.
pub fn criu_starts_within() -> Duration {
    let once = |_| {
        let since = Instant::now();
        let _ = Command::new("criu").arg("check").output();
        since.elapsed()
    };
    (0..3).map(once).max().unwrap_or_default()
}

/// Whether the kernel tells CRIU what a process has written since it was asked last (CONFIG_MEM_SOFT_DIRTY), so that
/// most of its memory can be written down while it runs.
pub fn criu_tracks_memory() -> bool {
    let output = Command::new("criu").args(["check", "--feature", "mem_dirty_track"]).output();
    output.is_ok_and(|output| output.status.success())
}
