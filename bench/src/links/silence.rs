//! How soon a network that is silent, or has lost its carrier, is left for another (the VHF report's Table 3), and what
//! it costs to find out (its Table 2): checks, CPU time, throughput.
//!
//! ```text
//!            ┌─ link A ─┐
//!  laptops ──┤          ├── core ── server
//!            └─ link B ─┘
//! ```
//!
//! Each laptop has one connection with the server, and thresholds of its own. The links have no delay. A is what the
//! routes prefer; it is cut for each laptop by itself, and nothing says so.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use whimbrel_lab::{
    Attachment, Campus, Cut, Direction, FlowPair, Host, Join, Lab, Leave, MonoTime, PairOptions, Shape, Side, Site,
    SiteSpec, Whimbrel, Wire, wait_for,
};

use crate::Result;
use crate::machine::cpu;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

/// Report, Table 3: the second threshold and how long a hand-off took, ms.
const TABLE_3: [(u32, f64); 8] =
    [(35, 47.0), (40, 45.0), (45, 51.0), (50, 81.0), (55, 86.0), (60, 88.0), (70, 87.0), (80, 83.0)];
/// Report, Table 2: the first threshold and the checks in 275 s of audio; the second one is 80 ms.
const TABLE_2: [(u32, f64); 6] = [(10, 11448.0), (15, 11447.0), (20, 11453.0), (25, 11445.0), (30, 573.0), (35, 515.0)];
const SECOND_OF_TABLE_2: u32 = 80;
/// Both thresholds as they are by default, ms.
const DEFAULTS: (u32, u32) = (30, 45);
/// Of the audio, s.
const AUDIO: u64 = 275;
const QUICK_AUDIO: u64 = 30;
/// The audio: some 42 datagrams a second, as many as the report's had by its checks, bits a second.
const AUDIO_RATE: u64 = 420_000;
/// What a client sends so that its server knows of it, bits a second.
const SIGN: u64 = 2_000;
/// A stream in both directions, bits a second.
const BOTH: u64 = 1_000_000;
/// Until it is known that nothing is lost on the path: some 550 questions (decision 0106).
const LEARNING: Duration = Duration::from_secs(35);
/// Between two cuts: what is silent again within a minute is come back to later.
const REST: Duration = Duration::from_secs(62);
const LONG: Duration = Duration::from_secs(20);
/// Where the daemons' own datagrams come from.
const CONTROL_PORT: u16 = 2031;
/// The report's Ethernet, and what is sent over it, bits a second.
const ETHERNET: u64 = 100_000_000;
const FLOOD: u64 = 110_000_000;
/// Of one transfer of UDP.
const TRANSFER: Duration = Duration::from_secs(5);

fn vigilant((first, second): (u32, u32)) -> String {
    format!("[links]\nmode = \"vigilant\"\nsh1 = {first}\nsh2 = {second}\n")
}

const IDLE: &str = "[links]\nmode = \"idle\"\n";
const OFF: &str = "[links]\nmode = \"off\"\n";

/// What goes between a laptop and the server.
#[derive(Clone, Copy, Debug)]
enum Load {
    Nothing,
    Both,
    Audio,
    Transfer,
}

struct Place {
    sites: [Site; 2],
    server: Host,
    address: IpAddr,
    laptops: u8,
    _daemon: Whimbrel,
    // Last: the others live in it.
    lab: Lab,
}

struct Laptop {
    host: Host,
    daemon: Whimbrel,
    first: Attachment,
    pair: FlowPair,
}

impl Place {
    /// `access`: of each laptop's links.
    fn build(options: &Options, access: &Shape) -> Result<Self> {
        let mut lab = Lab::new(options.setup.lab_options())?;
        let mut campus = Campus::new(&mut lab)?;
        let mut site = |name: &str| {
            let spec = SiteSpec { access: Wire::shaped(access.clone()), ..SiteSpec::named(name).v4_only() };
            campus.add(&mut lab, SiteSpec { uplink: Wire::Veth, ..spec })
        };
        let sites = [site("a")?, site("b")?];
        let home = campus.add(&mut lab, SiteSpec::named("s").v4_only().fast())?;
        let server = lab.host("server")?;
        let address = server.join(&home.network, &Join::by("eth0"))?.ipv4()?;
        let daemon = server.whimbrel_with(OFF)?;
        Ok(Self { sites, server, address, laptops: 0, _daemon: daemon, lab })
    }

