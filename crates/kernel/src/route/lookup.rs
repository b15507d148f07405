//! Asking the kernel which way a packet would go.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType};

use super::{Prefix, RouteSocket, family};
use crate::error::Error;

/// What a route does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteKind {
    /// Sends it.
    Unicast,
    /// Delivers it on this host.
    Local,
    /// Drops it and says so (EHOSTUNREACH).
    Unreachable,
    /// Something that Whimbrel never installs, by its number (`rtm_type`).
    Other(u8),
}

impl From<RouteType> for RouteKind {
    fn from(kind: RouteType) -> Self {
        match kind {
            RouteType::Unicast => Self::Unicast,
            RouteType::Local => Self::Local,
            RouteType::Unreachable => Self::Unreachable,
            other => Self::Other(other.into()),
        }
    }
}

impl From<RouteKind> for RouteType {
    fn from(kind: RouteKind) -> Self {
        match kind {
            RouteKind::Unicast => Self::Unicast,
            RouteKind::Local => Self::Local,
            RouteKind::Unreachable => Self::Unreachable,
            RouteKind::Other(number) => number.into(),
        }
    }
}

/// The way that a packet would go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// [`RouteKind::Local`] where the destination is this host.
    pub kind: RouteKind,
    /// The address that the kernel would send from.
    pub source: Option<IpAddr>,
    /// The next hop; none where the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The index of the interface.
    pub interface: u32,
    /// The table that decided (254: main, 255: local).
    pub table: u32,
    /// The route's own or learned MTU in bytes; none where the interface's counts.
    pub mtu: Option<u32>,
}

impl RouteSocket {
    /// Which way a packet to `destination` would go, sent from `from` and with the firewall mark `mark`.
    ///
    /// # Errors
    /// [`Error::Unreachable`] where there is no way, [`Error::Call`] for anything else.
    pub fn route_to(&mut self, destination: IpAddr, from: Option<IpAddr>, mark: Option<u32>) -> Result<Route, Error> {
        if from.is_some_and(|from| from.is_ipv4() != destination.is_ipv4()) {
            return Err(Error::Argument {
                object: format!("route to {destination}"),
                detail: "asked for from an address of another family",
            });
        }
        let mut message = RouteMessage::default();
        message.header.address_family = family(destination);
        message.header.destination_prefix_length = Prefix::host(destination).length;
        if destination.is_ipv4() {
            // IPv6 always names the table, and refuses to be asked for it (inet6_rtm_valid_getroute_req).
            message.header.flags = RouteFlags::LookupTable;
        }
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(destination)));
        if let Some(from) = from {
            message.header.source_prefix_length = Prefix::host(from).length;
            message.attributes.push(RouteAttribute::Source(RouteAddress::from(from)));
        }
        if let Some(mark) = mark {
            message.attributes.push(RouteAttribute::Mark(mark));
        }
        let answer = self.ask(&RouteNetlinkMessage::GetRoute(message), 0).map_err(|refusal| {
            let no_way = match refusal.errno() {
                libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES => true,
                // An answer, unless the kernel has words for what was wrong with the question.
                libc::EINVAL => refusal.text.is_empty(),
                _ => false,
            };
            if no_way {
                Error::Unreachable { destination, from, source: refusal.error }
            } else {
                refusal.of("RTM_GETROUTE", destination.to_string())
            }
        })?;
        let route = answer.into_iter().find_map(|part| match part {
            RouteNetlinkMessage::NewRoute(route) => Some(route),
            _ => None,
        });
        let route = route.ok_or_else(|| Error::Answer {
            call: "RTM_GETROUTE",
            object: destination.to_string(),
            detail: "no route in it".to_owned(),
        })?;
        // IPv6 answers with a route of this kind where IPv4 answers with an error.
        let errno = match route.header.kind {
            RouteType::Unreachable => libc::EHOSTUNREACH,
            RouteType::Prohibit => libc::EACCES,
            RouteType::BlackHole => libc::EINVAL,
            _ => return Ok(decode(&route, from)),
        };
        Err(Error::Unreachable { destination, from, source: io::Error::from_raw_os_error(errno) })
    }
}

fn decode(message: &RouteMessage, from: Option<IpAddr>) -> Route {
    let mut route = Route {
        kind: message.header.kind.into(),
        source: from,
        gateway: None,
        interface: 0,
        table: u32::from(message.header.table),
        mtu: None,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::PrefSource(source) if from.is_none() => route.source = address(source),
            RouteAttribute::Gateway(gateway) => route.gateway = address(gateway),
            // An IPv4 route through an IPv6 next hop.
            RouteAttribute::Via(netlink_packet_route::route::RouteVia::Inet6(gateway)) => {
                route.gateway = Some(IpAddr::V6(*gateway));
            }
            RouteAttribute::Oif(interface) => route.interface = *interface,
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Metrics(metrics) => {
                route.mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    route
}

/// The IP address in a route attribute; none where it is of another family.
pub(super) fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_way_to_this_host() {
        let mut socket = RouteSocket::open().unwrap();
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        let route = socket.route_to(loopback, None, None).unwrap();
        assert_eq!((route.kind, route.interface), (RouteKind::Local, super::super::LOOPBACK));
        assert_eq!(route.source, Some(loopback));
    }

    #[test]
    fn no_way_is_an_answer() {
        let mut socket = RouteSocket::open().unwrap();
        let (destination, stranger) = ("127.0.0.1".parse().unwrap(), "192.0.2.77".parse().unwrap());
        let error = socket.route_to(destination, Some(stranger), None).unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        let error = socket.route_to(destination, Some("::1".parse().unwrap()), None).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
    }
}
