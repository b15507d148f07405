//! Whether somebody is still at the far ends of flows that peers claim late (P-206).

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::bucket::Bucket;
use crate::base::op::PeerId;
use crate::flow::table::YOUNG;

/// How long nothing may come from where the flow came from, once its socket has been asked there, beside two round
/// trips.
const QUIET: Duration = Duration::from_millis(250);
/// A round trip that TCP has not measured yet (RFC 6298 §2.1).
const UNMEASURED: Duration = Duration::from_secs(1);
/// Time between two questions in one flow: claims may come as often as who claims likes.
const ASKED_AGAIN: Duration = Duration::from_millis(200);
/// Flows that are asked in at a time, for one peer and for all.
const ASKED_FOR_ONE: usize = 1024;
const ASKED_MOST: usize = 4096;
/// Questions in a row, and when there is another (P-143).
const QUESTIONS: f64 = 2048.0;
const QUESTIONS_PAUSE: Duration = Duration::from_millis(1);

/// What is known of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// The socket's far end is to be asked, now and again while the claim is made again.
    Ask,
    /// It was asked a moment ago, or has its turn later.
    Awaited,
    /// Nobody is there any more.
    Left,
    /// Somebody is.
    There,
}

/// How far an asking is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The far end was asked.
    First,
    /// Something has come since, which may have been on its way. It is asked once more after a quiet time.
    Waits,
    /// It was. What comes now is an answer.
    Second,
}

/// A flow's former far end is being asked whether it is still there.
#[derive(Clone, Copy, Debug)]
struct Asking {
    /// Who claims the flow; `None`: several, and it is nobody's.
    by: Option<PeerId>,
    step: Step,
    /// What the socket had heard when this step began, and when that was.
    heard: u32,
    since: Time,
    /// When the last question was sent.
    asked: Time,
}

/// The flows that peers claim late, and whose far ends are asked. By the flow alone: neither a fresh nonce nor another
/// key begins anew.
#[derive(Debug)]
pub(super) struct Askings {
    of: BTreeMap<FlowTuple, Asking>,
    questions: Bucket,
}

impl Default for Askings {
    fn default() -> Self {
        Self { of: BTreeMap::new(), questions: Bucket::of(QUESTIONS, QUESTIONS_PAUSE) }
    }
}

impl Askings {
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether a peer claims a flow.
    pub(super) fn has(&self, flow: &FlowTuple, by: PeerId) -> bool {
        self.of.get(flow).is_some_and(|asking| asking.by == Some(by))
    }

    /// Whether another peer claims a flow, or several have.
    pub(super) fn is_anothers(&self, flow: &FlowTuple, by: PeerId) -> bool {
        self.of.get(flow).is_some_and(|asking| asking.by != Some(by))
    }

    /// Whether several peers have claimed a flow.
    pub(super) fn is_contested(&self, flow: &FlowTuple) -> bool {
        self.of.get(flow).is_some_and(|asking| asking.by.is_none())
    }

    /// A flow is nobody's from now on.
    pub(super) fn contest(&mut self, now: Time, flow: FlowTuple) {
        let asking = Asking { by: None, step: Step::First, heard: 0, since: now, asked: now };
        self.of.insert(flow, asking);
    }

    /// Another socket has a flow's names.
    pub(super) fn forget(&mut self, flow: &FlowTuple) {
        self.of.remove(flow);
    }

    /// Forgets what is claimed no more. Tells whether any are left.
    pub(super) fn sweep(&mut self, now: Time) -> bool {
        self.of.retain(|_, asking| asking.since + YOUNG > now);
        !self.of.is_empty()
    }

