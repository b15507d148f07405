//! What the layers do with messages, timers and facts: each its own, and the rest is passed on.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::op::{PeerId, StoreOp};
use crate::base::output::Asked;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::follow::Update;
use crate::binding::handoff::Acknowledgement;
use crate::flow::messages::Handled;
use crate::session::contact::handshake::Begun;
use crate::session::pins::Held;

impl BindingLayer {
    /// A peer has said something. Gives back what is a role's.
    pub(crate) fn handle_message(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        message: Message,
        answers: &mut Vec<Message>,
        base: &mut Base,
    ) -> Option<Message> {
        match message {
            Message::PathResponse { token, observed } => {
                let is_known = self.handle_path_response(now, id, arrival, token, observed, base);
                return (!is_known).then_some(message);
            }
            Message::Life { life } => self.on_life_in_session(now, id, arrival.index(), life, base),
            Message::Memory { memory } => self.on_memory(now, id, arrival.index(), memory, base),
            Message::BindingUpdate { binding, sequence, flags, claimed, .. } => {
                self.handle_update(now, id, arrival, &Update { binding, sequence, flags, claimed }, answers, base);
            }
            Message::BindingAcknowledgement { binding, sequence, status, flags, newest, place, observed } => {
                let acknowledgement = Acknowledgement { binding, sequence, status, flags, newest, place, observed };
                self.handle_acknowledgement(now, id, arrival, &acknowledgement, base);
            }
            // It is alone in a datagram, and has been taken in (P-241).
            Message::MaskedUpdate(_) => {}
            Message::MaskedUpdateSeen { sequence } => self.handle_masked_update_seen(now, id, arrival, sequence, base),
            Message::Chain(request) => self.handle_chain(now, id, arrival.index(), request, base),
            Message::ChainSeen(answer) => self.handle_chain_seen(now, id, arrival.index(), &answer, base),
            Message::Stream(stretch) => {
                if let Some((key, transfer)) = self.transfer_with(id) {
                    transfer.handle_stretch(now, key, stretch, base);
                }
            }
            Message::Received(received) => {
                if let Some((key, transfer)) = self.transfer_with(id) {
                    transfer.handle_received(now, key, &received, base);
                }
            }
            Message::Placed(placed) => self.handle_placed(now, id, arrival.index(), &placed, base),
            Message::PlacedSeen(answer) => self.handle_placed_seen(now, id, &answer, base),
            Message::Forgotten { number, lost, names } => {
                self.handle_forgotten(now, id, lost, &names, base);
                answers.push(Message::ForgottenSeen { number });
            }
            Message::ForgottenSeen { number } => self.handle_forgotten_seen(id, number, base),
            Message::PathKept { path } => self.on_path_kept(now, id, arrival, path, base),
            Message::Locators(locators) => self.take_locators(now, id, locators, base),
            Message::ProbeSeen { token } => self.handle_probe_seen(now, id, token, base),
            message => match self.flow.handle_message(now, id, arrival, message, answers, base) {
                Handled::Done => {}
                Handled::Proven(proven) => self.install(now, proven, base),
                Handled::Other(message) => return Some(message),
            },
        }
        None
    }

    /// A peer tells all of its addresses. They are kept over a restart, as long as flows may have to be led there, and
    /// no oftener written down than moves of the peer.
    fn take_locators(&mut self, now: Time, id: PeerId, locators: Vec<IpAddr>, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let is_new = peer.path.set_locators(locators) && !peer.flow.flows().is_empty();
        if !is_new || !self.flow.follows(now, id) {
            return;
        }
        if let Some(peer) = bound!(self, &id) {
            base.ask(StoreOp::SavePeer(peer.saved()), Asked::Effect("saving a peer"));
        }
    }

