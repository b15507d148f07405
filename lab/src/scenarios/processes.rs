//! Whole processes change hosts, with their connections.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use whimbrel_ipc::{ConnectionState, MovedProcess, Reply};

use super::world::{LONG, World, site, step};
use super::{Scenario, scenario};
use crate::{EchoServer, Host, Join, Lab, Result, Walker, Whimbrel, expect, patience, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "moved-process",
        "a process goes to another host with its connections, and comes back; their far end runs nothing",
        |lab| moved(lab, false),
    ),
    scenario(
        "moved-process-direct",
        "the same with a far end that runs Whimbrel, and to a host where the process keeps its number",
        |lab| moved(lab, true),
    ),
    scenario("kept-process", "a process that cannot go, or comes to nothing on the way, stays and goes on", kept),
    scenario("moved-process-killed", "daemons are killed in the middle of a process's move", killed),
];

const COUNT: usize = 3;
const MEMORY: usize = 2 << 20;
/// How long connections may be silent on the way: CRIU starts several programs, on a machine that does other things as well.
const SOON: Duration = Duration::from_secs(5);

/// Why processes cannot be moved here, if they cannot.
fn lacking() -> Option<String> {
    let check = Command::new("criu").arg("check").output();
    match check {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            Some(String::from_utf8_lossy(&output.stderr).lines().next_back().unwrap_or("it fails").to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}

/// Says why it is left out.
fn left_out() -> bool {
    let lacking = lacking();
    if let Some(why) = &lacking {
        println!("    left out, for `criu check` says: {why}");
    }
    lacking.is_some()
}

/// A far end, a host with a process, and one that it goes to, each in a network of its own.
struct Three {
    world: World,
    donor: Whimbrel,
    acceptor: Whimbrel,
    _far: Option<Whimbrel>,
    at_acceptor: IpAddr,
    echo: EchoServer,
    host: Host,
}

impl Three {
    /// `numbers`: the acceptor is as if it were on a machine of its own.
    fn new(lab: &mut Lab, far_runs: bool, numbers: bool) -> Result<Self> {
        let mut world = World::new(lab, site("a"), site("b"))?;
        let network = world.add(lab, site("c"))?;
        let host = lab.host("acceptor")?;
        let at_acceptor = host.join(&network.network, &Join::by("eth0"))?.ipv4()?;
        let donor = world.server.whimbrel_for_processes(false)?;
        let acceptor = host.whimbrel_for_processes(numbers)?;
        let far = if far_runs { Some(world.laptop.whimbrel()?) } else { None };
        donor.befriend(&acceptor, world.at_server.ipv4()?)?;
        let echo = EchoServer::start(&world.laptop, world.at.ipv4()?)?;
        Ok(Self { world, donor, acceptor, _far: far, at_acceptor, echo, host })
    }

    fn walker(&self) -> Result<Walker> {
        Walker::start(&self.world.server, &self.echo, COUNT, MEMORY)
    }
}

/// Moves a process, and says how that went.
fn give(from: &Whimbrel, pid: u32, to: &str) -> Result<MovedProcess> {
    let replies = from.json(&["move", "--pid", &pid.to_string(), "--to", to])?;
    let moved = replies.into_iter().find_map(|reply| match reply {
        Reply::MovedProcess(moved) => Some(*moved),
        _ => None,
    });
    let Some(moved) = moved else { return Err(crate::Error::Expectation("the process did not move".to_owned())) };
    println!("    it stood still for {} ms", moved.still_ms.unwrap_or_default());
    expect!(moved.lost.is_empty(), "connections were lost: {:?}", moved.lost);
    Ok(moved)
}

/// It walks on, and was not silent for too long.
fn walks(walker: &Walker, what: &str) -> Result<()> {
    walker.wait_progress(100)?;
    let report = walker.report()?;
    println!("    {what}: silent for {:.0} ms at the most", report.longest_gap.as_secs_f64() * 1e3);
    expect!(report.longest_gap < SOON * patience(), "{what}: silent for {:?}", report.longest_gap);
    Ok(())
}

/// Whether a process is there, and not merely not waited for.
fn is_there(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Ends a process that came to another host, where nothing else would.
struct Ended(u32);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0 as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

fn moved(lab: &mut Lab, far_runs: bool) -> Result<()> {
    if left_out() {
        return Ok(());
    }
    let three = Three::new(lab, far_runs, far_runs)?;
    let walker = three.walker()?;
    if far_runs {
        let native = || {
            let all = three.donor.connections().unwrap_or_default();
            all.iter().filter(|connection| connection.state == ConnectionState::Native).count() == COUNT
        };
        wait_until(LONG, "the connections are introduced", native)?;
    }
    step("the process goes to another host");
    let there = give(&three.donor, walker.pid(), &three.at_acceptor.to_string())?;
    expect!(there.connections == COUNT, "{} connections went", there.connections);
    let Some(pid) = there.pid_there else {
        return Err(crate::Error::Expectation("nobody says which process it is there".to_owned()));
    };
    // A namespace of numbers goes with its daemon.
    let _ended = (!far_runs).then_some(Ended(pid));
    expect!(far_runs == (pid == walker.pid()), "it is process {pid} there");
    walks(&walker, "there")?;
    expect!(!is_there(walker.pid()), "it is at the donor as well");
    three.world.no_resets()?;

    step("it comes back");
    let back = give(&three.acceptor, pid, "desk")?;
    let _back = back.pid_there.map(Ended);
    walks(&walker, "back")?;
    expect!(far_runs || !is_there(pid), "it is at the acceptor as well");
    three.world.no_resets()
}

/// What `whimbrel move --pid` says where the process stays.
fn refusal(from: &Whimbrel, pid: u32, to: &str) -> Result<String> {
    let pid = pid.to_string();
    let args = ["move", "--pid", &pid, "--to", to];
    match from.cli(&args) {
        Ok(said) => Err(crate::Error::Expectation(format!("it moved: {said}"))),
        Err(crate::Error::Command { stderr, .. }) => Ok(stderr),
        Err(error) => Err(error),
    }
}

fn kept(lab: &mut Lab) -> Result<()> {
    if left_out() {
        return Ok(());
    }
    let mut three = Three::new(lab, false, true)?;
    let walker = three.walker()?;
    let to = three.at_acceptor.to_string();
    step("what cannot be done is said");
    let said = refusal(&three.donor, 999_999_999, &to)?;
    expect!(said.contains("there is no such process"), "{said}");
    let said = refusal(&three.donor, walker.pid(), "192.0.2.77")?;
    expect!(said.contains("no host is known by this"), "{said}");
    // The lab's own programs have pipes to the lab.
    let server = EchoServer::start(&three.world.server, three.world.at_server.ipv4()?)?;
    let said = refusal(&three.donor, server.pid(), &to)?;
    expect!(said.contains("shares a pipe with process"), "{said}");
    walks(&walker, "after that")?;

    step("the other host lacks a file that it needs");
    let hidden = three.world.server.dir().display().to_string();
    let inside = three.acceptor.process().pid().to_string();
    let mount = ["--target", &inside, "--mount", "mount", "-t", "tmpfs", "none", &hidden];
    three.host.command("nsenter").args(mount).run()?;
    let said = refusal(&three.donor, walker.pid(), &to)?;
    expect!(said.contains("it needs files that are not there") && said.contains("is missing"), "{said}");
    walks(&walker, "after that")?;

    step("it is gone");
    three.acceptor.kill()?;
    let said = refusal(&three.donor, walker.pid(), &to)?;
    expect!(said.contains("it stays here"), "{said}");
    walks(&walker, "kept")?;
    three.world.no_resets()
}

fn killed(lab: &mut Lab) -> Result<()> {
    if left_out() {
        return Ok(());
    }
    let mut three = Three::new(lab, false, false)?;
    let walker = three.walker()?;
    let to = three.at_acceptor.to_string();
    step("the donor's daemon is killed while the process stands still");
    let pid = walker.pid().to_string();
    let _asked = three.donor.spawn_cli(&["move", "--pid", &pid, "--to", &to])?;
    let stands = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
    wait_until(LONG, "the process stands still", stands)?;
    three.donor.kill()?;
    three.donor.restart()?;
    walks(&walker, "with another daemon")?;

    step("the acceptor's daemon is killed when the process is there");
    let _asked = three.donor.spawn_cli(&["move", "--pid", &pid, "--to", &to])?;
    let there = three.acceptor.run_dir().join("processes");
    let mut name = std::ffi::OsString::new();
    let rebuilt = || {
        let mut entries = std::fs::read_dir(&there).into_iter().flatten().flatten();
        let found = entries.find(|entry| entry.path().join("rebuilt").exists());
        found.map(|entry| name = entry.path().join("keeper").into()).is_some()
    };
    wait_until(LONG, "the process is there", rebuilt)?;
    // The first of its processes has no parent but the one that waits for it.
    let keeper = std::fs::read_to_string(&name).ok().and_then(|keeper| keeper.trim().parse::<u32>().ok());
    let _ended = keeper.and_then(only_child).map(Ended);
    three.acceptor.kill()?;
    three.acceptor.restart()?;
    walks(&walker, "with another daemon there")?;
    three.world.no_resets()
}

/// The only child of a process.
fn only_child(of: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
