//! The flows whose far ends a host holds, by what they are called, by who has their sockets, and by what was lent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::MoveName;

use super::Held;
use crate::base::flow_name::FlowName;

/// All of them. Others say which of them are looked for, so none is found by looking through all.
#[derive(Debug, Default)]
pub(super) struct Table {
    all: BTreeMap<FlowName, Held>,
    of_owners: BTreeMap<PublicKey, BTreeSet<FlowName>>,
    /// As the far ends of those have them that are lent.
    lent: HashMap<FlowTuple, BTreeSet<FlowName>>,
    /// Those whose announced moves belong to others (P-130), by these, and the same the other way about.
    along: BTreeMap<MoveName, BTreeSet<FlowName>>,
    belongs: HashMap<FlowName, MoveName>,
}

impl Deref for Table {
    type Target = BTreeMap<FlowName, Held>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Table {
    pub(super) fn get_mut(&mut self, flow: &FlowName) -> Option<&mut Held> {
        self.all.get_mut(flow)
    }

    pub(super) fn insert(&mut self, flow: FlowName, held: Held) {
        self.remove(&flow);
        self.of_owners.entry(flow.peer()).or_default().insert(flow);
        if let Some(far) = held.lent {
            self.lent.entry(far).or_default().insert(flow);
        }
        self.all.insert(flow, held);
    }

    pub(super) fn remove(&mut self, flow: &FlowName) -> Option<Held> {
        let held = self.all.remove(flow)?;
        if let Some(of_owner) = self.of_owners.get_mut(&flow.peer()) {
            of_owner.remove(flow);
            if of_owner.is_empty() {
                self.of_owners.remove(&flow.peer());
            }
        }
        self.forget_lent(flow, held.lent);
        self.leave_behind(flow);
        Some(held)
    }

    /// The far end of a flow is another host's, which runs nothing, and leads to this one; or it is this host's own.
    pub(super) fn set_lent(&mut self, flow: &FlowName, far: Option<FlowTuple>) {
        let Some(held) = self.all.get_mut(flow) else { return };
        let before = std::mem::replace(&mut held.lent, far);
        self.forget_lent(flow, before);
        if let Some(far) = far {
            self.lent.entry(far).or_default().insert(*flow);
        }
    }

    fn forget_lent(&mut self, flow: &FlowName, far: Option<FlowTuple>) {
        let Some(far) = far else { return };
        if let Some(of_far) = self.lent.get_mut(&far) {
            of_far.remove(flow);
            if of_far.is_empty() {
                self.lent.remove(&far);
            }
        }
    }

    /// Those whose sockets a host has.
    pub(super) fn of(&self, owner: &PublicKey) -> impl Iterator<Item = (&FlowName, &Held)> {
        self.found(self.of_owners.get(owner))
    }

    /// How many these are.
    pub(super) fn count_of(&self, owner: &PublicKey) -> usize {
        self.of_owners.get(owner).map_or(0, BTreeSet::len)
    }

    /// Those that are lent, and called so by their far ends.
    pub(super) fn with_far(&self, far: &FlowTuple) -> impl Iterator<Item = (&FlowName, &Held)> {
        self.found(self.lent.get(far))
    }

    fn found<'a>(&'a self, flows: Option<&'a BTreeSet<FlowName>>) -> impl Iterator<Item = (&'a FlowName, &'a Held)> {
        flows.into_iter().flatten().filter_map(|flow| self.all.get_key_value(flow))
    }

    /// The announced move of a flow belongs to another move.
    pub(super) fn belong(&mut self, flow: FlowName, first: MoveName) {
        self.leave_behind(&flow);
        self.belongs.insert(flow, first);
        self.along.entry(first).or_default().insert(flow);
    }

    /// It belongs to none any more.
    pub(super) fn leave_behind(&mut self, flow: &FlowName) {
        let Some(first) = self.belongs.remove(flow) else { return };
        if let Some(along) = self.along.get_mut(&first) {
            along.remove(flow);
            if along.is_empty() {
                self.along.remove(&first);
            }
        }
    }

    /// The flows whose announced moves may belong to a move.
    pub(super) fn along(&self, first: &MoveName) -> Vec<FlowName> {
        self.along.get(first).into_iter().flatten().copied().collect()
    }

    /// Entries of its tables beside that of the flows themselves.
    #[cfg(test)]
    pub(super) fn indexed(&self) -> [usize; 4] {
        [self.of_owners.len(), self.lent.len(), self.along.len(), self.belongs.len()]
    }
}
