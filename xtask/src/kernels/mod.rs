//! `make test-kernels`: boots Debian's kernels in QEMU and runs the core scenario inside.
//!
//! Nothing is installed on the machine: packages are downloaded and unpacked below the target directory, and the guest
//! runs from an initramfs that holds this build, the programs that the scenario needs and their shared libraries.

mod archive;
mod guest;
mod package;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::failure::{Failure, OnObject};
use crate::process::{self, End};
use crate::suite::{Tally, heading};
use crate::workspace::{cargo, target};

use guest::{Guest, Step};
use package::Kernel;

/// What the lab runs in the guest: a connection crosses a move, rewritten and in a tunnel, and goes on after an outage.
const SCENARIOS: &[&str] = &["roam-public", "roam-public-v6", "roam-into-nat", "outage-3s"];

/// Crates whose tests (those in `tests/`) run in the guest: they load every program and try the system calls.
const TESTED_CRATES: &[&str] = &["whimbrel-datapath", "whimbrel-kernel"];

/// Tests that race the kernel's timers by milliseconds, which software emulation loses.
const SKIPPED: &[&str] = &["a_smaller_mtu_resends"];

/// For building; software emulation of the guest is slow as well.
const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);
const GUEST_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Megabytes of memory of a guest.
const GUEST_MEMORY: &str = "3072";

/// What is run in a guest.
#[derive(Debug)]
pub(crate) struct Part {
    tests: bool,
    scenarios: Vec<String>,
}

impl Part {
    /// Only tests, only some scenarios, or all of both where neither is wished.
    pub(crate) fn new(only_tests: bool, only_scenarios: Vec<String>) -> Self {
        let scenarios = match (only_tests, only_scenarios.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => SCENARIOS.iter().map(|name| (*name).to_owned()).collect(),
            (false, false) => return Self { tests: false, scenarios: only_scenarios },
        };
        Self { tests: true, scenarios }
    }
}

/// Tests these series; whether all went well.
pub(crate) fn run(root: &Path, series: &[String], part: &Part) -> Result<bool, Failure> {
    let directory = target(root).join("kernels");
    fs::create_dir_all(&directory).failed("make", directory.display())?;
    heading("build");
    let programs = programs(root, part)?;
    let mut all = Tally::default();
    for series in series {
        heading(&format!("Linux {series}"));
        let kernel = package::get(&directory, series)?;
        println!("{}", kernel.release);
        all.add(boot(&directory, &kernel, &programs, &part.scenarios)?);
    }
    heading("summary");
    for name in &all.failures {
        println!("FAILED: {name}");
    }
    println!("{} passed, {} failed", all.passed, all.failed);
    Ok(all.failed == 0)
}

/// What this build puts into the guest.
struct Programs {
    /// `whimbrel` and `whimbrel-lab`.
    commands: Vec<PathBuf>,
    /// Test programs with their crates.
    tests: Vec<(String, PathBuf)>,
}

fn programs(root: &Path, part: &Part) -> Result<Programs, Failure> {
    let mut commands = Vec::new();
    if !part.scenarios.is_empty() {
        let mut build = Command::new(cargo());
        build.args(["build", "--release", "--locked", "-p", "whimbrel-cli", "-p", "whimbrel-lab"]).current_dir(root);
        expect_success(&mut build, |_| {})?;
        let release = target(root).join("release");
        commands.extend([release.join("whimbrel"), release.join("whimbrel-lab")]);
    }

    let mut tests = Vec::new();
    if !part.tests {
        return Ok(Programs { commands, tests });
    }
    let mut build = Command::new(cargo());
    build
        .args(["test", "--release", "--no-run", "--test", "*", "--locked", "--message-format=json-render-diagnostics"])
        .current_dir(root);
    for name in TESTED_CRATES {
        build.args(["-p", name]);
    }
    expect_success(&mut build, |line| tests.extend(test_program(line)))?;
    Ok(Programs { commands, tests })
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

fn boot(directory: &Path, kernel: &Kernel, programs: &Programs, scenarios: &[String]) -> Result<Tally, Failure> {
    let mut steps = Vec::new();
    let skipped: Vec<String> = SKIPPED.iter().map(|name| format!("--skip {name}")).collect();
    let skipped = skipped.join(" ");
    for (name, program) in &programs.tests {
        let file = program.file_name().unwrap_or_default().to_string_lossy();
        steps.push(Step {
            name: format!("tests-{name}"),
            command: format!("/tests/{file} --include-ignored --test-threads=1 {skipped}"),
        });
    }
    for scenario in scenarios {
        steps.push(Step { name: format!("scenario-{scenario}"), command: format!("whimbrel-lab run {scenario}") });
    }
    let image = directory.join(format!("{}.initramfs", kernel.release));
    let guest = Guest { kernel, commands: &programs.commands, tests: &programs.tests, steps: &steps };
    guest.write(&image)?;

    let started = Instant::now();
    let mut qemu = Command::new("qemu-system-x86_64");
    // Software emulation everywhere: it boots in 4 s, and a KVM that is there need not work (nested ones abort QEMU).
    qemu.args(["-machine", "pc,accel=tcg", "-cpu", "max", "-smp", "2", "-m", GUEST_MEMORY])
        .args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&image)
        .args(["-append", "console=ttyS0 panic=-1 quiet loglevel=2"]);
    let mut tally = Tally::default();
    let mut seen = Vec::new();
    let end = process::run(&mut qemu, GUEST_LIMIT, |line| {
        println!("{line}");
        if let Some((name, passed)) = guest::result(line) {
            seen.push(name.to_owned());
            let name = format!("{name} on Linux {}", kernel.release);
            if passed { tally.pass() } else { tally.fail(name) }
        }
    })?;
    for step in steps.iter().filter(|step| !seen.contains(&step.name)) {
        let why = if end == End::TimedOut { "not done in time" } else { "the guest ended before" };
        tally.fail(format!("{} on Linux {}: {why}", step.name, kernel.release));
    }
    println!("{}: {} s", kernel.release, started.elapsed().as_secs());
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
