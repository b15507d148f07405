//! Hosts in network namespaces of their own, for tests that run as root.
//!
//! A namespace has no name: it lives as long as its descriptor, so nothing is left behind, whatever happens to the
//! test.
#![allow(dead_code, reason = "each test uses some of it")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::UnshareFlags;
use whimbrel_kernel::namespace::Entered;
use whimbrel_kernel::route::{RouteKind, RouteSocket};

/// How long a condition is waited for before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A host with `lo` up.
pub(crate) struct Host {
    namespace: File,
}

impl Host {
    pub(crate) fn new() -> Self {
        let namespace = std::thread::spawn(|| {
            // SAFETY: the thread ends right after and shares nothing with others that a network namespace would change.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("unshare (needs root)");
            File::open("/proc/thread-self/ns/net").unwrap()
        })
        .join()
        .unwrap();
        let host = Self { namespace };
        // Duplicate address detection would only take time; the larger of both values counts.
        host.sh("ip link set lo up; cd /proc/sys/net/ipv6/conf; echo 0 > default/accept_dad; echo 0 > all/accept_dad;
             echo 0 > default/router_solicitations");
        host
    }

    /// The calling thread is on this host until the guard is dropped.
    pub(crate) fn enter(&self) -> Entered {
        Entered::descriptor(self.namespace.as_fd()).unwrap()
    }

    /// Does something on this host.
    pub(crate) fn on<T>(&self, work: impl FnOnce() -> T) -> T {
        let _here = self.enter();
        work()
    }

    /// Runs a shell command on this host, which has to succeed, and returns what it says.
    pub(crate) fn sh(&self, command: &str) -> String {
        let _here = self.enter();
        let output = Command::new("sh").args(["-c", command]).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A cable from interface `here` to interface `there` of another host, both ready for use.
    pub(crate) fn cable(&self, here: &str, other: &Self, there: &str) {
        let target = format!("/proc/{}/fd/{}", std::process::id(), other.namespace.as_raw_fd());
        self.sh(&format!("ip link add {here} type veth peer name {there} netns {target}; ip link set {here} up"));
        other.sh(&format!("ip link set {there} up"));
        self.wait_link_local(here);
        other.wait_link_local(there);
    }

    /// Waits until an interface has a link-local address: without one it asks for no IPv6 neighbour in the name of
    /// another interface's address. The kernel makes it when it has noticed the carrier.
    fn wait_link_local(&self, interface: &str) {
        let index = self.index(interface);
        let mut routes = self.on(|| RouteSocket::open().unwrap());
        wait(&format!("{interface} has a link-local address"), || {
            let mut all = routes.addresses().unwrap().into_iter().filter(|address| address.interface == index);
            all.any(|a| matches!(a.prefix.address, IpAddr::V6(v6) if v6.is_unicast_link_local()) && !a.tentative)
        });
    }

    pub(crate) fn index(&self, interface: &str) -> u32 {
        let links = self.on(|| RouteSocket::open().unwrap().links().unwrap());
        links.iter().find(|link| link.name == interface).map(|link| link.index).unwrap()
    }

    pub(crate) fn strict_rp_filter(&self) {
        self.sh("for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 > $f; done");
    }

    /// A TCP connection from this host to an address of another one; the near end first.
    pub(crate) fn connect(&self, server: &Self, to: SocketAddr) -> (TcpStream, TcpStream) {
        let listener = server.on(|| TcpListener::bind(to).unwrap());
        let near = self.on(|| TcpStream::connect_timeout(&listener.local_addr().unwrap(), PATIENCE).unwrap());
        let (far, _) = listener.accept().unwrap();
        for end in [&near, &far] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        (near, far)
    }
}

/// A byte there and one back, several times: the connection works, and its round trip is known well.
pub(crate) fn exchange(near: &mut TcpStream, far: &mut TcpStream) {
    for _ in 0..20 {
        let mut byte = [0];
        near.write_all(b"?").unwrap();
        far.read_exact(&mut byte).unwrap();
        far.write_all(b"!").unwrap();
        near.read_exact(&mut byte).unwrap();
    }
}

/// A directory that is gone after the test, however it ends.
pub(crate) struct RunDir(pub(crate) PathBuf);

impl RunDir {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("whimbrel-kernel-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until a condition holds.
pub(crate) fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Addresses of a test in one family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// `ip` or `ip -6`.
    pub(crate) ip: &'static str,
    pub(crate) ipv4: bool,
    pub(crate) client: &'static str,
    pub(crate) client_new: &'static str,
    pub(crate) router: &'static str,
    pub(crate) router_new: &'static str,
    pub(crate) server: &'static str,
    pub(crate) subnet: u8,
    pub(crate) host: u8,
}

pub(crate) const PLANS: [Plan; 2] = [
    Plan {
        ip: "ip",
        ipv4: true,
        client: "10.1.0.2",
        client_new: "10.2.0.2",
        router: "10.1.0.1",
        router_new: "10.2.0.1",
        server: "10.9.0.1",
        subnet: 24,
        host: 32,
    },
    Plan {
        ip: "ip -6",
        ipv4: false,
        client: "fd01::2",
        client_new: "fd02::2",
        router: "fd01::1",
        router_new: "fd02::1",
        server: "fd09::1",
        subnet: 64,
        host: 128,
    },
];

impl Plan {
    fn nodad(&self) -> &'static str {
        if self.ipv4 { "" } else { "nodad" }
    }

    /// client `e0` — `p0` server, client `e1` — `p1` server; only the first pair has addresses.
    pub(crate) fn build(&self) -> (Host, Host) {
        let (client, server) = (Host::new(), Host::new());
        client.cable("e0", &server, "p0");
        client.cable("e1", &server, "p1");
        let Self { ip, client: old, router, router_new, server: far, subnet, host, .. } = self;
        let nodad = self.nodad();
        client.sh(&format!("ip addr add {old}/{subnet} dev e0 {nodad}; {ip} route add default via {router}"));
        server.sh(&format!(
            "ip addr add {router}/{subnet} dev p0 {nodad}; ip addr add {router_new}/{subnet} dev p1 {nodad};
             ip addr add {far}/{host} dev lo {nodad}"
        ));
        // IPv6 makes their local routes a moment later.
        for (host, addresses) in [(&client, &[old][..]), (&server, &[router, router_new, far])] {
            let mut routes = host.on(|| RouteSocket::open().unwrap());
            wait("the addresses are in force", || {
                let mut kinds = addresses.iter().map(|a| routes.route_to(a.parse().unwrap(), None, None));
                kinds.all(|route| route.is_ok_and(|route| route.kind == RouteKind::Local))
            });
        }
        (client, server)
    }

    /// The client loses its first network and is in the second.
    pub(crate) fn roam(&self, client: &Host) {
        let Self { ip, client: old, client_new: new, router_new, subnet, .. } = self;
        client.sh(&format!(
            "ip addr del {old}/{subnet} dev e0; ip link set e0 down;
             ip addr add {new}/{subnet} dev e1 {}; {ip} route replace default via {router_new}",
            self.nodad()
        ));
    }

    pub(crate) fn server_socket(&self) -> SocketAddr {
        SocketAddr::new(self.server.parse().unwrap(), 0)
    }
}
