//! Lending endpoints of this host: which are free, who else is kept from them, and what leads to the tenant.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use whimbrel_datapath::Role;
use whimbrel_handshake::PublicKey;
use whimbrel_ipc::{Offer, OfferedAddress, OfferedPrefix};
use whimbrel_kernel::route::{AddressScope, LOOPBACK, NewAddress};
use whimbrel_protocol::{LeaseName, LocalEnd, OpFailed, PeerId, Prefix, Refusal, SavedHeld, SavedLease, Time};
use whimbrel_wire::lending::Ends;
use whimbrel_wire::{FlowTuple, Transport};

use crate::host::lent::LentOut;
use crate::host::ports::User;
use crate::host::refusal::{failed, not_kept, refused};
use crate::host::table::SavedMoves;
use crate::host::{Failure, Host, Mover, own_addresses};
use crate::role::anchor::config::Lendable;
use crate::role::anchor::offer;
use crate::role::anchor::offer::{About, BLOCK, Fault, LentOf};
use crate::store::StoreError;

/// Addresses of a prefix that are looked at for a free one.
const MOST_ADDRESSES: u32 = 1 << 16;
/// Ports that are lent at a time, at the most: each is held by two sockets of the daemon.
const MOST_PORTS: u16 = 1024;
/// And in all: each takes two descriptors (`LimitNOFILE` of the unit is 65,536), and two entries of the map `lent`,
/// which has as many.
const MOST_PORTS_IN_ALL: usize = 16_384;

/// Whom this host lends what.
#[derive(Debug, Default)]
pub(crate) struct Lender {
    lendable: Option<Lendable>,
    /// Nothing new is lent.
    stopped: bool,
}

impl Lender {
    pub(crate) fn make_ready(&self, host: &mut Host, now: Time) -> Result<(), OpFailed> {
        host.make_ready(now, Mover::Lender, !host.lent().is_empty(), false)
    }

    /// Whether this host lends nothing new, as this daemon or one before it was told.
    pub(crate) fn is_lending_stopped(&self) -> bool {
        self.stopped
    }

