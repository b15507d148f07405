//! Routes by interfaces without a carrier, on links of real kernels.

mod hosts;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use hosts::{Host, PATIENCE, RunDir, wait};
use whimbrel_kernel::dead_link::DeadLinks;
use whimbrel_kernel::route::{NeighbourState, RouteSocket};

/// Of the other end, reached by either of the two cables.
const FAR: [&str; 2] = ["203.0.113.9", "2001:db8:9::9"];
const SETTINGS: &str = "cat /proc/sys/net/ipv[46]/conf/e[01]/ignore_routes_with_linkdown | tr -d '\\n'";

/// A host with two ways to another, of which the first is preferred.
fn hosts() -> (Host, Host) {
    let (host, other) = (Host::new(), Host::new());
    for at in [0, 1] {
        let name = format!("e{at}");
        host.cable(&name, &other, &name);
        for (end, number) in [(&host, 1), (&other, 2)] {
            end.sh(&format!("ip addr add 198.51.{at}.{number}/24 dev {name}"));
            end.sh(&format!("ip addr add 2001:db8:{at}::{number}/64 dev {name} nodad"));
            end.sh(&format!("echo 0 > /proc/sys/net/ipv4/conf/{name}/rp_filter"));
        }
        let metric = 100 + at;
        host.sh(&format!("ip route add default via 198.51.{at}.2 metric {metric}"));
        host.sh(&format!("ip -6 route add default via 2001:db8:{at}::2 metric {metric}"));
    }
    other.sh("echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter; ip link set lo up");
    other.sh(&format!("ip addr add {}/32 dev lo; ip addr add {}/128 dev lo nodad", FAR[0], FAR[1]));
    (host, other)
}

fn way(host: &Host, to: &str) -> String {
    let text = host.sh(&format!("ip route get {to}"));
    let mut words = text.split_whitespace().skip_while(|word| *word != "dev");
    words.nth(1).expect("a device").to_owned()
}

#[test]
fn another_way_is_taken_by_all_and_what_waited_for_the_dead_gateway_is_given_up() {
    let (host, other) = hosts();
    let run = RunDir::new();
    let _here = host.enter();
    let ends = FAR.map(|far| {
        let far = SocketAddr::new(far.parse().unwrap(), 9);
        let there = other.on(|| UdpSocket::bind(far).unwrap());
        there.set_read_timeout(Some(PATIENCE)).unwrap();
        let any: IpAddr = if far.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let here = UdpSocket::bind((any, 0)).unwrap();
        here.connect(far).unwrap();
        (here, there)
    });
    let arrives = |word: &[u8]| {
        for (here, there) in &ends {
            let mut heard = [0; 16];
            // An error of what was sent before may be told first.
            let sent = here.send(word).or_else(|_| here.send(word));
            sent.and_then(|_| there.recv(&mut heard)).map_or_else(
                |error| panic!("{error}"),
                |length| {
                    assert_eq!(&heard[..length], word);
                },
            );
        }
    };
    arrives(b"before");
    let index = host.index("e0");
    let mut dead = DeadLinks::open(&run.0).unwrap();
    assert!(!dead.pass_over(BTreeMap::new()).unwrap());

    other.sh("ip link set e0 down");
    wait("the carrier is lost", || host.sh("ip -o link show e0").contains("NO-CARRIER"));
    assert_eq!(FAR.map(|far| way(&host, far)), ["e0", "e0"], "what this is for");
    for (here, _) in &ends {
        let _ = here.send(b"lost");
    }
    let waiting = || {
        let all = RouteSocket::open().unwrap().neighbours().unwrap();
        let here = all.into_iter().filter(|one| one.interface == index);
        here.filter(|one| one.state == NeighbourState::Incomplete).count()
    };
    wait("the gateways are asked for", || waiting() == 2);
    assert!(dead.pass_over([(index, "e0".to_owned())].into()).unwrap());
    assert_eq!(waiting(), 0);
    assert_eq!(FAR.map(|far| way(&host, far)), ["e1", "e1"]);
    assert_eq!(host.sh(SETTINGS), "1010");
    assert!(!dead.pass_over([(index, "e0".to_owned())].into()).unwrap(), "once");
    // Sockets that had a way already as well.
    arrives(b"after");
    assert!(!host.sh("ip -6 route show table main").contains("unreachable"), "nothing is left in the table");

    // A daemon that was killed has left it so.
    std::mem::forget(dead);
    let mut dead = DeadLinks::open(&run.0).unwrap();
    assert_eq!((host.sh(SETTINGS).as_str(), way(&host, FAR[0]).as_str()), ("0000", "e0"));
    assert!(dead.pass_over([(index, "e0".to_owned()), (9999, "gone".to_owned())].into()).unwrap());
    assert_eq!(host.sh(SETTINGS), "1010", "an interface that is gone keeps nothing from the others");
    assert!(dead.pass_over(BTreeMap::new()).unwrap());
    assert_eq!(host.sh(SETTINGS), "0000");

    // What fails half way is undone: this name makes a path through a file.
    let half = || [(index, "e0".to_owned()), (9999, "e0/forwarding".to_owned())].into();
    assert!(dead.pass_over(half()).is_err());
    assert_eq!(host.sh(SETTINGS), "0000");
    assert!(dead.pass_over(half()).is_err(), "it is tried again");
    other.sh("ip link set e0 up");
}
