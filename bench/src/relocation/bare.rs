//! What writing down and rebuilding a socket costs in CPU time, beside a bare loop of TCP_REPAIR in C (`bare.c`). Each
//! sample is a process of its own, in a network namespace of its own, so that both begin alike.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use whimbrel_kernel::checkpoint::{Checkpoint, Defaults};
use whimbrel_kernel::inject::Injector;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_lab::{Host, Lab};
use whimbrel_wire::snapshot::Snapshot;

use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

const SOURCE: &str = include_str!("bare.c");
const COUNTS: [usize; 2] = [1, 9_900];
const BOUND: f64 = 1.5;

/// Measures and reports.
///
/// # Errors
/// When something could not be measured.
pub fn run(options: &Options) -> Result<()> {
    Ok(measure(options)?.finish().map(drop)?)
}

/// CPU time for each connection, in microseconds.
#[derive(Default)]
struct Series {
    dump: Samples,
    restore: Samples,
    both: Samples,
}

impl Series {
    fn absorb(&mut self, (dump, restore): (f64, f64)) {
        self.dump.push(dump);
        self.restore.push(restore);
        self.both.push(dump + restore);
    }
}

/// What was measured.
pub(super) fn measure(options: &Options) -> Result<Report> {
    warn_if_busy();
    let mut lab = Lab::new(options.setup.lab_options())?;
    let host = lab.host("alone")?;
    let (source, program) = (host.dir().join("bare.c"), host.dir().join("bare"));
    fs::write(&source, SOURCE)?;
    let compiled = Command::new("cc").args(["-std=gnu11", "-O2", "-Wall", "-o"]).arg(&program).arg(&source).output()?;
    if !compiled.status.success() {
        return Err(format!("cc: {}", String::from_utf8_lossy(&compiled.stderr)).into());
    }
    let own = std::env::current_exe()?;
    let mut report = Report::new("move-bare");
    for count in COUNTS {
        let id = count.to_string();
        if !id.contains(&options.only) {
            continue;
        }
        let runs = if count == 1 { options.runs(100, 20) } else { options.runs(7, 3) };
        let (mut ours, mut bare) = (Series::default(), Series::default());
        for _ in 0..runs {
            let words = [vec![own.as_os_str()], vec!["move-sample".as_ref()]].concat();
            ours.absorb(sample(&host, &words, count)?);
            bare.absorb(sample(&host, &[program.as_os_str()], count)?);
        }
        report.add(Figure::against(&format!("{id}_dump"), "us", &ours.dump, &bare.dump));
        report.add(Figure::against(&format!("{id}_restore"), "us", &ours.restore, &bare.restore));
        let both = Figure::against(&format!("{id}_both"), "us", &ours.both, &bare.both);
        report.add(both.bound(Bound::RatioAtMost(BOUND)));
    }
    Ok(report)
}

fn sample(host: &Host, words: &[&std::ffi::OsStr], count: usize) -> Result<(f64, f64)> {
    let told = host.command(words[0]).args(&words[1..]).arg(count.to_string()).run()?;
    let mut numbers = told.split_whitespace().map(str::parse::<f64>);
    let (Some(Ok(dump)), Some(Ok(restore))) = (numbers.next(), numbers.next()) else {
        return Err(format!("a sample told {told:?}").into());
    };
    Ok((dump / count as f64, restore / count as f64))
}

/// One sample, as `bare.c` makes one: prints the microseconds for writing down, and for rebuilding.
///
/// # Errors
/// When a socket could not be moved.
pub fn print_sample(count: usize) -> Result<()> {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let (mut far, mut near) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        far.push(TcpStream::connect(address)?);
        near.push(listener.accept()?.0);
    }
    let (injector, defaults, mut sockets_here) = (Injector::open()?, Defaults::look()?, SockDiag::open()?);
    let mut snapshots = Vec::with_capacity(count);
    // As in a program that has run for a while; `bare.c` does the same.
    mlockall(MlockAllFlags::CURRENT)?;
    let begun = processor();
    for socket in near {
        let checkpoint = Checkpoint::freeze(socket.into())?;
        let mut bytes = Vec::new();
        checkpoint.dump(&defaults, &mut sockets_here)?.encode(&mut bytes);
        checkpoint.destroy(&mut sockets_here)?;
        snapshots.push(bytes);
    }
    let between = processor();
    let mut sockets = Vec::with_capacity(count);
    for bytes in &snapshots {
        sockets.push(Checkpoint::restore(&Snapshot::decode(bytes)?, &injector)?.thaw(&injector)?);
    }
    let ended = processor();
    println!("{:.1} {:.1}", between - begun, ended - between);
    Ok(())
}

/// CPU time of this thread, in microseconds.
fn processor() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
