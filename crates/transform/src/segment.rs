//! Software segmentation: a super-packet of an offloading stack becomes the packets that a network card would send.

use whimbrel_wire::packet::tcp::flag::{CWR, FIN, PSH};
use whimbrel_wire::packet::{Fragment, Headers};
use whimbrel_wire::{Transport, checksum};

use crate::batch::Batch;
use crate::vnet::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VnetHeader};

const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;
const UDP_LENGTH: usize = 4;

/// Why a super-packet could not be cut. Nothing was appended to the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// An offload that was not asked for, or that does not fit the packet's protocol.
    #[error("segmentation type {0} does not fit the packet")]
    Type(u8),
    /// The checksum's place lies outside of the packet.
    #[error("checksum offset outside of the packet")]
    Checksum,
    /// A segment size of zero.
    #[error("segment size is zero")]
    Size,
}

/// Appends to `batch` the packets that `packet` stands for, each with all its checksums whole, and returns how many.
/// `headers` is what [`Headers::parse`] finds in `packet`.
///
/// As a card does it: the IPv4 identification rises by one from segment to segment, TCP's FIN and PSH go on the last
/// segment only and CWR on the first only (RFC 3168 §6.1.2).
///
/// # Errors
/// [`SegmentError`] if the offload header contradicts the packet.
pub fn segment(
    packet: &[u8],
    headers: &Headers,
    offload: &VnetHeader,
    batch: &mut Batch,
) -> Result<usize, SegmentError> {
    let packet = &packet[..headers.end];
    let payload = &packet[headers.payload_offset..];
    if offload.gso_kind() == GSO_NONE {
        push_single(packet, offload, batch)?;
        return Ok(1);
    }
    let cut = Cut::new(packet, headers, offload)?;
    for (index, chunk) in payload.chunks(cut.size).enumerate() {
        let segment = batch.push(headers.payload_offset + chunk.len());
        segment[headers.payload_offset..].copy_from_slice(chunk);
        cut.write_headers(segment, index);
    }
    Ok(cut.count)
}

/// The offload header by which a TCP packet is cut into ones of at most `mtu` bytes: TCP is a stream of bytes, and does
/// not mind where it is cut. So a sender need not be told of a path that is smaller than the one it made its segments
/// for. Everything else keeps the header that it has.
#[must_use]
pub fn fitting(headers: &Headers, offload: VnetHeader, mtu: usize) -> VnetHeader {
    let whole = headers.transport == Transport::Tcp && headers.fragment == Fragment::Whole;
    let longest = match offload.gso_kind() {
        GSO_NONE => headers.end,
        _ => headers.payload_offset + usize::from(offload.gso_size),
    };
    let room = mtu.saturating_sub(headers.payload_offset);
    if !whole || longest.min(headers.end) <= mtu || room == 0 {
        return offload;
    }
    let kind = if headers.is_v6() { GSO_TCPV6 } else { GSO_TCPV4 };
    let ecn = offload.gso_type & !offload.gso_kind();
    VnetHeader { gso_type: kind | ecn, gso_size: u16::try_from(room).unwrap_or(u16::MAX), ..offload }
}

/// Completes the checksum of a packet that is not to be cut, in place.
///
/// # Errors
/// [`SegmentError::Checksum`].
pub fn complete_checksum(packet: &mut [u8], offload: &VnetHeader) -> Result<(), SegmentError> {
    if offload.needs_checksum() {
        let (start, at) = (usize::from(offload.csum_start), usize::from(offload.csum_offset));
        let body = packet.get_mut(start..).ok_or(SegmentError::Checksum)?;
        let sum = checksum::sum(body);
        let field = body.get_mut(at..at + 2).ok_or(SegmentError::Checksum)?;
        field.copy_from_slice(&nonzero(!sum).to_be_bytes());
    }
    Ok(())
}

/// How one super-packet is cut: all that its segments' headers are made from. With it the payload may be put in place
/// by whoever reads it, and only the headers are written here.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    headers: &'a Headers,
    template: &'a [u8],
    size: usize,
    count: usize,
    sequence: u32,
    identification: u16,
    /// Sum of the pseudo-header without the length.
    pseudo: u16,
}

