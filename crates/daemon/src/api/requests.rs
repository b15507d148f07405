//! What clients of the control socket ask for.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use rustix::event::epoll::EventFlags;
use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{
    Code, Configuration, EventsQuery, Failure, HandoffStarted, LocalAddress, MAX_NAMES, Metric, Reply, Request, Status,
    Suspended,
};
use whimbrel_protocol::{Carrier, FlowState, FlowView, LocalEnd, PeerId, PeerView, Routes, Time, Waits};
use whimbrel_tunnel::Counter;
use whimbrel_wire::FlowTuple;

use crate::api::server::{Asked, ClientId};
use crate::api::{Answer, access, views};
use crate::closing::Received;
use crate::event_loop::{EventLoop, FLOW_TICK, Settings};
use crate::host::own_addresses;
use crate::metrics::{Connections, Looked};
use crate::name_server::NameUpdates;
use crate::reactor::LoopError;
use crate::role::anchor::api::WantedNamespace;
use crate::role::programs::WantedSocket;
use crate::{clock, config};

/// What clients have numbers, and this is the control socket itself.
const LISTENER: u64 = u32::MAX as u64;

/// How long peers are waited for when this host goes away.
const SUSPEND_WAIT: Duration = Duration::from_secs(1);

/// Processes that a request may name: what each has open is looked at.
const MAX_PROCESSES: usize = 16;

/// Clients that wait for a suspension.
pub(crate) struct Suspending {
    /// Each with how many connections wait.
    clients: Vec<(ClientId, usize)>,
    /// They are answered then at the latest.
    pub(crate) until: Time,
    /// Peers that were told.
    told: usize,
}

/// Waits for clients of the control socket.
///
/// # Errors
/// When the kernel has no room.
pub(crate) fn register(this: &mut EventLoop) -> Result<(), LoopError> {
    this.listen(EventFlags::IN);
    this.reactor.on(this.answers.wake(), |this| {
        for (id, reply) in this.answers.take() {
            this.server.reply(id, &reply);
            this.serve(id);
        }
    })?;
    this.reactor.every(clock::now(), FLOW_TICK, EventLoop::expire_clients);
    this.reactor.at(|this| this.suspending.as_ref().map(|suspending| suspending.until), |_, _| {});
    this.reactor.at(|this| this.server.has_turns().then(Time::default), |_, _| {});
    Ok(())
}

