//! Flows of sockets of UDP that are not connected, and take what anybody sends: soft state of a socket and a remote
//! endpoint (P-220 and what follows it).

use std::time::Duration;

use whimbrel_wire::message::IntroductionRefusal;
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::op::{FlowEntry, FlowOp, LocalEnd, PeerId, Places};
use crate::base::output::Asked;
use crate::base::pace::KEPT;
use crate::flow::FlowLayer;
use crate::flow::introduction::is_introducers;
use crate::flow::known::{Flow, Stage};

/// How long one is known that is not introduced: longer than an introduction takes.
const UNPROVEN: Duration = Duration::from_secs(30);
/// How many of its own one socket has, and all of this host's together (P-225): what asks very many asks most of them
/// once.
const OF_SOCKET: usize = 1024;
const OF_ALL: usize = 8192;
/// How many others may begin from one address, whatever keys they have (P-224): all hosts behind a NAT have one.
const FROM_ADDRESS: usize = 256;

impl FlowLayer {
    /// See [`Node::admit_unconnected`](crate::Node::admit_unconnected).
    pub(crate) fn admit_unconnected(
        &mut self,
        now: Time,
        id: PeerId,
        flow: FlowTuple,
        nonce: u64,
        base: &mut Base,
    ) -> bool {
        if self.has_flow(&flow) {
            return true;
        }
        let may_be = flow.transport == Transport::Udp && flow.local.port() != base.config().port;
        // P-150: who is not there takes up no room of those who are.
        // P-222: from where this host is now the kernel may send a moment before the move is known.
        if !may_be || self.flows.has_from_elsewhere(&flow) || !is_introducers(nonce) {
            return false;
        }
        if !self.is_there(now, id, &flow, base) {
            return false;
        }
        if self.flows.unconnected_from(flow.remote.ip()) >= FROM_ADDRESS {
            self.refuse_introduction(id, nonce, IntroductionRefusal::Busy, base);
            return false;
        }
        self.flows.open_unconnected(now, flow, true, now + UNPROVEN);
        true
    }

    /// See [`Node::handle_datagram_sent`](crate::Node::handle_datagram_sent).
    pub(crate) fn handle_datagram_sent(&mut self, now: Time, flow: FlowTuple, base: &Base) {
        let may_be = flow.transport == Transport::Udp && flow.local.port() != base.config().port;
        let room = |port| self.flows.sent_by(port) < OF_SOCKET && self.flows.sent() < OF_ALL;
        let is_new = !self.has_flow(&flow) && !self.flows.has_from_elsewhere(&flow);
        if may_be && is_new && room(flow.local.port()) {
            self.flows.open_unconnected(now, flow, false, now + UNPROVEN);
            self.await_turn(now, flow);
        }
    }

    /// A flow was introduced: it stays for a while, if its socket is not connected.
    pub(crate) fn keep_unconnected(&mut self, now: Time, flow: &FlowTuple) {
        if self.flows.get(flow).is_some_and(Flow::is_unconnected) {
            self.flows.set_lease(flow, Some(now + KEPT));
        }
    }

    /// The socket of a flow is connected, whatever it was before.
    pub(super) fn connect(&mut self, flow: &FlowTuple, base: &mut Base) {
        if !self.flows.get(flow).is_some_and(Flow::is_unconnected) {
            return;
        }
        self.flows.set_lease(flow, None);
        if let Some(Flow { stage: Stage::Introduced { entry, .. }, .. }) = self.flows.get_mut(flow) {
            entry.unconnected = false;
            let (flow, entry) = (*flow, *entry);
            base.ask(FlowOp::Install { flow, entry }, Asked::Effect("noting that a socket is connected"));
        }
    }

    /// Flows end that are not in use any more, or whose peer has not shown for long that it has their names (P-223).
    pub(crate) fn end_lapsed(&mut self, now: Time, base: &mut Base) {
        while let Some(flow) = self.flows.lapsed(now) {
            let Some(known) = self.flows.get(&flow) else { return };
            let accepted = known.accepted;
            let Some(entry) = known.entry().copied() else {
                self.forget_flow(&flow, base);
                continue;
            };
            if accepted && self.is_at_home(&entry) {
                self.end_datagram_flow(now, &flow, base);
            } else {
                self.flows.set_lease(&flow, Some(now + KEPT));
                base.ask(FlowOp::LookAtUse { flow }, Asked::Use(flow));
            }
        }
    }

    /// How long ago a flow was in use.
    pub(crate) fn handle_use(&mut self, now: Time, flow: &FlowTuple, ago: Option<Duration>, base: &mut Base) {
        let left = ago.map(|ago| KEPT.saturating_sub(ago));
        let at_home = self.flows.entry(flow).is_some_and(|entry| self.is_at_home(entry));
        let Some(known) = self.flows.get_mut(flow).filter(|known| known.is_unconnected()) else { return };
        if at_home && left.is_some_and(|left| !left.is_zero()) {
            // The peer shows again that it has its names.
            self.end_datagram_flow(now, flow, base);
            return self.handle_datagram_sent(now, *flow, base);
        }
        // What was never in use since it has moved may have moved a moment ago.
        let idle = std::mem::replace(&mut known.idle, left.is_none());
        match left {
            Some(left) if !left.is_zero() => self.flows.set_lease(flow, Some(now + left)),
            None if !idle => {}
            _ => self.end_datagram_flow(now, flow, base),
        }
    }

    /// A peer has ended a flow whose socket is still there. One of UDP is introduced again: the peer may have ended it
    /// since this host has not shown for a while that it has its names (P-223).
    pub(crate) fn reopen(&mut self, now: Time, flow: FlowTuple, known: Flow, base: &Base) {
        let own = known.entry().is_some_and(|entry| entry.end == LocalEnd::Here) && !known.accepted;
        self.flows.put(flow, known.reopened());
        if own && flow.transport == Transport::Udp && base.attachments().has(&flow.local.ip()) {
            self.await_turn(now, flow);
        }
    }

    fn is_at_home(&self, entry: &FlowEntry) -> bool {
        let places = self.peers.get(&entry.peer).map_or(Places::default(), |peer| peer.places);
        entry.side == 0 && entry.home == places
    }
}
