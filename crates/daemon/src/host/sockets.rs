//! Sockets of this host, in its own network namespace and in those of endpoints.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use whimbrel_datapath::{Datapath, TcpSocket};
use whimbrel_kernel::checkpoint::{Checkpoint, Defaults, Unmovable};
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::sock_diag::{self, SockDiag, TcpState};
use whimbrel_kernel::{namespace, process};
use whimbrel_protocol::{FlowEntry, LocalEnd, OpFailed, PeerId, Refusal, Time};
use whimbrel_wire::introduction::Introduction;
use whimbrel_wire::snapshot::{OptionKind, Snapshot as Snapshotted};
use whimbrel_wire::{FlowTuple, Transport};

use super::endpoints::{Endpoints, HIDDEN, Place, PlaceName};
use super::introductions::{Snapshot, ask, introduce};
use super::inventory::servers::{find, takers};
use super::refusal::{refused, unmovable};
use super::{Failure, Host, own_addresses};

/// Sockets of UDP that take what anybody sends and have no flows here: they are on their way to other hosts, or there.
#[derive(Debug)]
pub(crate) struct AtRest {
    /// By their cookies.
    sockets: BTreeSet<u64>,
    ends: BTreeSet<SocketAddr>,
}

impl AtRest {
    /// Whether the socket with this cookie, which would take what comes in a flow, is one of them.
    pub(crate) fn has(&self, flow: &FlowTuple, cookie: u64) -> bool {
        self.sockets.contains(&cookie) || self.ends.contains(&flow.local)
    }
}

/// What had come in a connection is known so long, after it was asked in.
const ASKED_FOR: Duration = Duration::from_secs(60);

impl Host {
    /// The same of one that its program is about to give.
    pub(crate) fn options_of(&mut self, flow: &FlowTuple, socket: BorrowedFd<'_>) -> Result<Vec<u16>, OpFailed> {
        let Self { endpoints, defaults, connections, .. } = self;
        needs(socket, beside(flow, endpoints, defaults, connections)?)
    }

    /// The inode of a connection's socket, in this host's own namespace or in that of its address.
    pub(crate) fn socket_of(&mut self, flow: &FlowTuple) -> Result<Option<u32>, whimbrel_kernel::Error> {
        let connections = self.sockets_beside(flow);
        if flow.is_unconnected() {
            return Ok(find(connections, flow)?.first().map(|socket| socket.inode));
        }
        Ok(connections.find(flow)?.map(|socket| socket.inode))
    }

    /// Whether this socket is the one that has the flow, in this host's own namespace or in that of its address. What a
    /// socket is bound to and connected with holds in its own namespace, and programs may make some in which they have
    /// any address.
    pub(crate) fn has_flow(
        &mut self,
        flow: &FlowTuple,
        socket: BorrowedFd<'_>,
    ) -> Result<bool, whimbrel_kernel::Error> {
        let where_it_is = match self.endpoints.at(flow) {
            Some(place) => place.cookie,
            None => namespace::cookie()?,
        };
        if namespace::cookie_of(socket)? != where_it_is {
            return Ok(false);
        }
        let cookie = sock_diag::cookie_of(socket)?;
        let sockets = self.sockets_beside(flow);
        Ok(match flow.is_unconnected() {
            true => find(sockets, flow)?.iter().any(|found| found.cookie == cookie),
            false => sockets.find(flow)?.is_some_and(|found| found.cookie == cookie),
        })
    }

    /// Whether no socket without another end is met at an endpoint.
    pub(crate) fn is_nobodys(&mut self, flow: &FlowTuple) -> bool {
        matches!(self.socket_of(flow), Ok(None))
    }

    /// Whether other sockets without another end take what comes to the same endpoint (SO_REUSEPORT).
    pub(crate) fn shares_its_end(&mut self, flow: &FlowTuple) -> bool {
        flow.is_unconnected() && find(self.sockets_beside(flow), flow).is_ok_and(|found| found.len() > 1)
    }

    /// Tells of the sockets where those of an endpoint are.
    pub(crate) fn sockets_beside(&mut self, flow: &FlowTuple) -> &mut SockDiag {
        match self.endpoints.at(flow) {
            Some(place) => &mut place.connections,
            None => &mut self.connections,
        }
    }

    /// Packets of a flow are not held any more.
    pub(crate) fn let_in(&mut self, flow: &FlowTuple) {
        if flow.transport == Transport::Udp && flow.is_unconnected() {
            self.at_rest.remove(flow);
        }
        if let Err(error) = self.datapath.remove_helped(flow) {
            tracing::error!(%flow, %error, "packets of a connection stay held");
        }
    }

