//! Effects that a node asks its caller for, and what they are about.

pub(crate) mod chain;
pub(crate) mod relocation;
pub(crate) mod windows;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_handshake::{PublicKey, TunnelKeys};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::community::{CommunityKey, CommunitySecret, Statement};
pub use whimbrel_wire::{BindingId, PeerId};

use crate::base::id::LinkId;
use chain::ChainOp;
use relocation::MoveOp;
use windows::Comeback;

/// An effect that the caller carries out.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// On flows, and on what they are introduced by.
    Flow(FlowOp),
    /// On bindings.
    Binding(BindingOp),
    /// On addresses and routes.
    Address(AddressOp),
    /// On the tunnel.
    Tunnel(TunnelOp),
    /// Something is kept over a restart.
    Store(StoreOp),
    /// On a socket that changes hosts, or an endpoint that is lent. Comes behind what the node has asked for until
    /// then.
    Move(MoveOp),
}

macro_rules! ops {
    ($($kind:ident($op:ty)),*) => {
        $(impl From<$op> for Op {
            fn from(op: $op) -> Self {
                Self::$kind(op)
            }
        })*
    };
}

ops!(Flow(FlowOp), Binding(BindingOp), Address(AddressOp), Tunnel(TunnelOp), Store(StoreOp), Move(MoveOp));

/// What is asked about single flows, and the introductions in them.
#[derive(Clone, Debug, PartialEq)]
pub enum FlowOp {
    /// Look at ingress for introduction segments that carry one of these session indices; none: stop looking.
    ListenForIntroductions {
        /// This host's session indices.
        indices: Vec<u32>,
    },
    /// Inject an introduction into a flow (§4).
    Introduce {
        /// The flow, as this host has it.
        flow: FlowTuple,
        /// Where this host's end of it is.
        end: LocalEnd,
        /// The receiver's session index.
        index: u32,
        /// The nonce.
        nonce: u64,
    },
    /// Find the TCP sockets whose remote address is one of these, and hand what they know to
    /// [`crate::Node::handle_sockets`].
    FindSockets {
        /// For whom.
        peer: PeerId,
        /// The remote addresses.
        remotes: Vec<IpAddr>,
    },
    /// The flow may be a peer's in a moment: what that sends for it in the tunnel is to wait until it is installed
    /// (P-87).
    Expect {
        /// The flow, as this host has it.
        flow: FlowTuple,
        /// Whose; `None`: it is not to be expected any more.
        from: Option<PeerId>,
    },
    /// Send a keepalive in a held TCP flow, under its own names, past the hold (P-39). The peer's stack acknowledges
    /// it.
    AskNatively {
        /// The flow, as this host has it.
        flow: FlowTuple,
    },
    /// Make this flow known to the data plane and keep it over a restart.
    Install {
        /// As this host has it.
        flow: FlowTuple,
        /// The rest.
        entry: FlowEntry,
    },
    /// Forget a flow.
    Remove {
        /// As this host has it.
        flow: FlowTuple,
    },
    /// Tell how long ago something of a flow was last sent, or came to where it has moved, by
    /// [`OpDone::Used`](crate::OpDone::Used): the end of its socket does not tell when it is over (P-223).
    LookAtUse {
        /// As this host has it.
        flow: FlowTuple,
    },
    /// End a TCP flow's socket as a reset of the other end's would: that end is gone.
    Reset {
        /// As this host has it.
        flow: FlowTuple,
    },
    /// End a TCP flow's socket, and tell the other end by a reset, which goes the way that the flow goes now.
    Abort {
        /// As this host has it.
        flow: FlowTuple,
    },
    /// End the TCP sockets that connect to these addresses and have no answer yet, with an error, so that their
    /// programs try again at once (P-203).
    EndConnecting {
        /// Where to, and whether only those that do so from an address that this host does not have any more.
        remotes: BTreeMap<IpAddr, bool>,
    },
    /// Ask in these TCP flows as [`FlowOp::AskNatively`] does, and note what has come in each until then.
    AskUnaccepted {
        /// As this host has them.
        flows: Vec<FlowTuple>,
    },
    /// End those of these TCP sockets whose other end has acknowledged nothing but their first segment and sent nothing
    /// beside its answer to that, with an error: it has not heard that they are there, and is elsewhere (P-203).
    /// None in which something has come since it was asked in.
    EndUnaccepted {
        /// As this host has them.
        flows: Vec<FlowTuple>,
    },
}

