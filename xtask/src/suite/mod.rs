//! `make test`, `make test-quick`, `make test-all`: everything that exists is run, or said not to be, and has a verdict
//! in `target/test/results.json`.

mod inventory;
mod record;
mod tested;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::failure::{Failure, OnObject};
use crate::process::{self, End};
use crate::workspace::cargo;
use inventory::{Case, Kind};
use record::{Entry, Record};
use verdict::Verdict;
pub(crate) use verdict::{Outcome, scenario_result};

/// How all is built: in the profile `dev` (decision 0033), programs and tests at once, so that both have the same
/// features of their dependencies and nothing is compiled twice.
const BUILD: [&str; 6] = ["build", "--workspace", "--locked", "--lib", "--bins", "--tests"];

/// No case begins later than so long after the run has begun. `make test` takes three quarters of an hour on two
/// processors; a machine that is slower than that is let go on until continuous integration would end the run.
fn begun_within(choice: Choice) -> Duration {
    match choice {
        Choice::Quick | Choice::All => Duration::from_secs(75 * 60),
        Choice::Long => Duration::from_secs(12 * 3600),
    }
}

/// What has not been built by then is stuck.
const BUILT_WITHIN: Duration = Duration::from_secs(40 * 60);

/// A case that has not ended by then is stuck. In `make test` the longest take a minute and a half; the first fuzz
/// target is built with all of its dependencies, and a guest ends itself.
fn ended_within(case: &Case, choice: Choice) -> Duration {
    match case.kind {
        Kind::Fuzz => BUILT_WITHIN,
        Kind::Guest => Duration::from_secs(3 * 3600),
        _ if choice == Choice::Long => Duration::from_secs(3600),
        _ => Duration::from_secs(300),
    }
}

/// For how long each target is fuzzed in `make test-all`, in seconds.
const FUZZED: u64 = 75;

/// Scenarios at a time. They wait most of the time, and they measure times: so many that two processors are not quite
/// busy.
const SCENARIOS_AT_ONCE: usize = 4;

/// Unit tests at a time. More than there are processors: many wait for the kernel's clocks.
const TESTS_AT_ONCE: usize = 4;

/// With more failures than this it is not the machine, and none is run once more.
const REPEATED_MOST: usize = 12;

/// How much is asked for. Each choice has all that the one before has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Choice {
    /// `make test-quick`: all tests of the crates and some scenarios, in eight minutes.
    Quick,
    /// `make test`.
    All,
    /// `make test-all`: also what takes hours, or programs that nothing else needs.
    Long,
}

impl Choice {
    /// What `make` calls it.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Quick => "test-quick",
            Self::All => "test",
            Self::Long => "test-all",
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) choice: Choice,
    /// Only cases whose name has this in it.
    pub(crate) only: Option<String>,
    /// What the order of the cases and the seed of each is drawn from; a fresh one where there is none.
    pub(crate) seed: Option<u64>,
}

/// Runs what is asked for; whether all was well.
pub(crate) fn run(root: &Path, request: &Request) -> Result<bool, Failure> {
    let started = Instant::now();
    heading("build");
    let mut command = Command::new(cargo());
    command.args(BUILD).current_dir(root);
    if process::run(&mut command, BUILT_WITHIN, |line| println!("{line}"))? != End::Success {
        return Err(Failure::new("it does not build: nothing was tested"));
    }
    let built = started.elapsed();

    let mut cases = inventory::all(root)?;
    let mut parts: BTreeSet<&'static str> = cases.iter().map(|case| case.part).collect();
    if let Some(only) = &request.only {
        let whole = cases.iter().any(|case| case.name == *only);
        let wanted = |case: &Case| if whole { case.name == *only } else { case.name.contains(only.as_str()) };
        for case in cases.iter().filter(|case| !wanted(case)) {
            parts.remove(case.part);
        }
        cases.retain(wanted);
        if cases.is_empty() {
            return Err(Failure::new(format!(
                "nothing has '{only}' in its name; target/test/results.json has all names"
            )));
        }
    }
    let exist: BTreeSet<String> = cases.iter().map(|case| case.name.clone()).collect();
    let seed = request.seed.unwrap_or_else(fresh_seed);
    println!("{} cases; what follows is repeated with --seed {seed}", cases.len());

    let mut run = Run {
        started,
        seed,
        choice: request.choice,
        is_root: is_root()?,
        times: record::earlier_times(root),
        record: Record::default(),
    };
    let (chosen, left): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|case| case.choice <= request.choice);
    for case in left {
        let choice = case.choice.target();
        run.settle(case, Verdict::LeftTo(choice), Duration::ZERO);
    }
    run.all(chosen)?;
    run.repeat_failures()?;

    heading("summary");
    let faults = run.record.faults(&exist);
    let took = started.elapsed();
    println!("building took {} s", built.as_secs());
    if !run.is_root {
        println!("*** What needs root was skipped: most of what Whimbrel does was NOT tested.");
    }
    run.record.write(root, &faults, seed, took)?;
    if request.choice == Choice::Long {
        tested::note(root, run.record.entries(), &parts)?;
    }
    run.record.print(&faults, took);
    Ok(faults.is_empty())
}

