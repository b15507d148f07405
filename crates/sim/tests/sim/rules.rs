//! Rules of the protocol that no other test looks at by itself.

use std::time::Duration;

use whimbrel_sim::{Access, Carried, Speaker, World};
use whimbrel_wire::BindingNumber;
use whimbrel_wire::message::{BindingStatus, Echo, IntroductionRefusal, Message, UpdateFlags};

use crate::common::{AWAY, FURTHER, HOME, SECOND, SERVICE, Two, address, settle_as};

/// When something was last traced, in seconds since the world began.
fn last_traced(world: &World, host: &str, what: &str) -> Option<u64> {
    let of_host = |line: &&str| line.contains(&format!(" {host} does {what}"));
    let line = world.traced().filter(of_host).last()?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|micros| micros / 1_000_000)
}

#[test]
fn sessions_are_renewed_every_hour() {
    // P-7
    let (mut two, _) = Two::flowing(801, 1);
    two.world.set_beat(None);
    for hour in 1..=3 {
        let began = two.world.now().as_millis() / 1000;
        two.world.run_for(Duration::from_secs(3605));
        for host in ["client", "server"] {
            let made = last_traced(&two.world, host, "Tunnel(AddKeys").expect("keys");
            assert!(made > began && made <= began + 3605, "hour {hour}: {host}'s keys were made at {made}");
        }
        two.world.run_for(60 * SECOND);
        for host in ["client", "server"] {
            let made = last_traced(&two.world, host, "Tunnel(AddKeys").expect("keys");
            let dropped = last_traced(&two.world, host, "Tunnel(RemoveKeys").expect("the former session");
            assert!((made + 30..=made + 40).contains(&dropped), "{host}: made at {made}, former dropped at {dropped}");
        }
    }
    two.world.check();
}

/// A server, and somebody on a host of his own who has a connection to it.
fn server_and_speaker(seed: u64) -> (World, whimbrel_sim::HostId, Speaker, whimbrel_sim::FlowId) {
    let mut world = World::new(seed);
    let [den, far] = std::array::from_fn(|_| world.network(Access::Open));
    let server = world.host("server");
    let host = world.bare_host("speaker");
    world.at_mut(host).collects = true;
    world.attach(server, far, "10.9.0.1");
    world.attach(host, den, "10.66.0.1");
    let mut speaker = Speaker::new(host, den, address("10.66.0.1"), address("10.9.0.1"));
    speaker.meet(&mut world);
    let flow = world.connect(host, SERVICE);
    world.at_mut(host).listen(speaker.index());
    (world, server, speaker, flow)
}

#[test]
fn an_introduction_at_other_places_is_refused() {
    // P-14
    let (mut world, server, mut speaker, flow) = server_and_speaker(802);
    let tuple = world.flow(flow).tuples[0];
    for (introducer_place, responder_place) in [(5, 0), (0, 5), (u32::MAX, 0), (0, u32::MAX)] {
        let nonce = 0x100 + u64::from(introducer_place ^ responder_place.rotate_left(8));
        let from = speaker.endpoint();
        speaker.send(&mut world, from, &[Message::IntroductionRequest { tag: 1 }]);
        world.run_for(Duration::from_millis(50));
        speaker.inject(&mut world, tuple, Some((flow, 0)), nonce);
        world.run_for(Duration::from_millis(50));
        let host = world.flow(flow).hosts[0];
        let responder_nonce = *world.at(host).consumed.last().expect("the server's nonce");
        let echo =
            Echo { introducer_nonce: nonce, responder_nonce, introducer_place, responder_place, wire_port: 7, tuple };
        speaker.send(&mut world, from, &[Message::IntroductionEcho(echo)]);
        world.run_for(Duration::from_millis(50));
        let refusal = Message::IntroductionDone { nonce, outcome: Err(IntroductionRefusal::OtherPlaces) };
        assert!(speaker.hear(&mut world).contains(&refusal), "places {introducer_place} and {responder_place}");
        assert_eq!(world.peer(server).flows, 0);
    }
    // Where the places are right, it is introduced.
    speaker.introduce(&mut world, flow, (0, 0));
    assert_eq!(world.peer(server).flows, 1);
}

