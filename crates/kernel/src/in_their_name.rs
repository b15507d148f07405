//! Datagrams to the control port of hosts that this one is the router of are delivered here, for a socket that is bound
//! to no address ([`UdpSocket::speak_for_others`](crate::udp::UdpSocket::speak_for_others)): a gateway answers in their
//! name.
//!
//! `to PREFIX ipproto udp dport PORT lookup` a table in which everything is local (as the kernel's documentation of
//! TPROXY has it, Documentation/networking/tproxy.rst; ports in rules: Linux 4.17). Nothing else is touched, and no
//! program has to look at packets for it. Fragments are another matter, since rules do not see their ports
//! (`fib4_rules_early_flow_dissect` stops at the first): those that the ingress program has marked are led here too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::Error;
use crate::kept_address::Mark;
use crate::route::{Desired, LOOPBACK, NextHop, Prefix, RouteKind, RouteSocket, Rule, Selector, TableRoute};

/// Everything is local in this table.
pub const LOCAL_TABLE: u32 = 20314;
/// The priority of the rules that lead to it.
pub const PRIORITY: u32 = 2030;

/// Has such datagrams delivered, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct InTheirName {
    route: RouteSocket,
}

impl InTheirName {
    /// Opens it. What a killed daemon left stays as it is until [`apply`](Self::apply).
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self { route: RouteSocket::open()? })
    }

    /// Has datagrams to `port` of these addresses, and of no others, delivered here; returns whether anything had to be
    /// changed. If a step fails, those before it are undone. `mark`: of fragments of such datagrams.
    ///
    /// # Errors
    /// [`Error::Call`] of the step that failed. Its effect is [`Effect::Partial`](crate::Effect::Partial) only where
    /// undoing failed as well; apply again then.
    pub fn apply(&mut self, behind: &[Prefix], port: u16, mark: Mark) -> Result<bool, Error> {
        let mut desired = Desired::default();
        for to in behind.iter().map(|prefix| prefix.masked()) {
            let any: IpAddr =
                if to.address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let hops = vec![NextHop::interface(LOOPBACK)];
            desired.routes.insert(TableRoute::new(Prefix::everything(any), LOCAL_TABLE, RouteKind::Local, hops));
            let selector = Selector::Asked { to, port };
            desired.rules.insert(Rule { priority: PRIORITY, selector, table: LOCAL_TABLE });
            let selector = Selector::MarkedTo { to, value: mark.value, mask: mark.mask };
            desired.rules.insert(Rule { priority: PRIORITY, selector, table: LOCAL_TABLE });
        }
        self.route.establish(|table| table == LOCAL_TABLE, &desired)
    }

    /// Removes everything, also what a killed daemon left; returns whether there was anything.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn release(&mut self) -> Result<bool, Error> {
        self.apply(&[], 0, Mark { value: 0, mask: 0 })
    }
}
