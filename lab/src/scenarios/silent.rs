//! The network that a host uses falls silent, and nothing says so; another one is there.

use std::net::IpAddr;
use std::time::Duration;

use super::world::{LONG, PROMPT, RATE, SOME, World, all_run, is_native, ms, site, step};
use super::{Scenario, scenario};
use crate::{
    Direction, FlowPair, Join, Lab, Leave, MonoTime, Packet, PacketCount, PairOptions, Result, Side, Whimbrel, expect,
    patience, wait_for, wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "vhf-silent",
        "of two networks the preferred one falls silent, with TCP and UDP both ways: vigilant, both go on by the other, \
         though the silent one's gateway is given up, and are back when it answers again",
        silent,
    ),
    scenario(
        "vhf-silent-idle",
        "the same as the configuration is by default: it is found when what was sent is not answered, before TCP's timer \
         has run out twice",
        silent_idle,
    ),
    scenario("vhf-silent-v6", "as vhf-silent, over IPv6 alone", silent_v6),
    scenario(
        "vhf-silent-families",
        "as vhf-silent with a connection over IPv6 as well, which the other network does not have",
        silent_families,
    ),
    scenario("vhf-silent-idle-v6", "as vhf-silent-idle, over IPv6 alone", silent_idle_v6),
    scenario(
        "vhf-by-hand",
        "a hand-off by hand to a network that the routes do not prefer: what is new goes there too; and when the \
         preferred one has fallen silent, and nothing watches that, all goes on though its gateway is given up",
        by_hand,
    ),
    scenario("vhf-by-hand-v6", "the same over IPv6 alone", by_hand_v6),
];

const OFF: &str = "[links]\nmode = \"off\"\n";
const VIGILANT: &str = "[links]\nmode = \"vigilant\"\n";
/// Where the daemons' own datagrams come from.
const CONTROL_PORT: u16 = 2031;
/// UDP beside the stream, bits a second.
const DATAGRAMS: u64 = 400_000;
/// Time in which nothing may arrive where the network is watched: to find out, to tell the peer, and what is under way
/// to be sent again. It takes 0.3 to 0.4 s to find out. With other programs on both processors each step of the two
/// daemons comes later as well: 0.25 to 0.7 s in 35 hand-offs at a load of 12.
const WATCHED: Duration = Duration::from_millis(1000);
/// The same where nothing is asked until what is usually answered is overdue, and the other network's path is made
/// then. The sender's timer would have to run out twice (RFC 6298: 200 and 400 ms at the least in Linux, and the round
/// trip).
const UNWATCHED: Duration = Duration::from_millis(1500);

fn silent(lab: &mut Lab) -> Result<()> {
    of_ipv4(lab, VIGILANT, WATCHED)
}

fn silent_idle(lab: &mut Lab) -> Result<()> {
    of_ipv4(lab, "", UNWATCHED)
}

fn silent_v6(lab: &mut Lab) -> Result<()> {
    of_ipv6(lab, VIGILANT, WATCHED)
}

fn silent_idle_v6(lab: &mut Lab) -> Result<()> {
    of_ipv6(lab, "", UNWATCHED)
}

fn of_ipv4(lab: &mut Lab, config: &str, within: Duration) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let server = [world.at_server.ipv4()?];
    goes_on_by_the_other(lab, world, &server, config, within)
}

/// The laptop's networks have no IPv4, so that nothing goes by that.
fn of_ipv6(lab: &mut Lab, config: &str, within: Duration) -> Result<()> {
    let world = World::new(lab, site("a").v6_only(), site("b").v6_only())?;
    let server = [world.at_server.ipv6()?];
    goes_on_by_the_other(lab, world, &server, config, within)
}

/// What is sent over IPv6 has nothing but the tunnel then, and a gateway that is not there.
fn silent_families(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b").v4_only())?;
    let server = [world.at_server.ipv4()?, world.at_server.ipv6()?];
    goes_on_by_the_other(lab, world, &server, VIGILANT, WATCHED)
}

