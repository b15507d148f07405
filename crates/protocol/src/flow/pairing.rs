//! Pairing by sequence numbers (P-50 to P-52): where a path strips the option that nonces travel in, both ends still
//! know where the connection's numbers began. They are proved to each other in the session, and never sent.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::message::{Introduced, IntroductionRefusal, Message, Pairing, PairingProof};
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{FlowEntry, FlowOp, NOWHERE, PeerId, Places, SocketNumbers};
use crate::base::output::Asked;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::flow::FlowLayer;
use crate::flow::askings::Late;
use crate::flow::failure::Failure;
use crate::flow::introduction::{Proven, TRIES};
use crate::flow::known::{Origin, Stage};
use crate::flow::pairings::{CLAIMS, PAUSE};
use crate::flow::peers::FlowPeer;
use crate::flow::policy::Ruled;
use crate::flow::table::YOUNG;

/// Connections with a peer that one look makes proofs of (P-52): a few milliseconds' worth. Where there are more,
/// others have their turn in the next look.
const CANDIDATES: usize = 4096;
/// A peer waits for its next look so many times as long as all have to wait for what this one cost.
const OWN_SHARE: u32 = 4;

/// A connection whose numbers a proof fits, and the numbers as the introducer has them.
type Fit = (SocketNumbers, (u32, u32));

/// What a peer claims, and the proofs that it can make of the sockets that were found.
pub(crate) struct Claims {
    claims: VecDeque<(u32, Pairing)>,
    /// The session that the proofs are for.
    session: u32,
    /// They are of all sockets.
    all: bool,
    proofs: HashMap<PairingProof, Vec<Fit>>,
}

/// What comes of a claim.
pub(crate) enum Claimed {
    Nothing,
    Answer(Message),
    Proven(Proven),
}

impl FlowLayer {
    /// Nonces do not arrive on this flow of ours: it is named by its numbers, if it goes to where the peer is. Tells
    /// whether it does.
    pub(crate) fn begin_pairing(&mut self, now: Time, id: PeerId, flow: FlowTuple, base: &mut Base) -> bool {
        let Some(peer) = peer!(self, &id) else { return false };
        let (home, remote) = (peer.flow.places_agreed(), peer.path.remote().ip());
        // P-51
        let fits =
            flow.transport == Transport::Tcp && flow.remote.ip() == remote && base.attachments().has(&flow.local.ip());
        let Some(wire_port) = peer.flow.free_wire_port(flow.remote.port(), self.flows.ports()) else { return false };
        let Some(known) = self.flows.get_mut(&flow).filter(|_| fits) else { return false };
        let Stage::Introducing { nonce, .. } = known.stage else { return false };
        let (numbers, session, next) = (None, None, now);
        known.stage = Stage::Pairing {
            peer: id,
            nonce,
            home,
            late: false,
            wire_port,
            numbers,
            session,
            since: now,
            tries: 0,
            next,
        };
        self.find_sockets(now, id, base);
        true
    }

    /// Says again what was not answered.
    pub(crate) fn repeat_pairings(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        let begun: Vec<FlowTuple> = peer.flow.introductions.begun.iter().copied().collect();
        let last_heard = peer.last_heard();
        let Some(slot) = peer.session() else { return };
        let (mut messages, mut silent, mut anew, mut over) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut unknown = false;
        for flow in begun {
            let Some(Stage::Pairing { nonce, home, late, wire_port, numbers, session, since, tries, next, .. }) =
                self.flows.get_mut(&flow).map(|known| &mut known.stage)
            else {
                continue;
            };
            if *next > now || *late && messages.len() >= CLAIMS {
                continue;
            }
            if *tries >= TRIES && last_heard <= *since && !*late {
                silent.push(flow);
                continue;
            }
            if if *late { *since + YOUNG <= now } else { *tries >= 2 * TRIES } {
                over.push((flow, *late));
                continue;
            }
            *tries += 1;
            *next = now + Duration::from_millis(300) * if *late { 1 } else { *tries };
            let Some(numbers) = *numbers else {
                unknown = true;
                continue;
            };
            // It is not claimed in two sessions: it would be named twice.
            if *session.get_or_insert(slot.remote_index()) != slot.remote_index() {
                if *late {
                    over.push((flow, true));
                } else {
                    anew.push(flow);
                }
                continue;
            }
            messages.push(Message::Pairing(Pairing {
                introducer_nonce: *nonce,
                proof: slot.session().pairing_proof(true, true, numbers),
                introducer_place: home.local,
                responder_place: home.peer,
                wire_port: *wire_port,
                tuple: flow,
                late: *late,
            }));
        }
        self.path.send(id, &messages, base);
        if let Some(peer) = peer_mut!(self, &id).filter(|_| !silent.is_empty()) {
            // It may be gone, or have started anew: it must say again that it looks.
            peer.flow.introductions.ready_until = None;
        }
        for flow in silent.into_iter().chain(anew) {
            self.introduce_again(now, &flow, base);
        }
        for (flow, late) in over {
            self.fail_introduction(now, &flow, if late { Failure::Lost } else { Failure::Unmarked }, base);
        }
        if unknown {
            self.find_sockets(now, id, base);
        }
    }

