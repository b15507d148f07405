//! The transaction that moves a socket from one host to another (`docs/protocol.md` §9, decision 0015).
//!
//! ```text
//! donor.rs     having a socket, and giving it away
//! acceptor.rs  getting it
//! holder.rs    saying whose it is: the one point of no return
//! held.rs      all that is held
//! load.rs      what goes ahead of a process
//! lessor.rs    lending endpoints
//! tenant.rs    having some of another host's
//! flows.rs     what the node's table of flows makes of it
//! permits.rs   with whom
//! glue.rs      what the node has to do with it: sessions, timers
//! ```
//!
//! All three roles may be one host's, or two of them: what a host has to say to itself goes the same way as what it says to others.

mod acceptor;
mod donor;
mod flows;
mod glue;
mod held;
mod holder;
mod lessor;
mod load;
mod permits;
mod tenant;
#[cfg(test)]
mod tests;
mod written;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ring::hmac;
use whimbrel_handshake::{PublicKey, StaticKey};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::Message;
use whimbrel_wire::moving::{MoveName, Received, Record, Refusal, Stretch, Ticket, TicketMac};

use crate::Time;
use crate::base::bucket::Bucket;
use crate::base::config::Config;
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::PeerId;
use crate::base::op::relocation::{
    Dependents, Found, Gift, LeaseName, MoveOp, Moving, NotGiven, Rented, SavedAcceptance, SavedDonation, SavedHeld,
    SavedLease, SavedTenancy,
};
use crate::base::output::{OpDone, OpFailed};
use crate::session::channel::Lanes;

use acceptor::Acceptance;
pub use donor::READY_FOR;
use donor::{Donation, Entrusted};
use flows::FlowChange;
use held::Table;
use lessor::Lease;
use load::Loads;
use permits::Permits;
use tenant::{Claim, Tenancy};
use written::{Reserved, Watched};

/// How fast snapshots may be taken to be sent, at the least, in bytes a second.
const RATE: u64 = 256 * 1024;

/// Pause before something that failed is asked for again.
const AGAIN: Duration = Duration::from_millis(500);

/// What a move has to know of the node around it.
pub(crate) trait Around {
    /// Whether there is a session with a host.
    fn has_session(&self, with: &PublicKey) -> bool;
    /// The flow of this name, as this host has it.
    fn flow(&self, name: &FlowName) -> Option<FlowTuple>;
    /// Whether a flow is known by these names.
    fn is_known(&self, flow: &FlowTuple) -> bool;
    /// The host that a flow is with, by these names, where it is introduced.
    fn partner(&self, flow: &FlowTuple) -> Option<PublicKey>;
    /// This host's port in rewritten packets of a flow that it takes over, if one is left.
    fn wire_port(&self, with: &PublicKey, flow: &FlowTuple) -> Option<u16>;
    /// The peer that a host is.
    fn peer(&self, of: &PublicKey) -> Option<PeerId>;
    /// Where a host is, if it is known.
    fn whereabouts(&self, of: &PublicKey) -> Option<SocketAddr>;
}

/// The moment of an input, and what is around it.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) now: Time,
    around: &'a dyn Around,
}

/// What has a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Limit {
    Donation(u64),
    Entrusted(u64),
    Acceptance(MoveName),
    Adopt(MoveName),
    Announcement(FlowName),
    Lead(FlowName),
    Unsettled(FlowName),
    /// Of what goes ahead of processes.
    Load,
    Lease(LeaseName),
    Tenancy(FlowName),
    /// Whether the anchor of a lease is reached is told.
    Reached(FlowName),
    Claim(FlowName),
    /// Ops that failed and that nothing depends on but tidiness.
    Again,
}

/// Names one op, so that its result finds its way back.
type MoveOpId = u64;

/// What an op was for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Donation(u64),
    Acceptance(MoveName),
    /// Commits, which are decided together, of flows that are called so till then.
    Keep(Vec<FlowName>),
    Lease(LeaseName),
    Tenancy(FlowName),
    /// Nothing waits for it, and it is asked for again where it fails.
    Effect(&'static str, Box<MoveOp>),
}

