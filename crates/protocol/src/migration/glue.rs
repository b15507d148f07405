//! What the node has to do with moves: sessions that carry their words, timers, and what the caller is asked.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::{Contact as Knowledge, PublicKey};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::Message;

use super::{
    Around, At, Found, Gift, MoveDone, MoveEvent, MoveFailed, MoveName, MoveOp, MoveOpId, Moves, NotGiven,
    SavedAcceptance, SavedDonation, SavedHeld,
};
use crate::Time;
use crate::node::Node;
use crate::op::PeerId;
use crate::timer::Timer;

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

    fn flow(&self, with: &PublicKey, name: u64) -> Option<FlowTuple> {
        self.node.peer_of(with)?.named.get(&name).copied()
    }

    fn wire_port(&self, with: &PublicKey, flow: &FlowTuple) -> u16 {
        let own = flow.local.port();
        let drawn = &self.node.config.drawn_ports;
        self.node.peer_of(with).map_or(own, |peer| peer.free_wire_port(own, flow.remote.port(), drawn))
    }

    fn whereabouts(&self, of: &PublicKey) -> Option<SocketAddr> {
        self.node.peer_of(of).map(|peer| peer.remote)
    }
}

impl Node {
    pub(super) fn peer_of(&self, key: &PublicKey) -> Option<&crate::peer::Peer> {
        self.by_key.get(key).and_then(|id| self.peers.get(id))
    }

    /// Does something with the moves, and what follows from it.
    pub(super) fn with_moves<T>(&mut self, now: Time, act: impl FnOnce(&mut Moves, At<'_>) -> T) -> Option<T> {
        let mut moves = self.moves.take()?;
        let done = act(&mut moves, At { now, around: &Others { node: self } });
        self.change_flows(now, &mut moves);
        self.moves = Some(moves);
        self.wake_rebound(now);
        self.carry_moves(now);
        Some(done)
    }

    /// Begins to give a socket away (`docs/protocol.md` §9). What becomes of it is told by events.
    ///
    /// # Errors
    /// [`NotGiven`]: nothing was done.
    pub fn give_socket(&mut self, now: Time, gift: Gift) -> Result<MoveName, NotGiven> {
        let number = self.random.u64();
        self.with_moves(now, |moves, at| moves.give(at, number, gift)).unwrap_or(Err(NotGiven::Disabled))
    }

    /// Whoever asked for a move wants it no more. It may be too late for that: an event tells.
    pub fn cancel_move(&mut self, now: Time, name: MoveName) {
        if name.donor == *self.key.public().as_bytes() {
            self.with_moves(now, |moves, at| moves.cancel(at, name.number));
        }
    }

    /// The socket of a move is gone from this host, though nobody was asked to destroy it: its program ended, or who was to receive
    /// it.
    pub fn handle_move_socket_gone(&mut self, now: Time, name: MoveName) {
        let given = name.donor == *self.key.public().as_bytes();
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
    pub fn lend_flow(&mut self, flow: u64, far: FlowTuple, owner: PublicKey) {
        if let Some(moves) = &mut self.moves {
            moves.lend(flow, far, owner);
        }
    }

    /// A flow that this host holds for others is over at its far end, or its lease has run out.
    pub fn end_held_flow(&mut self, now: Time, flow: u64) {
        self.with_moves(now, |moves, _| moves.end_flow(flow));
    }

    /// Whether a flow's socket is on its way, from here or to here.
    pub(crate) fn is_moving(&self, flow: &FlowTuple) -> bool {
        self.moves.as_ref().is_some_and(|moves| moves.moving.contains(flow))
    }

    /// This end's socket of an introduced flow is gone: whoever has the other end, it moves no more.
    pub(crate) fn end_moved_flow(&mut self, name: u64) {
        if let Some(moves) = &mut self.moves {
            moves.end_flow(name);
        }
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
            donations.iter().for_each(|(saved, found)| moves.restore_donation(at, saved, *found));
            acceptances.iter().for_each(|(saved, found)| moves.restore_acceptance(at, saved, *found));
            moves.hear_own(at);
        });
    }