impl EventLoop {
    /// Has a client heard and written to as it is fitting now; after all that changes that.
    pub(crate) fn watch_client(&self, id: ClientId) {
        let (Some(fd), Some(interest)) = (self.server.client(id), self.server.interest(id)) else { return };
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, interest.readable);
        flags.set(EventFlags::OUT, interest.writable);
        if let Err(error) = self.reactor.watch(fd, id.0, flags) {
            tracing::warn!(%error, "cannot watch a client of the control socket");
        }
    }

    /// Whether whoever connects to the control socket wakes this thread.
    fn listen(&self, flags: EventFlags) {
        if let Err(error) = self.reactor.watch(self.server.listener(), LISTENER, flags) {
            tracing::warn!(%error, "cannot change whether clients of the control socket are waited for");
        }
    }

    /// A client has something to say, or can be told more.
    pub(crate) fn handle_client(&mut self, id: ClientId) {
        if id.0 == LISTENER {
            for id in self.server.accept(clock::now()) {
                self.watch_client(id);
            }
            if self.server.is_deaf() {
                self.listen(EventFlags::empty());
            }
            return;
        }
        self.server.write(id);
        self.on_backlog(id);
        self.server.read(id);
        self.serve(id);
    }

    /// Clients that ask nothing go; where no descriptor was left for who waits, there may be one now.
    fn expire_clients(&mut self, now: Time) {
        let was_deaf = self.server.is_deaf();
        for id in self.server.check_again(now) {
            self.watch_client(id);
        }
        if was_deaf && !self.server.is_deaf() {
            self.listen(EventFlags::IN);
        }
    }

    /// Serves a client on, when it is its turn.
    pub(crate) fn serve(&mut self, id: ClientId) {
        self.server.line_up(id);
        self.watch_client(id);
    }

    /// Answers one request of each user's who has asked: whoever asks for much is not to keep everybody else from this
    /// thread.
    pub(crate) fn serve_turns(&mut self) {
        for id in self.server.take_turns() {
            if let Some(asked) = self.server.request(id) {
                let answer = asked.and_then(|asked| self.answer(id, asked));
                self.reply(id, answer);
            }
            self.serve(id);
        }
    }

    /// Gives an answer, if there is one by now.
    pub(crate) fn reply(&mut self, id: ClientId, answer: Answer) {
        match answer {
            Ok(Some(reply)) => self.server.reply(id, &reply),
            Ok(None) => {}
            Err(failure) => self.server.reply(id, &Reply::Error(failure)),
        }
    }

    /// Has the owner of a request answer it.
    fn answer(&mut self, id: ClientId, asked: Asked) -> Answer {
        let Asked { request, descriptors } = asked;
        access::check(&request, self.server.credentials(id))?;
        let one = || one(descriptors);
        match request {
            Request::Status => Ok(Some(Reply::Status(Box::new(self.status())))),
            Request::Connections => self.connections(id),
            Request::Peers => Ok(Some(Reply::Peers(self.peers()))),
            Request::Paths => Ok(Some(Reply::Paths(self.paths()))),
            Request::Configuration => Ok(Some(Reply::Configuration(self.configuration()))),
            Request::Metrics => Ok(Some(Reply::Metrics(self.metrics()))),
            Request::Events(query) => self.tell_events(id, &query),
            Request::Handoff { to, peer } => self.hand_off(to, peer.as_deref()),
            Request::Suspend { connections } => self.suspend(id, &connections),
            Request::Resume { connections } => self.resume(&connections),
            Request::ForgetPeer { address } => self.forget_peer(id, address),
            Request::Community(request) => self.community(request),
            Request::Move { connections, to, receiver } => self.move_sockets(id, &connections, &to, receiver),
            Request::MoveProcess { pid, scope, to, address } => self.move_process(id, pid, scope, &to, address),
            Request::Receive { name } => self.receive_sockets(id, &name),
            Request::Give { to, receiver, state } => self.give_socket(id, one()?, &to, receiver, state),
            Request::Prepare { to, receiver } => self.prepare_socket(id, &one()?, &to, receiver),
            Request::Socket { family, kind, anchor, hidden } => {
                self.make_socket(id, WantedSocket { family, kind, hidden }, &anchor)
            }
            Request::Bind { address } => self.bind_socket(id, one()?.as_fd(), address),
            Request::Uuid => self.name_socket(one()?.as_fd()),
            Request::Export => self.export_socket(id, one()?),
            Request::Rebuild { uuid } => self.rebuild_socket(id, &uuid),
            Request::Sockets { pid } => self.list_sockets(id, pid),
            Request::Migrator => self.be_migrator(id),
            Request::Anchor { question, anchor } => self.take_anchor(id, question, anchor.as_deref()),
            Request::Namespace { anchor, family, ports, address, hidden } => {
                let wanted = WantedNamespace { family, ports, address, hidden };
                self.want_namespace(id, one()?.into_inner(), &anchor, wanted)
            }
            Request::Anchors { brief } => Ok(Some(Reply::Anchors(self.anchors_view(brief)))),
            Request::Lending { stop } => self.set_lending(stop),
        }
    }

    fn connections(&mut self, id: ClientId) -> Answer {
        let flows: Vec<FlowView> = self.node.flows().collect();
        let peers: Vec<PeerView> = self.node.peers().collect();
        let unknown = flows.iter().filter(|flow| flow.state == FlowState::Unknown).map(|flow| flow.tuple.remote.ip());
        let question = views::ConnectionsQuestion {
            standings: unknown.map(|ip| (ip, self.node.standing(ip))).collect(),
            heard: self.heard_rewritten(&peers),
            own: own_addresses(&self.effects.host.network),
            helpers: self.effects.helping.helper_views(),
            names: self.names_of_members(),
            met_at: self.met_at(),
            elsewhere: self.effects.host.inhabitants_elsewhere(),
            sockets: self.effects.host.datapath.sockets_apart().ok(),
            suspended: self.node.is_suspended(),
            flows,
            peers,
            now: clock::now(),
            wall: SystemTime::now(),
        };
        self.find_answer(id, move || Reply::Connections(question.answer()))
    }

    fn paths(&self) -> Vec<whimbrel_ipc::Path> {
        let (own, called) = (own_addresses(&self.effects.host.network), self.names_of_members());
        let paths = self
            .node
            .peers()
            .flat_map(|view| views::paths(&view, self.effects.host.tunnel_mtu(view.id), self.possible(&own, &view)));
        let named = |mut path: whimbrel_ipc::Path| {
            path.peer.name = called.get(&path.peer.key).cloned();
            path
        };
        paths.map(named).collect()
    }

    fn tell_events(&mut self, id: ClientId, query: &EventsQuery) -> Answer {
        if query.follow {
            self.server.may_stay(id)?;
        }
        let mut replies: Vec<Reply> = self.events.select(query).cloned().map(Reply::Event).collect();
        if !query.follow {
            replies.push(Reply::End { newest: self.events.newest() });
        }
        self.server.replies(id, &replies);
        if query.follow {
            self.server.follow(id);
        }
        Ok(None)
    }

    /// Peers are told at once; the client is answered when they have answered, or after a while.
    fn suspend(&mut self, id: ClientId, connections: &[String]) -> Answer {
        let now = clock::now();
        self.handle_udp(now);
        let mut already = self.node.is_suspended();
        let flows = if connections.is_empty() {
            self.node.suspend(now);
            self.node.peers().map(|view| view.flows).sum()
        } else {
            let named = self.named(connections)?;
            let waiting = self.node.set_paused(now, &named, true).len();
            already |= waiting == 0;
            if waiting == 0 { named.len() } else { waiting }
        };
        self.poll_node();
        let told = self.node.leaving_peers();
        if already && told == 0 {
            return Ok(Some(Reply::Suspended(Suspended { flows, told, answered: 0, already })));
        }
        let fresh = || Suspending { clients: Vec::new(), until: now + SUSPEND_WAIT, told };
        self.suspending.get_or_insert_with(fresh).clients.push((id, flows));
        self.server.answer_later(id);
        Ok(None)
    }

    /// Whether this host is configured to lend endpoints.
    pub(crate) fn lends(&self) -> bool {
        self.settings.config.anchor.is_some()
    }

    /// Where the configuration says that a host is.
    pub(crate) fn configured_at(&self, host: &PublicKey) -> Option<SocketAddr> {
        let config = &self.settings.config;
        let peer = config.peers.iter().find(|peer| peer.key == *host);
        peer.map(|peer| SocketAddr::new(peer.address, config.port))
    }

    /// The connections of this host that these name, whoever is at the other end.
    pub(crate) fn open_connections(&mut self, names: &[String]) -> Result<Vec<FlowTuple>, Failure> {
        if names.is_empty() {
            return Err(Failure::new("no connection is named")
                .hint("An address and port of either end does (192.0.2.1:22, [2001:db8::1]:22), or pid:NUMBER."));
        }
        let ended =
            |view: &FlowView| view.entry.is_some_and(|entry| matches!(entry.end, LocalEnd::Behind | LocalEnd::Passing));
        self.among(
            names,
            self.node.flows().filter(|view| !ended(view)).collect(),
            "no open connection is named by this",
        )
    }

    /// The connections that outlive a move and that these name.
    fn named(&mut self, names: &[String]) -> Result<Vec<FlowTuple>, Failure> {
        let views = self.node.flows().filter(|view| view.entry.is_some()).collect();
        self.among(names, views, "no connection that outlives a move is named by this")
    }

    fn among(&mut self, names: &[String], views: Vec<FlowView>, none: &str) -> Result<Vec<FlowTuple>, Failure> {
        let names: BTreeSet<&String> = names.iter().collect();
        if names.len() > MAX_NAMES {
            return Err(Failure::new(format!("a request may name {MAX_NAMES} connections")).code(Code::TooMany));
        }
        // Looked at once, however many processes are named.
        let mut sockets = None;
        let mut processes = 0;
        let mut named = BTreeSet::new();
        for name in names {
            let matching: Vec<FlowTuple> = match name.strip_prefix("pid:").map(str::parse) {
                Some(pid) => {
                    let pid: u32 = pid.map_err(|_| Failure::new("this is no process id").on(name))?;
                    processes += 1;
                    if processes > MAX_PROCESSES {
                        let failure = Failure::new(format!("a request may name {MAX_PROCESSES} processes"));
                        return Err(failure.on(name).code(Code::TooMany));
                    }
                    let sockets =
                        sockets.get_or_insert_with(|| views::sockets(self.effects.host.inhabitants_elsewhere()));
                    views::of_process(&views, pid, sockets)
                }
                None => {
                    let wanted: SocketAddr = name.parse().map_err(|_| {
                        Failure::new("this names no connection").on(name).hint(
                            "An address and port of either end does (192.0.2.1:22, [2001:db8::1]:22), or pid:NUMBER.",
                        )
                    })?;
                    let ends = |view: &&FlowView| [view.tuple.local, view.tuple.remote].contains(&wanted);
                    views.iter().filter(ends).map(|view| view.tuple).collect()
                }
            };
            if matching.is_empty() {
                return Err(Failure::new(none).on(name).hint("`whimbrel connections` shows them."));
            }
            named.extend(matching);
        }
        Ok(named.into_iter().collect())
    }

    /// Answers whoever suspended this host, where the time has come.
    pub(crate) fn answer_suspending(&mut self) {
        if self.suspending.is_none() {
            return;
        }
        let open = self.node.leaving_peers();
        let over = |suspending: &mut Suspending| open == 0 || suspending.until <= clock::now();
        let Some(suspending) = self.suspending.take_if(over) else { return };
        let answered = suspending.told.saturating_sub(open);
        for (id, flows) in suspending.clients {
            self.server
                .reply(id, &Reply::Suspended(Suspended { flows, told: suspending.told, answered, already: false }));
            self.serve(id);
        }
    }

    fn resume(&mut self, connections: &[String]) -> Answer {
        let now = clock::now();
        let all = connections.is_empty();
        let suspended = self.node.is_suspended();
        let waiting = if all { self.node.waiting_flows() } else { self.named(connections)? };
        if all && !suspended && waiting.is_empty() {
            return Err(Failure::new("this host is not suspended, nor is a connection of its")
                .hint("`whimbrel suspend` has its connections wait."));
        }
        let named: HashSet<FlowTuple> = waiting.iter().copied().collect();
        let waits = self.node.flows().filter(|view| named.contains(&view.tuple));
        let waits: Vec<Waits> = waits.filter_map(|view| Some(view.entry?.waits)).collect();
        if !all {
            may_go_on(suspended, &waits)?;
        }
        self.node.set_paused(now, &waiting, false);
        let mut flows = waits.iter().filter(|waits| waits.here && !waits.there).count();
        if all && self.node.is_suspended() {
            self.node.resume(now, &self.routes);
            flows = self.node.peers().map(|view| view.flows).sum();
        }
        self.poll_node();
        Ok(Some(Reply::Resumed { flows, host: all && suspended }))
    }

    /// The client is answered when the disk has it, for which nobody else waits.
    fn forget_peer(&mut self, id: ClientId, address: IpAddr) -> Answer {
        let Some(forgotten) = self.effects.known_keys.forget(address) else {
            return Err(Failure::new("no key is remembered for this address")
                .on(address)
                .hint("`whimbrel peers` shows the addresses that have one."));
        };
        self.node.forget_key(address);
        self.find_answer(id, move || match forgotten.written() {
            Ok(key) => Reply::Forgotten { address, key: key.to_string() },
            Err(error) => Reply::Error(Failure::new(error.to_string()).hint(
                "It is forgotten until the daemon is started again; remove its line from that file to forget it for good.",
            )),
        })
    }

    /// Lets another thread find the answer for a client.
    pub(crate) fn find_answer(&mut self, id: ClientId, find: impl FnOnce() -> Reply + Send + 'static) -> Answer {
        self.server.answer_later(id);
        let none = move |why| (id, Reply::Error(Failure::new(why)));
        self.answers.begin(move || (id, find()), none);
        Ok(None)
    }

    fn hand_off(&mut self, to: Option<IpAddr>, peer: Option<&str>) -> Answer {
        if let Some(to) = to
            && !own_addresses(&self.effects.host.network).contains(&to)
        {
            let failure = Failure::new("this host has no such address").on(to);
            return Err(failure.hint("`whimbrel status` shows those that it has."));
        }
        if self.node.is_suspended() {
            return Err(is_suspended());
        }
        let mut views: Vec<PeerView> = self.node.peers().collect();
        if let Some(wanted) = peer {
            let called = self.host(wanted).ok();
            let mut found = chosen(views.clone(), wanted);
            if found.is_empty() {
                // By its name in the community.
                found = views.into_iter().filter(|view| Some(view.key) == called).collect();
            }
            views = found;
            let what = match views.len() {
                0 => Some("there is no such peer"),
                1 => None,
                _ => Some("this names several peers"),
            };
            if let Some(what) = what {
                return Err(Failure::new(what).on(wanted).hint("`whimbrel peers` shows them."));
            }
        }
        let all = views.len();
        if let Some(to) = to {
            let concerned = views.iter().find(|view| view.flows > 0).map(|view| view.remote.ip());
            views.retain(|view| self.leads(to, view));
            if let Some(peer) = concerned.filter(|_| !views.iter().any(|view| view.flows > 0)) {
                let failure = Failure::new("no route leads from this address to a peer").on(to);
                return Err(failure.hint(format!("`ip route get {peer} from {to}` shows what is missing.")));
            }
        }
        let since = self.events.newest();
        let now = clock::now();
        self.handle_udp(now);
        let wanted: Vec<PeerId> = views.iter().map(|view| view.id).collect();
        if peer.is_none() && wanted.len() == all {
            self.node.hand_off(now, &self.routes, to);
        } else {
            for id in &wanted {
                self.node.hand_off_towards(now, &self.routes, to, *id);
            }
        }
        self.poll_node();
        let views: Vec<PeerView> = self.node.peers().filter(|view| wanted.contains(&view.id)).collect();
        let told = told(&views, !own_addresses(&self.effects.host.network).is_empty())?;
        let peers = told.iter().map(|view| views::name(view)).collect();
        let flows = told.iter().map(|view| view.flows).sum();
        Ok(Some(Reply::Handoff(HandoffStarted { to, peers, flows, since })))
    }

    /// The flows that peers were heard rewritten on, where that decides anything.
    fn heard_rewritten(&self, peers: &[PeerView]) -> HashSet<FlowTuple> {
        if !peers.iter().any(|peer| peer.carrier == Carrier::FollowRewrite && peer.moved > 0) {
            return HashSet::new();
        }
        self.effects.host.datapath.heard_rewritten().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read which connections are answered rewritten");
            HashSet::new()
        })
    }

    /// Whether a route leads from an address of this host to one of the peer's.
    fn leads(&self, from: IpAddr, view: &PeerView) -> bool {
        let places = std::iter::once(view.remote.ip()).chain(view.candidate.map(|at| at.ip()));
        let mut places = places.chain(view.locators.iter().copied()).filter(|at| at.is_ipv4() == from.is_ipv4());
        places.any(|at| self.routes.leads(from, at))
    }

    /// Pairs of an own address and one of the peer's that a route leads between. Not for peers without connections:
    /// anybody can be one and have dozens of addresses, and the kernel is asked about each.
    fn possible(&self, own: &BTreeSet<IpAddr>, view: &PeerView) -> Vec<(IpAddr, SocketAddr)> {
        if view.flows == 0 {
            return Vec::new();
        }
        let port = self.settings.config.port;
        let locators = view.locators.iter().map(|locator| SocketAddr::new(*locator, port));
        std::iter::once(view.remote)
            .chain(locators)
            .flat_map(|remote| own.iter().map(move |local| (*local, remote)))
            .filter(|(local, remote)| local.is_ipv4() == remote.is_ipv4())
            .filter(|(local, remote)| self.routes.still_reaches(*local, remote.ip()))
            .collect()
    }

    fn configuration(&self) -> Configuration {
        let Settings { config: used, config_path, .. } = &self.settings;
        let path = config_path.clone().unwrap_or_else(|| config::DEFAULT_PATH.into());
        let path = std::path::absolute(&path).unwrap_or(path);
        let (differing, error) = match config::read(config_path.as_deref()) {
            Ok(config) => (used.differences(&config), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let (reload, restart): (Vec<_>, Vec<_>) = differing.iter().partition(|key| config::RELOADED.contains(key));
        let owned = |keys: Vec<&str>| keys.into_iter().map(str::to_owned).collect();
        Configuration { path, restart: owned(restart), reload: owned(reload), error }
    }

    fn metrics(&self) -> Vec<Metric> {
        let peers: Vec<PeerView> = self.node.peers().collect();
        let datapath = self.effects.host.datapath.counters();
        if let Err(error) = &datapath {
            tracing::warn!(%error, "cannot read the data plane's counters");
        }
        self.tally.metrics(&Looked {
            suspended: self.node.is_suspended(),
            connections: Connections::count(self.node.flows(), &peers, |address| self.node.standing(address)),
            peers: &peers,
            kept_addresses: self.effects.host.kept_addresses().len(),
            tunnel: self.effects.host.tunnel.counters().all().collect(),
            datapath: datapath.ok(),
        })
    }

    fn peers(&self) -> Vec<whimbrel_ipc::Peer> {
        let (now, config, known) = (clock::now(), &self.settings.config, &self.effects.known_keys);
        let since = |view: &PeerView| self.sessions.get(&view.id).copied();
        let called = self.names_of_members();
        let peers = self.node.peers();
        let mut peers: Vec<_> =
            peers.map(|view| views::peer(&view, now, since(&view), config.trust_in(&view.key), known)).collect();
        peers.iter_mut().for_each(|peer| peer.name = called.get(&peer.key).cloned());
        peers
    }

    /// This host's addresses, those that it uses towards everywhere first.
    pub(crate) fn met_at(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = own_addresses(&self.effects.host.network).into_iter().collect();
        let preferred: Vec<IpAddr> = EVERYWHERE.iter().filter_map(|to| self.routes.source_for(*to)).collect();
        addresses.sort_by_key(|address| !preferred.contains(address));
        addresses
    }

    fn status(&self) -> Status {
        let network = &self.effects.host.network;
        let interface = |index: u32| match network.link(index) {
            Some(link) => link.name.clone(),
            None => format!("#{index}"),
        };
        let peers: Vec<PeerView> = self.node.peers().collect();
        let device = self.effects.host.tunnel.device();
        let counters = self.effects.host.tunnel.counters();
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
            kept_addresses: self.effects.host.kept_addresses().to_vec(),
            suspended: self.node.is_suspended(),
            rendezvous: self.node.rendezvous().into_iter().map(views::rendezvous).collect(),
            meetings: self.settings.config.serve_rendezvous.then(|| views::meetings(self.node.meetings())),
            name_server: self.name_updates.as_ref().map(NameUpdates::view),
            counts: views::counts(&peers, self.node.flows()),
            attached: self.effects.host.attached(interface),
            tunnel: Some(whimbrel_ipc::Tunnel {
                device: device.name().to_owned(),
                mtu: self.effects.host.inner_mtu(),
                packets_sent: counters.get(Counter::PacketsSent),
                packets_received: counters.get(Counter::PacketsReceived),
            }),
            newest_event: self.events.newest(),
        }
    }
}

