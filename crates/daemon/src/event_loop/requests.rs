//! What clients of the control socket ask for.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime};

use whimbrel_datapath::Most;
use whimbrel_ipc::{
    Code, CommunityRequest, Configuration, EventsQuery, Failure, HandoffStarted, LocalAddress, Metric, Pinged, Reply,
    Request, Status, Suspended, WrittenPreference,
};
use whimbrel_protocol::{
    Carrier, FlowState, FlowView, LinkTrial, PeerId, PeerView, Placement, Routes, Standing, Time, Waits,
};
use whimbrel_tunnel::Counter;
use whimbrel_wire::FlowTuple;

use super::{EventLoop, Settings};
use crate::api::pings::{self, Pinging, Whom};
use crate::api::server::{Asked, ClientId};
use crate::api::sockets::WantedSocket;
use crate::api::{Answer, access, views};
use crate::closing::Received;
use crate::metrics::{Connections, Looked};
use crate::name_server::NameUpdates;
use crate::role::anchor::api::WantedNamespace;
use crate::role::community;
use crate::role::links::api::{called, explained};
use crate::role::links::wishes::{Preference, conditions, wishes};
use crate::role::programs::{self, Anchored};
use crate::{clock, config};

/// How long peers are waited for when this host goes away.
const SUSPEND_WAIT: Duration = Duration::from_secs(1);

/// Clients that wait for a suspension.
pub(super) struct Suspending {
    /// Each with how many connections wait.
    clients: Vec<(ClientId, usize)>,
    /// They are answered then at the latest.
    until: Time,
    /// Peers that were told.
    told: usize,
}

impl Suspending {
    /// When clients are answered at the latest.
    pub(super) fn until(&self) -> Time {
        self.until
    }
}

impl EventLoop {
    /// Clients have something to say, or can be told more.
    pub(super) fn handle_clients(&mut self) {
        for id in self.desk.server.handle_ready(clock::now()) {
            self.moves.on_backlog(&self.desk, &mut self.effects, id);
        }
    }

    /// Clients have gone.
    pub(super) fn handle_gone(&mut self) {
        let gone = self.desk.server.take_gone();
        if !gone.is_empty() {
            self.moves.clients_gone(&mut self.effects, &gone);
            self.programs.clients_gone(&mut self.desk, &gone);
            self.anchors.clients_gone(&gone);
            self.pinging.retain(|one| !gone.contains(&one.client()));
        }
    }

    /// Takes in what others have found out for clients.
    pub(super) fn handle_answers(&mut self) {
        for (id, reply) in self.answers.take() {
            self.desk.server.reply(id, &reply);
        }
    }

    /// What has changed of connections this instant counts for what is asked now.
    pub(super) fn look_again(&mut self) {
        self.handle_datapath_events(clock::now(), Most::OF_SOCKETS);
        self.handle_udp(clock::now());
    }

    /// Answers one request of each user's who has asked: whoever asks for much is not to keep everybody else from this
    /// thread.
    pub(super) fn serve_turns(&mut self) {
        for id in self.desk.server.take_turns() {
            if let Some(asked) = self.desk.server.request(id) {
                let answer = asked.and_then(|asked| self.answer(id, asked));
                self.desk.reply(id, answer);
            }
        }
    }

