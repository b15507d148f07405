//! Introductions (`docs/protocol.md` §4): the two ends agree that two tuples name one flow, and prove that they sit on
//! it.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_wire::message::{Echo, Introduced, IntroductionRefusal, Message};
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{ASTRAY, FlowEntry, FlowOp, LocalEnd, NOWHERE, PeerId, Places};
use crate::base::output::Asked;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::flow::FlowLayer;
use crate::flow::failure::Failure;
use crate::flow::known::{Flow, Origin, Responding, Stage};
use crate::flow::peers::FlowPeer;
use crate::flow::policy::Ruled;

/// How long a host looks for introductions after it was asked to.
const LISTEN: Duration = Duration::from_secs(15);
/// How long the asking host relies on it: less, so that both ends' clocks and the way may differ.
const READY: Duration = Duration::from_secs(10);
/// Step of the introducing timer.
const STEP: Duration = Duration::from_millis(50);
/// Introductions begun in one step: 2,000 a second (P-15).
const BEGUN_PER_STEP: usize = 100;
/// Younger connections are introduced, and answered, as often as P-200 and P-201 say: half of P-15, since the ends see
/// a connection at different times.
const YOUNG: Duration = Duration::from_millis(500);
/// Tries of each (P-15).
pub(crate) const TRIES: u32 = 3;
/// How often one is begun anew because an end moved, or forgot it.
pub(crate) const AGAIN: u8 = 10;
/// How long a responder waits for the echo.
const RESPONDING: Duration = Duration::from_secs(10);
/// A peer's introductions that wait for their echoes at the most.
const RESPONDING_MOST: usize = 1024;
/// How soon one of a flow takes the place of another.
const ANEW: Duration = Duration::from_millis(200);
/// How often one of them is answered.
const ANSWERS: u32 = 2 * TRIES;
/// The top bit of a nonce tells a carrier probe (set) from an introduction (§4, P-20).
pub(crate) const PROBE_BIT: u64 = 1 << 63;
/// The next bit tells the responder's nonce (set) from the introducer's: an answer must never be answered.
const ANSWER_BIT: u64 = 1 << 62;

/// A flow that both ends have proven to sit on, to be installed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proven {
    pub flow: FlowTuple,
    pub entry: FlowEntry,
    pub origin: Origin,
}

/// What comes of an introducer's echo.
#[derive(Debug)]
pub(crate) enum Echoed {
    Nothing,
    Answer(Message),
    Proven(Proven),
}

/// A nonce that an introduction begins with, of these bits.
pub(crate) fn introducers(bits: u64) -> u64 {
    bits & !(PROBE_BIT | ANSWER_BIT)
}

/// Whether a nonce is one that an introduction begins with.
pub(crate) fn is_introducers(nonce: u64) -> bool {
    nonce & (PROBE_BIT | ANSWER_BIT) == 0
}

impl FlowLayer {
    /// Looks for introductions of this peer from now on, for a while.
    pub(crate) fn listen_for_introductions(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        let listening = peer.flow.introductions.listen_until.is_some_and(|until| until > now);
        peer.flow.introductions.listen_until = Some(now + LISTEN);
        if !listening {
            base.signal(Signal::Listening);
        }
        base.sweep_later(now);
    }

    pub(crate) fn handle_introduction_ready(&mut self, now: Time, id: PeerId, tag: u32, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        let request = peer.flow.introductions.request.take_if(|(sent, ..)| *sent == tag);
        if let Some((_, at, sent)) = request.filter(|(.., sent)| *sent + READY > now) {
            // What was sent there alone has come back.
            peer.path.shown().record(sent, at);
            peer.flow.introductions.ready_until = Some(sent + READY);
            peer.flow.introductions.request_tries = 0;
            base.set_timer(Timer::Introductions(id), now);
        }
    }

