//! Who is asked to have a flow introduced: whoever is at its remote address, or was named as the owner of the socket
//! there.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::Message;
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{FlowEntry, FlowOp, PeerId};
use crate::base::timer::Timer;
use crate::flow::FlowLayer;
use crate::flow::failure::Failure;
use crate::flow::introduction::AGAIN;
use crate::flow::known::{Flow, Greeting, Stage};
use crate::flow::policy::Ruled;
use crate::session::contact::Contact;

/// How often a flow's introduction is begun anew because somebody names an owner.
const REFERRALS: u8 = 6;
/// How often an owner asks the far end to introduce a flow.
const REQUESTS: u8 = 3;
/// How long a host that connects to a peer expects to introduce the connection.
const EXPECTED: Duration = Duration::from_secs(3);
/// When a connection that this host has accepted is introduced by it, whose other end is known to run Whimbrel and has
/// not done so: it begins after a second at the latest (P-15), and takes some round trips.
const ACCEPTED: Duration = Duration::from_secs(2);
/// Who asks on account of those who have connected to this host: no user's number, as setuid(2) has it.
const OTHERS: u32 = u32::MAX;
/// At how many addresses at a time.
const OTHERS_MOST: usize = 64;
/// How soon a datagram flow is introduced again whose socket the peer has not, twice as late each time, and how late at
/// the most (P-35).
const REFUSED: Duration = Duration::from_secs(1);
const REFUSED_MOST: Duration = Duration::from_secs(60);

impl FlowLayer {
    /// Introduces a flow to whoever was named as the owner of the socket at its other end, once there is a session.
    pub(crate) fn introduce_referred(&mut self, now: Time, flow: FlowTuple, key: PublicKey, base: &mut Base) {
        if let Some(id) = self.path.session().met(&key) {
            self.queue_introduction(now, id, flow, base);
            return;
        }
        if !self.path.session_mut().ask_referred(now, key, base) {
            self.fail_introduction(now, &flow, Failure::NotFound, base);
            return;
        }
        self.flows.put_off(now, flow);
    }

    /// The far end of a flow that is passed on for this host is known.
    pub(crate) fn ask_to_be_introduced(&mut self, now: Time, id: PeerId, flow: FlowTuple, base: &mut Base) {
        let Some(known) = self.flows.get_mut(&flow).filter(|known| known.referrals < REQUESTS) else { return };
        if self.path.session().has_session(id) {
            known.referrals += 1;
            self.path.send(id, &[Message::IntroduceMe { tuple: flow }], base);
        }
        self.flows.put_off(now, flow);
    }

    /// This host is connecting to an address. Where a peer is there it is asked to look for introductions meanwhile, so
    /// that nothing waits for it once the connection is there.
    pub(crate) fn expect_introduction(&mut self, now: Time, address: IpAddr, base: &mut Base) {
        let Some(Contact::Known(id)) = self.path.session().contacts().get(&address) else { return };
        let Some(peer) = peer_mut!(self, &id).filter(|peer| peer.has_session()) else { return };
        let ready = peer.flow.introductions.ready_until.is_some_and(|until| until > now);
        let expected = peer.flow.introductions.expected_until.replace(now + EXPECTED);
        if !ready && expected.is_none_or(|until| until <= now) && peer.flow.introductions.active.is_empty() {
            peer.flow.introductions.request_tries = 0;
            base.set_timer_earlier(Timer::Introductions(id), now);
        }
    }

    /// The peer has shown that it holds the keys of another session. It may have been started anew since it said that
    /// it looks for introductions: it is asked again, as a datagram that nobody looks for is read by a program (P-207).
    pub(crate) fn introduce_in_new_session(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer_mut!(self, &id) else { return };
        peer.flow.introductions.ready_until = None;
        peer.flow.introductions.request_tries = 0;
        if !peer.flow.introductions.active.is_empty() {
            base.set_timer(Timer::Introductions(id), now);
        }
    }

