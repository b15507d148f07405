//! Whimbrel beside what else keeps connections over a change of networks: MPTCP of the kernel, with the second network
//! as a backup and with a full mesh, TCP through wireguard-go, and a client of QUIC that migrates. For how long nothing
//! comes when the network in use is cut and nothing says so, when its carrier is lost, when that comes and goes, and
//! when it is back.
//!
//! ```text
//!            ┌─ link A ─┐
//!  laptops ──┤          ├── core ── servers
//!            └─ link B ─┘
//! ```
//!
//! Each has a laptop of its own, on the same two networks, and sends and hears a little every two milliseconds. The
//! default route of a network goes with its carrier and comes with it, as where a network manager sees to that.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, ipproto, listen, socket};
use whimbrel_lab::{
    Attachment, Campus, Cut, Host, Join, Lab, MonoTime, Process, Shape, Site, SiteSpec, Whimbrel, Wire, wait_for,
    wait_until,
};

use crate::Result;
use crate::report::{Figure, Report, Samples};
use crate::roam::Options;
use crate::roam::baseline::WireGuard;

/// Of each uplink, one way.
const DELAY: Duration = Duration::from_millis(10);
/// What each end sends every so often, bytes; and how much the other way.
const DOWN: usize = 500;
const UP: usize = 50;
const EVERY: Duration = Duration::from_millis(2);
/// Until a vigilant daemon knows that nothing is lost on the path (decision 0106).
const LEARNING: Duration = Duration::from_secs(35);
/// Between what is done to one laptop and to the next: what follows at once is not to disturb the others.
const APART: Duration = Duration::from_secs(1);
/// How long it is watched after a cut: a longer silence counts as that long.
const WATCHED: Duration = Duration::from_secs(20);
/// After the return.
const RETURNED: Duration = Duration::from_secs(10);
/// A flap: so often for so long out, and in.
const FLAPS: u32 = 10;
const FLAP: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);
const QUIC_PORT: u16 = 7790;
const QUIC: &str = include_str!("quic.py");
const QUIC_LIBRARY: &str = "/usr/local/lib/whimbrel-test/python/aioquic";
const VIGILANT: &str = "[links]\nmode = \"vigilant\"\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Whimbrel,
    MptcpBackup,
    MptcpMesh,
    WireGuard,
    Quic,
}

impl Subject {
    const ALL: [Self; 5] = [Self::Whimbrel, Self::MptcpBackup, Self::MptcpMesh, Self::WireGuard, Self::Quic];

    fn name(self) -> &'static str {
        match self {
            Self::Whimbrel => "whimbrel",
            Self::MptcpBackup => "mptcp_backup",
            Self::MptcpMesh => "mptcp_full_mesh",
            Self::WireGuard => "wireguard_go",
            Self::Quic => "quic",
        }
    }
}

/// What happens to the first network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Silent,
    Carrier,
    Flap,
}

impl Event {
    const ALL: [Self; 3] = [Self::Silent, Self::Carrier, Self::Flap];

    fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Carrier => "carrier",
            Self::Flap => "flap",
        }
    }
}

/// Measures, and adds to the report.
///
/// # Errors
/// When something could not be measured.
pub(super) fn add_to(report: &mut Report, options: &Options) -> Result<()> {
    for event in Event::ALL {
        if format!("links-beside-{}", event.name()).contains(&options.only) {
            measure(report, options, event)?;
        }
    }
    Ok(())
}

fn measure(report: &mut Report, options: &Options, event: Event) -> Result<()> {
    let there = Subject::ALL.into_iter().filter(|subject| *subject != Subject::Quic || has_quic());
    let subjects: Vec<Subject> = there.collect();
    // For each what came of the event, and of the return; and of the flap how long nothing came in all.
    let mut series: Vec<[Samples; 2]> = vec![Default::default(); subjects.len()];
    for _ in 0..options.runs(5, 1) {
        let mut place = Place::build(options)?;
        let mut laptops = Vec::new();
        for subject in &subjects {
            let laptop = place.laptop(options, *subject);
            laptops.push(laptop.map_err(|error| format!("{}: {error}", subject.name()))?);
        }
        std::thread::sleep(LEARNING);
        for (laptop, subject) in laptops.iter().zip(&subjects) {
            laptop.wait_settled().map_err(|error| format!("{}: {error}", subject.name()))?;
        }
        let suffered: Vec<std::result::Result<[f64; 2], String>> = std::thread::scope(|scope| {
            let begun: Vec<_> = laptops
                .iter()
                .zip(0..)
                .map(|(laptop, number)| {
                    scope.spawn(move || {
                        std::thread::sleep(APART * number);
                        laptop.suffer(event).map_err(|error| error.to_string())
                    })
                })
                .collect();
            let joined = begun.into_iter().map(|thread| thread.join());
            joined.map(|came| came.unwrap_or_else(|_| Err("its thread has failed".into()))).collect()
        });
        for ((came, subject), series) in suffered.into_iter().zip(&subjects).zip(&mut series) {
            let [first, second] = came.map_err(|error| format!("{}: {error}", subject.name()))?;
            eprintln!("{} {}: {first:.1}, {second:.1} ms", event.name(), subject.name());
            series[0].push(first);
            series[1].push(second);
        }
    }
    let names = match event {
        Event::Silent => ["silent", "silent_return"],
        Event::Carrier => ["carrier", "carrier_return"],
        Event::Flap => ["flap_longest", "flap_in_all"],
    };
    for (index, name) in names.into_iter().enumerate() {
        let ours = &series[0][index];
        report.add(Figure::new(&format!("{name}_whimbrel"), "ms", ours));
        for (subject, series) in subjects.iter().zip(&series).skip(1) {
            report.add(Figure::against(&format!("{name}_beside_{}", subject.name()), "ms", ours, &series[index]));
        }
    }
    Ok(())
}