    /// One step of a peer's introductions: asks it to look for them, begins some, repeats what was not answered.
    pub(crate) fn continue_introductions(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let tag = base.random().u32();
        let Some(peer) = peer_mut!(self, &id) else { return };
        let expected = peer.flow.introductions.expected_until.is_some_and(|until| until > now);
        if peer.flow.introductions.active.is_empty() && !expected {
            return;
        }
        if !peer.has_session() || peer.path.attachment().is_none() || peer.flow.places.local == NOWHERE {
            // Goes on when the session is there or the move is over.
            base.set_timer(Timer::Introductions(id), now + Duration::from_secs(1));
            return;
        }
        // Claims travel in the session alone.
        self.repeat_pairings(now, id, base);
        let Some(peer) = peer_mut!(self, &id) else { return };
        if peer.flow.introductions.ready_until.is_none_or(|until| until <= now) {
            let tries = peer.flow.introductions.request_tries;
            let asked =
                peer.flow.introductions.request.filter(|(_, at, _)| tries > 0 && *at == peer.path.remote().ip());
            let due = asked.map(|(.., sent)| sent + peer.path.repeat_after(tries));
            if let Some(due) = due.filter(|due| *due > now) {
                // A flow that comes meanwhile has this run, and is no reason to ask again.
                base.set_timer_earlier(Timer::Introductions(id), due);
                return;
            }
            if tries >= 2 * TRIES {
                peer.flow.introductions.request_tries = 0;
                let flows: Vec<FlowTuple> = peer.flow.introductions.active.iter().copied().collect();
                for flow in flows {
                    self.introduce_again(now, &flow, base);
                }
                if peer!(self, &id).is_some_and(|peer| peer.flow.flows.is_empty()) {
                    // Neither this nor another handshake was answered.
                    self.path.session_mut().drop_sessions(id, base);
                }
                return;
            }
            peer.flow.introductions.request = Some((tag, peer.path.remote().ip(), now));
            peer.flow.introductions.request_tries += 1;
            let doubt = peer.flow.introductions.request_tries == TRIES;
            let again = peer.path.repeat_after(peer.flow.introductions.request_tries);
            base.set_timer(Timer::Introductions(id), now + again);
            self.listen_for_introductions(now, id, base);
            self.path.send(id, &[Message::IntroductionRequest { tag }], base);
            if doubt {
                // It may have dropped the session.
                self.path.start_handshake_with(now, id, base);
            }
            return;
        }
        if peer.flow.introductions.active.is_empty() {
            // It goes on once the connection is there.
            return;
        }
        self.listen_for_introductions(now, id, base);
        self.begin_introductions(now, id, base);
        self.repeat_introductions(now, id, base);
        base.set_timer(Timer::Introductions(id), now + STEP);
    }

    fn begin_introductions(&mut self, now: Time, id: PeerId, base: &mut Base) {
        for _ in 0..BEGUN_PER_STEP {
            let nonce = introducers(base.random().u64());
            let Some(peer) = peer_mut!(self, &id) else { return };
            let Some(flow) = peer.flow.introductions.queue.pop_front() else { return };
            let next = now + peer.path.repeat_after(1).max(Duration::from_millis(200));
            let Some(index) = peer.session().map(|slot| slot.remote_index()) else { return };
            if let Ruled::Excluded(rule) = self.ruled(&flow, id) {
                self.exclude_flow(&flow, rule);
                continue;
            }
            let full = self.flows.introduced() >= base.config().flows;
            let Some(peer) = peer_mut!(self, &id) else { return };
            match self.flows.get_mut(&flow) {
                Some(known) if !known.closed && matches!(known.stage, Stage::Open) => {
                    if peer.flow.introductions.responding.contains_key(&flow) {
                        // The peer was faster. Should nothing come of it, it is our turn.
                        peer.flow.introductions.active.remove(&flow);
                        self.flows.put_off(now, flow);
                        continue;
                    }
                    if peer.flow.flows.len() >= base.config().flows_per_peer || full {
                        self.fail_introduction(now, &flow, Failure::Full, base);
                        continue;
                    }
                    let home = peer.flow.places_agreed();
                    known.stage = Stage::Introducing { peer: id, nonce, home, since: now, tries: 1, next };
                    known.beyond = false;
                    peer.flow.introductions.begun.insert(flow);
                    self.flows.add_nonce(nonce, flow);
                    let end = base.attachments().end_of(&flow);
                    base.op(FlowOp::Introduce { flow, end, index, nonce });
                }
                _ => {
                    peer.flow.introductions.active.remove(&flow);
                }
            }
        }
    }

