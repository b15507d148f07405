//! Make before break: what is sent from an address that a host is leaving, and still has, goes out by the interface
//! that has it, wherever the routes for everything else lead by now.
//!
//! Without this the kernel sends it by the new network, where nobody expects that source: a NAT there would make a
//! mapping of its own for it, and the peer's answer to that would reset the connection. The other way round, strict
//! reverse path filtering would drop what still arrives by the old network; it looks up the same rules
//! (`fib_validate_source`), and so lets it in.
//!
//! `from ADDRESS iif lo fwmark 0/MASK lookup` a table of the interface, which has a default route, and for IPv6 that of
//! the subnet. It is only wanted where the interface has a way of its own to everywhere; what is on the link never gets
//! as far.
//!
//! Paths that are kept ready: a datagram that names the interface of its source leaves by that. IPv4 looks at no other
//! routes then (`fib_table_lookup`). IPv6 takes the interface for a wish where a source is named as well, and follows a
//! route of a better metric by another (`rt6_score_route`; only without a source is it strict, `rt6_need_strict` and
//! `RT6_LOOKUP_F_IFACE` of `ip6_route_output_flags`). So there is for each such address of IPv6
//! `from ADDRESS iif lo oif NAME ipproto udp sport PORT lookup` the same table. What names no interface, is sent from
//! another port or forwarded is not concerned. These rules come before that of peers' routes, which may lead the same
//! peer by another interface.
//!
//! Peers that are reached by another network than the routes lead to: what is new goes there, and is sent from the
//! address there. What is sent from other addresses is not concerned, as connections that nobody carries. Routes for
//! the peers' addresses are in a second table of the interface, and only what has no source yet, or that address, is
//! looked up there: `from 0.0.0.0 iif lo` and `from ADDRESS iif lo` for IPv4, one rule for both for IPv6, which has a
//! flag for it (`FIB_RULE_FIND_SADDR`: the kernel looks whether it would choose that address).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use crate::error::Error;
use crate::kept_address::Mark;
use crate::route::{Desired, InterfaceName, NextHop, Prefix, RouteKind, RouteSocket, Rule, Selector, TableRoute};

/// The table of interface 0; that of any other has its index added.
pub const FIRST_TABLE: u32 = 2_031_000_000;
/// The priority of the rules of addresses that are left, and of what is new.
pub const PRIORITY: u32 = 2034;
/// The second table of interface 0.
pub const FIRST_FRESH_TABLE: u32 = FIRST_TABLE + INTERFACES_MOST;
/// Interfaces from this index on have no tables. The kernel draws indices from 1, but whoever makes an interface may
/// give it any (`ip link add … index`, up to 2³¹ - 1), and the tables would be others' then.
const INTERFACES_MOST: u32 = 1_000_000;
/// The priority of the rules of datagrams that name their interface: that of the rules of kept addresses, which are of
/// other addresses.
pub const NAMED_PRIORITY: u32 = 2032;

/// How packets from an address leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceRoute {
    /// The index of the interface that has the address.
    pub interface: u32,
    /// The next hop; none on links that need no such.
    pub gateway: Option<IpAddr>,
    /// The next hop is on the link, whatever the addresses of the interface say. Where that is not needed the kernel
    /// refuses a way by a network whose addresses have gone meanwhile, instead of leading there what waits for a next
    /// hop that does not answer any more.
    pub onlink: bool,
}

impl SourceRoute {
    fn hop(&self) -> NextHop {
        NextHop { interface: self.interface, gateway: self.gateway, onlink: self.onlink && self.gateway.is_some() }
    }
}

/// How datagrams leave that name the interface of the address that they are sent from. IPv6 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamedLink {
    /// The port that they are sent from.
    pub port: u16,
    /// The interface.
    pub name: InterfaceName,
    /// The way to what is not on the link.
    pub way: SourceRoute,
    /// What is on the link with the address.
    pub subnet: Prefix,
}

/// How what is new goes to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FreshWay {
    /// The way.
    pub way: SourceRoute,
    /// The address that it is sent from.
    pub source: IpAddr,
}

/// How what this host sends from its addresses leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceWays {
    /// From addresses that are being left: all but packets of moved flows.
    pub left: BTreeMap<IpAddr, SourceRoute>,
    /// Datagrams that name their interface.
    pub named: BTreeMap<IpAddr, NamedLink>,
    /// What is new, by where it goes.
    pub fresh: BTreeMap<IpAddr, FreshWay>,
}

/// What became of ways that were wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Whether anything had to be changed.
    pub changed: bool,
    /// Interfaces by which none of them leads, as their indices are too high for a table of their own.
    pub without: BTreeSet<u32>,
}

/// Keeps ways of source addresses, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct SourceRoutes {
    route: RouteSocket,
    mark: Mark,
}

