//! A host with two networks: what is sent from an address that it leaves goes out by the network that it belongs to.

mod hosts;

use std::collections::BTreeMap;
use std::net::IpAddr;

use hosts::{Host, wait};
use whimbrel_kernel::kept_address::Mark;
use whimbrel_kernel::peer_route::{PeerRoutes, PeerWay};
use whimbrel_kernel::route::{InterfaceName, Prefix};
use whimbrel_kernel::source_routing::{FreshWay, NamedLink, SourceRoute, SourceRoutes, SourceWays};
use whimbrel_kernel::udp::{ReceiveBatch, Transmit, UdpSocket};

const MARK: Mark = Mark { value: 0x100, mask: 0xff00 };

struct Plan {
    ip: &'static str,
    addresses: [&'static str; 2],
    gateways: [&'static str; 2],
    far: &'static str,
}

const PLANS: [Plan; 2] = [
    Plan { ip: "ip", addresses: ["10.1.0.2/24", "10.2.0.2/24"], gateways: ["10.1.0.1", "10.2.0.1"], far: "192.0.2.9" },
    Plan {
        ip: "ip -6",
        addresses: ["2001:db8:1::2/64 nodad", "2001:db8:2::2/64 nodad"],
        gateways: ["2001:db8:1::1", "2001:db8:2::1"],
        far: "2001:db8:9::9",
    },
];

impl Plan {
    /// A host with two routers; by the second it reaches everything first.
    fn build(&self) -> (Host, [Host; 2]) {
        let (host, routers) = (Host::new(), [Host::new(), Host::new()]);
        for (index, router) in routers.iter().enumerate() {
            let device = format!("p{index}");
            host.cable(&device, router, "p0");
            host.sh(&format!("{} addr add {} dev {device}", self.ip, self.addresses[index]));
            let (gateway, metric) = (self.gateways[index], 200 - 100 * index);
            host.sh(&format!("{} route add default via {gateway} dev {device} metric {metric}", self.ip));
        }
        (host, routers)
    }

    fn address(&self, index: usize) -> IpAddr {
        self.addresses[index].split('/').next().unwrap().parse().unwrap()
    }
}

fn state(host: &Host) -> String {
    host.sh("for f in -4 -6; do ip $f rule; ip $f route show table all | grep -v fe80 | grep -v ff00; done")
}

#[test]
#[ignore = "needs root"]
fn an_address_that_is_left_keeps_its_way() {
    for plan in &PLANS {
        let (host, _routers) = plan.build();
        let before = state(&host);
        let left = plan.address(0);
        let lookup = |mark: &str| host.sh(&format!("{} route get {} from {left} {mark}", plan.ip, plan.far));
        assert!(lookup("").contains("dev p1"), "{}", lookup(""));

        let mut ways = host.on(|| SourceRoutes::open(MARK).unwrap());
        let way =
            SourceRoute { interface: host.index("p0"), gateway: Some(plan.gateways[0].parse().unwrap()), onlink: true };
        let only = |way| SourceWays { left: BTreeMap::from([(left, way)]), ..SourceWays::default() };
        let wanted = only(way);
        assert!(ways.apply(&wanted).unwrap().changed);
        assert!(!ways.apply(&wanted).unwrap().changed);
        assert!(lookup("").contains(&format!("via {} dev p0", plan.gateways[0])), "{}", lookup(""));
        // Packets of moved flows, and the question how things would be without us, are not concerned.
        assert!(lookup("mark 0x100").contains("dev p1"), "{}", lookup("mark 0x100"));
        let mut under = host.on(|| PeerRoutes::open(MARK).unwrap());
        assert_eq!(under.under(plan.far.parse().unwrap(), Some(left)).unwrap().interface, host.index("p1"));

        // A step that fails leaves what was there; a new process takes over, and removes everything.
        let wrong = SourceRoute { interface: 9999, ..way };
        let present = state(&host);
        let error = ways.apply(&only(wrong)).unwrap_err();
        assert_eq!(error.effect(), whimbrel_kernel::Effect::None, "{error}");
        assert_eq!(state(&host), present);
        drop(ways);
        host.on(|| SourceRoutes::open(MARK).unwrap()).release().unwrap();
        assert_eq!(state(&host), before);
    }
}

/// A way by a network that has gone meanwhile is refused, and what was there before stays.
#[test]
#[ignore = "needs root"]
fn no_way_leads_by_a_network_that_is_gone() {
    let plan = &PLANS[0];
    let (host, _routers) = plan.build();
    let way =
        SourceRoute { interface: host.index("p0"), gateway: Some(plan.gateways[0].parse().unwrap()), onlink: false };
    let wanted = SourceWays { left: BTreeMap::from([(plan.address(0), way)]), ..SourceWays::default() };
    let mut ways = host.on(|| SourceRoutes::open(MARK).unwrap());
    assert!(ways.apply(&wanted).unwrap().changed);
    host.sh("ip addr flush dev p0");
    let present = state(&host);
    let error = ways.apply(&wanted).unwrap_err();
    assert_eq!((error.effect(), error.raw_os_error()), (whimbrel_kernel::Effect::None, Some(libc::ENETUNREACH)));
    assert_eq!(state(&host), present);
    ways.release().unwrap();
}

/// By which of the routers datagrams leave that are sent from the address of the first interface and name that.
struct Sender {
    socket: UdpSocket,
    receivers: [UdpSocket; 2],
    transmit: (IpAddr, std::net::SocketAddr, u32),
}

impl Sender {
    fn new(plan: &Plan, host: &Host, routers: &[Host; 2]) -> Self {
        for (index, router) in routers.iter().enumerate() {
            let (nodad, length) = if plan.ip == "ip" { ("", 24) } else { ("nodad", 64) };
            router.sh(&format!(
                "{ip} addr add {gateway}/{length} dev p0 {nodad}; {ip} addr add {far} dev lo {nodad}",
                ip = plan.ip,
                gateway = plan.gateways[index],
                far = plan.far
            ));
        }
        let receivers = [0, 1].map(|index: usize| routers[index].on(|| UdpSocket::bind(7000).unwrap()));
        let far = (plan.far.parse::<IpAddr>().unwrap(), 7000).into();
        Self {
            socket: host.on(|| UdpSocket::bind(2031).unwrap()),
            receivers,
            transmit: (plan.address(0), far, host.index("p0")),
        }
    }

    /// One may be lost while its neighbour is looked for.
    fn arrives_at(&self, socket: &UdpSocket) -> usize {
        let (source, destination, interface) = self.transmit;
        let mut batch = ReceiveBatch::new();
        let mut arrived = None;
        wait("a datagram arrives", || {
            let one = Transmit {
                destination,
                source: Some(source),
                interface: Some(interface),
                contents: b"x",
                segment_size: None,
            };
            assert_eq!(socket.send(&[one]).sent, 1);
            std::thread::sleep(std::time::Duration::from_millis(20));
            arrived = self.receivers.iter().position(|receiver| receiver.receive(&mut batch).unwrap() > 0);
            arrived.is_some()
        });
        // What waited for the neighbour comes now.
        std::thread::sleep(std::time::Duration::from_millis(50));
        for receiver in &self.receivers {
            while receiver.receive(&mut batch).unwrap() > 0 {}
        }
        arrived.unwrap()
    }
}

#[test]
#[ignore = "needs root"]
fn a_datagram_goes_by_the_link_that_it_names() {
    for plan in &PLANS {
        let (host, routers) = plan.build();
        let sender = Sender::new(plan, &host, &routers);
        let v6 = plan.address(0).is_ipv6();
        // What is made here is needed in IPv6 alone.
        assert_eq!(sender.arrives_at(&sender.socket), usize::from(v6), "as the kernel has it");
        if !v6 {
            continue;
        }
        let before = state(&host);
        let mut ways = host.on(|| SourceRoutes::open(MARK).unwrap());
        let link = NamedLink {
            port: 2031,
            name: InterfaceName::new("p0").unwrap(),
            way: SourceRoute {
                interface: host.index("p0"),
                gateway: Some(plan.gateways[0].parse().unwrap()),
                onlink: true,
            },
            subnet: Prefix { address: plan.address(0), length: 64 },
        };
        let wanted = SourceWays { named: BTreeMap::from([(plan.address(0), link)]), ..SourceWays::default() };
        assert!(ways.apply(&wanted).unwrap().changed);
        assert!(!ways.apply(&wanted).unwrap().changed, "{}", state(&host));
        assert_eq!(sender.arrives_at(&sender.socket), 0);
        // What is of another port, and what names no interface, goes as ever.
        let other = host.on(|| UdpSocket::bind(0).unwrap());
        assert_eq!(sender.arrives_at(&other), 1);
        let lookup = host.sh(&format!("{} route get {} from {}", plan.ip, plan.far, plan.address(0)));
        assert!(lookup.contains("dev p1"), "{lookup}");
        // And so whatever way of its own the peer has.
        let by_the_other = PeerWay {
            interface: host.index("p1"),
            gateway: Some(plan.gateways[1].parse().unwrap()),
            otherwise: None,
            source: Some(plan.address(1)),
            mtu: None,
        };
        let mut peers = host.on(|| PeerRoutes::open(MARK).unwrap());
        peers.apply(&BTreeMap::from([(plan.far.parse().unwrap(), by_the_other)])).unwrap();
        assert_eq!(sender.arrives_at(&sender.socket), 0);
        peers.release().unwrap();
        // What is on the link is not sent to the gateway.
        let on_link = host.sh(&format!(
            "{ip} route get 2001:db8:1::77 from {own} oif p0 ipproto 17 sport 2031",
            ip = plan.ip,
            own = plan.address(0)
        ));
        assert!(on_link.contains("dev p0") && !on_link.contains("via"), "{on_link}");
        ways.release().unwrap();
        assert_eq!(state(&host), before);
        assert_eq!(sender.arrives_at(&sender.socket), 1);
    }
}

#[test]
#[ignore = "needs root"]
fn what_is_new_goes_by_another_network_and_nothing_else() {
    for plan in &PLANS {
        let (host, _routers) = plan.build();
        let before = state(&host);
        let to: IpAddr = plan.far.parse().unwrap();
        let way =
            SourceRoute { interface: host.index("p0"), gateway: Some(plan.gateways[0].parse().unwrap()), onlink: true };
        let fresh = BTreeMap::from([(to, FreshWay { way, source: plan.address(0) })]);
        let wanted = SourceWays { fresh, ..SourceWays::default() };
        let mut ways = host.on(|| SourceRoutes::open(MARK).unwrap());
        assert!(ways.apply(&wanted).unwrap().changed);
        assert!(!ways.apply(&wanted).unwrap().changed, "{}", state(&host));
        // The kernel chooses the address there.
        let chosen = host.on(|| {
            let socket = std::net::UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
            socket.connect((to, 9)).unwrap();
            socket.local_addr().unwrap().ip()
        });
        assert_eq!(chosen, plan.address(0));
        let lookup = |to: &str, from: &str| host.sh(&format!("{} route get {to} {from}", plan.ip));
        let [here, other] = [0, 1].map(|index| format!("from {}", plan.address(index)));
        assert!(lookup(plan.far, &here).contains("dev p0"), "{}", lookup(plan.far, &here));
        // What has another address, is of a moved flow, or goes elsewhere is not concerned.
        assert!(lookup(plan.far, &other).contains("dev p1"), "{}", lookup(plan.far, &other));
        assert!(lookup(plan.far, "mark 0x100").contains("dev p1"), "{}", lookup(plan.far, "mark 0x100"));
        let elsewhere = if to.is_ipv4() { "192.0.2.10" } else { "2001:db8:9::10" };
        assert!(lookup(elsewhere, "").contains("dev p1"), "{}", lookup(elsewhere, ""));
        let mut under = host.on(|| PeerRoutes::open(MARK).unwrap());
        assert_eq!(under.under(to, None).unwrap().interface, host.index("p1"));
        ways.release().unwrap();
        assert_eq!(state(&host), before);
    }
}
