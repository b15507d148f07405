//! Socket options as the kernel takes them: getsockopt(2) and setsockopt(2) of plain values.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::Error;

/// An option of a socket: level, name, and how errors call it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) level: libc::c_int,
    pub(crate) name: libc::c_int,
    pub(crate) text: &'static str,
}

/// Types that any bytes are a value of, and that have no padding.
///
/// # Safety
/// Every pattern of bytes must be a valid value, and all bytes of a value must be initialised.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for i32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: two integers of the same size, so no padding.
unsafe impl Plain for libc::linger {}
// SAFETY: two integers of eight bytes, so no padding.
unsafe impl Plain for libc::timeval {}
// SAFETY: integers of the same size.
unsafe impl<const N: usize> Plain for [u32; N] {}
// SAFETY: bytes.
unsafe impl<const N: usize> Plain for [u8; N] {}

/// Reads an option into `value`, of which the kernel may fill less; returns how many bytes it did.
pub(crate) fn get_into<T: Plain>(socket: BorrowedFd<'_>, option: Name, value: &mut T) -> io::Result<usize> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for writes of `length` bytes, and whatever the kernel writes there is a value of `T`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            option.level,
            option.name,
            std::ptr::from_mut(value).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(length as usize) } else { Err(io::Error::last_os_error()) }
}

/// Reads a number.
pub(crate) fn get_int(socket: BorrowedFd<'_>, option: Name) -> Result<i32, Error> {
    let mut value = 0i32;
    get_into(socket, option, &mut value).map_err(|e| Error::call("getsockopt", option.text, e))?;
    Ok(value)
}

/// Sets an option.
pub(crate) fn set<T: Plain>(socket: BorrowedFd<'_>, option: Name, value: &T) -> Result<(), Error> {
    set_slice(socket, option, std::slice::from_ref(value))
}

/// A connection of TCP takes no more than so many bytes beyond what is under way: what waits longer waits with whoever
/// writes, who knows what of it is still of use.
///
/// # Errors
/// The kernel's reason, which is that this is no socket of TCP.
pub fn set_not_sent_low_water(socket: BorrowedFd<'_>, bytes: u32) -> Result<(), Error> {
    let name = Name { level: libc::IPPROTO_TCP, name: libc::TCP_NOTSENT_LOWAT, text: "TCP_NOTSENT_LOWAT" };
    set(socket, name, &[bytes])
}

/// What a socket sends leaves by this interface, wherever the routes lead.
///
/// # Errors
/// The kernel's reason: there is no such interface, say.
pub fn bind_to_interface(socket: BorrowedFd<'_>, index: u32) -> Result<(), Error> {
    let name = Name { level: libc::SOL_SOCKET, name: libc::SO_BINDTOIFINDEX, text: "SO_BINDTOIFINDEX" };
    set(socket, name, &[index])
}

/// Sets an option that takes an array.
pub(crate) fn set_slice<T: Plain>(socket: BorrowedFd<'_>, option: Name, values: &[T]) -> Result<(), Error> {
    // SAFETY: the slice is valid for reads of its whole size for the duration of the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            option.level,
            option.name,
            values.as_ptr().cast(),
            size_of_val(values) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(Error::call("setsockopt", option.text, io::Error::last_os_error())) }
}

/// Asks an ioctl that gives a number (tcp(7): SIOCINQ, SIOCOUTQ).
pub(crate) fn ioctl_int(socket: BorrowedFd<'_>, request: libc::c_ulong, text: &'static str) -> Result<u32, Error> {
    let mut value: libc::c_int = 0;
    // SAFETY: these requests write one int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut value) };
    if result != 0 {
        return Err(Error::call("ioctl", text, io::Error::last_os_error()));
    }
    Ok(value.unsigned_abs())
}
