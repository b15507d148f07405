//! Addresses that sockets still use though they are gone: this host's own, and those of peers that have moved away.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use whimbrel_datapath::{Datapath, LocatorPair};
use whimbrel_kernel::Error;
use whimbrel_kernel::kept_address::{Carrier, Kept, KeptAddresses, MARKED_TABLE, Mark, OUTPUT_TABLE, Straight};
use whimbrel_kernel::network::{NetworkState, UsableAddress};
use whimbrel_kernel::peer_route::{PEER_TABLE, PeerRoutes, PeerWay};
use whimbrel_kernel::route::{InterfaceName, Prefix, Route, RouteKind};
use whimbrel_kernel::source_routing::{FreshWay, NamedLink, SourceRoute, SourceRoutes, SourceWays};
use whimbrel_protocol::{self as protocol, Binding, Led};

use super::failure::Failure;

/// The mark of packets of moved flows. Two bits that neither Kubernetes (0xc000), Tailscale (0xff0000) nor wg-quick
/// (its port) use; the second tells "looked at, and not of a moved flow" apart (`PeerRoutes::under`).
pub(crate) const MARK: Mark = Mark { value: 0x1000_0000, mask: 0x3000_0000 };
/// What the daemon itself sends under an address that is kept: past the hold, and not by the ways of moved flows.
pub(crate) const PAST_THE_HOLD: u32 = MARK.mask & !MARK.value;

/// Both sets, as the node wants them and as they are in force.
#[derive(Debug)]
pub(crate) struct Addresses {
    kept: KeptAddresses,
    routes: PeerRoutes,
    sources: SourceRoutes,
    /// All addresses of this host that flows use.
    used: BTreeSet<IpAddr>,
    /// Those that the host leaves, and those that it is at instead.
    leaving: Vec<IpAddr>,
    /// Addresses of moved peers, and whether through the tunnel.
    reached: Vec<(IpAddr, bool)>,
    /// Destinations that are reached by another interface than the routes lead to.
    led: Vec<Led>,
    /// Those of `used` that are kept now.
    in_force: Vec<IpAddr>,
    /// Interfaces that no way of a source address leads by, as was told.
    without: BTreeSet<u32>,
    done: Done,
}

/// What the kernel was made to do last. None: something may have happened to that, or not all of it was done.
#[derive(Debug, Default)]
struct Done {
    kept: Option<(Carrier, Kept)>,
    sources: Option<SourceWays>,
    ways: Option<Ways>,
}

/// What the sets depend on beside the node's wishes.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// This host's own addresses now.
    pub(crate) own: BTreeSet<IpAddr>,
    /// The ways of those whose interface leads everywhere.
    pub(crate) ways: BTreeMap<IpAddr, SourceRoute>,
    /// How this daemon's datagrams leave that name their interface, where the kernel would not go by that.
    pub(crate) named: BTreeMap<IpAddr, NamedLink>,
    /// Where peers are now: no route of ours may lead these astray.
    pub(crate) locators: BTreeSet<IpAddr>,
    /// Between which addresses this host's own sockets have flows.
    pub(crate) between: BTreeSet<LocatorPair>,
    /// Addresses of this host's at which peers find it now.
    pub(crate) in_use: BTreeSet<IpAddr>,
    /// Interfaces that packets of moved flows, and those that were set aside, may arrive on; none while there are none.
    pub(crate) arrivals: BTreeSet<u32>,
    /// The tunnel's device.
    pub(crate) tun: u32,
    /// The longest packet that fits a tunnel whole, in bytes, on most paths.
    pub(crate) inner_mtu: u32,
    /// Remote addresses of flows whose peers' paths are smaller, with theirs.
    pub(crate) smaller: BTreeMap<IpAddr, u32>,
    /// Remote addresses of flows that are all rewritten, with the next hop of their peer.
    pub(crate) straight: BTreeMap<IpAddr, Straight>,
}

impl Surroundings {
    fn mtu_to(&self, remote: IpAddr) -> u32 {
        self.smaller.get(&remote).copied().unwrap_or(self.inner_mtu)
    }
}

impl Addresses {
    pub(crate) fn open(run_dir: &Path) -> Result<Self, Error> {
        Ok(Self {
            kept: KeptAddresses::open(run_dir)?,
            routes: PeerRoutes::open(MARK)?,
            sources: SourceRoutes::open(MARK)?,
            used: BTreeSet::new(),
            leaving: Vec::new(),
            reached: Vec::new(),
            led: Vec::new(),
            in_force: Vec::new(),
            without: BTreeSet::new(),
            done: Done::default(),
        })
    }

