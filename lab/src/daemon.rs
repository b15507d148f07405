//! Whimbrel daemons in hosts, driven by the same commands that users type.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use whimbrel_ipc::{
    Client, ClientError, CommunityReply, Connection, ConnectionState, EventRecord, Peer, Reply, Status, reply_from_line,
};

use crate::{Cmd, Error, FlowPair, Host, Process, Result, expect, patience, wait_for};

/// What a command says whose daemon has not answered in time.
const NOT_ANSWERED: &str = "the daemon did not answer within";

/// How long a daemon may take to be ready or to end.
const READY: Duration = Duration::from_secs(20);

/// A daemon on a host. Its run and state directory live as long as the lab, so that it can be killed and started again.
#[derive(Debug)]
pub struct Whimbrel {
    host: Host,
    binary: PathBuf,
    process: Process,
    dir: PathBuf,
    configured: bool,
    surroundings: Surroundings,
}

/// What a daemon runs in that is not its host's.
#[derive(Clone, Copy, Debug, Default)]
struct Surroundings {
    /// By how many seconds its CLOCK_BOOTTIME is ahead of the machine's (time_namespaces(7)).
    ahead: i64,
    /// It has a network namespace that goes with it.
    apart: bool,
    /// It has all rights that there are, as it needs to move processes.
    free: bool,
    /// It has a PID namespace that goes with it, as if it were on a machine of its own.
    numbers: bool,
    /// Its CRIU does not do everything.
    lame: Option<Lame>,
    /// Its run directory is a file system of its own, which a test can fill.
    narrow: bool,
    /// How often its machine was started anew, as far as it is told.
    boots: u64,
    /// A capability that it does not have, as setpriv(1) calls it.
    without: Option<&'static str>,
    /// Its wall clock is its own, and may be set while it runs.
    own_wall_clock: bool,
}

/// Shows every program that it is loaded into a wall clock that is ahead of the machine's by what a file says, in
/// seconds. What the kernel counts since it was started stays as it is: nobody can set that.
const WALL_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result = syscall(SYS_clock_gettime, clock, now);
	char text[32] = "";
	int file;
	if (result || clock != CLOCK_REALTIME)
		return result;
	file = open(getenv("WALL_CLOCK_AHEAD"), O_RDONLY | O_CLOEXEC);
	if (file >= 0) {
		if (read(file, text, sizeof(text) - 1) > 0)
			now->tv_sec += atoll(text);
		close(file);
	}
	return 0;
}
"#;

/// What [`WALL_CLOCK`] is compiled to, and the file that it reads.
const WALL_CLOCK_LIBRARY: &str = "wall_clock.so";
const WALL_CLOCK_AHEAD: &str = "wall_clock_ahead";

/// Room of a narrow run directory.
const NARROW: &str = "size=1m";

/// Where programs are that go before those of the path.
const PROGRAMS: &str = "bin";

/// The file in it that takes all room.
const FILLING: &str = "filling";

/// What a CRIU does not do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lame {
    /// Write memory down of processes that run, as where the kernel does not track what is written.
    OnlyAtRest,
    /// Work on this kernel.
    Useless,
    /// Write processes down.
    NeverDumps,
    /// Rebuild them.
    NeverRestores,
    /// What it should, but it does everything.
    Nothing,
}

impl Lame {
    /// A CRIU like the next in the path, except for what is asked of it first.
    fn script(self) -> String {
        let not = match self {
            Self::OnlyAtRest => "pre-dump",
            Self::Useless => "check",
            Self::NeverDumps => "dump",
            Self::NeverRestores => "restore",
            Self::Nothing => "nothing",
        };
        format!("#!/bin/sh\nPATH=${{PATH#*:}}\n[ \"$1\" != {not} ] || exit 1\nexec criu \"$@\"\n")
    }

