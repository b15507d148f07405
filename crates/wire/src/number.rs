//! Numbers that this host gives, and that its parts call things by among themselves. They are on no wire.

use core::fmt;

use serde::{Deserialize, Serialize};

/// A peer's number on this host: 1 to [`PeerId::MOST`]. One that is read from elsewhere and is no such number is
/// refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32")]
pub struct PeerId(pub u32);

impl PeerId {
    /// The first.
    pub const FIRST: Self = Self(1);

    /// The greatest: the numbers above are bindings of single flows.
    pub const MOST: u32 = (1 << PEER_BITS) - 1;

    /// The one after it. After the greatest comes the first.
    #[must_use]
    pub const fn next(self) -> Self {
        if self.0 >= Self::MOST { Self::FIRST } else { Self(self.0 + 1) }
    }
}

/// A number that no peer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPeerId(u32);

impl fmt::Display for NoPeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no number of a peer: these are 1 to {}", self.0, PeerId::MOST)
    }
}

impl core::error::Error for NoPeerId {}

impl TryFrom<u32> for PeerId {
    type Error = NoPeerId;

    fn try_from(number: u32) -> Result<Self, NoPeerId> {
        if (1..=Self::MOST).contains(&number) { Ok(Self(number)) } else { Err(NoPeerId(number)) }
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// What leads flows of a peer, as data plane and tunnel know it: where the peer is, and how packets go there. Each peer
/// has a first one; single flows may have another. The number tells whose it is.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BindingId(u32);

/// The bits that are the peer's number. The others count what the peer has beside its first.
const PEER_BITS: u32 = 28;

impl BindingId {
    /// How many a peer may have beside its first.
    pub const SIDES: u8 = 15;

    /// That of nobody.
    pub const NONE: Self = Self(0);

    /// The first of a peer: it has the peer's number.
    #[must_use]
    pub const fn first(peer: PeerId) -> Self {
        Self(peer.0)
    }

    /// One beside it, counted from 1 to [`BindingId::SIDES`]; 0: the first.
    #[must_use]
    pub const fn side(peer: PeerId, side: u8) -> Self {
        debug_assert!(side <= Self::SIDES && peer.0 <= PeerId::MOST);
        Self((side as u32) << PEER_BITS | peer.0)
    }

    /// Whose it is.
    #[must_use]
    pub const fn peer(self) -> PeerId {
        PeerId(self.0 & ((1 << PEER_BITS) - 1))
    }

    /// Whether it is the peer's first.
    #[must_use]
    pub const fn is_first(self) -> bool {
        self.0 >> PEER_BITS == 0
    }
}

impl fmt::Display for BindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> PEER_BITS {
            0 => self.peer().fmt(f),
            side => write!(f, "{}.{side}", self.peer()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn numbers_of_peers_begin_again_below_those_of_bindings_of_single_flows() {
        assert_eq!(PeerId(PeerId::MOST - 1).next(), PeerId(PeerId::MOST));
        assert_eq!(PeerId(PeerId::MOST).next(), PeerId(1));
        for number in [1, PeerId::MOST] {
            assert!(PeerId::try_from(number) == Ok(PeerId(number)) && BindingId::first(PeerId(number)).is_first());
        }
        for number in [0, PeerId::MOST + 1, u32::MAX] {
            assert_eq!(PeerId::try_from(number), Err(NoPeerId(number)));
        }
    }

    #[test]
    fn bindings_of_all_peers_are_told_apart_and_say_whose_they_are() {
        let first = BindingId::first(PeerId(7));
        assert!(first.0 == 7 && first.is_first() && first.peer() == PeerId(7) && first.to_string() == "#7");
        let second = BindingId::side(PeerId(7), 2);
        assert!(second != first && !second.is_first() && second.peer() == PeerId(7) && second.to_string() == "#7.2");
        assert_eq!(BindingId::side(PeerId(7), 0), first);
        let last = BindingId::side(PeerId(PeerId::MOST), BindingId::SIDES);
        assert!(last.peer() == PeerId(PeerId::MOST) && last.to_string() == "#268435455.15");
    }
}
