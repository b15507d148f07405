//! Migration helpers: what is done for a connection while its peer is away, beside waiting (`docs/decisions/0010`).
//!
//! ```text
//! section.rs    what the configuration says
//! substitute.rs one connection that a program answers on, in the peer's name
//! running.rs    the program
//! segment.rs    what the live end sends
//! keep.rs       taking it, in order and up to a limit
//! send.rs       sending: answers to the live end, what was kept to the peer
//! store.rs      what outlives the daemon
//! stop.rs       stopping and continuing what serves a connection
//! ```

pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod executor;
mod keep;
mod running;
pub mod section;
mod segment;
mod send;
mod stop;
mod store;
mod substitute;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use whimbrel_datapath::{HelpedFlow, HelpedPhase, TcpSocket};
use whimbrel_handshake::PublicKey;
use whimbrel_ipc as ipc;
use whimbrel_kernel::process;
use whimbrel_kernel::sock_diag::{MOVABLE, SockDiag};
use whimbrel_protocol::{FlowEntry, PeerId, Time};
use whimbrel_wire::{FlowTuple, Transport};

use crate::events::{Kind as EventKind, Report};
use crate::host::Means;
use crate::policy::Subject;

use running::Running;
use section::{Kind, Sections};
use segment::Segment;
use stop::{Scene, Stops};
use store::{Note, Store};
use substitute::{Happened, Substitute};

/// `TCP_ESTABLISHED`, `include/net/tcp_states.h`.
const ESTABLISHED: u8 = 1;
/// How long numbers of a connection that has ended are still translated: TIME-WAIT answers for it for a minute.
const LINGER: Duration = Duration::from_secs(120);
/// Connections that are answered on at a time: each takes a process, and room in the run directory. More wait.
const MOST: usize = 256;
/// Of these, those whose peer is the same: one peer that has many go away at once leaves others some.
const MOST_OF_PEER: usize = 128;
/// Bytes that may be kept and answered in all, where one connection alone is not configured to have more. They lie in
/// the run directory, which is memory.
const MOST_BYTES: u64 = 512 << 20;
/// Steps of back-off that a sender is rid of when its segments have somebody to go to again.
const STEPS: u8 = 32;

/// How a connection stands, as far as helpers are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It goes on.
    Here,
    /// It waits, and nobody is to help: for a moment, or since this host itself is to wait.
    Waits,
    /// Its peer is away.
    Away,
}

/// A connection and how it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    pub(crate) flow: FlowTuple,
    pub(crate) entry: FlowEntry,
    pub(crate) key: Option<PublicKey>,
    pub(crate) standing: Standing,
}

/// All connections that are helped, or were.
#[derive(Debug)]
pub(crate) struct Helpers {
    dir: PathBuf,
    sections: Sections,
    epoll: OwnedFd,
    flows: HashMap<FlowTuple, Substitute>,
    /// What the programs' descriptors are known by.
    tokens: HashMap<u64, FlowTuple>,
    next_token: u64,
    /// Connections that have ended, and until when their numbers are translated.
    lingering: BTreeMap<FlowTuple, Time>,
    stops: Stops,
    told: Vec<Report>,
    /// Peers that have got everything, so that senders go on.
    released: Vec<PeerId>,
    /// Whose bindings may be others since helpers were last told.
    changed_peers: BTreeSet<PeerId>,
    /// Which flows may wait, or go on, since then.
    changed_flows: BTreeSet<FlowTuple>,
    /// This host itself is to wait.
    suspended: bool,
}

