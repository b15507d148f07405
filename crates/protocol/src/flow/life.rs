//! Flows as their sockets come and go.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::flow_name::FlowName;
use crate::base::op::{FlowEntry, FlowOp, LocalEnd, PeerId};
use crate::base::output::Asked;
use crate::base::pace::IDLE;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::flow::FlowLayer;
use crate::flow::known::{Flow, Origin, Stage};
use crate::session::contact::Contact;

/// Flows that ended are told together: so much later at the most, and no more of them waiting.
pub(crate) const CLOSED_PAUSE: Duration = Duration::from_millis(100);
const CLOSED_MOST: usize = 65_536;

impl FlowLayer {
    /// See [`Node::handle_flow_opened`](crate::Node::handle_flow_opened).
    pub(crate) fn handle_flow_opened(&mut self, now: Time, flow: FlowTuple, accepted: bool, base: &mut Base) {
        if let Some(old) = self.flows.get(&flow) {
            if !old.closed {
                return self.connect(&flow, base);
            }
            // The kernel took the tuple again before we had forgotten it.
            self.forget_flow(&flow, base);
        }
        self.askings.forget(&flow);
        self.flows.open(now, flow, accepted);
        if !accepted {
            self.await_turn(now, flow);
        }
    }

    /// See [`Node::handle_flow_found`](crate::Node::handle_flow_found).
    pub(crate) fn handle_flow_found(&mut self, now: Time, flow: FlowTuple, accepted: bool, base: &mut Base) {
        let fresh = !self.has_flow(&flow);
        self.handle_flow_opened(now, flow, accepted, base);
        if let Some(known) = self.flows.get_mut(&flow).filter(|_| fresh) {
            known.settled = true;
        }
    }

    /// This host has left an address: what it was opening from there to a peer will never be answered (P-203).
    pub(crate) fn end_connecting_from_left(&mut self, now: Time, id: PeerId, base: &mut Base) {
        for remote in self.path.session().contacts().addresses_of(id) {
            self.looks.want_end(remote, true);
        }
        // All peers are told first, and one look at the sockets is for all.
        base.set_timer_earlier(Timer::Looks, now);
    }

    /// A peer has left an address: what is being opened to it will never be answered (P-203), unless others are there
    /// as well, or nobody has seen the peer there.
    pub(crate) fn end_connecting_to(&mut self, now: Time, id: PeerId, left: IpAddr, base: &mut Base) {
        let is_its_own =
            matches!(self.path.session().contacts().get(&left), Some(Contact::Known(known)) if known == id);
        if is_its_own && !self.path.sightings().is_shared(now, left) {
            self.looks.want_end(left, false);
            base.set_timer_earlier(Timer::Looks, now);
            self.await_claims(now, id, left, base);
        }
    }

    /// A flow that this host has opened is introduced at once, unless there were very many of late (P-200).
    pub(super) fn await_turn(&mut self, now: Time, flow: FlowTuple) {
        let id = match self.path.session().contacts().get(&flow.remote.ip()) {
            Some(Contact::Known(id)) => Some(id),
            // Nothing would come of it.
            Some(Contact::Silent { until, .. }) if until > now => return self.flows.put_off(now, flow),
            _ => None,
        };
        if self.begun.take(now, id) {
            self.flows.put_off_until(now, flow);
        } else {
            self.flows.put_off(now, flow);
        }
    }

    /// See [`Node::handle_flow_closed`](crate::Node::handle_flow_closed).
    pub(crate) fn handle_flow_closed(&mut self, now: Time, flow: FlowTuple, base: &mut Base) {
        let Some(known) = self.flows.get(&flow).filter(|known| !known.closed) else { return };
        if flow.transport == Transport::Udp {
            self.end_datagram_flow(now, &flow, base);
            return;
        }
        let Some(entry) = known.entry().copied() else { return self.forget_flow(&flow, base) };
        self.path.session_mut().contacts_mut().forget_waiting(&flow);
        self.flows.close(now, flow);
        if entry.beyond {
            // P-103
            self.send_ended(now, entry.peer, entry.name, base);
        }
        if let Some(name) = self.name_of(&entry).filter(|_| entry.end == LocalEnd::Endpoint) {
            base.signal(Signal::Closing(name));
        }
    }

