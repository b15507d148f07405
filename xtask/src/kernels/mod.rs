//! `make test-kernels`: boots Debian's kernels in QEMU and runs the core scenario inside.
//!
//! Nothing is installed on the machine: packages are downloaded and unpacked below the target directory, and the guest
//! runs from an initramfs that holds this build and the programs that the scenarios need. The initramfs has no name
//! while it exists, and QEMU ends with us, so that an interrupted run leaves nothing either.

mod archive;
mod guest;
mod package;
mod programs;
mod system;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, OpenOptions};
use std::io::BufWriter;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, OnObject};
use crate::process::{self, End};
use crate::suite::{Outcome, heading, scenario_result};
use crate::tally::Tally;
use crate::workspace::target;

use guest::{Guest, Step};
use package::{Apt, Kernel};
use programs::Programs;
use system::Flavour;
pub(crate) use system::System;

/// What the lab runs in the guest: a connection crosses a move, rewritten and in a tunnel, and goes on after an outage
/// with and without the kick; and a socket changes hosts, and a process.
const SCENARIOS: &[&str] =
    &["roam-public", "roam-into-nat", "outage-kick", "moved-socket", "moved-process", "moved-process-direct"];

/// What the lab runs in a guest with simulated radios, and nowhere else.
const RADIO_SCENARIOS: &[&str] = &["wifi-roam", "wifi-signal", "wifi-lost"];

/// Tests that race the kernel's timers by milliseconds, which software emulation loses; and those that take a minute
/// and more there for what is the same on all kernels, or for what something costs, which emulation does not tell.
const SKIPPED: &[&str] = &["a_smaller_mtu_resends", "connection_roams_under_another_wire_port", "costs_"];

/// Test programs of any name.
const ALL: &str = "*";

/// Megabytes of memory of a guest; the machine gives what is used of it, about a third.
const GUEST_MEMORY: &str = "2048";

/// What is run in a guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    /// Test programs of these names, which may hold wildcards.
    tests: Vec<String>,
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
    /// Tests, and scenarios that show what Whimbrel is for; with radios the scenarios that need them, since the rest is
    /// tried on the same kernel without.
    fn usual(flavour: Flavour) -> Self {
        let these = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        match flavour {
            Flavour::Cloud => Self { scenarios: these(SCENARIOS), ..Self::tests() },
            Flavour::Wifi => Self { scenarios: these(RADIO_SCENARIOS), ..Self::default() },
        }
    }

    /// All tests, and nothing else.
    pub(crate) fn tests() -> Self {
        Self { tests: vec![ALL.to_owned()], ..Self::default() }
    }

    /// These alone.
    pub(crate) fn only(tests: Vec<String>, scenarios: Vec<String>, commands: Vec<String>) -> Self {
        Self { tests, scenarios, commands }
    }

    /// The test programs that have to be there.
    fn needed_tests(&self) -> Vec<&str> {
        if self.commands.is_empty() { self.tests.iter().map(String::as_str).collect() } else { vec![ALL] }
    }

    /// What is run, in order.
    fn steps(&self, tests: &[(String, PathBuf)]) -> Vec<Step> {
        let mut steps = Vec::new();
        if !self.scenarios.is_empty() {
            steps.push(Step { name: "doctor".into(), command: "whimbrel doctor".into() });
        }
        if !self.tests.is_empty() {
            // Who asks for one wants to see what it says.
            let shown = if self.tests == [ALL] { "" } else { " --nocapture" };
            let skipped: String = SKIPPED.iter().map(|name| format!(" --skip {name}")).collect();
            for (name, program) in tests {
                let file = program.file_name().unwrap_or_default().to_string_lossy();
                steps.push(Step {
                    name: format!("tests-{name}"),
                    command: format!("/tests/{file} --include-ignored --test-threads=1{shown}{skipped}"),
                });
            }
        }
        for scenario in &self.scenarios {
            steps.push(Step { name: format!("scenario-{scenario}"), command: format!("whimbrel-lab run {scenario}") });
        }
        for (number, command) in (1..).zip(&self.commands) {
            let quoted = command.replace('\'', r"'\''");
            // A bare `sh` would be that of Busybox, which runs the step, and its `ip` would come before the real one.
            steps.push(Step { name: format!("command-{number}"), command: format!("/usr/bin/sh -c '{quoted}'") });
        }
        steps
    }
}

