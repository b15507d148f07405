//! The control thread: waits for everything, tells the node, and carries out what it asks for.

mod reload;
mod reports;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use whimbrel_datapath::Most;
use whimbrel_ipc::Reply;
use whimbrel_kernel::conntrack::Tracking;
use whimbrel_kernel::network::{NetworkMonitor, NetworkState, UsableAddress};
use whimbrel_kernel::peer_route::PeerRoutes;
use whimbrel_kernel::signals::{Signal, Signals};
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_protocol::{Event, MoveOp, Node, Op, OpId, Output, PeerId, SavedTenancy, Time, Transmit};
use whimbrel_tunnel::Received;
use whimbrel_wire::FlowTuple;

use crate::api::requests::Suspending;
use crate::api::server::{ClientId, Server};
use crate::config::{Config, Level};
use crate::effects::Effects;
use crate::event_log::EventLog;
use crate::events::{self, EventRing, Report, Restraint, told};
use crate::host::inventory::flows::UdpFlows;
use crate::host::inventory::unmoved;
use crate::host::{own_addresses, source_routes};
use crate::link::attachments::{Attachments, Sighting};
use crate::link::route_lookup::RouteLookup;
use crate::metrics::Tally;
use crate::name_server::NameUpdates;
use crate::policy::Judge;
use crate::reactor::{LoopError, Reactor, Ready, clear};
use crate::role::anchor::api::Anchors;
use crate::role::community;
use crate::role::programs::{Programs, SocketNames};
use crate::role::relocation::api::{Moves, known};
use crate::role::relocation::executor::FoundMoves;
use crate::work::Work;
use crate::{Error, clock};
pub(crate) use reload::warn_of;

/// How often opened and closed connections are taken in: nothing is done about one in its first second (P-15), and the
/// data plane does not wake us for each.
pub(crate) const FLOW_TICK: Duration = Duration::from_millis(250);
/// How often UDP sockets are listed.
const UDP_TICK: Duration = Duration::from_secs(5);
/// Datagrams that are taken in before everything else is looked at again: whoever sends them faster than they can be
/// answered is not to keep this host from noticing that it has moved, or from stopping.
pub(crate) const DATAGRAMS: usize = 128;
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
    pub(crate) routes: RouteLookup,
    sockets: SockDiag,
    pub(crate) server: Server,
    pub(crate) programs: Programs,
    pub(crate) anchors: Anchors,
    signals: Signals,
    tunnel_wake: OwnedFd,
    pub(crate) settings: Settings,
    pub(crate) reactor: Reactor<Self>,
    pub(crate) attachments: Attachments,
    udp: UdpFlows,
    pub(crate) events: EventRing,
    event_log: Option<EventLog>,
    pub(crate) restraint: Restraint,
    pub(crate) tally: Tally,
    /// When each peer's session came up.
    pub(crate) sessions: HashMap<PeerId, Time>,
    pub(crate) answers: Work<(ClientId, Reply)>,
    judge: Judge,
    pub(crate) name_updates: Option<NameUpdates>,
    /// Connections of others that this host forwards, where it speaks for some of them.
    pub(crate) tracking: Option<Tracking>,
    /// This host's addresses.
    own: BTreeSet<IpAddr>,
    /// Clients that suspended this host and have no answer yet.
    pub(crate) suspending: Option<Suspending>,
    pub(crate) moves: Moves,
    lost_flow_events: u64,
    /// The data plane has more to report than has been read.
    unread: bool,
    pub(crate) started: Time,
    /// It was asked to stop, and does so then at the latest.
    stopping: Option<Time>,
    /// It cannot go on.
    failed: Option<Error>,
}

