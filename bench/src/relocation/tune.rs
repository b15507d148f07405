//! Bytes in the first second after a move to a faster path and to a slower one, by what the connection begins with
//! there: all that it had, what every connection begins with, or what Whimbrel has it begin with (docs/decisions/0021).
//!
//! ```text
//!                    ┌── rs ─20 ms, 20 Mbit/s── desk   HOME, at first
//!  far ── ra ── core ┤
//!                    └── rt ─20 ms, ? Mbit/s── guest   HOME, later
//! ```
//!
//! No daemon takes part: the socket's address moves along, by a route, so that nothing differs but the socket's state.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use whimbrel_kernel::checkpoint::{Checkpoint, Defaults, expect_round_trip};
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_lab::{Campus, Host, Join, Lab, MonoTime, Shape, Site, SiteSpec};
use whimbrel_wire::snapshot::{Body, PathState, Snapshot};

use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::{Figure, Report, Samples};
use crate::roam::Options;
use crate::stream::{Heard, Sender};

/// One way, ms, and Mbit/s where the connection is at first.
const DELAY: u64 = 20;
const BEFORE: u64 = 20;
const WAY: Duration = Duration::from_millis(2 * DELAY);
/// Where it goes to.
const RATES: [u64; 2] = [200, 5];
const HOME: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 77);
/// Sent before the move, bytes: until the former path is filled.
const FILLED: u64 = 6_000_000;
const SECOND: Duration = Duration::from_secs(1);

/// What a connection begins with on its new path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    SlowStart,
    CarriedOver,
    Ours,
}

impl Begins {
    const ALL: [Self; 3] = [Self::SlowStart, Self::CarriedOver, Self::Ours];

    fn name(self) -> &'static str {
        match self {
            Self::SlowStart => "slow_start",
            Self::CarriedOver => "carried_over",
            Self::Ours => "ours",
        }
    }

    /// The congestion window that it begins with, in segments, where that is not the usual one.
    fn window(self, path: &PathState) -> Option<u32> {
        match self {
            Self::SlowStart => None,
            Self::CarriedOver => Some(path.congestion_window),
            Self::Ours => path.first_window(Some(WAY), false),
        }
    }

    /// The round trip that its first timeout reckons with, where it is said.
    fn round_trip(self, path: &PathState) -> Option<Duration> {
        (self == Self::Ours).then(|| path.longest_round_trip(Some(WAY))).flatten()
    }
}

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
    let mut report = Report::new("move-tune");
    for rate in RATES {
        let id = format!("to_{rate}");
        if !id.contains(&options.only) {
            continue;
        }
        let mut series: [Samples; 3] = Default::default();
        for _ in 0..options.runs(3, 1) {
            for (begins, samples) in Begins::ALL.into_iter().zip(&mut series) {
                let bytes = one_run(options, rate, begins).map_err(|error| format!("{id}: {error}"))?;
                eprintln!("{id} {}: {:.2} MB in the first second", begins.name(), bytes as f64 / 1e6);
                samples.push(bytes as f64 / 1e6);
            }
        }
        let [slow, carried, ours] = &series;
        report.add(Figure::new(&format!("{id}_slow_start"), "MB", slow));
        report.add(Figure::against(&format!("{id}_carried_over"), "MB", carried, slow));
        report.add(Figure::against(&format!("{id}_ours"), "MB", ours, slow));
    }
    Ok(report)
}

struct Place {
    host: Host,
    site: Site,
    address: IpAddr,
}

fn one_run(options: &Options, rate: u64, begins: Begins) -> Result<u64> {
    let mut lab = Lab::new(options.setup.lab_options())?;
    let mut campus = Campus::new(&mut lab)?;
    let mut place = |name: &str, site: &str, shape: Option<Shape>| -> Result<Place> {
        let spec = SiteSpec::named(site).v4_only().fast();
        let site = campus.add(&mut lab, shape.map_or(spec.clone(), |shape| spec.uplink(shape)))?;
        let host = lab.host(name)?;
        let address = host.join(&site.network, &Join::by("eth0"))?.ipv4()?;
        Ok(Place { host, site, address })
    };
    let far = place("far", "a", None)?;
    let desk = place("desk", "s", Some(Shape::delay_rate(DELAY, BEFORE)))?;
    let guest = place("guest", "t", Some(Shape::delay_rate(DELAY, rate)))?;
    for place in [&desk, &guest] {
        place.host.ip([format!("addr add {HOME}/32 dev lo")])?;
        place.site.router.ip([format!("route add {HOME}/32 via {}", place.address)])?;
    }
    let core = campus.core.clone();
    let lead = |to: &Place| core.ip([format!("route replace {HOME}/32 via {}", to.site.outside)]);
    lead(&desk)?;

    let listener = desk.host.enter(|| TcpListener::bind((HOME, 0)))??;
    let to = listener.local_addr()?;
    let heard = Heard::begin(far.host.enter(|| TcpStream::connect_timeout(&to, SECOND * 10))??);
    let (near, _) = listener.accept()?;
    let sender = Sender::begin(near.try_clone()?)?;
    heard.wait(FILLED)?;
    let _left = sender.end()?;
    let checkpoint = Checkpoint::freeze(near.into())?;
    let mut sockets_here = desk.host.enter(SockDiag::open)??;
    let snapshot = checkpoint.dump(&desk.host.enter(Defaults::look)??, &mut sockets_here)?;
    let path = path_of(&snapshot)?;
    if let Some(window) = begins.window(path) {
        begin_with(&guest, far.address, window)?;
    }
    let (injector, restored) = guest.host.enter(|| -> Result<(Injector, Checkpoint)> {
        let injector = Injector::open()?;
        if let Some(round_trip) = begins.round_trip(path) {
            expect_round_trip(HOME.into(), far.address, round_trip, &injector)?;
        }
        let restored = Checkpoint::restore(&snapshot, &injector)?;
        Ok((injector, restored))
    })??;
    checkpoint.destroy(&mut sockets_here)?;
    lead(&guest)?;
    let begun = MonoTime::now();
    let sender = Sender::begin(restored.thaw(&injector)?.into())?;
    let bytes = heard.in_time(begun, SECOND)?;
    drop(sender.end());
    Ok(bytes)
}

fn path_of(snapshot: &Snapshot) -> Result<&PathState> {
    match &snapshot.body {
        Body::Stream(stream) => stream.path.as_ref().ok_or_else(|| "nothing is known of its path".into()),
        _ => Err("it is no stream".into()),
    }
}

/// What is connected to `far` from now on begins with this window.
fn begin_with(at: &Place, far: IpAddr, window: u32) -> Result<()> {
    let routes = at.host.ip_output("-4 route show default")?;
    let mut words = routes.split_whitespace().skip_while(|word| *word != "via").skip(1);
    let gateway = words.next().ok_or("no default route")?;
    Ok(at.host.ip([format!("route add {far}/32 via {gateway} dev eth0 congctl cubic initcwnd {window}")])?)
}
