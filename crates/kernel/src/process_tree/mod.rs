//! Whole processes: what belongs to one that is to go to another host, what of it cannot go, and holding it still
//! meanwhile.
//!
//! CRIU writes processes down and rebuilds them. What it cannot, and what it does but should not, is found here before
//! anything is stopped: a pipe to a process that stays is silently gone after CRIU has rebuilt its other end.

mod ends;
mod namespaces;
mod quiet;
mod seen;
mod sockets;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use whimbrel_wire::snapshot::{Body, Snapshot};
use whimbrel_wire::{FlowTuple, Transport};

use crate::checkpoint::{self, Checkpoint, Defaults};
use crate::duplicated;
use crate::error::Error;
use crate::namespace::Entered;
use crate::process;
use crate::sock_diag::SockDiag;
pub use ends::End;
pub use namespaces::{Identity, Namespace, Namespaces, identity_of, own_root};
pub use quiet::grow_quiet;
pub use seen::Seen;
use sockets::{Socket, Sockets, Unlisted};

/// Device files that every host has, and that hold nothing of whoever has them open.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// What is behind a descriptor and cannot be written down.
const STRANGE: [&str; 6] = ["[io_uring]", "bpf-", "[perf_event]", "[userfaultfd]", "[fanotify]", "kvm-"];
/// How often it is looked for a socket that is not listed.
const LOOKS: usize = 3;
/// How long processes may take to be gone that were killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// How much goes with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// It alone: it may have no children.
    Alone,
    /// It, its children, their children, and so on.
    Tree,
    /// All of the cgroup that it is in, which has to be one tree.
    Cgroup,
}

/// A process that can go, as far as can be seen, with what goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessTree {
    /// The first of the processes.
    pub root: u32,
    /// All of them, in the PID namespace of the calling process.
    pub pids: Vec<u32>,
    /// Their numbers in their own.
    pub inner: Vec<u32>,
    /// The name of the first.
    pub name: String,
    /// When each was started ([`started`]): what tells it from a later one of its number.
    pub started: Vec<Option<u64>>,
    /// The namespaces that all of them are in, open.
    pub namespaces: Namespaces,
    /// They are in another PID or mount namespace than the calling process.
    pub apart: bool,
    /// The first leads its session.
    pub leads: bool,
    /// One has a UNIX datagram socket whose other end stays, as that of the system's log.
    pub talks: bool,
    /// Their connections.
    pub flows: Vec<FlowTuple>,
    /// Their sockets without another end.
    pub ends: Vec<End>,
    /// Those of processes that stay, in the same network namespace.
    pub others: Vec<End>,
    /// Where sockets of TCP are bound, or were, that are over, were never connected or wait for nobody: CRIU binds
    /// those again.
    pub idle: Vec<SocketAddr>,
    /// Files that they need, with the length of those that have one and that they do not write to.
    pub files: Vec<(PathBuf, Option<u64>)>,
    /// Memory that they have in use, in bytes.
    pub memory: u64,
}

/// Why a process cannot go, as far as can be seen without stopping it.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// It is not there.
    #[error("there is no process {0}")]
    Gone(u32),
    /// It is there, and not this one's to look into.
    #[error(
        "process {0} may not be looked into: it is of a user namespace, as of a container, that is not this daemon's, or the daemon lacks CAP_SYS_PTRACE"
    )]
    Closed(u32),
    /// Others would be left behind, or go along unasked.
    #[error("{0}")]
    Company(String),
    /// Something that it has is tied to this host.
    #[error("{0}")]
    Tied(String),
    /// The kernel could not be asked.
    #[error(transparent)]
    Kernel(#[from] Error),
}

fn tied(sentence: impl Into<String>) -> Unfit {
    Unfit::Tied(sentence.into())
}

