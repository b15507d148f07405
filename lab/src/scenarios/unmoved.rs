//! Protocols that are not moved.

use whimbrel_ipc::{ConnectionState, Transport};

use super::world::{LONG, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Lab, Process, Result, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[scenario(
    "other-protocols",
    "an echo that is bound to the address that goes is named, before and when it is left behind; one that is not goes on",
    other_protocols,
)];

fn answers(ping: &Process) -> usize {
    ping.stdout().lines().filter(|line| line.contains("bytes from")).count()
}

fn other_protocols(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let (own, there) = (world.at.ipv4()?.to_string(), world.at_server.ipv4()?.to_string());
    let ping = |args: &[&str]| {
        world.laptop.command("ping").args(["-i", "0.2"]).args(args.iter().copied()).arg(&there).label("ping").spawn()
    };
    let (mut bound, mut free) = (ping(&["-I", &own])?, ping(&[])?);
    wait_until(LONG, "both are answered", || answers(&bound) > 2 && answers(&free) > 2)?;
    wait_until(LONG, "the one that is bound is shown as unprotected", || {
        let shown = client.connections().unwrap_or_default().into_iter().find(|connection| {
            matches!(connection.flow.transport, Transport::Raw | Transport::Echo)
                && connection.flow.local.ip().to_string() == own
        });
        shown.is_some_and(|shown| {
            let process = shown.process.is_some_and(|process| process.name == "ping");
            shown.state == ConnectionState::Unprotected && shown.reason.is_some() && process
        })
    })?;

    step("the laptop moves");
    let since = client.status()?.newest_event;
    let b = world.b.clone();
    world.roam(&b)?;
    let event = client.wait_event("left-behind", since, LONG)?;
    expect!(event.fields["count"] == 1, "{}", event.sentence);
    let before = answers(&free);
    wait_until(LONG, "the one that is not bound goes on", || answers(&free) > before + 5)?;
    for ping in [&mut bound, &mut free] {
        ping.kill()?;
    }
    all_run(&mut [&mut client, &mut server])
}
