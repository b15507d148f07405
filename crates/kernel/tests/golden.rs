//! Snapshots that other kernels have written are restored by this one. Run as root.
//!
//! `vectors/KERNEL.near` and `.far` are both ends of one connection, written down at one moment: the near end has data that was not read, data that was
//! sent and lost, and data that was never sent; the far end has data that was not read. They were written on that kernel by
//! `WHIMBREL_SHOW_SNAPSHOTS=1 cargo test -p whimbrel-kernel --test golden -- --ignored --nocapture`.

mod hosts;

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use hosts::{Host, PATIENCE, wait};
use rustix::net::sockopt;
use whimbrel_kernel::frozen::{Defaults, Frozen};
use whimbrel_kernel::inject::Injector;
use whimbrel_wire::snapshot::{Body, Snapshot, Stream};

/// What the near end has sent before: it has arrived, and nobody has read it.
const BEFORE: usize = 300;
/// What it has been given afterwards. A part of it is lost.
const LOST: usize = 2500;
/// What the far end has sent.
const UNREAD: usize = 700;

/// By kernel: the near and the far end.
const WRITTEN: [(&str, &str, &str); 1] =
    [("6.18", include_str!("vectors/linux-6.18.near"), include_str!("vectors/linux-6.18.far"))];

/// Two hosts with a cable that is short of room, so that few bytes fill it.
fn pair(near_address: &str, far_address: &str) -> (Host, Host) {
    let (near, far) = (Host::new(), Host::new());
    near.cable("e0", &far, "d0");
    // Short segments, and four of them on their way at first.
    for (host, interface, own, other) in
        [(&near, "e0", near_address, far_address), (&far, "d0", far_address, near_address)]
    {
        host.sh(&format!(
            "ip link set {interface} mtu 400; ip addr add {own}/32 dev lo; ip route add {other}/32 dev {interface} src {own} initcwnd 4;
             echo reno >/proc/sys/net/ipv4/tcp_congestion_control"
        ));
    }
    (near, far)
}

fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn stream(snapshot: &mut Snapshot) -> &mut Stream {
    match &mut snapshot.body {
        Body::Stream(stream) => stream,
        other => panic!("{other:?}"),
    }
}

/// Both ends of a connection, as this kernel gives them away.
fn write_down() -> [Snapshot; 2] {
    let (near, far) = pair("10.5.0.1", "10.9.0.1");
    let listener = far.on(|| TcpListener::bind("10.9.0.1:7000").unwrap());
    let mut here = near.on(|| TcpStream::connect_timeout(&listener.local_addr().unwrap(), PATIENCE).unwrap());
    let (mut there, _) = listener.accept().unwrap();
    sockopt::set_tcp_nodelay(&here, true).unwrap();
    sockopt::set_socket_keepalive(&here, true).unwrap();
    sockopt::set_tcp_keepidle(&here, Duration::from_secs(77)).unwrap();
    sockopt::set_tcp_user_timeout(&here, 123_456).unwrap();
    hosts::exchange(&mut here, &mut there);
    here.write_all(&pattern(0, BEFORE)).unwrap();
    there.write_all(&pattern(0, UNREAD)).unwrap();
    wait("all has arrived, and that is known", || {
        let sent = |end: &TcpStream, length| end.peek(&mut vec![0; 2 * length]).is_ok_and(|got| got == length);
        sent(&there, BEFORE) && sent(&here, UNREAD) && near.sh("ss -tnH").split_whitespace().nth(2) == Some("0")
    });
    far.sh("nft 'add table inet lossy; add chain inet lossy into { type filter hook prerouting priority 0 ; policy drop ; }'");
    here.write_all(&pattern(BEFORE, LOST)).unwrap();
    near.sh("ip link set e0 down");
    [here, there].map(|end| {
        let frozen = Frozen::freeze(end.into()).unwrap();
        let snapshot = frozen.dump(&Defaults::look().unwrap()).unwrap();
        frozen.destroy().unwrap();
        snapshot
    })
}

/// Both ends go on on this kernel, at other addresses, as if nothing had been.
fn go_on(mut ends: [Snapshot; 2]) {
    let [here, there]: [IpAddr; 2] = [[10, 55, 0, 1].into(), [10, 99, 0, 1].into()];
    let (near, far) = pair("10.55.0.1", "10.99.0.1");
    for (end, own, other) in [(0, here, there), (1, there, here)] {
        let snapshot = &mut ends[end];
        snapshot.local = SocketAddr::new(own, snapshot.local.port());
        let stream = stream(snapshot);
        stream.remote = SocketAddr::new(other, stream.remote.port());
    }
    let sent = stream(&mut ends[0]).send.clone();
    assert!(sent.unsent > 0 && (sent.unsent as usize) < sent.bytes.len(), "{} of {}", sent.unsent, sent.bytes.len());
    assert_eq!(sent.bytes, pattern(BEFORE, LOST));
    let rebuilt = [&near, &far].into_iter().zip(&ends).map(|(host, snapshot)| {
        let injector = host.on(|| Injector::open().unwrap());
        (host.on(|| Frozen::restore(snapshot, &injector)).unwrap(), injector)
    });
    let woken: Vec<TcpStream> = rebuilt
        .collect::<Vec<_>>()
        .into_iter()
        .map(|(frozen, injector)| TcpStream::from(frozen.thaw(&injector).unwrap()))
        .collect();
    let Ok([mut here, mut there]) = <[TcpStream; 2]>::try_from(woken) else { panic!("two ends") };
    for end in [&here, &there] {
        end.set_nonblocking(false).unwrap();
        end.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    assert!(sockopt::tcp_nodelay(&here).unwrap() && !sockopt::tcp_nodelay(&there).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&here).unwrap(), Duration::from_secs(77));
    assert_eq!(sockopt::tcp_user_timeout(&here).unwrap(), 123_456);
    for (end, expected) in [(&mut here, pattern(0, UNREAD)), (&mut there, pattern(0, BEFORE + LOST))] {
        let mut bytes = vec![0; expected.len()];
        end.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, expected);
    }
    hosts::exchange(&mut here, &mut there);
    drop(here);
    match there.read(&mut [0]) {
        Ok(0) => {}
        other => panic!("it does not end: {other:?}, {:?}", ErrorKind::UnexpectedEof),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

#[test]
#[ignore = "needs root"]
fn what_this_kernel_writes_down_goes_on() {
    let ends = write_down();
    let written = ends.each_ref().map(|end| {
        let mut bytes = Vec::new();
        end.encode(&mut bytes);
        bytes
    });
    if std::env::var_os("WHIMBREL_SHOW_SNAPSHOTS").is_some() {
        for (name, bytes) in ["near", "far"].into_iter().zip(&written) {
            println!("snapshot {name} {}", hex(bytes));
        }
    }
    go_on(written.map(|bytes| Snapshot::decode(&bytes).unwrap()));
}

#[test]
#[ignore = "needs root"]
fn what_other_kernels_have_written_down_goes_on() {
    for (kernel, near, far) in WRITTEN {
        println!("written on Linux {kernel}");
        let ends = [near, far].map(|text| Snapshot::decode(&bytes(text)).unwrap());
        // Byte for byte what this version writes, whatever the processor.
        for (end, text) in ends.iter().zip([near, far]) {
            let mut again = Vec::new();
            end.encode(&mut again);
            assert_eq!(again, bytes(text), "{kernel}");
        }
        go_on(ends);
    }
}
