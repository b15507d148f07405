//! The control thread: waits for everything, tells the node, and carries out what it asks for.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use whimbrel_datapath::{Event as DatapathEvent, Origin};
use whimbrel_ipc::{Failure, HandoffStarted, LocalAddress, Reply, Request, Status};
use whimbrel_kernel::network::{Changed, NetworkMonitor, NetworkState, UsableAddress};
use whimbrel_kernel::peer_route::PeerRoutes;
use whimbrel_kernel::route::RouteKind;
use whimbrel_kernel::signals::{Signal, Signals};
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_protocol::{Event, Node, PeerId, PeerView, Routes, Time};
use whimbrel_wire::FlowTuple;

use crate::Error;
use crate::attachments::{Attachments, Sighting};
use crate::clock;
use crate::config::{self, Config, Level};
use crate::effects::{Effects, own_addresses};
use crate::events::{EventRing, Told};
use crate::flows::{UdpFlows, is_movable, list_tcp};
use crate::server::{ClientId, Server};
use crate::tunnel::{Counter, Received};
use crate::views;

/// How often opened and closed connections are taken in: nothing is done about one in its first second (P-15), and the
/// data plane does not wake us for each.
const FLOW_TICK: Duration = Duration::from_millis(250);
/// How often UDP sockets are listed, while there are peers that it could matter for.
const UDP_TICK: Duration = Duration::from_secs(5);
/// How often it is asked whether openings and closings were missed.
const LOSS_TICK: Duration = Duration::from_secs(10);

const MONITOR: u64 = 1;
const DATAPATH: u64 = 2;
const TUNNEL: u64 = 3;
const LISTENER: u64 = 4;
const SIGNALS: u64 = 5;
const TIMER: u64 = 6;
const ANSWERS: u64 = 7;
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
    pub(crate) signals: Signals,
    /// Readable when the tunnel has something for the control thread.
    pub(crate) tunnel_wake: OwnedFd,
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

/// The control thread's state.
pub(crate) struct EventLoop {
    node: Node,
    effects: Effects,
    monitor: NetworkMonitor,
    routes: RouteLookup,
    sockets: SockDiag,
    server: Server,
    signals: Signals,
    tunnel_wake: OwnedFd,
    settings: Settings,
    epoll: OwnedFd,
    timer: OwnedFd,
    attachments: Attachments,
    udp: UdpFlows,
    events: EventRing,
    /// When each peer's session came up.
    sessions: HashMap<PeerId, Time>,
    /// Answers that other threads have found.
    answers: (Sender<(ClientId, Reply)>, Receiver<(ClientId, Reply)>),
    answers_wake: Arc<OwnedFd>,
    next_flow_tick: Time,
    next_udp_tick: Time,
    next_loss_tick: Time,
    lost_flow_events: u64,
    started: Time,
    stopping: bool,
}

/// Asks the kernel for routes, those of ours left aside.
struct RouteLookup(RefCell<PeerRoutes>);

