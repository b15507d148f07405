//! Routes to the addresses of peers that have moved away, for the host that stays.
//!
//! tc egress comes after neighbour resolution: towards a peer that was on the link and has left, the kernel would only
//! ask for its link-layer address and send nothing. A host route to the TUN device makes the packets reach an egress
//! program; where all are rewritten, one to the next hop of its new address spares them a second pass through the
//! kernel's output. A host route by the old next hop with a smaller MTU makes TCP send segments that fit into the
//! tunnel: what is built already and does not fit comes back to TCP, which counts it as not sent (`tcp_write_xmit`) and
//! cuts it smaller. Nothing that is in flight is resent.
//!
//! The routes have a table of their own, in which only unmarked packets that this host sends itself are looked up:
//! nothing that is forwarded is touched, no route of the administrator's is replaced, and [`PeerRoutes::under`] finds
//! the route that would be taken without them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::error::Error;
use crate::kept_address::Mark;
use crate::route::{Desired, NextHop, Prefix, Route, RouteKind, RouteSocket, Rule, Selector, TableRoute};

/// The routes are in this table.
pub const PEER_TABLE: u32 = 20313;
/// The priority of the rule that leads to it.
pub const PEER_PRIORITY: u32 = 2033;

/// Higher than those of the other routes, in either family.
const OTHERWISE_METRIC: u32 = 2048;

/// How packets to a peer that has moved away leave this host's routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerWay {
    /// The index of the interface: the TUN device, or that of the next hop.
    pub interface: u32,
    /// The next hop; none for the TUN device.
    pub gateway: Option<IpAddr>,
    /// The index of the TUN device, where that is to take over when the interface goes away.
    pub otherwise: Option<u32>,
    /// The address that new sockets send from. Without one the TUN device, having none, would let the kernel pick any.
    pub source: Option<IpAddr>,
    /// In bytes, where it is not that of the interface. It is not locked: with a locked MTU IPv4 clears DF, and sends
    /// what TCP has built already in fragments.
    pub mtu: Option<u32>,
}

/// Keeps routes to moved peers, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct PeerRoutes {
    route: RouteSocket,
    mark: Mark,
}

impl PeerRoutes {
    /// Opens it. What a killed daemon left stays as it is until [`apply`](Self::apply). `mark` is that of moved flows.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open(mark: Mark) -> Result<Self, Error> {
        Ok(Self { route: RouteSocket::open()?, mark })
    }

    /// The route to a peer as it would be without ours.
    ///
    /// # Errors
    /// As [`RouteSocket::route_to`].
    pub fn under(&mut self, peer: IpAddr, from: Option<IpAddr>) -> Result<Route, Error> {
        // Marked, so not looked up in our table, but not with the mark of moved flows.
        let other = self.mark.mask & !self.mark.value;
        self.route.route_to(peer, from, Some(other))
    }

    /// The peers that have a route now, by this daemon or one before.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn routed(&mut self) -> Result<BTreeSet<IpAddr>, Error> {
        Ok(self.route.routes_of(PEER_TABLE)?.into_iter().map(|route| route.destination.address).collect())
    }

    /// Makes the routes equal to what is wanted; returns whether anything had to be changed. If a step fails, those
    /// before it are undone.
    ///
    /// # Errors
    /// [`Error::Call`] of the step that failed. Its effect is [`Effect::Partial`](crate::Effect::Partial) only where
    /// undoing failed as well; apply again then.
    pub fn apply(&mut self, wanted: &BTreeMap<IpAddr, PeerWay>) -> Result<bool, Error> {
        let desired = Desired {
            routes: wanted.iter().flat_map(|(peer, way)| host_routes(*peer, way)).collect(),
            rules: wanted.keys().map(|peer| self.rule(peer.is_ipv4())).collect(),
        };
        self.route.establish(|table| table == PEER_TABLE, &desired)
    }

    /// Removes everything, also what a killed daemon left.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn release(&mut self) -> Result<(), Error> {
        self.apply(&BTreeMap::new()).map(drop)
    }

    fn rule(&self, ipv4: bool) -> Rule {
        let selector = Selector::OwnUnmarked { mask: self.mark.mask, ipv4 };
        Rule { priority: PEER_PRIORITY, selector, table: PEER_TABLE }
    }
}

fn host_routes(peer: IpAddr, way: &PeerWay) -> impl Iterator<Item = TableRoute> {
    // The gateway need not be on a subnet of the interface any more.
    let hop = NextHop { interface: way.interface, gateway: way.gateway, onlink: way.gateway.is_some() };
    let (source, mtu) = (way.source, way.mtu);
    let route = move |hop| {
        let route = TableRoute::new(Prefix::host(peer), PEER_TABLE, RouteKind::Unicast, vec![hop]);
        TableRoute { source, mtu, ..route }
    };
    let otherwise = way.otherwise.map(|tun| route(NextHop::interface(tun)).metric(OTHERWISE_METRIC));
    [Some(route(hop)), otherwise].into_iter().flatten()
}
