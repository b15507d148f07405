//! Namespaces in which addresses are local that are not this host's: for the sockets that have come with them, and
//! those of endpoints that are leased.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use whimbrel_datapath::{Datapath, Endpoint as Known, Follow, Guard, LeasedPorts, Unknown, Watched};
use whimbrel_kernel::Error;
use whimbrel_kernel::checkpoint::Defaults;
use whimbrel_kernel::endpoint::{Brought, Endpoint, Found, Outer};
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::namespace;
use whimbrel_kernel::route::RouteSocket;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_protocol::{FlowName, MoveName, Time};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::lending::Ends;

use super::Failure;
use super::expected::Expected;
use super::inventory::servers::Inhabitants;

/// Of the interfaces outside: packets of connections to them come by any path, so the usual one.
const MTU: u32 = 1500;
/// How long one is kept that nobody needs any more. To make one and to take it down holds the kernel's interfaces for
/// tens of milliseconds, which whoever moves sockets at that moment would wait for; and the next may come soon.
const LINGER: Duration = Duration::from_secs(10);

/// The mark (SO_MARK) of sockets in endpoint namespaces whose far ends are not to learn where they are. Sockets that
/// such a one accepts have it as well, and it outlives the daemon. The kernel takes it off what leaves the namespace
/// (`skb_scrub_packet`); none of its bits is one that routing looks at here ([`MARK`](super::MARK)).
pub(crate) const HIDDEN: u32 = 0x0057_4248;

/// A namespace and what works in it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) endpoint: Endpoint,
    pub(crate) injector: Injector,
    pub(crate) connections: SockDiag,
    pub(crate) defaults: Defaults,
    pub(crate) cookie: u64,
    /// Index of the interface outside.
    pub(crate) interface: u32,
    /// A program has brought it along whose far ends are not to learn where it is.
    pub(crate) hidden: bool,
    /// A whole process has come into it.
    lived_in: bool,
    /// Moves, flows and leases that need it.
    users: usize,
    /// The congestion window that connections in it begin with that are made next.
    first_window: Option<u32>,
    /// The round trips that its connections are made to reckon with at first.
    pub(crate) expected: Expected,
    /// When it is taken down, where nobody has needed it for a while. No connection is in it.
    ends: Option<Time>,
}

/// One that was made, and that nothing gets through yet.
#[derive(Debug)]
pub(crate) struct New {
    place: Place,
    watched: Watched,
}

impl New {
    /// Makes one for an address, in the namespace that a program has brought along where there is one. The programs
    /// watch over it before it is switched on, and know no part of it yet. Takes the kernel tens of milliseconds; any
    /// thread in the host's network namespace may do it.
    ///
    /// # Errors
    /// Nothing is left of the attempt.
    pub(crate) fn make(address: IpAddr, brought: Option<Brought>, guard: &Guard) -> Result<Self, Failure> {
        let mut watched = None;
        let watch = |outer| -> Result<(), Failure> {
            watched = Some(guard.watch(outer)?);
            Ok(())
        };
        let endpoint = match brought {
            Some(brought) => Endpoint::create_in(brought, address, MTU, watch),
            None => Endpoint::create(address, MTU, watch),
        };
        let place = endpoint.and_then(|endpoint| {
            let outer = endpoint.outer().clone();
            Place::inside(endpoint, 0).map_err(|error| {
                remove(&outer);
                Failure::from(error)
            })
        });
        match (place, watched) {
            (Ok(place), Some(watched)) => Ok(Self { place, watched }),
            (Err(failure), watched) => {
                let _ = watched.map(Watched::forget);
                Err(failure)
            }
            (Ok(place), None) => Err(Failure::Unwatched(place.interface)),
        }
    }

    /// Takes it down.
    fn undo(self) {
        remove(self.place.endpoint.outer());
        let _ = self.watched.forget();
    }
}

/// Takes a pair down for which nothing is known to the programs.
fn remove(outer: &Outer) {
    if let Err(error) = RouteSocket::open().and_then(|mut routes| outer.remove(&mut routes)) {
        tracing::warn!(interface = outer.name, %error, "what is left of a namespace stays");
    }
}

impl Place {
    fn inside(endpoint: Endpoint, users: usize) -> Result<Self, Error> {
        let interface = endpoint.outer().index;
        let (injector, connections, defaults, cookie) = {
            let _inside = endpoint.enter()?;
            (Injector::open()?, SockDiag::open()?, Defaults::look()?, namespace::cookie()?)
        };
        Ok(Self {
            endpoint,
            injector,
            connections,
            defaults,
            cookie,
            interface,
            hidden: false,
            lived_in: false,
            users,
            first_window: None,
            expected: Expected::default(),
            ends: None,
        })
    }

