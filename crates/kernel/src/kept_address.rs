//! The care for the old addresses of a host that has roamed: its sockets go on using them, and nobody else notices.
//!
//! For each old address (OLD):
//!
//! - IPv4: OLD/32 is on `lo`, because the kernel sends from no address that is not its own
//!   (`ip_route_output_key_hash_rcu`). Its scope is *host*, so that nothing new is sent from it. The `local` route that
//!   came with it is deleted: while the local table has OLD, nobody on this host can talk with OLD's new owner. And
//!   with that route gone, ARP neither answers for OLD nor asks in its name, whatever `arp_ignore` and `arp_announce`
//!   say: both look into the local table (`arp_process`, `arp_solicit`).
//! - IPv6: OLD is on no interface. The kernel does not ask for it, and having it would make it the source of everything
//!   that is sent to its new owner (RFC 6724 §5, rule 1).
//! - `from OLD iif lo lookup` [`OUTPUT_TABLE`], whose default route is the TUN device, so that packets of moved flows
//!   reach its egress program even where no route of their family exists. Where all packets to a destination are
//!   rewritten, a route leads there straight ([`Straight`]), since the TUN device would be a second pass through the
//!   kernel's output; the egress program there lets nothing else pass from OLD. Below is an `unreachable` route: should
//!   the device be gone, nothing with an old address leaks into a foreign network.
//! - `fwmark M lookup` [`MARKED_TABLE`], where OLD is local: packets of moved flows, marked by the ingress program, are
//!   delivered.
//!
//! An address that the host leaves and still has goes the ordinary way, and what no route leads to goes to
//! [`OUTPUT_TABLE`], by a rule behind all others: its flows may be carried where no route of their family is left.
//! It may go at any moment. From then on until that is noticed the kernel would refuse what is sent from it over IPv4
//! (`ip_route_output_key_hash_rcu`), and programs of UDP would hear so: where its flows have moved by another network
//! already, the local table has it on `lo` as well, behind the kernel's own route. IPv6 does not ask whether a source
//! is its own.
//!
//! **Strict rp_filter**, on either end: a marked packet's way back is looked up with its mark (`src_valid_mark`), and
//! in [`MARKED_TABLE`] the default route leads out of every interface that moved flows may arrive on, the TUN device
//! among them (one multipath route: `fib_info_nh_uses_dev` looks at all its hops). So packets that are taken from the
//! TUN device need the mark as well. What still arrives under its own names by the network that is being left has no
//! mark; it passes once [`SourceRoutes`](crate::source_routing::SourceRoutes) leads there what is sent from its
//! destination.
//!
//! Tables, priorities and [`PROTOCOL`](crate::route::PROTOCOL) are the same in every instance: an instance is a network
//! namespace, and two daemons do not share one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::error::{Effect, Error};
use crate::route::{
    AddressScope, LOCAL_TABLE, LOOPBACK, NewAddress, NextHop, PROTOCOL, Prefix, RouteKind, RouteSocket, Rule, Selector,
    TableRoute,
};
use crate::saved_sysctl::SavedSysctls;
use crate::sysctl;

/// Packets from old addresses are looked up here.
pub const OUTPUT_TABLE: u32 = 20311;
/// Packets with the mark of moved flows are looked up here.
pub const MARKED_TABLE: u32 = 20312;
/// The priority of the rule that leads to [`MARKED_TABLE`].
pub const MARKED_PRIORITY: u32 = 2031;
/// The priority of the rules that lead to [`OUTPUT_TABLE`].
pub const OUTPUT_PRIORITY: u32 = 2032;
/// The priority of the rules that lead to [`OUTPUT_TABLE`] what no route leads to: behind the kernel's own rules.
pub const LAST_PRIORITY: u32 = 32_800;

/// Lower than any other, and not the reserved all-ones.
const LAST_METRIC: u32 = u32::MAX - 1;
const VALID_MARK: &str = "net/ipv4/conf/all/src_valid_mark";
const RECORD: &str = "sysctls";

/// A firewall mark: `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The bits that are set.
    pub value: u32,
    /// The bits that count.
    pub mask: u32,
}

/// What the packets of moved flows are carried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// The interface index of the TUN device, which has to be up.
    pub tun: u32,
    /// The MTU in bytes of packets that leave from old addresses.
    pub mtu: u32,
    /// The mark that the ingress program sets on packets of moved flows.
    pub mark: Mark,
}

/// The way of rewritten packets out of a host. A packet that is led there under its own names, with the Ethernet header
/// that it will need, is rewritten in passing; from the TUN device it has to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Straight {
    /// The index of the interface.
    pub interface: u32,
    /// The next hop: a gateway or, where the peer is on the link, the peer itself. Of the family of the packets.
    pub next_hop: IpAddr,
}

