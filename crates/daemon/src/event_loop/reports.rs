//! What is reported of connections: by the data plane as it happens, and by the kernel's lists where that may have
//! missed some.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use whimbrel_datapath::{Event as DatapathEvent, Introduction, Most, Origin};
use whimbrel_kernel::sock_diag::{Listener, SockDiag};
use whimbrel_protocol::{Between, FlowView, Greeting, LocalEnd, Node, PeerId, Time};
use whimbrel_wire::{FlowTuple, Transport};

use super::EventLoop;
use crate::Error;
use crate::api::desk::Desk;
use crate::host::inventory::flows::{
    bound_ports, ephemeral_ports, is_broadcast, is_movable, list_tcp, may_have_been_asked, was_asked,
};
use crate::host::inventory::unconnected::UnconnectedFlows;
use crate::host::sockets::AtRest;
use crate::policy::Judge;
use crate::role::gateway::executor::Gateway;

/// How far back it is looked what sockets of UDP have sent: the pause between two lists of them, and some more.
const UNCONNECTED_LOOK: Duration = Duration::from_secs(8);

impl EventLoop {
    /// Takes in what the data plane reports, `most` at once: whoever makes it report faster than can be answered is not
    /// to keep this host from its timers, hand-offs and end (P-142).
    pub(super) fn handle_datapath_events(&mut self, now: Time, most: Most) {
        self.unread = false;
        let Self { desk, effects, sockets, judge, unconnected, .. } = self;
        let own = desk.own_addresses();
        let Desk { node, host, .. } = desk;
        let own = |address: IpAddr| own.contains(&address);
        let kept = host.kept_addresses().to_vec();
        // P-35: what is introduced has a socket, with an address of this host's. That of a datagram flow may be younger
        // than the last listing, and the birth of a connection may have been missed.
        let here = |flow: &FlowTuple| own(flow.local.ip()) || kept.contains(&flow.local.ip());
        let mut finder = Finder { sockets, unconnected, at_rest: host.at_rest() };
        // Whether the node is to be told of the introduction.
        let mut look_up = |node: &mut Node, judge: &mut Judge, of: &Introduction| {
            let flow = &of.seen;
            if node.has_flow(flow) || !is_movable(flow, &own) {
                return true;
            }
            let admitted = finder.admits(node, now, of);
            judge.consider(node, now, *flow, true);
            admitted
        };
        // A host behind this one may be the one that is meant; its sockets are not seen.
        let passes = |node: &mut Node, judge: &mut Judge, gateway: &mut Gateway, seen: &Introduction| {
            if !node.is_behind(seen.seen.local.ip()) || !is_movable(&seen.seen, &own) {
                return false;
            }
            node.handle_flow_passing(now, seen.seen, seen.index, seen.nonce);
            if node.has_flow(&seen.seen) {
                gateway.hear(seen.seen, seen.sequence, seen.acknowledgement);
                judge.consider(node, now, seen.seen, true);
            }
            true
        };
        let (mut acknowledged, mut flows, mut leased, mut closed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut sent, mut greeted) = (Vec::new(), Vec::new());
        let (entries, carries) = (host.flows.all(), host.streams().own());
        let in_endpoint = |flow: &FlowTuple| entries.get(flow).is_some_and(|entry| entry.end == LocalEnd::Endpoint);
        let drained = host.datapath.drain_events(most, |event| match event {
            // A frame on the link may name any destination.
            DatapathEvent::Introduction(introduction) if carries.has(&introduction.seen) => {}
            DatapathEvent::Introduction(introduction) => {
                if here(&introduction.seen) || in_endpoint(&introduction.seen) {
                    if !look_up(node, judge, &introduction) {
                        return;
                    }
                } else if !passes(node, judge, &mut effects.gateway, &introduction) {
                    return;
                }
                node.handle_introduction(now, introduction.seen, introduction.index, introduction.nonce);
            }
            DatapathEvent::FlowOpening { remote } => node.handle_flow_opening(now, remote),
            DatapathEvent::FlowOpened { flow, origin, user } => {
                flows.push((flow, true));
                if node.lessor_of(flow.local).is_some() {
                    leased.push((flow, Some(origin == Origin::Accepted)));
                } else if is_movable(&flow, &own) && !carries.has(&flow) {
                    node.handle_flow_opened(now, flow, origin == Origin::Accepted);
                    node.record_user(&flow, user);
                    judge.consider(node, now, flow, origin == Origin::Accepted);
                }
            }
            DatapathEvent::HeardNatively { flow } => node.handle_heard_natively(now, flow),
            DatapathEvent::FlowStalled { flow, attempts } => node.handle_flow_stalled(now, flow, attempts),
            DatapathEvent::Greeted { flow, near_translated, far_translated, .. } => {
                greeted.push((flow, Greeting { near_translated, far_translated }));
            }
            DatapathEvent::Overdue { between, lasts } => {
                node.handle_overdue(now, Between { local: between.local, remote: between.peer }, lasts);
            }
            DatapathEvent::Acknowledged { flow, next, window } => acknowledged.push((flow, next, window)),
            DatapathEvent::FlowClosed { flow } if in_endpoint(&flow) => closed.push(flow),
            DatapathEvent::FlowClosed { flow } => {
                flows.push((flow, false));
                leased.push((flow, None));
                node.handle_flow_closed(now, flow);
            }
            DatapathEvent::Claimed(flow) => node.handle_claim(now, flow),
            DatapathEvent::StillThere(flow) => node.handle_still_there(now, flow),
            DatapathEvent::DatagramSent { flow, connected, user, cookie } => sent.push((flow, connected, user, cookie)),
        });
        // Of what is accepted this is told before it is open. Where its opening is not read yet the hint is lost.
        greeted.into_iter().for_each(|(flow, greeting)| node.handle_greeting(now, flow, greeting));
        for flow in closed.into_iter().filter(|flow| host.is_closed(flow)) {
            flows.push((flow, false));
            node.handle_flow_closed(now, flow);
        }
        self.take_sent(now, sent);
        let Self { desk: Desk { host, .. }, effects, .. } = self;
        effects.helpers.handle_words(host, now, &acknowledged);
        effects.helpers.handle_flows(host, now, &flows);
        self.follow_leased(now, leased);
        match drained {
            Ok(more) => self.unread = more,
            Err(error) => tracing::error!(%error, "cannot read what the data plane reports"),
        }
    }

