//! Injected packets and real TCP: introductions do no harm where nobody consumes them, kicks end a back-off.

mod hosts;

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use hosts::{Host, PATIENCE, PLANS, Plan, RunDir, exchange, wait};
use rustix::net::sockopt;
use whimbrel_kernel::inject::{Injector, Numbers, Way};
use whimbrel_kernel::kept_address::{Carrier, Kept, KeptAddresses, Mark};
use whimbrel_kernel::route::{MAIN_TABLE, RouteSocket};
use whimbrel_wire::introduction::Introduction;
use whimbrel_wire::{FlowTuple, Transport};

const INTRODUCTION: Introduction = Introduction { index: 0x0102_0304, nonce: 0x1122_3344_5566_7788 };
const MARK: Mark = Mark { value: 0x100, mask: 0xff00 };

fn tuple(near: &TcpStream) -> FlowTuple {
    FlowTuple { transport: Transport::Tcp, local: near.local_addr().unwrap(), remote: near.peer_addr().unwrap() }
}

fn option<T: Copy + Default>(socket: RawFd, level: i32, name: i32) -> T {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` and `length` are valid for writes, and `length` is the size of `value`.
    let result = unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &raw mut length) };
    assert_eq!(result, 0, "getsockopt {name}: {}", std::io::Error::last_os_error());
    value
}

fn set_option(socket: RawFd, name: i32, value: i32) {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is valid for reads of its size.
    let result = unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, name, (&raw const value).cast(), length) };
    assert_eq!(result, 0, "setsockopt {name}: {}", std::io::Error::last_os_error());
}

/// `struct tcp_info` as far as it is looked at (include/uapi/linux/tcp.h).
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Info {
    head: [u8; 8],
    words: [u32; 24],
    rates: [u64; 4],
    segments: [u32; 2],
}

impl Info {
    fn of(stream: &TcpStream) -> Self {
        option(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO)
    }

    /// Steps of back-off.
    fn backoff(&self) -> u8 {
        self.head[4]
    }

    /// The timeout without back-off, in milliseconds.
    fn first_timeout(&self) -> u32 {
        (self.words[0] >> self.backoff()) / 1000
    }

    /// Milliseconds since data was sent last, for the first time or again.
    fn last_sent(&self) -> u32 {
        self.words[9]
    }

    /// Segments that were sent again.
    fn retransmitted(&self) -> u32 {
        self.words[23]
    }

    fn segment_size(&self) -> usize {
        self.words[2] as usize
    }

    fn segments_in(&self) -> u32 {
        self.segments[1]
    }
}

/// The next sequence numbers to send and to receive, of a connection that is at rest.
fn numbers(stream: &TcpStream) -> (u32, u32) {
    let socket = stream.as_raw_fd();
    let (repair, queue, sequence) = (libc::TCP_REPAIR, libc::TCP_REPAIR_QUEUE, libc::TCP_QUEUE_SEQ);
    wait("everything is acknowledged", || {
        let mut waiting: libc::c_int = 0;
        // SAFETY: TIOCOUTQ writes one int.
        assert_eq!(unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut waiting) }, 0);
        waiting == 0
    });
    set_option(socket, repair, 1);
    let [received, sent] = [1, 2].map(|which| {
        set_option(socket, queue, which);
        option::<u32>(socket, libc::IPPROTO_TCP, sequence)
    });
    set_option(socket, queue, 0);
    // Off, without a window probe.
    set_option(socket, repair, -1);
    (sent, received)
}

/// Packets get lost on the way to this host.
fn cut(host: &Host) {
    host.sh(
        "nft 'add table inet cut; add chain inet cut c { type filter hook prerouting priority -400; policy drop; }'",
    );
}

fn restore(host: &Host) {
    host.sh("nft delete table inet cut");
}

#[test]
#[ignore = "needs root"]
fn an_introduction_is_only_acknowledged() {
    for plan in &PLANS {
        let (client, server) = plan.build();
        let (mut near, mut far) = client.connect(&server, plan.server_socket());
        near.write_all(b"a").unwrap();
        far.read_exact(&mut [0]).unwrap();
        let (sent, received) = numbers(&near);
        let injector = client.on(|| Injector::open().unwrap());
        let before = Info::of(&near).segments_in();
        let numbers = Numbers { sequence: sent.wrapping_sub(1), acknowledgement: received, window: 500 };
        let way = Way { mark: None, interface: Some(client.index("e0")) };
        injector.introduce_tcp(&tuple(&near), numbers, INTRODUCTION, way).unwrap();
        // So the server's TCP found both checksums right.
        wait("the server acknowledges", || Info::of(&near).segments_in() > before);
        near.write_all(b"b").unwrap();
        far.read_exact(&mut [0]).unwrap();

        let receiver = server.on(|| UdpSocket::bind(plan.server_socket()).unwrap());
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        let sender = client.on(|| UdpSocket::bind((plan.client, 0)).unwrap());
        let local = sender.local_addr().unwrap();
        let flow = FlowTuple { transport: Transport::Udp, local, remote: receiver.local_addr().unwrap() };
        injector.introduce_udp(&flow, INTRODUCTION, Way::default()).unwrap();
        let mut payload = [0; 64];
        let (length, from) = receiver.recv_from(&mut payload).unwrap();
        assert_eq!((&payload[..length], from), (&INTRODUCTION.udp_payload()[..], local));
    }
}

/// Without a byte it would be answered twice a second.
#[test]
#[ignore = "needs root"]
fn every_question_is_answered() {
    for plan in &PLANS {
        let (client, server) = plan.build();
        let (mut near, mut far) = client.connect(&server, plan.server_socket());
        let injector = client.on(|| Injector::open().unwrap());
        // Also where nothing was sent yet, and the byte is in the place of the first segment.
        for _ in 0..2 {
            let (sent, received) = numbers(&near);
            let numbers = Numbers { sequence: sent.wrapping_sub(1), acknowledgement: received, window: 500 };
            for _ in 0..5 {
                let before = Info::of(&near).segments_in();
                injector.ask_tcp(&tuple(&near), numbers, Way::default()).unwrap();
                wait("the server answers", || Info::of(&near).segments_in() > before);
            }
            exchange(&mut near, &mut far);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn what_cannot_be_sent_is_an_error() {
    let host = Host::new();
    let injector = host.on(|| Injector::open().unwrap());
    let ends = |transport, local: &str, remote: &str| FlowTuple {
        transport,
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
    };
    for (local, remote) in [("10.1.1.1:1", "10.2.2.2:2"), ("[fd01::1]:1", "[fd02::2]:2")] {
        let flow = ends(Transport::Udp, local, remote);
        let error = injector.introduce_udp(&flow, INTRODUCTION, Way::default()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH), "{error}");
        assert!(injector.kick(&flow, 1).is_err(), "not TCP");
        // No such socket: nothing happens.
        injector.kick(&ends(Transport::Tcp, local, remote), 1).unwrap();
    }
}

/// Waits until the sender is deep in its back-off, and longer after its last attempt than its timeout was in the
/// beginning: the kick makes it no shorter.
fn back_off(near: &TcpStream) {
    wait("the back-off", || {
        let info = Info::of(near);
        info.backoff() >= 2 && info.last_sent() > info.first_timeout() + 50
    });
}

/// Kicks until something comes back; returns how long that took and the number of kicks.
fn kick_until(
    injector: &Injector,
    near: &TcpStream,
    snd_una: u32,
    mut arrived: impl FnMut() -> bool,
) -> (Duration, u32) {
    let start = Instant::now();
    for kicks in 1..=20 {
        injector.kick(&tuple(near), snd_una).unwrap();
        let patience = Instant::now() + Duration::from_millis(2);
        while Instant::now() < patience {
            if arrived() {
                return (start.elapsed(), kicks);
            }
        }
    }
    panic!("20 kicks, and nothing was sent again");
}

/// Trusts not even `lo`, and lets no such error out.
const FIREWALL: &str = "nft 'add table inet wall; add chain inet wall i { type filter hook input priority 0; };
    add chain inet wall o { type filter hook output priority 0; };
    add rule inet wall i ct state invalid drop; add rule inet wall o ct state invalid drop;
    add rule inet wall o oifname != lo icmp type destination-unreachable drop;
    add rule inet wall o oifname != lo icmpv6 type destination-unreachable drop'";

fn kicked_on_its_interface(plan: &Plan, congestion: &str, strict: bool) {
    let (client, server) = plan.build();
    if strict {
        client.strict_rp_filter();
        client.sh(FIREWALL);
    }
    let (mut near, mut far) = client.connect(&server, plan.server_socket());
    sockopt::set_tcp_congestion(&near, congestion).unwrap();
    exchange(&mut near, &mut far);
    let (snd_una, _) = numbers(&near);
    let injector = client.on(|| Injector::open().unwrap());

    cut(&server);
    near.write_all(b"b").unwrap();
    back_off(&near);
    restore(&server);
    far.set_nonblocking(true).unwrap();
    let (time, kicks) = kick_until(&injector, &near, snd_una, || far.read(&mut [0]).is_ok());
    println!("kick {} {congestion} strict={strict}: {time:?} after {kicks} kicks", plan.ip);
    assert!(time < Duration::from_millis(50), "{time:?}");
}

#[test]
#[ignore = "needs root"]
fn a_kick_ends_the_back_off() {
    for plan in &PLANS {
        for congestion in ["cubic", "bbr"] {
            kicked_on_its_interface(plan, congestion, congestion == "bbr");
        }
    }
}

/// The host has roamed: the socket's address has no local route any more, and packets leave by the TUN device.
fn kicked_after_roaming(plan: &Plan, congestion: &str) {
    let (client, server) = plan.build();
    client.strict_rp_filter();
    client.sh(FIREWALL);
    let mut tun = tun(&client);
    let (mut near, mut far) = client.connect(&server, plan.server_socket());
    sockopt::set_tcp_congestion(&near, congestion).unwrap();
    exchange(&mut near, &mut far);
    let (snd_una, _) = numbers(&near);
    let injector = client.on(|| Injector::open().unwrap());

    plan.roam(&client);
    let dir = RunDir::new();
    let mut kept = client.on(|| KeptAddresses::open(&dir.0).unwrap());
    let carrier = Carrier { tun: client.index("wbt"), mtu: 1400, mark: MARK };
    let address: IpAddr = plan.client.parse().unwrap();
    client.on(|| kept.apply(&carrier, &Kept { addresses: BTreeSet::from([address]), ..Kept::default() })).unwrap();
    near.write_all(b"b").unwrap();
    back_off(&near);
    let mut packet = [0; 2000];
    while tun.read(&mut packet).is_ok() {}
    // Nothing but the kick's retransmission is of any interest; the kernel's own would take 600 ms and more.
    let (time, kicks) = kick_until(&injector, &near, snd_una, || tun.read(&mut packet).is_ok());
    println!("kick after roaming {} {congestion}: {time:?} after {kicks} kicks", plan.ip);
    assert!(time < Duration::from_millis(50), "{time:?}");
    client.on(|| kept.release()).unwrap();
}

#[test]
#[ignore = "needs root"]
fn a_kick_reaches_a_socket_whose_address_is_gone() {
    for plan in &PLANS {
        for congestion in ["cubic", "bbr"] {
            kicked_after_roaming(plan, congestion);
        }
    }
}

/// Sends full segments that get lost, and the loss probe after them. Returns `snd_una`, or nothing if the first timeout
/// came before the way was free again.
fn lose_a_flight(near: &mut TcpStream, flight: &[u8], server: &Host, meanwhile: impl FnOnce()) -> Option<u32> {
    let (snd_una, _) = numbers(near);
    let before = Info::of(near).retransmitted();
    cut(server);
    near.write_all(flight).unwrap();
    wait("the loss probe", || Info::of(near).retransmitted() > before);
    meanwhile();
    restore(server);
    (Info::of(near).backoff() == 0).then_some(snd_una)
}

/// Before the first timeout. Returns whether that was so and everything was there at once.
fn shrunk(plan: &Plan, congestion: &str, route_too: bool) -> bool {
    let (client, server) = plan.build();
    let (mut near, mut far) = client.connect(&server, plan.server_socket());
    sockopt::set_tcp_congestion(&near, congestion).unwrap();
    exchange(&mut near, &mut far);
    let injector = client.on(|| Injector::open().unwrap());
    let mut routes = client.on(|| RouteSocket::open().unwrap());
    let to: IpAddr = plan.server.parse().unwrap();

    // A shorter segment at the end would not be larger than the new MTU, and wait for its timeout.
    let mut flight = vec![1; 4 * Info::of(&near).segment_size()];
    let lower_route = || {
        let Plan { ip, server, host, router, .. } = plan;
        if route_too {
            client.sh(&format!("{ip} route add {server}/{host} via {router} mtu 1400"));
        }
    };
    let Some(snd_una) = lose_a_flight(&mut near, &flight, &server, lower_route) else { return false };
    let start = Instant::now();
    injector.shrink(&tuple(&near), snd_una, if route_too { 1401 } else { 1492 }).unwrap();
    far.read_exact(&mut flight).unwrap();
    let time = start.elapsed();
    println!("shrink {} {congestion}, route too: {route_too}: {time:?}", plan.ip);

    let cached = || client.sh(&format!("{} route get {}", plan.ip, plan.server)).contains("expires");
    assert_eq!(routes.route_to(to, None, None).unwrap().mtu, Some(if route_too { 1400 } else { 1492 }));
    // Where the route's own MTU is smaller nothing is left behind.
    assert_eq!(cached(), !route_too);
    client.on(|| routes.forget_path_mtu(to, MAIN_TABLE)).unwrap();
    assert!(!cached());
    // Once more there is nothing to forget.
    client.on(|| routes.forget_path_mtu(to, MAIN_TABLE)).unwrap();
    time < Duration::from_millis(50)
}

#[test]
#[ignore = "needs root"]
fn a_smaller_mtu_resends_what_is_in_flight() {
    for plan in &PLANS {
        for congestion in ["cubic", "bbr"] {
            for route_too in [false, true] {
                // On a busy machine the first timeout may come before the error.
                assert!((0..5).any(|_| shrunk(plan, congestion, route_too)), "{} {congestion} {route_too}", plan.ip);
            }
        }
    }
}

/// In back-off, but too soon after the last attempt for a kick: the timer is at its shortest already or becomes so, and
/// that is all. Full segments can be had at once all the same.
fn shrunk_in_back_off(plan: &Plan, congestion: &str) {
    let (client, server) = plan.build();
    let (mut near, mut far) = client.connect(&server, plan.server_socket());
    sockopt::set_tcp_congestion(&near, congestion).unwrap();
    exchange(&mut near, &mut far);
    let injector = client.on(|| Injector::open().unwrap());
    let mut flight = vec![1; 4 * Info::of(&near).segment_size()];
    let (snd_una, _) = numbers(&near);
    cut(&server);
    near.write_all(&flight).unwrap();
    wait("the back-off", || Info::of(&near).backoff() >= 2);
    restore(&server);
    let info = Info::of(&near);
    assert!(info.last_sent() + 50 < info.first_timeout(), "too slow for this test");
    let start = Instant::now();
    for _ in 0..info.backoff() {
        injector.kick(&tuple(&near), snd_una).unwrap();
    }
    assert_eq!((Info::of(&near).backoff(), Info::of(&near).retransmitted()), (0, info.retransmitted()));
    injector.shrink(&tuple(&near), snd_una, 1492).unwrap();
    // The window is one segment now, and its acknowledgement may be delayed: what counts is the first.
    far.read_exact(&mut flight[..1]).unwrap();
    let time = start.elapsed();
    println!("shrink in back-off {} {congestion}: {time:?}", plan.ip);
    assert!(time < Duration::from_millis(30), "{time:?}");
}

#[test]
#[ignore = "needs root"]
fn a_smaller_mtu_resends_in_back_off_too() {
    for plan in &PLANS {
        for congestion in ["cubic", "bbr"] {
            shrunk_in_back_off(plan, congestion);
        }
    }
}

/// A plain TUN device, without offloads, that is gone with its descriptor.
fn tun(host: &Host) -> File {
    use std::os::unix::fs::OpenOptionsExt;
    let _here = host.enter();
    let open = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
    let file = open.unwrap();
    let mut request = [0u8; 40];
    request[..3].copy_from_slice(b"wbt");
    request[16..18].copy_from_slice(&((libc::IFF_TUN | libc::IFF_NO_PI) as u16).to_ne_bytes());
    // SAFETY: the request is as large as an ifreq and outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    host.sh("ip link set wbt up mtu 1400");
    file
}

#[test]
#[ignore = "needs root"]
fn a_sender_that_waits_is_told_what_has_arrived() {
    for plan in &PLANS {
        let (client, server) = plan.build();
        client.strict_rp_filter();
        let (mut near, mut far) = client.connect(&server, plan.server_socket());
        exchange(&mut near, &mut far);
        let (sent, received) = numbers(&near);
        let injector = client.on(|| Injector::open().unwrap());
        cut(&server);
        far.write_all(&[7; 5000]).unwrap();
        let mut there = [0; 5000];
        near.read_exact(&mut there).unwrap();
        assert_eq!(there, [7; 5000]);
        back_off(&far);
        let tries = Info::of(&far).retransmitted();
        restore(&server);
        let outside = |number: u32| injector.provoke_acknowledgement(&tuple(&near), sent, number).unwrap();
        outside(received.wrapping_add(5000));
        wait("everything is acknowledged", || Info::of(&far).backoff() == 0);
        assert_eq!(Info::of(&far).retransmitted(), tries, "it was told before it tried again");
        // It is not disturbed, nor does it end.
        exchange(&mut near, &mut far);
    }
}

/// A connection whose other end is gone ends as if that had reset it, whatever the reverse path filter says;
/// that end hears nothing of it.
#[test]
#[ignore = "needs root"]
fn a_reset_ends_the_socket_alone() {
    for plan in &PLANS {
        let (near, far) = plan.build();
        near.strict_rp_filter();
        let mut pairs = [near.connect(&far, plan.server_socket()), near.connect(&far, plan.server_socket())];
        let [flow, other] = [0, 1].map(|at| numbers(&pairs[at].0));
        let injector = near.on(|| Injector::open().unwrap());
        let local = |at: usize| (pairs[at].0.local_addr().unwrap(), pairs[at].0.peer_addr().unwrap());
        let tuple = |at| {
            let (local, remote) = local(at);
            FlowTuple { transport: Transport::Tcp, local, remote }
        };
        injector.reset(&tuple(0), flow.1).unwrap();
        // Not what it expects next: at the most a challenge acknowledgement comes of it (RFC 5961 §3.2).
        injector.reset(&tuple(1), other.1.wrapping_add(1)).unwrap();
        let mut byte = [0];
        let error = pairs[0].0.read(&mut byte).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        let unaware = &pairs[0].1;
        unaware.set_nonblocking(true).unwrap();
        assert_eq!(unaware.peek(&mut byte).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        let (stays, remote) = &mut pairs[1];
        exchange(stays, remote);
    }
}
