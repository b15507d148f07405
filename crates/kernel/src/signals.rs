//! Signals as something to read (signalfd(2)), so that an event loop meets them where it waits for everything else.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::error::Error;

/// A signal that a daemon listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT: end.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// SIGTERM, SIGINT and SIGHUP of this process. From [`open`](Self::open) on they are blocked and have no other effect.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals in the calling thread and in those that it starts from now on. Call it before there are
    /// others: a thread that does not block them would still be killed by them.
    ///
    /// # Errors
    /// [`Error::Call`]; the signals may be blocked then.
    pub fn open() -> Result<Self, Error> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is written by sigemptyset before it is read, and outlives all calls.
        let raw = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let code = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            if code != 0 {
                return Err(Error::call(
                    "pthread_sigmask",
                    "SIGTERM, SIGINT, SIGHUP",
                    io::Error::from_raw_os_error(code),
                ));
            }
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if raw < 0 {
            return Err(Error::call("signalfd", "SIGTERM, SIGINT, SIGHUP", io::Error::last_os_error()));
        }
        // SAFETY: the kernel just gave this descriptor to us alone.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    /// The next signal that came, if one did.
    pub fn take(&mut self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: room for `size` bytes.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if usize::try_from(read) != Ok(size) {
            return None;
        }
        // SAFETY: plain data, zeroed and then filled by the kernel.
        let info = unsafe { info.assume_init() };
        Some(if info.ssi_signo == libc::SIGHUP as u32 { Signal::Reload } else { Signal::Stop })
    }
}

impl AsFd for Signals {
    /// Readable when a signal came.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
