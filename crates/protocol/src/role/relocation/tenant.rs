//! Having endpoints of an anchor's: the tenant's part (`docs/protocol.md` §11).

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::lending::{Ends, Granted};
use whimbrel_wire::moving::{MoveName, Record, Terms};
use whimbrel_wire::{FlowTuple, Transport};

use super::flows::FlowChange;
use super::{
    AGAIN, Asked, At, FlowName, Limit, MoveEvent, MoveOp, Moves, OpDone, OpFailed, Refusal, Rented, SavedTenancy,
};
use crate::Time;

/// How long an anchor may take to answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(8);

/// How long an anchor may take to answer after a restart: the network may come later. It lends on meanwhile, or says that it does not.
const RESTORED_WITHIN: Duration = Duration::from_secs(3600);

/// Pause before it is told again whether an anchor is reached at what it lends: that may change as often as the anchor likes.
const TOLD_AGAIN: Duration = Duration::from_secs(10);

/// How long an endpoint stays that has gone on with its socket: connections that were being opened then follow it by way of this host.
const PARTED_WITHIN: Duration = Duration::from_secs(10);

/// A lease that lasts shorter is taken for one of so long: it is renewed all the time otherwise, and lost a little later.
const LASTS_LEAST: Duration = Duration::from_secs(1);

/// Endpoints of another host's.
#[derive(Debug)]
pub(super) struct Tenancy {
    /// What was asked for, then what was granted.
    ends: Ends,
    /// The lease lasts until then.
    until: Time,
    /// Something is due.
    due: Time,
    lifetime: Duration,
    /// It came with a socket without another end, of this transport alone.
    moved: Option<Transport>,
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
    /// The socket that they came with is another host's, and they with it. Exits: it comes back (`Checking`); a while has passed (over).
    Parting,
}

/// A connection that is to be a flow of this host and the anchor.
#[derive(Debug)]
pub(super) struct Claim {
    tuple: FlowTuple,
    wire_port: u16,
    hidden: bool,
    terms: Option<Terms>,
    until: Time,
}

impl Tenancy {
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

impl Moves {
    /// Asks an anchor for endpoints; an event tells what comes of it. `number` is drawn by lot.
    pub(super) fn rent(
        &mut self,
        at: At<'_>,
        number: u64,
        anchor: PublicKey,
        anchor_at: Option<SocketAddr>,
        ends: Ends,
    ) {
        self.hints.extend(anchor_at.map(|hint| (anchor, hint)));
        let due = at.now + ANSWERED_WITHIN;
        let (until, lifetime, stage) = (due, Duration::ZERO, Stage::Asking);
        let offered = Vec::new();
        let tenancy = Tenancy { ends, until, due, lifetime, moved: None, offered, reach: Reach::default(), stage };
        let lease = FlowName::new(anchor, number);
        self.tenancies.insert(lease, tenancy);
        self.limit(due, Limit::Tenancy(lease));
        self.wait(at, &[], &[anchor]);
        self.say(at, anchor, Record::Lease { number, ends });
    }

    /// A socket without another end has moved here (P-96): its endpoint is its holder's, who lends it. `None`: the result comes with that
    /// of an op, by [`Moves::handle_adopted`].
    pub(super) fn rent_moved(&mut self, at: At<'_>, flow: FlowName, tuple: FlowTuple) -> Option<Result<(), String>> {
        match self.tenancies.get(&flow) {
            Some(tenancy) if tenancy.stage == Stage::Parting => {
                // It comes back before it was gone. That its socket is there is found out, and the lease lasts again.
                self.turn_tenancy(at, flow, Stage::Checking, Some(at.now + RESTORED_WITHIN));
                self.occupy(at, flow);
                return Some(Ok(()));
            }
            Some(_) => return Some(Ok(())),
            None if flow.peer() == self.me() => return Some(Ok(())),
            None => {}
        }
        let due = at.now + ANSWERED_WITHIN * 6;
        let ends = Ends { first: tuple.local, count: 1 };
        let (until, lifetime, stage) = (due, Duration::ZERO, Stage::Occupying);
        let moved = Some(tuple.transport);
        let offered = Vec::new();
        self.tenancies
            .insert(flow, Tenancy { ends, until, due, lifetime, moved, offered, reach: Reach::default(), stage });
        self.limit(due, Limit::Tenancy(flow));
        self.occupy(at, flow);
        None
    }

