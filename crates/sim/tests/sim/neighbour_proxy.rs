//! Both ends move at once, and somebody at the place that one of them has left passes on what comes for it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_protocol::{Config, Event, NeighbourProxyStatus};
use whimbrel_sim::{Access, Carried, Faults, FlowId, HostId, Kind, Link, Speaker, World};
use whimbrel_wire::BindingNumber;
use whimbrel_wire::message::{MAX_PASSED_ON, Message, RegistrationChange, UpdateFlags};

use crate::common::{AWAY, FURTHER, HOME, SECOND, Two, address, settle_as, stride};

/// The router of the network that the client leaves.
const ROUTER: &str = "10.1.0.1";
/// They find one another within this where nothing is lost.
const SOON: Duration = Duration::from_secs(4);

fn user() -> Config {
    Config { rendezvous: vec![address(ROUTER)], ..Config::default() }
}

fn keeper() -> Config {
    Config { serve_rendezvous: true, neighbour_proxy: true, ..Config::default() }
}

/// A client that knows the router of its network, and a server that does not.
struct Left {
    two: Two,
    router: HostId,
    flows: Vec<FlowId>,
}

impl Left {
    fn new(seed: u64) -> Self {
        Self::with(seed, keeper())
    }

    fn with(seed: u64, router: Config) -> Self {
        let mut two = Two::nowhere(seed, user(), Config::default());
        let router = two.world.host_with("router", router);
        two.world.attach(router, two.home, ROUTER);
        two.world.attach(two.client, two.home, HOME);
        let flows = two.flow(3);
        assert!(two.world.wait(20 * SECOND, |w| w.meetings(router).0 == 1), "the client registers");
        Self { two, router, flows }
    }

    fn both_move(&mut self) {
        let Two { world, client, server, away, further, .. } = &mut self.two;
        world.move_to(*client, *away, AWAY);
        world.move_to(*server, *further, FURTHER);
    }

    fn stands_in(&self) -> Vec<IpAddr> {
        let node = self.two.world.at(self.router).node.as_ref();
        node.map(|node| node.stands_in_for().collect()).unwrap_or_default()
    }

    fn told(&self, status: NeighbourProxyStatus) -> bool {
        let of_it = |event: &Event| matches!(event, Event::StoodInFor { status: told, .. } if *told == status);
        self.two.world.events.iter().any(|(_, host, event)| *host == self.two.client && of_it(event))
    }
}

#[test]
fn one_of_both_is_found_by_way_of_where_it_was() {
    // P-60, P-61
    let mut left = Left::new(1200);
    left.both_move();
    left.two.world.assert_delivering(SOON);
    settle_as(&mut left.two.world, &left.flows, Carried::Rewritten);
    assert!(left.told(NeighbourProxyStatus::Accepted));
    // Nobody stands in any longer than it takes.
    left.two.world.run_for(5 * SECOND);
    assert_eq!(left.stands_in(), [] as [IpAddr; 0]);
    left.two.world.check();
}

#[test]
fn however_their_words_cross_they_come_to_rewrite() {
    for delay in [5, 10, 20, 40] {
        for apart in (0..600).step_by(stride(40)) {
            let mut left = Left::new(1212);
            left.two.world.set_links(Link { delay: Duration::from_millis(delay), ..Link::default() });
            let Two { world, client, server, away, further, far, .. } = &mut left.two;
            world.set_cut(*far, true);
            world.move_to(*client, *away, AWAY);
            world.run_for(Duration::from_millis(apart));
            world.move_to(*server, *further, FURTHER);
            world.assert_delivering(10 * SECOND);
            settle_as(world, &left.flows, Carried::Rewritten);
            world.check();
        }
    }
}

#[test]
fn nobody_stands_in_who_was_not_told_to() {
    let mut left = Left::with(1201, Config { serve_rendezvous: true, ..Config::default() });
    left.both_move();
    assert!(!left.two.world.undelivered(60 * SECOND).is_empty());
    assert!(left.told(NeighbourProxyStatus::Refused));
    left.two.world.check_except(&[Kind::Storm]);
}

#[test]
fn a_move_of_one_end_asks_for_nobody() {
    let mut left = Left::new(1202);
    let Two { world, client, away, .. } = &mut left.two;
    world.move_to(*client, *away, AWAY);
    world.assert_delivering(SECOND);
    world.run_for(20 * SECOND);
    assert!(!world.events.iter().any(|(_, _, event)| matches!(event, Event::StandsIn { .. })));
    world.check();
}

