//! Endpoints of anchors for programs of this host, and of this host for others (`docs/protocol.md` §11, decision 0019).
//!
//! ```text
//! lending.rs  what this host lends, as programs ask and are told
//! offer.rs    what this host is configured to lend, and what of it cannot be lent
//! reasons.rs  why an anchor does not lend, for people
//! returns.rs  leases that nobody needs any more
//! ```

mod lending;
mod reasons;
mod returns;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{Anchored, Code, Failure, Family, Reply};
use whimbrel_kernel::endpoint::Brought;
use whimbrel_kernel::namespace;
use whimbrel_protocol::{
    Awaited, Candidate, Event, Experience, FlowName, Policy, Refusal, Refused, Returns, Search, Then, Time,
};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::Ends;

use crate::api::Answer;
use crate::api::server::ClientId;
use crate::clock;
use crate::closing::Received;
use crate::event_loop::{EventLoop, FLOW_TICK};
use crate::events::{Kind, Report, told};
use crate::host::endpoints::HIDDEN;
use crate::reactor::LoopError;
use crate::role::anchor::executor::young::Young;
use crate::role::anchor::offer::{BLOCK, Fault};
use crate::role::programs::{WantedSocket, bind, plain_socket};
pub(crate) use reasons::reason_of;
use reasons::{may_pass, reason};

/// Who wants an anchor, and for what.
#[derive(Debug)]
enum Wanted {
    /// A socket with its address.
    Socket { client: ClientId, socket: WantedSocket },
    /// Ports of this address of its, for what a process opens that has moved here.
    Process { address: IpAddr },
    /// One port of it, of the client's choice, for a socket in the namespace of that address.
    Port { client: ClientId, socket: Received, address: SocketAddr },
    /// A namespace that a program has brought along is to have it, and these ports beside those that the kernel draws.
    Namespace { client: ClientId, namespace: Option<Brought>, wanted: WantedNamespace, first: Option<FlowName> },
}

/// What a namespace that a program brings along is to have.
#[derive(Clone, Debug)]
pub(crate) struct WantedNamespace {
    /// Of the address.
    pub(crate) family: Family,
    /// Beside those that the kernel draws.
    pub(crate) ports: Vec<u16>,
    /// The whole of an address instead; the unspecified one leaves it to the anchor which.
    pub(crate) address: Option<IpAddr>,
    /// Far ends are not to learn where it is.
    pub(crate) hidden: bool,
}

impl Wanted {
    fn client(&self) -> ClientId {
        match self {
            Self::Socket { client, .. } | Self::Port { client, .. } | Self::Namespace { client, .. } => *client,
            Self::Process { .. } => ClientId::NOBODY,
        }
    }

    /// The address that is wanted as a whole.
    fn whole(&self) -> Option<IpAddr> {
        match self {
            Self::Namespace { wanted, .. } => wanted.address,
            Self::Socket { .. } | Self::Port { .. } | Self::Process { .. } => None,
        }
    }

    fn ipv4(&self) -> bool {
        match self {
            Self::Socket { socket, .. } => socket.family == Family::Ipv4,
            Self::Port { address, .. } => address.is_ipv4(),
            Self::Process { address } => address.is_ipv4(),
            Self::Namespace { wanted, .. } => wanted.family == Family::Ipv4,
        }
    }
}

/// A lease that is asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    wanted: Vec<Wanted>,
    /// Who is asked where this one refuses.
    search: Search,
}

impl Asked {
    /// Of these hosts, one after the other.
    fn new(wanted: Wanted, others: VecDeque<Option<PublicKey>>) -> Self {
        Self { wanted: vec![wanted], search: Search::new(others) }
    }

    /// Of no other host than the first, by who has waited.
    fn after(waits_until: Option<Time>, wanted: Wanted) -> Self {
        Self { wanted: vec![wanted], search: Search::after(waits_until) }
    }
}

