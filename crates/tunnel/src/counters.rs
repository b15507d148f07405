//! What the tunnel carried, and what it dropped and why.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$about:meta])+ $counter:ident = $name:literal,)+) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Counter {
            $($(#[$about])+ $counter,)+
        }

        impl Counter {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$counter),+];

            /// The counter's name as it is shown to people and programs.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$counter => $name,)+
                }
            }
        }
    };
}

counters! {
    /// Inner packets (segments) sent.
    PacketsSent = "packets_sent",
    /// Bytes of inner packets sent.
    BytesSent = "bytes_sent",
    /// Of these sent by a second way as well (P-262).
    DuplicatesSent = "duplicates_sent",
    /// Inner packets received and delivered.
    PacketsReceived = "packets_received",
    /// Bytes of inner packets received and delivered.
    BytesReceived = "bytes_received",
    /// Packets from the device that no flow has.
    NoFlow = "no_flow",
    /// Packets from the device while there is no path to their peer.
    NoPath = "no_path",
    /// Packets from the device that would exceed what may be sent to an unconfirmed locator (P-18): they wait until it
    /// is confirmed, or are dropped where too much waits already.
    Unconfirmed = "unconfirmed",
    /// Packets from the device that are not IP with TCP or UDP, or contradict themselves.
    Unsuitable = "unsuitable",
    /// Datagrams that the kernel did not take.
    SendFailed = "send_failed",
    /// Datagrams that are no tunnel datagrams though their first byte says so, or whose chain is not known (P-1).
    Malformed = "malformed",
    /// Datagrams for an index that is not ours (P-1).
    UnknownIndex = "unknown_index",
    /// Sealed datagrams with a wrong tag (P-1).
    BadTag = "bad_tag",
    /// Sealed datagrams that came before (P-6), as by the other of two ways (P-262).
    Replayed = "replayed",
    /// Plain datagrams with a wrong token, or where none are accepted (P-1).
    BadToken = "bad_token",
    /// Plain datagrams from an address that is not the peer's (P-1).
    BadSource = "bad_source",
    /// Inner packets received that are not of a flow of that peer (P-23).
    ForeignFlow = "foreign_flow",
    /// Packets that the device did not take.
    WriteFailed = "write_failed",
    /// Control datagrams that the control thread was too slow for.
    ControlOverflow = "control_overflow",
    /// Packets for sockets that are being moved, for which there was no room.
    AsideOverflow = "aside_overflow",
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
        Counter::ALL.iter().map(|counter| (*counter, self.get(*counter)))
    }

    pub(crate) fn add(&self, counter: Counter, amount: usize) {
        self.values[counter as usize].fetch_add(amount as u64, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }
}
