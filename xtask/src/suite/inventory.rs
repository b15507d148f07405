//! What there is to run: every test of every test program, every scenario of the lab, every fuzz target.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::Choice;
use crate::failure::{Failure, OnObject};
use crate::workspace::{cargo, files, target};

/// What kind of thing a case is: how it is run, and with what beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A test that needs nothing.
    Unit,
    /// A test that needs root. One at a time: they have namespaces of their own, but some count on the machine's own
    /// state.
    Root,
    /// A scenario of the lab.
    Scenario,
    /// A fuzz target.
    Fuzz,
    /// A guest with another kernel or processor, with all that is tried there.
    Guest,
}

impl Kind {
    /// As `results.json` has it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Unit => "unit-test",
            Self::Root => "root-test",
            Self::Scenario => "scenario",
            Self::Fuzz => "fuzz-target",
            Self::Guest => "guest",
        }
    }
}

/// One thing that is run and has a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    /// Unique among all cases: `protocol::bucket::tests::it_fills`, `scenario roam-public`, `fuzz datagram`.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The smallest choice that it belongs to.
    pub(crate) choice: Choice,
    /// The row of `docs/tested.md` that it counts for.
    pub(crate) part: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) directory: PathBuf,
}

/// A program that cargo has built of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TestProgram {
    /// What its tests' names begin with.
    prefix: String,
    executable: PathBuf,
    /// Where cargo would run it.
    directory: PathBuf,
}

/// The rows of `docs/tested.md`, with what each is.
pub(crate) const PARTS: [(&str, &str); 10] = [
    (CRATES, "all unit tests and tests that need root"),
    (SIMULATOR, "its tests with every fault at every step"),
    (SCENARIOS, "the scenarios of `make test`"),
    (PROGRAMS, "sessions of many programs from Debian through moves and a sleep"),
    (LONG, "`absence-72h`: as often as TCP waits in 72 hours; `vhf-random-long`: ten minutes of random events"),
    (FUZZ, "each target for a minute and more, ten minutes in all"),
    (OLDEST, "that kernel in QEMU: tests of the crates and the core scenarios"),
    (OLDER, "the same"),
    (WIFI, "Linux 6.1 in QEMU with simulated radios: roaming, the signal, an access point that falls silent"),
    (PROCESSORS, "arm64 in QEMU: snapshots of sockets"),
];
const CRATES: &str = "crates";
pub(super) const SIMULATOR: &str = "simulator";
const SCENARIOS: &str = "scenarios";
const PROGRAMS: &str = "programs";
const LONG: &str = "long";
const FUZZ: &str = "fuzz";
const OLDEST: &str = "Linux 6.1";
const OLDER: &str = "Linux 6.12";
const WIFI: &str = "Wi-Fi";
const PROCESSORS: &str = "processors";

/// All cases, in the order in which they are listed.
pub(crate) fn all(root: &Path) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for program in test_programs(root)? {
        cases.extend(tests_of(&program)?);
    }
    cases.push(Case {
        name: "documentation examples".to_owned(),
        kind: Kind::Unit,
        choice: Choice::All,
        part: CRATES,
        program: cargo().into(),
        arguments: ["test", "--quiet", "--doc", "--workspace", "--locked"].map(str::to_owned).into(),
        directory: root.to_owned(),
    });
    cases.extend(scenarios(root)?);
    cases.extend(fuzz_targets(root)?);
    cases.extend(guests(root));
    Ok(cases)
}

/// The test programs of the workspace, which are built already.
fn test_programs(root: &Path) -> Result<Vec<TestProgram>, Failure> {
    let mut command = Command::new(cargo());
    command.args(super::BUILD).arg("--message-format=json").current_dir(root);
    let output = command.output().failed("run", "cargo build")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::new(format!("cargo does not say which test programs there are: {said}")));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut programs: Vec<TestProgram> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|value| of_artifact(&value))
        .collect();
    programs.sort_by(|a, b| a.prefix.cmp(&b.prefix));
    if programs.is_empty() {
        return Err(Failure::new("cargo names no test program"));
    }
    Ok(programs)
}

/// A line of cargo's messages, if it is about a test program.
fn of_artifact(message: &Value) -> Option<TestProgram> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = message["executable"].as_str()?.into();
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?.to_owned();
    let package = directory.file_name()?.to_string_lossy().into_owned();
    let target = message["target"]["name"].as_str()?;
    let prefix = match message["target"]["kind"][0].as_str()? {
        "test" => format!("{package}/{target}"),
        "bin" => format!("{package} ({target})"),
        _ => package,
    };
    Some(TestProgram { prefix, executable, directory })
}

