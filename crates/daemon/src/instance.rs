//! One daemon for each run directory.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The run directory of a machine's only daemon.
pub const DEFAULT_RUN_DIR: &str = "/run/whimbrel";

/// The run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// It cannot be made or locked.
    #[error("cannot {action} {path}: {source}")]
    Unusable {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another daemon runs there.
    #[error("a daemon (process {pid}) already runs in {run_dir}; another one needs its own --run-dir and --state-dir")]
    Taken {
        /// The directory.
        run_dir: PathBuf,
        /// Its process id, as it wrote it.
        pid: String,
    },
}

/// The lock on a run directory; held by the kernel for as long as the process lives, however it ends.
#[derive(Debug)]
pub struct Instance {
    _lock: File,
}

impl Instance {
    /// Makes the run directory where it is missing and locks it.
    ///
    /// # Errors
    /// When it cannot be made, or another daemon has it.
    pub fn lock(run_dir: &Path) -> Result<Self, InstanceError> {
        let path = run_dir.join("lock");
        let unusable = |action, path: &Path| {
            let path = path.to_owned();
            move |source| InstanceError::Unusable { action, path, source }
        };
        DirBuilder::new().recursive(true).mode(0o755).create(run_dir).map_err(unusable("make", run_dir))?;
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o644)
            .open(&path)
            .map_err(unusable("open", &path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let _ = lock.read_to_string(&mut pid);
                return Err(InstanceError::Taken { run_dir: run_dir.to_owned(), pid: pid.trim().to_owned() });
            }
            Err(errno) => return Err(unusable("lock", &path)(errno.into())),
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(unusable("write to", &path))?;
        Ok(Self { _lock: lock })
    }
}

/// Whether a daemon holds the lock of a run directory.
#[must_use]
pub fn is_running(run_dir: &Path) -> bool {
    fs::File::open(run_dir.join("lock"))
        .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_daemon_is_told_who_is_there() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-instance-{}", std::process::id()));
        let first = Instance::lock(&run_dir).expect("lock");
        assert!(is_running(&run_dir));
        let error = Instance::lock(&run_dir).expect_err("taken");
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(first);
        assert!(!is_running(&run_dir));
        Instance::lock(&run_dir).expect("free again");
        fs::remove_dir_all(&run_dir).expect("remove");
    }
}