    fn turn_tenancy(&mut self, at: At<'_>, lease: FlowName, stage: Stage, due: Option<Time>) {
        let Some(tenancy) = self.tenancies.get_mut(&lease) else { return };
        let before = tenancy.is_awaited();
        tenancy.stage = stage;
        let after = tenancy.is_awaited();
        if let Some(due) = due {
            let old = std::mem::replace(&mut tenancy.due, due);
            self.limits.remove(&(old, Limit::Tenancy(lease)));
            self.limit(due, Limit::Tenancy(lease));
        }
        let of = |awaited: bool| if awaited { vec![lease.peer()] } else { Vec::new() };
        self.wait(at, &of(before), &of(after));
    }

    /// Has the caller make a place for the endpoints, or look whether it is needed.
    fn occupy(&mut self, at: At<'_>, lease: FlowName) {
        let Some(tenancy) = self.tenancies.get(&lease) else { return };
        let (anchor, ends, moved) = (lease.peer(), tenancy.ends, tenancy.moved);
        let fresh = tenancy.stage == Stage::Occupying;
        match at.around.peer(&anchor) {
            Some(peer) => {
                let anchor_at = at.around.whereabouts(&anchor);
                self.changes.push_back(FlowChange::Remember { key: anchor });
                let op = MoveOp::Occupy { number: lease.value(), anchor, anchor_at, peer, ends, moved, fresh };
                self.op(op, Asked::Tenancy(lease));
            }
            None => self.lose_tenancy(at, lease, Refusal::HolderUnreached),
        }
    }

