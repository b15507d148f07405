//! Running CRIU.
//!
//! It is run inside the network namespace of the process, and inside its PID and mount namespaces where those are others than this
//! one's: seen from outside it would take the namespaces along.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use whimbrel_kernel::namespace::Entered;

use super::{BEFORE, IMAGES};
use crate::doctor;

/// How long a process that was rebuilt may take to go on.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the hook may take to wait anew.
const ANEW: Duration = Duration::from_millis(200);
/// How long CRIU may take to act on what it was told by a daemon that has died since.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);
/// Between looks at what CRIU has done.
const LOOK: Duration = Duration::from_millis(2);

/// What CRIU runs when it has rebuilt a process, which waits then, at rest, until it is told its fate. It outlives the daemon. Where nobody can tell
/// it any more the process ends.
const HOOK: &str = "#!/bin/sh
cd \"${0%/*}\" || exit 1
case $CRTOOLS_SCRIPT_ACTION in
post-restore)
	echo \"$CRTOOLS_INIT_PID\" >rebuilt.new && mv rebuilt.new rebuilt || exit 1
	until read -r fate <fate; do [ -p fate ] || exit 1; done
	exit \"$fate\" ;;
post-resume) : >resumed ;;
esac
exit 0
";

/// A CRIU that works on this host.
#[derive(Clone, Debug)]
pub(crate) struct Criu {
    pub(crate) version: String,
}

/// A process, as CRIU has to be told of it.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// The first process, in this process's PID namespace, and in its own.
    pub(crate) root: u32,
    pub(crate) inner: u32,
    /// Its PID or mount namespace is another.
    pub(crate) apart: bool,
    pub(crate) job: bool,
    pub(crate) talks: bool,
}

impl Criu {
    /// Asks CRIU whether it works here.
    ///
    /// # Errors
    /// A sentence: why it does not.
    pub(crate) fn find() -> Result<Self, String> {
        doctor::criu::usable().map(|version| Self { version }).map_err(|why| format!("CRIU: {why}"))
    }

    /// Whether images that another version has made can be expected to be read.
    pub(crate) fn reads(&self, other: &str) -> bool {
        numbers(&self.version) >= numbers(other)
    }

