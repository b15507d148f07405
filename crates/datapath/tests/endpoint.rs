//! Local ends that are not sockets of the host's own stack: in endpoint namespaces, and behind an anchor.
//!
//! ```text
//!  ┌──────────────┐      ┌────────┐      ┌──────┐
//!  │ host  (space)├──────┤ middle ├──────┤ far  │
//!  └──────────────┘ near └────────┘ far  └──────┘
//! ```
//! The middle is a router, or an anchor whose address connections are made to that end at the host.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use support::packet::{Packet, TCP, UDP, icmp};
use support::{Bpffs, NEXT, Namespace, Outcome, REDIRECT, SHOT, counter, index, is_root, run, run_on, tun, veth};
use whimbrel_datapath::{
    Binding, Carrier, Datapath, Delivery, Endpoint, FlowEntry, HelpedFlow, HelpedPhase, Lent, LentEnd, LocatorPair,
    Role, Unknown,
};
use whimbrel_kernel::endpoint::{Endpoint as Space, let_forward};
use whimbrel_kernel::route::RouteSocket;
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport};

const PORT: u16 = 5000;
/// Lent as well: a port rests for a while after a connection.
const OTHER: u16 = 5001;
/// Of the far end of a connection that is known before it is opened.
const FAR_PORT: u16 = 40_000;
const BINDING: BindingId = BindingId::first(PeerId(7));
const BLOCK: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn address(n: u8, host: u8, v4: bool) -> IpAddr {
    let text = if v4 { format!("10.{n}.0.{host}") } else { format!("fd00:{n}::{host}") };
    text.parse().expect("an address")
}

struct Net {
    host: Namespace,
    middle: Namespace,
    far: Namespace,
    bpffs: Bpffs,
}

impl Net {
    /// The host has 10.1.0.2, the far end 10.9.0.2, and the middle the .1 of both networks.
    fn new(forwards: bool) -> Self {
        let net = Self { host: Namespace::new(), middle: Namespace::new(), far: Namespace::new(), bpffs: Bpffs::new() };
        net.middle.sysctl("net.ipv4.ip_forward", if forwards { "1" } else { "0" });
        net.middle.sysctl("net.ipv6.conf.all.forwarding", if forwards { "1" } else { "0" });
        for (n, end, name) in [(1, &net.host, "near"), (9, &net.far, "far")] {
            veth(end, "eth", &net.middle, name);
            net.middle.run(&format!("ip addr add 10.{n}.0.1/24 dev {name}"));
            net.middle.run(&format!("ip addr add fd00:{n}::1/64 dev {name} nodad"));
            end.run(&format!("ip addr add 10.{n}.0.2/24 dev eth"));
            end.run(&format!("ip addr add fd00:{n}::2/64 dev eth nodad"));
            end.run(&format!("ip route add default via 10.{n}.0.1"));
            end.run(&format!("ip route add default via fd00:{n}::1"));
        }
        net
    }
}

/// By these gateways a host sends no more than a link of 1300 bytes takes, and does not say so by its MSS. A veth drops
/// what is longer than its other end's MTU, but for segments that the kernel has not cut yet: it would get through by
/// luck.
fn sends_what_fits(host: &Namespace, [v4, v6]: [&str; 2]) {
    host.run(&format!("ip route replace default via {v4} mtu 1300 advmss 1460"));
    host.run(&format!("ip -6 route replace default via {v6} mtu 1300 advmss 1440"));
}

/// An endpoint namespace of the namespace that the thread is in, and the index of its outer end.
fn space(datapath: &mut Datapath, address: IpAddr, unknown: Unknown) -> (Space, u32) {
    let guard = datapath.guard().expect("the program");
    let mut watched = None;
    let watch = |outer| -> Result<(), Box<dyn std::error::Error>> {
        watched = Some(guard.watch(outer)?);
        Ok(())
    };
    let space = Space::create(address, 1500, watch).expect("an endpoint namespace");
    datapath.handle(watched.expect("it is watched"));
    let outer = space.outer().index;
    datapath.set_endpoint(outer, &Endpoint { address, unknown }).expect("set the endpoint");
    (space, outer)
}

fn lend(datapath: &Datapath, address: IpAddr, port: u16, to: Lent) {
    for protocol in [TCP, UDP] {
        datapath.set_lent(&LentEnd { address, port, protocol }, to).expect("lend");
    }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("SO_RCVTIMEO");
    stream.set_write_timeout(Some(PATIENCE)).expect("SO_SNDTIMEO");
    stream
}

/// A connection from the port of `from` to `to`; non-blocking would do as well, but its time is bounded.
fn connect(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let family = if from.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: takes integers.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor that nobody else owns.
    let stream = patient(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) });
    for (call, name) in [(0, from), (1, to)] {
        let (bytes, length) = raw_name(name);
        // SAFETY: an open socket and a name of this length.
        let done = unsafe {
            if call == 0 {
                libc::bind(stream.as_raw_fd(), bytes.as_ptr().cast(), length)
            } else {
                libc::connect(stream.as_raw_fd(), bytes.as_ptr().cast(), length)
            }
        };
        assert_eq!(done, 0, "{from} to {to}: {}", std::io::Error::last_os_error());
    }
    stream
}

/// struct sockaddr_in or sockaddr_in6, with its length.
fn raw_name(name: SocketAddr) -> ([u8; 28], libc::socklen_t) {
    let mut bytes = [0; 28];
    let (family, length) = if name.is_ipv4() { (libc::AF_INET, 16) } else { (libc::AF_INET6, 28) };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&name.port().to_be_bytes());
    match name.ip() {
        IpAddr::V4(v4) => bytes[4..8].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => bytes[8..24].copy_from_slice(&v6.octets()),
    }
    (bytes, length)
}

