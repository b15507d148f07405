//! The first second on a network: what a host has to learn there before its connections go on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::world::{LONG, RATE, SOME, World, all_run, goes_on_since, ms, site, step};
use super::{Scenario, scenario};
use crate::{FlowPair, Gateway, Join, Lab, MonoTime, Result, Side, SiteSpec, expect, patience, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "stale-gateway",
        "the gateway of the new network has the address of the one before, whose link-layer address is still known",
        stale_gateway_v4,
    ),
    scenario("stale-gateway-v6", "the same over IPv6, where many routers are fe80::1", stale_gateway_v6),
    scenario(
        "on-link-lost",
        "the laptop comes to the server's own network; either end knows somebody else by the other's address, and the \
         first two questions are lost",
        on_link_v4,
    ),
    scenario("on-link-lost-v6", "the same over IPv6", on_link_v6),
    scenario("late-route", "the default route comes 50 to 500 ms after the address", late_route_v4),
    scenario("late-route-v6", "the same over IPv6", late_route_v6),
    scenario(
        "duplicate-detection",
        "the new IPv6 address is used while the kernel looks whether another host has it",
        duplicate_detection,
    ),
    scenario(
        "duplicate-found",
        "another host has the new IPv6 address: the laptop gives it up, and goes on from the next one",
        duplicate_found,
    ),
];

/// The kernel asks again for a neighbour after a second, and duplicate address detection takes one at least.
const KERNEL_WAITS: Duration = Duration::from_secs(1);
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// Who is nobody's neighbour.
const NOBODY: &str = "02:00:00:00:00:99";

/// Neither direction has stood still for as long as the kernel's own ways would take.
fn sooner_than_the_kernel(pair: &mut FlowPair, since: MonoTime) -> Result<()> {
    pair.wait_progress(SOME, LONG)?;
    for side in [Side::Client, Side::Server] {
        let took = pair.silence(side, since)?;
        println!("    {side:?} received nothing for {:.1} ms", ms(took));
        expect!(took.is_some_and(|took| took < KERNEL_WAITS * 9 / 10), "{side:?} received nothing for {took:?}");
    }
    Ok(())
}

fn neighbours(world: &World) -> Result<String> {
    world.laptop.ip_output("neigh show dev wlan0")
}

fn stale_gateway_v4(lab: &mut Lab) -> Result<()> {
    let home = |name| site(name).behind(Gateway::NatFirewall).v4([192, 168, 1, 1], 24);
    let mut world = World::new(lab, home("a"), home("b"))?;
    // As systemd has it: without, the second address of a subnet goes with the first.
    world.laptop.sysctl("net.ipv4.conf.all.promote_secondaries", "1")?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    expect!(neighbours(&world)?.contains("192.168.1.1 lladdr"), "the first gateway is not known");
    world.leaves_router(&pair);
    let join = Join { forget_neighbours: false, address_v4: Some(Ipv4Addr::new(192, 168, 1, 77)), ..Join::default() };
    world.at = world.laptop.roam(&world.at, &world.b.network, &join)?;
    world.goes_on(&mut pair)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn stale_gateway_v6(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a").v6_only(), site("b").v6_only())?;
    for site in [&world.a, &world.b] {
        site.router.ip6([format!("addr add {ROUTERS}/64 dev {} nodad", site.network.bridge())])?;
    }
    world.laptop.ip6([format!("route replace default via {ROUTERS} dev wlan0 metric 100 congctl cubic")])?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream_to(world.at_server.ipv6()?)?;
    client.wait_introduced(&pair, LONG)?;
    expect!(neighbours(&world)?.contains("fe80::1 lladdr"), "the first gateway is not known");
    let join = Join { forget_neighbours: false, gateway_v6: Some(ROUTERS), ..Join::default() };
    world.at = world.laptop.roam(&world.at, &world.b.network, &join)?;
    world.goes_on(&mut pair)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// Drops the first two questions of `asker` for this host's address.
fn lose_two(host: &crate::Host, asker: IpAddr) -> Result<()> {
    // A rate that lets two a day through to be dropped.
    let (family, question) = match asker {
        IpAddr::V4(asker) => ("arp", format!("arp operation request arp saddr ip {asker}")),
        IpAddr::V6(asker) => ("ip6", format!("icmpv6 type nd-neighbor-solicit ip6 saddr {asker}")),
    };
    host.nft(&format!(
        "table {family} lab {{ chain input {{ type filter hook input priority 0
             {question} limit rate 2/day burst 2 packets counter drop;
         }}; }}"
    ))
}

fn on_link_v4(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a").v4_only(), site("b").v4_only())?;
    let own = Ipv4Addr::new(192, 0, 2, 77);
    let join = Join { v6: false, address_v4: Some(own), ..Join::default() };
    let server = world.at_server.ipv4()?;
    on_link(world, own.into(), server, join)
}

fn on_link_v6(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a").v6_only(), site("b").v6_only())?;
    let own = Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 0x77);
    let join = Join { v4: false, address_v6: Some(own), ..Join::default() };
    let server = world.at_server.ipv6()?;
    on_link(world, own.into(), server, join)
}

