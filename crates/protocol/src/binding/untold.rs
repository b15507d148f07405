//! What a peer is to be told before this host forgets its flows for good.

use std::collections::BTreeMap;

/// What a peer is to be told of flows that this host forgets.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    /// What it has not answered, by the numbers of the words: whether flows are lost, and their names.
    pub(super) untold: BTreeMap<u32, (bool, Vec<u64>)>,
    /// How often that was said.
    pub(super) tries: u32,
    pub(super) standing: Standing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// It need not be told.
    #[default]
    Nothing,
    /// No way leads to it.
    NoWay,
    Told,
}

/// How many peers have flows that this host forgets, as far as they have heard of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastWords {
    /// They have answered.
    pub heard: usize,
    /// They have not, yet.
    pub awaited: usize,
    /// No way leads to them from this host.
    pub unreachable: usize,
}
