//! The sockets of a network namespace (sock_diag(7)).
//!
//! The dump's records are read by their offsets instead of by a netlink library: they have a fixed layout, and a host
//! may have a hundred thousand of them.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use netlink_packet_core::NLM_F_DUMP;
use whimbrel_wire::{FlowTuple, Transport};

use crate::error::Error;
use crate::netlink::Netlink;

/// `SOCK_DIAG_BY_FAMILY` and `SOCK_DESTROY` (include/uapi/linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// `struct inet_diag_req_v2`: family, protocol, extensions, pad, states (4), socket id (48).
const REQUEST_LEN: usize = 56;
/// `struct inet_diag_msg`: family, state, timer, retransmissions, socket id (48), expires, queues (2), uid, inode.
const RECORD_LEN: usize = 72;
/// `struct inet_diag_sockid`: ports (2 + 2, network order), addresses (16 + 16), interface (4), cookie (8).
const ID: usize = 4;
/// In the request.
const EXTENSIONS: usize = 2;
/// One octet: which directions are shut down (RCV_SHUTDOWN, SEND_SHUTDOWN: include/net/sock.h).
const INET_DIAG_SHUTDOWN: u16 = 8;
const SEND_SHUTDOWN: u8 = 2;
/// One octet: whether a socket that is bound to all IPv6 addresses leaves those of IPv4 to others.
const INET_DIAG_SKV6ONLY: u16 = 11;
const INET_DIAG_MARK: u16 = 15;
/// Number of the attribute that holds a `struct tcp_info`. The kernel takes the lock of a connected TCP socket for it,
/// which its program may hold for as long as it likes, so it is asked for of single ones alone.
const INET_DIAG_INFO: u16 = 2;
/// The keys that a TCP socket signs its segments with (RFC 2385), where it has any. Told beside INET_DIAG_INFO, to
/// those alone who have CAP_NET_ADMIN.
const INET_DIAG_MD5SIG: u16 = 18;
/// `struct unix_diag_req`: family, protocol, pad, states, inode, what is to be shown, cookie; `struct unix_diag_msg`,
/// and where that has the inode (include/uapi/linux/unix_diag.h).
const UNIX_REQUEST_LEN: usize = 24;
const UNIX_RECORD_LEN: usize = 16;
const UNIX_INODE: usize = 4;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
/// Offsets in `struct inet_diag_msg`.
const TIMER: usize = 2;
const TIMER_OF_TIME_WAIT: u8 = 3;
const UID: usize = 64;
const INODE: usize = 68;

/// The state of a TCP connection (include/net/tcp_states.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TcpState {
    /// Open.
    Established = 1,
    /// Asked for, not answered yet.
    SynSent = 2,
    /// Being accepted.
    SynReceived = 3,
    /// Closed by this end, which is not acknowledged yet.
    FinWait1 = 4,
    /// Closed by this end.
    FinWait2 = 5,
    /// Closed; waits for what is still on the way. Has no inode.
    TimeWait = 6,
    /// Closed by the other end.
    CloseWait = 8,
    /// Closed by both ends, which is not acknowledged yet.
    LastAck = 9,
    /// Closed by both ends at once.
    Closing = 11,
}

impl TcpState {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Established,
            2 => Self::SynSent,
            // 12 is TCP_NEW_SYN_RECV, which is not reported as such.
            3 | 12 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            11 => Self::Closing,
            _ => return None,
        })
    }

    fn bit(self) -> u32 {
        1 << self as u8
    }
}

const LISTEN_BIT: u32 = 1 << 10;
/// Connected UDP sockets count as established.
const CONNECTED_BIT: u32 = 1 << 1;
/// And others as closed (TCP_CLOSE).
const UNCONNECTED_BIT: u32 = 1 << 7;

/// TCP sockets that are bound, and no more than that (TCP_BOUND_INACTIVE, include/net/tcp_states.h).
const BOUND_BIT: u32 = 1 << 13;
/// Linux 6.8: those are listed.
const SINCE_BOUND: (u32, u32) = (6, 8);

/// The number of a socket, unique until the machine is booted again (`SO_COOKIE`).
///
/// # Errors
/// [`Error::Call`]: it is no socket.
pub fn cookie_of(socket: BorrowedFd<'_>) -> Result<u64, Error> {
    rustix::net::sockopt::socket_cookie(socket).map_err(|e| Error::call("getsockopt", "SO_COOKIE", e))
}

