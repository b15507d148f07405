//! Ends that come back in ways that are not simple: both were away, without their memory, by another family, behind a
//! firewall that has forgotten them; and what becomes of the words that were said meanwhile.

use std::time::Duration;

use whimbrel_protocol::{Carrier, Config, Event, Time};
use whimbrel_sim::{Access, Carried, Filter, FlowId, HostId, Kind, Link, Random, Verdict, World};

use crate::common::{
    AWAY, FURTHER, HOME, INSIDE, SECOND, SERVICE, Two, address, carried, introduced, seeds, settle_as,
};
use crate::links::{IDLE, VIGILANT, ms, source, with_two};

const WEEKEND: Duration = Duration::from_secs(72 * 3600);
const BEAT: Duration = Duration::from_millis(7);

fn happened(world: &World, host: HostId, what: impl Fn(&Event) -> bool) -> usize {
    world.events.iter().filter(|(_, at, event)| *at == host && what(event)).count()
}

/// How both ends have a flow that waits by itself.
fn waits(world: &World, flow: FlowId) -> [bool; 2] {
    [0, 1].map(|end| world.verdict(flow, end) == Verdict::Hold("waits by itself"))
}

#[test]
fn both_sleep_and_one_wakes_much_later() {
    // P-44: who was back first is not told of in a minute, but at once.
    for elsewhere in [false, true] {
        let (Two { mut world, client, server, away, .. }, flows) = Two::flowing(840, 3);
        world.part(client);
        world.part(server);
        world.run_for(SECOND);
        world.set_beat(Some(10 * SECOND));
        world.suspend(client);
        world.suspend(server);
        world.run_for(3600 * SECOND);
        world.wake(server);
        world.resume(server);
        world.run_for(2 * 3600 * SECOND + 13 * SECOND);
        world.wake(client);
        if elsewhere {
            world.move_to(client, away, AWAY);
        }
        world.set_beat(Some(BEAT));
        world.resume(client);
        world.assert_delivering(SECOND);
        settle_as(&mut world, &flows, if elsewhere { Carried::Rewritten } else { Carried::Native });
        world.check();
    }
}

