//! One daemon for each run directory, and for each state directory.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use whimbrel_kernel::namespace::{self, Whereabouts};

use super::JOURNAL;

/// How long the lock may be had by what a daemon that is gone has begun to start.
const LETS_GO_WITHIN: Duration = Duration::from_secs(2);
/// Permission bits of its file: whoever can open it can lock it, and keep the daemon from starting.
const LOCK_MODE: u32 = 0o600;
/// Between looks at it.
const LOOK: Duration = Duration::from_millis(5);

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
    /// What a former daemon left there belongs to another network namespace, which is there still, or may be.
    #[error("{}", elsewhere(.run_dir, .place))]
    Namespace {
        /// The directory.
        run_dir: PathBuf,
        /// Where that namespace is.
        place: Whereabouts,
    },
    /// Another daemon has the state directory.
    #[error(
        "a daemon (process {pid}) already has the state directory {state_dir}, and two would overwrite each other's \
         keys and community; `kill {pid}` stops it, or give this one its own --state-dir"
    )]
    StateTaken {
        /// The directory.
        state_dir: PathBuf,
        /// Its process id, as it wrote it.
        pid: String,
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

/// What is to be done where another network namespace is in the way.
fn elsewhere(run_dir: &Path, place: &Whereabouts) -> String {
    let (dir, note) = (run_dir.display(), run_dir.join(NAMESPACE));
    let begin = format!("{dir} holds what a daemon has left in another network namespace");
    let end = "Or use another --run-dir and --state-dir here. Nothing was changed";
    match place {
        Whereabouts::At(path) => format!(
            "{begin}, which is still there. `nsenter --net={} whimbrel --run-dir {dir} clean` removes it; a daemon that is \
             started there takes it over. {end}",
            path.display()
        ),
        Whereabouts::Unclear(path) => format!(
            "{begin}, and whether that is still there cannot be told: {} cannot be looked at. Try it as root; if that \
             namespace is gone, `rm {}`. {end}",
            path.display(),
            note.display()
        ),
        Whereabouts::Gone => format!("{begin}, which is gone: `rm {}`. {end}", note.display()),
    }
}

/// The lock on a run directory; held by the kernel for as long as the process lives, however it ends.
#[derive(Debug)]
pub struct Instance {
    _lock: File,
    orphaned: bool,
}

impl Instance {
    /// Makes the run directory where it is missing and locks it. `has_flows`: whether a store tells of connections.
    ///
    /// # Errors
    /// When it cannot be made, or another daemon has it.
    pub(crate) fn lock(run_dir: &Path, has_flows: fn(&Path) -> bool) -> Result<Self, InstanceError> {
        let path = run_dir.join("lock");
        let taken = |pid| InstanceError::Taken { run_dir: run_dir.to_owned(), pid };
        let mut lock = lock(&path, 0o755, taken)?;
        let orphaned = check_namespace(run_dir, namespace().as_deref(), namespace::find, has_flows)?;
        sign(&mut lock, &path)?;
        Ok(Self { _lock: lock, orphaned })
    }

    /// Whether what a former daemon left here was for a network namespace that is gone: nobody needs it, and none of it
    /// means anything here.
    #[must_use]
    pub fn is_orphaned(&self) -> bool {
        self.orphaned
    }
}

/// The lock on a state directory; held as that on a run directory is.
#[derive(Debug)]
pub struct StateLock(#[expect(dead_code, reason = "it is let go of when it is dropped")] File);

impl StateLock {
    /// Makes the state directory where it is missing and locks it.
    ///
    /// # Errors
    /// When it cannot be made, or another daemon has it.
    pub fn lock(state_dir: &Path) -> Result<Self, InstanceError> {
        // The same directory may be the run directory as well.
        let path = state_dir.join("state.lock");
        let taken = |pid| InstanceError::StateTaken { state_dir: state_dir.to_owned(), pid };
        let mut lock = lock(&path, 0o700, taken)?;
        sign(&mut lock, &path)?;
        Ok(Self(lock))
    }
}

fn unusable(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InstanceError + use<> {
    let path = path.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => InstanceError::NotRoot { action, path },
        _ => InstanceError::Unusable { action, path, source },
    }
}

/// Locks a file, and makes it, and its directory with these permission bits, where they are missing. `taken`: what is
/// said where the process of this number has it.
fn lock(path: &Path, mode: u32, taken: impl Fn(String) -> InstanceError) -> Result<File, InstanceError> {
    let directory = path.parent().unwrap_or(path);
    DirBuilder::new().recursive(true).mode(mode).create(directory).map_err(unusable("make", directory))?;
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(LOCK_MODE)
        .open(path)
        .map_err(unusable("open", path))?;
    // One of a former daemon may be open to everybody.
    lock.set_permissions(fs::Permissions::from_mode(LOCK_MODE)).map_err(unusable("close to others", path))?;
    let since = Instant::now();
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = fs::read_to_string(path).unwrap_or_default().trim().to_owned();
                if pid.is_empty() || Path::new("/proc").join(&pid).exists() || since.elapsed() > LETS_GO_WITHIN {
                    return Err(taken(pid));
                }
                // It was killed, and what it was about to start has its descriptors until that is another program.
                std::thread::sleep(LOOK);
            }
            Err(errno) => return Err(unusable("lock", path)(errno.into())),
        }
    }
}

