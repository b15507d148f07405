//! Where peers are, and how their packets go there: bindings, paths of the tunnel, ways out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_datapath::{self as datapath, LocatorPair};
use whimbrel_handshake::TunnelKeys;
use whimbrel_protocol::{Between, Binding, BindingId, Carrier, ChainOp, OpDone, PeerId, Time, TunnelPath};
use whimbrel_transform::Algorithm;

use super::executors::MTU_PAUSE;
use super::tunnels::WayOut;
use super::{DEFAULT_MTU, Failure, Host, names, source_routes};

impl Host {
    /// Puts a binding in force. `moved`: flows that it leads are not where they were made.
    pub(crate) fn set_binding(
        &mut self,
        now: Time,
        id: BindingId,
        binding: Binding,
        moved: bool,
    ) -> Result<(), Failure> {
        self.surroundings_changed = true;
        self.hooks.record(now, id, moved);
        self.hooks.set_listening(id, binding.listens);
        // Nothing comes rewritten by another (P-186).
        if id.is_first() {
            self.wire_ports.keep(id.peer(), &binding);
        }
        let wanted = self.data_plane_binding(id, &binding);
        let fits = |other: &Binding| (other.places, other.parked) == (binding.places, binding.parked);
        if !self.bindings.get(&id).is_some_and(fits) {
            self.senders.on_routes_changed(now);
        }
        let before = self.bindings.insert(id, binding);
        // Programs first: from the moment that the binding says so, nothing may leave the old way.
        if let Err(failure) = self.apply_hooks() {
            tracing::warn!(%failure, "cannot attach the programs to every interface");
        }
        if let Err(error) = self.datapath.set_binding(id, &wanted) {
            // What was in force stays so; the node is told.
            match before {
                Some(before) => self.bindings.insert(id, before),
                None => self.bindings.remove(&id),
            };
            return Err(error.into());
        }
        self.ways_out.insert(id, WayOut::of(&wanted));
        Ok(())
    }

    pub(super) fn data_plane_binding(&mut self, id: BindingId, binding: &Binding) -> datapath::Binding {
        let same_family = binding.local_locator.is_ipv4() == binding.peer_locator.is_ipv4();
        let carrier = match binding.carrier {
            Carrier::Hold if binding.listens => datapath::Carrier::Listen,
            Carrier::Hold => datapath::Carrier::Hold,
            Carrier::Tunnel => datapath::Carrier::Tunnel,
            Carrier::FollowRewrite if same_family => datapath::Carrier::Follow,
            Carrier::Rewrite if same_family => datapath::Carrier::Rewrite,
            Carrier::FollowRewrite | Carrier::Rewrite => datapath::Carrier::Tunnel,
        };
        let now = [(binding.local_locator, binding.peer_locator)];
        let accepted = now
            .iter()
            .chain(&binding.former)
            .filter(|(local, peer)| local.is_ipv4() == peer.is_ipv4() && !local.is_unspecified())
            .map(|(local, peer)| LocatorPair { local: *local, peer: *peer })
            .collect();
        let holder = self.holder(binding.source);
        let way = self.way_out(binding).or(holder);
        // Where packets leave by another interface than the one that has their source, answers come by either.
        let arrival = holder.filter(|holder| Some(*holder) == way);
        // What is rewritten has a locator; of all else this is only shown.
        let shown = names::own_locator(binding).filter(|own| own.is_ipv4() == binding.peer_locator.is_ipv4());
        let rewritten = matches!(carrier, datapath::Carrier::Rewrite | datapath::Carrier::Follow);
        let local = if carrier == datapath::Carrier::Follow { None } else { shown }.unwrap_or(binding.local_locator);
        let names_kept = id.is_first() && self.wire_ports.keeps_all(id.peer(), binding, local);
        let nowhere = IpAddr::from([0; 4]);
        let peer_shown = if rewritten { binding.peer_locator } else { binding.proven.unwrap_or(nowhere) };
        datapath::Binding {
            local_place: binding.places.local,
            peer_place: binding.places.peer,
            carrier,
            local,
            peer: peer_shown,
            interface: way.unwrap_or(0),
            arrival: arrival.unwrap_or(0),
            mtu: self.tunnels.mtu_towards(id, binding.peer_locator).unwrap_or(0),
            allowance: self.tunnels.allowance(id, binding.peer_locator),
            parked: binding.parked,
            names_kept,
            accepted,
        }
    }

    /// The interface that has an address, and that what is sent there arrives on.
    pub(super) fn holder(&self, address: Option<IpAddr>) -> Option<u32> {
        let holder = self.network.addresses.iter().find(|usable| Some(usable.address) == address);
        holder.map(|usable| usable.interface)
    }

