//! From which address each peer would be reached.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use whimbrel_kernel::network::{NetworkState, UsableAddress};
use whimbrel_kernel::peer_route::PeerRoutes;
use whimbrel_kernel::route::{Prefix, RouteKind};
use whimbrel_kernel::source_way::SourceWay;
use whimbrel_protocol::{PeerView, Routes};

use crate::effects::source_ways;

/// Asks the kernel for routes, those of ours left aside.
pub(super) struct RouteLookup {
    routes: RefCell<PeerRoutes>,
    addresses: Vec<UsableAddress>,
    /// The ways of those whose interface leads everywhere.
    ways: BTreeMap<IpAddr, SourceWay>,
    /// From which address each destination is reached so far.
    present: HashMap<IpAddr, IpAddr>,
}

impl RouteLookup {
    pub(super) fn new(routes: PeerRoutes) -> Self {
        Self { routes: RefCell::new(routes), addresses: Vec::new(), ways: BTreeMap::new(), present: HashMap::new() }
    }

    /// Takes in another state of the network, and from where each peer is reached until now.
    pub(super) fn take_in(&mut self, network: &NetworkState, peers: impl Iterator<Item = PeerView>) {
        self.present.clear();
        for peer in peers {
            let Some(source) = peer.source else { continue };
            let at = peer.locators.into_iter().chain([peer.remote.ip()]).chain(peer.candidate.map(|at| at.ip()));
            self.present.extend(at.filter(|at| at.is_ipv4() == source.is_ipv4()).map(|at| (at, source)));
        }
        self.addresses.clone_from(&network.addresses);
        self.ways = source_ways(network);
    }

    /// Whether what is sent from `source`, an address of the host's, has a way to a destination, by whatever interface.
    pub(super) fn leads(&self, source: IpAddr, destination: IpAddr) -> bool {
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
        let before = self.present.get(&destination).filter(|before| stays(&self.addresses, **before, natural));
        Some(before.copied().unwrap_or(natural))
    }

    fn still_reaches(&self, source: IpAddr, destination: IpAddr) -> bool {
        let Some(holder) = self.addresses.iter().find(|usable| usable.address == source) else { return false };
        self.ways.contains_key(&source) || self.way_from(source, destination) == Some(holder.interface)
    }
}

/// Whether a host that has used `before` so far stays there, though the kernel would take `natural` for what is new: a
/// fresh address in the same subnet (RFC 8981) is no reason to move, and one that is deprecated in its favour is as good
/// as ever for what uses it.
fn stays(addresses: &[UsableAddress], before: IpAddr, natural: IpAddr) -> bool {
    let find = |address| addresses.iter().find(|usable: &&UsableAddress| usable.address == address);
    let (Some(before), Some(natural)) = (find(before), find(natural)) else { return false };
    let subnet = Prefix { address: natural.address, length: natural.prefix_length };
    before.interface == natural.interface && subnet.contains(before.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usable(address: &str, interface: u32, deprecated: bool) -> UsableAddress {
        UsableAddress { interface, address: address.parse().expect("address"), prefix_length: 64, made: 1, deprecated }
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