/// Whether TCP sockets are listed that are bound, and neither listen nor are connected: those are from Linux 6.8 on.
#[must_use]
pub fn lists_bound() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|release| release >= SINCE_BOUND)
}

/// The states in which a connection may still carry something, or may still have to answer.
pub const MOVABLE: [TcpState; 6] = [
    TcpState::Established,
    TcpState::FinWait1,
    TcpState::FinWait2,
    TcpState::CloseWait,
    TcpState::LastAck,
    TcpState::Closing,
];

/// A connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// As this host names it; IPv4 also where the socket is an IPv6 one with a mapped address.
    pub tuple: FlowTuple,
    /// [`TcpState::Established`] for UDP.
    pub state: TcpState,
    /// The user that it belongs to.
    pub uid: u32,
    /// The inode that `/proc/PID/fd` shows; 0 where no process has it any more.
    pub inode: u32,
    /// Unique until the machine is booted again (`SO_COOKIE`).
    pub cookie: u64,
    /// The interface that it is bound to, 0 for none.
    pub interface: u32,
    /// SO_MARK. 0 for callers without CAP_NET_ADMIN, who are not told.
    pub mark: u32,
}

/// A socket without another end: of TCP, one that waits for connections; of UDP, one that is bound and not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listener {
    /// The address, or an unspecified one, and the port. One that listens on `[::]` may accept IPv4 as well.
    pub address: SocketAddr,
    /// The inode that `/proc/PID/fd` shows.
    pub inode: u32,
    /// Unique until the machine is booted again (`SO_COOKIE`).
    pub cookie: u64,
}

/// A blocking sock_diag socket, in the namespace that the opening thread was in.
#[derive(Debug)]
pub struct SockDiag {
    netlink: Netlink,
}

impl SockDiag {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open() -> Result<Self, Error> {
        Netlink::open(netlink_sys::protocols::NETLINK_SOCK_DIAG, "NETLINK_SOCK_DIAG").map(|netlink| Self { netlink })
    }

