//! Wire names of moved flows that native connections have, or are about to have (P-140, P-141): these keep what is
//! theirs.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use support::packet::{Packet, TCP, UDP, icmp};
use support::pair::wait;
use support::{Bpffs, NEXT, Namespace, Outcome, REDIRECT, index, is_root, run, run_on, tun, veth};
use whimbrel_datapath::{
    Binding, Carrier, Datapath, Delivery, Endpoint, FlowEntry, Lent, LentEnd, LocatorPair, Unknown,
};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport};

const BINDING: BindingId = BindingId::first(PeerId(3));
const OTHER: BindingId = BindingId::first(PeerId(9));
const MARK: u32 = 0x57;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const TRANSPORTS: [(u8, Transport); 2] = [(TCP, Transport::Tcp), (UDP, Transport::Udp)];

/// A host with a flow of either transport that is rewritten. Its wire names are of an address of this host; what is
/// sent to the other one goes into `wire`.
struct Fixture {
    datapath: Datapath,
    own: (SocketAddr, SocketAddr),
    wire: (SocketAddr, SocketAddr),
    device: File,
    namespace: Namespace,
    _bpffs: Bpffs,
}

impl Fixture {
    fn new(names: [&str; 4]) -> Self {
        let [own_local, own_remote, wire_local, wire_remote] =
            names.map(|name| name.parse::<SocketAddr>().expect("an endpoint"));
        let bpffs = Bpffs::new();
        let namespace = Namespace::new();
        namespace.enter();
        let device = tun("wire");
        let (bits, family, nodad) = if wire_local.is_ipv4() { (32, "-4", "") } else { (128, "-6", "nodad") };
        namespace.run("ip link set wire up");
        namespace.run(&format!("ip addr add {}/{bits} dev lo {nodad}", wire_local.ip()));
        namespace.run(&format!("ip {family} route add {} dev wire", wire_remote.ip()));
        let mut datapath = Datapath::open(&bpffs.pins("taken")).expect("open");
        // What goes by the tunnel is there already, so that it passes.
        datapath.set_tunnel(1, MARK, 0xff).expect("settings");
        let (own, wire) = ((own_local, own_remote), (wire_local, wire_remote));
        let fixture = Self { datapath, own, wire, device, namespace, _bpffs: bpffs };
        fixture.know(own, wire, Delivery::Stack);
        fixture.bind(6);
        fixture
    }

    /// A flow of either transport, at home at the places 4 and 5.
    fn know(&self, own: (SocketAddr, SocketAddr), wire: (SocketAddr, SocketAddr), delivery: Delivery) {
        for (_, transport) in TRANSPORTS {
            let entry = FlowEntry {
                binding: BINDING,
                home_local_place: 4,
                home_peer_place: 5,
                wire_local_port: wire.0.port(),
                wire_remote_port: wire.1.port(),
                held: false,
                real_view: false,
                gives_way: false,
                tunnelled: false,
                hidden: false,
                beyond: false,
                unconnected: false,
                late: false,
                delivery,
            };
            self.datapath
                .insert_flows(&[(FlowTuple { transport, local: own.0, remote: own.1 }, entry)])
                .expect("insert");
        }
    }

    fn bind(&self, local_place: u32) {
        self.bind_with(local_place, false);
    }

    /// `names_kept`: the daemon says that nobody else can have the wire port.
    fn bind_with(&self, local_place: u32, names_kept: bool) {
        self.bind_between(local_place, names_kept, self.wire.0.ip(), self.wire.1.ip());
    }

    fn bind_between(&self, local_place: u32, names_kept: bool, local: IpAddr, peer: IpAddr) {
        let binding = Binding {
            local_place,
            peer_place: 5,
            carrier: Carrier::Rewrite,
            local,
            peer,
            interface: 1,
            arrival: 0,
            mtu: 0,
            allowance: None,
            parked: false,
            names_kept,
            accepted: vec![LocatorPair { local, peer }],
        };
        self.datapath.set_binding(BINDING, &binding).expect("bind");
    }

    fn egress(&self, packet: &[u8]) -> Outcome {
        // An answer of this tick of the clock is forgotten with what was known of the flows.
        self.know(self.own, self.wire, Delivery::Stack);
        run(self.datapath.program("egress_l2").expect("program"), packet)
    }

    fn ingress(&self, packet: &[u8]) -> Outcome {
        run(self.datapath.program("ingress_l2").expect("program"), packet)
    }

