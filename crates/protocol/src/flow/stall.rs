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
/// So many checks in a row are answered by a path that works, where a flow of it does not. One that answers a share `a`
/// leaves a packet unanswered that is sent five times, and answers all of these, in `(1 - a)^5 a^16` of all cases: at
/// most once in 100,000.
const ANSWERS: u32 = 16;
/// How often such a row is begun anew where a check is lost, as now and then one is.
const ROWS: u32 = 3;

/// Flows of a peer that have stalled of late, by when that was told last.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    flows: BTreeMap<FlowTuple, Stall>,
    /// When a check of the path was last answered.
    answered: Option<Time>,
    /// A flow was found to stand still though the path was answered.
    suspicion: Option<Suspicion>,
}

/// The same was sent again so often, when that was told last.
#[derive(Debug)]
struct Stall {
    told: Time,
    attempts: u32,
}

/// Whether a path answers, of which a flow stands still.
#[derive(Debug)]
struct Suspicion {
    /// When it arose, or a check was last answered.
    since: Time,
    /// Checks that were answered in a row.
    answers: u32,
    /// How many such rows were begun.
    rows: u32,
}

/// What the answer to a check shows of flows that stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Nothing,
    /// One may stand still though the path works: another check tells more.
    Suspicion,
    /// One stands still by itself.
    Standstill,
}

impl Stalls {
    /// A flow stalls. Tells whether it was sent again in vain after the path was answered.
    ///
    /// The kernel tells of the second, fourth, eighth … time that it sends the same, at pauses that double: after a
    /// third of the time between two reports it has been sent once more at the least. Where it is told of no more
    /// attempts than before, that of before has arrived, and this is something else.
    pub(crate) fn record(&mut self, now: Time, flow: FlowTuple, attempts: u32) -> bool {
        self.flows.retain(|_, stall| stall.told + STALLS_FOR > now);
        let room = self.flows.len() < STALLS;
        let Some(stall) = self.flows.get_mut(&flow) else {
            if room {
                self.flows.insert(flow, Stall { told: now, attempts });
            }
            return false;
        };
        let Stall { told: before, attempts: fewer } = std::mem::replace(stall, Stall { told: now, attempts });
        let in_vain = before..=before + now.since(before) / 3;
        let is_same = attempts > fewer && now >= before + STALLS_APART;
        is_same && self.answered.is_some_and(|answered| in_vain.contains(&answered))
    }

    /// A flow waits, or goes on: what was sent again in vain meanwhile says nothing of the way.
    pub(crate) fn forget(&mut self, flow: &FlowTuple) {
        self.flows.remove(flow);
    }

    /// A check of the path was answered.
    pub(crate) fn on_answer(&mut self, now: Time) -> Shown {
        self.answered = Some(now);
        let Some(mut suspicion) = self.suspicion.take() else { return Shown::Nothing };
        if now > suspicion.since + ANSWER_WITHIN {
            return Shown::Nothing;
        }
        suspicion.answers += 1;
        if suspicion.answers >= ANSWERS {
            return Shown::Standstill;
        }
        suspicion.since = now;
        self.suspicion = Some(suspicion);
        Shown::Suspicion
    }

    /// A check of the path was not answered in time, and is repeated. A path that loses what is asked on it may lose
    /// what flows send as well.
    pub(crate) fn on_missed(&mut self) {
        self.suspicion.take_if(|suspicion| suspicion.rows >= ROWS);
        if let Some(suspicion) = &mut self.suspicion {
            (suspicion.answers, suspicion.rows) = (0, suspicion.rows + 1);
        }
    }

    /// A flow stands still though the path was answered.
    pub(crate) fn suspect(&mut self, now: Time) {
        self.suspicion = Some(Suspicion { since: now, answers: 0, rows: 1 });
    }

    /// When the path is to be checked next.
    pub(crate) fn next_check(&self, now: Time) -> Time {
        let last = self.answered.filter(|_| self.suspicion.is_none());
        last.map_or(now, |answered| (answered + CHECKS_APART).max(now))
    }

    pub(crate) fn entries(&self) -> usize {
        self.flows.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use whimbrel_wire::Transport;

    use super::*;

    const STEP: Duration = Duration::from_millis(20);

    fn flow() -> FlowTuple {
        let [local, remote] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|address| SocketAddr::from((address, 80)));
        FlowTuple { transport: Transport::Tcp, local, remote }
    }

    /// Stalls of a flow that was sent again so often when it was told first and then, with an answer between.
    fn told(first: u32, then: u32) -> (Stalls, Time, bool) {
        let (mut stalls, now) = (Stalls::default(), Time::default() + Duration::from_secs(9));
        assert!(!stalls.record(now, flow(), first));
        assert_eq!(stalls.on_answer(now + STEP), Shown::Nothing);
        let later = now + Duration::from_secs(3);
        let in_vain = stalls.record(later, flow(), then);
        (stalls, later, in_vain)
    }

    /// So many checks in a row are answered: what the last one shows.
    fn answered(stalls: &mut Stalls, now: &mut Time, checks: u32) -> Shown {
        for _ in 1..checks {
            *now = *now + STEP;
            assert_eq!(stalls.on_answer(*now), Shown::Suspicion);
        }
        *now = *now + STEP;
        stalls.on_answer(*now)
    }

    #[test]
    fn what_is_told_of_something_else_is_not_the_same_sent_again() {
        assert!(told(2, 4).2 && told(1, 2).2);
        assert!(!told(2, 2).2 && !told(4, 2).2);
    }

    #[test]
    fn a_row_of_answers_shows_it_and_a_check_that_is_lost_begins_it_anew() {
        for lost in 0..=ROWS {
            let (mut stalls, mut now, _) = told(2, 4);
            stalls.suspect(now);
            for _ in 0..lost {
                assert_eq!(answered(&mut stalls, &mut now, ANSWERS - 1), Shown::Suspicion);
                stalls.on_missed();
                if lost == ROWS && stalls.suspicion.is_none() {
                    break;
                }
            }
            let (shows, checks) = if lost < ROWS { (Shown::Standstill, ANSWERS) } else { (Shown::Nothing, 1) };
            assert_eq!(answered(&mut stalls, &mut now, checks), shows, "{lost} lost");
            assert_eq!(stalls.on_answer(now), Shown::Nothing, "once");
        }
    }

    #[test]
    fn a_path_that_answers_late_may_only_now_be_there_again() {
        let (mut stalls, mut now, _) = told(2, 4);
        stalls.suspect(now);
        assert_eq!(answered(&mut stalls, &mut now, 3), Shown::Suspicion);
        assert_eq!(stalls.on_answer(now + ANSWER_WITHIN + STEP), Shown::Nothing);
        assert_eq!(stalls.on_answer(now + ANSWER_WITHIN + STEP), Shown::Nothing);
    }
}
