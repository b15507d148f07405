//! What a daemon answers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    Anchored, Anchors, CommunityReply, Explained, Failure, Kept, MadeSocket, Metric, Moved, MovedProcess, OpenSocket,
    Pinged, Received, Status, Trust, Uuid, WantedAnchor,
};

/// An answer: one line. On the wire the variant's name is the one member beside `schema`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Status`](crate::Request::Status).
    Status(Box<Status>),
    /// To [`Request::Connections`](crate::Request::Connections).
    Connections(Vec<Connection>),
    /// To [`Request::Peers`](crate::Request::Peers).
    Peers(Vec<Peer>),
    /// To [`Request::Paths`](crate::Request::Paths).
    Paths(Vec<Path>),
    /// To [`Request::ExplainPaths`](crate::Request::ExplainPaths).
    Explained(Explained),
    /// To [`Request::Ping`](crate::Request::Ping).
    Pinged(Box<Pinged>),
    /// To [`Request::Configuration`](crate::Request::Configuration).
    Configuration(Configuration),
    /// To [`Request::Metrics`](crate::Request::Metrics).
    Metrics(Vec<Metric>),
    /// One event; more follow until [`Reply::End`].
    Event(EventRecord),
    /// No more events.
    End {
        /// The number of the newest event that exists; for the next query's `since`.
        newest: u64,
    },
    /// To [`Request::Handoff`](crate::Request::Handoff).
    Handoff(HandoffStarted),
    /// To [`Request::Suspend`](crate::Request::Suspend).
    Suspended(Suspended),
    /// To [`Request::Resume`](crate::Request::Resume).
    Resumed {
        /// Connections that go on, or will once there is a network; not those that their peer has wait as well.
        flows: usize,
        /// Whether the host itself was suspended, and is back now.
        #[serde(default)]
        host: bool,
    },
    /// To [`Request::Place`](crate::Request::Place).
    Placed {
        /// Connections that are led so as soon as the path is confirmed.
        flows: usize,
    },
    /// To [`Request::ForgetPeer`](crate::Request::ForgetPeer).
    Forgotten {
        /// The address, or that at which the host was last.
        address: IpAddr,
        /// The key that was remembered for it.
        key: String,
        /// All addresses that it is not remembered for any more.
        #[serde(default)]
        remembered: Vec<IpAddr>,
        /// Whether all that was agreed on with the host is forgotten.
        #[serde(default)]
        peer: bool,
        /// The connections that it had.
        #[serde(default)]
        flows: PeerFlows,
    },
    /// To [`Request::Move`](crate::Request::Move) and [`Request::Give`](crate::Request::Give): a socket is with another
    /// host.
    Moved(Moved),
    /// To these and [`Request::Prepare`](crate::Request::Prepare): a socket stays.
    Kept(Kept),
    /// To [`Request::Prepare`](crate::Request::Prepare): the other host is ready for a socket.
    Prepared {
        /// For how long, in ms.
        lasts_ms: u64,
    },
    /// To [`Request::MoveProcess`](crate::Request::MoveProcess): a process is with another host.
    MovedProcess(Box<MovedProcess>),
    /// To [`Request::Receive`](crate::Request::Receive): from now on sockets may come.
    Receiving {
        /// The name.
        name: String,
    },
    /// A socket has come. Its descriptor comes with this line.
    Received(Box<Received>),
    /// To [`Request::Socket`](crate::Request::Socket) and [`Request::Rebuild`](crate::Request::Rebuild): a socket,
    /// whose descriptor comes with this line.
    Socket(MadeSocket),
    /// The answer to [`Request::Namespace`](crate::Request::Namespace).
    Namespace(Anchored),
    /// The answer to [`Request::Anchors`](crate::Request::Anchors) and [`Request::Lending`](crate::Request::Lending).
    Anchors(Anchors),
    /// To [`Request::Bind`](crate::Request::Bind).
    Bound {
        /// What it has.
        address: SocketAddr,
    },
    /// To [`Request::Uuid`](crate::Request::Uuid).
    Uuid {
        /// The socket's name.
        uuid: Uuid,
    },
    /// To [`Request::Export`](crate::Request::Export).
    Exported {
        /// The socket's name.
        uuid: Uuid,
        /// How long it is kept, in milliseconds.
        wait_ms: u64,
    },
    /// To [`Request::Sockets`](crate::Request::Sockets).
    Sockets(Vec<OpenSocket>),
    /// To [`Request::Migrator`](crate::Request::Migrator): from now on questions may come.
    Migrator {
        /// How long an answer is waited for, in milliseconds.
        wait_ms: u64,
    },
    /// A question to the migrator.
    WantedAnchor(WantedAnchor),
    /// To [`Request::Community`](crate::Request::Community).
    Community(Box<CommunityReply>),
    /// The request could not be carried out; nothing was changed.
    Error(Failure),
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// UDP-Lite, which is never moved; nor are those that follow.
    UdpLite,
    /// ICMP echo by a socket of its own; ports are its identifier.
    Echo,
    /// A raw socket; ports are the IP protocol's number.
    Raw,
    /// SCTP.
    Sctp,
    /// ESP or AH; ports are 0.
    Ipsec,
}