    /// Has the owner of a request answer it.
    fn answer(&mut self, id: ClientId, asked: Asked) -> Answer {
        let Asked { request, descriptors } = asked;
        access::check(&request, self.desk.server.credentials(id))?;
        let one = || one(descriptors);
        match request {
            Request::Status => Ok(Some(Reply::Status(Box::new(self.status())))),
            Request::Connections => self.connections(id),
            Request::Peers => Ok(Some(Reply::Peers(self.peers()))),
            Request::Paths => Ok(Some(Reply::Paths(self.paths()))),
            Request::ExplainPaths { prefer } => self.explain_paths(prefer),
            Request::Ping { host } => self.ping(id, &host),
            Request::Configuration => Ok(Some(Reply::Configuration(self.configuration()))),
            Request::Metrics => Ok(Some(Reply::Metrics(self.metrics()))),
            Request::Events(query) => self.tell_events(id, &query),
            Request::Handoff { to, peer } => self.hand_off(to, peer.as_deref()),
            Request::Suspend { connections } => self.suspend(id, &connections),
            Request::Resume { connections } => self.resume(&connections),
            Request::Place { connections, from } => self.place(&connections, from),
            Request::ForgetPeer { address, force } => self.forget(id, &address, force),
            Request::Community(request) => self.community(request),
            Request::Move { connections, to, receiver } => {
                self.look_again();
                let (moves, mut with) = self.moving();
                moves.move_sockets(&mut with, id, &connections, &to, receiver)
            }
            Request::MoveProcess { pid, scope, to, address } => {
                self.look_again();
                let (moves, mut with) = self.moving();
                moves.move_process(&mut with, id, pid, scope, &to, address)
            }
            Request::Receive { name } => {
                let (moves, mut with) = self.moving();
                moves.receive_sockets(&mut with, id, &name)
            }
            Request::Give { to, receiver, state } => {
                let (moves, mut with) = self.moving();
                moves.give_socket(&mut with, id, one()?, &to, receiver, state)
            }
            Request::Prepare { to, receiver } => {
                let (moves, mut with) = self.moving();
                moves.prepare_socket(&mut with, id, &one()?, &to, receiver)
            }
            Request::Socket { family, kind, anchor, hidden } => {
                let wanted = WantedSocket { family, kind, hidden };
                let anchored = self.programs.make_socket(&mut self.desk, id, wanted, &anchor)?;
                anchored.map_or(Ok(None), |anchored| self.anchor(&anchored))
            }
            Request::Anchor { question, anchor } => {
                if let Some(anchored) = self.programs.take_anchor(&mut self.desk, id, question, anchor.as_deref()) {
                    let answer = self.anchor(&anchored);
                    self.desk.reply(anchored.client, answer);
                }
                Ok(None)
            }
            Request::Bind { address } => self.bind_socket(id, one()?.as_fd(), address),
            Request::Uuid => Ok(Some(Reply::Uuid { uuid: self.desk.names.of(one()?.as_fd())? })),
            Request::Export => programs::export_socket(&mut self.desk, id, one()?),
            Request::Rebuild { uuid } => programs::rebuild_socket(&mut self.desk, id, &uuid),
            Request::Sockets { pid } => {
                let (names, client) = (self.desk.names.clone(), self.desk.server.credentials(id));
                let allowed = move || access::check(&Request::Sockets { pid }, client);
                let find = move || programs::sockets(&names, pid, allowed);
                self.find_answer(id, move || find().map_or_else(Reply::Error, Reply::Sockets))
            }
            Request::Migrator => self.programs.be_migrator(id),
            Request::Namespace { anchor, family, ports, address, hidden } => {
                let wanted = WantedNamespace { family, ports, address, hidden };
                let (anchors, mut with) = self.anchoring();
                anchors.want_namespace(&mut with, id, one()?.into_inner(), &anchor, wanted)
            }
            Request::Anchors { brief } => {
                let view = self.anchors.anchors_view(&mut self.desk, &mut self.effects.lender, brief);
                Ok(Some(Reply::Anchors(view)))
            }
            Request::Lending { stop } => self.anchors.set_lending(&mut self.desk, &mut self.effects.lender, stop),
        }
    }

    fn community(&mut self, request: CommunityRequest) -> Answer {
        self.handle_udp(clock::now());
        let reply = community::api::answer(&mut self.desk, request, self.settings.config.port);
        self.poll_node();
        Ok(Some(Reply::Community(Box::new(reply?))))
    }

