//! What becomes of sockets that change hosts, and of endpoints that are lent.

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::Ends;
use whimbrel_wire::moving::{LoadStanding, MoveName, Refusal};

use crate::base::flow_name::FlowName;

/// Something about a move that people or programs at this host want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveEvent {
    /// Donor: the acceptor has the socket.
    Given {
        /// Which move.
        name: MoveName,
        /// Who has it.
        to: PublicKey,
    },
    /// Donor: the acceptor has the socket by the holder's word, and it does not go on there, or that has not been
    /// heard. This is the only copy of what was in it that is known of.
    LostThere {
        /// Which move.
        name: MoveName,
        /// Whose it was.
        to: PublicKey,
        /// Why: [`Refusal::AcceptorUnreached`] where nothing was heard.
        why: Refusal,
        /// The socket as it was written down (`docs/snapshot.md`).
        snapshot: Vec<u8>,
    },
    /// Donor: the acceptor says after all what has become of a socket of which nothing was heard
    /// ([`MoveEvent::LostThere`]).
    HeardOf {
        /// Which move.
        name: MoveName,
        /// Whose it is, or was.
        to: PublicKey,
        /// Whether it goes on there, or why it does not.
        outcome: Result<(), Refusal>,
    },
    /// Donor: acceptor and holder are ready for a socket that goes once that is said
    /// ([`Node::give_prepared`](crate::Node::give_prepared)).
    Prepared {
        /// Which move.
        name: MoveName,
    },
    /// Donor: the socket stays here and goes on.
    Kept {
        /// Which move.
        name: MoveName,
        /// Why.
        why: Refusal,
    },
    /// Donor: nobody can tell yet whose the socket is, since the holder does not answer. It rests until then (decision
    /// 0015).
    Undecided {
        /// Which move.
        name: MoveName,
        /// Who does not answer.
        holder: PublicKey,
    },
    /// Acceptor: the socket goes on here.
    Taken {
        /// Which move.
        name: MoveName,
    },
    /// Acceptor: the socket does not come.
    NotTaken {
        /// Which move.
        name: MoveName,
        /// Why.
        why: Refusal,
    },
    /// Holder: a flow's socket is with another host now.
    Rebound {
        /// What the holder and that one call the flow.
        flow: FlowName,
        /// As its far end has it, if it is there still.
        far: Option<FlowTuple>,
    },
    /// Either end: the only copy of a socket is lost. The far end has been told that the connection is over, or there
    /// is none.
    Lost {
        /// Which move.
        name: MoveName,
    },
    /// Acceptor: what a process needs is there, ahead of its connections. To be answered by
    /// [`Node::answer_load`](crate::Node::answer_load).
    Loaded {
        /// The process's move.
        name: MoveName,
        /// What its donor has sent.
        bytes: Vec<u8>,
    },
    /// Donor: the acceptor says how a process stands, or says nothing at all.
    LoadAnswered {
        /// Who says so.
        from: PublicKey,
        /// Of [`Node::send_load`](crate::Node::send_load).
        number: u64,
        /// How it stands.
        standing: LoadStanding,
        /// For people.
        sentence: String,
    },
    /// Anchor: endpoints are lent.
    Lent {
        /// To whom.
        to: PublicKey,
        /// Which.
        ends: Ends,
    },
    /// Anchor: a lease is over.
    LeaseOver {
        /// Whose it was.
        to: PublicKey,
    },
    /// Tenant: endpoints of an anchor's are this host's to use.
    Leased {
        /// Of the lease.
        number: u64,
        /// Whose they are.
        anchor: PublicKey,
        /// Which.
        ends: Ends,
    },
    /// Tenant: the anchor lends no such endpoints, or not any more.
    NotLeased {
        /// Of the lease.
        number: u64,
        /// Who does not.
        anchor: PublicKey,
        /// Which were asked for, or were on lease.
        ends: Ends,
        /// Why.
        why: Refusal,
        /// The ranges of ports that it lends, where it has said them: the first and the last of each.
        offered: Vec<(u16, u16)>,
    },
    /// Tenant: whether what is sent to endpoints that it has on lease comes to the anchor is not as it was.
    Reached {
        /// Whose they are.
        anchor: PublicKey,
        /// Which.
        ends: Ends,
        /// It does.
        reached: bool,
    },
    /// Tenant: it needs the endpoints of a lease no more, and has returned them.
    Returned {
        /// Of the lease.
        number: u64,
        /// Whose they are.
        anchor: PublicKey,
    },
    /// Tenant: a connection of a leased endpoint is a flow of this host and the anchor now, or cannot be.
    Claimed {
        /// As the socket has it.
        tuple: FlowTuple,
        /// Why it cannot.
        outcome: Result<(), Refusal>,
    },
    /// An op failed.
    OpFailed {
        /// What was asked, for people.
        what: &'static str,
        /// What came of it.
        error: String,
    },
}
