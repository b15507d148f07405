//! Endpoints of anchors: the namespaces that they are used in.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use whimbrel_datapath::{Endpoint as Known, Follow, LeasedPorts, Lent, LentEnd, Unknown};
use whimbrel_kernel::endpoint::Brought;
use whimbrel_kernel::namespace;
use whimbrel_kernel::sock_diag::{self, MOVABLE, TcpState};
use whimbrel_protocol::{FlowName, LocalEnd, OpFailed, PeerId, Refusal, SavedTenancy, Time};
use whimbrel_tunnel::{Lease, LeasedEnd, Peer};
use whimbrel_wire::introduction::Introduction;
use whimbrel_wire::lending::Ends;
use whimbrel_wire::{FlowTuple, Transport};

use super::endpoints::PlaceName;
use super::young::{Ripening, Young};
use super::{Relocation, failed, not_kept};
use crate::effects::introductions::{self, Snapshot};
use crate::effects::{Effects, Failure, own_addresses};
use crate::journal::SavedNamespace;

/// The states of connections that a socket that listens has, or is about to have.
const OPEN: [TcpState; 7] = {
    let [a, b, c, d, e, f] = MOVABLE;
    [TcpState::SynReceived, a, b, c, d, e, f]
};

/// The mark (SO_MARK) of sockets in endpoint namespaces whose far ends are not to learn where they are. Sockets that such a one accepts have it
/// as well, and it outlives the daemon. The kernel takes it off what leaves the namespace (`skb_scrub_packet`); none of its bits is one that routing
/// looks at here ([`MARK`](crate::effects::MARK)).
pub(crate) const HIDDEN: u32 = 0x0057_4248;

/// Endpoints of others.
#[derive(Debug, Default)]
pub(super) struct Tenant {
    rented: HashMap<FlowName, Rented>,
    /// Namespaces that programs have brought along for leases that are asked for.
    namespaces: HashMap<FlowName, Brought>,
    /// Leases that are asked for such a one, whose far ends are not to learn where they are.
    hidden: HashSet<FlowName>,
    /// Leases that are asked for a namespace that is there, by that of the first.
    joined: HashMap<FlowName, u64>,
    young: Ripening,
    /// The ports that programs are kept to. None: a daemon before this one may keep them to others.
    kept_to: Option<LeasedPorts>,
    /// That they cannot be was told.
    told: bool,
}

#[derive(Debug)]
struct Rented {
    ends: Ends,
    place: PlaceName,
    /// They came with a socket without another end, and are of this transport alone.
    moved: Option<Transport>,
}

impl Rented {
    fn transports(&self) -> impl Iterator<Item = Transport> + use<> {
        let moved = self.moved;
        [Transport::Tcp, Transport::Udp].into_iter().filter(move |of| moved.is_none_or(|moved| moved == *of))
    }

    fn protocols(&self) -> impl Iterator<Item = u8> + use<> {
        self.transports().map(Transport::protocol).chain(icmp_of(&self.ends))
    }
}

/// The IP protocol number of what is lent with a whole address, beside TCP and UDP: echoes are answered by who has it (P-112).
pub(super) fn icmp_of(ends: &Ends) -> Option<u8> {
    const ICMP: u8 = 1;
    const ICMPV6: u8 = 58;
    (ends.count == 0).then_some(if ends.first.is_ipv4() { ICMP } else { ICMPV6 })
}

impl Tenant {
    pub(super) fn is_idle(&self) -> bool {
        self.rented.is_empty()
    }

    fn has(&self, transport: Transport, end: SocketAddr) -> bool {
        let is_of = |rented: &Rented| rented.ends.contain(end) && rented.transports().any(|of| of == transport);
        self.rented.values().any(is_of)
    }
}

impl Relocation {
    /// Takes the namespace that a program has brought along for a lease.
    pub(super) fn take_brought(&mut self, lease: FlowName) -> Option<Brought> {
        self.tenant.namespaces.remove(&lease)
    }

    /// Which namespace a lease that begins is used in.
    pub(super) fn place_of_lease(&self, lease: FlowName, ends: &Ends, moved: bool) -> PlaceName {
        let Self { tenant, endpoints, .. } = self;
        // What has come with its socket was not asked for, under a number that others have drawn.
        if moved {
            return endpoints.name_of(ends.first);
        }
        let address = ends.first.ip();
        let brought = PlaceName { address, lease: Some(lease.value()) };
        if tenant.namespaces.contains_key(&lease) || endpoints.has(brought) {
            return brought;
        }
        let joined = tenant.joined.get(&lease).copied();
        PlaceName { address, lease: joined.or_else(|| endpoints.name_of(ends.first).lease) }
    }
}

