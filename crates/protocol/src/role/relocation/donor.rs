//! Having a socket, and giving it away.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{AcceptorStanding, Decision, MAX_PART, MoveName, Record, Refusal, Request, Ticket};
use whimbrel_wire::snapshot::Family;

use super::entrusted::{Entrusted, is_told_of};
use super::load::takes;
use super::tickets::Tickets;
use crate::Time;
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{Found, Gift, MoveOp, NotGiven, SavedDonation};
use crate::base::output::{MoveAsked, OpDone, OpFailed};
use crate::base::signal::Signal;
use crate::base::timer::Timers;
use crate::binding::transfer::{Below, Change};

/// How long acceptor and holder may take to say that they are ready.
const PREPARED_WITHIN: Duration = Duration::from_secs(10);
/// And at the longest, while the acceptor says of others that it is ready: it may have been asked for very many at
/// once.
const PREPARED_AT_LAST: Duration = Duration::from_secs(60);
/// How long they stand ready for a socket whose program has not said yet that it is to go. What is announced outlasts
/// that, and what comes then.
pub const READY_FOR: Duration = Duration::from_secs(30);
/// How long a frozen socket is waited for to be taken before it is called back, beside the time that the snapshots
/// take.
const TAKEN_WITHIN: Duration = Duration::from_secs(20);
/// How long a holder may be silent before people are told.
const DECIDED_WITHIN: Duration = Duration::from_secs(30);
/// How long a ticket is wanted to last, in seconds, beside the time that the snapshots take.
const LIFETIME: u32 = 60;

/// All that are given away.
#[derive(Debug)]
pub(super) struct Donor {
    tickets: Tickets,
    donations: BTreeMap<u64, Donation>,
    entrusted: Entrusted,
    /// The sockets of the donations.
    moving: HashSet<FlowTuple>,
    /// Their flows.
    giving: HashSet<FlowName>,
    /// Length of their snapshots, about, in bytes.
    promised: u64,
    /// When hosts that sockets are given to said last that they are ready for one.
    ready_last: HashMap<PublicKey, Time>,
    /// Flows that this host holds itself, whose moves are over.
    over: Vec<FlowName>,
    limits: Timers<u64>,
}

/// A socket that is being given away.
#[derive(Debug)]
struct Donation {
    holder: PublicKey,
    acceptor: PublicKey,
    request: Request,
    /// The move that brings this one along.
    after: Option<u64>,
    stage: Stage,
    /// The acceptor is ready.
    ready: bool,
    /// What the holder said: sequence number and lifetime of the ticket.
    announced: Option<(u32, u32)>,
    snapshot: Vec<u8>,
    ticket: Option<Ticket>,
    /// There is no socket any more.
    gone: bool,
    /// Why it comes to nothing.
    why: Option<Refusal>,
    /// What the acceptor has said of what has become of it there.
    outcome: Option<Result<(), Refusal>>,
    /// When the others were asked.
    asked: Time,
}

/// How far it is. What is undone by whom when it fails stands with each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Both are asked. Exits: both are ready (`Saving`, or `Prepared` where it waits); a refusal or time (over: nothing
    /// was done).
    Preparing(Then),
    /// Both are ready. Exits: its program says that it is to go (`Saving`); a refusal or time (over: nothing was done).
    Prepared,
    /// What a restarted daemon has to know is being saved. Exits: `Freezing`; it fails (over).
    Saving,
    /// Exits: `Dumping`; it fails (over).
    Freezing,
    /// Exits: `Offered`; it fails (`Thawing`: no ticket is out, nobody need be asked).
    Dumping,
    /// Snapshot and ticket are out: the holder alone decides. Exits: it says *committed* (`Destroying`) or *revoked*
    /// (`Thawing`); the acceptor refuses, or time (`Recalling`).
    Offered,
    /// The holder is asked to revoke. Exits: as it decides.
    Recalling,
    /// It is the acceptor's.
    Destroying,
    /// It stays. Exits: over; it fails, so that the socket is lost (`Recalling`).
    Thawing,
}

/// What follows once both are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It goes.
    Go,
    /// It goes when its program says so, and not before.
    Wait,
}

