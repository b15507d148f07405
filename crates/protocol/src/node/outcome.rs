//! What comes of the ops that the caller carries out. What failed and matters is tried again.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use whimbrel_wire::chain::ChainStatus;
use whimbrel_wire::message::{IntroductionRefusal, Message};
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::event::{Carried, Event};
use crate::base::op::{Carrier, FlowOp, LocalEnd, PeerId, TunnelOp};
use crate::base::output::{Asked, OpDone, OpFailed, OpId, State};
use crate::base::timer::Timer;
use crate::flow::{Flow, Origin, Stage};
use crate::node::Node;
use crate::session::peer::Peer;

/// Pause before failed ops are asked for again, at first and at the longest.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_DOUBLINGS: u32 = 7;

/// Flows that ended are told together: so much later at the most, so many in a datagram, so often each, and no more of them
/// waiting.
const CLOSED_PAUSE: Duration = Duration::from_millis(100);
const CLOSED_AT_ONCE: usize = 128;
const CLOSED_TOLD: u32 = 3;
const CLOSED_MOST: usize = 65_536;

impl Node {
    /// Introduced flows whose sockets are gone and that are still known, and how many of them are moved, of each peer.
    pub(crate) fn ended(&self) -> HashMap<PeerId, (usize, usize)> {
        let mut ended: HashMap<PeerId, (usize, usize)> = HashMap::new();
        // A socket that was opened anew and closed again is there twice.
        let flows: BTreeSet<&FlowTuple> = self.flows.lingering().collect();
        for flow in flows {
            let Some(entry) = self.flows.get(flow).filter(|known| known.closed).and_then(Flow::entry) else { continue };
            let Some(peer) = self.peers.get(&entry.peer) else { continue };
            let count = ended.entry(entry.peer).or_default();
            count.0 += 1;
            count.1 += usize::from(entry.home != peer.places_in_force());
        }
        ended
    }

    /// Introduced flows of a peer whose sockets are there: what is told of it counts these.
    pub(crate) fn living(&self, id: PeerId) -> usize {
        let ended = self.ended().get(&id).map_or(0, |ended| ended.0);
        self.peers.get(&id).map_or(0, |peer| peer.flows.len()).saturating_sub(ended)
    }

    /// How a peer's flows go now whose sockets are there.
    pub(crate) fn carried(&self, id: PeerId) -> Carried {
        let ended = self.ended().get(&id).map_or(0, |ended| ended.1);
        let peer = self.peers.get(&id);
        Carried {
            flows: peer.map_or(0, Peer::moved_flows).saturating_sub(ended),
            carrier: peer.map_or(Carrier::Hold, |peer| peer.carrier),
        }
    }

