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
