//! How soon the first byte comes after a sleep of a minute, and of an hour: a laptop that has said that it goes, one
//! that has not, and one that runs no Whimbrel and comes back to the very network that it had.
//!
//! The minute is one. The hour is a sixtieth of one, with the longest pause between two retransmissions scaled alike
//! (`tcp_rto_max_ms`, Linux 6.15: 2 s instead of 120 s): a sender has sent as often in vain as in an hour, and its next
//! try is as far away, in units of the sleep. Round trips, and what the daemons do, are as they are.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use whimbrel_ipc::Away;
use whimbrel_lab::{
    Campus, Cut, FlowPair, Join, Lab, Leave, MonoTime, Options as LabOptions, PairOptions, Shape, Side, SiteSpec,
    Whimbrel, wait_for, wait_until,
};

use crate::Result;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

/// ms
const ROUND_TRIP: u64 = 40;
/// Two round trips and 50 ms (issue: VNAT), in ms.
const BOUND: f64 = 2.0 * ROUND_TRIP as f64 + 50.0;
/// How long everybody sleeps, in real time.
const SLEEP: Duration = Duration::from_secs(60);
/// How much longer the next run's is: when TCP tries again by itself is a matter of chance.
const STAGGER: Duration = Duration::from_secs(13);
/// The longest pause between retransmissions where the sleep stands for an hour: 120 s scaled as that is.
const SCALED_PAUSE: &str = "2000";
/// As often as the kernel lets one say: without Whimbrel TCP would give up a quarter of an hour into the sleep.
const PATIENT: &str = "255";
/// Of the download, bits a second.
const RATE: u64 = 4_000_000;
const LONG: Duration = Duration::from_secs(20);
/// When a first byte is taken not to come any more: the pause after a minute is a minute.
const NEVER: Duration = Duration::from_secs(150);

/// What the sleep stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Minute,
    Hour,
}

/// How the laptop goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goes {
    /// `whimbrel suspend`, and another network afterwards.
    Told,
    /// Without a word, and another network afterwards.
    Vanished,
    /// No Whimbrel; the link is cut, and restored.
    Without,
}

impl Stands {
    const ALL: [Self; 2] = [Self::Minute, Self::Hour];

    fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour_scaled",
        }
    }
}

const GOING: [Goes; 3] = [Goes::Told, Goes::Vanished, Goes::Without];

/// Adds what was measured to a report. All sleep at the same time, and are set up and wake one after the other.
pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let runs = options.runs.map_or(if options.quick { 1 } else { 5 }, |runs| runs.min(5));
    let turn = Mutex::new(());
    let mut stands: Vec<Stands> = Stands::ALL.to_vec();
    if !std::path::Path::new("/proc/sys/net/ipv4/tcp_rto_max_ms").exists() {
        eprintln!("this kernel has no tcp_rto_max_ms (Linux 6.15): there is no short hour");
        stands.retain(|stands| *stands == Stands::Minute);
    }
    let lab = || options.setup.lab_options();
    let outcomes: Vec<Result<(Stands, Goes, f64)>> = std::thread::scope(|scope| {
        let cases = stands.iter().flat_map(|stands| GOING.map(|goes| (*stands, goes)));
        let lanes: Vec<_> = (0..runs)
            .flat_map(|run| cases.clone().map(move |(stands, goes)| (run, stands, goes)))
            .map(|(run, stands, goes)| {
                let (turn, sleep) = (&turn, SLEEP + STAGGER * run as u32);
                scope.spawn(move || Ok((stands, goes, first_byte(lab(), (stands, goes), sleep, turn)?)))
            })
            .collect();
        lanes.into_iter().map(|lane| lane.join().map_err(|_| "a measuring thread panicked")?).collect()
    });
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    for (stands, goes, first) in &outcomes {
        eprintln!("{} {goes:?}: {first:.0} ms", stands.name());
    }
    for stands in stands {
        let of = |goes| -> Samples {
            outcomes.iter().filter(|(of, how, _)| (*of, *how) == (stands, goes)).map(|(.., first)| *first).collect()
        };
        let without = of(Goes::Without);
        for (name, of) in [("told", of(Goes::Told)), ("vanished", of(Goes::Vanished))] {
            let id = format!("sleep_{}_{name}_first_byte", stands.name());
            report.add(Figure::against(&id, "ms", &of, &without).bound(Bound::AtMost(BOUND)));
            let id = format!("sleep_{}_{name}_slowest", stands.name());
            report.add(Figure::from_value(&id, "ms", of.percentile(100.0), &of));
        }
    }
    Ok(())
}

