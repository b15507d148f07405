//! Handles on the programs of [`crate::traffic`].

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::traffic::{BenchReport, EchoReport, FlowStatus, LOG, Line, PARTNER, beside};
use crate::{Cmd, Error, Host, MonoTime, Process, Result, Whimbrel, expect, wait_for};

/// How long a traffic program may take to answer a command.
const ANSWER: Duration = Duration::from_secs(20);
/// Time for a connection to be made, long enough for some lost SYNs.
const CONNECT: Duration = Duration::from_secs(40);

/// A running traffic program.
#[derive(Debug)]
struct Program(Process);

impl Program {
    fn start(host: &Host, role: &str, args: &[String]) -> Result<Self> {
        let command = host.command(lab_binary()?).arg("traffic").arg(role).args(args).label(role);
        Ok(Self(command.spawn()?))
    }

    /// Starts it by `whimbrel run`, with the address of another host.
    fn start_behind(daemon: &Whimbrel, anchor: &[String], role: &str, args: &[String]) -> Result<Self> {
        let command = daemon.command(&["run"]).args(anchor).arg("--").arg(lab_binary()?);
        Ok(Self(command.arg("traffic").arg(role).args(args).label(role).spawn()?))
    }

    fn next(&mut self, what: &str, timeout: Duration) -> Result<Line> {
        let line = self.0.wait_line(timeout, what, |line| Some(line.to_owned()))?;
        match serde_json::from_str(&line) {
            Ok(Line::Failed { error }) => Err(Error::Expectation(format!("{what}: {error}"))),
            Ok(line) => Ok(line),
            Err(_) => Err(wrong(what, &line)),
        }
    }

    fn ask(&mut self, command: &str, timeout: Duration) -> Result<Line> {
        self.0.send_line(command)?;
        self.next(command, timeout)
    }
}

fn wrong(what: &str, got: &str) -> Error {
    let got = got.chars().take(200).collect();
    Error::Output { program: what.into(), expected: "an answer to its command", got }
}

/// Where the `whimbrel-lab` binary is: `WHIMBREL_LAB_BIN`, this program itself, or beside it (or one directory up, for
/// test programs).
pub(crate) fn lab_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("WHIMBREL_LAB_BIN") {
        return Ok(path.into());
    }
    crate::beside_this_program("whimbrel-lab")
        .ok_or_else(|| Error::Usage("whimbrel-lab is not beside this program: build it or set WHIMBREL_LAB_BIN".into()))
}

/// Which end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that connected.
    Client,
    /// The end that was connected to.
    Server,
}

/// Options of a pair.
#[derive(Clone, Debug, Default)]
pub struct PairOptions {
    /// Bits a second from client to server; 0: nothing; `None`: as fast as it goes.
    pub up: Option<u64>,
    /// Bits a second from server to client.
    pub down: Option<u64>,
    /// Port of the server; 0: 7000, or the next ports for later pairs with the same server.
    pub port: u16,
    /// Where the server listens, if not where the client connects to: it may be behind a NAT.
    pub listen: Option<IpAddr>,
    /// Source address and port of the client.
    pub bind: Option<SocketAddr>,
    /// Interface that the client binds its socket to.
    pub device: Option<String>,
    /// Both ends ask to be told of every ICMP error.
    pub report_errors: bool,
    /// Both ends send keepalives, which would end a connection that nobody answers within 15 s (TCP).
    pub keepalive: bool,
}

impl PairOptions {
    /// This rate in both directions, bits a second.
    pub fn rate(bits: u64) -> Self {
        Self { up: Some(bits), down: Some(bits), ..Self::default() }
    }

    /// A download at this rate, and 100 kbit/s the other way.
    pub fn download(bits: Option<u64>) -> Self {
        Self { up: Some(100_000), down: bits, ..Self::default() }
    }
}

