//! Routes, rules and programs are made to fit what is known of peers and of the network.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use whimbrel_datapath::{LocatorPair, Role};
use whimbrel_kernel::kept_address::Straight;
use whimbrel_kernel::network::NetworkState;
use whimbrel_kernel::sysctl;
use whimbrel_protocol::{Binding, BindingId, Time};

use super::addresses::{Surroundings, named_links};
use super::executors::{RETRY_PAUSE, RETRY_PAUSE_LONGEST, TRIES_BEFORE_TOLD};
use super::tunnels::WayOut;
use super::{Addresses, Failure, Host, hooks, own_addresses, source_routes};

impl Host {
    /// Sets what addresses are wanted for.
    pub(crate) fn change_addresses(&mut self, change: impl FnOnce(&mut Addresses)) {
        change(&mut self.addresses);
        self.surroundings_changed = true;
    }

    /// Makes the kernel's state fit what is known now.
    fn settle(&mut self) -> Result<(), Failure> {
        let hooked = self.apply_hooks();
        let surroundings = self.surroundings();
        self.filters = !surroundings.arrivals.is_empty();
        self.check_filters()?;
        let told = self.publish_paths();
        // Programs may be shown what is in force once it is.
        self.apply_names();
        self.addresses.apply(&surroundings, &self.datapath)?;
        self.hold_to_homes()?;
        hooked.and(told)
    }

    /// Tells the data plane where what flows send natively leaves, rules of ours and all. Where there is one interface
    /// nothing can stray.
    fn hold_to_homes(&mut self) -> Result<(), Failure> {
        let Self { homes, datapath, network, remotes, routes, tunnel, .. } = self;
        let several = hooks::wires(network, tunnel.device().index()).nth(1).is_some();
        let between = remotes.between().filter(|_| several);
        // What leaves by an interface leaves by the one beneath it as well.
        let alone = |interface: &u32| network.link(*interface).is_some_and(|link| link.below.is_none());
        let holder = |local| network.addresses.iter().find(|own| own.address == local).map(|own| own.interface);
        let holder = |local| holder(local).filter(alone);
        let route = |pair: LocatorPair| routes.route_to(pair.peer, Some(pair.local), None).ok();
        Ok(homes.apply(datapath, between, &source_routes(network), holder, route)?)
    }

    /// Somebody may have set a reverse path filter since.
    pub(crate) fn check_filters(&self) -> Result<(), Failure> {
        Ok(self.datapath.set_strict(self.filters && !sysctl::strict_filters().is_empty())?)
    }

    /// As [`Host::settle`]. Interfaces come and go while it works, so a failure is tried again before it is told.
    pub(crate) fn settle_or_retry(&mut self, now: Time) {
        match self.settle() {
            Ok(()) => self.unsettled = None,
            Err(failure) => {
                let tries = self.unsettled.map_or(1, |(tries, _)| tries + 1);
                if tries == TRIES_BEFORE_TOLD {
                    tracing::error!(%failure, "cannot prepare the way of moved connections");
                } else {
                    tracing::debug!(%failure, tries, "cannot prepare the way of moved connections yet");
                }
                let pause = (RETRY_PAUSE * 2u32.pow(tries.min(9))).min(RETRY_PAUSE_LONGEST);
                self.unsettled = Some((tries, now + pause));
            }
        }
    }

    fn surroundings(&mut self) -> Surroundings {
        self.straight = self.straight_ways();
        let mut straight = self.remotes.one_way(|id| self.straight.get(&id).copied());
        // Where the peer is found in the other family only, flows of this one go through the tunnel.
        straight.retain(|remote, way| remote.is_ipv4() == way.next_hop.is_ipv4());
        let tun = self.tunnel.device().index();
        let wires = || hooks::wires(&self.network, tun).map(|link| link.index);
        let arrivals = if self.hooks.carrying() {
            wires().collect()
        } else if self.hooks.gives_back() {
            // No route leads to it, so a reverse path filter lets nothing pass that comes from it, be it ever so loose.
            BTreeSet::from([tun])
        } else {
            BTreeSet::new()
        };
        // Nothing names its interface where nobody is to be reached. A path that is kept ready is asked once a peer has
        // flows, which is after it has a session.
        let (port, alone) = (self.tunnel.socket().port(), self.tunnels.paths().next().is_none());
        let named = if alone { BTreeMap::new() } else { named_links(&self.network, port) };
        Surroundings {
            own: own_addresses(&self.network),
            ways: source_routes(&self.network),
            named,
            locators: self.bindings.values().map(|binding| binding.peer_locator).collect(),
            between: self.remotes.between().collect(),
            in_use: self.bindings.values().flat_map(|it| [Some(it.local_locator), it.source]).flatten().collect(),
            arrivals,
            tun,
            inner_mtu: self.tunnels.longest_inner(),
            smaller: self.remotes.smaller(self.tunnels.longest_inner(), |id| self.tunnels.known_inner_mtu(id)),
            straight,
        }
    }

