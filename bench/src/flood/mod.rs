//! What a host with 1,000 connections feels of a flood: of forged packets, and of strangers with keys made on the spot.
//!
//! ```text
//!   laptop ── a or b ──┐
//!                      core ── s ── server, whose connections the laptop has
//!   attacker ──── c ───┘
//! ```
//!
//! The attacker has one connection with the server that it opens anew again and again, so that the server looks for its
//! introductions; it forges those of this very session.

mod strangers;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use whimbrel_lab::{
    Attachment, Campus, EchoServer, Flood, Host, Join, Lab, Many, Random, Rates, SeenIndex, Shape, Site, SiteSpec,
    Whimbrel, Wire, wait_for,
};

use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::{Crowd, Options};
use crate::{Result, machine};
use strangers::Strangers;

const CONNECTIONS: usize = 1000;
/// ms
const ROUND_TRIP: u64 = 40;
/// A second: half of them introductions, half control packets.
const FORGED: Rates = Rates { introductions: 5_000, control: 5_000 };
const KEYS: u32 = 1_000;
const LENGTH: Duration = Duration::from_secs(60);
const LENGTH_QUICK: Duration = Duration::from_secs(15);
/// The laptop moves so often meanwhile.
const MOVES: u32 = 6;
const MOVES_QUICK: u32 = 2;
/// Until then what may be remembered of strangers is.
const WARM_UP: u32 = 4;
const LONG: Duration = Duration::from_secs(30);
/// How much longer a hand-off may take than without a flood.
const HANDOFF: f64 = 1.2;
/// By how much the daemon's memory may grow after a quarter of the time, in bytes: what its allocator does, and no
/// more.
const GROWTH: f64 = 2.0 * 1024.0 * 1024.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Quiet,
    Forged,
    Keys,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Forged => "forged",
            Self::Keys => "keys",
        }
    }
}

/// What one run gave, of the server.
#[derive(Clone, Debug)]
struct Outcome {
    /// Of each move, from the new address being usable to the last echo, and to the median one, ms.
    all: Samples,
    median: Samples,
    /// CPU time of the daemon, in hundredths of a processor.
    cpu: f64,
    /// Bytes that the daemon holds at the end, and by how much more than after a quarter of the time.
    memory: f64,
    growth: f64,
    /// Packets, or keys, a second.
    rate: f64,
}

#[derive(Clone, Debug, Default)]
struct Series {
    all: Samples,
    median: Samples,
    cpu: Samples,
    memory: Samples,
    growth: Samples,
    rate: Samples,
}

/// Measures and reports.
///
/// # Errors
/// When hosts cannot be set up or a program fails.
pub fn run(options: &Options) -> Result<()> {
    machine::warn_if_busy();
    let rounds = options.runs(4, 1);
    let floods = [Subject::Forged, Subject::Keys].into_iter().filter(|of| of.name().contains(&options.only));
    let mut report = Report::new("flood");
    for flood in floods {
        let (mut with, mut without) = (Series::default(), Series::default());
        for round in 0..rounds {
            for (subject, series) in [(Subject::Quiet, &mut without), (flood, &mut with)] {
                let outcome = one_run(options, subject, round)?;
                eprintln!("{}/{rounds} {}: {outcome:?}", round + 1, subject.name());
                series.absorb(&outcome);
            }
        }
        add(&mut report, flood.name(), &with, &without);
    }
    report.finish()?;
    Ok(())
}

impl Series {
    fn absorb(&mut self, outcome: &Outcome) {
        outcome.all.values().iter().for_each(|all| self.all.push(*all));
        outcome.median.values().iter().for_each(|median| self.median.push(*median));
        self.cpu.push(outcome.cpu);
        self.memory.push(outcome.memory);
        self.growth.push(outcome.growth);
        self.rate.push(outcome.rate);
    }
}

fn add(report: &mut Report, name: &str, with: &Series, without: &Series) {
    let id = |what: &str| format!("{name}_{what}");
    let handoff = Figure::against(&id("handoff_all"), "ms", &with.all, &without.all);
    report.add(handoff.bound(Bound::RatioAtMost(HANDOFF)));
    let handoff = Figure::against(&id("handoff_median"), "ms", &with.median, &without.median);
    report.add(handoff.bound(Bound::RatioAtMost(HANDOFF)));
    report.add(Figure::against(&id("cpu"), "%", &with.cpu, &without.cpu));
    report.add(Figure::against(&id("memory"), "bytes", &with.memory, &without.memory));
    let growth = Figure::against(&id("growth"), "bytes", &with.growth, &without.growth);
    report.add(growth.bound(Bound::AtMost(GROWTH)));
    report.add(Figure::new(&id("rate"), "1/s", &with.rate));
}

/// Who floods.
enum Flooding {
    Forged(Flood),
    Keys(Strangers),
}

