//! How soon a download goes on after the laptop has moved.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use whimbrel_lab::{FlowPair, MonoTime, PairOptions, Random, Side, Whimbrel, wait_for};

use super::baseline::{self, WireGuard};
use super::stage::{Access, Move, Moved, Stage, Target};
use super::turns::{Turn, Turns};
use super::{Options, Setup};
use crate::report::{Bound, Figure, Report, Samples};
use crate::{Result, machine};

/// Of the download, bits a second.
const RATE: u64 = 50_000_000;
/// Baselines scatter little beside what they are compared with, so they are measured in every so manyth round.
const BASELINE_EVERY: usize = 4;
/// Runs that are under way at once; one of them measures, the others wait for long outages to end.
const LANES: usize = 6;
/// How long a run has the machine, at most, before it waits for anything long.
const RUN: Duration = Duration::from_secs(9);
/// For how long the download is watched after it goes on.
const AFTER: Duration = Duration::from_millis(1500);
/// When a download is taken not to go on any more.
const PATIENCE: Duration = Duration::from_secs(120);
const LONG: Duration = Duration::from_secs(20);

const ROUND_TRIPS: [u64; 2] = [40, 200];
const TARGETS: [Target; 2] = [Target::Public, Target::Nat];
const MOVES: [Move; 5] = [Move::AtOnce, Move::Outage(1), Move::Outage(3), Move::Outage(30), Move::Overlap];

/// Whose hand-off it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Whimbrel {
        kick: bool,
    },
    /// Told at once, it opens another connection.
    Application,
    /// wireguard-go with a keepalive every second.
    WireGuard,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Whimbrel { kick: true } => "whimbrel",
            Self::Whimbrel { kick: false } => "whimbrel without kick",
            Self::Application => "application that reconnects",
            Self::WireGuard => "wireguard-go",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    /// ms
    round_trip: u64,
    target: Target,
    how: Move,
    subject: Subject,
}

impl Case {
    /// The beginning of the names of its figures.
    fn id(self) -> String {
        let far = if self.round_trip == ROUND_TRIPS[0] { String::new() } else { format!("rtt{}_", self.round_trip) };
        format!("{far}{}_{}", self.target.name(), self.how.name())
    }

    fn title(self) -> String {
        format!("{} {}", self.id(), self.subject.name())
    }
}

/// What is measured, and how seldom: in every so manyth round.
fn cases(options: &Options) -> Vec<(Case, usize)> {
    let mut cases = Vec::new();
    for round_trip in ROUND_TRIPS {
        let far = round_trip != ROUND_TRIPS[0];
        for target in TARGETS {
            for how in MOVES {
                let skipped = matches!(how, Move::Outage(3 | 30)) || (far && how != Move::AtOnce);
                if options.quick && skipped {
                    continue;
                }
                let mut add = |subject, every| {
                    let case = Case { round_trip, target, how, subject };
                    if case.title().contains(&options.only) {
                        cases.push((case, every));
                    }
                };
                add(Subject::Whimbrel { kick: true }, if far { 2 } else { 1 });
                if how != Move::Overlap {
                    add(Subject::Application, BASELINE_EVERY);
                }
                if !far {
                    add(Subject::Whimbrel { kick: false }, BASELINE_EVERY);
                }
                if !far && !matches!(how, Move::Outage(3 | 30)) {
                    add(Subject::WireGuard, BASELINE_EVERY);
                }
            }
        }
    }
    cases
}

/// What one run gave.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// From the new address being usable (with overlap: from the old one being gone) to the first new byte, ms. `None`:
    /// it never came.
    first: Option<f64>,
    /// The longest time without a byte, ms.
    stall: f64,
    /// The same in the second before the move.
    before: f64,
    /// Segments that the server sent again.
    retransmitted: u32,
    /// What carried the connection in the end.
    carrier: Option<whimbrel_ipc::Carrier>,
}

