//! How soon a download goes on whose two ends have moved at the same moment, with nothing configured: both hosts belong
//! to a community with a third one, which stays.
//!
//! There is no baseline: without Whimbrel neither end knows where the other is.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_lab::{
    Attachment, Campus, FlowPair, Host, Join, Lab, MonoTime, PairOptions, Shape, Side, Site, SiteSpec, Whimbrel,
    wait_for,
};

use super::place::ms;
use crate::Result;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::moment::{Change, Changes};
use crate::roam::{Options, Setup};

/// Between any two of the three hosts, ms.
const ROUND_TRIP: u64 = 40;
/// Of the download, bits a second: a segment every millisecond.
const RATE: u64 = 12_000_000;
const LONG: Duration = Duration::from_secs(20);
/// For how long a connection is watched after a move, before the next one.
const AFTER: Duration = Duration::from_millis(1500);
/// When a connection is taken not to go on any more.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host that goes to and fro between two networks.
struct Traveller {
    host: Host,
    sites: [Site; 2],
    there: usize,
    at: Attachment,
    changes: Changes,
}

impl Traveller {
    fn new(host: Host, sites: [Site; 2], ipv4: bool) -> Result<Self> {
        let at = host.join(&sites[0].network, &Join::default())?;
        let changes = Changes::watch(&host, ipv4)?;
        Ok(Self { host, sites, there: 0, at, changes })
    }

    fn address(&self, ipv4: bool) -> Result<IpAddr> {
        Ok(if ipv4 { self.at.ipv4()? } else { self.at.ipv6()? })
    }

    /// Goes to the other network; gives when its default route was there.
    fn travel(&mut self) -> Result<MonoTime> {
        self.there = 1 - self.there;
        self.at = self.host.roam(&self.at, &self.sites[self.there].network, &Join::default())?;
        self.changes.first(self.at.started_at, Change::Route { default: true }, Duration::from_secs(1))
    }
}

struct World {
    ends: [Traveller; 2],
    pair: FlowPair,
    _daemons: [Whimbrel; 3],
    // Last: the others live in it.
    lab: Lab,
}

impl World {
    fn build(setup: &Setup, ipv4: bool) -> Result<Self> {
        let mut lab = Lab::new(setup.lab_options())?;
        let mut campus = Campus::new(&mut lab)?;
        let shape = Shape { delay: Duration::from_micros(ROUND_TRIP * 250), ..Shape::default() };
        let uplink = Shape { rate: Some(1_000_000_000), ..shape };
        let mut site = |name: &str| {
            let spec = SiteSpec::named(name).uplink(uplink.clone());
            campus.add(&mut lab, if ipv4 { spec.v4_only() } else { spec.v6_only() })
        };
        let [a, b, c, d, m] = [site("a")?, site("b")?, site("c")?, site("t")?, site("s")?];
        let [laptop, server, third] = [lab.host("laptop")?, lab.host("server")?, lab.host("third")?];
        let ends = [Traveller::new(laptop.clone(), [a, b], ipv4)?, Traveller::new(server.clone(), [c, d], ipv4)?];
        let at_third = third.join(&m.network, &Join::default())?;
        let at_third = if ipv4 { at_third.ipv4()? } else { at_third.ipv6()? };
        let daemons = [laptop.whimbrel()?, server.whimbrel()?, third.whimbrel()?];
        daemons[2].befriend(&daemons[0], at_third)?;
        daemons[2].invite(&daemons[1], at_third, "server")?;
        let options = PairOptions { up: Some(0), down: Some(RATE), ..PairOptions::default() };
        let pair = FlowPair::tcp(&laptop, &server, ends[1].address(ipv4)?, &options)?;
        daemons[0].wait_introduced(&pair, LONG)?;
        wait_for(LONG, "both are met by the third host", || {
            let served = daemons[..2].iter().map(|daemon| Ok(!daemon.status()?.rendezvous.is_empty()));
            Ok(served.collect::<whimbrel_lab::Result<Vec<_>>>()?.into_iter().all(|it| it).then_some(()))
        })?;
        Ok(Self { ends, pair, _daemons: daemons, lab })
    }

    /// Both move: how long the first byte took once both routes were there, ms. None: it never came.
    fn go(&mut self) -> Result<Option<f64>> {
        let [laptop, server] = &mut self.ends;
        let moved = std::thread::scope(|scope| -> Result<[MonoTime; 2]> {
            // What went wrong is said as text: errors do not go from thread to thread.
            let there = scope.spawn(|| server.travel().map_err(|error| error.to_string()));
            let here = laptop.travel()?;
            Ok([here, there.join().map_err(|_| "the server's thread panicked")??])
        })?;
        let usable = moved[0].max(moved[1]);
        // Nothing is asked of the receiving program while its first byte is due.
        std::thread::sleep(AFTER);
        let mut arrival = || -> whimbrel_lab::Result<Option<MonoTime>> {
            Ok(self.pair.arrivals(Side::Client, usable)?.first().map(|(at, _)| *at))
        };
        match wait_for(PATIENCE, "the download goes on", &mut arrival) {
            Ok(first) => Ok(Some(ms(first.since(usable)))),
            Err(whimbrel_lab::Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Measures and reports.
///
/// # Errors
/// When hosts cannot be set up, or a move could not be made.
pub(super) fn measure(options: &Options) -> Result<Report> {
    let rounds = options.runs(40, 6);
    let mut report = Report::new("reach-both");
    let mut lost = 0;
    for (ipv4, family) in [(true, "ipv4"), (false, "ipv6")] {
        let [mut away, mut back] = [Samples::default(), Samples::default()];
        let mut world = World::build(&options.setup, ipv4)?;
        for round in 0..rounds {
            let took = world.go()?;
            eprintln!("{}/{rounds} {family}: first byte after {took:?} ms", round + 1);
            // Where the connection began nothing carries it.
            let of = if round % 2 == 0 { &mut away } else { &mut back };
            of.push(took.unwrap_or(ms(PATIENCE)));
            lost += usize::from(took.is_none());
        }
        for (way, first) in [("away", &away), ("back", &back)] {
            let id = format!("{family}_{way}_first_byte");
            let bound = Bound::AtMost(4.0 * ROUND_TRIP as f64 + 100.0);
            report.add(Figure::new(&id, "ms", first).bound(bound));
            report.add(Figure::from_value(&format!("{id}_slowest"), "ms", first.percentile(100.0), first));
        }
        options.setup.keep(&format!("both-{family}"), &world.lab)?;
    }
    let lost: Samples = [lost as f64].into_iter().collect();
    report.add(Figure::new("connections_lost", "connections", &lost).bound(Bound::AtMost(0.0)));
    Ok(report)
}
