//! Routing tables.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteNextHop, RouteNextHopFlags,
    RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::lookup::address;
use super::{PROTOCOL, Prefix, RouteKind, RouteSocket, family};
use crate::error::Error;
use crate::netlink::Refusal;

/// The table that ordinary routes are in.
pub const MAIN_TABLE: u32 = 254;

/// `RTAX_MTU` as a bit of `RTAX_LOCK`: the kernel neither learns another MTU for it nor fragments by a smaller one.
const LOCK_MTU: u32 = 1 << 2;

/// Where a route sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHop {
    /// The index of the interface.
    pub interface: u32,
    /// The gateway; none where destinations are on the link.
    pub gateway: Option<IpAddr>,
    /// The gateway is on the link, whatever the addresses of the interface say.
    pub onlink: bool,
}

impl NextHop {
    /// Straight out of an interface.
    #[must_use]
    pub fn interface(interface: u32) -> Self {
        Self { interface, gateway: None, onlink: false }
    }
}

/// A route in a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableRoute {
    /// Where to.
    pub destination: Prefix,
    /// The table's number.
    pub table: u32,
    /// The priority (lower is preferred); with destination and table it names a route. IPv6 makes 1024 of 0.
    pub metric: u32,
    /// What it does.
    pub kind: RouteKind,
    /// None for [`RouteKind::Unreachable`], several for one that spreads its packets.
    pub next_hops: Vec<NextHop>,
    /// The address to send from where the socket has none.
    pub source: Option<IpAddr>,
    /// In bytes; none where the interface's counts.
    pub mtu: Option<u32>,
    /// The MTU neither shrinks nor grows by what the network says.
    pub mtu_locked: bool,
    /// The congestion window that TCP connections begin with that are made over it, in segments (`RTAX_INITCWND`); none
    /// for the kernel's own idea, 10. Written only: of the kernel's routes it is not read.
    pub first_window: Option<u32>,
    /// Who installed it (`rtm_protocol`).
    pub protocol: u8,
}

impl TableRoute {
    /// A route of Whimbrel's own, with nothing special about it.
    #[must_use]
    pub fn new(destination: Prefix, table: u32, kind: RouteKind, next_hops: Vec<NextHop>) -> Self {
        let metric = if destination.address.is_ipv4() { 0 } else { 1024 };
        Self {
            destination,
            table,
            metric,
            kind,
            next_hops,
            source: None,
            mtu: None,
            mtu_locked: false,
            first_window: None,
            protocol: PROTOCOL,
        }
    }

    /// With another metric.
    #[must_use]
    pub fn metric(self, metric: u32) -> Self {
        Self { metric, ..self }
    }

    /// With an MTU in bytes.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        Self { mtu: Some(mtu), ..self }
    }

    fn object(&self) -> String {
        format!("{} in table {}", self.destination, self.table)
    }
}