fn pattern(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

/// A block each way at the same time.
fn exchange(one: &TcpStream, other: &TcpStream, seed: u32) {
    thread::scope(|scope| {
        for (mut from, mut to, seed) in [(one, other, seed), (other, one, seed + 1)] {
            scope.spawn(move || from.write_all(&pattern(BLOCK, seed)).expect("write"));
            scope.spawn(move || {
                let mut received = vec![0; BLOCK];
                to.read_exact(&mut received).expect("the block arrives");
                assert!(received == pattern(BLOCK, seed), "the block arrived changed");
            });
        }
    });
}

fn exchange_datagrams(one: &UdpSocket, other: &UdpSocket) {
    for socket in [one, other] {
        socket.set_read_timeout(Some(PATIENCE)).expect("SO_RCVTIMEO");
    }
    for length in [1, 1000, 4000, 60_000] {
        for (from, to) in [(one, other), (other, one)] {
            from.send_to(&pattern(length, 3), to.local_addr().expect("local")).expect("send");
            let mut received = vec![0; 1 << 16];
            let (size, sender) = to.recv_from(&mut received).expect("the datagram arrives");
            assert_eq!(sender, from.local_addr().expect("local"));
            assert!(received[..size] == pattern(length, 3), "the datagram arrived changed");
        }
    }
}

/// What is sent to a closed port comes back as an error. The kernel sends no more errors than icmp(7) lets it, and a
/// busy machine loses some.
fn expect_refusal(from: &UdpSocket, to: SocketAddr) {
    from.set_read_timeout(Some(Duration::from_secs(1))).expect("SO_RCVTIMEO");
    from.connect(to).expect("connect");
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        let told = from.send(&[0]).and_then(|_| from.recv(&mut [0])).expect_err("the port is closed");
        if told.kind() != ErrorKind::WouldBlock || Instant::now() > deadline {
            break told;
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}

fn on_both_families(test: impl Fn(bool) + Copy + Send + 'static) {
    if !is_root() {
        return;
    }
    for v4 in [true, false] {
        // Namespaces are entered for good.
        thread::spawn(move || test(v4)).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

/// A host whose own address is lent to its endpoint namespace.
struct OwnAddress {
    net: Net,
    datapath: Datapath,
    space: Space,
    outer: u32,
    own: IpAddr,
    far: IpAddr,
}

impl OwnAddress {
    fn new(v4: bool) -> Self {
        let net = Net::new(true);
        let (own, far) = (address(1, 2, v4), address(9, 2, v4));
        net.host.enter();
        let mut datapath = Datapath::open(&net.bpffs.pins("host")).expect("open");
        datapath.attach(index("eth"), Role::Wire).expect("attach");
        datapath.attach(1, Role::Loopback).expect("attach");
        let (space, outer) = space(&mut datapath, own, Unknown::Routed);
        for port in [PORT, OTHER] {
            lend(&datapath, own, port, Lent::Endpoint(outer));
        }
        datapath.set_busy(false, false, false).expect("busy");
        Self { net, datapath, space, outer, own, far }
    }

    fn listen_inside(&self) -> TcpListener {
        let _inside = self.space.enter().expect("enter");
        TcpListener::bind((self.own, PORT)).expect("listen")
    }

    fn bind_inside(&self) -> UdpSocket {
        let _inside = self.space.enter().expect("enter");
        UdpSocket::bind((self.own, PORT)).expect("bind")
    }
}

#[test]
fn inner_ends_have_the_address_that_the_programs_send_to() {
    assert_eq!(whimbrel_kernel::endpoint::INNER_HARDWARE_ADDRESS, whimbrel_datapath::INNER_HARDWARE_ADDRESS);
}

#[test]
fn a_lent_end_is_reached_and_reaches_others() {
    on_both_families(|v4| {
        let host = OwnAddress::new(v4);
        let listener = host.listen_inside();
        host.net.far.enter();
        let there = patient(TcpStream::connect((host.own, PORT)).expect("connect"));
        let here = patient(listener.accept().expect("accept").0);
        exchange(&here, &there, 1);
        drop((listener, here, there));

        let far = TcpListener::bind((host.far, PORT)).expect("listen");
        host.net.host.enter();
        let here = {
            let _inside = host.space.enter().expect("enter");
            connect(SocketAddr::new(host.own, OTHER), far.local_addr().expect("local"))
        };
        let there = patient(far.accept().expect("accept").0);
        exchange(&here, &there, 3);

        let near = host.bind_inside();
        host.net.far.enter();
        let far = UdpSocket::bind((host.far, 0)).expect("bind");
        exchange_datagrams(&near, &far);
        let closed = far.local_addr().expect("local");
        drop(far);
        expect_refusal(&near, closed);
        drop(near);
        let far = UdpSocket::bind((host.far, 0)).expect("bind");
        expect_refusal(&far, SocketAddr::new(host.own, PORT));
        assert!(counter(&host.datapath, "endpoint_in") > 0);
        assert!(counter(&host.datapath, "endpoint_out") > 0);
    });
}

const RESTS: HelpedFlow = HelpedFlow { phase: HelpedPhase::Rests, offset: 0, acknowledged: 0, delivered: 0 };

#[test]
fn a_socket_at_rest_says_nothing_from_a_lent_end_either() {
    on_both_families(|v4| {
        let host = OwnAddress::new(v4);
        let listener = host.listen_inside();
        host.net.far.enter();
        let there = patient(TcpStream::connect((host.own, PORT)).expect("connect"));
        let here = patient(listener.accept().expect("accept").0);
        exchange(&here, &there, 1);
        let end = |name: std::io::Result<SocketAddr>| name.expect("a name");
        let (local, remote) = (end(here.local_addr()), end(here.peer_addr()));
        let flow = FlowTuple { transport: Transport::Tcp, local, remote };
        host.datapath.set_helped(&flow, &RESTS).expect("rest");
        (&here).write_all(b"not yet").expect("write");
        let since = Instant::now();
        // Also what its timer has it send again.
        while counter(&host.datapath, "held") < 3 {
            assert!(since.elapsed() < PATIENCE, "nothing is held");
            thread::yield_now();
        }
        there.set_nonblocking(true).expect("fcntl");
        assert_eq!((&there).read(&mut [0]).expect_err("nothing has come").kind(), ErrorKind::WouldBlock);
        there.set_nonblocking(false).expect("fcntl");
        host.datapath.remove_helped(&flow).expect("wake");
        let mut heard = [0; 7];
        (&there).read_exact(&mut heard).expect("read");
        assert_eq!(&heard, b"not yet");
    });
}

#[test]
fn datagrams_leave_a_lent_end_that_were_sent_while_their_socket_was_put_to_rest() {
    on_both_families(|v4| {
        let host = OwnAddress::new(v4);
        let near = host.bind_inside();
        host.net.far.enter();
        let far = UdpSocket::bind((host.far, 0)).expect("bind");
        let (local, remote) = (near.local_addr().expect("local"), far.local_addr().expect("local"));
        near.connect(remote).expect("connect");
        far.set_read_timeout(Some(PATIENCE)).expect("SO_RCVTIMEO");
        let flow = FlowTuple { transport: Transport::Udp, local, remote };
        host.datapath.set_helped(&flow, &RESTS).expect("rest");
        // The longer ones in fragments.
        for length in [8, 4000, 60_000] {
            near.send(&pattern(length, 5)).expect("send");
            let mut received = vec![0; 1 << 16];
            let size = far.recv(&mut received).expect("nobody would send the datagram again");
            assert!(received[..size] == pattern(length, 5), "the datagram arrived changed");
        }
        assert_eq!(counter(&host.datapath, "held"), 0);
    });
}

#[test]
fn path_mtu_reaches_an_endpoint_namespace() {
    on_both_families(|v4| {
        let host = OwnAddress::new(v4);
        host.net.middle.run("ip link set far mtu 1300");
        sends_what_fits(&host.net.far, ["10.9.0.1", "fd00:9::1"]);
        let listener = host.listen_inside();
        host.net.far.enter();
        let there = patient(TcpStream::connect((host.own, PORT)).expect("connect"));
        let here = patient(listener.accept().expect("accept").0);
        exchange(&here, &there, 1);
    });
}

#[test]
fn a_namespace_is_told_the_mtu_of_the_hosts_way() {
    on_both_families(|v4| {
        let host = OwnAddress::new(v4);
        host.net.host.run("ip link set eth mtu 1400");
        host.net.middle.run("ip link set near mtu 1400");
        let listener = host.listen_inside();
        host.net.far.enter();
        let there = patient(TcpStream::connect((host.own, PORT)).expect("connect"));
        let here = patient(listener.accept().expect("accept").0);
        exchange(&here, &there, 1);
        assert!(counter(&host.datapath, "too_long") > 0, "{:?}", host.datapath.counters());
        let far = UdpSocket::bind((host.far, 0)).expect("bind");
        let near = host.bind_inside();
        near.set_read_timeout(Some(PATIENCE)).expect("SO_RCVTIMEO");
        near.connect(far.local_addr().expect("local")).expect("connect");
        near.send(&pattern(1450, 3)).expect("the first is too long, and lost");
        let start = std::time::Instant::now();
        // An error of this kind is not one of recv's; what is known is asked when it is sent.
        far.set_read_timeout(Some(Duration::from_millis(20))).expect("SO_RCVTIMEO");
        let mut received = vec![0; 1 << 16];
        while far.recv(&mut received).is_err() {
            assert!(start.elapsed() < PATIENCE, "{:?}", host.datapath.counters());
            let _ = near.send(&pattern(1450, 3));
        }
        assert!(received[..1450] == pattern(1450, 3), "the datagram arrived changed");
    });
}

#[test]
fn programs_of_the_host_reach_its_lent_ends_and_are_reached() {
    on_both_families(|v4| {
        let host = OwnAddress::new(v4);
        let listener = host.listen_inside();
        // Under the very address that it is lent of.
        let there = connect(SocketAddr::new(host.own, 0), SocketAddr::new(host.own, PORT));
        let here = patient(listener.accept().expect("accept").0);
        exchange(&here, &there, 1);
        drop((listener, here, there));
        let service = TcpListener::bind((host.own, OTHER + 1)).expect("listen");
        let here = {
            let _inside = host.space.enter().expect("enter");
            connect(SocketAddr::new(host.own, OTHER), service.local_addr().expect("local"))
        };
        let there = patient(service.accept().expect("accept").0);
        exchange(&here, &there, 3);
        drop((here, there));
        let near = host.bind_inside();
        exchange_datagrams(&near, &UdpSocket::bind((host.own, 0)).expect("bind"));
        assert!(counter(&host.datapath, "endpoint_home") > 0);
    });
}

#[test]
fn endpoint_namespaces_of_one_host_reach_each_other_and_themselves() {
    on_both_families(|v4| {
        let mut host = OwnAddress::new(v4);
        let listener = host.listen_inside();
        let foreign = address(77, 1, v4);
        let (other, outer) = space(&mut host.datapath, foreign, Unknown::Routed);
        lend(&host.datapath, foreign, 0, Lent::Endpoint(outer));
        for (space, from) in [(&other, SocketAddr::new(foreign, 0)), (&host.space, SocketAddr::new(host.own, OTHER))] {
            let there = {
                let _inside = space.enter().expect("enter");
                connect(from, SocketAddr::new(host.own, PORT))
            };
            let here = patient(listener.accept().expect("accept").0);
            exchange(&here, &there, 1);
        }
    });
}

#[test]
fn nothing_else_leaves_an_endpoint_namespace() {
    on_both_families(|v4| {
        let mut host = OwnAddress::new(v4);
        let foreign = address(77, 1, v4);
        let (other, outer) = space(&mut host.datapath, foreign, Unknown::Dropped);
        lend(&host.datapath, foreign, 0, Lent::Endpoint(outer));
        host.net.far.enter();
        let far = UdpSocket::bind((host.far, PORT)).expect("bind");
        far.set_read_timeout(Some(PATIENCE)).expect("SO_RCVTIMEO");
        host.net.host.enter();
        let descriptor = host.space.as_fd().as_raw_fd();
        let prefix = if v4 { 32 } else { 128 };
        host.net.host.run(&format!(
            "nsenter --net=/proc/{}/fd/{descriptor} ip addr add {foreign}/{prefix} dev lo",
            std::process::id()
        ));
        // Of a foreign address; of the own one, from a port that is not lent; under an address of somebody else.
        let senders = [(&other, foreign, 0), (&host.space, host.own, OTHER + 1), (&host.space, foreign, PORT)];
        for (n, (space, from, port)) in senders.into_iter().enumerate() {
            let _inside = space.enter().expect("enter");
            let socket = UdpSocket::bind((from, port)).expect("bind");
            socket.send_to(b"out", (host.far, PORT)).expect("send");
            let start = std::time::Instant::now();
            while counter(&host.datapath, "dropped_endpoint") <= n as u64 {
                assert!(start.elapsed() < PATIENCE, "the {n}th is not dropped: {:?}", host.datapath.counters());
                thread::yield_now();
            }
        }
        // Nor from a namespace that is not known.
        host.datapath.remove_endpoint(host.outer).expect("remove");
        host.bind_inside().send_to(b"out", (host.far, PORT)).expect("send");
        UdpSocket::bind((host.own, 0)).expect("bind").send_to(b"in", (host.far, PORT)).expect("send");
        let mut received = [0; 8];
        let size = far.recv(&mut received).expect("the last one arrives");
        assert_eq!(&received[..size], b"in");
    });
}

#[test]
fn nothing_leaves_a_namespace_from_its_beginning_to_its_end() {
    on_both_families(|v4| {
        for tcx in [true, false] {
            let net = Net::new(true);
            let (own, foreign) = (address(1, 2, v4), address(77, 1, v4));
            net.host.enter();
            let pins = net.bpffs.pins("host");
            let mut datapath = Datapath::open(&pins).expect("open");
            if !tcx {
                datapath.avoid_tcx();
            }
            let notes = || {
                let names = std::fs::read_dir(&pins).expect("the directory").map(|entry| entry.expect("an entry"));
                names.filter(|entry| entry.file_name().to_string_lossy().contains("-endpoint-")).count()
            };
            let guard = datapath.guard().expect("the program");
            let mut watched = None;
            let watch = |outer| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                watched = Some(guard.watch(outer)?);
                Ok(())
            };
            let made = thread::scope(|scope| scope.spawn(|| Space::create(foreign, 1500, watch)).join());
            let space = made.expect("no panic").expect("an endpoint namespace");
            // Everything is switched on, and nothing is known to the programs.
            let near = UdpSocket::bind((own, PORT)).expect("bind");
            near.set_nonblocking(true).expect("O_NONBLOCK");
            let socket = {
                let _inside = space.enter().expect("enter");
                UdpSocket::bind((foreign, 0)).expect("bind")
            };
            socket.send_to(b"out", (own, PORT)).expect("send");
            let start = Instant::now();
            while counter(&datapath, "dropped_endpoint") == 0 {
                assert!(start.elapsed() < PATIENCE, "it is not dropped: {:?}", datapath.counters());
                thread::yield_now();
            }
            let outer = space.outer().clone();
            datapath.handle(watched.expect("it is watched"));
            assert_eq!((datapath.attached(), notes()), (vec![(outer.index, Role::Endpoint)], 1));

            // A program keeps its socket.
            outer.remove(&mut RouteSocket::open().expect("open")).expect("remove");
            outer.remove(&mut RouteSocket::open().expect("open")).expect("once more");
            drop(space);
            let _ = socket.send_to(b"out", (own, PORT));
            datapath.forget(outer.index).expect("forget");
            assert_eq!((datapath.attached(), notes()), (Vec::new(), 0));
            let received = near.recv(&mut [0; 8]).expect_err("nothing has arrived");
            assert_eq!(received.kind(), ErrorKind::WouldBlock);
            datapath.unload().expect("unload");
        }
    });
}

/// Carries packets between the TUN devices of two hosts, as the tunnel's threads would.
struct Pump {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pump {
    fn new(one: std::fs::File, other: std::fs::File) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let carry = |from: &std::fs::File, to: &std::fs::File| {
            let (mut from, mut to) = (from.try_clone().expect("dup"), to.try_clone().expect("dup"));
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut packet = vec![0; 1 << 16];
                while !stop.load(Ordering::Relaxed) {
                    let mut fds = [libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
                    // SAFETY: one descriptor to be asked for.
                    if unsafe { libc::poll(fds.as_mut_ptr(), 1, 20) } == 1 {
                        let size = from.read(&mut packet).expect("read");
                        // What the device sends by itself (router solicitations) is of no flow.
                        let _ = to.write(&packet[..size]);
                    }
                }
            })
        };
        let threads = vec![carry(&one, &other), carry(&other, &one)];
        Self { stop, threads }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A data plane with a TUN device that forwards.
fn carrying(namespace: &Namespace, net: &Net, name: &str, devices: &[&str]) -> (Datapath, std::fs::File) {
    namespace.enter();
    let device = tun("tun");
    namespace.run("ip link set tun mtu 1400 up");
    let_forward("tun").expect("settings of the device");
    let mut datapath = Datapath::open(&net.bpffs.pins(name)).expect("open");
    datapath.set_tunnel(index("tun"), 0x57, 0xff).expect("settings");
    for device in devices {
        datapath.attach(index(device), Role::Wire).expect("attach");
    }
    datapath.attach(index("tun"), Role::Tunnel).expect("attach");
    (datapath, device)
}

/// The middle is an anchor that forwards nothing else: its address on the far side is lent to the host, whose socket
/// has it.
struct Anchored {
    net: Net,
    anchor: Datapath,
    host: Datapath,
    space: Space,
    outer: u32,
    /// The anchor's.
    lent: IpAddr,
    far: IpAddr,
    v4: bool,
    _pump: Pump,
}

impl Anchored {
    fn new(v4: bool) -> Self {
        let net = Net::new(false);
        let (lent, far) = (address(9, 1, v4), address(9, 2, v4));
        let (anchor, one) = carrying(&net.middle, &net, "anchor", &["near", "far"]);
        let (mut host, other) = carrying(&net.host, &net, "host", &["eth"]);
        let (space, outer) = space(&mut host, lent, Unknown::Dropped);
        Self { net, anchor, host, space, outer, lent, far, v4, _pump: Pump::new(one, other) }
    }

    /// The connection between the lent end and the far one, at both hosts, as moved to the host.
    fn lead(&self, transport: Transport, carrier: Carrier) {
        self.lead_narrow(transport, carrier, 0);
    }

    /// The same where the anchor knows how long a packet may be on its way to the host.
    fn lead_narrow(&self, transport: Transport, carrier: Carrier, mtu: u32) {
        let (lent, far) = (SocketAddr::new(self.lent, PORT), SocketAddr::new(self.far, FAR_PORT));
        let at_host = FlowTuple { transport, local: lent, remote: far };
        let at_anchor = FlowTuple { transport, local: far, remote: lent };
        let (here, there) = (address(1, 2, self.v4), address(1, 1, self.v4));
        let ends = [
            (&self.host, at_host, Delivery::Endpoint(self.outer), here, there, (6000, 6001)),
            (&self.anchor, at_anchor, Delivery::Routes, there, here, (6001, 6000)),
        ];
        for (datapath, flow, delivery, local, peer, wire) in ends {
            let mtu = if delivery == Delivery::Routes { mtu } else { 0 };
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
                delivery,
            };
            datapath.insert_flows(&[(flow, entry)]).expect("insert");
            let binding = Binding {
                local_place: 2,
                peer_place: 1,
                carrier,
                local,
                peer,
                interface: 0,
                arrival: 0,
                mtu,
                allowance: None,
                parked: false,
                names_kept: false,
                accepted: vec![LocatorPair { local, peer }],
            };
            datapath.set_binding(BINDING, &binding).expect("bind");
            datapath.set_busy(true, false, false).expect("busy");
        }
    }

    fn connection(&self) -> (TcpStream, TcpStream) {
        self.net.host.enter();
        let listener = {
            let _inside = self.space.enter().expect("enter");
            TcpListener::bind((self.lent, PORT)).expect("listen")
        };
        self.net.far.enter();
        let there = connect(SocketAddr::new(self.far, FAR_PORT), SocketAddr::new(self.lent, PORT));
        (patient(listener.accept().expect("accept").0), there)
    }

    fn datagrams(&self) -> (UdpSocket, UdpSocket) {
        self.net.host.enter();
        let near = {
            let _inside = self.space.enter().expect("enter");
            bound(SocketAddr::new(self.lent, PORT))
        };
        self.net.far.enter();
        (near, bound(SocketAddr::new(self.far, FAR_PORT)))
    }
}

/// A socket with an address that one before it had: a program that another test is just starting may have that one for
/// a moment.
fn bound(address: SocketAddr) -> UdpSocket {
    let since = Instant::now();
    loop {
        match UdpSocket::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && since.elapsed() < PATIENCE => {
                std::thread::yield_now();
            }
            bound => return bound.expect("bind"),
        }
    }
}

#[test]
fn who_forwards_notices_that_a_neighbour_has_another_address() {
    on_both_families(|v4| {
        let net = Anchored::new(v4);
        net.lead(Transport::Udp, Carrier::Rewrite);
        let (near, far) = net.datagrams();
        // The ways are known from now on, both of them.
        exchange_datagrams(&near, &far);
        for (host, device, address, last) in
            [(&net.net.host, "near", address(1, 2, v4), 2), (&net.net.far, "far", address(9, 2, v4), 9)]
        {
            let link = format!("02:00:00:00:77:0{last}");
            host.run(&format!("ip link set eth address {link}"));
            net.net.middle.run(&format!("ip neigh replace {address} lladdr {link} dev {device} nud permanent"));
        }
        let start = std::time::Instant::now();
        for (from, to) in [(&near, &far), (&far, &near)] {
            to.set_read_timeout(Some(Duration::from_millis(20))).expect("SO_RCVTIMEO");
            let destination = to.local_addr().expect("local");
            while from.send_to(&[1], destination).is_err() || to.recv(&mut [0; 8]).is_err() {
                assert!(start.elapsed() < PATIENCE, "{:?}", net.anchor.counters());
            }
        }
    });
}

#[test]
fn an_anchor_forwards_a_flow_rewritten_and_by_the_tunnel() {
    on_both_families(|v4| {
        let net = Anchored::new(v4);
        // Opened by the tunnel: a first segment under wire names is of no flow.
        net.lead(Transport::Tcp, Carrier::Tunnel);
        let (here, there) = net.connection();
        net.lead(Transport::Tcp, Carrier::Rewrite);
        exchange(&here, &there, 1);
        for datapath in [&net.anchor, &net.host] {
            assert!(counter(datapath, "rewritten_out") > 0 && counter(datapath, "rewritten_in") > 0);
        }
        assert!(counter(&net.anchor, "forwarded") > 0);
        assert!(counter(&net.host, "endpoint_in") > 0);
        net.lead(Transport::Tcp, Carrier::Tunnel);
        let before = counter(&net.anchor, "rewritten_out");
        exchange(&here, &there, 3);
        assert_eq!(counter(&net.anchor, "rewritten_out"), before);
        net.lead(Transport::Tcp, Carrier::Rewrite);
        exchange(&here, &there, 5);
    });
}

#[test]
fn an_anchor_forwards_datagrams_fragments_and_errors() {
    on_both_families(|v4| {
        let net = Anchored::new(v4);
        net.lead(Transport::Udp, Carrier::Rewrite);
        let (near, far) = net.datagrams();
        exchange_datagrams(&near, &far);
        net.lead(Transport::Udp, Carrier::Tunnel);
        exchange_datagrams(&near, &far);
        net.lead(Transport::Udp, Carrier::Rewrite);
        drop(far);
        expect_refusal(&near, SocketAddr::new(net.far, FAR_PORT));
        drop(near);
        let (near, far) = net.datagrams();
        drop(near);
        expect_refusal(&far, SocketAddr::new(net.lent, PORT));
        drop(far);
        net.lead(Transport::Udp, Carrier::Tunnel);
        let (near, far) = net.datagrams();
        drop(far);
        expect_refusal(&near, SocketAddr::new(net.far, FAR_PORT));
        drop(near);
        let (near, far) = net.datagrams();
        drop(near);
        expect_refusal(&far, SocketAddr::new(net.lent, PORT));
        for datapath in [&net.anchor, &net.host] {
            assert_eq!(counter(datapath, "dropped_icmp_out"), 0);
        }
    });
}

/// Sends datagrams that may not be cut until the system knows that one of so many bytes is too long, and sends one that
/// is not. Tells how long an IP packet may be.
fn learn(from: &UdpSocket, to: &UdpSocket, payload: usize) -> i32 {
    let (v4, peer) = (peer_of(from).is_ipv4(), peer_of(to));
    let (level, discover, mtu) = if v4 {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_MTU)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_MTU)
    };
    let (on, size) = (libc::IP_PMTUDISC_DO, std::mem::size_of::<i32>() as libc::socklen_t);
    // SAFETY: `on` is as long as is said.
    assert_eq!(unsafe { libc::setsockopt(from.as_raw_fd(), level, discover, (&raw const on).cast(), size) }, 0);
    from.connect(peer).expect("connect");
    let start = std::time::Instant::now();
    while from.send(&pattern(payload, 5)).map_err(|error| error.raw_os_error()) != Err(Some(libc::EMSGSIZE)) {
        assert!(start.elapsed() < PATIENCE, "nothing is heard of what is too long");
        thread::sleep(Duration::from_millis(5));
    }
    let (mut known, mut size) = (0i32, size);
    // SAFETY: `known` is as long as is said.
    assert_eq!(unsafe { libc::getsockopt(from.as_raw_fd(), level, mtu, (&raw mut known).cast(), &raw mut size) }, 0);
    let fits = known as usize - if v4 { 28 } else { 48 };
    // What was heard of those before is reported once each.
    let sent = (0..100).any(|_| from.send(&pattern(fits, 7)).is_ok());
    assert!(sent, "what fits is not sent");
    to.set_read_timeout(Some(PATIENCE)).expect("SO_RCVTIMEO");
    let mut received = vec![0; 1 << 16];
    loop {
        let length = to.recv(&mut received).expect("the datagram arrives");
        if received[..length] == pattern(fits, 7) {
            break;
        }
    }
    known
}

