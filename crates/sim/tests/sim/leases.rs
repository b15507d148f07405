//! What anchors lend and what is claimed of it (`docs/protocol.md` §11, decision 0019), with one fault at every step,
//! and many of chance.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Carrier, Config, LeaseName, Lending, MoveEvent, Moving, Refusal, Refused, Search, Then};
use whimbrel_sim::{Access, Faults, HostId, Link, NetworkId, Parting, Random, World};
use whimbrel_wire::lending::Ends;
use whimbrel_wire::{FlowTuple, Transport};

use crate::common::{SECOND, stride};

const TENANT: HostId = HostId(0);
const ANCHOR: HostId = HostId(1);
const OTHER: HostId = HostId(2);
const HOSTS: [HostId; 3] = [TENANT, ANCHOR, OTHER];
/// How long a lease lasts, and several times that.
const LIFETIME: Duration = Duration::from_secs(60);
const SETTLED: Duration = Duration::from_secs(240);
const PORT: u16 = 8000;
const COUNT: u16 = 16;

/// A tenant, its anchor and another tenant; a socket of the first with a port of the anchor's.
struct Scene {
    world: World,
    networks: Vec<NetworkId>,
    tuple: FlowTuple,
}

fn place(host: HostId) -> SocketAddr {
    format!("10.{}.0.2:2031", host.0 + 1).parse().expect("an endpoint")
}

fn keys() -> [PublicKey; 3] {
    let mut world = World::new(1);
    let hosts = HOSTS.map(|_| world.bare_host("somebody"));
    hosts.map(|host| world.at(host).public_key())
}

