//! What Whimbrel costs where nothing else does: TCP as fast as it goes, on a [`Bed`] of two hosts.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use whimbrel_lab::{EchoServer, Host, Process, wait_for, wait_until};

use super::{Options, Setup};
use crate::bed::{Bed, CLIENT_CPU, LONG, SERVER, SERVER_CPU, SETTLE, Variant, pin};
use crate::report::{Bound, Figure, Report, Samples};
use crate::{Result, machine};

/// What one turn gave.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Gbit/s
    rate: f64,
    /// CPU seconds of the whole machine for 10^9 bytes.
    cost: f64,
    /// Requests a second.
    requests: f64,
    /// Connections a second.
    connections: f64,
}

const VARIANTS: [Variant; 4] = [Variant::Without, Variant::Still, Variant::Moved, Variant::Nftables];

const QUANTITIES: [(&str, &str); 4] =
    [("rate", "Gbit/s"), ("cpu", "s/GB"), ("requests", "1/s"), ("connections", "1/s")];

impl Turn {
    fn values(self) -> [f64; 4] {
        [self.rate, self.cost, self.requests, self.connections]
    }
}

/// For how long is measured.
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

pub(super) fn measure(options: &Options) -> Result<Report> {
    machine::warn_if_busy();
    let rounds = options.runs(25, 3);
    let unit = if options.quick { Duration::from_millis(1000) } else { Duration::from_millis(2000) };
    let lengths = Lengths { transfer: unit * 2, requests: unit, connections: unit };
    let variants: Vec<Variant> = VARIANTS
        .into_iter()
        .filter(|variant| *variant == Variant::Without || variant.name().contains(&options.only))
        .collect();
    let mut samples = vec![vec![Samples::default(); QUANTITIES.len()]; Variant::COUNT];
    for round in 0..rounds {
        // Another one begins each round: what the one before left behind meets all alike.
        for index in 0..variants.len() {
            let variant = variants[(index + round) % variants.len()];
            let turn =
                one_turn(&options.setup, variant, lengths).map_err(|error| format!("{}: {error}", variant.name()))?;
            eprintln!(
                "{}/{rounds} {:<13} {:6.2} Gbit/s {:6.3} CPU s/GB {:7.0} requests/s {:6.0} connections/s",
                round + 1,
                variant.name(),
                turn.rate,
                turn.cost,
                turn.requests,
                turn.connections
            );
            for (samples, value) in samples[variant as usize].iter_mut().zip(turn.values()) {
                samples.push(value);
            }
        }
    }
    let mut report = Report::new("roam-throughput");
    for (quantity, (name, unit)) in QUANTITIES.into_iter().enumerate() {
        let baseline = &samples[Variant::Without as usize][quantity];
        for &variant in variants.iter().filter(|variant| **variant != Variant::Without) {
            let of = &samples[variant as usize][quantity];
            let figure = Figure::against(&format!("{name}_{}", variant.name()), unit, of, baseline);
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
    Ok(report)
}

fn one_turn(setup: &Setup, variant: Variant, lengths: Lengths) -> Result<Turn> {
    let bed = Bed::build(setup.lab_options(), variant)?;
    let result = take_turn(&bed, lengths);
    setup.keep(&format!("throughput-{}-{}", variant.name(), bed.lab.id()), &bed.lab)?;
    result
}

fn take_turn(bed: &Bed, lengths: Lengths) -> Result<Turn> {
    let mut asker = Asker::connect(bed)?;
    let transfer = Transfer::start(bed, lengths.transfer)?;
    let mut flows = transfer.flows(bed)?;
    flows.push((asker.local, asker.remote));
    bed.wait_introduced(&flows)?;
    bed.move_client(&flows)?;
    let tunnelled = bed.tunnelled()?;
    let (rate, cost) = transfer.measure(bed, lengths.transfer)?;
    drop(transfer);
    std::thread::sleep(SETTLE);
    let requests = asker.measure(lengths.requests)?;
    // Otherwise the figures would be those of another carrier.
    let tunnelled = bed.tunnelled()? - tunnelled;
    if tunnelled > 0 {
        return Err(format!("{tunnelled} packets went through the tunnel while rewriting was measured").into());
    }
    let connections = connections(bed, lengths.connections)?;
    Ok(Turn { rate, cost, requests, connections })
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

/// An iperf3 that runs until it is dropped.
struct Transfer {
    client: Process,
    _server: Process,
    port: u16,
}

impl Transfer {
    fn start(bed: &Bed, length: Duration) -> Result<Self> {
        let port = bed.server.next_port();
        let ports = ["--port".to_owned(), port.to_string()];
        let listen = ["--server", "--one-off", "--forceflush", "--bind"];
        let mut server =
            bed.server.command("iperf3").args(listen).arg(SERVER.to_string()).args(&ports).label("iperf3-s").spawn()?;
        wait_until(LONG, "iperf3 listens", || server.stdout().contains("listening") || !server.is_running())?;
        let seconds = (length + LONG + LONG).as_secs().to_string();
        let affinity = format!("{CLIENT_CPU},{SERVER_CPU}");
        let options =
            ["--congestion", "cubic", "--affinity", &affinity, "--time", &seconds, "--interval", "0", "--client"];
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

    /// Gbit/s, and CPU seconds for 10^9 bytes.
    fn measure(&self, bed: &Bed, length: Duration) -> Result<(f64, f64)> {
        let look = || -> Result<(Instant, u64, f64)> {
            let busy = machine::busy_seconds()?;
            let lines = sockets(&bed.server, "sport", self.port)?;
            let now = Instant::now();
            let bytes = lines.iter().filter_map(|line| value(line, "bytes_received:")).max();
            Ok((now, bytes.ok_or("iperf3 receives nothing")?, busy))
        };
        let before = look()?;
        std::thread::sleep(length);
        let after = look()?;
        let (seconds, bytes) = ((after.0 - before.0).as_secs_f64(), (after.1 - before.1) as f64);
        Ok((bytes * 8.0 / seconds / 1e9, (after.2 - before.2) / (bytes / 1e9)))
    }
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

fn value(line: &str, name: &str) -> Option<u64> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok())
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
