//! What the configuration wants for which connections.

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_ipc::{Carrier, Connection, ConnectionState};

use super::world::{LONG, RATE, SOME, World, all_run, carried_by, is_native, site, step};
use super::{Scenario, scenario};
use crate::{
    DhcpServer, Download, FlowPair, Join, Lab, Lease, Leave, Nginx, PairOptions, Result, Side, Whimbrel, expect,
    wait_for,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "policy",
        "connections that either end leaves alone, by program and by port, stand still where a protected one goes on",
        policy,
    ),
    scenario(
        "address-conflict",
        "DHCP gives the laptop's old address to another host, which opens connections under the very names of moved ones",
        address_conflict,
    ),
];

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

fn address_conflict(lab: &mut Lab) -> Result<()> {
    const KEPT: (u16, u16) = (7601, 7701);
    const GIVEN: (u16, u16) = (7602, 7702);
    let mut world = World::new(lab, site("a"), site("b"))?;
    let no_address = Join { v4: false, v6: false, ..Join::default() };
    let address = world.at.v4.ok_or_else(|| crate::Error::Usage("network a has no IPv4".into()))?;
    let mut dhcp = DhcpServer::start(&world.a.network, address)?;
    let at = world.at.clone();
    world.laptop.leave(&at, Leave::Orderly)?;
    world.at = world.laptop.join(&world.a.network, &no_address)?;
    let lease = Lease::take(&world.laptop, "wlan0", address, LONG)?;

    let mut client = world.laptop.whimbrel()?;
    let mut server = world.server.whimbrel_with("[[policy]]\nlocal_port = 7702\nconflict = \"abort\"\n")?;
    let to = world.at_server.ipv4()?;
    let options = |(from, to): (u16, u16)| PairOptions {
        bind: Some(SocketAddr::new(address.into(), from)),
        port: to,
        ..PairOptions::rate(RATE)
    };
    let mut kept = FlowPair::tcp(&world.laptop, &world.server, to, &options(KEPT))?;
    let mut given = FlowPair::tcp(&world.laptop, &world.server, to, &options(GIVEN))?;
    for pair in [&kept, &given] {
        client.wait_introduced(pair, LONG)?;
    }
    lease.release(LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    for pair in [&mut kept, &mut given] {
        world.goes_on(pair)?;
    }

    let other = lab.host("other")?;
    other.join(&world.a.network, &no_address)?;
    let lease = Lease::take(&other, "wlan0", address, LONG)?;
    expect!(dhcp.process().is_running(), "udhcpd has ended");
    step("another host has leased the laptop's old address");
    let since = server.status()?.newest_event;
    // Under other names it has the server to itself, and the laptop too.
    let mut theirs = FlowPair::tcp(&other, &world.server, to, &options((7603, 7703)))?;
    let mut neighbours = FlowPair::tcp(&world.laptop, &other, address.into(), &PairOptions::rate(RATE))?;
    for pair in [&mut theirs, &mut neighbours, &mut kept, &mut given] {
        pair.wait_progress(SOME, LONG)?;
    }

    // The connection that has these names pre-empts them: the newcomer hears at once that it cannot have them.
    let refused = FlowPair::tcp(&other, &world.server, to, &options(KEPT));
    let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
    expect!(refused.to_lowercase().contains("refused"), "the newcomer was not refused: {refused}");
    let told = server.wait_event("address-conflict", since, LONG)?;
    expect!(told.fields.get("outcome").is_some_and(|outcome| outcome == "refused"), "{}", told.sentence);
    kept.wait_progress(SOME, LONG)?;
    step("a newcomer is refused, and the moved connection goes on");

    // The one that gives way is aborted at both ends, and the newcomer comes through.
    let mut newcomer = FlowPair::tcp(&other, &world.server, to, &options(GIVEN))?;
    let told = server.wait_event("address-conflict", told.number, LONG)?;
    expect!(told.fields.get("outcome").is_some_and(|outcome| outcome == "aborted"), "{}", told.sentence);
    for side in [Side::Client, Side::Server] {
        wait_for(LONG, &format!("{side:?} is told that its connection was aborted"), || {
            Ok(given.status(side)?.error.is_some().then_some(()))
        })?;
    }
    for pair in [&mut newcomer, &mut kept, &mut theirs] {
        pair.wait_progress(SOME, LONG)?;
    }
    step("a connection that gives way is aborted, and the newcomer has its names");
    for pair in [newcomer, kept, theirs, neighbours] {
        pair.finish(LONG)?;
    }
    lease.release(LONG)?;
    all_run(&mut [&mut client, &mut server])
}
