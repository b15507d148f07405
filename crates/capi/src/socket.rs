//! Sockets that can be moved, and their ports.

use std::ffi::{c_char, c_int, c_uint};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use libc::{sockaddr, socklen_t};
use whimbrel_ipc::{Family, REPLY_TIMEOUT, Reply, Request, SocketKind};

use crate::address;
use crate::failure::{Fault, give};
use crate::name::the_one;
use crate::text;

/// For wb_socket(): hosts that run Whimbrel are not told where the socket is, beside its anchor, so that all that they
/// send goes by that.
pub const WB_HIDDEN: c_uint = 1;

/// For wb_socket(): fail where a plain socket would be given instead.
pub const WB_REQUIRED: c_uint = 2;

/// A socket as by socket(2) that can change machines; `anchor` is the host that the other end takes it to be at, and
/// that forwards once it has moved. All of POSIX works on it: it is the kernel's own, and no data goes through this
/// library.
///
/// `anchor` is NULL or "self": this host, which is the default and needs no configuration; "none": no host, the socket
/// is not to be moved; "nearest", "stable" or "auto": the daemon chooses one that lends addresses; "policy:NUMBER": the
/// migrator is asked; or a host, by its name, address, key, or number as a peer. `flags`: WB_HIDDEN, WB_REQUIRED.
///
/// Where no daemon runs, or this user may not ask it, or the socket is of neither TCP nor UDP over IP, it is a plain
/// socket. The ports of a socket whose anchor is another host are that host's: one that the kernel draws is free there,
/// another is leased by wb_bind(); bind(2) to one that is not on lease fails with EADDRINUSE.
///
/// Returns the descriptor, or -1 with errno: as socket(2); EINVAL, `flags` or `anchor` are none; ENOENT, no such anchor
/// is known; EOPNOTSUPP, it lends nothing; with WB_REQUIRED also ECONNREFUSED, no daemon runs, EACCES, this user may
/// not ask it, and EPROTONOSUPPORT, such sockets are not moved.
///
/// # Safety
/// `anchor` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_socket(
    domain: c_int,
    r#type: c_int,
    protocol: c_int,
    anchor: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: as the caller promises.
    let anchor = unsafe { text::optional(anchor, "anchor") };
    give(anchor.and_then(|anchor| make(domain, r#type, protocol, anchor.unwrap_or("self"), flags)), -1)
}

fn make(domain: c_int, kind: c_int, protocol: c_int, anchor: &str, flags: c_uint) -> Result<c_int, Fault> {
    if flags & !(WB_HIDDEN | WB_REQUIRED) != 0 {
        return Err(Fault::new(libc::EINVAL, "there are flags that this library does not know"));
    }
    let required = flags & WB_REQUIRED != 0;
    let movable = movable(domain, kind, protocol);
    let Some((family, socket_kind)) = movable.filter(|_| anchor != "none") else {
        if required && movable.is_none() {
            return Err(Fault::new(libc::EPROTONOSUPPORT, "only sockets of TCP and UDP over IP are moved"));
        }
        return plain(domain, kind, protocol);
    };
    // A socket whose anchor is this host is this host's until it moves (decision 0018): this program is to make it, so
    // that it counts as this program's, with its user, its control group and its network namespace.
    if anchor == "self" && flags & WB_HIDDEN == 0 {
        if required {
            text::daemon()?;
        }
        return plain(domain, kind, protocol);
    }
    let request =
        Request::Socket { family, kind: socket_kind, anchor: anchor.to_owned(), hidden: flags & WB_HIDDEN != 0 };
    let ask = || match text::daemon()?.exchange(&request, &[], Some(REPLY_TIMEOUT))? {
        (Reply::Socket(_), descriptors) => the_one(descriptors),
        _ => Err(Fault::new(libc::EPROTO, "the daemon answered something else than what was asked")),
    };
    match ask() {
        Ok(socket) => as_asked(socket, kind).map(IntoRawFd::into_raw_fd),
        Err(fault) if fault.is_without_daemon() && !required => plain(domain, kind, protocol),
        Err(fault) => Err(fault),
    }
}

/// What the daemon calls such a socket, if it can be moved.
fn movable(domain: c_int, kind: c_int, protocol: c_int) -> Option<(Family, SocketKind)> {
    let family = match domain {
        libc::AF_INET => Family::Ipv4,
        libc::AF_INET6 => Family::Ipv6,
        _ => return None,
    };
    match (kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Some((family, SocketKind::Stream)),
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => Some((family, SocketKind::Datagram)),
        _ => None,
    }
}

fn plain(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, Fault> {
    // SAFETY: takes numbers.
    match unsafe { libc::socket(domain, kind, protocol) } {
        -1 => Err(Fault::last("socket")),
        descriptor => Ok(descriptor),
    }
}

/// Gives a socket that has come the flags that were asked for. It came closed by execve(2).
fn as_asked(socket: OwnedFd, kind: c_int) -> Result<OwnedFd, Fault> {
    let descriptor = socket.as_raw_fd();
    // SAFETY: takes numbers, of a descriptor that is owned here.
    if kind & libc::SOCK_CLOEXEC == 0 && unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } != 0 {
        return Err(Fault::last("fcntl"));
    }
    let status = if kind & libc::SOCK_NONBLOCK == 0 { 0 } else { libc::O_NONBLOCK };
    // SAFETY: as above.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFL, status) } != 0 {
        return Err(Fault::last("fcntl"));
    }
    Ok(socket)
}

/// As bind(2), for any socket: where its anchor is another host it leases the port there. The unspecified address
/// stands for the anchor's.
///
/// Returns 0, or -1 with errno: as bind(2); EADDRINUSE, the port is taken, at the anchor too; ECONNREFUSED, EACCES and
/// ETIMEDOUT as wb_uuid_of(), where the daemon has to be asked.
///
/// # Safety
/// `address` is NULL or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_bind(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let bind = || {
        let descriptor = text::socket(socket)?;
        if is_here(socket) {
            if address.is_null() {
                return Err(Fault::null("the address"));
            }
            // SAFETY: there are so many bytes, as the caller promises.
            return match unsafe { libc::bind(socket, address, length) } {
                0 => Ok(0),
                _ => Err(Fault::last("bind")),
            };
        }
        // SAFETY: as the caller promises.
        let address = unsafe { address::read(address, length) }?;
        text::daemon()?.bind(descriptor, address)?;
        Ok(0)
    };
    give(bind(), -1)
}

/// Whether a socket is in this program's network namespace. The kernel is not asked where it cannot tell (before Linux
/// 5.14).
fn is_here(socket: c_int) -> bool {
    let Some(of_socket) = namespace(socket) else { return true };
    // SAFETY: takes numbers.
    let own = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if own < 0 {
        return true;
    }
    // SAFETY: it is new, and nobody else's.
    let own = unsafe { OwnedFd::from_raw_fd(own) };
    namespace(own.as_raw_fd()).is_none_or(|here| here == of_socket)
}

/// The cookie of the network namespace that a socket is in.
fn namespace(socket: c_int) -> Option<u64> {
    let mut cookie = 0u64;
    let mut length = mem::size_of::<u64>() as socklen_t;
    // SAFETY: room for a number of the length that is said.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut length)
    };
    (result == 0).then_some(cookie)
}