#[test]
fn who_said_that_it_goes_and_comes_back_without_memory_says_where_it_is() {
    // P-14, P-44: its introductions are refused until then. The other end has flows from before, or none.
    for before in [true, false] {
        let (Two { mut world, client, .. }, flows) = Two::flowing(841, 2);
        world.part(client);
        world.run_for(SECOND);
        world.crash(client);
        world.forget_saved(client);
        if !before {
            flows.iter().for_each(|flow| world.close(*flow));
            world.run_for(70 * SECOND);
        }
        world.boot(client);
        let fresh = world.connect(client, SERVICE);
        introduced(&mut world, &[fresh]);
        world.run_for(5 * SECOND);
        world.assert_delivering(2 * SECOND);
        world.check();
    }
    // And where the other end introduces.
    let (Two { mut world, client, server, .. }, flows) = Two::flowing(842, 2);
    world.part(client);
    world.run_for(SECOND);
    world.crash(client);
    world.forget_saved(client);
    flows.iter().for_each(|flow| world.close(*flow));
    world.run_for(70 * SECOND);
    world.boot(client);
    let fresh = world.connect(server, "10.1.0.2:22");
    introduced(&mut world, &[fresh]);
    world.run_for(SECOND);
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn a_daemon_sends_nothing_to_whom_was_away_when_it_was_started() {
    // P-44
    let (Two { mut world, client, server, .. }, _) = Two::flowing(843, 2);
    world.part(client);
    world.run_for(SECOND);
    world.suspend(client);
    world.restart(server, SECOND);
    world.set_beat(Some(10 * SECOND));
    world.run_for(60 * SECOND);
    let sent = world.sent;
    world.run_for(WEEKEND);
    assert_eq!(world.sent, sent, "to whom is away");
    world.set_beat(Some(BEAT));
    world.wake(client);
    world.resume(client);
    world.assert_delivering(2 * SECOND);
    world.check();
}

#[test]
fn a_suspended_host_stays_so_when_its_daemon_is_started_again() {
    // P-44: whether the peer has heard of it or not.
    for (heard, elsewhere) in [(true, true), (true, false), (false, true), (false, false)] {
        let (Two { mut world, client, server, home, away, .. }, flows) = Two::flowing(867, 2);
        world.set_cut(home, !heard);
        world.part(client);
        world.run_for(2 * SECOND);
        world.restart(client, SECOND);
        world.run_for(100 * SECOND);
        let suspended = |world: &World| world.at(client).node.as_ref().is_some_and(|node| node.is_suspended());
        assert!(suspended(&world));
        assert_eq!(world.peer(server).away, heard.then_some(true));
        let sent = world.sent;
        world.run_for(3600 * SECOND);
        assert!(world.sent - sent < 20, "{} datagrams in an hour", world.sent - sent);
        world.set_cut(home, false);
        assert!(flows.iter().all(|flow| matches!(world.verdict(*flow, 0), Verdict::Hold(_))));
        // Once more, and where something is heard of the peer that is told.
        world.restart(client, SECOND);
        world.run_for(3 * SECOND);
        assert!(world.wait(10 * SECOND, |w| w.peer(server).away == Some(true)), "heard {heard}");
        if elsewhere {
            world.move_to(client, away, AWAY);
        }
        world.resume(client);
        world.assert_delivering(2 * SECOND);
        settle_as(&mut world, &flows, if elsewhere { Carried::Rewritten } else { Carried::Native });
        world.restart(client, SECOND);
        world.run_for(3 * SECOND);
        assert!(!suspended(&world));
        world.assert_delivering(5 * SECOND);
        world.check();
    }
}

#[test]
fn flows_are_held_for_whom_is_away_though_this_end_moves() {
    // P-44
    let (Two { mut world, client, server, further, .. }, flows) = Two::flowing(844, 2);
    world.part(client);
    world.run_for(SECOND);
    world.suspend(client);
    world.set_beat(Some(10 * SECOND));
    world.move_to(server, further, "10.3.0.9");
    let held = |world: &World| matches!(world.verdict(flows[0], 1), Verdict::Hold("binding on hold"));
    for _ in 0..20 {
        assert!(held(&world), "{:?}", world.verdict(flows[0], 1));
        world.run_for(Duration::from_millis(700));
    }
    world.run_for(3600 * SECOND);
    assert!(held(&world), "{:?}", world.verdict(flows[0], 1));
    world.set_beat(Some(BEAT));
    world.wake(client);
    world.resume(client);
    // It looks for the server where that was, and is found by it.
    world.assert_delivering(65 * SECOND);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.check();
}

#[test]
fn silence_outlives_the_daemon() {
    // P-45: flows are held over its restart too, since the address may be another's.
    let (Two { mut world, client, server, home, away, .. }, flows) = Two::flowing(845, 3);
    world.detach(client, HOME);
    world.stall(flows[0], 1);
    assert!(world.wait(30 * SECOND, |w| w.peer(server).away == Some(false)));
    let other = world.host("new owner");
    world.attach(other, home, HOME);
    world.restart(server, SECOND);
    world.run_for(600 * SECOND);
    assert_eq!(world.peer(server).away, Some(false));
    assert!(flows.iter().all(|flow| !world.was_reset(*flow)));
    world.attach(client, away, AWAY);
    world.assert_delivering(5 * SECOND);
    assert_eq!(world.peer(server).away, None);
    assert!(flows.iter().all(|flow| !world.was_reset(*flow)));
    world.check_except(&[Kind::Storm]);
    // And where nobody but the network was away.
    let (Two { mut world, server, home, .. }, flows) = Two::flowing(846, 3);
    world.set_cut(home, true);
    world.stall(flows[0], 1);
    assert!(world.wait(30 * SECOND, |w| w.peer(server).away == Some(false)));
    world.restart(server, SECOND);
    world.run_for(60 * SECOND);
    world.set_cut(home, false);
    world.assert_delivering(70 * SECOND);
    settle_as(&mut world, &flows, Carried::Native);
    world.check();
}

#[test]
fn what_went_unanswered_before_a_return_does_not_count_after_it() {
    // P-45: three checks in a row, of where the peer is now.
    let (Two { mut world, client, server, away, .. }, flows) = Two::flowing(847, 2);
    world.detach(client, HOME);
    world.stall(flows[0], 1);
    world.run_for(300 * SECOND);
    assert_eq!(world.peer(server).away, Some(false));
    world.attach(client, away, AWAY);
    world.assert_delivering(2 * SECOND);
    world.stall(flows[0], 1);
    world.run_for(5 * SECOND);
    let gone = |event: &Event| matches!(event, Event::PeerAway { .. });
    assert_eq!(happened(&world, server, gone), 1);
    world.check();
}

#[test]
fn a_stall_is_looked_into_whatever_was_lost_before() {
    // P-45: also where the answer to an earlier check never came, as at the renewal of a session.
    for lost in 0..8 {
        let (Two { mut world, client, server, .. }, flows) = Two::flowing(848, 1);
        world.set_beat(None);
        world.run_for(3590 * SECOND);
        world.faults.lose = Some(world.sent + lost);
        world.run_for(60 * SECOND);
        world.detach(client, HOME);
        world.run_for(SECOND);
        world.stall(flows[0], 1);
        world.run_for(20 * SECOND);
        assert_eq!(world.peer(server).away, Some(false), "{lost}");
    }
}

#[test]
fn a_word_of_parting_that_nobody_heard_is_said_again() {
    // P-44: the network was away when the host was suspended, by hand.
    let (Two { mut world, client, server, home, .. }, flows) = Two::flowing(849, 2);
    world.set_cut(home, true);
    world.part(client);
    world.run_for(30 * SECOND);
    let sent = world.sent;
    world.run_for(600 * SECOND);
    assert_eq!(world.sent, sent, "five times at the most");
    world.set_cut(home, false);
    world.stall(flows[0], 1);
    world.run_for(5 * SECOND);
    assert_eq!(world.peer(server).away, Some(true));
    world.resume(client);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Native);
    world.check();
}

