//! A router that speaks for hosts behind it (P-100 to P-104, P-123, P-124).

use std::time::Duration;

use whimbrel_protocol::{Config, FlowState, Prefix};
use whimbrel_sim::{Carried, FlowId, Kind};
use whimbrel_wire::Transport;

use crate::common::*;

/// The router itself.
const ROUTER: &str = "10.9.0.200";
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
/// What a peer sends until it hears that a flow is given up nobody has a socket for.
const REFUSED: &[Kind] = &[Kind::Reset];

/// The server of the others is behind a router here.
fn behind(seed: u64) -> Two {
    let prefix = Prefix { address: address("10.9.0.0"), length: 25 };
    let router = Config { behind: vec![prefix], life: 7, memory: 70, ..Config::default() };
    let mut two = Two::with(seed, Config { life: 8, ..Config::default() }, router);
    two.world.attach(two.server, two.far, ROUTER);
    two
}

fn datagrams(two: &mut Two) -> FlowId {
    let flow = two.world.connect_from(two.client, 5004, "10.9.0.1:53", Transport::Udp);
    two.world.set_beat(Some(Duration::from_millis(7)));
    introduced(&mut two.world, &[flow]);
    flow
}

/// Whether the router still knows a flow.
fn is_led(two: &Two, flow: FlowId) -> bool {
    two.world.view(flow, 1).is_some()
}

#[test]
fn flows_with_a_host_behind_go_along_and_come_home() {
    let mut two = behind(2401);
    let mut flows = two.flow(3);
    flows.push(datagrams(&mut two));
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    two.world.assert_delivering(SECOND);
    two.world.move_to(two.client, two.nat, INSIDE);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    two.world.restart(two.server, SECOND);
    two.world.run_for(5 * SECOND);
    two.world.assert_delivering(SECOND);
    two.world.move_to(two.client, two.home, HOME);
    settle_as(&mut two.world, &flows, Carried::Native);
    two.world.check();
}

#[test]
fn what_passes_a_router_outlives_it() {
    // P-123: at home, away, behind a NAT.
    for place in 0..3 {
        let mut two = behind(2402);
        let mut flows = two.flow(3);
        flows.push(datagrams(&mut two));
        let its_own = two.world.connect(two.client, "10.9.0.200:22");
        introduced(&mut two.world, &[its_own]);
        let carried = match place {
            0 => Carried::Native,
            1 => {
                two.world.move_to(two.client, two.away, AWAY);
                Carried::Tunnelled
            }
            _ => {
                two.world.move_to(two.client, two.nat, INSIDE);
                Carried::Tunnelled
            }
        };
        settle_as(&mut two.world, &flows, carried);
        two.world.reboot(two.server, true);
        two.world.run_for(20 * SECOND);
        assert_eq!(two.world.resets(two.client), [its_own]);
        two.world.close_end(its_own, 0);
        two.world.close_end(its_own, 1);
        two.world.assert_delivering(SECOND);
        // They are movable still.
        two.world.move_to(two.client, two.further, FURTHER);
        settle_as(&mut two.world, &flows, Carried::Tunnelled);
        // The laptop's daemon remembers whose they are.
        two.world.restart(two.client, SECOND);
        two.world.run_for(5 * SECOND);
        two.world.reboot(two.server, true);
        two.world.run_for(20 * SECOND);
        two.world.assert_delivering(SECOND);
        two.world.check();
    }
}

#[test]
fn a_router_that_forgets_ends_what_it_led_and_nothing_else() {
    // P-123
    let mut two = behind(2403);
    let led = two.flow(2);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &led, Carried::Tunnelled);
    // At home there.
    let native = two.flow(2);
    two.world.reboot(two.server, false);
    // It has to be missed first.
    two.world.run_for(MINUTE);
    assert_eq!(two.world.resets(two.client), led, "{native:?}");
    led.iter().for_each(|flow| two.world.close(*flow));
    two.world.assert_delivering(SECOND);
    introduced(&mut two.world, &native);
    two.world.move_to(two.client, two.further, FURTHER);
    settle_as(&mut two.world, &native, Carried::Tunnelled);
    two.world.check_except(REFUSED);
}

#[test]
fn datagrams_of_somebody_else_are_told_from_late_ones_by_their_age() {
    // P-104
    let mut two = behind(2404);
    let flow = datagrams(&mut two);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &[flow], Carried::Tunnelled);
    two.world.run_for(30 * SECOND);
    assert!(two.world.claim(flow, 1));
    assert!(is_led(&two, flow) && !two.world.claim(flow, 1), "it is told once");
    two.world.run_for(20 * SECOND);
    assert!(is_led(&two, flow));
    // A minute after the move it is told anew, and believed.
    two.world.run_for(15 * SECOND);
    two.world.assert_delivering(SECOND);
    assert!(two.world.claim(flow, 1) && !is_led(&two, flow));
    two.world.run_for(5 * SECOND);
    assert!(two.world.view(flow, 0).is_none_or(|view| view.state != FlowState::Moved));
    two.world.close(flow);
    two.world.check_except(REFUSED);
}