/// What programs wait for, and what they have.
#[derive(Debug, Default)]
pub(crate) struct Anchors {
    asked: HashMap<FlowName, Asked>,
    /// The ports of each anchor that the kernel draws from for sockets that programs ask for, by family (IPv4).
    blocks: HashMap<(PublicKey, bool), FlowName>,
    /// Programs that run in namespaces of their own, by the clients that hold these.
    namespaces: HashMap<ClientId, Vec<FlowName>>,
    returns: Returns<Vec<Wanted>>,
    /// Moves that wait for their connections to be flows of the anchor's.
    claiming: HashMap<FlowTuple, crate::role::relocation::api::MoveRequest>,
    /// Connections that have lasted and are being claimed.
    lasting: HashMap<FlowTuple, Young>,
    pub(crate) experience: Experience,
    stopping: bool,
    /// What this host is configured to lend and cannot, as it was told last.
    faults: Vec<Fault>,
}

/// Looks after leases.
///
/// # Errors
/// When the kernel has no room.
pub(crate) fn register(this: &mut EventLoop) -> Result<(), LoopError> {
    this.reactor.every(clock::now(), FLOW_TICK, EventLoop::anchors_due);
    Ok(())
}

impl EventLoop {
    /// The host that programs name as their anchor: one, or several that are asked one after the other. None is this
    /// host, which a policy gives only where `may_be_own` says so.
    fn candidates(&mut self, anchor: &str, may_be_own: bool) -> Result<VecDeque<Option<PublicKey>>, Failure> {
        let (now, own) = (clock::now(), self.node.public_key());
        let Some(policy) = Policy::named(anchor) else {
            let key = self.host(anchor)?;
            return Ok([(key != own).then_some(key)].into());
        };
        let peers: HashMap<PublicKey, _> =
            self.node.peers().map(|view| (view.key, (view.round_trip, view.remote.ip()))).collect();
        let hosts = self.node.community(now).hosts;
        let others = hosts.iter().filter(|host| !host.here).map(|host| host.key);
        let candidates: Vec<Candidate> = others
            .map(|key| Candidate { key, round_trip: peers.get(&key).and_then(|(round_trip, _)| *round_trip) })
            .collect();
        for candidate in &candidates {
            self.anchors.experience.meet(now, candidate.key, peers.get(&candidate.key).map(|(_, at)| *at));
        }
        let order: VecDeque<_> =
            self.anchors.experience.order(now, policy, may_be_own.then_some(&own), &candidates).into();
        if order.is_empty() {
            return Err(Failure::new("there is no other host in this one's community")
                .on(anchor)
                .code(Code::Unavailable)
                .hint("`whimbrel community` says who belongs to it. Hosts outside of it are named one by one."));
        }
        Ok(order)
    }

    /// A program wants a socket whose anchor is another host, or may be. The client is answered, now or later.
    pub(crate) fn want_socket(&mut self, client: ClientId, socket: WantedSocket, anchor: &str) -> Answer {
        let order = self.candidates(anchor, true)?;
        self.ask_next(Asked::new(Wanted::Socket { client, socket }, order));
        Ok(None)
    }

    /// A process has moved here, to the namespace of an address that one of these hosts may lend ports of: what it
    /// opens from now on needs some.
    pub(crate) fn want_ports(&mut self, address: IpAddr, owners: Vec<PublicKey>) {
        let own = self.node.public_key();
        let asked = |asked: &Asked| matches!(asked.wanted[..], [Wanted::Process { address: of }] if of == address);
        if self.effects.tenant.draws_ports(address) || self.anchors.asked.values().any(asked) {
            return;
        }
        let others = owners.into_iter().filter(|owner| *owner != own).map(Some).collect();
        self.ask_next(Asked::new(Wanted::Process { address }, others));
    }

