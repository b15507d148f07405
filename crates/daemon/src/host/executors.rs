//! The executors of this host, and what several of them do together.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use whimbrel_datapath::{self as datapath, Datapath, LeasedPorts, LocatorPair, Role};
use whimbrel_handshake::PublicKey;
use whimbrel_ipc::Attachment;
use whimbrel_kernel::checkpoint::Defaults;
use whimbrel_kernel::dead_link::DeadLinks;
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::kept_address::Straight;
use whimbrel_kernel::network::NetworkState;
use whimbrel_kernel::optimistic::OptimisticAddresses;
use whimbrel_kernel::route::RouteSocket;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_protocol::{
    Binding, BindingId, BindingOp, FlowOp, Op, OpFailed, OpId, PeerId, Refusal, STAND_IN_PORTS, SavedPeer,
    SocketNumbers, Time, WantedConnection,
};
use whimbrel_tunnel::Tunnel;
use whimbrel_tunnel::tcp::Streams;
use whimbrel_wire::FlowTuple;

use crate::installed::Installed;
use crate::policy::Policies;
use crate::store::Store;

use super::addresses::{Addresses, MARK, own_addresses};
use super::endpoints::Endpoints;
use super::failure::Failure;
use super::homes::Homes;
use super::hooks::{Hooks, Mover};
use super::introductions::Listening;
use super::late::Late;
use super::lent::LentEnds;
use super::names::Names;
use super::next_hops::NextHops;
use super::ports::Ports;
use super::refusal::failed;
use super::remotes::Remotes;
use super::senders::Senders;
use super::tunnels::{Tunnels, WayOut};
use super::wire_ports::WirePorts;

/// Pauses before the kernel's state is made to fit again where it could not be.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(5);
pub(super) const RETRY_PAUSE_LONGEST: Duration = Duration::from_secs(5);
/// How often the MTUs of paths are looked at. What the kernel learned of one expires after ten minutes (ip-sysctl(7),
/// `mtu_expires`).
pub(super) const MTU_PAUSE: Duration = Duration::from_secs(30);
/// A failure so often in a row does not pass by itself.
pub(super) const TRIES_BEFORE_TOLD: u32 = 5;

/// The executors of this host.
pub(crate) struct Host {
    pub(crate) datapath: Datapath,
    pub(crate) tunnel: Tunnel,
    pub(super) streams: Streams,
    pub(crate) store: Store,
    pub(crate) flows: Installed,
    pub(crate) network: NetworkState,
    pub(crate) addresses: Addresses,
    pub(crate) injector: Injector,
    pub(crate) routes: RouteSocket,
    pub(crate) connections: SockDiag,
    /// What is wanted for connections: those that nobody has taken in hand yet are judged when they are to be ended.
    pub(super) policies: Policies,
    /// This host's settings for sockets.
    pub(crate) defaults: Option<Defaults>,
    pub(crate) endpoints: Endpoints,
    /// What programs in endpoint namespaces are kept to.
    pub(super) kept_to: Option<LeasedPorts>,
    /// It was said that they are not.
    pub(super) told_of_leases: bool,
    /// Connections in endpoint namespaces that were said to be closed, and were there.
    pub(crate) doubted: HashSet<FlowTuple>,
    pub(crate) ports: Ports,
    pub(super) wire_ports: WirePorts,
    /// Marked packets come in, past filters by reverse paths.
    pub(super) filters: bool,
    pub(crate) senders: Senders,
    pub(super) next_hops: NextHops,
    pub(super) optimistic: OptimisticAddresses,
    pub(super) dead_links: DeadLinks,
    pub(crate) hooks: Hooks,
    pub(super) listening: Listening,
    pub(crate) tunnels: Tunnels,
    pub(super) remotes: Remotes,
    pub(super) homes: Homes,
    pub(super) names: Names,
    pub(super) late: Late,
    pub(super) lent: LentEnds,
    /// When the MTUs of paths are looked at again: routers tell of smaller ones, and what they told expires.
    pub(super) next_mtu_look: Option<Time>,
    pub(crate) bindings: HashMap<BindingId, Binding>,
    /// The interface that rewritten packets of each leave by.
    pub(super) ways_out: HashMap<BindingId, WayOut>,
    /// What the data plane was told last of where peers are heard.
    pub(super) paths: BTreeMap<LocatorPair, u32>,
    /// The next hops of peers whose flows are all rewritten, as they were when routes were last made to fit.
    pub(super) straight: HashMap<BindingId, Straight>,
    /// Sockets of UDP that are not connected and on their way, by their cookies: their flows are over, and no new ones
    /// begin.
    pub(super) at_rest: HashMap<FlowTuple, Vec<u64>>,
    /// Flows that are over, which the node is to know of.
    pub(super) ended: Vec<FlowTuple>,
    /// Flows that are reset by one of the ops at hand.
    pub(super) resetting: Vec<FlowTuple>,
    /// Segments that had come in connections which their other ends may never have accepted, when these were asked.
    pub(super) unaccepted: HashMap<FlowTuple, (Time, u32)>,
    /// Ops were carried out that change what [`Host::surroundings`] tells.
    pub(super) surroundings_changed: bool,
    /// How often the kernel's state could not be made to fit in a row, and when that is tried again.
    pub(super) unsettled: Option<(u32, Time)>,
    /// Sockets that the node asked for and was not given yet.
    pub(super) found: Vec<(PeerId, Vec<SocketNumbers>)>,
    /// Remote addresses of flows whose sockets were elsewhere and are no more.
    pub(super) left: Vec<IpAddr>,
    /// The TUN device passes packets of other hosts on.
    pub(super) forwards: bool,
    /// Programs hang on tcx, not on clsact.
    pub(super) tcx: bool,
}

