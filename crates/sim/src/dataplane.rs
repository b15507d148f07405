//! The maps and programs of one host, as `bpf/` has them, and the tunnel's threads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use std::time::Duration;

use whimbrel_protocol::{
    AddressOp, Binding, BindingId, BindingOp, Carrier, FlowEntry, FlowOp, Led, LocalEnd, Op, PeerId, Time, TunnelOp,
    TunnelPath,
};
use whimbrel_wire::{ChainNumber, FlowTuple, Transport};

use crate::chains::HostChains;
use crate::traffic::Traffic;
use crate::world::FlowId;

/// How long programs work on after the last moved flow is gone or home: the daemon does so for what is under way.
const LINGER: Duration = Duration::from_secs(60);

/// For so long what a peer sent natively before it left may still be on its way (P-221).
const LATE_NATIVE: Duration = Duration::from_secs(2);

/// The sockets of a host, by their names.
pub(crate) type Sockets = BTreeMap<FlowTuple, (FlowId, usize)>;

/// How a segment of a flow leaves its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As its socket made it.
    Native,
    /// With these names instead of its own.
    Rewrite {
        /// Source on the wire.
        source: SocketAddr,
        /// Destination on the wire.
        destination: SocketAddr,
    },
    /// In UDP, named as the peer's socket has it.
    Tunnel {
        /// Where to.
        path: TunnelPath,
        /// Names of the inner packet at the peer.
        inner: FlowTuple,
        /// The chain of transforms that it goes through: its number, and which it is.
        chain: Option<(ChainNumber, u64)>,
    },
    /// Not at all; the reason.
    Hold(&'static str),
}

/// What keeps packets of others from being taken for a moved flow's, so that tests can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guards {
    /// What bears names that a native socket of the host's has is left to that (P-138).
    pub sockets: bool,
    /// A flow is called by the wire port that the node has drawn (P-16), and not by its socket's.
    pub ports: bool,
    /// Rewritten packets are taken between the locators that the node says (P-135, P-136), and not between any two.
    pub pairs: bool,
}

impl Guards {
    /// As the programs and the node have it.
    pub const ALL: Self = Self { sockets: true, ports: true, pairs: true };
    /// Nothing.
    pub const NONE: Self = Self { sockets: false, ports: false, pairs: false };
}

/// State of the eBPF maps, which outlives the daemon, and of the tunnel, which does not.
#[derive(Clone, Debug)]
pub struct DataPlane {
    /// Which of them there are. To be set before there are flows.
    pub guards: Guards,
    pub(crate) flows: BTreeMap<FlowTuple, FlowEntry>,
    wire: HashMap<(PeerId, Transport, u16, u16), FlowTuple>,
    pub(crate) bindings: BTreeMap<BindingId, (Binding, bool)>,
    /// (peer, local) as found in a packet.
    locators: HashMap<(IpAddr, IpAddr), BindingId>,
    /// Flows on which the peer was heard rewritten while the present binding was in force (P-24).
    heard: BTreeSet<FlowTuple>,
    pub(crate) listening: BTreeSet<u32>,
    /// Flows of sockets that are not connected which came last under their own names while their peer was elsewhere.
    native_last: BTreeSet<FlowTuple>,
    /// At which place the peer of a binding is, and since when.
    peer_since: HashMap<BindingId, (u32, Time)>,
    /// When something of a flow was last sent, or came to where it has moved.
    used: BTreeMap<FlowTuple, Time>,
    /// Flows that somebody else has sent in, until they are installed anew.
    claimed: BTreeSet<FlowTuple>,
    pub(crate) kept: BTreeSet<IpAddr>,
    pub(crate) reached: BTreeSet<IpAddr>,
    /// Destinations that are led elsewhere than the routes lead.
    pub led: Vec<Led>,
    /// Addresses of others that its host stands in for.
    pub(crate) standing_in: BTreeSet<IpAddr>,
    pub(crate) keys: BTreeMap<u32, PeerId>,
    paths: BTreeMap<BindingId, TunnelPath>,
    /// How many datagrams went by two paths.
    duplicates: u64,
    /// Those that came, each by the session and its counter.
    taken: BTreeSet<(u32, u64)>,
    pub(crate) chains: HostChains,
    pub(crate) traffic: Traffic,
    /// Until when programs work on after the last moved flow.
    carrying_until: Option<Time>,
}