/// Why nothing can be done for connections of a host that is suspended.
fn is_suspended() -> Failure {
    Failure::new("this host is suspended").hint("`whimbrel resume` has all its connections go on.")
}

/// Whether a host can have connections go on that wait so. It cannot for those that only their peer has wait.
fn may_go_on(suspended: bool, waits: &[Waits]) -> Result<(), Failure> {
    let theirs = "it is the peer that has it wait";
    let there = "`whimbrel resume` there has it go on.";
    match waits {
        _ if suspended => Err(is_suspended()),
        waits if waits.iter().any(|waits| waits.here) => Ok(()),
        waits if waits.iter().any(|waits| waits.there) => Err(Failure::new(theirs).hint(there)),
        _ => {
            Err(Failure::new("this connection is not suspended")
                .hint("`whimbrel connections` shows which wait, and why."))
        }
    }
}

/// The peers that a hand-off was announced to: those with connections that there is a way to. `addressed`: whether this
/// host has any address.
fn told(views: &[PeerView], addressed: bool) -> Result<Vec<&PeerView>, Failure> {
    let concerned: Vec<&PeerView> = views.iter().filter(|view| view.flows > 0).collect();
    let reached: Vec<&PeerView> = concerned.iter().copied().filter(|view| view.source.is_some()).collect();
    let what = match (addressed, concerned.as_slice()) {
        (false, _) => "this host has no usable network now",
        (true, [_, ..]) if reached.is_empty() => "no network of this host leads to a peer now",
        _ => return Ok(reached),
    };
    Err(Failure::new(what).hint(
        "Known connections are held, and move by themselves once there is a way: an interface that is up, with an address \
         and a route (`ip address`, `ip route`).",
    ))
}