#[test]
fn whatever_is_lost_they_find_one_another() {
    let mut whole = Left::new(1203);
    let first = whole.two.world.sent;
    whole.both_move();
    whole.two.world.assert_delivering(SOON);
    let steps = whole.two.world.sent - first;
    for lost in (0..steps).step_by(stride(2)) {
        for lose_also in [0, 3] {
            let mut left = Left::new(1203);
            left.two.world.faults = Faults { lose: Some(first + lost), lose_also, ..Faults::default() };
            left.both_move();
            left.two.world.assert_delivering(10 * SECOND);
            left.two.world.check();
        }
    }
}

#[test]
fn whatever_fails_nothing_worse_comes_of_it() {
    let mut whole = Left::new(1204);
    let first = whole.two.world.ops;
    whole.both_move();
    whole.two.world.assert_delivering(SOON);
    let steps = whole.two.world.ops - first;
    for failing in (0..steps).step_by(stride(2)) {
        let mut left = Left::new(1204);
        left.two.world.faults = Faults { fail: Some(first + failing), ..Faults::default() };
        left.both_move();
        left.two.world.run_for(60 * SECOND);
        left.two.world.check_except(&[Kind::Storm]);
    }
}

#[test]
fn by_links_that_lose_much() {
    for seed in 0..12 {
        let mut left = Left::new(12_050 + seed);
        left.two.world.set_links(Link { loss: 150, jitter: Duration::from_millis(20), ..Link::default() });
        left.both_move();
        left.two.world.assert_delivering(60 * SECOND);
        left.two.world.check();
    }
}

#[test]
fn either_end_is_started_anew() {
    for who in 0..2 {
        let mut whole = Left::new(1206);
        let host = [whole.two.client, whole.two.server][who];
        let before = whole.two.world.at(host).effects;
        whole.both_move();
        whole.two.world.assert_delivering(SOON);
        let steps = whole.two.world.at(host).effects - before;
        for step in (0..steps).step_by(stride(5)) {
            let mut left = Left::new(1206);
            left.two.world.faults = Faults { crash: Some((host, before + step)), ..Faults::default() };
            left.both_move();
            // A client that has forgotten where it was asks nobody; what its peer has sent there is then lost.
            left.two.world.run_for(60 * SECOND);
            left.two.world.check_except(&[Kind::Allowance, Kind::Storm]);
        }
    }
}

#[test]
fn an_address_that_somebody_else_gets_is_given_up() {
    // P-62
    let mut left = Left::new(1207);
    let Two { world, client, away, far, home, .. } = &mut left.two;
    let (client, away, home, far) = (*client, *away, *home, *far);
    world.set_cut(far, true);
    world.move_to(client, away, AWAY);
    let router = left.router;
    let stands = |w: &World| w.at(router).node.as_ref().is_some_and(|node| node.stands_in_for().count() == 1);
    assert!(left.two.world.wait(10 * SECOND, stands), "the router stands in");
    let newcomer = left.two.world.host("newcomer");
    left.two.world.attach(newcomer, home, HOME);
    left.two.world.run_for(SECOND);
    assert_eq!(left.stands_in(), [] as [IpAddr; 0]);
    assert!(left.told(NeighbourProxyStatus::Taken));
    // It is not asked for again all the time, and the newcomer is left alone.
    left.two.world.run_for(100 * SECOND);
    let stands = left.two.world.events.iter().filter(|(_, _, event)| matches!(event, Event::StandsIn { .. })).count();
    assert_eq!(stands, 1);
    left.two.world.check_except(&[Kind::Storm]);
}

#[test]
fn who_comes_back_is_not_stood_in_for() {
    let mut left = Left::new(1208);
    let Two { world, client, away, far, home, .. } = &mut left.two;
    let (client, away, far, home) = (*client, *away, *far, *home);
    world.set_cut(far, true);
    world.move_to(client, away, AWAY);
    world.run_for(5 * SECOND);
    assert_eq!(left.stands_in(), [address(HOME)]);
    left.two.world.move_to(client, home, HOME);
    left.two.world.run_for(5 * SECOND);
    assert_eq!(left.stands_in(), [] as [IpAddr; 0]);
    left.two.world.set_cut(far, false);
    left.two.world.assert_delivering(90 * SECOND);
    left.two.world.check();
}

