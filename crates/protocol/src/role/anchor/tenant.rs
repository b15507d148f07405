//! Having endpoints of an anchor's: the tenant's part (`docs/protocol.md` §11).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::lending::{Ends, Granted};
use whimbrel_wire::moving::{MoveName, Record, Refusal, Terms};
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{MoveOp, Rented, SavedTenancy};
use crate::base::output::MoveAsked;
use crate::base::output::{OpDone, OpFailed};
use crate::base::signal::Signal;
use crate::base::timer::Timers;
use crate::base::watched::Watched;
use crate::binding::transfer::{AGAIN, Adopt, Below, Change};

/// How long an anchor may take to answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(8);

/// How long an anchor may take to answer after a restart: the network may come later. It lends on meanwhile, or says
/// that it does not.
const RESTORED_WITHIN: Duration = Duration::from_secs(3600);

/// Pause before it is told again whether an anchor is reached at what it lends: that may change as often as the anchor
/// likes.
const TOLD_AGAIN: Duration = Duration::from_secs(10);

/// How long an endpoint stays that has gone on with its socket: connections that were being opened then follow it by
/// way of this host.
const PARTED_WITHIN: Duration = Duration::from_secs(10);

/// A lease that lasts shorter is taken for one of so long: it is renewed all the time otherwise, and lost a little
/// later.
const LASTS_LEAST: Duration = Duration::from_secs(1);

/// What others have lent to this host.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    /// By what the two call the leases.
    tenancies: Watched<BTreeMap<FlowName, Tenancy>>,
    /// Connections of those endpoints, by the names that they are to have.
    claims: BTreeMap<FlowName, Claim>,
    limits: Timers<Limit>,
}

/// What has a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Limit {
    Tenancy(FlowName),
    /// Whether the anchor of a lease is reached is told.
    Reached(FlowName),
    Claim(FlowName),
    Adopt(MoveName),
}

/// Endpoints of another host's.
#[derive(Debug)]
struct Tenancy {
    /// What was asked for, then what was granted.
    ends: Ends,
    /// The lease lasts until then.
    until: Time,
    lifetime: Duration,
    /// It came with a socket without another end, of this transport alone.
    moved: Option<Transport>,
    /// The move by which it comes, until there is a place for it.
    comes: Option<MoveName>,
    /// The ports that its anchor lends, where it has said so.
    offered: Vec<(u16, u16)>,
    reach: Reach,
    stage: Stage,
}

/// Whether what is sent to endpoints comes to their anchor (P-131).
#[derive(Debug)]
struct Reach {
    /// As it has said last.
    said: bool,
    /// As it was told last.
    told: bool,
    /// When that was.
    told_at: Option<Time>,
}

impl Default for Reach {
    fn default() -> Self {
        Self { said: true, told: true, told_at: None }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Exits: the anchor lends (`Occupying`); it refuses, or is silent (over).
    Asking,
    /// The caller makes a place for the endpoints. Exits: `InForce`; it fails (returned).
    Occupying,
    /// Exits: a third of the lifetime has passed (`Checking`); the anchor ends it (over).
    InForce,
    /// The caller looks whether anybody needs them. Exits: `Renewing`; nobody does (returned).
    Checking,
    /// Asked for again. Exits: `InForce`; the anchor refuses, or the lease runs out (over).
    Renewing,
    /// The anchor has ended it, for this reason, and connections of it are being claimed that may be this host's
    /// already: a daemon before this one has claimed them. Exits: all are answered, or time (over).
    Closing(Refusal),
    /// The socket that they came with is another host's, and they with it. Exits: it comes back (`Checking`); a while
    /// has passed (over).
    Parting,
}

/// A connection that is to be a flow of this host and the anchor.
#[derive(Debug)]
struct Claim {
    tuple: FlowTuple,
    wire_port: u16,
    hidden: bool,
    terms: Option<Terms>,
}

impl Tenancy {
    fn new(ends: Ends, due: Time, stage: Stage) -> Self {
        let (lifetime, offered, reach) = (Duration::ZERO, Vec::new(), Reach::default());
        Self { ends, until: due, lifetime, moved: None, comes: None, offered, reach, stage }
    }

    fn is_awaited(&self) -> bool {
        matches!(self.stage, Stage::Asking | Stage::Renewing)
    }

