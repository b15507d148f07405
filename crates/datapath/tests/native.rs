//! What is of a native connection, or is about to be, between the locators of moved flows.

mod support;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use support::pair::{Pair, binding, wait};
use support::{Namespace, counter, index, is_root};
use whimbrel_datapath::{Binding, Carrier, Datapath, LocatorPair, Role};
use whimbrel_wire::{BindingId, PeerId};

const BINDING: BindingId = BindingId::first(PeerId(7));
const CONNECTIONS: usize = 20;

/// A number of `/proc/net/netstat` of the namespace that the calling thread is in.
fn statistic(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/netstat").expect("netstat");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let [names, values] = [&lines[0], &lines[1]];
    let at = names.iter().position(|known| *known == name).expect("a known number");
    values[at].parse().expect("a number")
}

/// The far end of the pair, where rewritten packets of a peer are taken between the two addresses.
fn rewriting(pair: &Pair, local: &str, peer: &str) -> Datapath {
    pair.far.enter();
    let mut datapath = Datapath::open(&pair.bpffs.pins("far")).expect("open");
    datapath.attach(index("v"), Role::Wire).expect("attach");
    let [local, peer] = [local, peer].map(|address| address.parse().expect("an address"));
    let moved =
        Binding { local, peer, accepted: vec![LocatorPair { local, peer }], ..binding(1, Carrier::Rewrite, false) };
    datapath.set_binding(BINDING, &moved).expect("bind");
    datapath.set_busy(true, false, false).expect("busy");
    datapath
}

fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("nonblocking");
    let mut accepted = None;
    wait(|| {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let stream = accepted.expect("accepted").0;
    stream.set_nonblocking(false).expect("blocking");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("SO_RCVTIMEO");
    stream
}

fn connect(from: &Namespace, to: SocketAddr) -> TcpStream {
    from.enter();
    TcpStream::connect_timeout(&to, Duration::from_secs(20)).expect("connect")
}

/// P-43 does not take the last word of a handshake that was answered by a cookie for a segment of nobody.
#[test]
fn handshakes_with_cookies_come_about_between_locators() {
    if !is_root() {
        return;
    }
    for (local, peer) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        let pair = Pair::new();
        pair.far.sysctl("net.ipv4.tcp_syncookies", "2");
        let datapath = rewriting(&pair, local, peer);
        let listener = TcpListener::bind((local.parse::<std::net::IpAddr>().expect("an address"), 0)).expect("listen");
        let to = listener.local_addr().expect("address");
        for _ in 0..CONNECTIONS {
            let mut near = connect(&pair.near, to);
            near.write_all(b"hello").expect("write");
            let mut far = accept(&listener);
            let mut told = [0; 5];
            far.read_exact(&mut told).expect("read");
        }
        pair.far.enter();
        assert!(statistic("SyncookiesRecv") >= CONNECTIONS as u64, "the handshakes went without cookies");
        assert_eq!(counter(&datapath, "dropped_unknown"), 0);
        datapath.unload().expect("unload");
    }
}

/// The socket goes, and says nothing of it.
fn vanish(stream: TcpStream) {
    let on: libc::c_int = 1;
    // SAFETY: an open socket, and an int of its own size.
    let result = unsafe {
        let length = size_of_val(&on) as libc::socklen_t;
        libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, (&raw const on).cast(), length)
    };
    assert_eq!(result, 0, "TCP_REPAIR: {}", std::io::Error::last_os_error());
}

#[test]
fn what_is_of_no_flow_and_no_socket_is_not_reset_between_locators() {
    if !is_root() {
        return;
    }
    for (local, peer) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        for guarded in [false, true] {
            let pair = Pair::new();
            pair.far.enter();
            let datapath = guarded.then(|| rewriting(&pair, local, peer));
            let listener =
                TcpListener::bind((local.parse::<std::net::IpAddr>().expect("an address"), 0)).expect("listen");
            let to = listener.local_addr().expect("address");
            let mut near = connect(&pair.near, to);
            pair.far.enter();
            vanish(accept(&listener));
            near.set_read_timeout(Some(Duration::from_millis(500))).expect("SO_RCVTIMEO");
            near.write_all(b"hello").expect("write");
            let heard = near.read(&mut [0]).expect_err("nothing is sent").kind();
            assert_eq!(heard == ErrorKind::ConnectionReset, !guarded, "{heard}");
            // Whom nobody listens for hears that, as ever.
            drop(listener);
            pair.near.enter();
            let refused = TcpStream::connect_timeout(&to, Duration::from_secs(20)).expect_err("nobody listens");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            if let Some(datapath) = datapath {
                assert!(counter(&datapath, "dropped_unknown") > 0);
                datapath.unload().expect("unload");
            }
        }
    }
}

/// What this host forwards by address translation has no socket here: published ports of containers, answers to those
/// behind a masquerade.
#[test]
fn ports_of_containers_are_reached_between_locators() {
    if !is_root() {
        return;
    }
    let pair = Pair::new();
    let container = Namespace::new();
    support::veth(&pair.far, "c", &container, "c");
    pair.far.run("ip addr add 172.17.0.1/24 dev c");
    container.run("ip addr add 172.17.0.2/24 dev c");
    container.run("ip route add default via 172.17.0.1");
    pair.far.sysctl("net.ipv4.ip_forward", "1");
    pair.far.run("nft add table ip t");
    pair.far.run("nft add chain ip t p { type nat hook prerouting priority -100; }");
    pair.far.run("nft add rule ip t p tcp dport 8080 dnat to 172.17.0.2:80");
    pair.far.run("nft add chain ip t m { type nat hook postrouting priority 100; }");
    pair.far.run("nft add rule ip t m ip saddr 172.17.0.2 masquerade");
    let datapath = rewriting(&pair, "10.0.0.2", "10.0.0.1");
    let exchange = |mut from: TcpStream, to: &TcpListener| {
        from.write_all(b"hello").expect("write");
        let mut told = [0; 5];
        accept(to).read_exact(&mut told).expect("read");
        assert_eq!(&told, b"hello");
        drop(from);
    };
    container.enter();
    let published = TcpListener::bind("172.17.0.2:80").expect("listen");
    let there = connect(&pair.near, "10.0.0.2:8080".parse().expect("an endpoint"));
    exchange(there, &published);
    pair.near.enter();
    let listener = TcpListener::bind("10.0.0.1:0").expect("listen");
    let here = connect(&container, listener.local_addr().expect("an endpoint"));
    exchange(here, &listener);
    assert_eq!(counter(&datapath, "dropped_unknown"), 0);
    datapath.unload().expect("unload");
}
