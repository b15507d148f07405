//! Endpoints of anchors: the namespaces that they are used in.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use whimbrel_datapath::{Endpoint as Known, Follow, Lent, Unknown};
use whimbrel_kernel::endpoint::Brought;
use whimbrel_kernel::sock_diag::{self, MOVABLE};
use whimbrel_protocol::{BindingId, FlowName, OpFailed, PeerId, Refusal, SavedTenancy, Time};
use whimbrel_tunnel::Lease;
use whimbrel_wire::lending::Ends;
use whimbrel_wire::{FlowTuple, Transport};

use super::young::{Ripening, Young};
use crate::host::endpoints::PlaceName;
use crate::host::lent::each;
use crate::host::refusal::{failed, not_kept};
use crate::host::table::SavedNamespace;
use crate::host::{Failure, Host, Mover, own_addresses};

/// Endpoints of others.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    rented: HashMap<FlowName, Rented>,
    /// Namespaces that programs have brought along for leases that are asked for.
    namespaces: HashMap<FlowName, Brought>,
    /// Leases that are asked for such a one, whose far ends are not to learn where they are.
    hidden: HashSet<FlowName>,
    /// Leases that are asked for a namespace that is there, by that of the first.
    joined: HashMap<FlowName, u64>,
    young: Ripening,
}

#[derive(Debug)]
struct Rented {
    ends: Ends,
    place: PlaceName,
    /// They came with a socket without another end, and are of this transport alone.
    moved: Option<Transport>,
}

impl Tenant {
    pub(crate) fn make_ready(&self, host: &mut Host, now: Time) -> Result<(), OpFailed> {
        host.make_ready(now, Mover::Tenant, !self.is_idle(), false)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.rented.is_empty()
    }

    fn has(&self, transport: Transport, end: SocketAddr) -> bool {
        let is_of = |of: &Rented| of.ends.contain(end) && of.moved.is_none_or(|moved| moved == transport);
        self.rented.values().any(is_of)
    }

    /// Takes the namespace that a program has brought along for a lease.
    pub(crate) fn take_brought(&mut self, lease: FlowName) -> Option<Brought> {
        self.namespaces.remove(&lease)
    }

    /// Which namespace a lease that begins is used in.
    pub(crate) fn place_of_lease(&self, host: &Host, lease: FlowName, ends: &Ends, moved: bool) -> PlaceName {
        let endpoints = &host.endpoints;
        // What has come with its socket was not asked for, under a number that others have drawn.
        if moved {
            return endpoints.name_of(ends.first);
        }
        let address = ends.first.ip();
        let brought = PlaceName { address, lease: Some(lease.value()) };
        if self.namespaces.contains_key(&lease) || endpoints.has(brought) {
            return brought;
        }
        let joined = self.joined.get(&lease).copied();
        PlaceName { address, lease: joined.or_else(|| endpoints.name_of(ends.first).lease) }
    }

    /// A program has brought a namespace along for a lease that is asked for.
    pub(crate) fn bring_namespace(&mut self, lease: FlowName, namespace: Brought, hidden: bool) {
        self.namespaces.insert(lease, namespace);
        if hidden {
            self.hidden.insert(lease);
        }
    }

    /// The lease was refused: another anchor may be asked.
    pub(crate) fn take_namespace(&mut self, lease: FlowName) -> Option<Brought> {
        self.hidden.remove(&lease);
        self.take_brought(lease)
    }

    /// A lease was refused for good.
    pub(crate) fn forget_namespace(&mut self, lease: FlowName) {
        self.take_namespace(lease);
        self.joined.remove(&lease);
    }

    /// A lease that is asked for is to go to the namespace that was brought along for another one.
    pub(crate) fn join_namespace(&mut self, lease: FlowName, first: u64) {
        self.joined.insert(lease, first);
    }

