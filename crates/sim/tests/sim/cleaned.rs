//! What led moved flows is removed at one end for good (P-227).

use std::time::Duration;

use whimbrel_protocol::{Config, Event, LastWords, Prefix};
use whimbrel_sim::{Carried, FlowId, HostId, Kind, World};
use whimbrel_wire::Transport;

use crate::common::*;

/// As long as `whimbrel clean` takes for it at the most.
const WITHIN: Duration = Duration::from_secs(2);
/// What a host sends in flows whose other end knows nothing of them any more.
const OVER: &[Kind] = &[Kind::Reset];
const ALL: LastWords = LastWords { heard: 1, awaited: 0, unreachable: 0 };

fn told_of(world: &World, host: HostId) -> Vec<usize> {
    let events = world.events.iter().filter(|(_, at, _)| *at == host);
    events
        .filter_map(|(.., event)| if let Event::PeerCleaned { flows, .. } = event { Some(*flows) } else { None })
        .collect()
}

/// Cleans a host whose daemon is stopped, and tells how long that took.
fn clean(world: &mut World, host: HostId) -> (LastWords, Duration) {
    world.crash(host);
    let began = world.now();
    let words = world.clean(host, WITHIN);
    (words, world.now().since(began))
}

/// The programs have heard that these are over.
fn close(two: &mut Two, flows: &[FlowId]) {
    flows.iter().for_each(|flow| two.world.close(*flow));
}

#[test]
fn the_other_end_ends_what_had_moved_and_nothing_else() {
    // Either end is cleaned, of two that meet in the open, and of which one has gone behind a NAT.
    for case in 0..4 {
        let (mut two, mut flows) = Two::flowing(2701 + case, 3);
        let (network, at, how) = match case & 2 {
            0 => (two.away, AWAY, Carried::Rewritten),
            _ => (two.nat, INSIDE, Carried::Tunnelled),
        };
        two.world.move_to(two.client, network, at);
        settle_as(&mut two.world, &flows, how);
        // At home there.
        let native = two.flow(2);
        let (cleaned, other) = if case & 1 == 0 { (two.client, two.server) } else { (two.server, two.client) };
        let (words, took) = clean(&mut two.world, cleaned);
        assert_eq!((words, told_of(&two.world, other)), (ALL, vec![3]), "case {case}");
        assert!(took < Duration::from_millis(200), "case {case}: it took {took:?}");
        flows.sort_unstable();
        assert_eq!(two.world.resets(other), flows, "case {case}");
        close(&mut two, &flows);
        two.world.assert_delivering(SECOND);
        assert!(native.iter().all(|flow| carried(&two.world, *flow) == [Some(Carried::Native); 2]));
        // All begins anew.
        two.world.boot(cleaned);
        let fresh = two.flow(1);
        two.world.move_to(two.client, two.further, FURTHER);
        settle_as(&mut two.world, &fresh, Carried::Rewritten);
        close(&mut two, &native);
        two.world.check_except(OVER);
    }
}

#[test]
fn a_single_peer_is_forgotten_at_both_ends_and_met_anew() {
    let (mut two, mut flows) = Two::flowing(2731, 3);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    let native = two.flow(2);
    let (now, id) = (two.world.now(), two.world.peer(two.client).id);
    two.world.with_node(two.client, |node| node.forget_peer(now, id));
    assert!(two.world.peers(two.client).is_empty());
    two.world.run_for(SECOND / 4);
    assert!(two.world.peers(two.server).is_empty(), "nothing keeps it");
    assert_eq!((told_of(&two.world, two.client), told_of(&two.world, two.server)), (vec![], vec![3]));
    flows.sort_unstable();
    assert_eq!([two.client, two.server].map(|end| two.world.resets(end)), [flows.clone(), flows.clone()]);
    close(&mut two, &flows);
    two.world.assert_delivering(SECOND);
    assert!(native.iter().all(|flow| carried(&two.world, *flow) == [Some(Carried::Native); 2]));
    let fresh = two.flow(1);
    two.world.move_to(two.client, two.further, FURTHER);
    settle_as(&mut two.world, &fresh, Carried::Rewritten);
    close(&mut two, &native);
    two.world.check_except(OVER);
}

#[test]
fn whatever_datagram_is_lost_the_other_end_hears_of_it() {
    for lost in 0..8 {
        let (mut two, flows) = Two::flowing(2705, 3);
        two.world.move_to(two.client, two.away, AWAY);
        settle_as(&mut two.world, &flows, Carried::Rewritten);
        two.world.crash(two.client);
        two.world.set_beat(None);
        two.world.run_for(SECOND);
        let next = two.world.sent;
        two.world.faults.lose = Some(next + lost);
        let words = two.world.clean(two.client, WITHIN);
        assert_eq!((words, told_of(&two.world, two.server)), (ALL, vec![3]), "datagram {lost}");
        assert_eq!(two.world.resets(two.server), flows);
    }
}

