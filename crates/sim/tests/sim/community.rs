//! The hosts of one owner (`docs/protocol.md` §10, decision 0017).

use std::time::Duration;

use whimbrel_protocol::{
    CODE_LIFETIME, CommunityEvent, CommunityRefused, CommunityView, Config, Event, GRANT_LIFETIME, JoinFailure,
    MoveEvent, Moving, NotGiven, OneTimeCode, Refusal, Time, Trust,
};
use whimbrel_sim::{Access, ConnectionId, Faults, HostId, Link, Mutation, NetworkId, Parting, Speaker, World};
use whimbrel_wire::community::{JoinPurpose, JoinRefusal, MemberStanding, Word};
use whimbrel_wire::message::Message;
use whimbrel_wire::{FlowTuple, Transport};

use crate::common::{SECOND, address, stride};

const DESK: HostId = HostId(0);
const LAPTOP: HostId = HostId(1);
const PHONE: HostId = HostId(2);
const STRANGER: HostId = HostId(3);
const NAMES: [&str; 4] = ["desk", "laptop", "phone", "stranger"];
/// Within this those hear of something that are awake.
const SOON: Duration = Duration::from_secs(20);

/// Four hosts on networks of their own; the desk has founded a community.
struct Scene {
    world: World,
    networks: Vec<NetworkId>,
}

fn place(host: HostId) -> String {
    format!("10.{}.0.2", host.0 + 1)
}

impl Scene {
    fn new() -> Self {
        Self::with(Config { moving: Moving { enabled: true, ..Moving::default() }, ..Config::default() })
    }

    fn with(config: Config) -> Self {
        let mut world = World::new(0x5eed);
        world.allow_datagrams(4000);
        let networks: Vec<NetworkId> = (0..4).map(|_| world.network(Access::Open)).collect();
        for (number, name) in NAMES.into_iter().enumerate() {
            let host = world.host_with(name, config.clone());
            world.attach(host, networks[number], &place(host));
        }
        let mut scene = Self { world, networks };
        scene.ask(DESK, |node, now| node.found_community(now, "desk")).unwrap();
        scene
    }

    /// The desk's and these.
    fn of(hosts: &[HostId]) -> Self {
        let mut scene = Self::new();
        hosts.iter().for_each(|host| scene.let_in(*host, false));
        scene.agreed(hosts);
        scene
    }

    fn ask<T>(&mut self, host: HostId, ask: impl FnOnce(&mut whimbrel_protocol::Node, Time) -> T) -> T {
        let now = self.world.now();
        let mut answer = None;
        self.world.with_node(host, |node| answer = Some(ask(node, now)));
        answer.expect("its daemon runs")
    }

    fn invite(&mut self, by: HostId, steward: bool) -> OneTimeCode {
        self.ask(by, |node, now| node.invite(now, steward)).unwrap()
    }

    fn join(&mut self, host: HostId, code: OneTimeCode, at: HostId) -> Result<(), CommunityRefused> {
        self.join_as(host, code, at, NAMES[host.0])
    }

    fn join_as(&mut self, host: HostId, code: OneTimeCode, at: HostId, name: &str) -> Result<(), CommunityRefused> {
        let to = vec![(address(&place(at)), 2031).into()];
        self.ask(host, |node, now| node.join_community(now, code, to, name))
    }

    fn let_in(&mut self, host: HostId, steward: bool) {
        let code = self.invite(DESK, steward);
        self.join(host, code, DESK).unwrap();
        assert!(self.wait(SOON, |s| s.belongs(host)), "{} is not let in", NAMES[host.0]);
    }

    fn wait(&mut self, within: Duration, so: impl Fn(&Self) -> bool) -> bool {
        let until = self.world.now() + within;
        while !so(self) {
            if self.world.now() >= until {
                return false;
            }
            self.world.run_for(Duration::from_millis(20));
        }
        true
    }

    fn view(&self, host: HostId) -> CommunityView {
        self.world.at(host).node.as_ref().expect("its daemon runs").community(self.world.now())
    }

    fn belongs(&self, host: HostId) -> bool {
        matches!(self.view(host).standing, Some(MemberStanding::Member | MemberStanding::Steward))
    }

    /// Whether a host takes another for one of its own.
    fn counts(&self, host: HostId, other: HostId) -> bool {
        let key = self.world.at(other).public_key();
        self.world.at(host).node.as_ref().is_some_and(|node| node.is_in_community(&key))
    }

    fn agreed(&mut self, hosts: &[HostId]) {
        let all: Vec<HostId> = [DESK].into_iter().chain(hosts.iter().copied()).collect();
        let so = |s: &Self| all.iter().all(|one| all.iter().all(|other| s.counts(*one, *other)));
        assert!(self.wait(2 * SOON, so), "they do not all know one another");
    }

    fn events(&self, host: HostId) -> Vec<CommunityEvent> {
        let of = self.world.events.iter().filter(|(_, at, _)| *at == host);
        of.filter_map(|(_, _, event)| match event {
            Event::Community(event) => Some(event.clone()),
            _ => None,
        })
        .collect()
    }

    fn failure(&mut self, host: HostId, before: usize) -> JoinFailure {
        let failed = |s: &Self| {
            s.events(host)[before..].iter().find_map(|event| match event {
                CommunityEvent::JoinFailed { why, .. } => Some(*why),
                _ => None,
            })
        };
        assert!(self.wait(2 * SOON, |s| failed(s).is_some()), "{:?}", self.events(host));
        failed(self).unwrap()
    }

