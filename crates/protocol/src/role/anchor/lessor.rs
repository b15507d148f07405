//! Lending endpoints to other hosts: the anchor's part (`docs/protocol.md` §11).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::{Ends, Granted};
use whimbrel_wire::moving::{Record, Refusal, Terms};

use crate::Time;
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{LeaseName, MoveOp, SavedLease};
use crate::base::output::MoveAsked;
use crate::base::output::{OpDone, OpFailed};
use crate::base::signal::{Signal, Unled};
use crate::base::timer::Timers;
use crate::base::watched::Watched;
use crate::binding::transfer::{Below, Change};

/// How long the endpoint of a socket that has moved away is its new host's at the least, unless that says that it needs
/// it still. That may be away for days, and its server is to be met at its address again; it is returned when nobody
/// needs it.
const MOVED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// What is lent to others.
#[derive(Debug, Default)]
pub(crate) struct Lessor {
    leases: Watched<BTreeMap<LeaseName, Lease>>,
    /// Nothing new is lent.
    stopping: bool,
    /// Addresses of lent endpoints at which this host is not reached any more (P-131).
    unreached: BTreeSet<IpAddr>,
    limits: Timers<LeaseName>,
}

/// Endpoints that are another host's for a while.
#[derive(Debug)]
struct Lease {
    /// Which, once they are found.
    ends: Option<Ends>,
    /// An address as a whole.
    whole: bool,
    /// It went with a socket without another end (P-96): as its far ends have it.
    moved: Option<FlowTuple>,
    /// They are the tenant's until then.
    until: Time,
    /// Its tenant was told whether this host is reached at the address (P-131), or may have been by a daemon before
    /// this one.
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
    fn lends(&self, end: SocketAddr) -> bool {
        self.stage == Stage::InForce && self.ends.is_some_and(|ends| ends.contain(end))
    }
}

/// How long a lease lasts from the moment in which it is asked for. `moved`: it is of an endpoint that went with its
/// socket.
fn lifetime(below: &Below<'_>, moved: bool) -> Duration {
    let configured = below.config().lending.as_ref().map_or(Duration::ZERO, |lending| lending.lifetime);
    if moved { configured.max(MOVED_FOR) } else { configured }
}

/// How a host goes on with the endpoint of a socket that has moved to it.
fn terms_of(far: FlowTuple) -> Terms {
    Terms { far, wire_port: 0, home: None, passed_on: false, hidden: false }
}

/// Whether endpoints are lent to a host.
fn lends_to(below: &mut Below<'_>, tenant: &PublicKey) -> bool {
    let trusted = below.permits().trusts(tenant);
    below.config().lending.as_ref().is_some_and(|lending| trusted || lending.to.contains(tenant))
}

impl Lessor {
    /// A socket of this host's own without another end is with another host now (P-96): its endpoint is lent to that
    /// one.
    pub(super) fn lend_moved(&mut self, below: &mut Below<'_>, flow: FlowName, far: FlowTuple) {
        let to = flow.peer();
        let name = LeaseName { tenant: to, number: flow.value() };
        if self.leases.get(&name).is_some_and(|lease| lease.stage == Stage::InForce) {
            below.signal(Signal::Led { flow, result: Ok(terms_of(far)) });
            return;
        }
        let Some(peer) = below.around().peer(&to) else {
            let result = Err(Unled::Failed(format!("{to} is not known any more")));
            below.signal(Signal::Led { flow, result });
            return;
        };
        let ends = Ends { first: far.remote, count: 1 };
        let until = below.now() + lifetime(below, true);
        let moved = Some(far);
        let lease = Lease { ends: Some(ends), whole: false, moved, until, told: false, stage: Stage::Lending };
        self.leases.insert(name, lease);
        below.change(Change::Remember { key: to });
        below.ask(MoveOp::Lend { name, peer, ends, moved: Some(far.transport) }, MoveAsked::Lease(name));
    }

    fn leases_of(&self, tenant: PublicKey) -> impl Iterator<Item = (&LeaseName, &Lease)> {
        self.leases.range(LeaseName { tenant, number: 0 }..=LeaseName { tenant, number: u64::MAX })
    }

