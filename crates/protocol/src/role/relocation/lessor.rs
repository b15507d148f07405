//! Lending endpoints to other hosts: the anchor's part (`docs/protocol.md` §11).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::{Ends, Granted};
use whimbrel_wire::moving::{MoveName, Record, Terms};

use super::flows::FlowChange;
use super::holder::{Announcement, Held};
use super::{
    Asked, At, Dependents, FlowName, LeaseName, Limit, MoveEvent, MoveOp, Moves, OpDone, OpFailed, Refusal, SavedHeld,
    SavedLease,
};
use crate::Time;

/// How long the endpoint of a socket that has moved away is its new host's at the least, unless that says that it needs it still. That may be
/// away for days, and its server is to be met at its address again; it is returned when nobody needs it.
const MOVED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// Endpoints that are another host's for a while.
#[derive(Debug)]
pub(super) struct Lease {
    /// Which, once they are found.
    ends: Option<Ends>,
    /// An address as a whole.
    whole: bool,
    /// They are the tenant's until then.
    until: Time,
    /// Its tenant was told whether this host is reached at the address (P-131), or may have been by a daemon before this one.
    told: bool,
    stage: Stage,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The caller looks for endpoints. Exits: `InForce`; it finds none (over).
    Lending,
    /// Exits: the tenant returns it, may have none any more, or does not ask for it again in time (over).
    InForce,
}

impl Lease {
    fn lends(&self, end: std::net::SocketAddr) -> bool {
        self.stage == Stage::InForce && self.ends.is_some_and(|ends| ends.contain(end))
    }
}

impl Moves {
    /// How long a lease lasts from the moment in which it is asked for. `moved`: it is of an endpoint that went with its socket.
    fn lifetime(&self, moved: bool) -> Duration {
        let configured = self.config.lending.as_ref().map_or(Duration::ZERO, |lending| lending.lifetime);
        if moved { configured.max(MOVED_FOR) } else { configured }
    }

    /// The endpoint of a socket of this host's own that its tenant has got by a move, as its far ends have it.
    fn moved(&self, name: &LeaseName) -> Option<FlowTuple> {
        self.held.get(&FlowName::new(name.tenant, name.number))?.moved_endpoint()
    }

    /// A socket of this host's own without another end is with another host now (P-96): its endpoint is lent to that one. `None`: the
    /// result comes with that of an op, by [`Moves::handle_led`].
    pub(super) fn lend_moved(&mut self, at: At<'_>, flow: FlowName, far: FlowTuple) -> Option<Result<Terms, String>> {
        let to = flow.peer();
        if to == self.me() {
            self.end_former_leases(flow);
        }
        let terms = Terms { far, wire_port: 0, home: None, passed_on: false, hidden: false };
        let name = LeaseName { tenant: to, number: flow.value() };
        if to == self.me() || self.leases.get(&name).is_some_and(|lease| lease.stage == Stage::InForce) {
            return Some(Ok(terms));
        }
        let Some(peer) = at.around.peer(&to) else { return Some(Err(format!("{to} is not known any more"))) };
        let ends = Ends { first: far.remote, count: 1 };
        let until = at.now + self.lifetime(true);
        self.leases.insert(name, Lease { ends: Some(ends), whole: false, until, told: false, stage: Stage::Lending });
        self.changes.push_back(FlowChange::Remember { key: to });
        self.op(MoveOp::Lend { name, peer, ends, moved: Some(far.transport) }, Asked::Lease(name));
        None
    }

    /// Ends the leases of hosts that had the socket before. Only once what comes for it goes elsewhere: at no moment may this host itself
    /// answer that nobody is there.
    fn end_former_leases(&mut self, flow: FlowName) {
        let former = self.held.get(&flow).into_iter().flat_map(Held::formerly).filter(|former| *former != flow.peer());
        for tenant in former.collect::<BTreeSet<PublicKey>>() {
            self.end_lease(LeaseName { tenant, number: flow.value() });
        }
    }

    /// Whether endpoints are lent to a host.
    fn lends_to(&self, tenant: &PublicKey) -> bool {
        self.config.lending.as_ref().is_some_and(|lending| lending.to.contains(tenant) || self.trusts(tenant))
    }

    /// Whether a lease may last after somebody was revoked. What has moved to a host is that one's whether or not this one lends to it, and
    /// also where it had it by a grant; but not if it is the one that was.
    fn may_have(&self, name: &LeaseName) -> bool {
        self.lends_to(&name.tenant) || (!self.was_revoked(&name.tenant) && self.moved(name).is_some())
    }

