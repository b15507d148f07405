//! Migration helpers: what is done for a connection while its peer is away, beside waiting (`docs/decisions/0010`).
//!
//! ```text
//! section.rs    what the configuration says
//! stand_in.rs   one connection that a program answers on, in the peer's name
//! running.rs    the program
//! segment.rs    what the live end sends
//! keep.rs       taking it, in order and up to a limit
//! send.rs       sending: answers to the live end, what was kept to the peer
//! store.rs      what outlives the daemon
//! stop.rs       stopping and continuing what serves a connection
//! ```

mod keep;
mod running;
pub mod section;
mod segment;
mod send;
mod stand_in;
mod stop;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::epoll;
use whimbrel_datapath::{HelpedFlow, HelpedPhase, TcpSocket};
use whimbrel_handshake::PublicKey;
use whimbrel_ipc as ipc;
use whimbrel_kernel::process;
use whimbrel_protocol::{FlowEntry, PeerId, Time};
use whimbrel_wire::{FlowTuple, Transport};

use crate::events::Told;
use crate::policy::Subject;

use running::Running;
use section::{Kind, Section, Sections};
use segment::Segment;
use stand_in::{Happened, StandIn};
use stop::Stops;
use store::{Note, Store};

pub(crate) use stand_in::Means;

/// `TCP_ESTABLISHED`, `include/net/tcp_states.h`.
const ESTABLISHED: u8 = 1;
/// How long numbers of a connection that has ended are still translated: TIME-WAIT answers for it for a minute.
const LINGER: Duration = Duration::from_secs(120);
/// Connections that are answered on at a time: each takes a process, and room in the run directory. More wait.
const MOST: usize = 256;
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
    flows: HashMap<FlowTuple, StandIn>,
    /// What the programs' descriptors are known by.
    tokens: HashMap<u64, FlowTuple>,
    next_token: u64,
    /// Connections that have ended, and until when their numbers are translated.
    lingering: BTreeMap<FlowTuple, Time>,
    stops: Stops,
    told: Vec<Told>,
    /// Peers that have got everything, so that senders go on.
    released: Vec<PeerId>,
}