    fn count(&self, name: &str) -> u64 {
        let counters = self.datapath.counters().expect("counters");
        counters.iter().find(|(known, _)| *known == name).expect("a known counter").1
    }

    fn own_out(&self, protocol: u8) -> Packet {
        Packet::new(protocol, self.own.0, self.own.1)
    }

    fn wire_in(&self, protocol: u8) -> Packet {
        Packet::new(protocol, self.wire.1, self.wire.0)
    }

    /// An error about what bore the wire names, from a router, and the same as the flow's socket is to hear it.
    fn errors_in(&self, protocol: u8, sequence: u32) -> (Vec<u8>, Vec<u8>) {
        let (kind, code, router) =
            if self.own.0.is_ipv4() { (3, 1, "203.0.113.1") } else { (1, 0, "2001:db8:aaaa::1") };
        let about = |names: (SocketAddr, SocketAddr)| {
            let quoted = Packet { sequence, ..Packet::new(protocol, names.0, names.1) };
            icmp(router.parse().expect("an address"), names.0.ip(), kind, code, [0; 4], &quoted.ip())
        };
        (about(self.wire), about(self.own))
    }

    /// What this host says about what it got in the flow.
    fn error_out(&self, protocol: u8) -> Vec<u8> {
        let (kind, code) = if self.own.0.is_ipv4() { (3, 1) } else { (1, 0) };
        let quoted = Packet::new(protocol, self.own.1, self.own.0);
        icmp(self.own.0.ip(), self.own.1.ip(), kind, code, [0; 4], &quoted.ip())
    }

    #[track_caller]
    fn assert_is_native(&self, packet: &[u8]) {
        let before = self.count("taken_in");
        assert_eq!(self.ingress(packet), Outcome { verdict: NEXT, packet: packet.to_vec(), mark: 0 });
        assert_eq!(self.count("taken_in"), before + 1);
    }

    #[track_caller]
    fn assert_is_of_flow(&self, packet: Packet) {
        let own = Packet { source: self.own.1, destination: self.own.0, ..packet.clone() };
        assert_eq!(self.ingress(&packet.bytes()), Outcome { verdict: NEXT, packet: own.bytes(), mark: MARK });
    }

    /// Nothing of the flow bears the names, and nothing under them is the flow's.
    #[track_caller]
    fn assert_taken(&self, protocol: u8) {
        self.assert_is_native(&self.wire_in(protocol).bytes());
        self.assert_is_native(&self.errors_in(protocol, 77).0);
        for packet in [self.own_out(protocol).bytes(), self.error_out(protocol)] {
            let before = (self.count("taken_out"), self.count("tunnelled_out"));
            assert_eq!(self.egress(&packet), Outcome { verdict: NEXT, packet, mark: 0 });
            assert_eq!((self.count("taken_out"), self.count("tunnelled_out")), (before.0 + 1, before.1 + 1));
        }
    }

    #[track_caller]
    fn assert_free(&self, protocol: u8) {
        self.assert_is_of_flow(self.wire_in(protocol));
        let (wire, own) = self.errors_in(protocol, 77);
        assert_eq!(self.ingress(&wire), Outcome { verdict: NEXT, packet: own, mark: MARK });
        let rewritten = Packet::new(protocol, self.wire.0, self.wire.1);
        assert_eq!(
            self.egress(&self.own_out(protocol).bytes()),
            Outcome { verdict: REDIRECT, packet: rewritten.bytes(), mark: 0 }
        );
        assert_eq!(self.egress(&self.error_out(protocol)).verdict, REDIRECT);
        assert_eq!(self.count("taken_out"), 0);
    }

    /// The other end of the wire names opens a connection, in somebody's name; returns the number that the answer
    /// begins with.
    fn begin(&mut self, sequence: u32) -> u32 {
        let syn = Packet { tcp_flags: SYN, sequence, acknowledgement: 0, payload: Vec::new(), ..self.wire_in(TCP) };
        self.device.write_all(&syn.ip()).expect("write");
        let header = if self.wire.0.is_ipv4() { 20 } else { 40 };
        let mut packet = [0; 2048];
        loop {
            let length = self.device.read(&mut packet).expect("read");
            let ports = [self.wire.0.port().to_be_bytes(), self.wire.1.port().to_be_bytes()].concat();
            if length >= header + 20 && packet[header..header + 4] == ports && packet[header + 13] == SYN | ACK {
                let number = packet[header + 4..header + 8].try_into().expect("four bytes");
                return u32::from_be_bytes(number);
            }
        }
    }
}

