//! What the transaction that moves a socket asks its caller to do, and what it is told of it.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_handshake::PublicKey;
use whimbrel_wire::lending::Ends;
use whimbrel_wire::moving::{MoveName, Request, Ticket};
use whimbrel_wire::snapshot::Family;
use whimbrel_wire::{FlowTuple, Transport};

use crate::base::flow_name::FlowName;
use crate::base::op::PeerId;

/// Which sockets a host takes part in moving.
#[derive(Clone, Debug)]
pub struct Moving {
    /// Whether it takes part at all: as a donor, and as a holder for its peers.
    pub enabled: bool,
    /// Whose sockets it takes, beside those of its community.
    pub accept_from: Vec<PublicKey>,
    /// Moves that it takes part in at a time, in each role.
    pub most: usize,
    /// Bytes of snapshots that it takes at a time, of all donors.
    pub bytes: u64,
    /// Whether it takes whole processes of those whose sockets it takes: that lets them run what they like.
    pub processes: bool,
    /// How it lends endpoints, if it does.
    pub lending: Option<Lending>,
}

/// How an anchor lends endpoints.
#[derive(Clone, Debug)]
pub struct Lending {
    /// To whom, beside the hosts of its community.
    pub to: Vec<PublicKey>,
    /// Leases that one host may have.
    pub most: usize,
    /// How long a lease lasts that is not asked for again.
    pub lifetime: Duration,
    /// The ranges of ports that it lends, the first and the last of each: who asks for another is told them (P-129).
    pub ports: Vec<(u16, u16)>,
}

/// A lease, by who has it and a number that this host drew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseName {
    /// Who has the endpoints.
    pub tenant: PublicKey,
    /// Drawn by lot.
    pub number: u64,
}

impl LeaseName {
    /// What the flow of a lease is called, where its endpoint has gone with a socket.
    pub(crate) const fn flow(&self) -> FlowName {
        FlowName::new(self.tenant, self.number)
    }
}

/// What depends on an anchor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependents {
    /// What is lent, and to whom.
    pub lent: Vec<(PublicKey, Ends)>,
    /// The flows that it passes on for others, as their far ends have them, and who has the sockets.
    pub passed_on: Vec<(PublicKey, FlowTuple)>,
}

/// What an anchor knows of a lease over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLease {
    /// Whose it is.
    pub name: LeaseName,
    /// What is lent.
    pub ends: Ends,
}

/// What a tenant knows of a lease over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTenancy {
    /// Of the lease.
    pub number: u64,
    /// Whose the endpoints are.
    pub anchor: PublicKey,
    /// Where that was.
    pub anchor_at: Option<SocketAddr>,
    /// What is lent.
    pub ends: Ends,
    /// It came with a socket without another end, and is of this transport alone (P-96).
    pub moved: Option<Transport>,
    /// It has gone on with that to another host, and stays for a moment (P-115).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parts: bool,
}

/// Endpoints of another's that this host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rented {
    /// Of the lease.
    pub number: u64,
    /// Whose they are.
    pub anchor: PublicKey,
    /// Which.
    pub ends: Ends,
    /// They came with a socket without another end, and are of this transport alone.
    pub moved: Option<Transport>,
}

impl SavedTenancy {
    /// What the anchor and this host call the lease. Who gives a socket away names that of its endpoint, so that the
    /// number says nothing without the anchor (P-132).
    #[must_use]
    pub const fn lease(&self) -> FlowName {
        FlowName::new(self.anchor, self.number)
    }
}

impl Rented {
    /// What the anchor and this host call the lease.
    #[must_use]
    pub const fn lease(&self) -> FlowName {
        FlowName::new(self.anchor, self.number)
    }
}

impl Default for Moving {
    fn default() -> Self {
        Self { enabled: false, accept_from: Vec::new(), most: 16_384, bytes: 1 << 30, processes: false, lending: None }
    }
}

/// A socket that is to be given away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gift {
    /// The flow as the socket has it.
    pub tuple: FlowTuple,
    /// The family of the socket.
    pub family: Family,
    /// How long its snapshot will be, about, in bytes.
    pub size: u32,
    /// The kinds of socket options that it needs, as in its snapshot.
    pub options: Vec<u16>,
    /// The name under which a program of the acceptor's takes it; 64 bytes at the most.
    pub receiver: Vec<u8>,
    /// What this host calls the flow with who holds the binding of the far end: the peer at the far end, the anchor
    /// that lends the endpoint, or this host.
    pub flow: FlowName,
    /// Where the holder is, if no peer has this key yet.
    pub holder_at: Option<SocketAddr>,
    /// Who is to have the socket.
    pub acceptor: PublicKey,
    /// Where the acceptor is, if no peer has this key yet.
    pub acceptor_at: Option<SocketAddr>,
    /// The number of the move that this one belongs to: where both have the same holder it commits both (P-130). The
    /// acceptor does not present the ticket of that one before it has this socket as well.
    pub after: Option<u64>,
}