/// Samples of one case.
#[derive(Clone, Debug, Default)]
struct Series {
    first: Samples,
    stall: Samples,
    before: Samples,
    retransmitted: Samples,
    lost: usize,
}

impl Series {
    fn absorb(&mut self, outcome: &Outcome) {
        self.first.push(outcome.first.unwrap_or(PATIENCE.as_secs_f64() * 1e3));
        self.stall.push(outcome.stall);
        self.before.push(outcome.before);
        self.retransmitted.push(f64::from(outcome.retransmitted));
        self.lost += usize::from(outcome.first.is_none());
    }
}

/// Measures, reports, and fails if a run could not be made.
///
/// # Errors
/// When hosts cannot be set up, or a run failed for another reason than that its connection was lost.
pub fn run(options: &Options) -> Result<()> {
    measure(options)?.finish()?;
    Ok(())
}

pub(super) fn measure(options: &Options) -> Result<Report> {
    machine::warn_if_busy();
    let rounds = options.runs(20, 2);
    let cases = cases(options);
    let jobs: Mutex<VecDeque<(usize, Case)>> = Mutex::new(plan(&cases, rounds));
    let results: Mutex<Vec<(Case, Outcome)>> = Mutex::default();
    let failures: Mutex<Vec<String>> = Mutex::default();
    let turns = Turns::default();
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let mut turn = turns.take(RUN);
                    let job = locked(&jobs).pop_front();
                    let Some((round, case)) = job else { return };
                    let name = case.title();
                    match run_case(&options.setup, case, round, &mut turn) {
                        Ok(outcome) => {
                            eprintln!("{}/{rounds} {name}: {outcome}", round + 1);
                            locked(&results).push((case, outcome));
                        }
                        Err(error) => {
                            eprintln!("{}/{rounds} {name}: FAILED: {error}", round + 1);
                            locked(&failures).push(format!("{name}: {error}"));
                        }
                    }
                }
            });
        }
    });
    let mut series: BTreeMap<(String, Subject), Series> = BTreeMap::new();
    for (case, outcome) in locked(&results).iter() {
        series.entry((case.id(), case.subject)).or_default().absorb(outcome);
    }
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(report(&cases, &series, failures.len()))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All runs: round after round, each in another order, so that what changes on the machine meets all cases alike.
fn plan(cases: &[(Case, usize)], rounds: usize) -> VecDeque<(usize, Case)> {
    let mut random = Random::new(1);
    let mut jobs = VecDeque::new();
    for round in 0..rounds {
        let mut of_round: Vec<Case> =
            cases.iter().filter(|(_, every)| round % every == 0).map(|(case, _)| *case).collect();
        for last in (1..of_round.len()).rev() {
            of_round.swap(last, random.below(last as u64 + 1) as usize);
        }
        jobs.extend(of_round.into_iter().map(|case| (round, case)));
    }
    jobs
}

fn run_case(setup: &Setup, case: Case, round: usize, turn: &mut Turn<'_>) -> Result<Outcome> {
    let round_trip = Duration::from_millis(case.round_trip);
    let name = format!("{}-{round}", case.title().replace(' ', "-"));
    let mut stage = Stage::build(setup, &name, round_trip, case.target, Access::Emulated)?;
    let result = run_on(&mut stage, setup, case, turn);
    setup.keep(&name, &stage.lab)?;
    stage.lab.check_links()?;
    result
}

