//! Datagrams as they arrive.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::message::Message;

use crate::base::id::LinkId;

/// How a datagram arrived.
pub(crate) struct Arrival {
    pub source: SocketAddr,
    pub destination: Option<IpAddr>,
    /// The link that it came by, where the caller has said.
    pub link: Option<LinkId>,
    /// The index of the session that it came in, and its counter there.
    pub datagram: (u32, u64),
    pub length: usize,
    /// Its counter is above all before it.
    pub is_newest: bool,
    /// It came by way of a host that stands in for this one.
    pub passed_on: bool,
}

impl Arrival {
    /// The index of the session that it came in.
    pub(crate) fn index(&self) -> u32 {
        self.datagram.0
    }
}

/// Whether a datagram holds more than one of a type that costs the receiver far more than its sender (P-37).
pub(crate) fn costs_too_much(messages: &[Message]) -> bool {
    let mut seen = HashSet::new();
    messages.iter().any(|message| message.is_costly() && !seen.insert(message.type_number()))
}
