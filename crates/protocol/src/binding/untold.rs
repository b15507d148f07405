//! What a peer is to be told before this host forgets its flows for good.

use std::collections::BTreeMap;

use whimbrel_wire::message::Message;

/// What a peer is to be told of flows that this host forgets.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    /// What it has not answered, by the numbers of the words: whether flows are lost, and their names.
    pub(super) untold: BTreeMap<u32, (bool, Vec<u64>)>,
    /// How often that was said.
    pub(super) tries: u32,
    pub(super) standing: Standing,
    /// How often it was said where an update came from.
    elsewhere: u8,
}

/// So often it is said to where an update comes from, which nothing has proven.
const ELSEWHERE_MOST: u8 = 4;

impl Forgotten {
    pub(super) fn new(untold: BTreeMap<u32, (bool, Vec<u64>)>, standing: Standing) -> Self {
        Self { untold, standing, ..Self::default() }
    }

    /// Whether this host forgets flows of the peer.
    pub(super) fn is_meant(&self) -> bool {
        self.standing != Standing::Nothing
    }

    /// What it has not answered.
    pub(super) fn words(&self) -> impl Iterator<Item = Message> + '_ {
        self.untold.iter().map(|(number, (lost, names))| Message::Forgotten {
            number: *number,
            lost: *lost,
            names: names.clone(),
        })
    }

    /// The first of these, to be said to where an update comes from, unless that was done often enough.
    pub(super) fn take_for_elsewhere(&mut self) -> Option<Message> {
        let word = self.words().next().filter(|_| self.elsewhere < ELSEWHERE_MOST)?;
        self.elsewhere += 1;
        Some(word)
    }
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
