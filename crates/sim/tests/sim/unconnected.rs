//! Flows of sockets of UDP that are not connected: P-220 and what follows it.

use std::time::Duration;

use whimbrel_protocol::Config;
use whimbrel_sim::{Access, Carried, FlowId, HostId, Kind, NatPorts, NetworkId, Speaker, Verdict, World};
use whimbrel_wire::message::{Echo, IntroductionRefusal, Message, UpdateFlags};
use whimbrel_wire::{BindingNumber, FlowTuple, Transport};

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, SERVICE, Two, address, introduced, nat, settle_as};

const NAMES: &str = "10.9.0.1:53";
const MINUTE: Duration = Duration::from_secs(60);

/// Connected clients of a server that takes datagrams from everybody, introduced, with traffic.
fn served(mut two: Two, count: u16) -> (Two, Vec<FlowId>) {
    two.world.bind(two.server, NAMES);
    let from = |two: &mut Two, port| two.world.connect_from(two.client, port, NAMES, Transport::Udp);
    let flows: Vec<FlowId> = (5353..5353 + count).map(|port| from(&mut two, port)).collect();
    introduced(&mut two.world, &flows);
    two.world.set_beat(Some(Duration::from_millis(7)));
    two.world.assert_delivering(SECOND);
    (two, flows)
}

fn entries(world: &World, host: HostId) -> usize {
    world.at(host).node.as_ref().expect("a node").entries()
}

