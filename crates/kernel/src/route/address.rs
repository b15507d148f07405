//! Addresses of interfaces.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressProtocol, AddressScope as NetlinkScope,
    CacheInfo,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::table::deleted;
use super::{PROTOCOL, Prefix, RouteSocket, family};
use crate::error::Error;

/// How far an address is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressScope {
    /// Everywhere.
    Global,
    /// On its link.
    Link,
    /// On this host: never chosen as the source of a packet that leaves it.
    Host,
    /// Another one (`ifa_scope`).
    Other(u8),
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The index of the interface.
    pub interface: u32,
    /// The address and the length of its subnet's prefix.
    pub prefix: Prefix,
    /// How far it is valid.
    pub scope: AddressScope,
    /// When it was made, in hundredths of a second since the machine was booted (`cstamp`).
    pub made: u32,
    /// Duplicate address detection has not ended and the address may not be used yet.
    pub tentative: bool,
    /// It has not ended, and the address is used all the same (RFC 4429).
    pub optimistic: bool,
    /// Another host has it.
    pub duplicate: bool,
    /// Not to be used for anything new.
    pub deprecated: bool,
    /// Has [`PROTOCOL`].
    pub own: bool,
}

/// An address to be added; always of the one address alone (/32 or /128), without a route for its subnet and without
/// duplicate address detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewAddress {
    /// The index of the interface.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
    /// How far it is valid; IPv6 finds that out itself.
    pub scope: AddressScope,
    /// Never chosen for anything new (`preferred_lft 0`).
    pub deprecated: bool,
}

/// An IPv6 address that is not used before duplicate address detection has ended.
#[derive(Clone, Debug)]
pub(crate) struct Tentative {
    /// The index of the interface.
    pub(crate) interface: u32,
    pub(crate) address: IpAddr,
    /// As the kernel tells of it.
    message: AddressMessage,
}

impl RouteSocket {
    /// Addresses that are not used before duplicate address detection has ended, and that have a lifetime: a router or
    /// DHCP has given them.
    pub(crate) fn tentative(&mut self) -> Result<Vec<Tentative>, Error> {
        let mut wanted = AddressMessage::default();
        wanted.header.family = AddressFamily::Inet6;
        let tentative = |message: AddressMessage| {
            let Address { interface, prefix: Prefix { address, .. }, tentative, duplicate, own, .. } =
                decode(&message)?;
            let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
            let waits = tentative && !duplicate && !own && !is_link_local;
            let lasting = flags(&message).contains(AddressFlags::Permanent);
            (waits && !lasting).then_some(Tentative { interface, address, message })
        };
        let parts = self.dump("RTM_GETADDR", &RouteNetlinkMessage::GetAddress(wanted))?;
        Ok(parts
            .into_iter()
            .filter_map(|part| match part {
                RouteNetlinkMessage::NewAddress(message) => tentative(message),
                _ => None,
            })
            .collect())
    }

    /// Has an address used while duplicate address detection is under way. The interface has to allow it
    /// (`optimistic_dad`), or nothing changes.
    pub(crate) fn set_optimistic(&mut self, address: &Tentative) -> Result<(), Error> {
        let mut message = address.message.clone();
        let known = flags(&message);
        message.attributes.retain(|attribute| !matches!(attribute, AddressAttribute::Flags(_)));
        // What has a lifetime has no prefix route of its own that would go by this, and would be given one without.
        message
            .attributes
            .push(AddressAttribute::Flags(known | AddressFlags::Optimistic | AddressFlags::Noprefixroute));
        self.change(&RouteNetlinkMessage::NewAddress(message), NLM_F_REPLACE)
            .map_err(|e| e.of("RTM_NEWADDR", format!("{} on interface {}", address.address, address.interface)))
    }

    /// Adds an address, or changes the one that is there.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn set_address(&mut self, new: &NewAddress) -> Result<(), Error> {
        let mut message = encode(new.interface, new.address);
        message.header.scope = match new.scope {
            AddressScope::Global => NetlinkScope::Universe,
            AddressScope::Link => NetlinkScope::Link,
            AddressScope::Host => NetlinkScope::Host,
            AddressScope::Other(number) => NetlinkScope::Other(number),
        };
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad | AddressFlags::Noprefixroute));
        message.attributes.push(AddressAttribute::Protocol(AddressProtocol::Other(PROTOCOL)));
        if new.deprecated {
            let mut lifetimes = CacheInfo::default();
            (lifetimes.ifa_preferred, lifetimes.ifa_valid) = (0, u32::MAX);
            message.attributes.push(AddressAttribute::CacheInfo(lifetimes));
        }
        self.change(&RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
            .map_err(|e| e.of("RTM_NEWADDR", format!("{} on interface {}", new.address, new.interface)))
    }

    /// Deletes an address that [`set_address`](Self::set_address) made; returns whether there was one.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn delete_address(&mut self, interface: u32, address: IpAddr) -> Result<bool, Error> {
        deleted(self.change(&RouteNetlinkMessage::DelAddress(encode(interface, address)), 0))
            .map_err(|e| e.of("RTM_DELADDR", format!("{address} on interface {interface}")))
    }

    /// All addresses of both families.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let parts = self.dump("RTM_GETADDR", &RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        Ok(parts
            .iter()
            .filter_map(|part| match part {
                RouteNetlinkMessage::NewAddress(message) => decode(message),
                _ => None,
            })
            .collect())
    }

    /// Whether there is any, where there may be very many. The socket is used up by that.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn has_address(self) -> Result<bool, Error> {
        let parts = self.some("RTM_GETADDR", &RouteNetlinkMessage::GetAddress(AddressMessage::default()), 1)?;
        Ok(!parts.is_empty())
    }
}

fn encode(interface: u32, address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address);
    message.header.prefix_len = Prefix::host(address).length;
    message.header.index = interface;
    message.attributes.push(AddressAttribute::Local(address));
    message.attributes.push(AddressAttribute::Address(address));
    message
}

/// Those of the header are only the first eight.
fn flags(message: &AddressMessage) -> AddressFlags {
    let all = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Flags(all) => Some(*all),
        _ => None,
    });
    all.unwrap_or_else(|| AddressFlags::from_bits_retain(u32::from(message.header.flags.bits())))
}

fn decode(message: &AddressMessage) -> Option<Address> {
    let (mut local, mut address, mut own, mut made) = (None, None, false, 0);
    let flags = flags(message);
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link IFA_ADDRESS is the other end.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            AddressAttribute::Protocol(protocol) => own = u8::from(*protocol) == PROTOCOL,
            AddressAttribute::CacheInfo(times) => made = times.cstamp,
            _ => {}
        }
    }
    Some(Address {
        interface: message.header.index,
        prefix: Prefix { address: local.or(address)?, length: message.header.prefix_len },
        scope: match message.header.scope {
            NetlinkScope::Universe => AddressScope::Global,
            NetlinkScope::Link => AddressScope::Link,
            NetlinkScope::Host => AddressScope::Host,
            other => AddressScope::Other(other.into()),
        },
        made,
        tentative: flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic),
        optimistic: flags.contains(AddressFlags::Optimistic),
        duplicate: flags.contains(AddressFlags::Dadfailed),
        deprecated: flags.contains(AddressFlags::Deprecated),
        own,
    })
}
