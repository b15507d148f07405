//! Endpoints of a peer that are not confirmed: they are challenged, and little goes there before they answer (P-18, P-26).

use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::arrival::Arrival;
use crate::base::event::Event;
use crate::base::op::{Carrier, PeerId};
use crate::base::timer::Timer;
use crate::node::Node;

/// Unanswered challenges after which a candidate place is given up.
const CHALLENGES: u32 = 10;

/// An endpoint of the peer that is not confirmed yet.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) remote: SocketAddr,
    pub(crate) token: u64,
    pub(crate) sent: Time,
    pub(crate) tries: u32,
    /// A binding update came from there, so that flows are led there. Else it may be another mapping of the peer's NAT
    /// (P-26), and all goes on as before until it answers.
    pub(crate) announced: bool,
    /// Bytes that the tunnel may still be allowed to send there (P-18).
    pub(crate) tunnel: u64,
    /// Bytes of control datagrams that may still go there.
    pub(crate) control: u64,
    /// The peer moves there, and its former path carries its flows until this one is confirmed (P-38).
    pub(crate) awaited: Option<Awaited>,
    /// Its challenges went unanswered.
    pub(crate) doubted: bool,
}

/// What an update said that is carried out once the path is confirmed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    /// The peer's place from then on.
    pub(crate) place: u32,
    pub(crate) refuses_rewrite: bool,
    pub(crate) translated: bool,
    /// Where the update was received.
    pub(crate) destination: Option<IpAddr>,
}

/// Bytes of the allowance that are kept for control datagrams.
const CONTROL_SHARE: u64 = 600;

impl Candidate {
    /// After `received` bytes from there.
    pub(crate) fn new(remote: SocketAddr, token: u64, now: Time, received: usize, announced: bool) -> Self {
        let allowance = 3 * received as u64;
        let tunnel = if announced { allowance.saturating_sub(CONTROL_SHARE) } else { 0 };
        let control = allowance - tunnel;
        Self { remote, token, sent: now, tries: 1, announced, tunnel, control, awaited: None, doubted: false }
    }
}

impl Node {
    /// Repeats the challenge to an endpoint that has not answered, or gives it up.
    pub(crate) fn repeat_challenge(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(candidate) = peer.candidate.as_mut() else { return };
        candidate.tries += 1;
        if candidate.tries > CHALLENGES {
            if candidate.awaited.is_some() {
                // P-38: the former path goes on. Whatever comes from there has it challenged again.
                if !std::mem::replace(&mut candidate.doubted, true) {
                    let reason =
                        "its new place does not answer the path challenge, so its connections stay at the former one";
                    self.base.event(Event::Refused { peer: id, reason });
                    self.put_binding_in_force(now, id);
                }
                return;
            }
            if !candidate.announced {
                // Somebody sent a datagram of the peer's from elsewhere. That means nothing.
                peer.candidate = None;
                return;
            }
            // Nobody there. The flows wait for the next update, or for anything to come from there.
            peer.carrier = Carrier::Hold;
            self.put_binding_in_force(now, id);
            self.base.event(Event::Refused { peer: id, reason: "its new place does not answer the path challenge" });
            return;
        }
        let (token, to, tries, source) = (candidate.token, candidate.remote, candidate.tries, peer.source);
        let again = peer.repeat_after(tries);
        self.base.set_timer(Timer::Challenge(id), now + again);
        self.send_to(id, source, to, &[Message::PathChallenge { token }]);
    }

