//! The control thread: waits for everything, tells the node, and carries out what it asks for.

mod forget;
mod reload;
mod reports;
mod requests;
mod sources;
pub(crate) mod tellers;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use whimbrel_datapath::Most;
use whimbrel_ipc::Reply;
use whimbrel_kernel::inject::Way;
use whimbrel_kernel::network::{NetworkMonitor, NetworkState, UsableAddress};
use whimbrel_kernel::signals::{Signal, Signals};
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_protocol::{
    Event, FlowOp, LinkId, LinkWish, MoveEvent, MoveOp, Op, OpId, Output, PeerId, SavedTenancy, Time, Transmit,
};
use whimbrel_tunnel::Received;
use whimbrel_wire::{FlowTuple, Transport};

use crate::api::desk::{Desk, With};
use crate::api::pings::Pinging;
use crate::api::server::ClientId;
use crate::config::{Config, Level};
use crate::effects::Effects;
use crate::events::{Report, told};
use crate::host::inventory::flows::UdpFlows;
use crate::host::inventory::left_behind::LeftBehind;
use crate::host::inventory::unconnected::UnconnectedFlows;
use crate::host::inventory::unmoved;
use crate::host::{PAST_THE_HOLD, own_addresses, source_routes};
use crate::link::Detectors;
use crate::link::attachments::{Attachments, sightings};
use crate::name_server::NameUpdates;
use crate::policy::Judge;
use crate::reactor::{LoopError, Reactor, clear};
use crate::role::anchor::api::Anchors;
use crate::role::anchor::executor::tenant::Tenant;
use crate::role::links::wishes::{conditions, wishes};
use crate::role::programs::Programs;
use crate::role::relocation::api::{Moves, known};
use crate::role::relocation::executor::adopt::FoundMoves;
use crate::work::Work;
use crate::{Error, clock};
pub(crate) use reload::warn_of;
use requests::Suspending;

/// Datagrams that are taken in before everything else is looked at again: whoever sends them faster than they can be
/// answered is not to keep this host from noticing that it has moved, or from stopping.
const DATAGRAMS: usize = 128;
/// For how long they are at the most: the end of a handshake takes a tenth of this.
const DATAGRAMS_WITHIN: Duration = Duration::from_millis(3);
/// For how long initiations of handshakes are, after all else: each takes some tenths of a millisecond, and anybody may
/// send them.
const INITIATIONS_WITHIN: Duration = Duration::from_millis(1);
/// How long moves in the middle may take to be over once this daemon is asked to stop (P-117).
const OVER_WITHIN: Duration = Duration::from_secs(3);
/// Connections of a daemon before this one that are told of one by one.
const TAKEN_OVER: usize = 1000;

/// What the loop is made of.
pub(crate) struct Parts {
    pub(crate) desk: Desk,
    pub(crate) effects: Effects,
    pub(crate) monitor: NetworkMonitor,
    pub(crate) sockets: SockDiag,
    pub(crate) signals: Signals,
    /// Readable when the tunnel has something for the control thread.
    pub(crate) tunnel_wake: OwnedFd,
    pub(crate) settings: Settings,
    /// Addresses that are gone, as far as a daemon before this one knew.
    pub(crate) left: LeftBehind,
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
struct Due {
    ops: Vec<(OpId, Op)>,
    /// Behind all of those.
    moves: VecDeque<(OpId, MoveOp)>,
    events: Vec<Event>,
    late: Late,
}

/// What looks at all sockets, and nothing depends on: what has come in meanwhile goes before it.
#[derive(Default)]
struct Late {
    ops: Vec<(OpId, Op)>,
    /// Addresses that are gone, with which something may have been left behind.
    gone: Vec<IpAddr>,
}

impl Due {
    fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.moves.is_empty() && self.events.is_empty()
    }
}

impl Late {
    fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.gone.is_empty()
    }

    /// Whether an op is one that may wait.
    fn takes(op: &Op) -> bool {
        matches!(op, Op::Flow(FlowOp::EndConnecting { .. }))
    }
}

