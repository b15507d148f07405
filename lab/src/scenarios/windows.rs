//! Senders that come back to a network where they have been.

use std::time::Duration;

use super::world::{LONG, World, all_run, reconfigure, site, step};
use super::{Scenario, scenario};
use crate::{FlowPair, Lab, MonoTime, PairOptions, Result, Shape, Side, expect, patience, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "windows-come-back",
    "a download that returns from a slow network to a fast one goes on with what it had there, and with its own \
     congestion control",
    windows_come_back,
)];

/// On a network before it is left: many round trips, the waiting in queues included.
const STAY: Duration = Duration::from_secs(6);
/// What the lab's streams choose for themselves.
const OWN: &str = "cubic";
const FIRST: Duration = Duration::from_secs(1);
/// Without its window it grows from one segment to a threshold that is the slow network's.
const TIMES: f64 = 1.5;
/// Bytes: two thirds of what the fast network carries then. Sometimes the kernel takes back by itself that it found
/// less, and no more comes than without.
const MUCH: f64 = 4.2e6;

fn windows_come_back(lab: &mut Lab) -> Result<()> {
    let fast = Shape { queue_packets: 250, ..Shape::delay_rate(20, 50) };
    let slow = Shape { queue_packets: 40, ..Shape::delay_rate(60, 1) };
    let mut world = World::new(lab, site("a").uplink(fast), site("b").uplink(slow))?;
    world.server.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
    let (mut client, mut server) = (world.laptop.whimbrel()?, world.server.whimbrel_with("windows = false\n")?);
    let download = PairOptions { up: Some(0), ..PairOptions::default() };
    let mut pair = FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &download)?;
    client.wait_introduced(&pair, LONG)?;

    let mut came = Vec::new();
    for windows in [false, true] {
        reconfigure(&mut server, &format!("windows = {windows}\n"))?;
        let bytes = there_and_back(&mut world, &mut pair)?;
        step(&format!("windows = {windows}: {:.2} MB in the first second after the return", bytes as f64 / 1e6));
        came.push(bytes as f64);
        has_its_own(&world, &pair)?;
    }
    let goes_on = came[1] > TIMES * came[0] || came[1] > MUCH;
    expect!(goes_on || patience() > 1, "no more came than without: {came:?}");
    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// How much comes in the first second after the laptop has come back from the slow network.
fn there_and_back(world: &mut World, pair: &mut FlowPair) -> Result<u64> {
    let (fast, slow) = (world.a.clone(), world.b.clone());
    stays(pair)?;
    world.roam(&slow)?;
    stays(pair)?;
    world.roam(&fast)?;
    let usable = world.at.usable_at;
    wait_for(LONG, "a second has passed", || {
        let last = pair.status(Side::Client)?.last_arrival;
        Ok(last.filter(|last| last.since(usable) > FIRST))
    })?;
    let arrivals = pair.arrivals(Side::Client, usable)?;
    Ok(arrivals.iter().take_while(|(time, _)| time.since(usable) < FIRST).map(|(_, bytes)| bytes).sum())
}

fn stays(pair: &mut FlowPair) -> Result<()> {
    let from = MonoTime::now();
    wait_for(LONG * 2, "it has been there for a while", || {
        let last = pair.status(Side::Client)?.last_arrival;
        Ok(last.filter(|last| *last > from && last.since(from) > STAY))
    })?;
    Ok(())
}

/// The server's socket has the congestion control that it was made with, as ss(8) tells.
fn has_its_own(world: &World, pair: &FlowPair) -> Result<()> {
    let port = pair.peer().port();
    wait_for(LONG, "the server's socket has its own congestion control", || {
        let filter = format!("-tinH state established sport = :{port}");
        let shown = world.server.command("ss").args(filter.split_whitespace()).run()?;
        Ok(shown.split_whitespace().any(|word| word == OWN).then_some(()))
    })
}
