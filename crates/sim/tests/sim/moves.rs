//! Hosts move between public addresses; connections stay.

use std::time::Duration;

use whimbrel_protocol::{Carriers, Config};
use whimbrel_sim::{Access, Carried, Filter, FlowId, Kind, Link, Verdict, World};
use whimbrel_wire::Transport;

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, SERVICE, Two, introduced, settle_as};

#[test]
fn a_move_between_public_addresses_goes_over_to_rewriting() {
    // P-19, P-20
    let (Two { mut world, client, away, .. }, flows) = Two::flowing(1, 3);
    world.move_to(client, away, AWAY);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.check();
}

#[test]
fn no_probe_is_answered_before_what_comes_rewritten_would_be_taken() {
    // P-20: the kernel of the end that stays, or of the one that moves, takes longer than a round trip.
    for slow in [true, false] {
        let (Two { mut world, client, server, away, .. }, flows) = Two::flowing(2, 3);
        world.at_mut(if slow { server } else { client }).op_takes = Duration::from_millis(60);
        world.move_to(client, away, AWAY);
        world.assert_delivering(SECOND);
        settle_as(&mut world, &flows, Carried::Rewritten);
        world.check();
    }
}

#[test]
fn the_first_byte_flows_after_one_round_trip() {
    // P-21
    let (Two { mut world, client, away, .. }, flows) = Two::flowing(2, 1);
    world.move_to(client, away, AWAY);
    let moved = world.now();
    let back = |w: &whimbrel_sim::World| w.flow(flows[0]).arrived[0].is_some_and(|at| at > moved);
    assert!(world.wait(SECOND, back));
    let took = world.now().since(moved);
    assert!(took <= Duration::from_millis(21), "{took:?} at a round trip of 20 ms");
    world.check();
}

#[test]
fn without_the_tunnel_rewriting_does_it_all() {
    let config = || Config { carriers: Carriers { rewrite: true, tunnel: false }, ..Config::default() };
    let mut two = Two::with(3, config(), config());
    let flows = two.flow(2);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(2 * SECOND);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.check();
}

#[test]
fn without_rewriting_the_tunnel_does_it_all() {
    for both in [true, false] {
        let config = Config { carriers: Carriers { rewrite: false, tunnel: true }, ..Config::default() };
        let mut two = Two::with(4, if both { config.clone() } else { Config::default() }, config);
        let flows = two.flow(2);
        two.world.move_to(two.client, two.away, AWAY);
        two.world.assert_delivering(SECOND);
        two.world.run_for(40 * SECOND);
        settle_as(&mut two.world, &flows, Carried::Tunnelled);
        two.world.check();
    }
}

#[test]
fn back_home_flows_are_native_again() {
    // P-25
    let (Two { mut world, client, home, away, .. }, flows) = Two::flowing(5, 2);
    world.move_to(client, away, AWAY);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.move_to(client, home, HOME);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Native);
    world.check();
}

