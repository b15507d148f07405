//! The hosts of one owner find one another by codes, and lose one.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use whimbrel_ipc::{CommunityReply, CommunityStanding, DrawnCode, Host, Reply, Roster};

use super::world::{LONG, World, all_run, site};
use super::{Scenario, scenario};
use crate::{Error, Gateway, Join, Lab, Result, Whimbrel, expect, wait_for};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "community",
        "three hosts become a community by codes; a wrong one is refused, and one host is revoked while another sleeps",
        community,
    ),
    scenario(
        "community-nat",
        "the same with two of them behind one NAT, where neither can be found by the others",
        community_behind_nat,
    ),
    scenario(
        "community-file",
        "a host whose file of the community was damaged trusts nobody, and says why it does not start",
        damaged_file,
    ),
];

fn answer(daemon: &Whimbrel, args: &[&str]) -> Result<CommunityReply> {
    let replies = daemon.json(&[&["community"], args].concat())?;
    let reply = replies.into_iter().find_map(|reply| match reply {
        Reply::Community(reply) => Some(*reply),
        _ => None,
    });
    reply.ok_or_else(|| Error::Usage(format!("`whimbrel community {}` told something else", args.join(" "))))
}

fn roster(daemon: &Whimbrel) -> Result<Roster> {
    match answer(daemon, &["list"])? {
        CommunityReply::Roster(roster) => Ok(roster),
        other => Err(Error::Usage(format!("no roster: {other:?}"))),
    }
}

pub(super) fn invite(daemon: &Whimbrel) -> Result<DrawnCode> {
    match answer(daemon, &["invite"])? {
        CommunityReply::Code(code) => Ok(code),
        other => Err(Error::Usage(format!("no code: {other:?}"))),
    }
}

fn host<'a>(roster: &'a Roster, name: &str) -> Option<&'a Host> {
    roster.hosts.iter().find(|host| host.name == name)
}

fn belongs(daemon: &Whimbrel, name: &str) -> Result<bool> {
    Ok(host(&roster(daemon)?, name).is_some_and(|host| host.standing != CommunityStanding::Revoked))
}

/// The complaint of a command that has to fail.
fn complaint(daemon: &Whimbrel, args: &[&str]) -> Result<String> {
    match daemon.cli(&[&["community"], args].concat()) {
        Ok(told) => Err(Error::Usage(format!("`whimbrel community {}` did not fail: {told}", args.join(" ")))),
        Err(error) => Ok(error.to_string()),
    }
}

/// The same code with another last word.
fn misheard(code: &str) -> String {
    let (rest, last) = code.rsplit_once('-').unwrap_or((code, ""));
    format!("{rest}-{}", if last == "tobacco" { "tolerance" } else { "tobacco" })
}

fn community(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let tablet = lab.host("tablet")?;
    tablet.join(&world.a.network, &Join::default())?;
    three(&world, tablet.whimbrel()?)
}

fn community_behind_nat(lab: &mut Lab) -> Result<()> {
    let nat = Gateway::Nat { random_ports: true };
    let world = World::new(lab, site("a").behind(nat), site("b"))?;
    let tablet = lab.host("tablet")?;
    tablet.join(&world.a.network, &Join::default())?;
    three(&world, tablet.whimbrel()?)
}

