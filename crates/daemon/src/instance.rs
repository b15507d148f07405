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
    /// This user may not.
    #[error(
        "cannot {action} {}: permission denied. Whimbrel needs root: run it with sudo (a run directory of one's own, \
         --run-dir, does not replace that)", .path.display()
    )]
    NotRoot {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
    },
    /// What a former daemon left there belongs to another network namespace.
    #[error(
        "{} holds what a daemon left in another network namespace. Run this in that one (`nsenter --net=/run/netns/NAME \
         whimbrel clean` removes it there), or use another --run-dir and --state-dir. Nothing was changed. If that \
         namespace is gone, remove {}", .run_dir.display(), .run_dir.join(NAMESPACE).display()
    )]
    Namespace {
        /// The directory.
        run_dir: PathBuf,
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
            move |source: io::Error| match source.kind() {
                io::ErrorKind::PermissionDenied => InstanceError::NotRoot { action, path },
                _ => InstanceError::Unusable { action, path, source },
            }
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
        check_namespace(run_dir)?;
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(unusable("write to", &path))?;
        Ok(Self { _lock: lock })
    }
}

/// The file that names the network namespace that a daemon's traces are in.
const NAMESPACE: &str = "namespace";

/// The network namespace of the calling thread, unlike any other of any boot; `None` where the kernel cannot tell.
fn namespace() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{} {}\n", boot.trim(), whimbrel_kernel::namespace::cookie().ok()?))
}

/// Refuses a run directory whose daemon worked in another network namespace since the last boot, before which no namespace
/// is left.
fn check_namespace(run_dir: &Path) -> Result<(), InstanceError> {
    let (Some(here), Ok(there)) = (namespace(), fs::read_to_string(run_dir.join(NAMESPACE))) else { return Ok(()) };
    let boot = |text: &str| text.split(' ').next().map(str::to_owned);
    if here != there && boot(&here) == boot(&there) {
        return Err(InstanceError::Namespace { run_dir: run_dir.to_owned() });
    }
    Ok(())
}

impl Instance {
    /// Notes the network namespace of the calling thread, before anything is made in it that may stay.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn note_namespace(&self, run_dir: &Path) -> Result<(), InstanceError> {
        let path = run_dir.join(NAMESPACE);
        match namespace() {
            Some(here) => {
                fs::write(&path, here).map_err(|source| InstanceError::Unusable { action: "write to", path, source })
            }
            None => Ok(()),
        }
    }

    /// Forgets it, once nothing is left there.
    pub fn forget_namespace(&self, run_dir: &Path) {
        let _ = fs::remove_file(run_dir.join(NAMESPACE));
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

    #[test]
    fn who_may_not_is_told_that_it_takes_root() {
        let error = InstanceError::NotRoot { action: "make", path: DEFAULT_RUN_DIR.into() };
        assert!(error.to_string().starts_with("cannot make /run/whimbrel: permission denied. Whimbrel needs root"));
    }

    #[test]
    fn what_is_left_in_another_namespace_is_not_touched() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-namespace-{}", std::process::id()));
        let instance = Instance::lock(&run_dir).expect("lock");
        instance.note_namespace(&run_dir).expect("noted");
        drop(instance);
        drop(Instance::lock(&run_dir).expect("the same namespace"));
        let noted = fs::read_to_string(run_dir.join(NAMESPACE)).expect("a note");
        fs::write(run_dir.join(NAMESPACE), format!("{}7\n", noted.trim())).expect("another");
        let error = Instance::lock(&run_dir).expect_err("another namespace");
        assert!(error.to_string().contains("another network namespace"), "{error}");
        // No namespace outlives a boot.
        fs::write(run_dir.join(NAMESPACE), "another-boot 7\n").expect("before the boot");
        let instance = Instance::lock(&run_dir).expect("what was is gone");
        fs::write(run_dir.join(NAMESPACE), noted).expect("back");
        instance.forget_namespace(&run_dir);
        assert!(!run_dir.join(NAMESPACE).exists());
        fs::remove_dir_all(&run_dir).expect("remove");
    }
}
