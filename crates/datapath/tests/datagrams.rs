//! What the data plane tells of the remotes that sockets of UDP send to.

mod support;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use support::is_root;
use support::pair::{Pair, all_events, binding, wait};
use whimbrel_datapath::{Carrier, Datapath, Delivery, Event, FlowEntry, Role};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport};

const BINDING: BindingId = BindingId::first(PeerId(3));
/// How many remotes of one socket are told of in a period, and how many are noted (`bpf/lib/unconnected.h`).
const OF_SOCKET: u32 = 32;
const NOTED: usize = 8192;
const PERIOD: Duration = Duration::from_millis(250);

struct Fixture {
    datapath: Datapath,
    interface: u32,
    pair: Pair,
}

impl Fixture {
    fn new(role: Role) -> Self {
        let pair = Pair::new();
        pair.near.enter();
        let mut datapath = Datapath::open(&pair.bpffs.pins("near")).expect("open");
        // SAFETY: a terminated string.
        let interface = unsafe { libc::if_nametoindex(c"v".as_ptr()) };
        datapath.set_busy(false, false, false).expect("busy");
        datapath.attach(interface, role).expect("attach");
        datapath.follow_datagrams(true).expect("follow");
        Self { datapath, interface, pair }
    }

    #[track_caller]
    fn tells(&mut self, expected: &[Event]) {
        assert_eq!(all_events(&mut self.datapath), expected);
    }

    /// Whether events are to be read at once.
    fn is_urgent(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.datapath.event_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure that lives through the call.
        (unsafe { libc::poll(&raw mut poll, 1, 0) }) == 1
    }
}

fn cookie(socket: &UdpSocket) -> u64 {
    let mut cookie = 0u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: an open socket, and room for the cookie and its length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    cookie
}

/// What is told of a socket that sends to a remote from this host's first address of the family.
fn told(socket: &UdpSocket, remote: SocketAddr, connected: bool) -> Event {
    let local: IpAddr = if remote.is_ipv4() { "10.0.0.1" } else { "fd00::1" }.parse().expect("an address");
    let local = SocketAddr::new(local, socket.local_addr().expect("address").port());
    let flow = FlowTuple { transport: Transport::Udp, local, remote };
    Event::DatagramSent { flow, connected, user: 0, cookie: cookie(socket) }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an endpoint")
}

fn send(socket: &UdpSocket, to: SocketAddr) {
    // An error of an earlier one is told by the next call.
    if socket.send_to(b"x", to).is_err() {
        socket.send_to(b"x", to).expect("send");
    }
}

#[test]
fn the_first_datagram_to_a_remote_is_told() {
    if !is_root() {
        return;
    }
    for role in [Role::Datagrams, Role::Wire] {
        let mut fixture = Fixture::new(role);
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
        let (v4, v6) = (address("10.0.0.2:9"), address("[fd00::2]:9"));
        assert!(!fixture.is_urgent());
        send(&socket, v4);
        assert!(fixture.is_urgent());
        fixture.tells(&[told(&socket, v4, false)]);
        send(&socket, v4);
        fixture.tells(&[]);
        // To another port, by another socket, by one of both families, and by one that is bound to the address.
        send(&socket, address("10.0.0.2:10"));
        fixture.tells(&[told(&socket, address("10.0.0.2:10"), false)]);
        let both = UdpSocket::bind("[::]:0").expect("bind");
        send(&both, v6);
        send(&both, address("[::ffff:10.0.0.2]:9"));
        fixture.tells(&[told(&both, v6, false), told(&both, v4, false)]);
        let bound = UdpSocket::bind("10.0.0.1:0").expect("bind");
        send(&bound, v4);
        fixture.tells(&[told(&bound, v4, false)]);
        let connected = UdpSocket::bind("[::]:0").expect("bind");
        connected.connect(v6).expect("connect");
        fixture.tells(&[]);
        connected.send(b"x").expect("send");
        fixture.tells(&[told(&connected, v6, true)]);
        // In fragments, and as many at once as the device takes.
        let large = UdpSocket::bind("0.0.0.0:0").expect("bind");
        large.send_to(&[0; 9000], v4).expect("send");
        fixture.tells(&[told(&large, v4, false)]);
        let all: HashSet<_> = fixture.datapath.datagrams().expect("datagrams").iter().map(|sent| sent.flow).collect();
        assert_eq!(all.len(), 7);

        // While others translate as well.
        fixture.datapath.set_busy(true, true, true).expect("busy");
        let another = UdpSocket::bind("0.0.0.0:0").expect("bind");
        send(&another, v4);
        fixture.tells(&[told(&another, v4, false)]);
        fixture.datapath.follow_datagrams(false).expect("follow no more");
        send(&another, address("10.0.0.2:11"));
        fixture.tells(&[]);
    }
}