    /// A host asks for endpoints, or for a lease to last (P-84, P-85), unless it may have none any more.
    pub(super) fn handle_lease(&mut self, below: &mut Below<'_>, name: LeaseName, ends: Ends) {
        let LeaseName { tenant, number } = name;
        let moved = self.leases.get(&name).is_some_and(|lease| lease.moved.is_some());
        let until = below.now() + lifetime(below, moved);
        let lends = lends_to(below, &tenant);
        // What has moved to it does not depend on what is lent to it: a ticket has decided that.
        if self.leases.contains_key(&name) && !moved && !lends {
            self.forbid(below, name);
            return;
        }
        if let Some(lease) = self.leases.get_mut(&name) {
            if lease.stage == Stage::InForce {
                lease.until = until;
                self.limits.set(name, until);
                self.send_leased(below, name);
            }
            return;
        }
        let lending = below.config().lending.as_ref();
        let most = lending.map_or(0, |lending| lending.most);
        let peer = below.around().peer(&tenant);
        let refusal = match lending {
            None => Some(Refusal::NotLent),
            Some(_) if !lends => Some(Refusal::NotAllowed),
            Some(_) if self.stopping => Some(Refusal::Stopping),
            Some(_) if self.leases_of(tenant).count() >= most => Some(Refusal::NoRoom),
            Some(_) => None,
        };
        match (refusal, peer) {
            (Some(refusal), _) => below.send(tenant, Record::Leased { number, outcome: Err(refusal) }),
            // It is asked again in a session.
            (None, None) => {}
            (None, Some(peer)) => {
                let (whole, stage) = (ends.count == 0, Stage::Lending);
                self.leases.insert(name, Lease { ends: None, whole, moved: None, until, told: false, stage });
                below.change(Change::Remember { key: tenant });
                below.ask(MoveOp::Lend { name, peer, ends, moved: None }, MoveAsked::Lease(name));
            }
        }
    }

    fn send_leased(&mut self, below: &mut Below<'_>, name: LeaseName) {
        let Some(Lease { ends: Some(ends), moved, .. }) = self.leases.get(&name) else { return };
        let (ends, lifetime) = (*ends, lifetime(below, moved.is_some()).as_secs());
        let lifetime = u32::try_from(lifetime).unwrap_or(u32::MAX);
        let outcome = Ok(Granted { ends, lifetime });
        below.send(name.tenant, Record::Leased { number: name.number, outcome });
        self.send_reached(below, name);
    }

    /// Whether this host is reached at the address of a lease, for its tenant, unless that has always been so (P-131).
    /// What was said before may be lost: a lane that nobody answers is given up.
    fn send_reached(&mut self, below: &mut Below<'_>, name: LeaseName) {
        let in_force = self.leases.get_mut(&name).filter(|lease| lease.stage == Stage::InForce);
        let Some((lease, ends)) = in_force.and_then(|lease| lease.ends.map(|ends| (lease, ends))) else { return };
        let reached = !self.unreached.contains(&ends.first.ip());
        if !reached || lease.told {
            lease.told = true;
            below.send(name.tenant, Record::Reached { number: name.number, reached });
        }
    }

    /// There is a new session with a tenant, for which there may have been none as it was told.
    pub(super) fn send_all_reached(&mut self, below: &mut Below<'_>, tenant: PublicKey) {
        let all: Vec<LeaseName> = self.leases_of(tenant).map(|(name, _)| *name).collect();
        all.into_iter().for_each(|name| self.send_reached(below, name));
    }

    /// Endpoints were found and lent, or not.
    pub(super) fn handle_lent(&mut self, below: &mut Below<'_>, name: LeaseName, result: Result<OpDone, OpFailed>) {
        // It was returned, or forbidden, meanwhile.
        let Some(lease) = self.leases.get_mut(&name) else { return };
        let moved = lease.moved;
        match (result, moved) {
            (Ok(OpDone::Lent(ends)), _) => {
                let known = lease.ends.replace(ends);
                lease.stage = Stage::InForce;
                self.limits.set(name, lease.until);
                if known.is_none() {
                    self.send_leased(below, name);
                    below.event(MoveEvent::Lent { to: name.tenant, ends });
                } else {
                    self.send_reached(below, name);
                }
                if let Some(far) = moved {
                    below.signal(Signal::Led { flow: name.flow(), result: Ok(terms_of(far)) });
                }
            }
            (
                Ok(
                    OpDone::Done
                    | OpDone::Used(_)
                    | OpDone::Heard(_)
                    | OpDone::Windows(_)
                    | OpDone::Dumped(_)
                    | OpDone::ChainRefused { .. },
                ),
                _,
            ) => {
                self.leases.remove(&name);
            }
            (Err(failed), Some(_)) => {
                self.leases.remove(&name);
                let result = Err(Unled::Failed(failed.sentence));
                below.signal(Signal::Led { flow: name.flow(), result });
            }
            (Err(failed), None) => {
                let whole = self.leases.remove(&name).is_some_and(|lease| lease.whole);
                let ports = below.config().lending.as_ref().map_or(&[][..], |lending| &lending.ports[..]);
                if failed.told() == Refusal::NotLent && !whole && !ports.is_empty() {
                    below.send(name.tenant, Record::Offer { number: name.number, ports: ports.to_vec() });
                }
                below.send(name.tenant, Record::Leased { number: name.number, outcome: Err(failed.told()) });
                below.event(MoveEvent::OpFailed { what: "lending endpoints", error: failed.sentence });
            }
        }
    }