impl Routes for RouteLookup {
    fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        match self.0.borrow_mut().under(destination, None) {
            // A destination that is this host itself is no peer.
            Ok(route) if route.kind == RouteKind::Unicast => route.source,
            Ok(_) | Err(whimbrel_kernel::Error::Unreachable { .. }) => None,
            Err(error) => {
                tracing::warn!(%destination, %error, "cannot look up a route");
                None
            }
        }
    }
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
        let answers_wake =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(LoopError::new("eventfd"))?;
        let now = clock::now();
        // The counter outlives daemons.
        let this_far = parts.effects.lost_flow_events().unwrap_or(0);
        let this = Self {
            node: parts.node,
            effects: parts.effects,
            monitor: parts.monitor,
            routes: RouteLookup(RefCell::new(parts.routes)),
            sockets: parts.sockets,
            server: parts.server,
            signals: parts.signals,
            tunnel_wake: parts.tunnel_wake,
            settings: parts.settings,
            epoll,
            timer,
            attachments: Attachments::default(),
            udp: UdpFlows::default(),
            events: EventRing::default(),
            sessions: HashMap::new(),
            answers: channel(),
            answers_wake: Arc::new(answers_wake),
            next_flow_tick: now + FLOW_TICK,
            next_udp_tick: now + UDP_TICK,
            next_loss_tick: now + LOSS_TICK,
            lost_flow_events: this_far,
            started: now,
            stopping: false,
        };
        let sources = [
            (this.monitor.as_fd(), MONITOR),
            (this.effects.datapath.event_fd(), DATAPATH),
            (this.tunnel_wake.as_fd(), TUNNEL),
            (this.server.listener(), LISTENER),
            (this.signals.as_fd(), SIGNALS),
            (this.timer.as_fd(), TIMER),
            (this.answers_wake.as_fd(), ANSWERS),
        ];
        for (fd, token) in sources {
            epoll::add(&this.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(LoopError::new("epoll_ctl"))?;
        }
        Ok(this)
    }

    /// Takes in how things stand at the start. `restored`: flows that a daemon before this one had introduced.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub(crate) fn begin(&mut self, restored: &[FlowTuple]) -> Result<(), Error> {
        let network = self.monitor.snapshot()?;
        self.effects.begin(network.clone());
        self.tell_node(&network);
        self.take_in_flows(clock::now(), restored)?;
        self.drain();
        self.effects.settle_noting_failure();
        let told = Told::new("started", format!("this host's key is {}", self.node.public_key()))
            .with("key", self.node.public_key().to_string())
            .with("restored_flows", restored.len());
        self.tell(told);
        Ok(())
    }

    /// Runs until a signal asks for the end.
    ///
    /// # Errors
    /// When waiting itself fails.
    pub(crate) fn run(&mut self) -> Result<(), Error> {
        let mut ready = Vec::with_capacity(64);
        while !self.stopping {
            self.set_timer()?;
            ready.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(LoopError::new("epoll_wait")(errno).into()),
            }
            for event in &ready {
                self.handle_ready(event.data.u64())?;
            }
            self.handle_due();
            self.drain();
            // Asked each time round: a pump wakes us a moment before it has ended.
            if !self.effects.tunnel.is_running() {
                return Err(Error::TunnelEnded);
            }
        }
        self.tell(Told::new("stopping", "the daemon was asked to stop"));
        Ok(())
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
            DATAPATH => self.take_in_datapath_events(clock::now()),
            TUNNEL => {
                clear(&self.tunnel_wake);
                self.take_in_datagrams();
            }
            LISTENER => {
                for id in self.server.accept() {
                    self.watch_client(id, true);
                }
            }
            SIGNALS => {
                while let Some(signal) = self.signals.take() {
                    match signal {
                        Signal::Stop => self.stopping = true,
                        Signal::Reload => self.reload(),
                    }
                }
            }
            TIMER => clear(&self.timer),
            ANSWERS => {
                clear(&self.answers_wake);
                while let Ok((id, reply)) = self.answers.1.try_recv() {
                    self.server.reply(id, &reply);
                    self.serve(id);
                }
            }
            client => {
                let id = ClientId(client - FIRST_CLIENT);
                self.server.write(id);
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
            self.transmit();
            let ops: Vec<_> = std::iter::from_fn(|| self.node.poll_op()).collect();
            let quiet = ops.is_empty();
            for (id, result) in self.effects.carry_out(now, ops) {
                self.node.handle_done(now, id, result);
            }
            while let Some(event) = self.node.poll_event() {
                if let Event::PeerReached { peer, .. } = &event {
                    self.sessions.insert(*peer, now);
                }
                self.tell(Told::from(&event));
            }
            if quiet {
                return;
            }
        }
    }

    fn transmit(&mut self) {
        while let Some(transmit) = self.node.poll_transmit() {
            let sent = self.effects.tunnel.send_control(transmit.source, transmit.destination, &transmit.payload);
            if let Err(error) = sent {
                // Whoever wants an answer asks again.
                tracing::debug!(to = %transmit.destination, from = ?transmit.source, %error, "cannot send");
            }
        }
    }

    /// Keeps an event, logs it, and tells it to those who follow.
    fn tell(&mut self, told: Told) {
        tracing::info!("{}", told.sentence);
        let record = self.events.push(SystemTime::now(), clock::monotonic(), told);
        for id in self.server.tell(record) {
            self.watch_client(id, false);
        }
    }

    fn take_in_network_change(&mut self, changed: Changed) -> Result<(), Error> {
        if changed.lost {
            tracing::warn!("events of the network were lost; looking at all of it again");
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
            self.effects.network_changed(network.clone());
        }
        self.tell_node(&network);
        // Peers are told first; what the kernel has to do for it comes after.
        self.transmit();
        if changed && !back {
            self.effects.network_changed(network);
        }
        Ok(())
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
        self.node.handle_network(clock::now(), &attachments, &self.routes);
    }

    fn take_in_datagrams(&mut self) {
        while let Some(received) = self.effects.tunnel.receive_control() {
            let now = clock::now();
            match received {
                Received::Datagram { source, destination, bytes, .. } => {
                    self.node.handle_datagram(now, source, destination, &bytes);
                }
                Received::Error(report) if report.is_port_unreachable() => {
                    self.node.handle_unreachable(now, report.destination);
                }
                // Anything else may pass (RFC 8085 §5.2): whoever waits asks again.
                Received::Error(report) => tracing::debug!(?report, "a datagram did not arrive"),
            }
            // Answers do not wait for what else has come.
            self.transmit();
        }
    }

    fn take_in_datapath_events(&mut self, now: Time) {
        let Self { node, effects, .. } = self;
        let own = own_addresses(&effects.network);
        let own = |address: IpAddr| own.contains(&address);
        let drained = effects.datapath.drain_events(|event| match event {
            DatapathEvent::Introduction(introduction) => {
                node.handle_introduction(now, introduction.seen, introduction.index, introduction.nonce);
            }
            DatapathEvent::FlowOpened { flow, origin } => {
                if is_movable(&flow, &own) {
                    node.handle_flow_opened(now, flow, origin == Origin::Accepted);
                }
            }
            DatapathEvent::FlowClosed { flow } => node.handle_flow_closed(now, flow),
        });
        if let Err(error) = drained {
            tracing::error!(%error, "cannot read what the data plane reports");
        }
    }

    /// Lists all connections. Those of `known` that are not among them are closed.
    fn take_in_flows(&mut self, now: Time, known: &[FlowTuple]) -> Result<(), Error> {
        let own = own_addresses(&self.effects.network);
        let found = list_tcp(&mut self.sockets, &|address| own.contains(&address))?;
        let there: HashSet<FlowTuple> = found.iter().map(|found| found.flow).collect();
        for found in found {
            self.node.handle_flow_opened(now, found.flow, found.accepted);
        }
        self.take_in_udp(now);
        let udp = &self.udp;
        for flow in known.iter().filter(|flow| !there.contains(flow) && !udp.contains(flow)) {
            self.node.handle_flow_closed(now, *flow);
        }
        Ok(())
    }

    fn take_in_udp(&mut self, now: Time) {
        let own = own_addresses(&self.effects.network);
        match self.udp.update(&mut self.sockets, &|address| own.contains(&address)) {
            Ok((opened, closed)) => {
                for found in opened {
                    self.node.handle_flow_opened(now, found.flow, found.accepted);
                }
                for flow in closed {
                    self.node.handle_flow_closed(now, flow);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot list UDP sockets"),
        }
    }

    fn handle_due(&mut self) {
        let now = clock::now();
        if self.node.poll_timeout().is_some_and(|due| due <= now) {
            self.node.handle_timeout(now);
            self.transmit();
        }
        if self.effects.poll_timeout().is_some_and(|due| due <= now) {
            self.effects.handle_timeout(now);
        }
        if self.next_flow_tick <= now {
            self.next_flow_tick = now + FLOW_TICK;
            self.take_in_datapath_events(now);
        }
        if self.next_loss_tick <= now {
            self.next_loss_tick = now + LOSS_TICK;
            self.make_up_for_losses(now);
        }
        if self.next_udp_tick <= now {
            self.next_udp_tick = now + UDP_TICK;
            if self.node.peers().next().is_some() {
                self.take_in_udp(now);
            }
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
    }

    fn set_timer(&self) -> Result<(), Error> {
        let due = [self.node.poll_timeout(), self.effects.poll_timeout(), Some(self.next_flow_tick)];
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

    /// Reads the configuration again. What the node was told once stays until the next start.
    fn reload(&mut self) {
        let config = match config::read(self.settings.config_path.as_deref()) {
            Ok(config) => config,
            Err(error) => {
                self.tell(Told::new("reload-failed", format!("the configuration is kept as it was: {error}")));
                return;
            }
        };
        (self.settings.set_log_level)(config.log);
        self.effects.set_kick(config.kick);
        if let Err(error) = self.server.set_mode(config.control_mode) {
            tracing::warn!(%error, "cannot change the mode of the control socket");
        }
        let before = Config {
            log: config.log,
            kick: config.kick,
            control_mode: config.control_mode,
            ..self.settings.config.clone()
        };
        let sentence = if before == config {
            "the configuration was read again"
        } else {
            "the configuration was read again; what it says of trust, peers, carriers and the port counts from the \
             next start on"
        };
        (self.settings.config.log, self.settings.config.kick, self.settings.config.control_mode) =
            (config.log, config.kick, config.control_mode);
        self.tell(Told::new("reloaded", sentence));
    }

    fn watch_client(&self, id: ClientId, fresh: bool) {
        let (Some(fd), Some(interest)) = (self.server.client(id), self.server.interest(id)) else { return };
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, interest.readable);
        flags.set(epoll::EventFlags::OUT, interest.writable);
        let data = epoll::EventData::new_u64(FIRST_CLIENT + id.0);
        let result =
            if fresh { epoll::add(&self.epoll, fd, data, flags) } else { epoll::modify(&self.epoll, fd, data, flags) };
        if let Err(error) = result {
            tracing::warn!(%error, "cannot watch a client of the control socket");
        }
    }

    /// Answers a client's requests, one after the other.
    fn serve(&mut self, id: ClientId) {
        while let Some(request) = self.server.request(id) {
            match request {
                Ok(request) => self.answer(id, request),
                Err(error) => self.server.reply(id, &Reply::Error(error.into())),
            }
        }
        self.watch_client(id, false);
    }

    fn answer(&mut self, id: ClientId, request: Request) {
        let reply = match request {
            Request::Status => Reply::Status(Box::new(self.status())),
            Request::Connections => {
                let question = views::ConnectionsQuestion {
                    flows: self.node.flows().collect(),
                    peers: self.node.peers().collect(),
                    now: clock::now(),
                    wall: SystemTime::now(),
                };
                self.answer_later(id, move || Reply::Connections(question.answer()));
                return;
            }
            Request::Peers => Reply::Peers(self.peers()),
            Request::Paths => {
                let paths = self
                    .node
                    .peers()
                    .flat_map(|view| views::paths(&view, self.effects.tunnel_mtu(view.id)).collect::<Vec<_>>());
                Reply::Paths(paths.collect())
            }
            Request::Events(query) => {
                let mut replies: Vec<Reply> = self.events.select(&query).cloned().map(Reply::Event).collect();
                if query.follow {
                    self.server.replies(id, &replies);
                    self.server.follow(id);
                } else {
                    replies.push(Reply::End { newest: self.events.newest() });
                    self.server.replies(id, &replies);
                }
                return;
            }
            Request::Handoff { to, peer } => self.hand_off(to, peer.as_deref()),
            Request::ForgetPeer { address } => match self.effects.known_keys.forget(address) {
                Ok(Some(key)) => Reply::Forgotten { address, key: key.to_string() },
                Ok(None) => Reply::Error(
                    Failure::new("no key is remembered for this address")
                        .on(address)
                        .hint("`whimbrel peers` shows the addresses that have one."),
                ),
                Err(error) => Reply::Error(Failure::new(error.to_string())),
            },
        };
        self.server.reply(id, &reply);
    }

    /// Lets another thread find an answer; the client is served on when it is there.
    fn answer_later(&self, id: ClientId, find: impl FnOnce() -> Reply + Send + 'static) {
        let (sender, wake) = (self.answers.0.clone(), Arc::clone(&self.answers_wake));
        let spawned = std::thread::Builder::new().name("answer".to_owned()).spawn(move || {
            // The loop ends only when the daemon does; then nobody waits for answers.
            let _ = sender.send((id, find()));
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        });
        if let Err(error) = spawned {
            let failure = Failure::new(format!("no thread could be started for the answer: {error}"));
            let _ = self.answers.0.send((id, Reply::Error(failure)));
            let _ = rustix::io::write(&*self.answers_wake, &1u64.to_ne_bytes());
        }
    }

    fn hand_off(&mut self, to: Option<IpAddr>, peer: Option<&str>) -> Reply {
        if let Some(to) = to
            && !own_addresses(&self.effects.network).contains(&to)
        {
            return Reply::Error(
                Failure::new("this host has no such address").on(to).hint("`whimbrel status` shows those that it has."),
            );
        }
        let views: Vec<PeerView> = self.node.peers().collect();
        if let Some(wanted) = peer {
            let matching = views.iter().filter(|view| names(view, wanted)).count();
            if matching != 1 || views.len() != 1 {
                let what = match matching {
                    0 => "there is no such peer",
                    1 => "a hand-off towards one peer alone is not possible yet while there are others",
                    _ => "this names several peers",
                };
                return Reply::Error(Failure::new(what).on(wanted).hint("`whimbrel peers` shows them."));
            }
        }
        let since = self.events.newest();
        let now = clock::now();
        self.take_in_udp(now);
        self.node.hand_off(now, &self.routes, to);
        self.transmit();
        let told: Vec<&PeerView> = views.iter().filter(|view| view.flows > 0).collect();
        Reply::Handoff(HandoffStarted {
            to,
            peers: told.iter().map(|view| views::name(view)).collect(),
            flows: told.iter().map(|view| view.flows).sum(),
            since,
        })
    }

    fn peers(&self) -> Vec<whimbrel_ipc::Peer> {
        let (now, trust) = (clock::now(), self.settings.config.trust);
        let known = &self.effects.known_keys;
        let since = |view: &PeerView| self.sessions.get(&view.id).copied();
        self.node.peers().map(|view| views::peer(&view, now, since(&view), trust, known)).collect()
    }

    fn status(&self) -> Status {
        let network = &self.effects.network;
        let interface = |index: u32| match network.link(index) {
            Some(link) => link.name.clone(),
            None => format!("#{index}"),
        };
        let peers: Vec<PeerView> = self.node.peers().collect();
        let device = self.effects.tunnel.device();
        let counters = self.effects.tunnel.counters();
        let own = own_addresses(network);
        let mut addresses: Vec<LocalAddress> = network
            .addresses
            .iter()
            .filter(|usable| own.contains(&usable.address))
            .map(|usable| LocalAddress { address: usable.address, interface: interface(usable.interface) })
            .collect();
        // Those that the host uses towards everywhere come first.
        let preferred: Vec<IpAddr> = EVERYWHERE.iter().filter_map(|to| self.routes.source_for(*to)).collect();
        addresses.sort_by_key(|local| !preferred.contains(&local.address));
        Status {
            ready: true,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: u64::try_from(clock::now().since(self.started).as_millis()).unwrap_or(u64::MAX),
            public_key: self.node.public_key().to_string(),
            port: self.settings.config.port,
            trust: views::trust(self.settings.config.trust),
            run_dir: self.settings.run_dir.clone(),
            state_dir: self.settings.state_dir.clone(),
            place: self.attachments.newest(),
            addresses,
            kept_addresses: self.effects.kept_addresses().to_vec(),
            counts: views::counts(&peers, self.node.flows()),
            attached: self.effects.attached(|index| interface(index)),
            tunnel: Some(whimbrel_ipc::Tunnel {
                device: device.name().to_owned(),
                mtu: self.effects.inner_mtu(),
                packets_sent: counters.get(Counter::PacketsSent),
                packets_received: counters.get(Counter::PacketsReceived),
            }),
            newest_event: self.events.newest(),
        }
    }
}

/// Addresses far away in either family: documentation prefixes, which routing treats as any other (RFC 5737, RFC 3849).
const EVERYWHERE: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// Whether `wanted` names a peer: its number, its key or the beginning of it, or an address of it.
fn names(view: &PeerView, wanted: &str) -> bool {
    view.id.0.to_string() == wanted.trim_start_matches('#')
        || (wanted.len() >= 4 && view.key.to_string().starts_with(wanted))
        || wanted.parse().is_ok_and(|address: IpAddr| view.remote.ip() == address || view.locators.contains(&address))
}

/// Takes the count out of an eventfd or timerfd; what it stands for is looked at in any case.
fn clear(fd: &OwnedFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(fd, &mut count);
}