impl Default for DataPlane {
    fn default() -> Self {
        Self {
            guards: Guards::ALL,
            flows: BTreeMap::new(),
            wire: HashMap::new(),
            bindings: BTreeMap::new(),
            locators: HashMap::new(),
            heard: BTreeSet::new(),
            native_last: BTreeSet::new(),
            peer_since: HashMap::new(),
            used: BTreeMap::new(),
            listening: BTreeSet::new(),
            claimed: BTreeSet::new(),
            kept: BTreeSet::new(),
            reached: BTreeSet::new(),
            led: Vec::new(),
            standing_in: BTreeSet::new(),
            keys: BTreeMap::new(),
            paths: BTreeMap::new(),
            duplicates: 0,
            taken: BTreeSet::new(),
            chains: HostChains::default(),
            traffic: Traffic::default(),
            carrying_until: None,
        }
    }
}

impl DataPlane {
    /// Carries out what concerns the maps and the tunnel.
    pub(crate) fn apply(&mut self, now: Time, op: &Op) {
        match op {
            Op::Flow(op) => self.apply_to_flows(op),
            Op::Binding(op) => self.apply_to_bindings(now, op),
            Op::Address(op) => self.apply_to_addresses(op),
            Op::Tunnel(op) => self.apply_to_tunnel(op),
            Op::Store(_) | Op::Move(_) => {}
        }
    }

    fn apply_to_flows(&mut self, op: &FlowOp) {
        match op {
            FlowOp::ListenForIntroductions { indices } => self.listening = indices.iter().copied().collect(),
            FlowOp::Install { flow, entry } => self.install(*flow, *entry),
            FlowOp::Remove { flow } => self.remove(flow),
            FlowOp::Introduce { .. }
            | FlowOp::FindSockets { .. }
            | FlowOp::AskNatively { .. }
            | FlowOp::Expect { .. }
            | FlowOp::LookAtUse { .. }
            | FlowOp::Reset { .. }
            | FlowOp::Abort { .. }
            | FlowOp::EndConnecting { .. }
            | FlowOp::AskUnaccepted { .. }
            | FlowOp::EndUnaccepted { .. } => {}
        }
    }

    fn apply_to_bindings(&mut self, now: Time, op: &BindingOp) {
        match op {
            BindingOp::Set { id, binding, moved } => self.bind(now, *id, binding.clone(), *moved),
            BindingOp::Remove { id } => {
                self.bindings.remove(id);
                self.locators.retain(|_, of| of != id);
                self.paths.remove(id);
            }
            BindingOp::Kick { peer, lost: true } => {
                let carrier = self.bindings.get(&BindingId::first(*peer)).map(|(binding, _)| binding.carrier);
                assert_ne!(carrier, Some(Carrier::Hold), "what senders of {peer:?} send is swallowed");
            }
            BindingOp::Watch { between, answer } => self.traffic.watch(*between, *answer),
            BindingOp::Probe { .. }
            | BindingOp::LookAtTraffic { .. }
            | BindingOp::Kick { .. }
            | BindingOp::Windows { .. }
            | BindingOp::Acknowledge { .. } => {}
        }
    }

    fn apply_to_addresses(&mut self, op: &AddressOp) {
        match op {
            AddressOp::Keep { addresses } => self.kept = addresses.iter().copied().collect(),
            AddressOp::Reach { addresses } => self.reached = addresses.iter().map(|(address, _)| *address).collect(),
            AddressOp::NeighbourProxy { addresses } => self.standing_in = addresses.iter().copied().collect(),
            // A simulated host sends from each address by the link that has it in any case.
            AddressOp::Lead { ways } => self.led.clone_from(ways),
            AddressOp::LeaveFrom { .. } | AddressOp::LookUp { .. } => {}
        }
    }