fn on_both_families(test: impl Fn(Fixture) + Copy + Send + 'static) {
    if !is_root() {
        return;
    }
    for names in [
        ["10.1.0.2:40000", "192.0.2.9:443", "172.16.5.2:40001", "198.51.100.77:444"],
        ["[2001:db8:1::2]:40000", "[2001:db8:9::9]:443", "[2001:db8:ffff:5::2]:40001", "[2001:db8:77::1:77]:444"],
    ] {
        // The fixture changes the thread's namespaces.
        thread::spawn(move || test(Fixture::new(names))).join().expect("the test holds");
    }
}

/// A connection of the calling thread's namespace with itself, `local` being the end that was accepted, and what
/// listens.
fn connection(namespace: &Namespace, local: SocketAddr, remote: SocketAddr) -> (TcpStream, TcpStream, TcpListener) {
    let (bits, nodad) = if remote.is_ipv4() { (32, "") } else { (128, "nodad") };
    // Before the route that there is.
    namespace.run(&format!("ip addr add {}/{bits} dev lo {nodad}", remote.ip()));
    let listener = TcpListener::bind(local).expect("listen");
    let connecting = socket2_bind_connect(remote, local);
    let accepted = listener.accept().expect("accept").0;
    (accepted, connecting, listener)
}

/// connect(2) from an address and port.
fn socket2_bind_connect(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let family = if from.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = open(family, 0);
    for (address, call) in [(from, libc::bind as Call), (to, libc::connect as Call)] {
        let (storage, length) = raw(address);
        // SAFETY: an open socket and an address of the length given.
        let result = unsafe { call(std::os::fd::AsRawFd::as_raw_fd(&socket), (&raw const storage).cast(), length) };
        assert_eq!(result, 0, "{address}: {}", std::io::Error::last_os_error());
    }
    socket.into()
}

type Call = unsafe extern "C" fn(i32, *const libc::sockaddr, libc::socklen_t) -> i32;

fn open(family: i32, protocol: i32) -> OwnedFd {
    // SAFETY: takes numbers.
    let socket = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, protocol) };
    assert!(socket >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it was opened just now, for nobody else.
    unsafe { OwnedFd::from_raw_fd(socket) }
}

fn raw(address: SocketAddr) -> (libc::sockaddr_in6, libc::socklen_t) {
    // SAFETY: plain integers, for which zero is a value.
    let mut v6: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(address) => {
            // The shorter of the two begins alike: family, port, address.
            v6.sin6_family = libc::AF_INET as u16;
            v6.sin6_port = address.port().to_be();
            v6.sin6_flowinfo = u32::from_ne_bytes(address.ip().octets());
            (v6, size_of::<libc::sockaddr_in>() as u32)
        }
        SocketAddr::V6(address) => {
            v6.sin6_family = libc::AF_INET6 as u16;
            v6.sin6_port = address.port().to_be();
            v6.sin6_addr.s6_addr = address.ip().octets();
            (v6, size_of::<libc::sockaddr_in6>() as u32)
        }
    }
}

/// A listener of MPTCP, as Go's are unless told otherwise.
fn listen_mptcp(at: SocketAddr) -> TcpListener {
    let socket = open(if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }, libc::IPPROTO_MPTCP);
    let (storage, length) = raw(at);
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: an open socket and an address of the length given.
    let bound = unsafe { libc::bind(descriptor, (&raw const storage).cast(), length) };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: an open socket.
    assert_eq!(unsafe { libc::listen(descriptor, 16) }, 0, "{}", std::io::Error::last_os_error());
    socket.into()
}

#[test]
fn a_connection_keeps_its_names() {
    on_both_families(|fixture| {
        fixture.assert_free(TCP);
        let (near, far, _listener) = connection(&fixture.namespace, fixture.wire.0, fixture.wire.1);
        fixture.assert_taken(TCP);
        fixture.assert_is_of_flow(fixture.wire_in(UDP));
        // Half of it is as good as the whole.
        near.shutdown(std::net::Shutdown::Write).expect("shutdown");
        fixture.assert_taken(TCP);
        // The end that closed first goes on to be remembered for a while.
        drop(near);
        drop(far);
        wait(|| fixture.ingress(&fixture.wire_in(TCP).bytes()).mark == MARK);
        fixture.assert_is_of_flow(fixture.wire_in(TCP));
        assert_eq!(fixture.egress(&fixture.own_out(TCP).bytes()).verdict, REDIRECT);
    });
}

