//! Facts that layers and roles tell those above them.

use std::collections::BTreeSet;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{MoveName, Record, Terms};

use crate::base::flow_name::FlowName;
use crate::base::grant::Grant;
use crate::base::op::relocation::LeaseName;
use crate::base::op::{FlowEntry, PeerId};

/// A fact. Whoever finds it out goes on; the node tells those whom it concerns once that is done, in order.
#[derive(Clone, Debug)]
pub(crate) enum Signal {
    /// Introductions may come for another session of a peer's.
    Listening,
    /// Flows of a peer wait by request, or go on.
    Waiting(PeerId),
    /// A peer has other ideas of where this host is.
    Misled(PeerId),
    /// There are flows with a peer that there were none with.
    FlowsBegun,
    /// A flow that sections of the user's file may mean is one with a peer from now on, or has another name there.
    FlowNamed { peer: PeerId, flow: FlowTuple },
    /// An end's socket of an introduced flow is gone: whoever has the other, it moves no more.
    FlowEnded(FlowName),
    /// The socket of a moved flow is closed, and its last acknowledgements are under way.
    Closing(FlowName),
    /// Sets of addresses that flows need may be others.
    FlowsGone,
    /// A flow goes from end to end from now on, that another host has passed on, or goes so still.
    Direct { flow: FlowTuple, former: Option<FlowEntry> },
    /// A session with a peer is confirmed.
    SessionUp(PeerId),
    /// There is no session with a peer any more.
    SessionsGone(PeerId),
    /// A path to a peer that is kept ready works from now on, or does no more, or is none any more.
    PathChanged(PeerId),
    /// The peer has answered by a path that this host keeps ready.
    PathAnswered(PeerId),
    /// Something that a peer usually answers was not: a flow of its stands still, or a check of its path.
    Overdue(PeerId),
    /// The network is another.
    NetworkChanged,
    /// This host was away, and is back.
    Returned,
    /// This host tells a peer that it is elsewhere.
    Moving(PeerId),
    /// A peer does not answer that.
    Unanswered(PeerId),
    /// It does.
    Answered(PeerId),
    /// A peer is not heard any more (P-45).
    Silent(PeerId),
    /// A stranger may be given a connection, or this host one of a stranger's, once.
    Granted(Grant),
    /// The hosts of the community are these, beside this one, and others were `revoked`. `limited`: there is one.
    Members { members: BTreeSet<PublicKey>, revoked: BTreeSet<PublicKey>, limited: bool },
    /// A host says something by the reliable channel, be it this one.
    Said { from: PublicKey, record: Record },
    /// A host has forgotten what it was told by it: all that it is to answer is said anew.
    Forgotten(PublicKey),
    /// The table of flows has a flow be one with its owner, or cannot.
    Led { flow: FlowName, result: Result<Terms, Unled> },
    /// The table of flows has a flow that was moved here be one with its holder, or cannot.
    Adopted { name: MoveName, result: Result<(), String> },
    /// A socket of this host's own without another end is with the host of this name from now on (P-96). What comes of
    /// that is [told](Self::Led).
    EndpointLed { flow: FlowName, far: FlowTuple },
    /// Such a socket of another host's comes here by this move. What comes of that is [told](Self::Adopted).
    EndpointComes { name: MoveName, flow: FlowName, tuple: FlowTuple },
    /// It has gone on to another host, and its endpoint with it (P-115).
    EndpointGone(FlowName),
    /// A lease is over by which the endpoint of a socket was its owner's.
    EndpointReturned(FlowName),
    /// A lease is to end, since its endpoint is another host's, or has another name.
    LeaseOver(LeaseName),
    /// A host names a connection of an endpoint that is lent to it, if it is `leased`, or the endpoint itself (P-86).
    Claimed { flow: FlowName, tuple: FlowTuple, wire_port: u16, hidden: bool, leased: bool },
}

/// Why a flow could not be led to its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unled {
    /// It is over.
    Over,
    /// It is tried again.
    Failed(String),
}
