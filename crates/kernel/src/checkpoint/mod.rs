//! Sockets that are taken from one host and given to another: frozen, written down, rebuilt, thawed or destroyed.
//!
//! A TCP socket is frozen by TCP_REPAIR (Linux 3.5): it sends nothing by itself, and closing it sends neither FIN nor
//! RST. It still takes what comes in, so **whoever freezes a socket first holds its input** (a filter), and its program
//! (`SIGSTOP`, the cgroup's freezer), or has the program's word that it does nothing with it: calls on a frozen socket
//! fail with EPERM.
//!
//! The steps of a move are those of DESIGN §3: [`Checkpoint::freeze`], [`Checkpoint::dump`], on the other host
//! [`Checkpoint::restore`], and once the move is decided [`Checkpoint::destroy`] here and [`Checkpoint::thaw`] there;
//! or `thaw` here, as if nothing had been.
//!
//! Needs CAP_NET_ADMIN in the user namespace that owns the socket's network namespace.

mod datagram;
mod groups;
mod options;
mod stream;
mod timeout;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socket_with};
use whimbrel_wire::snapshot::{Body, Family, Queued, Shut, Snapshot};
use whimbrel_wire::{FlowTuple, Transport};

use crate::error::Error;
use crate::inject::Injector;
use crate::sock_diag::SockDiag;
use crate::sockopt::{self, Name};
pub use options::{Defaults, Rights, why_not_set};
pub use timeout::expect_round_trip;

/// A socket that cannot be moved, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unmovable {
    /// It is none of those that can be.
    #[error("{0}")]
    Kind(&'static str),
    /// The kernel refused a call.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// Why other sockets cannot be moved.
const NEITHER: &str = "only sockets of TCP and UDP can be moved";

const SO_TYPE: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_TYPE, text: "SO_TYPE" };
const SO_PROTOCOL: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_PROTOCOL, text: "SO_PROTOCOL" };
const SO_ACCEPTCONN: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_ACCEPTCONN, text: "SO_ACCEPTCONN" };
const SO_REUSEADDR: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_REUSEADDR, text: "SO_REUSEADDR" };
const SO_BUF_LOCK: Name = Name { level: libc::SOL_SOCKET, name: 72, text: "SO_BUF_LOCK" };
const SO_PEEK_OFF: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_PEEK_OFF, text: "SO_PEEK_OFF" };
const SO_SNDBUF: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_SNDBUF, text: "SO_SNDBUF" };
const SO_RCVBUF: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_RCVBUF, text: "SO_RCVBUF" };
const SO_SNDBUFFORCE: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_SNDBUFFORCE, text: "SO_SNDBUFFORCE" };
const SO_RCVBUFFORCE: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_RCVBUFFORCE, text: "SO_RCVBUFFORCE" };

/// A socket at rest.
#[derive(Debug)]
pub struct Checkpoint {
    socket: OwnedFd,
    family: Family,
    kind: Kind,
    /// Where it is bound.
    local: SocketAddr,
    /// The other end, if there is one.
    remote: Option<SocketAddr>,
    /// What is done when it wakes.
    due: stream::Due,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stream,
    Listening,
    Datagram,
}

impl Checkpoint {
    /// Puts a socket to rest. `socket` may be a duplicate of a program's descriptor (pidfd_getfd(2)); the program's own
    /// is put to rest with it. A UDP socket has nothing that could rest: what its program does to it is done. Where it
    /// is not connected, the calling thread is to be in its network namespace, as only there is it known which
    /// multicast groups it has joined.
    ///
    /// # Errors
    /// [`Unmovable`]: it is another kind of socket, or in a state that cannot be moved; it is as it was.
    pub fn freeze(socket: OwnedFd) -> Result<Self, Unmovable> {
        let fd = socket.as_fd();
        let Look { kind, family, local, remote } = inspect(fd)?;
        options::check(fd, kind, family)?;
        let due = match kind {
            Kind::Stream => stream::freeze(fd, remote.is_some())?,
            Kind::Listening => stream::Due::default(),
            Kind::Datagram => {
                datagram::check(fd, family, local, remote)?;
                stream::Due::default()
            }
        };
        Ok(Self { socket, family, kind, local, remote, due })
    }

