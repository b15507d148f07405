//! What comes in the first moments after a hand-off between links of other rates and delays (the VHF report's Table 4),
//! by the congestion control and by what it begins with there: as a hand-off leaves it, in a slow start that is forced
//! on it, or with what it had there before (docs/decisions/0109). The laptop is on A, then on B, and comes back to A
//! and to B: these three hand-offs are measured, the first one as one to a network that nothing is known of.

use std::time::Duration;

use whimbrel_datapath::{Resumption, Windows, monotonic};
use whimbrel_lab::MonoTime;
use whimbrel_wire::FlowTuple;

use super::course::{Sampler, Seen};
use super::net::{Begins, GIGABIT, LAN, LTE, Net, Place, SATELLITE, SPANS, WCDMA, WIFI, WLAN};
use crate::Result;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;
use crate::stream::within;

const SECOND: Duration = Duration::from_secs(1);
/// What is looked at after a hand-off.
const AFTER: Duration = Duration::from_secs(5);
/// What is drawn of what went before.
const BEFORE: Duration = SECOND;
/// On each network before it is left again, at the least.
const STAYS: [Duration; 3] = [Duration::from_secs(6), Duration::from_secs(8), Duration::from_secs(6)];
const CONTROLS: [&str; 3] = ["reno", "cubic", "bbr"];
/// RFC 6928, segments.
const INITIAL_WINDOW: u64 = 10;
/// The issue's: over Reno as a hand-off leaves it, where the path holds four initial windows, and over the best of the
/// others.
const TIMES_RENO: f64 = 2.3;
const OF_BEST: f64 = 0.95;
/// The report's three networks with one another, and today's four.
const PAIRS: [(&str, [Net; 2]); 9] = [
    ("report", [LAN, WLAN]),
    ("report", [LAN, WCDMA]),
    ("report", [WLAN, WCDMA]),
    ("today", [WIFI, LTE]),
    ("today", [GIGABIT, WIFI]),
    ("today", [GIGABIT, LTE]),
    ("today", [GIGABIT, SATELLITE]),
    ("today", [WIFI, SATELLITE]),
    ("today", [LTE, SATELLITE]),
];

/// Measures, and adds to the report.
///
/// # Errors
/// When something could not be measured.
pub(super) fn add_to(report: &mut Report, options: &Options) -> Result<()> {
    let wanted = PAIRS.into_iter().filter(|(set, [a, b])| {
        let part = format!("{set}-{}_{}", a.name, b.name);
        part.contains(&options.only)
    });
    for (_, pair) in wanted {
        measure(report, options, pair)?;
    }
    Ok(())
}

fn measure(report: &mut Report, options: &Options, pair: [Net; 2]) -> Result<()> {
    pair.iter().for_each(|net| eprintln!("{}", net.describe()));
    // For each hand-off, control, beginning and span.
    let mut series: [[[[Samples; 3]; 3]; 3]; HANDOFFS] = Default::default();
    // For each hand-off and control, the last run of each beginning.
    let mut seen: [[Vec<Seen>; 3]; HANDOFFS] = Default::default();
    for _ in 0..options.runs(3, 1) {
        seen = Default::default();
        for (control, name) in CONTROLS.into_iter().enumerate() {
            for (begins, how) in Begins::ALL.into_iter().enumerate() {
                let came = one_run(options, pair, name, how);
                let came =
                    came.map_err(|error| format!("{}_{} {name} {}: {error}", pair[0].name, pair[1].name, how.name()))?;
                for (handoff, (bytes, course)) in came.into_iter().enumerate() {
                    eprintln!("{} {name} {}: {bytes:?} bytes", course_of(pair, handoff), how.name());
                    for (span, bytes) in bytes.into_iter().enumerate() {
                        series[handoff][control][begins][span].push(bytes as f64 / 1e3);
                    }
                    seen[handoff][control].push(course);
                }
            }
        }
    }
    for (handoff, (series, seen)) in series.iter().zip(seen).enumerate() {
        let name = course_of(pair, handoff);
        add(report, &name, pair[handoff.min(1)], series);
        for (control, seen) in CONTROLS.into_iter().zip(seen) {
            let title = format!("{}, {control}", name.replace('_', " "));
            let file = format!("links-{}-{control}", name.replace('_', "-"));
            super::course::draw(&title, &file, [seen.clone(), seen])?;
        }
    }
    Ok(())
}