fn peer_of(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().expect("local")
}

#[test]
fn an_anchor_tells_both_ends_what_is_too_long() {
    // P-111
    on_both_families(|v4| {
        let net = Anchored::new(v4);
        // To the far end of what goes on rewritten.
        net.lead_narrow(Transport::Udp, Carrier::Rewrite, 1320);
        let (near, far) = net.datagrams();
        assert_eq!(learn(&far, &near, 1400), 1320);
        // To the socket of what the link to the far end does not take, whichever way it came to the anchor.
        // What the socket's system knows already it says by itself: each is sent what was the longest before.
        let mut known = 1400;
        for (carrier, mtu) in [(Carrier::Rewrite, 1360), (Carrier::Tunnel, 1340)] {
            net.lead(Transport::Udp, carrier);
            net.net.middle.run(&format!("ip link set far mtu {mtu}"));
            net.net.far.run(&format!("ip link set eth mtu {mtu}"));
            assert_eq!(learn(&near, &far, known - if v4 { 28 } else { 48 }), mtu);
            known = usize::try_from(mtu).expect("a length");
        }
        assert!(counter(&net.anchor, "too_long") >= 3);
    });
}

#[test]
fn neighbours_are_answered_where_an_address_is_that_is_lent_as_a_whole() {
    // P-112
    on_both_families(|v4| {
        let net = Forwarding::new(v4, Delivery::Routes);
        let whole = address(6, 6, v4);
        let protocol = if v4 { 1 } else { 58 };
        let end = LentEnd { address: whole, port: 0, protocol };
        net.datapath.set_lent(&end, Lent::Leased(BINDING)).expect("lend");
        let message = |kind: u8| {
            let mut packet = Packet::new(UDP, net.far, SocketAddr::new(whole, 0)).bytes();
            let (of, at) = if v4 { (14 + 9, 14 + 20) } else { (14 + 6, 14 + 40) };
            packet[of] = protocol;
            packet[at] = kind;
            packet
        };
        for (kind, led) in
            if v4 { [(8, true), (0, true), (13, false)] } else { [(128, true), (129, true), (135, false)] }
        {
            let verdict = net.ingress(&message(kind)).verdict;
            assert_eq!(verdict, if led { REDIRECT } else { NEXT }, "{kind}");
        }
    });
}

