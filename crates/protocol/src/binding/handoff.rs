//! Hand-offs: this host notices that it moved and tells its peers; a peer tells that it moved (`docs/protocol.md` §5).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::message::{BindingStatus, Message, UpdateFlags};
use whimbrel_wire::{BindingNumber, FlowTuple};

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::attachments::{Attachment, Routes};
use crate::base::event::Event;
use crate::base::op::{BindingOp, Carrier, NOWHERE, PeerId, SavedPeer, StoreOp};
use crate::base::output::Asked;
use crate::base::pace::FORMER;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::absence::PARTINGS;
use crate::binding::choice::Chosen;
use crate::binding::peers::CarrierProbe;
use crate::binding::update::{Meanwhile, PendingUpdate, UPDATES_TO_ONE};
use crate::flow::peers::Away;
use crate::path::challenge::{Claim, Path};
use crate::path::fallback::stands_in;
use crate::path::paths::{Choice, Paths};

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
/// The answer to a binding update, as it stood in the message.
pub(crate) struct Acknowledgement {
    pub(super) binding: BindingNumber,
    pub(super) sequence: u32,
    pub(super) status: BindingStatus,
    pub(super) flags: UpdateFlags,
    pub(super) newest: u32,
    pub(super) place: u32,
    pub(super) observed: SocketAddr,
}

impl BindingLayer {
    /// A peer as it is to be saved.
    pub(super) fn saved(&self, id: PeerId) -> Option<SavedPeer> {
        bound!(self, &id).map(|peer| peer.saved())
    }

    /// See [`Node::hand_off`](crate::Node::hand_off).
    pub(crate) fn hand_off(&mut self, now: Time, routes: &dyn Routes, to: Option<IpAddr>, base: &mut Base) {
        let ids: Vec<PeerId> = self.flow.session().ids();
        for id in ids {
            self.check_for_move(now, id, routes, Some(to), base);
        }
        self.refresh_sets(base);
    }

    /// See [`Node::hand_off_towards`](crate::Node::hand_off_towards).
    pub(crate) fn hand_off_towards(
        &mut self,
        now: Time,
        routes: &dyn Routes,
        to: Option<IpAddr>,
        peer: PeerId,
        base: &mut Base,
    ) {
        self.check_for_move(now, peer, routes, Some(to), base);
        self.refresh_sets(base);
    }

    /// Compares where we are towards a peer with where we were. `forced`: a hand-off by hand, perhaps to an address.
    pub(crate) fn check_for_move(
        &mut self,
        now: Time,
        id: PeerId,
        routes: &dyn Routes,
        forced: Option<Option<IpAddr>>,
        base: &mut Base,
    ) {
        if base.is_suspended() {
            return;
        }
        let Some(peer) = bound!(self, &id) else { return };
        let Chosen { choice, found } = self.choose(id, peer.path, forced, routes, base);
        // A peer that said that it goes is not asked for a session where this host has nothing to tell (P-44). A daemon
        // that died before it had told where it is has.
        let untold = peer.flow.places().local == NOWHERE && peer.flow.away() == Some(Away::Announced);
        let same = found.is_some_and(|attachment| Some(attachment.address) == peer.path.source());
        if let Some(peer) = bound_mut!(self, &id) {
            peer.path.choose(choice);
            if peer.path.take_restored() && same && !untold {
                peer.path.stay_at(found);
                // The daemon before us may have died in the middle of telling the peer.
                peer.binding.unannounced = true;
                // P-226
                peer.binding.tunnel_lost = true;
            }
        }
        self.find_stranded(id, routes, base);
        self.move_if_elsewhere(now, id, found, routes, forced.is_some(), base);
        self.keep_ready(now, id, base);
    }