/// Why a socket is not even tried to be given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotGiven {
    /// This host takes no part in moves.
    #[error("this host is not configured to move sockets")]
    Disabled,
    /// The acceptor is this host itself.
    #[error("the socket is on this host already")]
    Here,
    /// The flow is being moved already.
    #[error("the connection is being moved already")]
    Moving,
    /// The acceptor is a stranger to this host's community, and nothing was granted to it.
    #[error("that host does not belong to this host's community, and was granted no connection")]
    Stranger,
    /// As many moves are under way as may be.
    #[error("too many connections are being moved at once")]
    TooMany,
}

/// An effect of a move that the caller carries out. What fails has changed nothing, unless it says otherwise. Whose
/// socket it is follows from the name: the donor's own key, or another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveOp {
    /// Acceptor: is there room, the address family, the right to rebuild sockets, somebody to receive it? Nothing is
    /// done yet, but what is found is kept free until [`MoveOp::Restore`] or the end of the move.
    Admit {
        /// Which move.
        name: MoveName,
        /// Which socket.
        request: Request,
    },
    /// Donor: keep out what comes in for the flow, which may be kept for whoever has the socket in the end, hold the
    /// program, freeze the socket.
    Freeze {
        /// Which move.
        name: MoveName,
        /// Which socket.
        flow: FlowTuple,
    },
    /// Donor: write the frozen socket down; [`OpDone::Dumped`].
    Dump {
        /// Which move.
        name: MoveName,
    },
    /// Acceptor: rebuild the socket, which says nothing before it is thawed. A malformed snapshot is refused as
    /// [`Refusal::BadSnapshot`].
    Restore {
        /// Which move.
        name: MoveName,
        /// Which socket.
        request: Request,
        /// As [`MoveOp::Dump`] has made it.
        snapshot: Vec<u8>,
    },
    /// Either: the socket goes on. The donor's program and what was held come to it; at the acceptor it is handed to
    /// whoever is to receive it. Where this fails the socket is lost.
    Thaw {
        /// Which move.
        name: MoveName,
    },
    /// Either: this copy of the socket ends without a word to the far end. Where this fails it stays at rest for ever.
    Destroy {
        /// Which move.
        name: MoveName,
        /// Donor: to whom that goes which was held, and what still comes in for the flow.
        forward: Option<PublicKey>,
    },
    /// Holder: the flow's only socket is lost. Tell the far end that the connection is over, as a reset of that socket
    /// would.
    CloseFarEnd {
        /// What the holder calls the flow, with whom it is one in its tables.
        flow: FlowName,
    },
    /// Donor: keep this over a restart.
    SaveDonation(SavedDonation),
    /// Donor: it need not be kept any more.
    ForgetDonation {
        /// Which move.
        name: MoveName,
    },
    /// Acceptor: keep this over a restart.
    SaveAcceptance(SavedAcceptance),
    /// Acceptor: it need not be kept any more.
    ForgetAcceptance {
        /// Which move.
        name: MoveName,
    },
    /// Holder: keep these over a restart, in one write, in this order, each instead of what was kept of the flow
    /// ([`SavedHeld::formerly`]). Where it fails, none is kept.
    SaveHeld(Vec<SavedHeld>),
    /// Holder: it need not be kept any more.
    ForgetHeld {
        /// What the holder and the owner call the flow.
        flow: FlowName,
    },
    /// Anchor: find such endpoints that are free, keep everybody else from them, and lead what comes for them to the
    /// tenant; keep that over a restart. [`OpDone::Lent`]. Definite ones may be lent under this name already: then
    /// nothing changes.
    Lend {
        /// Which lease.
        name: LeaseName,
        /// Who has it.
        peer: PeerId,
        /// Which endpoints.
        ends: Ends,
        /// They are those of a socket of this host's own that is with the tenant now: of this transport alone, and
        /// connections that were made with it stay where they are.
        moved: Option<Transport>,
    },
    /// Anchor: the endpoints of a lease are this host's own again.
    TakeBack {
        /// Which lease.
        name: LeaseName,
    },
    /// Tenant: make a place for endpoints of an anchor's, and keep that over a restart. Where it is not fresh: fail, as
    /// [`Refusal::Cancelled`], if nobody needs them any more.
    Occupy {
        /// Of the lease.
        number: u64,
        /// Whose they are.
        anchor: PublicKey,
        /// Where that is.
        anchor_at: Option<SocketAddr>,
        /// The same, as a peer.
        peer: PeerId,
        /// Which.
        ends: Ends,
        /// They come with a socket without another end: of this transport alone.
        moved: Option<Transport>,
        /// It has not been asked for before.
        fresh: bool,
    },
    /// Tenant: keep over a restart what has become of a lease that there is a place for.
    SaveTenancy(SavedTenancy),
    /// Tenant: the endpoints of a lease are not to be used any more.
    Vacate {
        /// What the anchor and this host call it.
        lease: FlowName,
    },
}