#[test]
fn a_socket_in_a_namespace_is_answered_while_it_is_held() {
    on_both_families(|v4| {
        let net = Anchored::new(v4);
        // Opened by the tunnel: a first segment under wire names is of no flow.
        net.lead(Transport::Tcp, Carrier::Tunnel);
        let (here, there) = net.connection();
        net.lead(Transport::Tcp, Carrier::Rewrite);
        exchange(&here, &there, 1);
        net.lead(Transport::Tcp, Carrier::Hold);
        // One probe without an answer is the end of it.
        for (level, name) in [
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        ] {
            let one = 1;
            // SAFETY: an open socket, and a number that lives through the call, with its size.
            let set = unsafe { libc::setsockopt(here.as_raw_fd(), level, name, (&raw const one).cast(), 4) };
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        }
        let start = std::time::Instant::now();
        while counter(&net.host, "answered") < 3 {
            assert!(start.elapsed() < PATIENCE, "{:?}", net.host.counters());
            thread::sleep(Duration::from_millis(5));
        }
        net.lead(Transport::Tcp, Carrier::Rewrite);
        exchange(&here, &there, 3);
    });
}

#[test]
fn an_anchor_hands_on_what_routers_say() {
    on_both_families(|v4| {
        let mut net = Anchored::new(v4);
        // The far end is another hop away, by a narrow link.
        let beyond = Namespace::new();
        let router = std::mem::replace(&mut net.net.far, beyond);
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            router.sysctl(key, "1");
        }
        veth(&net.net.far, "eth", &router, "out");
        router.run("ip addr add 10.10.0.1/24 dev out");
        router.run("ip addr add fd00:10::1/64 dev out nodad");
        net.net.far.run("ip addr add 10.10.0.2/24 dev eth");
        net.net.far.run("ip addr add fd00:10::2/64 dev eth nodad");
        sends_what_fits(&net.net.far, ["10.10.0.1", "fd00:10::1"]);
        net.net.middle.run("ip route add 10.10.0.0/24 via 10.9.0.2");
        net.net.middle.run("ip route add fd00:10::/64 via fd00:9::2");
        router.run("ip link set out mtu 1300");
        net.far = address(10, 2, v4);
        // Opened by the tunnel: a first segment under wire names is of no flow.
        net.lead(Transport::Tcp, Carrier::Tunnel);
        let (here, there) = net.connection();
        net.lead(Transport::Tcp, Carrier::Rewrite);
        exchange(&here, &there, 1);
        assert!(counter(&net.anchor, "icmp_out") > 0, "{:?}", net.anchor.counters());
        assert!(counter(&net.host, "icmp_in") > 0, "{:?}", net.host.counters());
    });
}