    fn write(self, programs: &Path) -> Result<()> {
        let (criu, fresh) = (programs.join("criu"), programs.join("criu.new"));
        // One that runs is not changed.
        fs::create_dir_all(programs)
            .and_then(|()| fs::write(&fresh, self.script()))
            .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)))
            .and_then(|()| fs::rename(&fresh, &criu))
            .map_err(|e| Error::call("write", criu.display().to_string(), e))
    }
}

impl Host {
    /// Starts a daemon with no configuration but the lab's log level, and waits until it is ready.
    pub fn whimbrel(&self) -> Result<Whimbrel> {
        self.whimbrel_with("")
    }

    /// Starts the daemon of another host, which was started anew, on this one: all that it has is that one's state
    /// directory.
    pub fn whimbrel_reborn(&self, other: &Whimbrel) -> Result<Whimbrel> {
        let dir = self.dir().join(self.unique_label("whimbrel"));
        fs::create_dir(&dir).map_err(|e| Error::call("mkdir", dir.display().to_string(), e))?;
        self.command("cp").args(["-a", &format!("{}/state", other.dir.display()), &dir.display().to_string()]).run()?;
        let configured = configure(self, &dir.join("whimbrel.toml"), "")?;
        let surroundings = Surroundings::default();
        let process = launch(self, &other.binary, &dir, configured, surroundings)?;
        let binary = other.binary.clone();
        let mut daemon = Whimbrel { host: self.clone(), binary, process, dir, configured, surroundings };
        daemon.wait_ready()?;
        Ok(daemon)
    }

    /// Starts a daemon with all rights that there are, which takes whole processes, and waits until it is ready.
    /// `numbers`: it does not see the machine's other processes, nor they it.
    pub fn whimbrel_for_processes(&self, numbers: bool) -> Result<Whimbrel> {
        self.whimbrel_for_processes_with(numbers, "")
    }

    /// The same with this configuration beside.
    pub fn whimbrel_for_processes_with(&self, numbers: bool, config: &str) -> Result<Whimbrel> {
        let surroundings = Surroundings { free: true, numbers, ..Surroundings::default() };
        self.whimbrel_in(&format!("processes = true\n{config}"), surroundings)
    }

    /// The same with a CRIU that does not do this, and may be [given another](Whimbrel::set_lame).
    pub fn whimbrel_for_processes_lame(&self, lame: Lame) -> Result<Whimbrel> {
        let surroundings = Surroundings { free: true, lame: Some(lame), ..Surroundings::default() };
        self.whimbrel_in("processes = true\n", surroundings)
    }

    /// Starts a daemon with this configuration (whimbrel.toml), and waits until it is ready.
    pub fn whimbrel_with(&self, config: &str) -> Result<Whimbrel> {
        self.whimbrel_in(config, Surroundings::default())
    }

    /// Starts a daemon whose wall clock can be [set](Whimbrel::set_wall_clock), and waits until it is ready.
    pub fn whimbrel_with_wall_clock(&self) -> Result<Whimbrel> {
        self.whimbrel_in("", Surroundings { own_wall_clock: true, ..Surroundings::default() })
    }

    /// Starts a daemon whose run directory can be filled ([`Whimbrel::fill`]), and waits until it is ready.
    pub fn whimbrel_with_little_room(&self) -> Result<Whimbrel> {
        self.whimbrel_in("", Surroundings { narrow: true, ..Surroundings::default() })
    }

