//! Programs that use libwhimbrel, with real daemons.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::world::{LONG, World, all_run, site, step};
use super::{Scenario, scenario};
use crate::{Cmd, Error, Host, Join, Lab, Leave, Process, Result, Whimbrel, expect, wait_for, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "library",
        "a program's socket keeps its name over a restart of the daemon, outlives its program, roams meanwhile, and is taken up by another",
        library,
    ),
    scenario(
        "library-give",
        "a program hands its connection to one on another host, with what that needs to go on, and gets it back; the far end runs nothing",
        give,
    ),
    scenario(
        "library-prepare",
        "a host gets ready for a connection that goes on meanwhile, and then gets it; or another host does, or none, since its program ends",
        prepare,
    ),
    scenario(
        "library-flood",
        "many connections with all the state that may be are given to a program that takes its time: each is there or here, none is lost",
        flood,
    ),
    scenario(
        "library-migrate",
        "all sockets of a process are moved by their names while somebody else moves the process; one that cannot go stays",
        migrate,
    ),
    scenario(
        "library-refusals",
        "what the daemon refuses to programs, each with its errno; a migrator decides about anchors",
        refusals,
    ),
    scenario(
        "library-anchor",
        "programs open and serve connections with the address of another host, and hand one on; what it does not lend is refused, with its errno",
        anchored,
    ),
    scenario(
        "library-sockmand",
        "a program in C with the thesis's names opens a connection, which goes to another host and is rebuilt there \
         by another such program",
        sockmand,
    ),
    scenario(
        "library-hidden",
        "connections that programs open with another host's address go to the far end directly, where that runs Whimbrel; one that is hidden does not",
        hidden,
    ),
];

/// How many blocks are sent and compared at a time.
const BLOCKS: u32 = 20;

/// As much as a program may hand over with a socket, in bytes.
const STATE: usize = whimbrel_ipc::MAX_STATE;

const PROGRAM: &str = include_str!("library/program.py");
const MODULE: &str = include_str!("../../../crates/capi/python/whimbrel/__init__.py");

/// A program on a host that takes orders.
pub(super) struct Program {
    pub(super) process: Process,
}

impl Program {
    pub(super) fn start(host: &Host, daemon: &Whimbrel) -> Result<Self> {
        Self::run(host, PROGRAM, &daemon.run_dir())
    }

    /// Starts one of this text, with the library of the daemon that has this run directory.
    pub(super) fn run(host: &Host, text: &str, run_dir: &Path) -> Result<Self> {
        Self::start_as(host.command("python3"), host, text, run_dir)
    }

    /// Starts the usual one as a user without any rights.
    pub(super) fn start_by(host: &Host, daemon: &Whimbrel, user: u32) -> Result<Self> {
        let command = host.command("setpriv").args([format!("--reuid={user}"), format!("--regid={user}")]);
        let command = command.args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
        // Root's own may be where nobody else gets.
        let command = command.args(["env", "PATH=/usr/bin:/bin:/usr/sbin:/sbin", "python3"]);
        Self::start_as(command, host, PROGRAM, &daemon.run_dir())
    }

    /// The same with the address of another host, and this port of that one's.
    pub(super) fn run_behind(daemon: &Whimbrel, text: &str, anchor: &str, port: u16, ipv6: bool) -> Result<Self> {
        let port = format!("--port={port}");
        let mut run = vec!["run", "--anchor", anchor, &port];
        run.extend(ipv6.then_some("-6"));
        run.extend(["--", "python3"]);
        Self::start_as(daemon.command(&run), daemon.host(), text, &daemon.run_dir())
    }

    /// The usual one behind an anchor, as a user without any rights who may ask the daemon.
    pub(super) fn start_behind_by(daemon: &Whimbrel, anchor: &str, user: u32) -> Result<Self> {
        let command = daemon.host().command("setpriv").args([format!("--reuid={user}"), format!("--regid={user}")]);
        let command = command.args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
        let command = command.args(["env", "PATH=/usr/bin:/bin:/usr/sbin:/sbin"]).arg(daemon.binary());
        let command = command.arg("--run-dir").arg(daemon.run_dir()).args(["run", "--anchor", anchor, "--", "python3"]);
        Self::start_as(command, daemon.host(), PROGRAM, &daemon.run_dir())
    }