    /// [`Request::Namespace`](whimbrel_ipc::Request::Namespace).
    pub(crate) fn want_namespace(
        &mut self,
        client: ClientId,
        namespace: OwnedFd,
        anchor: &str,
        mut wanted: WantedNamespace,
    ) -> Answer {
        if let Some(address) = wanted.address {
            wanted.family = if address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
            if address.is_multicast() || address.is_loopback() {
                return Err(Failure::new("no anchor can lend that address").on(address).code(Code::Unknown));
            }
        }
        if wanted.ports.contains(&0) {
            let what = "port 0 is none: the kernel draws ports without being told";
            return Err(Failure::new(what).code(Code::Unknown));
        }
        self.server.may_stay(client)?;
        let owner = self.server.credentials(client).map(|who| who.uid);
        let denied = |what: String| Failure::new(what).code(Code::Denied);
        let owner = owner.ok_or_else(|| denied("the system does not say whose this namespace is".to_owned()))?;
        let namespace = Brought { namespace, owner };
        namespace.check().map_err(|error| denied(error.to_string()))?;
        let mut order = self.candidates(anchor, false)?;
        // This host's own address needs no namespace.
        order.retain(Option::is_some);
        if order.is_empty() {
            return Err(Failure::new("the anchor is this host itself, whose address programs have anyway")
                .on(anchor)
                .code(Code::Unavailable)
                .hint("`--anchor self` runs them with it."));
        }
        let wanted = Wanted::Namespace { client, namespace: Some(namespace), wanted, first: None };
        self.server.answer_later(client);
        self.ask_next(Asked::new(wanted, order));
        Ok(None)
    }

    /// [`Request::Bind`](whimbrel_ipc::Request::Bind) of a socket in the namespace of an anchor's address. `None`: it
    /// is in none. `waits_until`: of who has waited.
    pub(crate) fn bind_anchored(
        &mut self,
        client: ClientId,
        socket: BorrowedFd<'_>,
        address: SocketAddr,
        waits_until: Option<Time>,
    ) -> Option<Answer> {
        let namespace = self.effects.host.namespace_with(socket)?;
        Some(self.bind_in_namespace(client, socket, address, namespace, waits_until))
    }

    fn bind_in_namespace(
        &mut self,
        client: ClientId,
        socket: BorrowedFd<'_>,
        address: SocketAddr,
        (local, brought): (IpAddr, Option<u64>),
        waits_until: Option<Time>,
    ) -> Answer {
        let end = SocketAddr::new(local, address.port());
        if !address.ip().is_unspecified() && address.ip().to_canonical() != local {
            let failure = Failure::new("the socket's anchor has another address").on(local).code(Code::Unavailable);
            return Err(failure);
        }
        if end.port() == 0 || self.effects.tenant.is_in_namespace_of(&self.effects.host, socket, end) {
            return bind(socket, address);
        }
        let taken_of = self.node.lessor_of(end);
        let lessor = self.node.rented().find(|of| of.ends.first.ip() == local).map(|of| of.anchor);
        let Some(lessor) = lessor else {
            let failure = Failure::new("the socket came from another host, and its address is on lease from none");
            return Err(failure.on(local).code(Code::Unavailable));
        };
        let not_kept = |error| Failure::new(format!("its descriptor cannot be kept: {error}"));
        let socket = socket.try_clone_to_owned().map_err(not_kept)?;
        let asked = Asked::after(waits_until, Wanted::Port { client, socket: socket.into(), address });
        match taken_of {
            Some(anchor) if !self.may_wait_for(&asked, anchor, end) => return Err(taken(end)),
            Some(anchor) => self.wait_for_end(anchor, end, asked),
            None => {
                let lease = self.lease(asked, lessor, Ends { first: end, count: 1 });
                if let (Some(lease), Some(first)) = (lease, brought) {
                    self.effects.tenant.join_namespace(lease, first);
                }
            }
        }
        self.server.answer_later(client);
        Ok(None)
    }

    /// Whether an endpoint that another program has is waited for.
    fn may_wait_for(&self, asked: &Asked, anchor: PublicKey, end: SocketAddr) -> bool {
        let now = clock::now();
        asked.search.may_wait(now) && self.is_about_to_return(now, &Awaited::End(anchor, end))
    }