/// What is asked about bindings.
#[derive(Clone, Debug, PartialEq)]
pub enum BindingOp {
    /// Put a binding in force; also attaches or detaches the programs where that is due.
    Set {
        /// Which.
        id: BindingId,
        /// What it is from now on.
        binding: Binding,
        /// Whether any flow is moved by it: without one nothing need be attached.
        moved: bool,
    },
    /// Forget a binding; with its first a peer.
    Remove {
        /// Which.
        id: BindingId,
    },
    /// Send a carrier probe: a segment as for an introduction, on a tuple that no socket has (P-20).
    Probe {
        /// The tuple on the wire.
        wire: FlowTuple,
        /// The receiver's session index.
        index: u32,
        /// The nonce.
        nonce: u64,
    },
    /// Have the sockets of a peer's flows that were sent data of late say what they have, once addresses are kept
    /// (P-218).
    Acknowledge {
        /// Whose.
        peer: PeerId,
    },
    /// Make the sockets of a peer's flows retransmit now, those that wait out a back-off.
    Kick {
        /// Whose.
        peer: PeerId,
        /// All that was in flight is lost, so those whose timer has not run out once have something to send again, too.
        lost: bool,
    },
    /// Watch what goes between these addresses from now on, whatever carries it, and tell by
    /// [`Node::handle_overdue`](crate::Node::handle_overdue) where something is not answered that usually is (P-260).
    Watch {
        /// Which.
        between: Between,
        /// How long an answer may take at the least; `None`: it is not to be watched any more.
        answer: Option<Duration>,
    },
    /// Tell when something last came between these addresses, which are watched, by
    /// [`OpDone::Heard`](crate::OpDone::Heard).
    LookAtTraffic {
        /// Which.
        between: Between,
    },
    /// The TCP flows of a peer go by another network from now on: tell what their senders had on the one before, by
    /// [`OpDone::Windows`](crate::OpDone::Windows), and have them go on with what they come back to (P-246, P-247).
    Windows {
        /// Whose.
        peer: PeerId,
        /// `None`: nothing is known of where they are now.
        comeback: Option<Comeback>,
    },
}

/// The addresses that this host and a peer talk between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Between {
    /// This host's.
    pub local: IpAddr,
    /// The peer's, as this host sees it.
    pub remote: IpAddr,
}

/// A destination that is reached by another interface than the routes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Led {
    /// Where to.
    pub to: IpAddr,
    /// The address of this host whose interface it is, and that what is new is sent from. Where it is of the other
    /// family, only the tunnel leads to the destination.
    pub by: IpAddr,
    /// What is sent where the routes lead does not arrive, so that everything is to go by that interface; else only
    /// what has no address of this host's yet, and what is sent from that address.
    pub all: bool,
}

/// What is asked about addresses. The sets are *desired states*: the caller makes the kernel equal to them.
#[derive(Clone, Debug, PartialEq)]
pub enum AddressOp {
    /// Virtual addresses of this host that flows still use, whether or not they are still its own: those that are not
    /// are to be kept (DESIGN §2).
    Keep {
        /// Sorted.
        addresses: Vec<IpAddr>,
    },
    /// Addresses that this host is leaving: what is sent from those that it still has is to go out by the interface
    /// that has them, wherever other packets are sent by now (P-38).
    LeaveFrom {
        /// Sorted.
        addresses: Vec<IpAddr>,
    },
    /// Virtual addresses of moved peers that must lead into the egress programs, with whether they go by tunnel (so
    /// need the tunnel's MTU).
    Reach {
        /// Address and whether through the tunnel; sorted.
        addresses: Vec<(IpAddr, bool)>,
    },
    /// Destinations that are to be reached by another interface than the routes say (P-232, P-236).
    Lead {
        /// Sorted.
        ways: Vec<Led>,
    },
    /// Addresses of hosts that have left this host's links and that it is to stand in for: to answer for them, and to
    /// hand datagrams to their control ports to [`Node::handle_intercepted`](crate::Node::handle_intercepted). One that
    /// somebody has, or that is on no link, is told by [`Node::stand_aside`](crate::Node::stand_aside).
    NeighbourProxy {
        /// Sorted.
        addresses: Vec<IpAddr>,
    },
    /// Ask a name server for the name that the configuration gives to this host, and tell
    /// [`Node::handle_named`](crate::Node::handle_named) what it answers.
    LookUp {
        /// Its key.
        key: PublicKey,
    },
}

