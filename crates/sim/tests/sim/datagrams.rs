//! Which flows are introduced, with whom, and how many: P-35 and its like.

use std::time::Duration;

use whimbrel_protocol::{Config, FlowState};
use whimbrel_sim::{Access, Carried, Faults, FlowId, HostId, Kind, Speaker, World};
use whimbrel_wire::BindingNumber;
use whimbrel_wire::message::{Echo, IntroductionRefusal, Message, UpdateFlags};
use whimbrel_wire::moving::Stretch;
use whimbrel_wire::{FlowTuple, Transport};

use crate::common::{AWAY, SECOND, SERVICE, Two, address, introduced, settle_as};

const NAMES: &str = "10.9.0.1:53";

fn entries(world: &World, host: HostId) -> usize {
    world.at(host).node.as_ref().expect("a node").entries()
}

/// A connected socket that sends to one that takes datagrams from everybody.
fn ask(two: &mut Two, port: u16) -> FlowId {
    let flow = two.world.connect_from(two.client, port, NAMES, Transport::Udp);
    two.world.close_end(flow, 1);
    flow
}

#[test]
fn a_datagram_flow_whose_peer_has_no_socket_costs_little() {
    // P-35
    let mut two = Two::new(701);
    let flow = ask(&mut two, 5353);
    two.world.run_for(5 * SECOND);
    assert!(matches!(two.world.view(flow, 0).map(|view| view.state), Some(FlowState::Failed(_))));
    assert_eq!(two.world.view(flow, 1).map(|view| view.state), None);
    // The next ones are asked about once each, and that one ever more seldom: there may be a socket by then.
    let sent = two.world.sent;
    for port in 5400..5420 {
        let flow = ask(&mut two, port);
        two.world.run_for(SECOND / 2);
        two.world.close_end(flow, 0);
    }
    two.world.run_for(5 * SECOND);
    assert!(two.world.sent - sent < 2 * 20 + 12, "{} datagrams and segments", two.world.sent - sent);
    assert_eq!(two.world.peer(two.server).flows, 0);
    // Connections are, as before.
    let other = two.world.connect(two.client, SERVICE);
    introduced(&mut two.world, &[other]);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.run_for(5 * SECOND);
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn datagram_flows_without_sockets_leave_nothing_behind() {
    // P-35
    let mut world = World::new(702);
    let [den, far] = std::array::from_fn(|_| world.network(Access::Open));
    let server = world.host("server");
    let liar_host = world.bare_host("liar");
    world.at_mut(liar_host).collects = true;
    world.attach(server, far, "10.9.0.1");
    world.attach(liar_host, den, "10.66.0.1");
    let mut liar = Speaker::new(liar_host, den, address("10.66.0.1"), address("10.9.0.1"));
    liar.meet(&mut world);
    let before = entries(&world, server);
    let index = liar.index();
    world.at_mut(liar_host).listen(index);
    liar.send(&mut world, liar.endpoint(), &[Message::IntroductionRequest { tag: 1 }]);
    world.run_for(Duration::from_millis(50));
    for port in 1000..1300u16 {
        // The last: to an address that is not the server's.
        let remote = if port < 1290 { NAMES } else { "10.9.0.7:53" };
        let tuple = FlowTuple {
            transport: Transport::Udp,
            local: format!("10.66.0.1:{port}").parse().expect("an endpoint"),
            remote: remote.parse().expect("an endpoint"),
        };
        liar.inject(&mut world, tuple, None, u64::from(port));
        world.run_for(Duration::from_millis(20));
    }
    world.run_for(Duration::from_millis(50));
    let heard = liar.hear(&mut world);
    let refused = heard.iter().filter(|message| {
        matches!(message, Message::IntroductionDone { outcome: Err(IntroductionRefusal::Refused), .. })
    });
    assert!(refused.count() >= 290);
    assert!(world.at(liar_host).consumed.is_empty(), "the server puts nothing into flows that it does not have");
    assert!(entries(&world, server) <= before + 2, "{} entries", entries(&world, server));
    world.check_except(&[Kind::Storm]);
}

#[test]
fn no_program_reads_an_introduction_in_a_session_that_is_new() {
    // Who said once that it looks for introductions looks for those of later sessions too, from when the peer may have
    // them.
    let mut world = World::new(704);
    let [den, far] = std::array::from_fn(|_| world.network(Access::Open));
    let (server, other) = (world.host("server"), world.bare_host("other"));
    world.at_mut(other).collects = true;
    world.attach(server, far, "10.9.0.1");
    world.attach(other, den, "10.66.0.1");
    let mut speaker = Speaker::new(other, den, address("10.66.0.1"), address("10.9.0.1"));
    speaker.meet(&mut world);
    world.at_mut(other).listen(speaker.index());
    let flow = world.connect_from(other, 5353, NAMES, Transport::Udp);
    let key = world.at(server).public_key();
    let session = speaker.meet_in_silence(&mut world, key);
    let tuple = world.flow(flow).tuples[0];
    speaker.inject_in(&mut world, &session, tuple, Some((flow, 0)), 0x77);
    world.run_for(Duration::from_millis(50));
    assert!(world.at(server).consumed.contains(&0x77));
    world.check_except(&[Kind::Storm]);
}

#[test]
fn the_end_of_a_datagram_flow_is_told() {
    // P-35: whichever end closes first, whatever is lost of the word, whether or not it has moved, and whichever daemon
    // was started anew meanwhile.
    for (end, lost, moved, anew) in [
        (0, false, false, None),
        (1, false, false, None),
        (0, true, false, None),
        (1, true, true, None),
        (0, false, true, None),
        (0, false, false, Some(0)),
        (1, true, true, Some(0)),
        (0, false, true, Some(1)),
    ] {
        let mut two = Two::new(703);
        let flows: Vec<FlowId> =
            (5353..5360).map(|port| two.world.connect_from(two.client, port, NAMES, Transport::Udp)).collect();
        let stays = two.world.connect(two.client, SERVICE);
        introduced(&mut two.world, &flows);
        introduced(&mut two.world, &[stays]);
        if moved {
            two.world.move_to(two.client, two.away, AWAY);
            two.world.run_for(5 * SECOND);
        }
        let hosts = [two.client, two.server];
        if let Some(end) = anew {
            two.world.restart(hosts[end], Duration::from_millis(1));
            two.world.run_for(5 * SECOND);
        }
        if lost {
            let next = two.world.sent;
            two.world.faults = Faults { lose: Some(next), lose_also: 1, ..Faults::default() };
        }
        let [of, other] = [hosts[end], hosts[1 - end]];
        let sent = two.world.sent;
        for flow in &flows[1..] {
            two.world.close_end(*flow, end);
        }
        two.world.run_for(8 * SECOND);
        // The client whose sockets are there asks again for each at once and after 1, 3 and 7 s, and is refused (P-35).
        let most = if end == 0 { 12 } else { 12 + 4 * 2 * flows.len() as u64 };
        assert!(two.world.sent - sent < most, "one datagram for all: {}", two.world.sent - sent);
        for host in [of, other] {
            assert_eq!(two.world.peer(host).flows, 2, "closed by {end}, lost {lost}, moved {moved}, anew {anew:?}");
            assert_eq!(two.world.view(flows[1], 0).is_some(), end == 1);
        }
        assert!(two.world.introduced(flows[0]) && two.world.introduced(stays));
        two.world.set_beat(Some(Duration::from_millis(7)));
        two.world.run_for(2 * SECOND);
        two.world.check();
    }
}

#[test]
fn more_flows_than_are_allowed() {
    // P-36
    let server = Config { flows_per_peer: 3, ..Config::default() };
    let mut two = Two::with(704, Config::default(), server);
    let flows: Vec<FlowId> = (0..5).map(|_| two.world.connect(two.client, SERVICE)).collect();
    two.world.run_for(30 * SECOND);
    let movable = |world: &World| flows.iter().filter(|flow| world.introduced(**flow)).count();
    assert_eq!((movable(&two.world), two.world.peer(two.server).flows), (3, 3));
    two.world.assert_delivering(SECOND);
    two.world.check();
    // The asking end's own limit.
    let client = Config { flows: 2, ..Config::default() };
    let mut two = Two::with(705, client, Config::default());
    let flows: Vec<FlowId> = (0..6)
        .map(|_| {
            two.world.run_for(2 * SECOND);
            two.world.connect(two.client, SERVICE)
        })
        .collect();
    two.world.run_for(10 * SECOND);
    assert_eq!(flows.iter().filter(|flow| two.world.introduced(**flow)).count(), 2);
    two.world.check();
}

#[test]
fn introductions_by_others_displace_no_true_one() {
    // P-36: strangers who know the tuple put nonces into it the whole time.
    let mut two = Two::new(706);
    let den = two.world.network(Access::Open);
    let mut strangers: Vec<Speaker> = (0..3u8)
        .map(|number| {
            let host = two.world.bare_host("stranger");
            two.world.at_mut(host).collects = true;
            let at = format!("10.66.0.{}", number + 1);
            two.world.attach(host, den, &at);
            let mut stranger = Speaker::new(host, den, address(&at), address("10.9.0.1"));
            stranger.meet(&mut two.world);
            stranger.send(&mut two.world, stranger.endpoint(), &[Message::IntroductionRequest { tag: 1 }]);
            stranger
        })
        .collect();
    two.world.set_beat(Some(Duration::from_millis(29)));
    let flow = two.world.connect(two.client, SERVICE);
    let tuple = two.world.flow(flow).tuples[0];
    for round in 0..2000u64 {
        for (number, stranger) in strangers.iter().enumerate() {
            stranger.inject(&mut two.world, tuple, Some((flow, 0)), round << 8 | number as u64);
        }
        if round == 1000 {
            let echo = Echo {
                introducer_nonce: round << 8,
                responder_nonce: 1 << 62,
                introducer_place: 0,
                responder_place: 0,
                wire_port: 80,
                tuple,
            };
            let from = strangers[0].endpoint();
            strangers[0].send(&mut two.world, from, &[Message::IntroductionEcho(echo)]);
        }
        two.world.run_for(Duration::from_millis(2));
    }
    assert!(two.world.introduced(flow));
    let key = two.world.at(two.client).public_key();
    let owner = two.world.view(flow, 1).and_then(|view| view.peer);
    let client = two.world.peers(two.server).into_iter().find(|peer| peer.key == key).map(|peer| peer.id);
    assert_eq!(owner, client);
    two.world.run_for(20 * SECOND);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(3 * SECOND);
    settle_as(&mut two.world, &[flow], Carried::Rewritten);
}

#[test]
fn what_costs_much_is_asked_for_once_in_a_datagram() {
    // P-37
    let mut two = Two::new(707);
    let den = two.world.network(Access::Open);
    let host = two.world.bare_host("speaker");
    two.world.at_mut(host).collects = true;
    two.world.attach(host, den, "10.66.0.1");
    let mut speaker = Speaker::new(host, den, address("10.66.0.1"), address("10.9.0.1"));
    speaker.meet(&mut two.world);
    let claimed = speaker.endpoint();
    let update = |sequence| Message::BindingUpdate {
        binding: BindingNumber::FIRST,
        sequence,
        flags: UpdateFlags::NONE,
        claimed,
        lifetime: 0,
    };
    let dropped = |world: &World| world.at(two.server).node.as_ref().expect("a node").dropped();
    let before = dropped(&two.world);
    for messages in [
        vec![Message::IntroductionRequest { tag: 1 }; 2],
        vec![Message::FlowClosed(vec![]); 512],
        vec![update(1), update(2)],
        vec![Message::Stream(Stretch { stream: 1, fresh: true, offset: 0, bytes: vec![] }); 2],
    ] {
        speaker.send(&mut two.world, claimed, &messages);
        two.world.run_for(Duration::from_millis(50));
        assert_eq!(speaker.hear(&mut two.world), []);
    }
    assert_eq!(dropped(&two.world), before + 4);
    let messages = [Message::IntroductionRequest { tag: 1 }, Message::FlowClosed(vec![]), update(1)];
    speaker.send(&mut two.world, claimed, &messages);
    two.world.run_for(Duration::from_millis(50));
    let heard = speaker.hear(&mut two.world);
    assert!(heard.contains(&Message::IntroductionReady { tag: 1 }), "{heard:?}");
    assert!(heard.iter().any(|message| matches!(message, Message::BindingAcknowledgement { .. })));
}

/// A server with a connected datagram socket whose far end is another host's, which runs nothing; and a speaker
/// elsewhere.
fn datagrams_of_another() -> (World, HostId, HostId, FlowId, Speaker) {
    let mut world = World::new(708);
    let [den, far, crowd] = std::array::from_fn(|_| world.network(Access::Open));
    let server = world.host("server");
    let (liar_host, victim) = (world.bare_host("liar"), world.bare_host("victim"));
    world.at_mut(liar_host).collects = true;
    world.attach(server, far, "10.9.0.1");
    world.attach(liar_host, den, "10.66.0.1");
    world.attach(victim, crowd, "10.77.0.1");
    let flow = world.connect_from(victim, 5353, NAMES, Transport::Udp);
    let mut liar = Speaker::new(liar_host, den, address("10.66.0.1"), address("10.9.0.1"));
    liar.meet(&mut world);
    liar.send(&mut world, liar.endpoint(), &[Message::IntroductionRequest { tag: 1 }]);
    world.run_for(Duration::from_millis(50));
    (world, server, victim, flow, liar)
}

#[test]
fn nothing_is_put_into_datagram_flows_of_who_is_not_there() {
    // P-150: what it would be answered with is read by a program of somebody else.
    let (mut world, server, _, flow, liar) = datagrams_of_another();
    let tuple = world.flow(flow).tuples[0];
    let before = world.exchanged(server, address("10.77.0.1")).0;
    for round in 0..200 {
        liar.inject(&mut world, tuple, Some((flow, 0)), round);
        world.run_for(Duration::from_millis(10));
    }
    let sent = world.exchanged(server, address("10.77.0.1")).0 - before;
    // A question five times a second at the most, which is not longer than what asked for it, and nothing in the flow.
    assert!(sent <= 12 * 80, "{sent} bytes");
    assert!(world.violations().iter().all(|of| of.kind != Kind::Leaked), "{:?}", world.violations());
}

#[test]
fn who_answers_at_the_far_end_of_a_datagram_flow_may_introduce_it() {
    // P-150: with a session by one family, and a flow by the other.
    for elsewhere in [false, true] {
        let mut two = Two::nowhere(709, Config::default(), Config::default());
        two.world.attach(two.server, two.far, "2001:db8:9::1");
        two.world.attach(two.client, two.home, "10.1.0.2");
        two.world.attach(two.client, two.home, "2001:db8:1::2");
        if elsewhere {
            let other = two.world.connect(two.client, "[2001:db8:9::1]:80");
            introduced(&mut two.world, &[other]);
            two.world.run_for(100 * SECOND);
        }
        let flow = two.world.connect_from(two.client, 5353, NAMES, Transport::Udp);
        introduced(&mut two.world, &[flow]);
    }
}
