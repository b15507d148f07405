//! Single flows that wait by request, whatever becomes of their hosts (`docs/protocol.md` §6, P-48).

use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{FlowEntry, FlowOp, PeerId, Waits};
use crate::base::output::{Asked, State};
use crate::base::pace::{LOOK_PAUSE, LOOK_PAUSE_LONGEST};
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::flow::FlowLayer;
use crate::flow::known::Stage;
use crate::flow::paused::{NUMBERS, Words};
use crate::flow::peers::Away;

/// Words that are said in close succession before the pauses grow to those of a look for a silent peer.
const WORDS: u32 = 12;

impl FlowLayer {
    /// Has single flows wait, or go on, at both ends. Returns those that did not already.
    pub(crate) fn let_flows_wait(
        &mut self,
        now: Time,
        flows: &[FlowTuple],
        wait: bool,
        base: &mut Base,
    ) -> Vec<FlowTuple> {
        let mut changed: Vec<(PeerId, u64, FlowTuple)> = Vec::new();
        for flow in flows {
            let known = self.flows.get(flow).filter(|known| !known.closed);
            if let Some(entry) = known.and_then(|known| known.entry()).filter(|entry| entry.waits.here != wait) {
                changed.push((entry.peer, entry.name, *flow));
            }
        }
        changed.sort_unstable();
        for (id, name, flow) in &changed {
            self.let_wait(flow, |waits| waits.here = wait, base);
            self.on_pause(*id, *name, wait, base);
        }
        for of_peer in changed.chunk_by(|one, other| one.0 == other.0) {
            let id = of_peer[0].0;
            self.flows_wait(now, id, wait, base);
            let flows = of_peer.iter().map(|(_, _, flow)| *flow).collect();
            self.event_of_paused(id, wait, false, flows, base);
            self.send_paused_soon(now, id, base);
        }
        changed.into_iter().map(|(_, _, flow)| flow).collect()
    }

    /// A peer is to be told whether a flow waits here.
    pub(crate) fn on_pause(&mut self, id: PeerId, name: u64, wait: bool, base: &mut Base) {
        let first = base.random().u32();
        if let Some(peer) = peer_mut!(self, &id) {
            peer.flow.waiting.tell(name, wait, first);
        }
    }

    /// The daemon before this one may have died before a peer knew of its last words: it is told all of them.
    pub(crate) fn send_paused_again(&mut self, id: PeerId, base: &mut Base) {
        let Some(peer) = peer!(self, &id) else { return };
        let spoke = peer.flow.waiting.numbers().0 > 0;
        let entries = peer.flow.flows.iter().filter_map(|flow| self.flows.get(flow)?.entry());
        let words = entries.map(|entry| (entry.name, entry.waits.here)).filter(|(_, waits)| spoke || *waits);
        let words: Vec<(u64, bool)> = words.collect();
        for (name, wait) in words {
            self.on_pause(id, name, wait, base);
        }
    }

    /// See [`Node::waiting_flows`](crate::Node::waiting_flows).
    pub(crate) fn waiting_flows(&self) -> Vec<FlowTuple> {
        let waits = self.flows.iter().filter(|(_, known)| known.entry().is_some_and(|entry| entry.waits.here));
        waits.map(|(flow, _)| *flow).collect()
    }

    fn let_wait(&mut self, flow: &FlowTuple, change: impl FnOnce(&mut Waits), base: &mut Base) -> bool {
        let change = |entry: &mut FlowEntry| change(&mut entry.waits);
        let changed = self.change_entry(flow, "having a connection wait, or go on", change, base);
        if let Some((before, entry)) = changed
            && let Some(peer) = peer_mut!(self, &entry.peer)
        {
            peer.flow.waiting.count(before.waits, entry.waits);
            peer.flow.stalls().forget(flow);
        }
        changed.is_some()
    }

    /// Changes what the data plane knows of an introduced flow. Gives what it was and is, where it is another.
    pub(crate) fn change_entry(
        &mut self,
        flow: &FlowTuple,
        what: &'static str,
        change: impl FnOnce(&mut FlowEntry),
        base: &mut Base,
    ) -> Option<(FlowEntry, FlowEntry)> {
        let Stage::Introduced { entry, .. } = &mut self.flows.get_mut(flow)?.stage else { return None };
        let before = *entry;
        change(entry);
        let entry = *entry;
        if before == entry {
            return None;
        }
        base.ask(FlowOp::Install { flow: *flow, entry }, Asked::State(what, State::Entry(*flow)));
        Some((before, entry))
    }

