//! Giving a program's socket away.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use whimbrel_datapath::{Datapath, HelpedFlow, HelpedPhase};
use whimbrel_kernel::borrowed::{self, Halted};
use whimbrel_kernel::frozen::{Defaults, Frozen, Unmovable};
use whimbrel_kernel::sock_diag::{self, SockDiag};
use whimbrel_kernel::{namespace, process, whole};
use whimbrel_protocol::{MoveName, OpFailed, PeerId, Refusal, SavedDonation, Time};
use whimbrel_wire::snapshot::{Body, Family, Luggage, OptionKind};
use whimbrel_wire::{FlowTuple, Transport};

use super::endpoints::{Endpoints, Place};
use super::{HIDDEN, Relocation, failed, listening, refused, unmovable};
use crate::closing::Received;
use crate::effects::Effects;
use crate::store::StoreError;

/// A socket that a move may ask for, and who has it.
#[derive(Debug)]
pub(super) struct Borrowed {
    pub(super) socket: Received,
    /// Processes that are to stand still while it is at rest. None where its program has handed it over itself.
    processes: Vec<u32>,
    pub(super) luggage: Luggage,
}

/// A socket that is at rest, to be given away.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) flow: FlowTuple,
    pub(super) frozen: Frozen,
    pub(super) processes: Vec<u32>,
    pub(super) luggage: Luggage,
}

/// Why a socket is not even asked of its program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotBorrowed {
    /// It is gone, or nobody has it open.
    #[error("no process of this host has it open any more")]
    Nobody,
    /// Its numbers are being translated.
    #[error("a helper has answered on it, which cannot be moved with it")]
    Helped,
    /// What comes would go to one of them alone.
    #[error("several sockets share its address and port, and can only be moved if they are one")]
    Shared,
    #[error(transparent)]
    Kernel(#[from] whimbrel_kernel::Error),
}

impl Borrowed {
    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }
}

/// Why a connection waits that has an urgent byte on its way: that it is one is not written down with the bytes of its queue, and the far end would take
/// it for one of the stream.
pub(in crate::effects) const URGENT: &str =
    "its program has sent urgent data (MSG_OOB) that is not acknowledged; it can be moved once that is";

/// Whether a TCP connection has urgent data that is not acknowledged. `place`: where its socket is, if not in this host's own namespace. A kernel that
/// does not tell is one where nobody knows.
fn has_urgent(datapath: &Datapath, flow: &FlowTuple, place: Option<&mut Place>) -> bool {
    if flow.transport != Transport::Tcp || flow.is_unconnected() {
        return false;
    }
    let inside = place.map(|place| place.endpoint.enter()).transpose();
    let told = inside.map_err(|error| error.to_string());
    let told = told.and_then(|_inside| datapath.is_urgent(flow).map_err(|error| error.to_string()));
    told.unwrap_or_else(|error| {
        tracing::debug!(%flow, %error, "whether a connection has urgent data is not known");
        false
    })
}

/// What sockets have whose programs have set nothing, where that of a flow is, and what tells of the sockets there.
fn beside<'a>(
    flow: &FlowTuple,
    endpoints: &'a mut Endpoints,
    own: &'a mut Option<Defaults>,
    connections: &'a mut SockDiag,
) -> Result<(&'a Defaults, &'a mut SockDiag), OpFailed> {
    if let Some(place) = endpoints.at(flow) {
        return Ok((&place.defaults, &mut place.connections));
    }
    let defaults = match own {
        Some(defaults) => defaults,
        None => own.insert(Defaults::look().map_err(|error| refused(&error, Refusal::Unmovable))?),
    };
    Ok((defaults, connections))
}

/// What a host has to set that takes a socket. The mark of those whose far ends are not to learn where they are is Whimbrel's own, and set by
/// any host.
fn needs(socket: BorrowedFd<'_>, (defaults, sockets): (&Defaults, &mut SockDiag)) -> Result<Vec<u16>, OpFailed> {
    let mut options = Frozen::needs(socket, defaults, sockets).map_err(|why| unmovable(&why, Refusal::Unmovable))?;
    if namespace::mark_of(socket).is_ok_and(|mark| mark == HIDDEN) {
        options.retain(|number| *number != OptionKind::Mark.number());
    }
    Ok(options)
}

impl Given {
    pub(super) fn flow(&self) -> FlowTuple {
        self.flow
    }

    pub(super) fn processes(&self) -> &[u32] {
        &self.processes
    }

