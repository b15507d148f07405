//! TCP connections that go on after the host under them has changed its address, with the maps written by hand.
//!
//! ```text
//!            n1 ┌────────┐
//!  ┌────────────┤        │      ┌────────┐
//!  │ laptop     │ router ├──────┤ server │
//!  └────────────┤        │  n9  └────────┘
//!            n2 └────────┘
//! ```

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use support::{Bpffs, Namespace, counter, index, is_root, tun, veth};
use whimbrel_datapath::{Binding, Carrier, Datapath, Delivery, FlowEntry, LocatorPair, Role};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport};

const BINDING: BindingId = BindingId::first(PeerId(7));
const PORT: u16 = 5000;
const BLOCK: usize = 1 << 20;

struct Net {
    laptop: Namespace,
    router: Namespace,
    server: Namespace,
}

impl Net {
    fn new() -> Self {
        let net = Self { laptop: Namespace::new(), router: Namespace::new(), server: Namespace::new() };
        net.router.sysctl("net.ipv4.ip_forward", "1");
        net.router.sysctl("net.ipv6.conf.all.forwarding", "1");
        for (n, host, name) in [(1, &net.laptop, "wifi"), (2, &net.laptop, "lte"), (9, &net.server, "eth")] {
            veth(host, name, &net.router, &format!("n{n}"));
            net.router.run(&format!("ip addr add 10.{n}.0.1/24 dev n{n}"));
            net.router.run(&format!("ip addr add fd00:{n}::1/64 dev n{n} nodad"));
        }
        net.server.run("ip addr add 10.9.0.2/24 dev eth");
        net.server.run("ip addr add fd00:9::2/64 dev eth nodad");
        net.server.run("ip route add default via 10.9.0.1");
        net.server.run("ip route add default via fd00:9::1");
        net.join("wifi", 1);
        net
    }

    /// The laptop gets address and routes of network `n`.
    fn join(&self, device: &str, n: u8) {
        self.laptop.wait_link_local(device);
        self.router.wait_link_local(&format!("n{n}"));
        self.laptop.run(&format!("ip addr add 10.{n}.0.2/24 dev {device}"));
        self.laptop.run(&format!("ip addr add fd00:{n}::2/64 dev {device} nodad"));
        self.laptop.run(&format!("ip route replace default via 10.{n}.0.1"));
        self.laptop.run(&format!("ip route replace default via fd00:{n}::1"));
    }

    /// It loses them and keeps the address on the loopback device.
    fn leave(&self, device: &str, n: u8) {
        self.laptop.run(&format!("ip link set {device} down"));
        self.laptop.run(&format!("ip addr flush dev {device}"));
        self.laptop.run(&format!("ip addr add 10.{n}.0.2/32 dev lo"));
        self.laptop.run(&format!("ip addr add fd00:{n}::2/128 dev lo nodad preferred_lft 0"));
    }
}

/// Takes blocks and gives them back, until the other end closes.
fn serve(server: &Namespace, address: IpAddr) -> JoinHandle<()> {
    server.enter();
    let listener = TcpListener::bind((address, PORT)).expect("listen");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        let mut block = vec![0; BLOCK];
        while stream.read_exact(&mut block).is_ok() {
            stream.write_all(&block).expect("write");
        }
    })
}

fn connect(laptop: &Namespace, address: IpAddr) -> TcpStream {
    laptop.enter();
    let stream = TcpStream::connect((address, PORT)).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("SO_RCVTIMEO");
    stream.set_write_timeout(Some(Duration::from_secs(20))).expect("SO_SNDTIMEO");
    stream
}

