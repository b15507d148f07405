//! One host: its daemon, its sockets, its addresses, and what outlives the daemon.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{PublicKey, StaticKey};
use whimbrel_protocol::{
    Attachment, Comeback, Config, FlowEntry, FlowName, LinkId, LocalEnd, MoveName, Node, Op, OpId, PeerId, Routes,
    SavedCommunity, SavedPeer, SendWindows, Time,
};
use whimbrel_wire::FlowTuple;

use crate::chains::Transforms;
use crate::dataplane::DataPlane;
use crate::network::NetworkId;
use crate::relocation::SavedMoves;
use crate::world::FlowId;

/// A host's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub usize);

/// What a daemon may do on its host. A local user who runs one without privilege may do neither.
#[derive(Clone, Copy, Debug)]
pub struct Powers {
    /// Inject segments into flows.
    pub inject: bool,
    /// Consume them at ingress.
    pub consume: bool,
}

/// An address of a host on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) address: IpAddr,
    pub(crate) network: NetworkId,
    pub(crate) generation: u64,
}

impl Attached {
    /// A host has one interface in each network.
    pub(crate) fn link(&self) -> LinkId {
        crate::World::link_to(self.network)
    }
}

/// A host.
pub struct Host {
    /// For people.
    pub name: &'static str,
    /// Its daemon, while it runs.
    pub node: Option<Node>,
    /// Its maps.
    pub plane: DataPlane,
    /// What its daemon may do.
    pub powers: Powers,
    /// How long its kernel takes for an op. What comes in meanwhile is handled before.
    pub op_takes: Duration,
    /// How often its kernel was asked to wake the senders of a peer's flows.
    pub kicks: u64,
    /// What its senders have.
    pub windows: Option<SendWindows>,
    /// What the senders of a peer's flows were told to come back to when they went elsewhere, in order.
    pub comebacks: Vec<(PeerId, Option<Comeback>)>,
    /// How often its sockets were to say what they have.
    pub acknowledgements: u64,
    /// How often sockets were looked for that a peer may mean.
    pub finds: u64,
    /// Its addresses that datagrams were sent from which named their link.
    pub named: BTreeSet<IpAddr>,
    /// When either was asked for: what is asked for at one moment is one look at the sockets.
    pub looks: BTreeSet<Time>,
    /// The transforms that its tunnel knows.
    pub transforms: Transforms,
    /// Whether it is suspended: nothing moves on it, and nothing reaches it.
    pub asleep: bool,
    /// Whether somebody without a daemon reads its control port.
    pub collects: bool,
    /// Whether it answers datagrams to a closed port with ICMP.
    pub answers_icmp: bool,
    /// What its daemon is started with.
    pub config: Config,
    pub(crate) key: [u8; 32],
    /// In order of preference.
    pub(crate) attached: Vec<Attached>,
    pub(crate) sockets: BTreeMap<FlowTuple, (FlowId, usize)>,
    /// Where it has sockets of UDP that are not connected.
    pub(crate) unconnected: BTreeSet<SocketAddr>,
    pub(crate) saved: BTreeMap<PeerId, SavedPeer>,
    pub(crate) saved_suspended: bool,
    /// It tells its peers what ends with what is removed of its past, and carries out nothing.
    pub(crate) cleans: bool,
    pub(crate) saved_left: BTreeMap<FlowTuple, FlowEntry>,
    /// What its daemon saved of the community that it belongs to.
    pub saved_community: Option<SavedCommunity>,
    /// What its daemon saved of moves.
    pub saved_moves: SavedMoves,
    /// The sockets that moves are about.
    pub(crate) moved_tuples: BTreeMap<MoveName, FlowTuple>,
    /// Flows that it lends to others.
    pub(crate) lent: Vec<(FlowName, FlowTuple)>,
    /// Whether it has no room for sockets of others.
    pub full: bool,
    /// Whether no program of its needs what others have lent to it.
    pub unused: bool,
    pub(crate) generation: u64,
    pub(crate) next_port: u16,
    pub(crate) timer_at: Option<Time>,
    /// Ops that take time, oldest first.
    pub(crate) under_way: VecDeque<(OpId, Op)>,
    /// Flows whose sockets its daemon has ended.
    pub(crate) reset: Vec<FlowTuple>,
    /// What its daemon had ended that was being connected: to whom, and whether only from addresses that were left.
    pub ended_connecting: Vec<(IpAddr, bool)>,
    /// What had come in these when its daemon asked whether somebody had accepted them.
    pub(crate) asked_unaccepted: BTreeMap<FlowTuple, Option<u64>>,
    /// What its daemon had ended if nobody had accepted it.
    pub ended_unaccepted: Vec<FlowTuple>,
    /// Control datagrams that came while no daemon ran.
    pub(crate) mail: Vec<(SocketAddr, Vec<u8>)>,
    /// Nonces that were consumed while no daemon ran.
    pub consumed: Vec<u64>,
    /// Ops and datagrams carried out, over all daemons of this host.
    pub effects: u64,
}

