//! A server with one UDP socket, which is not connected, and its clients, of whatever kind.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::hostile::resident;
use super::world::{LONG, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Gateway, Host, Join, Lab, Process, Result, SiteSpec, Whimbrel, expect, patience, wait_for};

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
    scenario(
        "udp-neighbours",
        "neighbours behind the same NAT guess the ports of a laptop's clients, one with a daemon of its own: they get \
         nothing but what they asked for, neither before the laptop moves nor after, and what they ask for also where \
         its names are theirs",
        neighbours,
    ),
    scenario(
        "udp-many-remotes",
        "one host sends to the server from 100,000 tuples, and a program of the laptop's to 50,000 remotes by one \
         socket: the daemons do not grow, and what honest clients have goes on, also when the laptop moves",
        many_remotes,
    ),
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

fn run(host: &Host, arguments: &[String]) -> Result<Process> {
    host.command("python3").args(["-c", PROGRAM]).args(arguments).label(&arguments[0]).spawn()
}

/// Starts a server, at any port where none is given. Gives its port.
fn serve(world: &World, bound: &str, port: u16) -> Result<(Process, u16)> {
    let mut server = run(&world.server, &["server".to_owned(), bound.to_owned(), port.to_string()])?;
    let port = server.wait_line(LONG, "the server is there", |line| line.strip_prefix("ready ")?.parse().ok())?;
    Ok((server, port))
}

/// Clients on one host.
struct Clients {
    process: Process,
    /// What the server has taken for another client's.
    strays: u64,
    /// What was an answer to another program.
    foreign: u64,
}

impl Clients {
    /// `more`: further arguments.
    fn start(host: &Host, to: SocketAddr, count: usize, kind: Kind, more: &[String]) -> Result<Self> {
        let kind = if kind == Kind::Connected { "connected" } else { "not" };
        let (address, port) = (to.ip().to_string(), to.port().to_string());
        let arguments = [&["clients".to_owned(), address, port, count.to_string(), kind.to_owned()], more].concat();
        let mut process = run(host, &arguments)?;
        process.wait_line(LONG, "the clients are there", |line| line.starts_with("ready").then_some(()))?;
        Ok(Self { process, strays: 0, foreign: 0 })
    }

    /// Each has an echo of something that it sends after now. Tells how long the slowest took, how many datagrams the
    /// server has taken for another's since it was asked last, and how many were answers to others.
    fn all_answered(&mut self) -> Result<(Duration, u64, u64)> {
        let ended = self.process.send_line("all").err();
        expect!(ended.is_none(), "the clients have ended: {}", self.process.stderr());
        let told = |line: &str| {
            let mut words = line.strip_prefix("all ")?.split(' ').map(str::parse::<u64>);
            Some((words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?))
        };
        let (took, strays, foreign) = self.process.wait_line(LONG, "all clients are answered", told)?;
        let new = (strays - std::mem::replace(&mut self.strays, strays), foreign - self.foreign);
        self.foreign = foreign;
        Ok((Duration::from_millis(took), new.0, new.1))
    }

    /// Whom the server took the first one for, last.
    fn name(&mut self) -> Result<String> {
        self.process.send_line("name")?;
        self.process.wait_line(LONG, "the first client's name", |line| Some(line.strip_prefix("name ")?.to_owned()))
    }

    fn end(mut self) -> Result<()> {
        self.process.close_stdin();
        self.process.wait_success(LONG)
    }
}

/// A server and its clients.
struct Ends {
    server: Process,
    clients: Clients,
}

impl Ends {
    fn start(world: &World, bound: &str, to: IpAddr, kind: Kind) -> Result<Self> {
        let (server, port) = serve(world, bound, 0)?;
        let clients = Clients::start(&world.laptop, SocketAddr::new(to, port), CLIENTS, kind, &[])?;
        Ok(Self { server, clients })
    }