#[test]
fn a_host_that_was_asked_first_and_is_started_anew_ends_flows_too() {
    // P-47: it may not tell its life in a first contact, and does in the session.
    for downtime in [1, 4, 9, 60] {
        let life = |life| Config { life, ..Config::default() };
        let mut two = Two::with(850, life(1), life(2));
        let flows = two.flow(3);
        let Two { mut world, client, server, nat, .. } = two;
        world.move_to(client, nat, INSIDE);
        settle_as(&mut world, &flows, Carried::Tunnelled);
        world.crash(server);
        world.forget_saved(server);
        world.at_mut(server).config.life = 4;
        world.run_for(downtime * SECOND);
        world.boot(server);
        world.run_for(100 * SECOND);
        assert_eq!(world.resets(client), flows, "after {downtime} s");
    }
}

#[test]
fn words_about_waiting_flows_are_told_when_the_peer_is_back() {
    // P-48, P-44: nothing is sent meanwhile, and nothing piles up.
    let (Two { mut world, client, server, .. }, flows) = Two::flowing(851, 2);
    world.part(client);
    world.run_for(SECOND);
    world.suspend(client);
    world.let_wait(flows[0], 1, true);
    world.run_for(60 * SECOND);
    let sent = world.sent;
    let entries = |world: &World| world.at(server).node.as_ref().expect("a node").entries();
    let before = entries(&world);
    for round in 0..500 {
        world.let_wait(flows[0], 1, round % 2 == 1);
        world.run_for(SECOND);
    }
    assert!(entries(&world) <= before + 2, "{before} became {}", entries(&world));
    world.set_beat(Some(10 * SECOND));
    world.run_for(WEEKEND);
    assert_eq!(world.sent, sent, "to whom is away");
    world.set_beat(Some(BEAT));
    world.wake(client);
    world.resume(client);
    world.run_for(2 * SECOND);
    assert_eq!(waits(&world, flows[0]), [true; 2]);
    assert_eq!(waits(&world, flows[1]), [false; 2]);
    world.let_wait(flows[0], 1, false);
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn words_about_waiting_flows_to_whom_does_not_answer_become_rare() {
    // P-48
    let (Two { mut world, server, home, .. }, flows) = Two::flowing(852, 2);
    world.set_cut(home, true);
    world.let_wait(flows[0], 1, true);
    world.run_for(60 * SECOND);
    let before = world.at(server).effects;
    world.run_for(86_400 * SECOND);
    let done = world.at(server).effects - before;
    assert!(done < 2 * 86_400 / 300, "{done} effects in a day");
    world.set_cut(home, false);
    assert!(world.wait(301 * SECOND, |w| waits(w, flows[0]) == [true; 2]));
    assert_eq!(world.peer(server).away, None);
    world.check();
}

#[test]
fn words_of_a_daemon_without_memory_count() {
    // P-48: its numbers begin anew. What the other end asked for is not forgotten by that.
    for rounds in 0..3 {
        let (Two { mut world, client, .. }, flows) = Two::flowing(853 + rounds, 2);
        for round in 0..7 * rounds {
            world.let_wait(flows[0], 0, round % 2 == 0);
            world.run_for(SECOND);
        }
        world.let_wait(flows[0], 0, false);
        world.let_wait(flows[1], 1, true);
        world.run_for(SECOND);
        world.crash(client);
        world.forget_saved(client);
        world.boot(client);
        introduced(&mut world, &flows);
        world.run_for(10 * SECOND);
        world.let_wait(flows[0], 0, true);
        world.run_for(3 * SECOND);
        assert_eq!(waits(&world, flows[0]), [true; 2], "after {rounds} rounds");
        assert_eq!(waits(&world, flows[1]), [true; 2], "after {rounds} rounds");
        world.let_wait(flows[0], 0, false);
        world.let_wait(flows[1], 1, false);
        world.assert_delivering(2 * SECOND);
        world.check();
    }
}

#[test]
fn a_daemon_that_dies_while_it_has_a_flow_wait_leaves_both_ends_agreed() {
    // P-48
    for step in 0..8 {
        let (Two { mut world, client, .. }, flows) = Two::flowing(860, 2);
        world.faults.crash = Some((client, world.at(client).effects + step));
        world.let_wait(flows[0], 0, true);
        world.run_for(40 * SECOND);
        let [here, there] = waits(&world, flows[0]);
        assert_eq!(here, there, "died before effect {step}");
        world.faults.crash = None;
        world.let_wait(flows[0], 0, false);
        world.run_for(SECOND);
        world.assert_delivering(SECOND);
        world.check();
    }
}

/// A client that comes home from an IPv4 network, where IPv6 is announced first and leads nowhere.
fn home_with_a_family_that_leads_nowhere(seed: u64) -> (World, HostId, Vec<FlowId>) {
    let mut two = Two::new(seed);
    two.world.attach(two.server, two.far, "2001:db8:9::1");
    let six = two.world.network(Access::Open);
    two.world.attach(two.client, six, "2001:db8:1::2");
    let flow = two.world.connect(two.client, "[2001:db8:9::1]:80");
    two.world.set_beat(Some(BEAT));
    introduced(&mut two.world, &[flow]);
    two.world.run_for(SECOND);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(SECOND);
    two.world.set_cut(six, true);
    two.world.detach_all(two.client);
    two.world.run_for(5 * SECOND);
    two.world.attach(two.client, six, "2001:db8:1::2");
    two.world.run_for(SECOND);
    two.world.attach(two.client, two.home, HOME);
    (two.world, two.client, vec![flow])
}

#[test]
fn a_family_that_nobody_answers_by_is_left_for_the_one_that_worked() {
    // P-53
    let (mut world, client, _) = home_with_a_family_that_leads_nowhere(861);
    world.assert_delivering(5 * SECOND);
    assert_eq!(world.peer(client).source, Some(address(HOME)));
    // What else changes does not lead it back there, and new connections are introduced.
    let away = whimbrel_sim::NetworkId(1);
    world.attach(client, away, FURTHER);
    world.run_for(SECOND);
    let fresh = world.connect(client, SERVICE);
    introduced(&mut world, &[fresh]);
    world.assert_delivering(2 * SECOND);
    world.check();
}

#[test]
fn a_network_whose_own_family_leads_nowhere_is_used_by_the_other() {
    // P-53: the peer was heard in the family that is broken here, and in no other.
    for other_works in [true, false] {
        let mut two = Two::new(if other_works { 870 } else { 871 });
        two.world.attach(two.server, two.far, "2001:db8:9::1");
        let [six, broken] = [0, 1].map(|_| two.world.network(Access::Open));
        two.world.attach(two.client, six, "2001:db8:1::2");
        let flow = two.world.connect(two.client, "[2001:db8:9::1]:80");
        two.world.set_beat(Some(BEAT));
        introduced(&mut two.world, &[flow]);
        two.world.run_for(SECOND);
        two.world.set_cut(broken, true);
        two.world.set_cut(two.away, !other_works);
        two.world.detach_all(two.client);
        two.world.attach(two.client, broken, "2001:db8:2::2");
        two.world.attach(two.client, two.away, AWAY);
        two.world.run_for(5 * SECOND);
        if other_works {
            assert_eq!(two.world.peer(two.client).source, Some(address(AWAY)));
            two.world.assert_delivering(SECOND);
        } else {
            // It goes to and fro, and is found by whichever works first.
            two.world.run_for(10 * SECOND);
        }
        // The family that the flow is of works at last: it goes by that again, and nothing is lost on the way.
        two.world.set_cut(broken, false);
        if other_works {
            for _ in 0..60 {
                two.world.assert_delivering(SECOND);
                two.world.run_for(SECOND);
            }
        } else {
            two.world.run_for(30 * SECOND);
            two.world.assert_delivering(SECOND);
        }
        assert_eq!(two.world.peer(two.client).source, Some(address("2001:db8:2::2")), "works: {other_works}");
        two.world.check();
    }
}

#[test]
fn a_family_that_answers_once_and_no_more_is_left_again_and_nothing_stands_still() {
    // P-53
    let mut two = Two::new(872);
    two.world.attach(two.server, two.far, "2001:db8:9::1");
    let [six, broken] = [0, 1].map(|_| two.world.network(Access::Open));
    two.world.attach(two.client, six, "2001:db8:1::2");
    let flow = two.world.connect(two.client, "[2001:db8:9::1]:80");
    two.world.set_beat(Some(BEAT));
    introduced(&mut two.world, &[flow]);
    two.world.run_for(SECOND);
    two.world.set_cut(broken, true);
    two.world.detach_all(two.client);
    two.world.attach(two.client, broken, "2001:db8:2::2");
    two.world.attach(two.client, two.away, AWAY);
    two.world.run_for(5 * SECOND);
    let own = address("2001:db8:2::2");
    for round in 0..2 {
        assert_eq!(two.world.peer(two.client).source, Some(address(AWAY)), "round {round}");
        two.world.set_cut(broken, false);
        let goes_back = |world: &World| world.peer(two.client).source == Some(own);
        let mut waited = Duration::ZERO;
        while !goes_back(&two.world) && waited < 200 * SECOND {
            two.world.run_for(SECOND / 1000);
            waited += SECOND / 1000;
        }
        assert!(goes_back(&two.world), "round {round}: it answers");
        two.world.set_cut(broken, true);
        for _ in 0..90 {
            two.world.assert_delivering(SECOND);
            two.world.run_for(SECOND);
        }
    }
    two.world.set_cut(broken, false);
    two.world.run_for(400 * SECOND);
    assert_eq!(two.world.peer(two.client).source, Some(own), "it answers for good");
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn who_was_met_by_the_other_family_after_an_outage_comes_back() {
    // P-53: nothing passes for a while on a network of both families; each is tried in turn, and the first that passes
    // is taken, whatever the flows are of.
    for outage in [3, 5, 8, 13, 21, 34, 60] {
        let mut two = Two::new(9020 + outage);
        two.world.attach(two.server, two.far, "2001:db8:9::1");
        let flow = two.world.connect(two.client, SERVICE);
        two.world.set_beat(Some(BEAT));
        introduced(&mut two.world, &[flow]);
        two.world.run_for(SECOND);
        two.world.set_cut(two.away, true);
        two.world.detach_all(two.client);
        two.world.attach(two.client, two.away, AWAY);
        two.world.attach(two.client, two.away, "2001:db8:2::2");
        two.world.run_for(u32::try_from(outage).unwrap_or(1) * SECOND);
        two.world.set_cut(two.away, false);
        two.world.run_for(30 * SECOND);
        two.world.assert_delivering(SECOND);
        two.world.run_for(10 * SECOND);
        assert_eq!(two.world.peer(two.client).source, Some(address(AWAY)), "after {outage} s");
        two.world.check();
    }
}

#[test]
fn a_family_that_comes_late_is_gone_over_to_by_those_whose_flows_are_of_it() {
    // P-53
    for late in [0, 1, 20] {
        let mut two = Two::new(864 + late);
        two.world.attach(two.server, two.far, "2001:db8:9::1");
        let [six, other] = [0, 1].map(|_| two.world.network(Access::Open));
        two.world.attach(two.client, six, "2001:db8:1::2");
        let flows = ["[2001:db8:9::1]:80", "[2001:db8:9::1]:81", SERVICE].map(|to| two.world.connect(two.client, to));
        two.world.set_beat(Some(BEAT));
        introduced(&mut two.world, &flows);
        two.world.run_for(SECOND);
        two.world.move_to(two.client, two.away, AWAY);
        two.world.run_for(u32::try_from(late).expect("seconds") * SECOND);
        two.world.attach(two.client, other, "2001:db8:2::2");
        two.world.run_for(3 * SECOND);
        assert_eq!(two.world.peer(two.client).source, Some(address("2001:db8:2::2")), "{late} s late");
        two.world.assert_delivering(SECOND);
        settle_as(&mut two.world, &flows[..2], Carried::Rewritten);
        // Where only the other end is away, there is nothing to go over to.
        let here = two.world.peer(two.server).places.local;
        two.world.attach(two.server, two.further, FURTHER);
        two.world.run_for(SECOND);
        assert_eq!(two.world.peer(two.server).places.local, here, "{late} s late");
        two.world.move_to(two.client, two.away, AWAY);
        two.world.run_for(SECOND);
        two.world.detach(two.server, FURTHER);
        two.world.run_for(3 * SECOND);
        assert_eq!(two.world.peer(two.server).places.local, here, "{late} s late");
        two.world.check();
    }
}

#[test]
fn an_address_of_the_other_family_is_chosen_by_hand() {
    let mut two = Two::new(862);
    two.world.attach(two.server, two.far, "2001:db8:9::1");
    two.world.attach(two.client, two.home, "2001:db8:1::2");
    let flow = two.world.connect(two.client, SERVICE);
    two.world.set_beat(Some(BEAT));
    introduced(&mut two.world, &[flow]);
    two.world.run_for(SECOND);
    two.world.hand_off(two.client, Some("2001:db8:1::2"));
    two.world.assert_delivering(SECOND);
    assert_eq!(two.world.peer(two.client).source, Some(address("2001:db8:1::2")));
    two.world.hand_off(two.client, Some(HOME));
    two.world.assert_delivering(SECOND);
    settle_as(&mut two.world, &[flow], Carried::Native);
    two.world.check();
}

/// The kernel reports that a flow stalls, twice at the usual distance.
fn stall_twice(world: &mut World, flow: FlowId, end: usize) {
    world.stall(flow, end);
    world.run_for(3 * SECOND);
    world.stall_on(flow, end, 4);
}

#[test]
fn a_return_to_a_firewall_that_has_forgotten_goes_by_the_tunnel() {
    // P-49: whichever end has something to say.
    for end in 0..2 {
        let mut two = Two::nowhere(863, Config::default(), Config::default());
        *two.world.access(two.home) = Access::Filtered(Filter::strict());
        two.world.attach(two.client, two.home, HOME);
        let flows = two.flow(2);
        let Two { mut world, client, home, away, .. } = two;
        settle_as(&mut world, &flows, Carried::Native);
        // At home where nothing has moved nothing is done about it.
        *world.access(home) = Access::Filtered(Filter::strict());
        stall_twice(&mut world, flows[0], end);
        world.run_for(SECOND);
        assert_eq!(world.verdict(flows[0], 0), Verdict::Native);
        world.move_to(client, away, AWAY);
        world.assert_delivering(SECOND);
        world.run_for(10 * SECOND);
        world.move_to(client, home, HOME);
        world.run_for(2 * SECOND);
        assert_eq!(world.verdict(flows[0], 0), Verdict::Native);
        assert!(!world.undelivered(2 * SECOND).is_empty(), "the firewall lets it through");
        stall_twice(&mut world, flows[0], end);
        world.assert_delivering(SECOND);
        settle_as(&mut world, &flows, Carried::Tunnelled);
        world.run_for(3600 * SECOND);
        settle_as(&mut world, &flows, Carried::Tunnelled);
        // Elsewhere there is another firewall, or none.
        world.move_to(client, away, AWAY);
        settle_as(&mut world, &flows, Carried::Rewritten);
        world.move_to(client, home, HOME);
        world.assert_delivering(2 * SECOND);
        settle_as(&mut world, &flows, Carried::Tunnelled);
        world.check();
    }
}

#[test]
fn rewritten_flows_that_a_firewall_forgets_go_by_the_tunnel() {
    // P-49
    for end in 0..2 {
        let (Two { mut world, client, away, .. }, flows) = Two::flowing(864, 2);
        world.move_to(client, away, AWAY);
        settle_as(&mut world, &flows, Carried::Rewritten);
        *world.access(away) = Access::Filtered(Filter::strict());
        // What the client says by UDP opens that way again.
        world.run_for(30 * SECOND);
        assert!(!world.undelivered(2 * SECOND).is_empty(), "the firewall lets it through");
        stall_twice(&mut world, flows[0], end);
        world.assert_delivering(SECOND);
        settle_as(&mut world, &flows, Carried::Tunnelled);
        world.check();
    }
}

#[test]
fn flows_whose_wire_port_somebody_has_go_by_the_tunnel_until_an_end_moves() {
    // P-160: while nothing has moved yet, on the way, and when all goes rewritten; at either end or both.
    for (seed, ends) in [(865, [true, false]), (866, [false, true]), (867, [true, true])] {
        for when in [None, Some(SECOND / 100), Some(10 * SECOND)] {
            let (Two { mut world, client, away, home, .. }, flows) = Two::flowing(seed, 2);
            let take = |world: &mut World| {
                for end in (0..2).filter(|end| ends[*end]) {
                    world.take_wire_port(flows[0], end);
                }
            };
            if let Some(pause) = when {
                world.move_to(client, away, AWAY);
                world.run_for(pause);
                take(&mut world);
            } else {
                take(&mut world);
                world.run_for(SECOND);
                assert_eq!(world.verdict(flows[0], 0), Verdict::Native);
            }
            if when.is_some() {
                world.assert_delivering(2 * SECOND);
                settle_as(&mut world, &flows, Carried::Tunnelled);
                let sent = world.sent;
                world.run_for(600 * SECOND);
                settle_as(&mut world, &flows, Carried::Tunnelled);
                assert!(world.sent - sent < 20_000, "{} datagrams and segments", world.sent - sent);
                world.move_to(client, home, HOME);
                settle_as(&mut world, &flows, Carried::Native);
            }
            world.move_to(client, away, AWAY);
            settle_as(&mut world, &flows, Carried::Rewritten);
            world.check();
        }
    }
}

#[test]
fn an_outage_of_some_seconds_leads_nothing_into_the_tunnel() {
    // P-49: the path answers again before the flow has had its turn.
    for outage in 1..8 {
        let (Two { mut world, client, away, .. }, flows) = Two::flowing(866, 2);
        world.move_to(client, away, AWAY);
        settle_as(&mut world, &flows, Carried::Rewritten);
        world.set_cut(away, true);
        // As TCP with a timer of 240 ms would have it told.
        for (attempts, pause, over) in [(2, 720, 720), (4, 2880, 3600), (8, 57_600, 61_200)] {
            let until = outage * 1000;
            if over - pause < until && until <= over {
                world.run_for(Duration::from_millis(until - (over - pause)));
                world.set_cut(away, false);
                world.run_for(Duration::from_millis(over - until));
            } else {
                world.run_for(Duration::from_millis(pause));
            }
            if over - pause <= until {
                world.stall_on(flows[0], 0, attempts);
                world.stall_on(flows[0], 1, attempts);
            }
        }
        world.run_for(10 * SECOND);
        settle_as(&mut world, &flows, Carried::Rewritten);
        world.check();
    }
}

/// What the timer of a socket of TCP does that sends without a pause, by a path that loses what it sends or the answer.
struct Timer {
    attempts: u32,
    due: Time,
}

impl Timer {
    /// Sends what is due. Tells how often the same was sent again, where the kernel would tell the daemon.
    fn run(&mut self, now: Time, is_lost: bool) -> Option<u32> {
        const FIRST: Duration = Duration::from_millis(240);
        if now < self.due {
            return None;
        }
        self.attempts = if is_lost { self.attempts + 1 } else { 0 };
        self.due = now + FIRST * 2u32.pow(self.attempts);
        (is_lost && self.attempts >= 2 && self.attempts.is_power_of_two()).then_some(self.attempts)
    }
}

#[test]
fn a_path_that_loses_much_for_long_is_not_taken_for_one_that_is_closed_to_the_flows() {
    // P-49: they have been elsewhere, so that something on the way might have forgotten them.
    const LOSS: u32 = 300;
    for seed in seeds(20, 200) {
        let mode = if seed % 2 == 0 { IDLE } else { VIGILANT };
        let (two, flows) = with_two(seed, mode, Link::default());
        let Two { mut world, client, server, home, .. } = two;
        world.tracing = false;
        world.set_beat(Some(ms(20)));
        world.run_for(2 * SECOND);
        for there in [AWAY, HOME] {
            world.hand_off(client, Some(there));
            world.run_for(2 * SECOND);
        }
        settle_as(&mut world, &flows, Carried::Native);

        let mut chance = Random::new(seed);
        let mut timers: Vec<_> = (0..4).map(|_| Timer { attempts: 0, due: world.now() + ms(240) }).collect();
        world.set_link(home, Link { loss: LOSS, ..Link::default() });
        for _ in 0..6000 {
            world.run_for(ms(10));
            let loses = source(&world, client) == Some(address(HOME));
            for (number, timer) in timers.iter_mut().enumerate() {
                let is_lost = loses && (chance.permille(LOSS) || chance.permille(LOSS));
                if let Some(attempts) = timer.run(world.now(), is_lost) {
                    world.stall_on(flows[number / 2], number % 2, attempts);
                }
            }
        }
        world.set_link(home, Link::default());
        let is_native = |w: &World| flows.iter().all(|flow| carried(w, *flow) == [Some(Carried::Native); 2]);
        assert!(world.wait(60 * SECOND, is_native), "seed {seed}, {mode:?}: {:?}", world.peer(client));
        let followed = happened(&world, client, |event| matches!(event, Event::PeerMoved { .. }));
        let tunnelled = |event: &Event| matches!(event, Event::CarrierChanged { carrier: Carrier::Tunnel, .. });
        let fell = happened(&world, client, tunnelled) + happened(&world, server, tunnelled);
        assert_eq!((followed, fell), (0, 0), "seed {seed}, {mode:?}: the server has stayed where it was");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn a_flow_that_stalls_now_and_then_stays_where_it_is() {
    // P-49: once, or while the peer has it wait.
    let (Two { mut world, client, away, .. }, flows) = Two::flowing(865, 2);
    world.move_to(client, away, AWAY);
    settle_as(&mut world, &flows, Carried::Rewritten);
    for _ in 0..10 {
        world.stall(flows[0], 0);
        world.stall(flows[1], 0);
        world.run_for(200 * SECOND);
    }
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.let_wait(flows[0], 1, true);
    world.run_for(SECOND);
    stall_twice(&mut world, flows[0], 0);
    world.run_for(SECOND);
    world.let_wait(flows[0], 1, false);
    world.run_for(SECOND);
    settle_as(&mut world, &flows, Carried::Rewritten);
    world.check();
}

#[test]
fn what_a_flow_was_sent_again_while_it_waited_is_not_in_vain() {
    // P-49: reported once before it waits, at either end, and once when it has just gone on.
    for (seed, end, waits) in [(868, 0, 0), (869, 0, 1), (870, 1, 0), (871, 1, 1)] {
        let (Two { mut world, client, away, .. }, flows) = Two::flowing(seed, 2);
        world.move_to(client, away, AWAY);
        settle_as(&mut world, &flows, Carried::Rewritten);
        world.stall(flows[0], end);
        world.run_for(SECOND / 2);
        world.let_wait(flows[0], waits, true);
        world.run_for(3 * SECOND);
        world.let_wait(flows[0], waits, false);
        world.run_for(SECOND / 4);
        world.stall(flows[0], end);
        world.run_for(2 * SECOND);
        settle_as(&mut world, &flows, Carried::Rewritten);
        world.check();
    }
}
