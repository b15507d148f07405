//! Sockets change hosts, and their far ends notice nothing.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_ipc::{Connection, ConnectionState};

use super::world::{LONG, World, site, step};
use super::{Scenario, scenario};
use crate::{
    Attachment, EchoServer, Host, Join, Lab, Many, MonoTime, Process, Result, Ticker, TickerFar, Whimbrel, expect,
    patience, wait_until,
};

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
    scenario(
        "moved-again",
        "a connection that never rests goes to another host and back, again and again; no byte is lost, doubled or late",
        |lab| again(lab, false),
    ),
    scenario("moved-again-direct", "the same with a far end that runs Whimbrel", |lab| again(lab, true)),
];

/// Connections that move together.
const COUNT: usize = 3;
/// How long the far end may wait for an answer on the way.
const SOON: Duration = Duration::from_secs(1);

/// A far end, a donor that serves it, and an acceptor, each in a network of its own.
pub(super) struct Three {
    pub(super) world: World,
    pub(super) donor_daemon: Whimbrel,
    pub(super) acceptor_daemon: Whimbrel,
    pub(super) far_daemon: Option<Whimbrel>,
    pub(super) acceptor: Host,
    at: Attachment,
    at_acceptor: IpAddr,
}

impl Three {
    pub(super) fn new(lab: &mut Lab, far_runs: bool) -> Result<Self> {
        let mut world = World::new(lab, site("a"), site("b"))?;
        let network = world.add(lab, site("c"))?;
        let acceptor = lab.host("acceptor")?;
        let at = acceptor.join(&network.network, &Join::by("eth0"))?;
        let at_acceptor = at.ipv4()?;
        let donor_daemon = world.server.whimbrel()?;
        let acceptor_daemon = acceptor.whimbrel()?;
        let far_daemon = if far_runs { Some(world.laptop.whimbrel()?) } else { None };
        donor_daemon.befriend(&acceptor_daemon, world.at_server.ipv4()?)?;
        Ok(Self { world, donor_daemon, acceptor_daemon, far_daemon, acceptor, at, at_acceptor })
    }
}

/// Moves of one connection.
const TIMES: usize = 6;

fn again(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let three = Three::new(lab, far_runs)?;
    let Three { world, donor_daemon, acceptor_daemon, far_daemon, .. } = &three;
    let every = Duration::from_millis(1);
    let mut tickers = [
        Ticker::start(donor_daemon, world.at_server.ipv4()?, "desk", every)?,
        Ticker::start(acceptor_daemon, three.at_acceptor, "guest", every)?,
    ];
    let mut far = TickerFar::connect(&world.laptop, tickers[0].address())?;
    far.wait_progress(100, LONG)?;
    if let Some(daemon) = far_daemon {
        let native = || daemon.connections().is_ok_and(|all| all.iter().any(|c| c.state == ConnectionState::Native));
        wait_until(LONG, "the connection is introduced", native)?;
    }
    let mut until = 0;
    for number in 0..TIMES {
        let (daemon, to) = if number % 2 == 0 { (donor_daemon, "guest") } else { (acceptor_daemon, "desk") };
        let before = MonoTime::now();
        let said = daemon.cli(&["move", &far.local().to_string(), "--to", to, "--process", to])?;
        expect!(said.contains("is with"), "{said}");
        let (from, end) = tickers[number % 2].ticked()?;
        expect!(from == until, "a sender began with byte {from} after byte {until}");
        until = end;
        far.wait_progress(100, LONG)?;
        let gap = far.longest_gap(before)?.map(|(begun, ended)| ended.since(begun)).unwrap_or_default();
        println!("    to {to}: nothing was heard for {:.1} ms", gap.as_secs_f64() * 1e3);
        expect!(gap < SOON * patience(), "the far end heard nothing for {gap:?}");
        if let Some(far) = far_daemon {
            straight(far, if number % 2 == 0 { acceptor_daemon } else { donor_daemon })?;
        }
    }
    world.no_resets()
}

/// A far end that runs Whimbrel has its connection with the very host that has the socket now, with nobody in between.
fn straight(far: &Whimbrel, owner: &Whimbrel) -> Result<()> {
    let key = owner.status()?.public_key;
    let with = |all: Vec<Connection>| all.iter().any(|found| found.peer.as_ref().is_some_and(|peer| peer.key == key));
    wait_until(LONG, "the far end is led to the host that has the socket", || far.connections().is_ok_and(with))
}

fn moved(lab: &mut Lab, far_runs: bool) -> Result<()> {
    let mut three = Three::new(lab, far_runs)?;
    let server = EchoServer::start(&three.world.server, three.world.at_server.ipv4()?)?;
    let mut far = Many::open(&three.world.laptop, &server, COUNT)?;
    let mut echo = |what: &str| -> Result<()> {
        let report = far.echo(LONG)?;
        let slowest = report.slowest().unwrap_or_default();
        expect!(report.answered() == COUNT, "{what}: {} of {COUNT} connections answered", report.answered());
        println!("    {what}: answers within {:.1} ms", slowest.as_secs_f64() * 1e3);
        expect!(slowest < SOON * patience(), "{what}: the slowest took {slowest:?}");
        Ok(())
    };
    echo("before the move")?;
    if let Some(daemon) = &three.far_daemon {
        let native = || {
            let all = daemon.connections().unwrap_or_default();
            all.iter().filter(|connection| connection.state == ConnectionState::Native).count() == COUNT
        };
        wait_until(LONG, "the connections are introduced", native)?;
    }
    let _receiver = receiver(&three.acceptor_daemon, "echo")?;
    let at_server = server.address().to_string();
    step("the connections go to another host");
    give(&three.donor_daemon, &at_server, &three.at_acceptor.to_string(), "echo")?;
    echo("after the move")?;

    three.acceptor_daemon.wait_event("carrier-changed", 0, LONG)?;
    // What is answered rewritten once is sent so from then on (P-24).
    echo("rewritten")?;
    echo("rewritten both ways")?;

    step("the acceptor's daemon is killed");
    three.acceptor_daemon.kill()?;
    echo("without it")?;
    three.acceptor_daemon.restart()?;
    echo("with another")?;
    step("the donor's daemon is killed");
    three.donor_daemon.kill()?;
    echo("without it")?;
    three.donor_daemon.restart()?;
    echo("with another")?;

    step("the acceptor roams");
    let elsewhere = three.world.b.clone();
    three.acceptor.roam(&three.at, &elsewhere.network, &Join::by("eth0"))?;
    echo("from where it is now")?;

    step("the connections come back");
    let _home = receiver(&three.donor_daemon, "home")?;
    give(&three.acceptor_daemon, &at_server, "desk", "home")?;
    echo("at home")?;
    three.world.no_resets()
}

/// A program that goes on with each connection that comes under a name.
fn receiver(daemon: &Whimbrel, name: &str) -> Result<Process> {
    let mut process = daemon.spawn_cli(&["receive", name, "--", "cat"])?;
    process.wait_line(LONG, "it receives", |line| line.starts_with("receiving").then_some(()))?;
    Ok(process)
}

/// Gives all connections of a server away.
fn give(from: &Whimbrel, connections: &str, to: &str, receiver: &str) -> Result<()> {
    let said = from.cli(&["move", connections, "--to", to, "--process", receiver])?;
    expect!(said.lines().filter(|line| line.contains("is with")).count() == COUNT, "{said}");
    Ok(())
}