    fn apply_to_tunnel(&mut self, op: &TunnelOp) {
        match op {
            TunnelOp::AddKeys { peer, receive_index, .. } => {
                self.keys.insert(*receive_index, *peer);
            }
            TunnelOp::RemoveKeys { receive_index } => {
                self.keys.remove(receive_index);
            }
            TunnelOp::SetPath { id, path, .. } => {
                self.paths.insert(*id, path.clone());
            }
            // Its result matters, so it is carried out by itself.
            TunnelOp::Chain(_) | TunnelOp::Connect { .. } => {}
        }
    }

    /// Knows a flow, by these names.
    pub fn install(&mut self, flow: FlowTuple, entry: FlowEntry) {
        self.remove(&flow);
        self.flows.insert(flow, entry);
        let port = if self.guards.ports { entry.wire_local_port } else { flow.local.port() };
        self.wire.insert((entry.peer, flow.transport, port, entry.wire_remote_port), flow);
    }

    fn remove(&mut self, flow: &FlowTuple) {
        if self.flows.remove(flow).is_some() {
            self.wire.retain(|_, own| own != flow);
            self.heard.remove(flow);
            self.native_last.remove(flow);
            self.claimed.remove(flow);
        }
    }

    fn bind(&mut self, now: Time, id: BindingId, binding: Binding, moved: bool) {
        let carrying = self.bindings.values().any(|(_, moved)| *moved);
        let same = self.bindings.get(&id).is_some_and(|(before, _)| {
            (before.local_locator, before.peer_locator) == (binding.local_locator, binding.peer_locator)
        });
        if !same {
            let flows = &self.flows;
            self.heard.retain(|flow| flows.get(flow).is_some_and(|entry| entry.binding() != id));
        }
        self.locators.retain(|_, of| *of != id);
        let pairs =
            std::iter::once((binding.local_locator, binding.peer_locator)).chain(binding.former.iter().copied());
        let unchecked = binding.source.filter(|_| !self.guards.pairs).map(|source| (source, binding.peer_locator));
        let pairs = pairs.chain(unchecked);
        for (local, remote) in pairs.filter(|(local, _)| !local.is_unspecified()) {
            self.locators.insert((remote, local), id);
        }
        let since = self.peer_since.entry(id).or_insert((binding.places.peer, now));
        if since.0 != binding.places.peer {
            *since = (binding.places.peer, now);
        }
        self.bindings.insert(id, (binding, moved));
        if self.bindings.values().any(|(_, moved)| *moved) {
            self.carrying_until = None;
        } else if carrying {
            self.carrying_until = Some(now + LINGER);
        }
    }

    /// The daemon is gone: the maps are pinned, the tunnel is not.
    pub(crate) fn lose_daemon(&mut self) {
        self.keys.clear();
        self.standing_in.clear();
        self.paths.clear();
        self.chains = HostChains::default();
        self.traffic = Traffic::default();
    }

    /// What would become of a segment of this flow, `length` bytes long. Takes them off the allowance.
    pub(crate) fn egress(&mut self, own: &FlowTuple, length: usize, sockets: &Sockets) -> Verdict {
        let Some(entry) = self.flows.get(own) else { return Verdict::Native };
        if entry.waits.any() {
            return Verdict::Hold("waits by itself");
        }
        let Some((binding, _)) = self.bindings.get(&entry.binding()) else { return Verdict::Native };
        let here = binding.places.local == entry.home.local;
        if binding.places == entry.home || here && self.native_last.contains(own) {
            return Verdict::Native;
        }
        let rewrite = match binding.carrier {
            Carrier::Hold => return Verdict::Hold("binding on hold"),
            Carrier::Rewrite => true,
            Carrier::FollowRewrite => self.heard.contains(own),
            Carrier::Tunnel => false,
        };
        if rewrite {
            if binding.peer_locator.is_ipv4() != own.remote.is_ipv4() {
                // Another family cannot be rewritten to.
                return self.tunnel(own, length);
            }
            let source = SocketAddr::new(binding.local_locator, entry.wire_local_port);
            let destination = SocketAddr::new(binding.peer_locator, entry.wire_remote_port);
            if self.is_taken(&FlowTuple { transport: own.transport, local: source, remote: destination }, sockets) {
                return self.tunnel(own, length);
            }
            return Verdict::Rewrite { source, destination };
        }
        self.tunnel(own, length)
    }

