//! The stream of bytes between two hosts that records go in, and how its receiver stands: P-71.

use alloc::vec::Vec;

use super::codec::read_flag;
use crate::codec::{Malformed, Reader};
use crate::codec::{put_u16, put_u64};
use crate::message::byte_enum;

/// A stretch of a stream of records (P-71).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The number of the stream: higher than that of any before it between the same hosts, the same way.
    pub stream: u64,
    /// Whether its sender has heard nothing of the receiver's about this stream yet.
    pub fresh: bool,
    /// Where in the stream it stands, in bytes.
    pub offset: u64,
    /// At most [`MAX_STRETCH`]; none at all asks how the receiver stands.
    pub bytes: Vec<u8>,
}

/// How the receiver of a stream stands (P-71).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The stream.
    pub stream: u64,
    /// What the receiver makes of it.
    pub standing: StreamStanding,
    /// All before it has arrived; where the stream is not the newest, the number of that one.
    pub before: u64,
    /// What is sent from there on is not taken yet.
    pub limit: u64,
    /// Beginnings and ends of what has arrived after that, in order; at most [`MAX_RANGES`], what is beyond is not
    /// sent.
    pub ranges: Vec<(u64, u64)>,
}

byte_enum! {
    /// What the receiver makes of a stream.
    StreamStanding {
        /// It takes it.
        Taken = 0,
        /// It does not know how it began: all is to be said again, in another stream.
        Unknown = 1,
        /// There is a newer one.
        NotNewest = 2,
    }
}

/// Most bytes of a stream in one message: with it a datagram is no longer than 1280 bytes over IPv6 (RFC 8200 §5).
pub const MAX_STRETCH: usize = 1150;
/// Most ranges in one acknowledgement.
pub const MAX_RANGES: usize = 32;

const STRETCH_FIXED: usize = 17;
const RECEIVED_FIXED: usize = 27;

impl Stretch {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_u64(out, self.stream);
        out.push(u8::from(self.fresh));
        put_u64(out, self.offset);
        out.extend_from_slice(&self.bytes[..self.bytes.len().min(MAX_STRETCH)]);
    }

    pub(crate) fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (stream, fresh) = (body.u64("number of the stream")?, read_flag(body, "whether the stream is fresh")?);
        let beyond = body.malformed("stretch of a stream");
        let offset = body.u64("offset in the stream")?;
        let bytes = body.rest();
        if bytes.len() > MAX_STRETCH || offset.checked_add(bytes.len() as u64).is_none() {
            return Err(beyond);
        }
        Ok(Self { stream, fresh, offset, bytes: bytes.to_vec() })
    }

    /// Length of the body, in bytes.
    pub(crate) fn length(&self) -> usize {
        STRETCH_FIXED + self.bytes.len().min(MAX_STRETCH)
    }
}

impl Received {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_u64(out, self.stream);
        out.push(self.standing.number());
        put_u64(out, self.before);
        put_u64(out, self.limit);
        let ranges = &self.ranges[..self.ranges.len().min(MAX_RANGES)];
        put_u16(out, ranges.len() as u16);
        for (start, end) in ranges {
            put_u64(out, *start);
            put_u64(out, *end);
        }
    }

    pub(crate) fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        let stream = body.u64("number of the stream")?;
        let standing = StreamStanding::from_number(body.u8("standing of the stream")?);
        let (before, limit) = (body.u64("what has arrived")?, body.u64("limit of the stream")?);
        let too_many = body.malformed("count of ranges");
        let count = usize::from(body.u16("count of ranges")?);
        if count > MAX_RANGES || count * 16 != body.remaining() {
            return Err(too_many);
        }
        let mut ranges = Vec::with_capacity(count);
        let mut last = before;
        for _ in 0..count {
            let disordered = body.malformed("range of a stream");
            let (start, end) = (body.u64("start of a range")?, body.u64("end of a range")?);
            if start <= last || end <= start {
                return Err(disordered);
            }
            last = end;
            ranges.push((start, end));
        }
        Ok(Self { stream, standing, before, limit, ranges })
    }

    /// Length of the body, in bytes.
    pub(crate) fn length(&self) -> usize {
        RECEIVED_FIXED + 16 * self.ranges.len().min(MAX_RANGES)
    }
}
