//! Networks that strip TCP options: flows are paired by their sequence numbers (P-50 to P-52).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use whimbrel_protocol::{Config, FlowState};
use whimbrel_sim::{Access, Carried, FlowId, Powers, Speaker, World};
use whimbrel_wire::message::{IntroductionRefusal, Message, Pairing};

use crate::common::{AWAY, HOME, INSIDE, SECOND, SERVICE, Two, address, settle_as};

/// Flows through such a network, introduced.
fn paired(two: &mut Two, count: usize) -> Vec<FlowId> {
    two.world.strips_options = true;
    two.flow(count)
}

#[test]
fn flows_are_paired_and_move() {
    let mut two = Two::new(501);
    let flows = paired(&mut two, 5);
    // Nothing that says where numbers began is a nonce: these were given up before.
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(SECOND);
    // Probes are stripped too, so only the tunnel is left.
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    two.world.move_to(two.client, two.home, HOME);
    two.world.assert_delivering(SECOND);
    settle_as(&mut two.world, &flows, Carried::Native);
    two.world.check();
}

#[test]
fn flows_behind_a_nat_are_paired() {
    let mut two = Two::nowhere(502, Config::default(), Config::default());
    two.world.attach(two.client, two.second_nat, INSIDE);
    let flows = paired(&mut two, 5);
    two.world.move_to(two.client, two.away, AWAY);
    two.world.assert_delivering(SECOND);
    settle_as(&mut two.world, &flows, Carried::Tunnelled);
    two.world.check();
}

#[test]
fn every_datagram_may_be_lost() {
    for lost in 0..40 {
        let mut two = Two::new(503);
        two.world.strips_options = true;
        two.world.faults.lose = Some(lost);
        let flow = two.world.connect(two.client, SERVICE);
        assert!(two.world.wait(60 * SECOND, |w| w.introduced(flow)), "datagram {lost}");
        two.world.check();
    }
}

#[test]
fn two_flows_with_the_same_numbers_stay() {
    let mut two = Two::new(504);
    (two.world.strips_options, two.world.same_numbers) = (true, true);
    let flows = [0; 2].map(|_| two.world.connect(two.client, SERVICE));
    two.world.run_for(30 * SECOND);
    for flow in flows {
        for end in 0..2 {
            let view = two.world.view(flow, end).expect("it is known");
            assert!(matches!(view.state, FlowState::Failed(_) | FlowState::Unknown), "{:?}", view.state);
        }
    }
    two.world.check();
}

/// A client and a server that do not speak to each other, and a thief who seems to be where the client is, as any local
/// user of the client's may.
struct Theft {
    world: World,
    thief: Speaker,
    flow: FlowId,
}

impl Theft {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        let [home, far] = std::array::from_fn(|_| world.network(Access::Open));
        let victim = world.bare_host("victim");
        let server = world.host("server");
        world.at_mut(victim).collects = true;
        world.attach(victim, home, HOME);
        world.attach(server, far, "10.9.0.1");
        world.strips_options = true;
        let mut thief = Speaker::new(victim, home, address(HOME), address("10.9.0.1"));
        thief.meet(&mut world);
        let flow = world.connect(victim, SERVICE);
        Self { world, thief, flow }
    }

    fn claim(&mut self, nonce: u64, numbers: (u32, u32)) -> Vec<Message> {
        let claim = Message::Pairing(Pairing {
            introducer_nonce: nonce,
            proof: self.thief.pairing_proof(true, numbers),
            introducer_place: 0,
            responder_place: 0,
            wire_port: 2000,
            tuple: self.world.flow(self.flow).tuples[0],
            late: false,
        });
        let from = self.thief.endpoint();
        self.thief.send(&mut self.world, from, &[claim]);
        self.world.run_for(Duration::from_millis(200));
        self.thief.hear(&mut self.world)
    }

    fn state(&self, end: usize) -> Option<FlowState> {
        self.world.view(self.flow, end).map(|view| view.state)
    }
}

fn refused(messages: &[Message]) -> bool {
    messages
        .iter()
        .any(|message| matches!(message, Message::IntroductionDone { outcome: Err(IntroductionRefusal::Refused), .. }))
}

