//! A program whose sockets are of `wb_socket`, with its own host as their anchor, beside the same program with plain
//! sockets on a host without Whimbrel (`local.c`).

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use whimbrel_lab::Process;

use crate::bed::{Bed, CLIENT_CPU, LONG, SERVER, SERVER_CPU, Variant, pin};
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;
use crate::{Result, machine};

const SOURCE: &str = include_str!("local.c");
const HEADER: &str = include_str!("../../../crates/capi/include/whimbrel.h");
const LIBRARY: &str = "libwhimbrel.so";
const SONAME: &str = "libwhimbrel.so.0";
const TRIPS: Duration = Duration::from_millis(100);
const BULK: Duration = Duration::from_millis(250);
/// µs (the thesis: 320).
const TRIP_BOUND: f64 = 10.0;
const COST_BOUND: f64 = 1.05;

/// A bed with the program on it.
struct Standing {
    program: Process,
    _bed: Bed,
}

impl Standing {
    fn start(options: &Options, variant: Variant) -> Result<Self> {
        let bed = Bed::build(options.setup.lab_options(), variant)?;
        let listener = bed.server.enter(|| TcpListener::bind((SERVER, bed.server.next_port())))??;
        let at = listener.local_addr()?;
        std::thread::Builder::new().name("answer".into()).spawn(move || serve(&listener))?;
        let binary = compile(bed.client.dir())?;
        let mode = if variant == Variant::Without { "plain" } else { "anchor" };
        let mut command = bed.client.command(binary).args([mode, &at.ip().to_string(), &at.port().to_string()]);
        command = command.env("LD_LIBRARY_PATH", bed.client.dir());
        if let Some(run_dir) = bed.client_run_dir() {
            command = command.env("WHIMBREL_RUN_DIR", run_dir);
        }
        let mut program = command.label("local").spawn()?;
        program.wait_line(LONG, "the program has its connections", |line| (line == "open").then_some(()))?;
        let mut set = CpuSet::new();
        set.set(CLIENT_CPU);
        // A machine with one processor cannot be divided.
        let _ = sched_setaffinity(rustix::process::Pid::from_raw(program.pid() as i32), &set);
        bed.wait_introduced(&flows(&bed, at)?)?;
        Ok(Self { program, _bed: bed })
    }

    fn order(&mut self, what: &str, length: Duration) -> Result<f64> {
        self.program.send_line(&format!("{what} {}", length.as_millis()))?;
        Ok(self.program.wait_line(LONG, what, |line| line.parse().ok())?)
    }

    /// The median round trip, µs.
    fn trips(&mut self) -> Result<f64> {
        Ok(self.order("trips", TRIPS)? / 1e3)
    }

    /// CPU seconds of the whole machine for 10^9 bytes.
    fn cost(&mut self) -> Result<f64> {
        let busy = machine::busy_seconds()?;
        let bytes = self.order("bulk", BULK)?;
        Ok((machine::busy_seconds()? - busy) / (bytes / 1e9))
    }
}

/// The program's two connections, as its host has them.
fn flows(bed: &Bed, at: SocketAddr) -> Result<Vec<(SocketAddr, SocketAddr)>> {
    let filter = format!("( dport = :{} )", at.port());
    let told = bed.client.command("ss").args(["-tnH", "state", "established", &filter]).run()?;
    let local = told.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse().ok());
    Ok(local.map(|local| (local, at)).collect())
}

/// Answers the first connection and takes what comes on the second.
fn serve(listener: &TcpListener) {
    let Ok((mut asked, _)) = listener.accept() else { return };
    let _ = asked.set_nodelay(true);
    let answering = std::thread::Builder::new().name("answer".into()).spawn(move || {
        let _ = pin(SERVER_CPU);
        let mut byte = [0];
        // Ends with the connection.
        while asked.read_exact(&mut byte).and_then(|()| asked.write_all(&byte)).is_ok() {}
    });
    let Ok((mut bulk, _)) = listener.accept() else { return };
    if answering.is_ok() {
        let _ = pin(SERVER_CPU);
        let mut buffer = vec![0; 1 << 17];
        while bulk.read(&mut buffer).is_ok_and(|read| read > 0) {}
    }
}

/// The program, which finds the library where it is itself.
fn compile(directory: &Path) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let library = own.parent().filter(|beside| beside.join(LIBRARY).is_file());
    let library = library.ok_or_else(|| format!("{LIBRARY} is not beside {}: build whimbrel-capi", own.display()))?;
    let (source, program) = (directory.join("local.c"), directory.join("local"));
    fs::write(&source, SOURCE)?;
    fs::write(directory.join("whimbrel.h"), HEADER)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-Wall", "-o"]).arg(&program).arg(&source).arg("-I").arg(directory);
    // By its name, since that is not the one that an installed library has.
    let compiled = compiler.arg(library.join(LIBRARY)).output()?;
    std::os::unix::fs::symlink(library.join(LIBRARY), directory.join(SONAME))?;
    if !compiled.status.success() {
        return Err(format!("cc: {}", String::from_utf8_lossy(&compiled.stderr)).into());
    }
    Ok(program)
}

/// Measures.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let rounds = options.runs(60, 10);
    let mut standing = [Standing::start(options, Variant::Without)?, Standing::start(options, Variant::Still)?];
    let [mut trips, mut costs] = [(); 2].map(|()| [Samples::default(), Samples::default()]);
    for round in 0..=rounds {
        for index in 0..2 {
            let which = (index + round) % 2;
            let (trip, cost) = (standing[which].trips()?, standing[which].cost()?);
            // The first round warms up.
            if round > 0 {
                trips[which].push(trip);
                costs[which].push(cost);
            }
        }
    }
    let added: Samples = trips[1].values().iter().zip(trips[0].values()).map(|(trip, base)| trip - base).collect();
    report.add(Figure::new("local_trip_plain", "us", &trips[0]));
    report.add(Figure::new("local_trip_added", "us", &added).bound(Bound::AtMost(TRIP_BOUND)));
    report.add(Figure::paired("local_cpu", "s/GB", &costs[1], &costs[0]).bound(Bound::RatioAtMost(COST_BOUND)));
    Ok(())
}
