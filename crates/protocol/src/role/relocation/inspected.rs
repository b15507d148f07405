//! What tests look at.

use whimbrel_wire::FlowTuple;

use super::*;

impl Relocation {
    /// The flows that are held.
    pub(crate) fn held(&self) -> Vec<FlowName> {
        self.holder.held()
    }

    /// Those of an owner, counted as well, and those that are lent under some names.
    pub(crate) fn held_of(&self, owner: &PublicKey) -> (Vec<FlowName>, usize) {
        self.holder.held_of(owner)
    }

    pub(crate) fn lent_as(&self, far: &FlowTuple) -> Vec<FlowName> {
        self.holder.lent_as(far)
    }

    /// Entries of the tables by which they are found.
    pub(crate) fn indexed(&self) -> [usize; 4] {
        self.holder.indexed()
    }

    /// What is kept of a flow.
    pub(crate) fn kept(&self, flow: FlowName) -> Option<SavedHeld> {
        self.holder.kept(flow)
    }

    /// Moves whose donors have not said that they know.
    pub(crate) fn settling(&self) -> usize {
        self.holder.settling()
    }

    pub(crate) fn handle_unmoved(&mut self, below: &mut Below<'_>, flow: FlowName) {
        self.holder.handle_unmoved(below, flow);
    }

    /// Moves that are under way from here and to here.
    pub(crate) fn under_way(&self) -> (usize, usize) {
        (self.donor.under_way(), self.acceptor.under_way())
    }

    /// Bytes that the snapshots of those may have that are under way to here.
    pub(crate) fn reserved(&self) -> u64 {
        self.acceptor.reserved()
    }

    /// Entries of what goes ahead of processes.
    pub(crate) fn loads(&self) -> usize {
        self.loads.entries()
    }

    pub(crate) fn sign(&mut self, ticket: &mut whimbrel_wire::moving::Ticket, holder: PublicKey) -> bool {
        self.donor.tickets().sign(ticket, holder)
    }

    /// Keys that were computed.
    pub(crate) fn keys(&mut self) -> usize {
        self.donor.tickets().len() + self.holder.tickets().len()
    }
}
