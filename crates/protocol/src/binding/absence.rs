//! Ends that are away: this host goes to sleep and comes back, a peer says that it goes or is not heard any more, and
//! flows wait without giving up (`docs/protocol.md` §6).

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::attachments::Routes;
use crate::base::event::Event;
use crate::base::op::{FlowEntry, FlowOp, LocalEnd, PeerId, StoreOp};
use crate::base::output::Asked;
use crate::base::pace::{LOOK_PAUSE, LOOK_PAUSE_LONGEST};
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::binding::peers::BoundRef;
use crate::binding::update::PendingUpdate;
use crate::flow::peers::Away;
use crate::path::paths::Choice;

/// How long flows wait before their sockets are kept from giving up (P-46). The least that programs set as a
/// TCP_USER_TIMEOUT is several seconds; hand-offs are over before.
const PARK_AFTER: Duration = Duration::from_secs(3);
/// How long a peer may be silent until what this host passes on for it is over: so long sockets wait at the most
/// (decision 0008).
pub(crate) const VANISHED: Duration = Duration::from_secs(20 * 86_400);
/// Unanswered checks of a path after which a peer with a stalled flow is taken to be away.
pub(crate) const SILENT_AFTER: u32 = 3;
/// What was said so long ago may be said again at once, where there is a reason.
const HURRY: Duration = Duration::from_secs(1);
/// Tries without an answer after which it is told that a peer with flows is silent.
const TOLD_AFTER: u32 = 4;
/// How often a peer is told that this host goes away.
pub(crate) const PARTINGS: u32 = 5;

impl BindingLayer {
    /// See [`Node::suspend`](crate::Node::suspend).
    pub(crate) fn suspend(&mut self, now: Time, base: &mut Base) {
        if base.set_suspended(true) {
            return;
        }
        base.ask(StoreOp::SaveSuspended(true), Asked::Effect("saving that this host is suspended"));
        self.part(now, base);
    }

    /// See [`Node::restore_suspended`](crate::Node::restore_suspended).
    pub(crate) fn restore_suspended(&mut self, now: Time, base: &mut Base) {
        base.set_suspended(true);
        for id in self.part(now, base) {
            if let Some(peer) = bound_mut!(self, &id) {
                peer.binding.unheard = true;
            }
        }
    }

    /// Has the flows of all peers wait, and tells those that can be told.
    fn part(&mut self, now: Time, base: &mut Base) -> Vec<PeerId> {
        self.all_sides_changed();
        let ids: Vec<PeerId> = self.each().filter(|peer| !peer.flow.flows().is_empty()).map(|peer| peer.id()).collect();
        for id in &ids {
            self.part_from(now, *id, base);
        }
        self.refresh_sets(base);
        let flows = ids.iter().map(|id| self.living(*id)).sum();
        base.event(Event::Suspended { flows });
        ids
    }

    /// Tells a peer that we go, in an update that announces no place (P-44).
    fn part_from(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        peer.path.choose(Choice { preferred: None, natural: None, ..peer.path.choice() });
        peer.binding.unheard = false;
        peer.on_left();
        let reachable = peer.path.attachment().is_some() && peer.has_session();
        peer.binding.update = None;
        if reachable {
            peer.binding.sequence_sent = (peer.binding.sequence_sent + 1).min(crate::binding::handoff::SEQUENCES - 1);
            let update = PendingUpdate::new(peer.binding.sequence_sent, now, false, true);
            peer.binding.update = Some(PendingUpdate { absent: true, ..update });
            self.repeat_update(now, id, base);
        }
        base.stop_timer(Timer::Probe(id));
        base.stop_timer(Timer::Keepalive(id));
        self.park(id, base);
        self.hold(now, id, base);
    }

    /// See [`Node::leaving_peers`](crate::Node::leaving_peers).
    pub(crate) fn leaving_peers(&self) -> usize {
        let parting = |peer: &BoundRef<'_>| peer.binding.update.as_ref().is_some_and(|update| update.absent);
        self.each().filter(|peer| parting(peer) || !peer.flow.waiting().is_told()).count()
    }

    /// Something was heard of a peer that never answered the word of parting: this host is not asleep yet, and the way
    /// is there again.
    pub(crate) fn part_again(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if base.is_suspended()
            && bound!(self, &id).is_some_and(|peer| peer.binding.unheard && !peer.flow.flows().is_empty())
        {
            self.part_from(now, id, base);
        }
    }

    /// See [`Node::is_suspended`](crate::Node::is_suspended).
    pub(crate) fn is_suspended(&self, base: &Base) -> bool {
        base.is_suspended()
    }

