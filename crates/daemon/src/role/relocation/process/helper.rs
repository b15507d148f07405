//! CRIU is run by a process of its own (decision 0040): this program in another role, which carries out one request and
//! ends.
//!
//! The daemon parses what strangers send, and CRIU needs every right that there is. So the daemon sends a request over
//! a UNIX socket, with the namespaces that it has opened, and the helper runs CRIU. Where systemd listens for it
//! (`whimbrel-criu.socket`), it starts the helper with rights that the daemon does not have; else the daemon starts it
//! itself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_ipc::{Lines, send_line};
use whimbrel_kernel::client;
use whimbrel_kernel::process_tree::{self, Namespace, Namespaces, ProcessTree};
use whimbrel_kernel::program::Inside;

use super::criu::{self, Subject, Tool, numbers};

/// Where systemd listens for it.
const SOCKET: &str = "/run/whimbrel-criu.sock";
/// The word that makes this program the helper.
const ROLE: &str = "criu-helper";
/// Longest request or answer, in bytes: the files that a process needs.
const LONGEST: usize = 16 << 20;
/// How long the other end may take to say something that it has begun.
const SAID_WITHIN: Duration = Duration::from_secs(10);

/// What the helper is asked for. What is done while a process stands still names the version that was found, which is
/// not tried once more.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Task {
    /// Whether CRIU works, and its version.
    Find,
    /// Whether there is all that it takes to dump.
    MayDump,
    /// Which of these files are not as they are needed.
    Lacking { files: Vec<(PathBuf, Option<u64>)> },
    /// [`Tool::dump_before`]; with its network, PID and mount namespaces.
    DumpBefore { version: String, process: Process, directory: PathBuf },
    /// [`Tool::dump`]; with the same.
    Dump { version: String, process: Process, directory: PathBuf, before: bool },
    /// [`Tool::rebuild`]; with the network namespace that it is to be in.
    Rebuild { version: String, directory: PathBuf, job: bool, talks: bool, apart: bool },
    /// [`criu::end_lock`]; with its network namespace.
    EndLock { inner: u32 },
}

/// A [`Subject`] except its namespaces.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Process {
    root: u32,
    inner: u32,
    job: bool,
    talks: bool,
}

type Answer = Result<Vec<String>, String>;

/// A CRIU that works on this host, as the daemon knows it.
#[derive(Clone, Debug)]
pub(crate) struct Criu {
    pub(crate) version: String,
}

impl Criu {
    /// Asks whether there is one.
    ///
    /// # Errors
    /// A sentence: why not.
    pub(crate) fn find() -> Result<Self, String> {
        let version = ask(&Task::Find, &[])?.into_iter().next();
        version.map(|version| Self { version }).ok_or_else(|| "CRIU: no version".to_owned())
    }

    /// Whether images that another version has made can be expected to be read.
    pub(crate) fn reads(&self, other: &str) -> bool {
        numbers(&self.version) >= numbers(other)
    }

    /// Whether connections of a process that it has written down are cut off until [`end_lock`] is called.
    pub(crate) fn leaves_lock(&self) -> bool {
        criu::leaves_lock(&self.version)
    }

    /// Whether there is all that it takes to dump a process.
    ///
    /// # Errors
    /// A sentence: what is missing.
    pub(crate) fn may_dump(&self) -> Result<(), String> {
        ask(&Task::MayDump, &[]).map(|_| ())
    }

    /// [`Tool::dump_before`].
    ///
    /// # Errors
    /// A sentence. The process runs on.
    pub(crate) fn dump_before(&self, of: &ProcessTree, directory: &Path) -> Result<(), String> {
        let task = Task::DumpBefore {
            version: self.version.clone(),
            process: Process::of(of),
            directory: directory.to_owned(),
        };
        ask(&task, &descriptors(&of.namespaces)).map(|_| ())
    }

    /// [`Tool::dump`].
    ///
    /// # Errors
    /// A sentence. The process stands still, and its sockets may rest.
    pub(crate) fn dump(&self, of: &ProcessTree, directory: &Path, before: bool) -> Result<(), String> {
        let (version, directory) = (self.version.clone(), directory.to_owned());
        let task = Task::Dump { version, process: Process::of(of), directory, before };
        ask(&task, &descriptors(&of.namespaces)).map(|_| ())
    }

    /// [`Tool::rebuild`]; `network`: where it is to be, if not in this one's.
    ///
    /// # Errors
    /// A sentence. Nothing is left.
    pub(crate) fn rebuild(
        &self,
        directory: &Path,
        (job, talks): (bool, bool),
        apart: bool,
        network: Option<OwnedFd>,
    ) -> Result<(), String> {
        let (version, directory) = (self.version.clone(), directory.to_owned());
        let task = Task::Rebuild { version, directory, job, talks, apart };
        let network = match network {
            Some(network) => network,
            // The helper may be in another one than the daemon.
            None => criu::network_of(std::process::id())?,
        };
        ask(&task, &[network.as_fd()]).map(|_| ())
    }
}

