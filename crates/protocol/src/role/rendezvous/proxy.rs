//! Standing in for hosts that have left a link: who moves away may have somebody there take in what is said to it at
//! its former address, and pass it on (`docs/protocol.md` §8).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::message::{MAX_PASSED_ON, MAX_STOOD_IN, Message, NeighbourProxyStatus};

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::bucket::Bucket;
use crate::base::event::Event;
use crate::base::op::{AddressOp, PeerId};
use crate::base::output::Asked;
use crate::role::At;
use crate::role::rendezvous::{Due, RendezvousRole};

/// Addresses that a host stands in for, of all hosts together.
const STOOD_IN: usize = 64;
/// Datagrams that are passed on to one host for one address: so many at once, and one more in so long.
const BUDGET: f64 = 32.0;
const BUDGET_PAUSE: Duration = Duration::from_millis(200);
/// Addresses that are begun to be stood in for, for one host: so many at once, and one more in so long. Each has all on
/// the link asked and told, and costs calls that wait.
const BEGINNINGS: f64 = MAX_STOOD_IN as f64;
const BEGINNING_PAUSE: Duration = Duration::from_secs(10);
/// Requests in close succession before the pauses become long.
const REQUESTS: u32 = 8;
const REQUEST_PAUSE: Duration = Duration::from_secs(60);
/// Datagrams of handshakes and control are passed on; what comes in a tunnel is not (`docs/protocol.md` §1).
const KINDS: [u8; 5] = [0x01, 0x02, 0x03, 0x04, 0x10];

/// Who stands in for this host, and for whom it does.
#[derive(Default)]
pub(crate) struct NeighbourProxies {
    /// Peers that do not answer our updates, and where they take us to be.
    unheard: BTreeMap<PeerId, IpAddr>,
    /// The rendezvous that were asked.
    asked: BTreeMap<PeerId, Request>,
    /// Addresses that this host stands in for.
    stands: BTreeMap<IpAddr, PeerId>,
    /// What may be passed on still for these, and for those that were stood in for lately: who asks again has no more
    /// of it.
    budgets: BTreeMap<IpAddr, Bucket>,
    /// How soon more addresses are begun with.
    beginnings: BTreeMap<PeerId, Bucket>,
}

/// What a rendezvous was asked for.
#[derive(Default)]
struct Request {
    addresses: BTreeSet<IpAddr>,
    answered: bool,
    tries: u32,
    /// What became of each address, where that is known.
    known: BTreeMap<IpAddr, NeighbourProxyStatus>,
}

impl NeighbourProxies {
    pub(crate) fn entries(&self) -> usize {
        let asked: usize = self.asked.values().map(|request| 1 + request.addresses.len() + request.known.len()).sum();
        self.unheard.len() + asked + self.stands.len() + self.budgets.len() + self.beginnings.len()
    }

    /// Whether a host may have one more address stood in for already.
    fn may_begin(&mut self, now: Time, id: PeerId) -> bool {
        self.beginnings.entry(id).or_insert_with(|| Bucket::of(BEGINNINGS, BEGINNING_PAUSE)).take(now)
    }

    /// Forgets budgets that are whole again.
    fn sweep_budgets(&mut self, now: Time) {
        let Self { stands, budgets, .. } = self;
        budgets.retain(|address, budget| stands.contains_key(address) || !budget.is_full(now));
    }
}

// Who has moved.
impl RendezvousRole {
    /// A peer does not answer our updates: it may send its own to where we were.
    pub(crate) fn want_neighbour_proxy(&mut self, id: PeerId, at: &mut At<'_>) {
        let Some(peer) = at.low.flow().peer(&id).filter(|peer| !peer.flow.flows().is_empty()) else { return };
        let Some(left) = peer.path.left().filter(|left| !at.base.attachments().has(left)) else { return };
        if self.neighbour_proxies.unheard.insert(id, left) != Some(left) {
            self.ask_neighbour_proxies(at);
        }
    }

    /// A peer knows where we are: nobody need stand in for its sake.
    pub(crate) fn end_neighbour_proxy(&mut self, id: PeerId, at: &mut At<'_>) {
        if self.neighbour_proxies.unheard.remove(&id).is_some() {
            self.ask_neighbour_proxies(at);
        } else if !self.neighbour_proxies.unheard.is_empty() {
            // It may be a rendezvous that knows only now that we are elsewhere.
            self.ask_neighbour_proxy(id, at);
        }
    }

