//! Programs that produce and check traffic. They run as processes of their own inside hosts (hidden commands of
//! `whimbrel-lab`), so that to Whimbrel they are programs like any other. They take commands as lines on standard input
//! and answer each with one line of JSON.

mod many;
mod pattern;
mod requests;
mod stream;
mod ticks;
mod udp;
mod walker;

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_ipc::{Client, ClientError, Request};

use crate::{Error, MonoTime, Result, TcpInfo};

pub use self::many::EchoReport;
pub use self::requests::BenchReport;
pub use self::walker::WalkerOptions;
pub(crate) use self::walker::{LOG, PARTNER, beside};

/// Pause before a daemon that has gone is looked for again.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// What one process does.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Role {
    /// Waits for one TCP connection and carries a byte-exact stream in both directions.
    StreamServer {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
        /// Of the flow.
        #[command(flatten)]
        flow: FlowOptions,
    },
    /// Opens one TCP connection and carries a byte-exact stream in both directions.
    StreamClient {
        /// Address to connect to.
        #[arg(long)]
        connect: SocketAddr,
        /// Of the flow.
        #[command(flatten)]
        flow: FlowOptions,
    },
    /// Waits for one datagram, connects to its sender and exchanges numbered datagrams.
    UdpServer {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
        /// Of the flow.
        #[command(flatten)]
        flow: FlowOptions,
    },
    /// Exchanges numbered datagrams over a connected socket.
    UdpClient {
        /// Address to connect to.
        #[arg(long)]
        connect: SocketAddr,
        /// Of the flow.
        #[command(flatten)]
        flow: FlowOptions,
    },
    /// Passes datagrams between whoever sends to one address first and another address: what an unprivileged user can
    /// do.
    UdpRelay {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
        /// Address to pass to, and answers from.
        #[arg(long)]
        connect: SocketAddr,
    },
    /// Echoes what arrives on any number of TCP connections.
    EchoServer {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
        /// Also on connections that come from other hosts.
        #[command(flatten)]
        receive: ReceiveOptions,
        /// Datagrams to the same address as well.
        #[arg(long)]
        datagrams: bool,
    },
    /// Sends a byte every so often over connections that change hosts.
    Ticker {
        /// Address to listen on.
        #[arg(long)]
        listen: SocketAddr,
        /// How connections come from other hosts.
        #[command(flatten)]
        receive: ReceiveOptions,
        /// Microseconds between two bytes.
        #[arg(long)]
        every: u64,
    },
    /// Sends numbers over connections that it opens, wants them back, and hangs on nothing else.
    Walker {
        /// What it does.
        #[command(flatten)]
        options: WalkerOptions,
    },
    /// A walker's child, which reads on a connection that the walker sends on.
    WalkersPartner {
        /// The file that tells how it fares.
        #[arg(long)]
        report: PathBuf,
    },
    /// A shell that hangs on nothing.
    Shell {
        /// What it runs.
        #[arg(long)]
        command: String,
    },
    /// Notes when what a ticker sends arrives.
    TickerFar {
        /// Address to connect to.
        #[arg(long)]
        connect: SocketAddr,
    },
    /// Holds many TCP connections to an echo server.
    Many {
        /// Address to connect to; of several each in turn.
        #[arg(long, required = true)]
        connect: Vec<SocketAddr>,
        /// How many.
        #[arg(long)]
        count: usize,
    },
    /// Measures requests a second: one byte each way on one connection to an echo server.
    Requests {
        /// Address to connect to.
        #[arg(long)]
        connect: SocketAddr,
        /// For how long.
        #[arg(long)]
        milliseconds: u64,
    },
    /// Measures connections a second to an echo server: open, one byte each way, abort.
    Connections {
        /// Address to connect to.
        #[arg(long)]
        connect: SocketAddr,
        /// For how long.
        #[arg(long)]
        milliseconds: u64,
    },
}

/// How a program receives connections from other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct ReceiveOptions {
    /// Directory of the daemon's control socket.
    #[arg(long, requires = "receive")]
    pub run_dir: Option<PathBuf>,
    /// The name under which they come.
    #[arg(long, requires = "run_dir")]
    pub receive: Option<String>,
}

impl ReceiveOptions {
    fn both(&self) -> Option<(&Path, &str)> {
        self.run_dir.as_deref().zip(self.receive.as_deref())
    }
}

/// Options of both ends of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct FlowOptions {
    /// Names the byte streams; both ends use the same.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Bits a second to send; 0: nothing; absent: as fast as it goes.
    #[arg(long)]
    pub rate: Option<u64>,
    /// Source address and port of a client.
    #[arg(long)]
    pub bind: Option<SocketAddr>,
    /// Interface to bind to (SO_BINDTODEVICE).
    #[arg(long)]
    pub device: Option<String>,
    /// Report every ICMP error (IP_RECVERR, IPV6_RECVERR).
    #[arg(long)]
    pub report_errors: bool,
    /// Send keepalives: the first after 5 s, two more before giving up (TCP).
    #[arg(long)]
    pub keepalive: bool,
    /// Payload of a datagram, bytes (at least 8).
    #[arg(long, default_value_t = 200)]
    pub size: usize,
}

