//! What the data plane sees of a network that falls silent, or does not, with traffic on it (P-260, P-261).

use std::time::Duration;

use whimbrel_protocol::{Config, Event, Links, SilenceMode, Time};
use whimbrel_sim::{Answering, Body, FlowId, HostId, Link, Packet, World};
use whimbrel_wire::Transport;

use crate::common::{AWAY, HOME, SECOND, Two, address, seeds};

const VIGILANT: SilenceMode = SilenceMode::Vigilant;
const IDLE: SilenceMode = SilenceMode::Idle;
const NO_DELAY: Link = Link { delay: Duration::ZERO, jitter: Duration::ZERO, loss: 0, duplicate: 0, reorder: 0 };
/// What the link of a LAN takes.
const SHORT: Link = Link { delay: Duration::from_micros(100), ..NO_DELAY };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A client with two networks, the first of which is in use and does this to packets, and a flow with the server.
fn with_two(seed: u64, mode: SilenceMode, link: Link) -> (Two, FlowId) {
    let looking = Config { links: Links { mode, ..Links::default() }, ..Config::default() };
    let mut two = Two::nowhere(seed, looking, Config::default());
    two.world.tracing = false;
    two.world.set_links(Link { jitter: Duration::ZERO, loss: 0, ..link });
    two.world.set_link(two.home, link);
    two.world.allow_datagrams(400);
    two.world.attach(two.client, two.away, AWAY);
    two.world.attach(two.client, two.home, HOME);
    let flows = two.flow(1);
    two.world.set_beat(None);
    (two, flows[0])
}

fn source(world: &World, host: HostId) -> Option<std::net::IpAddr> {
    world.peer(host).source
}

/// Hand-offs that a host has made since it found a network silent.
fn found_silent(world: &World, host: HostId) -> usize {
    let of = world.events.iter().filter(|(_, of, _)| *of == host);
    of.filter(|(.., event)| matches!(event, Event::NetworkSilent { .. })).count()
}

/// From the cut until the client has moved.
fn cut_to_moved(world: &mut World, client: HostId, network: whimbrel_sim::NetworkId, within: Duration) -> Duration {
    let (before, cut) = (world.events.len(), world.now());
    world.set_cut(network, true);
    let moved = |w: &World| -> Option<Time> {
        let mut of = w.events.iter().skip(before).filter(|(_, of, _)| *of == client);
        of.find(|(.., event)| matches!(event, Event::Moved { .. })).map(|(at, ..)| *at)
    };
    assert!(world.wait(within, |w| moved(w).is_some()), "{:?}", world.peer(client));
    moved(world).unwrap_or_default().since(cut)
}

#[test]
fn a_silent_cut_is_found_sooner_where_something_is_sent() {
    let mut took = Vec::new();
    for seed in seeds(25, 100) {
        let (Two { mut world, client, home, .. }, _) = with_two(seed, VIGILANT, SHORT);
        world.set_beat(Some(ms(10)));
        world.run_for(40 * SECOND + Duration::from_micros(seed * 7919 % 30_000));
        took.push(cut_to_moved(&mut world, client, home, SECOND));
        assert_eq!(source(&world, client), Some(address(AWAY)));
        world.assert_delivering(SECOND);
        world.check();
    }
    took.sort_unstable();
    eprintln!("cut to moved, {} seeds: {:?} median, {:?} at most", took.len(), took[took.len() / 2], took.last());
    assert!(took[took.len() / 2] <= ms(27) && took[took.len() - 1] <= ms(40), "{took:?}");
}

/// Without a segment that is sent again: nobody tells a program of UDP that nothing arrives.
#[test]
fn datagrams_that_are_not_answered_are_enough_in_idle_mode() {
    for seed in seeds(5, 50) {
        let (Two { mut world, client, home, .. }, _) = with_two(seed, IDLE, Link::default());
        world.set_beat(Some(ms(20)));
        world.run_for(30 * SECOND);
        assert!(world.peer(client).kept.is_empty(), "nothing is kept at rest");
        let took = cut_to_moved(&mut world, client, home, SECOND);
        eprintln!("seed {seed}: {took:?}");
        world.assert_delivering(SECOND);
        world.check();
    }
}

