//! Both ends move at once, and meet through a third host.

use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Config, Event, RendezvousStanding};
use whimbrel_sim::{Access, Carried, Faults, FlowId, HostId, Kind, Link, Nat, NatPorts, NetworkId, Speaker, World};
use whimbrel_wire::Capabilities;
use whimbrel_wire::message::{Message, RegistrationChange, RegistrationStatus};

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, SERVICE, Two, address, introduced, settle_as, stride};

const MEETING: &str = "10.8.0.1";
const VICTIM: &str = "10.77.0.1";
/// Within this they find one another where nothing is lost.
const SOON: Duration = Duration::from_secs(2);

/// Where an end goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Public,
    /// Behind a NAT that keeps ports where it can.
    Preserving,
    /// Behind a NAT that draws a port for each socket.
    Drawing,
}

const ALL: [To; 3] = [To::Public, To::Preserving, To::Drawing];

/// A client and a server with flows, and a rendezvous that they know.
struct Three {
    world: World,
    client: HostId,
    server: HostId,
    meeting: HostId,
    flows: Vec<FlowId>,
    away: NetworkId,
    further: NetworkId,
}

fn user() -> Config {
    Config { rendezvous: vec![address(MEETING)], ..Config::default() }
}

fn keeper() -> Config {
    Config { serve_rendezvous: true, ..Config::default() }
}

impl Three {
    fn new(seed: u64) -> Self {
        let mut three = Self::with(seed, user(), user(), keeper());
        three.registered();
        three
    }

    fn with(seed: u64, client: Config, server: Config, meeting: Config) -> Self {
        let mut two = Two::nowhere(seed, client, server);
        let there = two.world.network(Access::Open);
        let meeting = two.world.host_with("meeting", meeting);
        two.world.attach(meeting, there, MEETING);
        two.world.attach(two.client, two.home, HOME);
        let flows = two.flow(3);
        let Two { world, client, server, away, further, .. } = two;
        Self { world, client, server, meeting, flows, away, further }
    }

    fn registered(&mut self) {
        let meeting = self.meeting;
        assert!(self.world.wait(20 * SECOND, |w| w.meetings(meeting) == (2, 1)), "they register");
        let ends = [self.client, self.server];
        let stands = [RendezvousStanding::Registered { peers: 1 }];
        assert!(self.world.wait(5 * SECOND, |w| ends.iter().all(|end| w.rendezvous(*end) == stands)));
    }

    /// A network to go to, and the address there.
    fn place(&mut self, to: To, number: u8) -> (NetworkId, String) {
        if to == To::Public {
            return (self.world.network(Access::Open), format!("10.50.{number}.2"));
        }
        let outside = address(&format!("10.60.{number}.1"));
        let ports = if to == To::Preserving { NatPorts::Preserving } else { NatPorts::Random };
        let mut nat = Nat::new(outside, ports);
        nat.same_for_all = true;
        let network = self.world.network(Access::Translated(nat));
        (network, format!("192.168.{number}.2"))
    }

    /// Both are elsewhere at the same instant.
    fn both_move(&mut self, client: To, server: To) {
        let (here, one) = self.place(client, 1);
        let (there, other) = self.place(server, 2);
        let (client, server) = (self.client, self.server);
        self.world.move_to(client, here, &one);
        self.world.move_to(server, there, &other);
    }

    fn found(&self) -> bool {
        self.world.events.iter().any(|(_, _, event)| matches!(event, Event::PeerFound { .. }))
    }

    fn stands_still(&mut self, for_: Duration) {
        self.world.run_for(SECOND);
        let before: Vec<_> = self.flows.iter().map(|flow| self.world.flow(*flow).received).collect();
        self.world.run_for(for_);
        let after: Vec<_> = self.flows.iter().map(|flow| self.world.flow(*flow).received).collect();
        assert_eq!(before, after);
    }
}

#[test]
fn both_move_at_the_same_instant() {
    // P-54 to P-58
    for client in ALL {
        for server in ALL {
            let mut three = Three::new(900);
            three.both_move(client, server);
            three.world.assert_delivering(SOON);
            assert!(three.found(), "{client:?} and {server:?}");
            let public = (client, server) == (To::Public, To::Public);
            let how = if public { Carried::Rewritten } else { Carried::Tunnelled };
            settle_as(&mut three.world, &three.flows, how);
            // The NATs' mappings are held, and all is well for long.
            three.world.set_beat(None);
            three.world.run_for(400 * SECOND);
            three.world.assert_delivering(SECOND);
            three.world.check();
        }
    }
}

#[test]
fn without_a_rendezvous_they_lose_one_another() {
    for (client, server, meeting) in [
        (Config::default(), Config::default(), keeper()),
        (user(), Config::default(), keeper()),
        (user(), user(), Config::default()),
    ] {
        let refuses = !meeting.serve_rendezvous;
        let mut three = Three::with(901, client, server, meeting);
        three.world.run_for(10 * SECOND);
        if refuses {
            assert_eq!(three.world.rendezvous(three.client), [RendezvousStanding::Refused]);
        }
        three.both_move(To::Public, To::Public);
        three.stands_still(120 * SECOND);
        assert!(!three.found());
        three.world.check_except(&[Kind::Storm]);
    }
}