    /// Something authentic came from an endpoint that is not confirmed: as much more may go there (P-18), and one that
    /// was given up is challenged again.
    pub(crate) fn hear_candidate(&mut self, now: Time, id: PeerId, arrival: &Arrival) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(candidate) = peer.candidate.as_mut().filter(|candidate| candidate.remote == arrival.source) else {
            return;
        };
        candidate.control += 3 * arrival.length as u64;
        if candidate.tries > CHALLENGES {
            candidate.tries = 0;
            self.base.set_timer(Timer::Challenge(id), now);
        }
    }

    /// An answer to a challenge: of a candidate, of an address that an update went to, or of a check of the present path.
    pub(crate) fn handle_path_response(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        token: u64,
        observed: SocketAddr,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some((expected, sent)) = peer.check
            && expected == token
        {
            peer.check = None;
            let stands = peer.stalls.note_answer(now);
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
                self.put_binding_in_force(now, id);
            }
            self.note_sighting(now, id, at);
            self.check_later(now, id);
            if stands {
                self.fall_back(now, id);
            }
            return;
        }
        if self.prove_found(id, token) {
            return;
        }
        if self.peers.get_mut(&id).is_some_and(|peer| peer.shown.handle_answer(now, token)) {
            return;
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // A token proves the way that it was sent by, whichever way it comes back (as RFC 9000 §8.2.3 has it): somebody
        // between the ends may send the answer on from elsewhere.
        if let Some(update) = peer.update.as_mut()
            && let Some((asked, _)) = update.asked.iter().find(|(_, sent)| *sent == token)
        {
            update.proven = Some(*asked);
            return;
        }
        let confirmed = peer.candidate.take_if(|candidate| candidate.token == token);
        let Some(candidate) = confirmed else { return };
        self.base.stop_timer(Timer::Challenge(id));
        if let Some(awaited) = &candidate.awaited {
            let asked = awaited.destination;
            let asked = asked.and_then(|address| self.base.attachments().at(address));
            peer.follow(now, awaited, asked);
            peer.unbroken = true;
        }
        peer.remote = candidate.remote;
        peer.unproven = false;
        let round_trip = now.since(candidate.sent);
        if candidate.tries == 1 {
            peer.sample_round_trip(round_trip);
        }
        peer.follow_mapping(candidate.remote);
        self.note_sighting(now, id, Some(candidate.remote));
        let flows = self.living(id);
        if let Some(Awaited { translated, .. }) = candidate.awaited {
            self.lead_flows(now, id);
            if flows > 0 {
                let carried = self.carried(id);
                self.base.event(Event::PeerMoved { peer: id, to: candidate.remote, translated, flows, carried });
            }
        } else {
            if self.peers.get(&id).is_some_and(|peer| peer.carrier == Carrier::Hold) {
                self.choose_carrier(now, id);
            }
            self.set_tunnel_path(id);
            self.put_binding_in_force(now, id);
            self.refresh_sets();
            self.refresh_listening(now);
        }
        if candidate.announced || candidate.doubted {
            // The allowance may have been used up; what was dropped then is not waited for.
            self.wake_senders(now, id, false);
        }
        let carried = self.carried(id);
        self.base.event(Event::PathConfirmed { peer: id, remote: candidate.remote, round_trip, carried });
    }

    /// P-26: the peer's NAT gave it another mapping. `answered`: bytes of messages that went there already.
    pub(crate) fn notice_rebinding(&mut self, now: Time, id: PeerId, arrival: &Arrival, answered: usize) {
        let token = self.base.random().u64();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !arrival.is_newest || arrival.source == peer.remote || !peer.is_mapped() {
            return;
        }
        if peer.candidate.as_ref().is_some_and(|candidate| candidate.remote == arrival.source) {
            return;
        }
        // Where the place itself is not confirmed yet, the other mapping takes its place; one that was given up does not count.
        let before = peer.candidate.take().filter(|candidate| candidate.tries <= CHALLENGES || candidate.announced);
        let announced = before.as_ref().is_some_and(|candidate| candidate.announced);
        let mut candidate = Candidate::new(arrival.source, token, now, arrival.length, announced);
        candidate.awaited = before.and_then(|candidate| candidate.awaited);
        let spent = answered + if answered > 0 { whimbrel_handshake::CONTROL_OVERHEAD } else { 0 };
        candidate.control = candidate.control.saturating_sub(spent as u64);
        peer.candidate = Some(candidate);
        let again = peer.repeat_after(1);
        self.base.set_timer(Timer::Challenge(id), now + again);
        self.send_to(id, arrival.destination, arrival.source, &[Message::PathChallenge { token }]);
    }
}