impl Helpers {
    /// `run_dir`: the daemon's.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn new(run_dir: &Path, sections: Sections) -> std::io::Result<Self> {
        if !sections.is_empty() {
            allow_descriptors();
        }
        Ok(Self {
            dir: run_dir.join("helpers"),
            sections,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            flows: HashMap::new(),
            tokens: HashMap::new(),
            next_token: 0,
            lingering: BTreeMap::new(),
            stops: Stops::open(run_dir),
            told: Vec::new(),
            released: Vec::new(),
            changed_peers: BTreeSet::new(),
            changed_flows: BTreeSet::new(),
            suspended: false,
        })
    }

    /// Readable when a program has something to say, takes more, or has ended.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether there is nothing to be done whatever becomes of connections.
    fn is_idle(&self) -> bool {
        self.sections.is_empty() && self.flows.is_empty() && self.stops.is_empty()
    }

    /// Whether the data plane must stay because of numbers that are translated.
    pub(crate) fn translates(&self) -> bool {
        !self.flows.is_empty()
    }

    /// The daemon ends: nothing stays stopped that nobody would continue. The next one stops it again.
    pub(crate) fn let_go(&mut self) {
        self.stops.adopt(Time::default(), |_| false);
    }

    /// What the peer of a connection that is answered on has and expects, in this end's numbers: the next that it
    /// lacks, and the next that it will send.
    pub(crate) fn numbers_of_peer(&self, flow: &FlowTuple) -> Option<(u32, u32)> {
        self.flows.get(flow).filter(|substitute| !substitute.is_over()).map(Substitute::numbers_of_peer)
    }

    /// Whether a helper has answered on a flow for its peer, and may again.
    pub(crate) fn has_answered(&self, flow: &FlowTuple) -> bool {
        self.numbers_of_peer(flow).is_some()
    }

    /// What is to be told.
    pub(crate) fn take_told(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.told)
    }

    /// Peers whose senders may go on now.
    fn take_released(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.released)
    }

    /// What helps a connection, for people.
    pub(crate) fn views(&self) -> HashMap<FlowTuple, ipc::Helper> {
        let stopped = self.stops.views();
        self.flows.iter().map(|(flow, substitute)| (*flow, substitute.view())).chain(stopped).collect()
    }

    /// Takes in how connections stand now.
    /// `away`: whether a connection's peer is.
    fn update(
        &mut self,
        now: Time,
        means: &mut Means<'_>,
        situations: &[Situation],
        away: &dyn Fn(&FlowTuple) -> bool,
    ) {
        let mut fresh: Vec<&Situation> = Vec::new();
        for situation in situations.iter().filter(|situation| situation.flow.transport == Transport::Tcp) {
            if situation.standing == Standing::Here {
                let continued = self.stops.resume(now, &situation.flow);
                self.told.extend(continued);
            }
            match self.flows.get_mut(&situation.flow) {
                Some(substitute) if !substitute.is_over() => {
                    substitute.peer = situation.entry.peer;
                    match situation.standing {
                        Standing::Here => substitute.set_away(now, means, false),
                        Standing::Away => substitute.set_away(now, means, true),
                        Standing::Waits => {}
                    }
                    self.settle(now, means, situation.flow);
                }
                _ if situation.standing == Standing::Away && !self.stops.has(&situation.flow) => fresh.push(situation),
                _ => {}
            }
        }
        if !fresh.is_empty() && !self.sections.is_empty() {
            self.begin(now, means, &fresh, away);
        }
    }

    fn begin(&mut self, now: Time, means: &mut Means<'_>, fresh: &[&Situation], away: &dyn Fn(&FlowTuple) -> bool) {
        let sockets = sockets(means);
        let wanted: Vec<(&Situation, &TcpSocket)> = fresh
            .iter()
            .filter_map(|situation| Some((*situation, sockets.get(&situation.flow)?)))
            .filter(|(_, socket)| socket.state == ESTABLISHED)
            .collect();
        // All of /proc is read for it, so once for all of them.
        let (listeners, holders) = self.survey(&wanted);
        let scene = Scene { sockets: &sockets, listeners: &listeners, holders: &holders, away };
        let mut helped = Vec::new();
        for (situation, socket) in wanted {
            let of_socket = u32::try_from(socket.inode).ok().and_then(|inode| holders.get(&inode));
            let holders = of_socket.map_or(&[][..], Vec::as_slice);
            let subject = Subject { flow: &situation.flow, key: situation.key.as_ref(), holders };
            let Some(section) = self.sections.find(&subject).cloned() else { continue };
            match &section.kind {
                Kind::Hold | Kind::Keepalive => {}
                Kind::Stop(scope) => {
                    let told = self.stops.stop(&section, *scope, socket, &scene);
                    self.told.extend(told);
                }
                // An answer that is injected does not come by its device, and would have the kernel reset it.
                Kind::Program(_) if socket.bound_interface != 0 => {
                    tracing::info!(flow = %situation.flow, "waits: what is bound to a device is not answered for");
                }
                Kind::Program(program) => helped.push((situation, section.name.clone(), program.clone())),
            }
        }
        self.begin_programs(now, means, &helped);
    }

    /// The sockets that listen, where something may be stopped, and who has them open, and those of connections, where
    /// a section asks.
    fn survey(&self, wanted: &[(&Situation, &TcpSocket)]) -> (HashSet<u32>, HashMap<u32, Vec<process::Holder>>) {
        let stops = self.sections.stops();
        if wanted.is_empty() || !stops && !self.sections.asks_for_holders() {
            return Default::default();
        }
        let mut listeners = HashSet::new();
        if stops {
            match SockDiag::open().and_then(|mut diag| diag.listeners()) {
                Ok(found) => listeners.extend(found.iter().map(|listener| listener.inode)),
                Err(error) => {
                    // Nothing is stopped that might serve others: nobody is known to have anything open.
                    tracing::warn!(%error, "who listens cannot be seen");
                    return Default::default();
                }
            }
        }
        let inodes = wanted.iter().filter_map(|(_, socket)| u32::try_from(socket.inode).ok());
        let holders = process::holders(&inodes.chain(listeners.iter().copied()).collect());
        (listeners, holders)
    }

    /// Why no more may be helped that have this peer and may take so many bytes.
    fn is_full(&self, peer: PeerId, program: &section::Program) -> Option<String> {
        let helped = || self.flows.values().filter(|substitute| !substitute.is_over());
        let of_peer = helped().filter(|substitute| substitute.peer == peer).count();
        let (count, taken) = (helped().count(), helped().map(Substitute::room).sum::<u64>());
        let more = program.keep.saturating_add(program.answer);
        if count >= MOST {
            Some(format!("{MOST} connections are answered on already"))
        } else if of_peer >= MOST_OF_PEER {
            Some(format!("{MOST_OF_PEER} connections with this peer are answered on already"))
        } else if count > 0 && taken.saturating_add(more) > MOST_BYTES {
            Some(format!("for those that are answered on already {taken} bytes may be kept, of {MOST_BYTES} in all"))
        } else {
            None
        }
    }

    fn begin_programs(&mut self, now: Time, means: &mut Means<'_>, helped: &[(&Situation, String, section::Program)]) {
        let mut shut = Vec::new();
        for (situation, name, program) in helped {
            let flow = situation.flow;
            let former = self.flows.remove(&flow);
            let before = former.as_ref().map_or(0, Substitute::offset);
            let kept = HelpedFlow { phase: HelpedPhase::Kept, offset: before, acknowledged: 0, delivered: 0 };
            // From here on nothing of the peer's gets in, so what the socket says after stays so.
            match means.datapath.set_helped(&flow, &kept) {
                Ok(()) => shut.push((*situation, name, program, former, before)),
                Err(error) => {
                    tracing::warn!(%flow, %error, "a helper cannot be started");
                    self.flows.extend(former.map(|former| (flow, former)));
                }
            }
        }
        if shut.is_empty() {
            return;
        }
        let sockets = sockets(means);
        for (situation, name, program, former, before) in shut {
            let flow = situation.flow;
            let made = match sockets.get(&flow).filter(|socket| socket.state == ESTABLISHED) {
                None => Err("its connection is at its end".to_owned()),
                Some(socket) if socket.unordered => Err(
                    "some of what the peer sent before it went has arrived out of order, and what lacks would be lost"
                        .to_owned(),
                ),
                Some(socket) => match self.is_full(situation.entry.peer, program) {
                    Some(why) => Err(why),
                    None => Substitute::begin(&self.dir, socket, situation.entry.peer, name, program, before)
                        .map(|made| (made, *socket))
                        .map_err(|error| format!("nothing can be stored: {error}")),
                },
            };
            match made {
                Ok((mut substitute, socket)) => {
                    substitute.apply(means);
                    // What is in flight goes nowhere: it is sent again, and now somebody takes it.
                    if !socket.reports_errors {
                        for _ in 0..socket.backoff.min(STEPS) {
                            let _ = means.injector.kick(&flow, socket.snd_una);
                        }
                    }
                    substitute.acknowledge(means);
                    self.flows.insert(flow, substitute);
                    self.settle(now, means, flow);
                }
                Err(why) => {
                    let sentence = format!("the helper {name} is not started for {flow}, which waits: {why}");
                    self.told.push(told(EventKind::HelperFailed, sentence, &flow, name));
                    match former {
                        Some(mut former) => {
                            former.apply(means);
                            self.flows.insert(flow, former);
                        }
                        None => drop(means.datapath.remove_helped(&flow)),
                    }
                }
            }
        }
    }

    /// After anything has happened to a substitute: starts its program, tells what is to be told.
    fn settle(&mut self, now: Time, means: &mut Means<'_>, flow: FlowTuple) {
        let Some(substitute) = self.flows.get_mut(&flow) else { return };
        if substitute.wants_program(now)
            && let Some((program, answered)) = substitute.program()
        {
            self.next_token += 1;
            let running =
                Running::start(now, &substitute.note.helper, program, &flow, answered, (&self.epoll, self.next_token));
            self.tokens.insert(self.next_token, flow);
            substitute.started(now, means, running);
        }
        let name = substitute.note.helper.clone();
        let mut over = false;
        for happened in std::mem::take(&mut substitute.happened) {
            over |= matches!(happened, Happened::Over { .. });
            self.told.push(match happened {
                Happened::Started { pid } => {
                    told(EventKind::HelperStarted, format!("the helper {name} answers on {flow} while its peer is away"), &flow, &name)
                        .with("pid", pid)
                }
                Happened::Failed { why } => {
                    told(EventKind::HelperFailed, format!("the helper {name} {why}; {flow} waits"), &flow, &name)
                }
                Happened::Over { kept, answered } => {
                    let sentence = format!(
                        "{flow} goes on: its peer has the {kept} bytes that were kept for it; the helper {name} answered with \
                         {answered}"
                    );
                    told(EventKind::HelperOver, sentence, &flow, &name).with("kept", kept).with("answered", answered)
                }
            });
        }
        if over {
            self.released.push(substitute.peer);
            if substitute.offset() == 0
                && let Some(substitute) = self.flows.remove(&flow)
            {
                substitute.remove(means);
            }
        }
    }

    /// A packet that the TUN device gave for a connection that is answered on.
    fn handle_packet(&mut self, now: Time, means: &mut Means<'_>, packet: &[u8]) {
        let Some(segment) = Segment::parse(packet) else { return };
        if let Some(substitute) = self.flows.get_mut(&segment.flow) {
            substitute.handle_segment(now, means, &segment);
            self.settle(now, means, segment.flow);
        }
    }

    /// A peer has told what it has of what was kept for it.
    fn handle_acknowledged(&mut self, now: Time, means: &mut Means<'_>, flow: FlowTuple, next: u32, window: u16) {
        if let Some(substitute) = self.flows.get_mut(&flow) {
            substitute.handle_acknowledged(now, means, next, window);
            self.settle(now, means, flow);
        }
    }

    /// Programs have something to say.
    fn handle_ready(&mut self, now: Time, means: &mut Means<'_>) {
        let mut ready = Vec::with_capacity(16);
        let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&none)).is_err() {
            return;
        }
        let mut tokens: Vec<u64> = ready.iter().map(|event| event.data.u64()).collect();
        tokens.dedup();
        for token in tokens {
            let Some(flow) = self.tokens.get(&token).copied() else { continue };
            if let Some(substitute) = self.flows.get_mut(&flow) {
                substitute.pump(now, means);
                self.settle(now, means, flow);
            }
        }
        let (flows, tokens) = (&self.flows, &mut self.tokens);
        tokens.retain(|_, flow| flows.get(flow).is_some_and(|substitute| !substitute.is_over()));
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let flows = self.flows.values().filter_map(Substitute::poll_timeout);
        flows.chain(self.lingering.values().copied()).chain(self.stops.poll_timeout()).min()
    }

    fn handle_timeout(&mut self, now: Time, means: &mut Means<'_>) {
        let continued = self.stops.handle_timeout(now);
        self.told.extend(continued);
        let due = |substitute: &Substitute| substitute.poll_timeout().is_some_and(|due| due <= now);
        let due: Vec<FlowTuple> = self.flows.iter().filter(|(_, of)| due(of)).map(|(flow, _)| *flow).collect();
        for flow in due {
            if let Some(substitute) = self.flows.get_mut(&flow) {
                substitute.handle_timeout(now, means);
                self.settle(now, means, flow);
            }
        }
        let ended = self.lingering.iter().filter(|(_, at)| **at <= now);
        let gone: Vec<FlowTuple> = ended.map(|(flow, _)| *flow).collect();
        for flow in gone {
            self.lingering.remove(&flow);
            if let Some(substitute) = self.flows.remove(&flow) {
                substitute.remove(means);
            }
        }
    }

    /// A connection has ended.
    fn handle_closed(&mut self, now: Time, means: &mut Means<'_>, flow: FlowTuple) {
        let continued = self.stops.resume(now, &flow);
        self.told.extend(continued);
        let Some(substitute) = self.flows.get(&flow) else { return };
        if substitute.is_over() {
            self.lingering.insert(flow, now + LINGER);
        } else if let Some(substitute) = self.flows.remove(&flow) {
            substitute.remove(means);
        }
    }

    /// Looks which connections have ended, where somebody may have missed it.
    fn check_for_ended(&mut self, now: Time, means: &mut Means<'_>) {
        let known: Vec<FlowTuple> = self.flows.keys().copied().chain(self.stops.flows()).collect();
        let there: HashSet<FlowTuple> = match means.datapath.look_up(&known) {
            Ok(sockets) => sockets.into_iter().map(|socket| socket.flow).collect(),
            Err(error) => return tracing::warn!(%error, "cannot look for sockets"),
        };
        for flow in self.ended(&there) {
            self.handle_closed(now, means, flow);
        }
    }

    /// What has no socket any more, and is not known to have ended.
    fn ended(&self, there: &HashSet<FlowTuple>) -> BTreeSet<FlowTuple> {
        let known = self.flows.keys().copied().filter(|flow| !self.lingering.contains_key(flow));
        known.chain(self.stops.flows()).filter(|flow| !there.contains(flow)).collect()
    }

    /// A connection was opened. One that has the names of one that ended a moment ago, and whose numbers are translated
    /// since its first segment, keeps that.
    fn handle_opened(&mut self, flow: &FlowTuple) {
        self.lingering.remove(flow);
    }

    /// Takes over what a daemon before this one has left. `flows`: what it knew.
    fn adopt(
        &mut self,
        now: Time,
        means: &mut Means<'_>,
        flows: &HashMap<FlowTuple, FlowEntry>,
        at_rest: &HashSet<FlowTuple>,
    ) {
        let continued = self.stops.adopt(now, |flow| flows.contains_key(flow));
        self.told.extend(continued);
        let in_force: HashMap<FlowTuple, HelpedFlow> = match means.datapath.helped() {
            Ok(helped) => helped.into_iter().collect(),
            Err(error) => return tracing::error!(%error, "connections that were answered on stand still"),
        };
        let notes = Store::notes(&self.dir);
        let sockets = if in_force.is_empty() && notes.is_empty() { HashMap::new() } else { sockets(means) };
        for note in notes {
            let flow = note.flow();
            match (self.restore(note, &sockets, flows, &in_force), sockets.contains_key(&flow)) {
                (Ok(mut substitute), true) => {
                    substitute.apply(means);
                    substitute.acknowledge_if_kept(means);
                    self.flows.insert(flow, substitute);
                    self.settle(now, means, flow);
                }
                (Ok(substitute), false) if substitute.is_over() => {
                    self.flows.insert(flow, substitute);
                    self.lingering.insert(flow, now + LINGER);
                }
                (Ok(substitute), false) => substitute.remove(means),
                (Err(error), _) => tracing::error!(%flow, %error, "what was kept for a connection cannot be read"),
            }
        }
        // What nothing is known of goes on with the numbers that it has, rather than wait for ever.
        let unknown = |flow: &FlowTuple| !self.flows.contains_key(flow) && !at_rest.contains(flow);
        for (flow, helped) in in_force.iter().filter(|(flow, _)| unknown(flow)) {
            let result = if sockets.contains_key(flow) && helped.offset != 0 {
                means.datapath.set_helped(flow, &HelpedFlow { phase: HelpedPhase::Over, ..*helped })
            } else {
                means.datapath.remove_helped(flow)
            };
            if let Err(error) = result {
                tracing::error!(%flow, %error, "a connection that was answered on stands still");
            }
        }
    }

    fn restore(
        &self,
        note: Note,
        sockets: &HashMap<FlowTuple, TcpSocket>,
        flows: &HashMap<FlowTuple, FlowEntry>,
        in_force: &HashMap<FlowTuple, HelpedFlow>,
    ) -> std::io::Result<Substitute> {
        let flow = note.flow();
        let peer = flows.get(&flow).map_or(PeerId(0), |entry| entry.peer);
        let program = self.sections.named(&note.helper).and_then(|section| match &section.kind {
            Kind::Program(program) => Some(program.clone()),
            _ => None,
        });
        let expects = sockets.get(&flow).map_or(note.start, |socket| socket.rcv_nxt);
        Substitute::restore(&self.dir, note, peer, program, expects, in_force.get(&flow).copied())
    }
}

