//! Chains of transforms, with one that keeps packets, answers, drops and can be set.

#[path = "support/pairs.rs"]
mod pairs;

use std::time::{Duration, Instant};

use pairs::Pairs;
use proptest::prelude::*;
use whimbrel_transform::{Batch, Chain, Direction, DropReason, Packets, ParameterError, Transform};

const DELAY: Duration = Duration::from_millis(20);
/// Rooms as a sealed tunnel has them.
const ROOMS: (usize, usize) = (18, 16);

/// Adds the position in the batch, and a number of its own, to every byte.
struct Shift(u8);
/// Reverses the order of the packets.
struct Reverse;
/// Sends back all that comes, in either direction.
struct Mirror;

impl Transform for Shift {
    fn name(&self) -> &'static str {
        "shift"
    }
    fn overhead(&self) -> usize {
        3
    }
    fn handle_packets(&mut self, _: Instant, direction: Direction, packets: &mut Packets) {
        let (buffer, spans) = packets.get_mut(direction).parts_mut();
        for (span, by) in spans.iter().zip(self.0..) {
            let by = if direction == Direction::Outbound { by } else { by.wrapping_neg() };
            buffer[span.range()].iter_mut().for_each(|byte| *byte = byte.wrapping_add(by));
        }
    }
}

impl Transform for Reverse {
    fn name(&self) -> &'static str {
        "reverse"
    }
    fn overhead(&self) -> usize {
        0
    }
    fn handle_packets(&mut self, _: Instant, direction: Direction, packets: &mut Packets) {
        packets.get_mut(direction).spans_mut().reverse();
    }
}

impl Transform for Mirror {
    fn name(&self) -> &'static str {
        "mirror"
    }
    fn overhead(&self) -> usize {
        0
    }
    fn handle_packets(&mut self, _: Instant, direction: Direction, packets: &mut Packets) {
        let (come, back) = packets.both_mut(direction);
        come.packets().for_each(|packet| back.push_packet(packet));
        come.clear();
    }
}

/// One end of a tunnel.
struct End {
    chain: Chain,
    packets: Packets,
}

impl End {
    fn new(transforms: Vec<Box<dyn Transform>>) -> Self {
        Self { chain: Chain::new(transforms), packets: Packets::default() }
    }

    fn pairs() -> Self {
        Self::new(vec![Box::new(Pairs::new(DELAY))])
    }

    fn reset(&mut self) {
        self.packets.get_mut(Direction::Outbound).reset(ROOMS.0, ROOMS.1);
        self.packets.get_mut(Direction::Inbound).reset(0, 0);
    }

    fn handle(&mut self, now: Instant, direction: Direction, packets: &[Vec<u8>]) {
        self.reset();
        packets.iter().for_each(|packet| self.packets.get_mut(direction).push_packet(packet));
        self.chain.handle_packets(now, direction, &mut self.packets);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.reset();
        self.chain.handle_timeout(now, &mut self.packets);
    }

    fn out(&self, direction: Direction) -> Vec<Vec<u8>> {
        let batch = self.packets.get(direction);
        let rooms = if direction == Direction::Outbound { ROOMS } else { (0, 0) };
        let mut spans = batch.spans().to_vec();
        spans.sort_by_key(|span| span.start);
        let mut end = 0;
        for span in spans {
            assert!(span.start >= end + rooms.0 && span.end() + rooms.1 <= batch.buffer().len(), "the rooms are kept");
            end = span.end() + rooms.1;
        }
        batch.packets().map(<[u8]>::to_vec).collect()
    }

    fn send(&mut self, now: Instant, packet: &[u8]) -> Vec<Vec<u8>> {
        self.handle(now, Direction::Outbound, &[packet.to_vec()]);
        self.out(Direction::Outbound)
    }

    /// What is delivered, and what is answered.
    fn receive(&mut self, now: Instant, packets: &[Vec<u8>]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        self.handle(now, Direction::Inbound, packets);
        (self.out(Direction::Inbound), self.out(Direction::Outbound))
    }
}