/// A connection's name as one host has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Flow {
    /// Of those, TCP and UDP can be moved.
    pub transport: Transport,
    /// That host's address and port.
    pub local: SocketAddr,
    /// The other end's.
    pub remote: SocketAddr,
}

/// What is known of a connection, and whether it outlives a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// As this host's socket has it. Where that has no other end, its own is one at which it is met. Where it is passed
    /// on, as its far end has it, which runs nothing.
    pub flow: Flow,
    /// Its socket is another host's, the peer's, for which this host passes its packets on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passed_on: bool,
    /// Its socket is not connected, and takes what anybody sends: this is what it has with one remote end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconnected: bool,
    /// What [`Request::Move`](crate::Request::Move) calls a socket without another end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How it stands.
    pub state: ConnectionState,
    /// What carries its packets, where `state` is `moved` or `held`.
    pub carrier: Option<Carrier>,
    /// Whether that goes over TCP, since UDP gets no answer: slower.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_tcp: bool,
    /// The interface by which it goes, where it has a path of its own: either end has placed it so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The interface by which each of its packets goes as well, since one of the two is in doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_network: Option<String>,
    /// Who is at its other end, where that is known.
    pub peer: Option<PeerName>,
    /// Whether something on the way translates its addresses; known once it is introduced.
    pub translated: Option<bool>,
    /// What its packets carry on the wire while they are rewritten.
    pub wire: Option<Flow>,
    /// Where its two ends are now, with the ports that its socket knows, where that is elsewhere than `flow` says: as
    /// programs are shown it that are to see it (`view = "real"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<Flow>,
    /// As the peer's socket has it (the peer's own end is `local`); known once it is introduced.
    pub peer_flow: Option<Flow>,
    /// What its other end has said in the handshake of TCP, where it has: that it runs Whimbrel, and which ends a NAT
    /// is before. Whoever is on the path can say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greeting: Option<Greeting>,
    /// Whose it is, where that could be found out.
    pub process: Option<Process>,
    /// What its program has sent and received, where the kernel counts that (TCP).
    #[serde(default)]
    pub bytes: Option<Bytes>,
    /// When the daemon came to know of it (RFC 3339).
    pub since: String,
    /// Why it is not introduced, where `state` is `unprotected` or `lost`, or nothing is sent for it, where it is
    /// `held`, or shows that it arrives, where it is `not-confirmed`.
    pub reason: Option<String>,
    /// Milliseconds since its peer was last heard, where `state` is `held` or `not-confirmed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms: Option<u64>,
    /// What is done, or was, in the name of its peer while that is away.
    #[serde(default)]
    pub helper: Option<Helper>,
}

impl Connection {
    /// One of which nothing else is known.
    #[must_use]
    pub fn bare(flow: Flow, state: ConnectionState) -> Self {
        Self {
            flow,
            passed_on: false,
            unconnected: false,
            name: None,
            state,
            carrier: None,
            by_tcp: false,
            network: None,
            second_network: None,
            peer: None,
            translated: None,
            wire: None,
            present: None,
            peer_flow: None,
            greeting: None,
            process: None,
            bytes: None,
            since: String::new(),
            reason: None,
            heard_ms: None,
            helper: None,
        }
    }
}

/// A migration helper of a connection (docs/helpers.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Helper {
    /// Its name in the configuration.
    pub name: String,
    /// What it does.
    pub state: HelperState,
    /// The program's process, or the one that is stopped.
    pub pid: Option<u32>,
    /// Bytes that this end has sent and that are kept for the peer.
    pub kept: u64,
    /// Of these, bytes that the peer has by now.
    pub delivered: u64,
    /// Bytes that were answered in this absence.
    pub answered: u64,
    /// Bytes that were answered in all absences together, modulo 2^32: the peer's sequence numbers are raised by so
    /// much.
    pub shifted: u32,
}

