//! The experiments of the VNAT paper (§5.1 to §5.3): throughput, request and response, and connection set-up, for
//! messages of 64 to 8192 bytes; without anything, with connection tracking loaded (the paper's *Netfilter*), with
//! Whimbrel and nothing moved (*VNAT1*), and moved (*VNAT2*).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_linger, set_tcp_congestion};

use crate::bed::{Bed, CLIENT_CPU, LONG, SERVER, SERVER_CPU, Variant, pin};
use crate::chart::{Band, Chart, Line};
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;
use crate::{Result, machine};

const SIZES: [usize; 8] = [64, 128, 256, 512, 1024, 2048, 4096, 8192];
const VARIANTS: [Variant; 4] = [Variant::Without, Variant::Conntrack, Variant::Still, Variant::Moved];

/// One of the paper's experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Rate,
    Cost,
    Requests,
    Connections,
}

impl Quantity {
    const ALL: [Self; 4] = [Self::Rate, Self::Cost, Self::Requests, Self::Connections];

    fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Cost => "cpu",
            Self::Requests => "requests",
            Self::Connections => "connections",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Rate => "Gbit/s",
            Self::Cost => "s/GB",
            Self::Requests | Self::Connections => "1/s",
        }
    }

    /// What Whimbrel is held to, as in `roam-throughput`. A connection that is made after a move is a native one.
    fn bound(self, variant: Variant) -> Option<Bound> {
        match (self, variant) {
            (Self::Rate | Self::Requests, Variant::Still) => Some(Bound::RatioAtLeast(0.99)),
            (Self::Rate | Self::Requests, Variant::Moved) => Some(Bound::RatioAtLeast(0.97)),
            (Self::Cost, Variant::Still) => Some(Bound::RatioAtMost(1.02)),
            (Self::Cost, Variant::Moved) => Some(Bound::RatioAtMost(1.05)),
            (Self::Connections, Variant::Still) => Some(Bound::RatioAtLeast(0.98)),
            _ => None,
        }
    }

    /// What the paper measured for connections that moved (for connections made: that did not), beside a system without
    /// anything, as ratios of rates (§5.1: 9 to 13 % less; §5.2: 14 to 20 % longer; §5.3: 11 to 18 % longer), and of
    /// processor time (§5.1: 8 to 15 % more at the sender, 29 to 44 % at the receiver).
    fn paper(self) -> Option<(f64, f64)> {
        match self {
            Self::Rate => Some((0.87, 0.91)),
            Self::Requests => Some((1.0 / 1.20, 1.0 / 1.14)),
            Self::Connections => Some((1.0 / 1.18, 1.0 / 1.11)),
            Self::Cost => Some((1.08, 1.44)),
        }
    }
}

/// How long one turn lasts.
const TURN: Duration = Duration::from_millis(100);

/// Samples of a variant by quantity and size.
type Series = Vec<Vec<Samples>>;

/// Measures, reports and draws.
///
/// # Errors
/// When hosts cannot be set up or a program fails.
pub fn run(options: &Options) -> Result<()> {
    machine::warn_if_busy();
    if options.only == "sleep" {
        let mut report = Report::new("vnat-sleep");
        crate::sleep::measure(options, &mut report)?;
        report.finish()?;
        return Ok(());
    }
    let rounds = options.runs(30, 2);
    let mut series: Vec<Series> = VARIANTS.iter().map(|_| vec![vec![Samples::default(); SIZES.len()]; 4]).collect();
    take_turns(options, rounds, &mut series)?;
    for round in 0..rounds.div_ceil(3) {
        for which in turn_of(round) {
            // Whoever follows sockets is told of those of all namespaces: nobody else may be there.
            let bed = Bed::build(options.setup.lab_options(), VARIANTS[which])?;
            for (size, samples) in SIZES.into_iter().zip(&mut series[which][Quantity::Connections as usize]) {
                samples.push(make_connections(&bed, size, TURN)?);
            }
        }
        eprintln!("{}/{} connections", round + 1, rounds.div_ceil(3));
    }
    draw(&series, &crate::report::directory().join("vnat.svg"))?;
    let mut report = report(&series);
    crate::sleep::measure(options, &mut report)?;
    report.finish()?;
    Ok(())
}

fn report(series: &[Series]) -> Report {
    let mut report = Report::new("vnat");
    for (at, quantity) in Quantity::ALL.into_iter().enumerate() {
        for (which, variant) in VARIANTS.into_iter().enumerate().skip(1) {
            for (size, name) in SIZES.into_iter().enumerate() {
                let (of, baseline) = (&series[which][at][size], &series[0][at][size]);
                let id = format!("{}_{}_{name}", quantity.name(), variant.name());
                let figure = Figure::paired(&id, quantity.unit(), of, baseline);
                report.add(match quantity.bound(variant) {
                    Some(bound) => figure.bound(bound),
                    None => figure,
                });
            }
        }
    }
    report
}