/// Two processes with one connection between them: a TCP stream checked byte for byte in both directions, or numbered
/// datagrams between connected UDP sockets.
#[derive(Debug)]
pub struct FlowPair {
    client: Program,
    server: Program,
    udp: bool,
    local: SocketAddr,
    peer: SocketAddr,
    seen_by_server: SocketAddr,
}

impl FlowPair {
    /// Opens a TCP connection from `client` to `address` on `server`.
    pub fn tcp(client: &Host, server: &Host, address: IpAddr, options: &PairOptions) -> Result<Self> {
        Self::open(client, server, address, options, false)
    }

    /// Opens a UDP pair; the first datagrams have been exchanged when this returns.
    pub fn udp(client: &Host, server: &Host, address: IpAddr, options: &PairOptions) -> Result<Self> {
        Self::open(client, server, address, options, true)
    }

    fn open(client: &Host, server: &Host, address: IpAddr, options: &PairOptions, udp: bool) -> Result<Self> {
        let kind = if udp { "udp" } else { "stream" };
        let port = if options.port == 0 { server.next_port() } else { options.port };
        let to = SocketAddr::new(address, port);
        let common = |rate: Option<u64>| {
            let rate = rate.map(|r| format!("--rate={r}"));
            let errors = options.report_errors.then(|| "--report-errors".to_owned());
            let keepalive = options.keepalive.then(|| "--keepalive".to_owned());
            let seed = [format!("--seed={port}")];
            rate.into_iter().chain(seed).chain(errors).chain(keepalive).collect::<Vec<_>>()
        };
        let listen = SocketAddr::new(options.listen.unwrap_or(address), port);
        let args = [vec![format!("--listen={listen}")], common(options.down)].concat();
        let mut server = Program::start(server, &format!("{kind}-server"), &args)?;
        server.next("the server listens", ANSWER)?;
        let mut args = [vec![format!("--connect={to}")], common(options.up)].concat();
        args.extend(options.bind.map(|bind| format!("--bind={bind}")));
        args.extend(options.device.iter().map(|device| format!("--device={device}")));
        let mut client = Program::start(client, &format!("{kind}-client"), &args)?;
        let connected = |line: Line| match line {
            Line::Connected { local, peer } => Ok((local, peer)),
            other => Err(wrong("connecting", &format!("{other:?}"))),
        };
        let (local, peer) = connected(client.next("the client connects", CONNECT)?)?;
        let (_, seen_by_server) = connected(server.next("the server accepts", CONNECT)?)?;
        Ok(Self { client, server, udp, local, peer, seen_by_server })
    }

    /// Own address of the client's socket.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Address that the client connected to.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The client's address as the server's socket has it: different behind a NAT.
    pub fn seen_by_server(&self) -> SocketAddr {
        self.seen_by_server
    }

    /// The process at one end.
    pub fn process(&mut self, side: Side) -> &mut Process {
        &mut self.end(side).0
    }

