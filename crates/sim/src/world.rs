//! Hosts, networks, time.

mod carry;
mod drive;
mod due;
mod flow;
mod owners;
mod process;
mod relocate;
mod streams;
mod wishes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{
    Config, Event, FlowState, FlowView, NeighbourProxyStatus, Node, PeerView, RendezvousStanding, Routes, Time,
};
use whimbrel_wire::{FlowTuple, Transport};

use due::{Due, What};
pub use flow::{Answering, Carried, Flow, FlowId};
use owners::{Owners, Watch};
pub use process::{Process, Standing};

use crate::dataplane::Verdict;
use crate::drain::Drain;
use crate::faults::{Faults, Mutation};
use crate::host::{Attached, Host, HostId};
use crate::ledger::{Kind, Ledger, Violation};
use crate::network::{Access, Link, Network, NetworkId};
use crate::packet::Packet;
use crate::random::Random;
use crate::relocation::Connection;

/// Lines of the trace that are kept for a test that fails.
const TRACE: usize = 120;

/// Hosts, networks, time.
pub struct World {
    seed: u64,
    now: Time,
    pub(crate) random: Random,
    order: u64,
    queue: BinaryHeap<Reverse<Due>>,
    /// Connections of TCP that carry datagrams.
    streams: Vec<streams::End>,
    hosts: Vec<Host>,
    networks: Vec<Network>,
    /// Which network a globally routed address leads to.
    global: BTreeMap<IpAddr, NetworkId>,
    /// Where an address was that nobody has any more, and who had it.
    former: BTreeMap<IpAddr, (NetworkId, HostId)>,
    /// What name servers answer, by the keys of hosts.
    pub names: BTreeMap<PublicKey, Vec<IpAddr>>,
    flows: Vec<Flow>,
    connections: Vec<Connection>,
    processes: Vec<Process>,
    talks: Option<Duration>,
    /// How long snapshots are.
    pub(crate) snapshot_length: usize,
    pub(crate) ledger: Ledger,
    /// What goes wrong on purpose.
    pub faults: Faults,
    /// In which order daemons see to what their nodes give out.
    pub drain: Drain,
    /// Copies of sockets that wait for their fate outlive the daemon, as those of whole processes do.
    pub lasting: bool,
    /// Whether what is between the hosts strips options that it does not know from TCP segments.
    pub strips_options: bool,
    /// Whether the numbers of all flows began alike, as they do by bad luck.
    pub same_numbers: bool,
    /// What is done to control datagrams in flight.
    pub mutation: Mutation,
    /// Control datagrams that are put on the way while this is there, and the network that each comes from.
    pub recorded: Option<Vec<(NetworkId, Packet)>>,
    watch: Watch,
    owners: Owners,
    /// The nonces that have travelled in flows, which whoever watches has seen.
    pub nonces: Vec<u64>,
    /// Datagrams and injected segments that nodes sent, of all hosts.
    pub sent: u64,
    /// Ops that nodes asked for, of all hosts.
    pub ops: u64,
    /// Of these, binding updates put in force.
    pub bindings_set: u64,
    captured: VecDeque<Packet>,
    beat: Option<Duration>,
    /// What daemons were told is overdue.
    pub overdue: u64,
    both_open: bool,
    /// Whether flows send whenever their host's maps change.
    pub stirring: bool,
    trace: VecDeque<String>,
    /// Whether a trace is kept at all.
    pub tracing: bool,
    aloud: bool,
    /// How the ends of flows answer that do not do so at once.
    answering: BTreeMap<(FlowId, usize), Answering>,
    /// Events of all nodes.
    pub events: Vec<(Time, HostId, Event)>,
}