    /// The addresses that are kept now.
    pub(crate) fn kept(&self) -> &[IpAddr] {
        &self.in_force
    }

    /// Sets which addresses of this host flows use.
    pub(crate) fn use_addresses(&mut self, addresses: Vec<IpAddr>) {
        self.used = addresses.into_iter().collect();
    }

    /// Sets which addresses are left.
    pub(crate) fn leave(&mut self, addresses: Vec<IpAddr>) {
        self.leaving = addresses;
    }

    /// Sets which addresses of moved peers are to be reached.
    pub(crate) fn reach(&mut self, addresses: Vec<(IpAddr, bool)>) {
        self.reached = addresses;
    }

    /// Sets which destinations are reached by another interface than the routes lead to.
    pub(crate) fn lead(&mut self, ways: Vec<Led>) {
        self.led = ways;
    }

    /// Whether a moved peer's address is to be reached elsewhere than where it was.
    pub(crate) fn reaches(&self, address: IpAddr) -> bool {
        self.reached.iter().any(|(reached, _)| *reached == address)
    }

    /// The MTU of the way to a destination, where the route has one of its own, and its interface. Where the way from
    /// there is one of ours, since the address is kept, or none, it is the way that all else takes: ours have the MTU
    /// of a tunnel.
    pub(crate) fn way_to(&mut self, destination: IpAddr, from: Option<IpAddr>) -> Option<(Option<u32>, u32)> {
        let mut ways = [from, None].into_iter().filter_map(|from| self.routes.under(destination, from).ok());
        let way = ways.find(|route| !matches!(route.table, OUTPUT_TABLE | MARKED_TABLE | PEER_TABLE))?;
        Some((way.mtu, way.interface))
    }

    /// The interface that what is sent from `source` to `destination` leaves by, if there is a way out of this host.
    pub(crate) fn way_from(&mut self, source: IpAddr, destination: IpAddr) -> Option<u32> {
        let route = self.routes.under(destination, Some(source)).ok()?;
        (route.kind == RouteKind::Unicast).then_some(route.interface)
    }

    /// The way to a destination as if no route of ours led there.
    pub(crate) fn under(&mut self, destination: IpAddr, from: Option<IpAddr>) -> Result<Route, Error> {
        self.routes.under(destination, from)
    }

    /// The next hop of a peer whose flows are rewritten and leave by `interface`, which has the programs.
    pub(crate) fn straight_way(&mut self, binding: &Binding, interface: u32) -> Option<Straight> {
        if !matches!(binding.carrier, protocol::Carrier::Rewrite | protocol::Carrier::FollowRewrite) {
            return None;
        }
        let locator = binding.peer_locator;
        let source = binding.source.filter(|source| source.is_ipv4() == locator.is_ipv4())?;
        let route = self.under(locator, Some(source)).ok()?;
        let next_hop = route.gateway.unwrap_or(locator);
        let whole =
            route.kind == RouteKind::Unicast && route.interface == interface && next_hop.is_ipv4() == locator.is_ipv4();
        whole.then_some(Straight { interface, next_hop })
    }

    /// Something in the kernel has changed: what is wanted is compared with what is there when it is applied next.
    pub(crate) fn check_again(&mut self) {
        self.done = Done::default();
    }

    /// Makes the kernel keep and reach what is wanted. Looking at what is there takes the kernel's lock of all
    /// interfaces sixteen times, which others hold for long: nothing is done where nothing has changed.
    ///
    /// # Errors
    /// The first; all is tried.
    pub(crate) fn apply(&mut self, surroundings: &Surroundings, datapath: &Datapath) -> Result<(), Failure> {
        let addresses: BTreeSet<IpAddr> = self.used.difference(&surroundings.own).copied().collect();
        let carrier = Carrier { tun: surroundings.tun, mtu: surroundings.inner_mtu, mark: MARK };
        let leaving = self.leaving.iter().filter(|address| self.used.contains(address));
        let leaving: BTreeSet<IpAddr> = leaving.filter(|address| surroundings.own.contains(address)).copied().collect();
        let left = leaving.difference(&surroundings.in_use).copied().collect();
        let arrivals = surroundings.arrivals.clone();
        let (smaller, straight) = (surroundings.smaller.clone(), surroundings.straight.clone());
        let kept = Kept { addresses, leaving, left, arrivals, smaller, straight };
        let kept = (carrier, kept);
        let applied = if self.done.kept.as_ref() == Some(&kept) { Ok(()) } else { self.keep(kept, datapath) };
        // The kernel is asked for these ways as it leads now.
        let sources = self.source_ways(surroundings);
        let left = if self.done.sources.as_ref() == Some(&sources) { Ok(()) } else { self.lead_from(sources) };
        let ways = self.ways(surroundings);
        let reached = if self.done.ways.as_ref() == Some(&ways) { Ok(()) } else { self.lead_to(ways, datapath) };
        applied.and(left).and(reached)
    }

