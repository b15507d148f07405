//! One fault at every step of a scenario: the scenario runs once to count its steps, then once for each of them.

use std::time::Duration;

use whimbrel_protocol::{Config, Event};
use whimbrel_sim::{Carried, Faults, FlowId, HostId, Kind, Verdict, World};

use crate::common::{AWAY, FURTHER, HOME, INSIDE, SECOND, SERVICE, Two, introduced, settle_as, stride};

/// A pause between the steps of a scenario: long enough to get over a fault.
const PAUSE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// Home, away, home.
    ThereAndBack,
    /// Home, behind a NAT, behind another, away.
    Nats,
    /// Both networks at once for a while.
    Overlap,
    /// The server moves, then the client, then the server goes back.
    Both,
    /// The client says that it goes to sleep, and wakes elsewhere; then again, and wakes where it was.
    Sleep,
    /// Two networks of which one is in use and the other kept ready: the first fails, comes back, and fails
    /// again; then the server moves.
    Ready,
    /// The same two networks, and a flow that goes by the other; that fails and comes back, then the first fails, and
    /// in the end the flow goes with the others again.
    Placed,
    /// Both go to sleep, the client wakes elsewhere, and later the server where it was.
    BothSleep,
}

const ALL: [Scenario; 8] = [
    Scenario::ThereAndBack,
    Scenario::Nats,
    Scenario::Overlap,
    Scenario::Both,
    Scenario::Ready,
    Scenario::Placed,
    Scenario::Sleep,
    Scenario::BothSleep,
];

struct Run {
    two: Two,
    flows: Vec<FlowId>,
}

/// Runs a scenario up to its last step.
fn run(scenario: Scenario, faults: Faults) -> Run {
    let keep_paths = matches!(scenario, Scenario::Ready);
    let has_two = keep_paths || matches!(scenario, Scenario::Placed);
    let mut two = Two::nowhere(7, Config { keep_paths, ..Config::default() }, Config::default());
    two.world.faults = faults;
    if has_two {
        two.world.attach(two.client, two.away, AWAY);
    }
    two.world.attach(two.client, two.home, HOME);
    let flows: Vec<FlowId> = (0..2).map(|_| two.world.connect(two.client, SERVICE)).collect();
    two.world.set_beat(Some(Duration::from_millis(29)));
    two.world.run_for(2 * PAUSE);
    // What moves before it is introduced is lost.
    two.world.wait(20 * SECOND, |w| flows.iter().all(|flow| w.introduced(*flow)));
    let Two { world, client, server, home, away, further, far, nat, second_nat } = &mut two;
    match scenario {
        Scenario::ThereAndBack => {
            world.move_to(*client, *away, AWAY);
            world.run_for(PAUSE);
            world.move_to(*client, *home, HOME);
        }
        Scenario::Nats => {
            world.move_to(*client, *nat, INSIDE);
            world.run_for(PAUSE);
            world.move_to(*client, *second_nat, INSIDE);
            world.run_for(PAUSE);
            world.move_to(*client, *away, AWAY);
        }
        Scenario::Overlap => {
            world.attach(*client, *away, AWAY);
            world.run_for(PAUSE);
            world.detach(*client, HOME);
            world.run_for(PAUSE);
            world.attach(*client, *home, HOME);
        }
        Scenario::Both => {
            world.move_to(*server, *further, FURTHER);
            world.run_for(PAUSE);
            world.move_to(*client, *away, AWAY);
            world.run_for(PAUSE);
            world.move_to(*server, *far, "10.9.0.1");
        }
        Scenario::Ready => {
            world.detach(*client, HOME);
            world.run_for(PAUSE);
            world.attach(*client, *home, HOME);
            world.run_for(PAUSE);
            world.detach(*client, HOME);
            world.run_for(PAUSE);
            world.move_to(*server, *further, FURTHER);
        }
        Scenario::Placed => {
            world.place(flows[0], 0, Some(AWAY));
            world.run_for(PAUSE);
            world.detach(*client, AWAY);
            world.run_for(PAUSE);
            world.attach(*client, *away, AWAY);
            world.run_for(PAUSE);
            world.place(flows[1], 0, Some(AWAY));
            world.run_for(PAUSE);
            world.detach(*client, HOME);
            world.run_for(PAUSE);
            world.attach(*client, *home, HOME);
            world.hand_off(*client, Some(HOME));
            world.run_for(PAUSE);
            world.place(flows[0], 0, None);
        }
        Scenario::Sleep => {
            world.part(*client);
            world.run_for(PAUSE);
            world.detach(*client, HOME);
            world.run_for(8 * PAUSE);
            world.attach(*client, *away, AWAY);
            world.resume(*client);
            world.run_for(PAUSE);
            world.part(*client);
            world.run_for(8 * PAUSE);
            world.resume(*client);
        }
        Scenario::BothSleep => {
            world.part(*client);
            world.run_for(PAUSE);
            world.part(*server);
            world.run_for(PAUSE);
            world.move_to(*client, *away, AWAY);
            world.run_for(10 * PAUSE);
            world.resume(*client);
            world.run_for(8 * PAUSE);
            world.resume(*server);
            world.run_for(10 * PAUSE);
        }
    }
    Run { two, flows }
}