/// One panel for each quantity: ratios to the system without anything, by size.
fn draw(series: &[Series], path: &Path) -> Result<()> {
    let panels = [
        (Quantity::Rate, "Throughput"),
        (Quantity::Cost, "Processor time for a byte"),
        (Quantity::Requests, "Requests and responses"),
        (Quantity::Connections, "Connections made, used once"),
    ];
    let charts = panels.map(|(quantity, title)| {
        let at = quantity as usize;
        let lines = VARIANTS.into_iter().enumerate().skip(1).map(|(which, variant)| Line {
            name: variant.name().replace('_', " "),
            points: (0..SIZES.len())
                .map(|size| {
                    let figure = Figure::paired("", "", &series[which][at][size], &series[0][at][size]);
                    (SIZES[size] as f64, figure.ratio().unwrap_or(f64::NAN))
                })
                .collect(),
        });
        let band = quantity.paper().map(|(from, to)| Band { name: "the paper, 2.4 kernel".into(), from, to });
        Chart { title: title.into(), across: "bytes of a message".into(), lines: lines.collect(), band }
    });
    crate::chart::write(&charts, "beside a system without anything", path)
}

/// Another one begins each round: what the one before left behind meets all alike.
fn turn_of(round: usize) -> impl Iterator<Item = usize> {
    (0..VARIANTS.len()).map(move |index| (index + round) % VARIANTS.len())
}

/// All are set up at once and take short turns: the rate of the machine changes by the second, and many times over.
fn take_turns(options: &Options, rounds: usize, series: &mut [Series]) -> Result<()> {
    let mut standing = Vec::new();
    for variant in VARIANTS {
        let bed = Bed::build(options.setup.lab_options(), variant)?;
        let (asker, stream) = (Exchange::open(&bed)?, Stream::open(&bed)?);
        let flows = [asker.flow()?, stream.flow];
        bed.wait_introduced(&flows)?;
        bed.move_client(&flows)?;
        let tunnelled = bed.tunnelled()?;
        // Connections end before their hosts do.
        standing.push((stream, asker, bed, tunnelled));
    }
    for round in 0..rounds {
        let began = Instant::now();
        for (at, size) in SIZES.into_iter().enumerate() {
            for which in turn_of(round + at) {
                let (stream, asker, ..) = &mut standing[which];
                let (rate, cost) = stream.measure(size, TURN)?;
                let values = [rate, cost, asker.measure(size, TURN)?];
                series[which].iter_mut().zip(values).for_each(|(samples, value)| samples[at].push(value));
            }
        }
        eprintln!("{}/{rounds} {:.1} s", round + 1, began.elapsed().as_secs_f64());
    }
    for (_, _, bed, tunnelled) in &standing {
        let tunnelled = bed.tunnelled()? - tunnelled;
        if tunnelled > 0 {
            return Err(format!("{tunnelled} packets went through the tunnel while rewriting was measured").into());
        }
    }
    Ok(())
}

fn connect(bed: &Bed, listener: &TcpListener) -> Result<TcpStream> {
    let to = SocketAddr::new(bed.target(), listener.local_addr()?.port());
    let stream = bed.client.enter(|| TcpStream::connect(to))??;
    prepare(&stream)?;
    Ok(stream)
}

fn prepare(stream: &TcpStream) -> Result<()> {
    set_tcp_congestion(stream.as_fd(), "cubic")?;
    stream.set_nodelay(true)?;
    Ok(stream.set_read_timeout(Some(LONG))?)
}

fn listen(bed: &Bed) -> Result<TcpListener> {
    Ok(bed.server.enter(|| TcpListener::bind((SERVER, bed.server.next_port())))??)
}

/// Messages one way, as fast as they go: between measurements the sender waits.
struct Stream {
    flow: (SocketAddr, SocketAddr),
    /// Bytes of a message; 0: wait.
    size: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    fn open(bed: &Bed) -> Result<Self> {
        let listener = listen(bed)?;
        let mut sending = connect(bed, &listener)?;
        let (mut receiving, _) = listener.accept()?;
        prepare(&receiving)?;
        let flow = (sending.local_addr()?, sending.peer_addr()?);
        let (size, received) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let sender = std::thread::Builder::new().name("send".into()).spawn({
            let (size, stop) = (Arc::clone(&size), Arc::clone(&stop));
            move || {
                // A machine with one processor cannot be divided.
                let _ = pin(CLIENT_CPU);
                let message = [0; SIZES[SIZES.len() - 1]];
                while !stop.load(Ordering::Relaxed) {
                    match size.load(Ordering::Relaxed) as usize {
                        0 => std::thread::park_timeout(Duration::from_millis(1)),
                        size if sending.write_all(&message[..size]).is_err() => return,
                        _ => {}
                    }
                }
            }
        })?;
        let receiver = std::thread::Builder::new().name("receive".into()).spawn({
            let (received, stop) = (Arc::clone(&received), Arc::clone(&stop));
            move || {
                let _ = pin(SERVER_CPU);
                let mut buffer = vec![0; 1 << 16];
                // Ends with the connection.
                loop {
                    match receiving.read(&mut buffer) {
                        Ok(0) => return,
                        Ok(read) => drop(received.fetch_add(read as u64, Ordering::Relaxed)),
                        Err(error)
                            if error.kind() == std::io::ErrorKind::WouldBlock && !stop.load(Ordering::Relaxed) => {}
                        Err(_) => return,
                    }
                }
            }
        })?;
        Ok(Self { flow, size, received, stop, threads: vec![sender, receiver] })
    }