    fn keep(&mut self, wanted: (Carrier, Kept), datapath: &Datapath) -> Result<(), Failure> {
        self.done.kept = None;
        let (carrier, kept) = &wanted;
        // Before a route leads out what is sent from an address that is gone, the programs know what is not to go.
        datapath.set_kept(&kept.addresses)?;
        self.kept.apply(carrier, kept)?;
        self.in_force = kept.addresses.iter().copied().collect();
        self.done.kept = Some(wanted);
        Ok(())
    }

    fn lead_from(&mut self, sources: SourceWays) -> Result<(), Failure> {
        self.done.sources = None;
        let without = self.sources.apply(&sources)?.without;
        if !without.is_subset(&self.without) {
            tracing::warn!(
                interfaces = ?without,
                "indices of interfaces are too high: what leaves from their addresses follows the ordinary routes"
            );
        }
        self.without = without;
        self.done.sources = Some(sources);
        Ok(())
    }

    /// Has datagrams that name their interface leave by that, where there are more such than before. What is there no
    /// longer, and what a daemon before this one has left, is seen to by [`Addresses::apply`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn name_links(&mut self, named: BTreeMap<IpAddr, NamedLink>) -> Result<(), Failure> {
        match self.done.sources.clone() {
            Some(before) if !named.is_empty() && before.named != named => {
                self.lead_from(SourceWays { named, ..before })
            }
            _ => Ok(()),
        }
    }

    fn lead_to(&mut self, ways: Ways, datapath: &Datapath) -> Result<(), Failure> {
        self.done.ways = None;
        // Before a route leads everything for an address to the TUN device, the program there knows what belongs
        // elsewhere.
        let vacated = datapath.set_vacated(&ways.vacated);
        self.routes.apply(&ways.peers)?;
        vacated?;
        self.done.ways = Some(ways);
        Ok(())
    }

    /// Of addresses that are left only those that would be led astray without.
    fn source_ways(&mut self, surroundings: &Surroundings) -> SourceWays {
        let Self { routes, leaving, .. } = self;
        let mut astray = |address: IpAddr, way: &SourceRoute| {
            // Peers may be met in one family, and flows of the other have not moved yet.
            let remotes = surroundings.between.iter().filter(|pair| pair.local == address).map(|pair| pair.peer);
            let locators = surroundings.locators.iter().copied().filter(|to| to.is_ipv4() == address.is_ipv4());
            locators.chain(remotes).any(|to| {
                let natural = routes.under(to, Some(address));
                natural.is_ok_and(|route| route.interface != way.interface && route.kind == RouteKind::Unicast)
            })
        };
        let ways = leaving.iter().filter_map(|address| Some((*address, *surroundings.ways.get(address)?)));
        let left = ways.filter(|(address, way)| astray(*address, way)).collect();
        let fresh = self.led.iter().filter(|led| !led.all).filter_map(|led| {
            let way = *surroundings.ways.get(&led.by)?;
            Some((led.to, FreshWay { way, source: led.by }))
        });
        SourceWays { left, named: surroundings.named.clone(), fresh: fresh.collect() }
    }

    fn ways(&mut self, surroundings: &Surroundings) -> Ways {
        let mut ways = Ways::default();
        let (led, beyond): (Vec<Led>, Vec<Led>) =
            self.led.iter().filter(|led| led.all).partition(|led| led.to.is_ipv4() == led.by.is_ipv4());
        let led = led.into_iter();
        ways.peers.extend(led.filter_map(|led| Some((led.to, led_by(surroundings, &self.reached, led.to, led.by)?))));
        // What the routes name as the next hop to these may never answer, and what waits for it reaches no program.
        for Led { to, .. } in beyond {
            if surroundings.locators.contains(&to) || surroundings.own.contains(&to) {
                continue;
            }
            let natural = self.routes.under(to, None).ok().filter(|route| route.kind == RouteKind::Unicast);
            let Some(natural) = natural else { continue };
            ways.vacated.insert(to, natural.interface);
            ways.peers.insert(to, past_the_link(surroundings, to, lasting(natural.source, surroundings)));
        }
        for (peer, tunnelled) in self.reached.clone() {
            // Where peers meet in the other family only, flows of this one go through the tunnel in any case.
            let tunnelled = tunnelled || !surroundings.locators.iter().any(|at| at.is_ipv4() == peer.is_ipv4());
            // Where a peer is, the ordinary route serves; our own datagrams to it go there, too.
            if surroundings.locators.contains(&peer)
                || surroundings.own.contains(&peer)
                || ways.peers.contains_key(&peer)
            {
                continue;
            }
            let way = match self.routes.under(peer, None) {
                Ok(route) if route.kind != RouteKind::Unicast => continue,
                Ok(route) if route.gateway.is_some() => {
                    let source = lasting(route.source, surroundings);
                    let mtu = tunnelled.then(|| surroundings.mtu_to(peer));
                    let way = |interface, gateway| PeerWay { interface, gateway, otherwise: None, source, mtu };
                    let natural = way(route.interface, route.gateway);
                    let straight = surroundings.straight.get(&peer).map(|to| way(to.interface, Some(to.next_hop)));
                    match straight.filter(|straight| *straight != natural) {
                        Some(straight) => {
                            ways.vacated.insert(peer, route.interface);
                            Some(straight)
                        }
                        // The next hop answers for it. Only segments that fit the tunnel are to be made.
                        None => tunnelled.then_some(natural),
                    }
                }
                // It was on the link: nobody answers for it, unless another host has got it.
                Ok(route) => {
                    ways.vacated.insert(peer, route.interface);
                    Some(past_the_link(surroundings, peer, lasting(route.source, surroundings)))
                }
                // There is no way at all.
                Err(_) => Some(past_the_link(surroundings, peer, None)),
            };
            ways.peers.extend(way.map(|way| (peer, way)));
        }
        ways
    }

    /// Removes everything.
    ///
    /// # Errors
    /// The first; all is tried.
    pub(crate) fn release(&mut self) -> Result<(), Error> {
        self.in_force.clear();
        self.check_again();
        let kept = self.kept.release();
        let sources = self.sources.release();
        self.routes.release().and(sources).and(kept)
    }
}

