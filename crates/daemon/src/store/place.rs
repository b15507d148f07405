//! Where the data plane is pinned: a directory of a bpffs for each run directory.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use crate::Error;

/// Where one is mounted in the run directory.
const OWN: &str = "bpffs";

/// The directory, and the bpffs that was mounted for it if there was none.
#[derive(Debug)]
pub(crate) struct Place {
    pins: PathBuf,
    mounted: Option<PathBuf>,
    /// No daemon before this one has left anything here.
    fresh: bool,
}

impl Place {
    /// Finds the bpffs of the machine, or mounts one in the run directory.
    ///
    /// # Errors
    /// When there is none and none can be mounted.
    pub(crate) fn find(run_dir: &Path) -> Result<Self, Error> {
        let own = run_dir.join(OWN);
        let root = whimbrel_datapath::bpffs(&own).map_err(|error| match error {
            whimbrel_datapath::Error::Bpffs { path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
                // Made for the mount.
                let _ = fs::remove_dir(&path);
                Error::Mount { path, source }
            }
            error => error.into(),
        })?;
        let mounted = (root == own).then_some(own);
        // The machine's bpffs is shared with other instances.
        let absolute = fs::canonicalize(run_dir).or_else(|_| std::path::absolute(run_dir));
        let absolute = absolute.unwrap_or_else(|_| run_dir.to_owned());
        let pins = match mounted {
            Some(_) => root.join("whimbrel"),
            None => root.join("whimbrel").join(folder(&absolute)),
        };
        let fresh = !pins.exists();
        Ok(Self { pins, mounted, fresh })
    }

    /// The directory for the pins.
    pub(crate) fn pins(&self) -> &Path {
        &self.pins
    }

    /// Whether nothing was here that a daemon before this one had left.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Takes down what a start has made here that did not come about. What another daemon left stays: moved connections
    /// may need it. Nothing may be attached to interfaces yet.
    pub(crate) fn abandon(self) {
        if !self.fresh {
            return;
        }
        let removed = fs::read_dir(&self.pins)
            .and_then(|mut pins| pins.try_for_each(|pin| remove_pin(&pin?.path())))
            .and_then(|()| fs::remove_dir(&self.pins));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.pins.display(), %error, "cannot remove what was pinned");
            }
            _ => self.leave(),
        }
    }

    /// Takes down what was put up here; call it once nothing is pinned any more.
    pub(crate) fn leave(self) {
        match self.mounted {
            Some(own) => {
                if let Err(error) = unmount(&own, UnmountFlags::empty()) {
                    tracing::warn!(path = %own.display(), %error, "cannot unmount the bpffs");
                    return;
                }
                let _ = fs::remove_dir(own);
            }
            // Fails while other instances have theirs beside it.
            None => drop(self.pins.parent().map(fs::remove_dir)),
        }
    }
}

/// A name that no other run directory has. A bpffs takes no dots in names (`bpf_lookup`, kernel/bpf/inode.c).
fn folder(run_dir: &Path) -> String {
    let mut name = String::new();
    for byte in run_dir.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => name.push(char::from(*byte)),
            other => name.push_str(&format!("_{other:02x}")),
        }
    }
    name
}

/// The run directories that daemons have pinned something for, in the machine's bpffs or in one of their own.
pub(crate) fn run_dirs() -> Vec<PathBuf> {
    let common = whimbrel_datapath::common_bpffs().map(|common| common.join("whimbrel"));
    let folders = common.into_iter().flat_map(fs::read_dir).flatten().flatten();
    let shared = folders.filter_map(|folder| run_dir_of(folder.file_name().to_str()?));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    shared.chain(mounts.lines().filter_map(mounted_for)).collect()
}

/// The run directory that a bpffs is mounted for, by a line of mountinfo (proc_pid_mountinfo(5)).
fn mounted_for(line: &str) -> Option<PathBuf> {
    let (mount, kind) = line.split_once(" - ")?;
    let at = Path::new(mount.split(' ').nth(4)?);
    // Characters that are written as numbers make it no path that is there.
    (kind.starts_with("bpf ") && at.file_name()? == OWN).then(|| at.parent().map(Path::to_owned))?
}

/// The run directory of which this is the [`folder`].
fn run_dir_of(folder: &str) -> Option<PathBuf> {
    let mut parts = folder.split('_');
    let mut path = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (byte, rest) = part.split_at_checked(2)?;
        path.push(u8::from_str_radix(byte, 16).ok()?);
        path.extend(rest.as_bytes());
    }
    Some(OsString::from_vec(path).into())
}

/// Removes what is among the pins: an object, or the directory that says that new maps are not filled yet (decision
/// 0063).
pub(crate) fn remove_pin(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_directories_have_different_names_without_dots() {
        let names: Vec<_> = ["/run/whimbrel", "/run/whimbrel.2", "/run/whimbrel_2", "/run/whimbrel/2"]
            .iter()
            .map(|path| folder(Path::new(path)))
            .collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!name.contains(['.', '/']), "{name}");
            assert!(!names[..index].contains(name), "{name}");
        }
        for path in ["/run/whimbrel", "/run/whimbrel_2.x/ä-1"] {
            assert_eq!(run_dir_of(&folder(Path::new(path))), Some(path.into()));
        }
        assert_eq!((run_dir_of("_2"), run_dir_of("_zz")), (None, None));
        let line = |at, kind| format!("36 35 98:0 / {at} rw,noatime shared:1 - {kind} none rw");
        assert_eq!(mounted_for(&line("/run/other/bpffs", "bpf")), Some("/run/other".into()));
        let others = [line("/sys/fs/bpf", "bpf"), line("/run/other/bpffs", "tmpfs"), String::new()];
        assert!(others.iter().all(|line| mounted_for(line).is_none()));
    }
}