    /// Whether what is granted is what was asked for.
    fn fits(&self, granted: &Ends) -> bool {
        let (asked, first) = (self.ends, granted.first);
        let address = asked.first.ip().is_unspecified() || asked.first.ip() == first.ip();
        let port = asked.first.port() == 0 || asked.first.port() == first.port();
        asked.first.is_ipv4() == first.is_ipv4() && address && port && asked.count == granted.count
    }
}

impl Tenant {
    /// Asks an anchor for endpoints; an event tells what comes of it. `number` is drawn by lot.
    pub(crate) fn rent(
        &mut self,
        below: &mut Below<'_>,
        number: u64,
        anchor: PublicKey,
        anchor_at: Option<SocketAddr>,
        ends: Ends,
    ) {
        below.hint(anchor, anchor_at);
        let due = below.now() + ANSWERED_WITHIN;
        let lease = FlowName::new(anchor, number);
        self.tenancies.insert(lease, Tenancy::new(ends, due, Stage::Asking));
        self.limits.set(Limit::Tenancy(lease), due);
        below.wait(&[], &[anchor]);
        below.send(anchor, Record::Lease { number, ends });
    }

    /// A socket without another end has moved here (P-96): its endpoint is its holder's, who lends it.
    pub(super) fn rent_moved(&mut self, below: &mut Below<'_>, name: MoveName, flow: FlowName, tuple: FlowTuple) {
        let parts = self.tenancies.get(&flow).map(|tenancy| tenancy.stage == Stage::Parting);
        if parts.is_none() && flow.peer() != below.me() {
            let due = below.now() + ANSWERED_WITHIN * 6;
            let ends = Ends { first: tuple.local, count: 1 };
            let (moved, comes) = (Some(tuple.transport), Some(name));
            self.tenancies.insert(flow, Tenancy { moved, comes, ..Tenancy::new(ends, due, Stage::Occupying) });
            self.limits.set(Limit::Tenancy(flow), due);
            self.occupy(below, flow);
            return;
        }
        if parts == Some(true) {
            // It comes back before it was gone. That its socket is there is found out, and the lease lasts again.
            self.turn_tenancy(below, flow, Stage::Checking, Some(below.now() + RESTORED_WITHIN));
            self.keep(below, flow);
            self.occupy(below, flow);
        }
        below.signal(Signal::Adopted { name, result: Ok(()) });
    }

    fn turn_tenancy(&mut self, below: &mut Below<'_>, lease: FlowName, stage: Stage, due: Option<Time>) {
        let Some(tenancy) = self.tenancies.get_mut(&lease) else { return };
        let before = tenancy.is_awaited();
        tenancy.stage = stage;
        let after = tenancy.is_awaited();
        if let Some(due) = due {
            self.limits.set(Limit::Tenancy(lease), due);
        }
        let of = |awaited: bool| if awaited { vec![lease.peer()] } else { Vec::new() };
        below.wait(&of(before), &of(after));
    }

    /// Has the caller make a place for the endpoints, or look whether it is needed.
    fn occupy(&mut self, below: &mut Below<'_>, lease: FlowName) {
        let Some(tenancy) = self.tenancies.get(&lease) else { return };
        let (anchor, ends, moved) = (lease.peer(), tenancy.ends, tenancy.moved);
        let fresh = tenancy.stage == Stage::Occupying;
        match below.around().peer(&anchor) {
            Some(peer) => {
                let anchor_at = below.around().whereabouts(&anchor);
                below.change(Change::Remember { key: anchor });
                let op = MoveOp::Occupy { number: lease.value(), anchor, anchor_at, peer, ends, moved, fresh };
                below.ask(op, MoveAsked::Tenancy(lease));
            }
            None => self.lose_tenancy(below, lease, Refusal::HolderUnreached),
        }
    }

