//! Standing in for a host that has left a link, on links of real kernels.

mod hosts;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use hosts::{Host, PLANS, wait};
use whimbrel_kernel::neighbour::proxy::{NeighbourProxy, Seen};

const PORT: u16 = 2031;

/// A link with a router, somebody who stands in, and a place for a newcomer; the router's name for the link is `lan`.
fn link() -> (Host, Host, Host) {
    let (router, proxy, newcomer) = (Host::new(), Host::new(), Host::new());
    router.sh("ip link add lan type bridge; ip link set lan up");
    router.cable("p0", &proxy, "e0");
    router.cable("p1", &newcomer, "e0");
    router.sh("ip link set p0 master lan; ip link set p1 master lan");
    (router, proxy, newcomer)
}

/// The next thing of interest that has come already.
fn seen(neighbour_proxy: &mut NeighbourProxy) -> Option<Seen> {
    loop {
        match neighbour_proxy.receive().unwrap() {
            Some(Seen::Other) => {}
            seen => return seen,
        }
    }
}

/// What the sockets take in that this host has on its links, as ethertypes in hexadecimal digits.
fn taken_in(host: &Host) -> Vec<String> {
    // sk, RefCnt, Type, Proto, Iface, R(unning), ...
    let sockets = host.sh("cat /proc/net/packet");
    let fields = sockets.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut running: Vec<String> = fields.filter(|of| of[5] == "1").map(|of| of[3].to_owned()).collect();
    running.sort();
    running
}

/// Waits until that is what they take in: a program that another test is just starting has all descriptors until it is
/// `exec`ed.
fn wait_taken_in(host: &Host, ethertypes: &[&str]) {
    wait(&format!("{ethertypes:?} are taken in"), || taken_in(host) == ethertypes);
}