    /// Connections with addresses that are on lease have opened, or closed (`None`), in that order.
    fn follow_leased(&mut self, now: Time, leased: Vec<(FlowTuple, Option<bool>)>) {
        let tenant = &mut self.effects.tenant;
        for (flow, opened) in leased {
            match opened {
                Some(accepted) => tenant.on_young(now, flow, accepted),
                None => tenant.forget_young(&flow),
            }
        }
    }

    /// Lists all connections. Those of `known` that are not among them are closed.
    pub(super) fn handle_flows(&mut self, now: Time, known: &[FlowTuple]) -> Result<(), Error> {
        let own = self.desk.own_addresses();
        let found = list_tcp(&mut self.sockets, &|address| own.contains(&address))?;
        let there: HashSet<FlowTuple> = found.iter().map(|found| found.flow).collect();
        let carries = self.desk.host.streams().own();
        for found in found.into_iter().filter(|found| !carries.has(&found.flow)) {
            self.desk.node.handle_flow_found(now, found.flow, found.accepted);
            self.desk.node.record_user(&found.flow, found.user);
            self.judge.consider(&mut self.desk.node, now, found.flow, found.accepted);
        }
        self.handle_udp(now);
        // Of those of sockets that are not connected that has told already.
        let unconnected: HashSet<FlowTuple> = self.unconnected_flows().into_iter().collect();
        let udp = |flow: &FlowTuple| self.udp.contains(flow) || unconnected.contains(flow);
        let gone: Vec<FlowTuple> = known.iter().filter(|flow| !there.contains(flow) && !udp(flow)).copied().collect();
        for flow in &gone {
            if !self.desk.host.is_elsewhere(flow) {
                self.desk.node.handle_flow_closed(now, *flow);
            }
        }
        Ok(())
    }

