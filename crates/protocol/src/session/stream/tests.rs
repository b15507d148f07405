//! Streams over a network that loses, doubles and reorders.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use whimbrel_wire::moving::{MAX_STRETCH, Received, StreamStanding, Stretch};

use super::{Arrived, Heard, Receiver, Sender};
use crate::Time;

const WINDOW: u64 = 64 * 1024;

enum Packet {
    Stretch(Stretch),
    Received(Received),
}

/// Both ends and what is between them.
struct Pair {
    now: Time,
    sender: Sender,
    receiver: Receiver,
    way: BTreeMap<(Time, u64), Packet>,
    order: u64,
    got: Vec<u8>,
    sent: usize,
    state: u64,
    /// Of a thousand, and how much later the latest comes.
    loss: u64,
    double: u64,
    jitter: u64,
    delay: u64,
}

impl Pair {
    fn new(seed: u64, loss: u64, double: u64, jitter: u64) -> Self {
        let now = Time::from_micros(1_000_000);
        Self {
            now,
            sender: Sender::new(7, now, 16 * 1024),
            receiver: Receiver::new(WINDOW),
            way: BTreeMap::new(),
            order: 0,
            got: Vec::new(),
            sent: 0,
            state: seed | 1,
            loss,
            double,
            jitter,
            delay: 5000,
        }
    }

    fn chance(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state >> 33
    }

    fn put(&mut self, packet: impl Fn() -> Packet) {
        let lost = self.chance() % 1000 < self.loss;
        let copies = if lost { 0 } else { 1 + usize::from(self.chance() % 1000 < self.double) };
        for _ in 0..copies {
            let late = if self.jitter == 0 { 0 } else { self.chance() % self.jitter };
            self.order += 1;
            self.way.insert((self.now + Duration::from_micros(self.delay + late), self.order), packet());
        }
    }

    fn drain(&mut self) {
        while let Some(stretch) = self.sender.poll(self.now) {
            assert!(stretch.bytes.len() <= MAX_STRETCH);
            self.sent += stretch.bytes.len();
            self.put(|| Packet::Stretch(stretch.clone()));
        }
        while let Some(received) = self.receiver.poll(self.now) {
            assert!(self.receiver.held() as u64 <= WINDOW);
            self.put(|| Packet::Received(received.clone()));
        }
    }

    /// Runs until nothing is left to do, and tells how long that took.
    fn run(&mut self, limit: Duration) -> Duration {
        let start = self.now;
        loop {
            self.drain();
            let packet = self.way.first_key_value().map(|((at, _), _)| *at);
            let deadlines = [packet, self.sender.deadline(), self.receiver.deadline()];
            let Some(next) = deadlines.into_iter().flatten().min() else { return self.now.since(start) };
            self.now = self.now.max(next);
            assert!(self.now.since(start) < limit, "{} of {} arrived", self.got.len(), self.sent);
            if packet == Some(next) {
                match self.way.pop_first().expect("there is one").1 {
                    Packet::Stretch(stretch) => {
                        if let Arrived::Bytes(bytes) = self.receiver.handle(self.now, stretch) {
                            self.got.extend(bytes);
                        }
                    }
                    Packet::Received(received) => {
                        self.sender.handle(self.now, &received);
                    }
                }
            }
            if self.sender.deadline().is_some_and(|at| at <= self.now) {
                self.sender.handle_timeout(self.now);
            }
        }
    }
}

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// All arrives, in order and once, whatever the network does; and then nothing is left.
    #[test]
    fn all_arrives(
        seed: u64, loss in 0..300_u64, double in 0..200_u64, jitter in 0..20_000_u64,
        pieces in proptest::collection::vec(0..20_000_usize, 1..12),
    ) {
        let mut pair = Pair::new(seed, loss, double, jitter);
        let all = text(pieces.iter().sum());
        let mut at = 0;
        for piece in pieces {
            let now = pair.now;
            pair.sender.push(now, &all[at..at + piece]);
            at += piece;
            pair.drain();
            pair.now = pair.now + Duration::from_millis(3);
        }
        pair.run(Duration::from_secs(600));
        prop_assert_eq!(&pair.got, &all);
        prop_assert!(pair.sender.is_empty());
        prop_assert_eq!(pair.sender.held() + pair.receiver.held(), 0);
        prop_assert_eq!(pair.sender.deadline(), None);
    }

    /// No acknowledgement, however made up, makes it panic or lose count.
    #[test]
    fn forged_acknowledgements_do_no_harm(
        seed: u64, before in 0..40_000_u64, limit: u64, gaps in proptest::collection::vec((1..3000_u64, 1..3000_u64), 0..5),
        standing in 0..4_u8,
    ) {
        let mut pair = Pair::new(seed, 0, 0, 0);
        let now = pair.now;
        pair.sender.push(now, &text(30_000));
        while pair.sender.poll(now).is_some() {}
        let mut at = before;
        let ranges = gaps.into_iter().map(|(gap, length)| { at += gap + length; (at - length, at) }).collect();
        let standing = StreamStanding::from_number(standing);
        pair.sender.handle(now, &Received { stream: 7, standing, before, limit, ranges });
        while pair.sender.poll(now).is_some() {}
        pair.sender.handle_timeout(now + Duration::from_secs(5));
        while pair.sender.poll(now + Duration::from_secs(5)).is_some() {}
    }
}