#[test]
fn whom_nothing_reaches_is_waited_for_so_long_and_no_longer() {
    let (mut two, flows) = Two::flowing(2711, 3);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.set_cut(two.far, true);
    let (words, took) = clean(&mut two.world, two.client);
    assert_eq!((words, took), (LastWords { heard: 0, awaited: 1, unreachable: 0 }, WITHIN));
    // Nor is anybody waited for that no way leads to.
    let (mut two, flows) = Two::flowing(2712, 3);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.crash(two.client);
    two.world.detach(two.client, AWAY);
    let began = two.world.now();
    let words = two.world.clean(two.client, WITHIN);
    assert_eq!((words, two.world.now()), (LastWords { heard: 0, awaited: 0, unreachable: 1 }, began));
}

#[test]
fn what_is_native_goes_on_and_is_introduced_anew() {
    // At home, and again at home; either end is cleaned, and its daemon is started again, or is not.
    for case in 0..8 {
        let (returned, starts) = (case & 1 == 1, case & 2 == 2);
        let (mut two, flows) = Two::flowing(2721, 3);
        if returned {
            two.world.move_to(two.client, two.away, AWAY);
            settle_as(&mut two.world, &flows, Carried::Rewritten);
            two.world.move_to(two.client, two.home, HOME);
            settle_as(&mut two.world, &flows, Carried::Native);
        }
        let (cleaned, other) = if case & 4 == 0 { (two.client, two.server) } else { (two.server, two.client) };
        let (words, took) = clean(&mut two.world, cleaned);
        assert!(words == ALL && took < Duration::from_millis(200), "case {case}: {words:?} after {took:?}");
        two.world.run_for(10 * SECOND);
        assert!(two.world.resets(other).is_empty() && told_of(&two.world, other).is_empty());
        two.world.assert_delivering(SECOND);
        if starts {
            two.world.boot(cleaned);
            // Whoever has opened them and found nobody there hears by another connection that there is somebody again.
            two.flow(1);
            introduced(&mut two.world, &flows);
            two.world.move_to(two.client, two.further, FURTHER);
            settle_as(&mut two.world, &flows, Carried::Rewritten);
        }
        two.world.check();
    }
}

#[test]
fn what_is_at_home_is_not_lost_wherever_this_host_was_last() {
    // It was suspended; had no network when its daemon died; had an update that was not answered; came back while its
    // daemon was not there. At home in the open, or, but for the last, behind a NAT.
    for case in 0..7 {
        let mut two = Two::new(2771);
        let (home, at) = if case < 4 { (two.home, HOME) } else { (two.nat, INSIDE) };
        if case >= 4 {
            two.world.move_to(two.client, two.nat, INSIDE);
        }
        let flows = two.flow(3);
        match case % 4 {
            0 => {
                two.world.part(two.client);
                two.world.run_for(5 * SECOND);
                two.world.crash(two.client);
            }
            1 => {
                two.world.detach_all(two.client);
                two.world.run_for(SECOND);
                two.world.crash(two.client);
                two.world.attach(two.client, home, at);
            }
            2 => {
                two.world.set_cut(two.away, true);
                two.world.move_to(two.client, two.away, AWAY);
                two.world.run_for(SECOND);
                two.world.crash(two.client);
                two.world.move_to(two.client, home, at);
            }
            _ => {
                two.world.move_to(two.client, two.away, AWAY);
                settle_as(&mut two.world, &flows, Carried::Rewritten);
                two.world.crash(two.client);
                two.world.move_to(two.client, home, at);
            }
        }
        let words = two.world.clean(two.client, WITHIN);
        assert_eq!(words, ALL, "case {case}");
        assert!(two.world.resets(two.server).is_empty(), "case {case}: {:?}", two.world.resets(two.server));
        assert!(told_of(&two.world, two.server).is_empty(), "case {case}");
        two.world.run_for(10 * SECOND);
        two.world.assert_delivering(SECOND);
        assert!(flows.iter().all(|flow| carried(&two.world, *flow) == [Some(Carried::Native); 2]), "case {case}");
        assert_eq!(two.world.peers(two.server)[0].away, None, "case {case}: nobody is waited for");
        two.world.boot(two.client);
        two.flow(1);
        introduced(&mut two.world, &flows);
        two.world.move_to(two.client, two.further, FURTHER);
        settle_as(&mut two.world, &flows, Carried::Rewritten);
        two.world.check();
    }
}

#[test]
fn of_one_that_was_suspended_away_from_home_what_had_moved_is_lost() {
    let (mut two, moved) = Two::flowing(2775, 2);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &moved, Carried::Rewritten);
    let native = two.flow(2);
    two.world.part(two.client);
    two.world.run_for(5 * SECOND);
    let (words, _) = clean(&mut two.world, two.client);
    assert_eq!((words, told_of(&two.world, two.server)), (ALL, vec![2]));
    assert_eq!(two.world.resets(two.server), moved);
    close(&mut two, &moved);
    two.world.run_for(10 * SECOND);
    two.world.assert_delivering(SECOND);
    assert!(native.iter().all(|flow| carried(&two.world, *flow) == [Some(Carried::Native); 2]));
    two.world.check_except(OVER);
}