/// What is asked about the tunnel.
#[derive(Clone, Debug, PartialEq)]
pub enum TunnelOp {
    /// The tunnel may receive with this session.
    AddKeys {
        /// Whose.
        peer: PeerId,
        /// This host's index of the session.
        receive_index: u32,
        /// Keys and tokens of both directions.
        keys: TunnelKeys,
        /// Both ends prefer AES-256-GCM; else it is ChaCha20-Poly1305.
        aes: bool,
    },
    /// The session is no longer received from.
    RemoveKeys {
        /// Its index here.
        receive_index: u32,
    },
    /// Where the tunnel sends what this binding leads, with which session of its peer's (by its index here).
    SetPath {
        /// Which.
        id: BindingId,
        /// The session whose keys are used.
        receive_index: u32,
        /// Where.
        path: TunnelPath,
    },
    /// Something about the chains of transforms of a peer's packets.
    Chain(ChainOp),
    /// A connection of TCP to a peer that datagrams go by (P-251). What becomes of it is told by
    /// [`Node::handle_connection`](crate::Node::handle_connection).
    Connect {
        /// The peer.
        peer: PeerId,
        /// Instead of whichever there is; `None`: none is needed any more. What is under way still arrives.
        wanted: Option<WantedConnection>,
    },
}

/// A connection of TCP that is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedConnection {
    /// The address of this host's that it is opened from.
    pub from: IpAddr,
    /// The link that it leaves by, whichever the routes prefer.
    pub link: Option<LinkId>,
    /// Where the peer takes connections.
    pub to: SocketAddr,
}

/// What is to be known over a restart.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreOp {
    /// Keep over a restart what is known of a peer.
    SavePeer(SavedPeer),
    /// Drop what was saved of a peer.
    ForgetPeer {
        /// Its key.
        key: PublicKey,
    },
    /// Keep over a restart whether this host is suspended.
    SaveSuspended(bool),
    /// Keep over a restart what is known of the community.
    SaveCommunity(Box<SavedCommunity>),
    /// Drop what was saved of it.
    ForgetCommunity,
    /// Keep over a restart that another host has passed a flow on, which goes directly now, and is to be told that it
    /// need not any more (P-87).
    SaveLeft {
        /// The flow.
        flow: FlowTuple,
        /// As it was. `None`: nothing is to be told any more.
        former: Option<FlowEntry>,
    },
    /// Remember which key answered at this address (trust on first use).
    RememberKey {
        /// The address that was asked.
        address: IpAddr,
        /// The key that answered.
        key: PublicKey,
    },
}

/// The place of an end that is nowhere: no flow is at home there.
pub(crate) const NOWHERE: u32 = u32::MAX;
/// The place of the other end of a flow that is at home nowhere since it was moved: none that an end ever is at, nor
/// [`NOWHERE`], which an end is at as long as its place is not confirmed.
pub(crate) const ASTRAY: u32 = u32::MAX - 1;

/// A place of each end, counted by that end (`docs/protocol.md` §5). A flow is native while the binding's places
/// are those that it was introduced at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Places {
    /// This host's place.
    pub local: u32,
    /// The peer's.
    pub peer: u32,
}

/// A flow that was introduced: all that the data plane must know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEntry {
    /// Whose it is.
    pub peer: PeerId,
    /// What the ends call it between them: the introducer's nonce.
    pub name: u64,
    /// The places at which it is native.
    pub home: Places,
    /// The tuple that the peer's socket has (its own view).
    pub peer_tuple: FlowTuple,
    /// Which of the peer's bindings leads it, counted beside the first (P-186). Not saved: a daemon that is started
    /// anew begins with the first.
    #[serde(skip)]
    pub side: u8,
    /// Who has it wait, whatever the binding says (P-48).
    #[serde(default, skip_serializing_if = "is_usual")]
    pub waits: Waits,
    /// What the caller's policy wants for it.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub manner: Manner,
    /// This end's port in rewritten packets.
    pub wire_local_port: u16,
    /// The peer's port in rewritten packets.
    pub wire_remote_port: u16,
    /// Where this host's end is.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub end: LocalEnd,
    /// The peer is not the far end, but passes packets on for it: the far end may introduce the flow (P-87).
    #[serde(default, skip_serializing_if = "is_usual")]
    pub passed_on: bool,
    /// The peer passes packets on, and the far end is not to learn where this host is: introductions in the flow are
    /// not for this host.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub hidden: bool,
    /// The peer is a gateway, and the far end's socket is a host's behind it: it lives on when the peer starts anew
    /// (P-123).
    #[serde(default, skip_serializing_if = "is_usual")]
    pub beyond: bool,
    /// The peer has named it after it had left the flow's far address (P-204): whatever comes from there is not the
    /// peer's (P-206).
    #[serde(default, skip_serializing_if = "is_usual")]
    pub late: bool,
    /// This host's socket takes what anybody sends: the flow is what it has with one remote endpoint (P-220).
    #[serde(default, skip_serializing_if = "is_usual")]
    pub unconnected: bool,
    /// Of such a flow: this host has begun it, and introduces it again where its peer has ended it (P-223).
    #[serde(default, skip_serializing_if = "is_usual")]
    pub begun: bool,
}