#[test]
fn one_flow_is_answered_seldom() {
    // P-36: each answer costs a look at the host's sockets.
    let (mut world, _, mut speaker, flow) = server_and_speaker(805);
    let tuple = world.flow(flow).tuples[0];
    let from = speaker.endpoint();
    speaker.send(&mut world, from, &[Message::IntroductionRequest { tag: 1 }]);
    world.run_for(Duration::from_millis(50));
    for same in [true, false] {
        let before = world.at(world.flow(flow).hosts[0]).consumed.len();
        for round in 0..500 {
            speaker.inject(&mut world, tuple, Some((flow, 0)), 0x1000 + if same { 0 } else { round });
            world.run_for(Duration::from_millis(2));
        }
        let answers = world.at(world.flow(flow).hosts[0]).consumed.len() - before;
        assert!((4..=6).contains(&answers), "{answers} answers in a second, same nonce: {same}");
        world.run_for(12 * SECOND);
        speaker.send(&mut world, from, &[Message::IntroductionRequest { tag: 1 }]);
        world.run_for(Duration::from_millis(50));
    }
    speaker.introduce(&mut world, flow, (0, 0));
}

#[test]
fn an_update_that_is_not_newer_moves_nothing() {
    // P-17
    let (mut world, server, mut speaker, flow) = server_and_speaker(803);
    speaker.introduce(&mut world, flow, (0, 0));
    let from = speaker.endpoint();
    let flags = UpdateFlags::NONE;
    for (sequence, expected, newer) in [
        (5, BindingStatus::Accepted, true),
        // As when the answer was lost.
        (5, BindingStatus::Accepted, false),
        (4, BindingStatus::NotNewer, false),
        (0, BindingStatus::NotNewer, false),
        (6, BindingStatus::Accepted, true),
    ] {
        let before = world.peer(server);
        // One that is not newer names another place.
        let claimed = if newer { from } else { "10.66.7.7:2031".parse().expect("an endpoint") };
        let update = Message::BindingUpdate { binding: BindingNumber::FIRST, sequence, flags, claimed, lifetime: 0 };
        speaker.send(&mut world, from, &[update, Message::Padding { length: 1000 }]);
        world.run_for(Duration::from_millis(50));
        let heard = speaker.hear(&mut world);
        let answer = heard.iter().find_map(|message| match message {
            Message::BindingAcknowledgement { sequence: of, status, newest, .. } if *of == sequence => {
                Some((*status, *newest))
            }
            _ => None,
        });
        assert_eq!(answer, Some((expected, sequence.max(5))), "{heard:?}");
        if !newer {
            let after = world.peer(server);
            assert_eq!((after.places, after.remote, after.candidate), (before.places, before.remote, before.candidate));
        }
    }
}

#[test]
fn a_former_path_is_accepted_for_a_minute() {
    // P-22
    let (mut two, flows) = Two::flowing(804, 1);
    let pair = |world: &World, host, at: &str| world.at(host).plane.accepts_rewritten(address("10.9.0.1"), address(at));
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    two.world.move_to(two.client, two.further, FURTHER);
    two.world.run_for(SECOND);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    let server = two.server;
    assert!(pair(&two.world, server, AWAY) && pair(&two.world, server, FURTHER));
    two.world.run_for(50 * SECOND);
    assert!(pair(&two.world, server, AWAY));
    two.world.run_for(15 * SECOND);
    assert!(!pair(&two.world, server, AWAY) && pair(&two.world, server, FURTHER));
    assert!(!pair(&two.world, server, HOME));
    two.world.check();
}
