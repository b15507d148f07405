//! Getting a socket.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{AcceptorStanding, MoveName, OF_A_PROCESS, Record, Request, Terms, Ticket};
use whimbrel_wire::snapshot::MAX_LEN;

use super::donor::is_told_of;
use super::flows::FlowChange;
use super::{
    AGAIN, Asked, At, FlowName, Found, Limit, MoveEvent, MoveOp, Moves, OpDone, OpFailed, Refusal, SavedAcceptance,
};
use crate::Time;

/// How long the holder may take to be reached, before anything is done.
const REACHED_WITHIN: Duration = Duration::from_secs(8);
/// How long a donor may take for its snapshot, beside the time that all snapshots take.
const SENT_WITHIN: Duration = Duration::from_secs(120);
/// How long a copy is kept of which no holder says whose it is.
const DECIDED_WITHIN: Duration = Duration::from_secs(86_400);
/// Room that is reckoned for a snapshot at the least, in bytes.
const ROOM_LEAST: u64 = 4096;

/// A socket that is on its way here.
#[derive(Debug)]
pub(super) struct Acceptance {
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
    until: Time,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The caller looks whether it can be. Exits: `Reaching`; refused (over).
    Admitting,
    /// A session with the holder is awaited. Exits: `Ready`; time (over).
    Reaching,
    /// Snapshot and ticket are awaited. Exits: both are here (`Restoring`); they make no sense, the donor cancels, time (over).
    Ready,
    /// Exits: `Saving`; it fails (over: there is no copy).
    Restoring,
    /// That the ticket may be presented is being saved. Exits: `Presented`; it fails, or the donor cancels (`Dropping`).
    Saving,
    /// The ticket is presented: the holder alone decides. Exits: it accepts (`Adopting`), or not (`Dropping`).
    Presented,
    /// The node is to know the flow as one with the holder; it is asked until it does. Exits: it does (`Waking`); the copy is lost
    /// (`Surrendering`).
    Adopting,
    /// It is this host's. Exits: over; it fails (`Surrendering`).
    Waking,
    /// The copy is being destroyed. Exits: over.
    Dropping,
    /// The copy is lost. Exits: the holder has been told (over).
    Surrendering,
}

