//! Flows that the node knows, in everything that has to know them: data plane, tunnel, store, routes, names.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use whimbrel_datapath as datapath;
use whimbrel_datapath::{FormerName, HelpedFlow, HelpedPhase, TUNNELLED};
use whimbrel_kernel::endpoint;
use whimbrel_protocol::{BindingId, FlowEntry, LocalEnd, PeerId, Places, Time, View};
use whimbrel_tunnel::LATE;
use whimbrel_tunnel::TunnelFlow;
use whimbrel_wire::{FlowTuple, Transport};

use crate::clock::monotonic;

use super::late::take_due;
use super::ports::User;
use super::{Failure, Host};

impl Host {
    pub(crate) fn install_flow(&mut self, now: Time, flow: FlowTuple, entry: FlowEntry) -> Result<(), Failure> {
        // Agreed on while its socket went: what comes for it goes where that is.
        if entry.unconnected && !self.flows.all().contains_key(&flow) && self.has_gone(&flow) {
            self.ended.push(flow);
            return Ok(());
        }
        let delivery = self.delivery(now, &flow, &entry);
        let before = self.flows.get(&flow);
        let other = |before: &&FlowEntry| (before.peer, before.wire_local_port) != (entry.peer, entry.wire_local_port);
        if let Some(before) = before.filter(other) {
            self.wire_ports.forget_flow(&flow, before.peer);
        }
        let first = BindingId::first(entry.peer);
        if !self.wire_ports.record_flow(&flow, &entry, self.bindings.get(&first)) {
            // The data plane asks for each datagram from now on.
            self.learn_mtu(first);
        }
        let before = self.flows.get(&flow);
        // Led to another owner, which is to know of it first.
        let led = match entry.end {
            LocalEnd::Here => before.is_some_and(|before| before.peer != entry.peer),
            LocalEnd::Behind => before.is_none_or(|before| before.peer != entry.peer),
            LocalEnd::Endpoint | LocalEnd::Passing => false,
        };
        // Before the data plane leads packets there: the tunnel would send them to whoever had the flow before, who may
        // have forgotten it.
        self.tunnel.set_flow(tunnel_flow(flow, &entry));
        let in_force = datapath::FlowEntry { tunnelled: led, ..data_plane_entry(&entry, delivery) };
        // What is on its way from who has passed it on until now is taken as well.
        let passed_on = before.filter(|before| before.passed_on && before.peer != entry.peer).map(|before| before.peer);
        if let Some(former) = passed_on {
            self.tunnel.expect_flow(flow, vec![former]);
            let name = self.datapath.rebind_flow(flow, in_force)?;
            self.forget_name_later(now, name);
        } else {
            self.datapath.insert_flows(&[(flow, in_force)])?;
        }
        self.tunnel.open_flow(&flow);
        if led {
            self.tunnel_first(now, flow);
        }
        let before = self.flows.get(&flow);
        if before.is_some_and(|before| before.waits != entry.waits) {
            self.senders.want_fitting();
        }
        let first = self.remotes.add(&flow, &entry);
        self.homes.set_others(first);
        self.surroundings_changed |= first;
        if let Some(before) = before {
            self.homes.set_others(self.remotes.remove(&flow, before));
            self.names.remove(&flow, before);
        }
        self.names.add(&flow, &entry);
        self.store.save_flow(&flow, &entry, before);
        self.flows.insert(flow, entry);
        let watches = self.hooks.set_late(&flow, entry.late);
        if self.hooks.set_introduced(now, true) || watches {
            self.apply_hooks()?;
        }
        Ok(())
    }

    /// What the data plane is to know of a flow whose namespace is there, if it is to be in one.
    pub(crate) fn data_plane_entry(&mut self, flow: &FlowTuple, entry: &FlowEntry) -> datapath::FlowEntry {
        let delivery = self.delivery_adopted(flow, entry);
        data_plane_entry(entry, delivery)
    }