    /// The sockets that are in it, where the kernel tells them. `address`: its own.
    pub(crate) fn inhabitants(&mut self, address: IpAddr) -> Option<Inhabitants> {
        Inhabitants::look(&mut self.connections, vec![address])
    }

    /// Connections that are rebuilt next, of this address, begin with this congestion window, in segments.
    pub(crate) fn begin_with(&mut self, address: IpAddr, first_window: Option<u32>) {
        if self.first_window == first_window {
            return;
        }
        match self.endpoint.set_first_window(address, MTU, first_window) {
            Ok(()) => self.first_window = first_window,
            Err(error) => tracing::warn!(%address, %error, "a connection begins slowly on its new path"),
        }
    }
}

/// Which namespace of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlaceName {
    /// What is local in it.
    pub(crate) address: IpAddr,
    /// The number of the lease that it was brought along for by a program, which this host has drawn; None: the one
    /// that the daemon has made for all others.
    pub(crate) lease: Option<u64>,
}

/// Where ends that are on lease are used.
#[derive(Debug)]
struct Leased {
    lease: FlowName,
    /// As in [`PlaceName`].
    place: Option<u64>,
    ends: Ends,
    /// They have come with a socket: no program has asked for them.
    moved: bool,
    /// The lease is over: only connections that are there still are of it.
    over: bool,
}

impl Leased {
    fn place_name(&self) -> PlaceName {
        PlaceName { address: self.ends.first.ip(), lease: self.place }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    places: HashMap<PlaceName, Place>,
    /// Where the sockets of flows are. An end may have been on lease to one program, and be to another now.
    of_flows: HashMap<FlowTuple, PlaceName>,
    /// What is on lease, and what was as long as there is a namespace for it.
    leased: Vec<Leased>,
    /// Where CRIU rebuilds processes just now, by their moves.
    rebuilding: HashMap<MoveName, PlaceName>,
}

impl Endpoints {
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Which namespace an end belongs to.
    pub(crate) fn name_of(&self, end: SocketAddr) -> PlaceName {
        let of_end = self.leased.iter().filter(|leased| leased.ends.contain(end));
        // Who has it now goes before who had it.
        let newest = of_end.min_by_key(|leased| leased.over);
        PlaceName { address: end.ip(), lease: newest.and_then(|leased| leased.place) }
    }

    /// Which namespace the socket of a connection is in, or is to be.
    pub(crate) fn name_of_flow(&self, flow: &FlowTuple) -> PlaceName {
        self.of_flows.get(flow).copied().unwrap_or_else(|| self.name_of(flow.local))
    }

    pub(crate) fn at(&mut self, flow: &FlowTuple) -> Option<&mut Place> {
        let name = self.name_of_flow(flow);
        self.place(name)
    }

    /// The sockets in each of those that are in use.
    pub(crate) fn inhabitants(&mut self) -> Vec<Inhabitants> {
        let in_use = self.places.iter_mut().filter(|(_, place)| place.ends.is_none());
        in_use.filter_map(|(name, place)| place.inhabitants(name.address)).collect()
    }

    /// All of them that are in use.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = &Place> {
        self.places.values().filter(|place| place.ends.is_none())
    }

    /// Those where the sockets of these flows are.
    pub(crate) fn by_place(&self, flows: Vec<FlowTuple>) -> Vec<(&Place, Vec<FlowTuple>)> {
        let mut by_name: HashMap<PlaceName, Vec<FlowTuple>> = HashMap::new();
        for flow in flows {
            by_name.entry(self.name_of_flow(&flow)).or_default().push(flow);
        }
        let place = |name: PlaceName| self.places.get(&name).filter(|place| place.ends.is_none());
        by_name.into_iter().filter_map(|(name, flows)| Some((place(name)?, flows))).collect()
    }

    /// What injects into a connection.
    pub(crate) fn injector(&self, flow: &FlowTuple) -> Option<&Injector> {
        self.places.get(&self.name_of_flow(flow)).filter(|place| place.ends.is_none()).map(|place| &place.injector)
    }

    /// As [`Self::need`], for the socket of a flow, until that is [let go](Self::release_flow).
    pub(crate) fn need_for(&mut self, now: Time, flow: &FlowTuple, datapath: &mut Datapath) -> Result<(), Failure> {
        let name = self.name_of(flow.local);
        self.need(now, flow.local, datapath)?;
        self.of_flows.insert(*flow, name);
        Ok(())
    }