    fn fails(&mut self, host: HostId, code: OneTimeCode, at: HostId) -> JoinFailure {
        let before = self.events(host).len();
        self.join(host, code, at).unwrap();
        self.failure(host, before)
    }

    /// A connection of the desk's that the desk holds itself.
    fn connection(&mut self, owner: HostId) -> ConnectionId {
        let tuple = tuple(owner);
        let name = 0x1234_5678_9abc_def0 + owner.0 as u64;
        self.world.lend(owner, name, tuple, owner);
        let connection = self.world.movable(owner, owner, name, tuple);
        self.ask(owner, |node, now| node.handle_flow_opened(now, tuple, true));
        self.world.set_talk(Some(Duration::from_millis(17)));
        connection
    }

    /// What became of a move that a host was told of last.
    fn moved(&mut self, host: HostId) -> Option<MoveEvent> {
        self.world.run_for(20 * SECOND);
        let mut of = self.world.move_events(host);
        of.rfind(|event| matches!(event, MoveEvent::Given { .. } | MoveEvent::Kept { .. } | MoveEvent::Taken { .. }))
            .cloned()
    }
}

fn tuple(owner: HostId) -> FlowTuple {
    let (local, remote) = (format!("{}:22", place(owner)).parse().unwrap(), "10.9.9.9:40000".parse().unwrap());
    FlowTuple { transport: Transport::Tcp, local, remote }
}

/// The same code with another word.
fn misheard(code: OneTimeCode) -> OneTimeCode {
    let text = code.to_string();
    let (rest, last) = text.rsplit_once('-').unwrap();
    let other = if last == "tobacco" { "tolerance" } else { "tobacco" };
    format!("{rest}-{other}").parse().unwrap()
}

#[test]
fn who_is_let_in_is_known_to_all_and_knows_all() {
    let mut scene = Scene::of(&[LAPTOP, PHONE]);
    for host in [DESK, LAPTOP, PHONE] {
        let view = scene.view(host);
        let names: Vec<&str> = view.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        assert!(view.offers.is_empty());
        assert_eq!(view.standing == Some(MemberStanding::Steward), host == DESK);
    }
    let view = scene.view(DESK);
    let laptop = scene.world.at(LAPTOP).public_key();
    let key = laptop.to_string();
    for (what, called) in [("laptop", 1), (key.as_str(), 1), (&key[..6], 1), (&key[..5], 0), ("lap", 0), ("", 0)] {
        let hosts: Vec<_> = view.called(what).into_iter().map(|host| host.key).collect();
        assert_eq!(hosts, vec![laptop; called], "{what}");
    }
    // Those that were let in by the same host have found one another, and everybody is known to know everything.
    let all_know = |s: &Scene| [DESK, LAPTOP, PHONE].iter().all(|host| s.view(*host).hosts.iter().all(|h| h.knows));
    assert!(scene.wait(SOON, all_know));
    // The code has proven whose key it is that answers where the desk was said to be.
    let desk = scene.world.at(DESK).public_key();
    assert_eq!(scene.world.at(LAPTOP).config.known_keys.get(&address(&place(DESK))), Some(&desk));
    assert!(!scene.counts(STRANGER, DESK) && !scene.counts(DESK, STRANGER));
    // Only the steward invites and revokes.
    let phone = scene.world.at(PHONE).public_key();
    assert_eq!(scene.ask(LAPTOP, |node, now| node.invite(now, false)), Err(CommunityRefused::NotSteward));
    assert_eq!(scene.ask(LAPTOP, |node, now| node.revoke(now, &phone)), Err(CommunityRefused::NotSteward));
    assert_eq!(scene.ask(STRANGER, |node, now| node.invite(now, false)), Err(CommunityRefused::NotIn));
    // Hosts at rest say nothing but now and then.
    scene.world.run_for(30 * SECOND);
    let before = scene.world.sent();
    scene.world.run_for(3600 * SECOND);
    assert!(scene.world.sent() - before < 400, "{}", scene.world.sent() - before);
}