fn run_on(stage: &mut Stage, setup: &Setup, case: Case, turn: &mut Turn<'_>) -> Result<Outcome> {
    let mut daemons: Option<[Whimbrel; 2]> = None;
    let mut tunnel = None;
    let mut address = stage.address;
    match case.subject {
        Subject::Whimbrel { kick } => daemons = Some(stage.daemons(&format!("kick = {kick}\n"))?),
        Subject::Application => {}
        Subject::WireGuard => {
            tunnel = Some(WireGuard::start(
                &setup.wireguard_go,
                [&stage.laptop, &stage.server],
                stage.address,
                stage.lab.id(),
            )?);
            address = WireGuard::SERVER;
        }
    }
    let options = PairOptions { up: Some(0), down: Some(RATE), ..PairOptions::default() };
    let mut pair = FlowPair::tcp(&stage.laptop, &stage.server, address, &options)?;
    if let Some([laptop, _]) = &daemons {
        laptop.wait_introduced(&pair, LONG)?;
    }
    wait_for(LONG * 3, "the download has its rate", || {
        let before = (MonoTime::now(), pair.status(Side::Client)?.received);
        std::thread::sleep(Duration::from_millis(400));
        let bits = (pair.status(Side::Client)?.received - before.1) as f64 * 8.0;
        Ok((bits / MonoTime::now().since(before.0).as_secs_f64() > 0.95 * RATE as f64).then_some(()))
    })?;
    let sent_again = |pair: &mut FlowPair| -> Result<u32> {
        Ok(pair.status(Side::Server)?.tcp.map_or(0, |info| info.total_retransmits))
    };
    let retransmitted = sent_again(&mut pair)?;
    let (moved, first) = match case.subject {
        Subject::Application => {
            let (laptop, changes, server) = (stage.laptop.clone(), stage.changes(), stage.server.clone());
            let to = (&server, stage.address);
            let (moved, first) = baseline::reconnect(&laptop, &changes, to, || stage.go(case.how, turn))?;
            (moved, Some(first))
        }
        _ => {
            let moved = stage.go(case.how, turn)?;
            let first = wait_for_byte(&mut pair, moved, turn)?;
            (moved, first)
        }
    };
    // The move is complete when what it set off has been seen.
    let seen = first.map_or(AFTER, |first| MonoTime::now().since(first));
    std::thread::sleep(AFTER.saturating_sub(seen));
    let mut outcome = judge(&mut pair, moved, first, case.subject)?;
    if case.subject != Subject::Application {
        outcome.retransmitted = sent_again(&mut pair)? - retransmitted;
    }
    if let Some([laptop, server]) = &daemons {
        if setup.keep.is_some() {
            keep_events(laptop, server, moved)?;
        }
        outcome.carrier = laptop.connection(pair.local(), pair.peer())?.and_then(|connection| connection.carrier);
    }
    drop(tunnel);
    Ok(outcome)
}

/// Writes what the daemons say happened beside their logs, in ms after the new address was usable.
fn keep_events(laptop: &Whimbrel, server: &Whimbrel, moved: Moved) -> Result<()> {
    let mut lines = Vec::new();
    for daemon in [laptop, server] {
        let host = daemon.host();
        for event in daemon.events(0)? {
            let at = event.monotonic_ms as f64 - moved.usable.0 as f64 / 1e6;
            lines.push((at, format!("{at:9.1} {:<7} {}: {}", host.name(), event.kind, event.sentence)));
        }
    }
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    let text: String = lines.into_iter().map(|(_, line)| line + "\n").collect();
    Ok(std::fs::write(laptop.host().dir().join("events"), text)?)
}

/// Waits until something arrived after the move. Others have the machine when that takes long.
fn wait_for_byte(pair: &mut FlowPair, moved: Moved, turn: &mut Turn<'_>) -> Result<Option<MonoTime>> {
    // Nothing is asked of the receiving program while its first byte is due.
    std::thread::sleep(AFTER);
    if let Some(first) = first_arrival(pair, moved)? {
        return Ok(Some(first));
    }
    turn.away(|| -> Result<Option<MonoTime>> {
        let start = MonoTime::now();
        while MonoTime::now().since(start) < PATIENCE {
            std::thread::sleep(Duration::from_millis(500));
            if let Some(first) = first_arrival(pair, moved)? {
                return Ok(Some(first));
            }
        }
        Ok(None)
    })
}

fn first_arrival(pair: &mut FlowPair, moved: Moved) -> Result<Option<MonoTime>> {
    Ok(pair.arrivals(Side::Client, moved.left)?.first().map(|(at, _)| *at))
}

