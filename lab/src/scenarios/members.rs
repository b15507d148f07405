//! Users who may ask the daemon and are not root: what is others' stays others'.

use std::net::{IpAddr, SocketAddr};

use super::library::{Program, far_end, is_over};
use super::world::{LONG, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Host, Join, Lab, Result, Whimbrel, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "members-own",
        "who may ask and is not root gives away, receives, takes up and makes what is its own, and nothing of root's",
        own,
    ),
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

fn own(lab: &mut Lab) -> Result<()> {
    let (world, tablet, at_tablet, mut here, mut there) = two(lab)?;
    let to = world.at_server.ipv4()?;
    let owner = |program: &mut Program| program.does("owner");

    step("a name of one's own is no plain one");
    let mut taker = member(&tablet, &there)?;
    taker.does("receive films")?;
    let mut roots = Program::start(&tablet, &there)?;
    roots.does("receive films")?;
    let (mut far, port) = far_end(&world.server, to)?;
    let mut first = Program::start(&world.laptop, &here)?;
    first.does(&format!("connect {to} {port}"))?;
    first.does(&format!("talk {BLOCKS}"))?;
    first.does(&format!("give {at_tablet} films"))?;
    roots.does("received")?;
    expect!(owner(&mut roots)? == "0", "what root's program has received is another's");
    roots.does(&format!("talk {BLOCKS}"))?;

    step("what waits for its program is told to nobody by its name, and is not root's for who takes it");
    let uuid = roots.does("uuid")?;
    roots.does(&format!("give {}", world.at.ipv4()?))?;
    here.wait_event("socket-taken", 0, LONG)?;
    let told = here.cli(&["events", "--json"])?;
    expect!(!told.contains(&uuid[..8]), "the events tell the name of a socket that waits: {told}");
    let mut thief = member(&world.laptop, &here)?;
    let why = thief.fails(&format!("rebuild_text {}", &uuid[..8]))?;
    expect!(why.starts_with("ENOENT"), "the beginning of a name of root's: {why}");
    thief.does(&format!("rebuild {uuid} {}", 2 * BLOCKS))?;
    expect!(
        owner(&mut thief)? == "65534",
        "a socket that waited for anybody who knows its name is {}'s",
        owner(&mut thief)?
    );
    thief.does(&format!("talk {BLOCKS}"))?;

    step("it is given to a user by the user's name");
    let why = thief.fails(&format!("give {at_tablet} music"))?;
    expect!(why.starts_with("ECANCELED"), "{why}");
    thief.does(&format!("give {at_tablet} {MEMBER}/films"))?;
    taker.does("received")?;
    expect!(owner(&mut taker)? == MEMBER.to_string(), "what a member receives is another's");
    taker.does(&format!("talk {BLOCKS}"))?;
    taker.does("close")?;
    is_over(&mut far, 4 * BLOCKS)?;

    step("what is made for a user is that user's");
    let mut maker = member(&world.laptop, &here)?;
    maker.does("ask_for_one")?;
    expect!(owner(&mut maker)? == MEMBER.to_string(), "a socket that was made for a member is another's");
    let shared = first.does(&format!("share {} 0", world.at.ipv4()?))?;
    let why = maker.fails(&format!("share {} {shared}", world.at.ipv4()?))?;
    expect!(why.starts_with("EADDRINUSE"), "a member's socket shares root's port: {why}");
    let why = maker.fails("decide self")?;
    expect!(why.starts_with("EPERM"), "a member decides where others' sockets are anchored: {why}");
    world.no_resets()?;
    all_run(&mut [&mut here, &mut there])
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