/// How the addresses of moved peers are reached.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ways {
    peers: BTreeMap<IpAddr, PeerWay>,
    /// Those that are led elsewhere than where they are, with the interface that leads there: what is of no moved flow
    /// is for their owners of today.
    vacated: BTreeMap<IpAddr, u32>,
}

/// The source of a route, where a route over another device may name it too. Where the host has lost its last address
/// of the family the kernel offers the link-local one of an interface, and refuses it on any other (`ipv6_chk_addr`);
/// or one that goes away at this moment.
fn lasting(source: Option<IpAddr>, surroundings: &Surroundings) -> Option<IpAddr> {
    source.filter(|source| surroundings.own.contains(source))
}

/// To a destination by the interface that has an address of this host's: that which the routes name brings nothing
/// there. Everything that this host sends goes so, its own datagrams, the flows' packets, which the program of that
/// interface takes whatever their source is, and what is new.
fn led_by(surroundings: &Surroundings, reached: &[(IpAddr, bool)], to: IpAddr, by: IpAddr) -> Option<PeerWay> {
    let SourceRoute { interface, gateway, .. } = *surroundings.ways.get(&by)?;
    // Datagrams of the tunnel are as long as the way itself allows.
    let tunnelled = reached.iter().any(|(at, tunnelled)| *at == to && *tunnelled);
    let mtu = (tunnelled && !surroundings.locators.contains(&to)).then(|| surroundings.mtu_to(to));
    Some(PeerWay { interface, gateway, otherwise: None, source: Some(by), mtu })
}

