//! Flows as their sockets come and go.

use std::time::Duration;

use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::event::Event;
use crate::base::flow_name::FlowName;
use crate::base::op::{FlowEntry, FlowOp, LocalEnd, PeerId};
use crate::base::output::Asked;
use crate::base::pace::IDLE;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::flow::Stage;
use crate::node::Node;

/// Flows that ended are told together: so much later at the most, and no more of them waiting.
pub(crate) const CLOSED_PAUSE: Duration = Duration::from_millis(100);
const CLOSED_MOST: usize = 65_536;

impl Node {
    /// A socket came into being, or was found: only flows that were told so are introduced (P-35). `accepted`: its local port
    /// listens, so the other end opened it.
    pub fn handle_flow_opened(&mut self, now: Time, flow: FlowTuple, accepted: bool) {
        if let Some(old) = self.flows.get(&flow) {
            if !old.closed {
                return;
            }
            // The kernel took the tuple again before we had forgotten it.
            self.forget_flow(&flow);
        }
        self.flows.open(now, flow, accepted);
    }

    /// A socket is gone, or in TIME_WAIT.
    pub fn handle_flow_closed(&mut self, now: Time, flow: FlowTuple) {
        let Some(known) = self.flows.get(&flow).filter(|known| !known.closed) else { return };
        if flow.transport == Transport::Udp {
            self.end_datagram_flow(now, &flow);
            return;
        }
        let Some(entry) = known.entry().copied() else { return self.forget_flow(&flow) };
        self.contacts.forget_waiting(&flow);
        self.flows.close(now, flow);
        if let Some(name) = self.name_of(&entry).filter(|_| entry.end == LocalEnd::Endpoint) {
            self.base.signal(Signal::Closing(name));
        }
    }

    /// Forgets a flow altogether.
    pub(crate) fn forget_flow(&mut self, flow: &FlowTuple) {
        let Some(known) = self.flows.take(flow) else { return };
        self.contacts.forget_waiting(flow);
        self.abandon_introduction(flow, &known);
        if let Stage::Introduced { entry, .. } = &known.stage {
            if known.closed {
                self.end_moved(entry);
            }
            if let Some(peer) = self.peers.get_mut(&entry.peer) {
                peer.remove_flow(flow, entry);
            }

            self.base.ask(FlowOp::Remove { flow: *flow }, Asked::Effect("removing a flow"));
            self.base.event(Event::FlowGone { flow: *flow, peer: entry.peer });
        }
    }

    /// Lets a peer without flows be forgotten in time.
    pub(crate) fn idle_later(&mut self, now: Time, id: PeerId) {
        if let Some(peer) = self.peers.get(&id).filter(|peer| peer.flows.is_empty()) {
            let due = if peer.replaced { now } else { now + IDLE };
            self.base.set_timer_earlier(Timer::Idle(id), due);
        }
    }

    /// The socket of a datagram flow is gone, which the other end cannot see: it is told, and both forget the flow (P-35).
    pub(crate) fn end_datagram_flow(&mut self, now: Time, flow: &FlowTuple) {
        let stage = self.flows.get(flow).map(|known| known.stage.clone());
        self.forget_flow(flow);
        let Some(Stage::Introduced { entry, .. }) = stage else { return };
        self.end_moved(&entry);
        self.tell_ended(now, entry.peer, entry.name);
        self.idle_later(now, entry.peer);
        self.base.signal(Signal::FlowsGone);
    }

    /// A peer is to be told, in a moment, that a flow of this name has ended here.
    pub(crate) fn tell_ended(&mut self, now: Time, id: PeerId, name: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.introductions.closed.len() < CLOSED_MOST {
            peer.introductions.closed.push((name, 0));
            self.base.set_timer_earlier(Timer::Closed(id), now + CLOSED_PAUSE);
        }
    }

    /// Whether there is a socket with this tuple, as far as the node was told.
    #[must_use]
    pub fn has_flow(&self, flow: &FlowTuple) -> bool {
        self.flows.get(flow).is_some_and(|known| !known.closed)
    }

    /// An end's socket of an introduced flow is gone: it moves no more.
    pub(crate) fn end_moved(&mut self, entry: &FlowEntry) {
        if let Some(name) = self.name_of(entry) {
            self.base.signal(Signal::FlowEnded(name));
        }
    }

    /// What an introduced flow is called.
    pub(crate) fn name_of(&self, entry: &FlowEntry) -> Option<FlowName> {
        self.peers.get(&entry.peer).map(|peer| FlowName::new(peer.key, entry.name))
    }
}
