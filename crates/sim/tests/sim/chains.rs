//! Chains of transforms between hosts that move, are started anew, and ask each other at once (P-170 to P-177). That no
//! packet comes by a chain which its receiver does not have, or by another one of the same number, is the ledger's to
//! see in every run.

use std::time::Duration;

use whimbrel_protocol::{Carriers, ChainPhase, ChainStatus, ChainView, Config, PeerId};
use whimbrel_sim::{Faults, HostId, Link, Random, World};
use whimbrel_wire::chain::Parameter;
use whimbrel_wire::{ChainSpec, Stage, TransformId};

use crate::common::{AWAY, FURTHER, HOME, SECOND, Two, seeds, stride, thorough};

fn spec(transforms: &[u16], version: u8, value: u64) -> ChainSpec {
    let parameters = vec![Parameter { number: 1, value }];
    let stage = |id: &u16| Stage { transform: TransformId(*id), version, parameters: parameters.clone() };
    ChainSpec::new(transforms.iter().map(stage).collect()).unwrap()
}

fn peer_of(world: &World, host: HostId) -> Option<PeerId> {
    world.peers(host).first().map(|peer| peer.id)
}

fn ask(world: &mut World, host: HostId, wanted: Option<ChainSpec>) {
    let (now, Some(peer)) = (world.now(), peer_of(world, host)) else { return };
    world.with_node(host, |node| node.set_chain(now, peer, wanted).unwrap());
}

fn view(world: &World, host: HostId) -> Option<ChainView> {
    world.at(host).node.as_ref()?.chain(peer_of(world, host)?)
}

fn in_force(world: &World, host: HostId) -> Option<ChainSpec> {
    view(world, host)?.in_force.map(|(_, spec)| spec)
}

/// Both lead what they send through these transforms.
fn lead_through(two: &Two, wanted: Option<&ChainSpec>) -> bool {
    [two.client, two.server].into_iter().all(|host| {
        let view = view(&two.world, host);
        let phase = if wanted.is_some() { ChainPhase::InForce } else { ChainPhase::Empty };
        view.is_some_and(|view| {
            let in_force = view.in_force.as_ref();
            (view.phase, in_force.map(|(_, spec)| spec)) == (phase, wanted)
                && view.sending == in_force.map(|(number, _)| *number)
        })
    })
}

fn agree(two: &mut Two, wanted: Option<&ChainSpec>) {
    let (client, server) = (two.client, two.server);
    let so = (0..200).any(|_| {
        two.world.run_for(Duration::from_millis(500));
        lead_through(two, wanted)
    });
    assert!(so, "{wanted:?}: {:?} and {:?}", view(&two.world, client), view(&two.world, server));
}

/// The flows go by the tunnel, which the chains are of.
fn away(seed: u64) -> Two {
    let config = Config { carriers: Carriers { rewrite: false, tunnel: true }, ..Config::default() };
    let mut two = Two::with(seed, config.clone(), config);
    two.flow(3);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.run_for(2 * SECOND);
    two
}

#[test]
fn packets_go_through_a_chain_that_either_end_asks_for_wherever_the_hosts_move() {
    for seed in 1..3 {
        let mut two = away(seed);
        let (client, server) = (two.client, two.server);
        for (host, wanted) in [(client, spec(&[1], 1, 5)), (server, spec(&[2, 1], 1, 5)), (server, spec(&[2, 1], 1, 9))]
        {
            ask(&mut two.world, host, Some(wanted.clone()));
            agree(&mut two, Some(&wanted));
            two.world.assert_delivering(SECOND);
        }
        two.world.move_to(client, two.further, FURTHER);
        two.world.assert_delivering(2 * SECOND);
        agree(&mut two, Some(&spec(&[2, 1], 1, 9)));
        ask(&mut two.world, client, None);
        agree(&mut two, None);
        two.world.assert_delivering(SECOND);
        two.world.check();
    }
}

