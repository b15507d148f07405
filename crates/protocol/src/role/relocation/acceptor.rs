//! Getting a socket.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{AcceptorStanding, MoveName, OF_A_PROCESS, Record, Refusal, Request, Terms, Ticket};
use whimbrel_wire::snapshot::MAX_LEN;

use super::entrusted::is_told_of;
use super::load::takes;
use crate::Time;
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{Found, MoveOp, SavedAcceptance};
use crate::base::output::{MoveAsked, OpDone, OpFailed};
use crate::base::signal::Signal;
use crate::base::timer::Timers;
use crate::binding::transfer::{AGAIN, Adopt, Below, Change};

/// How long the holder may take to be reached, before anything is done.
const REACHED_WITHIN: Duration = Duration::from_secs(8);
/// How long a donor may take for its snapshot, beside the time that all snapshots take.
const SENT_WITHIN: Duration = Duration::from_secs(120);
/// How long a copy is kept of which no holder says whose it is.
const DECIDED_WITHIN: Duration = Duration::from_secs(86_400);
/// Room that is reckoned for a snapshot at the least, in bytes.
const ROOM_LEAST: u64 = 4096;

/// All that are on their way here.
#[derive(Debug, Default)]
pub(super) struct Acceptor {
    acceptances: BTreeMap<MoveName, Acceptance>,
    /// Their sockets.
    moving: HashSet<FlowTuple>,
    /// Their flows.
    taking: HashSet<FlowName>,
    /// Bytes that their snapshots may have.
    reserved: u64,
    limits: Timers<Limit>,
}

/// What has a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Limit {
    Acceptance(MoveName),
    Adopt(MoveName),
}

/// A socket that is on its way here.
#[derive(Debug)]
struct Acceptance {
    donor: PublicKey,
    holder: PublicKey,
    request: Request,
    stage: Stage,
    snapshot: Vec<u8>,
    /// Of the snapshot.
    total: u32,
    reserved: u64,
    ticket: Option<Ticket>,
    /// This host's port in rewritten packets.
    wire_port: u16,
    /// How the holder goes on with the flow.
    terms: Option<Terms>,
    /// Why it comes to nothing.
    why: Option<Refusal>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The caller looks whether it can be. Exits: `Reaching`; refused (over).
    Admitting,
    /// A session with the holder is awaited. Exits: `Ready`; time (over).
    Reaching,
    /// Snapshot and ticket are awaited. Exits: both are here (`Restoring`); they make no sense, the donor cancels, time
    /// (over).
    Ready,
    /// Exits: `Saving`; it fails (over: there is no copy).
    Restoring,
    /// That the ticket may be presented is being saved. Exits: `Presented`; it fails, or the donor cancels
    /// (`Dropping`).
    Saving,
    /// The ticket is presented: the holder alone decides. Exits: it accepts (`Adopting`), or not (`Dropping`).
    Presented,
    /// The node is to know the flow as one with the holder; it is asked until it does. Exits: it does (`Waking`); the
    /// copy is lost (`Surrendering`).
    Adopting,
    /// It is this host's. Exits: over; it fails (`Surrendering`).
    Waking,
    /// The copy is being destroyed. Exits: over.
    Dropping,
    /// The copy is lost. Exits: the holder has been told (over).
    Surrendering,
}

impl Acceptance {
    fn new(name: MoveName, request: Request, stage: Stage) -> Self {
        Self {
            donor: PublicKey::from(name.donor),
            holder: PublicKey::from(request.holder),
            request,
            stage,
            snapshot: Vec::new(),
            total: 0,
            reserved: 0,
            ticket: None,
            wire_port: 0,
            terms: None,
            why: None,
        }
    }

    /// Whether it waits for a session with this host.
    fn reaches(&self, with: &PublicKey) -> bool {
        self.stage == Stage::Reaching && self.holder == *with
    }

    fn waits_for(&self) -> Vec<PublicKey> {
        match self.stage {
            Stage::Reaching | Stage::Presented | Stage::Surrendering => vec![self.holder],
            // It may be needed at any moment.
            Stage::Ready | Stage::Restoring | Stage::Saving => vec![self.holder],
            Stage::Admitting | Stage::Adopting | Stage::Waking | Stage::Dropping => Vec::new(),
        }
    }
}