/// Writes into a lock who has it.
fn sign(lock: &mut File, path: &Path) -> Result<(), InstanceError> {
    lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(unusable("write to", path))
}

/// The file that names the network namespace that a daemon's traces are in.
const NAMESPACE: &str = "namespace";

/// The network namespace of the calling thread, unlike any other of any boot; `None` where the kernel cannot tell.
fn namespace() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{} {}\n", boot.trim(), namespace::cookie().ok()?))
}

/// Refuses a run directory whose daemon worked in another network namespace that may still be there; whether it worked
/// in one that is gone. No namespace outlives a boot, and where no connection was introduced nobody misses what is
/// left. `here`: as [`namespace`] names the present one.
fn check_namespace(
    run_dir: &Path,
    here: Option<&str>,
    find: impl FnOnce(u64) -> Whereabouts,
    has_flows: fn(&Path) -> bool,
) -> Result<bool, InstanceError> {
    let note = run_dir.join(NAMESPACE);
    let (Some(here), Ok(there)) = (here, fs::read_to_string(&note)) else { return Ok(false) };
    let (mut here, mut there) = (here.split_whitespace(), there.split_whitespace());
    if here.next() != there.next() {
        return Ok(false);
    }
    let cookie = there.next();
    if cookie == here.next() {
        return Ok(false);
    }
    match cookie.and_then(|cookie| cookie.parse().ok()).map_or(Whereabouts::Unclear(note), find) {
        Whereabouts::Gone => Ok(true),
        Whereabouts::Unclear(_) if !has_flows(&run_dir.join(JOURNAL)) => Ok(true),
        place => Err(InstanceError::Namespace { run_dir: run_dir.to_owned(), place }),
    }
}

impl Instance {
    /// Notes the network namespace of the calling thread, before anything is made in it that may stay.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record_namespace(&self, run_dir: &Path) -> Result<(), InstanceError> {
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

/// When a daemon of this run directory was started last in the present network namespace, unless nothing is left of it
/// here.
pub(crate) fn worked_here(run_dir: &Path) -> Option<SystemTime> {
    let note = run_dir.join(NAMESPACE);
    let there = fs::read_to_string(&note).ok()?;
    if Some(there) == namespace() { fs::metadata(note).ok()?.modified().ok() } else { None }
}

/// Whether a daemon holds the lock of a run directory. Who may not open that sees by its socket whether one listens
/// there.
#[must_use]
pub fn is_running(run_dir: &Path) -> bool {
    match fs::File::open(run_dir.join("lock")) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let answer = UnixStream::connect(whimbrel_ipc::socket_path(run_dir));
            answer.map_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied, |_| true)
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::table::has_flows;