    /// The TCP connections in any of these states.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn tcp(&mut self, states: &[TcpState]) -> Result<Vec<Connection>, Error> {
        let bits = states.iter().fold(0, |bits, state| bits | state.bit());
        let found = self.dump(Transport::Tcp, bits, |record| connection(Transport::Tcp, record))?;
        Ok(found.into_iter().filter(|connection| states.contains(&connection.state)).collect())
    }

    /// The connected UDP sockets.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn udp(&mut self) -> Result<Vec<Connection>, Error> {
        self.dump(Transport::Udp, CONNECTED_BIT, |record| connection(Transport::Udp, record))
    }

    /// The one connected socket with this tuple, however many others there are. A socket that is bound to an interface
    /// is not found.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn find(&mut self, tuple: &FlowTuple) -> Result<Option<Connection>, Error> {
        // A listener, or a socket that is not connected, takes what has no socket of its own.
        let found = self.taker(tuple, |record| connection(tuple.transport, record))?;
        Ok(found.filter(|found| found.tuple == *tuple))
    }

    /// The UDP socket that is not connected and would be given what comes under this tuple. One that is bound to an
    /// interface is not found.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn find_unconnected(&mut self, tuple: &FlowTuple) -> Result<Option<Listener>, Error> {
        if tuple.transport != Transport::Udp {
            return Ok(None);
        }
        self.taker(tuple, |record| {
            let unconnected = Id::of(record)?.remote_port == 0;
            listener(record).filter(|_| unconnected)
        })
    }

    /// The socket that would be given what comes under this tuple.
    fn taker<T>(&mut self, tuple: &FlowTuple, of: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>, Error> {
        let (mut own, mut other) = (tuple.local, tuple.remote);
        if tuple.transport == Transport::Udp {
            // udp_dump_one (net/ipv4/udp_diag.c) looks for the socket as a datagram to it would: from the other end.
            std::mem::swap(&mut own, &mut other);
        }
        let request = request_for(tuple.transport, own, other, tuple.local.is_ipv4());
        let mut found = None;
        let result = self.netlink.request(
            SOCK_DIAG_BY_FAMILY,
            0,
            &request,
            &mut found,
            |found| *found = None,
            |found, _, record| *found = of(record),
        );
        match result {
            Ok(()) => Ok(found),
            Err(refusal) if refusal.errno() == libc::ENOENT => Ok(None),
            Err(refusal) => Err(refusal.of("SOCK_DIAG_BY_FAMILY", tuple.to_string())),
        }
    }

    /// Whether a UDP socket sends no more, since its program has shut that down: nothing else tells. `tuple` is where
    /// it is looked for first. `None`: there is no such socket.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub(crate) fn is_silenced(&mut self, tuple: &FlowTuple, cookie: u64) -> Result<Option<bool>, Error> {
        self.told(tuple, cookie, |attributes| {
            Some(attribute(attributes, INET_DIAG_SHUTDOWN)?.first()? & SEND_SHUTDOWN != 0)
        })
    }

    /// Whether a TCP socket signs its segments with a key (TCP_MD5SIG). `tuple` is where it is looked for first.
    /// `None`: there is no such socket. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub(crate) fn is_signing(&mut self, tuple: &FlowTuple, cookie: u64) -> Result<Option<bool>, Error> {
        self.told(tuple, cookie, |attributes| Some(attribute(attributes, INET_DIAG_MD5SIG).is_some()))
    }

    /// What the attributes tell of the socket with this cookie.
    fn told<T: Copy>(
        &mut self,
        tuple: &FlowTuple,
        cookie: u64,
        of: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let told = |record: &[u8]| {
            of(record.get(RECORD_LEN..)?).filter(|_| Id::of(record).is_some_and(|id| id.cookie == cookie))
        };
        let mut request = match tuple.transport {
            Transport::Tcp => request_for(Transport::Tcp, tuple.local, tuple.remote, tuple.local.is_ipv4()),
            // As in `find`.
            Transport::Udp => request_for(Transport::Udp, tuple.remote, tuple.local, tuple.local.is_ipv4()),
        };
        let extensions = 1 << (INET_DIAG_INFO - 1);
        request[EXTENSIONS] = extensions;
        let mut found = None;
        let asked = self.netlink.request(
            SOCK_DIAG_BY_FAMILY,
            0,
            &request,
            &mut found,
            |found| *found = None,
            |found, _, record| *found = told(record),
        );
        if asked.is_ok() && found.is_some() {
            return Ok(found);
        }
        if tuple.transport == Transport::Tcp {
            // One that is bound to an interface.
            let is_it = |record: &[u8]| Id::of(record).filter(|id| id.cookie == cookie).map(|id| id.interface);
            let connected = !(TcpState::TimeWait.bit() | LISTEN_BIT | UNCONNECTED_BIT | BOUND_BIT);
            if let Some(interface) = self.dump(Transport::Tcp, connected, is_it)?.first() {
                request[8 + 36..][..4].copy_from_slice(&interface.to_ne_bytes());
                let asked = self.netlink.request(
                    SOCK_DIAG_BY_FAMILY,
                    0,
                    &request,
                    &mut found,
                    |found| *found = None,
                    |found, _, record| *found = told(record),
                );
                return match asked {
                    Ok(()) => Ok(found),
                    Err(refusal) if refusal.errno() == libc::ENOENT => Ok(None),
                    Err(refusal) => Err(refusal.of("SOCK_DIAG_BY_FAMILY", tuple.to_string())),
                };
            }
        }
        // One of several that share their names, or of IPv6 that has IPv4 as well. The kernel locks each socket that it
        // tells INET_DIAG_INFO of except those that listen (`tcp_get_info`), and any user can hold the lock of one that
        // is bound: all of these are looked at only if it is one of them.
        let states: &[u32] = match tuple.transport {
            Transport::Tcp => &[LISTEN_BIT, UNCONNECTED_BIT | BOUND_BIT],
            Transport::Udp => &[!TcpState::TimeWait.bit()],
        };
        for states in states {
            if let Some(found) = self.dump_with(tuple.transport, *states, extensions, told)?.first() {
                return Ok(Some(*found));
            }
        }
        Ok(None)
    }

    /// The TCP sockets that wait for connections.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn listeners(&mut self) -> Result<Vec<Listener>, Error> {
        self.dump(Transport::Tcp, LISTEN_BIT, listener)
    }

    /// The UDP sockets that are bound and take what anybody sends.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn unconnected(&mut self) -> Result<Vec<Listener>, Error> {
        self.dump(Transport::Udp, UNCONNECTED_BIT, |record| listener(record).filter(|found| found.address.port() != 0))
    }

    /// Whether any TCP or UDP socket has this local port, at whatever address: bound (TCP: where [`lists_bound`]),
    /// listening, or connected; not what only waits for what is still on the way (TIME_WAIT).
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn is_port_used(&mut self, port: u16) -> Result<bool, Error> {
        Ok(self.is_port_used_by(Transport::Tcp, port)? || self.is_port_used_by(Transport::Udp, port)?)
    }

    /// The same, of one transport.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn is_port_used_by(&mut self, transport: Transport, port: u16) -> Result<bool, Error> {
        let local = |record: &[u8]| Id::of(record).filter(|id| id.local_port == port);
        Ok(!self.dump(transport, !TcpState::TimeWait.bit(), local)?.is_empty())
    }

    /// The ports at which nothing else can be bound to each of these addresses of the host's, of both transports, since
    /// a socket has them: one that is bound to it or to all addresses (TCP: where [`lists_bound`]), listening,
    /// connected, or waiting for what is still on the way.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn ports_used_at(&mut self, addresses: &[IpAddr]) -> Result<Vec<BTreeSet<u16>>, Error> {
        let mut used = vec![BTreeSet::new(); addresses.len()];
        if addresses.is_empty() {
            return Ok(used);
        }
        for transport in [Transport::Tcp, Transport::Udp] {
            // With each port, of which of the addresses it is.
            let bound = self.dump(transport, u32::MAX, |record| {
                let id = Id::of(record).filter(|id| id.local_port != 0)?;
                let only_ipv6 = || {
                    let said = attribute(record.get(RECORD_LEN..)?, INET_DIAG_SKV6ONLY)?;
                    said.first().copied()
                };
                let both = id.local_ip.is_ipv6() && id.local_ip.is_unspecified() && only_ipv6().unwrap_or(0) == 0;
                let has = |address: &IpAddr| {
                    let all = id.local_ip.is_unspecified() && id.local_ip.is_ipv4() == address.is_ipv4();
                    both || all || id.local_ip == *address
                };
                addresses.iter().any(has).then(|| (id.local_port, addresses.iter().map(has).collect::<Vec<bool>>()))
            })?;
            for (port, of) in bound {
                for (used, _) in used.iter_mut().zip(of).filter(|(_, has)| *has) {
                    used.insert(port);
                }
            }
        }
        Ok(used)
    }

    /// The UNIX sockets that are connected, each with its other end, by their inodes.
    ///
    /// # Errors
    /// [`Error::Call`]: ENOENT where the kernel has no `unix_diag`.
    pub fn unix_peers(&mut self) -> Result<HashMap<u32, u32>, Error> {
        let mut request = [0; UNIX_REQUEST_LEN];
        request[0] = libc::AF_UNIX as u8;
        request[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        request[12..16].copy_from_slice(&UDIAG_SHOW_PEER.to_ne_bytes());
        let mut found = HashMap::new();
        let result = self.netlink.request(
            SOCK_DIAG_BY_FAMILY,
            NLM_F_DUMP,
            &request,
            &mut found,
            HashMap::clear,
            |found, _, record| {
                let inode = number(record, UNIX_INODE);
                let peer = attribute(record.get(UNIX_RECORD_LEN..).unwrap_or_default(), UNIX_DIAG_PEER);
                found.extend(inode.zip(peer.and_then(|peer| number(peer, 0))));
            },
        );
        result.map(|()| found).map_err(|refusal| refusal.of("SOCK_DIAG_BY_FAMILY", "UNIX sockets".to_owned()))
    }

    /// Destroys a socket: its program gets ECONNABORTED, and a TCP peer a reset. Returns whether it was there; a socket
    /// with the same tuple but another cookie is left alone. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// [`Error::Call`]: EOPNOTSUPP where the kernel was built without (CONFIG_INET_DIAG_DESTROY).
    pub fn destroy(&mut self, connection: &Connection) -> Result<bool, Error> {
        self.destroy_named(&connection.tuple, connection.interface, connection.cookie)
    }

    /// The same by what names a socket, also one without another end.
    pub(crate) fn destroy_named(&mut self, tuple: &FlowTuple, interface: u32, cookie: u64) -> Result<bool, Error> {
        let mut request = request(tuple.local.is_ipv4(), tuple.transport, u32::MAX);
        let id = &mut request[8..];
        id[..2].copy_from_slice(&tuple.local.port().to_be_bytes());
        id[2..4].copy_from_slice(&tuple.remote.port().to_be_bytes());
        put_address(&mut id[4..20], tuple.local.ip());
        put_address(&mut id[20..36], tuple.remote.ip());
        id[36..40].copy_from_slice(&interface.to_ne_bytes());
        id[40..48].copy_from_slice(&cookie.to_ne_bytes());
        match self.netlink.request(SOCK_DESTROY, 0, &request, &mut (), |()| {}, |(), _, _| {}) {
            Ok(()) => Ok(true),
            Err(refusal) if matches!(refusal.errno(), libc::ENOENT | libc::ESTALE) => Ok(false),
            Err(refusal) => Err(refusal.of("SOCK_DESTROY", tuple.to_string())),
        }
    }

    fn dump<T>(
        &mut self,
        transport: Transport,
        states: u32,
        decode: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        self.dump_with(transport, states, 0, decode)
    }

    /// `extensions`: attributes that each record is to have, bit n for the one with number n + 1. None of those that
    /// take the locks of connected TCP sockets.
    fn dump_with<T>(
        &mut self,
        transport: Transport,
        states: u32,
        extensions: u8,
        decode: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let mut found = Vec::new();
        for ipv4 in [true, false] {
            let before = found.len();
            let mut state = (std::mem::take(&mut found), before);
            let mut question = request(ipv4, transport, states);
            question[EXTENSIONS] = extensions;
            let result = self.netlink.request(
                SOCK_DIAG_BY_FAMILY,
                NLM_F_DUMP,
                &question,
                &mut state,
                |(found, before)| found.truncate(*before),
                |(found, _), _, record| found.extend(decode(record)),
            );
            found = state.0;
            match result {
                Ok(()) => {}
                // No IPv6, or no UDP diagnosis, in this kernel.
                Err(refusal) if !ipv4 && refusal.errno() == libc::ENOENT => {}
                Err(refusal) => {
                    return Err(refusal.of("SOCK_DIAG_BY_FAMILY", format!("{transport:?} sockets").to_lowercase()));
                }
            }
        }
        Ok(found)
    }
}

