//! The state of one host: its peers, its flows, and the order in which things are asked of the caller.

mod outcome;
mod restore;
pub(crate) mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use whimbrel_handshake::{Opened, PublicKey, StaticKey};
use whimbrel_wire::message::{MESSAGE_HEADER_LEN, Message, decode_all};
use whimbrel_wire::{Capabilities, ChainSpec, Datagram, FlowTuple, Transport};

use crate::Time;
use crate::base::arrival::{Arrival, costs_too_much};
use crate::base::config::Config;
use crate::base::event::Event;
use crate::base::op::{BindingOp, FlowEntry, FlowOp, LocalEnd, PeerId, StoreOp, TunnelOp};
use crate::base::output::{Asked, Output, Outputs, State, Transmit};
use crate::base::random::Random;
use crate::base::timer::{Timer, Timers};
use crate::binding::chain::{ChainAction, ChainSession, ChainTooLong, ChainView, Chains};
use crate::flow::Stage;
use crate::flow::looks::Looks;
use crate::flow::table::Flows;
use crate::path::shared::Sightings;
use crate::role::community::Community;
use crate::role::gateway::Unshown;
use crate::role::gateway::opened::OpenedBehind;
use crate::role::relocation::Moves;
use crate::role::rendezvous::client::{REFRESH, Rendezvous};
use crate::role::rendezvous::proxy::StandIns;
use crate::role::rendezvous::server::Meetings;
use crate::session::contact::Contacts;
use crate::session::peer::{Attachment, Away, Peer};

/// Which source address the host would use towards a destination.
pub trait Routes {
    /// The address, or `None` where the destination cannot be reached.
    fn source_for(&self, destination: IpAddr) -> Option<IpAddr>;

    /// Whether packets from `source`, an address of the host's, could still reach a destination by the interface that has
    /// it, though the way that is preferred now may be another.
    fn still_reaches(&self, source: IpAddr, destination: IpAddr) -> bool;
}

/// How long a peer without flows is kept.
pub(crate) const IDLE: Duration = Duration::from_secs(600);
/// Keeps the UDP mapping of a NAT; 30 s is what RFC 4787 §4.3 finds in the field at the least.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(25);
/// How long the former path of a peer is accepted (P-22).
pub(crate) const FORMER: Duration = Duration::from_secs(60);
/// Age of a session at which it is renewed.
const RENEW: Duration = Duration::from_secs(3600);
/// Unanswered checks of a path after which another handshake is begun.
const CHECKS: u32 = 3;
/// Datagrams that carry less than this many bytes of messages are not split.
const DATAGRAM_LIMIT: usize = 1200;

