//! Sockets that change hosts: what a move asks of the kernel (`whimbrel_protocol::MoveOp`, docs/protocol.md §9).
//!
//! ```text
//! donor.rs      freezing a program's socket, writing it down, ending it or letting it go on
//! acceptor.rs   rebuilding it, and handing it to whoever is to receive it
//! adopt.rs      what a daemon before this one has left of it
//! making.rs     making the namespaces that ops wait for, in a thread of its own
//! listening.rs  sockets without another end, of which the accept queue has to come along
//! ```

pub(crate) mod acceptor;
pub(crate) mod adopt;
pub(crate) mod donor;
pub(crate) mod listening;
pub(crate) mod making;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_kernel::checkpoint::Rights;
use whimbrel_kernel::duplicated::Halted;
use whimbrel_kernel::owner::Owner;
use whimbrel_protocol::{FlowName, LocalEnd, MoveName, OpFailed, PeerId, Refusal, Time};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::snapshot::Metadata;

use crate::host::refusal::failed;
use crate::host::{Host, Mover};
use acceptor::Taken;
pub(crate) use donor::NotDuplicated;
pub(crate) use donor::URGENT;
use donor::{Duplicated, Given};

/// A peer of a move, and how far it is, where that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The peer.
    pub(crate) peer: PeerId,
    /// As the daemons' words have shown.
    pub(crate) round_trip: Option<Duration>,
}

/// A socket that has come here, for the program that receives it.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// By which move.
    pub(crate) name: MoveName,
    /// The name under which the program takes sockets.
    pub(crate) receiver: Vec<u8>,
    /// The connection, as the socket has it.
    pub(crate) flow: FlowTuple,
    /// The socket.
    pub(crate) socket: OwnedFd,
    /// Its name, and what the program that had it wants to be known.
    pub(crate) metadata: Metadata,
}

/// The sockets that are on their way, and what goes with them.
#[derive(Debug, Default)]
pub(crate) struct Relocation {
    /// Sockets of programs that a move may ask for at any moment.
    duplicated: HashMap<FlowTuple, Duplicated>,
    /// Sockets that their programs are about to give away, and what they are called.
    expected: HashMap<FlowTuple, [u8; 16]>,
    given: HashMap<MoveName, Given>,
    /// Sockets that listen and are another host's: connections that were being opened still come to them.
    retiring: HashMap<MoveName, Given>,
    /// Connections that waited at these, which have made way.
    left_queued: HashMap<MoveName, Vec<OwnedFd>>,
    /// Sockets that listen, of which what opens new connections waits.
    kept_new: HashSet<FlowTuple>,
    taken: HashMap<MoveName, Taken>,
    /// Connections that were rebuilt here and are not awake, whose packets are held.
    held: HashSet<FlowTuple>,
    /// Who is there to receive sockets, under these names.
    receivers: BTreeMap<Vec<u8>, Owner>,
    /// Of these, who has not taken what has come already.
    full: BTreeSet<Vec<u8>>,
    arrived: Vec<Arrived>,
    /// Processes that stand still, each as long as any of its sockets is at rest.
    halted: HashMap<u32, (Halted, usize)>,
    /// Processes of which the next daemon knows that they may stand still for moves, and when they were started.
    noted: BTreeMap<u32, u64>,
    /// What is set on sockets that come here.
    rights: Rights,
}

impl Relocation {
    /// The programs are attached before anything stops, since that takes the kernel tens of milliseconds.
    pub(crate) fn make_ready(&self, host: &mut Host, now: Time) -> Result<(), OpFailed> {
        let moving = !self.duplicated.is_empty() || !self.given.is_empty() || !self.taken.is_empty();
        let moving = moving || !self.expected.is_empty();
        host.make_ready(now, Mover::Sockets, moving, moving)
    }