#[test]
fn a_code_is_good_once() {
    // P-82
    let mut scene = Scene::new();
    let code = scene.invite(DESK, false);
    assert_eq!(scene.fails(LAPTOP, misheard(code), DESK), JoinFailure::WrongCode);
    assert!(scene.events(DESK).iter().any(|event| matches!(event, CommunityEvent::WrongCode { .. })));
    // The right one comes too late, and the wrong one is not said again.
    assert_eq!(scene.fails(LAPTOP, code, DESK), JoinFailure::NoSuchCode);
    assert_eq!(scene.join(LAPTOP, misheard(code), DESK), Err(CommunityRefused::Spent));
    let code = scene.invite(DESK, false);
    scene.join(LAPTOP, code, DESK).unwrap();
    assert_eq!(scene.join(LAPTOP, code, DESK), Err(CommunityRefused::Joining));
    assert!(scene.wait(SOON, |s| s.belongs(LAPTOP)));
    assert_eq!(scene.join(LAPTOP, code, DESK), Err(CommunityRefused::AlreadyIn));
    assert_eq!(scene.fails(PHONE, code, DESK), JoinFailure::NoSuchCode);
    // One that is old, one that was taken back, one of nobody, and one that is for something else.
    let code = scene.invite(DESK, false);
    scene.world.run_for(CODE_LIFETIME + SECOND);
    assert_eq!(scene.fails(PHONE, code, DESK), JoinFailure::NoSuchCode);
    let code = scene.invite(DESK, false);
    assert!(scene.ask(DESK, |node, now| node.withdraw(now, code.number())));
    assert!(!scene.ask(DESK, |node, now| node.withdraw(now, code.number())));
    assert_eq!(scene.fails(PHONE, code, DESK), JoinFailure::NoSuchCode);
    let code = scene.invite(DESK, false);
    assert_eq!(scene.fails(PHONE, code, LAPTOP), JoinFailure::NoSuchCode);
    let to = vec![(address(&place(DESK)), 2031).into()];
    let before = scene.events(PHONE).len();
    scene.ask(PHONE, |node, now| node.accept_connection(now, code, to)).unwrap();
    assert_eq!(scene.failure(PHONE, before), JoinFailure::OtherPurpose);
    // None of that has used it up.
    scene.join(PHONE, code, DESK).unwrap();
    assert!(scene.wait(SOON, |s| s.belongs(PHONE)));
    scene.agreed(&[LAPTOP, PHONE]);
}

#[test]
fn no_two_hosts_join_under_one_name() {
    // P-120
    let mut scene = Scene::new();
    // Two codes are open at once, and used at once.
    let codes = [scene.invite(DESK, false), scene.invite(DESK, false)];
    let before = [LAPTOP, PHONE].map(|host| scene.events(host).len());
    scene.join_as(LAPTOP, codes[0], DESK, "debian").unwrap();
    scene.join_as(PHONE, codes[1], DESK, "debian").unwrap();
    scene.world.run_for(SOON);
    let [first, second] = if scene.belongs(LAPTOP) { [LAPTOP, PHONE] } else { [PHONE, LAPTOP] };
    assert!(scene.belongs(first) && !scene.belongs(second));
    let [name_of, unnamed] = [first, second].map(|host| {
        let (key, desk) = (scene.world.at(host).public_key(), scene.world.at(DESK).node.as_ref());
        desk.and_then(|node| node.name_of_member(&key).map(str::to_owned))
    });
    assert_eq!((name_of.as_deref(), unnamed), (Some("debian"), None));
    assert_eq!(scene.failure(second, before[second.0 - 1]), JoinFailure::NameTaken);
    let key = scene.world.at(second).public_key();
    let refused = |event: &&CommunityEvent| matches!(event, CommunityEvent::NameTaken { host, name, .. } if *host == key && name == "debian");
    assert_eq!(scene.events(DESK).iter().filter(refused).count(), 1, "{:?}", scene.events(DESK));
    assert!(scene.view(DESK).offers.is_empty(), "both codes are used up");
    assert!(!scene.counts(DESK, second));
    // Nor as the steward is called, whatever the case, and an answer that was lost is given again.
    for name in ["desk", "Desk", "DEBIAN"] {
        let code = scene.invite(DESK, false);
        let before = scene.events(second).len();
        scene.world.set_links(Link { loss: 50, ..Link::default() });
        scene.join_as(second, code, DESK, name).unwrap();
        assert_eq!(scene.failure(second, before), JoinFailure::NameTaken, "{name}");
        scene.world.set_links(Link::default());
    }
    // A name of its own does, the same host may join again as it was called, and the name of one that was revoked is
    // free.
    let code = scene.invite(DESK, false);
    scene.join_as(second, code, DESK, "other").unwrap();
    assert!(scene.wait(SOON, |s| s.belongs(second)));
    scene.agreed(&[LAPTOP, PHONE]);
    scene.ask(first, |node, now| node.leave_community(now)).unwrap();
    let code = scene.invite(DESK, false);
    scene.join_as(first, code, DESK, "debian").unwrap();
    assert!(scene.wait(SOON, |s| s.belongs(first)));
    let key = scene.world.at(first).public_key();
    scene.ask(DESK, |node, now| node.revoke(now, &key)).unwrap();
    let code = scene.invite(DESK, false);
    scene.join_as(STRANGER, code, DESK, "debian").unwrap();
    assert!(scene.wait(SOON, |s| s.belongs(STRANGER)));
}

#[test]
fn codes_are_of_no_use_where_nobody_answers_or_keys_are_pinned() {
    let mut scene = Scene::new();
    let code = scene.invite(DESK, false);
    scene.world.set_cut(scene.networks[DESK.0], true);
    assert_eq!(scene.fails(LAPTOP, code, DESK), JoinFailure::Unanswered);
    let mut pinned = Scene::with(Config { trust: Trust::Pinned, ..Config::default() });
    assert_eq!(pinned.ask(DESK, |node, now| node.invite(now, false)), Err(CommunityRefused::Pinned));
    assert_eq!(pinned.join(LAPTOP, code, DESK), Err(CommunityRefused::Pinned));
}