/// All moves that a host takes part in.
pub(crate) struct Moves {
    key: StaticKey,
    config: Moving,
    permits: Permits,
    wall_clock_at_zero: u64,
    lanes: Lanes,
    loads: Loads,
    donations: BTreeMap<u64, Donation>,
    entrusted: BTreeMap<u64, Entrusted>,
    /// Of which they have not said so in time. No more than so many, and without what was in them.
    unheard: VecDeque<(u64, PublicKey)>,
    /// The sockets of these and of the acceptances.
    moving: Reserved,
    /// The flows of the donations.
    giving: HashSet<FlowName>,
    /// Length of the snapshots of the donations, about, in bytes.
    promised: u64,
    acceptances: BTreeMap<MoveName, Acceptance>,
    /// The flows of these.
    taking: HashSet<FlowName>,
    /// Bytes that the snapshots of these may have.
    reserved: u64,
    held: Table,
    /// Flows that have moved before may be moved again so often, all together.
    moved_again: Bucket,
    /// The flows of moves whose donors have not said that they know.
    settling: HashMap<MoveName, FlowName>,
    /// What is lent to others.
    leases: Watched<BTreeMap<LeaseName, Lease>>,
    /// Nothing new is lent.
    stopping: bool,
    /// Addresses of lent endpoints at which this host is not reached any more (P-131).
    unreached: BTreeSet<IpAddr>,
    /// What others have lent to this host, by what the two call the leases.
    tenancies: Watched<BTreeMap<FlowName, Tenancy>>,
    /// Connections of those endpoints, by the names that they are to have.
    claims: BTreeMap<FlowName, Claim>,
    limits: BTreeSet<(Time, Limit)>,
    /// What this host says to itself.
    own: VecDeque<Record>,
    ops: VecDeque<(MoveOpId, MoveOp)>,
    /// What the node's table of flows is to say.
    changes: VecDeque<FlowChange>,
    events: VecDeque<MoveEvent>,
    asked: HashMap<MoveOpId, Asked>,
    /// What failed and is asked for again.
    failed: Vec<(&'static str, MoveOp)>,
    next_op: u64,
    /// Keys that tickets are authenticated with, by the other host.
    ticket_keys: HashMap<PublicKey, hmac::Key>,
    /// When hosts that sockets are given to said last that they are ready for one.
    ready_last: HashMap<PublicKey, Time>,
    /// Where hosts are to be asked for that no peer is known of.
    hints: BTreeMap<PublicKey, SocketAddr>,
    /// When such hosts are asked again, and how often they were.
    asked_at: BTreeMap<PublicKey, (Time, u32)>,
}

impl Moves {
    /// Those of a host, if it is to take part in any.
    pub(crate) fn of(key: &StaticKey, config: &Config) -> Option<Box<Self>> {
        let taking_part = config.moving.enabled;
        taking_part.then(|| Box::new(Self::new(key.clone(), config.moving.clone(), config.wall_clock_at_zero)))
    }

    fn new(key: StaticKey, config: Moving, wall_clock_at_zero: u64) -> Self {
        Self {
            key,
            config,
            permits: Permits::default(),
            wall_clock_at_zero,
            lanes: Lanes::default(),
            loads: Loads::default(),
            donations: BTreeMap::new(),
            entrusted: BTreeMap::new(),
            unheard: VecDeque::new(),
            moving: Reserved::default(),
            giving: HashSet::new(),
            promised: 0,
            acceptances: BTreeMap::new(),
            taking: HashSet::new(),
            reserved: 0,
            held: Table::default(),
            moved_again: Bucket::of(holder::AGAIN_ALL.0, holder::AGAIN_ALL.1),
            settling: HashMap::new(),
            leases: Watched::default(),
            stopping: false,
            unreached: BTreeSet::new(),
            tenancies: Watched::default(),
            claims: BTreeMap::new(),
            limits: BTreeSet::new(),
            own: VecDeque::new(),
            ops: VecDeque::new(),
            changes: VecDeque::new(),
            events: VecDeque::new(),
            asked: HashMap::new(),
            failed: Vec::new(),
            next_op: 1,
            ticket_keys: HashMap::new(),
            ready_last: HashMap::new(),
            hints: BTreeMap::new(),
            asked_at: BTreeMap::new(),
        }
    }

