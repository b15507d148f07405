//! Connections that are moved soon after they were opened (P-200 to P-203).

use std::time::Duration;

use whimbrel_protocol::Event;
use whimbrel_sim::{FlowId, HostId, Link, World};
use whimbrel_wire::Transport;

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, SERVICE, Two, address, introduced, seeds};

/// The links' of both ends, there and back.
const ROUND_TRIP: Duration = Duration::from_millis(20);
const MILLISECOND: Duration = Duration::from_millis(1);

fn tell_of_opening(world: &mut World, client: HostId) {
    let now = world.now();
    world.with_node(client, |node| node.handle_flow_opening(now, address("10.9.0.1")));
}

/// A connection as the client has it once the server has answered.
fn connect(world: &mut World, client: HostId) -> FlowId {
    tell_of_opening(world, client);
    world.run_for(ROUND_TRIP);
    world.connect(client, SERVICE)
}

#[test]
fn a_connection_to_a_known_peer_is_introduced_as_it_begins() {
    // P-200
    for gap in [0, 1, 8, 20, 40, 300] {
        let (Two { mut world, client, .. }, _) = Two::flowing(1, 1);
        world.run_for(Duration::from_secs(gap));
        let flow = connect(&mut world, client);
        let opened = world.now();
        // The responder has it first: the introducer's word is its echo.
        assert!(world.wait(5 * SECOND, |w| w.view(flow, 1).is_some_and(|view| view.entry.is_some())));
        let there = world.now().since(opened);
        assert!(there <= ROUND_TRIP * 3 / 2 + MILLISECOND, "{there:?} after {gap} s");
        assert!(world.wait(5 * SECOND, |w| w.introduced(flow)));
        let here = world.now().since(opened);
        assert!(here <= ROUND_TRIP * 2 + MILLISECOND, "{here:?} after {gap} s");
        world.check();
    }
}

#[test]
fn the_first_connection_to_a_host_waits_for_no_clock() {
    // P-200
    let Two { mut world, client, .. } = Two::new(2);
    let flow = world.connect(client, SERVICE);
    let opened = world.now();
    assert!(world.wait(5 * SECOND, |w| w.introduced(flow)));
    let took = world.now().since(opened);
    assert!(took <= ROUND_TRIP * 6, "{took:?}");
    world.check();
}

#[test]
fn a_burst_of_connections_is_introduced_and_more_of_them_wait() {
    // P-200, P-15
    let (Two { mut world, client, .. }, _) = Two::flowing(3, 1);
    world.set_beat(None);
    (world.stirring, world.tracing) = (false, false);
    world.run_for(5 * SECOND);
    let flows: Vec<FlowId> = (0..1200).map(|_| world.connect(client, SERVICE)).collect();
    let count = |w: &World| flows.iter().filter(|flow| w.introduced(**flow)).count();
    world.run_for(Duration::from_millis(950));
    assert!((1000..=1030).contains(&count(&world)), "{} of 1200", count(&world));
    world.run_for(SECOND);
    assert_eq!(count(&world), 1200);
    world.check();
}

#[test]
fn of_many_short_connections_few_are_introduced() {
    // P-200
    let (Two { mut world, client, .. }, _) = Two::flowing(4, 1);
    world.set_beat(None);
    (world.stirring, world.tracing) = (false, false);
    world.run_for(5 * SECOND);
    world.allow_datagrams(4000);
    let before = world.sent();
    for _ in 0..400 {
        let flows: Vec<FlowId> = (0..20).map(|_| world.connect(client, SERVICE)).collect();
        world.run_for(MILLISECOND);
        flows.into_iter().for_each(|flow| world.close(flow));
    }
    // For each that has its turn a nonce and a refusal, since the other end is gone by then.
    let sent = world.sent() - before;
    assert!(sent < 2200, "{sent} datagrams and segments for 8,000 connections");
    world.check();
}

/// Opens a connection, has it grow this old, and one of its ends move. `end`: whose.
fn move_young(two: &mut Two, age: Duration, end: usize, to_nat: bool) -> FlowId {
    let Two { world, client, server, away, further, nat, .. } = two;
    let flow = connect(world, *client);
    world.run_for(age);
    match (end, to_nat) {
        (0, false) => world.move_to(*client, *away, AWAY),
        (0, true) => world.move_to(*client, *nat, INSIDE),
        _ => world.move_to(*server, *further, FURTHER),
    }
    flow
}

#[test]
fn a_connection_survives_once_both_nonces_have_travelled() {
    // P-202: at every millisecond of the exchange after that, whoever moves.
    for age in 0..60 {
        for (end, to_nat) in [(0, false), (0, true), (1, false)] {
            let (mut two, _) = Two::flowing(u64::from(age), 1);
            let age = ROUND_TRIP + Duration::from_micros(100) + MILLISECOND * age;
            let flow = move_young(&mut two, age, end, to_nat);
            introduced(&mut two.world, &[flow]);
            two.world.assert_delivering(SECOND);
            two.world.check();
        }
    }
}