/// A host at `at` that speaks with the router.
fn stranger(left: &mut Left, at: &str) -> Speaker {
    let den = left.two.world.network(Access::Open);
    let host = left.two.world.bare_host("stranger");
    left.two.world.at_mut(host).collects = true;
    left.two.world.attach(host, den, at);
    let mut stranger = Speaker::new(host, den, address(at), address(ROUTER));
    stranger.meet(&mut left.two.world);
    stranger
}

#[test]
fn nobody_asks_for_the_address_of_another() {
    // P-60
    let mut left = Left::new(1209);
    let mut stranger = stranger(&mut left, "10.66.0.1");
    let endpoint = stranger.endpoint();
    let mut ask = |left: &mut Left, messages: &[Message]| {
        stranger.send(&mut left.two.world, endpoint, messages);
        left.two.world.run_for(Duration::from_millis(50));
        let heard = stranger.hear(&mut left.two.world).into_iter();
        heard
            .filter_map(|message| match message {
                Message::StandingIn { addresses } => Some(addresses),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    let of =
        |addresses: &[&str]| Message::NeighbourProxy { addresses: addresses.iter().map(|at| address(at)).collect() };
    use NeighbourProxyStatus::{Taken, Unproven};
    assert_eq!(ask(&mut left, &[of(&[HOME])]), [[(address(HOME), Unproven)]]);
    assert_eq!(ask(&mut left, &[of(&[ROUTER])]), [[(address(ROUTER), Taken)]]);
    // Where it is, it needs nobody, registered or not.
    let register =
        Message::Register { number: 1, change: whimbrel_wire::message::RegistrationChange::Add, tags: vec![[1; 16]] };
    ask(&mut left, &[register]);
    let answer = ask(&mut left, &[of(&["10.66.0.1", HOME])]);
    assert_eq!(answer, [[(address("10.66.0.1"), Taken), (address(HOME), Unproven)]]);
    assert_eq!(ask(&mut left, &[of(&[HOME]), of(&[HOME])]), [] as [Vec<_>; 0], "P-37");
    assert_eq!(left.stands_in(), [] as [IpAddr; 0]);
    left.two.world.check();
}

#[test]
fn little_is_passed_on_and_only_what_belongs_to_control() {
    // P-61
    let mut left = Left::new(1210);
    let Two { world, client, away, far, .. } = &mut left.two;
    world.set_cut(*far, true);
    world.move_to(*client, *away, AWAY);
    world.run_for(5 * SECOND);
    assert_eq!(left.stands_in(), [address(HOME)]);
    let source: SocketAddr = "10.66.0.9:2031".parse().expect("an endpoint");
    let router = left.router;
    let passed = |left: &mut Left, datagram: &[u8], count: usize| {
        let before = left.two.world.exchanged(router, address(AWAY)).0;
        for _ in 0..count {
            let now = left.two.world.now();
            left.two.world.with_node(router, |node| node.handle_intercepted(now, address(HOME), source, datagram));
        }
        left.two.world.exchanged(router, address(AWAY)).0 - before
    };
    assert_eq!(passed(&mut left, &[0x20; 100], 1), 0, "a tunnel's");
    assert_eq!(passed(&mut left, &[], 1), 0);
    assert_eq!(passed(&mut left, &[0x10; MAX_PASSED_ON + 1], 1), 0, "too long");
    let one = passed(&mut left, &[0x10; 100], 1);
    assert!(one > 100 && one < 220, "{one} bytes");
    let many = passed(&mut left, &[0x10; 100], 10_000);
    assert!(many <= 40 * one, "{many} bytes of a flood");
    // What is passed on is nobody's: nothing is answered.
    left.two.world.run_for(5 * SECOND);
    assert_eq!(left.two.world.exchanged(left.two.client, source.ip()).0, 0);
    left.two.world.check_except(&[Kind::Storm]);
}

#[test]
fn who_asks_again_and_again_is_stood_in_for_at_a_pace_and_has_no_more_passed_on() {
    // P-60, P-61
    const LEFT: &str = "10.1.0.7";
    const NOW_AT: &str = "10.66.0.1";
    let mut left = Left::new(1213);
    let host = left.two.world.bare_host("restless");
    left.two.world.at_mut(host).collects = true;
    left.two.world.attach(host, left.two.home, LEFT);
    let mut restless = Speaker::new(host, left.two.home, address(LEFT), address(ROUTER));
    restless.meet(&mut left.two.world);
    let register = Message::Register { number: 1, change: RegistrationChange::Add, tags: vec![[1; 16]] };
    for message in [register, Message::Padding { length: 0 }] {
        let endpoint = restless.endpoint();
        restless.send(&mut left.two.world, endpoint, &[message]);
        left.two.world.run_for(Duration::from_millis(50));
    }
    let den = left.two.world.network(Access::Open);
    left.two.world.move_to(host, den, NOW_AT);
    (restless.network, restless.address) = (den, address(NOW_AT));
    let endpoint = restless.endpoint();
    let update = Message::BindingUpdate {
        binding: BindingNumber::FIRST,
        sequence: 1,
        flags: UpdateFlags::NONE,
        claimed: endpoint,
        lifetime: 0,
    };
    restless.send(&mut left.two.world, endpoint, &[update]);
    left.two.world.run_for(Duration::from_millis(50));
    let token = restless.hear(&mut left.two.world).into_iter().find_map(|message| match message {
        Message::PathChallenge { token } => Some(token),
        _ => None,
    });
    let observed = SocketAddr::new(address(ROUTER), endpoint.port());
    let response = Message::PathResponse { token: token.expect("a challenge"), observed };
    restless.send(&mut left.two.world, endpoint, &[response]);
    left.two.world.run_for(Duration::from_millis(50));

    let router = left.router;
    let mut ask = |left: &mut Left, addresses: Vec<IpAddr>| {
        restless.send(&mut left.two.world, endpoint, &[Message::NeighbourProxy { addresses }]);
        left.two.world.run_for(Duration::from_millis(20));
        let heard = restless.hear(&mut left.two.world);
        heard.into_iter().find_map(|message| match message {
            Message::StandingIn { addresses } => Some(addresses),
            _ => None,
        })
    };
    let flood = |left: &mut Left| {
        let before = left.two.world.exchanged(router, address(NOW_AT)).0;
        let source: SocketAddr = "10.66.0.9:2031".parse().expect("an endpoint");
        for _ in 0..100 {
            let now = left.two.world.now();
            left.two.world.with_node(router, |node| node.handle_intercepted(now, address(LEFT), source, &[0x10; 100]));
        }
        left.two.world.exchanged(router, address(NOW_AT)).0 - before
    };
    let accepted = Some(vec![(address(LEFT), NeighbourProxyStatus::Accepted)]);
    assert_eq!(ask(&mut left, vec![address(LEFT)]), accepted);
    let much = flood(&mut left);
    assert!(much > 3000, "{much} bytes");
    assert_eq!(ask(&mut left, vec![]), Some(vec![]));
    assert_eq!(ask(&mut left, vec![address(LEFT)]), accepted);
    let more = flood(&mut left);
    assert!(more < 300, "{more} bytes for asking anew");

    for _ in 0..100 {
        ask(&mut left, vec![]);
        ask(&mut left, vec![address(LEFT)]);
    }
    let begun = |event: &Event| matches!(event, Event::StandsIn { address: at, .. } if *at == address(LEFT));
    let count = left.two.world.events.iter().filter(|(_, at, event)| *at == router && begun(event)).count();
    assert!((8..10).contains(&count), "{count} times within some seconds");
    // Who waits is heeded, and what was begun with is answered for as often as it likes.
    left.two.world.run_for(12 * SECOND);
    for _ in 0..20 {
        assert_eq!(ask(&mut left, vec![address(LEFT)]), accepted);
    }
    left.two.world.check_except(&[Kind::Storm]);
}

#[test]
fn what_nobody_asked_for_is_not_taken_in() {
    let mut left = Left::new(1211);
    // The router passes on what was not asked for, and for an address that was not left.
    let initiation = vec![0x01; 1200];
    let passed =
        Message::PassedOn { left: address(HOME), source: "10.66.0.9:2031".parse().expect("one"), datagram: initiation };
    let mut liar = stranger(&mut left, "10.66.0.1");
    liar.peer.set_ip(address(HOME));
    liar.meet(&mut left.two.world);
    let endpoint = liar.endpoint();
    liar.send(&mut left.two.world, endpoint, &[passed]);
    left.two.world.run_for(SECOND);
    assert_eq!(left.two.world.exchanged(left.two.client, address("10.66.0.9")).0, 0);
    left.two.world.check();
}
