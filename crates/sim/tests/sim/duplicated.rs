//! Single flows that go by two networks at once (P-262), in moments of doubt (P-263).

use std::time::Duration;

use whimbrel_protocol::{Event, LinkFacts, LinkRules, LinkWish, SilenceMode};
use whimbrel_sim::{FlowId, HostId, Link, Verdict, World};

use crate::common::{AWAY, HOME, SECOND, Two, address};
use crate::links::{IDLE, VIGILANT, in_order, ms, source, with_two};
use crate::placed::{goes, is_back};

const LOSSY: Link = Link { delay: ms(5), jitter: Duration::ZERO, loss: 300, duplicate: 0, reorder: 0 };

/// A section of single flows that go by two networks in moments of doubt.
fn duplicating(rules: LinkRules) -> LinkWish {
    LinkWish { line: 3, of_flows: true, duplicate: true, rules, ..LinkWish::default() }
}

/// A client with two networks and flows that both ends send on, of which such a section means the first.
fn with_one_meant(seed: u64, mode: SilenceMode) -> (Two, Vec<FlowId>) {
    let (mut two, flows) = with_two(seed, mode, Link::default());
    two.world.set_beat(Some(ms(20)));
    two.world.set_link_wishes(two.client, vec![duplicating(LinkRules::default())]);
    two.world.meet_conditions(flows[0], 0, &[3]);
    (two, flows)
}

/// Whether each end sends all of a flow by two ways.
fn is_duplicated(world: &World, flow: FlowId) -> bool {
    let twice = |end| matches!(world.verdict(flow, end), Verdict::Tunnel { path, .. } if path.second.is_some());
    twice(0) && twice(1)
}

/// Of a thousand segments of either end, how many arrive in that time, the worse of both.
fn arrive(world: &mut World, flow: FlowId, lasts: Duration) -> u64 {
    let counted = |world: &World| (world.flow(flow).sent, world.flow(flow).received);
    let (sent, received) = counted(world);
    world.run_for(lasts);
    let (sent_then, received_then) = counted(world);
    let share = |end: usize| (received_then[1 - end] - received[1 - end]) * 1000 / (sent_then[end] - sent[end]);
    share(0).min(share(1))
}

fn told(world: &World, host: HostId) -> usize {
    let of = |(_, of, event): &&_| {
        let (of, event): (&HostId, &Event) = (of, event);
        *of == host && matches!(event, Event::FlowsDuplicated { line: 3, .. })
    };
    world.events.iter().filter(of).count()
}

fn ended(world: &World, host: HostId) -> usize {
    let is_end = |event: &Event| matches!(event, Event::FlowsAlone { line: 3, .. });
    world.events.iter().filter(|(_, of, event)| *of == host && is_end(event)).count()
}