    /// From which addresses of the other family than the path's no route leads any more to where flows go.
    fn find_stranded(&mut self, id: PeerId, routes: &dyn Routes, base: &Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let by = peer.path.source();
        let other = |own: &IpAddr| by.is_some_and(|by| by.is_ipv4() != own.is_ipv4()) && base.attachments().has(own);
        let leads_to = |own: &IpAddr| {
            let mut to = peer.flow.remote_addresses().filter(|to| to.is_ipv4() == own.is_ipv4());
            to.all(|to| routes.still_reaches(*own, to))
        };
        let stranded = peer.flow.local_addresses().filter(other).filter(|own| !leads_to(own)).collect();
        peer.binding.stranded = stranded;
    }

    /// Compares where we are to reach a peer from with where we were.
    fn move_if_elsewhere(
        &mut self,
        now: Time,
        id: PeerId,
        found: Option<Attachment>,
        routes: &dyn Routes,
        forced: bool,
        base: &mut Base,
    ) {
        let at = self.flow.path().paths(&id).and_then(Paths::attachment);
        match found {
            None if at.is_some() => self.leave(now, id, base),
            None => {}
            Some(attachment) if at == Some(attachment) && !forced => {
                self.watch_former(now, id, routes, base);
                if base.attachments().has_left() {
                    self.flow.end_connecting_from_left(now, id, base);
                }
                self.send_locators(now, id, base);
                self.uproot(now, id, base);
                self.probe_anew(now, id, base);
                // A link may be back that the address has outlived.
                self.ask_in_doubt(now, id, base);
            }
            Some(attachment) => {
                let meanwhile = self.former_path(id, routes, base);
                self.arrive(now, id, attachment, meanwhile, base);
            }
        }
    }

    /// A peer has shown that it is reached from an address of this host's: this one goes on from there where no way led
    /// to the peer, and where the peer has not answered from the one that did and flows wait meanwhile (P-215).
    pub(crate) fn arrive_where_met(&mut self, now: Time, id: PeerId, met_from: Option<IpAddr>, base: &mut Base) {
        let Some(peer) = bound!(self, &id) else { return };
        let held = |update: &PendingUpdate| update.held && !update.absent && update.meanwhile.is_none();
        let waits = peer.binding.update.as_ref().is_some_and(held) && !peer.flow.flows().is_empty();
        let elsewhere = peer.path.attachment().is_none() || (waits && peer.path.source() != met_from);
        let here = met_from.and_then(|address| base.attachments().at(address));
        let before = peer.path.attachment();
        if let Some(attachment) = here.filter(|_| elsewhere && !base.is_suspended()) {
            if let (Some(before), Some(peer)) = (before, bound_mut!(self, &id))
                && before.address.is_ipv4() != attachment.address.is_ipv4()
            {
                // P-53
                peer.path.choose(Choice { otherwise: Some(before), unanswered: Some(before), ..peer.path.choice() });
            }
            self.arrive(now, id, attachment, None, base);
            self.refresh_sets(base);
        }
    }

    /// There is no way to the peer any more: its flows are held.
    fn leave(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        let from = peer.path.source();
        peer.on_left();
        peer.path.leave_stand_in();
        peer.path.detach();
        peer.binding.update = None;
        base.stop_timer(Timer::Update(id));
        base.stop_timer(Timer::Probe(id));
        self.hold(now, id, base);
        let flows = self.living(id);
        if flows > 0 {
            base.event(Event::Moving { peer: id, from, to: None, flows, kept: false });
        }
    }

    /// All flows of the peer wait (P-21), unless the path that is being left carries them until then.
    pub(crate) fn hold(&mut self, now: Time, id: PeerId, base: &mut Base) {
        self.hold_as(now, id, Carrier::Hold, base);
    }

    fn hold_as(&mut self, now: Time, id: PeerId, carrier: Carrier, base: &mut Base) {
        let tunnel = carrier == Carrier::Tunnel && base.config().carriers.tunnel;
        let Some(peer) = bound_mut!(self, &id) else { return };
        peer.flow.set_local_place(NOWHERE);
        peer.binding.listens = false;
        // Nothing goes to whom is away (P-44).
        let tunnel = tunnel && peer.has_session() && !peer.flow.is_held_away();
        peer.binding.carrier = if tunnel { Carrier::Tunnel } else { Carrier::Hold };
        if peer.flow.flows().is_empty() {
            return;
        }
        if tunnel && peer.meanwhile().is_none() {
            self.set_tunnel_path(id, base);
        }
        self.apply_binding(now, id, base);
    }

