//! What hosts say to one another when a socket moves between them: `docs/protocol.md` §9.
//!
//! Such words go as *records* in a stream of bytes between two hosts, which [`Message::Stream`](crate::Message::Stream)
//! carries.

use alloc::vec::Vec;
use core::net::SocketAddr;

mod codec;
mod stream;

use serde::{Deserialize, Serialize};

use crate::flow::FlowTuple;
use crate::hex;
use crate::lending::{Ends, Granted};
use crate::message::byte_enum;
use crate::snapshot::Family;

pub use stream::{MAX_RANGES, MAX_STRETCH, Received, StreamStanding, Stretch};

/// The 32 bytes of a host's static public key.
pub type Key = [u8; 32];
/// The MAC of a ticket (P-73).
pub type TicketMac = [u8; 16];

/// A move is named by its donor and a number that the donor drew by lot (P-70).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MoveName {
    /// Who had the socket when the move began.
    #[serde(with = "hex")]
    pub donor: Key,
    /// Drawn by lot.
    pub number: u64,
}

/// What lets its acceptor, and nobody else, commit a move (P-73).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Which move.
    pub name: MoveName,
    /// What holder and donor call the flow.
    pub flow: u64,
    /// Who may present it.
    #[serde(with = "hex")]
    pub acceptor: Key,
    /// The sequence number that the flow's binding has once it is committed.
    pub sequence: u32,
    /// How long the holder takes it, in seconds from its own announcement.
    pub lifetime: u32,
    /// Over all before it, under a key that donor and holder alone have.
    #[serde(with = "hex")]
    pub mac: TicketMac,
}

/// What the name of a receiver begins with where the socket belongs to a process that moves (protocol.md P-94). No
/// program's name does: it is no UTF-8.
pub const OF_A_PROCESS: u8 = 0xff;

/// What a donor says of a socket before anything is done with it. Size and options are used up once it is admitted, and
/// not kept over a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Who holds the binding of the far end.
    #[serde(with = "hex")]
    pub holder: Key,
    /// Where the donor knows the holder to be; port 0 where it does not, or is the holder itself.
    pub holder_at: SocketAddr,
    /// What holder and donor call the flow.
    pub flow: u64,
    /// The flow as the socket has it.
    pub tuple: FlowTuple,
    /// The family of the socket.
    pub family: Family,
    /// How long its snapshot will be, about, in bytes.
    #[serde(skip)]
    pub size: u32,
    /// The kinds of the socket options that it needs; at most [`MAX_OPTIONS`], what is beyond is not sent.
    #[serde(skip)]
    pub options: Vec<u16>,
    /// The name under which a program of the acceptor's takes sockets; at most [`MAX_RECEIVER`] bytes.
    pub receiver: Vec<u8>,
}

/// How holder and acceptor go on with a flow once its socket is the acceptor's (P-79).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The flow as its far end has it.
    pub far: FlowTuple,
    /// The holder's port in rewritten packets.
    pub wire_port: u16,
    /// The places of holder and acceptor at which the flow is native (P-14), if it is at home there again.
    pub home: Option<(u32, u32)>,
    /// The holder is not the far end and passes packets on for it: the far end may introduce the flow to the acceptor
    /// itself (P-87).
    pub passed_on: bool,
    /// It does, and the far end is not to learn where the acceptor is.
    pub hidden: bool,
}

