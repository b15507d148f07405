//! Whole processes change hosts, with their connections.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use whimbrel_ipc::{ConnectionState, MovedProcess, Reply};

use super::world::{LONG, World, site, step};
use super::{Scenario, scenario};
use crate::{
    EchoServer, Host, Join, Lab, Lame, Metadata, Process, Result, Site, Walker, Whimbrel, criu_lacks,
    criu_starts_within, expect, patience, wait_for, wait_until,
};

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
    scenario(
        "moved-process-tree",
        "a shell and its children go to another host and come back, two of which have the same socket, and one datagrams in its queue",
        tree,
    ),
    scenario(
        "moved-process-cgroup",
        "a cgroup of processes with IPv6 connections goes to another host and comes back, named by any of them",
        cgroup,
    ),
    scenario(
        "moved-process-sockets",
        "a process goes to another host and comes back with sockets that are over, were never connected, or say no more; one that guards its program stays",
        odd_sockets,
    ),
    scenario("kept-process", "a process that cannot go, or comes to nothing on the way, stays and goes on", kept),
    scenario("moved-process-killed", "daemons are killed in the middle of a process's move", killed),
    scenario(
        "moved-process-killed-twice",
        "the daemon of a process's new host is killed in the middle of the move, and once more after it; then the process comes home",
        killed_twice,
    ),
];

const COUNT: usize = 3;
const MEMORY: usize = 2 << 20;
/// How long connections may be silent on the way: CRIU starts several programs, on a machine that does other things as
/// well.
const SOON: Duration = Duration::from_secs(5);
/// How often `criu check`, which does little more than start, fits into what a process stands still for, at the most.
/// Beside four builds on two processors it took 0.26 to 0.43 s, and processes stood still for 3.5 to 7.4 s; their
/// connections were silent for as long, to 30 ms.
const CHECKS: u32 = 40;

/// Goes on only where processes can be moved.
pub(super) fn needs_criu() -> Result<()> {
    criu_lacks().map_or(Ok(()), |why| Err(crate::Error::Skipped(why)))
}

/// A far end, a host with a process, and one that it goes to, each in a network of its own.
pub(super) struct Three {
    pub(super) world: World,
    /// Where the acceptor is.
    pub(super) network: Site,
    pub(super) donor: Whimbrel,
    pub(super) acceptor: Whimbrel,
    _far: Option<Whimbrel>,
    pub(super) at_acceptor: IpAddr,
    echo: EchoServer,
    host: Host,
}

/// These without daemons.
struct Hosts {
    world: World,
    network: Site,
    host: Host,
    at_acceptor: IpAddr,
}

impl Hosts {
    fn new(lab: &mut Lab) -> Result<Self> {
        let mut world = World::new(lab, site("a"), site("b"))?;
        let network = world.add(lab, site("c"))?;
        let host = lab.host("acceptor")?;
        let at_acceptor = host.join(&network.network, &Join::by("eth0"))?.ipv4()?;
        Ok(Self { world, network, host, at_acceptor })
    }

    fn with(self, [donor, acceptor]: [Whimbrel; 2], far_runs: bool) -> Result<Three> {
        let Self { world, network, host, at_acceptor } = self;
        let far = if far_runs { Some(world.laptop.whimbrel()?) } else { None };
        donor.befriend(&acceptor, world.at_server.ipv4()?)?;
        let echo = EchoServer::with_datagrams(&world.laptop, world.at.ipv4()?)?;
        Ok(Three { world, network, donor, acceptor, _far: far, at_acceptor, echo, host })
    }
}

impl Three {
    /// `numbers`: the acceptor is as if it were on a machine of its own.
    pub(super) fn new(lab: &mut Lab, far_runs: bool, numbers: bool) -> Result<Self> {
        Self::with_donor(lab, far_runs, numbers, "")
    }

