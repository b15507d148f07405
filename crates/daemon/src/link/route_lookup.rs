//! From which address each peer would be reached.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use whimbrel_kernel::network::{NetworkState, UsableAddress};
use whimbrel_kernel::peer_route::PeerRoutes;
use whimbrel_kernel::route::{LOOPBACK, Prefix, RouteKind};
use whimbrel_kernel::source_routing::SourceRoute;
use whimbrel_protocol::{PeerView, Routes};

use crate::host::source_routes;

/// Asks the kernel for routes, those of ours left aside.
pub(crate) struct RouteLookup {
    routes: RefCell<PeerRoutes>,
    addresses: Vec<UsableAddress>,
    /// The ways of those whose interface leads everywhere.
    ways: BTreeMap<IpAddr, SourceRoute>,
    /// From which address each destination is reached so far.
    present: HashMap<IpAddr, Reached>,
}

/// How a destination is reached so far.
#[derive(Clone)]
struct Reached {
    source: IpAddr,
    /// This host's addresses when that began.
    met: Rc<[UsableAddress]>,
}

impl RouteLookup {
    pub(crate) fn new(routes: PeerRoutes) -> Self {
        Self { routes: RefCell::new(routes), addresses: Vec::new(), ways: BTreeMap::new(), present: HashMap::new() }
    }

    /// Takes in another state of the network, and from where each peer is reached until now.
    pub(crate) fn handle(&mut self, network: &NetworkState, peers: impl Iterator<Item = PeerView>) {
        let known = std::mem::take(&mut self.present);
        // A peer that was not seen at the look before has been met where this host was then.
        let met: Rc<[_]> =
            if self.addresses.is_empty() { &network.addresses } else { &self.addresses }.as_slice().into();
        for peer in peers {
            let Some(source) = peer.source else { continue };
            let at = peer.locators.into_iter().chain([peer.remote.ip()]).chain(peer.candidate.map(|at| at.ip()));
            self.present.extend(at.filter(|at| at.is_ipv4() == source.is_ipv4()).map(|at| {
                let same = known.get(&at).filter(|reached| reached.source == source);
                (at, same.cloned().unwrap_or_else(|| Reached { source, met: Rc::clone(&met) }))
            }));
        }
        self.addresses.clone_from(&network.addresses);
        self.ways = source_routes(network);
    }

    /// Whether what is sent from `source`, an address of the host's, has a way to a destination, by whatever interface.
    pub(crate) fn leads(&self, source: IpAddr, destination: IpAddr) -> bool {
        self.ways.contains_key(&source) || self.way_from(source, destination).is_some()
    }

    /// The interface of that way, where the source leads it nowhere else.
    fn way_from(&self, source: IpAddr, destination: IpAddr) -> Option<u32> {
        let route = self.routes.borrow_mut().under(destination, Some(source)).ok()?;
        (route.kind == RouteKind::Unicast).then_some(route.interface)
    }
}

impl Routes for RouteLookup {
    fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        let natural = match self.routes.borrow_mut().under(destination, None) {
            // A destination that is this host itself is no peer.
            Ok(route) if route.kind == RouteKind::Unicast => route.source,
            Ok(_) | Err(whimbrel_kernel::Error::Unreachable { .. }) => None,
            Err(error) => {
                tracing::warn!(%destination, %error, "cannot look up a route");
                None
            }
        }?;
        let before = self.present.get(&destination).filter(|before| {
            stays(&self.addresses, before.source, natural)
                || (is_service(&self.addresses, before.source) && is_settled(&before.met, &self.addresses))
        });
        Some(before.map_or(natural, |before| before.source))
    }

    fn still_reaches(&self, source: IpAddr, destination: IpAddr) -> bool {
        let Some(holder) = self.addresses.iter().find(|usable| usable.address == source) else { return false };
        let natural = || self.way_from(source, destination);
        // An address of the loopback interface is routed to this host, and leaves by any.
        self.ways.contains_key(&source)
            || natural().is_some_and(|way| holder.interface == LOOPBACK || way == holder.interface)
    }
}

/// Whether a host that has used `before` so far stays there, though the kernel would take `natural` for what is new: a
/// fresh address in the same subnet (RFC 8981) is no reason to move, and one that is deprecated in its favour is as
/// good as ever for what uses it.
fn stays(addresses: &[UsableAddress], before: IpAddr, natural: IpAddr) -> bool {
    let find = |address| addresses.iter().find(|usable: &&UsableAddress| usable.address == address);
    let (Some(before), Some(natural)) = (find(before), find(natural)) else { return false };
    let subnet = Prefix { address: natural.address, length: natural.prefix_length };
    before.interface == natural.interface && subnet.contains(before.address)
}

/// Whether an address is on the loopback interface: that of a service, routed to this host. The kernel takes it for
/// nothing new, but who was asked there answers from there as long as the host stays where it is.
fn is_service(addresses: &[UsableAddress], address: IpAddr) -> bool {
    addresses.iter().any(|usable| usable.address == address && usable.interface == LOOPBACK)
}

/// Whether a host with the addresses `now` is on the same networks as with those `before`. A service address does not
/// tell: it is still there where nothing is routed to it any more.
fn is_settled(before: &[UsableAddress], now: &[UsableAddress]) -> bool {
    let on = |network: &UsableAddress, address: &UsableAddress| {
        let subnet = Prefix { address: network.address, length: network.prefix_length };
        address.interface == network.interface && subnet.contains(address.address)
    };
    let within = |these: &[UsableAddress], those: &[UsableAddress]| {
        let mut these = these.iter().filter(|address| address.interface != LOOPBACK);
        these.all(|address| those.iter().any(|network| on(network, address)))
    };
    within(before, now) && within(now, before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usable(address: &str, interface: u32, deprecated: bool) -> UsableAddress {
        UsableAddress { interface, address: address.parse().expect("address"), prefix_length: 64, made: 1, deprecated }
    }

    #[test]
    fn a_service_address_is_kept_to_while_the_host_stays() {
        let service = usable("172.31.6.6", LOOPBACK, false);
        let at = |addresses: &[(&str, u32)]| {
            let length = |usable| UsableAddress { prefix_length: 24, ..usable };
            let own = addresses.iter().map(|(address, interface)| length(usable(address, *interface, false)));
            own.chain([service]).collect::<Vec<_>>()
        };
        let here = at(&[("192.0.2.1", 2)]);
        assert!(is_service(&here, service.address) && !is_service(&here, here[0].address));
        assert!(is_settled(&here, &at(&[("192.0.2.7", 2)])));
        assert!(!is_settled(&here, &at(&[("198.51.100.1", 2)])), "moved");
        assert!(!is_settled(&here, &at(&[("192.0.2.1", 2), ("198.51.100.1", 3)])), "another network");
        assert!(!is_settled(&here, &at(&[])), "gone");
    }

    #[test]
    fn an_address_is_left_for_another_subnet_or_interface_only() {
        let addresses = [
            usable("2001:db8::1", 2, true),
            usable("2001:db8::2", 2, false),
            usable("2001:db8::3", 3, false),
            usable("2001:db8:1::1", 2, false),
        ];
        let stays = |natural: usize| super::stays(&addresses, addresses[0].address, addresses[natural].address);
        assert!(stays(0) && stays(1));
        assert!(!stays(2) && !stays(3));
        assert!(!super::stays(&addresses[1..], addresses[0].address, addresses[1].address), "it is gone");
    }
}