#[test]
fn whatever_is_lost_they_find_one_another() {
    for (client, server) in [(To::Public, To::Public), (To::Drawing, To::Public), (To::Preserving, To::Drawing)] {
        let mut whole = Three::new(902);
        let first = whole.world.sent;
        whole.both_move(client, server);
        whole.world.assert_delivering(SOON);
        let steps = whole.world.sent - first;
        assert!(steps > 15, "{steps} datagrams");
        for lost in (0..steps).step_by(stride(3)) {
            for lose_also in [0, 3] {
                let mut three = Three::new(902);
                assert_eq!(three.world.sent, first);
                three.world.faults = Faults { lose: Some(first + lost), lose_also, ..Faults::default() };
                three.both_move(client, server);
                three.world.assert_delivering(5 * SECOND);
                three.world.check();
            }
        }
    }
}

#[test]
fn by_links_that_lose_much() {
    for seed in 0..24 {
        let mut three = Three::new(9030 + seed);
        three.world.set_links(Link { loss: 150, jitter: Duration::from_millis(20), ..Link::default() });
        three.both_move(ALL[seed as usize % 3], ALL[seed as usize / 3 % 3]);
        three.world.set_links(Link { loss: 150, jitter: Duration::from_millis(20), ..Link::default() });
        three.world.assert_delivering(30 * SECOND);
        three.world.check();
    }
}

#[test]
fn the_rendezvous_is_started_anew_in_the_middle() {
    for (client, server) in [(To::Public, To::Public), (To::Drawing, To::Preserving)] {
        let mut whole = Three::new(904);
        let before = whole.world.at(whole.meeting).effects;
        whole.both_move(client, server);
        whole.world.assert_delivering(SOON);
        let steps = whole.world.at(whole.meeting).effects - before;
        assert!(steps > 10, "{steps} effects");
        for step in (0..steps).step_by(stride(2)) {
            for forgets in [false, true] {
                let mut three = Three::new(904);
                three.world.faults = Faults { crash: Some((three.meeting, before + step)), ..Faults::default() };
                three.both_move(client, server);
                if forgets {
                    let meeting = three.meeting;
                    three.world.wait(SECOND, |w| w.at(meeting).node.is_none());
                    three.world.forget_saved(meeting);
                }
                three.world.assert_delivering(15 * SECOND);
                three.world.check();
            }
        }
        // And before they move: they notice when they need it.
        let mut three = Three::new(904);
        three.world.restart(three.meeting, SECOND);
        three.world.run_for(10 * SECOND);
        three.both_move(client, server);
        three.world.assert_delivering(10 * SECOND);
        three.world.check();
    }
}

#[test]
fn either_end_is_started_anew() {
    // While they are at home, after they have moved, and at any step in between.
    for who in 0..2 {
        let mut whole = Three::new(905);
        let host = [whole.client, whole.server][who];
        let before = whole.world.at(host).effects;
        whole.both_move(To::Public, To::Drawing);
        whole.world.assert_delivering(SOON);
        let steps = whole.world.at(host).effects - before;
        for step in 0..steps {
            let mut three = Three::new(905);
            three.world.faults = Faults { crash: Some((host, before + step)), ..Faults::default() };
            three.both_move(To::Public, To::Drawing);
            three.world.assert_delivering(30 * SECOND);
            three.world.check_except(&[Kind::Allowance]);
        }
        let mut three = Three::new(905);
        let host = [three.client, three.server][who];
        three.world.restart(host, SECOND);
        three.world.run_for(30 * SECOND);
        three.registered();
        three.both_move(To::Public, To::Drawing);
        three.world.assert_delivering(SOON);
        three.world.check();
        let mut three = Three::new(905);
        three.both_move(To::Public, To::Public);
        three.world.restart(host, SECOND);
        three.world.assert_delivering(30 * SECOND);
        three.world.check_except(&[Kind::Allowance]);
    }
}

#[test]
fn a_rendezvous_that_is_there_later() {
    let mut three = Three::with(906, user(), user(), keeper());
    three.registered();
    three.world.crash(three.meeting);
    three.world.run_for(1000 * SECOND);
    assert_eq!(three.world.rendezvous(three.client), [RendezvousStanding::Unanswered]);
    three.both_move(To::Public, To::Drawing);
    three.stands_still(100 * SECOND);
    three.world.boot(three.meeting);
    three.world.assert_delivering(200 * SECOND);
    three.world.check_except(&[Kind::Storm]);
}

