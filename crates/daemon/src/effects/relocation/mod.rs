//! Sockets that change hosts: what a move asks of the kernel (`whimbrel_protocol::MoveOp`, docs/protocol.md §9).
//!
//! ```text
//! donor.rs      freezing a program's socket, writing it down, ending it or letting it go on
//! acceptor.rs   rebuilding it, and handing it to whoever is to receive it
//! adopt.rs      what a daemon before this one has left of it
//! late.rs       what comes where the socket was, for a while
//! ports.rs      keeping ports of this host for sockets that have gone
//! start.rs      what a connection begins with on its new path
//! endpoints.rs  the namespaces in which addresses are local that are not this host's
//! making.rs     making them, in a thread of its own
//! listening.rs  sockets without another end, of which the accept queue has to come along
//! lender.rs     endpoints of this host that others have on lease
//! tenant.rs     endpoints of others that this host has
//! young.rs      connections of those that may end soon
//! ```

mod acceptor;
mod adopt;
mod donor;
mod endpoints;
mod late;
mod lender;
mod listening;
mod making;
mod ports;
mod senders;
mod start;
mod tenant;
mod young;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use whimbrel_handshake::PublicKey;
use whimbrel_kernel::borrowed::Halted;
use whimbrel_kernel::frozen::{Defaults, Rights, Unmovable};
use whimbrel_kernel::owner::Owner;
use whimbrel_protocol::{FlowName, LocalEnd, MoveName, MoveOp, OpDone, OpFailed, Refusal, SavedTenancy, Time};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::snapshot::Luggage;

use super::{Effects, Failure};
use crate::store::StoreError;
use acceptor::Taken;
pub(crate) use adopt::{FoundMoves, continue_halted};
pub(crate) use donor::NotBorrowed;
pub(in crate::effects) use donor::URGENT;
use donor::{Borrowed, Given};
use endpoints::Endpoints;
use late::Late;
use lender::Lender;
pub(crate) use listening::at;
pub(crate) use making::Making;
use ports::Ports;
pub(crate) use start::Known;
pub(crate) use tenant::HIDDEN;
use tenant::Tenant;
pub(crate) use young::Young;

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
    pub(crate) luggage: Luggage,
}

/// The sockets that are on their way, and what goes with them.
#[derive(Debug, Default)]
pub(crate) struct Relocation {
    /// Sockets of programs that a move may ask for at any moment.
    borrowed: HashMap<FlowTuple, Borrowed>,
    /// Sockets that their programs are about to give away, and what they are called.
    expected: HashMap<FlowTuple, [u8; 16]>,
    given: HashMap<MoveName, Given>,
    /// Sockets that listen and are another host's: connections that were being opened still come to them.
    retiring: HashMap<MoveName, Given>,
    /// Connections that waited at these, which have made way.
    left_queued: HashMap<MoveName, Vec<OwnedFd>>,
    /// Sockets that listen, of which what opens new connections waits.
    pub(in crate::effects) kept_new: HashSet<FlowTuple>,
    taken: HashMap<MoveName, Taken>,
    /// Connections that were rebuilt here and are not awake, whose packets are held.
    held: HashSet<FlowTuple>,
    endpoints: Endpoints,
    ports: Ports,
    lender: Lender,
    tenant: Tenant,
    /// Who is there to receive sockets, under these names.
    receivers: BTreeMap<Vec<u8>, Owner>,
    /// Of these, who has not taken what has come already.
    full: BTreeSet<Vec<u8>>,
    arrived: Vec<Arrived>,
    /// Processes that stand still, each as long as any of its sockets is at rest.
    halted: HashMap<u32, (Halted, usize)>,
    /// Processes of which the next daemon knows that they may stand still for moves, and when they were started.
    noted: BTreeMap<u32, u64>,
    late: Late,
    /// Connections in endpoint namespaces that were said to be closed, and were there.
    doubted: HashSet<FlowTuple>,
    /// The TUN device passes packets of other hosts on.
    forwards: bool,
    /// This host's settings for sockets.
    defaults: Option<Defaults>,
    /// What is set on sockets that come here.
    rights: Rights,
}

impl Relocation {
    /// Whether the data plane has something to hold, or is about to.
    pub(super) fn is_busy(&self) -> bool {
        self.is_moving() || !self.lender.is_idle() || !self.tenant.is_idle()
    }