#[test]
fn what_is_of_no_flow_goes_to_who_has_the_lease() {
    on_both_families(|v4| {
        let net = Anchored::new(v4);
        lend(&net.anchor, net.lent, PORT, Lent::Leased(BINDING));
        lend(&net.host, net.lent, PORT, Lent::Endpoint(net.outer));
        let leased = Endpoint { address: net.lent, unknown: Unknown::Tunnelled(BINDING) };
        net.host.set_endpoint(net.outer, &leased).expect("set the endpoint");
        let (here, there) = net.connection();
        exchange(&here, &there, 1);
        let (near, far) = net.datagrams();
        exchange_datagrams(&near, &far);
        for datapath in [&net.anchor, &net.host] {
            assert!(counter(datapath, "leased_out") > 0);
        }
        net.net.middle.run("ip link set far mtu 1300");
        net.net.far.run("ip link set eth mtu 1300");
        assert_eq!(learn(&near, &far, 1350), 1300);
        drop(near);
        expect_refusal(&far, SocketAddr::new(net.lent, PORT));
        drop(far);
        let near = net.datagrams().0;
        expect_refusal(&near, SocketAddr::new(net.far, FAR_PORT));
        drop(near);
        let (near, _far) = net.datagrams();
        // A program of the anchor itself.
        net.net.middle.enter();
        let mut anchor = Datapath::open(&net.net.bpffs.pins("anchor")).expect("open again");
        anchor.attach(1, Role::Loopback).expect("attach");
        let local = UdpSocket::bind((net.lent, 0)).expect("bind");
        exchange_datagrams(&near, &local);
    });
}

