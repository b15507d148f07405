//! Users who may ask the daemon and are not root: what is others' stays others'.

use std::net::{IpAddr, SocketAddr};

use super::library::{Program, far_end, is_over};
use super::world::{LONG, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Host, Join, Lab, Result, Whimbrel, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "members-elsewhere",
        "who may ask hands in sockets that have root's names in a network namespace of its own: they are refused, and root's go on",
        elsewhere,
    ),
];

/// Anybody may ask.
const OPEN: &str = "control_mode = \"0666\"\n";
/// A user that the system has no name for.
const MEMBER: u32 = 54_321;
const BLOCKS: u32 = 5;

/// A host whose daemon anybody may ask, and another one that takes its sockets.
fn two(lab: &mut Lab) -> Result<(World, Host, IpAddr, Whimbrel, Whimbrel)> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let network = world.add(lab, site("c"))?;
    let tablet = lab.host("tablet")?;
    let at_tablet = tablet.join(&network.network, &Join::by("eth0"))?.ipv4()?;
    let (here, there) = (world.laptop.whimbrel_with(OPEN)?, tablet.whimbrel_with(OPEN)?);
    here.befriend(&there, world.at.ipv4()?)?;
    Ok((world, tablet, at_tablet, here, there))
}

fn member(host: &Host, daemon: &Whimbrel) -> Result<Program> {
    Program::start_by(host, daemon, MEMBER)
}

fn elsewhere(lab: &mut Lab) -> Result<()> {
    let (world, tablet, at_tablet, mut here, mut there) = two(lab)?;
    let (own, to) = (world.at.ipv4()?, world.at_server.ipv4()?);
    let mut taker = Program::start(&tablet, &there)?;
    taker.does("receive films")?;
    let (mut far, port) = far_end(&world.server, to)?;
    let mut root = Program::start(&world.laptop, &here)?;
    let local: u16 = root.does(&format!("connect {to} {port}"))?.parse().unwrap_or_default();
    root.does(&format!("talk {BLOCKS}"))?;
    let mut server = Program::start(&world.laptop, &here)?;
    let served = server.does(&format!("serve {own}"))?;
    // What can be given can be given when the other one is known as a holder of it.
    let mine = SocketAddr::new(own, local);
    here.wait_connection(mine, SocketAddr::new(to, port), LONG, "seen", |_| true)?;

    let mut thief = member(&world.laptop, &here)?;
    thief.does(&format!("leave {own} {to}"))?;
    for names in [format!("listen_at {own} {served}"), format!("connect_at {own} {local} {to} {port}")] {
        step(&names);
        thief.does(&names)?;
        for order in ["give", "prepare"] {
            let why = thief.fails(&format!("{order} {at_tablet} films"))?;
            expect!(why.starts_with("EPROTONOSUPPORT"), "{order} after {names}: {why}");
        }
    }
    step("root's go on");
    root.does(&format!("talk {BLOCKS}"))?;
    root.does("close")?;
    is_over(&mut far, 2 * BLOCKS)?;
    let mut client = Program::start(&world.server, &here)?;
    client.does(&format!("dial {own} {served}"))?;
    server.does("meet")?;
    client.begin(&format!("talk {BLOCKS}"))?;
    for _ in 0..BLOCKS {
        server.does("echo")?;
    }
    client.did(&format!("talk {BLOCKS}"))?;
    let nothing = || there.anchors().is_ok_and(|all| all.rented.is_empty());
    wait_until(LONG, "nothing of it is on lease", nothing)?;
    world.no_resets()?;
    all_run(&mut [&mut here, &mut there])
}