    /// Asks the next anchor that comes into question.
    fn ask_next(&mut self, mut asked: Asked) {
        let Some(first) = asked.wanted.first() else { return };
        let (ipv4, client) = (first.ipv4(), first.client());
        match asked.search.pop() {
            Some(Some(anchor)) => {
                let any: IpAddr = if ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                let block = match first {
                    Wanted::Process { address } => Ends { first: SocketAddr::new(*address, 0), count: BLOCK },
                    Wanted::Namespace { wanted: WantedNamespace { address: Some(address), .. }, .. } => {
                        Ends { first: SocketAddr::new(*address, 0), count: 0 }
                    }
                    _ => Ends { first: SocketAddr::new(any, 0), count: BLOCK },
                };
                if matches!(asked.wanted[..], [Wanted::Socket { .. }, ..]) {
                    self.server.answer_later(client);
                    match self.anchors.blocks.get(&(anchor, ipv4)).copied() {
                        Some(lease) => match self.anchors.asked.get_mut(&lease) {
                            // Another program asks for the same.
                            Some(under_way) => under_way.wanted.append(&mut asked.wanted),
                            None => self.serve_wanted(lease, asked.wanted, asked.search.waits_until()),
                        },
                        None => {
                            if let Some(lease) = self.lease(asked, anchor, block) {
                                self.anchors.blocks.insert((anchor, ipv4), lease);
                            }
                        }
                    }
                } else {
                    self.lease(asked, anchor, block);
                }
            }
            Some(None) => {
                for wanted in asked.wanted {
                    if let Wanted::Socket { client, socket } = wanted {
                        let made = self.make_own(client, socket);
                        self.reply(client, made);
                        self.serve(client);
                    }
                }
            }
            None => self.refuse_all(asked.wanted, &Failure::new("no host lends endpoints").code(Code::Unavailable)),
        }
    }

    fn lease(&mut self, asked: Asked, anchor: PublicKey, ends: Ends) -> Option<FlowName> {
        let now = clock::now();
        let hosts = self.node.community(now).hosts;
        let known = hosts.iter().find(|host| host.key == anchor).and_then(|host| host.at);
        let configured = || self.configured_at(&anchor);
        match self.node.lease(now, anchor, known.or_else(configured), ends) {
            Some(lease) => {
                let mut asked = asked;
                asked.search.note_asked(now);
                if let [Wanted::Namespace { namespace, wanted, .. }] = &mut asked.wanted[..]
                    && let Some(namespace) = namespace.take()
                {
                    self.effects.tenant.bring_namespace(lease, namespace, wanted.hidden);
                }
                self.anchors.asked.insert(lease, asked);
                Some(lease)
            }
            None => {
                self.refuse_all(asked.wanted, &Failure::new("this host leases nothing").code(Code::Unavailable));
                None
            }
        }
    }

    fn refuse_all(&mut self, wanted: Vec<Wanted>, failure: &Failure) {
        for wanted in wanted {
            if let Wanted::Namespace { first: Some(_), client, .. } = &wanted {
                self.leave_namespace(*client);
            }
            let client = wanted.client();
            self.reply(client, Err(failure.clone()));
            self.serve(client);
        }
    }

    /// A lease is in force.
    pub(crate) fn on_leased(&mut self, number: u64, anchor: PublicKey, ends: Ends) -> Report {
        let lease = FlowName::new(anchor, number);
        self.anchors.experience.lent(clock::now(), anchor, true);
        if let Some(asked) = self.anchors.asked.remove(&lease) {
            self.serve_wanted(lease, asked.wanted, asked.search.waits_until());
        }
        let (ends, called) = (shown(&ends), self.called(&anchor));
        told!(Lease { anchor, ends }, "{ends} on lease from {called}")
    }

    /// Whether an anchor has the address of a lease is not as it was.
    pub(crate) fn on_reached(&self, anchor: PublicKey, ends: Ends, reached: bool) -> Report {
        let (called, ends) = (self.called(&anchor), shown(&ends));
        match reached {
            false => told!(
                LeaseUnreached { anchor, ends },
                "{called} does not have the address of {ends} any more: what is sent there does not come here until it \
                 has it again. A program that is started anew gets another if {called} has one to lend"
            ),
            true => told!(LeaseReached { anchor, ends }, "{called} has the address of {ends} again"),
        }
    }

