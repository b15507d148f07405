//! What is due when, of one kind of things.

use std::collections::BTreeSet;

use crate::Time;

/// Deadlines of things that may have several each.
#[derive(Debug)]
pub(crate) struct Deadlines<T>(BTreeSet<(Time, T)>);

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: Copy + Ord> Deadlines<T> {
    pub(crate) fn add(&mut self, when: Time, what: T) {
        self.0.insert((when, what));
    }

    pub(crate) fn remove(&mut self, when: Time, what: T) {
        self.0.remove(&(when, what));
    }

    /// The next that is due by now, which is forgotten.
    pub(crate) fn pop(&mut self, now: Time) -> Option<T> {
        let first = self.0.first().filter(|(when, _)| *when <= now).copied()?;
        self.0.remove(&first);
        Some(first.1)
    }

    /// When the next one is.
    pub(crate) fn next(&self) -> Option<Time> {
        self.0.first().map(|(when, _)| *when)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