impl RouteSocket {
    /// Adds a route, or replaces the one with the same destination, table and metric.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn set_route(&mut self, route: &TableRoute) -> Result<(), Error> {
        let message = RouteNetlinkMessage::NewRoute(encode(route));
        self.change(&message, NLM_F_CREATE | NLM_F_REPLACE).map_err(|e| e.of("RTM_NEWROUTE", route.object()))
    }

    /// As [`set_route`](Self::set_route), for so many seconds: then the kernel follows it no longer. IPv6 only.
    pub(crate) fn set_route_for(&mut self, route: &TableRoute, seconds: u32) -> Result<(), Error> {
        let mut message = encode(route);
        message.attributes.push(RouteAttribute::Expires(seconds));
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.change(&RouteNetlinkMessage::NewRoute(message), flags).map_err(|e| e.of("RTM_NEWROUTE", route.object()))
    }

    /// Deletes a route; returns whether there was one. Of the next hops only the interface of a single one has to fit,
    /// and a source or MTU need not.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn delete_route(&mut self, route: &TableRoute) -> Result<bool, Error> {
        let mut message = encode(route);
        // Any scope will do (include/uapi/linux/rtnetlink.h).
        message.header.scope = RouteScope::NoWhere;
        message.header.protocol = RouteProtocol::Unspec;
        message.attributes.retain(|attribute| {
            !matches!(
                attribute,
                RouteAttribute::Metrics(_) | RouteAttribute::PrefSource(_) | RouteAttribute::MultiPath(_)
            )
        });
        deleted(self.change(&RouteNetlinkMessage::DelRoute(message), 0))
            .map_err(|e| e.of("RTM_DELROUTE", route.object()))
    }

    /// The routes of both families that `wanted` says yes to, given the table.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn routes(&mut self, wanted: impl Fn(u32) -> bool) -> Result<Vec<TableRoute>, Error> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            for part in self.dump("RTM_GETROUTE", &RouteNetlinkMessage::GetRoute(message))? {
                let RouteNetlinkMessage::NewRoute(message) = part else { continue };
                routes.extend(decode(&message).into_iter().filter(|route| wanted(route.table)));
            }
        }
        Ok(routes)
    }

    /// The routes of one table that have this family; asks the kernel for no others.
    ///
    /// # Errors
    /// [`Error::Call`]. A table that was never used is empty.
    pub fn routes_of(&mut self, table: u32) -> Result<Vec<TableRoute>, Error> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            message.attributes.push(RouteAttribute::Table(table));
            let answer = match self.ask(&RouteNetlinkMessage::GetRoute(message), netlink_packet_core::NLM_F_DUMP) {
                // "FIB table does not exist".
                Err(refusal) if refusal.errno() == libc::ENOENT => continue,
                other => other.map_err(|e| e.of("RTM_GETROUTE", format!("table {table}")))?,
            };
            for part in answer {
                let RouteNetlinkMessage::NewRoute(message) = part else { continue };
                routes.extend(decode(&message).into_iter().filter(|route| route.table == table));
            }
        }
        Ok(routes)
    }

    /// Forgets what was learned about the path MTU towards a destination: in IPv6 the entry of this destination in this
    /// table, in IPv4, which can't delete a single one, all of the namespace (they are learned again where they
    /// matter).
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn forget_path_mtu(&mut self, destination: IpAddr, table: u32) -> Result<(), Error> {
        if destination.is_ipv4() {
            // ipv4_sysctl_rtcache_flush: the only place that raises fnhe_genid.
            return crate::sysctl::set("net/ipv4/route/flush", "1");
        }
        let route = TableRoute::new(Prefix::host(destination), table, RouteKind::Unicast, Vec::new()).metric(0);
        let mut message = encode(&route);
        message.header.protocol = RouteProtocol::Unspec;
        message.header.scope = RouteScope::Universe;
        // Means the cached entry, not the route that it came from (ip6_route_del).
        message.header.flags = RouteFlags::Cloned;
        deleted(self.change(&RouteNetlinkMessage::DelRoute(message), 0))
            .map(drop)
            .map_err(|e| e.of("RTM_DELROUTE", format!("cached {destination}")))
    }
}

/// Whether there was something to delete.
pub(super) fn deleted(result: Result<(), Refusal>) -> Result<bool, Refusal> {
    match result {
        Ok(()) => Ok(true),
        Err(refusal) if matches!(refusal.errno(), libc::ESRCH | libc::ENOENT | libc::EADDRNOTAVAIL) => Ok(false),
        Err(refusal) => Err(refusal),
    }
}