#[test]
fn what_reaches_no_other_host_is_not_told() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::new(Role::Datagrams);
    fixture.pair.near.run("ip route add default dev v");
    for (local, remotes) in [
        ("0.0.0.0:0", &["127.0.0.1:9", "224.0.0.251:5353", "255.255.255.255:67"][..]),
        ("[::]:0", &["[::1]:9", "[ff02::fb%v]:5353", "[fe80::ff:fe00:2%v]:9"][..]),
    ] {
        let socket = UdpSocket::bind(local).expect("bind");
        socket.set_broadcast(true).expect("SO_BROADCAST");
        for remote in remotes {
            let remote = address(&remote.replace("%v", &format!("%{}", fixture.interface)));
            socket.send_to(b"x", remote).unwrap_or_else(|error| panic!("{remote}: {error}"));
        }
    }
    fixture.tells(&[]);
    assert_eq!(fixture.datapath.datagrams().expect("datagrams"), []);
}

#[test]
fn what_may_answer_somebody_is_not_told() {
    // P-225
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::new(Role::Datagrams);
    let server = UdpSocket::bind("0.0.0.0:5353").expect("bind");
    let (client, resolver, alike) = (address("10.0.0.2:40000"), address("10.0.0.2:1023"), address("10.0.0.2:5353"));
    send(&server, address("10.0.0.2:40001"));
    fixture.tells(&[told(&server, address("10.0.0.2:40001"), false)]);
    fixture.datapath.set_drawn_ports(&(32_768..=60_999)).expect("settings");
    send(&server, client);
    fixture.tells(&[]);
    assert!(fixture.datapath.datagrams().expect("datagrams").iter().all(|sent| sent.flow.remote != client));
    for remote in [resolver, alike] {
        send(&server, remote);
        fixture.tells(&[told(&server, remote, false)]);
    }
    for drawn in [32_768, 60_999] {
        let asks = UdpSocket::bind(("0.0.0.0", drawn)).expect("bind");
        send(&asks, client);
        fixture.tells(&[told(&asks, client, false)]);
    }
    let connected = UdpSocket::bind("0.0.0.0:5354").expect("bind");
    connected.connect(client).expect("connect");
    connected.send(b"x").expect("send");
    fixture.tells(&[told(&connected, client, true)]);
}

#[test]
fn a_socket_with_very_many_remotes_costs_no_more() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::new(Role::Datagrams);
    let busy = UdpSocket::bind("0.0.0.0:0").expect("bind");
    let mut of_busy = 0;
    let start = Instant::now();
    for remote in 1..=50_000u16 {
        send(&busy, SocketAddr::new([10, 0, 0, 2].into(), remote));
        if remote % 1000 == 0 {
            of_busy += all_events(&mut fixture.datapath).len() as u32;
        }
    }
    of_busy += all_events(&mut fixture.datapath).len() as u32;
    let periods = (start.elapsed().as_millis() / PERIOD.as_millis()) as u32 + 2;
    assert!((OF_SOCKET..=OF_SOCKET * periods).contains(&of_busy), "{of_busy} in {periods} periods");
    assert_eq!(fixture.datapath.datagrams().expect("datagrams").len(), of_busy as usize);
    // Other sockets are heard meanwhile.
    let other = UdpSocket::bind("0.0.0.0:0").expect("bind");
    assert_ne!(cookie(&other) % 256, cookie(&busy) % 256);
    send(&other, address("10.0.0.2:9"));
    fixture.tells(&[told(&other, address("10.0.0.2:9"), false)]);
    // What was not told before is told when it is sent to again.
    let start = Instant::now();
    let mut again = 0;
    while again == 0 {
        for remote in 40_001..=40_100u16 {
            send(&busy, SocketAddr::new([10, 0, 0, 2].into(), remote));
        }
        again = all_events(&mut fixture.datapath).len();
        assert!(start.elapsed() < Duration::from_secs(20), "nothing is told any more");
        std::thread::sleep(PERIOD);
    }
}