    fn whimbrel_in(&self, config: &str, surroundings: Surroundings) -> Result<Whimbrel> {
        let dir = self.dir().join(self.unique_label("whimbrel"));
        let path = dir.join("whimbrel.toml");
        fs::create_dir(&dir).map_err(|e| Error::call("mkdir", dir.display().to_string(), e))?;
        let configured = configure(self, &path, config)?;
        if surroundings.narrow {
            // The lab unmounts what is below its directory.
            let run = dir.join("run").display().to_string();
            self.command("mkdir").args(["-m", "700", &run]).run()?;
            self.command("mount").args(["-t", "tmpfs", "-o", NARROW, "narrow", &run]).run()?;
        }
        if surroundings.own_wall_clock {
            let library = dir.join(WALL_CLOCK_LIBRARY);
            let compiler = self.command("cc").args(["-shared", "-fPIC", "-x", "c", "-o"]).arg(&library).arg("-");
            compiler.stdin(WALL_CLOCK).run()?;
        }
        let binary = whimbrel_binary(self)?;
        let process = launch(self, &binary, &dir, configured, surroundings)?;
        let mut daemon = Whimbrel { host: self.clone(), binary, process, dir, configured, surroundings };
        daemon.wait_ready()?;
        Ok(daemon)
    }
}

/// Writes a configuration file, with the lab's log level if it has none; none where that would be empty, and then
/// false.
fn configure(host: &Host, path: &Path, config: &str) -> Result<bool> {
    let own = config.lines().any(|line| line.starts_with("log = "));
    let level = host.lab().log_level().filter(|_| !own).map(|level| format!("log = \"{level}\"\n"));
    let text = level.unwrap_or_default() + config;
    if !text.is_empty() {
        fs::write(path, &text).map_err(|e| Error::call("write", path.display().to_string(), e))?;
    }
    Ok(!text.is_empty())
}