fn encode(route: &TableRoute) -> RouteMessage {
    let mut message = RouteMessage::default();
    let header = &mut message.header;
    header.address_family = family(route.destination.address);
    header.destination_prefix_length = route.destination.length;
    header.table = u8::try_from(route.table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
    header.protocol = RouteProtocol::from(route.protocol);
    header.kind = route.kind.into();
    header.scope = match route.kind {
        RouteKind::Local => RouteScope::Host,
        RouteKind::Unicast if route.next_hops.iter().all(|hop| hop.gateway.is_none()) => RouteScope::Link,
        _ => RouteScope::Universe,
    };
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Table(route.table));
    if route.destination.length > 0 {
        attributes.push(RouteAttribute::Destination(RouteAddress::from(route.destination.address)));
    }
    if route.metric > 0 {
        attributes.push(RouteAttribute::Priority(route.metric));
    }
    if let Some(source) = route.source {
        attributes.push(RouteAttribute::PrefSource(RouteAddress::from(source)));
    }
    match route.next_hops.as_slice() {
        [] => {}
        [hop] => {
            attributes.push(RouteAttribute::Oif(hop.interface));
            attributes.extend(hop.gateway.map(|gateway| RouteAttribute::Gateway(RouteAddress::from(gateway))));
            if hop.onlink {
                header.flags |= RouteFlags::Onlink;
            }
        }
        several => {
            let hops = several.iter().map(|hop| {
                let mut encoded = RouteNextHop::default();
                encoded.interface_index = hop.interface;
                encoded.attributes = hop
                    .gateway
                    .map(|gateway| RouteAttribute::Gateway(RouteAddress::from(gateway)))
                    .into_iter()
                    .collect();
                if hop.onlink {
                    encoded.flags |= RouteNextHopFlags::Onlink;
                }
                encoded
            });
            attributes.push(RouteAttribute::MultiPath(hops.collect()));
        }
    }
    let mut metrics = Vec::new();
    if let Some(mtu) = route.mtu {
        metrics.push(RouteMetric::Mtu(mtu));
        if route.mtu_locked {
            metrics.push(RouteMetric::Lock(LOCK_MTU));
        }
    }
    metrics.extend(route.first_window.map(RouteMetric::InitCwnd));
    if !metrics.is_empty() {
        attributes.push(RouteAttribute::Metrics(metrics));
    }
    message
}

/// None for what is no route of a table, such as a cached one.
fn decode(message: &RouteMessage) -> Option<TableRoute> {
    let everything: IpAddr = match message.header.address_family {
        AddressFamily::Inet => std::net::Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    if message.header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let mut route = TableRoute {
        destination: Prefix { address: everything, length: message.header.destination_prefix_length },
        table: u32::from(message.header.table),
        metric: 0,
        kind: message.header.kind.into(),
        next_hops: Vec::new(),
        source: None,
        mtu: None,
        mtu_locked: false,
        first_window: None,
        protocol: message.header.protocol.into(),
    };
    let (mut interface, mut gateway) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(to) => route.destination.address = address(to).unwrap_or(everything),
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::PrefSource(source) => route.source = address(source),
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(via) => gateway = address(via),
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(mtu) => route.mtu = Some(*mtu),
                        RouteMetric::Lock(locks) => route.mtu_locked = locks & LOCK_MTU != 0,
                        _ => {}
                    }
                }
            }
            RouteAttribute::MultiPath(hops) => {
                route.next_hops.extend(hops.iter().map(|hop| NextHop {
                    interface: hop.interface_index,
                    gateway: hop.attributes.iter().find_map(|attribute| match attribute {
                        RouteAttribute::Gateway(via) => address(via),
                        _ => None,
                    }),
                    onlink: hop.flags.contains(RouteNextHopFlags::Onlink),
                }));
            }
            _ => {}
        }
    }
    // IPv6 reports its unreachable routes on `lo`.
    let sends = !matches!(message.header.kind, RouteType::Unreachable | RouteType::BlackHole | RouteType::Prohibit);
    if let Some(interface) = interface.filter(|_| sends) {
        let onlink = message.header.flags.contains(RouteFlags::Onlink);
        route.next_hops.push(NextHop { interface, gateway, onlink });
    }
    Some(route)
}
