//! Networks that fall silent, though nothing says so (P-230 to P-232).

use std::time::Duration;

use whimbrel_protocol::{Against, Config, Event, Led, LinkRules, LinkWish, Links, PathState, SilenceMode, Time, Why};
use whimbrel_sim::{FlowId, HostId, Link, Parting, World};

use crate::common::{AWAY, FURTHER, HOME, SECOND, SERVICE, Two, address, seeds};

pub(crate) const VIGILANT: SilenceMode = SilenceMode::Vigilant;
pub(crate) const IDLE: SilenceMode = SilenceMode::Idle;
const NO_DELAY: Link = Link { delay: Duration::ZERO, jitter: Duration::ZERO, loss: 0, duplicate: 0, reorder: 0 };

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn looking(mode: SilenceMode) -> Config {
    Config { links: Links { mode, ..Links::default() }, ..Config::default() }
}

/// A client with two networks, and flows that nothing is sent on. The first network is in use, and its link does this
/// to packets; the others delay them as much.
pub(crate) fn with_two(seed: u64, mode: SilenceMode, link: Link) -> (Two, Vec<FlowId>) {
    let mut two = Two::nowhere(seed, looking(mode), Config::default());
    two.world.set_links(Link { jitter: Duration::ZERO, loss: 0, ..link });
    two.world.set_link(two.home, link);
    // Each question and each answer is one.
    two.world.allow_datagrams(200);
    two.world.attach(two.client, two.away, AWAY);
    two.world.attach(two.client, two.home, HOME);
    let flows = two.flow(2);
    two.world.set_beat(None);
    (two, flows)
}

/// Hand-offs that a host has made since then because a network was silent, or was so no longer: when, and how long it
/// was silent.
pub(crate) fn hand_offs(world: &World, host: HostId, since: usize) -> Vec<(Time, Option<Duration>)> {
    let of = world.events.iter().skip(since).filter(|(_, of, _)| *of == host);
    let found = of.filter_map(|(at, _, event)| match event {
        Event::NetworkSilent { silent, .. } => Some((*at, Some(*silent))),
        Event::NetworkBack { .. } => Some((*at, None)),
        _ => None,
    });
    found.collect()
}

pub(crate) fn source(world: &World, host: HostId) -> Option<std::net::IpAddr> {
    world.peer(host).source
}

#[test]
fn silent_cut_at_rest_vigilant() {
    let mut took = Vec::new();
    for seed in seeds(25, 100) {
        let (Two { mut world, client, home, .. }, _) = with_two(seed, VIGILANT, NO_DELAY);
        // What is lost by chance has to be learned first: nothing is.
        world.run_for(40 * SECOND + Duration::from_micros(seed * 7919 % 30_000));
        let (before, cut) = (world.events.len(), world.now());
        world.set_cut(home, true);
        let moved = |w: &World| {
            let mut of = w.events.iter().skip(before).filter(|(_, of, _)| *of == client);
            of.find(|(.., event)| matches!(event, Event::Moved { .. })).map(|(at, ..)| *at)
        };
        assert!(world.wait(SECOND, |w| moved(w).is_some()), "seed {seed}: {:?}", world.peer(client));
        let silent = hand_offs(&world, client, before)[0].1.unwrap_or_default();
        assert!(silent >= ms(45), "seed {seed}: after {silent:?}, before the second threshold");
        took.push(moved(&world).unwrap_or_default().since(cut));
        assert_eq!(source(&world, client), Some(address(AWAY)));
        world.assert_delivering(SECOND);
        world.check();
    }
    took.sort_unstable();
    eprintln!("cut to moved, {} seeds: {:?} median, {:?} at most", took.len(), took[took.len() / 2], took.last());
    assert!(took[took.len() / 2] <= ms(40), "{took:?}");
}