#[test]
fn a_cable_that_is_out_while_it_is_cleaned_is_no_move() {
    for has in [true, false] {
        let (mut two, flows) = Two::flowing(2781, 3);
        two.world.crash(two.client);
        two.world.move_to(two.client, two.away, AWAY);
        let unusable = [address(HOME)];
        let words = two.world.clean_having(two.client, if has { &unusable } else { &[] }, WITHIN);
        assert_eq!((words, told_of(&two.world, two.server)), (ALL, if has { vec![] } else { vec![3] }));
        assert_eq!(two.world.resets(two.server), if has { vec![] } else { flows });
    }
}

#[test]
fn a_host_that_has_moved_without_its_daemon_tells_it_from_where_it_is() {
    let (mut two, flows) = Two::flowing(2731, 3);
    two.world.crash(two.client);
    two.world.move_to(two.client, two.away, AWAY);
    let words = two.world.clean(two.client, WITHIN);
    assert_eq!((words, told_of(&two.world, two.server)), (ALL, vec![3]));
    assert_eq!(two.world.resets(two.server), flows);
    // Nobody has followed it there.
    assert!(!two.world.events.iter().any(|(.., event)| matches!(event, Event::PeerMoved { .. })));
}

#[test]
fn who_moves_while_it_is_cleaned_is_told_and_not_led_anywhere() {
    for seed in seeds(4, 40) {
        let (mut two, flows) = Two::flowing(seed, 3);
        two.world.crash(two.server);
        two.world.move_to(two.client, two.away, AWAY);
        two.world.run_for(SECOND);
        let before = two.world.events.len();
        let words = two.world.clean(two.server, 20 * SECOND);
        assert_eq!(words, ALL, "seed {seed}");
        let moved = |(_, host, event): &(_, HostId, Event)| *host == two.client && matches!(event, Event::Moved { .. });
        assert!(!two.world.events.iter().skip(before).any(moved), "seed {seed}: told that they have moved");
        for flow in &flows {
            assert!(two.world.view(*flow, 0).is_some_and(|view| view.entry.is_none()), "seed {seed}: still protected");
        }
    }
}

#[test]
fn very_many_are_told_in_several_words() {
    let (mut two, flows) = Two::flowing(2741, 140);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    let (words, took) = clean(&mut two.world, two.client);
    assert_eq!((words, told_of(&two.world, two.server)), (ALL, vec![128, 12]));
    assert!(took < Duration::from_millis(200), "it took {took:?}");
    assert_eq!(two.world.resets(two.server).len(), flows.len());
}

#[test]
fn a_socket_of_udp_goes_on_under_its_own_names() {
    let (mut two, flows) = Two::flowing(2751, 1);
    let datagrams = two.world.connect_from(two.client, 5004, "10.9.0.1:53", Transport::Udp);
    introduced(&mut two.world, &[datagrams]);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &[flows[0], datagrams], Carried::Rewritten);
    let (words, _) = clean(&mut two.world, two.client);
    assert_eq!((words, told_of(&two.world, two.server)), (ALL, vec![1]));
    assert_eq!(two.world.resets(two.server), flows, "no segment ends a socket of UDP");
    let view = two.world.view(datagrams, 1).expect("it is shown");
    assert!(view.entry.is_none(), "{view:?}");
}

#[test]
fn what_a_gateway_leads_lives_on_with_its_memory() {
    // P-123
    let prefix = Prefix { address: address("10.9.0.0"), length: 25 };
    let router = Config { behind: vec![prefix], life: 7, memory: 70, ..Config::default() };
    let mut two = Two::with(2761, Config { life: 8, ..Config::default() }, router);
    two.world.attach(two.server, two.far, "10.9.0.200");
    let flows = two.flow(2);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    let (words, took) = clean(&mut two.world, two.server);
    assert_eq!((words, took), (LastWords::default(), Duration::ZERO));
    assert!(two.world.resets(two.client).is_empty());
}

#[test]
fn a_host_behind_a_gateway_hears_of_nothing_and_nobody_else_is_sent_what_it_says() {
    let prefix = Prefix { address: address("10.9.0.0"), length: 25 };
    let router = Config { behind: vec![prefix], life: 7, memory: 70, ..Config::default() };
    let mut two = Two::with(2791, Config { life: 8, ..Config::default() }, router);
    two.world.attach(two.server, two.far, "10.9.0.200");
    let flows = two.flow(2);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    let (words, _) = clean(&mut two.world, two.client);
    assert_eq!((words, told_of(&two.world, two.server)), (ALL, vec![]));
    // As long as what is over is led, and no longer.
    two.world.run_for(50 * SECOND);
    let led = |two: &Two| flows.iter().filter(|flow| two.world.view(**flow, 1).is_some()).count();
    let carried_there = |two: &Two| -> Vec<_> { flows.iter().map(|flow| carried(&two.world, *flow)[1]).collect() };
    assert_eq!(carried_there(&two), [Some(Carried::Tunnelled); 2], "{}", led(&two));
    two.world.run_for(15 * SECOND);
    assert_eq!(led(&two), 0);
}