/// What a helper does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HelperState {
    /// Its program is handed what this end sends, and may answer.
    Answers,
    /// Its program has failed or reached a limit: the connection waits, and what was kept is kept.
    Holds,
    /// The peer is back and gets what was kept.
    Delivers,
    /// The connection goes on; its numbers are translated.
    Over,
    /// What serves the connection is stopped.
    Stopped,
}

/// What the other end of a connection has said in its handshake of how it sees the two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Something translates this host's end.
    pub near_translated: bool,
    /// Something translates the other end.
    pub far_translated: bool,
}

/// What a connection has carried since it was opened, in bytes of its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Sent and acknowledged.
    pub sent: u64,
    /// Received in order.
    pub received: u64,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionState {
    /// Introduced and where it was made: its packets are not touched, and it will outlive a move.
    Native,
    /// Introduced and carried, since one end or both have moved.
    Moved,
    /// As `Moved`, but the peer has not answered where it is carried to: nothing shows that it arrives. Or, without a
    /// carrier, as `Native`, but the peer does not answer: nothing shows that it would survive.
    NotConfirmed,
    /// Introduced; nothing is sent for it until a new place is confirmed.
    Held,
    /// Not introduced yet: the peer is being asked, or the connection is too young.
    Pending,
    /// Not introduced, and nothing is under way: a move would end it.
    Unprotected,
    /// Not introduced, and its address is gone: a move has ended it, whether or not its program knows.
    Lost,
    /// No connection: a socket that waits for clients. It can be given to another host by its name.
    Server,
}

/// What carries the packets of moved connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// Nothing, for now.
    Hold,
    /// UDP, through the tunnel's device.
    Tunnel,
    /// Their own packets, with addresses replaced.
    Rewrite,
    /// Of a peer or a path: each connection the way that the peer's packets of it come, rewritten or through the tunnel
    /// (protocol.md P-24). A connection itself is one or the other.
    FollowRewrite,
}

/// Names a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PeerName {
    /// Its number on this host; 0 where it has none.
    pub id: u32,
    /// Its public key.
    pub key: String,
    /// What it is called in this host's community, where it belongs to that and no other host of it is called the same,
    /// or else by the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// For people: its name, or else its number and as much of its key as tables show, or else its key.
impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.id) {
            (Some(name), _) => f.write_str(name),
            (None, 0) => f.write_str(&self.key),
            (None, id) => write!(f, "peer #{id} ({})", self.key.chars().take(KEY_SHOWN).collect::<String>()),
        }
    }
}

/// Characters of a key that are shown to people beside something else that names the host.
pub const KEY_SHOWN: usize = 10;

/// A program that has a connection open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id, in the daemon's own PID namespace.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`).
    pub name: String,
}

/// A daemon at the other end of connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Its number on this host.
    pub id: u32,
    /// Its public key.
    pub key: String,
    /// What it is called, as in [`PeerName`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it is reached now.
    pub address: SocketAddr,
    /// How it came to be trusted.
    pub trust: Trust,
    /// Addresses that its key is remembered for.
    pub remembered: Vec<IpAddr>,
    /// The session, while there is one.
    pub session: Option<Session>,
    /// Sequence numbers of binding updates.
    pub sequence: Sequence,
    /// The places of both ends.
    pub places: Places,
    /// Other addresses that it says it has.
    pub locators: Vec<IpAddr>,
    /// What carries its moved connections; `None` while none has moved.
    pub carrier: Option<Carrier>,
    /// Its connections with this host.
    pub flows: PeerFlows,
    /// Whether it is away, so that its connections wait for it.
    pub away: Option<Away>,
    /// Milliseconds for which it has not answered, where that is more than a lost packet or two, or an end has moved
    /// since: nothing shows that what is sent to it arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered_ms: Option<u64>,
}

/// How a peer is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Away {
    /// It said so.
    Announced,
    /// It is not heard.
    Silent,
}

/// A session with a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Milliseconds since its handshake.
    pub age_ms: u64,
    /// Smoothed round trip in milliseconds, once it was measured.
    pub round_trip_ms: Option<f64>,
    /// Milliseconds since anything valid was received in it.
    pub heard_ms: Option<u64>,
    /// The protocol's version.
    pub version: u8,
    /// What the peer is able to do: `rewrite`, `tunnel-plain`, `tunnel-sealed`, `ipv6`, `aes`, `transforms`.
    pub capabilities: Vec<String>,
}