    /// The result of an op of a move.
    pub fn handle_move_done(&mut self, now: Time, id: MoveOpId, result: Result<MoveDone, MoveFailed>) {
        self.with_moves(now, |moves, at| moves.handle_done(at, id, result));
    }

    /// Takes the next effect of a move to carry out; each is answered by [`Node::handle_move_done`].
    pub fn poll_move_op(&mut self) -> Option<(MoveOpId, MoveOp)> {
        self.moves.as_mut()?.poll_op()
    }

    /// Entries of all tables of moves together, with one for each flow that is held for others.
    #[must_use]
    pub fn move_entries(&self) -> usize {
        self.moves.as_ref().map_or(0, |moves| moves.entries())
    }

    /// Takes the next event of a move.
    pub fn poll_move_event(&mut self) -> Option<MoveEvent> {
        self.moves.as_mut()?.poll_event()
    }

    /// A peer says something about moves.
    pub(crate) fn handle_move_message(&mut self, now: Time, id: PeerId, message: Message) {
        let Some(key) = self.peers.get(&id).map(|peer| peer.key) else { return };
        self.with_moves(now, |moves, at| match message {
            Message::Stream(stretch) => moves.handle_stretch(at, key, stretch),
            Message::Received(received) => moves.handle_received(at, key, &received),
            _ => {}
        });
    }

    /// There is a new session with a peer.
    pub(crate) fn note_move_session(&mut self, now: Time, id: PeerId) {
        let Some(key) = self.peers.get(&id).map(|peer| peer.key) else { return };
        self.with_moves(now, |moves, at| moves.handle_session(at, key));
    }

    /// Something is due.
    pub(crate) fn continue_moves(&mut self, now: Time) {
        self.with_moves(now, Moves::handle_timeout);
    }

    /// Whether a move depends on a peer.
    pub(crate) fn moves_with(&self, id: PeerId) -> bool {
        let key = self.peers.get(&id).map(|peer| peer.key);
        self.moves.as_ref().zip(key).is_some_and(|(moves, key)| moves.lanes.wants(&key))
    }

    /// Sends what may be sent now, and sees that there are sessions where they are needed.
    fn carry_moves(&mut self, now: Time) {
        let Some(mut moves) = self.moves.take() else { return };
        for key in moves.lanes.keys() {
            let peer = self.by_key.get(&key).and_then(|id| self.peers.get(id));
            match peer.map(|peer| (peer.id, peer.has_session(), peer.check_tries)) {
                Some((id, true, checks)) => {
                    while let Some(message) = moves.poll_message(now, &key) {
                        self.send(id, &[message]);
                    }
                    let checked = checks > 0 && self.timers.is_set(Timer::Keepalive(id));
                    if moves.lanes.doubts(&key) && !checked {
                        // It may have started anew, or be elsewhere. What the check finds out goes on by itself.
                        self.timers.set_earlier(Timer::Keepalive(id), now);
                    }
                }
                Some((id, false, _)) if moves.lanes.wants(&key) => self.reach_again(now, id),
                None if moves.lanes.wants(&key) && moves.may_ask(now, &key) => {
                    if let Some(to) = moves.hints.get(&key).copied() {
                        self.ask_for_move(now, key, to);
                    }
                }
                Some(_) | None => {}
            }
        }
        let due = moves.deadline(At { now, around: &Others { node: self } });
        match due {
            Some(due) => self.timers.set(Timer::Moves, due),
            None => self.timers.stop(Timer::Moves),
        }
        self.moves = Some(moves);
    }

    /// Begins a handshake with a host that no peer is known of.
    fn ask_for_move(&mut self, now: Time, key: PublicKey, to: SocketAddr) {
        self.initiate_with_key(now, Knowledge::Known(key), to, key);
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