#[test]
fn what_is_known_outlives_the_process() {
    on_both_families(|v4| {
        let host = OwnAddress::new(v4);
        let OwnAddress { net, datapath, outer, own, .. } = &host;
        let flow = FlowTuple {
            transport: Transport::Tcp,
            local: SocketAddr::new(*own, 1),
            remote: SocketAddr::new(host.far, 1),
        };
        let entry = FlowEntry {
            binding: BINDING,
            home_local_place: 1,
            home_peer_place: 1,
            wire_local_port: 1,
            wire_remote_port: 1,
            held: false,
            real_view: false,
            gives_way: false,
            tunnelled: false,
            hidden: false,
            beyond: false,
            unconnected: false,
            late: false,
            delivery: Delivery::Routes,
        };
        datapath.insert_flows(&[(flow, entry)]).expect("insert");
        let again = Datapath::open(&net.bpffs.pins("host")).expect("open again");
        assert_eq!(again.flows().expect("flows"), [(flow, entry)]);
        assert_eq!(
            again.endpoints().expect("endpoints"),
            [(*outer, Endpoint { address: *own, unknown: Unknown::Routed })]
        );
        let mut lent = again.lent().expect("lent");
        lent.sort_by_key(|(end, _)| *end);
        let end = |port, protocol| (LentEnd { address: *own, port, protocol }, Lent::Endpoint(*outer));
        assert_eq!(lent, [end(PORT, TCP), end(PORT, UDP), end(OTHER, TCP), end(OTHER, UDP)]);
        let mut attached = again.attached();
        attached.sort_by_key(|(index, _)| *index);
        let roles: Vec<Role> = attached.iter().map(|(_, role)| *role).collect();
        assert_eq!(roles, [Role::Loopback, Role::Wire, Role::Endpoint]);
        again.remove_flows(&[flow]).expect("remove");
        again.remove_endpoint(*outer).expect("remove");
        lent.iter().for_each(|(end, _)| again.remove_lent(end).expect("remove"));
        assert!(again.lent().expect("lent").is_empty() && again.endpoints().expect("endpoints").is_empty());
    });
}

/// One flow toward another host, and the programs on single packets of it, on the loopback device.
struct Forwarding {
    datapath: Datapath,
    far: SocketAddr,
    lent: SocketAddr,
    wire_local: SocketAddr,
    wire_remote: SocketAddr,
    /// The device that the far end of a flow is reached by that passes here by itself.
    inside: u32,
    _net: (Bpffs, Namespace, Namespace),
}