/// A word about a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Kind 1, donor to acceptor: will you take this socket?
    Ask {
        /// Of the move.
        number: u64,
        /// Which socket.
        request: Request,
    },
    /// Kind 2, acceptor to donor: how it stands here.
    Answer {
        /// Of the move.
        number: u64,
        /// How.
        standing: AcceptorStanding,
        /// Why, where it is refused or failed.
        refusal: Option<Refusal>,
    },
    /// Kind 3, donor to holder: this acceptor may come for the flow.
    Announce {
        /// Of the move.
        number: u64,
        /// The flow.
        flow: u64,
        /// How long the donor wants its ticket to last, in seconds.
        lifetime: u32,
        /// Who may come.
        acceptor: Key,
    },
    /// Kind 4, holder to donor: the answer to that.
    Announced {
        /// Of the move.
        number: u64,
        /// The next sequence number of the flow's binding: that of the ticket, if the announcement is in force.
        sequence: u32,
        /// How long a ticket lasts from now, in seconds.
        lifetime: u32,
        /// Why it is not in force.
        refusal: Option<Refusal>,
    },
    /// Kind 5, donor to acceptor: a part of the snapshot.
    Part {
        /// Of the move.
        number: u64,
        /// Length of the whole snapshot, in bytes.
        total: u32,
        /// Where this part begins. Parts come in order.
        offset: u32,
        /// At most [`MAX_PART`].
        bytes: Vec<u8>,
    },
    /// Kind 6, donor to acceptor behind the last part: the ticket.
    Ticket(Ticket),
    /// Kind 7, holder to acceptor: what became of the ticket.
    Verdict {
        /// Of which move.
        name: MoveName,
        /// Ok: the move is committed, the socket is the acceptor's.
        outcome: Result<Terms, Refusal>,
    },
    /// Kind 8, donor to holder: the move is not to be committed any more.
    Recall {
        /// Of the move.
        number: u64,
        /// The flow.
        flow: u64,
        /// The donor has no socket any more: if the flow is still its own, the far end is to be told that it is over.
        gone: bool,
    },
    /// Kind 9, holder to donor: whose the socket is. Also said by itself once a move is committed.
    Decided {
        /// Of the move.
        number: u64,
        /// Whose.
        decision: Decision,
    },
    /// Kind 10, donor to holder: it has acted on the decision.
    Settled {
        /// Of the move.
        number: u64,
    },
    /// Kind 11, acceptor to holder: its copy of the socket is lost, or could not be woken.
    Surrender(Ticket),
    /// Kind 12, donor to acceptor: it is not to present the ticket, if it has not yet.
    Cancel {
        /// Of the move.
        number: u64,
    },
    /// Kind 13, acceptor to holder: it has the frozen socket, and presents the ticket.
    Present {
        /// As the donor has made it.
        ticket: Ticket,
        /// The acceptor's port in rewritten packets.
        wire_port: u16,
    },
    /// Kind 14, donor to acceptor: a part of what is needed of a process before its connections are moved (P-93).
    Load {
        /// Of the process's move.
        number: u64,
        /// Length of the whole load, in bytes.
        total: u32,
        /// Where this part begins. Parts come in order.
        offset: u32,
        /// At most [`MAX_PART`].
        bytes: Vec<u8>,
    },
    /// Kind 15, acceptor to donor: what became of a load, or of the process.
    Loaded {
        /// Of the process's move.
        number: u64,
        /// How it stands.
        standing: LoadStanding,
        /// For people at the donor; at most [`MAX_SENTENCE`] bytes of UTF-8, what is beyond is not sent.
        sentence: Vec<u8>,
    },
    /// Kind 16, tenant to anchor: lend me these endpoints, or: I still need them (P-84).
    Lease {
        /// Of the lease, drawn by lot by the tenant.
        number: u64,
        /// Which, if that matters.
        ends: Ends,
    },
    /// Kind 17, anchor to tenant: the answer to that, or that the lease is over.
    Leased {
        /// Of the lease.
        number: u64,
        /// What is lent, or why not.
        outcome: Result<Granted, Refusal>,
    },
    /// Kind 18, tenant to anchor: the endpoints are not needed any more.
    Return {
        /// Of the lease.
        number: u64,
    },
    /// Kind 19, tenant to anchor: from now on a connection of a leased endpoint is a flow between the two (P-86).
    /// Answered by [`Verdict`](Self::Verdict), under the name of the tenant and the flow.
    Claim {
        /// What the two call it, drawn by lot by the tenant.
        flow: u64,
        /// As the tenant's socket has it.
        tuple: FlowTuple,
        /// The tenant's port in rewritten packets.
        wire_port: u16,
        /// The far end is not to learn where the tenant is (P-87).
        hidden: bool,
    },
    /// Kind 20, acceptor to holder: the socket of a flow has ended, and nothing but what its system answers to late
    /// packets is left of it (P-121).
    Ending {
        /// What the two call it.
        flow: u64,
    },
    /// Kind 21, anchor to tenant, before a refusal: which ports it lends (P-129).
    Offer {
        /// Of the lease that is refused.
        number: u64,
        /// The first and the last of each range, at most [`MAX_OFFERED`].
        ports: Vec<(u16, u16)>,
    },
    /// Kind 22, donor to holder, behind an announcement: another move of the donor's brings this one along, and both
    /// are committed together (P-130).
    Belongs {
        /// Of the move that is announced.
        number: u64,
        /// What holder and donor call its flow.
        flow: u64,
        /// The number of the other.
        first: u64,
    },
    /// Kind 23, anchor to tenant: whether what is sent to endpoints that it lends comes to it (P-131).
    Reached {
        /// Of their lease.
        number: u64,
        /// It does.
        reached: bool,
    },
}

