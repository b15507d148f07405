//! What can be asked of a daemon.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{CommunityRequest, Family, ProcessScope, SocketKind, State, WrittenPreference};

/// A question or an order to a daemon: one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// How the daemon is; answered by [`Reply::Status`](crate::Reply::Status).
    Status,
    /// The connections that it knows; [`Reply::Connections`](crate::Reply::Connections).
    Connections,
    /// The daemons that it has or had sessions with; [`Reply::Peers`](crate::Reply::Peers).
    Peers,
    /// The ways to them; [`Reply::Paths`](crate::Reply::Paths).
    Paths,
    /// By which network each is reached, and why; [`Reply::Explained`](crate::Reply::Explained). Nothing is changed.
    ExplainPaths {
        /// What it would be with these `[[prefer]]` sections, and not those in force.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefer: Option<Vec<WrittenPreference>>,
    },
    /// Ask another host whether it answers, once, and a second time where the first is lost;
    /// [`Reply::Pinged`](crate::Reply::Pinged) when it has, or after a few seconds.
    Ping {
        /// As for [`Request::Move`], or the address of one that nothing is known of.
        host: String,
    },
    /// Whether the configuration file says what is in force; [`Reply::Configuration`](crate::Reply::Configuration).
    Configuration,
    /// Figures for monitoring; [`Reply::Metrics`](crate::Reply::Metrics).
    Metrics,
    /// What happened: zero or more [`Reply::Event`](crate::Reply::Event), oldest first, then
    /// [`Reply::End`](crate::Reply::End) unless it follows.
    Events(EventsQuery),
    /// Move now; [`Reply::Handoff`](crate::Reply::Handoff) as soon as it is under way. What becomes of it is told by
    /// events.
    Handoff {
        /// The address of this host to move to; the daemon's choice where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<IpAddr>,
        /// Towards this peer only: its number, key (or an unambiguous beginning of it), or address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
    },
    /// This host goes away, to sleep for example: peers are told, and all connections wait until [`Request::Resume`];
    /// [`Reply::Suspended`](crate::Reply::Suspended) once the peers have answered, or after a second. With
    /// `connections`: these alone wait, and the host stays.
    Suspend {
        /// Each names connections that outlive a move: by an address and port of either end, or a process id
        /// (`pid:4711`).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        connections: Vec<String>,
    },
    /// This host is back, and all that it had wait goes on from where it is now;
    /// [`Reply::Resumed`](crate::Reply::Resumed). With `connections`: these alone.
    Resume {
        /// As for [`Request::Suspend`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        connections: Vec<String>,
    },
    /// Lead connections from another address of this host than the others with their peers, both ways, as long as a
    /// path from there works; [`Reply::Placed`](crate::Reply::Placed).
    Place {
        /// As for [`Request::Suspend`]. None are refused.
        connections: Vec<String>,
        /// From there. With the others again where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<IpAddr>,
    },
    /// Drop the key that is remembered for an address (trust on first use), or forget a host;
    /// [`Reply::Forgotten`](crate::Reply::Forgotten).
    ForgetPeer {
        /// The address; or the host's number, key (or an unambiguous beginning of it) or name: then its key is dropped
        /// for all addresses, and with that all that was agreed on with it.
        address: String,
        /// Also where connections with it have moved, which end with that, or where leases depend on it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Give sockets to another host: one [`Reply::Moved`](crate::Reply::Moved) or [`Reply::Kept`](crate::Reply::Kept)
    /// each, as it is decided, then [`Reply::End`](crate::Reply::End).
    Move {
        /// As for [`Request::Suspend`]. None are refused.
        connections: Vec<String>,
        /// To this host: its number, key (or an unambiguous beginning of it), address, or name in the community.
        to: String,
        /// To the program there that receives under this name. Where absent they wait there, until a program asks for
        /// each by its UUID ([`Request::Rebuild`]).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receiver: Option<String>,
    },
    /// Give a whole process to another host, with its connections: [`Reply::MovedProcess`](crate::Reply::MovedProcess)
    /// when it goes on there, or an error that says why it stays, and goes on as it was.
    MoveProcess {
        /// Its number; of a cgroup, of any process in it.
        pid: u32,
        /// What goes with it.
        #[serde(default)]
        scope: ProcessScope,
        /// As for [`Request::Move`].
        to: String,
        /// The address at which it is met, and with which it goes. Where absent, that of its connections, or the only
        /// one at which it can be met.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<IpAddr>,
    },
    /// Receive sockets under a name: [`Reply::Receiving`](crate::Reply::Receiving), then a
    /// [`Reply::Received`](crate::Reply::Received) for each socket, with its descriptor, until the client hangs up.
    /// Nothing else is answered on that connection.
    Receive {
        /// The name; one client at a time may have it.
        name: String,
    },
    /// Give the socket that comes with this line to another host. One [`Reply::Moved`](crate::Reply::Moved) or
    /// [`Reply::Kept`](crate::Reply::Kept), when it is decided. The client keeps its own descriptor, which goes on
    /// where the socket is kept, and is at its end where it is moved.
    Give {
        /// As for [`Request::Move`].
        to: String,
        /// As for [`Request::Move`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receiver: Option<String>,
        /// What the receiver gets with it.
        #[serde(default, skip_serializing_if = "State::is_empty")]
        state: State,
    },
    /// See to it that another host is ready for the socket that comes with this line, which goes on meanwhile:
    /// [`Reply::Prepared`](crate::Reply::Prepared), or [`Reply::Kept`](crate::Reply::Kept) where the other host does
    /// not take it. A [`Request::Give`] to the same receiver takes less time then.
    Prepare {
        /// As for [`Request::Move`].
        to: String,
        /// As for [`Request::Move`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receiver: Option<String>,
    },
    /// Make a socket that can be moved: [`Reply::Socket`](crate::Reply::Socket), with its descriptor.
    Socket {
        /// Its family.
        family: Family,
        /// Its kind.
        kind: SocketKind,
        /// Whose address it is to have: `self`, `nearest`, `stable`, `auto`, `policy:NUMBER` (the migrator is asked),
        /// or a host as for [`Request::Move`].
        anchor: String,
        /// Whether peers are not to learn where it is, beside its anchor.
        #[serde(default)]
        hidden: bool,
    },
    /// Give the socket that comes with this line this address, and lease the port at its anchor;
    /// [`Reply::Bound`](crate::Reply::Bound). Needed where an anchor elsewhere is to lend a port that was not drawn by
    /// the kernel (decision 0018).
    Bind {
        /// Its address; the unspecified one stands for the anchor's. Port 0: any.
        address: SocketAddr,
    },
    /// The name of the socket that comes with this line, which it gets now if it has none;
    /// [`Reply::Uuid`](crate::Reply::Uuid).
    Uuid,
    /// Keep the socket that comes with this line, so that it outlives its program: until it is moved, a program asks
    /// for it ([`Request::Rebuild`]), or a while has passed. [`Reply::Exported`](crate::Reply::Exported).
    Export,
    /// A socket that waits for its program, since it was exported or came from another host;
    /// [`Reply::Socket`](crate::Reply::Socket), with its descriptor.
    Rebuild {
        /// Its UUID, or the first eight digits of it (SOCKMAND's programs have room for no more).
        uuid: String,
    },
    /// The sockets of a process that can be moved, or could; [`Reply::Sockets`](crate::Reply::Sockets).
    Sockets {
        /// Its number, in the daemon's own PID namespace.
        pid: u32,
    },
    /// Be asked where sockets are to be anchored: [`Reply::Migrator`](crate::Reply::Migrator), then a
    /// [`Reply::WantedAnchor`](crate::Reply::WantedAnchor) for each question, which is to be answered by
    /// [`Request::Anchor`] on this connection. One client at a time.
    Migrator,
    /// An answer to a [`Reply::WantedAnchor`](crate::Reply::WantedAnchor). Has no reply.
    Anchor {
        /// Which question.
        question: u64,
        /// As in [`Request::Socket`], but no policy. Refused where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        anchor: Option<String>,
    },
    /// The network namespace that comes with this line, in which there is nothing yet, is to have an address of an
    /// anchor's: [`Reply::Namespace`](crate::Reply::Namespace). The client stays as long as its program uses it.
    /// Nothing else is answered on that connection.
    Namespace {
        /// As for [`Request::Socket`], but not `self`.
        anchor: String,
        /// The family of the address.
        family: Family,
        /// Ports that are to be the program's, beside those that the kernel draws.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ports: Vec<u16>,
        /// The whole of this address of the anchor's, with all its ports; the unspecified address leaves it to the
        /// anchor which. It says the family then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<IpAddr>,
        /// As for [`Request::Socket`], of all that is in the namespace.
        #[serde(default)]
        hidden: bool,
    },
    /// What this host lends and what it has on lease; [`Reply::Anchors`](crate::Reply::Anchors).
    Anchors {
        /// Only what is lent and on lease, not what more there is to be lent, for which all sockets of the host are
        /// looked through.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        brief: bool,
    },
    /// Lend nothing new from now on, or do again; [`Reply::Anchors`](crate::Reply::Anchors).
    Lending {
        /// Whether to stop.
        stop: bool,
    },
    /// Something about the community; [`Reply::Community`](crate::Reply::Community).
    Community(CommunityRequest),
}

