//! Paths that are kept ready beside the one in use (P-180 to P-184).

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_protocol::{Config, Event, PathState, PeerView};
use whimbrel_sim::{Access, Carried, FlowId, HostId, NatPorts, Speaker, World};
use whimbrel_wire::BindingNumber;
use whimbrel_wire::message::{Message, UpdateFlags};

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, SERVICE, Two, address, settle_as};

fn keeping() -> Config {
    Config { keep_paths: true, ..Config::default() }
}

/// A client with two networks, of which the first is in use, and flows.
fn with_two(seed: u64, client: Config, behind_nat: bool) -> (Two, Vec<FlowId>) {
    let mut two = Two::nowhere(seed, client, Config::default());
    let (network, at) = if behind_nat { (two.nat, INSIDE) } else { (two.away, AWAY) };
    two.world.attach(two.client, network, at);
    two.world.attach(two.client, two.home, HOME);
    let flows = two.flow(3);
    (two, flows)
}

fn is_ready(view: &PeerView) -> bool {
    !view.kept.is_empty() && view.kept.iter().all(|path| path.state == PathState::Confirmed)
}

/// What the server was told of paths and of its peer's moves since then.
fn told(world: &World, host: HostId, since: usize) -> Vec<&'static str> {
    let events = world.events.iter().skip(since).filter(|(_, of, _)| *of == host);
    let names = events.filter_map(|(.., event)| match event {
        Event::PathConfirmed { .. } => Some("confirmed"),
        Event::PeerMoved { .. } => Some("moved"),
        _ => None,
    });
    names.collect()
}

#[test]
fn a_path_that_is_kept_is_taken_at_once() {
    // P-183: The server leads its flows to the new place when it hears of it, and has nothing to ask.
    for (seed, behind_nat) in [(1901, false), (1902, true)] {
        let (Two { mut world, client, server, .. }, flows) = with_two(seed, keeping(), behind_nat);
        assert!(world.wait(2 * SECOND, |w| is_ready(&w.peer(client))), "{:?}", world.peer(client).kept);
        let kept = world.peer(client).kept[0];
        assert!(kept.round_trip.is_some_and(|measured| measured < SECOND));
        assert_eq!(kept.observed.map(|observed| observed.ip() != kept.attachment.address), Some(behind_nat));
        let before = world.events.len();
        world.detach(client, HOME);
        world.assert_delivering(SECOND);
        settle_as(&mut world, &flows, if behind_nat { Carried::Tunnelled } else { Carried::Rewritten });
        assert_eq!(told(&world, server, before), ["moved"]);
        let view = world.peer(client);
        assert_eq!((view.path, view.kept.len()), (kept.id, 0), "it is the one in use");
        world.check();
    }
}

#[test]
fn without_one_that_is_kept_the_new_place_is_asked() {
    let (Two { mut world, client, server, .. }, _) = with_two(1903, Config::default(), false);
    world.run_for(5 * SECOND);
    assert!(world.peer(client).kept.is_empty());
    let before = world.events.len();
    world.detach(client, HOME);
    world.run_for(SECOND);
    assert_eq!(told(&world, server, before), ["moved", "confirmed"]);
}

#[test]
fn a_hand_off_to_one_that_is_kept_loses_nothing_and_leaves_the_other_ready() {
    let (Two { mut world, client, server, .. }, flows) = with_two(1904, keeping(), false);
    assert!(world.wait(2 * SECOND, |w| is_ready(&w.peer(client))));
    let missing = |world: &World| -> u64 {
        let of = |flow: &FlowId| (world.flow(*flow).sent, world.flow(*flow).received);
        flows.iter().map(of).map(|(sent, received)| sent[0] + sent[1] - received[0] - received[1]).sum()
    };
    for to in [AWAY, HOME, AWAY] {
        world.set_beat(None);
        world.run_for(SECOND);
        let before = (missing(&world), world.events.len());
        world.set_beat(Some(Duration::from_millis(1)));
        world.run_for(SECOND);
        world.hand_off(client, Some(to));
        world.run_for(SECOND);
        world.set_beat(None);
        world.run_for(SECOND);
        assert_eq!(missing(&world), before.0, "to {to}");
        assert_eq!(told(&world, server, before.1), ["moved"], "to {to}");
        assert!(world.wait(30 * SECOND, |w| is_ready(&w.peer(client))), "to {to}: {:?}", world.peer(client).kept);
        let kept: Vec<_> = world.peer(client).kept.iter().map(|path| path.attachment.address).collect();
        assert_eq!(kept, [address(if to == AWAY { HOME } else { AWAY })]);
    }
    world.check();
}