#[test]
fn what_leaves_by_two_ways_at_once_is_not_given_up_for_what_comes_late() {
    // P-104: behind a NAT no path is kept acceptable, and what is under way is under way.
    let mut two = behind(2405);
    two.world.move_to(two.client, two.nat, INSIDE);
    let flow = datagrams(&mut two);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &[flow], Carried::Tunnelled);
    two.world.claim(flow, 1);
    two.world.run_for(SECOND);
    assert!(is_led(&two, flow));
    two.world.run_for(2 * MINUTE);
    two.world.claim(flow, 1);
    assert!(!is_led(&two, flow));
    two.world.close(flow);
    two.world.check();
}

#[test]
fn who_moves_every_minute_does_not_keep_what_is_another_s() {
    // P-104
    let mut two = behind(2406);
    let flow = datagrams(&mut two);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &[flow], Carried::Tunnelled);
    let mut given_up = None;
    for round in 0..6 {
        for step in 0..10 {
            two.world.run_for(5 * SECOND);
            two.world.claim(flow, 1);
            if !is_led(&two, flow) {
                given_up.get_or_insert(round * 50 + (step + 1) * 5);
            }
        }
        let (network, at) = [(two.further, FURTHER), (two.away, AWAY)][round % 2];
        two.world.move_to(two.client, network, at);
    }
    assert!(given_up.is_some_and(|after| (60..=75).contains(&after)), "given up after {given_up:?} s");
    two.world.close(flow);
    two.world.check_except(REFUSED);
}

#[test]
fn who_is_silent_does_not_keep_what_is_another_s() {
    // P-104: it has said that it goes away, where it was at home and where it has moved to, once and again and again.
    for moves in [false, true] {
        let mut two = behind(2407);
        let flow = datagrams(&mut two);
        if moves {
            two.world.move_to(two.client, two.away, AWAY);
            settle_as(&mut two.world, &[flow], Carried::Tunnelled);
        }
        two.world.part(two.client);
        two.world.run_for(20 * SECOND);
        two.world.claim(flow, 1);
        assert!(is_led(&two, flow));
        two.world.run_for(50 * SECOND);
        two.world.claim(flow, 1);
        assert!(!is_led(&two, flow), "moves: {moves}");
        // It is told when it is back.
        two.world.resume(two.client);
        two.world.run_for(20 * SECOND);
        assert!(two.world.view(flow, 0).is_none_or(|view| view.state != FlowState::Moved));
        two.world.close(flow);
        two.world.check();
    }
}

#[test]
fn a_router_forgets_whom_it_has_not_heard_for_five_days() {
    // P-103
    for (silence, known) in [(5 * DAY - 2 * 60 * MINUTE, true), (5 * DAY + 2 * 60 * MINUTE, false)] {
        let mut two = behind(2408);
        let flows = two.flow(2);
        two.world.move_to(two.client, two.away, AWAY);
        settle_as(&mut two.world, &flows, Carried::Tunnelled);
        two.world.set_beat(None);
        two.world.tracing = false;
        two.world.set_cut(two.away, true);
        two.world.run_for(silence);
        assert!(flows.iter().all(|flow| is_led(&two, *flow) == known), "after {silence:?}");
        two.world.set_cut(two.away, false);
        two.world.run_for(10 * MINUTE);
        if known {
            two.world.assert_delivering(SECOND);
            two.world.check();
        }
    }
}

#[test]
fn what_has_ended_is_not_counted_and_its_names_stay_for_its_last_segments() {
    // P-103: at home and away, with either end's program the first to close; and where the words were lost.
    for case in 0..6 {
        let (moved, first, lost) = (case & 1 == 1, case >> 1 & 1, case >= 4);
        let mut two = behind(2412);
        let flows = two.flow(3);
        if moved {
            two.world.move_to(two.client, two.away, AWAY);
            settle_as(&mut two.world, &flows, Carried::Tunnelled);
        }
        let (ended, tuple) = (flows[0], two.world.flow(flows[0]).tuples[1]);
        if lost {
            two.world.set_cut(two.far, true);
        }
        [first, 1 - first].into_iter().for_each(|end| two.world.close_end(ended, end));
        two.world.run_for(SECOND);
        assert_eq!(is_led(&two, ended), lost, "case {case}");
        assert_eq!(two.world.peer(two.server).flows, flows.len() - usize::from(!lost), "case {case}");
        two.world.run_for(55 * SECOND);
        assert!(two.world.at(two.server).plane.knows(&tuple), "case {case}: it may be said again");
        if lost {
            two.world.set_cut(two.far, false);
        }
        two.world.run_for(if lost { 10 * SECOND + MINUTE } else { 10 * SECOND });
        assert!(!is_led(&two, ended) && !two.world.at(two.server).plane.knows(&tuple), "case {case}");
        assert_eq!(two.world.peer(two.server).flows, flows.len() - 1);
        two.world.assert_delivering(SECOND);
        two.world.check();
    }
}