/// The control thread's state.
pub(crate) struct EventLoop {
    /// What all of what follows works with.
    desk: Desk,
    effects: Effects,
    programs: Programs,
    anchors: Anchors,
    moves: Moves,
    due: Due,
    monitor: NetworkMonitor,
    sockets: SockDiag,
    signals: Signals,
    tunnel_wake: OwnedFd,
    settings: Settings,
    reactor: Reactor<Self>,
    attachments: Attachments,
    detectors: Detectors,
    /// What the node was told of the networks that are wished for.
    wishes: Vec<LinkWish>,
    udp: UdpFlows,
    unconnected: UnconnectedFlows,
    /// When each peer's session came up.
    sessions: HashMap<PeerId, Time>,
    answers: Work<(ClientId, Reply)>,
    judge: Judge,
    name_updates: Option<NameUpdates>,
    /// This host's addresses.
    own: BTreeSet<IpAddr>,
    /// Those that it has no more.
    left: LeftBehind,
    /// Clients that suspended this host and have no answer yet.
    suspending: Option<Suspending>,
    /// Those that have asked whether hosts answer.
    pinging: Vec<Pinging>,
    lost_flow_events: u64,
    /// The data plane has more to report than has been read.
    unread: bool,
    started: Time,
    /// It was asked to stop, and does so then at the latest.
    stopping: Option<Time>,
    /// It cannot go on.
    failed: Option<Error>,
}

impl EventLoop {
    /// # Errors
    /// When the loop's own descriptors cannot be made.
    pub(crate) fn new(parts: Parts) -> Result<Self, Error> {
        let Parts { mut desk, effects, monitor, sockets, signals, tunnel_wake, settings, left } = parts;
        let name_updates = settings.config.dns.clone().map(|server| NameUpdates::start(server, &settings.state_dir));
        let policies = settings.config.policies.clone();
        let conditions = conditions(&settings.config.preferences);
        Ok(Self {
            judge: Judge::new(policies, conditions, &mut desk.node).map_err(LoopError::new("eventfd"))?,
            // The counter outlives daemons.
            lost_flow_events: desk.host.lost_flow_events().unwrap_or(0),
            desk,
            effects,
            programs: Programs::default(),
            anchors: Anchors::new(&settings.config),
            moves: Moves::new(settings.state_dir.clone()),
            due: Due::default(),
            monitor,
            sockets,
            signals,
            tunnel_wake,
            reactor: Reactor::new()?,
            attachments: Attachments::default(),
            detectors: Detectors::start(),
            wishes: Vec::new(),
            udp: UdpFlows::default(),
            unconnected: UnconnectedFlows::default(),
            sessions: HashMap::new(),
            answers: Work::new()?,
            name_updates: name_updates.transpose().map_err(LoopError::new("clone"))?,
            own: BTreeSet::new(),
            left,
            suspending: None,
            pinging: Vec::new(),
            unread: false,
            started: clock::now(),
            stopping: None,
            failed: None,
            settings,
        })
    }

