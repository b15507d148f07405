//! The state of one host: its peers, its flows, and the order in which things are asked of the caller.

mod outcome;
mod restore;
mod sessions;
mod signals;
pub(crate) mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use whimbrel_handshake::{Opened, PublicKey, StaticKey};
use whimbrel_wire::message::{IntroductionRefusal, Message, decode_all};
use whimbrel_wire::{Datagram, FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::arrival::{Arrival, costs_too_much};
use crate::base::attachments::{Attachment, Routes};
use crate::base::config::Config;
use crate::base::flow_name::FlowName;
use crate::base::op::{BindingOp, FlowEntry, LocalEnd, PeerId, SocketNumbers, StoreOp, TunnelOp};
use crate::base::output::{Asked, Output, State};
use crate::base::pace::IDLE;
use crate::base::random::Random;
use crate::base::timer::Timer;
use crate::flow::introduction::{Echoed, PROBE_BIT, Proven};
use crate::flow::looks::Looks;
use crate::flow::table::Flows;
use crate::path::shared::Sightings;
use crate::role::community::Community;
use crate::role::gateway::Unshown;
use crate::role::gateway::opened::OpenedBehind;
use crate::role::relocation::Moves;
use crate::role::rendezvous::client::Rendezvous;
use crate::role::rendezvous::proxy::StandIns;
use crate::role::rendezvous::server::Meetings;
use crate::session::contact::Contacts;
use crate::session::peer::Peer;

/// One host's side of the protocol. It takes what happens by `handle_*`, and is drained by [`Node::poll`] after each of
/// them; [`Node::poll_timeout`] tells when [`Node::handle_timeout`] is due.
pub struct Node {
    pub(crate) base: Base,
    /// Peers that flows of other peers were bound to, whose senders are to be woken.
    pub(crate) rebound: BTreeSet<PeerId>,
    pub(crate) contacts: Contacts,
    pub(crate) looks: Looks,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) meetings: Meetings,
    pub(crate) stand_ins: StandIns,
    pub(crate) community: Community,
    /// Sockets that move, where this host takes part in that.
    pub(crate) moves: Option<Box<Moves>>,
    pub(crate) peers: BTreeMap<PeerId, Peer>,
    pub(crate) by_key: HashMap<PublicKey, PeerId>,
    pub(crate) by_index: HashMap<u32, PeerId>,
    pub(crate) flows: Flows,
    /// Flows that have become direct a moment ago.
    pub(crate) left: BTreeMap<FlowTuple, crate::role::anchor::referral::Left>,
    /// Flows of hosts behind this one that nobody has shown to sit on yet.
    pub(crate) unshown: Unshown,
    /// Connections that hosts behind this one have opened.
    pub(crate) opened: OpenedBehind,
    /// Datagram flows of theirs that somebody has sent in from where their peers were, a moment after these had moved, and when that
    /// is looked for again.
    pub(crate) claimed: BTreeMap<FlowTuple, Time>,
    pub(crate) next_peer: u32,
    /// When facts were last told.
    settled: Time,
    /// What could not be made so, and how often that was tried again.
    pub(crate) failed: BTreeSet<State>,
    pub(crate) mended: u32,
    /// Which peer rewritten packets between two locators (ours, its) belong to.
    pub(crate) pairs: HashMap<(IpAddr, IpAddr), PeerId>,
    /// Who was seen at which address, and which several hosts share.
    pub(crate) sightings: Sightings,
    pub(crate) listening: Vec<u32>,
    pub(crate) keeping: Vec<IpAddr>,
    pub(crate) leaving: Vec<IpAddr>,
    pub(crate) reaching: Vec<(IpAddr, bool)>,
}

