//! What C is told of a failure: errno, and a sentence.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io;

use whimbrel_ipc::{ClientError, Code, Failure};

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Fault {
    errno: c_int,
    reason: String,
}

impl Fault {
    pub(crate) fn new(errno: c_int, reason: impl Into<String>) -> Self {
        Self { errno, reason: reason.into() }
    }

    /// A pointer is null that must not be.
    pub(crate) fn null(what: &str) -> Self {
        Self::new(libc::EFAULT, format!("{what} is NULL"))
    }

    /// What the last system call has said.
    pub(crate) fn last(call: &str) -> Self {
        Self::of_io(call, &io::Error::last_os_error())
    }

    fn of_io(call: &str, error: &io::Error) -> Self {
        Self::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{call}: {error}"))
    }

    fn errno_of(failure: &Failure) -> c_int {
        match failure.code {
            Some(Code::NotASocket) => libc::ENOTSOCK,
            Some(Code::NotSupported) => libc::EPROTONOSUPPORT,
            Some(Code::Descriptors) => libc::EINVAL,
            Some(Code::Unknown) => libc::ENOENT,
            Some(Code::InUse) => libc::EADDRINUSE,
            Some(Code::Denied) => libc::EPERM,
            Some(Code::TooMany) => libc::ENOBUFS,
            Some(Code::Unavailable) => libc::EOPNOTSUPP,
            Some(Code::Other) | None => libc::EREMOTEIO,
        }
    }

    /// Of a request that names nothing but a process.
    pub(crate) fn of_process(self) -> Self {
        let errno = if self.errno == libc::ENOENT { libc::ESRCH } else { self.errno };
        Self { errno, ..self }
    }

    /// Whether there is no daemon that this program may ask.
    pub(crate) fn is_without_daemon(&self) -> bool {
        matches!(self.errno, libc::ECONNREFUSED | libc::EACCES) && self.reason.starts_with("no daemon answers")
    }
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Self {
        let errno = match &error {
            ClientError::Connect { .. } if error.is_denied() => libc::EACCES,
            ClientError::Connect { .. } => libc::ECONNREFUSED,
            ClientError::Timeout { .. } => libc::ETIMEDOUT,
            ClientError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            ClientError::Closed { .. } | ClientError::Stopped { .. } => libc::ECONNRESET,
            ClientError::Schema(_) | ClientError::Unexpected => libc::EPROTO,
            ClientError::Refused(failure) => Self::errno_of(failure),
        };
        Self::new(errno, error.to_string())
    }
}

thread_local! {
    static REASON: RefCell<CString> = RefCell::new(CString::default());
}

/// Why the last call of this library in this thread failed, as a sentence: what errno cannot say, such as why a socket
/// was kept. Empty where none has failed. It counts until the next call of this library in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn wb_reason() -> *const c_char {
    REASON.with_borrow(|reason| reason.as_ptr())
}

/// Gives a result as C has it: `failed` with errno where there is none.
pub(crate) fn give<T>(result: Result<T, Fault>, failed: T) -> T {
    match result {
        Ok(value) => value,
        Err(Fault { errno, reason }) => {
            // The sentence comes from the daemon, and may have anything in it.
            let reason = CString::new(reason.replace('\0', " ")).unwrap_or_default();
            REASON.set(reason);
            // SAFETY: the address is that of this thread's errno, for as long as the thread lives.
            unsafe { *libc::__errno_location() = errno };
            failed
        }
    }
}
