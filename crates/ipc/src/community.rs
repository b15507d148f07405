//! What is asked and told of the community.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Something about the community. On the wire its name is the member `action` of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum CommunityRequest {
    /// Found one; [`CommunityReply::Roster`].
    Init {
        /// What people call this host; its host name where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Draw a code by which a host joins; [`CommunityReply::Code`].
    Invite {
        /// Whether as one that may invite and revoke as well.
        #[serde(default)]
        steward: bool,
    },
    /// Draw a code by which a stranger may be given a connection, once; [`CommunityReply::Code`].
    Grant {
        /// An address and port of either end.
        connection: String,
    },
    /// Use a code to join; [`CommunityReply::Asking`] as soon as it is under way. What becomes of it is told by events.
    Join {
        /// As people say it.
        code: String,
        /// Where the host may be that has drawn it.
        hosts: Vec<IpAddr>,
        /// The port there; this host's own control port where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// As for [`CommunityRequest::Init`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Use a code to be given a connection; as [`CommunityRequest::Join`].
    Accept {
        /// As people say it.
        code: String,
        /// Where the host may be that has drawn it.
        hosts: Vec<IpAddr>,
        /// The port there; this host's own control port where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
    },
    /// Who belongs to it; [`CommunityReply::Roster`].
    List,
    /// A host belongs to it no more, or a code or grant is taken back; [`CommunityReply::Roster`].
    Revoke {
        /// A host's name or key, the beginning of the key, or the number of a code or grant.
        what: String,
    },
    /// Belong to it no more; [`CommunityReply::Roster`].
    Leave,
}

/// An answer about the community.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommunityReply {
    /// How it stands.
    Roster(Roster),
    /// A code.
    Code(DrawnCode),
    /// A code is being used.
    Asking {
        /// The number of the newest event before.
        since: u64,
    },
}

/// Who belongs to a community.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Its key, in base64; absent where this host knows of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub community: Option<String>,
    /// What this host is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
    /// All hosts that belong to it, or did.
    pub hosts: Vec<Host>,
    /// Codes that nobody has used.
    pub codes: Vec<Open>,
    /// Connections that strangers may be given, or this host may.
    pub grants: Vec<Grant>,
}

/// What a host is in a community.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It belongs to it.
    Member,
    /// It may invite and revoke as well.
    Steward,
    /// It belonged to it.
    Revoked,
}

/// A host of a community.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// What people call it.
    pub name: String,
    /// Its public key, in base64.
    pub key: String,
    /// What it is.
    pub standing: Standing,
    /// Whether it is the host that was asked.
    pub here: bool,
    /// Where it is, or was met last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<SocketAddr>,
    /// Whether there is a session with it.
    pub session: bool,
    /// Whether it is known to know all that the host knows that was asked.
    pub knows: bool,
}

/// A code that is open. The code itself is told once, to whoever has it drawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Its number.
    pub number: u16,
    /// What it is for.
    #[serde(flatten)]
    pub purpose: Purpose,
    /// How long it is good, in seconds.
    pub left_s: u64,
}

/// What a code is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "kebab-case")]
pub enum Purpose {
    /// To join.
    Member,
    /// To join as one that may invite and revoke.
    Steward,
    /// To be given a connection.
    Connection {
        /// Its own end.
        local: SocketAddr,
        /// The other.
        remote: SocketAddr,
    },
}

/// A code that was drawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrawnCode {
    /// As people say it.
    pub code: String,
    /// Its number, what it is for and how long it is good.
    #[serde(flatten)]
    pub open: Open,
    /// Addresses of this host that the other one may find it at, the preferred one first.
    pub addresses: Vec<IpAddr>,
    /// The control port.
    pub port: u16,
}

/// That one connection may go to a stranger, or come from one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its number.
    pub number: u16,
    /// The stranger's public key, in base64.
    pub key: String,
    /// This host's end of the connection; absent where this host may receive one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<SocketAddr>,
    /// Its other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<SocketAddr>,
    /// How long it is good, in seconds.
    pub left_s: u64,
}