    /// Nobody here needs a lease any more.
    pub(crate) fn on_returned(&mut self, number: u64, anchor: PublicKey) -> Report {
        let lease = FlowName::new(anchor, number);
        self.anchors.blocks.retain(|_, block| *block != lease);
        self.anchors.returns.on_returned(clock::now(), anchor);
        told!(LeaseReturned { anchor }, "a lease of {} is returned: nobody needs it", self.called(&anchor))
    }

    /// A lease was refused, or is over. `None`: there is nothing to tell, since it will be asked for again.
    pub(crate) fn on_not_leased(
        &mut self,
        number: u64,
        anchor: PublicKey,
        why: Refusal,
        reason: &str,
    ) -> Option<Report> {
        let lease = FlowName::new(anchor, number);
        self.anchors.blocks.retain(|_, block| *block != lease);
        let (now, called) = (clock::now(), self.called(&anchor));
        let asked = self.anchors.asked.remove(&lease);
        let whole = asked.as_ref().and_then(|asked| asked.wanted.first()?.whole());
        let has_begun = |asked: &Asked| {
            matches!(asked.wanted[..], [Wanted::Namespace { first: Some(_), .. } | Wanted::Port { .. }])
        };
        let asked = asked.map(|mut asked| {
            // What it was refused for may be on its way back to the anchor.
            let has_less = self.has_less_since(asked.search.asked(), anchor);
            let refused = Refused { anchor, why, has_begun: has_begun(&asked), has_less };
            (asked.search.handle_refused(now, refused), asked)
        });
        let is_late = matches!(asked, Some((Then::Next { late: true } | Then::Wait { late: true }, _)));
        if why != Refusal::Taken && !is_late {
            self.anchors.experience.lent(now, anchor, false);
        }
        match asked {
            Some((Then::Wait { .. }, mut asked)) => {
                self.take_namespace_back(lease, &mut asked);
                self.wait_for_any(asked);
            }
            Some((Then::Next { .. }, mut asked)) => {
                self.take_namespace_back(lease, &mut asked);
                self.ask_next(asked);
            }
            Some((Then::GivenUp, asked)) => {
                self.effects.tenant.forget_namespace(lease);
                let code = match why {
                    Refusal::Taken => Code::InUse,
                    Refusal::NotAllowed => Code::Denied,
                    Refusal::NoRoom => Code::TooMany,
                    _ => Code::Unavailable,
                };
                let what = match whole {
                    Some(address) if address.is_unspecified() => "lends no address".to_owned(),
                    Some(address) => format!("does not lend {address}"),
                    None => "lends no endpoint".to_owned(),
                };
                let failure = Failure::new(format!("the anchor {what}: {reason}")).on(&called).code(code);
                self.refuse_all(asked.wanted, &failure);
            }
            None => {
                return Some(told!(
                    LeaseLost { anchor },
                    "a lease of {called} is over: {reason}. New connections with it lead nowhere"
                ));
            }
        }
        if is_late {
            return None;
        }
        Some(told!(LeaseRefused { anchor }, "{called} lends no endpoint: {reason}"))
    }

    /// Of a lease that did not come about.
    fn take_namespace_back(&mut self, lease: FlowName, asked: &mut Asked) {
        if let [Wanted::Namespace { namespace, .. }] = &mut asked.wanted[..] {
            *namespace = self.effects.tenant.take_namespace(lease);
        }
    }

    /// Goes on with what something was in the way of.
    fn ask_again(&mut self, mut asked: Asked) {
        match asked.wanted.pop() {
            Some(Wanted::Namespace { client, wanted, first: Some(first), .. }) => {
                self.serve_namespace(client, wanted, first, asked.search.waits_until());
                self.serve(client);
            }
            Some(Wanted::Port { client, socket, address }) => {
                let answer = self.bind_anchored(client, socket.as_fd(), address, asked.search.waits_until());
                self.reply(client, answer.unwrap_or_else(|| Err(gone().on(address))));
                self.serve(client);
            }
            other => {
                asked.wanted.extend(other);
                self.ask_next(asked);
            }
        }
    }

