//! The state of one host: its peers, its flows, and the order in which things are asked of the caller.

mod api;
mod moves;
mod outcome;
mod restore;
mod roles;
mod sessions;
mod signals;
pub(crate) mod view;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use whimbrel_handshake::{Opened, StaticKey};
use whimbrel_wire::datagram::Control;
use whimbrel_wire::message::{IntroductionRefusal, Message, decode_all};
use whimbrel_wire::{Datagram, FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::arrival::{Arrival, costs_too_much};
use crate::base::attachments::{Attachment, Routes};
use crate::base::config::Config;
use crate::base::flow_name::FlowName;
use crate::base::id::LinkId;
use crate::base::op::{BindingId, BindingOp, FlowEntry, LocalEnd, PeerId, SocketNumbers, StoreOp};
use crate::base::output::{Asked, Output};
use crate::base::pace::IDLE;
use crate::base::random::Random;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::flow::introduction::PROBE_BIT;
use crate::path::challenge::Path;
use crate::path::paths::Paths;
use crate::role::relocation::Relocation;
use crate::role::{At, Came};
use roles::Roles;

/// One host's side of the protocol. It takes what happens by `handle_*`, and is drained by [`Node::poll`] after each of
/// them; [`Node::poll_timeout`] tells when [`Node::handle_timeout`] is due.
pub struct Node {
    base: Base,
    binding: BindingLayer,
    roles: Roles,
    /// When facts were last told.
    settled: Time,
}

impl Node {
    /// A node without peers or flows. `seed` must be random and new at each start; with the same seed and the same
    /// calls a node does the same.
    #[must_use]
    pub fn new(config: Config, key: StaticKey, seed: [u8; 32]) -> Self {
        let mut random = Random::new(seed);
        let binding = BindingLayer::new(&config, key.public(), &mut random);
        let base = Base::new(config, key, random);
        let roles = Roles::new(&base);
        Self { base, binding, roles, settled: Time::default() }
    }

    /// A datagram came to the control port (tunnel datagrams are the caller's business). `destination` is the address
    /// of this host that it was sent to, and `link` the one that it came by.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        source: SocketAddr,
        destination: Option<IpAddr>,
        link: Option<LinkId>,
        payload: &[u8],
    ) {
        self.take_in_datagram(now, source, destination, link, payload, false);
    }

    /// `passed_on`: it came to another host, for an address that this one has left (P-61).
    pub(crate) fn take_in_datagram(
        &mut self,
        now: Time,
        source: SocketAddr,
        destination: Option<IpAddr>,
        link: Option<LinkId>,
        payload: &[u8],
        passed_on: bool,
    ) {
        match Datagram::parse(payload) {
            Ok(Datagram::Control(control)) => {
                let index = control.receiver;
                let Some(id) = self.binding.session().with_index(index) else {
                    self.base.drop_datagram();
                    return;
                };
                let own_source = self.binding.path().paths(&id).and_then(Paths::source);
                let destination = if passed_on { own_source } else { destination };
                let opened = self.binding.session_mut().open(now, id, &control);
                let (datagram, length) = ((index, control.counter), payload.len());
                let is_newest = opened.as_ref().is_some_and(|opened| opened.newest);
                let arrival = Arrival { source, destination, link, datagram, length, is_newest, passed_on };
                // P-1
                let Some(Opened { plaintext, .. }) = opened else {
                    return self.take_in_copy(now, id, &arrival, &control);
                };
                let Ok(messages) = decode_all(&plaintext) else {
                    self.base.drop_datagram();
                    return;
                };
                if costs_too_much(&messages) {
                    self.base.drop_datagram();
                    return;
                }
                self.confirm(now, id, index);
                if is_newest {
                    self.follow_session(now, id, index);
                }
                self.handle_messages(now, id, &arrival, messages);
            }
            Ok(Datagram::TunnelSealed(_) | Datagram::TunnelPlain(_)) | Err(_) => self.base.drop_datagram(),
            Ok(datagram) => self.take_in_handshake(now, source, destination, &datagram),
        }
    }

    /// A datagram that cannot be opened, or was already. If it is the update that leads to an endpoint which has not
    /// answered, one of the two was a copy of somebody's on the way (P-17).
    fn take_in_copy(&mut self, now: Time, id: PeerId, arrival: &Arrival, control: &Control<'_>) {
        let paths = self.binding.path().paths(&id);
        let elsewhere = |candidate: &&Path| candidate.came_as(arrival) && candidate.remote() != arrival.source;
        let candidate = paths.and_then(Paths::candidate).filter(elsewhere);
        let room = paths.is_some_and(Paths::is_uncontested);
        let peer = candidate.and_then(|_| self.binding.session().peer(&id));
        let slot = peer.and_then(|peer| peer.session_of(arrival.index()));
        let messages = slot.and_then(|slot| decode_all(&slot.session().open_copy(control).ok()?).ok());
        let counts = |message: &Message| match message {
            Message::BindingUpdate { claimed, .. } => room || *claimed == arrival.source,
            _ => false,
        };
        let Some(update) = messages.into_iter().flatten().find(counts) else {
            self.base.drop_datagram();
            return;
        };
        let mut answers = Vec::new();
        self.pass_on(now, id, arrival, update, &mut answers);
        if !answers.is_empty() {
            self.binding.path_mut().send_to(id, arrival.destination, arrival.source, &answers, &mut self.base);
        }
    }

    fn handle_messages(&mut self, now: Time, id: PeerId, arrival: &Arrival, messages: Vec<Message>) {
        // Its source is where the peer is not any more (P-241).
        if let Some(Message::MaskedUpdate(update)) = messages.first() {
            return self.binding.handle_masked_update(now, id, arrival, *update, &mut self.base);
        }
        self.binding.path_mut().hear_candidate(now, id, arrival, &mut self.base);
        self.roles.rendezvous.on_found(id, arrival, &mut At::new(now, &mut self.binding, &mut self.base));
        let updates = messages.iter().any(|message| matches!(message, Message::BindingUpdate { .. }));
        if !updates && self.binding.path().paths(&id).is_some_and(|paths| paths.remote() == arrival.source) {
            self.binding.hear(now, id, &mut self.base);
        }
        self.binding.part_again(now, id, &mut self.base);
        let mut answers = Vec::new();
        // A probe of a path says nothing of where the peer is, nor does the answer to one (as RFC 9000 §9.1 has it).
        let tells_place = !updates
            && messages.iter().any(|message| {
                !matches!(
                    message,
                    Message::PathChallenge { .. }
                        | Message::PathResponse { .. }
                        | Message::PathKept { .. }
                        | Message::MaskedUpdateSeen { .. }
                        | Message::Life { .. }
                        | Message::Memory { .. }
                        | Message::Padding { .. }
                )
            });
        for message in messages {
            self.settle(now);
            self.pass_on(now, id, arrival, message, &mut answers);
        }
        self.settle(now);
        let answered: usize = answers.iter().map(Message::encoded_len).sum();
        if !answers.is_empty() {
            self.binding.path_mut().send_to(id, arrival.destination, arrival.source, &answers, &mut self.base);
        }
        if tells_place {
            let mapped = self.binding.peer(&id).is_some_and(|peer| peer.is_mapped());
            self.binding.path_mut().notice_rebinding(now, id, arrival, answered, mapped, &mut self.base);
        }
        self.binding.hear_in_doubt(now, id, arrival, &mut self.base);
        self.act(now, |roles, at| roles.rendezvous.record_endpoint(id, at));
    }

    /// Has the owner of a message see to it.
    fn pass_on(&mut self, now: Time, id: PeerId, arrival: &Arrival, message: Message, answers: &mut Vec<Message>) {
        let (low, base) = (&mut self.binding, &mut self.base);
        let Some(message) = low.handle_message(now, id, arrival, message, answers, base) else { return };
        let came = &mut Came::new(id, arrival, answers);
        match self.roles.handle_message(came, message, &mut At::new(now, low, base)) {
            Some(Message::PassedOn { left, source, datagram })
                if self.roles.rendezvous.is_passed_on(id, arrival, left, source, base) =>
            {
                self.take_in_datagram(now, source, None, None, &datagram, true);
            }
            Some(Message::FlowClosed(nonces)) => self.handle_flows_closed(now, id, &nonces),
            Some(Message::Close { .. }) => self.handle_close(now, id),
            _ => {}
        }
    }

    /// These are the ports of this host that sockets are bound to which take what anybody sends: TCP's that listen,
    /// UDP's that are connected to nobody. Flows that are introduced from now on are called by none of them, nor by the
    /// port of a flow that the node was told of ([`Node::handle_flow_opened`]). Call it with all of them, first and
    /// whenever they change. `drawn`: what the kernel gives to connections by itself now ([`Config::drawn_ports`]).
    pub fn handle_bound_ports(&mut self, bound: BTreeSet<u16>, drawn: RangeInclusive<u16>) {
        self.binding.flow_mut().flows_mut().set_bound_ports(bound, drawn);
    }

    /// A nonce was consumed at ingress: an introduction on `flow`, or a carrier probe on a tuple of the wire.
    pub fn handle_introduction(&mut self, now: Time, flow: FlowTuple, index: u32, nonce: u64) {
        let Some(id) = self.binding.session().with_index(index) else {
            self.base.drop_datagram();
            return;
        };
        if nonce & PROBE_BIT != 0 {
            self.binding.handle_probe(now, id, flow, nonce, &mut self.base);
        } else if self.binding.flow_mut().take_nonce(now, id, flow, nonce, &mut self.base) {
            // P-87, P-35
            let relocation = &self.roles.relocation;
            let hides = |name: &FlowName| relocation.holder().hides(name);
            let at = &mut At::new(now, &mut self.binding, &mut self.base);
            if !self.roles.referral.refer(id, &flow, nonce, hides, at) {
                self.binding.flow_mut().refuse_introduction(id, nonce, IntroductionRefusal::Refused, &mut self.base);
            }
        }
        self.settle(now);
    }

    /// An introduction has come for a flow that this host has no connected socket of, but one which takes what anybody
    /// sends (P-220). Whether it is to be told by [`Node::handle_introduction`], and the flow is known.
    pub fn admit_unconnected(&mut self, now: Time, flow: FlowTuple, index: u32, nonce: u64) -> bool {
        let Some(id) = self.binding.session().with_index(index) else {
            self.base.drop_datagram();
            return false;
        };
        let admitted = self.binding.flow_mut().admit_unconnected(now, id, flow, nonce, &mut self.base);
        self.settle(now);
        admitted
    }

    /// Somebody else opened a connection under the names of a flow that has moved, and is refused, or will get through
    /// when the flow has gone: as its ruling wants it.
    pub fn handle_claim(&mut self, now: Time, flow: FlowTuple) {
        let Some(entry) = self.binding.flow().flows().entry(&flow).copied() else { return };
        match flow.transport {
            Transport::Udp => {
                self.act(now, |roles, at| roles.gateway.handle_datagram_claim(flow, &entry, at));
            }
            Transport::Tcp => self.binding.flow_mut().take_claimed(now, flow, &entry, &mut self.base),
        }
        self.settle(now);
    }

    /// Something other than a SYN or a reset came natively in a moved flow of TCP that its peer has named late.
    pub fn handle_still_there(&mut self, now: Time, flow: FlowTuple) {
        self.binding.flow_mut().disown(now, flow, &mut self.base);
        self.settle(now);
    }

    /// Has single flows wait, or go on, at both ends. Returns those that are introduced and
    /// did not already.
    pub fn set_paused(&mut self, now: Time, flows: &[FlowTuple], wait: bool) -> Vec<FlowTuple> {
        let changed = self.binding.flow_mut().let_flows_wait(now, flows, wait, &mut self.base);
        self.settle(now);
        changed
    }

    /// The sockets whose remote address is the peer's, as [`FlowOp::FindSockets`] asked for them.
    pub fn handle_sockets(&mut self, now: Time, id: PeerId, sockets: &[SocketNumbers]) {
        self.binding.take_claims(now, id, sockets, &mut self.base);
        self.settle(now);
    }

    /// The network changed, or may have: `attachments` are all usable addresses of this host.
    pub fn handle_network(&mut self, now: Time, attachments: &[Attachment], routes: &dyn Routes) {
        self.base.attachments_mut().set(attachments);
        let ids: Vec<PeerId> = self.binding.session().ids();
        for id in ids {
            self.binding.check_for_move(now, id, routes, None, &mut self.base);
        }
        self.base.attachments_mut().settle();
        self.deliver(now, Signal::NetworkChanged);
        self.binding.refresh_sets_anew(&mut self.base);
        self.settle(now);
    }

    /// Takes back a code that nobody has used, or a grant: a move that it let begin and that is not decided comes to
    /// nothing. Tells whether there was one.
    pub fn withdraw(&mut self, now: Time, number: u16) -> bool {
        let offered = self.roles.community.withdraw_offer(number);
        let granted = self.binding.permits_mut().is_some_and(|permits| permits.withdraw(number));
        self.relocate(now, Relocation::end_unpermitted);
        self.settle(now);
        offered || granted
    }

    /// This host is back: its flows go on from where it is now.
    pub fn resume(&mut self, now: Time, routes: &dyn Routes) {
        if self.binding.come_back(now, routes, &mut self.base) {
            self.base.signal(Signal::Returned);
            self.settle(now);
        }
    }

    /// Whatever is due at `now` happens.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(due) = self.poll_timeout().filter(|due| *due <= now) {
            if self.binding.flow().flows().poll_timeout() == Some(due) {
                self.binding.flow_mut().mature_flows(now, &mut self.base);
                self.binding.flow_mut().end_lapsed(now, &mut self.base);
                self.forget_closed(now);
            } else if self.binding.chains().poll_timeout() == Some(due) {
                self.binding.continue_chains(now, &mut self.base);
            } else if let Some(timer) = self.base.take_due_timer(now) {
                self.handle_timer(now, timer);
            } else {
                self.act(now, Roles::handle_timeout);
            }
            self.settle(now);
        }
    }

    fn handle_timer(&mut self, now: Time, timer: Timer) {
        match timer {
            _ if self.binding.handle_timer(now, timer, &mut self.base) => {}
            Timer::Closed(id) => self.send_closed(now, id),
            Timer::Renew(id) => self.renew(now, id),
            Timer::Reach(id) => self.reach(now, id),
            Timer::Idle(id) => self.forget_idle(now, id),
            Timer::Sweep => self.sweep(now),
            _ => {}
        }
    }

    fn forget_closed(&mut self, now: Time) {
        let mut idle = BTreeSet::new();
        while let Some(flow) = self.binding.flow_mut().flows_mut().take_lingered(now) {
            if let Some(known) = self.binding.flow().flows().get(&flow).filter(|known| known.is_closed()) {
                let entry = known.entry().copied();
                idle.extend(entry.map(|entry| entry.peer));
                self.binding.flow_mut().forget_flow(&flow, &mut self.base);
                let blind = |entry: &FlowEntry| {
                    entry.end == LocalEnd::Endpoint || self.binding.session().sees_no_ends(entry.peer)
                };
                if let Some(entry) = entry.filter(blind) {
                    // Whoever holds its far end, or speaks for it, sees nothing of its socket.
                    self.binding.flow_mut().send_ended(now, entry.peer, entry.name, &mut self.base);
                }
            }
        }
        self.binding.refresh_sets(&mut self.base);
        for id in idle {
            if self.binding.flow().peer(&id).is_some_and(|peer| peer.flow.flows().is_empty()) {
                self.binding.flow_mut().idle_later(now, id, &mut self.base);
                self.binding.apply_binding(now, id, &mut self.base);
            }
        }
    }

    fn forget_idle(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.binding.flow().peer(&id) else { return };
        if !peer.flow.flows().is_empty() || peer.flow.introduces() || self.binding.session().keeps(id) {
            return;
        }
        if now < peer.last_heard() + IDLE && !peer.is_replaced() {
            let until = peer.last_heard() + IDLE;
            self.base.set_timer(Timer::Idle(id), until);
            return;
        }
        let reason = whimbrel_wire::message::CloseReason::Shutdown;
        self.binding.path_mut().send(id, &[Message::Close { reason }], &mut self.base);
        self.drop_peer(now, id);
    }

    pub(crate) fn handle_close(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.binding.flow().peer(&id) else { return };
        if peer.flow.flows().is_empty() && !self.binding.session().keeps(id) {
            self.binding.flow_mut().abandon_introductions(now, id, &mut self.base);
            self.drop_peer(now, id);
        } else {
            self.binding.session_mut().drop_sessions(id, &mut self.base);
            self.binding.session_mut().reach_again(now, id, &mut self.base);
        }
    }

    pub(crate) fn drop_peer(&mut self, now: Time, id: PeerId) {
        self.binding.session_mut().drop_sessions(id, &mut self.base);
        self.binding.forget_chains(id, &mut self.base);
        self.binding.forget_sides(id, &mut self.base);
        self.binding.end_fallback(id, &mut self.base);
        let Some(key) = self.binding.session_mut().forget_peer(id) else { return };
        self.binding.path_mut().forget_peer(id);
        let was_in_sets = self.binding.flow_mut().forget_peer(id);
        self.binding.forget_peer(id);
        self.roles.forget_peer(id, key, &mut At::new(now, &mut self.binding, &mut self.base));
        self.base.stop_timers_of(id);
        self.base.ask(BindingOp::Remove { id: BindingId::first(id) }, Asked::Effect("removing a binding"));
        self.base.ask(StoreOp::ForgetPeer { key }, Asked::Effect("forgetting a peer"));
        if was_in_sets {
            self.binding.refresh_sets(&mut self.base);
        }
    }

    fn renew(&mut self, now: Time, id: PeerId) {
        self.act(now, |roles, at| roles.gateway.forget_unheard(id, at));
        let Some(peer) = self.binding.flow().peer(&id) else { return };
        let needed = !peer.flow.flows().is_empty() || self.binding.session().keeps(id);
        if needed && peer.path.attachment().is_some() && peer.flow.away().is_none() && !self.base.is_suspended() {
            self.binding.path_mut().start_handshake_with(now, id, &mut self.base);
        }
        self.base.set_timer(Timer::Renew(id), now + crate::session::peers::RENEW);
    }

    fn sweep(&mut self, now: Time) {
        let more = self.binding.session_mut().sweep_contacts(now)
            | self.binding.session_mut().sweep_sessions(now, &mut self.base)
            | self.binding.flow_mut().sweep_introductions(now)
            | self.binding.flow_mut().end_doubts(now, &mut self.base)
            | self.act(now, |roles, at| roles.gateway.sweep_passing(at));
        self.binding.refresh_listening(now, &mut self.base);
        if more {
            self.base.sweep_later(now);
        }
    }

    /// Takes the next datagram, effect or event, in the order in which they are to be seen to. Each effect is answered
    /// by [`Node::handle_done`].
    pub fn poll(&mut self) -> Option<Output> {
        self.settle(self.settled);
        self.base.poll()
    }

    /// When [`Node::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let (flows, chains) = (self.binding.flow().flows().poll_timeout(), self.binding.chains().poll_timeout());
        [self.base.next_timer(), flows, chains, self.roles.poll_timeout()].into_iter().flatten().min()
    }

    /// Datagrams that were dropped as malformed, forged, replayed or unknown (P-1).
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.base.dropped()
    }
}
