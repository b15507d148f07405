//! Local ends that are not sockets of this host's own stack: in endpoint namespaces, or at hosts behind this one. And
//! how many flows there are that the programs have to look for on their account, or on that of unconnected sockets.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

use whimbrel_wire::FlowTuple;

use super::{Datapath, Role};
use crate::abi::{
    DELIVERY_PASSING, DELIVERY_ROUTES, Endpoint, FOLLOW_ALL, FOLLOW_CLOSES, Follow, HELD_UNCONNECTED, IDLE_ENDPOINTS,
    IDLE_FORWARDED, IDLE_TRANSLATION, IDLE_UNCONNECTED, Lent, LentEnd, NAMESPACE_UNKNOWN, RawEndpoint, RawFlowEntry,
    RawLent, RawLentKey, RawTuple,
};
use crate::error::Error;
use crate::hook::{Direction, Hook};
use crate::table::Table;

/// How much there is that is not in this host's own stack, and how much is of sockets of it that are not connected.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    lent: usize,
    endpoints: usize,
    /// Flows toward a namespace.
    inside: usize,
    /// Flows toward another host.
    behind: usize,
    /// Flows of sockets that are not connected.
    unconnected: usize,
}

/// What the programs look for on account of [`Deliveries`], as bits.
const IDLE: u32 = IDLE_ELSEWHERE | IDLE_UNCONNECTED;
const IDLE_ELSEWHERE: u32 = IDLE_ENDPOINTS | IDLE_FORWARDED;

impl Deliveries {
    /// What is known of a flow has changed; `None`: nothing is.
    pub(super) fn change(&mut self, from: Option<&RawFlowEntry>, to: Option<&RawFlowEntry>) {
        for (entry, step) in [(from, -1), (to, 1)].into_iter().filter_map(|(entry, step)| Some((entry?, step))) {
            let count = |number: &mut usize| *number = number.saturating_add_signed(step);
            match entry.delivery {
                0 => {}
                DELIVERY_ROUTES | DELIVERY_PASSING => count(&mut self.behind),
                _ => count(&mut self.inside),
            }
            if entry.held & HELD_UNCONNECTED != 0 {
                count(&mut self.unconnected);
            }
        }
    }

    /// Whether any local end is not in this host's own stack.
    pub(super) fn any(&self) -> bool {
        self.idle() & IDLE_ELSEWHERE != IDLE_ELSEWHERE
    }

    fn idle(&self) -> u32 {
        let inside = if self.lent + self.endpoints + self.inside == 0 { IDLE_ENDPOINTS } else { 0 };
        let behind = if self.behind == 0 { IDLE_FORWARDED } else { 0 };
        let unconnected = if self.unconnected == 0 { IDLE_UNCONNECTED } else { 0 };
        inside | behind | unconnected
    }
}

/// Puts the program of [`Role::Endpoint`] on interfaces, in any thread of the network namespace that the [`Datapath`]
/// was opened in: the kernel takes tens of milliseconds for it.
#[derive(Clone, Debug)]
pub struct Guard {
    program: Arc<OwnedFd>,
    pins: PathBuf,
    tcx: bool,
}

impl Guard {
    /// Nothing passes the interface from now on, until the endpoint namespace behind it is [made
    /// known](Datapath::set_endpoint).
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses.
    pub fn watch(&self, interface: u32) -> Result<Watched, Error> {
        let role = Role::Endpoint.name();
        let hook = Hook::attach(interface, Direction::Ingress, role, self.program.as_fd(), &self.pins, self.tcx)?;
        Ok(Watched { hook, pins: self.pins.clone() })
    }
}

/// What a [`Guard`] has done to an interface, for the [`Datapath`] to know.
#[derive(Debug)]
#[must_use]
pub struct Watched {
    hook: Hook,
    pins: PathBuf,
}

