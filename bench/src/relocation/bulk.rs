//! An upload at full rate whose receiver changes hosts: no byte is lost, doubled or out of place, and how far the
//! goodput dips.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use whimbrel_ipc::{Client, Request};
use whimbrel_lab::traffic::first_difference;
use whimbrel_lab::{FlowPair, MonoTime, PairOptions, Shape, Side, SiteSpec, wait_for};

use super::stage::{Far, LONG, Stage};
use crate::Result;
use crate::chart::Line;
use crate::course::{self, Course};
use crate::machine::warn_if_busy;
use crate::report::{Figure, Report, Samples, directory};
use crate::roam::Options;

/// The far end's link: one way in ms, and Mbit/s.
const DELAY: u64 = 10;
const RATE: u64 = 100;
/// The name under which the receiving program takes connections.
const NAME: &str = "bulk";
/// What is looked at before a move, and after it.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(2);
/// Over which goodput is told.
const BIN: Duration = Duration::from_millis(20);
/// Of what it was, from which on goodput counts as what it was.
const BACK: f64 = 0.9;

/// When so many bytes came to a program.
type Arrivals = Vec<(MonoTime, u64)>;

/// Measures and reports.
///
/// # Errors
/// When something could not be measured, or a byte was not the right one.
pub fn run(options: &Options) -> Result<()> {
    Ok(measure(options)?.finish().map(drop)?)
}

/// What was measured; draws the last run of each.
pub(super) fn measure(options: &Options) -> Result<Report> {
    warn_if_busy();
    let mut report = Report::new("move-bulk");
    let mut lines = Vec::new();
    for far in Far::ALL {
        let name = far.name();
        if !name.contains(&options.only) {
            continue;
        }
        let [mut gaps, mut missing, mut back] = [const { Vec::new() }; 3];
        let mut last = Vec::new();
        for _ in 0..options.runs(5, 1) {
            let came = one_run(options, far).map_err(|error| format!("{name}: {error}"))?;
            eprintln!(
                "{name}: all bytes right; nothing for {:.1} ms, {:.1} ms of goodput missing",
                came.gap, came.missing
            );
            gaps.push(came.gap);
            missing.push(came.missing);
            back.push(came.back);
            last = came.course;
        }
        lines.push(Line { name: name.replace('_', " "), points: last });
        for (what, values) in [("gap", gaps), ("missing", missing), ("back", back)] {
            let samples: Samples = values.into_iter().collect();
            report.add(Figure::new(&format!("{name}_{what}"), "ms", &samples));
        }
    }
    if !lines.is_empty() {
        let path = picture();
        course::write(&drawn(lines), &path)?;
        eprintln!("drawn: {}", path.display());
    }
    Ok(report)
}

fn picture() -> PathBuf {
    directory().join("move-bulk.svg")
}

fn drawn(lines: Vec<Line>) -> Course {
    Course {
        title: format!("An upload whose receiver changes hosts ({RATE} Mbit/s, {} ms)", 2 * DELAY),
        across: "seconds since the move was asked for".to_owned(),
        up: format!("goodput at the receiving program, Mbit/s, by {} ms", BIN.as_millis()),
        lines,
        mark: (0.0, "asked for".to_owned()),
    }
}

/// What came of one move, in ms.
struct Came {
    /// The longest time without a byte at either program.
    gap: f64,
    /// What did not come within [`AFTER`] and would have at the rate of before, as a time at that rate.
    missing: f64,
    /// Until goodput was what it had been.
    back: f64,
    /// Seconds since the move was asked for, and Mbit/s.
    course: Vec<(f64, f64)>,
}

fn one_run(options: &Options, far: Far) -> Result<Came> {
    let stage = Stage::build_on(options, far, None, |spec: SiteSpec| match spec.name.as_str() {
        "a" => spec.fast().uplink(Shape::delay_rate(DELAY, RATE)),
        _ => spec.fast(),
    })?;
    let sending = PairOptions { down: Some(0), ..PairOptions::default() };
    let mut stream = FlowPair::tcp(&stage.far, stage.daemons[0].host(), stage.addresses[0], &sending)?;
    stage.wait_introduced(1)?;
    let taker = Taker::start(&stage)?;
    stream.wait_progress_of(&[Side::Server], RATE * 125_000 * 2, LONG)?;
    let (asked, _, moved) = stage.give(0, &stream.local().to_string(), NAME)?;
    if moved != 1 {
        return Err(format!("{moved} connections moved instead of one").into());
    }
    wait_for(LONG, "the time after the move is over", || {
        std::thread::sleep(BIN);
        Ok((MonoTime::now().since(asked) > AFTER + BIN).then_some(()))
    })?;
    stream.set_rate(Side::Client, Some(0))?;
    let position = stream.status(Side::Server)?.received;
    let sent = wait_for(LONG, "all that was sent has come", || {
        std::thread::sleep(BIN);
        let sent = stream.status(Side::Client)?.sent;
        Ok((position + taker.received() == sent).then_some(sent))
    });
    let sent = match sent {
        Ok(sent) => sent,
        Err(error) => return Err(format!("{position} and {} bytes came: {error}", taker.received()).into()),
    };
    // Its own end at the first host has ended; what had come until then was right.
    if let Some(at) = stream.status(Side::Server)?.differs_at {
        return Err(format!("of {sent} bytes that at {at} is wrong").into());
    }
    let here = stream.arrivals(Side::Server, MonoTime(asked.0 - BEFORE.as_nanos() as u64))?;
    let (there, bytes) = taker.finish()?;
    if let Some(at) = first_difference(stream.peer().port().into(), position, &bytes) {
        return Err(format!("of {sent} bytes that at {at} is wrong").into());
    }
    options.setup.keep(&format!("bulk-{}", far.name()), &stage.lab)?;
    let all: Arrivals = here.into_iter().chain(there).collect();
    Ok(judged(&all, asked))
}

