//! Sockets change hosts, and their far ends notice nothing.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_ipc::ConnectionState;

use super::community::befriend;
use super::world::{LONG, World, site, step};
use super::{Scenario, scenario};
use crate::{EchoServer, Join, Lab, Many, Process, Result, Whimbrel, expect, patience, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "moved-socket",
        "a server's connections go to another host, in another network, and on from there; their far end runs nothing",
        |lab| moved(lab, false),
    ),
    scenario(
        "moved-socket-direct",
        "the same with a far end that runs Whimbrel, and is led to the other host itself",
        |lab| moved(lab, true),
    ),
];

/// How long the far end may wait for an answer on the way.
const SOON: Duration = Duration::from_secs(1);

/// A far end, a donor that serves it, and an acceptor, each in a network of its own.
struct Three {
    world: World,
    donor_daemon: Whimbrel,
    acceptor_daemon: Whimbrel,
    far_daemon: Option<Whimbrel>,
    at_acceptor: IpAddr,
}

impl Three {
    fn new(lab: &mut Lab, far_runs: bool) -> Result<Self> {
        let mut world = World::new(lab, site("a"), site("b"))?;
        let network = world.add(lab, site("c"))?;
        let acceptor = lab.host("acceptor")?;
        let at_acceptor = acceptor.join(&network.network, &Join::by("eth0"))?.ipv4()?;
        let donor_daemon = world.server.whimbrel()?;
        let acceptor_daemon = acceptor.whimbrel()?;
        let far_daemon = if far_runs { Some(world.laptop.whimbrel()?) } else { None };
        befriend(&donor_daemon, &acceptor_daemon, world.at_server.ipv4()?)?;
        Ok(Self { world, donor_daemon, acceptor_daemon, far_daemon, at_acceptor })
    }

    /// A program on the acceptor that goes on with each connection that comes.
    fn receiver(&self, name: &str) -> Result<Process> {
        let mut process = self.acceptor_daemon.spawn_cli(&["receive", name, "--", "cat"])?;
        process.wait_line(LONG, "it receives", |line| line.starts_with("receiving").then_some(()))?;
        Ok(process)
    }
}

fn moved(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let three = Three::new(lab, far_runs)?;
    let server = EchoServer::start(&three.world.server, three.world.at_server.ipv4()?)?;
    let mut far = Many::open(&three.world.laptop, &server, 3)?;
    let mut echo = |what: &str| -> Result<()> {
        let report = far.echo(SOON * patience())?;
        let slowest = report.slowest().unwrap_or_default();
        expect!(report.answered() == 3, "{what}: {} of 3 connections answered", report.answered());
        println!("    {what}: answers within {:.1} ms", slowest.as_secs_f64() * 1e3);
        Ok(())
    };
    echo("before the move")?;
    if let Some(daemon) = &three.far_daemon {
        let native = || {
            let all = daemon.connections().unwrap_or_default();
            all.iter().filter(|connection| connection.state == ConnectionState::Native).count() == 3
        };
        wait_until(LONG, "the connections are introduced", native)?;
    }
    let receiver = three.receiver("echo")?;
    let to = three.at_acceptor.to_string();
    let from = server.address().to_string();
    step("the connections go to another host");
    let said = three.donor_daemon.cli(&["move", &from, "--to", &to, "--process", "echo"])?;
    print!("{}", said.lines().map(|line| format!("    {line}\n")).collect::<String>());
    expect!(said.lines().filter(|line| line.contains("is with")).count() == 3, "{said}");
    echo("after the move")?;
    three.world.no_resets()?;
    drop(receiver);
    Ok(())
}