impl Effects {
    /// A program has brought a namespace along for a lease that is asked for.
    pub(crate) fn bring_namespace(&mut self, lease: FlowName, namespace: Brought, hidden: bool) {
        let Tenant { namespaces, hidden: all, .. } = &mut self.relocation.tenant;
        namespaces.insert(lease, namespace);
        if hidden {
            all.insert(lease);
        }
    }

    /// The lease was refused: another anchor may be asked.
    pub(crate) fn take_namespace(&mut self, lease: FlowName) -> Option<Brought> {
        self.relocation.tenant.hidden.remove(&lease);
        self.relocation.take_brought(lease)
    }

    /// A lease was refused for good.
    pub(crate) fn forget_namespace(&mut self, lease: FlowName) {
        self.take_namespace(lease);
        self.relocation.tenant.joined.remove(&lease);
    }

    /// A lease that is asked for is to go to the namespace that was brought along for another one.
    pub(crate) fn join_namespace(&mut self, lease: FlowName, first: u64) {
        self.relocation.tenant.joined.insert(lease, first);
    }

    pub(super) fn occupy(
        &mut self,
        now: Time,
        tenancy: SavedTenancy,
        peer: PeerId,
        fresh: bool,
    ) -> Result<(), OpFailed> {
        let (lease, SavedTenancy { ends, moved, .. }) = (tenancy.lease(), tenancy);
        if !fresh {
            // One whose namespace is gone is not occupied either.
            if !self.is_occupied(lease) {
                return Err(failed(Refusal::Cancelled, &"nobody needs it any more"));
            }
            // The peer may be called otherwise by now, and the programs be those of a daemon that has just begun.
            let led = self.lead_rented(lease, peer).map_err(|failure| failed(Refusal::NoRights, &failure));
            return led.and_then(|()| self.make_ready(now));
        }
        // That of a socket that has come here may be among those that this host has on lease already, where it has moved back.
        if moved.is_none() {
            self.is_foreign(&ends)?;
        }
        let Self { relocation: Relocation { endpoints, tenant, .. }, datapath, .. } = self;
        if moved.is_some() || !endpoints.bring(lease, ends, tenant.hidden.remove(&lease)) {
            // An endpoint that has come with its socket may be of what a program has brought its namespace along for.
            let first = tenant.joined.remove(&lease).or_else(|| endpoints.name_of(ends.first).lease);
            endpoints.note_leased(lease, first, ends, moved.is_some());
            if let Err(failure) = endpoints.need(now, ends.first, datapath) {
                endpoints.note_over(lease);
                return Err(failed(Refusal::NoRights, &failure));
            }
        }
        let place = endpoints.name_of(ends.first);
        self.relocation.tenant.rented.insert(lease, Rented { ends, place, moved });
        self.keep_to_leases();
        let done = self.furnish(lease, peer).and_then(|()| self.lead_rented(lease, peer));
        let done = done.map_err(|failure| failed(Refusal::NoRights, &failure)).and_then(|()| self.make_ready(now));
        let brought = self.brought(lease);
        let done = done.and_then(|()| self.journal.save_tenancy(tenancy, brought).map_err(not_kept));
        if let Err(failed) = done {
            self.vacate(now, lease)?;
            return Err(failed);
        }
        Ok(())
    }

    /// What is on lease, or the namespaces for it, may have changed: programs are kept to it. Where that cannot be they are not; a port that is
    /// not on lease is deaf then.
    pub(super) fn keep_to_leases(&mut self) {
        let leased = self.relocation.endpoints.leased_ports();
        let Self { relocation: Relocation { tenant, .. }, datapath, .. } = self;
        if tenant.kept_to.as_ref() == Some(&leased) {
            return;
        }
        let kept = if leased.is_empty() { datapath.detach_leases() } else { datapath.attach_leases(&leased) };
        match kept {
            Ok(()) => (tenant.kept_to, tenant.told) = (Some(leased), false),
            Err(error) if !tenant.told => {
                tracing::warn!(%error, "programs are not told when they bind a port that is not on lease for them");
                tenant.told = true;
            }
            Err(error) => tracing::debug!(%error, "programs are not kept to what is on lease yet"),
        }
    }