    fn me(&self) -> PublicKey {
        self.key.public()
    }

    /// How long so many bytes of snapshots may take.
    fn takes(bytes: u64) -> Duration {
        Duration::from_secs(bytes / RATE)
    }

    fn wall(&self, now: Time) -> u64 {
        self.wall_clock_at_zero + now.as_millis()
    }

    // ---- saying and hearing

    fn say(&mut self, at: At<'_>, to: PublicKey, record: Record) {
        if to == self.me() {
            self.own.push_back(record);
        } else {
            let wall = self.wall(at.now);
            self.lanes.say(at.now, wall, to, &record);
        }
    }

    /// Of those that a move waited for a word of, and those that it waits for now.
    fn wait(&mut self, at: At<'_>, before: &[PublicKey], after: &[PublicKey]) {
        let (me, wall) = (self.me(), self.wall(at.now));
        for (keys, more) in [(after, true), (before, false)] {
            for key in keys.iter().filter(|key| **key != me) {
                self.lanes.wait(at.now, wall, *key, more);
            }
        }
    }

    /// A host says something.
    fn hear(&mut self, at: At<'_>, from: PublicKey, record: Record) {
        let name = |number| MoveName { donor: *from.as_bytes(), number };
        // Whatever a host calls a flow is one of its own (P-132).
        let flow_of = |value| FlowName::new(from, value);
        match record {
            Record::Ask { number, request } => self.handle_ask(at, name(number), from, request),
            Record::Part { number, total, offset, bytes } => {
                self.handle_part(at, name(number), total, offset, &bytes);
            }
            Record::Ticket(ticket) => self.handle_ticket(at, from, ticket),
            Record::Present { ticket, wire_port } => self.handle_presented(at, from, ticket, wire_port),
            Record::Cancel { number } => self.handle_cancel(at, name(number)),
            Record::Verdict { name, outcome } => {
                if !self.handle_claim_verdict(at, name, from, outcome) {
                    self.handle_verdict(at, name, from, outcome);
                }
            }
            Record::Answer { number, standing, refusal } => self.handle_answer(at, number, from, standing, refusal),
            Record::Announced { number, sequence, lifetime, refusal } => {
                self.handle_announced(at, number, from, sequence, lifetime, refusal);
            }
            Record::Decided { number, decision } => self.handle_decided(at, number, from, decision),
            Record::Announce { number, flow, lifetime, acceptor } => {
                self.handle_announce(at, number, flow_of(flow), lifetime, PublicKey::from(acceptor));
            }
            Record::Belongs { number, flow, first } => self.handle_belongs(name(number), flow_of(flow), first),
            Record::Recall { number, flow, gone } => self.handle_recall(at, number, flow_of(flow), gone),
            Record::Settled { number } => self.handle_settled(at, name(number)),
            Record::Surrender(ticket) => self.handle_surrender(at, from, ticket),
            Record::Load { number, total, offset, bytes } => {
                self.handle_load(at, name(number), total, offset, &bytes);
            }
            Record::Loaded { number, standing, sentence } => {
                self.handle_loaded(at, from, number, standing, &sentence);
            }
            Record::Lease { number, ends } => self.handle_lease(at, from, number, ends),
            Record::Leased { number, outcome } => self.handle_leased(at, flow_of(number), outcome),
            Record::Return { number } => self.handle_return(from, number),
            Record::Claim { flow, tuple, wire_port, hidden } => {
                self.handle_claim(at, flow_of(flow), tuple, wire_port, hidden);
            }
            Record::Ending { flow } => self.handle_ending(flow_of(flow)),
            Record::Offer { number, ports } => self.handle_offer(flow_of(number), ports),
            Record::Reached { number, reached } => self.handle_reached(at, flow_of(number), reached),
        }
    }

    /// What this host has said to itself is heard.
    fn hear_own(&mut self, at: At<'_>) {
        let me = self.me();
        while let Some(record) = self.own.pop_front() {
            self.hear(at, me, record);
        }
    }