    /// The two ends are elsewhere, and know it: what both have proven to each other and not settled yet is said again.
    pub(crate) fn echo_again(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = peer!(self, &id) else { return };
        let begun: Vec<FlowTuple> = peer.flow.introductions.begun.iter().copied().collect();
        for flow in begun {
            if let Some(Stage::Echoing { next, .. }) = self.flows.get_mut(&flow).map(|known| &mut known.stage) {
                *next = now;
                base.set_timer_earlier(Timer::Introductions(id), now);
            }
        }
    }

    /// Whether a flow may be introduced: nobody has, or another host passes it on.
    pub(crate) fn is_introducible(&self, flow: &FlowTuple) -> bool {
        let open = |known: &Flow| !known.closed && matches!(known.stage, Stage::Open);
        self.flows.get(flow).is_some_and(open) || self.passed_on(flow).is_some()
    }

    /// A flow that another host passes on for this one.
    pub(crate) fn passed_on(&self, flow: &FlowTuple) -> Option<&FlowEntry> {
        self.flows.get(flow).filter(|known| !known.closed).and_then(Flow::entry).filter(|entry| entry.passed_on)
    }

    /// Whether a peer was named as the owner of the socket at a flow's other end.
    pub(crate) fn is_referred(&self, flow: &FlowTuple, id: PeerId) -> bool {
        let key = self.path.session().key_of(id);
        key.is_some() && self.flows.get(flow).is_some_and(|known| known.referred == key)
    }

    /// An introduction to whoever was named as the owner comes to nothing: the flow is as it was, and who opened it
    /// asks again where the address leads, since the socket may be elsewhere by now. Tells whether it was one.
    pub(crate) fn end_referral(&mut self, now: Time, flow: &FlowTuple, base: &mut Base) -> bool {
        let Some(known) = self.flows.get_mut(flow) else { return false };
        if known.referred.take().is_none() {
            return false;
        }
        let asks = !known.accepted;
        self.leave_stage(flow, Stage::Open);
        base.op(FlowOp::Expect { flow: *flow, from: None });
        if asks {
            self.flows.put_off(now, *flow);
        }
        true
    }

    /// The other end of a connection has said in its handshake that it runs Whimbrel. That is a hint: what this host
    /// has opened asks also where nobody has answered lately, and what it has accepted asks too, if the other end has
    /// not introduced it by then (P-242, P-243).
    pub(crate) fn handle_greeting(&mut self, now: Time, flow: FlowTuple, greeting: Greeting) {
        let contact = self.path.session().contacts().get(&flow.remote.ip());
        let Some(known) = self.flows.get_mut(&flow).filter(|known| !known.closed) else { return };
        if known.greeting.replace(greeting).is_some() || !matches!(known.stage, Stage::Open) {
            return;
        }
        match contact {
            _ if known.accepted => self.flows.put_off_until(now + ACCEPTED, flow),
            // It has its turn anyway, but would only wait.
            Some(Contact::Silent { .. }) => self.flows.put_off_until(now, flow),
            _ => {}
        }
    }

    /// A flow that this host opened is old enough: its remote address is asked, or the peer there is known. So is one
    /// that it accepted, where the other end has said that it runs Whimbrel.
    pub(crate) fn want_introduction(&mut self, now: Time, flow: FlowTuple, base: &mut Base) {
        if let Some(key) = self.flows.get(&flow).and_then(|known| known.referred) {
            self.introduce_referred(now, flow, key, base);
            return;
        }
        let address = flow.remote.ip();
        let known = self.flows.get(&flow);
        let greeted = known.is_some_and(|known| known.greeting.is_some());
        // Who accepts does not choose who connects.
        let by_others = greeted && known.is_some_and(|known| known.accepted);
        let user = if by_others { Some(OTHERS) } else { known.and_then(|known| known.user) };
        if by_others && self.path.session().contacts().waiting_for(OTHERS) >= OTHERS_MOST {
            return;
        }
        match self.path.session().contacts().get(&address) {
            Some(Contact::Known(id)) if self.path.session().peer(&id).is_some() => {
                if !self.path.session().has_session(id) {
                    self.path.session_mut().reach_again(now, id, base);
                }
                self.queue_introduction(now, id, flow, base);
            }
            Some(contact @ (Contact::Asking { .. } | Contact::Silent { .. })) => {
                self.path.session_mut().contacts_mut().await_answer(address, flow, user);
                if matches!(contact, Contact::Silent { until, .. } if until <= now) {
                    self.path.session_mut().continue_contact(now, address, base);
                } else if greeted {
                    self.path.session_mut().ask_prompted(now, address, base);
                }
            }
            _ if !self.path.session().may_ask(address, base) => {}
            _ => {
                self.path.session_mut().contacts_mut().await_answer(address, flow, user);
                let source = Some(flow.local.ip());
                self.path.session_mut().ask(now, address, source, base);
            }
        }
    }