    #[test]
    fn a_lock_that_a_killed_daemon_s_child_has_for_a_moment_is_waited_for() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-lock-{}", std::process::id()));
        fs::create_dir_all(&run_dir).expect("directory");
        let mut child = std::process::Command::new("true").spawn().expect("true");
        child.wait().expect("wait");
        // What has its descriptors has it as well; nobody has this number any more.
        let path = run_dir.join("lock");
        fs::write(&path, format!("{}\n", child.id())).expect("lock");
        let held = File::open(&path).expect("lock");
        flock(&held, FlockOperation::NonBlockingLockExclusive).expect("free");
        let let_go = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        let ours = Instance::lock(&run_dir, has_flows).expect("it is let go");
        let_go.join().expect("thread");
        assert!(matches!(Instance::lock(&run_dir, has_flows), Err(InstanceError::Taken { .. })), "this process has it");
        drop(ours);
        fs::remove_dir_all(&run_dir).expect("removed");
    }

    #[test]
    fn the_lock_is_nobody_elses_to_take() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-lock-mode-{}", std::process::id()));
        let mode = || fs::metadata(run_dir.join("lock")).expect("a lock").permissions().mode() & 0o777;
        drop(Instance::lock(&run_dir, has_flows).expect("free"));
        assert_eq!(mode(), 0o600);
        // As a daemon before this one made it.
        fs::set_permissions(run_dir.join("lock"), fs::Permissions::from_mode(0o644)).expect("mode");
        let held = Instance::lock(&run_dir, has_flows).expect("free");
        assert_eq!(mode(), 0o600);
        drop(held);
        fs::remove_dir_all(&run_dir).expect("removed");
    }

    #[test]
    fn the_second_daemon_is_told_who_is_there() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-instance-{}", std::process::id()));
        let first = Instance::lock(&run_dir, has_flows).expect("lock");
        assert!(is_running(&run_dir));
        let error = Instance::lock(&run_dir, has_flows).expect_err("taken");
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(first);
        assert!(!is_running(&run_dir));
        Instance::lock(&run_dir, has_flows).expect("free again");
        fs::remove_dir_all(&run_dir).expect("remove");
    }

    #[test]
    fn two_daemons_do_not_share_a_state_directory() {
        let state_dir = std::env::temp_dir().join(format!("whimbrel-state-lock-{}", std::process::id()));
        // One directory may be both.
        let run = Instance::lock(&state_dir, has_flows).expect("lock");
        let first = StateLock::lock(&state_dir).expect("lock");
        let said = StateLock::lock(&state_dir).expect_err("taken").to_string();
        let pid = std::process::id();
        assert!(said.contains(&format!("`kill {pid}`")) && said.contains("--state-dir"), "{said}");
        drop(first);
        StateLock::lock(&state_dir).expect("free again");
        drop(run);
        fs::remove_dir_all(&state_dir).expect("remove");
    }

    #[test]
    fn who_may_not_is_told_that_it_takes_root() {
        let error = InstanceError::NotRoot { action: "make", path: DEFAULT_RUN_DIR.into() };
        assert!(error.to_string().starts_with("cannot make /run/whimbrel: permission denied. Whimbrel needs root"));
    }

    #[test]
    fn what_is_left_in_another_namespace_is_not_touched() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-namespace-{}", std::process::id()));
        let instance = Instance::lock(&run_dir, has_flows).expect("lock");
        instance.record_namespace(&run_dir).expect("noted");
        drop(instance);
        let instance = Instance::lock(&run_dir, has_flows).expect("the same namespace");
        assert!(!instance.is_orphaned());
        let check = |there: &str, found: Whereabouts| {
            fs::write(run_dir.join(NAMESPACE), there).expect("a note");
            check_namespace(&run_dir, Some("boot 7\n"), |_| found, has_flows)
        };
        let at = || Whereabouts::At("/run/netns/other".into());
        assert!(!check("boot 7\n", at()).expect("this one"));
        let refusal = check("boot 8\n", at()).expect_err("another one").to_string();
        let command = format!("`nsenter --net=/run/netns/other whimbrel --run-dir {} clean`", run_dir.display());
        assert!(refusal.contains(&command), "{refusal}");
        let unclear = || Whereabouts::Unclear("/proc/1/ns/net".into());
        assert!(check("boot 8\n", unclear()).expect("nothing is to be lost"), "no connection was introduced");
        // A journal that cannot be read may have some.
        fs::create_dir(run_dir.join(JOURNAL)).expect("a directory");
        let refusal = check("boot 8\n", unclear()).expect_err("perhaps").to_string();
        assert!(refusal.contains("/proc/1/ns/net") && refusal.contains("as root"), "{refusal}");
        assert!(check("boot nonsense\n", Whereabouts::Gone).is_err(), "nobody can look for that");
        assert!(check("boot 8\n", Whereabouts::Gone).expect("its end is known"), "it is gone");
        assert!(!check("another-boot 8\n", at()).expect("no namespace outlives a boot"));
        instance.forget_namespace(&run_dir);
        assert!(!run_dir.join(NAMESPACE).exists());
        fs::remove_dir_all(&run_dir).expect("remove");
    }
}