/// Room that is reckoned for the snapshot of a socket, in bytes.
fn room(request: &Request) -> u64 {
    u64::from(request.size).max(ROOM_LEAST)
}

fn hint(of: SocketAddr) -> Option<SocketAddr> {
    (of.port() != 0 && !of.ip().is_unspecified() && !of.ip().is_multicast()).then_some(of)
}

impl Acceptor {
    /// Whether a socket is on its way here.
    pub(super) fn is_moving(&self, tuple: &FlowTuple) -> bool {
        self.moving.contains(tuple)
    }

    fn answer(&self, below: &mut Below<'_>, name: MoveName, standing: AcceptorStanding, refusal: Option<Refusal>) {
        let donor = PublicKey::from(name.donor);
        below.send(donor, Record::Answer { number: name.number, standing, refusal });
    }

    /// A donor asks whether this host takes a socket. `goes`: this host gives it away.
    pub(super) fn handle_ask(
        &mut self,
        below: &mut Below<'_>,
        name: MoveName,
        donor: PublicKey,
        request: &Request,
        goes: bool,
    ) {
        if let Some(of) = self.acceptances.get(&name) {
            if !matches!(of.stage, Stage::Admitting | Stage::Reaching) {
                self.answer(below, name, AcceptorStanding::Ready, None);
            }
            return;
        }
        self.supersede(below, &donor, &request.tuple);
        if let Some(refusal) = self.refusal(below, name, &donor, request, goes) {
            self.answer(below, name, AcceptorStanding::Refused, Some(refusal));
            return;
        }
        let acceptance = Acceptance::new(name, request.clone(), Stage::Admitting);
        self.enter(below, name, Acceptance { reserved: room(request), ..acceptance }, SENT_WITHIN);
        below.ask(MoveOp::Admit { name, request: request.clone() }, MoveAsked::Acceptance(name));
    }

    fn enter(&mut self, below: &mut Below<'_>, name: MoveName, acceptance: Acceptance, within: Duration) {
        let tuple = acceptance.request.tuple;
        self.limits.set(Limit::Acceptance(name), below.now() + within);
        below.wait(&[], &acceptance.waits_for());
        self.reserved += acceptance.reserved;
        self.moving.insert(tuple);
        below.change(Change::Reserve { tuple, reserved: true });
        self.taking.insert(FlowName::requested(&acceptance.request));
        self.acceptances.insert(name, acceptance);
    }

    /// Why a socket is not taken.
    fn refusal(
        &self,
        below: &mut Below<'_>,
        name: MoveName,
        donor: &PublicKey,
        request: &Request,
        goes: bool,
    ) -> Option<Refusal> {
        let has_room = request.size as usize <= MAX_LEN
            && self.acceptances.len() < below.config().most
            && self.reserved + room(request) <= below.config().bytes;
        // A flow that this host has with another, or passes on for one, is not a donor's to give.
        let whose = below.around().partner(&request.tuple);
        let is_anothers = whose.is_some_and(|whose| whose != *donor && *whose.as_bytes() != request.holder);
        // No more is an endpoint that it has on lease from another.
        let is_endpoint = request.tuple.is_unconnected();
        let lessor = is_endpoint.then(|| below.lessor_of(request.tuple.local)).flatten();
        let is_anothers = is_anothers || lessor.is_some_and(|lessor| *lessor.as_bytes() != request.holder);
        let now = below.now();
        if !below.permits().expects(now, donor) {
            Some(Refusal::NotAllowed)
        } else if is_anothers {
            Some(Refusal::Taken)
        } else if !has_room {
            Some(Refusal::NoRoom)
        } else if goes || self.moving.contains(&request.tuple) {
            Some(Refusal::Busy)
        } else if self.is_called_so(below, &FlowName::requested(request), &request.tuple) {
            Some(Refusal::Taken)
        } else if !below.permits().admits(now, donor, name) {
            Some(Refusal::NotAllowed)
        } else {
            None
        }
    }

    /// Whether the holder and this host have another flow, or are about to have one, that they call so (P-132).
    fn is_called_so(&self, below: &mut Below<'_>, flow: &FlowName, tuple: &FlowTuple) -> bool {
        let known = below.around().flow(flow).is_some_and(|known| known != *tuple);
        known || self.taking.contains(flow)
    }

