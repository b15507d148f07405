//! A move is announced, its ticket presented, and it is decided.

use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{Decision, MoveName, Record, Refusal, Ticket};

use super::{Announcement, Held, Holder, Keeping, Life, Limit, Owner, SETTLED_WITHIN, Unsettled};
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{LeaseName, MoveOp, SavedHeld};
use crate::base::output::{MoveAsked, OpDone, OpFailed};
use crate::base::signal::Signal;
use crate::binding::transfer::Below;

/// How long a ticket lasts at the least and at the most, in seconds.
const LIFETIME_LEAST: u32 = 5;
const LIFETIME_MOST: u32 = 600;
/// Moves of one flow whose donors have not said that they know: of one donor, and of all. They are saved with each
/// commit.
const UNSETTLED_EACH: usize = 2;
const UNSETTLED_MOST: usize = 16;

/// A connection of an endpoint that is lent, named by the host that has it (P-86), or the endpoint itself, whose socket
/// is to move (P-115).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    flow: FlowName,
    tuple: FlowTuple,
    wire_port: u16,
    hidden: bool,
}

impl Claim {
    /// `tuple`: as its owner has it. `wire_port`: the owner's in rewritten packets. `hidden`: the far end is not told
    /// where it is.
    pub(crate) const fn new(flow: FlowName, tuple: FlowTuple, wire_port: u16, hidden: bool) -> Self {
        Self { flow, tuple, wire_port, hidden }
    }

    /// A claim is a move of which the tenant is both donor and acceptor: what follows is the same.
    fn name(&self) -> MoveName {
        let donor = self.flow.peer();
        MoveName { donor: *donor.as_bytes(), number: self.flow.value() }
    }
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claimed {
    /// It is kept already: its tenant has not heard it.
    Before,
    /// It is being kept.
    Keeping,
    Refused(Refusal),
    /// It is the tenant's. `before`: by another name until now, which ends, and a lease with it.
    Granted {
        before: Option<FlowName>,
    },
}

/// An endpoint whose socket without another end this host has lent out, as a part of a lease or as one of its own.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// What it is called with its owner.
    flow: FlowName,
    /// A move of it is announced.
    moving: bool,
}

impl Holder {
    /// A donor announces a move.
    pub(crate) fn handle_announce(
        &mut self,
        below: &mut Below<'_>,
        number: u64,
        flow: FlowName,
        lifetime: u32,
        acceptor: PublicKey,
    ) {
        let donor = flow.peer();
        let name = MoveName { donor: *donor.as_bytes(), number };
        let lifetime = lifetime.clamp(LIFETIME_LEAST, LIFETIME_MOST);
        let announced = |sequence, refusal| Record::Announced { number: name.number, sequence, lifetime, refusal };
        if let Some(refusal) = self.announcement_refusal(below, flow, name, acceptor) {
            below.send(donor, announced(0, Some(refusal)));
            return;
        }
        let until = below.now() + Duration::from_secs(u64::from(lifetime));
        self.hold(flow);
        let Some(held) = self.held.get_mut(&flow) else { return };
        match &held.announced {
            Some(before) if before.name == name && before.acceptor == acceptor => {
                below.send(donor, announced(held.next, None));
                return;
            }
            Some(before) if before.keeping.is_some() => {
                below.send(donor, announced(0, Some(Refusal::Busy)));
                return;
            }
            // Tickets for it are not good any more.
            Some(_) => held.next = held.next.saturating_add(1),
            None => {}
        }
        held.announced = Some(Announcement { name, acceptor, lifetime, until, after: None, keeping: None });
        let sequence = held.next;
        self.held.leave_behind(&flow);
        self.limits.set(Limit::Announcement(flow), until);
        below.send(donor, announced(sequence, None));
    }

    fn announcement_refusal(
        &self,
        below: &Below<'_>,
        flow: FlowName,
        name: MoveName,
        acceptor: PublicKey,
    ) -> Option<Refusal> {
        let lent = self.held.get(&flow).is_some_and(|held| held.lent.is_some());
        if acceptor == flow.peer() {
            Some(Refusal::NotAllowed)
        } else if !self.is_owned(below, &flow) {
            Some(Refusal::NoSuchFlow)
        } else if acceptor == below.me() && !lent {
            Some(Refusal::FarEnd)
        } else if self.is_taken(below, &flow.with(acceptor), Some(&flow)) {
            Some(Refusal::Taken)
        } else if !self.has_room_for(below, &flow) {
            Some(Refusal::NoRoom)
        } else if !self.may_move_again(below, &flow, name) {
            Some(Refusal::Busy)
        } else {
            None
        }
    }

