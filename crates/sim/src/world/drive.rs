//! Nodes between their inputs and what they ask for.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::CONTROL_OVERHEAD;
use whimbrel_protocol::{
    AddressOp, BindingOp, ChainOp, Event, FlowEntry, FlowOp, LastWords, LocalEnd, Node, Op, OpDone, OpFailed, OpId,
    Output, PeerId, Routes, SavedPeer, SocketNumbers, StoreOp, Transmit, TunnelOp,
};
use whimbrel_wire::message::MESSAGE_HEADER_LEN;
use whimbrel_wire::{FlowTuple, Transport};

use super::due::What;
use super::{FlowId, World};
use crate::host::HostId;
use crate::ledger::{Kind, Sent};
use crate::network::{Link, NetworkId};
use crate::packet::{Body, Packet};

/// Flows of a host that send when its maps change.
const STIRRED: usize = 8;
/// Effects of one input after which a node is taken to never come to rest.
const ENDLESS: usize = 400_000;

/// How long a name server takes.
const ANSWERED: Duration = Duration::from_millis(30);

/// Length of a datagram with nothing but a *masked update seen*.
const KNOCK: usize = CONTROL_OVERHEAD + MESSAGE_HEADER_LEN + 4;

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
        // As a daemon fits the maps to what it has saved, which says nothing of other bindings than the first (P-190).
        of.plane.flows.values_mut().for_each(|entry| entry.side = 0);
        of.plane.bindings.retain(|id, _| id.is_first());
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
        // What is passed on for another host has no socket here, and one that was moved here is in no list of this
        // host's own.
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
        let unconnected = |tuple: &FlowTuple| {
            self.hosts[host.0].sockets.get(tuple).is_some_and(|(flow, end)| self.is_unconnected(*flow, *end))
        };
        let sockets = sockets.into_iter().filter(|(tuple, _)| !behind(tuple) && !unconnected(tuple));
        let sockets: Vec<(FlowTuple, usize)> = sockets.collect();
        for (tuple, end) in sockets {
            self.with_node(host, |node| node.handle_flow_found(now, tuple, end == 1));
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
        self.lose_processes(host);
        self.end_streams(host);
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

    /// Removes what a host's daemon, which does not run, has left, as `whimbrel clean` does: its peers are told before
    /// that, for so long at the most. Gives what they have heard.
    pub fn clean(&mut self, host: HostId, within: Duration) -> LastWords {
        self.clean_having(host, &[], within)
    }

    /// As [`World::clean`] on a host with these addresses as well, which cannot be used at this moment.
    pub fn clean_having(&mut self, host: HostId, unusable: &[IpAddr], within: Duration) -> LastWords {
        assert!(self.hosts[host.0].node.is_none(), "its daemon runs");
        let seed = self.random.seed();
        let of = &mut self.hosts[host.0];
        of.cleans = true;
        let mut node = Node::new(of.config.clone(), of.static_key(), seed);
        let flows: Vec<_> = of.plane.flows.iter().map(|(flow, entry)| (*flow, *entry)).collect();
        node.restore(self.now, of.saved.values().cloned().collect(), flows);
        of.node = Some(node);
        let (now, attachments, routes) = (self.now, of.attachments(), of.routes());
        let configured = attachments.iter().map(|of| of.address).chain(unusable.iter().copied()).collect();
        self.with_node(host, |node| node.forget_all(now, &attachments, &configured, &routes));
        let words = |world: &Self| world.hosts[host.0].node.as_ref().map(Node::last_words).unwrap_or_default();
        self.wait(within, |world| words(world).awaited == 0);
        let heard = words(self);
        self.crash(host);
        self.hosts[host.0].cleans = false;
        self.forget_saved(host);
        heard
    }

    /// Starts a host anew, with its sockets gone except for those of hosts behind it, which are other hosts'.
    /// `remembers`: what it knew of those is in its state directory still.
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
        let link = self.hosts[host.0].attached_with(destination).map(|attached| attached.link());
        self.with_node(host, |node| node.handle_datagram(now, source, Some(destination), link, payload));
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
            let outputs = self.drain.poll(node);
            if outputs.is_empty() {
                self.come_to_rest(host);
                return;
            }
            for output in outputs {
                if !self.see_to(host, output) {
                    return;
                }
            }
        }
        self.ledger.violation(Kind::Endless, self.now, format!("{host:?} does not come to rest"));
    }

    /// Sees to one thing that a node has given out; whether its daemon lived to do it.
    fn see_to(&mut self, host: HostId, output: Output) -> bool {
        match output {
            Output::Transmit(transmit) => {
                if !self.next_effect(host) {
                    return false;
                }
                self.transmit(host, transmit);
            }
            Output::Op(..) if self.hosts[host.0].cleans => {}
            Output::Op(id, op) => {
                let of = &mut self.hosts[host.0];
                if of.op_takes.is_zero() {
                    return self.act(host, id, op);
                }
                of.under_way.push_back((id, op));
                let takes = of.op_takes;
                self.later(takes, What::Done(host));
            }
            Output::Event(event) => {
                self.trace(|w| format!("{} says {event:?}", w.hosts[host.0].name));
                if let Event::Move(event) = &event {
                    self.on_move_event(host, event);
                    self.note_process_event(host, event);
                }
                self.events.push((self.now, host, event));
            }
        }
        true
    }

    /// Carries out the op that has been under way for longest.
    pub(super) fn end_op(&mut self, host: HostId) {
        if let Some((id, op)) = self.hosts[host.0].under_way.pop_front()
            && self.act(host, id, op)
        {
            self.drive(host);
        }
    }

    /// Carries out one op; whether the daemon lived to do it.
    fn act(&mut self, host: HostId, id: OpId, op: Op) -> bool {
        // Nothing here depends on what senders may have under way.
        if let Op::Binding(BindingOp::Windows { peer, comeback }) = op {
            let (now, of) = (self.now, &mut self.hosts[host.0]);
            of.comebacks.push((peer, comeback));
            let had = Ok(OpDone::Windows(of.windows));
            if let Some(node) = of.node.as_mut() {
                node.handle_done(now, id, had);
            }
            return true;
        }
        // Nothing of that is kept by anybody: whether the daemon dies before it or after makes no difference.
        let leaves_nothing = matches!(
            op,
            Op::Flow(FlowOp::EndConnecting { .. } | FlowOp::AskUnaccepted { .. } | FlowOp::EndUnaccepted { .. })
        );
        if !leaves_nothing && !self.next_effect(host) {
            return false;
        }
        let fails = self.faults.fail == Some(self.ops);
        self.ops += 1;
        let result = match op {
            Op::Move(op) => {
                if let Some(of) = self.process_of(host, &op) {
                    return self.act_on_process(host, id, op, of, fails);
                }
                self.act_on_move(host, op, fails)
            }
            Op::Tunnel(TunnelOp::Chain(op)) => self.act_on_chain(host, &op, fails),
            Op::Binding(BindingOp::LookAtTraffic { between }) if !fails => {
                let heard = self.hosts[host.0].plane.traffic.heard(between);
                Ok(OpDone::Heard(heard.map(|when| self.now.since(when))))
            }
            Op::Flow(FlowOp::LookAtUse { flow }) if !fails => {
                let used = self.hosts[host.0].plane.used(&flow);
                Ok(OpDone::Used(used.map(|when| self.now.since(when))))
            }
            op => self.act_on_kernel(host, &op, fails).map(|()| OpDone::Done),
        };
        let now = self.now;
        if let Some(node) = self.hosts[host.0].node.as_mut() {
            node.handle_done(now, id, result);
        }
        true
    }

    fn act_on_kernel(&mut self, host: HostId, op: &Op, fails: bool) -> Result<(), OpFailed> {
        let of = &mut self.hosts[host.0];
        of.kicks += u64::from(matches!(op, Op::Binding(BindingOp::Kick { .. })));
        of.acknowledgements += u64::from(matches!(op, Op::Binding(BindingOp::Acknowledge { .. })));
        of.finds += u64::from(matches!(op, Op::Flow(FlowOp::FindSockets { .. })));
        if matches!(op, Op::Binding(BindingOp::Kick { .. }) | Op::Flow(FlowOp::FindSockets { .. })) {
            of.looks.insert(self.now);
        }
        let result = if fails {
            self.trace(|w| format!("{} fails to do {}", w.hosts[host.0].name, brief(op)));
            failed("it fails on purpose")
        } else {
            self.carry_out(host, op)
        };
        if self.stirring {
            self.stir(host, op);
        }
        result
    }

    fn act_on_chain(&mut self, host: HostId, op: &ChainOp, fails: bool) -> Result<OpDone, OpFailed> {
        self.trace(|w| format!("{} does {op:?}{}", w.hosts[host.0].name, if fails { ", in vain" } else { "" }));
        // What makes nothing cannot fail.
        if fails && matches!(op, ChainOp::Set { .. } | ChainOp::SetParameters { .. }) {
            return Err(OpFailed { refusal: None, sentence: "it fails on purpose".to_owned() });
        }
        let of = &mut self.hosts[host.0];
        match of.plane.chains.carry_out(&of.transforms, op, self.ops) {
            Ok(done) => Ok(done),
            Err(what) => {
                self.ledger.violation(Kind::Chain, self.now, format!("{host:?}: {what}"));
                Ok(OpDone::Done)
            }
        }
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
        let Transmit { source, link, mask, destination, payload } = transmit;
        let lost = self.is_lost();
        let of = &self.hosts[host.0];
        let source = source.or_else(|| of.routes().source_for(destination.ip()));
        let attached = source.and_then(|source| of.attached_with(source));
        let Some(attached) = attached.filter(|attached| link.is_none_or(|link| attached.link() == link)) else {
            self.trace(|w| format!("{} has no {source:?} to send from to {destination}", w.hosts[host.0].name));
            return;
        };
        let source = mask.unwrap_or(SocketAddr::new(attached.address, of.config.port));
        if link.is_some() && mask.is_none() {
            self.hosts[host.0].named.insert(attached.address);
        }
        let packet =
            Packet { transport: Transport::Udp, source, destination, origin: host, body: Body::Control(payload) };
        let Some(packet) = self.by_stream(host, packet) else { return };
        if lost {
            self.trace(|_| format!("lost on purpose: {packet}"));
            return;
        }
        let asks = matches!(&packet.body, Body::Control(payload) if payload.first() == Some(&1));
        let what = match packet.length() {
            _ if asks => Sent::Initiation,
            KNOCK => Sent::Knock,
            _ => Sent::Control,
        };
        self.put_out(attached, packet, what);
    }

    /// The kernel of a host does what it is asked to.
    fn carry_out(&mut self, host: HostId, op: &Op) -> Result<(), OpFailed> {
        self.trace(|w| format!("{} does {}", w.hosts[host.0].name, brief(op)));
        let of = &mut self.hosts[host.0];
        of.plane.apply(self.now, op);
        self.on_led(host, op);
        let of = &mut self.hosts[host.0];
        match op {
            Op::Store(StoreOp::SavePeer(saved)) => {
                of.saved.insert(saved.id, saved.clone());
            }
            Op::Store(StoreOp::SaveSuspended(suspended)) => of.saved_suspended = *suspended,
            Op::Store(StoreOp::SaveLeft { flow, former: Some(former) }) => {
                of.saved_left.insert(*flow, *former);
            }
            Op::Store(StoreOp::SaveLeft { flow, former: None }) => {
                of.saved_left.remove(flow);
            }
            Op::Store(StoreOp::SaveCommunity(saved)) => of.saved_community = Some((**saved).clone()),
            Op::Store(StoreOp::ForgetCommunity) => of.saved_community = None,
            Op::Store(StoreOp::ForgetPeer { key }) => of.saved.retain(|_, saved| saved.key != *key),
            Op::Store(StoreOp::RememberKey { address, key }) => {
                of.config.known_keys.insert(*address, *key);
            }
            Op::Binding(BindingOp::Set { .. }) => self.bindings_set += 1,
            Op::Tunnel(TunnelOp::SetPath { id, path, .. }) if !id.is_first() => {
                self.judge_side(host, id.peer(), path.remote.ip());
            }
            Op::Flow(FlowOp::FindSockets { peer, remotes }) => {
                if !of.powers.inject {
                    return failed("not permitted");
                }
                let sockets = self.numbers(host, remotes);
                let (now, peer) = (self.now, *peer);
                if let Some(node) = self.hosts[host.0].node.as_mut() {
                    node.handle_sockets(now, peer, &sockets);
                }
            }
            Op::Flow(FlowOp::Introduce { flow, index, nonce, .. }) => {
                return self.inject(host, *flow, *index, *nonce, true);
            }
            Op::Flow(FlowOp::Reset { flow }) | Op::Flow(FlowOp::Abort { flow }) => self.hosts[host.0].reset.push(*flow),
            Op::Flow(FlowOp::EndConnecting { remotes }) => {
                self.hosts[host.0].ended_connecting.extend(remotes.iter().map(|(remote, left)| (*remote, *left)));
            }
            Op::Flow(FlowOp::AskUnaccepted { flows }) => {
                for flow in flows {
                    let heard = self.heard_in(host, flow);
                    self.hosts[host.0].asked_unaccepted.insert(*flow, heard);
                    self.inject(host, *flow, 0, 0, true)?;
                }
            }
            Op::Flow(FlowOp::EndUnaccepted { flows }) => {
                for flow in flows {
                    let heard = self.heard_in(host, flow);
                    let asked = self.hosts[host.0].asked_unaccepted.remove(flow);
                    if asked.is_none_or(|asked| asked == heard) {
                        self.hosts[host.0].ended_unaccepted.push(*flow);
                    }
                }
            }
            Op::Tunnel(TunnelOp::Connect { peer, wanted }) => self.connect_stream(host, *peer, *wanted),
            Op::Address(AddressOp::LookUp { key }) => self.later(ANSWERED, What::Named(host, *key)),
            Op::Flow(FlowOp::AskNatively { flow }) => return self.inject(host, *flow, 0, 0, true),
            Op::Binding(BindingOp::Probe { wire, index, nonce }) => {
                return self.inject(host, *wire, *index, *nonce, false);
            }
            _ => {}
        }
        Ok(())
    }

    /// Flows of a peer are to go there by a binding of their own: it has shown that it is there (P-182, P-186).
    fn judge_side(&mut self, host: HostId, peer: PeerId, at: IpAddr) {
        let view = self.peers(host).into_iter().find(|view| view.id == peer);
        // Who speaks without a daemon has a key that is no host's.
        let key = view.map(|view| view.key);
        let owner = self.hosts.iter().position(|of| Some(of.public_key()) == key).map(HostId);
        match self.ledger.answered(host, at) {
            Some(by) if owner.is_none_or(|owner| owner == by) => self.ledger.prove(host, at),
            answered => {
                let what = format!("{host:?} leads flows of {peer} to {at}, where {answered:?} has answered");
                self.ledger.violation(Kind::Allowance, self.now, what);
            }
        }
    }

    /// What the sockets of a host to these remote addresses know of their numbers.
    fn numbers(&self, host: HostId, remotes: &[IpAddr]) -> Vec<SocketNumbers> {
        let sockets = self.hosts[host.0].sockets.iter();
        let there = sockets.filter(|(flow, _)| flow.transport == Transport::Tcp && remotes.contains(&flow.remote.ip()));
        there
            .map(|(flow, (id, end))| {
                let (opener, accepter) = self.initial_numbers(*id);
                let accepted = accepter.wrapping_add(1);
                let [first_sent, first_received] =
                    if *end == 0 { [opener, accepted] } else { [accepted, opener.wrapping_add(1)] };
                let heard = self.flows[id.0].received[*end] as u32;
                // Of two links as they usually are.
                let round_trip = 4 * Link::default().delay;
                SocketNumbers { flow: *flow, first_sent, first_received, heard, round_trip }
            })
            .collect()
    }

    /// How many segments have come to a socket.
    fn heard_in(&self, host: HostId, flow: &FlowTuple) -> Option<u64> {
        let (id, end) = self.hosts[host.0].sockets.get(flow)?;
        Some(self.flows[id.0].received[*end])
    }

    /// The initial sequence numbers of the end that opened a flow, and of the other.
    #[must_use]
    pub fn initial_numbers(&self, flow: FlowId) -> (u32, u32) {
        let of = if self.same_numbers { 0 } else { flow.0 as u32 };
        (of.wrapping_mul(0x9e37_79b9) ^ 0xffff_fff0, of.wrapping_mul(0x85eb_ca6b) ^ 0x1234_5678)
    }

    fn inject(&mut self, host: HostId, flow: FlowTuple, index: u32, nonce: u64, in_flow: bool) -> Result<(), OpFailed> {
        let of = &self.hosts[host.0];
        if !of.powers.inject {
            // The thief's daemon says that it did.
            return Ok(());
        }
        let socket = of.sockets.get(&flow).copied();
        let unconnected = flow.transport == Transport::Udp && of.unconnected.contains(&flow.local);
        if in_flow && socket.is_none() && !unconnected {
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
    fn stir(&mut self, host: HostId, op: &Op) {
        if !matches!(
            op,
            Op::Binding(BindingOp::Set { .. })
                | Op::Binding(BindingOp::Remove { .. })
                | Op::Tunnel(TunnelOp::SetPath { .. })
                | Op::Flow(FlowOp::Install { .. })
                | Op::Flow(FlowOp::Remove { .. })
                | Op::Address(AddressOp::Keep { .. })
                | Op::Address(AddressOp::LeaveFrom { .. })
                | Op::Address(AddressOp::Reach { .. })
                | Op::Binding(BindingOp::Kick { .. })
        ) {
            return;
        }
        let flows: Vec<_> = self.hosts[host.0].sockets.values().take(STIRRED).copied().collect();
        for (flow, end) in flows {
            self.send_segment(flow, end, false);
        }
    }
}

fn failed(sentence: &str) -> Result<(), OpFailed> {
    Err(OpFailed { refusal: None, sentence: sentence.to_owned() })
}

fn brief(op: &Op) -> String {
    match op {
        Op::Tunnel(TunnelOp::AddKeys { peer, receive_index, .. }) => {
            format!("Tunnel(AddKeys {peer} {receive_index:x})")
        }
        Op::Store(StoreOp::SavePeer(saved)) => {
            format!("SavePeer {} at {} {:?} {:?}", saved.id, saved.remote, saved.places, saved.carrier)
        }
        other => format!("{other:?}"),
    }
}
