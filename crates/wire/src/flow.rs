//! The name that one host has for a connection.

use alloc::string::String;
use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A transport protocol whose flows can be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Transport {
    /// RFC 9293, IP protocol 6.
    Tcp = 6,
    /// RFC 768, IP protocol 17.
    Udp = 17,
}

impl Transport {
    /// The transport of an IP protocol number, if it is one that can be moved.
    #[must_use]
    pub fn from_protocol(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }

    /// The IP protocol number.
    #[must_use]
    pub fn protocol(self) -> u8 {
        self as u8
    }
}

/// A flow as one host sees it: the 5-tuple that its own socket was made with.
///
/// Behind a NAT the two ends have different tuples for one flow, so a tuple means nothing without the host that uses
/// it. IPv4-mapped IPv6 addresses never stand in a tuple: they are written as IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowTuple {
    /// TCP or UDP.
    pub transport: Transport,
    /// This host's address and port.
    pub local: SocketAddr,
    /// The other end's address and port, as this host knows it.
    pub remote: SocketAddr,
}

impl FlowTuple {
    /// The tuple as the other end would have it if nothing translated in between.
    #[must_use]
    pub fn mirrored(self) -> Self {
        Self { transport: self.transport, local: self.remote, remote: self.local }
    }

    /// What stands for a socket without another end, as one that listens, or one of UDP that is not connected: the
    /// other end is unspecified.
    #[must_use]
    pub fn unconnected(transport: Transport, local: SocketAddr) -> Self {
        let nobody = match local {
            SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
        };
        Self { transport, local, remote: nobody }
    }

    /// Whether it stands for a socket without another end.
    #[must_use]
    pub fn is_unconnected(&self) -> bool {
        self.remote.port() == 0 && self.remote.ip().is_unspecified()
    }

    /// Whether it stands for one that waits for connections.
    #[must_use]
    pub fn listens(&self) -> bool {
        self.transport == Transport::Tcp && self.is_unconnected()
    }
}

impl fmt::Display for FlowTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        write!(f, "{transport} {} -> {}", self.local, self.remote)
    }
}

/// Text that is not a flow's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAFlow;

impl fmt::Display for NotAFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is no flow, as `tcp 192.0.2.1:40000 -> 203.0.113.5:22` is one")
    }
}

impl FromStr for FlowTuple {
    type Err = NotAFlow;

    fn from_str(text: &str) -> Result<Self, NotAFlow> {
        let (transport, ends) = text.split_once(' ').ok_or(NotAFlow)?;
        let (local, remote) = ends.split_once(" -> ").ok_or(NotAFlow)?;
        let transport = match transport {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            _ => return Err(NotAFlow),
        };
        let end = |text: &str| text.parse().map_err(|_| NotAFlow);
        Ok(Self { transport, local: end(local)?, remote: end(remote)? })
    }
}

impl Serialize for FlowTuple {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FlowTuple {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Debug for FlowTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