/// Continues what a daemon that is gone has stopped, as it noted in its run directory.
pub(crate) fn continue_stopped(run_dir: &Path) {
    Stops::open(run_dir).adopt(Time::default(), |_| false);
}

/// Each program takes six descriptors, so that [`MOST`] are more than a shell's usual limit has room for.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "as many descriptors as there were");
    }
}

/// All TCP sockets, as they are now. None of them is waited for.
fn sockets(means: &Means<'_>) -> HashMap<FlowTuple, TcpSocket> {
    match listed(means) {
        Ok(sockets) => sockets.into_iter().map(|socket| (socket.flow, socket)).collect(),
        Err(error) => {
            tracing::warn!(%error, "cannot list sockets");
            HashMap::new()
        }
    }
}

fn listed(means: &Means<'_>) -> Result<Vec<TcpSocket>, crate::host::Failure> {
    let flows = SockDiag::open()?.tcp(&MOVABLE)?.into_iter().map(|connection| connection.tuple);
    Ok(means.datapath.look_up(&flows.collect::<Vec<_>>())?)
}

/// An event about a helper.
fn told(kind: EventKind, sentence: String, flow: &FlowTuple, helper: &str) -> Report {
    Report::new(kind, sentence).with("flow", flow.to_string()).with("helper", helper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_have_no_socket_any_more_have_ended() {
        let dir = std::env::temp_dir().join(format!("whimbrel-helpers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let stopped = r#"[{"local":"192.0.2.1:1","remote":"192.0.2.2:9","helper":"forks","target":{"process":[1,0]}},
            {"local":"192.0.2.1:2","remote":"192.0.2.2:9","helper":"forks","target":{"process":[1,0]}}]"#;
        std::fs::write(dir.join("stopped"), stopped).expect("written");
        let helpers = Helpers::new(&dir, Sections::default()).expect("made");
        let [first, second] = [1, 2].map(|port| FlowTuple {
            transport: Transport::Tcp,
            local: std::net::SocketAddr::new("192.0.2.1".parse().expect("an address"), port),
            remote: "192.0.2.2:9".parse().expect("an endpoint"),
        });
        assert_eq!(helpers.ended(&HashSet::from([first])), BTreeSet::from([second]));
        assert_eq!(helpers.ended(&HashSet::from([first, second])), BTreeSet::new());
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
