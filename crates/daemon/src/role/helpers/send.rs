//! Sending a stream that lies ready: to the live end what a helper answers, to the absent end, once it is back, what
//! was kept for it.
//!
//! TCP's sender (RFC 9293, 5681, 6298) as far as it is needed: slow start and congestion avoidance, a retransmission
//! timer with back-off, fast retransmission, probes of a closed window. What is lost is sent again from there on
//! (go-back-N): a receiver that has some of it acknowledges that at once.

use std::ops::Range;
use std::time::Duration;

use whimbrel_protocol::Time;

/// Before a round trip was measured (RFC 6298 §2.1), and at the least.
const TIMER_FIRST: Duration = Duration::from_secs(1);
const TIMER_LEAST: Duration = Duration::from_millis(200);
const TIMER_MOST: Duration = Duration::from_secs(15);
/// Segments of the first window (RFC 6928).
const FIRST_WINDOW: u64 = 10;
/// Acknowledgements of the same in a row that tell of a loss (RFC 5681).
const SAME_OFTEN: u32 = 3;

/// A sender of a stream whose bytes are counted from its beginning.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    /// The end of what there is.
    end: u64,
    acknowledged: u64,
    /// The next to be sent.
    next: u64,
    /// The furthest that was sent.
    sent: u64,
    /// Bytes beyond `acknowledged` that the receiver takes.
    window: u64,
    congestion: u64,
    threshold: u64,
    segment: u64,
    same: u32,
    timer: Duration,
    due: Option<Time>,
    smoothed: Option<(Duration, Duration)>,
    /// When what ends here was sent, if nothing of it was sent twice.
    timed: Option<(u64, Time)>,
}

impl Sender {
    /// `segment`: bytes that one packet carries. `window`: bytes that the receiver takes, as far as is known.
    pub(crate) fn new(end: u64, segment: u32, window: u64) -> Self {
        let segment = u64::from(segment.max(1));
        Self {
            end,
            acknowledged: 0,
            next: 0,
            sent: 0,
            window,
            congestion: FIRST_WINDOW * segment,
            threshold: u64::MAX,
            segment,
            same: 0,
            timer: TIMER_FIRST,
            due: None,
            smoothed: None,
            timed: None,
        }
    }

    /// There is more.
    pub(crate) fn extend(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// Bytes that the receiver has.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Bytes that were sent at least once, or that the receiver has.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether the receiver has all that there is.
    pub(crate) fn is_done(&self) -> bool {
        self.acknowledged >= self.end
    }

    /// The receiver has all before `next`, and takes `window` bytes from there on.
    pub(crate) fn handle_acknowledgement(&mut self, now: Time, next: u64, window: u64) {
        if next > self.end || next < self.acknowledged {
            return;
        }
        let same_window = self.window == window;
        self.window = window;
        if next > self.acknowledged {
            let fresh = next - self.acknowledged;
            self.acknowledged = next;
            self.next = self.next.max(next);
            self.sent = self.sent.max(next);
            self.same = 0;
            if let Some((end, then)) = self.timed
                && end <= next
            {
                self.measure(now.since(then));
                self.timed = None;
            }
            self.timer = self.timeout();
            let grown = if self.congestion < self.threshold {
                fresh.min(2 * self.segment)
            } else {
                (self.segment * self.segment / self.congestion).max(1)
            };
            self.congestion = self.congestion.saturating_add(grown).min(1 << 30);
            self.due = (self.sent > self.acknowledged).then(|| now + self.timer);
            return;
        }
        if self.sent > self.acknowledged && same_window {
            self.same += 1;
            if self.same == SAME_OFTEN {
                self.lose((self.sent - self.acknowledged) / 2);
                self.congestion = self.threshold;
            }
        }
    }

    /// The way is open again: what was sent last is taken for lost, and nothing waits for the timer.
    pub(crate) fn hurry(&mut self, now: Time) {
        self.lose(self.congestion / 2);
        self.congestion = self.congestion.min(FIRST_WINDOW * self.segment);
        self.timer = self.timeout();
        self.due = (self.window == 0).then_some(now);
    }

    /// What is to be sent now, if anything.
    pub(crate) fn poll_send(&mut self, now: Time) -> Option<Range<u64>> {
        if self.due.is_some_and(|due| due <= now) {
            let flight = self.sent - self.acknowledged;
            // A window that stays closed is no sign of congestion (RFC 9293 §3.8.6.1).
            if self.window > 0 {
                self.lose(flight / 2);
                self.congestion = self.segment;
            } else {
                self.next = self.acknowledged;
                self.timed = None;
            }
            self.timer = (self.timer * 2).min(TIMER_MOST);
            self.due = None;
            if self.window == 0 && !self.is_done() {
                return Some(self.send(now, 1));
            }
        }
        let usable = self.window.min(self.congestion);
        let limit = self.acknowledged.saturating_add(usable).min(self.end);
        if self.next < limit {
            return Some(self.send(now, (limit - self.next).min(self.segment)));
        }
        if self.window == 0 && !self.is_done() && self.due.is_none() {
            self.due = Some(now + self.timer);
        }
        None
    }

    /// When [`poll_send`](Self::poll_send) has something, where nothing is heard before.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    fn send(&mut self, now: Time, length: u64) -> Range<u64> {
        let range = self.next..self.next + length;
        self.next = range.end;
        if range.start >= self.sent {
            self.timed.get_or_insert((range.end, now));
        }
        self.sent = self.sent.max(range.end);
        self.due.get_or_insert(now + self.timer);
        range
    }