/// Back, there again, and the first of all.
const HANDOFFS: usize = 3;

/// What a hand-off is called.
fn course_of([a, b]: [Net; 2], handoff: usize) -> String {
    match handoff {
        0 => format!("{}_to_{}", b.name, a.name),
        1 => format!("{}_to_{}", a.name, b.name),
        _ => format!("{}_to_{}_first", a.name, b.name),
    }
}

/// All figures of one hand-off.
fn add(report: &mut Report, name: &str, to: Net, series: &[[[Samples; 3]; 3]; 3]) {
    let [[reno, ..], ..] = series;
    for (span, milliseconds) in SPANS.into_iter().enumerate() {
        let counts = to.counts.contains(&milliseconds);
        for (control, series) in CONTROLS.into_iter().zip(series) {
            let id = format!("{name}_{milliseconds}ms_{control}");
            let [as_left, slow_start, restored] = series.each_ref().map(|of| &of[span]);
            report.add(Figure::against(&format!("{id}_as_left"), "kB", as_left, &reno[span]));
            report.add(Figure::against(&format!("{id}_slow_start"), "kB", slow_start, &reno[span]));
            let figure = Figure::against(&format!("{id}_restored"), "kB", restored, &reno[span]);
            let held = counts && to.holds() >= 4 * INITIAL_WINDOW;
            report.add(if held { figure.bound(Bound::RatioAtLeast(TIMES_RENO)) } else { figure });
            let best = if as_left.median() >= slow_start.median() { as_left } else { slow_start };
            let figure = Figure::against(&format!("{id}_restored_of_best"), "kB", restored, best);
            report.add(if counts { figure.bound(Bound::RatioAtLeast(OF_BEST)) } else { figure });
        }
    }
}

/// What came after each of the hand-offs in each span, and how it went.
fn one_run(options: &Options, pair: [Net; 2], control: &str, begins: Begins) -> Result<[([u64; 3], Seen); HANDOFFS]> {
    let mut place = Place::build(options, pair, control, begins)?;
    let download = place.server.download(&place.laptop)?;
    let flow = download.flow()?;
    let sampler = Sampler::begin(download.near.try_clone()?);
    let windows = Windows::default();
    let mut go = |to: usize, stay: Duration| -> Result<([u64; 3], Seen)> {
        std::thread::sleep(stay);
        let at = place.go(to)?;
        if begins == Begins::SlowStart {
            place.server.host.enter(|| force_slow_start(&windows, flow))??;
        }
        let before = MonoTime(at.0.saturating_sub(BEFORE.as_nanos() as u64));
        let came = download.heard.arrivals(before, BEFORE + AFTER)?;
        let seen = Seen::new(begins.name(), at, &came, sampler.since(before));
        Ok((SPANS.map(|span| within(&came, at, Duration::from_millis(span))), seen))
    };
    let [a, b] = pair;
    let first = go(1, a.stay(STAYS[0]))?;
    let back = go(0, b.stay(STAYS[1]) - AFTER)?;
    let again = go(1, a.stay(STAYS[2]) - AFTER)?;
    download.end()?;
    Ok([back, again, first])
}

/// Two segments, and no threshold.
fn force_slow_start(windows: &Windows, flow: FlowTuple) -> Result<()> {
    let since = monotonic()?;
    let (least, smoothed) = (Duration::ZERO, SECOND * 3600);
    windows.resume(&[(
        flow,
        Resumption { since, window: 1, most: 1, threshold: None, least, smoothed, unknown: false },
    )])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_networks_hold_four_initial_windows() {
        assert!(WCDMA.holds() < 4 * INITIAL_WINDOW && WLAN.holds() >= 4 * INITIAL_WINDOW);
        assert!(LAN.holds() >= 4 * INITIAL_WINDOW);
    }

    #[test]
    fn each_of_a_set_is_met_with_each_other() {
        for (set, networks) in [("report", 3), ("today", 4)] {
            assert_eq!(PAIRS.iter().filter(|(of, _)| *of == set).count(), networks * (networks - 1) / 2, "{set}");
        }
    }
}