/// Connections go to each of the server's addresses, and what is new to the first.
fn goes_on_by_the_other(lab: &mut Lab, world: World, at: &[IpAddr], config: &str, within: Duration) -> Result<()> {
    let first = at[0];
    let [astray, straight] = sent_by_second(&world)?;
    world.laptop.join(&world.b.network, &Join::by("eth0").metric(500))?;
    let mut client = if config.is_empty() { world.laptop.whimbrel()? } else { world.laptop.whimbrel_with(config)? };
    let mut server = world.server.whimbrel()?;
    let mut pairs = at.iter().map(|at| world.stream_to(*at)).collect::<Result<Vec<_>>>()?;
    pairs.push(FlowPair::udp(&world.laptop, &world.server, first, &PairOptions::rate(DATAGRAMS))?);
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    // How long answers take is learned meanwhile.
    pairs[0].wait_progress(in_seconds(5), LONG)?;
    // A path that is kept ready is tried by its own network, whatever the routes prefer.
    expect!(astray.get() == 0, "{} datagrams of the second network have left by the first", astray.get());
    expect!(config.is_empty() || straight.get() > 0, "nothing was asked by the second network");
    for round in 0..2 {
        for pair in &pairs {
            is_native(&client, Side::Client, pair)?;
        }
        let before = newest(&client)?;
        let cut = MonoTime::now();
        world.laptop.leave(&world.at, Leave::Silent)?;
        let told = client.wait_event("network-silent", before, LONG)?;
        println!("    round {round}: {}", told.sentence);
        for pair in &mut pairs {
            let some = if pair.status(Side::Client)?.tcp.is_some() { SOME } else { 20 };
            pair.wait_progress(some, LONG)?;
            for side in [Side::Client, Side::Server] {
                let took = pair.silence(side, cut)?;
                println!("    {side:?} received nothing for {:.1} ms", ms(took));
                expect!(took.is_some_and(|took| took < within * patience()), "{side:?} received nothing for {took:?}");
            }
        }
        // What is new goes there as well.
        let mut fresh = world.stream_to(first)?;
        fresh.wait_progress(SOME, LONG)?;
        fresh.finish(LONG)?;
        // The kernel gives the silent network's gateway up; what waited for its answer would wait for ever.
        world.laptop.ip([format!("neigh flush dev {}", world.at.interface)])?;
        let given_up = MonoTime::now();
        pairs[0].wait_progress(in_seconds(6), LONG)?;
        for pair in &mut pairs {
            for side in [Side::Client, Side::Server] {
                let gap = pair.longest_gap(side, given_up)?;
                expect!(gap < WATCHED * patience(), "{side:?} received nothing for {gap:?} later");
            }
        }
        if round > 0 {
            break;
        }
        let before = newest(&client)?;
        world.at.access()?.restore()?;
        let restored = MonoTime::now();
        client.wait_event("network-back", before, Duration::from_secs(60))?;
        println!("    it is come back to after {:.1} s", (MonoTime::now() - restored).as_secs_f64());
        wait_until(LONG, "all is native again", || {
            pairs.iter().all(|pair| is_native(&client, Side::Client, pair).is_ok())
        })?;
        for pair in &mut pairs {
            is_native(&server, Side::Server, pair)?;
            for side in [Side::Client, Side::Server] {
                let gap = pair.longest_gap(side, restored)?;
                expect!(gap < WATCHED * patience(), "{side:?} received nothing for {gap:?} on the way back");
            }
        }
    }
    for mut pair in pairs {
        if pair.status(Side::Client)?.tcp.is_some() {
            world.finish(pair)?;
            continue;
        }
        for status in pair.check()? {
            expect!(status.duplicates == 0, "{} datagrams came twice", status.duplicates);
        }
    }
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

/// Datagrams of the laptop's daemon from now on: those that leave by the first network from an address that is not of
/// there, and those that leave by the second.
fn sent_by_second(world: &World) -> Result<[PacketCount; 2]> {
    let first: Vec<IpAddr> = world.at.ipv4().into_iter().chain(world.at.ipv6()).collect();
    let source = |direction: Direction, packet: &Packet<'_>| {
        let (from, _) = packet.endpoints().filter(|_| direction == Direction::Up && packet.tcp().is_none())?;
        (from.port() == CONTROL_PORT).then_some(from.ip())
    };
    let astray = world.a.link()?.count(move |way, packet| source(way, packet).is_some_and(|at| !first.contains(&at)));
    let straight = world.b.link()?.count(move |way, packet| source(way, packet).is_some());
    Ok([astray, straight])
}

fn by_hand(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let server = world.at_server.ipv4()?;
    is_moved_by_hand(lab, world, server)
}

fn by_hand_v6(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a").v6_only(), site("b").v6_only())?;
    let server = world.at_server.ipv6()?;
    is_moved_by_hand(lab, world, server)
}