    /// Whether a flow may be moved again: not if who has had it has not heard yet that it has it no more, nor all the
    /// time. Each commit is saved, told and led elsewhere, and one connection and two keys of one's own are enough for
    /// the next.
    fn may_move_again(&self, below: &Below<'_>, flow: &FlowName, name: MoveName) -> bool {
        let is_claim = |held: &Held| held.announced.as_ref().is_some_and(|announced| announced.name == name);
        let held = self.held.get(flow).filter(|held| held.last.is_some() && !is_claim(held));
        let Some(held) = held else { return true };
        let donor = *flow.peer().as_bytes();
        let of_donor = MoveName { donor, number: 0 }..=MoveName { donor, number: u64::MAX };
        held.unsettled.len() < UNSETTLED_MOST
            && held.unsettled.range(of_donor).count() < UNSETTLED_EACH
            && held.again.holds(below.now(), 1.0)
            && self.moved_again.holds(below.now(), 1.0)
    }

    /// A donor says to which of its moves another belongs that it has announced (P-130).
    pub(crate) fn handle_belongs(&mut self, name: MoveName, flow: FlowName, first: u64) {
        let announced = self.held.get_mut(&flow).and_then(|held| held.announced.as_mut());
        let belongs = |of: &&mut Announcement| of.name == name && of.keeping.is_none() && first != name.number;
        if let Some(announced) = announced.filter(belongs) {
            announced.after = Some(first);
            self.held.belong(flow, MoveName { number: first, ..name });
        }
    }

    /// Whether a move is that which was announced of a flow, or committed last: no key is computed on account of
    /// others.
    fn concerns(&self, flow: FlowName, name: MoveName) -> bool {
        let announced = |held: &Held| held.announced.as_ref().is_some_and(|announced| announced.name == name);
        self.held.get(&flow).is_some_and(|held| held.last == Some(name) || announced(held))
    }

    pub(super) fn is_genuine(&mut self, flow: FlowName, ticket: &Ticket) -> bool {
        self.concerns(flow, ticket.name) && self.tickets.is_genuine(ticket)
    }

    /// An acceptor presents its ticket (P-74).
    pub(crate) fn handle_presented(&mut self, below: &mut Below<'_>, from: PublicKey, ticket: Ticket, wire_port: u16) {
        let name = ticket.name;
        let (flow, committed) = self.presented(from, &ticket);
        let genuine = self.is_genuine(flow, &ticket);
        let announced = self.held.get_mut(&flow).and_then(|held| held.announced.as_mut());
        if let Some(announced) = announced.filter(|of| of.name == name && of.acceptor == from)
            && let Some(keeping) = &mut announced.keeping
        {
            if genuine && keeping.along {
                (keeping.along, keeping.wire_port) = (false, wire_port);
            }
            return;
        }
        if committed {
            // It did not hear that it is committed.
            self.present_again(below, flow, wire_port, genuine);
            return;
        }
        if let Some(refusal) = self.ticket_refusal(below, flow, from, &ticket, genuine) {
            below.send(from, Record::Verdict { name, outcome: Err(refusal) });
            return;
        }
        let along = self.bring_along(below, name, from);
        // The first comes first: where a write is cut short nothing is found that belongs to it without it.
        let first = self.commit_to_save(below, flow, Keeping { wire_port, ..Keeping::default() });
        let along = along.into_iter().filter_map(|(flow, wire_port)| {
            self.commit_to_save(below, flow, Keeping { wire_port, along: true, ..Keeping::default() })
        });
        let all: Vec<SavedHeld> = first.into_iter().chain(along).collect();
        let asked = MoveAsked::Keep(all.iter().map(SavedHeld::formerly).collect());
        below.ask(MoveOp::SaveHeld(all), asked);
    }

    /// An acceptor presents a ticket that was used.
    fn present_again(&mut self, below: &mut Below<'_>, flow: FlowName, wire_port: u16, genuine: bool) {
        let Some(held) = self.held.get(&flow) else { return };
        let (owner, other_port) = (held.owner, held.wire_port != wire_port);
        if genuine && other_port {
            self.record_wire_port(below, flow, wire_port);
        }
        if owner != Owner::Waiting {
            self.answer_again(below, flow);
        }
        if owner == Owner::Along {
            self.report_rebound(below, flow);
        }
    }