    /// One that is at rest already.
    pub(super) fn adopt(flow: FlowTuple, borrowed: Borrowed) -> Result<Self, Unmovable> {
        let Borrowed { socket, processes, luggage } = borrowed;
        // On account of one that listens nobody stands still.
        let processes = if flow.listens() { Vec::new() } else { processes };
        Ok(Self { flow, frozen: freeze(socket)?, processes, luggage })
    }
}

impl Effects {
    /// Gets hold of sockets that are to be moved, which changes nothing about them, and tells the family of each. `name` tells what a
    /// socket is called.
    pub(crate) fn borrow_sockets(
        &mut self,
        now: Time,
        flows: &[FlowTuple],
        name: impl Fn(BorrowedFd<'_>) -> [u8; 16],
    ) -> HashMap<FlowTuple, Result<Family, NotBorrowed>> {
        let mut found = HashMap::new();
        let mut by_inode: HashMap<u32, FlowTuple> = HashMap::new();
        for flow in flows {
            if self.helping.helpers.numbers_of_peer(flow).is_some() {
                found.insert(*flow, Err(NotBorrowed::Helped));
                continue;
            }
            if self.shares_its_end(flow) {
                found.insert(*flow, Err(NotBorrowed::Shared));
                continue;
            }
            match self.socket_of(flow) {
                Ok(Some(inode)) if inode != 0 => {
                    by_inode.insert(inode, *flow);
                }
                Ok(_) => {
                    found.insert(*flow, Err(NotBorrowed::Nobody));
                }
                Err(error) => {
                    found.insert(*flow, Err(error.into()));
                }
            }
        }
        let inodes: HashSet<u32> = by_inode.keys().copied().collect();
        let holders = if inodes.is_empty() { HashMap::new() } else { process::holders(&inodes) };
        // One process has them all, usually: its descriptors are read once.
        let mut of_process: HashMap<u32, HashSet<u32>> = HashMap::new();
        for (inode, holders) in &holders {
            let first = holders.iter().map(|holder| holder.pid).min();
            first.map(|pid| of_process.entry(pid).or_default().insert(*inode));
        }
        let mut sockets: HashMap<u32, OwnedFd> = HashMap::new();
        for (pid, inodes) in of_process {
            match borrowed::borrow(pid, &inodes) {
                Ok(some) => sockets.extend(some),
                Err(error) => {
                    let flow = inodes.iter().find_map(|inode| by_inode.get(inode));
                    flow.map(|flow| found.insert(*flow, Err(error.into())));
                }
            }
        }
        for (inode, flow) in by_inode {
            let Some(socket) = sockets.remove(&inode) else {
                found.entry(flow).or_insert(Err(NotBorrowed::Nobody));
                continue;
            };
            // This one has those that wait for their programs. It leaves them alone, and could not go on without itself.
            let others = holders.get(&inode).into_iter().flatten().map(|holder| holder.pid);
            let processes = others.filter(|pid| *pid != std::process::id()).collect();
            let luggage = Luggage { uuid: name(socket.as_fd()), state: Vec::new() };
            found.insert(flow, Ok(family_of(&socket)));
            self.relocation.borrowed.insert(flow, Borrowed { socket: socket.into(), processes, luggage });
        }
        if let Err(error) = self.make_ready(now) {
            tracing::warn!(%error, "packets for sockets that are moved are not held meanwhile");
        }
        found
    }

    /// The numbers of the options of a socket that was borrowed, or given by its program.
    pub(crate) fn options_of_borrowed(&mut self, flow: &FlowTuple) -> Result<Vec<u16>, OpFailed> {
        let Self { relocation: Relocation { borrowed, endpoints, defaults, .. }, connections, .. } = self;
        let Some(Borrowed { socket, .. }) = borrowed.get(flow) else { return Ok(Vec::new()) };
        needs(socket.as_fd(), beside(flow, endpoints, defaults, connections)?)
    }

    /// The same of one that its program is about to give.
    pub(crate) fn options_of(&mut self, flow: &FlowTuple, socket: BorrowedFd<'_>) -> Result<Vec<u16>, OpFailed> {
        let Self { relocation: Relocation { endpoints, defaults, .. }, connections, .. } = self;
        needs(socket, beside(flow, endpoints, defaults, connections)?)
    }

    /// Takes over a socket that its program hands to another host itself, with what goes along.
    pub(crate) fn take_given(&mut self, now: Time, flow: FlowTuple, socket: Received, luggage: Luggage) -> Family {
        let family = family_of(&socket);
        self.relocation.borrowed.insert(flow, Borrowed { socket, processes: Vec::new(), luggage });
        if let Err(error) = self.make_ready(now) {
            tracing::warn!(%error, "packets for sockets that are moved are not held meanwhile");
        }
        family
    }

    /// A program is about to give a socket away: what holds its packets then is attached now. Tells its family.
    pub(crate) fn expect_gift(&mut self, now: Time, flow: FlowTuple, socket: &OwnedFd, uuid: [u8; 16]) -> Family {
        self.relocation.expected.insert(flow, uuid);
        if let Err(error) = self.make_ready(now) {
            tracing::warn!(%error, "packets for sockets that are moved are not held meanwhile");
        }
        family_of(socket)
    }

    /// It does not, or has.
    pub(crate) fn forget_gift(&mut self, now: Time, flow: &FlowTuple) {
        if self.relocation.expected.remove(flow).is_some()
            && let Err(error) = self.make_ready(now)
        {
            tracing::warn!(%error, "programs stay attached");
        }
    }

    /// What a socket that was borrowed, or is about to be given, is called.
    pub(crate) fn uuid_of(&self, flow: &FlowTuple) -> Option<[u8; 16]> {
        let borrowed = self.relocation.borrowed.get(flow).map(|borrowed| borrowed.luggage.uuid);
        let given = || self.relocation.given.values().find(|given| given.flow == *flow).map(|given| given.luggage.uuid);
        borrowed.or_else(given).or_else(|| self.relocation.expected.get(flow).copied())
    }

    /// A socket is not to be moved after all.
    pub(crate) fn return_socket(&mut self, now: Time, flow: &FlowTuple) {
        if self.relocation.borrowed.remove(flow).is_none() {
            return;
        }
        self.forget_unhalted();
        if let Err(error) = self.make_ready(now) {
            tracing::warn!(%error, "programs stay attached");
        }
    }

    /// The inode of a connection's socket, in this host's own namespace or in that of its address.
    pub(super) fn socket_of(&mut self, flow: &FlowTuple) -> Result<Option<u32>, whimbrel_kernel::Error> {
        let connections = self.sockets_beside(flow);
        if flow.is_unconnected() {
            return Ok(listening::find(connections, flow)?.first().map(|socket| socket.inode));
        }
        Ok(connections.find(flow)?.map(|socket| socket.inode))
    }

    /// Whether this socket is the one that has the flow, in this host's own namespace or in that of its address. What a socket is bound to and
    /// connected with holds in its own namespace, and programs may make some in which they have any address.
    pub(crate) fn has_flow(
        &mut self,
        flow: &FlowTuple,
        socket: BorrowedFd<'_>,
    ) -> Result<bool, whimbrel_kernel::Error> {
        let where_it_is = match self.relocation.endpoints.at(flow) {
            Some(place) => place.cookie,
            None => namespace::cookie()?,
        };
        if namespace::cookie_of(socket)? != where_it_is {
            return Ok(false);
        }
        let cookie = sock_diag::cookie_of(socket)?;
        let sockets = self.sockets_beside(flow);
        Ok(match flow.is_unconnected() {
            true => listening::find(sockets, flow)?.iter().any(|found| found.cookie == cookie),
            false => sockets.find(flow)?.is_some_and(|found| found.cookie == cookie),
        })
    }

    /// Whether no socket without another end is met at an endpoint.
    pub(crate) fn is_nobodys(&mut self, flow: &FlowTuple) -> bool {
        matches!(self.socket_of(flow), Ok(None))
    }

    /// Whether other sockets without another end take what comes to the same endpoint (SO_REUSEPORT).
    pub(crate) fn shares_its_end(&mut self, flow: &FlowTuple) -> bool {
        flow.is_unconnected() && listening::find(self.sockets_beside(flow), flow).is_ok_and(|found| found.len() > 1)
    }

    /// Tells of the sockets where those of an endpoint are.
    pub(super) fn sockets_beside(&mut self, flow: &FlowTuple) -> &mut SockDiag {
        match self.relocation.endpoints.at(flow) {
            Some(place) => &mut place.connections,
            None => &mut self.connections,
        }
    }

    pub(super) fn freeze(&mut self, name: MoveName, flow: FlowTuple) -> Result<(), OpFailed> {
        let Some(borrowed) = self.relocation.borrowed.remove(&flow) else {
            return Err(failed(Refusal::Unmovable, &format!("the socket of {flow} is not there any more")));
        };
        // Its program has had it since it was looked at.
        if !self.has_flow(&flow, borrowed.socket.as_fd()).map_err(|error| refused(&error, Refusal::Unmovable))? {
            self.let_new_in(&flow);
            return Err(failed(Refusal::Unmovable, &format!("the socket is not that of {flow} any more")));
        }
        if flow.listens() {
            return self.freeze_listening(name, flow, borrowed);
        }
        let Borrowed { socket, processes, luggage } = borrowed;
        self.relocation.halt(&processes).map_err(|error| refused(&error, Refusal::Unmovable))?;
        let rests = HelpedFlow { phase: HelpedPhase::Rests, offset: 0, acknowledged: 0, delivered: 0 };
        self.forget_late(&flow);
        self.tunnel.set_aside(&flow);
        let frozen = self
            .datapath
            .set_helped(&flow, &rests)
            .map_err(|error| failed(Refusal::NoRights, &error))
            .and_then(|()| self.put_to_rest(&flow, socket));
        match frozen {
            Ok(frozen) => {
                self.relocation.given.insert(name, Given { flow, frozen, processes, luggage });
                Ok(())
            }
            Err(failed) => {
                self.let_in(&flow);
                self.tunnel.hand_on(&flow, None);
                self.let_run(&processes);
                Err(failed)
            }
        }
    }

    fn put_to_rest(&mut self, flow: &FlowTuple, socket: Received) -> Result<Frozen, OpFailed> {
        let frozen = match self.relocation.endpoints.at(flow).filter(|_| flow.is_unconnected()) {
            Some(place) => {
                let _inside = place.endpoint.enter().map_err(|error| refused(&error, Refusal::Unmovable))?;
                freeze(socket)
            }
            None => freeze(socket),
        };
        frozen.map_err(|why| unmovable(&why, Refusal::Unmovable))
    }

    /// Whether one of these connections has urgent data that is not acknowledged.
    pub(in crate::effects) fn any_urgent(&mut self, flows: &[FlowTuple]) -> bool {
        let Self { relocation: Relocation { endpoints, .. }, datapath, .. } = self;
        flows.iter().any(|flow| has_urgent(datapath, flow, endpoints.at(flow)))
    }

    pub(super) fn dump(&mut self, name: &MoveName) -> Result<Vec<u8>, OpFailed> {
        let Self { relocation: Relocation { given, endpoints, defaults, .. }, connections, datapath, .. } = self;
        let gone = || failed(Refusal::Unmovable, &"the socket is not at rest");
        let Given { flow, frozen, luggage, .. } = given.get(name).ok_or_else(gone)?;
        if has_urgent(datapath, flow, endpoints.at(flow)) {
            return Err(failed(Refusal::Unmovable, &URGENT));
        }
        let (defaults, sockets) = beside(flow, endpoints, defaults, connections)?;
        let mut snapshot = frozen.dump(defaults, sockets).map_err(|why| unmovable(&why, Refusal::Unmovable))?;
        snapshot.luggage = Some(luggage.clone());
        if let Body::Datagram(datagrams) = &mut snapshot.body {
            // One that is bound to all addresses moves with this one, and has nothing to say to the other family from there.
            datagrams.queue.retain(|datagram| datagram.from.is_ipv4() == flow.local.is_ipv4());
        }
        let mut bytes = Vec::new();
        snapshot.encode(&mut bytes);
        Ok(bytes)
    }

    /// The socket goes on here.
    pub(super) fn let_go_on(&mut self, name: &MoveName) -> Result<(), OpFailed> {
        let Some(Given { flow, frozen, processes, .. }) = self.relocation.given.remove(name) else { return Ok(()) };
        // First what holds its packets: its own first segment would be held with them.
        self.let_in(&flow);
        let injector = match self.relocation.endpoints.at(&flow) {
            Some(place) => &place.injector,
            None => &self.injector,
        };
        self.relocation.kept_new.remove(&flow);
        self.tunnel.hand_on(&flow, None);
        let thawed = frozen.thaw(injector).map(Received::from).map_err(|why| unmovable(&why, Refusal::NotWoken));
        self.let_run(&processes);
        thawed.map(drop)
    }

    /// The socket is another host's, to which goes what came for it meanwhile.
    pub(super) fn end_given(&mut self, now: Time, name: &MoveName, to: Option<PeerId>) -> Result<(), OpFailed> {
        let Some(given) = self.relocation.given.remove(name) else { return Ok(()) };
        if given.flow.listens() {
            // What comes for it goes elsewhere from now on, or in a moment.
            if self.relocation.kept_new.remove(&given.flow) {
                self.part_with(now, given.flow, to);
            }
            self.leave_home(&given.flow);
            self.relocation.retiring.insert(*name, given);
            return Ok(());
        }
        let Given { flow, frozen, processes, .. } = given;
        let destroyed = frozen.destroy(self.sockets_beside(&flow)).map_err(|why| unmovable(&why, Refusal::NotKept));
        self.leave_home(&flow);
        self.settle_ports();
        self.part_with(now, flow, to);
        self.let_run(&processes);
        destroyed
    }

    pub(super) fn save_given(&mut self, saved: SavedDonation) -> Result<(), StoreError> {
        // Nobody stops what only listens. What stands still already is to stay so.
        let borrowed = self.relocation.borrowed.get(&saved.tuple).filter(|_| !saved.tuple.listens());
        let processes = borrowed.map_or(&[][..], |borrowed| &borrowed.processes);
        let is_noted = |pid: &u32| self.relocation.noted.contains_key(pid) || self.relocation.halted.contains_key(pid);
        let fresh = processes.iter().filter(|pid| !is_noted(pid) && borrowed::stands_still(**pid) == Some(false));
        let halting: Vec<_> = fresh.filter_map(|pid| Some((*pid, whole::started(*pid)?))).collect();
        self.store.save_donation(&saved, &halting)?;
        self.relocation.noted.extend(halting);
        Ok(())
    }

    pub(super) fn forget_given(&mut self, now: Time, name: &MoveName) -> Result<(), OpFailed> {
        self.store.forget_donation(*name);
        self.forget_unhalted();
        self.make_ready(now)
    }

    /// Forgets what was noted of processes that were not stopped after all.
    fn forget_unhalted(&mut self) {
        if self.relocation.borrowed.is_empty() {
            let noted: Vec<u32> = self.relocation.noted.keys().copied().collect();
            for pid in noted {
                if !self.relocation.halted.contains_key(&pid) {
                    self.forget_noted(pid);
                }
            }
        }
    }

    /// A process stands still for no move any more.
    pub(super) fn forget_noted(&mut self, pid: u32) {
        if self.relocation.noted.remove(&pid).is_some() {
            self.store.forget_halted(pid);
        }
    }

    /// Processes need not stand still on account of one socket any more.
    fn let_run(&mut self, processes: &[u32]) {
        for pid in self.relocation.release(processes) {
            self.forget_noted(pid);
        }
    }

    /// Packets of a flow are not held any more.
    pub(in crate::effects) fn let_in(&mut self, flow: &FlowTuple) {
        if let Err(error) = self.datapath.remove_helped(flow) {
            tracing::error!(%flow, %error, "packets of a connection stay held");
        }
    }
}

impl Relocation {
    /// Has processes stand still, once more each. All or none.
    fn halt(&mut self, processes: &[u32]) -> Result<(), whimbrel_kernel::Error> {
        let mut fresh = Vec::new();
        for pid in processes {
            if !self.halted.contains_key(pid) {
                fresh.push(Halted::stop(*pid)?);
            }
        }
        self.halted.extend(fresh.into_iter().map(|halted| (halted.pid(), (halted, 0))));
        for pid in processes {
            if let Some((_, count)) = self.halted.get_mut(pid) {
                *count += 1;
            }
        }
        Ok(())
    }

    /// Counts one socket less for processes; gives those that go on.
    fn release(&mut self, processes: &[u32]) -> Vec<u32> {
        for pid in processes {
            if let Some((_, count)) = self.halted.get_mut(pid) {
                *count -= 1;
            }
        }
        self.halted.extract_if(|_, (_, count)| *count == 0).map(|(pid, _)| pid).collect()
    }
}

/// Puts a socket to rest. One that cannot be is closed by a thread like any other.
pub(super) fn freeze(socket: Received) -> Result<Frozen, Unmovable> {
    let again = socket.try_clone().map(Received::from);
    let frozen = Frozen::freeze(socket.into_inner());
    drop(again);
    frozen
}

/// Of a socket: IPv6 also where it talks IPv4.
fn family_of(socket: &OwnedFd) -> Family {
    match rustix::net::sockopt::socket_domain(socket.as_fd()) {
        Ok(rustix::net::AddressFamily::INET6) => Family::Ipv6,
        _ => Family::Ipv4,
    }
}

/// Whether two addresses are of one family.
pub(super) fn is_of(family: Family, address: IpAddr) -> bool {
    family == Family::Ipv6 || address.is_ipv4()
}