impl Straight {
    pub(crate) fn hop(self) -> NextHop {
        // For the destination that it is the next hop of, no subnet speaks.
        NextHop { interface: self.interface, gateway: Some(self.next_hop), onlink: true }
    }
}

/// The state that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Old addresses that sockets still use. Only such as are no longer on an interface: as long as OLD works, what is
    /// sent from it should go the ordinary way.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses that are still there, and may go at any moment: packets of moved flows are delivered to them in the
    /// moment before that is noticed, too. What is sent from them goes to the TUN device where no route leads to its
    /// destination.
    pub leaving: BTreeSet<IpAddr>,
    /// Those of `leaving` that nothing is at home at any more: what is sent from them has moved already. Nothing is
    /// refused when such an address goes. What is at home at an address that goes is, since under its names it would
    /// leave by whatever network comes next.
    pub left: BTreeSet<IpAddr>,
    /// The indexes of the interfaces that packets of moved flows may arrive on, beside the TUN device. Those that are
    /// down are left out.
    pub arrivals: BTreeSet<u32>,
    /// Destinations to which the MTU of packets from old addresses is less than the carrier's, in bytes.
    pub smaller: BTreeMap<IpAddr, u32>,
    /// Destinations of which all packets are rewritten, with the hop that these leave by.
    pub straight: BTreeMap<IpAddr, Straight>,
}

/// Keeps old addresses, in the network namespace of the thread that opened it. All calls have to be made in that
/// namespace.
#[derive(Debug)]
pub struct KeptAddresses {
    route: RouteSocket,
    saved: SavedSysctls,
}

/// What there is of ours in the kernel, or what there should be.
#[derive(Debug, Default, PartialEq, Eq)]
struct State {
    routes: BTreeSet<TableRoute>,
    rules: BTreeSet<Rule>,
    /// On `lo`; IPv4 only.
    addresses: BTreeSet<Ipv4Addr>,
    /// Old addresses that the local table still has.
    local: BTreeSet<Ipv4Addr>,
}

/// One change, which knows its opposite.
#[derive(Clone, Debug)]
enum Step {
    SetRoute(TableRoute),
    DeleteRoute(TableRoute),
    SetRule(Rule),
    DeleteRule(Rule),
    /// On `lo`, without its local route.
    KeepAddress(Ipv4Addr),
    DeleteAddress(Ipv4Addr),
    DeleteLocal(Ipv4Addr),
}