    /// A donor asks anew about a socket: a daemon of its before this one, which has died, may have asked before (P-72).
    fn supersede(&mut self, below: &mut Below<'_>, donor: &PublicKey, tuple: &FlowTuple) {
        let is_it = |of: &Acceptance| of.donor == *donor && of.request.tuple == *tuple;
        // Nearly all are asked about once: who is to take thousands does not look through them for each.
        if !self.moving.contains(tuple) {
            return;
        }
        if let Some((name, _)) = self.acceptances.iter().find(|(_, of)| is_it(of)) {
            self.handle_cancel(below, *name);
        }
    }

    /// A daemon before this one left a move in the middle.
    pub(super) fn restore(&mut self, below: &mut Below<'_>, saved: &SavedAcceptance, found: Found) {
        let SavedAcceptance { request, ticket, .. } = saved;
        let name = ticket.name;
        if found == Found::Awake {
            // It was woken, so it was committed.
            if is_told_of(request) {
                self.answer(below, name, AcceptorStanding::GoesOn, None);
            }
            below.effect("forgetting a move", MoveOp::ForgetAcceptance { name });
            below.event(MoveEvent::Taken { name });
            return;
        }
        let holder = PublicKey::from(request.holder);
        below.hint(holder, hint(request.holder_at));
        let stage = match found {
            Found::Frozen => Stage::Presented,
            Found::Waiting => Stage::Saving,
            Found::Awake | Found::Gone => Stage::Surrendering,
        };
        let acceptance = Acceptance::new(name, request.clone(), stage);
        let acceptance = Acceptance { ticket: Some(*ticket), wire_port: saved.wire_port, ..acceptance };
        self.enter(below, name, acceptance, DECIDED_WITHIN);
        if found == Found::Waiting {
            below.ask(MoveOp::SaveAcceptance(saved.clone()), MoveAsked::Acceptance(name));
        }
        self.send_acceptance(below, name, None);
    }

    /// A host has forgotten what it was told: all that it is to answer is said anew.
    pub(super) fn send_again(&mut self, below: &mut Below<'_>, to: PublicKey) {
        let acceptances: Vec<MoveName> = self.acceptances.keys().copied().collect();
        acceptances.into_iter().for_each(|name| self.send_acceptance(below, name, Some(to)));
    }

    /// Says to the holder what it is to answer.
    fn send_acceptance(&mut self, below: &mut Below<'_>, name: MoveName, to: Option<PublicKey>) {
        let Some(of) = self.acceptances.get(&name) else { return };
        let (holder, ticket, wire_port) = (of.holder, of.ticket, of.wire_port);
        let Some(ticket) = ticket.filter(|_| to.is_none_or(|to| to == holder)) else { return };
        match of.stage {
            Stage::Presented => below.send(holder, Record::Present { ticket, wire_port }),
            Stage::Surrendering => below.send(holder, Record::Surrender(ticket)),
            _ => {}
        }
    }

    fn turn_acceptance(&mut self, below: &mut Below<'_>, name: MoveName, stage: Stage) {
        let sent_within = SENT_WITHIN + takes(self.reserved);
        let Some(of) = self.acceptances.get_mut(&name) else { return };
        let before = of.waits_for();
        of.stage = stage;
        let after = of.waits_for();
        let within = match stage {
            Stage::Reaching => Some(REACHED_WITHIN),
            Stage::Ready => Some(sent_within),
            Stage::Presented | Stage::Surrendering => Some(DECIDED_WITHIN),
            _ => None,
        };
        let (request, holder) = (of.request.clone(), of.holder);
        if let Some(within) = within {
            self.limits.set(Limit::Acceptance(name), below.now() + within);
        }
        below.wait(&before, &after);
        let asked = MoveAsked::Acceptance(name);
        match stage {
            Stage::Admitting | Stage::Reaching => {}
            Stage::Ready => self.answer(below, name, AcceptorStanding::Ready, None),
            Stage::Restoring => {
                let Some(of) = self.acceptances.get_mut(&name) else { return };
                let snapshot = std::mem::take(&mut of.snapshot);
                below.ask(MoveOp::Restore { name, request, snapshot }, asked);
            }
            Stage::Saving => {
                let wire_port = below.around().wire_port(&holder, &request.tuple);
                let Some(of) = self.acceptances.get_mut(&name) else { return };
                let Some(wire_port) = wire_port else {
                    of.why = Some(Refusal::NoRoom);
                    self.turn_acceptance(below, name, Stage::Dropping);
                    return;
                };
                let Some(ticket) = of.ticket else { return };
                of.wire_port = wire_port;
                // It is to be found again, wherever the donor took it to be.
                let holder_at = below.around().whereabouts(&holder).unwrap_or(request.holder_at);
                let request = Request { holder_at, ..request };
                below.ask(MoveOp::SaveAcceptance(SavedAcceptance { request, ticket, wire_port }), asked);
            }
            Stage::Presented | Stage::Surrendering => self.send_acceptance(below, name, None),
            Stage::Adopting => self.adopt(below, name),
            Stage::Waking => {
                below.ask(MoveOp::Thaw { name }, asked);
            }
            Stage::Dropping => {
                below.ask(MoveOp::Destroy { name, forward: None }, asked);
            }
        }
    }

