//! Hand-offs: this host notices that it moved and tells its peers; a peer tells that it moved; paths are confirmed; the
//! carrier is chosen (`docs/protocol.md` §5).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::message::{BindingStatus, Message, UpdateFlags};
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::introduction::PROBE_BIT;
use crate::node::{Arrival, Asked, Node, Routes};
use crate::op::{Carrier, Event, KernelOp, PeerId, TunnelPath};
use crate::peer::{Attachment, Candidate, CarrierProbe, NOWHERE, PendingUpdate};
use crate::timer::Timer;

/// Seconds that a binding is asked for; it is not renewed by time, since its flows end it.
const LIFETIME: u32 = 0;
/// Unanswered updates after which the session is doubted and another handshake begun beside it.
const DOUBT_AFTER: u32 = 3;
/// Unanswered challenges after which a candidate place is given up.
const CHALLENGES: u32 = 10;
/// Carrier probes in one round, and the pause between rounds at first (P-20).
const PROBES: u32 = 3;
const PROBE_PAUSE: Duration = Duration::from_secs(30);
const PROBE_PAUSE_LONGEST: Duration = Duration::from_secs(1920);

/// The answer to a binding update, as it stood in the message.
pub(crate) struct Acknowledgement {
    pub(crate) sequence: u32,
    pub(crate) status: BindingStatus,
    pub(crate) flags: UpdateFlags,
    pub(crate) newest: u32,
    pub(crate) place: u32,
    pub(crate) observed: SocketAddr,
}

