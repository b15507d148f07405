//! Two hosts, each a network namespace with a tunnel, joined by a veth pair.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use whimbrel_kernel::Error;
use whimbrel_kernel::namespace::Entered;
use whimbrel_kernel::tun::Tun;
use whimbrel_kernel::udp::UdpSocket;
use whimbrel_transform::datagram::{Protection, TunnelHeader, length_prefix};
use whimbrel_transform::message::too_long;
use whimbrel_transform::{Algorithm, VnetHeader};
use whimbrel_tunnel::{PathError, Tunnel, TunnelFlow, TunnelPath};
use whimbrel_wire::packet::{Headers, Ip};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, Transport, TunnelKeys};

pub(crate) const PORT: u16 = 2031;
pub(crate) const PEER: PeerId = PeerId(7);
pub(crate) const BINDING: BindingId = BindingId::first(PEER);
const DEVICE: &str = "whimbrel";

/// Family of the flow's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inner {
    V4,
    V6,
}

/// Family of the path between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outer {
    V4,
    V6,
}

pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: needs root, to make network namespaces");
    }
    root
}

pub(crate) struct Host {
    namespace: PathBuf,
    pub(crate) tunnel: Tunnel,
    wake: OwnedFd,
    pub(crate) outer_address: IpAddr,
    pub(crate) receive_index: u32,
    keys: TunnelKeys,
    path: Mutex<TunnelPath>,
    flows: Vec<TunnelFlow>,
}

pub(crate) struct Pair {
    pub(crate) a: Host,
    pub(crate) b: Host,
    inner: Inner,
    _namespaces: [Namespace; 2],
}

/// One flow under its names at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) a: FlowTuple,
    pub(crate) b: FlowTuple,
}

/// A network namespace without a name: it goes with this process, however that ends.
struct Namespace {
    /// Reads from us until we are gone.
    holder: Child,
}

