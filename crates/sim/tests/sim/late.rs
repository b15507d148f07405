//! Late introduction (P-204 to P-206): what nobody had introduced when an end moved, and who must not get anything by
//! that.

use std::time::Duration;

use whimbrel_handshake::StaticKey;
use whimbrel_protocol::{Config, FlowState, LateIntroductions, Rule, Verdict};
use whimbrel_sim::{Access, FlowId, HostId, NatPorts, Speaker, World};
use whimbrel_wire::BindingNumber;
use whimbrel_wire::message::{IntroductionRefusal, Message, Pairing, UpdateFlags};

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, SERVICE, Two, address, introduced, nat, seeds};

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn a_connection_that_is_younger_than_its_introduction_survives() {
    // P-204: at every millisecond, whoever moves, and whatever of it is lost.
    for age in 0..25 {
        for (end, to_nat) in [(0, false), (0, true), (1, false)] {
            for lost in [None, Some(age % 7)] {
                let (mut two, _) = Two::flowing(age, 1);
                let flow = two.world.connect(two.client, SERVICE);
                two.world.run_for(MILLISECOND * u32::try_from(age).expect("small"));
                two.world.faults.lose = lost.map(|lost| two.world.sent() + lost);
                match (end, to_nat) {
                    (0, false) => two.world.move_to(two.client, two.away, AWAY),
                    (0, true) => two.world.move_to(two.client, two.nat, INSIDE),
                    _ => two.world.move_to(two.server, two.further, FURTHER),
                }
                introduced(&mut two.world, &[flow]);
                two.world.assert_delivering(2 * SECOND);
                two.world.check();
            }
        }
    }
}

#[test]
fn it_survives_every_further_move() {
    // P-206: its own packets come natively at home, and may still when it has moved again.
    for age in 0..25 {
        let (mut two, _) = Two::flowing(100 + age, 1);
        let flow = two.world.connect(two.client, SERVICE);
        two.world.run_for(MILLISECOND * u32::try_from(age).expect("small"));
        two.world.move_to(two.client, two.away, AWAY);
        introduced(&mut two.world, &[flow]);
        let is_late = |two: &Two| two.world.view(flow, 1).and_then(|view| view.entry).is_some_and(|entry| entry.late);
        let was_late = is_late(&two);
        for round in 0..3 {
            two.world.move_to(two.client, two.home, HOME);
            two.world.run_for(Duration::from_millis(400 + 7 * age));
            assert!(!is_late(&two), "it was at home again");
            two.world.send(flow, 0);
            two.world.run_for(MILLISECOND);
            two.world.move_to(two.client, two.away, AWAY);
            two.world.assert_delivering(2 * SECOND);
            assert!(two.world.introduced(flow), "lost at age {age} in round {round}, late: {was_late}");
        }
        assert!(age > 0 || was_late);
        two.world.check();
    }
}

#[test]
fn whoever_else_has_it_is_heard_of_for_a_minute() {
    // P-206
    let (mut two, _) = Two::flowing(140, 1);
    let flow = two.world.connect(two.client, SERVICE);
    two.world.move_to(two.client, two.away, AWAY);
    introduced(&mut two.world, &[flow]);
    let is_late = |two: &Two| two.world.view(flow, 1).and_then(|view| view.entry).is_some_and(|entry| entry.late);
    two.world.run_for(40 * SECOND);
    assert!(is_late(&two));
    two.world.restart(two.server, SECOND);
    two.world.run_for(40 * SECOND);
    assert!(is_late(&two), "the next daemon cannot tell since when");
    two.world.run_for(30 * SECOND);
    assert!(!is_late(&two));
    two.world.assert_delivering(2 * SECOND);
    two.world.check();
}

#[test]
fn also_from_behind_a_nat_that_changes_ports() {
    // P-204: the names of the two ends differ.
    for age in 0..25 {
        let mut two = Two::nowhere(age, Config::default(), Config::default());
        two.world.attach(two.client, two.second_nat, INSIDE);
        two.flow(2);
        let flow = two.world.connect(two.client, SERVICE);
        two.world.run_for(MILLISECOND * u32::try_from(age).expect("small"));
        two.world.move_to(two.client, two.away, AWAY);
        introduced(&mut two.world, &[flow]);
        two.world.assert_delivering(2 * SECOND);
        two.world.check();
    }
}

