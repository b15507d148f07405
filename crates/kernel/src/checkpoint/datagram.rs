//! UDP sockets, with what waits in their queues.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use whimbrel_wire::snapshot::{Datagrams, Family, MAX_QUEUE, MAX_QUEUED, Queued, Shut, Snapshot};
use whimbrel_wire::{FlowTuple, Transport};

use super::{
    SO_PEEK_OFF, SO_RCVBUF, SO_RCVBUFFORCE, Unmovable, bind, connect, groups, hears_no_more, interrupted, make_room,
    shut_down, tuple_of,
};
use crate::error::Error;
use crate::inject::Injector;
use crate::sock_diag::{self, SockDiag};
use crate::sockopt::{Name, get_int, get_into, set};

const SO_BINDTOIFINDEX: Name = Name { level: libc::SOL_SOCKET, name: 62, text: "SO_BINDTOIFINDEX" };
const SO_MEMINFO: Name = Name { level: libc::SOL_SOCKET, name: libc::SO_MEMINFO, text: "SO_MEMINFO" };
/// At what is to arrive at once.
const LOOKS: u32 = 1000;
const IP_TRANSPARENT: Name = Name { level: libc::SOL_IP, name: libc::IP_TRANSPARENT, text: "IP_TRANSPARENT" };
/// Room for what comes before the program that takes the socket begins to read, in bytes with the kernel's own for each
/// datagram.
const UNTIL_READ: usize = 512 << 10;
const LONGEST: usize = 65_535;
/// include/linux/socket.h; no header of user space has it.
const MSG_PROBE: u32 = 0x10;
/// RFC 863.
const DISCARD: u16 = 9;
/// Datagrams that are thrown away at a time, at the most: more than any queue has, unless somebody goes on filling it.
const MOST_EMPTIED: usize = 1 << 17;

/// Refuses what would not be the same socket on another host.
pub(super) fn check(
    fd: BorrowedFd<'_>,
    family: Family,
    local: SocketAddr,
    remote: Option<SocketAddr>,
) -> Result<(), Unmovable> {
    let is_set = |option| get_int(fd, option).is_ok_and(|value| value != 0);
    let reason = if has_begun(fd, family, local)? {
        "a UDP socket with a datagram that was begun (MSG_MORE) cannot be moved: the kernel does not give it away"
    } else if remote.is_some() {
        return Ok(());
    } else if is_set(IP_TRANSPARENT) {
        "a UDP socket that takes what is sent to others (IP_TRANSPARENT) cannot be moved"
    } else if groups::joined(fd).is_some() {
        "a UDP socket that has joined a multicast group cannot be moved: the group's packets do not go where it would be"
    } else {
        return Ok(());
    };
    Err(Unmovable::Kind(reason))
}

/// Whether a datagram was begun that its program is to go on with. A send that adds nothing (MSG_PROBE) is taken as a
/// part of it, and refused otherwise, since nobody is at port 0 (`udp_sendmsg`, `ip_append_data`).
fn has_begun(fd: BorrowedFd<'_>, family: Family, local: SocketAddr) -> Result<bool, Error> {
    if local.port() == 0 {
        return Ok(false);
    }
    let nobody = match family {
        Family::Ipv4 => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
        Family::Ipv6 => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0),
    };
    let flags = SendFlags::from_bits_retain(MSG_PROBE) | SendFlags::MORE | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match rustix::net::sendto(fd, &[], flags, &nobody) {
            Ok(_) => return Ok(true),
            Err(Errno::INVAL) => return Ok(false),
            // An ICMP error that waits is told in the place of the answer.
            Err(error) if interrupted(&error.into()) || is_reported(&error.into()) => {}
            Err(error) => return Err(Error::call("sendto", "a UDP socket to be moved", error)),
        }
    }
}

pub(super) fn dump(fd: BorrowedFd<'_>, remote: Option<SocketAddr>) -> Result<Datagrams, Unmovable> {
    let before = get_int(fd, SO_PEEK_OFF)?;
    // Each look goes on where the last one ended, and takes nothing away. Only an empty datagram that somebody has
    // looked at before is passed over (`__skb_try_recv_from_queue`).
    set(fd, SO_PEEK_OFF, &0i32)?;
    let queue = queued(fd);
    set(fd, SO_PEEK_OFF, &before)?;
    let queue = queue?;
    if queue.len() > MAX_QUEUED || room(&queue) > MAX_QUEUE {
        return Err(Unmovable::Kind(
            "more datagrams wait to be read than go along; it can be moved once its program has read some",
        ));
    }
    Ok(Datagrams { remote, queue })
}