impl Scene {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        world.allow_datagrams(20_000);
        let networks: Vec<NetworkId> = HOSTS.map(|_| world.network(Access::Open)).into();
        for (host, name) in HOSTS.into_iter().zip(["tenant", "anchor", "other"]) {
            let lending = Lending { to: Vec::new(), most: 4, lifetime: LIFETIME, ports: Vec::new() };
            let lending = (host == ANCHOR).then_some(lending);
            let moving = Moving { enabled: true, accept_from: keys().into(), lending, ..Moving::default() };
            assert_eq!(world.host_with(name, Config { moving, ..Config::default() }), host);
            world.attach(host, networks[host.0], &place(host).ip().to_string());
        }
        let local = SocketAddr::new(place(ANCHOR).ip(), PORT);
        let remote = "10.9.9.9:40000".parse().expect("an endpoint");
        let tuple = FlowTuple { transport: Transport::Tcp, local, remote };
        // Its name is drawn when it is claimed.
        world.movable(TENANT, ANCHOR, 0, tuple);
        world.set_talk(Some(Duration::from_millis(17)));
        Self { world, networks, tuple }
    }

    /// Asks for the port of the connection, and others with it.
    fn rent(&mut self, host: HostId) {
        let ends = Ends { first: self.tuple.local, count: COUNT };
        let (now, anchor) = (self.world.now(), keys()[ANCHOR.0]);
        self.world.with_node(host, |node| {
            node.lease(now, anchor, Some(place(ANCHOR)), ends);
        });
    }

    /// As the daemon does with what has lasted: also with what a daemon before it did not know of.
    fn claim(&mut self) {
        let (now, tuple) = (self.world.now(), self.tuple);
        self.world.with_node(TENANT, |node| {
            if !node.has_flow(&tuple) {
                node.claim_flow(now, tuple, false);
            }
        });
    }

    fn is_leased(world: &World) -> bool {
        world.at(TENANT).node.as_ref().is_some_and(|node| node.rented().next().is_some())
    }

    fn is_claimed(world: &World, tuple: &FlowTuple) -> bool {
        world.at(TENANT).node.as_ref().is_some_and(|node| node.has_flow(tuple))
    }

    /// The usual course: a lease, a claim, a renewal. Told after each what is so may fail under faults.
    fn run(&mut self) {
        self.rent(TENANT);
        self.world.wait(10 * SECOND, Self::is_leased);
        self.claim();
        let tuple = self.tuple;
        self.world.wait(10 * SECOND, |w| Self::is_claimed(w, &tuple));
        self.world.run_for(LIFETIME);
    }

    /// The same again, as daemons and programs do that were struck: in the end it works.
    fn mend(&mut self) {
        let everybody = |w: &World| HOSTS.iter().all(|host| w.at(*host).node.is_some());
        assert!(self.world.wait(SETTLED, everybody));
        self.world.run_for(20 * SECOND);
        // One that was given up may be lent yet when it is asked for anew.
        for _ in 0..4 {
            if !Self::is_leased(&self.world) {
                self.rent(TENANT);
                self.world.wait(30 * SECOND, Self::is_leased);
            }
        }
        assert!(Self::is_leased(&self.world), "it is not leased again");
        let tuple = self.tuple;
        for _ in 0..3 {
            self.claim();
            if self.world.wait(10 * SECOND, |w| Self::is_claimed(w, &tuple)) {
                return;
            }
        }
        panic!("it is not claimed");
    }

    /// Anchor and tenant have the same idea of what is lent, and of whose the connection is.
    fn check(&mut self) {
        self.world.run_for(SETTLED);
        let saved = |w: &World, host: HostId| w.at(host).saved_moves.clone();
        let (anchor, tenant) = (saved(&self.world, ANCHOR), saved(&self.world, TENANT));
        let rented: Vec<(LeaseName, Ends)> = tenant
            .tenancies
            .values()
            .map(|of| (LeaseName { tenant: keys()[TENANT.0], number: of.number }, of.ends))
            .collect();
        let lent: Vec<_> = anchor.leases.iter().filter(|(name, _)| name.tenant == keys()[TENANT.0]).collect();
        assert_eq!(rented.iter().map(|(name, ends)| (name, ends)).collect::<Vec<_>>(), lent, "the two disagree");
        let ends: Vec<&Ends> = anchor.leases.values().collect();
        for (at, one) in ends.iter().enumerate() {
            let meets = |other: &&&Ends| one.ports().any(|port| other.contain(SocketAddr::new(one.first.ip(), port)));
            assert!(ends[at + 1..].iter().find(meets).is_none(), "lent twice: {ends:?}");
        }
        let held = anchor.held.values().filter(|held| held.far == Some(self.tuple.mirrored())).count();
        let claimed = Self::is_claimed(&self.world, &self.tuple);
        assert_eq!(held, usize::from(claimed), "claimed here {claimed}, and held {held} times");
        self.world.check();
    }

    fn with(mut self, faults: Faults) -> Self {
        let effects = |w: &World, of: Option<(HostId, u64)>| of.map(|(host, step)| (host, step + w.at(host).effects));
        self.world.faults = Faults {
            lose: faults.lose.map(|step| step + self.world.sent),
            fail: faults.fail.map(|step| step + self.world.ops),
            crash: effects(&self.world, faults.crash),
            part: faults.part.map(|part| Parting { from: part.from + self.world.sent, ..part }),
            ..faults
        };
        self
    }

    fn says(&self, host: HostId, what: impl Fn(&MoveEvent) -> bool) -> bool {
        self.world.move_events(host).any(what)
    }
}

/// Datagrams, ops and effects of each host that the usual course takes.
fn steps() -> (u64, u64, [u64; 3]) {
    let mut scene = Scene::new(0x5eed);
    let before = (scene.world.sent, scene.world.ops, HOSTS.map(|host| scene.world.at(host).effects));
    scene.run();
    let after = HOSTS.map(|host| scene.world.at(host).effects);
    (scene.world.sent - before.0, scene.world.ops - before.1, std::array::from_fn(|at| after[at] - before.2[at]))
}

fn tried(what: impl std::fmt::Debug, test: impl FnOnce()) {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
    assert!(done.is_ok(), "{what:?}");
}

