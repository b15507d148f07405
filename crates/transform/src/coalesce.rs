//! Receive-side coalescing: consecutive segments of a flow become one super-packet for the TUN device.
//!
//! The rules are those of the kernel's own GRO (net/ipv4/tcp_offload.c `tcp_gro_receive`, net/ipv4/af_inet.c
//! `inet_gro_receive`): what is merged is what segmentation would make again. Order within a flow is kept.

use whimbrel_wire::packet::tcp::flag::{ACK, CWR, ECE, FIN, PSH};
use whimbrel_wire::packet::{Fragment, Headers};
use whimbrel_wire::{Introduction, Transport, checksum};

use crate::batch::Span;
use crate::vnet::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VnetHeader};

/// A packet with any other flag is a story of its own.
const MERGEABLE: u8 = FIN | PSH | ACK | ECE | CWR;
const TCP_FLAGS: usize = 13;
const MAX_PACKET: usize = 65_535;
/// Flows that are looked through for one that a packet continues. More only arise with very many flows in one batch,
/// where there is little to merge.
const MAX_OPEN: usize = 16;
/// Segments of a super-packet: the kernel takes no more of UDP (UDP_MAX_SEGMENTS before Linux 6.9), and a vector of
/// pieces has a limit, too.
const MAX_PIECES: usize = 64;

/// A packet to be written to the TUN device: its pieces lie in the buffer that was coalesced.
#[derive(Debug, Default)]
pub struct SuperPacket {
    offload: VnetHeader,
    pieces: Vec<Span>,
    headers: Option<Headers>,
    /// Payload of the first segment: the segment size.
    size: usize,
    /// Bytes of the whole super-packet.
    total: usize,
    next_sequence: u32,
    last_identification: u16,
    flags: u8,
    verified: bool,
}

impl SuperPacket {
    /// What to write before the packet.
    #[must_use]
    pub fn offload(&self) -> &VnetHeader {
        &self.offload
    }

    /// The packet's bytes in order: the first piece with all headers, the others payload only.
    #[must_use]
    pub fn pieces(&self) -> &[Span] {
        &self.pieces
    }

    /// How many bytes it has, without the offload header.
    #[must_use]
    pub fn len(&self) -> usize {
        self.total
    }

    /// How many bytes its segments have, headers of each included.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        let headers = self.headers.map_or(0, |headers| headers.payload_offset);
        self.total + headers * (self.pieces.len() - 1)
    }

    /// Whether it has no bytes, which does not happen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// Merges the packets of a batch. Memory is kept from batch to batch, state is not.
#[derive(Debug, Default)]
pub struct Coalescer {
    packets: Vec<SuperPacket>,
    used: usize,
    /// Indices of super-packets that may still grow, newest last.
    open: Vec<usize>,
    merge_udp: bool,
}

impl Coalescer {
    /// A coalescer; `merge_udp` says whether the device takes UDP super-packets (TUN_F_USO4 and 6, Linux 6.2).
    #[must_use]
    pub fn new(merge_udp: bool) -> Self {
        Self { merge_udp, ..Self::default() }
    }

    /// Begins a new batch.
    pub fn clear(&mut self) {
        self.used = 0;
        self.open.clear();
    }

    /// Takes the next packet: `buffer[span]`, with `headers` as parsed from it. All packets of a batch lie in the same
    /// buffer and must not be changed until [`Coalescer::finish`].
    pub fn push(&mut self, buffer: &[u8], span: Span, headers: &Headers) {
        let span = Span { start: span.start, len: headers.end };
        let packet = &buffer[span.range()];
        let candidate = Candidate::new(packet, headers, self.merge_udp);
        for position in (0..self.open.len()).rev() {
            let index = self.open[position];
            let group = &mut self.packets[index];
            let same_flow = group.headers.as_ref().is_some_and(|first| {
                first.transport == headers.transport
                    && first.source == headers.source
                    && first.destination == headers.destination
            });
            if !same_flow {
                continue;
            }
            let grown = candidate.as_ref().is_some_and(|candidate| group.merge(buffer, span, headers, candidate));
            if !grown || group.is_closed(candidate.as_ref()) {
                self.open.remove(position);
            }
            if grown {
                return;
            }
            break;
        }
        let index = self.start(span, headers, candidate.as_ref());
        if candidate.is_some_and(|candidate| candidate.flags & (FIN | PSH) == 0) {
            if self.open.len() == MAX_OPEN {
                self.open.remove(0);
            }
            self.open.push(index);
        }
    }