#[test]
fn what_one_end_does_not_know_changes_nothing() {
    let mut two = away(1);
    let (client, server) = (two.client, two.server);
    let before = spec(&[1], 1, 5);
    ask(&mut two.world, client, Some(before.clone()));
    agree(&mut two, Some(&before));
    two.world.at_mut(server).transforms.known.truncate(3);
    two.world.at_mut(server).transforms.most = 50;
    two.world.at_mut(client).transforms.version = 2;
    two.world.at_mut(client).transforms.known.push(TransformId(9));
    for (wanted, why) in [
        (spec(&[9], 2, 5), (ChainStatus::UnknownTransform, 0)),
        (spec(&[1, 4], 1, 5), (ChainStatus::UnknownVersion, 0)),
        (spec(&[2], 2, 60), (ChainStatus::UnknownVersion, 0)),
        (spec(&[2], 2, 101), (ChainStatus::BadParameter, 0)),
    ] {
        ask(&mut two.world, client, Some(wanted));
        two.world.run_for(2 * SECOND);
        assert_eq!(view(&two.world, client).unwrap().refused, Some(why));
        agree(&mut two, Some(&before));
    }
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn who_has_no_tunnel_is_not_asked() {
    let rewrite = Config { carriers: Carriers { rewrite: true, tunnel: false }, ..Config::default() };
    let mut two = Two::with(1, Config::default(), rewrite);
    two.flow(1);
    let before = two.world.sent();
    let client = two.client;
    ask(&mut two.world, client, Some(spec(&[1], 1, 5)));
    two.world.run_for(10 * SECOND);
    assert_eq!(view(&two.world, client).unwrap().phase, ChainPhase::Installing);
    assert!(two.world.sent() < before + 20, "nothing is asked again and again");
    two.world.check();
}

#[test]
fn of_two_that_ask_at_once_both_end_with_one() {
    for seed in seeds(6, 60) {
        let mut two = away(seed);
        two.world.set_links(Link { loss: 200, jitter: Duration::from_millis(30), ..Link::default() });
        let (client, server) = (two.client, two.server);
        let wanted = [spec(&[1], 1, 5), spec(&[2], 1, 5)];
        ask(&mut two.world, client, Some(wanted[0].clone()));
        ask(&mut two.world, server, Some(wanted[1].clone()));
        two.world.run_for(10 * SECOND);
        two.world.set_links(Link::default());
        let client_first = two.world.at(client).public_key().as_bytes() < two.world.at(server).public_key().as_bytes();
        agree(&mut two, Some(&wanted[usize::from(!client_first)]));
        two.world.check();
    }
}

/// A course of requests, from the move on.
fn course(two: &mut Two) {
    let (client, server) = (two.client, two.server);
    ask(&mut two.world, client, Some(spec(&[1], 1, 5)));
    two.world.run_for(SECOND);
    ask(&mut two.world, server, Some(spec(&[2, 1], 1, 5)));
    two.world.run_for(SECOND);
    ask(&mut two.world, client, Some(spec(&[2, 1], 1, 6)));
    two.world.run_for(SECOND);
    two.world.move_to(two.client, two.further, FURTHER);
    ask(&mut two.world, client, None);
    two.world.run_for(SECOND);
    ask(&mut two.world, client, Some(spec(&[3], 1, 6)));
    two.world.run_for(3 * SECOND);
}

/// The flows live, and both ends have one idea of the chain.
fn settle(two: &mut Two) {
    let (client, server) = (two.client, two.server);
    two.world.run_for(90 * SECOND);
    two.world.assert_delivering(5 * SECOND);
    assert_eq!(in_force(&two.world, client), in_force(&two.world, server));
    let wanted = in_force(&two.world, client);
    agree(two, wanted.as_ref());
    two.world.check();
}

#[test]
fn either_daemon_dies_a_datagram_is_lost_or_an_op_fails_at_every_step() {
    let mut whole = away(1);
    let begun = (whole.world.sent(), whole.world.at(whole.client).effects, whole.world.at(whole.server).effects);
    let ops = whole.world.ops;
    course(&mut whole);
    let hosts = [whole.client, whole.server];
    let steps = [
        (0..whole.world.sent() - begun.0)
            .map(|step| Faults { lose: Some(begun.0 + step), ..Faults::default() })
            .collect(),
        (0..whole.world.ops - ops).map(|step| Faults { fail: Some(ops + step), ..Faults::default() }).collect(),
        (begun.1..whole.world.at(hosts[0]).effects)
            .map(|step| Faults { crash: Some((hosts[0], step)), ..Faults::default() })
            .collect(),
        (begun.2..whole.world.at(hosts[1]).effects)
            .map(|step| Faults { crash: Some((hosts[1], step)), ..Faults::default() })
            .collect::<Vec<_>>(),
    ];
    settle(&mut whole);
    assert_eq!(in_force(&whole.world, hosts[0]), Some(spec(&[3], 1, 6)));
    for faults in steps.into_iter().flat_map(|steps| steps.into_iter().step_by(stride(4))) {
        let mut two = away(1);
        two.world.faults = faults;
        course(&mut two);
        settle(&mut two);
    }
}

#[test]
fn whatever_happens_the_ends_agree_in_the_end() {
    for seed in seeds(12, 400) {
        println!("seed {seed}");
        let mut two = away(seed);
        let mut random = Random::new(seed ^ 0xc4a1);
        let link = Link {
            loss: [0, 50, 250][random.index(3)],
            duplicate: 50,
            reorder: 100,
            jitter: random.duration(Duration::from_millis(50)),
            ..Link::default()
        };
        two.world.set_links(link);
        let hosts = [two.client, two.server];
        for host in hosts {
            two.world.at_mut(host).op_takes = random.duration(Duration::from_millis(4));
        }
        for _ in 0..if thorough() { 30 } else { 15 } {
            let host = hosts[random.index(2)];
            match random.index(8) {
                0 => two.world.restart(host, random.duration(5 * SECOND)),
                1 => {
                    let (network, address) =
                        [(two.home, HOME), (two.away, AWAY), (two.further, FURTHER)][random.index(3)];
                    two.world.move_to(two.client, network, address);
                }
                2 => ask(&mut two.world, host, None),
                _ => {
                    let transforms = [&[1][..], &[2], &[1, 2], &[4, 3, 2, 1], &[99]][random.index(5)];
                    let wanted = spec(transforms, 1, random.below(110));
                    ask(&mut two.world, host, Some(wanted));
                }
            }
            two.world.run_for(random.duration(5 * SECOND));
        }
        two.world.set_links(Link::default());
        settle(&mut two);
    }
}