    /// Whether sockets come, go or wait to be closed.
    fn is_moving(&self) -> bool {
        let moving = !self.borrowed.is_empty() || !self.given.is_empty() || !self.taken.is_empty();
        moving || !self.expected.is_empty() || !self.late.is_empty()
    }

    /// Whether connections depend on what is in the kernel for endpoints that are lent, are on lease or have moved here, which the node knows nothing of.
    pub(super) fn is_depended_on(&self) -> bool {
        !self.lender.is_idle() || !self.tenant.is_idle() || self.endpoints.in_use().next().is_some()
    }

    /// What the interfaces are called that lead to namespaces.
    pub(super) fn interface_names(&self) -> HashMap<u32, &str> {
        self.endpoints.interface_names()
    }

    /// Whether any sockets rest, to be given away or to wake here.
    pub(super) fn any_rests(&self) -> bool {
        !self.given.is_empty() || self.taken.values().any(Taken::rests)
    }

    /// Leaves what rests to a daemon after this one: what stands still for it does not go on. `false`: nothing does.
    pub(super) fn leave(&mut self) -> bool {
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

    /// Whose a socket is to be that comes for this name. What waits for its program is nobody's: who asks for it is not known yet, and need not
    /// be root.
    fn owner_for(&self, name: &[u8]) -> Owner {
        self.receivers.get(name).copied().unwrap_or(Owner::NOBODY)
    }

    /// It is gone. Moves that count on it are found out when they hand it its socket.
    pub(crate) fn remove_receiver(&mut self, name: &[u8]) {
        self.receivers.remove(name);
        self.full.remove(name);
    }

    /// Whether a program has so many sockets to take that no more are to be asked for. Those that are on their way still come.
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

    /// Whether somebody receives sockets under a name: under none they wait here until a program asks for them by their own names.
    fn is_received(&self, name: &[u8]) -> bool {
        name.is_empty() || self.receivers.contains_key(name)
    }

    /// Takes the sockets that are to be handed to programs.
    pub(crate) fn take_arrived(&mut self) -> Vec<Arrived> {
        std::mem::take(&mut self.arrived)
    }
}

impl Effects {
    /// Carries out one op of a move. What fails has changed nothing, unless it is said otherwise there. `peer` tells which peer has a
    /// key.
    pub(super) fn carry_out_move_of_socket(
        &mut self,
        now: Time,
        op: MoveOp,
        peer: impl Fn(&PublicKey) -> Option<Known>,
    ) -> Result<OpDone, OpFailed> {
        match op {
            MoveOp::Admit { name, request } => self.admit(now, name, request)?,
            MoveOp::Freeze { name, flow } => self.freeze(name, flow)?,
            MoveOp::Dump { name } => return self.dump(&name).map(OpDone::Dumped),
            MoveOp::Restore { name, request, snapshot } => {
                let [donor, holder] = [name.donor, request.holder].map(|key| peer(&PublicKey::from(key)));
                self.rebuild(name, &request, &snapshot, donor, holder)?;
            }
            MoveOp::Thaw { name } if self.relocation.given.contains_key(&name) => self.let_go_on(&name)?,
            MoveOp::Thaw { name } => self.wake(&name)?,
            MoveOp::Destroy { name, forward } if self.relocation.given.contains_key(&name) => {
                self.end_given(now, &name, forward.as_ref().and_then(peer).map(|to| to.peer))?;
            }
            MoveOp::Destroy { name, .. } => self.drop_taken(&name)?,
            MoveOp::CloseFarEnd { flow } => self.close_far_end(&flow, peer)?,
            MoveOp::SaveDonation(saved) => self.save_given(saved).map_err(not_kept)?,
            MoveOp::ForgetDonation { name } => self.forget_given(now, &name)?,
            MoveOp::SaveAcceptance(saved) => self.store.save_acceptance(&saved).map_err(not_kept)?,
            MoveOp::ForgetAcceptance { name } => self.forget_taken(now, &name)?,
            MoveOp::SaveHeld(saved) => self.store.save_held(&saved).map_err(not_kept)?,
            MoveOp::ForgetHeld { flow } => self.store.forget_held(flow),
            MoveOp::Lend { name, peer, ends, moved } => {
                return self.lend(now, name, peer, ends, moved).map(OpDone::Lent);
            }
            MoveOp::TakeBack { name } => self.take_back(now, name)?,
            MoveOp::Occupy { number, anchor, anchor_at, peer, ends, moved, fresh } => {
                self.occupy(now, SavedTenancy { number, anchor, anchor_at, ends, moved }, peer, fresh)?;
            }
            MoveOp::Vacate { lease } => self.vacate(now, lease)?,
        }
        self.write_store();
        Ok(OpDone::Done)
    }