/// A block there and back, different each time.
fn exchange(stream: &mut TcpStream, seed: u32) {
    let sent: Vec<u8> =
        (0..BLOCK as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect();
    let mut writer = stream.try_clone().expect("dup");
    let copy = sent.clone();
    let writing = thread::spawn(move || writer.write_all(&copy).expect("write"));
    let mut received = vec![0; BLOCK];
    stream.read_exact(&mut received).expect("the block comes back");
    writing.join().expect("the writer ends");
    assert!(received == sent, "the block came back changed");
}

struct Host {
    datapath: Datapath,
    flow: FlowTuple,
}

impl Host {
    /// The flow as introduced at places 1 and 1, with wire ports of its own.
    fn new(datapath: Datapath, local: SocketAddr, remote: SocketAddr, wire: (u16, u16)) -> Self {
        let flow = FlowTuple { transport: Transport::Tcp, local, remote };
        let entry = FlowEntry {
            binding: BINDING,
            home_local_place: 1,
            home_peer_place: 1,
            wire_local_port: wire.0,
            wire_remote_port: wire.1,
            held: false,
            real_view: false,
            gives_way: false,
            tunnelled: false,
            hidden: false,
            beyond: false,
            unconnected: false,
            late: false,
            delivery: Delivery::Stack,
        };
        datapath.insert_flows(&[(flow, entry)]).expect("insert");
        Self { datapath, flow }
    }

    fn bind(&self, places: (u32, u32), carrier: Carrier, local: IpAddr, peer: IpAddr, interface: u32) {
        let binding = Binding {
            local_place: places.0,
            peer_place: places.1,
            carrier,
            local,
            peer,
            interface,
            arrival: interface,
            mtu: 0,
            allowance: None,
            parked: false,
            names_kept: false,
            accepted: vec![
                LocatorPair { local, peer },
                LocatorPair { local: self.flow.local.ip(), peer: self.flow.remote.ip() },
            ],
        };
        self.datapath.set_binding(BINDING, &binding).expect("set the binding");
    }
}

/// A move to the second network and on.
fn roams(old: &str, new: &str, server: &str, tcx: bool, wire_port: impl Fn(u16) -> u16) {
    if !is_root() {
        return;
    }
    let [old, new, peer] = [old, new, server].map(|address| address.parse::<IpAddr>().expect("an address"));
    let bpffs = Bpffs::new();
    let net = Net::new();
    let serving = serve(&net.server, peer);
    let mut stream = connect(&net.laptop, peer);
    let (local, remote) = (stream.local_addr().expect("local"), stream.peer_addr().expect("remote"));
    let wire = wire_port(local.port());

    let mut datapath = Datapath::open(&bpffs.pins("laptop")).expect("open");
    datapath.set_tunnel(0, 0x57, 0xff).expect("settings");
    if !tcx {
        datapath.avoid_tcx();
    }
    for device in ["wifi", "lte"] {
        datapath.attach(index(device), Role::Wire).expect("attach");
    }
    let lte = index("lte");
    let laptop = Host::new(datapath, local, remote, (wire, PORT));
    net.server.enter();
    let mut datapath = Datapath::open(&bpffs.pins("server")).expect("open");
    if !tcx {
        datapath.avoid_tcx();
    }
    datapath.attach(index("eth"), Role::Wire).expect("attach");
    let eth = index("eth");
    let far = Host::new(datapath, remote, local, (PORT, wire));

    laptop.bind((1, 1), Carrier::Native, old, peer, 0);
    far.bind((1, 1), Carrier::Native, peer, old, 0);
    exchange(&mut stream, 1);
    assert_eq!(counter(&laptop.datapath, "rewritten_out"), 0);
    assert!(counter(&laptop.datapath, "native_out") > 0);

    // On hold nothing goes out, and TCP takes it for sent.
    laptop.bind((2, 1), Carrier::Hold, old, peer, 0);
    let mut writer = stream.try_clone().expect("dup");
    writer.write_all(&[0; 1]).expect("write");
    while counter(&laptop.datapath, "held") == 0 {
        thread::yield_now();
    }

    net.leave("wifi", 1);
    net.join("lte", 2);
    far.bind((1, 2), Carrier::Rewrite, peer, new, eth);
    laptop.bind((2, 1), Carrier::Rewrite, new, peer, lte);
    // The byte that was held, and the rest of its block.
    writer.write_all(&vec![0; BLOCK - 1]).expect("write");
    stream.read_exact(&mut vec![0; BLOCK]).expect("the held block comes back");
    exchange(&mut stream, 2);
    for host in [&laptop, &far] {
        assert!(counter(&host.datapath, "rewritten_out") > 0);
        assert!(counter(&host.datapath, "rewritten_in") > 0);
    }

    // Another flow whose own tuple is this one's wire tuple: nothing is translated twice.
    let other = FlowTuple { local: SocketAddr::new(new, wire), ..laptop.flow };
    let entry = FlowEntry {
        binding: BINDING,
        home_local_place: 1,
        home_peer_place: 1,
        wire_local_port: 9,
        wire_remote_port: PORT,
        held: false,
        real_view: false,
        gives_way: false,
        tunnelled: false,
        hidden: false,
        beyond: false,
        unconnected: false,
        late: false,
        delivery: Delivery::Stack,
    };
    laptop.datapath.insert_flows(&[(other, entry)]).expect("insert");
    exchange(&mut stream, 7);
    laptop.datapath.remove_flows(&[other]).expect("remove");

    // Without being told the interface.
    far.bind((1, 2), Carrier::Rewrite, peer, new, 0);
    laptop.bind((2, 1), Carrier::Rewrite, new, peer, 0);
    exchange(&mut stream, 3);

    // Every instance can be left and taken up again, and packets do not notice.
    let Host { datapath, flow } = laptop;
    drop(datapath);
    exchange(&mut stream, 4);
    net.laptop.enter();
    let datapath = Datapath::open(&bpffs.pins("laptop")).expect("open again");
    assert_eq!(datapath.attached().len(), 2);
    assert_eq!(datapath.flows().expect("flows").len(), 1);
    assert_eq!(datapath.bindings().expect("bindings")[0].1.accepted.len(), 2);
    let laptop = Host { datapath, flow };
    exchange(&mut stream, 5);

    // Home again: same names, still a moved flow.
    net.leave("lte", 2);
    net.laptop.run("ip addr flush dev lo scope global");
    net.laptop.run("ip link set wifi up");
    net.join("wifi", 1);
    far.bind((1, 3), Carrier::Rewrite, peer, old, eth);
    laptop.bind((3, 1), Carrier::Rewrite, old, peer, index("wifi"));
    exchange(&mut stream, 6);

    drop((stream, writer));
    serving.join().expect("the server ends");
    laptop.datapath.unload().expect("unload");
    net.server.enter();
    far.datapath.unload().expect("unload");
}

#[test]
fn ipv4_connection_roams() {
    roams("10.1.0.2", "10.2.0.2", "10.9.0.2", true, |port| port);
}

#[test]
fn ipv6_connection_roams() {
    roams("fd00:1::2", "fd00:2::2", "fd00:9::2", true, |port| port);
}

#[test]
fn connection_roams_under_another_wire_port() {
    roams("10.1.0.2", "10.2.0.2", "10.9.0.2", true, |port| port ^ 1);
    roams("fd00:1::2", "fd00:2::2", "fd00:9::2", true, |port| port ^ 1);
}

#[test]
fn connection_roams_with_filters_instead_of_tcx() {
    roams("10.1.0.2", "10.2.0.2", "10.9.0.2", false, |port| port);
    roams("fd00:1::2", "fd00:2::2", "fd00:9::2", false, |port| port ^ 1);
}

/// A moved connection, and what else goes between its hosts.
struct Moved {
    net: Net,
    laptop: Host,
    far: Host,
    stream: TcpStream,
    _serving: JoinHandle<()>,
    _bpffs: Bpffs,
}

impl Moved {
    fn new(new: &str, server: &str) -> Self {
        let [new, peer] = [new, server].map(|address| address.parse::<IpAddr>().expect("an address"));
        let bpffs = Bpffs::new();
        let net = Net::new();
        let serving = serve(&net.server, peer);
        let stream = connect(&net.laptop, peer);
        let (local, remote) = (stream.local_addr().expect("local"), stream.peer_addr().expect("remote"));
        let mut datapath = Datapath::open(&bpffs.pins("laptop")).expect("open");
        datapath.attach(index("lte"), Role::Wire).expect("attach");
        let lte = index("lte");
        let laptop = Host::new(datapath, local, remote, (local.port() ^ 1, PORT));
        net.server.enter();
        let mut datapath = Datapath::open(&bpffs.pins("server")).expect("open");
        datapath.attach(index("eth"), Role::Wire).expect("attach");
        let eth = index("eth");
        let far = Host::new(datapath, remote, local, (PORT, local.port() ^ 1));
        net.leave("wifi", 1);
        net.join("lte", 2);
        far.bind((1, 2), Carrier::Rewrite, peer, new, eth);
        laptop.bind((2, 1), Carrier::Rewrite, new, peer, lte);
        Self { net, laptop, far, stream, _serving: serving, _bpffs: bpffs }
    }
}

fn finds_the_path_mtu(new: &str, server: &str) {
    if !is_root() {
        return;
    }
    let mut moved = Moved::new(new, server);
    exchange(&mut moved.stream, 1);
    // The server learns of the narrow link from the router only.
    moved.net.router.run("ip link set n2 mtu 1300");
    moved.net.laptop.run("ip link set lte mtu 1300");
    exchange(&mut moved.stream, 2);
    assert!(counter(&moved.far.datapath, "icmp_in") > 0, "{:?}", moved.far.datapath.counters());
}

#[test]
fn path_mtu_is_found_under_other_names() {
    finds_the_path_mtu("10.2.0.2", "10.9.0.2");
    finds_the_path_mtu("fd00:2::2", "fd00:9::2");
}

fn carries_fragments(new: &str, server: &str) {
    if !is_root() {
        return;
    }
    let moved = Moved::new(new, server);
    let (local, remote) = (moved.laptop.flow.local, moved.laptop.flow.remote);
    moved.net.server.enter();
    let server = UdpSocket::bind(remote).expect("bind");
    moved.net.laptop.enter();
    let laptop = UdpSocket::bind(local).expect("bind");
    laptop.connect(remote).expect("connect");
    // Else it would be anybody's who sends to it under the wire names.
    moved.net.server.enter();
    server.connect(local).expect("connect");
    moved.net.laptop.enter();
    for socket in [&server, &laptop] {
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("SO_RCVTIMEO");
    }
    for (host, local, remote) in [(&moved.laptop, local, remote), (&moved.far, remote, local)] {
        let entry = host.datapath.flows().expect("flows")[0].1;
        let flow = FlowTuple { transport: Transport::Udp, local, remote };
        host.datapath.insert_flows(&[(flow, entry)]).expect("insert");
    }
    for length in [1, 1000, 4000, 60_000] {
        let sent: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
        laptop.send(&sent).expect("send");
        let mut received = vec![0; 1 << 16];
        let (size, from) = server.recv_from(&mut received).expect("the datagram arrives");
        assert_eq!((from, &received[..size]), (local, &sent[..]));
        server.send_to(&sent, from).expect("send");
        let size = laptop.recv(&mut received).expect("the answer arrives");
        assert_eq!(&received[..size], &sent[..]);
    }
    for host in [&moved.laptop, &moved.far] {
        assert!(counter(&host.datapath, "fragment_out") > 40);
        assert!(counter(&host.datapath, "fragment_in") > 40);
    }
    // Nobody there any more: the error finds the socket. The kernel sends so many a second only, to everybody together
    // (`icmp_msgs_per_sec`).
    drop(server);
    laptop.set_read_timeout(Some(Duration::from_secs(1))).expect("SO_RCVTIMEO");
    let refused = (0..20).any(|_| {
        // An error that has come already is told by the next call, whichever that is.
        let error = laptop.send(&[0]).and_then(|_| laptop.recv(&mut [0])).expect_err("the port is closed");
        error.kind() == std::io::ErrorKind::ConnectionRefused
    });
    assert!(refused, "the error does not find the socket");
    assert!(counter(&moved.far.datapath, "icmp_out") > 0);
    assert!(counter(&moved.laptop.datapath, "icmp_in") > 0);
}

#[test]
fn fragments_and_errors_find_their_sockets() {
    carries_fragments("10.2.0.2", "10.9.0.2");
    carries_fragments("fd00:2::2", "fd00:9::2");
}

/// A socket of UDP that is bound to no address and not connected.
fn unconnected(host: &Namespace, family: IpAddr, port: u16) -> UdpSocket {
    host.enter();
    let any = if family.is_ipv4() { "0.0.0.0" } else { "::" };
    let socket = UdpSocket::bind((any, port)).expect("bind");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("SO_RCVTIMEO");
    socket
}

/// A datagram there and back, from each the name that it is known by.
#[track_caller]
fn ask(asking: (&UdpSocket, SocketAddr), answering: (&UdpSocket, SocketAddr), length: u16) {
    let sent: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
    let mut received = vec![0; 1 << 16];
    for ((from, from_name), (to, to_name)) in [(asking, answering), (answering, asking)] {
        from.send_to(&sent, to_name).expect("send");
        let (size, heard) = to.recv_from(&mut received).expect("it arrives");
        assert_eq!((heard, &received[..size]), (from_name, &sent[..]));
    }
}

/// Neither end's socket is connected or bound to an address, and both ends' names stay what they were. Then somebody
/// else gets those that the laptop had.
fn roams_unconnected(old: &str, new: &str, server: &str) {
    if !is_root() {
        return;
    }
    let [old, new, peer] = [old, new, server].map(|address| address.parse::<IpAddr>().expect("an address"));
    let bpffs = Bpffs::new();
    let net = Net::new();
    let (near, far) = (unconnected(&net.laptop, old, 0), unconnected(&net.server, peer, PORT));
    let local = SocketAddr::new(old, near.local_addr().expect("address").port());
    let remote = SocketAddr::new(peer, PORT);
    ask((&near, local), (&far, remote), 100);

    let wire = (local.port() ^ 1, PORT ^ 1);
    let host = |namespace: &Namespace, name, device, local, remote, wire| {
        namespace.enter();
        let mut datapath = Datapath::open(&bpffs.pins(name)).expect("open");
        datapath.attach(index(device), Role::Wire).expect("attach");
        let host = Host::new(datapath, local, remote, wire);
        let entry = host.datapath.flows().expect("flows")[0].1;
        let flow = FlowTuple { transport: Transport::Udp, ..host.flow };
        host.datapath.insert_flows(&[(flow, FlowEntry { unconnected: true, ..entry })]).expect("insert");
        (host, index(device))
    };
    let (server, eth) = host(&net.server, "server", "eth", remote, local, (wire.1, wire.0));
    let (laptop, lte) = host(&net.laptop, "laptop", "lte", local, remote, wire);
    net.leave("wifi", 1);
    net.join("lte", 2);
    server.bind((1, 2), Carrier::Rewrite, peer, new, eth);
    laptop.bind((2, 1), Carrier::Rewrite, new, peer, lte);
    for length in [100, 4000] {
        ask((&near, local), (&far, remote), length);
    }

    net.router.run(&format!("ip addr add {old}/{} dev lo", if old.is_ipv4() { 32 } else { 128 }));
    net.router.enter();
    let next = UdpSocket::bind(local).expect("bind");
    next.set_read_timeout(Some(Duration::from_secs(20))).expect("SO_RCVTIMEO");
    // Until then it could be what the laptop sent before it left (P-221).
    std::thread::sleep(Duration::from_millis(2100));
    for _ in 0..3 {
        ask((&next, local), (&far, remote), 100);
        ask((&near, local), (&far, remote), 100);
    }
    net.server.enter();
    assert!(counter(&server.datapath, "native_out") >= 3);
}

#[test]
fn unconnected_sockets_roam_and_others_are_answered_where_they_are() {
    roams_unconnected("10.1.0.2", "10.2.0.2", "10.9.0.2");
    roams_unconnected("fd00:1::2", "fd00:2::2", "fd00:9::2");
}

/// What a roamed host does with its old address: nobody may take it for one of its own any more, and its packets go to
/// the TUN device. Reverse path filtering is strict.
fn give_up(net: &Net, old: IpAddr, bits: u8, family: &str, via: &str) {
    let laptop = &net.laptop;
    laptop.sysctl("net.ipv4.conf.all.rp_filter", "1");
    laptop.sysctl("net.ipv4.conf.all.src_valid_mark", "1");
    laptop.run(&format!("ip {family} route del local {old} dev lo table local"));
    laptop.run(&format!("ip {family} route add default dev tun table 100"));
    laptop.run(&format!("ip {family} rule add fwmark 0x57/0xff lookup 101 pref 50"));
    laptop.run(&format!("ip {family} rule add from {old}/{bits} lookup 100 pref 60"));
    laptop.run(&format!("ip {family} route add local {old} dev lo table 101"));
    // The way back of all marked packets, by every device that they come in by; IPv6 does not ask.
    if old.is_ipv4() {
        laptop.run(&format!("ip route add default table 101 nexthop via {via} dev lte nexthop dev tun"));
    }
}

/// A host that moved and may be reached under its old address by nobody but its moved flows, by both carriers.
fn gives_up_its_address(old: &str, new: &str, server: &str, bits: u8, family: &str, via: &str) {
    if !is_root() {
        return;
    }
    let [old, new, peer] = [old, new, server].map(|address| address.parse::<IpAddr>().expect("an address"));
    let bpffs = Bpffs::new();
    let net = Net::new();
    let serving = serve(&net.server, peer);
    let far_tun = tun("tun");
    net.server.run("ip link set tun up");
    let mut stream = connect(&net.laptop, peer);
    let near_tun = tun("tun");
    net.laptop.run("ip link set tun up");
    let (local, remote) = (stream.local_addr().expect("local"), stream.peer_addr().expect("remote"));

    let mut datapath = Datapath::open(&bpffs.pins("laptop")).expect("open");
    datapath.set_tunnel(index("tun"), 0x57, 0xff).expect("settings");
    datapath.attach(index("lte"), Role::Wire).expect("attach");
    datapath.attach(index("tun"), Role::Tunnel).expect("attach");
    let lte = index("lte");
    let laptop = Host::new(datapath, local, remote, (local.port(), PORT));
    // Nobody introduces it.
    let stranger = UdpSocket::bind((old, 0)).expect("bind");
    stranger.connect((peer, 9)).expect("connect");
    net.server.enter();
    let mut datapath = Datapath::open(&bpffs.pins("server")).expect("open");
    datapath.set_tunnel(index("tun"), 0x57, 0xff).expect("settings");
    datapath.attach(index("eth"), Role::Wire).expect("attach");
    datapath.attach(index("tun"), Role::Tunnel).expect("attach");
    let eth = index("eth");
    let far = Host::new(datapath, remote, local, (PORT, local.port()));
    exchange(&mut stream, 1);

    net.leave("wifi", 1);
    net.join("lte", 2);
    give_up(&net, old, bits, family, via);
    far.bind((1, 2), Carrier::Rewrite, peer, new, eth);
    laptop.bind((2, 1), Carrier::Rewrite, new, peer, lte);
    exchange(&mut stream, 2);
    let rewritten = counter(&laptop.datapath, "rewritten_out");
    let redirected = counter(&laptop.datapath, "redirected_out");
    assert!(rewritten > 0);
    // From the TUN device every packet has to be sent again.
    assert!(redirected >= rewritten, "{redirected} of {rewritten} were sent again");

    // By a route that leads where they are to go they cross the output once, except for one every now and then.
    net.laptop.run(&format!("ip {family} route add {peer} via {via} dev lte onlink table 100"));
    laptop.datapath.set_kept(&[old].into()).expect("set");
    exchange(&mut stream, 8);
    let rewritten = counter(&laptop.datapath, "rewritten_out") - rewritten;
    let redirected = counter(&laptop.datapath, "redirected_out") - redirected;
    assert!(redirected * 2 < rewritten, "{redirected} of {rewritten} were sent again");
    // What is of no moved flow does not leave so.
    stranger.send(b"x").expect("send");
    assert_eq!(counter(&laptop.datapath, "held_kept"), 1);

    far.bind((1, 2), Carrier::Tunnel, peer, new, eth);
    laptop.bind((2, 1), Carrier::Tunnel, new, peer, lte);
    let pump = |from: &std::fs::File, to: &std::fs::File| {
        let (mut from, mut to) = (from.try_clone().expect("dup"), to.try_clone().expect("dup"));
        // Ends when the device does: the test's last reference to it is gone then.
        thread::spawn(move || {
            let mut packet = vec![0; 1 << 16];
            while let Ok(length @ 1..) = from.read(&mut packet) {
                if to.write_all(&packet[..length]).is_err() {
                    break;
                }
            }
        });
    };
    pump(&near_tun, &far_tun);
    pump(&far_tun, &near_tun);
    exchange(&mut stream, 3);
    for host in [&laptop, &far] {
        assert!(counter(&host.datapath, "tunnelled_out") > 0);
        assert!(counter(&host.datapath, "tunnel_in") > 0);
    }

    drop(stream);
    serving.join().expect("the server ends");
    net.laptop.enter();
    laptop.datapath.unload().expect("unload");
    net.server.enter();
    far.datapath.unload().expect("unload");
    net.laptop.run("ip link del tun");
    net.server.run("ip link del tun");
}

#[test]
fn ipv4_host_gives_up_its_address() {
    gives_up_its_address("10.1.0.2", "10.2.0.2", "10.9.0.2", 32, "-4", "10.2.0.1");
}

#[test]
fn ipv6_host_gives_up_its_address() {
    gives_up_its_address("fd00:1::2", "fd00:2::2", "fd00:9::2", 128, "-6", "fd00:2::1");
}
