//! What comes in the first moments after a hand-off between links of other rates and delays (the VHF report's Table 4),
//! by the congestion control and by what it begins with there: as a hand-off leaves it, in a slow start that is forced
//! on it, or with what it had there before (docs/decisions/0109).
//!
//! ```text
//!  laptop ──(net a)── ra ── link A ── core ──(net s)── server, which sends as fast as it goes
//!         ──(net b)── rb ── link B ── core
//! ```
//!
//! The laptop is on A, then on B, and comes back to A and to B: these two hand-offs are measured. Its old address
//! vanishes as the new one appears, so what is under way is lost.

mod silence;

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use whimbrel_datapath::{Resumption, Windows, monotonic};
use whimbrel_lab::{Attachment, Campus, Host, Join, Lab, Shape, Site, SiteSpec, Wire};
use whimbrel_wire::{FlowTuple, Transport};

use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;
use crate::stream::{Heard, Sender};

const SECOND: Duration = Duration::from_secs(1);
/// After a hand-off, ms.
const SPANS: [u64; 3] = [200, 1_000, 5_000];
/// On the first network, and on each before it is left again.
const STAYS: [Duration; 3] = [Duration::from_secs(6), Duration::from_secs(8), Duration::from_secs(6)];
const CONTROLS: [&str; 3] = ["reno", "cubic", "bbr"];
/// Of Ethernet frames, bytes.
const FRAME: u64 = 1514;
/// RFC 6928, segments.
const INITIAL_WINDOW: u64 = 10;
/// The issue's: over Reno as a hand-off leaves it, where the path holds four initial windows, and over the best of the
/// others.
const TIMES_RENO: f64 = 2.3;
const OF_BEST: f64 = 0.95;

/// A network to be on. The report gives neither delays nor queues of its own.
#[derive(Clone, Copy, Debug)]
struct Net {
    name: &'static str,
    /// One way, microseconds.
    delay: u64,
    /// Bits a second.
    rate: u64,
    /// Frames that wait.
    queue: usize,
    /// The spans that count for what is gone to, ms.
    counts: &'static [u64],
}

const WLAN: Net = Net { name: "wlan", delay: 5_000, rate: 5_000_000, queue: 50, counts: &[1_000] };
const WCDMA: Net = Net { name: "wcdma", delay: 75_000, rate: 384_000, queue: 30, counts: &[5_000] };
const WIFI: Net = Net { name: "wifi", delay: 2_500, rate: 200_000_000, queue: 250, counts: &SPANS };
const LTE: Net = Net { name: "lte", delay: 25_000, rate: 40_000_000, queue: 250, counts: &SPANS };
const PAIRS: [[Net; 2]; 2] = [[WLAN, WCDMA], [WIFI, LTE]];

impl Net {
    fn shape(self) -> Shape {
        Shape { rate: Some(self.rate), queue_packets: self.queue, ..Shape::delay(Duration::from_micros(self.delay)) }
    }

    /// Frames under way and waiting, at the most.
    fn holds(self) -> u64 {
        2 * self.delay * self.rate / 8 / 1_000_000 / FRAME + self.queue as u64
    }

    fn describe(self) -> String {
        let Self { name, delay, rate, queue, .. } = self;
        let (round_trip, rate) = (2 * delay / 1000, rate / 1000);
        format!("{name}: {rate} kbit/s, round trip {round_trip} ms, {queue} frames wait, holds {} frames", self.holds())
    }
}

/// What TCP begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    AsLeft,
    SlowStart,
    Restored,
}

impl Begins {
    const ALL: [Self; 3] = [Self::AsLeft, Self::SlowStart, Self::Restored];

    fn name(self) -> &'static str {
        match self {
            Self::AsLeft => "as_left",
            Self::SlowStart => "slow_start",
            Self::Restored => "restored",
        }
    }
}

