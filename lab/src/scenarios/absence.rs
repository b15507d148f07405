//! Hosts that sleep, or vanish without a word, for longer than TCP would wait.

use std::time::Duration;

use rustix::process::Signal;
use whimbrel_ipc::{Away, Carrier, ConnectionState};

use super::world::{LONG, PROMPT, RATE, SOME, World, all_run, carried_by, goes_on_since, is_native, ms, site, step};
use super::{Scenario, scenario};
use crate::{
    FlowPair, Gateway, Host, Join, Lab, Leave, MonoTime, PairOptions, Result, Side, Whimbrel, expect, patience,
    wait_for, wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "sleep",
        "the laptop sleeps for longer than the server's TCP would wait, and wakes in another network and then at home",
        sleep,
    ),
    scenario("sleep-nat", "the laptop goes to sleep and wakes behind a NAT", sleep_nat),
    scenario("sleep-restart", "while the laptop sleeps, both daemons are killed: it is suspended still", sleep_restart),
    scenario("server-sleeps", "the server sleeps and wakes where it was, while the laptop moves", server_sleeps),
    scenario(
        "sleep-full",
        "the laptop's sender waits for a closed window when it goes to sleep, and the window opens meanwhile",
        sleep_full,
    ),
    scenario("vanish", "the laptop vanishes without a word for longer than the server's TCP would wait", vanish),
    scenario(
        "vanish-daemon",
        "only the laptop's daemon is gone when a connection stalls: it is found out and goes on",
        vanish_daemon,
    ),
    scenario(
        "started-anew",
        "the laptop sleeps and comes back without its past: the server's end of the connection is reset at once",
        started_anew,
    ),
    scenario(
        "rebooted",
        "the laptop vanishes, and is started anew where it was: the server's ends are reset though it says nothing by itself",
        rebooted,
    ),
    scenario(
        "server-started-anew",
        "the server comes back without its past while the laptop is behind a NAT: the laptop's end is reset",
        server_started_anew,
    ),
    scenario(
        "suspend-one",
        "one of two connections is suspended by itself, through a move and a restart of both daemons",
        suspend_one,
    ),
];

/// A connection of a host that runs nothing, which vanishes as well: how long TCP waits by itself.
pub(super) struct Unprotected {
    host: Host,
    pair: FlowPair,
}

impl Unprotected {
    pub(super) fn new(lab: &mut Lab, world: &World) -> Result<Self> {
        Self::named("bystander", lab, world)
    }

    /// One of several.
    pub(super) fn named(name: &str, lab: &mut Lab, world: &World) -> Result<Self> {
        let host = lab.host(name)?;
        host.join(&world.a.network, &Join::default())?;
        let mut pair = FlowPair::tcp(&host, &world.server, world.at_server.ipv4()?, &PairOptions::rate(RATE))?;
        pair.wait_progress(SOME / 10, LONG)?;
        Ok(Self { host, pair })
    }

    pub(super) fn vanish(&self) -> Result<()> {
        self.host.ip(["link set wlan0 down"])
    }

    /// Waits until the server's end has given up.
    pub(super) fn wait_dead(&self, world: &World) -> Result<()> {
        let client = self.pair.local().to_string();
        wait_for(Duration::from_secs(60), "the server's TCP gives a connection up", || {
            Ok((!world.server.command("ss").args(["-tnH"]).run()?.contains(&client)).then_some(()))
        })?;
        step("the server has given up the connection of a host that vanished as well and runs nothing");
        Ok(())
    }
}

pub(super) fn wait_away(daemon: &Whimbrel, how: Option<Away>) -> Result<()> {
    wait_until(LONG, &format!("the peer is {how:?}"), || {
        daemon.peers().is_ok_and(|peers| peers.first().is_some_and(|peer| peer.away == how))
    })
}

