//! A transform for tests that does all that a transform may do. It joins two short packets into one, as the paper's
//! reassembly does, and waits for the second one only while the far end has not confirmed the first (RFC 896): so what
//! comes inbound decides what goes outbound.
//!
//! ```text
//!   1 packet | 2 length of the first (2 bytes) first second | 3 how many packets were confirmed (4 bytes)
//! ```
#![allow(dead_code, reason = "each test binary uses a part")]

use std::time::{Duration, Instant};

use whimbrel_transform::{
    Batch, Direction, DropReason, Kind, Packets, ParameterError, ParameterKind, Registry, Transform,
};
use whimbrel_wire::TransformId;

const ONE: u8 = 1;
const TWO: u8 = 2;
const RECEIPT: u8 = 3;
const OVERHEAD: usize = 3;
/// Parameters, and what they may be.
const DELAY: &str = "delay_us";
const DELAY_MOST: u64 = 1_000_000;
const LONGEST: &str = "longest";

/// As ends of a session call it.
pub(crate) const PAIRS: TransformId = TransformId(0xff01);
/// What the pairs are known as to those who agree on them.
pub(crate) const REGISTRY: Registry = Registry(&[Kind {
    id: PAIRS,
    name: "pairs",
    versions: 1..=2,
    parameters: &[
        ParameterKind { number: 1, name: DELAY, range: 0..=DELAY_MOST, default: 20_000 },
        ParameterKind { number: 2, name: LONGEST, range: 0..=65_000, default: 65_000 },
    ],
    make: |_| Box::new(Pairs::new(Duration::ZERO)),
}]);

pub(crate) struct Pairs {
    /// How long a packet waits for another at the most.
    delay: Duration,
    /// Packets that are longer are dropped.
    longest: usize,
    mtu: usize,
    /// Sent and not confirmed.
    unconfirmed: u32,
    kept: Option<(Vec<u8>, Instant)>,
    scratch: Batch,
}

impl Pairs {
    pub(crate) fn new(delay: Duration) -> Self {
        let scratch = Batch::new(0, 0);
        Self { delay, longest: 65_000, mtu: 65_000, unconfirmed: 0, kept: None, scratch }
    }

    fn send(&mut self, batch: &mut Batch, first: &[u8], second: Option<&[u8]>) {
        match second {
            None => {
                let packet = batch.push(1 + first.len());
                packet[0] = ONE;
                packet[1..].copy_from_slice(first);
            }
            Some(second) => {
                let packet = batch.push(OVERHEAD + first.len() + second.len());
                packet[0] = TWO;
                packet[1..OVERHEAD].copy_from_slice(&(first.len() as u16).to_be_bytes());
                packet[OVERHEAD..OVERHEAD + first.len()].copy_from_slice(first);
                packet[OVERHEAD + first.len()..].copy_from_slice(second);
            }
        }
        self.unconfirmed += 1;
    }

    fn handle_outbound(&mut self, now: Instant, packets: &mut Packets) {
        let mut out = std::mem::replace(&mut self.scratch, Batch::new(0, 0));
        out.reset_like(packets.get(Direction::Outbound));
        let mut dropped = 0;
        for packet in packets.get(Direction::Outbound).packets() {
            if packet.len() > self.longest {
                dropped += 1;
                continue;
            }
            match self.kept.take() {
                Some((first, _)) if OVERHEAD + first.len() + packet.len() <= self.mtu => {
                    self.send(&mut out, &first, Some(packet));
                }
                Some((first, _)) => {
                    self.send(&mut out, &first, None);
                    self.send(&mut out, packet, None);
                }
                None if self.unconfirmed > 0 => self.kept = Some((packet.to_vec(), now + self.delay)),
                None => self.send(&mut out, packet, None),
            }
        }
        packets.count_dropped(DropReason::Filtered, dropped);
        std::mem::swap(packets.get_mut(Direction::Outbound), &mut out);
        self.scratch = out;
    }

    fn handle_inbound(&mut self, packets: &mut Packets) {
        let mut decoded = std::mem::replace(&mut self.scratch, Batch::new(0, 0));
        decoded.reset_like(packets.get(Direction::Inbound));
        let (inbound, answers) = packets.both_mut(Direction::Inbound);
        let (mut taken, mut malformed) = (0u32, 0);
        for packet in inbound.packets() {
            match packet {
                [ONE, packet @ ..] => {
                    decoded.push_packet(packet);
                    taken += 1;
                }
                [TWO, high, low, rest @ ..] => {
                    match rest.split_at_checked(usize::from(u16::from_be_bytes([*high, *low]))) {
                        Some((first, second)) => {
                            decoded.push_packet(first);
                            decoded.push_packet(second);
                            taken += 1;
                        }
                        None => malformed += 1,
                    }
                }
                [RECEIPT, count @ ..] if count.len() == 4 => {
                    let count = count.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
                    self.unconfirmed = self.unconfirmed.saturating_sub(count);
                }
                _ => malformed += 1,
            }
        }
        if taken > 0 {
            let receipt = answers.push(5);
            receipt[0] = RECEIPT;
            receipt[1..].copy_from_slice(&taken.to_be_bytes());
        }
        if self.unconfirmed == 0
            && let Some((first, _)) = self.kept.take()
        {
            self.send(answers, &first, None);
        }
        std::mem::swap(inbound, &mut decoded);
        self.scratch = decoded;
        packets.count_dropped(DropReason::Malformed, malformed);
    }
}

impl Transform for Pairs {
    fn name(&self) -> &'static str {
        "pairs"
    }

    fn overhead(&self) -> usize {
        OVERHEAD
    }

    fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    fn handle_packets(&mut self, now: Instant, direction: Direction, packets: &mut Packets) {
        match direction {
            Direction::Outbound => self.handle_outbound(now, packets),
            Direction::Inbound => self.handle_inbound(packets),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.kept.as_ref().map(|(_, due)| *due)
    }

    fn handle_timeout(&mut self, now: Instant, packets: &mut Packets) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.release(packets);
        }
    }

    fn release(&mut self, packets: &mut Packets) {
        if let Some((first, _)) = self.kept.take() {
            self.send(packets.get_mut(Direction::Outbound), &first, None);
        }
    }

    fn held(&self) -> usize {
        usize::from(self.kept.is_some())
    }

    fn parameters(&self) -> Vec<(&'static str, u64)> {
        vec![(DELAY, self.delay.as_micros() as u64), (LONGEST, self.longest as u64)]
    }

    fn set_parameter(&mut self, name: &str, value: u64) -> Result<(), ParameterError> {
        let transform = self.name();
        match name {
            DELAY if value > DELAY_MOST => {
                Err(ParameterError::Range { transform, parameter: DELAY, least: 0, most: DELAY_MOST })
            }
            DELAY => {
                let delay = Duration::from_micros(value);
                if let Some((_, due)) = &mut self.kept {
                    *due = *due + delay - self.delay;
                }
                self.delay = delay;
                Ok(())
            }
            LONGEST => {
                self.longest = value as usize;
                Ok(())
            }
            _ => Err(ParameterError::Unknown { transform }),
        }
    }
}
