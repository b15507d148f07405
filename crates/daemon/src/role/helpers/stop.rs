//! Stopping what serves a connection while its peer is away, and continuing it after.
//!
//! Of a server with many processes only that one is stopped which serves this connection: who has its socket open, and
//! no connection whose peer is there. What was stopped is noted before, so that a daemon that is started anew continues
//! it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use whimbrel_datapath::TcpSocket;
use whimbrel_ipc as ipc;
use whimbrel_kernel::process::{self, Holder};
use whimbrel_protocol::Time;
use whimbrel_wire::{FlowTuple, Transport};

use super::section::{Scope, Section};
use super::told;
use crate::events::{Kind as EventKind, Report};
use crate::store::files;

/// How long after it has failed something is tried to be continued again.
const RETRY: Duration = Duration::from_secs(5);

/// Something that was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Target {
    /// A process: its number, and when it was started, in the kernel's ticks (proc_pid_stat(5), field 22).
    Process(u32, u64),
    /// A cgroup, as a path below the root of cgroup v2.
    Cgroup(String),
}

/// What was stopped for a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    local: SocketAddr,
    remote: SocketAddr,
    helper: String,
    target: Target,
    /// It is to be continued, which has failed.
    #[serde(default)]
    due: bool,
}

impl Record {
    fn flow(&self) -> FlowTuple {
        FlowTuple { transport: Transport::Tcp, local: self.local, remote: self.remote }
    }
}

/// All that is stopped.
#[derive(Debug)]
pub(crate) struct Stops {
    path: PathBuf,
    records: Vec<Record>,
    /// When those that could not be continued are tried again.
    retry_at: Option<Time>,
}

/// The processes and sockets of this host as they are when connections are looked at, once for all of them.
pub(crate) struct Scene<'a> {
    pub(crate) sockets: &'a HashMap<FlowTuple, TcpSocket>,
    /// The sockets that listen.
    pub(crate) listeners: &'a HashSet<u32>,
    /// Who has what open, of these and of those that are looked at.
    pub(crate) holders: &'a HashMap<u32, Vec<Holder>>,
    /// Whether a connection's peer is away.
    pub(crate) away: &'a dyn Fn(&FlowTuple) -> bool,
}

