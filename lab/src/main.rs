//! Runs scenarios of the lab, and the traffic programs that they start.

mod jobs;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use whimbrel_lab::scenarios::{self, Scenario};
use whimbrel_lab::{
    Campus, Error, Gateway, Host, Join, Lab, Options, Result, Shape, SiteSpec, bench_link, clean, demo, traffic,
};

/// Hosts in network namespaces, emulated links, and scenarios with real daemons and real programs.
///
/// Needs root. Everything that a run makes has a random name and is gone when it ends; see docs/lab.md.
#[derive(Parser)]
#[command(name = "whimbrel-lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the scenarios
    List {
        /// As a JSON array of objects with `name`, `description` and `part`: quick, suite, programs, long or wifi
        #[arg(long)]
        json: bool,
    },
    /// Run scenarios; the exit status is 1 if one fails. One that this machine lacks something for is skipped, and says
    /// so
    Run(RunOptions),
    /// Show a download and an ssh session crossing a move
    Demo {
        /// Where the plot of the throughput goes (SVG)
        #[arg(long, default_value = "target/demo/throughput.svg")]
        plot: PathBuf,
        /// The whimbrel binary [default: WHIMBREL_BIN, or the one beside this program]
        #[arg(long, value_name = "PATH")]
        whimbrel: Option<PathBuf>,
    },
    /// Build a scenario's topology (two networks of the laptop and a server) and start a shell in one of its hosts
    Shell {
        /// What is between network `b` and the core; network `a` is public
        #[arg(value_enum, default_value = "public")]
        topology: Topology,
        /// The host that the shell runs in
        #[arg(long, default_value = "laptop")]
        host: String,
        /// Start a daemon on laptop and server
        #[arg(long)]
        daemons: bool,
        /// The configuration of both daemons, or of that on HOST alone (laptop or server)
        #[arg(long, value_name = "[HOST=]FILE", requires = "daemons")]
        config: Vec<String>,
        /// The whimbrel binary [default: WHIMBREL_BIN, or the one beside this program]
        #[arg(long, value_name = "PATH")]
        whimbrel: Option<PathBuf>,
    },
    /// Have two laptops be away for real: one suspended, one that vanished; the exit status is 1 if a connection is
    /// lost
    SoakAbsence {
        /// Hours of absence
        #[arg(long, default_value_t = 72.0, value_parser = hours)]
        hours: f64,
        /// The whimbrel binary [default: WHIMBREL_BIN, or the one beside this program]
        #[arg(long, value_name = "PATH")]
        whimbrel: Option<PathBuf>,
    },
    /// Measure the emulated links themselves
    BenchLink {
        /// Seconds for each of the two measurements
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Remove what killed runs left
    Clean,
    /// A traffic program inside a host
    #[command(hide = true)]
    Traffic {
        #[command(subcommand)]
        role: traffic::Role,
    },
}

/// Networks to look around in.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Topology {
    /// A plain router
    Public,
    /// A NAT that keeps ports where it can
    Nat,
    /// A NAT and a firewall that drops TCP in mid-stream
    NatFirewall,
    /// IPv6 only
    V6Only,
}

#[derive(clap::Args)]
struct RunOptions {
    /// Their names
    #[arg(required_unless_present_any = ["all", "programs"], conflicts_with_all = ["all", "programs"])]
    scenarios: Vec<String>,
    /// All of the test suite
    #[arg(long)]
    all: bool,
    /// All with many real programs (first: ./setup programs)
    #[arg(long)]
    programs: bool,
    /// Keep logs, and captures of all emulated links, in a directory under the system's temporary one
    #[arg(long)]
    keep: bool,
    /// Seed of the links' randomness [default: a fresh one, printed with a failure]
    #[arg(long)]
    seed: Option<u64>,
    /// The whimbrel binary [default: WHIMBREL_BIN, or the one beside this program]
    #[arg(long, value_name = "PATH")]
    whimbrel: Option<PathBuf>,
    /// How much the daemons log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Run each so many times
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    times: usize,
    /// Run so many at a time; most wait most of the time
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    jobs: usize,
}