    /// As [`BindingLayer::hold`], but what flows send meanwhile waits before the tunnel for the acknowledgement and is
    /// sent then: TCP would send a short segment that was swallowed again only when its timer runs out.
    pub(super) fn hold_back(&mut self, now: Time, id: PeerId, base: &mut Base) {
        self.hold_as(now, id, Carrier::Tunnel, base);
    }

    /// Tells a peer with flows our addresses, where they are not those that it was told.
    pub(crate) fn send_locators(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = self.flow.peer(&id) else { return };
        let told = peer.path.was_told(base.attachments().addresses());
        if !told && !peer.flow.flows().is_empty() && peer.has_session() {
            // They go along with a check of the path, so that they are repeated where they are lost.
            base.set_timer(Timer::Keepalive(id), now);
        }
    }

    /// What carries the flows while an update is under way, if that still works: the path that they have now (P-38).
    fn former_path(&self, id: PeerId, routes: &dyn Routes, base: &Base) -> Option<Meanwhile> {
        let meanwhile = self.present_path(id)?;
        let attachment = meanwhile.attachment;
        // One that a role has found silent carries nothing.
        let wants = self.flow.path().paths(&id).and_then(|paths| paths.choice().wants);
        let there = base.attachments().is_current(&attachment) && wants.is_none_or(|wants| wants.exclude != attachment);
        (there && routes.still_reaches(attachment.address, meanwhile.binding.peer_locator)).then_some(meanwhile)
    }

    /// The path that carries the flows now, if any does.
    pub(super) fn present_path(&self, id: PeerId) -> Option<Meanwhile> {
        let peer = bound!(self, &id)?;
        let holds =
            peer.flow.places().local == NOWHERE || (peer.binding.carrier == Carrier::Hold && peer.moved_flows() > 0);
        match peer.meanwhile() {
            Some(meanwhile) => Some(meanwhile.clone()),
            None if holds => None,
            None => Some(Meanwhile { binding: peer.binding(), attachment: peer.path.attachment()? }),
        }
    }

    /// While an update is not answered: the path that is being left may go before.
    fn watch_former(&mut self, now: Time, id: PeerId, routes: &dyn Routes, base: &mut Base) {
        let waiting = bound!(self, &id).is_some_and(|peer| peer.meanwhile().is_some());
        if waiting && self.former_path(id, routes, base).is_none() {
            let lost = PendingUpdate { lost: true, held: true, ..PendingUpdate::default() };
            self.announce(now, id, lost, base);
            self.hold_back(now, id, base);
        }
    }

    /// An update stays unanswered, and this host has the address that flows are at home at: perhaps nothing has moved,
    /// and only the peer's daemon is away. Then what comes in under the flows' own names shows it (P-39), and is asked
    /// for.
    fn listen_natively(&mut self, now: Time, id: PeerId, tries: u32, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let held = |update: &PendingUpdate| update.held && !update.absent && update.meanwhile.is_none();
        let held = peer.binding.update.as_ref().is_some_and(held);
        if !held || tries < 2 || peer.flow.places().local != NOWHERE || !peer.is_home_address() {
            return;
        }
        peer.binding.listens = true;
        peer.binding.carrier = Carrier::Hold;
        self.apply_binding(now, id, base);
        self.ask_natively(id, base);
    }

