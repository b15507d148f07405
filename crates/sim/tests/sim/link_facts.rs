//! What is known of links by themselves (P-233, P-234).

use std::time::Duration;

use whimbrel_protocol::{Against, Event, LinkFacts, LinkFault, LinkRules, LinkWish, SilenceMode, Time};
use whimbrel_sim::{HostId, Link, World};

use crate::common::{AWAY, HOME, SECOND, Two, address, seeds};
use crate::links::{IDLE, VIGILANT, hand_offs, moves, ms, source, with_two};

const NOTHING: LinkFacts =
    LinkFacts { signal: None, rate: None, doubtful: false, leaving: false, captive: false, metered: false };
const LEAVING: LinkFacts = LinkFacts { leaving: true, ..NOTHING };
const CAPTIVE: LinkFacts = LinkFacts { captive: true, ..NOTHING };
const DOUBTFUL: LinkFacts = LinkFacts { doubtful: true, ..NOTHING };
const METERED: LinkFacts = LinkFacts { metered: true, ..NOTHING };

/// Why peers were moved since then.
fn faults(world: &World, host: HostId, since: usize) -> Vec<Option<LinkFault>> {
    let of = world.events.iter().skip(since).filter(|(_, of, _)| *of == host);
    let found = of.filter_map(|(.., event)| match event {
        Event::NetworkUnfit { fault, .. } => Some(*fault),
        _ => None,
    });
    found.collect()
}

#[test]
fn a_doubt_of_layer_2_has_peers_asked_at_once() {
    for seed in seeds(6, 30) {
        for mode in [VIGILANT, IDLE] {
            let (Two { mut world, client, home, .. }, _) = with_two(seed, mode, Link::default());
            world.run_for(60 * SECOND);
            let before = world.events.len();
            // It is mistaken.
            world.set_link_facts(client, &[(home, DOUBTFUL)]);
            world.run_for(60 * SECOND);
            assert!(hand_offs(&world, client, before).is_empty(), "seed {seed}, {mode:?}");
            world.set_link_facts(client, &[]);
            world.run_for(SECOND);
            // It is right. Nothing was sent, and sh1 has not passed.
            world.set_cut(home, true);
            let cut = world.now();
            world.set_link_facts(client, &[(home, DOUBTFUL)]);
            assert!(world.wait(5 * SECOND, |w| source(w, client) == Some(address(AWAY))), "seed {seed}, {mode:?}");
            let found: Vec<(Time, Option<Duration>)> = hand_offs(&world, client, before);
            let took = found[0].0.since(cut);
            println!("seed {seed}, {mode:?}: left after {took:?}");
            assert!(took < ms(500), "seed {seed}, {mode:?}: {took:?}");
            world.assert_delivering(SECOND);
            world.check();
        }
    }
    // Who is told to look for nothing asks nothing.
    let (Two { mut world, client, home, .. }, _) = with_two(2800, SilenceMode::Off, Link::default());
    world.set_cut(home, true);
    world.set_link_facts(client, &[(home, DOUBTFUL)]);
    world.run_for(5 * SECOND);
    assert_eq!(source(&world, client), Some(address(HOME)));
}

