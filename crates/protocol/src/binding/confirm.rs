//! What comes of challenges: a path is confirmed, or is not.

use std::net::{IpAddr, SocketAddr};

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
use crate::flow::stall::Shown;
use crate::path::challenge::{Awaited, Claim, Said};

impl BindingLayer {
    /// Repeats the challenge to an endpoint that has not answered, or gives it up.
    pub(crate) fn repeat_challenge(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        if let Some((to, token, tries)) = peer.path.try_rival_again() {
            // P-17
            let (source, again) = (peer.path.source(), peer.path.repeat_after(tries));
            base.set_timer(Timer::Challenge(id), now + again);
            self.flow.path_mut().send_to(id, source, to, &[Message::PathChallenge { token }], base);
        }
        let Some(peer) = bound_mut!(self, &id) else { return };
        let Some(candidate) = peer.path.candidate_mut().filter(|candidate| !candidate.is_given_up()) else { return };
        let to = candidate.remote();
        let Some((token, tries)) = candidate.try_again() else {
            match candidate.claim() {
                // P-38: the former path goes on. Whatever comes from there has it challenged again.
                Claim::Awaited(awaited) | Claim::Doubted(awaited) => {
                    if candidate.doubt(awaited) {
                        let reason = "its new place does not answer the path challenge, so its connections stay at \
                                      the former one";
                        base.event(Event::Refused { peer: id, reason });
                        self.apply_binding(now, id, base);
                    }
                }
                // Somebody sent a datagram of the peer's from elsewhere. That means nothing.
                Claim::Mapping => peer.path.drop_candidate(),
                // Nobody there. The flows wait for the next update, or for anything to come from there.
                Claim::Announced => {
                    peer.binding.carrier = Carrier::Hold;
                    self.apply_binding(now, id, base);
                    base.event(Event::Refused { peer: id, reason: "its new place does not answer the path challenge" });
                }
            }
            return;
        };
        let (source, again) = (peer.path.source(), peer.path.repeat_after(tries));
        base.set_timer(Timer::Challenge(id), now + again);
        self.flow.path_mut().send_to(id, source, to, &[Message::PathChallenge { token }], base);
    }