/// Whether the library is there, which `./setup bench` fetches.
fn has_quic() -> bool {
    let there = std::path::Path::new(QUIC_LIBRARY).is_dir();
    if !there {
        eprintln!("aioquic is missing, so QUIC is left out; ./setup bench fetches it");
    }
    there
}

struct Place {
    sites: [Site; 2],
    /// With a daemon, and without.
    servers: [(Host, IpAddr); 2],
    _daemon: Whimbrel,
    // Last: the others live in it.
    lab: Lab,
}

/// When something came.
enum Heard {
    Here(Arc<Mutex<Vec<MonoTime>>>),
    /// It prints that.
    Printed(Process),
}

struct Laptop {
    host: Host,
    first: Attachment,
    heard: Heard,
    daemon: Option<Whimbrel>,
    _wireguard: Option<WireGuard>,
    /// Subflows that join come to it.
    _listener: Option<TcpListener>,
    _server: Option<Process>,
}

impl Place {
    fn build(options: &Options) -> Result<Self> {
        let mut lab = Lab::new(options.setup.lab_options())?;
        let mut campus = Campus::new(&mut lab)?;
        let mut site = |name: &str| campus.add(&mut lab, SiteSpec::named(name).v4_only().uplink(Shape::delay(DELAY)));
        let sites = [site("a")?, site("b")?];
        let home = campus.add(&mut lab, SiteSpec { uplink: Wire::Veth, ..SiteSpec::named("s").v4_only() })?;
        let mut server = |name: &str| -> Result<(Host, IpAddr)> {
            let host = lab.host(name)?;
            let address = host.join(&home.network, &Join::by("eth0"))?.ipv4()?;
            Ok((host, address))
        };
        let servers = [server("server")?, server("plain")?];
        servers[1].0.ip([MPTCP_LIMITS])?;
        let daemon = servers[0].0.whimbrel()?;
        Ok(Self { sites, servers, _daemon: daemon, lab })
    }

    fn laptop(&mut self, options: &Options, subject: Subject) -> Result<Laptop> {
        let host = self.lab.host(subject.name().split('_').next_back().unwrap_or_default())?;
        let first = host.join(&self.sites[0].network, &Join::by(FIRST.0).metric(FIRST.1))?;
        let second = host.join(&self.sites[1].network, &Join::by("eth0").metric(500))?;
        let own = [first.ipv4()?, second.ipv4()?];
        let (server, address) = &self.servers[usize::from(subject != Subject::Whimbrel)];
        let mut laptop = Laptop {
            host: host.clone(),
            first,
            heard: Heard::Here(Arc::default()),
            daemon: None,
            _wireguard: None,
            _listener: None,
            _server: None,
        };
        let mut to = *address;
        match subject {
            Subject::Whimbrel => laptop.daemon = Some(host.whimbrel_with(VIGILANT)?),
            Subject::WireGuard => {
                let ends = [&host, server];
                let wireguard = WireGuard::start(&options.setup.wireguard_go, ends, *address, self.lab.id())?;
                laptop._wireguard = Some(wireguard);
                to = WireGuard::SERVER;
            }
            Subject::MptcpBackup | Subject::MptcpMesh | Subject::Quic => self.routes_from(&host, own)?,
        }
        let kind = if subject == Subject::MptcpMesh { "fullmesh" } else { "backup" };
        match subject {
            Subject::MptcpBackup => {
                host.ip([MPTCP_LIMITS.to_owned(), format!("mptcp endpoint add {} dev eth0 subflow {kind}", own[1])])?
            }
            Subject::MptcpMesh => host.ip([
                MPTCP_LIMITS.to_owned(),
                format!("mptcp endpoint add {} dev wlan0 subflow {kind}", own[0]),
                format!("mptcp endpoint add {} dev eth0 subflow {kind}", own[1]),
            ])?,
            _ => {}
        }
        if subject == Subject::Quic {
            let (served, printed) = quic(&host, server, *address, own)?;
            laptop._server = Some(served);
            laptop.heard = Heard::Printed(printed);
        } else {
            let mptcp = matches!(subject, Subject::MptcpBackup | Subject::MptcpMesh);
            let (heard, listener) = streams(&host, server, to, mptcp)?;
            (laptop.heard, laptop._listener) = (heard, Some(listener));
        }
        if matches!(subject, Subject::MptcpBackup | Subject::MptcpMesh) {
            wait_until(LONG, "the second subflow has joined", || joined(&host) > 0)?;
        }
        if let Some(daemon) = &laptop.daemon {
            let introduced = |connection: &whimbrel_ipc::Connection| {
                connection.flow.remote.ip() == to && connection.state == whimbrel_ipc::ConnectionState::Native
            };
            wait_for(LONG, "the connection is introduced", || {
                Ok(daemon.connections()?.iter().any(introduced).then_some(()))
            })?;
        }
        Ok(laptop)
    }