/// The usual course with a fault; then it is mended, and all is as it should be.
fn struck(faults: Faults) {
    let mut scene = Scene::new(0x5eed).with(faults);
    scene.run();
    scene.world.faults = Faults { crash: None, part: None, ..scene.world.faults };
    scene.mend();
    scene.check();
}

#[test]
fn endpoints_are_lent_and_connections_claimed_and_nothing_remains() {
    let mut scene = Scene::new(0x5eed);
    scene.run();
    assert!(Scene::is_claimed(&scene.world, &scene.tuple));
    scene.check();
    // The port is another's to ask for only when neither lease nor connection has it.
    let refused = |scene: &Scene, count: usize| {
        let taken = |event: &&MoveEvent| matches!(event, MoveEvent::NotLeased { why: Refusal::Taken, .. });
        scene.world.move_events(OTHER).filter(taken).count() == count
    };
    scene.rent(OTHER);
    scene.world.run_for(20 * SECOND);
    assert!(refused(&scene, 1), "it is lent twice");
    scene.world.at_mut(TENANT).unused = true;
    scene.world.run_for(SETTLED);
    assert!(!Scene::is_leased(&scene.world) && scene.says(TENANT, |event| matches!(event, MoveEvent::Returned { .. })));
    scene.rent(OTHER);
    scene.world.run_for(20 * SECOND);
    assert!(refused(&scene, 2), "it is lent though a connection has it");
    // Whose connection it is may have it again.
    scene.world.at_mut(TENANT).unused = false;
    scene.rent(TENANT);
    assert!(scene.world.wait(20 * SECOND, Scene::is_leased), "its own tenant cannot have it");
    scene.check();
    // The socket is closed: in a while nothing knows of it.
    scene.world.at_mut(TENANT).unused = true;
    let (now, tuple) = (scene.world.now(), scene.tuple);
    scene.world.with_node(TENANT, |node| node.handle_flow_closed(now, tuple));
    let passed_on = |scene: &Scene| {
        scene.world.at(ANCHOR).node.as_ref().map_or(0, |node| node.dependents().passed_on.len() + node.flows().count())
    };
    assert_eq!(passed_on(&scene), 2, "the anchor was not told yet");
    scene.world.run_for(2 * SECOND);
    // P-121
    assert_eq!(passed_on(&scene), 0, "it is counted though it has ended");
    assert!(!scene.world.at(ANCHOR).saved_moves.held.is_empty(), "late packets are not passed on");
    scene.world.restart(ANCHOR, SECOND);
    scene.world.run_for(3 * SECOND);
    assert_eq!(passed_on(&scene), 0, "another daemon counts what has ended");
    assert!(!scene.world.at(ANCHOR).saved_moves.held.is_empty(), "another daemon passes on no late packets");
    scene.world.run_for(SETTLED);
    assert!(scene.world.at(ANCHOR).saved_moves.held.is_empty(), "it is held for ever");
    scene.rent(OTHER);
    scene.world.run_for(20 * SECOND);
    assert!(refused(&scene, 2), "nobody has it any more");
}

#[test]
fn any_datagram_of_a_lease_is_lost() {
    let (sent, ..) = steps();
    for lose in (0..sent).step_by(stride(2)) {
        for lose_also in [0, 3] {
            tried((lose, lose_also), || struck(Faults { lose: Some(lose), lose_also, ..Faults::default() }));
        }
    }
}

#[test]
fn any_op_of_a_lease_fails() {
    let (_, ops, _) = steps();
    for fail in 0..ops {
        tried(fail, || struck(Faults { fail: Some(fail), ..Faults::default() }));
    }
}

