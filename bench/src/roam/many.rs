//! How soon many connections are back after their host has moved, and what they cost in memory.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use whimbrel_lab::{Direction, EchoServer, Many, MonoTime, Whimbrel, wait_for};

use super::stage::{Access, Move, Stage, Target};
use super::turns::Turns;
use super::{Options, Setup};
use crate::report::{Bound, Figure, Report, Samples};
use crate::{Result, machine};

const ROUND_TRIP: Duration = Duration::from_millis(40);
/// What the bound allows beyond two round trips.
const ALLOWED: Duration = Duration::from_millis(200);
const COUNTS: [usize; 4] = [10, 100, 1_000, 10_000];
const LONG: Duration = Duration::from_secs(60);
/// How long the link's own rate is measured.
const BLAST: Duration = Duration::from_millis(500);

/// What one run gave; times in ms.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// Until the last connection had its byte back, from the new address being usable.
    all: f64,
    /// The same for the median connection.
    median: f64,
    /// A round of echoes before the move, until the last byte was back.
    native: f64,
    /// Connections that never answered.
    lost: usize,
    /// Resident memory of the larger of the two daemons, bytes.
    daemon: u64,
    /// The same of its maps.
    maps: u64,
    /// Packets a second that the emulated link carries.
    link: f64,
}

/// Samples of one number of connections.
#[derive(Clone, Debug, Default)]
struct Series {
    all: Samples,
    each: Samples,
    median: Samples,
    native: Samples,
    daemon: Samples,
    maps: Samples,
    link: Samples,
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
    let rounds = options.runs(7, 1);
    let mut cases: Vec<(Target, usize)> =
        [Target::Public, Target::Nat].into_iter().flat_map(|target| COUNTS.map(|count| (target, count))).collect();
    cases.retain(|(target, count)| {
        id(*target, *count).contains(&options.only) && !(options.quick && *target == Target::Nat && *count < 10_000)
    });
    let mut series = vec![Series::default(); cases.len()];
    for round in 0..rounds {
        for (index, (target, count)) in cases.iter().enumerate() {
            let outcome = one_run(&options.setup, *target, *count, round)
                .map_err(|error| format!("{}: {error}", id(*target, *count)))?;
            eprintln!(
                "{}/{rounds} {:<13} {:7.1} ms for all, {:6.1} for the median ({:6.1} for all before the move), {} lost, \
                 daemon {:.1} MB, maps {:.1} MB, link {:.0} packets/s",
                round + 1,
                id(*target, *count),
                outcome.all,
                outcome.median,
                outcome.native,
                outcome.lost,
                outcome.daemon as f64 / 1e6,
                outcome.maps as f64 / 1e6,
                outcome.link
            );
            series[index].take_in(&outcome, *count);
        }
    }
    Ok(report(&cases, &series))
}

fn id(target: Target, count: usize) -> String {
    format!("{}_{count}", target.name())
}

impl Series {
    fn take_in(&mut self, outcome: &Outcome, count: usize) {
        self.all.push(outcome.all);
        self.each.push(outcome.all / count as f64);
        self.median.push(outcome.median);
        self.native.push(outcome.native);
        self.daemon.push(outcome.daemon as f64);
        self.maps.push(outcome.maps as f64);
        self.link.push(outcome.link);
        self.lost += outcome.lost;
    }
}

fn report(cases: &[(Target, usize)], series: &[Series]) -> Report {
    let mut report = Report::new("roam-many");
    let mut links = Samples::default();
    for ((target, count), of) in cases.iter().zip(series) {
        let id = id(*target, *count);
        let all = Figure::against(&format!("{id}_all"), "ms", &of.all, &of.native);
        let bound = (ROUND_TRIP * 2 + ALLOWED).as_secs_f64() * 1e3;
        report.add(if *count == 10_000 { all.bound(Bound::AtMost(bound)) } else { all });
        report.add(Figure::new(&format!("{id}_each"), "ms", &of.each));
        report.add(Figure::new(&format!("{id}_median"), "ms", &of.median));
        let lost: Samples = [of.lost as f64].into_iter().collect();
        report.add(Figure::new(&format!("{id}_lost"), "connections", &lost).bound(Bound::AtMost(0.0)));
        of.link.values().iter().for_each(|rate| links.push(*rate));
    }
    // What a connection adds: the difference between the fewest and the most, so that what is there anyway is left out.
    let public = || cases.iter().zip(series).filter(|((target, _), _)| *target == Target::Public);
    if let (Some(((_, few), least)), Some(((_, many), most))) = (public().next(), public().next_back())
        && many > few
    {
        let slope = |of: fn(&Series) -> &Samples| -> Samples {
            let pairs = of(most).values().iter().zip(of(least).values());
            pairs.map(|(most, least)| (most - least) / (many - few) as f64).collect()
        };
        report.add(Figure::new("daemon_memory_each", "bytes", &slope(|series| &series.daemon)));
        report.add(Figure::new("map_memory_each", "bytes", &slope(|series| &series.maps)));
        report.add(Figure::new(&format!("daemon_memory_{few}"), "bytes", &least.daemon));
        report.add(Figure::new(&format!("map_memory_{few}"), "bytes", &least.maps));
    }
    report.add(Figure::new("link_rate", "packets/s", &links));
    report
}