    /// A flow's socket is gone.
    pub(crate) fn release_flow(&mut self, now: Time, flow: &FlowTuple) {
        if let Some(name) = self.uncount(flow) {
            self.release(now, name);
        }
    }

    /// Whether a namespace is kept for a flow.
    pub(crate) fn counts(&self, flow: &FlowTuple) -> bool {
        self.of_flows.contains_key(flow)
    }

    /// The namespace that is not kept for a flow any more. One whose namespace was lost with its socket has none,
    /// though there may be another of the same address by now.
    fn uncount(&mut self, flow: &FlowTuple) -> Option<PlaceName> {
        self.of_flows.remove(flow)
    }

    pub(crate) fn injector_at(&self, name: PlaceName) -> Option<&Injector> {
        self.places.get(&name).filter(|place| place.ends.is_none()).map(|place| &place.injector)
    }

    pub(crate) fn place(&mut self, name: PlaceName) -> Option<&mut Place> {
        self.places.get_mut(&name).filter(|place| place.ends.is_none())
    }

    /// The namespace with this cookie (SO_NETNS_COOKIE).
    pub(crate) fn with_cookie(&self, cookie: u64) -> Option<PlaceName> {
        let is_it = |place: &Place| place.cookie == cookie && place.ends.is_none();
        self.places.iter().find(|(_, place)| is_it(place)).map(|(name, _)| *name)
    }

    /// Index of the interface that leads to a flow's socket, if it is in a namespace of its address.
    pub(crate) fn interface(&self, flow: &FlowTuple) -> Option<u32> {
        self.places.get(&self.name_of_flow(flow)).filter(|place| place.ends.is_none()).map(|place| place.interface)
    }

    /// Sees to it that there is one for an end, until as many have [released](Self::release) it. What is not there is
    /// made at once, which everything else waits for (an op of a move waits for it elsewhere).
    pub(crate) fn need(&mut self, now: Time, end: SocketAddr, datapath: &mut Datapath) -> Result<(), Failure> {
        let name = self.name_of(end);
        if let Some(place) = self.places.get_mut(&name) {
            place.users += 1;
            place.ends = None;
            return Ok(());
        }
        let new = New::make(name.address, None, &datapath.guard()?)?;
        self.install(now, name, new, datapath)?;
        self.need(now, end, datapath)
    }

    /// Whether there is one of this name, in use or not.
    pub(crate) fn has(&self, name: PlaceName) -> bool {
        self.places.contains_key(&name)
    }

    /// A lease begins to use the namespace that a program has brought along for it. `false`: it is not there.
    pub(crate) fn bring(&mut self, lease: FlowName, ends: Ends, hidden: bool) -> bool {
        let name = PlaceName { address: ends.first.ip(), lease: Some(lease.value()) };
        let Some(place) = self.places.get_mut(&name) else { return false };
        (place.hidden, place.ends) = (hidden, None);
        place.users += 1;
        self.on_leased(lease, Some(lease.value()), ends, false);
        true
    }

    /// Has the programs know one that was made. As long as nobody needs it, it is kept for a while.
    pub(crate) fn install(
        &mut self,
        now: Time,
        name: PlaceName,
        new: New,
        datapath: &mut Datapath,
    ) -> Result<(), Failure> {
        let Outer { index: interface, namespace, .. } = *new.place.endpoint.outer();
        let cookie = new.place.cookie;
        let known = datapath
            .set_endpoint(interface, &Known { address: name.address, unknown: Unknown::Dropped })
            .and_then(|()| datapath.name_endpoint(interface, namespace))
            .and_then(|()| datapath.follow_namespace(cookie, Follow::Closes));
        if let Err(error) = known {
            let _ = datapath.remove_endpoint(interface);
            new.undo();
            return Err(error.into());
        }
        let New { place, watched } = new;
        datapath.handle(watched);
        self.places.insert(name, Place { ends: Some(now + LINGER), ..place });
        Ok(())
    }

    /// Takes over one that a daemon before this one has made, for a lease if it is one's; else by its cookie, where a
    /// program has brought it along, or another is there already. Nobody needs it yet.
    pub(crate) fn adopt(
        &mut self,
        address: IpAddr,
        lease: Option<u64>,
        hidden: bool,
        found: Found,
    ) -> Result<(), Error> {
        let Found { cookie, lived_in, endpoint } = found;
        let name = self.name_for(address, lease, endpoint.outer().is_of_program(), cookie);
        let place = Place { hidden, lived_in, ..Place::inside(endpoint, 0)? };
        self.places.insert(name, place);
        Ok(())
    }