    /// The far end of a connection is to know that it is over.
    fn close_far_end(&mut self, name: &FlowName, peer: impl Fn(&PublicKey) -> Option<Known>) -> Result<(), OpFailed> {
        let Some(owner) = peer(&name.peer()).map(|known| known.peer) else { return Ok(()) };
        let Some((flow, entry)) = self.flows.called(owner, name.value()) else { return Ok(()) };
        if entry.end == LocalEnd::Here
            && let Some(socket) = self.connections.find(&flow).map_err(|error| failed(Refusal::NotKept, &error))?
        {
            self.connections.destroy(&socket).map_err(|error| failed(Refusal::NotKept, &error))?;
        }
        // For a far end that runs nothing the node has let the flow go by now.
        Ok(())
    }

    /// The programs are attached before anything stops, since that takes the kernel tens of milliseconds.
    pub(super) fn make_ready(&mut self, now: Time) -> Result<(), OpFailed> {
        let busy = self.relocation.is_busy() || self.wholes.is_busy();
        let resting = self.relocation.is_moving() || self.wholes.is_busy();
        // What a daemon before this one has left is not touched before the node has said what it wants ([`Effects::begin`]).
        let begun = !self.network.links.is_empty();
        if self.hooks.note_moving(now, busy) && begun {
            self.apply_hooks().map_err(|error| failed(Refusal::NoRights, &error))?;
        }
        if self.hooks.note_resting(now, resting) && resting && begun {
            // So that what is set aside can come back.
            self.settle_or_retry(now);
        }
        Ok(())
    }
}

fn failed(refusal: Refusal, why: &dyn std::fmt::Display) -> OpFailed {
    OpFailed { refusal: Some(refusal), sentence: why.to_string() }
}

/// A decision that cannot be written down is none.
#[expect(clippy::needless_pass_by_value, reason = "it is given to `map_err`")]
pub(in crate::effects) fn not_kept(error: StoreError) -> OpFailed {
    failed(Refusal::NotKept, &error)
}

/// What the kernel says where there is no room: for descriptors of this process or of all, memory of sockets, entries of maps.
const NO_ROOM: [Errno; 6] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOSPC, Errno::TOOBIG, Errno::AGAIN];

/// As what another host is told of a failure of the kernel's.
fn refusal_of(errno: Option<i32>, otherwise: Refusal) -> Refusal {
    match errno.map(io::Error::from_raw_os_error).map(|error| error.kind()) {
        Some(io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => Refusal::Taken,
        Some(io::ErrorKind::PermissionDenied) => Refusal::NoRights,
        Some(io::ErrorKind::OutOfMemory) => Refusal::NoRoom,
        _ if errno == Some(Errno::AFNOSUPPORT.raw_os_error()) => Refusal::NoFamily,
        _ if NO_ROOM.iter().any(|full| errno == Some(full.raw_os_error())) => Refusal::NoRoom,
        _ => otherwise,
    }
}

fn unmovable(why: &Unmovable, otherwise: Refusal) -> OpFailed {
    let refusal = match why {
        Unmovable::Kernel(error) => refusal_of(error.raw_os_error(), otherwise),
        _ => Refusal::Unmovable,
    };
    failed(refusal, why)
}

fn refused(error: &whimbrel_kernel::Error, otherwise: Refusal) -> OpFailed {
    failed(refusal_of(error.raw_os_error(), otherwise), error)
}

impl From<Failure> for OpFailed {
    fn from(failure: Failure) -> Self {
        failed(Refusal::NotKept, &failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lacks_is_told_as_what_it_is() {
        let told = |errno: Errno| refusal_of(Some(errno.raw_os_error()), Refusal::NotRestored);
        for full in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSPC, Errno::AGAIN] {
            assert_eq!(told(full), Refusal::NoRoom, "{full}");
        }
        assert_eq!([Errno::PERM, Errno::ACCESS].map(told), [Refusal::NoRights; 2]);
        assert_eq!([Errno::ADDRINUSE, Errno::ADDRNOTAVAIL].map(told), [Refusal::Taken; 2]);
        assert_eq!(told(Errno::AFNOSUPPORT), Refusal::NoFamily);
        assert_eq!(told(Errno::INVAL), Refusal::NotRestored);
        assert_eq!(refusal_of(None, Refusal::NotKept), Refusal::NotKept);
    }
}