impl EventLoop {
    /// Takes in how things stand: attachments and open connections.
    ///
    /// # Errors
    /// When the loop's own descriptors cannot be made, or the state cannot be read.
    pub(crate) fn new(parts: Parts) -> Result<Self, Error> {
        let now = clock::now();
        // The counter outlives daemons.
        let this_far = parts.effects.host.lost_flow_events().unwrap_or(0);
        let mut node = parts.node;
        let settings = &parts.settings;
        let name_updates = settings.config.dns.clone().map(|server| NameUpdates::start(server, &settings.state_dir));
        let name_updates = name_updates.transpose().map_err(LoopError::new("clone"))?;
        let judge = Judge::new(parts.settings.config.policies.clone(), &mut node).map_err(LoopError::new("eventfd"))?;
        let mut this = Self {
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
            reactor: Reactor::new()?,
            attachments: Attachments::default(),
            udp: UdpFlows::default(),
            events: EventRing::default(),
            event_log: parts.event_log,
            restraint: Restraint::default(),
            tally: Tally::new(SystemTime::now()),
            sessions: HashMap::new(),
            answers: Work::new().map_err(LoopError::new("eventfd"))?,
            judge,
            name_updates,
            tracking: None,
            own: BTreeSet::new(),
            suspending: None,
            moves: Moves::default(),
            lost_flow_events: this_far,
            unread: false,
            started: now,
            stopping: None,
            failed: None,
        };
        this.register()?;
        Ok(this)
    }