    /// Whether one of these connections has urgent data that is not acknowledged.
    pub(crate) fn any_urgent(&mut self, flows: &[FlowTuple]) -> bool {
        let Self { endpoints, datapath, .. } = self;
        flows.iter().any(|flow| has_urgent(datapath, flow, endpoints.at(flow)))
    }

    /// Takes flows that are [over](Self::end_unconnected).
    pub(crate) fn take_ended(&mut self) -> Vec<FlowTuple> {
        std::mem::take(&mut self.ended)
    }

    /// Flows that are over since their sockets, in namespaces of their own, are gone: UDP ones, of which nothing else
    /// tells, and those that were [said to be](Self::is_closed) closed while they were there.
    pub(crate) fn ended_flows(&mut self) -> Vec<FlowTuple> {
        if self.endpoints.is_empty() {
            return Vec::new();
        }
        let doubted = std::mem::take(&mut self.doubted);
        let flows = self.flows.all().iter();
        let inside = flows.filter(|(flow, entry)| {
            entry.end == LocalEnd::Endpoint && (flow.transport == Transport::Udp || doubted.contains(flow))
        });
        let flows: Vec<FlowTuple> = inside.map(|(flow, _)| *flow).collect();
        flows.into_iter().filter(|flow| self.has_ended(flow)).collect()
    }

    /// The sockets of UDP that have no flows here.
    pub(crate) fn at_rest(&self) -> AtRest {
        AtRest {
            sockets: self.at_rest.values().flatten().copied().collect(),
            ends: self.ports.ends_elsewhere().collect(),
        }
    }

    /// Whether the socket of a flow that is not connected is on its way to another host, or there.
    pub(super) fn has_gone(&mut self, flow: &FlowTuple) -> bool {
        if self.ports.ends_elsewhere().any(|end| end == flow.local) {
            return true;
        }
        let rests = |cookie: &u64| self.at_rest.values().flatten().any(|of| of == cookie);
        !self.at_rest.is_empty()
            && self.connections.unconnected().is_ok_and(|all| takers(&all, flow.local).iter().any(rests))
    }

    /// A socket that takes what anybody sends goes to another host. What it has with single remotes is no flow of this
    /// host's any more, and goes to where the socket is as all does that comes for it.
    pub(super) fn end_unconnected(&mut self, socket: &FlowTuple) -> Result<(), Failure> {
        // One in a namespace has none.
        if self.endpoints.at(socket).is_some() {
            return Ok(());
        }
        let all = self.connections.unconnected()?;
        let port = socket.local.port();
        let cookies = takers(&all, socket.local);
        let is_taken = |local| takers(&all, local).iter().any(|cookie| cookies.contains(cookie));
        let its = |(flow, entry): &(&FlowTuple, &FlowEntry)| {
            entry.unconnected && flow.local.port() == port && is_taken(flow.local)
        };
        let flows: Vec<FlowTuple> = self.flows.all().iter().filter(its).map(|(flow, _)| *flow).collect();
        self.datapath.remove_flows(&flows)?;
        flows.iter().for_each(|flow| self.tunnel.remove_flow(flow));
        self.ended.extend(flows);
        self.at_rest.insert(*socket, cookies);
        Ok(())
    }

    /// Whether a connection is closed of which that is said. Root of a namespace that a program has brought along can
    /// have a connection of any name in there, and close it: what has its socket in another one does not end by that.
    pub(crate) fn is_closed(&mut self, flow: &FlowTuple) -> bool {
        let closed = self.has_ended(flow);
        if !closed {
            // It is said a moment before: it is looked again.
            self.doubted.insert(*flow);
        }
        closed
    }

    /// Whether no process has the socket of a flow. What it leaves in the kernel ends by itself, or waits for what is
    /// on the way (TIME_WAIT).
    fn has_ended(&mut self, flow: &FlowTuple) -> bool {
        matches!(self.socket_of(flow), Ok(None | Some(0)))
    }

    /// Whether a flow whose end is not in this host's own namespace is still there.
    pub(crate) fn is_elsewhere(&mut self, flow: &FlowTuple) -> bool {
        match self.flows.get(flow).map(|entry| entry.end) {
            Some(LocalEnd::Behind | LocalEnd::Passing) => true,
            Some(LocalEnd::Endpoint) => matches!(self.socket_of(flow), Ok(Some(_))),
            Some(LocalEnd::Here) | None => false,
        }
    }