    /// `config`: of the first of the hosts.
    pub(super) fn with_donor(lab: &mut Lab, far_runs: bool, numbers: bool, config: &str) -> Result<Self> {
        let hosts = Hosts::new(lab)?;
        let donor = hosts.world.server.whimbrel_for_processes_with(false, config)?;
        let acceptor = hosts.host.whimbrel_for_processes(numbers)?;
        hosts.with([donor, acceptor], far_runs)
    }

    /// Both hosts have CRIUs that can be made to fail.
    pub(super) fn lame(lab: &mut Lab) -> Result<Self> {
        let hosts = Hosts::new(lab)?;
        let donor = hosts.world.server.whimbrel_for_processes_lame(Lame::Nothing)?;
        let acceptor = hosts.host.whimbrel_for_processes_lame(Lame::Nothing)?;
        hosts.with([donor, acceptor], false)
    }

    fn walker(&self) -> Result<Walker> {
        Walker::start(&self.world.server, &self.echo, COUNT, Metadata { memory: MEMORY, ..Metadata::default() })
    }
}

/// Moves a process, and says how that went.
fn give(from: &Whimbrel, pid: u32, to: &str) -> Result<MovedProcess> {
    give_with(from, pid, &[], to)
}

/// The same with what else goes.
pub(super) fn give_with(from: &Whimbrel, pid: u32, more: &[&str], to: &str) -> Result<MovedProcess> {
    let pid = pid.to_string();
    let replies = from.json(&[&["move", "--pid", &pid, "--to", to], more].concat())?;
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
    let silent = report.longest_gap;
    println!("    {what}: silent for {:.0} ms at the most", silent.as_secs_f64() * 1e3);
    if silent >= SOON * patience() {
        let busy = criu_starts_within() * CHECKS;
        println!("    {what}: this machine is busy enough for {:.0} ms", busy.as_secs_f64() * 1e3);
        expect!(
            silent < busy,
            "{what}: silent for {silent:?}, and not more than {busy:?} is what else the machine does"
        );
    }
    walker.log_is_whole()
}