impl FlowEntry {
    /// Whether its end here is at home at a place of this host's. Where it is another host's, or in a namespace of its
    /// own, it is carried from there wherever this host is.
    pub(crate) fn is_at_a_place(&self) -> bool {
        matches!(self.end, LocalEnd::Here | LocalEnd::Passing)
    }

    /// A flow with a peer whose ends both are sockets of their hosts' own. `ports`: this end's and the peer's in
    /// rewritten packets.
    pub(crate) fn new(peer: PeerId, name: u64, home: Places, peer_tuple: FlowTuple, ports: (u16, u16)) -> Self {
        Self {
            peer,
            name,
            home,
            peer_tuple,
            side: 0,
            waits: Waits::default(),
            manner: Manner::default(),
            wire_local_port: ports.0,
            wire_remote_port: ports.1,
            end: LocalEnd::Here,
            passed_on: false,
            hidden: false,
            beyond: false,
            late: false,
            unconnected: false,
            begun: false,
        }
    }

    /// What leads it.
    #[must_use]
    pub fn binding(&self) -> BindingId {
        BindingId::side(self.peer, self.side)
    }
}

/// What most flows have is not written down for each.
fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Where this host's end of a flow is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalEnd {
    /// A socket in this host's own network namespace.
    #[default]
    Here,
    /// A socket in an endpoint namespace of this host: it was moved here, or lent its address.
    Endpoint,
    /// Another host's socket, for which this one answers to the peer: it runs nothing itself.
    Behind,
    /// The same of a host that this one is the router of, so that the flow's packets pass here by themselves (P-100).
    Passing,
}

/// Who has a single flow wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// This host.
    pub here: bool,
    /// The peer.
    pub there: bool,
}

impl Waits {
    /// Whether it waits at all.
    #[must_use]
    pub fn any(self) -> bool {
        self.here || self.there
    }
}

/// How packets of moved flows are carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// Not at all, for now: the data plane swallows them, so that TCP backs off undisturbed.
    Hold,
    /// In UDP, through the TUN device.
    #[default]
    Tunnel,
    /// In UDP, but a flow on which the peer has been heard rewritten is answered rewritten: the peer's own packet has
    /// then opened whatever firewall stands before it.
    FollowRewrite,
    /// With addresses replaced.
    Rewrite,
}

/// A binding, as the data plane has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The places now. Flows whose home they are stay native.
    pub places: Places,
    /// For all other flows of the peer.
    pub carrier: Carrier,
    /// This host's address in rewritten packets; unspecified where nothing can arrive rewritten, or is not to (P-40).
    pub local_locator: IpAddr,
    /// The peer's address.
    pub peer_locator: IpAddr,
    /// The peer's address as far as it has shown that it is there (P-18), which alone may be told to programs; `None`:
    /// it has shown nothing since this node was restored.
    pub proven: Option<IpAddr>,
    /// This host's address towards the peer, translated or not.
    pub source: Option<IpAddr>,
    /// Former pairs (local, peer) that rewritten packets may still arrive on, newest first.
    pub former: Vec<(IpAddr, IpAddr)>,
    /// While on hold: the first packet that comes in on a held flow under its own names is to be told, by
    /// [`Node::handle_heard_natively`](crate::Node::handle_heard_natively) (P-39).
    pub listens: bool,
    /// The sockets of its flows are not to give up, however long nothing is acknowledged (P-46).
    pub parked: bool,
}

/// Where the tunnel leads what a binding leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelPath {
    /// The session's index at the peer.
    pub send_index: u32,
    /// Source address of the outer datagrams.
    pub source: Option<IpAddr>,
    /// The link that they leave by, whichever the routes prefer.
    pub link: Option<LinkId>,
    /// The peer's control port as seen from here.
    pub remote: SocketAddr,
    /// Bytes that may be sent there from now on, before the path is confirmed (P-18); `None`: confirmed.
    pub allowance: Option<u64>,
    /// Whether packets are sealed, or carried plain with a token.
    pub sealed: bool,
    /// Another way to the same peer, confirmed: each sealed datagram goes there as well, and the peer takes that which
    /// comes first (P-262).
    pub second: Option<SecondWay>,
}

