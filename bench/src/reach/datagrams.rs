//! What Whimbrel costs a server of UDP that has one socket, which is not connected, for 200 clients.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use whimbrel_lab::Host;

use crate::Result;
use crate::bed::{Bed, CLIENT_CPU, LONG, SERVER_CPU, Variant, pin};
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::throughput::turn_of;
use crate::roam::{Options, Setup};

pub(super) const CLIENTS: usize = 200;
/// Bytes of a datagram, either way.
pub(super) const LENGTH: usize = 100;
const VARIANTS: [Variant; 3] = [Variant::Without, Variant::Still, Variant::Moved];
/// For how long is measured in one turn.
const TURN: Duration = Duration::from_millis(200);
/// How long the server waits for a datagram before it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Gives back what it gets, to whom it got it from. Its socket is bound to no address.
pub(super) struct Server {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// The server, and where it is to be asked, if its host is to be asked there.
    pub(super) fn start(host: &Host, there: IpAddr) -> Result<(Self, SocketAddr)> {
        let socket = host.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, host.next_port())))??;
        socket.set_read_timeout(Some(LOOK))?;
        let address = SocketAddr::new(there, socket.local_addr()?.port());
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let answer = move || {
            // A machine with one processor cannot be divided.
            let _ = pin(SERVER_CPU);
            let mut datagram = [0; LENGTH];
            while !ended.load(Ordering::Relaxed) {
                if let Ok((size, from)) = socket.recv_from(&mut datagram) {
                    // What is lost is missed by who has asked.
                    let _ = socket.send_to(&datagram[..size], from);
                }
            }
        };
        let thread = std::thread::Builder::new().name("answer".into()).spawn(answer)?;
        Ok((Self { ends, thread: Some(thread) }, address))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has said what it was.
            let _ = thread.join();
        }
    }
}

/// A bed with a server and its clients.
struct Standing {
    bed: Bed,
    clients: Vec<UdpSocket>,
    tunnelled: u64,
    _server: Server,
}

impl Standing {
    fn build(setup: &Setup, variant: Variant) -> Result<Self> {
        let bed = Bed::build(setup.lab_options_of(variant), variant)?;
        let (server, address) = Server::start(&bed.server, bed.target())?;
        let connect = || -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(address)?;
            socket.set_read_timeout(Some(LONG))?;
            Ok(socket)
        };
        let clients = bed.client.enter(|| (0..CLIENTS).map(|_| connect()).collect::<std::io::Result<Vec<_>>>())??;
        let mut standing = Self { bed, clients, tunnelled: 0, _server: server };
        standing.ask()?;
        let flows = standing.clients.iter().map(|client| Ok((client.local_addr()?, address)));
        let flows = flows.collect::<std::io::Result<Vec<_>>>()?;
        standing.bed.wait_introduced(&flows)?;
        standing.bed.move_client(&flows)?;
        // The server answers as it is asked.
        standing.ask()?;
        standing.tunnelled = standing.bed.tunnelled()?;
        Ok(standing)
    }

    /// A datagram of each client, and the answers.
    fn ask(&self) -> Result<()> {
        let (mut asked, mut answer) = ([0; LENGTH], [0; LENGTH]);
        for (number, client) in (0u32..).zip(&self.clients) {
            asked[..4].copy_from_slice(&number.to_le_bytes());
            client.send(&asked)?;
        }
        for (number, client) in (0u32..).zip(&self.clients) {
            asked[..4].copy_from_slice(&number.to_le_bytes());
            let size = client.recv(&mut answer).map_err(|error| format!("client {number} has no answer: {error}"))?;
            if answer[..size] != asked {
                return Err(format!("client {number} has the answer to something else").into());
            }
        }
        Ok(())
    }

    /// Datagrams that the server has answered, a second.
    fn measure(&self) -> Result<f64> {
        let asking = || -> Result<f64> {
            pin(CLIENT_CPU)?;
            let (start, mut rounds) = (Instant::now(), 0usize);
            while start.elapsed() < TURN {
                self.ask()?;
                rounds += 1;
            }
            Ok((rounds * CLIENTS) as f64 / start.elapsed().as_secs_f64())
        };
        std::thread::scope(|scope| scope.spawn(asking).join().map_err(|_| "the asking thread panicked")?)
    }
}

/// Measures and reports. All variants stand at once and take short turns.
///
/// # Errors
/// When hosts cannot be set up, or a datagram is lost: nothing else is sent on this link.
pub(super) fn measure(options: &Options) -> Result<Report> {
    let rounds = options.runs(100, 6);
    let build = |variant: Variant| {
        let standing = Standing::build(&options.setup, variant);
        Ok((variant, standing.map_err(|error| format!("{}: {error}", variant.name()))?))
    };
    let standing: Vec<(Variant, Standing)> = VARIANTS.into_iter().map(build).collect::<Result<_>>()?;
    let mut samples = vec![Samples::default(); Variant::COUNT];
    for round in 0..rounds {
        let mut line = format!("{}/{rounds}", round + 1);
        for variant in turn_of(&VARIANTS, round) {
            let Some((_, standing)) = standing.iter().find(|(of, _)| *of == variant) else { continue };
            let rate = standing.measure().map_err(|error| format!("{}: {error}", variant.name()))?;
            let _ = write!(line, "  {} {rate:.0} datagrams/s", variant.name());
            samples[variant as usize].push(rate);
        }
        eprintln!("{line}");
    }
    for (variant, Standing { bed, tunnelled, .. }) in &standing {
        // Otherwise the figures would be those of another carrier.
        let tunnelled = bed.tunnelled()? - tunnelled;
        if tunnelled > 0 {
            return Err(format!("{tunnelled} packets went through the tunnel while rewriting was measured").into());
        }
        options.setup.keep(&format!("datagrams-{}", variant.name()), &bed.lab)?;
    }
    let mut report = Report::new("reach-datagrams");
    for (variant, least) in [(Variant::Still, 0.97), (Variant::Moved, 0.90)] {
        let baseline = &samples[Variant::Without as usize];
        let figure = Figure::paired(variant.name(), "1/s", &samples[variant as usize], baseline);
        report.add(figure.bound(Bound::RatioAtLeast(least)));
    }
    Ok(report)
}
