//! How long a far end hears nothing of a connection that carries a byte every 100 µs while it changes hosts, again and
//! again.

use std::time::Duration;

use whimbrel_lab::{MonoTime, Ticker, TickerFar};

use super::phases;
use super::stage::{Far, LONG, NAMES, Stage};
use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

const EVERY: Duration = Duration::from_micros(100);
/// ms; the VU prototype has 18.4, CRIU 104.
const MEDIAN: f64 = 2.0;
const SLOWEST: f64 = 10.0;
/// Bytes between two moves.
const BETWEEN: u64 = 300;
/// Moves of one connection, before there is a new one.
const TURN: usize = 20;

/// The phases of a move, in their order: each begins where the one before ends.
const PHASES: [&str; 8] = ["prepare", "freeze", "dump", "transfer", "restore", "commit", "thaw", "first_byte"];

/// Measures and reports.
///
/// # Errors
/// When something could not be measured.
pub fn run(options: &Options) -> Result<()> {
    Ok(measure(options)?.finish().map(drop)?)
}

/// What was measured.
pub(super) fn measure(options: &Options) -> Result<Report> {
    warn_if_busy();
    let moves = options.runs(200, 20);
    let mut gaps = [Samples::default(), Samples::default()];
    let mut of_phases = [const { Vec::new() }; 2];
    let turns = moves.div_ceil(TURN);
    for turn in 0..=turns {
        for (far, (gaps, phases)) in Far::ALL.into_iter().zip(gaps.iter_mut().zip(&mut of_phases)) {
            if !far.name().contains(&options.only) {
                continue;
            }
            if turn < turns {
                let came = back_and_forth(options, far, None)?;
                came.iter().for_each(|came| gaps.push(milliseconds(came.gap.1, came.gap.0)));
                eprintln!("{}/{turns} {}: median {:.2} ms so far", turn + 1, far.name(), gaps.median());
            } else {
                // By itself: what the daemons log takes time.
                *phases = back_and_forth(options, far, Some("debug"))?;
            }
        }
    }
    let mut report = Report::new("move-gap");
    for (far, (gaps, came)) in Far::ALL.into_iter().zip(gaps.iter().zip(&of_phases)) {
        let name = far.name();
        if gaps.values().is_empty() {
            continue;
        }
        report.add(Figure::new(&format!("{name}_median"), "ms", gaps).bound(Bound::AtMost(MEDIAN)));
        let slowest = Figure::from_value(&format!("{name}_p99"), "ms", gaps.percentile(99.0), gaps);
        report.add(slowest.bound(Bound::AtMost(SLOWEST)));
        report.add(Figure::from_value(&format!("{name}_most"), "ms", gaps.percentile(100.0), gaps));
        for (phase, label) in PHASES.into_iter().enumerate() {
            let took: Samples = came.iter().filter_map(|came| came.phases.map(|phases| phases[phase])).collect();
            report.add(Figure::new(&format!("{name}_phase_{label}"), "ms", &took));
        }
    }
    Ok(report)
}

/// What came of one move.
struct Came {
    /// The last byte before the move, the first after it.
    gap: (MonoTime, MonoTime),
    asked: MonoTime,
    decided: MonoTime,
    /// How long each of [`PHASES`] took, in ms, where the daemons have logged it.
    phases: Option<[f64; PHASES.len()]>,
}

/// Moves one connection [`TURN`] times. Every byte is checked.
fn back_and_forth(options: &Options, far: Far, log: Option<&str>) -> Result<Vec<Came>> {
    let stage = Stage::build(options, far, log)?;
    let ticker = |place: usize| Ticker::start(&stage.daemons[place], stage.addresses[place], NAMES[place], EVERY);
    let mut tickers = [ticker(0)?, ticker(1)?];
    let mut end = TickerFar::connect(&stage.far, tickers[0].address())?;
    end.wait_progress(BETWEEN, LONG)?;
    stage.wait_introduced(1)?;
    let from = end.local().to_string();
    let (mut all, mut until) = (Vec::new(), 0);
    for number in 0..TURN {
        let (donor, acceptor) = (number % 2, 1 - number % 2);
        end.wait_progress(BETWEEN, LONG)?;
        let (asked, decided, moved) = stage.give(donor, &from, NAMES[acceptor])?;
        if moved != 1 {
            return Err(format!("{moved} connections moved instead of one").into());
        }
        let ticked = tickers[donor].ticked()?;
        end.wait_progress(BETWEEN, LONG)?;
        if ticked.0 != until {
            return Err(format!("a sender began with byte {} after byte {until}", ticked.0).into());
        }
        until = ticked.1;
        let gap = end.longest_gap(asked)?.ok_or("nothing has arrived")?;
        all.push(Came { gap, asked, decided, phases: None });
    }
    if log.is_some() {
        let moves = phases::read(&stage.lab)?;
        for came in &mut all {
            let span = came.asked.0 / 1000..came.decided.0 / 1000 + 1;
            let of = moves.values().find(|ops| ops.get("freeze").is_some_and(|freeze| span.contains(&freeze.began)));
            came.phases = of.and_then(|ops| split(ops, came));
        }
    }
    Ok(all)
}

fn split(ops: &phases::Ops, came: &Came) -> Option<[f64; PHASES.len()]> {
    let [freeze, dump, restore, thaw] = ["freeze", "dump", "restore", "thaw"].map(|kind| ops.get(kind));
    let (freeze, dump, restore, thaw) = (freeze?, dump?, restore?, thaw?);
    let ends = [
        freeze.began,
        freeze.ended,
        dump.ended,
        restore.began,
        restore.ended,
        thaw.began,
        thaw.ended,
        (came.gap.1.0 / 1000).max(thaw.ended),
    ];
    let mut before = came.asked.0 / 1000;
    Some(ends.map(|end| {
        let took = end.saturating_sub(before) as f64 / 1e3;
        before = end;
        took
    }))
}

fn milliseconds(end: MonoTime, start: MonoTime) -> f64 {
    end.since(start).as_secs_f64() * 1e3
}