    /// A socket is to have the address of another host, or may be.
    fn anchor(&mut self, Anchored { client, wanted, anchor }: &Anchored) -> Answer {
        let (anchors, mut with) = self.anchoring();
        anchors.want_socket(&mut with, *client, *wanted, anchor)
    }

    fn bind_socket(&mut self, id: ClientId, socket: BorrowedFd<'_>, address: SocketAddr) -> Answer {
        self.desk.names.of(socket)?;
        let (anchors, mut with) = self.anchoring();
        let anchored = anchors.bind_anchored(&mut with, id, socket, address, None);
        anchored.unwrap_or_else(|| self.desk.bind_own_socket(id, socket, address))
    }

    /// Asks a host, as a client wants.
    pub(super) fn ping(&mut self, client: ClientId, host: &str) -> Answer {
        let now = clock::now();
        let named = self.desk.host_named(host);
        let node = &self.desk.node;
        let at: Option<IpAddr> = host.parse().ok().map(|address: IpAddr| address.to_canonical());
        let known = named.as_ref().ok().and_then(|key| node.peer_with(key)).map(|(id, _)| id);
        // It may have answered at another address than the one that it is at.
        let known = known.or_else(|| node.known_at(at?).map(|(id, _)| id));
        // Or it was there when connections were made that have gone on from elsewhere.
        let left = |at: IpAddr| node.flows().find(|flow| flow.entry.is_some() && flow.tuple.remote.ip() == at);
        let known = known.or_else(|| left(at?)?.entry.map(|entry| entry.peer));
        let peer = known.and_then(|id| Some((id, node.last_ping(id)?.0)));
        let (whom, address) = match (peer, at) {
            (Some((id, remote)), _) => {
                let node = &mut self.desk.node;
                let is_there = at == Some(remote.ip()) && node.peer(id).is_some_and(|peer| !peer.mapped);
                if is_there && matches!(node.standing(remote.ip()), Standing::Silent { .. }) {
                    // It was silent when connections with it were opened: those wait for that.
                    node.ask_address(now, remote.ip());
                }
                (Whom::Peer(id), remote)
            }
            (None, Some(address)) if named.is_err() => {
                if address.is_loopback() || self.desk.own_addresses().contains(&address) {
                    return Err(Failure::new("this is the host itself").on(host).hint("Name another one."));
                }
                if !pings::is_of_one_host(address) {
                    return Err(Failure::new("this is the address of no single other host")
                        .on(host)
                        .hint("The address at which other hosts reach it names it."));
                }
                if self.desk.routes.source_for(address).is_none() {
                    return Err(Failure::new("no network of this host leads to it").on(host).hint(
                        "An interface has to be up, with an address of that family and a route (`ip address`, `ip \
                         route`).",
                    ));
                }
                if !self.desk.node.ask_address(now, address) {
                    return Err(Failure::new("this host may not ask it")
                        .on(host)
                        .hint("`ask` and `trust` in the configuration say whom it may."));
                }
                (Whom::Address(address), SocketAddr::new(address, self.settings.config.port))
            }
            (None, _) => {
                return Err(named.err().unwrap_or_else(|| {
                    Failure::new("it is a host of the community, and nobody knows where it is")
                        .on(host)
                        .hint("An address of it does: `whimbrel ping ADDRESS`.")
                }));
            }
        };
        self.desk.server.answer_later(client);
        // What goes out for it does so this time round, once what has happened until now is known.
        self.pinging.push(Pinging::new(client, whom, address, now));
        Ok(None)
    }

    /// Asks where it is time, and answers who has waited.
    pub(super) fn answer_pinging(&mut self) {
        if self.pinging.is_empty() {
            return;
        }
        let now = clock::now();
        let node = &mut self.desk.node;
        for one in self.pinging.extract_if(.., |one| one.go_on(now, node)).collect::<Vec<_>>() {
            let pinged = self.pinged(now, &one);
            self.desk.server.reply(one.client(), &Reply::Pinged(Box::new(pinged)));
        }
        self.poll_node();
    }

