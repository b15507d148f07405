//! What hosts say of themselves in the handshake of TCP, and what becomes of it on the way.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::thread;
use std::time::Duration;

use support::is_root;
use support::pair::{Pair, flow};
use whimbrel_datapath::{Datapath, Event, Most, Origin, features};
use whimbrel_wire::FlowTuple;

/// Which ends are translated: the near one, the far one.
type Translated = [bool; 2];

/// What was heard, of which connection.
fn heard(datapath: &mut Datapath) -> Vec<(FlowTuple, Origin, Translated)> {
    let mut heard = Vec::new();
    let receiver = &mut |event| {
        if let Event::Greeted { flow, origin, near_translated, far_translated } = event {
            heard.push((flow, origin, [near_translated, far_translated]));
        }
    };
    datapath.drain_events(Most::ALL, receiver).expect("drain");
    heard
}

/// Both ends, at which it is said; the near one's namespace is entered.
fn greeting(pair: &Pair) -> (Datapath, Datapath) {
    let both = [(&pair.far, "far"), (&pair.near, "near")].map(|(namespace, name)| {
        namespace.enter();
        let mut datapath = Datapath::open(&pair.bpffs.pins(name)).expect("open");
        datapath.greet(true).expect("attach");
        datapath
    });
    let [far, near] = both;
    (near, far)
}

fn exchange(near: &mut TcpStream, far: &mut TcpStream) {
    let sent: Vec<u8> = (0..100_000u32).map(|n| n.to_le_bytes()[0]).collect();
    let mut got = vec![0; sent.len()];
    thread::scope(|scope| {
        scope.spawn(|| near.write_all(&sent).expect("write"));
        far.read_exact(&mut got).expect("read");
    });
    assert_eq!(sent, got);
}

#[test]
fn two_hosts_know_of_each_other() {
    if !is_root() {
        return;
    }
    assert!(features().greetings, "this kernel has no options of programs in handshakes");
    let pair = Pair::new();
    let (mut at_near, mut at_far) = greeting(&pair);
    for to in ["10.0.0.2:0", "[fd00::2]:0", "[::ffff:10.0.0.2]:0"] {
        let (mut near, mut far) = pair.connect(to);
        assert_eq!(heard(&mut at_near), [(flow(&near), Origin::Connected, [false; 2])], "{to}");
        assert_eq!(heard(&mut at_far), [(flow(&far), Origin::Accepted, [false; 2])], "{to}");
        exchange(&mut near, &mut far);
    }
    // One that does not say it is told nothing, and hears nothing.
    at_near.greet(false).expect("detach");
    let _quiet = pair.connect("10.0.0.2:0");
    assert!(heard(&mut at_near).is_empty() && heard(&mut at_far).is_empty());
    at_near.greet(true).expect("attach");
    at_far.greet(false).expect("detach");
    let (mut near, mut far) = pair.connect("10.0.0.2:0");
    exchange(&mut near, &mut far);
    assert!(heard(&mut at_near).is_empty() && heard(&mut at_far).is_empty());
}

#[test]
fn a_nat_in_between_is_seen_by_both() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.near.run(
        "nft table ip nat { \
         chain out { type nat hook postrouting priority 100; meta l4proto tcp masquerade to :50000-50100; } ; }",
    );
    let (mut at_near, mut at_far) = greeting(&pair);
    let (mut near, mut far) = pair.connect("10.0.0.2:0");
    assert_eq!(heard(&mut at_near), [(flow(&near), Origin::Connected, [true, false])]);
    assert_eq!(heard(&mut at_far), [(flow(&far), Origin::Accepted, [false, true])]);
    exchange(&mut near, &mut far);
}

/// The kernel sends its first segment again after a second; that one goes without, and so do all to this address.
#[test]
fn a_network_that_drops_it_costs_a_second_once() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.far.run(
        "nft table ip drops { chain in { type filter hook prerouting priority raw; tcp option 253 exists drop; } ; }",
    );
    let (mut at_near, mut at_far) = greeting(&pair);
    let timed = || {
        let begun = std::time::Instant::now();
        let (mut near, mut far) = pair.connect("10.0.0.2:0");
        exchange(&mut near, &mut far);
        begun.elapsed()
    };
    assert!(timed() > Duration::from_millis(900), "the first is dropped");
    let again = timed();
    assert!(again < Duration::from_millis(900), "{again:?}");
    assert!(heard(&mut at_near).is_empty() && heard(&mut at_far).is_empty());
}