/// A run in progress.
struct Run {
    started: Instant,
    seed: u64,
    choice: Choice,
    is_root: bool,
    /// Seconds that each case took in the run before.
    times: BTreeMap<String, f64>,
    record: Record,
}

/// Cases that are run so many at a time.
struct Lane {
    cases: Vec<Case>,
    at_once: usize,
}

impl Run {
    /// Runs what was chosen: unit tests first, then what needs root and scenarios beside each other (both wait most of
    /// the time, for clocks and for programs), then fuzzing, which keeps the processors busy.
    fn all(&mut self, chosen: Vec<Case>) -> Result<(), Failure> {
        let mut of: BTreeMap<Kind, Vec<Case>> = BTreeMap::new();
        for case in chosen {
            of.entry(case.kind).or_default().push(case);
        }
        let mut lane =
            |kind, at_once| Lane { cases: in_order(of.remove(&kind).unwrap_or_default(), self.seed), at_once };
        let unit = lane(Kind::Unit, TESTS_AT_ONCE);
        let root = lane(Kind::Root, 1);
        let scenarios = lane(Kind::Scenario, SCENARIOS_AT_ONCE);
        let fuzz = lane(Kind::Fuzz, 1);
        let guests = lane(Kind::Guest, 1);
        let mut groups = vec![
            ("other kernels and processors", vec![guests]),
            ("fuzzing", vec![fuzz]),
            ("tests that need root, and scenarios of the lab", vec![root, scenarios]),
            ("unit tests", vec![unit]),
        ];
        while let Some((name, lanes)) = groups.pop() {
            let later = groups.iter().map(|(_, lanes)| self.expected(lanes)).sum();
            self.group(name, lanes, later)?;
        }
        Ok(())
    }

    /// Runs lanes beside each other; what is run after them takes about `later`.
    fn group(&mut self, name: &str, lanes: Vec<Lane>, later: Duration) -> Result<(), Failure> {
        let count: usize = lanes.iter().map(|lane| lane.cases.len()).sum();
        if count == 0 {
            return Ok(());
        }
        heading(name);
        let (expected, begun) = (self.expected(&lanes), Instant::now());
        let terms = self.terms(self.started + begun_within(self.choice));
        let (sender, results) = mpsc::channel();
        let waiting: Vec<(Mutex<std::vec::IntoIter<Case>>, usize)> =
            lanes.into_iter().map(|lane| (Mutex::new(lane.cases.into_iter()), lane.at_once)).collect();
        thread::scope(|scope| {
            for (lane, at_once) in &waiting {
                for _ in 0..*at_once {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        loop {
                            let next = lane.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
                            let Some(case) = next else { return };
                            let started = Instant::now();
                            let outcome = begin(&case, terms);
                            if sender.send((case, started.elapsed(), outcome)).is_err() {
                                return;
                            }
                        }
                    });
                }
            }
            drop(sender);
            for (done, (case, took, outcome)) in (1_u32..).zip(results) {
                let Attempt { verdict, output } = outcome?;
                let part = f64::from(done) / count as f64;
                // What earlier runs say of this machine's speed is worth less than what this one has seen.
                let whole = if part < 0.25 { expected } else { begun.elapsed().div_f64(part) };
                let ahead = later + whole.mul_f64(1.0 - part);
                let clock = self.started.elapsed().as_secs();
                println!(
                    "[{done}/{count}, {}:{:02}, {} min left] {} {} ({:.1} s)",
                    clock / 60,
                    clock % 60,
                    ahead.as_secs().div_ceil(60),
                    verdict.word(),
                    case.name,
                    took.as_secs_f64()
                );
                if verdict.is_failure() {
                    println!("    --seed {}; it printed:", seed_of(&case, self.seed));
                    for line in end_of(&case, &output) {
                        println!("    {line}");
                    }
                } else if let Verdict::Skipped(why) = &verdict {
                    println!("    {why}");
                }
                self.settle(case, verdict, took);
            }
            Ok(())
        })
    }

    /// How long lanes take beside each other, by what their cases took in the run before.
    fn expected(&self, lanes: &[Lane]) -> Duration {
        let usual = |kind| match kind {
            Kind::Unit => 0.5,
            Kind::Root => 2.0,
            Kind::Scenario => 16.0,
            Kind::Fuzz => 20.0,
            Kind::Guest => 2400.0,
        };
        let time = |case: &Case| self.times.get(&case.name).copied().unwrap_or(usual(case.kind));
        let seconds = |lane: &Lane| lane.cases.iter().map(time).sum::<f64>() / lane.at_once as f64;
        let longest = lanes.iter().map(seconds).fold(0.0, f64::max);
        Duration::try_from_secs_f64(longest).unwrap_or_default()
    }

    fn terms(&self, last: Instant) -> Terms {
        Terms { seed: self.seed, choice: self.choice, is_root: self.is_root, last }
    }

    fn settle(&mut self, case: Case, verdict: Verdict, took: Duration) {
        let seed = seed_of(&case, self.seed);
        self.record.add(Entry { case, seed, took, verdict, first: None });
    }

    /// Runs once more what failed, each alone and with the seed that it had: many measure times, and the machine may be
    /// busy with other things. That it failed at first stays in the record.
    fn repeat_failures(&mut self) -> Result<(), Failure> {
        let failed: Vec<Case> = self
            .record
            .entries()
            .iter()
            .filter(|entry| entry.verdict.may_be_repeated())
            .map(|entry| entry.case.clone())
            .collect();
        if failed.is_empty() {
            return Ok(());
        }
        heading("once more, what failed");
        if failed.len() > REPEATED_MOST {
            println!("{} failed: that is not the machine, and none is run again", failed.len());
            return Ok(());
        }
        let terms = self.terms(self.started + begun_within(self.choice) + Duration::from_secs(300));
        for case in failed {
            let started = Instant::now();
            let Attempt { verdict, output } = begin(&case, terms)?;
            if matches!(verdict, Verdict::NotBegun(_)) {
                println!("there is no time left to run {} again", case.name);
                continue;
            }
            println!("{} {} ({:.1} s)", verdict.word(), case.name, started.elapsed().as_secs_f64());
            if verdict.is_failure() {
                end_of(&case, &output).for_each(|line| println!("    {line}"));
            }
            self.record.repeat(&case.name, verdict, started.elapsed());
        }
        Ok(())
    }
}