    /// Flows that are old enough are introduced, or their remote address is asked whether it runs Whimbrel.
    pub(crate) fn mature_flows(&mut self, now: Time, base: &mut Base) {
        while let Some(flow) = self.flows.take_mature(now) {
            self.open_refused(&flow);
            if self.passed_on(&flow).is_some() {
                self.want_introduction(now, flow, base);
            } else if self.is_introducible(&flow) {
                match self.ruled_beforehand(&flow) {
                    Ruled::Free => self.want_introduction(now, flow, base),
                    Ruled::Excluded(rule) => self.exclude_flow(&flow, rule),
                    // It has its turn when that is there.
                    Ruled::Awaited => {
                        if let Some(known) = self.flows.get_mut(&flow) {
                            known.passed_over = true;
                        }
                    }
                }
            }
        }
    }

    /// The peer has no socket at this moment, as while a server is started anew: it is asked again (P-35).
    pub(super) fn on_refused(&mut self, now: Time, flow: &FlowTuple, base: &mut Base) {
        let Some(known) = self.flows.get_mut(flow) else { return };
        let pause = REFUSED * 2u32.saturating_pow(known.refusals.into());
        let is_first = known.refusals == 0;
        known.refusals = known.refusals.saturating_add(1).min(8);
        self.leave_stage(flow, Stage::Failed(Failure::NoSocket));
        self.flows.put_off_until(now + pause.min(REFUSED_MOST), *flow);
        if is_first {
            base.event(Event::IntroductionFailed { flow: *flow, reason: Failure::NoSocket.sentence() });
        }
    }

    /// A flow that was refused has its turn again.
    fn open_refused(&mut self, flow: &FlowTuple) {
        if let Some(known) =
            self.flows.get_mut(flow).filter(|known| matches!(known.stage, Stage::Failed(Failure::NoSocket)))
        {
            known.stage = Stage::Open;
        }
    }

    /// Queues a flow with the peer at its remote address, if that is known by now.
    pub(crate) fn queue_introduction(&mut self, now: Time, id: PeerId, flow: FlowTuple, base: &mut Base) {
        if self.passed_on(&flow).is_some() {
            self.ask_to_be_introduced(now, id, flow, base);
            return;
        }
        if self.flows.is_reserved(&flow) {
            // Introduced now, the two would call it otherwise than those who decide whose it is. A move that comes to
            // nothing leaves it here.
            self.flows.put_off(now, flow);
            return;
        }
        let Some(peer) = peer_mut!(self, &id) else { return };
        if peer.flow.introductions.active.insert(flow) {
            peer.flow.introductions.queue.push_back(flow);
            base.set_timer_earlier(Timer::Introductions(id), now);
        }
    }

    /// See [`Node::record_user`](crate::Node::record_user).
    pub(crate) fn record_user(&mut self, flow: &FlowTuple, user: u32) {
        if let Some(known) = self.flows.get_mut(flow).filter(|known| !known.closed) {
            known.user = Some(user);
            self.path.session_mut().contacts_mut().record_user(flow, user);
        }
    }

    /// A flow that this host is introducing to a peer, by its nonce.
    fn being_introduced(&self, id: PeerId, nonce: u64) -> Option<(FlowTuple, &Flow)> {
        let flow = self.flows.with_nonce(nonce)?;
        let known = self.flows.get(&flow).filter(|known| !known.closed)?;
        let is_it = matches!(known.stage, Stage::Introducing { peer, nonce: own, .. } if (peer, own) == (id, nonce));
        is_it.then_some((flow, known))
    }

