//! What the tunnel carried, and what it dropped and why.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Counter {
    /// Inner packets (segments) sent.
    PacketsSent,
    /// Bytes of inner packets sent.
    BytesSent,
    /// Inner packets received and delivered.
    PacketsReceived,
    /// Bytes of inner packets received and delivered.
    BytesReceived,
    /// Packets from the device that no flow has.
    NoFlow,
    /// Packets from the device while there is no path to their peer.
    NoPath,
    /// Packets from the device that would exceed what may be sent to an unconfirmed locator (P-18): they wait until it
    /// is confirmed, or are dropped where too much waits already.
    Unconfirmed,
    /// Packets from the device that are not IP with TCP or UDP, or contradict themselves.
    Unsuitable,
    /// Datagrams that the kernel did not take.
    SendFailed,
    /// Datagrams that are no tunnel datagrams though their first byte says so, or whose chain is not known (P-1).
    Malformed,
    /// Datagrams for an index that is not ours (P-1).
    UnknownIndex,
    /// Sealed datagrams with a wrong tag (P-1).
    BadTag,
    /// Sealed datagrams that came before (P-6).
    Replayed,
    /// Plain datagrams with a wrong token, or where none are accepted (P-1).
    BadToken,
    /// Plain datagrams from an address that is not the peer's (P-1).
    BadSource,
    /// Inner packets received that are not of a flow of that peer (P-23).
    ForeignFlow,
    /// Packets that the device did not take.
    WriteFailed,
    /// Control datagrams that the control thread was too slow for.
    ControlOverflow,
    /// Packets for sockets that are being moved, for which there was no room.
    AsideOverflow,
}

impl Counter {
    /// All of them, in order.
    pub const ALL: [Self; 19] = [
        Self::PacketsSent,
        Self::BytesSent,
        Self::PacketsReceived,
        Self::BytesReceived,
        Self::NoFlow,
        Self::NoPath,
        Self::Unconfirmed,
        Self::Unsuitable,
        Self::SendFailed,
        Self::Malformed,
        Self::UnknownIndex,
        Self::BadTag,
        Self::Replayed,
        Self::BadToken,
        Self::BadSource,
        Self::ForeignFlow,
        Self::WriteFailed,
        Self::ControlOverflow,
        Self::AsideOverflow,
    ];

    /// The counter's name as it is shown to people and programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PacketsSent => "packets_sent",
            Self::BytesSent => "bytes_sent",
            Self::PacketsReceived => "packets_received",
            Self::BytesReceived => "bytes_received",
            Self::NoFlow => "no_flow",
            Self::NoPath => "no_path",
            Self::Unconfirmed => "unconfirmed",
            Self::Unsuitable => "unsuitable",
            Self::SendFailed => "send_failed",
            Self::Malformed => "malformed",
            Self::UnknownIndex => "unknown_index",
            Self::BadTag => "bad_tag",
            Self::Replayed => "replayed",
            Self::BadToken => "bad_token",
            Self::BadSource => "bad_source",
            Self::ForeignFlow => "foreign_flow",
            Self::WriteFailed => "write_failed",
            Self::ControlOverflow => "control_overflow",
            Self::AsideOverflow => "aside_overflow",
        }
    }
}

/// The counters of a tunnel; they only rise.
#[derive(Debug, Default)]
pub struct Counters {
    values: [AtomicU64; Counter::ALL.len()],
}

impl Counters {
    /// The present value.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize].load(Ordering::Relaxed)
    }

    /// All counters with their values.
    pub fn all(&self) -> impl Iterator<Item = (Counter, u64)> {
        Counter::ALL.into_iter().map(|counter| (counter, self.get(counter)))
    }

    pub(crate) fn add(&self, counter: Counter, amount: usize) {
        self.values[counter as usize].fetch_add(amount as u64, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }
}
