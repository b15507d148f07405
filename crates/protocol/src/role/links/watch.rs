//! Whether a path is silent: when the peer is asked on it, and when that was often enough (decision 0106). Nothing here
//! knows of messages: facts come in with the time at which they happened, and verdicts go out.

use std::time::Duration;

use crate::Time;
use crate::base::config::SilenceThresholds;
use crate::path::estimate::Pace;

/// How much later than it wanted it may be woken, at the least, until that counts: answers may wait unread then.
const LATE: Duration = Duration::from_millis(10);
/// What is seen to in one go may be told in another order than it has happened. A clock that goes back by more than
/// this has been set.
const BACK: Duration = Duration::from_secs(1);
/// How often a doubt begins anew since it was woken late. After that lateness only puts it off.
const ANEW_MOST: u8 = 3;
/// For how long what anybody may have sent counts as a sign of life, since something authentic has come, and since a
/// doubt began (P-261).
const TRUSTED: Duration = Duration::from_millis(500);
/// The longest pause between questions on a path that is silent and has nothing to take its place.
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is to be seen whether anything has come by this path, whoever sent it.
    Look,
    /// The peer is to be asked on this path.
    Ask,
    /// The same, and on all others: an answer is overdue.
    AskAll,
    /// Nothing comes by this path any more, since so long.
    Silent(Duration),
}

/// Where it can be told whether anything has come by a path, whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Never,
    /// Before it counts as silent.
    Doubted,
    /// Before it is asked, too.
    Always,
}

/// How a path stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is waited for, and nothing is asked.
    Quiet,
    /// It is asked when nothing was heard for a while.
    Good { heard: Time, looked: Looked },
    /// It is asked, since `begun`, and has not answered.
    Doubt {
        /// Since when nothing was heard, as far as that says something.
        since: Time,
        begun: Time,
        asked: u32,
        anew: u8,
        looked: Looked,
        next: Time,
    },
    /// As many questions went unanswered as no chance takes.
    Silent { since: Time, begun: Time, pause: Duration, next: Time },
}

/// Whether it was seen what came since then that the peer may not have said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    NotYet,
    UnderWay,
    Nothing,
}

/// One path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    state: State,
    /// When it was looked at last.
    seen: Time,
    /// When something authentic came last.
    authentic: Time,
    /// It was woken late, so that what is known of questions under way is worth nothing.
    late: bool,
}

impl Watch {
    /// A path that is in use from now on.
    pub(super) fn new(now: Time, vigilant: bool) -> Self {
        Self { state: State::at_rest(now, vigilant), seen: now, authentic: Time::default(), late: false }
    }

    /// Something that is usually answered was not, since then: it is asked, and no sooner than at that moment.
    pub(super) fn suspect(&mut self, now: Time, since: Time, at: Time) {
        if matches!(self.state, State::Quiet | State::Good { .. }) {
            self.state =
                State::Doubt { since, begun: now, asked: 0, anew: 0, looked: Looked::NotYet, next: at.max(now) };
        }
    }

    /// Something came by it last at that time, as far as anybody can tell who does not ask. It puts a question off for
    /// a while, and the end of a doubt: where a queue fills, answers are late, and all else comes.
    pub(super) fn notice(&mut self, at: Time, thresholds: &SilenceThresholds) {
        let seen = self.seen;
        match &mut self.state {
            State::Good { heard, looked } => {
                let at = at.min(self.authentic + TRUSTED);
                (*heard, *looked) = if at > *heard { (at, Looked::NotYet) } else { (*heard, Looked::Nothing) };
            }
            State::Doubt { begun, asked, looked: looked @ Looked::UnderWay, next, .. } => {
                let until = (at + thresholds.second).min(*begun + TRUSTED);
                (*looked, *next) = if at > *begun && until > seen {
                    // One more, should the others be lost.
                    *asked = asked.saturating_sub(1);
                    (Looked::NotYet, until)
                } else {
                    (Looked::Nothing, seen)
                };
            }
            State::Quiet | State::Doubt { .. } | State::Silent { .. } => {}
        }
    }

    /// When [`Watch::poll`] has something to say.
    pub(super) fn due(&self, thresholds: &SilenceThresholds, pace: &Pace) -> Option<Time> {
        match self.state {
            State::Quiet => None,
            State::Good { heard, looked } => {
                let due = heard + thresholds.first.max(pace.answer);
                // What was looked for is known in a moment.
                Some(if looked == Looked::UnderWay { due + LATE } else { due })
            }
            State::Doubt { next, .. } | State::Silent { next, .. } => Some(next),
        }
    }

