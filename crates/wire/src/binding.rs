//! What the two ends of a session call a binding between them, and which flows one leads.

use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::codec::{ENDPOINT_LEN, Malformed, Reader, put_endpoint, put_u16, put_u32, put_u64};
use crate::message::byte_enum;

/// Flows that a message places at the most.
pub const MAX_PLACED: usize = 128;
/// In the count of flows.
const DUPLICATED: u16 = 1 << 15;

/// The number of a binding between two peers. They have one by themselves; others are numbered by the end that makes
/// them, so that those of the two never clash: bit 31 is set in those of the end with the greater key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BindingNumber(pub u32);

impl BindingNumber {
    /// The one that two peers have by themselves.
    pub const FIRST: Self = Self(0);
    /// Set in numbers that the end with the greater key gives.
    const GREATER: u32 = 1 << 31;

    /// The number of the binding that an end makes as its `count`th, counted from 1 and below 2³¹. `greater`: it has
    /// the greater key of the two.
    #[must_use]
    pub const fn made(count: u32, greater: bool) -> Self {
        Self(count | if greater { Self::GREATER } else { 0 })
    }

    /// The count of the binding at the end that has made it, if that is the end with the `greater` key, or with the
    /// lesser.
    #[must_use]
    pub const fn count_of(self, greater: bool) -> Option<u32> {
        if self.is_made(greater) { Some(self.0 & !Self::GREATER) } else { None }
    }

    /// Whether a binding of this number is made by the end with the greater key, or else by that with the lesser.
    #[must_use]
    pub const fn is_made(self, greater: bool) -> bool {
        self.0 & !Self::GREATER != 0 && (self.0 & Self::GREATER != 0) == greater
    }
}

/// Type 0x37: these flows, and no others, go by another binding than the first from now on; until it is answered it is
/// repeated (P-186).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// By this one, which the sender makes.
    pub binding: BindingNumber,
    /// Newer than that of any such message before.
    pub sequence: u32,
    /// The path that it goes by, as the sender counts those that it keeps ready.
    pub path: u32,
    /// What goes by it goes by the path in use as well (P-262).
    pub duplicated: bool,
    /// The names of the flows, at most [`MAX_PLACED`]; what is beyond is not sent. None: the binding is over.
    pub names: Vec<u64>,
}

impl Placed {
    pub(crate) fn encoded_len(&self) -> usize {
        14 + 8 * self.names.len().min(MAX_PLACED)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        [self.binding.0, self.sequence, self.path].iter().for_each(|number| put_u32(out, *number));
        let names = &self.names[..self.names.len().min(MAX_PLACED)];
        put_u16(out, names.len() as u16 | if self.duplicated { DUPLICATED } else { 0 });
        names.iter().for_each(|name| put_u64(out, *name));
    }

    pub(crate) fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (binding, sequence) = (BindingNumber(body.u32("binding")?), body.u32("sequence")?);
        let path = body.u32("number of the path")?;
        let too_many = body.malformed("count of placed flows");
        let count = body.u16("count of placed flows")?;
        let (count, duplicated) = (usize::from(count & !DUPLICATED), count & DUPLICATED != 0);
        if count > MAX_PLACED || count * 8 != body.remaining() {
            return Err(too_many);
        }
        let names = (0..count).map(|_| body.u64("placed flow")).collect::<Result<_, _>>()?;
        Ok(Self { binding, sequence, path, duplicated, names })
    }
}

/// Type 0x38: the answer to [`Placed`]; said by itself where it has become another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedSeen {
    /// As in the message.
    pub binding: BindingNumber,
    /// Of the message that it is about.
    pub sequence: u32,
    /// What became of it.
    pub status: PlacedStatus,
}

/// Length of a [`PlacedSeen`], in bytes.
pub(crate) const PLACED_SEEN_LEN: usize = 9;

impl PlacedSeen {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_u32(out, self.binding.0);
        put_u32(out, self.sequence);
        out.push(self.status.number());
    }

    pub(crate) fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            binding: BindingNumber(body.u32("binding")?),
            sequence: body.u32("sequence")?,
            status: PlacedStatus::from_number(body.u8("status of placed flows")?),
        })
    }
}

byte_enum! {
    /// What became of flows that were placed.
    PlacedStatus {
        /// They go by the binding, those of them that the answering end knows.
        InForce = 0,
        /// The sequence number is not newer than another that the answering end has acted on.
        NotNewer = 1,
        /// The answering end does not want this, or there is no such binding.
        Refused = 2,
        /// The path is not confirmed there yet: they go by it as soon as it is.
        Waits = 3,
        /// They went by it, and the path is not there any more.
        Failed = 4,
    }
}

/// Type 0x39: in a datagram whose source is where the sender was, that a binding update of the first binding is on its
/// way, and from where (P-239).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedUpdate {
    /// Of the binding update.
    pub sequence: u32,
    /// Where the sender is.
    pub claimed: SocketAddr,
}

/// Length of a [`MaskedUpdate`], in bytes.
pub(crate) const MASKED_UPDATE_LEN: usize = 4 + ENDPOINT_LEN;

impl MaskedUpdate {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_u32(out, self.sequence);
        put_endpoint(out, self.claimed);
    }

    pub(crate) fn read(body: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { sequence: body.u32("update sequence")?, claimed: body.endpoint("claimed source")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_two_ends_never_clash() {
        for count in [1, 2, (1 << 31) - 1] {
            let (lesser, greater) = (BindingNumber::made(count, false), BindingNumber::made(count, true));
            assert!(lesser != greater && lesser != BindingNumber::FIRST && greater != BindingNumber::FIRST);
            assert!(lesser.is_made(false) && greater.is_made(true));
            assert!(!lesser.is_made(true) && !greater.is_made(false));
            assert_eq!(
                [lesser.count_of(false), lesser.count_of(true), greater.count_of(true)],
                [Some(count), None, Some(count)]
            );
        }
        // The first is made by nobody, nor is what looks like another first.
        let firsts = [BindingNumber::FIRST, BindingNumber(1 << 31)];
        assert!(firsts.iter().all(|first| !first.is_made(false) && !first.is_made(true)));
    }
}