    fn leases_of(&self, tenant: PublicKey) -> impl Iterator<Item = (&LeaseName, &Lease)> {
        self.leases.range(LeaseName { tenant, number: 0 }..=LeaseName { tenant, number: u64::MAX })
    }

    /// A host asks for endpoints, or for a lease to last (P-84, P-85).
    pub(super) fn handle_lease(&mut self, at: At<'_>, tenant: PublicKey, number: u64, ends: Ends) {
        let name = LeaseName { tenant, number };
        let until = at.now + self.lifetime(self.moved(&name).is_some());
        // What has moved to it does not depend on what is lent to it: a ticket has decided that.
        if self.leases.contains_key(&name) && self.moved(&name).is_none() && !self.lends_to(&tenant) {
            self.say(at, tenant, Record::Leased { number, outcome: Err(Refusal::NotAllowed) });
            self.end_lease(name);
            return;
        }
        if let Some(lease) = self.leases.get_mut(&name) {
            if lease.stage == Stage::InForce {
                let before = std::mem::replace(&mut lease.until, until);
                self.limits.remove(&(before, Limit::Lease(name)));
                self.limit(until, Limit::Lease(name));
                self.say_leased(at, name);
            }
            return;
        }
        let lending = self.config.lending.as_ref();
        let most = lending.map_or(0, |lending| lending.most);
        let peer = at.around.peer(&tenant);
        let refusal = match lending {
            None => Some(Refusal::NotLent),
            Some(_) if !self.lends_to(&tenant) => Some(Refusal::NotAllowed),
            Some(_) if self.stopping => Some(Refusal::Stopping),
            Some(_) if self.leases_of(tenant).count() >= most => Some(Refusal::NoRoom),
            Some(_) => None,
        };
        match (refusal, peer) {
            (Some(refusal), _) => self.say(at, tenant, Record::Leased { number, outcome: Err(refusal) }),
            // It is asked again in a session.
            (None, None) => {}
            (None, Some(peer)) => {
                let (whole, stage) = (ends.count == 0, Stage::Lending);
                self.leases.insert(name, Lease { ends: None, whole, until, told: false, stage });
                self.changes.push_back(FlowChange::Remember { key: tenant });
                self.op(MoveOp::Lend { name, peer, ends, moved: None }, Asked::Lease(name));
            }
        }
    }

    fn say_leased(&mut self, at: At<'_>, name: LeaseName) {
        let lifetime = u32::try_from(self.lifetime(self.moved(&name).is_some()).as_secs()).unwrap_or(u32::MAX);
        let Some(ends) = self.leases.get(&name).and_then(|lease| lease.ends) else { return };
        let outcome = Ok(Granted { ends, lifetime });
        self.say(at, name.tenant, Record::Leased { number: name.number, outcome });
        self.say_reached(at, name);
    }

    /// Whether this host is reached at the address of a lease, for its tenant, unless that has always been so (P-131). What was said before
    /// may be lost: a lane that nobody answers is given up.
    fn say_reached(&mut self, at: At<'_>, name: LeaseName) {
        let in_force = self.leases.get_mut(&name).filter(|lease| lease.stage == Stage::InForce);
        let Some((lease, ends)) = in_force.and_then(|lease| lease.ends.map(|ends| (lease, ends))) else { return };
        let reached = !self.unreached.contains(&ends.first.ip());
        if !reached || lease.told {
            lease.told = true;
            self.say(at, name.tenant, Record::Reached { number: name.number, reached });
        }
    }

    /// There is a new session with a tenant, for which there may have been none as it was told.
    pub(super) fn say_all_reached(&mut self, at: At<'_>, tenant: PublicKey) {
        let all: Vec<LeaseName> = self.leases_of(tenant).map(|(name, _)| *name).collect();
        all.into_iter().for_each(|name| self.say_reached(at, name));
    }