    fn laptop(&mut self, config: &str, load: Load) -> Result<Laptop> {
        let number = self.laptops;
        self.laptops += 1;
        let host = self.lab.host(&format!("laptop{number}"))?;
        let join = |interface: &str, network: [u8; 3], metric: u32| {
            let [a, b, c] = network;
            let address_v4 = Some(Ipv4Addr::new(a, b, c, 10 + number));
            Join { address_v4, v6: false, ..Join::by(interface).metric(metric) }
        };
        let first = host.join(&self.sites[0].network, &join("wlan0", [198, 51, 100], 100))?;
        host.join(&self.sites[1].network, &join("eth0", [203, 0, 113], 500))?;
        let daemon = host.whimbrel_with(config)?;
        let nothing = PairOptions { up: Some(0), down: Some(0), ..PairOptions::default() };
        let pair = match load {
            Load::Nothing => FlowPair::tcp(&host, &self.server, self.address, &nothing)?,
            Load::Both => FlowPair::tcp(&host, &self.server, self.address, &PairOptions::rate(BOTH))?,
            Load::Audio => {
                let audio = PairOptions { down: Some(AUDIO_RATE), up: Some(SIGN), ..PairOptions::default() };
                FlowPair::udp(&host, &self.server, self.address, &audio)?
            }
            Load::Transfer => {
                let sign = PairOptions { up: Some(SIGN), ..nothing };
                FlowPair::udp(&host, &self.server, self.address, &sign)?
            }
        };
        // What is sent one way only is introduced with the first answer, which need not come.
        if matches!(load, Load::Nothing | Load::Both) {
            daemon.wait_introduced(&pair, LONG)?;
        }
        Ok(Laptop { host, daemon, first, pair })
    }
}

impl Laptop {
    fn newest(&self) -> Result<u64> {
        Ok(self.daemon.events(0)?.last().map_or(0, |event| event.number))
    }

    /// Its first network is the one in use, unless a machine that is busy with something else has had it taken for
    /// silent.
    fn wait_first(&self) -> Result<()> {
        let first = self.first.ipv4()?;
        let is_first = || {
            let in_use = self.daemon.paths()?.into_iter().find(|path| path.active);
            Ok(in_use.is_some_and(|path| path.local == Some(first)).then_some(()))
        };
        Ok(wait_for(LONG * 4, "the first network is the one in use", is_first)?)
    }

    /// Its first network is left so: how long until the peer has answered by the other one, ms.
    fn leave(&self, how: Leave) -> Result<f64> {
        self.wait_first()?;
        let before = self.newest()?;
        let cut = MonoTime::now();
        match how {
            // The interface stays: what its removal takes is the lab's.
            Leave::Carrier => self.first.access()?.cut(Cut::Carrier)?,
            _ => self.host.leave(&self.first, how)?,
        }
        let moved = self.daemon.wait_event("moved", before, LONG)?;
        Ok(moved.monotonic_ms as f64 - cut.0 as f64 / 1e6)
    }

    /// Its first network works again, and is come back to.
    fn come_back(&self) -> Result<()> {
        let before = self.newest()?;
        self.first.access()?.restore()?;
        self.daemon.wait_event("moved", before, LONG * 4)?;
        Ok(())
    }
}

/// Measures, and adds to the report.
///
/// # Errors
/// When something could not be measured.
pub(super) fn add_to(report: &mut Report, options: &Options) -> Result<()> {
    let wanted = |part: &str| part.contains(&options.only);
    if wanted("silence-delay") {
        delays(options, report)?;
    }
    if wanted("silence-cost") {
        costs(options, report)?;
    }
    if wanted("silence-throughput") {
        throughput(options, report)?;
    }
    Ok(())
}

/// From the cut to the end of the hand-off.
fn delays(options: &Options, report: &mut Report) -> Result<()> {
    let mut place = Place::build(options, &Shape::default())?;
    let measured = delays_in(&mut place, options, report);
    options.setup.keep("silence", &place.lab)?;
    measured
}

fn delays_in(place: &mut Place, options: &Options, report: &mut Report) -> Result<()> {
    let mut laptops = Vec::new();
    for (second, reports) in TABLE_3 {
        let laptop = place.laptop(&vigilant((DEFAULTS.0, second)), Load::Nothing)?;
        laptops.push((format!("silent_at_rest_sh2_{second}"), laptop, Leave::Silent, Some(reports)));
    }
    let both = place.laptop(&vigilant(DEFAULTS), Load::Both)?;
    laptops.push(("silent_with_traffic".to_owned(), both, Leave::Silent, None));
    let carrier = place.laptop(&vigilant(DEFAULTS), Load::Both)?;
    laptops.push(("carrier".to_owned(), carrier, Leave::Carrier, None));
    let mut series: Vec<Samples> = laptops.iter().map(|_| Samples::default()).collect();
    std::thread::sleep(LEARNING);
    for run in 0..options.runs(11, 2) {
        if run > 0 {
            std::thread::sleep(REST);
        }
        for ((name, laptop, how, _), samples) in laptops.iter().zip(&mut series) {
            let took = laptop.leave(*how).map_err(|error| format!("{name}: {error}"))?;
            eprintln!("{name}: {took:.1} ms");
            samples.push(took);
        }
        for (name, laptop, ..) in &laptops {
            laptop.come_back().map_err(|error| format!("{name}, on its way back: {error}"))?;
        }
    }
    let default = format!("sh2_{}", DEFAULTS.1);
    for ((name, _, how, reports), samples) in laptops.iter().zip(&series) {
        let id = format!("{name}_ms");
        let figure = match reports {
            Some(delay) => Figure::against(&id, "ms", samples, &Samples::from_iter([*delay])),
            None => Figure::new(&id, "ms", samples),
        };
        report.add(match (how, reports.is_some()) {
            (Leave::Carrier, _) => figure.bound(Bound::AtMost(10.0)),
            (_, false) => figure.bound(Bound::AtMost(30.0)),
            (_, true) if name.ends_with(&default) => figure.bound(Bound::AtMost(40.0)),
            (_, true) => figure,
        });
    }
    Ok(())
}