    /// `lost`: what becomes of it where that cannot be.
    fn make_ready_or_warn(&self, host: &mut Host, now: Time, lost: &str) {
        if let Err(error) = self.make_ready(host, now) {
            tracing::warn!(%error, "{lost}");
        }
    }

    /// Whether a move gives a socket of this host away.
    pub(crate) fn has_given(&self, name: &MoveName) -> bool {
        self.given.contains_key(name)
    }

    /// Connections whose sockets are at rest, to be given away.
    pub(crate) fn at_rest(&self) -> impl Iterator<Item = FlowTuple> {
        self.given.values().map(Given::flow)
    }

    /// Whether any sockets rest, to be given away or to wake here.
    pub(crate) fn any_rests(&self) -> bool {
        !self.given.is_empty() || self.taken.values().any(Taken::rests)
    }

    /// Leaves what rests to a daemon after this one: what stands still for it does not go on. `false`: nothing does.
    pub(crate) fn leave(&mut self) -> bool {
        let rests = !self.given.is_empty();
        if rests {
            self.halted.drain().for_each(|(_, (halted, _))| halted.leave());
        }
        rests
    }

    /// What needs a privilege is set on sockets that come here, or is not.
    pub(crate) fn set_rights(&mut self, all: bool) {
        self.rights = Rights { all };
    }

    /// A program of this user is there that receives sockets under these names. `false`: another one has one of them.
    pub(crate) fn add_receiver(&mut self, names: &[String], owner: Owner) -> bool {
        let is_free = names.iter().all(|name| !self.receivers.contains_key(name.as_bytes()));
        if is_free {
            self.receivers.extend(names.iter().map(|name| (name.clone().into_bytes(), owner)));
        }
        is_free
    }

    /// Whose a socket is to be that comes for this name. What waits for its program is nobody's: who asks for it is not
    /// known yet, and need not be root.
    fn owner_for(&self, name: &[u8]) -> Owner {
        self.receivers.get(name).copied().unwrap_or(Owner::NOBODY)
    }

    /// It is gone. Moves that count on it are found out when they hand it its socket.
    pub(crate) fn remove_receiver(&mut self, name: &[u8]) {
        self.receivers.remove(name);
        self.full.remove(name);
    }

    /// Whether a program has so many sockets to take that no more are to be asked for. Those that are on their way
    /// still come.
    pub(crate) fn set_full(&mut self, name: &[u8], full: bool) {
        if full {
            self.full.insert(name.to_vec());
        } else {
            self.full.remove(name);
        }
    }

    /// Which connection a move is about, as long as it is not over.
    pub(crate) fn flow_of(&self, name: &MoveName) -> Option<FlowTuple> {
        self.given.get(name).map(Given::flow).or_else(|| self.taken.get(name).map(Taken::flow))
    }

    /// Whether somebody receives sockets under a name: under none they wait here until a program asks for them by their
    /// own names.
    fn is_received(&self, name: &[u8]) -> bool {
        name.is_empty() || self.receivers.contains_key(name)
    }

    /// Takes the sockets that are to be handed to programs.
    pub(crate) fn take_arrived(&mut self) -> Vec<Arrived> {
        std::mem::take(&mut self.arrived)
    }

    /// The far end of a connection is to know that it is over.
    pub(crate) fn close_far_end(
        &mut self,
        host: &mut Host,
        name: &FlowName,
        peer: impl Fn(&PublicKey) -> Option<Known>,
    ) -> Result<(), OpFailed> {
        let Some(owner) = peer(&name.peer()).map(|known| known.peer) else { return Ok(()) };
        let Some((flow, entry)) = host.flows.called(owner, name.value()) else { return Ok(()) };
        if entry.end == LocalEnd::Here
            && let Some(socket) = host.connections.find(&flow).map_err(|error| failed(Refusal::NotKept, &error))?
        {
            host.connections.destroy(&socket).map_err(|error| failed(Refusal::NotKept, &error))?;
        }
        // For a far end that runs nothing the node has let the flow go by now.
        Ok(())
    }
}
