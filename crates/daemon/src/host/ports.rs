//! Ports of sockets that have gone to other hosts with this host's address.
//!
//! The far end of such a socket takes it to be here. So nobody here is to be given its port: a connection from it to
//! the same place would have the very names of the one that has moved, and a server on it would be deaf to whoever has
//! that. A socket is bound in its stead, which neither listens nor says anything; the kernel passes over its port when
//! it chooses one, and refuses it with EADDRINUSE to who asks for it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use whimbrel_wire::Transport;

/// The ports that are kept from being given away.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    ports: HashMap<(Transport, SocketAddr), Port>,
    /// Some are not held yet.
    open: bool,
    /// So many ticks pass until they are tried again, and so many did before.
    ticks: [u32; 2],
}

/// Ticks that pass at the most between two attempts to hold a port that somebody has, perhaps for days.
const MOST_TICKS: u32 = 64;

/// Why a port is another host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum User {
    /// A connection with this far end.
    Connection(SocketAddr),
    /// It is on lease.
    Lease,
    /// A socket without another end has gone there with it.
    Endpoint,
}

#[derive(Debug)]
struct Port {
    users: HashSet<User>,
    held: Option<OwnedFd>,
    /// A socket is on its way back to it.
    expected: bool,
}

impl Ports {
    /// Another host has this address of here.
    pub(crate) fn need(&mut self, transport: Transport, local: SocketAddr, user: User) {
        let fresh = || Port { users: HashSet::new(), held: None, expected: false };
        let port = self.ports.entry((transport, local)).or_insert_with(fresh);
        port.users.insert(user);
        if port.held.is_none() {
            (self.open, self.ticks) = (true, [0; 2]);
        }
    }

    /// It is over, or back.
    pub(crate) fn release(&mut self, transport: Transport, local: SocketAddr, user: User) {
        let key = (transport, local);
        if let Some(port) = self.ports.get_mut(&key) {
            port.users.remove(&user);
            if port.users.is_empty() {
                self.ports.remove(&key);
            }
        }
    }

    /// A socket comes back to its port.
    pub(crate) fn make_way(&mut self, transport: Transport, local: SocketAddr) {
        if let Some(port) = self.ports.get_mut(&(transport, local)) {
            port.held = None;
            self.open = true;
        }
    }

    /// Whether one is about to come back to this port that takes a while: until then nobody else gets it from here, nor
    /// does this.
    pub(crate) fn expect(&mut self, transport: Transport, local: SocketAddr, expected: bool) {
        if let Some(port) = self.ports.get_mut(&(transport, local)) {
            port.expected = expected;
            self.open = true;
        }
    }

    /// Takes a port for another host, of both transports. `false`: somebody has it. `shared`: only connections of that
    /// host's have it.
    pub(crate) fn take(&mut self, local: SocketAddr, shared: bool) -> bool {
        for transport in [Transport::Tcp, Transport::Udp] {
            let taken = match self.ports.get_mut(&(transport, local)) {
                Some(port) => shared && port.users.insert(User::Lease),
                None => match hold(transport, local, local) {
                    Ok(held) => {
                        let port = Port { users: HashSet::from([User::Lease]), held: Some(held), expected: false };
                        self.ports.insert((transport, local), port);
                        true
                    }
                    Err(_) => false,
                },
            };
            if !taken {
                if transport == Transport::Udp {
                    self.release(Transport::Tcp, local, User::Lease);
                }
                return false;
            }
        }
        true
    }

    /// All ports that are other hosts', whether or not they could be had.
    pub(crate) fn all(&self) -> impl Iterator<Item = u16> + '_ {
        self.ports.keys().map(|(_, end)| end.port())
    }

    /// The ends of UDP that other hosts have for whoever sends there, and not for one far end alone.
    pub(crate) fn ends_elsewhere(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let for_anybody = |port: &Port| port.users.iter().any(|user| !matches!(user, User::Connection(_)));
        let all = self.ports.iter().filter(move |((of, _), port)| *of == Transport::Udp && for_anybody(port));
        all.map(|((_, end), _)| *end)
    }

    /// The ports of an address that are other hosts'.
    pub(crate) fn of(&self, address: IpAddr) -> BTreeSet<u16> {
        self.ports.keys().filter(|(_, end)| end.ip() == address).map(|(_, end)| end.port()).collect()
    }

    /// Such a port is another host's already.
    pub(crate) fn keep(&mut self, local: SocketAddr) {
        self.need(Transport::Tcp, local, User::Lease);
        self.need(Transport::Udp, local, User::Lease);
    }

    /// It is not any more. Connections of it that are elsewhere have it still.
    pub(crate) fn give_back(&mut self, local: SocketAddr) {
        self.release(Transport::Tcp, local, User::Lease);
        self.release(Transport::Udp, local, User::Lease);
    }

    /// As [`settle`](Self::settle), less and less often while somebody has one.
    pub(crate) fn tick(&mut self) {
        let [rest, before] = self.ticks;
        if !self.open {
            self.ticks = [0; 2];
        } else if rest > 0 {
            self.ticks = [rest - 1, before];
        } else {
            self.settle();
            let next = (2 * before).clamp(1, MOST_TICKS);
            self.ticks = [next, next];
        }
    }

    /// Takes those that are not held. One that cannot be had is somebody's, which does as well: the listener's that the
    /// connection was accepted by, or the socket's itself, which is about to go. So this is asked again from time to
    /// time.
    pub(crate) fn settle(&mut self) {
        if !self.open {
            return;
        }
        self.open = false;
        for ((transport, local), port) in &mut self.ports {
            if port.expected {
                self.open = true;
                continue;
            }
            let Some(user) = port.users.iter().next().filter(|_| port.held.is_none()) else { continue };
            let far = match user {
                User::Connection(far) => *far,
                User::Lease | User::Endpoint => *local,
            };
            match hold(*transport, *local, far) {
                Ok(held) => port.held = Some(held),
                Err(Errno::ADDRINUSE) => self.open = true,
                // One below 1024, which this process has no right to (capabilities(7)), nor have most others; or no
                // address of this host.
                Err(error) => tracing::debug!(%local, %error, "the port of a socket that is elsewhere is not held"),
            }
        }
    }
}

