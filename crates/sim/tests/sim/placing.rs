//! Single flows that a file means by more than their peer go by a network of their own (P-238).

use whimbrel_protocol::{Carriers, Config, Event, LinkFacts, LinkRules, LinkWish, Time, Why};
use whimbrel_sim::{FlowId, HostId, Link, World};

use crate::common::{AWAY, FURTHER, HOME, SECOND, SERVICE, Two, address, seeds};
use crate::links::{IDLE, VIGILANT, in_order, moves, ms, source, with_two};
use crate::placed::{goes, is_back, is_placed};

/// A section of single flows.
fn of_flows(line: u32, rules: LinkRules) -> LinkWish {
    LinkWish { line, of_flows: true, rules, ..LinkWish::default() }
}

/// Of what sections have moved since then: the line, how many flows, and when.
fn told(world: &World, host: HostId, since: usize) -> Vec<(u32, usize, Time)> {
    let of = world.events.iter().skip(since).filter(|(_, of, _)| *of == host);
    let found = of.filter_map(|(at, _, event)| match event {
        Event::FlowsPlaced { line, flows, .. } => Some((*line, *flows, *at)),
        _ => None,
    });
    found.collect()
}

#[test]
fn of_two_flows_each_goes_by_its_network_and_all_by_the_one_that_is_left() {
    for (seed, mode) in [(2901, VIGILANT), (2902, IDLE)] {
        let (Two { mut world, client, home, away, .. }, flows) = with_two(seed, mode, Link::default());
        world.set_beat(Some(ms(50)));
        world.run_for(5 * SECOND);
        world.set_link_wishes(client, vec![of_flows(3, in_order(&[away]))]);
        world.run_for(10 * SECOND);
        assert!(flows.iter().all(|flow| is_back(&world, *flow)), "nobody has said which flows are meant");
        let before = world.events.len();
        world.meet_conditions(flows[0], 0, &[3]);
        world.run_for(SECOND);
        assert!(is_back(&world, flows[0]), "not at once");
        assert!(world.wait(3 * SECOND, |w| is_placed(w, flows[0])), "{mode:?}");
        assert!(is_back(&world, flows[1]) && source(&world, client) == Some(address(HOME)));
        assert_eq!(told(&world, client, before).iter().map(|of| (of.0, of.1)).collect::<Vec<_>>(), [(3, 1)]);
        let (_, choice) = &world.explain_links(client)[0];
        let placed = &choice.placed[0];
        assert_eq!((placed.line, placed.flows, placed.apart, placed.left_out), (3, 1, 1, 0));
        assert_eq!((placed.selected.link, placed.selected.why), (Some(World::link_to(away)), Why::Rank));
        assert_eq!(choice.line, None, "no section means the peer");
        // One that begins while the section counts goes there when it is introduced.
        let late = world.connect(client, SERVICE);
        world.meet_conditions(late, 0, &[3]);
        assert!(world.wait(15 * SECOND, |w| w.introduced(late)));
        assert!(world.wait(ms(500), |w| is_placed(w, late)));
        world.assert_delivering(SECOND);
        // Its network falls silent, and nobody says so: of flows of UDP nothing is sent again.
        let cut = world.now();
        world.set_cut(away, true);
        assert!(world.wait(10 * SECOND, |w| is_back(w, flows[0]) && is_back(w, late)), "{mode:?}");
        println!("seed {seed}, {mode:?}: left {:?} after the cut", world.now().since(cut));
        assert_eq!(source(&world, client), Some(address(HOME)));
        world.assert_delivering(SECOND);
        world.set_cut(away, false);
        assert!(world.wait(90 * SECOND, |w| is_placed(w, flows[0])), "{mode:?}");
        // By events alone, and that of the others as well.
        world.detach(client, AWAY);
        assert!(world.wait(SECOND, |w| is_back(w, flows[0])), "{mode:?}");
        world.assert_delivering(SECOND);
        world.attach(client, away, AWAY);
        world.hand_off(client, None);
        assert!(world.wait(90 * SECOND, |w| is_placed(w, flows[0])), "{mode:?}");
        world.detach(client, HOME);
        world.assert_delivering(2 * SECOND);
        world.attach(client, home, HOME);
        world.run_for(10 * SECOND);
        // It means them no longer; then nothing is wanted at all.
        world.meet_conditions(flows[0], 0, &[]);
        assert!(world.wait(SECOND, |w| is_back(w, flows[0])), "{mode:?}");
        world.set_link_wishes(client, Vec::new());
        assert!(world.wait(SECOND, |w| is_back(w, late)), "{mode:?}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn a_network_that_flaps_for_a_minute_costs_three_moves_at_the_most() {
    for seed in seeds(4, 20) {
        let (Two { mut world, client, home, away, .. }, flows) = with_two(seed, IDLE, Link::default());
        // The routes of a host follow what it was attached to last; the others are to stay.
        let others = LinkWish { line: 5, rules: in_order(&[home]), ..LinkWish::default() };
        world.set_link_wishes(client, vec![of_flows(3, in_order(&[away])), others]);
        world.meet_conditions(flows[0], 0, &[3]);
        assert!(world.wait(10 * SECOND, |w| is_placed(w, flows[0])), "seed {seed}");
        world.run_for(70 * SECOND);
        let before = world.events.len();
        let side = |w: &World| w.view(flows[0], 0).and_then(|view| view.entry).map(|entry| entry.side);
        let (mut changes, mut last) = (0, side(&world));
        for round in 0..200 {
            if round % 2 == 0 {
                world.detach(client, AWAY);
            } else {
                world.attach(client, away, AWAY);
            }
            for _ in 0..10 {
                world.run_for(ms(30));
                changes += usize::from(std::mem::replace(&mut last, side(&world)) != last);
            }
        }
        let so_far = told(&world, client, before).len();
        println!("seed {seed}: {changes} changes, {so_far} told");
        assert!((1..=3).contains(&changes) && so_far <= 3, "seed {seed}: {changes} changes, {so_far} told");
        assert_eq!(moves(&world, client, before), 0, "seed {seed}: the others stay");
        assert!(world.wait(70 * SECOND, |w| is_placed(w, flows[0])), "seed {seed}: not come back to");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn the_first_section_that_means_a_flow_or_its_peer_counts() {
    let (Two { mut world, client, home, away, .. }, flows) = with_two(2910, VIGILANT, Link::default());
    let all = |line, rules| LinkWish { line, rules, ..LinkWish::default() };
    // Of the peer, first: those that come after it never count.
    world.set_link_wishes(client, vec![all(1, in_order(&[home])), of_flows(5, in_order(&[away]))]);
    world.meet_conditions(flows[0], 0, &[5]);
    world.run_for(10 * SECOND);
    assert!(is_back(&world, flows[0]) && source(&world, client) == Some(address(HOME)));
    assert_eq!(world.explain_links(client)[0].1.placed, []);
    // Both count: the peer goes by one network, and the flow by the other.
    world.set_link_wishes(client, vec![of_flows(1, in_order(&[home])), all(5, in_order(&[away]))]);
    world.meet_conditions(flows[0], 0, &[1]);
    let by_home = |w: &World| goes(w, flows[0], address(HOME), address("10.9.0.1"));
    assert!(world.wait(10 * SECOND, |w| source(w, client) == Some(address(AWAY)) && by_home(w)));
    assert!(is_back(&world, flows[1]));
    world.assert_delivering(SECOND);
    // Of two that mean it the first; one that selects nothing leaves it with the others.
    let nothing = LinkRules { delay_most: Some(ms(1)), ..in_order(&[home]) };
    world.set_link_wishes(client, vec![of_flows(1, nothing), of_flows(2, in_order(&[home]))]);
    world.meet_conditions(flows[0], 0, &[1, 2]);
    assert!(world.wait(10 * SECOND, |w| is_back(w, flows[0]) && source(w, client) == Some(address(HOME))));
    world.run_for(30 * SECOND);
    assert!(is_back(&world, flows[0]));
    let placed = world.explain_links(client)[0].1.placed.clone();
    assert_eq!(
        placed.iter().map(|of| (of.line, of.flows, of.selected.why)).collect::<Vec<_>>(),
        [(1, 1, Why::NothingFits)]
    );
    world.check();
}

#[test]
fn a_flow_follows_the_section_that_counts_for_it_now() {
    let (Two { mut world, client, home, away, .. }, flows) = with_two(2911, IDLE, Link::default());
    // Met later, the first of the two counts, and nothing that it wants can be had.
    let nothing = LinkRules { delay_most: Some(ms(1)), ..in_order(&[home]) };
    world.set_link_wishes(client, vec![of_flows(1, nothing), of_flows(2, in_order(&[away]))]);
    world.meet_conditions(flows[0], 0, &[2]);
    assert!(world.wait(10 * SECOND, |w| is_placed(w, flows[0])));
    world.meet_conditions(flows[0], 0, &[1, 2]);
    assert!(world.wait(3 * SECOND, |w| is_back(w, flows[0])), "nothing has it there any more");
    // A section of the peer hid one of its flows, and is gone; nothing is said of the flow anew.
    let others = LinkWish { line: 1, rules: in_order(&[home]), ..LinkWish::default() };
    world.set_link_wishes(client, vec![others, of_flows(5, in_order(&[away]))]);
    world.meet_conditions(flows[1], 0, &[5]);
    world.run_for(10 * SECOND);
    assert!(is_back(&world, flows[1]));
    world.set_link_wishes(client, vec![of_flows(5, in_order(&[away]))]);
    assert!(world.wait(10 * SECOND, |w| is_placed(w, flows[1])), "it is meant now");
    // It stands in another line, and says the same: nothing goes to and fro.
    world.set_link_wishes(client, vec![of_flows(6, in_order(&[away]))]);
    world.meet_conditions(flows[1], 0, &[6]);
    assert!(world.wait(ms(500), |w| is_placed(w, flows[1])), "at once");
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn what_is_chosen_by_hand_counts_more_and_what_is_about_to_go_is_left() {
    const LEAVING: LinkFacts =
        LinkFacts { signal: None, rate: None, doubtful: false, leaving: true, captive: false, metered: false };
    let (Two { mut world, client, away, .. }, flows) = with_two(2915, IDLE, Link::default());
    world.set_link_wishes(client, vec![of_flows(1, in_order(&[away]))]);
    world.meet_conditions(flows[0], 0, &[1]);
    assert!(world.wait(10 * SECOND, |w| is_placed(w, flows[0])));
    world.set_link_facts(client, &[(away, LEAVING)]);
    assert!(world.wait(SECOND, |w| is_back(w, flows[0])), "at once");
    world.assert_delivering(SECOND);
    world.set_link_facts(client, &[]);
    assert!(world.wait(90 * SECOND, |w| is_placed(w, flows[0])));
    world.run_for(70 * SECOND);
    world.hand_off(client, Some(HOME));
    assert!(world.wait(5 * SECOND, |w| is_back(w, flows[0])), "all goes where somebody has said");
    world.run_for(30 * SECOND);
    assert!(is_back(&world, flows[0]));
    world.hand_off(client, None);
    assert!(world.wait(90 * SECOND, |w| is_placed(w, flows[0])));
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn a_peer_that_has_no_tunnel_or_is_started_anew_loses_nothing() {
    // Who has no tunnel leads nothing by it: the flow goes with the others.
    let carriers = Carriers { rewrite: true, tunnel: false };
    let mut two = Two::nowhere(2920, Config::default(), Config { carriers, ..Config::default() });
    two.world.attach(two.client, two.away, AWAY);
    two.world.attach(two.client, two.home, HOME);
    let flows = two.flow(2);
    let Two { mut world, client, away, .. } = two;
    world.set_link_wishes(client, vec![of_flows(1, in_order(&[away]))]);
    world.meet_conditions(flows[0], 0, &[1]);
    world.run_for(60 * SECOND);
    assert!(is_back(&world, flows[0]));
    assert_eq!(world.explain_links(client)[0].1.placed[0].apart, 0, "and it is said so");
    world.assert_delivering(SECOND);
    world.check();
    let (Two { mut world, client, server, away, .. }, flows) = with_two(2921, IDLE, Link::default());
    world.set_link_wishes(client, vec![of_flows(1, in_order(&[away]))]);
    world.meet_conditions(flows[0], 0, &[1]);
    assert!(world.wait(10 * SECOND, |w| is_placed(w, flows[0])));
    world.restart(server, ms(500));
    assert!(world.wait(60 * SECOND, |w| is_placed(w, flows[0])));
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn a_flow_that_is_introduced_anew_is_placed_by_its_new_name() {
    let (Two { mut world, client, server, further, far, .. }, flows) = with_two(2925, IDLE, Link::default());
    world.attach(server, further, FURTHER);
    world.run_for(SECOND);
    let others = LinkWish { line: 5, rules: in_order(&[far]), ..LinkWish::default() };
    world.set_link_wishes(server, vec![of_flows(1, in_order(&[further])), others]);
    world.meet_conditions(flows[0], 1, &[1]);
    let placed = |w: &World| goes(w, flows[0], address(HOME), address(FURTHER));
    assert!(world.wait(20 * SECOND, placed));
    let name = |w: &World| w.view(flows[0], 1).and_then(|view| view.entry).map(|entry| entry.name);
    let before = name(&world);
    // The daemon that has introduced it knows of nothing any more.
    world.crash(client);
    world.forget_saved(client);
    world.boot(client);
    assert!(world.wait(90 * SECOND, |w| w.introduced(flows[0]) && name(w) != before && placed(w)));
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn both_ends_may_want_it_and_one_has_its_way() {
    for seed in [2930, 2931] {
        let (Two { mut world, client, server, further, home, away, .. }, flows) = with_two(seed, IDLE, Link::default());
        world.attach(server, further, FURTHER);
        world.run_for(SECOND);
        world.hand_off(server, Some("10.9.0.1"));
        world.run_for(SECOND);
        world.set_link_wishes(client, vec![of_flows(1, in_order(&[away, home]))]);
        world.set_link_wishes(server, vec![of_flows(1, in_order(&[further]))]);
        world.meet_conditions(flows[0], 0, &[1]);
        world.meet_conditions(flows[0], 1, &[1]);
        // By hand counts more at the server, until that is given up.
        assert!(world.wait(10 * SECOND, |w| is_placed(w, flows[0])), "seed {seed}");
        world.hand_off(server, None);
        let is_so = |w: &World| {
            let by_client = ["10.9.0.1", FURTHER].map(|at| goes(w, flows[0], address(AWAY), address(at)));
            by_client.contains(&true) || goes(w, flows[0], address(HOME), address(FURTHER))
        };
        assert!(world.wait(10 * SECOND, is_so), "seed {seed}: one of them has its way");
        world.assert_delivering(SECOND);
        world.set_link_wishes(client, Vec::new());
        world.set_link_wishes(server, Vec::new());
        assert!(world.wait(5 * SECOND, |w| is_back(w, flows[0])), "seed {seed}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn what_has_no_room_goes_with_the_others_and_is_told_once() {
    let (Two { mut world, client, away, .. }, flows) = with_two(2940, IDLE, Link::default());
    world.set_link_wishes(client, vec![of_flows(7, in_order(&[away]))]);
    let more: Vec<FlowId> = (0..129).map(|_| world.connect(client, SERVICE)).collect();
    let all: Vec<FlowId> = flows.into_iter().chain(more).collect();
    all.iter().for_each(|flow| world.meet_conditions(*flow, 0, &[7]));
    assert!(world.wait(120 * SECOND, |w| all.iter().all(|flow| w.introduced(*flow))));
    let placed = |w: &World| all.iter().filter(|flow| is_placed(w, **flow)).count();
    assert!(world.wait(20 * SECOND, |w| placed(w) == 128), "{}", placed(&world));
    world.run_for(30 * SECOND);
    let full = |(_, of, event): &&(Time, HostId, Event)| {
        *of == client && matches!(event, Event::FlowsNotPlaced { line: 7, flows: 1..=3, .. })
    };
    assert_eq!(world.events.iter().filter(full).count(), 1);
    let choice = world.explain_links(client)[0].1.placed[0].clone();
    assert_eq!((choice.flows, choice.apart, choice.left_out), (131, 128, 3));
    // There is room again.
    let over: Vec<FlowId> = all.iter().filter(|flow| is_placed(&world, **flow)).take(5).copied().collect();
    over.iter().for_each(|flow| world.close(*flow));
    world.run_for(5 * SECOND);
    world.stall(all[130], 0);
    assert!(world.wait(10 * SECOND, |w| placed(w) == 126), "{}", placed(&world));
    world.assert_delivering(SECOND);
    world.check();
}
