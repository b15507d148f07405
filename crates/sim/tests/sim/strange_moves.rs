//! What a stranger with one connection and keys made on the spot can have a host keep and say of moves.

use whimbrel_handshake::StaticKey;
use whimbrel_protocol::{Config, Event, MoveEvent, Moving};
use whimbrel_sim::{Access, HostId, NetworkId, Speaker, World};
use whimbrel_wire::message::{CloseReason, Message};
use whimbrel_wire::moving::{Record, Stretch, Ticket};

use crate::common::{SECOND, SERVICE, address};

/// As a daemon has it that is not configured: `moving` is always enabled there, and nobody's sockets are taken.
fn server(seed: u64) -> (World, HostId, HostId, NetworkId) {
    let mut world = World::new(seed);
    let [den, far] = std::array::from_fn(|_| world.network(Access::Open));
    let moving = Moving { enabled: true, ..Moving::default() };
    let server = world.host_with("server", Config { moving, ..Config::default() });
    world.attach(server, far, "10.9.0.1");
    let host = world.bare_host("stranger");
    world.at_mut(host).collects = true;
    world.attach(host, den, "10.66.0.1");
    (world, server, host, den)
}

fn speaker(world: &mut World, host: HostId, den: NetworkId, number: u8) -> Speaker {
    let key = StaticKey::from_bytes([number; 32]);
    let index = 10_000 * u32::from(number);
    let mut speaker = Speaker::with_key(host, den, address("10.66.0.1"), address("10.9.0.1"), key, index);
    speaker.meet(world);
    speaker
}

/// A connection of this key's own, and what it is called.
fn own_flow(world: &mut World, host: HostId, of: &mut Speaker) -> u64 {
    let flow = world.connect(host, SERVICE);
    assert!(of.try_to_introduce(world, flow, 0x77, 5000));
    *of.names().last().expect("a name")
}

/// One key gives the flow of this name to another, which presents the ticket. `false`: it was refused.
fn pass_on(world: &mut World, from: &mut Speaker, to: &mut Speaker, flow: u64, number: u64) -> bool {
    let ticket: Option<Ticket> = from.announce_move(world, flow, &to.public_key(), number);
    let Some(ticket) = ticket else { return false };
    to.present(world, ticket, 5000);
    from.attend(world);
    true
}

fn count(world: &World, is_it: impl Fn(&MoveEvent) -> bool) -> usize {
    world.events.iter().filter(|(.., event)| matches!(event, Event::Move(event) if is_it(event))).count()
}

#[test]
fn a_flow_that_is_moved_to_and_fro_costs_its_holder_no_more_each_time() {
    // P-78
    let (mut world, server, host, den) = server(1);
    let [mut one, mut other] = [1, 2].map(|number| speaker(&mut world, host, den, number));
    let flow = own_flow(&mut world, host, &mut one);
    for step in 0..200 {
        if !pass_on(&mut world, &mut one, &mut other, flow, step) {
            break;
        }
        std::mem::swap(&mut one, &mut other);
    }
    let saved: usize = world.at(server).saved_moves.held.values().map(|held| held.unsettled.len()).sum();
    assert!(saved <= 4, "{saved} donors are waited for, and written down with each move");
    let rebound = count(&world, |event| matches!(event, MoveEvent::Rebound { .. }));
    assert!((1..=4).contains(&rebound), "{rebound}");
    world.run_for(600 * SECOND);
    let entries = world.moving_entries(server);
    assert!(entries < 20, "{entries} ten minutes later");
}

#[test]
fn a_flow_whose_new_owner_goes_at_once_is_told_of_once_and_led_when_that_is_back() {
    let (mut world, server, host, den) = server(2);
    let mut keys: Vec<Speaker> = (1..=2).map(|number| speaker(&mut world, host, den, number)).collect();
    let flow = own_flow(&mut world, host, &mut keys[0]);
    let acceptor = keys[1].public_key();
    let ticket = keys[0].announce_move(&mut world, flow, &acceptor, 1).expect("a ticket");
    let mut bytes = Vec::new();
    Record::Present { ticket, wire_port: 5000 }.encode(&mut bytes);
    let stream = Message::Stream(Stretch { stream: 1 << 61, fresh: true, offset: 0, bytes });
    let source = keys[1].endpoint();
    keys[1].send(&mut world, source, &[stream, Message::Close { reason: CloseReason::Shutdown }]);
    // From here on the stranger says nothing at all.
    world.run_for(600 * SECOND);
    let failed = count(&world, |event| matches!(event, MoveEvent::OpFailed { .. }));
    assert_eq!(failed, 1, "{:?}", world.events);
    // When it is back nothing waits for the minute.
    let led = |world: &World| {
        let node = world.at(server).node.as_ref().expect("it runs");
        node.peers().any(|peer| peer.key == acceptor && peer.flows == 1)
    };
    assert!(!led(&world));
    keys[1].meet(&mut world);
    world.run_for(SECOND);
    assert!(led(&world));
}

#[test]
fn peers_that_had_a_flow_once_are_not_kept_beyond_those_that_may_be() {
    let (mut world, server, host, den) = server(5);
    let mut had = speaker(&mut world, host, den, 1);
    let flow = own_flow(&mut world, host, &mut had);
    let mut moved = 0;
    for number in 2..=120_u8 {
        let mut next = speaker(&mut world, host, den, number);
        if !pass_on(&mut world, &mut had, &mut next, flow, u64::from(number)) {
            break;
        }
        (had, moved) = (next, moved + 1);
    }
    assert!((1..=16).contains(&moved), "{moved}");
    world.run_for(3600 * SECOND);
    let kept = world.at(server).node.as_ref().map_or(0, |node| node.peers().count());
    assert!(kept < 10, "{kept} peers are kept an hour later");
}