    /// The result of an op.
    pub fn handle_done(&mut self, now: Time, id: OpId, result: Result<OpDone, OpFailed>) {
        let Some(asked) = self.output.answered(id) else { return };
        if let Asked::Move(number) = asked {
            self.with_moves(now, |moves, at| moves.handle_done(at, number, result));
            return;
        }
        if let Asked::Chain(peer, chain) = asked {
            let result = match result {
                Ok(OpDone::ChainRefused { status, stage }) => Err((status, stage)),
                Ok(_) => Ok(()),
                Err(_) => Err((ChainStatus::Refused, 0)),
            };
            self.chains.handle_done(now, peer, chain, result);
            return self.carry_out_chains();
        }
        let Err(error) = result else {
            match asked {
                Asked::Install(flow) => self.confirm_installed(&flow),
                Asked::Lead(flow) => self.note_led(now, flow, Ok(())),
                Asked::Adopt(name) => self.note_adopted(now, name, Ok(())),
                Asked::Say(peer, source, to, messages) => self.send_to(peer, source, to, &messages),
                Asked::State(_, State::Binding(peer)) => self.note_binding_done(now, peer, id),
                _ => {}
            }
            return;
        };
        match asked {
            // The introducer's next try begins it anew.
            Asked::Answer(id, flow) => {
                self.forget_responding(id, &flow);
            }
            Asked::FindSockets(id) => self.note_not_found(now, id),
            // It says so again. What moves have asked for has gone to them.
            Asked::Say(..) | Asked::Move(_) | Asked::Chain(..) => {}
            Asked::Install(flow) => {
                self.undo_installed(now, &flow);
                self.output.event(Event::OpFailed { what: format!("making {flow} movable"), error: error.sentence });
            }
            Asked::Lead(flow) => self.note_led(now, flow, Err(error.sentence)),
            Asked::Adopt(name) => self.note_adopted(now, name, Err(error.sentence)),
            Asked::Effect(what) => self.output.event(Event::OpFailed { what: what.to_owned(), error: error.sentence }),
            Asked::State(what, state) => {
                self.failed.insert(state);
                self.timers.set_earlier(Timer::Mend, now + PAUSE * 2u32.pow(self.mended.min(PAUSE_DOUBLINGS)));
                self.output.event(Event::OpFailed { what: what.to_owned(), error: error.sentence });
                if let State::Binding(peer) = state {
                    self.note_binding_done(now, peer, id);
                }
            }
        }
    }

    /// Asks again for what failed.
    pub(crate) fn mend(&mut self, now: Time) {
        let failed = std::mem::take(&mut self.failed);
        self.mended = self.mended.saturating_add(1);
        for state in failed {
            match state {
                State::Keys(id) => self.add_keys(id),
                State::Path(id) => self.set_tunnel_path(id),
                State::Binding(id) => self.put_binding_in_force(now, id),
                State::Sets => self.put_sets_in_force(),
                State::Listening => self.put_listening_in_force(),
            }
        }
        // Once they have succeeded for long enough, the next failure is the first one.
        self.timers.set_earlier(Timer::Mended, now + PAUSE * 2u32.pow(PAUSE_DOUBLINGS));
    }

    /// Nothing has failed for a while.
    pub(crate) fn rest_mending(&mut self, now: Time) {
        if self.failed.is_empty() {
            self.mended = 0;
        } else {
            self.timers.set_earlier(Timer::Mended, now + PAUSE * 2u32.pow(PAUSE_DOUBLINGS));
        }
    }

