//! Text and descriptors as C gives them.

use std::ffi::{CStr, c_char, c_int};
use std::mem;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use whimbrel_ipc::{Client, ClientError};

use crate::failure::Fault;

/// Where the daemon is whose run directory is not named.
const RUN_DIR: &str = "/run/whimbrel";

/// A string argument.
///
/// # Safety
/// `text` is null, or points to a string that ends and stays as it is for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Fault> {
    // SAFETY: as the caller promises.
    unsafe { optional(text, what) }?.ok_or_else(|| Fault::null(what))
}

/// A string argument that may be left out.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn optional<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Fault> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Fault::new(libc::EINVAL, format!("{what} is not UTF-8")))
}

/// A descriptor argument that is a socket.
pub(crate) fn socket<'a>(descriptor: c_int) -> Result<BorrowedFd<'a>, Fault> {
    integer_option(descriptor, libc::SO_TYPE)?;
    // SAFETY: it was open just now. That it is closed by another thread meanwhile is the program's fault, and does no
    // harm but to what it meant: the number is only given to system calls.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

/// An option of SOL_SOCKET that is a number. Fails where the descriptor is no socket, or not open.
pub(crate) fn integer_option(descriptor: c_int, option: c_int) -> Result<c_int, Fault> {
    let mut value: c_int = 0;
    let mut length = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: room for a number of the length that is said.
    let result =
        unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length) };
    if result == 0 { Ok(value) } else { Err(Fault::last("getsockopt")) }
}

/// A new connection with the daemon.
pub(crate) fn daemon() -> Result<Client, Fault> {
    // SAFETY: takes a number. A program with another's rights is not led to a daemon of its caller's choice.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let named = std::env::var_os("WHIMBREL_RUN_DIR").filter(|_| !privileged);
    let run_dir = named.map_or_else(|| PathBuf::from(RUN_DIR), PathBuf::from);
    Ok(Client::connect(&run_dir)?)
}

/// A time-out in milliseconds as poll(2) has it: a negative one is none.
pub(crate) fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// Writes text into room for so many bytes, its end included; cut off where it is longer.
pub(crate) fn fill(room: &mut [c_char], text: &str) {
    let most = room.len().saturating_sub(1);
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    room.fill(0);
    for (slot, byte) in room.iter_mut().zip(text.as_bytes()[..end].iter()) {
        *slot = *byte as c_char;
    }
}

/// A reply that was waited for: that none came yet is told as programs expect it.
pub(crate) fn none_yet<T>(result: Result<T, ClientError>) -> Result<T, Fault> {
    match result {
        Err(ClientError::Timeout { .. }) => Err(Fault::new(libc::EAGAIN, "nothing has come yet")),
        other => Ok(other?),
    }
}