    /// An anchor says what it lends.
    pub(super) fn handle_leased(&mut self, below: &mut Below<'_>, lease: FlowName, outcome: Result<Granted, Refusal>) {
        let Some(tenancy) = self.tenancies.get_mut(&lease) else {
            if outcome.is_ok() {
                below.send(lease.peer(), Record::Return { number: lease.value() });
            }
            return;
        };
        match (tenancy.stage, outcome) {
            // It is over for this host anyway.
            (Stage::Parting | Stage::Closing(_), Err(_)) => {}
            (Stage::Asking | Stage::Renewing, Ok(granted)) if tenancy.fits(&granted.ends) => {
                tenancy.lifetime = Duration::from_secs(u64::from(granted.lifetime)).max(LASTS_LEAST);
                tenancy.until = below.now() + tenancy.lifetime;
                tenancy.ends = granted.ends;
                let (fresh, until, due) =
                    (tenancy.stage == Stage::Asking, tenancy.until, below.now() + tenancy.lifetime / 3);
                if fresh {
                    self.turn_tenancy(below, lease, Stage::Occupying, Some(until));
                    self.occupy(below, lease);
                } else {
                    self.turn_tenancy(below, lease, Stage::InForce, Some(due));
                }
            }
            (Stage::Asking | Stage::Renewing, Ok(_)) => {
                below.send(lease.peer(), Record::Return { number: lease.value() });
                self.lose_tenancy(below, lease, Refusal::Taken);
            }
            // The anchor said so before it heard that it is asked for anew, to a daemon before this one perhaps: the
            // answer follows.
            (Stage::Renewing, Err(Refusal::Expired)) => {}
            (_, Err(refusal)) if self.is_being_claimed_of(&lease) => {
                let until = below.now() + ANSWERED_WITHIN;
                self.turn_tenancy(below, lease, Stage::Closing(refusal), Some(until));
            }
            (_, Err(refusal)) => self.lose_tenancy(below, lease, refusal),
            // It was heard before.
            (Stage::Occupying | Stage::InForce | Stage::Checking | Stage::Parting | Stage::Closing(_), Ok(_)) => {}
        }
    }

    /// An anchor that refuses a lease says what it lends (P-129).
    pub(super) fn handle_offer(&mut self, lease: FlowName, ports: Vec<(u16, u16)>) {
        let asked = self.tenancies.get_mut(&lease).filter(|tenancy| tenancy.is_awaited());
        if let Some(tenancy) = asked {
            tenancy.offered = ports;
        }
    }

    /// An anchor says whether it is reached at what it lends (P-131).
    pub(super) fn handle_reached(&mut self, below: &mut Below<'_>, lease: FlowName, reached: bool) {
        let is_had = |tenancy: &&mut Tenancy| !matches!(tenancy.stage, Stage::Asking | Stage::Parting);
        let lent = self.tenancies.get_mut(&lease).filter(is_had);
        if let Some(tenancy) = lent {
            tenancy.reach.said = reached;
            self.report_reached(below, lease);
        }
    }

    /// Tells how it is last, if that was not told: now, or when some time has passed since the last time.
    fn report_reached(&mut self, below: &mut Below<'_>, lease: FlowName) {
        let Some(Tenancy { ends, reach, stage, .. }) = self.tenancies.get_mut(&lease) else { return };
        if reach.said == reach.told || matches!(stage, Stage::Asking | Stage::Occupying | Stage::Parting) {
            return;
        }
        match reach.told_at.map(|told_at| told_at + TOLD_AGAIN).filter(|again| *again > below.now()) {
            Some(again) => self.limits.set(Limit::Reached(lease), again),
            None => {
                (reach.told, reach.told_at) = (reach.said, Some(below.now()));
                let event = MoveEvent::Reached { anchor: lease.peer(), ends: *ends, reached: reach.said };
                below.event(event);
            }
        }
    }