/// To where the peer is, if that is all that matters, else to the TUN device, which leads everywhere.
fn past_the_link(surroundings: &Surroundings, peer: IpAddr, source: Option<IpAddr>) -> PeerWay {
    let (tun, mtu) = (surroundings.tun, Some(surroundings.mtu_to(peer)));
    match surroundings.straight.get(&peer) {
        Some(way) => {
            let (interface, gateway) = (way.interface, Some(way.next_hop));
            PeerWay { interface, gateway, otherwise: Some(tun), source, mtu }
        }
        None => PeerWay { interface: tun, gateway: None, otherwise: None, source, mtu },
    }
}

/// How packets leave that are sent from each address of this host, where its interface has a way to everywhere.
pub(crate) fn source_routes(network: &NetworkState) -> BTreeMap<IpAddr, SourceRoute> {
    let way = |usable: &UsableAddress| {
        let ipv4 = usable.address.is_ipv4();
        let defaults = network.default_routes.iter();
        let own = defaults.filter(|route| route.ipv4 == ipv4 && route.interface == usable.interface);
        let best = own.min_by_key(|route| route.metric)?;
        let (interface, gateway) = (usable.interface, best.gateway);
        let mut own = network.addresses.iter().filter(|own| own.interface == interface && own.address.is_ipv4());
        let subnet = |own: &UsableAddress| Prefix { address: own.address, length: own.prefix_length };
        // Next hops of IPv6 are link-local.
        let onlink = !gateway.is_some_and(|gateway| own.any(|own| subnet(own).contains(gateway)));
        Some((usable.address, SourceRoute { interface, gateway, onlink }))
    };
    network.addresses.iter().filter_map(way).collect()
}

/// How datagrams of this port leave that name the interface of their source, where several interfaces lead everywhere.
/// The kernel keeps to a named interface by itself in IPv4 alone.
pub(crate) fn named_links(network: &NetworkState, port: u16) -> BTreeMap<IpAddr, NamedLink> {
    let ways = source_routes(network);
    let named = network.addresses.iter().filter(|usable| usable.address.is_ipv6()).filter_map(|usable| {
        let (way, link) = (*ways.get(&usable.address)?, network.link(usable.interface)?);
        let subnet = Prefix { address: usable.address, length: usable.prefix_length };
        Some((usable.address, NamedLink { port, name: InterfaceName::new(&link.name)?, way, subnet }))
    });
    let named: BTreeMap<IpAddr, NamedLink> = named.collect();
    let links: BTreeSet<u32> = named.values().map(|named| named.way.interface).collect();
    if links.len() > 1 { named } else { BTreeMap::new() }
}