#[test]
fn what_has_addresses_of_the_other_family_is_led_away_from_a_silent_network_as_well() {
    for seed in seeds(5, 50) {
        let (mut two, _) = with_two(seed, VIGILANT, Link::default());
        two.world.attach(two.server, two.far, "2001:db8:9::1");
        two.world.attach(two.client, two.home, "2001:db8:1::2");
        two.world.connect(two.client, "[2001:db8:9::1]:80");
        let Two { mut world, client, home, .. } = two;
        world.run_for(20 * SECOND);
        assert_eq!(world.at(client).plane.led, [], "seed {seed}");
        world.set_cut(home, true);
        assert!(world.wait(2 * SECOND, |w| source(w, client) == Some(address(AWAY))), "seed {seed}");
        world.run_for(SECOND);
        // The network that is gone was the one with IPv6, so only the tunnel leads there.
        let led: Vec<_> = world.at(client).plane.led.iter().map(|way| (way.to, way.by, way.all)).collect();
        let wanted = [SERVICE.trim_end_matches(":80"), "2001:db8:9::1"].map(|to| (address(to), address(AWAY), true));
        assert_eq!(led, wanted, "seed {seed}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn what_is_silent_is_left_when_something_is_sent_in_idle_mode() {
    for seed in seeds(5, 50) {
        let (Two { mut world, client, home, .. }, flows) = with_two(seed, IDLE, Link::default());
        world.run_for(30 * SECOND);
        assert!(world.peer(client).kept.is_empty(), "nothing is kept at rest");
        world.set_cut(home, true);
        world.run_for(20 * SECOND);
        assert_eq!(source(&world, client), Some(address(HOME)), "nobody has asked");
        let before = world.events.len();
        world.stall(flows[0], 0);
        assert!(world.wait(SECOND, |w| source(w, client) == Some(address(AWAY))), "seed {seed}");
        world.assert_delivering(SECOND);
        assert_eq!(hand_offs(&world, client, before).len(), 1);
        world.check();
    }
}

#[test]
fn idle_ssh_for_an_hour() {
    let sent = |mode| {
        let (Two { mut world, client, .. }, _) = with_two(2601, mode, Link::default());
        world.run_for(60 * SECOND);
        let before = world.datagrams();
        world.run_for(3600 * SECOND);
        assert!(hand_offs(&world, client, 0).is_empty());
        world.datagrams() - before
    };
    let (idle, off, vigilant) = (sent(IDLE), sent(SilenceMode::Off), sent(VIGILANT));
    eprintln!("datagrams of both ends in an hour at rest: off {off}, idle {idle}, vigilant {vigilant}");
    assert_eq!(idle, off);
    // A question and its answer in 30 ms and a round trip of 20, and the path that is kept.
    assert!((100_000..160_000).contains(&vigilant), "{vigilant}");
}

/// An hour on a link that is bad, and never silent: no hand-off, and how much was asked.
fn an_hour(name: &str, link: Link) {
    for seed in seeds(1, 5) {
        let (Two { mut world, client, .. }, _) = with_two(seed, VIGILANT, link);
        world.tracing = false;
        let before = world.datagrams();
        world.run_for(3600 * SECOND);
        let asked = world.datagrams() - before;
        eprintln!("{name}, seed {seed}: {asked} datagrams of both ends in an hour");
        let moved = hand_offs(&world, client, 0);
        assert!(moved.is_empty(), "{name}, seed {seed}: {moved:?}");
        world.assert_delivering(10 * SECOND);
    }
}

#[test]
fn jitter_100_loss_5_for_an_hour() {
    an_hour("100 ms of jitter, 5 % lost each way", Link { jitter: ms(100), loss: 50, ..Link::default() });
}

#[test]
fn round_trip_600_for_an_hour() {
    an_hour("a round trip of 600 ms", Link { delay: ms(150), ..Link::default() });
}

#[test]
fn flap_300_ms_for_a_minute() {
    for seed in seeds(5, 50) {
        let (Two { mut world, client, home, .. }, _) = with_two(seed, VIGILANT, Link::default());
        world.run_for(30 * SECOND);
        let before = world.events.len();
        for turn in 0..200 {
            world.set_cut(home, turn % 2 == 0);
            world.run_for(ms(300));
        }
        let moved = hand_offs(&world, client, before);
        assert!(!moved.is_empty() && moved.len() <= 3, "seed {seed}: {moved:?}");
        world.assert_delivering(SECOND);
        // It stays up: it is come back to.
        assert!(world.wait(120 * SECOND, |w| source(w, client) == Some(address(HOME))), "seed {seed}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn a_network_that_answers_again_is_come_back_to_and_nothing_is_lost() {
    for seed in seeds(5, 50) {
        let (Two { mut world, client, home, .. }, flows) = with_two(seed, VIGILANT, Link::default());
        world.run_for(10 * SECOND);
        world.set_cut(home, true);
        assert!(world.wait(2 * SECOND, |w| source(w, client) == Some(address(AWAY))), "seed {seed}");
        world.run_for(3 * SECOND);
        let missing = |world: &World| -> u64 {
            let of = |flow: &FlowId| (world.flow(*flow).sent, world.flow(*flow).received);
            flows.iter().map(of).map(|(sent, received)| sent[0] + sent[1] - received[0] - received[1]).sum()
        };
        let (before, events) = (missing(&world), world.events.len());
        world.set_cut(home, false);
        world.set_beat(Some(ms(1)));
        assert!(world.wait(10 * SECOND, |w| source(w, client) == Some(address(HOME))), "seed {seed}");
        world.run_for(SECOND);
        world.set_beat(None);
        world.run_for(SECOND);
        assert_eq!(missing(&world), before, "seed {seed}: make before break");
        assert_eq!(hand_offs(&world, client, events).len(), 1);
        world.run_for(60 * SECOND);
        assert_eq!(source(&world, client), Some(address(HOME)));
        world.check();
    }
}

#[test]
fn without_an_alternative_all_stays_as_it_is() {
    for (seed, mode) in [(2610, VIGILANT), (2611, IDLE)] {
        // A single network; and two, of which the other is silent as well.
        for both in [false, true] {
            let mut two = Two::nowhere(seed, looking(mode), Config::default());
            if both {
                two.world.attach(two.client, two.away, AWAY);
            }
            two.world.attach(two.client, two.home, HOME);
            let flows = two.flow(2);
            let Two { mut world, client, home, away, .. } = two;
            world.run_for(SECOND);
            world.set_cut(away, true);
            world.set_cut(home, true);
            world.stall(flows[0], 0);
            world.run_for(30 * SECOND);
            assert!(hand_offs(&world, client, 0).is_empty());
            assert_eq!(source(&world, client), Some(address(HOME)));
            world.set_cut(home, false);
            world.assert_delivering(3 * SECOND);
            world.run_for(10 * SECOND);
            assert_eq!(source(&world, client), Some(address(HOME)));
            world.check();
        }
    }
}

#[test]
fn of_two_networks_that_are_silent_that_is_taken_which_answers_first() {
    for (seed, mode) in [(2612, VIGILANT), (2613, IDLE)] {
        let (Two { mut world, client, home, away, .. }, flows) = with_two(seed, mode, Link::default());
        world.run_for(SECOND);
        [home, away].into_iter().for_each(|network| world.set_cut(network, true));
        world.set_beat(Some(ms(7)));
        world.stall(flows[0], 0);
        world.run_for(20 * SECOND);
        world.set_cut(away, false);
        assert!(world.wait(3 * SECOND / 2, |w| source(w, client) == Some(address(AWAY))), "{mode:?}");
        world.assert_delivering(2 * SECOND);
        world.set_cut(home, false);
        assert!(world.wait(60 * SECOND, |w| source(w, client) == Some(address(HOME))), "{mode:?}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn only_one_peer_is_gone() {
    for seed in seeds(3, 30) {
        let mut two = Two::nowhere(seed, looking(VIGILANT), Config::default());
        let other = two.world.host("other");
        two.world.attach(other, two.further, FURTHER);
        two.world.attach(two.client, two.away, AWAY);
        two.world.attach(two.client, two.home, HOME);
        two.world.connect(two.client, &format!("{FURTHER}:80"));
        two.flow(2);
        let Two { mut world, client, home, far, .. } = two;
        world.run_for(5 * SECOND);
        let before = world.events.len();
        world.faults.part = Some(Parting { networks: [home, far], from: world.sent() });
        world.run_for(5 * SECOND);
        let at: Vec<_> = world.peers(client).into_iter().map(|peer| (peer.remote.ip(), peer.source)).collect();
        let server = address(SERVICE.split(':').next().unwrap_or_default());
        for (remote, source) in at {
            let from = if remote == server { AWAY } else { HOME };
            assert_eq!(source, Some(address(from)), "seed {seed}: towards {remote}");
        }
        assert_eq!(hand_offs(&world, client, before).len(), 1, "seed {seed}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn a_new_network_that_leads_nowhere_is_left_for_the_one_before() {
    for (seed, mode) in [(2620, VIGILANT), (2621, IDLE)] {
        let mut two = Two::nowhere(seed, looking(mode), Config::default());
        two.world.attach(two.client, two.away, AWAY);
        two.flow(2);
        let Two { mut world, client, home, .. } = two;
        world.run_for(5 * SECOND);
        world.set_cut(home, true);
        // It is preferred from now on, as a captive portal's.
        world.attach(client, home, HOME);
        assert!(world.wait(5 * SECOND, |w| source(w, client) == Some(address(AWAY))), "{mode:?}");
        world.assert_delivering(SECOND);
        world.run_for(10 * SECOND);
        assert_eq!(source(&world, client), Some(address(AWAY)), "{mode:?}");
        world.set_cut(home, false);
        assert!(world.wait(60 * SECOND, |w| source(w, client) == Some(address(HOME))), "{mode:?}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn what_is_chosen_by_hand_counts_more_than_what_was_found() {
    let (Two { mut world, client, home, .. }, _) = with_two(2630, VIGILANT, Link::default());
    world.run_for(5 * SECOND);
    world.set_cut(home, true);
    assert!(world.wait(SECOND, |w| source(w, client) == Some(address(AWAY))));
    world.set_cut(home, false);
    // At once, and not when it has answered for two seconds.
    world.hand_off(client, Some(HOME));
    world.run_for(ms(500));
    assert_eq!(source(&world, client), Some(address(HOME)));
    world.assert_delivering(SECOND);
    // The other way round, it is gone back to by hand alone.
    world.hand_off(client, Some(AWAY));
    world.run_for(30 * SECOND);
    assert_eq!(source(&world, client), Some(address(AWAY)));
    world.check();
}

#[test]
fn what_is_chosen_by_hand_against_the_routes_is_led_there_where_nothing_else_answers() {
    let (Two { mut world, client, home, .. }, _) = with_two(2635, SilenceMode::Off, Link::default());
    let led = |w: &World| w.at(client).plane.led.clone();
    world.run_for(5 * SECOND);
    // The network that the routes prefer fails, and nothing says so.
    world.set_cut(home, true);
    let before = world.events.len();
    world.hand_off(client, Some(AWAY));
    assert!(world.at(client).named.contains(&address(AWAY)), "the update would leave by the network that fails");
    assert_eq!(led(&world), [], "the other network carries until the peer has answered");
    let way = |all| Led { to: address(SERVICE.trim_end_matches(":80")), by: address(AWAY), all };
    assert!(world.wait(SECOND, |w| source(w, client) == Some(address(AWAY))));
    let moved = |event: &Event| matches!(event, Event::Moved { .. });
    assert!(world.wait(SECOND, |w| w.events.iter().skip(before).any(|(.., event)| moved(event))));
    world.assert_delivering(SECOND);
    assert!(world.wait(5 * SECOND, |w| led(w) == [way(true)]), "{:?}", led(&world));
    // It works again: what is sent from its address may go there.
    world.set_cut(home, false);
    assert!(world.wait(120 * SECOND, |w| led(w) == [way(false)]), "{:?}", world.peer(client).kept);
    assert_eq!(source(&world, client), Some(address(AWAY)), "and stays by hand");
    world.run_for(60 * SECOND);
    assert_eq!(led(&world), [way(false)]);
    // It fails again, and comes back. What was chosen is given up, and all is as ever.
    world.set_cut(home, true);
    assert!(world.wait(60 * SECOND, |w| led(w) == [way(true)]));
    world.set_cut(home, false);
    world.hand_off(client, None);
    assert_eq!(led(&world), []);
    world.run_for(SECOND);
    assert_eq!((source(&world, client), world.peer(client).kept), (Some(address(HOME)), Vec::new()));
    world.assert_delivering(SECOND);
    world.check();
}

#[test]
fn a_host_that_was_asleep_takes_no_network_for_silent() {
    let (Two { mut world, client, .. }, _) = with_two(2640, VIGILANT, Link::default());
    world.run_for(5 * SECOND);
    for pause in [ms(40), ms(300), 5 * SECOND, 3600 * SECOND] {
        world.sleep_all(pause);
        world.run_for(2 * SECOND);
    }
    assert!(hand_offs(&world, client, 0).is_empty(), "{:?}", hand_offs(&world, client, 0));
    world.assert_delivering(SECOND);
}

#[test]
fn paths_are_kept_by_who_is_vigilant() {
    let (Two { mut world, client, .. }, _) = with_two(2650, VIGILANT, Link::default());
    world.run_for(SECOND);
    let kept = world.peer(client).kept;
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].attachment.address, kept[0].state), (address(AWAY), PathState::Confirmed));
}

#[test]
fn it_is_left_again_and_come_back_to() {
    let (Two { mut world, client, home, .. }, _) = with_two(2660, VIGILANT, Link { delay: ms(10), ..Link::default() });
    world.set_beat(Some(ms(7)));
    world.run_for(5 * SECOND);
    for round in 0..3 {
        world.set_cut(home, true);
        assert!(world.wait(SECOND, |w| source(w, client) == Some(address(AWAY))), "round {round}");
        world.run_for(6 * SECOND);
        world.set_cut(home, false);
        assert!(world.wait(90 * SECOND, |w| source(w, client) == Some(address(HOME))), "round {round}");
        world.run_for(SECOND / 2);
    }
    world.check();
}

/// Of these networks the first is wanted most.
pub(crate) fn in_order(networks: &[whimbrel_sim::NetworkId]) -> LinkRules {
    LinkRules {
        ranks: networks.iter().map(|network| World::link_to(*network)).zip(0..).collect(),
        ..LinkRules::default()
    }
}

fn wish(rules: LinkRules) -> Vec<LinkWish> {
    vec![LinkWish { line: 1, rules, ..LinkWish::default() }]
}

#[test]
fn the_network_that_comes_first_is_taken_left_and_come_back_to() {
    for (seed, mode) in [(2670, VIGILANT), (2671, IDLE), (2672, SilenceMode::Off)] {
        let (Two { mut world, client, home, away, .. }, flows) = with_two(seed, mode, Link::default());
        let led = |w: &World| w.at(client).plane.led.clone();
        world.run_for(5 * SECOND);
        world.set_link_wishes(client, wish(in_order(&[away, home])));
        world.run_for(SECOND);
        assert_eq!(source(&world, client), Some(address(HOME)), "{mode:?}: not at once");
        assert!(world.wait(3 * SECOND, |w| source(w, client) == Some(address(AWAY))), "{mode:?}");
        world.assert_delivering(SECOND);
        let way = Led { to: address(SERVICE.trim_end_matches(":80")), by: address(AWAY), all: false };
        assert_eq!(led(&world), [way], "{mode:?}");
        let explained = world.explain_links(client);
        let (_, choice) = &explained[0];
        assert_eq!((choice.in_use, choice.natural), (World::link_to(away), World::link_to(home)));
        assert_eq!((choice.selected.link, choice.selected.why), (Some(World::link_to(away)), Why::Rank));
        assert_eq!(choice.selected.others, [(World::link_to(home), Against::Rank)]);
        if mode != SilenceMode::Off {
            world.run_for(60 * SECOND);
            world.set_cut(away, true);
            world.stall(flows[0], 0);
            assert!(world.wait(3 * SECOND, |w| source(w, client) == Some(address(HOME))), "{mode:?}");
            world.assert_delivering(SECOND);
            world.set_cut(away, false);
            assert!(world.wait(90 * SECOND, |w| source(w, client) == Some(address(AWAY))), "{mode:?}");
            world.assert_delivering(SECOND);
            assert_eq!(led(&world), [way], "{mode:?}");
        }
        // By hand counts more, until it is given up.
        world.hand_off(client, Some(HOME));
        world.run_for(30 * SECOND);
        assert_eq!(source(&world, client), Some(address(HOME)), "{mode:?}");
        world.hand_off(client, None);
        assert!(world.wait(90 * SECOND, |w| source(w, client) == Some(address(AWAY))), "{mode:?}");
        // Nothing is wanted any more.
        world.set_link_wishes(client, Vec::new());
        assert!(world.wait(SECOND, |w| source(w, client) == Some(address(HOME))), "{mode:?}");
        world.run_for(SECOND);
        assert_eq!(led(&world), [], "{mode:?}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn a_bound_that_wavers_moves_a_peer_three_times_in_a_minute_at_the_most() {
    for seed in seeds(3, 30) {
        let (Two { mut world, client, home, away, .. }, _) = with_two(seed, VIGILANT, Link::default());
        let rules = LinkRules { delay_most: Some(ms(100)), ..in_order(&[home, away]) };
        world.set_link_wishes(client, wish(rules));
        world.run_for(10 * SECOND);
        let before = world.events.len();
        for round in 0..20 {
            let delay = if round % 2 == 0 { ms(80) } else { ms(5) };
            world.set_link(home, Link { delay, ..Link::default() });
            world.run_for(3 * SECOND);
        }
        let moved = |(_, of, event): &&(Time, HostId, Event)| *of == client && matches!(event, Event::Moved { .. });
        let moves = world.events.iter().skip(before).filter(moved).count();
        assert!((1..=3).contains(&moves), "seed {seed}: {moves}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

/// What it counts as a hand-off: the peer has accepted another place.
pub(crate) fn moves(world: &World, host: HostId, since: usize) -> usize {
    let of = world.events.iter().skip(since).filter(|(_, of, _)| *of == host);
    of.filter(|(.., event)| matches!(event, Event::Moved { .. } | Event::NotMoved { .. })).count()
}

#[test]
fn a_network_that_flaps_for_a_minute_costs_three_hand_offs_at_the_most() {
    for seed in seeds(6, 30) {
        // The one that is preferred is the one that the routes lead to, or the other one.
        let (Two { mut world, client, home, away, .. }, _) = with_two(seed, IDLE, Link::default());
        let (first, own) = if seed % 2 == 0 { (home, HOME) } else { (away, AWAY) };
        let other = if seed % 2 == 0 { away } else { home };
        world.set_link_wishes(client, wish(in_order(&[first, other])));
        assert!(world.wait(10 * SECOND, |w| source(w, client) == Some(address(own))), "seed {seed}");
        world.run_for(70 * SECOND);
        let before = world.events.len();
        for round in 0..200 {
            if round % 2 == 0 {
                world.detach(client, own);
            } else {
                world.attach(client, first, own);
            }
            world.run_for(ms(300));
        }
        let so_far = moves(&world, client, before);
        assert!((1..=3).contains(&so_far), "seed {seed}: {so_far} hand-offs");
        assert!(world.wait(70 * SECOND, |w| source(w, client) == Some(address(own))), "seed {seed}: not come back to");
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn what_selects_nothing_leaves_all_as_it_is() {
    let (Two { mut world, client, home, away, .. }, _) = with_two(2680, VIGILANT, Link::default());
    world.run_for(5 * SECOND);
    let before = world.events.len();
    for rules in [
        LinkRules { delay_most: Some(ms(1)), ..in_order(&[away]) },
        LinkRules { never: [World::link_to(home), World::link_to(away)].into(), ..LinkRules::default() },
    ] {
        world.set_link_wishes(client, wish(rules));
        world.run_for(60 * SECOND);
        let explained = world.explain_links(client);
        assert_eq!(explained[0].1.selected.why, Why::NothingFits);
        assert_eq!(source(&world, client), Some(address(HOME)));
    }
    assert_eq!(moves(&world, client, before), 0);
    world.check();
}

#[test]
fn a_preferred_network_that_leads_nowhere_is_left_by_events_alone() {
    // Nobody watches, and the network that is preferred against the routes loses its address.
    let (Two { mut world, client, home, away, .. }, _) = with_two(2681, SilenceMode::Off, Link::default());
    world.set_link_wishes(client, wish(in_order(&[away, home])));
    assert!(world.wait(10 * SECOND, |w| source(w, client) == Some(address(AWAY))));
    world.detach(client, AWAY);
    assert!(world.wait(SECOND, |w| source(w, client) == Some(address(HOME))));
    world.assert_delivering(SECOND);
    world.attach(client, away, AWAY);
    assert!(world.wait(70 * SECOND, |w| source(w, client) == Some(address(AWAY))));
    world.assert_delivering(SECOND);
    world.check();
}