#[test]
fn a_network_that_is_about_to_go_is_left_beforehand_and_nothing_is_lost() {
    for (seed, mode) in [(2810, VIGILANT), (2811, IDLE), (2812, SilenceMode::Off)] {
        let (Two { mut world, client, home, .. }, _) = with_two(seed, mode, Link::default());
        world.set_beat(Some(ms(20)));
        world.run_for(5 * SECOND);
        let before = world.events.len();
        world.set_link_facts(client, &[(home, LEAVING)]);
        assert!(world.wait(SECOND, |w| source(w, client) == Some(address(AWAY))), "{mode:?}");
        world.run_for(SECOND);
        world.detach(client, HOME);
        world.run_for(5 * SECOND);
        assert_eq!(source(&world, client), Some(address(AWAY)), "{mode:?}");
        assert_eq!(faults(&world, client, before), [Some(LinkFault::Leaving)], "{mode:?}");
        // Its interface is gone, and nothing is known of it. When it is there again, all is as ever, after a while.
        world.set_link_facts(client, &[]);
        world.attach(client, home, HOME);
        assert!(world.wait(10 * SECOND, |w| source(w, client) == Some(address(HOME))), "{mode:?}");
        world.run_for(5 * SECOND);
        assert_eq!(world.at(client).plane.led, [], "{mode:?}");
        let explained = world.explain_links(client);
        let (_, choice) = &explained[0];
        assert_eq!((choice.selected.link, choice.natural), (Some(World::link_to(home)), World::link_to(home)));
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn a_network_that_is_about_to_go_is_not_left_for_one_that_does_not_answer() {
    let (Two { mut world, client, home, away, .. }, _) = with_two(2820, IDLE, Link::default());
    world.set_cut(away, true);
    world.set_link_facts(client, &[(home, LEAVING)]);
    world.run_for(30 * SECOND);
    assert_eq!(source(&world, client), Some(address(HOME)));
    world.set_cut(away, false);
    assert!(world.wait(60 * SECOND, |w| source(w, client) == Some(address(AWAY))), "it answers now");
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn connections_stay_out_of_a_portal() {
    for (seed, mode) in [(2830, VIGILANT), (2831, IDLE)] {
        let (Two { mut world, client, home, .. }, _) = with_two(seed, mode, Link::default());
        world.detach(client, HOME);
        world.run_for(20 * SECOND);
        assert_eq!(source(&world, client), Some(address(AWAY)), "{mode:?}");
        let before = world.events.len();
        // The routes lead to the network that appears, and it is known what that is.
        world.set_link_facts(client, &[(home, CAPTIVE)]);
        world.attach(client, home, HOME);
        world.run_for(30 * SECOND);
        assert_eq!(source(&world, client), Some(address(AWAY)), "{mode:?}");
        assert_eq!(moves(&world, client, before), 0, "{mode:?}");
        let explained = world.explain_links(client);
        let against = (World::link_to(home), Against::Fault(LinkFault::Captive));
        assert_eq!(explained[0].1.selected.others, [against], "{mode:?}");
        // Somebody has logged in.
        world.set_link_facts(client, &[]);
        assert!(world.wait(10 * SECOND, |w| source(w, client) == Some(address(HOME))), "{mode:?}");
        assert_eq!(faults(&world, client, before), [None], "{mode:?}");
        // It is known too late: it is left again, at once.
        let before = world.events.len();
        world.set_link_facts(client, &[(home, CAPTIVE)]);
        assert!(world.wait(SECOND, |w| source(w, client) == Some(address(AWAY))), "{mode:?}");
        assert_eq!(faults(&world, client, before), [Some(LinkFault::Captive)], "{mode:?}");
        // The network that is in use instead goes: a portal is better than nothing.
        world.detach(client, AWAY);
        assert!(world.wait(5 * SECOND, |w| source(w, client) == Some(address(HOME))), "{mode:?}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn what_is_known_by_turns_moves_a_peer_four_times_in_a_minute_at_the_most() {
    for seed in seeds(3, 20) {
        let (Two { mut world, client, home, .. }, _) = with_two(seed, IDLE, Link::default());
        world.run_for(70 * SECOND);
        let before = world.events.len();
        for round in 0..60 {
            let facts = if round % 2 == 0 { CAPTIVE } else { NOTHING };
            world.set_link_facts(client, &[(home, facts)]);
            world.run_for(SECOND);
        }
        let moves = moves(&world, client, before);
        assert!((1..=4).contains(&moves), "seed {seed}: {moves}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn what_costs_has_a_price_where_the_file_gives_none() {
    let (Two { mut world, client, home, away, .. }, _) = with_two(2840, IDLE, Link::default());
    let wish = |rules| vec![LinkWish { line: 1, rules, ..LinkWish::default() }];
    world.set_link_facts(client, &[(home, METERED)]);
    world.run_for(10 * SECOND);
    assert_eq!(source(&world, client), Some(address(HOME)), "nobody asks for it");
    // A section that says nothing of either.
    let other = LinkRules { lost_most: Some(900), ..LinkRules::default() };
    world.set_link_wishes(client, wish(other));
    assert!(world.wait(10 * SECOND, |w| source(w, client) == Some(address(AWAY))));
    world.run_for(5 * SECOND);
    let explained = world.explain_links(client);
    assert_eq!(explained[0].1.selected.others, [(World::link_to(home), Against::Price)]);
    // What the file says counts.
    let prices = [(World::link_to(home), 0), (World::link_to(away), 0)].into();
    world.set_link_wishes(client, wish(LinkRules { prices, ..LinkRules::default() }));
    assert!(world.wait(70 * SECOND, |w| source(w, client) == Some(address(HOME))));
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn what_is_received_too_weakly_is_left_and_come_back_to_when_it_is_stronger_by_enough() {
    let (Two { mut world, client, home, .. }, _) = with_two(2850, IDLE, Link::default());
    let signal = |signal| LinkFacts { signal: Some(signal), ..NOTHING };
    world.set_link_facts(client, &[(home, signal(-60))]);
    let rules = LinkRules { signal_least: Some(-70), ..LinkRules::default() };
    world.set_link_wishes(client, vec![LinkWish { line: 1, rules, ..LinkWish::default() }]);
    world.run_for(10 * SECOND);
    world.set_link_facts(client, &[(home, signal(-70))]);
    world.run_for(10 * SECOND);
    assert_eq!(source(&world, client), Some(address(HOME)));
    world.set_link_facts(client, &[(home, signal(-71))]);
    assert!(world.wait(10 * SECOND, |w| source(w, client) == Some(address(AWAY))));
    world.set_link_facts(client, &[(home, signal(-65))]);
    world.run_for(90 * SECOND);
    assert_eq!(source(&world, client), Some(address(AWAY)), "stronger, and not by enough");
    world.set_link_facts(client, &[(home, signal(-64))]);
    assert!(world.wait(10 * SECOND, |w| source(w, client) == Some(address(HOME))));
    world.assert_delivering(SECOND);
    world.check();
}