    /// Tells all rendezvous what they are to stand in for, if they do not know.
    pub(crate) fn ask_neighbour_proxies(&mut self, at: &mut At<'_>) {
        if self.neighbour_proxies.unheard.is_empty() && self.neighbour_proxies.asked.is_empty() {
            return;
        }
        for id in self.configured_registrars() {
            self.ask_neighbour_proxy(id, at);
        }
    }

    /// Asks a rendezvous, for the first time or again.
    pub(crate) fn ask_neighbour_proxy(&mut self, id: PeerId, at: &mut At<'_>) {
        if at.base.is_suspended() || !self.configured_registrars().contains(&id) {
            return;
        }
        let Some(peer) = at.low.peer(&id) else { return };
        let needed = |of: &PeerId| *of != id && at.low.flow().peer(of).is_some_and(|of| !of.flow.flows().is_empty());
        let others = self.neighbour_proxies.unheard.iter().filter(|(unheard, _)| needed(unheard));
        let gone = others.map(|(_, left)| *left).filter(|left| !at.base.attachments().has(left));
        let wanted: BTreeSet<IpAddr> = gone.take(MAX_STOOD_IN).collect();
        let known = self.neighbour_proxies.asked.get(&id).map(|request| &request.addresses);
        if wanted.is_empty() && known.is_none() {
            return;
        }
        let request = self.neighbour_proxies.asked.entry(id).or_default();
        if request.addresses != wanted {
            *request = Request { addresses: wanted, ..Request::default() };
        }
        // It passes on to where it knows us to be, so it has to know that first.
        let reached = peer.has_session() && peer.path().attachment().is_some() && peer.updating().is_none();
        if request.answered || !reached {
            return;
        }
        request.tries += 1;
        let again = if request.tries > REQUESTS { REQUEST_PAUSE } else { peer.path().repeat_after(request.tries) };
        let addresses = request.addresses.iter().copied().collect();
        self.timers.set(Due::NeighbourProxy(id), at.now + again);
        at.low.path_mut().send(id, &[Message::NeighbourProxy { addresses }], at.base);
    }

    /// A rendezvous has started anew, perhaps, and stands in for nobody.
    pub(crate) fn ask_neighbour_proxy_anew(&mut self, id: PeerId, at: &mut At<'_>) {
        if let Some(request) = self.neighbour_proxies.asked.get_mut(&id) {
            request.answered = false;
            request.tries = 0;
            self.ask_neighbour_proxy(id, at);
        }
    }

    /// A rendezvous says what becomes of addresses.
    pub(crate) fn handle_standing_in(
        &mut self,
        id: PeerId,
        addresses: &[(IpAddr, NeighbourProxyStatus)],
        at: &mut At<'_>,
    ) {
        let Some(request) = self.neighbour_proxies.asked.get_mut(&id) else { return };
        let named: BTreeSet<IpAddr> = addresses.iter().map(|(address, _)| *address).collect();
        if named == request.addresses {
            request.answered = true;
            self.timers.stop(Due::NeighbourProxy(id));
        }
        let mut news = Vec::new();
        for (address, status) in addresses {
            if request.addresses.contains(address) && request.known.insert(*address, *status) != Some(*status) {
                news.push((*address, *status));
            }
        }
        if request.answered && request.addresses.is_empty() {
            self.neighbour_proxies.asked.remove(&id);
        }
        for (address, status) in news {
            at.base.event(Event::StoodInFor { by: id, address, status });
        }
        at.low.check_later(at.now, id, at.base);
    }

    /// Who stands in for this host passes on what came from `source` for an address that this host has left (P-61). It
    /// is believed in nothing: what it hands over proves itself, or does not. Tells whether it is taken in.
    pub(crate) fn is_passed_on(
        &self,
        id: PeerId,
        arrival: &Arrival,
        left: IpAddr,
        source: SocketAddr,
        base: &Base,
    ) -> bool {
        let asked = self.neighbour_proxies.asked.get(&id).is_some_and(|request| request.addresses.contains(&left));
        let address = source.ip();
        let somewhere = !address.is_unspecified() && !address.is_multicast() && !address.is_loopback();
        let own = base.attachments().has(&address);
        // Not in one another.
        asked && somewhere && !own && source.port() != 0 && !arrival.passed_on
    }
}

