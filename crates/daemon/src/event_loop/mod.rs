//! The control thread: waits for everything, tells the node, and carries out what it asks for.

mod community;
mod reload;
mod requests;
mod route_lookup;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use whimbrel_datapath::{Event as DatapathEvent, Introduction, Most, Origin};
use whimbrel_kernel::conntrack::Tracking;
use whimbrel_kernel::network::{Changed, NetworkMonitor, NetworkState, UsableAddress};
use whimbrel_kernel::peer_route::PeerRoutes;
use whimbrel_kernel::signals::{Signal, Signals};
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_kernel::stand_in::Seen;
use whimbrel_protocol::{Event, LocalEnd, MoveOp, Node, Op, OpId, Output, PeerId, SavedTenancy, Time, Transmit};
use whimbrel_tunnel::Received;
use whimbrel_wire::FlowTuple;

use requests::{Answers, Suspending};
use route_lookup::RouteLookup;

use crate::Error;
pub(crate) use reload::warn_of;
pub(crate) use requests::names;

use crate::anchors::Anchors;
use crate::attachments::{Attachments, Sighting};
use crate::clock;
use crate::config::{Config, Level};
use crate::effects::{Effects, FoundMoves, Gateway, own_addresses, source_ways};
use crate::event_log::EventLog;
use crate::events::{EventRing, Restraint, Told, restrained};
use crate::flows::{UdpFlows, bound_ports, ephemeral_ports, is_movable, list_tcp};
use crate::metrics::Tally;
use crate::moves::{Moves, known};
use crate::name_server::NameUpdates;
use crate::policy::Judge;
use crate::programs::{Programs, SocketNames};
use crate::server::{ClientId, Server};
use crate::unmoved;

/// How often opened and closed connections are taken in: nothing is done about one in its first second (P-15), and the
/// data plane does not wake us for each.
const FLOW_TICK: Duration = Duration::from_millis(250);
/// How often UDP sockets are listed.
const UDP_TICK: Duration = Duration::from_secs(5);
/// Datagrams that are taken in before everything else is looked at again: whoever sends them faster than they can be answered
/// is not to keep this host from noticing that it has moved, or from stopping.
const DATAGRAMS: usize = 128;
/// For how long they are at the most: the end of a handshake takes a tenth of this.
const DATAGRAMS_WITHIN: Duration = Duration::from_millis(3);
/// For how long initiations of handshakes are, after all else: each takes some tenths of a millisecond, and anybody may
/// send them.
const INITIATIONS_WITHIN: Duration = Duration::from_millis(1);
/// Likewise of what the data plane reports. Each of what packets have caused costs a look for a socket.
const REPORTS: Most = Most { sockets: 1024, arrivals: 128 };
/// How often it is asked whether openings and closings were missed.
const LOSS_TICK: Duration = Duration::from_secs(10);
/// How long moves in the middle may take to be over once this daemon is asked to stop (P-117).
const OVER_WITHIN: Duration = Duration::from_secs(3);
/// Connections of a daemon before this one that are told of one by one.
const TAKEN_OVER: usize = 1000;

const MONITOR: u64 = 1;
const DATAPATH: u64 = 2;
const TUNNEL: u64 = 3;
const LISTENER: u64 = 4;
const SIGNALS: u64 = 5;
const TIMER: u64 = 6;
const ANSWERS: u64 = 7;
const HOLDERS: u64 = 8;
const FOR_OTHERS: u64 = 9;
const HELPERS: u64 = 10;
const NAME_UPDATES: u64 = 11;
const PROCESSES: u64 = 12;
const TRACKING: u64 = 13;
const NAMESPACES: u64 = 14;
const PASSES: u64 = 15;
/// Clients of the control socket have their number plus this.
const FIRST_CLIENT: u64 = 16;

/// The loop cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {source}")]
pub struct LoopError {
    call: &'static str,
    source: io::Error,
}

impl LoopError {
    pub(crate) fn new(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self { call, source: errno.into() }
    }
}

/// What the loop is made of.
pub(crate) struct Parts {
    pub(crate) node: Node,
    pub(crate) effects: Effects,
    pub(crate) monitor: NetworkMonitor,
    /// For looking routes up.
    pub(crate) routes: PeerRoutes,
    pub(crate) sockets: SockDiag,
    pub(crate) server: Server,
    pub(crate) socket_names: SocketNames,
    pub(crate) signals: Signals,
    /// Readable when the tunnel has something for the control thread.
    pub(crate) tunnel_wake: OwnedFd,
    pub(crate) event_log: Option<EventLog>,
    pub(crate) settings: Settings,
}