    /// Why a ticket is not good, or not any more.
    fn ticket_refusal(
        &self,
        below: &Below<'_>,
        flow: FlowName,
        from: PublicKey,
        ticket: &Ticket,
        genuine: bool,
    ) -> Option<Refusal> {
        let Some(held) = self.held.get(&flow) else { return Some(Refusal::NotAnnounced) };
        let Some(announced) = held.announced.as_ref().filter(|announced| announced.name == ticket.name) else {
            return Some(Refusal::NotAnnounced);
        };
        if held.is_over() {
            Some(Refusal::NoSuchFlow)
        } else if announced.acceptor != from || ticket.acceptor != *from.as_bytes() {
            Some(Refusal::NotYours)
        } else if !genuine {
            Some(Refusal::Forged)
        } else if ticket.sequence != held.next || ticket.lifetime != announced.lifetime {
            Some(Refusal::OtherSequence)
        } else if announced.until <= below.now() {
            Some(Refusal::Expired)
        } else if self.is_taken(below, &flow.with(from), Some(&flow)) {
            Some(Refusal::Taken)
        } else {
            None
        }
    }

    /// What the flow of a ticket is called now, and whether the ticket was used: it is with the acceptor then, and else
    /// with the donor.
    pub(super) fn presented(&self, acceptor: PublicKey, ticket: &Ticket) -> (FlowName, bool) {
        let given = FlowName::given(ticket);
        let taken = given.with(acceptor);
        let committed = self.held.get(&taken).is_some_and(|held| held.last == Some(ticket.name));
        (if committed { taken } else { given }, committed)
    }

    /// What is to be kept of a flow whose move is to be committed: from now on it is being kept.
    fn commit_to_save(&mut self, below: &Below<'_>, flow: FlowName, keeping: Keeping) -> Option<SavedHeld> {
        let held = self.held.get_mut(&flow)?;
        let announced = held.announced.as_mut()?;
        if held.last.is_some() {
            held.again.take(below.now());
            self.moved_again.take(below.now());
        }
        announced.keeping = Some(keeping);
        let (name, acceptor) = (announced.name, announced.acceptor);
        let donor = flow.peer();
        let before: Vec<_> = held.unsettled.iter().map(|(name, of)| (*name, of.donor_at)).collect();
        let donor_at = (donor != below.me()).then(|| below.around().whereabouts(&donor)).flatten();
        Some(SavedHeld {
            flow: flow.with(acceptor),
            far: held.lent,
            wire_port: keeping.wire_port,
            sequence: held.next,
            last: name,
            unsettled: before.into_iter().chain([(name, donor_at)]).collect(),
            hidden: held.hidden,
            ending: false,
        })
    }

    /// An owner says by which port packets come to it, where that was not known when it became the owner.
    fn record_wire_port(&mut self, below: &mut Below<'_>, flow: FlowName, wire_port: u16) {
        if let Some(held) = self.held.get_mut(&flow) {
            held.wire_port = wire_port;
        }
        self.keep(below, flow);
    }

    /// A socket that came here was woken by a daemon before this one. Where this host is the holder too, it presents
    /// its ticket no more.
    pub(crate) fn take_woken(&mut self, below: &mut Below<'_>, ticket: &Ticket) {
        let (flow, committed) = self.presented(below.me(), ticket);
        let held = self.held.get_mut(&flow).filter(|held| committed && held.owner == Owner::Along);
        if let Some(held) = held {
            held.owner = Owner::Informed;
            self.report_rebound(below, flow);
        }
    }

    fn report_rebound(&self, below: &mut Below<'_>, flow: FlowName) {
        if let Some(held) = self.held.get(&flow) {
            let far = held.lent.or_else(|| below.around().flow(&flow.with(held.led)));
            below.event(MoveEvent::Rebound { flow, far });
        }
    }

    /// The flows whose announced moves another brings along (P-130), with their owner's port in rewritten packets.
    fn bring_along(&self, below: &Below<'_>, first: MoveName, acceptor: PublicKey) -> Vec<(FlowName, u16)> {
        let belongs = |of: &Announcement| {
            of.after == Some(first.number) && of.acceptor == acceptor && of.keeping.is_none() && below.now() < of.until
        };
        let mut flows = Vec::new();
        for flow in self.held.along(&first) {
            let Some(held) = self.held.get(&flow).filter(|held| !held.is_over()) else { continue };
            if !held.announced.as_ref().is_some_and(belongs) || self.is_taken(below, &flow.with(acceptor), Some(&flow))
            {
                continue;
            }
            // It says which port is its own when it presents its ticket. Until then that of the socket is as good a
            // guess as any.
            let far = held.lent.or_else(|| below.around().flow(&flow));
            flows.push((flow, far.map_or(0, |far| far.remote.port())));
        }
        flows
    }