fn judged(arrivals: &Arrivals, asked: MonoTime) -> Came {
    let end = asked + AFTER;
    let begin = MonoTime(asked.0 - BEFORE.as_nanos() as u64);
    let between = |from: MonoTime, to: MonoTime| -> u64 {
        arrivals.iter().filter(|(time, _)| (from..to).contains(time)).map(|(_, bytes)| bytes).sum()
    };
    let rate = between(begin, asked) as f64 / BEFORE.as_secs_f64();
    let pauses = arrivals.windows(2).filter(|pair| pair[1].0 >= asked && pair[1].0 < end);
    let gap = pauses.map(|pair| pair[1].0.since(pair[0].0)).max().unwrap_or(AFTER);
    let bins = (BEFORE + AFTER).as_nanos() / BIN.as_nanos();
    let course: Vec<(f64, f64)> = (0..bins as u32)
        .map(|bin| {
            let from = begin + BIN * bin;
            let bits = between(from, from + BIN) as f64 * 8.0;
            let at = (BIN * bin).as_secs_f64() - BEFORE.as_secs_f64();
            (at, bits / BIN.as_secs_f64() / 1e6)
        })
        .collect();
    // The last time that it was less, and not just by one packet that came in the next bin.
    let least = rate * 8.0 / 1e6 * BACK;
    let low = course.windows(2).filter(|pair| pair[0].0 >= 0.0 && pair[0].1 + pair[1].1 < 2.0 * least);
    let back = low.map(|pair| pair[1].0).fold(0.0, f64::max);
    let missing = AFTER.as_secs_f64() - between(asked, end) as f64 / rate;
    Came { gap: gap.as_secs_f64() * 1e3, missing: missing * 1e3, back: back * 1e3, course }
}

/// A program at the second host that takes the connection, in this process.
struct Taker {
    taken: Arc<Mutex<(Arrivals, u64)>>,
    ends: Receiver<std::io::Result<Vec<u8>>>,
    socket: Arc<Mutex<Option<TcpStream>>>,
    _thread: JoinHandle<()>,
}

impl Taker {
    /// Once this returns the connection may come.
    fn start(stage: &Stage) -> Result<Self> {
        let mut client = Client::connect(&stage.daemons[1].run_dir())?;
        client.start(&Request::Receive { name: NAME.to_owned() })?;
        client.next_reply(Some(LONG))?;
        let taken = Arc::new(Mutex::new((Vec::new(), 0)));
        let socket = Arc::new(Mutex::new(None));
        let (tell, ends) = channel();
        let (into, place) = (taken.clone(), socket.clone());
        let thread = std::thread::spawn(move || {
            let came: Option<OwnedFd> =
                client.next_reply(None).ok().and_then(|(_, sockets)| sockets.into_iter().next());
            let Some(came) = came else { return };
            let stream = TcpStream::from(came);
            *lock(&place) = stream.try_clone().ok();
            // It is closed by whoever waits here, once all has come.
            let _ = tell.send(take(File::from(OwnedFd::from(stream)), &into));
        });
        Ok(Self { taken, ends, socket, _thread: thread })
    }

    fn received(&self) -> u64 {
        lock(&self.taken).1
    }

    /// When what came, and all of it.
    fn finish(self) -> Result<(Arrivals, Vec<u8>)> {
        let Some(socket) = lock(&self.socket).take() else { return Err("the connection has not come".into()) };
        socket.shutdown(std::net::Shutdown::Read)?;
        let bytes = self.ends.recv_timeout(LONG)??;
        Ok((std::mem::take(&mut lock(&self.taken).0), bytes))
    }
}

fn take(mut stream: File, into: &Mutex<(Arrivals, u64)>) -> std::io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 256 << 10]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(all),
            Ok(length) => {
                let mut into = lock(into);
                into.0.push((MonoTime::now(), length as u64));
                into.1 += length as u64;
                drop(into);
                all.extend_from_slice(&buffer[..length]);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_a_gap_and_what_it_cost_is_missing() {
        let asked = MonoTime(5_000_000_000);
        // A byte each ms, except for 100 ms.
        let times = (0..4_000u64).filter(|ms| !(1_100..1_200).contains(ms));
        let arrivals = times.map(|ms| (MonoTime(4_000_000_000 + ms * 1_000_000), 1)).collect();
        let came = judged(&arrivals, asked);
        assert!(
            (came.gap - 101.0).abs() < 0.01 && (came.missing - 100.0).abs() < 0.01,
            "{} {}",
            came.gap,
            came.missing
        );
        assert!((180.0..=220.0).contains(&came.back), "{}", came.back);
        assert_eq!(came.course.len(), 150);
    }
}