#[test]
fn either_daemon_dies_before_any_step_of_a_lease() {
    let (.., effects) = steps();
    for host in [TENANT, ANCHOR] {
        for step in (0..effects[host.0]).step_by(stride(2)) {
            // For a moment, and for longer than a lease lasts.
            for downtime in [Duration::from_millis(15), 2 * SECOND, LIFETIME + 30 * SECOND] {
                tried((host, step, downtime), || {
                    struck(Faults { crash: Some((host, step)), downtime, ..Faults::default() });
                });
            }
        }
    }
}

#[test]
fn a_lease_runs_out_while_its_tenant_is_not_reached_and_what_was_claimed_goes_on() {
    let mut scene = Scene::new(0x5eed);
    scene.run();
    let networks = [scene.networks[TENANT.0], scene.networks[ANCHOR.0]];
    scene.world.faults.part = Some(Parting { networks, from: 0 });
    scene.world.run_for(3 * LIFETIME);
    let saved = &scene.world.at(ANCHOR).saved_moves;
    assert!(saved.leases.is_empty() && saved.held.len() == 1, "{saved:?}");
    scene.rent(OTHER);
    scene.world.run_for(20 * SECOND);
    assert!(scene.says(OTHER, |event| matches!(event, MoveEvent::NotLeased { why: Refusal::Taken, .. })));
    scene.world.faults.part = None;
    scene.world.run_for(SETTLED);
    assert!(Scene::is_claimed(&scene.world, &scene.tuple));
    scene.mend();
    scene.check();
}

#[test]
fn a_tenant_that_forgets_a_claim_as_its_lease_ends_has_the_connection_still() {
    // P-86: its daemon dies before any step of a claim, and is back when the lease is over and nothing is lent any
    // more.
    let effects = {
        let mut scene = Scene::new(0x5eed);
        scene.rent(TENANT);
        assert!(scene.world.wait(10 * SECOND, Scene::is_leased));
        let before = scene.world.at(TENANT).effects;
        scene.claim();
        scene.world.run_for(5 * SECOND);
        scene.world.at(TENANT).effects - before
    };
    let mut forgotten = 0;
    for step in 0..effects {
        tried(step, || {
            let mut scene = Scene::new(0x5eed);
            scene.rent(TENANT);
            assert!(scene.world.wait(10 * SECOND, Scene::is_leased));
            scene = scene.with(Faults {
                crash: Some((TENANT, step)),
                downtime: LIFETIME + 30 * SECOND,
                ..Faults::default()
            });
            scene.claim();
            scene.world.run_for(5 * SECOND);
            scene.world.faults.crash = None;
            scene.world.with_node(ANCHOR, |node| node.stop_lending(true));
            let saved = &scene.world.at(ANCHOR).saved_moves;
            let claimed = !saved.held.is_empty();
            let known = Scene::is_claimed(&scene.world, &scene.tuple);
            assert!(scene.world.wait(SETTLED, |w| w.at(TENANT).node.is_some()));
            assert!(scene.world.at(ANCHOR).saved_moves.leases.is_empty(), "the lease is not over");
            forgotten += usize::from(claimed && !Scene::is_claimed(&scene.world, &scene.tuple));
            // As its daemon does when it begins.
            scene.claim();
            scene.world.run_for(20 * SECOND);
            assert!(!Scene::is_leased(&scene.world), "it is lent anew");
            assert_eq!(Scene::is_claimed(&scene.world, &scene.tuple), claimed || known, "at step {step}");
            scene.check();
        });
    }
    assert!(forgotten > 0, "no step of {effects} is between the anchor's and the tenant's knowing");
}

/// How the anchor that is asked first does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Lends,
    Refuses,
    /// Its daemon is dead for a while.
    IsSilent,
}