    /// There is a session with a host: where it is a holder, its path is known before anything stops.
    pub(super) fn handle_session(&mut self, below: &mut Below<'_>, with: &PublicKey) {
        let waiting = self.acceptances.iter().filter(|(_, of)| of.reaches(with)).map(|(name, _)| *name);
        waiting.collect::<Vec<_>>().into_iter().for_each(|name| self.turn_acceptance(below, name, Stage::Ready));
    }

    /// A move is over here.
    fn end_acceptance(&mut self, below: &mut Below<'_>, name: MoveName, event: MoveEvent) {
        let Some(of) = self.acceptances.remove(&name) else { return };
        below.wait(&of.waits_for(), &[]);
        self.reserved -= of.reserved;
        self.moving.remove(&of.request.tuple);
        below.change(Change::Reserve { tuple: of.request.tuple, reserved: false });
        self.taking.remove(&FlowName::requested(&of.request));
        self.limits.stop(Limit::Acceptance(name));
        // Also where it was never saved: what was found out on admittance is released with it.
        below.effect("forgetting a move", MoveOp::ForgetAcceptance { name });
        below.permits().settle(name, matches!(event, MoveEvent::Taken { .. } | MoveEvent::Lost { .. }));
        match event {
            MoveEvent::Taken { .. } if is_told_of(&of.request) => {
                self.answer(below, name, AcceptorStanding::GoesOn, None);
            }
            MoveEvent::Lost { .. } if is_told_of(&of.request) => {
                self.answer(below, name, AcceptorStanding::Lost, Some(of.why.unwrap_or(Refusal::NotWoken)));
            }
            _ => {}
        }
        below.event(event);
    }

    /// There is no copy here, and no ticket out.
    fn refuse(&mut self, below: &mut Below<'_>, name: MoveName, why: Refusal) {
        self.answer(below, name, AcceptorStanding::Refused, Some(why));
        self.end_acceptance(below, name, MoveEvent::NotTaken { name, why });
    }

    /// A part of the snapshot.
    pub(super) fn handle_part(&mut self, below: &mut Below<'_>, name: MoveName, total: u32, offset: u32, bytes: &[u8]) {
        let Some(of) = self.acceptances.get_mut(&name) else {
            if offset == 0 {
                self.answer(below, name, AcceptorStanding::Unknown, None);
            }
            return;
        };
        if of.stage != Stage::Ready {
            return;
        }
        if offset == 0 {
            // From the beginning, or from it once more.
            of.snapshot.clear();
            of.total = total;
            let more = u64::from(total).saturating_sub(of.reserved);
            if total as usize > MAX_LEN || self.reserved + more > below.config().bytes {
                self.refuse(below, name, Refusal::NoRoom);
                return;
            }
            of.reserved += more;
            self.reserved += more;
        }
        if total != of.total || offset as usize != of.snapshot.len() {
            self.refuse(below, name, Refusal::BadSnapshot);
            return;
        }
        of.snapshot.extend_from_slice(bytes);
    }

    /// The ticket, behind the snapshot.
    pub(super) fn handle_ticket(&mut self, below: &mut Below<'_>, from: PublicKey, ticket: Ticket) {
        let name = ticket.name;
        let me = below.me();
        let Some(of) = self.acceptances.get_mut(&name).filter(|of| of.donor == from) else {
            self.answer(below, name, AcceptorStanding::Unknown, None);
            return;
        };
        if of.stage != Stage::Ready {
            return;
        }
        let fits = ticket.acceptor == *me.as_bytes() && ticket.flow == of.request.flow;
        if !fits || of.total == 0 || of.snapshot.len() != of.total as usize {
            self.refuse(below, name, Refusal::BadSnapshot);
            return;
        }
        of.ticket = Some(ticket);
        self.turn_acceptance(below, name, Stage::Restoring);
    }