#[test]
fn a_path_that_is_kept_fails_and_recovers_by_itself() {
    let (Two { mut world, client, server, away, .. }, flows) = with_two(1905, keeping(), false);
    let state = |w: &World| w.peer(client).kept.first().map(|path| path.state);
    assert!(world.wait(2 * SECOND, |w| state(w) == Some(PathState::Confirmed)));
    world.set_cut(away, true);
    assert!(world.wait(60 * SECOND, |w| state(w) == Some(PathState::Failed)));
    let before = world.events.len();
    world.assert_delivering(SECOND);
    world.set_cut(away, false);
    assert!(world.wait(60 * SECOND, |w| state(w) == Some(PathState::Confirmed)));
    assert!(told(&world, server, before).is_empty(), "what is in use is not touched");
    settle_as(&mut world, &flows, Carried::Native);
    world.check();
}

#[test]
fn none_is_kept_to_who_is_away_until_it_is_back() {
    let (Two { mut world, client, home, away, .. }, flows) = with_two(1924, keeping(), false);
    assert!(world.wait(2 * SECOND, |w| is_ready(&w.peer(client))));
    [home, away].into_iter().for_each(|network| world.set_cut(network, true));
    world.run_for(5 * SECOND);
    world.stall(flows[1], 0);
    assert!(world.wait(60 * SECOND, |w| w.peer(client).away == Some(false)));
    assert!(world.wait(60 * SECOND, |w| w.peer(client).kept.is_empty()));
    [home, away].into_iter().for_each(|network| world.set_cut(network, false));
    assert!(world.wait(600 * SECOND, |w| w.peer(client).away.is_none()));
    assert!(world.wait(30 * SECOND, |w| is_ready(&w.peer(client))), "{:?}", world.peer(client));
    world.check();
}

#[test]
fn one_that_is_kept_costs_a_keepalive_and_nothing_where_no_flow_is() {
    // P-181
    let count = |config: Config, flowing: bool| {
        let (Two { mut world, .. }, flows) = with_two(1906, config, false);
        world.set_beat(None);
        if !flowing {
            flows.into_iter().for_each(|flow| world.close(flow));
        }
        world.run_for(60 * SECOND);
        let before = world.datagrams();
        world.run_for(1000 * SECOND);
        world.datagrams() - before
    };
    let (without, with) = (count(Config::default(), true), count(keeping(), true));
    // A challenge and its answer each 25 s, and each 50 s those of the other end.
    assert!((100..=160).contains(&(with - without)), "{with} and {without}");
    assert_eq!(count(keeping(), false), count(Config::default(), false));
}

#[test]
fn paths_are_kept_from_where_it_was_said_and_go_with_their_networks() {
    let (Two { mut world, client, further, .. }, _) = with_two(1907, Config::default(), false);
    world.attach(client, further, FURTHER);
    world.hand_off(client, Some(HOME));
    world.run_for(5 * SECOND);
    let peer = world.peer(client).id;
    let now = world.now();
    world.with_node(client, |node| node.keep_paths(now, peer, [address(AWAY), address("10.77.0.1")].into()));
    assert!(world.wait(2 * SECOND, |w| is_ready(&w.peer(client))));
    // One is kept where the routes lead as well, since the peer is reached from elsewhere by hand (P-236).
    let said = |at: &IpAddr| ![FURTHER, "10.3.0.9"].map(address).contains(at);
    let from = |w: &World| {
        let kept = w.peer(client).kept;
        kept.iter().map(|path| path.attachment.address).filter(said).collect::<Vec<_>>()
    };
    assert_eq!(from(&world), [address(AWAY)]);
    world.detach(client, AWAY);
    assert!(from(&world).is_empty());
    world.attach(client, further, "10.3.0.9");
    world.run_for(SECOND);
    assert!(from(&world).is_empty());
    world.with_node(client, |node| node.keep_paths(now, peer, [].into()));
    world.check();
}

#[test]
fn both_move_at_once_with_paths_kept() {
    // The one that the client has ready leads to where the server was: it is another from then on.
    for seed in 1910..1916 {
        let mut two = Two::nowhere(seed, keeping(), keeping());
        two.world.attach(two.client, two.away, AWAY);
        two.world.attach(two.client, two.home, HOME);
        two.world.attach(two.server, two.further, FURTHER);
        two.world.hand_off(two.server, Some("10.9.0.1"));
        let flows = two.flow(3);
        let Two { mut world, client, server, .. } = two;
        assert!(world.wait(5 * SECOND, |w| is_ready(&w.peer(client)) && is_ready(&w.peer(server))));
        world.detach(client, HOME);
        if seed % 2 == 0 {
            world.run_for(Duration::from_millis(5));
        }
        world.detach(server, "10.9.0.1");
        world.assert_delivering(5 * SECOND);
        assert!(flows.iter().all(|flow| !world.was_reset(*flow)));
        world.check();
    }
}

/// A server, and somebody with flows to it who says what he likes of where he is.
struct Liar {
    world: World,
    server: HostId,
    liar: Speaker,
}

const VICTIM: &str = "10.77.0.9";