#[test]
fn a_first_segment_is_of_no_moved_flow() {
    on_both_families(|fixture| {
        let mut syn = fixture.wire_in(TCP);
        syn.tcp_flags = SYN;
        let outcome = fixture.ingress(&syn.bytes());
        assert_eq!(outcome, Outcome { verdict: NEXT, packet: syn.bytes(), mark: 0 });
    });
}

#[test]
fn a_handshake_goes_on_and_a_forged_one_holds_nobody_up() {
    for mptcp in [false, true] {
        on_both_families(move |mut fixture| {
            let _listener =
                if mptcp { listen_mptcp(fixture.wire.0) } else { TcpListener::bind(fixture.wire.0).expect("listen") };
            fixture.assert_free(TCP);
            let number = fixture.begin(1000);
            // Who has not seen the answer is not who is asked for.
            fixture.assert_free(TCP);
            for acknowledgement in [number, number.wrapping_add(2)] {
                fixture.assert_is_of_flow(Packet { acknowledgement, ..fixture.wire_in(TCP) });
            }
            let acknowledgement = number.wrapping_add(1);
            // Without ACK it says nothing.
            fixture.assert_is_of_flow(Packet { acknowledgement, tcp_flags: 0x04, ..fixture.wire_in(TCP) });
            for tcp_flags in [ACK, ACK | 0x08, ACK | 0x04] {
                let last = Packet { acknowledgement, tcp_flags, ..fixture.wire_in(TCP) };
                fixture.assert_is_native(&last.bytes());
            }
            fixture.assert_is_native(&fixture.errors_in(TCP, number).0);
            assert_eq!(fixture.egress(&fixture.own_out(TCP).bytes()).verdict, REDIRECT);
        });
    }
}

#[test]
fn a_handshake_with_a_cookie_goes_on() {
    on_both_families(|mut fixture| {
        fixture.namespace.sysctl("net.ipv4.tcp_syncookies", "2");
        let _listener = TcpListener::bind(fixture.wire.0).expect("listen");
        let number = fixture.begin(1000);
        let last =
            Packet { sequence: 1001, acknowledgement: number.wrapping_add(1), tcp_flags: ACK, ..fixture.wire_in(TCP) };
        fixture.assert_is_native(&last.bytes());
        fixture.assert_is_of_flow(Packet { acknowledgement: number.wrapping_add(0x1000_0000), ..last });
        assert_eq!(fixture.egress(&fixture.own_out(TCP).bytes()).verdict, REDIRECT);
    });
}

#[test]
fn a_connection_that_is_being_opened_from_here_keeps_its_names() {
    on_both_families(|fixture| {
        let socket = open(if fixture.wire.0.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }, 0);
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(true).expect("nonblocking");
        for (address, call) in [(fixture.wire.0, libc::bind as Call), (fixture.wire.1, libc::connect as Call)] {
            let (storage, length) = raw(address);
            // SAFETY: an open socket and an address of the length given.
            unsafe { call(std::os::fd::AsRawFd::as_raw_fd(&stream), (&raw const storage).cast(), length) };
        }
        let outcome = fixture.egress(&fixture.own_out(TCP).bytes());
        assert_eq!((outcome.verdict, fixture.count("taken_out")), (NEXT, 1));
        // What acknowledges nothing of its own is not for it.
        fixture.assert_is_of_flow(fixture.wire_in(TCP));
    });
}

#[test]
fn datagrams_are_for_the_socket_that_takes_them() {
    on_both_families(|fixture| {
        let unspecified: IpAddr = if fixture.wire.0.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        fixture.assert_free(UDP);
        let connected = UdpSocket::bind(fixture.wire.0).expect("bind");
        connected.connect(fixture.wire.1).expect("connect");
        fixture.assert_taken(UDP);
        fixture.assert_is_of_flow(fixture.wire_in(TCP));
        drop(connected);
        // Of another far end.
        let other = UdpSocket::bind(fixture.wire.0).expect("bind");
        other.connect(SocketAddr::new(fixture.wire.1.ip(), 1)).expect("connect");
        fixture.assert_is_of_flow(fixture.wire_in(UDP));
        drop(other);
        let anybodys = UdpSocket::bind((unspecified, fixture.wire.0.port())).expect("bind");
        fixture.assert_taken(UDP);
        drop(anybodys);
        fixture.assert_is_of_flow(fixture.wire_in(UDP));
    });
}

