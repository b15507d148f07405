//! In which order a daemon sees to what its node gives out.

use whimbrel_protocol::{Node, Output};

/// Each is one that the node allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// One after the other, with what comes of each.
    OneByOne,
    /// All that there is, of which the events last, before what comes of it: so does the daemon.
    Together,
}

impl Drain {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::OneByOne, Self::Together];

    /// One of them, by lot.
    pub(crate) fn drawn(seed: u64) -> Self {
        if seed.is_multiple_of(2) { Self::OneByOne } else { Self::Together }
    }

    /// What is to be seen to next, in this order.
    pub(crate) fn poll(self, node: &mut Node) -> Vec<Output> {
        match self {
            Self::OneByOne => node.poll().into_iter().collect(),
            Self::Together => {
                let mut outputs: Vec<Output> = std::iter::from_fn(|| node.poll()).collect();
                outputs.sort_by_key(|output| matches!(output, Output::Event(_)));
                outputs
            }
        }
    }
}