/// Runs one role until its standard input ends.
pub fn run(role: Role) -> Result<()> {
    match role {
        Role::StreamServer { listen, flow } => stream::serve(listen, &flow),
        Role::StreamClient { connect, flow } => stream::connect(connect, &flow),
        Role::UdpServer { listen, flow } => udp::serve(listen, &flow),
        Role::UdpClient { connect, flow } => udp::connect(connect, &flow),
        Role::UdpRelay { listen, connect } => udp::relay(listen, connect),
        Role::EchoServer { listen, receive, datagrams } => many::serve(listen, receive, datagrams),
        Role::Ticker { listen, receive, every } => match receive.both() {
            Some((run_dir, name)) => ticks::serve(listen, run_dir, name, Duration::from_micros(every)),
            None => Err(Error::Usage("a ticker needs --run-dir and --receive".to_owned())),
        },
        Role::Walker { options } => walker::walk(&options),
        Role::WalkersPartner { report } => walker::partner(&report),
        Role::Shell { command } => walker::shell(&command),
        Role::TickerFar { connect } => ticks::hear(connect),
        Role::Many { connect, count } => many::hold(&connect, count),
        Role::Requests { connect, milliseconds } => requests::requests(connect, Duration::from_millis(milliseconds)),
        Role::Connections { connect, milliseconds } => {
            requests::connections(connect, Duration::from_millis(milliseconds))
        }
    }
}

/// State of one end of a stream or datagram pair.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FlowStatus {
    /// Bytes (stream) or datagrams (UDP) handed to the kernel.
    pub sent: u64,
    /// Bytes or different datagrams received.
    pub received: u64,
    /// Position of the first byte that was not the right one.
    pub differs_at: Option<u64>,
    /// Datagrams received more than once.
    pub duplicates: u64,
    /// When something arrived last.
    pub last_arrival: Option<MonoTime>,
    /// The far end has finished.
    pub ended: bool,
    /// This end has finished sending.
    pub finished: bool,
    /// Error of the socket, in words.
    pub error: Option<String>,
    /// The kernel's figures (TCP only).
    pub tcp: Option<TcpInfo>,
}

/// What the programs print.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub(crate) enum Line {
    /// Ready for connections.
    Listening { address: SocketAddr },
    /// The connection is there.
    Connected { local: SocketAddr, peer: SocketAddr },
    /// Many connections are there.
    Opened { count: usize, seconds: f64 },
    /// A ticker's connection is another host's: it has sent the bytes from the first number to before the second.
    Ticked { from: u64, until: u64 },
    /// Answer to `status`.
    Status(FlowStatus),
    /// Answer to `arrivals FROM`: time and number of bytes (stream) or sequence number (UDP).
    Arrivals { list: Vec<(u64, u64)> },
    /// Answer to `echo`.
    Echo(EchoReport),
    /// Result of a measurement.
    Bench(BenchReport),
    /// Answer to a command that changes something.
    Ok,
    /// The program cannot go on, or did not understand a command.
    Failed { error: String },
}

pub(crate) fn print(line: &Line) {
    // Lines of plain data always serialise. If nobody listens any more, the end of standard input follows.
    let text = serde_json::to_string(line).unwrap_or_default();
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// What a flow's threads share.
#[derive(Debug, Default)]
struct Flow {
    status: FlowStatus,
    arrivals: Vec<(u64, u64)>,
    /// Bits a second; `None`: unlimited.
    rate: Option<u64>,
    finish: bool,
}

type Shared = Arc<Mutex<Flow>>;

/// Arrivals kept; at 50 Mbit/s an hour's worth.
const MOST_ARRIVALS: usize = 8 << 20;

fn lock(flow: &Shared) -> MutexGuard<'_, Flow> {
    flow.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Flow {
    fn arrived(&mut self, what: u64) {
        let now = MonoTime::now();
        self.status.last_arrival = Some(now);
        if self.arrivals.len() < MOST_ARRIVALS {
            self.arrivals.push((now.0, what));
        }
    }
}

/// Position of the first byte that is not as a client of this seed sends it, from `position` on.
#[must_use]
pub fn first_difference(seed: u64, position: u64, got: &[u8]) -> Option<u64> {
    pattern::Pattern::new(seed, true).first_difference(position, got, &mut Vec::new())
}

/// Obeys commands on standard input until it ends. `tcp_info` completes a status.
fn obey(flow: &Shared, tcp_info: impl Fn() -> Option<TcpInfo>) -> Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|e| Error::call("read", "standard input", e))?;
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or("");
        let number = words.next().and_then(|w| w.parse::<u64>().ok());
        let answer = match (command, number) {
            ("status", _) => Line::Status(FlowStatus { tcp: tcp_info(), ..lock(flow).status.clone() }),
            ("arrivals", Some(from)) => {
                let flow = lock(flow);
                let start = flow.arrivals.partition_point(|(t, _)| *t < from);
                Line::Arrivals { list: flow.arrivals[start..].to_vec() }
            }
            ("rate", rate) => {
                lock(flow).rate = rate;
                Line::Ok
            }
            ("finish", _) => {
                lock(flow).finish = true;
                Line::Ok
            }
            _ => Line::Failed { error: format!("unknown command: {line}") },
        };
        print(&answer);
    }
    Ok(())
}