    /// Endpoints were found and lent, or not.
    pub(super) fn handle_lent(&mut self, at: At<'_>, name: LeaseName, result: Result<OpDone, OpFailed>) {
        // It was returned, or forbidden, meanwhile.
        let Some(lease) = self.leases.get_mut(&name) else { return };
        match result {
            Ok(OpDone::Lent(ends)) => {
                let known = lease.ends.replace(ends);
                lease.stage = Stage::InForce;
                let until = lease.until;
                self.limit(until, Limit::Lease(name));
                if known.is_none() {
                    self.say_leased(at, name);
                    self.event(MoveEvent::Lent { to: name.tenant, ends });
                } else {
                    self.say_reached(at, name);
                }
                if let Some(far) = self.moved(&name) {
                    let flow = FlowName::new(name.tenant, name.number);
                    self.end_former_leases(flow);
                    let terms = Terms { far, wire_port: 0, home: None, passed_on: false, hidden: false };
                    self.handle_led(at, flow, Ok(terms));
                }
            }
            Ok(OpDone::Done | OpDone::Dumped(_) | OpDone::ChainRefused { .. }) => {
                self.leases.remove(&name);
            }
            Err(failed) if self.moved(&name).is_some() => {
                self.leases.remove(&name);
                self.handle_led(at, FlowName::new(name.tenant, name.number), Err(failed.sentence));
            }
            Err(failed) => {
                let whole = self.leases.remove(&name).is_some_and(|lease| lease.whole);
                let ports = self.config.lending.as_ref().map_or(&[][..], |lending| &lending.ports[..]);
                if failed.told() == Refusal::NotLent && !whole && !ports.is_empty() {
                    let ports = ports.to_vec();
                    self.say(at, name.tenant, Record::Offer { number: name.number, ports });
                }
                self.say(at, name.tenant, Record::Leased { number: name.number, outcome: Err(failed.told()) });
                self.event(MoveEvent::OpFailed { what: "lending endpoints", error: failed.sentence });
            }
        }
    }

    /// A lease is over. Connections that were claimed go on until their ends (P-86).
    fn end_lease(&mut self, name: LeaseName) {
        let moved = self.moved(&name).is_some();
        let Some(lease) = self.leases.remove(&name) else { return };
        self.limits.remove(&(lease.until, Limit::Lease(name)));
        if moved {
            self.end_flow(FlowName::new(name.tenant, name.number));
        }
        // Also what is being looked for yet: whatever is asked for next may be the same.
        self.effect("taking back endpoints", MoveOp::TakeBack { name });
        if lease.stage == Stage::InForce {
            self.event(MoveEvent::LeaseOver { to: name.tenant });
        }
    }

    /// A tenant needs its endpoints no more.
    pub(super) fn handle_return(&mut self, tenant: PublicKey, number: u64) {
        self.end_lease(LeaseName { tenant, number });
    }

    pub(super) fn handle_lease_limit(&mut self, at: At<'_>, name: LeaseName) {
        if self.leases.get(&name).is_some_and(|lease| lease.until <= at.now) {
            self.say(at, name.tenant, Record::Leased { number: name.number, outcome: Err(Refusal::Expired) });
            self.end_lease(name);
        }
    }

    /// Ends leases of those who may have none any more.
    pub(super) fn end_forbidden_leases(&mut self, at: At<'_>) {
        let mut forbidden: Vec<LeaseName> = Vec::new();
        let mut tenant = self.leases.keys().next().map(|name| name.tenant);
        while let Some(of) = tenant {
            if !self.lends_to(&of) {
                forbidden.extend(self.leases_of(of).map(|(name, _)| *name).filter(|name| !self.may_have(name)));
            }
            let behind = (Bound::Excluded(LeaseName { tenant: of, number: u64::MAX }), Bound::Unbounded);
            tenant = self.leases.range(behind).next().map(|(name, _)| name.tenant);
        }
        for name in forbidden {
            self.say(at, name.tenant, Record::Leased { number: name.number, outcome: Err(Refusal::NotAllowed) });
            self.end_lease(name);
        }
    }

    /// A daemon before this one had lent endpoints: they are lent on, as the tenant may not even have noticed.
    pub(super) fn restore_leases(&mut self, at: At<'_>, saved: &[SavedLease]) {
        for SavedLease { name, ends } in saved {
            if self.moved(name).is_some() {
                // It is led there already, as all that has moved.
                continue;
            }
            // Who belongs to the community is known later: the next renewal finds out who may have none.
            let peer = at.around.peer(&name.tenant).filter(|_| self.config.lending.is_some());
            let Some(peer) = peer else {
                self.effect("taking back endpoints", MoveOp::TakeBack { name: *name });
                continue;
            };
            let until = at.now + self.lifetime(false);
            let (whole, stage) = (ends.count == 0, Stage::Lending);
            self.leases.insert(*name, Lease { ends: Some(*ends), whole, until, told: true, stage });
            self.op(MoveOp::Lend { name: *name, peer, ends: *ends, moved: None }, Asked::Lease(*name));
        }
    }

