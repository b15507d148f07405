//! Where peers are, and how their packets go there: bindings, paths of the tunnel, ways out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use whimbrel_datapath::{self as datapath, LocatorPair};
use whimbrel_handshake::TunnelKeys;
use whimbrel_protocol::{Binding, Carrier, ChainOp, OpDone, PeerId, Time, TunnelPath};
use whimbrel_transform::Algorithm;
use whimbrel_tunnel::Peer;

use super::executors::MTU_PAUSE;
use super::tunnels::WayOut;
use super::{DEFAULT_MTU, Failure, Host, names, source_routes};

impl Host {
    /// Puts the binding of a peer in force. `moved`: flows of it are not where they were made.
    pub(crate) fn set_binding(
        &mut self,
        now: Time,
        peer: PeerId,
        binding: Binding,
        moved: bool,
    ) -> Result<(), Failure> {
        self.surroundings_changed = true;
        self.hooks.record_peer(now, peer, moved);
        self.hooks.set_listening(peer, binding.listens);
        let wanted = self.data_plane_binding(peer, &binding);
        let fits = |other: &Binding| (other.places, other.parked) == (binding.places, binding.parked);
        if !self.bindings.get(&peer).is_some_and(fits) {
            self.senders.on_routes_changed(now);
        }
        self.wire_ports.keep(peer, &binding);
        let before = self.bindings.insert(peer, binding);
        // Programs first: from the moment that the binding says so, nothing may leave the old way.
        if let Err(failure) = self.apply_hooks() {
            tracing::warn!(%failure, "cannot attach the programs to every interface");
        }
        if let Err(error) = self.datapath.set_binding(peer.0, &wanted) {
            // What was in force stays so; the node is told.
            match before {
                Some(before) => self.bindings.insert(peer, before),
                None => self.bindings.remove(&peer),
            };
            return Err(error.into());
        }
        self.ways_out.insert(peer, WayOut::of(&wanted));
        Ok(())
    }

    pub(super) fn data_plane_binding(&mut self, peer: PeerId, binding: &Binding) -> datapath::Binding {
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
        let nowhere = IpAddr::from([0; 4]);
        let peer_shown = if rewritten { binding.peer_locator } else { binding.proven.unwrap_or(nowhere) };
        datapath::Binding {
            local_place: binding.places.local,
            peer_place: binding.places.peer,
            carrier,
            local: if carrier == datapath::Carrier::Follow { None } else { shown }.unwrap_or(binding.local_locator),
            peer: peer_shown,
            interface: way.unwrap_or(0),
            arrival: arrival.unwrap_or(0),
            mtu: self.tunnels.mtu_towards(peer, binding.peer_locator).unwrap_or(0),
            allowance: self.tunnels.allowance(peer, binding.peer_locator),
            parked: binding.parked,
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

    /// Forgets a peer.
    pub(crate) fn remove_binding(&mut self, now: Time, peer: PeerId) -> Result<(), Failure> {
        self.surroundings_changed = true;
        self.hooks.record_peer(now, peer, false);
        self.hooks.set_listening(peer, false);
        self.senders.remove_peer(peer);
        self.bindings.remove(&peer);
        self.ways_out.remove(&peer);
        self.wire_ports.release(peer);
        self.tunnels.remove_peer(&self.tunnel, peer);
        Ok(self.datapath.remove_binding(peer.0)?)
    }

    /// Keys of a session, for what the tunnel seals.
    pub(crate) fn add_keys(&mut self, peer: PeerId, receive_index: u32, keys: &TunnelKeys, aes: bool) {
        let algorithm = if aes { Algorithm::Aes256Gcm } else { Algorithm::ChaCha20Poly1305 };
        self.tunnel.add_keys(Peer(peer.0), receive_index, algorithm, keys);
    }

    /// The peer's packets go by this path of the tunnel from now on.
    pub(crate) fn set_path(&mut self, now: Time, peer: PeerId, index: u32, path: TunnelPath) -> Result<(), Failure> {
        self.surroundings_changed = true;
        let mtu = self.path_mtu(path.remote.ip(), path.source).unwrap_or(DEFAULT_MTU);
        let spare = self.senders.spares(peer);
        // Of a peer without flows nothing waits; strangers make as many sessions as they like.
        if self.bindings.contains_key(&peer) && self.tunnels.leads_elsewhere(peer, &path) {
            self.next_hops.on_way(now, path.source, path.remote.ip());
        }
        self.tunnels.set_path(&self.tunnel, peer, index, path, mtu, spare)?;
        self.learn_mtu(peer);
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

    /// The interface that has this host's address, where what is sent to the peer leaves by it, too: a strict filter
    /// takes packets from nowhere else.
    fn paths_of_peers(&self) -> BTreeMap<LocatorPair, u32> {
        let of = self.bindings.iter().filter_map(|(peer, binding)| {
            let (local, peer_at) = (binding.source?, binding.peer_locator);
            let holder = self
                .holder(Some(local))
                .filter(|holder| Some(*holder) == self.ways_out.get(peer).map(|way| way.interface))?;
            (local.is_ipv4() == peer_at.is_ipv4()).then_some((LocatorPair { local, peer: peer_at }, holder))
        });
        of.collect()
    }

    /// The MTU of the way to a peer, in bytes, where it has a tunnel.
    pub(crate) fn tunnel_mtu(&self, peer: PeerId) -> Option<u32> {
        self.tunnels.mtu(peer)
    }

    /// The longest packet that fits all tunnels whole, in bytes.
    pub(crate) fn inner_mtu(&self) -> u32 {
        self.tunnels.inner_mtu()
    }
}