fn judge(pair: &mut FlowPair, moved: Moved, first: Option<MonoTime>, subject: Subject) -> Result<Outcome> {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let since = MonoTime(moved.began.0.saturating_sub(1_000_000_000));
    let arrivals: Vec<MonoTime> = pair.arrivals(Side::Client, since)?.into_iter().map(|(at, _)| at).collect();
    let gaps = |late: bool| {
        let gaps = arrivals.windows(2).filter(|pair| (pair[1] >= moved.began) == late).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default()
    };
    let stall = match (subject, first, arrivals.last()) {
        // Its new connection brings the next byte.
        (Subject::Application, Some(first), Some(last)) => first.since(*last),
        (_, None, Some(last)) => MonoTime::now().since(*last),
        _ => gaps(true),
    };
    Ok(Outcome {
        first: first.map(|first| ms(first.since(moved.left))),
        stall: ms(stall),
        before: ms(gaps(false)),
        retransmitted: 0,
        carrier: None,
    })
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.first {
            Some(first) => write!(f, "first byte after {first:.1} ms")?,
            None => write!(f, "no byte any more")?,
        }
        write!(f, ", stall {:.1} ms, {} retransmitted", self.stall, self.retransmitted)?;
        match self.carrier {
            Some(carrier) => write!(f, ", {carrier}"),
            None => Ok(()),
        }
    }
}

fn report(cases: &[(Case, usize)], series: &BTreeMap<(String, Subject), Series>, failures: usize) -> Report {
    let mut report = Report::new("roam-handoff");
    let mut lost = 0;
    for (case, _) in cases.iter().filter(|(case, _)| case.subject == Subject::Whimbrel { kick: true }) {
        let id = case.id();
        let of = |subject| series.get(&(id.clone(), subject));
        let Some(kicked) = of(case.subject) else { continue };
        let application = of(Subject::Application);
        let beside = |name: &str, samples: &Samples, baseline: Option<&Samples>| match baseline {
            Some(baseline) => Figure::against(name, "ms", samples, baseline),
            None => Figure::new(name, "ms", samples),
        };
        let far = case.round_trip != ROUND_TRIPS[0];
        lost += kicked.lost;
        if case.how == Move::Overlap {
            // The delays of both paths are equal.
            let stall = beside(&format!("{id}_stall"), &kicked.stall, Some(&kicked.before)).bound(Bound::AtMost(5.0));
            report.add(stall);
            let most = kicked.retransmitted.percentile(100.0);
            let name = format!("{id}_retransmitted_most");
            let figure = Figure::from_value(&name, "segments", most, &kicked.retransmitted);
            report.add(figure.bound(Bound::AtMost(0.0)));
        } else {
            let bound = if far { 2.0 * case.round_trip as f64 + 40.0 } else { 80.0 };
            let first = beside(&format!("{id}_first"), &kicked.first, application.map(|series| &series.first));
            report.add(first.bound(Bound::AtMost(bound)));
            let high =
                Figure::from_value(&format!("{id}_first_p95"), "ms", kicked.first.percentile(95.0), &kicked.first);
            report.add(if far { high } else { high.bound(Bound::AtMost(150.0)) });
            report.add(beside(&format!("{id}_stall"), &kicked.stall, application.map(|series| &series.stall)));
        }
        for (subject, suffix) in [(Subject::Whimbrel { kick: false }, "nokick"), (Subject::WireGuard, "wireguard")] {
            if let Some(other) = of(subject) {
                report.add(Figure::new(&format!("{id}_{suffix}_first"), "ms", &other.first));
                report.add(Figure::new(&format!("{id}_{suffix}_stall"), "ms", &other.stall));
            }
        }
    }
    let count = |value: usize| [value as f64].into_iter().collect::<Samples>();
    report.add(Figure::new("connections_lost", "connections", &count(lost)).bound(Bound::AtMost(0.0)));
    report.add(Figure::new("runs_failed", "runs", &count(failures)).bound(Bound::AtMost(0.0)));
    report
}