/// Addresses far away in either family: documentation prefixes, which routing treats as any other (RFC 5737, RFC 3849).
pub(crate) const EVERYWHERE: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The descriptor of a request that takes one, which the server has counted.
fn one(descriptors: Vec<Received>) -> Result<Received, Failure> {
    descriptors.into_iter().next().ok_or_else(|| Failure::new("no descriptor came with it").code(Code::Descriptors))
}

/// The peers that `wanted` names: by their number, or else as [`views::names`] has it or by however little of the key.
fn chosen(views: Vec<PeerView>, wanted: &str) -> Vec<PeerView> {
    let (numbered, others): (Vec<_>, Vec<_>) =
        views.into_iter().partition(|view| view.id.0.to_string() == wanted.trim_start_matches('#'));
    if !numbered.is_empty() {
        return numbered;
    }
    let begins = |view: &PeerView| !wanted.is_empty() && view.key.to_string().starts_with(wanted);
    others.into_iter().filter(|view| views::names(view, wanted) || begins(view)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_protocol::{Places, Time};

    fn view(id: u32, flows: usize, source: Option<IpAddr>) -> PeerView {
        PeerView {
            id: PeerId(id),
            key: whimbrel_handshake::StaticKey::from_bytes([1; 32]).public(),
            remote: ([203, 0, 113, 5], 2031).into(),
            candidate: None,
            source,
            observed: None,
            session: true,
            round_trip: None,
            places: Places::default(),
            carrier: Carrier::Hold,
            translated: false,
            flows,
            moved: 0,
            locators: Vec::new(),
            sequences: (0, 0),
            last_heard: Time::default(),
            away: None,
            capabilities: None,
        }
    }

    #[test]
    fn only_what_this_host_has_wait_goes_on_by_its_word() {
        let waits = |here, there| Waits { here, there };
        assert!(may_go_on(false, &[waits(true, false), waits(false, true)]).is_ok());
        let refused = |suspended, waits: &[Waits]| may_go_on(suspended, waits).unwrap_err().to_string();
        assert!(refused(true, &[waits(true, false)]).starts_with("this host is suspended. `whimbrel resume`"));
        assert!(
            refused(false, &[waits(false, true)])
                .starts_with("it is the peer that has it wait. `whimbrel resume` there")
        );
        assert!(refused(false, &[waits(false, false)]).starts_with("this connection is not suspended"));
    }

    #[test]
    fn a_peer_is_named_by_its_number_or_any_beginning_of_its_key() {
        let keyed = |id: u32, seed: u8| PeerView {
            key: whimbrel_handshake::StaticKey::from_bytes([seed; 32]).public(),
            ..view(id, 1, None)
        };
        let views = [keyed(1, 1), keyed(2, 2)];
        let [one, other] = views.each_ref().map(|view| view.key.to_string());
        let named = |wanted: &str| chosen(views.to_vec(), wanted).iter().map(|view| view.id.0).collect::<Vec<_>>();
        assert_ne!(one[..1], other[..1], "the keys begin otherwise");
        for length in [1, 2, 3, 4, one.len()] {
            assert_eq!((named(&one[..length]), named(&other[..length])), (vec![1], vec![2]), "{length}");
        }
        assert_eq!((named("#2"), named("2"), named("203.0.113.5")), (vec![2], vec![2], vec![1, 2]));
        assert!(named("").is_empty() && named("#").is_empty());
    }

    #[test]
    fn a_hand_off_without_a_network_is_refused_at_once() {
        let here = Some([198, 51, 100, 7].into());
        let refused = told(&[view(1, 2, None)], false).unwrap_err();
        assert_eq!(refused.what, "this host has no usable network now");
        let refused = told(&[view(1, 2, None), view(2, 0, here)], true).unwrap_err();
        assert_eq!(refused.what, "no network of this host leads to a peer now");
        let views = [view(1, 2, None), view(2, 1, here)];
        assert_eq!(told(&views, true).unwrap().iter().map(|view| view.id.0).collect::<Vec<_>>(), [2]);
        assert!(told(&[view(1, 0, None)], true).unwrap().is_empty());
    }
}