/// A socket that has the port and does nothing.
fn hold(transport: Transport, local: SocketAddr, far: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = match transport {
        Transport::Tcp => SocketType::STREAM,
        Transport::Udp => SocketType::DGRAM,
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &local)?;
    if transport == Transport::Udp {
        // It is not to take what others send to the port, who would wait for an answer instead of hearing that nobody
        // is there.
        connect(&socket, &far)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    fn taken(result: io::Result<()>) -> bool {
        match result {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
                true
            }
        }
    }

    #[test]
    fn a_port_is_held_once_its_socket_has_gone_and_until_nobody_needs_it() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let remote = listener.local_addr().expect("address");
        let client = TcpStream::connect(remote).expect("connect");
        let accepted = listener.accept().expect("accept").0;
        let local = client.local_addr().expect("address");
        let mut ports = Ports::default();
        ports.need(Transport::Tcp, local, User::Connection(remote));
        let other = SocketAddr::new(remote.ip(), 9);
        ports.need(Transport::Tcp, local, User::Connection(other));
        ports.settle();
        assert!(ports.open, "its own socket has it still");
        // The end that closes last has no TIME-WAIT.
        drop(accepted);
        drop(client);
        let start = std::time::Instant::now();
        while ports.open {
            assert!(start.elapsed().as_secs() < 10, "it is not to be had");
            ports.settle();
        }
        let ask = || TcpListener::bind(local).map(drop);
        assert!(taken(ask()));
        ports.make_way(Transport::Tcp, local);
        assert!(!taken(ask()), "it cannot come back");
        ports.expect(Transport::Tcp, local, true);
        ports.settle();
        assert!(!taken(ask()), "it cannot come back after a while");
        ports.expect(Transport::Tcp, local, false);
        ports.settle();
        assert!(taken(ask()));
        ports.release(Transport::Tcp, local, User::Connection(remote));
        assert!(taken(ask()));
        ports.release(Transport::Tcp, local, User::Connection(other));
        assert!(!taken(ask()));
    }

    #[test]
    fn a_port_that_somebody_keeps_is_not_tried_without_end() {
        let program = TcpListener::bind("127.0.0.1:0").expect("bind");
        let local = program.local_addr().expect("address");
        let mut ports = Ports::default();
        ports.need(Transport::Tcp, local, User::Endpoint);
        // An attempt finds it taken, and leaves it open; between two nothing is asked of the kernel.
        let attempts = |ports: &mut Ports, ticks: u32| {
            let attempt = |_: &u32| {
                let due = ports.ticks[0] == 0;
                ports.tick();
                due
            };
            (0..ticks).filter(attempt).count()
        };
        assert_eq!(attempts(&mut ports, 1), 1, "at once");
        assert!(attempts(&mut ports, 4000) < 80);
        drop(program);
        assert!(attempts(&mut ports, MOST_TICKS + 1) > 0 && !ports.open, "it is free, and had");
        assert!(taken(TcpListener::bind(local).map(drop)));
    }

    #[test]
    fn a_port_that_connections_have_is_lent_again_to_the_host_that_has_them_alone() {
        let free = TcpListener::bind("127.0.0.1:0").expect("bind");
        let local = free.local_addr().expect("address");
        drop(free);
        let mut ports = Ports::default();
        assert!(ports.take(local, false));
        let far = "192.0.2.9:40000".parse().expect("an endpoint");
        ports.need(Transport::Tcp, local, User::Connection(far));
        assert!(!ports.take(local, true), "it is on lease yet");
        ports.give_back(local);
        assert!(!ports.take(local, false), "a connection has it");
        assert!(ports.take(local, true));
        assert!(!ports.take(local, true), "it is on lease");
        assert_eq!(ports.all().collect::<BTreeSet<_>>(), BTreeSet::from([local.port()]));
        ports.give_back(local);
        assert!(taken(TcpListener::bind(local).map(drop)), "the connection has it yet");
        ports.release(Transport::Tcp, local, User::Connection(far));
        assert!(ports.take(local, false), "nobody has it any more");
    }

    #[test]
    fn datagrams_of_others_are_refused_as_before() {
        let far = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let gone = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let (local, remote) = (gone.local_addr().expect("address"), far.local_addr().expect("address"));
        drop(gone);
        let mut ports = Ports::default();
        ports.need(Transport::Udp, local, User::Connection(remote));
        ports.settle();
        assert!(taken(UdpSocket::bind(local).map(drop)));
        let other = UdpSocket::bind("127.0.0.1:0").expect("bind");
        other.connect(local).expect("connect");
        other.send(b"hello").expect("sent");
        let told = other.recv(&mut [0; 8]).expect_err("nobody is there");
        assert_eq!(told.kind(), io::ErrorKind::ConnectionRefused);
    }
}