impl Node {
    /// A node without peers or flows. `seed` must be random and new at each start; with the same seed and the same calls a
    /// node does the same.
    #[must_use]
    pub fn new(config: Config, key: StaticKey, seed: [u8; 32]) -> Self {
        let mut random = Random::new(seed);
        let contacts = Contacts::new(key.public(), &mut random, &config);
        let moves = Moves::of(&key, &config);
        let flows = Flows::new(&config, &mut random);
        let mut community = Community::default();
        if moves.is_some() {
            community.set_grants(Vec::new());
        }
        Self {
            base: Base::new(config, key, random),
            rebound: BTreeSet::new(),
            contacts,
            looks: Looks::default(),
            rendezvous: Rendezvous::default(),
            meetings: Meetings::default(),
            stand_ins: StandIns::default(),
            community,
            moves,
            peers: BTreeMap::new(),
            by_key: HashMap::new(),
            by_index: HashMap::new(),
            flows,
            left: BTreeMap::new(),
            unshown: Unshown::default(),
            opened: OpenedBehind::default(),
            claimed: BTreeMap::new(),
            next_peer: 1,
            settled: Time::default(),
            failed: BTreeSet::new(),
            mended: 0,
            pairs: HashMap::new(),
            sightings: Sightings::default(),
            listening: Vec::new(),
            keeping: Vec::new(),
            leaving: Vec::new(),
            reaching: Vec::new(),
        }
    }

    /// A datagram came to the control port (tunnel datagrams are the caller's business). `destination` is the address of
    /// this host that it was sent to.
    pub fn handle_datagram(&mut self, now: Time, source: SocketAddr, destination: Option<IpAddr>, payload: &[u8]) {
        self.take_in_datagram(now, source, destination, payload, false);
    }

