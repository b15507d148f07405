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
    Awaited, Candidate, Event, Experience, FlowName, MoveEvent, Policy, Refusal, Refused, Returns, Search, Then, Time,
};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::Ends;

use super::executor::tenant::Tenant;
use super::executor::young::Young;
use super::offer::{BLOCK, Fault};
use crate::api::Answer;
use crate::api::desk::{Desk, With};
use crate::api::server::ClientId;
use crate::api::sockets::{WantedSocket, bind, plain_socket};
use crate::clock;
use crate::closing::Received;
use crate::config::{Config, KnownPeer};
use crate::events::{Causer, Kind, Report, told};
use crate::host::endpoints::HIDDEN;
use reasons::{may_pass, reason, reason_of};

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
    /// Whether this host is configured to lend endpoints.
    lends: bool,
    /// Where the configuration says that hosts are.
    configured: HashMap<PublicKey, SocketAddr>,
    asked: HashMap<FlowName, Asked>,
    /// The ports of each anchor that the kernel draws from for sockets that programs ask for, by family (IPv4).
    blocks: HashMap<(PublicKey, bool), FlowName>,
    /// Programs that run in namespaces of their own, by the clients that hold these.
    namespaces: HashMap<ClientId, Vec<FlowName>>,
    returns: Returns<Vec<Wanted>>,
    /// Connections that have lasted and are being claimed.
    lasting: HashMap<FlowTuple, Young>,
    experience: Experience,
    stopping: bool,
    /// What this host is configured to lend and cannot, as it was told last.
    faults: Vec<Fault>,
}

impl Anchors {
    pub(crate) fn new(config: &Config) -> Self {
        let at = |peer: &KnownPeer| Some((peer.key, SocketAddr::new(peer.address?, config.port)));
        let configured = config.peers.iter().filter_map(at);
        Self { lends: config.anchor.is_some(), configured: configured.collect(), ..Self::default() }
    }

    /// The host that programs name as their anchor: one, or several that are asked one after the other. None is this
    /// host, which a policy gives only where `may_be_own` says so.
    fn candidates(
        &mut self,
        desk: &Desk,
        anchor: &str,
        may_be_own: bool,
    ) -> Result<VecDeque<Option<PublicKey>>, Failure> {
        let (now, own) = (clock::now(), desk.node.public_key());
        let Some(policy) = Policy::named(anchor) else {
            let key = desk.host_named(anchor)?;
            return Ok([(key != own).then_some(key)].into());
        };
        let peers: HashMap<PublicKey, _> =
            desk.node.peers().map(|view| (view.key, (view.round_trip, view.remote.ip()))).collect();
        let hosts = desk.node.community(now).hosts;
        let others = hosts.iter().filter(|host| !host.here).map(|host| host.key);
        let candidates: Vec<Candidate> = others
            .map(|key| Candidate { key, round_trip: peers.get(&key).and_then(|(round_trip, _)| *round_trip) })
            .collect();
        for candidate in &candidates {
            self.experience.meet(now, candidate.key, peers.get(&candidate.key).map(|(_, at)| *at));
        }
        let order: VecDeque<_> = self.experience.order(now, policy, may_be_own.then_some(&own), &candidates).into();
        if order.is_empty() {
            return Err(Failure::new("there is no other host in this one's community")
                .on(anchor)
                .code(Code::Unavailable)
                .hint("`whimbrel community` says who belongs to it. Hosts outside of it are named one by one."));
        }
        Ok(order)
    }

    /// A program wants a socket whose anchor is another host, or may be. The client is answered, now or later.
    pub(crate) fn want_socket(
        &mut self,
        with: &mut With<'_, Tenant>,
        client: ClientId,
        socket: WantedSocket,
        anchor: &str,
    ) -> Answer {
        let order = self.candidates(with.desk, anchor, true)?;
        self.ask_next(with, Asked::new(Wanted::Socket { client, socket }, order));
        Ok(None)
    }

    /// A process has moved here, to the namespace of an address that one of these hosts may lend ports of: what it
    /// opens from now on needs some.
    pub(crate) fn want_ports(&mut self, with: &mut With<'_, Tenant>, address: IpAddr, owners: Vec<PublicKey>) {
        let own = with.desk.node.public_key();
        let asked = |asked: &Asked| matches!(asked.wanted[..], [Wanted::Process { address: of }] if of == address);
        if with.own.draws_ports(address) || self.asked.values().any(asked) {
            return;
        }
        let others = owners.into_iter().filter(|owner| *owner != own).map(Some).collect();
        self.ask_next(with, Asked::new(Wanted::Process { address }, others));
    }