    fn end(&mut self, side: Side) -> &mut Program {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// State of one end.
    pub fn status(&mut self, side: Side) -> Result<FlowStatus> {
        match self.end(side).ask("status", ANSWER)? {
            Line::Status(status) => Ok(status),
            other => Err(wrong("status", &format!("{other:?}"))),
        }
    }

    /// Fails if either end saw an error or a wrong byte.
    pub fn check(&mut self) -> Result<[FlowStatus; 2]> {
        let both = [self.status(Side::Client)?, self.status(Side::Server)?];
        for (status, end) in both.iter().zip(["client", "server"]) {
            expect!(status.differs_at.is_none(), "{end} received a wrong byte at {:?}", status.differs_at);
            expect!(
                self.udp || status.error.is_none(),
                "{end}'s socket failed: {}",
                status.error.as_deref().unwrap_or("")
            );
        }
        Ok(both)
    }

    /// Waits until each end that the other one sends to has received `more` bytes (datagrams) from now on. At most
    /// `timeout`.
    pub fn wait_progress(&mut self, more: u64, timeout: Duration) -> Result<()> {
        self.wait_progress_of(&[Side::Client, Side::Server], more, timeout)
    }

    /// The same for the ends named.
    pub fn wait_progress_of(&mut self, receivers: &[Side], more: u64, timeout: Duration) -> Result<()> {
        let mut wanted = Vec::new();
        for side in receivers {
            wanted.push((*side, self.status(*side)?.received + more));
        }
        let mut last = Vec::new();
        let result = wait_for(timeout, &format!("{more} more bytes or datagrams arrive at {receivers:?}"), || {
            last.clear();
            let mut done = true;
            for (side, goal) in &wanted {
                let received = self.status(*side)?.received;
                done &= received >= *goal;
                last.push(format!("{side:?} has {received} of {goal}"));
            }
            self.check()?;
            Ok(done.then_some(()))
        });
        result.map_err(|e| match e {
            Error::Timeout { what, after, .. } => {
                Error::Timeout { what, after, last: format!("; {}", last.join(", ")) }
            }
            e => e,
        })
    }

    /// Times and sizes (datagram: numbers) of what one end received from `from` on.
    pub fn arrivals(&mut self, side: Side, from: MonoTime) -> Result<Vec<(MonoTime, u64)>> {
        match self.end(side).ask(&format!("arrivals {}", from.0), ANSWER)? {
            Line::Arrivals { list } => Ok(list.into_iter().map(|(t, n)| (MonoTime(t), n)).collect()),
            other => Err(wrong("arrivals", &format!("{other:?}"))),
        }
    }

    /// When one end went on receiving after `from`: the end of its longest pause since then. What was still on the way
    /// at `from` is not taken for it, if the pause is longer than those of the sender.
    pub fn resumed(&mut self, side: Side, from: MonoTime) -> Result<Option<MonoTime>> {
        Ok(longest_pause(from, &self.arrivals(side, from)?).map(|(_, end)| end))
    }

    /// The longest time for which one end received nothing after `from`; none if nothing has come since. This is what
    /// bounds how long a flow took to go on, and not when its longest pause ended ([`resumed`](Self::resumed)): on a
    /// busy machine programs wait for a processor as long as a hand-off takes, and such a pause may come seconds after
    /// the flow went on.
    pub fn silence(&mut self, side: Side, from: MonoTime) -> Result<Option<Duration>> {
        Ok(longest_pause(from, &self.arrivals(side, from)?).map(|(pause, _)| pause))
    }

    /// The longest time without a byte that ended at or after `from`.
    pub fn longest_gap(&mut self, side: Side, from: MonoTime) -> Result<Duration> {
        // The arrival before `from` begins the first gap; a second is further back than any sender of a scenario
        // pauses.
        let since = MonoTime(from.0.saturating_sub(1_000_000_000));
        let arrivals = self.arrivals(side, since)?;
        let gaps = arrivals.windows(2).filter(|w| w[1].0 >= from).map(|w| w[1].0 - w[0].0);
        Ok(gaps.max().unwrap_or_default())
    }

    /// Changes what one end sends, bits a second; `None`: as fast as it goes.
    pub fn set_rate(&mut self, side: Side, rate: Option<u64>) -> Result<()> {
        let command = rate.map_or("rate".into(), |r| format!("rate {r}"));
        self.end(side).ask(&command, ANSWER).map(drop)
    }

    /// Lets both ends finish sending, and checks that all that was sent has arrived, byte for byte. Only for TCP.
    pub fn finish(mut self, timeout: Duration) -> Result<[FlowStatus; 2]> {
        for side in [Side::Client, Side::Server] {
            self.end(side).ask("finish", ANSWER)?;
        }
        self.wait_finished(timeout)
    }

    /// As [`finish`](Self::finish), where one end is the first to close and the other does so once it has seen that.
    pub fn finish_from(mut self, first: Side, timeout: Duration) -> Result<[FlowStatus; 2]> {
        let second = if first == Side::Client { Side::Server } else { Side::Client };
        self.end(first).ask("finish", ANSWER)?;
        let what = "the other end has seen the end of the stream";
        wait_for(timeout, what, || Ok(self.status(second)?.ended.then_some(())))?;
        self.end(second).ask("finish", ANSWER)?;
        self.wait_finished(timeout)
    }

    fn wait_finished(mut self, timeout: Duration) -> Result<[FlowStatus; 2]> {
        let what = "both ends have seen the end of the stream";
        let [client, server] = wait_for(timeout, what, || {
            let both = self.check()?;
            Ok(both.iter().all(|s| s.ended && s.finished).then_some(both))
        })?;
        expect!(server.received == client.sent, "server has {} of {} bytes", server.received, client.sent);
        expect!(client.received == server.sent, "client has {} of {} bytes", client.received, server.sent);
        Ok([client, server])
    }
}

/// A program of an unprivileged user that passes datagrams on: it has nothing but a UDP port.
#[derive(Debug)]
pub struct UdpRelay(Program);

impl UdpRelay {
    /// Passes what comes to `listen` on to `to`, as user and group `nobody`, and the answers back.
    pub fn start(host: &Host, listen: SocketAddr, to: SocketAddr) -> Result<Self> {
        let args = [format!("--listen={listen}"), format!("--connect={to}")];
        let command = host.command("setpriv").args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        let command = command.args(["--bounding-set=-all", "--no-new-privs"]).arg(lab_binary()?);
        let mut program = Program(command.args(["traffic", "udp-relay"]).args(args).label("udp-relay").spawn()?);
        program.next("the relay listens", ANSWER)?;
        Ok(Self(program))
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.0.0
    }
}

/// A server that echoes on any number of connections.
#[derive(Debug)]
pub struct EchoServer {
    program: Program,
    address: SocketAddr,
}

impl EchoServer {
    /// Starts it on this address.
    pub fn start(host: &Host, address: IpAddr) -> Result<Self> {
        let address = SocketAddr::new(address, host.next_port());
        Self::start_with(host, address, Vec::new())
    }