    /// `passed_on`: it came to another host, for an address that this one has left (P-61).
    pub(crate) fn take_in_datagram(
        &mut self,
        now: Time,
        source: SocketAddr,
        destination: Option<IpAddr>,
        payload: &[u8],
        passed_on: bool,
    ) {
        match Datagram::parse(payload) {
            Ok(Datagram::Control(control)) => {
                let Some(&id) = self.by_index.get(&control.receiver) else {
                    self.base.drop_datagram();
                    return;
                };
                let index = control.receiver;
                let own_source = self.peers.get(&id).and_then(|peer| peer.source);
                let destination = if passed_on { own_source } else { destination };
                let opened = self.peers.get_mut(&id).and_then(|peer| {
                    let slot = peer.sessions.iter_mut().find(|slot| slot.session.local_index() == index)?;
                    let opened = slot.session.open(&control).ok()?;
                    peer.last_heard = now;
                    Some(opened)
                });
                // P-1
                let Some(Opened { plaintext, newest: is_newest, .. }) = opened else {
                    self.base.drop_datagram();
                    return;
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
                let arrival = Arrival { source, destination, index, length: payload.len(), is_newest, passed_on };
                self.handle_messages(now, id, &arrival, messages);
            }
            Ok(Datagram::TunnelSealed(_) | Datagram::TunnelPlain(_)) | Err(_) => self.base.drop_datagram(),
            Ok(datagram) => self.take_in_handshake(now, source, destination, &datagram),
        }
    }

    fn handle_messages(&mut self, now: Time, id: PeerId, arrival: &Arrival, messages: Vec<Message>) {
        self.hear_candidate(now, id, arrival);
        self.note_found(id, arrival);
        let updates = messages.iter().any(|message| matches!(message, Message::BindingUpdate { .. }));
        if !updates && self.peers.get(&id).is_some_and(|peer| peer.remote == arrival.source) {
            self.hear(now, id);
        }
        self.part_again(now, id);
        let mut answers = Vec::new();
        // A probe of a path says nothing of where the peer is, nor does the answer to one (as RFC 9000 §9.1 has it).
        let tells_place = !updates
            && messages.iter().any(|message| {
                !matches!(
                    message,
                    Message::PathChallenge { .. }
                        | Message::PathResponse { .. }
                        | Message::Life { .. }
                        | Message::Memory { .. }
                        | Message::Padding { .. }
                )
            });
        for message in messages {
            self.settle(now);
            match message {
                Message::PathChallenge { token } => {
                    answers.push(Message::PathResponse { token, observed: arrival.source });
                    // Once for them all: no answer is to be much larger than what it answers.
                    let life = Message::Life { life: self.base.config().life };
                    answers.extend((self.base.config().life != 0 && !answers.contains(&life)).then_some(life));
                    let memory = Message::Memory { memory: self.base.config().memory };
                    answers.extend((self.base.config().memory != 0 && !answers.contains(&memory)).then_some(memory));
                }
                Message::PathResponse { token, observed } => {
                    if !self.handle_path_response(now, id, arrival, token, observed) {
                        self.prove_found(id, token);
                    }
                }
                Message::Life { life } => self.note_life_in_session(now, id, arrival.index, life),
                Message::Memory { memory } => self.note_memory(now, id, arrival.index, memory),
                Message::AskHere { tuple } => self.handle_ask_here(now, id, &tuple),
                Message::Passing { nonce } => self.handle_passing(id, nonce),
                Message::Locators(locators) => {
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.locators = locators;
                    }
                }
                Message::IntroductionRequest { tag } => {
                    self.listen_for_introductions(now, id);
                    answers.push(Message::IntroductionReady { tag });
                }
                Message::IntroductionReady { tag } => self.handle_introduction_ready(now, id, tag),
                Message::IntroductionEcho(echo) => match self.handle_echo(now, id, arrival.index, &echo) {
                    Echoed::Nothing => {}
                    Echoed::Answer(answer) => answers.push(answer),
                    Echoed::Proven(Proven { flow, entry, origin }) => self.install(now, flow, entry, origin),
                },
                Message::IntroductionDone { nonce, outcome } => {
                    if let Some(Proven { flow, entry, origin }) = self.handle_introduced(now, id, nonce, outcome) {
                        self.install(now, flow, entry, origin);
                    }
                }
                Message::Pairing(pairing) => answers.extend(self.handle_pairing(now, id, arrival.index, &pairing)),
                Message::Paired { nonce, proof, introduced } => {
                    let proven = self.handle_paired(now, id, arrival.index, nonce, proof, introduced);
                    if let Some(Proven { flow, entry, origin }) = proven {
                        self.install(now, flow, entry, origin);
                    }
                }
                Message::BindingUpdate { sequence, flags, claimed, .. } => {
                    let update = crate::binding::handoff::Update { sequence, flags, claimed };
                    self.handle_update(now, id, arrival, &update, &mut answers);
                }
                Message::BindingAcknowledgement { sequence, status, flags, newest, place, observed } => {
                    let acknowledgement =
                        crate::binding::handoff::Acknowledgement { sequence, status, flags, newest, place, observed };
                    self.handle_acknowledgement(now, id, arrival, &acknowledgement);
                }
                Message::ProbeSeen { token } => self.handle_probe_seen(now, id, token),
                Message::Waiting { number, wait, names } => {
                    answers.extend(self.handle_waiting(now, id, number, wait, &names))
                }
                Message::WaitingSeen { number } => self.handle_waiting_seen(now, id, number),
                Message::Register { number, change, tags } => {
                    answers.extend(self.handle_registration(now, id, number, change, &tags));
                }
                Message::Registered { number, status, newest } => {
                    self.handle_registered(now, id, number, status, newest);
                }
                Message::Whereabouts { number, found } => {
                    answers.extend(self.handle_whereabouts(now, id, number, &found));
                }
                Message::WhereaboutsSeen { number } => self.handle_whereabouts_seen(now, id, number),
                Message::StandIn { addresses } => answers.extend(self.handle_stand_in(now, id, arrival, &addresses)),
                Message::StandingIn { addresses } => self.handle_standing_in(now, id, &addresses),
                Message::PassedOn { left, source, datagram } => {
                    if self.is_passed_on(id, arrival, left, source) {
                        self.take_in_datagram(now, source, None, &datagram, true);
                    }
                }
                Message::Community(word) => answers.extend(self.handle_word(now, id, arrival, word)),
                message @ (Message::Stream(_) | Message::Received(_)) => self.handle_move_message(now, id, message),
                Message::FlowClosed(nonces) => self.handle_flows_closed(now, id, &nonces),
                Message::Elsewhere { .. }
                | Message::Sought { .. }
                | Message::IntroduceMe { .. }
                | Message::Seen { .. } => {
                    self.handle_direct(now, id, message);
                }
                Message::Close { .. } => self.handle_close(now, id),
                Message::Padding { .. } => {}
            }
        }
        self.settle(now);
        let answered: usize = answers.iter().map(Message::encoded_len).sum();
        if !answers.is_empty() {
            self.send_to(id, arrival.destination, arrival.source, &answers);
        }
        if tells_place {
            self.notice_rebinding(now, id, arrival, answered);
        }
        self.note_endpoint(now, id);
    }

