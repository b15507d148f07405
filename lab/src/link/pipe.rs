//! One direction of an emulated link, without clock, descriptors or threads: frames go in with the time, and come out
//! when they are due. The order of effects is that of a real link: loss, queue and rate, then delay.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Random;

/// How far ahead of the clock transmissions are planned. Their exact times are computed all the same; this only saves
/// waking for each frame of a fast link.
const PLAN_AHEAD_NS: u64 = 200_000;

/// Properties of one direction of a link. All may change while the link carries packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// One-way propagation delay.
    pub delay: Duration,
    /// Every frame's delay is uniform in `delay ± jitter`. Frames stay in order.
    pub jitter: Duration,
    /// Bits a second, counted over Ethernet frames without preamble and checksum; `None`: unlimited.
    pub rate: Option<u64>,
    /// Frames that may wait for a limited rate; one more is dropped (drop tail).
    pub queue_packets: usize,
    /// Bytes that may wait for a limited rate.
    pub queue_bytes: usize,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame is delivered twice.
    pub duplicate: f64,
    /// Probability that a frame is held back by `reorder_by` more while later ones overtake it.
    pub reorder: f64,
    /// See `reorder`.
    pub reorder_by: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: None,
            queue_packets: 1000,
            queue_bytes: usize::MAX,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(1),
        }
    }
}

impl Shape {
    /// No limit but this delay.
    pub fn delay(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    /// This delay in milliseconds and this rate in Mbit/s.
    pub fn delay_rate(ms: u64, mbit: u64) -> Self {
        Self { delay: Duration::from_millis(ms), rate: Some(mbit * 1_000_000), ..Self::default() }
    }

    /// The same with this probability of loss.
    pub fn with_loss(self, loss: f64) -> Self {
        Self { loss, ..self }
    }

    /// The same with a queue of this many frames.
    pub fn with_queue(self, packets: usize) -> Self {
        Self { queue_packets: packets, ..self }
    }

    /// The same with this rate in bits a second.
    pub fn with_rate(self, bits: u64) -> Self {
        Self { rate: Some(bits), ..self }
    }
}

/// What happened in one direction so far, in frames unless it says bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Sent into the link.
    pub offered: u64,
    /// Bytes sent into the link, Ethernet header included.
    pub offered_bytes: u64,
    /// Handed to the far end.
    pub delivered: u64,
    /// Bytes handed to the far end.
    pub delivered_bytes: u64,
    /// Lost at random.
    pub lost: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Dropped while the link was cut.
    pub cut: u64,
    /// Dropped by a hook.
    pub hooked: u64,
    /// Delivered a second time.
    pub duplicated: u64,
    /// Held back so that others overtook them.
    pub reordered: u64,
    /// Not taken by the far end's kernel (interface down or gone).
    pub refused: u64,
    /// Largest number of frames that waited for the rate.
    pub longest_queue: u64,
    /// Sum over all frames of how much later than due they were delivered, ns: the emulator's own error.
    pub late_ns: u64,
    /// The largest such error.
    pub latest_ns: u64,
}

impl Counters {
    /// Mean error of the delivery times.
    pub fn mean_lateness(&self) -> Duration {
        Duration::from_nanos(self.late_ns / self.delivered.max(1))
    }
}

/// One direction of a link. Times are nanoseconds of any monotonic clock.
#[derive(Debug)]
pub(crate) struct Pipe {
    shape: Shape,
    random: Random,
    /// Wait for the rate, oldest first.
    waiting: VecDeque<(u64, Vec<u8>)>,
    waiting_bytes: usize,
    /// End of transmission and size of frames that are planned but not sent yet: they still occupy the queue.
    planned: VecDeque<(u64, usize)>,
    planned_bytes: usize,
    /// End of the last planned transmission.
    busy_until: u64,
    /// On the way, the next due first.
    flying: VecDeque<(u64, Vec<u8>)>,
    /// Due time of the last frame that keeps order.
    last_due: u64,
    pub(crate) counters: Counters,
}

impl Pipe {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        Self {
            shape,
            random: Random::new(seed),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            planned: VecDeque::new(),
            planned_bytes: 0,
            busy_until: 0,
            flying: VecDeque::new(),
            last_due: 0,
            counters: Counters::default(),
        }
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Frames on the way keep their times; those that wait are sent at the new rate.
    pub(crate) fn set_shape(&mut self, shape: Shape) {
        self.shape = shape;
    }

