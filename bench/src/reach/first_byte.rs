//! How soon the first byte comes after a move to a network where the first questions for the gateway's link-layer
//! address are lost.
//!
//! A laptop goes back and forth between two networks, over IPv4 and over IPv6, with a download that never ends. Beside
//! it the same without Whimbrel: an application that is told of the new route and connects anew.

use std::collections::BTreeMap;
use std::time::Duration;

use whimbrel_lab::{FlowPair, MonoTime, PairOptions, Random, Side, Site, Whimbrel, wait_for};

use super::place::{Place, ms};

use crate::Result;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::moment::Changes;
use crate::roam::{Options, Setup, baseline};

/// Of the uplinks, ms.
const ROUND_TRIP: u64 = 40;
/// Of the download, bits a second: a segment every millisecond.
const RATE: u64 = 12_000_000;
/// How many questions are lost, and what has to be waited for then, ms.
const LOST: [(u32, f64); 3] = [(0, 0.0), (1, 20.0), (2, 60.0)];
/// For how long there is no network, ms.
const OUTAGES: [u64; 4] = [0, 300, 1000, 3000];
const QUICK_OUTAGES: [u64; 2] = [0, 300];
/// Without Whimbrel it is measured in every so manyth round: the kernel's own second is always the same.
const BASELINE_EVERY: usize = 10;
/// For how long a connection is watched after a move, before the next one.
const AFTER: Duration = Duration::from_millis(600);
/// When a connection is taken not to go on any more.
const PATIENCE: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(20);

/// None: nothing of Whimbrel is there.
struct World {
    place: Place,
    connection: Option<(FlowPair, [Whimbrel; 2])>,
}

impl World {
    fn build(setup: &Setup, ipv4: bool, whimbrel: bool) -> Result<Self> {
        let place = Place::build(setup, ipv4, ROUND_TRIP)?;
        let mut connection = None;
        if whimbrel {
            let daemons = [place.laptop.whimbrel()?, place.server.whimbrel()?];
            let options = PairOptions { up: Some(0), down: Some(RATE), ..PairOptions::default() };
            let pair = FlowPair::tcp(&place.laptop, &place.server, place.address, &options)?;
            daemons[0].wait_introduced(&pair, LONG)?;
            connection = Some((pair, daemons));
        }
        Ok(Self { place, connection })
    }

