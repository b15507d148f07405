//! What Whimbrel costs where nothing else does: TCP as fast as it goes, on a [`Bed`] of two hosts.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use whimbrel_lab::{EchoServer, Host, Process, wait_for, wait_until};

use super::{Options, Setup};
use crate::bed::{Bed, CLIENT_CPU, LONG, SERVER, SERVER_CPU, Variant, pin};
use crate::report::{Bound, Figure, Report, Samples};
use crate::{Result, machine};

const VARIANTS: [Variant; 5] = [Variant::Without, Variant::Still, Variant::Moved, Variant::Beside, Variant::Nftables];

const QUANTITIES: [(&str, &str); 4] =
    [("rate", "Gbit/s"), ("cpu", "s/GB"), ("requests", "1/s"), ("connections", "1/s")];
const CONNECTIONS: usize = 3;

/// Turns of transfers and requests for each of connections, which need hosts of their own.
const TURNS: usize = 8;

/// For how long is measured in one turn.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    transfer: Duration,
    requests: Duration,
    connections: Duration,
}

/// Measures and reports.
///
/// # Errors
/// When hosts cannot be set up or a program fails.
pub fn run(options: &Options) -> Result<()> {
    measure(options)?.finish()?;
    Ok(())
}

/// The rate of the machine changes by the second and many times over, so all are set up at once and take short turns.
pub(super) fn measure(options: &Options) -> Result<Report> {
    machine::warn_if_busy();
    let rounds = options.runs(25, 2);
    let lengths = Lengths {
        transfer: Duration::from_millis(150),
        requests: Duration::from_millis(100),
        connections: Duration::from_millis(500),
    };
    let variants: Vec<Variant> = VARIANTS
        .into_iter()
        .filter(|variant| match variant {
            Variant::Without => true,
            Variant::Beside => options.setup.beside.is_some(),
            _ => variant.name().contains(&options.only),
        })
        .collect();
    let mut samples = vec![vec![Samples::default(); QUANTITIES.len()]; Variant::COUNT];
    take_turns(&options.setup, &variants, rounds * TURNS, lengths, &mut samples)?;
    for round in 0..rounds {
        for variant in turn_of(&variants, round) {
            // Whoever follows sockets is told of those of all namespaces: nobody else may be there.
            let bed = Bed::build(options.setup.lab_options_of(variant), variant)?;
            let rate =
                connections(&bed, lengths.connections).map_err(|error| format!("{}: {error}", variant.name()))?;
            eprintln!("{}/{rounds} {:<13} {rate:6.0} connections/s", round + 1, variant.name());
            samples[variant as usize][CONNECTIONS].push(rate);
        }
    }
    let mut report = Report::new("roam-throughput");
    for (quantity, (name, unit)) in QUANTITIES.into_iter().enumerate() {
        let baseline = &samples[Variant::Without as usize][quantity];
        for &variant in variants.iter().filter(|variant| **variant != Variant::Without) {
            let of = &samples[variant as usize][quantity];
            let figure = Figure::paired(&format!("{name}_{}", variant.name()), unit, of, baseline);
            report.add(match (name, variant) {
                ("rate" | "requests", Variant::Still) => figure.bound(Bound::RatioAtLeast(0.99)),
                ("rate" | "requests", Variant::Moved) => figure.bound(Bound::RatioAtLeast(0.97)),
                ("cpu", Variant::Still) => figure.bound(Bound::RatioAtMost(1.02)),
                ("cpu", Variant::Moved) => figure.bound(Bound::RatioAtMost(1.05)),
                ("connections", Variant::Still | Variant::Moved) => figure.bound(Bound::RatioAtLeast(0.97)),
                _ => figure,
            });
        }
    }
    let beside = &samples[Variant::Beside as usize];
    if variants.contains(&Variant::Beside) && variants.contains(&Variant::Moved) {
        for (quantity, (name, unit)) in QUANTITIES.into_iter().enumerate().take(CONNECTIONS) {
            let of = &samples[Variant::Moved as usize][quantity];
            let figure = Figure::paired(&format!("{name}_moved_to_beside"), unit, of, &beside[quantity]);
            let bounded = matches!(name, "rate" | "requests");
            report.add(if bounded { figure.bound(Bound::RatioAtLeast(0.99)) } else { figure });
        }
    }
    Ok(report)
}