    /// Since when other paths must have answered, where this one is silent.
    pub(super) fn silent_since(&self) -> Option<Time> {
        match self.state {
            State::Silent { begun, .. } => Some(begun),
            State::Quiet | State::Good { .. } | State::Doubt { .. } => None,
        }
    }

    /// For how long nothing has come by it, where it is silent.
    pub(super) fn lasts(&self, now: Time) -> Duration {
        match self.state {
            State::Silent { since, .. } => now.since(since),
            State::Quiet | State::Good { .. } | State::Doubt { .. } => Duration::ZERO,
        }
    }

    /// Whether nothing is doubted, or hardly: not even the first question is overdue.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.state, State::Quiet | State::Good { .. } | State::Doubt { asked: 0 | 1, .. })
    }

    /// Whether more than one question was asked in vain.
    pub(super) fn is_doubted(&self) -> bool {
        matches!(self.state, State::Doubt { asked: 3.., .. } | State::Silent { .. })
    }

    /// Whether it was woken late since this was asked last.
    pub(super) fn take_late(&mut self) -> bool {
        std::mem::take(&mut self.late)
    }

    /// Takes in when something authentic came by it last, and tells what is to be done. To be called until it has
    /// nothing more to say.
    pub(super) fn poll(
        &mut self,
        now: Time,
        heard: Time,
        vigilant: bool,
        shown: Shown,
        thresholds: &SilenceThresholds,
        pace: &Pace,
    ) -> Option<Verdict> {
        if now + BACK < self.seen {
            // A clock that goes back tells nothing of how long anything took.
            *self = Self::new(now, vigilant);
        }
        let now = now.max(self.seen);
        self.seen = now;
        self.hear(heard, vigilant);
        let due = self.due(thresholds, pace).filter(|due| *due <= now)?;
        let lag = now.since(due);
        if lag > LATE.max(pace.gap()) {
            self.put_off(now, lag);
        }
        match &mut self.state {
            State::Quiet => None,
            State::Good { heard, looked } => {
                let since = *heard;
                if since + thresholds.first.max(pace.answer) > now {
                    return None;
                }
                if shown == Shown::Always && *looked == Looked::NotYet && now < self.authentic + TRUSTED {
                    *looked = Looked::UnderWay;
                    return Some(Verdict::Look);
                }
                let next = now + pace.answer;
                self.state = State::Doubt { since, begun: now, asked: 1, anew: 0, looked: Looked::NotYet, next };
                Some(Verdict::Ask)
            }
            State::Doubt { since, begun, asked, looked, next, .. } => {
                let least = *begun + thresholds.second.saturating_sub(thresholds.first);
                if *asked < pace.asks {
                    *asked += 1;
                    let is_last = *asked == pace.asks;
                    *next = now + if is_last || *asked == 1 { pace.answer } else { pace.gap() };
                    return Some(if *asked == 1 { Verdict::Ask } else { Verdict::AskAll });
                }
                if now < least {
                    *next = least;
                    return None;
                }
                if shown != Shown::Never && *looked == Looked::NotYet && now < *begun + TRUSTED {
                    (*looked, *next) = (Looked::UnderWay, now + LATE);
                    return Some(Verdict::Look);
                }
                let silent = now.since(*since);
                let (since, begun, pause) = (*since, *begun, pace.answer);
                self.state = State::Silent { since, begun, pause, next: now + pause };
                Some(Verdict::Silent(silent))
            }
            State::Silent { pause, next, .. } => {
                *pause = (*pause * 2).min(PAUSE_LONGEST.max(pace.answer));
                *next = now + *pause;
                Some(Verdict::AskAll)
            }
        }
    }

    /// Something came by it, perhaps.
    fn hear(&mut self, at: Time, vigilant: bool) {
        self.authentic = at.max(self.authentic);
        match &mut self.state {
            State::Good { heard, looked } if at > *heard => (*heard, *looked) = (at, Looked::NotYet),
            State::Doubt { begun, .. } | State::Silent { begun, .. } if at > *begun => {
                self.state = State::at_rest(at, vigilant);
            }
            State::Quiet | State::Good { .. } | State::Doubt { .. } | State::Silent { .. } => {}
        }
    }

    /// It was woken so much later than it wanted. What has come meanwhile may be unread: that time was no silence.
    fn put_off(&mut self, now: Time, lag: Duration) {
        self.late = true;
        match &mut self.state {
            State::Quiet => {}
            State::Good { heard, .. } => *heard = *heard + lag,
            State::Doubt { since, begun, asked, anew, looked, next } => {
                (*since, *begun, *next) = (*since + lag, *begun + lag, now);
                if *anew < ANEW_MOST {
                    (*anew, *asked, *looked) = (*anew + 1, 0, Looked::NotYet);
                }
            }
            State::Silent { begun, next, .. } => (*begun, *next) = (*begun + lag, now),
        }
    }
}

