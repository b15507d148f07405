//! Endpoint namespaces: equal endpoints on one host, and nothing that outlives its use. Run as root.

mod hosts;

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use hosts::{Host, wait};
use whimbrel_kernel::endpoint::{self, Brought, Endpoint};
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
        // Each has an id here, which stays the same.
        let ids = || {
            let mut routes = RouteSocket::open().unwrap();
            let links = routes.links().unwrap();
            let index = |name: &str| links.iter().find(|link| link.name == name).unwrap().index;
            ["wb0", "wb1"].map(|name| routes.namespace_beyond(index(name)).unwrap().unwrap())
        };
        let [one, other] = ids();
        assert_ne!(one, other);
        assert_eq!(ids(), [one, other]);
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

const USER: u32 = 65_534;

/// A process of that user that has gone into namespaces of its own, and says so.
struct Apart(Child);

impl Apart {
    fn new(user: u32, flags: &str) -> Self {
        let command = ["unshare", flags, "sh", "-c", "echo; exec cat"];
        let mut child = Command::new(command[0]);
        child.args(&command[1..]).uid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "\n");
        Self(child)
    }

    fn brought(&self, owner: u32) -> Brought {
        let namespace = File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap().into();
        Brought { namespace, owner }
    }

    fn ip(&self, command: &str) {
        let _inside = self.enter();
        assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success(), "{command}");
    }

    fn enter(&self) -> namespace::Entered {
        namespace::Entered::path(format!("/proc/{}/ns/net", self.0.id()).as_ref()).unwrap()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn refusal(brought: &Brought) -> String {
    brought.check().unwrap_err().to_string()
}

#[test]
fn a_namespace_that_a_program_has_made_is_furnished() {
    for address in addresses() {
        let host = Host::new();
        let _here = host.enter();
        for (user, flags) in [(USER, "-Un"), (0, "-n"), (0, "-Un")] {
            let program = Apart::new(user, flags);
            let endpoint = Endpoint::create_in(program.brought(user), address, "wb0", MTU).unwrap();
            assert!(endpoint.is_used());
            assert_eq!(endpoint.outer().unwrap(), host.index("wb0"));
            assert!(refusal(&program.brought(user)).contains("in use"), "it is one already");
            drop(program);
            wait("nobody is in it", || !endpoint.is_used());
            drop(endpoint);
            wait("nothing is left", || interfaces(&host).is_empty());
        }
    }
}

#[test]
fn only_a_users_own_empty_network_namespace_is_taken() {
    let host = Host::new();
    let _here = host.enter();
    let programs = [(USER, "-Un"), (0, "-n")].map(|(user, flags)| (user, Apart::new(user, flags)));
    for (user, program) in &programs {
        program.brought(*user).check().unwrap();
        for other in [0, 1, USER].into_iter().filter(|other| other != user) {
            assert!(refusal(&program.brought(other)).contains("another user's"));
        }
        let with = |change: &str, undo: &str| {
            program.ip(change);
            assert!(refusal(&program.brought(*user)).contains("in use"), "{change}");
            program.ip(undo);
        };
        with("addr add 192.0.2.7/32 dev lo", "addr del 192.0.2.7/32 dev lo");
        with("link add e0 up type veth", "link del e0");
        program.brought(*user).check().unwrap();
        // It keeps 127.0.0.1.
        with("link set lo up", "link set lo down");
        with("link set lo mtu 65535", "addr flush dev lo");
        program.brought(*user).check().unwrap();
    }
    let brought = |path: &str| Brought { namespace: File::open(path).unwrap().into(), owner: 0 };
    assert!(refusal(&brought("/proc/thread-self/ns/net")).contains("the host's own"));
    for path in ["/proc/self/ns/uts", "/dev/null", "/proc/self/stat"] {
        assert!(refusal(&brought(path)).contains("it is none"), "{path}");
    }
    assert_eq!(interfaces(&host), [""; 0]);
}

#[test]
fn it_is_found_again_by_its_pair_and_used_by_whoever_has_a_socket() {
    let host = Host::new();
    let _here = host.enter();
    let endpoint = Endpoint::create(addresses()[0], "wb0", MTU).unwrap();
    let (cookie, socket) = {
        let _inside = endpoint.enter().unwrap();
        (namespace::cookie().unwrap(), UdpSocket::bind("0.0.0.0:0").unwrap())
    };
    assert!(!endpoint.is_used(), "but by this process");
    let found = endpoint::find(&HashSet::from([cookie]));
    let found: Vec<_> = found.iter().map(|found| (found.cookie, found.outer)).collect();
    assert_eq!(found, [(cookie, host.index("wb0"))]);
    assert!(endpoint::find(&HashSet::new()).is_empty());
    // One that is outside, and has been given it.
    let mut child = Command::new("cat").stdin(std::os::fd::OwnedFd::from(socket)).spawn().unwrap();
    assert!(endpoint.is_used());
    child.kill().unwrap();
    child.wait().unwrap();
    wait("it has ended", || !endpoint.is_used());
}

#[test]
fn a_namespace_with_very_many_interfaces_or_addresses_is_refused_without_looking_at_them_all() {
    let host = Host::new();
    let _here = host.enter();
    let program = Apart::new(USER, "-Un");
    for pair in 0..50 {
        program.ip(&format!("link add a{pair} type veth peer name b{pair}"));
    }
    assert!(refusal(&program.brought(USER)).contains("very many"));
}
