//! What is done in endpoint namespaces, and about them.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use whimbrel_kernel::{Error, endpoint, namespace, process_tree};
use whimbrel_protocol::{FlowEntry, LocalEnd, MoveName, Time};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::introduction::Introduction;

use super::endpoints::{Endpoints, HIDDEN, Place, PlaceName};
use super::introductions::{self, Snapshot};
use super::inventory::servers::Inhabitants;
use super::{Failure, Host};
use crate::host::table::SavedMoves;

impl Host {
    /// The namespace of an endpoint, where its address is not this host's own.
    pub(crate) fn namespace_of(&mut self, flow: &FlowTuple) -> Option<BorrowedFd<'_>> {
        self.endpoints.at(flow).map(|place| place.endpoint.as_fd())
    }

    /// The same for a whole process, which is to live in it.
    pub(crate) fn namespace_to_live_in(&mut self, name: MoveName, flow: &FlowTuple) -> Option<BorrowedFd<'_>> {
        self.endpoints.begin_rebuilding(name, flow);
        self.keep_to_leases();
        self.namespace_of(flow)
    }

    /// It has its sockets, or does not come: what programs bind there from now on is on lease.
    pub(crate) fn on_lives(&mut self, name: &MoveName) {
        self.endpoints.end_rebuilding(name);
        self.keep_to_leases();
    }

    /// Whether that of a connection is one that a program has brought along, with ports of its own.
    pub(crate) fn is_brought(&self, flow: &FlowTuple) -> bool {
        self.endpoints.name_of_flow(flow).lease.is_some()
    }

    /// Sockets come back to their ports, which are left free until they [have](Self::end_way).
    pub(crate) fn make_way(&mut self, flows: &[FlowTuple]) {
        for flow in flows {
            self.ports.make_way(flow.transport, flow.local);
            self.ports.expect(flow.transport, flow.local, true);
        }
    }

    /// They have their ports, or do not come.
    pub(crate) fn end_way(&mut self, flows: &[FlowTuple]) {
        flows.iter().for_each(|flow| self.ports.expect(flow.transport, flow.local, false));
    }

    /// Takes out the namespaces that nobody has needed for a while: they are to be [taken
    /// down](super::endpoints::take_down).
    pub(crate) fn expire_endpoints(&mut self, now: Time) -> Vec<Place> {
        let (ended, result) = self.endpoints.expire(now, &self.datapath);
        if let Err(error) = result {
            tracing::warn!(%error, "what is left of a namespace stays");
        }
        ended
    }

    /// What is on lease, or the namespaces for it, may have changed: programs are kept to it. Where that cannot be they
    /// are not; a port that is not on lease is deaf then.
    pub(crate) fn keep_to_leases(&mut self) {
        let leased = self.endpoints.leased_ports();
        if self.kept_to.as_ref() == Some(&leased) {
            return;
        }
        let Self { datapath, .. } = self;
        let kept = if leased.is_empty() { datapath.detach_leases() } else { datapath.attach_leases(&leased) };
        match kept {
            Ok(()) => (self.kept_to, self.told_of_leases) = (Some(leased), false),
            Err(error) if !self.told_of_leases => {
                tracing::warn!(%error, "programs are not told when they bind a port that is not on lease for them");
                self.told_of_leases = true;
            }
            Err(error) => tracing::debug!(%error, "programs are not kept to what is on lease yet"),
        }
    }

    /// The address that is local in the endpoint namespace with a cookie.
    pub(crate) fn address_with_cookie(&self, cookie: u64) -> Option<IpAddr> {
        self.endpoints.with_cookie(cookie).map(|name| name.address)
    }

    /// The address that is local in the endpoint namespace that a socket is in, and the lease that a program has
    /// brought that namespace along for, if one has. `None`: it is in none.
    pub(crate) fn namespace_with(&self, socket: BorrowedFd<'_>) -> Option<(IpAddr, Option<u64>)> {
        let cookie = namespace::cookie_of(socket.as_fd()).ok()?;
        self.endpoints.with_cookie(cookie).map(|name| (name.address, name.lease))
    }

    /// Runs something in the namespace of an address that is leased. `None`: there is none.
    pub(crate) fn in_namespace<T>(
        &mut self,
        address: IpAddr,
        act: impl FnOnce() -> T,
    ) -> Option<Result<T, whimbrel_kernel::Error>> {
        let place = self.endpoints.place(PlaceName { address, lease: None })?;
        Some(place.endpoint.enter().map(|_inside| act()))
    }

    /// Whether an endpoint belongs into the namespace that was brought along for a lease.
    pub(crate) fn is_in_namespace(&self, first: u64, end: SocketAddr) -> bool {
        self.endpoints.name_of(end).lease == Some(first)
    }

    /// Whether a flow's socket is in an endpoint namespace.
    pub(crate) fn is_in_endpoint(&self, flow: &FlowTuple) -> bool {
        self.flows.get(flow).is_some_and(|entry| entry.end == LocalEnd::Endpoint)
    }

    /// Injects an introduction into a flow of an endpoint namespace: it goes the way that the flow goes (P-87).
    pub(crate) fn introduce_in_endpoint(&mut self, flow: FlowTuple, introduction: Introduction) -> Result<(), Failure> {
        let Self { endpoints, datapath, .. } = self;
        let place = endpoints.at(&flow).ok_or(Failure::NoSocket(flow))?;
        let _inside = place.endpoint.enter()?;
        let sockets = &mut Snapshot::default();
        introductions::introduce(&place.injector, datapath, &mut place.connections, sockets, flow, introduction)
    }

    /// Whether the far end of a connection of a leased endpoint is not to learn where it is, as its program wants it.
    pub(crate) fn is_hidden(&mut self, flow: &FlowTuple) -> bool {
        // Of a socket that cannot be looked at nothing is told.
        let Some(place) = self.endpoints.at(flow) else { return true };
        place.hidden || place.connections.find(flow).ok().flatten().is_none_or(|socket| socket.mark == HIDDEN)
    }

    /// Whether a process is in the network namespace that a socket of its is in: this one, or that of the address.
    pub(crate) fn is_in_place(&mut self, pid: u32, flow: &FlowTuple) -> bool {
        let number = |namespace: BorrowedFd<'_>| rustix::fs::fstat(namespace).map(|stat| stat.st_ino).ok();
        let its = process_tree::network_of(pid).ok().and_then(|its| number(its.as_fd()));
        let place = match self.namespace_of(flow) {
            Some(namespace) => number(namespace),
            None => std::fs::File::open("/proc/thread-self/ns/net").ok().and_then(|own| number(own.as_fd())),
        };
        its.is_some() && its == place
    }

    /// The address of the endpoint namespace that a process is in, if it is in one.
    pub(crate) fn address_of_namespace(&self, pid: u32) -> Option<IpAddr> {
        let cookie = {
            let its = process_tree::network_of(pid).ok()?;
            let _inside = whimbrel_kernel::namespace::Entered::descriptor(its.as_fd()).ok()?;
            whimbrel_kernel::namespace::cookie().ok()?
        };
        self.address_with_cookie(cookie)
    }

    /// The endpoint namespaces whose sockets are to fit what has become of their flows. A look at each takes as long as
    /// one at all sockets of the machine, so there are none where none waits, nor has waited at the last one.
    pub(crate) fn namespaces_to_fit(&self, waits: bool) -> Vec<OwnedFd> {
        if !self.senders.looks_inside(waits) {
            return Vec::new();
        }
        let places = self.endpoints.in_use();
        let named = places.map(|place| place.endpoint.as_fd().try_clone_to_owned());
        let cannot = |error| tracing::warn!(%error, "connections of an endpoint namespace that wait may give up");
        named.filter_map(|descriptor| descriptor.map_err(cannot).ok()).collect()
    }

    /// Interfaces of namespaces are gone, or are not.
    pub(crate) fn forget_interfaces(&mut self, gone: Vec<(u32, Result<(), Error>)>) {
        for (interface, gone) in gone {
            // One that could not be taken down is watched over as before: nothing gets through it.
            let forgotten = gone.map_err(Failure::from).and_then(|()| Ok(self.datapath.forget(interface)?));
            if let Err(failure) = forgotten {
                tracing::warn!(interface, %failure, "what is left of a namespace stays");
            }
        }
    }

    /// Those that are in endpoint namespaces.
    pub(crate) fn inhabitants_elsewhere(&mut self) -> Vec<Inhabitants> {
        self.endpoints.inhabitants()
    }

    /// Takes over namespaces of a daemon before this one, for flows, leases and moves of it.
    pub(crate) fn adopt_namespaces(&mut self, flows: &HashMap<FlowTuple, FlowEntry>, moves: &SavedMoves) {
        // By the cookies of namespaces that programs have brought along: one of the leases that these are for.
        let mut brought: HashMap<u64, (u64, bool)> = HashMap::new();
        // First the leases that they were asked for: what has come with a socket since is of such a one, under a number
        // that others have drawn.
        let (asked_for, moved): (Vec<_>, Vec<_>) =
            moves.tenancies.values().partition(|(saved, _)| saved.moved.is_none());
        for (saved, namespace) in asked_for.into_iter().chain(moved) {
            let place = namespace.map(|of| brought.entry(of.cookie).or_insert((saved.number, of.hidden)).0);
            self.endpoints.on_leased(saved.lease(), place, saved.ends, saved.moved.is_some());
        }
        let inside = || flows.iter().filter(|(_, entry)| entry.end == LocalEnd::Endpoint).map(|(flow, _)| flow);
        let rented = || moves.tenancies.values().map(|(saved, _)| saved.ends.first);
        let users = inside().map(|flow| flow.local.ip()).chain(rented().map(|end| end.ip()));
        let of_moves = moves.donations.values().map(|saved| saved.tuple);
        let of_moves = of_moves.chain(moves.acceptances.values().map(|saved| saved.request.tuple));
        let wanted: HashSet<IpAddr> = users.chain(of_moves.map(|flow| flow.local.ip())).collect();
        if !wanted.is_empty() {
            let known = self.datapath.endpoints().unwrap_or_default();
            let cookies = self.datapath.followed_namespaces().unwrap_or_default();
            let found = endpoint::find(&cookies).unwrap_or_else(|error| {
                tracing::error!(%error, "namespaces of a daemon before this one are not found");
                Vec::new()
            });
            for found in found {
                // There may be several of one address: the pair tells which is whose.
                let outer = found.endpoint.outer().index;
                let known = known.iter().find(|(index, _)| *index == outer).map(|(_, known)| known.address);
                let Some(address) = known.filter(|address| wanted.contains(address)) else { continue };
                let (lease, hidden) = brought.get(&found.cookie).copied().unzip();
                let hidden = hidden.unwrap_or(false);
                if let Err(error) = self.endpoints.adopt(address, lease, hidden, found) {
                    tracing::error!(%address, %error, "a namespace of a daemon before this one cannot be used");
                }
            }
        }
        let endpoints = &mut self.endpoints;
        let mut lost: HashSet<IpAddr> = HashSet::new();
        lost.extend(inside().filter(|flow| !endpoints.adopt_flow(flow)).map(|flow| flow.local.ip()));
        for end in rented() {
            let name = endpoints.name_of(end);
            lost.extend((!endpoints.adopt_user(name)).then_some(end.ip()));
        }
        for address in lost {
            tracing::warn!(%address, "no program has a socket any more in the namespace of an address whose connections were moved here");
        }
    }

    /// Takes all of them down.
    ///
    /// # Errors
    /// The first; all is tried.
    pub(crate) fn end_namespaces(&mut self) -> Result<(), Failure> {
        self.endpoints = Endpoints::default();
        endpoint::remove_all()?;
        Ok(())
    }
}