    /// Another key than the known one has answered at an address.
    pub(super) fn find_another_key(&mut self, address: IpAddr) {
        self.pinging.iter_mut().filter(|one| one.address().ip() == address).for_each(Pinging::find_another_key);
    }

    /// What a client is answered.
    fn pinged(&self, now: Time, one: &Pinging) -> Pinged {
        let Some(peer) = one.peer().and_then(|id| self.desk.peer(id)) else { return pings::stranger(one) };
        let since = self.sessions.get(&peer.id).copied();
        let session = views::peer(&peer, now, since, whimbrel_protocol::Trust::Tofu, &self.effects.known_keys).session;
        Pinged { session, peer: Some(self.desk.peer_name(&peer.key)), ..pings::of_peer(&peer, now, one) }
    }

    fn connections(&mut self, id: ClientId) -> Answer {
        let flows: Vec<FlowView> = self.desk.node.flows().collect();
        let peers: Vec<PeerView> = self.desk.peers().collect();
        let unknown = flows.iter().filter(|flow| flow.state == FlowState::Unknown).map(|flow| flow.tuple.remote.ip());
        let question = views::ConnectionsQuestion {
            standings: unknown.map(|ip| (ip, self.desk.node.standing(ip))).collect(),
            heard: self.heard_rewritten(&peers),
            left: self.left.clone(),
            own: self.desk.own_addresses(),
            helpers: self.effects.helpers.views(),
            names: self.desk.names_of_hosts(),
            met_at: self.desk.met_at(),
            elsewhere: self.desk.host.inhabitants_elsewhere(),
            sockets: self.desk.host.datapath.sockets_apart().ok(),
            apart: flows.iter().filter_map(|flow| self.goes_apart(flow)).collect(),
            suspended: self.desk.node.is_suspended(),
            flows,
            peers,
            now: clock::now(),
            wall: SystemTime::now(),
        };
        self.find_answer(id, move || Reply::Connections(question.answer()))
    }

    /// The interfaces by which a flow goes that has a path of its own: that one, and the one that it goes by as well.
    fn goes_apart(&self, flow: &FlowView) -> Option<(FlowTuple, (String, Option<String>))> {
        flow.entry.filter(|entry| entry.side != 0)?;
        let (link, second) = self.desk.node.own_links_of(&flow.tuple)?;
        let name = |link| called(link, &self.desk.host.network);
        Some((flow.tuple, (name(link), second.map(name))))
    }

    fn paths(&self) -> Vec<whimbrel_ipc::Path> {
        let (own, called) = (self.desk.own_addresses(), self.desk.names_of_hosts());
        let paths = self.desk.peers().flat_map(|view| {
            let mtu = self.desk.host.tunnel_mtu(view.id);
            views::paths(&view, clock::now(), mtu, self.possible(&own, &view))
        });
        let named = |mut path: whimbrel_ipc::Path| {
            path.peer.name = called.get(&path.peer.key).cloned();
            let far_end = self.desk.host.streams().far_end(path.remote).filter(|_| path.by_tcp);
            path.remote = far_end.unwrap_or(path.remote);
            path
        };
        paths.map(named).collect()
    }

