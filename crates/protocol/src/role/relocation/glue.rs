//! What the node has to do with moves: sessions that carry their words, timers, and what the caller is asked.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{Contact as Knowledge, PublicKey};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::Ends;
use whimbrel_wire::message::Message;

use super::{
    Around, At, Dependents, FlowName, Found, Gift, MoveName, Moves, NotGiven, Rented, SavedAcceptance, SavedDonation,
    SavedHeld, SavedLease, SavedTenancy,
};
use crate::Time;
use crate::base::op::PeerId;
use crate::base::signal::Signal;
use crate::base::timer::Timer;
use crate::binding::peers::BoundRef;
use crate::flow::Stage;
use crate::node::Node;
use crate::session::pins::Pin;

/// Pause before a host is asked again for a session that a move waits for, at first and at the longest.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
const ASKED_AGAIN_LONGEST: Duration = Duration::from_secs(60);

/// The node around its moves.
pub(super) struct Others<'a> {
    pub(super) node: &'a Node,
}

impl Around for Others<'_> {
    fn has_session(&self, with: &PublicKey) -> bool {
        self.node.peer_of(with).is_some_and(|peer| peer.has_session())
    }

    fn flow(&self, name: &FlowName) -> Option<FlowTuple> {
        self.node.flow_named(name)
    }

    fn is_known(&self, flow: &FlowTuple) -> bool {
        self.node.binding.flow.flows.get(flow).is_some()
    }

    fn partner(&self, flow: &FlowTuple) -> Option<PublicKey> {
        let Stage::Introduced { entry, .. } = &self.node.binding.flow.flows.get(flow)?.stage else { return None };
        self.node.binding.flow.path.session.peers.get(&entry.peer).map(|peer| peer.key)
    }

    fn wire_port(&self, with: &PublicKey, flow: &FlowTuple) -> Option<u16> {
        let ports = self.node.binding.flow.flows.ports();
        let peer = self.node.peer_of(with);
        peer.map_or_else(|| ports.wire_port(|_| true), |peer| peer.flow.free_wire_port(flow.remote.port(), ports))
    }

    fn peer(&self, of: &PublicKey) -> Option<PeerId> {
        self.node.peer_of(of).map(|peer| peer.id)
    }

    fn whereabouts(&self, of: &PublicKey) -> Option<SocketAddr> {
        self.node.peer_of(of).map(|peer| peer.remote)
    }
}

