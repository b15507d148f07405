//! Networks that strip TCP options that they do not know.

use whimbrel_ipc::Carrier;

use super::world::{LONG, World, all_run, carried_by, is_native, site};
use super::{Scenario, scenario};
use crate::{Gateway, Lab, Result, Side, Site, expect};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("options-stripped", "a router strips the option of introductions; the laptop moves and returns", stripped),
    scenario("options-stripped-nat", "the same router is a NAT as well; the laptop moves away", stripped_nat),
];

/// Makes a site's router strip the option that introductions travel in (RFC 6994).
fn strip(site: &Site) -> Result<()> {
    site.network.router().nft(
        "table inet strip {\nchain forward {\ntype filter hook forward priority mangle;\n\
         tcp option 253 exists counter reset tcp option 253\n}\n}\n",
    )
}

fn strip_all(world: &World) -> Result<()> {
    [&world.a, &world.b].into_iter().try_for_each(strip)
}

/// The router has had something to strip.
fn has_stripped(site: &Site) -> Result<()> {
    let rules = site.network.router().command("nft").args(["list", "table", "inet", "strip"]).run()?;
    expect!(!rules.contains("packets 0 "), "nothing was stripped: {rules}");
    Ok(())
}

fn stripped(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    strip_all(&world)?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    has_stripped(&world.a)?;
    let (a, b) = (world.a.clone(), world.b.clone());
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Tunnel)?;
    world.roam(&a)?;
    world.goes_on(&mut pair)?;
    is_native(&client, Side::Client, &pair)?;
    // The probe of the carrier is stripped too, and its tuple, which no socket has, is reset: no reset is counted here.
    pair.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])
}

fn stripped_nat(lab: &mut Lab) -> Result<()> {
    let nat = Gateway::Nat { random_ports: true };
    let mut world = World::new(lab, site("a").behind(nat), site("b"))?;
    strip_all(&world)?;
    let (mut client, mut server) = world.daemons()?;
    // Of several connections between the same two addresses each is told from the others.
    let mut pairs = [world.stream()?, world.stream()?, world.stream()?];
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    has_stripped(&world.a)?;
    let b = world.b.clone();
    world.roam(&b)?;
    for pair in &mut pairs {
        world.goes_on(pair)?;
        carried_by(&client, Side::Client, pair, Carrier::Tunnel)?;
    }
    for pair in pairs {
        pair.finish(LONG)?;
    }
    all_run(&mut [&mut client, &mut server])
}