#[test]
fn many_of_random_age() {
    // Issue: of those established none is lost with a session.
    for seed in seeds(2, 30) {
        let (mut two, _) = Two::flowing(seed, 1);
        two.world.set_beat(None);
        let flows: Vec<FlowId> = (0..300)
            .map(|_| {
                two.world.run_for(10 * MILLISECOND);
                two.world.connect(two.client, SERVICE)
            })
            .collect();
        two.world.move_to(two.client, two.nat, INSIDE);
        introduced(&mut two.world, &flows);
        two.world.assert_delivering(2 * SECOND);
        two.world.check();
    }
}

#[test]
fn nothing_is_taken_where_policy_does_not_want_it() {
    // P-205
    for (late, from_nat, survives) in [
        (LateIntroductions::Alone, false, true),
        (LateIntroductions::Alone, true, false),
        (LateIntroductions::Never, false, false),
    ] {
        let server = Config { late, ..Config::default() };
        let mut two = Two::nowhere(7, Config::default(), server);
        match from_nat {
            true => two.world.attach(two.client, two.nat, INSIDE),
            false => two.world.attach(two.client, two.home, HOME),
        }
        two.flow(1);
        let flow = two.world.connect(two.client, SERVICE);
        two.world.run_for(MILLISECOND);
        two.world.move_to(two.client, two.away, AWAY);
        two.world.run_for(5 * SECOND);
        assert_eq!(two.world.introduced(flow), survives, "{late:?} {from_nat}");
        two.world.check();
    }
}

/// An attacker and a victim that runs nothing, behind one NAT, each with a connection to one service. The attacker has
/// listened, and knows where the numbers of the victim's began.
struct Listener {
    world: World,
    server: HostId,
    victims: HostId,
    attacker: Speaker,
    victim: FlowId,
    sequence: u32,
}

impl Listener {
    fn new(seed: u64, config: Config) -> Self {
        let mut world = World::new(seed);
        let inside = world.network(nat("10.100.0.1", NatPorts::Preserving));
        let far = world.network(Access::Open);
        let server = world.host_with("server", config);
        world.attach(server, far, "10.9.0.1");
        let attacker = world.bare_host("attacker");
        world.at_mut(attacker).collects = true;
        world.attach(attacker, inside, "192.168.1.3");
        let victims = world.bare_host("victim");
        world.attach(victims, inside, INSIDE);
        let mut attacker = Speaker::new(attacker, inside, address("192.168.1.3"), address("10.9.0.1"));
        attacker.meet(&mut world);
        let bait = world.connect_from(attacker.host(), 46_000, SERVICE, whimbrel_wire::Transport::Tcp);
        attacker.introduce_as(&mut world, bait, (0, 0), 46_000);
        let victim = world.connect(victims, SERVICE);
        let mut this = Self { world, server, victims, attacker, victim, sequence: 0 };
        this.update();
        this
    }

    /// The attacker says that it has moved, and answers challenges.
    fn update(&mut self) {
        self.sequence += 1;
        let own = self.attacker.endpoint();
        let flags = UpdateFlags::UPROOTED.with(UpdateFlags::FORMER_PATH_LOST);
        let (binding, sequence) = (BindingNumber::FIRST, self.sequence);
        let update = Message::BindingUpdate { binding, sequence, flags, claimed: own, lifetime: 0 };
        self.attacker.send(&mut self.world, own, &[update]);
        self.answer();
    }

    fn answer(&mut self) -> Vec<Message> {
        let (own, mut all) = (self.attacker.endpoint(), Vec::new());
        for _ in 0..4 {
            self.world.run_for(Duration::from_millis(80));
            for message in self.attacker.hear(&mut self.world) {
                if let Message::PathChallenge { token } = message {
                    let observed = self.attacker.peer;
                    self.attacker.send(&mut self.world, own, &[Message::PathResponse { token, observed }]);
                }
                all.push(message);
            }
        }
        all
    }