    /// Starts it on this address and port.
    pub fn start_at(host: &Host, address: SocketAddr) -> Result<Self> {
        Self::start_with(host, address, Vec::new())
    }

    /// Starts it on this address, for datagrams as well.
    pub fn with_datagrams(host: &Host, address: IpAddr) -> Result<Self> {
        let address = SocketAddr::new(address, host.next_port());
        Self::start_with(host, address, vec!["--datagrams".to_owned()])
    }

    /// Starts it on a daemon's host, so that it echoes also on connections that come from other hosts under a name.
    pub fn receiving(daemon: &Whimbrel, address: IpAddr, name: &str) -> Result<Self> {
        let address = SocketAddr::new(address, daemon.host().next_port());
        Self::start_with(daemon.host(), address, receive_options(daemon, name))
    }

    /// Starts it on a daemon's host behind an anchor, on an address and port of that one's.
    pub fn start_behind(daemon: &Whimbrel, anchor: &str, address: SocketAddr) -> Result<Self> {
        let args = [format!("--listen={address}")];
        let mut program = Program::start_behind(daemon, &behind(anchor, address), "echo-server", &args)?;
        program.next("the echo server listens", ANSWER)?;
        Ok(Self { program, address })
    }

    fn start_with(host: &Host, address: SocketAddr, more: Vec<String>) -> Result<Self> {
        let args = [vec![format!("--listen={address}")], more].concat();
        let mut program = Program::start(host, "echo-server", &args)?;
        program.next("the echo server listens", ANSWER)?;
        Ok(Self { program, address })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.program.0.pid()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.program.0
    }

    /// Measures requests a second from `client`, one byte each way on one connection.
    pub fn requests(&self, client: &Host, duration: Duration) -> Result<BenchReport> {
        self.measure(client, "requests", duration)
    }

