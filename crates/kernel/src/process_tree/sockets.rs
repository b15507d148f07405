//! The sockets of the network namespace that a process is in, as `/proc/PID/net` shows them, by their inodes.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use whimbrel_wire::{FlowTuple, Transport};

use crate::checkpoint::{self, Inet};
use crate::duplicated;
use crate::error::Error;
use crate::namespace::{self, Entered};
use crate::process_tree::ends::End;
use crate::sock_diag::SockDiag;

/// Lists of sockets that CRIU knows, with the column of the inode, counted from 0 or from the end.
const OTHERS: [(&str, Column); 6] = [
    ("unix", Column::At(6)),
    ("netlink", Column::Last),
    ("packet", Column::Last),
    ("raw", Column::At(9)),
    ("raw6", Column::At(9)),
    ("udplite", Column::At(9)),
];
/// Column of the inode of `tcp`, `tcp6`, `udp` and `udp6`.
const INODE: usize = 9;
/// UNIX sockets that keep messages apart (`SOCK_DGRAM`), in the column `Type`.
const DATAGRAM: &str = "0002";

#[derive(Clone, Copy)]
enum Column {
    At(usize),
    Last,
}

/// What is known of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Socket {
    /// Of TCP or UDP, and connected.
    Open(FlowTuple),
    /// Of TCP, and about to be.
    Opening,
    /// Of TCP: where, and how many connections nobody has accepted yet.
    Listening(SocketAddr, u32),
    /// Of UDP, and not connected: where.
    Bound(SocketAddr),
    /// Of a kind that CRIU knows.
    Other,
}

/// What is known of a socket that no list has: those of TCP that are over or were never connected, and those of UDP
/// that are not bound, are in no table of the kernel's (`inet_hash`, `udp_lib_get_port`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unlisted {
    /// Such a one, of this network namespace. Where it is bound, or was, if it is.
    Idle(Option<SocketAddr>),
    /// The same, with so many bytes that its program has not read.
    Unread(u32),
    /// It should be in a list: it has become what it is just now.
    Changing,
    /// The process does not have it any more.
    Gone,
    /// Of another network namespace.
    Elsewhere,
    /// Of a kind that CRIU does not know: which.
    Strange(&'static str),
}

/// All of a network namespace.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    /// Its cookie.
    cookie: u64,
    by_inode: HashMap<u32, Socket>,
    datagram: HashSet<u32>,
    /// The other ends of UNIX sockets.
    peers: HashMap<u32, u32>,
}

impl Sockets {
    /// Those of the network namespace that a process is in.
    pub(super) fn of(pid: u32) -> Result<Self, Error> {
        let mut sockets = Self::default();
        sockets.check_again(pid);
        let _inside = Entered::path(&PathBuf::from(format!("/proc/{pid}/ns/net")))?;
        sockets.cookie = namespace::cookie()?;
        // A kernel without the module does not tell; CRIU, which needs it too, does.
        sockets.peers = SockDiag::open()?.unix_peers().unwrap_or_default();
        Ok(sockets)
    }

    /// Adds those that there are by now.
    pub(super) fn check_again(&mut self, pid: u32) {
        for (name, transport) in
            [("tcp", Transport::Tcp), ("tcp6", Transport::Tcp), ("udp", Transport::Udp), ("udp6", Transport::Udp)]
        {
            for line in lines(pid, name) {
                self.by_inode.extend(inet(&line, transport));
            }
        }
        for (name, column) in OTHERS {
            for line in lines(pid, name) {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let inode = match column {
                    Column::At(at) => fields.get(at),
                    Column::Last => fields.last(),
                };
                let Some(inode) = inode.and_then(|inode| inode.parse().ok()) else { continue };
                self.by_inode.insert(inode, Socket::Other);
                if name == "unix" && fields.get(4) == Some(&DATAGRAM) {
                    self.datagram.insert(inode);
                }
            }
        }
    }

    /// Looks at a socket of a process that no list has.
    ///
    /// # Errors
    /// [`Error::Call`]: the process may not be looked into, or the kernel does not tell.
    pub(super) fn inspect_unlisted(&self, pid: u32, number: &str, inode: u32) -> Result<Unlisted, Error> {
        let Ok(number) = number.parse() else { return Ok(Unlisted::Gone) };
        let Some(socket) = duplicated::borrow_descriptor(pid, number, inode)? else { return Ok(Unlisted::Gone) };
        if namespace::cookie_of(socket.as_fd())? != self.cookie {
            return Ok(Unlisted::Elsewhere);
        }
        unlisted(socket.as_fd())
    }

    pub(super) fn find(&self, inode: u32) -> Option<&Socket> {
        self.by_inode.get(&inode)
    }

    /// All of TCP and UDP that have no other end, with their inodes.
    pub(super) fn ends(&self) -> impl Iterator<Item = (u32, End)> {
        self.by_inode.iter().filter_map(|(inode, socket)| match socket {
            Socket::Listening(at, _) => Some((*inode, End { transport: Transport::Tcp, at: *at })),
            Socket::Bound(at) => Some((*inode, End { transport: Transport::Udp, at: *at })),
            _ => None,
        })
    }

