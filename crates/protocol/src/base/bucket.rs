//! Token buckets: how often something may happen.

use std::time::Duration;

use crate::Time;

/// A token bucket, full at the start.
#[derive(Debug)]
pub(crate) struct Bucket {
    level: f64,
    most: f64,
    a_second: f64,
    filled: Time,
}

impl Bucket {
    /// Holds what a second brings. `a_second`: tokens, at least 1.
    pub(crate) fn new(a_second: u32) -> Self {
        let a_second = f64::from(a_second.max(1));
        Self { level: a_second, most: a_second, a_second, filled: Time::default() }
    }

    /// Holds `most` tokens; another comes every `pause`.
    pub(crate) fn of(most: f64, pause: Duration) -> Self {
        Self { level: most, most, a_second: 1.0 / pause.as_secs_f64(), filled: Time::default() }
    }

    fn level_at(&self, now: Time) -> f64 {
        (self.level + now.since(self.filled).as_secs_f64() * self.a_second).min(self.most)
    }

    /// Whether it holds all that it can.
    pub(crate) fn is_full(&self, now: Time) -> bool {
        self.level_at(now) >= self.most
    }

    /// Takes more than a token's worth after the fact: what is lacking is lacking to those who come next.
    pub(crate) fn spend(&mut self, tokens: f64) {
        self.level -= tokens;
    }

    /// Whether it holds so many now.
    pub(crate) fn holds(&self, now: Time, tokens: f64) -> bool {
        self.level_at(now) >= tokens
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, now: Time) -> bool {
        self.level = self.level_at(now);
        self.filled = self.filled.max(now);
        let there = self.level >= 1.0;
        if there {
            self.level -= 1.0;
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_spent_is_lacking_later() {
        let (start, pause) = (Time::from_micros(5_000_000), Duration::from_millis(50));
        let mut bucket = Bucket::of(2.0, pause);
        assert!(bucket.take(start));
        bucket.spend(3.0);
        assert!(!bucket.take(start + pause * 2) && bucket.take(start + pause * 3));
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut bucket = Bucket::new(10);
        let start = Time::from_micros(5_000_000);
        assert_eq!((0..50).filter(|_| bucket.take(start)).count(), 10);
        let later = (1..=100).filter(|step| bucket.take(start + Duration::from_millis(20) * *step)).count();
        assert!((19..=20).contains(&later), "{later} in two seconds");
        // A pause is worth no more than a second.
        let after = start + Duration::from_secs(3600);
        assert_eq!((0..50).filter(|_| bucket.take(after)).count(), 10);
    }
}
