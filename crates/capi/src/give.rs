//! Connections that programs hand to one another.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::{Mutex, PoisonError};

use libc::{size_t, sockaddr_storage};
use whimbrel_ipc::{Client, MAX_STATE, REPLY_TIMEOUT, Reply, Request, State};

use crate::address;
use crate::failure::{Fault, give};
use crate::name::{the_one, wb_uuid};
use crate::text;

/// Hands a socket to another host, with what the program there needs to go on with it: `state`, `length` bytes (at most
/// 1 MiB; NULL where there is none). `to` is a host as for wb_socket(). `receiver` is the name that a program there
/// receives under (wb_receiver_open()); where it is NULL the socket waits there for wb_rebuild(). `timeout` is in
/// milliseconds, -1 for none. The program should not read or write meanwhile: what it does before the socket stops
/// counts, what it does after fails. A socket that listens, or one of UDP that is bound and not connected, goes with
/// the address that it is bound to, or else with this host's preferred one.
///
/// Returns 0: the socket is there, and all descriptors of it here are at their end; or -1 with errno. ECANCELED: it
/// stayed and goes on, and wb_reason() tells why. ENOENT: no such host is known. ETIMEDOUT: nothing is decided yet, and
/// it may still go. EMSGSIZE: there is too much state. EOPNOTSUPP: this host moves no sockets. EFAULT: `to` is NULL, or
/// `state` with a length. EINVAL: not UTF-8. EBADF, ENOTSOCK, EPROTONOSUPPORT, ECONNREFUSED, EACCES as wb_uuid_of().
/// ECONNABORTED: it is lost, or has gone and was not heard of, and wb_reason() tells which, and where what was in it is
/// kept. With all but this and ETIMEDOUT the socket is as it was.
///
/// # Safety
/// `to` and `receiver` are NULL or strings; `state` is NULL or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_give(
    socket: c_int,
    to: *const c_char,
    receiver: *const c_char,
    state: *const c_void,
    length: size_t,
    timeout: c_int,
) -> c_int {
    let ask = || {
        // SAFETY: as the caller promises.
        let (to, receiver) = unsafe { (text::text(to, "to")?, text::optional(receiver, "receiver")?) };
        let descriptor = text::socket(socket)?;
        if length > MAX_STATE {
            return Err(Fault::new(libc::EMSGSIZE, format!("state is longer than {MAX_STATE} bytes")));
        }
        let state = match (state.is_null(), length) {
            (_, 0) => Vec::new(),
            (true, _) => return Err(Fault::null("state")),
            // SAFETY: as the caller promises.
            (false, length) => unsafe { std::slice::from_raw_parts(state.cast::<u8>(), length) }.to_vec(),
        };
        let state = State::new(state).map_err(|error| Fault::new(libc::EMSGSIZE, error.to_string()))?;
        let request = Request::Give { to: to.to_owned(), receiver: receiver.map(str::to_owned), state };
        match text::daemon()?.exchange(&request, &[descriptor], text::timeout(timeout))?.0 {
            Reply::Moved(_) => Ok(0),
            Reply::Kept(kept) if kept.lost => Err(Fault::new(libc::ECONNABORTED, kept.reason)),
            Reply::Kept(kept) => Err(Fault::new(libc::ECANCELED, kept.reason)),
            _ => Err(Fault::new(libc::EPROTO, "the daemon answered something else than what was asked")),
        }
    };
    give(ask(), -1)
}

/// Sees to it that a host is ready for a socket, which goes on meanwhile: so that the program need be silent only for
/// the last moment, in a wb_give() with the same `to` and `receiver` within half a minute. Nothing happens to the
/// socket before that, or if that does not come. `timeout` is in milliseconds, -1 for none. It may take seconds where
/// the host is hard to reach. The socket has to be connected.
///
/// Returns 0: all is ready; or -1 with errno. ECANCELED: the host does not take the socket as things stand, and
/// wb_reason() tells why. ETIMEDOUT: nobody knows yet. EOPNOTSUPP: this host moves no sockets. EPROTONOSUPPORT: it is
/// of another protocol, or not connected. ENOENT, EFAULT, EINVAL, EBADF, ENOTSOCK, ECONNREFUSED, EACCES as wb_give().
///
/// # Safety
/// `to` and `receiver` are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_prepare(
    socket: c_int,
    to: *const c_char,
    receiver: *const c_char,
    timeout: c_int,
) -> c_int {
    let ask = || {
        // SAFETY: as the caller promises.
        let (to, receiver) = unsafe { (text::text(to, "to")?, text::optional(receiver, "receiver")?) };
        let descriptor = text::socket(socket)?;
        let request = Request::Prepare { to: to.to_owned(), receiver: receiver.map(str::to_owned) };
        match text::daemon()?.exchange(&request, &[descriptor], text::timeout(timeout))?.0 {
            Reply::Prepared { .. } => Ok(0),
            Reply::Kept(kept) => Err(Fault::new(libc::ECANCELED, kept.reason)),
            _ => Err(Fault::new(libc::EPROTO, "the daemon answered something else than what was asked")),
        }
    };
    give(ask(), -1)
}

/// A name under which sockets are received: wb_receiver_open(). Several threads may use one; they wait for one another.
#[allow(non_camel_case_types, reason = "as C has it")]
#[derive(Debug)]
pub struct wb_receiver {
    descriptor: c_int,
    client: Mutex<Client>,
}