    /// Forgets a flow altogether: it is over.
    pub(crate) fn forget_flow(&mut self, flow: &FlowTuple, base: &mut Base) {
        self.take_out(flow, false, base);
    }

    /// Forgets what was agreed on about a flow, which goes on without.
    pub(crate) fn forget_agreement(&mut self, flow: &FlowTuple, base: &mut Base) {
        self.take_out(flow, true, base);
    }

    fn take_out(&mut self, flow: &FlowTuple, goes_on: bool, base: &mut Base) {
        let Some(known) = self.flows.take(flow) else { return };
        self.path.session_mut().contacts_mut().forget_waiting(flow);
        self.abandon_introduction(flow, &known.stage);
        if let Stage::Introduced { entry, .. } = &known.stage {
            if known.closed {
                self.end_moved(entry, base);
            }
            if let Some(peer) = peer_mut!(self, &entry.peer) {
                peer.flow.remove_flow(flow, entry);
            }
            base.ask(FlowOp::Remove { flow: *flow }, Asked::Effect("removing a flow"));
            base.event(Event::FlowGone { flow: *flow, peer: entry.peer, goes_on });
        }
    }

    /// Lets a peer without flows be forgotten in time.
    pub(crate) fn idle_later(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if let Some(peer) = peer!(self, &id).filter(|peer| peer.flow.flows.is_empty()) {
            let due = if peer.is_replaced() { now } else { now + IDLE };
            base.set_timer_earlier(Timer::Idle(id), due);
        }
    }

    /// The socket of a datagram flow is gone, which the other end cannot see: it is told, and both forget the flow
    /// (P-35).
    pub(crate) fn end_datagram_flow(&mut self, now: Time, flow: &FlowTuple, base: &mut Base) {
        let stage = self.flows.get(flow).map(|known| known.stage.clone());
        self.forget_flow(flow, base);
        let Some(Stage::Introduced { entry, .. }) = stage else { return };
        self.end_moved(&entry, base);
        self.send_ended(now, entry.peer, entry.name, base);
        self.idle_later(now, entry.peer, base);
        base.signal(Signal::FlowsGone);
    }

    /// A peer is to be told, in a moment, that a flow of this name has ended here.
    pub(crate) fn send_ended(&mut self, now: Time, id: PeerId, name: u64, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        if peer.flow.introductions.closed.len() < CLOSED_MOST {
            peer.flow.introductions.closed.push((name, 0));
            base.set_timer_earlier(Timer::Closed(id), now + CLOSED_PAUSE);
        }
    }

    /// See [`Node::has_flow`](crate::Node::has_flow).
    pub(crate) fn has_flow(&self, flow: &FlowTuple) -> bool {
        self.flows.get(flow).is_some_and(|known| !known.closed)
    }

    /// An end's socket of an introduced flow is gone: it moves no more.
    pub(crate) fn end_moved(&mut self, entry: &FlowEntry, base: &mut Base) {
        if let Some(name) = self.name_of(entry) {
            base.signal(Signal::FlowEnded(name));
        }
    }

    /// What an introduced flow is called.
    pub(crate) fn name_of(&self, entry: &FlowEntry) -> Option<FlowName> {
        self.path.session().peer(&entry.peer).map(|peer| FlowName::new(peer.key(), entry.name))
    }

    /// A flow is one with a peer from now on, whatever it was before and whosever.
    pub(crate) fn take_over(&mut self, now: Time, flow: FlowTuple, entry: FlowEntry, origin: Origin, base: &mut Base) {
        let before = self.flows.get(&flow).cloned().unwrap_or_else(|| Flow::opened(now, false));
        if let Stage::Introduced { entry: former, origin } = &before.stage {
            if let Origin::Answered { nonce, .. } = origin {
                self.flows.forget_nonce(*nonce);
            }
            if let Some(peer) = self.peers.get_mut(&former.peer) {
                peer.remove_flow(&flow, former);
            }
            self.idle_later(now, former.peer, base);
        } else {
            self.abandon_introduction(&flow, &before.stage);
        }
        self.flows
            .put(flow, Flow { stage: Stage::Introduced { entry, origin }, closed: false, settled: true, ..before });
    }
}