/// What a substitute works with.
pub(crate) struct Means<'a> {
    pub(crate) datapath: &'a mut Datapath,
    pub(crate) injector: &'a Injector,
    pub(crate) tunnel: &'a Tunnel,
}

impl Host {
    pub(crate) fn means(&mut self) -> Means<'_> {
        let Self { datapath, injector, tunnel, .. } = self;
        Means { datapath, injector, tunnel }
    }

    /// `kick`: whether senders are woken; `windows`: whether those that come back go on with what they had.
    pub(crate) fn new(
        mut datapath: Datapath,
        tunnel: Tunnel,
        store: Store,
        flows: Installed,
        run_dir: &Path,
        kick: bool,
        windows: bool,
    ) -> Result<Self, Failure> {
        datapath.set_tunnel(tunnel.device().index(), MARK.value, MARK.mask)?;
        datapath.set_lapses(false)?;
        let listening = Listening::after(&datapath)?;
        Ok(Self {
            addresses: Addresses::open(run_dir)?,
            injector: Injector::open()?,
            routes: RouteSocket::open()?,
            connections: SockDiag::open()?,
            policies: Policies::default(),
            defaults: None,
            endpoints: Endpoints::default(),
            kept_to: None,
            told_of_leases: false,
            doubted: HashSet::new(),
            ports: Ports::default(),
            wire_ports: WirePorts::default(),
            filters: false,
            datapath,
            streams: Streams::new(tunnel.socket().port(), STAND_IN_PORTS)
                .map_err(|error| Failure::NoThread(format!("cannot wait for connections of TCP: {error}")))?,
            tunnel,
            store,
            flows,
            network: NetworkState::default(),
            hooks: Hooks::after(listening.has_former()),
            listening,
            tunnels: Tunnels::default(),
            remotes: Remotes::default(),
            homes: Homes::default(),
            names: Names::default(),
            late: Late::default(),
            lent: LentEnds::default(),
            next_mtu_look: None,
            bindings: HashMap::new(),
            ways_out: HashMap::new(),
            paths: BTreeMap::new(),
            straight: HashMap::new(),
            at_rest: HashMap::new(),
            ended: Vec::new(),
            resetting: Vec::new(),
            unaccepted: HashMap::new(),
            surroundings_changed: false,
            unsettled: None,
            found: Vec::new(),
            senders: Senders::new(kick, windows)?,
            next_hops: NextHops::default(),
            optimistic: OptimisticAddresses::open(run_dir)?,
            dead_links: DeadLinks::open(run_dir)?,
            left: Vec::new(),
            forwards: false,
            tcx: datapath::has_tcx(),
        })
    }

    /// Takes connections of TCP there that carry datagrams, where that is possible. Gives the port; 0: it is not.
    pub(crate) fn listen_tcp(&mut self, at: SocketAddr) -> u16 {
        self.streams.listen(at).unwrap_or_else(|error| {
            let port = at.port();
            tracing::warn!(
                "cannot take connections of TCP at {at} (`listen_tcp`): {error}. `ss -ltnp sport = :{port}` shows who \
                 may have the port; one below 1024 takes CAP_NET_BIND_SERVICE. Peers whose networks let no UDP through \
                 do not reach this host meanwhile"
            );
            0
        })
    }

    /// Connections of TCP that carry datagrams.
    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    /// A connection of TCP to a peer is wanted, or none any more.
    pub(crate) fn reach_by_tcp(&mut self, peer: PeerId, wanted: Option<WantedConnection>) {
        match wanted {
            Some(WantedConnection { from, link, to }) => {
                self.streams.connect(peer, from, link.map(|link| link.0), to);
            }
            None => self.streams.close(peer),
        }
    }

    /// Takes in what policies want programs to be shown.
    pub(crate) fn set_policies(&mut self, policies: &Policies) {
        self.names.set_policy(policies.ask_for_views(), policies.lasting_programs());
        self.policies = policies.clone();
        self.apply_names();
    }

    pub(super) fn apply_names(&mut self) {
        let Self { names, datapath, bindings, network, .. } = self;
        let own = own_addresses(network);
        names.apply(datapath, bindings, |address| own.contains(&address));
    }

    /// Whether connections depend on what is in the kernel for moved flows, so that it must stay when the daemon stops.
    pub(crate) fn is_carrying(&self) -> bool {
        // What is being fitted may be left waiting.
        self.hooks.moved() || self.senders.leaves_unfitted()
    }

    /// Addresses of this host that are kept.
    pub(crate) fn kept_addresses(&self) -> &[IpAddr] {
        self.addresses.kept()
    }

    /// Keeps what is known of a peer.
    pub(crate) fn save_peer(&mut self, peer: &SavedPeer) {
        self.flows.record_peer(peer);
        self.store.save_peer(peer);
    }

    /// Drops a peer, and its flows with it.
    pub(crate) fn forget_peer(&mut self, key: PublicKey) {
        if let Some((peer, flows)) = self.flows.forget_peer(key) {
            self.store.forget_peer(peer, &flows);
        }
    }

    /// Writes down what was said, if it can be: what was done stays done.
    pub(crate) fn write_store(&mut self) {
        if let Err(error) = self.store.flush() {
            tracing::error!(%error, "what is introduced, moved and stopped now may not outlive this process");
        }
    }

    /// Takes the peers that are not to rewrite: somebody else of this host has the wire port of a flow with them.
    pub(crate) fn take_taken_ports(&mut self) -> BTreeSet<PeerId> {
        self.wire_ports.take_taken()
    }

    /// Takes what was found by the ops that look for sockets.
    pub(crate) fn take_found(&mut self) -> Vec<(PeerId, Vec<SocketNumbers>)> {
        std::mem::take(&mut self.found)
    }

    /// Notes what the ops at hand have in common, before the first of them is carried out.
    pub(crate) fn look_ahead(&mut self, ops: &[(OpId, Op)]) {
        let kicked = |(_, op): &(OpId, Op)| match op {
            Op::Binding(BindingOp::Kick { peer, lost }) => Some((*peer, *lost)),
            _ => None,
        };
        let reset = |(_, op): &(OpId, Op)| match op {
            Op::Flow(FlowOp::Reset { flow }) => Some(*flow),
            _ => None,
        };
        self.resetting = ops.iter().filter_map(reset).filter(|flow| !self.is_in_endpoint(flow)).collect();
        self.senders.note_going_on(ops.iter().filter_map(kicked).collect());
    }

    /// Makes routes, names and sockets fit what was carried out.
    pub(crate) fn follow_up(&mut self, now: Time) {
        if std::mem::take(&mut self.surroundings_changed) {
            self.settle_or_retry(now);
        } else if self.names.changed() {
            self.apply_names();
        }
        self.acknowledge();
        self.fit_unless_postponed(now);
    }

    /// Takes the remote addresses of flows whose sockets were elsewhere and are no more.
    pub(crate) fn take_left(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.left)
    }

    /// When [`Host::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let retry = self.unsettled.map(|(_, due)| due);
        let own = [self.hooks.timeout(), self.senders.timeout(), retry, self.next_mtu_look];
        own.into_iter().chain([self.endpoints.timeout(), self.late.timeout(), self.next_hops.timeout()]).flatten().min()
    }

    /// Goes on with what takes several steps.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.hooks.end_former_later(now) {
            self.listening.forget_former(&self.datapath);
        }
        if self.hooks.expire(now) | self.unsettled.is_some_and(|(_, due)| due <= now) {
            self.settle_or_retry(now);
        }
        self.next_hops.handle_timeout(now);
        self.handle_timeout_of_senders(now);
        self.forget_told(now);
        self.end_late(now);
        if self.next_mtu_look.is_some_and(|due| due <= now) {
            self.next_mtu_look = self.tunnels.paths().next().map(|_| now + MTU_PAUSE);
            if self.check_mtus() {
                self.settle_or_retry(now);
            }
        }
    }

    /// The programs are attached before anything stops, since that takes the kernel tens of milliseconds. `busy`:
    /// packets of this kind of move may have to be held at any moment. `resting`: what comes for its sockets is set
    /// aside.
    pub(crate) fn make_ready(&mut self, now: Time, mover: Mover, busy: bool, resting: bool) -> Result<(), OpFailed> {
        // What a daemon before this one has left is not touched before the node has said what it wants
        // ([`Host::begin`]).
        let begun = !self.network.links.is_empty();
        let late = !self.late.is_empty();
        let (is_new, begins) = self.hooks.note_movers(now, &[(mover, busy, resting), (Mover::Late, late, late)]);
        if is_new && begun {
            self.apply_hooks().map_err(|error| failed(Refusal::NoRights, &error))?;
        }
        if begins && begun {
            // So that what is set aside can come back.
            self.settle_or_retry(now);
        }
        Ok(())
    }

    pub(crate) fn apply_hooks(&mut self) -> Result<(), Failure> {
        Ok(self.hooks.apply(&mut self.datapath, &self.network, self.tunnel.device().index())?)
    }

    /// Takes in the network as it is at the start. Nothing is made to fit it before the node has said what it wants:
    /// what is there for moved connections must not be taken down.
    pub(crate) fn begin(&mut self, network: NetworkState) {
        self.network = network;
        if let Err(error) = self.datapath.follow_datagrams(true) {
            tracing::warn!(%error, "which remotes sockets of UDP send to is not seen");
        }
    }

    /// How many openings and closings of connections the data plane could not report so far.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn lost_flow_events(&self) -> Result<u64, Failure> {
        let counters = self.datapath.counters()?;
        Ok(counters.iter().find(|(name, _)| *name == "flow_event_lost").map_or(0, |(_, count)| *count))
    }

    /// Where the programs are. `name` names an interface.
    pub(crate) fn attached(&self, name: impl Fn(u32) -> String) -> Vec<Attachment> {
        let of_namespaces = self.endpoints.interface_names();
        let shown = self.datapath.attached().into_iter().map(|(interface, role)| Attachment {
            interface: of_namespaces.get(&interface).map_or_else(|| name(interface), |name| (*name).to_owned()),
            program: match role {
                Role::Wire => "translate",
                Role::Tunnel => "tunnel",
                Role::IntroductionsOnly => "introductions",
                Role::Datagrams => "datagrams",
                Role::Endpoint => "endpoint",
                Role::Loopback => "loopback",
            }
            .to_owned(),
            hook: if self.tcx { "tcx" } else { "clsact" }.to_owned(),
        });
        shown.collect()
    }
}
