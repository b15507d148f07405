//! How a daemon is: what `status` shows.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How the daemon is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Whether it does its work: the data plane is loaded and the control port is open.
    pub ready: bool,
    /// The version of the program.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// This host's public key: what peers remember or pin.
    pub public_key: String,
    /// The UDP port of control messages and tunnels.
    pub port: u16,
    /// Whom it trusts when no key is known.
    pub trust: Trust,
    /// Its run directory.
    pub run_dir: PathBuf,
    /// Its state directory.
    pub state_dir: PathBuf,
    /// The place of this host: counts its changes of attachment (`docs/protocol.md` §5).
    pub place: u32,
    /// This host's own addresses that could be moved to, the preferred one first.
    pub addresses: Vec<LocalAddress>,
    /// Former addresses of this host that are kept because connections still use them.
    pub kept_addresses: Vec<IpAddr>,
    /// Whether it was suspended, and not resumed yet.
    pub suspended: bool,
    /// The hosts that it is to meet its peers at.
    #[serde(default)]
    pub rendezvous: Vec<Rendezvous>,
    /// Who meets here, where it serves as a rendezvous.
    #[serde(default)]
    pub meetings: Option<Meetings>,
    /// The name server that is told where this host is, where one is configured.
    #[serde(default)]
    pub name_server: Option<NameServer>,
    /// How much it looks after.
    pub counts: Counts,
    /// Where programs are attached now; empty while no connection is introduced.
    pub attached: Vec<Attachment>,
    /// The tunnel's device, if there is one.
    pub tunnel: Option<Tunnel>,
    /// The number of the newest event.
    pub newest_event: u64,
}

/// How a peer comes to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// On first use: the first key seen at an address is remembered.
    Tofu,
    /// Its key stands in the configuration.
    Pinned,
    /// It has the same pre-shared key.
    Psk,
}

/// An address of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// The interface that has it.
    pub interface: String,
}

/// A host that this one meets its peers at, when neither finds the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendezvous {
    /// As configured, or where it is.
    pub address: IpAddr,
    /// Why it is one.
    #[serde(default)]
    pub by: RendezvousBy,
    /// How it stands.
    pub state: RendezvousState,
    /// Peers that can meet this host there, if they know it too.
    pub peers: usize,
}

/// Why a host is this one's rendezvous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RendezvousBy {
    /// `rendezvous` names it.
    #[default]
    Configured,
    /// It stands under `[[peers]]`, and offers itself.
    Named,
    /// It belongs to this host's community.
    Community,
}

/// How a rendezvous stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RendezvousState {
    /// No connection could be moved, so there is nobody to meet, and it is not asked.
    Unneeded,
    /// It does not answer, or has not yet.
    Unanswered,
    /// It answers, and knows where this host is.
    Registered,
    /// The same, but it has no room for all peers of this host.
    Full,
    /// It serves nobody: `serve_rendezvous` is not set there.
    Refused,
}

/// Who meets at a host that serves as a rendezvous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meetings {
    /// Hosts that want to be found.
    pub hosts: usize,
    /// Pairs of them that want to be found by one another.
    pub pairs: usize,
}

/// How much the daemon looks after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Peers that are known.
    pub peers: usize,
    /// Peers that a session is up with.
    pub sessions: usize,
    /// Connections that are known, whether they could be moved or not.
    pub connections: usize,
    /// Connections that are introduced, so outlive a move.
    pub introduced: usize,
    /// Connections that are carried to another place than the one that they were made at.
    pub moved: usize,
    /// Connections that nothing is sent for until a new place is confirmed.
    pub held: usize,
    /// Connections that are carried to where nothing has been heard from: they are not among `moved`.
    #[serde(default)]
    pub not_confirmed: usize,
    /// Connections that a move has left behind: their addresses are gone, and they were not introduced.
    #[serde(default)]
    pub lost: usize,
    /// Single connections that this host has wait by request, whatever else they wait for.
    #[serde(default)]
    pub suspended: usize,
    /// Those that their peers have wait so.
    #[serde(default)]
    pub suspended_by_peers: usize,
}

/// A name server, and what became of telling it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameServer {
    /// This host's name.
    pub name: String,
    /// Where the server is.
    pub server: SocketAddr,
    /// How it stands.
    pub state: NameServerState,
    /// The addresses that it has last taken for the name.
    pub addresses: Vec<IpAddr>,
    /// When something was last told of it (RFC 3339).
    pub since: Option<String>,
    /// What that was, for people.
    pub sentence: Option<String>,
}

/// How a name server stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NameServerState {
    /// It is being told.
    Asked,
    /// It has what this host has.
    Updated,
    /// There is nothing to tell it: this host has no address, or private ones alone.
    Withheld,
    /// It does not take the update.
    Refused,
    /// It does not answer.
    Unanswered,
}

/// A program that is attached to an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The interface.
    pub interface: String,
    /// What it does, e.g. `ingress`, `egress`, `detect`.
    pub program: String,
    /// How it hangs there: `tcx` or `clsact`.
    pub hook: String,
}

/// The tunnel's end on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// Name of the TUN device.
    pub device: String,
    /// Its MTU in bytes: the largest inner packet.
    pub mtu: u32,
    /// Packets sent into the tunnel.
    pub packets_sent: u64,
    /// Packets received from it.
    pub packets_received: u64,
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tofu => "tofu",
            Self::Pinned => "pinned",
            Self::Psk => "psk",
        })
    }
}