/// Sequence numbers of binding updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequence {
    /// Of the last one sent.
    pub sent: u32,
    /// Of the last one accepted.
    pub accepted: u32,
}

/// The places of both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// This host's.
    pub local: u32,
    /// The peer's.
    pub peer: u32,
}

/// A peer's connections with this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerFlows {
    /// Introduced ones.
    pub introduced: usize,
    /// Of these, how many have moved (held ones included).
    pub moved: usize,
}

/// A way to a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Whose.
    pub peer: PeerName,
    /// This host's address on it; the kernel's choice where absent.
    pub local: Option<IpAddr>,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Whether it is the one in use.
    pub active: bool,
    /// Whether the peer has answered a challenge there, and answers still.
    pub confirmed: bool,
    /// Whether it goes over TCP, since UDP gets no answer: slower.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_tcp: bool,
    /// Milliseconds since the peer was last heard, wherever the two were, where the path is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms: Option<u64>,
    /// What carries moved connections on it, where any have moved.
    pub carrier: Option<Carrier>,
    /// Whether a NAT is on it, where that is known.
    pub translated: Option<bool>,
    /// Its round trip in milliseconds, once it was measured.
    pub round_trip_ms: Option<f64>,
    /// Its MTU in bytes, where that is known.
    pub mtu: Option<u32>,
}

/// How the configuration file differs from what the daemon uses. Values are not told: a key may be among them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The file that the daemon reads, whether it is there or not.
    pub path: PathBuf,
    /// Keys that have another value in the file now, which counts from the next start on.
    pub restart: Vec<String>,
    /// The same, where a reload (SIGHUP) suffices.
    pub reload: Vec<String>,
    /// Why the file cannot be used as it is now; a daemon would not start with it.
    pub error: Option<String>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Rises by one with each event of a daemon's life.
    pub number: u64,
    /// When, by the wall clock (RFC 3339, UTC, milliseconds).
    pub time: String,
    /// When, by CLOCK_MONOTONIC, in milliseconds: differences are exact even where the wall clock jumps.
    pub monotonic_ms: u64,
    /// What, as a word, e.g. `peer-reached`, `moving`, `moved`.
    pub kind: String,
    /// What, for people.
    pub sentence: String,
    /// The particulars of the kind.
    #[serde(default)]
    pub fields: serde_json::Map<String, serde_json::Value>,
}

/// A hand-off that was asked for and is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoffStarted {
    /// The address of this host that is moved to; absent where it differs from peer to peer.
    pub to: Option<IpAddr>,
    /// The peers that are told.
    pub peers: Vec<PeerName>,
    /// Connections that move.
    pub flows: usize,
    /// What becomes of it is told by events with a number above this one.
    pub since: u64,
}

/// What came of a suspension. Connections wait whether or not a peer has answered: one that has not finds out by
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspended {
    /// Connections that wait.
    pub flows: usize,
    /// Peers that were told.
    pub told: usize,
    /// How many of these have answered.
    pub answered: usize,
    /// Whether it was so already: nothing was changed, and nobody was to be told.
    #[serde(default)]
    pub already: bool,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::UdpLite => "udp-lite",
            Self::Echo => "echo",
            Self::Raw => "raw",
            Self::Sctp => "sctp",
            Self::Ipsec => "ipsec",
        })
    }
}

impl Flow {
    /// What it is called in words: a connection by its two ends, and what has no other end as
    /// [`Request::Move`](crate::Request::Move) names it.
    #[must_use]
    pub fn called(&self) -> String {
        match (self.transport, self.remote.ip().is_unspecified() && self.remote.port() == 0) {
            (Transport::Tcp, true) => format!("listener:{}", self.local),
            (Transport::Udp, true) => format!("udp:{}", self.local),
            _ => format!("{} -> {}", self.local, self.remote),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.transport, self.local, self.remote)
    }
}

impl ConnectionState {
    /// The word that programs know it by.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Moved => "moved",
            Self::NotConfirmed => "not-confirmed",
            Self::Held => "held",
            Self::Pending => "pending",
            Self::Unprotected => "unprotected",
            Self::Lost => "lost",
            Self::Server => "server",
        }
    }
}

/// For people.
impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NotConfirmed => "not confirmed",
            Self::Lost => "lost at the move",
            _ => self.word(),
        })
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hold => "hold",
            Self::Tunnel => "tunnel",
            Self::Rewrite => "rewrite",
            Self::FollowRewrite => "follow-rewrite",
        })
    }
}
