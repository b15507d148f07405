//! Times that several layers go by.

use std::time::Duration;

/// A question whose answer is overdue is repeated at long intervals, and sooner where whoever owes the answer is heard:
/// each time that comes to nothing, less soon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prompts {
    /// Questions that were asked so.
    asked: u32,
    /// The next one is.
    is_due: bool,
}

impl Prompts {
    /// There is a reason to ask sooner: how long after the last question, where `first` is the pause before the first
    /// of its kind.
    pub(crate) fn prompt(&mut self, first: Duration) -> Duration {
        self.is_due = true;
        (first * 2u32.pow(self.asked.min(10))).min(KEEPALIVE)
    }

    /// Whether the next question is asked for such a reason.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// A question goes out. Tells whether it goes out sooner for such a reason.
    pub(crate) fn take(&mut self) -> bool {
        let prompted = std::mem::take(&mut self.is_due);
        self.asked = self.asked.saturating_add(u32::from(prompted));
        prompted
    }
}

/// How long a peer without flows is kept.
pub(crate) const IDLE: Duration = Duration::from_secs(600);
/// Keeps the UDP mapping of a NAT; 30 s is what RFC 4787 §4.3 finds in the field at the least.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(25);
/// How often a path is checked that carries nothing and is kept all the same (P-55). A rendezvous forgets a peer that
/// it has not heard for 10 minutes.
pub(crate) const REFRESH: Duration = Duration::from_secs(240);
/// How long the former path of a peer is accepted (P-22).
pub(crate) const FORMER: Duration = Duration::from_secs(60);
/// Pauses between looks for a silent peer, at first and at the longest.
pub(crate) const LOOK_PAUSE: Duration = Duration::from_secs(2);
pub(crate) const LOOK_PAUSE_LONGEST: Duration = Duration::from_secs(300);
/// How long a flow of a socket that is not connected stays which nobody uses (RFC 4787 REQ-5), and how long a peer is
/// taken to have the names of one that it has shown to have (P-223).
pub(crate) const KEPT: Duration = Duration::from_secs(300);