    pub(super) fn handle_udp(&mut self, now: Time) {
        let own = self.desk.own_addresses();
        let connected = |flow: &FlowView| {
            let here = flow.entry.is_some_and(|entry| entry.end == LocalEnd::Here);
            here && flow.tuple.transport == Transport::Udp && !flow.unconnected
        };
        let known = self.desk.node.flows().filter(connected).map(|flow| flow.tuple);
        match self.udp.update(&mut self.sockets, &|address| own.contains(&address), known) {
            Ok((opened, closed)) => {
                for found in opened {
                    self.desk.node.handle_flow_opened(now, found.flow, found.accepted);
                    self.desk.node.record_user(&found.flow, found.user);
                    self.judge.consider(&mut self.desk.node, now, found.flow, found.accepted);
                }
                for flow in closed {
                    self.desk.node.handle_flow_closed(now, flow);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot list UDP sockets"),
        }
        let unconnected = self.sockets.unconnected();
        if let Ok(all) = &unconnected {
            let flows = self.unconnected_flows();
            for flow in self.unconnected.update(&flows, all) {
                self.desk.node.handle_flow_closed(now, flow);
            }
            self.look_for_sent(now, all);
        }
        match unconnected.and_then(|unconnected| bound_ports(&mut self.sockets, &unconnected)) {
            Ok(mut bound) => {
                bound.extend(self.desk.host.ports_elsewhere());
                let drawn = ephemeral_ports();
                self.desk.host.set_drawn_ports(&drawn);
                self.desk.node.handle_bound_ports(bound, drawn);
            }
            Err(error) => tracing::warn!(%error, "cannot list the ports that sockets are bound to"),
        }
        if let Err(failure) = self.desk.host.check_filters() {
            tracing::warn!(%failure, "cannot tell the data plane whether a reverse path filter is strict");
        }
        for flow in self.desk.host.ended_flows() {
            self.desk.node.handle_flow_closed(now, flow);
        }
    }

    /// Sockets of UDP have sent to remotes.
    fn take_sent(&mut self, now: Time, sent: Vec<(FlowTuple, bool, u32, u64)>) {
        if sent.is_empty() {
            return;
        }
        let (own, drawn) = (self.desk.own_addresses(), ephemeral_ports());
        let Self { desk: Desk { node, host, .. }, judge, unconnected, udp, .. } = self;
        let subnets = || host.network.addresses.iter().map(|usable| (usable.address, usable.prefix_length));
        for (flow, connected, user, cookie) in sent {
            let accepted = connected && was_asked(&flow, &drawn);
            let is_own = own.contains(&flow.local.ip()) && is_movable(&flow, &|address| own.contains(&address));
            // What answers others is introduced by these.
            let answers = !connected && may_have_been_asked(&flow, &drawn);
            if !is_own || answers || node.has_flow(&flow) || is_broadcast(flow.remote.ip(), subnets()) {
                continue;
            }
            if connected {
                udp.record(flow, user);
                node.handle_flow_opened(now, flow, accepted);
            } else {
                unconnected.record(flow, cookie);
                node.handle_datagram_sent(now, flow);
            }
            if node.has_flow(&flow) {
                node.record_user(&flow, user);
                judge.consider(node, now, flow, accepted);
            }
        }
    }

    /// Takes in what sockets that are not connected have sent of late and nothing is known of: it was too much at once,
    /// or is forgotten again.
    fn look_for_sent(&mut self, now: Time, all: &[Listener]) {
        match self.desk.host.sent_since(UNCONNECTED_LOOK) {
            Ok(sent) => {
                let there: HashSet<u64> = all.iter().map(|socket| socket.cookie).collect();
                let by_these = sent.into_iter().filter(|(.., cookie)| there.contains(cookie));
                self.take_sent(now, by_these.collect());
            }
            Err(failure) => tracing::warn!(%failure, "cannot see which remotes sockets of UDP send to"),
        }
    }

    /// The flows of sockets of this host that are not connected.
    fn unconnected_flows(&self) -> Vec<FlowTuple> {
        self.desk.node.flows().filter(|flow| flow.unconnected).map(|flow| flow.tuple).collect()
    }

    pub(super) fn look_for_losses(&mut self, now: Time) {
        self.make_up_for_losses(now);
        self.desk.tell_of_left_out(now);
        let there: HashSet<PeerId> = self.desk.node.peers().map(|view| view.id).collect();
        self.sessions.retain(|peer, _| there.contains(peer));
    }

    /// Lists all connections again where the data plane had more to report than was read in time.
    fn make_up_for_losses(&mut self, now: Time) {
        let lost = match self.desk.host.lost_flow_events() {
            Ok(lost) => lost,
            Err(failure) => {
                tracing::warn!(%failure, "cannot read the data plane's counters");
                return;
            }
        };
        if lost == self.lost_flow_events {
            return;
        }
        self.lost_flow_events = lost;
        tracing::info!("connections opened and closed faster than could be followed; listing them all");
        let known: Vec<FlowTuple> = self.desk.node.flows().map(|flow| flow.tuple).collect();
        if let Err(error) = self.handle_flows(now, &known) {
            tracing::warn!(%error, "cannot list connections");
        }
        self.effects.helpers.check_helped(&mut self.desk.host, now);
    }
}

/// What finds the sockets of flows that peers introduce.
struct Finder<'a> {
    sockets: &'a mut SockDiag,
    unconnected: &'a mut UnconnectedFlows,
    at_rest: AtRest,
}

impl Finder<'_> {
    /// Whether the node is to be told of an introduction. Where there is a socket the flow is known then.
    fn admits(&mut self, node: &mut Node, now: Time, of: &Introduction) -> bool {
        let flow = &of.seen;
        let sockets = &mut self.sockets;
        match sockets.find(flow).and_then(|found| Ok((found, sockets.find_unconnected(flow)?))) {
            Ok((Some(_), _)) => node.handle_flow_opened(now, *flow, true),
            Ok((None, Some(socket))) if !self.at_rest.has(flow, socket.cookie) => {
                self.unconnected.record(*flow, socket.cookie);
                return node.admit_unconnected(now, *flow, of.index, of.nonce);
            }
            Ok((None, _)) => {}
            Err(error) => tracing::warn!(%flow, %error, "cannot look for a socket"),
        }
        true
    }
}