    /// The commit of a flow that was called so till then is kept: it is decided. Or it could not be: gives the number
    /// of a move of this host's own that comes to nothing by that.
    pub(crate) fn handle_kept(
        &mut self,
        below: &mut Below<'_>,
        flow: FlowName,
        result: Result<OpDone, OpFailed>,
    ) -> Option<u64> {
        let (me, donor) = (below.me(), flow.peer());
        let held = self.held.get_mut(&flow)?;
        let announced = held.announced.take_if(|announced| announced.keeping.is_some())?;
        let Announcement { name, acceptor, after: first, keeping, .. } = announced;
        let Keeping { wire_port, along, recalled, surrendered } = keeping?;
        let here = along && acceptor == me;
        let sequence = held.next;
        held.next = sequence.saturating_add(1);
        if let Err(failed) = result {
            below.event(MoveEvent::OpFailed { what: "keeping whose a socket is", error: failed.sentence });
            self.handle_not_kept(below, flow, name, acceptor, recalled);
            return (donor == me && donor != acceptor).then_some(name.number);
        }
        let before = held.waits_for();
        held.life = if held.is_over() { Life::Over } else { Life::Lasting };
        held.restored = false;
        held.wire_port = wire_port;
        held.sequence = sequence;
        held.last = Some(name);
        // What this host takes itself it has when it presents its ticket, at once or once it is started anew: then it
        // is held no more.
        held.owner = match along {
            true if here => Owner::Along,
            true => Owner::Informed,
            false => Owner::Waiting,
        };
        if donor == acceptor {
            // A claim: it has no donor that would have to know.
            self.lead(below, flow);
            return None;
        }
        let now = below.now();
        let until = now + SETTLED_WITHIN;
        let donor_at = below.around().whereabouts(&donor);
        let awaited = below.permits().expects(now, &donor);
        held.unsettled.insert(name, Unsettled { until, donor_at, awaited });
        let after = held.waits_for();
        let far = held.lent.or_else(|| below.around().flow(&flow.with(held.led)));
        let flow = self.pass_on(flow, acceptor);
        below.wait(&before, &after);
        below.send(donor, Record::Decided { number: name.number, decision: Decision::Committed });
        if !here {
            below.event(MoveEvent::Rebound { flow, far });
        }
        if first.is_some() && !along {
            // Another port may have been kept.
            self.record_wire_port(below, flow, wire_port);
        }
        if surrendered {
            self.lose(below, flow, name);
        } else if !here {
            self.lead(below, flow);
        }
        None
    }

    /// A commit could not be kept: the socket is its donor's still.
    fn handle_not_kept(
        &mut self,
        below: &mut Below<'_>,
        flow: FlowName,
        name: MoveName,
        acceptor: PublicKey,
        recalled: Option<bool>,
    ) {
        let donor = flow.peer();
        below.send(acceptor, Record::Verdict { name, outcome: Err(Refusal::NotKept) });
        if donor == acceptor {
            self.end_flow(below, flow);
            return;
        }
        below.send(donor, Record::Decided { number: name.number, decision: Decision::Revoked });
        if recalled == Some(true) {
            self.close_far_end(below, flow);
        }
        self.tidy(below, flow);
    }

    pub(super) fn handle_announcement_limit(&mut self, below: &mut Below<'_>, flow: FlowName) {
        let Some(held) = self.held.get_mut(&flow) else { return };
        let over = |announced: &Announcement| announced.until <= below.now() && announced.keeping.is_none();
        if held.announced.as_ref().is_some_and(over) {
            held.revoke();
            self.held.leave_behind(&flow);
            self.tidy(below, flow);
        }
    }

    // ---- claims

    /// Who has a socket without another end of this host's.
    fn endpoint_of(&self, end: &FlowTuple) -> Option<Part> {
        let is_it = |held: &Held| !held.is_over() && (held.last.is_some() || held.announced.is_some());
        let (flow, held) = self.held.with_far(&end.mirrored()).find(|(_, held)| is_it(held))?;
        Some(Part { flow: *flow, moving: held.announced.is_some() })
    }

