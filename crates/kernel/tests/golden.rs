//! Snapshots that other kernels and processors have written are restored by this one. Run as root.
//!
//! `vectors/linux-KERNEL-PROCESSOR` holds sockets that were written down there, all in the same state:
//! - `near` and `far`: both ends of a connection over IPv4. The near end has data that was not read, data that was sent
//!   and lost, and data that was never sent; the far end has data that was not read. Its program has set options.
//! - `closing-near` and `closing-far`: the same over IPv6, where both programs have closed what they say: the far end's
//!   has been told the near one's, whose own end waits behind its data.
//! - `datagrams`: a connected UDP socket with three datagrams that were not read, one of them empty.
//! - `listener`: a socket that listens.
//!
//! This test wrote them there (`xtask test-kernels SYSTEM --test golden`): they are its lines, without `snapshot: `.

mod hosts;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use hosts::{Host, PATIENCE, wait};
use rustix::net::sockopt;
use whimbrel_kernel::checkpoint::{Checkpoint, Defaults};
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_wire::snapshot::{Body, Snapshot, Stream, StreamState};

/// What the near end has sent before: it has arrived, and nobody has read it.
const BEFORE: usize = 300;
/// What the far end has sent.
const UNREAD: usize = 700;
/// What waits in a UDP socket.
const DATAGRAMS: [&[u8]; 3] = [b"one", b"", b"three"];
const LISTENER: u16 = 7000;

/// By kernel and processor.
const WRITTEN: [(&str, &str); 5] = [
    ("6.1 on arm64", include_str!("vectors/linux-6.1-arm64")),
    ("6.12 on arm64", include_str!("vectors/linux-6.12-arm64")),
    ("6.1 on x86-64", include_str!("vectors/linux-6.1-x86-64")),
    ("6.12 on x86-64", include_str!("vectors/linux-6.12-x86-64")),
    ("6.18 on x86-64", include_str!("vectors/linux-6.18-x86-64")),
];

/// Two hosts with a cable that is short of room, so that few bytes fill it:
///
/// ```text
/// (own) near e0 -- d0 far (other)
/// ```
#[derive(Clone, Copy)]
struct Plan {
    ip: &'static str,
    own: &'static str,
    other: &'static str,
    /// Of the cable's ends.
    link: [&'static str; 2],
    length: u8,
    nodad: &'static str,
    /// IPv6 allows no less than 1280.
    mtu: u16,
    /// Segments on their way at first.
    window: u8,
    /// What the near end is given when nothing gets through any more: some of it is sent and lost, some is not sent.
    lost: usize,
}

const IPV4: Plan = Plan {
    ip: "ip",
    own: "10.5.0.1",
    other: "10.9.0.1",
    link: ["10.1.0.1/24", "10.1.0.2/24"],
    length: 32,
    nodad: "",
    mtu: 400,
    window: 4,
    lost: 2500,
};
const IPV6: Plan = Plan {
    ip: "ip -6",
    own: "fd05::1",
    other: "fd09::1",
    link: ["fd01::1/64", "fd01::2/64"],
    length: 128,
    nodad: "nodad",
    mtu: 1280,
    window: 1,
    lost: 4000,
};

impl Plan {
    /// Where sockets go on that were written down: the hosts have other addresses.
    fn elsewhere(self) -> Self {
        match self.ip {
            "ip" => Self { own: "10.55.0.1", other: "10.99.0.1", ..self },
            _ => Self { own: "fd55::1", other: "fd99::1", ..self },
        }
    }

    fn addresses(self) -> [IpAddr; 2] {
        [self.own, self.other].map(|address| address.parse().unwrap())
    }

    fn build(self) -> (Host, Host) {
        let Self { ip, own, other, link, length, nodad, mtu, window, .. } = self;
        let (near, far) = (Host::new(), Host::new());
        near.cable("e0", &far, "d0");
        for (host, interface, at, own, other) in [(&near, "e0", 0, own, other), (&far, "d0", 1, other, own)] {
            let (address, (gateway, _)) = (link[at], link[1 - at].split_once('/').unwrap());
            host.sh(&format!(
                "ip link set {interface} mtu {mtu}; {ip} addr add {address} dev {interface} {nodad};
                 {ip} addr add {own}/{length} dev lo {nodad};
                 {ip} route add {other}/{length} via {gateway} dev {interface} src {own} initcwnd {window};
                 echo reno >/proc/sys/net/ipv4/tcp_congestion_control"
            ));
        }
        (near, far)
    }

