//! How this host is attached: interfaces, addresses, default routes, and being told when any of it changes.
//!
//! What the kernel tells is only taken as a hint to look again: events of carriers coalesce, and events get lost when
//! they come faster than they are read.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr};

use crate::endpoint::Outer;
use crate::error::Error;
use crate::netlink::{Messages, attribute, text};
use crate::route::{AddressScope, LOCAL_TABLE, Link, PROTOCOL, Prefix, RouteKind, RouteSocket};

/// Multicast groups (`RTNLGRP_*`, include/uapi/linux/rtnetlink.h).
const GROUPS: [u32; 9] = [
    1,  // LINK
    3,  // NEIGH
    5,  // IPV4_IFADDR
    7,  // IPV4_ROUTE
    8,  // IPV4_RULE
    9,  // IPV6_IFADDR
    11, // IPV6_ROUTE
    18, // IPV6_PREFIX
    19, // IPV6_RULE
];
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_NEWPREFIX: u16 = 52;
/// `struct ifinfomsg` and `struct rtmsg`, in bytes; IFLA_IFNAME and RTA_DST.
const LINK_HEADER: usize = 16;
const ROUTE_HEADER: usize = 12;
const IFLA_IFNAME: u16 = 3;
const RTA_DST: u16 = 1;
/// `rtm_protocol` in a route message's header.
const ROUTE_PROTOCOL: usize = 5;

/// What may have changed since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Interfaces.
    pub links: bool,
    /// Addresses.
    pub addresses: bool,
    /// Routes, other than Whimbrel's own.
    pub routes: bool,
    /// Whimbrel's own routes, of which some are gone.
    pub own: bool,
    /// Policy rules.
    pub rules: bool,
    /// Neighbours.
    pub neighbours: bool,
    /// Events were lost (ENOBUFS): everything may have changed. The other flags are set as well.
    pub lost: bool,
}

impl Changed {
    /// Everything may have changed.
    pub const ALL: Self =
        Self { links: true, addresses: true, routes: true, own: true, rules: true, neighbours: true, lost: true };

    /// Whether anything that [`NetworkState`] shows may have changed.
    #[must_use]
    pub fn attachment(self) -> bool {
        self.links || self.addresses || self.routes || self.rules
    }
}

/// An address that packets can be sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UsableAddress {
    /// The index of the interface.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
    /// The length of its subnet's prefix.
    pub prefix_length: u8,
    /// When it was made, in hundredths of a second since the machine was booted: tells one that was away for a moment.
    pub made: u32,
    /// What is made from now on shall not use it, though what does use it goes on (RFC 4862 §5.5.4).
    pub deprecated: bool,
}

/// A way to everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DefaultRoute {
    /// Its family.
    pub ipv4: bool,
    /// The index of the interface.
    pub interface: u32,
    /// The next hop; none on links that need no such.
    pub gateway: Option<IpAddr>,
    /// Lower is preferred.
    pub metric: u32,
    /// The table that it is in (254: main).
    pub table: u32,
}

/// How this host is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkState {
    /// All interfaces, by index, except for the ends of endpoint namespaces ([`Outer`]): no packets of the network come
    /// through these.
    pub links: Vec<Link>,
    /// Addresses of interfaces that are up, except for loopback and link-local ones, those that wait for or failed
    /// duplicate address detection and Whimbrel's own; sorted. The loopback interface may have some: those of services
    /// that are routed to this host, whichever interface that leads through (anycast).
    pub addresses: Vec<UsableAddress>,
    /// Default routes of all tables but Whimbrel's own; sorted.
    pub default_routes: Vec<DefaultRoute>,
}

impl NetworkState {
    /// The interface with this index.
    #[must_use]
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// Whether there is a default route in this family.
    #[must_use]
    pub fn has_default_route(&self, ipv4: bool) -> bool {
        self.default_routes.iter().any(|route| route.ipv4 == ipv4)
    }

    /// Whether an interface's addresses say that this one is a neighbour there, or a default route, as where the
    /// address is a host's alone and the gateway no neighbour by it. Link-local ones are on every link.
    #[must_use]
    pub fn is_on_link(&self, interface: u32, address: IpAddr) -> bool {
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_multicast(),
        };
        let subnet = |own: &UsableAddress| Prefix { address: own.address, length: own.prefix_length };
        let gateway = |route: &DefaultRoute| route.interface == interface && route.gateway == Some(address);
        link_local
            || self.addresses.iter().any(|own| own.interface == interface && subnet(own).contains(address))
            || self.default_routes.iter().any(gateway)
    }
}

/// Is told of changes, and reads the state. In the namespace that the opening thread was in.
#[derive(Debug)]
pub struct NetworkMonitor {
    events: Socket,
    route: RouteSocket,
    buffer: Vec<u8>,
}

