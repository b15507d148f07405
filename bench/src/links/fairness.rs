//! What is left to somebody else's flow when a restored one arrives (docs/decisions/0109), beside what a plain one of
//! CUBIC leaves to it that begins at such a moment.
//!
//! The laptop has been on the network, and comes back to it. A neighbour there has a download of CUBIC, which was there
//! when the laptop learned what the path takes, or has come since: then what is remembered is too much. In the same run
//! a newcomer there begins a download of its own, while the laptop is away.

use std::time::Duration;

use whimbrel_lab::{Host, Join, MonoTime};

use super::net::{Begins, Download, LTE, Net, Place, WCDMA, WIFI, WLAN, client};
use crate::Result;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

const SECOND: Duration = Duration::from_secs(1);
/// The seconds after the arrival that are looked at.
const SPANS: [Duration; 2] = [SECOND, Duration::from_secs(5)];
/// On each network, at the least, and with the neighbour alone before each arrival.
const STAY: Duration = Duration::from_secs(8);
/// Of what the neighbour keeps beside a plain flow.
const KEEPS: f64 = 0.8;
/// From which network the laptop comes, and to which.
const CASES: [[Net; 2]; 3] = [[WIFI, LTE], [LTE, WIFI], [WCDMA, WLAN]];

/// When the neighbour's download began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Neighbour {
    /// Before the laptop learned the path.
    Known,
    /// While the laptop was away.
    Since,
}

impl Neighbour {
    fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Since => "come_since",
        }
    }
}

/// The neighbour's share of the link in each span, percent.
type Shares = [f64; 2];

/// Measures, and adds to the report.
///
/// # Errors
/// When something could not be measured.
pub(super) fn add_to(report: &mut Report, options: &Options) -> Result<()> {
    for pair in CASES {
        if format!("fairness-{}", pair[1].name).contains(&options.only) {
            measure(report, options, pair)?;
        }
    }
    Ok(())
}

fn measure(report: &mut Report, options: &Options, pair: [Net; 2]) -> Result<()> {
    let cases: Vec<(Neighbour, Begins)> = [Neighbour::Known, Neighbour::Since]
        .into_iter()
        .flat_map(|neighbour| [Begins::AsLeft, Begins::Restored].map(|begins| (neighbour, begins)))
        .collect();
    // For each case and span: beside the laptop, and beside the newcomer.
    let mut series: Vec<[[Samples; 2]; 2]> = vec![Default::default(); cases.len()];
    for run in 0..options.runs(5, 1) {
        for ((neighbour, begins), series) in cases.iter().zip(&mut series) {
            let title = format!("fairness to {} {} {}", pair[1].name, neighbour.name(), begins.name());
            let shares = one_run(options, pair, *neighbour, *begins, run % 2 == 0);
            let shares = shares.map_err(|error| format!("{title}: {error}"))?;
            eprintln!("{title}: {:.1?} % beside it, {:.1?} % beside a plain flow", shares[0], shares[1]);
            for (span, samples) in series.iter_mut().enumerate() {
                samples.iter_mut().zip(shares).for_each(|(samples, share)| samples.push(share[span]));
            }
        }
    }
    for ((neighbour, begins), series) in cases.iter().zip(&series) {
        for (span, [beside, plain]) in SPANS.into_iter().zip(series) {
            let to = format!("fair_{}_{}ms", pair[1].name, span.as_millis());
            let id = format!("{to}_{}_{}", neighbour.name(), begins.name());
            let figure = Figure::paired(&id, "%", beside, plain);
            let held = *begins == Begins::Restored;
            report.add(if held { figure.bound(Bound::RatioAtLeast(KEEPS)) } else { figure });
        }
    }
    Ok(())
}

/// The neighbour's share beside the laptop's flow, and beside the newcomer's.
fn one_run(
    options: &Options,
    pair: [Net; 2],
    neighbour: Neighbour,
    begins: Begins,
    newcomer_first: bool,
) -> Result<[Shares; 2]> {
    let [from, to] = pair;
    let mut place = Place::build(options, pair, "cubic", begins)?;
    let mut inhabitant = |name: &str| -> Result<Host> {
        let host = client(&mut place.lab, name)?;
        host.join(&place.sites[1].network, &Join::default())?;
        Ok(host)
    };
    let (resident, newcomer) = (inhabitant("neighbour")?, inhabitant("newcomer")?);
    let own = place.server.download(&place.laptop)?;
    let early = if neighbour == Neighbour::Known { Some(place.plain.download(&resident)?) } else { None };
    let rest = to.stay(STAY).max(from.stay(STAY));
    std::thread::sleep(rest);
    place.go(1)?;
    std::thread::sleep(rest);
    place.go(0)?;
    let resident = early.map_or_else(|| place.plain.download(&resident), Ok)?;
    let mut beside = [[0.0; 2]; 2];
    // The laptop and the newcomer take turns in being the first.
    for turn in 0..2 {
        std::thread::sleep(rest);
        if (turn == 0) == newcomer_first {
            let began = MonoTime::now();
            let other = place.plain.download(&newcomer)?;
            beside[1] = shares(&resident, began, to)?;
            other.end()?;
        } else {
            let came = place.go(1)?;
            beside[0] = shares(&resident, came, to)?;
            place.go(0)?;
        }
    }
    own.end()?;
    resident.end()?;
    Ok(beside)
}

/// Of the link's rate, in each of the spans.
fn shares(of: &Download, from: MonoTime, link: Net) -> Result<Shares> {
    let came = of.heard.in_times(from, &SPANS)?;
    let share = |span: usize| came[span] as f64 * 800.0 / link.rate as f64 / SPANS[span].as_secs_f64();
    Ok([share(0), share(1)])
}