impl Watched {
    /// The interface is gone: nothing is left.
    ///
    /// # Errors
    /// When the note of it cannot be removed; the next [`Datapath::open`] does it.
    pub fn forget(self) -> Result<(), Error> {
        self.hook.forget(&self.pins)
    }
}

impl Datapath {
    /// What puts the program of [`Role::Endpoint`] on interfaces beside this.
    ///
    /// # Errors
    /// When its descriptor cannot be duplicated.
    pub fn guard(&self) -> Result<Guard, Error> {
        let name = Role::Endpoint.program(Direction::Ingress, true).unwrap_or_default();
        let program = self.programs.program(name)?.try_clone_to_owned();
        let program = program.map_err(|source| Error::call("fcntl(F_DUPFD_CLOEXEC)", name, source))?;
        Ok(Guard { program: Arc::new(program), pins: self.pins.clone(), tcx: self.tcx })
    }

    /// Takes in that an interface is watched.
    pub fn handle(&mut self, watched: Watched) {
        self.hooks.push(watched.hook);
    }

    /// Takes in that an interface with programs of ours is gone. They have gone with it, at no cost but that of the
    /// note of them.
    ///
    /// # Errors
    /// When that cannot be removed; the next [`Datapath::open`] does it.
    pub fn forget(&mut self, interface: u32) -> Result<(), Error> {
        let hooks: Vec<Hook> = self.hooks.extract_if(.., |hook| hook.interface == interface).collect();
        hooks.iter().map(|hook| hook.forget(&self.pins)).fold(Ok(()), Result::and)
    }

    /// Lends a local end, or changes to whom. What is under way to it may still go where it went.
    ///
    /// # Errors
    /// When the kernel refuses, as it does when the map is full.
    pub fn set_lent(&self, end: &LentEnd, lent: Lent) -> Result<(), Error> {
        let key = RawLentKey::new(end);
        let new = self.lent.get(&key)?.is_none();
        self.lent.insert(&key, &RawLent::new(lent))?;
        self.update_deliveries(|deliveries| deliveries.lent += usize::from(new))
    }