#[test]
fn clients_of_a_socket_that_is_not_connected_survive_moves_of_either_end() {
    // P-220
    let (mut two, flows) = served(Two::new(2200), 30);
    assert!(flows.iter().all(|flow| two.world.view(*flow, 1).is_some_and(|view| view.unconnected)));
    assert!(flows.iter().all(|flow| two.world.view(*flow, 0).is_some_and(|view| !view.unconnected)));
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(SECOND);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.move_to(two.server, two.further, FURTHER);
    two.world.assert_delivering(SECOND);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.restart(two.server, Duration::from_millis(20));
    two.world.run_for(5 * SECOND);
    two.world.assert_delivering(SECOND);
    two.world.move_to(two.client, two.home, HOME);
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn so_do_those_behind_a_nat_and_for_as_long_as_they_like() {
    // P-223: names are proven again every five minutes.
    let mut two = Two::nowhere(2201, Config::default(), Config::default());
    two.world.attach(two.client, two.nat, INSIDE);
    let (mut two, flows) = served(two, 5);
    two.world.set_beat(Some(Duration::from_millis(200)));
    for _ in 0..11 {
        two.world.run_for(MINUTE);
        let there = two.world.wait(5 * SECOND, |w| flows.iter().all(|flow| w.introduced(*flow)));
        assert!(there, "introduced again");
    }
    let before = entries(&two.world, two.server);
    two.world.run_for(11 * MINUTE);
    assert!(entries(&two.world, two.server) <= before + 2, "nothing grows");
    assert!(two.world.wait(5 * SECOND, |w| flows.iter().all(|flow| w.introduced(*flow))));
    two.world.move_to(two.client, two.second_nat, "192.168.1.9");
    two.world.assert_delivering(SECOND);
    two.world.run_for(11 * MINUTE);
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn what_is_not_used_after_a_move_ends_after_five_minutes() {
    // P-223
    let (mut two, flows) = served(Two::new(2202), 5);
    let stays = two.world.connect(two.client, SERVICE);
    introduced(&mut two.world, &[stays]);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(SECOND);
    two.world.set_beat(None);
    two.world.run_for(4 * MINUTE);
    assert_eq!(two.world.peer(two.server).flows, 6);
    // One of them is used.
    two.world.send(flows[0], 0);
    two.world.run_for(4 * MINUTE);
    assert!(two.world.introduced(flows[0]) && two.world.introduced(stays));
    assert_eq!((two.world.peer(two.server).flows, two.world.peer(two.client).flows), (2, 2));
    two.world.run_for(10 * MINUTE);
    assert_eq!((two.world.peer(two.server).flows, two.world.peer(two.client).flows), (1, 1));
    // What is under way while they end is refused.
    two.world.check_except(&[Kind::Reset]);
}

#[test]
fn a_server_that_is_closed_ends_its_flows() {
    // P-220: at both ends, moved or not.
    for moved in [false, true] {
        let (mut two, _) = served(Two::new(2203), 20);
        let stays = two.world.connect(two.client, SERVICE);
        introduced(&mut two.world, &[stays]);
        if moved {
            two.world.move_to(two.client, two.away, AWAY);
            two.world.assert_delivering(SECOND);
        }
        two.world.set_beat(None);
        two.world.run_for(SECOND);
        two.world.unbind(two.server, NAMES);
        two.world.run_for(20 * SECOND);
        assert_eq!((two.world.peer(two.server).flows, two.world.peer(two.client).flows), (1, 1), "moved {moved}");
        two.world.check();
    }
}

#[test]
fn a_server_that_is_started_anew_has_its_flows_again() {
    // P-35: those of connected clients, and of others that go on sending.
    for connected in [true, false] {
        let mut two = Two::new(2210);
        if !connected {
            (5353..5373).for_each(|port| two.world.bind(two.client, &format!("{HOME}:{port}")));
        }
        let (mut two, flows) = served(two, 20);
        two.world.unbind(two.server, NAMES);
        two.world.run_for(10 * SECOND);
        assert!(flows.iter().all(|flow| !two.world.introduced(*flow)));
        two.world.bind(two.server, NAMES);
        two.world.run_for(10 * SECOND);
        assert_eq!((two.world.peer(two.server).flows, two.world.peer(two.client).flows), (20, 20), "{connected}");
        // It is asked ever more seldom, and at the end once a minute; what is sent meanwhile has the rest known again.
        two.world.unbind(two.server, NAMES);
        two.world.set_beat(None);
        two.world.run_for(3 * MINUTE);
        let before = two.world.sent;
        two.world.run_for(5 * MINUTE);
        assert!(two.world.sent - before < 5 * 20 * 5, "{}", two.world.sent - before);
        two.world.bind(two.server, NAMES);
        two.world.run_for(MINUTE + SECOND);
        let again = if connected { 20 } else { 0 };
        assert_eq!(two.world.peers(two.server).iter().map(|peer| peer.flows).sum::<usize>(), again, "{connected}");
    }
}

#[test]
fn each_remote_is_answered_by_the_way_its_last_datagram_came() {
    // P-221: the address that a client has left is somebody else's, who has the same port.
    let (mut two, flows) = served(Two::new(2204), 2);
    two.world.set_beat(None);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.run_for(5 * SECOND);
    let heir = two.world.bare_host("heir");
    two.world.attach(heir, two.home, HOME);
    let moved = |two: &Two| two.world.verdict(flows[0], 1);
    assert!(matches!(moved(&two), Verdict::Rewrite { .. }));
    let heirs = two.world.connect_from(heir, 5353, NAMES, Transport::Udp);
    for _ in 0..3 {
        let before = two.world.flow(heirs).received;
        two.world.send(heirs, 0);
        two.world.run_for(SECOND);
        assert_eq!(moved(&two), Verdict::Native, "the heir is answered");
        assert_eq!(two.world.flow(heirs).received, [before[0] + 1, before[1] + 1]);
        // Late or not, who has left is answered where it is.
        let before = two.world.flow(flows[0]).received;
        two.world.send(flows[0], 0);
        two.world.run_for(SECOND);
        assert!(matches!(moved(&two), Verdict::Rewrite { .. }));
        assert_eq!(two.world.flow(flows[0]).received, [before[0] + 1, before[1] + 1]);
    }
    // P-104: whoever is there for so long is who the names are of. Both ends know.
    two.world.run_for(60 * SECOND);
    two.world.send(heirs, 0);
    two.world.run_for(5 * SECOND);
    assert_eq!([0, 1].map(|end| two.world.view(flows[0], end).and_then(|view| view.entry)), [None, None]);
    assert_eq!(two.world.verdict(flows[0], 1), Verdict::Native);
    // Other flows are as they were.
    assert!(matches!(two.world.verdict(flows[1], 1), Verdict::Rewrite { .. }));
    // What the server says of itself meanwhile goes to who was heard last.
    two.world.check_except(&[Kind::WrongSocket]);
}

#[test]
fn sockets_of_both_ends_need_not_be_connected() {
    // P-225
    for translated in [false, true] {
        let mut two = Two::nowhere(2208, Config::default(), Config::default());
        let (at, network) = if translated { (INSIDE, two.nat) } else { (HOME, two.home) };
        two.world.attach(two.client, network, at);
        (5353..5358).for_each(|port| two.world.bind(two.client, &format!("{at}:{port}")));
        let (mut two, flows) = served(two, 5);
        two.world.set_beat(Some(Duration::from_millis(200)));
        assert!(flows.iter().all(|flow| two.world.view(*flow, 0).is_some_and(|view| view.unconnected)));
        // What was said of them holds, and is not asked again.
        two.world.with_node(two.client, |node| node.await_verdicts(true));
        two.world.run_for(11 * MINUTE);
        assert!(two.world.wait(SECOND, |w| flows.iter().all(|flow| w.introduced(*flow))), "it is used");
        // Who has begun them is known to a daemon that is started anew.
        two.world.restart(two.client, Duration::from_millis(20));
        two.world.run_for(11 * MINUTE);
        assert!(two.world.wait(SECOND, |w| flows.iter().all(|flow| w.introduced(*flow))), "it is used still");
        two.world.move_to(two.client, two.away, AWAY);
        two.world.assert_delivering(SECOND);
        if !translated {
            two.world.move_to(two.server, two.further, FURTHER);
            two.world.assert_delivering(SECOND);
        }
        two.world.set_beat(None);
        two.world.run_for(11 * MINUTE);
        assert!(flows.iter().all(|flow| two.world.view(*flow, 0).is_none()), "nobody uses them");
        let left: Vec<_> = [two.client, two.server].map(|host| two.world.peers(host)).into_iter().flatten().collect();
        assert!(left.iter().all(|peer| peer.flows == 0));
        two.world.check_except(&[Kind::Reset]);
    }
}

#[test]
fn one_socket_for_very_many_remotes_costs_no_more_than_some() {
    // P-225
    let mut two = Two::new(2209);
    two.world.bind(two.server, NAMES);
    let client = two.client;
    let local = format!("{HOME}:5000").parse().expect("an endpoint");
    let before = entries(&two.world, client);
    let mut most = 0;
    for number in 0..50_000u32 {
        let remote = (std::net::Ipv4Addr::from(0xc633_0000 + number), 443).into();
        let flow = FlowTuple { transport: Transport::Udp, local, remote };
        let now = two.world.now();
        two.world.with_node(client, |node| node.handle_datagram_sent(now, flow));
        if number % 100 == 0 {
            two.world.run_for(Duration::from_millis(10));
            most = most.max(entries(&two.world, client));
        }
    }
    assert!(most < before + 8 * 1024, "{most}");
    // Another socket has its own.
    two.world.bind(client, &format!("{HOME}:5353"));
    let flow = two.world.connect_from(client, 5353, NAMES, Transport::Udp);
    introduced(&mut two.world, &[flow]);
    two.world.run_for(2 * MINUTE);
    assert!(entries(&two.world, client) < before + 600, "{}", entries(&two.world, client));
}

/// Somebody who speaks the protocol at an address of its own, towards a server with a socket that is not connected, and
/// with a client of that elsewhere.
struct Crowd {
    world: World,
    server: HostId,
    client: HostId,
    liar: Speaker,
}

impl Crowd {
    /// `inside`: what the liar is behind, and its neighbour.
    fn new(seed: u64, inside: Access) -> Self {
        let mut world = World::new(seed);
        let inside = world.network(inside);
        let far = world.network(Access::Open);
        let (server, client, at) = (world.host("server"), world.host("client"), world.bare_host("liar"));
        world.at_mut(at).collects = true;
        world.attach(server, far, "10.9.0.1");
        world.attach(at, inside, LIAR);
        world.bind(server, NAMES);
        let mut liar = Speaker::new(at, inside, address(LIAR), address("10.9.0.1"));
        liar.meet(&mut world);
        let index = liar.index();
        world.at_mut(at).listen(index);
        Self { world, server, client, liar }
    }

    fn from(from: &str, port: u16) -> FlowTuple {
        FlowTuple {
            transport: Transport::Udp,
            local: format!("{from}:{port}").parse().expect("an endpoint"),
            remote: NAMES.parse().expect("an endpoint"),
        }
    }

    /// The liar goes elsewhere with what it has, and says so.
    fn leave(&mut self) {
        let elsewhere = self.world.network(Access::Open);
        let liar = self.liar.host();
        self.world.detach(liar, LIAR);
        self.world.attach(liar, elsewhere, "10.2.0.7");
        let claimed = "10.2.0.7:2031".parse().expect("an endpoint");
        let (binding, sequence, flags, lifetime) = (BindingNumber::FIRST, 1, UpdateFlags::FORMER_PATH_LOST, 0);
        (self.liar.network, self.liar.address) = (elsewhere, address("10.2.0.7"));
        let update = Message::BindingUpdate { binding, sequence, flags, claimed, lifetime };
        self.liar.send(&mut self.world, claimed, &[update]);
        self.world.run_for(Duration::from_millis(50));
        for message in self.liar.hear(&mut self.world) {
            if let Message::PathChallenge { token } = message {
                let observed = self.liar.peer;
                self.liar.send(&mut self.world, claimed, &[Message::PathResponse { token, observed }]);
            }
        }
        self.world.run_for(SECOND);
    }

    /// How many of a peer's flows are led elsewhere, at the most.
    fn led(&self) -> Option<usize> {
        self.world.peers(self.server).iter().map(|peer| peer.moved).max()
    }

    /// The liar introduces what is so called. What it is told, where it is refused.
    fn introduce(&mut self, tuple: FlowTuple) -> Option<Result<(), IntroductionRefusal>> {
        let (nonce, own) = (u64::from(tuple.local.port()), self.liar.endpoint());
        self.liar.send(&mut self.world, own, &[Message::IntroductionRequest { tag: 1 }]);
        self.liar.inject(&mut self.world, tuple, None, nonce);
        self.world.run_for(Duration::from_millis(30));
        // What the server has put into the flow comes back.
        for responder_nonce in std::mem::take(&mut self.world.at_mut(self.liar.host()).consumed) {
            let (introducer_place, responder_place, wire_port) = (0, 0, 3);
            let introducer_nonce = nonce;
            let echo = Echo { introducer_nonce, responder_nonce, introducer_place, responder_place, wire_port, tuple };
            self.liar.send(&mut self.world, own, &[Message::IntroductionEcho(echo)]);
        }
        self.world.run_for(Duration::from_millis(30));
        self.liar.hear(&mut self.world).into_iter().find_map(|message| match message {
            Message::IntroductionDone { outcome, .. } => Some(outcome.map(|_| ())),
            _ => None,
        })
    }
}

const LIAR: &str = "192.168.1.3";

#[test]
fn one_address_has_so_many_flows_and_no_more_and_others_have_theirs() {
    // P-224
    let mut crowd = Crowd::new(2205, Access::Open);
    let home = crowd.world.network(Access::Open);
    crowd.world.attach(crowd.client, home, HOME);
    let told: Vec<_> = (1000..2500).map(|port| crowd.introduce(Crowd::from(LIAR, port))).collect();
    assert!(told[..256].iter().all(|told| *told == Some(Ok(()))), "{:?}", told[0]);
    assert!(told[256..].iter().all(|told| *told == Some(Err(IntroductionRefusal::Busy))), "{:?}", told[256]);
    let grown = entries(&crowd.world, crowd.server);
    // A hundred thousand of them, half of where it is, half of where it is not.
    for (address, ports) in [(LIAR, 2500..52_500), (HOME, 2500..52_500)] {
        for (number, port) in ports.enumerate() {
            crowd.liar.inject(&mut crowd.world, Crowd::from(address, port), None, number as u64 + 1);
            if number % 100 == 0 {
                crowd.world.run_for(Duration::from_millis(10));
                crowd.liar.hear(&mut crowd.world);
            }
        }
    }
    crowd.world.run_for(SECOND);
    let held = entries(&crowd.world, crowd.server);
    assert!(held <= grown + 64, "{held} entries, and {grown} before");
    let flow = crowd.world.connect_from(crowd.client, 5353, NAMES, Transport::Udp);
    introduced(&mut crowd.world, &[flow]);
    crowd.world.assert_delivering(SECOND);
    // Who is not heard any more has none after a while.
    crowd.world.run_for(16 * MINUTE);
    assert!(entries(&crowd.world, crowd.server) < grown / 4, "{}", entries(&crowd.world, crowd.server));
    assert!(crowd.world.introduced(flow));
}

/// A client comes to where the liar has all that an address may have: ten of its flows find room. Gives them.
fn room_is_made(crowd: &mut Crowd, inside: NetworkId) -> Vec<FlowId> {
    crowd.world.attach(crowd.client, inside, INSIDE);
    let ports = 5353..5363;
    let flows: Vec<FlowId> =
        ports.map(|port| crowd.world.connect_from(crowd.client, port, NAMES, Transport::Udp)).collect();
    introduced(&mut crowd.world, &flows);
    let mut has: Vec<usize> = crowd.world.peers(crowd.server).iter().map(|peer| peer.flows).collect();
    has.sort_unstable();
    assert_eq!(has, [10, 246]);
    flows
}

#[test]
fn whoever_has_most_at_an_address_makes_room_there() {
    // P-224: they are behind one NAT.
    let mut crowd = Crowd::new(2211, nat("10.100.0.1", NatPorts::Preserving));
    let inside = crowd.liar.network;
    let told: Vec<_> = (1000..1300).map(|port| crowd.introduce(Crowd::from(LIAR, port))).collect();
    assert_eq!(told.iter().filter(|told| **told == Some(Ok(()))).count(), 256);
    let flows = room_is_made(&mut crowd, inside);
    // Those are not taken back.
    let told: Vec<_> = (2000..2100).map(|port| crowd.introduce(Crowd::from(LIAR, port))).collect();
    assert!(told.iter().all(|told| *told == Some(Err(IntroductionRefusal::Busy))), "{:?}", told[0]);
    assert!(flows.iter().all(|flow| crowd.world.introduced(*flow)));
}

#[test]
fn flows_that_have_moved_away_from_an_address_do_not_fill_it_for_ever() {
    // P-224
    let mut crowd = Crowd::new(2213, nat("10.100.0.1", NatPorts::Preserving));
    let inside = crowd.liar.network;
    let told: Vec<_> = (1000..1256).map(|port| crowd.introduce(Crowd::from(LIAR, port))).collect();
    assert!(told.iter().all(|told| *told == Some(Ok(()))));
    crowd.leave();
    assert_eq!(crowd.led(), Some(256), "they are led there");
    room_is_made(&mut crowd, inside);
    crowd.world.check();
}

#[test]
fn names_of_addresses_where_a_peer_is_not_take_up_nothing() {
    // P-150, P-224: it says that it is at the address of a client.
    let mut crowd = Crowd::new(2206, Access::Open);
    let home = crowd.world.network(Access::Open);
    crowd.world.attach(crowd.client, home, HOME);
    let before = entries(&crowd.world, crowd.server);
    for port in 1000..1400 {
        assert_eq!(crowd.introduce(Crowd::from(HOME, port)), None);
    }
    assert!(entries(&crowd.world, crowd.server) <= before + 4);
    let flow = crowd.world.connect_from(crowd.client, 5353, NAMES, Transport::Udp);
    introduced(&mut crowd.world, &[flow]);
    crowd.world.assert_delivering(SECOND);
}

#[test]
fn a_neighbour_behind_the_same_nat_gets_nothing_by_guessing_names() {
    // P-13: it is at that address as well, and knows the port.
    let mut crowd = Crowd::new(2207, nat("10.100.0.1", NatPorts::Preserving));
    let (victim, inside) = (crowd.world.bare_host("victim"), crowd.liar.network);
    crowd.world.attach(victim, inside, INSIDE);
    let flow = crowd.world.connect_from(victim, 5353, NAMES, Transport::Udp);
    let told: Vec<_> = (5300..5400).map(|port| crowd.introduce(Crowd::from(LIAR, port))).collect();
    // It has what the NAT lets it have: another port in the place of the victim's.
    assert_eq!(told.iter().filter(|told| **told == Some(Ok(()))).count(), 100);
    assert!(crowd.world.view(flow, 1).is_none_or(|view| view.entry.is_none()), "the victim's is nobody's");
    crowd.leave();
    assert_eq!(crowd.led(), Some(100), "they are led there");
    for end in [0, 1, 0] {
        let since = crowd.world.now();
        crowd.world.send(flow, end);
        crowd.world.run_for(SECOND);
        let arrived = crowd.world.flow(flow).arrived;
        assert!(arrived.iter().all(|at| at.is_some_and(|at| at > since)), "with what answers it: {arrived:?}");
    }
    crowd.world.check();
}