#[test]
fn a_thief_guesses_the_numbers() {
    let mut theft = Theft::new(505);
    let (opener, accepter) = theft.world.initial_numbers(theft.flow);
    for guess in 2..=65 {
        assert!(refused(&theft.claim(guess, (opener, accepter.wrapping_add(1 + guess as u32)))));
        assert!(!matches!(theft.state(1), Some(FlowState::Native | FlowState::Moved)));
    }
    // It has had its tries, and may now say what it likes.
    assert!(refused(&theft.claim(100, (opener, accepter.wrapping_add(1)))));
    assert!(!matches!(theft.state(1), Some(FlowState::Native | FlowState::Moved)));
    theft.world.check();

    // The same claim, by somebody who knows: it is the numbers that decide.
    let mut owner = Theft::new(506);
    let answers = owner.claim(100, (opener, accepter.wrapping_add(1)));
    assert!(answers.iter().any(|message| matches!(message, Message::Paired { nonce: 100, .. })), "{answers:?}");
    assert_eq!(owner.state(1), Some(FlowState::Native));
}

#[test]
fn a_local_user_is_told_of_a_flow_and_does_not_know_its_numbers() {
    let mut world = World::new(507);
    let [home, far] = std::array::from_fn(|_| world.network(Access::Open));
    let victim = world.host("a local user's daemon");
    world.at_mut(victim).powers = Powers { inject: false, consume: false };
    let server = world.host("server");
    world.attach(victim, home, HOME);
    world.attach(server, far, "10.9.0.1");
    world.strips_options = true;
    let flow = world.connect(server, "10.1.0.2:22");
    world.run_for(120 * SECOND);
    let state = world.view(flow, 0).map(|view| view.state);
    assert!(matches!(state, Some(FlowState::Failed(_))), "{state:?}");
    assert_eq!(world.peers(server).iter().map(|peer| peer.flows).sum::<usize>(), 0);
    world.check();
}

/// How long the server takes at the most for a millisecond in which a stranger claims one of a thousand connections of
/// its own, a hundred times, in so many sessions.
fn longest_step(sessions: usize) -> Duration {
    let mut theft = Theft::new(508);
    for _ in 0..1000 {
        theft.world.connect(theft.thief.host(), SERVICE);
    }
    theft.world.run_for(2 * SECOND);
    let mut had = Vec::new();
    for _ in 1..sessions {
        had.push(theft.thief.swap_session(None));
        assert!(theft.thief.try_to_meet(&mut theft.world, Duration::from_millis(25)));
        let from = theft.thief.endpoint();
        theft.thief.send(&mut theft.world, from, &[Message::Padding { length: 1 }]);
    }
    let tuple = theft.world.flow(theft.flow).tuples[0];
    for nonce in 0..100 {
        if let Some(other) = had.get_mut(nonce) {
            *other = theft.thief.swap_session(other.take());
        }
        let claim = Message::Pairing(Pairing {
            introducer_nonce: nonce as u64,
            proof: [7; 16],
            introducer_place: 0,
            responder_place: 0,
            wire_port: 2000,
            tuple,
            late: false,
        });
        let from = theft.thief.endpoint();
        theft.thief.send(&mut theft.world, from, &[claim]);
    }
    let step = |_| {
        let began = Instant::now();
        theft.world.run_for(Duration::from_millis(1));
        began.elapsed()
    };
    (0..400).map(step).max().unwrap_or_default()
}

#[test]
fn claims_in_many_sessions_cost_no_more_than_in_one() {
    // P-52; it was a hundred times as much.
    let (one, many) = (longest_step(1), longest_step(100));
    assert!(many < one * 10 + Duration::from_millis(20), "{many:?} beside {one:?}");
}

#[test]
fn both_ends_have_one_name_for_a_flow_that_nobody_has_seen() {
    // P-132
    for strips in [false, true] {
        let mut two = Two::new(509);
        two.world.strips_options = strips;
        let flows = two.flow(20);
        let name = |end| {
            let of = |flow: &FlowId| two.world.view(*flow, end).and_then(|view| view.entry).map(|entry| entry.name);
            flows.iter().filter_map(of).collect::<Vec<u64>>()
        };
        let (ours, theirs) = (name(0), name(1));
        assert_eq!(ours, theirs);
        assert_eq!(ours.iter().collect::<BTreeSet<_>>().len(), flows.len());
        assert!(ours.iter().all(|name| !two.world.nonces.contains(name)), "a nonce that travelled is a name");
    }
}
