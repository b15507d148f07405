//! Packets that travel through a tunnel together, in one buffer.

use std::ops::Range;

/// Where a packet lies in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

impl Span {
    /// The bytes as a range.
    #[must_use]
    pub fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// One past the last byte.
    #[must_use]
    pub fn end(self) -> usize {
        self.start + self.len
    }
}

/// An ordered batch of packets. Around each lie `headroom` and `tailroom` bytes that belong to no other packet, so that
/// framing and sealing need no copy, and consecutive packets with their rooms lie side by side, as a GSO send wants it.
#[derive(Debug)]
pub struct Batch {
    buffer: Vec<u8>,
    used: usize,
    packets: Vec<Span>,
    headroom: usize,
    tailroom: usize,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new(headroom: usize, tailroom: usize) -> Self {
        Self { buffer: Vec::new(), used: 0, packets: Vec::new(), headroom, tailroom }
    }

    /// Forgets all packets and sets the rooms around those to come; memory is kept.
    pub fn reset(&mut self, headroom: usize, tailroom: usize) {
        self.used = 0;
        self.packets.clear();
        (self.headroom, self.tailroom) = (headroom, tailroom);
    }

    /// As [`Self::reset`], with the rooms that `other` has.
    pub fn reset_like(&mut self, other: &Self) {
        self.reset(other.headroom, other.tailroom);
    }

    /// Forgets all packets; rooms and memory are kept.
    pub fn clear(&mut self) {
        self.reset(self.headroom, self.tailroom);
    }

    /// Appends a packet of `len` bytes, whose contents are for the caller to write: they are whatever the buffer held.
    pub fn push(&mut self, len: usize) -> &mut [u8] {
        let start = self.used + self.headroom;
        let end = start + len + self.tailroom;
        if end > self.buffer.len() {
            self.buffer.resize(end.next_power_of_two(), 0);
        }
        self.used = end;
        let span = Span { start, len };
        self.packets.push(span);
        &mut self.buffer[span.range()]
    }

    /// Appends a copy of `packet`.
    pub fn push_packet(&mut self, packet: &[u8]) {
        self.push(packet.len()).copy_from_slice(packet);
    }

    /// The places of the packets, in order.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.packets
    }

    /// The places of the packets, for transforms that drop, shorten or reorder: a span may be made smaller or moved
    /// within bytes that were its own, never grown over another's.
    pub fn spans_mut(&mut self) -> &mut Vec<Span> {
        &mut self.packets
    }

    /// The buffer that the spans point into.
    #[must_use]
    pub fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// The buffer that the spans point into.
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// The buffer and the spans at once.
    pub fn parts_mut(&mut self) -> (&mut [u8], &mut Vec<Span>) {
        (&mut self.buffer, &mut self.packets)
    }

    /// The packets in order.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.packets.iter().map(|span| &self.buffer[span.range()])
    }

    /// How many bytes packets and rooms take up.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    /// How many packets there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}
