//! A laptop that goes from networks of one address family to those of the other: what is known of the server's
//! addresses is not forgotten (P-215).

use super::world::{LONG, SOME, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{FlowPair, Gateway, Lab, Result, SiteSpec};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "family-kept",
        "IPv4, IPv6 alone with a new connection, IPv4 alone with another, IPv6 alone: all connections go on",
        |lab| in_turn(lab, site("b").v6_only(), site("c").v4_only(), site("t").v6_only()),
    ),
    scenario(
        "family-kept-nat",
        "the same; the IPv4 network is behind a home router, and the last network has both families",
        |lab| {
            in_turn(
                lab,
                site("b").v6_only(),
                site("c").v4_only().behind(Gateway::Nat { random_ports: true }),
                site("t"),
            )
        },
    ),
];

fn in_turn(lab: &mut Lab, six: SiteSpec, four: SiteSpec, last: SiteSpec) -> Result<()> {
    let mut world = World::new(lab, site("a").v4_only(), six)?;
    let (four, last) = (world.add(lab, four)?, world.add(lab, last)?);
    let (mut client, mut server) = world.daemons()?;
    let mut pairs: Vec<FlowPair> = vec![world.stream()?];
    client.wait_introduced(&pairs[0], LONG)?;

    step("IPv6 alone: the connection goes on, and another is opened over IPv6");
    let six = world.b.clone();
    world.roam(&six)?;
    all_go_on(&world, &mut pairs)?;
    pairs.push(world.stream_to(world.at_server.ipv6()?)?);
    client.wait_introduced(&pairs[1], LONG)?;
    all_go_on_later(&mut pairs)?;

    step("IPv4 alone");
    world.roam(&four)?;
    all_go_on(&world, &mut pairs)?;
    pairs.push(world.stream()?);
    client.wait_introduced(&pairs[2], LONG)?;
    all_go_on_later(&mut pairs)?;

    step("the daemon is started anew, elsewhere");
    client.stop()?;
    world.leaves_router(&pairs[2]);
    world.roam(&last)?;
    client.restart()?;
    all_go_on_later(&mut pairs)?;
    for pair in pairs {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}

/// All go on promptly after the last move.
fn all_go_on(world: &World, pairs: &mut [FlowPair]) -> Result<()> {
    pairs.iter_mut().try_for_each(|pair| world.goes_on(pair))
}

/// All receive more.
fn all_go_on_later(pairs: &mut [FlowPair]) -> Result<()> {
    pairs.iter_mut().try_for_each(|pair| pair.wait_progress(SOME, LONG).map(drop))
}