/// Has one laptop sleep; ms from its being in a network again to the first new byte of a download.
fn first_byte(options: LabOptions, case: (Stands, Goes), sleep: Duration, turn: &Mutex<()>) -> Result<f64> {
    let (stands, goes) = case;
    let mine = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let mut lab = Lab::new(options)?;
    let mut campus = Campus::new(&mut lab)?;
    let uplink = || Shape { rate: Some(100_000_000), ..Shape::delay(Duration::from_millis(ROUND_TRIP / 2)) };
    let a = campus.add(&mut lab, SiteSpec::named("a").uplink(uplink()))?;
    let b = campus.add(&mut lab, SiteSpec::named("b").uplink(uplink()))?;
    let s = campus.add(&mut lab, SiteSpec::named("s").fast())?;
    let (laptop, server) = (lab.host("laptop")?, lab.host("server")?);
    for host in [&laptop, &server] {
        host.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
        if stands == Stands::Hour {
            host.sysctl("net.ipv4.tcp_rto_max_ms", SCALED_PAUSE)?;
        }
        if goes == Goes::Without {
            host.sysctl("net.ipv4.tcp_retries2", PATIENT)?;
        }
    }
    let address = server.join(&s.network, &Join::by("eth0"))?.ipv4()?;
    let at = laptop.join(&a.network, &Join::default())?;
    let daemons = match goes {
        Goes::Without => None,
        Goes::Told | Goes::Vanished => Some([laptop.whimbrel()?, server.whimbrel()?]),
    };
    let mut pair = FlowPair::tcp(&laptop, &server, address, &PairOptions::download(Some(RATE)))?;
    pair.wait_progress_of(&[Side::Client], 100_000, LONG)?;
    if let Some([client, _]) = &daemons {
        client.wait_introduced(&pair, LONG)?;
    }
    match (&daemons, goes) {
        (Some([client, there]), Goes::Told) => {
            client.cli(&["suspend"])?;
            wait_away(there, Away::Announced)?;
            laptop.leave(&at, Leave::Orderly)?;
        }
        (Some([_, there]), _) => {
            laptop.leave(&at, Leave::Orderly)?;
            wait_away(there, Away::Silent)?;
        }
        (None, _) => a.link()?.cut(Cut::Silent)?,
    }
    drop(mine);
    std::thread::sleep(sleep);
    let mine = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let back = match &daemons {
        None => {
            let back = MonoTime::now();
            a.link()?.restore()?;
            // It has nothing to do with the machine when TCP tries again.
            drop(mine);
            let first = wait_for(NEVER, "a new byte", || pair.resumed(Side::Client, back))?;
            return Ok(milliseconds(first, back));
        }
        Some([client, _]) => {
            if goes == Goes::Told {
                // As whimbrel-sleep.service does: the machine is awake before it has a network.
                client.cli(&["resume"])?;
            }
            laptop.join(&b.network, &Join::default())?.usable_at
        }
    };
    let first = wait_for(NEVER, "a new byte", || pair.resumed(Side::Client, back))?;
    drop(mine);
    Ok(milliseconds(first, back))
}

fn milliseconds(first: MonoTime, back: MonoTime) -> f64 {
    first.since(back).as_secs_f64() * 1e3
}

fn wait_away(there: &Whimbrel, how: Away) -> Result<()> {
    let so = || there.peers().is_ok_and(|peers| peers.first().is_some_and(|peer| peer.away == Some(how)));
    Ok(wait_until(LONG, "the laptop is away", so)?)
}