/// An hour on a link that is bad, and never silent, with a segment each way all the time.
fn an_hour(name: &str, link: Link) {
    for mode in [VIGILANT, IDLE] {
        for seed in seeds(1, 5) {
            let (Two { mut world, client, .. }, _) = with_two(seed, mode, link);
            world.set_beat(Some(ms(50)));
            let (before, overdue) = (world.datagrams(), world.overdue);
            world.run_for(3600 * SECOND);
            let (asked, overdue) = (world.datagrams() - before, world.overdue - overdue);
            eprintln!("{name}, {mode:?}, seed {seed}: {asked} datagrams of both ends in an hour, {overdue} overdue");
            assert_eq!(found_silent(&world, client), 0, "{name}, {mode:?}, seed {seed}");
            world.set_beat(None);
            world.assert_delivering(10 * SECOND);
        }
    }
}

#[test]
fn jitter_100_loss_5_for_an_hour_with_traffic() {
    an_hour("100 ms of jitter, 5 % lost each way", Link { jitter: ms(100), loss: 50, ..Link::default() });
}

#[test]
fn round_trip_600_for_an_hour_with_traffic() {
    an_hour("a round trip of 600 ms", Link { delay: ms(150), ..Link::default() });
}

/// Datagrams in ten minutes where nothing fails, and what was taken for overdue.
fn calm(
    seed: u64,
    mode: SilenceMode,
    answering: Option<Answering>,
    mut send: impl FnMut(&mut World, FlowId),
) -> [u64; 2] {
    let (Two { mut world, client, .. }, flow) = with_two(seed, mode, SHORT);
    if let Some(answering) = answering {
        world.answer(flow, 1, answering);
    }
    world.run_for(40 * SECOND);
    let (before, overdue, until) = (world.datagrams(), world.overdue, world.now() + 600 * SECOND);
    while world.now() < until {
        send(&mut world, flow);
    }
    assert_eq!(found_silent(&world, client), 0, "seed {seed}, {mode:?}");
    [world.datagrams() - before, world.overdue - overdue]
}

fn one_way(world: &mut World, flow: FlowId) {
    world.send(flow, 0);
    world.run_for(ms(20));
}

#[test]
fn what_goes_one_way_is_no_reason_for_doubt() {
    for seed in seeds(3, 20) {
        let [rest, _] = calm(seed, IDLE, None, |world, _| world.run_for(ms(20)));
        let [asked, overdue] = calm(seed, IDLE, Some(Answering::Never), one_way);
        assert_eq!((asked, overdue), (rest, 0), "seed {seed}");
    }
}

#[test]
fn answers_that_are_put_off_or_rare_are_waited_for() {
    for seed in seeds(3, 20) {
        let [rest, _] = calm(seed, IDLE, None, |world, _| world.run_for(ms(20)));
        for answering in [Answering::After(ms(40)), Answering::Each(2), Answering::Each(100)] {
            let [asked, overdue] = calm(seed, IDLE, Some(answering), one_way);
            eprintln!("seed {seed}, {answering:?}: {asked} datagrams, {rest} at rest, {overdue} overdue");
            assert!(overdue <= 5 && asked <= rest + 20, "seed {seed}, {answering:?}");
        }
    }
}

#[test]
fn bursts_ask_little() {
    for seed in seeds(3, 20) {
        let mut number = seed;
        let mut burst = |world: &mut World, flow: FlowId| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            for _ in 0..number >> 58 {
                world.send(flow, 0);
                world.run_for(ms(1));
            }
            world.run_for(ms((number >> 40) % 3000));
        };
        let [rest, _] = calm(seed, IDLE, None, |world, _| world.run_for(ms(20)));
        let [asked, overdue] = calm(seed, IDLE, None, &mut burst);
        eprintln!("seed {seed}: {asked} datagrams, {rest} at rest, {overdue} overdue");
        assert!(overdue == 0 && asked <= rest + 20, "seed {seed}");
    }
}

#[test]
fn a_peer_that_is_heard_is_asked_less_often() {
    for seed in seeds(3, 20) {
        let [rest, _] = calm(seed, VIGILANT, None, |world, _| world.run_for(ms(20)));
        let [busy, overdue] = calm(seed, VIGILANT, None, one_way);
        eprintln!(
            "seed {seed}, vigilant for ten minutes: {rest} datagrams at rest, {busy} with traffic, {overdue} overdue"
        );
        assert!(busy * 10 < rest, "seed {seed}: {busy} of {rest}");
    }
}

