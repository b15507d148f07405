//! A host that has roamed goes on with its old address: real sockets, a TUN device, strict rp_filter on both ends.
//!
//! In place of the eBPF programs, nftables marks what comes from the TUN device; in place of the daemon, a thread
//! carries packets from one TUN device to the other.

mod hosts;

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hosts::{Host, PATIENCE, PLANS, Plan, RunDir, exchange, wait};
use rustix::event::{PollFd, PollFlags, poll};
use whimbrel_kernel::kept_address::{Carrier, Kept, KeptAddresses, Mark, Straight};
use whimbrel_kernel::route::{AddressScope, LOOPBACK, NewAddress, RouteKind, RouteSocket};

const MARK: Mark = Mark { value: 0x100, mask: 0xff00 };
const MTU: u32 = 1400;

/// A plain TUN device, without offloads, that is gone with its descriptor.
fn tun(host: &Host) -> File {
    let _here = host.enter();
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    let mut request = [0u8; 40];
    request[..3].copy_from_slice(b"wbt");
    request[16..18].copy_from_slice(&((libc::IFF_TUN | libc::IFF_NO_PI) as u16).to_ne_bytes());
    // SAFETY: the request is as large as an ifreq and outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    host.sh(&format!("ip link set wbt up mtu {MTU}"));
    file
}