impl SourceRoutes {
    /// Opens it. What a killed daemon left stays as it is until [`apply`](Self::apply). `mark` is that of moved flows,
    /// whose packets are not concerned.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open(mark: Mark) -> Result<Self, Error> {
        Ok(Self { route: RouteSocket::open()?, mark })
    }

    /// Makes the ways equal to what is wanted. If a step fails, those before it are undone.
    ///
    /// # Errors
    /// [`Error::Call`] of the step that failed. Its effect is [`Effect::Partial`](crate::Effect::Partial) only where
    /// undoing failed as well; apply again then.
    pub fn apply(&mut self, wanted: &SourceWays) -> Result<Applied, Error> {
        let (desired, without) = desired(wanted, self.mark);
        let ours = FIRST_TABLE..FIRST_FRESH_TABLE + INTERFACES_MOST;
        let changed = self.route.establish(|table| ours.contains(&table), &desired)?;
        Ok(Applied { changed, without })
    }

    /// Removes everything, also what a killed daemon left.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn release(&mut self) -> Result<(), Error> {
        self.apply(&SourceWays::default()).map(drop)
    }
}

/// The routes and rules for these ways, and the interfaces that have none.
fn desired(wanted: &SourceWays, mark: Mark) -> (Desired, BTreeSet<u32>) {
    let mask = mark.mask;
    let mut desired = Desired::default();
    let mut without = BTreeSet::new();
    let mut has_tables = |way: &SourceRoute| {
        let has = way.interface < INTERFACES_MOST;
        if !has {
            without.insert(way.interface);
        }
        has
    };
    for (&address, way) in wanted.left.iter().filter(|(_, way)| has_tables(way)) {
        let table = lead(&mut desired, address, way);
        let selector = Selector::FromUnmarked { address, mask };
        desired.rules.insert(Rule { priority: PRIORITY, selector, table });
    }
    for (&address, named) in wanted.named.iter().filter(|(_, named)| has_tables(&named.way)) {
        let NamedLink { port, name, way, subnet } = *named;
        let table = lead(&mut desired, address, &way);
        // One address alone is this host itself.
        if subnet != Prefix::host(address) {
            let hop = NextHop::interface(way.interface);
            desired.routes.insert(TableRoute::new(subnet.masked(), table, RouteKind::Unicast, vec![hop]));
        }
        let selector = Selector::Named { address, port, interface: name };
        desired.rules.insert(Rule { priority: NAMED_PRIORITY, selector, table });
    }
    for (&to, fresh) in wanted.fresh.iter().filter(|(_, fresh)| has_tables(&fresh.way)) {
        let FreshWay { way, source } = *fresh;
        let table = FIRST_FRESH_TABLE + way.interface;
        let route = TableRoute::new(Prefix::host(to), table, RouteKind::Unicast, vec![way.hop()]);
        desired.routes.insert(TableRoute { source: Some(source), ..route });
        let selectors = match source {
            IpAddr::V4(_) => {
                [source, Ipv4Addr::UNSPECIFIED.into()].map(|address| Selector::FromUnmarked { address, mask }).to_vec()
            }
            IpAddr::V6(address) => vec![Selector::FromOrChosen { address, mask }],
        };
        let rules = selectors.into_iter().map(|selector| Rule { priority: PRIORITY, selector, table });
        desired.rules.extend(rules);
    }
    (desired, without)
}

/// Leads everything by an interface, in a table of that, which is given.
fn lead(desired: &mut Desired, like: IpAddr, way: &SourceRoute) -> u32 {
    let table = FIRST_TABLE + way.interface;
    desired.routes.insert(TableRoute::new(Prefix::everything(like), table, RouteKind::Unicast, vec![way.hop()]));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_with_too_high_an_index_has_no_tables() {
        let by = |interface| SourceRoute { interface, gateway: None, onlink: true };
        let [here, six]: [IpAddr; 2] = [[192, 0, 2, 1].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()];
        let name = InterfaceName::new("eth0").expect("a name");
        let ways = |interface| SourceWays {
            left: [(here, by(interface))].into(),
            named: [(six, NamedLink { port: 2031, name, way: by(interface), subnet: Prefix::host(six) })].into(),
            fresh: [([203, 0, 113, 5].into(), FreshWay { way: by(interface), source: here })].into(),
        };
        let mark = Mark { value: 1, mask: 1 };
        for interface in [INTERFACES_MOST, i32::MAX.unsigned_abs()] {
            assert_eq!(desired(&ways(interface), mark), (Desired::default(), [interface].into()));
        }
        let (last, without) = desired(&ways(INTERFACES_MOST - 1), mark);
        let tables: BTreeSet<u32> = last.routes.iter().map(|route| route.table).collect();
        assert_eq!(tables, [FIRST_FRESH_TABLE - 1, FIRST_FRESH_TABLE + INTERFACES_MOST - 1].into());
        assert!(without.is_empty() && last.rules.len() == 4);
    }
}
