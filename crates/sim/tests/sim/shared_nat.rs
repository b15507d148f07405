//! Hosts that share a NAT with one that has connections of its own: nothing that one says takes what comes from the
//! other (P-135…P-138).

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_protocol::{Config, FlowEntry, PeerView};
use whimbrel_sim::{Access, Carried, FlowId, HostId, NatPorts, NetworkId, Speaker, World};
use whimbrel_wire::BindingNumber;
use whimbrel_wire::Transport;
use whimbrel_wire::message::{Message, UpdateFlags};

use crate::common::{AWAY, HOME, INSIDE, SECOND, SERVICE, Two, address, carried, introduced, nat, settle_as};

const NAT: &str = "10.100.0.1";
/// The port of the victim's connection, inside of the NAT and outside.
const VICTIMS: u16 = 45_000;

/// An attacker and a victim that runs nothing, behind one NAT, each with a connection to one service.
struct Neighbours {
    world: World,
    server: HostId,
    inside: NetworkId,
    attacker: Speaker,
    /// The attacker's, which it has introduced with the victim's outer port as its own wire port.
    bait: FlowId,
    victim: FlowId,
    sequence: u32,
}

impl Neighbours {
    /// `guarded`: whether the data plane looks for native sockets before it renames.
    fn new(seed: u64, transport: Transport, guarded: bool) -> Self {
        let mut world = World::new(seed);
        let inside = world.network(nat(NAT, NatPorts::Preserving));
        let far = world.network(Access::Open);
        let server = world.host_with("server", Config::default());
        world.attach(server, far, "10.9.0.1");
        world.at_mut(server).plane.guards.sockets = guarded;
        let attacker = world.bare_host("attacker");
        world.at_mut(attacker).collects = true;
        world.attach(attacker, inside, "192.168.1.3");
        let victim = world.bare_host("victim");
        world.attach(victim, inside, INSIDE);
        let mut attacker = Speaker::new(attacker, inside, address("192.168.1.3"), address("10.9.0.1"));
        attacker.meet(&mut world);
        let victim = world.connect_from(victim, VICTIMS, SERVICE, transport);
        let bait = world.connect_from(attacker.host(), 46_000, SERVICE, transport);
        attacker.introduce_as(&mut world, bait, (0, 0), VICTIMS);
        Self { world, server, inside, attacker, bait, victim, sequence: 0 }
    }

    /// The attacker says that it is at this endpoint, and answers the challenges of that.
    fn update(&mut self, flags: UpdateFlags, claimed: SocketAddr) {
        self.sequence += 1;
        let own = self.attacker.endpoint();
        let update = Message::BindingUpdate {
            binding: BindingNumber::FIRST,
            sequence: self.sequence,
            flags,
            claimed,
            lifetime: 0,
        };
        self.attacker.send(&mut self.world, own, &[update]);
        for _ in 0..4 {
            self.world.run_for(Duration::from_millis(50));
            for message in self.attacker.hear(&mut self.world) {
                if let Message::PathChallenge { token } = message {
                    let observed = self.attacker.peer;
                    self.attacker.send(&mut self.world, own, &[Message::PathResponse { token, observed }]);
                }
            }
        }
    }

    /// Nothing tells any more that the attacker was seen behind a NAT when it came.
    fn forget_sightings(&mut self) {
        self.world.run_for(Duration::from_secs(125));
    }

    fn view(&self) -> PeerView {
        let key = self.attacker.public_key();
        self.world.peers(self.server).into_iter().find(|peer| peer.key == key).expect("the attacker")
    }

    /// What the victim and the server send each other arrives, at their sockets.
    fn assert_untouched(&mut self) {
        for end in 0..2 {
            let since = self.world.now();
            self.world.send(self.victim, 1 - end);
            self.world.run_for(Duration::from_millis(200));
            let arrived = self.world.flow(self.victim).arrived[end];
            let view = self.view();
            assert!(arrived.is_some_and(|at| at > since), "the victim's end {end} starves; {view:?}");
        }
        self.world.check();
    }
}