impl Helpers {
    /// `run_dir`: the daemon's.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn new(run_dir: &Path, sections: Sections) -> std::io::Result<Self> {
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
        })
    }

    /// Readable when a program has something to say, takes more, or has ended.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether there is nothing to be done whatever becomes of connections.
    pub(crate) fn is_idle(&self) -> bool {
        self.sections.is_empty() && self.flows.is_empty() && self.stops.is_empty()
    }

    /// Whether the data plane must stay because of numbers that are translated.
    pub(crate) fn translates(&self) -> bool {
        !self.flows.is_empty()
    }

    /// The daemon ends: nothing stays stopped that nobody would continue. The next one stops it again.
    pub(crate) fn let_go(&mut self) {
        self.stops.adopt(|_| false);
    }

    /// What the peer of a connection that is answered on has and expects, in this end's numbers: the next that it lacks, and
    /// the next that it will send.
    pub(crate) fn numbers_of_peer(&self, flow: &FlowTuple) -> Option<(u32, u32)> {
        self.flows.get(flow).filter(|stand_in| !stand_in.is_over()).map(StandIn::numbers_of_peer)
    }

    /// What is to be told.
    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// Peers whose senders may go on now.
    pub(crate) fn take_released(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.released)
    }

    /// What helps a connection, for people.
    pub(crate) fn views(&self) -> HashMap<FlowTuple, ipc::Helper> {
        let stopped = self.stops.views();
        self.flows.iter().map(|(flow, stand_in)| (*flow, stand_in.view())).chain(stopped).collect()
    }

    /// Takes in how connections stand now.
    /// `away`: whether a connection's peer is.
    pub(crate) fn update(
        &mut self,
        now: Time,
        means: &mut Means<'_>,
        situations: &[Situation],
        away: &dyn Fn(&FlowTuple) -> bool,
    ) {
        let mut fresh: Vec<&Situation> = Vec::new();
        for situation in situations.iter().filter(|situation| situation.flow.transport == Transport::Tcp) {
            if situation.standing == Standing::Here {
                let continued = self.stops.resume(&situation.flow);
                self.told.extend(continued);
            }
            match self.flows.get_mut(&situation.flow) {
                Some(stand_in) if !stand_in.is_over() => {
                    stand_in.peer = situation.entry.peer;
                    match situation.standing {
                        Standing::Here => stand_in.set_away(now, means, false),
                        Standing::Away => stand_in.set_away(now, means, true),
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
        let inodes = wanted.iter().filter_map(|(_, socket)| u32::try_from(socket.inode).ok());
        let asks = self.sections.asks_for_holders();
        let holders = if asks { process::holders(&inodes.collect()) } else { HashMap::new() };
        for (situation, socket) in wanted {
            let of_socket = u32::try_from(socket.inode).ok().and_then(|inode| holders.get(&inode));
            let holders = of_socket.map_or(&[][..], Vec::as_slice);
            let subject = Subject { flow: &situation.flow, key: situation.key.as_ref(), holders };
            let Some(section) = self.sections.find(&subject).cloned() else { continue };
            match &section.kind {
                Kind::Hold | Kind::Keepalive => {}
                Kind::Stop(scope) => {
                    let told = self.stops.stop(&section, *scope, socket, &sockets, away);
                    self.told.extend(told);
                }
                Kind::Program(program) => {
                    let program = program.clone();
                    self.begin_one(now, means, situation, &section, &program);
                }
            }
        }
    }

    fn begin_one(
        &mut self,
        now: Time,
        means: &mut Means<'_>,
        situation: &Situation,
        section: &Section,
        program: &section::Program,
    ) {
        let flow = situation.flow;
        if self.flows.values().filter(|stand_in| !stand_in.is_over()).count() >= MOST {
            let why = format!("{MOST} connections are answered on already");
            let sentence = format!("the helper {} is not started for {flow}, which waits: {why}", section.name);
            self.told.push(told("helper-failed", sentence, &flow, &section.name));
            return;
        }
        let former = self.flows.remove(&flow);
        let before = former.as_ref().map_or(0, StandIn::offset);
        let shut = HelpedFlow { phase: HelpedPhase::Kept, offset: before, acknowledged: 0, delivered: 0 };
        // From here on nothing of the peer's gets in, so what the socket says now stays so.
        if let Err(error) = means.datapath.set_helped(&flow, &shut) {
            tracing::warn!(%flow, %error, "a helper cannot be started");
            self.flows.extend(former.map(|former| (flow, former)));
            return;
        }
        let again = sockets(means);
        let found = again.get(&flow).filter(|socket| socket.state == ESTABLISHED);
        let made = match found {
            None => Err("its connection is at its end".to_owned()),
            Some(socket) if socket.unordered => {
                Err("some of what the peer sent before it went has arrived out of order, and what lacks would be lost"
                    .into())
            }
            Some(socket) => {
                let made = StandIn::begin(&self.dir, socket, situation.entry.peer, &section.name, program, before);
                made.map(|made| (made, *socket)).map_err(|error| format!("nothing can be stored: {error}"))
            }
        };
        match made {
            Ok((mut stand_in, socket)) => {
                stand_in.put_in_force(means);
                // What is in flight goes nowhere: it is sent again, and now somebody takes it.
                if !socket.reports_errors {
                    for _ in 0..socket.backoff.min(STEPS) {
                        let _ = means.injector.kick(&flow, socket.snd_una);
                    }
                }
                stand_in.acknowledge(means);
                self.flows.insert(flow, stand_in);
                self.settle(now, means, flow);
            }
            Err(why) => {
                let sentence = format!("the helper {} is not started for {flow}, which waits: {why}", section.name);
                self.told.push(told("helper-failed", sentence, &flow, &section.name));
                match former {
                    Some(mut former) => {
                        former.put_in_force(means);
                        self.flows.insert(flow, former);
                    }
                    None => drop(means.datapath.remove_helped(&flow)),
                }
            }
        }
    }

    /// After anything has happened to a stand-in: starts its program, tells what is to be told.
    fn settle(&mut self, now: Time, means: &mut Means<'_>, flow: FlowTuple) {
        let Some(stand_in) = self.flows.get_mut(&flow) else { return };
        if stand_in.wants_program(now)
            && let Some((program, answered)) = stand_in.program()
        {
            self.next_token += 1;
            let running =
                Running::start(now, &stand_in.note.helper, program, &flow, answered, (&self.epoll, self.next_token));
            self.tokens.insert(self.next_token, flow);
            stand_in.started(now, means, running);
        }
        let name = stand_in.note.helper.clone();
        let mut over = false;
        for happened in std::mem::take(&mut stand_in.happened) {
            over |= matches!(happened, Happened::Over { .. });
            self.told.push(match happened {
                Happened::Started { pid } => {
                    told("helper-started", format!("the helper {name} answers on {flow} while its peer is away"), &flow, &name)
                        .with("pid", pid)
                }
                Happened::Failed { why } => {
                    told("helper-failed", format!("the helper {name} {why}; {flow} waits"), &flow, &name)
                }
                Happened::Over { kept, answered } => {
                    let sentence = format!(
                        "{flow} goes on: its peer has the {kept} bytes that were kept for it; the helper {name} answered with \
                         {answered}"
                    );
                    told("helper-over", sentence, &flow, &name).with("kept", kept).with("answered", answered)
                }
            });
        }
        if over {
            self.released.push(stand_in.peer);
            if stand_in.offset() == 0
                && let Some(stand_in) = self.flows.remove(&flow)
            {
                stand_in.remove(means);
            }
        }
    }

    /// A packet that the TUN device gave for a connection that is answered on.
    pub(crate) fn handle_packet(&mut self, now: Time, means: &mut Means<'_>, packet: &[u8]) {
        let Some(segment) = Segment::parse(packet) else { return };
        if let Some(stand_in) = self.flows.get_mut(&segment.flow) {
            stand_in.handle_segment(now, means, &segment);
            self.settle(now, means, segment.flow);
        }
    }

    /// A peer has told what it has of what was kept for it.
    pub(crate) fn handle_acknowledged(
        &mut self,
        now: Time,
        means: &mut Means<'_>,
        flow: FlowTuple,
        next: u32,
        window: u16,
    ) {
        if let Some(stand_in) = self.flows.get_mut(&flow) {
            stand_in.handle_acknowledged(now, means, next, window);
            self.settle(now, means, flow);
        }
    }

    /// Programs have something to say.
    pub(crate) fn handle_ready(&mut self, now: Time, means: &mut Means<'_>) {
        let mut ready = Vec::with_capacity(16);
        let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&none)).is_err() {
            return;
        }
        let mut tokens: Vec<u64> = ready.iter().map(|event| event.data.u64()).collect();
        tokens.dedup();
        for token in tokens {
            let Some(flow) = self.tokens.get(&token).copied() else { continue };
            if let Some(stand_in) = self.flows.get_mut(&flow) {
                stand_in.pump(now, means);
                self.settle(now, means, flow);
            }
        }
        let (flows, tokens) = (&self.flows, &mut self.tokens);
        tokens.retain(|_, flow| flows.get(flow).is_some_and(|stand_in| !stand_in.is_over()));
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let flows = self.flows.values().filter_map(StandIn::poll_timeout);
        flows.chain(self.lingering.values().copied()).min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Time, means: &mut Means<'_>) {
        let due = |stand_in: &StandIn| stand_in.poll_timeout().is_some_and(|due| due <= now);
        let due: Vec<FlowTuple> = self.flows.iter().filter(|(_, of)| due(of)).map(|(flow, _)| *flow).collect();
        for flow in due {
            if let Some(stand_in) = self.flows.get_mut(&flow) {
                stand_in.handle_timeout(now, means);
                self.settle(now, means, flow);
            }
        }
        let ended = self.lingering.iter().filter(|(_, at)| **at <= now);
        let gone: Vec<FlowTuple> = ended.map(|(flow, _)| *flow).collect();
        for flow in gone {
            self.lingering.remove(&flow);
            if let Some(stand_in) = self.flows.remove(&flow) {
                stand_in.remove(means);
            }
        }
    }

    /// A connection has ended.
    pub(crate) fn handle_closed(&mut self, now: Time, means: &mut Means<'_>, flow: FlowTuple) {
        let continued = self.stops.resume(&flow);
        self.told.extend(continued);
        let Some(stand_in) = self.flows.get(&flow) else { return };
        if stand_in.is_over() {
            self.lingering.insert(flow, now + LINGER);
        } else if let Some(stand_in) = self.flows.remove(&flow) {
            stand_in.remove(means);
        }
    }

    /// A connection was opened. One that has the names of one that ended a moment ago, and whose numbers are translated since
    /// its first segment, keeps that.
    pub(crate) fn handle_opened(&mut self, flow: &FlowTuple) {
        self.lingering.remove(flow);
    }

    /// Takes over what a daemon before this one has left. `flows`: what it knew.
    pub(crate) fn adopt(&mut self, now: Time, means: &mut Means<'_>, flows: &HashMap<FlowTuple, FlowEntry>) {
        let continued = self.stops.adopt(|flow| flows.contains_key(flow));
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
                (Ok(mut stand_in), true) => {
                    stand_in.put_in_force(means);
                    stand_in.acknowledge_if_kept(means);
                    self.flows.insert(flow, stand_in);
                    self.settle(now, means, flow);
                }
                (Ok(stand_in), false) if stand_in.is_over() => {
                    self.flows.insert(flow, stand_in);
                    self.lingering.insert(flow, now + LINGER);
                }
                (Ok(stand_in), false) => stand_in.remove(means),
                (Err(error), _) => tracing::error!(%flow, %error, "what was kept for a connection cannot be read"),
            }
        }
        // What nothing is known of goes on with the numbers that it has, rather than wait for ever.
        for (flow, helped) in in_force.iter().filter(|(flow, _)| !self.flows.contains_key(flow)) {
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
    ) -> std::io::Result<StandIn> {
        let flow = note.flow();
        let peer = flows.get(&flow).map_or(PeerId(0), |entry| entry.peer);
        let program = self.sections.named(&note.helper).and_then(|section| match &section.kind {
            Kind::Program(program) => Some(program.clone()),
            _ => None,
        });
        let expects = sockets.get(&flow).map_or(note.start, |socket| socket.rcv_nxt);
        StandIn::restore(&self.dir, note, peer, program, expects, in_force.get(&flow).copied())
    }
}

/// Continues what a daemon that is gone has stopped, as it noted in its run directory.
pub(crate) fn continue_stopped(run_dir: &Path) {
    Stops::open(run_dir).adopt(|_| false);
}

/// All TCP sockets, as they are now.
fn sockets(means: &Means<'_>) -> HashMap<FlowTuple, TcpSocket> {
    let mut sockets = HashMap::new();
    let listed = means.datapath.tcp_sockets(|socket| {
        sockets.insert(socket.flow, *socket);
    });
    if let Err(error) = listed {
        tracing::warn!(%error, "cannot list sockets");
    }
    sockets
}

/// An event about a helper.
fn told(kind: &'static str, sentence: String, flow: &FlowTuple, helper: &str) -> Told {
    Told::new(kind, sentence).with("flow", flow.to_string()).with("helper", helper)
}