    /// An anchor lends what is its own, and nothing that this host has, or has from another.
    pub(super) fn is_foreign(&self, ends: &Ends) -> Result<(), OpFailed> {
        let address = ends.first.ip();
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let here = address.is_loopback() || link_local || own_addresses(&self.network).contains(&address);
        if here || self.relocation.endpoints.overlaps(ends) {
            return Err(failed(Refusal::Taken, &format!("{address} is this host's own, or on lease from another")));
        }
        Ok(())
    }

    /// The namespace that a program has brought along for a lease.
    fn brought(&mut self, lease: FlowName) -> Option<SavedNamespace> {
        let place = self.relocation.tenant.rented.get(&lease)?.place;
        place.lease?;
        let place = self.relocation.endpoints.place(place)?;
        Some(SavedNamespace { cookie: place.cookie, hidden: place.hidden })
    }

    /// Whether programs may use what a lease is of.
    pub(crate) fn is_lease_used(&mut self, lease: FlowName) -> bool {
        self.is_occupied(lease)
    }

    /// Whether programs may have sockets of these endpoints.
    fn is_occupied(&mut self, lease: FlowName) -> bool {
        let Some(Rented { ends, place, moved }) = self.relocation.tenant.rented.get(&lease) else { return false };
        let (ends, name, moved) = (*ends, *place, *moved);
        let draws = ends.count > 1;
        let Some(place) = self.relocation.endpoints.place(name) else { return false };
        // A namespace that was brought along is one program's, with all of its ports.
        if draws || ends.count == 0 || name.lease.is_some() {
            // What the kernel lists is found out much sooner than what it does not.
            return place.inhabitants(name.address).is_none_or(|found| !found.is_empty()) || place.endpoint.is_used();
        }
        if let Some(transport) = moved {
            return place.connections.is_port_used_by(transport, ends.first.port()).unwrap_or(true);
        }
        // A port of a program's choice: whether anybody has it. What the kernel does not list may be anybody's.
        let used = place.connections.is_port_used(ends.first.port()).unwrap_or(true);
        used || !sock_diag::lists_bound() && place.endpoint.is_used()
    }

    /// What programs find in the namespace: their ports, and how long packets may be on their way by the tunnel.
    fn furnish(&mut self, lease: FlowName, peer: PeerId) -> Result<(), Failure> {
        let Some(Rented { ends, place, .. }) = self.relocation.tenant.rented.get(&lease) else { return Ok(()) };
        let (ends, mtu) = (*ends, self.tunnels.known_inner_mtu(peer));
        let Some(place) = self.relocation.endpoints.place(*place) else { return Ok(()) };
        let draws = ends.count > 1;
        if draws {
            let last = ends.ports().last().unwrap_or_default();
            place.endpoint.draw_ports(&(ends.first.port()..=last))?;
        }
        if draws || ends.count == 0 {
            // Privileged ports are the anchor's business, which has lent them.
            place.endpoint.let_anybody_listen()?;
        }
        if let Some(mtu) = mtu {
            place.endpoint.set_mtu(ends.first.ip(), mtu)?;
        }
        self.datapath.follow_namespace(place.cookie, Follow::All)?;
        Ok(())
    }

    /// What comes for the endpoints goes into the namespace, and what is sent from them to the anchor.
    fn lead_rented(&mut self, lease: FlowName, peer: PeerId) -> Result<(), Failure> {
        let Some(rented) = self.relocation.tenant.rented.get(&lease) else { return Ok(()) };
        let (ends, place) = (rented.ends, rented.place);
        let (transports, protocols): (Vec<_>, Vec<_>) = (rented.transports().collect(), rented.protocols().collect());
        let Some(interface) = self.relocation.endpoints.place(place).map(|place| place.interface) else {
            return Ok(());
        };
        let address = ends.first.ip();
        self.datapath.set_endpoint(interface, &Known { address, unknown: Unknown::Tunnelled(peer.0) })?;
        for port in ends.ports() {
            for protocol in protocols.clone() {
                self.datapath.set_lent(&LentEnd { address, port, protocol }, Lent::Endpoint(interface))?;
            }
            for transport in transports.clone() {
                self.tunnel.set_lease(LeasedEnd { transport, address, port }, Lease::From(Peer(peer.0)));
            }
        }
        Ok(())
    }

