//! Two ends that agree on chains by the protocol, while real packets go both ways: none is lost, and none comes out of
//! a chain that it did not go into. The clock of the protocol runs faster than that of the packets, so that former
//! chains go in time; its messages are lost, repeated and late.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use whimbrel_handshake::StaticKey;
use whimbrel_protocol::{
    Attachment, ChainOp, ChainPhase, ChainStatus, ChainView, Config, LinkId, Node, Op, OpDone, OpFailed, Output,
    PeerId, Routes, Time, TunnelOp,
};
use whimbrel_transform::{DropReason, SpecError};
use whimbrel_tunnel::Counter;
use whimbrel_wire::chain::Parameter;
use whimbrel_wire::{ChainSpec, FlowTuple, Stage, TransformId, Transport};

use super::hosts::{Host, Inner, Outer, PEER, Pair, is_root};
use super::pairs::{PAIRS, REGISTRY};
use super::until;

/// So much faster runs the protocol's clock.
const FASTER: u32 = 25;
/// Of a thousand messages so many are lost, and so many come twice.
const LOST: u64 = 200;
const TWICE: u64 = 100;
/// Between packets of one end.
const PACE: Duration = Duration::from_millis(2);

/// One way leads everywhere.
struct OneWay(IpAddr);

impl Routes for OneWay {
    fn source_for(&self, _: IpAddr) -> Option<IpAddr> {
        Some(self.0)
    }
    fn still_reaches(&self, _: IpAddr, _: IpAddr) -> bool {
        true
    }
}

/// The nodes of both hosts, and what is between them.
struct Ends<'a> {
    hosts: [&'a Host; 2],
    nodes: [Node; 2],
    addresses: [IpAddr; 2],
    /// When, in what order, to whom, from where.
    queue: BTreeMap<(Time, u64), (usize, SocketAddr, Vec<u8>)>,
    order: u64,
    chance: u64,
    begun: Instant,
    /// What the clock was when real time began to count.
    ahead: Duration,
}

impl<'a> Ends<'a> {
    fn new(pair: &'a Pair, seed: u64) -> Self {
        let addresses = ["10.7.0.1", "10.8.0.1"].map(|text| text.parse().unwrap());
        let node = |end: usize| {
            Node::new(Config::default(), StaticKey::from_bytes([8 * (end as u8 + 1); 32]), [end as u8; 32])
        };
        let mut ends = Self {
            hosts: [&pair.a, &pair.b],
            nodes: [node(0), node(1)],
            addresses,
            queue: BTreeMap::new(),
            order: 0,
            chance: seed,
            begun: Instant::now(),
            ahead: Duration::from_secs(1),
        };
        let now = ends.now();
        let [first, second] = addresses.map(|address| SocketAddr::new(address, 5000));
        let flow = FlowTuple { transport: Transport::Tcp, local: first, remote: second };
        for (end, flow) in [(0, flow), (1, flow.mirrored())] {
            let attachment = Attachment { address: addresses[end], link: LinkId(1), generation: 1 };
            ends.nodes[end].handle_network(now, &[attachment], &OneWay(addresses[end]));
            ends.nodes[end].handle_flow_opened(now, flow, end == 1);
            ends.drain(end);
        }
        until("a session", || {
            ends.step();
            (0..2).all(|end| ends.nodes[end].peers().any(|peer| peer.session)).then_some(())
        });
        ends
    }

    fn now(&self) -> Time {
        Time::from_micros((self.ahead + self.begun.elapsed() * FASTER).as_micros() as u64)
    }

