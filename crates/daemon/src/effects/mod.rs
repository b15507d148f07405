//! Hands what the node asks for to whoever does it: the executors of the host, and those of roles.
//!
//! ```text
//! moves.rs    ops of moves and leases, with the namespaces that some wait for
//! adopt.rs    what a daemon before this one has left
//! ```

mod adopt;
mod moves;
pub(crate) mod restored;

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::path::Path;

use whimbrel_kernel::network::NetworkState;
use whimbrel_kernel::tun::Tun;
use whimbrel_protocol::{
    AddressOp, BindingId, BindingOp, FlowOp, LocalEnd, Node, Op, OpDone, OpFailed, OpId, PeerId, StoreOp, Time,
    TunnelOp,
};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::introduction::Introduction;

use crate::community_file::CommunityFile;
use crate::host::introductions::{self, Snapshot};
use crate::host::{DEFAULT_MTU, Failure, Host};
use crate::known_keys::KnownKeys;
use crate::role::anchor::executor::lender::Lender;
use crate::role::anchor::executor::tenant::Tenant;
use crate::role::gateway::executor::Gateway;
use crate::role::helpers::Helpers;
use crate::role::relocation::executor::Relocation;
use crate::role::relocation::executor::making::Making;
use crate::role::relocation::process::executor::{Around, Processes};
use crate::role::rendezvous::names::NameLookups;
use crate::role::rendezvous::proxy::ProxyExecutor;

/// The executors of roles. Each op goes to the one that owns it, or to the host's.
pub(crate) struct Effects {
    pub(crate) known_keys: KnownKeys,
    community_file: CommunityFile,
    pub(crate) proxy: ProxyExecutor,
    names: NameLookups,
    pub(crate) gateway: Gateway,
    pub(crate) helpers: Helpers,
    pub(crate) relocation: Relocation,
    pub(crate) lender: Lender,
    pub(crate) tenant: Tenant,
    making: Making,
    pub(crate) processes: Processes,
}

impl Effects {
    pub(crate) fn new(
        host: &mut Host,
        known_keys: KnownKeys,
        community_file: CommunityFile,
        helpers: Helpers,
        names: NameLookups,
        run_dir: &Path,
    ) -> Result<Self, Failure> {
        Ok(Self {
            making: Making::new(host.datapath.guard()?)?,
            known_keys,
            community_file,
            proxy: ProxyExecutor::default(),
            names,
            gateway: Gateway::default(),
            helpers,
            relocation: Relocation::default(),
            lender: Lender::default(),
            tenant: Tenant::default(),
            processes: Processes::new(run_dir)?,
        })
    }