    fn start_as(command: Cmd, host: &Host, text: &str, run_dir: &Path) -> Result<Self> {
        let library = crate::beside_this_program("libwhimbrel.so")
            .ok_or_else(|| Error::Usage("libwhimbrel.so is not beside this program: build it".into()))?;
        let directory = write(host, text)?;
        let process = command
            .args(["-B", &format!("{directory}/program.py")])
            .env("PYTHONPATH", &directory)
            .env("WHIMBREL_LIBRARY", library)
            .env("WHIMBREL_RUN_DIR", run_dir)
            .label("a program with libwhimbrel")
            .spawn()?;
        Ok(Self { process })
    }

    /// Gives an order, and waits for what came of it.
    pub(super) fn does(&mut self, order: &str) -> Result<String> {
        self.begin(order)?;
        self.did(order)
    }

    pub(super) fn begin(&mut self, order: &str) -> Result<()> {
        self.process.send_line(order)
    }

    /// What came of an order that was begun.
    pub(super) fn did(&mut self, order: &str) -> Result<String> {
        match self.answer(order)? {
            Ok(done) => Ok(done),
            Err(why) => Err(Error::Usage(format!("`{order}` failed: {why}"))),
        }
    }

    /// What came of an order, either way.
    fn tries(&mut self, order: &str) -> Result<Result<String, String>> {
        self.begin(order)?;
        self.answer(order)
    }

    /// The errno and the reason of an order that has to fail.
    pub(super) fn fails(&mut self, order: &str) -> Result<String> {
        self.begin(order)?;
        match self.answer(order)? {
            Err(why) => Ok(why),
            Ok(done) => Err(Error::Usage(format!("`{order}` did not fail: {done}"))),
        }
    }

    fn answer(&mut self, order: &str) -> Result<Result<String, String>> {
        let name = order.split(' ').next().unwrap_or(order).to_owned();
        self.process.wait_line(LONG, &format!("`{order}` is done"), |line| {
            let did = line.strip_prefix(&format!("did {name} ")).map(|done| Ok(done.to_owned()));
            did.or_else(|| line.strip_prefix(&format!("failed {name} ")).map(|why| Err(why.to_owned())))
        })
    }
}

/// Puts program and module where a host finds them.
fn write(host: &Host, program: &str) -> Result<String> {
    let directory = host.dir().join(host.unique_label("library"));
    let module = directory.join("whimbrel");
    let failed = |error| Error::call("write", directory.display().to_string(), error);
    fs::create_dir_all(&module).map_err(failed)?;
    fs::write(module.join("__init__.py"), MODULE).map_err(failed)?;
    fs::write(directory.join("program.py"), program).map_err(failed)?;
    Ok(directory.display().to_string())
}

/// The far end of a connection, and its port.
pub(super) fn far_end(host: &Host, address: IpAddr) -> Result<(Process, u16)> {
    far_ends(host, address, 1)
}

/// The far end of so many connections.
fn far_ends(host: &Host, address: IpAddr, count: usize) -> Result<(Process, u16)> {
    let directory = write(host, PROGRAM)?;
    let arguments = [format!("{directory}/program.py"), address.to_string(), count.to_string()];
    let command = host.command("python3").arg("-B").args(arguments);
    // It has the module only to be able to start.
    let library = crate::beside_this_program("libwhimbrel.so").unwrap_or_default();
    let command = command.env("PYTHONPATH", &directory).env("WHIMBREL_LIBRARY", library).label("the far end");
    let mut process = command.spawn()?;
    let port = process.wait_line(LONG, "the far end listens", |line| line.strip_prefix("listens ")?.parse().ok())?;
    Ok((process, port))
}

/// The far end has had this many blocks and an orderly end.
pub(super) fn is_over(far: &mut Process, blocks: u32) -> Result<()> {
    has_had(far, blocks)?;
    far.wait_success(LONG)
}

/// The far end of one connection has had this many blocks and an orderly end.
fn has_had(far: &mut Process, blocks: u32) -> Result<()> {
    let total: u32 =
        far.wait_line(LONG, "the far end is told the end", |line| line.strip_prefix("over ")?.parse().ok())?;
    expect!(total == blocks * 4096, "the far end has had {total} bytes instead of {} blocks", blocks);
    Ok(())
}

