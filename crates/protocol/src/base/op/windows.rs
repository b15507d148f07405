//! What the TCP senders of a peer's flows may have under way.

use std::net::IpAddr;
use std::time::Duration;

use crate::base::id::LinkId;

/// What senders had on a network, all that had something to send to one peer together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWindows {
    /// Their congestion windows, in bytes.
    pub window: u64,
    /// Their slow start thresholds, in bytes; `None`: one of them had not found out where it is.
    pub threshold: Option<u64>,
    /// The least round trip of any.
    pub least: Duration,
    /// The longest round trip of any, smoothed.
    pub smoothed: Duration,
}

/// What senders come back to, to be shared by those that have something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comeback {
    /// How many bytes may be under way once the first has been answered from there (P-247).
    pub begin: u64,
    /// What they had there, as far as it still counts.
    pub had: SendWindows,
}

/// The two networks that a peer and this host have met by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Networks {
    /// This host's link.
    pub link: LinkId,
    /// Its address there.
    pub source: IpAddr,
    /// The address that the peer says it has.
    pub claimed: IpAddr,
    /// The one that it is seen at.
    pub observed: IpAddr,
}

/// Networks that were left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub networks: Networks,
    /// How long the stay was, where that is known.
    pub stayed: Option<Duration>,
}
