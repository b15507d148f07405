//! What Whimbrel costs a server of UDP that has one socket for a hundred thousand clients, who run nothing.
//!
//! A client is a tuple: datagrams are sent from addresses and ports that are drawn by lot, and what is answered to any
//! of them comes to one socket. Beside it another connection of the two hosts is introduced, or has moved, so that all
//! is there that costs anything.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, ipproto, socket};
use whimbrel_lab::{EchoServer, Random};

use super::datagrams::{LENGTH, Server};
use crate::Result;
use crate::bed::{Bed, CLIENT_CPU, LONG, SERVER, Variant, pin};
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::throughput::turn_of;
use crate::roam::{Options, Setup};

/// From these, and from so many ports of each.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 30), Ipv4Addr::new(192, 0, 2, 31)];
const PORTS: u64 = 50_000;
const FIRST_PORT: u64 = 10_000;
/// Bytes of the headers of IPv4 and UDP.
const HEADERS: usize = 28;
/// Asked at once.
const AT_ONCE: u32 = 200;
const VARIANTS: [Variant; 3] = [Variant::Without, Variant::Still, Variant::Moved];
/// For how long is measured in one turn.
const TURN: Duration = Duration::from_millis(200);

/// A bed with a server and all who ask.
struct Standing {
    bed: Bed,
    /// Sends whole packets (raw(7)).
    asks: UdpSocket,
    hears: UdpSocket,
    to: SocketAddrV4,
    /// Of the server's daemon, before anybody has asked, in bytes.
    memory: f64,
    // What lasts, and its server.
    _lasts: (TcpStream, EchoServer),
    _server: Server,
}

impl Standing {
    fn build(setup: &Setup, variant: Variant) -> Result<Self> {
        let mut bed = Bed::build(setup.lab_options_of(variant), variant)?;
        let echo = EchoServer::start(&bed.server, IpAddr::V4(SERVER))?;
        let at = SocketAddr::new(bed.target(), echo.address().port());
        let lasts = bed.client.enter(|| TcpStream::connect(at))??;
        let flows = [(lasts.local_addr()?, at)];
        bed.wait_introduced(&flows)?;
        bed.move_client(&flows)?;
        let (server, to) = Server::start(&bed.server, bed.target())?;
        let SocketAddr::V4(to) = to else { return Err("the bed is one of IPv4".into()) };
        let asks = || socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW));
        let asks = UdpSocket::from(bed.client.enter(asks)??);
        let hears = bed.client.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
        hears.set_read_timeout(Some(LONG))?;
        bed.client.ip(ADDRESSES.map(|address| format!("addr add {address}/24 dev eth0")))?;
        let [one, _] = ADDRESSES;
        let (port, own) = (to.port(), hears.local_addr()?.port());
        bed.client.nft(&format!(
            "table ip crowd {{\nchain in {{ type filter hook prerouting priority -300; udp sport {port} \
             ip daddr set {one} udp dport set {own}\n}}\n}}\n"
        ))?;
        let memory = bed.server_memory()?;
        Ok(Self { bed, asks, hears, to, memory, _lasts: (lasts, echo), _server: server })
    }

    fn ask(&self, random: &mut Random) -> Result<()> {
        for number in 0..AT_ONCE {
            let address = ADDRESSES[random.below(ADDRESSES.len() as u64) as usize];
            let from = SocketAddrV4::new(address, (FIRST_PORT + random.below(PORTS)) as u16);
            self.asks.send_to(&packet(from, self.to, number), self.to)?;
        }
        let mut answer = [0; LENGTH];
        let mut heard = BTreeSet::new();
        for _ in 0..AT_ONCE {
            let size = self.hears.recv(&mut answer).map_err(|error| format!("one has no answer: {error}"))?;
            let number = u32::from_le_bytes(answer[..4].try_into()?);
            if size != LENGTH || number >= AT_ONCE || !heard.insert(number) {
                return Err(format!("{size} bytes are an answer to {number}").into());
            }
        }
        Ok(())
    }

    /// Datagrams that the server has answered, and for how long.
    fn measure(&self, random: &mut Random) -> Result<(u64, Duration)> {
        let asking = || -> Result<(u64, Duration)> {
            pin(CLIENT_CPU)?;
            let (start, mut asked) = (Instant::now(), 0);
            while start.elapsed() < TURN {
                self.ask(random)?;
                asked += u64::from(AT_ONCE);
            }
            Ok((asked, start.elapsed()))
        };
        std::thread::scope(|scope| scope.spawn(asking).join().map_err(|_| "the asking thread panicked")?)
    }
}