    /// The victim runs Whimbrel as well: it meets the server, and leaves. It is who speaks from then on; gives the
    /// attacker.
    fn victim_leaves(&mut self) -> Speaker {
        self.world.at_mut(self.victims).collects = true;
        let key = StaticKey::from_bytes([0x19; 32]);
        let inside = self.attacker.network;
        let owner = Speaker::with_key(self.victims, inside, address(INSIDE), address("10.9.0.1"), key, 9000);
        let attacker = std::mem::replace(&mut self.attacker, owner);
        self.attacker.meet(&mut self.world);
        self.answer();
        let bait = self.world.connect_from(self.victims, 46_100, SERVICE, whimbrel_wire::Transport::Tcp);
        self.attacker.introduce_as(&mut self.world, bait, (0, 0), 46_100);
        self.answer();
        let away = self.world.network(Access::Open);
        self.world.move_to(self.victims, away, AWAY);
        (self.attacker.network, self.attacker.address) = (away, address(AWAY));
        attacker
    }

    /// The attacker claims a flow, again and again. What it is told.
    fn claim(&mut self, flow: FlowId, nonce: u64, numbers: (u32, u32), times: usize) -> Vec<Message> {
        let claim = self.claim_of(flow, nonce, numbers);
        let from = self.attacker.endpoint();
        let mut told = Vec::new();
        for _ in 0..times {
            self.attacker.send(&mut self.world, from, std::slice::from_ref(&claim));
            told.extend(self.answer());
        }
        told
    }

    fn claim_of(&self, flow: FlowId, nonce: u64, numbers: (u32, u32)) -> Message {
        Message::Pairing(Pairing {
            introducer_nonce: nonce,
            proof: self.attacker.pairing_proof(true, numbers),
            introducer_place: 0,
            responder_place: 0,
            wire_port: 2000,
            tuple: self.world.flow(flow).tuples[0],
            late: true,
        })
    }

    /// What the opener of a flow has to show.
    fn numbers(&self, flow: FlowId) -> (u32, u32) {
        let (opener, accepter) = self.world.initial_numbers(flow);
        (opener, accepter.wrapping_add(1))
    }

    fn is_taken(&self) -> bool {
        self.world.view(self.victim, 1).is_some_and(|view| view.entry.is_some())
    }

    /// What the victim and the server send each other arrives, at their sockets.
    fn assert_untouched(&mut self) {
        assert!(!self.is_taken());
        for end in 0..2 {
            let since = self.world.now();
            self.world.send(self.victim, 1 - end);
            self.world.run_for(Duration::from_millis(200));
            let arrived = self.world.flow(self.victim).arrived[end];
            assert!(arrived.is_some_and(|at| at > since), "the victim's end {end} starves");
        }
        self.world.check();
    }
}

fn is_refused(told: &[Message]) -> bool {
    let refused = |message: &Message| {
        matches!(message, Message::IntroductionDone { outcome: Err(IntroductionRefusal::Refused), .. })
    };
    told.iter().any(refused)
}

fn is_paired(told: &[Message]) -> bool {
    told.iter().any(|message| matches!(message, Message::Paired { .. }))
}

#[test]
fn a_listener_behind_the_same_nat_takes_no_neighbours_connection() {
    // P-206: the neighbour says nothing by itself.
    for seed in 1..20 {
        let mut at = Listener::new(seed, Config::default());
        let told = at.claim(at.victim, 5, at.numbers(at.victim), 10);
        assert!(!is_paired(&told) && is_refused(&told), "{told:?}");
        at.assert_untouched();
        // By another nonce, as by the first.
        let told = at.claim(at.victim, 6, at.numbers(at.victim), 4);
        assert!(!is_paired(&told), "{told:?}");
        at.assert_untouched();
    }
}

#[test]
fn what_is_natively_there_after_all_has_its_connection_back() {
    // P-206: the neighbour could not answer for a moment.
    let mut at = Listener::new(30, Config::default());
    at.world.at_mut(at.victims).asleep = true;
    let told = at.claim(at.victim, 5, at.numbers(at.victim), 4);
    assert!(is_paired(&told) && at.is_taken(), "{told:?}");
    at.world.at_mut(at.victims).asleep = false;
    at.world.send(at.victim, 0);
    at.world.run_for(Duration::from_millis(200));
    at.assert_untouched();
    let told = at.claim(at.victim, 7, at.numbers(at.victim), 4);
    assert!(!is_paired(&told), "it was introduced once: {told:?}");
    at.assert_untouched();
}