/// Somebody on the link sends in the peer's name all the time: what he gains is a second.
#[test]
fn what_is_forged_keeps_no_dead_path() {
    for seed in seeds(5, 50) {
        let (Two { mut world, client, home, .. }, flow) = with_two(seed, VIGILANT, SHORT);
        world.set_beat(Some(ms(10)));
        world.run_for(40 * SECOND);
        world.set_beat(None);
        let cut = world.now();
        world.set_cut(home, true);
        let of = world.flow(flow).tuples[0];
        let body = Body::Data { flow, end: 1, acknowledgement: true };
        let forged =
            Packet { transport: Transport::Tcp, source: of.remote, destination: of.local, origin: client, body };
        while source(&world, client) == Some(address(HOME)) {
            assert!(world.now().since(cut) < 2 * SECOND, "seed {seed}");
            world.launch(home, forged.clone());
            world.run_for(ms(1));
        }
        eprintln!("seed {seed}: found after {:?}", world.now().since(cut));
        assert!(world.now().since(cut) <= ms(1120), "seed {seed}: {:?}", world.now().since(cut));
    }
}

/// Brings a link's delay from that of a LAN to so much, one way, in that time.
fn fill(world: &mut World, network: whimbrel_sim::NetworkId, full: Duration, within: Duration) {
    let begun = world.now();
    while world.now() < begun + within {
        let share = world.now().since(begun).as_secs_f64() / within.as_secs_f64();
        world.set_link(network, Link { delay: full.mul_f64(share).max(SHORT.delay), ..SHORT });
        world.run_for(ms(1));
    }
}

/// A transfer begins, and has all that goes by the link wait longer and longer: answers are late, and all else comes.
#[test]
fn a_queue_that_fills_is_no_silence() {
    for (full, within) in [(ms(75), ms(250)), (ms(150), ms(300)), (ms(100), ms(60)), (ms(40), ms(40))] {
        for seed in seeds(5, 50) {
            let (Two { mut world, client, home, .. }, _) = with_two(seed, VIGILANT, SHORT);
            world.set_beat(Some(ms(2)));
            world.run_for(40 * SECOND + Duration::from_micros(seed * 7919 % 600_000));
            fill(&mut world, home, full, within);
            world.run_for(3 * SECOND);
            assert_eq!(found_silent(&world, client), 0, "seed {seed}: {full:?} within {within:?}");
            // A cut is found as soon as one more answer is late.
            let took = cut_to_moved(&mut world, client, home, 3 * SECOND);
            eprintln!("seed {seed}: {full:?} within {within:?}, then cut to moved {took:?}");
            world.check();
        }
    }
}

/// Somebody answers in the peer's name for a while, and then does not, again and again: what is overdue by that has the
/// peer asked once a second.
#[test]
fn what_is_forged_has_nobody_ask_all_the_time() {
    for seed in seeds(3, 20) {
        let (Two { mut world, client, home, .. }, flow) = with_two(seed, IDLE, SHORT);
        world.answer(flow, 1, Answering::Never);
        world.run_for(40 * SECOND);
        let of = world.flow(flow).tuples[0];
        let body = Body::Data { flow, end: 1, acknowledgement: true };
        let forged =
            Packet { transport: Transport::Tcp, source: of.remote, destination: of.local, origin: client, body };
        let (before, overdue, begun) = (world.datagrams(), world.overdue, world.now());
        while world.now() < begun + 60 * SECOND {
            for number in 0..70 {
                world.send(flow, 0);
                if number < 40 {
                    world.launch(home, forged.clone());
                }
                world.run_for(ms(5));
            }
        }
        let (asked, overdue) = (world.datagrams() - before, world.overdue - overdue);
        eprintln!("seed {seed}: {overdue} overdue, {asked} datagrams of both ends in a minute");
        assert!(overdue > 100, "seed {seed}: {overdue}");
        assert!(asked <= 2 * 60 + 20, "seed {seed}: {asked} for {overdue}");
        assert_eq!(found_silent(&world, client), 0, "seed {seed}");
    }
}
