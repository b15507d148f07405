//! Single flows that wait by request, whatever becomes of their hosts (`docs/protocol.md` §6, P-48).

use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::flow::Stage;
use crate::node::Node;
use crate::op::{Event, KernelOp, PeerId, Waits};
use crate::outcome::Asked;
use crate::timer::Timer;

impl Node {
    /// Has single flows wait, or go on, at both ends. Returns those that are introduced, so that it is done for them.
    pub fn set_waiting(&mut self, now: Time, flows: &[FlowTuple], wait: bool) -> Vec<FlowTuple> {
        let mut changed: Vec<(PeerId, u64, FlowTuple)> = Vec::new();
        for flow in flows {
            let Some(entry) = self.flows.get(flow).filter(|known| !known.closed).and_then(|known| known.entry()) else {
                continue;
            };
            changed.push((entry.peer, entry.name, *flow));
        }
        changed.sort_unstable();
        for (_, _, flow) in &changed {
            self.let_wait(flow, |waits| waits.here = wait);
        }
        for of_peer in changed.chunk_by(|one, other| one.0 == other.0) {
            let id = of_peer[0].0;
            if let Some(peer) = self.peers.get_mut(&id) {
                let names: Vec<u64> = of_peer.iter().map(|(_, name, _)| *name).collect();
                peer.waiting.tell(&names, wait);
            }
            self.flows_wait(now, id, wait);
            let flows = of_peer.iter().map(|(_, _, flow)| *flow).collect();
            self.event_of_waiting(id, wait, false, flows);
            self.tell_waiting(now, id);
        }
        changed.into_iter().map(|(_, _, flow)| flow).collect()
    }

    /// The daemon before this one may have died before a peer knew of its last words: it is told all of them.
    pub(crate) fn tell_waiting_again(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.waiting.sent > 0) else { return };
        for wait in [true, false] {
            let entries = peer.flows.iter().filter_map(|flow| self.flows.get(flow)?.entry());
            let names: Vec<u64> = entries.filter(|entry| entry.waits.here == wait).map(|entry| entry.name).collect();
            peer.waiting.tell(&names, wait);
        }
    }

    /// Flows that this host has wait.
    #[must_use]
    pub fn waiting_flows(&self) -> Vec<FlowTuple> {
        let waits = self.flows.iter().filter(|(_, known)| known.entry().is_some_and(|entry| entry.waits.here));
        waits.map(|(flow, _)| *flow).collect()
    }

    fn let_wait(&mut self, flow: &FlowTuple, change: impl FnOnce(&mut Waits)) {
        let Some(known) = self.flows.get_mut(flow) else { return };
        let Stage::Introduced { entry, .. } = &mut known.stage else { return };
        let before = entry.waits;
        change(&mut entry.waits);
        if before == entry.waits {
            return;
        }
        let entry = *entry;
        if let Some(peer) = self.peers.get_mut(&entry.peer) {
            peer.waiting.flows += usize::from(entry.waits.any());
            peer.waiting.flows -= usize::from(before.any());
        }
        self.op(
            KernelOp::InstallFlow { flow: *flow, entry },
            Some(Asked::Effect("having a connection wait, or go on")),
        );
    }

    /// What flows of a peer wait for has changed.
    fn flows_wait(&mut self, now: Time, id: PeerId, wait: bool) {
        self.put_binding_in_force(now, id);
        if !wait {
            self.op(KernelOp::Kick { peer: id, lost: false }, Some(Asked::Effect("waking senders")));
        }
    }

    fn event_of_waiting(&mut self, id: PeerId, wait: bool, by_peer: bool, flows: Vec<FlowTuple>) {
        let waiting = self.peers.get(&id).map_or(0, |peer| peer.waiting.flows);
        self.event(Event::Waiting { peer: id, wait, by_peer, flows, waiting });
    }

    /// Tells a peer the oldest change that it has not acknowledged.
    pub(crate) fn tell_waiting(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some((number, wait, names)) = peer.waiting.untold.front().cloned() else { return };
        peer.waiting.tries += 1;
        let again = peer.repeat_after(peer.waiting.tries);
        self.timers.set(Timer::Waiting(id), now + again);
        self.send(id, &[Message::Waiting { number, wait, names }]);
    }

    /// The peer has acknowledged a change.
    pub(crate) fn handle_waiting_seen(&mut self, now: Time, id: PeerId, number: u32) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.waiting.untold.front().is_some_and(|(first, ..)| *first == number) {
            peer.waiting.untold.pop_front();
            peer.waiting.tries = 0;
            self.timers.stop(Timer::Waiting(id));
            self.tell_waiting(now, id);
        }
    }

    /// The peer has flows wait, or go on.
    pub(crate) fn handle_waiting(
        &mut self,
        now: Time,
        id: PeerId,
        number: u32,
        wait: bool,
        names: &[u64],
    ) -> Option<Message> {
        let peer = self.peers.get_mut(&id)?;
        if number > peer.waiting.seen {
            peer.waiting.seen = number;
            let saved = peer.saved();
            let flows: Vec<FlowTuple> = names.iter().filter_map(|name| peer.named.get(name).copied()).collect();
            for flow in &flows {
                self.let_wait(flow, |waits| waits.there = wait);
            }
            self.op(KernelOp::SavePeer(saved), Some(Asked::Effect("saving a peer")));
            if !flows.is_empty() {
                self.flows_wait(now, id, wait);
                self.event_of_waiting(id, wait, true, flows);
            }
        }
        Some(Message::WaitingSeen { number })
    }
}