    fn explain_paths(&mut self, prefer: Option<Vec<WrittenPreference>>) -> Answer {
        let trial = prefer.map(|prefer| prefer.into_iter().map(Preference::read).collect::<Result<Vec<_>, _>>());
        let trial = trial.transpose().map_err(|why| Failure::new(why).on("prefer"))?;
        let called = self.desk.names_of_hosts();
        let peers = self.desk.node.peers().map(|view| {
            let name = views::name(&view);
            let name = whimbrel_ipc::PeerName { name: called.get(&name.key).cloned(), ..name };
            (view.id, (name, view.doubt.is_some() || !view.session))
        });
        let peers = peers.collect();
        let network = &self.desk.host.network;
        let wished = trial.as_ref().map(|trial| wishes(trial, network));
        // Who has which connection open takes longer to find out than an answer may.
        let tried = conditions(trial.as_deref().unwrap_or_default());
        let met = self.desk.node.flows().map(|view| (view.tuple, tried.met(&view.tuple, &[])));
        let met = met.filter(|(_, met)| !met.is_empty()).collect();
        let with = wished.as_deref().map(|wishes| LinkTrial { wishes, met: &met });
        let choices = self.desk.node.explain_links(clock::now(), with);
        let preferences = trial.as_ref().unwrap_or(&self.settings.config.preferences);
        let said = explained(preferences, choices, &peers, &self.desk.host.network, trial.is_some());
        Ok(Some(Reply::Explained(said)))
    }

    fn tell_events(&mut self, id: ClientId, query: &EventsQuery) -> Answer {
        if query.follow {
            self.desk.server.may_stay(id)?;
        }
        let mut replies: Vec<Reply> = self.desk.select(query).cloned().map(Reply::Event).collect();
        if !query.follow {
            replies.push(Reply::End { newest: self.desk.newest() });
        }
        self.desk.server.replies(id, &replies);
        if query.follow {
            self.desk.server.follow(id);
        }
        Ok(None)
    }

    /// Peers are told at once; the client is answered when they have answered, or after a while.
    fn suspend(&mut self, id: ClientId, connections: &[String]) -> Answer {
        let now = clock::now();
        self.handle_udp(now);
        let mut already = self.desk.node.is_suspended();
        let flows = if connections.is_empty() {
            self.desk.node.suspend(now);
            self.desk.node.peers().map(|view| view.flows).sum()
        } else {
            let named = self.desk.lasting_connections(connections)?;
            let waiting = self.desk.node.set_paused(now, &named, true).len();
            already |= waiting == 0;
            if waiting == 0 { named.len() } else { waiting }
        };
        self.poll_node();
        let told = self.desk.node.leaving_peers();
        if already && told == 0 {
            return Ok(Some(Reply::Suspended(Suspended { flows, told, answered: 0, already })));
        }
        let fresh = || Suspending { clients: Vec::new(), until: now + SUSPEND_WAIT, told };
        self.suspending.get_or_insert_with(fresh).clients.push((id, flows));
        self.desk.server.answer_later(id);
        Ok(None)
    }

    /// Answers whoever suspended this host, where the time has come.
    pub(super) fn answer_suspending(&mut self) {
        if self.suspending.is_none() {
            return;
        }
        let open = self.desk.node.leaving_peers();
        let over = |suspending: &mut Suspending| open == 0 || suspending.until <= clock::now();
        let Some(suspending) = self.suspending.take_if(over) else { return };
        let answered = suspending.told.saturating_sub(open);
        for (id, flows) in suspending.clients {
            self.desk
                .server
                .reply(id, &Reply::Suspended(Suspended { flows, told: suspending.told, answered, already: false }));
        }
    }

    fn resume(&mut self, connections: &[String]) -> Answer {
        let now = clock::now();
        let all = connections.is_empty();
        let suspended = self.desk.node.is_suspended();
        let waiting = if all { self.desk.node.waiting_flows() } else { self.desk.lasting_connections(connections)? };
        if all && !suspended && waiting.is_empty() {
            return Err(Failure::new("this host is not suspended, nor is a connection of its")
                .hint("`whimbrel suspend` has its connections wait."));
        }
        let named: HashSet<FlowTuple> = waiting.iter().copied().collect();
        let waits = self.desk.node.flows().filter(|view| named.contains(&view.tuple));
        let waits: Vec<Waits> = waits.filter_map(|view| Some(view.entry?.waits)).collect();
        if !all {
            may_go_on(suspended, &waits)?;
        }
        self.desk.node.set_paused(now, &waiting, false);
        let mut flows = waits.iter().filter(|waits| waits.here && !waits.there).count();
        if all && self.desk.node.is_suspended() {
            self.desk.node.resume(now, &self.desk.routes);
            flows = self.desk.node.peers().map(|view| view.flows).sum();
        }
        self.poll_node();
        Ok(Some(Reply::Resumed { flows, host: all && suspended }))
    }