    /// The local end is this host's own again; one that was not lent is none the worse.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove_lent(&self, end: &LentEnd) -> Result<(), Error> {
        let removed = self.lent.remove(&RawLentKey::new(end))?;
        self.update_deliveries(|deliveries| deliveries.lent = deliveries.lent.saturating_sub(removed.into()))
    }

    /// All local ends that are lent, among them those of a process before this one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn lent(&self) -> Result<Vec<(LentEnd, Lent)>, Error> {
        Ok(self.lent.entries()?.iter().map(|(end, lent)| (end.end(), lent.lent())).collect())
    }

    /// Makes an endpoint namespace known, by the index of the outer end of its pair of interfaces, or changes what is
    /// known. That interface has to have [`Role::Endpoint`].
    ///
    /// # Errors
    /// When the kernel refuses, as it does when the map is full.
    pub fn set_endpoint(&self, interface: u32, endpoint: &Endpoint) -> Result<(), Error> {
        let known = self.endpoints.get(&interface)?;
        let namespace = known.map_or(NAMESPACE_UNKNOWN, |known| known.namespace);
        self.endpoints.insert(&interface, &RawEndpoint::new(endpoint, namespace))?;
        self.update_deliveries(|deliveries| deliveries.endpoints += usize::from(known.is_none()))
    }

    /// Says by which id (RTM_NEWNSID) this host's network namespace knows an endpoint namespace, so that the programs
    /// find the sockets in it: what is theirs is not taken for a moved flow's. Until then everything is that comes for
    /// ends which are lent to it. The interface is the outer end of its pair; one that is not known stays so.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn name_endpoint(&self, interface: u32, namespace: u32) -> Result<(), Error> {
        match self.endpoints.get(&interface)? {
            Some(known) => self.endpoints.insert(&interface, &RawEndpoint { namespace, ..known }),
            None => Ok(()),
        }
    }

    /// The cookies of the namespaces that are followed, those of a process before this one among them.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn followed_namespaces(&self) -> Result<HashSet<u64>, Error> {
        let namespaces: Table<u64, u32> = self.programs.table("namespaces")?;
        Ok(namespaces.entries()?.into_iter().map(|(cookie, _)| cookie).collect())
    }

    /// Follows the TCP sockets of an endpoint namespace, by its cookie (SO_NETNS_COOKIE); or not any more.
    ///
    /// # Errors
    /// When the kernel refuses, as it does when the map is full.
    pub fn follow_namespace(&self, cookie: u64, follow: Follow) -> Result<(), Error> {
        let namespaces: Table<u64, u32> = self.programs.table("namespaces")?;
        match follow {
            Follow::Nothing => namespaces.remove(&cookie).map(drop),
            Follow::Closes => namespaces.insert(&cookie, &FOLLOW_CLOSES),
            Follow::All => namespaces.insert(&cookie, &FOLLOW_ALL),
        }
    }

    /// Forgets an endpoint namespace: nothing that it sends gets anywhere any more. One that is not known is none the
    /// worse.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove_endpoint(&self, interface: u32) -> Result<(), Error> {
        let removed = self.endpoints.remove(&interface)?;
        self.update_deliveries(|deliveries| deliveries.endpoints = deliveries.endpoints.saturating_sub(removed.into()))
    }

    /// All endpoint namespaces by the outer ends of their pairs, among them those of a process before this one; some
    /// may be gone.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn endpoints(&self) -> Result<Vec<(u32, Endpoint)>, Error> {
        Ok(self.endpoints.entries()?.iter().map(|(interface, known)| (*interface, known.endpoint())).collect())
    }

    /// Fragments of datagrams to this port of UDP, of whatever host, get both bits of the mark
    /// ([`Datapath::set_tunnel`]) while any flow is toward another host: rules of routing, which do not see their
    /// ports, may lead them here. None: they are left alone.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn claim_fragments(&self, port: Option<u16>) -> Result<(), Error> {
        self.change_settings(|settings| settings.control_port = port.map_or(0, u32::from))
    }

    /// Where in its stream the far end of a TCP flow waits for an answer, if it does, as far as what it sent shows it:
    /// of flows with [`Delivery::Passing`](crate::Toward::Passing). None: no such flow is known.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn last_sent(&self, flow: &FlowTuple) -> Result<Option<u32>, Error> {
        Ok(self.flows.get(&RawTuple::new(flow))?.map(|entry| entry.sent))
    }

    pub(super) fn deliveries(&self) -> MutexGuard<'_, Deliveries> {
        // Numbers, which a panic elsewhere has not left wrong.
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count_elsewhere(&self) -> Result<(), Error> {
        let (lent, endpoints) = (self.lent.entries()?.len(), self.endpoints.entries()?.len());
        let mut counted = Deliveries { lent, endpoints, ..Deliveries::default() };
        self.flows.entries()?.iter().for_each(|(_, entry)| counted.change(None, Some(entry)));
        let idle = counted.idle();
        *self.deliveries() = counted;
        self.apply_deliveries(idle)
    }

    /// Changes the numbers, and what the programs look for with them.
    pub(super) fn update_deliveries(&self, change: impl FnOnce(&mut Deliveries)) -> Result<(), Error> {
        let mut deliveries = self.deliveries();
        let before = deliveries.idle();
        change(&mut deliveries);
        let idle = deliveries.idle();
        if idle == before { Ok(()) } else { self.apply_deliveries(idle) }
    }

    /// `idle`: [`Deliveries::idle`].
    fn apply_deliveries(&self, idle: u32) -> Result<(), Error> {
        let busy = if idle & IDLE_ELSEWHERE == IDLE_ELSEWHERE { 0 } else { IDLE_TRANSLATION };
        self.change_settings(|settings| settings.idle = settings.idle & !(IDLE | busy) | idle)
    }
}