    fn tunnel(&mut self, own: &FlowTuple, length: usize) -> Verdict {
        let Some(entry) = self.flows.get(own) else { return Verdict::Hold("no flow") };
        let Some(path) = self.paths.get_mut(&entry.binding()) else { return Verdict::Hold("the tunnel leads nowhere") };
        if let Some(left) = path.allowance.as_mut() {
            let length = (length + crate::packet::TUNNEL_OVERHEAD) as u64;
            if *left < length {
                return Verdict::Hold("allowance used up");
            }
            *left -= length;
        }
        Verdict::Tunnel { path: path.clone(), inner: entry.peer_tuple, chain: self.chains.outbound(entry.peer) }
    }

    /// The counter of a datagram that goes by two paths.
    pub(crate) fn count_duplicate(&mut self) -> u64 {
        self.duplicates += 1;
        self.duplicates
    }

    /// Such a datagram came with this session: whether it is the first.
    pub(crate) fn take_duplicate(&mut self, counted: (u32, u64)) -> bool {
        self.keys.contains_key(&counted.0) && self.taken.insert(counted)
    }

    /// The own tuple of what came in between these endpoints, if that is a wire tuple.
    pub(crate) fn ingress(
        &self,
        now: Time,
        transport: Transport,
        source: SocketAddr,
        destination: SocketAddr,
        sockets: &Sockets,
    ) -> Option<FlowTuple> {
        if !self.carries(now) || self.is_taken(&FlowTuple { transport, local: destination, remote: source }, sockets) {
            return None;
        }
        let peer = self.locators.get(&(source.ip(), destination.ip()))?.peer();
        let own = self.wire.get(&(peer, transport, destination.port(), source.port())).copied()?;
        (own.remote.is_ipv4() == source.is_ipv4()).then_some(own)
    }

    /// Whether a native socket of the host has these names: what bears them is left to it (P-138). One whose own flow
    /// has moved away from them gets nothing under them.
    fn is_taken(&self, names: &FlowTuple, sockets: &Sockets) -> bool {
        self.guards.sockets && sockets.contains_key(names) && !self.has_moved(names)
    }

    /// Whether a flow's names are known, so that what comes under them is led.
    pub fn knows(&self, flow: &FlowTuple) -> bool {
        self.flows.contains_key(flow)
    }

    /// Whether rewritten packets between this address of the host's and one of a peer's are taken in.
    #[must_use]
    pub fn accepts_rewritten(&self, local: IpAddr, peer: IpAddr) -> bool {
        self.locators.contains_key(&(peer, local))
    }

    /// Where each peer is said to be, and where it has shown that it is.
    #[must_use]
    pub fn whereabouts(&self) -> Vec<(IpAddr, Option<IpAddr>)> {
        let mut all: Vec<_> =
            self.bindings.values().map(|(binding, _)| (binding.peer_locator, binding.proven)).collect();
        all.sort_unstable();
        all
    }

    /// Something of a flow was sent, or came.
    pub(crate) fn note_use(&mut self, own: FlowTuple, now: Time) {
        self.used.insert(own, now);
    }

    /// When that was last.
    pub(crate) fn used(&self, own: &FlowTuple) -> Option<Time> {
        self.used.get(own).copied()
    }