#[test]
fn without_loss_nothing_is_sent_twice_and_the_window_opens() {
    let mut pair = Pair::new(1, 0, 0, 0);
    let (now, all) = (pair.now, text(2_000_000));
    pair.sender.push(now, &all);
    let took = pair.run(Duration::from_secs(60));
    assert_eq!(pair.got, all);
    assert_eq!(pair.sent, all.len());
    // The receiver's window of 64 KiB a round trip of 10 ms, after slow start.
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn a_single_loss_costs_a_round_trip_and_not_a_timeout() {
    let mut pair = Pair::new(1, 0, 0, 0);
    let now = pair.now;
    pair.sender.push(now, &text(11_000));
    let lost = pair.sender.poll(now).expect("the first stretch");
    assert_eq!((lost.offset, lost.fresh), (0, true));
    let took = pair.run(Duration::from_secs(1));
    assert_eq!(pair.got.len(), 11_000);
    assert!(took < Duration::from_millis(35), "{took:?}");
}

#[test]
fn a_way_that_was_gone_for_a_while_is_used_as_before() {
    let mut pair = Pair::new(1, 0, 0, 0);
    pair.delay = 20_000;
    let (now, all) = (pair.now, text(2_000_000));
    pair.sender.push(now, &all[..1_000_000]);
    let before = pair.run(Duration::from_secs(60));
    let now = pair.now;
    pair.sender.push(now, &all[1_000_000..]);
    while pair.now < now + Duration::from_millis(700) {
        // It is sent, and gets nowhere.
        pair.drain();
        pair.way.clear();
        pair.now = pair.sender.deadline().expect("it tries again");
        pair.sender.handle_timeout(pair.now);
    }
    let took = pair.run(Duration::from_secs(60));
    assert_eq!(pair.got, all);
    // Half of what the way took before is the least that it takes again (RFC 5681 §3.1), and more is found out from
    // there.
    assert!(took < before * 7 / 4, "{took:?}, and {before:?} before");
}

#[test]
fn a_receiver_that_was_started_anew_is_told_from_its_restart_on() {
    let mut pair = Pair::new(1, 0, 0, 0);
    let now = pair.now;
    pair.sender.push(now, &text(5000));
    pair.run(Duration::from_secs(1));
    pair.receiver = Receiver::new(WINDOW);
    let now = pair.now;
    pair.sender.push(now, b"more");
    let stretch = pair.sender.poll(now).expect("it is sent");
    assert!(!stretch.fresh);
    let Arrived::Foreign(unknown) = pair.receiver.handle(now, stretch) else { panic!("it knows the stream") };
    assert_eq!(unknown.standing, StreamStanding::Unknown);
    assert_eq!(pair.sender.handle(now, &unknown), Heard::Lost(7));
    // A newer stream takes the place of an older one, and not the other way round.
    let stretch = |stream, fresh| Stretch { stream, fresh, offset: 0, bytes: b"x".to_vec() };
    assert_eq!(pair.receiver.handle(now, stretch(9, true)), Arrived::Bytes(b"x".to_vec()));
    let Arrived::Foreign(older) = pair.receiver.handle(now, stretch(8, true)) else { panic!("an older stream") };
    assert_eq!((older.standing, older.before), (StreamStanding::NotNewest, 9));
    let mut behind = Sender::new(8, now, 100);
    behind.push(now, b"x");
    assert!(behind.poll(now).is_some());
    assert_eq!(behind.handle(now, &older), Heard::Lost(9));
}

#[test]
fn who_waits_for_an_answer_asks_from_time_to_time() {
    let mut pair = Pair::new(1, 0, 0, 0);
    pair.sender.awaits = true;
    let mut asked = 0;
    for _ in 0..20 {
        let due = pair.sender.deadline().expect("it asks");
        pair.now = pair.now.max(due);
        pair.sender.handle_timeout(pair.now);
        asked += usize::from(pair.sender.poll(pair.now).is_some_and(|stretch| stretch.bytes.is_empty()));
    }
    assert_eq!(asked, 20);
    assert!(pair.now.since(Time::from_micros(1_000_000)) > Duration::from_secs(60));
    pair.sender.awaits = false;
    assert_eq!(pair.sender.deadline(), None);
}