    /// A tenant names a connection of an endpoint that is lent to it (P-86), or the endpoint itself, whose socket is to move (P-115). As a
    /// move of which it is both donor and acceptor: what follows is the same.
    pub(super) fn handle_claim(&mut self, at: At<'_>, flow: FlowName, tuple: FlowTuple, wire_port: u16, hidden: bool) {
        let tenant = flow.peer();
        let name = MoveName { donor: *tenant.as_bytes(), number: flow.value() };
        let far = tuple.mirrored();
        let part = self.endpoint_of(&FlowTuple::unconnected(tuple.transport, tuple.local));
        let known = at.around.is_known(&far) || part.is_some() && tuple.is_unconnected();
        // Its daemon may have died before it knew of a flow that it has claimed: it claims it by another name.
        let before = match part {
            Some(part) if tuple.is_unconnected() => part.rests_with(&tenant).then_some(part.flow),
            _ if known => self.claimed_before(&far, &tenant),
            _ => None,
        };
        // What a part of the lease has gone elsewhere with is no more the tenant's, but for what it has claimed of it already.
        let leased = before.is_some() || part.is_none_or(|part| part.flow.peer() == tenant);
        let is_of = |name: &LeaseName| self.moved(name).is_none_or(|far| far.transport == tuple.transport);
        let leased = leased && self.leases_of(tenant).any(|(name, lease)| lease.lends(tuple.local) && is_of(name));
        let refusal = match self.held.get(&flow) {
            Some(held) if held.was_last(name) => {
                self.answer_again(at, flow);
                return;
            }
            // It is being kept, or another connection's.
            Some(held) if held.is_claimed(name) => return,
            Some(_) => Some(Refusal::Taken),
            None if self.is_taken(at, &flow, None) => Some(Refusal::Taken),
            None if !leased => Some(Refusal::NotLent),
            // One of the same names has moved elsewhere.
            None if known && before.is_none() => Some(Refusal::Taken),
            None if !self.has_room_for(&flow) => Some(Refusal::NoRoom),
            None => None,
        };
        if let Some(refusal) = refusal {
            self.say(at, tenant, Record::Verdict { name, outcome: Err(refusal) });
            return;
        }
        if let Some(before) = before {
            self.end_flow(before);
            // That of an endpoint is a lease.
            self.end_lease(LeaseName { tenant, number: before.value() });
        }
        self.hold(flow);
        self.held.set_lent(&flow, Some(far));
        let Some(held) = self.held.get_mut(&flow) else { return };
        held.hide(hidden);
        let sequence = held.announce(Announcement::claim(at.now, name, tenant, wire_port));
        let saved = SavedHeld {
            flow,
            far: Some(far),
            wire_port,
            sequence,
            last: name,
            unsettled: Vec::new(),
            hidden,
            ending: false,
        };
        self.op(MoveOp::SaveHeld(vec![saved]), Asked::Keep(vec![flow]));
    }

    /// Nothing new is lent from now on, or is again. What is lent stays so until its end.
    pub(super) fn stop_lending(&mut self, stopping: bool) {
        self.stopping = stopping;
    }

    /// These are the addresses of lent endpoints at which this host is not reached: their tenants are told (P-131).
    pub(super) fn note_unreached(&mut self, at: At<'_>, addresses: BTreeSet<IpAddr>) {
        let before = std::mem::replace(&mut self.unreached, addresses);
        let in_force = self.leases.iter().filter(|(_, lease)| lease.stage == Stage::InForce);
        let of = in_force.filter_map(|(name, lease)| Some((*name, lease.ends?.first.ip())));
        let changed = of.filter(|(_, of)| before.contains(of) != self.unreached.contains(of));
        let changed: Vec<LeaseName> = changed.map(|(name, _)| name).collect();
        changed.into_iter().for_each(|name| self.say_reached(at, name));
    }

    /// What is lent to whom, and the flows that this host passes on for others, by who has them.
    pub(super) fn dependents(&self) -> Dependents {
        let lent = self.leases.iter().filter_map(|(name, lease)| Some((name.tenant, lease.ends?))).collect();
        let me = self.me();
        let others = self.held.iter().filter(|(flow, _)| flow.peer() != me);
        let passed_on = others.filter_map(|(flow, held)| Some((flow.peer(), held.passed_on()?))).collect();
        Dependents { lent, passed_on }
    }

    pub(super) fn has_lent_to(&self, tenant: &PublicKey) -> bool {
        self.leases_of(*tenant).next().is_some()
    }
}