fn one_run(setup: &Setup, target: Target, count: usize, round: usize) -> Result<Outcome> {
    let name = format!("many-{}-{round}", id(target, count));
    let mut stage = Stage::build(setup, &name, ROUND_TRIP, target, Access::Veth)?;
    let result = run_on(&mut stage, count);
    setup.keep(&name, &stage.lab)?;
    stage.lab.check_links()?;
    result
}

fn run_on(stage: &mut Stage, count: usize) -> Result<Outcome> {
    let mut daemons = stage.daemons("")?;
    let echo = EchoServer::start(&stage.server, stage.address)?;
    let mut many = Many::open(&stage.laptop, &echo, count)?;
    for daemon in &daemons {
        wait_introduced(daemon, count)?;
    }
    let native = many.echo(LONG)?.slowest().ok_or("no echo before the move")?;
    let (mut memory, mut maps) = (0, 0);
    for daemon in &mut daemons {
        let pid = daemon.process().pid();
        memory = memory.max(machine::status_bytes(pid, "VmRSS")?);
        maps = maps.max(machine::map_bytes(pid)?);
    }
    let moved = stage.go(Move::AtOnce, &mut Turns::default().take(Duration::ZERO))?;
    let report = many.echo(LONG)?;
    let started = report.started.ok_or("the echoes have no time")?;
    // Written a little after the new address was usable; the clock runs from then.
    let late = started.since(moved.usable);
    let mut times: Vec<u64> = report.answered_us.iter().flatten().copied().collect();
    times.sort_unstable();
    let lost = count - times.len();
    let ms = |us: u64| late.as_secs_f64() * 1e3 + us as f64 / 1e3;
    let never = LONG.as_micros() as u64;
    let all = if lost > 0 { never } else { times.last().copied().unwrap_or(never) };
    Ok(Outcome {
        all: ms(all),
        median: ms(times.get(times.len() / 2).copied().unwrap_or(never)),
        native: native.as_secs_f64() * 1e3,
        lost,
        daemon: memory,
        maps,
        link: link_rate(stage)?,
    })
}

fn wait_introduced(daemon: &Whimbrel, count: usize) -> Result<()> {
    let mut last = 0;
    let waited = wait_for(LONG, &format!("{count} connections are introduced"), || {
        std::thread::sleep(Duration::from_millis(100));
        last = daemon.status()?.counts.introduced;
        Ok((last >= count).then_some(()))
    });
    waited.map_err(|error| format!("{error}; {last} are, on {}", daemon.host().name()).into())
}

/// Small datagrams that cross the emulated link in a second, as many as it can carry.
fn link_rate(stage: &Stage) -> Result<f64> {
    let sink = stage.server.enter(|| UdpSocket::bind((stage.address, 0)))??;
    let to: SocketAddr = sink.local_addr()?;
    let source = stage.laptop.enter(|| UdpSocket::bind(("0.0.0.0", 0)))??;
    source.connect(to)?;
    let link = stage.uplink()?;
    let before = link.counters(Direction::Up).delivered;
    let (start, begun) = (Instant::now(), MonoTime::now());
    while start.elapsed() < BLAST {
        for _ in 0..64 {
            // A full queue is the purpose.
            let _ = source.send(&[0; 12]);
        }
    }
    let carried = link.counters(Direction::Up).delivered - before;
    Ok(carried as f64 / MonoTime::now().since(begun).as_secs_f64())
}