    /// Takes over whether a daemon before this one was told to lend nothing new.
    pub(crate) fn adopt_stopped(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    /// Keeps over a restart whether this host lends nothing new.
    pub(crate) fn save_lending_stopped(&mut self, host: &mut Host, stopped: bool) -> Result<(), StoreError> {
        if self.stopped != stopped {
            host.store.save_lending_stopped(stopped)?;
            self.stopped = stopped;
        }
        Ok(())
    }

    /// What this host may lend from now on.
    pub(crate) fn set_lendable(&mut self, lendable: Option<Lendable>) {
        self.lendable = lendable;
    }

    /// What of it cannot be lent as things stand, and what is lent and not to be reached.
    fn lending_faults(&self, host: &Host) -> Vec<Fault> {
        let faults = |lendable| offer::faults(lendable, &lent_of(host), &host.network);
        self.lendable.as_ref().map(faults).unwrap_or_default()
    }

    /// The same, where it is not as it was told last.
    pub(crate) fn new_lending_faults(&self, host: &Host, told: &[Fault]) -> Option<Vec<Fault>> {
        offer::changed(told, self.lendable.as_ref()?, &lent_of(host), &host.network)
    }

    /// What this host is configured to lend, how much of it is lent, and how much more there is room for.
    pub(crate) fn offer(&mut self, host: &mut Host) -> Option<Offer> {
        let lendable = self.lendable.clone()?;
        let faults = self.lending_faults(host);
        let usual = [true, false].into_iter().filter_map(|ipv4| offer::lends_of(&lendable, &host.network, ipv4));
        let usual: Vec<IpAddr> = usual.collect();
        let used = host.connections.ports_used_at(&usual).unwrap_or_else(|error| {
            tracing::warn!(%error, "which ports this host uses itself is not known");
            vec![BTreeSet::new(); usual.len()]
        });
        let of = usual.into_iter().zip(used);
        let of = of.map(|(address, used)| offered_address(host, &lendable, address, used, &faults)).collect();
        let addresses = lendable.addresses.iter().map(|prefix| offered_prefix(host, prefix, &faults)).collect();
        let is_lent = |fault: &Fault| matches!(fault.about, About::Lent(_));
        let (unreached, faults): (Vec<Fault>, Vec<Fault>) = faults.into_iter().partition(is_lent);
        Some(Offer {
            ports: lendable.ports.iter().map(|range| (*range.start(), *range.end())).collect(),
            of,
            addresses,
            faults: faults.into_iter().map(|fault| fault.sentence).collect(),
            unreached: unreached.into_iter().map(|fault| fault.sentence).collect(),
        })
    }

    pub(crate) fn lend(
        &mut self,
        host: &mut Host,
        now: Time,
        name: LeaseName,
        peer: PeerId,
        wanted: Ends,
        moved: Option<Transport>,
    ) -> Result<Ends, OpFailed> {
        let before = host.lent().get(&name).copied();
        let ends = match (before, moved) {
            (Some(LentOut { ends, .. }), _) => {
                if ends.count == 0 {
                    // A daemon before this one may have taken it along.
                    let announced = self.announce_address(host, ends.first.ip());
                    announced.map_err(|error| refused(&error, Refusal::NoRights))?;
                }
                ends
            }
            (None, Some(transport)) => {
                host.ports.need(transport, wanted.first, User::Endpoint);
                wanted
            }
            (None, None) => self.find_free(host, &wanted, peer)?,
        };
        // Of one that a daemon before this one had lent the subnet may be gone since.
        let on_link = before.is_some_and(|lent| lent.on_link) || offer::is_on_link(&host.network, ends.first.ip());
        if let Err(failure) = host.lend(name, LentOut { ends, moved, peer, on_link }) {
            self.take_back(host, now, name)?;
            return Err(failed(Refusal::NoRoom, &failure));
        }
        host.let_forward();
        let ready = self.make_ready(host, now).and_then(|()| self.follow_loopback(host));
        // What has moved is kept by whose it is.
        let kept = ready.and_then(|()| match moved {
            Some(_) => Ok(()),
            None if before.is_some_and(|before| (before.ends, before.on_link) == (ends, on_link)) => Ok(()),
            None => host.store.save_lease(SavedLease { name, ends }, on_link).map_err(not_kept),
        });
        if let Err(failed) = kept {
            self.take_back(host, now, name)?;
            return Err(failed);
        }
        Ok(ends)
    }

    pub(crate) fn take_back(&mut self, host: &mut Host, now: Time, name: LeaseName) -> Result<(), OpFailed> {
        host.store.forget_lease(name);
        let lent = host.take_lent_back(&name);
        if let Some(LentOut { ends, .. }) = lent.filter(|lent| lent.ends.count == 0) {
            self.withdraw_address(host, ends.first.ip());
        }
        self.follow_loopback(host)?;
        self.make_ready(host, now)
    }

    /// Programs of this host itself reach what is lent by the loopback device.
    fn follow_loopback(&mut self, host: &mut Host) -> Result<(), OpFailed> {
        let wanted = !host.lent().is_empty();
        let attached = host.datapath.attached().iter().any(|(_, role)| *role == Role::Loopback);
        let done = match (wanted, attached) {
            (true, false) => host.datapath.attach(LOOPBACK, Role::Loopback),
            (false, true) => host.datapath.detach(LOOPBACK),
            _ => Ok(()),
        };
        done.map_err(|error| failed(Refusal::NoRights, &error))
    }

    /// Endpoints that nobody has, as they are wanted. Nobody else can have them from now on.
    fn find_free(&mut self, host: &mut Host, wanted: &Ends, tenant: PeerId) -> Result<Ends, OpFailed> {
        let none = || failed(Refusal::NotLent, &"this host lends no such endpoints (`[anchor]` in the configuration)");
        let lendable = self.lendable.clone().ok_or_else(none)?;
        if wanted.count == 0 {
            return self.find_address(host, &lendable, wanted.first.ip(), tenant);
        }
        if lendable.ports.is_empty() {
            return Err(none());
        }
        let usual = offer::lends_of(&lendable, &host.network, wanted.first.is_ipv4());
        let address = match wanted.first.ip() {
            any if any.is_unspecified() => {
                usual.ok_or_else(|| failed(Refusal::NoFamily, &"this host lends ports of no address of that family"))?
            }
            address => address,
        };
        if usual != Some(address) {
            return Err(failed(Refusal::NotLent, &format!("no ports of {address} are lent")));
        }
        if !own_addresses(&host.network).contains(&address) {
            return Err(failed(Refusal::NotLent, &format!("{address} is no address of this host's")));
        }
        if wanted.count > MOST_PORTS {
            return Err(failed(Refusal::NoRoom, &format!("{} ports are wanted at a time", wanted.count)));
        }
        let lent = ports(host);
        if lent + usize::from(wanted.count) > MOST_PORTS_IN_ALL {
            return Err(failed(Refusal::NoRoom, &format!("{lent} ports are lent already")));
        }
        let block = |first: u16| Ends { first: SocketAddr::new(address, first), count: wanted.count };
        let taken = || failed(Refusal::Taken, &"the ports are taken");
        let passed_on = passed_on(host);
        let gone: BTreeSet<SocketAddr> = host.lent().parts().map(|part| part.ends.first).collect();
        let shared = |end: SocketAddr| {
            passed_on.get(&end).is_some_and(|owners| owners.iter().eq([&tenant])) && !gone.contains(&end)
        };
        if wanted.first.port() != 0 {
            let ends = block(wanted.first.port());
            let last = ends.ports().last().unwrap_or_default();
            if !lendable.ports.iter().any(|range| range.contains(&ends.first.port()) && range.contains(&last)) {
                let ranges: Vec<_> = lendable.ports.iter().map(|of| format!("{}-{}", of.start(), of.end())).collect();
                return Err(failed(Refusal::NotLent, &format!("the ports that are lent are {}", ranges.join(", "))));
            }
            return take_ports(host, ends, shared).map(|()| ends).map_err(|_| taken());
        }
        // From the end, so that ports of a program's choice are not in the midst of others'.
        let mut ranges = lendable.ports.iter().rev();
        let found = ranges.find_map(|range| {
            free_block(range, wanted.count, |first| take_ports(host, block(first), shared).err()).map(block)
        });
        found.ok_or_else(|| failed(Refusal::NoRoom, &"all ports that this host lends are taken"))
    }

    /// An address as a whole.
    fn find_address(
        &mut self,
        host: &mut Host,
        lendable: &Lendable,
        wanted: IpAddr,
        tenant: PeerId,
    ) -> Result<Ends, OpFailed> {
        let passed_on = passed_on(host);
        let of_others = passed_on.iter().filter(|(_, owners)| !owners.iter().eq([&tenant]));
        let of_others: BTreeSet<IpAddr> = of_others.map(|(end, _)| end.ip()).collect();
        let (lent, kept) = (whole(host), offer::kept(&host.network));
        let gone = gone(host);
        let is_gone =
            |of: &IpAddr| lendable.addresses.iter().any(|prefix| offer::is_gone(prefix, &gone, &host.network)(*of));
        let free =
            |of: &IpAddr| !lent.contains(of) && !of_others.contains(of) && !kept.contains_key(of) && !is_gone(of);
        let covers = |prefix: &&Prefix| prefix.address.is_ipv4() == wanted.is_ipv4();
        if !lendable.addresses.is_empty() && !lendable.addresses.iter().any(|prefix| covers(&prefix)) {
            return Err(failed(Refusal::NoFamily, &"no addresses of that family are lent"));
        }
        let address = if lendable.addresses.is_empty() {
            return Err(failed(Refusal::NotLent, &"no addresses are lent as a whole (`addresses` of `[anchor]`)"));
        } else if wanted.is_unspecified() {
            let mut all = lendable.addresses.iter().filter(covers).flat_map(addresses_of);
            all.find(free).ok_or_else(|| failed(Refusal::NoRoom, &"all addresses that this host lends are taken"))?
        } else if let Some(whose) = kept.get(&wanted) {
            return Err(failed(Refusal::NotLent, &format!("{wanted} is {whose}")));
        } else if is_gone(&wanted) {
            let sentence = format!("{wanted} is of no subnet any more that this host is in");
            return Err(failed(Refusal::NotLent, &sentence));
        } else if lendable.addresses.iter().any(|prefix| is_for_hosts(prefix, wanted)) {
            Some(wanted).filter(free).ok_or_else(|| failed(Refusal::Taken, &format!("{wanted} is lent already")))?
        } else {
            return Err(failed(Refusal::NotLent, &format!("this host does not lend {wanted}")));
        };
        self.announce_address(host, address).map_err(|error| refused(&error, Refusal::NoRights))?;
        Ok(Ends { first: SocketAddr::new(address, 0), count: 0 })
    }

    /// Neighbours are told that the address is here, where it is one of theirs.
    fn announce_address(&mut self, host: &mut Host, address: IpAddr) -> Result<(), whimbrel_kernel::Error> {
        let interface = self.interface_for(host, address);
        // Without a scope that others choose, it is none of this host's own.
        let new = NewAddress { interface, address, scope: AddressScope::Global, deprecated: true };
        host.routes.set_address(&new)
    }

    /// The interface of the subnet that an address is of; else the loopback device, as it is routed here.
    fn interface_for(&self, host: &Host, address: IpAddr) -> u32 {
        let on_link = |usable: &&whimbrel_kernel::network::UsableAddress| {
            Prefix { address: usable.address, length: usable.prefix_length }.contains(address)
        };
        // IPv4 answers for any address that it has, whatever interface that is on (arp_ignore 0).
        let found = host.network.addresses.iter().find(on_link).filter(|_| address.is_ipv6());
        found.map_or(LOOPBACK, |usable| usable.interface)
    }

    /// Neighbours need not find an address here any more that is lent as a whole to nobody, and that no connection has.
    pub(crate) fn withdraw_address(&mut self, host: &mut Host, address: IpAddr) {
        let is_lendable = |of: &Lendable| of.addresses.iter().any(|prefix| prefix.contains(address));
        let is_lent = host.lent().all().any(|lent| lent.ends.first.ip() == address);
        let is_own = own_addresses(&host.network).contains(&address);
        let whole = self.lendable.as_ref().is_some_and(is_lendable) && !is_own;
        let mut flows = host.flows.all().iter();
        let is_had = |(flow, entry): (&FlowTuple, &whimbrel_protocol::FlowEntry)| {
            entry.end == LocalEnd::Behind && flow.remote.ip() == address
        };
        if !whole || is_lent || flows.any(is_had) {
            return;
        }
        let interface = self.interface_for(host, address);
        if let Err(error) = host.routes.delete_address(interface, address) {
            tracing::warn!(%address, %error, "an address that was lent stays");
        }
    }

    /// Endpoints that a daemon before this one had lent: they are as they were, except for what was its own. `own`:
    /// this host's key.
    pub(crate) fn adopt_leases(
        &mut self,
        host: &mut Host,
        own: &PublicKey,
        saved: &[(SavedLease, bool)],
        moves: &SavedMoves,
    ) {
        for (SavedLease { name, ends }, on_link) in saved {
            for port in ends.ports().filter(|_| ends.count > 0) {
                host.ports.keep(SocketAddr::new(ends.first.ip(), port));
            }
            // Whose they are, as a peer, is said by the node when it lends them on.
            host.adopt_lent(*name, LentOut { ends: *ends, moved: None, peer: PeerId(0), on_link: *on_link });
        }
        if !saved.is_empty() {
            host.find_home();
        }
        // What has gone with its socket: until the node lends it on the programs go on leading there. Without them this
        // host would answer that nobody is there.
        for (name, far) in moved_away(moves, own) {
            host.ports.need(far.transport, far.remote, User::Endpoint);
            let (ends, moved) = (Ends { first: far.remote, count: 1 }, Some(far.transport));
            host.adopt_lent(name, LentOut { ends, moved, peer: PeerId(0), on_link: false });
        }
        host.settle_ports();
    }

    /// What leads to others though nothing says so is this host's own again: a daemon before this one died before it
    /// had noted that it lends it, or after it had noted that its socket has come home. To be called when all else was
    /// adopted. `own`: this host's key.
    pub(crate) fn end_stray_leases(
        &mut self,
        host: &mut Host,
        own: &PublicKey,
        moves: &SavedMoves,
    ) -> Result<(), Failure> {
        host.end_stray_leads(|end, apart| {
            let at = SocketAddr::new(end.address, end.port);
            is_lent(moves, own, Transport::from_protocol(end.protocol), at, apart)
        })
    }
}

/// The leases of endpoints that have gone to other hosts with their sockets, and these as their far ends have them.
fn moved_away(moves: &SavedMoves, own: &PublicKey) -> impl Iterator<Item = (LeaseName, FlowTuple)> {
    let elsewhere = moves.held.values().filter(|held| held.flow.peer() != *own && !held.ending);
    elsewhere.filter_map(|held| {
        let far = held.far.filter(|far| far.mirrored().is_unconnected())?;
        Some((LeaseName { tenant: held.flow.peer(), number: held.flow.value() }, far))
    })
}

/// The ports that are lent, of all addresses.
fn ports(host: &Host) -> usize {
    host.lent().all().map(|lent| usize::from(lent.ends.count)).sum()
}

/// The addresses that are lent as a whole.
fn whole(host: &Host) -> BTreeSet<IpAddr> {
    host.lent().all().filter(|lent| lent.ends.count == 0).map(|lent| lent.ends.first.ip()).collect()
}

/// The addresses that something is lent of, except for those that are routed here.
fn lent_of(host: &Host) -> Vec<LentOf> {
    let of_link = host.lent().all().filter(|lent| lent.ends.count > 0 || lent.on_link);
    let of: BTreeMap<IpAddr, bool> = of_link.map(|lent| (lent.ends.first.ip(), lent.ends.count == 0)).collect();
    of.into_iter().map(|(address, whole)| LentOf { address, whole }).collect()
}

/// What is lent of subnets of this host's links that are gone: what is beside it there is not reached either.
fn gone(host: &Host) -> Vec<IpAddr> {
    let whole = host.lent().all().filter(|lent| lent.ends.count == 0 && lent.on_link);
    whole.map(|lent| lent.ends.first.ip()).filter(|address| !offer::is_on_link(&host.network, *address)).collect()
}

/// `used`: the ports that sockets of this host have there.
fn offered_address(
    host: &Host,
    lendable: &Lendable,
    address: IpAddr,
    used: BTreeSet<u16>,
    faults: &[Fault],
) -> OfferedAddress {
    let is_offered = |port: &u16| lendable.ports.iter().any(|range| range.contains(port));
    // What has moved is another's too, and a part of a lease may have moved on. What was lent of other ranges is
    // none of these.
    let all = host.lent().all().map(|lent| lent.ends);
    let of_it = all.filter(|ends| ends.first.ip() == address && ends.count > 0);
    let lent: BTreeSet<u16> = of_it.flat_map(|ends| ends.ports()).filter(is_offered).collect();
    // Also those of connections whose sockets are elsewhere.
    let of_others = host.ports.of(address);
    let taken: BTreeSet<u16> = of_others.union(&used).copied().collect();
    let used: BTreeSet<u16> = used.difference(&of_others).copied().filter(is_offered).collect();
    let fault = fault_of(faults, |about| matches!(about, About::Ports) || *about == About::Own(address));
    let in_all = MOST_PORTS_IN_ALL.saturating_sub(ports(host)) / usize::from(BLOCK);
    let room = match fault {
        Some(_) => 0,
        None => room(&lendable.ports, BLOCK, &taken).min(u32::try_from(in_all).unwrap_or(u32::MAX)),
    };
    OfferedAddress { address, lent: lent.len() as u32, room: Some(room), used: ranges_of(&used), fault }
}

fn offered_prefix(host: &Host, prefix: &Prefix, faults: &[Fault]) -> OfferedPrefix {
    let lent = whole(host);
    let (kept, addresses) = (offer::kept(&host.network), size_of(prefix));
    let passed_on: BTreeSet<IpAddr> = passed_on(host).into_keys().map(|end| end.ip()).collect();
    let gone = gone(host);
    let is_gone = offer::is_gone(prefix, &gone, &host.network);
    let is_free =
        |of: &IpAddr| !lent.contains(of) && !kept.contains_key(of) && !passed_on.contains(of) && !is_gone(*of);
    OfferedPrefix {
        prefix: offer::shown(prefix),
        addresses,
        lent: lent.iter().filter(|address| is_for_hosts(prefix, **address)).count() as u64,
        room: addresses.map(|_| addresses_of(prefix).filter(is_free).count() as u64),
        fault: fault_of(faults, |about| *about == About::Addresses(*prefix)),
    }
}

/// The ends of this host's that connections have whose sockets are with others, and with whom: some outlast the
/// lease that they began with.
fn passed_on(host: &Host) -> BTreeMap<SocketAddr, BTreeSet<PeerId>> {
    let mut passed_on: BTreeMap<SocketAddr, BTreeSet<PeerId>> = BTreeMap::new();
    for (flow, entry) in host.flows.all().iter().filter(|(_, entry)| entry.end == LocalEnd::Behind) {
        passed_on.entry(flow.remote).or_default().insert(entry.peer);
    }
    passed_on
}

/// Takes the ports, all or none. `shared`: which have only connections of the host that they are for.
///
/// # Errors
/// The first that cannot be had.
fn take_ports(host: &mut Host, ends: Ends, shared: impl Fn(SocketAddr) -> bool) -> Result<(), u16> {
    for (taken, port) in ends.ports().enumerate() {
        let end = SocketAddr::new(ends.first.ip(), port);
        if !host.ports.take(end, shared(end)) {
            ends.ports().take(taken).for_each(|port| host.ports.give_back(SocketAddr::new(end.ip(), port)));
            return Err(port);
        }
    }
    Ok(())
}

/// Whether an endpoint is lent, or is another host's and in use here, as was kept. No transport: it is that of ICMP.
/// `apart`: it seems to be in use by a socket without another end that has come home.
fn is_lent(moves: &SavedMoves, own: &PublicKey, transport: Option<Transport>, end: SocketAddr, apart: bool) -> bool {
    let moved = |held: &&SavedHeld| {
        held.far
            .is_some_and(|far| far.mirrored().is_unconnected() && far.remote == end && Some(far.transport) == transport)
    };
    // Of such a socket alone.
    let mut part = moves.held.values().filter(moved);
    let gone = part.clone().any(|held| held.flow.peer() != *own);
    // While no daemon runs nobody holds what is leased, and any program can take it: what has come home is noted.
    let home = apart && part.any(|held| held.flow.peer() == *own);
    let leased = moves.leases.values().any(|(lease, _)| lease.ends.contain(end));
    let rented = moves.tenancies.values().any(|(saved, _)| saved.ends.contain(end));
    gone || rented || leased && !home
}

/// The first port of a block of `count` in a row of a range, the last that is to be had. `taken` says of one that
/// begins there which port of it is the first that is taken.
fn free_block(range: &RangeInclusive<u16>, count: u16, mut taken: impl FnMut(u16) -> Option<u16>) -> Option<u16> {
    let mut end = u32::from(*range.end()) + 1;
    loop {
        let first = end.checked_sub(u32::from(count)).filter(|first| *first >= u32::from(*range.start()))?;
        let first = u16::try_from(first).ok()?;
        match taken(first) {
            None => return Some(first),
            // Whatever begins behind it does not end before `end`.
            Some(port) => end = u32::from(port),
        }
    }
}

/// How many such blocks there are.
fn room(ranges: &[RangeInclusive<u16>], count: u16, taken: &BTreeSet<u16>) -> u32 {
    let first_taken = |first: u16| taken.range(first..=first.saturating_add(count - 1)).next().copied();
    let of_one = |range: &RangeInclusive<u16>| {
        let mut rest = Some(range.clone());
        let next = || {
            let range = rest.take()?;
            let first = free_block(&range, count, first_taken)?;
            rest = first.checked_sub(1).map(|last| *range.start()..=last);
            Some(first)
        };
        std::iter::from_fn(next).count() as u32
    };
    ranges.iter().map(of_one).sum()
}

/// As the first and the last of each stretch.
fn ranges_of(ports: &BTreeSet<u16>) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for port in ports {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*port) => *last = *port,
            _ => ranges.push((*port, *port)),
        }
    }
    ranges
}

