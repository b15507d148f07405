//! `make test`: everything, one part after the other, and a count at the end.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, OnObject};
use crate::fuzz;
use crate::process::{self, End};
use crate::workspace::{cargo, target};

/// No scenario begins later than so long after the suite has begun: with what is under way then, with fuzzing and with what `./setup`
/// installs before it, it takes no more than three quarters of an hour on two processors. A slow machine has no time for all; it says what for.
const BEGUN_WITHIN: Duration = Duration::from_secs(38 * 60);

/// What failed is run once more for so much longer: also where there was just time for all, one unsteady scenario of 250 is not to decide.
const RETRIED_FOR: Duration = Duration::from_secs(90);

/// What has not ended by then is stuck.
const ENDED_WITHIN: Duration = Duration::from_secs(150);

/// So many that two processors are not quite busy: scenarios wait most of the time, and they measure times.
const SCENARIOS_AT_ONCE: usize = 4;

/// More than there are processors: many of the tests of a crate wait for the kernel's clocks.
const TESTS_AT_ONCE: &str = "4";

/// With more scenarios, or tests of one part, failing than this, it is not the machine.
const RETRIED_MOST: usize = 6;

/// What a scenario's name follows in a tally.
const SCENARIO: &str = "scenario ";

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Names of those that failed.
    pub(crate) failures: Vec<String>,
    /// What this machine lacks something for, each with why. It neither passed nor failed.
    pub(crate) skipped: Vec<String>,
    /// Names of those that there was no time for.
    pub(crate) late: Vec<String>,
}

impl Tally {
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, name: impl Into<String>) {
        self.failed += 1;
        self.failures.push(name.into());
    }

    pub(crate) fn skip(&mut self, name: impl Into<String>) {
        self.skipped.push(name.into());
    }

    pub(crate) fn add(&mut self, part: Self) {
        self.passed += part.passed;
        self.failed += part.failed;
        self.failures.extend(part.failures);
        self.skipped.extend(part.skipped);
        self.late.extend(part.late);
    }

    /// Tells what failed, what was skipped, and how much there was of each.
    pub(crate) fn tell(&self, took: Duration) {
        for name in &self.failures {
            println!("FAILED: {name}");
        }
        for name in &self.skipped {
            println!("SKIPPED: {name}");
        }
        println!("took {} s", took.as_secs());
        println!("{}", self.counts());
    }

    /// The last line is the same whether or not anything was skipped: programs read it.
    fn counts(&self) -> String {
        let skipped = match self.skipped.len() {
            0 => String::new(),
            1 => "1 was skipped, for this machine lacks something for it\n".to_owned(),
            count => format!("{count} were skipped, for this machine lacks something for them\n"),
        };
        let late = match self.late.len() {
            0 => String::new(),
            count => {
                format!("NOT ALL WAS RUN: there was no time for {count} on this machine: {}\n", self.late.join(", "))
            }
        };
        format!("{late}{skipped}{} passed, {} failed", self.passed, self.failed)
    }

    /// How often `name` failed.
    fn failures_of(&self, name: &str) -> usize {
        self.failures.iter().filter(|failure| *failure == name).count()
    }

    /// Whether what failed may be run once more: everything that did has a name, and it is not too much.
    fn may_be_retried(&self) -> bool {
        (1..=RETRIED_MOST).contains(&self.failed) && self.failed == self.failures.len()
    }

    /// Counts what failed at first as passed, since it passed when it was run again.
    fn was_unsteady(&mut self, name: &str) {
        println!("UNSTEADY: {name} failed at first and passed when it was run again");
        let times = self.failures_of(name);
        self.failures.retain(|failure| failure != name);
        self.failed -= times;
        self.passed += times;
    }
}

/// What is left of the time in which something may begin.
#[derive(Clone, Copy, Debug)]
struct Time(Instant);

impl Time {
    fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// How long a part may take.
    fn limit(self) -> Duration {
        self.left() + ENDED_WITHIN
    }

