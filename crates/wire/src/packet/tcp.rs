//! Segments of TCP (RFC 9293 §3.1).

use alloc::vec::Vec;

use super::PacketError;
use super::write::WriteError;

const HEADER: usize = 20;

/// Flags of a segment.
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// To be delivered at once.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
    /// ECN echo (RFC 3168).
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced (RFC 3168).
    pub const CWR: u8 = 0x80;
}

/// A segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tcp<'a> {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Number of the first byte of the payload.
    pub sequence: u32,
    /// The byte that is expected next, with [`flag::ACK`].
    pub acknowledgement: u32,
    /// See [`flag`].
    pub flags: u8,
    /// As in the header, without the scale.
    pub window: u16,
    /// Options as they stand, a multiple of 4 bytes.
    pub options: &'a [u8],
    /// What follows.
    pub payload: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Reads a segment, which ends where its packet does.
    ///
    /// # Errors
    /// [`PacketError`] if it is shorter than it says, or has no whole header.
    pub fn parse(segment: &'a [u8]) -> Result<Self, PacketError> {
        let header: &[u8; HEADER] = segment.first_chunk().ok_or(PacketError::Truncated)?;
        let short = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let long = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let offset = usize::from(header[12] >> 4) * 4;
        if offset < HEADER {
            return Err(PacketError::Malformed);
        }
        Ok(Self {
            source_port: short(0),
            destination_port: short(2),
            sequence: long(4),
            acknowledgement: long(8),
            flags: header[13],
            window: short(14),
            options: segment.get(HEADER..offset).ok_or(PacketError::Truncated)?,
            payload: &segment[offset..],
        })
    }

    /// Whether all of these flags are set.
    #[must_use]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The segment's bytes, with zero for the checksum, which is the packet's.
    ///
    /// # Errors
    /// [`WriteError::TooLong`] if there are too many options.
    pub fn write(&self) -> Result<Vec<u8>, WriteError> {
        debug_assert!(self.options.len().is_multiple_of(4), "options are padded");
        let offset = HEADER + self.options.len();
        let words = u8::try_from(offset / 4).ok().filter(|words| *words < 16).ok_or(WriteError::TooLong)?;
        let mut segment = Vec::with_capacity(offset + self.payload.len());
        segment.extend_from_slice(&self.source_port.to_be_bytes());
        segment.extend_from_slice(&self.destination_port.to_be_bytes());
        segment.extend_from_slice(&self.sequence.to_be_bytes());
        segment.extend_from_slice(&self.acknowledgement.to_be_bytes());
        segment.extend_from_slice(&[words << 4, self.flags]);
        segment.extend_from_slice(&self.window.to_be_bytes());
        segment.extend_from_slice(&[0; 4]);
        segment.extend_from_slice(self.options);
        segment.extend_from_slice(self.payload);
        Ok(segment)
    }
}