impl Forwarding {
    fn new(v4: bool, delivery: Delivery) -> Self {
        let (bpffs, namespace, beyond) = (Bpffs::new(), Namespace::new(), Namespace::new());
        let mut inside = 1;
        if delivery == Delivery::Passing {
            namespace.sysctl("net.ipv4.ip_forward", "1");
            namespace.sysctl("net.ipv6.conf.all.forwarding", "1");
            veth(&namespace, "inside", &beyond, "eth");
            namespace.run("ip addr add 10.9.0.1/24 dev inside");
            namespace.run("ip addr add fd00:9::1/64 dev inside nodad");
        }
        namespace.enter();
        if delivery == Delivery::Passing {
            inside = index("inside");
        }
        let mut datapath = Datapath::open(&bpffs.pins("packets")).expect("open");
        datapath.set_tunnel(1, 0x57, 0xff).expect("settings");
        let end = |n, port| SocketAddr::new(address(n, n, v4), port);
        let (far, lent, wire_local, wire_remote) = (end(9, FAR_PORT), end(5, PORT), end(1, 6001), end(2, 6000));
        let flows = [Transport::Tcp, Transport::Udp].map(|transport| {
            let entry = FlowEntry {
                binding: BINDING,
                home_local_place: 1,
                home_peer_place: 1,
                wire_local_port: wire_local.port(),
                wire_remote_port: wire_remote.port(),
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
            (FlowTuple { transport, local: far, remote: lent }, entry)
        });
        datapath.insert_flows(&flows).expect("insert");
        let (local, peer) = (wire_local.ip(), wire_remote.ip());
        let binding = Binding {
            local_place: 2,
            peer_place: 1,
            carrier: Carrier::Rewrite,
            local,
            peer,
            interface: 1,
            arrival: 0,
            mtu: 0,
            allowance: None,
            parked: false,
            names_kept: false,
            accepted: vec![LocatorPair { local, peer }],
        };
        datapath.set_binding(BINDING, &binding).expect("bind");
        Self { datapath, far, lent, wire_local, wire_remote, inside, _net: (bpffs, namespace, beyond) }
    }

    fn ingress(&self, packet: &[u8]) -> Outcome {
        run(self.datapath.program("ingress_l2").expect("program"), packet)
    }

    /// By the device that the far end is reached by.
    fn ingress_inside(&self, packet: &[u8]) -> Outcome {
        run_on(self.inside, self.datapath.program("ingress_l2").expect("program"), packet)
    }

    fn endpoint(&self, packet: &[u8]) -> i32 {
        run(self.datapath.program("endpoint").expect("program"), packet).verdict
    }
}

#[test]
fn what_is_forwarded_has_gone_one_hop_further() {
    on_both_families(|v4| {
        let net = Forwarding::new(v4, Delivery::Routes);
        let made = |source, destination, protocol, hops| Packet {
            hop_limit: hops,
            ..Packet::new(protocol, source, destination)
        };
        let ways = [
            ((net.far, net.lent), (net.wire_local, net.wire_remote)),
            ((net.wire_remote, net.wire_local), (net.lent, net.far)),
        ];
        for (n, (came, goes)) in ways.into_iter().enumerate() {
            for protocol in [TCP, UDP] {
                for hops in [2, 61, 255] {
                    let outcome = net.ingress(&made(came.0, came.1, protocol, hops).bytes());
                    assert_eq!(outcome.verdict, REDIRECT);
                    assert_eq!(outcome.packet, made(goes.0, goes.1, protocol, hops - 1).bytes());
                    let pieces = made(came.0, came.1, protocol, hops).fragments(48);
                    let expected = made(goes.0, goes.1, protocol, hops - 1).fragments(48);
                    for (piece, expected) in pieces.iter().zip(expected) {
                        let outcome = net.ingress(piece);
                        assert_eq!((outcome.verdict, outcome.packet), (REDIRECT, expected));
                    }
                }
                assert_eq!(net.ingress(&made(came.0, came.1, protocol, 1).bytes()).verdict, SHOT);
            }
            assert_eq!(counter(&net.datapath, "expired"), 2 * (n as u64 + 1));
        }
        // Another's.
        let other = made(net.far, SocketAddr::new(net.lent.ip(), 1), TCP, 61).bytes();
        assert_eq!(net.ingress(&other), Outcome { verdict: NEXT, packet: other, mark: 0 });
    });
}

#[test]
fn what_passes_here_by_itself_is_left_to_that_until_it_has_moved() {
    // P-102
    on_both_families(|v4| {
        let net = Forwarding::new(v4, Delivery::Passing);
        let out = Packet { sequence: 77, ..Packet::new(TCP, net.far, net.lent) };
        let back = Packet::new(TCP, net.lent, net.far).bytes();
        let rewritten = Packet::new(TCP, net.wire_remote, net.wire_local).bytes();
        assert_eq!(net.ingress_inside(&out.bytes()).verdict, REDIRECT);
        assert_eq!(net.ingress(&back).verdict, REDIRECT);
        assert_eq!(net.ingress(&rewritten).verdict, REDIRECT);
        let flow = FlowTuple { transport: Transport::Tcp, local: net.far, remote: net.lent };
        assert_eq!(net.datapath.last_sent(&flow).expect("ask"), Some(77));
        // Who waits for nothing is not waited for, and what is said again of a flow is not all that is known of it.
        let acknowledges = Packet { sequence: 99, payload: Vec::new(), ..out.clone() };
        assert_eq!(net.ingress_inside(&acknowledges.bytes()).verdict, REDIRECT);
        let entries: Vec<_> = net.datapath.flows().expect("flows");
        assert!(entries.iter().all(|(_, entry)| entry.delivery == Delivery::Passing));
        net.datapath.insert_flows(&entries).expect("insert");
        assert_eq!(net.datapath.last_sent(&flow).expect("ask"), Some(77));

        let (id, binding) = net.datapath.bindings().expect("bindings").remove(0);
        net.datapath.set_binding(id, &Binding { local_place: 1, ..binding }).expect("bind");
        assert_eq!(net.ingress_inside(&out.bytes()), Outcome { verdict: NEXT, packet: out.bytes(), mark: 0 });
        assert_eq!(net.ingress(&back), Outcome { verdict: NEXT, packet: back, mark: 0 });
    });
}

#[test]
fn a_host_behind_is_who_sends_by_the_device_that_leads_to_it() {
    // P-126
    on_both_families(|v4| {
        let net = Forwarding::new(v4, Delivery::Passing);
        for protocol in [TCP, UDP] {
            let packet = Packet { sequence: 77, ..Packet::new(protocol, net.far, net.lent) }.bytes();
            let left = Outcome { verdict: NEXT, packet: packet.clone(), mark: 0 };
            // As found out, and as remembered.
            for _ in 0..2 {
                assert_eq!(net.ingress(&packet), left);
            }
            assert_eq!(net.ingress_inside(&packet).verdict, REDIRECT);
            assert_eq!(net.ingress(&packet), left);
        }
        let flow = FlowTuple { transport: Transport::Tcp, local: net.far, remote: net.lent };
        let forged = Packet { sequence: 99, ..Packet::new(TCP, net.far, net.lent) }.bytes();
        assert_eq!(net.ingress(&forged).verdict, NEXT);
        assert_eq!(net.datapath.last_sent(&flow).expect("ask"), Some(77));
    });
}

#[test]
fn resets_of_a_host_behind_go_by_the_tunnel_and_count_nowhere_else() {
    // P-123
    on_both_families(|v4| {
        let net = Forwarding::new(v4, Delivery::Passing);
        let reset = Packet { tcp_flags: 0x14, payload: Vec::new(), ..Packet::new(TCP, net.far, net.lent) };
        let outcome = net.ingress_inside(&reset.bytes());
        // Under its own names.
        let further = Packet { hop_limit: reset.hop_limit - 1, ..reset };
        assert_eq!((outcome.verdict, outcome.packet), (REDIRECT, further.bytes()));
        // At the other end.
        for (beyond, verdict) in [(false, REDIRECT), (true, SHOT)] {
            let entries = net.datapath.flows().expect("flows").into_iter();
            let entries: Vec<_> = entries.map(|(flow, entry)| (flow, FlowEntry { beyond, ..entry })).collect();
            net.datapath.insert_flows(&entries).expect("insert");
            let came =
                Packet { tcp_flags: 0x14, payload: Vec::new(), ..Packet::new(TCP, net.wire_remote, net.wire_local) };
            assert_eq!(net.ingress(&came.bytes()).verdict, verdict);
            assert_eq!(net.ingress(&Packet { tcp_flags: 0x10, ..came }.bytes()).verdict, REDIRECT);
        }
    });
}

#[test]
fn errors_about_what_was_said_for_a_host_behind_are_led_here() {
    // P-127
    on_both_families(|v4| {
        let net = Forwarding::new(v4, Delivery::Passing);
        let said = |port| Packet::new(UDP, SocketAddr::new(net.far.ip(), port), net.lent).ip();
        let router = address(3, 1, v4);
        // Too big.
        let error_about = |to: IpAddr, quoted: &[u8]| {
            let (kind, code, rest) = if v4 { (3, 4, [0, 0, 5, 0]) } else { (2, 0, [0, 0, 5, 0]) };
            icmp(router, to, kind, code, rest, quoted)
        };
        let error = |port| error_about(net.far.ip(), &said(port));
        assert_eq!(net.ingress(&error(2031)).mark, 0);
        net.datapath.claim_fragments(Some(2031)).expect("set");
        assert_eq!((net.ingress(&error(2031)).verdict, net.ingress(&error(2031)).mark), (NEXT, 0xff));
        assert_eq!(net.ingress(&error(2032)).mark, 0);
        // About what others have said to it.
        let to_it = Packet::new(UDP, net.lent, SocketAddr::new(net.far.ip(), 2031)).ip();
        assert_eq!(net.ingress(&error_about(net.lent.ip(), &to_it)).mark, 0);
    });
}

#[test]
fn fragments_for_the_control_port_are_marked_where_hosts_are_spoken_for() {
    on_both_families(|v4| {
        let net = Forwarding::new(v4, Delivery::Passing);
        let to = |port| Packet::new(UDP, net.lent, SocketAddr::new(net.far.ip(), port)).fragments(48);
        let marks = |pieces: [Vec<u8>; 2]| -> Vec<u32> { pieces.iter().map(|piece| net.ingress(piece).mark).collect() };
        assert!(marks(to(2031)).iter().all(|mark| *mark == 0));
        net.datapath.claim_fragments(Some(2031)).expect("set");
        assert!(marks(to(2031)).iter().all(|mark| *mark == 0xff));
        assert!(marks(to(2032)).iter().all(|mark| *mark == 0));
        net.datapath.claim_fragments(None).expect("set");
        assert!(marks(to(2031)).iter().all(|mark| *mark == 0));
    });
}

#[test]
fn nobody_but_its_own_namespace_sends_in_a_flow() {
    on_both_families(|v4| {
        for (delivery, passes) in [
            (Delivery::Stack, false),
            (Delivery::Routes, false),
            (Delivery::Endpoint(2), false),
            (Delivery::Endpoint(1), true),
        ] {
            let net = Forwarding::new(v4, delivery);
            let packet = Packet::new(TCP, net.far, net.lent).bytes();
            // Not known; known by another address; known.
            assert_eq!(net.endpoint(&packet), SHOT);
            for (address, passes) in [(net.lent.ip(), false), (net.far.ip(), passes)] {
                net.datapath.set_endpoint(1, &Endpoint { address, unknown: Unknown::Dropped }).expect("set");
                assert_eq!(net.endpoint(&packet), if passes { REDIRECT } else { SHOT }, "{delivery:?}");
            }
            // Nor does that, while its socket is being moved.
            let flow = FlowTuple { transport: Transport::Tcp, local: net.far, remote: net.lent };
            let is_held = || {
                let before = counter(&net.datapath, "held");
                net.endpoint(&packet);
                counter(&net.datapath, "held") > before
            };
            net.datapath.set_helped(&flow, &RESTS).expect("rest");
            assert!(is_held(), "{delivery:?}");
            net.datapath.remove_helped(&flow).expect("wake");
            assert!(!is_held(), "{delivery:?}");
            // ARP.
            let mut other = packet.clone();
            other[12..14].copy_from_slice(&[8, 6]);
            assert_eq!(net.endpoint(&other), SHOT);
            // What is from the host's own stack is not forwarded, and what is not toward another host neither.
            if delivery != Delivery::Routes {
                assert_eq!(net.ingress(&packet).verdict, NEXT);
            }
        }
    });
}

/// Nanoseconds of processor time that this process has had.
fn processor_time() -> u64 {
    // SAFETY: plain integers, for which zero is a value.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: room for what the call fills in.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Milliseconds of processor time for each GB that goes over, at both ends, and the median round trip in microseconds.
fn cost(here: &TcpStream, there: &TcpStream) -> (f64, f64) {
    const BYTES: usize = 1 << 30;
    let before = processor_time();
    thread::scope(|scope| {
        let (mut from, mut to) = (here, there);
        scope.spawn(move || (0..BYTES >> 18).for_each(|_| from.write_all(&[0; 1 << 18]).expect("write")));
        let mut block = vec![0; 1 << 18];
        (0..BYTES >> 18).for_each(|_| to.read_exact(&mut block).expect("read"));
    });
    let spent = (processor_time() - before) as f64 / 1e6 / (BYTES as f64 / 1e9);
    for stream in [here, there] {
        stream.set_nodelay(true).expect("TCP_NODELAY");
    }
    let echo = |mut stream: &TcpStream| {
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && byte[0] == 1 {
            stream.write_all(&byte).expect("write");
        }
    };
    let mut trips = thread::scope(|scope| {
        scope.spawn(|| echo(there));
        let mut stream = here;
        let trips: Vec<f64> = (0..20_000)
            .map(|_| {
                let start = std::time::Instant::now();
                stream.write_all(&[1]).expect("write");
                stream.read_exact(&mut [0]).expect("read");
                start.elapsed().as_nanos() as f64 / 1e3
            })
            .collect();
        stream.write_all(&[0]).expect("write");
        trips
    });
    trips.sort_by(f64::total_cmp);
    (spent, trips[trips.len() / 2])
}

/// Nanoseconds of processor time for each small datagram from one socket to the other, whether or not it is read there.
fn packet_cost(from: &UdpSocket, to: SocketAddr) -> f64 {
    const PACKETS: u32 = 300_000;
    from.connect(to).expect("connect");
    let before = processor_time();
    for _ in 0..PACKETS {
        from.send(&[0; 72]).expect("send");
    }
    (processor_time() - before) as f64 / f64::from(PACKETS)
}

/// Whether there is to be measured: `WHIMBREL_MEASURE=1 cargo test --release --test endpoint costs -- --nocapture
/// --test-threads=1`
fn measures() -> bool {
    std::env::var_os("WHIMBREL_MEASURE").is_some()
}

#[test]
fn costs_beside_a_plain_socket() {
    if !measures() {
        return;
    }
    on_both_families(|v4| {
        let host = OwnAddress::new(v4);
        let inside = host.listen_inside();
        let plain = TcpListener::bind((host.own, OTHER + 1)).expect("listen");
        for _ in 0..6 {
            for (what, listener) in [("plain socket", &plain), ("in an endpoint namespace", &inside)] {
                host.net.far.enter();
                let there = patient(TcpStream::connect(listener.local_addr().expect("local")).expect("connect"));
                let here = patient(listener.accept().expect("accept").0);
                let (out, trip) = cost(&here, &there);
                let (into, _) = cost(&there, &here);
                println!("{what}: {out:.0} ms/GB out, {into:.0} ms/GB in, round trip {trip:.1} us");
            }
        }
    });
}

#[test]
fn costs_of_an_anchor_beside_a_router() {
    if !measures() {
        return;
    }
    on_both_families(|v4| {
        let routed = OwnAddress::new(v4);
        let plain = TcpListener::bind((routed.own, OTHER + 1)).expect("listen");
        let net = Anchored::new(v4);
        net.lead(Transport::Tcp, Carrier::Tunnel);
        let (here, there) = net.connection();
        net.lead(Transport::Tcp, Carrier::Rewrite);
        net.lead(Transport::Udp, Carrier::Rewrite);
        let (_near, anchored) = net.datagrams();
        routed.net.host.enter();
        let host = UdpSocket::bind((routed.own, OTHER + 1)).expect("bind");
        let host = host.local_addr().map(|name| (host, name)).expect("local");
        let inside = routed.bind_inside();
        routed.net.far.enter();
        let far = UdpSocket::bind((routed.far, 0)).expect("bind");
        for _ in 0..6 {
            let router = packet_cost(&far, host.1);
            let namespace = packet_cost(&far, inside.local_addr().expect("local"));
            let anchor = packet_cost(&anchored, SocketAddr::new(net.lent, PORT));
            println!(
                "router {router:.0}, router and namespace {namespace:.0}, anchor and namespace {anchor:.0} ns/packet"
            );
        }
        for _ in 0..6 {
            routed.net.far.enter();
            let far = patient(TcpStream::connect(plain.local_addr().expect("local")).expect("connect"));
            let near = patient(plain.accept().expect("accept").0);
            for (what, here, there) in [("router", &near, &far), ("anchor", &here, &there)] {
                let (out, trip) = cost(here, there);
                let (into, _) = cost(there, here);
                println!("{what}: {out:.0} ms/GB out, {into:.0} ms/GB in, round trip {trip:.1} us");
            }
        }
    });
}