/// Runs a scenario to its end; all must be well.
fn survives(scenario: Scenario, faults: Faults, within: Duration) -> World {
    let Run { mut two, .. } = run(scenario, faults);
    // A daemon that is away when it is asked is not asked again for long (P-10).
    let nobody = two.world.events.iter().any(|(_, _, event)| matches!(event, Event::NobodyThere { .. }));
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        two.world.run_for(PAUSE);
        for host in [two.client, two.server] {
            // Whose daemon died as it was to go on had no answer, and is told again.
            if two.world.at(host).node.as_ref().is_some_and(|node| node.is_suspended()) {
                two.world.resume(host);
            }
        }
        if !nobody {
            two.world.assert_delivering(within);
        }
        two.world.check();
    }));
    assert!(done.is_ok(), "{scenario:?} with {faults:?}");
    two.world
}

#[test]
fn without_a_fault() {
    for scenario in ALL {
        survives(scenario, Faults::default(), SECOND);
    }
}

#[test]
fn any_datagram_or_segment_is_lost() {
    // P-12
    for scenario in ALL {
        let count = survives(scenario, Faults::default(), SECOND).sent;
        for lose in (0..count).step_by(stride(2)) {
            survives(scenario, Faults { lose: Some(lose), ..Faults::default() }, 3 * SECOND);
        }
    }
}

#[test]
fn any_three_in_a_row_are_lost() {
    for scenario in ALL {
        let count = survives(scenario, Faults::default(), SECOND).sent;
        // Where all three questions are lost, nobody is there (P-10).
        for lose in (2..count).step_by(stride(2)) {
            let faults = Faults { lose: Some(lose), lose_also: 2, ..Faults::default() };
            survives(scenario, faults, 3 * SECOND);
        }
    }
}

#[test]
fn either_daemon_dies_before_any_step_and_comes_back() {
    // P-34
    for scenario in ALL {
        for host in [HostId(0), HostId(1)] {
            let effects = survives(scenario, Faults::default(), SECOND).at(host).effects;
            for step in (0..effects).step_by(stride(6)) {
                for downtime in [Duration::from_millis(15), 2 * SECOND] {
                    let faults = Faults { crash: Some((host, step)), downtime, ..Faults::default() };
                    survives(scenario, faults, 70 * SECOND);
                }
            }
        }
    }
}

#[test]
fn any_op_fails() {
    for scenario in ALL {
        let count = survives(scenario, Faults::default(), SECOND).ops;
        for fail in (0..count).step_by(stride(3)) {
            let Run { mut two, flows } = run(scenario, Faults { fail: Some(fail), ..Faults::default() });
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                two.world.run_for(PAUSE);
                let missing = two.world.undelivered(8 * SECOND);
                // What could not be made movable is lost where it was; everything else lives.
                let bad: Vec<_> = missing.iter().filter(|(flow, _)| two.world.introduced(*flow)).collect();
                assert!(bad.is_empty(), "{bad:?}");
                two.world.check();
                let lost = flows.iter().filter(|flow| !two.world.introduced(**flow)).count();
                assert!(lost <= 1);
            }));
            assert!(done.is_ok(), "{scenario:?}, op {fail} fails");
        }
    }
}

