//! Daemons that die, peers that vanish, connections that were there before.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use whimbrel_ipc::{Carrier, ConnectionState};

use super::world::{
    LONG, PROMPT, SOME, World, all_run, carried_by, is_bare, is_native, is_not_carried, ms, names, site, step,
};
use super::{Scenario, scenario};
use crate::{
    Cut, Direction, FlowPair, Gateway, Join, Lab, Leave, MonoTime, PacketCount, Random, Result, Side, Verdict,
    Whimbrel, expect, patience, wait_for, wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("adopt", "a connection that was open before the daemons started", adopt),
    scenario("kill9-self", "kill -9 of the mobile's daemon before, during and after a move", kill_self),
    scenario("kill9-peer", "kill -9 of the peer's daemon before, during and after a move", kill_peer),
    scenario("kill9-both", "kill -9 of both daemons while a connection is moved", kill_both),
    scenario(
        "kill9-tunnel",
        "kill -9 of either daemon while the tunnel carries the connection: it waits, and goes on",
        kill_tunnel,
    ),
    scenario(
        "kill9-tunnel-late",
        "either daemon is killed while the tunnel carries the connection, and started again once senders have backed \
         off: it goes on within a second of the session, and is confirmed at both ends",
        kill_tunnel_late,
    ),
    scenario("vanish-mid-handoff", "the peer vanishes in the middle of a hand-off and comes back", vanish),
    scenario("lossy-handoff", "three of ten control packets are lost during each of three moves", lossy),
    scenario(
        "peer-stopped",
        "the peer's daemon has stopped; a network that goes and comes back, or a second one, ends no connection",
        peer_stopped,
    ),
    scenario(
        "restart-daemons",
        "both daemons are stopped and started in good order while a connection is moved",
        restart,
    ),
    scenario(
        "wall-clock-jumps",
        "while the daemons run, their wall clocks are set to another decade and back: connections roam on, and others \
         are made meanwhile",
        wall_clock_jumps,
    ),
    scenario(
        "clock-jumps",
        "the clock of either daemon is decades ahead, then back at boot, each time that it is killed and started again",
        clock_jumps,
    ),
];

/// UDP port of the control protocol.
const PORT: u16 = 2031;

