//! Connections whose sockets change hosts, and what a kernel knows of them: how much was sent and received.

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_protocol::{FlowName, LeaseName, MoveName, SavedAcceptance, SavedDonation, SavedHeld, SavedTenancy};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::Ends;

use crate::host::HostId;
use crate::world::FlowId;

/// A connection's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub usize);

/// A connection whose socket at one end changes hosts. Its far end stays, and knows nothing.
#[derive(Clone, Debug)]
pub struct Connection {
    /// As the socket has it.
    pub tuple: FlowTuple,
    /// What the holder and its owners call it.
    pub name: u64,
    /// Whose data plane leads what the far end sends.
    pub holder: HostId,
    /// The flow and the end that it is, where what is sent on it is seen.
    pub flow: Option<(FlowId, usize)>,
    /// Where that leads it.
    pub led: HostId,
    /// Hosts that have a copy of the socket.
    pub copies: BTreeMap<HostId, Copy>,
    /// Hosts that had one and know that it is elsewhere: what comes in there is not answered.
    pub left: BTreeSet<HostId>,
    /// A process that had a copy died, with the copy.
    pub died: bool,
    /// The far end was told that it is over.
    pub closed: bool,
    /// What the far end has sent, what was acknowledged of it, and what it has received.
    pub(crate) far: Counts,
}

/// A socket, or a copy of one.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// It goes on.
    pub awake: bool,
    /// Whether a program has it: else it ends with the daemon.
    pub in_program: bool,
    /// It could not be destroyed, and rests for ever.
    pub relic: bool,
    pub(crate) counts: Counts,
}

/// How far an end is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    pub(crate) received: u64,
}

impl Counts {
    /// As a snapshot of some length.
    pub(crate) fn write(self, length: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            [self.sent, self.acknowledged, self.received].iter().flat_map(|count| count.to_be_bytes()).collect();
        let padding = (bytes.len()..length).map(|at| at as u8);
        bytes.extend(padding.collect::<Vec<u8>>());
        bytes
    }

    /// Reads what [`Self::write`] wrote, and nothing else.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let count = |at: usize| Some(u64::from_be_bytes(bytes.get(8 * at..8 * at + 8)?.try_into().ok()?));
        let counts = Self { sent: count(0)?, acknowledged: count(1)?, received: count(2)? };
        (counts.write(bytes.len()) == bytes).then_some(counts)
    }
}

/// What an end says to the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// Bytes from there on, up to there.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) received: u64,
}

/// What a host's daemon has saved of moves.
#[derive(Clone, Debug, Default)]
pub struct SavedMoves {
    /// As donor.
    pub donations: BTreeMap<MoveName, SavedDonation>,
    /// As acceptor.
    pub acceptances: BTreeMap<MoveName, SavedAcceptance>,
    /// As holder.
    pub held: BTreeMap<FlowName, SavedHeld>,
    /// As anchor: what is lent.
    pub leases: BTreeMap<LeaseName, Ends>,
    /// As tenant: what others have lent.
    pub tenancies: BTreeMap<FlowName, SavedTenancy>,
}

impl SavedMoves {
    /// Whether nothing is left that is to be decided.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let settled = self.held.values().all(|held| held.unsettled.is_empty());
        self.donations.is_empty() && self.acceptances.is_empty() && settled
    }
}
