//! What idle connections add to CRIU's writing down and rebuilding of a process: that of one that has them less that of
//! one that has none. Its library for sockets cannot be called by itself from the outside. Left out where there is no
//! `criu` program.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use whimbrel_lab::{Host, Lab, wait_for};

use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::{Figure, Report, Samples};
use crate::roam::Options;

const COUNTS: [usize; 2] = [1, 1_000];
const LONG: Duration = Duration::from_secs(60);

/// Measures and reports.
///
/// # Errors
/// When something could not be measured.
pub fn run(options: &Options) -> Result<()> {
    Ok(measure(options)?.finish().map(drop)?)
}

/// What a process that is moved does: connects, says so, and sleeps.
///
/// # Errors
/// When it cannot connect.
pub fn hold(address: SocketAddr, count: usize) -> Result<()> {
    raise_limit()?;
    let held: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(address)).collect::<std::io::Result<_>>()?;
    loop {
        std::thread::park();
        if held.len() > count {
            return Ok(());
        }
    }
}

fn raise_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?)
}

/// What was measured.
pub(super) fn measure(options: &Options) -> Result<Report> {
    warn_if_busy();
    let mut report = Report::new("move-criu");
    let version = Command::new("criu").arg("--version").stdin(Stdio::null()).output();
    let Ok(version) = version.map(|told| String::from_utf8_lossy(&told.stdout).lines().next().unwrap_or("").to_owned())
    else {
        eprintln!("CRIU is left out: there is no criu program");
        return Ok(report);
    };
    eprintln!("CRIU: {version}");
    raise_limit()?;
    let lab = &mut Lab::new(options.setup.lab_options())?;
    let host = lab.host("alone")?;
    for count in COUNTS {
        let id = count.to_string();
        if !id.contains(&options.only) {
            continue;
        }
        // Of the process alone, and with its connections.
        let mut with: [[Samples; 2]; 2] = Default::default();
        let [mut dump, mut restore] = [Samples::default(), Samples::default()];
        for _ in 0..options.runs(7, 2) {
            let [alone, all] = [one_run(&host, 0)?, one_run(&host, count)?];
            for (series, came) in with.iter_mut().zip([alone, all]) {
                series.iter_mut().zip(came).for_each(|(samples, took)| samples.push(took));
            }
            dump.push((all[0] - alone[0]) / count as f64);
            restore.push((all[1] - alone[1]) / count as f64);
        }
        let [[alone_dump, alone_restore], [all_dump, all_restore]] = &with;
        report.add(Figure::against(&format!("{id}_process_dump"), "us", all_dump, alone_dump));
        report.add(Figure::against(&format!("{id}_process_restore"), "us", all_restore, alone_restore));
        report.add(Figure::new(&format!("{id}_dump_each"), "us", &dump));
        report.add(Figure::new(&format!("{id}_restore_each"), "us", &restore));
    }
    Ok(report)
}

/// How long CRIU took to write a process down, and to rebuild it, in µs.
fn one_run(host: &Host, count: usize) -> Result<[f64; 2]> {
    let listener = host.enter(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))??;
    let own = std::env::current_exe()?;
    let address = listener.local_addr()?.to_string();
    // In a session of its own, with nothing open that is another's.
    let begin = "setsid \"$0\" move-hold \"$1\" \"$2\" < /dev/null > /dev/null 2>&1 & echo $!";
    let told = host.command("sh").args(["-c", begin]).arg(&own).args([address, count.to_string()]).run()?;
    let pid = told.trim().parse().ok().and_then(Pid::from_raw).ok_or_else(|| format!("a process told {told:?}"))?;
    let moved = there_and_back(host, &listener, pid, count);
    let _ = kill_process(pid, Signal::KILL);
    moved
}

fn there_and_back(host: &Host, listener: &TcpListener, pid: Pid, count: usize) -> Result<[f64; 2]> {
    let far: Vec<TcpStream> =
        (0..count).map(|_| listener.accept().map(|(end, _)| end)).collect::<std::io::Result<_>>()?;
    let process = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
    wait_for(LONG, "the process sleeps", || {
        let waits = fs::read_to_string(process.join("wchan")).unwrap_or_default();
        Ok(waits.contains("futex").then_some(()))
    })?;
    let images = host.dir().join("images");
    fs::create_dir_all(&images)?;
    let tree = pid.as_raw_nonzero().to_string();
    let dumped = criu(host, &images, &["dump", "--tree", &tree])?;
    wait_for(LONG, "the process has ended", || Ok((!process.exists()).then_some(())))?;
    let restored = criu(host, &images, &["restore", "--restore-detached"])?;
    fs::remove_dir_all(&images)?;
    drop(far);
    Ok([dumped, restored])
}

/// How long it took, in µs. Nothing is sent meanwhile that would have to be kept out.
fn criu(host: &Host, images: &Path, words: &[&str]) -> Result<f64> {
    let command = host.command("criu").args(words).args(["--tcp-established", "--manage-cgroups=ignore"]);
    let command = command.args(["--network-lock", "skip", "--log-file", "log", "--images-dir"]).arg(images);
    let begun = Instant::now();
    let output = command.output()?;
    let took = begun.elapsed();
    if !output.status.success() {
        let log = fs::read_to_string(images.join("log")).unwrap_or_default();
        let errors: Vec<&str> = log.lines().filter(|line| line.contains("Error")).collect();
        return Err(format!("criu {}: {}", words[0], errors.join("; ")).into());
    }
    Ok(took.as_secs_f64() * 1e6)
}
