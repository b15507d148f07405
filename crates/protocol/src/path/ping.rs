//! A path is asked by hand whether the peer answers on it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::Time;

/// A question, and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct Ping {
    token: u64,
    sent: Time,
    answer: Option<(Duration, SocketAddr)>,
}

impl Ping {
    /// One that goes out now, with this token.
    pub(super) fn new(token: u64, sent: Time) -> Self {
        Self { token, sent, answer: None }
    }

    /// When it was asked.
    #[must_use]
    pub fn sent(&self) -> Time {
        self.sent
    }

    /// The round trip, and this host's endpoint as the peer sees it, once it is answered.
    #[must_use]
    pub fn answer(&self) -> Option<(Duration, SocketAddr)> {
        self.answer
    }

    /// The peer has answered. Tells whether it was this question.
    pub(super) fn take_answer(&mut self, now: Time, token: u64, observed: SocketAddr) -> bool {
        let is_ours = self.answer.is_none() && self.token == token;
        if is_ours {
            self.answer = Some((now.since(self.sent), observed));
        }
        is_ours
    }
}