    /// There is a place for the endpoints, or it is needed still; or not.
    pub(super) fn handle_occupied(&mut self, below: &mut Below<'_>, lease: FlowName, result: Result<OpDone, OpFailed>) {
        let Some(tenancy) = self.tenancies.get_mut(&lease) else {
            below.effect("leaving endpoints of an anchor", MoveOp::Vacate { lease });
            return;
        };
        let comes = tenancy.comes.take();
        let (anchor, ends, until, third) = (lease.peer(), tenancy.ends, tenancy.until, tenancy.lifetime / 3);
        match (tenancy.stage, result) {
            (Stage::Occupying, Err(failed)) if let Some(name) = comes => {
                self.lose_tenancy(below, lease, failed.told());
                below.signal(Signal::Adopted { name, result: Err(failed.sentence) });
            }
            (Stage::Occupying, Ok(_)) => {
                self.turn_tenancy(below, lease, Stage::InForce, Some(below.now() + third));
                below.event(MoveEvent::Leased { number: lease.value(), anchor, ends });
                // It may have been said with the lease.
                self.report_reached(below, lease);
                if let Some(name) = comes {
                    below.signal(Signal::Adopted { name, result: Ok(()) });
                }
            }
            (Stage::Occupying, Err(failed)) => {
                let why = failed.told();
                below.event(MoveEvent::OpFailed {
                    what: "making a place for endpoints of an anchor",
                    error: failed.sentence,
                });
                below.send(anchor, Record::Return { number: lease.value() });
                self.lose_tenancy(below, lease, why);
            }
            (Stage::Checking, Ok(_)) => {
                // Who has slept for longer asks nevertheless: the anchor knows whether it is over.
                let until = until.max(below.now() + ANSWERED_WITHIN);
                self.turn_tenancy(below, lease, Stage::Renewing, Some(until));
                below.send(anchor, Record::Lease { number: lease.value(), ends });
            }
            (Stage::Checking, Err(_)) => self.give_up_lease(below, lease),
            (Stage::Asking | Stage::InForce | Stage::Renewing | Stage::Closing(_) | Stage::Parting, _) => {}
        }
    }

    /// A socket without another end has gone on to another host, and its endpoint with it (P-115).
    pub(super) fn part(&mut self, below: &mut Below<'_>, lease: FlowName) {
        if self.tenancies.get(&lease).is_some_and(|tenancy| tenancy.moved.is_some()) {
            self.turn_tenancy(below, lease, Stage::Parting, Some(below.now() + PARTED_WITHIN));
            // A daemon after this one would ask for what its anchor has led elsewhere, and be told that it is taken.
            self.keep(below, lease);
        }
    }

    fn keep(&self, below: &mut Below<'_>, lease: FlowName) {
        let Some(Tenancy { ends, moved, stage, .. }) = self.tenancies.get(&lease) else { return };
        let (anchor, ends, moved, parts) = (lease.peer(), *ends, *moved, *stage == Stage::Parting);
        let anchor_at = below.around().whereabouts(&anchor);
        let saved = SavedTenancy { number: lease.value(), anchor, anchor_at, ends, moved, parts };
        below.effect("keeping what became of a lease", MoveOp::SaveTenancy(saved));
    }

    /// Nobody here needs the endpoints any more.
    pub(crate) fn give_up_lease(&mut self, below: &mut Below<'_>, lease: FlowName) {
        if self.end_tenancy(below, lease).is_some() {
            let anchor = lease.peer();
            below.send(anchor, Record::Return { number: lease.value() });
            below.event(MoveEvent::Returned { number: lease.value(), anchor });
        }
    }

    fn end_tenancy(&mut self, below: &mut Below<'_>, lease: FlowName) -> Option<Tenancy> {
        let tenancy = self.tenancies.remove(&lease)?;
        self.limits.stop(Limit::Tenancy(lease));
        self.limits.stop(Limit::Reached(lease));
        if tenancy.is_awaited() {
            below.wait(&[lease.peer()], &[]);
        }
        if tenancy.stage != Stage::Asking {
            below.effect("leaving endpoints of an anchor", MoveOp::Vacate { lease });
        }
        Some(tenancy)
    }

    fn lose_tenancy(&mut self, below: &mut Below<'_>, lease: FlowName, why: Refusal) {
        if let Some(Tenancy { ends, offered, .. }) = self.end_tenancy(below, lease) {
            let (number, anchor) = (lease.value(), lease.peer());
            below.event(MoveEvent::NotLeased { number, anchor, ends, why, offered });
        }
    }

    fn handle_tenancy_limit(&mut self, below: &mut Below<'_>, lease: FlowName) {
        let Some(tenancy) = self.tenancies.get(&lease) else { return };
        match tenancy.stage {
            Stage::Asking => {
                self.lose_tenancy(below, lease, Refusal::HolderUnreached);
                // It may have heard, and lent.
                below.send(lease.peer(), Record::Return { number: lease.value() });
            }
            Stage::InForce => {
                self.turn_tenancy(below, lease, Stage::Checking, None);
                self.occupy(below, lease);
            }
            Stage::Renewing => self.lose_tenancy(below, lease, Refusal::Expired),
            Stage::Closing(why) => self.lose_tenancy(below, lease, why),
            // Its anchor has ended it by leading it elsewhere.
            Stage::Parting => drop(self.end_tenancy(below, lease)),
            Stage::Occupying | Stage::Checking => {}
        }
    }