impl MoveOp {
    /// What it is, in a word, and the number of the move that it belongs to, where it belongs to one: for logs.
    #[must_use]
    pub fn kind(&self) -> (&'static str, Option<u64>) {
        let (kind, name) = match self {
            Self::Admit { name, .. } => ("admit", Some(name)),
            Self::Freeze { name, .. } => ("freeze", Some(name)),
            Self::Dump { name } => ("dump", Some(name)),
            Self::Restore { name, .. } => ("restore", Some(name)),
            Self::Thaw { name } => ("thaw", Some(name)),
            Self::Destroy { name, .. } => ("destroy", Some(name)),
            Self::CloseFarEnd { .. } => ("close-far-end", None),
            Self::SaveDonation(saved) => ("save-donation", Some(&saved.name)),
            Self::ForgetDonation { name } => ("forget-donation", Some(name)),
            Self::SaveAcceptance(saved) => ("save-acceptance", Some(&saved.ticket.name)),
            Self::ForgetAcceptance { name } => ("forget-acceptance", Some(name)),
            Self::SaveHeld(_) => ("save-held", None),
            Self::ForgetHeld { .. } => ("forget-held", None),
            Self::Lend { name, .. } => return ("lend", Some(name.number)),
            Self::TakeBack { name } => return ("take-back", Some(name.number)),
            Self::Occupy { number, .. } => return ("occupy", Some(*number)),
            Self::SaveTenancy(saved) => return ("save-tenancy", Some(saved.number)),
            Self::Vacate { lease } => return ("vacate", Some(lease.value())),
        };
        (kind, name.map(|name| name.number))
    }
}

/// What a restarted daemon finds of the socket of a move that was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It goes on here.
    Awake,
    /// It is here, frozen.
    Frozen,
    /// It is here, frozen, and its ticket is not to be presented yet: [`MoveOp::SaveAcceptance`] is asked for once
    /// more, and answered when it is.
    Waiting,
    /// It is not here.
    Gone,
}

/// What a donor knows over a restart: its socket may be frozen, and its ticket out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedDonation {
    /// Which move.
    pub name: MoveName,
    /// The flow as the socket has it.
    pub tuple: FlowTuple,
    /// What the donor calls it with who holds the binding.
    pub flow: FlowName,
    /// Where that is.
    pub holder_at: Option<SocketAddr>,
    /// Who is to have the socket.
    pub acceptor: PublicKey,
}

/// What an acceptor knows over a restart: it may have presented the ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedAcceptance {
    /// Which socket.
    pub request: Request,
    /// Which move, and what lets it be committed.
    pub ticket: Ticket,
    /// This host's port in rewritten packets.
    pub wire_port: u16,
}

/// What a holder knows over a restart of a flow that was moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedHeld {
    /// What the holder and who has the socket call the flow.
    pub flow: FlowName,
    /// The flow as its far end has it, where that runs nothing and this host lends the endpoint.
    pub far: Option<FlowTuple>,
    /// The owner's port in rewritten packets.
    pub wire_port: u16,
    /// The sequence number of the binding.
    pub sequence: u32,
    /// The move that was committed last.
    pub last: MoveName,
    /// Moves whose donors have not said that they know, and where these are.
    pub unsettled: Vec<(MoveName, Option<SocketAddr>)>,
    /// The far end is not to learn where the socket is (P-87).
    pub hidden: bool,
    /// The socket has ended (P-121).
    pub ending: bool,
}

impl SavedHeld {
    /// What the flow was called before the last move: nothing is to be kept under that any more, unless it is what the
    /// flow is called now. A host that has given a flow away gets no other one of that name as long as this one is
    /// held.
    #[must_use]
    pub fn formerly(&self) -> FlowName {
        self.flow.with(PublicKey::from(self.last.donor))
    }
}