/// What its program has shut down. `sockets` tells of those of its network namespace.
pub(super) fn shut(
    fd: BorrowedFd<'_>,
    local: SocketAddr,
    remote: Option<SocketAddr>,
    sockets: &mut SockDiag,
) -> Result<Shut, Unmovable> {
    match hears_no_more(fd)? {
        (receive, true) => Ok(Shut { receive, send: true }),
        (true, false) => Ok(Shut { receive: true, send: false }),
        (false, false) => {
            let send = sockets.is_silenced(&tuple_of(Transport::Udp, local, remote), sock_diag::cookie_of(fd)?)?;
            let untold =
                Unmovable::Kind("the kernel does not say of this UDP socket whether it was shut down (sock_diag)");
            Ok(Shut { receive: false, send: send.ok_or(untold)? })
        }
    }
}

fn queued(fd: BorrowedFd<'_>) -> Result<Vec<Queued>, Error> {
    let mut queue = Vec::new();
    let mut bytes = vec![0; LONGEST];
    // Of more than go along it is enough to know that they are there.
    while queue.len() <= MAX_QUEUED {
        match peek(fd, &mut bytes) {
            Ok(Some(Peeked { from, length: 0, .. })) => queue.push(Queued { from, bytes: Vec::new() }),
            Ok(Some(Peeked { from, length, each })) => {
                let datagrams = bytes[..length].chunks(each.unwrap_or(length).max(1));
                queue.extend(datagrams.map(|datagram| Queued { from, bytes: datagram.to_vec() }));
            }
            Ok(None) => return Ok(queue),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(queue),
            // An ICMP error that the program was to be told of is told to nobody.
            Err(error) if interrupted(&error) || is_reported(&error) => {}
            Err(error) => return Err(Error::call("recvmsg", "the queue of a UDP socket", error)),
        }
    }
    Ok(queue)
}

fn is_reported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EMSGSIZE))
}

/// What was looked at.
struct Peeked {
    from: SocketAddr,
    length: usize,
    /// They are several datagrams in one buffer, each but the last so long (UDP_GRO, udp(7)).
    each: Option<usize>,
}

/// The next datagram, or those that the kernel has joined. `None`: it came from nowhere.
fn peek(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Option<Peeked>> {
    #[repr(C, align(8))]
    struct Control([u8; 256]);
    let mut control = Control([0; 256]);
    // SAFETY: all zero is a valid sockaddr_storage, and a valid msghdr.
    let (mut name, mut message): (libc::sockaddr_storage, libc::msghdr) = unsafe { std::mem::zeroed() };
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: every pointer in `message` is to a value that outlives the call and may be written to, with its true
    // length.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let mut each = None;
    // SAFETY: `message` is what recvmsg has left of it, and its control buffer is still there and aligned for
    // `cmsghdr`; the macros stay within the length that recvmsg has told.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(found) = header.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
                each = usize::try_from(libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned()).ok();
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    let from = match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one, which fits into a sockaddr_storage and needs no more alignment.
            let from = unsafe { (&raw const name).cast::<libc::sockaddr_in>().read() };
            SocketAddr::new(IpAddr::from(from.sin_addr.s_addr.to_ne_bytes()), u16::from_be(from.sin_port))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let from = unsafe { (&raw const name).cast::<libc::sockaddr_in6>().read() };
            SocketAddr::new(IpAddr::from(from.sin6_addr.s6_addr).to_canonical(), u16::from_be(from.sin6_port))
        }
        _ => return Ok(None),
    };
    Ok(Some(Peeked { from, length, each }))
}

pub(super) fn restore(
    fd: BorrowedFd<'_>,
    snapshot: &Snapshot,
    datagrams: &Datagrams,
    injector: &Injector,
) -> Result<(), Unmovable> {
    make_room_until_read(fd, &datagrams.queue)?;
    let (family, local) = (snapshot.family, snapshot.local);
    bind(fd, family, local)?;
    let Some(remote) = datagrams.remote else { return refill(local, datagrams, injector) };
    // What others have sent was there before it was connected. It is connected to each of them in turn, so that nobody
    // else gets anything in.
    let mut to = None;
    for queued in &datagrams.queue {
        if to != Some(queued.from) {
            connect(fd, family, queued.from)?;
            to = Some(queued.from);
        }
        let before = waiting(fd)?;
        deliver_one(local, queued, injector)?;
        if queued.from != remote {
            wait_for_more(fd, before)?;
        }
    }
    if to != Some(remote) {
        connect(fd, family, remote)?;
    }
    Ok(())
}

/// Bytes that a socket's queue takes, with the kernel's own.
fn waiting(fd: BorrowedFd<'_>) -> Result<u32, Error> {
    let mut memory = [0u32; 9];
    get_into(fd, SO_MEMINFO, &mut memory).map_err(|error| Error::call("getsockopt", "SO_MEMINFO", error))?;
    Ok(memory[0])
}

