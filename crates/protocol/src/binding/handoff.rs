//! Hand-offs: this host notices that it moved and tells its peers; a peer tells that it moved (`docs/protocol.md` §5).

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::{BindingStatus, Message, UpdateFlags};

use crate::Time;
use crate::base::arrival::Arrival;
use crate::base::attachments::{Attachment, Routes};
use crate::base::event::Event;
use crate::base::op::{BindingOp, Carrier, NOWHERE, PeerId, StoreOp};
use crate::base::output::Asked;
use crate::base::pace::FORMER;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::absence::PARTINGS;
use crate::binding::update::{Meanwhile, PendingUpdate};
use crate::flow::stall::Stalls;
use crate::node::Node;
use crate::path::challenge::{Awaited, Candidate};
use crate::session::peer::{Away, CarrierProbe, Peer};

/// Seconds that a binding is asked for; it is not renewed by time, since its flows end it.
const LIFETIME: u32 = 0;
/// Unanswered updates after which the session is doubted and another handshake begun beside it.
const DOUBT_AFTER: u32 = 3;
/// Updates that are sent in close succession before the pauses grow to [`UPDATE_PAUSE_LONGEST`].
const UPDATES: u32 = 12;
const UPDATE_PAUSE: Duration = Duration::from_secs(2);
const UPDATE_PAUSE_LONGEST: Duration = Duration::from_secs(60);
/// Sequence numbers are below this; what comes with another is not from a peer that counts (P-17).
pub(crate) const SEQUENCES: u32 = 1 << 31;
/// Addresses that a peer only told, so that nothing says that it is there, that are tried.
const UNPROVEN_MOST: usize = 4;
/// Endpoints that are remembered as asked by one update.
const ASKED_MOST: usize = 32;
/// Updates in a row to one address, and before a family that the peer was not heard in is left.
const UPDATES_TO_ONE: u32 = 3;
const UPDATES_TO_A_FAMILY: u32 = 6;