    /// Each client has an echo of something that it sends after now, within what a move may take, and is to the server
    /// whom it was.
    fn go_on_promptly(&mut self, what: &str) -> Result<()> {
        let (took, strays, foreign) = self.clients.all_answered()?;
        expect!(self.server.is_running(), "the server has ended: {}", self.server.stderr());
        println!("    {what}: all are answered after {} ms; {strays} taken for another's", took.as_millis());
        expect!(foreign == 0, "{what}: {foreign} were answers to others");
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
    ends.clients.end()?;
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

/// Clients of the laptop's, and their ports: of those that kernels draw, as what is sent from others introduces
/// nothing.
const HONEST: usize = 20;
const FIRST: u16 = 40_100;
/// Ports that the neighbour with a daemon tries: the laptop's are among them, and there are more than one address may
/// have flows (P-224).
const GUESSED: usize = 300;
const FIRST_GUESSED: u16 = 40_000;
/// After how long a NAT forgets a name that nobody uses.
const FORGETS: Duration = Duration::from_secs(3);
/// What may go wrong with the answers to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Astray {
    /// Nothing.
    None,
    /// Their host has moved: the server may take for another's what they send before its daemon knows that.
    Moved,
    /// Another has the same name: what comes of his before they are answered takes their answer along, however long
    /// the server takes for that.
    Shared,
}

/// The clients of all that there are go on.
fn all_go_on(what: &str, all: &mut [(&str, &mut Clients, Astray)]) -> Result<()> {
    for (who, clients, astray) in all {
        let (took, strays, foreign) = clients.all_answered()?;
        let took = took.as_millis();
        println!("    {what}: {who}'s after {took} ms, {strays} taken for another's, {foreign} of others");
        let strays_most = if *astray == Astray::None { 0 } else { STRAYS * u64::from(patience()) };
        expect!(strays <= strays_most, "{what}: {strays} of {who}'s came by another name");
        expect!(foreign == 0 || *astray == Astray::Shared, "{what}: {who} had {foreign} answers to others");
    }
    Ok(())
}

/// The NAT gives whoever asks first the port that it asks for. So what a neighbour does from the laptop's ports comes
/// by other names as long as the laptop's are in use, and by the very same once the NAT has forgotten them.
fn neighbours(lab: &mut Lab) -> Result<()> {
    let nat = Gateway::Nat { random_ports: false };
    let mut world = World::new(lab, site("a").behind(nat), site("b"))?;
    let [tablet, phone] = [lab.host("tablet")?, lab.host("phone")?];
    let at_tablet = tablet.join(&world.a.network, &Join::default())?;
    phone.join(&world.a.network, &Join::default())?;
    let (mut client, mut server) = world.daemons()?;
    let mut guesses = tablet.whimbrel()?;
    // A port of choice, as servers have: what is sent from one that the kernel has drawn is introduced by who sends it,
    // whoever it is for behind a NAT where a peer is, and read there (decision 0098).
    let (mut process, port) = serve(&world, "0.0.0.0", world.server.next_port())?;
    let to = SocketAddr::new(world.at_server.ipv4()?, port);
    let start = |host: &Host, count: usize, first: u16| {
        Clients::start(host, to, count, Kind::Unconnected, &[host.name().to_owned(), first.to_string()])
    };
    let mut own = start(&world.laptop, HONEST, FIRST)?;
    all_go_on("alone", &mut [("the laptop", &mut own, Astray::None)])?;
    let name = own.name()?;
    expect!(name.ends_with(&format!(" {FIRST}")), "the NAT has not kept port {FIRST}: {name}");

    step("two neighbours send from the same ports");
    let mut guessed = start(&tablet, GUESSED, FIRST_GUESSED)?;
    let mut bare = start(&phone, HONEST, FIRST)?;
    let none = Astray::None;
    all_go_on(
        "together",
        &mut [("laptop", &mut own, none), ("tablet", &mut guessed, none), ("phone", &mut bare, none)],
    )?;
    expect!(guessed.name()? != name && bare.name()? != name, "the NAT gives two hosts one name");
    wait_for(LONG * 2, "the laptop's flows are introduced, and as many as there is room for", || {
        let known = [client.status()?, guesses.status()?].map(|status| status.counts.introduced);
        Ok((known[0] == HONEST && known[1] >= GUESSED / 2).then_some(()))
    })?;

    step("the laptop moves");
    for name in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
        world.a.router.sysctl(&format!("net.netfilter.{name}"), &FORGETS.as_secs().to_string())?;
    }
    // What is in use has the new limit from the next datagram on.
    all_go_on(
        "together",
        &mut [("laptop", &mut own, none), ("tablet", &mut guessed, none), ("phone", &mut bare, none)],
    )?;
    let b = world.b.clone();
    world.roam(&b)?;
    // What its sockets send before its daemon knows of the move.
    let moved = Astray::Moved;
    all_go_on(
        "it has moved",
        &mut [("laptop", &mut own, moved), ("tablet", &mut guessed, none), ("phone", &mut bare, none)],
    )?;