    /// See [`Node::handle_heard_natively`](crate::Node::handle_heard_natively).
    pub(crate) fn handle_heard_natively(&mut self, now: Time, flow: FlowTuple, base: &mut Base) {
        let Some(entry) = self.flow.flows().entry(&flow).copied() else { return };
        let id = entry.peer;
        let Some(peer) = bound_mut!(self, &id) else { return };
        let here = peer.path.attachment().is_some_and(|attachment| attachment.address == flow.local.ip());
        let waiting =
            peer.binding.update.as_ref().is_some_and(|update| update.held) && peer.flow.places().local == NOWHERE;
        if !peer.binding.listens || !here || entry.home.peer != peer.flow.places().peer {
            return;
        }
        if peer.flow.away().is_some() && entry.home.local == peer.flow.places().local {
            self.hear(now, id, base);
            return;
        }
        if !waiting {
            return;
        }
        peer.binding.listens = false;
        peer.flow.set_local_place(entry.home.local);
        let at = peer.path.source();
        self.apply_binding(now, id, base);
        self.refresh_sets(base);
        base.ask(BindingOp::Kick { peer: id, lost: false }, Asked::Effect("waking senders"));
        let flows = self.living(id);
        base.event(Event::NotMoved { peer: id, at, flows, carried: self.carried(id) });
        self.refresh_listening(now, base);
    }

    /// We are somewhere else: the peer is told.
    pub(super) fn arrive(
        &mut self,
        now: Time,
        id: PeerId,
        attachment: Attachment,
        meanwhile: Option<Meanwhile>,
        base: &mut Base,
    ) {
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        let from = peer.path.source();
        let lost = meanwhile.is_none();
        peer.on_left();
        peer.retire_path();
        peer.path.leave_stand_in();
        peer.path.move_to(attachment);
        peer.binding.probe = CarrierProbe { leading: true, ..CarrierProbe::default() };
        peer.binding.only_tunnel = false;
        peer.flow.forget_stalls();
        base.stop_timer(Timer::Probe(id));
        let idle = peer.flow.flows().is_empty() && !peer.flow.introduces();
        if idle && !peer.has_session() {
            // Nothing to move, nobody to tell. The place gets its number when there is a session again: what is opened
            // here is not at home where we were before.
            peer.binding.unannounced = true;
            peer.binding.update = None;
            peer.flow.set_local_place(NOWHERE);
            return;
        }
        // The update first: nothing that the kernel must do delays it.
        self.announce(now, id, PendingUpdate { lost, held: true, meanwhile, ..PendingUpdate::default() }, base);
        base.signal(Signal::Moving(id));
        self.flow.end_connecting_from_left(now, id, base);
        self.hold_back(now, id, base);
        self.accept_former(now, id, base);
        let flows = self.living(id);
        if flows > 0 {
            // P-218
            if lost {
                base.ask(BindingOp::Acknowledge { peer: id }, Asked::Effect("saying what was received"));
            }
            base.event(Event::Moving { peer: id, from, to: Some(attachment.address), flows, kept: !lost });
        }
    }

    /// Sends an update that says where we are.
    fn announce(&mut self, now: Time, id: PeerId, update: PendingUpdate, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        peer.binding.unannounced = false;
        peer.binding.sequence_sent = (peer.binding.sequence_sent + 1).min(SEQUENCES - 1);
        let only_tunnel = peer.binding.only_tunnel;
        let tunnel_lost = std::mem::take(&mut peer.binding.tunnel_lost) && peer.goes_by_tunnel();
        let (sequence, started, sent, in_family_since) = (peer.binding.sequence_sent, now, now, now);
        let of_now = PendingUpdate { sequence, started, sent, in_family_since, ..update };
        peer.binding.update = Some(PendingUpdate { only_tunnel, tunnel_lost, ..of_now });
        self.repeat_update(now, id, base);
        self.await_answer(now, id, base);
        self.fall_back_in_time(now, id, base);
    }

    /// Flows of a peer that are at home may use another address than the place names (P-33). Where one of those is
    /// gone, or leads nowhere, they are at home nowhere.
    pub(crate) fn uproot(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound!(self, &id) else { return };
        let stranded = &peer.binding.stranded;
        let gone = |address: &IpAddr| base.attachments().is_gone(*address) || stranded.contains(address);
        if peer.path.attachment().is_none() || peer.binding.update.is_some() || !peer.is_rooted(gone) {
            return;
        }
        self.uproot_all(now, id, false, base);
    }

