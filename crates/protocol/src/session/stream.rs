//! A stream of bytes from one host to another, over datagrams that may be lost, doubled and reordered (P-71).
//!
//! Both ends are sans-io: stretches and acknowledgements go in and come out, and time is told.

mod receiver;
mod sender;

pub(super) use receiver::{Arrived, Receiver};
pub(super) use sender::{Heard, Sender};

use std::time::Duration;

/// An acknowledgement waits for another stretch to be acknowledged with it, at the most.
const ACKNOWLEDGED_AFTER: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests;
