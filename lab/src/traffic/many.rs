//! Many TCP connections in one process, and the server that echoes on them.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::{Line, ReceiveOptions, end_with_stdin, print, receive_sockets};
use crate::{Error, MonoTime, Result};

/// Answers of all connections to one round of `echo`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EchoReport {
    /// When the round began.
    pub started: Option<MonoTime>,
    /// Microseconds from then until each connection had its byte back; `None`: not in time, or closed.
    pub answered_us: Vec<Option<u64>>,
    /// Connections that the kernel ended.
    pub closed: usize,
}

impl EchoReport {
    /// Connections that answered.
    pub fn answered(&self) -> usize {
        self.answered_us.iter().flatten().count()
    }

    /// The slowest answer.
    pub fn slowest(&self) -> Option<Duration> {
        self.answered_us.iter().flatten().max().map(|us| Duration::from_micros(*us))
    }
}

const EVENTS: usize = 1024;
const LISTENER: u64 = u64::MAX;
const RECEIVED: u64 = u64::MAX - 1;

/// epoll(7) with our errors.
struct Epoll {
    fd: rustix::fd::OwnedFd,
    events: Vec<epoll::Event>,
}

impl Epoll {
    fn new() -> Result<Self> {
        let fd = epoll::create(CreateFlags::CLOEXEC).map_err(|e| Error::call("epoll_create1", "connections", e))?;
        Ok(Self { fd, events: Vec::with_capacity(EVENTS) })
    }

    fn add(&self, socket: impl AsFd, number: u64) -> Result<()> {
        epoll::add(&self.fd, socket, EventData::new_u64(number), EventFlags::IN | EventFlags::RDHUP)
            .map_err(|e| Error::call("epoll_ctl", format!("connection {number}"), e))
    }

    /// Numbers of the sockets that can be read.
    fn wait(&mut self, timeout: Duration) -> Result<Vec<u64>> {
        self.events.clear();
        let timeout =
            rustix::time::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        match epoll::wait(&self.fd, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(self.events.iter().map(|e| e.data.u64()).collect()),
            Err(e) => Err(Error::call("epoll_wait", "connections", e)),
        }
    }
}

/// Room for what cannot be sent yet, in bytes with the kernel's own.
const PATIENT: usize = 16 << 20;

/// Echoes on what it accepts, and on what it receives from other hosts; and datagrams, if that is asked for.
pub(super) fn serve(listen: SocketAddr, receive: ReceiveOptions, datagrams: bool) -> Result<()> {
    let on = |e| Error::call("listen", listen.to_string(), e);
    if datagrams {
        let socket = UdpSocket::bind(listen).map_err(on)?;
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            loop {
                // Errors are of those who sent before, and are gone.
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..length], from);
                }
            }
        });
    }
    let listener = TcpListener::bind(listen).map_err(on)?;
    listener.set_nonblocking(true).map_err(on)?;
    // A longer queue than std's 128: thousands of clients connect at once.
    rustix::net::listen(&listener, 8192).map_err(|e| on(e.into()))?;
    let mut epoll = Epoll::new()?;
    epoll.add(&listener, LISTENER)?;
    end_with_stdin();
    let address = listener.local_addr().map_err(on)?;
    let ready = move || print(&Line::Listening { address });
    let (send, come) = channel();
    // Readable once a socket has come from another host.
    let (bell, wake) = std::io::pipe().map_err(on)?;
    epoll.add(&bell, RECEIVED)?;
    match receive.both() {
        None => ready(),
        Some((run_dir, name)) => {
            let (run_dir, name, mut wake) = (run_dir.to_owned(), name.to_owned(), wake);
            std::thread::spawn(move || {
                let failed = receive_sockets(&run_dir, &name, ready, |socket| {
                    let _ = send.send(TcpStream::from(socket)).map(|()| wake.write_all(&[0]));
                });
                if let Err(error) = failed {
                    print(&Line::Failed { error: error.to_string() });
                }
            });
        }
    }
    let mut connections = HashMap::new();
    let mut next = 0;
    let mut buffer = [0u8; 4096];
    loop {
        for number in epoll.wait(Duration::from_secs(3600))? {
            if number == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    if datagrams {
                        // Clients that change hosts may take nothing for a while, and send on: what cannot be written
                        // ends a connection.
                        let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&stream, PATIENT);
                    }
                    if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
                        epoll.add(&stream, next)?;
                        connections.insert(next, stream);
                        next += 1;
                    }
                }
                continue;
            }
            if number == RECEIVED {
                if !matches!((&bell).read(&mut buffer), Ok(length) if length > 0) {
                    // Nobody receives any more.
                    let _ = epoll::delete(&epoll.fd, &bell);
                }
                while let Ok(stream) = come.try_recv() {
                    if stream.set_nonblocking(true).is_ok() {
                        epoll.add(&stream, next)?;
                        connections.insert(next, stream);
                        next += 1;
                    }
                }
                continue;
            }
            let Some(mut stream) = connections.get(&number) else { continue };
            let keep = match stream.read(&mut buffer) {
                Ok(0) => false,
                Ok(n) => stream.write_all(&buffer[..n]).is_ok(),
                Err(e) => e.kind() == io::ErrorKind::WouldBlock,
            };
            if !keep {
                connections.remove(&number);
            }
        }
    }
}