    /// A connection that waits for nothing.
    fn connect(self, near: &Host, far: &Host) -> (TcpStream, TcpStream) {
        let to = SocketAddr::new(self.addresses()[1], LISTENER);
        let (mut here, mut there) = near.connect(far, to);
        here.set_nodelay(false).unwrap();
        there.set_nodelay(false).unwrap();
        hosts::exchange(&mut here, &mut there);
        // Both ends of the connection have sent, all has arrived, and that is known.
        here.write_all(&pattern(0, BEFORE)).unwrap();
        there.write_all(&pattern(0, UNREAD)).unwrap();
        wait("all has arrived, and that is known", || {
            let sent = |end: &TcpStream, length| end.peek(&mut vec![0; 2 * length]).is_ok_and(|got| got == length);
            let unacknowledged = |host: &Host| host.sh("ss -tnH").split_whitespace().nth(2) != Some("0");
            sent(&there, BEFORE) && sent(&here, UNREAD) && !unacknowledged(near) && !unacknowledged(far)
        });
        (here, there)
    }
}

/// What a host is sent is lost from now on.
const LOSE: &str =
    "nft 'add table inet lossy; add chain inet lossy into { type filter hook prerouting priority 0 ; policy drop ; }'";

fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn stream(snapshot: &mut Snapshot) -> &mut Stream {
    match &mut snapshot.body {
        Body::Stream(stream) => stream,
        other => panic!("{other:?}"),
    }
}

/// Written down, and gone.
fn take(socket: impl Into<std::os::fd::OwnedFd>) -> Snapshot {
    let checkpoint = Checkpoint::freeze(socket.into()).unwrap();
    let snapshot = checkpoint.dump(&Defaults::look().unwrap(), &mut SockDiag::open().unwrap()).unwrap();
    checkpoint.destroy(&mut SockDiag::open().unwrap()).unwrap();
    snapshot
}

/// Its bytes, as they are read elsewhere, with the socket at another address there.
fn arrived(bytes: &[u8], local: IpAddr, remote: Option<IpAddr>) -> Snapshot {
    let mut snapshot = Snapshot::decode(bytes).unwrap();
    // Byte for byte what this version writes, whatever the processor.
    let mut again = Vec::new();
    snapshot.encode(&mut again);
    assert_eq!(again, bytes);
    snapshot.local = SocketAddr::new(local, snapshot.local.port());
    let moved = |from: SocketAddr| SocketAddr::new(remote.unwrap(), from.port());
    match &mut snapshot.body {
        Body::Stream(stream) => stream.remote = moved(stream.remote),
        Body::Datagram(datagrams) => {
            datagrams.remote = datagrams.remote.map(moved);
            for queued in &mut datagrams.queue {
                queued.from = moved(queued.from);
            }
        }
        Body::Listening { .. } => {}
    }
    snapshot
}

/// Rebuilt, and awake.
fn goes_on(host: &Host, snapshot: &Snapshot) -> std::os::fd::OwnedFd {
    let injector = host.on(|| Injector::open().unwrap());
    let checkpoint = host.on(|| Checkpoint::restore(snapshot, &injector)).unwrap();
    checkpoint.thaw(&injector).unwrap()
}

/// Both ends of a connection over IPv4.
fn write_down_open() -> [Snapshot; 2] {
    let (near, far) = IPV4.build();
    let (mut here, there) = IPV4.connect(&near, &far);
    sockopt::set_tcp_nodelay(&here, true).unwrap();
    sockopt::set_socket_keepalive(&here, true).unwrap();
    sockopt::set_tcp_keepidle(&here, Duration::from_secs(77)).unwrap();
    sockopt::set_tcp_user_timeout(&here, 123_456).unwrap();
    far.sh(LOSE);
    here.write_all(&pattern(BEFORE, IPV4.lost)).unwrap();
    near.sh("ip link set e0 down");
    [near.on(|| take(here)), far.on(|| take(there))]
}

/// Both ends of one over IPv6 that is about to end.
fn write_down_closing() -> [Snapshot; 2] {
    let (near, far) = IPV6.build();
    let (mut here, there) = IPV6.connect(&near, &far);
    there.shutdown(Shutdown::Write).unwrap();
    wait("the end has arrived, and that is known", || {
        let is = |host: &Host, state: &str| !host.sh(&format!("ss -tnH state {state}")).is_empty();
        is(&near, "close-wait") && is(&far, "fin-wait-2")
    });
    far.sh(LOSE);
    here.write_all(&pattern(BEFORE, IPV6.lost)).unwrap();
    here.shutdown(Shutdown::Write).unwrap();
    near.sh("ip link set e0 down");
    [near.on(|| take(here)), far.on(|| take(there))]
}

fn write_down_datagrams() -> Snapshot {
    let (near, far) = IPV4.build();
    let [own, other] = IPV4.addresses();
    let there = far.on(|| UdpSocket::bind((other, LISTENER)).unwrap());
    let here = near.on(|| UdpSocket::bind((own, 0)).unwrap());
    here.connect(there.local_addr().unwrap()).unwrap();
    sockopt::set_ip_tos(&here, 0x10).unwrap();
    // What was sent before it has arrived as well.
    let last = near.on(|| UdpSocket::bind((own, 0)).unwrap());
    last.set_read_timeout(Some(PATIENCE)).unwrap();
    for datagram in DATAGRAMS {
        there.send_to(datagram, here.local_addr().unwrap()).unwrap();
    }
    there.send_to(b"last", last.local_addr().unwrap()).unwrap();
    last.recv(&mut [0; 9]).unwrap();
    near.on(|| take(here))
}

fn write_down_listener() -> Snapshot {
    let (near, _far) = IPV6.build();
    let here = near.on(|| TcpListener::bind((IPV6.addresses()[0], LISTENER)).unwrap());
    sockopt::set_socket_keepalive(&here, true).unwrap();
    rustix::net::listen(&here, 77).unwrap();
    near.on(|| take(here))
}

/// All that this kernel gives away.
fn write_down() -> BTreeMap<&'static str, Vec<u8>> {
    let [near, far] = write_down_open();
    let [closing_near, closing_far] = write_down_closing();
    let all = [
        ("near", near),
        ("far", far),
        ("closing-near", closing_near),
        ("closing-far", closing_far),
        ("datagrams", write_down_datagrams()),
        ("listener", write_down_listener()),
    ];
    let encoded = all.into_iter().map(|(name, snapshot)| {
        let mut bytes = Vec::new();
        snapshot.encode(&mut bytes);
        (name, bytes)
    });
    encoded.collect()
}

