//! The receiving end of a stream: what has arrived, in order or not.

use std::collections::BTreeMap;

use whimbrel_wire::moving::{MAX_RANGES, Received, StreamStanding, Stretch};

use crate::Time;

/// Stretches that are acknowledged together at the most (RFC 9000 §13.2.2).
const TOGETHER: u32 = 2;

/// The receiving end.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    number: u64,
    /// All before it has been handed on.
    before: u64,
    /// Out of order, by offset; they neither overlap nor touch.
    ahead: BTreeMap<u64, Vec<u8>>,
    window: u64,
    /// Stretches that were not acknowledged yet.
    unacknowledged: u32,
    due: Option<Time>,
}

/// What came of a stretch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// Bytes that come next in the stream, maybe none.
    Bytes(Vec<u8>),
    /// It is of no stream that is received.
    Foreign(Received),
}

impl Receiver {
    /// Nothing is received yet. `window`: bytes that are kept out of order, and taken ahead.
    pub(crate) fn new(window: u64) -> Self {
        Self { window, ..Self::default() }
    }

    /// Bytes that are kept out of order.
    pub(crate) fn held(&self) -> usize {
        self.ahead.values().map(Vec::len).sum()
    }

    /// Whether a stretch begins another stream than the one before.
    pub(crate) fn begins(&self, stretch: &Stretch) -> bool {
        stretch.stream > self.number && stretch.fresh
    }

    /// A stretch arrives.
    pub(crate) fn handle(&mut self, now: Time, stretch: Stretch) -> Arrived {
        if stretch.stream != self.number {
            let foreign = |standing, before| {
                let stream = stretch.stream;
                Arrived::Foreign(Received { stream, standing, before, limit: 0, ranges: Vec::new() })
            };
            if stretch.stream < self.number {
                return foreign(StreamStanding::NotNewest, self.number);
            }
            if !stretch.fresh {
                return foreign(StreamStanding::Unknown, 0);
            }
            *self = Self { number: stretch.stream, ..Self::new(self.window) };
        }
        let Stretch { offset, bytes, .. } = stretch;
        let end = offset + bytes.len() as u64;
        let mut handed_on = Vec::new();
        if bytes.is_empty() {
            // It asks.
            self.due = Some(now);
        } else if end <= self.before || end > self.before + self.window {
            // It has arrived before, and that was not heard; or it is more than was allowed.
            self.due = Some(now);
        } else if offset <= self.before {
            handed_on.extend_from_slice(&bytes[(self.before - offset) as usize..]);
            self.before = end;
            let closes = !self.ahead.is_empty();
            while let Some(next) = self.ahead.first_entry().filter(|next| *next.key() <= self.before) {
                let (start, bytes) = next.remove_entry();
                let skipped = ((self.before - start) as usize).min(bytes.len());
                handed_on.extend_from_slice(&bytes[skipped..]);
                self.before += (bytes.len() - skipped) as u64;
            }
            self.unacknowledged += 1;
            let soon = closes || self.unacknowledged >= TOGETHER;
            let due = if soon { now } else { now + super::ACKNOWLEDGED_AFTER };
            self.due = Some(self.due.map_or(due, |before| before.min(due)));
        } else {
            self.keep(offset, bytes);
            self.due = Some(now);
        }
        Arrived::Bytes(handed_on)
    }

    /// Keeps what came out of order, joined with what it touches.
    fn keep(&mut self, mut start: u64, mut bytes: Vec<u8>) {
        if let Some((&before, held)) = self.ahead.range(..=start).next_back() {
            let end = before + held.len() as u64;
            if end >= start + bytes.len() as u64 {
                return;
            }
            if end >= start {
                let Some(mut joined) = self.ahead.remove(&before) else { return };
                joined.extend_from_slice(&bytes[(end - start) as usize..]);
                (start, bytes) = (before, joined);
            }
        }
        let end = start + bytes.len() as u64;
        while let Some((&after, _)) = self.ahead.range(start..=end).next() {
            let Some(held) = self.ahead.remove(&after) else { break };
            let covered = (start + bytes.len() as u64 - after) as usize;
            if covered < held.len() {
                bytes.extend_from_slice(&held[covered..]);
            }
        }
        self.ahead.insert(start, bytes);
    }

    /// When an acknowledgement is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// The acknowledgement that is due, if one is.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Received> {
        self.due.filter(|due| *due <= now)?;
        self.due = None;
        self.unacknowledged = 0;
        let ranges = self.ahead.iter().take(MAX_RANGES).map(|(start, bytes)| (*start, start + bytes.len() as u64));
        Some(Received {
            stream: self.number,
            standing: StreamStanding::Taken,
            before: self.before,
            limit: self.before + self.window,
            ranges: ranges.collect(),
        })
    }
}