    /// A connection of a program that goes on here is not to be had: the program is told so.
    pub(crate) fn abort_inside(&mut self, flow: &FlowTuple) {
        if let Err(error) = self.abort(flow) {
            tracing::warn!(%flow, %error, "a connection that is lost stays open");
        }
    }

    /// Ends the socket of a connection, in this host's own namespace or in that of its address, if it is there.
    pub(crate) fn abort(&mut self, flow: &FlowTuple) -> Result<(), whimbrel_kernel::Error> {
        let Self { endpoints, connections, .. } = self;
        let connections = endpoints.at(flow).map_or(connections, |place| &mut place.connections);
        match connections.find(flow)? {
            Some(socket) => connections.destroy(&socket).map(drop),
            None => Ok(()),
        }
    }

    /// Ends the sockets that connect to these addresses and have no answer, of some only those that do so from one of
    /// its own that this host does not have any more. Those that policy leaves alone it leaves alone here as well.
    pub(crate) fn end_connecting(&mut self, remotes: &BTreeMap<IpAddr, bool>) -> Result<(), whimbrel_kernel::Error> {
        let own = own_addresses(&self.network);
        let mut connecting = self.connections.tcp(&[TcpState::SynSent])?;
        connecting.retain(|socket| {
            let tuple = &socket.tuple;
            remotes.get(&tuple.remote.ip()).is_some_and(|left| !(*left && own.contains(&tuple.local.ip())))
        });
        let asked: HashSet<u32> =
            connecting.iter().filter(|it| self.policies.asks_for_holders(&it.tuple)).map(|it| it.inode).collect();
        let holders = if asked.is_empty() { HashMap::new() } else { process::holders(&asked) };
        for socket in connecting {
            let holders = holders.get(&socket.inode).map_or(&[][..], Vec::as_slice);
            if self.policies.verdict(&socket.tuple, holders).excluded_by().is_some() {
                continue;
            }
            self.connections.destroy(&socket)?;
            tracing::debug!(flow = %socket.tuple, "ended before it was there: an end has moved");
        }
        Ok(())
    }

    /// Ends those of these connections whose other end has heard of nothing but their first segment.
    pub(crate) fn end_unaccepted(&mut self, flows: &[FlowTuple]) -> Result<(), Failure> {
        for socket in self.datapath.look_up(flows)? {
            let answered = self.unaccepted.remove(&socket.flow).is_some_and(|(_, heard)| heard != socket.heard);
            if is_unaccepted(&socket) && !answered {
                self.abort(&socket.flow)?;
                tracing::debug!(flow = %socket.flow, "ended before it was accepted: an end has moved");
            }
        }
        Ok(())
    }

    /// Asks whoever may have accepted connections, before [`Host::end_unaccepted`] ends those in which nobody answers.
    pub(crate) fn ask_unaccepted(
        &mut self,
        now: Time,
        flows: &[FlowTuple],
        snapshot: &mut Snapshot,
    ) -> Result<(), Failure> {
        self.unaccepted.retain(|_, (since, _)| *since + ASKED_FOR > now);
        for socket in self.datapath.look_up(flows)?.into_iter().filter(is_unaccepted) {
            self.unaccepted.insert(socket.flow, (now, socket.heard));
            ask(&self.injector, &mut self.datapath, snapshot, socket.flow, None)?;
        }
        Ok(())
    }

    /// Puts what waited in a UDP socket's queue into that of one which CRIU has rebuilt.
    pub(crate) fn refill(&mut self, flow: &FlowTuple, snapshot: &Snapshotted) -> Result<(), Unmovable> {
        Checkpoint::refill(snapshot, self.injector_of(flow))
    }

    /// What injects where the socket of a flow is.
    pub(crate) fn injector_of(&self, flow: &FlowTuple) -> &Injector {
        self.endpoints.injector(flow).unwrap_or(&self.injector)
    }

    pub(crate) fn injector_at(&self, endpoint: Option<PlaceName>) -> &Injector {
        endpoint.and_then(|name| self.endpoints.injector_at(name)).unwrap_or(&self.injector)
    }