    /// Takes in how things stand at the start. `restored`: flows that a daemon before this one had introduced.
    /// `register`: what all others wait for.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub(crate) fn begin(
        &mut self,
        restored: &[FlowTuple],
        moves: &FoundMoves,
        register: fn(&mut Self) -> Result<(), LoopError>,
    ) -> Result<(), Error> {
        let taken_over = match restored.len() {
            0 => String::new(),
            1 => ", and takes over 1 connection".to_owned(),
            count => format!(", and takes over {count} connections"),
        };
        let key = self.node.public_key();
        self.tell(told!(
            Started { key, restored_flows: restored.len() },
            "the daemon starts with key {key}{taken_over}"
        ));
        if self.effects.lender.is_lending_stopped() {
            self.keep_from_lending();
        }
        let known: Vec<_> =
            self.node.flows().filter_map(|view| Some((view.tuple, view.peer?))).take(TAKEN_OVER).collect();
        for (flow, peer) in known {
            self.tell(Report::taken_over(&flow, peer));
        }
        let network = self.monitor.snapshot()?;
        self.effects.host.begin(network.clone());
        self.own = own_addresses(&network);
        self.check_offer();
        self.update_node(&network);
        self.handle_flows(clock::now(), restored)?;
        self.node.restore_moves(clock::now(), &moves.donations, &moves.acceptances, &moves.held);
        self.node.restore_leases(clock::now(), &moves.leases, &moves.tenancies);
        self.check_leases(moves.tenancies.iter().map(SavedTenancy::lease));
        register(self)?;
        self.drain();
        self.effects.host.settle_or_retry(clock::now());
        if self.effects.host.datapath.others_work() {
            tracing::info!("what another release has left in the kernel cannot be read: it is made anew, of the store");
            self.effects.host.datapath.take_over()?;
        }
        Ok(())
    }

    /// Runs until a signal asks for the end.
    ///
    /// # Errors
    /// When waiting itself fails.
    pub(crate) fn run(&mut self) -> Result<(), Error> {
        while !self.may_stop() {
            for ready in self.reactor.wait(self)? {
                match ready {
                    Ready::Source(handle) => handle(self),
                    Ready::Passing(client) => self.handle_client(ClientId(client)),
                }
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
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            // Asked each time round: a pump wakes us a moment before it has ended.
            if !self.effects.host.tunnel.is_running() {
                return Err(Error::TunnelEnded);
            }
        }
        self.tell(told!(Stopping {}, "the daemon was asked to stop"));
        Ok(())
    }

    /// What can be called back is, so that no program stands still until there is a daemon again. Whoever asks once
    /// more does not want to wait for that.
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

    /// Ends: leaves in place what moved connections need, or, where there are none, removes everything and returns
    /// `true`.
    pub(crate) fn shut_down(self) -> bool {
        self.effects.shut_down()
    }

    /// What the loop itself waits for. Moments that come together are served in this order.
    fn register(&mut self) -> Result<(), LoopError> {
        let Self { reactor, monitor, effects, tunnel_wake, signals, judge, name_updates, started: now, .. } = self;
        reactor.on(&*monitor, Self::handle_network_change)?;
        reactor.on(effects.host.datapath.event_fd(), |this| {
            this.unread = true;
        })?;
        reactor.on(&*tunnel_wake, |this| {
            this.take_in_tunnel();
        })?;
        reactor.on(&*signals, |this| {
            this.take_in_signals();
        })?;
        reactor.on(judge.wake(), |this| {
            clear(this.judge.wake());
            this.judge.take(&mut this.node, clock::now());
        })?;
        reactor.on(effects.host.senders.wake(), |this| {
            this.effects.handle_passes(clock::now());
        })?;
        if let Some(updates) = name_updates {
            reactor.on(updates.wake(), |this| {
                this.handle_name_updates();
            })?;
        }
        reactor.at(
            |this| this.node.poll_timeout(),
            |this, now| {
                this.node.handle_timeout(now);
                this.poll_node();
            },
        );
        reactor.at(|this| this.effects.poll_timeout(), |this, now| this.effects.handle_timeout(now));
        reactor.at(|this| this.unread.then_some(this.started), |this, now| this.handle_datapath_events(now, REPORTS));
        // There is something to do then, after all events.
        reactor.at(|this| this.stopping, |_, _| {});
        reactor.every(*now, FLOW_TICK, |this, now| {
            this.handle_datapath_events(now, REPORTS);
            this.judge.look(&mut this.node, now);
            this.effects.host.check_for_ports();
        });
        reactor.every(*now, LOSS_TICK, Self::look_for_losses);
        reactor.every(*now, UDP_TICK, |this, now| {
            this.handle_udp(now);
            this.effects.lender.check_for_left(|flow| this.effects.processes.rebuilds(flow), &mut this.effects.host);
        });
        Ok(())
    }

    fn take_in_tunnel(&mut self) {
        clear(&self.tunnel_wake);
        let more = self.effects.helping.handle_kept(&mut self.effects.host, clock::now(), DATAGRAMS);
        if self.handle_datagrams() || more {
            let _ = rustix::io::write(&self.tunnel_wake, &1u64.to_ne_bytes());
        }
    }

    fn take_in_signals(&mut self) {
        while let Some(signal) = self.signals.take() {
            match signal {
                Signal::Stop => self.prepare_stop(),
                Signal::Reload => self.reload(),
            }
        }
    }

    /// Lets the node say all that it has to say: datagrams first, as others wait for them; then effects; then events.
    fn drain(&mut self) {
        let now = clock::now();
        loop {
            for (address, reason) in self.effects.proxy.take_aside() {
                self.node.stand_aside(address, reason);
            }
            self.poll_node();
            let ops = std::mem::take(&mut self.due.ops);
            let mut quiet = ops.is_empty();
            self.effects.helping.set_suspended(self.node.is_suspended());
            let results = self.effects.carry_out(now, ops);
            // Before the peer hears that the binding is in force (P-160).
            for peer in self.effects.host.take_taken_ports() {
                quiet = false;
                self.node.handle_wire_port_taken(now, peer);
            }
            for (id, result) in results {
                self.node.handle_done(now, id, result);
            }
            // Words that waited for a result.
            self.poll_node();
            self.effects.follow_up(now);
            for (peer, sockets) in self.effects.host.take_found() {
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
                self.record(now, event);
            }
            for told in self.effects.helping.take_told() {
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
        let sent =
            self.effects.host.tunnel.send_control(transmit.source, None, transmit.destination, &transmit.payload);
        if let Err(error) = sent {
            // Whoever wants an answer asks again.
            tracing::debug!(to = %transmit.destination, from = ?transmit.source, %error, "cannot send");
        }
    }

    fn carry_out_move(&mut self, now: Time, id: OpId, op: MoveOp) {
        if matches!(op, MoveOp::Restore { .. }) {
            // A socket that comes back here is not to be taken for the one of its name that was ended before.
            self.handle_datapath_events(now, Most::OF_SOCKETS);
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
            self.on_unmovable(&name, failed);
        }
        let (at_us, took_us) = (begun.as_micros(), (clock::monotonic() - begun).as_micros());
        let done = result.as_ref().map(Result::is_ok);
        tracing::debug!(number, at_us, took_us, done, "move: {op_of}");
        if let Some(result) = result {
            self.node.handle_done(now, id, result);
        }
    }

    /// Something happened in the node.
    fn record(&mut self, now: Time, event: Event) {
        let event = match event {
            Event::Move(event) => return self.on_move(event),
            event => event,
        };
        if let Event::PeerReached { peer, .. } = &event {
            self.sessions.insert(*peer, now);
        }
        self.tally.record(&event);
        self.learn_of_moves(&event);
        let told = match &event {
            Event::Community(event) => community::events::report(event),
            event => events::report(event),
        };
        told.into_iter().for_each(|told| self.tell_restrained(now, told));
    }

    /// Tells it, unless others cause too many such events.
    pub(crate) fn tell_restrained(&mut self, now: Time, told: Report) {
        if self.restraint.admits(now, &told) {
            self.tell(told);
        } else {
            self.tally.count(told.kind);
        }
    }

    /// Keeps an event, logs it, and tells it to those who follow.
    pub(crate) fn tell(&mut self, told: Report) {
        if told.kind.is_of_connection() {
            // A busy server would fill its log.
            tracing::debug!("{}", told.sentence);
        } else if told.kind.is_a_failure() {
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

    fn handle_network_change(&mut self) {
        let drained = self.monitor.drain().map_err(Error::from);
        let taken_in = drained.and_then(|changed| {
            if changed.lost {
                tracing::warn!("events of the network were lost; looking at all of it again");
            }
            if changed.own {
                self.effects.host.check_again();
            }
            if changed.attachment() { self.handle_network() } else { Ok(()) }
        });
        self.failed = taken_in.err();
    }

    fn handle_network(&mut self) -> Result<(), Error> {
        let network = self.monitor.snapshot()?;
        let changed = network != self.effects.host.network;
        // An address that is back must be let go of before anything is sent from it: what leaves from an address that
        // is kept goes to the tunnel's device.
        let back = own_addresses(&network).iter().any(|address| self.effects.host.kept_addresses().contains(address));
        if changed && back {
            self.effects.network_changed(clock::now(), network.clone());
        }
        self.update_node(&network);
        // Peers are told first; what the kernel has to do for it comes after.
        self.poll_node();
        self.report_left_behind(&network);
        if changed && !back {
            self.effects.network_changed(clock::now(), network);
        } else if !changed {
            self.effects.host.routes_changed(clock::now());
        }
        self.check_offer();
        Ok(())
    }

    /// Names what is left behind at addresses that are gone.
    fn report_left_behind(&mut self, network: &NetworkState) {
        let own = own_addresses(network);
        let before = std::mem::replace(&mut self.own, own);
        let gone: Vec<IpAddr> = before.difference(&self.own).copied().collect();
        if let Some(told) = unmoved::left_behind(&gone) {
            self.tell(told);
        }
    }

    fn update_node(&mut self, network: &NetworkState) {
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
            let usual = source_routes(network);
            let there = |usable: &&UsableAddress| connected(usable) && !usable.deprecated;
            let addresses = network.addresses.iter().filter(there).map(|usable| usable.address);
            updates.set(addresses.filter(|address| usual.contains_key(address)));
        }
        self.routes.handle(network, self.node.peers());
        self.node.handle_network(clock::now(), &attachments, &self.routes);
    }

    /// Takes in what has come, initiations last: the words of peers do not wait for what anybody may ask. Initiations
    /// have their share all the same, or whoever never stops talking would keep others from beginning. Whether there
    /// may be more.
    fn handle_datagrams(&mut self) -> bool {
        let began = clock::now();
        let mut more = true;
        for _ in 0..DATAGRAMS {
            let Some(received) = self.effects.host.tunnel.receive_control() else {
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
            let Some(received) = self.effects.host.tunnel.receive_initiation() else { return more };
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
    fn handle_name_updates(&mut self) {
        let Some(updates) = &mut self.name_updates else { return };
        clear(updates.wake());
        for told in updates.take() {
            self.tell(told);
        }
    }

    fn handle_due(&mut self) {
        let now = clock::now();
        let due = self.reactor.due(self, now);
        self.reactor.renew(now);
        due.into_iter().for_each(|handle| handle(self, now));
    }
}