#[test]
fn behind_a_nat_as_well() {
    // P-202
    for age in 0..60 {
        let (mut two, _) = Two::flowing_inside(u64::from(age), 1);
        let age = ROUND_TRIP + Duration::from_micros(100) + MILLISECOND * age;
        let flow = move_young(&mut two, age, 0, false);
        introduced(&mut two.world, &[flow]);
        two.world.assert_delivering(SECOND);
        two.world.check();
    }
}

#[test]
fn whatever_is_lost_meanwhile() {
    // P-202: of what follows the second nonce each datagram, or several in a row.
    for seed in seeds(12, 400) {
        for lost in 0..6 {
            let (mut two, _) = Two::flowing(seed, 1);
            let flow = connect(&mut two.world, two.client);
            two.world.run_for(ROUND_TRIP + Duration::from_micros(100));
            two.world.faults.lose = Some(two.world.sent() + lost);
            two.world.faults.lose_also = seed % 4;
            two.world.run_for(MILLISECOND * u32::try_from(seed % 40).expect("small"));
            if seed.is_multiple_of(2) {
                two.world.move_to(two.client, two.away, AWAY);
            } else {
                two.world.move_to(two.server, two.further, FURTHER);
            }
            introduced(&mut two.world, &[flow]);
            two.world.assert_delivering(2 * SECOND);
            two.world.check();
        }
    }
}

#[test]
fn moves_in_the_midst_of_an_exchange_leave_no_flow_half_introduced() {
    // P-14, P-202: before the nonces have travelled it may be lost, and is so at both ends.
    for seed in seeds(40, 2000) {
        let (mut two, _) = Two::flowing(seed, 1);
        two.world.set_links(Link { jitter: 4 * MILLISECOND, loss: 30, ..Link::default() });
        let flow = connect(&mut two.world, two.client);
        two.world.run_for(MILLISECOND * u32::try_from(seed * 7 % 60).expect("small"));
        let end = usize::from(!seed.is_multiple_of(3));
        match end {
            0 => two.world.move_to(two.client, two.away, AWAY),
            _ => two.world.move_to(two.server, two.further, FURTHER),
        }
        two.world.run_for(MILLISECOND * u32::try_from(seed * 13 % 90).expect("small"));
        match end {
            0 => two.world.move_to(two.client, two.nat, INSIDE),
            _ => two.world.move_to(two.server, two.away, AWAY),
        }
        two.world.set_links(Link::default());
        two.world.run_for(30 * SECOND);
        let entries = [0, 1].map(|end| two.world.view(flow, end).and_then(|view| view.entry));
        assert_eq!(entries[0].is_some(), entries[1].is_some(), "seed {seed}: {entries:?}");
        if entries[0].is_none() {
            two.world.close(flow);
        }
        two.world.assert_delivering(2 * SECOND);
        two.world.check();
    }
}

#[test]
fn what_is_being_connected_from_a_network_that_goes_after_the_hand_off_is_told() {
    // P-203, P-38
    let (Two { mut world, client, away, .. }, _) = Two::flowing(7, 1);
    world.attach(client, away, AWAY);
    world.run_for(5 * SECOND);
    let ended = |world: &World| world.at(client).ended_connecting.clone();
    let before = ended(&world);
    world.detach(client, HOME);
    world.run_for(MILLISECOND);
    assert_eq!(ended(&world)[before.len()..], [(address("10.9.0.1"), true)]);
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn what_is_being_connected_is_told_that_an_end_has_moved() {
    // P-203
    let (Two { mut world, client, server, away, further, .. }, _) = Two::flowing(6, 1);
    world.move_to(client, away, AWAY);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.at(client).ended_connecting, [(address("10.9.0.1"), true)]);
    world.run_for(SECOND);
    assert_eq!(world.at(server).ended_connecting, [], "whoever opens nothing to an address has not asked who is there");
    world.move_to(server, further, FURTHER);
    world.assert_delivering(SECOND);
    assert_eq!(world.at(client).ended_connecting.last(), Some(&(address("10.9.0.1"), false)));
    world.check();
}

#[test]
fn flows_that_come_while_the_peer_is_asked_to_look_for_them_do_not_have_it_asked_again() {
    // Each had, and six in one round trip were taken for as many questions without an answer: the session was dropped.
    let Two { mut world, client, .. } = Two::new(8);
    world.set_links(Link { delay: Duration::from_millis(50), ..Link::default() });
    let mut flows = Vec::new();
    for port in 2000..2040 {
        flows.push(world.connect_from(client, port, SERVICE, Transport::Udp));
        // The session is there after the second of these pauses, and the answer after three more.
        world.run_for(if port < 2004 { 90 * MILLISECOND } else { 3 * MILLISECOND });
    }
    world.set_beat(Some(Duration::from_millis(7)));
    introduced(&mut world, &flows);
    let reached =
        |(_, host, event): &&(_, HostId, Event)| *host == client && matches!(event, Event::PeerReached { .. });
    assert_eq!(world.events.iter().filter(reached).count(), 1, "sessions");
    world.assert_delivering(SECOND);
    world.check();
}