/// Another one begins each round, and every other round goes backwards: what the one before left behind (caches, a
/// processor that is awake) meets all alike.
pub(crate) fn turn_of(variants: &[Variant], round: usize) -> impl Iterator<Item = Variant> + '_ {
    let count = variants.len();
    (0..count).map(move |index| {
        let index = if round.is_multiple_of(2) { index } else { count - 1 - index };
        variants[(index + round / 2) % count]
    })
}

/// A bed with what is measured on it.
struct Standing {
    bed: Bed,
    transfer: Transfer,
    asker: Asker,
    tunnelled: u64,
}

impl Standing {
    fn build(setup: &Setup, variant: Variant) -> Result<Self> {
        let bed = Bed::build(setup.lab_options_of(variant), variant)?;
        let asker = Asker::connect(&bed)?;
        let transfer = Transfer::start(&bed)?;
        let mut flows = transfer.flows(&bed)?;
        transfer.pause()?;
        flows.push((asker.local, asker.remote));
        bed.wait_introduced(&flows)?;
        bed.move_client(&flows)?;
        let tunnelled = bed.tunnelled()?;
        Ok(Self { bed, transfer, asker, tunnelled })
    }
}

fn take_turns(
    setup: &Setup,
    variants: &[Variant],
    rounds: usize,
    lengths: Lengths,
    samples: &mut [Vec<Samples>],
) -> Result<()> {
    let standing: Result<Vec<Standing>> = variants
        .iter()
        .map(|variant| Standing::build(setup, *variant).map_err(|error| format!("{}: {error}", variant.name()).into()))
        .collect();
    let mut standing = standing?;
    for round in 0..rounds {
        let mut line = format!("{}/{rounds}", round + 1);
        for variant in turn_of(variants, round) {
            let Some(Standing { bed, transfer, asker, .. }) =
                standing.iter_mut().find(|standing| standing.bed.variant == variant)
            else {
                continue;
            };
            let (rate, cost) = transfer.measure(bed, lengths.transfer)?;
            let requests = asker.measure(lengths.requests)?;
            let _ = write!(line, "  {} {rate:.1} Gbit/s {cost:.3} s/GB {requests:.0}/s", variant.name());
            for (samples, value) in samples[variant as usize].iter_mut().zip([rate, cost, requests]) {
                samples.push(value);
            }
        }
        eprintln!("{line}");
    }
    for Standing { bed, tunnelled, .. } in &standing {
        // Otherwise the figures would be those of another carrier.
        let tunnelled = bed.tunnelled()? - tunnelled;
        if tunnelled > 0 {
            return Err(format!("{tunnelled} packets went through the tunnel while rewriting was measured").into());
        }
        setup.keep(&format!("throughput-{}", bed.variant.name()), &bed.lab)?;
    }
    Ok(())
}

/// New connections a second, one after the other.
fn connections(bed: &Bed, length: Duration) -> Result<f64> {
    let echo = EchoServer::start(&bed.server, IpAddr::V4(SERVER))?;
    let _ = &echo;
    let address = SocketAddr::new(bed.target(), echo.address().port());
    let clients = bed.client.clone();
    // Like the lab's own, but to the address that is translated.
    let thread = move || -> Result<f64> {
        pin(CLIENT_CPU)?;
        let (start, mut done) = (Instant::now(), 0u64);
        while start.elapsed() < length {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(b"x")?;
            stream.read_exact(&mut [0])?;
            // Aborted, not closed: TIME_WAIT would use up the ports within a second or two.
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
            done += 1;
        }
        Ok(done as f64 / start.elapsed().as_secs_f64())
    };
    clients.enter(thread)?
}

/// An iperf3 that runs until it is dropped, and is stopped between turns.
struct Transfer {
    client: Process,
    _server: Process,
    port: u16,
}

impl Transfer {
    fn start(bed: &Bed) -> Result<Self> {
        let port = bed.server.next_port();
        let ports = ["--port".to_owned(), port.to_string()];
        let listen = ["--server", "--one-off", "--forceflush", "--bind"];
        let mut server =
            bed.server.command("iperf3").args(listen).arg(SERVER.to_string()).args(&ports).label("iperf3-s").spawn()?;
        wait_until(LONG, "iperf3 listens", || server.stdout().contains("listening") || !server.is_running())?;
        let affinity = format!("{CLIENT_CPU},{SERVER_CPU}");
        let options = ["--congestion", "cubic", "--affinity", &affinity, "--time", "0", "--interval", "0", "--client"];
        let command = bed.client.command("iperf3").args(options).arg(bed.target().to_string()).args(&ports);
        let client = command.label("iperf3-c").spawn()?;
        Ok(Self { client, _server: server, port })
    }