    /// One move: how long the first byte took once the route was there, ms. None: it never came.
    fn go(&mut self, lost: u32, outage: Duration) -> Result<Option<f64>> {
        let Some((mut pair, daemons)) = self.connection.take() else { return self.reconnect(lost, outage).map(Some) };
        let usable = self.travel(lost, outage)?;
        // Nothing is asked of the receiving program while its first byte is due.
        std::thread::sleep(AFTER);
        let mut arrival = || -> whimbrel_lab::Result<Option<MonoTime>> {
            Ok(pair.arrivals(Side::Client, usable)?.first().map(|(at, _)| *at))
        };
        let first: Option<MonoTime> = match wait_for(PATIENCE, "the download goes on", &mut arrival) {
            Ok(first) => Some(first),
            Err(whimbrel_lab::Error::Timeout { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        self.connection = Some((pair, daemons));
        Ok(first.map(|first| ms(first.since(usable))))
    }

    fn reconnect(&mut self, lost: u32, outage: Duration) -> Result<f64> {
        let (laptop, server, address) = (self.place.laptop.clone(), self.place.server.clone(), self.place.address);
        let changes = Changes::watch(&laptop, address.is_ipv4())?;
        let go = || self.travel(lost, outage);
        let (usable, first) = baseline::reconnect(&laptop, &changes, (&server, address), go)?;
        Ok(ms(first.since(usable)))
    }

    /// Goes to the other network; gives when its default route was there.
    fn travel(&mut self, lost: u32, outage: Duration) -> Result<MonoTime> {
        lose(self.place.next(), self.place.address.is_ipv4(), lost)?;
        self.place.travel(outage)
    }
}

/// The router does not hear the first questions from its network.
fn lose(site: &Site, ipv4: bool, lost: u32) -> Result<()> {
    let (family, question) =
        if ipv4 { ("arp", "arp operation request") } else { ("ip6", "icmpv6 type nd-neighbor-solicit") };
    // A rate that lets so many a day through to be dropped.
    let rule = match lost {
        0 => String::new(),
        _ => format!(
            "iifname \"{}\" {question} limit rate {lost}/day burst {lost} packets counter drop;",
            site.network.bridge()
        ),
    };
    let table = format!("table {family} reach");
    site.router.nft(&format!(
        "{table} {{}}\ndelete {table}\n\
         {table} {{ chain input {{ type filter hook input priority 0; {rule}\n}}\n}}\n"
    ))?;
    Ok(())
}

/// Samples of one case.
#[derive(Debug, Default)]
struct Series {
    whimbrel: Samples,
    application: Samples,
    lost: usize,
}

/// Measures and reports.
///
/// # Errors
/// When hosts cannot be set up, or a move could not be made.
pub(super) fn measure(options: &Options) -> Result<Report> {
    let rounds = options.runs(100, 6);
    let outages: &[u64] = if options.quick { &QUICK_OUTAGES } else { &OUTAGES };
    let cases: Vec<(usize, u64)> =
        outages.iter().flat_map(|outage| (0..LOST.len()).map(|lost| (lost, *outage))).collect();
    let cases: Vec<_> = cases.into_iter().filter(|(lost, outage)| id(*lost, *outage).contains(&options.only)).collect();
    let build = |ipv4, whimbrel| World::build(&options.setup, ipv4, whimbrel);
    let mut with = [build(true, true)?, build(false, true)?];
    let mut without = [build(true, false)?, build(false, false)?];
    let mut series: BTreeMap<(usize, u64), Series> = BTreeMap::new();
    let mut random = Random::new(1);
    for round in 0..rounds {
        let mut order = cases.clone();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        // The families in turn.
        let family = round % 2;
        for (lost, outage) in order {
            let (name, of) = (id(lost, outage), series.entry((lost, outage)).or_default());
            let (count, outage) = (LOST[lost].0, Duration::from_millis(outage));
            let first = with[family].go(count, outage)?;
            eprintln!("{}/{rounds} {name}: first byte after {first:?} ms", round + 1);
            of.whimbrel.push(first.unwrap_or(ms(PATIENCE)));
            of.lost += usize::from(first.is_none());
            if round % BASELINE_EVERY < 2 {
                let first = without[family].go(count, outage)?;
                eprintln!("{}/{rounds} {name} application that reconnects: {first:?} ms", round + 1);
                of.application.push(first.unwrap_or(ms(PATIENCE)));
            }
        }
    }
    for (world, family) in with.iter().zip(["ipv4", "ipv6"]) {
        world.place.keep(&options.setup, &format!("first-byte-{family}"))?;
    }
    Ok(report(&series))
}

/// The beginning of the names of a case's figures.
fn id(lost: usize, outage: u64) -> String {
    format!("lost{}_outage_{outage}ms", LOST[lost].0)
}

fn report(series: &BTreeMap<(usize, u64), Series>) -> Report {
    let mut report = Report::new("reach-first-byte");
    let round_trip = ROUND_TRIP as f64;
    for ((lost, outage), of) in series {
        let (id, waits) = (id(*lost, *outage), LOST[*lost].1);
        let median = Figure::against(&id, "ms", &of.whimbrel, &of.application);
        report.add(median.bound(Bound::AtMost(1.5 * round_trip + 10.0 + waits)));
        let most = of.whimbrel.percentile(100.0);
        let slowest = Figure::from_value(&format!("{id}_slowest"), "ms", most, &of.whimbrel);
        report.add(slowest.bound(Bound::AtMost(2.0 * round_trip + 100.0)));
    }
    let dead: Samples = [series.values().map(|of| of.lost).sum::<usize>() as f64].into_iter().collect();
    report.add(Figure::new("connections_lost", "connections", &dead).bound(Bound::AtMost(0.0)));
    report
}
