//! Kernel settings in `/proc/sys`, as the calling thread's network namespace has them.
//!
//! A key is the path below `/proc/sys`, with slashes: `net/ipv4/conf/all/rp_filter`. (Dots would not do: interface
//! names may have some.)

use std::path::PathBuf;

use crate::endpoint::Outer;
use crate::error::Error;

/// Reads a setting, without the newline.
///
/// # Errors
/// [`Error::Call`] with ENOENT where this kernel has no such setting.
pub fn get(key: &str) -> Result<String, Error> {
    let path = path(key)?;
    let text = std::fs::read_to_string(&path).map_err(|e| Error::call("read", path.display().to_string(), e))?;
    Ok(text.trim_end().to_owned())
}

/// Reads a setting that is a number.
///
/// # Errors
/// As [`get`], and [`Error::Answer`] where it is no number.
pub fn get_number(key: &str) -> Result<i64, Error> {
    let text = get(key)?;
    text.parse().map_err(|_| Error::Answer { call: "read", object: key.to_owned(), detail: format!("{text:?}") })
}

/// Writes a setting.
///
/// # Errors
/// [`Error::Call`]; nothing has changed then.
pub fn set(key: &str, value: &str) -> Result<(), Error> {
    let path = path(key)?;
    std::fs::write(&path, value).map_err(|e| Error::call("write", path.display().to_string(), e))
}

/// The interfaces that filter what comes in by its reverse path, and strictly so (`rp_filter`, RFC 3704 section 2.2),
/// sorted; of the calling process's network namespace. None where the kernel does not tell.
#[must_use]
pub fn strict_filters() -> Vec<String> {
    let setting = |interface: &str| get_number(&format!("net/ipv4/conf/{interface}/rp_filter")).unwrap_or(0);
    let all = setting("all");
    let Ok(entries) = std::fs::read_dir("/proc/sys/net/ipv4/conf") else { return Vec::new() };
    let mut strict: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        // Nothing of peers arrives on the ends of endpoint namespaces, of which there may be very many.
        .filter(|name| !matches!(name.as_str(), "all" | "default" | "lo") && !Outer::is_called(name))
        // The kernel uses the larger of the two (ip-sysctl, rp_filter).
        .filter(|name| all.max(setting(name)) == 1)
        .collect();
    strict.sort_unstable();
    strict
}

fn path(key: &str) -> Result<PathBuf, Error> {
    let plain = !key.is_empty() && key.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if !plain {
        return Err(Error::Argument { object: key.to_owned(), detail: "is not a path below /proc/sys" });
    }
    Ok(PathBuf::from("/proc/sys").join(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_setting() {
        assert!(!get("kernel/ostype").unwrap().is_empty());
        assert!(get_number("kernel/pid_max").unwrap() > 0);
    }

    #[test]
    fn keeps_below_its_root() {
        for key in ["", "/etc/passwd", "net/../../etc", "net//x", "net/./x"] {
            assert!(matches!(get(key), Err(Error::Argument { .. })), "{key}");
        }
    }
}