    /// The data plane could not be told what an introduced flow is now.
    pub(crate) fn install_again(&mut self, flow: FlowTuple, base: &mut Base) {
        if let Some(entry) = self.flows.entry(&flow).copied() {
            let asked = Asked::State("telling the data plane of a connection again", State::Entry(flow));
            base.ask(FlowOp::Install { flow, entry }, asked);
        }
    }

    /// What flows of a peer wait for has changed.
    fn flows_wait(&mut self, now: Time, id: PeerId, wait: bool, base: &mut Base) {
        base.signal(Signal::Waiting(id));
        if !wait {
            self.wake_soon(now, id, base);
        }
    }

    /// Flows of a peer go on, or go elsewhere.
    pub(crate) fn wake_soon(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer!(self, &id) else { return };
        base.set_timer_earlier(Timer::Wake(id), peer.flow.waiting.next_wake(now));
    }

    fn event_of_paused(&mut self, id: PeerId, wait: bool, by_peer: bool, flows: Vec<FlowTuple>, base: &mut Base) {
        let waiting = peer!(self, &id).map_or(0, |peer| peer.flow.waiting.flows());
        base.event(Event::Paused { peer: id, wait, by_peer, flows, waiting });
    }

    /// Flows go on: their senders are woken.
    pub(crate) fn wake_flows(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        peer.flow.waiting.on_woken(now);
        // What was under way to another host, whose flows these were, is handed on from there (P-99).
        self.rebound.remove(&id);
        self.wake_senders(now, id, false, base);
    }

    /// Tells a peer what it is to be told once what this end has done is done, and saved.
    pub(crate) fn send_paused_soon(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id).filter(|peer| !peer.flow.waiting.is_told()) else { return };
        peer.flow.waiting.begin_anew();
        base.set_timer_earlier(Timer::Paused(id), now);
    }

    /// Tells a peer what it has not acknowledged. One that is away, or out of reach, is told when it is back.
    pub(crate) fn send_paused(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        if peer.flow.away == Some(Away::Announced) || peer.path.attachment().is_none() || !peer.has_session() {
            base.stop_timer(Timer::Paused(id));
            return;
        }
        let Some((Words { number, wait, names, .. }, tries)) = peer.flow.waiting.say(now) else { return };
        let again = match tries.checked_sub(WORDS) {
            Some(beyond) => (LOOK_PAUSE * 2u32.pow(beyond.min(8))).min(LOOK_PAUSE_LONGEST),
            None => peer.path.repeat_after(tries),
        };
        base.set_timer(Timer::Paused(id), now + again);
        self.path.send(id, &[Message::Paused { number, wait, names }], base);
    }

    /// The peer tells the highest number that it has acted on.
    pub(crate) fn handle_paused_seen(&mut self, now: Time, id: PeerId, number: u32, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        if peer.flow.waiting.on_acknowledged(number) {
            base.stop_timer(Timer::Paused(id));
            self.send_paused(now, id, base);
        }
    }

    /// The peer has flows wait, or go on.
    pub(crate) fn handle_paused(
        &mut self,
        now: Time,
        id: PeerId,
        number: u32,
        wait: bool,
        names: &[u64],
        base: &mut Base,
    ) -> Option<Message> {
        let peer = peer_mut!(self, &id).filter(|_| number < NUMBERS)?;
        if peer.flow.waiting.hear(number) {
            let mut changed: Vec<FlowTuple> =
                names.iter().filter_map(|name| peer.flow.named.get(name).copied()).collect();
            changed.retain(|flow| self.let_wait(flow, |waits| waits.there = wait, base));
            if !changed.is_empty() {
                self.flows_wait(now, id, wait, base);
                self.event_of_paused(id, wait, true, changed, base);
            }
        }
        peer!(self, &id).map(|peer| Message::PausedSeen { number: peer.flow.waiting.numbers().1 })
    }
}