#[test]
fn a_rendezvous_that_was_never_there_is_asked_at_once_when_that_is_demanded() {
    // P-57: SIGHUP, as against the pause after no answer.
    let mut two = Two::nowhere(911, user(), user());
    let there = two.world.network(Access::Open);
    let meeting = two.world.host_with("meeting", keeper());
    two.world.attach(meeting, there, MEETING);
    two.world.crash(meeting);
    two.world.attach(two.client, two.home, HOME);
    two.flow(3);
    let silent = |event: &Event| matches!(event, Event::NobodyThere { address: at, .. } if *at == address(MEETING));
    let server = two.server;
    assert!(two.world.wait(20 * SECOND, |w| w.events.iter().any(|(_, at, event)| *at == server && silent(event))));
    two.world.boot(meeting);
    two.world.ask_again(server);
    let stands = [RendezvousStanding::Registered { peers: 1 }];
    assert!(two.world.wait(SOON, |w| w.rendezvous(server) == stands), "it is asked at once");
    // One that is silent again is left alone no longer than at first.
    let client = two.client;
    assert!(two.world.wait(40 * SECOND, |w| w.rendezvous(client) == stands));
    two.world.check();
}

#[test]
fn they_meet_again_and_again() {
    let mut three = Three::new(907);
    for round in 0..20_u8 {
        three.both_move(ALL[usize::from(round % 3)], ALL[usize::from(round / 3 % 3)]);
        three.world.assert_delivering(SOON);
        three.world.run_for(Duration::from_millis(u64::from(round) * 150));
    }
    three.world.check();
}

#[test]
fn who_is_behind_a_nat_is_found_by_who_moves_alone() {
    // Nothing of what the server sends from elsewhere gets to the client before that has sent there itself.
    for (known, masked) in [(false, false), (true, false), (false, true)] {
        let config = || Config { masked_updates: masked, ..if known { user() } else { Config::default() } };
        let mut two = Two::nowhere(908, config(), config());
        let there = two.world.network(Access::Open);
        let meeting = two.world.host_with("meeting", keeper());
        two.world.attach(meeting, there, MEETING);
        two.world.attach(two.client, two.nat, INSIDE);
        if let Access::Translated(nat) = two.world.access(two.nat) {
            nat.same_for_all = true;
        }
        let flows = two.flow(2);
        two.world.run_for(5 * SECOND);
        two.world.set_beat(None);
        two.world.move_to(two.server, two.further, FURTHER);
        if known || masked {
            two.world.assert_delivering(SOON);
            settle_as(&mut two.world, &flows, Carried::Tunnelled);
            two.world.check();
        } else {
            assert!(!two.world.undelivered(20 * SECOND).is_empty());
        }
    }
}

#[test]
fn both_sleep_and_one_wakes_much_later() {
    for later in [20 * SECOND, 72 * 3600 * SECOND] {
        for announced in [true, false] {
            let mut three = Three::new(909);
            let Three { world, client, server, flows, away, further, .. } = &mut three;
            let (client, server, away, further) = (*client, *server, *away, *further);
            for host in [client, server] {
                if announced {
                    world.part(host);
                    world.run_for(SECOND);
                }
            }
            for host in [client, server] {
                world.detach_all(host);
                world.suspend(host);
            }
            world.set_beat(Some(10 * SECOND));
            world.run_for(later);
            world.wake(client);
            world.attach(client, away, AWAY);
            if announced {
                world.resume(client);
            }
            world.run_for(later);
            let sent = world.sent;
            world.run_for(3600 * SECOND);
            let sent = world.sent - sent;
            assert!(sent < 1000, "{sent} datagrams within an hour");
            world.set_beat(Some(Duration::from_millis(7)));
            world.wake(server);
            world.attach(server, further, FURTHER);
            if announced {
                world.resume(server);
            }
            world.assert_delivering(10 * SECOND);
            settle_as(world, flows, Carried::Rewritten);
            world.check_except(&[Kind::Storm]);
        }
    }
}

#[test]
fn who_was_out_of_reach_where_it_was_said_to_be_is_tried_there_again() {
    // The client is behind a NAT: nothing gets to it from where it has not sent to. It has given up when the server
    // wakes.
    let mut three = Three::new(915);
    let (here, one) = three.place(To::Drawing, 1);
    let (there, other) = three.place(To::Public, 2);
    let Three { world, client, server, meeting, .. } = &mut three;
    world.set_beat(Some(20 * SECOND));
    world.move_to(*server, there, &other);
    let registered = world.now();
    assert!(world.wait(SECOND, |w| remote_of(w, *meeting, *server) == address(&other)));
    world.suspend(*server);
    world.move_to(*client, here, &one);
    world.run_for(3000 * SECOND);
    assert!(world.flow(FlowId(0)).arrived[0].is_none_or(|at| at < registered + SECOND));
    world.wake(*server);
    world.set_beat(Some(Duration::from_millis(7)));
    world.assert_delivering(10 * SECOND);
    world.check();
}

#[test]
fn a_peer_of_whom_nothing_is_needed_is_forgotten() {
    let mut three = Three::new(910);
    for flow in three.flows.clone() {
        three.world.close(flow);
    }
    three.world.run_for(3000 * SECOND);
    assert_eq!(three.world.meetings(three.meeting), (0, 0));
    assert_eq!(three.world.rendezvous(three.client), [RendezvousStanding::Unneeded]);
    for host in [three.client, three.server, three.meeting] {
        let entries = three.world.at(host).node.as_ref().expect("a node").entries();
        assert!(entries <= 3, "{} has {entries} entries", three.world.at(host).name);
        assert_eq!(three.world.at(host).plane.entries(), 0);
    }
    // And wanted again.
    let flow = three.world.connect(three.client, SERVICE);
    introduced(&mut three.world, &[flow]);
    three.registered();
    // It outlives the idle rule of peers.
    three.world.run_for(3000 * SECOND);
    three.registered();
    three.both_move(To::Public, To::Public);
    three.world.assert_delivering(SOON);
    three.world.check();
}