/// What a request is about, which decides who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// It only looks.
    Look,
    /// Sockets that come with it or are made for it, and a namespace of the client's own.
    Own,
    /// What all connections of this host do alike, and can be undone.
    Host,
    /// What a process has, which may be the client's own.
    Process(u32),
    /// What others have, and whom this host trusts.
    Others,
}

impl Request {
    /// What it is about.
    #[must_use]
    pub fn about(&self) -> About {
        match self {
            Self::Status
            | Self::Connections
            | Self::Peers
            | Self::Paths
            | Self::ExplainPaths { .. }
            | Self::Configuration
            | Self::Metrics
            | Self::Events(_)
            | Self::Anchors { .. }
            | Self::Community(CommunityRequest::List) => About::Look,
            Self::Receive { .. }
            | Self::Give { .. }
            | Self::Prepare { .. }
            | Self::Socket { .. }
            | Self::Bind { .. }
            | Self::Uuid
            | Self::Export
            | Self::Rebuild { .. }
            | Self::Namespace { .. }
            | Self::Anchor { .. } => About::Own,
            Self::Ping { .. } | Self::Handoff { .. } | Self::Suspend { .. } | Self::Resume { .. } => About::Host,
            Self::Sockets { pid } => About::Process(*pid),
            Self::ForgetPeer { .. }
            | Self::Place { .. }
            | Self::Move { .. }
            | Self::MoveProcess { .. }
            | Self::Migrator
            | Self::Lending { .. }
            | Self::Community(_) => About::Others,
        }
    }

    /// How many descriptors come with its line.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Give { .. }
            | Self::Prepare { .. }
            | Self::Bind { .. }
            | Self::Uuid
            | Self::Export
            | Self::Namespace { .. } => 1,
            _ => 0,
        }
    }
}

/// Which events are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsQuery {
    /// Only this many, the newest ones. All that are kept where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<usize>,
    /// Only events with a number above this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Go on with new ones as they happen, until the client closes the connection.
    #[serde(default)]
    pub follow: bool,
}
