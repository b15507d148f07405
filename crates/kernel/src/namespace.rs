//! Network namespaces: which one this is, and working in another one for a while.

use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::Error;

/// The cookie of the calling thread's network namespace: unique until the machine is booted again
/// (`SO_NETNS_COOKIE`, Linux 5.14).
///
/// # Errors
/// [`Error::Call`] with ENOPROTOOPT on an older kernel.
pub fn cookie() -> Result<u64, Error> {
    let probe = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::call("socket", "AF_UNIX", e))?;
    cookie_of(probe.as_fd())
}

/// The cookie of the network namespace that a socket was made in.
///
/// # Errors
/// As [`cookie`].
pub fn cookie_of(socket: BorrowedFd<'_>) -> Result<u64, Error> {
    let mut value = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `value` and `length` are valid for writes for the duration of the call, and `length` is the size of `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(Error::call("getsockopt", "SO_NETNS_COOKIE", std::io::Error::last_os_error()));
    }
    Ok(value)
}

/// The calling thread works in another network namespace until this is dropped.
///
/// Not [`Send`]: the namespace belongs to the thread. Sockets and descriptors opened meanwhile stay in that namespace.
#[derive(Debug)]
pub struct Entered {
    home: File,
    _thread: PhantomData<*const ()>,
}

impl Entered {
    /// Moves the calling thread into the namespace at `path` (`/run/netns/NAME`, `/proc/PID/ns/net`).
    ///
    /// # Errors
    /// [`Error::Call`]; the thread is where it was.
    pub fn path(path: &Path) -> Result<Self, Error> {
        let target = File::open(path).map_err(|e| Error::call("open", path.display().to_string(), e))?;
        Self::descriptor(target.as_fd())
    }

    /// Moves the calling thread into the namespace behind an open descriptor.
    ///
    /// # Errors
    /// [`Error::Call`]; the thread is where it was.
    pub fn descriptor(target: BorrowedFd<'_>) -> Result<Self, Error> {
        const HERE: &str = "/proc/thread-self/ns/net";
        let home = File::open(HERE).map_err(|e| Error::call("open", HERE, e))?;
        move_into_link_name_space(target, Some(LinkNameSpaceType::Network))
            .map_err(|e| Error::call("setns", format!("descriptor {}", target.as_raw_fd()), e))?;
        Ok(Self { home, _thread: PhantomData })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // A thread that went on in the wrong namespace would change addresses and routes of a stranger.
        if let Err(error) = move_into_link_name_space(self.home.as_fd(), Some(LinkNameSpaceType::Network)) {
            eprintln!("setns: cannot return to the own network namespace: {error}");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_a_cookie() {
        assert_eq!(cookie().unwrap(), cookie().unwrap());
    }

    #[test]
    fn a_missing_namespace_is_an_error() {
        let error = Entered::path(Path::new("/nonexistent/namespace")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
}
