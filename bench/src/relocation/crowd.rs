//! Idle connections that change hosts together: how long it takes until all are there, and how long the longest was at
//! rest.

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
    /// The longest time that a socket was at rest: from before it was frozen until after it was thawed elsewhere. Where
    /// the daemons have logged each step, which takes them as long as some of these.
    rest: Option<f64>,
    /// CPU time of the daemons: donor, acceptor, and the far end's, ms.
    cpu: [f64; 3],
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
            let runs = options.runs(3, 1);
            for run in 0..2 * runs {
                let log = (run >= runs).then_some("debug");
                let came = one_run(options, far, count, log).map_err(|error| format!("{id}: {error}"))?;
                let at_rest = came.rest.map_or(String::new(), |rest| format!(" and logged, {rest:.1} at rest at most"));
                eprintln!("{id}: {:.1} ms for all{at_rest}, CPU {:.0?} ms", came.all, came.cpu);
                match came.rest {
                    Some(longest) => rest.push(longest),
                    None => {
                        all.push(came.all);
                        cpu.push(came.cpu.iter().sum::<f64>() * 1e3 / count as f64);
                    }
                }
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

fn one_run(options: &Options, far: Far, count: usize, log: Option<&str>) -> Result<Came> {
    let mut stage = Stage::build(options, far, log)?;
    let server = |place: usize| EchoServer::receiving(&stage.daemons[place], stage.addresses[place], NAMES[place]);
    let (there, _other) = (server(0)?, server(1)?);
    let mut many = Many::open(&stage.far, &there, count)?;
    answers(&mut many, count, "before the move")?;
    stage.wait_introduced(count)?;
    let used = |stage: &mut Stage| -> Result<[f64; 3]> {
        let [desk, guest] = &mut stage.daemons;
        let far = stage.far_daemon.as_mut().map_or(Ok(0.0), |daemon| daemon.process().cpu_seconds())?;
        Ok([desk.process().cpu_seconds()?, guest.process().cpu_seconds()?, far])
    };
    let before = used(&mut stage)?;
    let (asked, decided, moved) = stage.give(0, &there.address().to_string(), NAMES[1])?;
    let after = used(&mut stage)?;
    if moved != count {
        return Err(format!("{moved} connections moved").into());
    }
    answers(&mut many, count, "after the move")?;
    options.setup.keep(&format!("crowd-{}-{count}", far.name()), &stage.lab)?;
    let rest = match log {
        Some(_) => phases::read(&stage.lab)?.values().filter_map(phases::Ops::rest).max().map(|most| most as f64 / 1e3),
        None => None,
    };
    Ok(Came {
        all: decided.since(asked).as_secs_f64() * 1e3,
        rest,
        cpu: [0, 1, 2].map(|daemon| (after[daemon] - before[daemon]) * 1e3),
    })
}

fn answers(many: &mut Many, count: usize, when: &str) -> Result<()> {
    let answered = many.echo(ANSWER)?.answered();
    if answered == count { Ok(()) } else { Err(format!("{answered} of {count} connections answered {when}").into()) }
}