impl RunOptions {
    /// What this program is told to run one scenario once.
    fn once(&self, scenario: &'static Scenario) -> Vec<String> {
        let mut arguments = vec!["run".to_owned(), scenario.name.to_owned()];
        arguments.extend(self.keep.then(|| "--keep".to_owned()));
        arguments.extend(self.seed.map(|seed| format!("--seed={seed}")));
        arguments.extend(self.whimbrel.as_ref().map(|path| format!("--whimbrel={}", path.display())));
        arguments.extend(self.log.as_ref().map(|level| format!("--log={level}")));
        arguments
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::List { json } => list(json).map(|()| true),
        Command::Run(options) => run(&options),
        Command::Demo { plot, whimbrel } => Lab::new(Options { whimbrel, ..Options::default() })
            .and_then(|mut lab| demo::run(&mut lab, &plot))
            .map(|()| true),
        Command::SoakAbsence { hours, whimbrel } => Lab::new(Options { whimbrel, ..Options::default() })
            .and_then(|mut lab| scenarios::soak(&mut lab, Duration::from_secs_f64(hours * 3600.0)))
            .map(|()| true),
        Command::Clean => clean().map(|removed| {
            for left in removed {
                let (n, p) = (left.namespaces.len(), left.processes.len());
                println!("removed run {}: {n} namespaces, {p} processes", left.id);
            }
            true
        }),
        Command::Shell { topology, host, daemons, config, whimbrel } => {
            shell(topology, &host, daemons, &config, whimbrel)
        }
        Command::BenchLink { seconds } => bench_link(seconds),
        Command::Traffic { role } => traffic::run(role).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("whimbrel-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Hours that an absence may last: until parked sockets give up after all (decision 0008).
fn hours(text: &str) -> std::result::Result<f64, String> {
    let hours = text.parse().map_err(|_| "not a number")?;
    if (0.0..480.0).contains(&hours) { Ok(hours) } else { Err("from 0 to 480".into()) }
}

fn bench_link(seconds: u64) -> Result<bool> {
    let bench = bench_link::run(&mut Lab::new(Options::default())?, Duration::from_secs(seconds))?;
    println!("TCP through an unlimited link      {:7.2} Gbit/s", bench.bits_per_second / 1e9);
    println!("frames a second, both directions   {:7.0}", bench.frames_per_second);
    println!("mean size of data frames           {:7.0} bytes", bench.frame_bytes);
    println!("forwarding thread                  {:7.0} % of a processor", bench.processor * 100.0);
    let [mean, most] = bench.lateness.map(|d| d.as_secs_f64() * 1e6);
    println!("lateness at 50 Mbit/s and 20 ms    {mean:7.0} µs on average, {most:.0} µs at most");
    Ok(true)
}

/// Builds a topology and hands it to a person until the shell ends.
fn shell(topology: Topology, host: &str, daemons: bool, config: &[String], whimbrel: Option<PathBuf>) -> Result<bool> {
    let mut lab = Lab::new(Options { whimbrel, ..Options::default() })?;
    let site = |name| SiteSpec::named(name).uplink(Shape::delay_rate(20, 100));
    let b = match topology {
        Topology::Public => site("b"),
        Topology::Nat => site("b").behind(Gateway::Nat { random_ports: false }),
        Topology::NatFirewall => site("b").behind(Gateway::NatFirewall),
        Topology::V6Only => site("b").v6_only(),
    };
    let mut campus = Campus::new(&mut lab)?;
    let a = campus.add(&mut lab, site("a"))?;
    let b = campus.add(&mut lab, b)?;
    let s = campus.add(&mut lab, SiteSpec::named("s"))?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    let at_server = server.join(&s.network, &Join::by("eth0"))?;
    laptop.join(&a.network, &Join::by("wlan0"))?;
    // The second interface is plugged in and down: `ip link set eth0 up` and an address are a move with overlap.
    let second = laptop.join(&b.network, &Join::by("eth0").metric(50))?;
    laptop.ip(["link set eth0 down"])?;
    let start = |host: &Host| host.whimbrel_with(&configuration(config, host.name())?);
    let running = if daemons { vec![start(&laptop)?, start(&server)?] } else { Vec::new() };
    let chosen = lab.hosts().iter().find(|h| h.name() == host);
    let chosen = chosen.ok_or_else(|| Error::Usage(format!("no host {host}")))?.clone();
    println!("The server has {} and {}.", at_server.ipv4()?, at_server.ipv6()?);
    println!("The laptop is in network a by wlan0. Its eth0 is plugged into network b and down. To move:");
    let (v4, v6) = (second.network.spec().v4, second.network.spec().v6);
    println!("    ip link set eth0 up");
    if let (Some(own), Some((gateway, len))) = (second.v4, v4) {
        println!("    ip route replace default via {gateway} dev eth0 metric 50   # {own}/{len} is still there");
    }
    if let (Some(own), Some((gateway, len))) = (second.v6, v6) {
        println!("    ip addr add {own}/{len} dev eth0 nodad; ip route replace ::/0 via {gateway} dev eth0 metric 50");
    }
    println!("    ip addr flush dev wlan0 scope global");
    println!("Other hosts, from another terminal:");
    for other in lab.hosts() {
        println!("    nsenter --net=/run/netns/{} sh   # {}", other.netns_name(), other.name());
    }
    for daemon in &running {
        println!("The daemon on {} answers to WHIMBREL_RUN_DIR={}", daemon.host().name(), daemon.run_dir().display());
    }
    println!("Everything goes when this shell ends.");
    let mut command = std::process::Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", chosen.netns_name()));
    command.arg(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    if let Some(daemon) = running.iter().find(|d| d.host().name() == host) {
        command.env("WHIMBREL_RUN_DIR", daemon.run_dir());
        command.env("PATH", search_path(daemon.binary(), std::env::var_os("PATH")));
    }
    let status = command.status().map_err(|e| Error::call("exec", "nsenter", e))?;
    Ok(status.success())
}

/// What the files that were named for a host say, those for it alone last.
fn configuration(named: &[String], host: &str) -> Result<String> {
    let (own, all): (Vec<_>, Vec<_>) = named.iter().partition(|named| named.contains('='));
    let own =
        own.into_iter().filter_map(|named| named.split_once('=').filter(|(of, _)| *of == host).map(|(_, file)| file));
    let read = |file: &str| std::fs::read_to_string(file).map_err(|e| Error::call("read", file, e));
    all.into_iter().map(String::as_str).chain(own).map(read).collect()
}

/// Where a shell looks for programs: first where this one is.
fn search_path(program: &Path, path: Option<OsString>) -> OsString {
    let own = std::path::absolute(program).ok().and_then(|program| Some(program.parent()?.to_owned()));
    let rest = path.as_ref().map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    std::env::join_paths(own.into_iter().chain(rest)).or_else(|_| path.ok_or(())).unwrap_or_default()
}

/// Whoever reads it may have seen enough before its end.
fn list(json: bool) -> Result<()> {
    let suite = || scenarios::all().filter(|scenario| !scenarios::is_quick(scenario));
    let text = if json {
        let entry = |scenario: &Scenario, part: &str| serde_json::json!({"name": scenario.name, "description": scenario.description, "part": part});
        let quick = scenarios::all().filter(|scenario| scenarios::is_quick(scenario)).map(|s| entry(s, "quick"));
        let all: Vec<_> = quick
            .chain(suite().map(|s| entry(s, "suite")))
            .chain(scenarios::programs().map(|s| entry(s, "programs")))
            .chain(scenarios::long().map(|s| entry(s, "long")))
            .chain(scenarios::wifi().map(|s| entry(s, "wifi")))
            .collect();
        format!("{:#}\n", serde_json::Value::from(all))
    } else {
        let show = |scenario: &Scenario| format!("{:26} {}\n", scenario.name, scenario.description);
        let all = scenarios::all().map(show).chain(["\nmany real programs (first: ./setup programs)\n".to_owned()]);
        let all = all.chain(scenarios::programs().map(show)).chain(["\nthat take minutes, by name only\n".to_owned()]);
        let all = all.chain(scenarios::long().map(show));
        let all = all.chain(["\nwith simulated radios (xtask test-kernels 6.1-wifi)\n".to_owned()]);
        all.chain(scenarios::wifi().map(show)).collect()
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::call("write", "standard output", error))
        }
        _ => Ok(()),
    }
}

fn run(options: &RunOptions) -> Result<bool> {
    let chosen: Vec<&'static Scenario> = if options.all || options.programs {
        let suite = scenarios::all().filter(|_| options.all);
        suite.chain(scenarios::programs().filter(|_| options.programs)).collect()
    } else {
        let find = |name: &String| {
            scenarios::find(name).ok_or_else(|| Error::Usage(format!("no scenario {name}; see whimbrel-lab list")))
        };
        options.scenarios.iter().map(find).collect::<Result<_>>()?
    };
    let runs = chosen.into_iter().flat_map(|scenario| std::iter::repeat_n(scenario, options.times));
    if options.jobs > 1 {
        return jobs::run(&runs.map(|scenario| options.once(scenario)).collect::<Vec<_>>(), options.jobs);
    }
    let mut good = true;
    for scenario in runs {
        good &= run_one(scenario, options)?;
    }
    Ok(good)
}

fn run_one(scenario: &Scenario, options: &RunOptions) -> Result<bool> {
    let start = Instant::now();
    let kept = options.keep.then(|| {
        std::env::temp_dir().join(format!(
            "whimbrel-lab-{}-{:x}",
            scenario.name,
            start.elapsed().as_nanos() as u32 ^ std::process::id()
        ))
    });
    let mut lab = Lab::new(Options {
        seed: options.seed,
        whimbrel: options.whimbrel.clone(),
        log_level: options.log.clone(),
        captures: kept.as_ref().map(|dir| dir.join("captures")),
    })?;
    let result = (scenario.run)(&mut lab);
    let seconds = start.elapsed().as_secs_f64();
    match &result {
        Ok(()) => println!("PASS {} ({seconds:.1} s)", scenario.name),
        Err(Error::Skipped(why)) => println!("SKIP {}: {}", scenario.name, why.replace('\n', " ")),
        Err(error) => {
            println!("FAIL {} ({seconds:.1} s, --seed {}): {error}", scenario.name, lab.seed());
            for (host, log) in lab.daemon_logs() {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                println!("--- end of the daemon's log on {host}:");
                for line in &lines[lines.len().saturating_sub(30)..] {
                    println!("    {line}");
                }
            }
        }
    }
    if let Some(dir) = kept {
        lab.keep_files(&dir)?;
        println!("logs and captures are in {}", dir.display());
    }
    Ok(matches!(result, Ok(()) | Err(Error::Skipped(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_has_the_configuration_of_all_and_its_own() {
        let file = std::env::temp_dir().join(format!("whimbrel-lab-configuration-{}", std::process::id()));
        std::fs::write(&file, "kick = false\n").expect("written");
        let named = [file.display().to_string(), format!("server={}", file.display()), "laptop=/nonexistent".into()];
        assert_eq!(configuration(&named, "server").expect("a configuration"), "kick = false\nkick = false\n");
        assert!(configuration(&named, "laptop").is_err());
        std::fs::remove_file(&file).expect("removed");
    }

    #[test]
    fn the_shell_finds_the_program_that_the_daemons_run() {
        let path = search_path(Path::new("/build/whimbrel"), Some("/usr/bin:/bin".into()));
        assert_eq!(path, "/build:/usr/bin:/bin");
        assert_eq!(search_path(Path::new("/build/whimbrel"), None), "/build");
    }
}