/// With the guard of the data plane and without it.
fn each(seed: u64, run: impl Fn(&mut Neighbours)) {
    for transport in [Transport::Tcp, Transport::Udp] {
        for guarded in [true, false] {
            let mut neighbours = Neighbours::new(seed, transport, guarded);
            run(&mut neighbours);
            neighbours.assert_untouched();
        }
    }
}

#[test]
fn a_neighbour_that_says_again_and_again_that_it_is_uprooted_gets_nothing() {
    each(3100, |at| {
        let own = at.attacker.endpoint();
        for _ in 0..4 {
            at.update(UpdateFlags::UPROOTED, own);
            assert!(at.view().translated);
            at.assert_untouched();
            at.world.run_for(30 * SECOND);
        }
        // Nor by what an honest host says that has slept.
        for _ in 0..4 {
            at.update(UpdateFlags::FORMER_PATH_LOST, own);
            at.assert_untouched();
        }
    });
}

#[test]
fn a_neighbour_that_comes_and_goes_gets_nothing_of_what_it_left() {
    // What was in force before is accepted for a minute (P-22): never the NAT's address.
    each(3101, |at| {
        let own = at.attacker.endpoint();
        at.update(UpdateFlags::UPROOTED, own);
        let elsewhere = at.world.network(Access::Open);
        let host = at.attacker.host();
        for _ in 0..3 {
            at.world.attach(host, elsewhere, "10.66.0.7");
            (at.attacker.network, at.attacker.address) = (elsewhere, address("10.66.0.7"));
            let there = at.attacker.endpoint();
            at.update(UpdateFlags::NONE, there);
            at.assert_untouched();
            at.world.detach(host, "10.66.0.7");
            (at.attacker.network, at.attacker.address) = (at.inside, address("192.168.1.3"));
            let back = at.attacker.endpoint();
            at.update(UpdateFlags::UPROOTED, back);
            at.assert_untouched();
        }
    });
}

#[test]
fn a_neighbour_that_claims_the_address_of_the_nat_gets_nothing() {
    // P-16, P-138: nobody knows better, since the NAT has kept the control port and no neighbour runs anything.
    each(3102, |at| {
        let claimed = SocketAddr::new(address(NAT), 2031);
        at.forget_sightings();
        at.update(UpdateFlags::UPROOTED, claimed);
        assert!(!at.view().translated);
        assert!(at.world.at(at.server).plane.accepts_rewritten(address("10.9.0.1"), address(NAT)));
        at.assert_untouched();
        at.update(UpdateFlags::UPROOTED, claimed);
    });
}

#[test]
fn names_of_the_services_own_port_are_left_to_who_has_them() {
    // P-138 alone: as if the server called its end by the service's port, as one before this did.
    for transport in [Transport::Tcp, Transport::Udp] {
        let mut at = Neighbours::new(3109, transport, true);
        let bait = at.world.flow(at.bait).tuples[1];
        let entry = at.world.view(at.bait, 1).and_then(|view| view.entry).expect("an entry");
        at.forget_sightings();
        at.update(UpdateFlags::UPROOTED, SocketAddr::new(address(NAT), 2031));
        for guarded in [false, true] {
            let plane = &mut at.world.at_mut(at.server).plane;
            plane.guards.sockets = guarded;
            plane.install(bait, FlowEntry { wire_local_port: 80, ..entry });
            let victims = at.world.flow(at.victim).tuples[1];
            let (to, from) = (victims.local, victims.remote);
            let renamed = at.world.renamed(at.server, transport, from, to);
            assert_eq!(renamed, (!guarded).then_some(bait), "guarded {guarded}");
        }
        at.assert_untouched();
    }
}