/// What this host sends to itself arrives at once, unless the kernel has too much to do.
fn wait_for_more(fd: BorrowedFd<'_>, before: u32) -> Result<(), Error> {
    for _ in 0..LOOKS {
        if waiting(fd)? != before {
            return Ok(());
        }
        std::thread::yield_now();
    }
    let detail = "it has not arrived".to_owned();
    Err(Error::Answer { call: "sendmsg", object: "a datagram for this host itself".to_owned(), detail })
}

/// Makes room for a queue, and for what comes before anybody reads.
pub(super) fn make_room_until_read(fd: BorrowedFd<'_>, queue: &[Queued]) -> Result<(), Error> {
    make_room(fd, SO_RCVBUFFORCE, room(queue) + UNTIL_READ).map(drop)
}

/// Puts datagrams into the queue of a socket that is there.
pub(super) fn refill(local: SocketAddr, datagrams: &Datagrams, injector: &Injector) -> Result<(), Unmovable> {
    datagrams.queue.iter().try_for_each(|queued| Ok(deliver_one(local, queued, injector)?))
}

fn deliver_one(local: SocketAddr, queued: &Queued, injector: &Injector) -> Result<(), Error> {
    let to = match (local.ip().is_unspecified(), queued.from.is_ipv4()) {
        (false, _) => local.ip(),
        (true, true) => Ipv4Addr::LOCALHOST.into(),
        (true, false) => Ipv6Addr::LOCALHOST.into(),
    };
    deliver(SocketAddr::new(to, local.port()), std::slice::from_ref(queued), injector)
}

/// Gives a socket that was rebuilt what had been in its queue, as if it came to `to` now. The size of its buffer stays
/// as it is.
pub(super) fn requeue(
    fd: BorrowedFd<'_>,
    to: SocketAddr,
    queue: &[Queued],
    injector: &Injector,
) -> Result<(), Unmovable> {
    let before = get_int(fd, SO_RCVBUF)?;
    make_room(fd, SO_RCVBUFFORCE, room(queue))?;
    let delivered = deliver(to, queue, injector);
    if get_int(fd, SO_RCVBUF)? != before {
        // The kernel doubles what it is given.
        set(fd, SO_RCVBUFFORCE, &(before / 2))?;
    }
    Ok(delivered?)
}

/// Throws away what nobody is to read here any more.
pub(super) fn empty(fd: BorrowedFd<'_>) {
    let mut byte = [0u8; 1];
    for _ in 0..MOST_EMPTIED {
        match rustix::net::recv(fd, &mut byte[..], RecvFlags::DONTWAIT) {
            Ok(_) => {}
            Err(error) if interrupted(&error.into()) || is_reported(&error.into()) => {}
            Err(_) => return,
        }
    }
}

/// Has programs that wait for something here go on, with an error that says so once. The kernel does that for whoever
/// destroys a socket; a shutdown would be the end of what is read, which there is none of in UDP: a program would be
/// told of empty datagrams of nobody, without end. That is left for a socket which is not found, as one of several of
/// the same address. Nothing more is sent in either case.
pub(super) fn abort(
    fd: BorrowedFd<'_>,
    family: Family,
    local: SocketAddr,
    remote: Option<SocketAddr>,
    sockets: &mut SockDiag,
) -> Result<(), Unmovable> {
    let (tuple, cookie) = (tuple_of(Transport::Udp, local, remote), sock_diag::cookie_of(fd)?);
    let interface = get_int(fd, SO_BINDTOIFINDEX)? as u32;
    shut_down(fd, Shutdown::Write)?;
    let ended = match sockets.destroy_named(&tuple, interface, cookie) {
        Ok(true) => connect(fd, family, nobody(local)).is_ok(),
        Ok(false) | Err(_) => false,
    };
    if ended { Ok(()) } else { shut_down(fd, Shutdown::Both) }
}

/// Whom a socket hears that is to hear nobody: the discard service of this host. So it is none that waits for
/// datagrams, either.
fn nobody(local: SocketAddr) -> SocketAddr {
    let here = if local.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) };
    SocketAddr::new(here, DISCARD)
}

fn room(queue: &[Queued]) -> usize {
    queue.iter().map(Queued::room).sum()
}

fn deliver(to: SocketAddr, queue: &[Queued], injector: &Injector) -> Result<(), Error> {
    for Queued { from, bytes } in queue {
        let tuple = FlowTuple { transport: Transport::Udp, local: to, remote: *from };
        injector.deliver_udp(&tuple, bytes)?;
    }
    Ok(())
}