    pub(crate) fn remove_flow(&mut self, now: Time, flow: FlowTuple) -> Result<(), Failure> {
        let before = self.flows.remove(&flow);
        if let Some(before) = &before {
            self.homes.set_others(self.remotes.remove(&flow, before));
            self.names.remove(&flow, before);
            self.wire_ports.forget_flow(&flow, before.peer);
            self.store.forget_flow(&flow, before);
        }
        self.tunnel.remove_flow(&flow);
        // What its socket's new host gets includes what the peer sends as it has until now.
        if self.tunnel.sets_aside(&flow) {
            let name = self.datapath.leave_flow(&flow)?;
            self.forget_name_later(now, name);
        } else {
            self.datapath.remove_flows(&[flow])?;
        }
        if let Some(before) = before {
            self.release_flow_endpoint(now, &flow, before.end);
        }
        self.hooks.set_late(&flow, false);
        self.hooks.set_introduced(now, !self.flows.all().is_empty());
        Ok(())
    }

    /// Takes over flows of a daemon before this one. `present`: those that the data plane has; `strangers` are removed
    /// from it.
    pub(crate) fn adopt_flows(
        &mut self,
        now: Time,
        flows: &HashMap<FlowTuple, FlowEntry>,
        present: &HashMap<FlowTuple, datapath::FlowEntry>,
        strangers: &[FlowTuple],
    ) -> Result<(), Failure> {
        self.datapath.remove_flows(strangers)?;
        let entries: Vec<_> = flows
            .iter()
            .map(|(flow, entry)| (*flow, data_plane_entry(entry, self.delivery_adopted(flow, entry))))
            .collect();
        let missing: Vec<_> = entries.into_iter().filter(|(flow, entry)| present.get(flow) != Some(entry)).collect();
        self.datapath.insert_flows(&missing)?;
        for (flow, entry) in flows {
            self.wire_ports.record_flow(flow, entry, None);
            self.homes.set_others(self.remotes.add(flow, entry));
            self.names.add(flow, entry);
            self.hooks.set_late(flow, entry.late);
        }
        self.tunnel.set_flows(flows.iter().map(|(flow, entry)| tunnel_flow(*flow, entry)));
        self.hooks.set_introduced(now, !flows.is_empty());
        for (id, binding) in self.datapath.bindings()? {
            let home = Places { local: binding.local_place, peer: binding.peer_place };
            let mut led = flows.values().filter(|entry| entry.binding() == id).peekable();
            if led.peek().is_none() {
                self.datapath.remove_binding(id)?;
            } else if led.any(|entry| entry.home != home) {
                self.hooks.record(now, id, true);
            }
        }
        self.senders.on_routes_changed(now);
        Ok(())
    }

    /// Where the data plane finds this host's end of a flow that is to be known to it.
    pub(crate) fn delivery(&mut self, now: Time, flow: &FlowTuple, entry: &FlowEntry) -> datapath::Delivery {
        let before = self.flows.get(flow).map(|before| before.end);
        if let Some(before) = before.filter(|before| *before != entry.end) {
            self.release_flow_endpoint(now, flow, before);
        }
        if entry.end == LocalEnd::Endpoint && !self.endpoints.counts(flow) {
            let Self { endpoints, datapath, .. } = self;
            if let Err(error) = endpoints.need_for(now, flow, datapath) {
                tracing::error!(%flow, %error, "a connection has no namespace for its address");
            }
        }
        self.delivery_adopted(flow, entry)
    }

