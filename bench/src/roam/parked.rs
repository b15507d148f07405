//! What connections cost whose other end is away: the passes over their sockets, memory, and the time between.

use std::time::{Duration, Instant};

use whimbrel_lab::{Whimbrel, wait_for};

use super::crowd::Crowd;
use super::stage::{Access, Stage, Target};
use super::{Options, Setup};
use crate::report::{Bound, Figure, Report, Samples};
use crate::{Result, machine};

const ROUND_TRIP: Duration = Duration::from_millis(40);
const COUNTS: [usize; 2] = [10_000, 100_000];
const LONG: Duration = Duration::from_secs(60);
/// For how long they are parked; less in a short version.
const PARKED: Duration = Duration::from_secs(60);
const PARKED_QUICK: Duration = Duration::from_secs(10);

/// One run, of the host that stays.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// CPU time of the daemon until all sockets were parked, ms.
    park: f64,
    /// The same until all were as before and the last had its byte back, ms.
    unpark: f64,
    /// CPU time of the daemon while they were parked, ms for each minute.
    minute: f64,
    /// Packets of theirs that the programs kept back meanwhile, for each minute.
    packets: f64,
    /// What the daemon and its maps grew by, in bytes a connection.
    memory: f64,
    /// Connections that did not answer after.
    lost: usize,
}

/// Measures and reports.
///
/// # Errors
/// When hosts cannot be set up or a program fails.
pub fn run(options: &Options) -> Result<()> {
    measure(options)?.finish()?;
    Ok(())
}

pub(super) fn measure(options: &Options) -> Result<Report> {
    machine::warn_if_busy();
    let rounds = options.runs(3, 1);
    let mut report = Report::new("roam-parked");
    for count in COUNTS.into_iter().filter(|count| !options.quick || *count == COUNTS[0]) {
        let mut samples = vec![Samples::default(); 6];
        for round in 0..rounds {
            let outcome = one_run(&options.setup, count, round, if options.quick { PARKED_QUICK } else { PARKED })?;
            eprintln!("{}/{rounds} {count}: {outcome:?}", round + 1);
            let Outcome { park, unpark, minute, packets, memory, lost } = outcome;
            for (samples, value) in samples.iter_mut().zip([park, unpark, minute, packets, memory, lost as f64]) {
                samples.push(value);
            }
        }
        let names = [
            ("park_cpu", "ms"),
            ("unpark_cpu", "ms"),
            ("parked_cpu_minute", "ms"),
            ("parked_packets_minute", "packets"),
            ("parked_memory_each", "bytes"),
            ("parked_lost", "connections"),
        ];
        for ((name, unit), samples) in names.into_iter().zip(&samples) {
            let figure = Figure::new(&format!("{name}_{count}"), unit, samples);
            report.add(if name == "parked_lost" { figure.bound(Bound::AtMost(0.0)) } else { figure });
        }
    }
    Ok(report)
}

fn one_run(setup: &Setup, count: usize, round: usize, length: Duration) -> Result<Outcome> {
    let name = format!("parked-{count}-{round}");
    let stage = Stage::build(setup, &name, ROUND_TRIP, Target::Public, Access::Veth)?;
    let [laptop, mut server] = stage.daemons("")?;
    let mut crowd = Crowd::open(&stage.laptop, &stage.server, stage.address, count)?;
    for daemon in [&laptop, &server] {
        crowd.wait_introduced(daemon)?;
    }
    crowd.echo(LONG)?;
    let pid = server.process().pid();
    let memory = || -> Result<f64> { Ok((machine::status_bytes(pid, "VmRSS")? + machine::map_bytes(pid)?) as f64) };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    machine::wait_idle(pid)?;
    let (before, native) = (machine::cpu(pid)?, memory()?);
    laptop.cli(&["suspend"])?;
    wait_for(LONG, "the server parks", || Ok(server.status()?.counts.held.ge(&count).then_some(())))?;
    machine::wait_idle(pid)?;
    let (parked, held) = (machine::cpu(pid)?, kept_back(&server)?);
    let start = Instant::now();
    std::thread::sleep(length);
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    let (after, packets) = (machine::cpu(pid)?, kept_back(&server)? - held);
    let grown = memory()? - native;
    laptop.cli(&["resume"])?;
    let echoes = crowd.echo(LONG)?;
    machine::wait_idle(pid)?;
    setup.keep(&name, &stage.lab)?;
    Ok(Outcome {
        park: ms(parked - before),
        unpark: ms(machine::cpu(pid)? - after),
        minute: ms(after - parked) / minutes,
        packets: packets / minutes,
        memory: grown / count as f64,
        lost: echoes.lost,
    })
}

/// Packets that the programs have kept back so far.
fn kept_back(daemon: &Whimbrel) -> Result<f64> {
    let text = daemon.cli(&["metrics"])?;
    let of = |verdict: &str| {
        let name = format!("whimbrel_datapath_packets_total{{verdict=\"{verdict}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok())
    };
    Ok(of("held").unwrap_or(0.0) + of("answered").unwrap_or(0.0))
}