    /// Takes a frame at time `now`. `extra_delay` holds this one frame back, out of order.
    pub(crate) fn handle_frame(&mut self, now: u64, frame: Vec<u8>, extra_delay: Duration) {
        if self.random.chance(self.shape.loss) {
            self.counters.lost += 1;
            return;
        }
        if !extra_delay.is_zero() {
            let due = now + nanos(self.shape.delay) + nanos(extra_delay);
            self.fly(due, frame);
            return;
        }
        if self.shape.rate.is_none() && self.waiting.is_empty() {
            self.depart(now, frame);
            return;
        }
        self.retire_planned(now);
        let queued = self.waiting.len() + self.planned.len();
        let bytes = self.waiting_bytes + self.planned_bytes + frame.len();
        if queued >= self.shape.queue_packets || bytes > self.shape.queue_bytes {
            self.counters.overflowed += 1;
            return;
        }
        self.counters.longest_queue = self.counters.longest_queue.max(queued as u64 + 1);
        self.waiting_bytes += frame.len();
        self.waiting.push_back((now, frame));
        self.transmit(now);
    }

    /// The next frame that is due at `now`.
    pub(crate) fn poll_frame(&mut self, now: u64) -> Option<Vec<u8>> {
        self.transmit(now);
        let late = now.checked_sub(self.flying.front()?.0)?;
        self.counters.late_ns += late;
        self.counters.latest_ns = self.counters.latest_ns.max(late);
        self.flying.pop_front().map(|(_, frame)| frame)
    }

