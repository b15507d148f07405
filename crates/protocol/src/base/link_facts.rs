//! What is known of a link by itself, whoever is reached by it: layer 2 says so, or who manages the interface.

/// What detectors tell of one link. What they cannot know speaks for nothing, and against nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFacts {
    /// How strong the other end is received, in dBm.
    pub signal: Option<i16>,
    /// What layer 2 carries at most now, in Mbit/s.
    pub rate: Option<u32>,
    /// Layer 2 doubts by itself that anything passes: beacons are lost, the access point has sent this host away.
    pub doubtful: bool,
    /// It is about to be taken down.
    pub leaving: bool,
    /// Behind it is a portal that asks for a login, or no Internet.
    pub captive: bool,
    /// What goes by it costs.
    pub metered: bool,
}

/// Why a link is avoided as long as a peer answers by another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkFault {
    /// Behind it is a portal, or no Internet.
    Captive,
    /// It is about to be taken down.
    Leaving,
}

/// Why it is in doubt whether what goes by a link arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDoubt {
    /// More than one answer of the peer's is overdue.
    Overdue,
    /// Layer 2 says so ([`LinkFacts::doubtful`]).
    Link,
    /// What else speaks against it.
    Fault(LinkFault),
}

impl LinkFacts {
    /// What speaks against it, the worst first.
    #[must_use]
    pub fn fault(&self) -> Option<LinkFault> {
        let all = [(self.leaving, LinkFault::Leaving), (self.captive, LinkFault::Captive)];
        all.into_iter().find_map(|(is_so, fault)| is_so.then_some(fault))
    }
}
