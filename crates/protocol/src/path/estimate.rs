//! How a path fares, by what has come back on it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Time;

/// The least that is granted for what is not measured: timers, and the other end's.
const SLACK: Duration = Duration::from_millis(5);
/// How much later than it takes as a rule an answer is overdue: the other end may be busy.
pub(crate) const OVERDUE_SLACK: Duration = Duration::from_millis(30);
/// The shortest time between two questions on a path.
const GAP_LEAST: Duration = Duration::from_millis(5);
/// Questions that are remembered.
const ASKED_MOST: usize = 64;
/// When one counts as lost, at the least.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// The share of questions that is taken to go unanswered at first, by chance, in parts of [`WHOLE`]: 5 %.
const LOSS_FIRST: u32 = WHOLE / 20;
const WHOLE: u32 = 1 << 24;
/// How fast that follows: after so many questions the old ones count for little.
const REMEMBERED: u32 = 128;
/// After so many of which nothing was lost, three in a row are no chance.
const LOSS_KNOWN: u32 = 5 * REMEMBERED;
/// How often silence may be taken for more than chance by mistake, once for each row of questions.
const MISTAKEN: f64 = 1e-9;
/// The bounds of how many questions make such a row.
const ASKS_LEAST: u32 = 3;
const ASKS_MOST: u32 = 32;

/// How a path is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// How long an answer takes, as a rule.
    pub answer: Duration,
    /// So many in a row that go unanswered are no chance.
    pub asks: u32,
}

impl Pace {
    /// How long after another a question goes out where answers are overdue.
    pub(crate) fn gap(&self) -> Duration {
        (self.answer / 2).max(GAP_LEAST)
    }
}

/// What is known of the round trips of a path: RFC 6298's smoothing, and what is lost.
#[derive(Clone, Debug)]
pub(crate) struct Estimate {
    smoothed: Option<Duration>,
    /// How many times that was measured.
    samples: u32,
    variation: Duration,
    /// The share of questions that went unanswered.
    loss: u32,
    /// How many of these are known.
    counted: u32,
    /// Questions under way, the oldest first.
    asked: VecDeque<Asked>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Asked {
    token: u64,
    at: Time,
    counts: bool,
}

impl Default for Estimate {
    fn default() -> Self {
        Self {
            smoothed: None,
            samples: 0,
            variation: Duration::ZERO,
            loss: LOSS_FIRST,
            counted: 0,
            asked: VecDeque::new(),
        }
    }
}

impl Estimate {
    /// Something has come back after that time, and it is certain what it answers.
    ///
    /// What the first took may be the ends' own doing more than the path's: there is a handshake, and programs are
    /// attached. So the second counts alone where it took less; how much that varies is not forgotten for it.
    pub(super) fn sample(&mut self, took: Duration) {
        match self.smoothed {
            None => self.variation = took / 2,
            Some(smoothed) => self.variation = (self.variation * 3 + smoothed.abs_diff(took)) / 4,
        }
        let before = self.smoothed.filter(|first| self.samples != 1 || *first < took);
        self.samples = self.samples.saturating_add(1);
        let smoothed = |before: Duration| match took * 2 < before {
            // Ends that are busy can only lengthen it.
            true => (before + took) / 2,
            false => (before * 7 + took) / 8,
        };
        self.smoothed = Some(before.map_or(took, smoothed));
    }

    /// The smoothed round trip, where one was measured.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// How many of a thousand questions go unanswered, once what was taken for granted at first counts for little.
    pub(super) fn lost(&self) -> Option<u16> {
        let lost = u64::from(self.loss) * 1000 / u64::from(WHOLE);
        (self.counted >= 3 * REMEMBERED).then(|| u16::try_from(lost).unwrap_or(1000))
    }

    /// Whether more questions would tell little more of how much is lost.
    pub(super) fn is_loss_known(&self) -> bool {
        self.counted >= LOSS_KNOWN
    }

    /// When the last question that counts was asked which is not answered, and should have been by now.
    pub(super) fn overdue(&self, now: Time) -> Option<Time> {
        let answer = self.smoothed? + (self.variation * 4).max(SLACK) + OVERDUE_SLACK;
        let is_overdue = |asked: &&Asked| (answer..self.lost_after()).contains(&now.since(asked.at));
        self.asked.iter().rev().filter(|asked| asked.counts).find(is_overdue).map(|asked| asked.at)
    }

    /// When a question counts as lost.
    fn lost_after(&self) -> Duration {
        ((self.smoothed.unwrap_or_default() + self.variation * 4) * 4).max(LOST_AFTER)
    }

    /// How the path is asked. `otherwise`: the round trip where none was measured.
    pub(super) fn pace(&self, otherwise: Duration) -> Pace {
        let answer = self.smoothed.map_or(otherwise * 3, |smoothed| smoothed + (self.variation * 4).max(SLACK));
        // What was measured may be less than what is so.
        let lost = (f64::from(self.loss) * 1.5 / f64::from(WHOLE)).clamp(0.001, 0.9);
        // A thousandth has to be three, whatever the last digit of the logarithms.
        let asks = (MISTAKEN.ln() / lost.ln() - 1e-6).ceil();
        Pace { answer, asks: (asks as u32).clamp(ASKS_LEAST, ASKS_MOST) }
    }

