//! `make test-kernels`: boots Debian's kernels in QEMU and runs the core scenario inside.
//!
//! Nothing is installed on the machine: packages are downloaded and unpacked below the target directory, and the guest
//! runs from an initramfs that holds this build, the programs that the scenario needs and their shared libraries. The
//! initramfs has no name while it exists, and QEMU ends with us, so that an interrupted run leaves nothing either.

mod archive;
mod guest;
mod package;

use std::fs::{self, OpenOptions};
use std::io::BufWriter;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::failure::{Failure, OnObject};
use crate::process::{self, End};
use crate::suite::{Outcome, Tally, heading, scenario_result};
use crate::workspace::{cargo, target};

use guest::{Guest, Step};
use package::Kernel;

/// What the lab runs in the guest: a connection crosses a move, rewritten and in a tunnel, and goes on after an outage with
/// and without the kick; and a socket changes hosts, and a process.
const SCENARIOS: &[&str] =
    &["roam-public", "roam-into-nat", "outage-kick", "moved-socket", "moved-process", "moved-process-direct"];

/// Crates whose tests (those in `tests/`) run in the guest: they load every program and try the system calls.
const TESTED_CRATES: &[&str] = &["whimbrel-datapath", "whimbrel-kernel"];

/// Tests that race the kernel's timers by milliseconds, which software emulation loses; and one that takes a minute there
/// for what is the same on all kernels.
const SKIPPED: &[&str] = &["a_smaller_mtu_resends", "connection_roams_under_another_wire_port"];

/// A build that takes longer is stuck.
const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Megabytes of memory of a guest; the machine gives what is used of it, about a third.
const GUEST_MEMORY: &str = "2048";

/// What is run in a guest.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// All test programs.
    tests: bool,
    /// These scenarios.
    scenarios: Vec<String>,
    /// These shell commands; everything is there for them.
    commands: Vec<String>,
}

/// How long things in a guest may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A guest from its start to its end.
    pub(crate) guest: Duration,
    /// A test program or a scenario.
    pub(crate) step: Duration,
}

impl Part {
    /// Tests, and scenarios that show what Whimbrel is for.
    pub(crate) fn usual() -> Self {
        Self { tests: true, scenarios: SCENARIOS.iter().map(|name| (*name).to_owned()).collect(), commands: Vec::new() }
    }

    /// Tests alone.
    pub(crate) fn tests() -> Self {
        Self { tests: true, ..Self::default() }
    }

    /// These scenarios and commands alone.
    pub(crate) fn only(scenarios: Vec<String>, commands: Vec<String>) -> Self {
        Self { tests: false, scenarios, commands }
    }

    /// Whether it needs CRIU, as far as can be told.
    fn moves_processes(&self) -> bool {
        !self.commands.is_empty() || self.scenarios.iter().any(|name| name.contains("process"))
    }

    /// What is run, in order.
    fn steps(&self, tests: &[(String, PathBuf)]) -> Vec<Step> {
        let mut steps = Vec::new();
        if !self.scenarios.is_empty() {
            steps.push(Step { name: "doctor".into(), command: "whimbrel doctor".into() });
        }
        if self.tests {
            let skipped: String = SKIPPED.iter().map(|name| format!(" --skip {name}")).collect();
            for (name, program) in tests {
                let file = program.file_name().unwrap_or_default().to_string_lossy();
                steps.push(Step {
                    name: format!("tests-{name}"),
                    command: format!("/tests/{file} --include-ignored --test-threads=1{skipped}"),
                });
            }
        }
        for scenario in &self.scenarios {
            steps.push(Step { name: format!("scenario-{scenario}"), command: format!("whimbrel-lab run {scenario}") });
        }
        for (number, command) in (1..).zip(&self.commands) {
            let quoted = command.replace('\'', r"'\''");
            steps.push(Step { name: format!("command-{number}"), command: format!("sh -c '{quoted}'") });
        }
        steps
    }
}

/// Tests these series, all at once where there is a processor for each; whether all went well.
pub(crate) fn run(root: &Path, series: &[String], part: &Part, limits: Limits) -> Result<bool, Failure> {
    let started = Instant::now();
    let directory = target(root).join("kernels");
    fs::create_dir_all(&directory).failed("make", directory.display())?;
    heading("build");
    let programs = programs(root, &directory, part)?;
    let mut all = Tally::default();
    let mut kernels = Vec::new();
    for series in series {
        match package::get(&directory, series) {
            Ok(kernel) => kernels.push((series, kernel)),
            Err(failure) => all.fail(format!("Linux {series}: {failure}")),
        }
    }
    heading("boot");
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    for group in kernels.chunks(at_once) {
        let tallies: Vec<_> = thread::scope(|scope| {
            let start = |(series, kernel): &'_ (&String, Kernel)| {
                println!("{series}: boots {}", kernel.release);
                boot(&directory, series, kernel, &programs, part, limits)
            };
            let guests: Vec<_> = group.iter().map(|one| (one.0, scope.spawn(move || start(one)))).collect();
            guests.into_iter().map(|(series, guest)| (series, guest.join())).collect()
        });
        for (series, tally) in tallies {
            match tally.unwrap_or_else(|_| Err(Failure::new("its thread panicked"))) {
                Ok(tally) => all.add(tally),
                Err(failure) => all.fail(format!("Linux {series}: {failure}")),
            }
        }
    }
    heading("summary");
    all.tell(started.elapsed());
    Ok(all.failed == 0)
}

