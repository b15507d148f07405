//! Packets between hosts.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_protocol::{Between, Routes};
use whimbrel_wire::{FlowTuple, Transport};

use super::due::What;
use super::{Answering, Carried, FlowId, World};
use crate::dataplane::Verdict;
use crate::faults::Mutation;
use crate::host::{Attached, Host, HostId};
use crate::ledger::{Kind, Sent};
use crate::nat::Inbound;
use crate::network::{Access, NetworkId};
use crate::packet::{Body, Packet};
use crate::traffic::Overdue;

/// Between hosts of one network.
const NEAR: Duration = Duration::from_micros(200);
/// Datagrams kept for replaying.
const CAPTURED: usize = 64;

/// Whether the data plane takes it for traffic: it is nothing that daemons say to each other.
fn is_traffic(body: &Body) -> bool {
    matches!(body, Body::Data { .. } | Body::Tunnel { .. })
}

impl World {
    /// An end sends a segment.
    pub fn send(&mut self, flow: FlowId, end: usize) {
        self.send_segment(flow, end, false);
    }

    pub(crate) fn send_segment(&mut self, id: FlowId, end: usize, acknowledgement: bool) {
        let flow = &self.flows[id.0];
        if !flow.open[end] || flow.broken || flow.frozen[end] || self.hosts[flow.hosts[end].0].asleep {
            return;
        }
        let (host, own) = (flow.hosts[end], flow.tuples[end]);
        self.flows[id.0].sent[end] += 1;
        self.hosts[host.0].plane.note_use(own, self.now);
        let body = Body::Data { flow: id, end, acknowledgement };
        let mut packet =
            Packet { transport: own.transport, source: own.local, destination: own.remote, origin: host, body };
        let of = &mut self.hosts[host.0];
        let sees = of.egress_sees(&own);
        match of.plane.egress(&own, packet.length(), &of.sockets) {
            Verdict::Native => {
                let Some(attached) = of.attached_with(own.local.ip()) else { return };
                self.put_out(attached, packet, Sent::Data);
            }
            Verdict::Hold(_) => {}
            _ if !sees => self.trace(|_| format!("{id:?} from end {end} never comes to the programs")),
            Verdict::Rewrite { source, destination } => {
                (packet.source, packet.destination) = (source, destination);
                let Some(attached) = of.attached_with(source.ip()) else { return };
                self.put_out(attached, packet, Sent::Data);
            }
            Verdict::Tunnel { path, inner, chain } => {
                // The tunnel's threads die with the daemon.
                if of.node.is_none() {
                    return;
                }
                let port = of.config.port;
                let twice = path.second.map(|_| of.plane.count_duplicate());
                let index = path.send_index;
                packet.body = Body::Tunnel { index, inner, flow: id, end, acknowledgement, chain, twice };
                packet.transport = Transport::Udp;
                let second = path.second.map(|second| (second.source, second.remote));
                for (source, remote) in [(path.source, path.remote)].into_iter().chain(second) {
                    let of = &self.hosts[host.0];
                    packet.destination = remote;
                    let source = source.or_else(|| of.routes().source_for(remote.ip()));
                    let Some(attached) = source.and_then(|source| of.attached_with(source)) else { continue };
                    packet.source = SocketAddr::new(attached.address, port);
                    let Some(packet) = self.by_stream(host, packet.clone()) else { continue };
                    self.put_out(attached, packet, Sent::Data);
                }
            }
        }
    }

    /// Notes what becomes of a packet; of data only where all is shown.
    fn record(&mut self, packet: &Packet, what: &str) {
        if self.aloud || !matches!(packet.body, Body::Data { .. } | Body::Tunnel { .. }) {
            self.trace(|_| format!("{what}: {packet}"));
        }
    }