    pub(crate) fn occupy(
        &mut self,
        host: &mut Host,
        now: Time,
        tenancy: SavedTenancy,
        peer: PeerId,
        fresh: bool,
    ) -> Result<(), OpFailed> {
        let (lease, SavedTenancy { ends, moved, .. }) = (tenancy.lease(), tenancy);
        if !fresh {
            // One whose namespace is gone is not occupied either.
            if !self.is_occupied(host, lease) {
                return Err(failed(Refusal::Cancelled, &"nobody needs it any more"));
            }
            // The peer may be called otherwise by now, and the programs be those of a daemon that has just begun.
            let led = self.lead_rented(host, lease, peer).map_err(|failure| failed(Refusal::NoRights, &failure));
            return led.and_then(|()| self.make_ready(host, now));
        }
        // That of a socket that has come here may be among those that this host has on lease already, where it has
        // moved back.
        if moved.is_none() {
            self.is_foreign(host, &ends)?;
        }
        let Host { endpoints, datapath, .. } = &mut *host;
        let tenant = &mut *self;
        if moved.is_some() || !endpoints.bring(lease, ends, tenant.hidden.remove(&lease)) {
            // An endpoint that has come with its socket may be of what a program has brought its namespace along for.
            let first = tenant.joined.remove(&lease).or_else(|| endpoints.name_of(ends.first).lease);
            endpoints.on_leased(lease, first, ends, moved.is_some());
            if let Err(failure) = endpoints.need(now, ends.first, datapath) {
                endpoints.on_over(lease);
                return Err(failed(Refusal::NoRights, &failure));
            }
        }
        let place = endpoints.name_of(ends.first);
        self.rented.insert(lease, Rented { ends, place, moved });
        host.keep_to_leases();
        let done = self.furnish(host, lease, peer).and_then(|()| self.lead_rented(host, lease, peer));
        let done =
            done.map_err(|failure| failed(Refusal::NoRights, &failure)).and_then(|()| self.make_ready(host, now));
        let done = done.and_then(|()| self.keep(host, tenancy));
        if let Err(failed) = done {
            self.vacate(host, now, lease)?;
            return Err(failed);
        }
        Ok(())
    }

    /// Keeps a lease over a restart, if there is a place for it.
    pub(crate) fn keep(&mut self, host: &mut Host, tenancy: SavedTenancy) -> Result<(), OpFailed> {
        if !self.rented.contains_key(&tenancy.lease()) {
            return Ok(());
        }
        let brought = self.brought(host, tenancy.lease());
        host.store.save_tenancy(tenancy, brought).map_err(not_kept)
    }

    /// An anchor lends what is its own, and nothing that this host has, or has from another.
    pub(crate) fn is_foreign(&self, host: &Host, ends: &Ends) -> Result<(), OpFailed> {
        let address = ends.first.ip();
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let here = address.is_loopback() || link_local || own_addresses(&host.network).contains(&address);
        if here || host.endpoints.overlaps(ends) {
            return Err(failed(Refusal::Taken, &format!("{address} is this host's own, or on lease from another")));
        }
        Ok(())
    }

    /// The namespace that a program has brought along for a lease.
    fn brought(&mut self, host: &mut Host, lease: FlowName) -> Option<SavedNamespace> {
        let place = self.rented.get(&lease)?.place;
        place.lease?;
        let place = host.endpoints.place(place)?;
        Some(SavedNamespace { cookie: place.cookie, hidden: place.hidden })
    }

    /// Whether programs may use what a lease is of.
    pub(crate) fn is_lease_used(&mut self, host: &mut Host, lease: FlowName) -> bool {
        self.is_occupied(host, lease)
    }

