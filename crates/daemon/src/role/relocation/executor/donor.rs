//! Giving a program's socket away.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use whimbrel_kernel::checkpoint::{Checkpoint, Unmovable};
use whimbrel_kernel::duplicated::{self, Halted};
use whimbrel_kernel::sock_diag::{MOVABLE, TcpState};
use whimbrel_kernel::{process, process_tree};
use whimbrel_protocol::{MoveName, OpFailed, PeerId, Refusal, SavedDonation, Time};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::Transport;
use whimbrel_wire::snapshot::{Body, Family, Metadata};

use super::Relocation;
use crate::closing::Received;
use crate::host::refusal::{failed, refused, unmovable};
use crate::host::sockets::{beside, has_urgent, needs};
use crate::host::{Failure, Host};
use crate::store::StoreError;

/// The states of connections that a socket that listens has, or is about to have.
const OPEN: [TcpState; 7] = {
    let [a, b, c, d, e, f] = MOVABLE;
    [TcpState::SynReceived, a, b, c, d, e, f]
};

/// A socket that a move may ask for, and who has it.
#[derive(Debug)]
pub(crate) struct Duplicated {
    pub(crate) socket: Received,
    /// Processes that are to stand still while it is at rest. None where its program has handed it over itself.
    processes: Vec<u32>,
    pub(crate) metadata: Metadata,
}

/// A socket that is at rest, to be given away.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) flow: FlowTuple,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) processes: Vec<u32>,
    pub(crate) metadata: Metadata,
}

/// Why a socket is not even asked of its program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDuplicated {
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

impl Duplicated {
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }
}

/// Why a connection waits that has an urgent byte on its way: that it is one is not written down with the bytes of its
/// queue, and the far end would take it for one of the stream.
pub(crate) const URGENT: &str =
    "its program has sent urgent data (MSG_OOB) that is not acknowledged; it can be moved once that is";

impl Given {
    pub(crate) fn flow(&self) -> FlowTuple {
        self.flow
    }

    pub(crate) fn processes(&self) -> &[u32] {
        &self.processes
    }

    /// One that is at rest already.
    pub(crate) fn adopt(flow: FlowTuple, duplicated: Duplicated) -> Result<Self, Unmovable> {
        let Duplicated { socket, processes, metadata } = duplicated;
        // On account of one that listens nobody stands still.
        let processes = if flow.listens() { Vec::new() } else { processes };
        Ok(Self { flow, checkpoint: freeze(socket)?, processes, metadata })
    }
}

