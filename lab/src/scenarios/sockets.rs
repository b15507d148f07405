//! What programs may ask of their sockets that a move would show them.

use std::time::Duration;

use whimbrel_ipc::Carrier;

use super::world::{LONG, RATE, SOME, World, all_run, carried_by, is_native, site};
use super::{Scenario, scenario};
use crate::{
    FlowPair, Host, Join, Lab, Leave, MonoTime, PairOptions, Result, Side, Verdict, Whimbrel, expect, wait_for,
    wait_until,
};

/// IP protocol numbers.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "bound-device",
        "a socket is bound to a device that the laptop leaves; the daemon is killed before it comes back",
        bound_device,
    ),
    scenario(
        "reported-errors",
        "programs ask for every ICMP error (IP_RECVERR); an outage of two seconds shows them none",
        reported_errors,
    ),
    scenario(
        "path-mtu-left",
        "there and back: waking senders leaves no path MTU behind that the kernel, or the daemon, takes for learned",
        path_mtu_left,
    ),
];

fn bound_device(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let options = PairOptions { device: Some("wlan0".into()), ..PairOptions::rate(RATE) };
    let mut pair = FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &options)?;
    client.wait_introduced(&pair, LONG)?;
    let bound = |world: &World, pair: &FlowPair| -> Result<bool> {
        let listed = world.laptop.command("ss").args(["-tnH", "dst", &pair.peer().to_string()]).run()?;
        expect!(listed.contains(&pair.local().port().to_string()), "the laptop has no such socket: {listed}");
        Ok(listed.contains("%wlan0"))
    };
    expect!(bound(&world, &pair)?, "the socket is not bound");

    let home = world.at.clone();
    world.laptop.leave(&home, Leave::Orderly)?;
    world.at = world.laptop.join(&world.b.network, &Join::by("eth0"))?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    expect!(!bound(&world, &pair)?, "the socket is bound to a device that its packets do not take");

    client.kill()?;
    client.restart()?;
    pair.wait_progress(SOME, LONG)?;
    let away = world.at.clone();
    world.laptop.leave(&away, Leave::Orderly)?;
    world.at = world.laptop.join(&world.a.network, &Join::default())?;
    world.goes_on(&mut pair)?;
    is_native(&client, Side::Client, &pair)?;
    wait_for(LONG, "the socket is bound again", || Ok(bound(&world, &pair)?.then_some(())))?;
    pair.wait_progress(SOME, LONG)?;
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

fn reported_errors(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    // Full-sized segments are in flight whenever it stops.
    let options = PairOptions { report_errors: true, ..PairOptions::rate(10 * RATE) };
    let mut pairs = [world.at_server.ipv4()?, world.at_server.ipv6()?]
        .into_iter()
        .map(|to| FlowPair::tcp(&world.laptop, &world.server, to, &options))
        .collect::<Result<Vec<_>>>()?;
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    world.laptop.leave(&world.at, Leave::Orderly)?;
    // A router says that a host is unreachable when nobody has answered it for three seconds, and a busy machine may
    // take so long: that would be true, and its own.
    world.a.link()?.hook(|_, frame| {
        let unreachable = frame.ip().is_some_and(|packet| {
            let icmp = (packet.protocol, packet.payload.first());
            matches!(icmp, (ICMP, Some(3))) && packet.payload.get(1) != Some(&4) || matches!(icmp, (ICMPV6, Some(1)))
        });
        if unreachable { Verdict::Drop } else { Verdict::Pass }
    });
    let until = MonoTime::now() + Duration::from_secs(2);
    wait_until(Duration::from_secs(4), "the outage is over", || MonoTime::now() >= until)?;
    world.at = world.laptop.join(&world.b.network, &Join::default())?;
    for pair in &mut pairs {
        // Fails where a socket has reported an error.
        world.goes_on(pair)?;
    }
    for pair in pairs {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}

/// What packets of IPv6 may have, in bytes, that go by the tunnel over IPv6 and links of 1500.
const INSIDE: u32 = 1410;

/// What a host has learned of path MTUs, if anything. What the tunnel has said while it carried is so: a busy machine
/// sends long packets before they are rewritten. Senders that are woken are told a byte more, or something less than
/// what they have.
fn learned(host: &Host) -> Result<String> {
    let caches = ["-4 route show cache table all", "-6 route show cache table all"].map(|which| host.ip_output(which));
    let [v4, v6] = caches;
    let lines = format!("{}{}", v4?, v6?);
    let of_the_tunnel = |line: &str| line.contains("dev whimbrel0") && line.contains(&format!("mtu {INSIDE} "));
    let learned = lines.lines().filter(|line| line.contains("expires") && !of_the_tunnel(line));
    Ok(learned.map(str::to_owned).collect())
}

/// The daemon's paths have the MTU of the links, not that of a tunnel, or what a sender was told.
fn paths_are_whole(daemon: &Whimbrel) -> Result<()> {
    let shown = || -> Result<Vec<Option<u32>>> {
        Ok(daemon.paths()?.into_iter().filter(|path| path.active).map(|path| path.mtu).collect())
    };
    let what = format!("paths of {} have 1500 bytes", daemon.host().name());
    let whole = |mtus: &[Option<u32>]| !mtus.is_empty() && mtus.iter().all(|mtu| *mtu == Some(1500));
    let found = wait_for(Duration::from_secs(3), &what, || Ok(whole(&shown()?).then_some(())));
    expect!(found.is_ok(), "not so: {what}: {:?}", shown()?);
    Ok(())
}

fn path_mtu_left(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pairs = [world.at_server.ipv4()?, world.at_server.ipv6()?]
        .into_iter()
        .map(|to| FlowPair::tcp(&world.laptop, &world.server, to, &PairOptions::rate(10 * RATE)))
        .collect::<Result<Vec<_>>>()?;
    for pair in &pairs {
        client.wait_introduced(pair, LONG)?;
    }
    let (a, b) = (world.a.clone(), world.b.clone());
    for there in [&b, &a] {
        world.roam(there)?;
        for pair in &mut pairs {
            world.goes_on(pair)?;
        }
        for host in [&world.laptop, &world.server] {
            let what = format!("{} has learned nothing of path MTUs", host.name());
            let nothing = wait_for(Duration::from_secs(5), &what, || Ok(learned(host)?.is_empty().then_some(())));
            expect!(nothing.is_ok(), "not so: {what}: {}", learned(host)?);
        }
        for daemon in [&client, &server] {
            paths_are_whole(daemon)?;
        }
    }
    // The same after a time without any network, in which the way of kept addresses is the only one.
    world.laptop.leave(&world.at, Leave::Orderly)?;
    wait_for(
        LONG,
        "the laptop keeps its addresses",
        || Ok((client.status()?.kept_addresses.len() == 2).then_some(())),
    )?;
    world.at = world.laptop.join(&b.network, &Join::default())?;
    for pair in &mut pairs {
        world.goes_on(pair)?;
    }
    paths_are_whole(&client)?;
    for pair in pairs {
        world.finish(pair)?;
    }
    all_run(&mut [&mut client, &mut server])
}