    /// This host is back: its flows go on from where it is now. Tells whether it was away.
    pub(crate) fn come_back(&mut self, now: Time, routes: &dyn Routes, base: &mut Base) -> bool {
        if !base.set_suspended(false) {
            return false;
        }
        base.ask(StoreOp::SaveSuspended(false), Asked::Effect("saving that this host is not suspended any more"));
        base.event(Event::Resumed);
        let ids: Vec<PeerId> = self.flow.session().ids();
        for id in ids {
            if let Some(peer) =
                bound_mut!(self, &id).filter(|peer| peer.flow.places().local == crate::base::op::NOWHERE)
            {
                peer.binding.unheard = false;
                peer.binding.update = None;
                peer.path.detach();
                // A daemon that was started meanwhile has told nobody where it is.
                peer.path.take_restored();
                base.stop_timer(Timer::Update(id));
            }
            self.check_for_move(now, id, routes, None, base);
        }
        self.refresh_sets(base);
        true
    }

    /// A peer says that it goes away (P-44).
    pub(crate) fn let_go(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(mut peer) = bound_mut!(self, &id) else { return };
        peer.leave_place(now);
        peer.path.drop_candidate();
        peer.flow.set_stalled(false);
        base.stop_timer(Timer::Challenge(id));
        base.stop_timer(Timer::Probe(id));
        base.stop_timer(Timer::Keepalive(id));
        self.be_away(now, id, Away::Announced, base);
        self.keep_mapping(now, id, base);
    }

    fn be_away(&mut self, now: Time, id: PeerId, away: Away, base: &mut Base) {
        self.sides_changed(id);
        let Some(peer) = bound_mut!(self, &id) else { return };
        peer.flow.set_away(Some(away));
        // Whatever is native cannot be told from what is another's, where the host that had the address is gone.
        peer.binding.listens = away == Away::Silent { held: true };
        // It was heard meanwhile and never answered: it has been away all the time.
        let again = std::mem::take(&mut peer.binding.back_untold) && away != Away::Announced;
        let flows = self.living(id);
        self.park(id, base);
        if away != (Away::Silent { held: false }) {
            self.choose_carrier(now, id, base);
        }
        self.apply_binding(now, id, base);
        self.refresh_sets(base);
        self.refresh_listening(now, base);
        if flows > 0 && !again {
            let (announced, held) = (away == Away::Announced, away != Away::Silent { held: false });
            base.event(Event::PeerAway { peer: id, announced, held, flows });
        }
    }

    /// A check of the path stays unanswered. Tells whether the peer is away, so that it is looked for at longer
    /// intervals.
    pub(crate) fn miss(&mut self, now: Time, id: PeerId, tries: u32, base: &mut Base) -> Option<Duration> {
        let peer = bound_mut!(self, &id)?;
        if peer.flow.is_stalled() && tries >= SILENT_AFTER && peer.flow.away().is_none() {
            peer.flow.set_stalled(false);
            let held = peer.moved_flows() == 0;
            self.be_away(now, id, Away::Silent { held }, base);
            base.signal(Signal::Silent(id));
        }
        let peer = self.flow.peer(&id)?;
        let Some(Away::Silent { held }) = peer.flow.away() else { return None };
        if held {
            self.ask_natively(id, base);
        }
        let doublings = tries.saturating_sub(SILENT_AFTER).min(8);
        Some((LOOK_PAUSE * 2u32.pow(doublings)).min(LOOK_PAUSE_LONGEST))
    }

    /// Has one of a peer's held flows ask whether it is at home here (P-39).
    pub(crate) fn ask_natively(&mut self, id: PeerId, base: &mut Base) {
        let Some(peer) = self.flow.peer(&id) else { return };
        let here: Option<IpAddr> = peer.path.attachment().map(|attachment| attachment.address);
        let mut flows = peer.flow.flows().iter().filter(|flow| flow.transport == Transport::Tcp);
        if let Some(flow) = flows.find(|flow| Some(flow.local.ip()) == here).copied() {
            base.op(FlowOp::AskNatively { flow });
        }
    }

    /// Tells, once in a row of tries, that connections wait for a session that does not come up.
    pub(crate) fn report_silence(&mut self, id: PeerId, tries: u32, base: &mut Base) {
        let Some(peer) = self.flow.peer(&id) else { return };
        if tries == TOLD_AFTER
            && !base.is_suspended()
            && !peer.has_session()
            && peer.flow.away().is_none()
            && !peer.flow.flows().is_empty()
        {
            let (remote, flows) = (peer.path.remote(), self.living(id));
            base.event(Event::PeerSilent { peer: id, remote, flows });
        }
    }