/// Both ends of a connection go on here, at other addresses, and have what they had.
fn both_ends(plan: Plan, bytes: [&[u8]; 2]) -> [TcpStream; 2] {
    let plan_there = plan.elsewhere();
    let (near, far) = plan_there.build();
    let [own, other] = plan_there.addresses();
    let mut ends = [arrived(bytes[0], own, Some(other)), arrived(bytes[1], other, Some(own))];
    let sent = stream(&mut ends[0]).send.clone();
    assert!(sent.unsent > 0 && (sent.unsent as usize) < sent.bytes.len(), "{} of {}", sent.unsent, sent.bytes.len());
    assert_eq!(sent.bytes, pattern(BEFORE, plan.lost));
    // Neither says anything before both are there.
    let rebuilt = [&near, &far].into_iter().zip(&ends).map(|(host, snapshot)| {
        let injector = host.on(|| Injector::open().unwrap());
        (host.on(|| Checkpoint::restore(snapshot, &injector)).unwrap(), injector)
    });
    let woken: Vec<TcpStream> = rebuilt
        .collect::<Vec<_>>()
        .into_iter()
        .map(|(checkpoint, injector)| TcpStream::from(checkpoint.thaw(&injector).unwrap()))
        .collect();
    let Ok([mut here, mut there]) = <[TcpStream; 2]>::try_from(woken) else { panic!("two ends") };
    for end in [&here, &there] {
        end.set_nonblocking(false).unwrap();
        end.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    for (end, expected) in [(&mut here, pattern(0, UNREAD)), (&mut there, pattern(0, BEFORE + plan.lost))] {
        let mut bytes = vec![0; expected.len()];
        end.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, expected);
    }
    [here, there]
}