impl Host {
    pub(crate) fn new(name: &'static str, number: usize, config: Config) -> Self {
        let mut key = [0x40; 32];
        key[0] = 8 * ((number % 31) as u8 + 1);
        key[1] = (number / 31) as u8;
        Self {
            name,
            node: None,
            plane: DataPlane::default(),
            powers: Powers { inject: true, consume: true },
            op_takes: Duration::ZERO,
            kicks: 0,
            windows: None,
            comebacks: Vec::new(),
            acknowledgements: 0,
            finds: 0,
            named: BTreeSet::new(),
            looks: BTreeSet::new(),
            transforms: Transforms::default(),
            asleep: false,
            collects: false,
            answers_icmp: true,
            config,
            key,
            attached: Vec::new(),
            sockets: BTreeMap::new(),
            unconnected: BTreeSet::new(),
            saved: BTreeMap::new(),
            saved_suspended: false,
            cleans: false,
            saved_left: BTreeMap::new(),
            saved_community: None,
            saved_moves: SavedMoves::default(),
            moved_tuples: BTreeMap::new(),
            lent: Vec::new(),
            full: false,
            unused: false,
            generation: 0,
            next_port: 40_000,
            timer_at: None,
            under_way: VecDeque::new(),
            reset: Vec::new(),
            ended_connecting: Vec::new(),
            asked_unaccepted: BTreeMap::new(),
            ended_unaccepted: Vec::new(),
            mail: Vec::new(),
            consumed: Vec::new(),
            effects: 0,
        }
    }

    /// Its static key.
    #[must_use]
    pub fn static_key(&self) -> StaticKey {
        StaticKey::from_bytes(self.key)
    }

    /// Its public key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.static_key().public()
    }

    /// Its addresses, the preferred one first.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.attached.iter().map(|attached| attached.address).collect()
    }

    /// How many sessions its tunnel has keys of.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.plane.keys.len()
    }

    /// Consumes introductions for this session, where no daemon runs.
    pub fn listen(&mut self, index: u32) {
        self.plane.listening.insert(index);
    }

    /// Makes another identity at the next start of the daemon.
    pub fn change_key(&mut self) {
        self.key[5] ^= 0x55;
    }

    /// Whether an address is that of a host behind this one: a gateway and those behind it are one host here, whose
    /// node is told of these neither addresses nor sockets.
    pub(crate) fn is_behind(&self, address: IpAddr) -> bool {
        self.config.behind.iter().any(|prefix| prefix.contains(address))
    }

    pub(crate) fn attachments(&self) -> Vec<Attachment> {
        let own = self.attached.iter().filter(|attached| !self.is_behind(attached.address));
        own.map(|a| Attachment { address: a.address, link: a.link(), generation: a.generation }).collect()
    }

    pub(crate) fn routes(&self) -> Table {
        let own = self.attached.iter().filter(|attached| !self.is_behind(attached.address));
        Table { addresses: own.map(|attached| attached.address).collect() }
    }

    pub(crate) fn attached_with(&self, address: IpAddr) -> Option<Attached> {
        self.attached.iter().find(|attached| attached.address == address).copied()
    }

    /// Whether the stack takes a packet for this address once the programs have put it back: it is there, or kept.
    pub(crate) fn takes(&self, address: IpAddr) -> bool {
        self.attached_with(address).is_some() || self.plane.kept.contains(&address)
    }

    /// Whether a flow's socket lives in an endpoint namespace of this host, which has the flow's address whatever this
    /// host has.
    pub(crate) fn has_inside(&self, own: &FlowTuple) -> bool {
        self.plane.flows.get(own).is_some_and(|entry| entry.end == LocalEnd::Endpoint)
    }

    /// Whether a segment of a moved flow gets as far as the egress program: not so where the peer was a neighbour that
    /// is gone, unless it is made to.
    pub(crate) fn egress_sees(&self, own: &FlowTuple) -> bool {
        if self.has_inside(own) {
            return true;
        }
        let gave_up = self.attached_with(own.local.ip()).is_none();
        if gave_up {
            return self.plane.kept.contains(&own.local.ip());
        }
        self.plane.reached.contains(&own.remote.ip())
            || !self.attached.iter().any(|attached| same_link(attached.address, own.remote.ip()))
    }
}

/// The routing table: the best address of the destination's family, or the one on its link.
pub(crate) struct Table {
    addresses: Vec<IpAddr>,
}

impl Routes for Table {
    fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        let near = self.addresses.iter().find(|address| same_link(**address, destination));
        near.or_else(|| self.addresses.iter().find(|address| address.is_ipv4() == destination.is_ipv4())).copied()
    }

    fn still_reaches(&self, source: IpAddr, destination: IpAddr) -> bool {
        self.addresses.contains(&source) && source.is_ipv4() == destination.is_ipv4()
    }
}

/// All links are /24 or /64.
pub(crate) fn same_link(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.octets()[..3] == other.octets()[..3],
        (IpAddr::V6(one), IpAddr::V6(other)) => one.octets()[..8] == other.octets()[..8],
        _ => false,
    }
}
