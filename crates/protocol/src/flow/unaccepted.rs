//! What a peer may never have accepted (P-203): the last segment of its handshake may be lost with a move.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::op::{FlowOp, PeerId};
use crate::base::output::Asked;
use crate::base::timer::Timer;
use crate::flow::FlowLayer;
use crate::flow::known::Stage;
use crate::flow::late::NAMED;
use crate::flow::peers::Unaccepted;
use crate::flow::table::YOUNG;

/// A peer that has left an address and named nothing late for so long has named all: it does so every 300 ms until it
/// is answered (P-204).
const NAMING: Duration = Duration::from_secs(2);

/// How long what a peer may never have accepted is asked for where the peer was, before it is ended.
const ASKED_FOR: Duration = Duration::from_secs(1);

impl FlowLayer {
    /// A peer has left an address, and names what is young from there. What it does not name it may never have
    /// accepted.
    pub(super) fn await_claims(&mut self, now: Time, id: PeerId, left: IpAddr, base: &mut Base) {
        let young = self.flows.opened().filter(|(flow, known)| {
            let its = flow.remote.ip() == left && flow.transport == Transport::Tcp;
            let left_alone = matches!(known.stage, Stage::Excluded(_));
            its && !left_alone && !known.accepted && known.is_young(now, id)
        });
        let mut young: Vec<FlowTuple> = young.map(|(flow, _)| *flow).collect();
        young.sort_unstable();
        young.dedup();
        young.truncate(NAMED);
        self.expect_unaccepted(id, &young, now + NAMING, Some(now + YOUNG), base);
    }

    /// A peer names flows late: it may name more, as long as it may.
    pub(super) fn await_further_claims(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        for of in &mut peer.unaccepted {
            of.due = of.named_until.map_or(of.due, |until| until.min(now + NAMING).max(of.due));
        }
    }

    /// The peer has not accepted these, as it seems: they are ended when that is `due`. `named_until`: until then it
    /// may name them, and somebody may be where it was, who is asked first; `None`: neither.
    pub(super) fn expect_unaccepted(
        &mut self,
        id: PeerId,
        flows: &[FlowTuple],
        due: Time,
        named_until: Option<Time>,
        base: &mut Base,
    ) {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !flows.is_empty()) else { return };
        let unaccepted = &mut peer.unaccepted;
        unaccepted.retain(|of| !flows.contains(&of.flow));
        unaccepted.extend(flows.iter().map(|flow| Unaccepted { flow: *flow, due, named_until }));
        unaccepted.truncate(NAMED);
        base.set_timer_earlier(Timer::Unaccepted(id), due);
    }

    /// Ends what a peer has never accepted. Whoever is still where it was is asked before: the effect ends nothing in
    /// which he has answered.
    pub(crate) fn end_unaccepted(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if let Err(until) = self.looks.may_end(now) {
            return base.set_timer(Timer::Unaccepted(id), until);
        }
        let Some(peer) = peer_mut!(self, &id) else { return };
        let at = peer.path.remote().ip();
        let unaccepted = std::mem::take(&mut peer.flow.unaccepted);
        let (due, later): (Vec<_>, Vec<_>) = unaccepted.into_iter().partition(|of| of.due <= now);
        if let Some(next) = later.iter().map(|of| of.due).min() {
            base.set_timer(Timer::Unaccepted(id), next);
        }
        let is_lost = |flow: &FlowTuple| {
            let native = flow.remote.ip() == at && base.attachments().has(&flow.local.ip());
            let open = self.flows.get(flow).is_some_and(|known| !known.closed && known.entry().is_none());
            open && !native && !self.askings.has(flow, id)
        };
        let (asked, unasked): (Vec<_>, Vec<_>) =
            due.into_iter().filter(|of| is_lost(&of.flow)).partition(|of| of.named_until.is_none());
        let (flows, unasked) = (tuples(asked), tuples(unasked));
        peer.flow.unaccepted = later;
        if !unasked.is_empty() {
            self.expect_unaccepted(id, &unasked, now + ASKED_FOR, None, base);
            base.op(FlowOp::AskUnaccepted { flows: unasked });
        }
        if !flows.is_empty() {
            base.ask(FlowOp::EndUnaccepted { flows }, Asked::Effect("ending connections that nobody has accepted"));
        }
    }
}

fn tuples(unaccepted: Vec<Unaccepted>) -> Vec<FlowTuple> {
    unaccepted.into_iter().map(|of| of.flow).collect()
}