    fn repeat_introductions(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        let Some(index) = peer.session().map(|slot| slot.remote_index()) else { return };
        let begun: Vec<FlowTuple> = peer.flow.introductions.begun.iter().copied().collect();
        let (last_heard, places) = (peer.last_heard(), peer.flow.places_agreed());
        let (mut echoes, mut unheard) = (Vec::new(), false);
        for flow in begun {
            match self.flows.get_mut(&flow).map(|known| &mut known.stage) {
                // One of them has moved before the other's nonce was here: each end of it would have another home.
                Some(Stage::Introducing { home, next, .. }) if *next <= now && *home != places => {
                    self.introduce_again(now, &flow, base);
                }
                Some(Stage::Introducing { nonce, since, tries, next, .. }) if *next <= now => {
                    if *tries >= TRIES {
                        let silent = last_heard <= *since;
                        // Whoever was referred to is not at the address that numbers would be looked for at (P-51). One
                        // that comes here by a move has a name, and another would take that one's place at the far end.
                        let pairs = !self.is_referred(&flow, id) && !self.flows.is_reserved(&flow);
                        if pairs && self.begin_pairing(now, id, flow, base) {
                            continue;
                        }
                        if silent {
                            // The peer may be gone, or have started anew: it must say again that it looks.
                            unheard = true;
                            self.introduce_again(now, &flow, base);
                        } else {
                            self.fail_introduction(now, &flow, Failure::Unmarked, base);
                        }
                        continue;
                    }
                    *tries += 1;
                    *next = now + Duration::from_millis(500) * *tries;
                    let nonce = *nonce;
                    base.op(FlowOp::Introduce { flow, end: base.attachments().end_of(&flow), index, nonce });
                }
                Some(Stage::Echoing { echo, session, tries, next, .. }) if *next <= now => {
                    // It may have started anew, without the nonces. And an echo is not said in two sessions: it would
                    // be named twice. Where an end has moved there is no other chance, and the session is there still.
                    let moved = (echo.introducer_place, echo.responder_place) != (places.local, places.peer);
                    if *tries >= 2 * TRIES || *session != index && !moved {
                        self.introduce_again(now, &flow, base);
                        continue;
                    }
                    *tries += 1;
                    *next = now + Duration::from_millis(300) * *tries;
                    let said = Message::IntroductionEcho(*echo);
                    if *session == index {
                        echoes.push(said);
                    } else {
                        self.path.send_in(id, *session, &said, base);
                    }
                }
                Some(Stage::Introducing { .. } | Stage::Echoing { .. } | Stage::Pairing { .. }) => {}
                stage => {
                    let queued = matches!(stage, Some(Stage::Open));
                    if let Some(peer) = peer_mut!(self, &id) {
                        peer.flow.introductions.begun.remove(&flow);
                        if !queued {
                            peer.flow.introductions.active.remove(&flow);
                        }
                    }
                }
            }
        }
        if let Some(peer) = peer_mut!(self, &id).filter(|_| unheard) {
            peer.flow.introductions.ready_until = None;
        }
        self.path.send(id, &echoes, base);
    }

    /// A nonce of a peer's was consumed at ingress, in an introduction on `flow`. Tells whether there is no such flow.
    pub(crate) fn take_nonce(&mut self, now: Time, id: PeerId, flow: FlowTuple, nonce: u64, base: &mut Base) -> bool {
        let answers = nonce & ANSWER_BIT != 0;
        let undecided = |known: &Flow| !known.closed && known.entry().is_none_or(|entry| entry.passed_on);
        if !answers && self.flows.get(&flow).is_some_and(undecided) {
            match self.ruled(&flow, id) {
                Ruled::Free => {}
                // It is asked again in a moment.
                Ruled::Awaited => return false,
                // P-59
                Ruled::Excluded(_) => {
                    self.refuse_introduction(id, nonce, IntroductionRefusal::Declined, base);
                    return false;
                }
            }
        }
        let Some(peer) = peer_mut!(self, &id) else { return false };
        let Some(their_index) = peer.session().map(|slot| slot.remote_index()) else { return false };
        let known = self.flows.get_mut_with_ports(&flow);
        let Some((known, ports)) = known.filter(|(known, _)| !known.closed) else {
            return !answers;
        };
        match &mut known.stage {
            // P-87: who has not said that ours arrived may only have guessed where to send this.
            Stage::Introducing { peer: with, .. }
                if *with == id && known.referred.is_some() && !(known.seen && answers) =>
            {
                if answers {
                    known.early = Some(nonce);
                }
            }
            Stage::Introducing { peer: with, nonce: own, home, .. } if *with == id => {
                let home = *home;
                let Some(wire_port) = peer.flow.free_wire_port(flow.remote.port(), ports) else {
                    self.fail_introduction(now, &flow, Failure::NoWirePort, base);
                    return false;
                };
                // Both nonces have travelled; P-13 wants them back in the sessions.
                let echo = Echo {
                    introducer_nonce: *own,
                    responder_nonce: nonce,
                    introducer_place: home.local,
                    responder_place: home.peer,
                    wire_port,
                    tuple: flow,
                };
                let next = now + peer.path.repeat_after(1).max(Duration::from_millis(200));
                known.stage =
                    Stage::Echoing { peer: id, nonce: *own, echo, session: their_index, tries: 1, next, answers: 0 };
                if known.referred.is_some() {
                    base.op(FlowOp::Expect { flow, from: Some(id) });
                }
                self.path.send(id, &[Message::IntroductionEcho(echo)], base);
            }
            // Repeated on the way, or too late.
            _ if answers => {}
            Stage::Echoing { peer: with, nonce: own, echo, answers, .. } if *with == id => {
                if echo.responder_nonce == nonce && *answers < TRIES {
                    // Both ends introduce, and the peer has not seen our nonce. It may answer this in the same way, so
                    // that it has to have an end (P-36).
                    *answers += 1;
                    let nonce = *own;
                    base.op(FlowOp::Introduce {
                        flow,
                        end: base.attachments().end_of(&flow),
                        index: their_index,
                        nonce,
                    });
                }
            }
            Stage::Introduced { entry, .. } if entry.peer != id && !entry.passed_on => {
                // Another peer sits on a tuple that we know: an address got a new owner, or somebody tries. The one
                // that is introduced keeps it until its socket closes.
                base.event(Event::Refused { peer: id, reason: "a flow that it introduced belongs to another peer" });
            }
            Stage::Introduced { entry, origin: Origin::Answered { introducer_nonce, .. } }
                if entry.peer == id && *introducer_nonce == nonce => {}
            // Of one that is introduced already the peer has lost what it knew, or our answer.
            _ => self.answer_introduction(now, id, flow, their_index, nonce, base),
        }
        false
    }