    /// Says to an anchor what it is to answer.
    pub(super) fn send_again(&mut self, below: &mut Below<'_>, to: PublicKey) {
        let mut records: Vec<Record> = Vec::new();
        let asked = self.tenancies.iter().filter(|(lease, tenancy)| lease.peer() == to && tenancy.is_awaited());
        records.extend(asked.map(|(lease, tenancy)| Record::Lease { number: lease.value(), ends: tenancy.ends }));
        let claimed = self.claims.iter().filter(|(flow, claim)| flow.peer() == to && claim.terms.is_none());
        records.extend(claimed.map(|(flow, claim)| Record::Claim {
            flow: flow.value(),
            tuple: claim.tuple,
            wire_port: claim.wire_port,
            hidden: claim.hidden,
        }));
        records.into_iter().for_each(|record| below.send(to, record));
    }

    /// A daemon before this one had endpoints of anchors. They are led here again, and asked for at once, as they may
    /// have run out, except for those that have gone on.
    pub(super) fn restore(&mut self, below: &mut Below<'_>, saved: &[SavedTenancy]) {
        for SavedTenancy { number, anchor, anchor_at, ends, moved, parts } in saved {
            below.hint(*anchor, *anchor_at);
            let (stage, within) =
                if *parts { (Stage::Parting, PARTED_WITHIN) } else { (Stage::Checking, RESTORED_WITHIN) };
            let until = below.now() + within;
            let (lease, moved) = (FlowName::new(*anchor, *number), *moved);
            self.tenancies.insert(lease, Tenancy { moved, ..Tenancy::new(*ends, until, stage) });
            self.limits.set(Limit::Tenancy(lease), until);
            self.occupy(below, lease);
        }
    }

    // ---- connections of leased endpoints

    /// The anchor that lends an endpoint.
    pub(crate) fn lessor_of(&self, end: SocketAddr) -> Option<PublicKey> {
        let is_had = |stage| !matches!(stage, Stage::Asking | Stage::Parting);
        let lends = |(_, tenancy): &(&FlowName, &Tenancy)| is_had(tenancy.stage) && tenancy.ends.contain(end);
        self.tenancies.iter().find(lends).map(|(lease, _)| lease.peer())
    }

    /// Has a connection of a leased endpoint be a flow of this host and the anchor (P-86), or the endpoint a lease of
    /// its own (P-115). An event tells what comes of it. `number` is drawn by lot.
    pub(crate) fn claim(&mut self, below: &mut Below<'_>, number: u64, tuple: FlowTuple, hidden: bool) -> bool {
        let Some(anchor) = self.lessor_of(tuple.local) else { return false };
        if self.claims.values().any(|claim| claim.tuple == tuple) {
            return true;
        }
        let Some(wire_port) = below.around().wire_port(&anchor, &tuple) else { return false };
        let flow = FlowName::new(anchor, number);
        self.claims.insert(flow, Claim { tuple, wire_port, hidden, terms: None });
        self.limits.set(Limit::Claim(flow), below.now() + ANSWERED_WITHIN);
        below.wait(&[], &[anchor]);
        below.send(anchor, Record::Claim { flow: number, tuple, wire_port, hidden });
        true
    }

    /// Whether connections of a lease are being claimed.
    fn is_being_claimed_of(&self, lease: &FlowName) -> bool {
        let Some(tenancy) = self.tenancies.get(lease) else { return false };
        self.claims.iter().any(|(flow, claim)| flow.peer() == lease.peer() && tenancy.ends.contain(claim.tuple.local))
    }

    /// The flow of a claim, if a move's name is that of one.
    fn claimed(&self, below: &Below<'_>, name: MoveName) -> Option<FlowName> {
        let own = name.donor == *below.me().as_bytes();
        // This host has drawn them all: no two have the same number.
        let claimed = self.claims.range(FlowName::alike(name.number)).next().filter(|_| own);
        claimed.map(|(flow, _)| *flow)
    }

    /// An anchor answers, be it a claim.
    pub(super) fn handle_verdict(
        &mut self,
        below: &mut Below<'_>,
        name: MoveName,
        from: PublicKey,
        outcome: Result<Terms, Refusal>,
    ) {
        let Some(flow) = self.claimed(below, name).filter(|flow| flow.peer() == from) else { return };
        let Some(claim) = self.claims.get_mut(&flow) else { return };
        match outcome {
            Ok(terms) if claim.terms.is_none() => {
                claim.terms = Some(terms);
                self.adopt_claimed(below, name);
            }
            Ok(_) => {}
            Err(why) => self.end_claim(below, flow, Err(why)),
        }
    }