    /// Its two connections as the client's sockets have them.
    fn flows(&self, bed: &Bed) -> Result<Vec<(SocketAddr, SocketAddr)>> {
        let flows = wait_for(LONG, "iperf3 has both of its connections", || {
            let lines = sockets(&bed.client, "dport", self.port)?;
            let flows: Vec<_> = lines.iter().filter_map(|line| endpoints(line)).collect();
            Ok((flows.len() == 2).then_some(flows))
        });
        flows.map_err(|error| format!("{error}: {}", self.client.stderr()).into())
    }

    fn pause(&self) -> Result<()> {
        Ok(self.client.signal(Signal::STOP)?)
    }

    /// Gbit/s, and CPU seconds for 10^9 bytes.
    fn measure(&self, bed: &Bed, length: Duration) -> Result<(f64, f64)> {
        let look = || -> Result<(Instant, u64, f64)> { Ok((Instant::now(), received(bed)?, machine::busy_seconds()?)) };
        self.client.signal(Signal::CONT)?;
        std::thread::sleep(length / 3);
        let before = look()?;
        std::thread::sleep(length);
        let after = look()?;
        self.pause()?;
        let (seconds, bytes) = ((after.0 - before.0).as_secs_f64(), (after.1 - before.1) as f64);
        if bytes == 0.0 {
            return Err("iperf3 sends nothing".into());
        }
        Ok((bytes * 8.0 / seconds / 1e9, (after.2 - before.2) / (bytes / 1e9)))
    }
}

/// Bytes that the server's interface has received, headers included.
fn received(bed: &Bed) -> Result<u64> {
    let text = bed.server.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    bytes.ok_or_else(|| "the server has no interface eth0".into())
}

/// Established TCP sockets of a host with this port, one line each, with the kernel's figures.
fn sockets(host: &Host, which: &str, port: u16) -> whimbrel_lab::Result<Vec<String>> {
    let filter = format!("( {which} = :{port} )");
    let text = host.command("ss").args(["-tinOH", "state", "established", &filter]).run()?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Local and remote address of a line of `ss -tinOH state established`.
fn endpoints(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut words = line.split_whitespace().skip(2);
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// A connection on which one byte goes each way, and the thread that answers.
struct Asker {
    stream: TcpStream,
    local: SocketAddr,
    remote: SocketAddr,
}

impl Asker {
    fn connect(bed: &Bed) -> Result<Self> {
        let listener = bed.server.enter(|| TcpListener::bind((SERVER, bed.server.next_port())))??;
        let remote = SocketAddr::new(bed.target(), listener.local_addr()?.port());
        let stream = bed.client.enter(|| TcpStream::connect(remote))??;
        let (mut answering, _) = listener.accept()?;
        for stream in [&stream, &answering] {
            stream.set_nodelay(true)?;
        }
        std::thread::Builder::new().name("answer".into()).spawn(move || {
            let mut byte = [0];
            // Ends with the connection. A machine with one processor cannot be divided.
            let _ = pin(SERVER_CPU);
            while answering.read_exact(&mut byte).and_then(|()| answering.write_all(&byte)).is_ok() {}
        })?;
        Ok(Self { local: stream.local_addr()?, remote, stream })
    }

    /// Requests a second.
    fn measure(&mut self, length: Duration) -> Result<f64> {
        self.stream.set_read_timeout(Some(LONG))?;
        let stream = &mut self.stream;
        std::thread::scope(|scope| {
            let asking = scope.spawn(move || -> Result<f64> {
                pin(CLIENT_CPU)?;
                let (start, mut done) = (Instant::now(), 0u64);
                while start.elapsed() < length {
                    stream.write_all(b"x")?;
                    stream.read_exact(&mut [0])?;
                    done += 1;
                }
                Ok(done as f64 / start.elapsed().as_secs_f64())
            });
            asking.join().map_err(|_| "the asking thread panicked")?
        })
    }
}