fn is_moved_by_hand(lab: &mut Lab, world: World, at: IpAddr) -> Result<()> {
    let mut client = world.laptop.whimbrel_with(OFF)?;
    let mut server = world.server.whimbrel()?;
    let mut pair = world.stream_to(at)?;
    client.wait_introduced(&pair, LONG)?;
    let second = world.laptop.join(&world.b.network, &Join::by("eth0").metric(500))?;
    let there = if at.is_ipv4() { second.ipv4()? } else { second.ipv6()? };
    wait_for(LONG, "the second address is known", || {
        Ok(client.status()?.addresses.iter().any(|own| own.address == there).then_some(()))
    })?;
    pair.wait_progress(in_seconds(2), LONG)?;

    step("both networks are up: what is new begins where the user has moved to");
    client.handoff(Some(there))?;
    let leads = |by: &str| {
        let way = world.laptop.ip_output(&format!("route get {at}"))?;
        Ok(way.contains(&format!("dev {by} ")).then_some(()))
    };
    wait_for(LONG, "what is new goes by the second network", || leads("eth0"))?;
    let fresh = world.stream_to(at)?;
    expect!(fresh.local().ip() == there, "what is new begins at {}", fresh.local());
    fresh.finish(LONG)?;
    client.handoff(None)?;
    wait_for(LONG, "what is new goes where the routes lead", || leads(&world.at.interface))?;
    wait_until(LONG, "all is native again", || is_native(&client, Side::Client, &pair).is_ok())?;

    step("the preferred network falls silent, and the user moves to the other");
    let [astray, _] = sent_by_second(&world)?;
    let before = newest(&client)?;
    world.laptop.leave(&world.at, Leave::Silent)?;
    let moved = MonoTime::now();
    client.handoff(Some(there))?;
    let told = client.wait_event("moved", before, LONG)?;
    println!("    {}", told.sentence);
    pair.wait_progress(SOME, LONG)?;
    for side in [Side::Client, Side::Server] {
        let took = pair.silence(side, moved)?;
        println!("    {side:?} received nothing for {:.1} ms", ms(took));
        expect!(took.is_some_and(|took| took < PROMPT * patience()), "{side:?} received nothing for {took:?}");
    }
    expect!(astray.get() == 0, "{} datagrams of the second network were to leave by the silent one", astray.get());

    step("what is new goes there, and all goes on once the silent network's gateway is given up");
    let mut fresh = world.stream_to(at)?;
    println!("    a new connection was there after {:.1} s", (MonoTime::now() - moved).as_secs_f64());
    fresh.wait_progress(SOME, LONG)?;
    fresh.finish(LONG)?;
    let silent = if at.is_ipv4() { world.at.ipv4()? } else { world.at.ipv6()? };
    let takes = |by: &str| {
        let way = world.laptop.ip_output(&format!("route get {at} from {silent}"))?;
        Ok(way.contains(&format!("dev {by} ")).then_some(()))
    };
    wait_for(LONG, "everything goes by the second network", || takes("eth0"))?;
    println!("    everything went there after {:.1} s", (MonoTime::now() - moved).as_secs_f64());
    world.laptop.ip([format!("neigh flush dev {}", world.at.interface)])?;
    let given_up = MonoTime::now();
    pair.wait_progress(in_seconds(6), LONG)?;
    for side in [Side::Client, Side::Server] {
        let gap = pair.longest_gap(side, given_up)?;
        expect!(gap < WATCHED * patience(), "{side:?} received nothing for {gap:?} later");
    }

    step("it works again: what is chosen by hand stays, and is given back by hand");
    world.at.access()?.restore()?;
    let again = "what has an address there goes there again";
    wait_for(Duration::from_secs(90), again, || takes(&world.at.interface))?;
    pair.wait_progress(SOME, LONG)?;
    client.handoff(None)?;
    wait_until(LONG, "all is native again", || is_native(&client, Side::Client, &pair).is_ok())?;
    is_native(&server, Side::Server, &pair)?;
    pair.wait_progress(SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])?;
    lab.check_links()
}

/// What the stream carries in so many seconds, in bytes.
const fn in_seconds(seconds: u64) -> u64 {
    RATE / 8 * seconds
}

fn newest(daemon: &Whimbrel) -> Result<u64> {
    Ok(daemon.events(0)?.last().map_or(0, |event| event.number))
}
