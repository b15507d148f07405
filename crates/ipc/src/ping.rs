//! What comes of asking whether another host answers.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{PeerName, Session};

/// What came of asking another host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pinged {
    /// Where it was asked.
    pub address: SocketAddr,
    /// Who it is, where that is known.
    pub peer: Option<PeerName>,
    /// The session with it, while there is one.
    pub session: Option<Session>,
    /// Whether it has answered: UDP passes out then, and the answers in.
    pub answered: bool,
    /// The round trip of the answer, in milliseconds.
    pub round_trip_ms: Option<f64>,
    /// How often it was asked for it.
    pub tries: u32,
    /// This host's address on the path.
    pub local: Option<IpAddr>,
    /// This host's endpoint as the other one sees it.
    pub observed: Option<SocketAddr>,
    /// Whether this host is behind a NAT on this path, where that is known.
    pub nat_here: Option<bool>,
    /// Whether the other one is, where that is known.
    pub nat_there: Option<bool>,
    /// Milliseconds since it was last heard, where it was.
    pub heard_ms: Option<u64>,
    /// Why it has not answered, as far as that is known, for people.
    pub reason: Option<String>,
}