    /// The ends of UNIX sockets that are connected, each with its other end.
    pub(super) fn unix_peers(&self) -> impl Iterator<Item = (u32, u32)> {
        self.peers.iter().map(|(socket, peer)| (*socket, *peer))
    }

    pub(super) fn is_datagram(&self, inode: u32) -> bool {
        self.datagram.contains(&inode)
    }
}

/// What a descriptor shows of itself.
fn unlisted(socket: BorrowedFd<'_>) -> Result<Unlisted, Error> {
    let domain = socket_domain(socket).map_err(|e| Error::call("getsockopt", "SO_DOMAIN", e))?;
    if !matches!(domain, AddressFamily::INET | AddressFamily::INET6) {
        return Ok(Unlisted::Strange("neither of IPv4, of IPv6 nor of UNIX"));
    }
    let bound = || match rustix::net::getsockname(socket) {
        Ok(name) => Ok(SocketAddr::try_from(name).ok().filter(|at| at.port() != 0)),
        // The kernel has taken its address from it.
        Err(Errno::NOTCONN | Errno::INVAL) => Ok(None),
        Err(error) => Err(Error::call("getsockname", "a socket of a process", error)),
    };
    let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
    Ok(match checkpoint::inet_of(socket)? {
        Inet::Tcp { closed: true, unread: 0 } => Unlisted::Idle(bound()?.map(canonical)),
        Inet::Tcp { closed: true, unread } => Unlisted::Unread(unread),
        Inet::Udp if bound()?.is_none() => Unlisted::Idle(None),
        Inet::Tcp { .. } | Inet::Udp => Unlisted::Changing,
        Inet::Multipath => Unlisted::Strange("of Multipath TCP"),
        Inet::Other => Unlisted::Strange("neither of TCP nor of UDP"),
    })
}

fn lines(pid: u32, name: &str) -> Vec<String> {
    // One that the kernel was built without is not there.
    let text = fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    text.lines().skip(1).map(str::to_owned).collect()
}

/// A line of `/proc/net/tcp` and its like (proc_pid_net(5)).
fn inet(line: &str, transport: Transport) -> Option<(u32, Socket)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, remote) = (endpoint(fields.get(1)?)?, endpoint(fields.get(2)?)?);
    let state = u8::from_str_radix(fields.get(3)?, 16).ok()?;
    let inode = fields.get(INODE)?.parse().ok()?;
    let open = Socket::Open(FlowTuple { transport, local, remote });
    let socket = match (transport, state) {
        (Transport::Tcp, 2 | 3 | 12) => Socket::Opening,
        (Transport::Tcp, 10) => {
            // Behind the colon: the receive queue, which is that of connections here.
            let waiting = fields.get(4)?.split_once(':').and_then(|(_, queue)| u32::from_str_radix(queue, 16).ok());
            Socket::Listening(local, waiting.unwrap_or(0))
        }
        // Closed: never connected, or over.
        (Transport::Tcp, 7) => Socket::Other,
        (Transport::Tcp, _) => open,
        (Transport::Udp, 1) => open,
        (Transport::Udp, _) if local.port() != 0 => Socket::Bound(local),
        (Transport::Udp, _) => Socket::Other,
    };
    Some((inode, socket))
}

/// An address and a port: hexadecimal words as they stand in memory, and a port.
fn endpoint(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn lines_are_read() {
        let tcp = "   0: 0200000A:0016 010010AC:9C40 01 00000000:00000000 02:00000001 00000000     0        0 4711 2 0";
        let flow = FlowTuple {
            transport: Transport::Tcp,
            local: "10.0.0.2:22".parse().expect("endpoint"),
            remote: "172.16.0.1:40000".parse().expect("endpoint"),
        };
        assert_eq!(inet(tcp, Transport::Tcp), Some((4711, Socket::Open(flow))));
        let listening = "   1: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000003 00:00000000 00000000     0        0 12 1 0";
        let at = "[::]:80".parse().expect("endpoint");
        assert_eq!(inet(listening, Transport::Tcp), Some((12, Socket::Listening(at, 3))));
        assert_eq!(endpoint("0000000000000000FFFF00000200000A:0016"), Some(flow.local), "IPv4 in IPv6");
        let bound = tcp.replace(" 01 ", " 07 ").replace("010010AC:9C40", "00000000:0000");
        assert_eq!(inet(&bound, Transport::Udp), Some((4711, Socket::Bound(flow.local))));
        assert_eq!(inet(&bound.replace(":0016", ":0000"), Transport::Udp), Some((4711, Socket::Other)));
        assert_eq!(inet("", Transport::Tcp), None);
        assert_eq!(endpoint("0200000A"), None);
        assert_eq!(endpoint("0200:1"), None);
    }
}