/// Opens `count` connections, to each of `to` in turn. Command `echo MILLISECONDS` sends a byte on each and reports
/// when each came back; command `carry MILLISECONDS BYTES` sends so many, of a stream of its own each, and reports when
/// all of each were back.
pub(super) fn hold(to: &[SocketAddr], count: usize) -> Result<()> {
    let start = Instant::now();
    let mut epoll = Epoll::new()?;
    let mut streams = Vec::with_capacity(count);
    for batch in 0..count.div_ceil(BATCH) {
        let n = BATCH.min(count - batch * BATCH);
        // Parallel connects, because each takes a round trip.
        let batch = to.iter().cycle().skip(batch * BATCH % to.len()).take(n);
        let opened: Vec<(&SocketAddr, io::Result<TcpStream>)> = std::thread::scope(|scope| {
            let workers: Vec<_> = batch.map(|to| (to, scope.spawn(|| TcpStream::connect(*to)))).collect();
            let ended = workers.into_iter().map(|(to, worker)| (to, worker.join()));
            ended.map(|(to, made)| (to, made.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))).collect()
        });
        for (to, stream) in opened {
            let on = |e| Error::call("connect", to.to_string(), e);
            let stream = stream.map_err(on)?;
            stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(on)?;
            epoll.add(&stream, streams.len() as u64)?;
            streams.push(stream);
        }
    }
    let commands = stdin_lines();
    let mut positions = vec![0; streams.len()];
    print(&Line::Opened { count: streams.len(), seconds: start.elapsed().as_secs_f64() });
    for line in commands {
        let mut words = line.split_whitespace();
        let (command, mut numbers) = (words.next(), words.map_while(|word| word.parse().ok()));
        match (command, numbers.next(), numbers.next()) {
            (Some("echo"), Some(ms), None) => {
                print(&Line::Echo(echo(&streams, &mut epoll, Duration::from_millis(ms))?));
            }
            (Some("carry"), Some(ms), Some(bytes)) => {
                let timeout = Duration::from_millis(ms);
                print(&Line::Echo(carry(&streams, &mut positions, &mut epoll, bytes, timeout)?));
            }
            _ => print(&Line::Failed { error: format!("unknown command: {line}") }),
        }
    }
    Ok(())
}

/// Connections that are opened at the same time.
const BATCH: usize = 100;

fn echo(streams: &[TcpStream], epoll: &mut Epoll, timeout: Duration) -> Result<EchoReport> {
    let started = MonoTime::now();
    let mut report = EchoReport { started: Some(started), answered_us: vec![None; streams.len()], closed: 0 };
    let mut open = vec![true; streams.len()];
    for (mut stream, open) in streams.iter().zip(&mut open) {
        *open = stream.write_all(b"x").is_ok();
        report.closed += usize::from(!*open);
    }
    let mut left = streams.len() - report.closed;
    let mut buffer = [0u8; 16];
    while left > 0 {
        let remaining = timeout.saturating_sub(MonoTime::now().since(started));
        if remaining.is_zero() {
            break;
        }
        for number in epoll.wait(remaining)? {
            let i = number as usize;
            match (&streams[i]).read(&mut buffer) {
                Ok(n) if n > 0 => {
                    if report.answered_us[i].is_none() && open[i] {
                        report.answered_us[i] = Some(MonoTime::now().since(started).as_micros() as u64);
                        left -= 1;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                _ => {
                    // Closed: it would be readable for ever.
                    let _ = epoll::delete(&epoll.fd, &streams[i]);
                    if open[i] && report.answered_us[i].is_none() {
                        left -= 1;
                    }
                    open[i] = false;
                    report.closed += 1;
                }
            }
        }
    }
    Ok(report)
}

/// What is under way of one connection at the most, in bytes: an echo server does not wait for who does not read.
const UNDER_WAY: u64 = 8 << 10;

/// Sends so many bytes on each connection, which has carried those up to its position before, and checks each that
/// comes back.
fn carry(
    streams: &[TcpStream],
    positions: &mut [u64],
    epoll: &mut Epoll,
    bytes: u64,
    timeout: Duration,
) -> Result<EchoReport> {
    let started = MonoTime::now();
    let mut report = EchoReport { started: Some(started), answered_us: vec![None; streams.len()], closed: 0 };
    let patterns: Vec<Pattern> = (0..streams.len() as u64).map(|number| Pattern::new(number, true)).collect();
    let ends: Vec<u64> = positions.iter().map(|position| position + bytes).collect();
    let mut sent = positions.to_vec();
    let (mut buffer, mut scratch) = (vec![0; 64 << 10], Vec::new());
    let mut send = |i: usize, received: u64| {
        let room = ends[i].min(received + UNDER_WAY) - sent[i];
        let block = &mut buffer[..room as usize];
        patterns[i].fill(sent[i], block);
        if let Ok(n) = (&streams[i]).write(block) {
            sent[i] += n as u64;
        }
    };
    (0..streams.len()).for_each(|i| send(i, positions[i]));
    let mut left = streams.len();
    let mut read = vec![0; 64 << 10];
    while left > 0 {
        let remaining = timeout.saturating_sub(MonoTime::now().since(started));
        if remaining.is_zero() {
            break;
        }
        for number in epoll.wait(remaining)? {
            let i = number as usize;
            match (&streams[i]).read(&mut read) {
                Ok(n) if n > 0 => {
                    if let Some(at) = patterns[i].first_difference(positions[i], &read[..n], &mut scratch) {
                        return Err(Error::Usage(format!("byte {at} of connection {i} came back as another")));
                    }
                    positions[i] += n as u64;
                    send(i, positions[i]);
                    if positions[i] >= ends[i] {
                        report.answered_us[i] = Some(MonoTime::now().since(started).as_micros() as u64);
                        left -= 1;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                _ => {
                    let _ = epoll::delete(&epoll.fd, &streams[i]);
                    report.closed += 1;
                    left -= 1;
                }
            }
        }
    }
    Ok(report)
}

fn stdin_lines() -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::<_, io::Error>::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}
