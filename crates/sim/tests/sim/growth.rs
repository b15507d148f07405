//! Many flows; nothing is left behind.

use std::time::{Duration, Instant};

use whimbrel_handshake::StaticKey;
use whimbrel_protocol::Config;
use whimbrel_sim::{FlowId, Kind, Speaker};

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, SERVICE, Two, address, introduced};

/// What a host may still have when all is over: keys, addresses, listening.
const RESIDUE: usize = 3;

#[test]
fn nothing_is_left_when_all_flows_are_closed() {
    let mut two = Two::new(501);
    two.world.tracing = false;
    for round in 0..6 {
        let flows: Vec<FlowId> = (0..20).map(|_| two.world.connect(two.client, SERVICE)).collect();
        introduced(&mut two.world, &flows);
        let (network, at) =
            [(two.away, AWAY), (two.nat, INSIDE), (two.home, HOME), (two.second_nat, INSIDE)][round % 4];
        two.world.move_to(two.client, network, at);
        two.world.assert_delivering(2 * SECOND);
        if round == 3 {
            two.world.restart(two.client, SECOND);
            two.world.restart(two.server, 2 * SECOND);
            two.world.run_for(5 * SECOND);
        }
        for (number, flow) in flows.into_iter().enumerate() {
            // Half of them by one end first.
            if number % 2 == 0 {
                two.world.close_end(flow, number / 2 % 2);
                two.world.run_for(Duration::from_millis(300));
            }
            two.world.close(flow);
        }
        two.world.move_to(two.client, two.home, HOME);
    }
    two.world.run_for(2000 * SECOND);
    for host in [two.client, two.server] {
        let of = two.world.at(host);
        assert_eq!(of.plane.entries(), 0, "{}: {:?}", of.name, of.plane);
        let entries = of.node.as_ref().expect("a node").entries();
        assert!(entries <= RESIDUE, "{} has {entries} entries", of.name);
    }
    two.world.check();
}

#[test]
fn many_moves_leave_nothing_behind() {
    let (mut two, _) = Two::flowing(502, 2);
    two.world.set_beat(None);
    let mut most = 0;
    for round in 0..300 {
        let (network, at) = [
            (two.away, AWAY),
            (two.nat, INSIDE),
            (two.home, HOME),
            (two.second_nat, INSIDE),
            (two.further, FURTHER),
            (two.further, "2001:db8:3::9"),
        ][round % 6];
        two.world.move_to(two.client, network, at);
        two.world.run_for(Duration::from_millis(200));
        let entries = [two.client, two.server].map(|host| {
            let of = two.world.at(host);
            of.plane.entries() + of.node.as_ref().expect("a node").entries()
        });
        if round == 20 {
            most = entries.into_iter().max().unwrap_or_default();
        }
        assert!(round <= 20 || entries.iter().all(|now| *now <= most + 10), "{entries:?} after {round} moves, {most}");
    }
    two.world.move_to(two.client, two.home, HOME);
    two.world.assert_delivering(2 * SECOND);
    two.world.check();
}

#[test]
fn strangers_take_the_room_of_strangers() {
    /// Peers without flows that a host keeps.
    const KEPT: usize = 4096;
    const MORE: u32 = 200;
    let (mut two, _) = Two::flowing(503, 2);
    two.world.set_beat(None);
    two.world.tracing = false;
    let crowd = two.world.bare_host("crowd");
    two.world.at_mut(crowd).collects = true;
    let at = address("10.3.0.66");
    two.world.attach(crowd, two.further, "10.3.0.66");
    let server = address("10.9.0.1");
    let mut most = 0;
    for number in 0..KEPT as u32 + MORE {
        let mut secret = [0x29; 32];
        secret[..4].copy_from_slice(&number.to_be_bytes());
        let key = StaticKey::from_bytes(secret);
        let mut stranger = Speaker::with_key(crowd, two.further, at, server, key, 2 * number);
        assert!(stranger.try_to_meet(&mut two.world, Duration::from_millis(60)), "stranger {number}");
        let of = two.world.at(two.server);
        let node = of.node.as_ref().expect("a node");
        assert!(node.peers().count() <= KEPT + 1, "{} peers", node.peers().count());
        let entries = node.entries() + of.plane.entries();
        most = if number < KEPT as u32 { entries.max(most) } else { most };
        assert!(entries <= most + most / KEPT, "{entries} entries, {most} of {KEPT} strangers");
    }
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(2 * SECOND);
    two.world.check();
}

#[test]
fn ten_thousand_flows_move_by_one_binding() {
    const FLOWS: usize = 10_000;
    let started = Instant::now();
    let mut two = Two::with(503, Config::default(), Config::default());
    two.world.tracing = false;
    two.world.stirring = false;
    let flows: Vec<FlowId> = (0..FLOWS)
        .map(|number| {
            let to = ["10.9.0.1:80", "10.9.0.1:443"][number % 2];
            two.world.connect(two.client, to)
        })
        .collect();
    let opened = two.world.now();
    let last = *flows.last().expect("flows");
    let done = |w: &whimbrel_sim::World| w.at(two.client).plane.entries() > 2 * FLOWS && w.introduced(last);
    assert!(two.world.wait(60 * SECOND, done));
    two.world.run_for(SECOND);
    let took = two.world.now().since(opened);
    assert!(took < 10 * SECOND, "introducing took {took:?}, P-15 allows 2,000 a second");
    for end in [two.client, two.server] {
        assert_eq!(two.world.peer(end).flows, FLOWS);
    }
    let (datagrams, bindings) = (two.world.datagrams(), two.world.bindings_set);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.run_for(SECOND);
    let (datagrams, bindings) = (two.world.datagrams() - datagrams, two.world.bindings_set - bindings);
    assert!(datagrams <= 10 && bindings <= 8, "{datagrams} datagrams, {bindings} bindings");
    two.world.assert_delivering(SECOND);
    let real = started.elapsed();
    assert!(real < Duration::from_secs(90), "{real:?}");
    two.world.check_except(&[Kind::Storm]);
}
