//! Datagrams as they arrive.

use std::collections::HashSet;
use std::mem::discriminant;
use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::message::Message;

/// How a datagram arrived.
pub(crate) struct Arrival {
    pub(crate) source: SocketAddr,
    pub(crate) destination: Option<IpAddr>,
    /// Of the session that it came in.
    pub(crate) index: u32,
    pub(crate) length: usize,
    /// Its counter is above all before it.
    pub(crate) is_newest: bool,
    /// It came by way of a host that stands in for this one.
    pub(crate) passed_on: bool,
}

/// Whether a datagram holds more than one of those messages that cost the receiver far more than their sender (P-37).
pub(crate) fn costs_too_much(messages: &[Message]) -> bool {
    let costly = |message: &&Message| {
        matches!(
            message,
            Message::BindingUpdate { .. }
                | Message::IntroductionRequest { .. }
                | Message::FlowClosed(_)
                | Message::Referral { .. }
                | Message::Sought { .. }
                | Message::IntroduceMe { .. }
                | Message::AskHere { .. }
                | Message::Register { .. }
                | Message::Whereabouts { .. }
                | Message::Paused { .. }
                | Message::Chain(_)
                | Message::NeighbourProxy { .. }
                | Message::PassedOn { .. }
                | Message::Stream(_)
                | Message::Received(_)
        )
    };
    let mut seen = HashSet::new();
    let mut words = HashSet::new();
    messages.iter().any(|message| match message {
        Message::Community(word) => !words.insert(discriminant(word)),
        message => costly(&message) && !seen.insert(discriminant(message)),
    })
}