#[test]
fn the_address_of_a_nat_whose_port_is_another_is_nobodys_own() {
    // The NAT has given port 2031 to another host before.
    let mut world = World::new(3103);
    let inside = world.network(nat(NAT, NatPorts::Random));
    let far = world.network(Access::Open);
    let server = world.host("server");
    world.attach(server, far, "10.9.0.1");
    world.at_mut(server).plane.guards.sockets = false;
    let host = world.bare_host("attacker");
    world.at_mut(host).collects = true;
    world.attach(host, inside, "192.168.1.3");
    let mut attacker = Speaker::new(host, inside, address("192.168.1.3"), address("10.9.0.1"));
    attacker.meet(&mut world);
    let bait = world.connect(host, SERVICE);
    attacker.introduce_as(&mut world, bait, (0, 0), VICTIMS);
    let own = attacker.endpoint();
    let claimed = SocketAddr::new(address(NAT), 2031);
    let update = Message::BindingUpdate {
        binding: BindingNumber::FIRST,
        sequence: 1,
        flags: UpdateFlags::UPROOTED,
        claimed,
        lifetime: 0,
    };
    attacker.send(&mut world, own, &[update]);
    world.run_for(SECOND);
    assert!(world.peers(server).iter().all(|peer| peer.translated && peer.sequences.1 == 1));
    assert!(!world.at(server).plane.accepts_rewritten(address("10.9.0.1"), address(NAT)));
    world.check();
}

#[test]
fn an_address_that_others_are_seen_behind_gives_nothing_to_who_claims_it() {
    // P-136
    let mut at = Neighbours::new(3104, Transport::Tcp, false);
    let (server, nat) = (address("10.9.0.1"), address(NAT));
    // An honest neighbour shows itself behind the NAT, and its connection with the server is kept.
    let honest = at.world.host("honest");
    at.world.attach(honest, at.inside, "192.168.1.4");
    let flow = at.world.connect(honest, SERVICE);
    introduced(&mut at.world, &[flow]);
    let claimed = SocketAddr::new(nat, 2031);
    at.update(UpdateFlags::UPROOTED, claimed);
    assert!(!at.world.at(at.server).plane.accepts_rewritten(server, nat));
    at.world.run_for(100 * SECOND);
    assert!(!at.world.at(at.server).plane.accepts_rewritten(server, nat));
    at.assert_untouched();
}

#[test]
fn a_stranger_who_only_says_that_it_is_somewhere_shares_nothing() {
    // P-136: whoever is off the path takes the carrier of no host.
    let (mut two, flows) = Two::flowing(3105, 1);
    let crowd = two.world.network(Access::Open);
    let thief = two.world.bare_host("stranger");
    two.world.at_mut(thief).collects = true;
    two.world.attach(thief, crowd, "10.66.0.1");
    let mut stranger = Speaker::new(thief, crowd, address("10.66.0.1"), address("10.9.0.1"));
    stranger.meet(&mut two.world);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    let there = SocketAddr::new(address(AWAY), 2031);
    for sequence in 1..20 {
        let update = Message::BindingUpdate {
            binding: BindingNumber::FIRST,
            sequence,
            flags: UpdateFlags::NONE,
            claimed: there,
            lifetime: 0,
        };
        stranger.send(&mut two.world, there, &[update]);
        stranger.send(&mut two.world, there, &[Message::IntroductionRequest { tag: sequence }]);
        two.world.run_for(SECOND);
    }
    assert_eq!(carried(&two.world, flows[0]), [Some(Carried::Rewritten); 2]);
    two.world.assert_delivering(SECOND);
    two.world.check_except(&[whimbrel_sim::Kind::Storm]);
}