/// Tests on these systems, several at once where there is a processor for each; whether all went well. The usual part
/// is run unless another is asked for.
pub(crate) fn run(root: &Path, systems: &[System], part: Option<&Part>, limits: Limits) -> Result<bool, Failure> {
    let started = Instant::now();
    let directory = target(root).join("kernels");
    fs::create_dir_all(&directory).failed("make", directory.display())?;
    // apt's paths and the linker's have to be whole.
    let directory = directory.canonicalize().failed("look at", directory.display())?;
    let mut all = Tally::default();
    let mut built = BTreeMap::new();
    let mut ready = Vec::new();
    for system in systems {
        let apt = Apt::open(&directory, system.processor)?;
        let part = part.cloned().unwrap_or_else(|| Part::usual(system.flavour));
        let programs = match built.entry((system.processor, system.flavour)) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                heading(&format!("build for {}", system.processor.debian()));
                place.insert(Programs::build(root, &apt, (system.processor, system.flavour), &part).map(Arc::new))
            }
        };
        // What cannot be built for one processor says nothing of the others.
        match programs.as_ref().map_err(ToString::to_string).and_then(|programs| {
            let kernel = apt.kernel(&system.series, system.flavour).map_err(|failure| failure.to_string())?;
            Ok((system, part, kernel, Arc::clone(programs)))
        }) {
            Ok(one) => ready.push(one),
            Err(failure) => all.fail(format!("Linux {system}: {failure}")),
        }
    }
    heading("boot");
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    for group in ready.chunks(at_once) {
        let tallies: Vec<_> = thread::scope(|scope| {
            let start = |(system, part, kernel, programs): &'_ (&System, Part, Kernel, Arc<Programs>)| {
                println!("{system}: boots {}", kernel.release);
                boot(&directory, system, kernel, programs, part, limits)
            };
            let guests: Vec<_> = group.iter().map(|one| (one.0, scope.spawn(move || start(one)))).collect();
            guests.into_iter().map(|(system, guest)| (system, guest.join())).collect()
        });
        for (system, tally) in tallies {
            match tally.unwrap_or_else(|_| Err(Failure::new("its thread panicked"))) {
                Ok(tally) => all.add(tally),
                Err(failure) => all.fail(format!("Linux {system}: {failure}")),
            }
        }
    }
    heading("summary");
    all.print(started.elapsed());
    Ok(all.failed == 0)
}

/// Boots one guest and shows its console, each line after its system.
fn boot(
    directory: &Path,
    system: &System,
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
        processor: system.processor,
        flavour: system.flavour,
        userland: &programs.userland,
        commands: &programs.commands,
        tests: &programs.tests,
        steps: &steps,
        limit: limits.step,
        scratch: &directory.join(format!("{}.stripped", kernel.release)),
    };
    guest.write(BufWriter::new(&image))?;

    let started = Instant::now();
    // Nothing that ends us, even SIGKILL, leaves the guest running.
    let mut qemu = Command::new("setpriv");
    let (emulator, machine) = system.processor.qemu();
    qemu.args(["--pdeathsig", "KILL", emulator])
        .args(machine)
        .args(["-smp", "1", "-m", GUEST_MEMORY])
        .args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd()))
        // A busy machine gives the guest too little time for it to find its timer by waiting.
        .args(["-append", &format!("console={} panic=-1 quiet loglevel=2 no_timer_check", system.processor.console())]);
    let label = system.to_string();
    let mut tally = Tally::default();
    let mut seen = Vec::new();
    let mut skipped = Vec::new();
    let end = process::run(&mut qemu, limits.guest, |line| {
        println!("{label:5}| {line}");
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
    println!("{system}: {} s", started.elapsed().as_secs());
    Ok(tally)
}
