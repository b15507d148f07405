//! The sending end of a stream: what is under way, what was lost, how much may be sent now.
//!
//! Congestion control is NewReno with byte counting (RFC 5681, RFC 3465), loss detection as RFC 9002 has it: by
//! reordering beyond three later stretches, or by a probe timer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use whimbrel_wire::moving::{MAX_STRETCH, Received, StreamStanding, Stretch};

use crate::Time;

/// The congestion window at first, at the least and at the most, in bytes (RFC 9002 §7.2).
const WINDOW_FIRST: u64 = 10 * MAX_STRETCH as u64;
const WINDOW_LEAST: u64 = 2 * MAX_STRETCH as u64;
const WINDOW_MOST: u64 = 8 << 20;
/// What was overtaken by so many later stretches is lost (RFC 9002 §6.1.1).
const OVERTAKEN: u64 = 3;
/// The probe timer before a round trip was measured, at the least and at the longest.
const PROBE_FIRST: Duration = Duration::from_millis(300);
const PROBE_LEAST: Duration = Duration::from_millis(30);
const PROBE_LONGEST: Duration = Duration::from_secs(2);
const PROBE_IDLE: Duration = Duration::from_secs(30);
/// So much may leave at once, however it is paced.
const BURST: u64 = 16 * MAX_STRETCH as u64;
/// The round trips that pacing reckons with.
const ROUND_TRIP_LEAST: Duration = Duration::from_micros(50);
const ROUND_TRIP_MOST: Duration = Duration::from_secs(1);
/// How finely pacing is timed.
const TICK: Duration = Duration::from_millis(1);

/// The sending end.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    number: u64,
    /// Bytes from `base` on that are not acknowledged, or not sent.
    bytes: VecDeque<u8>,
    base: u64,
    /// What was never sent begins here.
    next: u64,
    /// The receiver takes nothing from here on.
    limit: u64,
    /// Whether the receiver has said anything of this stream.
    known: bool,
    /// Under way, by their offsets.
    sent: BTreeMap<u64, Sent>,
    /// The same, in the order of their departure.
    order: BTreeMap<u64, u64>,
    next_order: u64,
    /// Of what is acknowledged, the one that left last.
    newest: u64,
    /// Lost: offsets and ends.
    lost: BTreeMap<u64, u64>,
    in_flight: u64,
    window: u64,
    threshold: u64,
    /// Losses among what left before this are of one congestion.
    recovery: u64,
    round_trip: Option<(Duration, Duration)>,
    /// Probes in a row that were not answered.
    probes: u32,
    /// When something was last sent, or acknowledged while more was under way.
    stirred: Time,
    /// The receiver is to be asked how it stands at once.
    asks: bool,
    /// Whether the receiver is asked from time to time while nothing is under way: an answer is awaited.
    pub(in crate::session) awaits: bool,
    credit: u64,
    credited: Time,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    end: u64,
    at: Time,
    order: u64,
    /// Sent for the first time: only then a round trip can be told (Karn).
    first: bool,
}

/// What an acknowledgement came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It is of this stream.
    Well,
    /// It is of another, or makes no sense.
    Nothing,
    /// The receiver has lost what it had of this stream, or knows a newer one of this number: all must be said anew.
    Lost(u64),
}

impl Sender {
    pub(crate) fn new(number: u64, now: Time, limit: u64) -> Self {
        Self {
            number,
            limit,
            next_order: 1,
            window: WINDOW_FIRST,
            threshold: u64::MAX,
            stirred: now,
            credit: BURST,
            credited: now,
            ..Self::default()
        }
    }

    /// Appends to the stream.
    pub(crate) fn push(&mut self, now: Time, bytes: &[u8]) {
        if self.is_empty() {
            self.stirred = now;
            self.probes = 0;
        }
        self.bytes.extend(bytes);
    }

    /// All before it has been acknowledged.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Where what is appended next begins.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Whether all has been acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that are not acknowledged, or not sent.
    pub(crate) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// Probes in a row that nobody answered.
    pub(crate) fn unanswered(&self) -> u32 {
        self.probes
    }

    /// There is a new way to the receiver, or a new session with it: it is asked at once.
    pub(crate) fn ask(&mut self) {
        self.asks = true;
        self.probes = 0;
    }