/// Looks at a process and what goes with it. Nothing is changed.
///
/// # Errors
/// [`Unfit`].
pub fn look(pid: u32, scope: Scope) -> Result<ProcessTree, Unfit> {
    let pids = members(pid, scope)?;
    // Of a cgroup any process may have been named.
    let root = pids.first().copied().unwrap_or(pid);
    let inner = pids.iter().map(|pid| inner_number(*pid)).collect::<Option<Vec<_>>>().ok_or(Unfit::Gone(root))?;
    let started = pids.iter().map(|pid| started(*pid)).collect();
    let namespaces = Namespaces::of(root)?;
    // What has ended, and nobody has waited for yet, is in no namespace any more, and goes along as that.
    for pid in pids.iter().filter(|pid| !is_over(**pid)) {
        if Namespaces::of(*pid)? != namespaces {
            return Err(tied(format!("process {pid} is in other namespaces than process {root}")));
        }
    }
    let apart = namespaces.are_apart()?;
    let mut process_tree = ProcessTree {
        root,
        name: process::name_of(root),
        started,
        namespaces,
        apart,
        leads: session(root) == Some(root),
        talks: false,
        flows: Vec::new(),
        ends: Vec::new(),
        others: Vec::new(),
        idle: Vec::new(),
        files: Vec::new(),
        memory: pids.iter().map(|pid| memory(*pid)).sum(),
        inner,
        pids,
    };
    inspect_descriptors(&mut process_tree)?;
    // What one reads another may write to, and then it is of no length: those come first.
    process_tree.files.sort();
    process_tree.files.dedup_by(|next, kept| next.0 == kept.0);
    Ok(process_tree)
}

impl ProcessTree {
    /// Looks once more at what was seen, now that the processes stand still and nothing of it changes any more.
    ///
    /// # Errors
    /// [`Unfit`]: something is not as it was.
    pub fn see_again(&self) -> Result<(), Unfit> {
        let now = look(self.root, Scope::Tree)?;
        if now.pids != self.pids || now.inner != self.inner || now.started != self.started {
            return Err(tied("it has started or ended processes meanwhile; try again"));
        }
        if now.namespaces != self.namespaces {
            return Err(tied("it has gone into other namespaces meanwhile"));
        }
        if now.flows != self.flows || now.ends != self.ends {
            return Err(tied("it has opened or closed connections meanwhile; try again"));
        }
        match queued(&self.pids)? {
            Some((at, waiting)) => Err(tied(format!("{waiting} connections have come to {at} meanwhile; try again"))),
            None => Ok(()),
        }
    }
}

/// The processes that go, the first first.
fn members(root: u32, scope: Scope) -> Result<Vec<u32>, Unfit> {
    if root == 1 {
        return Err(Unfit::Company("process 1 starts and ends all others of this host, and cannot leave it".into()));
    }
    if let Err(error) = fs::metadata(format!("/proc/{root}/ns/net")) {
        let closed = error.kind() == io::ErrorKind::PermissionDenied;
        return Err(if closed { Unfit::Closed(root) } else { Unfit::Gone(root) });
    }
    if root == std::process::id() {
        return Err(Unfit::Company(format!("process {root} is Whimbrel itself")));
    }
    let parents = parents();
    let pids = descendants(root, &parents);
    if pids.contains(&std::process::id()) {
        return Err(Unfit::Company(format!("process {root} has started Whimbrel itself, which stays")));
    }
    match scope {
        Scope::Alone if pids.len() > 1 => Err(Unfit::Company(format!(
            "process {root} has {} descendants, which would be left behind: `--tree` takes them along",
            pids.len() - 1
        ))),
        Scope::Alone | Scope::Tree => Ok(pids),
        Scope::Cgroup => {
            let cgroup = process::cgroup_of(root);
            if matches!(cgroup.as_str(), "" | "/") {
                return Err(Unfit::Company(format!(
                    "process {root} is in no cgroup of its own (cgroup v2), only in that of all processes"
                )));
            }
            let all: BTreeSet<u32> = parents.keys().copied().filter(|pid| process::cgroup_of(*pid) == cgroup).collect();
            let mut tops = all.iter().filter(|pid| parents.get(pid).is_none_or(|parent| !all.contains(parent)));
            match (tops.next(), tops.next()) {
                (Some(top), None) if *top == root => {}
                (Some(top), None) => return members(*top, Scope::Cgroup),
                _ => {
                    return Err(Unfit::Company(format!(
                        "the processes of the cgroup {cgroup} are several trees, which cannot go as one"
                    )));
                }
            }
            match pids.iter().find(|pid| !all.contains(pid)) {
                Some(other) => Err(Unfit::Company(format!(
                    "process {other} is a descendant of process {root}, and not in its cgroup {cgroup}"
                ))),
                None => Ok(pids),
            }
        }
    }
}