#[test]
fn where_their_port_is_kept_it_is_not_asked_for_each_datagram_who_has_it() {
    on_both_families(|fixture| {
        fixture.bind_with(6, true);
        // Whoever has it all the same is found before anything is renamed.
        let somebodys = UdpSocket::bind(fixture.wire.0).expect("bind");
        fixture.assert_taken(UDP);
        drop(somebodys);
        // Who comes to have it then, as when the daemon was killed, is found within a second.
        let start = Instant::now();
        fixture.assert_is_of_flow(fixture.wire_in(UDP));
        let _somebodys = UdpSocket::bind(fixture.wire.0).expect("bind");
        let answer = || run(fixture.datapath.program("egress_l2").expect("program"), &fixture.own_out(UDP).bytes());
        let asked = [fixture.ingress(&fixture.wire_in(UDP).bytes()).mark, answer().verdict as u32];
        assert!(asked == [MARK, REDIRECT as u32] || start.elapsed() > Duration::from_millis(900), "{asked:?}");
        wait(|| fixture.ingress(&fixture.wire_in(UDP).bytes()).mark == 0);
        fixture.assert_is_native(&fixture.wire_in(UDP).bytes());
        assert_eq!(answer().verdict, NEXT);
        // At its own home, or by another pair of addresses, it says nothing.
        fixture.know(fixture.own, fixture.wire, Delivery::Stack);
        fixture.bind_with(4, true);
        fixture.assert_is_native(&fixture.wire_in(UDP).bytes());
    });
}

#[test]
fn what_was_found_between_other_addresses_says_nothing() {
    on_both_families(|mut fixture| {
        fixture.bind_with(6, true);
        let out = fixture.own_out(UDP).bytes();
        assert_eq!(fixture.egress(&out).verdict, REDIRECT);
        let local: IpAddr =
            if fixture.own.0.is_ipv4() { "172.16.5.3" } else { "2001:db8:ffff:5::3" }.parse().expect("one");
        let (bits, nodad) = if local.is_ipv4() { (32, "") } else { (128, "nodad") };
        fixture.namespace.run(&format!("ip addr add {local}/{bits} dev lo {nodad}"));
        fixture.wire.0.set_ip(local);
        let _somebodys = UdpSocket::bind(fixture.wire.0).expect("bind");
        // It was free between the others, a moment ago.
        fixture.bind_with(7, true);
        assert_eq!(fixture.ingress(&fixture.wire_in(UDP).bytes()).mark, 0);
        assert_eq!(run(fixture.datapath.program("egress_l2").expect("program"), &out).verdict, NEXT);
    });
}

#[test]
fn fragments_go_where_the_first_goes() {
    on_both_families(|fixture| {
        let fragments = fixture.wire_in(UDP).fragments(48);
        let marks = || fragments.each_ref().map(|fragment| fixture.ingress(fragment).mark);
        assert_eq!(marks(), [MARK; 2]);
        // The number of the datagram comes again.
        let connected = UdpSocket::bind(fixture.wire.0).expect("bind");
        connected.connect(fixture.wire.1).expect("connect");
        for fragment in &fragments {
            let outcome = fixture.ingress(fragment);
            assert_eq!(outcome, Outcome { verdict: NEXT, packet: fragment.clone(), mark: 0 });
        }
        let out = fixture.own_out(UDP).fragments(48);
        for fragment in &out {
            assert_eq!(fixture.egress(fragment), Outcome { verdict: NEXT, packet: fragment.clone(), mark: 0 });
        }
        drop(connected);
        assert_eq!(marks(), [MARK; 2]);
    });
}