/// Whether a process is there, and not merely not waited for.
pub(super) fn is_there(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Ends a process that came to another host, where nothing else would.
pub(super) struct Ended(pub(super) u32);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0 as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

fn moved(lab: &mut Lab, far_runs: bool) -> Result<()> {
    needs_criu()?;
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

/// With what programs have open beside connections that carry something.
fn odd_sockets(lab: &mut Lab) -> Result<()> {
    needs_criu()?;
    let three = Three::new(lab, false, true)?;
    let to = three.at_acceptor.to_string();
    let start = |metadata| Walker::start(&three.world.server, &three.echo, COUNT, metadata);
    step("one that reads no more of a connection stays: CRIU would have it read on");
    let deaf = start(Metadata { deaf: true, ..Metadata::default() })?;
    let said = refusal(&three.donor, deaf.pid(), &to)?;
    expect!(said.contains("shut down"), "{said}");
    walks(&deaf, "kept")?;

    step("one with sockets that are over, never began, or say no more, goes to another host");
    let walker = start(Metadata { silent: true, ..Metadata::default() })?;
    let there = give(&three.donor, walker.pid(), &to)?;
    expect!(there.connections == COUNT + 1, "{} connections went", there.connections);
    walks(&walker, "there")?;
    expect!(!is_there(walker.pid()), "it is at the donor as well");
    let Some(pid) = there.pid_there else {
        return Err(crate::Error::Expectation("nobody says which process it is there".to_owned()));
    };
    step("it comes back");
    let back = give(&three.acceptor, pid, "desk")?;
    let _back = back.pid_there.map(Ended);
    walks(&walker, "back")?;
    three.world.no_resets()
}

/// What `whimbrel move --pid` says where the process stays.
fn refusal(from: &Whimbrel, pid: u32, to: &str) -> Result<String> {
    refusal_with(from, pid, &[], to)
}

/// The same with what else was to go.
pub(super) fn refusal_with(from: &Whimbrel, pid: u32, more: &[&str], to: &str) -> Result<String> {
    let pid = pid.to_string();
    match from.cli(&[&["move", "--pid", &pid, "--to", to], more].concat()) {
        Ok(said) => Err(crate::Error::Expectation(format!("it moved: {said}"))),
        Err(crate::Error::Command { stderr, .. }) => Ok(stderr),
        Err(error) => Err(error),
    }
}

/// The processes below one, as its host's kernel has them: the first level, and all.
fn children(of: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn tree(lab: &mut Lab) -> Result<()> {
    needs_criu()?;
    let three = Three::new(lab, false, true)?;
    let family = Walker::start_family(&three.world.server, &three.echo, 2, None)?;
    let to = three.at_acceptor.to_string();
    step("what cannot go by itself is said");
    let said = refusal(&three.donor, family.pid(), &to)?;
    expect!(said.contains("3 descendants, which would be left behind: `--tree` takes them along"), "{said}");
    let sharer = children(family.pid()).into_iter().find(|child| !children(*child).is_empty());
    let Some(partner) = sharer.and_then(|child| children(child).first().copied()) else {
        return Err(crate::Error::Expectation("nobody shares a socket".to_owned()));
    };
    let said = refusal(&three.donor, partner, &to)?;
    expect!(said.contains("shares a socket with process"), "{said}");
    walks(&family, "after that")?;

    step("the tree goes to another host");
    let there = give_with(&three.donor, family.pid(), &["--tree"], &to)?;
    // Two and two, one that is shared, and one of datagrams.
    expect!(there.connections == 6, "{} connections went", there.connections);
    walks(&family, "there")?;
    expect!(!is_there(family.pid()) && !is_there(partner), "some of it is at the donor as well");
    three.world.no_resets()?;

    step("it comes back");
    comes_back(&three, &there, &family)
}

/// A tree of processes that has moved goes home, with all of its connections.
fn comes_back(three: &Three, there: &MovedProcess, family: &Walker) -> Result<()> {
    let Some(pid) = there.pid_there else {
        return Err(crate::Error::Expectation("nobody says which process it is there".to_owned()));
    };
    let back = give_with(&three.acceptor, pid, &["--tree"], "desk")?;
    let _back: Vec<Ended> =
        back.pid_there.map(|pid| descendants(pid).into_iter().map(Ended).collect()).unwrap_or_default();
    walks(family, "back")?;
    three.world.no_resets()
}

/// A process and all below it.
pub(super) fn descendants(of: u32) -> Vec<u32> {
    let mut all = vec![of];
    let mut at = 0;
    while let Some(pid) = all.get(at).copied() {
        all.extend(children(pid));
        at += 1;
    }
    all
}

/// A control group of the unified hierarchy (cgroups(7)), which goes with this.
struct Cgroup(PathBuf);

impl Cgroup {
    /// One with a name that nobody else has; `None` where there can be none.
    fn new(lab: &Lab) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = mount.into_iter().find(|words| words.get(2) == Some(&"cgroup2"))?;
        let path = Path::new(mount.get(1)?).join(format!("whimbrel-lab-{}", lab.id()));
        std::fs::create_dir(&path).ok().map(|()| Self(path))
    }

    fn entrance(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // What is in it ends first (cgroup.kill, Linux 5.14), and is out of it at some time.
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        let empty = || std::fs::remove_dir(&self.0).is_ok();
        let _ = wait_until(LONG, "the control group is empty", empty);
    }
}

fn cgroup(lab: &mut Lab) -> Result<()> {
    needs_criu()?;
    let three = Three::new(lab, false, true)?;
    let Some(cgroup) = Cgroup::new(lab) else {
        return Err(crate::Error::Skipped("no control group can be made here (cgroup v2)".to_owned()));
    };
    let echo = EchoServer::with_datagrams(&three.world.laptop, three.world.at.ipv6()?)?;
    let family = Walker::start_family(&three.world.server, &echo, 2, Some(&cgroup.entrance()))?;
    let to = three.at_acceptor.to_string();
    let Some(child) = children(family.pid()).first().copied() else {
        return Err(crate::Error::Expectation("the shell has no children".to_owned()));
    };
    step("the cgroup of one of its processes goes to another host");
    let there = give_with(&three.donor, child, &["--cgroup"], &to)?;
    expect!(there.connections == 6, "{} connections went", there.connections);
    expect!(there.pid == family.pid(), "the first of it is process {}", there.pid);
    walks(&family, "there")?;
    expect!(!is_there(family.pid()) && !is_there(child), "some of it is at the donor as well");
    three.world.no_resets()?;

    step("a cgroup of several trees does not go");
    let others = Walker::start_family(&three.world.server, &echo, 1, Some(&cgroup.entrance()))?;
    let more = Walker::start_family(&three.world.server, &echo, 1, Some(&cgroup.entrance()))?;
    let said = refusal_with(&three.donor, others.pid(), &["--cgroup"], &to)?;
    expect!(said.contains("several trees"), "{said}");
    walks(&others, "after that")?;
    walks(&more, "after that")?;

    step("the first comes back");
    comes_back(&three, &there, &family)
}

fn kept(lab: &mut Lab) -> Result<()> {
    needs_criu()?;
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

    step("it has locked a file, which nobody else could lock as long as it is here");
    let metadata = Metadata { memory: MEMORY, locks: true, ..Metadata::default() };
    let locker = Walker::start(&three.world.server, &three.echo, COUNT, metadata)?;
    let said = refusal(&three.donor, locker.pid(), &to)?;
    expect!(said.contains("file locks"), "{said}");
    walks(&locker, "with its lock")?;

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
    needs_criu()?;
    let mut three = Three::new(lab, false, false)?;
    let walker = three.walker()?;
    step("the donor's daemon is killed while the process stands still");
    let to = three.at_acceptor.to_string();
    let _asked = ask(&three.donor, walker.pid(), &to)?;
    let still = stands_still(walker.pid())?;
    three.donor.kill()?;
    lock(&three, walker.pid())?;
    three.donor.restart()?;
    let silent = walks_again(&walker, still, Duration::ZERO)?;

    step("the acceptor's daemon is killed when the process is there");
    let _asked = ask(&three.donor, walker.pid(), &to)?;
    let still = stands_still(walker.pid())?;
    let there = rebuilt(&three.acceptor)?;
    three.acceptor.kill()?;
    three.acceptor.restart()?;
    walks_again(&walker, still, silent)?;
    let pids: Vec<u32> = there.iter().map(|there| there.0).chain([walker.pid()]).collect();
    gone_on(&pids)?;
    three.world.no_resets()
}

/// Has it look as if the donor's CRIU were one of before 3.19, which cuts connections off when it has written their
/// process down.
fn lock(three: &Three, pid: u32) -> Result<()> {
    let state = three.donor.run_dir().join(format!("processes/out-{pid}/state.json"));
    let failed = |call| move |error| crate::Error::call(call, "what the donor's daemon has noted", error);
    let noted = std::fs::read_to_string(&state).map_err(failed("read"))?;
    std::fs::write(&state, noted.replace("\"locks\":false", "\"locks\":true")).map_err(failed("write"))?;
    three.world.server.nft(&format!(
        "table inet CRIU-{pid} {{ chain input {{ type filter hook input priority 0; meta l4proto tcp drop; }}; }}"
    ))
}

fn killed_twice(lab: &mut Lab) -> Result<()> {
    needs_criu()?;
    let mut three = Three::new(lab, false, false)?;
    let walker = three.walker()?;
    let Three { donor, acceptor, world, at_acceptor, .. } = &mut three;
    let there = at_acceptor.to_string();
    let (there, silent) = arrives_struck(donor, acceptor, (walker.pid(), &there), &walker, Duration::ZERO)?;
    world.no_resets()?;
    step("it comes home, where its connections are held");
    let _home = arrives_struck(acceptor, donor, (there.0, "desk"), &walker, silent)?;
    world.no_resets()
}

/// Has the process with this number go to a host, whose daemon is killed when the process is there, and once more when
/// it has gone on. `before`: so long a connection of it was silent before. Gives which process it is there, and how
/// long one was.
fn arrives_struck(
    from: &Whimbrel,
    to: &mut Whimbrel,
    (pid, whither): (u32, &str),
    walker: &Walker,
    before: Duration,
) -> Result<(Ended, Duration)> {
    step("the daemon of its new host is killed when the process is there, at rest");
    let mut asked = ask(from, pid, whither)?;
    let still = stands_still(pid)?;
    let there = rebuilt(to)?;
    to.kill()?;
    to.restart()?;
    let silent = walks_again(walker, still, before)?;
    let there = match there {
        Some(there) if gone_on(&[pid, there.0])? == there.0 => there,
        _ => {
            step("it has stayed, and goes now");
            asked.kill()?;
            // It goes on a moment before its move is over.
            let moved = wait_for(LONG, "its move is over", || match give(from, pid, whither) {
                Err(error) if error.to_string().contains("it is being moved already") => Ok(None),
                given => given.map(Some),
            })?;
            Ended(moved.pid_there.unwrap_or_default())
        }
    };
    step("it is killed once more");
    let still = Instant::now();
    to.kill()?;
    to.restart()?;
    let silent = walks_again(walker, still, silent)?;
    expect!(!is_there(pid), "it is where it was as well");
    Ok((there, silent))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Has a process go to another host, without waiting for it.
pub(super) fn ask(from: &Whimbrel, pid: u32, to: &str) -> Result<Process> {
    from.spawn_cli(&["move", "--pid", &pid.to_string(), "--to", to])
}

/// Waits until a process is stopped. Gives when that was.
fn stands_still(pid: u32) -> Result<Instant> {
    let stands = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
    wait_until(LONG, "the process stands still", stands)?;
    Ok(Instant::now())
}

/// Waits until a process is rebuilt at a host, and says which it is there.
fn rebuilt(at: &Whimbrel) -> Result<Option<Ended>> {
    let there = at.run_dir().join("processes");
    let keeper = || {
        let mut entries = std::fs::read_dir(&there).into_iter().flatten().flatten();
        Ok(entries.find(|entry| entry.path().join("rebuilt").exists()).map(|entry| entry.path().join("keeper")))
    };
    let keeper = wait_for(LONG, "the process is there", keeper)?;
    // Between the process and what keeps its numbers there is CRIU.
    let keeper = std::fs::read_to_string(&keeper).ok().and_then(|keeper| keeper.trim().parse::<u32>().ok());
    Ok(keeper.and_then(only_child).and_then(only_child).map(Ended))
}

/// It walks on, after a daemon was killed: how long that takes is for what the machine does to say, so that its
/// connections may be silent for as long again as it stood still, by TCP's timer. `before`: so long one was silent
/// before. Gives how long one was.
fn walks_again(walker: &Walker, still: Instant, before: Duration) -> Result<Duration> {
    let stood = still.elapsed();
    walker.wait_progress(100)?;
    let silent = walker.report()?.longest_gap;
    println!(
        "    silent for {:.0} ms at the most, {:.0} ms until a daemon was there",
        milliseconds(silent),
        milliseconds(stood)
    );
    expect!(
        silent < (stood * 2 + SOON * patience()).max(before + SOON),
        "silent for {silent:?}, {stood:?} until a daemon was there"
    );
    Ok(silent)
}

/// Waits until one of these processes is there and the others are not, and says which.
fn gone_on(pids: &[u32]) -> Result<u32> {
    wait_for(LONG, "it is at one place", || {
        let mut there = pids.iter().copied().filter(|pid| is_there(*pid));
        Ok(there.next().filter(|_| there.next().is_none()))
    })
}

/// The only child of a process.
fn only_child(of: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