fn request(ipv4: bool, transport: Transport, states: u32) -> [u8; REQUEST_LEN] {
    let mut request = [0; REQUEST_LEN];
    request[0] = if ipv4 { libc::AF_INET } else { libc::AF_INET6 } as u8;
    request[1] = transport.protocol();
    request[4..8].copy_from_slice(&states.to_ne_bytes());
    request
}

/// For one socket, whatever its state and cookie.
fn request_for(transport: Transport, own: SocketAddr, other: SocketAddr, ipv4: bool) -> [u8; REQUEST_LEN] {
    let mut request = request(ipv4, transport, u32::MAX);
    let id = &mut request[8..];
    id[..2].copy_from_slice(&own.port().to_be_bytes());
    id[2..4].copy_from_slice(&other.port().to_be_bytes());
    put_address(&mut id[4..20], own.ip());
    put_address(&mut id[20..36], other.ip());
    // INET_DIAG_NOCOOKIE
    id[40..48].fill(0xff);
    request
}

fn put_address(at: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(v4) => at[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => at.copy_from_slice(&v6.octets()),
    }
}

struct Id {
    local_ip: IpAddr,
    local_port: u16,
    remote_ip: IpAddr,
    remote_port: u16,
    interface: u32,
    cookie: u64,
}

impl Id {
    fn of(record: &[u8]) -> Option<Self> {
        if record.len() < RECORD_LEN {
            return None;
        }
        let ipv4 = i32::from(record[0]) == libc::AF_INET;
        let id = &record[ID..];
        let address = |at: usize| -> Option<IpAddr> {
            Some(if ipv4 {
                Ipv4Addr::from(*id.get(at..)?.first_chunk::<4>()?).into()
            } else {
                IpAddr::V6(Ipv6Addr::from(*id.get(at..)?.first_chunk::<16>()?)).to_canonical()
            })
        };
        Some(Self {
            local_port: u16::from_be_bytes([id[0], id[1]]),
            remote_port: u16::from_be_bytes([id[2], id[3]]),
            local_ip: address(4)?,
            remote_ip: address(20)?,
            interface: number(id, 36)?,
            cookie: u64::from_ne_bytes(*id.get(40..)?.first_chunk()?),
        })
    }