    /// Puts our nonce into a flow that a peer introduces, or the same one again.
    fn answer_introduction(
        &mut self,
        now: Time,
        id: PeerId,
        flow: FlowTuple,
        index: u32,
        introducer_nonce: u64,
        base: &mut Base,
    ) {
        if self.flows.is_reserved(&flow) && self.passed_on(&flow).is_some() {
            // Who has it next is being decided where it is passed on.
            return;
        }
        if flow.transport == Transport::Udp && !self.is_there(now, id, &flow, base) {
            return;
        }
        let fresh = base.random().u64() & !PROBE_BIT | ANSWER_BIT;
        let room = self.has_room_with(id, base);
        let young = self.flows.get(&flow).is_some_and(|known| known.opened + YOUNG > now && known.entry().is_none());
        let Some(peer) = peer_mut!(self, &id) else { return };
        let before = peer.flow.introductions.responding.get_mut(&flow);
        let nonce = match before {
            Some(before) if before.introducer_nonce == introducer_nonce => {
                // Our answer was lost. Each costs a look at the host's sockets, and who asks may be anybody.
                before.answers += 1;
                if before.answers > ANSWERS {
                    return;
                }
                before.nonce
            }
            // Begun anew, which nobody does at once.
            Some(before) if before.begun + ANEW > now => return,
            before => {
                let anew = before.is_some();
                let known = peer.flow.flows.contains(&flow) || anew;
                if !known && !room {
                    self.refuse_introduction(id, introducer_nonce, IntroductionRefusal::Busy, base);
                    return;
                }
                // P-201. What is refused takes no turn, or who has too many flows would use up all others'.
                if young && !anew && !self.answered.take(now, Some(id)) {
                    return;
                }
                let home = peer.flow.places_agreed();
                let begun = Responding { introducer_nonce, nonce: fresh, home, begun: now, answers: 1 };
                if let Some(former) = peer.flow.introductions.responding.insert(flow, begun) {
                    self.flows.forget_nonce(former.nonce);
                }
                self.flows.add_nonce(fresh, flow);
                base.sweep_later(now);
                fresh
            }
        };
        let elsewhere = |entry: &FlowEntry| !matches!(entry.end, LocalEnd::Here | LocalEnd::Passing);
        if self.flows.entry(&flow).is_some_and(elsewhere) {
            self.path.send(id, &[Message::Seen { nonce: introducer_nonce }], base);
        }
        base.ask(
            FlowOp::Introduce { flow, end: base.attachments().end_of(&flow), index, nonce },
            Asked::Answer(id, flow),
        );
    }

    /// Whether a peer may have another flow, and another introduction answered.
    pub(super) fn has_room_with(&self, id: PeerId, base: &Base) -> bool {
        let (most, config) = (RESPONDING_MOST, base.config());
        let has = |of: &FlowPeer| of.flows.len() < config.flows_per_peer && of.introductions.responding.len() < most;
        self.flows.introduced() < config.flows && self.peers.get(&id).is_some_and(has)
    }

