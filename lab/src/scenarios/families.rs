//! A laptop that goes from networks of one address family to those of the other, where what is known of the server's
//! addresses is not forgotten (P-215), and to one where a family leads nowhere (P-53).

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_ipc::{Carrier, ConnectionState};

use super::world::{LONG, PROMPT, SOME, World, all_run, carried_by, ms, site, step};
use super::{Scenario, scenario};
use crate::{
    Error, FlowPair, Gateway, Join, Lab, MonoTime, PairOptions, Result, Side, SiteSpec, Verdict, expect, patience,
    wait_until,
};

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
    scenario(
        "family-without-routes",
        "a network's default routes go and its addresses stay; the other network has IPv4 alone: connections of both \
         families go on, and neighbours on the first one are still reached",
        |lab| without_routes(lab, site("b").v4_only()),
    ),
    scenario("family-without-routes-v6", "the same with a network that has IPv6 alone", |lab| {
        without_routes(lab, site("b").v6_only())
    }),
    scenario(
        "family-lost",
        "of a host's only network the routes of IPv6 go and return, then its address as well: its connections go on \
         over IPv4",
        |lab| lost(lab, false),
    ),
    scenario("family-lost-v4", "the same of IPv4", |lab| lost(lab, true)),
];

/// UDP beside the streams, bits a second.
const DATAGRAMS: u64 = 400_000;

/// A stream and datagrams over each family.
fn of_both(world: &World) -> Result<Vec<FlowPair>> {
    let mut pairs = Vec::new();
    for at in [world.at_server.ipv4()?, world.at_server.ipv6()?] {
        pairs.push(world.stream_to(at)?);
        pairs.push(FlowPair::udp(&world.laptop, &world.server, at, &PairOptions::rate(DATAGRAMS))?);
    }
    Ok(pairs)
}

/// All receive more, and waited no longer than a hand-off takes since this moment.
fn all_go_on_since(pairs: &mut [FlowPair], since: MonoTime) -> Result<()> {
    for pair in pairs {
        let some = if pair.status(Side::Client)?.tcp.is_some() { SOME } else { 20 };
        pair.wait_progress(some, LONG)?;
        for side in [Side::Client, Side::Server] {
            let took = pair.silence(side, since)?;
            println!("    {side:?} of {} received nothing for {:.1} ms", pair.peer(), ms(took));
            expect!(took.is_some_and(|took| took < PROMPT * patience()), "{side:?} received nothing for {took:?}");
        }
    }
    Ok(())
}

fn without_routes(lab: &mut Lab, other: SiteSpec) -> Result<()> {
    let world = World::new(lab, site("a"), other)?;
    let second = world.laptop.join(&world.b.network, &Join::by("eth0").metric(500))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pairs = of_both(&world)?;
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }

    let spec = world.a.network.spec();
    let routers = [spec.v4.map(|v4| IpAddr::V4(v4.0)), spec.v6.map(|v6| IpAddr::V6(v6.0))];
    let routers: Vec<IpAddr> = routers.into_iter().flatten().collect();
    let routes = |verb: &str| routers.iter().map(move |router| default_route(verb, *router)).collect::<Vec<_>>();

    step("the default routes of the first network go");
    let since = MonoTime::now();
    world.laptop.ip(routes("del"))?;
    all_go_on_since(&mut pairs, since)?;
    let other_family = if second.v4.is_some() { &pairs[2] } else { &pairs[0] };
    carried_by(&client, Side::Client, other_family, Carrier::Tunnel)?;
    for router in &routers {
        world.laptop.command("ping").args(["-c", "1", "-W", "5", &router.to_string()]).run()?;
    }

    step("and return");
    let since = MonoTime::now();
    world.laptop.ip(routes("add"))?;
    all_go_on_since(&mut pairs, since)?;
    // They were introduced while the server was met by one family or by the other, and are at home by that one.
    wait_until(LONG, "some are at home again", || {
        let all = client.connections().unwrap_or_default();
        all.iter().any(|connection| connection.state == ConnectionState::Native)
    })?;
    end(&world, pairs)?;
    all_run(&mut [&mut client, &mut server])
}

/// All that was sent has arrived.
fn end(world: &World, pairs: Vec<FlowPair>) -> Result<()> {
    for mut pair in pairs {
        if pair.status(Side::Client)?.tcp.is_some() {
            world.finish(pair)?;
        } else {
            pair.check()?;
        }
    }
    Ok(())
}

fn default_route(verb: &str, router: IpAddr) -> String {
    format!("route {verb} default via {router} dev wlan0 metric 100 congctl cubic")
}

fn lost(lab: &mut Lab, of_ipv4: bool) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pairs = of_both(&world)?;
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    let spec = world.a.network.spec();
    let router = if of_ipv4 { spec.v4.map(|v4| v4.0.into()) } else { spec.v6.map(|v6| IpAddr::V6(v6.0)) };
    let own = if of_ipv4 { world.at.ipv4()? } else { world.at.ipv6()? };
    let Some(router) = router else { return Err(Error::Expectation("the network has one family".to_owned())) };
    let length = if of_ipv4 { 25 } else { 64 };
    let nodad = if of_ipv4 { "" } else { "nodad" };
    for addresses in [false, true] {
        step("a family goes");
        let since = MonoTime::now();
        let address = addresses.then(|| format!("addr del {own}/{length} dev wlan0"));
        world.laptop.ip([default_route("del", router)].into_iter().chain(address))?;
        all_go_on_since(&mut pairs, since)?;
        step("and returns");
        let since = MonoTime::now();
        let address = addresses.then(|| format!("addr add {own}/{length} dev wlan0 {nodad}"));
        world.laptop.ip(address.into_iter().chain([default_route("add", router)]))?;
        all_go_on_since(&mut pairs, since)?;
    }
    end(&world, pairs)?;
    all_run(&mut [&mut client, &mut server])
}

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
