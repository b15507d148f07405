//! The table of flows names the owner of a socket, and donors hear what was decided.

use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::moving::{Decision, MoveName, Record, Refusal, Terms, Ticket};

use super::{Held, Holder, Limit, Owner};
use crate::base::event::relocation::MoveEvent;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{LeaseName, MoveOp};
use crate::base::signal::{Signal, Unled};
use crate::binding::transfer::{Below, Change, Lead};

/// Pause before a flow is led anew that could not be, at first and at the longest. A session with who is to have it
/// ends the pause.
const LED_AGAIN: Duration = Duration::from_millis(500);
const LED_AGAIN_LONGEST: Duration = Duration::from_secs(60);

impl Held {
    /// Tells the owner how it goes on, if it waits for that.
    fn answer(&mut self, below: &mut Below<'_>, flow: FlowName, outcome: Result<Terms, Refusal>) {
        if let (Owner::Waiting, Some(name)) = (self.owner, self.last) {
            self.owner = Owner::Informed;
            below.send(flow.peer(), Record::Verdict { name, outcome });
        }
    }
}

impl Holder {
    /// A flow is another host's from now on, and is called by that.
    pub(super) fn pass_on(&mut self, flow: FlowName, to: PublicKey) -> FlowName {
        let now = flow.with(to);
        if let Some(mut held) = self.held.remove(&flow) {
            self.limits.stop(Limit::Lead(flow));
            self.limits.stop(Limit::Unsettled(flow));
            held.unled = 0;
            for (name, of) in &held.unsettled {
                self.settling.insert(*name, now);
                self.limits.set_earlier(Limit::Unsettled(now), of.until);
            }
            self.held.insert(now, held);
        }
        now
    }

    /// An acceptor that did not hear that it is committed is told, once more, how it goes on.
    pub(in super::super) fn answer_again(&mut self, below: &mut Below<'_>, flow: FlowName) {
        if let Some(held) = self.held.get_mut(&flow) {
            held.owner = Owner::Waiting;
            self.lead(below, flow);
        }
    }

    /// Has the flow's binding name its owner.
    pub(super) fn lead(&mut self, below: &mut Below<'_>, flow: FlowName) {
        match self.held.get(&flow) {
            Some(held) if held.last.is_some() && !held.is_over() => {
                match held.lent.filter(|far| far.mirrored().is_unconnected()) {
                    Some(far) if flow.peer() == below.me() => {
                        let terms = Terms { far, wire_port: 0, home: None, passed_on: false, hidden: false };
                        below.signal(Signal::Led { flow, result: Ok(terms) });
                    }
                    Some(far) => below.signal(Signal::EndpointLed { flow, far }),
                    None => {
                        let from = flow.with(held.led);
                        below.change(Change::Lead(Lead::new(flow, from, held.wire_port, held.lent, held.restored)));
                    }
                }
            }
            // There is nothing to lead any more.
            _ => self.handle_led(below, flow, Err(Unled::Over)),
        }
    }

    /// There is a session with a host: what could not be led there is now.
    pub(in super::super) fn lead_waiting(&mut self, below: &mut Below<'_>, with: &PublicKey) {
        let waiting = self.held.of(with).filter(|(_, held)| held.unled > 0);
        let waiting: Vec<FlowName> = waiting.map(|(flow, _)| *flow).collect();
        waiting.into_iter().for_each(|flow| self.lead(below, flow));
    }

    /// The binding names the owner, or could not be made to.
    pub(in super::super) fn handle_led(&mut self, below: &mut Below<'_>, flow: FlowName, result: Result<Terms, Unled>) {
        if result == Err(Unled::Over) {
            // It ended between announcement and commit. Whoever has rebuilt the socket is not to wait for a way to
            // nobody.
            self.end_flow(below, flow);
        }
        let is_endpoint = self.moved_endpoint(&flow).is_some() && result.is_ok();
        if is_endpoint {
            // Only now that what comes for it goes elsewhere: at no moment may this host itself answer that nobody is
            // there.
            for tenant in self.former_owners(&flow) {
                below.signal(Signal::LeaseOver(LeaseName { tenant, number: flow.value() }));
            }
        }
        let hides = self.hides(&flow);
        let Some(held) = self.held.get_mut(&flow) else { return };
        match result {
            Ok(terms) => {
                let hidden = terms.passed_on && hides;
                let terms = Terms { passed_on: terms.passed_on && !hidden, hidden, ..terms };
                held.led = flow.peer();
                held.unled = 0;
                self.limits.stop(Limit::Lead(flow));
                held.answer(below, flow, Ok(terms));
            }
            Err(_) if held.is_over() => held.answer(below, flow, Err(Refusal::NoSuchFlow)),
            Err(why) => {
                let pause = (LED_AGAIN * 2u32.pow(held.unled.min(10))).min(LED_AGAIN_LONGEST);
                let again = below.now() + pause;
                if held.unled == 0
                    && let Unled::Failed(error) = why
                {
                    below.event(MoveEvent::OpFailed { what: "leading a flow to where it was moved", error });
                }
                held.unled = held.unled.saturating_add(1);
                self.limits.set(Limit::Lead(flow), again);
            }
        }
        self.tidy(below, flow);
        if is_endpoint && flow.peer() == below.me() {
            // There is nobody any more whom this host would have to tell where it is.
            self.end_flow(below, flow);
        }
    }