    /// The time in which what failed of `tally` may be run once more, if it may; says so where there is none left.
    fn to_retry(self, tally: &Tally) -> Option<Self> {
        let longer = Self(self.0 + RETRIED_FOR);
        if !tally.may_be_retried() {
            return None;
        }
        if longer.left().is_zero() {
            println!("there is no time left to try again what failed");
            return None;
        }
        Some(longer)
    }
}

/// Runs all parts; whether none failed.
pub(crate) fn run(root: &Path) -> Result<bool, Failure> {
    let started = Instant::now();
    let time = Time(started + BEGUN_WITHIN);
    let root_user = is_root()?;
    let mut all = Tally::default();
    let mut skipped = Vec::new();

    heading("build");
    let built = build(root, time)?;
    all.add(built.clone());

    heading("unit tests");
    all.add(tests(root, time, "unit tests", &[])?);
    if root_user {
        heading("tests that need root, and lab scenarios beside them");
        all.add(with_root(root, time, built.failed == 0)?);
    } else {
        skipped.push("tests that need root");
        skipped.push("lab scenarios");
    }
    heading("fuzzing");
    all.add(fuzz::short(root)?);

    heading("summary");
    if !skipped.is_empty() {
        println!("***********************************************************************");
        println!("*** SKIPPED: {}.", skipped.join(", "));
        println!("*** They need root: most of what Whimbrel does was NOT tested.");
        println!("***********************************************************************");
    }
    all.tell(started.elapsed());
    Ok(all.failed == 0)
}

/// What needs root. Both parts wait most of the time, for clocks and for programs, and each test has namespaces of its own: so they run at
/// the same time.
fn with_root(root: &Path, time: Time, with_lab: bool) -> Result<Tally, Failure> {
    const PART: &str = "tests that need root";
    thread::scope(|scope| {
        let beside = scope.spawn(|| tests(root, time, PART, &["--tests", "--", "--ignored", "--test-threads=1"]));
        let mut tally = if with_lab { lab(root, time)? } else { Tally::default() };
        let Ok(tests) = beside.join() else {
            tally.fail(PART);
            return Ok(tally);
        };
        tally.add(tests?);
        Ok(tally)
    })
}

pub(crate) fn heading(name: &str) {
    println!("\n== {name}");
}

fn is_root() -> Result<bool, Failure> {
    let status = fs::read_to_string("/proc/self/status").failed("read", "/proc/self/status")?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    Ok(uids.split_whitespace().nth(1) == Some("0"))
}

/// All that the other parts run, in the profile `dev`: building took half of the time when it was `release` (decision 0033). Programs and
/// tests at once, so that both have the same features of their dependencies and nothing is compiled twice.
fn build(root: &Path, time: Time) -> Result<Tally, Failure> {
    let mut command = Command::new(cargo());
    command.args(["build", "--workspace", "--locked", "--lib", "--bins", "--tests"]).current_dir(root);
    let mut tally = Tally::default();
    match process::run(&mut command, time.limit(), |line| println!("{line}"))? {
        End::Success => tally.pass(),
        _ => tally.fail("build"),
    }
    Ok(tally)
}

/// Tests of all crates. One that fails is run once more, alone: many wait for the kernel, and the machine may be busy with
/// other things. That it failed at first is told in any case.
fn tests(root: &Path, time: Time, part: &str, targets: &[&str]) -> Result<Tally, Failure> {
    let mut tally = cargo_test(root, time, part, targets)?;
    let Some(time) = time.to_retry(&tally) else { return Ok(tally) };
    let mut names = tally.failures.clone();
    names.sort();
    names.dedup();
    for name in names {
        println!("\nonce more: {name}");
        let second = cargo_test(root, time, part, &["--tests", "--", "--include-ignored", "--exact", &name])?;
        // A test of that name may be in several crates. A failure that is none of a test is found by no name.
        if second.failed == 0 && second.passed >= tally.failures_of(&name) {
            tally.was_unsteady(&name);
        }
    }
    Ok(tally)
}