    /// Takes the next packet as it is: one that is never merged.
    pub fn push_single(&mut self, span: Span) {
        self.begin(span, None);
    }

    /// Ends the batch: writes the headers of what was merged, and gives all packets in order.
    pub fn finish(&mut self, buffer: &mut [u8]) -> &[SuperPacket] {
        self.open.clear();
        for group in &mut self.packets[..self.used] {
            if group.pieces.len() > 1 {
                group.write_headers(buffer);
            }
        }
        &self.packets[..self.used]
    }

    fn start(&mut self, span: Span, headers: &Headers, candidate: Option<&Candidate>) -> usize {
        let group = self.begin(span, Some(*headers));
        if let Some(candidate) = candidate {
            group.size = candidate.payload;
            group.next_sequence = candidate.sequence.wrapping_add(candidate.payload as u32);
            group.last_identification = candidate.identification;
            group.flags = candidate.flags;
        }
        self.used - 1
    }

    fn begin(&mut self, span: Span, headers: Option<Headers>) -> &mut SuperPacket {
        if self.used == self.packets.len() {
            self.packets.push(SuperPacket::default());
        }
        let group = &mut self.packets[self.used];
        let mut pieces = std::mem::take(&mut group.pieces);
        pieces.clear();
        pieces.push(span);
        *group = SuperPacket { pieces, headers, total: span.len, ..SuperPacket::default() };
        self.used += 1;
        group
    }
}

/// What decides whether a packet may be merged.
struct Candidate {
    payload: usize,
    sequence: u32,
    identification: u16,
    flags: u8,
}

impl Candidate {
    fn new(packet: &[u8], headers: &Headers, merge_udp: bool) -> Option<Self> {
        let payload = headers.end - headers.payload_offset;
        let plain_network = headers.transport_offset == if headers.is_v6() { 40 } else { 20 };
        if payload == 0 || headers.fragment != Fragment::Whole || !plain_network {
            return None;
        }
        let body = &packet[headers.transport_offset..];
        let (sequence, flags) = match headers.transport {
            Transport::Tcp => (u32::from_be_bytes([body[4], body[5], body[6], body[7]]), body[TCP_FLAGS]),
            // A UDP packet without a checksum cannot be verified, and one whose length differs is not ours to mend. An
            // introduction has to be seen for what it is, else a program would read it (docs/protocol.md P-207).
            Transport::Udp => {
                let exact = usize::from(u16::from_be_bytes([body[4], body[5]])) == body.len();
                let introduces = Introduction::from_udp_payload(&packet[headers.payload_offset..]).is_some();
                (merge_udp && exact && !introduces && body[6..8] != [0, 0]).then_some((0, ACK))?
            }
        };
        let identification = if headers.is_v6() { 0 } else { u16::from_be_bytes([packet[4], packet[5]]) };
        (flags & !MERGEABLE == 0 && flags & ACK != 0).then_some(Self { payload, sequence, identification, flags })
    }
}

impl SuperPacket {
    /// Appends the payload of `buffer[span]` if segmentation would make that packet again.
    fn merge(&mut self, buffer: &[u8], span: Span, headers: &Headers, candidate: &Candidate) -> bool {
        let Some(first) = self.headers else { return false };
        let leader = &buffer[self.pieces[0].start..self.pieces[0].start + first.payload_offset];
        let packet = &buffer[span.range()];
        let tcp = headers.transport == Transport::Tcp;
        if headers.payload_offset != first.payload_offset
            || candidate.payload > self.size
            || self.total + candidate.payload > MAX_PACKET
            || self.pieces.len() == MAX_PIECES
            || candidate.flags & CWR != 0
            || (tcp && candidate.sequence != self.next_sequence)
            || !same_network(leader, packet, headers, self.last_identification, candidate.identification)
            || (tcp
                && !same_tcp(&leader[first.transport_offset..], &packet[first.transport_offset..first.payload_offset]))
        {
            return false;
        }
        if !self.verified {
            let leader = &buffer[self.pieces[0].range()];
            if !checksum_holds(leader, &first) {
                return false;
            }
            self.verified = true;
        }
        if !checksum_holds(packet, headers) {
            return false;
        }
        self.pieces.push(Span { start: span.start + headers.payload_offset, len: candidate.payload });
        self.total += candidate.payload;
        self.next_sequence = self.next_sequence.wrapping_add(candidate.payload as u32);
        self.last_identification = candidate.identification;
        self.flags |= candidate.flags;
        true
    }