impl Node {
    /// Compares where we are towards a peer with where we were. `forced`: a hand-off by hand, perhaps to an address.
    pub(crate) fn look_for_move(&mut self, now: Time, id: PeerId, routes: &dyn Routes, forced: Option<Option<IpAddr>>) {
        let Some(peer) = self.peers.get(&id) else { return };
        let targets = std::iter::once(peer.remote.ip()).chain(peer.locators.iter().copied());
        let wanted = forced.flatten();
        let found = targets.into_iter().find_map(|target| {
            let source = wanted.filter(|w| w.is_ipv4() == target.is_ipv4()).or_else(|| routes.source_for(target))?;
            self.attachments.get(&source).copied()
        });
        let adopted = peer.restored && found.is_some_and(|attachment| Some(attachment.address) == peer.source);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.restored = false;
            if adopted {
                peer.attachment = found;
            }
        }
        let Some(peer) = self.peers.get(&id) else { return };
        match found {
            None if peer.attachment.is_some() => self.leave(now, id),
            None => {}
            Some(attachment) if peer.attachment == Some(attachment) && forced.is_none() => {}
            Some(attachment) => self.arrive(now, id, attachment),
        }
    }

    /// There is no way to the peer any more: its flows are held.
    fn leave(&mut self, _now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let from = peer.source;
        peer.attachment = None;
        peer.update = None;
        self.timers.stop(Timer::Update(id));
        self.timers.stop(Timer::Probe(id));
        self.hold(id);
        let flows = self.peers[&id].flows.len();
        if flows > 0 {
            self.event(Event::Moving { peer: id, from, to: None, flows });
        }
    }

    /// All flows of the peer wait (P-21).
    fn hold(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.places.local = NOWHERE;
        peer.carrier = Carrier::Hold;
        self.put_binding_in_force(id);
    }

    /// We are somewhere else: the peer is told.
    fn arrive(&mut self, now: Time, id: PeerId, attachment: Attachment) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let from = peer.source;
        let before = peer.attachment;
        let lost = before.is_none_or(|before| self.attachments.get(&before.address) != Some(&before));
        peer.retire_path();
        peer.attachment = Some(attachment);
        peer.source = Some(attachment.address);
        if peer.flows.is_empty() && peer.introductions.active.is_empty() {
            // Nothing to move: the session finds its way when it is needed.
            peer.places.local = peer.sequence_sent;
            return;
        }
        peer.sequence_sent += 1;
        let sequence = peer.sequence_sent;
        peer.update = Some(PendingUpdate { sequence, started: now, sent: now, tries: 0, lost });
        peer.probe = CarrierProbe { leading: true, ..CarrierProbe::default() };
        let flows = peer.flows.len();
        self.timers.stop(Timer::Probe(id));
        // The update first: nothing that the kernel must do delays it.
        self.repeat_update(now, id);
        self.hold(id);
        self.accept_former(now, id);
        self.event(Event::Moving { peer: id, from, to: Some(attachment.address), flows });
    }

    /// Sends the pending update, for the first time or again.
    pub(crate) fn repeat_update(&mut self, now: Time, id: PeerId) {
        let port = self.config.port;
        let flags = self.own_flags();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(source) = peer.source else { return };
        let (remote, locators, repeat) = (peer.remote, peer.locators.clone(), peer.round_trip());
        let Some(update) = peer.update.as_mut() else { return };
        update.tries += 1;
        update.sent = now;
        let doubt = update.tries == DOUBT_AFTER || (update.tries > DOUBT_AFTER && update.tries % 8 == 0);
        // Every third try goes to another of the peer's addresses of the family that we have.
        let addresses: Vec<SocketAddr> = std::iter::once(remote)
            .chain(locators.iter().map(|address| SocketAddr::new(*address, port)))
            .filter(|to| to.is_ipv4() == source.is_ipv4())
            .collect();
        if addresses.is_empty() {
            return;
        }
        let to = addresses[(update.tries as usize - 1) / 3 % addresses.len()];
        let flags = if update.lost { flags.with(UpdateFlags::FORMER_PATH_LOST) } else { flags };
        let message = Message::BindingUpdate {
            sequence: update.sequence,
            flags,
            claimed: SocketAddr::new(source, port),
            lifetime: LIFETIME,
        };
        let tries = update.tries;
        let again = peer.repeat_after(tries).min(repeat * 3 + Duration::from_millis(500));
        self.timers.set(Timer::Update(id), now + again);
        self.send_padded(id, Some(source), to, &[message]);
        if doubt || !self.peers.get(&id).is_some_and(crate::peer::Peer::has_session) {
            self.start_handshake_with(now, id);
        }
    }

    fn own_flags(&self) -> UpdateFlags {
        let mut flags = UpdateFlags::NONE;
        if !self.config.tunnel_sealed {
            flags = flags.with(UpdateFlags::PLAIN_TUNNEL_ACCEPTED);
        }
        if !self.config.carriers.rewrite {
            flags = flags.with(UpdateFlags::REWRITE_REFUSED);
        }
        flags
    }

    /// The peer moved (or says so).
    pub(crate) fn handle_update(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        sequence: u32,
        flags: UpdateFlags,
        claimed: SocketAddr,
    ) -> Vec<Message> {
        let own_flags = self.own_flags();
        let token = self.random.u64();
        let Some(peer) = self.peers.get_mut(&id) else { return Vec::new() };
        let acknowledgement = |status, newest, place| Message::BindingAcknowledgement {
            sequence,
            status,
            flags: own_flags,
            newest,
            place,
            observed: arrival.source,
        };
        // P-17
        if sequence <= peer.sequence_accepted {
            let here = peer.candidate.as_ref().map_or(peer.remote, |candidate| candidate.remote);
            if sequence == peer.sequence_accepted && here == arrival.source {
                let mut answers =
                    vec![acknowledgement(BindingStatus::Accepted, peer.sequence_accepted, peer.places.peer)];
                answers.extend(peer.candidate.as_ref().map(|c| Message::PathChallenge { token: c.token }));
                return answers;
            }
            return vec![acknowledgement(BindingStatus::NotNewer, peer.sequence_accepted, peer.places.peer)];
        }
        let before = (peer.places, peer.remote);
        peer.retire_path();
        peer.sequence_accepted = sequence;
        peer.places.peer = peer.number_place(sequence, claimed, arrival.source);
        peer.peer_refuses_rewrite = flags.contains(UpdateFlags::REWRITE_REFUSED);
        peer.probe = CarrierProbe::default();
        if let Some(destination) = arrival.destination {
            // The answer must leave from the address that the peer asked; that it is our locator towards it now.
            if peer.update.is_none() && self.attachments.contains_key(&destination) {
                peer.source = Some(destination);
                peer.attachment = self.attachments.get(&destination).copied();
            }
        }
        let mut answers = vec![acknowledgement(BindingStatus::Accepted, sequence, peer.places.peer)];
        if arrival.source == peer.remote {
            peer.candidate = None;
            self.timers.stop(Timer::Challenge(id));
        } else {
            // P-18
            let allowance = 3 * arrival.length as u64;
            peer.candidate = Some(Candidate { remote: arrival.source, token, sent: now, tries: 1, allowance });
            answers.push(Message::PathChallenge { token });
            let again = peer.repeat_after(1);
            self.timers.set(Timer::Challenge(id), now + again);
        }
        let translated = claimed.ip() != arrival.source.ip();
        let flows = peer.flows.len();
        let moved = (peer.places, arrival.source) != before;
        self.timers.stop(Timer::Probe(id));
        if moved {
            // The answer before the effects: it is what the peer waits for.
            self.send_to(id, arrival.destination, arrival.source, &answers);
            answers.clear();
            self.choose_carrier(id, translated);
            self.set_tunnel_path(id);
            self.put_binding_in_force(id);
            self.accept_former(now, id);
            self.refresh_sets();
            self.refresh_listening(now);
            let lost = flags.contains(UpdateFlags::FORMER_PATH_LOST);
            self.op(KernelOp::Kick { peer: id, lost }, Some(Asked::Effect("waking senders")));
            self.event(Event::PeerMoved { peer: id, to: arrival.source, translated, flows });
        }
        answers
    }

    /// How moved flows go at first, before any probe (P-19, P-20).
    fn choose_carrier(&mut self, id: PeerId, translated: bool) {
        let carriers = self.config.carriers;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.carrier = if carriers.tunnel {
            Carrier::Tunnel
        } else if carriers.rewrite && !translated && !peer.peer_refuses_rewrite {
            Carrier::Rewrite
        } else {
            Carrier::Hold
        };
    }

    /// Tells the tunnel where the peer is.
    pub(crate) fn set_tunnel_path(&mut self, id: PeerId) {
        let sealed = self.config.tunnel_sealed;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (remote, allowance) = match &peer.candidate {
            Some(candidate) => (candidate.remote, Some(candidate.allowance)),
            None => (peer.remote, None),
        };
        let source = peer.source;
        let Some(slot) = peer.session() else { return };
        let receive_index = slot.session.local_index();
        let path = TunnelPath { send_index: slot.session.remote_index(), source, remote, allowance, sealed };
        let op = KernelOp::SetTunnelPath { peer: id, receive_index, path };
        self.op(op, Some(Asked::Effect("leading the tunnel")));
    }

    /// Repeats the challenge to a place that has not answered, or gives it up.
    pub(crate) fn repeat_challenge(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(candidate) = peer.candidate.as_mut() else { return };
        candidate.tries += 1;
        if candidate.tries > CHALLENGES {
            // Nobody there. The flows wait for the next update; nothing more is sent.
            peer.carrier = Carrier::Hold;
            self.put_binding_in_force(id);
            self.event(Event::Refused { peer: id, reason: "its new place does not answer the path challenge" });
            return;
        }
        let (token, to, tries, source) = (candidate.token, candidate.remote, candidate.tries, peer.source);
        let again = peer.repeat_after(tries);
        self.timers.set(Timer::Challenge(id), now + again);
        self.send_to(id, source, to, &[Message::PathChallenge { token }]);
    }

    /// An answer to a challenge: of a candidate place, or of a check of the present one.
    pub(crate) fn handle_path_response(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        token: u64,
        observed: SocketAddr,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some((expected, sent)) = peer.check {
            if expected == token {
                peer.check = None;
                peer.sample_round_trip(now.since(sent));
                if arrival.source == peer.remote {
                    peer.observed = Some(observed);
                }
                if peer.translated() && !peer.flows.is_empty() {
                    self.timers.set_earlier(Timer::Keepalive(id), now + crate::node::KEEPALIVE);
                }
                return;
            }
        }
        let confirmed = peer.candidate.take_if(|c| c.token == token && c.remote == arrival.source);
        let Some(candidate) = confirmed else { return };
        peer.remote = candidate.remote;
        let round_trip = now.since(candidate.sent);
        if candidate.tries == 1 {
            peer.sample_round_trip(round_trip);
        }
        let held = peer.carrier == Carrier::Hold && self.config.carriers.tunnel;
        if held {
            peer.carrier = Carrier::Tunnel;
        }
        self.timers.stop(Timer::Challenge(id));
        self.set_tunnel_path(id);
        self.put_binding_in_force(id);
        if held {
            self.op(KernelOp::Kick { peer: id, lost: false }, Some(Asked::Effect("waking senders")));
        }
        self.event(Event::PathConfirmed { peer: id, remote: candidate.remote, round_trip });
    }

    /// P-26: the peer's NAT gave it another mapping.
    pub(crate) fn notice_rebinding(&mut self, now: Time, id: PeerId, arrival: &Arrival) {
        let token = self.random.u64();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !arrival.is_newest || arrival.source == peer.remote || peer.update.is_some() {
            return;
        }
        if peer.candidate.as_ref().is_some_and(|candidate| candidate.remote == arrival.source) {
            return;
        }
        let allowance = 3 * arrival.length as u64;
        peer.candidate = Some(Candidate { remote: arrival.source, token, sent: now, tries: 1, allowance });
        let again = peer.repeat_after(1);
        self.timers.set(Timer::Challenge(id), now + again);
        self.send_to(id, arrival.destination, arrival.source, &[Message::PathChallenge { token }]);
    }

    /// The peer's answer to our update.
    pub(crate) fn handle_acknowledgement(&mut self, now: Time, id: PeerId, arrival: &Arrival, ack: &Acknowledgement) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(update) = peer.update.as_ref().filter(|update| update.sequence == ack.sequence) else { return };
        match ack.status {
            BindingStatus::Accepted => {}
            BindingStatus::NotNewer => {
                // We lost count, as after a restart without memory (P-17).
                let next = peer.sequence_sent.max(ack.newest).saturating_add(1);
                peer.sequence_sent = next;
                if let Some(update) = peer.update.as_mut() {
                    update.sequence = next;
                }
                self.repeat_update(now, id);
                return;
            }
            _ => {
                peer.update = None;
                self.timers.stop(Timer::Update(id));
                self.event(Event::Refused { peer: id, reason: "it refuses our move" });
                return;
            }
        }
        let (started, sent, tries, lost) = (update.started, update.sent, update.tries, update.lost);
        peer.update = None;
        self.timers.stop(Timer::Update(id));
        if tries == 1 {
            peer.sample_round_trip(now.since(sent));
        }
        // It answered from where we asked it: one of its addresses that we can reach from here.
        peer.remote = arrival.source;
        peer.candidate = None;
        peer.places.local = ack.place;
        peer.observed = Some(ack.observed);
        peer.peer_refuses_rewrite = ack.flags.contains(UpdateFlags::REWRITE_REFUSED);
        let source = peer.source;
        let translated = source.is_some_and(|source| source != ack.observed.ip());
        let (flows, moved) = (peer.flows.len(), peer.moved_flows());
        let waiting = !peer.introductions.active.is_empty();
        self.choose_carrier(id, translated || self.peers[&id].translated());
        self.set_tunnel_path(id);
        self.put_binding_in_force(id);
        self.refresh_sets();
        self.refresh_listening(now);
        self.op(KernelOp::Kick { peer: id, lost }, Some(Asked::Effect("waking senders")));
        if let Some(to) = source {
            self.event(Event::Moved { peer: id, to, translated, took: now.since(started), flows });
        }
        let locators: Vec<IpAddr> = self.attachments.keys().copied().collect();
        self.send(id, &[Message::Locators(locators)]);
        if translated {
            self.timers.set_earlier(Timer::Keepalive(id), now + crate::node::KEEPALIVE);
        }
        if moved > 0 && self.rewrite_possible(id) {
            self.probe_carrier(now, id);
        }
        if waiting {
            self.timers.set(Timer::Introductions(id), now);
        }
    }

    /// Both ends want it, no NAT is known on the way, both locators are of one family, and the tunnel goes first (P-19).
    fn rewrite_possible(&self, id: PeerId) -> bool {
        let Some(peer) = self.peers.get(&id) else { return false };
        self.config.carriers.rewrite
            && !peer.peer_refuses_rewrite
            && !peer.translated()
            && peer.source.is_some_and(|source| source.is_ipv4() == peer.remote.is_ipv4())
    }

    /// Sends a carrier probe: the moving end begins, the other answers with one of its own (P-20).
    pub(crate) fn probe_carrier(&mut self, now: Time, id: PeerId) {
        if !self.rewrite_possible(id) {
            return;
        }
        let nonce = self.random.u64() | PROBE_BIT;
        let port = 32768 + (self.random.u32() % 28000) as u16;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (Some(source), false) = (peer.source, peer.probe.forward) else { return };
        if !peer.probe.leading {
            return;
        }
        // A port that a firewall on the way has let through before.
        let Some(service) = peer.flows.iter().next().map(|flow| flow.remote.port()) else { return };
        let wire = FlowTuple {
            transport: Transport::Tcp,
            local: SocketAddr::new(source, port),
            remote: SocketAddr::new(peer.remote.ip(), service),
        };
        peer.probe.nonce = nonce;
        peer.probe.wire = Some(wire);
        peer.probe.tries += 1;
        let round = (peer.probe.tries - 1) / PROBES;
        let pause = if peer.probe.tries % PROBES == 0 {
            (PROBE_PAUSE * 2u32.pow(round.min(6))).min(PROBE_PAUSE_LONGEST)
        } else {
            peer.round_trip() * 2 + Duration::from_millis(20)
        };
        let Some(index) = peer.session().map(|slot| slot.session.remote_index()) else { return };
        self.timers.set(Timer::Probe(id), now + pause);
        self.op(KernelOp::Probe { wire, index, nonce }, Some(Asked::Effect("probing the carrier")));
    }

    /// A probe of the peer's arrived on `wire`.
    pub(crate) fn handle_probe(&mut self, _now: Time, id: PeerId, wire: FlowTuple, nonce: u64) {
        let answer = self.random.u64() | PROBE_BIT;
        let possible = self.rewrite_possible(id);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if wire.remote.ip() != peer.remote.ip() || Some(wire.local.ip()) != peer.source {
            return;
        }
        let index = peer.session().map(|slot| slot.session.remote_index());
        let respond = possible && !peer.probe.leading && !peer.probe.forward;
        if respond {
            peer.probe.nonce = answer;
            peer.probe.wire = Some(wire);
        }
        self.send(id, &[Message::ProbeSeen { token: nonce }]);
        if let (true, Some(index)) = (respond, index) {
            let op = KernelOp::Probe { wire, index, nonce: answer };
            self.op(op, Some(Asked::Effect("probing the carrier")));
        }
    }

    /// The peer saw our probe: we may rewrite.
    pub(crate) fn handle_probe_seen(&mut self, _now: Time, id: PeerId, nonce: u64) {
        if !self.rewrite_possible(id) {
            return;
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.probe.nonce != nonce || peer.probe.forward || peer.update.is_some() {
            return;
        }
        peer.probe.forward = true;
        // P-24
        peer.carrier = if peer.probe.leading { Carrier::Rewrite } else { Carrier::FollowRewrite };
        let carrier = peer.carrier;
        self.timers.stop(Timer::Probe(id));
        self.put_binding_in_force(id);
        self.refresh_sets();
        self.event(Event::CarrierChanged { peer: id, carrier });
    }
}
