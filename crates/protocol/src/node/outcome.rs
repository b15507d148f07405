//! What comes of the ops that the caller carries out. What failed and matters is tried again.

use std::time::Duration;

use whimbrel_wire::message::{IntroductionRefusal, Message};
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::event::Event;
use crate::base::op::{FlowOp, LocalEnd, PeerId, TunnelOp};
use crate::base::output::{Asked, MoveAsked, OpDone, OpFailed, OpId, State};
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::flow::known::{Origin, Stage};
use crate::flow::life::CLOSED_PAUSE;
use crate::node::Node;

/// Pause before failed ops are asked for again, at first and at the longest.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_DOUBLINGS: u32 = 7;

impl Node {
    /// The result of an op.
    pub fn handle_done(&mut self, now: Time, id: OpId, result: Result<OpDone, OpFailed>) {
        self.take_done(now, id, result);
        self.settle(now);
    }

    fn take_done(&mut self, now: Time, id: OpId, result: Result<OpDone, OpFailed>) {
        let Some(asked) = self.base.answered(id) else { return };
        if let Asked::Move(asked) = asked {
            match (asked, result) {
                (MoveAsked::Effect(what, op), Err(failed)) => {
                    self.binding.handle_failed(now, what, *op, failed.sentence, &mut self.base);
                }
                (asked, result) => self.act(now, |roles, at| roles.handle_done(asked, result, at)),
            }
            return;
        }
        if let Asked::Chain(peer, chain) = asked {
            self.binding.handle_chain_done(now, peer, chain, result, &mut self.base);
            return;
        }
        let Err(error) = result else {
            match asked {
                Asked::Install(flow) => self.binding.flow.confirm_installed(&flow, &mut self.base),
                Asked::Lead(flow) => self.binding.handle_led(flow, Ok(()), &mut self.base),
                Asked::Adopt(name) => self.base.signal(Signal::Adopted { name, result: Ok(()) }),
                Asked::Say(peer, source, to, messages) => {
                    self.binding.flow.path_mut().send_to(peer, source, to, &messages, &mut self.base)
                }
                Asked::State(_, State::Binding(of)) => self.binding.on_binding_done(now, of.peer(), id, &mut self.base),
                _ => {}
            }
            return;
        };
        match asked {
            // The introducer's next try begins it anew.
            Asked::Answer(id, flow) => {
                self.binding.flow.forget_responding(id, &flow);
            }
            Asked::FindSockets(id) => self.binding.flow.on_not_found(now, id, &mut self.base),
            // It says so again. What moves have asked for has gone to them.
            Asked::Say(..) | Asked::Move(_) | Asked::Chain(..) => {}
            Asked::Install(flow) => {
                self.undo_installed(now, &flow);
                self.base.event(Event::OpFailed { what: format!("making {flow} movable"), error: error.sentence });
            }
            Asked::Lead(flow) => self.binding.handle_led(flow, Err(error.sentence), &mut self.base),
            Asked::Adopt(name) => self.base.signal(Signal::Adopted { name, result: Err(error.sentence) }),
            Asked::Effect(what) => self.base.event(Event::OpFailed { what: what.to_owned(), error: error.sentence }),
            Asked::State(what, state) => {
                self.binding.failed.insert(state);
                self.base
                    .set_timer_earlier(Timer::Mend, now + PAUSE * 2u32.pow(self.binding.mended.min(PAUSE_DOUBLINGS)));
                self.base.event(Event::OpFailed { what: what.to_owned(), error: error.sentence });
                if let State::Binding(of) = state {
                    self.binding.on_binding_done(now, of.peer(), id, &mut self.base);
                }
            }
        }
    }

    /// Asks again for what failed.
    pub(crate) fn mend(&mut self, now: Time) {
        let failed = std::mem::take(&mut self.binding.failed);
        self.binding.mended = self.binding.mended.saturating_add(1);
        for state in failed {
            match state {
                State::Keys(id) => self.add_keys(id),
                State::Path(id) => self.binding.set_tunnel_path(id.peer(), &mut self.base),
                State::Binding(id) => self.binding.apply_binding(now, id.peer(), &mut self.base),
                State::Sets => self.binding.apply_sets(&mut self.base),
                State::Listening => self.binding.apply_listening(&mut self.base),
            }
        }
        // Once they have succeeded for long enough, the next failure is the first one.
        self.base.set_timer_earlier(Timer::Mended, now + PAUSE * 2u32.pow(PAUSE_DOUBLINGS));
    }

    /// Nothing has failed for a while.
    pub(crate) fn rest_mending(&mut self, now: Time) {
        if self.binding.failed.is_empty() {
            self.binding.mended = 0;
        } else {
            self.base.set_timer_earlier(Timer::Mended, now + PAUSE * 2u32.pow(PAUSE_DOUBLINGS));
        }
    }

