//! A socket at rest: all that another host, with another kernel or processor, needs to go on with it
//! (`docs/snapshot.md`).
//!
//! A snapshot names no number of a kernel: states, options and flags have numbers of their own here, times are in
//! microseconds, and sequence numbers count bytes of data only, whatever the kernel counts for a FIN.

pub mod option;
mod read;
mod start;
mod write;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::codec::Malformed;
pub use option::{OptionKind, SocketOption};

/// What a snapshot begins with.
pub const MAGIC: [u8; 4] = *b"WBSS";
/// The version that is written, and the highest that is read.
pub const VERSION: u16 = 1;
/// The longest snapshot that is read, in bytes: more than the kernel lets any queue hold unless it is told to.
pub const MAX_LEN: usize = 256 << 20;

/// The most datagrams that were not read. To look at one in a queue a kernel goes through all before it.
pub const MAX_QUEUED: usize = 16_384;
/// The most room that these may take, in bytes: [`Queued::room`] of all.
pub const MAX_QUEUE: usize = 64 << 20;
/// The most pieces of a stream that may be out of order.
pub const MAX_OUT_OF_ORDER: usize = 65_536;

/// The most that a program may hand over with a socket, in bytes.
pub const MAX_STATE: usize = 1 << 20;

/// The address family of a socket, which its endpoints do not tell: one of IPv6 may talk IPv4 (RFC 3493 §3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// AF_INET.
    Ipv4,
    /// AF_INET6.
    Ipv6,
}

/// A socket at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Of the socket, not of its endpoints.
    pub family: Family,
    /// Where it is bound.
    pub local: SocketAddr,
    /// What kind it is, and all that only this kind has.
    pub body: Body,
    /// What the program has shut down, as far as a connection's state does not tell it.
    pub shut: Shut,
    /// What the program has set; options at their defaults are left out. Each kind once, in the order of their numbers.
    pub options: Vec<SocketOption>,
    /// What goes along for the program that gets it.
    pub metadata: Option<Metadata>,
}

/// What a program has shut down of its socket (shutdown(2)), for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shut {
    /// It reads no more: behind what has arrived is the end. Not told of a connection whose other end has finished.
    pub receive: bool,
    /// It says no more. Told of UDP alone: of a connection the state tells it.
    pub send: bool,
}

/// What a program hands over with its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The socket's name, for its life (RFC 9562).
    pub uuid: [u8; 16],
    /// Bytes that mean something to the program alone; at most [`MAX_STATE`].
    pub state: Vec<u8>,
}

/// What only one kind of sockets has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A TCP connection.
    Stream(Stream),
    /// A TCP socket that listens. The connections that wait in its queue are snapshots of their own.
    Listening {
        /// How many connections may wait to be accepted.
        backlog: u32,
    },
    /// A UDP socket.
    Datagram(Datagrams),
}

/// A TCP connection (RFC 9293).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The other end.
    pub remote: SocketAddr,
    /// How far its life has come.
    pub state: StreamState,
    /// What this end has to say.
    pub send: SendQueue,
    /// What the other end said and the program has not read.
    pub receive: ReceiveQueue,
    /// What the ends agreed upon in their SYNs.
    pub negotiated: Negotiated,
    /// The windows of both ends.
    pub window: Window,
    /// What came out of order, in the order of sequence numbers.
    pub out_of_order: Vec<Segment>,
    /// How the path was, for whoever knows nothing better.
    pub path: Option<PathState>,
}

/// How far a connection's life has come (RFC 9293 §3.3.2); earlier and later ones cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the states of RFC 9293")]
pub enum StreamState {
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    LastAck,
    Closing,
}

impl StreamState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Established, Self::FinWait1, Self::FinWait2, Self::CloseWait, Self::LastAck, Self::Closing];

    /// Whether this end has said that it says no more: its FIN follows the last byte of its queue.
    #[must_use]
    pub fn has_finished(self) -> bool {
        matches!(self, Self::FinWait1 | Self::FinWait2 | Self::LastAck | Self::Closing)
    }

    /// Whether the other end has acknowledged that.
    #[must_use]
    pub fn finish_acknowledged(self) -> bool {
        self == Self::FinWait2
    }

    /// Whether the other end's FIN has arrived.
    #[must_use]
    pub fn peer_has_finished(self) -> bool {
        matches!(self, Self::CloseWait | Self::LastAck | Self::Closing)
    }
}

/// What is not acknowledged, and what was not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendQueue {
    /// The sequence number after the last byte.
    pub end: u32,
    /// All bytes from the oldest that is not acknowledged.
    pub bytes: Vec<u8>,
    /// So many of them, the last, were never sent.
    pub unsent: u32,
}

/// What the program has not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveQueue {
    /// The sequence number after the last byte: the next that is expected.
    pub end: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What the ends agreed upon in their SYNs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// The longest segment that the other end takes, in bytes (RFC 9293 §3.7.1).
    pub mss: u16,
    /// The shifts of the windows that are sent and received (RFC 7323 §2), where both ends scale.
    pub scale: Option<Scale>,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Explicit congestion notification (RFC 3168). A kernel may be unable to go on with it; then the connection does
    /// without.
    pub ecn: bool,
    /// Timestamps (RFC 7323 §3): what this end's clock for this connection said last, in milliseconds.
    pub timestamp: Option<u32>,
}