/// Runs tests of all crates; `targets` says which, and what test programs are told.
fn cargo_test(root: &Path, time: Time, part: &str, targets: &[&str]) -> Result<Tally, Failure> {
    let mut command = Command::new(cargo());
    command.args(["test", "--workspace", "--locked", "--no-fail-fast"]).args(targets).current_dir(root);
    command.env("RUST_TEST_THREADS", TESTS_AT_ONCE);
    let mut tally = Tally::default();
    let mut unfinished = 0;
    let limit = time.limit();
    let end = process::run(&mut command, limit, |line| {
        println!("{line}");
        unfinished += usize::from(begins(line));
        if let Some((passed, failed)) = test_result(line) {
            unfinished -= usize::from(unfinished > 0);
            tally.passed += passed;
            tally.failed += failed;
        }
        if let Some(name) = failed_test(line) {
            tally.failures.push(name.to_owned());
        }
    })?;
    match end {
        End::Failure if tally.failed == 0 || unfinished > 0 => tally.fail(format!("{part}: did not build or crashed")),
        End::TimedOut => tally.fail(format!("{part}: not done after {} s", limit.as_secs())),
        _ => {}
    }
    Ok(tally)
}

/// True for libtest's `running 5 tests`, which a `test result` follows unless the program crashes.
fn begins(line: &str) -> bool {
    let mut words = line.split(' ');
    words.next() == Some("running")
        && words.next().is_some_and(|count| count.parse::<usize>().is_ok())
        && matches!(words.next(), Some("test" | "tests"))
        && words.next().is_none()
}

/// The counts of libtest's `test result: ok. 5 passed; 0 failed; …`.
fn test_result(line: &str) -> Option<(usize, usize)> {
    let counts = line.strip_prefix("test result: ")?;
    let count =
        |word: &str| counts.split([';', '.']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok());
    Some((count("passed")?, count("failed")?))
}

/// The name in libtest's `test NAME ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Scenarios with real daemons and programs in namespaces. One that fails is run once more, alone: they measure times, and
/// the machine may be busy with other things. That it failed at first is told in any case.
fn lab(root: &Path, time: Time) -> Result<Tally, Failure> {
    let mut tally = scenarios(root, time, &["--all".to_owned(), format!("--jobs={SCENARIOS_AT_ONCE}")])?;
    if tally.late.len() > tally.passed {
        // What little was run says nothing.
        tally.fail("lab scenarios: there was no time for most of them");
    }
    let again: Vec<String> =
        tally.failures.iter().filter_map(|failure| failure.strip_prefix(SCENARIO)).map(str::to_owned).collect();
    let Some(time) = time.to_retry(&tally).filter(|_| !again.is_empty()) else { return Ok(tally) };
    println!("\nonce more, those that failed:");
    let second = scenarios(root, time, &again)?;
    let whole = second.passed + second.failed + second.late.len() >= again.len();
    for failure in again.iter().map(|name| format!("{SCENARIO}{name}")) {
        if whole && second.failures_of(&failure) == 0 && !second.late.contains(&failure) {
            tally.was_unsteady(&failure);
        }
    }
    Ok(tally)
}

/// Runs scenarios by name, or `--all`; those that there is no time for are skipped.
fn scenarios(root: &Path, time: Time, which: &[String]) -> Result<Tally, Failure> {
    let target = target(root);
    let mut command = Command::new(target.join("debug/whimbrel-lab"));
    command.arg("run").args(which).arg(format!("--begin-within={}", time.left().as_secs())).current_dir(root);
    let mut tally = Tally::default();
    let limit = time.limit();
    let end = process::run(&mut command, limit, |line| {
        println!("{line}");
        match scenario_result(line) {
            Some((_, Outcome::Passed)) => tally.pass(),
            Some((name, Outcome::Failed)) => tally.fail(format!("{SCENARIO}{name}")),
            Some((name, Outcome::Skipped(why))) => tally.skip(format!("{SCENARIO}{name}: {why}")),
            Some((name, Outcome::Late)) => tally.late.push(format!("{SCENARIO}{name}")),
            None => {}
        }
    })?;
    match end {
        End::Failure if tally.failed == 0 => tally.fail("lab scenarios: the lab itself failed"),
        End::TimedOut => tally.fail(format!("lab scenarios: not done after {} s", limit.as_secs())),
        End::Success if tally.passed + tally.skipped.len() + tally.late.len() == 0 => {
            tally.fail("lab scenarios: none were run");
        }
        _ => {}
    }
    Ok(tally)
}

