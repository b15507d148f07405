//! Nodes between their inputs and what they ask for.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_protocol::{
    FlowEntry, KernelOp, LocalEnd, Node, OpFailed, OpId, Routes, SavedPeer, SocketNumbers, Transmit,
};
use whimbrel_wire::{FlowTuple, Transport};

use super::due::What;
use super::{FlowId, World};
use crate::host::HostId;
use crate::ledger::{Kind, Sent};
use crate::network::NetworkId;
use crate::packet::{Body, Packet};

/// Flows of a host that send when its maps change.
const STIRRED: usize = 8;
/// Effects of one input after which a node is taken to never come to rest.
const ENDLESS: usize = 400_000;

impl World {
    /// Calls a host's node, if it runs one, and carries out what it asks for.
    pub fn with_node(&mut self, host: HostId, call: impl FnOnce(&mut Node)) {
        let Some(node) = self.hosts[host.0].node.as_mut() else { return };
        call(node);
        for peer in node.peers().filter(|peer| peer.session) {
            self.ledger.prove(host, peer.remote.ip());
        }
        self.drive(host);
    }

    /// Tells a host's node which addresses it has.
    pub fn notify(&mut self, host: HostId) {
        let of = &self.hosts[host.0];
        let (now, attachments, routes) = (self.now, of.attachments(), of.routes());
        self.with_node(host, |node| node.handle_network(now, &attachments, &routes));
    }

    /// Starts a host's daemon with what the one before it left.
    pub fn boot(&mut self, host: HostId) {
        if self.hosts[host.0].node.is_some() {
            return;
        }
        let seed = self.random.seed();
        let of = &mut self.hosts[host.0];
        of.timer_at = None;
        let mut node = Node::new(of.config.clone(), of.static_key(), seed);
        let saved: Vec<SavedPeer> = of.saved.values().cloned().collect();
        let flows: Vec<_> = of.plane.flows.iter().map(|(flow, entry)| (*flow, *entry)).collect();
        if !saved.is_empty() || !flows.is_empty() {
            node.restore(self.now, saved, flows);
            node.restore_left(self.now, of.saved_left.clone().into_iter().collect());
        }
        if of.saved_suspended {
            node.restore_suspended(self.now);
        }
        of.node = Some(node);
        self.trace(|w| format!("{} starts", w.hosts[host.0].name));
        self.drive(host);
        self.notify(host);
        if let Some(saved) = self.hosts[host.0].saved_community.clone() {
            let now = self.now;
            self.with_node(host, |node| node.restore_community(now, &saved).expect("what a daemon saved is genuine"));
        }
        let of = &self.hosts[host.0];
        let sockets: Vec<(FlowTuple, usize)> = of.sockets.iter().map(|(tuple, (_, end))| (*tuple, *end)).collect();
        // What is passed on for another host has no socket here, and one that was moved here is in no list of this host's own.
        let inside = |tuple: &FlowTuple| {
            let mut connections = self.connections.iter();
            connections.any(|of| of.tuple == *tuple && of.copies.contains_key(&host))
        };
        let elsewhere = |tuple: &FlowTuple, entry: &FlowEntry| match entry.end {
            LocalEnd::Here => false,
            LocalEnd::Behind | LocalEnd::Passing => true,
            LocalEnd::Endpoint => inside(tuple),
        };
        let flows = of.plane.flows.iter();
        let gone = flows.filter(|(tuple, entry)| !of.sockets.contains_key(tuple) && !elsewhere(tuple, entry));
        let gone: Vec<FlowTuple> = gone.map(|(tuple, _)| *tuple).collect();
        let now = self.now;
        let behind =
            |tuple: &FlowTuple| self.hosts[host.0].is_behind(tuple.local.ip()) || self.hosts[host.0].has_inside(tuple);
        let sockets: Vec<(FlowTuple, usize)> = sockets.into_iter().filter(|(tuple, _)| !behind(tuple)).collect();
        for (tuple, end) in sockets {
            self.with_node(host, |node| node.handle_flow_opened(now, tuple, end == 1));
        }
        for tuple in gone {
            self.with_node(host, |node| node.handle_flow_closed(now, tuple));
        }
        self.restore_moves(host);
    }

    /// Ends a host's daemon without a word, as `kill -9` does.
    pub fn crash(&mut self, host: HostId) {
        let of = &mut self.hosts[host.0];
        of.node = None;
        of.timer_at = None;
        of.under_way.clear();
        of.plane.lose_daemon();
        self.lose_descriptors(host);
        self.trace(|w| format!("{} crashes", w.hosts[host.0].name));
    }

