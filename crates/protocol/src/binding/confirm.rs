//! What comes of challenges: a path is confirmed, or is not.

use std::net::SocketAddr;

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::event::Event;
use crate::base::op::{Carrier, PeerId};
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::path::challenge::{Awaited, CHALLENGES};

impl BindingLayer {
    /// Repeats the challenge to an endpoint that has not answered, or gives it up.
    pub(crate) fn repeat_challenge(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        let Some(candidate) = peer.candidate.as_mut() else { return };
        candidate.tries += 1;
        if candidate.tries > CHALLENGES {
            if candidate.awaited.is_some() {
                // P-38: the former path goes on. Whatever comes from there has it challenged again.
                if !std::mem::replace(&mut candidate.doubted, true) {
                    let reason =
                        "its new place does not answer the path challenge, so its connections stay at the former one";
                    base.event(Event::Refused { peer: id, reason });
                    self.apply_binding(now, id, base);
                }
                return;
            }
            if !candidate.announced {
                // Somebody sent a datagram of the peer's from elsewhere. That means nothing.
                peer.candidate = None;
                return;
            }
            // Nobody there. The flows wait for the next update, or for anything to come from there.
            peer.binding.carrier = Carrier::Hold;
            self.apply_binding(now, id, base);
            base.event(Event::Refused { peer: id, reason: "its new place does not answer the path challenge" });
            return;
        }
        let (token, to, tries, source) = (candidate.token, candidate.remote, candidate.tries, peer.source);
        let again = peer.repeat_after(tries);
        base.set_timer(Timer::Challenge(id), now + again);
        self.flow.path.send_to(id, source, to, &[Message::PathChallenge { token }], base);
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
        let Some(mut peer) = peer_mut!(self.flow, &id) else { return false };
        if let Some((expected, sent)) = peer.check
            && expected == token
        {
            peer.check = None;
            let stands = peer.flow.stalls.on_answer(now);
            peer.told = std::mem::take(&mut peer.telling);
            peer.check_tries = 0;
            peer.sample_round_trip(now.since(sent));
            // The answer to a question from where this host was before says nothing of where it is.
            let here = arrival.destination.is_none_or(|destination| Some(destination) == peer.source);
            let at = (here && arrival.source == peer.remote).then_some(arrival.source);
            if at.is_some() {
                peer.observed = Some(observed);
            }
            let shown = peer.unproven && peer.checked == Some(peer.remote.ip());
            peer.unproven &= !shown;
            if shown {
                self.apply_binding(now, id, base);
            }
            self.record_sighting(now, id, at, base);
            self.check_later(now, id, base);
            if stands {
                self.fall_back(now, id, base);
            }
            return true;
        }
        if self.flow.path.session.peers.get_mut(&id).is_some_and(|peer| peer.shown.handle_answer(now, token)) {
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
        let confirmed = peer.candidate.take_if(|candidate| candidate.token == token);
        let Some(candidate) = confirmed else { return false };
        base.stop_timer(Timer::Challenge(id));
        if let Some(awaited) = &candidate.awaited {
            let asked = awaited.destination;
            let asked = asked.and_then(|address| base.attachments().at(address));
            peer.follow(now, awaited, asked);
            peer.binding.unbroken = true;
        }
        peer.remote = candidate.remote;
        peer.unproven = false;
        let round_trip = now.since(candidate.sent);
        if candidate.tries == 1 {
            peer.sample_round_trip(round_trip);
        }
        peer.follow_mapping(candidate.remote);
        self.record_sighting(now, id, Some(candidate.remote), base);
        let flows = self.living(id);
        if let Some(Awaited { translated, .. }) = candidate.awaited {
            self.lead_flows(now, id, base);
            if flows > 0 {
                let carried = self.carried(id);
                base.event(Event::PeerMoved { peer: id, to: candidate.remote, translated, flows, carried });
            }
        } else {
            if bound!(self, &id).is_some_and(|peer| peer.binding.carrier == Carrier::Hold) {
                self.choose_carrier(now, id, base);
            }
            self.set_tunnel_path(id, base);
            self.apply_binding(now, id, base);
            self.refresh_sets(base);
            self.refresh_listening(now, base);
        }
        if candidate.announced || candidate.doubted {
            // The allowance may have been used up; what was dropped then is not waited for.
            self.flow.wake_senders(now, id, false, base);
        }
        let carried = self.carried(id);
        base.event(Event::PathConfirmed { peer: id, remote: candidate.remote, round_trip, carried });
        true
    }
}
