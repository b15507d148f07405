//! What is put off where very many connections move to a path that is not confirmed.
//!
//! To look at all their sockets takes longer than the confirmation, which would wait for it; and what may be sent
//! before that (P-18) is used up by a few of them. Once it is confirmed their senders are woken when all else is done
//! that is to be done at that moment, and told.

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_protocol::{PeerId, Time};

/// The senders of a peer with no more flows than these are woken at once: a few milliseconds' work.
pub(crate) const FEW: usize = 2_000;
/// How long sockets are left as they are for a path that may never be confirmed.
const PATIENCE: Duration = Duration::from_secs(1);

/// Peers whose senders are woken when their path is confirmed.
#[derive(Debug, Default)]
pub(crate) struct Postponed {
    /// Whether what they had in flight is lost.
    lost: BTreeMap<PeerId, bool>,
    /// Until when sockets are left as they are.
    until: Option<Time>,
    /// Those that are to be woken next, since when, and whether what they had in flight is lost.
    next: BTreeMap<PeerId, (Time, bool)>,
}

impl Postponed {
    /// Puts a peer's senders off.
    pub(crate) fn add(&mut self, now: Time, peer: PeerId, lost: bool) {
        *self.lost.entry(peer).or_default() |= lost;
        self.until = Some(now + PATIENCE);
    }

    /// A peer's senders are to be woken next.
    pub(crate) fn add_next(&mut self, now: Time, peer: PeerId, lost: bool) {
        let lost = self.remove(peer) | lost;
        self.next.insert(peer, (now, lost));
    }

    /// Takes those that are to be woken now, with whether what they had in flight is lost.
    pub(crate) fn take_next(&mut self) -> Vec<(PeerId, bool)> {
        std::mem::take(&mut self.next).into_iter().map(|(peer, (_, lost))| (peer, lost)).collect()
    }

    /// A peer's senders are woken now, or there are none any more. Returns whether what they had in flight is lost, as
    /// far as was said when they were put off.
    pub(crate) fn remove(&mut self, peer: PeerId) -> bool {
        let next = self.next.remove(&peer).is_some_and(|(_, lost)| lost);
        let lost = self.lost.remove(&peer).unwrap_or(false) | next;
        if self.lost.is_empty() {
            self.until = None;
        }
        lost
    }

    /// Whether sockets are left as they are for now.
    pub(crate) fn leaves_sockets(&self, now: Time) -> bool {
        !self.next.is_empty() || self.until.is_some_and(|until| until > now)
    }

    /// When they are no longer, or some are to be woken.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.next.values().map(|(since, _)| *since).chain(self.until).min()
    }

    /// Leaves them no longer when that is due.
    pub(crate) fn expire(&mut self, now: Time) {
        self.until.take_if(|until| *until <= now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_before_a_path_was_confirmed_is_said_when_it_is() {
        let (mut postponed, now) = (Postponed::default(), Time::default());
        postponed.add(now, PeerId(1), true);
        let later = now + PATIENCE / 2;
        postponed.add_next(later, PeerId(1), false);
        assert!(postponed.leaves_sockets(later) && postponed.timeout() == Some(later));
        assert_eq!(postponed.take_next(), [(PeerId(1), true)]);
        assert!(!postponed.leaves_sockets(later) && postponed.timeout().is_none());
    }

    #[test]
    fn sockets_are_left_alone_no_longer_than_the_confirmation_may_take() {
        let (mut postponed, now) = (Postponed::default(), Time::default());
        postponed.add(now, PeerId(1), true);
        postponed.add(now, PeerId(1), false);
        assert!(postponed.leaves_sockets(now));
        // Confirmed.
        assert!(postponed.remove(PeerId(1)) && !postponed.leaves_sockets(now) && postponed.timeout().is_none());
        assert!(!postponed.remove(PeerId(1)));
        // Never confirmed.
        postponed.add(now, PeerId(2), true);
        let due = postponed.timeout().expect("a time");
        assert!(!postponed.leaves_sockets(due));
        postponed.expire(due);
        assert!(postponed.timeout().is_none() && postponed.remove(PeerId(2)));
    }
}