fn library(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    for to in [world.at_server.ipv4()?, world.at_server.ipv6()?] {
        let (mut far, port) = far_end(&world.server, to)?;
        let mut first = Program::start(&world.laptop, &client)?;
        let local: u16 = first.does(&format!("connect {to} {port}"))?.parse().unwrap_or_default();
        first.does(&format!("talk {BLOCKS}"))?;
        let uuid = first.does("uuid")?;
        let mut other = Program::start(&world.laptop, &client)?;
        let listed = other.does(&format!("sockets {}", first.process.pid()))?;
        expect!(listed == uuid, "the program has {uuid}, and {listed} is listed");

        client.kill()?;
        client.restart()?;
        let again = first.does("uuid")?;
        expect!(again == uuid, "it was {uuid}, and is {again} for a daemon that was started anew");
        let remote = std::net::SocketAddr::new(to, port);
        let here = std::net::SocketAddr::new(if to.is_ipv4() { world.at.ipv4()? } else { world.at.ipv6()? }, local);
        client.wait_connection(here, remote, LONG, "introduced", |connection| {
            connection.state == whimbrel_ipc::ConnectionState::Native
        })?;

        // An echo comes when nobody is there to read it.
        let exported = first.does("export")?;
        expect!(exported == uuid, "it was {uuid}, and is exported as {exported}");
        first.does("ask")?;
        first.process.kill()?;
        step("the program was killed");
        let to_site = if to.is_ipv4() { world.b.clone() } else { world.a.clone() };
        world.roam(&to_site)?;
        other.does(&format!("rebuild {uuid} {BLOCKS}"))?;
        other.does("hear")?;
        other.does(&format!("talk {BLOCKS}"))?;
        step("another one goes on in another network");
        let told = other.fails(&format!("rebuild {uuid} 0"))?;
        expect!(told.starts_with("ENOENT"), "{told}");
        other.does("close")?;
        is_over(&mut far, 2 * BLOCKS + 1)?;
    }
    world.no_resets()?;
    all_run(&mut [&mut client, &mut server])
}

fn give(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let network = world.add(lab, site("c"))?;
    let tablet = lab.host("tablet")?;
    let at_tablet = tablet.join(&network.network, &Join::by("eth0"))?.ipv4()?;
    let (mut here, mut there) = (world.laptop.whimbrel()?, tablet.whimbrel()?);
    here.befriend(&there, world.at.ipv4()?)?;
    for to in [world.at_server.ipv4()?, world.at_server.ipv6()?] {
        let own = if to.is_ipv4() { world.at.ipv4()? } else { world.at.ipv6()? };
        let (mut far, port) = far_end(&world.server, to)?;
        let mut first = Program::start(&world.laptop, &here)?;
        let local = first.does(&format!("connect {to} {port}"))?;
        first.does(&format!("talk {BLOCKS}"))?;
        let uuid = first.does("uuid")?;
        let told = first.fails(&format!("give {at_tablet} films"))?;
        expect!(told.starts_with("ECANCELED") && told.contains("no program"), "{told}");
        first.does(&format!("talk {BLOCKS}"))?;

        let mut second = Program::start(&tablet, &there)?;
        second.does("receive films")?;
        // What is under way, or was not read, goes along.
        first.does("ask")?;
        let padding = if to.is_ipv6() { STATE } else { 0 };
        first.does(&format!("give {at_tablet} films {padding}"))?;
        let came = second.does("received")?;
        expect!(came == uuid, "it was {uuid}, and is {came} where it went");
        second.does("hear")?;
        second.does(&format!("talk {BLOCKS}"))?;
        step("the connection is with the other program, and its state too");
        let named = second.does("uuid")?;
        expect!(named == uuid, "it came as {uuid}, and is called {named}");
        let told = first.fails(&format!("bind {own} {local}"))?;
        expect!(told.starts_with("EADDRINUSE"), "its port is given to somebody else meanwhile: {told}");

        // Nobody receives it: it waits for whoever has its name.
        second.does(&format!("give {}", world.at.ipv4()?))?;
        let waits = "waits here, for 5 minutes, for the program that takes it by its name";
        wait_until(LONG, "that is told", || here.cli(&["events"]).is_ok_and(|said| said.contains(waits)))?;
        first.does(&format!("rebuild {uuid} {}", 3 * BLOCKS + 1))?;
        first.does(&format!("talk {BLOCKS}"))?;
        step("it is back, and goes on");
        first.does("close")?;
        is_over(&mut far, 4 * BLOCKS + 1)?;

        step("a socket that listens, at one address and at all");
        let everywhere = if to.is_ipv4() { "0.0.0.0" } else { "::" };
        for at in [own.to_string(), everywhere.to_owned()] {
            let port = first.does(&format!("serve {at}"))?;
            let name = format!("listener:{}", SocketAddr::new(own, port.parse().unwrap_or_default()));
            let named = here.servers()?;
            expect!(named.contains(&name), "{name} is not shown among {named:?}");
            let shown = here.cli(&["connections", "--servers"])?;
            expect!(shown.contains(&name), "{shown}");
            first.does(&format!("give {at_tablet} films"))?;
            second.does("received")?;
            let mut client = Program::start(&world.server, &here)?;
            client.does(&format!("dial {own} {port}"))?;
            second.does("meet")?;
            client.begin(&format!("talk {BLOCKS}"))?;
            for _ in 0..BLOCKS {
                second.does("echo")?;
            }
            client.did(&format!("talk {BLOCKS}"))?;
            second.does("close")?;
            let forgotten = || here.servers().is_ok_and(|servers| !servers.contains(&name));
            wait_until(LONG, "it is not shown any more where it was", forgotten)?;
        }
        // Its endpoints are given back long before their time is over.
        wait_until(LONG, "nothing is on lease", || there.anchors().is_ok_and(|all| all.rented.is_empty()))?;
    }
    world.no_resets()?;
    all_run(&mut [&mut here, &mut there])
}