/// Asks both anchors for a port, one after the other, as a daemon does for a program. Gives who lends it.
fn seek(first: First, faults: Faults) -> (Scene, Option<HostId>) {
    let mut scene = Scene::new(0x5eed);
    scene.world.at_mut(OTHER).config.moving.lending = scene.world.at(ANCHOR).config.moving.lending.clone();
    scene.world.restart(OTHER, Duration::from_millis(1));
    scene.world.run_for(SECOND);
    match first {
        First::Lends => {}
        First::Refuses => scene.world.with_node(ANCHOR, |node| node.stop_lending(true)),
        First::IsSilent => scene.world.restart(ANCHOR, 30 * SECOND),
    }
    scene = scene.with(faults);
    let mut search = Search::new([ANCHOR, OTHER].map(|host| Some(keys()[host.0])).into());
    while let Some(Some(anchor)) = search.pop() {
        let host = if anchor == keys()[ANCHOR.0] { ANCHOR } else { OTHER };
        let (now, ends) = (scene.world.now(), Ends { first: "0.0.0.0:0".parse().expect("an endpoint"), count: COUNT });
        search.note_asked(now);
        let mut lease = None;
        scene.world.with_node(TENANT, |node| lease = node.lease(now, anchor, Some(place(host)), ends));
        // A program whose daemon has died is answered by nobody.
        let Some(lease) = lease else { return (scene, None) };
        let outcome = |w: &World| {
            w.move_events(TENANT).find_map(|event| match event {
                MoveEvent::Leased { number, .. } if *number == lease.value() => Some(Ok(())),
                MoveEvent::NotLeased { number, why, .. } if *number == lease.value() => Some(Err(*why)),
                _ => None,
            })
        };
        scene.world.wait(30 * SECOND, |w| outcome(w).is_some());
        match outcome(&scene.world) {
            Some(Ok(())) => return (scene, Some(host)),
            Some(Err(why)) => {
                let refused = Refused { anchor, why, has_begun: false, has_less: false };
                let then = search.handle_refused(scene.world.now(), refused);
                assert!(matches!(then, Then::Next { late: false } | Then::GivenUp), "{then:?}");
            }
            None => return (scene, None),
        }
    }
    (scene, None)
}

/// Nothing is lent to the tenant that it does not have.
fn nothing_stays_lent(scene: &mut Scene) {
    scene.world.run_for(SETTLED);
    let tenant = keys()[TENANT.0];
    let lent = [ANCHOR, OTHER].into_iter().flat_map(|host| {
        let leases = scene.world.at(host).saved_moves.leases.keys();
        leases.filter(|name| name.tenant == tenant).map(move |name| (host, name.number)).collect::<Vec<_>>()
    });
    let lent: Vec<(HostId, u64)> = lent.collect();
    let had = scene
        .world
        .at(TENANT)
        .saved_moves
        .tenancies
        .values()
        .map(|of| (if of.anchor == keys()[ANCHOR.0] { ANCHOR } else { OTHER }, of.number));
    assert_eq!(lent, had.collect::<Vec<_>>(), "lent, and had");
    scene.world.check();
}

#[test]
fn anchors_are_asked_one_after_the_other_and_nothing_stays_lent_that_nobody_has() {
    for (first, by) in [(First::Lends, ANCHOR), (First::Refuses, OTHER), (First::IsSilent, OTHER)] {
        let (mut scene, lender) = seek(first, Faults::default());
        assert_eq!(lender, Some(by), "{first:?}");
        let (sent, ops) = (scene.world.sent, scene.world.ops);
        let effects = HOSTS.map(|host| scene.world.at(host).effects);
        nothing_stays_lent(&mut scene);
        for lose in (0..sent).step_by(stride(3)) {
            for lose_also in [0, 3] {
                tried((first, lose, lose_also), || {
                    let (mut scene, lender) = seek(first, Faults { lose: Some(lose), lose_also, ..Faults::default() });
                    assert!(lender.is_some(), "nobody lends it");
                    nothing_stays_lent(&mut scene);
                });
            }
        }
        for fail in 0..ops {
            tried((first, "fails", fail), || {
                nothing_stays_lent(&mut seek(first, Faults { fail: Some(fail), ..Faults::default() }).0);
            });
        }
        for host in HOSTS {
            for step in (0..effects[host.0]).step_by(stride(3)) {
                tried((first, host, step), || {
                    let faults = Faults { crash: Some((host, step)), downtime: 2 * SECOND, ..Faults::default() };
                    nothing_stays_lent(&mut seek(first, faults).0);
                });
            }
        }
    }
}