    /// Whether a peer that introduces a datagram flow receives at its far address; else it is asked there, and
    /// introduces the flow again meanwhile (P-150). What is put into such a flow is read by whatever program has its
    /// far end.
    pub(super) fn is_there(&mut self, now: Time, id: PeerId, flow: &FlowTuple, base: &mut Base) -> bool {
        let (address, fresh, port) = (flow.remote.ip(), base.random().u64(), base.config().port);
        let Some(peer) = peer_mut!(self, &id) else { return false };
        let here = peer.path.remote().ip() == address && peer.path.is_proven() && peer.has_session();
        if here || peer.path.shown().contains(now, address) {
            return true;
        }
        if let Some(token) = peer.path.shown().ask(now, address, fresh) {
            let (source, to) = (Some(flow.local.ip()), SocketAddr::new(address, port));
            self.path.send_to(id, source, to, &[Message::PathChallenge { token }], base);
        }
        false
    }

    pub(crate) fn refuse_introduction(
        &mut self,
        id: PeerId,
        nonce: u64,
        refusal: IntroductionRefusal,
        base: &mut Base,
    ) {
        self.path.send(id, &[Message::IntroductionDone { nonce, outcome: Err(refusal) }], base);
    }

    /// An answer of ours to a peer's introduction is over, one way or the other.
    pub(crate) fn forget_responding(&mut self, id: PeerId, flow: &FlowTuple) -> Option<Responding> {
        let responding = self.peers.get_mut(&id)?.introductions.responding.remove(flow)?;
        self.flows.forget_nonce(responding.nonce);
        Some(responding)
    }

    /// The introducer has seen both nonces travel, and says so in the session of this index of ours; the responder's
    /// answer, if one is due.
    pub(crate) fn handle_echo(&mut self, now: Time, id: PeerId, index: u32, echo: &Echo, base: &mut Base) -> Echoed {
        let nonce = echo.introducer_nonce;
        let refused = |refusal| Echoed::Answer(Message::IntroductionDone { nonce, outcome: Err(refusal) });
        // The nonce of ours that came back names the flow (P-13).
        let Some(flow) = self.flows.with_nonce(echo.responder_nonce) else {
            return refused(IntroductionRefusal::NotSeen);
        };
        if let Some(over) = self.match_echo(id, flow, echo, base) {
            return over;
        }
        let Some(peer) = peer!(self, &id) else { return refused(IntroductionRefusal::Refused) };
        let Some(slot) = peer.session_of(index) else {
            return refused(IntroductionRefusal::NotSeen);
        };
        // P-132
        let name = slot.session().flow_name(echo.introducer_nonce, echo.responder_nonce);
        if peer.flow.has_another_named(name, &flow) {
            return refused(IntroductionRefusal::Busy);
        }
        // P-14, P-202
        let home = Places { local: echo.responder_place, peer: echo.introducer_place };
        let answered = peer.flow.introductions.responding.get(&flow).map(|own| own.home);
        let introduced = match self.flows.get(&flow).map(|known| &known.stage) {
            // Both introduce it.
            Some(Stage::Echoing { echo, .. }) => {
                Some(Places { local: echo.introducer_place, peer: echo.responder_place })
            }
            _ => None,
        };
        let agreed = answered.or(introduced).unwrap_or(peer.flow.places_agreed());
        if home != agreed || home.local == NOWHERE || home.peer == NOWHERE {
            let misled = home.local != peer.flow.places.local;
            if self.forget_responding(id, &flow).is_none() {
                self.fail_introduction(now, &flow, Failure::Moved, base);
            }
            if misled {
                base.signal(Signal::Misled(id));
            }
            return refused(IntroductionRefusal::OtherPlaces);
        }
        if echo.tuple.transport != flow.transport {
            return refused(IntroductionRefusal::Refused);
        }
        let known = peer.flow.flows.contains(&flow);
        if !known
            && (peer.flow.flows.len() >= base.config().flows_per_peer || self.flows.introduced() >= base.config().flows)
        {
            self.forget_responding(id, &flow);
            return refused(IntroductionRefusal::Busy);
        }
        let Some(wire_local_port) = peer.flow.free_wire_port(echo.wire_port, self.flows.ports()) else {
            self.forget_responding(id, &flow);
            return refused(IntroductionRefusal::Busy);
        };
        // P-87
        let former = self.passed_on(&flow).copied();
        if former.is_some() && self.flows.is_reserved(&flow) {
            self.forget_responding(id, &flow);
            return refused(IntroductionRefusal::Busy);
        }
        // Also where the far end has forgotten that it leads the flow here.
        let again = self.flows.entry(&flow).copied().filter(|entry| entry.peer == id);
        let before = former.or(again.filter(|entry| entry.end == LocalEnd::Endpoint));
        let away = before.is_some();
        let home = if away { Places { peer: ASTRAY, ..home } } else { home };
        let ports = (wire_local_port, echo.wire_port);
        let end = before.map_or(base.attachments().end_of(&flow), |before| before.end);
        let entry = FlowEntry { end, ..FlowEntry::new(id, name, home, echo.tuple, ports) };
        self.forget_responding(id, &flow);
        let origin = Origin::Answered { introducer_nonce: echo.introducer_nonce, nonce: echo.responder_nonce };
        // The answer waits until the flow is installed, so that whoever has it may rely on it.
        Echoed::Proven(Proven { flow, entry, origin })
    }