fn prepare(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let network = world.add(lab, site("c"))?;
    let tablet = lab.host("tablet")?;
    let at_tablet = tablet.join(&network.network, &Join::by("eth0"))?.ipv4()?;
    let (mut here, mut there) = (world.laptop.whimbrel()?, tablet.whimbrel()?);
    here.befriend(&there, world.at.ipv4()?)?;
    let (to, back) = (world.at_server.ipv4()?, world.at.ipv4()?);
    let (mut far, port) = far_end(&world.server, to)?;
    let mut first = Program::start(&world.laptop, &here)?;
    first.does(&format!("connect {to} {port}"))?;
    first.does(&format!("talk {BLOCKS}"))?;
    let told = first.fails(&format!("prepare {at_tablet} films"))?;
    expect!(told.starts_with("ECANCELED") && told.contains("no program"), "{told}");
    let told = first.fails("prepare 192.0.2.99 films")?;
    expect!(told.starts_with("ENOENT"), "{told}");

    step("it goes on while the other host is ready, and goes there");
    let mut second = Program::start(&tablet, &there)?;
    second.does("receive films")?;
    first.does(&format!("prepare {at_tablet} films"))?;
    here.wait_event("socket-prepared", 0, LONG)?;
    first.does(&format!("talk {BLOCKS}"))?;
    first.does("ask")?;
    first.does(&format!("give {at_tablet} films"))?;
    second.does("received")?;
    second.does("hear")?;
    second.does(&format!("talk {BLOCKS}"))?;

    step("it comes back to another receiver than the one that was ready, twice");
    first.does("receive films")?;
    let mut third = Program::start(&world.laptop, &here)?;
    third.does("receive music")?;
    second.does(&format!("prepare {back} films"))?;
    second.does(&format!("prepare {back} films"))?;
    second.does(&format!("give {back} music"))?;
    third.does("received")?;
    third.does(&format!("talk {BLOCKS}"))?;

    step("the program that was to get it has gone");
    third.does(&format!("prepare {at_tablet} films"))?;
    second.process.kill()?;
    let is_free = || Program::start(&tablet, &there).and_then(|mut other| other.does("receive films")).is_ok();
    wait_until(LONG, "its name is free", is_free)?;
    let told = third.fails(&format!("give {at_tablet} films"))?;
    expect!(told.starts_with("ECANCELED"), "{told}");
    third.does(&format!("talk {BLOCKS}"))?;

    step("the other daemon dies while it is ready, and this one");
    let mut second = Program::start(&tablet, &there)?;
    second.does("receive films")?;
    third.does(&format!("prepare {at_tablet} films"))?;
    there.kill()?;
    there.restart()?;
    second.does("receive films")?;
    let mut blocks = 7 * BLOCKS + 1;
    if third.tries(&format!("give {at_tablet} films"))?.is_err() {
        // What it was ready for it knows no more; asked anew, it is.
        third.does(&format!("talk {BLOCKS}"))?;
        third.does(&format!("give {at_tablet} films"))?;
        blocks += BLOCKS;
    }
    second.does("received")?;
    second.does(&format!("talk {BLOCKS}"))?;
    second.does(&format!("prepare {back} films"))?;
    there.kill()?;
    there.restart()?;
    second.does(&format!("talk {BLOCKS}"))?;
    second.does(&format!("prepare {back} films"))?;
    second.does("close")?;
    is_over(&mut far, blocks)?;
    world.no_resets()?;
    all_run(&mut [&mut here, &mut there])
}

