//! What is known of single flows that sections of the user's file mean by more than their peer (P-238).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::id::LinkId;
use crate::base::link_facts::LinkDoubt;
use crate::binding::placed::Placement;
use crate::role::links::damp::Damping;
use crate::role::links::select::Selected;

/// Flows of one peer.
#[derive(Default)]
pub(super) struct Meant {
    /// Those that meet the conditions of a section, whether it counts for them or not.
    pub(super) flows: BTreeSet<FlowTuple>,
    /// Sections that count, or did, by their lines.
    pub(super) sections: BTreeMap<u32, Section>,
    /// Flows that were placed, and where.
    pub(super) placed: BTreeMap<FlowTuple, Placement>,
    /// Where the peer was when flows were sorted by sections last, how many it had, and when that was.
    pub(super) sorted: Option<(IpAddr, usize, Time)>,
    /// Flows are to be placed otherwise than they are.
    pub(super) changed: bool,
    /// Some have no room where they are to go.
    pub(super) lacks_room: bool,
    /// When the paths are asked next.
    pub(super) asks: Option<Time>,
    /// When what they were asked should have been answered, where that decides.
    pub(super) answers: Option<Time>,
    /// When they were asked last, and how often in a row none of them has answered since.
    pub(super) asked: Time,
    pub(super) unanswered: u32,
}

/// For how long nothing must speak against a network until its flows go by it alone again.
pub(super) const DOUBT_LASTS: Duration = Duration::from_secs(5);

/// A network is in doubt that flows go by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// Which.
    pub(super) of: LinkId,
    /// By which they go as well.
    pub(super) beside: LinkId,
    /// Since when.
    pub(super) begun: Time,
    /// When something spoke against it last, and what.
    pub(super) last: Time,
    pub(super) why: LinkDoubt,
    /// That was told.
    pub(super) told: bool,
}

impl Doubt {
    /// When it is over, if nothing more speaks against the network.
    pub(super) fn ends(&self) -> Time {
        self.last + DOUBT_LASTS
    }
}

/// By which network flows go as well in moments of doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplication {
    /// Where the peer answers by one that fits, and knows of that.
    pub second: Option<LinkId>,
    /// They do so now.
    pub doubt: Option<LinkDoubt>,
}

/// What a section comes to with one peer.
pub(super) struct Section {
    /// The flows that it counts for.
    pub(super) flows: BTreeSet<FlowTuple>,
    /// Where they go, if the section says so; else they go with the others.
    pub(super) at: Option<Attachment>,
    /// The network that they go by is in doubt, and they go by another one as well.
    pub(super) doubt: Option<Doubt>,
    /// A question was asked then whose answer was overdue.
    pub(super) overdue: Option<Time>,
    /// When a doubt was told of last.
    pub(super) doubt_told: Option<Time>,
    /// What both come to.
    pub(super) goes: Option<Placement>,
    pub(super) damping: Damping,
    /// Which network is to be taken, since when that is so, and when it is looked again.
    pub(super) waits: Option<(LinkId, Time, Time)>,
    /// So many had no room.
    pub(super) left_out: usize,
    /// When that was told last.
    pub(super) left_out_told: Option<Time>,
    /// Its flows have been nowhere by it yet.
    pub(super) begins: bool,
}

impl Section {
    pub(super) fn new() -> Self {
        Self {
            flows: BTreeSet::new(),
            at: None,
            doubt: None,
            overdue: None,
            doubt_told: None,
            goes: None,
            damping: Damping::new(),
            waits: None,
            left_out: 0,
            left_out_told: None,
            begins: true,
        }
    }
}

impl Meant {
    pub(super) fn due(&self) -> Option<Time> {
        let waits = self.sections.values().filter_map(|section| section.waits).map(|(.., due)| due);
        let with_flows = self.sections.values().filter(|section| !section.flows.is_empty());
        let doubts = with_flows.filter_map(|section| section.doubt).map(|doubt| doubt.ends());
        waits.chain(doubts).chain(self.asks).chain(self.answers).min()
    }

    pub(super) fn entries(&self) -> usize {
        let sections: usize = self.sections.values().map(|section| 1 + section.flows.len()).sum();
        self.flows.len() + self.placed.len() + sections
    }

    pub(super) fn has_flows(&self) -> bool {
        self.sections.values().any(|section| !section.flows.is_empty())
    }
}

/// What a section comes to for single flows of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowsChoice {
    /// The line of the section.
    pub line: u32,
    /// How many flows it means.
    pub flows: usize,
    /// How many of them go by another network than the peer is reached by.
    pub apart: usize,
    /// How many of them have no room on the network that is selected, and so go with the others.
    pub left_out: usize,
    /// By which network they go as well in moments of doubt, where the section wants that.
    pub duplication: Option<Duplication>,
    /// They go to what is selected after so long, if nothing changes until then.
    pub waits: Option<Duration>,
    /// What it selects. Where the routes would decide, these flows go with the others of the peer.
    pub selected: Selected,
}
