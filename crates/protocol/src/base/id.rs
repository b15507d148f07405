//! What names a link and a path on this host.

/// A link of this host: the index that the kernel gives the interface. One stay on a link is an
/// [`Attachment`](crate::Attachment), which tells it from the stays before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

impl LinkId {
    /// That of an address which is no link's.
    pub(crate) const NONE: Self = Self(0);
    /// That of the loopback interface, in each network namespace of Linux.
    const LOOPBACK: Self = Self(1);

    /// Whether it leads to other hosts.
    pub(crate) fn leads_out(self) -> bool {
        self != Self::NONE && self != Self::LOOPBACK
    }
}

/// A path to a peer, counted by this host for that peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);
