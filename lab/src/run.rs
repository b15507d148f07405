//! One run of the lab: its random name, its directory, and the promise that nothing of it stays behind.
//!
//! Everything that a run makes is found again from its directory `/run/whimbrel-lab/ID`: `owner` holds the pid and
//! start time of the process that made it; its namespaces are called `wb-ID-HOST`; its processes are those inside
//! these namespaces. So the same code cleans up after a return, a panic, a signal, and (`whimbrel-lab clean`) a
//! SIGKILL.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{Error, Random, Result, netns, sys, wait_until};

/// Directory of all runs.
const RUNS_DIR: &str = "/run/whimbrel-lab";

/// Runs of this process that still exist, for the signal thread.
static ACTIVE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A run: created first, dropped last.
#[derive(Debug)]
pub(crate) struct Run {
    id: String,
    dir: PathBuf,
}

impl Run {
    pub(crate) fn create() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage("the lab makes network namespaces, which needs root".into()));
        }
        watch_signals()?;
        let id = format!("{:06x}", Random::fresh_seed() & 0xff_ffff);
        let dir = Path::new(RUNS_DIR).join(&id);
        fs::create_dir_all(RUNS_DIR).map_err(|e| Error::call("mkdir", RUNS_DIR, e))?;
        fs::create_dir(&dir).map_err(|e| Error::call("mkdir", dir.display().to_string(), e))?;
        lock_active().push(id.clone());
        let run = Self { id, dir };
        let owner = run.dir.join("owner");
        let me = std::process::id();
        let start = start_time(me).unwrap_or_default();
        fs::write(&owner, format!("{me} {start}\n"))
            .map_err(|e| Error::call("write", owner.display().to_string(), e))?;
        Ok(run)
    }

    /// Six random hexadecimal digits.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The run's directory; it goes with the run.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Run {
    /// Removes all that the run has made.
    pub(crate) fn remove(&self) {
        remove_run(&self.id);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.remove();
        lock_active().retain(|id| *id != self.id);
    }
}

/// What is left of a killed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The run's id.
    pub id: String,
    /// Its namespaces.
    pub namespaces: Vec<String>,
    /// Processes inside them.
    pub processes: Vec<u32>,
}

/// Removes what killed runs left: processes in their namespaces, the namespaces, their directories. Runs whose owner
/// lives are not touched. Returns what was removed.
pub fn clean() -> Result<Vec<Leftover>> {
    let Ok(entries) = fs::read_dir(RUNS_DIR) else { return Ok(Vec::new()) };
    let mut removed = Vec::new();
    for entry in entries.flatten() {
        let Ok(id) = entry.file_name().into_string() else { continue };
        if owner_lives(&entry.path()) {
            continue;
        }
        let left = remains(&id);
        remove_run(&id);
        removed.push(left);
    }
    Ok(removed)
}

/// What exists of the run with this id now.
pub(crate) fn remains(id: &str) -> Leftover {
    let namespaces = netns::list(&format!("wb-{id}-"));
    let processes = processes_in(&namespaces);
    Leftover { id: id.into(), namespaces, processes }
}

fn lock_active() -> std::sync::MutexGuard<'static, Vec<String>> {
    ACTIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// True if the directory has just been made or the process named in its `owner` file still is the one that made it.
fn owner_lives(dir: &Path) -> bool {
    let Ok(text) = fs::read_to_string(dir.join("owner")) else {
        // Between mkdir and the owner file lie microseconds; a directory without one for longer has no owner.
        let age = fs::metadata(dir).and_then(|m| m.modified()).map(|t| t.elapsed().unwrap_or_default());
        return age.is_ok_and(|age| age < Duration::from_secs(10));
    };
    let mut words = text.split_whitespace();
    let pid = words.next().and_then(|w| w.parse::<u32>().ok());
    let start = words.next().and_then(|w| w.parse::<u64>().ok());
    matches!((pid, start), (Some(pid), Some(start)) if start_time(pid) == Some(start))
}

/// Start time of a process in clock ticks since boot (proc_pid_stat(5), field 22): with the pid it names a process
/// for ever.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; fields are counted from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn processes_in(namespaces: &[String]) -> Vec<u32> {
    let inodes: Vec<u64> = namespaces
        .iter()
        .filter_map(|n| fs::metadata(Path::new(netns::NETNS_DIR).join(n)).ok())
        .map(|m| m.ino())
        .collect();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let me = std::process::id();
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&pid| pid != me)
        .filter(|pid| fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|m| inodes.contains(&m.ino())))
        .collect()
}

/// Ends the processes of a run, then removes its namespaces and directory.
fn remove_run(id: &str) {
    let namespaces = netns::list(&format!("wb-{id}-"));
    // A process may fork while we look, so look until none is left.
    let _ = wait_until(Duration::from_secs(5), "processes of the run end", || {
        let processes = processes_in(&namespaces);
        for pid in &processes {
            if let Some(pid) = Pid::from_raw(*pid as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        processes.is_empty()
    });
    for name in &namespaces {
        netns::remove(name);
    }
    unmount_below(&Path::new(RUNS_DIR).join(id));
    let _ = fs::remove_dir_all(Path::new(RUNS_DIR).join(id));
    remove_pins(id);
}

/// A killed daemon leaves the bpffs that it mounted in its run directory.
fn unmount_below(dir: &Path) {
    let Ok(mounts) = fs::read_to_string("/proc/self/mounts") else { return };
    for mount in mounts.lines().filter_map(|line| line.split_whitespace().nth(1)) {
        if Path::new(mount).starts_with(dir) {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Where the machine has a bpffs, a killed daemon leaves its pins there, in a directory named after its run directory
/// (`/` is written `_2f`).
fn remove_pins(id: &str) {
    let Ok(entries) = fs::read_dir("/sys/fs/bpf/whimbrel") else { return };
    let ours = format!("{RUNS_DIR}/{id}/").replace('/', "_2f");
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&ours) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Starts, once in a process, the thread that cleans up and ends the process on SIGINT, SIGTERM and SIGHUP.
fn watch_signals() -> Result<()> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        let pipe = sys::catch_signals().map_err(|e| e.to_string())?;
        let work = move || {
            let mut byte = [0u8];
            if std::fs::File::from(pipe).read_exact(&mut byte).is_ok() {
                for id in lock_active().iter() {
                    remove_run(id);
                }
                std::process::exit(128 + i32::from(byte[0]));
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(work).map(drop).map_err(|e| e.to_string())
    });
    started.clone().map_err(|e| Error::Usage(format!("cannot watch signals: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_pid_and_start() {
        let me = std::process::id();
        assert!(start_time(me).is_some());
        assert_eq!(start_time(me), start_time(me));
    }

    #[test]
    fn a_directory_of_a_dead_owner_has_none() {
        let dir = std::env::temp_dir().join(format!("whimbrel-lab-test-{:x}", Random::fresh_seed()));
        fs::create_dir(&dir).unwrap();
        assert!(owner_lives(&dir), "just made");
        fs::write(dir.join("owner"), format!("{} {}\n", std::process::id(), start_time(std::process::id()).unwrap()))
            .unwrap();
        assert!(owner_lives(&dir));
        fs::write(dir.join("owner"), format!("{} 1\n", std::process::id())).unwrap();
        assert!(!owner_lives(&dir), "same pid, other process");
        fs::remove_dir_all(&dir).unwrap();
    }
}