#[test]
fn a_connection_that_is_opened_again_under_the_names_of_one_that_has_ended_is_another() {
    // P-103
    let mut two = behind(2413);
    let from = "10.1.0.2:6000".parse().expect("an endpoint");
    let connect = |two: &mut Two| two.world.connect_at(two.client, from, SERVICE, Transport::Tcp);
    let before = connect(&mut two);
    two.world.set_beat(Some(Duration::from_millis(7)));
    introduced(&mut two.world, &[before]);
    two.world.close(before);
    two.world.run_for(SECOND);
    let again = connect(&mut two);
    introduced(&mut two.world, &[again]);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &[again], Carried::Tunnelled);
    // The end of the one before is said once more by now, and is not the other's.
    two.world.run_for(2 * MINUTE);
    assert!(is_led(&two, again));
    two.world.assert_delivering(SECOND);
    two.world.check();
}

/// A connection that the host behind opens to the client, and the router sees.
fn opened(two: &mut Two, port: u16) -> FlowId {
    let from = format!("10.9.0.1:{port}").parse().expect("an endpoint");
    let flow = two.world.connect_at(two.server, from, "10.1.0.2:22", Transport::Tcp);
    let (now, tuple) = (two.world.now(), two.world.flow(flow).tuples[0]);
    two.world.with_node(two.server, |node| node.handle_passing_opened(now, tuple));
    flow
}

#[test]
fn what_a_host_behind_has_opened_is_introduced_and_goes_along() {
    // P-125
    let mut two = behind(2409);
    let flows = vec![opened(&mut two, 6000), opened(&mut two, 6001)];
    two.world.set_beat(Some(Duration::from_millis(7)));
    introduced(&mut two.world, &flows);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    two.world.move_to(two.client, two.nat, INSIDE);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    two.world.move_to(two.client, two.home, HOME);
    settle_as(&mut two.world, &flows, Carried::Native);
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn who_runs_nothing_is_asked_three_times_on_account_of_a_host_behind() {
    // P-125, P-10
    let prefix = Prefix { address: address("10.9.0.0"), length: 25 };
    let router = Config { behind: vec![prefix], ..Config::default() };
    let mut two = Two::with(2410, Config::default(), router);
    two.world.attach(two.server, two.far, ROUTER);
    two.world.crash(two.client);
    two.world.at_mut(two.client).collects = true;
    for port in 6000..6010 {
        opened(&mut two, port);
    }
    two.world.run_for(2 * MINUTE);
    assert_eq!(two.world.take_mail(two.client).len(), 3);
    for port in 6010..6020 {
        opened(&mut two, port);
    }
    two.world.run_for(2 * MINUTE);
    assert!(two.world.take_mail(two.client).is_empty());
    two.world.check();
}

#[test]
fn who_is_not_to_be_asked_is_not_and_nobody_but_a_gateway_has_others_ask() {
    // P-125
    let prefix = Prefix { address: address("10.9.0.0"), length: 25 };
    let mut router = Config { behind: vec![prefix], ..Config::default() };
    router.ask.deny.push(Prefix { address: address("10.1.0.0"), length: 16 });
    let mut two = Two::with(2411, Config::default(), router);
    two.world.attach(two.server, two.far, ROUTER);
    let flow = opened(&mut two, 6000);
    two.world.run_for(20 * SECOND);
    assert!(!two.world.introduced(flow) && two.world.peers(two.client).is_empty());
    // Of its own, and of nobody's, nothing is asked.
    for tuple in [("10.9.0.200:1", "10.1.0.2:22"), ("10.9.0.1:1", "10.9.0.2:22"), ("10.8.0.1:1", "10.1.0.2:22")] {
        let [local, remote] = [tuple.0, tuple.1].map(|end| end.parse().expect("an endpoint"));
        let tuple = whimbrel_wire::FlowTuple { transport: Transport::Tcp, local, remote };
        let now = two.world.now();
        two.world.with_node(two.server, |node| node.handle_passing_opened(now, tuple));
    }
    two.world.run_for(20 * SECOND);
    assert!(two.world.peers(two.client).is_empty());
    two.world.check();
}
