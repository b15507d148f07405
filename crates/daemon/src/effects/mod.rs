//! Carries out what the node asks of the kernel, one file for each kind of effect.

mod addresses;
mod chains;
mod fitting;
mod flows;
mod gateway;
mod helping;
mod hooks;
mod introductions;
mod kick;
mod names;
mod path_mtus;
mod paths;
mod postponed;
mod relocation;
mod remotes;
mod stand_in;
mod tunnels;
mod whole;
mod wire_ports;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use whimbrel_datapath::{self as datapath, Datapath, Fitted, LocatorPair, Role};
use whimbrel_ipc::Attachment;
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::kept_address::Straight;
use whimbrel_kernel::network::{NetworkState, UsableAddress};
use whimbrel_kernel::route::RouteSocket;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_kernel::source_way::SourceWay;
use whimbrel_kernel::sysctl;
use whimbrel_kernel::tun::Tun;
use whimbrel_protocol::{
    AddressOp, Binding, BindingOp, Carrier, FlowEntry, FlowOp, LocalEnd, Op, OpDone, OpFailed, OpId, PeerId,
    SocketNumbers, StoreOp, Time, TunnelOp,
};
use whimbrel_transform::Algorithm;
use whimbrel_tunnel::{PathError, Peer, Tunnel};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::introduction::Introduction;

use crate::community_file::{CommunityFile, CommunityFileError};
use crate::helpers::Helpers;
use crate::journal::{Journal, JournalError};
use crate::known_keys::{KnownKeys, KnownKeysError};
use crate::policy::Policies;
use crate::work::Work;

pub(crate) use addresses::{Addresses, MARK};
pub(crate) use gateway::Gateway;
pub(crate) use relocation::{
    Arrived, FoundMoves, HIDDEN, Known, Making, NotBorrowed, Relocation, Young, at, continue_halted,
};
pub(crate) use tunnels::DEFAULT_MTU;
pub(crate) use whole::{News, Place, Wholes};

use addresses::Surroundings;
use fitting::{Fitting, Passed};
use helping::Helping;
use hooks::Hooks;
use introductions::{Listening, Snapshot};
use kick::Kicks;
use names::Names;
use path_mtus::WayOut;
use postponed::Postponed;
use remotes::Remotes;
use stand_in::Deputy;
use tunnels::Tunnels;
use wire_ports::WirePorts;

/// Pauses before the kernel's state is made to fit again where it could not be.
const RETRY_PAUSE: Duration = Duration::from_millis(5);
const RETRY_PAUSE_LONGEST: Duration = Duration::from_secs(5);
/// How often the MTUs of paths are looked at. What the kernel learned of one expires after ten minutes (ip-sysctl(7),
/// `mtu_expires`).
const MTU_PAUSE: Duration = Duration::from_secs(30);
/// A failure so often in a row does not pass by itself.
const TRIES_BEFORE_TOLD: u32 = 5;