    /// What an echo comes to where it is not one that a flow is to be installed for: that it is one, `None` tells.
    fn match_echo(&mut self, id: PeerId, flow: FlowTuple, echo: &Echo, base: &mut Base) -> Option<Echoed> {
        let nonce = echo.introducer_nonce;
        let refused = |refusal| Echoed::Answer(Message::IntroductionDone { nonce, outcome: Err(refusal) });
        let Some(known) = self.flows.get(&flow) else { return Some(refused(IntroductionRefusal::NotSeen)) };
        let answered = peer!(self, &id).and_then(|peer| peer.flow.introductions.responding.get(&flow)).filter(|own| {
            (own.introducer_nonce, own.nonce) == (nonce, echo.responder_nonce) && own.begun >= known.opened
        });
        let done = match Some(&known.stage) {
            Some(Stage::Introduced { entry, .. }) if entry.peer != id && !entry.passed_on => {
                return Some(refused(IntroductionRefusal::OtherFlow));
            }
            Some(Stage::Introduced { entry, origin: Origin::Answered { introducer_nonce, .. } })
                if entry.peer == id && *introducer_nonce == echo.introducer_nonce =>
            {
                Some(*entry)
            }
            _ if answered.is_some() => None,
            // Both ends introduce. The lower nonce is the introducer's; the other end answers once it has seen it.
            Some(Stage::Introducing { peer, nonce: own, .. } | Stage::Echoing { peer, nonce: own, .. })
                if *peer == id && (*own < echo.introducer_nonce || !self.has_seen(&flow, echo.introducer_nonce)) =>
            {
                return Some(Echoed::Nothing);
            }
            Some(Stage::Echoing { peer, .. }) if *peer == id => None,
            _ => return Some(refused(IntroductionRefusal::OtherFlow)),
        };
        let entry = done?;
        let introduced = Introduced { wire_port: entry.wire_local_port, tuple: flow };
        if entry.end == LocalEnd::Passing {
            // The second for who has had our answer, and not this word.
            self.path.send(id, &[Message::Passing { nonce }, Message::Passing { nonce: entry.name }], base);
        }
        Some(Echoed::Answer(Message::IntroductionDone { nonce, outcome: Ok(introduced) }))
    }

    /// A flow was installed: the introducer is told, if we are not that.
    pub(crate) fn confirm_installed(&mut self, flow: &FlowTuple, base: &mut Base) {
        let (entry, nonce) = match self.flows.get(flow).map(|known| &known.stage) {
            Some(Stage::Introduced { entry, origin: Origin::Answered { introducer_nonce, .. } }) => {
                (entry, *introducer_nonce)
            }
            Some(Stage::Introduced { origin: Origin::Paired { .. }, .. }) => return self.confirm_paired(flow, base),
            _ => return,
        };
        let introduced = Introduced { wire_port: entry.wire_local_port, tuple: *flow };
        let (id, end) = (entry.peer, entry.end);
        let done = Message::IntroductionDone { nonce, outcome: Ok(introduced) };
        match end {
            // P-123, and before the flow is taken for introduced
            LocalEnd::Passing => self.path.send(id, &[Message::Passing { nonce }, done], base),
            _ => self.path.send(id, &[done], base),
        }
    }

    /// Whether this nonce of the peer's arrived on a flow that we introduce too.
    fn has_seen(&self, flow: &FlowTuple, nonce: u64) -> bool {
        matches!(self.flows.get(flow).map(|known| &known.stage),
            Some(Stage::Echoing { echo, .. }) if echo.responder_nonce == nonce)
    }

