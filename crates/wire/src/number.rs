//! Numbers that this host gives, and that its parts call things by among themselves. They are on no wire.

use core::fmt;

use serde::{Deserialize, Serialize};

/// A peer's number on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PeerId(pub u32);

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

    /// One beside it, counted from 1; `None`: there are not so many, or there is no room for the peer's number.
    #[must_use]
    pub const fn side(peer: PeerId, side: u8) -> Option<Self> {
        if side == 0 || side > Self::SIDES || peer.0 >> PEER_BITS != 0 {
            return None;
        }
        Some(Self((side as u32) << PEER_BITS | peer.0))
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
    fn bindings_of_all_peers_are_told_apart_and_say_whose_they_are() {
        let first = BindingId::first(PeerId(7));
        assert!(first.0 == 7 && first.is_first() && first.peer() == PeerId(7) && first.to_string() == "#7");
        let second = BindingId::side(PeerId(7), 2).unwrap();
        assert!(second != first && !second.is_first() && second.peer() == PeerId(7) && second.to_string() == "#7.2");
        for (peer, side) in [(7, 0), (7, 16), (1 << 28, 1), (u32::MAX, 1)] {
            assert_eq!(BindingId::side(PeerId(peer), side), None);
        }
    }
}