/// Measures and reports.
///
/// # Errors
/// When something could not be measured.
pub fn run(options: &Options) -> Result<()> {
    warn_if_busy();
    for net in PAIRS.into_iter().flatten() {
        eprintln!("{}", net.describe());
    }
    let mut report = Report::new("links");
    for pair in PAIRS {
        if !format!("{}_{}", pair[0].name, pair[1].name).contains(&options.only) {
            continue;
        }
        // For each hand-off, control, beginning and span.
        let mut series: [[[[Samples; 3]; 3]; 3]; 2] = Default::default();
        for _ in 0..options.runs(3, 1) {
            for (control, name) in CONTROLS.into_iter().enumerate() {
                for (begins, how) in Begins::ALL.into_iter().enumerate() {
                    let came = one_run(options, pair, name, how);
                    let came = came.map_err(|error| format!("{} {name} {}: {error}", pair[0].name, how.name()))?;
                    for (handoff, came) in came.iter().enumerate() {
                        eprintln!("to {} {name} {}: {came:?} bytes", pair[handoff].name, how.name());
                        for (span, bytes) in came.iter().enumerate() {
                            series[handoff][control][begins][span].push(*bytes as f64 / 1e3);
                        }
                    }
                }
            }
        }
        for (handoff, series) in series.iter().enumerate() {
            add(&mut report, pair[1 - handoff], pair[handoff], series);
        }
    }
    silence::add_to(&mut report, options)?;
    report.finish()?;
    Ok(())
}

/// All figures of one hand-off.
fn add(report: &mut Report, from: Net, to: Net, series: &[[[Samples; 3]; 3]; 3]) {
    let [[reno, ..], ..] = series;
    for (span, milliseconds) in SPANS.into_iter().enumerate() {
        let counts = to.counts.contains(&milliseconds);
        for (control, series) in CONTROLS.into_iter().zip(series) {
            let id = format!("{}_to_{}_{milliseconds}ms_{control}", from.name, to.name);
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

/// What came after each of the two hand-offs, in each span.
fn one_run(options: &Options, pair: [Net; 2], control: &str, begins: Begins) -> Result<[Vec<u64>; 2]> {
    let mut lab = Lab::new(options.setup.lab_options())?;
    let mut campus = Campus::new(&mut lab)?;
    let mut site = |name: &str, net: Net| -> Result<Site> {
        let spec = SiteSpec { access: Wire::Veth, ..SiteSpec::named(name).v4_only() };
        Ok(campus.add(&mut lab, spec.uplink(net.shape()))?)
    };
    let sites = [site("a", pair[0])?, site("b", pair[1])?];
    let at_server = campus.add(&mut lab, SiteSpec::named("s").v4_only().fast())?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    server.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
    let join = Join { congestion: control.into(), ..Join::by("eth0") };
    let address = server.join(&at_server.network, &join)?.ipv4()?;
    let mut at = laptop.join(&sites[0].network, &Join::default())?;
    let config = if begins == Begins::Restored { "windows = true\n" } else { "windows = false\n" };
    let _daemons = [laptop.whimbrel_with(config)?, server.whimbrel_with(config)?];

    let listener = server.enter(|| TcpListener::bind((address, 0)))??;
    let to = listener.local_addr()?;
    let heard = Heard::begin(laptop.enter(|| TcpStream::connect_timeout(&to, SECOND * 10))??);
    let (near, _) = listener.accept()?;
    let flow = FlowTuple { transport: Transport::Tcp, local: near.local_addr()?, remote: near.peer_addr()? };
    let sender = Sender::begin(near.try_clone()?)?;
    let windows = Windows::default();
    let mut go = |to: &Site, stay: Duration| -> Result<Vec<u64>> {
        std::thread::sleep(stay);
        at = roam(&laptop, &at, to)?;
        if begins == Begins::SlowStart {
            server.enter(|| force_slow_start(&windows, flow))??;
        }
        heard.in_times(at.usable_at, &SPANS.map(Duration::from_millis))
    };
    go(&sites[1], STAYS[0])?;
    let back = go(&sites[0], STAYS[1] - SECOND * 5)?;
    let again = go(&sites[1], STAYS[2] - SECOND * 5)?;
    drop(sender.end());
    Ok([back, again])
}

fn roam(laptop: &Host, from: &Attachment, to: &Site) -> Result<Attachment> {
    Ok(laptop.roam(from, &to.network, &Join::default())?)
}

/// Two segments, and no threshold.
fn force_slow_start(windows: &Windows, flow: FlowTuple) -> Result<()> {
    let since = monotonic()?;
    let (least, smoothed) = (Duration::ZERO, Duration::from_secs(3600));
    windows.resume(&[(flow, Resumption { since, window: 1, most: 1, threshold: None, least, smoothed })])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_holds_is_what_is_under_way_and_what_waits() {
        assert_eq!(LTE.holds(), 165 + 250);
        assert!(WCDMA.holds() < 4 * INITIAL_WINDOW && WLAN.holds() >= 4 * INITIAL_WINDOW);
    }
}
