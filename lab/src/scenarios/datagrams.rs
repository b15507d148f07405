//! A server with one UDP socket, which is not connected, and its clients, of whatever kind.

use std::net::IpAddr;
use std::time::Duration;

use super::world::{LONG, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Gateway, Host, Lab, Process, Result, SiteSpec, Whimbrel, expect, patience, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "udp-server",
        "200 connected clients of a server with one UDP socket go on when their host moves, and when the server's does",
        |lab| moves(lab, site("a"), site("b"), Some("0.0.0.0"), Kind::Connected),
    ),
    scenario("udp-server-nat", "the same clients go on from one NAT to another", |lab| {
        let nat = Gateway::Nat { random_ports: true };
        moves(lab, site("a").behind(nat), site("b").behind(nat), None, Kind::Connected)
    }),
    scenario(
        "udp-unconnected",
        "200 clients whose sockets are not connected, nor bound to an address, and such a server: either host moves",
        |lab| moves(lab, site("a"), site("b"), Some("0.0.0.0"), Kind::Unconnected),
    ),
    scenario("udp-unconnected-nat", "the same clients go on from one NAT to another", |lab| {
        let nat = Gateway::Nat { random_ports: true };
        moves(lab, site("a").behind(nat), site("b").behind(nat), Some("0.0.0.0"), Kind::Unconnected)
    }),
    scenario("udp-server-closed", "the socket of a server is closed: no flow stays at either end", closed),
];

const PROGRAM: &str = include_str!("datagrams/program.py");
const CLIENTS: usize = 200;
/// One client sends every 200 ms, and an echo may be lost with whatever is in flight.
const GOES_ON_WITHIN: Duration = Duration::from_millis(1000);

/// What clients whose sockets are bound to no address may send at a move between the kernel's knowing of an address and
/// the daemon's, with two answers each: 150 ms of the 1,000 a second that they send, on a busy machine.
const STRAYS: u64 = 300;

/// How the clients' sockets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connected,
    Unconnected,
}

/// A server and its clients.
struct Ends {
    server: Process,
    clients: Process,
    /// What the server has taken for another client's.
    strays: u64,
}

impl Ends {
    fn start(world: &World, bound: &str, to: IpAddr, kind: Kind) -> Result<Self> {
        let run = |host: &Host, arguments: &[String]| -> Result<Process> {
            host.command("python3").args(["-c", PROGRAM]).args(arguments).label(&arguments[0]).spawn()
        };
        let mut server = run(&world.server, &["server".to_owned(), bound.to_owned()])?;
        let port: u16 =
            server.wait_line(LONG, "the server is there", |line| line.strip_prefix("ready ")?.parse().ok())?;
        let kind = if kind == Kind::Connected { "connected" } else { "not" };
        let arguments = ["clients".to_owned(), to.to_string(), port.to_string(), CLIENTS.to_string(), kind.to_owned()];
        let mut clients = run(&world.laptop, &arguments)?;
        clients.wait_line(LONG, "the clients are there", |line| line.starts_with("ready").then_some(()))?;
        Ok(Self { server, clients, strays: 0 })
    }

    /// Each client has an echo of something that it sends after now, within what a move may take, and is to the server
    /// whom it was.
    fn go_on_promptly(&mut self, what: &str) -> Result<()> {
        self.clients.send_line("all")?;
        let told = |line: &str| {
            let mut words = line.strip_prefix("all ")?.split(' ').map(str::parse::<u64>);
            Some((words.next()?.ok()?, words.next()?.ok()?))
        };
        let (took, strays) = self.clients.wait_line(LONG, "all clients are answered", told)?;
        expect!(self.server.is_running(), "the server has ended: {}", self.server.stderr());
        let strays = strays - std::mem::replace(&mut self.strays, strays);
        println!("    {what}: all are answered after {took} ms; {strays} taken for another's");
        let took = Duration::from_millis(took);
        expect!(took < GOES_ON_WITHIN * patience(), "{what}: the slowest was answered after {took:?} only");
        expect!(strays <= STRAYS * u64::from(patience()), "{what}: {strays} came by another name");
        Ok(())
    }
}

/// Waits until both daemons have introduced so many flows.
fn introduced(daemons: [&Whimbrel; 2], count: usize) -> Result<()> {
    wait_for(LONG * 2, &format!("{count} flows are introduced"), || {
        let known = [daemons[0].status()?, daemons[1].status()?].map(|status| status.counts.introduced);
        Ok((known == [count; 2]).then_some(()))
    })
}

/// `bound`: the server's address, where that is not the one at which its clients meet it.
fn moves(lab: &mut Lab, a: SiteSpec, b: SiteSpec, bound: Option<&str>, kind: Kind) -> Result<()> {
    let public = !matches!(a.gateway, Gateway::Nat { .. });
    let mut world = World::new(lab, a, b)?;
    let elsewhere = world.add(lab, site("t"))?;
    let (mut client, mut server) = world.daemons()?;
    let to = world.at_server.ipv4()?;
    let mut ends = Ends::start(&world, bound.unwrap_or(&to.to_string()), to, kind)?;
    ends.go_on_promptly("nothing has moved")?;
    introduced([&client, &server], CLIENTS)?;
    for (daemon, unconnected) in [(&client, kind == Kind::Unconnected), (&server, true)] {
        let shown = daemon.connections()?;
        let count = shown.iter().filter(|shown| shown.unconnected).count();
        expect!(count == if unconnected { CLIENTS } else { 0 }, "{count} are unconnected");
        expect!(shown.iter().filter(|shown| shown.process.is_some()).count() >= CLIENTS, "whose they are is not shown");
    }
    for to in [world.b.clone(), world.a.clone(), world.b.clone()] {
        step("the clients' host moves");
        world.roam(&to)?;
        ends.go_on_promptly("the clients have moved")?;
    }
    if public {
        step("the server's host moves");
        world.roam_server(&elsewhere)?;
        ends.go_on_promptly("the server has moved")?;
    }
    step("the server's daemon is killed");
    server.kill()?;
    server.restart()?;
    ends.go_on_promptly("a daemon was started anew")?;
    introduced([&client, &server], CLIENTS)?;
    step("the clients end");
    ends.clients.close_stdin();
    ends.clients.wait_success(LONG)?;
    introduced([&client, &server], 0)?;
    all_run(&mut [&mut client, &mut server])
}

fn closed(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let to = world.at_server.ipv4()?;
    // It takes IPv4 as well.
    let mut ends = Ends::start(&world, "::", to, Kind::Connected)?;
    ends.go_on_promptly("nothing has moved")?;
    introduced([&client, &server], CLIENTS)?;
    let b = world.b.clone();
    world.roam(&b)?;
    ends.go_on_promptly("the clients have moved")?;
    step("the server ends");
    ends.server.kill()?;
    wait_for(LONG, "the server has no flows any more", || Ok((server.status()?.counts.introduced == 0).then_some(())))?;
    wait_for(LONG, "nor have the clients", || Ok((client.status()?.counts.introduced == 0).then_some(())))?;
    all_run(&mut [&mut client, &mut server])
}