#[test]
fn flows_of_several_homes() {
    let (Two { mut world, client, home, away, further, .. }, mut flows) = Two::flowing(6, 2);
    for (network, address) in [(away, AWAY), (further, FURTHER), (home, HOME), (away, AWAY), (further, FURTHER)] {
        world.move_to(client, network, address);
        world.assert_delivering(SECOND);
        flows.push(world.connect(client, "10.9.0.1:80"));
        introduced(&mut world, &flows);
    }
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn a_place_that_was_never_announced_is_not_taken_for_another() {
    // P-32: Nothing flows when the client moves; what is opened there is not at home where the client was first met.
    let (Two { mut world, client, home, away, .. }, flows) = Two::flowing(7, 1);
    world.close(flows[0]);
    world.run_for(90 * SECOND);
    world.move_to(client, away, AWAY);
    world.run_for(SECOND);
    let flow = world.connect(client, "10.9.0.1:80");
    introduced(&mut world, &[flow]);
    world.assert_delivering(SECOND);
    world.move_to(client, home, HOME);
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn ten_quick_moves() {
    for pause in [1, 5, 9, 10, 11, 15, 20, 25, 30, 60, 200] {
        let (Two { mut world, client, home, away, further, .. }, _) = Two::flowing(8, 3);
        for step in 0..10 {
            let (network, address) = [(away, AWAY), (further, FURTHER), (home, HOME)][step % 3];
            world.move_to(client, network, address);
            world.run_for(Duration::from_millis(pause));
        }
        world.assert_delivering(2 * SECOND);
        world.run_for(3 * SECOND);
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn the_server_moves() {
    let (Two { mut world, client, server, home, away, far, further, .. }, flows) = Two::flowing(9, 3);
    world.move_to(server, further, FURTHER);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.move_to(client, away, AWAY);
    world.assert_delivering(SECOND);
    world.move_to(server, far, "10.9.0.1");
    world.assert_delivering(SECOND);
    world.move_to(client, home, HOME);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Native);
    world.check();
}

#[test]
fn both_move_at_once_and_one_kept_its_old_address() {
    let (Two { mut world, client, server, away, further, .. }, _) = Two::flowing(10, 2);
    world.attach(server, further, FURTHER);
    world.move_to(client, away, AWAY);
    world.assert_delivering(3 * SECOND);
    world.detach(server, "10.9.0.1");
    world.assert_delivering(3 * SECOND);
    world.check();
}

#[test]
fn make_before_break() {
    let (Two { mut world, client, home, away, .. }, flows) = Two::flowing(11, 2);
    for _ in 0..3 {
        world.attach(client, away, AWAY);
        world.run_for(SECOND);
        world.assert_delivering(SECOND);
        world.detach(client, HOME);
        world.run_for(SECOND);
        world.assert_delivering(SECOND);
        world.attach(client, home, HOME);
        world.run_for(SECOND);
        world.assert_delivering(SECOND);
        world.detach(client, AWAY);
        world.assert_delivering(SECOND);
        settle_as(&mut world, &flows, Carried::Native);
    }
    world.check();
}

#[test]
fn an_outage_between_two_networks() {
    for outage in [1, 30, 300, 4000] {
        let (Two { mut world, client, away, .. }, _) = Two::flowing(12, 2);
        world.detach_all(client);
        world.set_beat(None);
        world.run_for(outage * SECOND);
        world.move_to(client, away, AWAY);
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn the_same_place_after_an_outage() {
    let (Two { mut world, client, home, .. }, flows) = Two::flowing(13, 2);
    world.detach_all(client);
    world.run_for(5 * SECOND);
    world.attach(client, home, HOME);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Native);
    world.check();
}

#[test]
fn a_change_of_family() {
    let (Two { mut world, client, server, home, away, far, .. }, flows) = Two::flowing(14, 2);
    // The server's second address must be known before the move.
    world.attach(server, far, "2001:db8:9::1");
    world.run_for(SECOND);
    world.move_to(client, away, "2001:db8:2::2");
    world.assert_delivering(2 * SECOND);
    settle_as(&mut world, &flows, Carried::Tunnelled);
    world.move_to(client, home, HOME);
    world.assert_delivering(2 * SECOND);
    settle_as(&mut world, &flows, Carried::Native);
    world.check();
}

#[test]
fn a_second_address_of_the_server_is_known_from_the_start() {
    for lossy in [false, true] {
        let mut two = Two::new(25);
        two.world.attach(two.server, two.far, "2001:db8:9::1");
        if lossy {
            two.world.set_links(Link { loss: 100, ..Link::default() });
        }
        two.flow(1);
        two.world.run_for(10 * SECOND);
        two.world.set_links(Link::default());
        two.world.move_to(two.client, two.away, "2001:db8:2::2");
        two.world.assert_delivering(3 * SECOND);
        two.world.check();
    }
}

#[test]
fn a_new_address_of_the_server_is_known_when_the_client_moves() {
    let (Two { mut world, client, server, away, further, far, .. }, _) = Two::flowing(15, 1);
    world.attach(server, far, "2001:db8:9::1");
    world.attach(server, further, FURTHER);
    world.run_for(5 * SECOND);
    world.assert_delivering(SECOND);
    world.move_to(client, away, "2001:db8:2::2");
    world.assert_delivering(3 * SECOND);
    world.check();
}

#[test]
fn into_a_network_whose_firewall_drops_tcp_in_mid_stream() {
    for strict in [true, false] {
        let (mut two, flows) = Two::flowing(16, 2);
        let filter = if strict { Filter::strict() } else { Filter::new() };
        let walled = two.world.network(Access::Filtered(filter));
        two.world.move_to(two.client, walled, "10.4.0.2");
        two.world.assert_delivering(SECOND);
        two.world.run_for(5 * SECOND);
        settle_as(&mut two.world, &flows, if strict { Carried::Tunnelled } else { Carried::Rewritten });
        two.world.move_to(two.client, two.away, AWAY);
        two.world.assert_delivering(SECOND);
        two.world.check();
    }
}

#[test]
fn probes_that_have_failed_begin_anew_when_the_network_changes() {
    // P-20
    let (mut two, flows) = Two::flowing(18, 2);
    let walled = two.world.network(Access::Filtered(Filter::strict()));
    two.world.move_to(two.client, walled, "10.4.0.2");
    two.world.run_for(2 * SECOND);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    // Another router, by which they pass. There is much to be told of it, which puts nothing off.
    *two.world.access(walled) = Access::Open;
    for _ in 0..20 {
        two.world.notify(two.client);
        two.world.run_for(SECOND / 4);
    }
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.check();
}

#[test]
fn the_server_moves_behind_a_firewall() {
    // P-24
    let (mut two, _) = Two::flowing(17, 2);
    let walled = two.world.network(Access::Filtered(Filter::new()));
    two.world.move_to(two.server, walled, "10.4.0.2");
    two.world.assert_delivering(SECOND);
    // The client must stay: what it sent from elsewhere would not pass.
    two.world.set_beat(None);
    two.world.run_for(1000 * SECOND);
    two.world.assert_delivering(SECOND);
    two.world.move_to(two.server, two.further, FURTHER);
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn both_move_a_moment_apart() {
    // The first update must have arrived before the other end leaves, or neither is heard.
    for pause in [11, 15, 19, 20, 21, 25, 29, 30, 31, 39, 40, 41, 60] {
        for server_first in [true, false] {
            let (mut two, _) = Two::flowing(24, 2);
            let ends = [(two.server, two.further, FURTHER), (two.client, two.away, AWAY)];
            let order = if server_first { [0, 1] } else { [1, 0] };
            for end in order {
                two.world.move_to(ends[end].0, ends[end].1, ends[end].2);
                two.world.run_for(Duration::from_millis(pause));
            }
            two.world.assert_delivering(2 * SECOND);
            two.world.check();
        }
    }
}

#[test]
fn moves_that_cross_go_over_to_rewriting() {
    // Each end is heard where it was, so that either's update is answered before the other's new place is confirmed.
    for pause in [0, 1, 5, 9, 10, 11, 19, 20, 21, 30] {
        for server_first in [true, false] {
            let (Two { mut world, client, server, away, further, .. }, flows) = Two::flowing(26, 2);
            let ends = [(server, further, FURTHER), (client, away, AWAY)];
            for end in if server_first { [0, 1] } else { [1, 0] } {
                world.attach(ends[end].0, ends[end].1, ends[end].2);
                world.run_for(Duration::from_millis(pause));
            }
            world.assert_delivering(2 * SECOND);
            settle_as(&mut world, &flows, Carried::Rewritten);
            world.check();
        }
    }
}

#[test]
fn the_peer_was_on_the_same_link() {
    let mut two = Two::new(18);
    two.world.move_to(two.client, two.far, "10.9.0.7");
    let flows = two.flow(2);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(SECOND);
    two.world.move_to(two.client, two.far, "10.9.0.7");
    two.world.assert_delivering(SECOND);
    settle_as(&mut two.world, &flows, Carried::Native);
    two.world.check();
}

#[test]
fn the_peer_came_to_the_same_link_and_left() {
    let (mut two, _) = Two::flowing(19, 1);
    two.world.move_to(two.client, two.far, "10.9.0.7");
    two.world.assert_delivering(SECOND);
    let there = two.world.connect(two.client, "10.9.0.1:80");
    introduced(&mut two.world, &[there]);
    two.world.assert_delivering(SECOND);
    two.world.move_to(two.client, two.home, HOME);
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn datagram_flows_move_as_well() {
    let mut two = Two::new(20);
    let flow = two.world.connect_from(two.client, 5353, "10.9.0.1:53", Transport::Udp);
    two.world.set_beat(Some(Duration::from_millis(7)));
    introduced(&mut two.world, &[flow]);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(SECOND);
    two.world.run_for(3 * SECOND);
    two.world.move_to(two.client, two.home, HOME);
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn a_fresh_connection_never_gets_the_wire_port_of_one_that_moved() {
    // P-16: busy hosts draw from all ports that need no privilege.
    for drawn in [1024..=65_535, 32_768..=60_999, 2000..=30_000] {
        let config = Config { drawn_ports: drawn.clone(), ..Config::default() };
        let mut two = Two::with(22, config, Config::default());
        let old = two.world.connect_from(two.client, 40_000, SERVICE, Transport::Tcp);
        introduced(&mut two.world, &[old]);
        let port = two.world.view(old, 0).and_then(|view| view.entry).expect("an entry").wire_local_port;
        assert!(!drawn.contains(&port), "{port} of {drawn:?}");
        two.world.move_to(two.client, two.away, AWAY);
        two.world.set_beat(Some(Duration::from_millis(7)));
        settle_as(&mut two.world, &[old], Carried::Rewritten);
        // The port that it would have with the range that is usual.
        let fresh = two.world.connect_from(
            two.client,
            if drawn.contains(&8256) { 8256 } else { 40_001 },
            SERVICE,
            Transport::Tcp,
        );
        two.world.assert_delivering(SECOND);
        introduced(&mut two.world, &[old, fresh]);
        two.world.check();
    }
}

#[test]
fn a_fresh_connection_may_take_the_port_of_one_that_moved() {
    let mut two = Two::new(21);
    let old = two.world.connect_from(two.client, 40_000, "10.9.0.1:80", Transport::Tcp);
    introduced(&mut two.world, &[old]);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.set_beat(Some(Duration::from_millis(7)));
    two.world.run_for(2 * SECOND);
    let fresh = two.world.connect_from(two.client, 40_000, "10.9.0.1:80", Transport::Tcp);
    two.world.assert_delivering(SECOND);
    introduced(&mut two.world, &[old, fresh]);
    two.world.move_to(two.client, two.further, FURTHER);
    two.world.assert_delivering(SECOND);
    two.world.run_for(2 * SECOND);
    two.world.assert_delivering(SECOND);
    two.world.move_to(two.client, two.home, HOME);
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn a_suspend_over_the_weekend() {
    let (mut two, flows) = Two::flowing(22, 2);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(SECOND);
    two.world.detach_all(two.client);
    two.world.sleep_all(Duration::from_secs(60 * 3600));
    two.world.run_for(SECOND);
    two.world.move_to(two.client, two.home, HOME);
    two.world.assert_delivering(2 * SECOND);
    settle_as(&mut two.world, &flows, Carried::Native);
    two.world.check_except(&[Kind::Storm]);
}

#[test]
fn flows_of_an_address_that_is_not_the_preferred_one() {
    // P-33: They are found open, through a NAT, when the daemon speaks to the peer from another address already.
    for restart in [false, true] {
        let mut two = Two::nowhere(26, Config::default(), Config::default());
        two.world.attach(two.client, two.nat, "192.168.1.2");
        let behind = two.world.connect(two.client, "10.9.0.1:80");
        two.world.set_beat(Some(Duration::from_millis(7)));
        two.world.attach(two.client, two.away, AWAY);
        let ahead = two.world.connect(two.client, "10.9.0.1:80");
        introduced(&mut two.world, &[behind, ahead]);
        two.world.run_for(SECOND);
        settle_as(&mut two.world, &[behind, ahead], Carried::Native);
        if restart {
            two.world.crash(two.client);
        }
        two.world.detach(two.client, "192.168.1.2");
        two.world.boot(two.client);
        two.world.assert_delivering(3 * SECOND);
        // And for good: the place that the peer was met at is no home of theirs.
        two.world.move_to(two.client, two.further, FURTHER);
        two.world.assert_delivering(SECOND);
        two.world.move_to(two.client, two.away, AWAY);
        two.world.assert_delivering(SECOND);
        two.world.check();
    }
}

#[test]
fn one_of_two_families_goes() {
    let mut two = Two::new(27);
    two.world.attach(two.server, two.far, "2001:db8:9::1");
    two.world.attach(two.client, two.home, "2001:db8:1::2");
    let old = two.world.connect(two.client, "10.9.0.1:80");
    introduced(&mut two.world, &[old]);
    let new = two.world.connect(two.client, "[2001:db8:9::1]:80");
    two.world.set_beat(Some(Duration::from_millis(7)));
    introduced(&mut two.world, &[old, new]);
    settle_as(&mut two.world, &[old, new], Carried::Native);
    two.world.detach(two.client, "2001:db8:1::2");
    two.world.assert_delivering(2 * SECOND);
    two.world.detach(two.server, "2001:db8:9::1");
    two.world.assert_delivering(2 * SECOND);
    two.world.check();
}

#[test]
fn a_laptop_that_slept() {
    for hours in [0, 1, 3, 60] {
        for moves in [false, true] {
            let (mut two, flows) = Two::flowing(28, 2);
            two.world.move_to(two.client, two.nat, "192.168.1.2");
            two.world.assert_delivering(SECOND);
            two.world.run_for(SECOND);
            two.world.set_beat(None);
            two.world.suspend(two.client);
            let before = two.world.datagrams();
            two.world.run_for(Duration::from_secs(600 + 3600 * hours));
            let asked = two.world.datagrams() - before;
            assert!(asked < 200 + 200 * hours, "{asked} datagrams to a host that sleeps for {hours} hours");
            if moves {
                two.world.wake(two.client);
                two.world.move_to(two.client, two.home, HOME);
            } else {
                two.world.wake(two.client);
            }
            // Whatever was the NAT's mapping, and whether or not a timer tells.
            two.world.set_beat(Some(Duration::from_millis(29)));
            two.world.assert_delivering(if moves { 2 * SECOND } else { 40 * SECOND });
            if moves {
                two.world.run_for(SECOND);
                settle_as(&mut two.world, &flows, Carried::Native);
            }
            two.world.check();
        }
    }
}

#[test]
fn flows_that_are_idle_for_hours_move_at_once() {
    let (mut two, flows) = Two::flowing(29, 2);
    two.world.set_beat(None);
    two.world.run_for(Duration::from_secs(5 * 3600 + 17));
    for host in [two.client, two.server] {
        let entries = two.world.at(host).node.as_ref().expect("a node").entries();
        assert!(entries < 40, "{entries} entries");
    }
    let moved = two.world.now();
    two.world.move_to(two.client, two.away, AWAY);
    two.world.set_beat(Some(Duration::from_millis(1)));
    let back = |w: &whimbrel_sim::World| w.flow(flows[0]).arrived[0].is_some_and(|at| at > moved);
    assert!(two.world.wait(SECOND, back));
    let took = two.world.now().since(moved);
    assert!(took <= Duration::from_millis(22), "{took:?} at a round trip of 20 ms");
    two.world.check();
}

#[test]
fn a_hand_off_by_hand() {
    let (mut two, flows) = Two::flowing(23, 2);
    two.world.attach(two.client, two.away, AWAY);
    two.world.run_for(SECOND);
    two.world.hand_off(two.client, Some(HOME));
    two.world.assert_delivering(SECOND);
    settle_as(&mut two.world, &flows, Carried::Native);
    two.world.hand_off(two.client, None);
    two.world.assert_delivering(SECOND);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.check();
}

/// Segments that the client and the server did not get, of all flows.
fn missing(world: &World, flows: &[FlowId]) -> [u64; 2] {
    let all = flows.iter().map(|flow| world.flow(*flow));
    all.fold([0, 0], |[client, server], flow| {
        [client + flow.sent[1] - flow.received[0], server + flow.sent[0] - flow.received[1]]
    })
}

#[test]
fn make_before_break_loses_nothing() {
    // P-38: Into an open network and behind a NAT; from home, and from where the flows are carried already.
    for seed in 60..64 {
        let (Two { mut world, client, away, nat, further, .. }, flows) = Two::flowing(seed, 3);
        let mut from = HOME;
        if seed >= 62 {
            world.move_to(client, further, FURTHER);
            settle_as(&mut world, &flows, Carried::Rewritten);
            from = FURTHER;
        }
        let (network, address, carried) =
            if seed % 2 == 0 { (away, AWAY, Carried::Rewritten) } else { (nat, INSIDE, Carried::Tunnelled) };
        world.set_beat(None);
        world.run_for(SECOND);
        let before = missing(&world, &flows);
        world.set_beat(Some(Duration::from_millis(1)));
        world.run_for(SECOND);
        world.attach(client, network, address);
        world.run_for(SECOND);
        world.detach(client, from);
        world.run_for(SECOND);
        world.set_beat(None);
        world.run_for(SECOND);
        assert_eq!(missing(&world, &flows), before, "seed {seed}");
        assert!(flows.iter().all(|flow| world.flow(*flow).carried == [Some(carried); 2]), "seed {seed}");
        world.check();
    }
}

#[test]
fn make_before_break_loses_nothing_when_one_of_its_datagrams_is_lost() {
    // P-38: the mover's own packets may overtake its answer to the challenge.
    for lost in 0..6 {
        let (Two { mut world, client, away, .. }, flows) = Two::flowing(70 + lost, 3);
        world.set_beat(Some(Duration::from_millis(1)));
        world.run_for(SECOND);
        world.faults.lose = Some(world.sent() + lost);
        world.attach(client, away, AWAY);
        world.run_for(5 * SECOND);
        world.detach(client, HOME);
        world.run_for(SECOND);
        world.set_beat(None);
        world.run_for(SECOND);
        assert_eq!(missing(&world, &flows), [0, 0], "datagram {lost}");
        world.check();
    }
}

#[test]
fn a_new_network_that_leads_nowhere_takes_nothing_away() {
    let (Two { mut world, client, away, .. }, flows) = Two::flowing(64, 3);
    world.set_cut(away, true);
    world.set_beat(Some(Duration::from_millis(1)));
    world.run_for(SECOND);
    world.attach(client, away, AWAY);
    world.run_for(10 * SECOND);
    world.detach(client, AWAY);
    world.run_for(10 * SECOND);
    world.set_beat(None);
    world.run_for(SECOND);
    assert_eq!(missing(&world, &flows), [0, 0]);
    world.check();
}

/// The client has a second network, by hand or by its routes, in which nothing arrives that is sent there.
fn into_a_deaf_network(by_hand: bool) -> (World, Vec<FlowId>) {
    let mut two = Two::nowhere(67, Config::default(), Config::default());
    let (client, home, away) = (two.client, two.home, two.away);
    *two.world.access(away) = Access::Filtered(Filter::deaf());
    if by_hand {
        two.world.attach(client, away, AWAY);
    }
    two.world.attach(client, home, HOME);
    let flows = two.flow(3);
    let mut world = two.world;
    if by_hand {
        world.hand_off(client, Some(AWAY));
    } else {
        world.attach(client, away, AWAY);
    }
    (world, flows)
}

#[test]
fn a_move_that_is_never_confirmed_leaves_both_ends_at_the_former_path() {
    // P-38: the update arrives, and neither its answer nor a challenge does.
    for by_hand in [true, false] {
        let (mut world, flows) = into_a_deaf_network(by_hand);
        for _ in 0..60 {
            world.run_for(SECOND);
            world.assert_delivering(SECOND);
        }
        settle_as(&mut world, &flows, Carried::Native);
        let stays = flows
            .iter()
            .all(|flow| [0, 1].map(|end| world.verdict(*flow, end)).iter().all(|so| *so == Verdict::Native));
        assert!(stays, "by hand: {by_hand}");
        world.check();
    }
}

#[test]
fn a_hand_off_by_hand_without_an_answer_is_taken_back() {
    let (mut world, mut flows) = into_a_deaf_network(true);
    let client = world.flow(flows[0]).hosts[0];
    world.run_for(30 * SECOND);
    assert_eq!(world.peer(client).source, Some(crate::common::address(HOME)));
    // It is over for both: what is opened now is introduced, and moves with the rest.
    flows.push(world.connect(client, SERVICE));
    introduced(&mut world, &flows);
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn a_new_network_that_is_heard_late_is_gone_over_to() {
    // P-38: what comes from there has it challenged again.
    let (mut world, flows) = into_a_deaf_network(false);
    world.run_for(60 * SECOND);
    world.assert_delivering(SECOND);
    let away = whimbrel_sim::NetworkId(1);
    *world.access(away) = Access::Open;
    let over =
        world.wait(120 * SECOND, |w| flows.iter().all(|flow| w.flow(*flow).carried == [Some(Carried::Rewritten); 2]));
    assert!(over, "still at the former path");
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn the_former_path_goes_at_any_time() {
    for after in (1..60).step_by(2) {
        let (Two { mut world, client, away, .. }, flows) = Two::flowing(65, 3);
        world.attach(client, away, AWAY);
        world.run_for(Duration::from_millis(after));
        world.detach(client, HOME);
        world.assert_delivering(Duration::from_millis(200));
        settle_as(&mut world, &flows, Carried::Rewritten);
        world.check();
    }
}

#[test]
fn an_address_chosen_by_hand_stays_chosen() {
    let (Two { mut world, client, away, further, .. }, flows) = Two::flowing(66, 2);
    world.attach(client, away, AWAY);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.hand_off(client, Some(HOME));
    settle_as(&mut world, &flows, Carried::Native);
    // Something else changes: what was chosen still counts.
    world.attach(client, further, FURTHER);
    world.run_for(SECOND);
    settle_as(&mut world, &flows, Carried::Native);
    world.hand_off(client, None);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.check();
}