    /// Link-local addresses need their interface.
    fn socket_address(&self, ip: IpAddr, port: u16) -> SocketAddr {
        let mut address = SocketAddr::new(ip, port);
        if let SocketAddr::V6(v6) = &mut address
            && v6.ip().is_unicast_link_local()
        {
            v6.set_scope_id(self.interface);
        }
        address
    }
}

fn connection(transport: Transport, record: &[u8]) -> Option<Connection> {
    let id = Id::of(record)?;
    Some(Connection {
        tuple: FlowTuple {
            transport,
            local: id.socket_address(id.local_ip, id.local_port),
            remote: id.socket_address(id.remote_ip, id.remote_port),
        },
        state: state_of(record)?,
        uid: number(record, UID)?,
        inode: number(record, INODE)?,
        cookie: id.cookie,
        interface: id.interface,
        mark: record.get(RECORD_LEN..).and_then(|rest| number(attribute(rest, INET_DIAG_MARK)?, 0)).unwrap_or(0),
    })
}

/// The state of a socket. What is left of one that is over waits out late packets, as in TIME_WAIT; the kernel calls it
/// FIN-WAIT-2 until the other end has finished too (`inet_twsk_diag_fill`): a timer that no other has tells it.
fn state_of(record: &[u8]) -> Option<TcpState> {
    if *record.get(TIMER)? == TIMER_OF_TIME_WAIT { Some(TcpState::TimeWait) } else { TcpState::from_number(record[1]) }
}

