//! First contact, trust, handshakes, introductions.

use std::time::Duration;

use whimbrel_handshake::Contact;
use whimbrel_protocol::{Config, Event, Node, Trust};
use whimbrel_sim::{Access, Body, Faults, FlowId, HostId, Kind, Link, Packet, Powers, Speaker, World};
use whimbrel_wire::{Datagram, Transport};

use crate::common::{AWAY, FURTHER, HOME, SECOND, SERVICE, Two, address, introduced, seeds};

fn happened(world: &World, host: HostId, what: impl Fn(&Event) -> bool) -> usize {
    world.events.iter().filter(|(_, at, event)| *at == host && what(event)).count()
}

fn nobody_there(event: &Event) -> bool {
    matches!(event, Event::NobodyThere { .. })
}

/// A client and a server that runs nothing.
fn alone(seed: u64, answers_icmp: bool) -> (World, HostId, HostId) {
    let mut world = World::new(seed);
    let [home, far] = std::array::from_fn(|_| world.network(Access::Open));
    let client = world.host("client");
    let server = world.bare_host("server");
    world.at_mut(server).answers_icmp = answers_icmp;
    world.attach(client, home, HOME);
    world.attach(server, far, "10.9.0.1");
    (world, client, server)
}

#[test]
fn a_host_that_runs_nothing_is_asked_three_times_and_left_alone() {
    // P-10
    for (answers_icmp, expected) in [(true, 1), (false, 3)] {
        let (mut world, client, _) = alone(301, answers_icmp);
        let flow = world.connect(client, SERVICE);
        world.run_for(30 * SECOND);
        assert_eq!(world.datagrams(), expected);
        world.run_for(560 * SECOND);
        assert_eq!(world.datagrams(), expected);
        // Once more after 10 minutes, after 20 more, after 40 more …: 8 times in a day.
        world.run_for(Duration::from_secs(86_400));
        assert!((expected + 6..=expected + 8).contains(&world.datagrams()), "{}", world.datagrams());
        world.close(flow);
        world.run_for(Duration::from_secs(3 * 86_400));
        assert_eq!(world.at(client).node.as_ref().expect("a node").entries(), 0);
        world.check();
    }
}

#[test]
fn a_crawler_asks_no_more_hosts_than_it_may() {
    // P-10: a hundred connections a second, each to another host, as long as a crawler's.
    let config = Config { questions_per_second: 5, ..Config::default() };
    let mut world = World::new(315);
    world.tracing = false;
    let [home, far] = std::array::from_fn(|_| world.network(Access::Open));
    let client = world.host_with("client", config);
    world.attach(client, home, HOME);
    let bare = world.bare_host("servers");
    for host in 0..1000u32 {
        world.attach(bare, far, &format!("10.9.{}.{}", host / 250, host % 250 + 1));
    }
    let mut open = std::collections::VecDeque::new();
    for host in 0..1000u32 {
        open.push_back(world.connect(client, &format!("10.9.{}.{}:80", host / 250, host % 250 + 1)));
        world.run_for(Duration::from_millis(10));
        if open.len() > 300 {
            let old = open.pop_front().expect("one");
            world.close(old);
        }
    }
    assert!((40..=55).contains(&world.datagrams()), "{} questions in ten seconds", world.datagrams());
    open.into_iter().for_each(|flow| world.close(flow));
    world.run_for(60 * SECOND);
    // Of those that were never asked nothing is remembered, and they may be asked next time.
    let entries = world.at(client).node.as_ref().expect("a node").entries();
    assert!(entries <= world.datagrams() as usize, "{entries} entries");
    world.check();
}

#[test]
fn an_error_that_somebody_makes_up_ends_no_contact() {
    // P-10: addresses and ports of a question can be guessed, its index cannot.
    let mut two = Two::new(314);
    two.world.set_links(Link { delay: Duration::from_millis(200), ..Link::default() });
    let flow = two.world.connect(two.client, SERVICE);
    for quoted in [None, Some([0; 8]), Some([1, 1, 1, 0, 0, 0, 0, 1])] {
        for _ in 0..20 {
            two.world.run_for(Duration::from_millis(20));
            let now = two.world.now();
            let endpoint = "10.9.0.1:2031".parse().expect("an endpoint");
            two.world.with_node(two.client, |node| node.handle_unreachable(now, endpoint, quoted));
        }
        two.world.run_for(Duration::from_millis(200));
    }
    introduced(&mut two.world, &[flow]);
    assert_eq!(happened(&two.world, two.client, nobody_there), 0);
}

