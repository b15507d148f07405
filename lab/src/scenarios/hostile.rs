//! Others on the network who send what they should not: copies, mutilated ones and inventions of what the daemons say.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use whimbrel_ipc::{ConnectionState, EventRecord};

use super::world::{LONG, RATE, SOME, World, all_run, is_native, ms, site, step};
use super::{Scenario, scenario};
use crate::shower::{Overtaking, Shower, exchanged};
use crate::{
    Direction, Flood, FlowPair, Gateway, Host, Join, Lab, MonoTime, PairOptions, Process, Random, Rates, Result,
    SeenIndex, Side, UdpRelay, Whimbrel, expect, patience, wait_for, wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "shower",
        "control packets, copied, cut, damaged, invented and from elsewhere, rain on both daemons during four moves",
        shower,
    ),
    scenario(
        "overtaken",
        "somebody on the path sends a copy of every control packet from its own address, before the true one arrives: connections go on, except behind a NAT",
        overtaken,
    ),
    scenario(
        "flood",
        "a peer floods the server with introductions and control packets: others are introduced, roam and are served, and it can be stopped",
        flood,
    ),
    scenario(
        "local-thief-udp",
        "a local user of a host without Whimbrel opens port 2031 and claims a conversation over UDP",
        thief,
    ),
];

/// UDP port of the control protocol.
const PORT: u16 = 2031;
/// Datagrams that rain before memory is measured first: by then all that may be remembered of strangers is.
const WARM_UP: u64 = 8_000;
/// Datagrams that rain at least after that.
const SHOWER: u64 = 16_000;
/// By how much a daemon's memory may grow in the first part, and then in the second, KiB.
const GROWTH: [u64; 2] = [8 * 1024, 2 * 1024];
/// Events that a daemon may tell during all of it: those of the moves, and some of strangers.
const EVENTS: usize = 400;
/// By how much a copy of an update may come before the update itself: what is between them and the server. The laptop
/// says it again after 60 ms (P-12).
const AHEAD: Duration = Duration::from_millis(40);

/// VmRSS in KiB (proc_pid_status(5)).
pub(super) fn resident(process: &Process) -> Result<u64> {
    let path = format!("/proc/{}/status", process.pid());
    let text = std::fs::read_to_string(&path).map_err(|e| crate::Error::call("read", path, e))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| crate::Error::Output {
        program: "/proc/PID/status".into(),
        expected: "a number for VmRSS",
        got: text.chars().take(300).collect(),
    })
}

fn resident_both(client: &mut Whimbrel, server: &mut Whimbrel) -> Result<[u64; 2]> {
    Ok([resident(client.process())?, resident(server.process())?])
}

/// The attacker: a host in a network of its own, further away than the laptop's, so that its copies come second.
fn attacker(world: &mut World, lab: &mut Lab, delay: u64) -> Result<(Host, Ipv4Addr)> {
    let shape = crate::Shape::delay_rate(delay, 100);
    let c = world.add(lab, crate::SiteSpec::named("c").uplink(shape))?;
    let host = lab.host("attacker")?;
    let at = host.join(&c.network, &Join::default())?.v4.ok_or_else(|| crate::Error::Usage("no address".into()))?;
    Ok((host, at))
}