fn fault_of(faults: &[Fault], is_about: impl Fn(&About) -> bool) -> Option<String> {
    faults.iter().find(|fault| is_about(&fault.about)).map(|fault| fault.sentence.clone())
}

/// The bits of a prefix's addresses that are not the network's.
fn host_bits(prefix: &Prefix) -> u32 {
    let width: u8 = if prefix.address.is_ipv4() { 32 } else { 128 };
    u32::from(width - prefix.length.min(width))
}

/// The addresses of a prefix that hosts may have; of a large one not all.
fn addresses_of(prefix: &Prefix) -> impl Iterator<Item = IpAddr> + use<> {
    let (prefix, free) = (*prefix, host_bits(prefix));
    let count = 1u32.checked_shl(free).unwrap_or(MOST_ADDRESSES).min(MOST_ADDRESSES);
    let all = (0..count).map(move |number| match prefix.address {
        IpAddr::V4(base) => {
            let mask = u32::MAX.checked_shl(free).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits((base.to_bits() & mask) | number))
        }
        IpAddr::V6(base) => {
            let mask = u128::MAX.checked_shl(free).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits((base.to_bits() & mask) | u128::from(number)))
        }
    });
    all.filter(move |address| is_for_hosts(&prefix, *address))
}

/// Whether a host may have this address of a prefix: the first is the network's own, the last of IPv4 for all (RFC 919,
/// RFC 4291 §2.6.1), where there are more than two.
fn is_for_hosts(prefix: &Prefix, address: IpAddr) -> bool {
    let free = host_bits(prefix);
    let (number, last) = match address {
        IpAddr::V4(address) => {
            let bits = !u32::MAX.checked_shl(free).unwrap_or(0);
            (u128::from(address.to_bits() & bits), Some(u128::from(bits)))
        }
        IpAddr::V6(address) => (address.to_bits() & !u128::MAX.checked_shl(free).unwrap_or(0), None),
    };
    prefix.contains(address) && (free <= 1 || number != 0 && Some(number) != last)
}

