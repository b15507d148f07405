//! Addresses, routes, rules, neighbours and links, and being told of their changes.

mod hosts;

use std::net::IpAddr;
use std::os::fd::AsFd;

use hosts::{Host, PLANS, wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use whimbrel_kernel::Error;
use whimbrel_kernel::namespace::{self, Whereabouts};
use whimbrel_kernel::network::{Changed, NetworkMonitor};
use whimbrel_kernel::route::{
    AddressScope, InterfaceName, LOOPBACK, MAIN_TABLE, NeighbourState, NewAddress, NextHop, Prefix, RouteKind,
    RouteSocket, Rule, Selector, TableRoute,
};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
#[ignore = "needs root"]
fn a_namespace_is_found_as_long_as_something_holds_it() {
    let host = Host::new();
    let cookie = host.on(|| namespace::cookie().unwrap());
    let Whereabouts::At(path) = namespace::find(cookie) else { panic!("not found") };
    let there = std::thread::spawn(move || {
        let _there = namespace::Entered::path(&path).unwrap();
        namespace::cookie().unwrap()
    });
    assert_eq!(there.join().unwrap(), cookie);
    assert!(matches!(namespace::find(namespace::cookie().unwrap()), Whereabouts::At(_)), "the own one");
    drop(host);
    // A thread that was there goes a moment after it was waited for. And there may be processes that not even root may
    // look at.
    wait("the namespace is not found any more", || !matches!(namespace::find(cookie), Whereabouts::At(_)));
}

#[test]
#[ignore = "needs root"]
fn changes_are_told_and_the_state_is_read() {
    let (host, other) = (Host::new(), Host::new());
    let mut monitor = host.on(|| NetworkMonitor::open().unwrap());
    assert_eq!(monitor.drain().unwrap(), Changed::default());
    let empty = monitor.snapshot().unwrap();
    assert!(empty.addresses.is_empty() && !empty.has_default_route(true) && !empty.has_default_route(false));

    host.cable("e0", &other, "p0");
    let (readable, patience) = (monitor.as_fd(), Timespec { tv_sec: 5, tv_nsec: 0 });
    assert_eq!(poll(&mut [PollFd::from_borrowed_fd(readable, PollFlags::IN)], Some(&patience)).unwrap(), 1);
    let changed = monitor.drain().unwrap();
    assert!(changed.links && changed.attachment() && !changed.lost);
    let index = host.index("e0");

    host.sh(
        "ip addr add 10.1.0.2/24 dev e0; ip addr add 169.254.1.1/16 dev e0 scope link; ip addr add fd01::2/64 dev e0 nodad;
         ip addr add fd01::3/64 dev e0 nodad preferred_lft 0; ip addr add 10.5.5.5/32 dev lo;
         ip route add default via 10.1.0.1 metric 77",
    );
    let changed = monitor.drain().unwrap();
    assert!(changed.addresses && changed.routes && !changed.rules);
    let state = monitor.snapshot().unwrap();
    let addresses: Vec<_> = state.addresses.iter().map(|a| (a.address, a.prefix_length, a.deprecated)).collect();
    // A service address stays wherever the host goes, and what uses a deprecated address goes on.
    let service = (ip("10.5.5.5"), 32, false);
    assert_eq!(
        addresses,
        [service, (ip("10.1.0.2"), 24, false), (ip("fd01::2"), 64, false), (ip("fd01::3"), 64, true)]
    );
    assert!(state.addresses.iter().all(|a| a.interface == if a.address == service.0 { LOOPBACK } else { index }));
    let route = state.default_routes[0];
    assert_eq!((route.interface, route.gateway, route.metric), (index, Some(ip("10.1.0.1")), 77));
    assert!(state.has_default_route(true) && !state.has_default_route(false));
    let link = state.link(index).unwrap();
    assert_eq!((link.kind.as_str(), link.up, link.carrier, link.mtu), ("veth", true, true, 1500));

    // Waits for duplicate address detection: not usable yet.
    host.sh(
        "echo 1 > /proc/sys/net/ipv6/conf/e0/accept_dad; echo 0 > /proc/sys/net/ipv6/conf/e0/optimistic_dad || true",
    );
    other.sh("ip link set p0 down");
    wait("the carrier is seen to be gone", || {
        monitor.snapshot().unwrap().link(index).is_some_and(|link| link.up && !link.carrier)
    });
    host.sh("ip addr add fd01::4/64 dev e0");
    assert!(monitor.snapshot().unwrap().addresses.iter().all(|a| a.address != ip("fd01::4")));
    let configured = monitor.configured().unwrap();
    assert!(["fd01::4", "fd01::2", "10.1.0.2"].iter().all(|of| configured.contains(&ip(of))), "{configured:?}");
    other.sh("ip link set p0 up");
    wait("detection ends", || monitor.snapshot().unwrap().addresses.iter().any(|a| a.address == ip("fd01::4")));

    // More events than the socket holds.
    let (mut routes, target) = (host.on(|| RouteSocket::open().unwrap()), vec![NextHop::interface(index)]);
    for n in 0..2000u32 {
        let prefix = Prefix { address: IpAddr::V4((0x0b00_0000 + (n << 8)).into()), length: 24 };
        let mut route = TableRoute::new(prefix, MAIN_TABLE, RouteKind::Unicast, target.clone());
        route.protocol = 4;
        routes.set_route(&route).unwrap();
    }
    let changed = monitor.drain().unwrap();
    assert!(changed.lost && changed.links && changed.neighbours, "{changed:?}");
    assert!(!monitor.drain().unwrap().lost);
}

#[test]
#[ignore = "needs root"]
fn own_routes_wake_nobody() {
    let host = Host::new();
    let mut monitor = host.on(|| NetworkMonitor::open().unwrap());
    let mut routes = host.on(|| RouteSocket::open().unwrap());
    let hops = vec![NextHop::interface(LOOPBACK)];
    routes.set_route(&TableRoute::new(Prefix::host(ip("10.1.1.1")), 7777, RouteKind::Local, hops)).unwrap();
    assert!(!monitor.drain().unwrap().routes);
}

#[test]
#[ignore = "needs root"]
fn setting_twice_and_deleting_twice_is_fine() {
    for plan in &PLANS {
        let (host, _other) = plan.build();
        let mut socket = host.on(|| RouteSocket::open().unwrap());
        let (e0, e1) = (host.index("e0"), host.index("e1"));
        let (ipv4, gateway) = (plan.ipv4, Some(ip(plan.router)));

        let (to, table) = (Prefix { address: ip(if plan.ipv4 { "10.7.0.0" } else { "fd07::" }), length: 24 }, 70_000);
        let hop = NextHop { interface: e0, gateway, onlink: false };
        let mut route = TableRoute::new(to, table, RouteKind::Unicast, vec![hop]);
        route.mtu = Some(1300);
        route.mtu_locked = true;
        route.source = Some(ip(plan.client));
        assert!(socket.routes_of(table).unwrap().is_empty());
        for _ in 0..2 {
            socket.set_route(&route).unwrap();
            assert_eq!(socket.routes_of(table).unwrap(), [route.clone()]);
        }
        // Replaced: by one to a gateway that is on no subnet of the interface, then by several hops.
        let onlink = NextHop { interface: e1, gateway: Some(ip(plan.router_new)), onlink: true };
        route.next_hops = vec![onlink];
        socket.set_route(&route).unwrap();
        assert_eq!(socket.routes_of(table).unwrap(), [route.clone()]);
        assert!(socket.delete_route(&route).unwrap());
        assert!(!socket.delete_route(&route).unwrap());
        // IPv6 takes no hops without gateways here.
        let hops = if ipv4 { vec![NextHop::interface(e0), NextHop::interface(e1)] } else { vec![hop, onlink] };
        let mut several = TableRoute::new(to, table, RouteKind::Unicast, hops);
        several.protocol = 4;
        socket.set_route(&several).unwrap();
        assert_eq!(socket.routes_of(table).unwrap(), [several.clone()]);
        assert!(socket.delete_route(&several).unwrap());
        let dead = TableRoute::new(to, table, RouteKind::Unreachable, Vec::new()).metric(4_000_000_000);
        socket.set_route(&dead).unwrap();
        assert_eq!(socket.routes_of(table).unwrap(), std::slice::from_ref(&dead));
        assert!(socket.delete_route(&dead).unwrap());

        let selectors = [
            Selector::From(ip(plan.client)),
            Selector::Mark { value: 0x100, mask: 0xff00, ipv4 },
            Selector::OwnUnmarked { mask: 0xff00, ipv4 },
            Selector::Named { address: ip(plan.client), port: 2031, interface: InterfaceName::new("e1").unwrap() },
        ];
        for (selector, priority) in selectors.into_iter().zip(100..) {
            let rule = Rule { priority, selector, table };
            socket.set_rule(&rule).unwrap();
            socket.set_rule(&rule).unwrap();
            assert_eq!(socket.own_rules().unwrap(), [rule]);
            assert!(socket.delete_rule(&rule).unwrap());
            assert!(!socket.delete_rule(&rule).unwrap());
        }

        let new =
            NewAddress { interface: e1, address: ip(plan.client_new), scope: AddressScope::Global, deprecated: true };
        socket.set_address(&new).unwrap();
        socket.set_address(&new).unwrap();
        let all = socket.addresses().unwrap();
        let found = all.iter().find(|a| a.prefix == Prefix::host(new.address)).unwrap();
        assert!(found.own && found.deprecated && !found.tentative && found.interface == e1);
        assert!(socket.delete_address(e1, new.address).unwrap());
        assert!(!socket.delete_address(e1, new.address).unwrap());

        let neighbour = ip(if plan.ipv4 { "10.1.0.77" } else { "fd01::77" });
        for last in [1, 2] {
            socket.set_permanent_neighbour(e0, neighbour, &[2, 0, 0, 0, 0, last]).unwrap();
        }
        let all = socket.neighbours().unwrap();
        let found = all.iter().find(|n| n.address == neighbour).unwrap();
        assert_eq!((found.state, found.link_address.as_slice()), (NeighbourState::Permanent, &[2, 0, 0, 0, 0, 2][..]));
        assert!(socket.delete_neighbour(e0, neighbour).unwrap());
        assert!(!socket.delete_neighbour(e0, neighbour).unwrap());
    }
}

#[test]
#[ignore = "needs root"]
fn what_waits_for_an_answer_is_given_up() {
    for plan in &PLANS {
        let (host, _other) = plan.build();
        let e0 = host.index("e0");
        let state = host.on(|| NetworkMonitor::open().unwrap()).snapshot().unwrap();
        let mut routes = host.on(|| RouteSocket::open().unwrap());
        // Nobody has these addresses.
        let [given_up, kept] = if plan.ipv4 { ["10.1.0.77", "10.1.0.78"] } else { ["fd01::77", "fd01::78"] }.map(ip);
        let local = if plan.ipv4 { "0.0.0.0:0" } else { "[::]:0" };
        let socket = host.on(|| std::net::UdpSocket::bind(local).unwrap());
        for to in [given_up, kept] {
            assert!(state.is_on_link(e0, to) && !state.is_on_link(e0 + 1, to));
            socket.send_to(b"x", (to, 9)).unwrap();
        }
        assert!(!state.is_on_link(e0, ip(plan.server)));

        assert_eq!(routes.give_up_unanswered(|interface, address| (interface, address) == (e0, given_up)).unwrap(), 1);
        let left = routes.neighbours().unwrap();
        let state_of = |address| left.iter().find(|one| one.address == address).map(|one| one.state);
        assert_ne!(state_of(given_up), Some(NeighbourState::Incomplete));
        assert_eq!(state_of(kept), Some(NeighbourState::Incomplete));
        assert_eq!(routes.give_up_unanswered(|_, address| address == given_up).unwrap(), 0);
    }
}

/// As in many data centres: what waits for the gateway's answer is the first that is sent there.
#[test]
#[ignore = "needs root"]
fn a_gateway_is_a_neighbour_of_an_address_of_its_own() {
    let (host, other) = (Host::new(), Host::new());
    host.cable("e0", &other, "p0");
    host.sh("ip addr add 10.1.0.2/32 dev e0; ip route add default via 172.31.1.1 dev e0 onlink");
    let state = host.on(|| NetworkMonitor::open().unwrap()).snapshot().unwrap();
    let e0 = host.index("e0");
    assert!(state.is_on_link(e0, ip("172.31.1.1")));
    assert!(!state.is_on_link(e0 + 1, ip("172.31.1.1")) && !state.is_on_link(e0, ip("172.31.1.2")));
}

#[test]
#[ignore = "needs root"]
fn the_way_is_found_or_said_to_be_missing() {
    for plan in &PLANS {
        let (host, _other) = plan.build();
        let mut socket = host.on(|| RouteSocket::open().unwrap());
        let far = ip(plan.server);
        let route = socket.route_to(far, None, None).unwrap();
        assert_eq!((route.gateway, route.interface), (Some(ip(plan.router)), host.index("e0")));
        assert_eq!((route.source, route.kind), (Some(ip(plan.client)), RouteKind::Unicast));
        assert_eq!(route.table, MAIN_TABLE);
        for kind in ["unreachable", "prohibit", "blackhole"] {
            host.sh(&format!("{} route add {kind} {}", plan.ip, plan.server));
            let error = socket.route_to(far, None, None).unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. }), "{kind}: {error}");
            host.sh(&format!("{} route del {kind} {}", plan.ip, plan.server));
        }
        host.sh(&format!("{} route del default", plan.ip));
        let error = socket.route_to(far, None, None).unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
    }
}

#[test]
fn who_takes_a_route_of_ours_away_is_noticed() {
    let host = Host::new();
    let mut monitor = host.on(|| NetworkMonitor::open().unwrap());
    host.sh("ip route add 198.51.100.0/24 dev lo proto 87");
    assert_eq!(monitor.drain().unwrap(), Changed::default());
    host.sh("ip route del 198.51.100.0/24 dev lo proto 87");
    assert_eq!(monitor.drain().unwrap(), Changed { own: true, ..Changed::default() });
}