#[test]
fn connections_to_hosts_that_run_nothing_leave_nothing_behind() {
    let (mut world, client, _) = alone(302, false);
    world.tracing = false;
    let mut most = 0;
    for _ in 0..3000 {
        let flow = world.connect(client, SERVICE);
        world.run_for(Duration::from_millis(1500));
        world.close(flow);
        most = most.max(world.at(client).node.as_ref().expect("a node").entries());
    }
    assert!(most < 60, "{most} entries");
    assert!(world.datagrams() < 12, "{} datagrams", world.datagrams());
}

#[test]
fn a_host_that_stopped_running_whimbrel_is_left_alone() {
    for answers_icmp in [true, false] {
        let (mut two, flows) = Two::flowing(303, 1);
        two.world.set_beat(None);
        two.world.close(flows[0]);
        two.world.run_for(100 * SECOND);
        two.world.at_mut(two.server).answers_icmp = answers_icmp;
        two.world.crash(two.server);
        let before = two.world.datagrams();
        for _ in 0..600 {
            let flow = two.world.connect(two.client, SERVICE);
            two.world.run_for(2 * SECOND);
            two.world.close(flow);
        }
        let sent = two.world.datagrams() - before;
        assert!(sent < 150, "{sent} datagrams in 20 minutes");
        two.world.check();
        // It comes back.
        two.world.boot(two.server);
        two.world.connect(two.client, SERVICE);
        two.world.run_for(1300 * SECOND);
        let flow = two.world.connect(two.client, SERVICE);
        introduced(&mut two.world, &[flow]);
    }
}

#[test]
fn a_deny_list_is_heeded() {
    let mut config = Config::default();
    config.ask.deny.push(whimbrel_protocol::Prefix { address: address("10.9.0.0"), length: 16 });
    let mut two = Two::with(304, config, Config::default());
    two.world.connect(two.client, SERVICE);
    two.world.run_for(60 * SECOND);
    assert_eq!(two.world.datagrams(), 0);
}

#[test]
fn another_key_under_tofu() {
    let (mut two, flows) = Two::flowing(305, 1);
    two.world.close(flows[0]);
    two.world.run_for(100 * SECOND);
    // Both forget the session, the server its identity as well.
    two.world.crash(two.server);
    two.world.crash(two.client);
    two.world.at_mut(two.server).change_key();
    two.world.forget_saved(two.server);
    two.world.boot(two.server);
    two.world.boot(two.client);
    let flow = two.world.connect(two.client, SERVICE);
    two.world.run_for(20 * SECOND);
    assert_eq!(happened(&two.world, two.client, |event| matches!(event, Event::KeyMismatch { .. })), 1);
    assert!(!two.world.introduced(flow));
    two.world.assert_delivering(SECOND);
    // The user says that it is right.
    two.world.with_node(two.client, |node| assert!(node.forget_key(address("10.9.0.1"))));
    two.world.at_mut(two.client).config.known_keys.clear();
    let flow = two.world.connect(two.client, SERVICE);
    introduced(&mut two.world, &[flow]);
    two.world.check();
}

