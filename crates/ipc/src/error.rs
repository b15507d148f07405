//! How a refusal is told.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What failed, on which object, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What failed, as a sentence without its full stop.
    pub what: String,
    /// On which object: an address, a file, a peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// What the user can do about it, as a sentence with its full stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What kind of failure it is, where a program may want to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
}

/// A kind of failure that a program may want to tell from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The descriptor that came with the request is no socket.
    NotASocket,
    /// It is a socket, but none of TCP or UDP over IP.
    NotSupported,
    /// The request has too many descriptors, or too few.
    Descriptors,
    /// No socket, connection, process or host is named by this.
    Unknown,
    /// Somebody has that name or that port already.
    InUse,
    /// The client may not do that.
    Denied,
    /// As many as may be are there already.
    TooMany,
    /// This host does not do that: it is not configured to, or cannot.
    Unavailable,
    /// One that this program does not know.
    #[serde(other)]
    Other,
}

impl Failure {
    /// A failure with neither object nor advice yet.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), object: None, hint: None, code: None }
    }

    /// Names the object.
    #[must_use]
    pub fn on(mut self, object: impl fmt::Display) -> Self {
        self.object = Some(object.to_string());
        self
    }

    /// Says which kind of failure it is.
    #[must_use]
    pub fn code(mut self, code: Code) -> Self {
        self.code = Some(code);
        self
    }

    /// Gives advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.object {
            Some(object) => write!(f, "{object}: {}", self.what)?,
            None => f.write_str(&self.what)?,
        }
        match &self.hint {
            Some(hint) => write!(f, ". {hint}"),
            None => f.write_str("."),
        }
    }
}

impl std::error::Error for Failure {}