    /// The numbers of the options that a socket has which is to go, before anything is done with it. `defaults` are
    /// those of its network namespace, and so are `sockets`.
    ///
    /// # Errors
    /// [`Unmovable`]: it has something that cannot go along.
    pub fn needs(socket: BorrowedFd<'_>, defaults: &Defaults, sockets: &mut SockDiag) -> Result<Vec<u16>, Unmovable> {
        let Look { kind, family, local, remote } = inspect(socket)?;
        options::check(socket, kind, family)?;
        if kind != Kind::Datagram {
            stream::check_unsigned(socket, local, remote, sockets)?;
        }
        let options = options::dump(socket, kind, family, defaults, &[])?;
        Ok(options.into_iter().map(|option| option.kind.number()).collect())
    }

    /// Whether a TCP socket is at rest, as one that a killed process has frozen and nobody has woken since.
    #[must_use]
    pub fn is_at_rest(socket: BorrowedFd<'_>) -> bool {
        stream::is_frozen(socket)
    }

    /// Has a TCP socket that somebody else has put to rest go on, as CRIU does with those of a process. Any other is
    /// left alone.
    ///
    /// # Errors
    /// [`Error::Call`]: CAP_NET_ADMIN in the socket's user namespace is lacking.
    pub fn end_rest(socket: &OwnedFd) -> Result<(), Error> {
        if stream::is_frozen(socket.as_fd()) { stream::wake(socket.as_fd()) } else { Ok(()) }
    }

    /// Makes room in the queue of a UDP socket for what comes before its program goes on. Any other is left alone.
    ///
    /// # Errors
    /// [`Error::Call`]: CAP_NET_ADMIN in the socket's user namespace is lacking.
    pub fn make_room(socket: &OwnedFd) -> Result<(), Error> {
        match inspect(socket.as_fd()) {
            Ok(Look { kind: Kind::Datagram, .. }) => datagram::make_room_until_read(socket.as_fd(), &[]),
            _ => Ok(()),
        }
    }

    /// Writes the socket down. Nothing is changed. `defaults` and `sockets` are those of its network namespace.
    ///
    /// # Errors
    /// [`Unmovable`]: something about it could not be taken along.
    pub fn dump(&self, defaults: &Defaults, sockets: &mut SockDiag) -> Result<Snapshot, Unmovable> {
        let fd = self.socket.as_fd();
        if self.kind != Kind::Datagram {
            stream::check_unsigned(fd, self.local, self.remote, sockets)?;
        }
        let body = match self.kind {
            Kind::Stream => Body::Stream(from_the_first(fd, || stream::dump(fd, self.remote))?),
            Kind::Listening => Body::Listening { backlog: stream::backlog(fd)? },
            Kind::Datagram => Body::Datagram(datagram::dump(fd, self.remote)?),
        };
        let shut = match &body {
            // Whose other end has finished has nothing more to read.
            Body::Stream(stream) if !stream.state.peer_has_finished() => {
                Shut { receive: hears_no_more(fd)?.0, send: false }
            }
            Body::Stream(_) | Body::Listening { .. } => Shut::default(),
            Body::Datagram(_) => datagram::shut(fd, self.local, self.remote, sockets)?,
        };
        let before = if self.kind == Kind::Stream { self.due.before() } else { Vec::new() };
        let options = options::dump(fd, self.kind, self.family, defaults, &before)?;
        Ok(Snapshot { family: self.family, local: self.local, body, shut, options, metadata: None })
    }

    /// Rebuilds a socket in the calling thread's network namespace, which must have its local address. It sends nothing
    /// before it is [thawed](Self::thaw). `injector` belongs to the same namespace. An option that needs a privilege is
    /// not set.
    ///
    /// # Errors
    /// [`Unmovable`]: the socket has one; this host lacks something, such as the address, its family, a port that is
    /// free, room, or rights. Nothing is left of the attempt.
    pub fn restore(snapshot: &Snapshot, injector: &Injector) -> Result<Self, Unmovable> {
        Self::restore_with(snapshot, injector, Rights::default())
    }

