//! What comes of the ops that the caller carries out. What failed and matters is tried again.

use std::time::Duration;

use whimbrel_wire::message::{IntroductionRefusal, Message};
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::event::Event;
use crate::base::op::{FlowOp, LocalEnd, PeerId};
use crate::base::output::{Asked, MoveAsked, OpDone, OpFailed, OpId, State};
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::flow::known::{Origin, Stage};
use crate::flow::life::CLOSED_PAUSE;
use crate::node::Node;

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
        if let (&Asked::Use(flow), Ok(OpDone::Used(ago))) = (&asked, &result) {
            self.binding.flow_mut().handle_use(now, &flow, *ago, &mut self.base);
            return;
        }
        if let (&Asked::Traffic(peer, between), Ok(OpDone::Heard(ago))) = (&asked, &result) {
            let heard = ago.map(|ago| now - ago);
            self.act(now, |roles, at| roles.links.handle_heard(peer, between, heard, at));
            return;
        }
        if let (&Asked::Windows(peer, left), Ok(OpDone::Windows(had))) = (&asked, &result) {
            self.binding.handle_windows(now, peer, left, *had);
            return;
        }
        let Err(error) = result else {
            match asked {
                Asked::Install(flow) => self.binding.flow_mut().confirm_installed(&flow, &mut self.base),
                Asked::Lead(flow) => self.binding.handle_led(flow, Ok(()), &mut self.base),
                Asked::Adopt(name) => self.base.signal(Signal::Adopted { name, result: Ok(()) }),
                Asked::Say(peer, source, to, messages) => {
                    self.binding.path_mut().send_to(peer, source, to, &messages, &mut self.base)
                }
                Asked::State(_, State::Binding(of)) => self.binding.on_binding_done(now, of.peer(), id, &mut self.base),
                _ => {}
            }
            return;
        };
        match asked {
            // The introducer's next try begins it anew.
            Asked::Answer(id, flow) => {
                self.binding.flow_mut().forget_responding(id, &flow);
            }
            Asked::FindSockets(id) => self.binding.flow_mut().on_not_found(now, id, &mut self.base),
            // It says so again. What moves have asked for has gone to them.
            Asked::Say(..) | Asked::Move(_) | Asked::Chain(..) => {}
            // It is asked again when that is due. Nothing is known of what comes: the peer is asked.
            Asked::Use(_) | Asked::Traffic(..) => {}
            // They go on as anywhere else.
            Asked::Windows(..) => {}
            Asked::Install(flow) => {
                self.undo_installed(now, &flow);
                self.base.event(Event::OpFailed { what: format!("making {flow} movable"), error: error.sentence });
            }
            Asked::Lead(flow) => self.binding.handle_led(flow, Err(error.sentence), &mut self.base),
            Asked::Adopt(name) => self.base.signal(Signal::Adopted { name, result: Err(error.sentence) }),
            Asked::Effect(what) => self.base.event(Event::OpFailed { what: what.to_owned(), error: error.sentence }),
            Asked::State(what, state) => {
                self.base.event(Event::OpFailed { what: what.to_owned(), error: error.sentence });
                self.binding.on_failed(now, state, id, &mut self.base);
            }
        }
    }

    /// A flow could not be installed. The other end must not take it as movable.
    fn undo_installed(&mut self, now: Time, flow: &FlowTuple) {
        let Some(Stage::Introduced { entry, origin }) =
            self.binding.flow().flows().get(flow).map(|known| known.stage().clone())
        else {
            return;
        };
        self.binding.flow_mut().flows_mut().set_stage(flow, Stage::Open);
        if let Some(peer) = self.binding.flow_mut().peer_mut(&entry.peer) {
            peer.flow.remove_flow(flow, &entry);
        }
        match origin {
            Origin::Answered { introducer_nonce: nonce, .. } | Origin::Paired { introducer_nonce: nonce, .. } => {
                let outcome = Err(IntroductionRefusal::Busy);
                self.binding.path_mut().send(
                    entry.peer,
                    &[Message::IntroductionDone { nonce, outcome }],
                    &mut self.base,
                );
            }
            Origin::Introduced => {
                self.binding.path_mut().send(entry.peer, &[Message::FlowClosed(vec![entry.name])], &mut self.base);
                self.binding.flow_mut().introduce_again(now, flow, &mut self.base);
            }
            Origin::Restored => {}
        }
        self.act(now, |roles, at| roles.referral.return_to_former(flow, at));
        self.roles.gateway.doubt(now, flow, entry.peer, &mut self.base);
        self.binding.flow_mut().idle_later(now, entry.peer, &mut self.base);
        self.binding.refresh_sets(&mut self.base);
    }

    /// The peer could not install these flows, or its sockets are gone (P-35).
    pub(crate) fn handle_flows_closed(&mut self, now: Time, id: PeerId, nonces: &[u64]) {
        let Some(peer) = self.binding.flow().peer(&id) else { return };
        let closed: Vec<FlowTuple> = nonces.iter().filter_map(|nonce| peer.flow.named(*nonce)).collect();
        if closed.is_empty() {
            return;
        }
        for flow in closed {
            let Some(known) = self.binding.flow().flows().get(&flow).cloned() else { continue };
            let entry = known.entry().copied();
            let passes = entry.is_some_and(|entry| entry.end == LocalEnd::Passing);
            if passes && flow.transport == Transport::Tcp {
                // The last segments of either end may still come, and come again (P-103).
                if !known.is_closed() {
                    self.binding.flow_mut().flows_mut().close(now, flow);
                }
                continue;
            }
            // Whoever holds its far end says that there is none any more: nothing that the socket sends gets anywhere
            // (P-105). The far end itself, which it was introduced by, may have been unable to install it.
            let adopted = matches!(known.stage(), Stage::Introduced { origin: Origin::Restored, .. });
            let inside = entry.is_some_and(|entry| entry.end == LocalEnd::Endpoint);
            let ended = adopted && inside && flow.transport == Transport::Tcp;
            if ended && !known.is_closed() {
                let what = "ending a connection that its holder has ended";
                self.base.ask(FlowOp::Abort { flow }, Asked::Effect(what));
            }
            self.binding.flow_mut().forget_flow(&flow, &mut self.base);
            if let Some(entry) = entry.filter(|entry| entry.end == LocalEnd::Behind) {
                self.binding.flow_mut().end_moved(&entry, &mut self.base);
            } else if !known.is_closed() && !ended && entry.is_none_or(|entry| entry.end != LocalEnd::Passing) {
                // Its socket is still there, and may be introduced again.
                self.binding.flow_mut().reopen(now, flow, known, &self.base);
                self.act(now, |roles, at| roles.referral.return_to_former(&flow, at));
            }
        }
        self.binding.flow_mut().idle_later(now, id, &mut self.base);
        self.binding.refresh_sets(&mut self.base);
    }

    /// Tells a peer of datagram flows that ended, so often that it can be taken to know.
    pub(crate) fn send_closed(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.binding.peer(&id) else { return };
        let pause = if peer.has_session() && peer.carries() {
            let Some((names, more)) = self.binding.flow_mut().take_ended(id) else { return };
            self.binding.path_mut().send(id, &[Message::FlowClosed(names)], &mut self.base);
            if more { CLOSED_PAUSE } else { Duration::from_secs(1) }
        } else {
            // When the move is over, or there is a session.
            Duration::from_secs(5)
        };
        if self.binding.flow().peer(&id).is_some_and(|peer| peer.flow.has_ended()) {
            self.base.set_timer(Timer::Closed(id), now + pause);
        }
    }
}