    /// What one that was found again is called.
    fn name_for(&self, address: IpAddr, lease: Option<u64>, of_program: bool, cookie: u64) -> PlaceName {
        let made = PlaceName { address, lease: None };
        let apart = of_program || self.places.contains_key(&made);
        PlaceName { address, lease: lease.or(apart.then_some(cookie)) }
    }

    /// A flow or a lease of a daemon before this one needs a namespace that was taken over. `false`: it is not there.
    pub(crate) fn adopt_user(&mut self, name: PlaceName) -> bool {
        self.places.get_mut(&name).map(|place| place.users += 1).is_some()
    }

    /// The same for the socket of a flow, which is looked for.
    pub(crate) fn adopt_flow(&mut self, flow: &FlowTuple) -> bool {
        let name = self.find(flow);
        let there = self.adopt_user(name);
        if there {
            self.of_flows.insert(*flow, name);
        }
        there
    }

    /// The same for a socket that was on its way here. Gives what is to be [released](Self::release) when it is no
    /// more.
    pub(crate) fn adopt_move(&mut self, flow: &FlowTuple) -> Option<PlaceName> {
        let name = self.find(flow);
        self.adopt_user(name).then_some(name)
    }

    /// Which namespace of a flow's address the socket is in.
    fn find(&mut self, flow: &FlowTuple) -> PlaceName {
        let usual = self.name_of(flow.local);
        let of_address = |name: &&PlaceName| name.address == flow.local.ip();
        let mut names: Vec<PlaceName> = self.places.keys().filter(of_address).copied().collect();
        // There is hardly ever more than one.
        let alone = names.len() == 1;
        names.sort_by_key(|name| *name != usual);
        let has_it = |place: &mut Place| place.connections.find(flow).is_ok_and(|socket| socket.is_some());
        let found = names.into_iter().find(|name| alone || self.places.get_mut(name).is_some_and(has_it));
        found.unwrap_or(usual)
    }

    /// The ends of a lease belong into the namespace that a program has brought along for the lease `place`, or into
    /// that of the address. `moved`: they have come with a socket.
    pub(crate) fn on_leased(&mut self, lease: FlowName, place: Option<u64>, ends: Ends, moved: bool) {
        self.leased.push(Leased { lease, place, ends, moved, over: false });
    }

    /// A whole process is rebuilt, from now on, in the namespace that this connection is to be in, and is to live in
    /// it.
    pub(crate) fn begin_rebuilding(&mut self, name: MoveName, flow: &FlowTuple) {
        let there = self.name_of_flow(flow);
        if let Some(place) = self.places.get_mut(&there) {
            place.lived_in = true;
            self.rebuilding.insert(name, there);
        }
    }

    /// It is there, or does not come.
    pub(crate) fn end_rebuilding(&mut self, name: &MoveName) {
        self.rebuilding.remove(name);
    }

    /// A lease is over.
    pub(crate) fn on_over(&mut self, lease: FlowName) {
        for leased in self.leased.iter_mut().filter(|leased| leased.lease == lease) {
            leased.over = true;
        }
        // What belongs nowhere belongs into the namespace of its address.
        self.leased.retain(|leased| !leased.over || leased.place.is_some());
    }

    /// What programs may bind in each namespace of which a program has something on lease, or that a process has come
    /// to live in: what is on lease, and be that nothing. While CRIU rebuilds a process in one, on the ports that its
    /// sockets had, nobody is kept to anything there.
    pub(crate) fn leased_ports(&self) -> LeasedPorts {
        let asked_for: HashSet<PlaceName> = self.leased.iter().filter(|of| !of.moved).map(Leased::place_name).collect();
        let kept = |name: &PlaceName, place: &Place| {
            let of_programs = asked_for.contains(name) || place.lived_in;
            of_programs && place.ends.is_none() && self.rebuilding.values().all(|rebuilding| rebuilding != name)
        };
        let mut all = LeasedPorts::new();
        for (name, place) in self.places.iter().filter(|(name, place)| kept(name, place)) {
            let of_it = self.leased.iter().filter(|leased| !leased.over && leased.place_name() == *name);
            all.insert(place.cookie, of_it.map(|leased| ports_of(&leased.ends)).collect());
        }
        all
    }