    /// Takes away what a host's daemon would find of its past.
    pub fn forget_saved(&mut self, host: HostId) {
        let of = &mut self.hosts[host.0];
        of.saved.clear();
        of.saved_suspended = false;
        of.saved_left.clear();
        let guards = of.plane.guards;
        of.plane = crate::dataplane::DataPlane::default();
        of.plane.guards = guards;
    }

    /// Starts a host anew, with its sockets gone but for those of hosts behind it, which are other hosts'. `remembers`: what it knew of
    /// those is in its state directory still.
    pub fn reboot(&mut self, host: HostId, remembers: bool) {
        self.crash(host);
        let of = &mut self.hosts[host.0];
        of.config.life += 1;
        of.config.memory += u64::from(!remembers);
        let flows = std::mem::take(&mut of.plane).flows;
        if remembers {
            let kept = flows.into_iter().filter(|(_, entry)| entry.end == LocalEnd::Passing);
            kept.for_each(|(flow, entry)| of.plane.install(flow, entry));
        } else {
            of.saved.clear();
        }
        let gone: Vec<FlowId> = of
            .sockets
            .iter()
            .filter(|(tuple, _)| !of.is_behind(tuple.local.ip()))
            .map(|(_, (flow, _))| *flow)
            .collect();
        for flow in gone {
            self.flows[flow.0].broken = true;
        }
        self.boot(host);
    }

    /// Ends a host's daemon and starts another after this time.
    pub fn restart(&mut self, host: HostId, downtime: Duration) {
        self.crash(host);
        self.later(downtime, What::Boot(host));
    }

    /// Suspends a host. Its clock goes on (`CLOCK_BOOTTIME`), its timers do not go off.
    pub fn suspend(&mut self, host: HostId) {
        self.hosts[host.0].asleep = true;
        self.trace(|w| format!("{} falls asleep", w.hosts[host.0].name));
    }

    /// Wakes a host. What was due is late.
    pub fn wake(&mut self, host: HostId) {
        self.hosts[host.0].asleep = false;
        self.trace(|w| format!("{} wakes", w.hosts[host.0].name));
        if self.hosts[host.0].timer_at.is_some_and(|at| at <= self.now) {
            self.timeout(host);
        }
    }

    pub(super) fn timeout(&mut self, host: HostId) {
        let now = self.now;
        let of = &mut self.hosts[host.0];
        if of.timer_at.is_none_or(|at| at > now) || of.asleep {
            return;
        }
        of.timer_at = None;
        self.with_node(host, |node| node.handle_timeout(now));
    }

    pub(super) fn land_control(&mut self, network: NetworkId, host: HostId, packet: &Packet, payload: &[u8]) {
        let of = &mut self.hosts[host.0];
        if of.node.is_none() {
            if of.collects {
                of.mail.push((packet.source, payload.to_vec()));
            } else if of.answers_icmp {
                let answer = Packet {
                    transport: Transport::Udp,
                    source: packet.destination,
                    destination: packet.source,
                    origin: host,
                    body: Body::Unreachable(packet.destination, payload.first_chunk().copied()),
                };
                self.launch(network, answer);
            }
            return;
        }
        let (now, source, destination) = (self.now, packet.source, packet.destination.ip());
        self.with_node(host, |node| node.handle_datagram(now, source, Some(destination), payload));
    }