fn sleep(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    // Gives up after 3 s instead of a quarter of an hour.
    world.server.sysctl("net.ipv4.tcp_retries2", "3")?;
    world.laptop.sysctl("net.ipv4.tcp_retries2", "3")?;
    let (mut client, mut server) = world.daemons()?;
    let mut pairs = [world.stream()?, world.stream_to(world.at_server.ipv6()?)?];
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    let unprotected = Unprotected::new(lab, &world)?;
    let told = client.cli(&["suspend"])?;
    expect!(told.starts_with("2 connections wait") && told.contains("Told 1 peer of it."), "{told}");
    expect!(client.status()?.suspended, "the laptop is not suspended");
    let again = client.cli(&["suspend"])?;
    expect!(again == "This host is suspended already. 2 connections wait until `whimbrel resume`.\n", "{again}");
    let refused = client.cli(&["handoff"]).err().map(|error| error.to_string()).unwrap_or_default();
    expect!(refused.contains("this host is suspended. `whimbrel resume`"), "a hand-off meanwhile: {refused}");
    wait_away(&server, Some(Away::Announced))?;
    unprotected.vanish()?;
    let at = world.at.clone();
    world.laptop.leave(&at, Leave::Orderly)?;
    unprotected.wait_dead(&world)?;
    world.at = world.laptop.join(&world.b.network, &Join::default())?;
    let told = client.cli(&["resume"])?;
    expect!(told.contains("2 connections go on"), "{told}");
    for pair in &mut pairs {
        pair.wait_progress(SOME, LONG)?;
    }
    wait_away(&server, None)?;

    // At home again, and asleep without leaving at all.
    client.cli(&["suspend"])?;
    let at = world.at.clone();
    world.laptop.leave(&at, Leave::Orderly)?;
    world.at = world.laptop.join(&world.a.network, &Join::default())?;
    client.cli(&["resume"])?;
    for pair in &mut pairs {
        pair.wait_progress(SOME, LONG)?;
        is_native(&client, Side::Client, pair)?;
    }
    client.cli(&["suspend"])?;
    client.cli(&["resume"])?;
    for pair in pairs {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}

fn sleep_nat(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b").behind(Gateway::Nat { random_ports: true }))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    client.cli(&["suspend"])?;
    wait_away(&server, Some(Away::Announced))?;
    let b = world.b.clone();
    world.roam(&b)?;
    client.cli(&["resume"])?;
    pair.wait_progress(SOME, LONG)?;
    carried_by(&client, Side::Client, &pair, Carrier::Tunnel)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn sleep_restart(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    world.server.sysctl("net.ipv4.tcp_retries2", "3")?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let unprotected = Unprotected::new(lab, &world)?;
    client.cli(&["suspend"])?;
    wait_away(&server, Some(Away::Announced))?;
    server.kill()?;
    client.kill()?;
    unprotected.vanish()?;
    let at = world.at.clone();
    world.laptop.leave(&at, Leave::Orderly)?;
    server.restart()?;
    wait_away(&server, Some(Away::Announced))?;
    unprotected.wait_dead(&world)?;
    world.at = world.laptop.join(&world.b.network, &Join::default())?;
    client.restart()?;
    expect!(client.status()?.suspended, "the laptop is not suspended any more");
    is_held(&client, Side::Client, &pair)?;
    client.cli(&["resume"])?;
    pair.wait_progress(SOME, LONG)?;
    wait_away(&server, None)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn server_sleeps(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    world.laptop.sysctl("net.ipv4.tcp_retries2", "3")?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    server.cli(&["suspend"])?;
    wait_away(&client, Some(Away::Announced))?;
    let b = world.b.clone();
    world.roam(&b)?;
    // Longer than the laptop's TCP would wait.
    wait_for(LONG, "the laptop's sender has backed off", || {
        let timer = pair.status(Side::Client)?.tcp.map_or(0, |tcp| tcp.rto_us);
        Ok((timer >= 6_000_000).then_some(()))
    })?;
    server.cli(&["resume"])?;
    pair.wait_progress(SOME, LONG)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// What a sender in front of a closed window waits for is that it is open. That was said while it slept.
fn sleep_full(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let upload = PairOptions { up: None, down: Some(0), ..PairOptions::default() };
    let mut pair = FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &upload)?;
    client.wait_introduced(&pair, LONG)?;
    pair.process(Side::Server).signal(Signal::STOP)?;
    let probed = |pair: &mut FlowPair, times: u8| {
        wait_for(LONG, &format!("the laptop's sender has probed a closed window {times} times"), || {
            let stopped = pair.status(Side::Client)?.tcp.is_some_and(|tcp| tcp.unacked == 0 && tcp.backoff >= times);
            Ok(stopped.then_some(()))
        })
    };
    probed(&mut pair, 1)?;
    client.cli(&["suspend"])?;
    wait_away(&server, Some(Away::Announced))?;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    pair.process(Side::Server).signal(Signal::CONT)?;
    let mut received = 0;
    wait_for(LONG, "the server's program has read what there was", || {
        let before = std::mem::replace(&mut received, pair.status(Side::Server)?.received);
        Ok((before == received).then_some(()))
    })?;
    // The next probe is more than 5 s away.
    probed(&mut pair, 5)?;
    world.at = world.laptop.join(&world.b.network, &Join::default())?;
    let since = MonoTime::now();
    client.cli(&["resume"])?;
    pair.wait_progress_of(&[Side::Server], SOME, LONG)?;
    let nothing = pair.silence(Side::Server, since)?;
    step(&format!("the server received nothing new for {:.0} ms once the laptop was back", ms(nothing)));
    expect!(nothing.is_some_and(|nothing| nothing < PROMPT * patience()), "nothing new came for {nothing:?}");
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn vanish(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    // Gives up after 13 s.
    world.server.sysctl("net.ipv4.tcp_retries2", "5")?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let unprotected = Unprotected::new(lab, &world)?;
    unprotected.vanish()?;
    let at = world.at.clone();
    world.laptop.leave(&at, Leave::Orderly)?;
    wait_away(&server, Some(Away::Silent))?;
    unprotected.wait_dead(&world)?;
    world.at = world.laptop.join(&world.b.network, &Join::default())?;
    goes_on_since(&mut pair, &world.at)?;
    wait_away(&server, None)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn vanish_daemon(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let since = server.status()?.newest_event;
    client.kill()?;
    // Nothing passes for a while, so that the server's sender stalls and finds nobody to ask.
    let link = world.at.access()?;
    link.cut(crate::Cut::Silent)?;
    server.wait_event("peer-away", since, LONG)?;
    link.restore()?;
    server.wait_event("peer-back", since, LONG)?;
    pair.wait_progress(SOME, LONG)?;
    is_native(&server, Side::Server, &pair)?;
    client.restart()?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// Connections of which the server has something in flight, only receives, and hears nothing at all.
fn of_all_kinds(world: &World, client: &Whimbrel) -> Result<[FlowPair; 3]> {
    let open = |options: PairOptions| FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &options);
    let reads = PairOptions { up: Some(RATE), down: Some(0), ..PairOptions::default() };
    let mut pairs = [world.stream()?, open(reads)?, open(PairOptions::rate(0))?];
    pairs[1].wait_progress_of(&[Side::Server], SOME / 10, LONG)?;
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    Ok(pairs)
}

/// Waits until the server's programs have been told that these connections are over; says how long it took.
fn told_of_the_end(pairs: &mut [FlowPair; 3], since: MonoTime, within: Duration) -> Result<()> {
    for (pair, kind) in pairs.iter_mut().zip(["with data in flight", "that was only read", "on which nothing was said"])
    {
        let error = wait_for(within, &format!("the server's end of the connection {kind} is reset"), || {
            Ok(pair.status(Side::Server)?.error)
        })?;
        step(&format!("{kind}: {error} after {:.0} ms", ms(Some(MonoTime::now() - since))));
        // Of a program that reads and writes at once one half is told of the reset, and the other that nothing can be
        // written any more.
        let is_reset = ["reset", "Broken pipe"].iter().any(|told| error.contains(told));
        expect!(is_reset, "the program was told: {error}");
    }
    Ok(())
}

fn started_anew(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pairs = of_all_kinds(&world, &client)?;
    client.cli(&["suspend"])?;
    wait_away(&server, Some(Away::Announced))?;
    client.kill()?;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    let since = server.status()?.newest_event;
    for pair in &mut pairs {
        expect!(pair.status(Side::Server)?.error.is_none(), "the server's end is not there any more");
    }

    let reborn = lab.host("reborn")?;
    reborn.join(&world.b.network, &Join::default())?;
    let mut daemon = reborn.whimbrel_reborn(&client)?;
    let back = MonoTime::now();
    let mut fresh = FlowPair::tcp(&reborn, &world.server, world.at_server.ipv4()?, &PairOptions::rate(RATE))?;
    // A connection is a second old when its other end is asked (P-15).
    told_of_the_end(&mut pairs, back, (Duration::from_secs(1) + PROMPT) * patience())?;
    server.wait_event("peer-restarted", since, LONG)?;
    // What the host opens in its new life is introduced as ever.
    daemon.wait_introduced(&fresh, LONG)?;
    fresh.wait_progress(SOME, LONG)?;
    fresh.finish(LONG)?;
    all_run(&mut [&mut daemon, &mut server])
}

fn rebooted(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pairs = of_all_kinds(&world, &client)?;
    let since = server.status()?.newest_event;
    client.kill()?;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    server.wait_event("peer-away", since, LONG)?;

    let reborn = lab.host("reborn")?;
    let same = Join { address_v4: world.at.v4, address_v6: world.at.v6, ..Join::default() };
    reborn.join(&world.a.network, &same)?;
    let mut daemon = reborn.whimbrel_reborn(&client)?;
    told_of_the_end(&mut pairs, MonoTime::now(), LONG)?;
    server.wait_event("peer-restarted", since, LONG)?;
    all_run(&mut [&mut daemon, &mut server])
}

fn server_started_anew(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b").behind(Gateway::Nat { random_ports: false }))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Tunnel)?;
    let since = client.status()?.newest_event;
    server.kill()?;
    world.server.leave(&world.at_server, Leave::Orderly)?;
    let reborn = lab.host("reborn")?;
    let same = Join { address_v4: world.at_server.v4, address_v6: world.at_server.v6, ..Join::by("eth0") };
    reborn.join(&world.s.network, &same)?;
    let mut daemon = reborn.whimbrel_reborn(&server)?;
    client.wait_event("peer-restarted", since, LONG)?;
    let there = || -> Result<bool> {
        let sockets = world.laptop.command("ss").args(["-tnH", "state", "established"]).run()?;
        Ok(sockets.contains(&pair.local().to_string()))
    };
    wait_until(LONG, "the laptop's end is reset", || there().is_ok_and(|there| !there))?;
    all_run(&mut [&mut client, &mut daemon])
}

fn suspend_one(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    world.server.sysctl("net.ipv4.tcp_retries2", "3")?;
    let (mut client, mut server) = world.daemons()?;
    let mut pairs = [world.stream()?, world.stream()?];
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    let unprotected = Unprotected::new(lab, &world)?;
    let name = pairs[0].local().to_string();
    let told = client.cli(&["suspend", &name])?;
    expect!(told.starts_with("1 connection waits") && told.contains("Told 1 peer of it."), "{told}");
    for (daemon, end) in [(&client, Side::Client), (&server, Side::Server)] {
        is_held(daemon, end, &pairs[0])?;
        is_native(daemon, end, &pairs[1])?;
    }
    // Who does not have it wait does not have it go on.
    let refused = server.cli(&["resume", &name]).err().map(|error| error.to_string()).unwrap_or_default();
    expect!(refused.contains("it is the peer that has it wait. `whimbrel resume` there"), "{refused}");
    let runs = client.cli(&["resume", &pairs[1].local().to_string()]).err().map(|error| error.to_string());
    expect!(runs.as_ref().is_some_and(|told| told.contains("this connection is not suspended")), "{runs:?}");
    expect!(client.cli(&["connections"])?.contains("held: suspended by hand (1 connection)"), "no reason is told");
    expect!(server.cli(&["connections"])?.contains("held: suspended by the peer (1 connection)"), "no reason is told");
    unprotected.vanish()?;
    let [waits, runs] = &mut pairs;
    runs.wait_progress(SOME, LONG)?;
    unprotected.wait_dead(&world)?;
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(runs)?;
    client.kill()?;
    client.restart()?;
    server.kill()?;
    server.restart()?;
    runs.wait_progress(SOME, LONG)?;
    is_held(&server, Side::Server, waits)?;
    let before = [Side::Client, Side::Server].map(|side| waits.status(side).map(|status| status.received));
    runs.wait_progress(SOME, LONG)?;
    let after = [Side::Client, Side::Server].map(|side| waits.status(side).map(|status| status.received));
    for (before, after) in before.into_iter().zip(after) {
        expect!(before? == after?, "the connection that waits has received something");
    }
    let unknown = client.cli(&["suspend", "192.0.2.99:1"]);
    expect!(unknown.is_err(), "no connection has this name: {unknown:?}");
    client.cli(&["resume", &name])?;

    // The same by its process.
    let process = wait_for(LONG, "the connection's process is found", || {
        Ok(client.connection(pairs[0].local(), pairs[0].peer())?.and_then(|found| found.process))
    })?;
    client.cli(&["suspend", &format!("pid:{}", process.pid)])?;
    is_held(&server, Side::Server, &pairs[0])?;
    client.cli(&["resume"])?;
    for pair in &mut pairs {
        pair.wait_progress(SOME, LONG)?;
    }
    for pair in pairs {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}

fn is_held(daemon: &Whimbrel, end: Side, pair: &FlowPair) -> Result<()> {
    let (local, remote) = match end {
        Side::Client => (pair.local(), pair.peer()),
        Side::Server => (pair.peer(), pair.local()),
    };
    wait_until(LONG, &format!("{local} -> {remote} waits"), || {
        let connection = daemon.connection(local, remote);
        connection.is_ok_and(|found| found.is_some_and(|found| found.state == ConnectionState::Held))
    })
}