    /// The donor does not want it any more. What was presented is the holder's to decide.
    pub(super) fn handle_cancel(&mut self, below: &mut Below<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get_mut(&name) else { return };
        match of.stage {
            Stage::Admitting | Stage::Reaching | Stage::Ready => {
                self.end_acceptance(below, name, MoveEvent::NotTaken { name, why: Refusal::Cancelled });
            }
            Stage::Restoring | Stage::Saving => of.why = Some(Refusal::Cancelled),
            Stage::Presented | Stage::Adopting | Stage::Waking | Stage::Dropping | Stage::Surrendering => {}
        }
    }

    /// Ends what is under way from hosts that may hand nothing over any more, as far as it is not decided.
    pub(super) fn end_unpermitted(&mut self, below: &mut Below<'_>) {
        let taken: Vec<MoveName> = self.acceptances.keys().copied().collect();
        for name in taken {
            if !below.permits().lets_come(&PublicKey::from(name.donor), name) {
                self.forbid(below, name);
            }
        }
    }

    /// The donor may hand nothing over any more. What was presented is the holder's to decide.
    fn forbid(&mut self, below: &mut Below<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get_mut(&name) else { return };
        match of.stage {
            Stage::Admitting | Stage::Reaching | Stage::Ready => self.refuse(below, name, Refusal::NotAllowed),
            Stage::Restoring | Stage::Saving => of.why = Some(Refusal::NotAllowed),
            Stage::Presented | Stage::Adopting | Stage::Waking | Stage::Dropping | Stage::Surrendering => {}
        }
    }

    pub(super) fn handle_done(&mut self, below: &mut Below<'_>, name: MoveName, result: Result<OpDone, OpFailed>) {
        let Some(of) = self.acceptances.get_mut(&name) else { return };
        let (stage, holder) = (of.stage, of.holder);
        let failed = result.as_ref().err().map(OpFailed::told);
        of.why = of.why.or(failed);
        let why = of.why;
        if let Err(failed) = &result {
            below.event(MoveEvent::OpFailed { what: "taking a socket", error: failed.sentence.clone() });
        }
        match (stage, why) {
            (Stage::Admitting, Some(why)) => self.refuse(below, name, why),
            (Stage::Admitting, None) => {
                if holder == below.me() || below.around().has_session(&holder) {
                    self.turn_acceptance(below, name, Stage::Ready);
                } else {
                    let hinted = self.acceptances.get(&name).and_then(|of| hint(of.request.holder_at));
                    below.hint(holder, hinted);
                    self.turn_acceptance(below, name, Stage::Reaching);
                }
            }
            (Stage::Restoring, _) if failed.is_some() => self.refuse(below, name, why.unwrap_or(Refusal::NotRestored)),
            (Stage::Saving, Some(_)) => {
                self.surrender_along(below, name);
                self.turn_acceptance(below, name, Stage::Dropping);
            }
            (Stage::Restoring, Some(_)) => self.turn_acceptance(below, name, Stage::Dropping),
            (Stage::Restoring, None) => self.turn_acceptance(below, name, Stage::Saving),
            (Stage::Saving, None) => self.turn_acceptance(below, name, Stage::Presented),
            (Stage::Waking, _) if failed.is_some() => {
                // It was committed: whoever gave it need not wait for what the holder makes of it.
                self.answer(below, name, AcceptorStanding::Lost, why);
                self.turn_acceptance(below, name, Stage::Surrendering);
            }
            (Stage::Waking, _) => self.end_acceptance(below, name, MoveEvent::Taken { name }),
            (Stage::Dropping, why) => self.refuse(below, name, why.unwrap_or(Refusal::Cancelled)),
            (Stage::Reaching | Stage::Ready | Stage::Presented | Stage::Adopting | Stage::Surrendering, _) => {}
        }
    }

