//! What `whimbrel why` says, of what the daemon knows; it never passes the socket.

use serde::{Deserialize, Serialize};

use crate::{ConnectionState, Flow};

/// What is said of one connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// Which.
    pub flow: Flow,
    /// How it stands.
    pub state: ConnectionState,
    /// Whether it would survive a move now; `None` where that is not known.
    pub survives: Option<bool>,
    /// What it is, how it goes and why, each a sentence.
    pub sentences: Vec<String>,
    /// What can be done, as a sentence.
    pub advice: Option<String>,
}