/// The addresses that this host has by itself.
pub(crate) fn own_addresses(network: &NetworkState) -> BTreeSet<IpAddr> {
    let connected = |index| network.link(index).is_some_and(|link| link.carrier);
    network.addresses.iter().filter(|usable| connected(usable.interface)).map(|usable| usable.address).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use whimbrel_kernel::endpoint::Endpoint;
    use whimbrel_kernel::network::DefaultRoute;
    use whimbrel_kernel::route::{Link, RouteSocket};
    use whimbrel_kernel::tun::Tun;

    use super::*;

    #[test]
    fn a_route_names_no_source_that_is_not_this_hosts() {
        let here: IpAddr = "2001:db8:5::22".parse().expect("address");
        let surroundings = Surroundings {
            own: [here].into(),
            ways: BTreeMap::new(),
            named: BTreeMap::new(),
            locators: BTreeSet::new(),
            between: BTreeSet::new(),
            in_use: BTreeSet::new(),
            arrivals: BTreeSet::new(),
            tun: 1,
            inner_mtu: 1400,
            smaller: BTreeMap::new(),
            straight: BTreeMap::new(),
        };
        assert_eq!(lasting(Some(here), &surroundings), Some(here));
        assert_eq!(lasting("fe80::1".parse().ok(), &surroundings), None);
        assert_eq!(lasting("2001:db8:6::1".parse().ok(), &surroundings), None);
    }

    #[test]
    fn a_link_is_led_to_by_name_where_there_are_several_of_ipv6() {
        let link = |index, name: &str| Link {
            index,
            name: name.into(),
            up: true,
            carrier: true,
            loopback: false,
            kind: String::new(),
            mtu: 1500,
            carrier_losses: 0,
            controller: None,
            below: None,
            beyond: None,
        };
        let usable = |interface, address: &str| UsableAddress {
            interface,
            address: address.parse().expect("address"),
            prefix_length: if address.contains(':') { 64 } else { 24 },
            made: 1,
            deprecated: false,
        };
        let route = |interface, gateway: &str, metric| {
            let gateway: IpAddr = gateway.parse().expect("address");
            DefaultRoute { ipv4: gateway.is_ipv4(), interface, gateway: Some(gateway), metric, table: 254 }
        };
        let mut network = NetworkState {
            links: vec![link(2, "eth0"), link(3, "wlan0")],
            addresses: vec![
                usable(2, "192.0.2.1"),
                usable(2, "2001:db8:2::1"),
                usable(3, "198.51.100.1"),
                usable(3, "2001:db8:3::1"),
            ],
            default_routes: vec![
                route(2, "192.0.2.254", 50),
                route(2, "fe80::2", 50),
                route(3, "198.51.100.254", 500),
                route(3, "fe80::3", 500),
                route(3, "fe80::33", 600),
            ],
        };
        let named = named_links(&network, 2031);
        let all: Vec<_> = named.iter().map(|(address, named)| (*address, named.name.to_string(), named.way)).collect();
        let gateway = |address: &str| address.parse().ok();
        assert_eq!(
            all,
            [
                (
                    network.addresses[1].address,
                    "eth0".to_owned(),
                    SourceRoute { interface: 2, gateway: gateway("fe80::2"), onlink: true }
                ),
                (
                    network.addresses[3].address,
                    "wlan0".to_owned(),
                    SourceRoute { interface: 3, gateway: gateway("fe80::3"), onlink: true }
                ),
            ]
        );
        // By another name it is another rule.
        network.links[1].name = "wifi".into();
        assert_ne!(named_links(&network, 2031), named);
        // Of one there is nothing to choose.
        network.default_routes.retain(|route| route.interface == 2 || route.ipv4);
        assert!(named_links(&network, 2031).is_empty());
    }

    #[test]
    #[ignore = "needs root: it makes a network namespace, and loads programs"]
    fn which_ways_an_address_needs_that_is_back_is_asked_when_it_is_kept_no_more() {
        let (address, locator): (IpAddr, IpAddr) = ([192, 0, 2, 7].into(), [203, 0, 113, 9].into());
        // A host with a way to everywhere.
        let host = Endpoint::create([198, 51, 100, 1].into(), 1500, |_| Ok::<_, Error>(())).expect("a namespace");
        let _here = host.enter().expect("enter");
        let directory = std::env::temp_dir().join(format!("whimbrel-addresses-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let pins = whimbrel_datapath::bpffs(&directory.join("bpf")).expect("a bpffs");
        let datapath = Datapath::open(&pins.join(format!("whimbrel-addresses-{}", std::process::id()))).expect("open");
        let tun = Tun::open("t", 1280).expect("a device");
        let mut addresses = Addresses::open(&directory).expect("open");
        let e0 = RouteSocket::open().expect("open").link_index("e0").expect("its index");
        let mut surroundings = Surroundings {
            own: BTreeSet::new(),
            ways: [(address, SourceRoute { interface: e0, gateway: None, onlink: true })].into(),
            named: BTreeMap::new(),
            locators: [locator].into(),
            between: BTreeSet::new(),
            in_use: BTreeSet::new(),
            arrivals: BTreeSet::new(),
            tun: tun.index(),
            inner_mtu: 1280,
            smaller: BTreeMap::new(),
            straight: BTreeMap::new(),
        };
        addresses.use_addresses(vec![address]);
        addresses.apply(&surroundings, &datapath).expect("it is kept");
        assert_eq!(addresses.under(locator, Some(address)).expect("a way").interface, tun.index());

        let added = Command::new("ip").args(["addr", "add", "192.0.2.7/24", "dev", "e0"]).status();
        assert!(added.expect("ip").success());
        surroundings.own = [address].into();
        addresses.leave(vec![address]);
        addresses.apply(&surroundings, &datapath).expect("it is kept no more");
        assert_eq!(addresses.under(locator, Some(address)).expect("a way").interface, e0);
        assert_eq!(addresses.done.sources, Some(SourceWays::default()), "the ordinary way serves");

        addresses.release().expect("release");
        datapath.unload().expect("unload");
        tun.remove().expect("remove");
        let _ = std::fs::remove_dir_all(&directory);
    }
}