fn is_readable(neighbour_proxy: &NeighbourProxy) -> bool {
    let mut polled = [PollFd::new(neighbour_proxy, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[test]
fn nothing_is_looked_at_for_nobody() {
    let (_router, proxy, _newcomer) = link();
    let interface = proxy.index("e0");
    let [v4, v6]: [IpAddr; 2] = ["10.1.0.2".parse().unwrap(), "fd01::2".parse().unwrap()];
    let mut neighbour_proxy = proxy.on(|| NeighbourProxy::open(PORT).unwrap());
    assert_eq!(taken_in(&proxy), [] as [&str; 0]);
    proxy.on(|| neighbour_proxy.watch(interface, v4)).unwrap();
    assert_eq!(taken_in(&proxy), ["0800", "0806"], "and not 0003, which is all, and what is sent too");
    proxy.on(|| neighbour_proxy.watch(interface, v6)).unwrap();
    assert_eq!(taken_in(&proxy), ["0800", "0806", "86dd"]);
    neighbour_proxy.leave(v4).unwrap();
    wait_taken_in(&proxy, &["86dd"]);
    neighbour_proxy.leave(v6).unwrap();
    wait_taken_in(&proxy, &[]);
    // A link that does not lend itself leaves nothing behind.
    proxy.on(|| neighbour_proxy.watch(1, v4)).unwrap_err();
    wait_taken_in(&proxy, &[]);
}

#[test]
fn a_call_takes_in_one_packet_and_each_packet_once() {
    let plan = PLANS.iter().find(|plan| plan.ipv4).unwrap();
    let (router, proxy, _newcomer) = link();
    router.sh(&format!("ip addr add {}/{} dev lan", plan.router, plan.subnet));
    // The bridge has the link-layer address of its port.
    proxy.sh("ip link add lan type bridge; ip link set e0 master lan; ip link set lan up");
    proxy.sh(&format!("ip addr add 10.1.0.3/{} dev lan", plan.subnet));
    let address: IpAddr = plan.client.parse().unwrap();
    let mut neighbour_proxy = proxy.on(|| NeighbourProxy::open(PORT).unwrap());
    let interface = proxy.index("lan");
    proxy.on(|| neighbour_proxy.watch(interface, address)).unwrap();
    neighbour_proxy.take(address).unwrap();
    let sender = router.on(|| UdpSocket::bind(SocketAddr::new(plan.router.parse().unwrap(), 0)).unwrap());
    wait("the router has learned who answers", || {
        let _ = sender.send_to(b"first", SocketAddr::new(address, PORT));
        let first = |seen: &Seen| matches!(seen, Seen::Datagram { payload, .. } if payload == b"first");
        seen(&mut neighbour_proxy).as_ref().is_some_and(first)
    });
    for count in 0..50u8 {
        sender.send_to(&[count], SocketAddr::new(address, PORT)).unwrap();
    }
    let mut payloads = Vec::new();
    wait("all have come", || {
        if let Some(Seen::Datagram { payload, .. }) = seen(&mut neighbour_proxy)
            && payload != b"first"
        {
            payloads.push(payload);
        }
        payloads.last().is_some_and(|last| *last == [49])
    });
    payloads.extend(std::iter::from_fn(|| seen(&mut neighbour_proxy)).filter_map(|seen| match seen {
        Seen::Datagram { payload, .. } => Some(payload),
        _ => None,
    }));
    assert_eq!(payloads, (0..50u8).map(|count| vec![count]).collect::<Vec<_>>());

    // Questions for addresses that nobody watches: many come, and one is read at a time.
    for host in 10..60 {
        sender.send_to(b"ask", SocketAddr::new(format!("10.1.0.{host}").parse().unwrap(), PORT)).unwrap();
    }
    let mut others = 0;
    wait("the questions have come", || {
        let came = is_readable(&neighbour_proxy);
        if came {
            assert_eq!(neighbour_proxy.receive().unwrap(), Some(Seen::Other));
            others += 1;
        }
        others >= 50
    });
}

#[test]
fn what_is_sent_to_who_has_left_is_taken_in() {
    for plan in &PLANS {
        let (router, proxy, newcomer) = link();
        let (subnet, nodad) = (plan.subnet, if plan.ipv4 { "" } else { "nodad" });
        let (own, left) = (if plan.ipv4 { "10.1.0.3" } else { "fd01::3" }, plan.client);
        router.sh(&format!("ip addr add {}/{subnet} dev lan {nodad}", plan.router));
        // It asks again soon who has an address (RFC 4861 §7.3), as it would after half a minute.
        router
            .sh("cd /proc/sys/net/ipv6/neigh/lan; echo 1000 > base_reachable_time_ms; echo 1 > delay_first_probe_time
             echo 100 > retrans_time_ms");
        proxy.sh(&format!("ip addr add {own}/{subnet} dev e0 {nodad}"));
        let address: IpAddr = left.parse().unwrap();
        let mut neighbour_proxy = proxy.on(|| NeighbourProxy::open(PORT).unwrap());
        let interface = proxy.index("e0");
        proxy.on(|| neighbour_proxy.watch(interface, address)).unwrap();
        neighbour_proxy.probe(address).unwrap();
        assert_eq!(seen(&mut neighbour_proxy), None, "nobody has it");

        let sender = router.on(|| UdpSocket::bind(SocketAddr::new(plan.router.parse().unwrap(), 0)).unwrap());
        let source = sender.local_addr().unwrap();
        neighbour_proxy.take(address).unwrap();
        let mut heard = Vec::new();
        wait("the datagram arrives", || {
            // What waits for a neighbour may be dropped.
            let _ = sender.send_to(b"other", SocketAddr::new(address, PORT + 1));
            let _ = sender.send_to(b"hello", SocketAddr::new(address, PORT));
            heard.extend(seen(&mut neighbour_proxy));
            !heard.is_empty()
        });
        let payload = b"hello".to_vec();
        assert_eq!(heard, [Seen::Datagram { address, source, payload }], "{left}");
        while neighbour_proxy.receive().unwrap().is_some() {}

        // A host that wants the address asks first, and is not answered.
        newcomer.sh("echo 1 > /proc/sys/net/ipv6/conf/e0/accept_dad");
        newcomer.sh(&format!("ip addr add {left}/{subnet} dev e0"));
        if plan.ipv4 {
            // IPv4 asks for nobody's leave; the first that it sends shows it.
            newcomer.sh(&format!("ping -c 1 -W 1 {} || true", plan.router));
        }
        let mut claimed = None;
        wait("the newcomer is seen", || {
            claimed = claimed.take().or(seen(&mut neighbour_proxy));
            claimed == Some(Seen::Claimed { address })
        });
        neighbour_proxy.leave(address).unwrap();
        wait("the newcomer has the address", || {
            let shown = newcomer.sh("ip addr show dev e0");
            shown.contains(left) && !shown.contains("tentative") && !shown.contains("dadfailed")
        });
        let receiver = newcomer.on(|| UdpSocket::bind(SocketAddr::new(address, PORT)).unwrap());
        receiver.set_nonblocking(true).unwrap();
        let mut buffer = [0; 16];
        wait("the newcomer is reached", || {
            let _ = sender.send_to(b"hello", SocketAddr::new(address, PORT));
            receiver.recv(&mut buffer).is_ok()
        });
        assert_eq!(seen(&mut neighbour_proxy), None);
    }
}

#[test]
fn who_has_the_address_shows_itself_when_asked() {
    for plan in &PLANS {
        let (_router, proxy, owner) = link();
        let (subnet, nodad) = (plan.subnet, if plan.ipv4 { "" } else { "nodad" });
        owner.sh(&format!("ip addr add {}/{subnet} dev e0 {nodad}", plan.client));
        let address: IpAddr = plan.client.parse().unwrap();
        let mut neighbour_proxy = proxy.on(|| NeighbourProxy::open(PORT).unwrap());
        let interface = proxy.index("e0");
        proxy.on(|| neighbour_proxy.watch(interface, address)).unwrap();
        wait("it is seen", || {
            neighbour_proxy.probe(address).unwrap();
            seen(&mut neighbour_proxy) == Some(Seen::Claimed { address })
        });
        let missing =
            proxy.on(|| NeighbourProxy::open(PORT).unwrap().watch(1, address)).map_err(|error| error.to_string());
        assert!(missing.unwrap_err().contains("no Ethernet"), "loopback");
    }
}