impl Donation {
    fn new(acceptor: PublicKey, request: Request, stage: Stage, asked: Time) -> Self {
        Self {
            holder: PublicKey::from(request.holder),
            acceptor,
            request,
            after: None,
            stage,
            ready: false,
            announced: None,
            snapshot: Vec::new(),
            ticket: None,
            gone: false,
            why: None,
            outcome: None,
            asked,
        }
    }

    fn waits_for(&self) -> Vec<PublicKey> {
        match self.stage {
            Stage::Preparing(_) => {
                let asked = (!self.ready).then_some(self.acceptor);
                asked.into_iter().chain(self.announced.is_none().then_some(self.holder)).collect()
            }
            Stage::Offered => vec![self.acceptor, self.holder],
            Stage::Recalling => vec![self.holder],
            Stage::Prepared => Vec::new(),
            Stage::Saving | Stage::Freezing | Stage::Dumping | Stage::Destroying | Stage::Thawing => Vec::new(),
        }
    }

    /// Nothing has been done to the socket, and nothing is saved of its move.
    fn is_untouched(&self) -> bool {
        matches!(self.stage, Stage::Preparing(_) | Stage::Prepared)
    }
}

impl Donor {
    pub(super) fn new(tickets: Tickets) -> Self {
        Self {
            tickets,
            donations: BTreeMap::new(),
            entrusted: Entrusted::default(),
            moving: HashSet::new(),
            giving: HashSet::new(),
            promised: 0,
            ready_last: HashMap::new(),
            over: Vec::new(),
            limits: Timers::default(),
        }
    }

    /// Whether a socket is on its way from here.
    pub(super) fn is_moving(&self, tuple: &FlowTuple) -> bool {
        self.moving.contains(tuple)
    }

    /// A flow that this host holds itself, whose move is over.
    pub(super) fn poll_over(&mut self) -> Option<FlowName> {
        self.over.pop()
    }

    /// Begins to give a socket away. `number` is drawn by lot. `waits`: it goes once that is [said](Self::go_on) and no
    /// sooner. `comes`: it is on its way to here.
    pub(super) fn give(
        &mut self,
        below: &mut Below<'_>,
        number: u64,
        gift: Gift,
        waits: bool,
        comes: bool,
    ) -> Result<MoveName, NotGiven> {
        let Gift { tuple, family, size, options, receiver, flow, holder_at, acceptor, acceptor_at, after } = gift;
        let holder = flow.peer();
        if acceptor == below.me() {
            return Err(NotGiven::Here);
        }
        let is_used = self.donations.contains_key(&number) || self.entrusted.contains(number);
        if comes || self.moving.contains(&tuple) || self.giving.contains(&flow) || is_used {
            return Err(NotGiven::Moving);
        }
        if self.donations.len() + self.entrusted.len() >= below.config().most {
            return Err(NotGiven::TooMany);
        }
        let (now, name) = (below.now(), below.own(number));
        if !below.permits().gives(now, &acceptor, &tuple, name) {
            return Err(NotGiven::Stranger);
        }
        below.hint(holder, holder_at);
        below.hint(acceptor, acceptor_at);
        let unknown = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
        let holder_at = if holder == below.me() { None } else { below.around().whereabouts(&holder).or(holder_at) };
        let request = Request {
            holder: *holder.as_bytes(),
            holder_at: holder_at.unwrap_or(unknown),
            flow: flow.value(),
            tuple,
            family,
            size,
            options,
            receiver,
        };
        let stage = Stage::Preparing(if waits { Then::Wait } else { Then::Go });
        let donation = Donation { after, ..Donation::new(acceptor, request, stage, now) };
        self.enter(below, number, donation, PREPARED_WITHIN);
        Ok(name)
    }

