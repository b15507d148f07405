//! A peer moves: it says so, and its flows go where it is (`docs/protocol.md` §5).

use std::net::SocketAddr;

use whimbrel_wire::BindingNumber;
use whimbrel_wire::message::{BindingStatus, Message, UpdateFlags};

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::event::Event;
use crate::base::op::{Carrier, PeerId, StoreOp};
use crate::base::output::Asked;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::handoff::SEQUENCES;
use crate::flow::peers::Away;
use crate::path::challenge::{Awaited, Claim, Path, Said};

impl BindingLayer {
    /// The peer moved (or says so). `answers`: what is to be said beside the acknowledgement.
    pub(crate) fn handle_update(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        update: &Update,
        answers: &mut Vec<Message>,
        base: &mut Base,
    ) {
        if self.answer_with_forgotten(id, arrival, base) {
            return;
        }
        let flags_here = self.own_flags(id, base);
        let Update { binding, sequence, flags, claimed } = *update;
        let Some(peer) = bound_mut!(self, &id) else { return };
        let acknowledgement = update.acknowledgement(arrival.source);
        // P-17, P-185
        if sequence >= SEQUENCES || binding != BindingNumber::FIRST {
            let (newest, place) = (peer.binding.sequence_accepted, peer.flow.places().peer);
            answers.push(acknowledgement(BindingStatus::Refused, flags_here, newest, place));
            return;
        }
        let (place, endpoint, _) = peer.announced();
        // A daemon that died before it had saved that its host was to be absent begins anew at the same number.
        let absent = flags.contains(UpdateFlags::ABSENT) == (peer.flow.away() == Some(Away::Announced));
        let newest = sequence == peer.binding.sequence_accepted && absent;
        let repeated = newest && endpoint == arrival.source;
        // It comes from a second place, and nobody has answered at the first: one of the two is a copy of somebody's.
        let is_first = |first: &&Path| newest && !repeated && first.is_told() && first.remote() == endpoint;
        let first = peer.path.candidate().filter(is_first).cloned();
        let named = first.is_some() && claimed == arrival.source;
        let said = Some(Said { claimed, flags, destination: arrival.destination });
        if sequence <= peer.binding.sequence_accepted && !named {
            if first.is_some() {
                let token = base.random().u64();
                if peer.path.contest(Path::announced(arrival, token, now, Claim::Mapping), said) {
                    base.set_timer_earlier(Timer::Challenge(id), now + peer.path.repeat_after(1));
                    answers.push(Message::PathChallenge { token });
                    return;
                }
                if let Some(token) = peer.path.challenge_to(arrival.source) {
                    // Which place the peer is told that it has is decided with that.
                    answers.push(Message::PathChallenge { token });
                    return;
                }
            }
            let status = if repeated { BindingStatus::Accepted } else { BindingStatus::NotNewer };
            answers.push(acknowledgement(status, flags_here, peer.binding.sequence_accepted, place));
            let challenge = peer.path.challenge_to(arrival.source).filter(|_| repeated);
            answers.extend(challenge.map(|token| Message::PathChallenge { token }));
            return;
        }
        // P-143: whoever means it says so again.
        if self.flow.follows(now, id) {
            self.accept_update(now, id, arrival, update, answers, base);
            if let (Some(first), Some(peer)) = (first, bound_mut!(self, &id)) {
                peer.path.contest(first, said);
            }
        }
    }