#[test]
fn leases_over_links_that_lose_and_double() {
    let mut seeds = Random::new(0x1ea5e);
    for _ in 0..20 {
        let seed = seeds.bits();
        println!("seed {seed:#x}");
        tried(format!("seed {seed:#x}"), || {
            let mut scene = Scene::new(seed);
            scene.world.set_links(Link { loss: 100, duplicate: 100, reorder: 50, ..Link::default() });
            scene.run();
            scene.mend();
            scene.world.set_links(Link::default());
            scene.check();
        });
    }
}

#[test]
fn an_anchor_that_is_asked_at_an_address_of_either_family_takes_its_tenant_to_be_where_it_is() {
    // P-19: who begins a handshake need not know from which of its addresses.
    let six = ["2001:db8:1::2", "2001:db8:2::2"];
    for (at, local, remote) in [
        ("[2001:db8:2::2]:2031", "[2001:db8:2::2]:8000", "[2001:db8:9::9]:40000"),
        ("10.2.0.2:2031", "10.2.0.2:8000", "10.9.9.9:40000"),
    ] {
        let mut scene = Scene::new(0x5eed);
        // Another one, by which nothing goes, comes before the one of the path.
        scene.world.attach(TENANT, scene.networks[TENANT.0], "10.0.0.7");
        if at.starts_with('[') {
            for host in [TENANT, ANCHOR] {
                scene.world.attach(host, scene.networks[host.0], six[host.0]);
            }
        }
        let endpoint = |text: &str| -> SocketAddr { text.parse().expect("an endpoint") };
        let (local, remote) = (endpoint(local), endpoint(remote));
        let (now, anchor) = (scene.world.now(), keys()[ANCHOR.0]);
        scene.world.with_node(TENANT, |node| {
            node.lease(now, anchor, Some(endpoint(at)), Ends { first: local, count: COUNT });
        });
        assert!(scene.world.wait(10 * SECOND, Scene::is_leased), "{at}");
        scene.tuple = FlowTuple { transport: Transport::Tcp, local, remote };
        scene.claim();
        let tuple = scene.tuple;
        assert!(scene.world.wait(10 * SECOND, |w| Scene::is_claimed(w, &tuple)), "{at}");
        scene.world.run_for(5 * SECOND);
        for host in [TENANT, ANCHOR] {
            let node = scene.world.at(host).node.as_ref().expect("a daemon");
            let peer = node.peers().next().expect("a peer");
            let rewritten = matches!(peer.carrier, Carrier::Rewrite | Carrier::FollowRewrite);
            assert!(!peer.translated && rewritten, "{at}: {host:?} has {peer:?}");
        }
    }
}

#[test]
fn a_connection_of_anothers_is_not_a_donors_to_give_to_the_anchor() {
    let mut scene = Scene::new(7);
    scene.run();
    let far = scene.tuple.mirrored();
    let owner = |world: &World| {
        let node = world.at(ANCHOR).node.as_ref()?;
        let peer = node.flows().find(|flow| flow.tuple == far)?.entry?.peer;
        node.peers().find(|known| known.id == peer).map(|known| known.key)
    };
    let before = owner(&scene.world).expect("it is passed on to the tenant");
    scene.world.set_talk(None);
    // A member of the community makes a socket up that has the names of the far end's, and says that it holds that
    // itself.
    let made_up = scene.world.movable(OTHER, OTHER, 99, far);
    scene.world.give(made_up, OTHER, ANCHOR, 100).expect("it is asked for");
    scene.world.run_for(10 * SECOND);
    assert_eq!(owner(&scene.world), Some(before));
    assert!(Scene::is_claimed(&scene.world, &scene.tuple));
}
