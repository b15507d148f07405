//! Where what flows send natively leaves: told to the data plane, which holds to it in the moments in which the routes
//! lead elsewhere and the daemon does not know of it yet (decision 0120).

use std::collections::BTreeMap;
use std::net::IpAddr;

use whimbrel_datapath::{Datapath, Error, Home, LocatorPair};
use whimbrel_kernel::route::{Route, RouteKind};
use whimbrel_kernel::source_routing::SourceRoute;

/// How many pairs of addresses are held to: each is looked up when routes have changed.
const MOST: usize = 1024;

/// What the data plane was told, and what the kernel said of it.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    /// None: it leaves by another interface than the one that has the address, or not at all.
    found: BTreeMap<LocatorPair, Option<Home>>,
    told: BTreeMap<LocatorPair, Home>,
    /// Flows go between other addresses than before.
    others: bool,
    /// Routes may have changed.
    stale: bool,
}

impl Homes {
    /// Flows go between other addresses than before.
    pub(crate) fn set_others(&mut self, others: bool) {
        self.others |= others;
    }

    /// Routes may have changed: all is looked up anew.
    pub(crate) fn check_again(&mut self) {
        self.stale = true;
    }

    /// Tells the data plane what it does not know yet of these pairs. `route`: where what is sent from the first to the
    /// second goes now. `ways`: how what is sent from each address leaves by the interface that has it, `holder`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn apply(
        &mut self,
        datapath: &Datapath,
        between: impl Iterator<Item = LocatorPair>,
        ways: &BTreeMap<IpAddr, SourceRoute>,
        holder: impl Fn(IpAddr) -> Option<u32>,
        mut route: impl FnMut(LocatorPair) -> Option<Route>,
    ) -> Result<(), Error> {
        if !self.others && !self.stale {
            return Ok(());
        }
        let mut before = std::mem::take(&mut self.found);
        for pair in between.take(MOST) {
            let known = before.remove(&pair);
            let found = known.filter(|_| !self.stale).unwrap_or_else(|| {
                let way = ways.get(&pair.local);
                find(pair, known.flatten(), holder(pair.local)?, way, route(pair))
            });
            self.found.insert(pair, found);
        }
        let homes: BTreeMap<_, _> = self.found.iter().filter_map(|(pair, found)| Some((*pair, (*found)?))).collect();
        if homes != self.told {
            datapath.set_homes(&homes)?;
            self.told = homes;
        }
        (self.others, self.stale) = (false, false);
        Ok(())
    }
}

/// Where what is sent between a pair of addresses is at home, of which the first is on `interface`. `known`: where it
/// was until now.
fn find(
    pair: LocatorPair,
    known: Option<Home>,
    interface: u32,
    way: Option<&SourceRoute>,
    route: Option<Route>,
) -> Option<Home> {
    let by = |gateway: Option<IpAddr>| Home { interface, next_hop: gateway.unwrap_or(pair.peer) };
    if let Some(route) = route.filter(|route| (route.kind, route.interface) == (RouteKind::Unicast, interface)) {
        return Some(by(route.gateway));
    }
    // The routes lead by another network now, and its own still leads out.
    let known = known.filter(|known| known.interface == interface)?;
    let way = way.filter(|way| way.interface == interface)?;
    Some(if known.next_hop == pair.peer { known } else { by(way.gateway) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_at_home_stays_there_while_its_network_leads_out() {
        let address = |last: u8| IpAddr::from([192, 0, 2, last]);
        let pair = LocatorPair { local: address(1), peer: [203, 0, 113, 5].into() };
        let route = |interface, gateway| Route {
            kind: RouteKind::Unicast,
            interface,
            gateway,
            source: None,
            table: 254,
            mtu: None,
        };
        let way = |gateway| SourceRoute { interface: 2, gateway: Some(gateway), onlink: false };
        let home = |next_hop| Some(Home { interface: 2, next_hop });
        let find = |known, way: Option<SourceRoute>, route| find(pair, known, 2, way.as_ref(), route);
        let (first, second, away) = (address(254), address(253), route(3, None));

        assert_eq!(find(None, Some(way(first)), Some(route(2, Some(second)))), home(second), "as the routes lead");
        assert_eq!(find(None, None, Some(route(2, None))), home(pair.peer), "on the link");
        assert_eq!(find(None, Some(way(first)), Some(away.clone())), None, "it never went there");
        assert_eq!(find(home(second), Some(way(first)), Some(away.clone())), home(first));
        assert_eq!(find(home(second), Some(way(first)), None), home(first));
        assert_eq!(find(home(pair.peer), Some(way(first)), Some(away.clone())), home(pair.peer));
        assert_eq!(find(home(second), None, Some(away.clone())), None, "its network leads out no more");
        let moved = Some(Home { interface: 4, next_hop: second });
        assert_eq!(find(moved, Some(way(first)), Some(away)), None, "another interface has the address");
    }
}