    /// The responder's answer to our echo.
    pub(crate) fn handle_introduced(
        &mut self,
        now: Time,
        id: PeerId,
        nonce: u64,
        outcome: Result<Introduced, IntroductionRefusal>,
        base: &mut Base,
    ) -> Option<Proven> {
        let flow = self.flows.with_nonce(nonce)?;
        let echo = match self.flows.get(&flow).map(|known| &known.stage) {
            Some(Stage::Echoing { peer, nonce: own, echo, session, .. }) if *peer == id && *own == nonce => {
                let name = self
                    .path
                    .session()
                    .peer(&id)
                    .and_then(|peer| peer.session_to(*session))
                    .map(|slot| slot.session().flow_name(echo.introducer_nonce, echo.responder_nonce));
                Some((*echo, name))
            }
            Some(Stage::Introducing { peer, nonce: own, .. }) if *peer == id && *own == nonce => None,
            Some(Stage::Pairing { peer, .. }) if *peer == id => {
                self.handle_not_paired(now, id, flow, outcome, base);
                return None;
            }
            _ => return None,
        };
        match (outcome, echo) {
            (Err(_), _) if self.is_referred(&flow, id) => self.fail_introduction(now, &flow, Failure::NoSocket, base),
            // It has not looked at the places that it was to agree to.
            (Ok(_), Some((echo, _))) if echo.introducer_place == NOWHERE || echo.responder_place == NOWHERE => {
                self.introduce_again(now, &flow, base);
            }
            (Ok(introduced), Some((echo, name))) if introduced.tuple.transport == flow.transport => {
                // P-132
                let other = |name: &u64| peer!(self, &id).is_some_and(|peer| peer.flow.has_another_named(*name, &flow));
                let Some(name) = name.filter(|name| !other(name)) else {
                    self.introduce_again(now, &flow, base);
                    return None;
                };
                let peer = if self.is_referred(&flow, id) { ASTRAY } else { echo.responder_place };
                let home = Places { local: echo.introducer_place, peer };
                let ports = (echo.wire_port, introduced.wire_port);
                let beyond = self.flows.get(&flow).is_some_and(|known| known.beyond);
                let entry = FlowEntry { beyond, ..FlowEntry::new(id, name, home, introduced.tuple, ports) };
                return Some(Proven { flow, entry, origin: Origin::Introduced });
            }
            (Ok(_), Some(_)) => self.fail_introduction(now, &flow, Failure::OtherTransport, base),
            // It has not heard from us what it answers to.
            (Ok(_), None) => {}
            (Err(IntroductionRefusal::OtherPlaces), _) => {
                base.signal(Signal::Misled(id));
                self.introduce_again(now, &flow, base);
            }
            // It has started anew, or the flow is no longer the one it was.
            (Err(IntroductionRefusal::NotSeen | IntroductionRefusal::OtherFlow), _) => {
                self.introduce_again(now, &flow, base);
            }
            (Err(IntroductionRefusal::Busy), _) => self.introduce_again_or(now, &flow, Failure::NoRoom, base),
            (Err(IntroductionRefusal::Refused), _) if flow.transport == Transport::Udp => {
                self.on_refused(now, &flow, base);
            }
            // A TCP connection that it does not know yet, as one that its program has not accepted.
            (Err(IntroductionRefusal::Refused), None) => self.introduce_again(now, &flow, base),
            (Err(IntroductionRefusal::Declined), _) => self.fail_introduction(now, &flow, Failure::Declined, base),
            (Err(_), _) => self.fail_introduction(now, &flow, Failure::Refused, base),
        }
        None
    }

    /// Gives up all introductions with a peer that does not answer.
    pub(crate) fn abandon_introductions(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer!(self, &id) else { return };
        let flows: Vec<FlowTuple> = peer.flow.introductions.active.iter().copied().collect();
        for flow in flows {
            self.fail_introduction(now, &flow, Failure::Silent, base);
        }
    }

    /// There is another session with a peer, which may have started anew: what could not be introduced is tried again.
    /// What has no address here any more cannot be, and keeps its reason.
    pub(crate) fn introduce_failed(&mut self, now: Time, id: PeerId, base: &Base) {
        let Some(peer) = self.path.session().peer(&id) else { return };
        let (mut young, mut gone) = (Vec::new(), Vec::new());
        for address in peer.answers_at().iter().filter(|address| self.path.session().contacts().is_known(**address, id))
        {
            for flow in self.flows.take_failed(*address) {
                let local = flow.local.ip();
                if base.attachments().is_gone(local) && !base.attachments().is_behind(local) {
                    gone.push(flow);
                } else if let Some(known) = self.flows.get_mut(&flow)
                    && matches!(known.stage, Stage::Failed(_))
                {
                    known.stage = Stage::Open;
                    known.again = 0;
                    young.push(flow);
                }
            }
        }
        gone.into_iter().for_each(|flow| self.flows.on_failed(flow));
        young.sort_unstable();
        young.into_iter().for_each(|flow| self.flows.put_off(now, flow));
    }