    /// The interface that rewritten packets of a binding leave by: the same as all else that is sent from its source to
    /// the peer, the tunnel and the probe that tried whether they pass.
    fn way_out(&mut self, binding: &Binding) -> Option<u32> {
        let (source, peer) = (binding.source?, binding.peer_locator);
        if source.is_ipv4() != peer.is_ipv4() || peer.is_unspecified() {
            return None;
        }
        // An interface that leads everywhere is made to (`kernel::source_routing`), wherever the routes lead by
        // themselves.
        match source_routes(&self.network).get(&source) {
            Some(way) => Some(way.interface),
            None => self.addresses.way_from(source, peer),
        }
    }

    /// Forgets a binding; with its first a peer.
    pub(crate) fn remove_binding(&mut self, now: Time, id: BindingId) -> Result<(), Failure> {
        self.surroundings_changed = true;
        self.hooks.record(now, id, false);
        self.hooks.set_listening(id, false);
        self.bindings.remove(&id);
        self.ways_out.remove(&id);
        self.tunnels.remove(&self.tunnel, &self.streams, id);
        if id.is_first() {
            self.senders.remove_peer(id.peer());
            self.wire_ports.release(id.peer());
        }
        Ok(self.datapath.remove_binding(id)?)
    }

    /// Keys of a session, for what the tunnel seals.
    pub(crate) fn add_keys(&mut self, peer: PeerId, receive_index: u32, keys: &TunnelKeys, aes: bool) {
        let algorithm = if aes { Algorithm::Aes256Gcm } else { Algorithm::ChaCha20Poly1305 };
        self.tunnel.add_keys(peer, receive_index, algorithm, keys);
    }

    /// The packets of a binding go by this path of the tunnel from now on.
    pub(crate) fn set_path(&mut self, now: Time, id: BindingId, index: u32, path: TunnelPath) -> Result<(), Failure> {
        self.surroundings_changed = true;
        let mtu = self.mtu_of(&path).unwrap_or(DEFAULT_MTU);
        let spare = self.senders.spares(id.peer());
        // Of a peer without flows nothing waits; strangers make as many sessions as they like.
        if self.bindings.contains_key(&id) && self.tunnels.leads_elsewhere(id, &path) {
            self.next_hops.on_way(now, path.source, path.remote.ip());
        }
        self.tunnels.set_path(&self.tunnel, &self.streams, id, index, path, mtu, spare)?;
        self.learn_mtu(id);
        self.next_mtu_look.get_or_insert(now + MTU_PAUSE);
        Ok(())
    }

    /// Carries out an op on chains of transforms.
    pub(crate) fn carry_out_on_chain(&mut self, op: &ChainOp) -> OpDone {
        self.surroundings_changed = true;
        self.tunnels.carry_out_on_chain(&self.tunnel, op)
    }

    /// Tells the data plane by which interface each peer is heard.
    pub(crate) fn publish_paths(&mut self) -> Result<(), Failure> {
        let paths = self.paths_of_peers();
        if self.paths != paths {
            self.datapath.set_paths(&paths, self.tunnel.socket().port())?;
            self.paths = paths;
        }
        Ok(())
    }

    /// What goes between these addresses is watched, or not any longer.
    pub(crate) fn watch(&mut self, between: &Between, answer: Option<Duration>) -> Result<(), Failure> {
        let pair = LocatorPair { local: between.local, peer: between.remote };
        match answer {
            Some(answer) => self.datapath.watch_traffic(&pair, answer, self.tunnel.socket().port())?,
            None => self.datapath.forget_traffic(&pair)?,
        }
        Ok(())
    }

    /// How long ago something last came between them.
    pub(crate) fn heard(&self, between: &Between) -> Result<Option<Duration>, Failure> {
        let pair = LocatorPair { local: between.local, peer: between.remote };
        Ok(self.datapath.traffic(&pair)?.and_then(|known| known.heard))
    }

    /// The interface that has this host's address, where what is sent to the peer leaves by it, too: a strict filter
    /// takes packets from nowhere else.
    fn paths_of_peers(&self) -> BTreeMap<LocatorPair, u32> {
        let of = self.bindings.iter().filter_map(|(id, binding)| {
            let (local, peer_at) = (binding.source?, binding.peer_locator);
            let holder = self
                .holder(Some(local))
                .filter(|holder| Some(*holder) == self.ways_out.get(id).map(|way| way.interface))?;
            (local.is_ipv4() == peer_at.is_ipv4()).then_some((LocatorPair { local, peer: peer_at }, holder))
        });
        of.collect()
    }

    /// The MTU of the way to a peer, in bytes, where it has a tunnel.
    pub(crate) fn tunnel_mtu(&self, peer: PeerId) -> Option<u32> {
        self.tunnels.mtu(BindingId::first(peer))
    }

    /// The longest packet that fits all tunnels whole, in bytes.
    pub(crate) fn inner_mtu(&self) -> u32 {
        self.tunnels.inner_mtu()
    }
}