    /// No flow of a peer is at home any more, though this host stays where it is. `lost`: what was under way is lost.
    pub(crate) fn uproot_all(&mut self, now: Time, id: PeerId, lost: bool, base: &mut Base) {
        self.announce(now, id, PendingUpdate { lost, held: true, uprooted: true, ..PendingUpdate::default() }, base);
        self.hold_back(now, id, base);
        self.accept_former(now, id, base);
        let Some(source) = self.flow.path().paths(&id).map(Paths::source) else { return };
        let flows = self.living(id);
        base.event(Event::Moving { peer: id, from: source, to: source, flows, kept: false });
    }

    /// A peer has other ideas of where we are.
    pub(crate) fn announce_again(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if let Some(peer) = bound_mut!(self, &id) {
            peer.binding.unannounced = true;
            self.announce_late(now, id, base);
        }
    }

    /// A hand-off by hand, or to what the user's file selects, or back to an address family that had answered (P-53),
    /// stays unanswered, and the path that was to be left still carries: it is taken back (P-38). Returns whether it
    /// is.
    fn take_back(&mut self, now: Time, id: PeerId, base: &mut Base) -> bool {
        let Some(mut peer) = bound_mut!(self, &id) else { return false };
        let choice = peer.path.choice();
        let by_hand = choice.chosen().is_some() && choice.chosen() == peer.path.attachment();
        let update = peer.binding.update.as_ref();
        let (tried, returns) = update.map_or((false, false), |update| (update.tries >= UPDATES, update.returns));
        let Some(meanwhile) = peer.meanwhile().filter(|_| (by_hand || returns) && tried).cloned() else {
            return false;
        };
        let (tried, left) = (peer.path.source(), peer.path.attachment().filter(|_| returns));
        let choice = Choice { unanswered: left.or(choice.unanswered), otherwise: left.or(choice.otherwise), ..choice };
        let selected = choice.selected.filter(|own| *own == meanwhile.attachment);
        let natural = choice.natural.filter(|own| selected.is_some() && *own != meanwhile.attachment);
        peer.path.choose(Choice { preferred: None, selected, natural, ..choice });
        peer.retire_path();
        peer.path.move_to(meanwhile.attachment);
        // The peer may have accepted what it could not answer.
        let back = PendingUpdate { held: true, meanwhile: Some(meanwhile), ..PendingUpdate::default() };
        self.announce(now, id, back, base);
        self.hold_back(now, id, base);
        self.accept_former(now, id, base);
        self.refresh_sets(base);
        if let Some(from) = tried {
            let flows = self.living(id);
            base.event(Event::TakenBack { peer: id, from, flows });
        }
        true
    }

    /// There is a session with a peer that may not know where we are.
    pub(crate) fn announce_late(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound!(self, &id).filter(|_| !base.is_suspended()) else { return };
        if peer.binding.unannounced && peer.path.attachment().is_some() && peer.binding.update.is_none() {
            let held = peer.flow.places().local == NOWHERE;
            self.announce(now, id, PendingUpdate { held, ..PendingUpdate::default() }, base);
        }
    }