    /// Takes in how things stand at the start: attachments, open connections, and what a daemon before this one has
    /// left. `restored`: flows that it had introduced.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub(crate) fn begin(&mut self, restored: &[FlowTuple], moves: &FoundMoves) -> Result<(), Error> {
        let taken_over = match restored.len() {
            0 => String::new(),
            1 => ", and takes over 1 connection".to_owned(),
            count => format!(", and takes over {count} connections"),
        };
        let key = self.desk.node.public_key();
        self.desk.tell(told!(
            Started { key, restored_flows: restored.len() },
            "the daemon starts with key {key}{taken_over}"
        ));
        if self.effects.lender.is_lending_stopped() {
            self.anchors.keep_from_lending(&mut self.desk);
        }
        let known: Vec<_> =
            self.desk.node.flows().filter_map(|view| Some((view.tuple, view.peer?))).take(TAKEN_OVER).collect();
        for (flow, peer) in known {
            self.desk.tell(Report::taken_over(&flow, peer));
        }
        // Behind those that are named: there may be more.
        let peers: Vec<_> = self.desk.node.peers().filter(|view| view.flows > 0).collect();
        peers.iter().for_each(|view| self.desk.tell(Report::peer_taken_over(view)));
        let network = self.monitor.snapshot()?;
        self.desk.host.begin(network.clone());
        self.own = self.desk.own_addresses();
        self.left.look(clock::now(), &network);
        self.save_left_behind();
        self.anchors.check_offer(&mut self.desk, &mut self.effects.lender);
        self.update_node(&network);
        self.handle_flows(clock::now(), restored)?;
        self.judge.begin(&mut self.desk.node, clock::now());
        self.desk.node.restore_moves(clock::now(), &moves.donations, &moves.acceptances, &moves.held);
        self.desk.node.restore_leases(clock::now(), &moves.leases, &moves.tenancies);
        self.anchors.check_leases(moves.tenancies.iter().map(SavedTenancy::lease));
        self.register()?;
        self.drain();
        self.desk.host.settle_or_retry(clock::now());
        if self.desk.host.datapath.others_work() {
            tracing::info!("what another release has left in the kernel cannot be read: it is made anew, of the store");
            self.desk.host.datapath.take_over()?;
        }
        Ok(())
    }

    /// Runs until a signal asks for the end.
    ///
    /// # Errors
    /// When waiting itself fails.
    pub(crate) fn run(&mut self) -> Result<(), Error> {
        while !self.may_stop() {
            let ready = self.reactor.wait(self)?;
            let late = std::mem::take(&mut self.due.late);
            for handle in ready {
                handle(self);
            }
            self.serve_turns();
            self.handle_due();
            self.drain();
            self.carry_out_late(late);
            self.answer_suspending();
            self.answer_pinging();
            self.handle_gone();
            self.desk.server.settle();
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            // Asked each time round: a pump wakes us a moment before it has ended.
            if !self.desk.host.tunnel.is_running() {
                return Err(Error::TunnelEnded);
            }
        }
        self.desk.tell(told!(Stopping {}, "the daemon was asked to stop"));
        Ok(())
    }

    /// Moves, and what they are answered with.
    fn moving(&mut self) -> (&mut Moves, With<'_, Effects>) {
        (&mut self.moves, With { desk: &mut self.desk, own: &mut self.effects })
    }

    /// Endpoints of anchors, and what they are answered with.
    fn anchoring(&mut self) -> (&mut Anchors, With<'_, Tenant>) {
        (&mut self.anchors, With { desk: &mut self.desk, own: &mut self.effects.tenant })
    }

    fn next_move_op(&mut self, now: Time) -> Option<(OpId, MoveOp)> {
        let Self { desk, effects, moves, due, .. } = self;
        moves.next_move_op(&mut With { desk, own: effects }, now, &mut due.moves)
    }

    /// What can be called back is, so that no program stands still until there is a daemon again. Whoever asks once
    /// more does not want to wait for that.
    fn prepare_stop(&mut self) {
        let now = clock::now();
        if self.stopping.is_some() {
            self.stopping = Some(now);
        } else {
            self.stopping = Some(now + OVER_WITHIN);
            let (moves, mut with) = self.moving();
            moves.call_back(&mut with);
        }
    }

    fn may_stop(&self) -> bool {
        let is_done = || self.due.late.is_empty() && !self.effects.is_in_the_middle();
        self.stopping.is_some_and(|until| until <= clock::now() || is_done())
    }

    /// Ends: leaves in place what moved connections need, or, where there are none, removes everything and returns
    /// `true`.
    pub(crate) fn shut_down(self) -> bool {
        self.effects.shut_down(self.desk.host)
    }

    fn take_in_tunnel(&mut self) {
        clear(&self.tunnel_wake);
        let more = self.effects.helpers.handle_kept(&mut self.desk.host, clock::now(), DATAGRAMS);
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
                self.desk.node.stand_aside(address, reason);
            }
            self.poll_node();
            let ops = std::mem::take(&mut self.due.ops);
            let mut quiet = ops.is_empty();
            self.effects.helpers.set_suspended(self.desk.node.is_suspended());
            let results = self.effects.carry_out(&mut self.desk.host, now, ops);
            // Before the peer hears that the binding is in force (P-160).
            for peer in self.desk.host.take_taken_ports() {
                quiet = false;
                self.desk.node.handle_wire_port_taken(now, peer);
            }
            for (id, result) in results {
                self.desk.node.handle_done(now, id, result);
            }
            // Words that waited for a result.
            self.poll_node();
            self.effects.follow_up(&mut self.desk.host, now);
            for flow in self.desk.host.take_ended() {
                quiet = false;
                self.desk.node.handle_flow_closed(now, flow);
            }
            for (peer, sockets) in self.desk.host.take_found() {
                self.desk.node.handle_sockets(now, peer, &sockets);
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
            let (moves, mut with) = self.moving();
            moves.hand_over(&mut with);
            for event in std::mem::take(&mut self.due.events) {
                self.record(now, event);
            }
            for told in self.effects.helpers.take_told() {
                self.desk.tell(told);
            }
            if self.moves.any_is_quiet() {
                self.look_again();
                let (moves, mut with) = self.moving();
                moves.go_on_with_quiet(&mut with);
            }
            self.poll_node();
            if quiet && self.due.is_empty() && !self.moves.may_go_on() {
                return;
            }
        }
    }

    /// What was put off in the turn before: answers that have come meanwhile were taken in.
    fn carry_out_late(&mut self, Late { ops, gone }: Late) {
        let gone: Vec<IpAddr> = gone.into_iter().filter(|address| !self.own.contains(address)).collect();
        if let Some(told) = unmoved::left_behind(&gone) {
            self.desk.tell(told);
        }
        if !ops.is_empty() {
            self.due.ops.extend(ops);
            self.drain();
        }
    }

    /// Takes what the node gives out: datagrams are sent, what else there is waits for its turn.
    fn poll_node(&mut self) {
        // When something has come through the tunnel: of many peers that are silent at once it is looked up once.
        let mut by_tunnel = None;
        while let Some(output) = self.desk.node.poll() {
            match output {
                Output::Transmit(transmit) => self.transmit(&transmit),
                Output::Op(id, Op::Move(op)) => self.due.moves.push_back((id, op)),
                Output::Op(id, op) if Late::takes(&op) => self.due.late.ops.push((id, op)),
                Output::Op(id, op) => self.due.ops.push((id, op)),
                Output::Event(mut event) => {
                    if let Event::NotConfirmed { peer, heard, .. } = &mut event
                        && let Some(at) = by_tunnel.get_or_insert_with(|| self.desk.host.tunnel.heard()).get(peer)
                    {
                        *heard = clock::now().since(clock::of(*at)).min(*heard);
                    }
                    self.due.events.push(event);
                }
            }
        }
    }

    fn transmit(&mut self, transmit: &Transmit) {
        let Transmit { source, link, mask, destination, payload } = transmit;
        let host = &self.desk.host;
        if let (Some(mask), Some(source)) = (mask, source) {
            let tuple = FlowTuple { transport: Transport::Udp, local: *mask, remote: *destination };
            let way = Way { mark: Some(PAST_THE_HOLD), interface: link.map(|link| link.0) };
            if let Err(error) = host.injector.send_masked(&tuple, *source, payload, way) {
                tracing::debug!(to = %destination, %mask, %error, "cannot send as from there");
            }
            return;
        }
        let sent = match host.streams().way_to(*destination) {
            Some(stream) => host.tunnel.send_control(*source, None, stream, payload),
            None => host.tunnel.send_control(*source, link.map(|link| link.0), *destination, payload),
        };
        if let Err(error) = sent {
            // Whoever wants an answer asks again.
            tracing::debug!(to = %destination, from = ?source, %error, "cannot send");
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
        let Desk { node, host, .. } = &mut self.desk;
        let result = self.effects.carry_out_move(host, now, id, op, |key| known(node, key));
        if let (Some(name), Some(Err(failed))) = (given, &result) {
            self.moves.on_unmovable(&name, failed);
        }
        let (at_us, took_us) = (begun.as_micros(), (clock::monotonic() - begun).as_micros());
        let done = result.as_ref().map(Result::is_ok);
        tracing::debug!(number, at_us, took_us, done, "move: {op_of}");
        if let Some(result) = result {
            self.desk.node.handle_done(now, id, result);
        }
    }

    /// Something happened in the node.
    fn record(&mut self, now: Time, event: Event) {
        match event {
            Event::Move(event) => return self.on_move(now, event),
            Event::PeerReached { peer, .. } => {
                self.sessions.insert(peer, now);
            }
            Event::KeyMismatch { address, .. } => self.find_another_key(address),
            _ => {}
        }
        self.anchors.learn_of_moves(&self.desk, &event);
        self.desk.count(&event);
        tellers::report(&event).into_iter().for_each(|told| self.desk.tell_restrained(now, told));
    }

    /// Something has become of a move or a lease.
    fn on_move(&mut self, now: Time, event: MoveEvent) {
        if let MoveEvent::Loaded { name, bytes } = event {
            return self.effects.processes.prepare(name, bytes);
        }
        let (anchors, mut with) = self.anchoring();
        let of_lease = anchors.on_event(&mut with, &event);
        let (moves, mut with) = self.moving();
        let of_move = moves.on_event(&mut with, &event);
        if let Some(told) = of_lease.or(of_move) {
            self.desk.tell_restrained(now, told);
        }
    }

    fn handle_network_change(&mut self) {
        let drained = self.monitor.drain().map_err(Error::from);
        let taken_in = drained.and_then(|changed| {
            if changed.lost {
                tracing::warn!("events of the network were lost; looking at all of it again");
            }
            if changed.own {
                self.desk.host.check_again();
            }
            if changed.attachment() { self.handle_network() } else { Ok(()) }
        });
        self.failed = taken_in.err();
    }

    fn handle_network(&mut self) -> Result<(), Error> {
        // What was accepted a moment ago, which wakes nobody, from addresses that this host may have left (P-204).
        self.handle_datapath_events(clock::now(), Most::OF_SOCKETS);
        self.desk.host.use_addresses_early();
        let network = self.monitor.snapshot()?;
        // Before anybody asks for routes.
        self.desk.host.pass_over_dead_links(&network);
        let changed = network != self.desk.host.network;
        if changed {
            self.desk.host.enter_network(clock::now(), &network);
        }
        // An address that is back must be let go of before anything is sent from it: what leaves from an address that
        // is kept goes to the tunnel's device.
        let back = own_addresses(&network).iter().any(|address| self.desk.host.kept_addresses().contains(address));
        if changed && back {
            self.effects.network_changed(&mut self.desk.host, clock::now(), network.clone());
        }
        self.update_node(&network);
        // Peers are told first; what the kernel has to do for it comes after.
        self.poll_node();
        self.report_left_behind(&network);
        if changed && !back {
            self.effects.network_changed(&mut self.desk.host, clock::now(), network);
        } else if !changed {
            self.desk.host.routes_changed(clock::now());
        }
        self.anchors.check_offer(&mut self.desk, &mut self.effects.lender);
        Ok(())
    }

    /// Names what is left behind at addresses that are gone.
    fn report_left_behind(&mut self, network: &NetworkState) {
        let own = own_addresses(network);
        let before = std::mem::replace(&mut self.own, own);
        self.due.late.gone.extend(before.difference(&self.own));
        self.left.look(clock::now(), network);
        self.save_left_behind();
    }

    /// Daemons to come are to know which addresses are gone.
    fn save_left_behind(&mut self) {
        for (address, told) in self.left.unsaved() {
            self.desk.host.store.save_gone(address, told);
        }
    }

    /// It is time to name the connections that the last move has left behind.
    fn tell_left_behind(&mut self, now: Time) {
        if let Some(told) = self.left.tell(now, self.desk.node.flows(), |at| self.desk.node.standing(at)) {
            self.desk.tell(told);
        }
        self.save_left_behind();
    }

    /// Tells the node what the configuration wants of the interfaces that there are.
    pub(super) fn wish_for_links(&mut self, network: &NetworkState) {
        let wishes = wishes(&self.settings.config.preferences, network);
        if self.wishes != wishes {
            self.detectors.measure(clock::now(), wishes.iter().any(|wish| wish.rules.reads_links()));
            self.desk.node.set_link_wishes(clock::now(), wishes.clone());
            self.wishes = wishes;
        }
    }

    /// Tells the node what detectors know of links.
    fn tell_link_facts(&mut self, now: Time) {
        if let Some(facts) = self.detectors.changed() {
            tracing::debug!(?facts, "links");
            self.desk.node.handle_link_facts(now, facts);
        }
    }

    /// Detectors may have something to take in.
    fn handle_detectors(&mut self, now: Time) {
        self.detectors.handle(now);
        self.tell_link_facts(now);
        self.poll_node();
    }

    fn update_node(&mut self, network: &NetworkState) {
        let connected = |usable: &&UsableAddress| network.link(usable.interface).is_some_and(|link| link.carrier);
        let attachments = self.attachments.update(&sightings(network));
        tracing::debug!(?attachments, "network");
        if let Some(updates) = &mut self.name_updates {
            let usual = source_routes(network);
            let there = |usable: &&UsableAddress| connected(usable) && !usable.deprecated;
            let addresses = network.addresses.iter().filter(there).map(|usable| usable.address);
            updates.set(addresses.filter(|address| usual.contains_key(address)));
        }
        self.wish_for_links(network);
        let now = clock::now();
        self.detectors.handle_network(now, network);
        self.tell_link_facts(now);
        self.desk.routes.handle(network, self.desk.node.peers());
        self.desk.node.handle_network(clock::now(), &attachments, &self.desk.routes);
    }

    /// Takes in what has come, initiations last: the words of peers do not wait for what anybody may ask. Initiations
    /// have their share all the same, or whoever never stops talking would keep others from beginning. Whether there
    /// may be more.
    fn handle_datagrams(&mut self) -> bool {
        let began = clock::now();
        let mut more = true;
        for _ in 0..DATAGRAMS {
            let Some(received) = self.desk.host.tunnel.receive_control() else {
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
            let Some(received) = self.desk.host.tunnel.receive_initiation() else { return more };
            self.take_in_datagram(received);
        }
        true
    }

    fn take_in_datagram(&mut self, received: Received) {
        let now = clock::now();
        match received {
            Received::Datagram { source, destination, interface, bytes } => {
                let stream = self.desk.host.streams().named(source);
                // It has come by the network that the connection goes by, and not by loopback.
                let link = interface.map(LinkId).filter(|_| stream.is_none());
                self.desk.node.handle_datagram(now, stream.unwrap_or(source), destination, link, &bytes);
            }
            Received::Error(report) if report.is_port_unreachable() => {
                self.desk.node.handle_unreachable(now, report.destination, report.quoted);
            }
            // Anything else may pass (RFC 8085 §5.2): whoever waits asks again.
            Received::Error(report) => tracing::debug!(?report, "a datagram did not arrive"),
        }
        // Answers do not wait for what else has come.
        self.poll_node();
    }

    /// Tells the node what has become of connections that it wanted.
    fn handle_streams(&mut self) {
        clear(self.desk.host.streams().wake());
        while let Some((peer, endpoint)) = self.desk.host.streams().take_told() {
            self.desk.node.handle_connection(clock::now(), peer, endpoint);
            self.poll_node();
        }
    }

    /// Tells what became of this host's name.
    fn handle_name_updates(&mut self) {
        let Some(updates) = &mut self.name_updates else { return };
        clear(updates.wake());
        for told in updates.take() {
            self.desk.tell(told);
        }
    }

    fn handle_due(&mut self) {
        let now = clock::now();
        let due = self.reactor.due(self, now);
        self.reactor.renew(now);
        due.into_iter().for_each(|handle| handle(self, now));
    }
}
