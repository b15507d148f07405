//! Addresses that are used before duplicate address detection has ended, on links of real kernels.

mod hosts;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use hosts::{Host, PATIENCE, RunDir, wait};
use whimbrel_kernel::optimistic::OptimisticAddresses;
use whimbrel_kernel::route::{Address, RouteSocket};

const NEAR: &str = "fd03::1";
const FAR: &str = "fd03::2";
/// Detection takes as long at least.
const DETECTION: Duration = Duration::from_secs(1);
const SETTING: &str = "/proc/sys/net/ipv6/conf/e0/optimistic_dad";

/// Two hosts on a cable, of which the second has an address.
fn hosts() -> (Host, Host) {
    let (host, other) = (Host::new(), Host::new());
    host.cable("e0", &other, "e0");
    host.sh("echo 1 > /proc/sys/net/ipv6/conf/e0/accept_dad");
    other.sh(&format!("ip addr add {FAR}/64 dev e0"));
    (host, other)
}

fn found(host: &Host, address: IpAddr) -> Option<Address> {
    let all = host.on(|| RouteSocket::open().unwrap().addresses().unwrap());
    all.into_iter().find(|one| one.prefix.address == address)
}

#[test]
fn an_address_that_waits_is_used_and_keeps_what_is_known_of_it() {
    let (host, other) = hosts();
    let run = RunDir::new();
    let _here = host.enter();
    let mut early = OptimisticAddresses::open(&run.0).unwrap();
    let [near, far]: [IpAddr; 2] = [NEAR, FAR].map(|text| text.parse().unwrap());
    assert_eq!(early.begin().unwrap(), [] as [IpAddr; 0]);
    let began = Instant::now();
    host.sh(&format!("ip addr add {NEAR}/64 dev e0 valid_lft 600 preferred_lft 300"));
    let before = found(&host, near).expect("it is there");
    assert!(before.tentative && !before.optimistic);
    assert_eq!(early.begin().unwrap(), [near]);
    assert_eq!(early.begin().unwrap(), [] as [IpAddr; 0], "once");
    let used = found(&host, near).expect("it is there still");
    assert!(!used.tentative && used.optimistic);
    assert_eq!((used.made, used.prefix, used.deprecated), (before.made, before.prefix, false));
    assert_eq!(host.sh(&format!("cat {SETTING}")).trim(), "0", "put back");

    // Both ways, and begun by either end.
    let [here, there] = [(&host, near), (&other, far)].map(|(host, address)| {
        let socket = host.on(|| UdpSocket::bind(SocketAddr::new(address, 9)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    });
    let mut buffer = [0; 16];
    for (from, to, at) in [(&there, &here, near), (&here, &there, far)] {
        from.send_to(b"early", SocketAddr::new(at, 9)).unwrap();
        assert_eq!(to.recv(&mut buffer).unwrap(), 5);
    }
    assert!(began.elapsed() < DETECTION, "{:?}", began.elapsed());
    let shown = host.sh(&format!("ip -6 addr show dev e0 to {NEAR}"));
    assert!(shown.contains("optimistic") && shown.contains("dynamic") && !shown.contains("forever"), "{shown}");

    wait("detection has ended", || found(&host, near).is_some_and(|one| !one.optimistic && !one.tentative));
    assert!(began.elapsed() > DETECTION * 9 / 10, "there was none");
    assert_eq!(early.begin().unwrap(), [] as [IpAddr; 0]);
    let routes = host.sh(&format!("ip -6 route show table local {NEAR}"));
    assert!(routes.contains("proto kernel") && routes.lines().count() == 1, "the kernel's own alone: {routes}");
    there.send_to(b"later", SocketAddr::new(near, 9)).unwrap();
    assert_eq!(here.recv(&mut buffer).unwrap(), 5);
}

#[test]
fn what_was_entered_by_hand_waits() {
    let (host, _other) = hosts();
    let run = RunDir::new();
    let _here = host.enter();
    let mut early = OptimisticAddresses::open(&run.0).unwrap();
    host.sh(&format!("ip addr add {NEAR}/64 dev e0"));
    assert_eq!(early.begin().unwrap(), [] as [IpAddr; 0]);
    assert!(found(&host, NEAR.parse().unwrap()).expect("it is there").tentative);
}

#[test]
fn an_address_that_is_anothers_is_given_up() {
    let (host, other) = hosts();
    let run = RunDir::new();
    let _here = host.enter();
    let mut early = OptimisticAddresses::open(&run.0).unwrap();
    let taken: IpAddr = FAR.parse().unwrap();
    host.sh(&format!("ip addr add {FAR}/64 dev e0 valid_lft 600 preferred_lft 300"));
    assert_eq!(early.begin().unwrap(), [taken]);
    wait("the kernel has given it up", || found(&host, taken).is_none());
    assert_eq!(early.begin().unwrap(), [] as [IpAddr; 0]);
    assert_eq!(host.sh(&format!("ip -6 route show table local {FAR}")).trim(), "", "nothing is taken in for it");
    assert!(found(&other, taken).is_some_and(|one| !one.duplicate), "its owner has it");
}

#[test]
fn a_setting_that_a_killed_daemon_has_left_is_put_back() {
    let (host, _other) = hosts();
    let run = RunDir::new();
    let _here = host.enter();
    let mut saved = whimbrel_kernel::saved_sysctl::SavedSysctls::open(&run.0.join("optimistic")).unwrap();
    assert!(saved.set("net/ipv6/conf/e0/optimistic_dad", "1").unwrap());
    drop(OptimisticAddresses::open(&run.0).unwrap());
    assert_eq!(std::fs::read_to_string(SETTING).unwrap().trim(), "0");
}