    /// An update of a peer's is newer than what it said before.
    fn accept_update(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        update: &Update,
        answers: &mut Vec<Message>,
        base: &mut Base,
    ) {
        let mut flags_here = self.own_flags(id, base);
        let Update { sequence, flags, claimed, .. } = *update;
        let acknowledgement = update.acknowledgement(arrival.source);
        let Some(peer) = bound_mut!(self, &id) else { return };
        if flags.contains(UpdateFlags::ABSENT) {
            peer.binding.sequence_accepted = sequence;
            let (place, ..) = peer.announced();
            answers.push(acknowledgement(BindingStatus::Accepted, flags_here, sequence, place));
            self.flow.path_mut().send_to(id, arrival.destination, arrival.source, answers, base);
            answers.clear();
            self.let_go(now, id, base);
            return;
        }
        let returned = peer.flow.set_away(None).is_some();
        self.sides_due.extend(self.sided.get(&id));
        if returned {
            // What went unanswered says nothing of where it is now.
            peer.path.forget_checks();
        }
        self.hurry(now, id, base);
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        let before = peer.announced();
        if sequence > peer.binding.sequence_accepted {
            peer.path.drop_rival();
        }
        let place = peer.number_place(sequence, claimed, arrival.source, flags);
        peer.binding.sequence_accepted = sequence;
        if std::mem::take(&mut peer.binding.only_tunnel) && (place, arrival.source) == (before.0, before.1) {
            peer.binding.only_tunnel = true;
        } else {
            flags_here = self.own_flags(id, base);
        }
        answers.push(acknowledgement(BindingStatus::Accepted, flags_here, sequence, place));
        let Some(peer) = bound_mut!(self, &id) else { return };
        let refuses = flags.contains(UpdateFlags::REWRITE_REFUSED);
        if (place, arrival.source, refuses) == before && !returned {
            // It only makes sure that we know.
            let challenge = peer.path.challenge_to(arrival.source);
            answers.extend(challenge.map(|token| Message::PathChallenge { token }));
            let saved = peer.saved();
            base.ask(StoreOp::SavePeer(saved), Asked::Effect("saving a peer"));
            self.send_again(now, id, flags, base);
            return;
        }
        let translated = claimed != arrival.source;
        let awaited = Awaited { place, refuses_rewrite: refuses, translated, destination: arrival.destination };
        self.follow_peer(now, id, arrival, awaited, flags, returned, answers, base);
    }

    /// What was under way in the tunnel of a peer that stays where it is may be lost (P-226).
    fn send_again(&mut self, now: Time, id: PeerId, flags: UpdateFlags, base: &mut Base) {
        let waited = bound!(self, &id).is_some_and(|peer| peer.moved_flows() > 0);
        if waited && flags.contains(UpdateFlags::TUNNEL_LOST) && !self.holds(id) {
            self.flow.wake_senders(now, id, true, base);
        }
    }