    /// A packet leaves its host by one of its attachments.
    pub(crate) fn put_out(&mut self, attached: Attached, packet: Packet, what: Sent) {
        self.ledger.send(self.now, packet.origin, packet.destination.ip(), packet.length(), what);
        self.note_leaving(&packet);
        self.launch(attached.network, packet);
    }

    fn note_leaving(&mut self, packet: &Packet) {
        let (Body::Data { acknowledgement, .. } | Body::Tunnel { acknowledgement, .. }) = packet.body else { return };
        let between = Between { local: packet.source.ip(), remote: packet.destination.ip() };
        if acknowledgement {
            return;
        }
        if let Some(due) = self.hosts[packet.origin.0].plane.traffic.note_leaving(self.now, between) {
            self.schedule(due, What::Overdue(packet.origin, between));
        }
    }

    pub(super) fn look_for_overdue(&mut self, host: HostId, between: Between) {
        let now = self.now;
        match self.hosts[host.0].plane.traffic.on_timer(now, between) {
            None => {}
            Some(Overdue::At(due)) => self.schedule(due, What::Overdue(host, between)),
            Some(Overdue::For(lasts)) if !self.hosts[host.0].asleep => {
                self.overdue += 1;
                self.with_node(host, |node| node.handle_overdue(now, between, lasts));
            }
            Some(Overdue::For(_)) => {}
        }
    }

    /// A packet is on an access network, on its way out. Its source may be a lie.
    pub fn launch(&mut self, from: NetworkId, mut packet: Packet) {
        if let (Some(recorded), Body::Control(_)) = (&mut self.recorded, &packet.body) {
            recorded.push((from, packet.clone()));
        }
        self.on_seen(from, &packet);
        if let Body::Introduction { nonce, .. } = packet.body {
            self.nonces.push(nonce);
        }
        if packet.source.is_ipv4() != packet.destination.is_ipv4() {
            self.record(&packet, "two families, lost");
            return;
        }
        if let Some(&to) = self.networks[from.0].hosts.get(&packet.destination.ip()) {
            self.record(&packet, "on link");
            self.later(NEAR, What::Land(from, to, packet));
            return;
        }
        let (now, transport) = (self.now, packet.transport);
        let network = &mut self.networks[from.0];
        let passes = !network.cut
            && match &mut network.access {
                Access::Open => true,
                Access::Checked => network.hosts.contains_key(&packet.source.ip()),
                Access::Filtered(filter) => filter.outbound(now, transport, packet.source, packet.destination, false),
                Access::Translated(nat) if packet.destination.ip() == nat.external => false,
                Access::Translated(nat) => {
                    let random = &mut self.random;
                    let outer = nat.outbound(now, random, transport, packet.source, packet.destination, false);
                    outer.map(|outer| packet.source = outer).is_some()
                }
            };
        let stood_in_for = self.neighbour_proxy_of(packet.destination.ip()).map(|(network, _)| network);
        let to = self.global.get(&packet.destination.ip()).copied().or(stood_in_for);
        let Some(to) = to.filter(|_| passes) else {
            self.record(&packet, if passes { "lost in the core" } else { "lost on its way out" });
            return;
        };
        if let Body::Control(_) = packet.body {
            self.mutate(&mut packet);
        }
        if let Some(part) = self.faults.part
            && (part.networks == [from, to] || part.networks == [to, from])
            && self.sent > part.from
        {
            self.record(&packet, "parted");
            return;
        }
        let (near, far) = (self.networks[from.0].link, self.networks[to.0].link);
        let (out, back) = (near.carry(&mut self.random), far.carry(&mut self.random));
        if out.is_empty() || back.is_empty() {
            self.record(&packet, "lost by chance");
        }
        for first in out {
            for second in &back {
                self.record(&packet, "sent");
                self.later(first + *second, What::Enter(to, packet.clone()));
            }
        }
    }