/// A process and its descendants, the first first.
fn descendants(root: u32, parents: &HashMap<u32, u32>) -> Vec<u32> {
    let mut pids = vec![root];
    let mut at = 0;
    while let Some(parent) = pids.get(at).copied() {
        let mut children: Vec<u32> = parents.iter().filter(|(_, of)| **of == parent).map(|(pid, _)| *pid).collect();
        children.sort_unstable();
        pids.extend(children);
        at += 1;
    }
    pids
}

/// Goes through all that the processes have open.
fn inspect_descriptors(process_tree: &mut ProcessTree) -> Result<(), Unfit> {
    let members: HashSet<u32> = process_tree.pids.iter().copied().collect();
    let mut sockets = Sockets::of(process_tree.root)?;
    // Each with who has it, and as which descriptor.
    let mut pipes: HashMap<String, (u32, String)> = HashMap::new();
    let mut inodes: HashMap<u32, (u32, String)> = HashMap::new();
    let mut diagnosis = {
        let _inside = Entered::descriptor(network_of(process_tree.root)?.as_fd())?;
        SockDiag::open()?
    };
    let mut terminal = None;
    let mut has_master = false;
    for pid in process_tree.pids.iter().filter(|pid| !is_over(**pid)) {
        let of = |number: &str| format!("descriptor {number} of process {pid} ({})", process::name_of(*pid));
        for (number, link) in links(*pid).ok_or(Unfit::Gone(*pid))? {
            let text = link.to_string_lossy().into_owned();
            if let Some(inode) = process::socket_inode(&link) {
                let same = || fs::read_link(format!("/proc/{pid}/fd/{number}")).is_ok_and(|now| now == link);
                let mut looks = 0;
                // A server accepts and ends connections while it is looked at, and a list that changes while it is read
                // lacks some.
                while sockets.find(inode).is_none() && looks < LOOKS && same() {
                    sockets.check_again(process_tree.root);
                    looks += 1;
                }
                if sockets.find(inode).is_none() && !same() {
                    continue;
                }
                inodes.entry(inode).or_insert_with(|| (*pid, number.clone()));
                match sockets.find(inode) {
                    Some(Socket::Open(flow)) => process_tree.flows.push(*flow),
                    Some(Socket::Opening) => {
                        return Err(tied(format!("{} is a connection that is not open yet", of(&number))));
                    }
                    Some(Socket::Listening(..) | Socket::Bound(_) | Socket::Other) => {}
                    None => match sockets.inspect_unlisted(*pid, &number, inode)? {
                        Unlisted::Idle(bound) => process_tree.idle.extend(bound),
                        Unlisted::Unread(bytes) => {
                            return Err(tied(format!(
                                "{} is a connection that is over, and {bytes} bytes of it were not read yet; try again",
                                of(&number)
                            )));
                        }
                        Unlisted::Gone => continue,
                        Unlisted::Changing => {
                            return Err(tied(format!("{} was opened or closed meanwhile; try again", of(&number))));
                        }
                        Unlisted::Elsewhere => {
                            return Err(tied(format!("{} is a socket of another network namespace", of(&number))));
                        }
                        Unlisted::Strange(kind) => {
                            return Err(tied(format!(
                                "{} is a socket of a kind that cannot be moved: {kind}",
                                of(&number)
                            )));
                        }
                    },
                }
                let is_used =
                    matches!(sockets.find(inode), Some(Socket::Open(_) | Socket::Listening(..) | Socket::Bound(_)));
                let used = match number.parse() {
                    Ok(number) if is_used => duplicated::borrow_descriptor(*pid, number, inode)?,
                    _ => None,
                };
                if let Some(socket) = used {
                    checkpoint::check_for_criu(socket.as_fd(), &mut diagnosis)
                        .map_err(|why| tied(format!("{}: {why}", of(&number))))?;
                }
            } else if text.starts_with("pipe:[") {
                pipes.insert(text, (*pid, number));
            } else if let Some(kind) = text.strip_prefix("anon_inode:") {
                if STRANGE.iter().any(|strange| kind.starts_with(strange)) {
                    return Err(tied(format!("{} ({kind}) is of a kind that cannot be moved", of(&number))));
                }
            } else if text.starts_with("/dev/pts/") || text == "/dev/tty" || text == "/dev/console" {
                terminal.get_or_insert((of(&number), text));
            } else if text.ends_with("/ptmx") {
                has_master = true;
            } else if text.starts_with('/') && !text.starts_with("/memfd:") && !text.ends_with(" (deleted)") {
                let path = format!("/proc/{pid}/fd/{number}");
                let Ok(metadata) = fs::metadata(path) else { continue };
                let kind = metadata.file_type();
                if (kind.is_char_device() || kind.is_block_device()) && !DEVICES.contains(&text.as_str()) {
                    return Err(tied(format!("{} is the device {text} of this host", of(&number))));
                }
                // A log grows until its process stands still. CRIU compares what it wrote down then.
                let lasts = kind.is_file() && !writes(*pid, &number);
                process_tree.files.push((link, lasts.then_some(metadata.len())));
            }
        }
        process_tree.files.extend(mapped(*pid));
    }
    if let Some((of, terminal)) = terminal.filter(|_| !has_master) {
        return Err(tied(format!("{of} is the terminal {terminal}, which does not go along")));
    }
    process_tree.flows.sort_unstable();
    process_tree.flows.dedup();
    for (inode, end) in sockets.ends() {
        if inodes.contains_key(&inode) {
            process_tree.ends.push(end);
        } else {
            process_tree.others.push(end);
        }
    }
    for ends in [&mut process_tree.ends, &mut process_tree.others] {
        ends.sort_unstable();
        ends.dedup();
    }
    process_tree.idle.sort_unstable();
    process_tree.idle.dedup();
    for (socket, peer) in
        sockets.unix_peers().filter(|(socket, peer)| inodes.contains_key(socket) && !inodes.contains_key(peer))
    {
        if sockets.is_datagram(socket) {
            process_tree.talks = true;
        } else {
            return Err(tied(format!(
                "a UNIX socket of process {} has its other end in a process that stays (inode {peer})",
                process_tree.root
            )));
        }
    }
    // Who else has any of it?
    for pid in process::numbers().filter(|pid| !members.contains(pid)) {
        for (there, link) in links(pid).unwrap_or_default() {
            let (what, shared) = match process::socket_inode(&link) {
                Some(inode) => ("socket", inodes.get(&inode)),
                None => ("pipe", pipes.get(link.to_string_lossy().as_ref())),
            };
            if let Some((member, here)) = shared {
                let other = process::name_of(pid);
                return Err(tied(format!(
                    "process {member} shares a {what} with process {pid} ({other}), which stays: descriptor {here} of \
                     the one and {there} of the other"
                )));
            }
        }
    }
    Ok(())
}