impl Namespace {
    fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare of util-linux");
        // The answer shows that the namespace is there.
        holder.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        holder.stdout.as_mut().unwrap().read_exact(&mut [0]).expect("a network namespace");
        Self { holder }
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holder.id()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

fn ip(namespace: &Path, arguments: &[&str]) {
    let network = format!("--net={}", namespace.display());
    let output = Command::new("nsenter").args([&network, "ip"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The names of the flow: nothing of one end's tuple stands in the other's.
fn names(inner: Inner, transport: Transport) -> Names {
    let tuple = |local: &str, remote: &str| FlowTuple {
        transport,
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
    };
    match inner {
        Inner::V4 => {
            Names { a: tuple("10.1.0.1:40001", "198.51.100.2:80"), b: tuple("10.2.0.2:8080", "203.0.113.1:50001") }
        }
        Inner::V6 => Names {
            a: tuple("[fd01::1]:40001", "[2001:db8:1::2]:80"),
            b: tuple("[fd02::2]:8080", "[2001:db8:2::1]:50001"),
        },
    }
}

impl Pair {
    pub(crate) fn new(inner: Inner, outer: Outer, sealed: bool, mtu: u32) -> Self {
        let namespaces = [Namespace::new(), Namespace::new()];
        let [a, b] = namespaces.each_ref().map(Namespace::path);
        let other = namespaces[1].holder.id().to_string();
        ip(&a, &["link", "add", "veth", "type", "veth", "peer", "name", "veth", "netns", &other]);
        let (address_a, address_b) = match outer {
            Outer::V4 => ("192.0.2.1", "192.0.2.2"),
            Outer::V6 => ("2001:db8:f::1", "2001:db8:f::2"),
        };
        let prefix = if outer == Outer::V4 { "24" } else { "64" };
        let names = names(inner, Transport::Tcp);
        for (namespace, outer_address, tuple) in [(&a, address_a, names.a), (&b, address_b, names.b)] {
            let ip = |arguments: &[&str]| ip(namespace, arguments);
            let mtu = mtu.to_string();
            ip(&["link", "set", "lo", "up"]);
            // Else an IPv6 address is tentative for a moment, on any interface, and no route may name it.
            ip(&["addr", "add", &tuple.local.ip().to_string(), "dev", "lo", "nodad"]);
            ip(&["link", "set", "veth", "mtu", &mtu, "up"]);
            ip(&["addr", "add", &format!("{outer_address}/{prefix}"), "dev", "veth", "nodad"]);
        }
        let keys = TunnelKeys { send: [1; 32], receive: [2; 32], send_token: 3, receive_token: 4 };
        let back = TunnelKeys {
            send: keys.receive,
            receive: keys.send,
            send_token: keys.receive_token,
            receive_token: keys.send_token,
        };
        let path = |send_index, source: &str, remote: &str| TunnelPath {
            send_index,
            sealed,
            accept_plain: !sealed,
            former: Vec::new(),
            source: Some(source.parse().unwrap()),
            interface: None,
            remote: SocketAddr::new(remote.parse().unwrap(), PORT),
            second: None,
            allowance: None,
            path_mtu: mtu,
            chain: None,
        };
        let flows = [Transport::Tcp, Transport::Udp].map(|transport| super::hosts::names(inner, transport));
        let flows_a =
            flows.map(|names| TunnelFlow { own: names.a, binding: BINDING, peer_tuple: names.b, elsewhere: false });
        let flows_b =
            flows.map(|names| TunnelFlow { own: names.b, binding: BINDING, peer_tuple: names.a, elsewhere: false });
        let pair = Self {
            a: Host::start(a, 0x0a0a, keys, path(0x0b0b, address_a, address_b), flows_a.to_vec()),
            b: Host::start(b, 0x0b0b, back, path(0x0a0a, address_b, address_a), flows_b.to_vec()),
            inner,
            _namespaces: namespaces,
        };
        for (host, tuple) in [(&pair.a, names.a), (&pair.b, names.b)] {
            let (local, remote) = (tuple.local.ip().to_string(), tuple.remote.ip().to_string());
            host.ip(&["route", "add", &remote, "dev", DEVICE, "src", &local]);
        }
        pair
    }

    pub(crate) fn flow(&self, transport: Transport) -> Names {
        names(self.inner, transport)
    }
}

/// Opens what was closed a moment ago. A program that another test is just starting has the descriptors of this process
/// until its exec, and who has a device or a port keeps others out.
fn reopen<T>(open: impl Fn() -> Result<T, Error>) -> T {
    let patience = Instant::now() + Duration::from_secs(5);
    let held = [Errno::BUSY, Errno::ADDRINUSE].map(|errno| Some(errno.raw_os_error()));
    loop {
        match open() {
            Err(error) if held.contains(&error.raw_os_error()) && Instant::now() < patience => thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

impl Host {
    fn start(namespace: PathBuf, index: u32, keys: TunnelKeys, path: TunnelPath, flows: Vec<TunnelFlow>) -> Self {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let tunnel = {
            let _entered = Entered::path(&namespace).unwrap();
            let tun = reopen(|| Tun::open(DEVICE, path.inner_mtu()));
            let udp = reopen(|| UdpSocket::bind(PORT));
            Tunnel::start(tun, udp, wake.try_clone().unwrap()).unwrap()
        };
        tunnel.add_keys(PEER, index, Algorithm::preferred(), &keys);
        tunnel.set_path(BINDING, index, path.clone()).unwrap();
        tunnel.set_flows(flows.iter().copied());
        let outer_address = path.source.unwrap();
        let path = Mutex::new(path);
        Self { namespace, tunnel, wake, outer_address, receive_index: index, keys, path, flows }
    }

    /// The same host after its daemon ended and came again, with keys of a new session.
    pub(crate) fn restart(self) -> Self {
        let Self { namespace, tunnel, receive_index, keys, path, flows, .. } = self;
        drop(tunnel);
        Self::start(namespace, receive_index, keys, path.into_inner().unwrap(), flows)
    }

    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = Entered::path(&self.namespace).unwrap();
        work()
    }

    pub(crate) fn ip(&self, arguments: &[&str]) {
        ip(&self.namespace, arguments);
    }

    pub(crate) fn set_path(&self, change: impl FnOnce(&mut TunnelPath)) {
        self.try_set_path(change).unwrap();
    }

    pub(crate) fn try_set_path(&self, change: impl FnOnce(&mut TunnelPath)) -> Result<(), PathError> {
        let mut path = self.path.lock().unwrap();
        change(&mut path);
        self.tunnel.set_path(BINDING, self.receive_index, path.clone())
    }

    /// Waits until the tunnel says that there is something for the control thread.
    pub(crate) fn wait_woken(&self, patience: Duration) {
        let timeout = Timespec::try_from(patience).unwrap();
        let ready = poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], Some(&timeout)).unwrap();
        assert_eq!(ready, 1, "the control thread was not woken");
    }
}

/// A UDP packet of two bytes that the host with this flow would receive.
pub(crate) fn udp_packet(receiver: FlowTuple) -> Vec<u8> {
    let (source, destination) = (receiver.remote, receiver.local);
    let ip = Ip::new(source.ip(), destination.ip());
    ip.udp(source.port(), destination.port(), b"hi").unwrap()
}

/// What a router would say to the sender of a packet of IPv4's that is too long for it, in the name of whom it was for.
pub(crate) fn error_about(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[6] |= 0x40;
    let headers = Headers::parse(&packet).unwrap();
    too_long(&packet, &headers, &VnetHeader::default(), 20).unwrap()
}

/// The path MTU that the kernel knows for a connected socket of IPv6.
pub(crate) fn known_mtu(socket: &std::net::UdpSocket) -> u32 {
    rustix::net::sockopt::ipv6_mtu(socket).unwrap()
}

/// A sealed datagram as the peer of `to` would send it, with `damage` added to its last byte.
pub(crate) fn sealed(to: &Host, receiver: u32, counter: u64, packet: &[u8], damage: u8) -> Vec<u8> {
    let header = TunnelHeader { chain: 0, receiver, protection: Protection::Sealed { counter } }.encode();
    let mut train = [&length_prefix(packet.len()).unwrap()[..], packet].concat();
    let tag = Algorithm::preferred().key(&to.keys.receive).seal(counter, &header, &mut train).unwrap();
    let mut datagram = [&header[..], &train, &tag].concat();
    *datagram.last_mut().unwrap() ^= damage;
    datagram
}

/// A plain datagram as the peer of `to` would send it, with `damage` added to its token.
pub(crate) fn plain(to: &Host, damage: u64, packet: &[u8]) -> Vec<u8> {
    let token = to.keys.receive_token + damage;
    let header = TunnelHeader { chain: 0, receiver: to.receive_index, protection: Protection::Plain { token } };
    [&header.encode()[..], &length_prefix(packet.len()).unwrap(), packet].concat()
}