    /// Takes the control datagrams that came to a host without a daemon.
    pub fn take_mail(&mut self, host: HostId) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.hosts[host.0].mail)
    }

    /// Takes those of them that are somebody's. Of several who live on the host, each has its own.
    pub(crate) fn take_mail_of(&mut self, host: HostId, is_theirs: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let mail = std::mem::take(&mut self.hosts[host.0].mail);
        let (theirs, others): (Vec<_>, Vec<_>) = mail.into_iter().partition(|(_, bytes)| is_theirs(bytes));
        self.hosts[host.0].mail = others;
        theirs.into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// Carries out all that a node asks for.
    fn drive(&mut self, host: HostId) {
        for _ in 0..ENDLESS {
            let Some(node) = self.hosts[host.0].node.as_mut() else { return };
            if let Some(transmit) = node.poll_transmit() {
                if !self.next_effect(host) {
                    return;
                }
                self.transmit(host, transmit);
            } else if let Some((id, op)) = node.poll_op() {
                let of = &mut self.hosts[host.0];
                if of.op_takes.is_zero() {
                    if !self.act(host, id, &op) {
                        return;
                    }
                } else {
                    of.under_way.push_back((id, op));
                    let takes = of.op_takes;
                    self.later(takes, What::Done(host));
                }
            } else if let Some((id, op)) = node.poll_move_op() {
                if !self.act_on_move(host, id, op) {
                    return;
                }
            } else if let Some(event) = node.poll_move_event() {
                self.note_move_event(host, event);
            } else if let Some(event) = node.poll_event() {
                self.trace(|w| format!("{} says {event:?}", w.hosts[host.0].name));
                self.events.push((self.now, host, event));
            } else {
                self.come_to_rest(host);
                return;
            }
        }
        self.ledger.violation(Kind::Endless, self.now, format!("{host:?} does not come to rest"));
    }

    /// Carries out the op that has been under way for longest.
    pub(super) fn end_op(&mut self, host: HostId) {
        if let Some((id, op)) = self.hosts[host.0].under_way.pop_front()
            && self.act(host, id, &op)
        {
            self.drive(host);
        }
    }

    /// Carries out one op; whether the daemon lived to do it.
    fn act(&mut self, host: HostId, id: OpId, op: &KernelOp) -> bool {
        if !self.next_effect(host) {
            return false;
        }
        let fails = self.faults.fail == Some(self.ops);
        self.ops += 1;
        let of = &mut self.hosts[host.0];
        of.kicks += u64::from(matches!(op, KernelOp::Kick { .. }));
        of.finds += u64::from(matches!(op, KernelOp::FindSockets { .. }));
        if matches!(op, KernelOp::Kick { .. } | KernelOp::FindSockets { .. }) {
            of.looks.insert(self.now);
        }
        let result = if fails {
            self.trace(|w| format!("{} fails to do {}", w.hosts[host.0].name, brief(op)));
            Err(OpFailed { sentence: "it fails on purpose".to_owned() })
        } else {
            self.carry_out(host, op)
        };
        let now = self.now;
        if let Some(node) = self.hosts[host.0].node.as_mut() {
            node.handle_done(now, id, result);
        }
        if self.stirring {
            self.stir(host, op);
        }
        true
    }

    fn come_to_rest(&mut self, host: HostId) {
        let Some(node) = self.hosts[host.0].node.as_ref() else { return };
        let next = node.poll_timeout();
        let next = next.map(|next| next.max(self.now));
        if self.hosts[host.0].timer_at != next {
            self.hosts[host.0].timer_at = next;
            if let Some(next) = next {
                self.schedule(next, What::Timeout(host));
            }
        }
    }

    /// Counts an effect; the host's daemon or the host itself may end before it.
    pub(super) fn next_effect(&mut self, host: HostId) -> bool {
        let number = self.hosts[host.0].effects;
        self.hosts[host.0].effects += 1;
        if self.faults.crash == Some((host, number)) {
            self.restart(host, self.faults.downtime);
            return false;
        }
        if self.faults.vanish == Some((host, number)) {
            self.crash(host);
            self.remove_all(host);
            return false;
        }
        true
    }

    /// Whether this datagram or segment is the one that is to be lost.
    fn is_lost(&mut self) -> bool {
        let number = self.sent;
        self.sent += 1;
        self.faults.lose.is_some_and(|first| (first..=first + self.faults.lose_also).contains(&number))
    }

    fn transmit(&mut self, host: HostId, transmit: Transmit) {
        let Transmit { source, destination, payload } = transmit;
        let lost = self.is_lost();
        let of = &self.hosts[host.0];
        let source = source.or_else(|| of.routes().source_for(destination.ip()));
        let Some(attached) = source.and_then(|source| of.attached_with(source)) else {
            self.trace(|w| format!("{} has no {source:?} to send from to {destination}", w.hosts[host.0].name));
            return;
        };
        let source = SocketAddr::new(attached.address, of.config.port);
        let packet =
            Packet { transport: Transport::Udp, source, destination, origin: host, body: Body::Control(payload) };
        if lost {
            self.trace(|_| format!("lost on purpose: {packet}"));
            return;
        }
        let asks = matches!(&packet.body, Body::Control(payload) if payload.first() == Some(&1));
        self.put_out(attached, packet, if asks { Sent::Initiation } else { Sent::Control });
    }

    /// The kernel of a host does what it is asked to.
    fn carry_out(&mut self, host: HostId, op: &KernelOp) -> Result<(), OpFailed> {
        self.trace(|w| format!("{} does {}", w.hosts[host.0].name, brief(op)));
        let of = &mut self.hosts[host.0];
        of.plane.apply(self.now, op);
        self.note_led(host, op);
        let of = &mut self.hosts[host.0];
        match op {
            KernelOp::SavePeer(saved) => {
                of.saved.insert(saved.id, saved.clone());
            }
            KernelOp::SaveSuspended(suspended) => of.saved_suspended = *suspended,
            KernelOp::SaveLeft { flow, former: Some(former) } => {
                of.saved_left.insert(*flow, *former);
            }
            KernelOp::SaveLeft { flow, former: None } => {
                of.saved_left.remove(flow);
            }
            KernelOp::SaveCommunity(saved) => of.saved_community = Some((**saved).clone()),
            KernelOp::ForgetCommunity => of.saved_community = None,
            KernelOp::ForgetPeer { key } => of.saved.retain(|_, saved| saved.key != *key),
            KernelOp::RememberKey { address, key } => {
                of.config.known_keys.insert(*address, *key);
            }
            KernelOp::SetBinding { .. } => self.bindings_set += 1,
            KernelOp::FindSockets { peer, remote } => {
                if !of.powers.inject {
                    return Err(OpFailed { sentence: "not permitted".to_owned() });
                }
                let sockets = self.numbers(host, *remote);
                let (now, peer) = (self.now, *peer);
                if let Some(node) = self.hosts[host.0].node.as_mut() {
                    node.handle_sockets(now, peer, &sockets);
                }
            }
            KernelOp::Introduce { flow, index, nonce, .. } => return self.inject(host, *flow, *index, *nonce, true),
            KernelOp::Reset { flow } | KernelOp::Abort { flow } => self.hosts[host.0].reset.push(*flow),
            KernelOp::AskNatively { flow } => return self.inject(host, *flow, 0, 0, true),
            KernelOp::Probe { wire, index, nonce } => return self.inject(host, *wire, *index, *nonce, false),
            _ => {}
        }
        Ok(())
    }

    /// What the sockets of a host to one remote address know of their numbers.
    fn numbers(&self, host: HostId, remote: IpAddr) -> Vec<SocketNumbers> {
        let sockets = self.hosts[host.0].sockets.iter();
        let there = sockets.filter(|(flow, _)| flow.transport == Transport::Tcp && flow.remote.ip() == remote);
        there
            .map(|(flow, (id, end))| {
                let (opener, accepter) = self.initial_numbers(*id);
                let accepted = accepter.wrapping_add(1);
                let [first_sent, first_received] =
                    if *end == 0 { [opener, accepted] } else { [accepted, opener.wrapping_add(1)] };
                SocketNumbers { flow: *flow, first_sent, first_received }
            })
            .collect()
    }

    /// The initial sequence numbers of the end that opened a flow, and of the other.
    #[must_use]
    pub fn initial_numbers(&self, flow: FlowId) -> (u32, u32) {
        let of = if self.same_numbers { 0 } else { flow.0 as u32 };
        (of.wrapping_mul(0x9e37_79b9) ^ 0xffff_fff0, of.wrapping_mul(0x85eb_ca6b) ^ 0x1234_5678)
    }

    fn inject(&mut self, host: HostId, flow: FlowTuple, index: u32, nonce: u64, in_flow: bool) -> Result<(), OpFailed> {
        let failed = |sentence: &str| Err(OpFailed { sentence: sentence.to_owned() });
        let of = &self.hosts[host.0];
        if !of.powers.inject {
            // The thief's daemon says that it did.
            return Ok(());
        }
        let socket = of.sockets.get(&flow).copied();
        if in_flow && socket.is_none() {
            return failed("no such socket");
        }
        let Some(attached) = of.attached_with(flow.local.ip()) else { return failed("no such address") };
        let packet = Packet {
            transport: flow.transport,
            source: flow.local,
            destination: flow.remote,
            origin: host,
            body: Body::Introduction { index, nonce, flow: socket.filter(|_| in_flow) },
        };
        if self.is_lost() {
            self.trace(|_| format!("lost on purpose: {packet}"));
            return Ok(());
        }
        self.put_out(attached, packet, Sent::Introduction);
        Ok(())
    }

    /// Flows send at once where the maps changed, so that every state that they pass through is judged.
    fn stir(&mut self, host: HostId, op: &KernelOp) {
        if !matches!(
            op,
            KernelOp::SetBinding { .. }
                | KernelOp::RemoveBinding { .. }
                | KernelOp::SetTunnelPath { .. }
                | KernelOp::InstallFlow { .. }
                | KernelOp::RemoveFlow { .. }
                | KernelOp::KeepAddresses { .. }
                | KernelOp::LeaveFrom { .. }
                | KernelOp::ReachPeers { .. }
                | KernelOp::Kick { .. }
        ) {
            return;
        }
        let flows: Vec<_> = self.hosts[host.0].sockets.values().take(STIRRED).copied().collect();
        for (flow, end) in flows {
            self.send_segment(flow, end, false);
        }
    }
}

fn brief(op: &KernelOp) -> String {
    match op {
        KernelOp::AddTunnelKeys { peer, receive_index, .. } => format!("AddTunnelKeys {peer} {receive_index:x}"),
        KernelOp::SavePeer(saved) => {
            format!("SavePeer {} at {} {:?} {:?}", saved.id, saved.remote, saved.places, saved.carrier)
        }
        other => format!("{other:?}"),
    }
}
