//! A far end, what is between, and a host behind that.
//!
//! ```text
//!   far ──(veth)── middle ──(veth)── wire ──(veth)── guest        middle: a router, an end of a VPN, or an anchor
//!                                      └────(veth)── stranger     wire: a bridge that can count and drop packets
//! ```
//!
//! The stranger has the guest's address, answers nobody who asks for it, and sends what the guest might have sent.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use serde_json::Value;
use whimbrel_ipc::{Carrier, Client, Family, REPLY_TIMEOUT, Reply, Request, SocketKind};
use whimbrel_lab::{Host, Lab, Whimbrel, Wire, wait_for};

use super::vpn::{OpenVpn, WireGuard};
use crate::Result;
use crate::roam::Setup;

pub(super) const FAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// The middle's address that the far end knows: what an anchor lends.
pub(super) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The middle's address that the guest knows.
pub(super) const INSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(super) const GUEST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const INSIDE_LINK: &str = "02:00:00:00:71:01";
pub(super) const LONG: Duration = Duration::from_secs(20);
/// Names in the community.
const ANCHOR: &str = "desk";
const RECEIVER: &str = "bench";
const LENDS: &str = "[anchor]\nports = \"8000-8999\"\n";
/// Bytes of the datagram whose names on the wire are looked at; nothing else has as many.
const TELLING: usize = 77;

/// The hosts.
pub(super) struct Hosts {
    pub(super) far: Host,
    pub(super) middle: Host,
    pub(super) wire: Host,
    pub(super) guest: Host,
    pub(super) stranger: Host,
    pub(super) lab: Lab,
}

impl Hosts {
    /// `routes`: the middle is a router. An anchor need not be one.
    fn build(setup: &Setup, routes: bool) -> Result<Self> {
        let mut lab = Lab::new(setup.lab_options())?;
        let far = lab.host("far")?;
        let middle = if routes { lab.router("middle")? } else { lab.host("middle")? };
        let (wire, guest, stranger) = (lab.host("wire")?, lab.host("guest")?, lab.host("stranger")?);
        lab.connect((&far, "eth0"), (&middle, "out0"), &Wire::Veth)?;
        lab.connect((&middle, "in0"), (&wire, "m0"), &Wire::Veth)?;
        lab.connect((&guest, "eth0"), (&wire, "g0"), &Wire::Veth)?;
        lab.connect((&stranger, "eth0"), (&wire, "s0"), &Wire::Veth)?;
        wire.ip(["link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0", "link set br0 up"])?;
        wire.ip(["m0", "g0", "s0"].map(|port| format!("link set {port} master br0")))?;
        middle.ip([
            format!("addr add {OUTSIDE}/24 dev out0"),
            format!("link set in0 address {INSIDE_LINK}"),
            format!("addr add {INSIDE}/24 dev in0"),
        ])?;
        stranger.sysctl("net.ipv4.conf.all.arp_ignore", "8")?;
        for (host, address, gateway) in [(&far, FAR, OUTSIDE), (&guest, GUEST, INSIDE), (&stranger, GUEST, INSIDE)] {
            host.ip([format!("addr add {address}/24 dev eth0"), format!("route add default via {gateway} dev eth0")])?;
        }
        stranger.ip([format!("neigh replace {INSIDE} lladdr {INSIDE_LINK} dev eth0 nud permanent")])?;
        Ok(Self { far, middle, wire, guest, stranger, lab })
    }
}

/// Two sockets that are connected to each other.
pub(super) struct Pair {
    pub(super) far: UdpSocket,
    pub(super) near: UdpSocket,
}

fn bound(host: &Host, address: Ipv4Addr) -> Result<UdpSocket> {
    Ok(host.enter(|| UdpSocket::bind((address, 0)))??)
}

/// Plain forwarding, and VPNs that end in programs of the middle and of the guest.
pub(super) struct Plain {
    vpns: Option<(OpenVpn, WireGuard)>,
    pub(super) hosts: Hosts,
}