    /// What belongs to a process may have been committed along with that (P-130), without having been presented: that
    /// the copy goes the holder is to know.
    fn surrender_along(&mut self, below: &mut Below<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get(&name) else { return };
        let belongs = of.request.receiver.first() == Some(&OF_A_PROCESS);
        if let Some(ticket) = of.ticket.filter(|_| belongs) {
            below.send(of.holder, Record::Surrender(ticket));
        }
    }

    /// The holder says whose the socket is.
    pub(super) fn handle_verdict(
        &mut self,
        below: &mut Below<'_>,
        name: MoveName,
        from: PublicKey,
        outcome: Result<Terms, Refusal>,
    ) {
        let Some(of) = self.acceptances.get_mut(&name).filter(|of| of.holder == from) else { return };
        match (of.stage, outcome) {
            (Stage::Presented, Ok(terms)) => {
                of.terms = Some(terms);
                self.turn_acceptance(below, name, Stage::Adopting);
            }
            (Stage::Presented, Err(why)) => {
                of.why = Some(why);
                self.turn_acceptance(below, name, Stage::Dropping);
            }
            // What was presented before is accepted; that the copy is lost is still to be heard.
            (Stage::Surrendering, Ok(_)) => {}
            (Stage::Surrendering, Err(_)) => self.end_acceptance(below, name, MoveEvent::Lost { name }),
            _ => {}
        }
    }

    /// Has the node know the flow as one with the holder.
    fn adopt(&self, below: &mut Below<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get(&name).filter(|of| of.stage == Stage::Adopting) else { return };
        let (tuple, flow, wire_port) = (of.request.tuple, FlowName::requested(&of.request), of.wire_port);
        match of.terms {
            Some(_) if tuple.is_unconnected() => below.signal(Signal::EndpointComes { name, flow, tuple }),
            Some(terms) => below.change(Change::Adopt(Adopt::new(name, tuple, flow, wire_port, terms))),
            None => {}
        }
    }

    /// The node knows the flow as one with the holder, or could not be told.
    pub(super) fn handle_adopted(&mut self, below: &mut Below<'_>, name: MoveName, result: Result<(), String>) {
        if self.acceptances.get(&name).is_none_or(|of| of.stage != Stage::Adopting) {
            return;
        }
        match result {
            Ok(()) => self.turn_acceptance(below, name, Stage::Waking),
            Err(error) => {
                below.event(MoveEvent::OpFailed { what: "leading a flow that was moved here", error });
                self.limits.set(Limit::Adopt(name), below.now() + AGAIN);
            }
        }
    }

    fn handle_limit(&mut self, below: &mut Below<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get_mut(&name) else { return };
        match of.stage {
            Stage::Reaching => self.refuse(below, name, Refusal::HolderUnreached),
            Stage::Admitting | Stage::Ready => self.refuse(below, name, Refusal::Expired),
            Stage::Presented => {
                of.why = Some(Refusal::HolderUnreached);
                self.turn_acceptance(below, name, Stage::Dropping);
            }
            Stage::Surrendering => self.end_acceptance(below, name, MoveEvent::Lost { name }),
            Stage::Restoring | Stage::Saving | Stage::Adopting | Stage::Waking | Stage::Dropping => {}
        }
    }

    pub(super) fn handle_timeout(&mut self, below: &mut Below<'_>) {
        while let Some(limit) = self.limits.take_due(below.now()) {
            match limit {
                Limit::Acceptance(name) => self.handle_limit(below, name),
                Limit::Adopt(name) => self.adopt(below, name),
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.limits.next()
    }

    /// Entries of all tables together.
    pub(super) fn entries(&self) -> usize {
        self.acceptances.len() + self.moving.len() + self.taking.len() + self.limits.len()
    }

    /// The copy of a socket is lost, as when whoever was to receive it is gone.
    pub(super) fn handle_gone(&mut self, below: &mut Below<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get_mut(&name) else { return };
        match of.stage {
            Stage::Admitting | Stage::Reaching | Stage::Ready => self.refuse(below, name, Refusal::NobodyReceives),
            Stage::Restoring | Stage::Saving => of.why = Some(Refusal::NobodyReceives),
            Stage::Presented | Stage::Adopting => self.turn_acceptance(below, name, Stage::Surrendering),
            // It fails, and is surrendered then.
            Stage::Waking | Stage::Dropping | Stage::Surrendering => {}
        }
    }
}

#[cfg(test)]
impl Acceptor {
    pub(super) fn under_way(&self) -> usize {
        self.acceptances.len()
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }
}
