//! Whole processes that change hosts with their connections (decision 0020), with one fault at every step.

use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Config, Moving};
use whimbrel_sim::{Access, ConnectionId, Drain, Faults, HostId, Standing, World};
use whimbrel_wire::{FlowTuple, Transport};

use crate::common::{SECOND, stride};

const DONOR: HostId = HostId(0);
const ACCEPTOR: HostId = HostId(1);
const THIRD: HostId = HostId(2);
const HOSTS: [HostId; 3] = [DONOR, ACCEPTOR, THIRD];
/// Long enough for whatever is retried.
const SETTLED: Duration = Duration::from_secs(150);

/// Who holds the connections of the process, that which decides first.
const HOLDERS: [&[HostId]; 4] = [
    &[THIRD, THIRD, THIRD],
    // What has its far end held by the donor itself, and by the acceptor.
    &[DONOR, THIRD, DONOR],
    &[THIRD, DONOR, ACCEPTOR],
    &[ACCEPTOR, THIRD],
];

/// Three hosts, and a process of the donor's with connections.
struct Scene {
    world: World,
    process: usize,
    parts: Vec<ConnectionId>,
}

fn key(host: usize) -> PublicKey {
    let mut world = World::new(1);
    (0..=host).for_each(|_| {
        world.bare_host("somebody");
    });
    world.at(HostId(host)).public_key()
}

impl Scene {
    fn new(holders: &[HostId]) -> Self {
        let mut world = World::new(0x5eed);
        world.allow_datagrams(8000);
        let moving = Moving { enabled: true, processes: true, accept_from: vec![key(0), key(1)], ..Moving::default() };
        for (number, name) in ["donor", "acceptor", "third"].into_iter().enumerate() {
            let network = world.network(Access::Open);
            let host = world.host_with(name, Config { moving: moving.clone(), ..Config::default() });
            world.attach(host, network, &format!("10.{}.0.2", number + 1));
        }
        let mut parts = Vec::new();
        for (number, holder) in holders.iter().enumerate() {
            let (local, remote) = ("10.1.0.2:22", format!("10.9.9.9:{}", 40_000 + number));
            let (local, remote) = (local.parse().expect("an endpoint"), remote.parse().expect("an endpoint"));
            let tuple = FlowTuple { transport: Transport::Tcp, local, remote };
            let name = 0x1234_5678_9abc_de00 + number as u64;
            if *holder != DONOR {
                world.lend(*holder, name, tuple, DONOR);
            }
            parts.push(world.movable(DONOR, *holder, name, tuple));
        }
        let process = world.process(DONOR, parts.clone());
        // The two know each other.
        let flow = world.connect(DONOR, "10.2.0.2:80");
        assert!(world.wait(15 * SECOND, |w| w.introduced(flow)), "not introduced");
        world.set_talk(Some(Duration::from_millis(17)));
        world.run_for(SECOND);
        Self { world, process, parts }
    }

    /// With faults whose steps count from here.
    fn with(mut self, faults: Faults) -> Self {
        let effects = |w: &World, of: Option<(HostId, u64)>| of.map(|(host, step)| (host, step + w.at(host).effects));
        self.world.faults = Faults {
            lose: faults.lose.map(|step| step + self.world.sent),
            fail: faults.fail.map(|step| step + self.world.ops),
            crash: effects(&self.world, faults.crash),
            ..faults
        };
        self
    }

    fn give(&mut self) {
        self.world.give_process(self.process, DONOR, ACCEPTOR);
    }

    fn runs_at(&self) -> Vec<HostId> {
        let copies = self.world.at_process(self.process).copies.iter();
        copies.filter(|(_, standing)| **standing == Standing::Runs).map(|(host, _)| *host).collect()
    }

    /// All that it had is with it at a host.
    fn is_whole_at(&self, host: HostId) -> bool {
        let there = |part: &ConnectionId| self.world.is_whole(*part) && self.world.connection(*part).led == host;
        self.runs_at() == [host] && self.parts.iter().all(there)
    }