/// A program that gives up within the second would never have a connection.
#[test]
fn a_network_that_drops_it_costs_one_try_of_who_does_not_wait() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.far.run(
        "nft table ip drops { chain in { type filter hook prerouting priority raw; tcp option 253 exists drop; } ; }",
    );
    let (_at_near, _at_far) = greeting(&pair);
    pair.far.enter();
    let listener = TcpListener::bind("10.0.0.2:0").expect("listen");
    pair.near.enter();
    let at = listener.local_addr().expect("address");
    let tried = || TcpStream::connect_timeout(&at, Duration::from_millis(300));
    assert!(tried().is_err(), "the first is dropped");
    let mut near = tried().expect("the second goes without");
    let mut far = listener.accept().expect("accept").0;
    exchange(&mut near, &mut far);
}

#[test]
fn what_is_taken_out_on_the_way_is_not_missed() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.far.run(
        "nft table ip takes { \
         chain in { type filter hook prerouting priority raw; reset tcp option 253; } ; }",
    );
    let (mut at_near, mut at_far) = greeting(&pair);
    let (mut near, mut far) = pair.connect("10.0.0.2:0");
    exchange(&mut near, &mut far);
    assert!(heard(&mut at_near).is_empty() && heard(&mut at_far).is_empty());
}

#[test]
fn a_handshake_without_state_carries_it_as_well() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    pair.far.sysctl("net.ipv4.tcp_syncookies", "2");
    let (mut at_near, mut at_far) = greeting(&pair);
    let (mut near, mut far) = pair.connect("10.0.0.2:0");
    assert_eq!(heard(&mut at_near), [(flow(&near), Origin::Connected, [false; 2])]);
    assert_eq!(heard(&mut at_far), [(flow(&far), Origin::Accepted, [false; 2])]);
    exchange(&mut near, &mut far);
}

/// A socket of MPTCP needs the room itself.
#[test]
fn where_there_is_no_room_nothing_is_said() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    let (mut at_near, mut at_far) = greeting(&pair);
    pair.far.enter();
    let listener = multipath();
    let at: SocketAddr = "10.0.0.2:4000".parse().expect("address");
    // SAFETY: a descriptor that is open, and an address of its family.
    unsafe {
        let name = libc::sockaddr_in {
            sin_family: u16::try_from(libc::AF_INET).expect("family"),
            sin_port: at.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_be_bytes([10, 0, 0, 2]).to_be() },
            sin_zero: [0; 8],
        };
        let size = u32::try_from(size_of_val(&name)).expect("size");
        assert_eq!(libc::bind(listener.as_raw_fd(), (&raw const name).cast(), size), 0);
        assert_eq!(libc::listen(listener.as_raw_fd(), 1), 0);
        pair.near.enter();
        let near = multipath();
        assert_eq!(libc::connect(near.as_raw_fd(), (&raw const name).cast(), size), 0);
        let mut near = TcpStream::from(std::os::fd::OwnedFd::from(near));
        let mut far = listener.accept().expect("accept").0;
        exchange(&mut near, &mut far);
    }
    assert!(heard(&mut at_near).is_empty() && heard(&mut at_far).is_empty());
}

fn multipath() -> TcpListener {
    // SAFETY: makes a descriptor, which nobody else owns.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP);
        assert!(fd >= 0, "MPTCP");
        TcpListener::from_raw_fd(fd)
    }
}

/// What is not of this namespace says nothing.
#[test]
fn other_namespaces_are_left_alone() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    let other = Pair::new();
    let (mut at_near, _at_far) = greeting(&pair);
    let (mut near, mut far) = other.connect("10.0.0.2:0");
    exchange(&mut near, &mut far);
    assert!(heard(&mut at_near).is_empty());
}
