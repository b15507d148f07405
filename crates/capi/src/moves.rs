//! What a system that migrates processes asks for: which sockets there are, and that they move.

use std::ffi::{c_char, c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use libc::{size_t, sockaddr_storage};
use whimbrel_ipc::{Client, Family, OpenSocket, Reply, Request, SocketKind};

use crate::address;
use crate::failure::{Fault, give};
use crate::name::wb_uuid;
use crate::text;

/// A socket that a process has open.
#[repr(C)]
#[allow(non_camel_case_types, reason = "as C has it")]
pub struct wb_socket_info {
    /// Its name.
    pub uuid: wb_uuid,
    /// The first of the process's descriptors of it.
    pub descriptor: c_int,
    /// AF_INET or AF_INET6.
    pub domain: c_int,
    /// SOCK_STREAM or SOCK_DGRAM.
    pub r#type: c_int,
    /// Whether it listens.
    pub listening: c_int,
    /// Its own address and port.
    pub local: sockaddr_storage,
    /// The other end's; of the unspecified address and port 0 where it is not connected.
    pub remote: sockaddr_storage,
    /// Why it cannot be moved, where that is known beforehand; else empty.
    pub reason: [c_char; 256],
}

/// Lists the sockets of TCP and UDP of a process, by its number in the daemon's PID namespace; writes at most `room` of
/// them.
///
/// Returns how many there are, which may be more, or -1 with errno: ESRCH, no such process; EFAULT, `sockets` is NULL
/// with room; ECONNREFUSED, EACCES and ETIMEDOUT as wb_uuid_of().
///
/// # Safety
/// `sockets` is NULL or has room for `room`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_sockets(process: libc::pid_t, sockets: *mut wb_socket_info, room: size_t) -> c_int {
    let list = || {
        let pid = number(process)?;
        if sockets.is_null() && room > 0 {
            return Err(Fault::null("sockets"));
        }
        let found = text::daemon()?.sockets(pid).map_err(Fault::from).map_err(Fault::of_process)?;
        let count = c_int::try_from(found.len()).unwrap_or(c_int::MAX);
        for (index, socket) in found.into_iter().take(room).enumerate() {
            // SAFETY: there is room for so many, as the caller promises.
            unsafe { sockets.add(index).write(info(&socket)) };
        }
        Ok(count)
    };
    give(list(), -1)
}

fn number(process: libc::pid_t) -> Result<u32, Fault> {
    u32::try_from(process)
        .ok()
        .filter(|pid| *pid > 0)
        .ok_or_else(|| Fault::new(libc::ESRCH, "there is no such process"))
}

fn info(socket: &OpenSocket) -> wb_socket_info {
    let unspecified = match socket.family {
        Family::Ipv4 => ([0, 0, 0, 0], 0).into(),
        Family::Ipv6 => ([0u16; 8], 0).into(),
    };
    let mut reason = [0; 256];
    text::fill(&mut reason, socket.reason.as_deref().unwrap_or_default());
    wb_socket_info {
        uuid: socket.uuid.into(),
        descriptor: socket.descriptors.first().and_then(|first| c_int::try_from(*first).ok()).unwrap_or(-1),
        domain: match socket.family {
            Family::Ipv4 => libc::AF_INET,
            Family::Ipv6 => libc::AF_INET6,
        },
        r#type: match socket.kind {
            SocketKind::Stream => libc::SOCK_STREAM,
            SocketKind::Datagram => libc::SOCK_DGRAM,
        },
        listening: c_int::from(socket.listening),
        local: address::write(socket.local),
        remote: address::write(socket.remote.unwrap_or(unspecified)),
        reason,
    }
}

/// Sockets that are on their way to another host. Several threads may use one; they wait for one another.
#[allow(non_camel_case_types, reason = "as C has it")]
#[derive(Debug)]
pub struct wb_move {
    descriptor: c_int,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    client: Client,
    over: bool,
}

/// What became of a socket.
#[repr(C)]
#[allow(non_camel_case_types, reason = "as C has it")]
pub struct wb_outcome {
    /// Its name.
    pub uuid: wb_uuid,
    /// Whether it is with the other host now. If not, it stayed and goes on.
    pub moved: c_int,
    /// As it was here.
    pub local: sockaddr_storage,
    /// As it was here; of the unspecified address and port 0 where it is not connected.
    pub remote: sockaddr_storage,
    /// Why it stayed; else empty.
    pub reason: [c_char; 256],
}

/// Begins to move all sockets of a process, as wb_move_start() does: while whoever calls this moves the process itself.
/// They wait there until wb_rebuild() takes them, each by its name.
///
/// # Safety
/// As for wb_move_start().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_move_process(process: libc::pid_t, to: *const c_char) -> *mut wb_move {
    // SAFETY: as the caller promises.
    let to = unsafe { text::text(to, "to") };
    let begin = || begin(vec![format!("pid:{}", number(process)?)], to?, None).map_err(Fault::of_process);
    give(begin(), std::ptr::null_mut())
}

