//! A program that hangs on nothing but its connections, so that it can go to another host as it is: no pipe to whoever
//! has started it, no terminal, a session of its own. It tells how it fares in a file whose length never changes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::sys;
use crate::{Error, Result};

/// Length of what it tells.
pub(crate) const REPORT: usize = 64;
/// Between looks at its connections.
const LOOK: Duration = Duration::from_millis(1);
/// Without an answer for so long it ends: nobody may be there to end it.
const ALONE: Duration = Duration::from_secs(90);

/// Between looks at what has come as datagrams: most of the time some wait in the socket.
const LOOK_AT_DATAGRAMS: Duration = Duration::from_millis(150);
/// Added to the name of a report: that of the process which has a connection together with a walker.
pub(crate) const PARTNER: &str = ".partner";
/// Added to the name of a report: a file that grows for as long as the walker walks, by one number a line.
pub(crate) const LOG: &str = ".log";

/// What a walker does.
#[derive(Clone, Debug, clap::Args)]
pub struct WalkerOptions {
    /// Address of an echo server.
    #[arg(long)]
    pub connect: SocketAddr,
    /// How many connections.
    #[arg(long)]
    pub count: usize,
    /// Another one, whose numbers a process sends and its child reads: both have its socket.
    #[arg(long)]
    pub shared: bool,
    /// Numbers as datagrams besides, by a socket that is connected.
    #[arg(long)]
    pub datagrams: bool,
    /// A lock of the file that it writes to.
    #[arg(long)]
    pub locks: bool,
    /// A connected UDP socket that says no more.
    #[arg(long)]
    pub silent: bool,
    /// A connection that it reads no more.
    #[arg(long)]
    pub deaf: bool,
    /// Microseconds between numbers.
    #[arg(long)]
    pub every: u64,
    /// Memory that it has, in bytes.
    #[arg(long)]
    pub memory: usize,
    /// The file that tells how it fares.
    #[arg(long)]
    pub report: PathBuf,
}

/// A stream of numbers.
struct Walk {
    stream: TcpStream,
    /// Of the number that is being sent: what is left of it.
    left: Vec<u8>,
    sent: u64,
    received: u64,
    part: Vec<u8>,
    /// By the wall clock: CRIU has the others of a process that it rebuilds stand still meanwhile.
    heard: SystemTime,
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::call(what, "a walker", error)
}

/// Opens connections, sends numbers on each, as often as is said, and wants each back in order.
pub(super) fn walk(options: &WalkerOptions) -> Result<()> {
    sys::leave_everybody().map_err(failed("setsid"))?;
    let file = report(&options.report)?;
    tell(&file, 0, 0, "begins");
    let mut log = report(&beside(&options.report, LOG))?;
    let mut looks: u64 = 0;
    if options.locks {
        rustix::fs::fcntl_lock(&log, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| failed("fcntl")(error.into()))?;
    }
    let held: Vec<u8> = (0..options.memory).map(|at| at as u8).collect();
    let mut walks = Vec::new();
    for _ in 0..options.count {
        walks.push(Walk::begin(options.connect)?);
    }
    let mut shared = options.shared.then(|| Walk::begin(options.connect)).transpose()?;
    if let Some(walk) = &shared {
        let socket: OwnedFd = walk.stream.as_fd().try_clone_to_owned().map_err(failed("dup"))?;
        let name = beside(&options.report, PARTNER);
        let program = std::env::current_exe().map_err(failed("readlink"))?;
        let mut partner = Command::new(program);
        partner.args(["traffic", "walkers-partner", "--report"]).arg(name);
        partner.stdin(socket).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(failed("fork"))?;
    }
    let mut datagrams = options.datagrams.then(|| Datagrams::begin(options.connect)).transpose()?;
    let idle = Idle::begin(options.connect)?;
    let silent = options.silent.then(|| silent(options.connect)).transpose()?;
    let _deaf = options.deaf.then(|| deaf(options.connect)).transpose()?;
    let mut gap = Duration::ZERO;
    let mut next = Instant::now();
    loop {
        writeln!(log, "{looks}").map_err(failed("write"))?;
        looks += 1;
        let due = next <= Instant::now();
        if due {
            next = Instant::now() + Duration::from_micros(options.every);
        }
        let mut ended = None;
        for walk in &mut walks {
            let went = walk.send(due).and_then(|()| walk.read(&mut gap));
            ended = ended.or(went.err()).or_else(|| walk.is_alone());
        }
        if let Some(walk) = &mut shared {
            ended = ended.or(walk.send(due).err());
        }
        if let Some(datagrams) = &mut datagrams {
            ended = ended.or(datagrams.step(due).err());
        }
        ended = ended.or(idle.check().err());
        if let Some(silent) = &silent {
            let says = silent.send(b"?").is_ok_and(|_| true);
            ended = ended.or(says.then(|| "a socket that says no more says something".to_owned()));
        }
        let tcp = walks.iter().map(|walk| walk.received).min().unwrap_or(0);
        let least = datagrams.as_ref().map_or(tcp, |datagrams| datagrams.received.min(tcp));
        if let Some(why) = ended {
            tell(&file, least, gap.as_micros() as u64, &why);
            return Ok(());
        }
        // Memory that was lost on the way would show here.
        let state =
            if held.iter().enumerate().step_by(4096).all(|(at, byte)| *byte == at as u8) { "walks" } else { "forgot" };
        tell(&file, least, gap.as_micros() as u64, state);
        std::thread::sleep(LOOK);
    }
}

