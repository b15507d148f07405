//! What the caller does with sockets that move and endpoints that are lent, passed on to their owners.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::Ends;
use whimbrel_wire::moving::{LoadStanding, MoveName};

use crate::Time;
use crate::base::flow_name::FlowName;
use crate::base::op::relocation::{
    Dependents, Found, Gift, NotGiven, Rented, SavedAcceptance, SavedDonation, SavedHeld, SavedLease, SavedTenancy,
};
use crate::binding::transfer::{Around, Below};
use crate::flow::known::Flow;
use crate::node::Node;
use crate::role::Role;
use crate::role::anchor::Anchor;
use crate::role::relocation::Relocation;

impl Node {
    /// Does something with moves, and what follows from it. `None`: this host takes no part in any.
    pub(super) fn relocate<T>(
        &mut self,
        now: Time,
        act: impl FnOnce(&mut Relocation, &mut Below<'_>) -> T,
    ) -> Option<T> {
        self.act(now, |roles, at| roles.relocation.act(at, act))
    }

    /// The same with leases.
    fn anchor<T>(&mut self, now: Time, act: impl FnOnce(&mut Anchor, &mut Below<'_>) -> T) -> Option<T> {
        self.act(now, |roles, at| roles.anchor.act(at, act))
    }

    /// Begins to give a socket away (`docs/protocol.md` §9). What becomes of it is told by events.
    ///
    /// # Errors
    /// [`NotGiven`]: nothing was done.
    pub fn give_socket(&mut self, now: Time, gift: Gift) -> Result<MoveName, NotGiven> {
        self.give(now, gift, false)
    }

    /// As [`Node::give_socket`], but the others only get ready, which
    /// [`MoveEvent::Prepared`](crate::MoveEvent::Prepared) tells. Nothing happens to the socket before
    /// [`Node::give_prepared`]; where that does not come for half a minute, or the move is [called
    /// off](Node::cancel_move), it stays.
    ///
    /// # Errors
    /// [`NotGiven`]: nothing was done.
    pub fn prepare_socket(&mut self, now: Time, gift: Gift) -> Result<MoveName, NotGiven> {
        self.give(now, gift, true)
    }

    /// A socket that is [prepared](Node::prepare_socket), or about to be, goes. `false`: it is not, or not any more.
    pub fn give_prepared(&mut self, now: Time, name: MoveName) -> bool {
        let own = name.donor == *self.base.public_key().as_bytes();
        own && self.relocate(now, |relocation, below| relocation.go_on(below, name.number)).unwrap_or(false)
    }

    fn give(&mut self, now: Time, gift: Gift, waits: bool) -> Result<MoveName, NotGiven> {
        let number = self.base.random().u64();
        let given = self.relocate(now, |relocation, below| relocation.give(below, number, gift, waits));
        given.unwrap_or(Err(NotGiven::Disabled))
    }

    /// Whoever asked for a move wants it no more. It may be too late for that: an event tells.
    pub fn cancel_move(&mut self, now: Time, name: MoveName) {
        if name.donor == *self.base.public_key().as_bytes() {
            self.relocate(now, |relocation, below| relocation.cancel(below, name.number));
        }
    }

    /// The socket of a move is gone from this host, though nobody was asked to destroy it: its program ended, or who
    /// was to receive it.
    pub fn handle_move_socket_gone(&mut self, now: Time, name: MoveName) {
        self.relocate(now, |relocation, below| relocation.handle_gone(below, name));
    }

    /// Sends what a process needs ahead of its connections, whose host will be `to`. What comes of it is told by
    /// [`LoadAnswered`](crate::MoveEvent::LoadAnswered) under the number that is given back. `None`: this host takes no
    /// part in moves, or may not give that host anything.
    pub fn send_load(&mut self, now: Time, to: PublicKey, bytes: Vec<u8>) -> Option<u64> {
        let number = self.base.random().u64();
        let sent = self.relocate(now, |relocation, below| relocation.send_load(below, number, to, bytes));
        sent.unwrap_or(false).then_some(number)
    }

    /// Tells the donor of a process how it stands here.
    pub fn answer_load(&mut self, now: Time, name: MoveName, standing: LoadStanding, sentence: &str) {
        self.relocate(now, |relocation, below| relocation.answer_load(below, name, standing, sentence));
    }

    /// This host holds the far end of a flow for another host, as an anchor does. To be said again after a restart,
    /// behind [`Node::restore_moves`]: what was moved since is known from there.
    ///
    /// `far` is the flow as its far end has it, which runs nothing.
    pub fn lend_flow(&mut self, flow: FlowName, far: FlowTuple) {
        if self.binding.permits().is_some() {
            self.roles.relocation.holder_mut().lend(flow, far);
        }
    }

    /// A flow that this host holds for others is over at its far end, or its lease has run out.
    pub fn end_held_flow(&mut self, now: Time, flow: FlowName) {
        self.relocate(now, |relocation, below| relocation.holder_mut().end_flow(below, flow));
    }

    /// Takes over what a daemon before this one left in the middle of. To be called once, behind [`Node::restore`] and
    /// with the network told: what was not decided is asked for.
    pub fn restore_moves(
        &mut self,
        now: Time,
        donations: &[(SavedDonation, Found)],
        acceptances: &[(SavedAcceptance, Found)],
        held: &[SavedHeld],
    ) {
        self.relocate(now, |relocation, below| relocation.restore(below, donations, acceptances, held));
    }

    /// Takes over leases of a daemon before this one. To be called once, behind [`Node::restore_moves`].
    pub fn restore_leases(&mut self, now: Time, lent: &[SavedLease], rented: &[SavedTenancy]) {
        // What went with a socket is led there already, as all that has moved.
        let relocation = &self.roles.relocation;
        let is_moved = |saved: &&SavedLease| relocation.holder().moved_endpoint(&saved.name.flow()).is_some();
        let lent: Vec<SavedLease> = lent.iter().filter(|saved| !is_moved(saved)).copied().collect();
        self.anchor(now, |anchor, below| anchor.restore(below, &lent, rented));
    }

    /// Asks an anchor for endpoints: [`Leased`](crate::MoveEvent::Leased) or [`NotLeased`](crate::MoveEvent::NotLeased)
    /// tell what comes of it, under the name that is given. `anchor_at`: where it is, if no peer has this key yet.
    /// Endpoints that are not definite are the anchor's to choose.
    pub fn lease(
        &mut self,
        now: Time,
        anchor: PublicKey,
        anchor_at: Option<SocketAddr>,
        ends: Ends,
    ) -> Option<FlowName> {
        let number = self.base.random().u64();
        self.anchor(now, |role, below| role.tenant_mut().rent(below, number, anchor, anchor_at, ends))?;
        Some(FlowName::new(anchor, number))
    }

    /// The endpoints of a lease are not needed any more.
    pub fn return_lease(&mut self, now: Time, lease: FlowName) {
        self.anchor(now, |anchor, below| anchor.tenant_mut().give_up_lease(below, lease));
    }

    /// Has a connection of a leased endpoint be a flow of this host and its anchor:
    /// [`Claimed`](crate::MoveEvent::Claimed) tells what comes of it. `hidden`: the far end is not to learn where this
    /// host is (P-87). `false`: its local end is not leased.
    pub fn claim_flow(&mut self, now: Time, tuple: FlowTuple, hidden: bool) -> bool {
        let flow = self.base.random().u64();
        self.anchor(now, |anchor, below| anchor.tenant_mut().claim(below, flow, tuple, hidden)).unwrap_or(false)
    }

    /// The anchor that lends an endpoint to this host.
    #[must_use]
    pub fn lessor_of(&self, end: SocketAddr) -> Option<PublicKey> {
        self.roles.anchor.tenant().lessor_of(end)
    }

    /// Lends nothing new from now on, or does again. What is lent stays so until its end.
    pub fn stop_lending(&mut self, stopping: bool) {
        self.roles.anchor.lessor_mut().stop_lending(stopping);
    }

    /// These are all addresses of endpoints that this host lends at which it is not reached any more, since it does not
    /// have them: their tenants are told.
    pub fn on_unreached(&mut self, now: Time, addresses: BTreeSet<IpAddr>) {
        self.anchor(now, |anchor, below| anchor.lessor_mut().on_unreached(below, addresses));
    }

    /// What this host lends to whom, and the flows that it passes on for others, as their far ends have them, by who
    /// has the sockets.
    #[must_use]
    pub fn dependents(&self) -> Dependents {
        let passed_on = self.roles.relocation.holder().passed_on(self.base.public_key()).collect();
        Dependents { lent: self.roles.anchor.lessor().lent().collect(), passed_on }
    }

    /// The endpoints of others that this host has.
    pub fn rented(&self) -> impl Iterator<Item = Rented> {
        self.roles.anchor.tenant().rented()
    }

    /// Entries of all tables of moves together, with one for each flow that is held for others.
    #[must_use]
    pub fn move_entries(&self) -> usize {
        self.roles.relocation.entries() + self.roles.anchor.entries() + self.binding.transfer_entries()
    }

    /// Who holds the far end of a connection of this host's, with what the two call it, and where that is: the peer
    /// that it is one with; else this host itself, which lends its address, under a name that is drawn now.
    pub fn holder_of(&mut self, flow: &FlowTuple) -> (FlowName, Option<SocketAddr>) {
        let own = FlowName::new(self.base.public_key(), self.base.random().u64());
        if flow.is_unconnected() {
            let came = |rented: &Rented| rented.moved == Some(flow.transport) && rented.ends.contain(flow.local);
            let lease = self.rented().find(came);
            return match lease {
                Some(Rented { number, anchor, .. }) => {
                    (FlowName::new(anchor, number), self.binding.whereabouts(&anchor))
                }
                None => (own, None),
            };
        }
        let entry = self.binding.flow().flows().get(flow).filter(|known| !known.is_closed()).and_then(Flow::entry);
        let peer = entry.and_then(|entry| Some((entry, self.binding.flow().peer(&entry.peer)?)));
        match peer {
            Some((entry, peer)) => (FlowName::new(peer.key(), entry.name), Some(peer.path.remote())),
            None => (own, None),
        }
    }

    /// Whether a connection of this host's may be given to another.
    #[must_use]
    pub fn may_give(&self, now: Time, to: &PublicKey, flow: &FlowTuple) -> bool {
        self.binding.permits().is_some_and(|permits| permits.may_give(now, to, flow))
    }
}