/// What this build puts into the guest.
struct Programs {
    /// `whimbrel` and `whimbrel-lab`.
    commands: Vec<PathBuf>,
    /// Where CRIU is unpacked.
    criu: Option<PathBuf>,
    /// Test programs with their crates.
    tests: Vec<(String, PathBuf)>,
}

fn programs(root: &Path, directory: &Path, part: &Part) -> Result<Programs, Failure> {
    let mut commands = Vec::new();
    let mut tests = Vec::new();
    if !part.scenarios.is_empty() || !part.commands.is_empty() {
        let mut build = Command::new(cargo());
        build.args(["build", "--release", "--locked", "-p", "whimbrel-cli", "-p", "whimbrel-lab"]).current_dir(root);
        expect_success(&mut build, |_| {})?;
        let release = target(root).join("release");
        commands.extend([release.join("whimbrel"), release.join("whimbrel-lab")]);
    }
    let criu = if part.moves_processes() {
        let found = package::criu(directory);
        if let Err(failure) = &found {
            println!("no process is moved in a guest, for CRIU cannot be had: {failure}");
        }
        found.ok()
    } else {
        None
    };
    if !part.tests && part.commands.is_empty() {
        return Ok(Programs { commands, criu, tests });
    }
    let mut build = Command::new(cargo());
    build
        .args(["test", "--release", "--no-run", "--test", "*", "--locked", "--message-format=json-render-diagnostics"])
        .current_dir(root);
    for name in TESTED_CRATES {
        build.args(["-p", name]);
    }
    expect_success(&mut build, |line| tests.extend(test_program(line)))?;
    Ok(Programs { commands, criu, tests })
}

fn expect_success(command: &mut Command, look: impl FnMut(&str)) -> Result<(), Failure> {
    match process::run(command, BUILD_LIMIT, look)? {
        End::Success => Ok(()),
        _ => Err(Failure::new("this did not build, so there is nothing to test")),
    }
}

/// The test program that one of cargo's messages tells of, named after its crate and file.
fn test_program(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let package = Path::new(message["manifest_path"].as_str()?).parent()?.file_name()?.to_str()?;
    let target = message["target"]["name"].as_str()?;
    Some((format!("{package}/{target}"), executable))
}

/// Boots one guest and shows its console, each line after its series.
fn boot(
    directory: &Path,
    series: &str,
    kernel: &Kernel,
    programs: &Programs,
    part: &Part,
    limits: Limits,
) -> Result<Tally, Failure> {
    let steps = part.steps(&programs.tests);
    let path = directory.join(format!("{}.initramfs", kernel.release));
    let image = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let image = image.failed("make", path.display())?;
    // QEMU opens it by our descriptor.
    fs::remove_file(&path).failed("remove", path.display())?;
    let guest = Guest {
        kernel,
        commands: &programs.commands,
        criu: programs.criu.as_deref(),
        tests: &programs.tests,
        steps: &steps,
        limit: limits.step,
        scratch: &directory.join(format!("{}.stripped", kernel.release)),
    };
    guest.write(BufWriter::new(&image))?;

    let started = Instant::now();
    // Nothing that ends us, even SIGKILL, leaves the guest running.
    let mut qemu = Command::new("setpriv");
    qemu.args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        // Software emulation everywhere: it boots in 4 s, and a KVM that is there need not work (nested ones abort QEMU).
        .args(["-machine", "pc,accel=tcg", "-cpu", "max", "-smp", "1", "-m", GUEST_MEMORY])
        .args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd()))
        .args(["-append", "console=ttyS0 panic=-1 quiet loglevel=2"]);
    let mut tally = Tally::default();
    let mut seen = Vec::new();
    let mut skipped = Vec::new();
    let end = process::run(&mut qemu, limits.guest, |line| {
        println!("{series:5}| {line}");
        if let Some((name, Outcome::Skipped(why))) = scenario_result(line) {
            skipped.push((format!("scenario-{name}"), why.to_owned()));
        }
        if let Some((name, passed)) = guest::result(line) {
            seen.push(name.to_owned());
            let whole = format!("{name} on Linux {}", kernel.release);
            let why = skipped.iter().find(|(skipped, _)| skipped == name);
            match (passed, why) {
                // A scenario that was skipped has not failed, for the guest's shell.
                (true, Some((_, why))) => tally.skip(format!("{whole}: {why}")),
                (true, None) => tally.pass(),
                (false, _) => tally.fail(whole),
            }
        }
    })?;
    let why = match end {
        End::TimedOut => "the guest was ended, for it took too long",
        End::Failure => "QEMU failed",
        End::Success => "the guest ended before",
    };
    for step in steps.iter().filter(|step| !seen.contains(&step.name)) {
        tally.fail(format!("{} on Linux {}: {why}", step.name, kernel.release));
    }
    println!("{series}: {} s", started.elapsed().as_secs());
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_cargos_messages() {
        let message = |target: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/kernel/Cargo.toml","target":{{"name":"{target}"}},
                "profile":{{"test":{test}}},"executable":"/w/target/debug/deps/x-1"}}"#
            )
        };
        let program = PathBuf::from("/w/target/debug/deps/x-1");
        assert_eq!(test_program(&message("tun", true)), Some(("kernel/tun".into(), program)));
        assert_eq!(test_program(&message("tun", false)), None);
        assert_eq!(test_program("warning: something"), None);
    }
}