fn launch(host: &Host, binary: &Path, dir: &Path, configured: bool, surroundings: Surroundings) -> Result<Process> {
    // None of these programs forks: the process that is started becomes the daemon.
    let mut words: Vec<std::ffi::OsString> = Vec::new();
    if let Some(lame) = surroundings.lame {
        let programs = dir.join(PROGRAMS);
        lame.write(&programs)?;
        let path = std::env::var("PATH").unwrap_or_default();
        words.extend(["env".into(), format!("PATH={}:{path}", programs.display()).into()]);
    }
    if surroundings.apart {
        words.extend(["unshare", "--net", "--"].map(Into::into));
    }
    if surroundings.ahead != 0 {
        let ahead = surroundings.ahead.to_string();
        words.extend(["unshare", "--time", "--boottime", &ahead, "--"].map(Into::into));
        // A new time namespace is that of children only, unless it is entered.
        words.extend(["nsenter", "--time=/proc/self/ns/time_for_children", "--"].map(Into::into));
    }
    if surroundings.boots != 0 {
        let id = dir.join("boot_id");
        let text = format!("{:08x}-0000-4000-8000-000000000000\n", surroundings.boots);
        fs::write(&id, text).map_err(|e| Error::call("write", id.display().to_string(), e))?;
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        words.extend(["unshare", "--mount", "--", "sh", "-c", script].map(Into::into));
        words.push(id.into());
    }
    // As the unit that users have it started by: what works here with more rights might not work there.
    if surroundings.numbers {
        words.extend(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"].map(Into::into));
    }
    if surroundings.without.is_some() {
        // What it could not make by itself where it lacks much is there.
        let mounts = "mount -t bpf bpf /sys/fs/bpf && exec \"$@\"";
        words.extend(["unshare", "--mount", "--", "sh", "-c", mounts, "sh"].map(Into::into));
    }
    if !surroundings.free {
        words.extend(["setpriv", "--no-new-privs", "--bounding-set"].map(Into::into));
        let less = surroundings.without.map(|name| format!(",-{name}")).unwrap_or_default();
        words.extend([(capabilities() + &less).into(), "--".into()]);
    }
    if surroundings.own_wall_clock {
        let preload = |name: &str, file: &str| format!("{name}={}", dir.join(file).display()).into();
        words.push("env".into());
        words.push(preload("LD_PRELOAD", WALL_CLOCK_LIBRARY));
        words.push(preload("WALL_CLOCK_AHEAD", WALL_CLOCK_AHEAD));
    }
    words.push(binary.into());
    let mut command = host.command(&words[0]).args(&words[1..]);
    command = command.arg("--run-dir").arg(dir.join("run")).arg("up");
    command = command.arg("--state-dir").arg(dir.join("state")).label("whimbrel");
    if configured {
        command = command.arg("--config").arg(dir.join("whimbrel.toml"));
    }
    // The machine's own has nothing to say of what is here.
    let process = command.env("DBUS_SYSTEM_BUS_ADDRESS", host.bus_address()).spawn()?;
    host.lab().record_log(host.name(), process.err_path());
    Ok(process)
}

/// The capabilities that the unit leaves to the daemon, as setpriv(1) takes them.
fn capabilities() -> String {
    const UNIT: &str = include_str!("../../packaging/whimbrel.service");
    let line = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.unwrap_or_default().split_whitespace().filter_map(|name| name.strip_prefix("CAP_"));
    names.fold("-all".to_owned(), |all, name| format!("{all},+{}", name.to_ascii_lowercase()))
}

impl Whimbrel {
    /// What its CRIU does not do from now on. Only for one that was started [so](Host::whimbrel_for_processes_lame).
    pub fn set_lame(&mut self, lame: Lame) -> Result<()> {
        expect!(self.surroundings.lame.is_some(), "the daemon on {} has everybody's CRIU", self.host.name());
        self.surroundings.lame = Some(lame);
        lame.write(&self.dir.join(PROGRAMS))
    }

    /// Sets the wall clock of a daemon that was started [so](Host::whimbrel_with_wall_clock): so many seconds ahead of
    /// the machine's.
    pub fn set_wall_clock(&self, ahead: i64) -> Result<()> {
        expect!(self.surroundings.own_wall_clock, "the daemon on {} has everybody's clock", self.host.name());
        let (file, fresh) = (self.dir.join(WALL_CLOCK_AHEAD), self.dir.join("wall_clock_ahead.new"));
        fs::write(&fresh, format!("{ahead}\n"))
            .and_then(|()| fs::rename(&fresh, &file))
            .map_err(|e| Error::call("write", file.display().to_string(), e))
    }

    /// From its next start on it does not have this capability, as setpriv(1) calls it.
    pub fn deny(&mut self, capability: Option<&'static str>) {
        self.surroundings.without = capability;
    }

    /// Its host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The program that it runs.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Its run directory.
    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// Its state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// `whimbrel --run-dir …` with these arguments: its standard output, or an error if it fails.
    pub fn cli(&self, args: &[&str]) -> Result<String> {
        self.command(args).run()
    }

    /// A command of `whimbrel` that goes on.
    pub fn spawn_cli(&self, args: &[&str]) -> Result<Process> {
        let label = format!("whimbrel-{}", args.first().unwrap_or(&"help"));
        self.command(args).label(label).spawn()
    }

    /// The command with these words, on the daemon's host.
    pub fn command(&self, args: &[&str]) -> Cmd {
        let command = self.host.command(&self.binary).env("DBUS_SYSTEM_BUS_ADDRESS", self.host.bus_address());
        command.arg("--run-dir").arg(self.run_dir()).args(args)
    }

    /// A reading command with `--json`: its replies, one for each line. The command gives the daemon ten seconds by
    /// itself, so it is repeated where all limits are longer.
    pub fn json(&self, args: &[&str]) -> Result<Vec<Reply>> {
        let words = [args, &["--json"]].concat();
        let mut left = patience();
        let text = loop {
            left -= 1;
            match self.cli(&words) {
                Err(Error::Command { stderr, .. }) if left > 0 && stderr.contains(NOT_ANSWERED) => {}
                done => break done?,
            }
        };
        let parse = |line: &str| {
            reply_from_line(line).map_err(|_| Error::Output {
                program: format!("whimbrel {}", args.join(" ")),
                expected: "JSON of the schema in docs/json.md",
                got: line.chars().take(300).collect(),
            })
        };
        text.lines().map(parse).collect()
    }

    fn ask<T>(&self, args: &[&str], pick: impl Fn(Reply) -> Option<T>) -> Result<T> {
        self.json(args)?.into_iter().find_map(pick).ok_or_else(|| Error::Output {
            program: format!("whimbrel {}", args.join(" ")),
            expected: "the reply that belongs to it",
            got: String::new(),
        })
    }

    /// `whimbrel status`.
    pub fn status(&self) -> Result<Status> {
        self.ask(&["status"], |reply| if let Reply::Status(status) = reply { Some(*status) } else { None })
    }

    /// `whimbrel connections`.
    pub fn connections(&self) -> Result<Vec<Connection>> {
        self.ask(&["connections"], |reply| if let Reply::Connections(list) = reply { Some(list) } else { None })
    }

    /// `whimbrel peers`.
    pub fn peers(&self) -> Result<Vec<Peer>> {
        self.ask(&["peers"], |reply| if let Reply::Peers(list) = reply { Some(list) } else { None })
    }

    /// `whimbrel anchor`.
    pub fn anchors(&self) -> Result<whimbrel_ipc::Anchors> {
        self.ask(&["anchor"], |reply| if let Reply::Anchors(anchors) = reply { Some(anchors) } else { None })
    }

    /// `whimbrel paths`.
    pub fn paths(&self) -> Result<Vec<whimbrel_ipc::Path>> {
        self.ask(&["paths"], |reply| if let Reply::Paths(list) = reply { Some(list) } else { None })
    }

    /// `whimbrel paths --explain`, or `--dry-run` with this configuration.
    pub fn explained(&self, trial: Option<&str>) -> Result<whimbrel_ipc::Explained> {
        let file = self.dir.join("trial.toml");
        let file = file.to_string_lossy();
        let args = match trial {
            Some(config) => {
                fs::write(&*file, config).map_err(|e| Error::call("write", file.to_string(), e))?;
                ["paths", "--dry-run", &file].to_vec()
            }
            None => ["paths", "--explain"].to_vec(),
        };
        self.ask(&args, |reply| if let Reply::Explained(explained) = reply { Some(explained) } else { None })
    }

    /// `whimbrel events --since NUMBER`.
    pub fn events(&self, since: u64) -> Result<Vec<EventRecord>> {
        let replies = self.json(&["events", "--since", &since.to_string()])?;
        Ok(replies.into_iter().filter_map(|r| if let Reply::Event(event) = r { Some(event) } else { None }).collect())
    }

    /// `whimbrel handoff --to ADDRESS`.
    pub fn handoff(&self, to: Option<IpAddr>) -> Result<String> {
        match to {
            Some(to) => self.cli(&["handoff", "--to", &to.to_string()]),
            None => self.cli(&["handoff"]),
        }
    }

    /// Has a connection of this host's go from another address of it than the others, or with them again.
    pub fn place(&self, pair: &FlowPair, from: Option<IpAddr>) -> Result<()> {
        let failed = |error: ClientError| Error::Output {
            program: "place".to_owned(),
            expected: "the connection is placed",
            got: error.to_string(),
        };
        let mut client = Client::connect(&self.run_dir()).map_err(failed)?;
        let placed = client.place(vec![pair.local().to_string()], from).map_err(failed)?;
        expect!(placed == 1, "{placed} connections are placed");
        Ok(())
    }

    /// Founds a community on this host, of which `guest` becomes a member, so that the two may give each other sockets.
    /// They are called `desk` and `guest` in it. `at` is this host's address.
    pub fn befriend(&self, guest: &Self, at: IpAddr) -> Result<()> {
        self.cli(&["community", "init", "--name", "desk"])?;
        self.invite(guest, at, "guest")
    }

    /// Another host becomes a member of this one's community. `at` is this host's address.
    pub fn invite(&self, guest: &Self, at: IpAddr, name: &str) -> Result<()> {
        let code = self.ask(&["community", "invite"], |reply| match reply {
            Reply::Community(reply) => match *reply {
                CommunityReply::Code(drawn) => Some(drawn.code),
                _ => None,
            },
            _ => None,
        })?;
        guest.cli(&["community", "join", &code, &at.to_string(), "--name", name])?;
        Ok(())
    }

    /// Sockets that wait for clients, by their names.
    pub fn servers(&self) -> Result<Vec<String>> {
        let all = self.ask(&["connections", "--servers"], |reply| {
            if let Reply::Connections(all) = reply { Some(all) } else { None }
        })?;
        Ok(all.into_iter().filter_map(|one| one.name).collect())
    }

    /// The connection whose own end is `local` and whose far end is `remote`, as this host's socket has them.
    pub fn connection(&self, local: SocketAddr, remote: SocketAddr) -> Result<Option<Connection>> {
        Ok(self.connections()?.into_iter().find(|c| c.flow.local == local && c.flow.remote == remote))
    }

    /// Waits until the pair's connection is introduced, seen from the client's daemon.
    pub fn wait_introduced(&self, pair: &FlowPair, timeout: Duration) -> Result<Connection> {
        self.wait_connection(pair.local(), pair.peer(), timeout, "introduced", |c| {
            matches!(c.state, ConnectionState::Native | ConnectionState::Moved)
        })
    }

    /// Waits until `good` says yes to a connection.
    pub fn wait_connection(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        timeout: Duration,
        what: &str,
        good: impl Fn(&Connection) -> bool,
    ) -> Result<Connection> {
        let what = format!("connection {local} -> {remote} on {} is {what}", self.host.name());
        let mut last = None;
        let result = wait_for(timeout, &what, || {
            let found = self.connection(local, remote)?;
            let accepted = found.clone().filter(|c| good(c));
            last = found;
            Ok(accepted)
        });
        result.map_err(|e| match e {
            Error::Timeout { what, after, .. } => Error::Timeout { what, after, last: format!("; it is {last:?}") },
            e => e,
        })
    }

    /// Waits until an event of this kind with a number above `since` has come.
    pub fn wait_event(&self, kind: &str, since: u64, timeout: Duration) -> Result<EventRecord> {
        wait_for(timeout, &format!("event {kind} on {}", self.host.name()), || {
            Ok(self.events(since)?.into_iter().find(|event| event.kind == kind))
        })
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Gives it another configuration and has it read that (SIGHUP), of which its event `reloaded` tells. Only for one
    /// that was started with a configuration.
    pub fn reconfigure(&mut self, config: &str) -> Result<()> {
        expect!(self.configured, "the daemon on {} was started without a configuration", self.host.name());
        configure(&self.host, &self.dir.join("whimbrel.toml"), config)?;
        self.process.signal(Signal::HUP)
    }

    /// `whimbrel clean`, once it is stopped, and how long that took.
    pub fn clean(&self) -> Result<(String, Duration)> {
        let began = Instant::now();
        let said = self.cli(&["clean"])?;
        Ok((said, began.elapsed()))
    }

    /// Removes its state directory, as if its host were set up anew. Only while it is stopped.
    pub fn forget_everything(&self) -> Result<()> {
        let state = self.dir.join("state");
        fs::remove_dir_all(&state).map_err(|e| Error::call("rmdir", state.display().to_string(), e))
    }

    /// Starts it again, after [`Whimbrel::kill`] or [`Whimbrel::stop`], and waits until it is ready.
    pub fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = launch(&self.host, &self.binary, &self.dir, self.configured, self.surroundings)?;
        self.wait_ready()
    }

    /// Starts it again from another file with the same program in it, as when a package has replaced that. After
    /// [`Whimbrel::stop`].
    pub fn upgrade(&mut self) -> Result<()> {
        let fresh = self.dir.join(self.host.unique_label("whimbrel.new"));
        fs::copy(&self.binary, &fresh).map_err(|e| Error::call("copy", fresh.display().to_string(), e))?;
        self.binary = fresh;
        self.restart()
    }

    /// Its machine is started anew, after [`Whimbrel::kill`] or [`Whimbrel::stop`]: nothing is left of the daemon but
    /// its state directory, and the kernel tells another life. Whatever else the machine is stays as it is.
    pub fn reboot(&mut self) -> Result<()> {
        self.process.kill()?;
        let run = self.run_dir();
        // A machine that is started anew tells nobody beforehand.
        let store = run.join("journal");
        match fs::remove_file(&store) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(Error::call("unlink", store.display().to_string(), e));
            }
            _ => self.cli(&["clean"])?,
        };
        fs::remove_dir_all(&run).map_err(|e| Error::call("rmdir", run.display().to_string(), e))?;
        self.surroundings.boots += 1;
        self.restart()
    }

    /// Starts it again with its CLOCK_BOOTTIME so many seconds ahead of the machine's (behind, if negative): the clock
    /// has jumped since it ran last. The wall clock is everybody's, and stays.
    pub fn restart_ahead(&mut self, seconds: i64) -> Result<()> {
        self.surroundings.ahead = seconds;
        self.restart()
    }

    /// Starts it again in a network namespace of its own, without any network, that is gone when it is killed; or in
    /// its host's again.
    pub fn restart_apart(&mut self, apart: bool) -> Result<()> {
        self.surroundings.apart = apart;
        self.restart()
    }

    /// Whether its clock is another than this program's: a kernel may lack what [`Whimbrel::restart_ahead`] needs.
    pub(crate) fn in_own_time(&self) -> Result<bool> {
        let namespace = |pid: &str| {
            let path = format!("/proc/{pid}/ns/time");
            fs::read_link(&path).map_err(|e| Error::call("readlink", path, e))
        };
        Ok(namespace(&self.process.pid().to_string())? != namespace("self")?)
    }

    /// Takes all room that there is in its run directory, or gives it back. Only for one that has a file system of its
    /// own there.
    pub fn fill(&self, full: bool) -> Result<()> {
        expect!(self.surroundings.narrow, "the daemon on {} would fill everybody's disk", self.host.name());
        let path = self.run_dir().join(FILLING);
        let failed = |call, error| Error::call(call, path.display().to_string(), error);
        if !full {
            return fs::remove_file(&path).map_err(|error| failed("unlink", error));
        }
        let mut file = fs::File::create(&path).map_err(|error| failed("open", error))?;
        loop {
            match file.write_all(&[0; 4096]) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(failed("write", error)),
            }
        }
    }

    /// Asks it to end and waits for that.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.process.terminate(READY)?;
        expect!(status.success(), "the daemon on {} ended with {status}", self.host.name());
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<()> {
        let what = format!("whimbrel status on {} says ready", self.host.name());
        wait_for(READY, &what, || {
            expect!(self.process.is_running(), "the daemon on {} ended: {}", self.host.name(), self.process.stderr());
            Ok(self.cli(&["status"]).is_ok().then_some(()))
        })
    }
}

/// The program that a host's daemons run. Hosts called `server` may have another release than the others.
fn whimbrel_binary(host: &Host) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("WHIMBREL_SERVER_BIN").filter(|_| host.name() == "server") {
        return Ok(path.into());
    }
    if let Some(path) = host.lab().whimbrel() {
        return Ok(path.to_owned());
    }
    if let Some(path) = std::env::var_os("WHIMBREL_BIN") {
        return Ok(path.into());
    }
    crate::beside_this_program("whimbrel")
        .ok_or_else(|| Error::Usage("whimbrel is not beside this program: build it, or give --whimbrel PATH".into()))
}