/// What the loop has to know of how the daemon was started.
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) config_path: Option<PathBuf>,
    pub(crate) run_dir: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) set_log_level: Box<dyn Fn(Level)>,
}

/// What the node has given out and waits for its turn.
#[derive(Default)]
pub(crate) struct Due {
    ops: Vec<(OpId, Op)>,
    /// Behind all of those.
    pub(crate) moves: VecDeque<(OpId, MoveOp)>,
    events: Vec<Event>,
}

impl Due {
    fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.moves.is_empty() && self.events.is_empty()
    }
}

/// The control thread's state.
pub(crate) struct EventLoop {
    pub(crate) node: Node,
    /// What the node has given out and waits for its turn.
    pub(crate) due: Due,
    pub(crate) effects: Effects,
    monitor: NetworkMonitor,
    routes: RouteLookup,
    sockets: SockDiag,
    pub(crate) server: Server,
    pub(crate) programs: Programs,
    pub(crate) anchors: Anchors,
    signals: Signals,
    tunnel_wake: OwnedFd,
    pub(crate) settings: Settings,
    epoll: OwnedFd,
    timer: OwnedFd,
    attachments: Attachments,
    udp: UdpFlows,
    pub(crate) events: EventRing,
    event_log: Option<EventLog>,
    pub(crate) restraint: Restraint,
    pub(crate) tally: Tally,
    /// When each peer's session came up.
    sessions: HashMap<PeerId, Time>,
    answers: Answers,
    judge: Judge,
    name_updates: Option<NameUpdates>,
    /// Connections of others that this host forwards, where it speaks for some of them.
    tracking: Option<Tracking>,
    /// This host's addresses.
    own: BTreeSet<IpAddr>,
    /// Clients that suspended this host and have no answer yet.
    suspending: Option<Suspending>,
    pub(crate) moves: Moves,
    next_flow_tick: Time,
    next_udp_tick: Time,
    next_loss_tick: Time,
    lost_flow_events: u64,
    /// The data plane has more to report than has been read.
    unread: bool,
    started: Time,
    /// It was asked to stop, and does so then at the latest.
    stopping: Option<Time>,
}

impl EventLoop {
    /// Takes in how things stand: attachments and open connections.
    ///
    /// # Errors
    /// When the loop's own descriptors cannot be made, or the state cannot be read.
    pub(crate) fn new(parts: Parts) -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(LoopError::new("epoll_create1"))?;
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(LoopError::new("timerfd_create"))?;
        let now = clock::now();
        // The counter outlives daemons.
        let this_far = parts.effects.lost_flow_events().unwrap_or(0);
        let mut node = parts.node;
        let settings = &parts.settings;
        let name_updates = settings.config.dns.clone().map(|server| NameUpdates::start(server, &settings.state_dir));
        let name_updates = name_updates.transpose().map_err(|source| LoopError { call: "clone", source })?;
        let judge = Judge::new(parts.settings.config.policies.clone(), &mut node).map_err(LoopError::new("eventfd"))?;
        let this = Self {
            node,
            due: Due::default(),
            effects: parts.effects,
            monitor: parts.monitor,
            routes: RouteLookup::new(parts.routes),
            sockets: parts.sockets,
            server: parts.server,
            programs: Programs::new(parts.socket_names),
            anchors: Anchors::default(),
            signals: parts.signals,
            tunnel_wake: parts.tunnel_wake,
            settings: parts.settings,
            epoll,
            timer,
            attachments: Attachments::default(),
            udp: UdpFlows::default(),
            events: EventRing::default(),
            event_log: parts.event_log,
            restraint: Restraint::default(),
            tally: Tally::new(SystemTime::now()),
            sessions: HashMap::new(),
            answers: Answers::new()?,
            judge,
            name_updates,
            tracking: None,
            own: BTreeSet::new(),
            suspending: None,
            moves: Moves::default(),
            next_flow_tick: now + FLOW_TICK,
            next_udp_tick: now + UDP_TICK,
            next_loss_tick: now + LOSS_TICK,
            lost_flow_events: this_far,
            unread: false,
            started: now,
            stopping: None,
        };
        let sources = [
            (this.monitor.as_fd(), MONITOR),
            (this.effects.datapath.event_fd(), DATAPATH),
            (this.tunnel_wake.as_fd(), TUNNEL),
            (this.server.listener(), LISTENER),
            (this.signals.as_fd(), SIGNALS),
            (this.timer.as_fd(), TIMER),
            (this.answers.wake(), ANSWERS),
            (this.judge.wake(), HOLDERS),
            (this.effects.helpers_wake(), HELPERS),
            (this.effects.wholes.wake(), PROCESSES),
            (this.effects.making.wake(), NAMESPACES),
            (this.effects.passes.wake(), PASSES),
        ];
        let for_others = this.effects.stand_in_fd().map(|fd| (fd, FOR_OTHERS));
        let updates = this.name_updates.as_ref().map(|updates| (updates.wake(), NAME_UPDATES));
        for (fd, token) in sources.into_iter().chain(for_others).chain(updates) {
            epoll::add(&this.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(LoopError::new("epoll_ctl"))?;
        }
        Ok(this)
    }

