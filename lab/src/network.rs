//! Access networks, and hosts that join, leave and roam between them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::MonoTime;
use crate::host::Plug;
use crate::link::{Cut, Link};
use crate::{Error, Host, Result, Wire, wait_for, wait_until};

/// Number of a network's first lease: the gateway has the first address of its prefix.
const FIRST_LEASE: u32 = 10;

/// What an access network offers.
#[derive(Clone, Debug)]
pub struct NetworkSpec {
    /// Short name (up to 10 characters); the router's bridge is `br-NAME`.
    pub name: String,
    /// Gateway address and prefix length.
    pub v4: Option<(Ipv4Addr, u8)>,
    /// Gateway address and prefix length.
    pub v6: Option<(Ipv6Addr, u8)>,
    /// What each host's interface is connected to the network by; up is away from the host.
    pub access: Wire,
}

/// An access network on a router: a bridge that hosts are plugged into. Clones are the same network.
#[derive(Clone, Debug)]
pub struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    spec: NetworkSpec,
    router: Host,
    leases: Mutex<Leases>,
}

#[derive(Debug, Default)]
struct Leases {
    /// By host and interface.
    by_interface: HashMap<(String, String), u32>,
    ports: u32,
}

/// How a host joins a network.
#[derive(Clone, Debug)]
pub struct Join {
    /// Interface of the host. One that has left a network is plugged into the new one and keeps its index; a new name
    /// makes a new interface.
    pub interface: String,
    /// Metric of its default routes.
    pub metric: u32,
    /// Take an IPv4 address if the network has them.
    pub v4: bool,
    /// Take an IPv6 address if the network has them.
    pub v6: bool,
    /// This IPv4 address in place of the host's lease (to take over somebody's old address).
    pub address_v4: Option<Ipv4Addr>,
    /// This IPv6 address in place of the host's lease.
    pub address_v6: Option<Ipv6Addr>,
    /// The next hop of the IPv6 default route in place of the network's gateway.
    pub gateway_v6: Option<Ipv6Addr>,
    /// Do real duplicate address detection for the IPv6 address (one to two seconds), which has a lifetime then, as
    /// those that routers give.
    pub dad: bool,
    /// What the interface knows of neighbours on the network before is forgotten, as where its carrier was lost. Else
    /// an IPv4 address comes before the one of the network before goes.
    pub forget_neighbours: bool,
    /// Enter default routes.
    pub default_route: bool,
    /// Congestion control of connections over the default routes; empty: the machine's default.
    pub congestion: String,
}

impl Default for Join {
    fn default() -> Self {
        Self {
            interface: "wlan0".into(),
            metric: 100,
            v4: true,
            v6: true,
            address_v4: None,
            address_v6: None,
            gateway_v6: None,
            dad: false,
            forget_neighbours: true,
            default_route: true,
            congestion: "cubic".into(),
        }
    }
}

impl Join {
    /// The usual join by this interface.
    pub fn by(interface: &str) -> Self {
        Self { interface: interface.into(), ..Self::default() }
    }

    /// The same with this metric.
    pub fn metric(self, metric: u32) -> Self {
        Self { metric, ..self }
    }
}

/// How a host leaves a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Addresses and routes are taken away and the carrier goes, as a DHCP client does it on the way out.
    Orderly,
    /// Addresses and routes are taken away; the link stays up.
    AddressOnly,
    /// The cable is pulled: the carrier goes, addresses and routes stay.
    Carrier,
    /// Nothing arrives any more in either direction; the host is not told.
    Silent,
}

/// A host's place in a network.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// Interface of the host.
    pub interface: String,
    /// Its IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub v6: Option<Ipv6Addr>,
    /// The link between host and network, if it is emulated; up is away from the host.
    pub link: Option<Link>,
    /// The network.
    pub network: Network,
    /// Just before the address and its route were entered.
    pub started_at: MonoTime,
    /// When address and route were there (and, with `dad`, the address was no longer tentative).
    pub usable_at: MonoTime,
}

impl Attachment {
    /// The IPv4 address; an error if the network gave none.
    pub fn ipv4(&self) -> Result<IpAddr> {
        self.v4.map(IpAddr::V4).ok_or_else(|| Error::Usage(format!("{} has no IPv4", self.network.name())))
    }