    /// A datagram came under a flow's own names, or by the way that it has moved to. Who is there now is answered: by
    /// the way by which the last one came (P-221).
    pub(crate) fn note_way(&mut self, now: Time, own: FlowTuple, natively: bool) {
        let Some(entry) = self.flows.get(&own).filter(|entry| entry.unconnected) else { return };
        let Some((place, since)) = self.peer_since.get(&entry.binding()) else { return };
        if !natively || *place == entry.home.peer {
            self.native_last.remove(&own);
        } else if *since + LATE_NATIVE <= now {
            self.native_last.insert(own);
        }
    }

    /// Whether a flow is carried, or held.
    pub(crate) fn has_moved(&self, own: &FlowTuple) -> bool {
        let binding =
            |entry: &FlowEntry| self.bindings.get(&entry.binding()).map(|(binding, _)| (binding.places, entry.home));
        self.flows.get(own).and_then(binding).is_some_and(|(places, home)| places != home)
    }

    /// Something came in under a flow's own names: whether the node is to be told (P-39).
    pub(crate) fn hear_natively(&mut self, own: &FlowTuple) -> bool {
        if !self.has_moved(own) {
            return false;
        }
        let id = self.flows.get(own).map(FlowEntry::binding);
        let binding = id.and_then(|id| self.bindings.get_mut(&id));
        binding.is_some_and(|(binding, _)| std::mem::take(&mut binding.listens))
    }

    /// Something came under the own names of a flow of another host's that has moved, and not been listened for:
    /// whether the node is to be told (P-104).
    pub(crate) fn report_claim(&mut self, own: &FlowTuple) -> bool {
        let Some(entry) = self.flows.get(own).filter(|entry| entry.end == LocalEnd::Passing) else { return false };
        let listens = self.bindings.get(&entry.binding()).is_none_or(|(binding, _)| binding.listens);
        !listens && self.has_moved(own) && self.claimed.insert(*own)
    }

    /// Something came under the own names of a flow that its peer has named after it had left (P-206), or of one of a
    /// socket that is not connected, for the first time (P-221): whether the node is to be told.
    pub(crate) fn report_other(&mut self, own: &FlowTuple) -> bool {
        let counts = |entry: &FlowEntry| entry.late || self.native_last.contains(own);
        self.flows.get(own).is_some_and(counts) && self.has_moved(own) && self.claimed.insert(*own)
    }

    /// A flow was heard rewritten.
    pub(crate) fn hear(&mut self, own: FlowTuple) {
        self.heard.insert(own);
    }

    /// Whether the programs work: without a moved flow they do nothing.
    fn carries(&self, now: Time) -> bool {
        self.carrying_until.is_some_and(|until| until >= now) || self.bindings.values().any(|(_, moved)| *moved)
    }

    /// A packet came with this session by a chain of transforms: what is wrong with that.
    pub(crate) fn take_in_chain(&mut self, index: u32, chain: (ChainNumber, u64)) -> Result<(), String> {
        // What nobody has keys for is not looked at.
        let Some(peer) = self.keys.get(&index) else { return Ok(()) };
        self.chains.inbound(*peer, chain)
    }

    /// Whether the tunnel takes a packet so named that came with this session (P-23), and the kernel what the tunnel
    /// hands it: its reverse path filter, be it loose, drops what comes by a device without addresses, unless routes
    /// for moved flows are there.
    pub(crate) fn tunnel_accepts(&self, now: Time, index: u32, inner: &FlowTuple) -> bool {
        self.carries(now)
            && self.keys.get(&index).is_some_and(|peer| self.flows.get(inner).is_some_and(|entry| entry.peer == *peer))
    }

    /// Entries of all maps together, for limits on growth.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.flows.len()
            + self.wire.len()
            + self.bindings.len()
            + self.locators.len()
            + self.heard.len()
            + self.listening.len()
            + self.kept.len()
            + self.reached.len()
            + self.keys.len()
            + self.paths.len()
            + self.chains.len()
            + self.traffic.len()
    }
}