#[test]
fn what_was_on_its_way_is_no_answer() {
    // P-206: the last of whoever left comes after the question.
    let mut at = Listener::new(37, Config::default());
    at.world.at_mut(at.victims).asleep = true;
    let mut told = at.claim(at.victim, 5, at.numbers(at.victim), 1);
    at.world.at_mut(at.victims).asleep = false;
    at.world.send(at.victim, 0);
    at.world.run_for(40 * MILLISECOND);
    at.world.at_mut(at.victims).asleep = true;
    told.extend(at.claim(at.victim, 5, at.numbers(at.victim), 2));
    assert!(!is_paired(&told) && !is_refused(&told), "it is asked again first: {told:?}");
    told.extend(at.claim(at.victim, 5, at.numbers(at.victim), 4));
    assert!(is_paired(&told) && at.is_taken(), "{told:?}");
    at.world.check();
}

#[test]
fn what_two_claim_is_neithers() {
    // P-206: the neighbour has left, and whoever has listened claims its connection as well, before it or after.
    for attacker_first in [true, false] {
        let mut at = Listener::new(38, Config::default());
        let mut other = at.victim_leaves();
        let numbers = at.numbers(at.victim);
        if attacker_first {
            std::mem::swap(&mut at.attacker, &mut other);
        } else {
            at.update();
        }
        let told = at.claim(at.victim, 5, numbers, if attacker_first { 4 } else { 1 });
        assert_eq!((is_paired(&told), at.is_taken()), (attacker_first, attacker_first), "{told:?}");
        std::mem::swap(&mut at.attacker, &mut other);
        if attacker_first {
            at.update();
        }
        let told = at.claim(at.victim, 6, numbers, 2);
        assert!(is_refused(&told) && !is_paired(&told) && !at.is_taken(), "{told:?}");
        std::mem::swap(&mut at.attacker, &mut other);
        let told = at.claim(at.victim, 7, numbers, 4);
        assert!(is_refused(&told) && !is_paired(&told) && !at.is_taken(), "{told:?}");
        at.world.check();
    }
}

#[test]
fn who_claims_what_another_claims_as_well_has_not_lied() {
    // P-206
    let mut at = Listener::new(39, Config::default());
    let own = at.world.connect(at.victims, SERVICE);
    let attacker = at.victim_leaves();
    at.update();
    let owner = std::mem::replace(&mut at.attacker, attacker);
    at.claim(at.victim, 5, at.numbers(at.victim), 1);
    at.attacker = owner;
    let from = at.attacker.endpoint();
    for nonce in 100..180 {
        let claim = at.claim_of(at.victim, nonce, at.numbers(at.victim));
        at.attacker.send(&mut at.world, from, &[claim]);
    }
    let told = at.answer();
    let refused = told.iter().filter(|message| is_refused(std::slice::from_ref(message))).count();
    assert!(refused >= 80 && !is_paired(&told), "{told:?}");
    // It has another connection, which nobody else claims.
    let told = at.claim(own, 6, at.numbers(own), 4);
    assert!(is_paired(&told), "{told:?}");
    at.world.check();
}

#[test]
fn a_daemon_that_is_started_anew_takes_nothing_that_it_finds() {
    // P-205: it was asked for whose a connection is, and is gone before the answer.
    let mut at = Listener::new(36, Config::default());
    at.world.at_mut(at.victims).asleep = true;
    at.claim(at.victim, 5, at.numbers(at.victim), 1);
    at.world.restart(at.server, 50 * MILLISECOND);
    at.world.run_for(100 * MILLISECOND);
    at.attacker.meet(&mut at.world);
    at.answer();
    at.update();
    let told = at.claim(at.victim, 6, at.numbers(at.victim), 4);
    assert!(!is_paired(&told) && !at.is_taken(), "{told:?}");
    at.world.at_mut(at.victims).asleep = false;
    at.assert_untouched();
    let fresh = at.world.connect(at.victims, SERVICE);
    at.world.at_mut(at.victims).asleep = true;
    let told = at.claim(fresh, 7, at.numbers(fresh), 4);
    assert!(is_paired(&told), "it takes what is opened from then on: {told:?}");
}