    fn place(&mut self, connections: &[String], from: Option<IpAddr>) -> Answer {
        let now = clock::now();
        let named = self.desk.lasting_connections(connections)?;
        let mut placed = named.iter().map(|flow| (flow, self.desk.node.place_flow(now, flow, from.map(Placement::at))));
        let failed = placed.find_map(|(flow, placed)| Some((flow, placed.err()?)));
        drop(placed);
        self.poll_node();
        match failed {
            Some((flow, error)) => {
                Err(Failure::new(format!("{error}; those that were named before it are placed")).on(flow.to_string()))
            }
            None => Ok(Some(Reply::Placed { flows: named.len() })),
        }
    }

    /// Lets another thread find the answer for a client.
    pub(crate) fn find_answer(&mut self, id: ClientId, find: impl FnOnce() -> Reply + Send + 'static) -> Answer {
        self.desk.server.answer_later(id);
        let none = move |why| (id, Reply::Error(Failure::new(why)));
        self.answers.begin(move || (id, find()), none);
        Ok(None)
    }

    fn hand_off(&mut self, to: Option<IpAddr>, peer: Option<&str>) -> Answer {
        if let Some(to) = to
            && !self.desk.own_addresses().contains(&to)
        {
            let failure = Failure::new("this host has no such address").on(to);
            return Err(failure.hint("`whimbrel status` shows those that it has."));
        }
        if self.desk.node.is_suspended() {
            return Err(is_suspended());
        }
        let mut views: Vec<PeerView> = self.desk.node.peers().collect();
        if let Some(wanted) = peer {
            let called = self.desk.host_named(wanted).ok();
            let mut found = chosen(views.clone(), wanted);
            if found.is_empty() {
                // By its name.
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
        let since = self.desk.newest();
        let now = clock::now();
        self.handle_udp(now);
        let wanted: Vec<PeerId> = views.iter().map(|view| view.id).collect();
        if peer.is_none() && wanted.len() == all {
            self.desk.node.hand_off(now, &self.desk.routes, to);
        } else {
            for id in &wanted {
                self.desk.node.hand_off_towards(now, &self.desk.routes, to, *id);
            }
        }
        self.poll_node();
        let views: Vec<PeerView> = self.desk.node.peers().filter(|view| wanted.contains(&view.id)).collect();
        let told = told(&views, !self.desk.own_addresses().is_empty())?;
        let peers = told.iter().map(|view| views::name(view)).collect();
        let flows = told.iter().map(|view| view.flows).sum();
        Ok(Some(Reply::Handoff(HandoffStarted { to, peers, flows, since })))
    }

    /// The flows that peers were heard rewritten on, where that decides anything.
    fn heard_rewritten(&self, peers: &[PeerView]) -> HashSet<FlowTuple> {
        if !peers.iter().any(|peer| peer.carrier == Carrier::FollowRewrite && peer.moved > 0) {
            return HashSet::new();
        }
        self.desk.host.datapath.heard_rewritten().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read which connections are answered rewritten");
            HashSet::new()
        })
    }

