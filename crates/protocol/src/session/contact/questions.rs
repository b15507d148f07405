//! Questions to addresses of which nothing is known: how many a second, and on whose account (P-10, P-151).

use std::collections::BTreeMap;

use crate::Time;
use crate::base::bucket::Bucket;

/// A user has this share of what may be asked a second for certain.
const SHARES: u32 = 8;
/// Users whose questions are counted; those beyond are as one.
const USERS_MOST: usize = 256;

/// How many questions may be asked. Half of what the bucket holds is left to users who have asked for no more than
/// their share of late, so that one user's many connections do not keep others' from being asked about.
pub(super) struct Questions {
    all: Bucket,
    /// Tokens that only who keeps to his share may take.
    kept: f64,
    share: u32,
    /// By user; what this host asks of its own accord is nobody's.
    users: BTreeMap<Option<u32>, Bucket>,
}

impl Questions {
    /// `a_second`: of all.
    pub(super) fn new(a_second: u32) -> Self {
        let most = f64::from(a_second.max(1));
        let (kept, share) = ((most / 2.0).min(most - 1.0), a_second / SHARES);
        Self { all: Bucket::new(a_second), kept, share, users: BTreeMap::new() }
    }

    /// Takes one on account of a user, if there is one.
    pub(super) fn take(&mut self, now: Time, user: Option<u32>) -> bool {
        if !self.all.holds(now, 1.0) {
            return false;
        }
        if self.users.len() >= USERS_MOST {
            self.users.retain(|_, of| !of.is_full(now));
        }
        let user = if self.users.len() < USERS_MOST || self.users.contains_key(&user) { user } else { None };
        let share = self.share;
        let own = self.users.entry(user).or_insert_with(|| Bucket::new(share));
        (own.take(now) || self.all.holds(now, self.kept + 1.0)) && self.all.take(now)
    }

    #[cfg(test)]
    fn entries(&self) -> usize {
        self.users.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(milliseconds: u64) -> Time {
        Time::default() + Duration::from_millis(milliseconds)
    }

    #[test]
    fn who_asks_much_leaves_something_for_who_asks_little() {
        let mut questions = Questions::new(20);
        let mut greedy = 0;
        for step in 0..100 {
            let now = at(100 * step);
            greedy += (0..50).filter(|_| questions.take(now, Some(1000))).count();
            // Each of these keeps to its share.
            if step % 10 == 0 {
                assert!(questions.take(now, Some(1001)) && questions.take(now, Some(1002)), "at {step}");
            }
        }
        // What others do not want it has: all together are 20 a second, and 20 at once in the beginning.
        assert!((150..=210).contains(&greedy), "{greedy}");
    }

    #[test]
    fn few_questions_are_questions_and_many_users_have_bounds() {
        for a_second in [0, 1, 2, 3] {
            let mut questions = Questions::new(a_second);
            assert!((0..10).any(|_| questions.take(at(0), Some(1))), "{a_second}");
            assert!((1..20).any(|second| questions.take(at(1000 * second), Some(1))));
        }
        let mut questions = Questions::new(10_000);
        (0..5000).for_each(|user| {
            questions.take(at(0), Some(user));
        });
        assert!(questions.entries() <= USERS_MOST + 1);
    }
}