    /// Whether the packet merged last ends the super-packet: a short one or one that is to be delivered at once.
    fn is_closed(&self, last: Option<&Candidate>) -> bool {
        last.is_none_or(|last| last.payload < self.size || last.flags & (FIN | PSH) != 0)
    }

    fn write_headers(&mut self, buffer: &mut [u8]) {
        let Some(headers) = self.headers else { return };
        let packet = &mut buffer[self.pieces[0].range()];
        // `merge` keeps the total within 16 bits.
        let short = |value: usize| u16::try_from(value).unwrap_or(u16::MAX);
        let addresses = if headers.is_v6() {
            packet[4..6].copy_from_slice(&short(self.total - 40).to_be_bytes());
            checksum::sum(&packet[8..40])
        } else {
            packet[2..4].copy_from_slice(&short(self.total).to_be_bytes());
            packet[10..12].fill(0);
            let sum = checksum::sum(&packet[..headers.transport_offset]);
            packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
            checksum::sum(&packet[12..20])
        };
        let body = &mut packet[headers.transport_offset..];
        let length = short(self.total - headers.transport_offset);
        let gso_type = match headers.transport {
            Transport::Tcp => {
                body[TCP_FLAGS] |= self.flags & (FIN | PSH);
                let kind = if headers.is_v6() { GSO_TCPV6 } else { GSO_TCPV4 };
                kind | if self.flags & CWR != 0 { GSO_ECN } else { 0 }
            }
            Transport::Udp => {
                body[4..6].copy_from_slice(&length.to_be_bytes());
                GSO_UDP_L4
            }
        };
        let pseudo = checksum::add(checksum::add(addresses, headers.transport.protocol().into()), length);
        let at = headers.checksum_offset() - headers.transport_offset;
        body[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        self.offload = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type,
            hdr_len: short(headers.payload_offset),
            gso_size: short(self.size),
            csum_start: short(headers.transport_offset),
            csum_offset: short(at),
        };
    }
}

/// Whether two IP headers are those of neighbouring segments: the same except for length, identification and checksum.
fn same_network(a: &[u8], b: &[u8], headers: &Headers, last_identification: u16, identification: u16) -> bool {
    if headers.is_v6() {
        a[..4] == b[..4] && a[6..8] == b[6..8]
    } else {
        // With don't-fragment the identification means nothing (RFC 6864 §4.1): some stacks repeat it.
        let dont_fragment = a[6] & 0x40 != 0;
        let follows = identification == last_identification.wrapping_add(1);
        a[..2] == b[..2] && a[6..10] == b[6..10] && (follows || dont_fragment)
    }
}

/// Whether two TCP headers agree in all but sequence number, checksum, FIN, PSH and CWR: acknowledgement, window,
/// options.
fn same_tcp(a: &[u8], b: &[u8]) -> bool {
    const FREE: u8 = FIN | PSH | CWR;
    a[8..13] == b[8..13] && a[13] & !FREE == b[13] & !FREE && a[14..16] == b[14..16] && a[18..] == b[18..]
}

/// Whether IP header and transport checksum are right: after merging nobody can tell any more.
fn checksum_holds(packet: &[u8], headers: &Headers) -> bool {
    let body = &packet[headers.transport_offset..headers.end];
    let (network, addresses) = if headers.is_v6() {
        (0xffff, &packet[8..40])
    } else {
        (checksum::sum(&packet[..headers.transport_offset]), &packet[12..20])
    };
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    let pseudo = checksum::add(checksum::add(checksum::sum(addresses), headers.transport.protocol().into()), length);
    network == 0xffff && checksum::add(pseudo, checksum::sum(body)) == 0xffff
}
