//! Endpoint namespaces: equal endpoints on one host, and nothing that outlives its use. Run as root.

mod hosts;

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;

use hosts::{Host, wait};
use whimbrel_kernel::endpoint::Endpoint;
use whimbrel_kernel::route::RouteSocket;
use whimbrel_kernel::{namespace, sysctl};

const MTU: u32 = 1500;

fn addresses() -> [IpAddr; 2] {
    ["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()]
}

fn interfaces(host: &Host) -> Vec<String> {
    let links = host.on(|| RouteSocket::open().unwrap().links().unwrap());
    links.into_iter().filter(|link| !link.loopback).map(|link| link.name).collect()
}

#[test]
fn two_equal_endpoints_live_on_one_host() {
    for address in addresses() {
        let host = Host::new();
        let _here = host.enter();
        let endpoint = SocketAddr::new(address, 443);
        let [one, other] = ["wb0", "wb1"].map(|name| Endpoint::create(address, name, MTU).unwrap());
        let [first, second] = [&one, &other].map(|space| {
            let _inside = space.enter().unwrap();
            TcpListener::bind(endpoint).unwrap()
        });
        assert_eq!(first.local_addr().unwrap(), second.local_addr().unwrap());
        let cookies = [first.as_fd(), second.as_fd()].map(|socket| namespace::cookie_of(socket).unwrap());
        assert_ne!(cookies[0], cookies[1]);
        // The host itself does not know the address.
        assert!(TcpListener::bind(endpoint).is_err());
    }
}

#[test]
fn what_is_sent_comes_out_on_the_host_in_its_own_name() {
    for address in addresses() {
        let host = Host::new();
        let _here = host.enter();
        let endpoint = Endpoint::create(address, "wb0", MTU).unwrap();
        let socket = {
            let _inside = endpoint.enter().unwrap();
            UdpSocket::bind(SocketAddr::new(address, 0)).unwrap()
        };
        // Anywhere: the namespace knows no other way.
        let far: SocketAddr = if address.is_ipv4() { "198.51.100.1:9" } else { "[2001:db8:9::1]:9" }.parse().unwrap();
        let received = || {
            let text = host.sh("cat /proc/net/dev");
            let line = text.lines().find_map(|line| line.trim().strip_prefix("wb0:")).unwrap().to_owned();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = received();
        for _ in 0..5 {
            socket.send_to(b"out", far).unwrap();
        }
        wait("five packets come out", || received() >= before + 5);
    }
}

#[test]
fn what_may_be_sent_follows_the_mtu() {
    for address in addresses() {
        let host = Host::new();
        let _here = host.enter();
        let endpoint = Endpoint::create(address, "wb0", MTU).unwrap();
        let _inside = endpoint.enter().unwrap();
        let far: SocketAddr = if address.is_ipv4() { "198.51.100.1:9" } else { "[2001:db8:9::1]:9" }.parse().unwrap();
        let socket = UdpSocket::bind(SocketAddr::new(address, 0)).unwrap();
        socket.connect(far).unwrap();
        let (level, name) =
            if address.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
        let known = || {
            let mut mtu = 0u32;
            let mut length = size_of_val(&mtu) as libc::socklen_t;
            // SAFETY: an open socket, and room for the number and its length.
            let got = unsafe {
                let to = (&raw mut mtu).cast();
                libc::getsockopt(std::os::fd::AsRawFd::as_raw_fd(&socket), level, name, to, &raw mut length)
            };
            assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
            mtu
        };
        assert_eq!(known(), MTU);
        endpoint.set_mtu(address, 1400).unwrap();
        // A socket looks when it sends.
        socket.send(b"out").unwrap();
        assert_eq!(known(), 1400);
    }
}

#[test]
fn it_ends_with_the_last_socket_and_not_before() {
    let host = Host::new();
    let _here = host.enter();
    let [address, _] = addresses();
    let endpoint = Endpoint::create(address, "wb0", MTU).unwrap();
    let socket = {
        let _inside = endpoint.enter().unwrap();
        UdpSocket::bind(SocketAddr::new(address, 0)).unwrap()
    };
    // The daemon dies; a program has the socket.
    drop(endpoint);
    assert_eq!(interfaces(&host), ["wb0"]);
    let found = Endpoint::of_socket(socket.as_fd()).unwrap();
    let cookie = found.enter().map(|_inside| namespace::cookie().unwrap()).unwrap();
    assert_eq!(cookie, namespace::cookie_of(socket.as_fd()).unwrap());
    drop((found, socket));
    wait("nothing is left", || interfaces(&host).is_empty());
}

#[test]
fn its_sockets_are_like_those_of_the_host() {
    let host = Host::new();
    let _here = host.enter();
    let other = if sysctl::get("net/ipv4/tcp_congestion_control").unwrap() == "reno" { "cubic" } else { "reno" };
    sysctl::set("net/ipv4/tcp_congestion_control", other).unwrap();
    sysctl::set("net/ipv4/tcp_keepalive_time", "1234").unwrap();
    sysctl::set("net/ipv4/ip_local_port_range", "40000\t40999").unwrap();
    let endpoint = Endpoint::create(addresses()[0], "wb0", MTU).unwrap();
    let _inside = endpoint.enter().unwrap();
    assert_eq!(sysctl::get("net/ipv4/tcp_congestion_control").unwrap(), other);
    assert_eq!(sysctl::get("net/ipv4/tcp_keepalive_time").unwrap(), "1234");
    assert_eq!(sysctl::get("net/ipv4/ip_local_port_range").unwrap(), "40000\t40999");
}

#[test]
fn a_name_that_is_taken_leaves_nothing_behind() {
    let host = Host::new();
    let _here = host.enter();
    let _first = Endpoint::create(addresses()[0], "wb0", MTU).unwrap();
    let error = Endpoint::create(addresses()[0], "wb0", MTU).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EEXIST), "{error}");
    assert_eq!(interfaces(&host), ["wb0"]);
}