#[test]
fn a_code_that_nobody_answers_to_the_end_says_how_far_it_came_and_whether_it_is_used_up() {
    let mut seen = Vec::new();
    for from in 0..20 {
        let mut scene = Scene::new();
        let code = scene.invite(DESK, false);
        let networks = [scene.networks[LAPTOP.0], scene.networks[DESK.0]];
        scene.world.faults.part = Some(Parting { networks, from: scene.world.sent() + from });
        scene.join(LAPTOP, code, DESK).unwrap();
        scene.world.run_for(2 * SOON);
        let events = scene.events(LAPTOP);
        let [CommunityEvent::JoinFailed { why, .. }] = events[..] else { break };
        let used_up = scene.join(LAPTOP, code, DESK) == Err(CommunityRefused::Spent);
        assert_eq!(used_up, why == JoinFailure::BrokenOff, "{why}");
        if !seen.contains(&why) {
            seen.push(why);
        }
    }
    assert_eq!(seen, [JoinFailure::Unanswered, JoinFailure::Silent, JoinFailure::BrokenOff]);
}

#[test]
fn joining_survives_any_loss_and_any_death() {
    let run = |faults: Faults| {
        let mut scene = Scene::new();
        let code = scene.invite(DESK, false);
        scene.world.faults = faults;
        let first = scene.world.sent();
        if let Some(lose) = faults.lose {
            scene.world.faults.lose = Some(first + lose);
        }
        for host in [DESK, LAPTOP] {
            if let Some((of, step)) = faults.crash.filter(|(of, _)| *of == host) {
                let done = scene.world.at(of).effects;
                scene.world.faults.crash = Some((of, done + step));
            }
        }
        scene.join(LAPTOP, code, DESK).unwrap();
        let over = |s: &Scene| {
            let ends = |event: &CommunityEvent| {
                matches!(event, CommunityEvent::Joined { .. } | CommunityEvent::JoinFailed { .. })
            };
            s.events(LAPTOP).iter().any(ends)
        };
        scene.wait(2 * SOON, over);
        let sent = scene.world.sent() - first;
        scene.world.faults = Faults::default();
        scene.world.run_for(5 * SECOND);
        let joined = scene.belongs(LAPTOP);
        if !joined {
            // Whatever was lost, another code mends it.
            assert!(faults.crash.is_some(), "a datagram that was lost is said again");
            let code = scene.invite(DESK, false);
            scene.join(LAPTOP, code, DESK).unwrap();
        }
        assert!(scene.wait(2 * SOON, |s| s.counts(DESK, LAPTOP) && s.counts(LAPTOP, DESK)), "{faults:?}");
        assert!(scene.wait(SOON, |s| s.view(DESK).hosts.iter().all(|host| host.knows)), "{faults:?}");
        sent
    };
    let steps = run(Faults::default());
    assert!((8..60).contains(&steps), "{steps} datagrams");
    for lose in 0..steps {
        run(Faults { lose: Some(lose), ..Faults::default() });
    }
    for host in [DESK, LAPTOP] {
        for step in (0..30).step_by(stride(2)) {
            run(Faults { crash: Some((host, step)), downtime: SECOND, ..Faults::default() });
        }
    }
}

#[test]
fn lost_doubled_disordered_and_replayed_words_do_no_harm() {
    for seed in 0..stride(1).max(3) as u64 {
        let mut scene = Scene::new();
        (0..seed).for_each(|_| scene.world.run_for(SECOND));
        scene.world.set_links(Link {
            loss: 150,
            duplicate: 200,
            reorder: 200,
            jitter: Duration::from_millis(20),
            ..Link::default()
        });
        scene.world.mutation = Mutation { corrupt: 50, truncate: 20, extend: 20, replay: 200, replay_elsewhere: 50 };
        for host in [LAPTOP, PHONE] {
            let mut tries = 0;
            while !scene.belongs(host) {
                tries += 1;
                assert!(tries < 8, "{:?}", scene.events(host));
                let code = scene.invite(DESK, false);
                scene.join(host, code, DESK).unwrap();
                scene.wait(2 * SOON, |s| s.belongs(host));
                scene.ask(DESK, |node, now| node.withdraw(now, code.number()));
                scene.world.run_for(SOON);
            }
        }
        scene.agreed(&[LAPTOP, PHONE]);
        let phone = scene.world.at(PHONE).public_key();
        scene.ask(DESK, |node, now| node.revoke(now, &phone)).unwrap();
        assert!(scene.wait(10 * SOON, |s| !s.counts(LAPTOP, PHONE) && !s.belongs(PHONE)), "the phone is revoked");
    }
}