impl NetworkMonitor {
    /// Begins to listen. Take a [`snapshot`](Self::snapshot) after, and nothing is missed.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open() -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(netlink_sys::protocols::NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            for group in GROUPS {
                socket.add_membership(group)?;
            }
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        let events = open().map_err(|e: io::Error| Error::call("socket", "NETLINK_ROUTE groups", e))?;
        Ok(Self { events, route: RouteSocket::open()?, buffer: vec![0; 1 << 16] })
    }

    /// Reads all events that wait, without blocking.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn drain(&mut self) -> Result<Changed, Error> {
        let mut changed = Changed::default();
        loop {
            match self.events.recv(&mut &mut self.buffer[..], libc::MSG_TRUNC) {
                Ok(length) if length > self.buffer.len() => changed = Changed::ALL,
                Ok(length) => note(&mut changed, &self.buffer[..length]),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(changed),
                    Some(libc::ENOBUFS) => changed = Changed::ALL,
                    Some(libc::EINTR) => {}
                    _ => return Err(Error::call("recv", "NETLINK_ROUTE groups", error)),
                },
            }
        }
    }

    /// Reads the state.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn snapshot(&mut self) -> Result<NetworkState, Error> {
        let mut links = self.route.links()?;
        links.retain(|link| !Outer::is_called(&link.name));
        let up = |index| links.iter().any(|link| link.index == index && link.up);
        let mut addresses: Vec<UsableAddress> = self
            .route
            .addresses()?
            .into_iter()
            .filter(|a| !(a.tentative || a.duplicate || a.own) && a.scope == AddressScope::Global)
            .filter(|a| up(a.interface) && is_global(a.prefix.address))
            .map(|a| UsableAddress {
                interface: a.interface,
                address: a.prefix.address,
                prefix_length: a.prefix.length,
                made: a.made,
                deprecated: a.deprecated,
            })
            .collect();
        addresses.sort_unstable();
        let mut default_routes: Vec<DefaultRoute> = self
            .route
            .routes(|table| table != LOCAL_TABLE)?
            .into_iter()
            .filter(|route| route.destination.length == 0 && route.kind == RouteKind::Unicast)
            .filter(|route| route.protocol != PROTOCOL)
            .flat_map(|route| {
                let ipv4 = route.destination.address.is_ipv4();
                route.next_hops.into_iter().map(move |hop| DefaultRoute {
                    ipv4,
                    interface: hop.interface,
                    gateway: hop.gateway,
                    metric: route.metric,
                    table: route.table,
                })
            })
            .collect();
        default_routes.sort_unstable();
        Ok(NetworkState { links, addresses, default_routes })
    }

    /// All addresses of this host but Whimbrel's own, whether packets can be sent from them now or not: their
    /// interfaces may be down or without carrier, and duplicate address detection may not have ended. What it has found
    /// another host to have is not among them.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn configured(&mut self) -> Result<BTreeSet<IpAddr>, Error> {
        let addresses = self.route.addresses()?.into_iter().filter(|a| !(a.duplicate || a.own));
        Ok(addresses.map(|a| a.prefix.address).collect())
    }
}

impl AsFd for NetworkMonitor {
    /// Readable when there is something to [`drain`](Self::drain).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !(v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || v4.is_multicast()),
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast()),
    }
}

fn note(changed: &mut Changed, datagram: &[u8]) {
    for message in Messages(datagram) {
        match message.kind {
            // There may be very many of them, and who has the other end of one switches it on and off.
            RTM_NEWLINK | RTM_DELLINK => changed.links |= !is_outer(message.payload),
            // Of an address that a router's word has made the kernel tells once duplicate address detection has ended,
            // and of that word at once.
            RTM_NEWADDR | RTM_DELADDR | RTM_NEWPREFIX => changed.addresses = true,
            RTM_NEWROUTE | RTM_DELROUTE => {
                // Our own routes would wake us for what we did ourselves.
                let own = message.payload.get(ROUTE_PROTOCOL) == Some(&PROTOCOL);
                changed.routes |= !own && !is_multicast(message.payload);
                changed.own |= own && message.kind == RTM_DELROUTE;
            }
            RTM_NEWNEIGH | RTM_DELNEIGH => changed.neighbours = true,
            RTM_NEWRULE | RTM_DELRULE => changed.rules = true,
            _ => {}
        }
    }
}

/// Whether a message is about the end of an endpoint namespace.
fn is_outer(link: &[u8]) -> bool {
    let name = link.get(LINK_HEADER..).and_then(|link| attribute(link, IFLA_IFNAME)).map(text);
    name.is_some_and(|name| Outer::is_called(&name))
}

/// Whether it is about where multicast goes, which each interface has a route of.
fn is_multicast(route: &[u8]) -> bool {
    let destination = route.get(ROUTE_HEADER..).and_then(|route| attribute(route, RTA_DST));
    let first = destination.and_then(|address| address.first());
    match route.first() {
        Some(10) => first == Some(&0xff),
        _ => first.is_some_and(|byte| (224..240).contains(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_state_unprivileged() {
        let mut monitor = NetworkMonitor::open().unwrap();
        let state = monitor.snapshot().unwrap();
        assert!(state.links.iter().any(|link| link.loopback));
        assert!(state.addresses.iter().all(|a| !a.address.is_loopback()));
        assert!(!monitor.drain().unwrap().lost);
    }
}