    fn adopt_claimed(&self, below: &mut Below<'_>, name: MoveName) {
        let Some((flow, claim)) = self.claimed(below, name).and_then(|flow| self.claims.get_key_value(&flow)) else {
            return;
        };
        let (tuple, flow, wire_port) = (claim.tuple, *flow, claim.wire_port);
        match claim.terms {
            Some(_) if tuple.is_unconnected() => below.signal(Signal::EndpointComes { name, flow, tuple }),
            Some(terms) => below.change(Change::Adopt(Adopt::new(name, tuple, flow, wire_port, terms))),
            None => {}
        }
    }

    /// The node knows a flow that may have been claimed, or could not be told.
    pub(super) fn handle_adopted(&mut self, below: &mut Below<'_>, name: MoveName, result: &Result<(), String>) {
        let Some(flow) = self.claimed(below, name) else { return };
        match result {
            Ok(()) => self.end_claim(below, flow, Ok(())),
            Err(error) => {
                below.event(MoveEvent::OpFailed { what: "leading a flow of an anchor's", error: error.clone() });
                self.limits.set(Limit::Adopt(name), below.now() + AGAIN);
            }
        }
    }

    fn end_claim(&mut self, below: &mut Below<'_>, flow: FlowName, outcome: Result<(), Refusal>) {
        let Some(claim) = self.claims.remove(&flow) else { return };
        self.limits.stop(Limit::Claim(flow));
        below.wait(&[flow.peer()], &[]);
        below.event(MoveEvent::Claimed { tuple: claim.tuple, outcome });
        let closing = self.tenancies.iter().filter_map(|(lease, tenancy)| match tenancy.stage {
            Stage::Closing(why) if !self.is_being_claimed_of(lease) => Some((*lease, why)),
            _ => None,
        });
        let over: Vec<(FlowName, Refusal)> = closing.collect();
        over.into_iter().for_each(|(lease, why)| self.lose_tenancy(below, lease, why));
    }

    fn handle_claim_limit(&mut self, below: &mut Below<'_>, flow: FlowName) {
        if self.claims.get(&flow).is_some_and(|claim| claim.terms.is_none()) {
            self.end_claim(below, flow, Err(Refusal::HolderUnreached));
        }
    }

    pub(super) fn handle_timeout(&mut self, below: &mut Below<'_>) {
        while let Some(limit) = self.limits.take_due(below.now()) {
            match limit {
                Limit::Tenancy(lease) => self.handle_tenancy_limit(below, lease),
                Limit::Reached(lease) => self.report_reached(below, lease),
                Limit::Claim(flow) => self.handle_claim_limit(below, flow),
                Limit::Adopt(name) => self.adopt_claimed(below, name),
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.limits.next()
    }

    /// Entries of all tables together.
    pub(super) fn entries(&self) -> usize {
        self.tenancies.len() + self.claims.len() + self.limits.len()
    }

    /// Who has lent this host something, where that may be others than it was asked last.
    pub(super) fn take_lessors(&mut self) -> Option<BTreeSet<PublicKey>> {
        self.tenancies.take_touched().then(|| self.tenancies.keys().map(FlowName::peer).collect())
    }

    /// All endpoints of others that this host has.
    pub(crate) fn rented(&self) -> impl Iterator<Item = Rented> {
        let is_had = |tenancy: &Tenancy| !matches!(tenancy.stage, Stage::Asking | Stage::Parting);
        let in_force = self.tenancies.iter().filter(move |(_, tenancy)| is_had(tenancy));
        in_force.map(|(lease, tenancy)| {
            let Tenancy { ends, moved, .. } = *tenancy;
            Rented { number: lease.value(), anchor: lease.peer(), ends, moved }
        })
    }
}

#[cfg(test)]
impl Tenant {
    pub(super) fn names(&self) -> Vec<FlowName> {
        self.tenancies.keys().copied().collect()
    }

    /// Deadlines, of whatever.
    pub(super) fn limits(&self) -> usize {
        self.limits.len()
    }
}