    /// As [`Host::delivery`], of a flow whose namespace is there, if it is to be in one: that of a daemon before this
    /// one, say.
    pub(crate) fn delivery_adopted(&mut self, flow: &FlowTuple, entry: &FlowEntry) -> datapath::Delivery {
        self.keep_port(flow, entry);
        match entry.end {
            LocalEnd::Here => datapath::Delivery::Stack,
            LocalEnd::Behind => {
                self.let_forward();
                datapath::Delivery::Routes
            }
            LocalEnd::Passing => {
                self.let_forward();
                datapath::Delivery::Passing
            }
            // Without a namespace nothing of it gets anywhere.
            LocalEnd::Endpoint => datapath::Delivery::Endpoint(self.endpoints.interface(flow).unwrap_or_default()),
        }
    }

    /// What comes by the tunnel for other hosts may be passed on.
    pub(crate) fn let_forward(&mut self) {
        if !std::mem::replace(&mut self.forwards, true)
            && let Err(error) = endpoint::let_forward(self.tunnel.device().name())
        {
            tracing::error!(%error, "connections whose sockets are with other hosts stand still");
        }
    }

    /// A flow is over, or its end not there any more: with a socket in a namespace of its own, or with another host's
    /// socket.
    pub(crate) fn release_flow_endpoint(&mut self, now: Time, flow: &FlowTuple, end: LocalEnd) {
        match end {
            LocalEnd::Endpoint => self.endpoints.release_flow(now, flow),
            LocalEnd::Behind => {
                self.release_port(flow);
                self.left.push(flow.remote.ip());
            }
            LocalEnd::Here | LocalEnd::Passing => {}
        }
    }

    /// A socket has gone: what came for it meanwhile goes to who has it now, and for a while what still comes. `None`:
    /// nobody has it.
    pub(crate) fn part_with(&mut self, now: Time, flow: FlowTuple, to: Option<PeerId>) {
        if to.is_some() {
            self.tunnel.hand_on(&flow, to);
            self.late.set_resting(now + LATE, flow);
        } else {
            self.drop_aside(&flow);
        }
    }

    /// Sets packets of a flow aside that come from now on, at the data plane and in the tunnel.
    pub(crate) fn set_aside(&mut self, flow: &FlowTuple) -> Result<(), Failure> {
        let rests = HelpedFlow { phase: HelpedPhase::Rests, offset: 0, acknowledged: 0, delivered: 0 };
        if flow.transport == Transport::Udp && flow.is_unconnected() {
            self.end_unconnected(flow)?;
        }
        self.tunnel.set_aside(flow);
        Ok(self.datapath.set_helped(flow, &rests)?)
    }

    /// Lets them come again, those first that were set aside.
    pub(crate) fn give_aside_back(&mut self, flow: &FlowTuple) {
        self.let_in(flow);
        self.tunnel.hand_on(flow, None);
    }

    /// Lets them come again, without those that were set aside.
    pub(crate) fn drop_aside(&mut self, flow: &FlowTuple) {
        self.let_in(flow);
        self.tunnel.forget_aside(flow);
    }

    /// A flow has another owner, which gets it by the tunnel at first.
    pub(crate) fn tunnel_first(&mut self, now: Time, flow: FlowTuple) {
        self.late.tunnelled.push_back((now + TUNNELLED, flow));
    }

    /// A flow goes to its far end directly from now on, or its socket has gone: what is on its way from who has passed
    /// it on, or to the socket, is taken for a while.
    pub(crate) fn forget_name_later(&mut self, now: Time, name: Option<FormerName>) {
        self.late.names.extend(name.map(|name| (now + LATE, name)));
    }

    /// A socket comes to where one of its name has been.
    pub(crate) fn forget_late(&mut self, flow: &FlowTuple) {
        if self.late.resting.remove(flow).is_some() {
            self.drop_aside(flow);
        }
    }