/// A socket that has come.
#[repr(C)]
#[allow(non_camel_case_types, reason = "as C has it")]
pub struct wb_received {
    /// The socket. It is closed by execve(2), and is the program's to close.
    pub socket: c_int,
    /// Its name.
    pub uuid: wb_uuid,
    /// The key of the host that gave it, as text.
    pub from: [c_char; 64],
    /// Its own address and port.
    pub local: sockaddr_storage,
    /// The other end's; of the unspecified address and port 0 where it is not connected.
    pub remote: sockaddr_storage,
    /// What the program there has given with it: `state_length` bytes, and a zero behind them; never NULL.
    /// wb_received_free() frees it.
    pub state: *mut u8,
    /// Its length.
    pub state_length: size_t,
}

/// Receives sockets under a name from now on. One program of a host may have a name.
///
/// Returns what wb_receive() takes, to be closed by wb_receiver_close(), or NULL with errno: EADDRINUSE, somebody
/// receives under this name; EFAULT, `name` is NULL; EINVAL, it is not UTF-8; EOPNOTSUPP, this host moves no sockets;
/// ECONNREFUSED, EACCES and ETIMEDOUT as wb_uuid_of().
///
/// # Safety
/// `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_receiver_open(name: *const c_char) -> *mut wb_receiver {
    let open = || {
        // SAFETY: as the caller promises.
        let name = unsafe { text::text(name, "name") }?;
        let mut client = text::daemon()?;
        match client.exchange(&Request::Receive { name: name.to_owned() }, &[], Some(REPLY_TIMEOUT))?.0 {
            Reply::Receiving { .. } => {}
            _ => return Err(Fault::new(libc::EPROTO, "the daemon answered something else than what was asked")),
        }
        let descriptor = std::os::fd::AsFd::as_fd(&client).as_raw_fd();
        Ok(Box::into_raw(Box::new(wb_receiver { descriptor, client: Mutex::new(client) })))
    };
    give(open(), std::ptr::null_mut())
}

/// A descriptor that is readable when sockets may have come, for poll(2). Then call wb_receive() with a time-out of 0
/// until it fails with EAGAIN. It belongs to the receiver.
///
/// Returns -1 with errno EFAULT where `receiver` is NULL.
///
/// # Safety
/// `receiver` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_receiver_fd(receiver: *const wb_receiver) -> c_int {
    // SAFETY: as the caller promises.
    let receiver = unsafe { receiver.as_ref() }.ok_or_else(|| Fault::null("receiver"));
    give(receiver.map(|receiver| receiver.descriptor), -1)
}

/// Waits for a socket, for so many milliseconds; -1 without end.
///
/// Returns 0, or -1 with errno: EAGAIN, none has come; ECONNRESET, the daemon has ended: open another receiver; EMFILE,
/// one came that this process has no descriptor for, and it is lost; EFAULT, a pointer is NULL.
///
/// # Safety
/// `receiver` is NULL or open; `received` is NULL or may be written to. What it held is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_receive(receiver: *mut wb_receiver, received: *mut wb_received, timeout: c_int) -> c_int {
    let wait = || {
        // SAFETY: as the caller promises.
        let receiver = unsafe { receiver.as_ref() }.ok_or_else(|| Fault::null("receiver"))?;
        if received.is_null() {
            return Err(Fault::null("received"));
        }
        let mut client = receiver.client.lock().unwrap_or_else(PoisonError::into_inner);
        let (reply, descriptors) = text::none_yet(client.next_reply(text::timeout(timeout)))?;
        drop(client);
        let Reply::Received(found) = reply else {
            return Err(Fault::new(libc::EPROTO, "the daemon said something else than that a socket has come"));
        };
        let socket = the_one(descriptors)?;
        let mut from = [0; 64];
        text::fill(&mut from, &found.from.key);
        let mut state = found.state.into_bytes();
        let state_length = state.len();
        state.push(0);
        let value = wb_received {
            socket: socket.into_raw_fd(),
            uuid: found.uuid.into(),
            from,
            local: address::write(found.flow.local),
            remote: address::write(found.flow.remote),
            state: Box::into_raw(state.into_boxed_slice()).cast(),
            state_length,
        };
        // SAFETY: as the caller promises.
        unsafe { received.write(value) };
        Ok(0)
    };
    give(wait(), -1)
}

/// Frees what wb_receive() has made beside the socket, which stays open. NULL is passed over.
///
/// # Safety
/// `received` is NULL or as wb_receive() has filled it, and not freed since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_received_free(received: *mut wb_received) {
    // SAFETY: as the caller promises.
    let Some(received) = (unsafe { received.as_mut() }) else { return };
    let state = std::mem::replace(&mut received.state, std::ptr::null_mut());
    if !state.is_null() {
        let all = std::ptr::slice_from_raw_parts_mut(state, received.state_length + 1);
        // SAFETY: it is what `wb_receive` made of a box of this length, and nobody has it any more.
        drop(unsafe { Box::from_raw(all) });
    }
    received.state_length = 0;
}

/// Receives no more under this name. Sockets that have come and were not taken are closed. NULL is passed over.
///
/// # Safety
/// `receiver` is NULL or open, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_receiver_close(receiver: *mut wb_receiver) {
    if !receiver.is_null() {
        // SAFETY: as the caller promises: it is what `wb_receiver_open` made.
        drop(unsafe { Box::from_raw(receiver) });
    }
}