impl Liar {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        let [den, far, crowd] = std::array::from_fn(|_| world.network(Access::Open));
        let server = world.host("server");
        let host = world.bare_host("liar");
        let victim = world.bare_host("victim");
        world.at_mut(host).collects = true;
        world.attach(server, far, "10.9.0.1");
        world.attach(host, den, "10.66.0.1");
        world.attach(victim, crowd, VICTIM);
        let mut liar = Speaker::new(host, den, address("10.66.0.1"), address("10.9.0.1"));
        liar.meet(&mut world);
        for _ in 0..4 {
            let flow = world.connect(host, SERVICE);
            liar.introduce(&mut world, flow, (0, 0));
        }
        world.set_beat(Some(Duration::from_millis(3)));
        Self { world, server, liar }
    }

    fn keep(&mut self, path: u32, from: std::net::SocketAddr, padding: u16) {
        let messages = [Message::PathKept { path }, Message::Padding { length: padding }];
        self.liar.send(&mut self.world, from, &messages);
    }
}

#[test]
fn who_tells_of_paths_that_are_not_his_is_not_believed() {
    // P-18, P-182
    let mut lie = Liar::new(1920);
    let victim: std::net::SocketAddr = format!("{VICTIM}:2031").parse().expect("an endpoint");
    for round in 0..200 {
        lie.keep(round % 3, victim, if round % 2 == 0 { 1100 } else { 0 });
        lie.world.run_for(Duration::from_millis(100));
    }
    let (sent, received) = lie.world.exchanged(lie.server, address(VICTIM));
    assert!(received > 1000 && sent <= 3 * received, "{sent} for {received}");
    // It has not answered, so an update from there is asked as any.
    let flags = UpdateFlags::FORMER_PATH_LOST;
    let update =
        Message::BindingUpdate { binding: BindingNumber::FIRST, sequence: 1, flags, claimed: victim, lifetime: 0 };
    lie.liar.send(&mut lie.world, victim, &[update, Message::Padding { length: 1100 }]);
    lie.world.run_for(60 * SECOND);
    let (sent, received) = lie.world.exchanged(lie.server, address(VICTIM));
    assert!(sent <= 3 * received, "{sent} for {received}");
    assert_eq!(lie.world.peer(lie.server).remote.ip(), address("10.66.0.1"));
    lie.world.check();
}

#[test]
fn thousands_of_paths_take_no_room() {
    let mut lie = Liar::new(1921);
    let entries = |world: &World, server: HostId| world.at(server).node.as_ref().expect("a daemon").entries();
    lie.world.run_for(SECOND);
    let before = entries(&lie.world, lie.server);
    for round in 0..3000_u32 {
        let from = std::net::SocketAddr::from(([10, 77, (round >> 8) as u8, round as u8], 2031));
        lie.keep(round, from, 0);
        if round % 10 == 0 {
            lie.world.run_for(Duration::from_millis(20));
        }
        // Beside those that are remembered the server asks for another session, since its flows seem to stall.
        assert!(entries(&lie.world, lie.server) <= before + 16, "{} after {round}", entries(&lie.world, lie.server));
    }
    lie.world.run_for(200 * SECOND);
    lie.world.check();
}

#[test]
fn who_was_at_the_end_of_a_path_once_is_to_show_it_again() {
    // P-182: An address gets another owner.
    let mut lie = Liar::new(1922);
    let other: std::net::SocketAddr = "10.66.0.1:4000".parse().expect("an endpoint");
    lie.keep(1, other, 1100);
    lie.world.run_for(SECOND);
    let token = lie.liar.hear(&mut lie.world).into_iter().find_map(|message| match message {
        Message::PathChallenge { token } => Some(token),
        _ => None,
    });
    let response = Message::PathResponse { token: token.expect("a challenge"), observed: other };
    lie.liar.send(&mut lie.world, other, &[response]);
    // Whoever has it now does not answer.
    for _ in 0..20 {
        lie.world.run_for(20 * SECOND);
        lie.keep(1, other, 1100);
    }
    lie.world.run_for(SECOND);
    let before = lie.world.events.len();
    let flags = UpdateFlags::FORMER_PATH_LOST;
    let update =
        Message::BindingUpdate { binding: BindingNumber::FIRST, sequence: 1, flags, claimed: other, lifetime: 0 };
    lie.liar.send(&mut lie.world, other, &[update, Message::Padding { length: 1100 }]);
    lie.world.run_for(SECOND);
    assert_eq!(lie.world.peer(lie.server).candidate, Some(other), "{:?}", told(&lie.world, lie.server, before));
    lie.world.check();
}

#[test]
fn a_nat_that_forgets_is_noticed_by_the_next_check() {
    let mut two = Two::nowhere(1923, keeping(), Config::default());
    *two.world.access(two.nat) = crate::common::nat("10.100.0.1", NatPorts::Random);
    two.world.attach(two.client, two.nat, INSIDE);
    two.world.attach(two.client, two.home, HOME);
    let flows = two.flow(2);
    let Two { mut world, client, nat, .. } = two;
    assert!(world.wait(2 * SECOND, |w| is_ready(&w.peer(client))));
    *world.access(nat) = crate::common::nat("10.100.0.1", NatPorts::Random);
    world.run_for(30 * SECOND);
    assert!(is_ready(&world.peer(client)));
    world.detach(client, HOME);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Tunnelled);
    world.check();
}