/// Ends the process when its standard input does.
fn end_with_stdin() {
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(0);
    });
}

/// Receives sockets from other hosts under a name, from one daemon after the other. `ready` is called once they may
/// come.
fn receive_sockets(run_dir: &Path, name: &str, ready: impl FnOnce(), mut received: impl FnMut(OwnedFd)) -> Result<()> {
    let failed = |e: ClientError| Error::Usage(format!("receiving sockets as {name}: {e}"));
    let mut ready = Some(ready);
    loop {
        let ended = receive_from(run_dir, name, |descriptors| match ready.take() {
            Some(ready) => ready(),
            None => descriptors.into_iter().for_each(&mut received),
        });
        match ended {
            // It has gone, or is not there yet again.
            ClientError::Connect { .. } | ClientError::Closed { .. } | ClientError::Io { .. } if ready.is_none() => {
                std::thread::sleep(ASK_AGAIN);
            }
            error => return Err(failed(error)),
        }
    }
}

/// As long as one daemon is there, which says first that sockets may come.
fn receive_from(run_dir: &Path, name: &str, mut told: impl FnMut(Vec<OwnedFd>)) -> ClientError {
    let begun = Client::connect(run_dir)
        .and_then(|mut client| client.start(&Request::Receive { name: name.to_owned() }).map(|()| client));
    let mut client = match begun {
        Ok(client) => client,
        Err(error) => return error,
    };
    loop {
        match client.next_reply(None) {
            Ok((_, descriptors)) => told(descriptors),
            Err(error) => return error,
        }
    }
}

/// Spends a rate: says how many bytes may be sent now, or how long to wait.
#[derive(Debug)]
struct Pacer {
    last: MonoTime,
    /// Bits that may be sent.
    credit: f64,
}

impl Pacer {
    fn new() -> Self {
        Self { last: MonoTime::now(), credit: 0.0 }
    }

    /// Bytes out of `most` that may be sent at `rate`; 0 means wait a little.
    fn allow(&mut self, rate: Option<u64>, most: usize) -> usize {
        let now = MonoTime::now();
        let elapsed = now.since(self.last).as_secs_f64();
        self.last = now;
        let Some(rate) = rate else { return most };
        // What was not sent during a stall is not made up for: 50 ms at most.
        let quantum = (rate as f64 * 0.05).max(most.min(1500) as f64 * 8.0);
        self.credit = (self.credit + elapsed * rate as f64).min(quantum);
        // A few bytes at a time would be sent as so many small segments, and keep a processor busy.
        if self.credit < (rate as f64 * PACE.as_secs_f64()).min(most as f64 * 8.0) {
            return 0;
        }
        let bytes = ((self.credit / 8.0) as usize).min(most);
        self.credit -= bytes as f64 * 8.0;
        bytes
    }
}

/// How long a paced sender waits when it may send nothing: pacing is a matter of time, not of a condition.
const PACE: Duration = Duration::from_millis(1);

/// Binds a socket to an interface, if asked to.
fn bind_device(socket: &rustix::fd::OwnedFd, options: &FlowOptions) -> Result<()> {
    match &options.device {
        Some(device) => crate::sys::bind_to_device(socket, device)
            .map_err(|e| Error::call("setsockopt(SO_BINDTODEVICE)", device.clone(), e)),
        None => Ok(()),
    }
}

/// Has a socket report every ICMP error, if asked to.
fn report_errors(socket: impl AsFd, peer: SocketAddr, options: &FlowOptions) -> Result<()> {
    if !options.report_errors {
        return Ok(());
    }
    crate::sys::report_errors(socket, peer.is_ipv6())
        .map_err(|e| Error::call("setsockopt(IP_RECVERR)", peer.to_string(), e))
}

fn unspecified(family_of: SocketAddr) -> SocketAddr {
    match family_of.ip() {
        IpAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        IpAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
    }
}