    /// A timer has gone off. Tells whether it is one of the layers'.
    pub(crate) fn handle_timer(&mut self, now: Time, timer: Timer, base: &mut Base) -> bool {
        match timer {
            Timer::Contact(address) => self.flow.session_mut().continue_contact(now, address, base),
            Timer::Looks => self.flow.continue_looks(now, base),
            Timer::Introductions(id) => self.introduce(now, id, base),
            Timer::Pairings(id) => self.flow.search_for_claims(now, id, base),
            Timer::Unaccepted(id) => self.flow.end_unaccepted(now, id, base),
            Timer::Paused(id) => self.flow.send_paused(now, id, base),
            Timer::Wake(id) => self.flow.wake_flows(now, id, base),
            Timer::Update(id) => self.repeat_update(now, id, base),
            Timer::Challenge(id) => self.repeat_challenge(now, id, base),
            Timer::Path(id, path) => {
                self.keep_ready(now, id, base);
                self.flow.path_mut().challenge_kept(now, id, path, base);
            }
            Timer::Placed(id) => self.handle_placed_timeout(now, id, base),
            Timer::Fallback(id) => self.look_at_fallback(now, id, base),
            Timer::Probe(id) => self.probe_carrier(now, id, base),
            Timer::Keepalive(id) => self.keep_alive(now, id, base),
            Timer::Mapping(id) => self.renew_mapping(now, id, base),
            Timer::Unanswered(id) => self.tell_doubt(now, id, base),
            Timer::Former(id) => self.forget_former(now, id, base),
            Timer::Show(id) => self.show_session(now, id, base),
            Timer::Park(id) => self.park_late(now, id, base),
            Timer::Shared => self.regain_pairs(now, base),
            Timer::Vanished(id) => self.end_vanished(now, id, base),
            Timer::Listening => self.refresh_listening(now, base),
            Timer::Forgotten(id) => self.say_forgotten(now, id, base),
            Timer::Mend => self.mend(now, base),
            Timer::Mended => self.rest_mending(now, base),
            Timer::Records => self.transfer.iter_mut().for_each(|transfer| transfer.handle_timeout(now, base)),
            _ => return false,
        }
        true
    }

    /// Something has happened in a layer below, or in a role.
    pub(crate) fn handle_signal(&mut self, now: Time, signal: &Signal, base: &mut Base) {
        match signal {
            Signal::Listening => self.listen_also(now, base),
            Signal::Waiting(id) => self.apply_binding(now, *id, base),
            Signal::Misled(id) => self.announce_again(now, *id, base),
            Signal::FlowsGone => self.refresh_sets(base),
            Signal::SessionsGone(id) => {
                self.end_chains(*id, base);
                self.sides_changed(*id);
            }
            Signal::PathChanged(id) => {
                self.sides_changed(*id);
                if bound!(self, id).is_some_and(|peer| peer.path.strays()) {
                    self.refresh_sets(base);
                }
                self.try_family_again(now, *id, base);
            }
            Signal::Answered(id) => {
                self.sides_changed(*id);
                self.try_family_again(now, *id, base);
            }
            Signal::Moving(id) | Signal::Unanswered(id) => self.sides_changed(*id),
            Signal::NetworkChanged | Signal::Returned => self.all_sides_changed(),
            Signal::SessionUp(id) => {
                self.keep_ready(now, *id, base);
                self.flow.path_mut().tell_kept(now, *id, base);
                self.say_placed_again(now, *id, base);
                self.say_forgotten(now, *id, base);
                if let Some((key, transfer)) = self.transfer_with(*id) {
                    transfer.handle_session(&key);
                }
            }
            Signal::Granted(grant) => self.permits_mut().into_iter().for_each(|permits| permits.grant(now, *grant)),
            Signal::Members { members, revoked, limited } => {
                if let Some(permits) = self.permits_mut() {
                    permits.set_members(members.clone(), revoked.clone(), *limited);
                }
            }
            _ => {}
        }
    }

    /// Introductions of a peer go on, once its move or this host's is over.
    fn introduce(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let held = self.held(id);
        if held.updating && held.introductions {
            base.set_timer(Timer::Introductions(id), now + Duration::from_secs(1));
        } else {
            self.flow.continue_introductions(now, id, base);
        }
    }

    /// A session begins: what its handshake says of where the two met.
    pub(crate) fn note_begun(&mut self, begun: &Begun, held: Held, base: &Base) {
        let met = self.flow.path_mut().on_begun(begun, held, base);
        self.meet_at(begun.id, met);
        if let Some(peer) = self.peers.get_mut(&begun.id).filter(|peer| begun.again && peer.sequence_sent > 0) {
            // It may have started anew and not know where we are.
            peer.unannounced = true;
        }
    }

    /// A peer that has no flows is met at another endpoint: which it claims, and which it is seen at.
    pub(crate) fn meet_at(&mut self, id: PeerId, met: Option<(SocketAddr, SocketAddr)>) {
        if let (Some(mut peer), Some((claimed, observed))) = (bound_mut!(self, &id), met) {
            peer.meet_at(claimed, observed);
        }
    }

    /// Former paths of a peer are no longer accepted (P-22).
    fn forget_former(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if let Some(peer) = bound_mut!(self, &id) {
            peer.binding.former.clear();
            self.apply_binding(now, id, base);
        }
    }
}