    /// A peer is elsewhere. `flags`: of its update; `returned`: it was away.
    fn follow_peer(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        awaited: Awaited,
        flags: UpdateFlags,
        returned: bool,
        answers: &mut Vec<Message>,
        base: &mut Base,
    ) {
        let (token, translated) = (base.random().u64(), awaited.translated);
        // What was under way to its former place is lost, or in the tunnel alone, while it was started anew.
        let lost = flags.contains(UpdateFlags::FORMER_PATH_LOST);
        let resend = lost || flags.contains(UpdateFlags::TUNNEL_LOST);
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        let overlaps = !lost && !returned && arrival.source != peer.path.remote() && peer.carries();
        let ready = peer.path.is_ready(now, arrival.source);
        if overlaps && !ready {
            // P-38
            let claim = Claim::Awaited(awaited);
            peer.path.expect(Path::announced(arrival, token, now, claim));
            let again = peer.path.repeat_after(1);
            answers.push(Message::PathChallenge { token });
            base.set_timer(Timer::Challenge(id), now + again);
            self.flow.path_mut().send_to(id, arrival.destination, arrival.source, answers, base);
            answers.clear();
            self.apply_binding(now, id, base);
            self.send_again(now, id, flags, base);
            return;
        }
        // Behind a NAT there are others as well.
        let left = (lost && !peer.translated()).then(|| peer.path.remote().ip());
        let asked = awaited.destination;
        let asked = asked.and_then(|address| base.attachments().at(address));
        peer.follow(now, &awaited, asked);
        peer.binding.unbroken = overlaps;
        peer.flow.set_stalled(false);
        if ready {
            // P-183
            peer.path.follow_ready(now, arrival.source);
        }
        if returned {
            peer.binding.listens = false;
        }
        if arrival.source == peer.path.remote() {
            peer.path.drop_candidate();
            base.stop_timer(Timer::Challenge(id));
        } else {
            // P-18
            peer.path.expect(Path::announced(arrival, token, now, Claim::Announced));
            answers.push(Message::PathChallenge { token });
            let again = peer.path.repeat_after(1);
            base.set_timer(Timer::Challenge(id), now + again);
            self.await_answer(now, id, base);
        }
        let Some(peer) = self.flow.peer(&id) else { return };
        let waited = !peer.flow.flows().is_empty();
        if base.is_suspended() {
            // Whoever is away has been told where the other end is for a long time: nothing else would tell the daemon
            // after this one.
            self.lead_flows(now, id, base);
            let (Some(saved), told) = (self.saved(id), std::mem::take(answers)) else { return };
            let say = Asked::Say(id, arrival.destination, arrival.source, told);
            base.ask(StoreOp::SavePeer(saved), say);
        } else {
            // The answer before the effects: it is what the peer waits for.
            self.flow.path_mut().send_to(id, arrival.destination, arrival.source, answers, base);
            answers.clear();
            self.lead_flows(now, id, base);
        }
        self.flow.end_doubts(now, base);
        if waited && !overlaps && !self.holds(id) {
            self.flow.wake_senders(now, id, resend, base);
        }
        if waited {
            let (flows, carried) = (self.living(id), self.carried(id));
            base.event(Event::PeerMoved { peer: id, to: arrival.source, translated, flows, carried });
        }
        self.flow.echo_again(now, id, base);
        if let Some(left) = left.filter(|left| *left != arrival.source.ip() && !translated) {
            self.flow.end_connecting_to(now, id, left, base);
        }
        self.keep_ready(now, id, base);
    }

    /// Whether nothing of a peer's flows may go anywhere yet. Senders that are woken meanwhile send what is swallowed,
    /// and are spared once it may go (decision 0064).
    pub(super) fn holds(&self, id: PeerId) -> bool {
        bound!(self, &id).is_some_and(|peer| peer.binding.carrier == Carrier::Hold)
    }

    /// The flows of a peer that moved go where it is now.
    pub(crate) fn lead_flows(&mut self, now: Time, id: PeerId, base: &mut Base) {
        base.stop_timer(Timer::Probe(id));
        self.choose_carrier(now, id, base);
        self.set_tunnel_path(id, base);
        self.apply_binding(now, id, base);
        self.turn_windows(now, id, base);
        self.accept_former(now, id, base);
        self.refresh_sets(base);
        self.refresh_listening(now, base);
    }

    pub(super) fn own_flags(&self, id: PeerId, base: &Base) -> UpdateFlags {
        let mut flags = UpdateFlags::NONE;
        if !base.config().tunnel_sealed {
            flags = flags.with(UpdateFlags::PLAIN_TUNNEL_ACCEPTED);
        }
        if !base.config().carriers.rewrite || bound!(self, &id).is_some_and(|peer| peer.binding.only_tunnel) {
            flags = flags.with(UpdateFlags::REWRITE_REFUSED);
        }
        flags
    }
}

/// A binding update, as it stood in the message.
pub(crate) struct Update {
    pub(super) binding: BindingNumber,
    pub(super) sequence: u32,
    pub(super) flags: UpdateFlags,
    pub(super) claimed: SocketAddr,
}

impl Update {
    /// Makes the answers to it, which all tell where it was `observed`.
    fn acknowledgement(
        &self,
        observed: SocketAddr,
    ) -> impl Fn(BindingStatus, UpdateFlags, u32, u32) -> Message + use<> {
        let Self { binding, sequence, .. } = *self;
        move |status, flags, newest, place| Message::BindingAcknowledgement {
            binding,
            sequence,
            status,
            flags,
            newest,
            place,
            observed,
        }
    }
}