impl Plain {
    /// `vpns`: with them.
    pub(super) fn build(setup: &Setup, vpns: bool) -> Result<Self> {
        let hosts = Hosts::build(setup, true)?;
        let vpns = match vpns {
            true => Some((OpenVpn::start(&hosts)?, WireGuard::start(&setup.wireguard_go, &hosts)?)),
            false => None,
        };
        Ok(Self { vpns, hosts })
    }

    /// The guest under its own address.
    pub(super) fn routed(&self) -> Result<Pair> {
        self.pair(GUEST)
    }

    /// The guest under an address that a program of the middle has for it. Fails without VPNs.
    pub(super) fn by_vpn(&self, address: Ipv4Addr) -> Result<Pair> {
        if self.vpns.is_none() {
            return Err("there are no VPNs".into());
        }
        let pair = self.pair(address)?;
        pair.far.set_read_timeout(Some(Duration::from_millis(100)))?;
        wait_for(LONG, "a datagram comes by the VPN", || {
            let _ = pair.near.send(b"?");
            Ok(pair.far.recv(&mut [0; 8]).ok())
        })?;
        Ok(pair)
    }

    fn pair(&self, address: Ipv4Addr) -> Result<Pair> {
        let (far, near) = (bound(&self.hosts.far, FAR)?, bound(&self.hosts.guest, address)?);
        far.connect(near.local_addr()?)?;
        near.connect(far.local_addr()?)?;
        Ok(Pair { far, near })
    }
}

/// The middle is an anchor, and no router; the far end runs nothing.
pub(super) struct Anchored {
    anchor: Whimbrel,
    guest: Whimbrel,
    pub(super) hosts: Hosts,
}

impl Anchored {
    pub(super) fn build(setup: &Setup) -> Result<Self> {
        let hosts = Hosts::build(setup, false)?;
        let anchor = hosts.middle.whimbrel_with(LENDS)?;
        let guest = hosts.guest.whimbrel()?;
        anchor.befriend(&guest, INSIDE.into())?;
        Ok(Self { anchor, guest, hosts })
    }

    /// A socket of the anchor's that is the guest's now: all of it is carried by eBPF.
    pub(super) fn carried(&self) -> Result<Pair> {
        let mut receiver = Client::connect(&self.guest.run_dir())?;
        receiver.start(&Request::Receive { name: RECEIVER.into() })?;
        match receiver.next_reply(Some(LONG))?.0 {
            Reply::Receiving { .. } => {}
            other => return Err(format!("a wish to receive was answered by {other:?}").into()),
        }
        let (far, there) = (bound(&self.hosts.far, FAR)?, bound(&self.hosts.middle, OUTSIDE)?);
        let (at, lent) = (far.local_addr()?, there.local_addr()?);
        there.connect(at)?;
        far.connect(lent)?;
        let give = Request::Give { to: "guest".into(), receiver: Some(RECEIVER.into()), state: Default::default() };
        match Client::connect(&self.anchor.run_dir())?.exchange(&give, &[there.as_fd()], Some(LONG))?.0 {
            Reply::Moved(_) => {}
            other => return Err(format!("the socket was not given away: {other:?}").into()),
        }
        drop(there);
        let near = the_socket(receiver.next_reply(Some(LONG))?.1)?;
        let pair = Pair { far, near };
        // What is answered rewritten once is sent so from then on (P-24 of docs/protocol.md).
        let mut last = String::new();
        let found = wait_for(LONG, "the socket's flow is rewritten both ways", || {
            let tunnelled = self.tunnelled()?;
            pair.greet();
            std::thread::sleep(Duration::from_millis(50));
            let more = self.tunnelled()? - tunnelled;
            let own = self.guest.connections()?.into_iter().find(|c| c.flow.local == lent && c.flow.remote == at);
            let carrier = own.and_then(|own| own.carrier);
            last = format!("its carrier is {carrier:?}, and {more} packets of late went through the tunnel");
            Ok((carrier == Some(Carrier::Rewrite) && more == 0).then_some(()))
        });
        found.map_err(|error| format!("{error}: {last}"))?;
        Ok(pair)
    }