/// The server is the one that invites.
fn three(world: &World, mut tablet: Whimbrel) -> Result<()> {
    let (mut laptop, mut desk) = world.daemons()?;
    let at = world.at_server.ipv4()?.to_string();
    let told = complaint(&desk, &["invite"])?;
    expect!(told.contains("belongs to no community") && told.contains("community init"), "{told}");
    desk.cli(&["community", "init", "--name", "desk"])?;

    // A wrong word, and then it is too late for the right one.
    let drawn = invite(&desk)?;
    let told = complaint(&laptop, &["join", &misheard(&drawn.code), &at, "--name", "laptop"])?;
    expect!(told.contains("the code is wrong"), "{told}");
    desk.wait_event("code-guessed", 0, LONG)?;
    let told = complaint(&laptop, &["join", &drawn.code, &at, "--name", "laptop"])?;
    expect!(told.contains("no code of this number is open"), "{told}");
    let told = complaint(&laptop, &["join", "7-clockwork-clockwork-clockwork", &at])?;
    expect!(told.contains("`clockwork` is no word of a code at this place"), "{told}");
    expect!(roster(&laptop)?.community.is_none(), "the laptop has joined with a wrong code");

    for (daemon, name) in [(&laptop, "laptop"), (&tablet, "tablet")] {
        let drawn = invite(&desk)?;
        expect!(drawn.addresses.iter().any(|address| address.to_string() == at), "{drawn:?}");
        daemon.cli(&["community", "join", &drawn.code, &at, "--name", name])?;
        expect!(belongs(daemon, name)? && belongs(daemon, "desk")? && belongs(&desk, name)?, "{name} is not let in");
    }
    // No two are called the same.
    let drawn = invite(&desk)?;
    tablet.cli(&["community", "leave"])?;
    let told = complaint(&tablet, &["join", &drawn.code, &at, "--name", "Laptop"])?;
    expect!(
        told.contains("another host of that community is called as this one is") && told.contains("--name"),
        "{told}"
    );
    desk.wait_event("name-taken", 0, LONG)?;
    expect!(!belongs(&tablet, "desk")?, "the tablet was let in under the laptop's name");
    let drawn = invite(&desk)?;
    tablet.cli(&["community", "join", &drawn.code, &at, "--name", "tablet"])?;
    wait_for(LONG, "the laptop knows the tablet", || Ok(belongs(&laptop, "tablet")?.then_some(())))?;
    let told = complaint(&laptop, &["invite"])?;
    expect!(told.contains("no steward"), "{told}");
    let shown = laptop.cli(&["community", "list"])?;
    expect!(["desk", "laptop", "tablet", "steward", "this host"].iter().all(|word| shown.contains(word)), "{shown}");

    // The laptop sleeps while the tablet is stolen.
    laptop.stop()?;
    desk.cli(&["community", "revoke", "tablet"])?;
    let told = complaint(&desk, &["revoke", "tablet"])?;
    expect!(told.contains("it was revoked already"), "who revokes a host again is told {told}");
    tablet.wait_event("community-revoked", 0, LONG)?;
    expect!(roster(&tablet)?.standing == Some(CommunityStanding::Revoked), "the tablet takes itself for a member");
    expect!(!belongs(&tablet, "desk")?, "the tablet still counts on the desk");
    laptop.restart()?;
    laptop.wait_event("host-revoked", 0, LONG)?;
    expect!(!belongs(&laptop, "tablet")? && belongs(&laptop, "desk")?, "{:?}", roster(&laptop)?);
    desk.stop()?;
    desk.restart()?;
    expect!(!belongs(&desk, "tablet")? && belongs(&desk, "laptop")?, "{:?}", roster(&desk)?);

    // It is found again.
    let drawn = invite(&desk)?;
    tablet.cli(&["community", "join", &drawn.code, &at, "--name", "tablet"])?;
    wait_for(LONG, "the laptop knows the tablet again", || Ok(belongs(&laptop, "tablet")?.then_some(())))?;
    all_run(&mut [&mut laptop, &mut desk, &mut tablet])
}

fn damaged_file(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let (mut laptop, mut desk) = world.daemons()?;
    desk.cli(&["community", "init", "--name", "desk"])?;
    let drawn = invite(&desk)?;
    laptop.cli(&["community", "join", &drawn.code, &world.at_server.ipv4()?.to_string(), "--name", "laptop"])?;
    laptop.stop()?;
    let path = laptop.state_dir().join("community");
    let failed = |what: &str, error: std::io::Error| Error::Usage(format!("{what} {}: {error}", path.display()));
    let mode = fs::metadata(&path).map_err(|error| failed("stat", error))?.permissions().mode() & 0o777;
    expect!(mode == 0o600, "others may read it: {mode:04o}");
    let whole = fs::read_to_string(&path).map_err(|error| failed("read", error))?;
    let cut = &whole[..whole.len() / 2];
    for (damaged, says) in [
        (cut.to_owned(), "restore the file"),
        (whole.replace(" laptop\n", " thief\n"), "not signed"),
        (whole.replace("whimbrel community 1", "whimbrel community 9"), "another release"),
    ] {
        fs::write(&path, damaged).map_err(|error| failed("write", error))?;
        let told = laptop.restart().map_or_else(|error| error.to_string(), |()| "it started".to_owned());
        expect!(told.contains(says) && told.contains("join the community anew"), "not `{says}`: {told}");
    }
    fs::write(&path, whole).map_err(|error| failed("write", error))?;
    laptop.restart()?;
    expect!(belongs(&laptop, "desk")?, "the laptop has forgotten the desk");
    all_run(&mut [&mut laptop, &mut desk])
}