/// How many they are; none where that is more than are looked at.
fn size_of(prefix: &Prefix) -> Option<u64> {
    let count = addresses_of(prefix).count() as u64;
    (count < u64::from(MOST_ADDRESSES) - 1).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_from_the_end_of_a_range_and_around_what_is_taken() {
        let all = |range: RangeInclusive<u16>, count, taken: &[u16]| {
            let taken: BTreeSet<u16> = taken.iter().copied().collect();
            let had = free_block(&range, count, |first| taken.range(first..=first + (count - 1)).next().copied());
            (had, room(&[range], count, &taken))
        };
        assert_eq!(all(40_000..=40_300, 128, &[]), (Some(40_173), 2));
        assert_eq!(all(65_408..=65_535, 128, &[]), (Some(65_408), 1));
        assert_eq!(all(1..=127, 128, &[]), (None, 0));
        assert_eq!(all(7..=8, 1, &[8]), (Some(7), 1));
        // One in the midst costs no block where there is room on either side.
        assert_eq!(all(40_000..=40_299, 128, &[40_130]), (Some(40_172), 2));
        assert_eq!(all(40_000..=40_299, 128, &[40_150, 40_200]), (Some(40_022), 1));
        assert_eq!(all(40_000..=40_299, 128, &[40_100, 40_200]), (None, 0));
        let two = [8000..=8127, 9000..=9255];
        assert_eq!((room(&two, 128, &BTreeSet::new()), room(&two, 128, &BTreeSet::from([8064]))), (3, 2));
        assert_eq!(ranges_of(&[1, 2, 3, 7, 65_534, 65_535].into()), [(1, 3), (7, 7), (65_534, 65_535)]);
    }

    #[test]
    fn what_was_noted_as_lent_is_and_nothing_else() {
        use whimbrel_protocol::{FlowName, SavedTenancy};
        use whimbrel_wire::moving::MoveName;

        let key = |byte| PublicKey::from([byte; 32]);
        let (own, at) = (key(1), |port| SocketAddr::from(([192, 0, 2, 1], port)));
        let lease = |number, ends| {
            let name = LeaseName { tenant: key(2), number };
            (name, (SavedLease { name, ends }, true))
        };
        let held = |flow: u64, transport, port, owner| {
            let far = Some(FlowTuple::unconnected(transport, at(port)).mirrored());
            let last = MoveName { donor: [2; 32], number: flow };
            let (wire_port, sequence, unsettled, hidden, ending) = (0, 1, Vec::new(), false, false);
            let flow = FlowName::new(owner, flow);
            (flow, SavedHeld { flow, far, wire_port, sequence, last, unsettled, hidden, ending })
        };
        let ends = Ends { first: at(7000), count: 16 };
        let whole = Ends { first: SocketAddr::from(([192, 0, 2, 7], 0)), count: 0 };
        let rented = Ends { first: SocketAddr::from(([198, 51, 100, 9], 0)), count: 0 };
        let (number, anchor, anchor_at, moved) = (3, key(3), None, None);
        let tenancy = SavedTenancy { number, anchor, anchor_at, ends: rented, moved, parts: false };
        let moves = SavedMoves {
            leases: [lease(1, ends), lease(2, whole)].into(),
            tenancies: [(tenancy.lease(), (tenancy, None))].into(),
            held: [
                held(4, Transport::Udp, 53, key(2)),
                held(5, Transport::Tcp, 7001, key(3)),
                held(6, Transport::Tcp, 7002, own),
                held(7, Transport::Tcp, 80, own),
            ]
            .into(),
            ..SavedMoves::default()
        };
        let (tcp, udp) = (Some(Transport::Tcp), Some(Transport::Udp));
        let is = |transport, end, apart| is_lent(&moves, &own, transport, end, apart);
        // As parts of a lease, of either transport, and of an address as a whole, that of ICMP too.
        for transport in [tcp, udp] {
            assert!(
                is(transport, at(7000), false) && is(transport, at(7015), false) && !is(transport, at(7016), false)
            );
        }
        assert!([tcp, udp, None].into_iter().all(|of| is(of, whole.first, false) && is(of, rented.first, false)));
        assert!(!is(None, at(0), false) && !is(tcp, SocketAddr::from(([192, 0, 2, 8], 0)), false));
        // With a socket that has moved, from this host's own address and from a tenant.
        assert!(is(udp, at(53), false) && !is(tcp, at(53), false));
        assert!(is(tcp, at(7001), false) && is(tcp, at(7001), true));
        // What has come home, and the rest of the lease; somebody else's program has taken a port of it meanwhile.
        assert!(!is(tcp, at(80), false) && !is(tcp, at(7002), true));
        assert!(is(udp, at(7002), false) && is(tcp, at(7003), true));
        // It has ended since, and so the lease has its port again.
        assert!(is(tcp, at(7002), false));
    }

    #[test]
    fn a_prefix_has_the_addresses_that_hosts_may_have() {
        let of = |address: &str, length| {
            let prefix = Prefix { address: address.parse().expect("address"), length };
            addresses_of(&prefix).map(|address| address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of("192.0.2.9", 30), ["192.0.2.9", "192.0.2.10"]);
        assert_eq!(of("192.0.2.9", 32), ["192.0.2.9"]);
        assert_eq!(of("192.0.2.8", 31), ["192.0.2.8", "192.0.2.9"]);
        assert_eq!(of("2001:db8::", 126), ["2001:db8::1", "2001:db8::2", "2001:db8::3"]);
        assert_eq!(of("2001:db8::", 64).len(), MOST_ADDRESSES as usize - 1);
        // Who asks for one of them by name is not lent more than there are.
        let lends = |length, address: &str| {
            let prefix = Prefix { address: "192.0.2.64".parse().expect("address"), length };
            is_for_hosts(&prefix, address.parse().expect("address"))
        };
        let of_28 = ["192.0.2.64", "192.0.2.65", "192.0.2.78", "192.0.2.79", "192.0.2.80"].map(|of| lends(28, of));
        assert_eq!(of_28, [false, true, true, false, false]);
        assert_eq!(["192.0.2.64", "192.0.2.65", "192.0.2.66"].map(|of| lends(31, of)), [true, true, false]);
        assert!(lends(32, "192.0.2.64") && !lends(32, "2001:db8::1"));
        let size = |address: &str, length| size_of(&Prefix { address: address.parse().expect("address"), length });
        assert_eq!([size("192.0.2.64", 28), size("192.0.2.64", 32), size("2001:db8::", 64)], [Some(14), Some(1), None]);
    }
}