    /// The same with what needs a privilege, where that is given.
    ///
    /// # Errors
    /// Those of [`restore`](Self::restore).
    pub fn restore_with(snapshot: &Snapshot, injector: &Injector, rights: Rights) -> Result<Self, Unmovable> {
        let (family, of) = match snapshot.family {
            Family::Ipv4 => (AddressFamily::INET, "IPv4"),
            Family::Ipv6 => (AddressFamily::INET6, "IPv6"),
        };
        let (kind, shape) = match &snapshot.body {
            Body::Stream(_) => (Kind::Stream, SocketType::STREAM),
            Body::Listening { .. } => (Kind::Listening, SocketType::STREAM),
            Body::Datagram(_) => (Kind::Datagram, SocketType::DGRAM),
        };
        let socket =
            socket_with(family, shape, SocketFlags::CLOEXEC, None).map_err(|e| Error::call("socket", of, e))?;
        let fd = socket.as_fd();
        options::restore_early(fd, snapshot, rights)?;
        let (due, remote) = match &snapshot.body {
            Body::Stream(stream) => (stream::restore(fd, snapshot, stream)?, Some(stream.remote)),
            Body::Listening { backlog } => {
                let reuse = sockopt::get_int(fd, SO_REUSEADDR)?;
                // What was it before it went from here may have the port yet, and does not keep it to itself
                // (`destroy`).
                sockopt::set(fd, SO_REUSEADDR, &1i32)?;
                bind(fd, snapshot.family, snapshot.local)?;
                rustix::net::listen(fd, i32::try_from(*backlog).unwrap_or(i32::MAX))
                    .map_err(|e| Error::call("listen", snapshot.local.to_string(), e))?;
                sockopt::set(fd, SO_REUSEADDR, &reuse)?;
                (stream::Due::default(), None)
            }
            Body::Datagram(datagrams) => {
                datagram::restore(fd, snapshot, datagrams, injector)?;
                (stream::Due::default(), datagrams.remote)
            }
        };
        options::restore_late(fd, snapshot, rights)?;
        // Neither says anything to the other end: a connection that says no more is in another state.
        match snapshot.shut {
            Shut { receive: false, send: false } => {}
            Shut { receive: true, send: false } => shut_down(fd, Shutdown::Read)?,
            Shut { receive: false, send: true } => shut_down(fd, Shutdown::Write)?,
            Shut { receive: true, send: true } => shut_down(fd, Shutdown::Both)?,
        }
        Ok(Self { socket, family: snapshot.family, kind, local: snapshot.local, remote, due })
    }

    /// Puts what waited in a UDP socket's queue into that of one which somebody else has rebuilt, as CRIU does without
    /// it. `injector` belongs to the network namespace that it is in.
    ///
    /// # Errors
    /// [`Unmovable`]: a part may be missing.
    pub fn refill(snapshot: &Snapshot, injector: &Injector) -> Result<(), Unmovable> {
        match &snapshot.body {
            Body::Datagram(datagrams) => datagram::refill(snapshot.local, datagrams, injector),
            Body::Stream(_) | Body::Listening { .. } => Ok(()),
        }
    }

    /// Gives a UDP socket that was rebuilt what was in the queue of the one that it comes from, as if it came in for
    /// `to` at this moment. For those that are not connected, which [`restore`](Self::restore) is to find without a
    /// queue: the address that datagrams came to is known to the caller alone where a socket is bound to all of them.
    /// `injector` belongs to the socket's network namespace.
    ///
    /// # Errors
    /// [`Unmovable`]. Some of it may have been delivered.
    pub fn requeue(&self, to: SocketAddr, queue: &[Queued], injector: &Injector) -> Result<(), Unmovable> {
        datagram::requeue(self.socket.as_fd(), to, queue, injector)
    }

    /// The socket goes on, and is the caller's. What it had not sent is sent, and its peer is told where it stands.
    /// `injector` belongs to its network namespace. All that it has is in its queues since it was rebuilt, so that this
    /// takes no room.
    ///
    /// # Errors
    /// [`Unmovable`]. Its connection is over then, which both ends are told, the other one by a reset: a socket that
    /// another host has as well must not be thawed. Or its program, which has it as well, has made another connection
    /// of it while that took no handshake: it stays at rest.
    pub fn thaw(self, injector: &Injector) -> Result<OwnedFd, Unmovable> {
        if self.kind == Kind::Stream {
            self.is_where_it_was()?;
            stream::thaw(self.socket.as_fd(), &self.due, injector)?;
            // It may have been quick.
            self.is_where_it_was().inspect_err(|_| stream::give_up(self.socket.as_fd()))?;
        }
        Ok(self.socket)
    }

    fn is_where_it_was(&self) -> Result<(), Unmovable> {
        match inspect(self.socket.as_fd())? {
            Look { local, remote: Some(remote), .. } if (local, Some(remote)) != (self.local, self.remote) => {
                Err(Unmovable::Kind("its program has made another connection of it while it was at rest"))
            }
            _ => Ok(()),
        }
    }