#[test]
fn who_sits_in_between_is_found_out() {
    // P-82: keys of his own, and every word of the two passed on.
    let mut scene = Scene::new();
    let (front, back) = (scene.world.bare_host("front"), scene.world.bare_host("back"));
    for (host, at) in [(front, "10.5.0.2"), (back, "10.6.0.2")] {
        let network = scene.world.network(Access::Open);
        scene.world.attach(host, network, at);
        scene.networks.push(network);
        scene.world.at_mut(host).collects = true;
    }
    let mut towards_laptop = Speaker::new(front, scene.networks[4], address("10.5.0.2"), address(&place(LAPTOP)));
    let mut towards_desk = Speaker::new(back, scene.networks[5], address("10.6.0.2"), address(&place(DESK)));
    let code = scene.invite(DESK, false);
    towards_desk.meet(&mut scene.world);
    let to = vec![(address("10.5.0.2"), 2031).into()];
    scene.ask(LAPTOP, |node, now| node.join_community(now, code, to, "laptop")).unwrap();
    scene.world.run_for(Duration::from_millis(50));
    assert!(towards_laptop.answer(&mut scene.world));
    for _ in 0..20 {
        scene.world.run_for(Duration::from_millis(100));
        let words = |heard: Vec<Message>| -> Vec<Message> {
            heard.into_iter().filter(|message| matches!(message, Message::Community(_))).collect()
        };
        let (from_laptop, from_desk) =
            (words(towards_laptop.hear(&mut scene.world)), words(towards_desk.hear(&mut scene.world)));
        for message in from_laptop {
            towards_desk.send(&mut scene.world, towards_desk.endpoint(), &[message]);
        }
        for message in from_desk {
            towards_laptop.send(&mut scene.world, towards_laptop.endpoint(), &[message]);
        }
    }
    assert!(matches!(
        scene.events(LAPTOP)[..],
        [CommunityEvent::JoinFailed { why: JoinFailure::WrongCode | JoinFailure::NotProven, .. }]
    ));
    assert!(matches!(scene.events(DESK)[..], [CommunityEvent::WrongCode { .. }]));
    assert_eq!(scene.view(DESK).hosts.len(), 1);
    assert!(scene.view(DESK).offers.is_empty(), "the code is used up");
    assert!(!scene.world.at(LAPTOP).config.known_keys.contains_key(&address("10.5.0.2")));
    // Nor is it said again to whoever was there.
    let to = vec![(address("10.5.0.2"), 2031).into()];
    let again = scene.ask(LAPTOP, |node, now| node.join_community(now, code, to, "laptop"));
    assert_eq!(again, Err(CommunityRefused::Spent));
}

/// Somebody with a session with the desk.
fn speaker(scene: &mut Scene) -> Speaker {
    let host = scene.world.bare_host("speaker");
    let network = scene.world.network(Access::Open);
    scene.world.attach(host, network, "10.7.0.2");
    scene.world.at_mut(host).collects = true;
    let mut speaker = Speaker::new(host, network, address("10.7.0.2"), address(&place(DESK)));
    speaker.meet(&mut scene.world);
    speaker
}

#[test]
fn a_flood_of_strangers_costs_little_and_bars_nobody_for_long() {
    // P-82
    let mut scene = Scene::new();
    let code = scene.invite(DESK, false);
    let mut speaker = speaker(&mut scene);
    let entries = |s: &Scene| s.world.at(DESK).node.as_ref().unwrap().entries();
    let before = entries(&scene);
    let mut answered = 0;
    for round in 0..500_u16 {
        let mut element = [0; 32];
        element[..2].copy_from_slice(&round.to_be_bytes());
        let word = Word::Join { number: code.number(), purpose: JoinPurpose::Membership, element };
        speaker.send(&mut scene.world, speaker.endpoint(), &[Message::Community(word)]);
        scene.world.run_for(Duration::from_millis(20));
        let heard = speaker.hear(&mut scene.world);
        answered += heard.iter().filter(|m| matches!(m, Message::Community(Word::JoinAnswer { .. }))).count();
    }
    assert!(answered <= 16 + 4 * 11, "{answered} exchanges in ten seconds");
    assert!(entries(&scene) <= before + 4, "nothing is kept of it");
    // Two in one datagram are none.
    let word = Message::Community(Word::Join { number: 1, purpose: JoinPurpose::Membership, element: [0; 32] });
    let dropped = scene.world.at(DESK).node.as_ref().unwrap().dropped();
    speaker.send(&mut scene.world, speaker.endpoint(), &[word.clone(), word]);
    scene.world.run_for(Duration::from_millis(50));
    assert_eq!(scene.world.at(DESK).node.as_ref().unwrap().dropped(), dropped + 1);
    scene.join(LAPTOP, code, DESK).unwrap();
    assert!(scene.wait(SOON, |s| s.belongs(LAPTOP)), "{:?}", scene.events(LAPTOP));
}

#[test]
fn strangers_are_told_nothing_and_believed_nothing() {
    // P-81
    let mut scene = Scene::of(&[LAPTOP]);
    let mut speaker = speaker(&mut scene);
    let community = scene.view(DESK).community.unwrap();
    let genuine = scene.world.at(DESK).saved_community.clone().unwrap().statements;
    let mut forged = genuine[0].clone();
    forged.0.host = *speaker.public_key().as_bytes();
    forged.0.standing = MemberStanding::Steward;
    speaker.hear(&mut scene.world);
    for word in [
        Word::RosterState { community, digest: [0; 16], asks: true },
        Word::Roster { community, statements: vec![forged] },
        Word::Roster { community: [9; 32], statements: genuine },
        Word::RosterState { community, digest: [1; 16], asks: true },
    ] {
        speaker.send(&mut scene.world, speaker.endpoint(), &[Message::Community(word)]);
        scene.world.run_for(SECOND);
    }
    let heard = speaker.hear(&mut scene.world);
    assert!(!heard.iter().any(|message| matches!(message, Message::Community(_))), "{heard:?}");
    assert_eq!(scene.view(DESK).hosts.len(), 2);
    // A proof that follows no exchange, and answers that nobody asked for.
    let number = scene.invite(DESK, false).number();
    let proof = Word::JoinProof { number, proof: [0; 32], name: "thief".to_owned() };
    speaker.send(&mut scene.world, speaker.endpoint(), &[Message::Community(proof)]);
    scene.world.run_for(SECOND);
    let refused = Message::Community(Word::JoinRefused { number, refusal: JoinRefusal::NoSuchCode });
    assert!(speaker.hear(&mut scene.world).contains(&refused));
    assert_eq!(scene.view(DESK).offers.len(), 1, "that was no guess");
}

