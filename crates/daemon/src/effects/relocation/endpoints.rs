//! Namespaces in which addresses are local that are not this host's: for the sockets that have come with them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_datapath::{Datapath, Endpoint as Known, Role, Unknown};
use whimbrel_kernel::Error;
use whimbrel_kernel::endpoint::Endpoint;
use whimbrel_kernel::frozen::Defaults;
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::namespace;
use whimbrel_kernel::route::RouteSocket;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_protocol::Time;

use super::Failure;

/// Of the interfaces outside: packets of connections to them come by any path, so the usual one.
const MTU: u32 = 1500;
/// Their names begin so.
const INTERFACE: &str = "whimbrel-e";
/// How long one is kept that nobody needs any more. To make one and to take it down holds the kernel's interfaces for tens of milliseconds, which
/// whoever moves sockets at that moment would wait for; and the next may come soon.
const LINGER: Duration = Duration::from_secs(10);

/// A namespace and what works in it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) endpoint: Endpoint,
    pub(super) injector: Injector,
    pub(super) connections: SockDiag,
    pub(super) defaults: Defaults,
    cookie: u64,
    /// Index of the interface outside.
    pub(super) interface: u32,
    /// Moves and flows that need it.
    users: usize,
    /// The congestion window that connections in it begin with that are made next.
    first_window: Option<u32>,
    /// When it is taken down, where nobody has needed it for a while. No connection is in it.
    ends: Option<Time>,
}

impl Place {
    fn inside(endpoint: Endpoint, interface: u32, users: usize) -> Result<Self, Error> {
        let (injector, connections, defaults, cookie) = {
            let _inside = endpoint.enter()?;
            (Injector::open()?, SockDiag::open()?, Defaults::look()?, namespace::cookie()?)
        };
        Ok(Self { endpoint, injector, connections, defaults, cookie, interface, users, first_window: None, ends: None })
    }

    /// Connections that are rebuilt next, of this address, begin with this congestion window, in segments.
    pub(super) fn begin_with(&mut self, address: IpAddr, first_window: Option<u32>) {
        if self.first_window == first_window {
            return;
        }
        match self.endpoint.set_first_window(address, MTU, first_window) {
            Ok(()) => self.first_window = first_window,
            Err(error) => tracing::warn!(%address, %error, "a connection begins slowly on its new path"),
        }
    }
}

/// All of them, by address.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    places: HashMap<IpAddr, Place>,
}

impl Endpoints {
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn at(&mut self, address: IpAddr) -> Option<&mut Place> {
        self.places.get_mut(&address).filter(|place| place.ends.is_none())
    }

    /// Index of the interface that leads to an address, if it is in a namespace of its own.
    pub(super) fn interface(&self, address: IpAddr) -> Option<u32> {
        self.places.get(&address).filter(|place| place.ends.is_none()).map(|place| place.interface)
    }

    /// Sees to it that there is one for an address, until as many have [released](Self::release) it.
    pub(super) fn need(
        &mut self,
        address: IpAddr,
        datapath: &mut Datapath,
        routes: &mut RouteSocket,
    ) -> Result<(), Failure> {
        if let Some(place) = self.places.get_mut(&address) {
            place.users += 1;
            place.ends = None;
            return Ok(());
        }
        let links = routes.links()?;
        let name = (0..).map(|number| format!("{INTERFACE}{number}"));
        let name = name.into_iter().find(|name| links.iter().all(|link| link.name != *name)).unwrap_or_default();
        let endpoint = Endpoint::create(address, &name, MTU)?;
        // Where what follows fails the namespace goes, and its interfaces with it.
        let interface = routes.links()?.iter().find(|link| link.name == name).map(|link| link.index);
        let interface = interface.ok_or_else(|| Error::Answer {
            call: "RTM_GETLINK",
            object: name,
            detail: "it is not there, though it was made".to_owned(),
        })?;
        let place = Place::inside(endpoint, interface, 1)?;
        datapath.attach(interface, Role::Endpoint)?;
        datapath.set_endpoint(interface, &Known { address, unknown: Unknown::Dropped })?;
        datapath.follow_namespace(place.cookie, true)?;
        self.places.insert(address, place);
        Ok(())
    }

    /// Takes over one that a daemon before this one has made.
    pub(super) fn adopt(
        &mut self,
        address: IpAddr,
        endpoint: Endpoint,
        interface: u32,
        users: usize,
    ) -> Result<(), Error> {
        let place = Place::inside(endpoint, interface, users)?;
        self.places.insert(address, place);
        Ok(())
    }

    /// One user less. Without any it goes after a while, as soon as no program has a socket in it.
    pub(super) fn release(&mut self, now: Time, address: IpAddr) {
        let Some(place) = self.places.get_mut(&address) else { return };
        place.users = place.users.saturating_sub(1);
        if place.users == 0 {
            place.ends = Some(now + LINGER);
        }
    }

    /// When [`Endpoints::expire`] is due.
    pub(super) fn timeout(&self) -> Option<Time> {
        self.places.values().filter_map(|place| place.ends).min()
    }

    /// Takes down those that nobody has needed for a while.
    ///
    /// # Errors
    /// The first; all are tried.
    pub(super) fn expire(&mut self, now: Time, datapath: &mut Datapath) -> Result<(), Failure> {
        let due = self.places.extract_if(|_, place| place.ends.is_some_and(|ends| ends <= now));
        let ended = due.map(|(_, place)| {
            let followed = datapath.follow_namespace(place.cookie, false);
            let known = datapath.remove_endpoint(place.interface);
            followed.and(known).and(datapath.detach(place.interface))
        });
        Ok(ended.fold(Ok(()), Result::and)?)
    }
}