struct Stage {
    laptop: Host,
    attacker: Host,
    /// The networks that the laptop moves between, and where it is.
    sites: [Site; 2],
    at: Attachment,
    /// The server's.
    address: IpAddr,
    server: Whimbrel,
    /// Of the others.
    _daemons: [Whimbrel; 2],
    crowd: Crowd,
    /// What the attacker connects to, and the index of its session.
    theirs: EchoServer,
    index: SeenIndex,
    // Last: the others live in it.
    lab: Lab,
}

impl Stage {
    fn build(options: &Options) -> Result<Self> {
        let mut lab = Lab::new(options.setup.lab_options())?;
        let mut campus = Campus::new(&mut lab)?;
        let far = |name| {
            let site = SiteSpec::named(name).uplink(Shape::delay(Duration::from_millis(ROUND_TRIP / 2)));
            SiteSpec { access: Wire::Veth, ..site }
        };
        let [a, b] = [campus.add(&mut lab, far("a"))?, campus.add(&mut lab, far("b"))?];
        let s = campus.add(&mut lab, SiteSpec::named("s").fast())?;
        let c = campus.add(&mut lab, SiteSpec::named("c"))?;
        let [laptop, server, attacker] = [lab.host("laptop")?, lab.host("server")?, lab.host("attacker")?];
        let address = server.join(&s.network, &Join::by("eth0"))?.ipv4()?;
        let at = laptop.join(&a.network, &Join::default())?;
        attacker.join(&c.network, &Join::default())?;
        let index = SeenIndex::watch(c.link()?, address);
        let (on_laptop, on_attacker) = (laptop.whimbrel()?, attacker.whimbrel()?);
        let on_server = server.whimbrel()?;
        let crowd = Crowd::open(&laptop, &server, address, CONNECTIONS)?;
        for daemon in [&on_laptop, &on_server] {
            crowd.wait_introduced(daemon)?;
        }
        let theirs = EchoServer::start(&server, address)?;
        let (sites, server) = ([b, a], on_server);
        let daemons = [on_laptop, on_attacker];
        Ok(Self { laptop, attacker, sites, at, address, server, _daemons: daemons, crowd, theirs, index, lab })
    }

    fn flood(&self, subject: Subject) -> Result<Option<Flooding>> {
        let (target, random) = (self.address, Random::new(self.lab.seed()));
        Ok(match subject {
            Subject::Quiet => None,
            Subject::Forged => {
                Some(Flooding::Forged(Flood::start(&self.attacker, target, self.index.clone(), FORGED, random)?))
            }
            Subject::Keys => Some(Flooding::Keys(Strangers::start(&self.attacker, target, KEYS, random)?)),
        })
    }
}

fn one_run(options: &Options, subject: Subject, round: usize) -> Result<Outcome> {
    let mut stage = Stage::build(options)?;
    let (length, moves) = if options.quick { (LENGTH_QUICK, MOVES_QUICK) } else { (LENGTH, MOVES) };
    let pid = stage.server.process().pid();
    let memory = || -> Result<f64> { Ok(machine::status_bytes(pid, "VmRSS")? as f64) };
    // The attacker's session, and what the server looks for of it.
    let mut theirs = vec![Many::open(&stage.attacker, &stage.theirs, 1)?];
    wait_for(LONG, "the attacker's introduction is seen", || Ok(stage.index.get()))?;
    let flooding = stage.flood(subject)?;
    let (began, cpu) = (Instant::now(), stage.server.process().cpu_seconds()?);
    let mut warm = None;
    let (mut all, mut median) = (Samples::default(), Samples::default());
    for number in 0..moves {
        let due = length * (number + 1) / (moves + 1);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        if warm.is_none() && began.elapsed() >= length / WARM_UP {
            warm = Some(memory()?);
        }
        theirs.push(Many::open(&stage.attacker, &stage.theirs, 1)?);
        let to = &stage.sites[number as usize % 2].network;
        stage.at = stage.laptop.roam(&stage.at, to, &Join::default())?;
        let echoes = stage.crowd.echo(LONG)?;
        let ms = |at: &whimbrel_lab::MonoTime| at.since(stage.at.usable_at).as_secs_f64() * 1e3;
        let never = LONG.as_secs_f64() * 1e3;
        all.push(if echoes.lost > 0 { never } else { echoes.answered.last().map_or(never, ms) });
        median.push(echoes.answered.get(CONNECTIONS / 2).map_or(never, ms));
    }
    std::thread::sleep(length.saturating_sub(began.elapsed()));
    let seconds = began.elapsed().as_secs_f64();
    let used = stage.server.process().cpu_seconds()? - cpu;
    let (warm, memory) = (warm.ok_or("nothing was measured after the warm-up")?, memory()?);
    let sent = match &flooding {
        None => 0,
        Some(Flooding::Forged(flood)) => flood.sent(),
        Some(Flooding::Keys(strangers)) => {
            let (begun, met) = strangers.counts();
            eprintln!("{met} of {begun} strangers have a session");
            begun
        }
    };
    drop(flooding);
    options.setup.keep(&format!("flood-{}-{round}", subject.name()), &stage.lab)?;
    Ok(Outcome { all, median, cpu: 100.0 * used / seconds, memory, growth: memory - warm, rate: sent as f64 / seconds })
}