    /// SplitMix64.
    fn draw(&mut self, limit: u64) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn step(&mut self) {
        let now = self.now();
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= now) {
            let (end, source, payload) = entry.remove();
            self.nodes[end].handle_datagram(now, source, Some(self.addresses[end]), None, &payload);
            self.drain(end);
        }
        for end in 0..2 {
            if self.nodes[end].poll_timeout().is_some_and(|due| due <= now) {
                self.nodes[end].handle_timeout(now);
                self.drain(end);
            }
        }
    }

    fn drain(&mut self, end: usize) {
        let now = self.now();
        while let Some(output) = self.nodes[end].poll() {
            match output {
                Output::Transmit(transmit) => {
                    let source = SocketAddr::new(self.addresses[end], 2031);
                    let copies = u64::from(self.draw(1000) >= LOST) + u64::from(self.draw(1000) < TWICE);
                    for _ in 0..copies {
                        let delay = Duration::from_millis(5 + self.draw(60));
                        self.order += 1;
                        self.queue.insert((now + delay, self.order), (1 - end, source, transmit.payload.clone()));
                    }
                }
                Output::Op(id, op) => {
                    let result = match op {
                        Op::Tunnel(TunnelOp::Chain(op)) => carry_out(self.hosts[end], op),
                        // The flow that made them meet is none: it is to be introduced in vain.
                        Op::Flow(_) => Err(OpFailed { refusal: None, sentence: "there is none".to_owned() }),
                        _ => Ok(OpDone::Done),
                    };
                    self.nodes[end].handle_done(now, id, result);
                }
                Output::Event(_) => {}
            }
        }
    }

    fn peer(&self, end: usize) -> PeerId {
        self.nodes[end].peers().next().unwrap().id
    }

    fn view(&self, end: usize) -> ChainView {
        self.nodes[end].chain(self.peer(end)).unwrap()
    }

    fn ask(&mut self, end: usize, wanted: Option<ChainSpec>) {
        let (now, peer) = (self.now(), self.peer(end));
        self.nodes[end].set_chain(now, peer, wanted).unwrap();
        self.drain(end);
    }

    fn agree(&mut self, wanted: Option<&ChainSpec>) {
        until(&format!("{wanted:?}"), || {
            self.step();
            let agreed = (0..2).all(|end| {
                let ChainView { phase, in_force, sending, .. } = self.view(end);
                let settled = matches!(phase, ChainPhase::Empty | ChainPhase::InForce);
                let (number, spec) = in_force.unzip();
                settled && spec.as_ref() == wanted && sending == number
            });
            agreed.then_some(())
        });
    }

    fn run_for(&mut self, duration: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < duration {
            self.step();
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// As a daemon does it.
fn carry_out(host: &Host, op: ChainOp) -> Result<OpDone, OpFailed> {
    let tunnel = &host.tunnel;
    let done = match op {
        ChainOp::Set { chain, spec, .. } => {
            REGISTRY.build(&spec).map(|made| tunnel.set_chain(PEER, chain.into(), made))
        }
        ChainOp::SetParameters { chain, spec, .. } => {
            tunnel.with_chain(PEER, chain.into(), |chain| REGISTRY.set_parameters(chain, &spec)).expect("it is there")
        }
        ChainOp::SendThrough { chain, .. } => {
            tunnel.send_through(PEER, chain.map(Into::into)).expect("it is there");
            Ok(())
        }
        ChainOp::Remove { chain, .. } => {
            let dropped = tunnel.with_chain(PEER, chain.into(), |chain| {
                let dropped = |of: &whimbrel_transform::StageCounters| DropReason::ALL.map(|why| of.dropped.of(why));
                assert_eq!(chain.held(), 0, "it has given out all");
                chain.counters().map(|(_, counters)| dropped(counters)).collect::<Vec<_>>()
            });
            assert!(dropped.expect("it is there").iter().flatten().all(|count| *count == 0));
            tunnel.remove_chain(PEER, chain.into());
            Ok(())
        }
    };
    Ok(done.map_or_else(|SpecError { stage, status }| OpDone::ChainRefused { status, stage }, |()| OpDone::Done))
}

/// Pairs that wait so long for one another, in microseconds.
fn spec(delays: &[u64]) -> ChainSpec {
    let stage =
        |delay: &u64| Stage { transform: PAIRS, version: 1, parameters: vec![Parameter { number: 1, value: *delay }] };
    ChainSpec::new(delays.iter().map(stage).collect()).unwrap()
}

/// Sends numbers until it is told to stop; how many.
fn send(socket: &UdpSocket, to: SocketAddr, stop: &AtomicBool) -> u32 {
    let mut number = 0u32;
    while !stop.load(Ordering::Relaxed) {
        // Of several lengths: some fit into one packet together.
        let mut packet = vec![0x5a; 8 + (number as usize * 37) % 1100];
        packet[..4].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&packet, to).unwrap();
        number += 1;
        std::thread::sleep(PACE);
    }
    number
}

/// Receives until nothing has come for a second. The numbers, each of which came once.
fn receive(socket: &UdpSocket, from: SocketAddr, stop: &AtomicBool) -> BTreeSet<u32> {
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (mut numbers, mut buffer) = (BTreeSet::new(), vec![0; 2000]);
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((len, source)) => {
                assert_eq!(source, from);
                let number = u32::from_be_bytes(buffer[..4].try_into().unwrap());
                assert!(buffer[4..len].iter().all(|byte| *byte == 0x5a) && len == 8 + (number as usize * 37) % 1100);
                assert!(numbers.insert(number), "{number} came twice");
            }
            Err(_) if stop.load(Ordering::Relaxed) => return numbers,
            Err(_) => {}
        }
    }
}