    /// Takes in how things stand at the start. `restored`: flows that a daemon before this one had introduced.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub(crate) fn begin(&mut self, restored: &[FlowTuple], moves: &FoundMoves) -> Result<(), Error> {
        let taken_over = match restored.len() {
            0 => String::new(),
            1 => ", and takes over 1 connection".to_owned(),
            count => format!(", and takes over {count} connections"),
        };
        let told = Told::new("started", format!("the daemon starts with key {}{taken_over}", self.node.public_key()))
            .with("key", self.node.public_key().to_string())
            .with("restored_flows", restored.len());
        self.tell(told);
        if self.effects.is_lending_stopped() {
            self.keep_from_lending();
        }
        let known: Vec<_> =
            self.node.flows().filter_map(|view| Some((view.tuple, view.peer?))).take(TAKEN_OVER).collect();
        for (flow, peer) in known {
            self.tell(Told::taken_over(&flow, peer));
        }
        let network = self.monitor.snapshot()?;
        self.effects.begin(network.clone());
        self.own = own_addresses(&network);
        self.look_at_offer();
        self.tell_node(&network);
        self.take_in_flows(clock::now(), restored)?;
        self.node.restore_moves(clock::now(), &moves.donations, &moves.acceptances, &moves.held);
        self.node.restore_leases(clock::now(), &moves.leases, &moves.tenancies);
        self.look_after_leases(moves.tenancies.iter().map(SavedTenancy::lease));
        self.track()?;
        self.drain();
        self.effects.settle_or_retry(clock::now());
        if self.effects.datapath.others_work() {
            tracing::info!(
                "what another release has left in the kernel cannot be read: it is made anew, of the journal"
            );
            self.effects.datapath.take_over()?;
        }
        Ok(())
    }

    /// Runs until a signal asks for the end.
    ///
    /// # Errors
    /// When waiting itself fails.
    pub(crate) fn run(&mut self) -> Result<(), Error> {
        let mut ready = Vec::with_capacity(64);
        while !self.may_stop() {
            self.set_timer()?;
            ready.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(LoopError::new("epoll_wait")(errno).into()),
            }
            for event in &ready {
                self.handle_ready(event.data.u64())?;
            }
            self.serve_turns();
            self.handle_due();
            self.drain();
            self.answer_suspending();
            let gone = self.server.take_gone();
            if !gone.is_empty() {
                self.clients_gone(&gone);
                self.programs_gone(&gone);
                self.anchors_gone(&gone);
            }
            // Asked each time round: a pump wakes us a moment before it has ended.
            if !self.effects.tunnel.is_running() {
                return Err(Error::TunnelEnded);
            }
        }
        self.tell(Told::new("stopping", "the daemon was asked to stop"));
        Ok(())
    }

    /// What can be called back is, so that no program stands still until there is a daemon again. Whoever asks once more does not want to wait for that.
    fn prepare_stop(&mut self) {
        let now = clock::now();
        if self.stopping.is_some() {
            self.stopping = Some(now);
        } else {
            self.stopping = Some(now + OVER_WITHIN);
            self.call_moves_back();
        }
    }

    /// Whether it was asked to stop, so that nothing is begun any more.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    fn may_stop(&self) -> bool {
        self.stopping.is_some_and(|until| until <= clock::now() || !self.effects.is_in_the_middle())
    }

    /// Ends: leaves in place what moved connections need, or, where there are none, removes everything and returns `true`.
    pub(crate) fn shut_down(self) -> bool {
        self.effects.shut_down()
    }

    fn handle_ready(&mut self, token: u64) -> Result<(), Error> {
        match token {
            MONITOR => {
                let changed = self.monitor.drain()?;
                if changed != Changed::default() {
                    self.take_in_network_change(changed)?;
                }
            }
            DATAPATH => self.unread = true,
            TUNNEL => {
                clear(&self.tunnel_wake);
                let more = self.effects.take_in_kept(clock::now(), DATAGRAMS);
                if self.take_in_datagrams() || more {
                    let _ = rustix::io::write(&self.tunnel_wake, &1u64.to_ne_bytes());
                }
            }
            LISTENER => {
                for id in self.server.accept(clock::now()) {
                    self.watch_client(id);
                }
                if self.server.is_deaf() {
                    self.listen(epoll::EventFlags::empty());
                }
            }
            SIGNALS => {
                while let Some(signal) = self.signals.take() {
                    match signal {
                        Signal::Stop => self.prepare_stop(),
                        Signal::Reload => self.reload(),
                    }
                }
            }
            TIMER => clear(&self.timer),
            FOR_OTHERS => self.take_in_for_others(),
            HELPERS => self.effects.take_in_helpers(clock::now()),
            NAME_UPDATES => self.take_in_name_updates(),
            PROCESSES => self.take_in_processes(clock::now()),
            NAMESPACES => self.take_in_namespaces(clock::now()),
            PASSES => self.effects.take_in_passes(clock::now()),
            TRACKING => self.take_in_tracked(),
            ANSWERS => {
                for (id, reply) in self.answers.take() {
                    self.server.reply(id, &reply);
                    self.serve(id);
                }
            }
            HOLDERS => {
                clear(self.judge.wake());
                self.judge.take(&mut self.node, clock::now());
            }
            client => {
                let id = ClientId(client - FIRST_CLIENT);
                self.server.write(id);
                self.note_backlog(id);
                self.server.read(id);
                self.serve(id);
            }
        }
        Ok(())
    }

    /// Lets the node say all that it has to say: datagrams first, as others wait for them; then effects; then events.
    fn drain(&mut self) {
        let now = clock::now();
        loop {
            for (address, reason) in self.effects.take_aside() {
                self.node.stand_aside(address, reason);
            }
            self.poll_node();
            let ops = std::mem::take(&mut self.due.ops);
            let mut quiet = ops.is_empty();
            self.effects.set_suspended(self.node.is_suspended());
            let results = self.effects.carry_out(now, ops);
            // Before the peer hears that the binding is in force (P-160).
            for peer in self.effects.take_taken_ports() {
                quiet = false;
                self.node.handle_wire_port_taken(now, peer);
            }
            for (id, result) in results {
                self.node.handle_done(now, id, result);
            }
            // Words that waited for a result.
            self.poll_node();
            self.effects.follow_up(now);
            for (peer, sockets) in self.effects.take_found() {
                self.node.handle_sockets(now, peer, &sockets);
            }
            // After all that they rely on.
            while let Some((id, op)) = self.next_move_op(now) {
                quiet = false;
                self.carry_out_move(now, id, op);
                self.poll_node();
                if !self.due.ops.is_empty() {
                    break;
                }
            }
            self.hand_over();
            for event in std::mem::take(&mut self.due.events) {
                self.note(now, event);
            }
            for told in self.effects.take_told() {
                self.tell(told);
            }
            self.poll_node();
            if quiet && self.due.is_empty() && !self.moves.may_go_on() {
                return;
            }
        }
    }

    /// Takes what the node gives out: datagrams are sent, what else there is waits for its turn.
    pub(crate) fn poll_node(&mut self) {
        while let Some(output) = self.node.poll() {
            match output {
                Output::Transmit(transmit) => self.transmit(&transmit),
                Output::Op(id, Op::Move(op)) => self.due.moves.push_back((id, op)),
                Output::Op(id, op) => self.due.ops.push((id, op)),
                Output::Event(event) => self.due.events.push(event),
            }
        }
    }

    fn transmit(&mut self, transmit: &Transmit) {
        let sent = self.effects.tunnel.send_control(transmit.source, transmit.destination, &transmit.payload);
        if let Err(error) = sent {
            // Whoever wants an answer asks again.
            tracing::debug!(to = %transmit.destination, from = ?transmit.source, %error, "cannot send");
        }
    }

    fn carry_out_move(&mut self, now: Time, id: OpId, op: MoveOp) {
        if matches!(op, MoveOp::Restore { .. }) {
            // A socket that comes back here is not to be taken for the one of its name that was ended before.
            self.take_in_datapath_events(now, Most::OF_SOCKETS);
        }
        // Without what it carries, which may be all that a socket has not sent yet.
        let ((op_of, number), begun) = (op.kind(), clock::monotonic());
        let given = match &op {
            MoveOp::Freeze { name, .. } | MoveOp::Dump { name } => Some(*name),
            _ => None,
        };
        let Self { effects, node, .. } = self;
        let result = effects.carry_out_move(now, id, op, |key| known(node, key));
        if let (Some(name), Some(Err(failed))) = (given, &result) {
            self.note_unmovable(&name, failed);
        }
        let (at_us, took_us) = (begun.as_micros(), (clock::monotonic() - begun).as_micros());
        let done = result.as_ref().map(Result::is_ok);
        tracing::debug!(number, at_us, took_us, done, "move: {op_of}");
        if let Some(result) = result {
            self.node.handle_done(now, id, result);
        }
    }

    /// Something happened in the node.
    fn note(&mut self, now: Time, event: Event) {
        let event = match event {
            Event::Move(event) => return self.note_move(event),
            event => event,
        };
        if let Event::PeerReached { peer, .. } = &event {
            self.sessions.insert(*peer, now);
        }
        self.tally.note(&event);
        self.learn_of_moves(&event);
        if self.restraint.admits(now, &event) {
            Told::of(&event).into_iter().for_each(|told| self.tell(told));
        } else if let Some(kind) = restrained(&event) {
            self.tally.count(kind);
        }
    }

    /// Keeps an event, logs it, and tells it to those who follow.
    pub(crate) fn tell(&mut self, told: Told) {
        if told.is_of_connection() {
            // A busy server would fill its log.
            tracing::debug!("{}", told.sentence);
        } else if told.is_a_failure() {
            tracing::warn!("{}", told.sentence);
        } else {
            tracing::info!("{}", told.sentence);
        }
        self.tally.count(told.kind);
        let record = self.events.push(SystemTime::now(), clock::monotonic(), told);
        if let Some(log) = &mut self.event_log {
            log.write(record);
        }
        for id in self.server.tell(record) {
            self.watch_client(id);
        }
    }

    fn take_in_network_change(&mut self, changed: Changed) -> Result<(), Error> {
        if changed.lost {
            tracing::warn!("events of the network were lost; looking at all of it again");
        }
        if changed.own {
            self.effects.look_again();
        }
        if changed.attachment() { self.take_in_network() } else { Ok(()) }
    }

    fn take_in_network(&mut self) -> Result<(), Error> {
        let network = self.monitor.snapshot()?;
        let changed = network != self.effects.network;
        // An address that is back must be let go of before anything is sent from it: what leaves from an address that is
        // kept goes to the tunnel's device.
        let back = own_addresses(&network).iter().any(|address| self.effects.kept_addresses().contains(address));
        if changed && back {
            self.effects.network_changed(clock::now(), network.clone());
        }
        self.tell_node(&network);
        // Peers are told first; what the kernel has to do for it comes after.
        self.poll_node();
        self.tell_left_behind(&network);
        if changed && !back {
            self.effects.network_changed(clock::now(), network);
        } else if !changed {
            self.effects.routes_changed(clock::now());
        }
        self.look_at_offer();
        Ok(())
    }

    /// Names what is left behind at addresses that are gone.
    fn tell_left_behind(&mut self, network: &NetworkState) {
        let own = own_addresses(network);
        let before = std::mem::replace(&mut self.own, own);
        let gone: Vec<IpAddr> = before.difference(&self.own).copied().collect();
        if let Some(told) = unmoved::left_behind(&gone) {
            self.tell(told);
        }
    }

    fn tell_node(&mut self, network: &NetworkState) {
        let connected = |usable: &&UsableAddress| network.link(usable.interface).is_some_and(|link| link.carrier);
        let losses = |interface| network.link(interface).map_or(0, |link| link.carrier_losses);
        let sightings: Vec<Sighting> = network
            .addresses
            .iter()
            .filter(connected)
            .map(|usable| Sighting {
                address: usable.address,
                interface: usable.interface,
                carrier_losses: losses(usable.interface),
                made: usable.made,
            })
            .collect();
        let attachments = self.attachments.update(&sightings);
        tracing::debug!(?attachments, "network");
        if let Some(updates) = &mut self.name_updates {
            let usual = source_ways(network);
            let there = |usable: &&UsableAddress| connected(usable) && !usable.deprecated;
            let addresses = network.addresses.iter().filter(there).map(|usable| usable.address);
            updates.set(addresses.filter(|address| usual.contains_key(address)));
        }
        self.routes.take_in(network, self.node.peers());
        self.node.handle_network(clock::now(), &attachments, &self.routes);
    }

    /// Takes in what has come, initiations last: the words of peers do not wait for what anybody may ask. Initiations have
    /// their share all the same, or whoever never stops talking would keep others from beginning. Whether there may be more.
    fn take_in_datagrams(&mut self) -> bool {
        let began = clock::now();
        let mut more = true;
        for _ in 0..DATAGRAMS {
            let Some(received) = self.effects.tunnel.receive_control() else {
                more = false;
                break;
            };
            self.take_in_datagram(received);
            if clock::now().since(began) > DATAGRAMS_WITHIN {
                break;
            }
        }
        let began = clock::now();
        while clock::now().since(began) < INITIATIONS_WITHIN {
            let Some(received) = self.effects.tunnel.receive_initiation() else { return more };
            self.take_in_datagram(received);
        }
        true
    }

    fn take_in_datagram(&mut self, received: Received) {
        let now = clock::now();
        match received {
            Received::Datagram { source, destination, bytes, .. } => {
                self.node.handle_datagram(now, source, destination, &bytes);
            }
            Received::Error(report) if report.is_port_unreachable() => {
                self.node.handle_unreachable(now, report.destination, report.quoted);
            }
            // Anything else may pass (RFC 8085 §5.2): whoever waits asks again.
            Received::Error(report) => tracing::debug!(?report, "a datagram did not arrive"),
        }
        // Answers do not wait for what else has come.
        self.poll_node();
    }

    /// Tells what became of this host's name.
    fn take_in_name_updates(&mut self) {
        let Some(updates) = &mut self.name_updates else { return };
        clear(updates.wake());
        for told in updates.take() {
            self.tell(told);
        }
    }

    /// Takes in what came for hosts that have left this host's links.
    fn take_in_for_others(&mut self) {
        for _ in 0..DATAGRAMS {
            match self.effects.receive_for_others() {
                Some(Seen::Datagram { address, source, payload }) => {
                    self.node.handle_intercepted(clock::now(), address, source, &payload);
                }
                Some(Seen::Claimed { .. } | Seen::Other) => {}
                None => return,
            }
        }
    }

    /// Follows what hosts behind this one open.
    fn track(&mut self) -> Result<(), Error> {
        if self.settings.config.gateway.behind.is_empty() {
            return Ok(());
        }
        let node = &self.node;
        match Tracking::open(|flow| node.is_behind(flow.local.ip())) {
            Ok((tracking, found)) => {
                let now = clock::now();
                found.into_iter().for_each(|flow| self.node.handle_passing_opened(now, flow));
                epoll::add(&self.epoll, &tracking, epoll::EventData::new_u64(TRACKING), epoll::EventFlags::IN)
                    .map_err(LoopError::new("epoll_ctl"))?;
                self.tracking = Some(tracking);
            }
            Err(error) => {
                tracing::warn!(%error, "connections that hosts behind this one open themselves cannot be moved");
            }
        }
        Ok(())
    }

    fn take_in_tracked(&mut self) {
        let Self { tracking, node, .. } = self;
        let now = clock::now();
        if let Some(tracking) = tracking {
            tracking.take(|flow| node.handle_passing_opened(now, flow));
        }
    }

    /// Takes in what the data plane reports, `most` at once: whoever makes it report faster than can be answered is not to keep this
    /// host from its timers, hand-offs and end (P-142).
    pub(crate) fn take_in_datapath_events(&mut self, now: Time, most: Most) {
        let Self { node, effects, sockets, judge, .. } = self;
        let own = own_addresses(&effects.network);
        let own = |address: IpAddr| own.contains(&address);
        let kept = effects.kept_addresses().to_vec();
        // P-35: what is introduced has a socket, with an address of this host's. That of a datagram flow may be younger than
        // the last listing, and the birth of a connection may have been missed.
        let here = |flow: &FlowTuple| own(flow.local.ip()) || kept.contains(&flow.local.ip());
        let mut look_up = |node: &mut Node, judge: &mut Judge, flow: &FlowTuple| {
            if node.has_flow(flow) || !is_movable(flow, &own) {
                return;
            }
            match sockets.find(flow) {
                Ok(Some(_)) => {
                    node.handle_flow_opened(now, *flow, true);
                    judge.consider(node, now, *flow);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(%flow, %error, "cannot look for a socket"),
            }
        };
        // A host behind this one may be the one that is meant; its sockets are not seen.
        let passes = |node: &mut Node, judge: &mut Judge, gateway: &mut Gateway, seen: &Introduction| {
            if !node.is_behind(seen.seen.local.ip()) || !is_movable(&seen.seen, &own) {
                return false;
            }
            node.handle_flow_passing(now, seen.seen, seen.index, seen.nonce);
            if node.has_flow(&seen.seen) {
                gateway.hear(seen.seen, seen.sequence, seen.acknowledgement);
                judge.consider(node, now, seen.seen);
            }
            true
        };
        let (mut acknowledged, mut flows, mut leased, mut closed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let entries = effects.journal.flows();
        let in_endpoint = |flow: &FlowTuple| entries.get(flow).is_some_and(|entry| entry.end == LocalEnd::Endpoint);
        let drained = effects.datapath.drain_events(most, |event| match event {
            // A frame on the link may name any destination.
            DatapathEvent::Introduction(introduction) => {
                if here(&introduction.seen) || in_endpoint(&introduction.seen) {
                    look_up(node, judge, &introduction.seen);
                } else if !passes(node, judge, &mut effects.gateway, &introduction) {
                    return;
                }
                node.handle_introduction(now, introduction.seen, introduction.index, introduction.nonce);
            }
            DatapathEvent::FlowOpened { flow, origin, user } => {
                flows.push((flow, true));
                if node.lessor_of(flow.local).is_some() {
                    leased.push((flow, Some(origin == Origin::Accepted)));
                } else if is_movable(&flow, &own) {
                    node.handle_flow_opened(now, flow, origin == Origin::Accepted);
                    node.note_user(&flow, user);
                    judge.consider(node, now, flow);
                }
            }
            DatapathEvent::HeardNatively { flow } => node.handle_heard_natively(now, flow),
            DatapathEvent::FlowStalled(flow) => node.handle_flow_stalled(now, flow),
            DatapathEvent::Acknowledged { flow, next, window } => acknowledged.push((flow, next, window)),
            DatapathEvent::FlowClosed { flow } if in_endpoint(&flow) => closed.push(flow),
            DatapathEvent::FlowClosed { flow } => {
                flows.push((flow, false));
                leased.push((flow, None));
                node.handle_flow_closed(now, flow);
            }
            DatapathEvent::Claimed(flow) => node.handle_claim(now, flow),
        });
        for flow in closed.into_iter().filter(|flow| effects.is_closed(flow)) {
            flows.push((flow, false));
            node.handle_flow_closed(now, flow);
        }
        effects.take_in_acknowledged(now, &acknowledged);
        effects.take_in_flows(now, &flows);
        // Whatever became of them, in that order.
        for (flow, opened) in leased {
            match opened {
                Some(accepted) => effects.note_young(now, flow, accepted),
                None => effects.forget_young(&flow),
            }
        }
        match drained {
            Ok(more) => self.unread |= more,
            Err(error) => tracing::error!(%error, "cannot read what the data plane reports"),
        }
    }

    /// Lists all connections. Those of `known` that are not among them are closed.
    fn take_in_flows(&mut self, now: Time, known: &[FlowTuple]) -> Result<(), Error> {
        let own = own_addresses(&self.effects.network);
        let found = list_tcp(&mut self.sockets, &|address| own.contains(&address))?;
        let there: HashSet<FlowTuple> = found.iter().map(|found| found.flow).collect();
        for found in found {
            self.node.handle_flow_opened(now, found.flow, found.accepted);
            self.node.note_user(&found.flow, found.user);
            self.judge.consider(&mut self.node, now, found.flow);
        }
        self.take_in_udp(now);
        let udp = &self.udp;
        for flow in known.iter().filter(|flow| !there.contains(flow) && !udp.contains(flow)) {
            if !self.effects.is_elsewhere(flow) {
                self.node.handle_flow_closed(now, *flow);
            }
        }
        Ok(())
    }

    pub(crate) fn take_in_udp(&mut self, now: Time) {
        let own = own_addresses(&self.effects.network);
        match self.udp.update(&mut self.sockets, &|address| own.contains(&address)) {
            Ok((opened, closed)) => {
                for found in opened {
                    self.node.handle_flow_opened(now, found.flow, found.accepted);
                    self.node.note_user(&found.flow, found.user);
                    self.judge.consider(&mut self.node, now, found.flow);
                }
                for flow in closed {
                    self.node.handle_flow_closed(now, flow);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot list UDP sockets"),
        }
        match bound_ports(&mut self.sockets) {
            Ok(mut bound) => {
                bound.extend(self.effects.ports_elsewhere());
                self.node.handle_bound_ports(bound, ephemeral_ports());
            }
            Err(error) => tracing::warn!(%error, "cannot list the ports that sockets are bound to"),
        }
        if let Err(failure) = self.effects.look_at_filters() {
            tracing::warn!(%failure, "cannot tell the data plane whether a reverse path filter is strict");
        }
        for flow in self.effects.ended_flows() {
            self.node.handle_flow_closed(now, flow);
        }
    }

    fn handle_due(&mut self) {
        let now = clock::now();
        if self.node.poll_timeout().is_some_and(|due| due <= now) {
            self.node.handle_timeout(now);
            self.poll_node();
        }
        if self.effects.poll_timeout().is_some_and(|due| due <= now) {
            self.effects.handle_timeout(now);
        }
        if std::mem::take(&mut self.unread) || self.next_flow_tick <= now {
            self.take_in_datapath_events(now, REPORTS);
        }
        if self.next_flow_tick <= now {
            self.next_flow_tick = now + FLOW_TICK;
            self.judge.look(&mut self.node, now);
            self.programs_due(now);
            self.anchors_due(now);
            self.effects.look_for_ports();
            self.take_in_processes(now);
            self.retire_listeners(now);
            self.look_after_clients(now);
        }
        if self.next_loss_tick <= now {
            self.next_loss_tick = now + LOSS_TICK;
            self.make_up_for_losses(now);
            for told in self.restraint.left_out(now) {
                self.tell(told);
            }
            let there: HashSet<PeerId> = self.node.peers().map(|view| view.id).collect();
            self.sessions.retain(|peer, _| there.contains(peer));
        }
        if self.next_udp_tick <= now {
            self.next_udp_tick = now + UDP_TICK;
            self.take_in_udp(now);
            self.effects.look_for_left();
        }
    }

    /// Clients that ask nothing go; where no descriptor was left for who waits, there may be one now.
    fn look_after_clients(&mut self, now: Time) {
        let was_deaf = self.server.is_deaf();
        for id in self.server.look_again(now) {
            self.watch_client(id);
        }
        if was_deaf && !self.server.is_deaf() {
            self.listen(epoll::EventFlags::IN);
        }
    }

    /// Whether whoever connects to the control socket wakes this thread.
    fn listen(&self, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.epoll, self.server.listener(), data, flags) {
            tracing::warn!(%error, "cannot change whether clients of the control socket are waited for");
        }
    }

    /// Lists all connections again where the data plane had more to report than was read in time.
    fn make_up_for_losses(&mut self, now: Time) {
        let lost = match self.effects.lost_flow_events() {
            Ok(lost) => lost,
            Err(failure) => {
                tracing::warn!(%failure, "cannot read the data plane's counters");
                return;
            }
        };
        if lost == self.lost_flow_events {
            return;
        }
        self.lost_flow_events = lost;
        tracing::info!("connections opened and closed faster than could be followed; listing them all");
        let known: Vec<FlowTuple> = self.node.flows().map(|flow| flow.tuple).collect();
        if let Err(error) = self.take_in_flows(now, &known) {
            tracing::warn!(%error, "cannot list connections");
        }
        self.effects.look_for_ended(now);
    }

    fn set_timer(&self) -> Result<(), Error> {
        let told = self.suspending.as_ref().map(|suspending| suspending.until);
        let unread = (self.unread || self.server.has_turns()).then_some(self.started);
        let (node, effects) = (self.node.poll_timeout(), self.effects.poll_timeout());
        let due = [node, effects, Some(self.next_flow_tick), told, self.stopping, unread];
        // The clock starts at boot, so no moment that is meant is zero, which would stop the timer.
        let micros = due.into_iter().flatten().min().map_or(0, Time::as_micros).max(1);
        let value = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(micros % 1_000_000 * 1000).unwrap_or(0),
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value).map_err(LoopError::new("timerfd_settime"))?;
        Ok(())
    }
}

/// Takes the count out of an eventfd or timerfd; what it stands for is looked at in any case.
fn clear(fd: impl AsFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(fd, &mut count);
}
