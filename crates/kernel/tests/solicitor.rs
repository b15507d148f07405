//! Asking for neighbours beside the kernel, on links of real kernels.

mod hosts;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use hosts::{Host, PATIENCE, wait};
use whimbrel_kernel::kept_address::Mark;
use whimbrel_kernel::neighbour::solicitor::{NextHop, Solicitor};

const MARK: Mark = Mark { value: 0x1000_0000, mask: 0x3000_0000 };
/// The kernel asks again after this.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// A host that has sent a datagram to another, which was not there yet when the kernel has asked for it.
struct Waiting {
    host: Host,
    _other: Host,
    /// The other one's, which is there now.
    socket: UdpSocket,
    hop: NextHop,
    solicitor: Solicitor,
    since: Instant,
}

fn waiting(subnet: &str, [near, far]: [&str; 2]) -> Waiting {
    let (host, other) = (Host::new(), Host::new());
    host.cable("e0", &other, "e0");
    // An address of IPv6 that is looked for first cannot be bound to meanwhile.
    let nodad = if near.contains(':') { "nodad" } else { "" };
    host.sh(&format!("ip addr add {near}/{subnet} dev e0 {nodad}"));
    let [source, address]: [IpAddr; 2] = [near, far].map(|text| text.parse().unwrap());
    let mut solicitor = host.on(|| Solicitor::open(MARK).unwrap());
    let hop = solicitor.next_hop(source, address).unwrap().expect("a way");
    assert_eq!(hop, NextHop { interface: host.index("e0"), address, source });
    assert_eq!(solicitor.unanswered(&[hop]).unwrap(), [], "nobody has asked");
    let sender = host.on(|| UdpSocket::bind(SocketAddr::new(source, 0)).unwrap());
    let since = Instant::now();
    sender.send_to(b"waits", SocketAddr::new(address, 9)).unwrap();
    assert_eq!(solicitor.unanswered(&[hop]).unwrap(), [hop]);
    other.sh(&format!("ip addr add {far}/{subnet} dev e0 {nodad}"));
    if !nodad.is_empty() {
        // Questions go to its group, which the kernel joins a moment after it has the address (addrconf_dad_begin).
        wait("it hears questions", || other.sh("ip -6 maddr show dev e0").contains("ff02::1:ff00:2"));
    }
    let socket = other.on(|| UdpSocket::bind(SocketAddr::new(address, 9)).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    Waiting { host, _other: other, socket, hop, solicitor, since }
}

#[test]
fn what_waits_for_a_question_that_was_lost_goes_once_it_is_asked_again() {
    for (subnet, addresses) in [("24", ["10.3.0.1", "10.3.0.2"]), ("64", ["fd03::1", "fd03::2"])] {
        let mut waiting = waiting(subnet, addresses);
        waiting.solicitor.ask(waiting.hop).unwrap();
        let mut buffer = [0; 16];
        let (length, _) = waiting.socket.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"waits");
        let took = waiting.since.elapsed();
        assert!(took < ASKED_AGAIN * 8 / 10, "{addresses:?}: {took:?}: it was the kernel that has asked");
        let hop = [waiting.hop];
        wait("it is known", || waiting.solicitor.unanswered(&hop).unwrap().is_empty());
        // Whoever was asked knows the asker, and need not ask back.
        assert!(waiting.host.sh("ip neigh").contains(addresses[1]));
    }
}

#[test]
fn a_next_hop_is_the_gateway_or_nobody() {
    let (host, router) = (Host::new(), Host::new());
    host.cable("e0", &router, "e0");
    host.sh("ip addr add 10.3.0.1/24 dev e0; ip route add default via 10.3.0.254");
    let mut solicitor = host.on(|| Solicitor::open(MARK).unwrap());
    let [source, gateway]: [IpAddr; 2] = ["10.3.0.1", "10.3.0.254"].map(|text| text.parse().unwrap());
    let far: IpAddr = "203.0.113.9".parse().unwrap();
    let hop = solicitor.next_hop(source, far).unwrap().expect("a way");
    assert_eq!((hop.address, hop.source), (gateway, source));
    assert_eq!(solicitor.next_hop(source, source).unwrap(), None, "this host itself");
    host.sh("ip route del default");
    assert_eq!(solicitor.next_hop(source, far).unwrap(), None, "no way");
    let six: IpAddr = "2001:db8::9".parse().unwrap();
    solicitor.next_hop(source, six).unwrap_err();
    // A link that nobody is asked on.
    let lo = NextHop { interface: 1, address: gateway, source };
    solicitor.ask(lo).unwrap_err();
    solicitor.ask(NextHop { interface: 9999, ..lo }).unwrap_err();
}