fn adopt(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let mut pair = world.stream()?;
    pair.wait_progress(SOME, LONG)?;
    let (mut client, mut server) = world.daemons()?;
    client.wait_introduced(&pair, LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn kill_self(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let daemons = world.daemons()?;
    kill(&mut world, daemons, true)
}

fn kill_peer(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let daemons = world.daemons()?;
    kill(&mut world, daemons, false)
}

/// Kills one daemon before, during and after a move of the laptop.
fn kill(world: &mut World, daemons: (Whimbrel, Whimbrel), own: bool) -> Result<()> {
    let (mut client, mut server) = daemons;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let (a, b) = (world.a.clone(), world.b.clone());

    step("killed before the move");
    // What was introduced is known again after the restart.
    one_of(&mut client, &mut server, own).kill()?;
    pair.wait_progress(SOME, LONG)?;
    one_of(&mut client, &mut server, own).restart()?;
    client.wait_introduced(&pair, LONG)?;
    let begun = one_of(&mut client, &mut server, own).events(0)?.into_iter().next();
    let restored = begun.as_ref().and_then(|event| event.fields.get("restored_flows")?.as_u64());
    expect!(restored == Some(1), "the first event does not tell that a connection is taken over: {begun:?}");
    world.roam(&b)?;
    pair.wait_progress(SOME, LONG)?;

    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    is_bare(&b, &mut pair)?;
    step("killed after the move: the data plane goes on without its daemon");
    one_of(&mut client, &mut server, own).kill()?;
    pair.wait_progress(2 * SOME, LONG)?;
    one_of(&mut client, &mut server, own).restart()?;
    pair.wait_progress(SOME, LONG)?;
    client.wait_introduced(&pair, LONG)?;

    step("killed during the next move: the update is on its way when it dies");
    let updates = a.link()?.count(|d, p| d == Direction::Up && p.ports().is_some_and(|(_, to)| to == PORT));
    world.roam(&a)?;
    wait_until(LONG, "the laptop sends its update", || updates.get() > 0)?;
    one_of(&mut client, &mut server, own).kill()?;
    one_of(&mut client, &mut server, own).restart()?;
    pair.wait_progress(SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn one_of<'a>(client: &'a mut Whimbrel, server: &'a mut Whimbrel, own: bool) -> &'a mut Whimbrel {
    if own { client } else { server }
}

fn kill_both(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let (a, b) = (world.a.clone(), world.b.clone());
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    is_bare(&b, &mut pair)?;
    client.kill()?;
    server.kill()?;
    pair.wait_progress(2 * SOME, LONG)?;
    client.restart()?;
    server.restart()?;
    client.wait_introduced(&pair, LONG)?;
    world.roam(&a)?;
    pair.wait_progress(SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// A stream that has moved, and that the tunnel carries.
fn in_the_tunnel(lab: &mut Lab) -> Result<(World, Whimbrel, Whimbrel, FlowPair)> {
    let mut world = World::new(lab, site("a"), site("b").behind(Gateway::Nat { random_ports: false }))?;
    let (client, server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let b = world.b.clone();
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Tunnel)?;
    Ok((world, client, server, pair))
}

fn kill_tunnel(lab: &mut Lab) -> Result<()> {
    let (world, mut client, mut server, mut pair) = in_the_tunnel(lab)?;
    for own in [true, false] {
        step(if own { "the mobile's daemon" } else { "the peer's daemon" });
        one_of(&mut client, &mut server, own).kill()?;
        one_of(&mut client, &mut server, own).restart()?;
        pair.wait_progress(SOME, LONG)?;
    }
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn kill_tunnel_late(lab: &mut Lab) -> Result<()> {
    let (world, mut client, mut server, mut pair) = in_the_tunnel(lab)?;
    for own in [true, false] {
        step(if own { "the mobile's daemon is away" } else { "the peer's daemon is away" });
        carried_by(&client, Side::Client, &pair, Carrier::Tunnel)?;
        carried_by(&server, Side::Server, &pair, Carrier::Tunnel)?;
        one_of(&mut client, &mut server, own).kill()?;
        let (other, end) = if own { (&server, Side::Server) } else { (&client, Side::Client) };
        let due = doubted_and_backed_off(other, end, &mut pair)?;
        one_of(&mut client, &mut server, own).restart()?;
        let killed = if own { &client } else { &server };
        killed.wait_event("peer-reached", 0, LONG)?;
        let up = MonoTime::now();
        for side in [Side::Client, Side::Server] {
            pair.wait_progress_of(&[side], 1, LONG)?;
            let took = pair.silence(side, up)?;
            println!("    {side:?} received nothing for {:.1} ms once the session was there", ms(took));
            expect!(took.is_some_and(|took| took < PROMPT * patience()), "{side:?} received nothing for {took:?}");
        }
        expect!(MonoTime::now() < due, "the {end:?}'s own timer may have run out");
        for (daemon, side) in [(&client, Side::Client), (&server, Side::Server)] {
            let (local, remote) = names(side, &pair);
            daemon.wait_connection(local, remote, 4 * PROMPT, "confirmed", |c| c.state == ConnectionState::Moved)?;
        }
        pair.wait_progress(SOME, LONG)?;
    }
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// Waits until an end says that the other does not answer, and its sender waits for long. When that sends again by
/// itself, at the earliest.
fn doubted_and_backed_off(daemon: &Whimbrel, end: Side, pair: &mut FlowPair) -> Result<MonoTime> {
    let (local, remote) = names(end, pair);
    let (mut looked, mut timer, mut set) = (MonoTime::now(), Duration::ZERO, MonoTime::now());
    wait_for(LONG * 4, &format!("the {end:?}'s sender backs off, and its peer is in doubt"), || {
        let before = std::mem::replace(&mut looked, MonoTime::now());
        let now = Duration::from_micros(pair.status(end)?.tcp.map_or(0, |tcp| tcp.rto_us.into()));
        if std::mem::replace(&mut timer, now) != now {
            // Since the look before this one.
            set = before;
        }
        let doubted = daemon.connection(local, remote)?.is_some_and(|c| c.state == ConnectionState::NotConfirmed);
        let due = set + timer;
        Ok((doubted && due > looked + 5 * PROMPT * patience()).then_some(due))
    })
}

fn restart(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let (a, b) = (world.a.clone(), world.b.clone());
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    is_bare(&b, &mut pair)?;
    for daemon in [&mut client, &mut server] {
        daemon.stop()?;
        pair.wait_progress(SOME, LONG)?;
        daemon.restart()?;
    }
    client.wait_introduced(&pair, LONG)?;
    world.roam(&a)?;
    pair.wait_progress(SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// Seconds that a clock may jump ahead: forty years.
const DECADES: i64 = 40 * 365 * 86_400;

fn clock_jumps(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let (a, b) = (world.a.clone(), world.b.clone());
    // As far back as a clock that is never negative goes, less what may pass meanwhile.
    let to_boot = 30 - rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec;
    let jumps =
        [(true, DECADES, "ahead"), (false, DECADES, "ahead"), (true, to_boot, "back"), (false, to_boot, "back")];
    for ((own, ahead, which), to) in jumps.into_iter().zip([&b, &a].into_iter().cycle()) {
        step(&format!("the clock of the {} jumps {which}", if own { "laptop" } else { "server" }));
        let daemon = one_of(&mut client, &mut server, own);
        daemon.kill()?;
        daemon.restart_ahead(ahead)?;
        expect!(daemon.in_own_time()?, "the daemon on {} has everybody's clock", daemon.host().name());
        // It knows the connection again, and the peer takes what it says for newer than what it said before.
        client.wait_introduced(&pair, LONG)?;
        world.roam(to)?;
        world.goes_on(&mut pair)?;
        if to.network.name() == a.network.name() {
            is_native(&client, Side::Client, &pair)?;
        } else {
            carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
        }
    }
    // What it looks after goes by its clock: nothing is due at once, and nothing is put off for decades.
    for daemon in [&client, &server] {
        let told = daemon.events(0)?;
        let odd = told.iter().filter(|event| matches!(event.kind.as_str(), "op-failed" | "flow-gone" | "key-mismatch"));
        expect!(odd.clone().count() == 0, "events on {}: {:?}", daemon.host().name(), odd.collect::<Vec<_>>());
    }
    let mut later = world.stream()?;
    client.wait_introduced(&later, LONG)?;
    later.wait_progress(SOME, LONG)?;
    world.finish(later)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn wall_clock_jumps(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = (world.laptop.whimbrel_with_wall_clock()?, world.server.whimbrel_with_wall_clock()?);
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let (a, b) = (world.a.clone(), world.b.clone());
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().cast_signed();
    // At the laptop, and at the server. An hour is what a change of the zone does where the hardware's clock is local
    // time.
    let jumps =
        [(3600, 0), (0, 3600), (DECADES, 0), (-since_1970 + 86_400, DECADES), (0, -since_1970 + 86_400), (0, 0)];
    for ((laptop, at_server), to) in jumps.into_iter().zip([&b, &a].into_iter().cycle()) {
        step(&format!("the laptop's clock is {laptop} s ahead, the server's {at_server} s"));
        client.set_wall_clock(laptop)?;
        server.set_wall_clock(at_server)?;
        world.roam(to)?;
        world.goes_on(&mut pair)?;
        if to.network.name() == a.network.name() {
            is_native(&client, Side::Client, &pair)?;
        } else {
            carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
        }
        let mut later = world.stream()?;
        client.wait_introduced(&later, LONG)?;
        later.wait_progress(SOME, LONG)?;
        world.finish(later)?;
    }
    step("one of them is killed while its clock is behind, and asks for a session anew");
    client.set_wall_clock(-since_1970 + 86_400)?;
    client.kill()?;
    client.restart()?;
    client.wait_introduced(&pair, LONG)?;
    client.set_wall_clock(0)?;
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    for daemon in [&client, &server] {
        let told = daemon.events(0)?;
        let odd = told.iter().filter(|event| matches!(event.kind.as_str(), "op-failed" | "key-mismatch"));
        expect!(odd.clone().count() == 0, "events on {}: {:?}", daemon.host().name(), odd.collect::<Vec<_>>());
        let years: BTreeSet<&str> = told.iter().filter_map(|event| event.time.split('-').next()).collect();
        println!("    {} tells of the years {years:?}", daemon.host().name());
        expect!(years.len() >= 2, "the clock of the daemon on {} was never set: {years:?}", daemon.host().name());
        let drawn = daemon.cli(&["events", "--plot", "-"])?;
        expect!(drawn.contains("</svg>"), "nothing is drawn of these: {drawn}");
    }
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn peer_stopped(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    server.stop()?;
    let a = world.a.clone();
    for _ in 0..2 {
        // The same network and the same address; P-39.
        world.roam(&a)?;
        world.goes_on(&mut pair)?;
        is_not_carried(&client, Side::Client, &pair)?;
    }
    // P-38.
    let before = client.events(0)?.last().map_or(0, |event| event.number);
    world.laptop.join(&world.b.network, &Join::by("eth0").metric(50))?;
    client.wait_event("moving", before, LONG)?;
    pair.wait_progress(SOME, LONG)?;
    is_not_carried(&client, Side::Client, &pair)?;
    // It is back, and what was asked all the time is answered.
    server.restart()?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    pair.wait_progress(SOME, LONG)?;
    pair.finish(LONG)?;
    all_run(&mut [&mut client, &mut server])
}

fn vanish(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let b = world.b.clone();
    // docs/protocol.md §1: the first byte tells control from tunnel.
    let of_kind = |kinds: std::ops::RangeInclusive<u8>| -> Result<PacketCount> {
        Ok(b.link()?.count(move |d, p| {
            let to_port = d == Direction::Up && p.ports().is_some_and(|(_, to)| to == PORT);
            to_port && p.udp().and_then(|u| u.first()).is_some_and(|kind| kinds.contains(kind))
        }))
    };
    let (updates, tunnelled) = (of_kind(0..=0x1f)?, of_kind(0x20..=0xff)?);
    world.roam(&b)?;
    wait_until(LONG, "the laptop sends its update", || updates.get() > 0)?;
    world.s.link()?.cut(Cut::Silent)?;
    let until = MonoTime::now() + Duration::from_secs(5);
    wait_until(Duration::from_secs(6), "the peer is away for a while", || MonoTime::now() > until)?;
    // Questions to a peer that does not answer are repeated with back-off (P-12), not in a storm.
    println!("    {} control packets and {} of the tunnel while the peer was away", updates.get(), tunnelled.get());
    expect!(updates.get() < 100, "{} control packets in five seconds", updates.get());
    world.s.link()?.restore()?;
    pair.wait_progress(SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn lossy(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    for (n, to) in (1..).zip([world.b.clone(), world.a.clone(), world.b.clone()]) {
        // At random: losing every other one could hit every answer to a question.
        let mut random = Random::new(lab.seed() + n);
        to.link()?.hook(move |_, frame| {
            let packet = frame.ip().filter(|p| p.ports().is_some_and(|(from, to)| from == PORT || to == PORT));
            // docs/protocol.md §1: the first byte tells control from tunnel.
            let control = packet.and_then(|p| p.udp()?.first().copied()).is_some_and(|kind| kind < 0x20);
            if control && random.chance(0.3) { Verdict::Drop } else { Verdict::Pass }
        });
        world.roam(&to)?;
        pair.wait_progress(SOME, LONG)?;
        to.link()?.unhook();
    }
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}
