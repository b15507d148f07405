//! Which host is asked for endpoints next, where the one that was asked does not lend them.

use std::collections::VecDeque;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::moving::Refusal;

use crate::Time;

/// Who wants what programs have left waits for no longer than this, whatever others end meanwhile: less than programs
/// wait for an answer.
pub(super) const WAITED: Duration = Duration::from_secs(5);

/// Hosts that are asked one after the other; `None` is this host itself, which needs no lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    others: VecDeque<Option<PublicKey>>,
    /// Who has refused it for want of something that is about to be returned.
    late: Vec<PublicKey>,
    /// How long it waits for that at most, once it has waited.
    waits_until: Option<Time>,
    /// When a host was asked last.
    asked: Time,
}

/// What is refused, as far as it matters for who is asked next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// By whom.
    pub anchor: PublicKey,
    /// Why.
    pub why: Refusal,
    /// It goes with something that this anchor has lent already, so that no other is asked.
    pub has_begun: bool,
    /// This host has less of that anchor than when it was asked, or will in a moment.
    pub has_less: bool,
}

/// What follows from a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The next host is asked. `late`: the refusal counts for nothing, as something is about to be returned.
    Next {
        /// As it says.
        late: bool,
    },
    /// Those are asked again that are to have something back, once one of them has.
    Wait {
        /// As with [`Then::Next`].
        late: bool,
    },
    /// It is not to be had.
    GivenUp,
}

impl Search {
    /// Of these hosts, one after the other.
    #[must_use]
    pub fn new(others: VecDeque<Option<PublicKey>>) -> Self {
        Self { others, ..Self::default() }
    }

    /// Of no other host than the first, by who has waited.
    #[must_use]
    pub fn after(waits_until: Option<Time>) -> Self {
        Self { waits_until, ..Self::default() }
    }

    /// The next host that is to be asked.
    pub fn pop(&mut self) -> Option<Option<PublicKey>> {
        self.others.pop_front()
    }

    /// A host is asked.
    pub fn note_asked(&mut self, now: Time) {
        self.asked = now;
    }

    /// When a host was asked last.
    #[must_use]
    pub const fn asked(&self) -> Time {
        self.asked
    }

    /// How long it waits at most, once it has waited.
    #[must_use]
    pub const fn waits_until(&self) -> Option<Time> {
        self.waits_until
    }

    /// Whether it may wait for what is about to be returned: it has not done so for long enough.
    #[must_use]
    pub fn may_wait(&self, now: Time) -> bool {
        self.waits_until.is_none_or(|until| now < until)
    }

    /// It waits from now on, or did before.
    pub fn wait(&mut self, now: Time) {
        self.waits_until.get_or_insert(now + WAITED);
    }

    /// What follows from a refusal.
    pub fn handle_refused(&mut self, now: Time, refused: Refused) -> Then {
        let Refused { anchor, why, has_begun, has_less } = refused;
        let full = matches!(why, Refusal::NoRoom | Refusal::Taken);
        if full && !has_begun && has_less && self.may_wait(now) {
            self.wait(now);
            self.late.push(anchor);
            // Another may have some now.
            let waits = self.others.is_empty() || why == Refusal::Taken;
            return if waits { Then::Wait { late: true } } else { Then::Next { late: true } };
        }
        match (self.others.is_empty(), why) {
            (true, why) if !self.late.is_empty() && why != Refusal::Taken => Then::Wait { late: false },
            (true, _) | (_, Refusal::Taken) => Then::GivenUp,
            (false, _) => Then::Next { late: false },
        }
    }

    /// Those that are to have something back: they are asked again, in their order and before others.
    pub fn ask_late_again(&mut self) -> Vec<PublicKey> {
        let anchors = std::mem::take(&mut self.late);
        anchors.iter().rev().for_each(|anchor| self.others.push_front(Some(*anchor)));
        anchors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(byte: u8) -> PublicKey {
        PublicKey::from([byte; 32])
    }

    fn at(milliseconds: u64) -> Time {
        Time::from_micros(1000 * milliseconds)
    }

    fn refused(byte: u8, why: Refusal, has_less: bool) -> Refused {
        Refused { anchor: anchor(byte), why, has_begun: false, has_less }
    }

    fn two() -> Search {
        let mut search = Search::new([1, 2].map(|byte| Some(anchor(byte))).into());
        assert_eq!(search.pop(), Some(Some(anchor(1))));
        search.note_asked(at(0));
        search
    }

    #[test]
    fn the_next_is_asked_until_there_is_none() {
        let mut search = two();
        assert_eq!(search.handle_refused(at(1), refused(1, Refusal::NotAllowed, true)), Then::Next { late: false });
        assert_eq!(search.pop(), Some(Some(anchor(2))));
        assert_eq!(search.handle_refused(at(2), refused(2, Refusal::NoRoom, false)), Then::GivenUp);
        assert_eq!(search.pop(), None);
        // What is taken is taken of everybody.
        assert_eq!(two().handle_refused(at(1), refused(1, Refusal::Taken, false)), Then::GivenUp);
    }

    #[test]
    fn who_is_about_to_have_something_back_is_asked_again_before_others_and_not_for_ever() {
        let mut search = two();
        assert_eq!(search.handle_refused(at(1), refused(1, Refusal::NoRoom, true)), Then::Next { late: true });
        assert_eq!(search.pop(), Some(Some(anchor(2))));
        assert_eq!(search.handle_refused(at(2), refused(2, Refusal::NotLent, false)), Then::Wait { late: false });
        assert_eq!(search.ask_late_again(), [anchor(1)]);
        assert_eq!(search.pop(), Some(Some(anchor(1))));
        assert_eq!(search.handle_refused(at(3), refused(1, Refusal::Taken, true)), Then::Wait { late: true });
        let begun = Refused { has_begun: true, ..refused(1, Refusal::NoRoom, true) };
        assert_eq!(two().handle_refused(at(1), begun), Then::Next { late: false });
        search.ask_late_again();
        let late = 2 + WAITED.as_millis() as u64;
        assert_eq!(search.handle_refused(at(late), refused(1, Refusal::Taken, true)), Then::GivenUp);
    }
}