#[test]
fn what_policy_leaves_alone_is_said_to_be() {
    // P-205, P-59: nobody is asked for it, and nothing is ended.
    let (mut two, _) = Two::flowing(43, 1);
    two.world.with_node(two.server, |node| node.await_verdicts(true));
    let flow = two.world.connect(two.client, SERVICE);
    let (tuple, now) = (two.world.flow(flow).tuples[1], two.world.now());
    let alone = Rule { excluded_by: Some(7), ..Rule::default() };
    let verdict = Verdict { otherwise: alone, ..Verdict::default() };
    two.world.with_node(two.server, |node| node.handle_verdict(now, tuple, verdict));
    two.world.move_to(two.client, two.away, AWAY);
    two.world.run_for(3 * SECOND);
    let state = two.world.view(flow, 0).map(|view| view.state);
    assert_eq!(state, Some(FlowState::Failed("the peer's policy leaves it alone")));
    assert_eq!(two.world.at(two.client).ended_unaccepted, []);
    // In another session what could not be introduced is tried again; this has no address here any more.
    two.world.restart(two.server, SECOND);
    two.world.run_for(5 * SECOND);
    assert_eq!(two.world.view(flow, 0).map(|view| view.state), state);
    two.world.close(flow);
    two.world.check();
}

#[test]
fn what_is_old_is_not_taken() {
    // P-205
    let mut at = Listener::new(31, Config::default());
    at.world.at_mut(at.victims).asleep = true;
    at.world.run_for(10 * SECOND);
    let told = at.claim(at.victim, 5, at.numbers(at.victim), 4);
    assert!(!is_paired(&told) && is_refused(&told), "{told:?}");
    at.world.at_mut(at.victims).asleep = false;
    at.assert_untouched();
}

#[test]
fn who_has_not_answered_there_of_late_gets_nothing() {
    // P-205
    let mut at = Listener::new(32, Config::default());
    at.world.run_for(100 * SECOND);
    let victim = at.world.connect(at.victims, SERVICE);
    at.world.at_mut(at.victims).asleep = true;
    let from = at.attacker.endpoint();
    // It says so, and shows nothing: nobody has asked it whether it looks for introductions.
    let claim = at.claim_of(victim, 9, at.numbers(victim));
    at.attacker.send(&mut at.world, from, &[Message::IntroductionReady { tag: 0 }]);
    for _ in 0..4 {
        at.attacker.send(&mut at.world, from, std::slice::from_ref(&claim));
        at.world.run_for(Duration::from_millis(320));
    }
    assert!(at.world.view(victim, 1).is_none_or(|view| view.entry.is_none()));
}

#[test]
fn claims_that_lie_are_counted_and_refused() {
    // P-52, P-205
    let mut at = Listener::new(33, Config::default());
    let (sent, received) = at.numbers(at.victim);
    for wrong in 2..80 {
        let told = at.claim(at.victim, u64::from(wrong), (sent.wrapping_add(wrong), received), 1);
        assert!(!is_paired(&told));
    }
    // The right one comes too late.
    at.world.at_mut(at.victims).asleep = true;
    let told = at.claim(at.victim, 200, (sent, received), 4);
    assert!(!is_paired(&told), "{told:?}");
    at.world.at_mut(at.victims).asleep = false;
    at.assert_untouched();
}

#[test]
fn a_socket_whose_port_was_used_again_is_another() {
    // P-205
    let mut at = Listener::new(34, Config::default());
    let port = at.world.flow(at.victim).tuples[0].local.port();
    let former = at.numbers(at.victim);
    at.world.close(at.victim);
    at.victim = at.world.connect_from(at.victims, port, SERVICE, whimbrel_wire::Transport::Tcp);
    at.world.at_mut(at.victims).asleep = true;
    let told = at.claim(at.victim, 5, former, 4);
    assert!(!is_paired(&told) && is_refused(&told), "{told:?}");
    at.world.at_mut(at.victims).asleep = false;
    at.assert_untouched();
}