/// A client whose rendezvous lies: one that it was told to use, or that it has named and that offers itself (P-216).
fn lied_to(seed: u64, offers: bool) -> (World, HostId, HostId, Speaker, Vec<[u8; 16]>) {
    let config = if offers { Config { named: vec![address(MEETING)], ..Config::default() } } else { user() };
    let mut two = Two::nowhere(seed, config, Config::default());
    let [den, crowd] = std::array::from_fn(|_| two.world.network(Access::Open));
    let host = two.world.bare_host("liar");
    let victim = two.world.bare_host("victim");
    two.world.at_mut(victim).answers_icmp = false;
    two.world.at_mut(host).collects = true;
    two.world.attach(host, den, MEETING);
    two.world.attach(victim, crowd, VICTIM);
    two.world.attach(two.client, two.home, HOME);
    let mut liar = Speaker::new(host, den, address(MEETING), address(HOME));
    if offers {
        liar.capabilities = liar.capabilities | Capabilities::RENDEZVOUS;
    }
    two.flow(2);
    let mut met = false;
    for _ in 0..100 {
        two.world.run_for(Duration::from_millis(20));
        met = met || liar.answer(&mut two.world);
    }
    assert!(met, "the client asks the liar");
    two.world.run_for(SECOND);
    let heard = liar.hear(&mut two.world);
    let registered = heard.iter().find_map(|message| match message {
        Message::Register { number, tags, .. } => Some((*number, tags.clone())),
        _ => None,
    });
    let (number, tags) = registered.expect("a registration");
    let answer = Message::Registered { number, status: RegistrationStatus::Accepted, newest: number };
    let endpoint = liar.endpoint();
    liar.send(&mut two.world, endpoint, &[answer]);
    two.world.run_for(SECOND);
    assert_eq!(two.world.rendezvous(two.client), [RendezvousStanding::Registered { peers: 1 }]);
    (two.world, two.client, two.server, liar, tags)
}

#[test]
fn a_rendezvous_that_lies_harms_nobody_much() {
    // P-58
    for (seed, offers) in [(911, false), (9110, true)] {
        let (mut world, client, server, mut liar, tags) = lied_to(seed, offers);
        let endpoint = liar.endpoint();
        let victim: std::net::SocketAddr = format!("{VICTIM}:2031").parse().expect("an endpoint");
        let lie = |number| Message::Whereabouts { number, found: vec![(tags[0], victim)] };
        liar.send(&mut world, endpoint, &[lie(1)]);
        world.run_for(100 * SECOND);
        let (sent, _) = world.exchanged(client, address(VICTIM));
        assert!(sent > 0 && sent < 600, "{sent} bytes");
        // All goes on meanwhile.
        world.assert_delivering(SECOND);
        assert_eq!(remote_of(&world, client, server), address("10.9.0.1"));
        // Over and over, of several ports, while the client has something to tell.
        let far = world.network(Access::Open);
        world.detach_all(server);
        world.move_to(client, far, AWAY);
        liar.peer.set_ip(address(AWAY));
        for round in 2..300_u32 {
            let port = 2031 + (round % 7) as u16;
            let found = vec![(tags[0], std::net::SocketAddr::new(victim.ip(), port)); 20];
            liar.send(&mut world, endpoint, &[Message::Whereabouts { number: round, found }]);
            world.run_for(SECOND);
        }
        let (sent, _) = world.exchanged(client, address(VICTIM));
        assert!(sent < 20_000, "{sent} bytes in five minutes");
        world.check();
    }
}

#[test]
fn a_liar_leads_nothing_astray() {
    // It names its own address, and takes what comes.
    for (seed, offers) in [(912, false), (9120, true)] {
        let (mut world, client, server, mut liar, tags) = lied_to(seed, offers);
        let endpoint = liar.endpoint();
        for number in 1..20 {
            let found = vec![(tags[0], endpoint)];
            liar.send(&mut world, endpoint, &[Message::Whereabouts { number, found }]);
            world.run_for(SECOND);
            let heard = liar.hear(&mut world);
            assert!(heard.contains(&Message::WhereaboutsSeen { number }), "{heard:?}");
        }
        assert_eq!(remote_of(&world, client, server), address("10.9.0.1"));
        world.assert_delivering(SECOND);
        // What it says of others means nothing.
        let found = vec![([7; 16], endpoint), ([0; 16], endpoint)];
        liar.send(&mut world, endpoint, &[Message::Whereabouts { number: 50, found }]);
        world.run_for(SECOND);
        world.assert_delivering(SECOND);
        world.check();
    }
}