    fn straight_ways(&mut self) -> HashMap<BindingId, Straight> {
        let attached = self.datapath.attached();
        let Self { bindings, ways_out, addresses, .. } = self;
        let way = |(id, binding): (&BindingId, &Binding)| {
            let interface = ways_out.get(id)?.interface;
            let carries = attached.contains(&(interface, Role::Wire));
            Some((*id, addresses.straight_way(binding, interface).filter(|_| carries)?))
        };
        bindings.iter().filter_map(way).collect()
    }

    /// Routes have changed, and nothing of the network's state: a binding may lead its packets out another way.
    pub(crate) fn routes_changed(&mut self, now: Time) {
        self.addresses.check_again();
        self.homes.check_again();
        let bindings: Vec<_> = self.bindings.iter().map(|(id, binding)| (*id, binding.clone())).collect();
        for (id, binding) in bindings {
            self.lead_out(id, &binding);
        }
        if let Err(failure) = self.hold_to_homes() {
            tracing::warn!(%failure, "connections may go by a network that comes, before that is known");
        }
        if let Err(failure) = self.publish_paths() {
            tracing::warn!(%failure, "cannot tell the data plane by which interface peers are heard");
        }
        let straight = self.straight_ways();
        if self.straight != straight {
            self.settle_or_retry(now);
        }
    }

    /// New addresses of this host's are used before duplicate address detection has ended.
    pub(crate) fn use_addresses_early(&mut self) {
        if self.bindings.is_empty() {
            return;
        }
        match self.optimistic.begin() {
            Ok(begun) if begun.is_empty() => {}
            Ok(begun) => tracing::debug!(?begun, "used while duplicate address detection is under way"),
            Err(error) => tracing::debug!(%error, "new addresses wait for duplicate address detection"),
        }
    }

    /// Routes by interfaces without a carrier are passed over where another one has a way, while there is something
    /// that may have to go there.
    pub(crate) fn pass_over_dead_links(&mut self, network: &NetworkState) {
        let dead = if self.bindings.is_empty() { BTreeMap::new() } else { dead_links(network) };
        match self.dead_links.pass_over(dead) {
            Ok(false) => {}
            Ok(true) => self.addresses.check_again(),
            Err(error) => {
                tracing::warn!(%error, "an interface without a carrier may keep what another one could carry")
            }
        }
    }

    /// What is to be done in another state of the network before anything is sent there.
    pub(crate) fn enter_network(&mut self, now: Time, network: &NetworkState) {
        let peers: BTreeSet<_> = self.bindings.values().map(|binding| binding.peer_locator).collect();
        if !peers.is_empty() {
            self.next_hops.enter(now, [&self.network, network], &peers, &mut self.routes);
            if let Err(failure) = self.addresses.name_links(named_links(network, self.tunnel.socket().port())) {
                tracing::debug!(%failure, "paths by the new network may be asked by another at first");
            }
        }
    }

    /// Takes in another state of the network. The node may have to say more; what needs no word of it is done here.
    pub(crate) fn network_changed(&mut self, now: Time, network: NetworkState) {
        self.addresses.check_again();
        self.homes.check_again();
        self.network = network;
        let bindings: Vec<_> = self.bindings.iter().map(|(id, binding)| (*id, binding.clone())).collect();
        for (id, binding) in bindings {
            // Setting it anew would grant an allowance twice; its confirmation sets it in a moment.
            if self.tunnels.allowance(id, binding.peer_locator).is_some() {
                continue;
            }
            // The interface may have got another number, or the address another interface.
            let wanted = self.data_plane_binding(id, &binding);
            if let Err(error) = self.datapath.set_binding(id, &wanted) {
                tracing::warn!(%id, %error, "cannot put a binding in force again");
            }
            self.ways_out.insert(id, WayOut::of(&wanted));
        }
        self.check_mtus();
        self.settle_or_retry(now);
    }

    /// Routes that were made here are gone, perhaps by somebody else's doing.
    pub(crate) fn check_again(&mut self) {
        self.addresses.check_again();
    }
}
/// The interfaces without a carrier, by index, that have a default route, where another one with a carrier has one too.
fn dead_links(network: &NetworkState) -> BTreeMap<u32, String> {
    let carrier = |index| network.link(index).is_some_and(|link| link.carrier);
    let beside = |ipv4| network.default_routes.iter().any(|route| route.ipv4 == ipv4 && carrier(route.interface));
    let dead = network.default_routes.iter().filter(|route| !carrier(route.interface) && beside(route.ipv4));
    dead.filter_map(|route| Some((route.interface, network.link(route.interface)?.name.clone()))).collect()
}
