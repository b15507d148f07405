//! The topology of most scenarios: access networks around a core router.
//!
//! ```text
//!  laptop ~~(net a)~~ ra ===20 ms=== core ---(net s)--- server
//!         ~~(net b)~~ rb ===20 ms=== core
//!   ~~ emulated access link without delay      === emulated uplink      --- access link without delay
//! ```
//!
//! Addresses that look public are from the documentation prefixes (RFC 5737, RFC 3849).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::link::{Link, Shape};
use crate::nat::NatKind;
use crate::network::{Network, NetworkSpec};
use crate::{Error, Host, Lab, Result, Wire};

/// What stands between an access network and the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gateway {
    /// A plain router.
    Router,
    /// A NAT (IPv4 masquerade; no IPv6).
    Nat {
        /// Every connection gets a random source port.
        random_ports: bool,
    },
    /// A firewall that drops TCP which it did not see from the start.
    Firewall,
    /// NAT and firewall at once, as most home routers are.
    NatFirewall,
    /// A NAT of one kind, whose mappings for UDP end after 30 s.
    OfKind {
        /// What it lets in.
        kind: NatKind,
        /// Control datagrams get another port.
        rewrites: bool,
    },
}

/// How soon a NAT of one kind forgets what is not used: the least that is met with (RFC 4787 asks for 120 s).
const EXPIRY: Duration = Duration::from_secs(30);

impl Gateway {
    pub(crate) fn translates(self) -> bool {
        matches!(self, Self::Nat { .. } | Self::NatFirewall | Self::OfKind { .. })
    }

    fn filters(self) -> bool {
        matches!(self, Self::Firewall | Self::NatFirewall)
    }
}

/// An access network to build.
#[derive(Clone, Debug)]
pub struct SiteSpec {
    /// Name of the network; its router is called `r` + name.
    pub name: String,
    /// Gateway address and prefix length.
    pub v4: Option<(Ipv4Addr, u8)>,
    /// Gateway address and prefix length.
    pub v6: Option<(Ipv6Addr, u8)>,
    /// What the router does.
    pub gateway: Gateway,
    /// Between host and router.
    pub access: Wire,
    /// Between router and core; up is towards the core.
    pub uplink: Wire,
}

impl SiteSpec {
    /// 20 ms one way beyond the gateway, 1 Gbit/s, both families, a plain router. The addresses go with the name: `a`,
    /// `b`, `c` for clients, `s`, `t` for servers (whose uplink has no delay).
    pub fn named(name: &str) -> Self {
        let (v4, v6) = match name {
            "a" => ([198, 51, 100, 1], 0xa),
            "b" => ([203, 0, 113, 1], 0xb),
            "c" => ([198, 51, 100, 129], 0xc),
            "t" => ([203, 0, 113, 129], 0x7),
            _ => ([192, 0, 2, 1], 0x5),
        };
        let uplink = match name {
            "s" | "t" => Shape::default(),
            _ => Shape::delay_rate(20, 1000),
        };
        Self {
            name: name.into(),
            v4: Some((v4.into(), 25)),
            v6: Some((Ipv6Addr::new(0x2001, 0xdb8, v6, 0, 0, 0, 0, 1), 64)),
            gateway: Gateway::Router,
            access: Wire::shaped(Shape::default()),
            uplink: Wire::shaped(uplink),
        }
    }

    /// The same behind this gateway; a NAT's network is IPv4 only and has private addresses, which go with the name.
    pub fn behind(self, gateway: Gateway) -> Self {
        if !gateway.translates() {
            return Self { gateway, ..self };
        }
        let net = self.name.as_bytes().first().copied().unwrap_or(b'a');
        Self { gateway, v4: Some((Ipv4Addr::new(10, 0, net, 1), 24)), v6: None, ..self }
    }

    /// The same with this IPv4 prefix.
    pub fn v4(self, gateway: [u8; 4], len: u8) -> Self {
        Self { v4: Some((gateway.into(), len)), ..self }
    }

    /// The same without IPv4.
    pub fn v6_only(self) -> Self {
        Self { v4: None, ..self }
    }

    /// The same without IPv6.
    pub fn v4_only(self) -> Self {
        Self { v6: None, ..self }
    }

    /// The same with this uplink in both directions.
    pub fn uplink(self, shape: Shape) -> Self {
        Self { uplink: Wire::shaped(shape), ..self }
    }

    /// The same with veth pairs everywhere: no delay, no limit, offloads as the kernel has them.
    pub fn fast(self) -> Self {
        Self { access: Wire::Veth, uplink: Wire::Veth, ..self }
    }
}

/// An access network with its router.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its router; `up0` leads to the core.
    pub router: Host,
    /// The network.
    pub network: Network,
    /// The emulated link from router to core.
    pub uplink: Option<Link>,
    /// The router's own address towards the core: what a NAT's hosts look like from outside.
    pub outside: Ipv4Addr,
}

impl Site {
    /// The emulated uplink; an error if it is a veth.
    pub fn link(&self) -> Result<&Link> {
        self.uplink.as_ref().ok_or_else(|| Error::Usage(format!("the uplink of {} is a veth", self.network.name())))
    }
}

/// A core router with access networks.
#[derive(Debug)]
pub struct Campus {
    /// The router in the middle.
    pub core: Host,
    sites: Vec<Site>,
}

impl Campus {
    /// A core router without networks.
    pub fn new(lab: &mut Lab) -> Result<Self> {
        Ok(Self { core: lab.router("core")?, sites: Vec::new() })
    }

    /// Adds an access network.
    pub fn add(&mut self, lab: &mut Lab, spec: SiteSpec) -> Result<Site> {
        let router = lab.router(&format!("r{}", spec.name))?;
        let to_site = format!("to-{}", spec.name);
        let transfer = lab.transfer(self.sites.len() as u8, (&router, "up0"), (&self.core, &to_site), &spec.uplink)?;
        router.ip([
            format!("route add default via {} dev up0", transfer.v4[1]),
            format!("route add ::/0 via {} dev up0", transfer.v6[1]),
        ])?;
        let mut routes = Vec::new();
        if let Some((gateway, len)) = spec.v4.filter(|_| !spec.gateway.translates()) {
            let net = u32::from(gateway) & (u32::MAX << (32 - u32::from(len)));
            routes.push(format!("route add {}/{len} via {} dev {to_site}", Ipv4Addr::from(net), transfer.v4[0]));
        }
        if let Some((gateway, len)) = spec.v6 {
            let net = u128::from(gateway) & (u128::MAX << (128 - u32::from(len)));
            routes.push(format!("route add {}/{len} via {} dev {to_site}", Ipv6Addr::from(net), transfer.v6[0]));
        }
        self.core.ip(routes)?;
        match spec.gateway {
            Gateway::Nat { random_ports } => router.masquerade("up0", random_ports)?,
            Gateway::NatFirewall => router.masquerade("up0", false)?,
            Gateway::OfKind { kind, rewrites } => router.nat("up0", kind, rewrites, EXPIRY)?,
            Gateway::Router | Gateway::Firewall => {}
        }
        if spec.gateway.filters() {
            router.firewall("up0")?;
        }
        let network_spec = NetworkSpec { name: spec.name, v4: spec.v4, v6: spec.v6, access: spec.access };
        let network = Network::create(&router, network_spec)?;
        let site = Site { router, network, uplink: transfer.link, outside: transfer.v4[0] };
        self.sites.push(site.clone());
        Ok(site)
    }

    /// All access networks in the order in which they were added.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }
}
