//! What a flow is called between two hosts.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use whimbrel_handshake::PublicKey;
use whimbrel_wire::moving::{Request, Ticket};

/// What this host and another call a flow that is one of the two (P-132). Whoever has had the flow before knows what it
/// is called, and may have another that is called the same: without the host that says it a name says nothing, and it
/// is looked up among the flows of that host alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlowName {
    // First, so that those of one value are beside one another.
    value: u64,
    peer: PublicKey,
}

impl FlowName {
    /// Of a flow with a host, by what the two say to each other for it.
    #[must_use]
    pub const fn new(peer: PublicKey, value: u64) -> Self {
        Self { value, peer }
    }

    /// With whom the flow is one: at its holder the owner of the socket, at an owner the holder.
    #[must_use]
    pub const fn peer(&self) -> PublicKey {
        self.peer
    }

    /// What the two say to each other for it.
    #[must_use]
    pub const fn value(&self) -> u64 {
        self.value
    }

    /// The flow of a request, as its acceptor will call it.
    pub(crate) fn requested(request: &Request) -> Self {
        Self::new(PublicKey::from(request.holder), request.flow)
    }

    /// The flow of a ticket, as the holder calls it before the ticket is used.
    pub(crate) fn given(ticket: &Ticket) -> Self {
        Self::new(PublicKey::from(ticket.name.donor), ticket.flow)
    }

    /// What the flow is called once it is with another host.
    pub(crate) const fn with(&self, peer: PublicKey) -> Self {
        Self::new(peer, self.value)
    }

    /// The names of all hosts that could be told from one another by the host alone.
    pub(crate) fn alike(value: u64) -> RangeInclusive<Self> {
        Self::new(PublicKey::from([0; 32]), value)..=Self::new(PublicKey::from([0xff; 32]), value)
    }
}

impl fmt::Display for FlowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} with {}", self.value, self.peer)
    }
}

impl fmt::Debug for FlowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