/// How many connections wait to be accepted by processes, at one of their sockets; none: `None`.
///
/// # Errors
/// [`Unfit`].
fn queued(pids: &[u32]) -> Result<Option<(SocketAddr, u32)>, Unfit> {
    let Some(first) = pids.first() else { return Ok(None) };
    let own: HashSet<u32> = pids.iter().flat_map(|pid| process::sockets(*pid)).collect();
    Ok(queued_among(&Sockets::of(*first)?, &own))
}

fn queued_among(sockets: &Sockets, own: &HashSet<u32>) -> Option<(SocketAddr, u32)> {
    own.iter().find_map(|inode| match sockets.find(*inode) {
        Some(Socket::Listening(at, waiting)) if *waiting > 0 => Some((*at, *waiting)),
        _ => None,
    })
}

/// The connections that processes have now.
///
/// # Errors
/// [`Unfit`].
fn flows_of(pids: &[u32]) -> Result<BTreeSet<FlowTuple>, Unfit> {
    let Some(first) = pids.first() else { return Ok(BTreeSet::new()) };
    flows_among(&Sockets::of(*first)?, pids)
}

fn flows_among(sockets: &Sockets, pids: &[u32]) -> Result<BTreeSet<FlowTuple>, Unfit> {
    let mut found = BTreeSet::new();
    for pid in pids {
        for inode in process::sockets(*pid) {
            match sockets.find(inode) {
                Some(Socket::Open(flow)) => {
                    found.insert(*flow);
                }
                Some(Socket::Opening) => return Err(tied(format!("process {pid} is opening a connection"))),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// The UDP sockets of processes that stand still, in whose queues something waits: CRIU leaves that behind. Nothing is
/// changed.
///
/// # Errors
/// [`Unfit`]: one could not be looked at.
pub fn queues_of(pids: &[u32]) -> Result<Vec<Snapshot>, Unfit> {
    let mut found = Vec::new();
    let Some(first) = pids.first() else { return Ok(found) };
    let sockets = Sockets::of(*first)?;
    let defaults = {
        let _inside = Entered::descriptor(network_of(*first)?.as_fd())?;
        Defaults::look()?
    };
    let mut seen = HashSet::new();
    for pid in pids {
        let has_queue = |inode: &u32| match sockets.find(*inode) {
            Some(Socket::Open(flow)) => flow.transport == Transport::Udp,
            Some(Socket::Bound(_)) => true,
            _ => false,
        };
        let inodes: HashSet<u32> =
            process::sockets(*pid).into_iter().filter(|inode| has_queue(inode) && seen.insert(*inode)).collect();
        if inodes.is_empty() {
            continue;
        }
        let _inside = Entered::descriptor(network_of(*first)?.as_fd())?;
        let mut diagnosis = SockDiag::open()?;
        for (_, socket) in duplicated::borrow(*pid, &inodes)? {
            let written = Checkpoint::freeze(socket).and_then(|checkpoint| checkpoint.dump(&defaults, &mut diagnosis));
            let written = written.map_err(|why| tied(why.to_string()))?;
            if matches!(&written.body, Body::Datagram(datagrams) if !datagrams.queue.is_empty()) {
                found.push(written);
            }
        }
    }
    Ok(found)
}

/// Makes room in the queues of UDP sockets of processes that stand still, for what comes before they go on. They keep
/// it, as a socket that has moved does.
///
/// # Errors
/// The first that failed; all others were tried.
pub fn make_room(pids: &[u32]) -> Result<(), Error> {
    let mut result = Ok(());
    for pid in pids {
        match duplicated::borrow(*pid, &process::sockets(*pid)) {
            Ok(found) => {
                result = found.iter().fold(result, |result, (_, socket)| result.and(Checkpoint::make_room(socket)))
            }
            Err(error) => result = result.and(Err(error)),
        }
    }
    result
}

/// Lets processes go on that were written down and stand still: their TCP sockets, which rest, first.
///
/// # Errors
/// The first that failed; all others were tried.
pub fn wake(processes: &[Seen]) -> Result<(), Error> {
    let mut result = Ok(());
    for pid in processes.iter().filter(|seen| seen.is_there()).map(Seen::pid) {
        for (_, socket) in duplicated::borrow(pid, &process::sockets(pid)).unwrap_or_default() {
            result = result.and(Checkpoint::end_rest(&socket));
        }
    }
    processes.iter().fold(result, |result, seen| result.and(seen.signal(Signal::CONT)))
}

/// Ends processes that stand still, whose sockets rest and so say nothing, and waits until their sockets are gone.
///
/// # Errors
/// [`Error::Call`]: one may not be signalled, or does not end.
pub fn end(processes: &[Seen]) -> Result<(), Error> {
    for seen in processes {
        match seen.signal(Signal::KILL) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => other?,
        }
    }
    let since = Instant::now();
    for seen in processes {
        // What nobody has waited for has no descriptors any more.
        while seen.is_there() && links(seen.pid()).is_some_and(|links| !links.is_empty()) {
            if since.elapsed() > PATIENCE {
                let object = format!("process {}", seen.pid());
                return Err(Error::call("pidfd_send_signal", object, rustix::io::Errno::TIMEDOUT));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(())
}

/// Sends a signal to a process.
///
/// # Errors
/// [`Error::Call`].
pub fn signal(pid: u32, signal: Signal) -> Result<(), Error> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number =
        number.ok_or(Error::Argument { object: format!("process {pid}"), detail: "there is no such number" })?;
    kill_process(number, signal).map_err(|error| Error::call("kill", format!("process {pid}"), error))
}

/// Of the processes that the PID namespace with this process's number `beside` has, those with these numbers in it.
#[must_use]
pub fn outer_numbers(beside: u32, inner: &[u32]) -> Vec<u32> {
    let wanted = namespace(beside, "pid");
    let there = process::numbers().filter(|pid| wanted.is_some() && namespace(*pid, "pid") == wanted);
    there.filter(|pid| inner_number(*pid).is_some_and(|number| inner.contains(&number))).collect()
}

/// Those of these files that are not here as they are needed, each with why.
#[must_use]
pub fn lacking(files: &[(PathBuf, Option<u64>)]) -> Vec<String> {
    let lacks = |(path, length): &(PathBuf, Option<u64>)| {
        let why = match (fs::metadata(path), length) {
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => "is missing".to_owned(),
            (Err(error), _) => format!("cannot be looked at ({error})"),
            (Ok(there), Some(length)) if !there.is_file() => format!("is no file of {length} bytes"),
            (Ok(there), Some(length)) if there.len() != *length => {
                format!("has {} bytes instead of {length}", there.len())
            }
            (Ok(_), _) => return None,
        };
        Some(format!("{} {why}", path.display()))
    };
    files.iter().filter_map(lacks).collect()
}

/// A descriptor of a process's network namespace.
///
/// # Errors
/// [`Error::Call`].
pub fn network_of(pid: u32) -> Result<OwnedFd, Error> {
    let path = format!("/proc/{pid}/ns/net");
    fs::File::open(&path).map(OwnedFd::from).map_err(|error| Error::call("open", path, error))
}

/// What tells a process from a later one with its number: when it was started, in ticks since the machine was.
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    field(pid, 22)
}

/// Whether a process is being looked into by a tracer, as CRIU is one.
#[must_use]
pub fn is_traced(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

/// Whether a process has ended, and only its parent has not waited for it yet.
#[must_use]
pub fn is_over(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

fn links(pid: u32) -> Option<Vec<(String, PathBuf)>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let link = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, fs::read_link(entry.path()).ok()?));
    Some(entries.flatten().filter_map(link).collect())
}

/// Whether a descriptor of a process is open for writing (`/proc/PID/fdinfo`, proc_pid_fdinfo(5)).
fn writes(pid: u32, number: &str) -> bool {
    let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let flags = about.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Files that are in a process's memory, its program and its libraries, and the directory that it works in.
fn mapped(pid: u32) -> Vec<(PathBuf, Option<u64>)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let path = |line: &str| {
        let mut rest = line;
        for _ in 0..5 {
            rest = rest.split_once(' ')?.1.trim_start();
        }
        let named = rest.starts_with('/') && !rest.ends_with(" (deleted)") && !rest.starts_with("/memfd:");
        // Segments of memory that is shared (SysV, /dev/zero) are named like files.
        (named && !rest.starts_with("/SYSV") && !rest.starts_with("/dev/")).then(|| PathBuf::from(rest))
    };
    let mut paths: Vec<PathBuf> = maps.lines().filter_map(path).collect();
    paths.sort();
    paths.dedup();
    let directory = fs::read_link(format!("/proc/{pid}/cwd")).ok().map(|path| (path, None));
    let length = |path: PathBuf| {
        // As the process sees it: this one may be shown less of the file system.
        let seen = PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").ok()?);
        let length = fs::metadata(seen).ok()?.len();
        Some((path, Some(length)))
    };
    paths.into_iter().filter_map(length).chain(directory).collect()
}

/// Parents by their children.
fn parents() -> HashMap<u32, u32> {
    process::numbers().filter_map(|pid| Some((pid, u32::try_from(field(pid, 4)?).ok()?))).collect()
}

fn session(pid: u32) -> Option<u32> {
    u32::try_from(field(pid, 6)?).ok()
}

/// A numeric field of `/proc/PID/stat`, counted as in proc_pid_stat(5).
fn field(pid: u32, number: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have any bytes.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// The number of a process in its own PID namespace.
fn inner_number(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().next_back()?.parse().ok()
}

fn namespace(pid: u32, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// Memory that a process has in use, in bytes (`/proc/PID/status`).
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    kibibytes * 1024
}

#[cfg(test)]
mod tests;