fn listener(record: &[u8]) -> Option<Listener> {
    let id = Id::of(record)?;
    let address = SocketAddr::new(id.local_ip, id.local_port);
    Some(Listener { address, inode: number(record, INODE)?, cookie: id.cookie })
}

/// The content of an attribute among those of a record (netlink(7); `struct nlattr`: length, type; each begins at a
/// multiple of four).
fn attribute(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let content = rest.get(4..length)?;
        if kind == wanted {
            return Some(content);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    #[test]
    fn finds_sockets_and_normalises_mapped_addresses() {
        let mut diag = SockDiag::open().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        assert!(diag.listeners().unwrap().iter().any(|l| l.address == here && l.inode > 0));

        // An IPv6 socket connected to a mapped address.
        let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{}", here.port()).parse().unwrap();
        let near = TcpStream::connect(mapped).unwrap();
        let port = near.local_addr().unwrap().port();
        let found = diag.tcp(&MOVABLE).unwrap();
        let found: Vec<_> = found.iter().filter(|c| c.tuple.local.port() == port && c.tuple.remote == here).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].tuple.local, SocketAddr::new(here.ip(), port));
        assert!(found[0].inode > 0 && found[0].cookie > 0 && found[0].state == TcpState::Established);

        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let connected = |diag: &mut SockDiag| diag.udp().unwrap().iter().any(|c| c.tuple.local.port() == port);
        let here = socket.local_addr().unwrap();
        let open = |diag: &mut SockDiag| diag.unconnected().unwrap().iter().any(|o| o.address == here && o.inode > 0);
        assert!(!connected(&mut diag) && open(&mut diag));
        socket.connect("127.0.0.1:9").unwrap();
        assert!(connected(&mut diag) && !open(&mut diag));
    }

    #[test]
    fn finds_who_takes_what_comes_from_anybody() {
        let mut diag = SockDiag::open().unwrap();
        let flow = |local: SocketAddr, remote: &str| FlowTuple {
            transport: Transport::Udp,
            local,
            remote: remote.parse().unwrap(),
        };
        for at in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let socket = UdpSocket::bind(at).unwrap();
            let met = SocketAddr::new([127, 0, 0, 1].into(), socket.local_addr().unwrap().port());
            let wanted = flow(met, "127.0.0.1:9");
            let found = diag.find_unconnected(&wanted).unwrap().expect(at);
            assert_eq!(found.cookie, cookie_of(socket.as_fd()).unwrap(), "{at}");
            assert!(diag.find(&wanted).unwrap().is_none(), "{at}");
            if at.starts_with('1') {
                socket.connect("127.0.0.1:9").unwrap();
                assert!(diag.find_unconnected(&wanted).unwrap().is_none());
                assert!(diag.find(&wanted).unwrap().is_some());
                assert!(diag.find_unconnected(&flow(met, "127.0.0.1:10")).unwrap().is_none(), "it takes no others");
            }
        }
    }

    #[test]
    fn a_port_is_used_by_whatever_is_bound_to_it() {
        let mut diag = SockDiag::open().unwrap();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let (near, datagrams) =
                (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), UdpSocket::bind(at).unwrap());
            for used in [listener.local_addr(), near.local_addr(), datagrams.local_addr()] {
                assert!(diag.is_port_used(used.unwrap().port()).unwrap());
            }
            let port = datagrams.local_addr().unwrap().port();
            drop(datagrams);
            assert!(!diag.is_port_used(port).unwrap());
        }
        let listener = TcpListener::bind("[::]:0").unwrap();
        let (port, only) = (listener.local_addr().unwrap().port(), TcpListener::bind("127.0.0.1:0").unwrap());
        let other = only.local_addr().unwrap().port();
        let mut used = |at: &[&str]| -> Vec<_> {
            let at: Vec<IpAddr> = at.iter().map(|at| at.parse().unwrap()).collect();
            diag.ports_used_at(&at).unwrap()
        };
        assert!(used(&[]).is_empty());
        let [own, ipv6, another] = used(&["127.0.0.1", "::1", "192.0.2.1"]).try_into().unwrap();
        assert!(own.contains(&port) && ipv6.contains(&port) && another.contains(&port));
        assert!(own.contains(&other) && !ipv6.contains(&other) && !another.contains(&other));
        let strict =
            rustix::net::socket(rustix::net::AddressFamily::INET6, rustix::net::SocketType::DGRAM, None).unwrap();
        rustix::net::sockopt::set_ipv6_v6only(&strict, true).unwrap();
        rustix::net::bind(&strict, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
        let port = SocketAddr::try_from(rustix::net::getsockname(&strict).unwrap()).unwrap().port();
        let [own, ipv6] = used(&["127.0.0.1", "::1"]).try_into().unwrap();
        assert!(!own.contains(&port) && ipv6.contains(&port));
        if lists_bound() {
            let family = rustix::net::AddressFamily::INET;
            let bound = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).unwrap();
            rustix::net::bind(&bound, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let name = SocketAddr::try_from(rustix::net::getsockname(&bound).unwrap()).unwrap();
            assert!(diag.is_port_used(name.port()).unwrap());
        }
    }

    #[test]
    fn finds_one_socket_among_all() {
        let mut diag = SockDiag::open().unwrap();
        let tuple = |transport, local, remote| FlowTuple { transport, local, remote };
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let here = listener.local_addr().unwrap();
            let near = TcpStream::connect(here).unwrap();
            let flow = tuple(Transport::Tcp, near.local_addr().unwrap(), here);
            let found = diag.find(&flow).unwrap().map(|found| (found.tuple, found.cookie));
            assert_eq!(found, Some((flow, cookie_of(near.as_fd()).unwrap())));
            let listed = diag.listeners().unwrap().into_iter().find(|of| of.address == here).map(|of| of.cookie);
            assert_eq!(listed, Some(cookie_of(listener.as_fd()).unwrap()));
            let nobody = tuple(Transport::Tcp, here, "127.0.0.1:1".parse().unwrap());
            if here.is_ipv4() {
                // The listener is not taken for it.
                assert_eq!(diag.find(&nobody).unwrap(), None);
            }

            let [one, other] = [UdpSocket::bind(at).unwrap(), UdpSocket::bind(at).unwrap()];
            let [here, there] = [one.local_addr().unwrap(), other.local_addr().unwrap()];
            let flow = tuple(Transport::Udp, here, there);
            assert_eq!(diag.find(&flow).unwrap(), None, "not connected");
            one.connect(there).unwrap();
            assert_eq!(diag.find(&flow).unwrap().map(|found| found.tuple), Some(flow));
            assert_eq!(diag.find(&flow.mirrored()).unwrap(), None, "the other end is not connected");
        }
        // An IPv6 socket with a mapped address is an IPv4 flow.
        let [one, other] = [UdpSocket::bind("[::]:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap()];
        let there = other.local_addr().unwrap();
        one.connect(format!("[::ffff:127.0.0.1]:{}", there.port()).parse::<SocketAddr>().unwrap()).unwrap();
        let here = SocketAddr::new(there.ip(), one.local_addr().unwrap().port());
        assert!(diag.find(&tuple(Transport::Udp, here, there)).unwrap().is_some());
    }

    #[test]
    fn a_short_record_is_left_out() {
        assert!(connection(Transport::Tcp, &[0; RECORD_LEN - 1]).is_none());
        assert!(connection(Transport::Tcp, &[0; RECORD_LEN]).is_none(), "no such state");
    }
}