#[test]
fn inbound_goes_back_through_the_chain() {
    let make = || End::new(vec![Box::new(Shift(3)), Box::new(Reverse), Box::new(Shift(40))]);
    let (mut sender, mut receiver, now) = (make(), make(), Instant::now());
    let packets: Vec<Vec<u8>> = [b"one".as_slice(), b"three", b"x"].map(<[u8]>::to_vec).into();
    let mut wire = Batch::new(ROOMS.0, ROOMS.1);
    packets.iter().for_each(|packet| wire.push_packet(packet));
    sender.reset();
    std::mem::swap(sender.packets.get_mut(Direction::Outbound), &mut wire);
    let buffer = sender.packets.get(Direction::Outbound).buffer().as_ptr();
    sender.chain.handle_packets(now, Direction::Outbound, &mut sender.packets);
    let encoded = sender.packets.get(Direction::Outbound);
    assert_eq!(encoded.buffer().as_ptr(), buffer, "nothing is copied");
    let encoded: Vec<_> = encoded.packets().map(<[u8]>::to_vec).collect();
    assert_ne!(encoded.last(), packets.last());
    assert_eq!(receiver.receive(now, &encoded), (packets, vec![]));
    assert_eq!(format!("{:?}", sender.chain), r#"["shift", "reverse", "shift"]"#);
    assert_eq!(sender.chain.overhead(), 6);
}

#[test]
fn the_empty_chain_changes_nothing() {
    let mut end = End::new(vec![]);
    assert!(end.chain.is_empty() && end.chain.poll_timeout().is_none());
    assert_eq!(end.send(Instant::now(), b"packet"), [b"packet"]);
    assert_eq!(end.receive(Instant::now(), &[b"packet".to_vec()]), (vec![b"packet".to_vec()], vec![]));
}

#[test]
fn what_is_kept_goes_at_its_deadline_with_another_or_on_an_answer() {
    let (mut a, mut b, now) = (End::pairs(), End::pairs(), Instant::now());
    let first = a.send(now, b"first");
    assert_eq!(first, [b"\x01first"]);
    assert_eq!(a.send(now, b"second"), [b""; 0], "the first is not confirmed");
    assert_eq!((a.chain.held(), a.chain.poll_timeout()), (1, Some(now + DELAY)));

    // With another.
    let both = a.send(now, b"third");
    assert_eq!(both, [b"\x02\x00\x06secondthird"]);
    assert_eq!((a.chain.held(), a.chain.poll_timeout()), (0, None));

    // At its deadline, and not before.
    assert_eq!(a.send(now, b"fourth"), [b""; 0]);
    a.handle_timeout(now + DELAY - Duration::from_nanos(1));
    assert_eq!(a.out(Direction::Outbound), [b""; 0]);
    a.handle_timeout(now + DELAY);
    let fourth = a.out(Direction::Outbound);
    assert_eq!(fourth, [b"\x01fourth"]);

    // On an answer, which goes no further itself.
    assert_eq!(a.send(now, b"fifth"), [b""; 0]);
    let (delivered, answers) = b.receive(now, &[first, both, fourth].concat());
    assert_eq!(delivered, [b"first".as_slice(), b"second", b"third", b"fourth"]);
    assert_eq!(answers, [b"\x03\x00\x00\x00\x03"]);
    assert_eq!(a.receive(now, &answers), (vec![], vec![b"\x01fifth".to_vec()]));
    assert_eq!(a.chain.held(), 0);
}

#[test]
fn what_is_kept_is_given_out_when_the_tunnel_ends() {
    let mut end = End::new(vec![Box::new(Pairs::new(DELAY)), Box::new(Pairs::new(DELAY))]);
    let now = Instant::now();
    assert_eq!(end.send(now, b"first"), [b"\x01\x01first"]);
    assert_eq!(end.send(now, b"second"), [b""; 0]);
    end.reset();
    end.chain.release(now, &mut end.packets);
    assert_eq!(end.out(Direction::Outbound), [b"\x01\x01second"], "kept by the first, then by the second");
    assert_eq!((end.chain.held(), end.chain.poll_timeout()), (0, None));
}

#[test]
fn drops_have_reasons_and_are_counted() {
    let (mut a, now) = (End::pairs(), Instant::now());
    let malformed = [b"".as_slice(), b"\x07", b"\x02\x00\x09short", b"\x03\x00"].map(<[u8]>::to_vec);
    assert_eq!(a.receive(now, &malformed), (vec![], vec![]));
    a.chain.set_parameter(0, "longest", 8).unwrap();
    a.handle(now, Direction::Outbound, &[vec![0; 9], vec![0; 8], vec![0; 10]]);
    assert_eq!(a.out(Direction::Outbound).len(), 1);
    let (name, counters) = a.chain.counters().next().unwrap();
    assert_eq!(name, "pairs");
    let dropped = DropReason::ALL.map(|reason| (reason.name(), counters.dropped.of(reason)));
    assert_eq!(dropped, [("malformed", 4), ("filtered", 2), ("full", 0), ("expired", 0), ("looped", 0)]);
    let traffic = |of: whimbrel_transform::Traffic| (of.packets, of.bytes);
    assert_eq!(traffic(counters.entered(Direction::Inbound)), (4, 11));
    assert_eq!(traffic(counters.left(Direction::Inbound)), (0, 0));
    assert_eq!(traffic(counters.entered(Direction::Outbound)), (3, 27));
    assert_eq!(traffic(counters.left(Direction::Outbound)), (1, 9));
}

#[test]
fn parameters_change_while_packets_are_kept() {
    let (mut a, now) = (End::pairs(), Instant::now());
    a.send(now, b"first");
    a.send(now, b"second");
    a.chain.set_parameter(0, "delay_us", 5000).unwrap();
    assert_eq!(a.chain.poll_timeout(), Some(now + Duration::from_millis(5)));
    let parameters: Vec<_> = a.chain.parameters().collect();
    assert_eq!(parameters, [("pairs", vec![("delay_us", 5000), ("longest", 65_000)])]);
    let transform = "pairs";
    let range = ParameterError::Range { transform, parameter: "delay_us", least: 0, most: 1_000_000 };
    assert_eq!(a.chain.set_parameter(0, "delay_us", 1_000_001), Err(range));
    assert_eq!(a.chain.set_parameter(0, "colour", 1), Err(ParameterError::Unknown { transform }));
    assert_eq!(a.chain.set_parameter(1, "delay_us", 1), Err(ParameterError::Stage { stage: 1 }));
    assert_eq!(a.chain.poll_timeout(), Some(now + Duration::from_millis(5)));
}

#[test]
fn transforms_know_what_fits_behind_them() {
    let (mut a, now) = (End::new(vec![Box::new(Pairs::new(DELAY)), Box::new(Shift(0))]), Instant::now());
    a.send(now, b"first");
    a.chain.set_mtu(14);
    a.send(now, b"1234");
    // 3 + 4 + 4 bytes and 3 of the next transform's are just as many.
    assert_eq!(a.send(now, b"5678").len(), 1);
    a.send(now, b"1234");
    assert_eq!(a.send(now, b"56789").len(), 2, "one after the other, in order");
}

#[test]
fn an_endless_exchange_ends() {
    let (mut end, now) = (End::new(vec![Box::new(Shift(1)), Box::new(Mirror), Box::new(Mirror)]), Instant::now());
    assert_eq!(end.receive(now, &[b"back".to_vec()]), (vec![], vec![b"back".to_vec()]));
    assert_eq!(end.send(now, b"in"), [b""; 0]);
    assert_eq!(end.out(Direction::Inbound), [b"in"]);
    // Between two mirrors.
    struct Source;
    impl Transform for Source {
        fn name(&self) -> &'static str {
            "source"
        }
        fn overhead(&self) -> usize {
            0
        }
        fn handle_packets(&mut self, _: Instant, _: Direction, packets: &mut Packets) {
            packets.get_mut(Direction::Inbound).push_packet(b"1");
            packets.get_mut(Direction::Outbound).push_packet(b"2");
        }
    }
    let mut end = End::new(vec![Box::new(Mirror), Box::new(Source), Box::new(Mirror)]);
    end.receive(now, &[b"x".to_vec()]);
    assert_eq!(end.out(Direction::Outbound), [b"x"]);
    let mut end = End::new(vec![Box::new(Source), Box::new(Mirror)]);
    end.send(now, b"x");
    assert!(end.chain.counters().any(|(_, counters)| counters.dropped.of(DropReason::Looped) > 0));
}