    /// Whether programs may have sockets of these endpoints.
    fn is_occupied(&mut self, host: &mut Host, lease: FlowName) -> bool {
        let Some(Rented { ends, place, moved }) = self.rented.get(&lease) else { return false };
        let (ends, name, moved) = (*ends, *place, *moved);
        let draws = ends.count > 1;
        let Some(place) = host.endpoints.place(name) else { return false };
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
    fn furnish(&mut self, host: &mut Host, lease: FlowName, peer: PeerId) -> Result<(), Failure> {
        let Some(Rented { ends, place, .. }) = self.rented.get(&lease) else { return Ok(()) };
        let (ends, mtu) = (*ends, host.tunnels.known_inner_mtu(BindingId::first(peer)));
        let Some(place) = host.endpoints.place(*place) else { return Ok(()) };
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
        host.datapath.follow_namespace(place.cookie, Follow::All)?;
        Ok(())
    }

    /// What comes for the endpoints goes into the namespace, and what is sent from them to the anchor.
    fn lead_rented(&mut self, host: &mut Host, lease: FlowName, peer: PeerId) -> Result<(), Failure> {
        let Some(rented) = self.rented.get(&lease) else { return Ok(()) };
        let (ends, moved) = (rented.ends, rented.moved);
        let Some(interface) = host.endpoints.place(rented.place).map(|place| place.interface) else {
            return Ok(());
        };
        let address = ends.first.ip();
        host.datapath
            .set_endpoint(interface, &Known { address, unknown: Unknown::Tunnelled(BindingId::first(peer)) })?;
        for end in each(ends, moved) {
            host.lead(end, Lent::Endpoint(interface), Lease::From(peer))?;
        }
        Ok(())
    }

    pub(crate) fn vacate(&mut self, host: &mut Host, now: Time, lease: FlowName) -> Result<(), OpFailed> {
        host.store.forget_tenancy(lease);
        self.forget_namespace(lease);
        let Some(rented) = self.rented.remove(&lease) else {
            // Its namespace was gone when this daemon began. The same endpoints may be on lease again from now on.
            host.endpoints.on_over(lease);
            return Ok(());
        };
        for end in each(rented.ends, rented.moved) {
            let of_another = |of| self.has(of, SocketAddr::new(end.address, end.port));
            if !Transport::from_protocol(end.protocol).is_some_and(of_another) {
                host.end_lead(&end);
            }
        }
        host.endpoints.on_over(lease);
        host.endpoints.release(now, rented.place);
        host.keep_to_leases();
        self.make_ready(host, now)
    }

    /// The leases that a daemon before this one had: their namespaces are found by [`Host::adopt_moves`].
    pub(crate) fn adopt_tenancies(
        &mut self,
        host: &mut Host,
        now: Time,
        saved: &[(SavedTenancy, Option<SavedNamespace>)],
    ) {
        for (tenancy, _) in saved {
            let SavedTenancy { ends, moved, .. } = tenancy;
            let place = host.endpoints.name_of(ends.first);
            if host.endpoints.place(place).is_some() {
                self.rented.insert(tenancy.lease(), Rented { ends: *ends, place, moved: *moved });
                self.on_open(host, now, *ends);
            }
        }
    }

    /// Connections of a lease that a daemon before this one may not have come to claim.
    fn on_open(&mut self, host: &mut Host, now: Time, ends: Ends) {
        let name = host.endpoints.name_of(ends.first);
        let Some(place) = host.endpoints.place(name) else { return };
        let open = place.connections.tcp(&MOVABLE).unwrap_or_default().into_iter().map(|socket| socket.tuple);
        let flows: Vec<FlowTuple> = open.filter(|flow| ends.contain(flow.local)).collect();
        // Who has opened them is not known any more: their far ends are not looked for, but may look for this host.
        // They are claimed at once: the anchor may have ended the lease, and not what was claimed of it already (P-86).
        for flow in flows {
            self.young.note_old(now, Young { flow, accepted: true, hidden: false, tries: 0 });
        }
    }

    /// Whether the namespace of an address has ports that the kernel draws from.
    pub(crate) fn draws_ports(&self, address: IpAddr) -> bool {
        let place = PlaceName { address, lease: None };
        self.rented.values().any(|rented| rented.place == place && rented.ends.count > 1)
    }

    /// Whether an endpoint that is leased belongs into the namespace that a socket is in.
    pub(crate) fn is_in_namespace_of(&self, host: &Host, socket: BorrowedFd<'_>, end: SocketAddr) -> bool {
        let leased = self.rented.values().any(|rented| rented.ends.contain(end));
        let name = host.endpoints.name_of(end);
        leased && host.namespace_with(socket) == Some((name.address, name.lease))
    }

    /// A connection has opened in an endpoint namespace.
    pub(crate) fn on_young(&mut self, now: Time, flow: FlowTuple, accepted: bool) {
        self.young.record(now, Young { flow, accepted, hidden: false, tries: 0 });
    }

    /// A connection could not be claimed: it is tried again later (P-128).
    pub(crate) fn on_unclaimed(&mut self, now: Time, young: Young) {
        self.young.record(now, Young { tries: young.tries.saturating_add(1), ..young });
    }

    /// A connection in an endpoint namespace is over, whatever of it the kernel still keeps for its far end.
    pub(crate) fn forget_young(&mut self, flow: &FlowTuple) {
        self.young.forget(flow);
    }

    /// The connections among these that have lasted, and are there still.
    pub(crate) fn take_mature(&mut self, host: &mut Host, now: Time) -> Vec<Young> {
        let mut mature = Vec::new();
        while let Some(young) = self.young.take(now) {
            if matches!(host.socket_of(&young.flow), Ok(Some(_))) {
                let hidden = host.is_hidden(&young.flow);
                mature.push(Young { hidden, ..young });
            }
        }
        mature
    }
}