impl KeptAddresses {
    /// Opens it. What a killed daemon left stays as it is until [`apply`](Self::apply) adopts or removes it.
    ///
    /// `run_dir` is where the settings that were changed are remembered.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open(run_dir: &Path) -> Result<Self, Error> {
        Ok(Self { route: RouteSocket::open()?, saved: SavedSysctls::open(&run_dir.join(RECORD))? })
    }

    /// The old addresses that are kept now, by this daemon or one before.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn kept(&mut self) -> Result<BTreeSet<IpAddr>, Error> {
        let state = self.actual()?;
        let ruled = state.rules.iter().filter_map(|rule| match rule.selector {
            Selector::From(address) => Some(address),
            _ => None,
        });
        Ok(ruled.chain(state.addresses.iter().copied().map(IpAddr::V4)).collect())
    }

    /// Makes the kernel's state equal to what is wanted; returns whether anything had to be changed.
    ///
    /// What is new is there before what is no longer wanted goes. If a step fails, those before it are undone.
    ///
    /// # Errors
    /// [`Error::Call`] of the step that failed. Its effect is [`Effect::Partial`] only where undoing failed as well;
    /// apply again then.
    pub fn apply(&mut self, carrier: &Carrier, kept: &Kept) -> Result<bool, Error> {
        let wanted = self.wanted(carrier, kept)?;
        let nothing = wanted == State::default();
        let first = self.saved.is_empty();
        let marked = !nothing && self.saved.set(VALID_MARK, "1")?;
        let changed = self.make(&wanted).or_else(|error| {
            if first && marked {
                self.saved.restore().map_err(|e| e.with_effect(Effect::Partial))?
            }
            Err(error)
        })?;
        if nothing && !first {
            self.saved.restore()?;
        }
        Ok(changed || marked || (nothing && !first))
    }

    /// Removes everything, also what a killed daemon left, and puts settings back. The addresses that it has had here
    /// for other hosts go as well.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn release(&mut self) -> Result<(), Error> {
        self.make(&State::default())?;
        for address in self.route.addresses()?.iter().filter(|address| address.own) {
            self.route.delete_address(address.interface, address.prefix.address)?;
        }
        self.saved.restore()
    }

    fn make(&mut self, wanted: &State) -> Result<bool, Error> {
        let steps = steps(&self.actual()?, wanted);
        let mut undo: Vec<Step> = Vec::with_capacity(steps.len());
        for (step, opposite) in &steps {
            match self.take(step) {
                Ok(()) => undo.extend(opposite.clone()),
                Err(error) => {
                    let failures = undo.iter().rev().filter(|step| self.take(step).is_err()).count();
                    return Err(if failures > 0 { error.with_effect(Effect::Partial) } else { error });
                }
            }
        }
        Ok(!steps.is_empty())
    }

    fn take(&mut self, step: &Step) -> Result<(), Error> {
        match step {
            Step::SetRoute(route) => self.route.set_route(route),
            Step::DeleteRoute(route) => self.route.delete_route(route).map(drop),
            Step::SetRule(rule) => self.route.set_rule(rule),
            Step::DeleteRule(rule) => self.route.delete_rule(rule).map(drop),
            Step::KeepAddress(address) => self.keep_address(*address),
            Step::DeleteAddress(address) => self.route.delete_address(LOOPBACK, IpAddr::V4(*address)).map(drop),
            Step::DeleteLocal(address) => self.route.delete_route(&local(IpAddr::V4(*address), LOCAL_TABLE)).map(drop),
        }
    }

    fn keep_address(&mut self, address: Ipv4Addr) -> Result<(), Error> {
        let new = NewAddress {
            interface: LOOPBACK,
            address: IpAddr::V4(address),
            scope: AddressScope::Host,
            deprecated: true,
        };
        self.route.set_address(&new)?;
        self.route.delete_route(&local(IpAddr::V4(address), LOCAL_TABLE)).map(drop).inspect_err(|_| {
            // What remains is found by the next `apply`.
            let _ = self.route.delete_address(LOOPBACK, IpAddr::V4(address));
        })
    }

    fn actual(&mut self) -> Result<State, Error> {
        let mut routes: BTreeSet<TableRoute> = self.route.routes_of(OUTPUT_TABLE)?.into_iter().collect();
        routes.extend(self.route.routes_of(MARKED_TABLE)?);
        let local = self.route.routes_of(LOCAL_TABLE)?;
        let last = |route: &&TableRoute| route.protocol == PROTOCOL && route.metric == LAST_METRIC;
        routes.extend(local.iter().filter(last).cloned());
        let rules = self.route.own_rules()?;
        let addresses: BTreeSet<Ipv4Addr> = self
            .route
            .addresses()?
            .iter()
            // Those that are lent to other hosts are another's business, and of another scope.
            .filter(|address| address.own && address.interface == LOOPBACK && address.scope == AddressScope::Host)
            .filter_map(|address| v4(address.prefix.address))
            .collect();
        Ok(State {
            routes,
            rules: rules.into_iter().filter(|rule| matches!(rule.table, OUTPUT_TABLE | MARKED_TABLE)).collect(),
            local: local
                .iter()
                .filter(|route| route.metric != LAST_METRIC && route.next_hops == [NextHop::interface(LOOPBACK)])
                .filter_map(|route| v4(route.destination.address))
                .filter(|address| addresses.contains(address))
                .collect(),
            addresses,
        })
    }

    fn wanted(&mut self, carrier: &Carrier, kept: &Kept) -> Result<State, Error> {
        let mut state = State::default();
        if kept.addresses.is_empty() && kept.arrivals.is_empty() {
            return Ok(state);
        }
        let links = self.route.links()?;
        let arrivals: Vec<_> = links
            .iter()
            .filter(|link| link.up && !link.loopback)
            .filter(|link| link.index == carrier.tun || kept.arrivals.contains(&link.index))
            .collect();
        let ipv6 = |name: &str| sysctl::get(&format!("net/ipv6/conf/{name}/disable_ipv6")).is_ok_and(|off| off == "0");
        let mark = |ipv4| Selector::Mark { value: carrier.mark.value, mask: carrier.mark.mask, ipv4 };

        state.rules.insert(Rule { priority: MARKED_PRIORITY, selector: mark(true), table: MARKED_TABLE });
        let everything = Prefix::everything(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let hops: Vec<NextHop> = arrivals.iter().map(|link| NextHop::interface(link.index)).collect();
        if !hops.is_empty() {
            state.routes.insert(TableRoute::new(everything, MARKED_TABLE, RouteKind::Unicast, hops));
        }
        // IPv6 has no rp_filter, but firewalls do the same (nft "fib saddr . mark . iif oif").
        let everything = Prefix::everything(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let arrivals: Vec<_> = arrivals.iter().filter(|link| ipv6(&link.name)).collect();
        if !arrivals.is_empty() || kept.addresses.union(&kept.leaving).any(IpAddr::is_ipv6) {
            state.rules.insert(Rule { priority: MARKED_PRIORITY, selector: mark(false), table: MARKED_TABLE });
        }
        for link in arrivals {
            // A metric of its own for each: the routes come and go with their interfaces.
            let hops = vec![NextHop::interface(link.index)];
            let route = TableRoute::new(everything, MARKED_TABLE, RouteKind::Unicast, hops);
            state.routes.insert(route.metric(1024 + link.index));
        }

        let may_go = kept.left.iter().filter(|address| address.is_ipv4());
        state.routes.extend(may_go.map(|&address| local(address, LOCAL_TABLE).metric(LAST_METRIC)));
        for &address in kept.addresses.union(&kept.leaving) {
            let everything = Prefix::everything(address);
            let hops = vec![NextHop::interface(carrier.tun)];
            state.routes.insert(TableRoute::new(everything, OUTPUT_TABLE, RouteKind::Unicast, hops).mtu(carrier.mtu));
            let family = |to: &IpAddr| to.is_ipv4() == address.is_ipv4();
            for (&to, &way) in kept.straight.iter().filter(|(to, _)| family(to)) {
                let mtu = kept.smaller.get(&to).copied().unwrap_or(carrier.mtu);
                let route = TableRoute::new(Prefix::host(to), OUTPUT_TABLE, RouteKind::Unicast, vec![way.hop()]);
                state.routes.insert(route.mtu(mtu));
            }
            let others = kept.smaller.iter().filter(|(to, _)| family(to) && !kept.straight.contains_key(to));
            for (&to, &mtu) in others {
                let hops = vec![NextHop::interface(carrier.tun)];
                let route = TableRoute::new(Prefix::host(to), OUTPUT_TABLE, RouteKind::Unicast, hops);
                state.routes.insert(route.mtu(mtu));
            }
            let fallback = TableRoute::new(everything, OUTPUT_TABLE, RouteKind::Unreachable, Vec::new());
            state.routes.insert(fallback.metric(LAST_METRIC));
            state.routes.insert(local(address, MARKED_TABLE));
            // A look at the routes as they are without ours is marked.
            let last = Selector::FromUnmarked { address, mask: carrier.mark.mask };
            let (priority, selector) = if kept.addresses.contains(&address) {
                (OUTPUT_PRIORITY, Selector::From(address))
            } else {
                (LAST_PRIORITY, last)
            };
            state.rules.insert(Rule { priority, selector, table: OUTPUT_TABLE });
        }
        state.addresses.extend(kept.addresses.iter().copied().filter_map(v4));
        Ok(state)
    }
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    }
}