    /// [`Request::Namespace`](whimbrel_ipc::Request::Namespace).
    pub(crate) fn want_namespace(
        &mut self,
        with: &mut With<'_, Tenant>,
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
        with.desk.server.may_stay(client)?;
        let owner = with.desk.server.credentials(client).map(|who| who.uid);
        let denied = |what: String| Failure::new(what).code(Code::Denied);
        let owner = owner.ok_or_else(|| denied("the system does not say whose this namespace is".to_owned()))?;
        let namespace = Brought { namespace, owner };
        namespace.check().map_err(|error| denied(error.to_string()))?;
        let mut order = self.candidates(with.desk, anchor, false)?;
        // This host's own address needs no namespace.
        order.retain(Option::is_some);
        if order.is_empty() {
            return Err(Failure::new("the anchor is this host itself, whose address programs have anyway")
                .on(anchor)
                .code(Code::Unavailable)
                .hint("`--anchor self` runs them with it."));
        }
        let wanted = Wanted::Namespace { client, namespace: Some(namespace), wanted, first: None };
        with.desk.server.answer_later(client);
        self.ask_next(with, Asked::new(wanted, order));
        Ok(None)
    }

    /// [`Request::Bind`](whimbrel_ipc::Request::Bind) of a socket in the namespace of an anchor's address. `None`: it
    /// is in none. `waits_until`: of who has waited.
    pub(crate) fn bind_anchored(
        &mut self,
        with: &mut With<'_, Tenant>,
        client: ClientId,
        socket: BorrowedFd<'_>,
        address: SocketAddr,
        waits_until: Option<Time>,
    ) -> Option<Answer> {
        let namespace = with.desk.host.namespace_with(socket)?;
        Some(self.bind_in_namespace(with, client, socket, address, namespace, waits_until))
    }

    fn bind_in_namespace(
        &mut self,
        with: &mut With<'_, Tenant>,
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
        if end.port() == 0 || with.own.is_in_namespace_of(&with.desk.host, socket, end) {
            return bind(socket, address);
        }
        let taken_of = with.desk.node.lessor_of(end);
        let lessor = with.desk.node.rented().find(|of| of.ends.first.ip() == local).map(|of| of.anchor);
        let Some(lessor) = lessor else {
            let failure = Failure::new("the socket came from another host, and its address is on lease from none");
            return Err(failure.on(local).code(Code::Unavailable));
        };
        let not_kept = |error| Failure::new(format!("its descriptor cannot be kept: {error}"));
        let socket = socket.try_clone_to_owned().map_err(not_kept)?;
        let asked = Asked::after(waits_until, Wanted::Port { client, socket: socket.into(), address });
        match taken_of {
            Some(anchor) if !self.may_wait_for(with.desk, &asked, anchor, end) => return Err(taken(end)),
            Some(anchor) => self.wait_for_end(anchor, end, asked),
            None => {
                let lease = self.lease(with, asked, lessor, Ends { first: end, count: 1 });
                if let (Some(lease), Some(first)) = (lease, brought) {
                    with.own.join_namespace(lease, first);
                }
            }
        }
        with.desk.server.answer_later(client);
        Ok(None)
    }

    /// Whether an endpoint that another program has is waited for.
    fn may_wait_for(&self, desk: &Desk, asked: &Asked, anchor: PublicKey, end: SocketAddr) -> bool {
        let now = clock::now();
        asked.search.may_wait(now) && self.is_about_to_return(desk, now, &Awaited::End(anchor, end))
    }

