//! What the caller's policy says of single flows: those that are left alone are not introduced, by neither end (P-59).

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{FlowEntry, FlowOp, PeerId};
use crate::base::output::Asked;
use crate::base::signal::Signal;
use crate::flow::FlowLayer;
use crate::flow::known::Stage;
use crate::flow::verdict::Verdict;
use crate::session::contact::Contact;

/// What is known of a flow's ruling with one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ruled {
    /// The caller has not said yet.
    Awaited,
    /// It is left alone, by the rule of this number.
    Excluded(u32),
    /// It may be introduced.
    Free,
}

impl FlowLayer {
    /// See [`Node::await_verdicts`](crate::Node::await_verdicts).
    pub(crate) fn await_verdicts(&mut self, awaited: bool) {
        self.flows.await_verdicts(awaited);
    }

    /// See [`Node::awaits_verdict`](crate::Node::awaits_verdict).
    pub(crate) fn awaits_verdict(&self, flow: &FlowTuple) -> bool {
        self.flows.get(flow).is_some_and(|known| !known.closed && known.verdict.is_none())
    }

    /// See [`Node::handle_verdict`](crate::Node::handle_verdict).
    pub(crate) fn handle_verdict(&mut self, now: Time, flow: FlowTuple, verdict: Verdict) {
        let Some(known) = self.flows.get_mut(&flow).filter(|known| known.verdict.is_none()) else { return };
        let excluded = verdict.excluded_by();
        known.verdict = Some(verdict);
        if let (Some(rule), Stage::Open) = (excluded, &known.stage) {
            known.stage = Stage::Excluded(rule);
        } else if std::mem::take(&mut known.passed_over) {
            self.flows.put_off_until(now, flow);
        }
    }

    /// See [`Node::awaits_conditions`](crate::Node::awaits_conditions).
    pub(crate) fn awaits_conditions(&self, flow: &FlowTuple) -> bool {
        self.flows.get(flow).is_some_and(|known| !known.closed && known.met.is_none())
    }

    /// These are the sections about networks whose conditions a flow meets.
    pub(crate) fn set_met(&mut self, flow: &FlowTuple, met: Vec<u32>) {
        if let Some(known) = self.flows.get_mut(flow) {
            known.met = Some(met);
        }
    }

    /// What is wanted for a flow with this peer.
    pub(crate) fn ruled(&self, flow: &FlowTuple, id: PeerId) -> Ruled {
        let Some(verdict) = self.flows.get(flow).and_then(|known| known.verdict.as_ref()) else {
            return Ruled::Awaited;
        };
        let rule = self.path.session().peer(&id).map_or(verdict.otherwise, |peer| verdict.with(&peer.key()));
        rule.excluded_by.map_or(Ruled::Free, Ruled::Excluded)
    }

    /// The same before it is certain who is at its other end: whether anything is to be done on its account.
    pub(crate) fn ruled_beforehand(&self, flow: &FlowTuple) -> Ruled {
        let address = flow.remote.ip();
        let Some(verdict) = self.flows.get(flow).and_then(|known| known.verdict.as_ref()) else {
            return Ruled::Awaited;
        };
        let expected = match self.path.session().contacts().get(&address) {
            Some(Contact::Known(id)) => self.path.session().key_of(id),
            _ => self.path.session().contacts().known_key(&address),
        };
        let excluded = expected.map_or_else(|| verdict.excluded_by(), |key| verdict.with(&key).excluded_by);
        excluded.map_or(Ruled::Free, Ruled::Excluded)
    }

    /// Somebody else opened a connection under the names of a flow that has moved, and is refused, or will get through
    /// when the flow has gone: as its ruling wants it.
    pub(crate) fn take_claimed(&mut self, now: Time, flow: FlowTuple, entry: &FlowEntry, base: &mut Base) {
        let given_up = entry.manner.gives_way;
        base.event(Event::Claimed { flow, peer: entry.peer, given_up });
        if given_up {
            // The reset takes the way that the data plane still knows.
            base.ask(FlowOp::Abort { flow }, Asked::Effect("aborting a connection"));
            self.forget_flow(&flow, base);
            self.idle_later(now, entry.peer, base);
            base.signal(Signal::FlowsGone);
        }
    }

    /// A flow turned out to be one that is left alone.
    pub(crate) fn exclude_flow(&mut self, flow: &FlowTuple, rule: u32) {
        self.leave_stage(flow, Stage::Excluded(rule));
    }
}