    /// The socket is another host's now: it ends here, and the peer is told nothing. A program that has it open finds
    /// its connection aborted (ECONNABORTED), be it of TCP or of UDP; accept(2) of one that listened says EINVAL.
    /// `sockets` belongs to its network namespace.
    ///
    /// # Errors
    /// [`Unmovable`]. It is at rest for whoever has it open otherwise, and says nothing when that is closed.
    pub fn destroy(self, sockets: &mut SockDiag) -> Result<(), Unmovable> {
        match self.kind {
            Kind::Stream => stream::destroy(self.socket.as_fd()),
            // Nobody is told of the end of these in any case; a duplicate of the descriptor keeps none of them open for
            // long. It has its port for as long as it is open, and is to keep nobody from it that comes back.
            Kind::Listening => {
                shut_down(self.socket.as_fd(), Shutdown::Both)?;
                Ok(sockopt::set(self.socket.as_fd(), SO_REUSEADDR, &1i32)?)
            }
            Kind::Datagram => {
                // It was read there.
                datagram::empty(self.socket.as_fd());
                datagram::abort(self.socket.as_fd(), self.family, self.local, self.remote, sockets)
            }
        }
    }
}

fn tuple_of(transport: Transport, local: SocketAddr, remote: Option<SocketAddr>) -> FlowTuple {
    remote.map_or(FlowTuple::unconnected(transport, local), |remote| FlowTuple { transport, local, remote })
}

/// Whether nothing more is read of a socket, and whether it is shut down in both directions (`tcp_poll`,
/// `datagram_poll`).
fn hears_no_more(fd: BorrowedFd<'_>) -> Result<(bool, bool), Error> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(&fd, PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
        .map_err(|error| Error::call("poll", "a socket to be moved", error))?;
    let found = polled[0].revents();
    Ok((found.contains(PollFlags::RDHUP), found.contains(PollFlags::HUP)))
}

/// Has a queue be looked at from its first byte, wherever the program has got to with looking (SO_PEEK_OFF, of TCP
/// since Linux 6.9).
fn from_the_first<T>(fd: BorrowedFd<'_>, look: impl FnOnce() -> Result<T, Unmovable>) -> Result<T, Unmovable> {
    const NONE: i32 = -1;
    let before = sockopt::get_int(fd, SO_PEEK_OFF).unwrap_or(NONE);
    if before == NONE {
        return look();
    }
    sockopt::set(fd, SO_PEEK_OFF, &NONE)?;
    let seen = look();
    sockopt::set(fd, SO_PEEK_OFF, &before)?;
    seen
}

/// Also of a socket that is not connected, which the kernel shuts down as well as it says that it cannot
/// (`inet_shutdown`).
fn shut_down(fd: BorrowedFd<'_>, how: Shutdown) -> Result<(), Unmovable> {
    match rustix::net::shutdown(fd, how) {
        Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
        Err(error) => Err(Error::call("shutdown", "a socket that was moved", error).into()),
    }
}

impl AsFd for Checkpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What a socket of IPv4 or IPv6 is, whatever its state.
pub(crate) enum Inet {
    /// Of TCP. `closed`: over, or never connected; `unread`: bytes of its connection that nobody has read, where it is
    /// over.
    Tcp { closed: bool, unread: u32 },
    /// Of UDP, or UDP-Lite.
    Udp,
    /// Of Multipath TCP.
    Multipath,
    /// Of another protocol.
    Other,
}

/// Looks at a socket of IPv4 or IPv6.
///
/// # Errors
/// [`Error::Call`]: it is none.
pub(crate) fn inet_of(fd: BorrowedFd<'_>) -> Result<Inet, Error> {
    let kind = sockopt::get_int(fd, SO_TYPE)?;
    Ok(match (sockopt::get_int(fd, SO_PROTOCOL)?, kind) {
        (libc::IPPROTO_TCP, libc::SOCK_STREAM) => {
            let closed = stream::is_closed(fd)?;
            Inet::Tcp { closed, unread: if closed { stream::unread(fd)? } else { 0 } }
        }
        (libc::IPPROTO_UDP | libc::IPPROTO_UDPLITE, libc::SOCK_DGRAM) => Inet::Udp,
        (libc::IPPROTO_MPTCP, _) => Inet::Multipath,
        _ => Inet::Other,
    })
}

/// Refuses a socket that CRIU would rebuild without something that its program relies on. `sockets` are those of its
/// network namespace.
///
/// # Errors
/// [`Unmovable`].
pub(crate) fn check_for_criu(fd: BorrowedFd<'_>, sockets: &mut SockDiag) -> Result<(), Unmovable> {
    let Look { kind, family, local, remote } = inspect(fd)?;
    options::check_for_criu(fd, kind, family)?;
    if kind == Kind::Datagram {
        return Ok(());
    }
    if kind == Kind::Stream && !stream::has_heard_all(fd)? && hears_no_more(fd)?.0 {
        return Err(Unmovable::Kind(
            "a connection that is shut down for reading cannot be moved with its process: CRIU would have it read on",
        ));
    }
    stream::check_unsigned(fd, local, remote, sockets)
}