    /// Gives programs what they wanted a lease for.
    fn serve_wanted(&mut self, lease: FlowName, all: Vec<Wanted>, waits_until: Option<Time>) {
        let Some((anchor, ends)) = self.leased(lease) else {
            let failure = Failure::new("the lease ended at once").code(Code::Unavailable);
            return self.refuse_all(all, &failure);
        };
        for wanted in all {
            let client = wanted.client();
            match wanted {
                Wanted::Socket { client, socket } => {
                    let who = self.server.credentials(client);
                    let made = self.effects.host.in_namespace(ends.first.ip(), || plain_socket(socket, who));
                    let hide = |made: OwnedFd| match socket.hidden {
                        true => namespace::mark(made.as_fd(), HIDDEN).map(|()| made),
                        false => Ok(made),
                    };
                    let made = match made {
                        Some(Ok(made)) => {
                            made.and_then(|made| hide(made).map_err(|error| Failure::new(error.to_string())))
                        }
                        Some(Err(error)) => Err(Failure::new(error.to_string())),
                        None => Err(gone()),
                    };
                    let answer = made.and_then(|socket| self.hand_socket(client, socket, anchor.to_string()));
                    self.reply(client, answer);
                }
                // The namespace has them.
                Wanted::Process { .. } => {}
                Wanted::Port { client, socket, address } => {
                    let answer = bind(socket.as_fd(), address);
                    if answer.is_err() {
                        self.node.return_lease(clock::now(), lease);
                    }
                    self.reply(client, answer);
                }
                Wanted::Namespace { client, wanted, first, .. } => {
                    self.anchors.namespaces.entry(client).or_default().push(lease);
                    self.serve_namespace(client, wanted, first.unwrap_or(lease), waits_until);
                }
            }
            self.serve(client);
        }
    }

    /// A program's namespace has its address; then the ports that it is to have beside.
    fn serve_namespace(
        &mut self,
        client: ClientId,
        mut wanted: WantedNamespace,
        first: FlowName,
        waits_until: Option<Time>,
    ) {
        let Some((anchor, block)) = self.leased(first) else {
            self.leave_namespace(client);
            return self.reply(client, Err(Failure::new("the lease ended at once").code(Code::Unavailable)));
        };
        while let Some(port) = wanted.ports.pop() {
            let end = SocketAddr::new(block.first.ip(), port);
            if !self.effects.host.is_in_namespace(first.value(), end) {
                let taken_of = self.node.lessor_of(end);
                if taken_of.is_some() {
                    wanted.ports.push(port);
                }
                let wanted = Wanted::Namespace { client, namespace: None, wanted, first: Some(first) };
                let asked = Asked::after(waits_until, wanted);
                if let Some(of) = taken_of {
                    if !self.may_wait_for(&asked, of, end) {
                        self.leave_namespace(client);
                        return self.reply(client, Err(taken(end)));
                    }
                    return self.wait_for_end(of, end, asked);
                }
                if let Some(lease) = self.lease(asked, anchor, Ends { first: end, count: 1 }) {
                    self.effects.tenant.join_namespace(lease, first.value());
                }
                return;
            }
        }
        let ports = (block.first.port(), block.count);
        let anchored = Anchored { anchor: self.peer_name(&anchor), address: block.first.ip(), ports };
        self.server.stay(client);
        self.server.say(client, &Reply::Namespace(anchored), Vec::new());
    }

    fn leased(&self, lease: FlowName) -> Option<(PublicKey, Ends)> {
        self.node.rented().find(|of| of.lease() == lease).map(|of| (of.anchor, of.ends))
    }

    /// Of clients that may have asked for any of this.
    pub(crate) fn anchors_gone(&mut self, clients: &[ClientId]) {
        for asked in self.anchors.asked.values_mut() {
            asked.wanted.retain(|wanted| !clients.contains(&wanted.client()));
        }
        self.forget_waiting(clients);
        clients.iter().for_each(|client| self.leave_namespace(*client));
    }

