//! Facts that layers and roles tell those above them.

use std::collections::BTreeSet;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;

use crate::base::flow_name::FlowName;
use crate::base::grant::Grant;
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
    /// A stranger may be given a connection, or this host one of a stranger's, once.
    Granted(Grant),
    /// The hosts of the community are these, beside this one, and others were `revoked`. `limited`: there is one.
    Members { members: BTreeSet<PublicKey>, revoked: BTreeSet<PublicKey>, limited: bool },
}
