//! Idle connections that change hosts together: how long it takes until all are there, and how long the longest was at rest.

use std::time::Duration;

use whimbrel_lab::{EchoServer, Many};

use super::phases;
use super::stage::{Far, NAMES, Stage};
use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

const COUNTS: [usize; 4] = [1, 100, 1_000, 10_000];
/// ms for the last of [`COUNTS`].
const BOUND: f64 = 1_000.0;
/// Until all have answered once more after the move.
const ANSWER: Duration = Duration::from_secs(20);

/// What came of one run, in ms.
struct Came {
    /// From the request until all were decided.
    all: f64,
    /// The longest time that a socket was at rest: from before it was frozen until after it was thawed elsewhere.
    rest: f64,
    /// CPU time of the two daemons, ms.
    cpu: [f64; 2],
}

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
    let mut report = Report::new("move-crowd");
    for far in Far::ALL {
        for count in COUNTS {
            let id = format!("{}_{count}", far.name());
            if !id.contains(&options.only) || options.quick && count > 1_000 {
                continue;
            }
            let [mut all, mut rest, mut cpu] = [const { Vec::new() }; 3];
            for _ in 0..options.runs(3, 1) {
                let came = one_run(options, far, count).map_err(|error| format!("{id}: {error}"))?;
                eprintln!(
                    "{id}: {:.1} ms for all, {:.1} at rest at most, CPU {:.0} + {:.0} ms",
                    came.all, came.rest, came.cpu[0], came.cpu[1]
                );
                all.push(came.all);
                rest.push(came.rest);
                cpu.push(came.cpu.iter().sum::<f64>() * 1e3 / count as f64);
            }
            let [all, rest, cpu] = [all, rest, cpu].map(|values| values.into_iter().collect::<Samples>());
            let figure = Figure::new(&format!("{id}_all"), "ms", &all);
            report.add(if count == COUNTS[3] { figure.bound(Bound::AtMost(BOUND)) } else { figure });
            report.add(Figure::new(&format!("{id}_rest"), "ms", &rest));
            report.add(Figure::new(&format!("{id}_cpu_each"), "us", &cpu));
        }
    }
    Ok(report)
}

fn one_run(options: &Options, far: Far, count: usize) -> Result<Came> {
    // The times of every op are in that log; it adds some microseconds to each.
    let mut stage = Stage::build(options, far, Some("debug"))?;
    let server = |place: usize| EchoServer::receiving(&stage.daemons[place], stage.addresses[place], NAMES[place]);
    let (there, _other) = (server(0)?, server(1)?);
    let mut many = Many::open(&stage.far, &there, count)?;
    answers(&mut many, count, "before the move")?;
    stage.wait_introduced(count)?;
    let used = |stage: &mut Stage| -> Result<[f64; 2]> {
        let [desk, guest] = &mut stage.daemons;
        Ok([desk.process().cpu_seconds()?, guest.process().cpu_seconds()?])
    };
    let before = used(&mut stage)?;
    let (asked, decided, moved) = stage.give(0, &there.address().to_string(), NAMES[1])?;
    let after = used(&mut stage)?;
    if moved != count {
        return Err(format!("{moved} connections moved").into());
    }
    answers(&mut many, count, "after the move")?;
    options.setup.keep(&format!("crowd-{}-{count}", far.name()), &stage.lab)?;
    let rest = phases::read(&stage.lab)?.values().filter_map(phases::Ops::rest).max().unwrap_or_default();
    Ok(Came {
        all: decided.since(asked).as_secs_f64() * 1e3,
        rest: rest as f64 / 1e3,
        cpu: [0, 1].map(|place| (after[place] - before[place]) * 1e3),
    })
}

fn answers(many: &mut Many, count: usize, when: &str) -> Result<()> {
    let answered = many.echo(ANSWER)?.answered();
    if answered == count { Ok(()) } else { Err(format!("{answered} of {count} connections answered {when}").into()) }
}