fn flood(lab: &mut Lab) -> Result<()> {
    const COUNT: usize = 24;
    let mut world = World::new(lab, site("a"), site("b"))?;
    let network = world.add(lab, site("c"))?;
    let tablet = lab.host("tablet")?;
    let at_tablet = tablet.join(&network.network, &Join::by("eth0"))?.ipv4()?;
    let (mut here, mut there) = (world.laptop.whimbrel()?, tablet.whimbrel()?);
    here.befriend(&there, world.at.ipv4()?)?;
    let to = world.at_server.ipv4()?;
    let (mut far, port) = far_ends(&world.server, to, COUNT)?;
    let mut second = Program::start(&tablet, &there)?;
    second.does("receive films")?;
    let mut first = Program::start(&world.laptop, &here)?;
    let told = first.does(&format!("flood {to} {port} {COUNT} {at_tablet} films"))?;
    step(&told);
    let given: usize = told.split(' ').next().and_then(|given| given.parse().ok()).unwrap_or_default();
    expect!(given > 0, "none was given: {told}");
    second.does(&format!("drain {given}"))?;
    for _ in 0..COUNT {
        let over = |line: &str| line.strip_prefix("over ")?.parse().ok();
        let total: u32 = far.wait_line(LONG, "the far end is told the end", over)?;
        expect!(total == 4096, "the far end has had {total} bytes of a connection");
    }
    far.wait_success(LONG)?;
    world.no_resets()?;
    all_run(&mut [&mut here, &mut there])
}

fn migrate(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let network = world.add(lab, site("c"))?;
    let tablet = lab.host("tablet")?;
    let at_tablet = tablet.join(&network.network, &Join::by("eth0"))?.ipv4()?;
    let (mut here, mut there) = (world.laptop.whimbrel()?, tablet.whimbrel()?);
    let to = world.at_server.ipv4()?;
    let (mut far, port) = far_end(&world.server, to)?;
    let mut first = Program::start(&world.laptop, &here)?;
    first.does(&format!("connect {to} {port}"))?;
    first.does(&format!("talk {BLOCKS}"))?;
    let mut migrator = Program::start(&world.laptop, &here)?;
    let order = format!("move {} {at_tablet}", first.process.pid());
    let told = migrator.fails(&order)?;
    expect!(told.starts_with("ENOENT"), "a host is known that nothing was said to: {told}");

    here.befriend(&there, world.at.ipv4()?)?;
    // The daemon has the socket too, as of a program of SOCKMAND's, and so has to stop for it the program alone.
    let uuid = first.does("export")?;
    first.does("ask")?;
    let told = migrator.does(&order)?;
    expect!(told == "moved", "{told}");
    let told = migrator.fails(&format!("rebuild {uuid} 0"))?;
    expect!(told.starts_with("ENOENT"), "it is here still: {told}");
    first.process.kill()?;
    let mut second = Program::start(&tablet, &there)?;
    second.does(&format!("rebuild {uuid} {BLOCKS}"))?;
    second.does("hear")?;
    second.does(&format!("talk {BLOCKS}"))?;
    step("the process goes on elsewhere");
    let named = second.does("uuid")?;
    expect!(named == uuid, "it went as {uuid}, and is called {named}");
    second.does("close")?;
    is_over(&mut far, 2 * BLOCKS + 1)?;
    world.no_resets()?;
    all_run(&mut [&mut here, &mut there])
}

const IN_C: &str = include_str!("library/program.c");
const HEADERS: [(&str, &str); 2] = [
    ("libsockmand.h", include_str!("../../../crates/capi/include/libsockmand.h")),
    ("whimbrel.h", include_str!("../../../crates/capi/include/whimbrel.h")),
];