#[test]
fn a_stranger_who_registers_learns_nothing_and_fills_nothing() {
    let mut three = Three::new(913);
    let den = three.world.network(Access::Open);
    let host = three.world.bare_host("stranger");
    three.world.at_mut(host).collects = true;
    three.world.attach(host, den, "10.66.0.1");
    let mut stranger = Speaker::new(host, den, address("10.66.0.1"), address(MEETING));
    stranger.meet(&mut three.world);
    let endpoint = stranger.endpoint();
    let before = three.world.at(three.meeting).node.as_ref().expect("a node").entries();
    // The tag of the two, as if it had leaked: a third host has no part in a meeting.
    let client = three.world.at(three.client).static_key();
    let secret = client.meeting_tag(&three.world.at(three.server).public_key()).expect("a tag");
    let mut full = false;
    for round in 0..600_u32 {
        let tags = (0..64_u32).map(|tag| {
            let mut guess = [0x5a; 16];
            guess[..4].copy_from_slice(&(round * 64 + tag).to_be_bytes());
            if round == 0 && tag == 0 { secret } else { guess }
        });
        let message = Message::Register { number: round + 1, change: RegistrationChange::Add, tags: tags.collect() };
        stranger.send(&mut three.world, endpoint, &[message]);
        three.world.run_for(Duration::from_millis(30));
        for message in stranger.hear(&mut three.world) {
            match message {
                Message::Registered { status, .. } => full |= status == RegistrationStatus::Full,
                Message::Whereabouts { .. } => panic!("the stranger is told {message:?}"),
                _ => {}
            }
        }
    }
    assert!(full, "there is no end of it");
    let entries = three.world.at(three.meeting).node.as_ref().expect("a node").entries();
    assert!(entries - before < 20_000, "{entries} entries");
    // The others are served as before.
    three.both_move(To::Public, To::Public);
    three.world.assert_delivering(SOON);
    // All that is forgotten with the stranger.
    three.world.run_for(700 * SECOND);
    assert_eq!(three.world.meetings(three.meeting), (2, 1));
    let entries = three.world.at(three.meeting).node.as_ref().expect("a node").entries();
    assert!(entries < before + 10, "{entries} entries, {before} before");
    three.world.check();
}

#[test]
fn numbers_of_registrations_rise() {
    // P-55: what is old changes nothing, what is repeated is answered again, two at once are none.
    let mut three = Three::new(914);
    let den = three.world.network(Access::Open);
    let host = three.world.bare_host("stranger");
    three.world.at_mut(host).collects = true;
    three.world.attach(host, den, "10.66.0.1");
    let mut stranger = Speaker::new(host, den, address("10.66.0.1"), address(MEETING));
    stranger.meet(&mut three.world);
    let endpoint = stranger.endpoint();
    let mut ask = |world: &mut World, messages: &[Message]| {
        stranger.send(world, endpoint, messages);
        world.run_for(Duration::from_millis(50));
        let heard = stranger.hear(world).into_iter();
        let answers = heard.filter_map(|message| match message {
            Message::Registered { number, status, newest } => Some((number, status, newest)),
            _ => None,
        });
        answers.collect::<Vec<_>>()
    };
    let of = |number, change| Message::Register { number, change, tags: vec![[1; 16], [2; 16]] };
    use RegistrationChange::{Add, Other, Replace, Withdraw};
    use RegistrationStatus::{Accepted, NotNewer, Refused};
    let world = &mut three.world;
    assert_eq!(ask(world, &[of(5, Add)]), [(5, Accepted, 5)]);
    assert_eq!(world.meetings(three.meeting).0, 3);
    assert_eq!(ask(world, &[of(5, Add)]), [(5, Accepted, 5)]);
    assert_eq!(ask(world, &[of(4, Withdraw)]), [(4, NotNewer, 5)]);
    assert_eq!(ask(world, &[of(6, Other(9))]), [(6, Refused, 0)]);
    assert_eq!(ask(world, &[of(1 << 31, Add)]), [(1 << 31, Refused, 0)]);
    assert_eq!(ask(world, &[of(7, Replace), of(8, Withdraw)]), [], "P-37");
    assert_eq!(ask(world, &[of(8, Withdraw)]), [(8, Accepted, 8)]);
    world.check();
}

/// Hosts of one community, each with a place of its own: a client and a server with flows, and further ones.
fn of_one_community(seed: u64, members: &[Config], strangers: &[Config]) -> (World, Vec<HostId>, Vec<FlowId>) {
    let mut world = World::new(seed);
    let mut hosts = Vec::new();
    for (number, config) in members.iter().chain(strangers).enumerate() {
        let network = world.network(Access::Open);
        let name = *["client", "server", "third", "fourth", "fifth"].get(number).unwrap_or(&"further");
        let host = world.host_with(name, config.clone());
        world.attach(host, network, &format!("10.8.{number}.2"));
        hosts.push(host);
    }
    let last = hosts[members.len() - 1];
    let now = world.now();
    world.with_node(last, |node| node.found_community(now, "last").expect("a community"));
    for host in &hosts[..members.len() - 1] {
        let (mut code, now) = (None, world.now());
        world.with_node(last, |node| code = Some(node.invite(now, false).expect("a code")));
        let at = format!("10.8.{}.2:2031", members.len() - 1).parse().expect("an endpoint");
        let name = format!("host{}", host.0);
        world.with_node(*host, |node| {
            node.join_community(now, code.expect("a code"), vec![at], &name).expect("it joins");
        });
        world.run_for(2 * SECOND);
    }
    // All have heard of all.
    world.run_for(30 * SECOND);
    let flows: Vec<FlowId> = (0..2).map(|_| world.connect(hosts[0], "10.8.1.2:80")).collect();
    world.set_beat(Some(Duration::from_millis(7)));
    introduced(&mut world, &flows);
    world.run_for(5 * SECOND);
    (world, hosts, flows)
}

