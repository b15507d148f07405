//! Addresses that are used before duplicate address detection has ended, on links of real kernels.

mod hosts;

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::{Duration, Instant};

use hosts::{Host, PATIENCE, RunDir, wait};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with, sockopt};
use whimbrel_kernel::network::NetworkMonitor;
use whimbrel_kernel::optimistic::OptimisticAddresses;
use whimbrel_kernel::route::{Address, RouteSocket};

const NEAR: &str = "fd03::1";
const FAR: &str = "fd03::2";
/// Detection takes as long at least: a second for each of three questions, so that a slow machine does all that is to
/// be done meanwhile.
const DETECTION: Duration = Duration::from_secs(3);
const PREFIX: Ipv6Addr = Ipv6Addr::new(0xfd04, 0, 0, 0, 0, 0, 0, 0);
const SETTING: &str = "/proc/sys/net/ipv6/conf/e0/optimistic_dad";

/// Two hosts on a cable, of which the second has an address.
fn hosts() -> (Host, Host) {
    let (host, other) = (Host::new(), Host::new());
    host.cable("e0", &other, "e0");
    host.sh("cd /proc/sys/net/ipv6/conf/e0; echo 1 > accept_dad; echo 3 > dad_transmits; echo 1 > accept_ra");
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
    // The kernel begins to ask after a time that it draws, of up to a second (`addrconf_dad_kick`): its answer may be
    // here before anybody has seen the address.
    let begins = || {
        host.sh(&format!("ip addr add {FAR}/64 dev e0 valid_lft 600 preferred_lft 300"));
        let begun = early.begin().unwrap();
        wait("the kernel has given it up", || found(&host, taken).is_none());
        begun == [taken]
    };
    assert!(std::iter::repeat_with(begins).take(5).any(|begun| begun), "the kernel was quicker five times");
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

/// A router says that fd04::/64 is on the link, and that hosts make themselves addresses of it (RFC 4861 §4.2, §4.6.2).
fn advertise(router: &Host) {
    const ADVERTISEMENT: [u8; 16] = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    const ON_LINK_AND_AUTONOMOUS: [u8; 4] = [3, 4, 64, 0xc0];
    let mut message = [&ADVERTISEMENT[..], &ON_LINK_AND_AUTONOMOUS].concat();
    for value in [3600u32, 1800, 0] {
        message.extend(value.to_be_bytes());
    }
    message.extend(PREFIX.octets());
    let raw =
        || socket_with(AddressFamily::INET6, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMPV6)).unwrap();
    let socket = router.on(raw);
    sockopt::set_ipv6_multicast_hops(&socket, 255).unwrap();
    let all = SocketAddrV6::new("ff02::1".parse().unwrap(), 0, 0, router.index("e0"));
    sendto(&socket, &message, SendFlags::empty(), &all).unwrap();
}

#[test]
fn what_the_kernel_makes_of_a_routers_word_is_noticed_and_used() {
    let (host, router) = hosts();
    let run = RunDir::new();
    let _here = host.enter();
    let mut early = OptimisticAddresses::open(&run.0).unwrap();
    let mut monitor = NetworkMonitor::open().unwrap();
    let began = Instant::now();
    advertise(&router);
    let mut used = Vec::new();
    wait("its address is used", || {
        // As the daemon looks: only when it is told of something.
        if monitor.drain().unwrap().attachment() {
            used.extend(early.begin().unwrap());
        }
        !used.is_empty()
    });
    assert!(began.elapsed() < DETECTION, "{:?}", began.elapsed());
    let [IpAddr::V6(address)] = used[..] else { panic!("{used:?}") };
    assert_eq!(address.octets()[..8], PREFIX.octets()[..8]);
    assert!(found(&host, used[0]).is_some_and(|one| one.optimistic && !one.tentative));
    // Nothing says that the prefix is on the link but the router's own word.
    let routes = host.sh("ip -6 route show fd04::/64");
    assert!(routes.lines().count() == 1 && routes.contains("proto kernel"), "{routes}");
}