#[test]
fn either_host_vanishes_before_any_step() {
    for scenario in ALL {
        for host in [HostId(0), HostId(1)] {
            let effects = survives(scenario, Faults::default(), SECOND).at(host).effects;
            for step in (0..effects).step_by(stride(9)) {
                let Run { mut two, .. } = run(scenario, Faults { vanish: Some((host, step)), ..Faults::default() });
                two.world.set_beat(None);
                let before = two.world.datagrams();
                two.world.run_for(3600 * SECOND);
                let sent = two.world.datagrams() - before;
                assert!(sent < 400, "{sent} datagrams in an hour; {scenario:?}, {host:?} vanishes before {step}");
                // The other host goes on with its life: its flows wait.
                two.world.check_except(&[Kind::Reset]);
            }
        }
    }
}

#[test]
fn a_daemon_killed_at_any_time_of_a_move_is_carried_rewritten_in_the_end() {
    for client_dies in [true, false] {
        for after in (0..140).step_by(4) {
            let (mut two, flows) = Two::flowing(9006, 1);
            two.world.move_to(two.client, two.away, AWAY);
            two.world.run_for(Duration::from_millis(after));
            let host = if client_dies { two.client } else { two.server };
            two.world.restart(host, Duration::from_millis(300));
            two.world.run_for(60 * SECOND);
            let carried = two.world.flow(flows[0]).carried;
            assert_eq!(carried, [Some(Carried::Rewritten); 2], "client: {client_dies}, killed after {after} ms");
            two.world.check();
        }
    }
}

#[test]
fn where_nothing_has_moved_a_dead_daemon_at_the_other_end_does_no_harm() {
    // P-39: the network goes and comes back, while the peer's daemon is away for good; behind a NAT as well.
    for inside in [false, true] {
        let (Two { mut world, client, server, home, nat, .. }, flows) =
            if inside { Two::flowing_inside(9010, 2) } else { Two::flowing(9010, 2) };
        let (network, address) = if inside { (nat, INSIDE) } else { (home, HOME) };
        world.crash(server);
        world.run_for(SECOND);
        world.assert_delivering(SECOND);
        world.detach(client, address);
        world.run_for(SECOND);
        world.attach(client, network, address);
        world.assert_delivering(SECOND);
        // Nothing is under way when it happens again: the end that came back asks.
        world.set_beat(None);
        world.run_for(10 * SECOND);
        world.detach(client, address);
        world.run_for(SECOND);
        world.attach(client, network, address);
        world.run_for(2 * SECOND);
        assert!(flows.iter().all(|flow| world.verdict(*flow, 0) == Verdict::Native));
        // It is back: the client may move.
        world.boot(server);
        world.run_for(60 * SECOND);
        world.check();
    }
}

#[test]
fn who_is_native_again_without_an_answer_stays_so_where_there_is_another_family() {
    // P-39, P-53
    let mut two = Two::new(9012);
    two.world.attach(two.server, two.far, "2001:db8:9::1");
    two.world.attach(two.client, two.home, "2001:db8:1::2");
    let flows: Vec<FlowId> = (0..2).map(|_| two.world.connect(two.client, SERVICE)).collect();
    two.world.set_beat(Some(Duration::from_millis(50)));
    introduced(&mut two.world, &flows);
    two.world.run_for(SECOND);
    two.world.crash(two.server);
    two.world.detach_all(two.client);
    two.world.run_for(SECOND);
    two.world.attach(two.client, two.home, HOME);
    two.world.attach(two.client, two.home, "2001:db8:1::2");
    for _ in 0..60 {
        two.world.assert_delivering(SECOND);
        two.world.run_for(SECOND);
    }
    assert!(flows.iter().all(|flow| two.world.verdict(*flow, 0) == Verdict::Native));
    two.world.check();
}

#[test]
fn a_second_network_does_no_harm_while_the_other_end_has_no_daemon() {
    // P-38: the first goes on carrying.
    let (Two { mut world, client, server, away, .. }, flows) = Two::flowing(9011, 2);
    world.crash(server);
    world.run_for(SECOND);
    world.attach(client, away, AWAY);
    world.run_for(300 * SECOND);
    world.assert_delivering(SECOND);
    settle_as(&mut world, &flows, Carried::Native);
    world.check();
}