fn ends(mut end: TcpStream) {
    assert_eq!(end.read(&mut [0]).unwrap(), 0);
    assert!(end.take_error().unwrap().is_none());
}

/// They go on on this kernel, at other addresses, as if nothing had been.
fn go_on(written: &BTreeMap<&str, Vec<u8>>) {
    let of = |name: &str| written.get(name).unwrap_or_else(|| panic!("{name} was not written down")).as_slice();

    let [mut here, mut there] = both_ends(IPV4, [of("near"), of("far")]);
    assert!(sockopt::tcp_nodelay(&here).unwrap() && !sockopt::tcp_nodelay(&there).unwrap());
    assert!(sockopt::socket_keepalive(&here).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&here).unwrap(), Duration::from_secs(77));
    assert_eq!(sockopt::tcp_user_timeout(&here).unwrap(), 123_456);
    hosts::exchange(&mut here, &mut there);
    drop(here);
    ends(there);

    let states = ["closing-near", "closing-far"].map(|name| match Snapshot::decode(of(name)).unwrap().body {
        Body::Stream(stream) => stream.state,
        other => panic!("{other:?}"),
    });
    assert_eq!(states, [StreamState::LastAck, StreamState::FinWait2]);
    for end in both_ends(IPV6, [of("closing-near"), of("closing-far")]) {
        ends(end);
    }

    let plan = IPV4.elsewhere();
    let (near, far) = plan.build();
    let [own, other] = plan.addresses();
    let datagrams = arrived(of("datagrams"), own, Some(other));
    let there = far.on(|| UdpSocket::bind((other, LISTENER)).unwrap());
    let here = UdpSocket::from(goes_on(&near, &datagrams));
    assert_eq!(sockopt::ip_tos(&here).unwrap(), 0x10);
    there.send_to(b"four", here.local_addr().unwrap()).unwrap();
    for socket in [&here, &there] {
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut buffer = [0; 100];
    for datagram in DATAGRAMS.into_iter().chain([&b"four"[..]]) {
        let length = here.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], datagram);
    }
    here.send(b"back").unwrap();
    let (length, from) = there.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from), (&b"back"[..], here.local_addr().unwrap()));

    let plan = IPV6.elsewhere();
    let (near, far) = plan.build();
    let [own, _] = plan.addresses();
    let listener = arrived(of("listener"), own, None);
    assert!(matches!(listener.body, Body::Listening { backlog: 77 }), "{listener:?}");
    let here = TcpListener::from(goes_on(&near, &listener));
    assert!(sockopt::socket_keepalive(here.as_fd()).unwrap());
    here.set_nonblocking(false).unwrap();
    let mut there = far.on(|| TcpStream::connect_timeout(&(own, LISTENER).into(), PATIENCE).unwrap());
    let (mut accepted, _) = here.accept().unwrap();
    hosts::exchange(&mut there, &mut accepted);
}

/// A line with the name and a colon, then lines of hexadecimal digits, for each.
fn text(written: &BTreeMap<&str, Vec<u8>>) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, bytes) in written {
        lines.push(format!("{name}:"));
        lines.extend(bytes.chunks(80).map(|row| row.iter().map(|byte| format!("{byte:02x}")).collect()));
    }
    lines
}

fn from_text(text: &str) -> BTreeMap<&str, Vec<u8>> {
    let mut written = BTreeMap::<&str, Vec<u8>>::new();
    let mut name = "";
    for line in text.lines() {
        match line.strip_suffix(':') {
            Some(next) => name = next,
            None => {
                let digits: Vec<u32> = line.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
                let row = digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8);
                written.entry(name).or_default().extend(row);
            }
        }
    }
    written
}

#[test]
#[ignore = "needs root"]
fn what_this_kernel_writes_down_goes_on() {
    let written = write_down();
    let text = text(&written);
    for line in &text {
        println!("snapshot: {line}");
    }
    assert_eq!(from_text(&text.join("\n")), written);
    go_on(&written);
}

#[test]
#[ignore = "needs root"]
fn what_other_kernels_have_written_down_goes_on() {
    for (kernel, text) in WRITTEN {
        println!("written on Linux {kernel}");
        go_on(&from_text(text));
    }
}
