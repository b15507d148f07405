//! Networks that let no UDP through, and peers that are reached over TCP there (decision 0110).

use std::time::Duration;

use whimbrel_protocol::{Config, Event, STAND_IN_PORTS};
use whimbrel_sim::{Carried, FlowId, HostId, World};

use crate::common::{AWAY, FURTHER, HOME, SECOND, Two, address, settle_as};

const PORT: u16 = 443;

/// A server that takes connections of TCP, and some flows to it.
fn flowing(seed: u64, flows: usize) -> (Two, Vec<FlowId>) {
    let mut two = Two::with(seed, Config::default(), Config { tcp_port: PORT, ..Config::default() });
    let flows = two.flow(flows);
    (two, flows)
}

fn is_by_tcp(world: &World, of: HostId) -> bool {
    world.peer(of).by_tcp
}

/// What a host was told of how its flows go: over TCP, or by UDP again.
fn told(world: &World, of: HostId) -> Vec<bool> {
    let told = world.events.iter().filter(|(_, host, _)| *host == of).filter_map(|(.., event)| match event {
        Event::Transport { by_tcp, .. } => Some(*by_tcp),
        _ => None,
    });
    told.collect()
}

/// Whether anything names an endpoint to anybody that only its own host knows.
fn nothing_is_told_of_stand_ins(world: &World, of: HostId) {
    for saved in world.saved(of) {
        assert!(!STAND_IN_PORTS.contains(&saved.remote.port()), "{saved:?}");
    }
}

#[test]
fn a_network_without_udp_is_crossed_over_tcp_and_udp_is_gone_back_to() {
    for seed in 2501..2506 {
        let (Two { mut world, client, server, away, home, .. }, flows) = flowing(seed, 3);
        world.set_udp(away, false);
        world.move_to(client, away, AWAY);
        world.run_for(Duration::from_millis(1900));
        assert_eq!((world.connected(), is_by_tcp(&world, client)), (0, false), "UDP is waited for first");
        assert!(world.wait(3 * SECOND, |world| is_by_tcp(world, client) && is_by_tcp(world, server)), "seed {seed}");
        world.assert_delivering(2 * SECOND);
        settle_as(&mut world, &flows, Carried::Tunnelled);
        assert_eq!((told(&world, client), told(&world, server)), (vec![true], vec![true]));
        assert!(world.peer(client).doubt.is_none() && world.peer(server).doubt.is_none());
        nothing_is_told_of_stand_ins(&world, client);
        nothing_is_told_of_stand_ins(&world, server);
        // Whatever renews, asks and keeps mappings goes by it too, and nothing is rewritten.
        world.run_for(200 * SECOND);
        world.assert_delivering(2 * SECOND);
        settle_as(&mut world, &flows, Carried::Tunnelled);
        assert_eq!((world.connected(), told(&world, client).len()), (1, 1));
        // The network lets UDP through after all.
        world.set_udp(away, true);
        assert!(world.wait(15 * SECOND, |world| !is_by_tcp(world, client) && !is_by_tcp(world, server)));
        world.assert_delivering(2 * SECOND);
        assert_eq!((told(&world, client), told(&world, server)), (vec![true, false], vec![true, false]));
        settle_as(&mut world, &flows, Carried::Rewritten);
        assert!(world.wait(10 * SECOND, |world| world.connected() == 0), "it is closed");
        world.move_to(client, home, HOME);
        settle_as(&mut world, &flows, Carried::Native);
        world.check();
    }
}

#[test]
fn a_network_with_udp_is_gone_back_to_at_once() {
    let (Two { mut world, client, server, away, further, home, .. }, flows) = flowing(2511, 3);
    world.set_udp(away, false);
    world.move_to(client, away, AWAY);
    assert!(world.wait(5 * SECOND, |world| is_by_tcp(world, server)));
    world.assert_delivering(2 * SECOND);
    world.move_to(client, further, FURTHER);
    assert!(world.wait(SECOND, |world| !is_by_tcp(world, client) && !is_by_tcp(world, server)));
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.set_udp(further, false);
    world.move_to(client, home, HOME);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Native);
    assert!(world.wait(10 * SECOND, |world| world.connected() == 0));
    world.check();
}

#[test]
fn a_peer_that_takes_no_connections_is_left_as_before() {
    let (Two { mut world, client, away, home, .. }, _) = Two::flowing(2521, 3);
    world.set_udp(away, false);
    world.move_to(client, away, AWAY);
    world.run_for(60 * SECOND);
    assert_eq!((world.connected(), told(&world, client).len()), (0, 0));
    assert!(world.peer(client).doubt.is_some());
    world.move_to(client, home, HOME);
    world.assert_delivering(3 * SECOND);
    world.check();
}

#[test]
fn where_udp_passes_nothing_is_connected() {
    let (Two { mut world, client, away, further, home, .. }, _) = flowing(2531, 3);
    for (network, at) in [(away, AWAY), (further, FURTHER), (home, HOME)] {
        world.move_to(client, network, at);
        world.run_for(30 * SECOND);
        world.assert_delivering(SECOND);
    }
    assert_eq!((world.connected(), told(&world, client).len()), (0, 0));
    world.check();
}

