//! How often a peer's flows are moved since a network is silent: to leave is immediate, to come back is not.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Time;

/// In so long, hand-offs are counted.
const PERIOD: Duration = Duration::from_secs(60);
/// Of these so many are made at once.
const AT_ONCE: usize = 3;
/// How long a network answers, at the least, before it is come back to; twice as long each time it falls silent again.
const HOLD: Duration = Duration::from_secs(2);
const HOLD_LONGEST: Duration = Duration::from_secs(60);
/// Questions in that time, and how many of them may go unanswered.
const QUESTIONS: u32 = 8;
const MISSED_MOST: u32 = 1;
/// Pauses between questions on a network that does not answer.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_LONGEST: Duration = Duration::from_secs(25);

/// The hand-offs of one peer.
#[derive(Clone, Debug)]
pub(super) struct Damping {
    moved: VecDeque<Time>,
    returned: Option<Time>,
    hold: Duration,
}

impl Damping {
    pub(super) fn new() -> Self {
        Self { moved: VecDeque::new(), returned: None, hold: HOLD }
    }

    fn within_period(&self, now: Time) -> usize {
        self.moved.iter().filter(|at| now.since(**at) < PERIOD).count()
    }

    /// Whether a path that is silent since then may be left. After the first few the silence has to last.
    pub(super) fn may_leave(&self, now: Time, silent_since: Time) -> bool {
        self.within_period(now) < AT_ONCE || now.since(silent_since) >= HOLD
    }

    /// Whether there may be a way back: it must be possible to leave again at once.
    pub(super) fn may_return(&self, now: Time) -> bool {
        self.within_period(now) + 1 < AT_ONCE
    }

    /// A path was left.
    pub(super) fn leave(&mut self, now: Time) {
        let again = self.returned.take().is_some_and(|returned| now.since(returned) < PERIOD);
        self.hold = if again { (self.hold * 2).min(HOLD_LONGEST) } else { HOLD };
        self.record(now);
    }

    /// It was come back to.
    pub(super) fn come_back(&mut self, now: Time) {
        self.returned = Some(now);
        self.record(now);
    }

    fn record(&mut self, now: Time) {
        self.moved.retain(|at| now.since(*at) < PERIOD);
        self.moved.push_back(now);
    }

    /// How long a network has to answer before it is come back to.
    pub(super) const fn hold(&self) -> Duration {
        self.hold
    }
}

/// What is to be done about a network that was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// The peer is to be asked by it.
    Ask,
    /// It has answered long enough.
    Return,
}

/// A network that was left, and is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried {
    next: Time,
    pause: Duration,
    asked: Option<Time>,
    /// Since when it answers, and how many of the questions since then went unanswered.
    fine: Option<(Time, u32)>,
}

impl Tried {
    pub(super) fn new(now: Time) -> Self {
        Self { next: now + PAUSE, pause: PAUSE, asked: None, fine: None }
    }

    /// Whether it answers.
    pub(super) const fn is_fine(&self) -> bool {
        self.fine.is_some()
    }

    pub(super) const fn due(&self) -> Time {
        self.next
    }