    /// Whether a route leads from an address of this host to one of the peer's.
    fn leads(&self, from: IpAddr, view: &PeerView) -> bool {
        let places = std::iter::once(view.remote.ip()).chain(view.candidate.map(|at| at.ip()));
        let mut places = places.chain(view.locators.iter().copied()).filter(|at| at.is_ipv4() == from.is_ipv4());
        places.any(|at| self.desk.routes.leads(from, at))
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
            .filter(|(local, remote)| self.desk.routes.still_reaches(*local, remote.ip()))
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
        let peers: Vec<PeerView> = self.desk.node.peers().collect();
        let datapath = self.desk.host.datapath.counters();
        if let Err(error) = &datapath {
            tracing::warn!(%error, "cannot read the data plane's counters");
        }
        self.desk.metrics(&Looked {
            suspended: self.desk.node.is_suspended(),
            connections: Connections::count(
                self.desk.node.flows(),
                &peers,
                |address| self.desk.node.standing(address),
                |flow| self.left.is_lost(clock::now(), flow, true),
            ),
            peers: &peers,
            kept_addresses: self.desk.host.kept_addresses().len(),
            tunnel: self.desk.host.tunnel.counters().all().collect(),
            datapath: datapath.ok(),
        })
    }

    fn peers(&self) -> Vec<whimbrel_ipc::Peer> {
        let (now, config, known) = (clock::now(), &self.settings.config, &self.effects.known_keys);
        let since = |view: &PeerView| self.sessions.get(&view.id).copied();
        let called = self.desk.names_of_hosts();
        let peers = self.desk.peers();
        let mut peers: Vec<_> =
            peers.map(|view| views::peer(&view, now, since(&view), config.trust_in(&view.key), known)).collect();
        peers.iter_mut().for_each(|peer| peer.name = called.get(&peer.key).cloned());
        peers
    }

    fn status(&self) -> Status {
        let network = &self.desk.host.network;
        let interface = |index: u32| match network.link(index) {
            Some(link) => link.name.clone(),
            None => format!("#{index}"),
        };
        let peers: Vec<PeerView> = self.desk.node.peers().collect();
        let device = self.desk.host.tunnel.device();
        let counters = self.desk.host.tunnel.counters();
        let own = self.desk.own_addresses();
        let mut addresses: Vec<LocalAddress> = network
            .addresses
            .iter()
            .filter(|usable| own.contains(&usable.address))
            .map(|usable| LocalAddress { address: usable.address, interface: interface(usable.interface) })
            .collect();
        let met_at = self.desk.met_at();
        addresses.sort_by_key(|local| met_at.iter().position(|address| *address == local.address));
        Status {
            ready: true,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: u64::try_from(clock::now().since(self.started).as_millis()).unwrap_or(u64::MAX),
            public_key: self.desk.node.public_key().to_string(),
            port: self.settings.config.port,
            trust: views::trust(self.settings.config.trust),
            run_dir: self.settings.run_dir.clone(),
            state_dir: self.settings.state_dir.clone(),
            place: self.attachments.newest(),
            addresses,
            kept_addresses: self.desk.host.kept_addresses().to_vec(),
            suspended: self.desk.node.is_suspended(),
            rendezvous: self.desk.node.rendezvous().into_iter().map(views::rendezvous).collect(),
            meetings: views::meetings(self.desk.node.meetings(), self.settings.config.serve_rendezvous),
            name_server: self.name_updates.as_ref().map(NameUpdates::view),
            counts: views::counts(&peers, self.desk.node.flows(), |flow| self.left.is_lost(clock::now(), flow, true)),
            attached: self.desk.host.attached(interface),
            tunnel: Some(whimbrel_ipc::Tunnel {
                device: device.name().to_owned(),
                mtu: self.desk.host.inner_mtu(),
                packets_sent: counters.get(Counter::PacketsSent),
                packets_received: counters.get(Counter::PacketsReceived),
            }),
            newest_event: self.desk.newest(),
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
            by_tcp: false,
            source,
            observed: None,
            session: true,
            round_trip: None,
            places: Places::default(),
            carrier: Carrier::Hold,
            translated: false,
            path: whimbrel_protocol::PathId(0),
            kept: Vec::new(),
            flows,
            moved: 0,
            locators: Vec::new(),
            sequences: (0, 0),
            last_heard: Time::default(),
            mapped: false,
            ping: None,
            doubt: None,
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