impl Node {
    pub(super) fn peer_of(&self, key: &PublicKey) -> Option<BoundRef<'_>> {
        self.binding.flow.path.session.by_key.get(key).and_then(|id| bound!(self.binding, id))
    }

    /// Does something with the moves, and what follows from it.
    pub(crate) fn with_moves<T>(&mut self, now: Time, act: impl FnOnce(&mut Moves, At<'_>) -> T) -> Option<T> {
        let mut moves = self.moves.take()?;
        let done = act(&mut moves, At { now, around: &Others { node: self } });
        // What moves do to flows is not told to them.
        let told = self.base.hold_signals();
        self.change_flows(now, &mut moves);
        self.base.release_signals(told, |signal| !matches!(signal, Signal::FlowEnded(_)));
        self.moves = Some(moves);
        self.wake_rebound(now);
        self.carry_moves(now);
        self.give_out_moves();
        Some(done)
    }

    /// Passes on what moves ask of the caller and tell it.
    pub(super) fn give_out_moves(&mut self) {
        let Some(moves) = &mut self.moves else { return };
        for (flow, reserved) in moves.moving.take_changes() {
            self.binding.flow.flows.reserve(flow, reserved);
        }
        self.binding
            .flow
            .path
            .session
            .contacts
            .pins
            .set(Pin::Moving, moves.lanes.keys().into_iter().filter(|key| moves.lanes.wants(key)).collect());
        if moves.leases.take_touched() | moves.tenancies.take_touched() {
            let hosts = moves.leases.keys().map(|lease| lease.tenant);
            self.binding
                .flow
                .path
                .session
                .contacts
                .pins
                .set(Pin::Leased, hosts.chain(moves.tenancies.keys().map(FlowName::peer)).collect());
        }
        self.community.set_grants(moves.grants().copied().collect());
        while let Some((number, op)) = moves.poll_op() {
            self.base.ask_for_move(op, number);
        }
        while let Some(event) = moves.poll_event() {
            self.base.event(event);
        }
    }

    /// Begins to give a socket away (`docs/protocol.md` §9). What becomes of it is told by events.
    ///
    /// # Errors
    /// [`NotGiven`]: nothing was done.
    pub fn give_socket(&mut self, now: Time, gift: Gift) -> Result<MoveName, NotGiven> {
        self.give(now, gift, false)
    }

    /// As [`Node::give_socket`], but the others only get ready, which [`MoveEvent::Prepared`](crate::MoveEvent::Prepared) tells. Nothing happens
    /// to the socket before [`Node::give_prepared`]; where that does not come for half a minute, or the move is [called off](Node::cancel_move),
    /// it stays.
    ///
    /// # Errors
    /// [`NotGiven`]: nothing was done.
    pub fn prepare_socket(&mut self, now: Time, gift: Gift) -> Result<MoveName, NotGiven> {
        self.give(now, gift, true)
    }

    /// A socket that is [prepared](Node::prepare_socket), or about to be, goes. `false`: it is not, or not any more.
    pub fn give_prepared(&mut self, now: Time, name: MoveName) -> bool {
        let own = name.donor == *self.base.public_key().as_bytes();
        own && self.with_moves(now, |moves, at| moves.go_on(at, name.number)).unwrap_or(false)
    }

    fn give(&mut self, now: Time, gift: Gift, waits: bool) -> Result<MoveName, NotGiven> {
        let number = self.base.random().u64();
        self.with_moves(now, |moves, at| moves.give(at, number, gift, waits)).unwrap_or(Err(NotGiven::Disabled))
    }

    /// Whoever asked for a move wants it no more. It may be too late for that: an event tells.
    pub fn cancel_move(&mut self, now: Time, name: MoveName) {
        if name.donor == *self.base.public_key().as_bytes() {
            self.with_moves(now, |moves, at| moves.cancel(at, name.number));
        }
    }

    /// The socket of a move is gone from this host, though nobody was asked to destroy it: its program ended, or who was to receive
    /// it.
    pub fn handle_move_socket_gone(&mut self, now: Time, name: MoveName) {
        let given = name.donor == *self.base.public_key().as_bytes();
        self.with_moves(now, |moves, at| {
            if given {
                moves.handle_donor_gone(at, name.number);
            } else {
                moves.handle_acceptor_gone(at, name);
            }
            moves.hear_own(at);
        });
    }

    /// This host holds the far end of a flow for another host, as an anchor does. To be said again after a restart, behind
    /// [`Node::restore_moves`]: what was moved since is known from there.
    ///
    /// `far` is the flow as its far end has it, which runs nothing.
    pub fn lend_flow(&mut self, flow: FlowName, far: FlowTuple) {
        if let Some(moves) = &mut self.moves {
            moves.lend(flow, far);
        }
        self.give_out_moves();
    }

    /// A flow that this host holds for others is over at its far end, or its lease has run out.
    pub fn end_held_flow(&mut self, now: Time, flow: FlowName) {
        self.with_moves(now, |moves, _| moves.end_flow(flow));
    }

    /// Whether the far end of a flow that this host passes on for another is not to learn where its socket is.
    pub(crate) fn hides(&self, name: &FlowName) -> bool {
        self.moves.as_ref().is_none_or(|moves| moves.hides(name))
    }

    /// An end's socket of a flow is gone: whoever has the other end, it moves no more.
    pub(crate) fn end_moved_flow(&mut self, name: FlowName) {
        if let Some(moves) = &mut self.moves {
            moves.end_flow(name);
        }
        self.give_out_moves();
    }

    /// Takes over what a daemon before this one left in the middle of. To be called once, behind [`Node::restore`] and with the
    /// network told: what was not decided is asked for.
    pub fn restore_moves(
        &mut self,
        now: Time,
        donations: &[(SavedDonation, Found)],
        acceptances: &[(SavedAcceptance, Found)],
        held: &[SavedHeld],
    ) {
        self.with_moves(now, |moves, at| {
            // First whose the sockets are: this host may ask itself.
            held.iter().for_each(|saved| moves.restore_held(at, saved));
            moves.end_revoked();
            donations.iter().for_each(|(saved, found)| moves.restore_donation(at, saved, *found));
            acceptances.iter().for_each(|(saved, found)| moves.restore_acceptance(at, saved, *found));
            moves.hear_own(at);
        });
    }

    /// Takes over leases of a daemon before this one. To be called once, behind [`Node::restore_moves`].
    pub fn restore_leases(&mut self, now: Time, lent: &[SavedLease], rented: &[SavedTenancy]) {
        self.with_moves(now, |moves, at| {
            moves.restore_leases(at, lent);
            moves.restore_tenancies(at, rented);
        });
    }

    /// Asks an anchor for endpoints: [`MoveEvent::Leased`] or [`MoveEvent::NotLeased`] tell what comes of it, under the name
    /// that is given. `anchor_at`: where it is, if no peer has this key yet. Endpoints that are not definite are the anchor's to choose.
    pub fn lease(
        &mut self,
        now: Time,
        anchor: PublicKey,
        anchor_at: Option<SocketAddr>,
        ends: Ends,
    ) -> Option<FlowName> {
        let number = self.base.random().u64();
        self.with_moves(now, |moves, at| {
            moves.rent(at, number, anchor, anchor_at, ends);
            FlowName::new(anchor, number)
        })
    }

    /// The endpoints of a lease are not needed any more.
    pub fn return_lease(&mut self, now: Time, lease: FlowName) {
        self.with_moves(now, |moves, at| moves.give_up_lease(at, lease));
    }

    /// Has a connection of a leased endpoint be a flow of this host and its anchor: [`MoveEvent::Claimed`] tells what comes of it.
    /// `hidden`: the far end is not to learn where this host is (P-87). `false`: its local end is not leased.
    pub fn claim_flow(&mut self, now: Time, tuple: FlowTuple, hidden: bool) -> bool {
        let flow = self.base.random().u64();
        self.with_moves(now, |moves, at| moves.claim(at, flow, tuple, hidden)).unwrap_or(false)
    }

    /// The anchor that lends an endpoint to this host.
    #[must_use]
    pub fn lessor_of(&self, end: SocketAddr) -> Option<PublicKey> {
        self.moves.as_ref()?.lessor_of(end)
    }

    /// Lends nothing new from now on, or does again. What is lent stays so until its end.
    pub fn stop_lending(&mut self, stopping: bool) {
        if let Some(moves) = &mut self.moves {
            moves.stop_lending(stopping);
        }
        self.give_out_moves();
    }

    /// These are all addresses of endpoints that this host lends at which it is not reached any more, since it does not have them: their
    /// tenants are told.
    pub fn note_unreached(&mut self, now: Time, addresses: BTreeSet<IpAddr>) {
        self.with_moves(now, |moves, at| moves.note_unreached(at, addresses));
    }

    /// What this host lends to whom, and the flows that it passes on for others, as their far ends have them, by who has the sockets.
    #[must_use]
    pub fn dependents(&self) -> Dependents {
        self.moves.as_ref().map(|moves| moves.dependents()).unwrap_or_default()
    }

    /// The endpoints of others that this host has.
    pub fn rented(&self) -> impl Iterator<Item = Rented> {
        self.moves.as_ref().into_iter().flat_map(|moves| moves.rented())
    }

    /// Entries of all tables of moves together, with one for each flow that is held for others.
    #[must_use]
    pub fn move_entries(&self) -> usize {
        self.moves.as_ref().map_or(0, |moves| moves.entries())
    }

    /// A peer says something about moves.
    pub(crate) fn handle_move_message(&mut self, now: Time, id: PeerId, message: Message) {
        let Some(key) = self.binding.flow.path.session.peers.get(&id).map(|peer| peer.key) else { return };
        self.with_moves(now, |moves, at| match message {
            Message::Stream(stretch) => moves.handle_stretch(at, key, stretch),
            Message::Received(received) => moves.handle_received(at, key, &received),
            _ => {}
        });
    }

    /// There is a new session with a peer.
    pub(crate) fn note_move_session(&mut self, now: Time, id: PeerId) {
        let Some(key) = self.binding.flow.path.session.peers.get(&id).map(|peer| peer.key) else { return };
        self.with_moves(now, |moves, at| moves.handle_session(at, key));
    }

    /// Something is due.
    pub(crate) fn continue_moves(&mut self, now: Time) {
        self.with_moves(now, Moves::handle_timeout);
    }

    /// Sends what may be sent now, and sees that there are sessions where they are needed.
    fn carry_moves(&mut self, now: Time) {
        let Some(mut moves) = self.moves.take() else { return };
        for key in moves.lanes.keys() {
            let peer = self
                .binding
                .flow
                .path
                .session
                .by_key
                .get(&key)
                .and_then(|id| self.binding.flow.path.session.peers.get(id));
            match peer.map(|peer| (peer.id, peer.has_session(), peer.check_tries)) {
                Some((id, true, checks)) => {
                    while let Some(message) = moves.poll_message(now, &key) {
                        self.binding.flow.path.send(id, &[message], &mut self.base);
                    }
                    let checked = checks > 0 && self.base.has_timer(Timer::Keepalive(id));
                    if moves.lanes.doubts(&key) && !checked {
                        // It may have started anew, or be elsewhere. What the check finds out goes on by itself.
                        self.base.set_timer_earlier(Timer::Keepalive(id), now);
                    }
                }
                Some((id, false, _)) if moves.lanes.wants(&key) => {
                    self.binding.flow.path.session.reach_again(now, id, &mut self.base)
                }
                None if moves.lanes.wants(&key) && moves.may_ask(now, &key) => {
                    // Where it is a donor may have said, of a host that there is not.
                    if let Some(to) = moves
                        .hints
                        .get(&key)
                        .copied()
                        .filter(|_| self.binding.flow.path.session.contacts.may_ask_another(now))
                    {
                        self.ask_for_move(now, key, to);
                    }
                }
                Some(_) | None => {}
            }
        }
        let due = moves.deadline(At { now, around: &Others { node: self } });
        match due {
            Some(due) => self.base.set_timer(Timer::Moves, due),
            None => self.base.stop_timer(Timer::Moves),
        }
        self.moves = Some(moves);
    }

    /// Begins a handshake with a host that no peer is known of.
    fn ask_for_move(&mut self, now: Time, key: PublicKey, to: SocketAddr) {
        self.binding.flow.path.session.initiate_with_key(now, Knowledge::Known(key), to, key, &mut self.base);
    }
}

impl Moves {
    /// Whether a host may be asked for a session now.
    fn may_ask(&mut self, now: Time, key: &PublicKey) -> bool {
        let (next, tries) = self.asked_at.get(key).copied().unwrap_or_default();
        let may = next <= now;
        if may {
            let pause = (ASKED_AGAIN * 2u32.pow(tries.saturating_sub(4).min(10))).min(ASKED_AGAIN_LONGEST);
            self.asked_at.insert(*key, (now + pause, tries + 1));
        }
        may
    }
}
