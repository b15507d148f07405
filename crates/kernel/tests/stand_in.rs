//! Standing in for a host that has left a link, on links of real kernels.

mod hosts;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use hosts::{Host, PLANS, wait};
use whimbrel_kernel::stand_in::{Seen, StandIn};

const PORT: u16 = 2031;

/// A link with a router, somebody who stands in, and a place for a newcomer; the router's name for the link is `lan`.
fn link() -> (Host, Host, Host) {
    let (router, deputy, newcomer) = (Host::new(), Host::new(), Host::new());
    router.sh("ip link add lan type bridge; ip link set lan up");
    router.cable("p0", &deputy, "e0");
    router.cable("p1", &newcomer, "e0");
    router.sh("ip link set p0 master lan; ip link set p1 master lan");
    (router, deputy, newcomer)
}

#[test]
fn what_is_sent_to_who_has_left_is_taken_in() {
    for plan in &PLANS {
        let (router, deputy, newcomer) = link();
        let (subnet, nodad) = (plan.subnet, if plan.ipv4 { "" } else { "nodad" });
        let (own, left) = (if plan.ipv4 { "10.1.0.3" } else { "fd01::3" }, plan.client);
        router.sh(&format!("ip addr add {}/{subnet} dev lan {nodad}", plan.router));
        // It asks again soon who has an address (RFC 4861 §7.3), as it would after half a minute.
        router
            .sh("cd /proc/sys/net/ipv6/neigh/lan; echo 1000 > base_reachable_time_ms; echo 1 > delay_first_probe_time
             echo 100 > retrans_time_ms");
        deputy.sh(&format!("ip addr add {own}/{subnet} dev e0 {nodad}"));
        let address: IpAddr = left.parse().unwrap();
        let mut stand_in = deputy.on(|| StandIn::open(PORT).unwrap());
        let interface = deputy.index("e0");
        deputy.on(|| stand_in.watch(interface, address)).unwrap();
        stand_in.probe(address).unwrap();
        assert_eq!(stand_in.receive().unwrap(), None, "nobody has it");

        let sender = router.on(|| UdpSocket::bind(SocketAddr::new(plan.router.parse().unwrap(), 0)).unwrap());
        let source = sender.local_addr().unwrap();
        stand_in.take(address).unwrap();
        let mut seen = Vec::new();
        wait("the datagram arrives", || {
            // What waits for a neighbour may be dropped.
            let _ = sender.send_to(b"other", SocketAddr::new(address, PORT + 1));
            let _ = sender.send_to(b"hello", SocketAddr::new(address, PORT));
            seen.extend(stand_in.receive().unwrap());
            !seen.is_empty()
        });
        let payload = b"hello".to_vec();
        assert_eq!(seen, [Seen::Datagram { address, source, payload }], "{left}");
        while stand_in.receive().unwrap().is_some() {}

        // A host that wants the address asks first, and is not answered.
        newcomer.sh("echo 1 > /proc/sys/net/ipv6/conf/e0/accept_dad");
        newcomer.sh(&format!("ip addr add {left}/{subnet} dev e0"));
        if plan.ipv4 {
            // IPv4 asks for nobody's leave; the first that it sends shows it.
            newcomer.sh(&format!("ping -c 1 -W 1 {} || true", plan.router));
        }
        let mut claimed = None;
        wait("the newcomer is seen", || {
            claimed = claimed.take().or(stand_in.receive().unwrap());
            claimed == Some(Seen::Claimed { address })
        });
        stand_in.leave(address).unwrap();
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
        assert_eq!(stand_in.receive().unwrap(), None);
    }
}

#[test]
fn who_has_the_address_shows_itself_when_asked() {
    for plan in &PLANS {
        let (_router, deputy, owner) = link();
        let (subnet, nodad) = (plan.subnet, if plan.ipv4 { "" } else { "nodad" });
        owner.sh(&format!("ip addr add {}/{subnet} dev e0 {nodad}", plan.client));
        let address: IpAddr = plan.client.parse().unwrap();
        let mut stand_in = deputy.on(|| StandIn::open(PORT).unwrap());
        let interface = deputy.index("e0");
        deputy.on(|| stand_in.watch(interface, address)).unwrap();
        wait("it is seen", || {
            stand_in.probe(address).unwrap();
            stand_in.receive().unwrap() == Some(Seen::Claimed { address })
        });
        let missing = deputy.on(|| StandIn::open(PORT).unwrap().watch(1, address)).map_err(|error| error.to_string());
        assert!(missing.unwrap_err().contains("no Ethernet"), "loopback");
    }
}
