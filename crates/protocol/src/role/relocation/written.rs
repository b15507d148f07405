//! What moves write into layers below: which sockets are on their way, and which hosts something depends on.

use std::collections::HashSet;
use std::ops::{Deref, DerefMut};

use whimbrel_wire::FlowTuple;

/// Flows whose sockets are on their way, with what has changed of them since that was last asked.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    flows: HashSet<FlowTuple>,
    changes: Vec<(FlowTuple, bool)>,
}

impl Reserved {
    pub(super) fn contains(&self, flow: &FlowTuple) -> bool {
        self.flows.contains(flow)
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(super) fn insert(&mut self, flow: FlowTuple) {
        if self.flows.insert(flow) {
            self.changes.push((flow, true));
        }
    }

    pub(super) fn remove(&mut self, flow: &FlowTuple) {
        if self.flows.remove(flow) {
            self.changes.push((*flow, false));
        }
    }

    /// Takes what has changed: flows, and whether their sockets are on their way.
    pub(super) fn take_changes(&mut self) -> Vec<(FlowTuple, bool)> {
        std::mem::take(&mut self.changes)
    }
}

/// Something of which is known whether it may have changed since that was last asked.
#[derive(Debug, Default)]
pub(super) struct Watched<T> {
    value: T,
    touched: bool,
}

impl<T> Watched<T> {
    /// Whether it may have changed since that was last asked.
    pub(super) fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }
}

impl<T> Deref for Watched<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.touched = true;
        &mut self.value
    }
}