    /// A socket with an address on lease: what it sends and receives goes by the tunnel.
    pub(super) fn leased(&self) -> Result<Pair> {
        let mut client = Client::connect(&self.guest.run_dir())?;
        let request =
            Request::Socket { family: Family::Ipv4, kind: SocketKind::Datagram, anchor: ANCHOR.into(), hidden: false };
        let near = the_socket(client.exchange(&request, &[], Some(REPLY_TIMEOUT))?.1)?;
        let far = bound(&self.hosts.far, FAR)?;
        far.set_read_timeout(Some(Duration::from_millis(100)))?;
        near.connect(far.local_addr()?)?;
        let from = wait_for(LONG, "a datagram comes by the lease", || {
            let _ = near.send(b"?");
            Ok(far.recv_from(&mut [0; 8]).ok().map(|(_, from)| from))
        })?;
        far.connect(from)?;
        Ok(Pair { far, near })
    }

    /// Packets that have gone through the tunnel so far.
    pub(super) fn tunnelled(&self) -> whimbrel_lab::Result<u64> {
        let mut packets = 0;
        for daemon in [&self.anchor, &self.guest] {
            packets += daemon.status()?.tunnel.map_or(0, |tunnel| tunnel.packets_sent);
        }
        Ok(packets)
    }

    /// What the far end's packets of a pair are called between anchor and guest.
    pub(super) fn wire_names(&self, pair: &Pair) -> Result<[SocketAddr; 2]> {
        let wire = &self.hosts.wire;
        // UDP's own length has its header in it.
        wire.nft(&format!(
            "table netdev telling {{ set names {{ type ipv4_addr . inet_service . ipv4_addr . inet_service; flags dynamic; size 8;\n}}\n \
             chain come {{ type filter hook ingress device \"m0\" priority 0; \
             udp length {} add @names {{ ip saddr . udp sport . ip daddr . udp dport }}\n}}\n}}\n",
            TELLING + 8
        ))?;
        let names = wait_for(LONG, "a datagram of the flow is seen on the wire", || {
            let _ = pair.far.send(&[0; TELLING]);
            let told = wire.command("nft").args(["-j", "list", "set", "netdev", "telling", "names"]).run()?;
            Ok(first_names(&told))
        })?;
        wire.command("nft").args(["delete", "table", "netdev", "telling"]).run()?;
        Ok(names)
    }
}

/// Source and destination of the first element of a set, as `nft -j` lists it.
fn first_names(told: &str) -> Option<[SocketAddr; 2]> {
    let told: Value = serde_json::from_str(told).ok()?;
    let set = told["nftables"].as_array()?.iter().find_map(|entry| entry.get("set"))?;
    let element = set["elem"].as_array()?.first()?;
    let parts = element.get("elem").map_or(element, |element| &element["val"])["concat"].as_array()?;
    let name = |at: usize| -> Option<SocketAddr> {
        Some(SocketAddr::new(parts.get(at)?.as_str()?.parse().ok()?, parts.get(at + 1)?.as_u64()?.try_into().ok()?))
    };
    Some([name(0)?, name(2)?])
}

fn the_socket(descriptors: Vec<OwnedFd>) -> Result<UdpSocket> {
    descriptors.into_iter().next().map(UdpSocket::from).ok_or_else(|| "no socket came with the answer".into())
}

impl Pair {
    /// A datagram each way.
    fn greet(&self) {
        // Whether it arrives is asked elsewhere.
        let _ = self.far.send(b"!");
        let _ = self.near.send(b"!");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_nft_lists_them() {
        let told = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"set": {"family": "netdev", "name": "names",
            "elem": [{"concat": ["203.0.113.1", 4000, "203.0.113.2", 5000]}]}}]}"#;
        let names = first_names(told).unwrap();
        assert_eq!(names.map(|name| name.to_string()), ["203.0.113.1:4000", "203.0.113.2:5000"]);
        assert_eq!(first_names(r#"{"nftables": [{"set": {"name": "names"}}]}"#), None);
    }
}