/// What is asked, and what that takes, while nothing fails.
fn costs(options: &Options, report: &mut Report) -> Result<()> {
    let mut place = Place::build(options, &Shape::default())?;
    let mut laptops = Vec::new();
    for (first, reports) in TABLE_2 {
        let laptop = place.laptop(&vigilant((first, SECOND_OF_TABLE_2)), Load::Audio)?;
        laptops.push((format!("audio_sh1_{first}"), laptop, Some(reports)));
    }
    for (load, name) in [(Load::Audio, "audio"), (Load::Nothing, "rest")] {
        for (config, mode) in [(vigilant(DEFAULTS), "vigilant"), (IDLE.to_owned(), "idle"), (OFF.to_owned(), "off")] {
            laptops.push((format!("{name}_{mode}"), place.laptop(&config, load)?, None));
        }
    }
    std::thread::sleep(LEARNING);
    let span = Duration::from_secs(if options.quick { QUICK_AUDIO } else { AUDIO });
    let mut begun = Vec::new();
    for (_, laptop, _) in &mut laptops {
        let asked = laptop.first.access()?.count(|way, packet| {
            way == Direction::Up
                && packet.udp().is_some()
                && packet.ports().is_some_and(|ports| ports.0 == CONTROL_PORT)
        });
        begun.push((cpu(laptop.daemon.process().pid())?, asked));
    }
    std::thread::sleep(span);
    let mut hours = Vec::new();
    for ((name, laptop, reports), (spent, asked)) in laptops.iter_mut().zip(&begun) {
        let spent = cpu(laptop.daemon.process().pid())?.saturating_sub(*spent);
        let share = AUDIO as f64 / span.as_secs_f64();
        let asked = Samples::from_iter([asked.get() as f64 * share]);
        eprintln!("{name}: {asked:?} datagrams in {AUDIO} s, {spent:?} of CPU time in {span:?}");
        if let Some(checks) = reports {
            let id = format!("checks_{name}");
            report.add(Figure::against(&id, "checks", &asked, &Samples::from_iter([*checks])));
        } else {
            hours.push((name.clone(), spent.as_secs_f64() * 3600.0 / span.as_secs_f64()));
        }
    }
    for of_load in hours.chunks(3) {
        let off = Samples::from_iter([of_load[2].1]);
        for (name, seconds) in &of_load[..2] {
            let id = format!("cpu_hour_{name}_s");
            report.add(Figure::against(&id, "s", &Samples::from_iter([*seconds]), &off));
        }
    }
    Ok(())
}

/// Datagrams as fast as the report's Ethernet takes them, with detection and without.
fn throughput(options: &Options, report: &mut Report) -> Result<()> {
    let mut place = Place::build(options, &Shape { rate: Some(ETHERNET), ..Shape::default() })?;
    let mut laptops = [place.laptop(&vigilant(DEFAULTS), Load::Transfer)?, place.laptop(OFF, Load::Transfer)?];
    std::thread::sleep(LEARNING);
    let mut series = [Samples::default(), Samples::default()];
    for _ in 0..options.runs(11, 2) {
        for (laptop, samples) in laptops.iter_mut().zip(&mut series) {
            let (began, before) = (MonoTime::now(), laptop.pair.status(Side::Client)?.received);
            laptop.pair.set_rate(Side::Server, Some(FLOOD))?;
            std::thread::sleep(TRANSFER);
            laptop.pair.set_rate(Side::Server, Some(0))?;
            let came = laptop.pair.status(Side::Client)?.received - before;
            samples.push(came as f64 / MonoTime::now().since(began).as_secs_f64());
        }
    }
    let [on, off] = &series;
    let figure = Figure::against("udp_detected", "datagrams/s", on, off);
    report.add(figure.bound(Bound::RatioAtLeast(0.995)));
    Ok(())
}