    fn add_keys(&mut self, id: PeerId) {
        let Some(peer) = self.binding.flow.session().peer(&id) else { return };
        let sessions = peer.slots();
        let all: Vec<_> = sessions
            .map(|slot| (slot.local_index(), slot.session().tunnel_keys().clone(), slot.seals_with_aes()))
            .collect();
        for (receive_index, keys, aes) in all {
            let asked = Asked::State("adding tunnel keys", State::Keys(id));
            self.base.ask(TunnelOp::AddKeys { peer: id, receive_index, keys, aes }, asked);
        }
        self.binding.set_tunnel_path(id, &mut self.base);
    }

    /// A flow could not be installed. The other end must not take it as movable.
    fn undo_installed(&mut self, now: Time, flow: &FlowTuple) {
        let Some(Stage::Introduced { entry, origin }) =
            self.binding.flow.flows().get(flow).map(|known| known.stage().clone())
        else {
            return;
        };
        self.binding.flow.flows_mut().set_stage(flow, Stage::Open);
        if let Some(peer) = self.binding.flow.peer_mut(&entry.peer) {
            peer.flow.remove_flow(flow, &entry);
        }
        match origin {
            Origin::Answered { introducer_nonce: nonce, .. } | Origin::Paired { introducer_nonce: nonce, .. } => {
                let outcome = Err(IntroductionRefusal::Busy);
                self.binding.flow.path_mut().send(
                    entry.peer,
                    &[Message::IntroductionDone { nonce, outcome }],
                    &mut self.base,
                );
            }
            Origin::Introduced => {
                self.binding.flow.path_mut().send(entry.peer, &[Message::FlowClosed(vec![entry.name])], &mut self.base);
                self.binding.flow.introduce_again(now, flow, &mut self.base);
            }
            Origin::Restored => {}
        }
        self.act(now, |roles, at| roles.referral.return_to_former(flow, at));
        self.roles.gateway.doubt(now, flow, entry.peer, &mut self.base);
        self.binding.flow.idle_later(now, entry.peer, &mut self.base);
        self.binding.refresh_sets(&mut self.base);
    }

    /// The peer could not install these flows, or its sockets are gone (P-35).
    pub(crate) fn handle_flows_closed(&mut self, now: Time, id: PeerId, nonces: &[u64]) {
        let Some(peer) = self.binding.flow.peer(&id) else { return };
        let closed: Vec<FlowTuple> = nonces.iter().filter_map(|nonce| peer.flow.named(*nonce)).collect();
        if closed.is_empty() {
            return;
        }
        for flow in closed {
            let Some(known) = self.binding.flow.flows().get(&flow).cloned() else { continue };
            let entry = known.entry().copied();
            // Whoever holds its far end says that there is none any more: nothing that the socket sends gets anywhere
            // (P-105). The far end itself, which it was introduced by, may have been unable to install it.
            let adopted = matches!(known.stage(), Stage::Introduced { origin: Origin::Restored, .. });
            let inside = entry.is_some_and(|entry| entry.end == LocalEnd::Endpoint);
            let ended = adopted && inside && flow.transport == Transport::Tcp;
            if ended && !known.is_closed() {
                let what = "ending a connection that its holder has ended";
                self.base.ask(FlowOp::Abort { flow }, Asked::Effect(what));
            }
            self.binding.flow.forget_flow(&flow, &mut self.base);
            if let Some(entry) = entry.filter(|entry| entry.end == LocalEnd::Behind) {
                self.binding.flow.end_moved(&entry, &mut self.base);
            } else if !known.is_closed() && !ended && entry.is_none_or(|entry| entry.end != LocalEnd::Passing) {
                // Its socket is still there, and may be introduced again.
                self.binding.flow.flows_mut().put(flow, known.reopened());
                self.act(now, |roles, at| roles.referral.return_to_former(&flow, at));
            }
        }
        self.binding.flow.idle_later(now, id, &mut self.base);
        self.binding.refresh_sets(&mut self.base);
    }

    /// Tells a peer of datagram flows that ended, so often that it can be taken to know.
    pub(crate) fn send_closed(&mut self, now: Time, id: PeerId) {
        let Some(peer) = bound_mut!(self.binding, &id) else { return };
        let pause = if peer.has_session() && peer.carries() {
            let (names, more) = peer.flow.take_ended();
            self.binding.flow.path_mut().send(id, &[Message::FlowClosed(names)], &mut self.base);
            if more { CLOSED_PAUSE } else { Duration::from_secs(1) }
        } else {
            // When the move is over, or there is a session.
            Duration::from_secs(5)
        };
        if self.binding.flow.peer(&id).is_some_and(|peer| peer.flow.has_ended()) {
            self.base.set_timer(Timer::Closed(id), now + pause);
        }
    }
}