    /// When to call [`Pipe::poll_frame`] next.
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        let flying = self.flying.front().map(|(due, _)| *due);
        // Planned so far ahead that nothing can be late; waking at half the horizon keeps the plan filled.
        let plan = (!self.waiting.is_empty()).then(|| self.busy_until.saturating_sub(PLAN_AHEAD_NS / 2));
        [flying, plan].into_iter().flatten().min()
    }

    /// Drops all that waits or is on the way, counted as cut.
    pub(crate) fn clear(&mut self) {
        self.counters.cut += (self.waiting.len() + self.flying.len()) as u64;
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.planned.clear();
        self.planned_bytes = 0;
        self.flying.clear();
        self.busy_until = 0;
    }

    fn retire_planned(&mut self, now: u64) {
        while self.planned.front().is_some_and(|(end, _)| *end <= now) {
            self.planned_bytes -= self.planned.pop_front().map_or(0, |(_, len)| len);
        }
    }

    fn transmit(&mut self, now: u64) {
        while self.busy_until <= now + PLAN_AHEAD_NS {
            let Some((arrived, frame)) = self.waiting.pop_front() else { return };
            self.waiting_bytes -= frame.len();
            let start = self.busy_until.max(arrived);
            let end = start + self.shape.rate.map_or(0, |rate| frame.len() as u64 * 8 * 1_000_000_000 / rate.max(1));
            self.busy_until = end;
            self.planned.push_back((end, frame.len()));
            self.planned_bytes += frame.len();
            self.depart(end, frame);
        }
    }

    /// The last bit leaves at `time`.
    fn depart(&mut self, time: u64, frame: Vec<u8>) {
        let mut delay = nanos(self.shape.delay);
        let jitter = nanos(self.shape.jitter);
        if jitter > 0 {
            delay = (delay + self.random.below(2 * jitter + 1)).saturating_sub(jitter);
        }
        let duplicate = self.random.chance(self.shape.duplicate).then(|| frame.clone());
        if self.random.chance(self.shape.reorder) {
            self.counters.reordered += 1;
            self.fly(time + delay + nanos(self.shape.reorder_by), frame);
        } else {
            let due = (time + delay).max(self.last_due);
            self.last_due = due;
            self.fly(due, frame);
        }
        if let Some(copy) = duplicate {
            self.counters.duplicated += 1;
            self.last_due = self.last_due.max(time + delay);
            self.fly(self.last_due, copy);
        }
    }

    fn fly(&mut self, due: u64, frame: Vec<u8>) {
        // Nearly always the last: only frames that were held back lie behind.
        let mut at = self.flying.len();
        while at > 0 && self.flying[at - 1].0 > due {
            at -= 1;
        }
        self.flying.insert(at, (due, frame));
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Sends `n` frames of `len` bytes, `gap` apart, and returns (due, number) of what comes out.
    fn carry(shape: Shape, n: u64, len: usize, gap: u64) -> (Vec<(u64, u64)>, Counters) {
        let mut pipe = Pipe::new(shape, 7);
        let mut out = Vec::new();
        let mut next = 0;
        let mut now = 0;
        loop {
            let send = (next < n).then_some(next * gap);
            let Some(t) = [send, pipe.poll_timeout()].into_iter().flatten().min() else { break };
            now = t.max(now);
            if send == Some(t) {
                let mut frame = vec![0; len];
                frame[..8].copy_from_slice(&next.to_le_bytes());
                pipe.handle_frame(now, frame, Duration::ZERO);
                next += 1;
            }
            while let Some(frame) = pipe.poll_frame(now) {
                out.push((now, u64::from_le_bytes(frame[..8].try_into().unwrap())));
            }
        }
        (out, pipe.counters)
    }

    #[test]
    fn delay_alone_delays() {
        let (out, _) = carry(Shape::delay(Duration::from_millis(20)), 5, 100, MS);
        assert_eq!(out, (0..5).map(|i| (i * MS + 20 * MS, i)).collect::<Vec<_>>());
    }

    #[test]
    fn rate_spaces_frames_exactly() {
        // 1250 bytes at 10 Mbit/s take 1 ms.
        let (out, _) = carry(Shape::delay_rate(5, 10), 100, 1250, 0);
        assert_eq!(out, (0..100).map(|i| ((i + 1) * MS + 5 * MS, i)).collect::<Vec<_>>());
    }

    #[test]
    fn rate_idle_link_does_not_save_up() {
        let (out, _) = carry(Shape::delay_rate(0, 10), 3, 1250, 10 * MS);
        assert_eq!(out, (0..3).map(|i| (i * 10 * MS + MS, i)).collect::<Vec<_>>());
    }

    #[test]
    fn full_queue_drops_the_tail() {
        let (out, counters) = carry(Shape::delay_rate(0, 10).with_queue(10), 100, 1250, 0);
        assert_eq!(out.iter().map(|o| o.1).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        assert_eq!((counters.overflowed, counters.longest_queue), (90, 10));
        let bytes = Shape { queue_bytes: 5000, ..Shape::delay_rate(0, 10) };
        assert_eq!(carry(bytes, 100, 1250, 0).0.len(), 4);
    }

    #[test]
    fn queue_counts_frames_planned_ahead() {
        // 125 bytes at 1 Gbit/s take 1 µs: all would fit in the plan, yet only 10 may wait.
        let (out, counters) = carry(Shape::delay_rate(0, 1000).with_queue(10), 100, 125, 0);
        assert_eq!((out.len(), counters.overflowed), (10, 90));
    }

    #[test]
    fn loss_is_seeded_and_near_its_probability() {
        let shape = Shape::default().with_loss(0.1);
        let (a, counters) = carry(shape.clone(), 10_000, 100, 1000);
        assert_eq!(a.len() as u64 + counters.lost, 10_000);
        assert!((850..1150).contains(&counters.lost), "{}", counters.lost);
        assert_eq!(a, carry(shape, 10_000, 100, 1000).0);
    }

    #[test]
    fn jitter_keeps_order_and_bounds() {
        let shape = Shape { jitter: Duration::from_millis(5), ..Shape::delay(Duration::from_millis(20)) };
        let (out, _) = carry(shape, 1000, 100, 3 * MS);
        for (i, (due, n)) in out.iter().enumerate() {
            assert_eq!(i as u64, *n);
            let delay = due - n * 3 * MS;
            assert!((15 * MS..=25 * MS).contains(&delay), "{delay}");
        }
    }

    #[test]
    fn reordering_and_duplication_happen_as_often_as_asked() {
        let shape = Shape { reorder: 0.05, duplicate: 0.02, ..Shape::delay(Duration::from_millis(2)) };
        let (out, counters) = carry(shape, 10_000, 100, MS / 10);
        assert_eq!(out.len() as u64, 10_000 + counters.duplicated);
        assert!((150..250).contains(&counters.duplicated), "{}", counters.duplicated);
        let late = out.windows(2).filter(|w| w[1].1 < w[0].1).count() as u64;
        assert!((400..600).contains(&counters.reordered) && late >= counters.reordered * 9 / 10, "{counters:?} {late}");
    }

    #[test]
    fn a_new_rate_holds_for_what_waits() {
        let mut pipe = Pipe::new(Shape::delay_rate(0, 1), 1);
        for _ in 0..100 {
            pipe.handle_frame(0, vec![0; 1250], Duration::ZERO);
        }
        pipe.set_shape(Shape::delay_rate(0, 1000));
        let mut now = 0;
        let mut got = 0;
        while let Some(t) = pipe.poll_timeout() {
            now = now.max(t);
            while pipe.poll_frame(now).is_some() {
                got += 1;
            }
        }
        // The first takes the 10 ms that it was begun with, the others 10 µs each.
        assert_eq!((got, now / 10_000), (100, 1000 + 99));
    }

    #[test]
    fn clear_forgets_everything() {
        let mut pipe = Pipe::new(Shape::delay_rate(10, 1), 1);
        for _ in 0..10 {
            pipe.handle_frame(0, vec![0; 1250], Duration::ZERO);
        }
        pipe.clear();
        assert_eq!((pipe.poll_timeout(), pipe.counters.cut), (None, 10));
    }
}