    /// Measures connections a second from `client`.
    pub fn connections(&self, client: &Host, duration: Duration) -> Result<BenchReport> {
        self.measure(client, "connections", duration)
    }

    fn measure(&self, client: &Host, role: &str, duration: Duration) -> Result<BenchReport> {
        let args = [format!("--connect={}", self.address), format!("--milliseconds={}", duration.as_millis())];
        match Program::start(client, role, &args)?.next(role, duration + CONNECT)? {
            Line::Bench(report) => Ok(report),
            other => Err(wrong(role, &format!("{other:?}"))),
        }
    }
}

/// The longest pause of what arrived after `from`, which begins the first one, and when it ended.
fn longest_pause(from: MonoTime, arrivals: &[(MonoTime, u64)]) -> Option<(Duration, MonoTime)> {
    let starts = std::iter::once(from).chain(arrivals.iter().map(|(at, _)| *at));
    let pauses = starts.zip(arrivals).map(|(start, (end, _))| (*end - start, *end));
    pauses.max_by_key(|(pause, _)| *pause)
}

/// What `whimbrel run` is told for a program on this address of an anchor's.
fn behind(anchor: &str, address: SocketAddr) -> Vec<String> {
    let mut options = vec![format!("--anchor={anchor}"), format!("--port={}", address.port())];
    if address.is_ipv6() {
        options.push("-6".to_owned());
    }
    options
}

fn receive_options(daemon: &Whimbrel, name: &str) -> Vec<String> {
    vec![format!("--run-dir={}", daemon.run_dir().display()), format!("--receive={name}")]
}

/// A program that sends a byte every so often over connections that it accepts, or receives from other hosts.
#[derive(Debug)]
pub struct Ticker {
    program: Program,
    address: SocketAddr,
}

impl Ticker {
    /// Starts it on a daemon's host. It receives connections under `name`.
    pub fn start(daemon: &Whimbrel, address: IpAddr, name: &str, every: Duration) -> Result<Self> {
        let address = SocketAddr::new(address, daemon.host().next_port());
        let own = vec![format!("--listen={address}"), format!("--every={}", every.as_micros())];
        let mut program = Program::start(daemon.host(), "ticker", &[own, receive_options(daemon, name)].concat())?;
        program.next("the ticker listens", ANSWER)?;
        Ok(Self { program, address })
    }

    /// Starts it on a daemon's host behind an anchor, on an address and port of that one's.
    pub fn start_behind(
        daemon: &Whimbrel,
        anchor: &str,
        address: SocketAddr,
        name: &str,
        every: Duration,
    ) -> Result<Self> {
        let own = vec![format!("--listen={address}"), format!("--every={}", every.as_micros())];
        let args = [own, receive_options(daemon, name)].concat();
        let mut program = Program::start_behind(daemon, &behind(anchor, address), "ticker", &args)?;
        program.next("the ticker listens", ANSWER)?;
        Ok(Self { program, address })
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.program.0
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.program.0.kill()
    }

    /// Waits until a connection is not its own any more: the number of the first byte that it sent, and that after its
    /// last.
    pub fn ticked(&mut self) -> Result<(u64, u64)> {
        match self.program.next("the connection is another host's", ANSWER)? {
            Line::Ticked { from, until } => Ok((from, until)),
            other => Err(wrong("ticking", &format!("{other:?}"))),
        }
    }
}

/// Programs that hang on nothing but their connections to an echo server, and can go to another host as they are.
#[derive(Debug)]
pub struct Walker {
    process: Process,
    /// Where each of them tells how it fares.
    reports: Vec<PathBuf>,
}

/// How a [`Walker`] fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkerReport {
    /// Numbers that came back on the slowest of its connections.
    pub received: u64,
    /// The longest that one of them was silent.
    pub longest_gap: Duration,
    /// `walks`, or what is wrong.
    pub state: String,
}