#[test]
fn who_is_alone_at_an_address_again_has_its_packets_rewritten_again() {
    // P-136: somebody else was there a moment ago.
    let (mut two, flows) = Two::flowing(3106, 2);
    let other = two.world.host("other");
    two.world.attach(other, two.away, AWAY);
    let others = two.world.connect(other, SERVICE);
    introduced(&mut two.world, &[others]);
    two.world.move_to(other, two.further, crate::common::FURTHER);
    two.world.assert_delivering(SECOND);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(SECOND);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    two.world.run_for(240 * SECOND);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.check();
}

#[test]
fn an_honest_laptop_that_wakes_behind_the_same_nat_takes_nothing() {
    for guarded in [true, false] {
        let mut two = Two::nowhere(3107, Config::default(), Config::default());
        two.world.at_mut(two.server).plane.guards.sockets = guarded;
        two.world.attach(two.client, two.nat, INSIDE);
        let flows = two.flow(1);
        // A neighbour's connection comes from the port that the laptop has chosen to be called by.
        let named = two.world.view(flows[0], 0).and_then(|view| view.entry).expect("an entry").wire_local_port;
        let neighbour = two.world.bare_host("neighbour");
        two.world.attach(neighbour, two.nat, "192.168.1.9");
        let neighbours = two.world.connect_from(neighbour, named, SERVICE, Transport::Tcp);
        for _ in 0..3 {
            two.world.detach_all(two.client);
            two.world.run_for(5 * SECOND);
            two.world.attach(two.client, two.nat, INSIDE);
            two.world.assert_delivering(SECOND);
            settle_as(&mut two.world, &flows, Carried::Tunnelled);
            assert_eq!(carried(&two.world, neighbours), [Some(Carried::Native); 2]);
        }
        two.world.check();
    }
}

#[test]
fn two_hosts_with_fixed_ports_swap_addresses() {
    for guarded in [true, false] {
        let mut two = Two::nowhere(3108, Config::default(), Config::default());
        let other = two.world.host("other");
        two.world.attach(two.client, two.home, HOME);
        two.world.attach(other, two.away, AWAY);
        for host in [two.client, two.server, other] {
            two.world.at_mut(host).plane.guards.sockets = guarded;
        }
        let flows = [two.client, other].map(|host| two.world.connect_from(host, 5000, SERVICE, Transport::Tcp));
        two.world.set_beat(Some(Duration::from_millis(7)));
        introduced(&mut two.world, &flows);
        for round in 0..2 {
            two.world.detach_all(two.client);
            two.world.detach_all(other);
            let (clients, others) = if round == 0 { (AWAY, HOME) } else { (HOME, AWAY) };
            let (here, there) = if round == 0 { (two.away, two.home) } else { (two.home, two.away) };
            two.world.attach(two.client, here, clients);
            two.world.attach(other, there, others);
            two.world.assert_delivering(2 * SECOND);
            two.world.run_for(10 * SECOND);
            two.world.assert_delivering(SECOND);
        }
        two.world.check();
    }
}

/// P-136, while this host's own move is not acknowledged.
#[test]
fn who_does_not_acknowledge_keeps_no_pair_of_a_shared_address() {
    let mut at = Neighbours::new(3110, Transport::Tcp, true);
    let (before, nat) = (address("10.9.0.1"), address(NAT));
    at.forget_sightings();
    at.update(UpdateFlags::UPROOTED, SocketAddr::new(nat, 2031));
    assert!(at.world.at(at.server).plane.accepts_rewritten(before, nat));
    // The server moves while both its networks are there. The attacker says nothing.
    let other = at.world.network(Access::Open);
    at.world.attach(at.server, other, "10.8.0.1");
    at.world.hand_off(at.server, Some("10.8.0.1"));
    at.world.run_for(SECOND);
    let honest = at.world.host("honest");
    at.world.attach(honest, at.inside, "192.168.1.4");
    let flow = at.world.connect(honest, SERVICE);
    introduced(&mut at.world, &[flow]);
    assert!(!at.world.at(at.server).plane.accepts_rewritten(before, nat), "the NAT's address is shared");
}