    /// Tells donors that their moves are committed.
    pub(super) fn send_unsettled(&self, below: &mut Below<'_>, flow: FlowName, to: Option<PublicKey>) {
        let Some(held) = self.held.get(&flow) else { return };
        for name in held.unsettled.keys() {
            let donor = PublicKey::from(name.donor);
            if to.is_none_or(|to| to == donor) {
                below.send(donor, Record::Decided { number: name.number, decision: Decision::Committed });
            }
        }
    }

    /// A donor wants a move back (P-75).
    pub(in super::super) fn handle_recall(&mut self, below: &mut Below<'_>, number: u64, flow: FlowName, gone: bool) {
        let donor = flow.peer();
        let name = MoveName { donor: *donor.as_bytes(), number };
        let owned = self.is_owned(below, &flow);
        // Of a move that is committed the flow is another host's: that it was the donor's, who alone can name the move,
        // is known by the move.
        let committed = self.settling.contains_key(&name) || self.alike(&flow).any(|(_, held)| held.last == Some(name));
        let decision = match self.held.get_mut(&flow) {
            _ if committed => Decision::Committed,
            Some(held) if !held.is_over() => {
                if let Some(announced) = held.announced.as_mut().filter(|announced| announced.name == name) {
                    if let Some(keeping) = &mut announced.keeping {
                        // It is told when that is known.
                        keeping.recalled = Some(gone);
                        return;
                    }
                    held.revoke();
                }
                Decision::Revoked
            }
            Some(_) => Decision::NoSuchFlow,
            None if owned => Decision::Revoked,
            None => Decision::NoSuchFlow,
        };
        if decision == Decision::Revoked && gone {
            self.close_far_end(below, flow);
        }
        below.send(donor, Record::Decided { number, decision });
        self.tidy(below, flow);
    }

    /// A donor has acted on what was decided.
    pub(in super::super) fn handle_settled(&mut self, below: &mut Below<'_>, name: MoveName) {
        if let Some(flow) = self.settling.get(&name).copied() {
            self.settle(below, flow, &[name]);
        }
    }

    fn settle(&mut self, below: &mut Below<'_>, flow: FlowName, names: &[MoveName]) {
        let Some(held) = self.held.get_mut(&flow) else { return };
        let before = held.waits_for();
        for name in names {
            self.settling.remove(name);
            held.unsettled.remove(name);
        }
        let after = held.waits_for();
        self.limits.stop(Limit::Unsettled(flow));
        if let Some(next) = held.unsettled.values().map(|of| of.until).min() {
            self.limits.set(Limit::Unsettled(flow), next);
        }
        below.wait(&before, &after);
        self.keep(below, flow);
        self.tidy(below, flow);
    }

    pub(super) fn handle_unsettled_limit(&mut self, below: &mut Below<'_>, flow: FlowName) {
        let Some(held) = self.held.get(&flow) else { return };
        let late = held.unsettled.iter().filter(|(_, of)| of.until <= below.now()).map(|(name, _)| *name);
        let late: Vec<MoveName> = late.collect();
        if !late.is_empty() {
            self.settle(below, flow, &late);
        }
    }

    /// An acceptor's copy is lost.
    pub(in super::super) fn handle_surrender(&mut self, below: &mut Below<'_>, from: PublicKey, ticket: Ticket) {
        let name = ticket.name;
        let (flow, committed) = self.presented(from, &ticket);
        let genuine = self.is_genuine(flow, &ticket);
        let Some(held) = self.held.get_mut(&flow).filter(|_| genuine) else {
            below.send(from, Record::Verdict { name, outcome: Err(Refusal::NotAnnounced) });
            return;
        };
        if committed {
            self.lose(below, flow, name);
            return;
        }
        if let Some(announced) = held.announced.as_mut().filter(|of| of.name == name && of.acceptor == from) {
            if let Some(keeping) = &mut announced.keeping {
                keeping.surrendered = true;
                return;
            }
            held.revoke();
            below.send(flow.peer(), Record::Decided { number: name.number, decision: Decision::Revoked });
        }
        below.send(from, Record::Verdict { name, outcome: Err(Refusal::Cancelled) });
        self.tidy(below, flow);
    }

    /// The only copy of a flow's socket is lost.
    pub(super) fn lose(&mut self, below: &mut Below<'_>, flow: FlowName, name: MoveName) {
        self.close_far_end(below, flow);
        below.send(flow.peer(), Record::Verdict { name, outcome: Err(Refusal::Cancelled) });
        self.end_flow(below, flow);
    }

    pub(super) fn close_far_end(&self, below: &mut Below<'_>, flow: FlowName) {
        // Who runs nothing hears from this host's own stack that there is no such connection, as soon as its packets
        // come there.
        let held = self.held.get(&flow);
        if let Some(tuple) = held.and_then(|held| held.lent) {
            below.change(Change::Release { tuple });
        }
        let flow = flow.with(held.map_or(flow.peer(), |held| held.led));
        below.effect("closing a connection whose socket is lost", MoveOp::CloseFarEnd { flow });
    }
}