    /// What CRIU does so that nothing comes in meanwhile. The data plane does that, but before 3.19 CRIU does not take that for an answer.
    fn lock(&self) -> &'static str {
        if self.leaves_lock() { "nftables" } else { "skip" }
    }

    /// Whether connections of a process that it has written down are cut off until [`end_lock`] is called.
    pub(crate) fn leaves_lock(&self) -> bool {
        numbers(&self.version) < (3, 19)
    }

    /// Whether there is all that it takes to dump a process.
    ///
    /// # Errors
    /// A sentence: what is missing.
    pub(crate) fn may_dump(&self, apart: bool) -> Result<(), String> {
        let has = |program: &str| {
            Command::new(program).arg("--version").stdin(Stdio::null()).output().is_ok_and(|said| said.status.success())
        };
        if self.leaves_lock() && !has("nft") {
            return Err(format!("CRIU {} locks by nftables, and there is no `nft` here to end that", self.version));
        }
        if apart && !has("nsenter") {
            return Err("it is in a PID namespace of its own, and there is no `nsenter` here to reach it".to_owned());
        }
        Ok(())
    }

    /// Writes the memory of a process that runs down, to begin with. It stands still for some milliseconds.
    ///
    /// # Errors
    /// A sentence. The process runs on.
    pub(crate) fn dump_before(&self, of: &Subject, directory: &Path) -> Result<(), String> {
        let directory = directory.join(BEFORE);
        let mut command = self.command(of, "pre-dump", &directory);
        command.arg("--track-mem");
        let inside = network_of(of.root)?;
        run(command, Some(inside), &directory.join("pre-dump.log"))
    }

    /// Writes a process down that stands still, and leaves it so, its TCP sockets at rest.
    ///
    /// # Errors
    /// A sentence. The process stands still, and its sockets may rest.
    pub(crate) fn dump(&self, of: &Subject, directory: &Path, before: bool) -> Result<(), String> {
        let directory = directory.join(IMAGES);
        let mut command = self.command(of, "dump", &directory);
        command.arg("--leave-stopped");
        if before {
            command.args(["--track-mem", "--prev-images-dir"]).arg(format!("../{BEFORE}"));
        }
        let inside = network_of(of.root)?;
        let network = inside.try_clone().map_err(|error| error.to_string())?;
        let dumped = run(command, Some(network), &directory.join("dump.log"));
        if self.leaves_lock() {
            end_lock(of.inner, Some(inside));
        }
        dumped
    }

    fn command(&self, of: &Subject, what: &str, directory: &Path) -> Command {
        let mut command = if of.apart {
            let mut command = Command::new("nsenter");
            command.arg("--target").arg(of.root.to_string()).args(["--pid", "--mount", "criu"]);
            command
        } else {
            Command::new("criu")
        };
        command.arg(what).arg("--tree").arg(of.inner.to_string()).arg("--images-dir").arg(directory);
        command.args(["--network-lock", self.lock(), "--log-file"]).arg(format!("{what}.log"));
        common(&mut command, of.job, of.talks);
        command
    }

    /// Rebuilds a process, which rests then until [`tell`] is called. `apart`: in a PID namespace of its own, since somebody has its
    /// number here. `network`: the network namespace that it is to be in, where that is not this one.
    ///
    /// # Errors
    /// A sentence. Nothing is left.
    pub(crate) fn rebuild(
        &self,
        directory: &Path,
        job: bool,
        talks: bool,
        apart: bool,
        network: Option<OwnedFd>,
    ) -> Result<(), String> {
        let hook = directory.join("hook");
        let failed = |what: &str, error: io::Error| format!("{what}: {error}");
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o700)
            .open(&hook)
            .and_then(|mut file| io::Write::write_all(&mut file, HOOK.as_bytes()))
            .map_err(|error| failed("hook", error))?;
        mknodat(CWD, fate(directory), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .map_err(|error| failed("mkfifo", error.into()))?;
        let images = directory.join(IMAGES);
        let mut command = if apart {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--mount-proc", "criu"]);
            command
        } else {
            Command::new("criu")
        };
        command.arg("restore").arg("--images-dir").arg(&images).args(["--log-file", "restore.log"]);
        command.arg("--action-script").arg(&hook);
        if !apart {
            // In a PID namespace of its own CRIU is the first process, and has to stay.
            command.arg("--restore-detached");
        }
        common(&mut command, job, talks);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        let mut child = {
            let _inside = enter(network)?;
            command.spawn().map_err(|error| failed("criu", error))?
        };
        if apart {
            // Of the processes there it is this that has to be found again.
            let _ = fs::write(directory.join("keeper"), child.id().to_string());
        }
        let ended = Arc::new(AtomicBool::new(false));
        let note = Arc::clone(&ended);
        // One that has ended is waited for, whenever that is.
        let waiting = std::thread::Builder::new().name("criu".to_owned()).spawn(move || {
            let _ = child.wait();
            note.store(true, Ordering::Release);
        });
        waiting.map_err(|error| failed("no thread could be started for it", error))?;
        while !directory.join("rebuilt").exists() {
            if ended.load(Ordering::Acquire) && !directory.join("rebuilt").exists() {
                return Err(complaint(&images.join("restore.log"), "CRIU has ended"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// Ends what CRIU has made so that nothing comes for the connections of a process with this number. `network`: where that is, if not here.
pub(crate) fn end_lock(inner: u32, network: Option<OwnedFd>) {
    let mut command = Command::new("nft");
    command.args(["delete", "table", "inet"]).arg(format!("CRIU-{inner}"));
    // Where it has failed there is none.
    let _ = run(command, network, Path::new(""));
}

/// Whether a process that was rebuilt waits for its fate.
pub(crate) fn waits(directory: &Path) -> bool {
    open_fate(directory).is_ok()
}

fn fate(directory: &Path) -> PathBuf {
    directory.join("fate")
}

/// Succeeds only where somebody waits at the other end (fifo(7), ENXIO).
fn open_fate(directory: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(fate(directory))
}

/// Tells a process that was rebuilt what becomes of it: it goes on, or ends without a word to anybody.
///
/// # Errors
/// Nobody waits for it: it is gone, or goes on already.
pub(crate) fn tell(directory: &Path, goes_on: bool) -> io::Result<()> {
    let word: &[u8] = if goes_on { b"0\n" } else { b"1\n" };
    let since = Instant::now();
    loop {
        match open_fate(directory).and_then(|mut file| io::Write::write_all(&mut file, word)) {
            // Nothing was rebuilt.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            // Who has just been looked at waits anew.
            Err(_) if since.elapsed() < ANEW && !directory.join("resumed").exists() => std::thread::sleep(LOOK),
            other => return other,
        }
    }
}

/// Lets a process go on that waits for its fate, and waits until it does. Gives the number of the first of its processes, here.
///
/// # Errors
/// A sentence. It is lost.
pub(crate) fn resume(directory: &Path, inner: &[u32]) -> Result<u32, String> {
    tell(directory, true).map_err(|error| format!("CRIU does not wait for it any more: {error}"))?;
    let since = Instant::now();
    while !directory.join("resumed").exists() {
        if since.elapsed() > PATIENCE {
            return Err(complaint(&directory.join(IMAGES).join("restore.log"), "CRIU does not let it go on"));
        }
        std::thread::sleep(LOOK);
    }
    go_on(directory, inner)
}

/// Has a process go on that CRIU is done with: it was stopped before it was written down. Gives the number of the first.
///
/// # Errors
/// A sentence. It has ended.
fn go_on(directory: &Path, inner: &[u32]) -> Result<u32, String> {
    let pids = numbers_here(directory, inner);
    for (at, pid) in pids.iter().enumerate() {
        // A child may have ended as soon as its parent went on.
        let continued = whimbrel_kernel::whole::signal(*pid, rustix::process::Signal::CONT);
        continued.or_else(|error| if at == 0 { Err(error.to_string()) } else { Ok(()) })?;
    }
    pids.first().copied().ok_or_else(|| "it ended as soon as it went on".to_owned())
}

/// What became of a process that a daemon before this one had rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It waits for its fate.
    Waits,
    /// It goes on.
    GoesOn,
    /// It is not there.
    Gone,
}

/// Finds out what became of a process that was rebuilt. That daemon may have told its fate as its last word, and CRIU be about to act on it; and a
/// process that goes on by it may not have been [woken](go_on) yet.
pub(crate) fn left(directory: &Path, inner: &[u32]) -> Left {
    let since = Instant::now();
    loop {
        if waits(directory) {
            return Left::Waits;
        }
        if directory.join("resumed").exists() {
            return go_on(directory, inner).map_or(Left::Gone, |_| Left::GoesOn);
        }
        let is_there = numbers_here(directory, inner).iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists());
        if !is_there || since.elapsed() > SETTLES_WITHIN {
            return Left::Gone;
        }
        std::thread::sleep(LOOK);
    }
}

/// The numbers that processes which were rebuilt have here, the first first.
pub(crate) fn numbers_here(directory: &Path, inner: &[u32]) -> Vec<u32> {
    let keeper = fs::read_to_string(directory.join("keeper")).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let Some(keeper) = keeper else { return inner.to_vec() };
    let child = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap_or_default();
    let first = child.split_whitespace().next().and_then(|pid| pid.parse().ok());
    first.map(|first| whimbrel_kernel::whole::outer_numbers(first, inner)).unwrap_or_default()
}

/// The file of a daemon's state has what CRIU needs whatever it does.
fn common(command: &mut Command, job: bool, talks: bool) {
    command.args(["--tcp-established", "--manage-cgroups=ignore", "-v2"]);
    if job {
        command.arg("--shell-job");
    }
    if talks {
        command.arg("--ext-unix-sk");
    }
}

fn enter(network: Option<OwnedFd>) -> Result<Option<Entered>, String> {
    let enter = |network: OwnedFd| Entered::descriptor(network.as_fd()).map_err(|error| error.to_string());
    network.map(enter).transpose()
}

pub(crate) fn network_of(pid: u32) -> Result<OwnedFd, String> {
    whimbrel_kernel::whole::network_of(pid).map_err(|error| error.to_string())
}

fn run(mut command: Command, network: Option<OwnedFd>, log: &Path) -> Result<(), String> {
    let _inside = enter(network)?;
    let output = command.stdin(Stdio::null()).current_dir("/").output();
    let output = output.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(complaint(log, String::from_utf8_lossy(&output.stderr).trim()))
}

/// What CRIU says is wrong, as far as it says so in its log.
fn complaint(log: &Path, otherwise: &str) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let errors: Vec<&str> = text.lines().filter(|line| line.contains("Error (")).collect();
    if errors.len() > 1 {
        tracing::info!("CRIU says: {}", errors.join("; "));
    }
    let said = if text.contains("Error (") { doctor::criu::complaint(&text) } else { otherwise };
    format!("CRIU: {said}")
}

fn numbers(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(version: &str) -> Criu {
        Criu { version: version.into() }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version("3.19").lock() == "skip" && version("4.2").lock() == "skip");
        assert!(version("3.17.1").lock() == "nftables" && version("3.9").lock() == "nftables");
        assert!(version("4.2").reads("3.17.1") && version("3.17.1").reads("3.17") && version("3.19").reads("3.9"));
        assert!(!version("3.17.1").reads("4.2"));
    }

    #[test]
    fn the_hook_waits_for_a_word_and_passes_it_on() {
        let directory = std::env::temp_dir().join(format!("whimbrel-hook-{}", std::process::id()));
        for (goes_on, status) in [(true, 0), (false, 1)] {
            super::super::make(&directory).expect("directory");
            assert!(!waits(&directory));
            mknodat(CWD, fate(&directory), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("fifo");
            assert!(tell(&directory, goes_on).is_err(), "nobody waits");
            fs::write(directory.join("hook"), HOOK).expect("hook");
            let start = |action: &str| {
                let mut command = Command::new("sh");
                command.arg(directory.join("hook")).env("CRTOOLS_SCRIPT_ACTION", action).env("CRTOOLS_INIT_PID", "7");
                command.spawn().expect("sh")
            };
            assert!(start("pre-restore").wait().expect("wait").success());
            let mut hook = start("post-restore");
            let since = Instant::now();
            let patience = Duration::from_secs(20);
            // Whoever has looked whether it waits, and died, has said nothing.
            let mut seen = 0;
            while seen < 3 {
                assert!(since.elapsed() < patience, "it does not wait");
                seen += usize::from(waits(&directory));
                std::thread::sleep(LOOK);
            }
            assert_eq!(fs::read_to_string(directory.join("rebuilt")).expect("rebuilt"), "7\n");
            while tell(&directory, goes_on).is_err() {
                assert!(since.elapsed() < patience, "it does not wait any more");
                std::thread::sleep(LOOK);
            }
            assert_eq!(hook.wait().expect("wait").code(), Some(status));
            let me = [std::process::id()];
            assert_eq!(left(&directory, &[u32::MAX]), Left::Gone, "nobody has this number");
            // Whoever has told it to go on, and died, has not seen that it does.
            let mut resume = start("post-resume");
            assert_eq!(left(&directory, &me), Left::GoesOn);
            assert!(resume.wait().expect("wait").success() && directory.join("resumed").exists());
        }
        super::super::remove(&directory).expect("removed");
    }

    #[test]
    fn the_hook_does_not_wait_where_nobody_can_tell_it_anything() {
        let directory = std::env::temp_dir().join(format!("whimbrel-lone-hook-{}", std::process::id()));
        super::super::make(&directory).expect("directory");
        mknodat(CWD, fate(&directory), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("fifo");
        fs::write(directory.join("hook"), HOOK).expect("hook");
        let mut command = Command::new("sh");
        command.arg(directory.join("hook")).env("CRTOOLS_SCRIPT_ACTION", "post-restore").env("CRTOOLS_INIT_PID", "7");
        let mut hook = command.stderr(Stdio::null()).spawn().expect("sh");
        let since = Instant::now();
        let late = || since.elapsed() > Duration::from_secs(20);
        let word = loop {
            match open_fate(&directory) {
                Ok(word) => break word,
                Err(error) => assert!(!late(), "it does not wait: {error}"),
            }
            std::thread::sleep(LOOK);
        };
        super::super::remove(&directory).expect("removed");
        drop(word);
        let status = loop {
            match hook.try_wait().expect("wait") {
                None if !late() => std::thread::sleep(LOOK),
                status => break status,
            }
        };
        if status.is_none() {
            hook.kill().expect("killed");
        }
        assert_eq!(status.expect("it ends").code(), Some(1), "CRIU ends the process by that");
    }
}
