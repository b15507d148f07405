//! Flows that get no answer: their peer may be away (`docs/protocol.md` §6, P-45), or their own packets do not pass
//! though those of the control port do (§5, P-49).

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_wire::FlowTuple;

use crate::Time;

/// Flows whose stalls are remembered of one peer, and for how long.
const STALLS: usize = 16;
const STALLS_FOR: Duration = Duration::from_secs(120);
/// Two reports of one stall are at least so far apart.
const STALLS_APART: Duration = Duration::from_secs(1);
/// The path has to answer so soon after a report for that to count: else it may be there again, and the flow with it.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Between two checks of a path for flows that stall.
const CHECKS_APART: Duration = Duration::from_millis(300);

/// Flows of a peer that have stalled of late, by when that was told last.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    flows: BTreeMap<FlowTuple, Time>,
    /// When a check of the path was last answered.
    answered: Option<Time>,
    /// When a flow was found to stand still though the path was answered.
    suspected: Option<Time>,
}

impl Stalls {
    /// A flow stalls. Tells whether it was sent again in vain after the path was answered.
    ///
    /// The kernel tells of the second, fourth, eighth … time that it sends the same, at pauses that double: after a
    /// third of the time between two reports it has been sent once more at the least.
    pub(crate) fn record(&mut self, now: Time, flow: FlowTuple) -> bool {
        self.flows.retain(|_, last| *last + STALLS_FOR > now);
        let room = self.flows.len() < STALLS;
        let Some(last) = self.flows.get_mut(&flow) else {
            if room {
                self.flows.insert(flow, now);
            }
            return false;
        };
        let before = std::mem::replace(last, now);
        let in_vain = before..=before + now.since(before) / 3;
        now >= before + STALLS_APART && self.answered.is_some_and(|answered| in_vain.contains(&answered))
    }

    /// A flow waits, or goes on: what was sent again in vain meanwhile says nothing of the way.
    pub(crate) fn forget(&mut self, flow: &FlowTuple) {
        self.flows.remove(flow);
    }

    /// A check of the path was answered. Tells whether that shows that a flow alone stands still.
    pub(crate) fn on_answer(&mut self, now: Time) -> bool {
        self.answered = Some(now);
        self.suspected.take().is_some_and(|suspected| now <= suspected + ANSWER_WITHIN)
    }

    /// A flow stands still though the path was answered.
    pub(crate) fn suspect(&mut self, now: Time) {
        self.suspected = Some(now);
    }

    /// When the path is to be checked next.
    pub(crate) fn next_check(&self, now: Time) -> Time {
        let last = self.answered.filter(|_| self.suspected.is_none());
        last.map_or(now, |answered| (answered + CHECKS_APART).max(now))
    }

    pub(crate) fn entries(&self) -> usize {
        self.flows.len()
    }
}