impl World {
    /// An empty world; all chance comes from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            now: Time::from_micros(1_000_000),
            random: Random::new(seed),
            order: 0,
            queue: BinaryHeap::new(),
            streams: Vec::new(),
            hosts: Vec::new(),
            networks: Vec::new(),
            global: BTreeMap::new(),
            former: BTreeMap::new(),
            names: BTreeMap::new(),
            flows: Vec::new(),
            connections: Vec::new(),
            processes: Vec::new(),
            talks: None,
            snapshot_length: 24,
            ledger: Ledger::default(),
            faults: Faults::default(),
            drain: Drain::drawn(seed),
            lasting: false,
            strips_options: false,
            same_numbers: false,
            mutation: Mutation::default(),
            recorded: None,
            watch: Watch::default(),
            owners: Owners::default(),
            nonces: Vec::new(),
            sent: 0,
            ops: 0,
            bindings_set: 0,
            captured: VecDeque::new(),
            beat: None,
            overdue: 0,
            answering: BTreeMap::new(),
            both_open: false,
            stirring: true,
            trace: VecDeque::new(),
            tracing: true,
            aloud: std::env::var_os("WHIMBREL_SIM_TRACE").is_some(),
            events: Vec::new(),
        }
    }

    // ---- building

    /// Adds an access network.
    pub fn network(&mut self, access: Access) -> NetworkId {
        let id = NetworkId(self.networks.len());
        if let Access::Translated(nat) = &access {
            self.global.insert(nat.external, id);
        }
        self.networks.push(Network { access, link: Link::default(), cut: false, hosts: BTreeMap::new() });
        id
    }

    /// Changes the link between an access network and the core.
    pub fn set_link(&mut self, network: NetworkId, link: Link) {
        self.networks[network.0].link = link;
    }

    /// Changes all links.
    pub fn set_links(&mut self, link: Link) {
        for network in &mut self.networks {
            network.link = link;
        }
    }

    /// Cuts or mends a network's link to the core; hosts on it do not notice.
    pub fn set_cut(&mut self, network: NetworkId, cut: bool) {
        self.networks[network.0].cut = cut;
    }

    /// What stands before a network.
    pub fn access(&mut self, network: NetworkId) -> &mut Access {
        &mut self.networks[network.0].access
    }

    /// Adds a host that runs nothing.
    pub fn bare_host(&mut self, name: &'static str) -> HostId {
        let id = HostId(self.hosts.len());
        self.hosts.push(Host::new(name, id.0, Config::default()));
        id
    }

    /// Adds a host that runs a daemon.
    pub fn host(&mut self, name: &'static str) -> HostId {
        self.host_with(name, Config::default())
    }

    /// Adds a host that runs a daemon with this configuration.
    pub fn host_with(&mut self, name: &'static str, config: Config) -> HostId {
        let id = HostId(self.hosts.len());
        let mut host = Host::new(name, id.0, config);
        host.config.wall_clock_at_zero = 1_700_000_000_000;
        self.hosts.push(host);
        self.boot(id);
        id
    }

    // ---- looking

    /// What time it is.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// A host.
    #[must_use]
    pub fn at(&self, host: HostId) -> &Host {
        &self.hosts[host.0]
    }

    /// A host, to be changed.
    pub fn at_mut(&mut self, host: HostId) -> &mut Host {
        &mut self.hosts[host.0]
    }

    /// A flow.
    #[must_use]
    pub fn flow(&self, flow: FlowId) -> &Flow {
        &self.flows[flow.0]
    }

    /// All flows.
    pub fn flows(&self) -> impl Iterator<Item = FlowId> + use<> {
        (0..self.flows.len()).map(FlowId)
    }

    /// Peers of a host's node; none where it does not run.
    #[must_use]
    pub fn peers(&self, host: HostId) -> Vec<PeerView> {
        self.hosts[host.0].node.as_ref().map(|node| node.peers().collect()).unwrap_or_default()
    }

    /// The only peer of a host's node.
    ///
    /// # Panics
    /// It has none or several.
    #[must_use]
    pub fn peer(&self, host: HostId) -> PeerView {
        let peers = self.peers(host);
        assert_eq!(peers.len(), 1, "peers of {}", self.hosts[host.0].name);
        peers[0].clone()
    }

    /// How a host's node stands with the rendezvous that it is to use.
    #[must_use]
    pub fn rendezvous(&self, host: HostId) -> Vec<RendezvousStanding> {
        let views = self.hosts[host.0].node.as_ref().map(Node::rendezvous).unwrap_or_default();
        views.into_iter().map(|view| view.standing).collect()
    }

    /// Hosts that are registered with a host's node, and pairs of them that can meet.
    #[must_use]
    pub fn meetings(&self, host: HostId) -> (usize, usize) {
        self.hosts[host.0].node.as_ref().map(Node::meetings).unwrap_or_default()
    }

    /// What an end's node says of a flow.
    #[must_use]
    pub fn view(&self, flow: FlowId, end: usize) -> Option<FlowView> {
        let Flow { hosts, tuples, .. } = &self.flows[flow.0];
        self.hosts[hosts[end].0].node.as_ref()?.flows().find(|view| view.tuple == tuples[end])
    }

    /// Whether both ends' nodes take the flow as introduced.
    #[must_use]
    pub fn introduced(&self, flow: FlowId) -> bool {
        (0..2).all(|end| {
            self.view(flow, end)
                .is_some_and(|view| matches!(view.state, FlowState::Native | FlowState::Moved) && view.entry.is_some())
        })
    }

    /// Whether an end of the flow got a reset.
    #[must_use]
    pub fn was_reset(&self, flow: FlowId) -> bool {
        self.flows[flow.0].broken
    }

    /// The flows whose sockets a host's daemon has ended, since the other end is gone.
    #[must_use]
    pub fn resets(&self, host: HostId) -> Vec<FlowId> {
        let sockets = &self.hosts[host.0].sockets;
        let reset = &self.hosts[host.0].reset;
        let mut flows: Vec<FlowId> = reset.iter().filter_map(|tuple| sockets.get(tuple)).map(|(id, _)| *id).collect();
        flows.sort_unstable();
        flows
    }

    /// What a host takes a packet between these endpoints for, if not for what it says.
    #[must_use]
    pub fn renamed(&self, host: HostId, transport: Transport, from: SocketAddr, to: SocketAddr) -> Option<FlowTuple> {
        let of = &self.hosts[host.0];
        of.plane.ingress(self.now, transport, from, to, &of.sockets)
    }

    /// How an end would send now. Takes nothing off any allowance.
    #[must_use]
    pub fn verdict(&self, flow: FlowId, end: usize) -> Verdict {
        let Flow { hosts, tuples, .. } = &self.flows[flow.0];
        let of = &self.hosts[hosts[end].0];
        of.plane.clone().egress(&tuples[end], 0, &of.sockets)
    }

    /// What must not have happened.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.ledger.found
    }

    /// Bytes that a host sent to an address, and received from it.
    #[must_use]
    pub fn exchanged(&self, host: HostId, address: IpAddr) -> (u64, u64) {
        self.ledger.exchanged(host, address)
    }

    /// Gives a host the key of another, as a copy of its disk would.
    pub fn copy_key(&mut self, from: HostId, to: HostId) {
        self.hosts[to.0].key = self.hosts[from.0].key;
    }

    /// Datagrams of the control port that were sent, in all.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        self.ledger.datagrams
    }

    /// Datagrams and injected segments so far, as [`Faults::lose`] counts them.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Fails the test where anything happened that must not, except of these kinds.
    ///
    /// # Panics
    /// With what happened.
    pub fn check_except(&self, excused: &[Kind]) {
        let found: Vec<String> =
            self.ledger.found.iter().filter(|v| !excused.contains(&v.kind)).map(ToString::to_string).collect();
        assert!(found.is_empty(), "seed {}: {}", self.seed, found.join("\n"));
    }

    /// Fails the test where anything happened that must not.
    ///
    /// # Panics
    /// With what happened.
    pub fn check(&self) {
        self.check_except(&[]);
    }

    /// What happened last, a line each.
    pub fn traced(&self) -> impl Iterator<Item = &str> {
        self.trace.iter().map(String::as_str)
    }

    // ---- time

    /// Lets time pass.
    pub fn run_for(&mut self, duration: Duration) {
        let until = self.now + duration;
        while self.step(until) {}
        self.now = until;
    }

    /// Lets time pass until something is so, at most this long; tells whether it came to be.
    pub fn wait(&mut self, within: Duration, mut so: impl FnMut(&Self) -> bool) -> bool {
        let until = self.now + within;
        loop {
            if so(self) {
                return true;
            }
            if !self.step(until) {
                self.now = until;
                return so(self);
            }
        }
    }

    /// The clock jumps, as over a suspend: nothing happens meanwhile, and everything that was due is late.
    pub fn sleep_all(&mut self, duration: Duration) {
        self.now = self.now + duration;
    }

    /// Handles what is due next, if that is not after `until`.
    fn step(&mut self, until: Time) -> bool {
        if self.queue.peek().is_none_or(|Reverse(due)| due.at > until) {
            return false;
        }
        let Some(Reverse(due)) = self.queue.pop() else { return false };
        self.now = self.now.max(due.at);
        match due.what {
            What::Enter(network, packet) => self.enter(network, packet),
            What::Land(network, host, packet) => self.land(network, host, &packet),
            What::Timeout(host) => self.timeout(host),
            What::Done(host) => self.end_op(host),
            What::Overdue(host, between) => self.look_for_overdue(host, between),
            What::Answer(flow, end) => self.send_segment(flow, end, true),
            What::Beat => self.beat(),
            What::Process(at) => self.hasten_process(at),
            What::Converse => {
                if let Some(pause) = self.talks {
                    self.converse();
                    self.later(pause, What::Converse);
                }
            }
            What::Said(connection, host, words) => self.hear_words(connection, host, words),
            What::Boot(host) => self.boot(host),
            What::Connected(host, peer, from, to) => self.on_stream_connected(host, peer, from, to),
            What::Named(host, key) => {
                let (now, addresses) = (self.now, self.names.get(&key).cloned().unwrap_or_default());
                self.with_node(host, |node| node.handle_named(now, &key, &addresses));
            }
        }
        true
    }

    fn later(&mut self, delay: Duration, what: What) {
        let at = self.now + delay;
        self.schedule(at, what);
    }

    fn schedule(&mut self, at: Time, what: What) {
        self.order += 1;
        self.queue.push(Reverse(Due { at, order: self.order, what }));
    }

    pub(crate) fn trace(&mut self, line: impl FnOnce(&Self) -> String) {
        if !self.tracing {
            return;
        }
        let line = format!("{:>12} {}", self.now.as_micros(), line(self));
        if self.aloud {
            eprintln!("{line}");
        }
        if self.trace.len() >= TRACE {
            self.trace.pop_front();
        }
        self.trace.push_back(line);
    }

    // ---- moving

    /// Gives a host an address on a network, which it prefers from now on.
    pub fn attach(&mut self, host: HostId, network: NetworkId, address: &str) {
        self.add(host, network, parse(address));
        self.notify(host);
    }

    /// Takes an address from a host.
    pub fn detach(&mut self, host: HostId, address: &str) {
        self.remove(host, parse(address));
        self.notify(host);
    }

    /// Takes all addresses from a host.
    pub fn detach_all(&mut self, host: HostId) {
        self.remove_all(host);
        self.notify(host);
    }

    /// Takes all addresses from a host and gives it another, as one change.
    ///
    /// Where the new address is the old one again, on another network, the link is seen to be down in between:
    /// otherwise nobody could tell.
    pub fn move_to(&mut self, host: HostId, network: NetworkId, address: &str) {
        let reused = self.hosts[host.0].attached_with(parse(address)).is_some_and(|old| old.network != network);
        self.remove_all(host);
        if reused {
            self.notify(host);
        }
        self.add(host, network, parse(address));
        self.notify(host);
    }

    /// Moves by hand, to an address where one is given.
    pub fn hand_off(&mut self, host: HostId, to: Option<&str>) {
        let (now, routes) = (self.now, self.hosts[host.0].routes());
        self.with_node(host, |node| node.hand_off(now, &routes, to.map(parse)));
    }

    /// Has a host's daemon tell its peers that the host goes away.
    pub fn part(&mut self, host: HostId) {
        let now = self.now;
        self.with_node(host, |node| node.suspend(now));
    }

    /// Tells a host's daemon that the host is back.
    pub fn resume(&mut self, host: HostId) {
        let (now, routes) = (self.now, self.hosts[host.0].routes());
        self.with_node(host, |node| node.resume(now, &routes));
    }

    /// Has the daemon at an end of a flow let it wait, or go on.
    pub fn let_wait(&mut self, flow: FlowId, end: usize, wait: bool) {
        let (now, Flow { hosts, tuples, .. }) = (self.now, &self.flows[flow.0]);
        let (host, tuple) = (hosts[end], tuples[end]);
        self.with_node(host, |node| {
            node.set_paused(now, &[tuple], wait);
        });
    }

    /// Tells the daemon at an end of a flow that the same has been sent on it again, as often as is told first.
    pub fn stall(&mut self, flow: FlowId, end: usize) {
        self.stall_on(flow, end, 2);
    }

    /// The same, when it has been sent again so often.
    pub fn stall_on(&mut self, flow: FlowId, end: usize, attempts: u32) {
        let (now, Flow { hosts, tuples, .. }) = (self.now, &self.flows[flow.0]);
        let (host, tuple) = (hosts[end], tuples[end]);
        self.with_node(host, |node| node.handle_flow_stalled(now, tuple, attempts));
    }

    /// Something else of a host gets what comes under the wire names of a flow's end (P-160).
    pub fn take_wire_port(&mut self, flow: FlowId, end: usize) {
        let now = self.now;
        let Flow { hosts, tuples, .. } = &self.flows[flow.0];
        let host = hosts[end];
        let entry = self.hosts[host.0].plane.flows.get(&tuples[end]).copied();
        self.with_node(host, |node| entry.into_iter().for_each(|entry| node.handle_wire_port_taken(now, entry.peer)));
    }

    /// Asks silent hosts again.
    pub fn ask_again(&mut self, host: HostId) {
        let now = self.now;
        self.with_node(host, |node| node.ask_again(now));
    }

    fn add(&mut self, host: HostId, network: NetworkId, address: IpAddr) {
        let of = &mut self.hosts[host.0];
        of.generation += 1;
        of.attached.insert(0, Attached { address, network, generation: of.generation });
        let net = &mut self.networks[network.0];
        net.hosts.insert(address, host);
        let stands = self.former.remove(&address).and_then(|(former, _)| self.neighbour_proxy(former, address));
        let net = &self.networks[network.0];
        if !matches!(net.access, Access::Translated(_)) {
            self.global.insert(address, network);
        }
        self.trace(|w| format!("{} gets {address} on {network:?}", w.hosts[host.0].name));
        if let Some(stands) = stands {
            self.with_node(stands, |node| node.stand_aside(address, NeighbourProxyStatus::Taken));
        }
    }

    fn remove(&mut self, host: HostId, address: IpAddr) {
        let of = &mut self.hosts[host.0];
        let Some(at) = of.attached.iter().position(|attached| attached.address == address) else { return };
        let attached = of.attached.remove(at);
        let net = &mut self.networks[attached.network.0];
        if net.hosts.get(&address) == Some(&host) {
            net.hosts.remove(&address);
            self.former.insert(address, (attached.network, host));
            if self.global.get(&address) == Some(&attached.network) {
                self.global.remove(&address);
            }
        }
        self.trace(|w| format!("{} loses {address}", w.hosts[host.0].name));
    }

    fn remove_all(&mut self, host: HostId) {
        let addresses: Vec<IpAddr> = self.hosts[host.0].attached.iter().map(|attached| attached.address).collect();
        for address in addresses {
            self.remove(host, address);
        }
    }

    // ---- flows

    /// Lets both ends' daemons take themselves for the one that opened the connections to come, as they may where both
    /// found them open.
    pub fn set_both_open(&mut self, both: bool) {
        self.both_open = both;
    }

    /// A TCP connection from a host to an address and port, open at once.
    ///
    /// # Panics
    /// There is no way.
    pub fn connect(&mut self, client: HostId, to: &str) -> FlowId {
        let port = self.hosts[client.0].next_port;
        self.hosts[client.0].next_port += 1;
        self.connect_from(client, port, to, Transport::Tcp)
    }

    /// As [`World::connect`], with all that can be chosen.
    ///
    /// # Panics
    /// There is no way.
    pub fn connect_from(&mut self, client: HostId, port: u16, to: &str, transport: Transport) -> FlowId {
        let remote: SocketAddr = to.parse().expect("an endpoint");
        let source = self.hosts[client.0].routes().source_for(remote.ip()).expect("a route");
        self.connect_at(client, SocketAddr::new(source, port), to, transport)
    }

    /// The same, from this endpoint: that of a host behind a gateway, say.
    ///
    /// # Panics
    /// There is no way.
    pub fn connect_at(&mut self, client: HostId, source: SocketAddr, to: &str, transport: Transport) -> FlowId {
        let remote: SocketAddr = to.parse().expect("an endpoint");
        let (tuples, server) = self.establish(client, source, remote, transport);
        let id = FlowId(self.flows.len());
        self.flows.push(Flow {
            hosts: [client, server],
            tuples,
            open: [true; 2],
            sent: [0; 2],
            received: [0; 2],
            arrived: [None; 2],
            carried: [None; 2],
            broken: false,
            frozen: [false; 2],
        });
        for end in 0..2 {
            let host = [client, server][end];
            self.hosts[host.0].sockets.insert(tuples[end], (id, end));
            self.ledger.prove(host, tuples[end].remote.ip());
        }
        self.trace(|_| format!("{id:?} opens: {} and {}", tuples[0], tuples[1]));
        for end in [1, 0] {
            let now = self.now;
            if self.is_unconnected(id, end) {
                if end == 0 {
                    self.with_node(client, |node| node.handle_datagram_sent(now, tuples[0]));
                }
                continue;
            }
            let accepted = end == 1 && !self.both_open;
            let host = [client, server][end];
            if !self.hosts[host.0].is_behind(tuples[end].local.ip()) {
                self.with_node(host, |node| node.handle_flow_opened(now, tuples[end], accepted));
            }
        }
        id
    }

    /// Closes both ends' sockets.
    pub fn close(&mut self, flow: FlowId) {
        for end in 0..2 {
            self.close_end(flow, end);
        }
    }

    /// Closes one end's socket.
    pub fn close_end(&mut self, flow: FlowId, end: usize) {
        let (host, tuple) = (self.flows[flow.0].hosts[end], self.flows[flow.0].tuples[end]);
        if !std::mem::replace(&mut self.flows[flow.0].open[end], false) {
            return;
        }
        self.hosts[host.0].sockets.remove(&tuple);
        let now = self.now;
        if !self.hosts[host.0].is_behind(tuple.local.ip()) {
            self.with_node(host, |node| node.handle_flow_closed(now, tuple));
        }
    }

    /// Somebody sends a datagram of a flow to this end of it, from where the other was when it was introduced. Tells
    /// whether the daemon was told.
    pub fn claim(&mut self, flow: FlowId, end: usize) -> bool {
        let (host, tuple) = (self.flows[flow.0].hosts[end], self.flows[flow.0].tuples[end]);
        let told = self.hosts[host.0].plane.report_claim(&tuple);
        if told {
            let now = self.now;
            self.with_node(host, |node| node.handle_claim(now, tuple));
        }
        told
    }

    /// All flows send from both ends at this interval.
    pub fn set_beat(&mut self, interval: Option<Duration>) {
        let idle = self.beat.is_none();
        self.beat = interval;
        if let (true, Some(interval)) = (idle, interval) {
            self.later(interval, What::Beat);
        }
    }

    /// An end of a flow answers so what comes to it, from now on.
    pub fn answer(&mut self, flow: FlowId, end: usize, answering: Answering) {
        self.answering.insert((flow, end), answering);
    }

    /// Those who have connections whose sockets may move talk at this interval.
    pub fn set_talk(&mut self, interval: Option<Duration>) {
        let idle = self.talks.is_none();
        self.talks = interval;
        if let (true, Some(interval)) = (idle, interval) {
            self.later(interval, What::Converse);
        }
    }

    /// Allows so many control datagrams a second from one host to another, as a transfer takes.
    pub fn allow_datagrams(&mut self, a_second: usize) {
        self.ledger.datagrams_a_second = Some(a_second);
    }

    fn beat(&mut self) {
        let Some(interval) = self.beat else { return };
        for flow in self.flows() {
            for end in 0..2 {
                self.send(flow, end);
            }
        }
        self.later(interval, What::Beat);
    }

    /// Sends on all flows that are open until each end has received something that was sent after now, at most this
    /// long. Gives back the flows and ends that have not, those that were reset among them.
    pub fn undelivered(&mut self, within: Duration) -> Vec<(FlowId, usize)> {
        let (since, until) = (self.now, self.now + within);
        // What is under way already does not count.
        let pause = Duration::from_millis(20);
        let mut started = None;
        loop {
            let missing: Vec<(FlowId, usize)> = self
                .flows()
                .flat_map(|flow| [(flow, 0), (flow, 1)])
                .filter(|&(flow, end)| {
                    let flow = &self.flows[flow.0];
                    flow.open == [true; 2] && flow.arrived[end].is_none_or(|at| at <= started.unwrap_or(since))
                })
                .collect();
            if (missing.is_empty() && started.is_some()) || self.now >= until {
                return missing;
            }
            for (flow, end) in missing {
                self.send(flow, 1 - end);
            }
            started = started.or(Some(self.now));
            self.run_for(pause);
        }
    }

    /// Fails the test unless all open flows deliver in both directions within this time.
    ///
    /// # Panics
    /// With the flows that do not.
    pub fn assert_delivering(&mut self, within: Duration) {
        let missing = self.undelivered(within);
        let told: Vec<String> = missing
            .iter()
            .map(|&(flow, end)| {
                let sender = self.flows[flow.0].hosts[1 - end];
                format!(
                    "nothing reaches end {end} of {flow:?}; {} would send {:?}; node says {:?}",
                    self.hosts[sender.0].name,
                    self.verdict(flow, 1 - end),
                    self.view(flow, 1 - end).map(|view| view.state),
                )
            })
            .collect();
        assert!(told.is_empty(), "seed {}: {}", self.seed, told.join("\n"));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if !self.aloud {
                for line in &self.trace {
                    eprintln!("{line}");
                }
            }
            for violation in &self.ledger.found {
                eprintln!("VIOLATION {violation}");
            }
            for host in &self.hosts {
                for peer in host.node.iter().flat_map(Node::peers) {
                    eprintln!("{}: {peer:?}", host.name);
                }
            }
            eprintln!("seed {}", self.seed);
        }
    }
}

pub(crate) fn parse(address: &str) -> IpAddr {
    address.parse().expect("an address")
}