#[test]
fn no_more_is_noted_than_there_is_room_for() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::new(Role::Datagrams);
    let remote = address("10.0.0.2:9");
    let (mut sockets, mut told) = (Vec::new(), 0);
    // A few at a time of each of very many sockets.
    let start = Instant::now();
    while told < NOTED + NOTED / 8 {
        sockets.clear();
        sockets.extend((0..200).map(|_| UdpSocket::bind("0.0.0.0:0").expect("bind")));
        for socket in &sockets {
            for port in 0..4 {
                send(socket, SocketAddr::new(remote.ip(), remote.port() + port));
            }
        }
        told += all_events(&mut fixture.datapath).len();
        assert!(start.elapsed() < Duration::from_secs(60), "{told} were told");
        std::thread::sleep(PERIOD);
    }
    let noted = fixture.datapath.datagrams().expect("datagrams").len();
    assert!((NOTED / 2..=NOTED).contains(&noted), "{noted} of {told}");
}

#[test]
fn of_a_known_flow_the_time_is_noted() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::new(Role::Datagrams);
    fixture.pair.near.run("ip addr add 10.0.0.3/24 dev v");
    let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
    let port = socket.local_addr().expect("address").port();
    let flow = |local: &str, remote: u16| FlowTuple {
        transport: Transport::Udp,
        local: SocketAddr::new(local.parse().expect("an address"), port),
        remote: SocketAddr::new([10, 0, 0, 2].into(), remote),
    };
    // One that is where it was, and one that began at this host's other address, which it has left.
    let (home, left) = (flow("10.0.0.1", 9), flow("10.0.0.3", 10));
    for (flow, home_local_place) in [(home, 1), (left, 0)] {
        let entry = FlowEntry {
            binding: BINDING,
            home_local_place,
            home_peer_place: 0,
            wire_local_port: port ^ 1,
            wire_remote_port: flow.remote.port(),
            held: false,
            real_view: false,
            gives_way: false,
            tunnelled: false,
            hidden: false,
            beyond: false,
            late: false,
            unconnected: true,
            delivery: Delivery::Stack,
        };
        fixture.datapath.insert_flows(&[(flow, entry)]).expect("insert");
    }
    fixture.datapath.set_binding(BINDING, &binding(1, Carrier::Rewrite, false)).expect("bind");
    let used = |fixture: &Fixture, flow: &FlowTuple| fixture.datapath.last_used(flow).expect("look").expect("known");
    for flow in [home, left] {
        assert_eq!(used(&fixture, &flow), 0);
        send(&socket, flow.remote);
        let first = used(&fixture, &flow);
        assert_ne!(first, 0);
        wait(|| {
            send(&socket, flow.remote);
            used(&fixture, &flow) != first
        });
    }
    fixture.tells(&[]);
    assert_eq!(fixture.datapath.datagrams().expect("datagrams"), []);
    // Of one that is not known it is as well.
    let other = address("10.0.0.2:11");
    send(&socket, other);
    fixture.tells(&[told(&socket, other, false)]);
    let sent = |fixture: &Fixture| fixture.datapath.datagrams().expect("datagrams")[0].at;
    let first = sent(&fixture);
    wait(|| {
        send(&socket, other);
        sent(&fixture) != first
    });
    fixture.tells(&[]);
}