/// Client and server are elsewhere at the same instant. Gives the time until all flows go on.
fn both_leave(world: &mut World, hosts: &[HostId], round: u8) -> Duration {
    for (host, number) in hosts[..2].iter().zip([1, 2]) {
        let network = world.network(Access::Open);
        world.move_to(*host, network, &format!("10.5{round}.{number}.2"));
    }
    let before = world.now();
    world.assert_delivering(SOON);
    world.now().since(before)
}

#[test]
fn hosts_of_a_community_meet_at_one_another() {
    // P-216
    for further in 1..=3 {
        let configs = vec![Config::default(); 2 + further];
        let (mut world, hosts, _) = of_one_community(920 + further as u64, &configs, &[]);
        // The other end, which is one of them as well, is asked for nobody.
        let stands = world.rendezvous(hosts[0]);
        let unneeded = stands.iter().filter(|stands| **stands == RendezvousStanding::Unneeded).count();
        assert!(unneeded == 1 && !stands.contains(&RendezvousStanding::Unanswered), "{stands:?}");
        for round in 0..3 {
            let took = both_leave(&mut world, &hosts, round);
            // All links have a round trip of 20 ms; the last of it is what the test itself waits for.
            assert!(took < Duration::from_millis(4 * 20 + 100), "{took:?} with {further} further hosts");
            world.run_for(5 * SECOND);
        }
        assert!(world.meetings(hosts[2]) == (2, 1), "{:?}", world.meetings(hosts[2]));
        world.check();
    }
}

#[test]
fn nobody_else_hears_of_moves_and_policy_can_keep_the_community_from_it() {
    // P-216: neither a host that is of no community, nor one of the community whose owner wants none of it.
    let refuses = Config { community_rendezvous: false, ..Config::default() };
    let two = [Config::default(), Config::default()];
    for (third, members) in [(Config::default(), 2), (refuses.clone(), 3)] {
        let all = [two[0].clone(), two[1].clone(), third];
        let (mut world, hosts, flows) = of_one_community(930 + members as u64, &all[..members], &all[members..]);
        // The client knows it, by a connection.
        let other = world.connect(hosts[0], "10.8.2.2:80");
        introduced(&mut world, &[other]);
        world.close(other);
        world.run_for(SECOND);
        assert_eq!(world.meetings(hosts[2]), (0, 0));
        world.set_beat(None);
        for (host, number) in hosts[..2].iter().zip([1, 2]) {
            let network = world.network(Access::Open);
            world.move_to(*host, network, &format!("10.50.{number}.2"));
        }
        world.run_for(20 * SECOND);
        world.set_beat(Some(Duration::from_millis(7)));
        assert!(!world.undelivered(SECOND).is_empty(), "they meet, and nobody has told");
        assert_eq!(flows.len(), 2);
    }
}

#[test]
fn a_named_host_serves_where_it_offers_itself() {
    // P-216
    for offers in [true, false] {
        let named = || Config { named: vec![address(MEETING)], ..Config::default() };
        let mut two = Two::nowhere(940, named(), named());
        let there = two.world.network(Access::Open);
        let third = Config { serve_rendezvous: offers, ..Config::default() };
        let meeting = two.world.host_with("meeting", third);
        two.world.attach(meeting, there, MEETING);
        two.world.attach(two.client, two.home, HOME);
        two.flow(2);
        two.world.run_for(10 * SECOND);
        assert_eq!(two.world.meetings(meeting), if offers { (2, 1) } else { (0, 0) });
        let (client, server, away, further) = (two.client, two.server, two.away, two.further);
        two.world.move_to(client, away, AWAY);
        two.world.move_to(server, further, FURTHER);
        if offers {
            two.world.assert_delivering(SOON);
        } else {
            assert!(!two.world.undelivered(10 * SECOND).is_empty());
            // It is not asked again and again, so that it forgets them.
            two.world.run_for(3000 * SECOND);
            assert!(two.world.peers(meeting).is_empty(), "{:?}", two.world.peers(meeting));
        }
        two.world.check_except(&[Kind::Storm]);
    }
}