/// What a [`Walker`] has, beside its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Memory, in bytes.
    pub memory: usize,
    /// A connection that it sends on and its child reads on.
    pub shared: bool,
    /// A UDP socket.
    pub datagrams: bool,
    /// A lock of a file.
    pub locks: bool,
    /// A connected UDP socket that says no more.
    pub silent: bool,
    /// A connection that it reads no more.
    pub deaf: bool,
}

impl Walker {
    /// Starts one process on a host, with so many connections.
    pub fn start(host: &Host, server: &EchoServer, count: usize, metadata: Metadata) -> Result<Self> {
        let report = host.dir().join(host.unique_label("walker"));
        let args = walker_arguments(server, count, metadata, &report);
        let command = host.command(lab_binary()?).arg("traffic").args(args).label("walker");
        Self::spawn(command, reports_of(report, metadata))
    }

    /// Starts a shell on a host that waits for two of them, one with all there is and one with nothing but its
    /// connections. The shell writes its number to the file `enter` first, if there is one.
    pub fn start_family(host: &Host, server: &EchoServer, count: usize, enter: Option<&Path>) -> Result<Self> {
        let program = lab_binary()?.display().to_string();
        let (mut script, mut reports) = (String::new(), Vec::new());
        if let Some(enter) = enter {
            script.push_str(&format!("echo $$ >'{}'; ", enter.display()));
        }
        let all = Metadata { memory: 1 << 20, shared: true, datagrams: true, ..Metadata::default() };
        for metadata in [all, Metadata::default()] {
            let report = host.dir().join(host.unique_label("walker"));
            let words = walker_arguments(server, count, metadata, &report);
            let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
            script.push_str(&format!("'{program}' traffic {} & ", words.join(" ")));
            reports.extend(reports_of(report, metadata));
        }
        script.push_str("wait");
        let command = host.command(program).args(["traffic", "shell", "--command", &script]).label("family");
        Self::spawn(command, reports)
    }

    fn spawn(command: Cmd, reports: Vec<PathBuf>) -> Result<Self> {
        let walker = Self { process: command.spawn()?, reports };
        walker.wait_progress(100)?;
        Ok(walker)
    }

    /// The number of the first of its processes on the host on which it was started.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// How it fares, wherever it is: the worst of what its processes say.
    pub fn report(&self) -> Result<WalkerReport> {
        let mut worst = WalkerReport { received: u64::MAX, longest_gap: Duration::ZERO, state: "walks".to_owned() };
        for path in &self.reports {
            let report = read_report(path)?;
            worst.received = worst.received.min(report.received);
            worst.longest_gap = worst.longest_gap.max(report.longest_gap);
            if report.state != "walks" {
                worst.state = report.state;
            }
        }
        Ok(worst)
    }

    /// Looks at the file that the first of its processes writes to all the time: nothing is lost in it or there twice.
    pub fn log_is_whole(&self) -> Result<()> {
        let Some(path) = self.reports.first().map(|report| beside(report, LOG)) else { return Ok(()) };
        let text =
            std::fs::read_to_string(&path).map_err(|error| Error::call("read", path.display().to_string(), error))?;
        // The last line may just be written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let wrong = whole.lines().zip(0u64..).find(|(line, number)| line.parse() != Ok(*number));
        expect!(wrong.is_none() && !whole.is_empty(), "line {wrong:?} of what the walker writes");
        Ok(())
    }

    /// Waits until `more` numbers have come back on each of its connections.
    pub fn wait_progress(&self, more: u64) -> Result<()> {
        let mut from = None;
        wait_for(CONNECT, "the walker goes on", || {
            let Ok(report) = self.report() else { return Ok(None) };
            expect!(matches!(report.state.as_str(), "walks" | "begins"), "the walker: {}", report.state);
            let from = *from.get_or_insert(report.received);
            Ok((report.received >= from + more).then_some(()))
        })
    }
}