    /// These are the ports of this host that sockets are bound to which take what anybody sends: TCP's that listen, UDP's that are
    /// connected to nobody. Flows that are introduced from now on are called by none of them, nor by the port of a flow that the node
    /// was told of ([`Node::handle_flow_opened`]). Call it with all of them, first and whenever they change. `drawn`: what the kernel
    /// gives to connections by itself now ([`Config::drawn_ports`]).
    pub fn handle_bound_ports(&mut self, bound: BTreeSet<u16>, drawn: RangeInclusive<u16>) {
        self.flows.set_bound_ports(bound, drawn);
    }

    /// A nonce was consumed at ingress: an introduction on `flow`, or a carrier probe on a tuple of the wire.
    pub fn handle_introduction(&mut self, now: Time, flow: FlowTuple, index: u32, nonce: u64) {
        let Some(&id) = self.by_index.get(&index) else {
            self.base.drop_datagram();
            return;
        };
        if nonce & PROBE_BIT != 0 {
            self.handle_probe(now, id, flow, nonce);
        } else if self.take_nonce(now, id, flow, nonce) {
            // P-87, P-35
            let hides = |node: &Self, name: &FlowName| node.hides(name);
            if !self.refer(id, &flow, nonce, hides) {
                self.refuse_introduction(id, nonce, IntroductionRefusal::Refused);
            }
        }
        self.settle(now);
    }

    /// Somebody else opened a connection under the names of a flow that has moved, and is refused, or will get through when
    /// the flow has gone: as its ruling wants it.
    pub fn handle_claim(&mut self, now: Time, flow: FlowTuple) {
        let Some(entry) = self.flows.get(&flow).and_then(|known| known.entry()).copied() else { return };
        match flow.transport {
            Transport::Udp => self.handle_datagram_claim(now, flow, &entry),
            _ => self.take_claimed(now, flow, &entry),
        }
        self.settle(now);
    }

    /// Has single flows wait, or go on, at both ends. Returns those that are introduced and
    /// did not already.
    pub fn set_waiting(&mut self, now: Time, flows: &[FlowTuple], wait: bool) -> Vec<FlowTuple> {
        let changed = self.let_flows_wait(now, flows, wait);
        self.settle(now);
        changed
    }

    /// The sockets whose remote address is the peer's, as [`FlowOp::FindSockets`] asked for them.
    pub fn handle_sockets(&mut self, now: Time, id: PeerId, sockets: &[SocketNumbers]) {
        self.take_claims(now, id, sockets);
        self.settle(now);
    }

    /// The network changed, or may have: `attachments` are all usable addresses of this host.
    pub fn handle_network(&mut self, now: Time, attachments: &[Attachment], routes: &dyn Routes) {
        self.base.attachments_mut().set(attachments);
        let ids: Vec<PeerId> = self.peers.keys().copied().collect();
        for id in ids {
            self.look_for_move(now, id, routes, None);
        }
        self.base.attachments_mut().settle();
        self.ask_rendezvous_again(now);
        self.hurry_community(now);
        // What the sets ask for may have been undone by the change.
        let keeping = std::mem::take(&mut self.keeping);
        let reaching = std::mem::take(&mut self.reaching);
        self.refresh_sets();
        if !keeping.is_empty() && self.keeping.is_empty() {
            self.keep_addresses();
        }
        if !reaching.is_empty() && self.reaching.is_empty() {
            self.reach_peers();
        }
        self.settle(now);
    }