/// Two hosts that use fixed ports have changed places: each flow has the names that are the other one's own.
#[test]
fn names_that_a_flow_has_moved_away_from_are_free() {
    on_both_families(|fixture| {
        let _native = connection(&fixture.namespace, fixture.wire.0, fixture.wire.1);
        let udp = UdpSocket::bind(fixture.wire.0).expect("bind");
        udp.connect(fixture.wire.1).expect("connect");
        for protocol in [TCP, UDP] {
            fixture.assert_taken(protocol);
        }
        let deliveries = |port| (fixture.wire.0, SocketAddr::new(fixture.wire.1.ip(), port));
        fixture.know(fixture.wire, deliveries(9), Delivery::Stack);
        for protocol in [TCP, UDP] {
            fixture.assert_is_of_flow(fixture.wire_in(protocol));
            assert_eq!(fixture.egress(&fixture.own_out(protocol).bytes()).verdict, REDIRECT);
        }
        // Of another peer, which is where it was.
        let home = Binding { local_place: 4, ..fixture.datapath.bindings().expect("bindings")[0].1.clone() };
        fixture.datapath.set_binding(OTHER, &Binding { accepted: Vec::new(), ..home }).expect("bind");
        for (tuple, entry) in fixture.datapath.flows().expect("flows") {
            if tuple.local == fixture.wire.0 {
                let entry = FlowEntry { binding: OTHER, ..entry };
                fixture.datapath.insert_flows(&[(tuple, entry)]).expect("insert");
            }
        }
        for protocol in [TCP, UDP] {
            fixture.assert_taken(protocol);
        }
    });
}

/// Also of a flow that this host passes on for another: the wire names are of an address of its own.
#[test]
fn a_socket_that_takes_everything_counts_whoever_the_flow_is_of() {
    on_both_families(|fixture| {
        let unspecified: IpAddr = if fixture.wire.0.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let anybodys = UdpSocket::bind((unspecified, fixture.wire.0.port())).expect("bind");
        for (delivery, number) in [(Delivery::Routes, 1), (Delivery::Passing, 2)] {
            fixture.know(fixture.own, fixture.wire, delivery);
            fixture.ingress(&fixture.wire_in(UDP).bytes());
            assert_eq!((fixture.count("taken_in"), fixture.count("rewritten_in")), (number, 0), "{delivery:?}");
        }
        drop(anybodys);
        fixture.ingress(&fixture.wire_in(UDP).bytes());
        assert_eq!((fixture.count("taken_in"), fixture.count("rewritten_in")), (2, 1));
    });
}

/// The id by which the calling thread's namespace knows that of an interface's other end.
fn namespace_id(interface: &str) -> u32 {
    let output = Command::new("ip").args(["link", "show", "dev", interface]).output().expect("ip runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut words = text.split_whitespace().skip_while(|word| *word != "link-netnsid");
    words.nth(1).and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("no id in {text}"))
}

#[test]
fn sockets_in_endpoint_namespaces_keep_their_names() {
    on_both_families(|fixture| {
        let endpoint = Namespace::new();
        veth(&fixture.namespace, "e", &endpoint, "inner");
        let (bits, nodad) = if fixture.wire.0.is_ipv4() { (32, "") } else { (128, "nodad") };
        endpoint.run(&format!("ip addr add {}/{bits} dev lo {nodad}", fixture.wire.0.ip()));
        let outer = index("e");
        let (address, port) = (fixture.wire.0.ip(), fixture.wire.0.port());
        fixture.datapath.set_endpoint(outer, &Endpoint { address, unknown: Unknown::Dropped }).expect("set");
        for protocol in [TCP, UDP] {
            let end = LentEnd { address, port, protocol };
            fixture.datapath.set_lent(&end, Lent::Endpoint(outer)).expect("lend");
        }
        let ingress = |protocol| {
            let packet = fixture.wire_in(protocol).bytes();
            run_on(1, fixture.datapath.program("ingress_l2").expect("program"), &packet)
        };
        // What cannot be looked into has whatever is lent to it.
        for protocol in [TCP, UDP] {
            assert_eq!(ingress(protocol).packet, fixture.wire_in(protocol).bytes());
        }
        fixture.datapath.name_endpoint(outer, namespace_id("e")).expect("name");
        let untouched = fixture.count("taken_in");
        for protocol in [TCP, UDP] {
            fixture.assert_is_of_flow(fixture.wire_in(protocol));
            assert_eq!(fixture.egress(&fixture.own_out(protocol).bytes()).verdict, REDIRECT);
        }
        assert_eq!(fixture.count("taken_in"), untouched);
        let _inside = thread::scope(|scope| {
            let opened = scope.spawn(|| {
                endpoint.enter();
                let native = connection(&endpoint, fixture.wire.0, fixture.wire.1);
                let udp = UdpSocket::bind(fixture.wire.0).expect("bind");
                udp.connect(fixture.wire.1).expect("connect");
                (native, udp)
            });
            opened.join().expect("it ends")
        });
        for protocol in [TCP, UDP] {
            let outcome = ingress(protocol);
            // Into the namespace, under its own names.
            assert_eq!((outcome.verdict, outcome.packet), (REDIRECT, fixture.wire_in(protocol).bytes()));
            assert_eq!(fixture.egress(&fixture.own_out(protocol).bytes()).verdict, NEXT);
        }
        // What is told of it anew does not make it a stranger.
        fixture.datapath.set_endpoint(outer, &Endpoint { address, unknown: Unknown::Routed }).expect("set");
        drop(_inside);
        wait(|| fixture.ingress(&fixture.wire_in(UDP).bytes()).mark == MARK);
    });
}