    /// The ends did not agree about a flow: the introduction begins anew, a moment later.
    pub(crate) fn introduce_again(&mut self, now: Time, flow: &FlowTuple, base: &mut Base) {
        self.introduce_again_or(now, flow, Failure::NoAnswer, base);
    }

    /// The same; after the last time it has failed for this reason.
    fn introduce_again_or(&mut self, now: Time, flow: &FlowTuple, reason: Failure, base: &mut Base) {
        if self.end_referral(now, flow, base) {
            return;
        }
        let Some(known) = self.flows.get_mut(flow) else { return };
        if known.again >= AGAIN {
            return self.fail_introduction(now, flow, reason, base);
        }
        known.again += 1;
        self.leave_stage(flow, Stage::Open);
        self.flows.put_off(now, *flow);
    }

    pub(crate) fn fail_introduction(&mut self, now: Time, flow: &FlowTuple, reason: Failure, base: &mut Base) {
        if self.end_referral(now, flow, base) {
            return;
        }
        let Some(known) = self.flows.get(flow) else { return };
        if !known.accepted {
            self.flows.on_failed(*flow);
        }
        self.leave_stage(flow, Stage::Failed(reason));
        base.event(Event::IntroductionFailed { flow: *flow, reason: reason.sentence() });
    }

    /// A flow that is not introduced is at another stage: its introduction is over.
    pub(super) fn leave_stage(&mut self, flow: &FlowTuple, stage: Stage) {
        if let Some(before) = self.flows.set_stage(flow, stage) {
            self.abandon_introduction(flow, &before);
        }
    }

    /// Takes a flow out of the lists of its peer's introductions. `stage`: how far that was.
    pub(super) fn abandon_introduction(&mut self, flow: &FlowTuple, stage: &Stage) {
        if let Some(nonce) = stage.own_nonce() {
            self.flows.forget_nonce(nonce);
        }
        let peers: Vec<PeerId> = match *stage {
            Stage::Introducing { peer, .. } | Stage::Echoing { peer, .. } | Stage::Pairing { peer, .. } => vec![peer],
            Stage::Open => {
                let has = |(_, peer): &(&PeerId, &FlowPeer)| peer.introductions.active.contains(flow);
                self.peers.iter().filter(has).map(|(id, _)| *id).collect()
            }
            _ => return,
        };
        for id in peers {
            if let Some(peer) = peer_mut!(self, &id) {
                peer.flow.introductions.active.remove(flow);
                peer.flow.introductions.queue.retain(|queued| queued != flow);
            }
        }
    }

    /// Ends introductions of peers that nobody echoed. Tells whether more are under way.
    pub(crate) fn sweep_introductions(&mut self, now: Time) -> bool {
        let mut more = self.peers.values().any(|peer| peer.introductions.listen_until.is_some_and(|until| until > now));
        more |= self.askings.sweep(now);
        for peer in self.peers.values_mut() {
            peer.introductions.refused.retain(|_, until| *until > now);
            more |= !peer.introductions.refused.is_empty();
            peer.introductions.responding.retain(|_, responding| {
                let over = responding.begun + RESPONDING <= now;
                if over {
                    self.flows.forget_nonce(responding.nonce);
                }
                more |= !over;
                !over
            });
        }
        more
    }

    /// The peer's end of a flow that is being introduced to it, or was, is the socket of a host behind it (P-123).
    pub(crate) fn handle_passing(&mut self, id: PeerId, nonce: u64, base: &mut Base) {
        if let Some(flow) = self.flows.with_nonce(nonce) {
            if let Some(known) = self.flows.get_mut(&flow)
                && matches!(known.stage, Stage::Echoing { peer, nonce: own, .. } if (peer, own) == (id, nonce))
            {
                known.beyond = true;
            }
            return;
        }
        // The word was lost when it was introduced.
        let Some(flow) = self.peers.get(&id).and_then(|peer| peer.named(nonce)) else { return };
        if let Some(Flow { stage: Stage::Introduced { entry, .. }, .. }) = self.flows.get_mut(&flow)
            && entry.end == LocalEnd::Here
            && !std::mem::replace(&mut entry.beyond, true)
        {
            let asked = Asked::Effect("noting that a connection's other end is behind a gateway");
            base.ask(FlowOp::Install { flow, entry: *entry }, asked);
        }
    }
}