byte_enum! {
    /// How a process that is to be moved stands at its acceptor.
    LoadStanding {
        /// What has come is there and checked: its connections may follow.
        Ready = 1,
        /// It is not taken, and nothing of it is kept.
        Refused = 2,
        /// It goes on here.
        Running = 3,
    }
}

byte_enum! {
    /// How a move stands at its acceptor.
    AcceptorStanding {
        /// It will take the socket.
        Ready = 1,
        /// It will not take it, or could not rebuild it; it has no copy and presents no ticket.
        Refused = 2,
        /// It knows nothing of the move: it has no copy and presents no ticket, unless it has presented it before.
        Unknown = 3,
        /// The socket goes on there (P-145).
        GoesOn = 4,
        /// The holder has committed the move, and the copy is lost, with what was in it (P-145).
        Lost = 5,
    }
}

byte_enum! {
    /// Whose a socket is.
    Decision {
        /// The move is not committed, and will not be: the socket is the donor's.
        Revoked = 1,
        /// The move is committed.
        Committed = 2,
        /// The holder knows no such flow of the donor's: what there was is over.
        NoSuchFlow = 3,
    }
}

byte_enum! {
    /// Why a host does not do its part in a move. On the wire 0 stands for none.
    Refusal {
        /// It takes no sockets from this donor, or holds none for it.
        NotAllowed = 1,
        /// No room: too many moves, too many bytes, or no memory.
        NoRoom = 2,
        /// It lacks the address family.
        NoFamily = 3,
        /// It may not rebuild sockets.
        NoRights = 4,
        /// It cannot set an option that the socket needs.
        NoOption = 5,
        /// The address and port are taken there.
        Taken = 6,
        /// Nobody there is to receive the socket.
        NobodyReceives = 7,
        /// The acceptor does not reach the holder.
        HolderUnreached = 8,
        /// The snapshot is malformed, of a later version, or longer than agreed.
        BadSnapshot = 9,
        /// The socket could not be rebuilt.
        NotRestored = 10,
        /// The holder knows no such flow of the donor's.
        NoSuchFlow = 11,
        /// Another sequence number is the next.
        OtherSequence = 12,
        /// Another move of the flow is being decided.
        Busy = 13,
        /// No such move is announced: it never was, was recalled, or the holder has forgotten it.
        NotAnnounced = 14,
        /// The ticket is another acceptor's.
        NotYours = 15,
        /// The ticket is forged.
        Forged = 16,
        /// The ticket has expired.
        Expired = 17,
        /// The decision could not be kept.
        NotKept = 18,
        /// The donor wants it no more.
        Cancelled = 19,
        /// The socket could not be woken.
        NotWoken = 20,
        /// The far end's socket is on the acceptor itself.
        FarEnd = 21,
        /// The socket is of a kind, or in a state, that cannot be moved.
        Unmovable = 22,
        /// It lends no such endpoints.
        NotLent = 23,
        /// It is about to stop lending.
        Stopping = 24,
        /// The acceptor does not answer the donor. No host says it of another.
        AcceptorUnreached = 25,
    }
}

/// Most options in a request.
pub const MAX_OPTIONS: usize = 128;
/// Most bytes of a receiver's name.
pub const MAX_RECEIVER: usize = 64;
/// Most bytes of a snapshot in one record.
pub const MAX_PART: usize = 16_384;
/// Most bytes of a sentence for people.
pub const MAX_SENTENCE: usize = 4096;
/// Ranges of ports that an anchor names, at the most.
pub const MAX_OFFERED: usize = 16;
/// Length of kind and length in front of a record's body, in bytes.
pub const RECORD_HEADER_LEN: usize = 3;
/// Length of a ticket, in bytes.
pub const TICKET_LEN: usize = 32 + 8 + 8 + 32 + 4 + 4 + 16;