    /// The name by which a host has claimed a connection that is with it still.
    fn claimed_before(&self, far: &FlowTuple, tenant: &PublicKey) -> Option<FlowName> {
        let by = |held: &Held| held.last.is_some_and(|last| last.donor == *tenant.as_bytes());
        let is_it = |(flow, held): &(&FlowName, &Held)| {
            flow.peer() == *tenant && by(held) && !held.is_over() && held.announced.is_none()
        };
        self.held.with_far(far).find(is_it).map(|(flow, _)| *flow)
    }

    /// A tenant names a connection of an endpoint that is lent to it, if it is `leased`, or the endpoint itself.
    pub(crate) fn handle_claim(&mut self, below: &mut Below<'_>, claim: &Claim, leased: bool) {
        match self.judge_claim(below, claim, leased) {
            Claimed::Before => self.answer_again(below, claim.flow),
            Claimed::Keeping => {}
            Claimed::Refused(why) => {
                below.send(claim.flow.peer(), Record::Verdict { name: claim.name(), outcome: Err(why) });
            }
            Claimed::Granted { before } => {
                if let Some(before) = before {
                    self.end_flow(below, before);
                    // That of an endpoint is a lease.
                    below.signal(Signal::LeaseOver(LeaseName { tenant: before.peer(), number: before.value() }));
                }
                self.grant_claim(below, claim);
            }
        }
    }

    /// What is to become of a claim. `leased`: its endpoint is lent to the tenant.
    fn judge_claim(&self, below: &Below<'_>, claim: &Claim, leased: bool) -> Claimed {
        let Claim { flow, tuple, .. } = *claim;
        let (tenant, name, far) = (flow.peer(), claim.name(), tuple.mirrored());
        match self.held.get(&flow) {
            Some(held) if held.last == Some(name) => return Claimed::Before,
            Some(held) if held.announced.as_ref().is_some_and(|of| of.name == name) => return Claimed::Keeping,
            // It is another connection's.
            Some(_) => return Claimed::Refused(Refusal::Taken),
            None => {}
        }
        let part = self.endpoint_of(&FlowTuple::unconnected(tuple.transport, tuple.local));
        let known = below.around().is_known(&far) || part.is_some() && tuple.is_unconnected();
        // Its daemon may have died before it knew of a flow that it has claimed: it claims it by another name.
        let before = match part {
            Some(part) if tuple.is_unconnected() => (part.flow.peer() == tenant && !part.moving).then_some(part.flow),
            _ if known => self.claimed_before(&far, &tenant),
            _ => None,
        };
        // What a part of the lease has gone elsewhere with is no more the tenant's, except what it has claimed of it
        // already: that is its own whether or not the lease is over meanwhile.
        let claimed = before.is_some() && !tuple.is_unconnected();
        let leased = claimed || leased && (before.is_some() || part.is_none_or(|part| part.flow.peer() == tenant));
        if self.is_taken(below, &flow, None) {
            Claimed::Refused(Refusal::Taken)
        } else if !leased {
            Claimed::Refused(Refusal::NotLent)
        } else if known && before.is_none() {
            // One of the same names has moved elsewhere.
            Claimed::Refused(Refusal::Taken)
        } else if !self.has_room_for(below, &flow) {
            Claimed::Refused(Refusal::NoRoom)
        } else {
            Claimed::Granted { before }
        }
    }

    /// A claim is granted: nothing is waited for, and being kept it is decided.
    fn grant_claim(&mut self, below: &mut Below<'_>, claim: &Claim) {
        let Claim { flow, tuple, wire_port, hidden } = *claim;
        let name = claim.name();
        self.hold(flow);
        self.held.set_lent(&flow, Some(tuple.mirrored()));
        let Some(held) = self.held.get_mut(&flow) else { return };
        held.hidden = hidden;
        let keeping = Some(Keeping { wire_port, ..Keeping::default() });
        let (until, acceptor) = (below.now(), flow.peer());
        held.announced = Some(Announcement { name, acceptor, lifetime: 0, until, after: None, keeping });
        let saved = SavedHeld {
            flow,
            far: Some(tuple.mirrored()),
            wire_port,
            sequence: held.next,
            last: name,
            unsettled: Vec::new(),
            hidden,
            ending: false,
        };
        below.ask(MoveOp::SaveHeld(vec![saved]), MoveAsked::Keep(vec![flow]));
    }
}
