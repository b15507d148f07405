//! Hosts behind NATs.

use std::time::Duration;

use whimbrel_protocol::Config;
use whimbrel_sim::{Access, Carried, Filter, NatPorts, World};

use crate::common::{AWAY, HOME, INSIDE, SECOND, SERVICE, Two, introduced, nat, settle_as};

#[test]
fn into_a_nat() {
    // P-19
    for ports in [NatPorts::Preserving, NatPorts::Random] {
        let (mut two, flows) = Two::flowing(101, 3);
        let network = two.world.network(nat("10.100.0.9", ports));
        two.world.move_to(two.client, network, INSIDE);
        two.world.assert_delivering(SECOND);
        two.world.run_for(10 * SECOND);
        settle_as(&mut two.world, &flows, Carried::Tunnelled);
        two.world.check();
    }
}

#[test]
fn a_host_that_a_nat_forwards_everything_to_has_no_address_of_its_own() {
    // P-19: its hello says where it is, and who has asked at the NAT's address sees another.
    let mut world = World::new(106);
    let mut inside = nat("10.100.0.9", NatPorts::Preserving);
    if let Access::Translated(nat) = &mut inside {
        nat.exposed = INSIDE.parse().ok();
    }
    let [behind, home, away] = [inside, Access::Open, Access::Open].map(|access| world.network(access));
    let [client, server] = ["client", "server"].map(|name| world.host(name));
    world.attach(server, behind, INSIDE);
    world.attach(client, home, HOME);
    let flow = world.connect(client, "10.100.0.9:443");
    introduced(&mut world, &[flow]);
    world.move_to(client, away, AWAY);
    world.assert_delivering(SECOND);
    world.run_for(10 * SECOND);
    settle_as(&mut world, &[flow], Carried::Tunnelled);
    world.check();
}

#[test]
fn out_of_a_nat() {
    let (mut two, flows) = Two::flowing_inside(102, 3);
    two.world.move_to(two.client, two.home, HOME);
    two.world.assert_delivering(SECOND);
    two.world.run_for(2 * SECOND);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.check();
}

#[test]
fn from_a_nat_to_another() {
    let (mut two, flows) = Two::flowing_inside(103, 3);
    // The same subnet and the same address, elsewhere.
    two.world.move_to(two.client, two.second_nat, INSIDE);
    two.world.assert_delivering(SECOND);
    two.world.run_for(2 * SECOND);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    two.world.check();
}

#[test]
fn back_behind_the_nat_flows_stay_in_the_tunnel() {
    // P-25
    let (mut two, flows) = Two::flowing_inside(104, 3);
    two.world.move_to(two.client, two.home, HOME);
    two.world.assert_delivering(SECOND);
    two.world.run_for(2 * SECOND);
    if let Access::Translated(nat) = two.world.access(two.nat) {
        nat.reboot();
    }
    two.world.move_to(two.client, two.nat, INSIDE);
    two.world.assert_delivering(SECOND);
    two.world.run_for(2 * SECOND);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    two.world.check();
}

#[test]
fn native_and_moved_flows_side_by_side_behind_one_nat() {
    // The NAT's ports are few, so that one flow's outer port is another's inner one.
    for seed in 0..8 {
        let mut two = Two::nowhere(1000 + seed, Config::default(), Config::default());
        two.world.attach(two.client, two.home, HOME);
        let mut flows = two.flow(4);
        two.world.move_to(two.client, two.second_nat, INSIDE);
        two.world.assert_delivering(SECOND);
        for _ in 0..6 {
            flows.push(two.world.connect(two.client, SERVICE));
        }
        introduced(&mut two.world, &flows);
        two.world.assert_delivering(SECOND);
        two.world.move_to(two.client, two.away, AWAY);
        two.world.assert_delivering(SECOND);
        two.world.run_for(3 * SECOND);
        two.world.assert_delivering(SECOND);
        two.world.check();
    }
}

