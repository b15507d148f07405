//! Hosts move; connections stay.

use std::time::Duration;

use whimbrel_sim::{Access, FlowId, HostId, NetworkId, World};

const SECOND: Duration = Duration::from_secs(1);

struct Two {
    world: World,
    client: HostId,
    server: HostId,
    home: NetworkId,
}

/// A client at 10.1.0.2, a server at 10.9.0.1.
fn two(seed: u64) -> Two {
    let mut world = World::new(seed);
    let home = world.network(Access::Open);
    let core = world.network(Access::Open);
    let client = world.host("client");
    let server = world.host("server");
    world.attach(client, home, "10.1.0.2");
    world.attach(server, core, "10.9.0.1");
    Two { world, client, server, home }
}

fn introduced(world: &mut World, flow: FlowId) {
    assert!(world.wait(10 * SECOND, |w| w.introduced(flow)), "not introduced");
}

#[test]
fn a_move_between_public_addresses() {
    let Two { mut world, client, .. } = two(1);
    let away = world.network(Access::Open);
    let flow = world.connect(client, "10.9.0.1:80");
    world.set_beat(Some(Duration::from_millis(7)));
    introduced(&mut world, flow);
    world.assert_delivering(SECOND);
    world.move_to(client, away, "10.2.0.2");
    world.assert_delivering(SECOND);
    world.run_for(5 * SECOND);
    world.assert_delivering(SECOND);
    world.check();
    let _ = (world.peer(client), world.now());
}
