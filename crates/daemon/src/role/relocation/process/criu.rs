//! Running CRIU, which the [helper](super::helper) does.
//!
//! It is run inside the network namespace of the process, and inside its PID and mount namespaces where those are
//! others than this one's: seen from outside it would take the namespaces along. These are the ones that were opened
//! when the process was looked at, whatever it has done since; and CRIU is the one of this host, by its descriptor
//! ([`Program`]).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use whimbrel_kernel::process_tree::{Namespace, Namespaces};
use whimbrel_kernel::program::{Inside, Program};

use super::{BEFORE, IMAGES, tool};

/// How long a process that was rebuilt may take to go on.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the hook may take to wait anew.
const ANEW: Duration = Duration::from_millis(200);
/// How long CRIU may take to act on what it was told by a daemon that has died since.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);
/// Between looks at what CRIU has done.
const LOOK: Duration = Duration::from_millis(2);

/// What CRIU runs when it has rebuilt a process, which waits then, at rest, until it is told its fate. It outlives the
/// daemon. Where nobody can tell it any more the process ends.
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
pub(crate) struct Tool {
    pub(crate) version: String,
    program: Program,
}

/// A process, as CRIU has to be told of it.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// The first process, in this process's PID namespace, and in its own.
    root: u32,
    inner: u32,
    /// The namespaces that it was seen in.
    namespaces: Namespaces,
    /// Its PID or mount namespace is another than this one's.
    apart: bool,
    job: bool,
    talks: bool,
}

impl Subject {
    /// `numbers`: of the first process, in this process's PID namespace and in its own.
    ///
    /// # Errors
    /// A sentence: this process's own namespaces cannot be looked at.
    pub(crate) fn new(numbers: (u32, u32), namespaces: Namespaces, job: bool, talks: bool) -> Result<Self, String> {
        let apart = namespaces.are_apart().map_err(|error| error.to_string())?;
        Ok(Self { root: numbers.0, inner: numbers.1, namespaces, apart, job, talks })
    }

    /// Where CRIU is run.
    fn inside(&self) -> Inside<'_> {
        let Namespaces { network, pid, mount } = &self.namespaces;
        let (pid, mount) = if self.apart { (Some(pid), Some(mount)) } else { (None, None) };
        Inside { network: Some(network.as_fd()), pid, mount }
    }

    /// Whether it is where it was seen.
    fn has_stayed(&self) -> Result<(), String> {
        match Namespaces::of(self.root) {
            Ok(now) if now == self.namespaces => Ok(()),
            Ok(_) => Err("it has gone into other namespaces meanwhile".to_owned()),
            Err(unfit) => Err(unfit.to_string()),
        }
    }
}

impl Tool {
    /// Asks CRIU whether it works here.
    ///
    /// # Errors
    /// A sentence: why it does not.
    pub(crate) fn find() -> Result<Self, String> {
        tool::usable().map(|(version, program)| Self { version, program }).map_err(|why| format!("CRIU: {why}"))
    }

    /// The CRIU of this host, which was [found](Self::find) to be of this version.
    ///
    /// # Errors
    /// A sentence: it is not there any more, or not root's alone.
    pub(crate) fn known(version: String) -> Result<Self, String> {
        let program = Program::find("criu").map_err(|why| format!("CRIU: {why}"))?;
        Ok(Self { version, program })
    }