    pub(super) fn find_sockets(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        match peer.flow.introductions.pairings.next_look(now) {
            Some(again) if again > now => base.set_timer_earlier(Timer::Pairings(id), again),
            Some(_) => self.search_for(now, id, base),
            None => {}
        }
    }

    /// It is the turn of a peer's.
    pub(crate) fn find_sockets_of(&mut self, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        if peer.flow.introductions.pairings.begin_look() {
            // Of ours those that are named late may go to another address of the peer's; of its own the peer was there.
            let named = peer.flow.introductions.begun.iter().filter(|flow| match self.flows.get(flow) {
                Some(known) => matches!(known.stage(), Stage::Pairing { late: true, numbers: None, .. }),
                None => false,
            });
            let mut remotes: Vec<IpAddr> = named.map(|flow| flow.remote.ip()).collect();
            remotes.push(peer.path.remote().ip());
            if peer.flow.introductions.pairings.waits_late() {
                remotes.extend(peer.path.shown().addresses());
            }
            remotes.sort_unstable();
            remotes.dedup();
            base.ask(FlowOp::FindSockets { peer: id, remotes }, Asked::FindSockets(id));
        }
    }

    /// It is time to look at the sockets again.
    pub(crate) fn search_for_claims(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer!(self, &id) else { return };
        let ours = |flow: &FlowTuple| {
            matches!(self.flows.get(flow).map(|known| &known.stage), Some(Stage::Pairing { numbers: None, .. }))
        };
        if peer.flow.introductions.pairings.waiting() > 0 || peer.flow.introductions.begun.iter().any(ours) {
            self.find_sockets(now, id, base);
        }
    }

    /// The sockets could not be looked at: claims are answered so that they are made again.
    pub(crate) fn on_not_found(&mut self, _now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        let claims = peer.flow.introductions.pairings.end_look();
        let busy: Vec<Message> = claims.iter().map(|(_, claim)| answer(claim, IntroductionRefusal::Busy)).collect();
        self.path.send(id, &busy, base);
    }

    /// The sockets whose remote address is the peer's, as [`FlowOp::FindSockets`] asked for them. Gives what the peer
    /// claims, to be looked at one after the other.
    pub(crate) fn take_sockets(
        &mut self,
        now: Time,
        id: PeerId,
        sockets: &[SocketNumbers],
        base: &mut Base,
    ) -> Option<Claims> {
        let peer = peer_mut!(self, &id)?;
        let claims = peer.flow.introductions.pairings.end_look();
        let remote = peer.path.remote().ip();
        // P-51: also where the peer has moved since they were asked for.
        let fits = |flow: &FlowTuple| flow.remote.ip() == remote && base.attachments().has(&flow.local.ip());
        let candidates = sockets.iter().filter(|socket| {
            fits(&socket.flow) || self.is_claimable(now, id, &socket.flow, base) || self.was_claimed(id, &socket.flow)
        });
        let mut candidates: Vec<SocketNumbers> = candidates.copied().collect();
        for socket in sockets {
            if let Some(Stage::Pairing { peer, late, numbers: numbers @ None, next, tries, .. }) =
                self.flows.get_mut(&socket.flow).map(|known| &mut known.stage)
                && *peer == id
                && (*late || fits(&socket.flow))
            {
                *numbers = Some((socket.first_sent, socket.first_received));
                (*tries, *next) = (0, now);
            }
        }
        base.set_timer_earlier(Timer::Introductions(id), now);
        // One session's: proofs of another are others, and who has many sessions is not to have all made in each.
        let &(session, _) = claims.last()?;
        let all = candidates.len() <= CANDIDATES;
        if !all {
            let first = base.random().u64() as usize % candidates.len();
            candidates.rotate_left(first);
            candidates.truncate(CANDIDATES);
        }
        self.charge_proofs(now, id, 4 * candidates.len());
        let proofs = self.proofs(id, session, &candidates);
        Some(Claims { claims: claims.into(), session, all, proofs })
    }

