//! Pairings with one peer that are not finished: what it claims, and when the sockets may be looked at for that.

use std::time::Duration;

use whimbrel_wire::message::Pairing;

use crate::Time;

/// Claims of a peer that wait for a look at the sockets; what is beyond is told to come again, and who claims late does
/// not say more at once.
pub(super) const CLAIMS: usize = 256;
/// Time between two such looks (P-52).
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// Claims that fit no connection which a peer may make in [`MISSES_FOR`] (P-52).
const MISSES: u32 = 64;
const MISSES_FOR: Duration = Duration::from_secs(600);

/// Pairings with one peer that are not finished.
#[derive(Debug, Default)]
pub(super) struct Pairings {
    /// The sockets are being looked for.
    asked: bool,
    /// No other look before that.
    again: Option<Time>,
    /// What the peer claims, with the session that it said so in.
    claims: Vec<(u32, Pairing)>,
    /// Claims that fitted nothing, and until when they are counted.
    misses: u32,
    counted_until: Option<Time>,
}

impl Pairings {
    /// When the sockets may be looked at next; `None`: they are being looked at.
    pub(super) fn next_look(&mut self, now: Time) -> Option<Time> {
        if self.asked {
            return None;
        }
        let next = self.again.filter(|again| *again > now);
        if next.is_none() {
            self.again = Some(now + PAUSE);
        }
        Some(next.unwrap_or(now))
    }

    /// No look before that.
    pub(super) fn put_off(&mut self, until: Time) {
        self.again = self.again.max(Some(until));
    }

    /// The sockets are being looked at from now on. Tells whether they were not already.
    pub(super) fn begin_look(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// They have been looked at, or could not be: the claims that waited for that.
    pub(super) fn end_look(&mut self) -> Vec<(u32, Pairing)> {
        self.asked = false;
        std::mem::take(&mut self.claims)
    }

    /// The peer claims something, or does so again. Tells whether there is room for it.
    pub(super) fn add(&mut self, index: u32, claim: Pairing) -> bool {
        self.claims.retain(|(_, waiting)| waiting.introducer_nonce != claim.introducer_nonce);
        let room = self.claims.len() < CLAIMS;
        if room {
            self.claims.push((index, claim));
        }
        room
    }

    /// Whether any of the claims that wait is a late one (P-204).
    pub(super) fn waits_late(&self) -> bool {
        self.claims.iter().any(|(_, claim)| claim.late)
    }

    /// Claims that wait for a look.
    pub(super) fn waiting(&self) -> usize {
        self.claims.len()
    }

    /// Whether the peer has claimed too many connections that fit nothing (P-52).
    pub(super) fn has_missed_too_often(&self, now: Time) -> bool {
        self.misses >= MISSES && self.counted_until.is_some_and(|until| until > now)
    }

    /// A claim fitted nothing. Tells whether it is the one that is too many.
    pub(super) fn count_miss(&mut self, now: Time) -> bool {
        if self.counted_until.is_none_or(|until| until <= now) {
            self.counted_until = Some(now + MISSES_FOR);
            self.misses = 0;
        }
        self.misses += 1;
        self.misses == MISSES
    }
}