    /// What is due of anchors: connections that have lasted are claimed, what nobody uses is returned.
    pub(crate) fn anchors_due(&mut self, now: Time) {
        for young in self.effects.tenant.take_mature(&mut self.effects.host, now) {
            // One that was moved here is a flow already.
            if !self.node.has_flow(&young.flow) && self.node.claim_flow(now, young.flow, young.hidden) {
                self.anchors.lasting.insert(young.flow, young);
            }
        }
        self.return_leases(now);
    }

    /// A connection of an anchor's endpoint is to be moved and is no flow of the anchor's yet: it is made one first,
    /// and of an endpoint itself a lease of its own. `None`: the move goes on when that is done.
    pub(crate) fn claim_first(
        &mut self,
        flow: FlowTuple,
        move_request: crate::role::relocation::api::MoveRequest,
    ) -> Option<crate::role::relocation::api::MoveRequest> {
        if self.node.has_flow(&flow) || self.node.lessor_of(flow.local).is_none() {
            return Some(move_request);
        }
        if self.anchors.claiming.contains_key(&flow) {
            // The node says that it is being moved already.
            return Some(move_request);
        }
        self.anchors.claiming.insert(flow, move_request);
        let hidden = !flow.is_unconnected() && self.effects.host.is_hidden(&flow);
        self.node.claim_flow(clock::now(), flow, hidden);
        None
    }

    /// A connection is a flow of its anchor's, or cannot be.
    pub(crate) fn on_claimed(&mut self, flow: FlowTuple, outcome: Result<(), Refusal>) -> Option<Report> {
        let lasting = self.anchors.lasting.remove(&flow);
        // What a program here has opened: its far end may be told where it is.
        if outcome.is_ok() && lasting.is_some_and(|young| !young.accepted && !young.hidden) {
            self.node.seek_far_end(clock::now(), flow);
        }
        self.moves.on_claimed(&flow, outcome);
        if let Some(move_request) = self.anchors.claiming.remove(&flow) {
            self.go_on_with(flow, move_request, outcome);
        }
        let Err(why) = outcome else {
            // That it could not be moved was told.
            let told = lasting.is_some_and(|young| young.tries > 0);
            return told
                .then(|| Report::of_socket(Kind::ClaimedAgain, Some(flow), "can be moved now: its anchor has it"));
        };
        let again = lasting.filter(|_| may_pass(why));
        let until = if again.is_some() { " until it is asked again" } else { "" };
        let what = match why {
            Refusal::HolderUnreached => format!("cannot be moved{until}: its anchor does not answer"),
            why => format!("cannot be moved{until}: its anchor answers that {}", reason(why)),
        };
        if let Some(young) = again {
            self.effects.tenant.on_unclaimed(clock::now(), young);
            if young.tries > 0 {
                // It was told.
                return None;
            }
        }
        Some(Report::of_socket(Kind::ClaimRefused, Some(flow), what))
    }

    /// A peer is elsewhere, or this host.
    pub(crate) fn learn_of_moves(&mut self, event: &Event) {
        let now = clock::now();
        let who = match event {
            Event::PeerMoved { peer, to, .. } => {
                self.node.peers().find(|view| view.id == *peer).map(|view| (view.key, Some(to.ip())))
            }
            Event::Moving { .. } => Some((self.node.public_key(), None)),
            _ => None,
        };
        if let Some((who, to)) = who {
            self.anchors.experience.moved(now, who, to);
        }
    }
}

/// A port of an anchor's that this host has on lease, except for another.
fn taken(end: SocketAddr) -> Failure {
    Failure::new("another program of this host has that port at the anchor").on(end).code(Code::InUse)
}

/// Why a socket with the address of an anchor's cannot be had.
fn gone() -> Failure {
    Failure::new("the anchor's address is not here any more").code(Code::Unavailable)
}

/// Endpoints, for people.
fn shown(ends: &Ends) -> String {
    match ends.count {
        0 => ends.first.ip().to_string(),
        1 => ends.first.to_string(),
        _ => format!("{}-{}", ends.first, ends.ports().last().unwrap_or_default()),
    }
}