impl Stops {
    /// With what a daemon before this one has noted in its run directory.
    pub(crate) fn open(run_dir: &Path) -> Self {
        let path = run_dir.join("stopped");
        let records = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Self { path, records, retry_at: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether something is stopped for a connection, and is to stay so.
    pub(crate) fn has(&self, flow: &FlowTuple) -> bool {
        self.records.iter().any(|record| record.flow() == *flow && !record.due)
    }

    /// The connections that something is stopped for.
    pub(crate) fn flows(&self) -> impl Iterator<Item = FlowTuple> {
        self.records.iter().map(Record::flow)
    }

    /// For people.
    pub(crate) fn views(&self) -> Vec<(FlowTuple, ipc::Helper)> {
        let view = |record: &Record| ipc::Helper {
            name: record.helper.clone(),
            state: ipc::HelperState::Stopped,
            pid: if let Target::Process(pid, _) = record.target { Some(pid) } else { None },
            kept: 0,
            delivered: 0,
            answered: 0,
            shifted: 0,
        };
        self.records.iter().map(|record| (record.flow(), view(record))).collect()
    }

    /// Stops what serves a connection.
    pub(crate) fn stop(
        &mut self,
        section: &Section,
        scope: Scope,
        socket: &TcpSocket,
        scene: &Scene<'_>,
    ) -> Vec<Report> {
        let flow = socket.flow;
        let targets = match targets(section, scope, socket, scene) {
            Ok(targets) => targets,
            Err(why) => {
                let sentence = format!("what serves {flow} is not stopped by the helper {}: {why}", section.name);
                return vec![told(EventKind::HelperFailed, sentence, &flow, &section.name)];
            }
        };
        let mut events = Vec::new();
        for target in targets {
            let known = self.records.iter().any(|record| record.target == target && !record.due);
            let ours = self.records.iter().any(|record| record.target == target);
            if !ours && is_stopped(&target) {
                // Whoever did that has a reason, and is to end it.
                let sentence = format!("{}, which serves {flow}, is stopped already", name(&target));
                events.push(told(EventKind::HelperFailed, sentence, &flow, &section.name));
                continue;
            }
            self.records.retain(|record| record.target != target || !record.due);
            self.records.push(Record {
                local: flow.local,
                remote: flow.remote,
                helper: section.name.clone(),
                target: target.clone(),
                due: false,
            });
            self.save();
            if known {
                continue;
            }
            match set(&target, true) {
                Ok(()) => {
                    let sentence = format!("{} is stopped, since the peer of {flow} is away", name(&target));
                    let event = told(EventKind::ProcessStopped, sentence, &flow, &section.name);
                    events.push(with_target(event, &target));
                }
                Err(error) => {
                    self.records.retain(|record| record.target != target);
                    self.save();
                    let sentence = format!("{}, which serves {flow}, cannot be stopped: {error}", name(&target));
                    events.push(told(EventKind::HelperFailed, sentence, &flow, &section.name));
                }
            }
        }
        events
    }

    /// Continues what was stopped for a connection, unless it is for another as well. What cannot be continued is tried
    /// again.
    pub(crate) fn resume(&mut self, now: Time, flow: &FlowTuple) -> Vec<Report> {
        let of_flow: Vec<Record> = self.records.extract_if(.., |record| record.flow() == *flow).collect();
        if of_flow.is_empty() {
            return Vec::new();
        }
        let mut events = Vec::new();
        for record in of_flow {
            let target = &record.target;
            if self.records.iter().any(|other| other.target == *target && !other.due) {
                continue;
            }
            match set(target, false) {
                Ok(()) => {
                    let sentence = format!("{} is continued, since {flow} goes on", name(target));
                    events.push(with_target(told(EventKind::ProcessContinued, sentence, flow, &record.helper), target));
                }
                Err(error) => {
                    if !record.due {
                        let sentence =
                            format!("{}, which serves {flow}, cannot be continued yet: {error}", name(target));
                        events.push(with_target(told(EventKind::HelperFailed, sentence, flow, &record.helper), target));
                    }
                    self.retry_at = Some(now + RETRY);
                    self.records.push(Record { due: true, ..record });
                }
            }
        }
        self.save();
        events
    }

    /// Continues what was stopped for connections that are not `known` any more, and what could not be continued
    /// before.
    pub(crate) fn adopt(&mut self, now: Time, known: impl Fn(&FlowTuple) -> bool) -> Vec<Report> {
        let over = self.records.iter().filter(|record| record.due || !known(&record.flow()));
        let over: HashSet<FlowTuple> = over.map(Record::flow).collect();
        over.iter().flat_map(|flow| self.resume(now, flow)).collect()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.retry_at
    }

    /// Tries again what could not be continued.
    pub(crate) fn handle_timeout(&mut self, now: Time) -> Vec<Report> {
        if self.retry_at.take_if(|at| *at <= now).is_none() {
            return Vec::new();
        }
        self.adopt(now, |_| true)
    }

    fn save(&self) {
        let written = match self.records[..] {
            [] => files::remove(&self.path),
            _ => files::replace(&self.path, &serde_json::to_vec(&self.records).unwrap_or_default()),
        };
        if let Err(error) = written {
            tracing::error!(%error, "what is stopped may stay so if this process is killed");
        }
    }
}

fn name(target: &Target) -> String {
    match target {
        Target::Process(pid, _) => format!("process {pid} ({})", process::name_of(*pid)),
        Target::Cgroup(path) => format!("cgroup {path}"),
    }
}

fn with_target(event: Report, target: &Target) -> Report {
    match target {
        Target::Process(pid, _) => event.with("pid", *pid),
        Target::Cgroup(path) => event.with("cgroup", path.as_str()),
    }
}

/// What serves a connection and nobody else, or why nothing is to be stopped.
fn targets(section: &Section, scope: Scope, socket: &TcpSocket, scene: &Scene<'_>) -> Result<Vec<Target>, String> {
    let inode = u32::try_from(socket.inode).unwrap_or(0);
    let found = scene.holders.get(&inode).map_or(&[][..], Vec::as_slice);
    if inode == 0 || found.is_empty() {
        return Err("no process has it open".into());
    }
    // Who has a connection of his own may leave its socket with a process of somebody else that takes descriptors.
    if !section.matcher.asks_for_holders()
        && let Some(other) = found.iter().find(|holder| holder.uid != Some(socket.uid))
    {
        return Err(format!(
            "process {} ({}), which has it open, is not of the user who opened it: name it by `program` or `cgroup`",
            other.pid, other.name
        ));
    }
    if scope == Scope::Cgroup {
        let cgroup = &found[0].cgroup;
        if found.iter().any(|holder| holder.cgroup != *cgroup) {
            return Err("its processes are in several cgroups".into());
        }
        let own = process::cgroup_of(std::process::id());
        let rest = own.strip_prefix(cgroup.as_str());
        if cgroup.len() < 2 || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            return Err(format!("its cgroup {cgroup} is that of this daemon as well"));
        }
        let pids = members(cgroup).map_err(|error| format!("its cgroup {cgroup} cannot be read: {error}"))?;
        serve_nobody_else(&pids, scene)?;
        return Ok(vec![Target::Cgroup(cgroup.clone())]);
    }
    let pids: Vec<u32> = found.iter().map(|holder| holder.pid).collect();
    serve_nobody_else(&pids, scene)?;
    let target = |pid| {
        let (_, started) = inspect(pid).ok_or_else(|| format!("process {pid} has ended"))?;
        Ok(Target::Process(pid, started))
    };
    pids.into_iter().map(target).collect()
}

/// Whether something is stopped now.
fn is_stopped(target: &Target) -> bool {
    match target {
        Target::Process(pid, _) => inspect(*pid).is_some_and(|(state, _)| state == 'T'),
        Target::Cgroup(path) => {
            let state = directory(path).and_then(|dir| fs::read_to_string(dir.join("cgroup.freeze")));
            state.is_ok_and(|state| state.trim() == "1")
        }
    }
}

/// Whether processes have no connection open whose peer is there, and listen nowhere alone.
fn serve_nobody_else(pids: &[u32], scene: &Scene<'_>) -> Result<(), String> {
    if pids.contains(&1) || pids.contains(&std::process::id()) {
        return Err("it is open in process 1, or in this daemon".into());
    }
    let by_inode: HashMap<u64, &FlowTuple> = scene.sockets.iter().map(|(flow, socket)| (socket.inode, flow)).collect();
    for pid in pids {
        let open = process::sockets(*pid);
        let others = open.iter().filter_map(|inode| by_inode.get(&u64::from(*inode)));
        if let Some(other) = others.copied().find(|flow| !(scene.away)(flow)) {
            return Err(format!("process {pid} serves {other} as well, whose peer is there"));
        }
        for listener in open.iter().filter(|inode| scene.listeners.contains(inode)) {
            let with = scene.holders.get(listener).map_or(&[][..], Vec::as_slice);
            if with.iter().all(|holder| pids.contains(&holder.pid)) {
                return Err(format!("process {pid} listens for new connections, and nobody else does"));
            }
        }
    }
    Ok(())
}

/// The processes of a cgroup and of those below it.
fn members(cgroup: &str) -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    let mut dirs = vec![directory(cgroup)?];
    while let Some(dir) = dirs.pop() {
        let text = fs::read_to_string(dir.join("cgroup.procs"))?;
        pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        let below = fs::read_dir(&dir)?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        dirs.extend(below.map(|entry| entry.path()));
    }
    Ok(pids)
}