/// Compiles the program in C, and starts it with these words as one of SOCKMAND's.
fn in_c(daemon: &Whimbrel, words: &[String]) -> Result<Process> {
    let host = daemon.host();
    let directory = host.dir().join(host.unique_label("c"));
    let failed = |error| Error::call("write", directory.display().to_string(), error);
    fs::create_dir_all(&directory).map_err(failed)?;
    for (name, text) in HEADERS.into_iter().chain([("program.c", IN_C)]) {
        fs::write(directory.join(name), text).map_err(failed)?;
    }
    let library = crate::beside_this_program("libwhimbrel.so")
        .ok_or_else(|| Error::Usage("libwhimbrel.so is not beside this program: build it".into()))?;
    // As it is installed: programs name it by its interface (the soname).
    fs::copy(&library, directory.join("libwhimbrel.so.0")).map_err(failed)?;
    let [source, program] = ["program.c", "program"].map(|name| directory.join(name));
    let compiler =
        host.command("cc").args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    compiler.arg(format!("-L{}", directory.display())).arg("-l:libwhimbrel.so.0").run()?;
    let command = host.command(program).args(words).env("LD_LIBRARY_PATH", &directory);
    command.env("WHIMBREL_RUN_DIR", daemon.run_dir()).label("a program of SOCKMAND's").spawn()
}

fn sockmand(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let network = world.add(lab, site("c"))?;
    let tablet = lab.host("tablet")?;
    tablet.join(&network.network, &Join::by("eth0"))?;
    let (mut here, mut there) = (world.laptop.whimbrel()?, tablet.whimbrel()?);
    here.befriend(&there, world.at.ipv4()?)?;
    let to = world.at_server.ipv4()?;
    let (mut far, port) = far_end(&world.server, to)?;
    let words = |name: &str, more: &[String]| [&[name.to_owned()], more].concat();
    let mut first = in_c(&here, &words("open", &[to.to_string(), port.to_string(), BLOCKS.to_string()]))?;
    let line = |process: &mut Process, what: &str| {
        process.wait_line(LONG, what, |line| line.strip_prefix(what)?.strip_prefix(' ').map(str::to_owned))
    };
    let uuid = line(&mut first, "uuid")?;
    first.wait_success(LONG)?;
    step("its program has ended, and the connection goes to another host");
    let local = wait_for(LONG, "it is still there", || {
        let all = here.connections()?;
        Ok(all.into_iter().find(|one| one.flow.remote == SocketAddr::new(to, port)).map(|one| one.flow.local))
    })?;
    let said = here.cli(&["move", &local.to_string(), "--to", "guest"])?;
    expect!(said.contains("is with"), "{said}");
    let told = in_c(&here, &words("rebuild", &[uuid.clone(), BLOCKS.to_string(), "1".into()]))?.wait(LONG)?;
    expect!(!told.success(), "it is here still");
    step("a program there takes it up");
    let mut second = in_c(&there, &words("rebuild", &[uuid, BLOCKS.to_string(), BLOCKS.to_string()]))?;
    let next = line(&mut second, "next")?;
    expect!(next == (2 * BLOCKS).to_string(), "the next block is {next}");
    second.wait_success(LONG)?;
    is_over(&mut far, 2 * BLOCKS)?;
    world.no_resets()?;
    all_run(&mut [&mut here, &mut there])
}