    /// Something was heard of a peer: one that was only not heard is back where it was. Where its flows are carried, it
    /// is asked, and that it is back is told once it has answered: what it does not hear does not go on.
    pub(crate) fn hear(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        peer.flow.set_stalled(false);
        let Some(Away::Silent { held }) = peer.flow.away() else { return };
        peer.flow.set_away(None);
        peer.binding.listens = false;
        peer.path.forget_tries(now, held);
        let waited = !peer.flow.flows().is_empty();
        self.sides_changed(id);
        if held {
            self.lead_flows(now, id, base);
        } else {
            // They were carried on, and go on as they went.
            self.apply_binding(now, id, base);
        }
        if waited {
            self.flow.wake_senders(now, id, false, base);
        }
        if held {
            if waited {
                let flows = self.living(id);
                base.event(Event::PeerBack { peer: id, answers: false, flows, carried: self.carried(id) });
            }
            self.check_later(now, id, base);
        } else {
            // What was told of the doubt counts for the row of questions that begins now.
            let since = self.doubt(id, base).map(|(_, since)| since);
            if let Some(peer) = self.peers.get_mut(&id) {
                (peer.back_untold, peer.doubt_told) = (waited, peer.doubt_told.and(since));
            }
            base.set_timer(Timer::Keepalive(id), now);
        }
        self.hurry(now, id, base);
    }

    /// A peer is there (again), that what it was told last may have missed: it is told now, and not after a long pause.
    pub(crate) fn hurry(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        if let Some(update) = peer.binding.update.as_mut().filter(|update| update.sent + HURRY <= now) {
            // First to where it is now.
            update.begin_again(now);
            base.set_timer_earlier(Timer::Update(id), now);
        }
        if !peer.flow.waiting().has_said_within(now, HURRY) {
            self.flow.send_paused_soon(now, id, base);
        }
    }

    /// As [`BindingLayer::on_life`], told in the session of this index of ours. One that another has taken the place of
    /// may be the session of a life before.
    pub(crate) fn on_life_in_session(&mut self, now: Time, id: PeerId, index: u32, life: u64, base: &mut Base) {
        let session = self.flow.session_mut().peer_mut(&id).and_then(|peer| peer.session());
        if let Some(since) = session.filter(|slot| slot.local_index() == index).map(|slot| slot.begun()) {
            self.on_life(now, id, life, since, base);
        }
    }

    /// A peer has told the life of its sockets in a session that began at `since`, and shown that it is the peer: where
    /// it is another than before, its ends of our flows are gone (P-47).
    pub(crate) fn on_life(&mut self, now: Time, id: PeerId, life: u64, since: Time, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        if life == 0 || since < peer.binding.life_since {
            return;
        }
        peer.binding.life_since = since;
        let before = std::mem::replace(&mut peer.binding.life, life);
        if before == life {
            return;
        }
        // Those of hosts behind it live on (P-123).
        let ended = self.flow.flows_with(id, |_, entry| before != 0 && !entry.beyond);
        if let Some(peer) = bound_mut!(self, &id).filter(|_| !ended.is_empty()) {
            peer.flow.set_away(None);
            peer.binding.listens = false;
            self.end_flows(now, id, &ended, Some(Event::PeerRestarted { peer: id, flows: ended.len() }), base);
        }
        self.save_peer(id, base);
    }

    fn save_peer(&mut self, id: PeerId, base: &mut Base) {
        if let Some(peer) = bound!(self, &id) {
            let saved = peer.saved();
            base.ask(StoreOp::SavePeer(saved), Asked::Effect("saving a peer"));
        }
    }

    /// The other ends of these flows with a peer are gone, or nobody leads the flows there any more. `told`: what is
    /// told of it.
    pub(super) fn end_flows(
        &mut self,
        now: Time,
        id: PeerId,
        ended: &[FlowTuple],
        told: Option<Event>,
        base: &mut Base,
    ) {
        let reset = |flow: &FlowTuple, base: &mut Base| {
            if flow.transport == Transport::Tcp {
                base.ask(FlowOp::Reset { flow: *flow }, Asked::Effect("ending a connection whose other end is gone"));
            }
        };
        let mut here = Vec::new();
        for flow in ended {
            let entry = self.flow.flows().entry(flow).copied();
            if entry.is_some_and(|entry| entry.end == LocalEnd::Endpoint) {
                // It is found there by its entry.
                reset(flow, base);
            } else {
                here.push(flow);
            }
            self.flow.forget_flow(flow, base);
            // Whoever else had the socket, it moves no more.
            entry.iter().for_each(|entry| self.flow.end_moved(entry, base));
        }
        // A reset has to bear the very number that the socket expects: nothing of the flow's is led to it any more.
        here.into_iter().for_each(|flow| reset(flow, base));
        told.into_iter().for_each(|told| base.event(told));
        self.apply_binding(now, id, base);
        self.refresh_sets(base);
        self.flow.idle_later(now, id, base);
    }

