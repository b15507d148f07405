//! What can go wrong when the kernel is asked for something.

use std::io;
use std::net::IpAddr;

/// Whether a failed call has left a change behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing was changed, or all that was changed has been put back.
    None,
    /// Something was changed and is still so; the caller has to look at the state again.
    Partial,
}

/// A system call that failed, or an answer of the kernel that makes no sense.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused.
    #[error("{call} {object}: {source}{}", note(*effect))]
    Call {
        /// The system call or netlink request, as the manual pages name it.
        call: &'static str,
        /// What it was asked to work on.
        object: String,
        /// The kernel's reason.
        source: io::Error,
        /// Whether a change is left behind.
        effect: Effect,
    },
    /// There is no route: not a fault of the system, but an answer.
    #[error("no route to {destination}{}: {source}", from.map(|f| format!(" from {f}")).unwrap_or_default())]
    Unreachable {
        /// Where to.
        destination: IpAddr,
        /// From which address, if one was asked for.
        from: Option<IpAddr>,
        /// ENETUNREACH, EHOSTUNREACH, EACCES (prohibit), EINVAL (blackhole, or `from` is no address of this host).
        source: io::Error,
    },
    /// The kernel's answer could not be understood.
    #[error("{call} {object}: unexpected answer: {detail}")]
    Answer {
        /// The system call or netlink request.
        call: &'static str,
        /// What it was asked to work on.
        object: String,
        /// What was wrong with the answer.
        detail: String,
    },
    /// The caller asked for something that cannot be: nothing was changed.
    #[error("{object}: {detail}")]
    Argument {
        /// What it was about.
        object: String,
        /// Why it cannot be.
        detail: &'static str,
    },
}

impl Error {
    /// Whether a change is left behind.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Call { effect, .. } => *effect,
            _ => Effect::None,
        }
    }

    /// The kernel's error number, where there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } | Self::Unreachable { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// A call that failed and changed nothing.
    pub(crate) fn call(call: &'static str, object: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Call { call, object: object.into(), source: source.into(), effect: Effect::None }
    }

    /// The same error, with what is known now about what is left behind.
    pub(crate) fn with_effect(mut self, now: Effect) -> Self {
        if let Self::Call { effect, .. } = &mut self {
            *effect = now;
        }
        self
    }
}

fn note(effect: Effect) -> &'static str {
    match effect {
        Effect::None => "",
        Effect::Partial => " (and what was changed before could not be put back)",
    }
}