    /// What is sent from the address of a network goes by that network.
    fn routes_from(&self, host: &Host, own: [IpAddr; 2]) -> Result<()> {
        for (index, interface) in ["wlan0", "eth0"].into_iter().enumerate() {
            let router = self.sites[index].network.spec().v4.map(|(router, _)| router.to_string()).unwrap_or_default();
            let table = 70 + index;
            host.ip([
                format!("rule add from {} lookup {table}", own[index]),
                format!("route add default via {router} dev {interface} table {table}"),
            ])?;
        }
        Ok(())
    }
}

/// The interface of the first network, and the metric of its default route.
const FIRST: (&str, u32) = ("wlan0", 100);
const MPTCP_LIMITS: &str = "mptcp limits set subflow 4 add_addr_accepted 4";

/// Subflows that a host's MPTCP has added so far (`MPJoinSynAckRx` of /proc/net/netstat).
fn joined(host: &Host) -> u64 {
    let text = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/netstat"));
    let text = text.ok().and_then(std::result::Result::ok).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("MPTcpExt: "));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let of = names.split(' ').position(|name| name == "MPJoinSynAckRx");
    of.and_then(|of| values.split(' ').nth(of)?.parse().ok()).unwrap_or(0)
}

/// A connection of TCP, or of MPTCP, of which both ends send all the time; when something came at the laptop.
fn streams(laptop: &Host, server: &Host, to: IpAddr, mptcp: bool) -> Result<(Heard, TcpListener)> {
    let to = SocketAddr::new(to, server.next_port());
    let protocol = mptcp.then_some(ipproto::MPTCP);
    let listener = server.enter(|| -> Result<TcpListener> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, protocol)?;
        bind(&socket, &to)?;
        listen(&socket, 1)?;
        Ok(socket.into())
    })??;
    let near = laptop.enter(|| -> Result<TcpStream> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, protocol)?;
        connect(&socket, &to)?;
        Ok(socket.into())
    })??;
    let (far, _) = listener.accept()?;
    let heard = Arc::new(Mutex::new(Vec::new()));
    talk(near.try_clone()?, UP);
    talk(far.try_clone()?, DOWN);
    hear(far, None);
    hear(near, Some(heard.clone()));
    Ok((Heard::Here(heard), listener))
}

/// Sends a little, again and again, until the connection ends.
fn talk(mut stream: TcpStream, size: usize) {
    std::thread::spawn(move || {
        stream.set_nodelay(true).ok();
        let bytes = vec![0; size];
        while stream.write_all(&bytes).is_ok() {
            std::thread::sleep(EVERY);
        }
    });
}

fn hear(mut stream: TcpStream, times: Option<Arc<Mutex<Vec<MonoTime>>>>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 65536];
        loop {
            match stream.read(&mut buffer) {
                Ok(1..) => {
                    if let Some(times) = &times {
                        times.lock().unwrap_or_else(PoisonError::into_inner).push(MonoTime::now());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => break,
            }
        }
    });
}