    /// Readable when a name server has answered.
    pub(crate) fn names_wake(&self) -> BorrowedFd<'_> {
        self.names.wake()
    }

    /// Tells the node what name servers have answered.
    pub(crate) fn handle_names(&mut self, now: Time, node: &mut Node) {
        self.names.handle_answers(now, node);
    }

    /// The processes on their way, and what their steps are taken with.
    pub(crate) fn around_wholes<'a>(&'a mut self, host: &'a mut Host) -> (&'a mut Processes, Around<'a>) {
        let Self { relocation, processes, .. } = self;
        (processes, Around { relocation, host })
    }

    /// Carries out ops in order and gives what came of each. What follows from them for all that is around them is
    /// [`Effects::follow_up`]'s, so that peers who wait for a result need not wait for that.
    pub(crate) fn carry_out(
        &mut self,
        host: &mut Host,
        now: Time,
        ops: Vec<(OpId, Op)>,
    ) -> Vec<(OpId, Result<OpDone, OpFailed>)> {
        // One look at the sockets serves all ops that are queued together.
        let mut snapshot = Snapshot::default();
        host.look_ahead(&ops);
        let mut results = Vec::with_capacity(ops.len());
        for (id, op) in ops {
            tracing::debug!(id = id.0, op = %Shown(&op), "op");
            let result = self.carry_out_one(host, now, op, &mut snapshot);
            self.withdraw_left(host);
            let failed = |failure: Failure| OpFailed { refusal: None, sentence: failure.to_string() };
            results.push((id, result.map_err(failed)));
        }
        host.write_store();
        results
    }

    fn carry_out_one(
        &mut self,
        host: &mut Host,
        now: Time,
        op: Op,
        snapshot: &mut Snapshot,
    ) -> Result<OpDone, Failure> {
        let Self { gateway, helpers, .. } = self;
        match op {
            Op::Flow(FlowOp::ListenForIntroductions { indices }) => host.listen_for_introductions(indices)?,
            Op::Flow(FlowOp::Introduce { flow, end, index, nonce }) => {
                let introduction = Introduction { index, nonce };
                if end == LocalEnd::Passing && !host.is_in_endpoint(&flow) {
                    gateway.introduce(&host.injector, flow, introduction)?;
                } else {
                    host.introduce(flow, introduction, snapshot)?;
                }
            }
            Op::Flow(FlowOp::FindSockets { peer, remotes }) => host.find_sockets(peer, &remotes, snapshot)?,
            Op::Flow(FlowOp::LookAtUse { flow }) => return Ok(OpDone::Used(host.last_use(&flow)?)),
            Op::Flow(FlowOp::Reset { flow }) => host.reset(&flow, snapshot)?,
            Op::Flow(FlowOp::Abort { flow }) => host.abort(&flow)?,
            Op::Flow(FlowOp::EndConnecting { remotes }) => host.end_connecting(&remotes)?,
            Op::Flow(FlowOp::AskUnaccepted { flows }) => host.ask_unaccepted(now, &flows, snapshot)?,
            Op::Flow(FlowOp::EndUnaccepted { flows }) => host.end_unaccepted(&flows)?,
            Op::Flow(FlowOp::Expect { flow, from: Some(peer) }) => host.tunnel.expect_flow(flow, vec![peer]),
            Op::Flow(FlowOp::Expect { flow, from: None }) => host.tunnel.forget_expected(&flow),
            Op::Flow(FlowOp::AskNatively { flow }) => {
                host.ask_natively(flow, helpers.numbers_of_peer(&flow), snapshot)?;
            }
            Op::Flow(FlowOp::Install { flow, entry }) => {
                helpers.record_flow(flow);
                host.install_flow(now, flow, entry)?;
            }
            Op::Flow(FlowOp::Remove { flow }) => {
                gateway.forget(&flow);
                host.remove_flow(now, flow)?;
            }
            Op::Binding(BindingOp::Probe { wire, index, nonce }) => {
                introductions::probe(&host.injector, wire, Introduction { index, nonce })?;
            }
            Op::Binding(BindingOp::Set { id, binding, moved }) => {
                host.set_binding(now, id, binding, moved)?;
                helpers.record_peer(id.peer());
            }
            Op::Binding(BindingOp::Remove { id }) => {
                if id.is_first() {
                    gateway.remove_peer(id.peer());
                }
                host.remove_binding(now, id)?;
            }
            Op::Binding(BindingOp::Watch { between, answer }) => host.watch(&between, answer)?,
            Op::Binding(BindingOp::LookAtTraffic { between }) => return Ok(OpDone::Heard(host.heard(&between)?)),
            Op::Binding(BindingOp::Windows { peer, comeback }) => {
                return Ok(OpDone::Windows(host.turn_windows(peer, comeback, snapshot)?));
            }
            Op::Binding(BindingOp::Acknowledge { peer }) => host.acknowledge_later(peer),
            Op::Binding(BindingOp::Kick { peer, lost }) => {
                if let Some(lost) = host.take_turn(now, peer, lost) {
                    host.prepare_kick(now, snapshot);
                    self.kick(host, now, peer, lost, snapshot)?;
                }
            }
            Op::Address(AddressOp::Keep { addresses }) => host.change_addresses(|all| all.use_addresses(addresses)),
            Op::Address(AddressOp::LeaveFrom { addresses }) => host.change_addresses(|all| all.leave(addresses)),
            Op::Address(AddressOp::Reach { addresses }) => host.change_addresses(|all| all.reach(addresses)),
            Op::Address(AddressOp::Lead { ways }) => host.change_addresses(|all| all.lead(ways)),
            Op::Address(AddressOp::NeighbourProxy { addresses }) => self.proxy.set(now, &addresses, &host.network),
            Op::Address(AddressOp::LookUp { key }) => self.names.ask(key),
            Op::Tunnel(TunnelOp::AddKeys { peer, receive_index, keys, aes }) => {
                host.add_keys(peer, receive_index, &keys, aes);
            }
            Op::Tunnel(TunnelOp::Connect { peer, wanted }) => host.reach_by_tcp(peer, wanted),
            Op::Tunnel(TunnelOp::Chain(op)) => return Ok(host.carry_out_on_chain(&op)),
            Op::Tunnel(TunnelOp::RemoveKeys { receive_index }) => host.tunnel.remove_keys(receive_index),
            Op::Tunnel(TunnelOp::SetPath { id, receive_index, path }) => {
                host.set_path(now, id, receive_index, path)?;
            }
            Op::Store(StoreOp::SavePeer(peer)) => host.save_peer(&peer),
            Op::Store(StoreOp::SaveSuspended(suspended)) => host.store.save_suspended(suspended),
            Op::Store(StoreOp::ForgetPeer { key }) => host.forget_peer(key),
            Op::Store(StoreOp::SaveLeft { flow, former }) => host.store.save_left(&flow, former),
            // It happens by hand, or once in a long while, so the disk may be waited for.
            Op::Store(StoreOp::SaveCommunity(saved)) => self.community_file.write(&saved)?,
            Op::Store(StoreOp::ForgetCommunity) => self.community_file.remove()?,
            Op::Store(StoreOp::RememberKey { address, key }) => self.known_keys.remember(address, key),
            // The loop carries these out, behind all others.
            Op::Move(_) => {}
        }
        Ok(OpDone::Done)
    }

    /// Wakes the senders of a peer, and hosts behind this one that send to it.
    fn kick(
        &mut self,
        host: &mut Host,
        now: Time,
        peer: PeerId,
        lost: bool,
        snapshot: &mut Snapshot,
    ) -> Result<(), Failure> {
        let Some(shrink_to) = host.shrinks_to(peer, lost) else { return Ok(()) };
        let result = host.wake_senders(now, peer, shrink_to, snapshot);
        let woken = self.gateway.begin(now, peer, shrink_to, host.flows.all(), &host.datapath, &host.injector);
        host.tunnels.open(&host.tunnel, BindingId::first(peer));
        result.and(woken)
    }

    fn kick_or_warn(&mut self, host: &mut Host, now: Time, peer: PeerId, lost: bool, snapshot: &mut Snapshot) {
        if let Err(failure) = self.kick(host, now, peer, lost, snapshot) {
            tracing::warn!(%peer, %failure, "cannot wake senders");
        }
    }

    /// Addresses of flows whose sockets are elsewhere no more need not be announced, where nobody has them on lease.
    fn withdraw_left(&mut self, host: &mut Host) {
        for address in host.take_left() {
            self.lender.withdraw_address(host, address);
        }
    }

    /// Makes routes, names and sockets fit what was carried out.
    pub(crate) fn follow_up(&mut self, host: &mut Host, now: Time) {
        host.follow_up(now);
        self.helpers.help(host, now);
        host.write_store();
    }

    /// Takes in another state of the network. The node may have to say more; what needs no word of it is done here.
    pub(crate) fn network_changed(&mut self, host: &mut Host, now: Time, network: NetworkState) {
        self.proxy.network_changed(&network);
        host.network_changed(now, network);
    }

    /// Readable when namespaces were made.
    pub(crate) fn namespaces_wake(&self) -> BorrowedFd<'_> {
        self.making.wake()
    }

    /// Takes in what became of passes over the sockets.
    pub(crate) fn handle_passes(&mut self, host: &mut Host, now: Time) {
        for passed in host.senders.take_passed() {
            for (peer, lost) in host.handle_pass(now, passed) {
                self.kick_or_warn(host, now, peer, lost, &mut Snapshot::default());
            }
            // What has become of flows meanwhile.
            host.fit_sockets(now);
        }
    }

    /// When [`Effects::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self, host: &Host) -> Option<Time> {
        let of_roles = [self.proxy.timeout(), self.helpers.poll_timeout(), self.gateway.timeout()];
        of_roles.into_iter().chain([host.poll_timeout()]).flatten().min()
    }

    /// Goes on with what takes several steps.
    pub(crate) fn handle_timeout(&mut self, host: &mut Host, now: Time) {
        host.handle_timeout(now);
        let ended = host.expire_endpoints(now);
        if !ended.is_empty() {
            self.making.take_down(ended);
        }
        self.proxy.go_on(now);
        self.gateway.kick_hosts(host, now);
        self.helpers.handle_helpers_timeout(host, now);
        for (peer, lost) in host.senders.take_postponed() {
            let mut snapshot = Snapshot::default();
            host.go_on(now, &[(peer, lost)], &mut snapshot);
            self.kick_or_warn(host, now, peer, lost, &mut snapshot);
        }
        host.handle_timeout_of_sockets(now);
    }

    /// Connections whose sockets are at rest, so that nothing may come to them.
    fn at_rest(&self) -> HashSet<FlowTuple> {
        self.relocation.at_rest().chain(self.processes.flows_of_leaving()).collect()
    }

    /// Whether sockets rest here: who stops now leaves programs standing still, or loses connections.
    pub(crate) fn is_in_the_middle(&self) -> bool {
        self.relocation.any_rests() || self.processes.is_leaving_any()
    }

    /// Whether connections depend on what is in the kernel for endpoints that are lent, are on lease or have moved
    /// here, which the node knows nothing of.
    fn is_depended_on(&self, host: &Host) -> bool {
        !host.lent().is_empty() || !self.tenant.is_idle() || host.endpoints.in_use().next().is_some()
    }

    /// Ends. While anything is moved all stays as it is, for the next daemon; else all is removed, and `true` returned.
    pub(crate) fn shut_down(mut self, mut host: Host) -> bool {
        self.helpers.let_go();
        if self.relocation.leave() || self.processes.is_leaving_any() {
            tracing::warn!(
                "a move is in the middle: what stands still for it does until a daemon is started here again"
            );
            return false;
        }
        if host.is_carrying() || self.is_depended_on(&host) || self.helpers.translates() {
            tracing::info!("connections depend on this host: what they need stays, and the next start takes it over");
            return false;
        }
        // Before the programs that watch over them.
        self.making.end();
        let ended = host.end_namespaces();
        let released = host.addresses.release().map_err(Failure::from);
        let spoken = self.gateway.speak_for_nobody();
        let unloaded = host.datapath.unload().map_err(Failure::from);
        // What is pinned still is the next daemon's to take over.
        let is_unloaded = unloaded.is_ok();
        let removed = released.and(ended).and(spoken).and(unloaded);
        if let Err(failure) = removed {
            tracing::warn!(%failure, "something is left behind");
        }
        let device = host.tunnel.device().name().to_owned();
        drop(host.tunnel);
        if let Err(error) = Tun::open(&device, DEFAULT_MTU).and_then(Tun::remove) {
            tracing::warn!(%error, "the tunnel's device is left behind");
        }
        is_unloaded
    }
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