    /// A peer claims a flow, which nobody else does, whose socket has heard so many segments. `round_trip`: the
    /// socket's, which is that of its far end, and not of the peer, who is elsewhere.
    pub(super) fn ask(&mut self, now: Time, flow: FlowTuple, by: PeerId, heard: u32, round_trip: Duration) -> Late {
        let quiet = QUIET + 2 * if round_trip.is_zero() { UNMEASURED } else { round_trip };
        let Some(asking) = self.of.get_mut(&flow) else {
            let its = || self.of.values().filter(|asking| asking.by == Some(by)).count();
            let many = self.of.len();
            if many >= ASKED_MOST || many >= ASKED_FOR_ONE && its() >= ASKED_FOR_ONE || !self.questions.take(now) {
                return Late::Awaited;
            }
            self.of.insert(flow, Asking { by: Some(by), step: Step::First, heard, since: now, asked: now });
            return Late::Ask;
        };
        let (has_heard, is_quiet) = (asking.heard != heard, asking.since + quiet <= now);
        let again = asking.asked + ASKED_AGAIN <= now;
        match asking.step {
            Step::Second if has_heard => {
                self.of.remove(&flow);
                Late::There
            }
            Step::First | Step::Waits if has_heard => {
                (asking.step, asking.heard, asking.since) = (Step::Waits, heard, now);
                Late::Awaited
            }
            Step::Waits if is_quiet && self.questions.take(now) => {
                (asking.step, asking.since, asking.asked) = (Step::Second, now, now);
                Late::Ask
            }
            Step::First | Step::Second if is_quiet => {
                self.of.remove(&flow);
                Late::Left
            }
            Step::First | Step::Second if again && self.questions.take(now) => {
                asking.asked = now;
                Late::Ask
            }
            _ => Late::Awaited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(40);

    fn flow(port: u16) -> FlowTuple {
        let (local, remote) = (([192, 0, 2, 1], 80).into(), ([198, 51, 100, 1], port).into());
        FlowTuple { transport: whimbrel_wire::Transport::Tcp, local, remote }
    }

    /// What comes of claims at these milliseconds, by a peer, of a socket that has heard so much.
    fn asked(askings: &mut Askings, claims: &[(u64, u32)]) -> Vec<Late> {
        let at = |millis| Time::default() + Duration::from_millis(millis);
        claims.iter().map(|(millis, heard)| askings.ask(at(*millis), flow(1), PeerId(1), *heard, ROUND_TRIP)).collect()
    }

    #[test]
    fn one_pair_of_questions_each_200_ms_however_often_it_is_claimed() {
        let mut askings = Askings::default();
        let claims: Vec<(u64, u32)> = (0..33).map(|step| (10 * step, 5)).collect();
        let told = asked(&mut askings, &claims);
        assert_eq!(told.iter().filter(|late| **late == Late::Ask).count(), 2, "{told:?}");
        assert_eq!(asked(&mut askings, &[(330, 5), (331, 5)]), [Late::Left, Late::Ask], "it begins anew");
    }

    #[test]
    fn what_was_on_its_way_is_no_answer_and_the_second_answer_is_one() {
        let (ask, awaited) = (Late::Ask, Late::Awaited);
        let straggler = [(0, 5), (300, 6), (500, 7), (600, 7), (830, 7), (900, 7), (1160, 7)];
        let told = asked(&mut Askings::default(), &straggler);
        assert_eq!(told, [ask, awaited, awaited, awaited, ask, awaited, Late::Left]);
        let silent = [(0, 5), (300, 6), (630, 6), (930, 7)];
        assert_eq!(asked(&mut Askings::default(), &silent), [ask, awaited, ask, Late::There]);
    }

    #[test]
    fn questions_of_all_together_are_bounded() {
        let (mut askings, now) = (Askings::default(), Time::default() + Duration::from_secs(9));
        let all = (0..4u16).flat_map(|by| (0..1024).map(move |port| (PeerId(by.into()), flow(2000 * by + port))));
        let told: Vec<Late> = all.map(|(by, flow)| askings.ask(now, flow, by, 5, ROUND_TRIP)).collect();
        assert_eq!(told.iter().filter(|late| **late == Late::Ask).count(), 2048);
        let later = now + Duration::from_secs(1);
        assert_eq!(askings.ask(later, flow(9000), PeerId(0), 5, ROUND_TRIP), Late::Awaited, "it has its share");
        assert_eq!(askings.ask(later, flow(9001), PeerId(9), 5, ROUND_TRIP), Late::Ask);
    }
}