    /// Looks the TCP sockets of flows up, of the host's own and of endpoint namespaces. `lapsed`: the flows go on after
    /// a lapse.
    pub(crate) fn look_up(&self, flows: &[FlowTuple], lapsed: bool, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let mut look = |flows: &[FlowTuple]| -> Result<(), Failure> {
            if lapsed {
                let found = self.datapath.on_lapse(flows)?;
                snapshot.take(flows, found);
            } else {
                snapshot.look_up(&self.datapath, flows)?;
            }
            Ok(())
        };
        let entries = self.flows.all();
        let inside = |flow: &FlowTuple| entries.get(flow).is_some_and(|entry| entry.end == LocalEnd::Endpoint);
        let (inside, own): (Vec<FlowTuple>, Vec<FlowTuple>) = flows.iter().partition(|flow| inside(flow));
        if !own.is_empty() {
            look(&own)?;
        }
        for (place, flows) in self.endpoints.by_place(inside) {
            let _inside = place.endpoint.enter()?;
            look(&flows)?;
        }
        Ok(())
    }

    /// Consumes introductions for these session indices and no others.
    pub(crate) fn listen_for_introductions(&mut self, indices: Vec<u32>) -> Result<(), Failure> {
        // Strangers change the list as often as they like; what is around it depends on whether there is one.
        self.surroundings_changed |= self.hooks.set_introducing(!indices.is_empty());
        self.listening.set(&self.datapath, indices)?;
        // The peer begins as soon as it is told that we look.
        self.apply_hooks()
    }

    /// Injects an introduction into a flow of a socket of this host, or of an endpoint namespace.
    pub(crate) fn introduce(
        &mut self,
        flow: FlowTuple,
        introduction: Introduction,
        snapshot: &mut Snapshot,
    ) -> Result<(), Failure> {
        if self.is_in_endpoint(&flow) {
            return self.introduce_in_endpoint(flow, introduction);
        }
        let Self { injector, datapath, connections, .. } = self;
        introduce(injector, datapath, connections, snapshot, flow, introduction)
    }

    /// Finds the sockets that are connected to these addresses, for [`Host::take_found`].
    pub(crate) fn find_sockets(&mut self, peer: PeerId, at: &[IpAddr], snapshot: &mut Snapshot) -> Result<(), Failure> {
        self.found.push((peer, snapshot.numbers_of(&self.datapath, &mut self.connections, at)?));
        Ok(())
    }

    /// Resets the socket of a flow.
    pub(crate) fn reset(&mut self, flow: &FlowTuple, snapshot: &mut Snapshot) -> Result<(), Failure> {
        if self.is_in_endpoint(flow) {
            // A reset from outside would have to find its way into the namespace.
            return Ok(self.abort(flow)?);
        }
        // One look serves all that are reset together.
        snapshot.look_up(&self.datapath, &std::mem::take(&mut self.resetting))?;
        // A socket that is gone by itself needs no reset.
        if let Some(socket) = snapshot.socket(&self.datapath, flow)? {
            self.injector.reset(flow, socket.rcv_nxt)?;
        }
        Ok(())
    }

    /// Has the peer of a flow answer natively. `helped` as in [`ask`].
    pub(crate) fn ask_natively(
        &mut self,
        flow: FlowTuple,
        helped: Option<(u32, u32)>,
        snapshot: &mut Snapshot,
    ) -> Result<(), Failure> {
        ask(&self.injector, &mut self.datapath, snapshot, flow, helped)
    }
}

/// Whether nothing has been exchanged but the handshake, as far as this end knows: the first segment counts as one byte
/// (P-50).
fn is_unaccepted(socket: &TcpSocket) -> bool {
    socket.received == 0 && socket.acknowledged <= 1
}

/// Whether a TCP connection has urgent data that is not acknowledged. `place`: where its socket is, if not in this
/// host's own namespace. A kernel that does not tell is one where nobody knows.
pub(crate) fn has_urgent(datapath: &Datapath, flow: &FlowTuple, place: Option<&mut Place>) -> bool {
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
pub(crate) fn beside<'a>(
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

/// What a host has to set that takes a socket. The mark of those whose far ends are not to learn where they are is
/// Whimbrel's own, and set by any host.
pub(crate) fn needs(
    socket: BorrowedFd<'_>,
    (defaults, sockets): (&Defaults, &mut SockDiag),
) -> Result<Vec<u16>, OpFailed> {
    let mut options =
        Checkpoint::needs(socket, defaults, sockets).map_err(|why| unmovable(&why, Refusal::Unmovable))?;
    if namespace::mark_of(socket).is_ok_and(|mark| mark == HIDDEN) {
        options.retain(|number| *number != OptionKind::Mark.number());
    }
    Ok(options)
}