/// Both ends of QUIC; the second is the client's.
fn quic(laptop: &Host, server: &Host, address: IpAddr, own: [IpAddr; 2]) -> Result<(Process, Process)> {
    let directory = server.dir().display().to_string();
    let make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    let to =
        ["-subj", "/CN=bench", "-keyout", &format!("{directory}/key"), "-out", &format!("{directory}/certificate")];
    server.command("openssl").args(make).args(to).run()?;
    let python =
        |host: &Host, arguments: &[String]| host.command("/usr/bin/python3").args(["-c", QUIC]).args(arguments).spawn();
    let (address, port, interface) = (address.to_string(), QUIC_PORT.to_string(), "wlan0".to_owned());
    let serve = ["serve".to_owned(), address.clone(), port.clone(), directory, DOWN.to_string()];
    let served = python(server, &serve)?;
    wait_until(LONG, "the server of QUIC is ready", || served.stdout().contains("ready"))?;
    let [first, second] = own.map(|own| own.to_string());
    let fetch = ["fetch".to_owned(), address, port, first, second, interface, UP.to_string()];
    let mut printed = python(laptop, &fetch)?;
    wait_until(LONG, "something comes by QUIC", || !printed.stdout().is_empty() || !printed.is_running())?;
    if printed.stdout().is_empty() {
        return Err(format!("the client of QUIC has ended: {}", printed.stderr()).into());
    }
    Ok((served, printed))
}

impl Laptop {
    /// What comes, comes by the first network, and all the time.
    fn wait_settled(&self) -> Result<()> {
        if let Some(daemon) = &self.daemon {
            let first = self.first.ipv4()?;
            wait_for(LONG * 2, "the first network is the one in use", || {
                let in_use = daemon.paths()?.into_iter().find(|path| path.active);
                Ok(in_use.is_some_and(|path| path.local == Some(first)).then_some(()))
            })?;
        }
        let before = self.heard().len();
        Ok(wait_until(LONG, "something comes", || self.heard().len() > before + 10)?)
    }

    fn heard(&self) -> Vec<MonoTime> {
        match &self.heard {
            Heard::Here(times) => times.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Heard::Printed(process) => {
                process.stdout().lines().filter_map(|line| line.parse().ok()).map(MonoTime).collect()
            }
        }
    }

    /// The first network fails.
    fn cut(&self, kind: Cut) -> Result<()> {
        self.first.access()?.cut(kind)?;
        let (interface, metric) = FIRST;
        match kind {
            Cut::Carrier => self.host.ip([format!("route del default dev {interface} metric {metric}")])?,
            Cut::Silent => {}
        }
        Ok(())
    }

    /// It is as it was.
    fn restore(&self, from: Cut) -> Result<()> {
        self.first.access()?.restore()?;
        let (interface, metric) = FIRST;
        if let (Cut::Carrier, Some((router, _))) = (from, self.first.network.spec().v4) {
            let route = format!("default via {router} dev {interface} metric {metric} congctl cubic");
            self.host.ip([format!("route replace {route}")])?;
        }
        Ok(())
    }

    /// For how long nothing came, ms: after a cut and after the return, or in a flap at a time and in all.
    fn suffer(&self, event: Event) -> Result<[f64; 2]> {
        let began = MonoTime::now();
        let cut = if event == Event::Silent { Cut::Silent } else { Cut::Carrier };
        if event == Event::Flap {
            for _ in 0..FLAPS {
                self.cut(cut)?;
                std::thread::sleep(FLAP);
                self.restore(cut)?;
                std::thread::sleep(FLAP);
            }
            std::thread::sleep(RETURNED);
            let pauses = pauses(&self.heard(), began, MonoTime::now());
            return Ok([longest(&pauses), pauses.iter().filter(|pause| **pause > PAUSE).sum()]);
        }
        self.cut(cut)?;
        std::thread::sleep(WATCHED);
        let back = MonoTime::now();
        let silent = longest(&pauses(&self.heard(), began, back));
        self.restore(cut)?;
        std::thread::sleep(RETURNED);
        Ok([silent, longest(&pauses(&self.heard(), back, MonoTime::now()))])
    }
}

/// Shorter ones are those of the sender and of the machine, ms.
const PAUSE: f64 = 50.0;

fn longest(pauses: &[f64]) -> f64 {
    pauses.iter().copied().fold(0.0, f64::max)
}

/// From the first moment to the last: times without anything, ms.
fn pauses(heard: &[MonoTime], from: MonoTime, until: MonoTime) -> Vec<f64> {
    let mut times = vec![from];
    times.extend(heard.iter().filter(|time| (from..until).contains(time)));
    times.push(until);
    times.windows(2).map(|pair| pair[1].since(pair[0]).as_secs_f64() * 1e3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_comes_again_is_silence_to_the_end() {
        let at = |ms: u64| MonoTime(ms * 1_000_000);
        let heard = [at(90), at(101), at(140), at(900)];
        assert_eq!(pauses(&heard, at(100), at(500)), [1.0, 39.0, 360.0]);
        assert_eq!(longest(&pauses(&[], at(100), at(500))), 400.0);
    }
}