    /// Takes back a code that nobody has used, or a grant: a move that it let begin and that is not decided comes to nothing.
    /// Tells whether there was one.
    pub fn withdraw(&mut self, now: Time, number: u16) -> bool {
        let offered = self.withdraw_offer(now, number);
        let granted = self.withdraw_grant(now, number);
        self.settle(now);
        offered || granted
    }

    /// This host is back: its flows go on from where it is now.
    pub fn resume(&mut self, now: Time, routes: &dyn Routes) {
        if self.come_back(now, routes) {
            self.meet_later(now);
            self.hurry_community(now);
            self.settle(now);
        }
    }

    /// Whatever is due at `now` happens.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(due) = self.poll_timeout().filter(|due| *due <= now) {
            if self.flows.poll_timeout() == Some(due) {
                self.mature_flows(now);
                self.forget_closed(now);
            } else if let Some(timer) = self.base.take_due_timer(now) {
                self.handle_timer(now, timer);
            }
            self.settle(now);
        }
    }

    fn handle_timer(&mut self, now: Time, timer: Timer) {
        match timer {
            Timer::Contact(address) => self.continue_contact(now, address),
            Timer::Looks => self.continue_looks(now),
            Timer::Left => self.leave_holders(now),
            Timer::Introductions(id) => self.continue_introductions(now, id),
            Timer::Closed(id) => self.tell_closed(now, id),
            Timer::Pairings(id) => self.look_for_claims(now, id),
            Timer::Update(id) => self.repeat_update(now, id),
            Timer::Challenge(id) => self.repeat_challenge(now, id),
            Timer::Probe(id) => self.probe_carrier(now, id),
            Timer::Keepalive(id) => self.keep_alive(now, id),
            Timer::Renew(id) => self.renew(now, id),
            Timer::Reach(id) => self.reach(now, id),
            Timer::Former(id) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.former.clear();
                    self.put_binding_in_force(now, id);
                }
            }
            Timer::Park(id) => self.park_late(now, id),
            Timer::Waiting(id) => self.tell_waiting(now, id),
            Timer::Registration(id) => self.register(now, id),
            Timer::Whereabouts(id) => self.tell_whereabouts(now, id),
            Timer::Found(id) => self.try_found(now, id),
            Timer::StandIn(id) => self.ask_stand_in(now, id),
            Timer::Rendezvous => self.look_for_rendezvous(now),
            Timer::Moves => self.continue_moves(now),
            Timer::Community => self.continue_community(now),
            Timer::Shared => self.regain_pairs(now),
            Timer::Wake(id) => self.wake_flows(now, id),
            Timer::Opened => self.continue_opened(now),
            Timer::Claims => self.look_for_claims_again(now),
            Timer::Idle(id) => self.forget_idle(now, id),
            Timer::Vanished(id) => self.end_vanished(now, id),
            Timer::Sweep => self.sweep(now),
            Timer::Listening => self.refresh_listening(now),
            Timer::Mend => self.mend(now),
            Timer::Mended => self.rest_mending(now),
        }
    }

    fn forget_closed(&mut self, now: Time) {
        let mut idle = BTreeSet::new();
        while let Some(flow) = self.flows.take_lingered(now) {
            if let Some(known) = self.flows.get(&flow).filter(|known| known.closed) {
                let entry = known.entry().copied();
                idle.extend(entry.map(|entry| entry.peer));
                self.forget_flow(&flow);
                let blind = |entry: &FlowEntry| entry.end == LocalEnd::Endpoint || self.sees_no_ends(entry.peer);
                if let Some(entry) = entry.filter(blind) {
                    // Whoever holds its far end, or speaks for it, sees nothing of its socket.
                    self.tell_ended(now, entry.peer, entry.name);
                }
            }
        }
        self.refresh_sets();
        for id in idle {
            if self.peers.get(&id).is_some_and(|peer| peer.flows.is_empty()) {
                self.idle_later(now, id);
                self.put_binding_in_force(now, id);
            }
        }
    }

    fn forget_idle(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return };
        if !peer.flows.is_empty() || !peer.introductions.active.is_empty() || self.keeps(id) {
            return;
        }
        if now < peer.last_heard + IDLE && !peer.replaced {
            let until = peer.last_heard + IDLE;
            self.base.set_timer(Timer::Idle(id), until);
            return;
        }
        let reason = whimbrel_wire::message::CloseReason::Shutdown;
        self.send(id, &[Message::Close { reason }]);
        self.drop_peer(id);
    }

    pub(crate) fn handle_close(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return };
        if peer.flows.is_empty() && !self.keeps(id) {
            self.abandon_introductions(now, id);
            self.drop_peer(id);
        } else {
            self.drop_sessions(id);
            self.reach_again(now, id);
        }
    }

    pub(crate) fn drop_peer(&mut self, id: PeerId) {
        self.drop_sessions(id);
        let Some(peer) = self.peers.remove(&id) else { return };
        self.rebound.remove(&id);
        for responding in peer.introductions.responding.values() {
            self.flows.forget_nonce(responding.nonce);
        }
        self.by_key.remove(&peer.key);
        self.pairs.retain(|_, holder| *holder != id);
        self.contacts.forget_peer(id);
        self.leave_rendezvous(id);
        self.looks.forget(id);
        self.leave_meetings(id, peer.key);
        self.forget_stand_ins(id);
        for timer in [
            Timer::Introductions(id),
            Timer::Closed(id),
            Timer::Pairings(id),
            Timer::Update(id),
            Timer::Challenge(id),
            Timer::Probe(id),
            Timer::Keepalive(id),
            Timer::Renew(id),
            Timer::Reach(id),
            Timer::Former(id),
            Timer::Park(id),
            Timer::Waiting(id),
            Timer::Registration(id),
            Timer::Whereabouts(id),
            Timer::Found(id),
            Timer::StandIn(id),
            Timer::Wake(id),
            Timer::Idle(id),
            Timer::Vanished(id),
        ] {
            self.base.stop_timer(timer);
        }
        self.base.ask(BindingOp::Remove { peer: id }, Asked::Effect("removing a binding"));
        self.base.ask(StoreOp::ForgetPeer { key: peer.key }, Asked::Effect("forgetting a peer"));
        if peer.is_in_sets() {
            self.refresh_sets();
        }
    }

    fn renew(&mut self, now: Time, id: PeerId) {
        self.forget_unheard(now, id);
        let Some(peer) = self.peers.get(&id) else { return };
        let needed = !peer.flows.is_empty() || self.keeps(id);
        if needed && peer.attachment.is_some() && peer.away.is_none() && !self.base.is_suspended() {
            self.start_handshake_with(now, id);
        }
        self.base.set_timer(Timer::Renew(id), now + crate::session::peers::RENEW);
    }

    fn sweep(&mut self, now: Time) {
        let mut ended = Vec::new();
        let mut more = self.sweep_contacts(now) | self.sweep_introductions(now) | self.sweep_passing();
        for peer in self.peers.values_mut() {
            peer.sessions.retain(|slot| {
                let over = slot.until.is_some_and(|until| until <= now);
                if over {
                    ended.push(slot.session.local_index());
                }
                more |= slot.until.is_some() && !over;
                !over
            });
        }
        for receive_index in ended {
            self.by_index.remove(&receive_index);
            self.base.ask(TunnelOp::RemoveKeys { receive_index }, Asked::Effect("dropping tunnel keys"));
        }
        self.refresh_listening(now);
        if more {
            self.base.sweep_later(now);
        }
    }

    /// Takes the next datagram, effect or event, in the order in which they are to be seen to. Each effect is answered by
    /// [`Node::handle_done`].
    pub fn poll(&mut self) -> Option<Output> {
        self.settle(self.settled);
        self.base.poll()
    }

    /// When [`Node::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.base.next_timer(), self.flows.poll_timeout()].into_iter().flatten().min()
    }

    /// Datagrams that were dropped as malformed, forged, replayed or unknown (P-1).
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.base.dropped()
    }
}