    /// The receiver says how it stands.
    pub(crate) fn handle(&mut self, now: Time, received: &Received) -> Heard {
        if received.stream != self.number {
            return Heard::Nothing;
        }
        match received.standing {
            StreamStanding::Taken => {}
            StreamStanding::Unknown if !self.known && self.base == 0 && self.sent.is_empty() => return Heard::Nothing,
            StreamStanding::Unknown => return Heard::Lost(self.number),
            StreamStanding::NotNewest => return Heard::Lost(received.before.max(self.number)),
            StreamStanding::Other(_) => return Heard::Nothing,
        }
        // Who acknowledges what was not sent is not believed.
        let end = received.ranges.last().map_or(received.before, |last| last.1);
        if end > self.next {
            return Heard::Nothing;
        }
        self.known = true;
        self.probes = 0;
        self.limit = self.limit.max(received.limit);
        let before = self.in_flight;
        let filled = before + MAX_STRETCH as u64 >= self.window;
        let mut acknowledged = 0;
        let mut sample = None;
        let ranges = std::iter::once((self.base, received.before)).chain(received.ranges.iter().copied());
        for (start, end) in ranges.filter(|(start, end)| start < end) {
            while let Some((&offset, &sent)) = self.sent.range(start..end).next() {
                if sent.end > end {
                    break;
                }
                self.sent.remove(&offset);
                self.order.remove(&sent.order);
                self.in_flight -= sent.end - offset;
                acknowledged += sent.end - offset;
                if sent.order > self.newest {
                    self.newest = sent.order;
                    sample = sent.first.then(|| now.since(sent.at));
                }
            }
            // What was taken for lost and has arrived after all.
            let late: Vec<u64> =
                self.lost.range(start..end).filter(|(_, lost)| **lost <= end).map(|(offset, _)| *offset).collect();
            late.iter().for_each(|offset| {
                self.lost.remove(offset);
            });
        }
        if received.before > self.base {
            let whole = (received.before - self.base) as usize;
            self.bytes.drain(..whole.min(self.bytes.len()));
            self.base = received.before;
            self.cut();
        }
        if let Some(sample) = sample {
            self.sample(sample);
        }
        if acknowledged > 0 {
            self.stirred = now;
        }
        if acknowledged > 0 && filled {
            let more = if self.window < self.threshold {
                acknowledged
            } else {
                (MAX_STRETCH as u64 * acknowledged / self.window).max(1)
            };
            self.window = (self.window + more).min(WINDOW_MOST);
        }
        self.find_lost();
        Heard::Well
    }

    /// Leaves out what is before the base. An honest receiver acknowledges whole stretches.
    fn cut(&mut self) {
        let base = self.base;
        if let Some((&offset, &sent)) = self.sent.range(..base).next_back() {
            self.sent.remove(&offset);
            self.in_flight -= sent.end - offset;
            self.order.remove(&sent.order);
            self.lost.insert(base, sent.end);
        }
        let before: Vec<(u64, u64)> = self.lost.range(..base).map(|(offset, end)| (*offset, *end)).collect();
        for (offset, end) in before {
            self.lost.remove(&offset);
            if end > base {
                self.lost.insert(base, end);
            }
        }
    }

    fn sample(&mut self, sample: Duration) {
        // RFC 6298
        self.round_trip = Some(match self.round_trip {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => {
                let off = smoothed.abs_diff(sample);
                ((smoothed * 7 + sample) / 8, (variation * 3 + off) / 4)
            }
        });
    }

    fn find_lost(&mut self) {
        let overtaken = self.newest.saturating_sub(OVERTAKEN);
        while let Some((&order, &offset)) = self.order.first_key_value() {
            if order > overtaken {
                break;
            }
            self.lose(order, offset);
            if order >= self.recovery {
                self.threshold = (self.window / 2).max(WINDOW_LEAST);
                self.window = self.threshold;
                self.recovery = self.next_order;
            }
        }
    }

    fn lose(&mut self, order: u64, offset: u64) {
        self.order.remove(&order);
        if let Some(sent) = self.sent.remove(&offset) {
            self.in_flight -= sent.end - offset;
            self.lost.insert(offset, sent.end);
        }
    }

