use std::io;
use std::path::PathBuf;

/// What can go wrong between this crate and the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call failed. Unless its method says otherwise, nothing has changed.
    #[error("{call} ({object}): {source}")]
    Call {
        /// The system or libbpf call.
        call: &'static str,
        /// What it was done to.
        object: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel did not take the programs, or maps pinned by an incompatible version are in the way.
    #[error("cannot load the {object} programs: {source}\n{log}")]
    Load {
        /// `datapath` or `sockets`.
        object: &'static str,
        /// The kernel's answer.
        source: libbpf_rs::Error,
        /// What libbpf and the verifier had to say.
        log: String,
    },
    /// The loaded object lacks a program or map, or a pinned map holds what this version cannot read.
    #[error("{what} is not as this version of the programs has it")]
    Mismatch {
        /// The program, map or file.
        what: String,
    },
    /// There is no bpffs and none could be mounted.
    #[error("no bpffs at {path}: {source}")]
    Bpffs {
        /// Where one was looked for or mounted.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    /// The kernel's errno, where that is what failed.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } | Self::Bpffs { source, .. } => source.raw_os_error(),
            Self::Load { .. } | Self::Mismatch { .. } => None,
        }
    }

    /// Whether pinned maps are in the way that are laid out otherwise than this version's.
    pub(crate) fn is_of_another_layout(&self) -> bool {
        match self {
            // As libbpf says it (bpf_object__reuse_map).
            Self::Load { log, .. } => log.contains("parameter mismatch"),
            Self::Mismatch { .. } => true,
            Self::Call { .. } | Self::Bpffs { .. } => false,
        }
    }

    pub(crate) fn call(call: &'static str, object: impl Into<String>, source: io::Error) -> Self {
        Self::Call { call, object: object.into(), source }
    }

    /// The error of a libbpf call that returned `code`, a negative errno.
    pub(crate) fn code(call: &'static str, object: impl Into<String>, code: i32) -> Self {
        Self::call(call, object, io::Error::from_raw_os_error(-code))
    }
}