    fn add_keys(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return };
        let sessions = peer.sessions.iter();
        let all: Vec<_> =
            sessions.map(|slot| (slot.session.local_index(), slot.session.tunnel_keys().clone(), slot.aes)).collect();
        for (receive_index, keys, aes) in all {
            let asked = Asked::State("adding tunnel keys", State::Keys(id));
            self.output.ask(TunnelOp::AddKeys { peer: id, receive_index, keys, aes }, asked);
        }
        self.set_tunnel_path(id);
    }

    /// A flow could not be installed. The other end must not take it as movable.
    fn undo_installed(&mut self, now: Time, flow: &FlowTuple) {
        let Some(Stage::Introduced { entry, origin }) = self.flows.get(flow).map(|known| known.stage.clone()) else {
            return;
        };
        self.flows.set_stage(flow, Stage::Open);
        if let Some(peer) = self.peers.get_mut(&entry.peer) {
            peer.remove_flow(flow, &entry);
        }
        match origin {
            Origin::Answered { introducer_nonce: nonce, .. } | Origin::Paired { introducer_nonce: nonce, .. } => {
                let outcome = Err(IntroductionRefusal::Busy);
                self.send(entry.peer, &[Message::IntroductionDone { nonce, outcome }]);
            }
            Origin::Introduced => {
                self.send(entry.peer, &[Message::FlowClosed(vec![entry.name])]);
                self.introduce_again(now, flow);
            }
            Origin::Restored => {}
        }
        self.return_to_former(now, flow);
        self.doubt(now, flow, entry.peer);
        self.idle_later(now, entry.peer);
        self.refresh_sets();
    }

    /// The peer could not install these flows, or its sockets are gone (P-35).
    pub(crate) fn handle_flows_closed(&mut self, now: Time, id: PeerId, nonces: &[u64]) {
        let Some(peer) = self.peers.get(&id) else { return };
        let closed: Vec<FlowTuple> = nonces.iter().filter_map(|nonce| peer.named.get(nonce).copied()).collect();
        if closed.is_empty() {
            return;
        }
        for flow in closed {
            let Some(known) = self.flows.get(&flow).cloned() else { continue };
            let entry = known.entry().copied();
            // Whoever holds its far end says that there is none any more: nothing that the socket sends gets anywhere (P-105). The far end
            // itself, which it was introduced by, may have been unable to install it.
            let adopted = matches!(known.stage, Stage::Introduced { origin: Origin::Restored, .. });
            let inside = entry.is_some_and(|entry| entry.end == LocalEnd::Endpoint);
            let ended = adopted && inside && flow.transport == Transport::Tcp;
            if ended && !known.closed {
                let what = "ending a connection that its holder has ended";
                self.output.ask(FlowOp::Abort { flow }, Asked::Effect(what));
            }
            self.forget_flow(&flow);
            if let Some(entry) = entry.filter(|entry| entry.end == LocalEnd::Behind) {
                self.end_moved_flow(&entry);
            } else if !known.closed && !ended && entry.is_none_or(|entry| entry.end != LocalEnd::Passing) {
                // Its socket is still there, and may be introduced again.
                self.flows.put(flow, Flow { stage: Stage::Open, ..known });
                self.return_to_former(now, &flow);
            }
        }
        self.idle_later(now, id);
        self.refresh_sets();
    }

    /// The socket of a datagram flow is gone, which the other end cannot see: it is told, and both forget the flow (P-35).
    pub(crate) fn end_datagram_flow(&mut self, now: Time, flow: &FlowTuple) {
        let stage = self.flows.get(flow).map(|known| known.stage.clone());
        self.forget_flow(flow);
        let Some(Stage::Introduced { entry, .. }) = stage else { return };
        self.end_moved_flow(&entry);
        self.tell_ended(now, entry.peer, entry.name);
        self.idle_later(now, entry.peer);
        self.refresh_sets();
    }

    /// A peer is to be told, in a moment, that a flow of this name has ended here.
    pub(crate) fn tell_ended(&mut self, now: Time, id: PeerId, name: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.introductions.closed.len() < CLOSED_MOST {
            peer.introductions.closed.push((name, 0));
            self.timers.set_earlier(Timer::Closed(id), now + CLOSED_PAUSE);
        }
    }

    /// Tells a peer of datagram flows that ended, so often that it can be taken to know.
    pub(crate) fn tell_closed(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let pause = if peer.has_session() && peer.carries() {
            let closed = &mut peer.introductions.closed;
            let count = closed.len().min(CLOSED_AT_ONCE);
            let mut told: Vec<(u64, u32)> = closed.drain(..count).collect();
            let nonces = told.iter().map(|(nonce, _)| *nonce).collect();
            told.iter_mut().for_each(|(_, times)| *times += 1);
            let least = told.iter().map(|(_, times)| *times).min().unwrap_or_default();
            closed.extend(told.into_iter().filter(|(_, times)| *times < CLOSED_TOLD));
            let more = closed.first().is_some_and(|(_, times)| *times < least);
            self.send(id, &[Message::FlowClosed(nonces)]);
            if more { CLOSED_PAUSE } else { Duration::from_secs(1) }
        } else {
            // When the move is over, or there is a session.
            Duration::from_secs(5)
        };
        if self.peers.get(&id).is_some_and(|peer| !peer.introductions.closed.is_empty()) {
            self.timers.set(Timer::Closed(id), now + pause);
        }
    }
}