/// What running a case once came to.
struct Attempt {
    verdict: Verdict,
    output: String,
}

/// What holds for each case of a run.
#[derive(Clone, Copy, Debug)]
struct Terms {
    seed: u64,
    choice: Choice,
    is_root: bool,
    /// None begins later.
    last: Instant,
}

/// Runs a case, unless it is too late or this user cannot.
fn begin(case: &Case, Terms { seed, choice, is_root, last }: Terms) -> Result<Attempt, Failure> {
    let without = |verdict| Ok(Attempt { verdict, output: String::new() });
    if !is_root && matches!(case.kind, Kind::Root | Kind::Scenario | Kind::Guest) {
        return without(Verdict::Skipped("it needs root".to_owned()));
    }
    if Instant::now() > last {
        return without(Verdict::NotBegun("no time was left for it".to_owned()));
    }
    let seed = seed_of(case, seed);
    let mut command = Command::new(&case.program);
    command.current_dir(&case.directory);
    match case.arguments.as_slice() {
        [short, target] if case.kind == Kind::Fuzz && short == "short" && choice == Choice::Long => {
            command.arg(target).arg(format!("-max_total_time={FUZZED}"));
        }
        arguments => {
            command.args(arguments);
        }
    }
    if choice == Choice::Long && case.part == inventory::SIMULATOR {
        command.env("WHIMBREL_SIM_LONG", "1");
    }
    match case.kind {
        Kind::Scenario => command.arg(format!("--seed={seed}")),
        // libFuzzer's own.
        Kind::Fuzz => command.arg(format!("-seed={seed}")),
        // Random tests draw from it; the simulator's count theirs from 1.
        Kind::Unit | Kind::Root => command.env("PROPTEST_RNG_SEED", seed.to_string()),
        Kind::Guest => &mut command,
    };
    // As `cargo test` does.
    command.env("CARGO_MANIFEST_DIR", &case.directory);
    let (end, output) = process::capture(command, ended_within(case, choice))?;
    let verdict = match case.kind {
        Kind::Scenario => {
            let name = case.name.strip_prefix(inventory::SCENARIO).unwrap_or(&case.name);
            verdict::of_scenario(end, name, &output)
        }
        Kind::Unit | Kind::Root if case.arguments.iter().any(|argument| argument == "--exact") => {
            verdict::of_test(end, &output)
        }
        Kind::Unit | Kind::Root | Kind::Fuzz | Kind::Guest => verdict::of_status(end, &output),
    };
    Ok(Attempt { verdict, output })
}