    /// Gbit/s, and CPU seconds of the whole machine for 10^9 bytes.
    fn measure(&self, size: usize, length: Duration) -> Result<(f64, f64)> {
        self.size.store(size as u64, Ordering::Relaxed);
        // Whatever was queued in another size is gone by then.
        std::thread::sleep(length / 4);
        let look = || -> Result<(Instant, u64, f64)> {
            Ok((Instant::now(), self.received.load(Ordering::Relaxed), machine::busy_seconds()?))
        };
        let before = look()?;
        std::thread::sleep(length);
        let after = look()?;
        self.size.store(0, Ordering::Relaxed);
        let (seconds, bytes) = ((after.0 - before.0).as_secs_f64(), (after.1 - before.1) as f64);
        if bytes == 0.0 {
            return Err("nothing arrives".into());
        }
        Ok((bytes * 8.0 / seconds / 1e9, (after.2 - before.2) / (bytes / 1e9)))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It says nothing that matters any more.
            let _ = thread.join();
        }
    }
}

/// Requests, each answered by as many bytes.
struct Exchange {
    stream: TcpStream,
}

impl Exchange {
    fn open(bed: &Bed) -> Result<Self> {
        let listener = listen(bed)?;
        let stream = connect(bed, &listener)?;
        let (answering, _) = listener.accept()?;
        prepare(&answering)?;
        std::thread::Builder::new().name("answer".into()).spawn(move || {
            let _ = pin(SERVER_CPU);
            // Ends with the connection.
            let _ = answer(answering);
        })?;
        Ok(Self { stream })
    }

    fn flow(&self) -> Result<(SocketAddr, SocketAddr)> {
        Ok((self.stream.local_addr()?, self.stream.peer_addr()?))
    }

    /// Requests of so many bytes that are answered in a second.
    fn measure(&mut self, size: usize, length: Duration) -> Result<f64> {
        let stream = &mut self.stream;
        std::thread::scope(|scope| {
            let asking = scope.spawn(move || -> Result<f64> {
                pin(CLIENT_CPU)?;
                let (start, mut done) = (Instant::now(), 0u64);
                while start.elapsed() < length {
                    ask(stream, size)?;
                    done += 1;
                }
                Ok(done as f64 / start.elapsed().as_secs_f64())
            });
            asking.join().map_err(|_| "the asking thread panicked")?
        })
    }
}

/// A request is its length in four bytes, of which it is the rest too; the answer is as long.
fn ask(stream: &mut TcpStream, size: usize) -> Result<()> {
    let mut message = vec![0; size];
    message[..4].copy_from_slice(&(size as u32).to_be_bytes());
    stream.write_all(&message)?;
    Ok(stream.read_exact(&mut message)?)
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut message = vec![0; SIZES[SIZES.len() - 1]];
    loop {
        if let Err(error) = stream.read_exact(&mut message[..4]) {
            // Between two measurements nobody asks.
            if error.kind() == std::io::ErrorKind::WouldBlock {
                continue;
            }
            return Err(error);
        }
        let size = u32::from_be_bytes([message[0], message[1], message[2], message[3]]) as usize;
        let rest = message.get_mut(4..size).ok_or(std::io::ErrorKind::InvalidData)?;
        stream.read_exact(rest)?;
        stream.write_all(&message[..size])?;
    }
}

/// Connections a second, one after the other, each for one request and its answer.
fn make_connections(bed: &Bed, size: usize, length: Duration) -> Result<f64> {
    let listener = listen(bed)?;
    let to = SocketAddr::new(bed.target(), listener.local_addr()?.port());
    let stop = Arc::new(AtomicBool::new(false));
    let server = std::thread::Builder::new().name("accept".into()).spawn({
        let stop = Arc::clone(&stop);
        move || {
            let _ = pin(SERVER_CPU);
            while let Ok((stream, _)) = listener.accept() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let _ = stream.set_nodelay(true);
                // Ends when the other end has gone.
                let _ = answer(stream);
            }
        }
    })?;
    let client = bed.client.clone();
    let rate = client.enter(move || -> Result<f64> {
        pin(CLIENT_CPU)?;
        let (start, mut done) = (Instant::now(), 0u64);
        while start.elapsed() < length {
            let mut stream = TcpStream::connect(to)?;
            prepare(&stream)?;
            ask(&mut stream, size)?;
            // Aborted, not closed: TIME_WAIT would use up the ports within a second or two.
            set_socket_linger(&stream, Some(Duration::ZERO))?;
            done += 1;
        }
        Ok(done as f64 / start.elapsed().as_secs_f64())
    })?;
    stop.store(true, Ordering::Relaxed);
    // The last one only wakes it.
    drop(bed.client.enter(|| TcpStream::connect(to))?);
    server.join().map_err(|_| "the accepting thread panicked")?;
    rate
}