    pub(super) fn vacate(&mut self, now: Time, lease: FlowName) -> Result<(), OpFailed> {
        self.journal.forget_tenancy(lease);
        self.forget_namespace(lease);
        let Some(rented) = self.relocation.tenant.rented.remove(&lease) else {
            // Its namespace was gone when this daemon began. The same endpoints may be on lease again from now on.
            self.relocation.endpoints.note_over(lease);
            return Ok(());
        };
        let (ends, place) = (rented.ends, rented.place);
        let address = ends.first.ip();
        for port in ends.ports() {
            for protocol in rented.protocols() {
                let of_another = |of| self.relocation.tenant.has(of, SocketAddr::new(address, port));
                if Transport::from_protocol(protocol).is_some_and(of_another) {
                    continue;
                }
                let end = LentEnd { address, port, protocol };
                if let Err(error) = self.datapath.remove_lent(&end) {
                    tracing::warn!(%address, port, %error, "an endpoint whose lease is over stays");
                }
            }
            for transport in rented.transports() {
                if !self.relocation.tenant.has(transport, SocketAddr::new(address, port)) {
                    self.tunnel.remove_lease(&LeasedEnd { transport, address, port });
                }
            }
        }
        self.relocation.endpoints.note_over(lease);
        self.relocation.endpoints.release(now, place);
        self.keep_to_leases();
        self.make_ready(now)
    }

    /// The leases that a daemon before this one had: their namespaces are found by [`Effects::adopt_moves`].
    pub(super) fn adopt_tenancies(&mut self, now: Time, saved: &[(SavedTenancy, Option<SavedNamespace>)]) {
        for (tenancy, _) in saved {
            let SavedTenancy { ends, moved, .. } = tenancy;
            let place = self.relocation.endpoints.name_of(ends.first);
            if self.relocation.endpoints.place(place).is_some() {
                self.relocation.tenant.rented.insert(tenancy.lease(), Rented { ends: *ends, place, moved: *moved });
                self.note_open(now, *ends);
            }
        }
    }

    /// Connections of a lease that a daemon before this one may not have come to claim.
    fn note_open(&mut self, now: Time, ends: Ends) {
        let name = self.relocation.endpoints.name_of(ends.first);
        let Some(place) = self.relocation.endpoints.place(name) else { return };
        let open = place.connections.tcp(&MOVABLE).unwrap_or_default().into_iter().map(|socket| socket.tuple);
        let flows: Vec<FlowTuple> = open.filter(|flow| ends.contain(flow.local)).collect();
        // Who has opened them is not known any more: their far ends are not looked for, but may look for this host. They are claimed at once:
        // the anchor may have ended the lease, and not what was claimed of it already (P-86).
        for flow in flows {
            self.relocation.tenant.young.note_old(now, Young { flow, accepted: true, hidden: false, tries: 0 });
        }
    }

    /// Runs something in the namespace of an address that is leased. `None`: there is none.
    pub(crate) fn in_namespace<T>(
        &mut self,
        address: IpAddr,
        act: impl FnOnce() -> T,
    ) -> Option<Result<T, whimbrel_kernel::Error>> {
        let place = self.relocation.endpoints.place(PlaceName { address, lease: None })?;
        Some(place.endpoint.enter().map(|_inside| act()))
    }

    /// The address that is local in the endpoint namespace that a socket is in, and the lease that a program has brought that namespace
    /// along for, if one has. `None`: it is in none.
    pub(crate) fn namespace_with(&self, socket: BorrowedFd<'_>) -> Option<(IpAddr, Option<u64>)> {
        let cookie = namespace::cookie_of(socket.as_fd()).ok()?;
        self.relocation.endpoints.with_cookie(cookie).map(|name| (name.address, name.lease))
    }

    /// The address that is local in the endpoint namespace with a cookie.
    pub(in crate::effects) fn address_with_cookie(&self, cookie: u64) -> Option<IpAddr> {
        self.relocation.endpoints.with_cookie(cookie).map(|name| name.address)
    }