    fn mutate(&mut self, packet: &mut Packet) {
        let Mutation { corrupt, truncate, extend, replay, replay_elsewhere } = self.mutation;
        if corrupt + truncate + extend + replay + replay_elsewhere == 0 {
            return;
        }
        let again = [self.random.permille(replay), self.random.permille(replay_elsewhere)];
        for (elsewhere, again) in again.into_iter().enumerate() {
            if !again || self.captured.is_empty() {
                continue;
            }
            let at = self.random.index(self.captured.len());
            let mut old = self.captured[at].clone();
            if elsewhere == 1 {
                old.source = "10.66.6.6:2031".parse().expect("an endpoint");
            }
            let delay = self.random.duration(Duration::from_millis(500));
            if let Some(&to) = self.global.get(&old.destination.ip()) {
                self.later(delay, What::Enter(to, old));
            }
        }
        if self.captured.len() >= CAPTURED {
            self.captured.pop_front();
        }
        self.captured.push_back(packet.clone());
        let Body::Control(payload) = &mut packet.body else { return };
        if self.random.permille(corrupt) {
            let at = self.random.index(payload.len());
            let bit = self.random.below(8);
            if let Some(byte) = payload.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        if self.random.permille(truncate) {
            let length = self.random.index(payload.len());
            payload.truncate(length);
        }
        if self.random.permille(extend) {
            let more = self.random.index(64);
            payload.resize(payload.len() + more, 0x5a);
        }
    }

    pub(super) fn enter(&mut self, network: NetworkId, mut packet: Packet) {
        let now = self.now;
        let to = &mut self.networks[network.0];
        if to.cut {
            return;
        }
        let inbound = match &mut to.access {
            Access::Open | Access::Checked => Inbound::To(packet.destination),
            Access::Filtered(filter) => {
                if filter.inbound(now, packet.transport, packet.destination, packet.source) {
                    Inbound::To(packet.destination)
                } else {
                    Inbound::Drop
                }
            }
            Access::Translated(nat) if nat.external == packet.destination.ip() => {
                nat.inbound(now, packet.transport, packet.destination.port(), packet.source)
            }
            Access::Translated(_) => Inbound::Drop,
        };
        match inbound {
            Inbound::To(inner) => {
                packet.destination = inner;
                match self.networks[network.0].hosts.get(&inner.ip()).copied() {
                    Some(host) => self.land(network, host, &packet),
                    None => self.intercept(network, &packet),
                }
            }
            Inbound::Reset => self.refuse(network, &packet, "the NAT"),
            Inbound::Drop => self.record(&packet, "filtered"),
        }
    }

    /// Who stands in for an address on the network that it was on.
    pub(super) fn neighbour_proxy(&self, network: NetworkId, address: IpAddr) -> Option<HostId> {
        let stands = |host: &Host| {
            let there = host.attached.iter().any(|attached| attached.network == network);
            there && !host.asleep && host.node.is_some() && host.plane.standing_in.contains(&address)
        };
        self.hosts.iter().position(stands).map(HostId)
    }

    fn neighbour_proxy_of(&self, address: IpAddr) -> Option<(NetworkId, HostId)> {
        let (network, _) = self.former.get(&address)?;
        Some((*network, self.neighbour_proxy(*network, address)?))
    }

    /// Nobody has an address, but somebody may stand in for whoever had it.
    fn intercept(&mut self, network: NetworkId, packet: &Packet) {
        let address = packet.destination.ip();
        let (Some(host), Body::Control(payload)) = (self.neighbour_proxy(network, address), &packet.body) else {
            self.record(packet, "nobody there");
            return;
        };
        self.record(packet, "taken in for another");
        if let Some((_, whose)) = self.former.get(&address) {
            // It is heard by way of the other.
            self.ledger.receive(*whose, packet.source.ip(), packet.length());
        }
        let (now, source) = (self.now, packet.source);
        self.with_node(host, |node| node.handle_intercepted(now, address, source, payload));
    }

    /// Nobody has a socket for a packet.
    fn refuse(&mut self, network: NetworkId, packet: &Packet, who: &str) {
        if let Some(host) = self.networks[network.0].hosts.get(&packet.destination.ip())
            && packet.transport == Transport::Tcp
            && matches!(packet.body, Body::Data { .. })
            && self.hosts[host.0].plane.accepts_rewritten(packet.destination.ip(), packet.source.ip())
        {
            // P-43
            self.trace(|_| format!("of no flow here: {packet}"));
            return;
        }
        self.trace(|_| format!("refused by {who}: {packet}"));
        let body = match &packet.body {
            Body::Control(payload) => Body::Unreachable(packet.destination, payload.first_chunk().copied()),
            Body::Data { flow, end, .. } => {
                if self.answers_for(*flow, *end) {
                    let what = format!("{who} refuses what end {end} of {flow:?} sent: {packet}");
                    self.ledger.violation(Kind::Reset, self.now, what);
                }
                Body::Reset
            }
            Body::Introduction { .. } => Body::Reset,
            Body::Tunnel { .. } | Body::Reset | Body::Unreachable(..) => return,
        };
        let origin = packet.origin;
        let (source, destination) = (packet.destination, packet.source);
        let answer = Packet { transport: packet.transport, source, destination, origin, body };
        // A NAT's own answer leaves outside of it.
        if matches!(&self.networks[network.0].access, Access::Translated(nat) if nat.external == source.ip()) {
            let Some(&to) = self.global.get(&destination.ip()) else { return };
            let delay = self.networks[network.0].link.delay + self.networks[to.0].link.delay;
            self.later(delay, What::Enter(to, answer));
        } else {
            self.launch(network, answer);
        }
    }

    /// Whether what a flow's end sends is Whimbrel's business: both sockets are there, and the end's maps know it. Else
    /// it fares as on any host.
    fn answers_for(&self, flow: FlowId, end: usize) -> bool {
        let flow = &self.flows[flow.0];
        let known = self.hosts[flow.hosts[end].0].plane.flows.contains_key(&flow.tuples[end]);
        flow.open == [true; 2] && !flow.broken && known
    }

    pub(super) fn land(&mut self, network: NetworkId, host: HostId, packet: &Packet) {
        self.on_seen(network, packet);
        let of = &self.hosts[host.0];
        if of.asleep {
            return;
        }
        if of.attached.iter().all(|a| a.address != packet.destination.ip() || a.network != network) {
            self.record(packet, "gone meanwhile");
            return;
        }
        let Some(come) = self.out_of_stream(host, packet) else {
            self.record(packet, "of no connection");
            return;
        };
        let packet = &come;
        if !matches!(packet.body, Body::Unreachable(..) | Body::Reset) {
            self.ledger.receive(host, packet.source.ip(), packet.length());
        }
        if is_traffic(&packet.body) {
            let between = Between { local: packet.destination.ip(), remote: packet.source.ip() };
            self.hosts[host.0].plane.traffic.note_coming(self.now, between);
        }
        let of = &self.hosts[host.0];
        let seen = FlowTuple { transport: packet.transport, local: packet.destination, remote: packet.source };
        let wire = of.plane.ingress(self.now, packet.transport, packet.source, packet.destination, &of.sockets);
        let own = wire.unwrap_or(seen);
        match &packet.body {
            Body::Control(payload) => {
                let there = match &self.networks[network.0].access {
                    Access::Translated(nat) if !self.networks[network.0].hosts.contains_key(&packet.source.ip()) => {
                        nat.external
                    }
                    _ => packet.destination.ip(),
                };
                self.ledger.reach(packet.origin, there, host);
                self.land_control(network, host, packet, payload);
            }
            Body::Unreachable(endpoint, quoted) => {
                let (now, endpoint, quoted) = (self.now, *endpoint, *quoted);
                self.with_node(host, |node| node.handle_unreachable(now, endpoint, quoted));
            }
            Body::Introduction { index, nonce, flow } => {
                let stripped = self.strips_options && packet.transport == Transport::Tcp;
                if of.plane.listening.contains(index) && of.powers.consume && !stripped {
                    self.record(packet, "consumed");
                    let (now, index, nonce) = (self.now, *index, *nonce);
                    let of = &self.hosts[host.0];
                    let behind = of.is_behind(seen.local.ip());
                    let unconnected = seen.transport == Transport::Udp && of.unconnected.contains(&seen.local);
                    self.hosts[host.0].consumed.push(nonce);
                    self.with_node(host, |node| {
                        if unconnected && !node.has_flow(&seen) && !node.admit_unconnected(now, seen, index, nonce) {
                            return;
                        }
                        if behind {
                            node.handle_flow_passing(now, seen, index, nonce);
                        }
                        node.handle_introduction(now, seen, index, nonce);
                    });
                    return;
                }
                match (of.sockets.get(&own), flow) {
                    (None, _) => self.refuse(network, packet, "the stack"),
                    (Some(_), Some(_)) if packet.transport == Transport::Udp => {
                        let what = format!("{} reads {packet} as data", of.name);
                        self.ledger.violation(Kind::Leaked, self.now, what);
                    }
                    (Some(&(flow, end)), _) => {
                        self.record(packet, "acknowledged");
                        self.send_segment(flow, end, true);
                    }
                }
            }
            Body::Data { flow, end, acknowledgement } => {
                let carried = if own == seen { Carried::Native } else { Carried::Rewritten };
                let now = self.now;
                self.hosts[host.0].plane.note_way(now, own, wire.is_none());
                if wire.is_some() {
                    self.hosts[host.0].plane.hear(own);
                } else if self.hosts[host.0].plane.hear_natively(&own) {
                    let now = self.now;
                    self.with_node(host, |node| node.handle_heard_natively(now, own));
                } else if self.hosts[host.0].plane.report_other(&own) {
                    let now = self.now;
                    self.with_node(host, |node| match own.transport {
                        Transport::Udp => node.handle_claim(now, own),
                        Transport::Tcp => node.handle_still_there(now, own),
                    });
                }
                self.arrive(network, host, own, packet, (*flow, *end, *acknowledgement), carried);
            }
            Body::Tunnel { index, inner, flow, end, acknowledgement, chain, twice } => {
                let of = &mut self.hosts[host.0];
                // P-262: its counter has come already.
                if twice.is_some_and(|counter| !of.plane.take_duplicate((*index, counter))) {
                    self.record(packet, "came by the other path before");
                    return;
                }
                if let (Some(chain), true) = (chain, of.node.is_some())
                    && let Err(what) = of.plane.take_in_chain(*index, *chain)
                {
                    self.ledger.violation(Kind::Chain, self.now, format!("{host:?}: {what}: {packet}"));
                }
                if self.is_hostile(host) && self.can_open(*index) {
                    self.judge(host, packet, (*flow, *end), true);
                }
                let of = &self.hosts[host.0];
                if of.node.is_none() || !of.plane.tunnel_accepts(self.now, *index, inner) {
                    self.record(packet, "not taken out of the tunnel");
                    return;
                }
                let now = self.now;
                self.hosts[host.0].plane.note_way(now, *inner, false);
                let of = (*flow, *end, *acknowledgement);
                self.arrive(network, host, *inner, packet, of, Carried::Tunnelled);
            }
            Body::Reset if wire.is_none() && of.plane.has_moved(&own) => self.record(packet, "a reset from elsewhere"),
            Body::Reset => {
                if let Some(&(flow, end)) = of.sockets.get(&own)
                    && self.flows[flow.0].open == [true; 2]
                {
                    if self.answers_for(flow, end) {
                        let what = format!("end {end} of {flow:?} is reset by {packet}");
                        self.ledger.violation(Kind::Reset, self.now, what);
                    }
                    self.flows[flow.0].broken = true;
                }
            }
        }
    }

    /// A segment is before the socket layer, named as there.
    fn arrive(
        &mut self,
        network: NetworkId,
        host: HostId,
        own: FlowTuple,
        packet: &Packet,
        (flow, end, acknowledgement): (FlowId, usize, bool),
        carried: Carried,
    ) {
        if self.judge(host, packet, (flow, end), carried != Carried::Native) {
            return;
        }
        if self.is_frozen_or_left((flow, 1 - end), host) {
            self.record(packet, "held, or of a socket that has left");
            return;
        }
        let of = &self.hosts[host.0];
        if !of.takes(own.local.ip()) && !of.has_inside(&own) {
            self.trace(|_| format!("{} is not an address here: {packet}", own.local));
            return;
        }
        let Some(&socket) = of.sockets.get(&own) else {
            self.refuse(network, packet, "the stack");
            return;
        };
        if carried != Carried::Native {
            self.hosts[host.0].plane.note_use(own, self.now);
        }
        // To a socket that takes what anybody sends, whoever has the remote endpoint now and whoever had it are one.
        let one = self.flows[flow.0].tuples[1 - end] == own && self.is_unconnected(flow, 1 - end);
        if socket != (flow, 1 - end) && !one {
            if self.are_hostile(flow, socket.0) {
                self.record(packet, "their own affair");
                return;
            }
            let of = &self.hosts[host.0];
            let what = format!("{}: {packet} comes to the socket of {socket:?}", of.name);
            self.ledger.violation(Kind::WrongSocket, self.now, what);
            return;
        }
        let to = &mut self.flows[flow.0];
        to.received[1 - end] += 1;
        to.arrived[1 - end] = Some(self.now);
        to.carried[1 - end] = Some(carried);
        if acknowledgement {
            return;
        }
        match self.answering.get(&(flow, 1 - end)) {
            None => self.send_segment(flow, 1 - end, true),
            Some(Answering::Never) => {}
            Some(Answering::After(pause)) => self.later(*pause, What::Answer(flow, 1 - end)),
            Some(Answering::Each(number)) if self.flows[flow.0].received[1 - end].is_multiple_of(*number) => {
                self.send_segment(flow, 1 - end, true);
            }
            Some(Answering::Each(_)) => {}
        }
    }

    /// Runs the two ends of a connection through NATs and firewalls. Gives each end's tuple, and who answers.
    pub(super) fn establish(
        &mut self,
        client: HostId,
        source: SocketAddr,
        remote: SocketAddr,
        transport: Transport,
    ) -> ([FlowTuple; 2], HostId) {
        let of = &self.hosts[client.0];
        let attached = of.attached_with(source.ip()).expect("an address");
        let own = FlowTuple { transport, local: source, remote };
        if let Some(&server) = self.networks[attached.network.0].hosts.get(&remote.ip()) {
            return ([own, own.mirrored()], server);
        }
        let mut outer = own.local;
        match &mut self.networks[attached.network.0].access {
            Access::Open | Access::Checked => {}
            Access::Filtered(filter) => {
                assert!(filter.outbound(self.now, transport, own.local, remote, true), "the firewall lets it out");
            }
            Access::Translated(nat) => {
                outer =
                    nat.outbound(self.now, &mut self.random, transport, own.local, remote, true).expect("a mapping");
            }
        }
        let network = self.global.get(&remote.ip()).expect("a global address");
        let network = &mut self.networks[network.0];
        let mut inner = remote;
        if let Access::Translated(nat) = &mut network.access
            && let Inbound::To(exposed) = nat.inbound(self.now, transport, remote.port(), outer)
        {
            inner = exposed;
        }
        let server = *network.hosts.get(&inner.ip()).expect("a host there");
        let theirs = FlowTuple { transport, local: inner, remote: outer };
        ([own, theirs], server)
    }
}
