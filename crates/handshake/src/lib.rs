//! Noise sessions: bytes in, bytes out (`docs/protocol.md` §1 and §2).
//!
//! Nothing here reads a clock, draws randomness or owns a socket. The caller hands in the time, in microseconds of a
//! monotonic clock, and a function that fills a buffer with random bytes.
//!
//! ```text
//!            initiator                                    responder
//!  Initiator::start            -- initiation ->   Incoming::read
//!    handle_cookie  (again)    <-- cookie -----   CookieChecker::reply         under load only
//!                              -- initiation ->   Incoming::read
//!    IK: handle_response       <-- response ---   IkInitiation::respond -> Session
//!        -> Session
//!    XX: handle_response       <-- response ---   XxInitiation::respond -> XxResponder
//!        -> Session            -- finish ----->   XxResponder::handle_finish -> Session
//! ```
//!
//! A phase consumes itself where it succeeds. Where it does not, it comes back in [`Rejected`] as good as before, so
//! that a forged answer does not keep the true one from being taken.
#![forbid(unsafe_code)]

mod cookie;
mod derive;
mod error;
mod initiator;
mod key;
mod noise;
mod responder;
mod session;
#[cfg(test)]
mod versions;

pub use cookie::{COOKIE_PERIOD, CookieChecker};
pub use error::{Error, Rejected, SessionError};
pub use initiator::{Contact, Initiator};
pub use key::{InvalidKey, PublicKey, StaticKey};
pub use noise::Local;
pub use responder::{IkInitiation, Incoming, XxInitiation, XxResponder};
pub use session::{CONTROL_OVERHEAD, Opened, Session, nonce};

use whimbrel_wire::Hello;
pub use whimbrel_wire::{ReplayWindow, TunnelKeys};

/// Fills the buffer with bytes from a cryptographically secure source.
pub type Randomness<'a> = &'a mut dyn FnMut(&mut [u8]);

/// What a handshake leads to.
#[derive(Debug)]
pub struct Finished {
    /// The session.
    pub session: Session,
    /// The peer's static key. Whether it is trusted is the caller's decision, to be made before `answer` is sent.
    pub remote: PublicKey,
    /// What the peer told of itself. Of an IK initiation the timestamp has to be checked by the caller (P-9).
    pub hello: Hello,
    /// The datagram that the peer waits for: the response of IK to its initiator, the finish of XX to its responder;
    /// else `None`.
    pub answer: Option<Vec<u8>>,
}
