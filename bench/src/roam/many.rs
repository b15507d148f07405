//! How soon many connections are back after their host has moved, and what they cost in memory.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use whimbrel_lab::{Direction, MonoTime, Whimbrel};

use super::crowd::Crowd;
use super::stage::{Access, Move, Stage, Target};
use super::turns::Turns;
use super::{Options, Setup};
use crate::report::{Bound, Figure, Report, Samples};
use crate::{Result, machine};

const ROUND_TRIP: Duration = Duration::from_millis(40);
/// What the bound for 10,000 allows beyond two round trips.
const ALLOWED: Duration = Duration::from_millis(200);
/// What the bound for [`MOST`] allows beyond two round trips until the binding is in force, and until all are back.
const ALLOWED_BINDING: Duration = Duration::from_millis(100);
const ALLOWED_ALL: Duration = Duration::from_secs(2);
const COUNTS: [usize; 5] = [10, 100, 1_000, 10_000, MOST];
const MOST: usize = 100_000;
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
    /// Until both ends had their new binding.
    in_force: f64,
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
    in_force: Samples,
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
        id(*target, *count).contains(&options.only)
            && !(options.quick && (*count == MOST || *target == Target::Nat && *count < 10_000))
    });
    let mut series = vec![Series::default(); cases.len()];
    for round in 0..rounds {
        for (index, (target, count)) in cases.iter().enumerate() {
            let outcome = one_run(&options.setup, *target, *count, round)
                .map_err(|error| format!("{}: {error}", id(*target, *count)))?;
            eprintln!(
                "{}/{rounds} {:<13} {:7.1} ms for all, {:6.1} for the median ({:6.1} for all before the move), {:5.1} for the \
                 binding, {} lost, \
                 daemon {:.1} MB, maps {:.1} MB, link {:.0} packets/s",
                round + 1,
                id(*target, *count),
                outcome.all,
                outcome.median,
                outcome.native,
                outcome.in_force,
                outcome.lost,
                outcome.daemon as f64 / 1e6,
                outcome.maps as f64 / 1e6,
                outcome.link
            );
            series[index].absorb(&outcome, *count);
        }
    }
    Ok(report(&cases, &series))
}

fn id(target: Target, count: usize) -> String {
    format!("{}_{count}", target.name())
}

impl Series {
    fn absorb(&mut self, outcome: &Outcome, count: usize) {
        self.all.push(outcome.all);
        self.each.push(outcome.all / count as f64);
        self.median.push(outcome.median);
        self.in_force.push(outcome.in_force);
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
        let ms = |time: Duration| Bound::AtMost(time.as_secs_f64() * 1e3);
        let in_force = Figure::new(&format!("{id}_in_force"), "ms", &of.in_force);
        report.add(match *count {
            MOST => all.bound(ms(ALLOWED_ALL)),
            10_000 => all.bound(ms(ROUND_TRIP * 2 + ALLOWED)),
            _ => all,
        });
        report.add(if *count == MOST { in_force.bound(ms(ROUND_TRIP * 2 + ALLOWED_BINDING)) } else { in_force });
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
    let mut crowd = Crowd::open(&stage.laptop, &stage.server, stage.address, count)?;
    for daemon in &daemons {
        crowd.wait_introduced(daemon)?;
    }
    let native = crowd.echo(LONG)?.all().ok_or("not every echo came before the move")?;
    let (mut memory, mut maps) = (0, 0);
    for daemon in &mut daemons {
        let pid = daemon.process().pid();
        memory = memory.max(machine::status_bytes(pid, "VmRSS")?);
        maps = maps.max(machine::map_bytes(pid)?);
    }
    let [laptop, server] = &daemons;
    let before = [laptop.status()?.newest_event, server.status()?.newest_event];
    let moved = stage.go(Move::AtOnce, &mut Turns::default().take(Duration::ZERO))?;
    let echoes = crowd.echo(LONG)?;
    let in_force = told(laptop, "moved", before[0])?.max(told(server, "peer-moved", before[1])?);
    // Written a little after the new address was usable; the clock runs from then.
    let since = |time: &MonoTime| time.since(moved.usable).as_secs_f64() * 1e3;
    let never = LONG.as_secs_f64() * 1e3;
    let all = if echoes.lost > 0 { never } else { echoes.answered.last().map_or(never, since) };
    Ok(Outcome {
        all,
        median: echoes.answered.get(count / 2).map_or(never, since),
        in_force: since(&in_force),
        native: native.as_secs_f64() * 1e3,
        lost: echoes.lost,
        daemon: memory,
        maps,
        link: link_rate(stage)?,
    })
}

/// When a daemon told of the first event of this kind after `since`.
fn told(daemon: &Whimbrel, kind: &str, since: u64) -> Result<MonoTime> {
    let event = daemon.wait_event(kind, since, LONG)?;
    Ok(MonoTime(event.monotonic_ms * 1_000_000))
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