/// Where a cgroup is in the file system.
fn directory(cgroup: &str) -> io::Result<PathBuf> {
    Ok(whimbrel_datapath::cgroup_root()
        .map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?
        .join(cgroup.trim_start_matches('/')))
}

/// Stops or continues.
fn set(target: &Target, stopped: bool) -> io::Result<()> {
    match target {
        Target::Process(pid, started) => {
            let signal = if stopped { Signal::STOP } else { Signal::CONT };
            match open(*pid, *started)? {
                Some(process) => Ok(pidfd_send_signal(process, signal)?),
                // It has ended, whoever has its number now.
                None if stopped => Err(io::ErrorKind::NotFound.into()),
                None => Ok(()),
            }
        }
        Target::Cgroup(path) => {
            match fs::write(directory(path)?.join("cgroup.freeze"), if stopped { "1" } else { "0" }) {
                Err(error) if !stopped && error.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result,
            }
        }
    }
}

/// The process that was started then, if it is still there: its number may be another's by now.
fn open(pid: u32, started: u64) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Looked at with the descriptor in hand, which stays that process's.
    let same = inspect(pid.as_raw_nonzero().get().cast_unsigned()).is_some_and(|(_, then)| then == started);
    Ok(same.then_some(process))
}

/// State and start of a process.
fn inspect(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have any bytes.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Matcher;
    use std::process::{Child, Command};
    use std::time::Instant;

    const NOW: Time = Time::from_micros(1);

    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            Self(Command::new("sleep").arg("1000").spawn().expect("sleep"))
        }

        fn target(&self) -> Target {
            Target::Process(self.0.id(), inspect(self.0.id()).expect("there").1)
        }

        fn wait_state(&self, wanted: char) {
            let start = Instant::now();
            while inspect(self.0.id()).is_none_or(|(state, _)| state != wanted) {
                assert!(start.elapsed() < Duration::from_secs(20), "this takes too long");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn record(port: u16, target: Target) -> Record {
        let local = SocketAddr::new("192.0.2.1".parse().expect("address"), port);
        Record { local, remote: "192.0.2.2:9".parse().expect("endpoint"), helper: "forks".into(), target, due: false }
    }

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("whimbrel-stops-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        path
    }

    #[test]
    fn a_process_that_serves_two_is_continued_for_the_last() {
        let (folder, sleeper) = (folder("two"), Sleeper::start());
        set(&sleeper.target(), true).expect("stopped");
        sleeper.wait_state('T');
        let mut stops = Stops::open(&folder);
        stops.records = vec![record(1, sleeper.target()), record(2, sleeper.target())];
        stops.save();
        assert!(stops.resume(NOW, &record(1, sleeper.target()).flow()).is_empty());
        assert_eq!(inspect(sleeper.0.id()).expect("there").0, 'T');
        // By another daemon, which does not know the connection any more.
        drop(stops);
        let mut stops = Stops::open(&folder);
        assert!(stops.has(&record(2, sleeper.target()).flow()));
        let events = stops.adopt(NOW, |_| false);
        assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::ProcessContinued]);
        sleeper.wait_state('S');
        assert!(stops.is_empty() && !folder.join("stopped").exists());
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_number_that_is_another_process_now_is_left_alone() {
        let sleeper = Sleeper::start();
        let Target::Process(pid, started) = sleeper.target() else { panic!("is a process") };
        set(&Target::Process(pid, started + 1), true).expect_err("another one");
        assert_ne!(inspect(pid).expect("there").0, 'T');
        set(&Target::Process(pid, started + 1), false).expect("nothing to be done");
    }

    #[test]
    fn a_cgroup_is_stopped_with_all_below_it() {
        let name = format!("/whimbrel-stops-{}", std::process::id());
        let below = format!("{name}/below");
        let made = directory(&below).and_then(|dir| fs::create_dir_all(&dir).map(|()| dir));
        let Ok(dir) = made else {
            eprintln!("SKIPPED: a_cgroup_is_stopped_with_all_below_it needs root and cgroup v2");
            return;
        };
        let sleeper = Sleeper::start();
        fs::write(dir.join("cgroup.procs"), sleeper.0.id().to_string()).expect("moved");
        assert_eq!(process::cgroup_of(sleeper.0.id()), below);
        assert_eq!(members(&name).expect("read"), [sleeper.0.id()]);
        let checkpoint = || fs::read_to_string(dir.join("cgroup.events")).expect("read").contains("frozen 1");
        for stopped in [true, false] {
            set(&Target::Cgroup(name.clone()), stopped).expect("set");
            assert_eq!(is_stopped(&Target::Cgroup(name.clone())), stopped);
            let start = Instant::now();
            while checkpoint() != stopped {
                assert!(start.elapsed() < Duration::from_secs(20), "this takes too long");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        drop(sleeper);
        for dir in [dir.clone(), dir.parent().expect("it has one").to_owned()] {
            fs::remove_dir(dir).expect("removed");
        }
        // One that is gone needs no continuing.
        set(&Target::Cgroup(name.clone()), false).expect("nothing to be done");
        set(&Target::Cgroup(name), true).expect_err("it is gone");
    }

    #[test]
    fn what_cannot_be_continued_is_tried_again() {
        if whimbrel_datapath::cgroup_root().is_err() {
            eprintln!("SKIPPED: what_cannot_be_continued_is_tried_again needs cgroup v2");
            return;
        }
        let folder = folder("again");
        // No file has such a name, which is not to say that there is none.
        let refusing = Target::Cgroup(format!("/whimbrel-\0-{}", std::process::id()));
        let mut stops = Stops::open(&folder);
        stops.records = vec![record(1, refusing)];
        let flow = stops.records[0].flow();
        let kinds = |events: Vec<Report>| events.iter().map(|event| event.kind).collect::<Vec<_>>();
        assert_eq!(kinds(stops.resume(NOW, &flow)), [EventKind::HelperFailed]);
        assert!(!stops.is_empty() && !stops.has(&flow), "it is to be continued");
        // Also by the next daemon, whatever it knows of the connection; it is told once.
        let mut stops = Stops::open(&folder);
        assert!(stops.adopt(NOW, |_| true).is_empty() && !stops.is_empty());
        let at = stops.poll_timeout().expect("it is tried again");
        assert!(stops.handle_timeout(NOW).is_empty());
        // It can be now.
        let sleeper = Sleeper::start();
        set(&sleeper.target(), true).expect("stopped");
        sleeper.wait_state('T');
        stops.records[0].target = sleeper.target();
        assert_eq!(kinds(stops.handle_timeout(at)), [EventKind::ProcessContinued]);
        sleeper.wait_state('S');
        assert!(stops.is_empty() && stops.poll_timeout().is_none() && !folder.join("stopped").exists());
        fs::remove_dir_all(&folder).expect("removed");
    }

    fn socket(flow: FlowTuple, inode: u64, uid: u32) -> TcpSocket {
        TcpSocket {
            flow,
            inode,
            state: 1,
            snd_una: 0,
            snd_nxt: 0,
            write_seq: 0,
            rcv_nxt: 0,
            snd_wnd: 0,
            mss_cache: 1000,
            pmtu_cookie: 1500,
            bound_interface: 0,
            uid,
            backoff: 0,
            retransmits: 0,
            reports_errors: false,
            repairs: false,
            stands_still: false,
            window_scale: 0,
            unordered: false,
            receives: false,
            acknowledged: 0,
            received: 0,
            heard: 0,
            round_trip: Duration::ZERO,
            least_round_trip: Duration::ZERO,
            window: 0,
            threshold: None,
            sends: false,
            sent_again: 0,
        }
    }

    /// Stops what has a socket open, which `holder` is, by a section without conditions or with one.
    fn stop(stops: &mut Stops, holder: &Holder, uid: u32, matcher: Matcher) -> Vec<Report> {
        let flow = record(1, Target::Cgroup(String::new())).flow();
        let kind = super::super::section::Kind::Stop(Scope::Process);
        let section = Section { name: "forks".into(), matcher, kind };
        let holders = HashMap::from([(9, vec![holder.clone()])]);
        let scene = Scene { sockets: &HashMap::new(), listeners: &HashSet::new(), holders: &holders, away: &|_| true };
        stops.stop(&section, Scope::Process, &socket(flow, 9, uid), &scene)
    }

    #[test]
    fn a_process_of_another_user_is_stopped_only_if_it_is_named() {
        let (folder, sleeper) = (folder("user"), Sleeper::start());
        let Target::Process(pid, _) = sleeper.target() else { panic!("is a process") };
        let uid = rustix::process::geteuid().as_raw();
        let holder = Holder { pid, name: "sleep".into(), uid: Some(uid), ..Holder::default() };
        let mut stops = Stops::open(&folder);
        let refused = stop(&mut stops, &holder, uid + 1, Matcher::default());
        assert!(refused[0].sentence.contains("is not of the user who opened it"), "{}", refused[0].sentence);
        assert!(stops.is_empty());
        let named = Matcher { cgroup: Some("/".into()), ..Matcher::default() };
        for (uid, matcher) in [(uid + 1, named), (uid, Matcher::default())] {
            assert_eq!(stop(&mut stops, &holder, uid, matcher)[0].kind, EventKind::ProcessStopped);
            sleeper.wait_state('T');
            stops.adopt(NOW, |_| false);
            sleeper.wait_state('S');
        }
        // What somebody else has stopped he may continue.
        set(&sleeper.target(), true).expect("stopped");
        sleeper.wait_state('T');
        let refused = stop(&mut stops, &holder, uid, Matcher::default());
        assert!(refused[0].sentence.contains("is stopped already"), "{}", refused[0].sentence);
        assert!(stops.is_empty());
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn the_first_process_and_this_one_are_not_stopped() {
        for pid in [1, std::process::id()] {
            let (sockets, listeners, holders) = (HashMap::new(), HashSet::new(), HashMap::new());
            let scene = Scene { sockets: &sockets, listeners: &listeners, holders: &holders, away: &|_| true };
            let refused = serve_nobody_else(&[pid], &scene).expect_err("refused");
            assert!(refused.contains("process 1, or in this daemon"), "{refused}");
        }
    }
}
