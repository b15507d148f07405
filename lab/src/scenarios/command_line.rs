//! What the commands say and do beside asking: they are what users see.

use std::time::Duration;

use whimbrel_ipc::{Carrier, ConnectionState, Path};

use super::world::{LONG, World, all_run, carried_by, site};
use super::{Scenario, scenario};
use crate::{FlowPair, Host, Join, Lab, Leave, MonoTime, PairOptions, Result, Side, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("views", "paths, connections, peers and hand-offs by hand tell what is so", views),
    scenario("clean", "what a stopped daemon leaves for moved connections is removed by hand", clean),
];

fn views(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let nobody = lab.host("nobody")?;
    let there = nobody.join(&world.s.network, &Join::by("eth0"))?.ipv4()?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;

    // A host that runs nothing: it answers with ICMP, and is remembered.
    let strange = FlowPair::tcp(&world.laptop, &nobody, there, &PairOptions::rate(super::world::RATE))?;
    client.wait_connection(strange.local(), strange.peer(), LONG, "asked in vain", |connection| {
        connection.state == ConnectionState::Unprotected
            && connection.reason.as_deref().is_some_and(|reason| reason.starts_with("asked, silent until "))
    })?;

    // Both networks are up: the other one is shown as a way that could be used.
    let second = world.laptop.join(&world.b.network, &Join::by("eth1").metric(4000))?;
    let other = second.ipv4()?;
    wait_for(LONG, "paths show the second network", || {
        let possible = |path: &Path| path.local == Some(other) && !path.active && !path.confirmed;
        Ok(client.paths()?.into_iter().find(possible))
    })?;
    expect!(client.cli(&["paths"])?.contains("possible"), "{}", client.cli(&["paths"])?);

    // The end that follows says that it answers rewritten.
    client.handoff(Some(other))?;
    for (daemon, side) in [(&client, Side::Client), (&server, Side::Server)] {
        carried_by(daemon, side, &pair, Carrier::Rewrite)?;
    }
    expect!(server.peers()?.iter().any(|peer| peer.carrier == Some(Carrier::FollowRewrite)), "{:?}", server.peers()?);
    pair.wait_progress(super::world::SOME, LONG)?;

    // No network at all: a hand-off by hand says so at once, and does not wait for peers.
    let since = client.status()?.newest_event;
    world.laptop.leave(&second, Leave::Orderly)?;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    client.wait_event("moving", since, LONG)?;
    wait_for(LONG, "no address is left", || Ok(client.status()?.addresses.is_empty().then_some(())))?;
    let begun = MonoTime::now();
    let refusal = client.handoff(None);
    expect!(MonoTime::now() - begun < Duration::from_secs(5), "the refusal took long");
    expect!(
        refusal.as_ref().is_err_and(|error| error.to_string().contains("no usable network")),
        "a hand-off without a network gave {refusal:?}"
    );
    all_run(&mut [&mut client, &mut server])
}

/// What of ours shows in a host's network.
fn traces(host: &Host) -> Result<String> {
    let shown = ["rule", "-6 rule", "-o addr show dev lo", "-o link show whimbrel0"];
    // The device is not there while no daemon ever ran.
    Ok(shown.iter().map(|arguments| host.ip_output(arguments).unwrap_or_default()).collect())
}

fn clean(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let untouched = traces(&world.laptop)?;
    let valid_mark = "net.ipv4.conf.all.src_valid_mark";
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;

    let refusal = client.cli(&["clean"]);
    expect!(
        refusal.as_ref().is_err_and(|error| error.to_string().contains("Stop it first")),
        "cleaning under a daemon gave {refusal:?}"
    );
    // What moved goes on without the daemon.
    client.stop()?;
    pair.wait_progress(super::world::SOME, LONG)?;
    expect!(traces(&world.laptop)? != untouched, "nothing was left though a connection is moved");
    let told = client.cli(&["clean"])?;
    println!("{told}");
    for left in ["kept addresses", "whimbrel0", "programs and maps", "journal"] {
        expect!(told.contains(left), "{left} is not among what was removed: {told}");
    }
    expect!(traces(&world.laptop)? == untouched, "still there: {}", traces(&world.laptop)?);
    expect!(world.laptop.sysctl_value(valid_mark)? == "0", "{valid_mark} was not put back");
    let told = client.cli(&["clean"])?;
    expect!(told == "Nothing was left behind.\n", "the second time: {told}");

    // And all begins anew.
    client.restart()?;
    let fresh = world.stream()?;
    client.wait_introduced(&fresh, LONG)?;
    fresh.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])
}