fn walker_arguments(server: &EchoServer, count: usize, metadata: Metadata, report: &Path) -> Vec<String> {
    let mut args = vec![
        "walker".to_owned(),
        format!("--connect={}", server.address()),
        format!("--count={count}"),
        "--every=2000".to_owned(),
        format!("--memory={}", metadata.memory),
        format!("--report={}", report.display()),
    ];
    args.extend(metadata.shared.then(|| "--shared".to_owned()));
    args.extend(metadata.datagrams.then(|| "--datagrams".to_owned()));
    args.extend(metadata.locks.then(|| "--locks".to_owned()));
    args.extend(metadata.silent.then(|| "--silent".to_owned()));
    args.extend(metadata.deaf.then(|| "--deaf".to_owned()));
    args
}

/// Where a walker tells how it fares, and its child.
fn reports_of(report: PathBuf, metadata: Metadata) -> Vec<PathBuf> {
    let partner = metadata.shared.then(|| beside(&report, PARTNER));
    [Some(report)].into_iter().chain([partner]).flatten().collect()
}

fn read_report(path: &Path) -> Result<WalkerReport> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::call("read", path.display().to_string(), error))?;
    let mut fields = text.trim_end().splitn(3, ' ');
    let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok());
    let (Some(received), Some(gap)) = (number(), number()) else { return Err(wrong("a walker's report", &text)) };
    let state = fields.next().unwrap_or_default().to_owned();
    Ok(WalkerReport { received, longest_gap: Duration::from_micros(gap), state })
}

/// The far end of a [`Ticker`]'s connection.
#[derive(Debug)]
pub struct TickerFar {
    program: Program,
    local: SocketAddr,
}

impl TickerFar {
    /// Connects to it.
    pub fn connect(host: &Host, to: SocketAddr) -> Result<Self> {
        let mut program = Program::start(host, "ticker-far", &[format!("--connect={to}")])?;
        match program.next("the far end connects", CONNECT)? {
            Line::Connected { local, .. } => Ok(Self { program, local }),
            other => Err(wrong("connecting", &format!("{other:?}"))),
        }
    }

    /// Own address of its socket.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// How it stands. Fails if a byte was wrong.
    pub fn status(&mut self) -> Result<FlowStatus> {
        match self.program.ask("status", ANSWER)? {
            Line::Status(status) => {
                expect!(status.differs_at.is_none(), "the far end received a wrong byte at {:?}", status.differs_at);
                expect!(status.error.is_none(), "the far end's socket failed: {:?}", status.error);
                Ok(status)
            }
            other => Err(wrong("status", &format!("{other:?}"))),
        }
    }

    /// How many bytes have come, and whether the connection is over: ended by the other side, or reset. Fails if a byte
    /// was wrong.
    pub fn heard(&mut self) -> Result<(u64, bool)> {
        match self.program.ask("status", ANSWER)? {
            Line::Status(status) => {
                expect!(status.differs_at.is_none(), "the far end received a wrong byte at {:?}", status.differs_at);
                Ok((status.received, status.ended || status.error.is_some()))
            }
            other => Err(wrong("status", &format!("{other:?}"))),
        }
    }

    /// Waits until `more` bytes have come.
    pub fn wait_progress(&mut self, more: u64, timeout: Duration) -> Result<()> {
        let goal = self.status()?.received + more;
        let what = format!("{more} more bytes arrive");
        wait_for(timeout, &what, || Ok((self.status()?.received >= goal).then_some(())))
    }

    /// The longest time without a byte that ended after `from`: when it began, and when it ended.
    pub fn longest_gap(&mut self, from: MonoTime) -> Result<Option<(MonoTime, MonoTime)>> {
        // The arrival before `from` begins the first gap.
        let since = MonoTime(from.0.saturating_sub(100_000_000));
        match self.program.ask(&format!("arrivals {}", since.0), ANSWER)? {
            Line::Arrivals { list } => {
                let gaps = list.windows(2).map(|w| (MonoTime(w[0].0), MonoTime(w[1].0)));
                Ok(gaps.filter(|(_, end)| *end >= from).max_by_key(|(start, end)| *end - *start))
            }
            other => Err(wrong("arrivals", &format!("{other:?}"))),
        }
    }
}

