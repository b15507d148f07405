//! Senders that wait in TCP's back-off when there is a path again.

use std::time::Duration;

use super::world::{LONG, RATE, SOME, World, all_run, ms, site, step};
use super::{Scenario, scenario};
use crate::{
    FlowPair, Host, Join, Lab, Leave, MonoTime, PairOptions, Result, Side, Site, Whimbrel, expect, patience, wait_for,
    wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "outage-kick",
    "after an outage a sender goes on at once; with the kick switched off it waits for TCP's timer",
    outage_kick,
)];

/// What TCP's timer has to have grown to when the outage ends: far more than a hand-off takes.
const BACKED_OFF: Duration = Duration::from_secs(3);

/// The bounds are parts of what TCP's own timer has left, so they hold on machines of any speed: those on which a
/// hand-off takes longer than that are told apart.
fn outage_kick(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let c = world.add(lab, site("c"))?;
    let started = |host: &Host| host.whimbrel_with("kick = false\n");
    let (mut client, mut server) = (started(&world.laptop)?, started(&world.server)?);
    // Nothing in the other direction: its acknowledgements would wake the sender as well.
    let upload = PairOptions { up: Some(RATE), down: Some(0), ..PairOptions::default() };
    let mut pair = FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &upload)?;
    client.wait_introduced(&pair, LONG)?;
    wait_until(LONG, "programs are attached", || client.status().is_ok_and(|status| !status.attached.is_empty()))?;
    let hook = client.status()?.attached.first().map(|attached| attached.hook.clone());
    step(&format!("programs hang on {}", hook.unwrap_or_default()));

    let b = world.b.clone();
    let (first, due) = outage(&mut world, &mut pair, &b)?;
    step(&format!("without the kick the server received {:.0} ms after the address was there", ms(Some(first))));
    expect!(first >= due, "data came {:?} before TCP's timer: something else than it woke the sender", due - first);

    for daemon in [&mut client, &mut server] {
        reconfigure(daemon, "kick = true\n")?;
    }
    let (first, due) = outage(&mut world, &mut pair, &c)?;
    let (first_ms, due_ms) = (ms(Some(first)), ms(Some(due)));
    step(&format!("with it {first_ms:.0} ms after; TCP's timer would have taken {due_ms:.0} ms"));
    expect!(first < due / 2, "the kick did not work: {first:?}, and TCP's own timer takes {due:?}");

    world.finish(pair)?;
    all_run(&mut [&mut client, &mut server])
}

/// The laptop is nowhere until the client's retransmission timer is long, then joins `to`. When the server received the
/// first data, and when the client's timer ran out at the earliest; both since the address was there.
fn outage(world: &mut World, pair: &mut FlowPair, to: &Site) -> Result<(Duration, Duration)> {
    pair.wait_progress_of(&[Side::Server], SOME, LONG)?;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    // Emulated processors are slow with the hand-off as well.
    let wanted = BACKED_OFF * patience().min(2);
    let mut looked = MonoTime::now();
    let due = wait_for(LONG, "the client's sender backs off", || {
        let before = std::mem::replace(&mut looked, MonoTime::now());
        let timer = pair.status(Side::Client)?.tcp.map_or(0, |tcp| tcp.rto_us);
        let timer = Duration::from_micros(u64::from(timer));
        // It was set after the look before this one.
        Ok((timer >= wanted).then_some(before + timer))
    })?;
    world.at = world.laptop.join(&to.network, &Join::default())?;
    let usable = world.at.usable_at;
    expect!(due > usable + wanted / 2, "this machine is too slow to tell: the address came when the timer ran out");
    pair.wait_progress_of(&[Side::Server], SOME, LONG)?;
    let first = pair.resumed(Side::Server, usable)?.map_or(Duration::MAX, |first| first - usable);
    Ok((first, due - usable))
}

fn reconfigure(daemon: &mut Whimbrel, config: &str) -> Result<()> {
    let since = daemon.status()?.newest_event;
    daemon.reconfigure(config)?;
    daemon.wait_event("reloaded", since, LONG).map(drop)
}