/// The shifts of windows (RFC 7323 §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Of windows that the other end announces.
    pub send: u8,
    /// Of those that this end announces.
    pub receive: u8,
}

/// The windows (RFC 9293 §3.3.1), in bytes and sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// SND.WL1: the sequence number of the segment that last changed the send window.
    pub send_updated: u32,
    /// SND.WND.
    pub send: u32,
    /// The largest that the other end has announced.
    pub send_max: u32,
    /// RCV.WND as announced last.
    pub receive: u32,
    /// RCV.NXT when it was announced.
    pub receive_updated: u32,
}

/// Bytes that came out of order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The sequence number of the first.
    pub sequence: u32,
    /// The bytes, one at least.
    pub bytes: Vec<u8>,
}

/// How the path was where the socket comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathState {
    /// The congestion control's name (RFC 9438: `cubic`), 15 bytes at most, printable ASCII.
    pub congestion_control: String,
    /// The congestion window in segments.
    pub congestion_window: u32,
    /// The slow start threshold in segments.
    pub slow_start_threshold: u32,
    /// The smoothed round-trip time in microseconds; 0 where none was measured.
    pub round_trip: u32,
    /// Its variation in microseconds.
    pub variation: u32,
    /// The path MTU in bytes.
    pub mtu: u32,
}

/// A UDP socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Datagrams {
    /// The other end of a connected one.
    pub remote: Option<SocketAddr>,
    /// What the program has not read, the oldest first.
    pub queue: Vec<Queued>,
}

/// A datagram that was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Where it came from.
    pub from: SocketAddr,
    /// Its payload, 65,535 bytes at most.
    pub bytes: Vec<u8>,
}

impl Queued {
    /// The room that it takes in a queue, with what a kernel has of its own for each, in bytes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.bytes.len() + 1024
    }
}

/// A snapshot that cannot be read. Nothing was done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It does not begin as one.
    NoSnapshot,
    /// It was written by a later version, and means something that this one does not know: its version, or the record.
    Newer {
        /// The version that wrote it.
        version: u16,
        /// The record that has to be understood, where it is not the version as a whole.
        record: Option<u16>,
    },
    /// It has an option of the socket that this version does not know, and so cannot set.
    UnknownOption {
        /// Its number.
        number: u16,
    },
    /// It is longer than [`MAX_LEN`].
    TooLarge {
        /// Its length in bytes.
        length: u64,
    },
    /// It does not follow the format.
    Malformed(Malformed),
    /// Its parts contradict one another, or one is missing: which.
    Inconsistent(&'static str),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSnapshot => f.write_str("this is no snapshot of a socket"),
            Self::Newer { version, record: None } => {
                write!(f, "the snapshot is of version {version}, and this host reads up to version {VERSION}")
            }
            Self::Newer { version, record: Some(record) } => {
                write!(
                    f,
                    "the snapshot, of version {version}, has a record of kind {record}, which this host must not ignore"
                )
            }
            Self::UnknownOption { number } => {
                write!(f, "the socket has an option of number {number}, which this host does not know")
            }
            Self::TooLarge { length } => {
                write!(f, "the snapshot has {length} bytes, and this host takes {MAX_LEN} at most")
            }
            Self::Malformed(malformed) => write!(f, "the snapshot is damaged: {malformed}"),
            Self::Inconsistent(what) => write!(f, "the snapshot contradicts itself: {what}"),
        }
    }
}

impl core::error::Error for Unreadable {}

impl From<Malformed> for Unreadable {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// Kinds of records. Those with the top bit must be understood by whoever reads them.
mod record {
    pub(super) const CRITICAL: u16 = 0x8000;
    pub(super) const SOCKET: u16 = 0x8001;
    pub(super) const REMOTE: u16 = 0x8002;
    pub(super) const STATE: u16 = 0x8003;
    pub(super) const BACKLOG: u16 = 0x8004;
    pub(super) const SEND: u16 = 0x8005;
    pub(super) const RECEIVE: u16 = 0x8006;
    pub(super) const NEGOTIATED: u16 = 0x8007;
    pub(super) const WINDOW: u16 = 0x8008;
    pub(super) const OUT_OF_ORDER: u16 = 0x8009;
    pub(super) const DATAGRAM: u16 = 0x800a;
    pub(super) const PATH: u16 = 0x0010;
    pub(super) const OPTION: u16 = 0x0011;
    pub(super) const METADATA: u16 = 0x0012;
    pub(super) const SHUT: u16 = 0x8013;
}

/// Kinds of sockets, in the record `SOCKET`.
mod kind {
    pub(super) const STREAM: u8 = 1;
    pub(super) const LISTENING: u8 = 2;
    pub(super) const DATAGRAM: u8 = 3;
}