impl State {
    fn at_rest(heard: Time, vigilant: bool) -> Self {
        if vigilant { Self::Good { heard, looked: Looked::NotYet } } else { Self::Quiet }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LAN: Pace = Pace { answer: Duration::from_millis(5), asks: 3 };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn start() -> Time {
        Time::default() + ms(1_000_000)
    }

    /// A path of which each question is answered after `round_trip`, or not, and what came of that.
    struct Path {
        watch: Watch,
        vigilant: bool,
        pace: Pace,
        heard: Time,
        asked: u32,
        all: u32,
        silent: Vec<(Time, Duration)>,
        under_way: Vec<Time>,
    }

    impl Path {
        fn new(vigilant: bool, pace: Pace) -> Self {
            let (watch, heard) = (Watch::new(start(), vigilant), start());
            let (silent, under_way) = (Vec::new(), Vec::new());
            Self { watch, vigilant, pace, heard, asked: 0, all: 0, silent, under_way }
        }

        /// Goes on until then, woken `late` each time. `answer`: when a question that goes out then is answered.
        fn run(&mut self, until: Time, late: Duration, mut answer: impl FnMut(Time) -> Option<Time>) {
            let thresholds = SilenceThresholds::default();
            loop {
                let due = self.watch.due(&thresholds, &self.pace).map(|due| due + late);
                let arrives = self.under_way.iter().min().copied();
                let next = due.into_iter().chain(arrives).min();
                let Some(now) = next.filter(|next| *next <= until) else { return };
                if arrives == Some(now) {
                    self.under_way.retain(|at| *at != now);
                    self.heard = now;
                }
                while let Some(verdict) =
                    self.watch.poll(now, self.heard, self.vigilant, Shown::Never, &thresholds, &self.pace)
                {
                    match verdict {
                        Verdict::Silent(silence) => self.silent.push((now, silence)),
                        Verdict::Look => {}
                        Verdict::Ask | Verdict::AskAll => {
                            self.asked += 1;
                            self.all += u32::from(verdict == Verdict::AskAll);
                            self.under_way.extend(answer(now));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn silence_is_told_at_the_second_threshold() {
        let mut path = Path::new(true, LAN);
        path.run(start() + ms(1000), Duration::ZERO, |at| Some(at + ms(1)));
        assert!(path.silent.is_empty());
        let (cut, asked) = (path.heard, path.asked);
        path.run(start() + ms(2000), Duration::ZERO, |_| None);
        assert_eq!(path.silent, [(cut + ms(45), ms(45))]);
        assert!(path.asked > asked + 3, "it is asked on");
    }

    #[test]
    fn a_lost_answer_is_no_failure() {
        let mut path = Path::new(true, LAN);
        let mut count = 0;
        path.run(start() + ms(10_000), Duration::ZERO, |at| {
            count += 1;
            (count % 3 == 0).then_some(at + ms(1))
        });
        assert!(path.silent.is_empty(), "two of three are lost, never three in a row: {:?}", path.silent);
        assert!(path.all > 0, "others are asked meanwhile");
    }

    #[test]
    fn thresholds_follow_the_measured_round_trip() {
        let far = Pace { answer: ms(700), asks: 3 };
        let mut path = Path::new(true, far);
        path.run(start() + ms(60_000), Duration::ZERO, |at| Some(at + ms(600)));
        assert!(path.silent.is_empty());
        assert_eq!(path.all, 0, "what takes as long as usual is not overdue");
        let heard = path.heard;
        path.run(start() + ms(70_000), Duration::ZERO, |_| None);
        let (at, _) = path.silent[0];
        // What is under way then is lost as well.
        assert!(at >= heard + ms(700 + 700 + 350) && at <= heard + 3 * ms(700) + ms(700), "{at:?} after {heard:?}");
    }

    #[test]
    fn more_is_asked_where_more_is_lost() {
        let lossy = Pace { answer: ms(5), asks: 9 };
        let mut path = Path::new(true, lossy);
        path.run(start() + ms(1000), Duration::ZERO, |_| None);
        assert_eq!(path.silent[0].0, start() + ms(30 + 5 + 7 * 5 + 5));
    }

    #[test]
    fn idle_asks_nothing() {
        let mut path = Path::new(false, LAN);
        path.run(start() + ms(3_600_000), Duration::ZERO, |_| None);
        assert_eq!((path.asked, path.silent.len()), (0, 0));
        path.watch.suspect(start() + ms(3_600_000), start(), start());
        path.run(start() + ms(3_700_000), Duration::ZERO, |at| Some(at + ms(1)));
        assert_eq!((path.asked, path.silent.len()), (1, 0), "it answers, and rests again");
        path.watch.suspect(start() + ms(3_700_000), start(), start());
        path.run(start() + ms(3_701_000), Duration::ZERO, |_| None);
        assert_eq!(path.silent.len(), 1);
    }

    #[test]
    fn a_late_wake_up_is_not_silence() {
        // Each time long enough to be taken for silence, and the answer is read a moment after it.
        for late in [20, 60, 5000] {
            let mut path = Path::new(true, LAN);
            path.run(start() + ms(60_000), ms(late), |at| Some(at + ms(1)));
            assert!(path.silent.is_empty(), "{late} ms late: {:?}", path.silent);
        }
        // Who is always late finds out all the same.
        let mut path = Path::new(true, LAN);
        path.run(start() + ms(5000), ms(50), |_| None);
        assert_eq!(path.silent.len(), 1);
    }

    #[test]
    fn a_clock_that_jumps_changes_nothing() {
        let thresholds = SilenceThresholds::default();
        for state in [
            State::Good { heard: start(), looked: Looked::NotYet },
            State::Doubt {
                since: start(),
                begun: start(),
                asked: 2,
                anew: 0,
                looked: Looked::NotYet,
                next: start() + ms(5),
            },
        ] {
            let mut watch = Watch { state, seen: start(), authentic: start(), late: false };
            let later = start() + ms(7_200_000);
            let verdict = watch.poll(later, start(), true, Shown::Never, &thresholds, &LAN);
            assert!(!matches!(verdict, Some(Verdict::Silent(_))), "{state:?}: {verdict:?}");
            assert!(watch.take_late());
            let back = start() + ms(60);
            let before = watch;
            assert_eq!(watch.poll(later, start(), true, Shown::Never, &thresholds, &LAN), None);
            assert_eq!(watch.state, before.state, "told in another order");
            assert_eq!(watch.poll(back, start(), true, Shown::Never, &thresholds, &LAN), None, "and back");
            assert_eq!(watch.due(&thresholds, &LAN), Some(back + ms(30)));
        }
    }

    proptest! {
        #[test]
        fn every_doubt_ends(
            answer in 5u64..2000,
            asks in 3u32..33,
            late in 0u64..200,
            vigilant in any::<bool>(),
            lost in prop::collection::vec(any::<bool>(), 0..64),
        ) {
            let pace = Pace { answer: ms(answer), asks };
            let mut path = Path::new(vigilant, pace);
            path.watch.suspect(start(), start(), start());
            let mut fates = lost.into_iter();
            path.run(start() + ms(3_600_000), ms(late), |at| {
                // After what was drawn nothing comes back any more.
                (!fates.next().unwrap_or(true)).then_some(at + ms(answer / 2))
            });
            // Either it is silent, or, at rest, nobody asks any more.
            prop_assert!(path.watch.silent_since().is_some() || (!vigilant && path.watch.state == State::Quiet));
            // No row of questions was longer than it takes to tell.
            prop_assert!(path.silent.len() <= path.asked as usize / asks as usize);
        }

        #[test]
        fn one_that_answers_is_never_silent(
            answer in 5u64..2000,
            asks in 3u32..33,
            late in prop::collection::vec(0u64..10_000, 1..200),
        ) {
            let (pace, thresholds) = (Pace { answer: ms(answer), asks }, SilenceThresholds::default());
            let (mut watch, mut now, mut heard) = (Watch::new(start(), true), start(), start());
            for late in late {
                let due = watch.due(&thresholds, &pace).unwrap_or(now);
                now = (due + ms(late)).max(now);
                while let Some(verdict) = watch.poll(now, heard, true, Shown::Never, &thresholds, &pace) {
                    prop_assert!(!matches!(verdict, Verdict::Silent(_)));
                }
                // The answer is read once this has been seen to.
                heard = now + Duration::from_micros(1);
                now = heard;
            }
        }
    }
}