/// Begins to move connections to a host, `to` and `receiver` as for wb_give(). Each of the `count` connections is named
/// by an address and port of either end ("192.0.2.1:22") or a process ("pid:4711").
///
/// Returns what wb_move_next() takes, to be closed by wb_move_close(), or NULL with errno: EFAULT, a pointer is NULL;
/// EINVAL, text is not UTF-8; ECONNREFUSED, EACCES and ETIMEDOUT as wb_uuid_of(). What the daemon says comes by
/// wb_move_next().
///
/// # Safety
/// Each pointer is NULL or to a string; `connections` is NULL or has `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_move_start(
    connections: *const *const c_char,
    count: c_uint,
    to: *const c_char,
    receiver: *const c_char,
) -> *mut wb_move {
    let start = || {
        if connections.is_null() {
            return Err(Fault::null("connections"));
        }
        let each = (0..count as usize).map(|index| {
            // SAFETY: there are so many strings, as the caller promises.
            unsafe { text::text(connections.add(index).read(), "a connection") }.map(str::to_owned)
        });
        let named = each.collect::<Result<Vec<_>, _>>()?;
        // SAFETY: as the caller promises.
        let (to, receiver) = unsafe { (text::text(to, "to")?, text::optional(receiver, "receiver")?) };
        begin(named, to, receiver)
    };
    give(start(), std::ptr::null_mut())
}

fn begin(connections: Vec<String>, to: &str, receiver: Option<&str>) -> Result<*mut wb_move, Fault> {
    let mut client = text::daemon()?;
    let receiver = receiver.map(str::to_owned);
    client.start(&Request::Move { connections, to: to.to_owned(), receiver })?;
    let descriptor = client.as_fd().as_raw_fd();
    Ok(Box::into_raw(Box::new(wb_move { descriptor, progress: Mutex::new(Progress { client, over: false }) })))
}

/// A descriptor that is readable when something may have become of a socket, for poll(2). Then call wb_move_next() with
/// a time-out of 0 until it fails with EAGAIN, or all is told. It belongs to the move.
///
/// Returns -1 with errno EFAULT where `moving` is NULL.
///
/// # Safety
/// `moving` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_move_fd(moving: *const wb_move) -> c_int {
    // SAFETY: as the caller promises.
    let moving = unsafe { moving.as_ref() }.ok_or_else(|| Fault::null("moving"));
    give(moving.map(|moving| moving.descriptor), -1)
}

/// Waits for what becomes of the next socket, for so many milliseconds; -1 without end. A migrator that is told of one
/// that stayed can still have its process stay too.
///
/// Returns 1 and the outcome; 0 where all is told; or -1 with errno: EAGAIN, nothing is decided yet; ENOENT, the daemon
/// knows no such connection or host; EOPNOTSUPP, it moves none; ECONNRESET, it has ended, and what was not told is not
/// known; EFAULT, a pointer is NULL.
///
/// # Safety
/// `moving` is NULL or open; `outcome` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_move_next(moving: *mut wb_move, outcome: *mut wb_outcome, timeout: c_int) -> c_int {
    let wait = || {
        // SAFETY: as the caller promises.
        let moving = unsafe { moving.as_ref() }.ok_or_else(|| Fault::null("moving"))?;
        if outcome.is_null() {
            return Err(Fault::null("outcome"));
        }
        let mut progress = moving.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.over {
            return Ok(0);
        }
        let (uuid, flow, why) = match text::none_yet(progress.client.next_reply(text::timeout(timeout)))?.0 {
            Reply::Moved(moved) => (moved.uuid, moved.flow, None),
            Reply::Kept(kept) => (kept.uuid, kept.flow, Some(kept.reason)),
            Reply::End { .. } => {
                progress.over = true;
                return Ok(0);
            }
            _ => return Err(Fault::new(libc::EPROTO, "the daemon said something else than what became of a socket")),
        };
        let mut reason = [0; 256];
        text::fill(&mut reason, why.as_deref().unwrap_or_default());
        let value = wb_outcome {
            uuid: uuid.into(),
            moved: c_int::from(why.is_none()),
            local: address::write(flow.local),
            remote: address::write(flow.remote),
            reason,
        };
        // SAFETY: as the caller promises.
        unsafe { outcome.write(value) };
        Ok(1)
    };
    give(wait(), -1)
}

/// Waits no more for what becomes of the sockets; those that are on their way go on. NULL is passed over.
///
/// # Safety
/// `moving` is NULL or open, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_move_close(moving: *mut wb_move) {
    if !moving.is_null() {
        // SAFETY: as the caller promises: it is what `begin` made.
        drop(unsafe { Box::from_raw(moving) });
    }
}