/// A binding update, as it stood in the message.
pub(crate) struct Update {
    pub(crate) sequence: u32,
    pub(crate) flags: UpdateFlags,
    pub(crate) claimed: SocketAddr,
}

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
    /// Moves by hand: every peer is told where we are now, from `to` where that is given and reaches it.
    pub fn hand_off(&mut self, now: Time, routes: &dyn Routes, to: Option<IpAddr>) {
        let ids: Vec<PeerId> = self.peers.keys().copied().collect();
        for id in ids {
            self.look_for_move(now, id, routes, Some(to));
        }
        self.refresh_sets();
    }

    /// As [`Node::hand_off`], towards one peer alone.
    pub fn hand_off_towards(&mut self, now: Time, routes: &dyn Routes, to: Option<IpAddr>, peer: PeerId) {
        self.look_for_move(now, peer, routes, Some(to));
        self.refresh_sets();
    }

    /// Compares where we are towards a peer with where we were. `forced`: a hand-off by hand, perhaps to an address.
    pub(crate) fn look_for_move(&mut self, now: Time, id: PeerId, routes: &dyn Routes, forced: Option<Option<IpAddr>>) {
        if self.base.is_suspended() {
            return;
        }
        let Some(peer) = self.peers.get(&id) else { return };
        let by_hand = forced.map(|to| to.and_then(|to| self.base.attachments().get(&to)));
        let preferred = by_hand.unwrap_or(peer.preferred).filter(|a| self.base.attachments().is_current(&a));
        let wanted = preferred.map(|attachment| attachment.address).or(forced.flatten());
        // P-53; else by the first.
        let mut ways = self.ways_to(peer, wanted, routes);
        ways.sort_by_key(|way| {
            let deaf = Some(*way) == peer.unanswered;
            let home = |way: &Attachment| (peer.flows_at_home(way.address), peer.flows_of_family(way.address));
            (Some(way.address) != wanted, deaf, Reverse(home(way)))
        });
        let (found, otherwise) = (ways.first().copied(), ways.get(1).copied());
        // A peer that said that it goes is not asked for a session where this host has nothing to tell (P-44). A daemon that
        // died before it had told where it is has.
        let untold = peer.places.local == NOWHERE && peer.away == Some(Away::Announced);
        let same = found.is_some_and(|attachment| Some(attachment.address) == peer.source);
        let adopted = peer.restored && same && !untold;
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.preferred = preferred;
            peer.otherwise = otherwise;
            peer.restored = false;
            if adopted {
                peer.attachment = found;
                // The daemon before us may have died in the middle of telling the peer.
                peer.unannounced = true;
            }
        }
        let Some(peer) = self.peers.get(&id) else { return };
        match found {
            None if peer.attachment.is_some() => self.leave(now, id),
            None => {}
            Some(attachment) if peer.attachment == Some(attachment) && forced.is_none() => {
                self.watch_former(now, id, routes);
                self.tell_locators(now, id);
                self.uproot(now, id);
            }
            Some(attachment) => self.arrive(now, id, attachment, routes),
        }
    }

    /// Where this host may reach a peer from, one address of each family at the most.
    fn ways_to(&self, peer: &Peer, wanted: Option<IpAddr>, routes: &dyn Routes) -> Vec<Attachment> {
        // Where it is going counts more than where it was: the two may be of different families.
        let places = [peer.heading().ip(), peer.remote.ip()];
        let mut ways: Vec<Attachment> = Vec::new();
        for target in places.into_iter().chain(peer.locators.iter().copied()) {
            let alike = |address: &IpAddr| address.is_ipv4() == target.is_ipv4();
            // Each look at the routes costs, and a peer may tell many addresses.
            if ways.iter().any(|way| alike(&way.address)) || !self.base.attachments().addresses().any(alike) {
                continue;
            }
            // Who has asked a host behind this one is answered from there, wherever this one is (P-100).
            let asked = peer.source.filter(|source| alike(source) && self.base.attachments().speaks_at(*source));
            let source = wanted.filter(alike).or(asked).or_else(|| routes.source_for(target));
            ways.extend(source.and_then(|source| self.base.attachments().at(source)));
            if peer.flows.is_empty() && !ways.is_empty() {
                break;
            }
        }
        ways
    }

    /// There is no way to the peer any more: its flows are held.
    fn leave(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let from = peer.source;
        peer.note_left();
        peer.attachment = None;
        peer.update = None;
        self.base.stop_timer(Timer::Update(id));
        self.base.stop_timer(Timer::Probe(id));
        self.hold(now, id);
        let flows = self.living(id);
        if flows > 0 {
            self.base.event(Event::Moving { peer: id, from, to: None, flows, kept: false });
        }
    }

    /// All flows of the peer wait (P-21), unless the path that is being left carries them until then.
    pub(crate) fn hold(&mut self, now: Time, id: PeerId) {
        self.hold_as(now, id, Carrier::Hold);
    }

    fn hold_as(&mut self, now: Time, id: PeerId, carrier: Carrier) {
        let tunnel = carrier == Carrier::Tunnel && self.base.config().carriers.tunnel;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.places.local = NOWHERE;
        peer.listens = false;
        // Nothing goes to whom is away (P-44).
        let tunnel = tunnel && peer.has_session() && !peer.is_held_away();
        peer.carrier = if tunnel { Carrier::Tunnel } else { Carrier::Hold };
        if peer.flows.is_empty() {
            return;
        }
        if tunnel && peer.meanwhile().is_none() {
            self.set_tunnel_path(id);
        }
        self.put_binding_in_force(now, id);
    }

    /// As [`Node::hold`], but what flows send meanwhile waits before the tunnel for the acknowledgement and is sent then: TCP
    /// would send a short segment that was swallowed again only when its timer runs out.
    fn hold_back(&mut self, now: Time, id: PeerId) {
        self.hold_as(now, id, Carrier::Tunnel);
    }

    /// Tells a peer with flows our addresses, where they are not those that it was told.
    pub(crate) fn tell_locators(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return };
        let told = peer.told.iter().eq(self.base.attachments().addresses());
        if !told && !peer.flows.is_empty() && peer.has_session() {
            // They go along with a check of the path, so that they are repeated where they are lost.
            self.base.set_timer(Timer::Keepalive(id), now);
        }
    }

    /// What carries the flows while an update is under way, if that still works: the path that they have now (P-38).
    fn former_path(&self, id: PeerId, routes: &dyn Routes) -> Option<Meanwhile> {
        let peer = self.peers.get(&id)?;
        let holds = peer.places.local == NOWHERE || (peer.carrier == Carrier::Hold && peer.moved_flows() > 0);
        let meanwhile = match peer.meanwhile() {
            Some(meanwhile) => meanwhile.clone(),
            None if holds => return None,
            None => Meanwhile { binding: peer.binding(), attachment: peer.attachment? },
        };
        let attachment = meanwhile.attachment;
        let there = self.base.attachments().is_current(&attachment);
        (there && routes.still_reaches(attachment.address, meanwhile.binding.peer_locator)).then_some(meanwhile)
    }

    /// While an update is not answered: the path that is being left may go before.
    fn watch_former(&mut self, now: Time, id: PeerId, routes: &dyn Routes) {
        let waiting = self.peers.get(&id).is_some_and(|peer| peer.meanwhile().is_some());
        if waiting && self.former_path(id, routes).is_none() {
            self.announce(now, id, true, true, false);
            self.hold_back(now, id);
        }
    }

    /// An update stays unanswered, and this host has the address that flows are at home at: perhaps nothing has moved, and
    /// only the peer's daemon is away. Then what comes in under the flows' own names shows it (P-39), and is asked for.
    fn listen_natively(&mut self, now: Time, id: PeerId, tries: u32) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let held = |update: &PendingUpdate| update.held && !update.absent && update.meanwhile.is_none();
        let held = peer.update.as_ref().is_some_and(held);
        if !held || tries < 2 || peer.places.local != NOWHERE || !peer.is_home_address() {
            return;
        }
        peer.listens = true;
        peer.carrier = Carrier::Hold;
        self.put_binding_in_force(now, id);
        self.ask_natively(id);
    }

    /// A packet came in on a held flow under its own names: the flow is at home here, whoever does not answer (P-39).
    pub fn handle_heard_natively(&mut self, now: Time, flow: FlowTuple) {
        let Some(entry) = self.flows.get(&flow).and_then(|known| known.entry()).copied() else { return };
        let id = entry.peer;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let here = peer.attachment.is_some_and(|attachment| attachment.address == flow.local.ip());
        let waiting = peer.update.as_ref().is_some_and(|update| update.held) && peer.places.local == NOWHERE;
        if !peer.listens || !here || entry.home.peer != peer.places.peer {
            return;
        }
        if peer.away.is_some() && entry.home.local == peer.places.local {
            self.hear(now, id);
            return;
        }
        if !waiting {
            return;
        }
        peer.listens = false;
        peer.places.local = entry.home.local;
        let at = peer.source;
        self.put_binding_in_force(now, id);
        self.refresh_sets();
        self.base.ask(BindingOp::Kick { peer: id, lost: false }, Asked::Effect("waking senders"));
        let flows = self.living(id);
        self.base.event(Event::NotMoved { peer: id, at, flows, carried: self.carried(id) });
        self.refresh_listening(now);
    }

    /// We are somewhere else: the peer is told.
    fn arrive(&mut self, now: Time, id: PeerId, attachment: Attachment, routes: &dyn Routes) {
        let meanwhile = self.former_path(id, routes);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let from = peer.source;
        let lost = meanwhile.is_none();
        peer.note_left();
        peer.retire_path();
        peer.attachment = Some(attachment);
        peer.source = Some(attachment.address);
        peer.observed = None;
        peer.probe = CarrierProbe { leading: true, ..CarrierProbe::default() };
        peer.only_tunnel = false;
        peer.stalls = Stalls::default();
        self.base.stop_timer(Timer::Probe(id));
        let idle = peer.flows.is_empty() && peer.introductions.active.is_empty();
        if idle && !peer.has_session() {
            // Nothing to move, nobody to tell. The place gets its number when there is a session again: what is opened
            // here is not at home where we were before.
            peer.unannounced = true;
            peer.update = None;
            peer.places.local = NOWHERE;
            return;
        }
        // The update first: nothing that the kernel must do delays it.
        self.announce(now, id, lost, true, false);
        if let Some(update) = self.peers.get_mut(&id).and_then(|peer| peer.update.as_mut()) {
            update.meanwhile = meanwhile;
        }
        self.base.signal(Signal::Moving(id));
        self.hold_back(now, id);
        self.accept_former(now, id);
        let flows = self.living(id);
        if flows > 0 {
            self.base.event(Event::Moving { peer: id, from, to: Some(attachment.address), flows, kept: !lost });
        }
    }

    /// Sends an update that says where we are.
    fn announce(&mut self, now: Time, id: PeerId, lost: bool, held: bool, uprooted: bool) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.unannounced = false;
        peer.sequence_sent = (peer.sequence_sent + 1).min(SEQUENCES - 1);
        let only_tunnel = peer.only_tunnel;
        let update = PendingUpdate::new(peer.sequence_sent, now, lost, held);
        peer.update = Some(PendingUpdate { uprooted, only_tunnel, ..update });
        self.repeat_update(now, id);
    }

    /// Flows of a peer that are at home may use another address than the place names (P-33). Where one of those is gone,
    /// they are at home nowhere.
    pub(crate) fn uproot(&mut self, now: Time, id: PeerId) {
        let gone = |address: &IpAddr| self.base.attachments().is_gone(*address);
        let Some(peer) = self.peers.get(&id) else { return };
        if peer.attachment.is_none() || peer.update.is_some() || !peer.is_rooted(gone) {
            return;
        }
        self.uproot_all(now, id, false);
    }

    /// No flow of a peer is at home any more, though this host stays where it is. `lost`: what was under way is lost.
    pub(crate) fn uproot_all(&mut self, now: Time, id: PeerId, lost: bool) {
        self.announce(now, id, lost, true, true);
        self.hold_back(now, id);
        self.accept_former(now, id);
        let Some(peer) = self.peers.get(&id) else { return };
        let (source, flows) = (peer.source, self.living(id));
        self.base.event(Event::Moving { peer: id, from: source, to: source, flows, kept: false });
    }

    /// A peer has other ideas of where we are.
    pub(crate) fn announce_again(&mut self, now: Time, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.unannounced = true;
            self.announce_late(now, id);
        }
    }

    /// A hand-off by hand stays unanswered, and the path that was to be left still carries: it is taken back (P-38). Returns
    /// whether it is.
    fn take_back(&mut self, now: Time, id: PeerId) -> bool {
        let Some(peer) = self.peers.get_mut(&id) else { return false };
        let by_hand = peer.preferred.is_some() && peer.preferred == peer.attachment;
        let tried = peer.update.as_ref().is_some_and(|update| update.tries >= UPDATES);
        let Some(meanwhile) = peer.meanwhile().filter(|_| by_hand && tried).cloned() else { return false };
        let tried = peer.source;
        peer.preferred = None;
        peer.retire_path();
        peer.attachment = Some(meanwhile.attachment);
        peer.source = Some(meanwhile.attachment.address);
        peer.observed = None;
        // The peer may have accepted what it could not answer.
        self.announce(now, id, false, true, false);
        if let Some(update) = self.peers.get_mut(&id).and_then(|peer| peer.update.as_mut()) {
            update.meanwhile = Some(meanwhile);
        }
        self.hold_back(now, id);
        self.accept_former(now, id);
        self.refresh_sets();
        if let Some(from) = tried {
            let flows = self.living(id);
            self.base.event(Event::TakenBack { peer: id, from, flows });
        }
        true
    }

    /// An update stays unanswered from an address of another family than the peer was last heard in: that one is gone back to.
    /// An address may be there long before it is routed.
    fn try_other_family(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(update) = peer.update.as_ref() else { return };
        let strayed = peer.source.is_some_and(|source| source.is_ipv4() != peer.remote.is_ipv4());
        let due = strayed && update.tries >= UPDATES_TO_A_FAMILY;
        let other = peer.otherwise.filter(|other| self.base.attachments().is_current(&other));
        let (Some(other), true) = (other, due && update.held && !update.absent && update.meanwhile.is_none()) else {
            return;
        };
        peer.retire_path();
        peer.otherwise = peer.attachment.replace(other);
        peer.unanswered = peer.otherwise;
        peer.source = Some(other.address);
        peer.observed = None;
        peer.sequence_sent = (peer.sequence_sent + 1).min(SEQUENCES - 1);
        let sequence = peer.sequence_sent;
        if let Some(update) = peer.update.as_mut() {
            let (started, tries, lost, uprooted) = (update.started, update.tries, update.lost, update.uprooted);
            *update = PendingUpdate { started, tries, uprooted, ..PendingUpdate::new(sequence, now, lost, true) };
        }
        self.hold_back(now, id);
        self.accept_former(now, id);
        self.refresh_sets();
    }

    /// There is a session with a peer that may not know where we are.
    pub(crate) fn announce_late(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get(&id).filter(|_| !self.base.is_suspended()) else { return };
        if peer.unannounced && peer.attachment.is_some() && peer.update.is_none() {
            let held = peer.places.local == NOWHERE;
            self.announce(now, id, false, held, false);
        }
    }

    /// Sends the pending update, for the first time or again.
    pub(crate) fn repeat_update(&mut self, now: Time, id: PeerId) {
        if self.take_back(now, id) {
            return;
        }
        self.try_other_family(now, id);
        let (port, keeps) = (self.base.config().port, self.keeps(id));
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(source) = peer.source else { return };
        let repeat = peer.round_trip();
        // Every third try goes to another of the peer's addresses of the family that we have.
        let long = peer.update.as_ref().is_some_and(|update| update.tries >= UPDATES);
        let mut addresses = peer.whereabouts(port, long);
        addresses.retain(|to| to.is_ipv4() == source.is_ipv4());
        let mut unproven = 0;
        addresses.retain(|to| {
            unproven += usize::from(!peer.has_shown(*to));
            peer.has_shown(*to) || unproven <= UNPROVEN_MOST
        });
        let session = peer.has_session();
        let (remote, pause) =
            (peer.remote, peer.repeat_after(peer.update.as_ref().map_or(1, |update| update.tries + 1)));
        let Some(update) = peer.update.as_mut() else { return };
        if addresses.is_empty() {
            self.base.set_timer(Timer::Update(id), now + UPDATE_PAUSE_LONGEST);
            return;
        }
        update.tries += 1;
        update.sent = now;
        let tries = update.tries;
        if update.absent && tries > PARTINGS {
            // It will find out.
            peer.update = None;
            peer.unheard = true;
            return;
        }
        if tries > UPDATES && peer.flows.is_empty() && !keeps {
            // No connection depends on it: it is told when there is next a session.
            peer.update = None;
            peer.unannounced = true;
            self.abandon_introductions(now, id);
            return;
        }
        // Later, when the pauses are long, at each address in turn: the peer may have started anew there.
        let doubt_each = if long { UPDATES_TO_ONE } else { 8 };
        let doubt = tries == DOUBT_AFTER || (tries > DOUBT_AFTER && tries % doubt_each == 0);
        let to = addresses[((tries - 1) / UPDATES_TO_ONE) as usize % addresses.len()];
        let close = UPDATES.max(UPDATES_TO_ONE * addresses.len() as u32);
        let again = if !session {
            // What is sent is a question, and a large one.
            (Duration::from_millis(250) * 2u32.pow(tries.min(8))).min(UPDATE_PAUSE_LONGEST)
        } else if tries <= close {
            pause.min(repeat * 3 + Duration::from_millis(500))
        } else {
            (UPDATE_PAUSE * 2u32.pow(((tries - close) / UPDATES_TO_ONE).min(5))).min(UPDATE_PAUSE_LONGEST)
        };
        self.base.set_timer(Timer::Update(id), now + again);
        self.tell_silence(id, tries);
        let proven = self.peers.get(&id).is_some_and(|peer| peer.has_shown(to));
        self.say_update(id, to);
        if doubt || !session {
            self.start_handshake_at(now, id, if proven { to } else { remote });
        }
        if doubt {
            self.base.signal(Signal::Unanswered(id));
        }
        self.listen_natively(now, id, tries);
    }

    /// Sends the pending update to an endpoint of the peer's, or to one that may be.
    pub(crate) fn say_update(&mut self, id: PeerId, to: SocketAddr) {
        let port = self.base.config().port;
        let flags = self.own_flags(id);
        let token = self.base.random().u64();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (remote, proven) = (peer.remote, peer.has_shown(to));
        let (Some(source), Some(update)) = (peer.source, peer.update.as_mut()) else { return };
        let flags = if update.lost { flags.with(UpdateFlags::FORMER_PATH_LOST) } else { flags };
        let flags = if update.uprooted { flags.with(UpdateFlags::UPROOTED) } else { flags };
        let flags = if update.absent { flags.with(UpdateFlags::ABSENT) } else { flags };
        let message = Message::BindingUpdate {
            sequence: update.sequence,
            flags,
            claimed: SocketAddr::new(source, port),
            lifetime: LIFETIME,
        };
        let mut messages = vec![message];
        if to != remote {
            // It is not confirmed; the answer to this goes along with the acknowledgement (P-18).
            if update.asked.iter().all(|(asked, _)| *asked != to) {
                if update.asked.len() >= ASKED_MOST {
                    update.asked.remove(0);
                }
                update.asked.push((to, token));
            }
            let asked = update.asked.iter().find(|(asked, _)| *asked == to);
            messages.splice(0..0, asked.map(|(_, token)| Message::PathChallenge { token: *token }));
        }
        // Of a peer, or of a rendezvous: it may tell anybody's address.
        if proven {
            self.send_padded(id, Some(source), to, &messages);
        } else {
            self.send_to(id, Some(source), to, &messages);
        }
    }

    fn own_flags(&self, id: PeerId) -> UpdateFlags {
        let mut flags = UpdateFlags::NONE;
        if !self.base.config().tunnel_sealed {
            flags = flags.with(UpdateFlags::PLAIN_TUNNEL_ACCEPTED);
        }
        if !self.base.config().carriers.rewrite || self.peers.get(&id).is_some_and(|peer| peer.only_tunnel) {
            flags = flags.with(UpdateFlags::REWRITE_REFUSED);
        }
        flags
    }

    /// The peer moved (or says so). `answers`: what is to be said beside the acknowledgement.
    pub(crate) fn handle_update(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        update: &Update,
        answers: &mut Vec<Message>,
    ) {
        let mut flags_here = self.own_flags(id);
        let token = self.base.random().u64();
        let Update { sequence, flags, claimed } = *update;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let acknowledgement = |status, flags, newest, place| Message::BindingAcknowledgement {
            sequence,
            status,
            flags,
            newest,
            place,
            observed: arrival.source,
        };
        // P-17
        if sequence >= SEQUENCES {
            let (newest, place) = (peer.sequence_accepted, peer.places.peer);
            answers.push(acknowledgement(BindingStatus::Refused, flags_here, newest, place));
            return;
        }
        if sequence <= peer.sequence_accepted {
            let (place, endpoint, _) = peer.announced();
            // A daemon that died before it had saved that its host was to be absent begins anew at the same number.
            let absent = flags.contains(UpdateFlags::ABSENT) == (peer.away == Some(Away::Announced));
            let repeated = sequence == peer.sequence_accepted && endpoint == arrival.source && absent;
            let status = if repeated { BindingStatus::Accepted } else { BindingStatus::NotNewer };
            answers.push(acknowledgement(status, flags_here, peer.sequence_accepted, place));
            let challenge = peer.candidate.as_ref().filter(|candidate| repeated && candidate.remote == arrival.source);
            answers.extend(challenge.map(|candidate| Message::PathChallenge { token: candidate.token }));
            return;
        }
        // P-143: whoever means it says so again.
        if !self.looks.follows(now, id) {
            return;
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if flags.contains(UpdateFlags::ABSENT) {
            peer.sequence_accepted = sequence;
            let (place, ..) = peer.announced();
            answers.push(acknowledgement(BindingStatus::Accepted, flags_here, sequence, place));
            self.send_to(id, arrival.destination, arrival.source, answers);
            answers.clear();
            self.let_go(now, id);
            return;
        }
        let returned = peer.away.take().is_some();
        if returned {
            // What went unanswered says nothing of where it is now.
            (peer.check, peer.check_tries) = (None, 0);
        }
        self.hurry(now, id);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let before = peer.announced();
        // Behind a NAT even the place in force is not the same after the host was away: the NAT may have forgotten its flows.
        let away = flags.contains(UpdateFlags::FORMER_PATH_LOST) && claimed != arrival.source;
        let uprooted = away || flags.contains(UpdateFlags::UPROOTED);
        let place = peer.number_place(sequence, claimed, arrival.source, uprooted);
        peer.sequence_accepted = sequence;
        if std::mem::take(&mut peer.only_tunnel) && (place, arrival.source) == (before.0, before.1) {
            peer.only_tunnel = true;
        } else {
            flags_here = self.own_flags(id);
        }
        answers.push(acknowledgement(BindingStatus::Accepted, flags_here, sequence, place));
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let refuses = flags.contains(UpdateFlags::REWRITE_REFUSED);
        if (place, arrival.source, refuses) == before && !returned {
            // It only makes sure that we know.
            let challenge = peer.candidate.as_ref().filter(|candidate| candidate.remote == arrival.source);
            answers.extend(challenge.map(|candidate| Message::PathChallenge { token: candidate.token }));
            let saved = peer.saved();
            self.base.ask(StoreOp::SavePeer(saved), Asked::Effect("saving a peer"));
            return;
        }
        let lost = flags.contains(UpdateFlags::FORMER_PATH_LOST);
        let translated = claimed != arrival.source;
        let awaited = Awaited { place, refuses_rewrite: refuses, translated, destination: arrival.destination };
        if !lost && !returned && arrival.source != peer.remote && peer.carries() {
            // P-38
            let candidate = Candidate::new(arrival.source, token, now, arrival.length, false);
            peer.candidate = Some(Candidate { awaited: Some(awaited), ..candidate });
            let again = peer.repeat_after(1);
            answers.push(Message::PathChallenge { token });
            self.base.set_timer(Timer::Challenge(id), now + again);
            self.send_to(id, arrival.destination, arrival.source, answers);
            answers.clear();
            self.put_binding_in_force(now, id);
            return;
        }
        let asked = awaited.destination;
        let asked = asked.and_then(|address| self.base.attachments().at(address));
        peer.follow(now, &awaited, asked);
        peer.unbroken = false;
        peer.stalled = false;
        if returned {
            peer.listens = false;
        }
        if arrival.source == peer.remote {
            peer.candidate = None;
            self.base.stop_timer(Timer::Challenge(id));
        } else {
            // P-18
            peer.candidate = Some(Candidate::new(arrival.source, token, now, arrival.length, true));
            answers.push(Message::PathChallenge { token });
            let again = peer.repeat_after(1);
            self.base.set_timer(Timer::Challenge(id), now + again);
        }
        let waited = !peer.flows.is_empty();
        if self.base.is_suspended() {
            // Whoever is away has been told where the other end is for a long time: nothing else would tell the daemon after
            // this one.
            self.lead_flows(now, id);
            let (saved, told) = (self.peers[&id].saved(), std::mem::take(answers));
            let say = Asked::Say(id, arrival.destination, arrival.source, told);
            self.base.ask(StoreOp::SavePeer(saved), say);
        } else {
            // The answer before the effects: it is what the peer waits for.
            self.send_to(id, arrival.destination, arrival.source, answers);
            answers.clear();
            self.lead_flows(now, id);
        }
        if waited {
            self.wake_senders(now, id, lost);
            let (flows, carried) = (self.living(id), self.carried(id));
            self.base.event(Event::PeerMoved { peer: id, to: arrival.source, translated, flows, carried });
        }
    }

    /// The flows of a peer that moved go where it is now.
    pub(crate) fn lead_flows(&mut self, now: Time, id: PeerId) {
        self.base.stop_timer(Timer::Probe(id));
        self.choose_carrier(now, id);
        self.set_tunnel_path(id);
        self.put_binding_in_force(now, id);
        self.accept_former(now, id);
        self.refresh_sets();
        self.refresh_listening(now);
    }

    /// The peer's answer to our update.
    pub(crate) fn handle_acknowledgement(&mut self, now: Time, id: PeerId, arrival: &Arrival, ack: &Acknowledgement) {
        let token = self.base.random().u64();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(update) = peer.update.as_ref().filter(|update| update.sequence == ack.sequence) else { return };
        match ack.status {
            BindingStatus::Accepted => {}
            BindingStatus::NotNewer => {
                // We lost count, as after a restart without memory (P-17).
                let newest = peer.sequence_sent.max(ack.newest);
                if newest >= SEQUENCES - 1 {
                    return;
                }
                peer.sequence_sent = newest + 1;
                if let Some(update) = peer.update.as_mut() {
                    update.sequence = newest + 1;
                    // Once at once: who says so again and again is answered no sooner than who says nothing.
                    if !std::mem::replace(&mut update.corrected, true) {
                        self.repeat_update(now, id);
                    }
                }
                return;
            }
            _ => {
                peer.update = None;
                self.base.stop_timer(Timer::Update(id));
                self.base.event(Event::Refused { peer: id, reason: "it refuses our move" });
                return;
            }
        }
        if update.absent {
            peer.update = None;
            self.base.stop_timer(Timer::Update(id));
            return;
        }
        let (proven, asked) = (update.proven, update.asked.last().map(|(asked, _)| *asked));
        let (started, sent, tries, lost) = (update.started, update.sent, update.tries, update.lost);
        let quiet = !update.held && proven.is_none() && ack.place == peer.places.local;
        // P-160: it was found out after the update was sent.
        peer.unannounced = peer.only_tunnel && !update.only_tunnel;
        peer.update = None;
        self.base.stop_timer(Timer::Update(id));
        if tries == 1 {
            peer.sample_round_trip(now.since(sent));
        }
        peer.observed = Some(ack.observed);
        self.check_later(now, id);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.left = None;
        }
        self.base.signal(Signal::Answered(id));
        if quiet {
            // Either end may have started anew, and know of no probe.
            let Some(peer) = self.peers.get_mut(&id) else { return };
            // A peer that is on its way moved last: it probes, and is answered.
            let comes = peer.candidate.as_ref().is_some_and(|candidate| candidate.announced);
            if peer.moved_flows() > 0 && !comes {
                peer.probe = CarrierProbe { leading: peer.has_gone(), ..CarrierProbe::default() };
                self.probe_carrier(now, id);
            }
            let saved = self.peers[&id].saved();
            self.base.ask(StoreOp::SavePeer(saved), Asked::Effect("saving a peer"));
            self.introduce_on(now, id);
            self.tell_waiting_soon(now, id);
            // An address that went meanwhile was not looked at.
            self.uproot(now, id);
            self.announce_late(now, id);
            return;
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.places.local = ack.place;
        peer.note_own_place();
        peer.listens = false;
        peer.probe.leading = true;
        peer.peer_refuses_rewrite = ack.flags.contains(UpdateFlags::REWRITE_REFUSED);
        let source = peer.source;
        let usable = source.is_some_and(|source| source.is_ipv4() == peer.remote.is_ipv4());
        let mut challenge = None;
        if let Some(remote) = proven {
            // One of its addresses that we can reach from here. It may still send by the one that it told.
            if remote != peer.remote {
                peer.retire_path();
                peer.note_other_address(remote, self.base.config().port);
            }
            peer.remote = remote;
            peer.unproven = false;
            peer.candidate = None;
            self.base.stop_timer(Timer::Challenge(id));
        } else if let Some(asked) = asked.filter(|_| !usable) {
            // The address that the answer came from proves nothing, nor has the one that was asked (P-18).
            peer.candidate = Some(Candidate::new(asked, token, now, arrival.length, true));
            let again = peer.repeat_after(1);
            self.base.set_timer(Timer::Challenge(id), now + again);
            challenge = Some(asked);
        }
        self.note_sighting(now, id, proven);
        let Some(peer) = self.peers.get(&id) else { return };
        let translated = source.is_some_and(|source| source != ack.observed.ip());
        let (waited, moved) = (!peer.flows.is_empty(), peer.moved_flows());
        self.choose_carrier(now, id);
        self.set_tunnel_path(id);
        self.put_binding_in_force(now, id);
        self.refresh_sets();
        self.refresh_listening(now);
        if waited {
            self.base.ask(BindingOp::Kick { peer: id, lost }, Asked::Effect("waking senders"));
            if let Some(to) = source {
                let (flows, carried) = (self.living(id), self.carried(id));
                self.base.event(Event::Moved { peer: id, to, translated, took: now.since(started), flows, carried });
            }
        }
        if let Some(asked) = challenge {
            self.send_to(id, source, asked, &[Message::PathChallenge { token }]);
        }
        self.tell_locators(now, id);
        if moved > 0 && self.rewrite_possible(id) {
            self.probe_carrier(now, id);
        }
        self.introduce_on(now, id);
        self.tell_waiting_soon(now, id);
        self.uproot(now, id);
        self.announce_late(now, id);
    }

    /// Introductions that waited for an update go on.
    fn introduce_on(&mut self, now: Time, id: PeerId) {
        if self.peers.get(&id).is_some_and(|peer| !peer.introductions.active.is_empty()) {
            self.base.set_timer(Timer::Introductions(id), now);
        }
    }

    pub(crate) fn accept_former(&mut self, now: Time, id: PeerId) {
        self.base.set_timer(Timer::Former(id), now + FORMER);
    }
}
