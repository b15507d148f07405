//! Both ends move at once, without a third host that both know: somebody where one of them was passes on what comes for
//! it, or both are still heard where they were.

use std::net::IpAddr;

use whimbrel_ipc::{Carrier, RendezvousState};

use super::world::{LONG, SOME, World, all_run, carried_by, goes_on_since, site, step};
use super::{Scenario, scenario};
use crate::{Cut, Error, Host, Join, Lab, Leave, Result, Side, SiteSpec, Whimbrel, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "both-move-stand-in",
        "laptop and server move at once; a host on the network that the laptop left passes on what comes for it",
        by_a_host,
    ),
    scenario("both-move-router-stands-in", "the same, with the router of that network", by_the_router),
    scenario(
        "left-address-taken",
        "the address that the laptop left, and that the router stands in for, is given to another host, which is reached there",
        taken,
    ),
    scenario(
        "both-move-with-overlap",
        "laptop and server get other networks at once while they still have those before, and lose these later",
        overlap,
    ),
];

const STAND_IN: &str = "serve_rendezvous = true\nstand_in = true\n";

/// The laptop's daemon, which knows who stands in for it, and the server's, which does not.
fn daemons(world: &World, deputy: IpAddr) -> Result<(Whimbrel, Whimbrel)> {
    let client = world.laptop.whimbrel_with(&format!("rendezvous = [\"{deputy}\"]\n"))?;
    Ok((client, world.server.whimbrel()?))
}

fn registered(client: &Whimbrel) -> Result<()> {
    wait_until(LONG, "the laptop is known to who is to stand in for it", || {
        let state = client.status().ok().and_then(|status| status.rendezvous.first().copied());
        state.is_some_and(|at| at.state == RendezvousState::Registered)
    })
}

fn by_a_host(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let neighbour = lab.host("neighbour")?;
    let address = neighbour.join(&world.a.network, &Join::by("eth0"))?.ipv4()?;
    both_move(lab, world, &neighbour, address)
}

fn by_the_router(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let (router, address) = (world.a.router.clone(), gateway(&world)?);
    both_move(lab, world, &router, address)
}

/// The address of the laptop's first router.
fn gateway(world: &World) -> Result<IpAddr> {
    let (gateway, _) = world.a.network.spec().v4.ok_or_else(|| Error::Usage("a network without IPv4".into()))?;
    Ok(gateway.into())
}

fn both_move(lab: &mut Lab, mut world: World, deputy: &Host, address: IpAddr) -> Result<()> {
    let t = world.add(lab, SiteSpec::named("t"))?;
    let mut keeper = deputy.whimbrel_with(STAND_IN)?;
    let (mut client, mut server) = daemons(&world, address)?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    registered(&client)?;
    let (since, at_keeper) = (client.status()?.newest_event, keeper.status()?.newest_event);

    step("both move at once");
    world.s.link()?.cut(Cut::Silent)?;
    let b = world.b.clone();
    world.roam(&b)?;
    world.roam_server(&t)?;
    pair.wait_progress(SOME, LONG)?;
    keeper.wait_event("stands-in", at_keeper, LONG)?;
    client.wait_event("stood-in-for", since, LONG)?;
    carried_by(&server, Side::Server, &pair, Carrier::Rewrite)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server, &mut keeper])
}

fn taken(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let gateway = gateway(&world)?;
    let router = world.a.router.clone();
    let mut keeper = router.whimbrel_with(STAND_IN)?;
    let (mut client, mut server) = daemons(&world, gateway)?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    registered(&client)?;
    let old = world.at.clone();
    let (since, at_keeper) = (client.status()?.newest_event, keeper.status()?.newest_event);
    let at_server = server.status()?.newest_event;

    step("the laptop leaves, and the server cannot be reached");
    world.s.link()?.cut(Cut::Silent)?;
    let b = world.b.clone();
    world.roam(&b)?;
    client.wait_event("stood-in-for", since, LONG)?;

    step("another host is given the address");
    let newcomer = lab.host("newcomer")?;
    newcomer.join(
        &world.a.network,
        &Join { interface: "eth0".into(), address_v4: old.v4, address_v6: old.v6, dad: true, ..Join::default() },
    )?;
    // An address that is new is used: nobody else has to ask for it.
    newcomer.command("ping").args(["-c", "1", "-W", "1", &gateway.to_string()]).output()?;
    keeper.wait_event("stood-aside", at_keeper, LONG)?;
    client.wait_event("not-stood-in-for", since, LONG)?;
    wait_until(LONG, "the newcomer is reached there", || {
        let address = old.v4.map(|address| address.to_string()).unwrap_or_default();
        router.command("ping").args(["-c", "1", "-W", "1", &address]).output().is_ok()
    })?;
    let own = newcomer.ip_output("addr show dev eth0")?;
    expect!(!own.contains("dadfailed"), "the newcomer was kept from its address: {own}");

    // From then on it sends nothing to where the laptop was (P-45), and the newcomer resets nothing.
    server.wait_event("peer-away", at_server, LONG)?;

    step("the server is there again");
    world.s.link()?.restore()?;
    pair.wait_progress(SOME, LONG)?;
    pair.finish(LONG)?;
    all_run(&mut [&mut client, &mut server, &mut keeper])
}

fn overlap(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let t = world.add(lab, SiteSpec::named("t"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let since = server.status()?.newest_event;

    step("both get another network, which they prefer");
    let (old, old_server) = (world.at.clone(), world.at_server.clone());
    let at = world.laptop.join(&world.b.network, &Join::by("wlan1").metric(50))?;
    world.server.join(&t.network, &Join::by("eth1").metric(50))?;
    goes_on_since(&mut pair, &at)?;
    server.wait_event("moved", since, LONG)?;
    server.wait_event("peer-moved", since, LONG)?;

    step("both lose the network before");
    world.laptop.leave(&old, Leave::Orderly)?;
    world.server.leave(&old_server, Leave::Orderly)?;
    pair.wait_progress(SOME, LONG)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}