#[test]
fn either_daemon_may_be_started_anew_meanwhile() {
    let cases = [(2541, 0, 1), (2542, 1, 1), (2543, 0, 10), (2544, 1, 10)];
    for (seed, again, seconds) in cases {
        let (Two { mut world, client, server, away, home, .. }, flows) = flowing(seed, 3);
        world.set_udp(away, false);
        world.move_to(client, away, AWAY);
        assert!(world.wait(5 * SECOND, |world| is_by_tcp(world, server)));
        world.assert_delivering(2 * SECOND);
        world.restart([client, server][again], SECOND * seconds);
        world.run_for(SECOND * (30 + seconds));
        assert!(is_by_tcp(&world, client) && is_by_tcp(&world, server), "seed {seed}");
        world.assert_delivering(2 * SECOND);
        world.move_to(client, home, HOME);
        world.assert_delivering(3 * SECOND);
        settle_as(&mut world, &flows, Carried::Native);
        world.check();
    }
}

#[test]
fn udp_that_stops_passing_where_a_host_stays_is_done_without() {
    let (Two { mut world, client, server, away, .. }, flows) = flowing(2551, 3);
    // Moved flows go by the tunnel there: what is rewritten does not pass.
    world.strips_options = true;
    world.move_to(client, away, AWAY);
    world.run_for(3 * SECOND);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Tunnelled);
    world.set_udp(away, false);
    assert!(world.wait(60 * SECOND, |world| is_by_tcp(world, client) && is_by_tcp(world, server)));
    world.assert_delivering(2 * SECOND);
    world.check();
}

#[test]
fn who_cannot_be_reached_by_either_is_asked_less_and_less() {
    let (Two { mut world, client, server, away, home, .. }, _) = flowing(2561, 3);
    world.set_cut(away, true);
    world.move_to(client, away, AWAY);
    world.run_for(300 * SECOND);
    assert!(told(&world, client).is_empty() && !is_by_tcp(&world, server));
    world.set_cut(away, false);
    world.set_udp(away, false);
    assert!(world.wait(65 * SECOND, |world| is_by_tcp(world, client)));
    world.assert_delivering(3 * SECOND);
    world.move_to(client, home, HOME);
    world.assert_delivering(3 * SECOND);
    world.check();
}

#[test]
fn who_was_away_is_found_again_within_half_as_long_again() {
    for (again, seconds) in [1, 2, 5, 8, 12, 20, 40].into_iter().flat_map(|seconds| [(0, seconds), (1, seconds)]) {
        let (Two { mut world, client, server, away, .. }, _) = flowing(2571 + seconds, 3);
        let down = SECOND * seconds as u32;
        world.set_udp(away, false);
        world.move_to(client, away, AWAY);
        assert!(world.wait(5 * SECOND, |world| is_by_tcp(world, server)));
        world.assert_delivering(2 * SECOND);
        world.restart([client, server][again], down);
        world.run_for(down + Duration::from_millis(1));
        let found = world.wait(SECOND + down / 2, |world| is_by_tcp(world, client) && is_by_tcp(world, server));
        assert!(found, "host {again}, away for {seconds} s");
        world.assert_delivering(2 * SECOND);
        world.check();
    }
}

#[test]
fn udp_that_passes_for_moments_is_gone_back_to_less_and_less() {
    let (Two { mut world, client, server, away, further, .. }, _) = flowing(2601, 3);
    // Moved flows go by the tunnel there: what is rewritten does not pass.
    world.strips_options = true;
    world.set_udp(away, false);
    world.move_to(client, away, AWAY);
    assert!(world.wait(5 * SECOND, |world| is_by_tcp(world, server)));
    let mut waited = Vec::new();
    for _ in 0..5 {
        let since = world.now();
        world.set_udp(away, true);
        assert!(world.wait(200 * SECOND, |world| !is_by_tcp(world, client) && !is_by_tcp(world, server)));
        waited.push(world.now().since(since).as_secs());
        world.run_for(SECOND);
        world.set_udp(away, false);
        assert!(world.wait(60 * SECOND, |world| is_by_tcp(world, client) && is_by_tcp(world, server)));
        world.assert_delivering(2 * SECOND);
    }
    assert!(waited[0] <= 10 && waited.iter().sum::<u64>() > 100, "{waited:?}");
    // Elsewhere nothing is known of that.
    world.set_udp(further, false);
    world.move_to(client, further, FURTHER);
    assert!(world.wait(5 * SECOND, |world| is_by_tcp(world, server)));
    world.set_udp(further, true);
    assert!(world.wait(11 * SECOND, |world| !is_by_tcp(world, client) && !is_by_tcp(world, server)));
    world.check();
}

#[test]
fn a_connection_leaves_by_the_network_that_was_chosen() {
    let server = Config { tcp_port: PORT, ..Config::default() };
    let mut two = Two::nowhere(2611, Config::default(), server);
    two.world.attach(two.client, two.away, AWAY);
    two.world.attach(two.client, two.home, HOME);
    two.flow(2);
    let Two { mut world, client, server, away, .. } = two;
    assert_eq!(world.peer(client).source, Some(address(HOME)), "the routes lead there");
    world.hand_off(client, Some(AWAY));
    world.assert_delivering(2 * SECOND);
    assert_eq!(world.peer(client).source, Some(address(AWAY)));
    world.strips_options = true;
    world.set_udp(away, false);
    assert!(world.wait(60 * SECOND, |world| is_by_tcp(world, client) && is_by_tcp(world, server)));
    world.check();
}