fn local(address: IpAddr, table: u32) -> TableRoute {
    let hops = vec![NextHop::interface(LOOPBACK)];
    TableRoute::new(Prefix::host(address), table, RouteKind::Local, hops)
}

/// What leads from one state to the other, each step with what undoes it.
fn steps(actual: &State, wanted: &State) -> Vec<(Step, Option<Step>)> {
    let mut steps = Vec::new();
    let same =
        |a: &TableRoute, b: &TableRoute| (a.destination, a.table, a.metric) == (b.destination, b.table, b.metric);
    for route in wanted.routes.difference(&actual.routes) {
        let before = actual.routes.iter().find(|old| same(old, route)).cloned();
        let undo = before.map_or_else(|| Step::DeleteRoute(route.clone()), Step::SetRoute);
        steps.push((Step::SetRoute(route.clone()), Some(undo)));
    }
    for rule in wanted.rules.difference(&actual.rules) {
        steps.push((Step::SetRule(*rule), Some(Step::DeleteRule(*rule))));
    }
    for address in wanted.addresses.difference(&actual.addresses) {
        steps.push((Step::KeepAddress(*address), Some(Step::DeleteAddress(*address))));
    }
    // Killed between the two.
    for address in wanted.addresses.intersection(&actual.local) {
        steps.push((Step::DeleteLocal(*address), None));
    }
    for address in actual.addresses.difference(&wanted.addresses) {
        steps.push((Step::DeleteAddress(*address), Some(Step::KeepAddress(*address))));
    }
    for rule in actual.rules.difference(&wanted.rules) {
        steps.push((Step::DeleteRule(*rule), Some(Step::SetRule(*rule))));
    }
    for route in actual.routes.difference(&wanted.routes) {
        if !wanted.routes.iter().any(|new| same(new, route)) {
            steps.push((Step::DeleteRoute(route.clone()), Some(Step::SetRoute(route.clone()))));
        }
    }
    steps
}