#[test]
fn packets_go_on_while_two_ends_agree_on_other_chains() {
    if !is_root() {
        return;
    }
    for (sealed, seed) in [(true, 1), (false, 2)] {
        let pair = Pair::new(Inner::V4, Outer::V6, sealed, 1500);
        let names = pair.flow(Transport::Udp);
        let sockets = [(&pair.a, names.a), (&pair.b, names.b)].map(|(host, own)| {
            let socket = host.enter(|| UdpSocket::bind(own.local).unwrap());
            set_socket_recv_buffer_size_force(&socket, 8 << 20).unwrap();
            (socket, own.remote)
        });
        let mut ends = Ends::new(&pair, seed);
        let stop = AtomicBool::new(false);
        let (sent, received) = std::thread::scope(|scope| {
            let sending: Vec<_> = sockets.iter().map(|(from, to)| scope.spawn(|| send(from, *to, &stop))).collect();
            let receiving: Vec<_> =
                sockets.iter().map(|(to, from)| scope.spawn(|| receive(to, *from, &stop))).collect();
            for (end, wanted) in [
                (0, Some(spec(&[1000]))),
                (1, Some(spec(&[500, 1000]))),
                (0, Some(spec(&[3000, 0]))),
                (0, None),
                (1, Some(spec(&[4000]))),
                (0, Some(spec(&[0, 0, 0]))),
            ] {
                ends.ask(end, wanted.clone());
                ends.agree(wanted.as_ref());
                ends.run_for(Duration::from_millis(300));
            }
            let unknown = Stage { transform: TransformId(1), version: 1, parameters: vec![] };
            ends.ask(1, Some(ChainSpec::new(vec![unknown]).unwrap()));
            ends.agree(Some(&spec(&[0, 0, 0])));
            assert_eq!(ends.view(1).refused, Some((ChainStatus::UnknownTransform, 0)));
            // Those that were replaced go.
            until("one chain", || {
                ends.step();
                (0..2).all(|end| ends.view(end).known == 1).then_some(())
            });
            stop.store(true, Ordering::Relaxed);
            let sent: Vec<u32> = sending.into_iter().map(|of| of.join().unwrap()).collect();
            // What is kept still waits for another, or for an answer.
            ends.ask(0, None);
            ends.agree(None);
            (sent, receiving.into_iter().map(|of| of.join().unwrap()).collect::<Vec<_>>())
        });
        for (end, other) in [(0, 1), (1, 0)] {
            let lost: Vec<u32> = (0..sent[end]).filter(|number| !received[other].contains(number)).collect();
            assert!(lost.is_empty(), "of {} from end {end} were lost: {lost:?}", sent[end]);
            assert!(sent[end] > 500);
            let counters = ends.hosts[end].tunnel.counters();
            for bad in
                [Counter::Malformed, Counter::ForeignFlow, Counter::SendFailed, Counter::WriteFailed, Counter::NoPath]
            {
                assert_eq!(counters.get(bad), 0, "{bad:?} at end {end}");
            }
        }
    }
}