#[test]
fn whoever_slept_through_a_revocation_learns_of_it() {
    let mut scene = Scene::of(&[LAPTOP, PHONE]);
    scene.world.suspend(LAPTOP);
    let phone = scene.world.at(PHONE).public_key();
    scene.ask(DESK, |node, now| node.revoke(now, &phone)).unwrap();
    assert!(scene.wait(SOON, |s| !s.belongs(PHONE)), "it is told so itself");
    assert!(scene.events(PHONE).contains(&CommunityEvent::Revoked));
    assert!(!scene.counts(PHONE, DESK) && !scene.counts(PHONE, LAPTOP), "and takes nothing of theirs any more");
    assert_eq!(scene.view(PHONE).hosts.len(), 1);
    scene.world.run_for(4 * 3600 * SECOND);
    scene.world.wake(LAPTOP);
    assert!(scene.counts(LAPTOP, PHONE), "nobody has told it yet");
    let within = Duration::from_secs(601);
    assert!(scene.wait(within, |s| !s.counts(LAPTOP, PHONE)), "it hears of it within ten minutes");
    assert!(scene.events(LAPTOP).iter().any(|event| matches!(event, CommunityEvent::HostRevoked { .. })));
    // Its daemon remembers, and so does the phone's.
    scene.world.restart(LAPTOP, SECOND);
    scene.world.restart(PHONE, SECOND);
    scene.world.run_for(30 * SECOND);
    assert!(!scene.counts(LAPTOP, PHONE) && !scene.belongs(PHONE) && scene.counts(LAPTOP, DESK));
    // It may come back, by another code.
    scene.let_in(PHONE, false);
    scene.agreed(&[LAPTOP, PHONE]);
}

#[test]
fn a_thief_who_hears_nothing_is_told_by_none_and_believed_by_none() {
    // The stolen phone's daemon is one that does not listen: what it remembers is put back.
    let mut scene = Scene::of(&[LAPTOP, PHONE]);
    let remembered = scene.world.at(PHONE).saved_community.clone();
    let phone = scene.world.at(PHONE).public_key();
    scene.world.crash(PHONE);
    scene.ask(DESK, |node, now| node.revoke(now, &phone)).unwrap();
    assert!(scene.wait(SOON, |s| !s.counts(LAPTOP, PHONE)));
    scene.world.run_for(60 * SECOND);
    scene.world.at_mut(PHONE).saved_community = remembered;
    scene.world.boot(PHONE);
    scene.world.run_for(60 * SECOND);
    assert!(!scene.counts(LAPTOP, PHONE) && !scene.counts(DESK, PHONE), "an old statement changes nothing");
    assert!(!scene.belongs(PHONE), "one that listens hears of it as soon as it meets anybody");
}

#[test]
fn stewards_need_not_know_of_one_another_to_agree() {
    let mut scene = Scene::new();
    scene.let_in(LAPTOP, true);
    scene.let_in(PHONE, false);
    scene.agreed(&[LAPTOP, PHONE]);
    assert_eq!(scene.view(LAPTOP).standing, Some(MemberStanding::Steward));
    // Each invites and revokes on its own side of a cut.
    scene.world.set_cut(scene.networks[DESK.0], true);
    let code = scene.invite(LAPTOP, false);
    scene.join(STRANGER, code, LAPTOP).unwrap();
    assert!(scene.wait(SOON, |s| s.belongs(STRANGER)));
    let phone = scene.world.at(PHONE).public_key();
    scene.ask(DESK, |node, now| node.revoke(now, &phone)).unwrap();
    // The other one makes the phone a steward meanwhile: what allows less counts.
    scene.world.run_for(60 * SECOND);
    scene.world.set_cut(scene.networks[DESK.0], false);
    let so = |s: &Scene| {
        [DESK, LAPTOP, STRANGER].iter().all(|host| !s.counts(*host, PHONE) && s.counts(*host, STRANGER))
            && s.counts(STRANGER, DESK)
            && !s.belongs(PHONE)
    };
    assert!(scene.wait(Duration::from_secs(1300), so));
    // Both revoke the same one, and each other.
    let (desk, laptop) = (scene.world.at(DESK).public_key(), scene.world.at(LAPTOP).public_key());
    assert_eq!(scene.ask(DESK, |node, now| node.revoke(now, &desk)), Err(CommunityRefused::Itself));
    scene.world.set_cut(scene.networks[DESK.0], true);
    scene.ask(DESK, |node, now| node.revoke(now, &laptop)).unwrap();
    scene.ask(LAPTOP, |node, now| node.revoke(now, &desk)).unwrap();
    scene.world.run_for(SECOND);
    scene.world.set_cut(scene.networks[DESK.0], false);
    let so = |s: &Scene| !s.counts(STRANGER, DESK) || !s.counts(STRANGER, LAPTOP);
    assert!(scene.wait(Duration::from_secs(1300), so));
}