    pub(crate) fn end_late(&mut self, now: Time) {
        for flow in self.late.take_rested(now) {
            self.drop_aside(&flow);
        }
        for name in take_due(&mut self.late.names, now) {
            if let Err(error) = self.datapath.forget_name(&name) {
                tracing::warn!(%error, "a connection is taken under a name that it has no more");
            }
        }
        let due = take_due(&mut self.late.tunnelled, now);
        if due.is_empty() {
            return;
        }
        let mut entries: Vec<_> = Vec::with_capacity(due.len());
        for flow in due {
            if let Some(entry) = self.flows.get(&flow).copied() {
                entries.push((flow, self.data_plane_entry(&flow, &entry)));
            }
        }
        if let Err(error) = self.datapath.insert_flows(&entries) {
            tracing::warn!(%error, "connections that have moved stay in the tunnel");
        }
    }

    /// A flow's end is where `entry` says. Where that is another host's socket with an address of this one, its port is
    /// kept for it.
    pub(crate) fn keep_port(&mut self, flow: &FlowTuple, entry: &FlowEntry) {
        if entry.end == LocalEnd::Behind {
            // As this host answers for the far end, that is `local`.
            self.ports.need(flow.transport, flow.remote, User::Connection(flow.local));
        }
    }

    pub(crate) fn release_port(&mut self, flow: &FlowTuple) {
        self.ports.release(flow.transport, flow.remote, User::Connection(flow.local));
    }

    /// How long ago a flow of a socket that is not connected was in use.
    pub(crate) fn last_use(&self, flow: &FlowTuple) -> Result<Option<Duration>, Failure> {
        let last = self.datapath.last_used(flow)?.filter(|last| *last != 0);
        // It wraps around after seven weeks, in which the node asks often.
        let now = monotonic().as_millis() as u32;
        Ok(last.map(|last| Duration::from_millis(now.wrapping_sub(last).into())))
    }

    /// What sockets of UDP that are not connected have sent so far back and that is of no known flow: own tuples, users
    /// and cookies.
    pub(crate) fn sent_since(&self, ago: Duration) -> Result<Vec<(FlowTuple, bool, u32, u64)>, Failure> {
        let now = monotonic().as_millis() as u32;
        let sent = self.datapath.datagrams()?.into_iter();
        let sent = sent.filter(|sent| u128::from(now.wrapping_sub(sent.at)) <= ago.as_millis());
        Ok(sent.map(|sent| (sent.flow, false, sent.user, sent.cookie)).collect())
    }

    /// The ports that the kernel draws from are these.
    pub(crate) fn set_drawn_ports(&self, drawn: &RangeInclusive<u16>) {
        if let Err(error) = self.datapath.set_drawn_ports(drawn) {
            tracing::warn!(%error, "what servers of UDP answer is told as well");
        }
    }

    /// Ports of this host's addresses that sockets of other hosts have. No socket of here shows them.
    pub(crate) fn ports_elsewhere(&self) -> impl Iterator<Item = u16> + '_ {
        self.ports.all()
    }

    /// As [`Host::settle_ports`], at each tick.
    pub(crate) fn check_for_ports(&mut self) {
        self.ports.tick();
    }

    /// Takes ports that somebody else had, if they are free by now.
    pub(crate) fn settle_ports(&mut self) {
        self.ports.settle();
    }
}

fn data_plane_entry(entry: &FlowEntry, delivery: datapath::Delivery) -> datapath::FlowEntry {
    datapath::FlowEntry {
        binding: entry.binding(),
        home_local_place: entry.home.local,
        home_peer_place: entry.home.peer,
        wire_local_port: entry.wire_local_port,
        wire_remote_port: entry.wire_remote_port,
        held: entry.waits.any(),
        real_view: entry.manner.view == View::Real,
        gives_way: entry.manner.gives_way,
        tunnelled: false,
        hidden: entry.hidden,
        beyond: entry.beyond,
        late: entry.late,
        unconnected: entry.unconnected,
        delivery,
    }
}

fn tunnel_flow(flow: FlowTuple, entry: &FlowEntry) -> TunnelFlow {
    let elsewhere = entry.end != LocalEnd::Here;
    TunnelFlow { own: flow, binding: entry.binding(), peer_tuple: entry.peer_tuple, elsewhere }
}
