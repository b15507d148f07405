//! Where the data plane is pinned: a directory of a bpffs for each run directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use crate::Error;

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
        let own = run_dir.join("bpffs");
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
    }
}
