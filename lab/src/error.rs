//! What can go wrong in the lab, always with the call or command and the object it was made on.

use std::io;
use std::time::Duration;

/// Shorthand used throughout the lab.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the lab itself or an expectation of a scenario that did not hold.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{call} on {object}: {source}")]
    Call {
        /// Name of the system call or of the library function around it.
        call: &'static str,
        /// What it was called on: a path, an interface, a namespace.
        object: String,
        /// The reason the kernel gave.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {program} on {host}: {source} (is it installed?)")]
    Spawn {
        /// Program as it was named.
        program: String,
        /// Host it should have run on.
        host: String,
        /// The reason the kernel gave.
        source: io::Error,
    },
    /// A program ended with a failure.
    #[error("`{command}` on {host} ended with {status}: {stderr}")]
    Command {
        /// The whole command line.
        command: String,
        /// Host it ran on.
        host: String,
        /// Exit status in words.
        status: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// A program printed something that could not be understood.
    #[error("{program} printed what is not {expected}: {got}")]
    Output {
        /// Program that printed.
        program: String,
        /// What was expected.
        expected: &'static str,
        /// What came, shortened.
        got: String,
    },
    /// A condition did not come true in time.
    #[error("waited {after:?} in vain: {what}{last}")]
    Timeout {
        /// The condition in words.
        what: String,
        /// How long it was waited for.
        after: Duration,
        /// The last state seen, empty or starting with a semicolon.
        last: String,
    },
    /// Something that a scenario asserts is not so.
    #[error("not as expected: {0}")]
    Expectation(String),
    /// The caller asked for something impossible.
    #[error("{0}")]
    Usage(String),
    /// A scenario cannot be run on this machine, for something is missing. Nothing was tried, so it neither passed nor
    /// failed.
    #[error("{0}")]
    Skipped(String),
}

impl Error {
    /// A failed system call.
    pub fn call(call: &'static str, object: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Call { call, object: object.into(), source: source.into() }
    }
}

/// Returns [`Error::Expectation`] with the given message from the surrounding function unless the condition holds.
#[macro_export]
macro_rules! expect {
    ($condition:expr, $($message:tt)+) => {
        // Not `if !`: comparisons of floating point numbers are conditions, too.
        if $condition {
        } else {
            return Err($crate::Error::Expectation(format!($($message)+)));
        }
    };
}