    /// The host that a flow leads to passes it on for another, with which it is to be introduced.
    pub(crate) fn handle_referral(
        &mut self,
        now: Time,
        id: PeerId,
        nonce: u64,
        key: PublicKey,
        place: SocketAddr,
        base: &mut Base,
    ) {
        let Some((flow, known)) = self.being_introduced(id, nonce) else { return };
        if known.referred.is_none() && key != base.public_key() {
            self.leave_stage(&flow, Stage::Open);
            self.path.session_mut().add_referred(now, id, key, place, base);
            self.refer_to(now, flow, key, base);
        }
    }

    /// The owner of the socket at the other end of a connection, which has opened it and is not at the address that
    /// this host knows it by, has itself introduced. It may be anybody who says so: he proves it by what travels in the
    /// flow.
    pub(crate) fn handle_introduce_me(&mut self, now: Time, id: PeerId, tuple: &FlowTuple, base: &mut Base) {
        let flow = tuple.mirrored();
        let Some(key) = self.path.session().key_of(id) else { return };
        let Some(known) = self.flows.get(&flow).filter(|known| !known.closed && known.accepted) else { return };
        if matches!(known.stage, Stage::Open | Stage::Failed(_)) && matches!(self.ruled(&flow, id), Ruled::Free) {
            self.refer_to(now, flow, key, base);
        }
    }

    /// Has a flow introduced to whoever was named as the owner of the socket at its other end.
    fn refer_to(&mut self, now: Time, flow: FlowTuple, key: PublicKey, base: &mut Base) {
        let Some(known) = self.flows.get_mut(&flow) else { return };
        if known.referrals >= REFERRALS {
            return self.fail_introduction(now, &flow, Failure::NotFound, base);
        }
        known.referrals += 1;
        (known.referred, known.seen, known.early) = (Some(key), false, None);
        self.flows.set_stage(&flow, Stage::Open);
        self.introduce_referred(now, flow, key, base);
    }

    /// The owner has our nonce, which nobody else could tell it: what it puts into the flow is an answer.
    pub(crate) fn handle_seen(&mut self, now: Time, id: PeerId, nonce: u64, base: &mut Base) {
        let Some((flow, _)) = self.being_introduced(id, nonce) else { return };
        let Some(known) = self.flows.get_mut(&flow).filter(|known| known.referred.is_some()) else { return };
        known.seen = true;
        if let Some(early) = known.early.take() {
            self.take_nonce(now, id, flow, early, base);
        }
    }

    /// A host behind a gateway, this peer, has opened a connection to this host, which had nobody to ask about it. It
    /// may be anybody who says so: what is asked is who has the connection's remote address, as if this host had opened
    /// it.
    pub(crate) fn handle_ask_here(&mut self, now: Time, id: PeerId, tuple: &FlowTuple, base: &mut Base) {
        let flow = tuple.mirrored();
        if !self.path.session().sees_no_ends(id) || flow.transport != Transport::Tcp {
            return;
        }
        let Some(known) = self.flows.get_mut(&flow).filter(|known| !known.closed && known.accepted) else { return };
        match known.stage {
            Stage::Open => {}
            // Whoever says it again and again has nothing done again and again.
            Stage::Failed(_) if known.again < AGAIN => {
                known.again += 1;
                known.stage = Stage::Open;
            }
            _ => return,
        }
        if matches!(self.ruled_beforehand(&flow), Ruled::Free) {
            self.want_introduction(now, flow, base);
        }
    }

    /// Another key answers where a peer was asked for: what waits to be introduced to it there is to be so to another,
    /// if that is whom this host `expects` there, and else once it answers.
    pub(crate) fn leave_address(&mut self, now: Time, id: PeerId, address: IpAddr, expects: bool, base: &mut Base) {
        let active = self.peers.get(&id).into_iter().flat_map(|peer| &peer.introductions.active);
        let flows: Vec<FlowTuple> = active.filter(|flow| flow.remote.ip() == address).copied().collect();
        flows.iter().for_each(|flow| self.leave_stage(flow, Stage::Open));
        for flow in flows {
            if expects {
                self.want_introduction(now, flow, base);
            } else {
                let user = self.flows.get(&flow).and_then(|known| known.user);
                self.path.session_mut().contacts_mut().await_answer(address, flow, user);
            }
        }
    }
}
