//! Endpoint namespaces: equal endpoints on one host, and nothing that outlives its use. Run as root.

mod hosts;

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use hosts::{Host, wait};
use whimbrel_kernel::endpoint::{self, Brought, Endpoint, Outer};
use whimbrel_kernel::network::NetworkMonitor;
use whimbrel_kernel::route::{Link, RouteSocket};
use whimbrel_kernel::{Error, namespace, sysctl};

const MTU: u32 = 1500;

fn addresses() -> [IpAddr; 2] {
    ["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()]
}

fn links(host: &Host) -> Vec<Link> {
    let links = host.on(|| RouteSocket::open().unwrap().links().unwrap());
    links.into_iter().filter(|link| !link.loopback).collect()
}

fn interfaces(host: &Host) -> Vec<String> {
    links(host).into_iter().map(|link| link.name).collect()
}

fn unwatched(_: u32) -> Result<(), Error> {
    Ok(())
}

fn made(address: IpAddr) -> Endpoint {
    Endpoint::create(address, MTU, unwatched).unwrap()
}

#[test]
fn two_equal_endpoints_live_on_one_host() {
    for address in addresses() {
        let host = Host::new();
        let _here = host.enter();
        let endpoint = SocketAddr::new(address, 443);
        let [one, other] = [made(address), made(address)];
        let [first, second] = [&one, &other].map(|space| {
            let _inside = space.enter().unwrap();
            TcpListener::bind(endpoint).unwrap()
        });
        assert_eq!(first.local_addr().unwrap(), second.local_addr().unwrap());
        let cookies = [first.as_fd(), second.as_fd()].map(|socket| namespace::cookie_of(socket).unwrap());
        assert_ne!(cookies[0], cookies[1]);
        // Each has an id here, which stays the same.
        assert_ne!(one.outer().namespace, other.outer().namespace);
        for space in [&one, &other] {
            let Outer { index, name, namespace } = space.outer();
            assert_eq!(RouteSocket::open().unwrap().namespace_id(space.as_fd()).unwrap(), *namespace);
            let link = links(&host).into_iter().find(|link| link.index == *index).unwrap();
            assert_eq!((&link.name, link.beyond), (name, Some(*namespace)));
        }
        // The host itself does not know the address.
        assert!(TcpListener::bind(endpoint).is_err());
    }
}

#[test]
fn what_is_sent_comes_out_on_the_host_in_its_own_name() {
    for address in addresses() {
        let host = Host::new();
        let _here = host.enter();
        let endpoint = made(address);
        let socket = {
            let _inside = endpoint.enter().unwrap();
            UdpSocket::bind(SocketAddr::new(address, 0)).unwrap()
        };
        // Anywhere: the namespace knows no other way.
        let far: SocketAddr = if address.is_ipv4() { "198.51.100.1:9" } else { "[2001:db8:9::1]:9" }.parse().unwrap();
        let received = || {
            let text = host.sh("cat /proc/net/dev");
            let name = format!("{}:", endpoint.outer().name);
            let line = text.lines().find_map(|line| line.trim().strip_prefix(&name)).unwrap().to_owned();
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
        let endpoint = made(address);
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
    let endpoint = made(address);
    let socket = {
        let _inside = endpoint.enter().unwrap();
        UdpSocket::bind(SocketAddr::new(address, 0)).unwrap()
    };
    // The daemon dies; a program has the socket.
    let name = endpoint.outer().name.clone();
    drop(endpoint);
    assert_eq!(interfaces(&host), [name]);
    let cookie = namespace::cookie_of(socket.as_fd()).unwrap();
    let found = endpoint::find(&HashSet::from([cookie])).unwrap();
    assert_eq!(found.len(), 1);
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
    let endpoint = made(addresses()[0]);
    let _inside = endpoint.enter().unwrap();
    assert_eq!(sysctl::get("net/ipv4/tcp_congestion_control").unwrap(), other);
    assert_eq!(sysctl::get("net/ipv4/tcp_keepalive_time").unwrap(), "1234");
    assert_eq!(sysctl::get("net/ipv4/ip_local_port_range").unwrap(), "40000\t40999");
}

#[test]
fn what_cannot_be_watched_over_leaves_nothing_behind() {
    let host = Host::new();
    let _here = host.enter();
    let refused = |index| {
        let link = links(&host).into_iter().find(|link| link.index == index).unwrap();
        assert!(Outer::is_called(&link.name) && !link.up, "nothing comes through yet");
        Err(Error::Argument { object: link.name, detail: "is not watched over" })
    };
    let error = Endpoint::create(addresses()[0], MTU, refused).unwrap_err();
    assert!(error.to_string().ends_with("is not watched over"), "{error}");
    assert_eq!(interfaces(&host), [""; 0]);
}

const USER: u32 = 65_534;

/// A process of that user that has gone into namespaces of its own, and says so. Its output stays open: busybox's `cat`
/// ends where nobody reads it.
struct Apart(Child, #[expect(dead_code, reason = "it is only kept open")] BufReader<ChildStdout>);

impl Apart {
    fn new(user: u32, flags: &str) -> Self {
        let command = ["unshare", flags, "sh", "-c", "echo; exec cat"];
        let mut child = Command::new(command[0]);
        child.args(&command[1..]).uid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "\n");
        Self(child, output)
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
            let endpoint = Endpoint::create_in(program.brought(user), address, MTU, unwatched).unwrap();
            assert!(endpoint.is_used() && endpoint.outer().is_of_program());
            assert_eq!(endpoint.outer().index, host.index(&endpoint.outer().name));
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
    let endpoint = made(addresses()[0]);
    let (cookie, socket) = {
        let _inside = endpoint.enter().unwrap();
        (namespace::cookie().unwrap(), UdpSocket::bind("0.0.0.0:0").unwrap())
    };
    assert!(!endpoint.is_used(), "but by this process");
    let found = endpoint::find(&HashSet::from([cookie])).unwrap();
    let found: Vec<_> = found.iter().map(|found| (found.cookie, found.endpoint.outer())).collect();
    assert_eq!(found, [(cookie, endpoint.outer())]);
    assert!(endpoint::find(&HashSet::new()).unwrap().is_empty());
    // One that is outside, and has been given it.
    let mut child = Command::new("cat").stdin(std::os::fd::OwnedFd::from(socket)).spawn().unwrap();
    assert!(endpoint.is_used());
    child.kill().unwrap();
    child.wait().unwrap();
    wait("it has ended", || !endpoint.is_used());
}

#[test]
fn what_a_program_calls_its_interfaces_does_not_say_which_are_the_hosts() {
    for when in ["before", "after"] {
        let host = Host::new();
        let _here = host.enter();
        host.sh("ip link add victim index 77 type bridge; ip link set victim up");
        let settings = || host.sh("cd /proc/sys/net/ipv4/conf/victim; cat forwarding accept_local rp_filter");
        let (victim, before) = (host.index("victim"), settings());
        let program = Apart::new(USER, "-Un");
        // Of a pair in there one end has the number of the host's interface, and the other end has it as its other end.
        program.ip(&format!("link add sw1 index {victim} type veth peer name sw0"));
        let swap = || {
            program.ip("link set e0 down");
            program.ip("link set e0 name old0");
            program.ip("link set sw0 name e0");
        };
        let mut watched = 0;
        let watch = |index| -> Result<(), Error> {
            watched = index;
            if when == "before" {
                swap();
            }
            Ok(())
        };
        let made = Endpoint::create_in(program.brought(USER), addresses()[0], MTU, watch);
        if when == "after" {
            swap();
        }
        assert_ne!(watched, victim);
        assert_eq!(settings(), before);
        if let Ok(endpoint) = made {
            assert_eq!((endpoint.outer().index, host.index(&endpoint.outer().name)), (watched, watched));
            let cookie = endpoint.enter().map(|_inside| namespace::cookie().unwrap()).unwrap();
            let found = endpoint::find(&HashSet::from([cookie])).unwrap();
            assert_eq!(found.iter().map(|found| found.endpoint.outer()).collect::<Vec<_>>(), [endpoint.outer()]);
            endpoint.outer().remove(&mut RouteSocket::open().unwrap()).unwrap();
        }
        assert_eq!(interfaces(&host), ["victim"]);
    }
}

#[test]
fn a_namespace_that_a_program_leads_elsewhere_is_not_found_again() {
    let host = Host::new();
    let _here = host.enter();
    let programs = [(); 2].map(|()| Apart::new(USER, "-Un"));
    let made = [0, 1].map(|n| Endpoint::create_in(programs[n].brought(USER), addresses()[n], MTU, unwatched).unwrap());
    let cookies = || made.iter().map(|of| of.enter().map(|_inside| namespace::cookie().unwrap()).unwrap()).collect();
    assert_eq!(endpoint::find(&cookies()).unwrap().len(), 2);
    programs[0].ip("link set e0 down");
    programs[0].ip("link set e0 name e1");
    programs[0].ip(&format!("link set e1 netns {}", programs[1].0.id()));
    // One has none, and the other two, of which nobody knows which is its own.
    assert_eq!(endpoint::find(&cookies()).unwrap().len(), 0);
    endpoint::remove_all().unwrap();
    assert_eq!(interfaces(&host), [""; 0]);
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

#[test]
fn the_hosts_network_is_the_same_whatever_happens_to_endpoint_namespaces() {
    let host = Host::new();
    let _here = host.enter();
    let mut monitor = NetworkMonitor::open().unwrap();
    let before = monitor.snapshot().unwrap();
    let program = Apart::new(USER, "-Un");
    let brought = Endpoint::create_in(program.brought(USER), addresses()[1], MTU, unwatched).unwrap();
    let own = made(addresses()[0]);
    program.ip("link set e0 down");
    program.ip("link set e0 up");
    own.outer().remove(&mut RouteSocket::open().unwrap()).unwrap();
    program.ip("link del e0");
    wait("both are gone", || interfaces(&host).is_empty());
    drop(brought);
    let changed = monitor.drain().unwrap();
    assert!(!changed.attachment(), "{changed:?}");
    assert_eq!(monitor.snapshot().unwrap(), before);
    host.sh("ip link add whimbrel-else type bridge");
    assert!(monitor.drain().unwrap().links, "but others are noticed");
}
