//! Flows of sockets of UDP that are not connected, and take what anybody sends: soft state of a socket and a remote
//! endpoint (P-220 and what follows it).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::message::IntroductionRefusal;
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::op::{FlowEntry, FlowOp, LocalEnd, PeerId, Places};
use crate::base::output::Asked;
use crate::base::pace::KEPT;
use crate::flow::FlowLayer;
use crate::flow::failure::Failure;
use crate::flow::introduction::is_introducers;
use crate::flow::known::{Flow, Stage};

/// How long one is known that is not introduced: longer than an introduction takes.
const UNPROVEN: Duration = Duration::from_secs(30);
/// How many of its own one socket has, and all of this host's together (P-225): what asks very many asks most of them
/// once.
const OF_SOCKET: usize = 1024;
const OF_ALL: usize = 8192;
/// How many others may begin from one address, or one /64 of IPv6, whatever keys they have (P-224): all hosts behind a
/// NAT have one.
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
        if !may_be || !is_introducers(nonce) {
            return false;
        }
        if self.is_of_moved(&flow, base) {
            self.refuse_introduction(id, nonce, IntroductionRefusal::Refused, base);
            return false;
        }
        // P-150: who is not there takes up no room of those who are.
        if !self.is_there(now, id, &flow, base) {
            return false;
        }
        if !self.has_room_with(id, base) || !self.make_room_at(now, flow.remote.ip(), id, base) {
            self.refuse_introduction(id, nonce, IntroductionRefusal::Busy, base);
            return false;
        }
        self.flows.open_unconnected(now, flow, Some(id), now + UNPROVEN);
        true
    }

    /// Whether a socket has a flow with this remote already, under an address that this host has left: from where it is
    /// now the kernel may send a moment before the move is known (P-222).
    fn is_of_moved(&self, flow: &FlowTuple, base: &Base) -> bool {
        self.flows.elsewhere(flow).is_some_and(|address| !base.attachments().has(&address))
    }

    /// Whether there is room for another flow from an address. Where there is none the peer with most of them gives one
    /// up, if this one has fewer (P-224): of as many, who came last. It is its oldest that is not moved, or else the
    /// one that was not used for the longest time, as far as that is known.
    fn make_room_at(&mut self, now: Time, address: IpAddr, id: PeerId, base: &mut Base) -> bool {
        let Some(there) = self.flows.unconnected_from(address).filter(|there| there.len() >= FROM_ADDRESS) else {
            return true;
        };
        let whose = |known: &Flow| known.entry().map(|entry| entry.peer).or(known.introducer);
        let mut of: BTreeMap<PeerId, Vec<(Option<Time>, Time, FlowTuple)>> = BTreeMap::new();
        for flow in there {
            let known = self.flows.get(flow);
            if let Some((known, peer)) = known.and_then(|known| Some((known, whose(known)?))) {
                let is_moved = known.entry().is_some_and(|entry| !self.is_at_home(entry));
                of.entry(peer).or_default().push((known.lease.filter(|_| is_moved), known.opened, *flow));
            }
        }
        let own = of.get(&id).map_or(0, Vec::len);
        let Some(most) = of.into_values().max_by_key(Vec::len).filter(|most| most.len() > own) else { return false };
        let Some((.., least)) = most.into_iter().min() else { return false };
        self.end_datagram_flow(now, &least, base);
        true
    }

    /// See [`Node::handle_datagram_sent`](crate::Node::handle_datagram_sent).
    pub(crate) fn handle_datagram_sent(&mut self, now: Time, flow: FlowTuple, base: &Base) {
        let may_be = flow.transport == Transport::Udp && flow.local.port() != base.config().port;
        let room = |port| self.flows.sent_by(port) < OF_SOCKET && self.flows.sent() < OF_ALL;
        let is_new = !self.has_flow(&flow) && !self.is_of_moved(&flow, base);
        if may_be && is_new && room(flow.local.port()) {
            self.flows.open_unconnected(now, flow, None, now + UNPROVEN);
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
        let before = known.clone();
        if at_home && left.is_some_and(|left| !left.is_zero()) {
            // The peer shows again that it has its names.
            self.end_datagram_flow(now, flow, base);
            return self.reopen(now, *flow, before, base);
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
        let lease = known.lease.map(|_| now + UNPROVEN);
        self.flows.put(flow, Flow { lease, ..known.reopened() });
        if own && flow.transport == Transport::Udp && base.attachments().has(&flow.local.ip()) {
            self.await_turn(now, flow);
        }
    }

    /// A peer has forgotten a flow whose socket is there. Nobody is asked on its account, since nobody would answer: it
    /// is introduced again in the next session with whoever is at its other end.
    pub(crate) fn reopen_forgotten(&mut self, now: Time, flow: FlowTuple, known: Flow) {
        let (lease, accepted) = (known.lease.map(|_| now + UNPROVEN), known.accepted);
        self.flows.put(flow, Flow { lease, ..known.reopened() });
        self.flows.set_stage(&flow, Stage::Failed(Failure::Forgotten));
        if !accepted {
            self.flows.on_failed(flow);
        }
    }

    fn is_at_home(&self, entry: &FlowEntry) -> bool {
        let places = self.peers.get(&entry.peer).map_or(Places::default(), |peer| peer.places);
        entry.side == 0 && entry.home == places
    }
}