    /// Sends the pending update, for the first time or again.
    pub(crate) fn repeat_update(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if self.take_back(now, id, base) {
            return;
        }
        self.try_other_family(now, id, base);
        let (port, keeps) = (base.config().port, self.flow.session().keeps(id));
        let Some(peer) = bound_mut!(self, &id) else { return };
        let Some(source) = peer.path.source() else { return };
        let repeat = peer.path.round_trip();
        // Every third try goes to another of the peer's addresses of the family that we have.
        let long = peer.binding.update.as_ref().is_some_and(|update| update.tries >= UPDATES);
        let mut addresses = peer.whereabouts(port, long);
        addresses.retain(|to| to.is_ipv4() == source.is_ipv4());
        if addresses.is_empty() {
            // P-215
            let former = peer.path.former_locators().iter().map(|address| SocketAddr::new(*address, port));
            addresses.extend(former.filter(|to| to.is_ipv4() == source.is_ipv4()));
        }
        let mut unproven = 0;
        addresses.retain(|to| {
            let only_told = !peer.path.has_shown(*to) && !peer.has_answered_at(&to.ip());
            unproven += usize::from(only_told);
            !only_told || unproven <= UNPROVEN_MOST
        });
        let session = peer.has_session();
        let next = peer.binding.update.as_ref().map_or(1, |update| update.tries + 1);
        let (remote, pause) = (peer.path.remote(), peer.path.repeat_after(next));
        let Some(update) = peer.binding.update.as_mut() else { return };
        if addresses.is_empty() {
            base.set_timer(Timer::Update(id), now + UPDATE_PAUSE_LONGEST);
            return;
        }
        update.tries += 1;
        update.sent = now;
        update.prompts.take();
        let (tries, turn) = (update.tries, update.turn());
        if update.absent && tries > PARTINGS {
            // It will find out.
            peer.binding.update = None;
            peer.binding.unheard = true;
            return;
        }
        if tries > UPDATES && peer.flow.flows().is_empty() && !keeps {
            // No connection depends on it: it is told when there is next a session.
            peer.binding.update = None;
            peer.binding.unannounced = true;
            self.flow.abandon_introductions(now, id, base);
            return;
        }
        // Later, when the pauses are long, at each address in turn: the peer may have started anew there.
        let doubt_each = if long { UPDATES_TO_ONE } else { 8 };
        let doubt = tries == DOUBT_AFTER || (tries > DOUBT_AFTER && tries % doubt_each == 0);
        let to = addresses[turn as usize % addresses.len()];
        let close = UPDATES.max(UPDATES_TO_ONE * addresses.len() as u32);
        let again = if !session {
            // What is sent is a question, and a large one.
            (Duration::from_millis(250) * 2u32.pow(tries.min(8))).min(UPDATE_PAUSE_LONGEST)
        } else if tries <= close {
            pause.min(repeat * 3 + Duration::from_millis(500))
        } else {
            (UPDATE_PAUSE * 2u32.pow(((tries - close) / UPDATES_TO_ONE).min(5))).min(UPDATE_PAUSE_LONGEST)
        };
        base.set_timer(Timer::Update(id), now + again);
        self.report_silence(id, tries, base);
        let proven = self.flow.path().paths(&id).is_some_and(|paths| paths.has_shown(to));
        self.send_update(id, to, base);
        self.send_masked_update(now, id, to, base);
        if doubt || !session {
            // Without a session an update goes nowhere else either.
            let strays = !session || remote.is_ipv4() != to.is_ipv4();
            self.flow.path_mut().start_handshake_at(now, id, if proven || strays { to } else { remote }, base);
        }
        self.repeat_by_tcp(now, id, to, doubt, base);
        if doubt {
            base.signal(Signal::Unanswered(id));
        }
        self.listen_natively(now, id, tries, base);
    }

    /// Sends the pending update to an endpoint of the peer's, or to one that may be.
    pub(crate) fn send_update(&mut self, id: PeerId, to: SocketAddr, base: &mut Base) {
        let port = base.config().port;
        let flags = self.own_flags(id, base);
        let token = base.random().u64();
        let Some(peer) = bound_mut!(self, &id) else { return };
        // Nobody has a connection of TCP made from an address that is not his.
        let proven = peer.path.has_shown(to) || peer.path.stand_in() == Some(to);
        let remote = peer.path.remote();
        let (Some(source), Some(update)) = (peer.path.source(), peer.binding.update.as_mut()) else { return };
        let flags = if update.lost { flags.with(UpdateFlags::FORMER_PATH_LOST) } else { flags };
        let flags = if update.tunnel_lost { flags.with(UpdateFlags::TUNNEL_LOST) } else { flags };
        let flags = if update.uprooted { flags.with(UpdateFlags::UPROOTED) } else { flags };
        let flags = if update.absent { flags.with(UpdateFlags::ABSENT) } else { flags };
        let message = Message::BindingUpdate {
            binding: BindingNumber::FIRST,
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
            self.flow.path_mut().send_padded(id, Some(source), to, &messages, base);
        } else {
            self.flow.path_mut().send_to(id, Some(source), to, &messages, base);
        }
    }