    /// Whether any of these ends are on lease.
    pub(crate) fn overlaps(&self, ends: &Ends) -> bool {
        let meet =
            |leased: &Leased| ends.ports().any(|port| leased.ends.contain(SocketAddr::new(ends.first.ip(), port)));
        let within = |leased: &Leased| ends.contain(leased.ends.first);
        self.leased.iter().any(|leased| !leased.over && (meet(leased) || within(leased)))
    }

    /// One user less. Without any it goes after a while, as soon as no program has a socket in it.
    pub(crate) fn release(&mut self, now: Time, name: PlaceName) {
        let Some(place) = self.places.get_mut(&name) else { return };
        place.users = place.users.saturating_sub(1);
        if place.users == 0 {
            place.ends = Some(now + LINGER);
            if name.lease.is_some() {
                self.leased.retain(|leased| leased.place != name.lease);
            }
        }
    }

    /// When [`Endpoints::expire`] is due.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.places.values().filter_map(|place| place.ends).min()
    }

    /// Takes out those that nobody has needed for a while: what they send gets nowhere from now on, and they are to be
    /// [taken down](take_down).
    ///
    /// # Errors
    /// The first; all are tried.
    pub(crate) fn expire(&mut self, now: Time, datapath: &Datapath) -> (Vec<Place>, Result<(), Failure>) {
        let due = self.places.extract_if(|_, place| place.ends.is_some_and(|ends| ends <= now));
        let ended: Vec<Place> = due.map(|(_, place)| place).collect();
        let forgotten = ended.iter().map(|place| {
            let followed = datapath.follow_namespace(place.cookie, Follow::Nothing);
            followed.and(datapath.remove_endpoint(place.interface)).map_err(Failure::from)
        });
        let result = forgotten.fold(Ok(()), Result::and);
        (ended, result)
    }

    /// What the interfaces outside are called.
    pub(crate) fn interface_names(&self) -> HashMap<u32, &str> {
        self.places.values().map(|place| place.endpoint.outer()).map(|outer| (outer.index, &*outer.name)).collect()
    }
}

/// Takes namespaces down, in any thread in the host's network namespace. Programs that are in one, or have sockets in
/// it, may stay, and get nowhere any more. Gives the interfaces that are gone: the programs watch over each as long as
/// it is there.
pub(crate) fn take_down(places: Vec<Place>) -> Vec<(u32, Result<(), Error>)> {
    let outer: Vec<Outer> = places.iter().map(|place| place.endpoint.outer().clone()).collect();
    // Those that are nobody else's go by themselves, many at once.
    drop(places);
    let mut routes = RouteSocket::open();
    let mut remove = |outer: &Outer| match &mut routes {
        Ok(routes) => outer.remove(routes),
        Err(_) => RouteSocket::open().and_then(|mut routes| outer.remove(&mut routes)),
    };
    outer.iter().map(|outer| (outer.index, remove(outer))).collect()
}

/// Those of an address as a whole are all.
fn ports_of(ends: &Ends) -> RangeInclusive<u16> {
    match ends.count {
        0 => 0..=u16::MAX,
        count => ends.first.port()..=ends.first.port().saturating_add(count - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_wire::Transport;

    #[test]
    fn a_namespace_that_is_found_again_is_its_address_s_own_unless_a_program_has_brought_it_along() {
        let endpoints = Endpoints::default();
        let address = IpAddr::from([192, 0, 2, 1]);
        let name_for = |lease, of_program| endpoints.name_for(address, lease, of_program, 77);
        // Whether or not a process has moved into it.
        assert_eq!(name_for(None, false), PlaceName { address, lease: None });
        assert_eq!(name_for(None, true), PlaceName { address, lease: Some(77) }, "its lease is over");
        assert_eq!(name_for(Some(7), true), PlaceName { address, lease: Some(7) });
    }

    #[test]
    fn a_flow_lets_go_of_the_namespace_that_it_was_counted_for_and_no_other() {
        let flow = |port| FlowTuple {
            transport: Transport::Tcp,
            local: SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 22),
            remote: SocketAddr::new(IpAddr::from([192, 0, 2, 9]), port),
        };
        let mut endpoints = Endpoints::default();
        let name = PlaceName { address: flow(1).local.ip(), lease: Some(7) };
        endpoints.of_flows.insert(flow(1), name);
        // Its namespace went with a daemon before this one.
        assert!(!endpoints.counts(&flow(2)) && endpoints.uncount(&flow(2)).is_none());
        assert_eq!(endpoints.uncount(&flow(1)), Some(name));
        assert!(endpoints.uncount(&flow(1)).is_none(), "it is let go once");
    }
}
