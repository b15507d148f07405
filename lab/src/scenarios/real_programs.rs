//! Programs that know nothing of Whimbrel.

use std::time::Duration;

use whimbrel_ipc::{Connection, ConnectionState};

use super::world::{LONG, World, all_run, site};
use super::{Scenario, scenario};
use crate::{Download, FlowPair, Gateway, Lab, Nginx, PairOptions, Result, Side, SshServer, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("ssh-interactive", "an OpenSSH session is typed into while the laptop moves", ssh),
    scenario("nginx-curl", "a download by curl from nginx is whole after three moves", download),
    scenario("udp-flow", "a connected UDP pair goes on after a move; when one end closes, both daemons forget it", udp),
];

/// Waits until the laptop's daemon has introduced `count` connections.
fn introduced(daemon: &crate::Whimbrel, count: usize) -> Result<()> {
    wait_for(LONG, &format!("{count} connections are introduced"), || {
        Ok((daemon.status()?.counts.introduced >= count).then_some(()))
    })
}

fn ssh(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b").behind(Gateway::NatFirewall))?;
    let (mut client, mut server) = world.daemons()?;
    let sshd = SshServer::start(&world.server, world.at_server.ipv4()?)?;
    let mut session = sshd.session(&world.laptop)?;
    session.type_and_check(LONG)?;
    introduced(&client, 1)?;
    for to in [world.b.clone(), world.a.clone(), world.b.clone()] {
        world.roam(&to)?;
        let took = session.type_and_check(LONG)?;
        println!("    the shell answered {:.0} ms after the move", took.as_secs_f64() * 1e3);
        for _ in 0..5 {
            session.type_and_check(LONG)?;
        }
    }
    session.finish(LONG)?;
    world.no_resets()?;
    all_run(&mut [&mut client, &mut server])
}

fn download(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b").behind(Gateway::NatFirewall))?;
    let (mut client, mut server) = world.daemons()?;
    let nginx = Nginx::start(&world.server, world.at_server.ipv4()?)?;
    let url = nginx.file("film", 40_000_000)?;
    let mut curl = Download::start(&world.laptop, &url, &["--limit-rate", "4M"])?;
    curl.wait_progress(1_000_000, LONG)?;
    introduced(&client, 1)?;
    for to in [world.b.clone(), world.a.clone(), world.b.clone()] {
        world.roam(&to)?;
        curl.wait_progress(4_000_000, LONG)?;
    }
    curl.finish(&nginx.checksum(&world.server, "film")?, Duration::from_secs(60))?;
    world.no_resets()?;
    all_run(&mut [&mut client, &mut server])
}

fn udp(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b").behind(Gateway::Nat { random_ports: true }))?;
    let (mut client, mut server) = world.daemons()?;
    let to = world.at_server.ipv4()?;
    let mut pair = FlowPair::udp(&world.laptop, &world.server, to, &PairOptions::rate(400_000))?;
    pair.wait_progress(100, LONG)?;
    client.wait_introduced(&pair, LONG)?;
    for to in [world.b.clone(), world.a.clone(), world.b.clone()] {
        world.roam(&to)?;
        pair.wait_progress(200, LONG)?;
        for side in [Side::Client, Side::Server] {
            let took = pair.silence(side, world.at.usable_at)?;
            println!(
                "    {side:?} received nothing for {:.1} ms",
                took.map_or(f64::NAN, |took| took.as_secs_f64() * 1e3)
            );
            expect!(took.is_some_and(|t| t < Duration::from_secs(1)), "{side:?} received nothing for {took:?}");
        }
    }
    for (status, end) in pair.check()?.iter().zip(["client", "server"]) {
        expect!(status.duplicates == 0, "the {end} received {} datagrams twice", status.duplicates);
    }
    // Nobody sees from the other end that a datagram socket is gone: it is told (P-35).
    let (local, remote) = (pair.peer(), pair.seen_by_server());
    pair.process(Side::Client).kill()?;
    let forgotten = |c: &Connection| matches!(c.state, ConnectionState::Pending | ConnectionState::Unprotected);
    server.wait_connection(local, remote, LONG, "forgotten", forgotten)?;
    expect!(pair.process(Side::Server).is_running(), "the server's program ended");
    all_run(&mut [&mut client, &mut server])
}