    /// What CRIU does so that nothing comes in meanwhile. The data plane does that, but before 3.19 CRIU does not take
    /// that for an answer.
    fn lock(&self) -> &'static str {
        if leaves_lock(&self.version) { "nftables" } else { "skip" }
    }

    /// Whether there is all that it takes to dump a process.
    ///
    /// # Errors
    /// A sentence: what is missing.
    pub(crate) fn may_dump(&self) -> Result<(), String> {
        if !leaves_lock(&self.version) {
            return Ok(());
        }
        let nft = Program::find("nft").map(|_| ());
        nft.map_err(|why| format!("CRIU {} locks by nftables, and nothing could end that: {why}", self.version))
    }

    /// Writes the memory of a process that runs down, to begin with. It stands still for some milliseconds.
    ///
    /// # Errors
    /// A sentence. The process runs on.
    pub(crate) fn dump_before(&self, of: &Subject, directory: &Path) -> Result<(), String> {
        let directory = directory.join(BEFORE);
        let mut arguments = self.arguments(of, "pre-dump", &directory);
        arguments.push("--track-mem".into());
        of.has_stayed()?;
        run(&self.program, &arguments, of.inside(), &directory.join("pre-dump.log"))
    }

    /// Writes a process down that stands still, and leaves it so, its TCP sockets at rest.
    ///
    /// # Errors
    /// A sentence. The process stands still, and its sockets may rest.
    pub(crate) fn dump(&self, of: &Subject, directory: &Path, before: bool) -> Result<(), String> {
        let directory = directory.join(IMAGES);
        let mut arguments = self.arguments(of, "dump", &directory);
        arguments.push("--leave-stopped".into());
        if before {
            let earlier = format!("../{BEFORE}");
            arguments.extend(["--track-mem".into(), "--prev-images-dir".into(), earlier.into()]);
        }
        of.has_stayed()?;
        let dumped = run(&self.program, &arguments, of.inside(), &directory.join("dump.log"));
        if leaves_lock(&self.version) {
            end_lock(of.inner, of.inside());
        }
        // Somebody else's SIGCONT may have let it do something before CRIU had it.
        dumped.and_then(|()| of.has_stayed())
    }

    fn arguments(&self, of: &Subject, what: &str, directory: &Path) -> Vec<OsString> {
        let mut arguments = vec![what.into(), "--tree".into(), of.inner.to_string().into(), "--images-dir".into()];
        arguments.push(directory.into());
        arguments.extend(["--network-lock", self.lock(), "--log-file"].map(OsString::from));
        arguments.push(format!("{what}.log").into());
        arguments.extend(common(of.job, of.talks));
        arguments
    }

    /// Rebuilds a process, which rests then until [`tell`] is called. `apart`: in a PID namespace of its own, since
    /// somebody has its number here. `network`: the network namespace that it is to be in.
    ///
    /// # Errors
    /// A sentence. Nothing is left.
    pub(crate) fn rebuild(
        &self,
        directory: &Path,
        job: bool,
        talks: bool,
        apart: bool,
        network: &Namespace,
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
        let mut arguments = vec!["restore".into(), "--images-dir".into(), images.clone().into()];
        arguments.extend(["--log-file", "restore.log", "--action-script"].map(OsString::from));
        arguments.push(hook.into());
        if !apart {
            // In a PID namespace of its own CRIU is the first process, and has to stay.
            arguments.push("--restore-detached".into());
        }
        arguments.extend(common(job, talks));
        let inside = Inside { network: Some(network.as_fd()), ..Inside::default() };
        let child = if apart {
            let unshare = Program::find("unshare").map_err(|why| why.to_string())?;
            let before = ["--pid", "--fork", "--mount-proc"].map(OsString::from);
            let program = self.program.path().as_os_str().to_owned();
            unshare.spawn(&before.into_iter().chain([program]).chain(arguments).collect::<Vec<_>>(), inside)
        } else {
            self.program.spawn(&arguments, inside)
        };
        let mut child = child.map_err(|error| failed("criu", error))?;
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

/// Whether connections of a process that this version has written down are cut off until [`end_lock`] is called.
pub(crate) fn leaves_lock(version: &str) -> bool {
    numbers(version) < (3, 19)
}

/// Ends what CRIU has made so that nothing comes for the connections of a process with this number. `inside`: where its
/// sockets are.
pub(crate) fn end_lock(inner: u32, inside: Inside<'_>) {
    let arguments = ["delete".into(), "table".into(), "inet".into(), format!("CRIU-{inner}").into()];
    // Where it has failed there is none.
    let _ =
        Program::find("nft").map(|nft| nft.output(&arguments, Inside { network: inside.network, ..Inside::default() }));
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

/// Lets a process go on that waits for its fate, and waits until it does. Gives the number of the first of its
/// processes, here.
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

/// Has a process go on that CRIU is done with: it was stopped before it was written down. Gives the number of the
/// first.
///
/// # Errors
/// A sentence. It has ended.
fn go_on(directory: &Path, inner: &[u32]) -> Result<u32, String> {
    let pids = numbers_here(directory, inner);
    for (at, pid) in pids.iter().enumerate() {
        // A child may have ended as soon as its parent went on.
        let continued = whimbrel_kernel::process_tree::signal(*pid, rustix::process::Signal::CONT);
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

/// Finds out what became of a process that was rebuilt. That daemon may have told its fate as its last word, and CRIU
/// be about to act on it; and a process that goes on by it may not have been [woken](go_on) yet.
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
    first.map(|first| whimbrel_kernel::process_tree::outer_numbers(first, inner)).unwrap_or_default()
}

/// What CRIU is told whatever it does.
fn common(job: bool, talks: bool) -> impl Iterator<Item = OsString> {
    let always = ["--tcp-established", "--manage-cgroups=ignore", "-v2"].map(OsString::from);
    always.into_iter().chain(job.then(|| "--shell-job".into())).chain(talks.then(|| "--ext-unix-sk".into()))
}

pub(crate) fn network_of(pid: u32) -> Result<OwnedFd, String> {
    whimbrel_kernel::process_tree::network_of(pid).map_err(|error| error.to_string())
}

fn run(program: &Program, arguments: &[OsString], inside: Inside<'_>, log: &Path) -> Result<(), String> {
    let output = program.output(arguments, inside);
    let output = output.map_err(|error| format!("{}: {error}", program.path().display()))?;
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
    let said = if text.contains("Error (") { tool::complaint(&text) } else { otherwise };
    format!("CRIU: {said}")
}

/// The first two numbers of a version.
pub(crate) fn numbers(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use super::super::helper::Criu;
    use super::*;

    fn version(version: &str) -> Tool {
        let program = Program::open(Path::new("/bin/sh")).expect("it is root's");
        Tool { version: version.into(), program }
    }

    /// Of a service that has a mount namespace of its own, as by `PrivateTmp=`: once it was looked at it makes a user
    /// and a mount namespace, in which `criu` is a program of its own.
    const HOSTILE: &str = r#"
echo here; read go
exec unshare -Urm sh -c '
for place in $(echo "$PATH" | tr : " "); do [ ! -e "$place/criu" ] || mount --bind theirs "$place/criu"; done
mount -t tmpfs none /usr/local/bin && cp theirs /usr/local/bin/criu
echo there; read end'
"#;

    #[test]
    #[ignore = "needs root: it makes namespaces"]
    fn a_process_that_goes_elsewhere_while_it_is_moved_has_nothing_of_its_own_run_as_root() {
        let directory = std::env::temp_dir().join(format!("whimbrel-hostile-{}", std::process::id()));
        super::super::make(&directory).expect("directory");
        let (proof, theirs) = (directory.join("proof"), directory.join("theirs"));
        fs::write(&theirs, format!("#!/bin/sh\nid -u >{}\n", proof.display())).expect("a script");
        for path in [&directory, &theirs] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("mode");
        }
        let mut process = Command::new("unshare");
        process.args(["--mount", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c"]);
        process.arg(HOSTILE).current_dir(&directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = process.spawn().expect("unshare");
        let (mut input, output) = (process.stdin.take().expect("stdin"), process.stdout.take().expect("stdout"));
        let mut said = BufReader::new(output).lines().map(|line| line.expect("a line"));
        assert_eq!(said.next().as_deref(), Some("here"));
        let root = process.id();
        let namespaces = Namespaces::of(root).expect("there is nothing wrong with it yet");
        assert!(namespaces.are_apart().expect("looked at"));
        let subject = Subject { root, inner: root, namespaces, apart: true, job: true, talks: false };
        subject.has_stayed().expect("it has");
        // What runs inside is this host's, by the namespaces that were seen.
        let shell = version("4.2").program;
        let look = ["-c", "readlink /proc/self/ns/mnt; id -u"].map(OsString::from);
        let inside =
            || String::from_utf8(shell.output(&look, subject.inside()).expect("it runs").stdout).expect("text");
        let there = fs::read_link(format!("/proc/{root}/ns/mnt")).expect("its namespace");
        assert_eq!(inside(), format!("{}\n0\n", there.display()));
        input.write_all(b"go\n").expect("written");
        assert_eq!(said.next().as_deref(), Some("there"));
        assert_ne!(fs::read_link(format!("/proc/{root}/ns/mnt")).expect("its namespace"), there);
        for dumped in
            [version("4.2").dump_before(&subject, &directory), version("4.2").dump(&subject, &directory, false)]
        {
            assert!(dumped.expect_err("it has gone").contains("user namespace"));
        }
        assert!(!proof.exists(), "its own program was run as {:?}", fs::read_to_string(&proof));
        assert_eq!(inside(), format!("{}\n0\n", there.display()), "wherever it is");
        assert!(Namespaces::of(root).is_err(), "what it has made is not entered");
        process.kill().expect("killed");
        process.wait().expect("wait");
        super::super::remove(&directory).expect("removed");
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version("3.19").lock() == "skip" && version("4.2").lock() == "skip");
        assert!(version("3.17.1").lock() == "nftables" && version("3.9").lock() == "nftables");
        let reads = |version: &str, other: &str| Criu { version: version.to_owned() }.reads(other);
        assert!(reads("4.2", "3.17.1") && reads("3.17.1", "3.17") && reads("3.19", "3.9"));
        assert!(!reads("3.17.1", "4.2"));
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