#[test]
fn the_nat_changes_its_mapping() {
    // P-26
    let (mut two, _) = Two::flowing(105, 2);
    two.world.move_to(two.client, two.second_nat, INSIDE);
    two.world.assert_delivering(SECOND);
    for _ in 0..4 {
        two.world.run_for(10 * SECOND);
        let before = two.world.peer(two.server).remote;
        if let Access::Translated(nat) = two.world.access(two.second_nat) {
            nat.rebind_udp();
        }
        two.world.run_for(SECOND);
        // What the client sends in the tunnel, or its keepalive, opens a new mapping.
        let found = two.world.wait(60 * SECOND, |w| w.peer(two.server).remote != before);
        assert!(found, "the server does not notice");
        two.world.assert_delivering(SECOND);
    }
    two.world.check();
}

#[test]
fn the_keepalive_holds_the_mapping() {
    // P-34
    let (mut two, _) = Two::flowing(106, 2);
    if let Access::Translated(nat) = two.world.access(two.second_nat) {
        nat.udp_expiry = Duration::from_secs(30);
    }
    two.world.move_to(two.client, two.second_nat, INSIDE);
    two.world.assert_delivering(SECOND);
    two.world.run_for(SECOND);
    two.world.set_beat(None);
    let before = two.world.peer(two.server).remote;
    two.world.run_for(600 * SECOND);
    assert_eq!(two.world.peer(two.server).remote, before);
    // From the server alone: nothing that the client sends helps.
    let flow = two.world.flows().next().expect("a flow");
    let since = two.world.now();
    two.world.send(flow, 1);
    two.world.run_for(SECOND);
    assert!(two.world.flow(flow).arrived[0].is_some_and(|at| at > since));
    two.world.check();
}

#[test]
fn two_mobiles_behind_one_nat() {
    for seed in 0..5 {
        let mut world = World::new(2000 + seed);
        let inside = world.network(nat("10.100.0.1", NatPorts::Random));
        let far = world.network(Access::Open);
        let [home, away] = std::array::from_fn(|_| world.network(Access::Open));
        let clients = ["one", "other"].map(|name| world.host(name));
        let server = world.host("server");
        world.attach(server, far, "10.9.0.1");
        world.attach(clients[0], inside, "192.168.1.2");
        world.attach(clients[1], inside, "192.168.1.3");
        let flows: Vec<_> = (0..8).map(|n| world.connect(clients[n % 2], SERVICE)).collect();
        world.set_beat(Some(Duration::from_millis(7)));
        introduced(&mut world, &flows);
        world.assert_delivering(SECOND);
        // One leaves, comes back, both leave to one network, one comes back.
        world.move_to(clients[0], home, "10.1.0.2");
        world.assert_delivering(SECOND);
        world.move_to(clients[0], inside, "192.168.1.2");
        world.assert_delivering(SECOND);
        let more: Vec<_> = (0..4).map(|n| world.connect(clients[n % 2], SERVICE)).collect();
        introduced(&mut world, &more);
        world.move_to(clients[0], away, "10.2.0.2");
        world.move_to(clients[1], away, "10.2.0.3");
        world.assert_delivering(SECOND);
        world.run_for(3 * SECOND);
        // They take each other's places.
        world.detach_all(clients[0]);
        world.detach_all(clients[1]);
        world.attach(clients[0], inside, "192.168.1.3");
        world.attach(clients[1], inside, "192.168.1.2");
        world.assert_delivering(SECOND);
        world.run_for(3 * SECOND);
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn both_ends_end_up_behind_nats() {
    // The server moves behind a NAT while the client is reachable: the mapping that its update opens is all there is.
    let (mut two, flows) = Two::flowing(107, 2);
    two.world.move_to(two.server, two.second_nat, INSIDE);
    two.world.assert_delivering(SECOND);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    two.world.set_beat(None);
    two.world.run_for(200 * SECOND);
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn a_firewall_before_the_server() {
    let (mut two, _) = Two::flowing(108, 2);
    let walled = two.world.network(Access::Filtered(Filter::strict()));
    two.world.move_to(two.server, walled, "10.5.0.1");
    two.world.assert_delivering(SECOND);
    two.world.set_beat(None);
    two.world.run_for(100 * SECOND);
    two.world.assert_delivering(SECOND);
    two.world.check();
}