/// The seed of a case: the same each time that it is run with the run's seed.
fn seed_of(case: &Case, seed: u64) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, &case.name)) & 0xffff_ffff
}

/// Cases in an order by lot, so that it is not always the same that run beside each other.
fn in_order(mut cases: Vec<Case>, seed: u64) -> Vec<Case> {
    cases.sort_by_cached_key(|case| seed_of(case, seed));
    cases
}

/// The end of what a case printed: what a person needs to see at once. Of a guest all, since many tests run there, and
/// it takes an hour to have it again.
fn end_of<'a>(case: &Case, output: &'a str) -> impl Iterator<Item = &'a str> {
    const SHOWN: usize = 120;
    let shown = if case.kind == Kind::Guest { usize::MAX } else { SHOWN };
    let lines = output.lines().count();
    output.lines().skip(lines.saturating_sub(shown))
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ (u64::from(std::process::id()) << 12) ^ now.as_secs()
}

pub(crate) fn heading(name: &str) {
    println!("\n== {name}");
}

fn is_root() -> Result<bool, Failure> {
    let status = fs::read_to_string("/proc/self/status").failed("read", "/proc/self/status")?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    Ok(uids.split_whitespace().nth(1) == Some("0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, kind: Kind, program: &str, arguments: &[&str]) -> Case {
        Case {
            name: name.to_owned(),
            kind,
            choice: Choice::All,
            part: "crates",
            program: program.into(),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            directory: ".".into(),
        }
    }

    fn run_of(is_root: bool) -> Run {
        Run {
            started: Instant::now(),
            seed: 1,
            choice: Choice::All,
            is_root,
            times: BTreeMap::new(),
            record: Record::default(),
        }
    }

    fn verdicts(run: &Run) -> Vec<(&str, &'static str)> {
        let mut all: Vec<_> =
            run.record.entries().iter().map(|entry| (entry.case.name.as_str(), entry.verdict.word())).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn each_case_gets_a_verdict_whatever_its_program_does() {
        let mut run = run_of(true);
        let shell = |name: &str, script: &str| case(name, Kind::Scenario, "sh", &["-c", script]);
        let cases = vec![
            shell("scenario dies", "kill -9 $$"),
            shell("scenario fails", "echo 'FAIL fails: no byte arrived'; exit 1"),
            shell("scenario lacks", "echo 'SKIP lacks: no CRIU'"),
            shell("scenario passes", "echo 'PASS passes (0.1 s)'"),
        ];
        run.all(cases).unwrap();
        let words = [
            ("scenario dies", "panicked"),
            ("scenario fails", "failed"),
            ("scenario lacks", "skipped"),
            ("scenario passes", "passed"),
        ];
        assert_eq!(verdicts(&run), words);
    }

    #[test]
    fn a_repetition_has_the_seed_of_the_first_run() {
        let file = std::env::temp_dir().join(format!("whimbrel-suite-{}", std::process::id()));
        let script = format!("echo \"$PROPTEST_RNG_SEED\" >>{0}; [ \"$(wc -l <{0})\" = 2 ]", file.display());
        let mut run = run_of(false);
        run.all(vec![case("draws", Kind::Unit, "sh", &["-c", &script])]).unwrap();
        run.repeat_failures().unwrap();
        let seeds = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let seeds: Vec<&str> = seeds.lines().collect();
        assert!(seeds.len() == 2 && seeds[0] == seeds[1], "{seeds:?}");
        let entry = &run.record.entries()[0];
        assert!(entry.verdict == Verdict::Passed && entry.first.is_some());
    }

    #[test]
    fn what_needs_root_is_skipped_without_and_what_comes_too_late_is_not_begun() {
        let mut run = run_of(false);
        run.all(vec![case("scenario a", Kind::Scenario, "true", &[]), case("b", Kind::Root, "true", &[])]).unwrap();
        assert_eq!(verdicts(&run), [("b", "skipped"), ("scenario a", "skipped")]);
        let long_ago = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        let attempt = begin(&case("c", Kind::Unit, "true", &[]), run.terms(long_ago)).unwrap();
        assert!(matches!(attempt.verdict, Verdict::NotBegun(_)));
    }

    #[test]
    fn the_order_is_drawn_from_the_seed() {
        let cases = || (0..20).map(|n| case(&n.to_string(), Kind::Unit, "true", &[])).collect::<Vec<_>>();
        assert_eq!(in_order(cases(), 3), in_order(cases(), 3));
        assert_ne!(in_order(cases(), 3), in_order(cases(), 4));
    }
}