    /// The peer's answer to our update.
    pub(crate) fn handle_acknowledgement(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        ack: &Acknowledgement,
        base: &mut Base,
    ) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let is_ours = |update: &PendingUpdate| ack.binding == BindingNumber::FIRST && update.sequence == ack.sequence;
        if !peer.binding.update.as_ref().is_some_and(is_ours) {
            return;
        }
        match ack.status {
            BindingStatus::Accepted => {}
            BindingStatus::NotNewer => {
                // We lost count, as after a restart without memory (P-17).
                let newest = peer.binding.sequence_sent.max(ack.newest);
                if newest >= SEQUENCES - 1 {
                    return;
                }
                peer.binding.sequence_sent = newest + 1;
                if let Some(update) = peer.binding.update.as_mut() {
                    update.sequence = newest + 1;
                    // Once at once: who says so again and again is answered no sooner than who says nothing.
                    if !std::mem::replace(&mut update.corrected, true) {
                        self.repeat_update(now, id, base);
                    }
                }
                return;
            }
            _ => {
                peer.binding.update = None;
                base.stop_timer(Timer::Update(id));
                base.event(Event::Refused { peer: id, reason: "it refuses our move" });
                return;
            }
        }
        base.stop_timer(Timer::Update(id));
        if let Some(update) = peer.binding.update.take().filter(|update| !update.absent) {
            self.take_answer(now, id, arrival, ack, &update, base);
        }
    }

    /// A peer has accepted an update of ours, which is over.
    fn take_answer(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        ack: &Acknowledgement,
        update: &PendingUpdate,
        base: &mut Base,
    ) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let quiet = !update.held && update.proven.is_none() && ack.place == peer.flow.places().local;
        // P-160: it was found out after the update was sent.
        peer.binding.unannounced = peer.binding.only_tunnel && !update.only_tunnel;
        // Where a masked one opened the way it was sent once more.
        if update.tries == 1 && update.masked_seen == 0 {
            peer.path.sample_round_trip(now.since(update.sent));
        }
        let at = peer.path.attachment();
        self.judge_masked(at, update);
        let Some(peer) = bound_mut!(self, &id) else { return };
        peer.path.on_acknowledged(ack.observed);
        let remote = peer.path.remote();
        self.check_later(now, id, base);
        // It is there, whatever was asked in vain before.
        self.check_anew(now, id, Some(remote), true, base);
        base.signal(Signal::Answered(id));
        if quiet {
            self.stay_known(now, id, base);
            self.tell_confirmed(id, base);
            if update.tunnel_lost {
                self.wake_after(id, update, base);
            }
        } else {
            self.go_on_from(now, id, arrival, ack, update, base);
            self.end_doubt(id, base);
            self.tell_fallback(id, base);
            self.fall_back_in_time(now, id, base);
        }
        if let Some(home) = bound_mut!(self, &id).and_then(|peer| peer.flow.take_left()) {
            self.flow.claim_late(now, id, home, base);
        }
        self.introduce_on(now, id, base);
        self.flow.send_paused_soon(now, id, base);
        // An address that went meanwhile was not looked at.
        self.uproot(now, id, base);
        self.announce_late(now, id, base);
    }

    /// A peer knows, as before, where this host is. Either end may have started anew, and know of no probe.
    fn stay_known(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        // A peer that is on its way moved last: it probes, and is answered.
        let comes = peer.path.is_unconfirmed();
        if peer.moved_flows() > 0 && !comes {
            peer.binding.probe = CarrierProbe { leading: peer.has_gone(), ..CarrierProbe::default() };
            self.probe_carrier(now, id, base);
        }
        if let Some(saved) = self.saved(id) {
            base.ask(StoreOp::SavePeer(saved), Asked::Effect("saving a peer"));
        }
    }

    /// An update has been acknowledged: what is under way may be sent again.
    fn wake_after(&self, id: PeerId, update: &PendingUpdate, base: &mut Base) {
        let lost = update.lost || update.tunnel_lost;
        if !self.holds(id) {
            base.ask(BindingOp::Kick { peer: id, lost }, Asked::Effect("waking senders"));
        }
    }

    /// A peer knows that this host is elsewhere: its flows go on from there.
    fn go_on_from(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        ack: &Acknowledgement,
        update: &PendingUpdate,
        base: &mut Base,
    ) {
        let token = base.random().u64();
        let (proven, asked) = (update.proven, update.asked.last().map(|(asked, _)| *asked));
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        peer.flow.set_local_place(ack.place);
        peer.record_own_place();
        peer.binding.answered = Some(now);
        peer.binding.listens = false;
        peer.binding.probe.leading = true;
        peer.binding.peer_refuses_rewrite = ack.flags.contains(UpdateFlags::REWRITE_REFUSED);
        let (source, before) = (peer.path.source(), peer.path.remote());
        let usable = source.is_some_and(|source| source.is_ipv4() == before.is_ipv4());
        let mut challenge = None;
        if let Some(remote) = proven {
            // One of its addresses that we can reach from here. It may still send by the one that it told.
            if remote != before {
                peer.retire_path();
            }
            if remote != before && !stands_in(remote) {
                peer.record_other_address(remote, base.config().port);
            }
            peer.path.drop_candidate();
            peer.path.confirm(remote);
            base.stop_timer(Timer::Challenge(id));
        } else if let Some(asked) = asked.filter(|_| !usable) {
            // The address that the answer came from proves nothing, nor has the one that was asked (P-18).
            peer.path.expect(Path::new(asked, token, now, arrival.length, Claim::Announced));
            let again = peer.path.repeat_after(1);
            base.set_timer(Timer::Challenge(id), now + again);
            challenge = Some(asked);
            self.await_answer(now, id, base);
        }
        self.record_sighting(now, id, proven, base);
        let Some(peer) = bound!(self, &id) else { return };
        let translated = source.is_some_and(|source| source != ack.observed.ip());
        let (waited, moved) = (!peer.flow.flows().is_empty(), peer.moved_flows());
        self.choose_carrier(now, id, base);
        self.set_tunnel_path(id, base);
        self.apply_binding(now, id, base);
        self.turn_windows(now, id, base);
        self.refresh_sets(base);
        self.refresh_listening(now, base);
        if waited {
            self.wake_after(id, update, base);
            if let Some(to) = source {
                let (flows, carried) = (self.living(id), self.carried(id));
                let took = now.since(update.started);
                let masked = update.masked_seen > 0;
                base.event(Event::Moved { peer: id, to, translated, masked, took, flows, carried });
            }
        }
        if let Some(asked) = challenge {
            self.flow.path_mut().send_to(id, source, asked, &[Message::PathChallenge { token }], base);
        }
        self.send_locators(now, id, base);
        self.keep_ready(now, id, base);
        self.flow.path_mut().tell_kept(now, id, base);
        if moved > 0 && self.rewrite_possible(id, base) {
            self.probe_carrier(now, id, base);
        }
    }

    /// Introductions that waited for an update go on.
    fn introduce_on(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if self.flow.peer(&id).is_some_and(|peer| peer.flow.introduces()) {
            base.set_timer(Timer::Introductions(id), now);
            self.flow.echo_again(now, id, base);
        }
    }

    pub(crate) fn accept_former(&mut self, now: Time, id: PeerId, base: &mut Base) {
        base.set_timer(Timer::Former(id), now + FORMER);
    }

    /// There is the session that an update of ours was waiting for.
    pub(crate) fn update_in_session(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if let Some(update) = self.peers.get_mut(&id).and_then(|peer| peer.update.as_mut()) {
            update.begin_again(now);
            self.repeat_update(now, id, base);
        }
    }
}