fn anchored(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let network = world.add(lab, site("c"))?;
    let (guest_host, third_host) = (lab.host("guest")?, lab.host("third")?);
    guest_host.join(&network.network, &Join::by("eth0"))?;
    third_host.join(&world.b.network, &Join::by("eth0"))?;
    let mut anchor = world.server.whimbrel_with("[anchor]\nports = \"8000-8999\"\nlifetime = 4\n")?;
    let (mut guest, mut third) = (guest_host.whimbrel()?, third_host.whimbrel()?);
    let (at, to) = (world.at_server.ipv4()?, world.at.ipv4()?);
    let mut program = Program::start(&guest_host, &guest)?;
    let told = program.fails(&format!("connect {to} 9 {at}"))?;
    expect!(told.starts_with("ENOENT"), "a host that nobody has met: {told}");
    anchor.befriend(&guest, at)?;

    step("a connection with the anchor's address");
    let (mut far, port) = far_end(&world.laptop, to)?;
    let local: u16 = program.does(&format!("connect {to} {port} desk"))?.parse().unwrap_or_default();
    expect!((8000..9000).contains(&local), "port {local} is not lent");
    program.does(&format!("talk {BLOCKS}"))?;
    step("its program hands it on before the anchor knows it as a flow, or after");
    let mut other = Program::start(&third_host, &third)?;
    let told = program.fails("give third films")?;
    expect!(told.starts_with("ENOENT"), "{told}");
    anchor.invite(&third, at, "third")?;
    guest.wait_event("host-joined", 0, LONG)?;
    other.does("receive films")?;
    program.does("give third films")?;
    other.does("received")?;
    other.does(&format!("talk {BLOCKS}"))?;
    other.does("close")?;
    is_over(&mut far, 2 * BLOCKS)?;

    step("a server at a port of its choice");
    let mut server = Program::start(&guest_host, &guest)?;
    server.does("lease desk 8080")?;
    let told = program.fails("lease desk 8080")?;
    expect!(told.starts_with("EADDRINUSE"), "a program of this host has it: {told}");
    let told = other.fails("lease desk 8080")?;
    expect!(told.starts_with("EADDRINUSE"), "another host has it: {told}");
    let told = other.fails("lease desk 80")?;
    expect!(told.starts_with("ENOTSUP"), "it is not lent: {told}");
    let told = server.fails("bind_plainly desk 8081")?;
    expect!(told.starts_with("EADDRINUSE"), "nobody would ever come to it: {told}");
    let drawn: u16 = server.does("bind_plainly desk 0")?.parse().unwrap_or_default();
    expect!((8000..9000).contains(&drawn), "port {drawn} is not lent");
    let mut here = Program::start(&world.server, &anchor)?;
    let told = here.fails(&format!("bind {at} 8080"))?;
    expect!(told.starts_with("EADDRINUSE"), "the anchor itself: {told}");
    let mut client = Program::start(&world.laptop, &anchor)?;
    server.begin("accept")?;
    client.does(&format!("dial {at} 8080"))?;
    server.did("accept")?;
    let echo = |from: &mut Program, to: &mut Program| -> Result<()> {
        to.begin("echo")?;
        from.does("talk 1")?;
        to.did("echo").map(drop)
    };
    echo(&mut client, &mut server)?;

    // What was not would end with the lease.
    let claimed = || {
        anchor
            .cli(&["anchor"])
            .is_ok_and(|said| said.lines().any(|line| line.contains(":8080") && line.contains("passed on to")))
    };
    wait_until(LONG, "the server's connection is claimed", claimed)?;
    step("a lease runs out, since its tenant is not there");
    other.process.kill()?;
    guest.kill()?;
    let over = || anchor.cli(&["anchor"]).is_ok_and(|said| !said.contains("lent to"));
    wait_until(LONG, "the leases are over", over)?;
    guest.restart()?;
    echo(&mut client, &mut server)?;
    guest.kill()?;
    guest.restart()?;
    echo(&mut client, &mut server)?;
    all_run(&mut [&mut anchor, &mut guest, &mut third])
}

