//! Make before break: what is sent from an address that a host is leaving, and still has, goes out by the interface
//! that has it, wherever the routes for everything else lead by now.
//!
//! Without this the kernel sends it by the new network, where nobody expects that source: a NAT there would make a
//! mapping of its own for it, and the peer's answer to that would reset the connection. The other way round, strict
//! reverse path filtering would drop what still arrives by the old network; it looks up the same rules
//! (`fib_validate_source`), and so lets it in.
//!
//! `from ADDRESS iif lo fwmark 0/MASK lookup` a table of the interface, which has nothing but a default route. It is
//! only wanted where the interface has a way of its own to everywhere; what is on the link never gets as far.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::error::Error;
use crate::kept_address::Mark;
use crate::route::{Desired, NextHop, Prefix, RouteKind, RouteSocket, Rule, Selector, TableRoute};

/// The table of interface 0; that of any other has its index added.
pub const FIRST_TABLE: u32 = 2_031_000_000;
/// The priority of the rules.
pub const PRIORITY: u32 = 2034;

/// How packets from an address leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceRoute {
    /// The index of the interface that has the address.
    pub interface: u32,
    /// The next hop; none on links that need no such.
    pub gateway: Option<IpAddr>,
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

    /// Makes the ways equal to what is wanted; returns whether anything had to be changed. If a step fails, those
    /// before it are undone.
    ///
    /// # Errors
    /// [`Error::Call`] of the step that failed. Its effect is [`Effect::Partial`](crate::Effect::Partial) only where
    /// undoing failed as well; apply again then.
    pub fn apply(&mut self, wanted: &BTreeMap<IpAddr, SourceRoute>) -> Result<bool, Error> {
        let mut desired = Desired::default();
        for (&address, way) in wanted {
            let table = FIRST_TABLE + way.interface;
            let hop = NextHop { interface: way.interface, gateway: way.gateway, onlink: way.gateway.is_some() };
            let everything = Prefix::everything(address);
            desired.routes.insert(TableRoute::new(everything, table, RouteKind::Unicast, vec![hop]));
            let selector = Selector::FromUnmarked { address, mask: self.mark.mask };
            desired.rules.insert(Rule { priority: PRIORITY, selector, table });
        }
        self.route.establish(|table| (FIRST_TABLE..FIRST_TABLE + 1_000_000).contains(&table), &desired)
    }

    /// Removes everything, also what a killed daemon left.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn release(&mut self) -> Result<(), Error> {
        self.apply(&BTreeMap::new()).map(drop)
    }
}