    /// A question goes out. `counts`: how long its answer takes, and that none comes, says how the path fares. It does
    /// not where the path may be silent: what waits for a next hop to be there again comes seconds late.
    pub(super) fn ask(&mut self, now: Time, token: u64, counts: bool) {
        let lost_after = self.lost_after();
        while let Some(oldest) = self.asked.front()
            && (now.since(oldest.at) > lost_after || self.asked.len() >= ASKED_MOST)
        {
            if oldest.counts {
                self.counted = self.counted.saturating_add(1);
                self.loss += (WHOLE - self.loss) / REMEMBERED;
            }
            self.asked.pop_front();
        }
        self.asked.push_back(Asked { token, at: now, counts });
    }

    /// A question is answered, if this is the token of one.
    pub(super) fn answer(&mut self, now: Time, token: u64) -> bool {
        let Some(place) = self.asked.iter().position(|asked| asked.token == token) else { return false };
        if let Some(Asked { at, .. }) = self.asked.remove(place).filter(|asked| asked.counts) {
            self.sample(now.since(at));
            self.counted = self.counted.saturating_add(1);
            self.loss -= self.loss / REMEMBERED;
        }
        true
    }

    /// What is known of questions that are under way says nothing: they were asked of a path that is silent, or their
    /// answers were not read for a while.
    pub(super) fn forget_asked(&mut self) {
        self.asked.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::default() + Duration::from_millis(ms)
    }

    fn asked(of: u64, is_lost: impl Fn(u64) -> bool, took: impl Fn(u64) -> u64) -> Estimate {
        let mut estimate = Estimate::default();
        for number in 0..of {
            let now = at(number * 1000);
            estimate.ask(now, number, true);
            if !is_lost(number) {
                assert!(estimate.answer(now + Duration::from_millis(took(number)), number));
            }
        }
        estimate
    }

    const NONE: Duration = Duration::from_millis(200);

    #[test]
    fn what_is_not_answered_in_time_is_overdue_until_it_is_lost() {
        let mut estimate = asked(20, |_| false, |_| 10);
        let now = at(100_000);
        estimate.ask(now, 1000, true);
        let overdue = |estimate: &Estimate, ms: u64| estimate.overdue(now + Duration::from_millis(ms)) == Some(now);
        assert_eq!([5, 44, 60, 900, 1001].map(|ms| overdue(&estimate, ms)), [false, false, true, true, false]);
        // What is asked of a path that may be silent says nothing.
        estimate.ask(now, 1001, false);
        assert!(estimate.answer(now + Duration::from_millis(70), 1000) && !overdue(&estimate, 80));
        assert_eq!(Estimate::default().overdue(now), None);
    }

    #[test]
    fn on_a_lan_three_questions_are_enough_once_nothing_is_lost() {
        assert_eq!(Estimate::default().pace(NONE), Pace { answer: NONE * 3, asks: 9 });
        let estimate = asked(u64::from(LOSS_KNOWN), |_| false, |_| 1);
        assert!(estimate.is_loss_known());
        let pace = estimate.pace(NONE);
        assert_eq!(pace, Pace { answer: Duration::from_millis(6), asks: 3 });
        assert_eq!(pace.gap(), GAP_LEAST);
    }

    #[test]
    fn what_took_long_at_first_does_not_count_for_long() {
        let after = |all: &[u64]| {
            let mut estimate = Estimate::default();
            all.iter().for_each(|ms| estimate.sample(Duration::from_millis(*ms)));
            estimate.smoothed().map(|smoothed| smoothed.as_millis())
        };
        assert_eq!((after(&[44]), after(&[44, 1])), (Some(44), Some(1)));
        assert_eq!((after(&[40, 48]), after(&[40, 32, 40])), (Some(41), Some(33)));
    }

    #[test]
    fn a_lossy_path_is_asked_more_often() {
        let tenth = asked(2000, |number| number % 10 == 0, |_| 1).pace(NONE);
        assert!((10..=13).contains(&tenth.asks), "{tenth:?}");
        let most = asked(2000, |number| number % 10 != 0, |_| 1).pace(NONE);
        assert_eq!(most.asks, ASKS_MOST);
    }

    #[test]
    fn what_varies_is_waited_for_longer() {
        let pace = asked(400, |_| false, |number| 5 + number * 37 % 100).pace(NONE);
        assert!(pace.answer > Duration::from_millis(105) && pace.answer < Duration::from_millis(250), "{pace:?}");
    }

    #[test]
    fn what_was_asked_of_a_silent_path_is_no_loss() {
        let mut estimate = asked(1000, |_| false, |_| 1);
        let before = estimate.loss;
        for number in 0..500 {
            estimate.ask(at(2_000_000 + number * 1000), 5000 + number, false);
        }
        assert_eq!(estimate.loss, before);
        assert!(estimate.answer(at(3_000_000), 5499));
        assert_eq!(estimate.pace(NONE).answer, Duration::from_millis(6), "it has waited for a next hop");
        estimate.forget_asked();
        assert!(!estimate.answer(at(3_000_000), 5498));
    }
}