fn hidden(lab: &mut Lab) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let network = world.add(lab, site("c"))?;
    let guest_host = lab.host("guest")?;
    guest_host.join(&network.network, &Join::by("eth0"))?;
    let mut anchor = world.server.whimbrel_with("[anchor]\nports = \"8000-8999\"\n")?;
    let (mut guest, mut far_daemon) = (guest_host.whimbrel()?, world.laptop.whimbrel()?);
    let (at, to) = (world.at_server.ipv4()?, world.at.ipv4()?);
    anchor.befriend(&guest, at)?;
    let (mut far, port) = far_ends(&world.laptop, to, 2)?;
    let mut shy = Program::start(&guest_host, &guest)?;
    let shy_port: u16 = shy.does(&format!("connect {to} {port} desk hidden"))?.parse().unwrap_or_default();
    let mut frank = Program::start(&guest_host, &guest)?;
    let frank_port: u16 = frank.does(&format!("connect {to} {port} desk"))?.parse().unwrap_or_default();
    shy.does(&format!("talk {BLOCKS}"))?;
    frank.does(&format!("talk {BLOCKS}"))?;
    let key = guest.status()?.public_key;
    // What the far end knows of the connection from this port: whether it is with the program's host.
    let with_guest = |port: u16| -> Result<bool> {
        let all = far_daemon.connections()?;
        Ok(all.iter().any(|c| c.flow.remote.port() == port && c.peer.as_ref().is_some_and(|peer| peer.key == key)))
    };
    step("the one that is not hidden goes directly");
    wait_until(LONG, "it is with the program's host", || with_guest(frank_port).unwrap_or(false))?;
    let passed_on = || anchor.anchors().map(|all| all.passed_on).unwrap_or_default();
    wait_until(LONG, "the anchor has nothing to do with it", || passed_on().len() == 1)?;
    step("the other one is tried and stays");
    let refused = || {
        let all = far_daemon.connections().unwrap_or_default();
        all.iter().any(|c| c.flow.remote.port() == shy_port && c.peer.is_none())
    };
    expect!(refused() && !with_guest(shy_port)?, "the far end knows where the hidden socket is");
    expect!(passed_on().len() == 1, "the anchor passes on {:?}", passed_on());
    shy.does(&format!("talk {BLOCKS}"))?;
    step("the anchor vanishes");
    world.server.leave(&world.at_server, Leave::Orderly)?;
    frank.does(&format!("talk {BLOCKS}"))?;
    frank.does("close")?;
    has_had(&mut far, 2 * BLOCKS)?;
    let same = Join { address_v4: world.at_server.v4, address_v6: world.at_server.v6, ..Join::by("eth0") };
    world.server.join(&world.s.network, &same)?;
    shy.does(&format!("talk {BLOCKS}"))?;
    shy.does("close")?;
    is_over(&mut far, 3 * BLOCKS)?;
    all_run(&mut [&mut anchor, &mut guest, &mut far_daemon])
}

fn refusals(lab: &mut Lab) -> Result<()> {
    let world = World::new(lab, site("a"), site("b"))?;
    let mut client = world.laptop.whimbrel()?;
    let to = world.at_server.ipv4()?;
    let (mut far, port) = far_end(&world.server, to)?;
    let mut program = Program::start(&world.laptop, &client)?;
    for (anchor, wanted) in
        [("192.0.2.99", "ENOENT"), ("policy:1", "ENOTSUP"), ("policy:-1", "ENOENT"), ("policy:x", "ENOENT")]
    {
        let told = program.fails(&format!("connect {to} {port} {anchor}"))?;
        expect!(told.starts_with(wanted), "{anchor}: {told}");
    }
    program.does("lone")?;
    for (order, wanted) in [("give 192.0.2.99", "ENOENT"), ("give 192.0.2.99 films", "ENOENT")] {
        let told = program.fails(order)?;
        expect!(told.starts_with(wanted), "{order}: {told}");
    }
    program.does("receive films")?;
    let mut other = Program::start(&world.laptop, &client)?;
    let told = other.fails("receive films")?;
    expect!(told.starts_with("EADDRINUSE"), "{told}");
    let told = other.fails(&format!("receive {}", "x".repeat(300)))?;
    expect!(told.contains("bytes"), "{told}");
    program.process.kill()?;
    wait_for(LONG, "the name is free again", || Ok(other.tries("receive films")?.is_ok().then_some(())))?;
    let mut program = Program::start(&world.laptop, &client)?;
    let told = program.fails("sockets 4194305")?;
    expect!(told.starts_with("ESRCH"), "{told}");

    let mut migrator = Program::start(&world.laptop, &client)?;
    for (decides, works) in [("nobody", false), ("self", true)] {
        migrator.begin(&format!("decide {decides}"))?;
        migrator.process.wait_line(LONG, "there is a migrator", |line| (line == "asked").then_some(()))?;
        let order = format!("connect {to} {port} policy:5");
        if works {
            program.does(&order)?;
        } else {
            let told = program.fails(&order)?;
            expect!(told.starts_with("ENOTSUP") && told.contains("migrator"), "{told}");
        }
        expect!(migrator.did("decide")? == "5", "the migrator was asked about another policy");
    }
    program.does(&format!("talk {BLOCKS}"))?;
    program.does("close")?;
    is_over(&mut far, BLOCKS)?;
    all_run(&mut [&mut client])
}
