//! A laptop that goes from networks of one address family to those of the other, where what is known of the server's
//! addresses is not forgotten (P-215), and to one where a family leads nowhere (P-53).

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_ipc::Carrier;

use super::world::{LONG, SOME, World, all_run, carried_by, ms, site, step};
use super::{Scenario, scenario};
use crate::{FlowPair, Gateway, Lab, Result, Side, SiteSpec, Verdict, expect, patience, wait_until};

/// Ethernet's type of IPv6.
const IPV6: u16 = 0x86dd;
/// How long a connection may stand still on a network where its own family leads nowhere.
const DEAF: Duration = Duration::from_secs(6);

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
    scenario(
        "family-deaf",
        "the family that a connection is of leads nowhere on the next network: it goes on by the other, and comes back \
         once its own answers",
        deaf,
    ),
];

/// IPv6, whose gateway answers and nothing beyond it does; addresses and routes say nothing of that.
fn deaf(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream_to(world.at_server.ipv6()?)?;
    client.wait_introduced(&pair, LONG)?;

    step("the laptop moves to where IPv6 leads nowhere");
    let b = world.b.clone();
    b.link()?.hook(|_, frame| {
        let to_others = frame.ip().is_some_and(|packet| packet.udp().is_some() || packet.tcp().is_some());
        if to_others && frame.ethertype() == IPV6 { Verdict::Drop } else { Verdict::Pass }
    });
    world.roam(&b)?;
    let four = world.at.ipv4()?;
    pair.wait_progress(SOME, LONG)?;
    for side in [Side::Client, Side::Server] {
        let took = pair.silence(side, world.at.usable_at)?;
        println!("    {side:?} received nothing for {:.1} ms once the address was there", ms(took));
        // Six updates that are not answered come first.
        expect!(took.is_some_and(|took| took < DEAF * patience()), "{side:?} received nothing for {took:?}");
    }
    let reached_from = |address: IpAddr| {
        let paths = client.paths().unwrap_or_default();
        paths.iter().any(|path| path.active && path.confirmed && path.local == Some(address))
    };
    expect!(reached_from(four), "it does not go from {four}: {:?}", client.paths()?);

    step("and IPv6 answers");
    b.link()?.unhook();
    let six = world.at.ipv6()?;
    wait_until(LONG * 2, "the peer is reached by IPv6 again", || reached_from(six))?;
    pair.wait_progress(SOME, LONG)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

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
