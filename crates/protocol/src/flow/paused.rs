//! What a peer is to be told of single flows that wait, and what it has said of them.

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_wire::message::MAX_WAITING;

use crate::Time;
use crate::base::op::Waits;

/// Numbers of words are below this, so that there is always a next one.
pub(super) const NUMBERS: u32 = 1 << 31;
/// A daemon that was started anew begins so far above the last number that was saved: more were never said in between.
const BEYOND: u32 = 1 << 13;
/// Senders are woken for the flows that go on at most so often: each time costs a look at all sockets.
const WAKE_PAUSE: Duration = Duration::from_millis(200);

/// Single flows with a peer that wait (P-48).
#[derive(Debug, Default)]
pub(crate) struct Paused {
    /// What the peer is to be told, by the names of flows: whether they wait here. Of each the latest word alone
    /// counts.
    untold: BTreeMap<u64, bool>,
    /// What it is being told.
    telling: Option<Words>,
    tries: u32,
    /// When that was last said.
    said: Option<Time>,
    /// Number of the last words.
    sent: u32,
    /// Number of the last that the peer said and that were acted on.
    seen: u32,
    /// Flows that wait.
    flows: usize,
    /// When senders were last woken.
    woken: Option<Time>,
}

/// What is said in one message.
#[derive(Clone, Debug)]
pub(super) struct Words {
    pub(super) number: u32,
    pub(super) wait: bool,
    pub(super) names: Vec<u64>,
    /// They were given another number already, since the peer knew of a higher one.
    corrected: bool,
}

impl Paused {
    /// What a daemon before this one has saved: its [numbers](Self::numbers).
    pub(super) fn restored((sent, seen): (u32, u32)) -> Self {
        let sent = if sent == 0 { 0 } else { (sent + BEYOND).min(NUMBERS - 1) };
        Self { sent, seen, ..Self::default() }
    }

    /// The numbers of the last words of this end, and of the peer.
    pub(crate) fn numbers(&self) -> (u32, u32) {
        (self.sent, self.seen)
    }

    /// How many flows wait.
    pub(crate) fn flows(&self) -> usize {
        self.flows
    }

    /// A flow waits for others than before, or is there now, or no more.
    pub(super) fn count(&mut self, before: Waits, after: Waits) {
        self.flows += usize::from(after.any());
        self.flows -= usize::from(before.any());
    }

    /// The peer is to be told whether a flow waits. `first`: drawn by lot, the first number of an end that has said
    /// nothing, so that it is not one that another daemon of this host has used.
    pub(super) fn tell(&mut self, name: u64, wait: bool, first: u32) {
        if self.sent == 0 {
            self.sent = first % (NUMBERS / 2) + 1;
        }
        self.untold.insert(name, wait);
        self.tries = 0;
    }

    /// A flow of this name is not to be told of any more.
    pub(super) fn forget(&mut self, name: u64) {
        self.untold.remove(&name);
    }

    /// Whether the peer has acknowledged all that it was to be told.
    pub(crate) fn is_told(&self) -> bool {
        self.telling.is_none() && self.untold.is_empty()
    }

    /// Whether something was said within this time.
    pub(crate) fn has_said_within(&self, now: Time, within: Duration) -> bool {
        self.said.is_some_and(|said| said + within > now)
    }

    /// What is not acknowledged is said again as if for the first time.
    pub(super) fn begin_anew(&mut self) {
        self.tries = 0;
    }

    /// What is to be said next, which is what was said last where that was not answered, and how often that is said
    /// with this time.
    pub(super) fn say(&mut self, now: Time) -> Option<(Words, u32)> {
        if self.telling.is_none() {
            let wait = *self.untold.values().next()?;
            let alike = self.untold.iter().filter(|(_, waits)| **waits == wait);
            let names: Vec<u64> = alike.map(|(name, _)| *name).take(MAX_WAITING).collect();
            for name in &names {
                self.untold.remove(name);
            }
            self.sent = (self.sent + 1).min(NUMBERS - 1);
            self.telling = Some(Words { number: self.sent, wait, names, corrected: false });
        }
        self.tries += 1;
        self.said = Some(now);
        self.telling.clone().map(|words| (words, self.tries))
    }

    /// The peer tells the highest number that it has acted on. Tells whether what is next is to be said at once.
    pub(super) fn on_acknowledged(&mut self, number: u32) -> bool {
        let Some(words) = self.telling.as_mut() else { return false };
        if number == words.number {
            self.telling = None;
            self.tries = 0;
            return true;
        }
        if number < words.number || number >= NUMBERS - 1 {
            return false;
        }
        // This end has lost count, as after a start without memory. Once at once, as in P-17.
        words.number = number + 1;
        self.sent = number + 1;
        !std::mem::replace(&mut words.corrected, true)
    }

    /// The peer says something under this number. Tells whether that is new.
    pub(super) fn hear(&mut self, number: u32) -> bool {
        let is_new = number > self.seen;
        self.seen = self.seen.max(number);
        is_new
    }

    /// When senders may be woken next.
    pub(super) fn next_wake(&self, now: Time) -> Time {
        self.woken.map_or(now, |woken| (woken + WAKE_PAUSE).max(now))
    }

    /// Senders are woken.
    pub(super) fn on_woken(&mut self, now: Time) {
        self.woken = Some(now);
    }

    /// Entries of all tables together.
    pub(super) fn entries(&self) -> usize {
        self.untold.len() + self.telling.as_ref().map_or(0, |words| words.names.len())
    }
}