    /// Whether the namespace of an address has ports that the kernel draws from.
    pub(crate) fn draws_ports(&self, address: IpAddr) -> bool {
        let place = PlaceName { address, lease: None };
        self.relocation.tenant.rented.values().any(|rented| rented.place == place && rented.ends.count > 1)
    }

    /// Whether an endpoint belongs into the namespace that was brought along for a lease.
    pub(crate) fn is_in_namespace(&self, first: u64, end: SocketAddr) -> bool {
        self.relocation.endpoints.name_of(end).lease == Some(first)
    }

    /// Whether an endpoint that is leased belongs into the namespace that a socket is in.
    pub(crate) fn is_in_namespace_of(&self, socket: BorrowedFd<'_>, end: SocketAddr) -> bool {
        let leased = self.relocation.tenant.rented.values().any(|rented| rented.ends.contain(end));
        let name = self.relocation.endpoints.name_of(end);
        leased && self.namespace_with(socket) == Some((name.address, name.lease))
    }

    /// A connection has opened in an endpoint namespace.
    pub(crate) fn note_young(&mut self, now: Time, flow: FlowTuple, accepted: bool) {
        self.relocation.tenant.young.note(now, Young { flow, accepted, hidden: false, tries: 0 });
    }

    /// A connection could not be claimed: it is tried again later (P-128).
    pub(crate) fn note_unclaimed(&mut self, now: Time, young: Young) {
        self.relocation.tenant.young.note(now, Young { tries: young.tries.saturating_add(1), ..young });
    }

    /// A connection in an endpoint namespace is over, whatever of it the kernel still keeps for its far end.
    pub(crate) fn forget_young(&mut self, flow: &FlowTuple) {
        self.relocation.tenant.young.forget(flow);
    }

    /// Whether the far end of a connection of a leased endpoint is not to learn where it is, as its program wants it.
    pub(crate) fn is_hidden(&mut self, flow: &FlowTuple) -> bool {
        // Of a socket that cannot be looked at nothing is told.
        let Some(place) = self.relocation.endpoints.at(flow) else { return true };
        place.hidden || place.connections.find(flow).ok().flatten().is_none_or(|socket| socket.mark == HIDDEN)
    }

    /// Whether a flow's socket is in an endpoint namespace.
    pub(in crate::effects) fn is_in_endpoint(&self, flow: &FlowTuple) -> bool {
        self.journal.flows().get(flow).is_some_and(|entry| entry.end == LocalEnd::Endpoint)
    }

    /// Injects an introduction into a flow of an endpoint namespace: it goes the way that the flow goes (P-87).
    pub(in crate::effects) fn introduce_in_endpoint(
        &mut self,
        flow: FlowTuple,
        introduction: Introduction,
    ) -> Result<(), Failure> {
        let Self { relocation, datapath, .. } = self;
        let place = relocation.endpoints.at(&flow).ok_or(Failure::NoSocket(flow))?;
        let _inside = place.endpoint.enter()?;
        let sockets = &mut Snapshot::default();
        introductions::introduce(&place.injector, datapath, &mut place.connections, sockets, flow, introduction)
    }

    /// The connections of a socket without another end, and those that are being opened: what is of no flow among them would go where it
    /// goes. New ones wait from now on, if it listens. Nothing where its address is this host's own.
    pub(crate) fn connections_of(&mut self, socket: &FlowTuple) -> Result<Vec<FlowTuple>, Failure> {
        if self.relocation.endpoints.at(socket).is_none() {
            return Ok(Vec::new());
        }
        if socket.listens() {
            self.keep_new(socket)?;
        }
        let Some(place) = self.relocation.endpoints.at(socket) else { return Ok(Vec::new()) };
        let all = match socket.transport {
            Transport::Tcp => place.connections.tcp(&OPEN)?,
            Transport::Udp => place.connections.udp()?,
        };
        let flows = all.into_iter().map(|connection| connection.tuple);
        Ok(flows.filter(|flow| flow.local == socket.local).collect())
    }

    /// The connections among these that have lasted, and are there still.
    pub(crate) fn take_mature(&mut self, now: Time) -> Vec<Young> {
        let mut mature = Vec::new();
        while let Some(young) = self.relocation.tenant.young.take(now) {
            if matches!(self.socket_of(&young.flow), Ok(Some(_))) {
                let hidden = self.is_hidden(&young.flow);
                mature.push(Young { hidden, ..young });
            }
        }
        mature
    }
}