    /// Looks at the next claim of a peer's.
    pub(crate) fn take_claim(
        &mut self,
        now: Time,
        id: PeerId,
        claims: &mut Claims,
        base: &mut Base,
    ) -> Option<Claimed> {
        let (index, claim) = claims.claims.pop_front()?;
        let fits = claims.proofs.get(&claim.proof).filter(|_| index == claims.session);
        let at = self.path.paths(&id)?.remote().ip();
        let may = |(socket, _): &&Fit| match claim.late {
            true => self.is_claimable(now, id, &socket.flow, base) || self.was_claimed(id, &socket.flow),
            false => socket.flow.remote.ip() == at,
        };
        let fits: Vec<Fit> = fits.into_iter().flatten().filter(may).copied().collect();
        Some(match *fits {
            _ if self.has_missed_too_often(now, id) => refuse(&claim, IntroductionRefusal::Refused),
            [fit] => match self.take_fitting(now, id, &(index, claim), &fit, base) {
                Ok(claimed) => claimed,
                Err(refusal) => refusal.map_or(Claimed::Nothing, |refusal| refuse(&claim, refusal)),
            },
            _ if index != claims.session || !claims.all => refuse(&claim, IntroductionRefusal::Busy),
            _ => {
                if self.peers.get_mut(&id).is_some_and(|peer| peer.introductions.pairings.count_miss(now)) {
                    let reason = "it claims connections by numbers that are not theirs";
                    base.event(Event::Refused { peer: id, reason });
                }
                refuse(&claim, IntroductionRefusal::Refused)
            }
        })
    }

    /// So many proofs are made for a peer: all wait for what that costs, and it itself longer.
    fn charge_proofs(&mut self, now: Time, id: PeerId, proofs: usize) {
        let cost = self.looks.charge_proofs(proofs);
        if let Some(peer) = peer_mut!(self, &id) {
            peer.flow.introductions.pairings.put_off(now + (cost * OWN_SHARE).max(PAUSE));
        }
    }