/// A process with many connections to an echo server.
#[derive(Debug)]
pub struct Many {
    program: Program,
    /// How many connections were opened.
    pub count: usize,
    /// How long that took, seconds.
    pub opened_in: f64,
}

impl Many {
    /// Opens `count` connections (at most about 19,000 in one process).
    pub fn open(client: &Host, server: &EchoServer, count: usize) -> Result<Self> {
        Self::open_to(client, &[server.address], count)
    }

    /// As [`Many::open`], to each of these addresses in turn.
    pub fn open_to(client: &Host, to: &[SocketAddr], count: usize) -> Result<Self> {
        let to = to.iter().map(|address| format!("--connect={address}"));
        let args: Vec<String> = to.chain([format!("--count={count}")]).collect();
        let mut program = Program::start(client, "many", &args)?;
        match program.next("all connections are open", Duration::from_secs(120))? {
            Line::Opened { count, seconds } => Ok(Self { program, count, opened_in: seconds }),
            other => Err(wrong("many", &format!("{other:?}"))),
        }
    }

    /// Sends a byte on each connection and waits until all are back, at most for `timeout`.
    pub fn echo(&mut self, timeout: Duration) -> Result<EchoReport> {
        self.start_echo(timeout)?;
        self.finish_echo(timeout)
    }

    /// A byte comes back on each connection within `timeout`; gives how long the slowest took. `what` is for who reads
    /// that one did not.
    pub fn all_answer(&mut self, timeout: Duration, what: &str) -> Result<Duration> {
        let report = self.echo(timeout)?;
        expect!(
            report.answered() == self.count,
            "{what}: {} of {} connections answered",
            report.answered(),
            self.count
        );
        Ok(report.slowest().unwrap_or_default())
    }

    /// Sends a byte on each connection. [`Many::finish_echo`] gives the result.
    pub fn start_echo(&mut self, timeout: Duration) -> Result<()> {
        self.program.0.send_line(&format!("echo {}", timeout.as_millis()))
    }

    /// See [`Many::start_echo`].
    pub fn finish_echo(&mut self, timeout: Duration) -> Result<EchoReport> {
        match self.program.next("the echoes are back", timeout + ANSWER)? {
            Line::Echo(report) => Ok(report),
            other => Err(wrong("echo", &format!("{other:?}"))),
        }
    }

    /// Sends so many bytes of a stream of its own on each connection; each that comes back is checked.
    /// [`Many::finish_carry`] gives the result. What is answered then has had all back. Not after [`Many::echo`].
    pub fn start_carry(&mut self, bytes: u64, timeout: Duration) -> Result<()> {
        self.program.0.send_line(&format!("carry {} {bytes}", timeout.as_millis()))
    }

    /// See [`Many::start_carry`].
    pub fn finish_carry(&mut self, timeout: Duration) -> Result<EchoReport> {
        self.finish_echo(timeout)
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.program.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_nothing_came_is_not_when_a_longer_pause_ended() {
        let ms = |count: u64| MonoTime(count * 1_000_000);
        // Went on 30 ms after the address was there; seconds later a program waits for a processor for longer than
        // that.
        let mut arrivals: Vec<(MonoTime, u64)> = (1030..7000).map(|at| (ms(at), 1)).collect();
        arrivals.extend((7040..7100).map(|at| (ms(at), 1)));
        let (pause, end) = longest_pause(ms(1000), &arrivals).expect("a pause");
        assert_eq!((pause, end), (Duration::from_millis(41), ms(7040)));
        // What was on the way is not taken for it.
        let (pause, _) = longest_pause(ms(1000), &[(ms(1010), 1), (ms(2500), 1)]).expect("a pause");
        assert_eq!(pause, Duration::from_millis(1490));
        assert_eq!(longest_pause(ms(1000), &[]), None);
    }
}
