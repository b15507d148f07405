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
    /// The ports that the kernel draws from there: the first, and how many. 0 and 0: the address is the program's as a
    /// whole.
    pub ports: (u16, u16),
}

/// What a host lends, and what it has on lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchors {
    /// Whether it is configured to lend anything.
    pub lends: bool,
    /// Nothing new is lent.
    pub stopping: bool,
    /// What it is configured to lend, if anything, and if that was asked for.
    #[serde(default)]
    pub offer: Option<Offer>,
    /// What others have on lease of this host.
    pub lent: Vec<LentEnds>,
    /// Connections that this host passes on to where their sockets are.
    pub passed_on: Vec<PassedOn>,
    /// What this host has on lease of others.
    pub rented: Vec<LentEnds>,
}

/// What a host is configured to lend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Ranges of ports: the first and the last of each.
    pub ports: Vec<(u16, u16)>,
    /// Of these addresses.
    pub of: Vec<OfferedAddress>,
    /// Addresses that are lent as a whole.
    pub addresses: Vec<OfferedPrefix>,
    /// What of it cannot be lent as things stand, for people.
    pub faults: Vec<String>,
    /// What is lent and does not reach this host any more, for people. Daemons before this field say so among the
    /// faults.
    #[serde(default)]
    pub unreached: Vec<String>,
}

/// An address whose ports are lent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedAddress {
    /// The address.
    pub address: IpAddr,
    /// How many of the ports are lent.
    pub lent: u32,
    /// How many more programs could be lent ports now, each so many in a row; `None` where the daemon does not say.
    #[serde(default)]
    pub room: Option<u32>,
    /// Those of the ports that this host uses itself, so that they are not lent: the first and the last of each
    /// stretch.
    #[serde(default)]
    pub used: Vec<(u16, u16)>,
    /// Why none can be lent as things stand, for people.
    #[serde(default)]
    pub fault: Option<String>,
}

/// Addresses that are lent as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedPrefix {
    /// As the configuration has it; one address without a length.
    pub prefix: String,
    /// How many addresses it has, where these are not very many.
    pub addresses: Option<u64>,
    /// How many of them are lent.
    pub lent: u64,
    /// How many more could be lent now, where they are not very many.
    #[serde(default)]
    pub room: Option<u64>,
    /// Why it, or a part of it, cannot be lent as things stand, for people.
    #[serde(default)]
    pub fault: Option<String>,
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