    /// An anchor says what it lends.
    pub(super) fn handle_leased(&mut self, at: At<'_>, lease: FlowName, outcome: Result<Granted, Refusal>) {
        let Some(tenancy) = self.tenancies.get_mut(&lease) else {
            if outcome.is_ok() {
                self.say(at, lease.peer(), Record::Return { number: lease.value() });
            }
            return;
        };
        match (tenancy.stage, outcome) {
            // It is over for this host anyway.
            (Stage::Parting, Err(_)) => {}
            (Stage::Asking | Stage::Renewing, Ok(granted)) if tenancy.fits(&granted.ends) => {
                tenancy.lifetime = Duration::from_secs(u64::from(granted.lifetime)).max(LASTS_LEAST);
                tenancy.until = at.now + tenancy.lifetime;
                tenancy.ends = granted.ends;
                let (fresh, until, due) =
                    (tenancy.stage == Stage::Asking, tenancy.until, at.now + tenancy.lifetime / 3);
                if fresh {
                    self.turn_tenancy(at, lease, Stage::Occupying, Some(until));
                    self.occupy(at, lease);
                } else {
                    self.turn_tenancy(at, lease, Stage::InForce, Some(due));
                }
            }
            (Stage::Asking | Stage::Renewing, Ok(_)) => {
                self.say(at, lease.peer(), Record::Return { number: lease.value() });
                self.lose_tenancy(at, lease, Refusal::Taken);
            }
            // The anchor said so before it heard that it is asked for anew, to a daemon before this one perhaps: the answer follows.
            (Stage::Renewing, Err(Refusal::Expired)) => {}
            (_, Err(refusal)) => self.lose_tenancy(at, lease, refusal),
            // It was heard before.
            (Stage::Occupying | Stage::InForce | Stage::Checking | Stage::Parting, Ok(_)) => {}
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
    pub(super) fn handle_reached(&mut self, at: At<'_>, lease: FlowName, reached: bool) {
        let is_had = |tenancy: &&mut Tenancy| !matches!(tenancy.stage, Stage::Asking | Stage::Parting);
        let lent = self.tenancies.get_mut(&lease).filter(is_had);
        if let Some(tenancy) = lent {
            tenancy.reach.said = reached;
            self.tell_reached(at, lease);
        }
    }

    /// Tells how it is last, if that was not told: now, or when some time has passed since the last time.
    pub(super) fn tell_reached(&mut self, at: At<'_>, lease: FlowName) {
        let Some(Tenancy { ends, reach, stage, .. }) = self.tenancies.get_mut(&lease) else { return };
        if reach.said == reach.told || matches!(stage, Stage::Asking | Stage::Occupying | Stage::Parting) {
            return;
        }
        match reach.told_at.map(|told_at| told_at + TOLD_AGAIN).filter(|again| *again > at.now) {
            Some(again) => self.limit(again, Limit::Reached(lease)),
            None => {
                (reach.told, reach.told_at) = (reach.said, Some(at.now));
                let event = MoveEvent::Reached { anchor: lease.peer(), ends: *ends, reached: reach.said };
                self.event(event);
            }
        }
    }

    /// There is a place for the endpoints, or it is needed still; or not.
    pub(super) fn handle_occupied(&mut self, at: At<'_>, lease: FlowName, result: Result<OpDone, OpFailed>) {
        let Some(tenancy) = self.tenancies.get(&lease) else {
            self.effect("leaving endpoints of an anchor", MoveOp::Vacate { lease });
            return;
        };
        let (anchor, ends, until, third) = (lease.peer(), tenancy.ends, tenancy.until, tenancy.lifetime / 3);
        match (tenancy.stage, result) {
            (Stage::Occupying, Err(failed)) if self.coming_with(&lease).is_some() => {
                self.lose_tenancy(at, lease, failed.told());
                if let Some(name) = self.coming_with(&lease) {
                    self.handle_adopted(at, name, Err(failed.sentence));
                }
            }
            (Stage::Occupying, Ok(_)) => {
                self.turn_tenancy(at, lease, Stage::InForce, Some(at.now + third));
                self.event(MoveEvent::Leased { number: lease.value(), anchor, ends });
                // It may have been said with the lease.
                self.tell_reached(at, lease);
                if let Some(name) = self.coming_with(&lease) {
                    self.handle_adopted(at, name, Ok(()));
                }
            }
            (Stage::Occupying, Err(failed)) => {
                let why = failed.told();
                self.event(MoveEvent::OpFailed {
                    what: "making a place for endpoints of an anchor",
                    error: failed.sentence,
                });
                self.say(at, anchor, Record::Return { number: lease.value() });
                self.lose_tenancy(at, lease, why);
            }
            (Stage::Checking, Ok(_)) => {
                // Who has slept for longer asks nevertheless: the anchor knows whether it is over.
                let until = until.max(at.now + ANSWERED_WITHIN);
                self.turn_tenancy(at, lease, Stage::Renewing, Some(until));
                self.say(at, anchor, Record::Lease { number: lease.value(), ends });
            }
            (Stage::Checking, Err(_)) => self.give_up_lease(at, lease),
            (Stage::Asking | Stage::InForce | Stage::Renewing | Stage::Parting, _) => {}
        }
    }

    /// A socket without another end has gone on to another host, and its endpoint with it (P-115).
    pub(super) fn part_with_tenancy(&mut self, at: At<'_>, lease: FlowName) {
        if self.tenancies.get(&lease).is_some_and(|tenancy| tenancy.moved.is_some()) {
            self.turn_tenancy(at, lease, Stage::Parting, Some(at.now + PARTED_WITHIN));
        }
    }

    /// Nobody here needs the endpoints any more.
    pub(super) fn give_up_lease(&mut self, at: At<'_>, lease: FlowName) {
        if self.end_tenancy(at, lease).is_some() {
            let anchor = lease.peer();
            self.say(at, anchor, Record::Return { number: lease.value() });
            self.event(MoveEvent::Returned { number: lease.value(), anchor });
        }
    }

    fn end_tenancy(&mut self, at: At<'_>, lease: FlowName) -> Option<Tenancy> {
        let tenancy = self.tenancies.remove(&lease)?;
        self.limits.remove(&(tenancy.due, Limit::Tenancy(lease)));
        if let Some(told_at) = tenancy.reach.told_at {
            self.limits.remove(&(told_at + TOLD_AGAIN, Limit::Reached(lease)));
        }
        if tenancy.is_awaited() {
            self.wait(at, &[lease.peer()], &[]);
        }
        if tenancy.stage != Stage::Asking {
            self.effect("leaving endpoints of an anchor", MoveOp::Vacate { lease });
        }
        Some(tenancy)
    }

    fn lose_tenancy(&mut self, at: At<'_>, lease: FlowName, why: Refusal) {
        if let Some(Tenancy { ends, offered, .. }) = self.end_tenancy(at, lease) {
            let (number, anchor) = (lease.value(), lease.peer());
            self.event(MoveEvent::NotLeased { number, anchor, ends, why, offered });
        }
    }

    pub(super) fn handle_tenancy_limit(&mut self, at: At<'_>, lease: FlowName) {
        let Some(tenancy) = self.tenancies.get(&lease).filter(|tenancy| tenancy.due <= at.now) else { return };
        match tenancy.stage {
            Stage::Asking => {
                self.lose_tenancy(at, lease, Refusal::HolderUnreached);
                // It may have heard, and lent.
                self.say(at, lease.peer(), Record::Return { number: lease.value() });
            }
            Stage::InForce => {
                self.turn_tenancy(at, lease, Stage::Checking, None);
                self.occupy(at, lease);
            }
            Stage::Renewing => self.lose_tenancy(at, lease, Refusal::Expired),
            // Its anchor has ended it by leading it elsewhere.
            Stage::Parting => drop(self.end_tenancy(at, lease)),
            Stage::Occupying | Stage::Checking => {}
        }
    }

    /// Says to an anchor what it is to answer.
    pub(super) fn say_tenancies(&mut self, at: At<'_>, to: PublicKey) {
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
        records.into_iter().for_each(|record| self.say(at, to, record));
    }

    /// A daemon before this one had endpoints of anchors. They are led here again, and asked for at once, as they may have run out.
    pub(super) fn restore_tenancies(&mut self, at: At<'_>, saved: &[SavedTenancy]) {
        for SavedTenancy { number, anchor, anchor_at, ends, moved } in saved {
            self.hints.extend(anchor_at.map(|hint| (*anchor, hint)));
            let until = at.now + RESTORED_WITHIN;
            let (lifetime, stage) = (Duration::ZERO, Stage::Checking);
            let (lease, ends, moved, offered) = (FlowName::new(*anchor, *number), *ends, *moved, Vec::new());
            let tenancy = Tenancy { ends, until, due: until, lifetime, moved, offered, reach: Reach::default(), stage };
            self.tenancies.insert(lease, tenancy);
            self.limit(until, Limit::Tenancy(lease));
            self.occupy(at, lease);
        }
    }

    // ---- connections of leased endpoints

    /// The anchor that lends an endpoint.
    pub(super) fn lessor_of(&self, end: SocketAddr) -> Option<PublicKey> {
        let is_had = |stage| !matches!(stage, Stage::Asking | Stage::Parting);
        let lends = |(_, tenancy): &(&FlowName, &Tenancy)| is_had(tenancy.stage) && tenancy.ends.contain(end);
        self.tenancies.iter().find(lends).map(|(lease, _)| lease.peer())
    }

    /// Has a connection of a leased endpoint be a flow of this host and the anchor (P-86), or the endpoint a lease of its own (P-115). An
    /// event tells what comes of it. `number` is drawn by lot.
    pub(super) fn claim(&mut self, at: At<'_>, number: u64, tuple: FlowTuple, hidden: bool) -> bool {
        let Some(anchor) = self.lessor_of(tuple.local) else { return false };
        if self.claims.values().any(|claim| claim.tuple == tuple) {
            return true;
        }
        let Some(wire_port) = at.around.wire_port(&anchor, &tuple) else { return false };
        let until = at.now + ANSWERED_WITHIN;
        let flow = FlowName::new(anchor, number);
        self.claims.insert(flow, Claim { tuple, wire_port, hidden, terms: None, until });
        self.limit(until, Limit::Claim(flow));
        self.wait(at, &[], &[anchor]);
        self.say(at, anchor, Record::Claim { flow: number, tuple, wire_port, hidden });
        true
    }

    /// The claim of an endpoint that this lease is to come of.
    pub(super) fn claimed_endpoint(&self, lease: &FlowName) -> Option<MoveName> {
        let claim = self.claims.get(lease)?;
        let comes = claim.tuple.is_unconnected() && claim.terms.is_some();
        comes.then(|| MoveName { donor: *self.me().as_bytes(), number: lease.value() })
    }

    /// The flow of a claim, if a move's name is that of one.
    fn claimed(&self, name: MoveName) -> Option<FlowName> {
        let own = name.donor == *self.me().as_bytes();
        // This host has drawn them all: no two have the same number.
        let claimed = self.claims.range(FlowName::alike(name.number)).next().filter(|_| own);
        claimed.map(|(flow, _)| *flow)
    }

    /// An anchor answers a claim. Tells whether it was one.
    pub(super) fn handle_claim_verdict(
        &mut self,
        at: At<'_>,
        name: MoveName,
        from: PublicKey,
        outcome: Result<Terms, Refusal>,
    ) -> bool {
        let Some(flow) = self.claimed(name) else { return false };
        let Some(claim) = self.claims.get_mut(&flow).filter(|_| flow.peer() == from) else { return true };
        match outcome {
            Ok(terms) if claim.terms.is_none() => {
                claim.terms = Some(terms);
                self.adopt_claimed(name);
            }
            Ok(_) => {}
            Err(why) => self.end_claim(at, flow, Err(why)),
        }
        true
    }

    pub(super) fn adopt_claimed(&mut self, name: MoveName) {
        let Some((flow, claim)) = self.claimed(name).and_then(|flow| self.claims.get_key_value(&flow)) else { return };
        let (tuple, flow, wire_port) = (claim.tuple, *flow, claim.wire_port);
        let change = claim.terms.map(|terms| FlowChange::Adopt { name, tuple, flow, wire_port, terms });
        self.changes.extend(change);
    }

    /// The node knows a flow that was claimed, or could not be told. Tells whether it was one.
    pub(super) fn handle_claim_adopted(&mut self, at: At<'_>, name: MoveName, result: &Result<(), String>) -> bool {
        let Some(flow) = self.claimed(name) else { return false };
        match result {
            Ok(()) => self.end_claim(at, flow, Ok(())),
            Err(error) => {
                self.event(MoveEvent::OpFailed { what: "leading a flow of an anchor's", error: error.clone() });
                self.limit(at.now + AGAIN, Limit::Adopt(name));
            }
        }
        true
    }

    fn end_claim(&mut self, at: At<'_>, flow: FlowName, outcome: Result<(), Refusal>) {
        let Some(claim) = self.claims.remove(&flow) else { return };
        self.limits.remove(&(claim.until, Limit::Claim(flow)));
        self.wait(at, &[flow.peer()], &[]);
        self.event(MoveEvent::Claimed { tuple: claim.tuple, outcome });
    }

    pub(super) fn handle_claim_limit(&mut self, at: At<'_>, flow: FlowName) {
        if self.claims.get(&flow).is_some_and(|claim| claim.until <= at.now && claim.terms.is_none()) {
            self.end_claim(at, flow, Err(Refusal::HolderUnreached));
        }
    }

    /// All endpoints of others that this host has.
    pub(super) fn rented(&self) -> impl Iterator<Item = Rented> {
        let is_had = |tenancy: &Tenancy| !matches!(tenancy.stage, Stage::Asking | Stage::Parting);
        let in_force = self.tenancies.iter().filter(move |(_, tenancy)| is_had(tenancy));
        in_force.map(|(lease, tenancy)| {
            let Tenancy { ends, moved, .. } = *tenancy;
            Rented { number: lease.value(), anchor: lease.peer(), ends, moved }
        })
    }
}