/// Carries packets between two TUN devices until it is dropped.
struct Relay {
    stop: Arc<AtomicBool>,
    carried: Arc<AtomicUsize>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Relay {
    fn new(one: &File, other: &File) -> Self {
        let (stop, carried) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let threads = [(one, other), (other, one)].map(|(from, to)| {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let (stop, carried) = (stop.clone(), carried.clone());
            std::thread::spawn(move || {
                let mut packet = vec![0; 65536];
                let pause = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                while !stop.load(Ordering::Relaxed) {
                    if poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&pause)).unwrap() > 0 {
                        let length = from.read(&mut packet).unwrap();
                        to.write_all(&packet[..length]).unwrap();
                        carried.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        Self { stop, carried, threads: threads.into() }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn mark_from(host: &Host, interface: &str) {
    host.sh(&format!(
        "nft 'add table inet marks; add chain inet marks {interface} {{ type filter hook prerouting priority -300; }};
         add rule inet marks {interface} iifname \"{interface}\" meta mark set {:#x}'",
        MARK.value
    ));
}

/// Without what comes and goes with the other end of a cable or tunnel.
fn everything(host: &Host) -> String {
    let text = host.sh(
        "ip -4 addr show dev lo; for f in -4 -6; do ip $f rule; ip $f route show table all | grep -v fe80 | grep -v ff00; done;
         cat /proc/sys/net/ipv4/conf/all/src_valid_mark",
    );
    text.replace("linkdown ", "")
}

fn set(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

fn roams(plan: &Plan) {
    let (client, server) = plan.build();
    client.strict_rp_filter();
    server.strict_rp_filter();
    let (here, there) = (tun(&client), tun(&server));
    let (mut near, mut far) = client.connect(&server, plan.server_socket());
    exchange(&mut near, &mut far);

    plan.roam(&client);
    let (client_dir, server_dir) = (RunDir::new(), RunDir::new());
    let (before, server_before) = (everything(&client), everything(&server));
    let carrier = |host: &Host| Carrier { tun: host.index("wbt"), mtu: MTU, mark: MARK };
    let (client_carrier, server_carrier) = (carrier(&client), carrier(&server));
    let mut kept = client.on(|| KeptAddresses::open(&client_dir.0).unwrap());
    let arrivals = BTreeSet::from([client.index("e1")]);
    let mut wanted = Kept { addresses: set(&[plan.client]), arrivals, ..Kept::default() };
    assert!(client.on(|| kept.apply(&client_carrier, &wanted)).unwrap());
    assert!(!client.on(|| kept.apply(&client_carrier, &wanted)).unwrap(), "applied twice:\n{}", everything(&client));
    assert_eq!(client.on(|| kept.kept()).unwrap(), wanted.addresses);

    // Which way packets go.
    let (old, far_address): (IpAddr, IpAddr) = (plan.client.parse().unwrap(), plan.server.parse().unwrap());
    let mut routes = client.on(|| RouteSocket::open().unwrap());
    let out = routes.route_to(far_address, Some(old), None).unwrap();
    assert_eq!((out.interface, out.mtu), (client_carrier.tun, Some(MTU)));
    // A path that is smaller is so for its own destination alone, and grows back.
    let elsewhere: IpAddr = if plan.ipv4 { "192.0.2.99" } else { "2001:db8::99" }.parse().unwrap();
    wanted.smaller.insert(elsewhere, 1280);
    assert!(client.on(|| kept.apply(&client_carrier, &wanted)).unwrap());
    let mut mtu_to = |to| routes.route_to(to, Some(old), None).unwrap().mtu;
    assert_eq!((mtu_to(elsewhere), mtu_to(far_address)), (Some(1280), Some(MTU)));
    wanted.smaller.clear();
    assert!(client.on(|| kept.apply(&client_carrier, &wanted)).unwrap());
    assert_eq!(mtu_to(elsewhere), Some(MTU));
    // To one of which all packets are rewritten there is no detour, and the MTU is the same.
    let next_hop: IpAddr = plan.router_new.parse().unwrap();
    wanted.straight.insert(far_address, Straight { interface: client.index("e1"), next_hop });
    assert!(client.on(|| kept.apply(&client_carrier, &wanted)).unwrap());
    assert!(!client.on(|| kept.apply(&client_carrier, &wanted)).unwrap(), "applied twice:\n{}", everything(&client));
    let out = routes.route_to(far_address, Some(old), None).unwrap();
    assert_eq!((out.interface, out.gateway, out.mtu), (client.index("e1"), Some(next_hop), Some(MTU)));
    assert_eq!(routes.route_to(elsewhere, Some(old), None).unwrap().interface, client_carrier.tun);
    wanted.straight.clear();
    assert!(client.on(|| kept.apply(&client_carrier, &wanted)).unwrap());
    assert_eq!(routes.route_to(far_address, Some(old), None).unwrap().interface, client_carrier.tun);
    assert_eq!(routes.route_to(far_address, None, None).unwrap().interface, client.index("e1"));
    let home = routes.route_to(old, None, Some(MARK.value)).unwrap();
    assert_eq!((home.kind, home.interface), (RouteKind::Local, LOOPBACK));
    assert_eq!(routes.route_to(old, None, None).unwrap().kind, RouteKind::Unicast);

    // The stationary side needs no old address, but the marks.
    server.sh(&format!("{} route add {}/{} dev wbt", plan.ip, plan.client, plan.host));
    let mut marks = server.on(|| KeptAddresses::open(&server_dir.0).unwrap());
    let arrivals = Kept { arrivals: BTreeSet::from([server.index("p1")]), ..Kept::default() };
    server.on(|| marks.apply(&server_carrier, &arrivals)).unwrap();

    let relay = Relay::new(&here, &there);
    // Unmarked packets are not delivered.
    near.write_all(b"x").unwrap();
    wait("the segment and its copies are carried", || relay.carried.load(Ordering::Relaxed) >= 4);
    near.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert!(near.read(&mut [0]).is_err());
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    far.read_exact(&mut [0]).unwrap();

    mark_from(&client, "wbt");
    mark_from(&server, "wbt");
    exchange(&mut near, &mut far);

    // Rewritten packets arrive on the new interface, marked: not where the route back to their source leads.
    server.sh(&format!("{} route replace {}/{} via {} dev p1", plan.ip, plan.client, plan.host, plan.client_new));
    mark_from(&client, "e1");
    exchange(&mut near, &mut far);
    // A new dst for the socket, so that the reverse path is really looked up again.
    wanted.arrivals.clear();
    assert!(client.on(|| kept.apply(&client_carrier, &wanted)).unwrap());
    if plan.ipv4 {
        far.write_all(b"x").unwrap();
        near.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(near.read(&mut [0]).is_err(), "strict rp_filter had nothing against it");
        near.set_read_timeout(Some(PATIENCE)).unwrap();
        wanted.arrivals.insert(client.index("e1"));
        client.on(|| kept.apply(&client_carrier, &wanted)).unwrap();
        near.read_exact(&mut [0]).unwrap();
    }
    drop(relay);

    // The old address has a new owner, with whom this host talks from its new one.
    let nodad = if plan.ipv4 { "" } else { "nodad" };
    client.sh("nft delete table inet marks");
    server.sh(&format!(
        "{} route del {old}/{host}; ip addr add {old}/{host} dev lo {nodad}",
        plan.ip,
        old = plan.client,
        host = plan.host
    ));
    let owner = server.on(|| TcpListener::bind((plan.client, 0)).unwrap());
    let stream = client.on(|| TcpStream::connect_timeout(&owner.local_addr().unwrap(), PATIENCE)).unwrap();
    assert_eq!(stream.local_addr().unwrap().ip(), plan.client_new.parse::<IpAddr>().unwrap());
    drop(stream);

    // Nobody asks for or answers for the old address on the link: the server's neighbour entry never resolves.
    server.sh(&format!(
        "ip addr del {old}/{host} dev lo; {ip} route add {old}/{host} dev p1",
        ip = plan.ip,
        old = plan.client,
        host = plan.host
    ));
    let probe = server.on(|| std::net::UdpSocket::bind((plan.router_new, 0)).unwrap());
    probe.send_to(b"x", (plan.client, 7)).unwrap();
    let mut routes = server.on(|| RouteSocket::open().unwrap());
    wait("the neighbour did not answer", || {
        let all = routes.neighbours().unwrap();
        all.iter().any(|n| n.address == old && n.state == whimbrel_kernel::route::NeighbourState::Failed)
    });

    // A new process finds what this one leaves, and everything goes back.
    drop(kept);
    let mut next = client.on(|| KeptAddresses::open(&client_dir.0).unwrap());
    assert_eq!(client.on(|| next.kept()).unwrap(), wanted.addresses);
    client.on(|| next.release()).unwrap();
    assert_eq!(everything(&client), before);
    assert!(std::fs::read_dir(&client_dir.0).unwrap().next().is_none());
    server.sh(&format!("{} route del {}/{}", plan.ip, plan.client, plan.host));
    server.on(|| marks.apply(&server_carrier, &Kept::default())).unwrap();
    assert_eq!(everything(&server), server_before);
}

#[test]
#[ignore = "needs root"]
fn an_old_ipv4_address_is_kept() {
    roams(&PLANS[0]);
}

#[test]
#[ignore = "needs root"]
fn an_old_ipv6_address_is_kept() {
    roams(&PLANS[1]);
}

/// The address comes back on an interface while it is still kept.
#[test]
#[ignore = "needs root"]
fn the_way_back_to_the_first_address() {
    for plan in &PLANS {
        let (client, server) = plan.build();
        let _tun = tun(&client);
        let (mut near, mut far) = client.connect(&server, plan.server_socket());
        plan.roam(&client);
        let (dir, carrier) = (RunDir::new(), Carrier { tun: client.index("wbt"), mtu: MTU, mark: MARK });
        let mut kept = client.on(|| KeptAddresses::open(&dir.0).unwrap());
        let wanted = Kept { addresses: set(&[plan.client]), ..Kept::default() };
        client.on(|| kept.apply(&carrier, &wanted)).unwrap();
        let nodad = if plan.ipv4 { "" } else { "nodad" };
        client.sh(&format!(
            "ip link set e1 down; ip link set e0 up; ip addr add {}/{} dev e0 {nodad}; {} route replace default via {}",
            plan.client, plan.subnet, plan.ip, plan.router
        ));
        client.on(|| kept.apply(&carrier, &Kept::default())).unwrap();
        exchange(&mut near, &mut far);
        let mut routes = client.on(|| RouteSocket::open().unwrap());
        assert_eq!(routes.route_to(plan.client.parse().unwrap(), None, None).unwrap().kind, RouteKind::Local);
    }
}

/// An address that is left, and still there, goes by the routes that are there, and else to the TUN device.
#[test]
#[ignore = "needs root"]
fn what_no_route_leads_to_from_an_address_that_is_left_is_carried() {
    for plan in &PLANS {
        let (client, server) = plan.build();
        let _tun = tun(&client);
        let (mut near, mut far) = client.connect(&server, plan.server_socket());
        let (dir, carrier) = (RunDir::new(), Carrier { tun: client.index("wbt"), mtu: MTU, mark: MARK });
        let mut kept = client.on(|| KeptAddresses::open(&dir.0).unwrap());
        let before = everything(&client);
        let arrivals = BTreeSet::from([client.index("e0")]);
        let leaving = Kept { leaving: set(&[plan.client]), arrivals, ..Kept::default() };
        assert!(client.on(|| kept.apply(&carrier, &leaving)).unwrap());
        assert!(!client.on(|| kept.apply(&carrier, &leaving)).unwrap(), "applied twice:\n{}", everything(&client));
        assert!(client.on(|| kept.kept()).unwrap().is_empty(), "it is this host's own");
        exchange(&mut near, &mut far);
        let mut routes = client.on(|| RouteSocket::open().unwrap());
        let [own, far_address, router] = [plan.client, plan.server, plan.router].map(|at| at.parse().unwrap());
        let mut way = |to, from, mark| routes.route_to(to, from, mark).map(|route| route.interface);
        assert_eq!(way(far_address, Some(own), None).unwrap(), client.index("e0"));
        client.sh(&format!("{} route del default", plan.ip));
        assert_eq!(way(far_address, Some(own), None).unwrap(), client.index("wbt"));
        assert_eq!(way(router, Some(own), None).unwrap(), client.index("e0"), "a neighbour");
        // What has no address yet hears at once that there is no way, and so does who asks as if ours were not there.
        for (from, mark) in [(None, None), (Some(own), Some(MARK.mask & !MARK.value))] {
            let answer = way(far_address, from, mark);
            assert!(matches!(answer, Err(whimbrel_kernel::Error::Unreachable { .. })), "{from:?} {mark:?} {answer:?}");
        }
        client.sh(&format!("{} route add default via {}", plan.ip, plan.router));
        client.on(|| kept.release()).unwrap();
        assert_eq!(everything(&client), before);
    }
}

/// From the moment in which an address that is left goes to that in which this is noticed, nothing that is sent from it
/// is refused; it goes by the routes that are left.
#[test]
#[ignore = "needs root"]
fn an_address_that_goes_refuses_nothing() {
    for plan in &PLANS {
        let (client, server) = plan.build();
        let _tun = tun(&client);
        let (dir, carrier) = (RunDir::new(), Carrier { tun: client.index("wbt"), mtu: MTU, mark: MARK });
        let mut kept = client.on(|| KeptAddresses::open(&dir.0).unwrap());
        let (own, far): (IpAddr, IpAddr) = (plan.client.parse().unwrap(), plan.server.parse().unwrap());
        let arrivals = BTreeSet::from([client.index("e0")]);
        let (leaving, left) = (set(&[plan.client]), set(&[plan.client]));
        let leaving = Kept { leaving, left, arrivals: arrivals.clone(), ..Kept::default() };
        client.on(|| kept.apply(&carrier, &leaving)).unwrap();
        let _receiver = server.on(|| UdpSocket::bind((far, 7001)).unwrap());
        let [connected, unconnected] = [0, 1].map(|_| client.on(|| UdpSocket::bind((own, 0)).unwrap()));
        connected.connect((far, 7001)).unwrap();
        let send = || connected.send(b"x").and_then(|_| unconnected.send_to(b"x", (far, 7001)));
        send().unwrap();

        client.sh(&format!("{} addr flush dev e0 scope global; {} route flush root default", plan.ip, plan.ip));
        for _ in 0..3 {
            send().unwrap_or_else(|error| panic!("from {own}, which is gone: {error}\n{}", everything(&client)));
        }
        let gone = Kept { addresses: set(&[plan.client]), arrivals, ..Kept::default() };
        assert!(client.on(|| kept.apply(&carrier, &gone)).unwrap());
        send().unwrap();
        let there = client.sh("ip route show table local");
        assert!(!there.contains(plan.client), "its new owner could not be reached:\n{there}");
        assert!(!client.on(|| kept.apply(&carrier, &gone)).unwrap(), "applied twice:\n{}", everything(&client));
        client.on(|| kept.release()).unwrap();
    }
}

/// What is lent to other hosts is on the loopback device too, and goes with the daemon alone.
#[test]
#[ignore = "needs root"]
fn addresses_that_are_lent_stay() {
    let (client, _server) = PLANS[0].build();
    let _tun = tun(&client);
    let (dir, carrier) = (RunDir::new(), Carrier { tun: client.index("wbt"), mtu: MTU, mark: MARK });
    let mut kept = client.on(|| KeptAddresses::open(&dir.0).unwrap());
    let mut routes = client.on(|| RouteSocket::open().unwrap());
    let lent: [IpAddr; 2] = ["10.5.0.1".parse().unwrap(), "fd05::1".parse().unwrap()];
    for address in lent {
        let new = NewAddress { interface: LOOPBACK, address, scope: AddressScope::Global, deprecated: true };
        routes.set_address(&new).unwrap();
    }
    let is_local = |routes: &mut RouteSocket, address| {
        routes.route_to(address, None, None).is_ok_and(|route| route.kind == RouteKind::Local)
    };
    let wanted = Kept { addresses: set(&["10.3.0.1"]), ..Kept::default() };
    for kept_now in [&wanted, &Kept::default()] {
        client.on(|| kept.apply(&carrier, kept_now)).unwrap();
        // The kernel adds the route of an IPv6 address some time after the address (addrconf_dad_work).
        wait("what is lent is local", || lent.iter().all(|address| is_local(&mut routes, *address)));
    }
    client.on(|| kept.release()).unwrap();
    assert!(!lent.iter().any(|address| is_local(&mut routes, *address)));
}

/// A step in the middle fails: all is as it was.
#[test]
#[ignore = "needs root"]
fn a_failure_half_way_is_undone() {
    let (client, _server) = PLANS[0].build();
    let tun_file = tun(&client);
    let dir = RunDir::new();
    let carrier = Carrier { tun: client.index("wbt"), mtu: MTU, mark: MARK };
    let mut kept = client.on(|| KeptAddresses::open(&dir.0).unwrap());
    let before = everything(&client);
    // IPv4 succeeds, and then IPv6 fails.
    client.sh("echo 1 > /proc/sys/net/ipv6/conf/wbt/disable_ipv6");
    let wanted = Kept { addresses: set(&["10.3.0.1", "fd03::1"]), ..Kept::default() };
    let error = client.on(|| kept.apply(&carrier, &wanted)).unwrap_err();
    client.sh("echo 0 > /proc/sys/net/ipv6/conf/wbt/disable_ipv6");
    assert_eq!(error.effect(), whimbrel_kernel::Effect::None, "{error}");
    assert_eq!(everything(&client), before);

    // The device goes: what is sent from the old address is refused, not sent on the ordinary way.
    client.on(|| kept.apply(&carrier, &wanted)).unwrap();
    // As if killed between adding the address and deleting its local route, and with a rule too many.
    client.sh(
        "ip route add local 10.3.0.1 dev lo table local; ip rule add from 10.4.0.1 iif lo lookup 20311 protocol 87",
    );
    let mut routes = client.on(|| RouteSocket::open().unwrap());
    let old = "10.3.0.1".parse().unwrap();
    assert_eq!(routes.route_to(old, None, None).unwrap().kind, RouteKind::Local);
    assert!(client.on(|| kept.apply(&carrier, &wanted)).unwrap());
    assert_eq!(routes.route_to(old, None, None).unwrap().kind, RouteKind::Unicast);
    assert_eq!(client.on(|| kept.kept()).unwrap(), wanted.addresses);
    drop(tun_file);
    for (to, from) in [("10.9.0.1", "10.3.0.1"), ("fd09::1", "fd03::1")] {
        // A child that another test is about to start may have the descriptor for a moment longer.
        wait("there is no way any more", || {
            let answer = routes.route_to(to.parse().unwrap(), Some(from.parse().unwrap()), None);
            matches!(answer, Err(whimbrel_kernel::Error::Unreachable { .. }))
        });
    }
    client.on(|| kept.release()).unwrap();
    assert_eq!(everything(&client), before);
}
