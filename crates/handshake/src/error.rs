//! What can go wrong.

use std::fmt;

use whimbrel_wire::Malformed;

/// Why a handshake message was not taken. None of these changes the state that the message was offered to.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// Peer's or attacker's fault: changed on the way, made for another key or with another pre-shared key, or forged.
    #[error("handshake message is not authentic")]
    NotAuthentic,
    /// Peer's fault: authentic (or in clear) but not in the format.
    #[error("handshake message: {0}")]
    Malformed(#[from] Malformed),
    /// The message is meant for another handshake.
    #[error("handshake message for index {found:#010x}, not {expected:#010x}")]
    WrongIndex {
        /// Our index.
        expected: u32,
        /// The index in the message.
        found: u32,
    },
    /// Attacker's fault: the header is not the one that the peer sealed.
    #[error("header of the handshake message was changed on the way")]
    HeaderChanged,
    /// Peer's fault: it chose a version that was not offered.
    #[error("peer chose protocol version {0}, which was not offered")]
    Version(u8),
    /// The peer uses a pre-shared key and this end has none.
    #[error("peer uses a pre-shared key, none is configured here")]
    PskMissing,
    /// This end demands a pre-shared key and the peer does not use one.
    #[error("peer does not use the pre-shared key that is configured here")]
    PskExpected,
    /// Peer's fault: a public key of small order, with which no secret can be agreed.
    #[error("peer's public key is of small order")]
    WeakKey,
    /// A cookie was taken for this initiation already.
    #[error("initiation has been sent with a cookie already")]
    CookieUsed,
    /// Fault of this program: the Noise library refused what it was asked.
    #[error("Noise library: {0}")]
    Noise(snow::Error),
}

impl From<snow::Error> for Error {
    fn from(error: snow::Error) -> Self {
        match error {
            // `Input` is a message that is too short for its keys.
            snow::Error::Decrypt | snow::Error::Input => Self::NotAuthentic,
            snow::Error::Dh => Self::WeakKey,
            other => Self::Noise(other),
        }
    }
}

/// A message that was not taken, and the phase that it was offered to, as good as before.
pub struct Rejected<S> {
    /// Where to go on.
    pub state: S,
    /// Why the message was not taken.
    pub error: Error,
}

impl<S> fmt::Debug for Rejected<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").field("error", &self.error).finish_non_exhaustive()
    }
}

/// Why a datagram of a session was not sealed or opened. Nothing was changed in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The datagram is meant for another session.
    #[error("datagram for index {found:#010x}, not {expected:#010x}")]
    WrongIndex {
        /// Our index.
        expected: u32,
        /// The index in the datagram.
        found: u32,
    },
    /// Changed on the way, forged, or sealed with other keys.
    #[error("datagram {counter} is not authentic")]
    NotAuthentic {
        /// Its counter, as it claims.
        counter: u64,
    },
    /// It has been received before, or is older than the replay window reaches (P-6).
    #[error("datagram {counter} was received before or is too old")]
    Replayed {
        /// Its counter.
        counter: u64,
    },
    /// The session has sent as many datagrams as its keys are good for (P-7).
    #[error("session has used up its counters")]
    Exhausted,
}