/// Reads what comes back on the socket that is its standard input, which its parent sends on.
pub(super) fn partner(name: &Path) -> Result<()> {
    let file = report(name)?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed("dup"))?;
    let mut walk = Walk::over(TcpStream::from(socket));
    let mut gap = Duration::ZERO;
    loop {
        let ended = walk.read(&mut gap).err().or_else(|| walk.is_alone());
        tell(&file, walk.received, gap.as_micros() as u64, ended.as_deref().unwrap_or("walks"));
        if ended.is_some() {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

/// Becomes a shell that has nothing of whoever has started it, which runs a command.
pub(super) fn shell(command: &str) -> Result<()> {
    sys::leave_everybody().map_err(failed("setsid"))?;
    Err(failed("exec")(Command::new("sh").args(["-c", command]).exec()))
}

/// The name of a report with something added.
pub(crate) fn beside(report: &Path, ending: &str) -> PathBuf {
    let mut name = report.to_owned().into_os_string();
    name.push(ending);
    name.into()
}

fn report(name: &Path) -> Result<File> {
    File::options().write(true).create(true).truncate(true).open(name).map_err(failed("open"))
}

impl Walk {
    fn begin(connect: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(connect).map_err(failed("connect"))?;
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(failed("fcntl"))?;
        Ok(Self::over(stream))
    }

    fn over(stream: TcpStream) -> Self {
        Self { stream, left: Vec::new(), sent: 0, received: 0, part: Vec::new(), heard: SystemTime::now() }
    }

    fn silent(&self) -> Duration {
        self.heard.elapsed().unwrap_or_default()
    }

    fn is_alone(&self) -> Option<String> {
        (self.silent() > ALONE).then(|| "hears nothing".to_owned())
    }

    fn send(&mut self, due: bool) -> std::result::Result<(), String> {
        if due && self.left.is_empty() {
            self.left = self.sent.to_be_bytes().to_vec();
            self.sent += 1;
        }
        match self.stream.write(&self.left) {
            Ok(length) => drop(self.left.drain(..length)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    fn read(&mut self, gap: &mut Duration) -> std::result::Result<(), String> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err("ended".to_owned()),
            Ok(length) => {
                *gap = (*gap).max(self.silent());
                self.heard = SystemTime::now();
                for byte in &buffer[..length] {
                    self.part.push(*byte);
                    if let Ok(number) = <[u8; 8]>::try_from(self.part.as_slice()) {
                        if u64::from_be_bytes(number) != self.received {
                            return Err(format!("wrong after {}", self.received));
                        }
                        self.received += 1;
                        self.part.clear();
                    }
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn silent(connect: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(any(connect)).map_err(failed("bind"))?;
    socket.connect(connect).map_err(failed("connect"))?;
    rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).map_err(|e| failed("shutdown")(e.into()))?;
    Ok(socket)
}

fn deaf(connect: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(connect).map_err(failed("connect"))?;
    stream.shutdown(std::net::Shutdown::Read).map_err(failed("shutdown"))?;
    Ok(stream)
}

/// Sockets that are in no list of the kernel's, as any program has some: of TCP, never connected, reset by its other
/// end, and closed by both; of UDP, not bound.
struct Idle {
    unconnected: OwnedFd,
    unbound: OwnedFd,
    reset: TcpStream,
    over: TcpStream,
}

impl Idle {
    fn begin(connect: SocketAddr) -> Result<Self> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
        let family = if connect.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = |kind| {
            socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(|error| failed("socket")(error.into()))
        };
        let here: std::net::IpAddr =
            if connect.is_ipv4() { std::net::Ipv4Addr::LOCALHOST.into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
        let listener = TcpListener::bind((here, 0)).map_err(failed("bind"))?;
        let pair = || -> std::io::Result<(TcpStream, TcpStream)> {
            let near = TcpStream::connect(listener.local_addr()?)?;
            Ok((near, listener.accept()?.0))
        };
        let (mut reset, far) = pair().map_err(failed("accept"))?;
        rustix::net::sockopt::set_socket_linger(&far, Some(Duration::ZERO))
            .map_err(|error| failed("setsockopt")(error.into()))?;
        drop(far);
        // The error is told once.
        let _ = reset.read(&mut [0]);
        let (mut over, far) = pair().map_err(failed("accept"))?;
        drop(far);
        let ended = over.read(&mut [0]).and_then(|_| over.shutdown(std::net::Shutdown::Write));
        ended.map_err(failed("shutdown"))?;
        Ok(Self { unconnected: socket(SocketType::STREAM)?, unbound: socket(SocketType::DGRAM)?, reset, over })
    }

    /// Whether they are what they were.
    fn check(&self) -> std::result::Result<(), String> {
        let unbound = |socket: &OwnedFd| {
            let name = rustix::net::getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok());
            name.is_some_and(|name| name.port() == 0)
        };
        if !unbound(&self.unconnected) || !unbound(&self.unbound) {
            return Err("a socket that was not bound is".to_owned());
        }
        // Neither is connected again, and both are at their end.
        for mut ended in [&self.reset, &self.over] {
            if ended.peer_addr().is_ok() || !matches!(ended.read(&mut [0]), Ok(0) | Err(_)) {
                return Err("a connection that was over goes on".to_owned());
            }
        }
        Ok(())
    }
}

fn any(connect: SocketAddr) -> SocketAddr {
    if connect.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() }
}

/// Numbers that go as datagrams, each of which has to come back, in any order.
struct Datagrams {
    socket: UdpSocket,
    sent: u64,
    /// All below this have come back.
    received: u64,
    /// Beyond that.
    early: BTreeSet<u64>,
    looked: Instant,
}

/// So many may be missing that others came after: then one is lost.
const EARLY: usize = 2000;

impl Datagrams {
    fn begin(connect: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind(any(connect)).map_err(failed("bind"))?;
        socket.connect(connect).and_then(|()| socket.set_nonblocking(true)).map_err(failed("connect"))?;
        Ok(Self { socket, sent: 0, received: 0, early: BTreeSet::new(), looked: Instant::now() })
    }

    fn step(&mut self, due: bool) -> std::result::Result<(), String> {
        if due {
            self.socket.send(&self.sent.to_be_bytes()).map_err(|error| error.to_string())?;
            self.sent += 1;
        }
        if self.looked.elapsed() < LOOK_AT_DATAGRAMS {
            return Ok(());
        }
        self.looked = Instant::now();
        let mut buffer = [0; 16];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(8) => {
                    let number = buffer.first_chunk().copied().map_or(0, u64::from_be_bytes);
                    self.early.insert(number);
                }
                Ok(length) => return Err(format!("a datagram of {length} bytes")),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        while self.early.remove(&self.received) {
            self.received += 1;
        }
        if self.early.len() > EARLY {
            let missing =
                (self.received..self.received + EARLY as u64).filter(|number| !self.early.contains(number)).count();
            return Err(format!("{missing} datagrams from {} on are lost", self.received));
        }
        Ok(())
    }
}

/// How many numbers came back on the slowest connection, the longest silence in microseconds, and how it stands.
fn tell(file: &File, received: u64, gap: u64, state: &str) {
    let mut text = format!("{received} {gap} {state}");
    text.truncate(REPORT - 1);
    // Whoever reads it sees that something is wrong where it does not change.
    let _ = file.write_all_at(format!("{text:<width$}\n", width = REPORT - 1).as_bytes(), 0);
}
