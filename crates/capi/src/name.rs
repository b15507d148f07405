//! Names of sockets, and sockets by their names.

use std::ffi::{c_char, c_int};
use std::os::fd::{IntoRawFd, OwnedFd};

use whimbrel_ipc::{REPLY_TIMEOUT, Reply, Request, Uuid};

use crate::failure::{Fault, give};
use crate::text;

/// Bytes of a socket's name as text, its end included.
pub const WB_UUID_TEXT: usize = 37;

/// The name of a socket for its life, on whichever host it is. Who knows it may take the socket where that waits for
/// its program: keep it like a password.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "as C has it")]
pub struct wb_uuid {
    /// In the order in which they are written.
    pub bytes: [u8; 16],
}

impl From<Uuid> for wb_uuid {
    fn from(uuid: Uuid) -> Self {
        Self { bytes: *uuid.as_bytes() }
    }
}

/// The name of a socket of TCP or UDP, which it keeps wherever it goes.
///
/// Returns 0, or -1 with errno: EBADF or ENOTSOCK, the descriptor is none of a socket; EPROTONOSUPPORT, a socket, but
/// of neither TCP nor UDP; EFAULT, `uuid` is NULL; ECONNREFUSED, no daemon runs; EACCES, this user may not ask it;
/// ETIMEDOUT, it does not answer.
///
/// # Safety
/// `uuid` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_uuid_of(socket: c_int, uuid: *mut wb_uuid) -> c_int {
    let ask = || {
        if uuid.is_null() {
            return Err(Fault::null("uuid"));
        }
        let found = {
            let descriptor = text::socket(socket)?;
            text::daemon()?.uuid(descriptor)?
        };
        // SAFETY: as the caller promises.
        unsafe { uuid.write(found.into()) };
        Ok(0)
    };
    give(ask(), -1)
}

/// Has the daemon keep a socket as well, so that it outlives this program, or is moved without it: until it is moved,
/// or wb_rebuild() takes it back, or five minutes have passed. The program's own descriptor stays as it is; it should
/// not read or write any more before it ends.
///
/// Returns 0 and the socket's name, or -1 with errno as wb_uuid_of(); ENOBUFS, the daemon keeps as many as it will.
///
/// # Safety
/// `uuid` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_export(socket: c_int, uuid: *mut wb_uuid) -> c_int {
    let ask = || {
        if uuid.is_null() {
            return Err(Fault::null("uuid"));
        }
        let descriptor = text::socket(socket)?;
        match text::daemon()?.exchange(&Request::Export, &[descriptor], Some(REPLY_TIMEOUT))?.0 {
            Reply::Exported { uuid: found, .. } => {
                // SAFETY: as the caller promises.
                unsafe { uuid.write(found.into()) };
                Ok(0)
            }
            _ => Err(Fault::new(libc::EPROTO, "the daemon answered something else than what was asked")),
        }
    };
    give(ask(), -1)
}

/// Takes a socket that waits on this host for its program: it was exported here, or has come from another host without
/// a program to receive it. It is as it was: connected or listening, with its options and all that was not read. The
/// new descriptor is closed by execve(2).
///
/// Returns the descriptor, or -1 with errno: ENOENT, no socket of this name waits here (it may not have come yet);
/// EFAULT, `uuid` is NULL; ECONNREFUSED, EACCES and ETIMEDOUT as wb_uuid_of().
///
/// # Safety
/// `uuid` is NULL or may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_rebuild(uuid: *const wb_uuid) -> c_int {
    let ask = || {
        if uuid.is_null() {
            return Err(Fault::null("uuid"));
        }
        // SAFETY: as the caller promises.
        let uuid = unsafe { uuid.read() };
        rebuild(Uuid::from_bytes(uuid.bytes).to_string())
    };
    give(ask(), -1)
}

/// As wb_rebuild(), by the name as text, or the first eight digits of it where no other waits that begins so.
///
/// # Safety
/// `uuid` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_rebuild_text(uuid: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    let uuid = unsafe { text::text(uuid, "uuid") };
    give(uuid.and_then(|uuid| rebuild(uuid.to_owned())), -1)
}

fn rebuild(uuid: String) -> Result<c_int, Fault> {
    match text::daemon()?.exchange(&Request::Rebuild { uuid }, &[], Some(REPLY_TIMEOUT))? {
        (Reply::Socket(_), descriptors) => the_one(descriptors).map(IntoRawFd::into_raw_fd),
        _ => Err(Fault::new(libc::EPROTO, "the daemon answered something else than what was asked")),
    }
}

/// The descriptor that a reply must come with.
pub(crate) fn the_one(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, Fault> {
    let mut descriptors = descriptors.into_iter();
    // The kernel gives none where this process has as many as it may (unix(7)).
    descriptors
        .next()
        .ok_or_else(|| Fault::new(libc::EMFILE, "no descriptor came with the answer: this process may have no more"))
}

/// Writes a name as text: 8-4-4-4-12 hexadecimal digits. `text` has room for WB_UUID_TEXT bytes.
///
/// Returns 0, or -1 with errno EFAULT: a pointer is NULL.
///
/// # Safety
/// Either is NULL, or `uuid` may be read and `text` has the room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_uuid_format(uuid: *const wb_uuid, text: *mut c_char) -> c_int {
    let write = || {
        if uuid.is_null() || text.is_null() {
            return Err(Fault::null("an argument"));
        }
        // SAFETY: as the caller promises.
        let (uuid, room) = unsafe { (uuid.read(), std::slice::from_raw_parts_mut(text, WB_UUID_TEXT)) };
        text::fill(room, &Uuid::from_bytes(uuid.bytes).to_string());
        Ok(0)
    };
    give(write(), -1)
}

/// Reads a name as wb_uuid_format() has written it.
///
/// Returns 0, or -1 with errno: EINVAL, it is none; EFAULT, a pointer is NULL.
///
/// # Safety
/// Either is NULL, or `text` is a string and `uuid` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wb_uuid_parse(text: *const c_char, uuid: *mut wb_uuid) -> c_int {
    let read = || {
        // SAFETY: as the caller promises.
        let text = unsafe { text::text(text, "text") }?;
        let parsed: Uuid = text.parse().map_err(|error| Fault::new(libc::EINVAL, format!("{error}")))?;
        if uuid.is_null() {
            return Err(Fault::null("uuid"));
        }
        // SAFETY: as the caller promises.
        unsafe { uuid.write(parsed.into()) };
        Ok(0)
    };
    give(read(), -1)
}
