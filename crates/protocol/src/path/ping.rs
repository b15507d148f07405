//! A path is asked by hand whether the peer answers on it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::Time;

/// Questions that are remembered while none is answered: what is asked again each second, in a round trip of so many.
const REMEMBERED: usize = 4;

/// A question, asked again while it is not answered, and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct Ping {
    /// Tokens, and when they went out, the last first.
    asked: [Option<(u64, Time)>; REMEMBERED],
    /// When the one went out that is answered, how long that took, and where this host was seen.
    answer: Option<(Time, Duration, SocketAddr)>,
}

impl Ping {
    /// One more goes out now, with this token. `before`: those that went out of late.
    pub(super) fn new(token: u64, now: Time, before: Option<Self>) -> Self {
        let mut asked = before.filter(|before| before.answer.is_none()).map(|before| before.asked).unwrap_or_default();
        asked.rotate_right(1);
        asked[0] = Some((token, now));
        Self { asked, answer: None }
    }

    /// The round trip, and this host's endpoint as the peer sees it, once a question is answered that went out at this
    /// moment or later.
    #[must_use]
    pub fn answer_since(&self, since: Time) -> Option<(Duration, SocketAddr)> {
        self.answer.filter(|(sent, ..)| *sent >= since).map(|(_, took, observed)| (took, observed))
    }

    /// The peer has answered. Tells whether it was one of these questions.
    pub(super) fn take_answer(&mut self, now: Time, token: u64, observed: SocketAddr) -> bool {
        let ours = self.asked.iter().flatten().find(|(asked, _)| *asked == token).filter(|_| self.answer.is_none());
        let Some((_, sent)) = ours else { return false };
        self.answer = Some((*sent, now.since(*sent), observed));
        true
    }
}