#[test]
fn another_key_while_the_session_with_the_former_counts() {
    // Nobody but the server was started anew. Connections from before may still be there, or not.
    let mismatch = |event: &Event| matches!(event, Event::KeyMismatch { .. });
    for before in [true, false] {
        let (Two { mut world, client, server, .. }, flows) = Two::flowing(318, 2);
        if !before {
            flows.iter().for_each(|flow| world.close(*flow));
            world.run_for(10 * SECOND);
        }
        world.crash(server);
        world.at_mut(server).change_key();
        world.forget_saved(server);
        world.run_for(5 * SECOND);
        world.boot(server);
        let flow = world.connect(client, SERVICE);
        assert!(world.wait(60 * SECOND, |w| happened(w, client, mismatch) == 1), "before {before}");
        world.run_for(5 * SECOND);
        assert!(!world.introduced(flow));
        // Who is gone for good is not shown any more, once nothing depends on it.
        flows.iter().for_each(|flow| world.close(*flow));
        world.close(flow);
        world.run_for(100 * SECOND);
        assert!(world.peers(client).is_empty(), "before {before}");
        assert_eq!(happened(&world, client, mismatch), 1);
        world.with_node(client, |node| assert!(node.forget_key(address("10.9.0.1"))));
        world.at_mut(client).config.known_keys.clear();
        let fresh = world.connect(client, SERVICE);
        introduced(&mut world, &[fresh]);
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn another_key_at_an_address_that_has_proven_none() {
    // P-42: the first that answered there could move nothing, so nothing is remembered of it, and the other is welcome.
    let mut two = Two::new(319);
    two.world.at_mut(two.server).powers = Powers { inject: false, consume: false };
    let flow = two.world.connect(two.client, SERVICE);
    two.world.run_for(20 * SECOND);
    assert!(!two.world.introduced(flow));
    two.world.crash(two.server);
    two.world.at_mut(two.server).change_key();
    two.world.at_mut(two.server).powers = Powers { inject: true, consume: true };
    two.world.forget_saved(two.server);
    two.world.boot(two.server);
    let flow = two.world.connect(two.client, SERVICE);
    let done = two.world.wait(60 * SECOND, |w| w.introduced(flow));
    assert!(done, "not introduced");
    assert_eq!(happened(&two.world, two.client, |event| matches!(event, Event::KeyMismatch { .. })), 0);
    two.world.check();
}

#[test]
fn a_daemon_that_is_only_started_again_is_not_left_alone() {
    // However long that takes, while connections are opened that wait for it.
    for downtime in [1, 5, 20] {
        let (Two { mut world, client, server, .. }, _) = Two::flowing(320, 1);
        world.crash(server);
        world.connect(client, SERVICE);
        world.run_for(downtime * SECOND);
        world.boot(server);
        let flow = world.connect(client, SERVICE);
        assert!(world.wait(20 * SECOND, |w| w.introduced(flow)), "after {downtime} s");
        assert_eq!(happened(&world, client, nobody_there), 0, "after {downtime} s");
        world.check();
    }
}

#[test]
fn a_key_that_has_proven_nothing_is_not_remembered() {
    // P-42: a user of a host without Whimbrel answers handshakes. Later the host runs Whimbrel itself.
    let mut two = Two::new(312);
    two.world.at_mut(two.server).powers = Powers { inject: false, consume: false };
    let flow = two.world.connect(two.client, SERVICE);
    two.world.run_for(60 * SECOND);
    assert_eq!(happened(&two.world, two.client, |event| matches!(event, Event::PeerReached { .. })), 1);
    assert!(!two.world.introduced(flow));
    assert_eq!(two.world.at(two.client).config.known_keys.len(), 0);
    two.world.crash(two.server);
    two.world.at_mut(two.server).change_key();
    two.world.at_mut(two.server).powers = Powers { inject: true, consume: true };
    two.world.forget_saved(two.server);
    two.world.run_for(700 * SECOND);
    two.world.boot(two.server);
    let flow = two.world.connect(two.client, SERVICE);
    introduced(&mut two.world, &[flow]);
    assert_eq!(happened(&two.world, two.client, |event| matches!(event, Event::KeyMismatch { .. })), 0);
    let key = two.world.at(two.server).public_key();
    assert_eq!(two.world.at(two.client).config.known_keys.get(&address("10.9.0.1")), Some(&key));
    // A datagram flow proves a port, not an address.
    let mut two = Two::new(313);
    let flow = two.world.connect_from(two.client, 5353, "10.9.0.1:53", Transport::Udp);
    introduced(&mut two.world, &[flow]);
    assert_eq!(two.world.at(two.client).config.known_keys.len(), 0);
    two.world.check();
}

#[test]
fn pinned_keys() {
    let mut probe = Two::new(306);
    let keys = [probe.client, probe.server].map(|host| probe.world.at(host).public_key());
    probe.world.run_for(SECOND);
    let pinned = |known: Option<(&str, usize)>| Config {
        trust: Trust::Pinned,
        known_keys: known.map(|(at, host)| (address(at), keys[host])).into_iter().collect(),
        ..Config::default()
    };
    // Each end knows the other.
    let mut two = Two::with(306, pinned(Some(("10.9.0.1", 1))), pinned(Some((HOME, 0))));
    two.flow(1);
    two.world.check();
    // The server does not know the client.
    let mut two = Two::with(306, pinned(Some(("10.9.0.1", 1))), pinned(None));
    let flow = two.world.connect(two.client, SERVICE);
    two.world.run_for(30 * SECOND);
    assert!(!two.world.introduced(flow) && two.world.peers(two.server).is_empty());
    two.world.check();
    // The client knows another key for the server: it is not even told who asks.
    let mut two = Two::with(306, pinned(Some(("10.9.0.1", 0))), Config::default());
    let flow = two.world.connect(two.client, SERVICE);
    two.world.run_for(30 * SECOND);
    assert!(!two.world.introduced(flow));
    assert_eq!(happened(&two.world, two.client, |event| matches!(event, Event::FlowIntroduced { .. })), 0);
    two.world.check();
}

#[test]
fn a_shared_key_that_is_not_shared() {
    let with = |psk: Option<u8>| Config {
        trust: if psk.is_some() { Trust::Psk } else { Trust::Tofu },
        psk: psk.map(|byte| [byte; 32].into()),
        ..Config::default()
    };
    for (client, server, agree) in
        [(Some(1), Some(1), true), (Some(1), Some(2), false), (Some(1), None, false), (None, Some(1), false)]
    {
        let mut two = Two::with(307, with(client), with(server));
        let flow = two.world.connect(two.client, SERVICE);
        two.world.run_for(20 * SECOND);
        assert_eq!(two.world.introduced(flow), agree, "{client:?} {server:?}");
        // The end that sees the fault says so.
        let refused = |event: &Event| matches!(event, Event::HandshakeRefused { .. });
        assert_eq!(happened(&two.world, two.server, refused) > 0, !agree, "{client:?} {server:?}");
        two.world.assert_delivering(SECOND);
        two.world.check();
    }
}

#[test]
fn a_silent_host_is_asked_again_when_somebody_says_so() {
    let (mut world, client, _) = alone(316, false);
    world.connect(client, SERVICE);
    world.run_for(30 * SECOND);
    assert_eq!((happened(&world, client, nobody_there), world.datagrams()), (1, 3));
    world.ask_again(client);
    world.run_for(30 * SECOND);
    assert_eq!((happened(&world, client, nobody_there), world.datagrams()), (2, 6));
    // The pause is the first one again.
    let again =
        |event: &Event| matches!(event, Event::NobodyThere { again_in, .. } if *again_in == Duration::from_secs(600));
    assert_eq!(happened(&world, client, again), 2);
    world.check();
}

#[test]
fn a_silent_host_that_is_asked_by_hand_is_left_alone_for_longer() {
    // P-10: twice each time, and the pause doubles as if a connection had asked.
    let (mut world, client, _) = alone(318, false);
    world.connect(client, SERVICE);
    world.run_for(30 * SECOND);
    let server = address("10.9.0.1");
    let pauses = |world: &World| -> Vec<u64> {
        let pause = |event: &Event| match event {
            Event::NobodyThere { again_in, .. } => Some(again_in.as_secs()),
            _ => None,
        };
        world.events.iter().filter_map(|(_, _, event)| pause(event)).collect()
    };
    for expected in [vec![600, 1200], vec![600, 1200, 2400]] {
        let (now, before) = (world.now(), world.datagrams());
        world.with_node(client, |node| {
            assert!(node.ask_address(now, server));
            assert_eq!(node.questions_to(server), Some(1));
        });
        world.run_for(30 * SECOND);
        assert_eq!((pauses(&world), world.datagrams()), (expected, before + 2));
        world.with_node(client, |node| assert_eq!((node.questions_to(server), node.known_at(server)), (None, None)));
    }
    world.check();
}

#[test]
fn a_silent_host_from_which_a_peer_shows_itself_is_asked_once_more() {
    // P-10: its daemon was started since, and has met this host by itself.
    let mut two = Two::new(319);
    two.world.crash(two.server);
    let flow = two.world.connect(two.client, SERVICE);
    two.world.run_for(30 * SECOND);
    assert_eq!(happened(&two.world, two.client, nobody_there), 1);
    two.world.boot(two.server);
    two.world.run_for(SECOND);
    assert!(!two.world.introduced(flow), "nobody has told");
    let (now, client) = (two.world.now(), address(HOME));
    two.world.with_node(two.server, |node| assert!(node.ask_address(now, client)));
    assert!(two.world.wait(3 * SECOND, |world| world.introduced(flow)));
    two.world.check();
}

#[test]
fn flows_whose_sockets_are_gone_are_not_counted() {
    let mut two = Two::new(317);
    let flows = [two.world.connect(two.client, SERVICE), two.world.connect(two.client, SERVICE)];
    introduced(&mut two.world, &flows);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.run_for(3 * SECOND);
    let counted =
        |world: &World| world.peers(two.client).iter().map(|peer| (peer.flows, peer.moved)).collect::<Vec<_>>();
    assert_eq!(counted(&two.world), [(2, 2)]);
    two.world.close_end(flows[0], 0);
    assert_eq!(counted(&two.world), [(1, 1)]);
    two.world.close_end(flows[1], 0);
    assert_eq!(counted(&two.world), [(0, 0)]);
}

#[test]
fn crossing_handshakes() {
    // P-8
    for seed in 0..20 {
        let mut two = Two::new(3100 + seed);
        two.world.set_links(Link { jitter: Duration::from_millis(15), ..Link::default() });
        let flows = [two.world.connect(two.client, SERVICE), two.world.connect(two.server, "10.1.0.2:22")];
        two.world.set_beat(Some(Duration::from_millis(29)));
        introduced(&mut two.world, &flows);
        two.world.run_for(5 * SECOND);
        two.world.move_to(two.client, two.away, AWAY);
        two.world.assert_delivering(3 * SECOND);
        two.world.check();
    }
}

#[test]
fn crossing_handshakes_of_long_ago() {
    // P-8: whichever session each end has confirmed last, both come to send in the same one.
    for seed in seeds(24, 200) {
        for wait in [5, 31, 60, 1000] {
            let mut two = Two::new(3150 + seed);
            two.world.set_links(Link { jitter: Duration::from_millis(seed % 4 * 5), ..Link::default() });
            let flows = [two.world.connect(two.client, SERVICE), two.world.connect(two.server, "10.1.0.2:22")];
            two.world.set_beat(Some(Duration::from_millis(29)));
            introduced(&mut two.world, &flows);
            two.world.run_for(wait * SECOND);
            // Nor is another session needed for that.
            let sessions = [two.client, two.server].map(|host| two.world.at(host).sessions());
            assert!(wait != 60 || sessions == [1; 2], "{sessions:?} sessions after {wait} s, seed {seed}");
            two.world.set_links(Link::default());
            let moved = two.world.now();
            // The one with the lower key, or the other.
            let moves = usize::from(seed % 2 == 1);
            match moves {
                0 => two.world.move_to(two.client, two.away, AWAY),
                _ => two.world.move_to(two.server, two.further, FURTHER),
            }
            let reaches = |w: &World, flow, end: usize| w.flow(flow).arrived[end].is_some_and(|at| at > moved);
            let back = |w: &World| reaches(w, flows[0], moves) && reaches(w, flows[1], 1 - moves);
            assert!(two.world.wait(SECOND, back));
            let took = two.world.now().since(moved);
            assert!(took < Duration::from_millis(80), "{took:?} after {wait} s, at a round trip of 20 ms, seed {seed}");
            two.world.check();
        }
    }
}

#[test]
fn crossing_handshakes_that_no_flow_needs_any_more() {
    // P-8: both come to send in the same session, for who opens a connection later.
    for seed in seeds(24, 200) {
        let mut two = Two::new(3150 + seed);
        two.world.set_links(Link { jitter: Duration::from_millis(seed % 4 * 5), ..Link::default() });
        let flows = [two.world.connect(two.client, SERVICE), two.world.connect(two.server, "10.1.0.2:22")];
        introduced(&mut two.world, &flows);
        flows.into_iter().for_each(|flow| two.world.close(flow));
        two.world.run_for(40 * SECOND);
        two.world.set_links(Link::default());
        let fresh = match seed % 2 {
            0 => two.world.connect(two.client, SERVICE),
            _ => two.world.connect(two.server, "10.1.0.2:22"),
        };
        let dropped = |w: &World| [two.client, two.server].map(|host| w.at(host).node.as_ref().map(Node::dropped));
        let before = dropped(&two.world);
        assert!(two.world.wait(5 * SECOND, |w| w.introduced(fresh)), "seed {seed}");
        assert_eq!(dropped(&two.world), before, "nothing came in a session that is not known any more, seed {seed}");
        // What says so ends with the sessions that it is about.
        let sent = two.world.datagrams();
        two.world.run_for(60 * SECOND);
        assert_eq!(two.world.datagrams(), sent, "seed {seed}");
        two.world.check();
    }
}

#[test]
fn what_was_kept_back_leads_into_no_session_that_is_about_to_end() {
    // P-8: nothing would lead out of it, once the other end receives from no former session and says no more which one
    // it sends in.
    let begin = || {
        let (two, flows) = Two::flowing(3180, 1);
        let Two { mut world, client, server, home, away, further, .. } = two;
        world.set_beat(None);
        // The end with the lower key, which follows, and the other one.
        let client_follows = world.at(client).public_key() < world.at(server).public_key();
        let follower = if client_follows { (client, home, away, AWAY) } else { (server, two.far, further, FURTHER) };
        (world, flows[0], usize::from(!client_follows), follower, if client_follows { server } else { client })
    };
    let is = |packet: &Packet, kind: fn(&Datagram<'_>) -> bool| match &packet.body {
        Body::Control(payload) => Datagram::parse(payload).is_ok_and(|datagram| kind(&datagram)),
        _ => false,
    };
    // When they renew, both at once and an hour after the first handshake.
    let (mut world, ..) = begin();
    let start = world.now();
    world.run_for(3500 * SECOND);
    world.recorded = Some(Vec::new());
    let renews = |w: &World| {
        let mut recorded = w.recorded.iter().flatten();
        recorded.any(|(_, packet)| is(packet, |datagram| matches!(datagram, Datagram::Initiation(_))))
    };
    assert!(world.wait(200 * SECOND, renews));
    let renewed = world.now();

    let (mut world, flow, end, (host, network, next, address), other) = begin();
    world.run_for(renewed.since(start) - Duration::from_millis(100));
    world.recorded = Some(Vec::new());
    world.stall(flow, end);
    let answer = |w: &World| {
        let mut recorded = w.recorded.iter().flatten();
        let is_answer = |(_, packet): &&(_, Packet)| packet.origin == other;
        recorded.find(is_answer).cloned()
    };
    assert!(world.wait(Duration::from_millis(50), |w| answer(w).is_some()));
    let (from, kept_back) = answer(&world).expect("an answer");
    assert!(is(&kept_back, |datagram| matches!(datagram, Datagram::Control(_))));
    world.set_cut(network, true);
    world.run_for(Duration::from_millis(20));
    world.set_cut(network, false);
    world.recorded = None;
    assert!(world.now() < renewed);
    world.run_for(renewed.since(world.now()) + Duration::from_millis(27_500));
    world.launch(from, kept_back);
    world.run_for(10 * SECOND);
    let moved = world.now();
    world.set_beat(Some(Duration::from_millis(7)));
    world.move_to(host, next, address);
    let reached = |w: &World| (0..2).all(|end| w.flow(flow).arrived[end].is_some_and(|at| at > moved));
    assert!(world.wait(Duration::from_millis(80), reached), "at a round trip of 20 ms");
    world.check();
}

#[test]
fn both_ends_introduce_one_flow() {
    for seed in 0..10 {
        let mut two = Two::new(3200 + seed);
        two.world.set_links(Link { jitter: Duration::from_millis(5), ..Link::default() });
        two.world.set_both_open(true);
        let flows: Vec<_> = (0..3).map(|_| two.world.connect(two.client, SERVICE)).collect();
        two.world.set_beat(Some(Duration::from_millis(29)));
        introduced(&mut two.world, &flows);
        two.world.move_to(two.client, two.away, AWAY);
        two.world.assert_delivering(3 * SECOND);
        two.world.move_to(two.server, two.further, FURTHER);
        two.world.assert_delivering(3 * SECOND);
        two.world.check();
    }
}

#[test]
fn both_ends_introduce_and_anything_is_lost() {
    for lose in 0..40 {
        let mut two = Two::new(3300);
        two.world.faults = Faults { lose: Some(lose), lose_also: lose % 3, ..Faults::default() };
        two.world.set_both_open(true);
        let flows: Vec<_> = (0..2).map(|_| two.world.connect(two.client, SERVICE)).collect();
        let done = two.world.wait(30 * SECOND, |w| flows.iter().all(|flow| w.introduced(*flow)));
        assert!(done || happened(&two.world, two.client, nobody_there) > 0, "{lose} lost");
        two.world.check();
    }
}

#[test]
fn answers_are_not_answered() {
    for both in [false, true] {
        let mut two = Two::new(3400);
        two.world.set_links(Link { duplicate: 500, reorder: 300, ..Link::default() });
        two.world.set_both_open(both);
        let flows: Vec<_> = (0..3).map(|_| two.world.connect(two.client, SERVICE)).collect();
        introduced(&mut two.world, &flows);
        two.world.run_for(20 * SECOND);
        assert!(two.world.sent < 100, "{} datagrams and segments", two.world.sent);
    }
}

#[test]
fn a_wall_clock_that_was_set_back() {
    // P-9: initiations seem older than those before. The flows must come through all the same.
    let (mut two, _) = Two::flowing(308, 2);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(SECOND);
    two.world.at_mut(two.client).config.wall_clock_at_zero -= 3_600_000;
    two.world.restart(two.client, SECOND);
    two.world.run_for(5 * SECOND);
    two.world.assert_delivering(60 * SECOND);
    two.world.move_to(two.client, two.home, HOME);
    two.world.assert_delivering(5 * SECOND);
    two.world.check();
}

#[test]
fn a_flood_of_handshakes() {
    let config = Config { handshakes_per_second: 5, ..Config::default() };
    let mut two = Two::with(309, Config::default(), config);
    let crowd = two.world.network(Access::Open);
    let bot = two.world.bare_host("bot");
    two.world.at_mut(bot).collects = true;
    two.world.attach(bot, crowd, "10.66.0.1");
    let mut speaker = Speaker::new(bot, crowd, address("10.66.0.1"), address("10.9.0.1"));
    let mut flood = |world: &mut World, rounds: usize| {
        for round in 0..rounds {
            let source = format!("10.66.{}.{}:2031", round % 7, round % 250);
            speaker.begin(world, Contact::First, source.parse().expect("an endpoint"));
            world.run_for(Duration::from_millis(5));
        }
    };
    flood(&mut two.world, 200);
    let flow = two.world.connect(two.client, SERVICE);
    flood(&mut two.world, 1500);
    assert!(two.world.introduced(flow));
    // The crowd is answered no more than it said, and leaves nothing behind.
    two.world.run_for(60 * SECOND);
    assert!(two.world.at(two.server).node.as_ref().expect("a node").entries() < 40);
    two.world.check_except(&[Kind::Storm]);
}

#[test]
fn a_flood_of_handshakes_with_cookies() {
    // P-3
    let config = Config { handshakes_per_second: 1, ..Config::default() };
    let mut two = Two::with(311, Config::default(), config);
    let crowd = two.world.network(Access::Open);
    let bot = two.world.bare_host("bot");
    two.world.at_mut(bot).collects = true;
    two.world.attach(bot, crowd, "10.66.0.1");
    let mut speaker = Speaker::new(bot, crowd, address("10.66.0.1"), address("10.9.0.1"));
    let (mut responses, mut cookies) = (0, 0);
    for _ in 0..200 {
        let mut initiator = speaker.begin(&mut two.world, Contact::First, speaker.endpoint());
        for _ in 0..2 {
            two.world.run_for(Duration::from_millis(25));
            for (_, datagram) in two.world.take_mail(bot) {
                responses += usize::from(datagram[0] == 2);
                cookies += usize::from(speaker.show_cookie(&mut two.world, &mut initiator, &datagram));
            }
        }
    }
    // One a second without a cookie and ten with, and what both buckets hold at the start.
    assert!(cookies > 150, "{cookies} cookies");
    assert!((100..=125).contains(&responses), "{responses} responses in ten seconds");
    two.world.check_except(&[Kind::Storm]);
}

#[test]
fn one_users_many_connections_do_not_keep_anothers_waiting() {
    // P-151: all to hosts that answer nothing, and one to a host that does.
    let config = Config { questions_per_second: 10, ..Config::default() };
    let mut two = Two::with(190, config, Config::default());
    let crowd = two.world.network(Access::Open);
    let named = |world: &mut World, client, flow: FlowId, user| {
        let tuple = world.flow(flow).tuples[0];
        world.with_node(client, |node| node.record_user(&tuple, user));
    };
    for number in 0..250 {
        let host = two.world.bare_host("silent");
        two.world.at_mut(host).collects = true;
        let at = format!("10.77.0.{}", number + 1);
        two.world.attach(host, crowd, &at);
        let flow = two.world.connect(two.client, &format!("{at}:80"));
        named(&mut two.world, two.client, flow, 1000);
    }
    two.world.run_for(2 * SECOND);
    let flow = two.world.connect(two.client, SERVICE);
    named(&mut two.world, two.client, flow, 1001);
    let done = two.world.wait(4 * SECOND, |world| world.introduced(flow));
    assert!(done, "its turn does not come");
}
