//! Single flows that wait by request, whatever becomes of their hosts (`docs/protocol.md` §6, P-48).

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::{MAX_WAITING, Message};

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{FlowOp, PeerId, Waits};
use crate::base::output::Asked;
use crate::base::pace::{LOOK_PAUSE, LOOK_PAUSE_LONGEST};
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::flow::peers::Away;
use crate::flow::{FlowLayer, Stage};

/// Numbers of words are below this, so that there is always a next one.
const NUMBERS: u32 = 1 << 31;
/// A daemon that was started anew begins so far above the last number that was saved: more were never said in between.
const BEYOND: u32 = 1 << 13;
/// Words that are said in close succession before the pauses grow to those of a look for a silent peer.
const WORDS: u32 = 12;
/// Senders are woken for the flows that go on at most so often: each time costs a look at all sockets.
const WAKE_PAUSE: Duration = Duration::from_millis(200);

/// Single flows that wait (P-48).
#[derive(Debug, Default)]
pub(crate) struct Paused {
    /// What the peer is to be told, by the names of flows: whether they wait here. Of each the latest word alone
    /// counts.
    pub(crate) untold: BTreeMap<u64, bool>,
    /// What it is being told.
    telling: Option<Words>,
    tries: u32,
    /// When that was last said.
    pub(crate) said: Option<Time>,
    /// Number of the last words.
    pub(crate) sent: u32,
    /// Number of the last that the peer said and that were acted on.
    pub(crate) seen: u32,
    /// Flows that wait.
    pub(crate) flows: usize,
    /// When senders were last woken.
    woken: Option<Time>,
}

/// What is said in one message.
#[derive(Clone, Debug)]
struct Words {
    number: u32,
    wait: bool,
    names: Vec<u64>,
    /// They were given another number already, since the peer knew of a higher one.
    corrected: bool,
}

impl Paused {
    /// What a daemon before this one has saved: its numbers, sent and seen.
    pub(crate) fn restored((sent, seen): (u32, u32)) -> Self {
        let sent = if sent == 0 { 0 } else { (sent + BEYOND).min(NUMBERS - 1) };
        Self { sent, seen, ..Self::default() }
    }

    /// The peer is to be told whether a flow waits. `first`: drawn by lot, the first number of an end that has said
    /// nothing, so that it is not one that another daemon of this host has used.
    fn tell(&mut self, name: u64, wait: bool, first: u32) {
        if self.sent == 0 {
            self.sent = first % (NUMBERS / 2) + 1;
        }
        self.untold.insert(name, wait);
        self.tries = 0;
    }

    /// Whether the peer has acknowledged all that it was to be told.
    pub(crate) fn is_told(&self) -> bool {
        self.telling.is_none() && self.untold.is_empty()
    }

    /// What is to be said next, which is what was said last where that was not answered.
    fn next(&mut self) -> Option<Words> {
        if self.telling.is_none() {
            let wait = *self.untold.values().next()?;
            let alike = self.untold.iter().filter(|(_, waits)| **waits == wait);
            let names: Vec<u64> = alike.map(|(name, _)| *name).take(MAX_WAITING).collect();
            for name in &names {
                self.untold.remove(name);
            }
            self.sent = (self.sent + 1).min(NUMBERS - 1);
            self.telling = Some(Words { number: self.sent, wait, names, corrected: false });
        }
        self.telling.clone()
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        self.untold.len() + self.telling.as_ref().map_or(0, |words| words.names.len())
    }
}

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
        let spoke = peer.flow.waiting.sent > 0;
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
        let Some(known) = self.flows.get_mut(flow) else { return false };
        let Stage::Introduced { entry, .. } = &mut known.stage else { return false };
        let before = entry.waits;
        change(&mut entry.waits);
        if before == entry.waits {
            return false;
        }
        let entry = *entry;
        if let Some(peer) = peer_mut!(self, &entry.peer) {
            peer.flow.waiting.flows += usize::from(entry.waits.any());
            peer.flow.waiting.flows -= usize::from(before.any());
        }
        base.ask(FlowOp::Install { flow: *flow, entry }, Asked::Effect("having a connection wait, or go on"));
        true
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
        let due = peer.flow.waiting.woken.map_or(now, |woken| (woken + WAKE_PAUSE).max(now));
        base.set_timer_earlier(Timer::Wake(id), due);
    }

    fn event_of_paused(&mut self, id: PeerId, wait: bool, by_peer: bool, flows: Vec<FlowTuple>, base: &mut Base) {
        let waiting = peer!(self, &id).map_or(0, |peer| peer.flow.waiting.flows);
        base.event(Event::Paused { peer: id, wait, by_peer, flows, waiting });
    }

    /// Flows go on: their senders are woken.
    pub(crate) fn wake_flows(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        peer.flow.waiting.woken = Some(now);
        // What was under way to another host, whose flows these were, is handed on from there (P-99).
        self.rebound.remove(&id);
        self.wake_senders(now, id, false, base);
    }

    /// Tells a peer what it is to be told once what this end has done is done, and saved.
    pub(crate) fn send_paused_soon(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id).filter(|peer| !peer.flow.waiting.is_told()) else { return };
        peer.flow.waiting.tries = 0;
        base.set_timer_earlier(Timer::Paused(id), now);
    }

    /// Tells a peer what it has not acknowledged. One that is away, or out of reach, is told when it is back.
    pub(crate) fn send_paused(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        if peer.flow.away == Some(Away::Announced) || peer.path.attachment().is_none() || !peer.has_session() {
            base.stop_timer(Timer::Paused(id));
            return;
        }
        let Some(Words { number, wait, names, .. }) = peer.flow.waiting.next() else { return };
        peer.flow.waiting.tries += 1;
        peer.flow.waiting.said = Some(now);
        let again = match peer.flow.waiting.tries.checked_sub(WORDS) {
            Some(beyond) => (LOOK_PAUSE * 2u32.pow(beyond.min(8))).min(LOOK_PAUSE_LONGEST),
            None => peer.path.repeat_after(peer.flow.waiting.tries),
        };
        base.set_timer(Timer::Paused(id), now + again);
        self.path.send(id, &[Message::Paused { number, wait, names }], base);
    }

    /// The peer tells the highest number that it has acted on.
    pub(crate) fn handle_paused_seen(&mut self, now: Time, id: PeerId, number: u32, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        let Some(words) = peer.flow.waiting.telling.as_mut() else { return };
        if number == words.number {
            peer.flow.waiting.telling = None;
            peer.flow.waiting.tries = 0;
            base.stop_timer(Timer::Paused(id));
            self.send_paused(now, id, base);
        } else if number > words.number && number < NUMBERS - 1 {
            // This end has lost count, as after a start without memory. Once at once, as in P-17.
            words.number = number + 1;
            let at_once = !std::mem::replace(&mut words.corrected, true);
            peer.flow.waiting.sent = number + 1;
            if at_once {
                self.send_paused(now, id, base);
            }
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
        if number > peer.flow.waiting.seen {
            peer.flow.waiting.seen = number;
            let flows: Vec<FlowTuple> = names.iter().filter_map(|name| peer.flow.named.get(name).copied()).collect();
            let mut changed = flows;
            changed.retain(|flow| self.let_wait(flow, |waits| waits.there = wait, base));
            if !changed.is_empty() {
                self.flows_wait(now, id, wait, base);
                self.event_of_paused(id, wait, true, changed, base);
            }
        }
        peer!(self, &id).map(|peer| Message::PausedSeen { number: peer.flow.waiting.seen })
    }
}