proptest! {
    /// Whatever two ends say to each other, everything arrives once and in order, and nothing is kept for ever.
    #[test]
    fn all_arrives_in_order(
        sizes in proptest::collection::vec((1usize..40, any::<bool>(), 0u64..30), 1..60), both: bool, mtu in 20usize..200,
    ) {
        let make = || if both {
            End::new(vec![Box::new(Pairs::new(DELAY)), Box::new(Pairs::new(DELAY / 2))])
        } else {
            End::pairs()
        };
        let (mut a, mut b, mut now) = (make(), make(), Instant::now());
        a.chain.set_mtu(mtu);
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for (number, (size, answered, pause)) in sizes.into_iter().enumerate() {
            let packet = vec![number as u8; size];
            now += Duration::from_millis(pause);
            a.handle_timeout(now);
            let mut wire = a.out(Direction::Outbound);
            wire.extend(a.send(now, &packet));
            sent.push(packet);
            let (delivered, answers) = b.receive(now, &wire);
            got.extend(delivered);
            if answered {
                let (nothing, more) = a.receive(now, &answers);
                prop_assert!(nothing.is_empty());
                got.extend(b.receive(now, &more).0);
            }
        }
        for _ in 0..3 {
            now += DELAY;
            a.handle_timeout(now);
            let wire = a.out(Direction::Outbound);
            got.extend(b.receive(now, &wire).0);
        }
        prop_assert_eq!(a.chain.held(), 0);
        prop_assert_eq!(got, sent);
    }
}