/// An anchor's ports that are on lease, and those of a socket that has moved away.
#[test]
fn what_is_on_lease_elsewhere_keeps_its_names() {
    on_both_families(|fixture| {
        let (address, port) = (fixture.wire.0.ip(), fixture.wire.0.port());
        // As daemon::host::ports::hold() has them.
        let tcp = open(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }, 0);
        let (storage, length) = raw(fixture.wire.0);
        let tcp_fd = std::os::fd::AsRawFd::as_raw_fd(&tcp);
        // SAFETY: an open socket and an address of the length given.
        let bound = unsafe { libc::bind(tcp_fd, (&raw const storage).cast(), length) };
        assert_eq!(bound, 0);
        let udp = UdpSocket::bind(fixture.wire.0).expect("bind");
        udp.connect(fixture.wire.0).expect("connect");
        let mut stolen = Vec::new();
        for lent in [Lent::Leased(OTHER), Lent::Shared(OTHER)] {
            for protocol in [TCP, UDP] {
                fixture.datapath.set_lent(&LentEnd { address, port, protocol }, lent).expect("lend");
            }
            for protocol in [TCP, UDP] {
                let outcome = fixture.ingress(&fixture.wire_in(protocol).bytes());
                let own = Packet { source: fixture.own.1, destination: fixture.own.0, ..fixture.wire_in(protocol) };
                if outcome.packet == own.bytes() {
                    stolen.push((lent, protocol));
                }
            }
        }
        assert!(stolen.is_empty(), "led to the moved flow's socket instead of the tenant: {stolen:?}");
    });
}

/// Whoever binds the wire port of a moved flow, or writes another source into his datagrams, and whoever this host
/// forwards for.
#[test]
fn nobody_sends_under_the_wire_names_of_a_moved_flow() {
    on_both_families(|fixture| {
        let send = |fixture: &Fixture, packet: &Packet| {
            let outcome = run(fixture.datapath.program("egress_l2").expect("program"), &packet.bytes());
            if outcome.verdict == NEXT {
                assert_eq!(outcome.packet, packet.bytes());
            }
            outcome.verdict == NEXT
        };
        for protocol in [TCP, UDP] {
            fixture.assert_free(protocol);
            let forged = Packet::new(protocol, fixture.wire.0, fixture.wire.1);
            assert!(!send(&fixture, &forged), "{protocol}: the far end would take it for the flow's");
            // By another port, or to another: the far end has no flow of these names.
            for names in [(1, fixture.wire.1.port()), (fixture.wire.0.port(), 1)] {
                let (mut source, mut destination) = fixture.wire;
                source.set_port(names.0);
                destination.set_port(names.1);
                assert!(send(&fixture, &Packet::new(protocol, source, destination)));
            }
        }
        assert_eq!(fixture.count("dropped_names"), 2);
        // What is of a connection is of that at the far end, too.
        let names = Packet::new(TCP, fixture.wire.0, fixture.wire.1);
        for tcp_flags in [SYN, SYN | ACK] {
            assert!(send(&fixture, &Packet { tcp_flags, ..names.clone() }));
        }
        let _native = connection(&fixture.namespace, fixture.wire.0, fixture.wire.1);
        assert!(send(&fixture, &names));
        // The first of a datagram's fragments, without which the others are nothing.
        let fragments = Packet::new(UDP, fixture.wire.0, fixture.wire.1).fragments(48);
        let program = fixture.datapath.program("egress_l2").expect("program");
        assert_ne!(run(program, &fragments[0]).verdict, NEXT);
    });
}
