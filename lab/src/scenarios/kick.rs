//! Senders that wait in TCP's back-off when there is a path again.

use std::time::Duration;

use super::world::{LONG, RATE, SOME, World, all_run, backed_off, ms, reconfigure, site, step};
use super::{Scenario, scenario};
use crate::{
    Direction, FlowPair, Host, Join, Lab, Leave, PairOptions, Result, Shape, Side, Site, Verdict, expect, patience,
    wait_for, wait_until,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "outage-kick",
        "after an outage a sender goes on at once; with the kick switched off it waits for TCP's timer",
        outage_kick,
    ),
    scenario(
        "outage-kick-again",
        "the last acknowledgements go with the network; the sender takes its loss back, and goes on at once nevertheless",
        outage_kick_again,
    ),
];

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

/// Segments that still arrive when acknowledgements do not any more.
const UNACKNOWLEDGED: u32 = 8;
/// What is lost first is not shorter, in bytes: no path's MTU tells the kernel to send the short end of a write again
/// (docs/decisions/0088), which takes a round trip more.
const FULL: usize = 1400;
/// A round trip of the networks here: long, as it is what one that is missing costs, and a busy machine takes a good
/// part of a second for what is not to take any time.
const ROUND_TRIP: Duration = Duration::from_millis(500);

/// What the sender sends again first has arrived already. The answer says so, and the sender takes all that is under
/// way for not lost (`tcp_try_undo_loss`): as much as the network may hold, so that nothing is sent before the timer
/// runs out.
fn outage_kick_again(lab: &mut Lab) -> Result<()> {
    let far = |name: &str| site(name).uplink(Shape::delay_rate(ROUND_TRIP.as_millis() as u64 / 2, 100));
    let mut world = World::new(lab, far("a"), far("b"))?;
    let (mut client, mut server) = world.daemons()?;
    // Slower than the network, so that all that there is to send is under way in the end.
    let download = PairOptions { up: Some(0), down: Some(12 * RATE), ..PairOptions::default() };
    let mut pair = FlowPair::tcp(&world.laptop, &world.server, world.at_server.ipv4()?, &download)?;
    client.wait_introduced(&pair, LONG)?;
    pair.wait_progress_of(&[Side::Client], 60 * SOME, LONG)?;

    let (mut left, mut lost) = (UNACKNOWLEDGED, false);
    world.a.link()?.hook(move |direction, frame| {
        let Some(segment) = frame.ip().and_then(|packet| packet.tcp()) else { return Verdict::Pass };
        let arrives = direction == Direction::Down && !lost && (left > 0 || segment.payload.len() < FULL);
        lost |= direction == Direction::Down && !arrives;
        left = left.saturating_sub(u32::from(arrives && !segment.payload.is_empty()));
        if arrives { Verdict::Pass } else { Verdict::Drop }
    });
    wait_for(LONG, "the server's sender backs off", || {
        Ok(pair.status(Side::Server)?.tcp.is_some_and(|tcp| tcp.backoff >= 2).then_some(()))
    })?;
    world.laptop.leave(&world.at, Leave::Orderly)?;
    world.at = world.laptop.join(&world.b.network, &Join::default())?;
    let usable = world.at.usable_at;
    pair.wait_progress_of(&[Side::Client], SOME, LONG)?;
    let first = pair.arrivals(Side::Client, usable)?.first().map(|(at, _)| at.since(usable));
    step(&format!("the laptop received something new {:.0} ms after the address was there", ms(first)));
    // Half a round trip for the update, one until the sender has heard what has arrived, half until the next comes.
    // Without another kick it is a round trip more if there is something new to send, else the timer.
    let bound = ROUND_TRIP * 11 / 4 * patience();
    expect!(first.is_some_and(|first| first < bound), "something new came after {first:?}");
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
    let due = backed_off(pair, Side::Client, wanted)?;
    world.at = world.laptop.join(&to.network, &Join::default())?;
    let usable = world.at.usable_at;
    expect!(due > usable + wanted / 2, "this machine is too slow to tell: the address came when the timer ran out");
    pair.wait_progress_of(&[Side::Server], SOME, LONG)?;
    let first = pair.silence(Side::Server, usable)?.unwrap_or(Duration::MAX);
    Ok((first, due - usable))
}
