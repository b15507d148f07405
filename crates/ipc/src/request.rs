//! What can be asked of a daemon.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A question or an order to a daemon: one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// How the daemon is; answered by [`Reply::Status`](crate::Reply::Status).
    Status,
    /// The connections that it knows; [`Reply::Connections`](crate::Reply::Connections).
    Connections,
    /// The daemons that it has or had sessions with; [`Reply::Peers`](crate::Reply::Peers).
    Peers,
    /// The ways to them; [`Reply::Paths`](crate::Reply::Paths).
    Paths,
    /// Whether the configuration file says what is in force; [`Reply::Configuration`](crate::Reply::Configuration).
    Configuration,
    /// Figures for monitoring; [`Reply::Metrics`](crate::Reply::Metrics).
    Metrics,
    /// What happened: zero or more [`Reply::Event`](crate::Reply::Event), oldest first, then
    /// [`Reply::End`](crate::Reply::End) unless it follows.
    Events(EventsQuery),
    /// Move now; [`Reply::Handoff`](crate::Reply::Handoff) as soon as it is under way. What becomes of it is told by
    /// events.
    Handoff {
        /// The address of this host to move to; the daemon's choice where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<IpAddr>,
        /// Towards this peer only: its number, key (or an unambiguous beginning of it), or address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
    },
    /// This host goes away, to sleep for example: peers are told, and all connections wait until [`Request::Resume`];
    /// [`Reply::Suspended`](crate::Reply::Suspended) once the peers have answered, or after a second. With `connections`:
    /// these alone wait, and the host stays.
    Suspend {
        /// Each names connections that outlive a move: by an address and port of either end, or a process id (`pid:4711`).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        connections: Vec<String>,
    },
    /// This host is back, and all that it had wait goes on from where it is now; [`Reply::Resumed`](crate::Reply::Resumed).
    /// With `connections`: these alone.
    Resume {
        /// As for [`Request::Suspend`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        connections: Vec<String>,
    },
    /// Drop the key that is remembered for an address (trust on first use); [`Reply::Forgotten`](crate::Reply::Forgotten).
    ForgetPeer {
        /// The address.
        address: IpAddr,
    },
}

/// Which events are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsQuery {
    /// Only this many, the newest ones. All that are kept where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<usize>,
    /// Only events with a number above this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Go on with new ones as they happen, until the client closes the connection.
    #[serde(default)]
    pub follow: bool,
}
