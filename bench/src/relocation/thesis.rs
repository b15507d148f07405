//! How long it takes to move one socket, by round trips: the three scenarios of the SOCKMAND thesis (§6.5.3), which
//! differ in what the anchor has to do with the move, beside the thesis's model (§6.6.3).
//!
//! | scenario | the anchor is | model |
//! |---|---|---|
//! | 1 | where the socket is | one round trip to the other host |
//! | 2 | where it goes | one round trip |
//! | 3 | neither | one round trip to the other host, and one to the anchor |
//!
//! The far end runs nothing. The anchor is the host that the connection was made to.

use std::time::Duration;

use whimbrel_lab::{Campus, Host, Join, Lab, Shape, SiteSpec, Ticker, TickerFar, Whimbrel, wait_for};

use super::stage::{LONG, give};
use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::{Figure, Report, Samples};
use crate::roam::Options;

/// Between any two of the hosts, ms.
const ROUND_TRIPS: [u64; 4] = [5, 20, 50, 100];
const EVERY: Duration = Duration::from_micros(500);
/// Bytes between two moves.
const BETWEEN: u64 = 50;
/// The three, by their names in the community; the first is the anchor.
const NAMES: [&str; 3] = ["desk", "guest", "third"];
/// Of the networks that they are in, and the far end's.
const SITES: [&str; 3] = ["s", "t", "b"];
const FAR: &str = "a";

/// Where from and where to, in the order of a round, and the scenario.
const ROUND: [(usize, usize, usize); 3] = [(0, 1, 1), (1, 2, 3), (2, 0, 2)];

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
    let mut report = Report::new("move-thesis");
    for round_trip in ROUND_TRIPS {
        let id = format!("rtt{round_trip}");
        if !id.contains(&options.only) {
            continue;
        }
        let came = rounds(options, round_trip).map_err(|error| format!("{id}: {error}"))?;
        for (scenario, [times, gaps]) in (1..).zip(came) {
            let round_trips = if scenario == 3 { 2 } else { 1 };
            let model: Samples = times.values().iter().map(|_| (round_trips * round_trip) as f64).collect();
            report.add(Figure::against(&format!("{id}_scenario{scenario}_time"), "ms", &times, &model));
            report.add(Figure::new(&format!("{id}_scenario{scenario}_gap"), "ms", &gaps));
        }
    }
    Ok(report)
}

/// By scenario: times from the request to the decision, and how long the far end heard nothing.
fn rounds(options: &Options, round_trip: u64) -> Result<[[Samples; 2]; 3]> {
    let mut lab = Lab::new(options.setup.lab_options())?;
    let mut campus = Campus::new(&mut lab)?;
    // A way between two hosts is one uplink up and another one down.
    let delay = Duration::from_micros(round_trip * 1000 / 4);
    let mut host = |name: &str, site: &str| -> Result<(Host, std::net::IpAddr)> {
        let site = campus.add(&mut lab, SiteSpec::named(site).fast().uplink(Shape::delay(delay)))?;
        let host = lab.host(name)?;
        let address = host.join(&site.network, &Join::by("eth0"))?.ipv4()?;
        Ok((host, address))
    };
    let (far, _) = host("far", FAR)?;
    let mut daemons: Vec<Whimbrel> = Vec::new();
    let mut addresses = Vec::new();
    for (name, site) in NAMES.into_iter().zip(SITES) {
        let (host, address) = host(name, site)?;
        daemons.push(host.whimbrel()?);
        addresses.push(address);
    }
    daemons[0].befriend(&daemons[1], addresses[0])?;
    daemons[0].invite(&daemons[2], addresses[0], NAMES[2])?;
    wait_for(LONG, "the second host has heard of the third", || {
        Ok(daemons[1].cli(&["community", "list"])?.contains(NAMES[2]).then_some(()))
    })?;
    let mut tickers = Vec::new();
    for ((daemon, address), name) in daemons.iter().zip(&addresses).zip(NAMES) {
        tickers.push(Ticker::start(daemon, *address, name, EVERY)?);
    }
    let mut end = TickerFar::connect(&far, tickers[0].address())?;
    end.wait_progress(BETWEEN, LONG)?;
    let from = end.local().to_string();
    let mut came: [[Samples; 2]; 3] = Default::default();
    let mut until = 0;
    // In the first round the hosts get to know each other, and the kernel attaches programs.
    for number in 0..=options.runs(6, 2) {
        for (donor, acceptor, scenario) in ROUND {
            end.wait_progress(BETWEEN, LONG)?;
            let (asked, decided, moved) = give(&daemons[donor], &from, NAMES[acceptor], NAMES[acceptor])?;
            if moved != 1 {
                return Err(format!("{moved} connections moved instead of one").into());
            }
            let ticked = tickers[donor].ticked()?;
            if ticked.0 != until {
                return Err(format!("a sender began with byte {} after byte {until}", ticked.0).into());
            }
            until = ticked.1;
            end.wait_progress(BETWEEN, LONG)?;
            let gap = end.longest_gap(asked)?.ok_or("nothing has arrived")?;
            if number > 0 {
                let [times, gaps] = &mut came[scenario - 1];
                times.push(decided.since(asked).as_secs_f64() * 1e3);
                gaps.push(gap.1.since(gap.0).as_secs_f64() * 1e3);
            }
        }
    }
    for (scenario, [times, gaps]) in (1..).zip(&came) {
        eprintln!("{round_trip} ms, scenario {scenario}: {:.1} ms, silent {:.1} ms", times.median(), gaps.median());
    }
    Ok(came)
}