    /// A lease is over. Connections that were claimed go on until their ends (P-86).
    pub(super) fn end_lease(&mut self, below: &mut Below<'_>, name: LeaseName) {
        let Some(lease) = self.leases.remove(&name) else { return };
        self.limits.stop(name);
        // Also what is being looked for yet: whatever is asked for next may be the same.
        below.effect("taking back endpoints", MoveOp::TakeBack { name });
        if lease.stage == Stage::InForce {
            below.event(MoveEvent::LeaseOver { to: name.tenant });
        }
        if lease.moved.is_some() {
            below.signal(Signal::EndpointReturned(name.flow()));
        }
    }

    /// Leases that were not asked for again in time end.
    pub(super) fn handle_timeout(&mut self, below: &mut Below<'_>) {
        while let Some(name) = self.limits.take_due(below.now()) {
            if self.leases.get(&name).is_some_and(|lease| lease.until <= below.now()) {
                below.send(name.tenant, Record::Leased { number: name.number, outcome: Err(Refusal::Expired) });
                self.end_lease(below, name);
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.limits.next()
    }

    /// Ends the leases of hosts that nothing is lent to any more. What has moved to a host is that one's whether or not
    /// this one lends to it, and also where it had it by a grant; but not if it was revoked.
    pub(super) fn end_forbidden(&mut self, below: &mut Below<'_>) {
        let mut tenants: Vec<PublicKey> = self.leases.keys().map(|name| name.tenant).collect();
        tenants.dedup();
        tenants.retain(|tenant| !lends_to(below, tenant));
        for tenant in tenants {
            let revoked = below.permits().was_revoked(&tenant);
            let of = self.leases_of(tenant).filter(|(_, lease)| revoked || lease.moved.is_none());
            let of: Vec<LeaseName> = of.map(|(name, _)| *name).collect();
            of.into_iter().for_each(|name| self.forbid(below, name));
        }
    }

    /// A lease ends since its tenant may have none.
    fn forbid(&mut self, below: &mut Below<'_>, name: LeaseName) {
        below.send(name.tenant, Record::Leased { number: name.number, outcome: Err(Refusal::NotAllowed) });
        self.end_lease(below, name);
    }

    /// A daemon before this one had lent endpoints: they are lent on, as the tenant may not even have noticed.
    pub(super) fn restore(&mut self, below: &mut Below<'_>, saved: &[SavedLease]) {
        for SavedLease { name, ends } in saved {
            // Who belongs to the community is known later: the next renewal finds out who may have none.
            let peer = below.around().peer(&name.tenant).filter(|_| below.config().lending.is_some());
            let Some(peer) = peer else {
                below.effect("taking back endpoints", MoveOp::TakeBack { name: *name });
                continue;
            };
            let until = below.now() + lifetime(below, false);
            let (whole, stage) = (ends.count == 0, Stage::Lending);
            let lease = Lease { ends: Some(*ends), whole, moved: None, until, told: true, stage };
            self.leases.insert(*name, lease);
            below.ask(MoveOp::Lend { name: *name, peer, ends: *ends, moved: None }, MoveAsked::Lease(*name));
        }
    }

    /// Whether a tenant has the local end of this, which it names. What went with a socket is of its transport alone.
    pub(super) fn lends(&self, tenant: PublicKey, tuple: &FlowTuple) -> bool {
        let fits = |lease: &Lease| lease.moved.is_none_or(|far| far.transport == tuple.transport);
        self.leases_of(tenant).any(|(_, lease)| lease.lends(tuple.local) && fits(lease))
    }

    /// Nothing new is lent from now on, or is again. What is lent stays so until its end.
    pub(crate) fn stop_lending(&mut self, stopping: bool) {
        self.stopping = stopping;
    }

    /// These are the addresses of lent endpoints at which this host is not reached: their tenants are told (P-131).
    pub(crate) fn on_unreached(&mut self, below: &mut Below<'_>, addresses: BTreeSet<IpAddr>) {
        let before = std::mem::replace(&mut self.unreached, addresses);
        let in_force = self.leases.iter().filter(|(_, lease)| lease.stage == Stage::InForce);
        let of = in_force.filter_map(|(name, lease)| Some((*name, lease.ends?.first.ip())));
        let changed = of.filter(|(_, of)| before.contains(of) != self.unreached.contains(of));
        let changed: Vec<LeaseName> = changed.map(|(name, _)| name).collect();
        changed.into_iter().for_each(|name| self.send_reached(below, name));
    }

    /// What is lent, and to whom.
    pub(crate) fn lent(&self) -> impl Iterator<Item = (PublicKey, Ends)> {
        self.leases.iter().filter_map(|(name, lease)| Some((name.tenant, lease.ends?)))
    }

    /// Who has something lent, where that may be others than it was asked last.
    pub(super) fn take_tenants(&mut self) -> Option<BTreeSet<PublicKey>> {
        self.leases.take_touched().then(|| self.leases.keys().map(|name| name.tenant).collect())
    }

    /// Entries of all tables together.
    pub(super) fn entries(&self) -> usize {
        self.leases.len() + self.limits.len()
    }
}

#[cfg(test)]
impl Lessor {
    pub(super) fn names(&self) -> Vec<LeaseName> {
        self.leases.keys().copied().collect()
    }
}
