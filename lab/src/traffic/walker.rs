//! A program that hangs on nothing but its connections, so that it can go to another host as it is: no pipe to whoever has started it, no
//! terminal, a session of its own. It tells how it fares in a file whose length never changes.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::sys;
use crate::{Error, Result};

/// Length of what it tells.
pub(crate) const REPORT: usize = 64;
/// Between looks at its connections.
const LOOK: Duration = Duration::from_millis(1);
/// Without an answer for so long it ends: nobody may be there to end it.
const ALONE: Duration = Duration::from_secs(90);

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

/// Connects `count` times, sends numbers on each, as often as `every` says, and wants each back in order.
pub(super) fn walk(connect: SocketAddr, count: usize, every: Duration, memory: usize, report: &Path) -> Result<()> {
    let failed = |what: &'static str| move |error: std::io::Error| Error::call(what, "a walker", error);
    sys::leave_everybody().map_err(failed("setsid"))?;
    let file = File::options().write(true).create(true).truncate(true).open(report).map_err(failed("open"))?;
    tell(&file, 0, 0, "begins");
    let held: Vec<u8> = (0..memory).map(|at| at as u8).collect();
    let mut walks = Vec::new();
    for _ in 0..count {
        let stream = TcpStream::connect(connect).map_err(failed("connect"))?;
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(failed("fcntl"))?;
        let heard = SystemTime::now();
        walks.push(Walk { stream, left: Vec::new(), sent: 0, received: 0, part: Vec::new(), heard });
    }
    let mut gap = Duration::ZERO;
    let mut next = Instant::now();
    loop {
        let due = next <= Instant::now();
        if due {
            next = Instant::now() + every;
        }
        for walk in &mut walks {
            let went = walk.step(due, &mut gap);
            let ended = went.err().or_else(|| (walk.silent() > ALONE).then(|| "hears nothing".to_owned()));
            if let Some(why) = ended {
                tell(&file, walk.received, gap.as_micros() as u64, &why);
                return Ok(());
            }
        }
        let least = walks.iter().map(|walk| walk.received).min().unwrap_or(0);
        // Memory that was lost on the way would show here.
        let state =
            if held.iter().enumerate().step_by(4096).all(|(at, byte)| *byte == at as u8) { "walks" } else { "forgot" };
        tell(&file, least, gap.as_micros() as u64, state);
        std::thread::sleep(LOOK);
    }
}

impl Walk {
    fn silent(&self) -> Duration {
        self.heard.elapsed().unwrap_or_default()
    }

    fn step(&mut self, due: bool, gap: &mut Duration) -> std::result::Result<(), String> {
        if due && self.left.is_empty() {
            self.left = self.sent.to_be_bytes().to_vec();
            self.sent += 1;
        }
        match self.stream.write(&self.left) {
            Ok(length) => drop(self.left.drain(..length)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.to_string()),
        }
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

/// How many numbers came back on the slowest connection, the longest silence in microseconds, and how it stands.
fn tell(file: &File, received: u64, gap: u64, state: &str) {
    let mut text = format!("{received} {gap} {state}");
    text.truncate(REPORT - 1);
    // Whoever reads it sees that something is wrong where it does not change.
    let _ = file.write_all_at(format!("{text:<width$}\n", width = REPORT - 1).as_bytes(), 0);
}