#[test]
fn a_name_that_two_stewards_have_let_hosts_in_under_means_neither() {
    // P-120
    let mut scene = Scene::new();
    scene.let_in(LAPTOP, true);
    scene.agreed(&[LAPTOP]);
    let cut = |scene: &mut Scene, host: HostId, cut: bool| scene.world.set_cut(scene.networks[host.0], cut);
    cut(&mut scene, LAPTOP, true);
    let code = scene.invite(DESK, false);
    scene.join_as(PHONE, code, DESK, "twin").unwrap();
    assert!(scene.wait(SOON, |s| s.belongs(PHONE)));
    [(DESK, true), (PHONE, true), (LAPTOP, false)].into_iter().for_each(|(host, is)| cut(&mut scene, host, is));
    let code = scene.invite(LAPTOP, false);
    scene.join_as(STRANGER, code, LAPTOP, "Twin").unwrap();
    assert!(scene.wait(SOON, |s| s.belongs(STRANGER)));
    let keys = [PHONE, STRANGER].map(|host| scene.world.at(host).public_key());
    let named = |scene: &Scene, key| {
        scene.world.at(LAPTOP).node.as_ref().and_then(|node| node.name_of_member(key)).map(str::to_owned)
    };
    assert_eq!(named(&scene, &keys[1]).as_deref(), Some("Twin"));
    [DESK, PHONE].into_iter().for_each(|host| cut(&mut scene, host, false));
    assert!(scene.wait(Duration::from_secs(1300), |s| s.counts(LAPTOP, PHONE) && s.counts(DESK, STRANGER)));
    assert_eq!(keys.each_ref().map(|key| named(&scene, key)), [None, None]);
    scene.ask(LAPTOP, |node, now| node.revoke(now, &keys[0])).unwrap();
    assert_eq!(keys.each_ref().map(|key| named(&scene, key)), [None, Some("Twin".to_owned())]);
}

#[test]
fn a_host_that_leaves_takes_nothing_with_it() {
    let mut scene = Scene::of(&[LAPTOP]);
    scene.ask(LAPTOP, |node, now| node.leave_community(now)).unwrap();
    assert!(!scene.belongs(LAPTOP) && scene.world.at(LAPTOP).saved_community.is_none());
    assert_eq!(scene.ask(LAPTOP, |node, now| node.leave_community(now)), Err(CommunityRefused::NotIn));
    scene.ask(LAPTOP, |node, now| node.found_community(now, "laptop")).unwrap();
    scene.world.run_for(60 * SECOND);
    assert!(!scene.counts(LAPTOP, DESK), "communities do not mix");
    assert!(scene.counts(DESK, LAPTOP), "until it is revoked there");
    assert_eq!(scene.ask(LAPTOP, |node, now| node.found_community(now, "again")), Err(CommunityRefused::AlreadyIn));
    assert_eq!(scene.ask(PHONE, |node, now| node.found_community(now, "a\nb")), Err(CommunityRefused::NoName));
}

#[test]
fn hosts_of_a_community_move_sockets_and_strangers_do_not() {
    // P-83
    let mut scene = Scene::of(&[LAPTOP]);
    let connection = scene.connection(DESK);
    assert_eq!(scene.world.give(connection, DESK, STRANGER, 20_000), Err(NotGiven::Stranger));
    scene.world.give(connection, DESK, LAPTOP, 20_000).unwrap();
    assert!(matches!(scene.moved(LAPTOP), Some(MoveEvent::Taken { .. })));
    // A stranger with a socket of its own is refused.
    let theirs = scene.connection(STRANGER);
    scene.world.give(theirs, STRANGER, LAPTOP, 20_000).unwrap();
    assert!(matches!(scene.moved(STRANGER), Some(MoveEvent::Kept { why: Refusal::NotAllowed, .. })));
    // And so is one that was of the community a moment ago.
    let laptop = scene.world.at(LAPTOP).public_key();
    scene.ask(DESK, |node, now| node.revoke(now, &laptop)).unwrap();
    let own = scene.connection(PHONE);
    assert!(scene.world.connection(own).copies.contains_key(&PHONE));
    assert_eq!(scene.world.give(connection, DESK, LAPTOP, 20_000), Err(NotGiven::Stranger));
    scene.world.check();
}