#[test]
fn what_one_network_loses_comes_by_the_other_and_nothing_comes_twice() {
    for seed in 3100..3104 {
        let (Two { mut world, home, .. }, flows) = with_two(seed, IDLE, Link::default());
        world.set_beat(Some(ms(20)));
        world.run_for(5 * SECOND);
        world.set_link(home, LOSSY);
        let alone = arrive(&mut world, flows[0], 20 * SECOND);
        assert!((600..=800).contains(&alone), "seed {seed}: {alone} of a thousand arrive");
        world.duplicate(flows[0], 0, AWAY);
        assert!(
            world.wait(2 * SECOND, |w| is_duplicated(w, flows[0])),
            "seed {seed}: {:?}",
            world.verdict(flows[0], 0)
        );
        world.run_for(SECOND);
        let both = arrive(&mut world, flows[0], 20 * SECOND);
        let other = arrive(&mut world, flows[1], 20 * SECOND);
        println!("seed {seed}: of a thousand {alone} arrive by one network, {both} by two, {other} of the other flow");
        // Some are under way when it begins, and when it ends.
        assert!((995..=1005).contains(&both), "seed {seed}: {both} of a thousand arrive by two networks");
        assert!((600..=800).contains(&other), "seed {seed}: {other} of another flow's");
        // Either alone would do.
        world.set_link(home, Link::default());
        world.run_for(SECOND);
        let fine = arrive(&mut world, flows[0], 20 * SECOND);
        assert!((995..=1005).contains(&fine), "seed {seed}: {fine} of a thousand arrive where nothing is lost");
        world.place(flows[0], 0, None);
        assert!(world.wait(2 * SECOND, |w| is_back(w, flows[0])), "seed {seed}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn either_network_may_go_while_flows_go_by_both() {
    for (seed, of) in [(3110, HOME), (3111, AWAY)] {
        let (Two { mut world, client, home, away, .. }, flows) = with_two(seed, VIGILANT, Link::default());
        world.set_beat(Some(ms(10)));
        world.run_for(20 * SECOND);
        world.duplicate(flows[0], 0, AWAY);
        assert!(world.wait(SECOND, |w| is_duplicated(w, flows[0])), "seed {seed}");
        world.run_for(SECOND);
        // Nobody says that it is cut.
        world.set_cut(if of == HOME { home } else { away }, true);
        let lost = 1000 - arrive(&mut world, flows[0], ms(40)).min(1000);
        assert!(lost <= 250, "seed {seed}: {lost} of a thousand lost in the first 40 ms");
        let arrived = arrive(&mut world, flows[0], 10 * SECOND);
        assert!(arrived >= 980, "seed {seed}: {arrived} of a thousand arrive then");
        let stays = if of == HOME { AWAY } else { HOME };
        assert_eq!(source(&world, client), Some(address(stays)), "seed {seed}");
        world.check();
    }
}

#[test]
fn a_section_has_its_flows_go_by_two_networks_as_long_as_one_is_in_doubt() {
    for (seed, mode) in [(3120, VIGILANT), (3121, IDLE), (3122, VIGILANT), (3123, IDLE)] {
        let (Two { mut world, client, home, .. }, flows) = with_one_meant(seed, mode);
        world.run_for(30 * SECOND);
        assert!(is_back(&world, flows[0]) && told(&world, client) == 0, "seed {seed}: nothing is in doubt");
        world.set_link(home, LOSSY);
        let begun = world.now();
        assert!(world.wait(15 * SECOND, |w| is_duplicated(w, flows[0])), "seed {seed}, {mode:?}");
        println!("seed {seed}, {mode:?}: by two networks {:?} after it began to lose", world.now().since(begun));
        assert!(is_back(&world, flows[1]), "seed {seed}: of the other nothing was said");
        let choice = world.explain_links(client)[0].1.placed[0].clone();
        assert_eq!(
            (choice.flows, choice.apart, choice.duplication.is_some_and(|it| it.doubt.is_some())),
            (1, 1, true),
            "seed {seed}"
        );
        world.run_for(2 * SECOND);
        let both = arrive(&mut world, flows[0], 30 * SECOND);
        println!("seed {seed}, {mode:?}: {both} of a thousand arrive");
        assert!(both >= 990, "seed {seed}, {mode:?}: {both} of a thousand arrive");
        assert_eq!(told(&world, client), 1, "seed {seed}");
        world.set_link(home, Link::default());
        assert!(world.wait(15 * SECOND, |w| is_back(w, flows[0])), "seed {seed}, {mode:?}: it goes by both for long");
        assert_eq!(ended(&world, client), 1, "seed {seed}: its end is told");
        world.run_for(60 * SECOND);
        assert!(is_back(&world, flows[0]), "seed {seed}");
        world.assert_delivering(SECOND);
        // And where its network is left.
        world.set_link(home, LOSSY);
        assert!(world.wait(15 * SECOND, |w| is_duplicated(w, flows[0])), "seed {seed}, {mode:?}");
        world.detach(client, HOME);
        world.run_for(SECOND);
        assert_eq!((told(&world, client), ended(&world, client)), (2, 2), "seed {seed}");
        world.set_link_wishes(client, Vec::new());
        world.run_for(SECOND);
        world.check();
    }
}

#[test]
fn a_network_that_is_never_to_be_taken_is_not_taken_in_doubt_either() {
    let (Two { mut world, client, home, away, .. }, flows) = with_two(3130, VIGILANT, Link::default());
    world.set_beat(Some(ms(20)));
    let rules = LinkRules { never: [World::link_to(away)].into(), ..LinkRules::default() };
    world.set_link_wishes(client, vec![duplicating(rules)]);
    world.meet_conditions(flows[0], 0, &[3]);
    world.run_for(10 * SECOND);
    world.set_link(home, LOSSY);
    for _ in 0..200 {
        world.run_for(ms(100));
        assert!(is_back(&world, flows[0]), "{:?}", world.verdict(flows[0], 0));
    }
    assert_eq!(told(&world, client), 0);
    world.check();
}

#[test]
fn nor_where_it_is_the_one_that_the_others_go_by() {
    let (Two { mut world, client, home, away, .. }, flows) = with_two(3131, IDLE, Link::default());
    world.set_beat(Some(ms(20)));
    let rules = LinkRules { never: [World::link_to(home)].into(), ..in_order(&[away]) };
    world.set_link_wishes(client, vec![duplicating(rules)]);
    world.meet_conditions(flows[0], 0, &[3]);
    let is_apart = |w: &World| goes(w, flows[0], address(AWAY), address("10.9.0.1")) && !is_duplicated(w, flows[0]);
    assert!(world.wait(20 * SECOND, is_apart));
    world.set_link_facts(client, &[(away, LinkFacts { doubtful: true, ..LinkFacts::default() })]);
    for _ in 0..100 {
        world.run_for(ms(100));
        assert!(!is_duplicated(&world, flows[0]), "{:?}", world.verdict(flows[0], 0));
    }
    assert_eq!(told(&world, client), 0);
    world.check();
}

#[test]
fn flows_that_go_apart_go_by_the_network_in_use_as_well_where_their_own_is_in_doubt() {
    let (Two { mut world, client, home, away, .. }, flows) = with_two(3140, IDLE, Link::default());
    world.set_beat(Some(ms(20)));
    world.set_link_wishes(client, vec![duplicating(in_order(&[away]))]);
    world.meet_conditions(flows[0], 0, &[3]);
    let is_alone = |w: &World| goes(w, flows[0], address(AWAY), address("10.9.0.1")) && !is_duplicated(w, flows[0]);
    assert!(world.wait(20 * SECOND, is_alone));
    world.run_for(10 * SECOND);
    // Layer 2 doubts it, though nothing is lost.
    world.set_link_facts(client, &[(away, LinkFacts { doubtful: true, ..LinkFacts::default() })]);
    let stays = |w: &World| match w.verdict(flows[0], 0) {
        Verdict::Tunnel { path, .. } => path.source == Some(address(AWAY)),
        _ => false,
    };
    assert!(world.wait(SECOND, |w| is_duplicated(w, flows[0]) || !stays(w)));
    assert!(stays(&world), "it goes with the others until both ends agree: {:?}", world.verdict(flows[0], 0));
    assert_eq!(source(&world, client), Some(address(HOME)));
    world.assert_delivering(SECOND);
    world.set_link_facts(client, &[]);
    assert!(world.wait(10 * SECOND, |w| is_alone(w) || !stays(w)));
    assert!(stays(&world), "it goes with the others meanwhile: {:?}", world.verdict(flows[0], 0));
    // That of the others being in doubt says nothing of these.
    world.set_link(home, LOSSY);
    for _ in 0..100 {
        world.run_for(ms(100));
        assert!(is_alone(&world), "{:?}", world.verdict(flows[0], 0));
    }
    world.set_link(home, Link::default());
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn nothing_is_done_for_a_flow_that_has_ended_in_a_moment_of_doubt() {
    for mode in [VIGILANT, IDLE] {
        let (Two { mut world, client, home, .. }, flows) = with_one_meant(3150, mode);
        world.run_for(10 * SECOND);
        world.set_link(home, LOSSY);
        assert!(world.wait(15 * SECOND, |w| is_duplicated(w, flows[0])));
        world.close(flows[0]);
        // The other one keeps the peer.
        for _ in 0..1200 {
            world.run_for(ms(100));
            let (now, mut due) = (world.now(), None);
            world.with_node(client, |node| due = node.poll_timeout());
            assert!(due.is_none_or(|due| due > now), "{mode:?}: time stands still at {now:?}");
        }
        world.check();
    }
}

#[test]
fn the_word_of_a_doubt_goes_by_the_other_network_as_well() {
    for seed in 3160..3180 {
        let (Two { mut world, home, .. }, flows) = with_two(seed, IDLE, Link::default());
        world.set_beat(Some(ms(20)));
        world.run_for(10 * SECOND);
        world.set_link(home, Link { loss: 700, ..LOSSY });
        world.duplicate(flows[0], 0, AWAY);
        assert!(world.wait(ms(200), |w| is_duplicated(w, flows[0])), "seed {seed}: {:?}", world.verdict(flows[0], 0));
        world.check();
    }
}

#[test]
fn what_any_network_loses_now_and_then_is_no_doubt() {
    for (seed, mode) in [(3181, VIGILANT), (3182, IDLE), (3183, VIGILANT), (3184, IDLE)] {
        let (Two { mut world, home, .. }, flows) = with_one_meant(seed, mode);
        world.run_for(60 * SECOND);
        world.set_link(home, Link { loss: 3, ..LOSSY });
        let (mut changes, mut last, mut by_both) = (0, false, 0);
        for _ in 0..6000 {
            world.run_for(ms(100));
            let now = is_duplicated(&world, flows[0]);
            changes += u32::from(std::mem::replace(&mut last, now) != now);
            by_both += u32::from(now);
        }
        println!("seed {seed}, {mode:?}: {changes} changes in ten minutes, {} % of the time by both", by_both / 60);
        assert!(changes <= 12 && by_both <= 400, "seed {seed}, {mode:?}: {changes} changes, {by_both} of 6000");
        world.check();
    }
}

#[test]
fn a_peer_that_is_gone_is_asked_more_and_more_rarely() {
    let (Two { mut world, client, home, away, .. }, flows) = with_two(3190, IDLE, Link::default());
    world.set_link_wishes(client, vec![duplicating(LinkRules::default())]);
    world.meet_conditions(flows[0], 0, &[3]);
    world.run_for(30 * SECOND);
    let count = |world: &mut World, lasts: Duration| {
        let before = world.datagrams();
        world.run_for(lasts);
        world.datagrams() - before
    };
    let there = count(&mut world, 60 * SECOND);
    world.set_cut(home, true);
    world.set_cut(away, true);
    world.run_for(300 * SECOND);
    let gone = count(&mut world, 300 * SECOND);
    println!("{there} datagrams a minute while it answers, {gone} in five while it does not");
    assert!(gone < there, "{gone} in five minutes, and {there} in one while it answers");
    world.check();
}

#[test]
fn by_hand_counts_more() {
    let (Two { mut world, client, home, .. }, flows) = with_one_meant(3195, VIGILANT);
    world.run_for(10 * SECOND);
    world.hand_off(client, Some(HOME));
    world.set_link_facts(client, &[(home, LinkFacts { doubtful: true, ..LinkFacts::default() })]);
    world.run_for(5 * SECOND);
    assert!(!is_duplicated(&world, flows[0]) && told(&world, client) == 0);
    world.check();
}