    step("the NAT has forgotten the laptop's names, and gives them to a neighbour");
    bare.end()?;
    let mut heirs = None;
    wait_for(LONG * 2, "a neighbour has the names that the laptop had", || {
        let mut all = start(&phone, HONEST, FIRST)?;
        all.all_answered()?;
        if all.name()? == name {
            heirs = Some(all);
            return Ok(Some(()));
        }
        all.end()?;
        // Names that are asked for again are not forgotten, and nothing tells when a NAT has.
        std::thread::sleep(FORGETS * 3 / 2);
        Ok(None)
    })?;
    let Some(mut heirs) = heirs else { return Ok(()) };
    let shared = Astray::Shared;
    for what in ["two have one name", "still", "and again"] {
        all_go_on(
            what,
            &mut [("laptop", &mut own, shared), ("tablet", &mut guessed, none), ("phone", &mut heirs, shared)],
        )?;
    }

    step("the neighbour with a daemon moves, with all that it has tried");
    guesses.host().roam(&at_tablet, &b.network, &Join::default())?;
    // Of its own those go on that there was room for (P-224).
    for what in ["both have moved", "still"] {
        all_go_on(what, &mut [("laptop", &mut own, shared), ("phone", &mut heirs, shared)])?;
    }
    expect!(process.is_running(), "the server has ended: {}", process.stderr());
    for clients in [own, guessed, heirs] {
        clients.end()?;
    }
    all_run(&mut [&mut client, &mut guesses, &mut server])
}

/// Of the tuples that somebody sends from: so many ports of each of two addresses, so many a second.
const TUPLES: usize = 50_000;
const TUPLES_A_SECOND: u32 = 4_000;
/// Remotes that a program sends to each of two times.
const REMOTES: usize = 25_000;
/// By how much a daemon's memory may grow in the first half, and then in the second, KiB.
const GROWTH: [u64; 2] = [12 * 1024, 2 * 1024];

/// What remembers remotes is full after the first half, so that the second shows whether anything is kept of each.
fn many_remotes(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let c = world.add(lab, site("c"))?;
    let somebody = lab.host("somebody")?;
    let at = somebody.join(&c.network, &Join::default())?.ipv4()?;
    let other = "198.51.100.200";
    somebody.ip([format!("address add {other}/25 dev wlan0")])?;
    world.campus.core.ip(["route add blackhole 198.18.0.0/15".to_owned()])?;
    let (mut client, mut server) = world.daemons()?;
    let (mut process, port) = serve(&world, "0.0.0.0", 0)?;
    let to = SocketAddr::new(world.at_server.ipv4()?, port);
    let more = ["laptop".to_owned(), FIRST.to_string()];
    let mut own = Clients::start(&world.laptop, to, HONEST, Kind::Unconnected, &more)?;
    let none = Astray::None;
    all_go_on("alone", &mut [("laptop", &mut own, none)])?;
    introduced([&client, &server], HONEST)?;
    let mut tuples = run(&somebody, &["tuples".to_owned(), to.ip().to_string(), port.to_string()])?;
    let mut spread = run(&world.laptop, &["spread".to_owned()])?;
    let mut memory = [resident(client.process())?, resident(server.process())?];
    for (half, from) in [at.to_string(), other.to_owned()].into_iter().enumerate() {
        step(&format!("{TUPLES} tuples of {from}, and {REMOTES} remotes"));
        tuples.send_line(&format!("{from} 2048 {TUPLES} {TUPLES_A_SECOND}"))?;
        spread.send_line(&format!("{} {REMOTES}", half * REMOTES + 256))?;
        all_go_on("meanwhile", &mut [("laptop", &mut own, none)])?;
        for process in [&mut tuples, &mut spread] {
            process.wait_line(LONG * 4, "all are sent", |line| line.starts_with("sent").then_some(()))?;
        }
        all_go_on("afterwards", &mut [("laptop", &mut own, none)])?;
        let after = [resident(client.process())?, resident(server.process())?];
        println!("    memory of the daemons: {memory:?} KiB, then {after:?}");
        for (before, after) in memory.iter().zip(&after) {
            expect!(*after <= before + GROWTH[half], "a daemon grew from {before} to {after} KiB");
        }
        memory = after;
    }
    let shown = [&client, &server].map(|daemon| daemon.status().map(|status| status.counts.introduced));
    for introduced in shown {
        expect!(introduced? == HONEST, "others are introduced, or not all of the honest ones");
    }
    step("the laptop moves");
    let b = world.b.clone();
    world.roam(&b)?;
    all_go_on("it has moved", &mut [("laptop", &mut own, Astray::Moved)])?;
    expect!(process.is_running(), "the server has ended: {}", process.stderr());
    own.end()?;
    all_run(&mut [&mut client, &mut server])
}