    /// It goes on at one host, or is lost. Each of its connections goes on there, or is over, and both ends know that.
    fn check_settled(&mut self) {
        let runs_at = self.runs_at();
        assert!(
            self.world.is_at_rest(self.process),
            "it is on its way still: {:?}",
            self.world.at_process(self.process)
        );
        assert!(runs_at.len() <= 1, "it goes on at {runs_at:?}");
        for part in &self.parts {
            let of = self.world.connection(*part);
            let whole = self.world.is_whole(*part) && runs_at == [of.led];
            assert!(whole || self.world.is_over(*part), "the process is at {runs_at:?}, and {of:?}");
        }
        let standing = self.world.at_process(self.process).copies.values().filter(|of| **of == Standing::Still).count();
        assert_eq!(standing, 0, "it stands still for ever: {:?}", self.world.at_process(self.process));
        for host in HOSTS {
            let saved = &self.world.at(host).saved_moves;
            assert!(saved.is_settled(), "{host:?} has left: {saved:?}");
        }
        self.world.check();
    }
}

/// A whole move, with a fault.
fn run(holders: &[HostId], faults: Faults) -> Scene {
    let mut scene = Scene::new(holders).with(faults);
    scene.give();
    scene.world.run_for(SETTLED);
    scene
}

/// All datagrams, ops and effects that a move takes.
fn steps(holders: &[HostId]) -> (u64, u64, [u64; 3]) {
    let mut scene = Scene::new(holders);
    let before = (scene.world.sent, scene.world.ops, HOSTS.map(|host| scene.world.at(host).effects));
    scene.give();
    scene.world.run_for(8 * SECOND);
    assert!(scene.is_whole_at(ACCEPTOR), "{holders:?}: it does not move: {:?}", scene.world.at_process(scene.process));
    let after = HOSTS.map(|host| scene.world.at(host).effects);
    (scene.world.sent - before.0, scene.world.ops - before.1, std::array::from_fn(|at| after[at] - before.2[at]))
}

fn tried(what: impl std::fmt::Debug, test: impl FnOnce()) {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
    assert!(done.is_ok(), "{what:?}");
}

#[test]
fn a_process_moves_with_all_that_it_has_whatever_the_order_in_which_nodes_are_seen_to() {
    for drain in Drain::ALL {
        for holders in HOLDERS {
            tried((drain, holders), || {
                let mut scene = Scene::new(holders);
                scene.world.drain = drain;
                scene.give();
                scene.world.run_for(SETTLED);
                assert!(scene.is_whole_at(ACCEPTOR));
                scene.check_settled();
            });
        }
    }
}

#[test]
fn a_process_goes_with_all_that_it_has_whatever_is_lost_on_the_way() {
    for holders in HOLDERS {
        let (sent, ..) = steps(holders);
        for lose in (0..sent).step_by(stride(3)) {
            for lose_also in [0, 3] {
                tried((holders, lose, lose_also), || {
                    let mut scene = run(holders, Faults { lose: Some(lose), lose_also, ..Faults::default() });
                    assert!(scene.is_whole_at(ACCEPTOR));
                    scene.check_settled();
                });
            }
        }
    }
}

#[test]
fn a_process_is_in_one_place_with_what_is_left_of_it_whatever_step_fails() {
    for holders in HOLDERS {
        let (_, ops, _) = steps(holders);
        for fail in 0..ops {
            tried((holders, fail), || {
                run(holders, Faults { fail: Some(fail), ..Faults::default() }).check_settled();
            });
        }
    }
}

#[test]
fn a_process_is_in_one_place_whichever_daemon_dies_before_any_step() {
    for holders in HOLDERS {
        let (.., effects) = steps(holders);
        for host in HOSTS {
            for step in (0..effects[host.0]).step_by(stride(3)) {
                for downtime in [Duration::from_millis(15), 2 * SECOND, 40 * SECOND] {
                    tried((holders, host, step, downtime), || {
                        run(holders, Faults { crash: Some((host, step)), downtime, ..Faults::default() })
                            .check_settled();
                    });
                }
            }
        }
    }
}
