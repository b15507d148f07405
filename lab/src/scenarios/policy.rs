//! What the configuration wants for which connections.

use std::time::Duration;

use whimbrel_ipc::{Carrier, Connection, ConnectionState};

use super::world::{LONG, RATE, SOME, World, all_run, carried_by, is_native, site, step};
use super::{Scenario, scenario};
use crate::{Download, FlowPair, Lab, Nginx, PairOptions, Result, Side, Whimbrel, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "policy",
    "connections that either end leaves alone, by program and by port, stand still where a protected one goes on",
    policy,
)];

/// Waits until a daemon says why it leaves the connection with this remote port alone.
fn left_alone(daemon: &Whimbrel, remote_port: u16, why: &str) -> Result<()> {
    let so = |connection: &Connection| {
        connection.flow.remote.port() == remote_port
            && connection.state == ConnectionState::Unprotected
            && connection.reason.as_deref().is_some_and(|reason| reason.starts_with(why))
    };
    wait_for(LONG, &format!("a connection is left alone: {why}"), || {
        Ok(daemon.connections()?.iter().any(so).then_some(()))
    })
}

fn policy(lab: &mut Lab) -> Result<()> {
    const PORT: u16 = 7707;
    let mut world = World::new(lab, site("a"), site("b"))?;
    let mut client = world.laptop.whimbrel_with("[[policy]]\nprogram = \"curl\"\nprotect = false\n")?;
    let mut server = world.server.whimbrel_with("[[policy]]\nlocal_port = \"7700-7799\"\nprotect = false\n")?;
    let mut protected = world.stream()?;
    let options = PairOptions { port: PORT, ..PairOptions::rate(RATE) };
    let mut refused = FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &options)?;
    let nginx = Nginx::start(&world.server, world.at_server.ipv4()?)?;
    let url = nginx.file("film", 8_000_000)?;
    let mut curl = Download::start(&world.laptop, &url, &["--limit-rate", "400k"])?;
    curl.wait_progress(100_000, LONG)?;

    client.wait_introduced(&protected, LONG)?;
    left_alone(&client, nginx.address().port(), "policy at line ")?;
    left_alone(&client, PORT, "the peer's policy leaves it alone")?;
    left_alone(&server, refused.seen_by_server().port(), "policy at line ")?;

    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut protected)?;
    carried_by(&client, Side::Client, &protected, Carrier::Rewrite)?;
    // What was on the way has arrived long ago.
    let (fetched, sent) = (curl.size(), refused.status(Side::Server)?.received);
    protected.wait_progress(10 * SOME, LONG)?;
    expect!(curl.size() == fetched, "a connection that is left alone was moved");
    expect!(refused.status(Side::Server)?.received == sent, "a connection that the server leaves alone was moved");
    step("what is left alone stands still");

    let a = world.a.clone();
    world.roam(&a)?;
    world.goes_on(&mut protected)?;
    is_native(&client, Side::Client, &protected)?;
    refused.wait_progress(SOME, Duration::from_secs(60))?;
    curl.finish(&nginx.checksum(&world.server, "film")?, Duration::from_secs(90))?;
    step("and goes on at home, as without Whimbrel");

    // A new policy counts for new connections.
    let since = client.status()?.newest_event;
    client.reconfigure("[[policy]]\nprogram = \"nothing\"\nprotect = false\n")?;
    client.wait_event("reloaded", since, LONG)?;
    let url = nginx.file("short", 1_000_000)?;
    let curl = Download::start(&world.laptop, &url, &["--limit-rate", "400k"])?;
    wait_for(LONG, "curl's connection is introduced", || {
        let to_nginx = |c: &Connection| c.flow.remote == nginx.address() && c.state == ConnectionState::Native;
        Ok(client.connections()?.iter().any(to_nginx).then_some(()))
    })?;
    curl.finish(&nginx.checksum(&world.server, "short")?, LONG)?;
    for pair in [protected, refused] {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}