    /// `answered`: when something that was sent there was answered last. `answer`: how long an answer takes.
    pub(super) fn poll(&mut self, now: Time, answered: Time, answer: Duration, damping: &Damping) -> Option<Trial> {
        let is_answered = self.asked.is_some_and(|asked| answered >= asked);
        let begins = self.fine.is_none() && is_answered;
        if now < self.next && !begins {
            return None;
        }
        match &mut self.fine {
            None if begins => (self.fine, self.pause) = (Some((now, 0)), PAUSE),
            None => self.pause = (self.pause * 2).min(PAUSE_LONGEST),
            Some((since, missed)) => {
                *missed += u32::from(!is_answered);
                if *missed > MISSED_MOST {
                    self.fine = None;
                } else if is_answered && now.since(*since) >= damping.hold() && damping.may_return(now) {
                    return Some(Trial::Return);
                }
            }
        }
        let pause = if self.fine.is_some() { (damping.hold() / QUESTIONS).max(answer) } else { self.pause };
        (self.asked, self.next) = (Some(now), now + pause);
        Some(Trial::Ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::default() + Duration::from_secs(1000) + Duration::from_millis(ms)
    }

    /// A network that is up or not at each moment, what is moved in `within`, and where flows are in the end. Silence
    /// is noticed after 45 ms; the other network always answers.
    fn moves(within: u64, is_up: impl Fn(u64) -> bool) -> (Vec<u64>, bool) {
        let (mut damping, mut left, mut moved) = (Damping::new(), None::<Tried>, Vec::new());
        let (mut silent, mut answered) = (None::<u64>, Time::default());
        for ms in 0..within {
            let (now, up) = (at(ms), is_up(ms));
            if let Some(tried) = &mut left {
                match tried.poll(now, answered, Duration::from_millis(10), &damping) {
                    Some(Trial::Ask) if up => answered = now,
                    Some(Trial::Return) => {
                        damping.come_back(now);
                        moved.push(ms);
                        (left, silent) = (None, None);
                    }
                    _ => {}
                }
                continue;
            }
            silent = if up { None } else { silent.or(Some(ms)) };
            if silent.is_some_and(|since| ms - since >= 45 && damping.may_leave(now, at(since))) {
                damping.leave(now);
                moved.push(ms);
                left = Some(Tried::new(now));
            }
        }
        (moved, left.is_some())
    }

    #[test]
    fn a_network_that_flaps_costs_three_hand_offs_a_minute() {
        for period in [50, 100, 300, 700, 1500, 2500, 4000, 7000] {
            let (moved, _) = moves(60_000, |ms| ms / period % 2 == 0);
            assert!(moved.len() <= 3, "each {period} ms: {moved:?}");
        }
    }

    #[test]
    fn no_minute_has_more_than_three() {
        // As bad as can be: it answers until it is come back to, and is silent then.
        let minutes = 30;
        let (mut damping, mut now, mut moved) = (Damping::new(), at(0), Vec::new());
        while now < at(minutes * 60_000) {
            damping.leave(now);
            moved.push(now);
            now = now + damping.hold();
            while !damping.may_return(now) {
                now = now + Duration::from_millis(100);
            }
            damping.come_back(now);
            moved.push(now);
            now = now + Duration::from_millis(45);
        }
        for first in &moved {
            let within = moved.iter().filter(|at| **at >= *first && at.since(*first) < PERIOD).count();
            assert!(within <= AT_ONCE, "{within} from {first:?}");
        }
    }

    #[test]
    fn one_that_is_there_again_is_come_back_to_in_two_seconds() {
        let (moved, left) = moves(60_000, |ms| !(1000..5000).contains(&ms));
        assert_eq!((moved.len(), left), (2, false), "{moved:?}");
        assert!(moved[1] - 5000 < 2000 + 4000 + 250, "the pause until it is asked, and the hold: {moved:?}");
        assert!(moved[1] - 5000 >= 2000);
    }

    #[test]
    fn one_that_stays_silent_is_asked_ever_more_rarely() {
        let (mut tried, damping, mut asked) = (Tried::new(at(0)), Damping::new(), 0);
        for ms in (0..600_000).step_by(10) {
            asked += u32::from(tried.poll(at(ms), Time::default(), PAUSE, &damping).is_some());
        }
        assert!((20..=30).contains(&asked), "{asked} in ten minutes");
    }

    #[test]
    fn where_much_flaps_silence_has_to_last() {
        let mut damping = Damping::new();
        for ms in [0, 100, 200] {
            assert!(damping.may_leave(at(ms), at(ms)));
            damping.leave(at(ms));
        }
        assert!(!damping.may_leave(at(300), at(250)));
        assert!(damping.may_leave(at(2300), at(250)), "it is left in the end");
    }
}