    /// The next stretch to send now, if there is one.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Stretch> {
        if std::mem::take(&mut self.asks) {
            self.stirred = now;
            return Some(self.stretch(self.next, self.next));
        }
        let again = self.lost.first_key_value().map(|(offset, end)| (*offset, *end));
        let (offset, end) = match again {
            Some(lost) => lost,
            None => {
                let end = (self.base + self.bytes.len() as u64).min(self.limit);
                let end = end.min(self.next + MAX_STRETCH as u64);
                (self.next, end)
            }
        };
        if end <= offset || self.in_flight + (end - offset) > self.window {
            return None;
        }
        self.refill(now);
        // Whole, so that a stretch is never waited for by halves.
        self.credit = self.credit.checked_sub(end - offset)?;
        let order = self.next_order;
        self.next_order += 1;
        self.lost.remove(&offset);
        self.sent.insert(offset, Sent { end, at: now, order, first: again.is_none() });
        self.order.insert(order, offset);
        self.in_flight += end - offset;
        self.next = self.next.max(end);
        self.stirred = now;
        Some(self.stretch(offset, end))
    }

    fn stretch(&self, offset: u64, end: u64) -> Stretch {
        let (from, to) = ((offset - self.base) as usize, (end - self.base) as usize);
        let bytes = self.bytes.range(from..to).copied().collect();
        Stretch { stream: self.number, fresh: !self.known, offset, bytes }
    }

    /// What may be sent grows with time: twice the window in a round trip, so that pacing never holds growth back.
    fn refill(&mut self, now: Time) {
        let round_trip =
            self.round_trip.map_or(PROBE_FIRST, |(smoothed, _)| smoothed).clamp(ROUND_TRIP_LEAST, ROUND_TRIP_MOST);
        let passed = now.since(self.credited);
        let more = u128::from(self.window) * 2 * passed.as_micros() / round_trip.as_micros();
        if more > 0 || self.credit >= BURST {
            self.credit = self.credit.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)).min(BURST);
            self.credited = self.credited.max(now);
        }
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.asks {
            return Some(self.stirred);
        }
        if !self.sent.is_empty() {
            let paced = self.waits_for_credit().then(|| self.credited + TICK);
            let probe = self.stirred + self.probe_pause();
            return Some(paced.map_or(probe, |paced| paced.min(probe)));
        }
        if self.waits_for_credit() {
            return Some(self.credited + TICK);
        }
        if !self.bytes.is_empty() || self.awaits {
            // The receiver takes no more for now, or has forgotten what it was asked.
            return Some(self.stirred + self.idle_pause());
        }
        None
    }

    /// Whether pacing alone keeps something from being sent.
    fn waits_for_credit(&self) -> bool {
        let (offset, end) = match self.lost.first_key_value() {
            Some((offset, end)) => (*offset, *end),
            None => {
                let end = (self.base + self.bytes.len() as u64).min(self.limit);
                (self.next, end.min(self.next + MAX_STRETCH as u64))
            }
        };
        end > offset && self.in_flight + (end - offset) <= self.window
    }

    fn probe_pause(&self) -> Duration {
        let pause = self.round_trip.map_or(PROBE_FIRST, |(smoothed, variation)| {
            (smoothed + (variation * 4).max(TICK) + super::ACKNOWLEDGED_AFTER).max(PROBE_LEAST)
        });
        (pause * 2u32.pow(self.probes.min(10))).min(if self.probes > 6 { PROBE_IDLE } else { PROBE_LONGEST })
    }

    fn idle_pause(&self) -> Duration {
        (Duration::from_millis(500) * 2u32.pow(self.probes.min(10))).min(PROBE_IDLE)
    }

    /// Something is due: what is under way was not acknowledged for long, or the receiver is asked how it stands.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if !self.sent.is_empty() {
            if self.stirred + self.probe_pause() <= now {
                self.probes += 1;
                self.stirred = now;
                let all: Vec<(u64, u64)> = self.order.iter().map(|(order, offset)| (*order, *offset)).collect();
                // The first time it may be a single one that was lost, at the end.
                let count = if self.probes > 1 { all.len() } else { 1 };
                for (order, offset) in all.into_iter().take(count) {
                    self.lose(order, offset);
                }
                if self.probes > 1 {
                    // Once: that it is lost again tells nothing of the way as it was (RFC 5681 §3.1).
                    if self.window > WINDOW_LEAST {
                        self.threshold = (self.window / 2).max(WINDOW_LEAST);
                    }
                    self.window = WINDOW_LEAST;
                    self.recovery = self.next_order;
                }
                self.credit = self.credit.max(MAX_STRETCH as u64);
            }
        } else if !self.waits_for_credit()
            && (!self.bytes.is_empty() || self.awaits)
            && self.stirred + self.idle_pause() <= now
        {
            self.probes += 1;
            self.asks = true;
        }
    }
}
