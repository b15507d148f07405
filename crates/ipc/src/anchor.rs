//! Endpoints that hosts lend one another.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Flow, PeerName};

/// A namespace that has an address of an anchor's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchored {
    /// Who lends it.
    pub anchor: PeerName,
    /// The address that is local in the namespace.
    pub address: IpAddr,
    /// The ports that the kernel draws from there: the first, and how many. 0 and 0: the address is the program's as a whole.
    pub ports: (u16, u16),
}

/// What a host lends, and what it has on lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchors {
    /// Whether it is configured to lend anything.
    pub lends: bool,
    /// Nothing new is lent.
    pub stopping: bool,
    /// What others have on lease of this host.
    pub lent: Vec<LentEnds>,
    /// Connections that this host passes on to where their sockets are.
    pub passed_on: Vec<PassedOn>,
    /// What this host has on lease of others.
    pub rented: Vec<LentEnds>,
}

/// Endpoints that are on lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentEnds {
    /// The other host: who has them, or whose they are.
    pub host: PeerName,
    /// The address.
    pub address: IpAddr,
    /// The first port; 0 of a whole address.
    pub port: u16,
    /// How many; 0 of a whole address.
    pub count: u16,
}

/// A connection whose socket is elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOn {
    /// Who has the socket.
    pub host: PeerName,
    /// As the socket has it.
    pub flow: Flow,
}
