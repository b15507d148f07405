//! Routes, rules, addresses, neighbours and links of a network namespace (rtnetlink(7)).
//!
//! Adding what is there and deleting what is not are no errors: the caller wants a state, not an event.

mod address;
mod desired;
mod link;
mod lookup;
mod neighbour;
mod rule;
mod table;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;

use netlink_packet_core::{Emitable, NLM_F_DUMP, ParseableParametrized};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::error::Error;
use crate::netlink::{Netlink, Refusal};

pub(crate) use address::Tentative;
pub use address::{Address, AddressScope, NewAddress};
pub(crate) use desired::Desired;
pub use link::Link;
pub use lookup::{Route, RouteKind};
pub use neighbour::{Neighbour, NeighbourState};
pub use rule::{InterfaceName, Rule, Selector};
pub use table::{MAIN_TABLE, NextHop, TableRoute};

/// The interface index of `lo`: the same in every network namespace (`LOOPBACK_IFINDEX`, include/linux/netdevice.h).
pub const LOOPBACK: u32 = 1;

/// Where routes to this host's own addresses are (`RT_TABLE_LOCAL`).
pub(crate) const LOCAL_TABLE: u32 = 255;

/// Who installed it (`rtm_protocol`, `FRA_PROTOCOL`, `IFA_PROTO`): the letter W. Every route, rule and address that
/// Whimbrel makes has it, and nothing else should (`/etc/iproute2/rt_protos` lists what is taken).
pub const PROTOCOL: u8 = b'W';

/// An address and how many of its leading bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// The address; bits beyond the length are zero in what the kernel reports.
    pub address: IpAddr,
    /// 0 to 32 or 128.
    pub length: u8,
}

impl Prefix {
    /// This one address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self { address, length: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// Everything, in the family of `like`.
    #[must_use]
    pub fn everything(like: IpAddr) -> Self {
        let address = match like {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Self { address, length: 0 }
    }

    /// The same with the bits beyond its length zero.
    #[must_use]
    pub fn masked(self) -> Self {
        let address = match self.address {
            IpAddr::V4(v4) => {
                let ignored = 32 - u32::from(self.length).min(32);
                Ipv4Addr::from_bits(v4.to_bits().checked_shr(ignored).map_or(0, |kept| kept << ignored)).into()
            }
            IpAddr::V6(v6) => {
                let ignored = 128 - u32::from(self.length).min(128);
                Ipv6Addr::from_bits(v6.to_bits().checked_shr(ignored).map_or(0, |kept| kept << ignored)).into()
            }
        };
        Self { address, ..self }
    }

    /// Whether it holds this address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other, bits) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u128::from(own.to_bits()), u128::from(other.to_bits()), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let beyond = bits - u32::from(self.length).min(bits);
        beyond == 128 || (own ^ other) >> beyond == 0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// A blocking rtnetlink socket in the namespace that the opening thread was in.
#[derive(Debug)]
pub struct RouteSocket {
    netlink: Netlink,
}

impl RouteSocket {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open() -> Result<Self, Error> {
        Netlink::open(netlink_sys::protocols::NETLINK_ROUTE, "NETLINK_ROUTE").map(|netlink| Self { netlink })
    }

    /// Sends a request that has no answer but an acknowledgement.
    fn change(&mut self, message: &RouteNetlinkMessage, flags: u16) -> Result<(), Refusal> {
        self.ask(message, flags).map(drop)
    }

    /// Sends a request and returns its answer; parts that this crate's decoder does not know are left out.
    fn ask(&mut self, message: &RouteNetlinkMessage, flags: u16) -> Result<Vec<RouteNetlinkMessage>, Refusal> {
        let mut body = vec![0; message.buffer_len()];
        message.emit(&mut body);
        let mut answer = Vec::new();
        self.netlink.request(
            message.message_type(),
            flags,
            &body,
            &mut answer,
            Vec::clear,
            |answer, kind, payload| {
                if let Ok(part) = RouteNetlinkMessage::parse_with_param(payload, kind) {
                    answer.push(part);
                }
            },
        )?;
        Ok(answer)
    }

    fn dump(&mut self, call: &'static str, message: &RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>, Error> {
        self.ask(message, NLM_F_DUMP).map_err(|refusal| refusal.of(call, "all"))
    }

    /// As [`Self::dump`], of no more than `most` parts.
    fn some(
        self,
        call: &'static str,
        message: &RouteNetlinkMessage,
        most: usize,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        let mut body = vec![0; message.buffer_len()];
        message.emit(&mut body);
        let mut answer = Vec::new();
        let note = |kind, payload: &[u8]| {
            answer.extend(RouteNetlinkMessage::parse_with_param(payload, kind).ok());
            if answer.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.netlink.begin_dump(message.message_type(), &body, note).map_err(|refusal| refusal.of(call, "some"))?;
        Ok(answer)
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_holds_its_addresses() {
        let prefix = Prefix { address: "10.1.2.0".parse().unwrap(), length: 23 };
        assert!(prefix.contains("10.1.3.255".parse().unwrap()));
        assert!(!prefix.contains("10.1.4.0".parse().unwrap()));
        assert!(!prefix.contains("::ffff:10.1.2.0".parse().unwrap()));
        assert!(Prefix::everything("::1".parse().unwrap()).contains("fe80::1".parse().unwrap()));
        assert!(Prefix::everything("10.0.0.1".parse().unwrap()).contains("255.255.255.255".parse().unwrap()));
        assert!(!Prefix::host("fd00::1".parse().unwrap()).contains("fd00::2".parse().unwrap()));
    }
}