#[test]
fn what_is_claimed_twice_is_answered_twice() {
    // P-204: the answer may have been lost.
    let mut at = Listener::new(35, Config::default());
    at.world.at_mut(at.victims).asleep = true;
    let told = at.claim(at.victim, 5, at.numbers(at.victim), 8);
    let paired = told.iter().filter(|message| matches!(message, Message::Paired { .. })).count();
    assert!(paired >= 2 && at.is_taken(), "{told:?}");
    at.world.check();
}

#[test]
fn what_the_other_end_has_never_accepted_is_ended() {
    // P-203: the last segment of its handshake is lost with the move of either.
    for server_moves in [false, true] {
        let (mut two, _) = Two::flowing(40, 1);
        let unaccepted = two.world.connect(two.client, SERVICE);
        two.world.close_end(unaccepted, 1);
        let accepted = two.world.connect(two.client, SERVICE);
        match server_moves {
            false => two.world.move_to(two.client, two.away, AWAY),
            true => two.world.move_to(two.server, two.further, FURTHER),
        }
        introduced(&mut two.world, &[accepted]);
        let soon = two.world.at(two.client).ended_unaccepted.len();
        assert_eq!(soon, usize::from(!server_moves), "the server may name it still");
        two.world.run_for(3500 * MILLISECOND);
        let of = two.world.flow(unaccepted).tuples[0];
        assert_eq!(two.world.at(two.client).ended_unaccepted, [of], "{server_moves}");
        assert_eq!(two.world.at(two.server).ended_unaccepted, [], "{server_moves}");
        two.world.close(unaccepted);
        two.world.assert_delivering(2 * SECOND);
        two.world.check();
    }
}

#[test]
fn what_a_lying_peer_says_it_has_left_is_asked_before_it_is_ended() {
    // P-203: whoever has accepted it is there still, and says nothing by itself.
    for asleep in [false, true] {
        let mut world = World::new(42);
        let (near, far) = (world.network(Access::Open), world.network(Access::Open));
        let client = world.host_with("client", Config::default());
        world.attach(client, near, HOME);
        let other = world.bare_host("other");
        world.at_mut(other).collects = true;
        world.attach(other, far, "10.9.0.1");
        world.attach(other, far, "10.9.0.7");
        let mut peer = Speaker::new(other, far, address("10.9.0.1"), address(HOME));
        let flow = world.connect(client, SERVICE);
        world.run_for(500 * MILLISECOND);
        assert!(peer.answer(&mut world));
        world.run_for(100 * MILLISECOND);
        let claimed = std::net::SocketAddr::new(address("10.9.0.7"), peer.endpoint().port());
        let flags = UpdateFlags::UPROOTED.with(UpdateFlags::FORMER_PATH_LOST);
        let binding = BindingNumber::FIRST;
        let update = Message::BindingUpdate { binding, sequence: 1, flags, claimed, lifetime: 0 };
        peer.send(&mut world, claimed, &[update]);
        for round in 0..160 {
            // It has answered challenges by then, and been asked for nothing else.
            world.at_mut(other).asleep = asleep && round > 15;
            world.run_for(100 * MILLISECOND);
            for message in peer.hear(&mut world) {
                if let Message::PathChallenge { token } = message {
                    let observed = peer.peer;
                    peer.send(&mut world, claimed, &[Message::PathResponse { token, observed }]);
                }
            }
        }
        let at = world.peers(client)[0].remote;
        assert_eq!(at.ip(), claimed.ip(), "it has moved, as it seems");
        let ended = usize::from(asleep);
        assert_eq!(world.at(client).ended_unaccepted.len(), ended, "asleep: {asleep}");
        world.close(flow);
    }
}

#[test]
fn what_has_another_way_is_not_ended() {
    // P-203: the server is back where it was before anything is certain.
    let (mut two, _) = Two::flowing(41, 1);
    let flow = two.world.connect(two.client, SERVICE);
    two.world.close_end(flow, 1);
    two.world.move_to(two.server, two.further, FURTHER);
    two.world.run_for(SECOND);
    two.world.move_to(two.server, two.far, "10.9.0.1");
    two.world.run_for(12 * SECOND);
    assert_eq!(two.world.at(two.client).ended_unaccepted, []);
    two.world.close(flow);
    two.world.check();
}
