//! A path is asked by hand whether the peer answers on it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::Time;

/// Questions that are remembered: those that two users have asked each second, in a round trip of so many.
const REMEMBERED: usize = 8;

/// Questions, and the last of them that is answered.
#[derive(Clone, Copy, Debug)]
pub struct Ping {
    /// Tokens, and when they went out, the last first.
    asked: [Option<(u64, Time)>; REMEMBERED],
    /// When the one went out that is answered, how long that took, and where this host was seen.
    answer: Option<(Time, Duration, SocketAddr)>,
}

impl Ping {
    /// One more goes out now, with this token. `before`: those that went out before.
    pub(super) fn new(token: u64, now: Time, before: Option<Self>) -> Self {
        let mut ping = before.unwrap_or(Self { asked: [None; REMEMBERED], answer: None });
        ping.asked.rotate_right(1);
        ping.asked[0] = Some((token, now));
        ping
    }

    /// Whether the last question is yet to be answered.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.asked[0].is_some()
    }

    /// The round trip, and this host's endpoint as the peer sees it, once a question is answered that went out at this
    /// moment or later.
    #[must_use]
    pub fn answer_since(&self, since: Time) -> Option<(Duration, SocketAddr)> {
        self.answer.filter(|(sent, ..)| *sent >= since).map(|(_, took, observed)| (took, observed))
    }

    /// The peer has answered. Tells how long that took where it was one of these questions.
    pub(super) fn take_answer(&mut self, now: Time, token: u64, observed: SocketAddr) -> Option<Duration> {
        let place = self.asked.iter().position(|asked| asked.is_some_and(|(asked, _)| asked == token))?;
        let (_, sent) = self.asked[place].take()?;
        let took = now.since(sent);
        if self.answer.is_none_or(|(before, ..)| before <= sent) {
            self.answer = Some((sent, took, observed));
        }
        Some(took)
    }
}