    /// A gateway has told what names its memory of flows of hosts behind it, in the session of this index of ours.
    /// Where it is another than before, it knows none of our flows with them any more: what is native goes on so and is
    /// introduced anew, what has moved nobody leads any more (P-123).
    pub(crate) fn on_memory(&mut self, now: Time, id: PeerId, index: u32, memory: u64, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        let session = peer.session().filter(|slot| slot.local_index() == index);
        let Some(since) = session.map(|slot| slot.begun()) else { return };
        if memory == 0 || since < peer.binding.memory_since {
            return;
        }
        peer.binding.memory_since = since;
        let before = std::mem::replace(&mut peer.binding.memory, memory);
        if before == memory {
            return;
        }
        let places = peer.current_places();
        // A gateway without memory has given our place another number. Where no NAT was on the way the address says it
        // as well.
        let at_home = |flow: &FlowTuple, entry: &FlowEntry| {
            let ours = base.attachments().has(&flow.local.ip()) && entry.peer_tuple.mirrored() == *flow;
            entry.home == places || ours
        };
        if before != 0 {
            let beyond = self.flow.flows_with(id, |_, entry| entry.beyond);
            let (home, away): (Vec<_>, Vec<_>) =
                beyond.into_iter().partition(|flow| self.flow.flows().entry(flow).is_some_and(|of| at_home(flow, of)));
            for flow in home {
                let Some(known) = self.flow.flows().get(&flow).cloned() else { continue };
                if known.is_closed() {
                    self.flow.forget_flow(&flow, base);
                } else {
                    self.flow.forget_agreement(&flow, base);
                    self.flow.flows_mut().put(flow, known.forgotten());
                    self.flow.flows_mut().put_off(now, flow);
                }
            }
            let told = Event::PeerRestarted { peer: id, flows: away.len() };
            self.end_flows(now, id, &away, Some(told), base);
        }
        self.save_peer(id, base);
    }

    /// Ends what this host passes on for a peer that has not been heard for so long that its sockets are gone (P-105).
    pub(crate) fn end_vanished(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let behind = self.flow.flows_with(id, |_, entry| entry.end == LocalEnd::Behind);
        let Some(peer) = self.flow.peer(&id).filter(|_| !behind.is_empty()) else { return };
        let until = peer.last_heard() + VANISHED;
        if until > now {
            base.set_timer(Timer::Vanished(id), until);
            return;
        }
        for flow in behind {
            self.end_passed_on(now, &flow, base);
        }
    }

    /// A flow that this host passes on is over, whatever its owner says: the owner is told, and the far end hears from
    /// this host's own stack that there is no such connection.
    pub(crate) fn end_passed_on(&mut self, now: Time, flow: &FlowTuple, base: &mut Base) {
        let entry = self.flow.flows().entry(flow).copied();
        self.flow.forget_flow(flow, base);
        if let Some(entry) = entry {
            self.flow.end_moved(&entry, base);
            self.flow.send_ended(now, entry.peer, entry.name, base);
            self.flow.idle_later(now, entry.peer, base);
            self.refresh_sets(base);
        }
    }

    /// From now on the sockets of a peer's flows do not give up (P-46).
    fn park(&mut self, id: PeerId, base: &mut Base) {
        base.stop_timer(Timer::Park(id));
        if let Some(peer) = bound_mut!(self, &id) {
            peer.binding.parked = true;
        }
    }

    /// Sees to it that flows that wait are parked before their sockets give up, and no longer than that.
    pub(crate) fn park_in_time(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = bound_mut!(self, &id) else { return };
        if peer.waits() {
            if !peer.binding.parked {
                base.set_timer_earlier(Timer::Park(id), now + PARK_AFTER);
            }
        } else {
            peer.binding.parked = false;
            base.stop_timer(Timer::Park(id));
        }
    }

    /// Flows have waited for a while.
    pub(crate) fn park_late(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if bound!(self, &id).is_some_and(|peer| peer.waits() && !peer.binding.parked) {
            self.park(id, base);
            self.apply_binding(now, id, base);
        }
    }
}
