//! CRIU, which Whimbrel moves whole processes with.

use std::process::Command;

/// Why processes cannot be moved on this machine, if they cannot.
pub fn criu_lacks() -> Option<String> {
    let said = match Command::new("criu").arg("check").output() {
        Ok(output) if output.status.success() => return None,
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().next_back().unwrap_or("it fails").to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!("`criu check` says: {said}"))
}

/// Whether the kernel tells CRIU what a process has written since it was asked last (CONFIG_MEM_SOFT_DIRTY), so that most of its memory can be
/// written down while it runs.
pub fn criu_tracks_memory() -> bool {
    let output = Command::new("criu").args(["check", "--feature", "mem_dirty_track"]).output();
    output.is_ok_and(|output| output.status.success())
}