/// What a descriptor is.
struct Look {
    kind: Kind,
    family: Family,
    local: SocketAddr,
    remote: Option<SocketAddr>,
}

/// What a descriptor is, and its names. Every call to the kernel counts for whoever moves thousands: with most sockets
/// these are three.
fn inspect(fd: BorrowedFd<'_>) -> Result<Look, Unmovable> {
    let of_others = || Unmovable::Kind("only sockets of IPv4 and IPv6 can be moved");
    let name = rustix::net::getsockname(fd).map_err(|error| match error {
        rustix::io::Errno::NOTSOCK => Unmovable::Kind("this descriptor is no socket, and only sockets can be moved"),
        _ => of_others(),
    })?;
    let family = match name.address_family() {
        AddressFamily::INET => Family::Ipv4,
        AddressFamily::INET6 => Family::Ipv6,
        _ => return Err(of_others()),
    };
    let remote = remote_name(fd)?;
    let kind = match sockopt::get_int(fd, SO_PROTOCOL)? {
        // A raw socket may have this number as well, and is found out by what it does not know of TCP.
        libc::IPPROTO_TCP if remote.is_none() && sockopt::get_int(fd, SO_ACCEPTCONN)? != 0 => Kind::Listening,
        libc::IPPROTO_TCP => Kind::Stream,
        libc::IPPROTO_UDP if sockopt::get_int(fd, SO_TYPE)? == libc::SOCK_DGRAM => Kind::Datagram,
        libc::IPPROTO_MPTCP => {
            return Err(Unmovable::Kind(
                "a socket of Multipath TCP cannot be moved: the kernel does not give away its state",
            ));
        }
        _ => return Err(Unmovable::Kind(NEITHER)),
    };
    Ok(Look { kind, family, local: canonical("getsockname", name)?, remote })
}

fn bind(fd: BorrowedFd<'_>, family: Family, local: SocketAddr) -> Result<(), Error> {
    rustix::net::bind(fd, &for_family(family, local)).map_err(|e| Error::call("bind", local.to_string(), e))
}

fn connect(fd: BorrowedFd<'_>, family: Family, remote: SocketAddr) -> Result<(), Error> {
    rustix::net::connect(fd, &for_family(family, remote)).map_err(|e| Error::call("connect", remote.to_string(), e))
}

/// An IPv4 endpoint as an IPv6 socket has it.
fn for_family(family: Family, endpoint: SocketAddr) -> SocketAddr {
    match endpoint {
        SocketAddr::V4(v4) if family == Family::Ipv6 => {
            let any = v4.ip().is_unspecified();
            let mapped = if any { std::net::Ipv6Addr::UNSPECIFIED } else { v4.ip().to_ipv6_mapped() };
            SocketAddr::new(mapped.into(), v4.port())
        }
        _ => endpoint,
    }
}

/// The other end's name, if there is another end.
fn remote_name(fd: BorrowedFd<'_>) -> Result<Option<SocketAddr>, Error> {
    match rustix::net::getpeername(fd) {
        Ok(name) => name.map(|name| canonical("getpeername", name)).transpose(),
        Err(rustix::io::Errno::NOTCONN) => Ok(None),
        Err(error) => Err(Error::call("getpeername", "a frozen socket", error)),
    }
}

fn canonical(call: &'static str, name: rustix::net::SocketAddrAny) -> Result<SocketAddr, Error> {
    let name = SocketAddr::try_from(name).map_err(|_| Error::Answer {
        call,
        object: "a frozen socket".to_owned(),
        detail: "its name is no Internet address".to_owned(),
    })?;
    Ok(SocketAddr::new(name.ip().to_canonical(), name.port()))
}

/// Room for what is put into the queues of a socket that is rebuilt: true where its buffer was not large enough. The
/// kernel takes that for a wish of the program's and never grows the buffer again, unless its locks are put back.
fn make_room(fd: BorrowedFd<'_>, option: Name, bytes: usize) -> Result<bool, Error> {
    // The kernel counts its own overhead too, and doubles what it is given.
    let room = i32::try_from(bytes.saturating_mul(2)).unwrap_or(i32::MAX / 2).max(65_536);
    let size = if option.name == SO_SNDBUFFORCE.name { SO_SNDBUF } else { SO_RCVBUF };
    if sockopt::get_int(fd, size)? / 2 >= room {
        return Ok(false);
    }
    sockopt::set(fd, option, &room)?;
    Ok(true)
}

fn interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}