impl Relocation {
    /// Gets hold of sockets that are to be moved, which changes nothing about them, and tells the family of each.
    /// `name` tells what a socket is called.
    pub(crate) fn borrow_sockets(
        &mut self,
        is_helped: &dyn Fn(&FlowTuple) -> bool,
        host: &mut Host,
        now: Time,
        flows: &[FlowTuple],
        name: impl Fn(BorrowedFd<'_>) -> [u8; 16],
    ) -> HashMap<FlowTuple, Result<Family, NotDuplicated>> {
        let mut found = HashMap::new();
        let mut by_inode: HashMap<u32, FlowTuple> = HashMap::new();
        for flow in flows {
            if is_helped(flow) {
                found.insert(*flow, Err(NotDuplicated::Helped));
                continue;
            }
            if host.shares_its_end(flow) {
                found.insert(*flow, Err(NotDuplicated::Shared));
                continue;
            }
            match host.socket_of(flow) {
                Ok(Some(inode)) if inode != 0 => {
                    by_inode.insert(inode, *flow);
                }
                Ok(_) => {
                    found.insert(*flow, Err(NotDuplicated::Nobody));
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
        let mut sockets: HashMap<u32, Received> = HashMap::new();
        for (pid, inodes) in of_process {
            match duplicated::borrow(pid, &inodes) {
                Ok(some) => sockets.extend(some.into_iter().map(|(inode, socket)| (inode, socket.into()))),
                Err(error) => {
                    let flow = inodes.iter().find_map(|inode| by_inode.get(inode));
                    flow.map(|flow| found.insert(*flow, Err(error.into())));
                }
            }
        }
        for (inode, flow) in by_inode {
            let Some(socket) = sockets.remove(&inode) else {
                found.entry(flow).or_insert(Err(NotDuplicated::Nobody));
                continue;
            };
            // This one has those that wait for their programs. It leaves them alone, and could not go on without
            // itself.
            let others = holders.get(&inode).into_iter().flatten().map(|holder| holder.pid);
            let processes = others.filter(|pid| *pid != std::process::id()).collect();
            let metadata = Metadata { uuid: name(socket.as_fd()), state: Vec::new() };
            found.insert(flow, Ok(family_of(&socket)));
            self.duplicated.insert(flow, Duplicated { socket, processes, metadata });
        }
        self.make_ready_or_warn(host, now, "packets for sockets that are moved are not held meanwhile");
        found
    }

    /// The numbers of the options of a socket that was borrowed, or given by its program.
    pub(crate) fn options_of_duplicated(&mut self, host: &mut Host, flow: &FlowTuple) -> Result<Vec<u16>, OpFailed> {
        let Self { duplicated, .. } = self;
        let Host { endpoints, defaults, connections, .. } = &mut *host;
        let Some(Duplicated { socket, .. }) = duplicated.get(flow) else { return Ok(Vec::new()) };
        needs(socket.as_fd(), beside(flow, endpoints, defaults, connections)?)
    }

    /// Takes over a socket that its program hands to another host itself, with what goes along.
    pub(crate) fn take_given(
        &mut self,
        host: &mut Host,
        now: Time,
        flow: FlowTuple,
        socket: Received,
        metadata: Metadata,
    ) -> Family {
        let family = family_of(&socket);
        self.duplicated.insert(flow, Duplicated { socket, processes: Vec::new(), metadata });
        self.make_ready_or_warn(host, now, "packets for sockets that are moved are not held meanwhile");
        family
    }

    /// A program is about to give a socket away: what holds its packets then is attached now. Tells its family.
    pub(crate) fn expect_gift(
        &mut self,
        host: &mut Host,
        now: Time,
        flow: FlowTuple,
        socket: &OwnedFd,
        uuid: [u8; 16],
    ) -> Family {
        self.expected.insert(flow, uuid);
        self.make_ready_or_warn(host, now, "packets for sockets that are moved are not held meanwhile");
        family_of(socket)
    }

    /// It does not, or has.
    pub(crate) fn forget_gift(&mut self, host: &mut Host, now: Time, flow: &FlowTuple) {
        if self.expected.remove(flow).is_some() {
            self.make_ready_or_warn(host, now, "programs stay attached");
        }
    }

    /// What a socket that was borrowed, or is about to be given, is called.
    pub(crate) fn uuid_of(&self, flow: &FlowTuple) -> Option<[u8; 16]> {
        let duplicated = self.duplicated.get(flow).map(|duplicated| duplicated.metadata.uuid);
        let given = || self.given.values().find(|given| given.flow == *flow).map(|given| given.metadata.uuid);
        duplicated.or_else(given).or_else(|| self.expected.get(flow).copied())
    }

    /// A socket is not to be moved after all.
    pub(crate) fn return_socket(&mut self, host: &mut Host, now: Time, flow: &FlowTuple) {
        if self.duplicated.remove(flow).is_none() {
            return;
        }
        self.forget_unhalted(host);
        self.make_ready_or_warn(host, now, "programs stay attached");
    }

    pub(crate) fn freeze(&mut self, host: &mut Host, name: MoveName, flow: FlowTuple) -> Result<(), OpFailed> {
        let Some(duplicated) = self.duplicated.remove(&flow) else {
            return Err(failed(Refusal::Unmovable, &format!("the socket of {flow} is not there any more")));
        };
        // Its program has had it since it was looked at.
        if !host.has_flow(&flow, duplicated.socket.as_fd()).map_err(|error| refused(&error, Refusal::Unmovable))? {
            self.let_new_in(host, &flow);
            return Err(failed(Refusal::Unmovable, &format!("the socket is not that of {flow} any more")));
        }
        if flow.listens() {
            return self.freeze_listening(host, name, flow, duplicated);
        }
        let Duplicated { socket, processes, metadata } = duplicated;
        self.halt(&processes).map_err(|error| refused(&error, Refusal::Unmovable))?;
        host.forget_late(&flow);
        let held = host.set_aside(&flow).map_err(|error| failed(Refusal::NoRights, &error));
        let checkpoint = held.and_then(|()| self.put_to_rest(host, &flow, socket));
        match checkpoint {
            Ok(checkpoint) => {
                self.given.insert(name, Given { flow, checkpoint, processes, metadata });
                Ok(())
            }
            Err(failed) => {
                host.give_aside_back(&flow);
                self.let_run(host, &processes);
                Err(failed)
            }
        }
    }

    fn put_to_rest(&mut self, host: &mut Host, flow: &FlowTuple, socket: Received) -> Result<Checkpoint, OpFailed> {
        let checkpoint = match host.endpoints.at(flow).filter(|_| flow.is_unconnected()) {
            Some(place) => {
                let _inside = place.endpoint.enter().map_err(|error| refused(&error, Refusal::Unmovable))?;
                freeze(socket)
            }
            None => freeze(socket),
        };
        checkpoint.map_err(|why| unmovable(&why, Refusal::Unmovable))
    }

    pub(crate) fn dump(&mut self, host: &mut Host, name: &MoveName) -> Result<Vec<u8>, OpFailed> {
        let Self { given, .. } = self;
        let Host { endpoints, defaults, connections, datapath, .. } = &mut *host;
        let gone = || failed(Refusal::Unmovable, &"the socket is not at rest");
        let Given { flow, checkpoint, metadata, .. } = given.get(name).ok_or_else(gone)?;
        if has_urgent(datapath, flow, endpoints.at(flow)) {
            return Err(failed(Refusal::Unmovable, &URGENT));
        }
        let (defaults, sockets) = beside(flow, endpoints, defaults, connections)?;
        let mut snapshot = checkpoint.dump(defaults, sockets).map_err(|why| unmovable(&why, Refusal::Unmovable))?;
        snapshot.metadata = Some(metadata.clone());
        if let Body::Datagram(datagrams) = &mut snapshot.body {
            // One that is bound to all addresses moves with this one, and has nothing to say to the other family from
            // there.
            datagrams.queue.retain(|datagram| datagram.from.is_ipv4() == flow.local.is_ipv4());
        }
        let mut bytes = Vec::new();
        snapshot.encode(&mut bytes);
        Ok(bytes)
    }

    /// The socket goes on here.
    pub(crate) fn let_go_on(&mut self, host: &mut Host, name: &MoveName) -> Result<(), OpFailed> {
        let Some(Given { flow, checkpoint, processes, .. }) = self.given.remove(name) else { return Ok(()) };
        // First what holds its packets: its own first segment would be held with them.
        self.give_aside_back(host, &flow);
        let thawed = checkpoint
            .thaw(host.injector_of(&flow))
            .map(Received::from)
            .map_err(|why| unmovable(&why, Refusal::NotWoken));
        self.let_run(host, &processes);
        thawed.map(drop)
    }

    /// The socket is another host's, to which goes what came for it meanwhile.
    pub(crate) fn end_given(
        &mut self,
        host: &mut Host,
        now: Time,
        name: &MoveName,
        to: Option<PeerId>,
    ) -> Result<(), OpFailed> {
        let Some(given) = self.given.remove(name) else { return Ok(()) };
        if given.flow.listens() {
            // What comes for it goes elsewhere from now on, or in a moment.
            if self.kept_new.remove(&given.flow) {
                host.part_with(now, given.flow, to);
            }
            host.leave_home(&given.flow);
            self.retiring.insert(*name, given);
            return Ok(());
        }
        let Given { flow, checkpoint, processes, .. } = given;
        let destroyed = checkpoint.destroy(host.sockets_beside(&flow)).map_err(|why| unmovable(&why, Refusal::NotKept));
        host.leave_home(&flow);
        host.settle_ports();
        host.part_with(now, flow, to);
        self.let_run(host, &processes);
        destroyed
    }

    pub(crate) fn save_given(&mut self, host: &mut Host, saved: SavedDonation) -> Result<(), StoreError> {
        // Nobody stops what only listens. What stands still already is to stay so.
        let duplicated = self.duplicated.get(&saved.tuple).filter(|_| !saved.tuple.listens());
        let processes = duplicated.map_or(&[][..], |duplicated| &duplicated.processes);
        let is_noted = |pid: &u32| self.noted.contains_key(pid) || self.halted.contains_key(pid);
        let fresh = processes.iter().filter(|pid| !is_noted(pid) && duplicated::stands_still(**pid) == Some(false));
        let halting: Vec<_> = fresh.filter_map(|pid| Some((*pid, process_tree::started(*pid)?))).collect();
        host.store.save_donation(&saved, &halting)?;
        self.noted.extend(halting);
        Ok(())
    }

    pub(crate) fn forget_given(&mut self, host: &mut Host, now: Time, name: &MoveName) -> Result<(), OpFailed> {
        host.store.forget_donation(*name);
        self.forget_unhalted(host);
        self.make_ready(host, now)
    }

    /// Forgets what was noted of processes that were not stopped after all.
    fn forget_unhalted(&mut self, host: &mut Host) {
        if self.duplicated.is_empty() {
            let noted: Vec<u32> = self.noted.keys().copied().collect();
            for pid in noted {
                if !self.halted.contains_key(&pid) {
                    self.forget_noted(host, pid);
                }
            }
        }
    }

    /// A process stands still for no move any more.
    pub(super) fn forget_noted(&mut self, host: &mut Host, pid: u32) {
        if self.noted.remove(&pid).is_some() {
            host.store.forget_halted(pid);
        }
    }

    /// Processes need not stand still on account of one socket any more.
    fn let_run(&mut self, host: &mut Host, processes: &[u32]) {
        for pid in self.release(processes) {
            self.forget_noted(host, pid);
        }
    }

    /// The connections of a socket without another end, and those that are being opened: what is of no flow among them
    /// would go where it goes. New ones wait from now on, if it listens. Nothing where its address is this host's own.
    pub(crate) fn connections_of(&mut self, host: &mut Host, socket: &FlowTuple) -> Result<Vec<FlowTuple>, Failure> {
        if host.endpoints.at(socket).is_none() {
            return Ok(Vec::new());
        }
        if socket.listens() {
            self.keep_new(host, socket)?;
        }
        let Some(place) = host.endpoints.at(socket) else { return Ok(Vec::new()) };
        let all = match socket.transport {
            Transport::Tcp => place.connections.tcp(&OPEN)?,
            Transport::Udp => place.connections.udp()?,
        };
        let flows = all.into_iter().map(|connection| connection.tuple);
        Ok(flows.filter(|flow| flow.local == socket.local).collect())
    }

    /// Has those of these processes that are not over stand still, once more each. All or none.
    fn halt(&mut self, processes: &[u32]) -> Result<(), whimbrel_kernel::Error> {
        let fresh: Vec<u32> = processes.iter().copied().filter(|pid| !self.halted.contains_key(pid)).collect();
        let fresh = Halted::stop_all(&fresh, duplicated::PATIENCE)?;
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
pub(crate) fn freeze(socket: Received) -> Result<Checkpoint, Unmovable> {
    let again = socket.try_clone().map(Received::from);
    let checkpoint = Checkpoint::freeze(socket.into_inner());
    drop(again);
    checkpoint
}

/// Of a socket: IPv6 also where it talks IPv4.
fn family_of(socket: &OwnedFd) -> Family {
    match rustix::net::sockopt::socket_domain(socket.as_fd()) {
        Ok(rustix::net::AddressFamily::INET6) => Family::Ipv6,
        _ => Family::Ipv4,
    }
}

/// Whether two addresses are of one family.
pub(crate) fn is_of(family: Family, address: IpAddr) -> bool {
    family == Family::Ipv6 || address.is_ipv4()
}
