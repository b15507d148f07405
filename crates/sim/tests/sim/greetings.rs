//! What the other end of a connection says of itself in the handshake of TCP (P-242, P-243).

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_protocol::{Config, Event, FlowState, Greeting};
use whimbrel_sim::{Access, Filter, FlowId, HostId, World};
use whimbrel_wire::Transport;

use crate::common::{HOME, INSIDE, SECOND, SERVICE, Two, address};

/// The links' of both ends, there and back.
const ROUND_TRIP: Duration = Duration::from_millis(20);
const MINUTE: Duration = Duration::from_secs(60);

/// The data plane of an end has heard the option.
fn greet(world: &mut World, flow: FlowId, end: usize) {
    let now = world.now();
    let (host, tuple) = (world.flow(flow).hosts[end], world.flow(flow).tuples[end]);
    let greeting = Greeting { near_translated: end == 0, far_translated: false };
    world.with_node(host, |node| node.handle_greeting(now, tuple, greeting));
}

/// Both ends have.
fn connect(world: &mut World, client: HostId, greeted: bool) -> FlowId {
    let flow = world.connect(client, SERVICE);
    if greeted {
        greet(world, flow, 0);
        greet(world, flow, 1);
    }
    flow
}

/// A server that can be asked by nobody, since its firewall lets in what answers it alone, and the service's port.
fn shut(seed: u64) -> Two {
    let mut two = Two::new(seed);
    *two.world.access(two.far) = Access::Filtered(Filter::new());
    two.world.set_beat(Some(Duration::from_millis(50)));
    two
}

#[test]
fn a_silent_host_that_says_that_it_is_there_is_asked_once_in_each_silence() {
    // P-242: whoever is on the path can say so of it, as often as there are connections.
    let mut world = World::new(1);
    let [home, far] = std::array::from_fn(|_| world.network(Access::Open));
    let client = world.host("client");
    let server = world.bare_host("server");
    world.at_mut(server).answers_icmp = false;
    world.attach(client, home, HOME);
    world.attach(server, far, "10.9.0.1");
    let nobody = |world: &World| -> Vec<u64> {
        let pause = |event: &Event| match event {
            Event::NobodyThere { again_in, .. } => Some(again_in.as_secs()),
            _ => None,
        };
        world.events.iter().filter_map(|(_, _, event)| pause(event)).collect()
    };
    // As many as before while it is being asked.
    let first = world.connect(client, SERVICE);
    greet(&mut world, first, 0);
    world.run_for(30 * SECOND);
    assert_eq!((world.datagrams(), nobody(&world)), (3, vec![600]));
    for _ in 0..20 {
        let flow = world.connect(client, SERVICE);
        greet(&mut world, flow, 0);
        greet(&mut world, flow, 0);
        world.run_for(30 * SECOND);
        world.close(flow);
    }
    assert_eq!((world.datagrams(), nobody(&world)), (5, vec![600, 1200]), "and it is left alone for longer");
    world.close(first);
    world.run_for(Duration::from_secs(3 * 86_400));
    assert_eq!(world.at(client).node.as_ref().expect("a node").entries(), 0);
    world.check();
}

#[test]
fn a_host_that_was_silent_is_met_with_the_first_connection_that_says_that_it_is_there() {
    // P-242
    for greeted in [true, false] {
        let Two { mut world, client, far, .. } = Two::new(2);
        world.set_udp(far, false);
        let before = world.connect(client, SERVICE);
        world.run_for(30 * SECOND);
        world.set_udp(far, true);
        let flow = connect(&mut world, client, greeted);
        assert_eq!(world.wait(ROUND_TRIP * 8, |w| w.introduced(flow)), greeted);
        world.run_for(MINUTE);
        // What had waited as well.
        assert_eq!([flow, before].map(|flow| world.introduced(flow)), [greeted; 2]);
        world.check();
    }
}

#[test]
fn a_host_that_cannot_be_asked_asks_who_has_opened_a_connection() {
    // P-243
    for inside in [false, true] {
        for greeted in [true, false] {
            let mut two = shut(3);
            if inside {
                two.world.move_to(two.client, two.nat, INSIDE);
            }
            let flow = connect(&mut two.world, two.client, greeted);
            two.world.run_for(MINUTE);
            assert_eq!(two.world.introduced(flow), greeted, "inside: {inside}");
            if greeted {
                let (client, server) = (two.world.view(flow, 0), two.world.view(flow, 1));
                let seen = [client, server].map(|view| view.and_then(|view| view.greeting));
                assert!(seen.iter().all(Option::is_some), "{seen:?}");
                // So is what is opened later.
                let later = connect(&mut two.world, two.client, true);
                assert!(two.world.wait(10 * SECOND, |w| w.introduced(later)), "inside: {inside}");
            } else {
                assert_eq!(two.world.view(flow, 1).expect("a flow").state, FlowState::Unknown);
            }
            two.world.check();
        }
    }
}

#[test]
fn what_is_introduced_by_its_opener_costs_nothing_more() {
    // P-243
    let sent = [false, true].map(|greeted| {
        let Two { mut world, client, .. } = Two::new(4);
        let flows: Vec<FlowId> = (0..5).map(|_| connect(&mut world, client, greeted)).collect();
        world.run_for(5 * SECOND);
        assert!(flows.iter().all(|flow| world.introduced(*flow)));
        world.check();
        world.datagrams()
    });
    assert_eq!(sent[0], sent[1]);
}

#[test]
fn who_connects_from_many_addresses_has_no_more_hosts_asked_than_may_be() {
    // P-243, P-10
    let config = Config { questions_per_second: 5, ..Config::default() };
    let mut world = World::new(5);
    world.tracing = false;
    let [outside, far] = std::array::from_fn(|_| world.network(Access::Open));
    let server = world.host_with("server", config);
    world.attach(server, far, "10.9.0.1");
    let crowd = world.bare_host("crowd");
    let mut flows = Vec::new();
    for number in 0..1000u16 {
        let [high, low] = number.to_be_bytes();
        world.attach(crowd, outside, &format!("10.1.{high}.{low}"));
        let source = SocketAddr::new(address(&format!("10.1.{high}.{low}")), 4000);
        let flow = world.connect_at(crowd, source, SERVICE, Transport::Tcp);
        greet(&mut world, flow, 1);
        flows.push(flow);
        world.run_for(Duration::from_millis(10));
    }
    // The first of them are two seconds old after two.
    assert!((35..=50).contains(&world.datagrams()), "{} questions in ten seconds", world.datagrams());
    // At 64 addresses at a time, three times each; those wait on while they are silent.
    world.run_for(MINUTE);
    assert!(world.datagrams() <= 64 * 3, "{} questions", world.datagrams());
    // What is gone before it is its turn is not asked for.
    flows.into_iter().for_each(|flow| world.close(flow));
    let before = world.datagrams();
    world.run_for(MINUTE);
    assert!(world.datagrams() - before <= 200, "{} questions after that", world.datagrams() - before);
    world.run_for(Duration::from_secs(3 * 86_400));
    assert_eq!(world.at(server).node.as_ref().expect("a node").entries(), 0);
    world.check();
}