    /// What was sent and not acknowledged is sent again.
    fn lose(&mut self, threshold: u64) {
        self.threshold = threshold.max(2 * self.segment);
        self.next = self.acknowledged;
        self.same = 0;
        self.timed = None;
    }

    fn measure(&mut self, round_trip: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (round_trip, round_trip / 2),
            Some((smoothed, variance)) => {
                let off = smoothed.abs_diff(round_trip);
                ((smoothed * 7 + round_trip) / 8, (variance * 3 + off) / 4)
            }
        });
    }

    fn timeout(&self) -> Duration {
        let measured = self.smoothed.map_or(TIMER_FIRST, |(smoothed, variance)| smoothed + variance * 4);
        measured.clamp(TIMER_LEAST, TIMER_MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const MS: Duration = Duration::from_millis(1);
    const SEGMENT: u32 = 1000;

    /// A receiver that keeps what comes out of order, behind a path that loses, delays and doubles.
    struct Path {
        has: Vec<bool>,
        window: u64,
        /// Segments and acknowledgements under way, by when they arrive.
        out: BTreeMap<(Time, usize), Range<u64>>,
        back: BTreeMap<(Time, usize), (u64, u64)>,
        count: usize,
        random: u64,
        loss: u64,
        jitter: u64,
        sent: u64,
    }

    impl Path {
        fn new(end: u64, seed: u64, loss: u64, jitter: u64, window: u64) -> Self {
            let has = vec![false; end as usize];
            let (out, back) = (BTreeMap::new(), BTreeMap::new());
            Self { has, window, out, back, count: 0, random: seed | 1, loss, jitter, sent: 0 }
        }

        fn random(&mut self, below: u64) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 33) % below.max(1)
        }

        fn copies(&mut self) -> u64 {
            if self.random(100) < self.loss { 0 } else { 1 + u64::from(self.random(100) < 3) }
        }

        fn next(&self) -> u64 {
            self.has.iter().position(|has| !has).unwrap_or(self.has.len()) as u64
        }

        fn arrival(&mut self, now: Time) -> (Time, usize) {
            self.count += 1;
            (now + MS * (20 + self.random(self.jitter + 1) as u32), self.count)
        }

        fn run(&mut self, sender: &mut Sender) -> Duration {
            let start = Time::from_micros(1);
            let mut now = start;
            while !sender.is_done() {
                while let Some(range) = sender.poll_send(now) {
                    assert!(range.end - range.start <= u64::from(SEGMENT) && range.end <= self.has.len() as u64);
                    self.sent += range.end - range.start;
                    for _ in 0..self.copies() {
                        let at = self.arrival(now);
                        self.out.insert(at, range.clone());
                    }
                }
                let next = [self.out.keys().next(), self.back.keys().next()].into_iter().flatten().map(|(at, _)| *at);
                now = next.chain(sender.poll_timeout()).min().expect("something is to come").max(now);
                assert!(now.since(start) < Duration::from_secs(3600), "it never ends");
                while let Some(entry) = self.out.first_entry().filter(|entry| entry.key().0 <= now) {
                    let range = entry.remove();
                    // What is beyond the window is not taken.
                    let takes = range.start < self.next() + self.window;
                    for at in range {
                        self.has[at as usize] |= takes;
                    }
                    for _ in 0..self.copies() {
                        let at = self.arrival(now);
                        let word = (self.next(), self.window);
                        self.back.insert(at, word);
                    }
                }
                while let Some(entry) = self.back.first_entry().filter(|entry| entry.key().0 <= now) {
                    let (next, window) = entry.remove();
                    sender.handle_acknowledgement(now, next, window);
                }
            }
            assert!(self.has.iter().all(|has| *has));
            now.since(start)
        }
    }

    #[test]
    fn a_clean_path_is_filled_from_round_trip_to_round_trip() {
        let end = 2_000_000;
        let mut path = Path::new(end, 1, 0, 0, 10_000_000);
        let took = path.run(&mut Sender::new(end, SEGMENT, 10_000_000));
        // Ten segments, then twice as many each time: 2000 of them take eight round trips of 40 ms.
        assert!(took <= 340 * MS, "{took:?}");
        assert!(path.sent < end + end / 10, "{} bytes were sent", path.sent);
    }

    #[test]
    fn a_closed_window_is_probed_until_it_opens() {
        let mut sender = Sender::new(5000, SEGMENT, 0);
        let mut now = Time::from_micros(1);
        assert_eq!(sender.poll_send(now), None);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let due = sender.poll_timeout().expect("a probe");
            pauses.push(due.since(now));
            now = due;
            assert_eq!(sender.poll_send(now), Some(0..1));
            assert_eq!(sender.poll_send(now), None);
            sender.handle_acknowledgement(now + MS, 0, 0);
        }
        assert!(pauses.is_sorted() && pauses[7] == TIMER_MOST, "{pauses:?}");
        sender.handle_acknowledgement(now + MS, 1, 2500);
        assert_eq!(sender.poll_send(now + MS), Some(1..1001));
        assert_eq!(sender.poll_send(now + MS), Some(1001..2001));
        assert_eq!(sender.poll_send(now + MS), Some(2001..2501));
        assert_eq!(sender.poll_send(now + MS), None);
    }

    #[test]
    fn what_the_receiver_has_already_is_not_sent() {
        let mut sender = Sender::new(5000, SEGMENT, 100_000);
        let now = Time::from_micros(1);
        assert_eq!(sender.poll_send(now), Some(0..1000));
        sender.handle_acknowledgement(now, 3000, 100_000);
        assert_eq!(sender.poll_send(now), Some(3000..4000));
        // Nobody can have what was never sent, nor less than before.
        sender.handle_acknowledgement(now, 6000, 100_000);
        sender.handle_acknowledgement(now, 10, 100_000);
        assert_eq!(sender.acknowledged(), 3000);
        sender.handle_acknowledgement(now, 5000, 0);
        assert!(sender.is_done() && sender.poll_send(now).is_none() && sender.poll_timeout().is_none());
        sender.extend(5100);
        assert!(!sender.is_done());
    }

    #[test]
    fn a_single_loss_is_made_up_for_without_the_timer() {
        let mut sender = Sender::new(10_000, SEGMENT, 100_000);
        let now = Time::from_micros(1);
        while sender.poll_send(now).is_some() {}
        for _ in 0..SAME_OFTEN {
            sender.handle_acknowledgement(now + MS, 0, 100_000);
        }
        assert_eq!(sender.poll_send(now + MS), Some(0..1000));
        sender.handle_acknowledgement(now + 2 * MS, 10_000, 100_000);
        assert!(sender.is_done());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn all_arrives_whatever_the_path_does(
            seed in any::<u64>(),
            end in 1..60_000_u64,
            loss in 0..40_u64,
            jitter in 0..60_u64,
            window in 1..50_000_u64,
        ) {
            // A window of a few bytes takes as many round trips as there are bytes: no more than an hour's worth.
            let end = end.min(500 * window);
            Path::new(end, seed, loss, jitter, window).run(&mut Sender::new(end, SEGMENT, window));
        }
    }
}