impl Acceptance {
    /// Whether it waits for a session with this host.
    pub(super) fn reaches(&self, with: &PublicKey) -> bool {
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

fn hint(of: SocketAddr) -> Option<SocketAddr> {
    (of.port() != 0 && !of.ip().is_unspecified() && !of.ip().is_multicast()).then_some(of)
}

impl Moves {
    fn answer(&mut self, at: At<'_>, name: MoveName, standing: AcceptorStanding, refusal: Option<Refusal>) {
        let donor = PublicKey::from(name.donor);
        self.say(at, donor, Record::Answer { number: name.number, standing, refusal });
    }

    /// A donor asks whether this host takes a socket.
    pub(super) fn handle_ask(&mut self, at: At<'_>, name: MoveName, donor: PublicKey, request: Request) {
        if let Some(of) = self.acceptances.get(&name) {
            if !matches!(of.stage, Stage::Admitting | Stage::Reaching) {
                self.answer(at, name, AcceptorStanding::Ready, None);
            }
            return;
        }
        self.supersede(at, &donor, &request.tuple);
        let reserved = u64::from(request.size).max(ROOM_LEAST);
        let has_room = request.size as usize <= MAX_LEN
            && self.acceptances.len() < self.config.most
            && self.reserved + reserved <= self.config.bytes;
        // A flow that this host has with another, or passes on for one, is not a donor's to give.
        let whose = at.around.partner(&request.tuple);
        let flow = FlowName::requested(&request);
        let is_anothers = whose.is_some_and(|whose| whose != donor && *whose.as_bytes() != request.holder);
        // No more is an endpoint that it has on lease from another.
        let lessor = self.lessor_of(request.tuple.local).filter(|_| request.tuple.is_unconnected());
        let is_anothers = is_anothers || lessor.is_some_and(|lessor| *lessor.as_bytes() != request.holder);
        let refusal = if !self.config.enabled || !self.expects(&donor) {
            Some(Refusal::NotAllowed)
        } else if is_anothers {
            Some(Refusal::Taken)
        } else if !has_room {
            Some(Refusal::NoRoom)
        } else if self.moving.contains(&request.tuple) {
            Some(Refusal::Busy)
        } else if self.is_called_so(at, &flow, &request.tuple) {
            Some(Refusal::Taken)
        } else if !self.admits(at.now, &donor, name) {
            Some(Refusal::NotAllowed)
        } else {
            None
        };
        if refusal.is_some() {
            self.answer(at, name, AcceptorStanding::Refused, refusal);
            return;
        }
        let holder = PublicKey::from(request.holder);
        let acceptance = Acceptance {
            donor,
            holder,
            request: request.clone(),
            stage: Stage::Admitting,
            snapshot: Vec::new(),
            total: 0,
            reserved,
            ticket: None,
            wire_port: 0,
            terms: None,
            why: None,
            until: at.now + SENT_WITHIN,
        };
        self.reserved += reserved;
        self.moving.insert(acceptance.request.tuple);
        self.taking.insert(flow);
        self.limit(acceptance.until, Limit::Acceptance(name));
        self.acceptances.insert(name, acceptance);
        self.op(MoveOp::Admit { name, request }, Asked::Acceptance(name));
    }

    /// Whether the holder and this host have another flow, or are about to have one, that they call so (P-132).
    fn is_called_so(&self, at: At<'_>, flow: &FlowName, tuple: &FlowTuple) -> bool {
        let known = at.around.flow(flow).is_some_and(|known| known != *tuple);
        known || self.taking.contains(flow)
    }

    /// A donor asks anew about a socket: a daemon of its before this one, which has died, may have asked before (P-72).
    fn supersede(&mut self, at: At<'_>, donor: &PublicKey, tuple: &FlowTuple) {
        let is_it = |of: &Acceptance| of.donor == *donor && of.request.tuple == *tuple;
        // Nearly all are asked about once: who is to take thousands does not look through them for each.
        if !self.moving.contains(tuple) {
            return;
        }
        if let Some((name, _)) = self.acceptances.iter().find(|(_, of)| is_it(of)) {
            self.handle_cancel(at, *name);
        }
    }

    /// A daemon before this one left a move in the middle.
    pub(super) fn restore_acceptance(&mut self, at: At<'_>, saved: &SavedAcceptance, found: Found) {
        let SavedAcceptance { request, ticket, .. } = saved;
        let name = ticket.name;
        if found == Found::Awake {
            // It was woken, so it was committed.
            self.take_woken(at, ticket);
            if is_told_of(request) {
                self.answer(at, name, AcceptorStanding::GoesOn, None);
            }
            self.effect("forgetting a move", MoveOp::ForgetAcceptance { name });
            self.event(MoveEvent::Taken { name });
            return;
        }
        let holder = PublicKey::from(request.holder);
        self.hints.extend(hint(request.holder_at).map(|hint| (holder, hint)));
        let acceptance = Acceptance {
            donor: PublicKey::from(name.donor),
            holder,
            request: request.clone(),
            stage: match found {
                Found::Frozen => Stage::Presented,
                Found::Waiting => Stage::Saving,
                Found::Awake | Found::Gone => Stage::Surrendering,
            },
            snapshot: Vec::new(),
            total: 0,
            reserved: 0,
            ticket: Some(*ticket),
            wire_port: saved.wire_port,
            terms: None,
            why: None,
            until: at.now + DECIDED_WITHIN,
        };
        self.limit(acceptance.until, Limit::Acceptance(name));
        self.wait(at, &[], &acceptance.waits_for());
        self.moving.insert(acceptance.request.tuple);
        self.taking.insert(FlowName::requested(&acceptance.request));
        self.acceptances.insert(name, acceptance);
        if found == Found::Waiting {
            self.op(MoveOp::SaveAcceptance(saved.clone()), Asked::Acceptance(name));
        }
        self.say_acceptance(at, name, None);
    }

    /// Says to the holder what it is to answer.
    pub(super) fn say_acceptance(&mut self, at: At<'_>, name: MoveName, to: Option<PublicKey>) {
        let Some(of) = self.acceptances.get(&name) else { return };
        let (holder, ticket, wire_port) = (of.holder, of.ticket, of.wire_port);
        let Some(ticket) = ticket.filter(|_| to.is_none_or(|to| to == holder)) else { return };
        match of.stage {
            Stage::Presented => self.say(at, holder, Record::Present { ticket, wire_port }),
            Stage::Surrendering => self.say(at, holder, Record::Surrender(ticket)),
            _ => {}
        }
    }

    fn turn_acceptance(&mut self, at: At<'_>, name: MoveName, stage: Stage) {
        let sent_within = SENT_WITHIN + Self::takes(self.reserved);
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
            let old = std::mem::replace(&mut of.until, at.now + within);
            let until = of.until;
            self.limits.remove(&(old, Limit::Acceptance(name)));
            self.limit(until, Limit::Acceptance(name));
        }
        self.wait(at, &before, &after);
        let asked = Asked::Acceptance(name);
        match stage {
            Stage::Admitting | Stage::Reaching => {}
            Stage::Ready => self.answer(at, name, AcceptorStanding::Ready, None),
            Stage::Restoring => {
                let Some(of) = self.acceptances.get_mut(&name) else { return };
                let snapshot = std::mem::take(&mut of.snapshot);
                self.op(MoveOp::Restore { name, request, snapshot }, asked);
            }
            Stage::Saving => {
                let wire_port = at.around.wire_port(&holder, &request.tuple);
                let Some(of) = self.acceptances.get_mut(&name) else { return };
                let Some(wire_port) = wire_port else {
                    of.why = Some(Refusal::NoRoom);
                    self.turn_acceptance(at, name, Stage::Dropping);
                    return;
                };
                let Some(ticket) = of.ticket else { return };
                of.wire_port = wire_port;
                // It is to be found again, wherever the donor took it to be.
                let holder_at = at.around.whereabouts(&holder).unwrap_or(request.holder_at);
                let request = Request { holder_at, ..request };
                self.op(MoveOp::SaveAcceptance(SavedAcceptance { request, ticket, wire_port }), asked);
            }
            Stage::Presented | Stage::Surrendering => self.say_acceptance(at, name, None),
            Stage::Adopting => self.adopt(name),
            Stage::Waking => {
                self.op(MoveOp::Thaw { name }, asked);
            }
            Stage::Dropping => {
                self.op(MoveOp::Destroy { name, forward: None }, asked);
            }
        }
    }

    /// There is a session with the holder: its path is known before anything stops.
    pub(super) fn handle_holder_reached(&mut self, at: At<'_>, name: MoveName) {
        self.turn_acceptance(at, name, Stage::Ready);
    }

    /// A move is over here.
    fn end_acceptance(&mut self, at: At<'_>, name: MoveName, event: MoveEvent) {
        let Some(of) = self.acceptances.remove(&name) else { return };
        self.wait(at, &of.waits_for(), &[]);
        self.reserved -= of.reserved;
        self.moving.remove(&of.request.tuple);
        self.taking.remove(&FlowName::requested(&of.request));
        self.limits.remove(&(of.until, Limit::Acceptance(name)));
        // Also where it was never saved: what was found out on admittance is released with it.
        self.effect("forgetting a move", MoveOp::ForgetAcceptance { name });
        self.settle_grant(name, matches!(event, MoveEvent::Taken { .. } | MoveEvent::Lost { .. }));
        match event {
            MoveEvent::Taken { .. } if is_told_of(&of.request) => {
                self.answer(at, name, AcceptorStanding::GoesOn, None);
            }
            MoveEvent::Lost { .. } if is_told_of(&of.request) => {
                self.answer(at, name, AcceptorStanding::Lost, Some(of.why.unwrap_or(Refusal::NotWoken)));
            }
            _ => {}
        }
        self.event(event);
    }

    /// There is no copy here, and no ticket out.
    fn refuse(&mut self, at: At<'_>, name: MoveName, why: Refusal) {
        self.answer(at, name, AcceptorStanding::Refused, Some(why));
        self.end_acceptance(at, name, MoveEvent::NotTaken { name, why });
    }

    /// A part of the snapshot.
    pub(super) fn handle_part(&mut self, at: At<'_>, name: MoveName, total: u32, offset: u32, bytes: &[u8]) {
        let Some(of) = self.acceptances.get_mut(&name) else {
            if offset == 0 {
                self.answer(at, name, AcceptorStanding::Unknown, None);
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
            if total as usize > MAX_LEN || self.reserved + more > self.config.bytes {
                self.refuse(at, name, Refusal::NoRoom);
                return;
            }
            of.reserved += more;
            self.reserved += more;
        }
        if total != of.total || offset as usize != of.snapshot.len() {
            self.refuse(at, name, Refusal::BadSnapshot);
            return;
        }
        of.snapshot.extend_from_slice(bytes);
    }

    /// The ticket, behind the snapshot.
    pub(super) fn handle_ticket(&mut self, at: At<'_>, from: PublicKey, ticket: Ticket) {
        let name = ticket.name;
        let me = self.me();
        let Some(of) = self.acceptances.get_mut(&name).filter(|of| of.donor == from) else {
            self.answer(at, name, AcceptorStanding::Unknown, None);
            return;
        };
        if of.stage != Stage::Ready {
            return;
        }
        let fits = ticket.acceptor == *me.as_bytes() && ticket.flow == of.request.flow;
        if !fits || of.total == 0 || of.snapshot.len() != of.total as usize {
            self.refuse(at, name, Refusal::BadSnapshot);
            return;
        }
        of.ticket = Some(ticket);
        self.turn_acceptance(at, name, Stage::Restoring);
    }

    /// The donor does not want it any more. What was presented is the holder's to decide.
    pub(super) fn handle_cancel(&mut self, at: At<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get_mut(&name) else { return };
        match of.stage {
            Stage::Admitting | Stage::Reaching | Stage::Ready => {
                self.end_acceptance(at, name, MoveEvent::NotTaken { name, why: Refusal::Cancelled });
            }
            Stage::Restoring | Stage::Saving => of.why = Some(Refusal::Cancelled),
            Stage::Presented | Stage::Adopting | Stage::Waking | Stage::Dropping | Stage::Surrendering => {}
        }
    }

    /// The donor may hand nothing over any more. What was presented is the holder's to decide.
    pub(super) fn forbid_acceptance(&mut self, at: At<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get_mut(&name) else { return };
        match of.stage {
            Stage::Admitting | Stage::Reaching | Stage::Ready => self.refuse(at, name, Refusal::NotAllowed),
            Stage::Restoring | Stage::Saving => of.why = Some(Refusal::NotAllowed),
            Stage::Presented | Stage::Adopting | Stage::Waking | Stage::Dropping | Stage::Surrendering => {}
        }
    }

    pub(super) fn handle_acceptance_done(&mut self, at: At<'_>, name: MoveName, result: Result<OpDone, OpFailed>) {
        let Some(of) = self.acceptances.get_mut(&name) else { return };
        let (stage, holder) = (of.stage, of.holder);
        let failed = result.as_ref().err().map(OpFailed::told);
        of.why = of.why.or(failed);
        let why = of.why;
        if let Err(failed) = &result {
            self.event(MoveEvent::OpFailed { what: "taking a socket", error: failed.sentence.clone() });
        }
        match (stage, why) {
            (Stage::Admitting, Some(why)) => self.refuse(at, name, why),
            (Stage::Admitting, None) => {
                if holder == self.me() || at.around.has_session(&holder) {
                    self.turn_acceptance(at, name, Stage::Ready);
                } else {
                    let hinted = self.acceptances.get(&name).and_then(|of| hint(of.request.holder_at));
                    self.hints.extend(hinted.map(|hint| (holder, hint)));
                    self.turn_acceptance(at, name, Stage::Reaching);
                }
            }
            (Stage::Restoring, _) if failed.is_some() => self.refuse(at, name, why.unwrap_or(Refusal::NotRestored)),
            (Stage::Saving, Some(_)) => {
                self.surrender_along(at, name);
                self.turn_acceptance(at, name, Stage::Dropping);
            }
            (Stage::Restoring, Some(_)) => self.turn_acceptance(at, name, Stage::Dropping),
            (Stage::Restoring, None) => self.turn_acceptance(at, name, Stage::Saving),
            (Stage::Saving, None) => self.turn_acceptance(at, name, Stage::Presented),
            (Stage::Waking, _) if failed.is_some() => {
                // It was committed: whoever gave it need not wait for what the holder makes of it.
                self.answer(at, name, AcceptorStanding::Lost, why);
                self.turn_acceptance(at, name, Stage::Surrendering);
            }
            (Stage::Waking, _) => self.end_acceptance(at, name, MoveEvent::Taken { name }),
            (Stage::Dropping, why) => self.refuse(at, name, why.unwrap_or(Refusal::Cancelled)),
            (Stage::Reaching | Stage::Ready | Stage::Presented | Stage::Adopting | Stage::Surrendering, _) => {}
        }
    }

    /// What belongs to a process may have been committed along with that (P-130), without having been presented: that the copy goes the holder is to know.
    fn surrender_along(&mut self, at: At<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get(&name) else { return };
        let belongs = of.request.receiver.first() == Some(&OF_A_PROCESS);
        if let Some(ticket) = of.ticket.filter(|_| belongs) {
            self.say(at, of.holder, Record::Surrender(ticket));
        }
    }

    /// The holder says whose the socket is.
    pub(super) fn handle_verdict(
        &mut self,
        at: At<'_>,
        name: MoveName,
        from: PublicKey,
        outcome: Result<Terms, Refusal>,
    ) {
        let Some(of) = self.acceptances.get_mut(&name).filter(|of| of.holder == from) else { return };
        match (of.stage, outcome) {
            (Stage::Presented, Ok(terms)) => {
                of.terms = Some(terms);
                self.turn_acceptance(at, name, Stage::Adopting);
            }
            (Stage::Presented, Err(why)) => {
                of.why = Some(why);
                self.turn_acceptance(at, name, Stage::Dropping);
            }
            // What was presented before is accepted; that the copy is lost is still to be heard.
            (Stage::Surrendering, Ok(_)) => {}
            (Stage::Surrendering, Err(_)) => self.end_acceptance(at, name, MoveEvent::Lost { name }),
            _ => {}
        }
    }

    /// The move that waits for this lease: that of its socket's endpoint.
    pub(super) fn coming_with(&self, lease: &FlowName) -> Option<MoveName> {
        if let Some(claimed) = self.claimed_endpoint(lease) {
            return Some(claimed);
        }
        let waits = |of: &Acceptance| {
            let awaits = of.stage == Stage::Adopting && of.request.tuple.is_unconnected();
            awaits && FlowName::requested(&of.request) == *lease
        };
        self.acceptances.iter().find(|(_, of)| waits(of)).map(|(name, _)| *name)
    }

    /// Has the node know the flow as one with the holder.
    pub(super) fn adopt(&mut self, name: MoveName) {
        let Some(of) = self.acceptances.get(&name).filter(|of| of.stage == Stage::Adopting) else { return };
        let (tuple, flow, wire_port) = (of.request.tuple, FlowName::requested(&of.request), of.wire_port);
        let change = of.terms.map(|terms| FlowChange::Adopt { name, tuple, flow, wire_port, terms });
        self.changes.extend(change);
    }

    /// The node knows the flow as one with the holder, or could not be told.
    pub(super) fn handle_adopted(&mut self, at: At<'_>, name: MoveName, result: Result<(), String>) {
        if self.handle_claim_adopted(at, name, &result)
            || self.acceptances.get(&name).is_none_or(|of| of.stage != Stage::Adopting)
        {
            return;
        }
        match result {
            Ok(()) => self.turn_acceptance(at, name, Stage::Waking),
            Err(error) => {
                self.event(MoveEvent::OpFailed { what: "leading a flow that was moved here", error });
                self.limit(at.now + AGAIN, Limit::Adopt(name));
            }
        }
    }

    pub(super) fn handle_acceptance_limit(&mut self, at: At<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get_mut(&name).filter(|of| of.until <= at.now) else { return };
        match of.stage {
            Stage::Reaching => self.refuse(at, name, Refusal::HolderUnreached),
            Stage::Admitting | Stage::Ready => self.refuse(at, name, Refusal::Expired),
            Stage::Presented => {
                of.why = Some(Refusal::HolderUnreached);
                self.turn_acceptance(at, name, Stage::Dropping);
            }
            Stage::Surrendering => self.end_acceptance(at, name, MoveEvent::Lost { name }),
            Stage::Restoring | Stage::Saving | Stage::Adopting | Stage::Waking | Stage::Dropping => {}
        }
    }

    /// The copy of a socket is lost, as when whoever was to receive it is gone.
    pub(super) fn handle_acceptor_gone(&mut self, at: At<'_>, name: MoveName) {
        let Some(of) = self.acceptances.get_mut(&name) else { return };
        match of.stage {
            Stage::Admitting | Stage::Reaching | Stage::Ready => self.refuse(at, name, Refusal::NobodyReceives),
            Stage::Restoring | Stage::Saving => of.why = Some(Refusal::NobodyReceives),
            Stage::Presented | Stage::Adopting => self.turn_acceptance(at, name, Stage::Surrendering),
            // It fails, and is surrendered then.
            Stage::Waking | Stage::Dropping | Stage::Surrendering => {}
        }
    }
}