/// What became of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    Passed,
    Failed,
    /// The machine lacks something for it: this.
    Skipped(&'a str),
    /// There was no time for it.
    Late,
}

/// The lab's `PASS NAME …`, `FAIL NAME …` or `SKIP NAME: WHY`.
pub(crate) fn scenario_result(line: &str) -> Option<(&str, Outcome<'_>)> {
    let (verdict, rest) = line.trim().split_once(' ')?;
    let (name, why) = rest.split_once(' ').unwrap_or((rest, ""));
    let outcome = match verdict {
        "PASS" => Outcome::Passed,
        "FAIL" => Outcome::Failed,
        "SKIP" => Outcome::Skipped(why),
        "LATE" => Outcome::Late,
        _ => return None,
    };
    Some((name.trim_end_matches(':'), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_is_understood() {
        let line = "test result: FAILED. 17 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(test_result(line), Some((17, 2)));
        assert_eq!(test_result("test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured"), Some((0, 0)));
        assert_eq!(test_result("running 3 tests"), None);
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b ... ok"), None);
    }

    #[test]
    fn programs_that_crash_are_noticed() {
        assert!(begins("running 0 tests") && begins("running 1 test"));
        assert!(!begins("running nat-to-nat") && !begins("running 2 tests at once") && !begins("test running ... ok"));
    }

    #[test]
    fn what_failed_once_is_counted_as_passed_and_what_has_no_name_is_not_run_again() {
        let mut tally = Tally { passed: 5, ..Tally::default() };
        assert!(!tally.may_be_retried(), "nothing failed");
        for name in ["a", "b", "a"] {
            tally.fail(name);
        }
        assert!(tally.may_be_retried());
        tally.was_unsteady("a");
        assert_eq!((tally.passed, tally.failed, tally.failures.as_slice()), (7, 1, &["b".to_owned()][..]));
        tally.failed += 1;
        assert!(!tally.may_be_retried(), "a failure without a name");
        let many = Tally { failed: 7, failures: vec!["a".to_owned(); 7], ..Tally::default() };
        assert!(!many.may_be_retried());
    }

    #[test]
    fn what_fails_at_the_end_is_run_once_more() {
        let mut tally = Tally::default();
        let at_its_end = Time(Instant::now());
        assert!(at_its_end.to_retry(&tally).is_none(), "nothing failed");
        tally.fail("scenario roam-public");
        assert!(at_its_end.to_retry(&tally).is_some_and(|time| !time.left().is_zero()));
        let long_over = Instant::now().checked_sub(RETRIED_FOR);
        assert!(long_over.is_none_or(|end| Time(end).to_retry(&tally).is_none()));
    }

    #[test]
    fn the_lab_is_understood() {
        assert_eq!(scenario_result("PASS roam-public (3.1 s)"), Some(("roam-public", Outcome::Passed)));
        assert_eq!(scenario_result("FAIL nat-to-nat: no byte arrived"), Some(("nat-to-nat", Outcome::Failed)));
        let skipped = "SKIP moved-process: `criu check` says: No such file or directory (os error 2)";
        let why = "`criu check` says: No such file or directory (os error 2)";
        assert_eq!(scenario_result(skipped), Some(("moved-process", Outcome::Skipped(why))));
        assert_eq!(
            scenario_result("LATE moved-socket: no time was left for it"),
            Some(("moved-socket", Outcome::Late))
        );
        assert_eq!(scenario_result("running nat-to-nat"), None);
        assert_eq!(scenario_result("PASS"), None);
    }

    #[test]
    fn what_was_skipped_is_counted_neither_as_passed_nor_as_failed() {
        let mut all = Tally::default();
        all.pass();
        assert_eq!(all.counts(), "1 passed, 0 failed");
        let mut part = Tally::default();
        part.skip("scenario moved-process: no CRIU");
        assert!(!part.may_be_retried());
        all.add(part);
        assert_eq!(all.counts().lines().count(), 2);
        assert!(all.counts().starts_with("1 was skipped") && all.counts().ends_with("\n1 passed, 0 failed"));
    }
}