/// One host's side of the protocol. It takes what happens by `handle_*`, and is drained by [`Node::poll`] after each of
/// them; [`Node::poll_timeout`] tells when [`Node::handle_timeout`] is due.
pub struct Node {
    pub(crate) config: Config,
    pub(crate) key: StaticKey,
    pub(crate) random: Random,
    /// In order, so that what is told of them does not depend on chance.
    pub(crate) attachments: BTreeMap<IpAddr, Attachment>,
    /// This host has gone away (P-44).
    pub(crate) suspended: bool,
    /// Addresses that are on another network than before, while a change of the network is looked at.
    pub(crate) replaced: BTreeSet<IpAddr>,
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
    chains: Chains,
    /// Hosts that a peer has referred to (P-87).
    pub(crate) vouched: HashMap<PublicKey, crate::role::anchor::referral::Vouched>,
    /// Flows that have become direct a moment ago.
    pub(crate) left: BTreeMap<FlowTuple, crate::role::anchor::referral::Left>,
    /// Flows of hosts behind this one that nobody has shown to sit on yet.
    pub(crate) unshown: Unshown,
    /// Connections that hosts behind this one have opened.
    pub(crate) opened: OpenedBehind,
    /// Datagram flows of theirs that somebody has sent in from where their peers were, a moment after these had moved, and when that
    /// is looked for again.
    pub(crate) claimed: BTreeMap<FlowTuple, Time>,
    pub(crate) timers: Timers,
    pub(crate) next_peer: u32,
    pub(crate) output: Outputs,
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
    dropped: u64,
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
        let chains = Chains::new(config.carriers.tunnel, random.u32() as u8);
        Self {
            config,
            key,
            random,
            attachments: BTreeMap::new(),
            suspended: false,
            replaced: BTreeSet::new(),
            rebound: BTreeSet::new(),
            contacts,
            looks: Looks::default(),
            rendezvous: Rendezvous::default(),
            meetings: Meetings::default(),
            stand_ins: StandIns::default(),
            community: Community::default(),
            moves,
            peers: BTreeMap::new(),
            by_key: HashMap::new(),
            by_index: HashMap::new(),
            flows,
            chains,
            vouched: HashMap::new(),
            left: BTreeMap::new(),
            unshown: Unshown::default(),
            opened: OpenedBehind::default(),
            claimed: BTreeMap::new(),
            timers: Timers::default(),
            next_peer: 1,
            output: Outputs::default(),
            failed: BTreeSet::new(),
            mended: 0,
            pairs: HashMap::new(),
            sightings: Sightings::default(),
            listening: Vec::new(),
            keeping: Vec::new(),
            leaving: Vec::new(),
            reaching: Vec::new(),
            dropped: 0,
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
                    self.dropped += 1;
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
                    self.dropped += 1;
                    return;
                };
                let Ok(messages) = decode_all(&plaintext) else {
                    self.dropped += 1;
                    return;
                };
                if costs_too_much(&messages) {
                    self.dropped += 1;
                    return;
                }
                self.confirm_session(now, id, index);
                let arrival = Arrival { source, destination, index, length: payload.len(), is_newest, passed_on };
                self.handle_messages(now, id, &arrival, messages);
            }
            Ok(Datagram::TunnelSealed(_) | Datagram::TunnelPlain(_)) | Err(_) => self.dropped += 1,
            Ok(datagram) => self.handle_handshake(now, source, destination, &datagram),
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
            match message {
                Message::PathChallenge { token } => {
                    answers.push(Message::PathResponse { token, observed: arrival.source });
                    // Once for them all: no answer is to be much larger than what it answers.
                    let life = Message::Life { life: self.config.life };
                    answers.extend((self.config.life != 0 && !answers.contains(&life)).then_some(life));
                    let memory = Message::Memory { memory: self.config.memory };
                    answers.extend((self.config.memory != 0 && !answers.contains(&memory)).then_some(memory));
                }
                Message::PathResponse { token, observed } => {
                    self.handle_path_response(now, id, arrival, token, observed);
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
                Message::IntroductionEcho(echo) => answers.extend(self.handle_echo(now, id, arrival.index, &echo)),
                Message::IntroductionDone { nonce, outcome } => self.handle_introduced(now, id, nonce, outcome),
                Message::Pairing(pairing) => answers.extend(self.handle_pairing(now, id, arrival.index, &pairing)),
                Message::Paired { nonce, proof, introduced } => {
                    self.handle_paired(now, id, arrival.index, nonce, proof, introduced);
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
                    self.handle_passed_on(now, id, arrival, left, source, &datagram);
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
                Message::Chain(request) => {
                    let current = self.sends_in(id, arrival.index);
                    self.chains.handle_chain(now, id, current, request);
                    self.carry_out_chains();
                }
                Message::ChainSeen(answer) => {
                    let current = self.sends_in(id, arrival.index);
                    self.chains.handle_chain_seen(now, id, current, &answer);
                    self.carry_out_chains();
                }
                Message::Close { .. } => self.handle_close(now, id),
                Message::Padding { .. } => {}
            }
        }
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

    /// A socket came into being, or was found: only flows that were told so are introduced (P-35). `accepted`: its local port
    /// listens, so the other end opened it.
    pub fn handle_flow_opened(&mut self, now: Time, flow: FlowTuple, accepted: bool) {
        if let Some(old) = self.flows.get(&flow) {
            if !old.closed {
                return;
            }
            // The kernel took the tuple again before we had forgotten it.
            self.forget_flow(&flow);
        }
        self.flows.open(now, flow, accepted);
    }

    /// A socket is gone, or in TIME_WAIT.
    pub fn handle_flow_closed(&mut self, now: Time, flow: FlowTuple) {
        let Some(known) = self.flows.get(&flow).filter(|known| !known.closed) else { return };
        if flow.transport == Transport::Udp {
            self.end_datagram_flow(now, &flow);
            return;
        }
        let Some(entry) = known.entry().copied() else { return self.forget_flow(&flow) };
        self.flows.close(now, flow);
        if let Some(name) = self.name_of(&entry).filter(|_| entry.end == LocalEnd::Endpoint) {
            self.with_moves(now, |moves, at| moves.say_ending(at, name));
        }
    }

    /// Forgets a flow altogether.
    pub(crate) fn forget_flow(&mut self, flow: &FlowTuple) {
        let Some(known) = self.flows.take(flow) else { return };
        self.contacts.forget_waiting(flow);
        self.abandon_introduction(flow, &known);
        if let Stage::Introduced { entry, .. } = &known.stage {
            if known.closed {
                self.end_moved_flow(entry);
            }
            if let Some(peer) = self.peers.get_mut(&entry.peer) {
                peer.remove_flow(flow, entry);
            }

            self.output.ask(FlowOp::Remove { flow: *flow }, Asked::Effect("removing a flow"));
            self.output.event(Event::FlowGone { flow: *flow, peer: entry.peer });
        }
    }

    /// The network changed, or may have: `attachments` are all usable addresses of this host.
    pub fn handle_network(&mut self, now: Time, attachments: &[Attachment], routes: &dyn Routes) {
        let before = std::mem::take(&mut self.attachments);
        self.attachments = attachments.iter().map(|attachment| (attachment.address, *attachment)).collect();
        let stays = |old: &Attachment| self.attachments.get(&old.address).is_none_or(|new| new == old);
        self.replaced = before.values().filter(|old| !stays(old)).map(|old| old.address).collect();
        let ids: Vec<PeerId> = self.peers.keys().copied().collect();
        for id in ids {
            self.look_for_move(now, id, routes, None);
        }
        self.replaced.clear();
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
    }

    /// Whatever is due at `now` happens.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(due) = self.poll_timeout().filter(|due| *due <= now) {
            if self.flows.poll_timeout() == Some(due) {
                self.mature_flows(now);
                self.forget_closed(now);
            } else if self.chains.poll_timeout() == Some(due) {
                self.chains.handle_timeout(now);
                self.carry_out_chains();
            } else if let Some(timer) = self.timers.take_due(now) {
                self.handle_timer(now, timer);
            }
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
            Timer::Reach(id) => self.continue_reaching(now, id),
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
            self.timers.set(Timer::Idle(id), until);
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

    pub(crate) fn drop_sessions(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        for slot in std::mem::take(&mut peer.sessions) {
            let receive_index = slot.session.local_index();
            self.by_index.remove(&receive_index);
            self.output.ask(TunnelOp::RemoveKeys { receive_index }, Asked::Effect("dropping tunnel keys"));
        }
        self.chains.on_no_session(id);
        self.carry_out_chains();
    }

    pub(crate) fn drop_peer(&mut self, id: PeerId) {
        self.drop_sessions(id);
        self.chains.forget(id);
        self.carry_out_chains();
        let Some(peer) = self.peers.remove(&id) else { return };
        self.rebound.remove(&id);
        for responding in peer.introductions.responding.values() {
            self.flows.forget_nonce(responding.nonce);
        }
        self.by_key.remove(&peer.key);
        self.pairs.retain(|_, holder| *holder != id);
        self.contacts.forget_peer(id);
        self.rendezvous.forget(id);
        self.looks.forget(id);
        self.leave_meetings(id);
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
            self.timers.stop(timer);
        }
        self.output.ask(BindingOp::Remove { peer: id }, Asked::Effect("removing a binding"));
        self.output.ask(StoreOp::ForgetPeer { key: peer.key }, Asked::Effect("forgetting a peer"));
        if peer.is_in_sets() {
            self.refresh_sets();
        }
    }

    /// Leads what goes to and comes from a peer in the tunnel through these transforms, once it has agreed; `None`: through
    /// none (P-170). Either end may ask, and the last one counts.
    ///
    /// # Errors
    /// [`ChainTooLong`].
    pub fn set_chain(&mut self, now: Time, id: PeerId, wanted: Option<ChainSpec>) -> Result<(), ChainTooLong> {
        if self.peers.contains_key(&id) {
            self.chains.ask(now, id, wanted)?;
            self.carry_out_chains();
        }
        Ok(())
    }

    /// How far the chain of a peer's packets is.
    #[must_use]
    pub fn chain(&self, id: PeerId) -> Option<ChainView> {
        self.chains.view(id)
    }

    /// A session has taken the place of others.
    pub(crate) fn agree_on_chains_anew(&mut self, now: Time, id: PeerId) {
        let own = self.key.public();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (lower, round_trip) = (own.as_bytes() < peer.key.as_bytes(), peer.round_trip());
        let Some(slot) = peer.session() else { return };
        let speaks = slot.capabilities.contains(Capabilities::TRANSFORMS) && self.config.carriers.tunnel;
        self.chains.on_session(now, id, ChainSession::new(speaks, lower, round_trip));
        self.carry_out_chains();
    }

    /// Whether the session of this index of ours is the one that is sent with.
    fn sends_in(&mut self, id: PeerId, index: u32) -> bool {
        let slot = self.peers.get_mut(&id).and_then(Peer::session);
        slot.is_some_and(|slot| slot.session.local_index() == index)
    }

    fn carry_out_chains(&mut self) {
        while let Some(action) = self.chains.poll() {
            match action {
                // Nothing but answers goes to who has left (P-44); it is asked again.
                ChainAction::Send(id, Message::Chain(_)) if self.is_away(id) => {}
                ChainAction::Send(id, message) => self.send(id, &[message]),
                ChainAction::Await(id, chain, op) => {
                    self.output.ask(TunnelOp::Chain(op), Asked::Chain(id, chain));
                }
                ChainAction::Do(op) => {
                    self.output.ask(TunnelOp::Chain(op), Asked::Effect("leading packets through transforms"));
                }
            }
        }
    }

    fn is_away(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.away == Some(Away::Announced) || peer.attachment.is_none())
    }

    /// Checks the path: that keeps a NAT's mapping, and shows whether the peer still knows us.
    fn keep_alive(&mut self, now: Time, id: PeerId) {
        let token = self.random.u64();
        let keeps = self.keeps(id);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let unneeded = peer.flows.is_empty() && !keeps;
        if unneeded || peer.attachment.is_none() || peer.away == Some(Away::Announced) || self.suspended {
            return;
        }
        if peer.update.is_some() {
            // It finds out the same.
            self.timers.set(Timer::Keepalive(id), now + KEEPALIVE);
            return;
        }
        if peer.check.is_some() {
            peer.check_tries += 1;
        }
        let locators: Vec<IpAddr> = self.attachments.keys().copied().collect();
        peer.telling.clone_from(&locators);
        peer.check = Some((token, now));
        peer.checked = Some(peer.heading().ip());
        let tries = peer.check_tries;
        // Where a flow has stalled, programs may give up soon; a rendezvous is checked while one is needed.
        let (least, doublings, longest) = match (peer.flows.is_empty(), peer.stalled) {
            (true, _) => (300, 10, REFRESH),
            (false, true) => (300, 5, KEEPALIVE),
            (false, false) => (1000, 5, KEEPALIVE),
        };
        let pause = peer.repeat_after(1).max(Duration::from_millis(least)) * 2u32.pow(tries.min(doublings));
        let pause = self.miss(now, id, tries).unwrap_or(pause.min(longest));
        self.timers.set(Timer::Keepalive(id), now + pause);
        self.send(id, &[Message::PathChallenge { token }, Message::Locators(locators)]);
        if let (Some(beyond), Some(peer)) = (tries.checked_sub(CHECKS), self.peers.get(&id)) {
            // It may have started anew and not know where we are, or be elsewhere.
            let whereabouts = peer.whereabouts(self.config.port, true);
            self.start_handshake_at(now, id, whereabouts[beyond as usize % whereabouts.len()]);
        }
    }

    /// Sets the next check of a path that has just shown that it works.
    pub(crate) fn check_later(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return };
        let keeps = self.keeps(id);
        let needed = keeps || !peer.flows.is_empty();
        if needed && (peer.translated() || peer.moved_flows() > 0) {
            self.timers.set(Timer::Keepalive(id), now + KEEPALIVE);
        } else if keeps {
            self.timers.set(Timer::Keepalive(id), now + REFRESH);
        } else {
            self.timers.stop(Timer::Keepalive(id));
        }
    }

    fn renew(&mut self, now: Time, id: PeerId) {
        self.forget_unheard(now, id);
        let Some(peer) = self.peers.get(&id) else { return };
        let needed = !peer.flows.is_empty() || self.keeps(id);
        if needed && peer.attachment.is_some() && peer.away.is_none() && !self.suspended {
            self.start_handshake_with(now, id);
        }
        self.timers.set(Timer::Renew(id), now + RENEW);
    }

    pub(crate) fn renew_later(&mut self, now: Time, id: PeerId) {
        self.timers.set(Timer::Renew(id), now + RENEW);
        self.timers.set_earlier(Timer::Idle(id), now + IDLE);
    }

    pub(crate) fn accept_former(&mut self, now: Time, id: PeerId) {
        self.timers.set(Timer::Former(id), now + FORMER);
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
            self.output.ask(TunnelOp::RemoveKeys { receive_index }, Asked::Effect("dropping tunnel keys"));
        }
        self.refresh_listening(now);
        if more {
            self.sweep_later(now);
        }
    }

    /// Sets the sweep, which is there to end what nobody answered.
    pub(crate) fn sweep_later(&mut self, now: Time) {
        self.timers.set_earlier(Timer::Sweep, now + Duration::from_secs(5));
    }

    pub(crate) fn new_peer(&mut self, now: Time, key: PublicKey, remote: SocketAddr) -> PeerId {
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        self.peers.insert(id, Peer::new(id, key, remote, now));
        self.by_key.insert(key, id);
        id
    }

    /// Lets a peer without flows be forgotten in time.
    pub(crate) fn idle_later(&mut self, now: Time, id: PeerId) {
        if let Some(peer) = self.peers.get(&id).filter(|peer| peer.flows.is_empty()) {
            let due = if peer.replaced { now } else { now + IDLE };
            self.timers.set_earlier(Timer::Idle(id), due);
        }
    }

    /// Sends messages to a peer's confirmed endpoint. Without a session nothing is sent.
    pub(crate) fn send(&mut self, id: PeerId, messages: &[Message]) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (source, remote) = (peer.source, peer.remote);
        self.send_to(id, source, remote, messages);
    }

    pub(crate) fn send_to(&mut self, id: PeerId, source: Option<IpAddr>, to: SocketAddr, messages: &[Message]) {
        let mut rest = messages;
        while !rest.is_empty() {
            let mut plaintext = Vec::new();
            let mut count = 0;
            for message in rest {
                if count > 0 && plaintext.len() + message.encoded_len() > DATAGRAM_LIMIT {
                    break;
                }
                message.encode(&mut plaintext);
                count += 1;
            }
            rest = &rest[count..];
            self.send_plaintext(id, source, to, &plaintext);
        }
    }

    /// As [`Node::send_to`], filled up to 1200 bytes of messages, so that the answer has room (P-18).
    pub(crate) fn send_padded(&mut self, id: PeerId, source: Option<IpAddr>, to: SocketAddr, messages: &[Message]) {
        let mut plaintext = Vec::new();
        for message in messages {
            message.encode(&mut plaintext);
        }
        let room = DATAGRAM_LIMIT.saturating_sub(plaintext.len() + MESSAGE_HEADER_LEN);
        Message::Padding { length: room as u16 }.encode(&mut plaintext);
        self.send_plaintext(id, source, to, &plaintext);
    }

    /// Sends in the session of this index of ours, whichever others there are.
    pub(crate) fn send_in(&mut self, id: PeerId, index: u32, source: Option<IpAddr>, to: SocketAddr, plaintext: &[u8]) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(slot) = peer.sessions.iter_mut().find(|slot| slot.session.local_index() == index) else { return };
        let Ok(payload) = slot.session.seal(plaintext) else { return };
        self.output.transmit(Transmit { source, destination: to, payload });
    }

    fn send_plaintext(&mut self, id: PeerId, source: Option<IpAddr>, to: SocketAddr, plaintext: &[u8]) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some(candidate) = peer.candidate.as_mut().filter(|candidate| candidate.remote == to) {
            // P-18
            let length = (plaintext.len() + whimbrel_handshake::CONTROL_OVERHEAD) as u64;
            let Some(left) = candidate.control.checked_sub(length) else { return };
            candidate.control = left;
        }
        let Some(slot) = peer.session() else { return };
        let Ok(payload) = slot.session.seal(plaintext) else { return };
        self.output.transmit(Transmit { source, destination: to, payload });
    }

    /// Takes the next datagram, effect or event, in the order in which they are to be seen to. Each effect is answered by
    /// [`Node::handle_done`].
    pub fn poll(&mut self) -> Option<Output> {
        self.output.poll()
    }

    /// When [`Node::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.timers.next(), self.flows.poll_timeout(), self.chains.poll_timeout()].into_iter().flatten().min()
    }

    /// Datagrams that were dropped as malformed, forged, replayed or unknown (P-1).
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn drop_datagram(&mut self) {
        self.dropped += 1;
    }
}