#[test]
fn of_a_large_community_the_first_eight_serve_that_do_not_refuse() {
    // P-216: eight of ten third hosts refuse at first, the others have the highest keys.
    let mut keys = World::new(970);
    let mut thirds: Vec<HostId> = (0..12).map(|_| keys.bare_host("any")).collect();
    thirds.sort_by_key(|host| keys.at(*host).public_key());
    let of_all = thirds.clone();
    thirds.retain(|host| host.0 >= 2);
    let (refuse, serve) = thirds.split_at(8);
    let mut configs = vec![Config::default(); 12];
    refuse.iter().for_each(|host| configs[host.0].community_rendezvous = false);
    let (mut world, hosts, _) = of_one_community(970, &configs, &[]);
    assert_eq!(serve.iter().map(|host| world.meetings(*host)).collect::<Vec<_>>(), [(2, 1); 2]);
    assert_eq!(refuse.iter().map(|host| world.meetings(*host)).collect::<Vec<_>>(), [(0, 0); 8]);
    both_leave(&mut world, &hosts, 0);
    // They refuse no more, and come before the others.
    world.set_beat(None);
    for host in refuse {
        world.at_mut(*host).config.community_rendezvous = true;
        world.restart(*host, SECOND);
    }
    world.run_for(3000 * SECOND);
    let first_of = |host: HostId| of_all.iter().filter(move |other| **other != host).take(8);
    for host in &thirds {
        let of_both = hosts[..2].iter().all(|end| first_of(*end).any(|first| first == host));
        assert_eq!(world.meetings(*host).1, usize::from(of_both), "{host:?}");
    }
    assert!(serve.iter().all(|host| world.meetings(*host).1 == 0), "what the last ones knew is withdrawn");
    for end in &hosts[..2] {
        assert_eq!(world.rendezvous(*end).len(), 8);
    }
    world.set_beat(Some(Duration::from_millis(7)));
    both_leave(&mut world, &hosts, 1);
    world.check();
}

#[test]
fn a_named_host_that_declined_serves_once_it_offers_itself() {
    // P-216
    let named = || Config { named: vec![address(MEETING)], ..Config::default() };
    let mut two = Two::nowhere(941, named(), named());
    let there = two.world.network(Access::Open);
    let meeting = two.world.host_with("meeting", Config::default());
    two.world.attach(meeting, there, MEETING);
    two.world.attach(two.client, two.home, HOME);
    two.flow(2);
    two.world.set_beat(None);
    two.world.run_for(3000 * SECOND);
    assert_eq!(two.world.meetings(meeting), (0, 0));
    assert!(two.world.peers(meeting).is_empty(), "it has declined, and is left alone");
    two.world.at_mut(meeting).config.serve_rendezvous = true;
    two.world.reboot(meeting, false);
    two.world.boot(meeting);
    two.world.set_beat(Some(Duration::from_millis(7)));
    let Two { client, server, away, further, .. } = two;
    let others = [client, server].map(|end| two.world.connect(end, &format!("{MEETING}:80")));
    introduced(&mut two.world, &others);
    assert!(two.world.wait(20 * SECOND, |w| w.meetings(meeting) == (2, 1)), "{:?}", two.world.meetings(meeting));
    two.world.move_to(client, away, AWAY);
    two.world.move_to(server, further, FURTHER);
    two.world.assert_delivering(SOON);
    two.world.check();
}

#[test]
fn a_named_host_that_does_not_answer_is_asked_seldom() {
    // P-216
    let named = || Config { named: vec![address(MEETING)], ..Config::default() };
    let mut two = Two::nowhere(942, named(), named());
    let there = two.world.network(Access::Open);
    let meeting = two.world.host_with("meeting", keeper());
    two.world.attach(meeting, there, MEETING);
    two.world.crash(meeting);
    two.world.attach(two.client, two.home, HOME);
    two.flow(2);
    two.world.set_beat(None);
    two.world.run_for(3600 * SECOND);
    let silent = |event: &Event| matches!(event, Event::NobodyThere { address: at, .. } if *at == address(MEETING));
    for end in [two.client, two.server] {
        let asked = two.world.events.iter().filter(|(_, at, event)| *at == end && silent(event)).count();
        assert!((1..=3).contains(&asked), "{asked} times in an hour");
    }
    two.world.boot(meeting);
    assert!(two.world.wait(1800 * SECOND, |w| w.meetings(meeting) == (2, 1)), "and is found when it is there");
    two.world.check();
}