/// A way that the tunnel leads what it sends by another one as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondWay {
    /// Source address of the outer datagrams.
    pub source: Option<IpAddr>,
    /// The link that they leave by, whichever the routes prefer.
    pub link: Option<LinkId>,
    /// The peer's control port as seen from here.
    pub remote: SocketAddr,
}

/// Where the sequence numbers of a TCP connection began, as its socket at this end can tell: TCP_REPAIR makes both
/// wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketNumbers {
    /// As this host has it.
    pub flow: FlowTuple,
    /// This end's initial number where it opened the connection, one more where it accepted it.
    pub first_sent: u32,
    /// One more than the other end's initial number.
    pub first_received: u32,
    /// How many segments have come to the socket, in 32 bits.
    pub heard: u32,
    /// As its TCP has measured it; zero: not yet.
    pub round_trip: Duration,
}

/// What survives a restart of the daemon about a peer. Flows survive as the [`FlowOp::Install`] that made them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPeer {
    /// Its number.
    pub id: PeerId,
    /// Its key.
    pub key: PublicKey,
    /// Where it was last reached.
    pub remote: SocketAddr,
    /// At which port it takes connections of TCP (P-250); 0: at none.
    #[serde(default)]
    pub tcp_port: u16,
    /// From which address.
    pub source: Option<IpAddr>,
    /// Its other addresses.
    pub locators: Vec<IpAddr>,
    /// Those that it has told before, the last first (P-215).
    #[serde(default)]
    pub former_locators: Vec<IpAddr>,
    /// Last sequence number of an update sent to it.
    pub sequence_sent: u32,
    /// Last one accepted from it.
    pub sequence_accepted: u32,
    /// Places now.
    pub places: Places,
    /// The carrier in force.
    pub carrier: Carrier,
    /// Former pairs (local, peer), as in [`Binding::former`].
    pub former: Vec<(IpAddr, IpAddr)>,
    /// Whether it has said that it goes away, and not come back since (P-44).
    pub absent: bool,
    /// Whether it is not heard any more, and its flows wait for it (P-45).
    pub silent: bool,
    /// The life of its sockets, as it said last (P-47).
    pub life: u64,
    /// What names its memory of flows of hosts behind it, as it said last (P-123).
    pub memory: u64,
    /// Numbers of the last words about single flows that wait, sent and seen (P-48).
    pub waiting: (u32, u32),
    /// This host's control endpoint as the peer sees it.
    pub observed: Option<SocketAddr>,
    /// Where the peer was or is.
    pub known_places: Vec<KnownPlace>,
    /// This host's addresses at places that flows are at home at.
    pub own_places: Vec<(u32, IpAddr)>,
}

/// Where a peer was or is, by the number of the place (`docs/protocol.md` §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPlace {
    /// The number.
    pub number: u32,
    /// Source that the peer gave its update.
    pub claimed: SocketAddr,
    /// Source that the update had when it arrived.
    pub observed: SocketAddr,
    /// Whether something translates what comes from there. It is written down when the place is made, and stays so
    /// whatever the two sources come to be (P-135).
    pub translated: bool,
}

impl KnownPlace {
    /// A place of this number, of an update that claimed one source and was observed under another. Where even their
    /// ports differ something is on the way.
    #[must_use]
    pub fn new(number: u32, claimed: SocketAddr, observed: SocketAddr) -> Self {
        Self { number, claimed, observed, translated: claimed != observed }
    }
}

/// Which addresses programs are shown for a flow that has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    /// Those that its sockets were made with.
    #[default]
    Virtual,
    /// Those where the two ends are now.
    Real,
    /// The former; and they go on to stand for the two ends in what the same program opens later.
    Lasting,
}

/// How a flow is treated once it is introduced. It goes with the flow to the data plane and the journal, and means
/// nothing to the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Manner {
    /// What is shown of it.
    pub view: View,
    /// Whether it is given up where, after a move, somebody else opens a connection under its very names.
    pub gives_way: bool,
}

/// What a host knows of its community over a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedCommunity {
    /// Which.
    pub community: CommunityKey,
    /// At a steward.
    pub secret: Option<CommunitySecret>,
    /// What is known of its hosts, and where they were met last.
    pub statements: Vec<(Statement, Option<SocketAddr>)>,
}