fn on_link(mut world: World, own: IpAddr, server: IpAddr, join: Join) -> Result<()> {
    let (mut at_laptop, mut at_server) = world.daemons()?;
    let mut pair = world.stream_to(server)?;
    at_laptop.wait_introduced(&pair, LONG)?;
    world.server.ip([format!("neigh replace {own} lladdr {NOBODY} dev eth0 nud reachable")])?;
    world.laptop.ip([format!("neigh replace {server} lladdr {NOBODY} dev wlan0 nud reachable")])?;
    lose_two(&world.server, own)?;
    let join = Join { forget_neighbours: false, ..join };
    world.at = world.laptop.roam(&world.at, &world.s.network, &join)?;
    sooner_than_the_kernel(&mut pair, world.at.usable_at)?;
    world.finish(pair)?;
    all_run(&mut [&mut at_laptop, &mut at_server])
}

fn late_route_v4(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a").v4_only(), site("b").v4_only())?;
    let server = world.at_server.ipv4()?;
    late_route(world, server)
}

fn late_route_v6(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a").v6_only(), site("b").v6_only())?;
    let server = world.at_server.ipv6()?;
    late_route(world, server)
}

fn late_route(mut world: World, server: IpAddr) -> Result<()> {
    let (mut at_laptop, mut at_server) = world.daemons()?;
    let mut pair = world.stream_to(server)?;
    at_laptop.wait_introduced(&pair, LONG)?;
    let sites = [world.b.clone(), world.a.clone()];
    for (late, to) in [50, 200, 500].map(Duration::from_millis).into_iter().zip(sites.iter().cycle()) {
        let join = Join { default_route: false, ..Join::default() };
        world.at = world.laptop.roam(&world.at, &to.network, &join)?;
        let due = world.at.usable_at + late;
        wait_until(LONG, "the route is due", || MonoTime::now() >= due)?;
        let spec = to.network.spec();
        let gateway = spec.v4.map(|v4| v4.0.into()).or(spec.v6.map(|v6| IpAddr::V6(v6.0)));
        let gateway = gateway.filter(|gateway| gateway.is_ipv4() == server.is_ipv4());
        let family = if server.is_ipv4() { "-4" } else { "-6" };
        let gateway = gateway.map_or_else(String::new, |gateway| gateway.to_string());
        let route = format!("{family} route add default via {gateway} dev wlan0 metric 100 congctl cubic");
        let since = MonoTime::now();
        world.laptop.ip_output(&route)?;
        pair.wait_progress(SOME, LONG)?;
        for side in [Side::Client, Side::Server] {
            let took = pair.silence(side, since)?;
            println!("    {side:?} received nothing for {:.1} ms, with the route {late:?} after the address", ms(took));
            // A round trip of 40 ms, a process, and no timer.
            let most = KERNEL_WAITS / 2 * patience();
            expect!(took.is_some_and(|took| took < most), "{side:?} received nothing for {took:?}");
        }
        // The address is met natively again, or rewritten, before the next move.
        pair.wait_progress(RATE / 8, LONG)?;
    }
    world.finish(pair)?;
    all_run(&mut [&mut at_laptop, &mut at_server])
}

fn v6_world(lab: &mut Lab) -> Result<World> {
    let v6 = |name| -> SiteSpec { site(name).v6_only() };
    World::new(lab, v6("a"), v6("b"))
}

fn duplicate_detection(lab: &mut Lab) -> Result<()> {
    let mut world = v6_world(lab)?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream_to(world.at_server.ipv6()?)?;
    client.wait_introduced(&pair, LONG)?;
    for to in [world.b.clone(), world.a.clone()] {
        world.at = world.laptop.roam(&world.at, &to.network, &Join { dad: true, ..Join::default() })?;
        let detection = world.at.usable_at.since(world.at.started_at);
        println!("    duplicate address detection took {detection:?}");
        expect!(detection > KERNEL_WAITS * 9 / 10, "there was none: it took {detection:?}");
        sooner_than_the_kernel(&mut pair, world.at.started_at)?;
    }
    let left = world.laptop.sysctl_value("net.ipv6.conf.wlan0.optimistic_dad")?;
    expect!(left == "0", "optimistic_dad is {left}");
    goes_on_since(&mut pair, &world.at)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn duplicate_found(lab: &mut Lab) -> Result<()> {
    let mut world = v6_world(lab)?;
    let holder = lab.host("holder")?;
    let taken = holder.join(&world.b.network, &Join::by("eth0"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream_to(world.at_server.ipv6()?)?;
    client.wait_introduced(&pair, LONG)?;
    let join = Join { dad: true, address_v6: taken.v6, ..Join::default() };
    world.at = world.laptop.roam(&world.at, &world.b.network, &join)?;
    let address = taken.ipv6()?;
    wait_until(LONG, "the kernel gives the address up", || {
        world.laptop.ip_output("-6 addr show dev wlan0").is_ok_and(|shown| !shown.contains(&address.to_string()))
    })?;
    step("it is another host's");
    let since = MonoTime::now();
    let other = Ipv6Addr::new(0x2001, 0xdb8, 0xb, 0, 0, 0, 0, 0x77);
    world.laptop.ip([format!("addr add {other}/64 dev wlan0 nodad")])?;
    pair.wait_progress(SOME, LONG)?;
    let resumed = pair.resumed(Side::Client, since)?.map(|at| at.since(since));
    println!("    it went on {:.1} ms after the next address", ms(resumed));
    // Its owner is reached as before.
    world.laptop.command("ping").args(["-6", "-c1", "-w5", &address.to_string()]).run()?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}