#[test]
fn a_host_of_the_community_that_lies_keeps_nobody_from_meeting() {
    // P-216, P-58: what it says does not displace what another says.
    let (mut world, hosts, _) = of_one_community(950, &vec![Config::default(); 4], &[]);
    let [client, server, liar] = [hosts[0], hosts[1], hosts[2]];
    let victim = world.bare_host("victim");
    let crowd = world.network(Access::Open);
    world.attach(victim, crowd, VICTIM);
    world.at_mut(victim).answers_icmp = false;
    // Somebody has its key and its place, and says that either is at the victim's.
    world.crash(liar);
    world.at_mut(liar).collects = true;
    let (at, key) = (address("10.8.2.2"), world.at(liar).static_key());
    let mut liars = [("10.8.0.2", 7000), ("10.8.1.2", 17_000)]
        .map(|(to, first)| Speaker::with_key(liar, NetworkId(2), at, address(to), key.clone(), first));
    let mut tags = Vec::new();
    for speaker in &mut liars {
        speaker.meet(&mut world);
        world.run_for(SECOND);
        for message in speaker.hear(&mut world) {
            let Message::Register { number, tags: all, .. } = message else { continue };
            let answer = Message::Registered { number, status: RegistrationStatus::Accepted, newest: number };
            let endpoint = speaker.endpoint();
            speaker.send(&mut world, endpoint, &[answer]);
            tags = all;
        }
    }
    assert!(!tags.is_empty(), "they register with it");
    let mut number = 0;
    for round in 0..5 {
        for host in 0..2 {
            liars[host].peer.set_ip(world.at(hosts[host]).addresses()[0]);
        }
        for _ in 0..20 {
            number += 1;
            for speaker in &mut liars {
                let lie = format!("{VICTIM}:{}", 2031 + number % 3).parse().expect("an endpoint");
                let endpoint = speaker.endpoint();
                let found = vec![(tags[0], lie)];
                speaker.send(&mut world, endpoint, &[Message::Whereabouts { number, found }]);
            }
            world.run_for(SECOND);
        }
        let took = both_leave(&mut world, &hosts, round);
        assert!(took < Duration::from_millis(4 * 20 + 100), "{took:?}");
    }
    for host in [client, server] {
        let (sent, _) = world.exchanged(host, address(VICTIM));
        assert!(sent > 0 && sent < 20_000, "{sent} bytes in two minutes");
    }
    world.check();
}

#[test]
fn who_has_a_name_is_found_by_it() {
    // P-217: the name also has an address that is another's, or of the time before.
    for also in [None, Some(VICTIM)] {
        let (mut two, key) = with_a_name(960);
        let victim = two.world.bare_host("victim");
        let crowd = two.world.network(Access::Open);
        two.world.attach(victim, crowd, VICTIM);
        let (client, server, away, further) = (two.client, two.server, two.away, two.further);
        two.world.move_to(client, away, AWAY);
        two.world.move_to(server, further, FURTHER);
        two.world.run_for(3 * SECOND);
        assert!(!two.world.undelivered(SECOND).is_empty(), "the name still has the old address");
        // The client has told its name server.
        let all = also.map(address).into_iter().chain([address(AWAY)]);
        two.world.names.insert(key, all.collect());
        two.world.assert_delivering(10 * SECOND);
        let by_name = |event: &Event| matches!(event, Event::PeerFound { rendezvous: None, .. });
        assert!(two.world.events.iter().any(|(_, at, event)| *at == server && by_name(event)));
        let (sent, _) = two.world.exchanged(server, address(VICTIM));
        assert!(sent < 3000, "{sent} bytes");
        two.world.check();
    }
}

/// A client that has a name, and a server that knows it, with flows.
fn with_a_name(seed: u64) -> (Two, PublicKey) {
    let mut two = Two::nowhere(seed, Config::default(), Config::default());
    let key = two.world.at(two.client).public_key();
    two.world.at_mut(two.server).config.with_names = vec![key];
    two.world.reboot(two.server, false);
    two.world.boot(two.server);
    two.world.attach(two.client, two.home, HOME);
    two.world.names.insert(key, vec![address(HOME)]);
    two.flow(2);
    (two, key)
}

#[test]
fn a_name_that_has_one_address_several_times_has_no_more_sent_there() {
    // P-217, P-58: one address has one account.
    let sent = [1, 4].map(|times| {
        let (mut two, key) = with_a_name(961);
        let victim = two.world.bare_host("victim");
        let crowd = two.world.network(Access::Open);
        two.world.attach(victim, crowd, VICTIM);
        two.world.at_mut(victim).answers_icmp = false;
        two.world.names.insert(key, vec![address(VICTIM); times]);
        let Two { client, server, away, further, .. } = two;
        two.world.move_to(client, away, AWAY);
        two.world.move_to(server, further, FURTHER);
        two.world.run_for(100 * SECOND);
        two.world.exchanged(server, address(VICTIM)).0
    });
    assert!(sent[0] > 0 && sent[1] == sent[0], "{sent:?} bytes");
}

#[test]
fn a_name_is_asked_for_at_once_when_this_host_moves_again() {
    // P-217
    let (mut two, key) = with_a_name(962);
    let Two { client, server, away, further, .. } = two;
    two.world.move_to(client, away, AWAY);
    two.world.move_to(server, further, FURTHER);
    two.world.run_for(200 * SECOND);
    two.world.names.insert(key, vec![address(AWAY)]);
    two.world.run_for(SECOND);
    assert!(!two.world.undelivered(SECOND).is_empty(), "it is a while until the name is asked for again");
    let network = two.world.network(Access::Open);
    two.world.move_to(server, network, "10.50.1.2");
    two.world.assert_delivering(SOON);
    two.world.check_except(&[Kind::Storm]);
}

/// Where a host takes a peer to be.
fn remote_of(world: &World, host: HostId, peer: HostId) -> std::net::IpAddr {
    let key = world.at(peer).public_key();
    let peers = world.peers(host);
    peers.iter().find(|view| view.key == key).expect("the peer").remote.ip()
}