fn shower(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (attacker, at_attacker) = attacker(&mut world, lab, 40)?;
    // Everything that is ever said, the first contact included, is there to be repeated.
    let shower = Shower::new(Random::new(lab.seed()));
    for site in [&world.a, &world.b, &world.s] {
        shower.listen(site.link()?);
    }
    let (mut client, mut server) = world.daemons()?;
    let mut pairs = [world.stream()?, world.stream()?];
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    let keys = [client.status()?.public_key, server.status()?.public_key];
    let memory = resident_both(&mut client, &mut server)?;
    let events = [client.status()?.newest_event, server.status()?.newest_event];
    let (asked, answered) = exchanged(world.campus.sites()[3].link()?);

    step("strangers' packets and those of the peer, from two places");
    let (a, b) = (world.a.clone(), world.b.clone());
    let mut places = vec![at_attacker];
    places.extend((40..60).map(|n| Ipv4Addr::from(u32::from(at_attacker) - 10 + n)));
    let hosts = [world.at.v4, world.at_server.v4].into_iter().flatten();
    let targets = hosts.map(|address| SocketAddrV4::new(address, PORT)).collect();
    let rain = shower.start(&[&world.campus.core, &attacker], places, targets)?;
    rain.wait(WARM_UP, 3 * LONG)?;
    let warm = resident_both(&mut client, &mut server)?;
    let mut been = Vec::new();
    for (n, to) in [&b, &a, &b, &a].into_iter().enumerate() {
        step(if n % 2 == 0 { "to network b" } else { "to network a" });
        world.roam(to)?;
        been.push(std::net::SocketAddr::new(world.at.ipv4()?, PORT).to_string());
        for pair in &mut pairs {
            world.goes_on(pair)?;
        }
    }
    rain.wait(WARM_UP + SHOWER, 3 * LONG)?;
    let sent = rain.stop()?;
    for pair in &mut pairs {
        pair.wait_progress(SOME, LONG)?;
        is_native(&client, Side::Client, pair)?;
    }

    let after = resident_both(&mut client, &mut server)?;
    println!("    {sent} packets; memory {memory:?} KiB, then {warm:?}, then {after:?}");
    for n in 0..2 {
        expect!(warm[n] <= memory[n] + GROWTH[0], "memory grew from {} to {} KiB", memory[n], warm[n]);
        expect!(after[n] <= warm[n] + GROWTH[1], "memory grew on from {} to {} KiB", warm[n], after[n]);
    }
    // P-2, P-18.
    println!("    {} bytes of the attacker's network were answered with {}", asked.get(), answered.get());
    expect!(answered.get() <= asked.get(), "{} bytes came for {}", answered.get(), asked.get());
    for (daemon, (since, other)) in [&client, &server].into_iter().zip(events.into_iter().zip([&keys[1], &keys[0]])) {
        let host = daemon.host().name().to_owned();
        let told = daemon.events(since)?;
        let mut kinds: Vec<&str> = told.iter().map(|event| event.kind.as_str()).collect();
        kinds.sort_unstable();
        println!("    {host}: {} events: {kinds:?}", told.len());
        expect!(told.len() <= EVENTS, "{} events on {host}", told.len());
        let count = |kind: &str| kinds.iter().filter(|k| **k == kind).count();
        for kind in ["op-failed", "key-mismatch", "flow-gone", "introduction-failed"] {
            expect!(count(kind) == 0, "{} events {kind} on {host}", count(kind));
        }
        // Whoever cannot make a session is no peer.
        let peers = daemon.peers()?;
        expect!(peers.len() == 1 && &peers[0].key == other, "peers on {host}: {peers:?}");
    }
    let told = server.events(events[1])?;
    let moved: Vec<_> = told.iter().filter(|event| event.kind == "peer-moved").collect();
    let is_own = |event: &&EventRecord| event.fields["to"].as_str().is_some_and(|to| been.iter().any(|own| own == to));
    let own: Vec<_> = moved.iter().filter(|event| is_own(event)).map(|event| &event.fields["to"]).collect();
    expect!(own.iter().copied().eq(&been), "the server tells of moves to {own:?}, and the laptop was at {been:?}");
    // Somebody on the way may have sent a copy ahead: it is left when the update arrives (P-17).
    for pair in moved.windows(2).filter(|pair| !is_own(&pair[0])) {
        let followed = Duration::from_millis(pair[1].monotonic_ms - pair[0].monotonic_ms);
        println!("    a copy from {} was followed for {followed:?}", pair[0].fields["to"]);
        expect!(followed < AHEAD * patience(), "a copy from {} was followed for {followed:?}", pair[0].fields["to"]);
    }
    expect!(moved.last().is_some_and(is_own), "{moved:?}");
    for pair in pairs {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}

/// A copy that comes first is left for the update itself, behind a NAT as well (P-17): a connection goes on while each
/// control packet is overtaken. The attacker gets no more of it than it sent (P-18), and nothing is left of it
/// afterwards.
fn overtaken(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (attacker, at_attacker) = attacker(&mut world, lab, 1)?;
    let behind = world.add(lab, site("n").behind(Gateway::Nat { random_ports: false }))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let (a, b) = (world.a.clone(), world.b.clone());
    let copies = Overtaking::start(&attacker, at_attacker)?;
    let (asked, answered) = exchanged(world.campus.sites()[3].link()?);
    for to in [&behind, &b, &a] {
        let copied = copies.sent();
        copies.overtake(to.link()?, Direction::Up);
        world.roam(to)?;
        world.goes_on(&mut pair)?;
        copies.stop();
        expect!(copies.sent() > copied, "nothing was overtaken");
    }
    println!("    {} bytes of the attacker's were answered with {}", asked.get(), answered.get());
    expect!(answered.get() <= 3 * asked.get(), "{} bytes came for {}", answered.get(), asked.get());
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// A peer that has one connection sends introductions for its session as fast as it can, and what looks like control
/// packets.
fn flood(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (attacker, _) = attacker(&mut world, lab, 1)?;
    let at_server = world.at_server.ipv4()?;
    let index = SeenIndex::watch(world.campus.sites()[3].link()?, at_server);
    let (mut client, mut server) = world.daemons()?;
    let mut peer = attacker.whimbrel()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let theirs = FlowPair::tcp(&attacker, &world.server, at_server, &PairOptions::rate(RATE / 4))?;
    peer.wait_introduced(&theirs, LONG)?;
    expect!(index.get().is_some(), "the attacker's introduction was not seen");

    let rates = Rates { introductions: 30_000, control: 5_000 };
    let flood = Flood::start(&attacker, at_server, index, rates, Random::new(lab.seed()))?;
    let excess = || -> Result<u64> {
        let figures = server.cli(&["metrics"])?;
        let line = figures.lines().find(|line| line.contains("\"introduction_excess\""));
        Ok(line.and_then(|line| line.split_whitespace().last()?.parse().ok()).unwrap_or(0))
    };
    wait_for(LONG, "more introductions come than are looked at", || Ok((excess()? > 20_000).then_some(())))?;
    step("a connection of somebody else's");
    let second = world.stream()?;
    client.wait_introduced(&second, LONG)?;
    step("a hand-off of somebody else's");
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    step("a question");
    server.status()?;
    println!("    {} datagrams so far, {} introductions not looked at", flood.sent(), excess()?);
    step("the end");
    let asked = MonoTime::now();
    server.stop()?;
    println!("    ended after {:.1} ms", ms(Some(MonoTime::now().since(asked))));
    drop(flood);
    all_run(&mut [&mut client, &mut peer])
}

/// The server opens the conversation, so it asks the victim's address, and the accomplice's daemon answers there.
fn thief(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let c = world.add(lab, site("c"))?;
    let accomplice = lab.host("accomplice")?;
    let at_c = accomplice.join(&c.network, &Join::default())?;
    let mut server = world.server.whimbrel()?;
    let mut thief = accomplice.whimbrel()?;
    let victim = world.at.ipv4()?;
    let listen = std::net::SocketAddr::new(victim, PORT);
    let relay = UdpRelay::start(&world.laptop, listen, std::net::SocketAddr::new(at_c.ipv4()?, PORT))?;

    let mut pair = FlowPair::udp(&world.server, &world.laptop, victim, &PairOptions::rate(RATE / 4))?;
    server.wait_event("peer-reached", 0, LONG)?;
    let until = MonoTime::now() + Duration::from_secs(8);
    wait_until(Duration::from_secs(9), "introductions have had their time", || MonoTime::now() > until)?;
    let never =
        |c: &whimbrel_ipc::Connection| matches!(c.state, ConnectionState::Pending | ConnectionState::Unprotected);
    server.wait_connection(pair.local(), pair.peer(), LONG, "not introduced", never)?;

    // The accomplice moves with all that it claims.
    let at_b = accomplice.roam(&at_c, &world.b.network, &Join::default())?.ipv4()?;
    wait_for(LONG, "the server knows where the accomplice is", || {
        Ok(server.peers()?.iter().any(|peer| peer.address.ip() == at_b).then_some(()))
    })?;
    let before = [pair.status(Side::Client)?, pair.status(Side::Server)?];
    pair.wait_progress(1000, LONG)?;
    let after = [pair.status(Side::Client)?, pair.status(Side::Server)?];
    for (from, to) in [(0, 1), (1, 0)] {
        let (sent, received) = (after[from].sent - before[from].sent, after[to].received - before[to].received);
        println!("    {received} of {sent} datagrams arrived after the accomplice moved");
        // What is on the way when the counters are read apart.
        expect!(received + 100 >= sent, "{received} of {sent} datagrams arrived");
    }
    server.wait_connection(pair.local(), pair.peer(), LONG, "not introduced", never)?;
    drop(relay);
    all_run(&mut [&mut server, &mut thief])
}