    pub(crate) fn handle_stretch(&mut self, at: At<'_>, from: PublicKey, stretch: Stretch) {
        let wall = self.wall(at.now);
        let expected = self.expects(&from) || self.lanes.wants(&from);
        for record in self.lanes.handle_stretch(at.now, wall, from, stretch, expected) {
            self.hear(at, from, record);
            self.hear_own(at);
        }
    }

    pub(crate) fn handle_received(&mut self, at: At<'_>, from: PublicKey, received: &Received) {
        let wall = self.wall(at.now);
        if self.lanes.handle_received(at.now, wall, from, received) {
            self.say_again(at, from);
        }
    }

    /// A host has forgotten what it was told: all that it is to answer is said anew.
    fn say_again(&mut self, at: At<'_>, to: PublicKey) {
        self.say_loads_again(at, to);
        let donations: Vec<u64> = self.donations.keys().copied().collect();
        donations.into_iter().for_each(|number| self.say_donation(at, number, Some(to)));
        let acceptances: Vec<MoveName> = self.acceptances.keys().copied().collect();
        acceptances.into_iter().for_each(|name| self.say_acceptance(at, name, Some(to)));
        let held: Vec<FlowName> = self.held.keys().copied().collect();
        held.into_iter().for_each(|flow| self.say_unsettled(at, flow, Some(to)));
        self.say_tenancies(at, to);
    }

    /// There is a session with a host.
    pub(crate) fn handle_session(&mut self, at: At<'_>, with: PublicKey) {
        self.lanes.ask(&with);
        let waiting: Vec<MoveName> =
            self.acceptances.iter().filter(|(_, of)| of.reaches(&with)).map(|(name, _)| *name).collect();
        waiting.into_iter().for_each(|name| self.handle_holder_reached(at, name));
        self.say_all_reached(at, with);
        self.lead_waiting(at, with);
        self.hear_own(at);
    }

    // ---- tickets

    fn ticket_key(&mut self, with: PublicKey) -> Option<&hmac::Key> {
        if !self.ticket_keys.contains_key(&with) {
            let key = self.key.ticket_key(&with)?;
            self.ticket_keys.insert(with, hmac::Key::new(hmac::HMAC_SHA256, &key));
        }
        self.ticket_keys.get(&with)
    }

    /// Puts the MAC into a ticket that a holder is to accept (P-73).
    fn sign(&mut self, ticket: &mut Ticket, holder: PublicKey) -> bool {
        let Some(key) = self.ticket_key(holder) else { return false };
        let mac = hmac::sign(key, &ticket.signed());
        let Some(first) = mac.as_ref().first_chunk::<{ size_of::<TicketMac>() }>() else { return false };
        ticket.mac = *first;
        true
    }

    /// Whether a ticket is its donor's.
    fn is_genuine(&mut self, ticket: &Ticket) -> bool {
        let mut right = *ticket;
        self.sign(&mut right, PublicKey::from(ticket.name.donor)) && equal(&right.mac, &ticket.mac)
    }

    // ---- ops, events, deadlines

    fn op(&mut self, op: MoveOp, asked: Asked) -> MoveOpId {
        let id = self.next_op;
        self.next_op += 1;
        self.asked.insert(id, asked);
        self.ops.push_back((id, op));
        id
    }

    /// Asks for something that nothing waits for.
    fn effect(&mut self, what: &'static str, op: MoveOp) {
        self.op(op.clone(), Asked::Effect(what, Box::new(op)));
    }

    /// Asks for something again that failed. What a holder keeps may be another than it was then.
    fn ask_again(&mut self, what: &'static str, op: MoveOp) {
        let op = match op {
            MoveOp::SaveHeld(before) => {
                let now: Vec<_> = before.iter().filter_map(|before| self.held_to_save(before.flow)).collect();
                (!now.is_empty()).then_some(MoveOp::SaveHeld(now))
            }
            MoveOp::ForgetHeld { flow } if self.held_to_save(flow).is_some() => None,
            other => Some(other),
        };
        if let Some(op) = op {
            self.effect(what, op);
        }
    }

    fn event(&mut self, event: MoveEvent) {
        self.events.push_back(event);
    }

    fn limit(&mut self, when: Time, limit: Limit) {
        self.limits.insert((when, limit));
    }