    /// An answer to a challenge: of a candidate, of an address that an update went to, or of a check of the present
    /// path. Tells whether it was one of these.
    pub(crate) fn handle_path_response(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        token: u64,
        observed: SocketAddr,
        base: &mut Base,
    ) -> bool {
        if let Some(at) = self.flow.path_mut().on_asked_answer(now, id, token, observed, base) {
            if at.is_some() {
                self.record_sighting(now, id, at, base);
            }
            return true;
        }
        let Some(peer) = self.flow.peer_mut(&id) else { return false };
        // The answer to a question from where this host was before says nothing of where it is.
        let here = arrival.destination.is_none_or(|destination| Some(destination) == peer.path.source());
        let at = (here && arrival.source == peer.path.remote()).then_some(arrival.source);
        if let Some(took) = peer.path.take_pong(now, token, observed) {
            if at.is_some() {
                peer.path.sample_by_hand(took);
            }
            return true;
        }
        if let Some(shown) = peer.path.handle_check(now, token, at.map(|_| observed)) {
            let of_stalls = peer.flow.stalls().on_answer(now);
            if shown {
                self.apply_binding(now, id, base);
            }
            self.record_sighting(now, id, at, base);
            self.check_later(now, id, base);
            self.tell_confirmed(id, base);
            match of_stalls {
                Shown::Nothing => {}
                Shown::Suspicion => base.set_timer(Timer::Keepalive(id), now),
                Shown::Standstill => self.fall_back(now, id, base),
            }
            return true;
        }
        if peer.path.shown().handle_answer(now, token) {
            return true;
        }
        if let Some(at) = self.flow.path_mut().on_kept_answer(now, id, token, observed, base) {
            self.record_sighting(now, id, Some(at), base);
            return true;
        }
        if let Some(direct) = self.flow.path_mut().paths_mut(&id).and_then(|paths| paths.take_direct_answer(token)) {
            self.return_to_udp(now, id, direct, base);
            return true;
        }
        let Some(mut peer) = bound_mut!(self, &id) else { return false };
        // A token proves the way that it was sent by, whichever way it comes back (as RFC 9000 §8.2.3 has it): somebody
        // between the ends may send the answer on from elsewhere.
        if let Some(update) = peer.binding.update.as_mut()
            && let Some((asked, _)) = update.asked.iter().find(|(_, sent)| *sent == token)
        {
            update.proven = Some(*asked);
            return true;
        }
        let Some((candidate, said)) = peer.path.take_answered(token) else { return false };
        if peer.path.is_uncontested() {
            base.stop_timer(Timer::Challenge(id));
        }
        let (remote, mut claim) = (candidate.remote(), candidate.claim());
        let lost = said.is_some_and(|said| said.flags.contains(UpdateFlags::FORMER_PATH_LOST));
        if let Some(Said { claimed, flags, destination }) = said {
            let place = peer.number_place(peer.binding.sequence_accepted, claimed, remote, flags);
            let refuses_rewrite = flags.contains(UpdateFlags::REWRITE_REFUSED);
            claim = Claim::Awaited(Awaited { place, refuses_rewrite, translated: claimed != remote, destination });
        }
        if let Some(awaited) = claim.awaited() {
            let asked = awaited.destination;
            let asked = asked.and_then(|address| base.attachments().at(address));
            peer.follow(now, awaited, asked);
            peer.binding.unbroken = !lost;
        }
        peer.path.confirm(remote);
        let (round_trip, is_certain) = candidate.age(now);
        if is_certain {
            peer.path.sample_round_trip(round_trip);
        }
        peer.follow_mapping(remote);
        self.record_sighting(now, id, Some(remote), base);
        // What was asked elsewhere in vain says nothing of this endpoint.
        self.check_anew(now, id, Some(remote), true, base);
        if base.has_timer(Timer::Keepalive(id)) {
            self.keep_ready(now, id, base);
        } else {
            self.check_later(now, id, base);
        }
        let flows = self.living(id);
        if let Some(&Awaited { translated, place, destination, .. }) = claim.awaited() {
            if said.is_some() {
                self.acknowledge_late(id, place, destination, remote, base);
            }
            self.lead_flows(now, id, base);
            self.flow.end_doubts(now, base);
            self.flow.echo_again(now, id, base);
            if flows > 0 {
                let carried = self.carried(id);
                base.event(Event::PeerMoved { peer: id, to: remote, translated, flows, carried });
            }
        } else {
            if self.holds(id) {
                self.choose_carrier(now, id, base);
            }
            self.set_tunnel_path(id, base);
            self.apply_binding(now, id, base);
            self.refresh_sets(base);
            self.refresh_listening(now, base);
        }
        if lost || matches!(claim, Claim::Announced | Claim::Doubted(_)) {
            // The allowance may have been used up; what was dropped then is not waited for.
            self.flow.wake_senders(now, id, lost, base);
        }
        self.end_doubt(id, base);
        self.tell_fallback(id, base);
        let carried = self.carried(id);
        base.event(Event::PathConfirmed { peer: id, remote, round_trip, carried });
        // Where both ends moved at once, an update may be answered before this place is confirmed: until now there was
        // no pair to probe (P-40).
        if bound!(self, &id).is_some_and(|peer| peer.carries() && peer.moved_flows() > 0) {
            self.probe_carrier(now, id, base);
        }
        true
    }

    /// Accepts an update where one of the two sources that it came from has answered (P-17).
    fn acknowledge_late(
        &mut self,
        id: PeerId,
        place: u32,
        source: Option<IpAddr>,
        observed: SocketAddr,
        base: &mut Base,
    ) {
        let (flags, Some(saved)) = (self.own_flags(id, base), self.saved(id)) else { return };
        let (sequence, status) = (saved.sequence_accepted, BindingStatus::Accepted);
        let binding = BindingNumber::FIRST;
        let accepted =
            Message::BindingAcknowledgement { binding, sequence, status, flags, newest: sequence, place, observed };
        base.ask(StoreOp::SavePeer(saved), Asked::Say(id, source, observed, vec![accepted]));
    }
}