/// Why an effect did not come about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
    #[error(transparent)]
    Kernel(#[from] whimbrel_kernel::Error),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    KnownKeys(#[from] KnownKeysError),
    #[error(transparent)]
    Community(#[from] CommunityFileError),
    #[error(transparent)]
    Tunnel(#[from] PathError),
    #[error("{0} has no socket any more")]
    NoSocket(FlowTuple),
    #[error("interface {0} is not watched over")]
    Unwatched(u32),
    #[error("{0}")]
    NoThread(String),
}

/// What outlives the daemon on disk.
pub(crate) struct Stores {
    pub(crate) journal: Journal,
    pub(crate) known_keys: KnownKeys,
    pub(crate) community_file: CommunityFile,
}

/// Everything that the node's wishes become real through.
pub(crate) struct Effects {
    pub(crate) datapath: Datapath,
    pub(crate) tunnel: Tunnel,
    pub(crate) journal: Journal,
    pub(crate) known_keys: KnownKeys,
    community_file: CommunityFile,
    pub(crate) network: NetworkState,
    addresses: Addresses,
    injector: Injector,
    routes: RouteSocket,
    connections: SockDiag,
    wire_ports: WirePorts,
    /// Marked packets come in, past filters by reverse paths.
    filters: bool,
    hooks: Hooks,
    listening: Listening,
    kicks: Kicks,
    tunnels: Tunnels,
    remotes: Remotes,
    names: Names,
    /// When the MTUs of paths are looked at again: routers tell of smaller ones, and what they told expires.
    next_mtu_look: Option<Time>,
    bindings: HashMap<PeerId, Binding>,
    /// The interface that rewritten packets of each leave by.
    ways_out: HashMap<PeerId, WayOut>,
    /// What the data plane was told last of where peers are heard.
    paths: BTreeMap<LocatorPair, u32>,
    /// The next hops of peers whose flows are all rewritten, as they were when routes were last made to fit.
    straight: HashMap<PeerId, Straight>,
    /// Peers whose senders are woken by one of the ops at hand.
    spared: BTreeSet<PeerId>,
    postponed: Postponed,
    /// Ops were carried out that change what [`Effects::surroundings`] tells.
    surroundings_changed: bool,
    /// How often the kernel's state could not be made to fit in a row, and when that is tried again.
    unsettled: Option<(u32, Time)>,
    /// Sockets that the node asked for and was not given yet.
    found: Vec<(PeerId, Vec<SocketNumbers>)>,
    fitting: Fitting,
    pub(crate) passes: Work<Passed>,
    /// Peers whose senders are woken once more after the next pass, and whether what they had in flight is lost.
    wake_again: BTreeMap<PeerId, bool>,
    deputy: Deputy,
    pub(crate) gateway: Gateway,
    /// Sockets whose options cannot be put back yet.
    unfitted: usize,
    helping: Helping,
    pub(crate) relocation: Relocation,
    pub(crate) making: Making,
    pub(crate) wholes: Wholes,
    kick: bool,
    /// Programs hang on tcx, not on clsact.
    tcx: bool,
}

impl Effects {
    /// `kick`: whether senders are woken.
    pub(crate) fn new(
        mut datapath: Datapath,
        tunnel: Tunnel,
        stores: Stores,
        helpers: Helpers,
        run_dir: &Path,
        kick: bool,
    ) -> Result<Self, Failure> {
        datapath.set_tunnel(tunnel.device().index(), MARK.value, MARK.mask)?;
        datapath.set_lapses(false)?;
        let making = Making::new(datapath.guard()?)?;
        Ok(Self {
            addresses: Addresses::open(run_dir)?,
            injector: Injector::open()?,
            routes: RouteSocket::open()?,
            connections: SockDiag::open()?,
            wire_ports: WirePorts::default(),
            filters: false,
            datapath,
            tunnel,
            journal: stores.journal,
            known_keys: stores.known_keys,
            community_file: stores.community_file,
            network: NetworkState::default(),
            hooks: Hooks::default(),
            listening: Listening::default(),
            kicks: Kicks::default(),
            tunnels: Tunnels::default(),
            remotes: Remotes::default(),
            names: Names::default(),
            next_mtu_look: None,
            bindings: HashMap::new(),
            ways_out: HashMap::new(),
            paths: BTreeMap::new(),
            straight: HashMap::new(),
            spared: BTreeSet::new(),
            postponed: Postponed::default(),
            surroundings_changed: false,
            unsettled: None,
            found: Vec::new(),
            fitting: Fitting::default(),
            passes: Work::new().map_err(|errno| Failure::NoThread(format!("eventfd: {errno}")))?,
            wake_again: BTreeMap::new(),
            deputy: Deputy::default(),
            gateway: Gateway::default(),
            unfitted: 0,
            helping: Helping::new(helpers),
            relocation: Relocation::default(),
            making,
            wholes: Wholes::new(run_dir)?,
            kick,
            tcx: datapath::has_tcx(),
        })
    }

    /// Whether senders are woken from now on.
    pub(crate) fn set_kick(&mut self, kick: bool) {
        self.kick = kick;
    }

    /// Takes in what policies want programs to be shown.
    pub(crate) fn set_policies(&mut self, policies: &Policies) {
        self.names.set_policy(policies.ask_for_views(), policies.lasting_programs());
        self.apply_names();
    }

    fn apply_names(&mut self) {
        let Self { names, datapath, bindings, network, .. } = self;
        let own = own_addresses(network);
        names.apply(datapath, bindings, |address| own.contains(&address));
    }

    /// Whether anything is moved, so must be left in place when the daemon stops.
    pub(crate) fn moved(&self) -> bool {
        self.hooks.moved()
    }

    /// Addresses of this host that are kept.
    pub(crate) fn kept_addresses(&self) -> &[IpAddr] {
        self.addresses.kept()
    }

    /// Carries out ops in order and gives what came of each. What follows from them for all that is around them is
    /// [`Effects::follow_up`]'s, so that peers who wait for a result need not wait for that.
    pub(crate) fn carry_out(&mut self, now: Time, ops: Vec<(OpId, Op)>) -> Vec<(OpId, Result<OpDone, OpFailed>)> {
        // One look at the sockets serves all ops that are queued together.
        let mut snapshot = Snapshot::default();
        let mut results = Vec::with_capacity(ops.len());
        // What is lost is the first that the peers lack: little may go to a path that is not confirmed, and senders that
        // were not stopped would use it up with what comes after.
        self.spared = if self.kick { ops.iter().filter_map(wakes).collect() } else { BTreeSet::new() };
        let mut going_on: Vec<(PeerId, bool)> = ops.iter().filter_map(|(_, op)| kicked(op)).collect();
        for (id, op) in ops {
            let Some(op) = self.postpone(now, op) else {
                results.push((id, Ok(OpDone::Done)));
                continue;
            };
            tracing::debug!(id = id.0, op = %Shown(&op), "op");
            let result = match op {
                Op::Tunnel(TunnelOp::Chain(op)) => {
                    self.surroundings_changed = true;
                    results.push((id, Ok(self.tunnels.carry_out_on_chain(&self.tunnel, &op))));
                    continue;
                }
                Op::Flow(op) => self.carry_out_on_flow(now, op, &mut snapshot),
                Op::Binding(op) => {
                    // One look at the sockets serves all whose flows go on.
                    if matches!(op, BindingOp::Kick { .. }) {
                        self.prepare_kick(now, &mut going_on, &mut snapshot);
                    }
                    self.carry_out_on_binding(now, op, &mut snapshot)
                }
                Op::Address(op) => {
                    self.carry_out_on_addresses(now, op);
                    Ok(())
                }
                Op::Tunnel(op) => self.carry_out_on_tunnel(now, op),
                Op::Store(op) => self.store(op),
                // The loop carries these out, behind all others.
                Op::Move(_) => Ok(()),
            };
            let failed = |failure: Failure| OpFailed { refusal: None, sentence: failure.to_string() };
            results.push((id, result.map(|()| OpDone::Done).map_err(failed)));
        }
        self.write_journal();
        results
    }

    /// A sender that is woken must find its way prepared, and be found.
    fn prepare_kick(&mut self, now: Time, going_on: &mut Vec<(PeerId, bool)>, snapshot: &mut Snapshot) {
        if std::mem::take(&mut self.surroundings_changed) {
            self.settle_or_retry(now);
        }
        if !going_on.is_empty() {
            self.go_on(now, &std::mem::take(going_on), snapshot);
        }
    }

    /// Writes down what was said, if it can be: what was done stays done.
    fn write_journal(&mut self) {
        if let Err(error) = self.journal.flush() {
            tracing::error!(%error, "what is introduced, moved and stopped now may not outlive this process");
        }
    }

    /// Makes routes, names and sockets fit what was carried out.
    pub(crate) fn follow_up(&mut self, now: Time) {
        if std::mem::take(&mut self.surroundings_changed) {
            self.settle_or_retry(now);
        } else if self.names.changed() {
            self.apply_names();
        }
        if !self.postponed.leaves_sockets(now) {
            self.fit_sockets(now);
        }
        self.help(now);
        self.write_journal();
    }

    /// Takes the peers that are not to rewrite: somebody else of this host has the wire port of a flow with them.
    pub(crate) fn take_taken_ports(&mut self) -> BTreeSet<PeerId> {
        self.wire_ports.take_taken()
    }

    /// Takes what was found by the ops that look for sockets.
    pub(crate) fn take_found(&mut self) -> Vec<(PeerId, Vec<SocketNumbers>)> {
        std::mem::take(&mut self.found)
    }

    fn carry_out_on_flow(&mut self, now: Time, op: FlowOp, snapshot: &mut Snapshot) -> Result<(), Failure> {
        match op {
            FlowOp::ListenForIntroductions { indices } => {
                // Strangers change the list as often as they like; what is around it depends on whether there is one.
                self.surroundings_changed |= self.hooks.note_introducing(!indices.is_empty());
                self.listening.set(&self.datapath, indices)?;
                // The peer begins as soon as it is told that we look.
                self.apply_hooks()?;
            }
            FlowOp::Introduce { flow, end, index, nonce } => {
                let behind = end == LocalEnd::Passing;
                let introduction = Introduction { index, nonce };
                if self.is_in_endpoint(&flow) {
                    return self.introduce_in_endpoint(flow, introduction);
                }
                let Self { injector, datapath, connections, gateway, .. } = self;
                if behind {
                    return gateway.introduce(injector, flow, introduction);
                }
                introductions::introduce(injector, datapath, connections, snapshot, flow, introduction)?;
            }
            FlowOp::FindSockets { peer, remote } => {
                self.found.push((peer, snapshot.numbers_of(&self.datapath, &mut self.connections, remote)?));
            }
            // A reset from outside would have to find its way into the namespace.
            FlowOp::Reset { flow } if self.is_in_endpoint(&flow) => self.abort(&flow)?,
            FlowOp::Reset { flow } => {
                // A socket that is gone by itself needs no reset.
                if let Some(socket) = snapshot.socket(&self.datapath, &flow)? {
                    self.injector.reset(&flow, socket.rcv_nxt)?;
                }
            }
            FlowOp::Abort { flow } => self.abort(&flow)?,
            FlowOp::Expect { flow, from: Some(peer) } => self.tunnel.expect_flow(flow, vec![Peer(peer.0)]),
            FlowOp::Expect { flow, from: None } => self.tunnel.forget_expected(&flow),
            FlowOp::AskNatively { flow } => {
                let helped = self.helping.helpers.numbers_of_peer(&flow);
                introductions::ask(&self.injector, &mut self.datapath, snapshot, flow, helped)?;
            }
            FlowOp::Install { flow, entry } => self.install_flow(now, flow, entry)?,
            FlowOp::Remove { flow } => self.remove_flow(now, flow)?,
        }
        Ok(())
    }

    fn carry_out_on_binding(&mut self, now: Time, op: BindingOp, snapshot: &mut Snapshot) -> Result<(), Failure> {
        match op {
            BindingOp::Probe { wire, index, nonce } => {
                introductions::probe(&self.injector, wire, Introduction { index, nonce })?;
            }
            BindingOp::Set { peer, binding, moved } => {
                self.surroundings_changed = true;
                self.set_binding(now, peer, binding, moved)?;
            }
            BindingOp::Remove { peer } => {
                self.surroundings_changed = true;
                self.hooks.note_peer(now, peer, false);
                self.hooks.note_listening(peer, false);
                self.kicks.remove_peer(peer);
                self.gateway.remove_peer(peer);
                self.bindings.remove(&peer);
                self.ways_out.remove(&peer);
                self.wire_ports.release(peer);
                self.postponed.remove(peer);
                self.tunnels.remove_peer(&self.tunnel, peer);
                self.fitting.want();
                self.datapath.remove_binding(peer.0)?;
            }
            BindingOp::Kick { peer, lost } => {
                if self.kick {
                    let shrink_to = lost.then(|| self.tunnels.inner_mtu_of(peer));
                    self.kicks.begin(now, peer, shrink_to);
                    let result = self.run_kicks(now, snapshot);
                    let Self { gateway, datapath, injector, journal, .. } = self;
                    let woken = gateway.begin(now, peer, shrink_to, journal.flows(), datapath, injector);
                    let result = result.and(woken);
                    self.tunnels.open(&self.tunnel, peer);
                    result?;
                }
            }
        }
        Ok(())
    }

    fn carry_out_on_addresses(&mut self, now: Time, op: AddressOp) {
        match op {
            AddressOp::Keep { addresses } => self.addresses.use_addresses(addresses),
            AddressOp::LeaveFrom { addresses } => self.addresses.leave(addresses),
            AddressOp::Reach { addresses } => self.addresses.reach(addresses),
            AddressOp::StandIn { addresses } => return self.deputy.set(now, &addresses, &self.network),
        }
        self.surroundings_changed = true;
    }

    fn carry_out_on_tunnel(&mut self, now: Time, op: TunnelOp) -> Result<(), Failure> {
        match op {
            // Its result matters, so it was carried out already.
            TunnelOp::Chain(_) => {}
            TunnelOp::AddKeys { peer, receive_index, keys, aes } => {
                let algorithm = if aes { Algorithm::Aes256Gcm } else { Algorithm::ChaCha20Poly1305 };
                self.tunnel.add_keys(Peer(peer.0), receive_index, algorithm, &keys);
            }
            TunnelOp::RemoveKeys { receive_index } => self.tunnel.remove_keys(receive_index),
            TunnelOp::SetPath { peer, receive_index, path } => {
                self.surroundings_changed = true;
                let mtu = self.path_mtu(path.remote.ip(), path.source).unwrap_or(DEFAULT_MTU);
                let spare = self.spared.contains(&peer);
                self.tunnels.set_path(&self.tunnel, peer, receive_index, path, mtu, spare)?;
                self.learn_mtu(peer);
                self.next_mtu_look.get_or_insert(now + MTU_PAUSE);
            }
        }
        Ok(())
    }

    fn store(&mut self, op: StoreOp) -> Result<(), Failure> {
        match op {
            StoreOp::SavePeer(peer) => self.journal.save_peer(peer),
            StoreOp::SaveSuspended(suspended) => self.journal.save_suspended(suspended),
            StoreOp::ForgetPeer { key } => self.journal.forget_peer(key),
            StoreOp::SaveLeft { flow, former } => self.journal.save_left(flow, former),
            // It happens by hand, or once in a long while, so the disk may be waited for.
            StoreOp::SaveCommunity(saved) => self.community_file.write(&saved)?,
            StoreOp::ForgetCommunity => self.community_file.remove()?,
            StoreOp::RememberKey { address, key } => self.known_keys.remember(address, key),
        }
        Ok(())
    }

    fn set_binding(&mut self, now: Time, peer: PeerId, binding: Binding, moved: bool) -> Result<(), Failure> {
        self.hooks.note_peer(now, peer, moved);
        self.hooks.note_listening(peer, binding.listens);
        let wanted = self.data_plane_binding(peer, &binding);
        let fits = |other: &Binding| (other.places, other.parked) == (binding.places, binding.parked);
        if !self.bindings.get(&peer).is_some_and(fits) {
            self.fitting.note_ways(now);
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
        self.helping.note_peer(peer);
        Ok(())
    }

    fn data_plane_binding(&mut self, peer: PeerId, binding: &Binding) -> datapath::Binding {
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
    fn holder(&self, address: Option<IpAddr>) -> Option<u32> {
        let holder = self.network.addresses.iter().find(|usable| Some(usable.address) == address);
        holder.map(|usable| usable.interface)
    }

    /// The interface that rewritten packets of a binding leave by: the same as all else that is sent from its source to the
    /// peer, the tunnel and the probe that tried whether they pass.
    fn way_out(&mut self, binding: &Binding) -> Option<u32> {
        let (source, peer) = (binding.source?, binding.peer_locator);
        if source.is_ipv4() != peer.is_ipv4() || peer.is_unspecified() {
            return None;
        }
        // An interface that leads everywhere is made to (`kernel::source_way`), wherever the routes lead by themselves.
        match source_ways(&self.network).get(&source) {
            Some(way) => Some(way.interface),
            None => self.addresses.way_from(source, peer),
        }
    }

    /// Takes in another state of the network. The node may have to say more; what needs no word of it is done here.
    pub(crate) fn network_changed(&mut self, now: Time, network: NetworkState) {
        self.addresses.look_again();
        self.network = network;
        self.deputy.network_changed(&self.network);
        let bindings: Vec<_> = self.bindings.iter().map(|(peer, binding)| (*peer, binding.clone())).collect();
        for (peer, binding) in bindings {
            // Setting it anew would grant an allowance twice; its confirmation sets it in a moment.
            if self.tunnels.allowance(peer, binding.peer_locator).is_some() {
                continue;
            }
            // The interface may have got another number, or the address another interface.
            let wanted = self.data_plane_binding(peer, &binding);
            if let Err(error) = self.datapath.set_binding(peer.0, &wanted) {
                tracing::warn!(%peer, %error, "cannot put a binding in force again");
            }
            self.ways_out.insert(peer, WayOut::of(&wanted));
        }
        self.look_at_mtus();
        self.settle_or_retry(now);
    }

    /// Routes that were made here are gone, perhaps by somebody else's doing.
    pub(crate) fn look_again(&mut self) {
        self.addresses.look_again();
    }

    /// Routes have changed, and nothing of the network's state: a binding may lead its packets out another way.
    pub(crate) fn routes_changed(&mut self, now: Time) {
        self.addresses.look_again();
        let bindings: Vec<_> = self.bindings.iter().map(|(peer, binding)| (*peer, binding.clone())).collect();
        for (peer, binding) in bindings {
            self.lead_out(peer, &binding);
        }
        if let Err(failure) = self.tell_paths() {
            tracing::warn!(%failure, "cannot tell the data plane by which interface peers are heard");
        }
        let straight = self.straight_ways();
        if self.straight != straight {
            self.settle_or_retry(now);
        }
    }

    /// Makes the kernel's state fit what is known now.
    fn settle(&mut self) -> Result<(), Failure> {
        let hooked = self.apply_hooks();
        let surroundings = self.surroundings();
        self.filters = !surroundings.arrivals.is_empty();
        self.look_at_filters()?;
        let told = self.tell_paths();
        // Programs may be shown what is in force once it is.
        self.apply_names();
        self.addresses.apply(&surroundings, &self.datapath)?;
        hooked.and(told)
    }

    /// Somebody may have set a reverse path filter since.
    pub(crate) fn look_at_filters(&self) -> Result<(), Failure> {
        Ok(self.datapath.set_strict(self.filters && !sysctl::strict_filters().is_empty())?)
    }

    /// As [`Effects::settle`]. Interfaces come and go while it works, so a failure is tried again before it is told.
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

    fn apply_hooks(&mut self) -> Result<(), Failure> {
        Ok(self.hooks.apply(&mut self.datapath, &self.network, self.tunnel.device().index())?)
    }

    fn surroundings(&mut self) -> Surroundings {
        self.straight = self.straight_ways();
        let mut straight = self.remotes.one_way(|peer| self.straight.get(&peer).copied());
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
        Surroundings {
            own: own_addresses(&self.network),
            ways: source_ways(&self.network),
            locators: self.bindings.values().map(|binding| binding.peer_locator).collect(),
            arrivals,
            tun,
            inner_mtu: self.tunnels.longest_inner(),
            smaller: self.remotes.smaller(self.tunnels.longest_inner(), |peer| self.tunnels.known_inner_mtu(peer)),
            straight,
        }
    }

    fn straight_ways(&mut self) -> HashMap<PeerId, Straight> {
        let attached = self.datapath.attached();
        let Self { bindings, ways_out, addresses, .. } = self;
        let way = |(peer, binding): (&PeerId, &Binding)| {
            let interface = ways_out.get(peer)?.interface;
            let carries = attached.contains(&(interface, Role::Wire));
            Some((*peer, addresses.straight_way(binding, interface).filter(|_| carries)?))
        };
        bindings.iter().filter_map(way).collect()
    }

    fn run_kicks(&mut self, now: Time, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let wanted = self.kicks.wanted(now, self.journal.flows());
        if let Err(failure) = self.look_up(&wanted, false, snapshot) {
            self.kicks.put_off(now);
            return Err(failure);
        }
        let Self { kicks, injector, journal, tunnels, tunnel, relocation, .. } = self;
        let open = |peer| tunnels.open(tunnel, peer);
        let flows = journal.flows();
        let injector_of = |flow: &FlowTuple| match flows.get(flow) {
            Some(entry) if entry.end == LocalEnd::Endpoint => relocation.injector_of(flow).unwrap_or(injector),
            _ => &*injector,
        };
        let kicked = kicks.run(now, injector_of, flows, snapshot, open)?;
        if kicked > 0 {
            tracing::debug!(kicked, "woke senders");
        }
        Ok(())
    }

    /// Has a thread unbind the sockets of moved flows from their devices, keep those of flows that wait from giving up, and undo both
    /// where it is over, if that is due.
    fn fit_sockets(&mut self, now: Time) {
        if !self.fitting.take(now) {
            return;
        }
        // The first that a peer sends when it is back may be here before anybody says that its flows go on.
        if self.any_waits() {
            self.look_for_echoes(now);
        }
        let bindable = self.network.links.iter().filter(|_| self.fitting.binds());
        let interfaces: Vec<u32> = bindable.map(|link| link.index).collect();
        let (wake, inside) = (std::mem::take(&mut self.wake_again), self.namespaces_to_fit(self.any_waits()));
        let wake: Vec<(PeerId, bool)> = wake.into_iter().collect();
        match self.datapath.sockets_apart() {
            Ok(sockets) => self.passes.begin(
                move || fitting::pass(&sockets, &interfaces, &inside, wake),
                |why| Passed::failed(Failure::NoThread(why)),
            ),
            Err(error) => self.take_in_pass(now, Passed::failed(error.into())),
        }
    }

    /// Takes in what became of passes over the sockets.
    pub(crate) fn take_in_passes(&mut self, now: Time) {
        for passed in self.passes.take() {
            self.take_in_pass(now, passed);
        }
    }

    fn take_in_pass(&mut self, now: Time, passed: Passed) {
        let Passed { fitted, took, wake, inside } = passed;
        if let Some(waiting) = inside {
            self.fitting.note_inside(waiting > 0 || self.any_waits());
        }
        match fitted {
            Ok(Fitted { changed, waiting }) => {
                tracing::debug!(changed, waiting, ?took, "sockets fitted to their flows");
                self.fitting.note_waiting(now, waiting);
                self.unfitted = waiting;
            }
            Err(error) => {
                tracing::warn!(%error, "connections that wait may give up, and those bound to a device stand still");
                self.fitting.note_waiting(now, 1);
            }
        }
        self.fitting.rest(now, took);
        self.release_waiting();
        for (peer, lost) in wake {
            let kick = BindingOp::Kick { peer, lost };
            if let Err(failure) = self.carry_out_on_binding(now, kick, &mut Snapshot::default()) {
                tracing::warn!(%peer, %failure, "cannot wake senders");
            }
        }
        // What has become of flows meanwhile.
        self.fit_sockets(now);
    }

    /// The flows of these peers go on, perhaps after a lapse. What echoes of before is not to be measured. Sockets that are bound to devices
    /// send the old way until a pass has been made, and are woken once more then. Whether what was in flight is lost comes with each.
    fn go_on(&mut self, now: Time, peers: &[(PeerId, bool)], snapshot: &mut Snapshot) {
        self.look_for_echoes(now);
        let lost: BTreeMap<PeerId, bool> = peers.iter().copied().collect();
        let has_socket = |entry: &FlowEntry| matches!(entry.end, LocalEnd::Here | LocalEnd::Endpoint);
        let theirs =
            self.journal.flows().iter().filter(|(_, entry)| lost.contains_key(&entry.peer) && has_socket(entry));
        let theirs: Vec<(FlowTuple, PeerId)> = theirs.map(|(flow, entry)| (*flow, entry.peer)).collect();
        let flows: Vec<FlowTuple> = theirs.iter().map(|(flow, _)| *flow).collect();
        if let Err(failure) = self.look_up(&flows, true, snapshot) {
            tracing::warn!(%failure, "the kernel may take the time away for a round trip");
        }
        for (flow, peer) in theirs {
            if snapshot.get(&flow).is_some_and(|socket| socket.bound_interface != 0) {
                self.wake_again.insert(peer, lost[&peer]);
            }
        }
        self.fitting.want();
        self.fitting.rested();
        self.fit_sockets(now);
        self.release_waiting();
    }

    fn look_for_echoes(&mut self, now: Time) {
        if let Err(error) = self.datapath.set_lapses(true) {
            tracing::warn!(%error, "the kernel may take the time away for a round trip");
        }
        self.fitting.note_lapse(now);
    }

    /// Whether any flows are parked.
    fn any_waits(&self) -> bool {
        self.bindings.values().any(|binding| binding.parked)
            || self.journal.flows().values().any(|entry| entry.waits.any())
    }

    /// Drops what waits for an answer from a link that does not lead to where it is for any more. IPv4 takes whatever a
    /// socket that is bound to a device wants to reach for a neighbour once no route is left there.
    fn release_waiting(&mut self) {
        let Self { routes, addresses, network, .. } = self;
        let lost = |interface, address| addresses.reaches(address) || !network.is_on_link(interface, address);
        match routes.give_up_unanswered(lost) {
            Ok(0) => {}
            Ok(neighbours) => tracing::debug!(neighbours, "gave up waiting for neighbours that are not there"),
            Err(error) => {
                tracing::warn!(%error, "what was sent before the move may hold connections up for three seconds")
            }
        }
    }

    /// When [`Effects::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let retry = self.unsettled.map(|(_, due)| due);
        // A pass over the sockets that is put off is not due meanwhile.
        let fitting = self.fitting.timeout().map(|due| self.postponed.timeout().map_or(due, |until| due.max(until)));
        let own = [self.hooks.timeout(), self.kicks.timeout(), retry, self.next_mtu_look, fitting];
        let others = [
            self.deputy.timeout(),
            self.helping.helpers.poll_timeout(),
            self.postponed.timeout(),
            self.endpoints_timeout(),
            self.late_timeout(),
            self.gateway.timeout(),
        ];
        own.into_iter().chain(others).flatten().min()
    }

    /// Goes on with what takes several steps.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.hooks.expire(now) | self.unsettled.is_some_and(|(_, due)| due <= now) {
            self.settle_or_retry(now);
        }
        if self.kicks.timeout().is_some_and(|due| due <= now)
            && let Err(failure) = self.run_kicks(now, &mut Snapshot::default())
        {
            tracing::warn!(%failure, "cannot wake senders");
        }
        self.forget_told(now);
        self.expire_endpoints(now);
        self.deputy.go_on(now);
        self.kick_hosts(now);
        self.handle_helpers_timeout(now);
        self.end_late(now);
        self.postponed.expire(now);
        self.wake_postponed(now);
        if self.fitting.take_lapse(now) {
            if self.any_waits() {
                self.look_for_echoes(now);
            } else if let Err(error) = self.datapath.set_lapses(false) {
                tracing::warn!(%error, "what comes in is looked at for stale echoes until the next move");
            }
        }
        if !self.postponed.leaves_sockets(now) {
            self.fit_sockets(now);
        }
        if self.next_mtu_look.is_some_and(|due| due <= now) {
            self.next_mtu_look = self.tunnels.paths().next().map(|_| now + MTU_PAUSE);
            if self.look_at_mtus() {
                self.settle_or_retry(now);
            }
        }
    }

    /// Takes in the network as it is at the start. Nothing is made to fit it before the node has said what it wants: what
    /// is there for moved connections must not be taken down.
    pub(crate) fn begin(&mut self, network: NetworkState) {
        self.network = network;
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
        let of_namespaces = self.relocation.interface_names();
        let shown = self.datapath.attached().into_iter().map(|(interface, role)| Attachment {
            interface: of_namespaces.get(&interface).map_or_else(|| name(interface), |name| (*name).to_owned()),
            program: match role {
                Role::Wire => "translate",
                Role::Tunnel => "tunnel",
                Role::IntroductionsOnly => "introductions",
                Role::Endpoint => "endpoint",
                Role::Loopback => "loopback",
            }
            .to_owned(),
            hook: if self.tcx { "tcx" } else { "clsact" }.to_owned(),
        });
        shown.collect()
    }

    /// Whether sockets rest here: who stops now leaves programs standing still, or loses connections.
    pub(crate) fn is_in_the_middle(&self) -> bool {
        self.relocation.any_rests() || self.wholes.is_leaving_any()
    }

    /// Ends. While anything is moved all stays as it is, for the next daemon; else all is removed, and `true` returned.
    pub(crate) fn shut_down(mut self) -> bool {
        self.helping.helpers.let_go();
        if self.relocation.leave() || self.wholes.is_leaving_any() {
            tracing::warn!(
                "a move is in the middle: what stands still for it does until a daemon is started here again"
            );
            return false;
        }
        // What is being fitted may be left waiting.
        let carried = self.moved() || self.unfitted > 0 || self.fitting.is_out() || self.relocation.is_depended_on();
        if carried || self.helping.helpers.translates() {
            tracing::info!("connections depend on this host: what they need stays, and the next start takes it over");
            return false;
        }
        // Before the programs that watch over them.
        let ended = self.end_namespaces();
        let released = self.addresses.release().map_err(Failure::from);
        let spoken = self.speak_for_nobody();
        let unloaded = self.datapath.unload().map_err(Failure::from);
        // What is pinned still is the next daemon's to take over.
        let is_unloaded = unloaded.is_ok();
        let removed = released.and(ended).and(spoken).and(unloaded);
        if let Err(failure) = removed {
            tracing::warn!(%failure, "something is left behind");
        }
        let device = self.tunnel.device().name().to_owned();
        drop(self.tunnel);
        if let Err(error) = Tun::open(&device, DEFAULT_MTU).and_then(Tun::remove) {
            tracing::warn!(%error, "the tunnel's device is left behind");
        }
        is_unloaded
    }
}

/// Whose flows an op lets go on, and whether what they had in flight is lost.
fn kicked(op: &Op) -> Option<(PeerId, bool)> {
    match op {
        Op::Binding(BindingOp::Kick { peer, lost }) => Some((*peer, *lost)),
        _ => None,
    }
}

/// The peer whose senders an op makes send again what is lost.
fn wakes((_, op): &(OpId, Op)) -> Option<PeerId> {
    match op {
        Op::Binding(BindingOp::Kick { peer, lost: true }) => Some(*peer),
        _ => None,
    }
}

/// How packets leave that are sent from each address of this host, where its interface has a way to everywhere.
pub(crate) fn source_ways(network: &NetworkState) -> BTreeMap<IpAddr, SourceWay> {
    let way = |usable: &UsableAddress| {
        let ipv4 = usable.address.is_ipv4();
        let defaults = network.default_routes.iter();
        let own = defaults.filter(|route| route.ipv4 == ipv4 && route.interface == usable.interface);
        let best = own.min_by_key(|route| route.metric)?;
        Some((usable.address, SourceWay { interface: usable.interface, gateway: best.gateway }))
    };
    network.addresses.iter().filter_map(way).collect()
}

/// The addresses that this host has by itself.
pub(crate) fn own_addresses(network: &NetworkState) -> BTreeSet<IpAddr> {
    let connected = |index| network.link(index).is_some_and(|link| link.carrier);
    network.addresses.iter().filter(|usable| connected(usable.interface)).map(|usable| usable.address).collect()
}

/// An op without its secrets, in one line.
struct Shown<'a>(&'a Op);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Op::Tunnel(TunnelOp::AddKeys { peer, receive_index, .. }) => {
                write!(f, "AddTunnelKeys {{ peer: {peer}, receive_index: {receive_index} }}")
            }
            op => write!(f, "{op:?}"),
        }
    }
}
