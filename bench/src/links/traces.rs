//! Hand-offs in the four NAT cases of the VHF report as traces of sequence numbers and windows, as in its figures 4 to
//! 6: what was sent by either network, and what came to the program. In the last one the host behind the NAT is the one
//! that stays, and the hand-off is a soft one: what is under way on the network before still comes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use whimbrel_lab::{Campus, Direction, Gateway, Join, Lab, Leave, Link, MonoTime, NatKind, SiteSpec, Wire};

use super::course::{Sampler, Seen, draw};
use super::net::{LAN, Net, Server, WCDMA, WLAN, client};
use crate::Result;
use crate::report::{Figure, Report, Samples};
use crate::roam::Options;

/// On the network before.
const STAY: Duration = Duration::from_secs(6);
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(5);
/// Both networks, where the hand-off is a soft one.
const OVERLAP: Duration = Duration::from_secs(2);

/// A hand-off between networks that are behind NATs or not.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    title: &'static str,
    from: (Net, bool),
    to: (Net, bool),
    /// Whether the host that stays is behind a NAT. Then it asks and the one that moves sends.
    fixed: bool,
    /// How much is drawn after it, and before it no more than that.
    drawn: Duration,
}

const CASES: [Case; 4] = [
    Case {
        name: "public",
        title: "From a public LAN to a public WLAN",
        from: (LAN, false),
        to: (WLAN, false),
        fixed: false,
        drawn: AFTER,
    },
    Case {
        name: "into_nat",
        title: "From a public LAN to a WLAN behind a NAT",
        from: (LAN, false),
        to: (WLAN, true),
        fixed: false,
        drawn: AFTER,
    },
    Case {
        name: "between_nats",
        title: "From a WLAN behind a NAT to WCDMA behind another",
        from: (WLAN, true),
        to: (WCDMA, true),
        fixed: false,
        drawn: AFTER,
    },
    Case {
        name: "fixed_behind_nat",
        title: "From a public WLAN to a public LAN, the host that stays behind a NAT",
        from: (WLAN, false),
        to: (LAN, false),
        fixed: true,
        drawn: Duration::from_millis(200),
    },
];

/// Measures, draws, and adds to the report.
///
/// # Errors
/// When something could not be measured, or nothing came after a hand-off.
pub(super) fn add_to(report: &mut Report, options: &Options) -> Result<()> {
    for case in CASES.into_iter().filter(|case| format!("traces-{}", case.name).contains(&options.only)) {
        let mut silence = Samples::default();
        for _ in 0..options.runs(3, 1) {
            let took = case.run(options).map_err(|error| format!("traces-{}: {error}", case.name))?;
            silence.push(took.as_secs_f64() * 1e3);
        }
        report.add(Figure::new(&format!("trace_{}_silence", case.name), "ms", &silence));
    }
    Ok(())
}

impl Case {
    /// The longest time in which nothing came, from the hand-off on.
    fn run(self, options: &Options) -> Result<Duration> {
        let mut lab = Lab::new(options.setup.lab_options())?;
        let mut campus = Campus::new(&mut lab)?;
        let mut site = |spec: SiteSpec, nat: bool| {
            let kind = Gateway::OfKind { kind: NatKind::Symmetric, rewrites: true };
            campus.add(&mut lab, spec.behind(if nat { kind } else { Gateway::Router }))
        };
        let access = |name: &str| SiteSpec { access: Wire::Veth, ..SiteSpec::named(name).v4_only() };
        let before = site(access("a").uplink(self.from.0.shape()), self.from.1)?;
        let after = site(access("b").uplink(self.to.0.shape()), self.to.1)?;
        let home = site(SiteSpec::named("s").v4_only().fast(), self.fixed)?;
        let (laptop, fixed) = (client(&mut lab, "laptop")?, client(&mut lab, "fixed")?);
        let there = fixed.join(&home.network, &Join::by("eth0"))?;
        let mut at = laptop.join(&before.network, &Join::default())?;
        let _daemons = [laptop.whimbrel()?, fixed.whimbrel()?];
        let (server, receiver) = if self.fixed {
            (Server { host: laptop.clone(), address: at.ipv4()? }, &fixed)
        } else {
            (Server { host: fixed.clone(), address: there.ipv4()? }, &laptop)
        };
        let download = server.download(receiver)?;
        let towards = if self.fixed { Direction::Up } else { Direction::Down };
        let sent = [Sent::on(before.link()?, towards), Sent::on(after.link()?, towards)];
        let sampler = Sampler::begin(download.near.try_clone()?);
        std::thread::sleep(STAY);
        let usable_at = if self.fixed {
            let next = laptop.join(&after.network, &Join::by("eth0").metric(50))?;
            std::thread::sleep(OVERLAP);
            laptop.leave(&at, Leave::Orderly)?;
            next.usable_at
        } else {
            at = laptop.roam(&at, &after.network, &Join::default())?;
            at.usable_at
        };
        let begin = MonoTime(usable_at.0.saturating_sub(BEFORE.as_nanos() as u64));
        let came = download.heard.arrivals(begin, BEFORE + AFTER)?;
        let silence =
            longest_gap([usable_at, begin + BEFORE + AFTER], &came).ok_or("nothing came after the hand-off")?;
        let [old, new] = sent.map(|sent| sent.all());
        let begin = begin.max(MonoTime(usable_at.0.saturating_sub(self.drawn.as_nanos() as u64)));
        let end = usable_at + self.drawn;
        let mut windows = sampler.since(begin);
        windows.retain(|(time, _)| *time <= end);
        let window = Seen::new("window", usable_at, &[], windows);
        let traces = [("sent by the network before", old), ("sent by the new one", new), ("has come", came)];
        let traces = traces.map(|(name, mut what)| {
            what.retain(|(time, _)| (begin..=end).contains(time));
            Seen::new(name, usable_at, &what, Vec::new())
        });
        draw(self.title, &format!("links-trace-{}", self.name.replace('_', "-")), [vec![window], traces.into()])?;
        download.end()?;
        Ok(silence)
    }
}

/// When how many bytes were sent into a link towards the receiver.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<(MonoTime, u64)>>>);

impl Sent {
    fn on(link: &Link, towards: Direction) -> Self {
        let sent = Self::default();
        let seen = sent.clone();
        link.observe(move |direction, frame| {
            if direction == towards && frame.ip().is_some() {
                let mut seen = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push((MonoTime::now(), frame.bytes().len() as u64));
            }
        });
        sent
    }

    fn all(&self) -> Vec<(MonoTime, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Between these moments; nothing where nothing came.
fn longest_gap([from, until]: [MonoTime; 2], came: &[(MonoTime, u64)]) -> Option<Duration> {
    let times: Vec<MonoTime> = came.iter().map(|(time, _)| *time).filter(|time| *time > from).collect();
    let starts = std::iter::once(from).chain(times.iter().copied());
    let ends = times.iter().copied().chain([until]);
    starts.zip(ends).map(|(start, end)| end - start).max().filter(|_| !times.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_begins_with_the_hand_off() {
        let at = |ms: u64| MonoTime(ms * 1_000_000);
        let came = [(at(10), 1), (at(160), 1), (at(170), 1)];
        assert_eq!(longest_gap([at(100), at(175)], &came), Some(Duration::from_millis(60)));
        assert_eq!(longest_gap([at(100), at(300)], &came), Some(Duration::from_millis(130)));
        assert_eq!(longest_gap([at(170), at(300)], &came), None);
    }
}