    pub(crate) fn handle_done(&mut self, at: At<'_>, id: MoveOpId, result: Result<OpDone, OpFailed>) {
        let Some(asked) = self.asked.remove(&id) else { return };
        match asked {
            Asked::Donation(number) => self.handle_donation_done(at, number, result),
            Asked::Acceptance(name) => self.handle_acceptance_done(at, name, result),
            Asked::Keep(flows) => flows.into_iter().for_each(|flow| self.handle_kept(at, flow, result.clone())),
            Asked::Lease(name) => self.handle_lent(at, name, result),
            Asked::Tenancy(lease) => self.handle_occupied(at, lease, result),
            Asked::Effect(what, op) => {
                if let Err(failed) = result {
                    self.failed.push((what, *op));
                    self.limit(at.now + AGAIN, Limit::Again);
                    self.event(MoveEvent::OpFailed { what, error: failed.sentence });
                }
            }
        }
        self.hear_own(at);
    }

    pub(crate) fn handle_timeout(&mut self, at: At<'_>) {
        self.lanes.handle_timeout(at.now);
        while let Some(&(when, limit)) = self.limits.first() {
            if when > at.now {
                break;
            }
            self.limits.remove(&(when, limit));
            match limit {
                Limit::Donation(number) => self.handle_donation_limit(at, number),
                Limit::Entrusted(number) => self.handle_entrusted_limit(at, number),
                Limit::Acceptance(name) => self.handle_acceptance_limit(at, name),
                Limit::Adopt(name) if self.acceptances.contains_key(&name) => self.adopt(name),
                Limit::Adopt(name) => self.adopt_claimed(name),
                Limit::Announcement(flow) => self.handle_announcement_limit(at, flow),
                Limit::Lead(flow) => self.lead(at, flow),
                Limit::Unsettled(flow) => self.handle_unsettled_limit(at, flow),
                Limit::Load => self.handle_load_limit(at),
                Limit::Lease(name) => self.handle_lease_limit(at, name),
                Limit::Tenancy(lease) => self.handle_tenancy_limit(at, lease),
                Limit::Reached(lease) => self.tell_reached(at, lease),
                Limit::Claim(flow) => self.handle_claim_limit(at, flow),
                Limit::Again => {
                    let failed = std::mem::take(&mut self.failed);
                    failed.into_iter().for_each(|(what, op)| self.ask_again(what, op));
                }
            }
            self.hear_own(at);
        }
        if self.donations.is_empty() && self.held.is_empty() {
            self.ticket_keys.clear();
        }
        if self.donations.is_empty() {
            self.ready_last.clear();
        }
        let lanes = &self.lanes;
        self.hints.retain(|key, _| lanes.wants(key));
        self.asked_at.retain(|key, _| lanes.wants(key));
    }

    pub(crate) fn deadline(&self, at: At<'_>) -> Option<Time> {
        let lanes = self.lanes.deadline(at.now, |key| at.around.has_session(key));
        let limit = self.limits.first().map(|(when, _)| *when);
        [lanes, limit].into_iter().flatten().min()
    }

    pub(crate) fn poll_op(&mut self) -> Option<(MoveOpId, MoveOp)> {
        self.ops.pop_front()
    }

    pub(crate) fn poll_event(&mut self) -> Option<MoveEvent> {
        self.events.pop_front()
    }

    fn poll_message(&mut self, now: Time, to: &PublicKey) -> Option<Message> {
        self.lanes.poll(now, to)
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        let given: usize = self.donations.values().map(Donation::held).sum();
        let entrusted: usize = self.entrusted.values().map(Entrusted::held).sum();
        self.lanes.entries()
            + self.loads.entries()
            + self.donations.len()
            + self.entrusted.len()
            + self.acceptances.len()
            + self.held.len()
            + self.moving.len()
            + self.giving.len()
            + self.taking.len()
            + self.settling.len()
            + self.leases.len()
            + self.tenancies.len()
            + self.claims.len()
            + self.limits.len()
            + self.asked.len()
            + self.hints.len()
            + self.failed.len()
            + given
            + entrusted
    }
}

/// Whether two MACs are equal, in a time that does not depend on where they differ.
fn equal(one: &TicketMac, other: &TicketMac) -> bool {
    one.iter().zip(other).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}