/// A question, with its headers (RFC 791 section 3.1, RFC 768); the kernel fills in length and checksum of the former,
/// and the latter has none.
fn packet(from: SocketAddrV4, to: SocketAddrV4, number: u32) -> [u8; HEADERS + LENGTH] {
    let mut bytes = [0; HEADERS + LENGTH];
    (bytes[0], bytes[8], bytes[9]) = (0x45, 64, 17);
    bytes[12..16].copy_from_slice(&from.ip().octets());
    bytes[16..20].copy_from_slice(&to.ip().octets());
    bytes[20..22].copy_from_slice(&from.port().to_be_bytes());
    bytes[22..24].copy_from_slice(&to.port().to_be_bytes());
    bytes[24..26].copy_from_slice(&((HEADERS - 20 + LENGTH) as u16).to_be_bytes());
    bytes[HEADERS..HEADERS + 4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Measures and reports. All variants stand at once and take short turns.
///
/// # Errors
/// When hosts cannot be set up, or a datagram is lost: nothing else is sent on this link.
pub(super) fn measure(options: &Options) -> Result<Report> {
    let rounds = options.runs(100, 10);
    let build = |variant: Variant| {
        let standing = Standing::build(&options.setup, variant);
        Ok((variant, standing.map_err(|error| format!("{}: {error}", variant.name()))?))
    };
    let mut standing: Vec<(Variant, Standing)> = VARIANTS.into_iter().map(build).collect::<Result<_>>()?;
    let mut samples = vec![Samples::default(); Variant::COUNT];
    let mut asked = [0; Variant::COUNT];
    let mut random = Random::new(17);
    for round in 0..rounds {
        let mut line = format!("{}/{rounds}", round + 1);
        for variant in turn_of(&VARIANTS, round) {
            let Some((_, standing)) = standing.iter().find(|(of, _)| *of == variant) else { continue };
            let (count, took) =
                standing.measure(&mut random).map_err(|error| format!("{}: {error}", variant.name()))?;
            let rate = count as f64 / took.as_secs_f64();
            let _ = write!(line, "  {} {rate:.0} datagrams/s", variant.name());
            samples[variant as usize].push(rate);
            asked[variant as usize] += count;
        }
        eprintln!("{line}");
    }
    let mut report = Report::new("reach-crowd");
    for (variant, least) in [(Variant::Still, 0.97), (Variant::Moved, 0.90)] {
        let baseline = &samples[Variant::Without as usize];
        let figure = Figure::paired(variant.name(), "1/s", &samples[variant as usize], baseline);
        report.add(figure.bound(Bound::RatioAtLeast(least)));
    }
    for (variant, Standing { bed, memory, .. }) in &mut standing {
        options.setup.keep(&format!("crowd-{}", variant.name()), &bed.lab)?;
        if *variant == Variant::Without {
            continue;
        }
        let one = |value: f64| -> Samples { [value].into_iter().collect() };
        // How many of the tuples have come up, where each is as likely every time.
        let all = PORTS as f64 * ADDRESSES.len() as f64;
        let clients = all * (1.0 - (-(asked[*variant as usize] as f64) / all).exp());
        report.add(Figure::new(&format!("{}_clients", variant.name()), "clients", &one(clients)));
        let growth = bed.server_memory()? - *memory;
        report.add(Figure::new(&format!("{}_server_memory_growth", variant.name()), "bytes", &one(growth)));
    }
    Ok(report)
}
