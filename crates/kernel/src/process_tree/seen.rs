//! Processes that were seen, and are not to be taken for others that have their numbers later.

use rustix::process::{Signal, pidfd_send_signal};

use super::started;
use crate::duplicated;
use crate::error::Error;

/// A process as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pid: u32,
    started: Option<u64>,
}

impl Seen {
    /// The one that has this number now.
    #[must_use]
    pub fn now(pid: u32) -> Self {
        Self { pid, started: started(pid) }
    }

    /// One that was seen before, [started](started) at this time. `None`: it was gone already.
    #[must_use]
    pub fn then(pid: u32, started: Option<u64>) -> Self {
        Self { pid, started }
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When it was started, as [`started`] has it.
    #[must_use]
    pub fn started(&self) -> Option<u64> {
        self.started
    }

    /// Whether it is there, though perhaps as nothing but what its parent has not waited for.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.started.is_some() && started(self.pid) == self.started
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// [`Error::Call`]: it is gone (ESRCH), whoever has its number now; or may not be signalled.
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        let object = || format!("process {}", self.pid);
        let process = duplicated::open(self.pid)?;
        // Looked at with the descriptor in hand, which stays that process's.
        if !self.is_there() {
            return Err(Error::call("pidfd_open", object(), rustix::io::Errno::SRCH));
        }
        pidfd_send_signal(&process, signal).map_err(|error| Error::call("pidfd_send_signal", object(), error))
    }
}