impl<'a> Cut<'a> {
    /// Prepares to cut `packet` as `offload` says. Only the header part of `packet` is kept.
    ///
    /// # Errors
    /// [`SegmentError`] if the offload header contradicts the packet.
    pub fn new(packet: &'a [u8], headers: &'a Headers, offload: &VnetHeader) -> Result<Self, SegmentError> {
        let fits = match (offload.gso_kind(), headers.transport) {
            (GSO_TCPV4, Transport::Tcp) => !headers.is_v6(),
            (GSO_TCPV6, Transport::Tcp) => headers.is_v6(),
            (GSO_UDP_L4, Transport::Udp) => true,
            _ => false,
        };
        if !fits || headers.fragment != Fragment::Whole {
            return Err(SegmentError::Type(offload.gso_type));
        }
        if offload.gso_size == 0 {
            return Err(SegmentError::Size);
        }
        let size = usize::from(offload.gso_size);
        let template = &packet[..headers.payload_offset];
        let addresses = if headers.is_v6() { &packet[8..40] } else { &packet[12..20] };
        let at = headers.transport_offset + TCP_SEQUENCE;
        let sequence = match headers.transport {
            Transport::Tcp => u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]),
            Transport::Udp => 0,
        };
        Ok(Self {
            headers,
            template,
            size,
            count: (headers.end - headers.payload_offset).div_ceil(size),
            sequence,
            identification: u16::from_be_bytes([packet[4], packet[5]]),
            pseudo: checksum::add(checksum::sum(addresses), headers.transport.protocol().into()),
        })
    }

    /// Payload bytes of every segment but the last, which may have fewer.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many segments there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Writes the headers of the segment number `index` before its payload, which is in place already.
    pub fn write_headers(&self, segment: &mut [u8], index: usize) {
        let (headers, len) = (self.headers, segment.len());
        segment[..headers.payload_offset].copy_from_slice(self.template);
        // A segment is shorter than the super-packet, whose length fits 16 bits.
        let short = |value: usize| u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes();
        let step = u32::try_from(index).unwrap_or(0);
        if headers.is_v6() {
            segment[4..6].copy_from_slice(&short(len - 40));
        } else {
            segment[2..4].copy_from_slice(&short(len));
            let identification = self.identification.wrapping_add(step as u16);
            segment[4..6].copy_from_slice(&identification.to_be_bytes());
            segment[10..12].fill(0);
            let sum = checksum::sum(&segment[..headers.transport_offset]);
            segment[10..12].copy_from_slice(&(!sum).to_be_bytes());
        }
        let body = &mut segment[headers.transport_offset..];
        let length = short(body.len());
        match headers.transport {
            Transport::Tcp => {
                let sequence = self.sequence.wrapping_add(step.wrapping_mul(self.size as u32));
                body[TCP_SEQUENCE..TCP_SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
                if index > 0 {
                    body[TCP_FLAGS] &= !CWR;
                }
                if index + 1 < self.count {
                    body[TCP_FLAGS] &= !(FIN | PSH);
                }
            }
            Transport::Udp => body[UDP_LENGTH..UDP_LENGTH + 2].copy_from_slice(&length),
        }
        let at = headers.checksum_offset() - headers.transport_offset;
        body[at..at + 2].fill(0);
        let sum = checksum::add(checksum::add(self.pseudo, u16::from_be_bytes(length)), checksum::sum(body));
        let value = match headers.transport {
            Transport::Tcp => !sum,
            Transport::Udp => nonzero(!sum),
        };
        body[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

/// Appends to `batch` a packet that is none of many, with its checksum whole.
///
/// # Errors
/// [`SegmentError::Checksum`] if the offload header contradicts the packet.
pub fn push_single(packet: &[u8], offload: &VnetHeader, batch: &mut Batch) -> Result<(), SegmentError> {
    let place = usize::from(offload.csum_start) + usize::from(offload.csum_offset);
    if offload.needs_checksum() && place + 2 > packet.len() {
        return Err(SegmentError::Checksum);
    }
    let single = batch.push(packet.len());
    single.copy_from_slice(packet);
    complete_checksum(single, offload)
}

/// Zero would mean "no checksum" in UDP; in ones' complement 0xffff is the same number, for TCP as well.
pub(crate) fn nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}