    /// The IPv6 address; an error if the network gave none.
    pub fn ipv6(&self) -> Result<IpAddr> {
        self.v6.map(IpAddr::V6).ok_or_else(|| Error::Usage(format!("{} has no IPv6", self.network.name())))
    }

    /// The emulated access link; an error if it is a veth.
    pub fn access(&self) -> Result<&Link> {
        self.link.as_ref().ok_or_else(|| Error::Usage(format!("{} is joined by veth", self.network.name())))
    }
}

impl Network {
    /// Makes a network on a router.
    pub fn create(router: &Host, spec: NetworkSpec) -> Result<Self> {
        let bridge = format!("br-{}", spec.name);
        router.bridge(&bridge)?;
        let v4 = spec.v4.map(|(gateway, len)| format!("addr add {gateway}/{len} dev {bridge}"));
        let v6 = spec.v6.map(|(gateway, len)| format!("addr add {gateway}/{len} dev {bridge} nodad"));
        router.ip(v4.into_iter().chain(v6))?;
        Ok(Self(Arc::new(Inner { spec, router: router.clone(), leases: Mutex::default() })))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// What it offers.
    pub fn spec(&self) -> &NetworkSpec {
        &self.0.spec
    }

    /// Its router.
    pub fn router(&self) -> &Host {
        &self.0.router
    }

    /// Name of the router's interface.
    pub fn bridge(&self) -> String {
        format!("br-{}", self.name())
    }

    /// Number of an interface's lease; one that comes back gets the same again.
    fn lease(&self, host: &str, interface: &str) -> u32 {
        let mut leases = self.leases();
        let next = FIRST_LEASE + leases.by_interface.len() as u32;
        *leases.by_interface.entry((host.into(), interface.into())).or_insert(next)
    }

    fn next_port(&self) -> String {
        let mut leases = self.leases();
        leases.ports += 1;
        format!("{}-{}", self.name(), leases.ports)
    }

    fn leases(&self) -> std::sync::MutexGuard<'_, Leases> {
        self.0.leases.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Takes addresses away, and neighbours: another network may have the same gateway with another hardware address.
fn clear_v4(dev: &str) -> [String; 2] {
    // The routes go with the addresses.
    [format!("addr flush dev {dev} scope global"), format!("neigh flush dev {dev}")]
}

/// The same for IPv6, whose routes stay unless taken away, and neighbours if so.
fn clear_v6(dev: &str, neighbours: bool) -> Vec<String> {
    let routes = [
        format!("addr flush dev {dev} scope global"),
        format!("route flush root 2000::/3 dev {dev}"),
        format!("route flush exact default dev {dev}"),
    ];
    routes.into_iter().chain(neighbours.then(|| format!("neigh flush dev {dev}"))).collect()
}

/// The router's end of a plugged-in interface.
pub(crate) struct Port {
    router: Host,
    name: String,
    /// `None`: a veth pair.
    link: Option<Link>,
}

impl Port {
    /// Takes the router's interface away; the other end of a veth pair goes with it.
    fn remove(self) -> Result<()> {
        if let Some(link) = &self.link {
            link.remove();
        }
        self.router.ip([format!("link del {}", self.name)])
    }
}

impl Host {
    /// Joins a network: plugs the interface in, enters the leased address and default route.
    pub fn join(&self, network: &Network, join: &Join) -> Result<Attachment> {
        if self.plugs().get(&join.interface).is_some_and(|plug| plug.port.is_some()) {
            return Err(Error::Usage(format!("{} on {} is plugged in already", join.interface, self.name())));
        }
        let link = self.plug(network, &join.interface)?;
        self.configure(network, join, link, None)
    }

    /// Joins a network that an interface of its own leads to already, as a radio does.
    pub fn join_by_own(&self, network: &Network, join: &Join) -> Result<Attachment> {
        self.configure(network, join, None, None)
    }

    /// Leaves the network at `from` and joins another with the same interface, in one go: the old address is there
    /// until the new one appears. `join.interface` is not looked at.
    pub fn roam(&self, from: &Attachment, network: &Network, join: &Join) -> Result<Attachment> {
        let dev = &from.interface;
        let join = Join { interface: dev.clone(), ..join.clone() };
        if from.link.is_none() {
            self.leave(from, Leave::Orderly)?;
            return self.join(network, &join);
        }
        // The carrier stays, as it does between access points: the kernel reports its changes up to a second late.
        let left = self.plugs().get_mut(dev).and_then(|plug| plug.port.take());
        let link = self.plug(network, dev)?;
        let attachment = self.configure(network, &join, link, Some(from))?;
        if let Some(port) = left {
            port.remove()?;
        }
        Ok(attachment)
    }

    /// Leaves a network. The interface stays (unless it is a veth) and can join another.
    pub fn leave(&self, at: &Attachment, how: Leave) -> Result<()> {
        let dev = &at.interface;
        let flush = || self.ip6(clear_v6(dev, true)).and_then(|()| self.ip4(clear_v4(dev)));
        match how {
            Leave::Orderly => {
                flush()?;
                self.unplug(dev)
            }
            Leave::AddressOnly => flush(),
            Leave::Carrier if at.link.is_none() => self.ip([format!("link set {dev} down")]),
            Leave::Carrier => self.unplug(dev),
            Leave::Silent => at.access()?.cut(Cut::Silent),
        }
    }

    /// The cable that was out ([`Leave::Carrier`]) is in again; addresses and routes are as they were.
    pub fn plug_in(&self, at: &Attachment) -> Result<Attachment> {
        let started_at = MonoTime::now();
        let link = self.plug(&at.network, &at.interface)?;
        Ok(Attachment { link, started_at, usable_at: MonoTime::now(), ..at.clone() })
    }

    /// Connects the interface to the network's bridge. A link that it is still plugged in by ends now.
    fn plug(&self, network: &Network, interface: &str) -> Result<Option<Link>> {
        let name = network.next_port();
        let router = network.router();
        let to_bridge = || router.ip([format!("link set {name} master {}", network.bridge())]);
        let Wire::Emulated { up, down } = &network.spec().access else {
            self.lab().connect((self, interface), (router, &name), &Wire::Veth)?;
            to_bridge()?;
            let port = Some(Port { router: router.clone(), name, link: None });
            self.plugs().insert(interface.into(), Plug { tap: None, port });
            return Ok(None);
        };
        let loose = self.plugs().get(interface).and_then(|plug| plug.tap.clone());
        let tap = loose.map_or_else(|| self.tap(interface), Ok)?;
        let far = router.tap(&name)?;
        to_bridge()?;
        let title = format!("{}:{interface}–{}:{name}", self.name(), router.name());
        self.lab().unplug(&tap);
        let link = self.lab().plug(title, [tap.clone(), far], up, down)?;
        link.carrier(true)?;
        // Until the kernel has noticed, it drops what is sent.
        wait_until(Duration::from_secs(5), &format!("{} is up", link.name()), || {
            self.is_running(interface) && router.is_running(&name)
        })?;
        let port = Some(Port { router: router.clone(), name, link: Some(link.clone()) });
        self.plugs().insert(interface.into(), Plug { tap: Some(tap), port });
        Ok(Some(link))
    }

    fn unplug(&self, interface: &str) -> Result<()> {
        let (tap, port) = match self.plugs().get_mut(interface) {
            Some(plug) => (plug.tap.clone(), plug.port.take()),
            None => return Err(Error::Usage(format!("{interface} on {} has joined no network", self.name()))),
        };
        let Some(port) = port else { return Ok(()) };
        if let (Some(_), Some(link)) = (tap, &port.link) {
            link.carrier(false)?;
        }
        port.remove()
    }

    /// True once the interface has a link-local address. Without one a router sends no neighbour solicitation for what
    /// it forwards, and does not say so; the kernel makes it when it has noticed the carrier.
    fn has_link_local(&self, interface: &str) -> bool {
        let addresses = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6"));
        let addresses = addresses.and_then(|text| text.map_err(|e| Error::call("read", "/proc/net/if_inet6", e)));
        // Address, index, prefix length, scope, flags, name.
        let link_local = |l: &str| l.starts_with("fe80") && l.split_whitespace().last() == Some(interface);
        addresses.is_ok_and(|text| text.lines().any(link_local))
    }

    /// True once the interface is in the solicited-node group of the address (RFC 4291 §2.7.1).
    fn hears_solicitations(&self, interface: &str, address: Ipv6Addr) -> bool {
        let [.., a, b, c] = address.octets();
        let group = format!("ff0200000000000000000001ff{a:02x}{b:02x}{c:02x}");
        let groups = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/igmp6"));
        let groups = groups.and_then(|text| text.map_err(|e| Error::call("read", "/proc/net/igmp6", e)));
        groups.is_ok_and(|text| text.lines().any(|l| l.split_whitespace().skip(1).take(2).eq([interface, &group])))
    }

    /// Enters addresses and routes; what the interface had at `from` goes in the same step.
    fn configure(
        &self,
        network: &Network,
        join: &Join,
        link: Option<Link>,
        from: Option<&Attachment>,
    ) -> Result<Attachment> {
        let spec = network.spec();
        let dev = &join.interface;
        let metric = join.metric;
        let lease = network.lease(self.name(), dev);
        let v4 = spec.v4.filter(|_| join.v4).map(|(gateway, len)| {
            (join.address_v4.unwrap_or_else(|| Ipv4Addr::from(u32::from(gateway) - 1 + lease)), gateway, len)
        });
        let v6 = spec.v6.filter(|_| join.v6).map(|(gateway, len)| {
            let own = Ipv6Addr::from(u128::from(gateway) - 1 + u128::from(lease));
            (join.address_v6.unwrap_or(own), gateway, len)
        });
        if join.dad {
            self.sysctl("net.ipv6.conf.all.accept_dad", "1")?;
            self.sysctl(&format!("net.ipv6.conf.{dev}.accept_dad"), "1")?;
        }
        // A client announces a new address; here the router forgets who had it before.
        let forget = v4.map(|v| IpAddr::V4(v.0)).into_iter().chain(v6.map(|v| IpAddr::V6(v.0)));
        network.router().ip(forget.map(|address| format!("neigh flush to {address} dev {}", network.bridge())))?;
        // As a route's attribute: a namespace may not choose a default that the machine's administrator restricts.
        let control = if join.congestion.is_empty() { String::new() } else { format!("congctl {}", join.congestion) };
        let default = |via: IpAddr| format!("route replace default via {via} dev {dev} metric {metric} {control}");

        if v6.is_some() {
            let bridge = network.bridge();
            wait_until(Duration::from_secs(5), &format!("{bridge} has a link-local address"), || {
                network.router().has_link_local(&bridge)
            })?;
        }

        let started_at = MonoTime::now();
        let address_v6 = v6.map(|(address, _, len)| {
            let dad = if join.dad { "valid_lft 3600 preferred_lft 1800" } else { "nodad" };
            format!("addr add {address}/{len} dev {dev} noprefixroute {dad}")
        });
        let cleared = from.map(|_| clear_v6(dev, join.forget_neighbours));
        self.ip6(cleared.into_iter().flatten().chain(address_v6))?;
        let address_v4 = v4.map(|(address, _, len)| format!("addr add {address}/{len} dev {dev}"));
        let default_v4 = v4.filter(|_| join.default_route).map(|(_, gateway, _)| default(gateway.into()));
        let left = from.and_then(|from| from.v4.zip(from.network.spec().v4));
        let left = left.map(|(address, (_, len))| format!("addr del {address}/{len} dev {dev}"));
        if join.forget_neighbours {
            let cleared = from.map(|_| clear_v4(dev));
            self.ip4(cleared.into_iter().flatten().chain(address_v4).chain(default_v4))?;
        } else {
            // With its last address the kernel forgets the neighbours of an interface.
            self.ip4(address_v4.into_iter().chain(left).chain(default_v4))?;
        }
        if let Some((address, gateway, len)) = v6 {
            // The kernel joins the group in which neighbours ask for the address a moment later. Where nobody can use
            // the address before, no question is lost, which would cost a second.
            wait_until(Duration::from_secs(5), &format!("{address} can be asked for on {dev}"), || {
                self.hears_solicitations(dev, address)
            })?;
            let prefix = Ipv6Addr::from(u128::from(gateway) & (u128::MAX << (128 - u32::from(len))));
            let on_link = format!("route replace {prefix}/{len} dev {dev} proto kernel metric 256");
            let default_v6 = join.default_route.then(|| default(join.gateway_v6.unwrap_or(gateway).into()));
            self.ip6([on_link].into_iter().chain(default_v6))?;
        }
        if join.dad {
            wait_for(Duration::from_secs(10), "duplicate address detection ends", || {
                Ok(self.ip_output(&format!("-6 addr show dev {dev} tentative"))?.trim().is_empty().then_some(()))
            })?;
        }
        Ok(Attachment {
            interface: dev.clone(),
            v4: v4.map(|v| v.0),
            v6: v6.map(|v| v.0),
            link,
            network: network.clone(),
            started_at,
            usable_at: MonoTime::now(),
        })
    }
}