#[test]
fn a_connection_may_be_granted_to_a_stranger_once() {
    // P-83
    let mut scene = Scene::new();
    let connection = scene.connection(DESK);
    let grant = |scene: &mut Scene| {
        let code = scene.ask(DESK, |node, now| node.offer_connection(now, tuple(DESK))).unwrap();
        let to = vec![(address(&place(DESK)), 2031).into()];
        scene.ask(STRANGER, |node, now| node.accept_connection(now, code, to)).unwrap();
        assert!(scene.wait(SOON, |s| !s.view(STRANGER).grants.is_empty()), "{:?}", scene.events(STRANGER));
        let (here, there) = (scene.view(DESK).grants, scene.view(STRANGER).grants);
        assert_eq!((here.len(), there.len()), (1, 1));
        assert_eq!((here[0].flow, there[0].flow), (Some(tuple(DESK)), None));
        (here[0].number, there[0].number)
    };
    // Taken back by either end, or over by itself.
    let (here, _) = grant(&mut scene);
    assert!(scene.ask(DESK, |node, now| node.withdraw(now, here)));
    assert_eq!(scene.world.give(connection, DESK, STRANGER, 20_000), Err(NotGiven::Stranger));
    let there = scene.view(STRANGER).grants[0].number;
    assert!(scene.ask(STRANGER, |node, now| node.withdraw(now, there)));
    let (_, there) = grant(&mut scene);
    assert!(scene.ask(STRANGER, |node, now| node.withdraw(now, there)));
    scene.world.give(connection, DESK, STRANGER, 20_000).unwrap();
    assert!(matches!(scene.moved(DESK), Some(MoveEvent::Kept { why: Refusal::NotAllowed, .. })));
    scene.world.run_for(GRANT_LIFETIME + SECOND);
    assert!(scene.view(DESK).grants.is_empty());
    assert_eq!(scene.world.give(connection, DESK, STRANGER, 20_000), Err(NotGiven::Stranger));
    // Another connection is not meant.
    grant(&mut scene);
    let stranger = scene.world.at(STRANGER).public_key();
    let other = FlowTuple { remote: "10.9.9.9:40001".parse().unwrap(), ..tuple(DESK) };
    assert!(!scene.ask(DESK, |node, now| node.may_give(now, &stranger, &other)));
    // A move that comes to nothing uses nothing up.
    scene.world.at_mut(STRANGER).full = true;
    scene.world.give(connection, DESK, STRANGER, 20_000).unwrap();
    assert!(matches!(scene.moved(DESK), Some(MoveEvent::Kept { .. })));
    scene.world.at_mut(STRANGER).full = false;
    scene.world.give(connection, DESK, STRANGER, 20_000).unwrap();
    assert!(matches!(scene.moved(STRANGER), Some(MoveEvent::Taken { .. })));
    assert!(scene.view(DESK).grants.is_empty() && scene.view(STRANGER).grants.is_empty(), "once");
    assert!(!scene.counts(DESK, STRANGER) && !scene.belongs(STRANGER), "nobody has joined anything");
    // And no way back.
    assert_eq!(scene.ask(DESK, |node, now| node.offer_connection(now, other)), Err(CommunityRefused::NoSuchConnection));
    scene.world.check();
}

/// The key that a host remembers for the place of another.
fn remembered(scene: &Scene, host: HostId, at: &str) -> Option<whimbrel_handshake::PublicKey> {
    scene.world.at(host).config.known_keys.get(&address(at)).copied()
}

#[test]
fn who_sends_on_the_word_that_lets_a_host_in_is_not_taken_for_its_inviter() {
    // P-148
    let mut scene = Scene::new();
    let code = scene.invite(DESK, false);
    scene.world.recorded = Some(Vec::new());
    scene.join(LAPTOP, code, DESK).unwrap();
    let let_in = |w: &World| {
        let joined = |event: &Event| matches!(event, Event::Community(CommunityEvent::HostJoined { .. }));
        w.events.iter().any(|(_, at, event)| *at == DESK && joined(event))
    };
    assert!(scene.world.wait(SOON, let_in));
    let words = scene.world.recorded.take().unwrap_or_default();
    let words: Vec<_> = words.into_iter().map(|(_, word)| word).filter(|word| word.origin == DESK).collect();
    // Somebody near the laptop has them there first.
    let relay = "10.2.0.66";
    let source = (address(relay), 2031).into();
    for word in words {
        scene.world.launch(scene.networks[LAPTOP.0], whimbrel_sim::Packet { source, ..word });
    }
    assert!(scene.wait(SOON, |s| s.belongs(LAPTOP)));
    let desk = scene.world.at(DESK).public_key();
    assert_eq!(remembered(&scene, LAPTOP, relay), None);
    assert_eq!(remembered(&scene, LAPTOP, &place(DESK)), Some(desk));
}

#[test]
fn a_code_does_not_replace_a_key_that_is_remembered_until_people_say_so() {
    // P-148
    let mut scene = Scene::new();
    let before = scene.world.at(STRANGER).public_key();
    let desk = (address(&place(DESK)), scene.world.at(DESK).public_key());
    scene.world.at_mut(LAPTOP).config.known_keys.insert(desk.0, before);
    scene.world.restart(LAPTOP, Duration::ZERO);
    scene.world.run_for(SOON);
    let code = scene.invite(DESK, false);
    scene.join(LAPTOP, code, DESK).unwrap();
    assert!(scene.wait(SOON, |s| s.belongs(LAPTOP)), "the code is good all the same");
    assert_eq!(remembered(&scene, LAPTOP, &place(DESK)), Some(before));
    let told = CommunityEvent::OtherKeyKnown { address: desk.0, known: before, proven: desk.1 };
    assert_eq!(scene.events(LAPTOP).iter().filter(|event| **event == told).count(), 1);
    // What the code has proven counts from then on, and not who answers first.
    assert!(scene.ask(LAPTOP, |node, _| node.forget_key(desk.0)));
    assert_eq!(remembered(&scene, LAPTOP, &place(DESK)), Some(desk.1));
    // Forgotten once more it is forgotten.
    assert!(scene.ask(LAPTOP, |node, _| node.forget_key(desk.0)));
    assert!(!scene.ask(LAPTOP, |node, _| node.forget_key(desk.0)));
}