    /// Whether a peer has claimed too many connections that fit nothing (P-52).
    fn has_missed_too_often(&self, now: Time, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.introductions.pairings.has_missed_too_often(now))
    }

    /// The proofs that the peer can make of these sockets' numbers. Who opened a connection has its own initial number,
    /// who accepted it one more; it is not known for certain which end is which, so all that it may be is tried.
    fn proofs(&self, id: PeerId, index: u32, sockets: &[SocketNumbers]) -> HashMap<PairingProof, Vec<Fit>> {
        let mut proofs: HashMap<PairingProof, Vec<Fit>> = HashMap::new();
        let slot = self.path.session().peer(&id).and_then(|peer| peer.session_of(index));
        let Some(slot) = slot else { return proofs };
        for socket in sockets {
            for sent in [socket.first_received.wrapping_sub(1), socket.first_received] {
                for received in [socket.first_sent, socket.first_sent.wrapping_add(1)] {
                    let proof = slot.session().pairing_proof(false, true, (sent, received));
                    proofs.entry(proof).or_default().push((*socket, (sent, received)));
                }
            }
        }
        proofs
    }

    /// The peer names a flow of its own by numbers. It is looked for; an answer at once is a refusal.
    pub(crate) fn handle_pairing(
        &mut self,
        now: Time,
        id: PeerId,
        index: u32,
        claim: &Pairing,
        base: &mut Base,
    ) -> Option<Message> {
        // P-52
        if claim.tuple.transport != Transport::Tcp || self.has_missed_too_often(now, id) {
            return Some(answer(claim, IntroductionRefusal::Refused));
        }
        if !self.peers.get_mut(&id)?.introductions.pairings.add(index, *claim) {
            return Some(answer(claim, IntroductionRefusal::Busy));
        }
        if claim.late {
            self.await_further_claims(now, id);
        }
        self.find_sockets(now, id, base);
        None
    }

    /// Exactly one connection has the numbers that the peer proved to know. `Err`: it is not installed; what is said of
    /// that, if anything.
    fn take_fitting(
        &mut self,
        now: Time,
        id: PeerId,
        (index, claim): &(u32, Pairing),
        (socket, numbers): &Fit,
        base: &mut Base,
    ) -> Result<Claimed, Option<IntroductionRefusal>> {
        let flow = socket.flow;
        let asks = claim.late && !self.was_claimed(id, &flow);
        if asks && self.is_refused(now, id, flow, base) {
            return Err(Some(IntroductionRefusal::Refused));
        }
        // Before anybody is asked for what the peer would not get.
        let name = self.check_pairing(id, *index, claim, flow, *numbers, base)?;
        if asks {
            match self.ask_former(now, id, socket, base) {
                Late::Ask | Late::Awaited => return Err(None),
                Late::There => return Err(Some(IntroductionRefusal::Refused)),
                Late::Left => {}
            }
        }
        Ok(self.accept_pairing(id, claim, flow, name, *numbers))
    }

    /// What a connection is called that the peer may have, whoever is at its other end.
    fn check_pairing(
        &mut self,
        id: PeerId,
        index: u32,
        claim: &Pairing,
        flow: FlowTuple,
        numbers: (u32, u32),
        base: &mut Base,
    ) -> Result<u64, Option<IntroductionRefusal>> {
        let Some(peer) = peer!(self, &id) else { return Err(None) };
        // P-14
        let home = Places { local: claim.responder_place, peer: claim.introducer_place };
        let agreed = match claim.late {
            // P-205: this host has not moved, and the peer has.
            true => home.local == peer.flow.places().local && home.peer != peer.flow.places().peer,
            false => home == peer.flow.places_agreed(),
        };
        if !agreed && !self.was_claimed(id, &flow) || home.local == NOWHERE || home.peer == NOWHERE {
            if home.local != peer.flow.places.local {
                base.signal(Signal::Misled(id));
            }
            return Err(Some(IntroductionRefusal::OtherPlaces));
        }
        let nonce = claim.introducer_nonce;
        let Some(slot) = peer.session_of(index) else {
            return Err(None);
        };
        // P-132
        let name = slot.session().paired_flow_name(false, nonce, numbers);
        if peer.flow.has_another_named(name, &flow) {
            return Err(Some(IntroductionRefusal::Busy));
        }
        let room = peer.flow.flows.contains(&flow)
            || peer.flow.flows.len() < base.config().flows_per_peer && self.flows.introduced() < base.config().flows;
        // One that was not told of yet will be in a moment.
        let Some(known) = self.flows.get(&flow).filter(|known| room && !known.closed) else {
            return Err(Some(IntroductionRefusal::Busy));
        };
        if known.entry().is_none() {
            match self.ruled(&flow, id) {
                Ruled::Free => {}
                Ruled::Awaited => return Err(Some(IntroductionRefusal::Busy)),
                Ruled::Excluded(_) => return Err(Some(IntroductionRefusal::Declined)),
            }
        }
        match &known.stage {
            Stage::Introduced { entry, .. } if entry.peer != id => {
                base.event(Event::Refused { peer: id, reason: "a flow that it introduced belongs to another peer" });
                return Err(Some(IntroductionRefusal::Refused));
            }
            Stage::Introduced { origin: Origin::Paired { introducer_nonce, .. }, .. } if *introducer_nonce == nonce => {
                self.confirm_paired(&flow, base);
                return Err(None);
            }
            // Moved, it may not be native where both are now.
            Stage::Introduced { entry, .. } if entry.home != home || claim.late => {
                return Err(Some(IntroductionRefusal::OtherPlaces));
            }
            // Both ends pair. The lower nonce is the introducer's.
            Stage::Pairing { nonce: own, .. } if *own < nonce => return Err(None),
            Stage::Echoing { .. } => return Err(None),
            _ => {}
        }
        // P-205
        let others =
            |(other, peer): (&PeerId, &FlowPeer)| *other != id && peer.introductions.responding.contains_key(&flow);
        if claim.late && self.peers.iter().any(others) {
            return Err(Some(IntroductionRefusal::Busy));
        }
        Ok(name)
    }

    /// A flow is the one that the peer means.
    fn accept_pairing(
        &mut self,
        id: PeerId,
        claim: &Pairing,
        flow: FlowTuple,
        name: u64,
        numbers: (u32, u32),
    ) -> Claimed {
        self.forget_responding(id, &flow);
        let peer = peer!(self, &id);
        let Some(wire_local_port) = peer.and_then(|peer| peer.flow.free_wire_port(claim.wire_port, self.flows.ports()))
        else {
            return refuse(claim, IntroductionRefusal::Busy);
        };
        let ports = (wire_local_port, claim.wire_port);
        let home = Places { local: claim.responder_place, peer: claim.introducer_place };
        let entry = FlowEntry { late: claim.late, ..FlowEntry::new(id, name, home, claim.tuple, ports) };
        // The answer waits until the flow is installed.
        let origin = Origin::Paired { introducer_nonce: claim.introducer_nonce, numbers, late: claim.late };
        Claimed::Proven(Proven { flow, entry, origin })
    }

    /// A flow that the peer named by its numbers is installed.
    pub(crate) fn confirm_paired(&mut self, flow: &FlowTuple, base: &mut Base) {
        let Some(Stage::Introduced { entry, origin: Origin::Paired { introducer_nonce: nonce, numbers, .. } }) =
            self.flows.get(flow).map(|known| &known.stage)
        else {
            return;
        };
        let introduced = Introduced { wire_port: entry.wire_local_port, tuple: *flow };
        let (id, nonce, numbers) = (entry.peer, *nonce, *numbers);
        let Some(slot) = self.path.session_mut().peer_mut(&id).and_then(|peer| peer.session()) else { return };
        let proof = slot.session().pairing_proof(true, false, numbers);
        self.path.send(id, &[Message::Paired { nonce, proof, introduced }], base);
    }

    /// The responder has a connection with the numbers that we proved to know, and proves to know them.
    pub(crate) fn handle_paired(
        &mut self,
        now: Time,
        id: PeerId,
        index: u32,
        nonce: u64,
        proof: PairingProof,
        introduced: Introduced,
        base: &mut Base,
    ) -> Option<Proven> {
        let flow = self.flows.with_nonce(nonce)?;
        let Some(&Stage::Pairing {
            peer: with,
            home,
            late,
            wire_port,
            numbers: Some(numbers),
            session: Some(named_in),
            ..
        }) = self.flows.get(&flow).map(|known| &known.stage)
        else {
            return None;
        };
        let peer = peer!(self, &id).filter(|_| with == id)?;
        let slot = peer.session_of(index)?;
        let expected = slot.session().pairing_proof(false, false, numbers);
        let name = peer.session_to(named_in).map(|slot| slot.session().paired_flow_name(true, nonce, numbers));
        let name = name.filter(|name| !peer.flow.has_another_named(*name, &flow));
        let differs = expected.iter().zip(proof).fold(0, |differs, (a, b)| differs | (a ^ b));
        if differs != 0 || introduced.tuple.transport != flow.transport {
            base.event(Event::Refused { peer: id, reason: "it claims a connection by numbers that are not its own" });
            self.fail_introduction(now, &flow, Failure::Stripped, base);
        } else if let Some(name) = name.filter(|_| (late || home == peer.flow.places) && home.peer != NOWHERE) {
            let entry = FlowEntry::new(id, name, home, introduced.tuple, (wire_port, introduced.wire_port));
            return Some(Proven { flow, entry, origin: Origin::Introduced });
        } else {
            self.introduce_again(now, &flow, base);
        }
        None
    }

    /// The responder does not take the flow that we named by its numbers.
    pub(crate) fn handle_not_paired(
        &mut self,
        now: Time,
        id: PeerId,
        flow: FlowTuple,
        outcome: Result<Introduced, IntroductionRefusal>,
        base: &mut Base,
    ) {
        let late = matches!(self.flows.get(&flow).map(|known| &known.stage), Some(Stage::Pairing { late: true, .. }));
        match outcome {
            // It is claimed again, as long as that makes sense.
            Err(IntroductionRefusal::OtherPlaces | IntroductionRefusal::Busy) if late => {}
            Err(refusal) if late && refusal != IntroductionRefusal::Declined => {
                let opened = self.flows.get(&flow).is_some_and(|known| !known.accepted);
                self.fail_introduction(now, &flow, Failure::Lost, base);
                if opened {
                    self.expect_unaccepted(id, &[flow], now, None, base);
                }
            }
            Err(IntroductionRefusal::OtherPlaces) => {
                base.signal(Signal::Misled(id));
                self.introduce_again(now, &flow, base);
            }
            Err(IntroductionRefusal::Busy) => self.introduce_again(now, &flow, base),
            Err(IntroductionRefusal::Declined) => self.fail_introduction(now, &flow, Failure::Declined, base),
            // *Done* without a proof proves nothing.
            Ok(_) => {}
            Err(_) => self.fail_introduction(now, &flow, Failure::Stripped, base),
        }
    }
}

fn refuse(claim: &Pairing, refusal: IntroductionRefusal) -> Claimed {
    Claimed::Answer(answer(claim, refusal))
}

fn answer(claim: &Pairing, refusal: IntroductionRefusal) -> Message {
    Message::IntroductionDone { nonce: claim.introducer_nonce, outcome: Err(refusal) }
}
