//! Having endpoints of an anchor's: the tenant's part (`docs/protocol.md` §11).

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::lending::{Ends, Granted};
use whimbrel_wire::moving::{MoveName, Record, Terms};
use whimbrel_wire::{FlowTuple, Transport};

use super::flows::FlowChange;
use super::{
    AGAIN, Asked, At, FlowName, Limit, MoveDone, MoveEvent, MoveFailed, MoveOp, Moves, Refusal, Rented, SavedTenancy,
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
    anchor: PublicKey,
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
    anchor: PublicKey,
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
        let tenancy =
            Tenancy { anchor, ends, until, due, lifetime, moved: None, offered, reach: Reach::default(), stage };
        self.tenancies.insert(number, tenancy);
        self.limit(due, Limit::Tenancy(number));
        self.wait(at, &[], &[anchor]);
        self.say(at, anchor, Record::Lease { number, ends });
    }

    /// A socket without another end has moved here (P-96): its endpoint is its holder's, who lends it. `None`: the result comes with that
    /// of an op, by [`Moves::handle_adopted`].
    pub(super) fn rent_moved(&mut self, at: At<'_>, flow: FlowName, tuple: FlowTuple) -> Option<Result<(), String>> {
        let (holder, number) = (flow.peer(), flow.value());
        match self.tenancies.get(&number) {
            Some(tenancy) if tenancy.anchor != holder => {
                return Some(Err(format!("a lease of {} has the number of this socket", tenancy.anchor)));
            }
            Some(tenancy) if tenancy.stage == Stage::Parting => {
                // It comes back before it was gone. That its socket is there is found out, and the lease lasts again.
                self.turn_tenancy(at, number, Stage::Checking, Some(at.now + RESTORED_WITHIN));
                self.occupy(at, number);
                return Some(Ok(()));
            }
            Some(_) => return Some(Ok(())),
            None if holder == self.me() => return Some(Ok(())),
            None => {}
        }
        let due = at.now + ANSWERED_WITHIN * 6;
        let ends = Ends { first: tuple.local, count: 1 };
        let (until, lifetime, stage) = (due, Duration::ZERO, Stage::Occupying);
        let moved = Some(tuple.transport);
        let offered = Vec::new();
        self.tenancies.insert(
            number,
            Tenancy { anchor: holder, ends, until, due, lifetime, moved, offered, reach: Reach::default(), stage },
        );
        self.limit(due, Limit::Tenancy(number));
        self.occupy(at, number);
        None
    }

    fn turn_tenancy(&mut self, at: At<'_>, number: u64, stage: Stage, due: Option<Time>) {
        let Some(tenancy) = self.tenancies.get_mut(&number) else { return };
        let (anchor, before) = (tenancy.anchor, tenancy.is_awaited());
        tenancy.stage = stage;
        let after = tenancy.is_awaited();
        if let Some(due) = due {
            let old = std::mem::replace(&mut tenancy.due, due);
            self.limits.remove(&(old, Limit::Tenancy(number)));
            self.limit(due, Limit::Tenancy(number));
        }
        let of = |awaited: bool| if awaited { vec![anchor] } else { Vec::new() };
        self.wait(at, &of(before), &of(after));
    }

    /// Has the caller make a place for the endpoints, or look whether it is needed.
    fn occupy(&mut self, at: At<'_>, number: u64) {
        let Some(tenancy) = self.tenancies.get(&number) else { return };
        let (anchor, ends, moved) = (tenancy.anchor, tenancy.ends, tenancy.moved);
        let fresh = tenancy.stage == Stage::Occupying;
        match at.around.peer(&anchor) {
            Some(peer) => {
                let anchor_at = at.around.whereabouts(&anchor);
                self.changes.push_back(FlowChange::Remember { key: anchor });
                let op = MoveOp::Occupy { number, anchor, anchor_at, peer, ends, moved, fresh };
                self.op(op, Asked::Tenancy(number));
            }
            None => self.lose_tenancy(at, number, Refusal::HolderUnreached),
        }
    }

    /// An anchor says what it lends.
    pub(super) fn handle_leased(
        &mut self,
        at: At<'_>,
        from: PublicKey,
        number: u64,
        outcome: Result<Granted, Refusal>,
    ) {
        let Some(tenancy) = self.tenancies.get_mut(&number).filter(|tenancy| tenancy.anchor == from) else {
            if outcome.is_ok() {
                self.say(at, from, Record::Return { number });
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
                    self.turn_tenancy(at, number, Stage::Occupying, Some(until));
                    self.occupy(at, number);
                } else {
                    self.turn_tenancy(at, number, Stage::InForce, Some(due));
                }
            }
            (Stage::Asking | Stage::Renewing, Ok(_)) => {
                self.say(at, from, Record::Return { number });
                self.lose_tenancy(at, number, Refusal::Taken);
            }
            // The anchor said so before it heard that it is asked for anew, to a daemon before this one perhaps: the answer follows.
            (Stage::Renewing, Err(Refusal::Expired)) => {}
            (_, Err(refusal)) => self.lose_tenancy(at, number, refusal),
            // It was heard before.
            (Stage::Occupying | Stage::InForce | Stage::Checking | Stage::Parting, Ok(_)) => {}
        }
    }

    /// An anchor that refuses a lease says what it lends (P-129).
    pub(super) fn handle_offer(&mut self, from: PublicKey, number: u64, ports: Vec<(u16, u16)>) {
        let asked = self.tenancies.get_mut(&number).filter(|tenancy| tenancy.anchor == from && tenancy.is_awaited());
        if let Some(tenancy) = asked {
            tenancy.offered = ports;
        }
    }

    /// An anchor says whether it is reached at what it lends (P-131).
    pub(super) fn handle_reached(&mut self, at: At<'_>, from: PublicKey, number: u64, reached: bool) {
        let is_had = |tenancy: &&mut Tenancy| !matches!(tenancy.stage, Stage::Asking | Stage::Parting);
        let lent = self.tenancies.get_mut(&number).filter(|tenancy| tenancy.anchor == from).filter(is_had);
        if let Some(tenancy) = lent {
            tenancy.reach.said = reached;
            self.tell_reached(at, number);
        }
    }

    /// Tells how it is last, if that was not told: now, or when some time has passed since the last time.
    pub(super) fn tell_reached(&mut self, at: At<'_>, number: u64) {
        let Some(Tenancy { anchor, ends, reach, stage, .. }) = self.tenancies.get_mut(&number) else { return };
        if reach.said == reach.told || matches!(stage, Stage::Asking | Stage::Occupying | Stage::Parting) {
            return;
        }
        match reach.told_at.map(|told_at| told_at + TOLD_AGAIN).filter(|again| *again > at.now) {
            Some(again) => self.limit(again, Limit::Reached(number)),
            None => {
                (reach.told, reach.told_at) = (reach.said, Some(at.now));
                let event = MoveEvent::Reached { anchor: *anchor, ends: *ends, reached: reach.said };
                self.event(event);
            }
        }
    }

    /// There is a place for the endpoints, or it is needed still; or not.
    pub(super) fn handle_occupied(&mut self, at: At<'_>, number: u64, result: Result<MoveDone, MoveFailed>) {
        let Some(tenancy) = self.tenancies.get(&number) else {
            self.effect("leaving endpoints of an anchor", MoveOp::Vacate { number });
            return;
        };
        let (anchor, ends, until, third) = (tenancy.anchor, tenancy.ends, tenancy.until, tenancy.lifetime / 3);
        match (tenancy.stage, result) {
            (Stage::Occupying, Err(failed)) if self.coming_with(number).is_some() => {
                self.lose_tenancy(at, number, failed.refusal);
                if let Some(name) = self.coming_with(number) {
                    self.handle_adopted(at, name, Err(failed.sentence));
                }
            }
            (Stage::Occupying, Ok(_)) => {
                self.turn_tenancy(at, number, Stage::InForce, Some(at.now + third));
                self.event(MoveEvent::Leased { number, anchor, ends });
                // It may have been said with the lease.
                self.tell_reached(at, number);
                if let Some(name) = self.coming_with(number) {
                    self.handle_adopted(at, name, Ok(()));
                }
            }
            (Stage::Occupying, Err(failed)) => {
                self.event(MoveEvent::OpFailed {
                    what: "making a place for endpoints of an anchor",
                    error: failed.sentence,
                });
                self.say(at, anchor, Record::Return { number });
                self.lose_tenancy(at, number, failed.refusal);
            }
            (Stage::Checking, Ok(_)) => {
                // Who has slept for longer asks nevertheless: the anchor knows whether it is over.
                let until = until.max(at.now + ANSWERED_WITHIN);
                self.turn_tenancy(at, number, Stage::Renewing, Some(until));
                self.say(at, anchor, Record::Lease { number, ends });
            }
            (Stage::Checking, Err(_)) => self.give_up_lease(at, number),
            (Stage::Asking | Stage::InForce | Stage::Renewing | Stage::Parting, _) => {}
        }
    }

    /// A socket without another end has gone on to another host, and its endpoint with it (P-115).
    pub(super) fn part_with_tenancy(&mut self, at: At<'_>, number: u64) {
        if self.tenancies.get(&number).is_some_and(|tenancy| tenancy.moved.is_some()) {
            self.turn_tenancy(at, number, Stage::Parting, Some(at.now + PARTED_WITHIN));
        }
    }

    /// Nobody here needs the endpoints any more.
    pub(super) fn give_up_lease(&mut self, at: At<'_>, number: u64) {
        if let Some(Tenancy { anchor, .. }) = self.end_tenancy(at, number) {
            self.say(at, anchor, Record::Return { number });
            self.event(MoveEvent::Returned { number, anchor });
        }
    }

    fn end_tenancy(&mut self, at: At<'_>, number: u64) -> Option<Tenancy> {
        let tenancy = self.tenancies.remove(&number)?;
        self.limits.remove(&(tenancy.due, Limit::Tenancy(number)));
        if let Some(told_at) = tenancy.reach.told_at {
            self.limits.remove(&(told_at + TOLD_AGAIN, Limit::Reached(number)));
        }
        if tenancy.is_awaited() {
            self.wait(at, &[tenancy.anchor], &[]);
        }
        if tenancy.stage != Stage::Asking {
            self.effect("leaving endpoints of an anchor", MoveOp::Vacate { number });
        }
        Some(tenancy)
    }

    fn lose_tenancy(&mut self, at: At<'_>, number: u64, why: Refusal) {
        if let Some(Tenancy { anchor, ends, offered, .. }) = self.end_tenancy(at, number) {
            self.event(MoveEvent::NotLeased { number, anchor, ends, why, offered });
        }
    }

    pub(super) fn handle_tenancy_limit(&mut self, at: At<'_>, number: u64) {
        let Some(tenancy) = self.tenancies.get(&number).filter(|tenancy| tenancy.due <= at.now) else { return };
        match tenancy.stage {
            Stage::Asking => {
                let anchor = tenancy.anchor;
                self.lose_tenancy(at, number, Refusal::HolderUnreached);
                // It may have heard, and lent.
                self.say(at, anchor, Record::Return { number });
            }
            Stage::InForce => {
                self.turn_tenancy(at, number, Stage::Checking, None);
                self.occupy(at, number);
            }
            Stage::Renewing => self.lose_tenancy(at, number, Refusal::Expired),
            // Its anchor has ended it by leading it elsewhere.
            Stage::Parting => drop(self.end_tenancy(at, number)),
            Stage::Occupying | Stage::Checking => {}
        }
    }

    /// Says to an anchor what it is to answer.
    pub(super) fn say_tenancies(&mut self, at: At<'_>, to: PublicKey) {
        let mut records: Vec<Record> = Vec::new();
        let asked = self.tenancies.iter().filter(|(_, tenancy)| tenancy.anchor == to && tenancy.is_awaited());
        records.extend(asked.map(|(number, tenancy)| Record::Lease { number: *number, ends: tenancy.ends }));
        let claimed = self.claims.iter().filter(|(_, claim)| claim.anchor == to && claim.terms.is_none());
        records.extend(claimed.map(|(flow, claim)| Record::Claim {
            flow: *flow,
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
            let (anchor, ends, moved, offered) = (*anchor, *ends, *moved, Vec::new());
            let tenancy =
                Tenancy { anchor, ends, until, due: until, lifetime, moved, offered, reach: Reach::default(), stage };
            self.tenancies.insert(*number, tenancy);
            self.limit(until, Limit::Tenancy(*number));
            self.occupy(at, *number);
        }
    }

    // ---- connections of leased endpoints

    /// Whether a lease of another host has the number of a flow of this name, or a claim that was made to one (P-132).
    pub(super) fn is_rented_otherwise(&self, flow: &FlowName) -> bool {
        let lent = self.tenancies.get(&flow.value()).map(|tenancy| tenancy.anchor);
        let claimed = self.claims.get(&flow.value()).map(|claim| claim.anchor);
        lent.into_iter().chain(claimed).any(|anchor| anchor != flow.peer())
    }

    /// The anchor that lends an endpoint.
    pub(super) fn lessor_of(&self, end: SocketAddr) -> Option<PublicKey> {
        let is_had = |stage| !matches!(stage, Stage::Asking | Stage::Parting);
        let lends = |tenancy: &&Tenancy| is_had(tenancy.stage) && tenancy.ends.contain(end);
        self.tenancies.values().find(lends).map(|tenancy| tenancy.anchor)
    }

    /// Has a connection of a leased endpoint be a flow of this host and the anchor (P-86), or the endpoint a lease of its own (P-115). An
    /// event tells what comes of it.
    pub(super) fn claim(&mut self, at: At<'_>, flow: u64, tuple: FlowTuple, hidden: bool) -> bool {
        let Some(anchor) = self.lessor_of(tuple.local) else { return false };
        if self.claims.values().any(|claim| claim.tuple == tuple) {
            return true;
        }
        let Some(wire_port) = at.around.wire_port(&anchor, &tuple) else { return false };
        let until = at.now + ANSWERED_WITHIN;
        self.claims.insert(flow, Claim { anchor, tuple, wire_port, hidden, terms: None, until });
        self.limit(until, Limit::Claim(flow));
        self.wait(at, &[], &[anchor]);
        self.say(at, anchor, Record::Claim { flow, tuple, wire_port, hidden });
        true
    }

    /// The claim of an endpoint that this lease is to come of.
    pub(super) fn claimed_endpoint(&self, number: u64) -> Option<MoveName> {
        let claim = self.claims.get(&number)?;
        let comes = claim.tuple.is_unconnected() && claim.terms.is_some();
        comes.then(|| MoveName { donor: *self.me().as_bytes(), number })
    }

    /// The flow of a claim, if a move's name is that of one.
    fn claimed(&self, name: MoveName) -> Option<u64> {
        let own = name.donor == *self.me().as_bytes() && self.claims.contains_key(&name.number);
        own.then_some(name.number)
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
        let Some(claim) = self.claims.get_mut(&flow).filter(|claim| claim.anchor == from) else { return true };
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
        let Some(claim) = self.claims.get(&name.number) else { return };
        let (tuple, flow, wire_port) = (claim.tuple, FlowName::new(claim.anchor, name.number), claim.wire_port);
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

    fn end_claim(&mut self, at: At<'_>, flow: u64, outcome: Result<(), Refusal>) {
        let Some(claim) = self.claims.remove(&flow) else { return };
        self.limits.remove(&(claim.until, Limit::Claim(flow)));
        self.wait(at, &[claim.anchor], &[]);
        self.event(MoveEvent::Claimed { tuple: claim.tuple, outcome });
    }

    pub(super) fn handle_claim_limit(&mut self, at: At<'_>, flow: u64) {
        if self.claims.get(&flow).is_some_and(|claim| claim.until <= at.now && claim.terms.is_none()) {
            self.end_claim(at, flow, Err(Refusal::HolderUnreached));
        }
    }

    pub(super) fn rents_of(&self, anchor: &PublicKey) -> bool {
        self.tenancies.values().any(|tenancy| tenancy.anchor == *anchor)
    }

    /// All endpoints of others that this host has.
    pub(super) fn rented(&self) -> impl Iterator<Item = Rented> {
        let is_had = |tenancy: &Tenancy| !matches!(tenancy.stage, Stage::Asking | Stage::Parting);
        let in_force = self.tenancies.iter().filter(move |(_, tenancy)| is_had(tenancy));
        in_force.map(|(number, tenancy)| {
            let Tenancy { anchor, ends, moved, .. } = *tenancy;
            Rented { number: *number, anchor, ends, moved }
        })
    }
}