/// The tests of a program. Those that are ignored need root; a measurement is no test.
fn tests_of(program: &TestProgram) -> Result<Vec<Case>, Failure> {
    let list = |more: &[&str]| -> Result<Vec<String>, Failure> {
        let mut command = Command::new(&program.executable);
        command.args(["--list", "--format", "terse"]).args(more).current_dir(&program.directory);
        let output = command.output().failed("run", program.executable.display())?;
        if !output.status.success() {
            return Err(Failure::new(format!("{} does not list its tests", program.executable.display())));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    };
    let ignored = list(&["--ignored"])?;
    let case = |name: String| {
        let kind = if ignored.contains(&name) { Kind::Root } else { Kind::Unit };
        Case {
            kind,
            choice: Choice::Quick,
            part: if program.prefix.starts_with("sim/") { SIMULATOR } else { CRATES },
            program: program.executable.clone(),
            arguments: vec!["--exact".to_owned(), name.clone(), "--include-ignored".to_owned()],
            directory: program.directory.clone(),
            name: format!("{}::{name}", program.prefix),
        }
    };
    Ok(list(&[])?.into_iter().map(case).collect())
}

/// What the lab lists. Those with many real programs and those that take minutes belong to the largest choice; those
/// that need radios are run in a guest that has them.
fn scenarios(root: &Path) -> Result<Vec<Case>, Failure> {
    let lab = target(root).join("debug/whimbrel-lab");
    let output = Command::new(&lab).args(["list", "--json"]).output().failed("run", lab.display())?;
    let listed: Value = serde_json::from_slice(&output.stdout).failed("read", "what the lab lists")?;
    let none = Vec::new();
    let listed = listed.as_array().unwrap_or(&none);
    if listed.is_empty() {
        return Err(Failure::new("the lab lists no scenario"));
    }
    listed
        .iter()
        .filter(|scenario| scenario["part"] != "wifi")
        .map(|scenario| {
            let (Some(name), Some(part)) = (scenario["name"].as_str(), scenario["part"].as_str()) else {
                return Err(Failure::new(format!("the lab lists what is no scenario: {scenario}")));
            };
            let (choice, part) = match part {
                "quick" => (Choice::Quick, SCENARIOS),
                "suite" => (Choice::All, SCENARIOS),
                "programs" => (Choice::Long, PROGRAMS),
                _ => (Choice::Long, LONG),
            };
            Ok(Case {
                name: format!("{SCENARIO}{name}"),
                kind: Kind::Scenario,
                choice,
                part,
                program: lab.clone(),
                arguments: vec!["run".to_owned(), name.to_owned()],
                directory: root.to_owned(),
            })
        })
        .collect()
}

/// What the name of a scenario's case begins with.
pub(crate) const SCENARIO: &str = "scenario ";

/// Systems that QEMU boots, each with what `make test-kernels` tries there.
fn guests(root: &Path) -> Vec<Case> {
    let guest = |system: &str, part, more: &[&str]| Case {
        name: format!("guest {system}"),
        kind: Kind::Guest,
        choice: Choice::Long,
        part,
        // This program, also where the build has put another in its place meanwhile.
        program: PathBuf::from("/proc/self/exe"),
        arguments: ["test-kernels", system].iter().chain(more).map(|&argument| argument.to_owned()).collect(),
        directory: root.to_owned(),
    };
    vec![
        guest("6.1", OLDEST, &[]),
        guest("6.12", OLDER, &[]),
        guest("6.1-wifi", WIFI, &[]),
        guest("arm64", PROCESSORS, &["--test", "golden"]),
    ]
}

/// The programs of `fuzz/targets`, each for a moment.
fn fuzz_targets(root: &Path) -> Result<Vec<Case>, Failure> {
    let sources = files(&root.join("fuzz/targets"), "rs")?;
    let case = |source: &PathBuf| {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Case {
            kind: Kind::Fuzz,
            choice: Choice::All,
            part: FUZZ,
            program: root.join("fuzz/run"),
            arguments: vec!["short".to_owned(), name.clone()],
            directory: root.to_owned(),
            name: format!("fuzz {name}"),
        }
    };
    Ok(sources.iter().map(case).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn artifact(kind: &str, target: &str, test: bool) -> Value {
        json!({
            "reason": "compiler-artifact", "manifest_path": "/w/crates/wire/Cargo.toml",
            "target": {"kind": [kind], "name": target}, "profile": {"test": test}, "executable": "/t/wire-1",
        })
    }

    #[test]
    fn test_programs_are_named_after_their_package_and_file() {
        let name = |kind, target| of_artifact(&artifact(kind, target, true)).map(|program| program.prefix);
        assert_eq!(name("lib", "whimbrel_wire").as_deref(), Some("wire"));
        assert_eq!(name("test", "vectors").as_deref(), Some("wire/vectors"));
        assert_eq!(name("bin", "whimbrel").as_deref(), Some("wire (whimbrel)"));
        assert_eq!(of_artifact(&artifact("bin", "whimbrel", false)), None, "the program itself");
        assert_eq!(of_artifact(&json!({"reason": "build-finished"})), None);
    }
}