// Who stands in.
impl RendezvousRole {
    /// A host asks to have somebody stand in for addresses that it has left. Gives the answer.
    pub(crate) fn handle_neighbour_proxy(
        &mut self,
        id: PeerId,
        arrival: &Arrival,
        addresses: &[IpAddr],
        at: &mut At<'_>,
    ) -> Option<Message> {
        let peer = at.low.flow().peer(&id).filter(|peer| peer.has_session())?;
        let here = peer.path.remote().ip();
        // What was asked for before counts no more. Who has not shown yet that it is elsewhere asks again.
        if !arrival.is_newest || arrival.passed_on || peer.path.heading() != peer.path.remote() {
            return None;
        }
        let before: Vec<IpAddr> = self.neighbour_proxies.stands.keys().copied().collect();
        self.neighbour_proxies.stands.retain(|address, whose| *whose != id || addresses.contains(address));
        self.neighbour_proxies.sweep_budgets(at.now);
        let mut too_soon = false;
        let mut answer = Vec::new();
        for address in addresses {
            let held = self.neighbour_proxies.stands.get(address).copied();
            let status = match held {
                _ if !at.base.config().neighbour_proxy => NeighbourProxyStatus::Refused,
                Some(peer) if peer == id => NeighbourProxyStatus::Accepted,
                Some(_) => NeighbourProxyStatus::Taken,
                None if at.base.attachments().has(address) || here == *address => NeighbourProxyStatus::Taken,
                None if !self.server.was_at(id, *address) => NeighbourProxyStatus::Unproven,
                None if self.neighbour_proxies.stands.len() >= STOOD_IN => NeighbourProxyStatus::Refused,
                None if !self.neighbour_proxies.may_begin(at.now, id) => {
                    too_soon = true;
                    continue;
                }
                None => {
                    self.neighbour_proxies.stands.insert(*address, id);
                    self.neighbour_proxies.budgets.entry(*address).or_insert_with(|| Bucket::of(BUDGET, BUDGET_PAUSE));
                    at.base.event(Event::StandsIn { peer: id, address: *address });
                    NeighbourProxyStatus::Accepted
                }
            };
            answer.push((*address, status));
        }
        self.stand(&before, at.base);
        at.low.flow_mut().idle_later(at.now, id, at.base);
        // Who is not answered asks again.
        (!too_soon).then_some(Message::StandingIn { addresses: answer })
    }

    /// Has the caller stand in for the addresses that are to be stood in for, if they are others than before.
    fn stand(&mut self, before: &[IpAddr], base: &mut Base) {
        if !self.neighbour_proxies.stands.keys().eq(before) {
            let addresses = self.neighbour_proxies.stands.keys().copied().collect();
            base.ask(AddressOp::NeighbourProxy { addresses }, Asked::Effect("standing in for hosts that have left"));
        }
    }

    /// See [`Node::handle_intercepted`](crate::Node::handle_intercepted).
    pub(crate) fn handle_intercepted(&mut self, address: IpAddr, source: SocketAddr, datagram: &[u8], at: &mut At<'_>) {
        let Some(id) = self.neighbour_proxies.stands.get(&address).copied() else { return };
        let passable = datagram.len() <= MAX_PASSED_ON && datagram.first().is_some_and(|kind| KINDS.contains(kind));
        let there =
            at.low.flow().peer(&id).is_some_and(|peer| peer.has_session() && peer.path.remote().ip() != address);
        let budget = self.neighbour_proxies.budgets.get_mut(&address);
        if passable && there && budget.is_some_and(|budget| budget.take(at.now)) {
            at.low.path_mut().send(
                id,
                &[Message::PassedOn { left: address, source, datagram: datagram.to_vec() }],
                at.base,
            );
        } else {
            at.base.drop_datagram();
        }
    }

    /// See [`Node::stand_aside`](crate::Node::stand_aside).
    pub(crate) fn stand_aside(&mut self, address: IpAddr, reason: NeighbourProxyStatus, at: &mut At<'_>) {
        let before: Vec<IpAddr> = self.neighbour_proxies.stands.keys().copied().collect();
        let Some(peer) = self.neighbour_proxies.stands.remove(&address) else { return };
        self.stand(&before, at.base);
        at.low.path_mut().send(peer, &[Message::StandingIn { addresses: vec![(address, reason)] }], at.base);
        at.base.event(Event::StoodAside { peer, address, reason });
    }

    /// A peer is forgotten.
    pub(crate) fn forget_neighbour_proxies(&mut self, id: PeerId, base: &mut Base) {
        self.neighbour_proxies.unheard.remove(&id);
        self.neighbour_proxies.asked.remove(&id);
        self.neighbour_proxies.beginnings.remove(&id);
        let before: Vec<IpAddr> = self.neighbour_proxies.stands.keys().copied().collect();
        self.neighbour_proxies.stands.retain(|_, whose| *whose != id);
        self.stand(&before, base);
    }

    /// See [`Node::stands_in_for`](crate::Node::stands_in_for).
    pub(crate) fn stands_in_for(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.neighbour_proxies.stands.keys().copied()
    }
}