    /// Asks the next anchor that comes into question.
    fn ask_next(&mut self, with: &mut With<'_, Tenant>, mut asked: Asked) {
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
                    with.desk.server.answer_later(client);
                    match self.blocks.get(&(anchor, ipv4)).copied() {
                        Some(lease) => match self.asked.get_mut(&lease) {
                            // Another program asks for the same.
                            Some(under_way) => under_way.wanted.append(&mut asked.wanted),
                            None => self.serve_wanted(with, lease, asked.wanted, asked.search.waits_until()),
                        },
                        None => {
                            if let Some(lease) = self.lease(with, asked, anchor, block) {
                                self.blocks.insert((anchor, ipv4), lease);
                            }
                        }
                    }
                } else {
                    self.lease(with, asked, anchor, block);
                }
            }
            Some(None) => {
                for wanted in asked.wanted {
                    if let Wanted::Socket { client, socket } = wanted {
                        let made = with.desk.make_own_socket(client, socket);
                        with.desk.reply(client, made);
                    }
                }
            }
            None => self.refuse_all(
                with.desk,
                asked.wanted,
                &Failure::new("no host lends endpoints").code(Code::Unavailable),
            ),
        }
    }

    fn lease(&mut self, with: &mut With<'_, Tenant>, asked: Asked, anchor: PublicKey, ends: Ends) -> Option<FlowName> {
        let now = clock::now();
        let hosts = with.desk.node.community(now).hosts;
        let known = hosts.iter().find(|host| host.key == anchor).and_then(|host| host.at);
        let configured = || self.configured.get(&anchor).copied();
        match with.desk.node.lease(now, anchor, known.or_else(configured), ends) {
            Some(lease) => {
                let mut asked = asked;
                asked.search.note_asked(now);
                if let [Wanted::Namespace { namespace, wanted, .. }] = &mut asked.wanted[..]
                    && let Some(namespace) = namespace.take()
                {
                    with.own.bring_namespace(lease, namespace, wanted.hidden);
                }
                self.asked.insert(lease, asked);
                Some(lease)
            }
            None => {
                self.refuse_all(
                    with.desk,
                    asked.wanted,
                    &Failure::new("this host leases nothing").code(Code::Unavailable),
                );
                None
            }
        }
    }

    fn refuse_all(&mut self, desk: &mut Desk, wanted: Vec<Wanted>, failure: &Failure) {
        for wanted in wanted {
            if let Wanted::Namespace { first: Some(_), client, .. } = &wanted {
                self.leave_namespace(*client);
            }
            let client = wanted.client();
            desk.reply(client, Err(failure.clone()));
        }
    }

    /// What has become of a lease, if it is something to tell.
    pub(crate) fn on_event(&mut self, with: &mut With<'_, Tenant>, event: &MoveEvent) -> Option<Report> {
        match event {
            MoveEvent::Lent { to, ends } => {
                let count = match ends.count {
                    0 => "all of it".to_owned(),
                    count => format!("{count} from port {}", ends.first.port()),
                };
                let (address, called) = (ends.first.ip(), with.desk.called(to));
                let told = told!(Lent { tenant: to, ends: ends.first }, "{address} is lent to {called}: {count}");
                Some(told.by(Causer::Host(*to)))
            }
            MoveEvent::LeaseOver { to } => {
                let told = told!(LeaseOver { tenant: to }, "{} has one lease less", with.desk.called(to));
                Some(told.by(Causer::Host(*to)))
            }
            MoveEvent::Leased { number, anchor, ends } => Some(self.on_leased(with, *number, *anchor, *ends)),
            MoveEvent::NotLeased { number, anchor, ends, why, offered } => {
                self.on_not_leased(with, *number, *anchor, *why, &reason_of(*why, ends, offered))
            }
            MoveEvent::Reached { anchor, ends, reached } => {
                Some(on_reached(with.desk, *anchor, *ends, *reached).by(Causer::Host(*anchor)))
            }
            MoveEvent::Returned { number, anchor } => Some(self.on_returned(with.desk, *number, *anchor)),
            MoveEvent::Claimed { tuple, outcome } => self.on_claimed(with, *tuple, *outcome),
            _ => None,
        }
    }

    /// A lease is in force.
    fn on_leased(&mut self, with: &mut With<'_, Tenant>, number: u64, anchor: PublicKey, ends: Ends) -> Report {
        let lease = FlowName::new(anchor, number);
        self.experience.lent(clock::now(), anchor, true);
        if let Some(asked) = self.asked.remove(&lease) {
            self.serve_wanted(with, lease, asked.wanted, asked.search.waits_until());
        }
        let (ends, called) = (shown(&ends), with.desk.called(&anchor));
        told!(Lease { anchor, ends }, "{ends} on lease from {called}")
    }

    /// Nobody here needs a lease any more.
    fn on_returned(&mut self, desk: &mut Desk, number: u64, anchor: PublicKey) -> Report {
        let lease = FlowName::new(anchor, number);
        self.blocks.retain(|_, block| *block != lease);
        self.returns.on_returned(clock::now(), anchor);
        told!(LeaseReturned { anchor }, "a lease of {} is returned: nobody needs it", desk.called(&anchor))
    }

    /// A lease was refused, or is over. `None`: there is nothing to tell, since it will be asked for again.
    fn on_not_leased(
        &mut self,
        with: &mut With<'_, Tenant>,
        number: u64,
        anchor: PublicKey,
        why: Refusal,
        reason: &str,
    ) -> Option<Report> {
        let lease = FlowName::new(anchor, number);
        self.blocks.retain(|_, block| *block != lease);
        let (now, called) = (clock::now(), with.desk.called(&anchor));
        let asked = self.asked.remove(&lease);
        let whole = asked.as_ref().and_then(|asked| asked.wanted.first()?.whole());
        let has_begun = |asked: &Asked| {
            matches!(asked.wanted[..], [Wanted::Namespace { first: Some(_), .. } | Wanted::Port { .. }])
        };
        let asked = asked.map(|mut asked| {
            // What it was refused for may be on its way back to the anchor.
            let has_less = self.has_less_since(with.desk, asked.search.asked(), anchor);
            let refused = Refused { anchor, why, has_begun: has_begun(&asked), has_less };
            (asked.search.handle_refused(now, refused), asked)
        });
        let is_late = matches!(asked, Some((Then::Next { late: true } | Then::Wait { late: true }, _)));
        if why != Refusal::Taken && !is_late {
            self.experience.lent(now, anchor, false);
        }
        match asked {
            Some((Then::Wait { .. }, mut asked)) => {
                self.take_namespace_back(with.own, lease, &mut asked);
                self.wait_for_any(asked);
            }
            Some((Then::Next { .. }, mut asked)) => {
                self.take_namespace_back(with.own, lease, &mut asked);
                self.ask_next(with, asked);
            }
            Some((Then::GivenUp, asked)) => {
                with.own.forget_namespace(lease);
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
                self.refuse_all(with.desk, asked.wanted, &failure);
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
    fn take_namespace_back(&mut self, tenant: &mut Tenant, lease: FlowName, asked: &mut Asked) {
        if let [Wanted::Namespace { namespace, .. }] = &mut asked.wanted[..] {
            *namespace = tenant.take_namespace(lease);
        }
    }

    /// Goes on with what something was in the way of.
    fn ask_again(&mut self, with: &mut With<'_, Tenant>, mut asked: Asked) {
        match asked.wanted.pop() {
            Some(Wanted::Namespace { client, wanted, first: Some(first), .. }) => {
                self.serve_namespace(with, client, wanted, first, asked.search.waits_until());
            }
            Some(Wanted::Port { client, socket, address }) => {
                let answer = self.bind_anchored(with, client, socket.as_fd(), address, asked.search.waits_until());
                with.desk.reply(client, answer.unwrap_or_else(|| Err(gone().on(address))));
            }
            other => {
                asked.wanted.extend(other);
                self.ask_next(with, asked);
            }
        }
    }

    /// Gives programs what they wanted a lease for.
    fn serve_wanted(
        &mut self,
        with: &mut With<'_, Tenant>,
        lease: FlowName,
        all: Vec<Wanted>,
        waits_until: Option<Time>,
    ) {
        let Some((anchor, ends)) = leased(with.desk, lease) else {
            let failure = Failure::new("the lease ended at once").code(Code::Unavailable);
            return self.refuse_all(with.desk, all, &failure);
        };
        for wanted in all {
            match wanted {
                Wanted::Socket { client, socket } => {
                    let who = with.desk.server.credentials(client);
                    let made = with.desk.host.in_namespace(ends.first.ip(), || plain_socket(socket, who));
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
                    let answer = made.and_then(|socket| with.desk.hand_socket(client, socket, anchor.to_string()));
                    with.desk.reply(client, answer);
                }
                // The namespace has them.
                Wanted::Process { .. } => {}
                Wanted::Port { client, socket, address } => {
                    let answer = bind(socket.as_fd(), address);
                    if answer.is_err() {
                        with.desk.node.return_lease(clock::now(), lease);
                    }
                    with.desk.reply(client, answer);
                }
                Wanted::Namespace { client, wanted, first, .. } => {
                    self.namespaces.entry(client).or_default().push(lease);
                    self.serve_namespace(with, client, wanted, first.unwrap_or(lease), waits_until);
                }
            }
        }
    }

    /// A program's namespace has its address; then the ports that it is to have beside.
    fn serve_namespace(
        &mut self,
        with: &mut With<'_, Tenant>,
        client: ClientId,
        mut wanted: WantedNamespace,
        first: FlowName,
        waits_until: Option<Time>,
    ) {
        let Some((anchor, block)) = leased(with.desk, first) else {
            self.leave_namespace(client);
            return with.desk.reply(client, Err(Failure::new("the lease ended at once").code(Code::Unavailable)));
        };
        while let Some(port) = wanted.ports.pop() {
            let end = SocketAddr::new(block.first.ip(), port);
            if !with.desk.host.is_in_namespace(first.value(), end) {
                let taken_of = with.desk.node.lessor_of(end);
                if taken_of.is_some() {
                    wanted.ports.push(port);
                }
                let wanted = Wanted::Namespace { client, namespace: None, wanted, first: Some(first) };
                let asked = Asked::after(waits_until, wanted);
                if let Some(of) = taken_of {
                    if !self.may_wait_for(with.desk, &asked, of, end) {
                        self.leave_namespace(client);
                        return with.desk.reply(client, Err(taken(end)));
                    }
                    return self.wait_for_end(of, end, asked);
                }
                if let Some(lease) = self.lease(with, asked, anchor, Ends { first: end, count: 1 }) {
                    with.own.join_namespace(lease, first.value());
                }
                return;
            }
        }
        let ports = (block.first.port(), block.count);
        let anchored = Anchored { anchor: with.desk.peer_name(&anchor), address: block.first.ip(), ports };
        with.desk.server.stay(client);
        with.desk.server.say(client, &Reply::Namespace(anchored), Vec::new());
    }

    /// Of clients that may have asked for any of this.
    pub(crate) fn clients_gone(&mut self, clients: &[ClientId]) {
        for asked in self.asked.values_mut() {
            asked.wanted.retain(|wanted| !clients.contains(&wanted.client()));
        }
        self.forget_waiting(clients);
        clients.iter().for_each(|client| self.leave_namespace(*client));
    }

    /// What is due of anchors: connections that have lasted are claimed, what nobody uses is returned.
    pub(crate) fn handle_timeout(&mut self, with: &mut With<'_, Tenant>, now: Time) {
        for young in with.own.take_mature(&mut with.desk.host, now) {
            // One that was moved here is a flow already.
            if !with.desk.node.has_flow(&young.flow) && with.desk.node.claim_flow(now, young.flow, young.hidden) {
                self.lasting.insert(young.flow, young);
            }
        }
        self.return_leases(with, now);
    }

    /// A connection is a flow of its anchor's, or cannot be.
    fn on_claimed(
        &mut self,
        with: &mut With<'_, Tenant>,
        flow: FlowTuple,
        outcome: Result<(), Refusal>,
    ) -> Option<Report> {
        let lasting = self.lasting.remove(&flow);
        // What a program here has opened: its far end may be told where it is.
        if outcome.is_ok() && lasting.is_some_and(|young| !young.accepted && !young.hidden) {
            with.desk.node.seek_far_end(clock::now(), flow);
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
            with.own.on_unclaimed(clock::now(), young);
            if young.tries > 0 {
                // It was told.
                return None;
            }
        }
        Some(Report::of_socket(Kind::ClaimRefused, Some(flow), what))
    }

    /// A peer is elsewhere, or this host.
    pub(crate) fn learn_of_moves(&mut self, desk: &Desk, event: &Event) {
        let now = clock::now();
        let who = match event {
            Event::PeerMoved { peer, to, .. } => {
                desk.node.peers().find(|view| view.id == *peer).map(|view| (view.key, Some(to.ip())))
            }
            Event::Moving { .. } => Some((desk.node.public_key(), None)),
            _ => None,
        };
        if let Some((who, to)) = who {
            self.experience.moved(now, who, to);
        }
    }
}

/// Whether an anchor has the address of a lease is not as it was.
fn on_reached(desk: &Desk, anchor: PublicKey, ends: Ends, reached: bool) -> Report {
    let (called, ends) = (desk.called(&anchor), shown(&ends));
    match reached {
        false => told!(
            LeaseUnreached { anchor, ends },
            "{called} does not have the address of {ends} any more: what is sent there does not come here until it \
             has it again. A program that is started anew gets another if {called} has one to lend"
        ),
        true => told!(LeaseReached { anchor, ends }, "{called} has the address of {ends} again"),
    }
}

fn leased(desk: &Desk, lease: FlowName) -> Option<(PublicKey, Ends)> {
    desk.node.rented().find(|of| of.lease() == lease).map(|of| (of.anchor, of.ends))
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