    /// A daemon before this one left a move in the middle.
    pub(super) fn restore(&mut self, below: &mut Below<'_>, saved: &SavedDonation, found: Found) {
        let SavedDonation { name, tuple, flow, holder_at, acceptor } = *saved;
        let holder = flow.peer();
        if found == Found::Awake {
            // It was not frozen yet, or is awake again: no ticket of it is good any more.
            below.send(holder, Record::Recall { number: name.number, flow: flow.value(), gone: false });
            below.effect("forgetting a move", MoveOp::ForgetDonation { name });
            below.event(MoveEvent::Kept { name, why: Refusal::Cancelled });
            return;
        }
        below.hint(holder, holder_at);
        let family = if tuple.local.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
        let request = Request {
            holder: *holder.as_bytes(),
            holder_at: holder_at.unwrap_or(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)),
            flow: flow.value(),
            tuple,
            family,
            size: 0,
            options: Vec::new(),
            receiver: Vec::new(),
        };
        let (now, why) = (below.now(), Some(Refusal::Cancelled));
        let donation = Donation::new(acceptor, request, Stage::Recalling, now);
        let donation = Donation { ready: true, gone: found == Found::Gone, why, ..donation };
        self.enter(below, name.number, donation, DECIDED_WITHIN);
    }

    fn enter(&mut self, below: &mut Below<'_>, number: u64, donation: Donation, within: Duration) {
        self.limits.set(number, below.now() + within);
        below.wait(&[], &donation.waits_for());
        self.moving.insert(donation.request.tuple);
        below.change(Change::Reserve { tuple: donation.request.tuple, reserved: true });
        self.giving.insert(FlowName::requested(&donation.request));
        self.promised += u64::from(donation.request.size);
        self.donations.insert(number, donation);
        self.send_donation(below, number, None);
    }

    /// A host has forgotten what it was told: all that it is to answer is said anew.
    pub(super) fn send_again(&mut self, below: &mut Below<'_>, to: PublicKey) {
        let donations: Vec<u64> = self.donations.keys().copied().collect();
        donations.into_iter().for_each(|number| self.send_donation(below, number, Some(to)));
    }

    /// Says what a move waits to be answered: all, or what one host is to answer.
    fn send_donation(&mut self, below: &mut Below<'_>, number: u64, to: Option<PublicKey>) {
        let Some(of) = self.donations.get(&number) else { return };
        let (holder, acceptor, stage, flow, after) = (of.holder, of.acceptor, of.stage, of.request.flow, of.after);
        let meant = |key: PublicKey| to.is_none_or(|to| to == key);
        let mut words = Vec::new();
        match stage {
            Stage::Preparing(_) => {
                if !of.ready && meant(acceptor) {
                    words.push((acceptor, Record::Ask { number, request: of.request.clone() }));
                }
                if of.announced.is_none() && meant(holder) {
                    let acceptor = *acceptor.as_bytes();
                    let longer = takes(self.promised).as_secs();
                    let lifetime = LIFETIME.saturating_add(u32::try_from(longer).unwrap_or(u32::MAX));
                    words.push((holder, Record::Announce { number, flow, lifetime, acceptor }));
                    words.extend(after.map(|first| (holder, Record::Belongs { number, flow, first })));
                }
            }
            Stage::Offered if meant(acceptor) => {
                let total = u32::try_from(of.snapshot.len()).unwrap_or(u32::MAX);
                for (part, bytes) in of.snapshot.chunks(MAX_PART).enumerate() {
                    let offset = (part * MAX_PART) as u32;
                    words.push((acceptor, Record::Part { number, total, offset, bytes: bytes.to_vec() }));
                }
                words.extend(of.ticket.map(|ticket| (acceptor, Record::Ticket(ticket))));
            }
            Stage::Recalling if meant(holder) => words.push((holder, Record::Recall { number, flow, gone: of.gone })),
            _ => {}
        }
        words.into_iter().for_each(|(to, record)| below.send(to, record));
    }

    /// Brings a move to another stage.
    fn turn(&mut self, below: &mut Below<'_>, number: u64, stage: Stage) {
        let (name, me) = (below.own(number), below.me());
        let taken_within = TAKEN_WITHIN + takes(self.promised);
        let Some(of) = self.donations.get_mut(&number) else { return };
        let before = of.waits_for();
        of.stage = stage;
        let after = of.waits_for();
        let (tuple, flow) = (of.request.tuple, FlowName::requested(&of.request));
        let (holder, acceptor) = (of.holder, of.acceptor);
        let within = match stage {
            Stage::Prepared => Some(READY_FOR),
            Stage::Offered => Some(taken_within),
            Stage::Recalling => Some(DECIDED_WITHIN),
            _ => None,
        };
        if let Some(within) = within {
            self.limits.set(number, below.now() + within);
        }
        below.wait(&before, &after);
        let asked = MoveAsked::Donation(number);
        match stage {
            Stage::Preparing(_) => {}
            Stage::Prepared => below.event(MoveEvent::Prepared { name }),
            Stage::Saving => {
                let holder_at = (holder != me).then(|| below.around().whereabouts(&holder)).flatten();
                let saved = SavedDonation { name, tuple, flow, holder_at, acceptor };
                below.ask(MoveOp::SaveDonation(saved), asked);
            }
            Stage::Freezing => {
                below.ask(MoveOp::Freeze { name, flow: tuple }, asked);
            }
            Stage::Dumping => {
                below.ask(MoveOp::Dump { name }, asked);
            }
            Stage::Offered | Stage::Recalling => self.send_donation(below, number, None),
            Stage::Destroying => {
                below.ask(MoveOp::Destroy { name, forward: Some(acceptor) }, asked);
            }
            Stage::Thawing => {
                below.ask(MoveOp::Thaw { name }, asked);
            }
        }
    }

    /// A move is over, one way or the other.
    fn end_donation(&mut self, below: &mut Below<'_>, number: u64, event: MoveEvent) {
        let is_gone = matches!(event, MoveEvent::Given { .. } | MoveEvent::Lost { .. });
        if self.close_donation(below, number, is_gone).is_some() {
            below.event(event);
        }
    }

    /// Nothing is left to do for a move.
    fn close_donation(&mut self, below: &mut Below<'_>, number: u64, is_gone: bool) -> Option<Donation> {
        let name = below.own(number);
        let of = self.donations.remove(&number)?;
        below.wait(&of.waits_for(), &[]);
        self.limits.stop(number);
        self.moving.remove(&of.request.tuple);
        below.change(Change::Reserve { tuple: of.request.tuple, reserved: false });
        self.giving.remove(&FlowName::requested(&of.request));
        self.promised -= u64::from(of.request.size);
        if !of.is_untouched() {
            below.effect("forgetting a move", MoveOp::ForgetDonation { name });
        }
        if of.holder == below.me() {
            self.over.push(FlowName::requested(&of.request));
        }
        below.permits().settle(name, is_gone);
        Some(of)
    }

    /// The socket is the acceptor's, and has ended here. What was in it is kept until that goes on there (P-145).
    fn entrust(&mut self, below: &mut Below<'_>, number: u64) {
        let Some(Donation { acceptor, request, snapshot, outcome, .. }) = self.close_donation(below, number, true)
        else {
            return;
        };
        // A daemon before this one may have written it down.
        if !is_told_of(&request) || snapshot.is_empty() {
            let name = below.own(number);
            return below.event(MoveEvent::Given { name, to: acceptor });
        }
        self.entrusted.add(below, number, acceptor, snapshot, outcome);
    }

    /// The acceptor says what has become of a socket that is its own by now.
    fn handle_outcome(&mut self, below: &mut Below<'_>, number: u64, from: PublicKey, outcome: Result<(), Refusal>) {
        if !self.entrusted.handle_outcome(below, number, from, outcome)
            && let Some(of) = self.donations.get_mut(&number).filter(|of| of.acceptor == from)
        {
            // The holder's word is on its way, or acted upon.
            of.outcome = Some(outcome);
        }
    }

    /// A move is not to be.
    fn abort(&mut self, below: &mut Below<'_>, number: u64, why: Refusal) {
        let name = below.own(number);
        let Some(of) = self.donations.get_mut(&number) else { return };
        of.why.get_or_insert(why);
        let (holder, acceptor, flow, why) = (of.holder, of.acceptor, of.request.flow, of.why.unwrap_or(why));
        match of.stage {
            Stage::Preparing(_) | Stage::Prepared => {
                below.send(acceptor, Record::Cancel { number });
                below.send(holder, Record::Recall { number, flow, gone: false });
                self.end_donation(below, number, MoveEvent::Kept { name, why });
            }
            Stage::Offered => {
                below.send(acceptor, Record::Cancel { number });
                self.turn(below, number, Stage::Recalling);
            }
            // Looked at when the op is done, or a decision is on its way already.
            Stage::Saving | Stage::Freezing | Stage::Dumping => {}
            Stage::Recalling | Stage::Destroying | Stage::Thawing => {}
        }
    }

    /// Ends what is under way to hosts that may have nothing of this one's any more, as far as it is not decided.
    pub(super) fn end_unpermitted(&mut self, below: &mut Below<'_>) {
        let given: Vec<(u64, PublicKey)> = self.donations.iter().map(|(number, of)| (*number, of.acceptor)).collect();
        for (number, acceptor) in given {
            let name = below.own(number);
            if !below.permits().lets_go(&acceptor, name) {
                self.abort(below, number, Refusal::NotAllowed);
            }
        }
    }

    /// Why its holder, which is this host, will say that a move is not to be.
    pub(super) fn on_not_kept(&mut self, number: u64) {
        if let Some(of) = self.donations.get_mut(&number) {
            of.why.get_or_insert(Refusal::NotKept);
        }
    }

    /// The acceptor says how it stands.
    pub(super) fn handle_answer(
        &mut self,
        below: &mut Below<'_>,
        number: u64,
        from: PublicKey,
        standing: AcceptorStanding,
        refusal: Option<Refusal>,
    ) {
        match standing {
            AcceptorStanding::GoesOn => return self.handle_outcome(below, number, from, Ok(())),
            AcceptorStanding::Lost => {
                return self.handle_outcome(below, number, from, Err(refusal.unwrap_or(Refusal::NotWoken)));
            }
            _ => {}
        }
        let Some(of) = self.donations.get_mut(&number).filter(|of| of.acceptor == from) else { return };
        if standing == AcceptorStanding::Ready {
            self.ready_last.insert(from, below.now());
        }
        match standing {
            AcceptorStanding::Ready if matches!(of.stage, Stage::Preparing(_)) => {
                let before = of.waits_for();
                of.ready = true;
                let after = of.waits_for();
                below.wait(&before, &after);
                self.begin(below, number);
            }
            AcceptorStanding::Ready => {}
            _ => self.abort(below, number, refusal.unwrap_or(Refusal::NotRestored)),
        }
    }

    /// The holder knows of the move, or does not want to.
    pub(super) fn handle_announced(
        &mut self,
        below: &mut Below<'_>,
        number: u64,
        from: PublicKey,
        sequence: u32,
        lifetime: u32,
        refusal: Option<Refusal>,
    ) {
        let Some(of) = self.donations.get_mut(&number).filter(|of| of.holder == from) else { return };
        if !matches!(of.stage, Stage::Preparing(_)) {
            return;
        }
        if let Some(refusal) = refusal {
            self.abort(below, number, refusal);
            return;
        }
        let before = of.waits_for();
        of.announced = Some((sequence, lifetime));
        let after = of.waits_for();
        below.wait(&before, &after);
        self.begin(below, number);
    }

    /// Begins if both are ready.
    fn begin(&mut self, below: &mut Below<'_>, number: u64) {
        let ready = self.donations.get(&number).filter(|of| of.ready && of.announced.is_some());
        match ready.map(|of| of.stage) {
            Some(Stage::Preparing(Then::Wait)) => self.turn(below, number, Stage::Prepared),
            Some(Stage::Preparing(Then::Go) | Stage::Prepared) => self.turn(below, number, Stage::Saving),
            _ => {}
        }
    }

    /// A socket whose move [waits](Self::give) is to go. `false`: it does not wait, or is not being moved any more.
    pub(super) fn go_on(&mut self, below: &mut Below<'_>, number: u64) -> bool {
        match self.donations.get_mut(&number).map(|of| &mut of.stage) {
            Some(stage @ Stage::Preparing(Then::Wait)) => *stage = Stage::Preparing(Then::Go),
            Some(Stage::Prepared) => {}
            _ => return false,
        }
        self.begin(below, number);
        true
    }

    pub(super) fn handle_done(&mut self, below: &mut Below<'_>, number: u64, result: Result<OpDone, OpFailed>) {
        let name = below.own(number);
        let failed = result.as_ref().err().map(OpFailed::told);
        if let Err(failed) = &result {
            below.event(MoveEvent::OpFailed { what: "moving a socket away", error: failed.sentence.clone() });
        }
        let Some(of) = self.donations.get_mut(&number) else { return };
        let (holder, acceptor, flow) = (of.holder, of.acceptor, of.request.flow);
        of.why = of.why.or(failed);
        let why_before = of.why;
        match of.stage {
            Stage::Saving | Stage::Freezing => {
                let frozen = of.stage == Stage::Freezing && failed.is_none();
                match (of.stage, of.why) {
                    (_, Some(_)) => self.take_back(below, number, frozen),
                    (Stage::Saving, None) => self.turn(below, number, Stage::Freezing),
                    (_, None) => self.turn(below, number, Stage::Dumping),
                }
            }
            Stage::Dumping => {
                let Some((sequence, lifetime)) = of.announced else { return };
                if let (Ok(OpDone::Dumped(snapshot)), None) = (result, of.why) {
                    of.snapshot = snapshot;
                    let acceptor = *acceptor.as_bytes();
                    let mut ticket = Ticket { name, flow, acceptor, sequence, lifetime, mac: [0; 16] };
                    let signed = self.tickets.sign(&mut ticket, holder);
                    if let Some(of) = self.donations.get_mut(&number).filter(|_| signed) {
                        of.ticket = Some(ticket);
                        self.turn(below, number, Stage::Offered);
                        return;
                    }
                }
                self.take_back(below, number, true);
            }
            Stage::Destroying => {
                // Where it failed the copy stays at rest.
                below.send(holder, Record::Settled { number });
                match why_before {
                    Some(Refusal::NoSuchFlow) => self.end_donation(below, number, MoveEvent::Lost { name }),
                    _ => self.entrust(below, number),
                }
            }
            Stage::Thawing if failed.is_some() || of.gone => {
                of.gone = true;
                self.turn(below, number, Stage::Recalling);
            }
            Stage::Thawing => {
                let why = of.why.unwrap_or(Refusal::Cancelled);
                self.end_donation(below, number, MoveEvent::Kept { name, why });
            }
            Stage::Preparing(_) | Stage::Prepared | Stage::Offered | Stage::Recalling => {}
        }
    }

    /// No ticket is out: the socket goes on here, whatever the others think. `frozen`: it is at rest.
    fn take_back(&mut self, below: &mut Below<'_>, number: u64, frozen: bool) {
        let name = below.own(number);
        let Some(of) = self.donations.get_mut(&number) else { return };
        let (holder, acceptor, flow) = (of.holder, of.acceptor, of.request.flow);
        let why = *of.why.get_or_insert(Refusal::NotKept);
        let gone = of.gone;
        below.send(acceptor, Record::Cancel { number });
        match (frozen, gone) {
            (true, true) => self.turn(below, number, Stage::Recalling),
            (true, false) => {
                below.send(holder, Record::Recall { number, flow, gone: false });
                self.turn(below, number, Stage::Thawing);
            }
            (false, _) => {
                below.send(holder, Record::Recall { number, flow, gone: false });
                self.end_donation(below, number, MoveEvent::Kept { name, why });
            }
        }
    }

    /// The holder has decided.
    pub(super) fn handle_decided(&mut self, below: &mut Below<'_>, number: u64, from: PublicKey, decision: Decision) {
        let name = below.own(number);
        let Some(of) = self.donations.get_mut(&number).filter(|of| of.holder == from) else {
            if decision == Decision::Committed {
                // This host has acted on it already.
                below.send(from, Record::Settled { number });
            }
            return;
        };
        if !matches!(of.stage, Stage::Offered | Stage::Recalling) {
            return;
        }
        let (gone, acceptor) = (of.gone, of.acceptor);
        let Request { tuple, flow, .. } = of.request;
        if decision == Decision::Committed && tuple.is_unconnected() {
            below.signal(Signal::EndpointGone(FlowName::new(from, flow)));
        }
        match decision {
            Decision::Committed if gone => {
                below.change(Change::Release { tuple });
                below.send(from, Record::Settled { number });
                self.end_donation(below, number, MoveEvent::Given { name, to: acceptor });
            }
            Decision::Committed => {
                // What its kernel says of a socket that is not here any more does not go out.
                below.change(Change::Release { tuple });
                self.turn(below, number, Stage::Destroying);
            }
            Decision::Revoked | Decision::NoSuchFlow if gone => {
                self.end_donation(below, number, MoveEvent::Lost { name });
            }
            Decision::Revoked if self.is_given_twice(number) => {
                // Another move of the socket is undecided, which a daemon before this one has left: that one tells.
                self.end_donation(below, number, MoveEvent::Kept { name, why: Refusal::Cancelled });
            }
            Decision::Revoked => {
                let Some(of) = self.donations.get_mut(&number) else { return };
                of.why.get_or_insert(Refusal::Cancelled);
                below.send(acceptor, Record::Cancel { number });
                self.turn(below, number, Stage::Thawing);
            }
            // What was decided is not known any more; whichever it was, the far end of this is over.
            Decision::NoSuchFlow => {
                let Some(of) = self.donations.get_mut(&number) else { return };
                of.why = Some(Refusal::NoSuchFlow);
                below.change(Change::Release { tuple: of.request.tuple });
                self.turn(below, number, Stage::Destroying);
            }
            Decision::Other(_) => {}
        }
    }

    /// Whether another move is about the same socket.
    fn is_given_twice(&self, number: u64) -> bool {
        let Some(of) = self.donations.get(&number) else { return false };
        let same = |other: &&Donation| other.request.tuple == of.request.tuple;
        self.donations.values().filter(same).nth(1).is_some()
    }

    fn handle_limit(&mut self, below: &mut Below<'_>, number: u64) {
        let name = below.own(number);
        let Some(of) = self.donations.get(&number) else { return };
        let holder = of.holder;
        if matches!(of.stage, Stage::Preparing(_)) && of.announced.is_some() {
            let answered = self.ready_last.get(&of.acceptor).map(|last| *last + PREPARED_WITHIN);
            let until = answered.map(|until| until.min(of.asked + PREPARED_AT_LAST));
            if let Some(until) = until.filter(|until| *until > below.now()) {
                return self.limits.set(number, until);
            }
        }
        match of.stage {
            Stage::Preparing(_) => {
                let why = if of.announced.is_none() { Refusal::HolderUnreached } else { Refusal::AcceptorUnreached };
                self.abort(below, number, why);
            }
            Stage::Prepared => self.abort(below, number, Refusal::Cancelled),
            Stage::Offered => self.abort(below, number, Refusal::Expired),
            Stage::Recalling => below.event(MoveEvent::Undecided { name, holder }),
            _ => {}
        }
    }

    /// The program that had a socket is gone, and the socket with it.
    pub(super) fn handle_gone(&mut self, below: &mut Below<'_>, number: u64) {
        let Some(of) = self.donations.get_mut(&number) else { return };
        of.gone = true;
        if of.stage == Stage::Recalling {
            self.send_donation(below, number, None);
        }
        self.abort(below, number, Refusal::Cancelled);
    }

    /// Whoever asked for a move wants it no more.
    pub(super) fn cancel(&mut self, below: &mut Below<'_>, number: u64) {
        self.abort(below, number, Refusal::Cancelled);
    }

    pub(super) fn handle_timeout(&mut self, below: &mut Below<'_>) {
        while let Some(number) = self.limits.take_due(below.now()) {
            self.handle_limit(below, number);
        }
        self.entrusted.handle_timeout(below);
        if self.donations.is_empty() {
            self.tickets.forget();
            self.ready_last.clear();
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.limits.next().into_iter().chain(self.entrusted.deadline()).min()
    }

    /// Entries of all tables together, with a byte of a snapshot each.
    pub(super) fn entries(&self) -> usize {
        let given: usize = self.donations.values().map(|of| of.snapshot.len()).sum();
        let tables = self.donations.len() + self.moving.len() + self.giving.len() + self.limits.len();
        tables + given + self.entrusted.entries()
    }
}

#[cfg(test)]
impl Donor {
    pub(super) fn tickets(&mut self) -> &mut Tickets {
        &mut self.tickets
    }

    pub(super) fn under_way(&self) -> usize {
        self.donations.len()
    }
}