/// Which of these files are not here as they are needed, each with why: as CRIU sees them.
///
/// # Errors
/// A sentence: the helper could not be asked.
pub(crate) fn lacking(files: &[(PathBuf, Option<u64>)]) -> Result<Vec<String>, String> {
    ask(&Task::Lacking { files: files.to_vec() }, &[])
}

/// [`criu::end_lock`].
pub(crate) fn end_lock(inner: u32, network: BorrowedFd<'_>) {
    if let Err(why) = ask(&Task::EndLock { inner }, &[network]) {
        tracing::warn!(%why, "CRIU's lock of the connections of process {inner} stays");
    }
}

impl Process {
    fn of(whole: &ProcessTree) -> Self {
        let inner = whole.inner.first().copied().unwrap_or(whole.root);
        Self { root: whole.root, inner, job: !whole.leads, talks: whole.talks }
    }
}

fn descriptors(namespaces: &Namespaces) -> [BorrowedFd<'_>; 3] {
    [namespaces.network.as_fd(), namespaces.pid.as_fd(), namespaces.mount.as_fd()]
}

/// Has the helper do something, and waits for it.
fn ask(task: &Task, descriptors: &[BorrowedFd<'_>]) -> Answer {
    let (stream, child) = connect().map_err(|error| format!("the helper that runs CRIU does not start: {error}"))?;
    let answer = converse(&stream, task, descriptors);
    drop(stream);
    if let Some(mut child) = child {
        let _ = child.wait();
    }
    answer.map_err(|error| format!("the helper that runs CRIU does not answer: {error}"))?
}

fn converse(stream: &UnixStream, task: &Task, descriptors: &[BorrowedFd<'_>]) -> io::Result<Answer> {
    write(stream, &serde_json::to_string(task)?, descriptors)?;
    let (text, _) = read(stream)?;
    Ok(serde_json::from_str(&text)?)
}

/// Systemd's helper, or else one of this process's own.
fn connect() -> io::Result<(UnixStream, Option<Child>)> {
    match UnixStream::connect(SOCKET) {
        Ok(stream) => {
            let listens = client::credentials(stream.as_fd()).map_err(io::Error::other)?;
            match listens.uid {
                0 => Ok((stream, None)),
                other => Err(io::Error::other(format!("{SOCKET} is of user {other}"))),
            }
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            let (ours, theirs) = UnixStream::pair()?;
            let mut command = Command::new("/proc/self/exe");
            command.arg(ROLE).stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).current_dir("/");
            Ok((ours, Some(command.spawn()?)))
        }
        Err(error) => Err(error),
    }
}

fn write(stream: &UnixStream, text: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let line = format!("{text}\n");
    let mut sent = send_line(stream, line.as_bytes(), descriptors)?;
    while sent < line.len() {
        sent += send_line(stream, &line.as_bytes()[sent..], &[])?;
    }
    Ok(())
}

fn read(stream: &UnixStream) -> io::Result<(String, Vec<OwnedFd>)> {
    let mut lines = Lines::default();
    loop {
        if let Some(line) = lines.take() {
            return Ok((line.text, line.descriptors));
        }
        if lines.len() > LONGEST || lines.read(stream)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The helper: reads one request from its standard input, which is a socket, does what it says, answers, and ends.
///
/// # Errors
/// A sentence: nobody asks who may, or nothing that is known.
pub fn serve() -> Result<(), String> {
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let client = client::credentials(input.as_fd())
        .map_err(|_| "this is started by the daemon, or by whimbrel-criu.socket, to run CRIU".to_owned())?;
    if client.uid != 0 && client.uid != rustix::process::geteuid().as_raw() {
        return Err(format!("user {} may not ask for this", client.uid));
    }
    let stream = UnixStream::from(input);
    stream.set_read_timeout(Some(SAID_WITHIN)).map_err(|error| error.to_string())?;
    let (text, descriptors) = read(&stream).map_err(|error| format!("no request has come: {error}"))?;
    let answer = serde_json::from_str::<Task>(&text).map_err(|error| format!("no request that is known: {error}"));
    let answer = answer.and_then(|task| task.carry_out(descriptors));
    let text = serde_json::to_string(&answer).map_err(|error| error.to_string())?;
    // Who asked may have died. What was done is found by the next daemon.
    let _ = write(&stream, &text, &[]);
    Ok(())
}

impl Task {
    fn carry_out(self, descriptors: Vec<OwnedFd>) -> Answer {
        let done = |()| Vec::new();
        match self {
            Self::Find => Tool::find().map(|tool| vec![tool.version]),
            Self::MayDump => Tool::find()?.may_dump().map(done),
            Self::Lacking { files } => Ok(process_tree::lacking(&files)),
            Self::DumpBefore { version, process, directory } => {
                let (subject, directory) = (process.with(descriptors)?, checked(&directory)?);
                Tool::known(version)?.dump_before(&subject, &directory).map(done)
            }
            Self::Dump { version, process, directory, before } => {
                let (subject, directory) = (process.with(descriptors)?, checked(&directory)?);
                Tool::known(version)?.dump(&subject, &directory, before).map(done)
            }
            Self::Rebuild { version, directory, job, talks, apart } => {
                let [network] = namespaces(descriptors)?;
                Tool::known(version)?.rebuild(&checked(&directory)?, job, talks, apart, &network).map(done)
            }
            Self::EndLock { inner } => {
                let [network] = namespaces(descriptors)?;
                criu::end_lock(inner, Inside { network: Some(network.as_fd()), ..Inside::default() });
                Ok(Vec::new())
            }
        }
    }
}

impl Process {
    /// With the namespaces that came along.
    fn with(self, descriptors: Vec<OwnedFd>) -> Result<Subject, String> {
        let [network, pid, mount] = namespaces(descriptors)?;
        let Self { root, inner, job, talks } = self;
        Subject::new((root, inner), Namespaces { network, pid, mount }, job, talks)
    }
}

/// As many descriptors as are needed, each of a namespace of this user namespace.
fn namespaces<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[Namespace; N], String> {
    let found: Result<Vec<Namespace>, _> = descriptors.into_iter().map(Namespace::new).collect();
    let found = found.map_err(|error| error.to_string())?;
    <[Namespace; N]>::try_from(found).map_err(|found| format!("{} namespaces instead of {N}", found.len()))
}

/// The directory of a process on its way, as [`make`](super::make) makes it: root's, and closed to others.
fn checked(directory: &Path) -> Result<PathBuf, String> {
    let wrong = |why: String| format!("{}: {why}", directory.display());
    let path = directory.canonicalize().map_err(|error| wrong(error.to_string()))?;
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_named = ["in-", "out-"].iter().any(|start| name(&path).starts_with(start));
    if !is_named || path.parent().map(name).as_deref() != Some("processes") {
        return Err(wrong("it is no directory of a process on its way".to_owned()));
    }
    for place in [path.as_path(), path.parent().unwrap_or(&path)] {
        let found = place.symlink_metadata().map_err(|error| wrong(error.to_string()))?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
            return Err(wrong("it is open to others".to_owned()));
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_comes_with_a_request_is_looked_at() {
        let file = || OwnedFd::from(File::open("/dev/null").expect("open"));
        let own = || OwnedFd::from(File::open("/proc/self/ns/net").expect("its own"));
        assert!(namespaces::<1>(vec![own()]).is_ok());
        for bad in [vec![], vec![file()], vec![own(), own()]] {
            assert!(namespaces::<1>(bad).is_err());
        }
        let process = Process { root: 1, inner: 1, job: false, talks: false };
        assert!(process.with(vec![own(), own()]).is_err());
        for bad in
            ["", "{}", "\"rm\"", r#"{"dump":{}}"#, r#"{"end-lock":{"inner":-1}}"#, r#"{"end-lock":{"inner":1,"x":1}}"#]
        {
            assert!(serde_json::from_str::<Task>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn images_go_into_directories_of_the_daemon_alone() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-helper-{}", std::process::id()));
        let directory = super::super::directory(&run_dir).join("out-7");
        super::super::make(&directory).expect("directory");
        let path = checked(&directory).expect("as it is made");
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
        mode(&path, 0o755);
        assert!(checked(&directory).is_err(), "others may look into it");
        mode(&path, 0o700);
        let other = super::super::directory(&run_dir).join("elsewhere");
        super::super::make(&other).expect("directory");
        for bad in [other.as_path(), &run_dir, Path::new("/"), Path::new("/etc"), &path.join("missing")] {
            assert!(checked(bad).is_err(), "{bad:?}");
        }
        // A link is what it leads to.
        std::os::unix::fs::symlink("/etc", super::super::directory(&run_dir).join("out-8")).expect("link");
        assert!(checked(&super::super::directory(&run_dir).join("out-8")).is_err());
        fs::remove_dir_all(&run_dir).expect("removed");
    }

    #[test]
    fn a_request_and_its_answer_go_over_a_socket_with_descriptors() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let files = vec![(PathBuf::from("/"), None), (PathBuf::from("/no/such/file"), Some(7))];
        let helper = std::thread::spawn(move || {
            let (text, descriptors) = read(&theirs).expect("a request");
            let task: Task = serde_json::from_str(&text).expect("known");
            write(&theirs, &serde_json::to_string(&task.carry_out(descriptors)).expect("json"), &[]).expect("written");
        });
        let null = File::open("/dev/null").expect("open");
        let answer = converse(&ours, &Task::Lacking { files }, &[null.as_fd()]).expect("an answer");
        helper.join().expect("thread");
        assert_eq!(answer, Ok(vec!["/no/such/file is missing".to_owned()]));
        // Who has gone says nothing.
        let (ours, theirs) = UnixStream::pair().expect("pair");
        drop(theirs);
        assert!(converse(&ours, &Task::Find, &[]).is_err());
    }
}
