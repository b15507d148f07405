//! What this machine says of itself.

use std::fs;
use std::time::{Duration, Instant};

use crate::Result;

/// A process that has used no more than this of a processor in [`CALM`] has done what there was to do.
const IDLE: Duration = Duration::from_millis(5);
const CALM: Duration = Duration::from_millis(500);
/// For how long a process is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// CPU time that all processors together have been busy since the machine started, in seconds, in steps of a clock tick
/// (proc_stat(5)): everything but idle, waiting for disks, and time that the hypervisor took.
///
/// # Errors
/// When /proc is not as it should be.
pub fn busy_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line =
        stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).ok_or("/proc/stat has no line for cpu")?;
    let values: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq
    let ticks: u64 = [0, 1, 2, 5, 6].iter().filter_map(|index| values.get(*index)).sum();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Processes that ran or wanted to, averaged over the last minute.
///
/// # Errors
/// When /proc is not as it should be.
pub fn load() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

/// Says so when others use the machine, since figures suffer from it.
pub fn warn_if_busy() {
    if let Ok(load) = load()
        && load > 1.5
    {
        eprintln!("the machine is busy (load {load}): figures will be worse than they are, and scattered");
    }
}

/// A field of /proc/PID/status that is given in kB, in bytes.
///
/// # Errors
/// When the process has ended, or has no such field.
pub fn status_bytes(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number =
        line.and_then(|line| line.split_whitespace().next()).ok_or_else(|| format!("{path} has no {field}"))?;
    Ok(number.parse::<u64>()? * 1024)
}

/// Memory of all eBPF maps that a process has open, in bytes, as the kernel accounts it (`memlock` in
/// /proc/PID/fdinfo); a map that it has open twice counts once.
///
/// # Errors
/// When the process has ended.
pub fn map_bytes(pid: u32) -> Result<u64> {
    let mut maps = std::collections::HashMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may have been closed since.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        if let (Some(id), Some(bytes)) = (number("map_id:"), number("memlock:")) {
            maps.insert(id, bytes);
        }
    }
    Ok(maps.values().sum())
}

/// Waits until a process has nothing to do.
///
/// # Errors
/// When it has ended, or is busy all the time.
pub fn wait_idle(pid: u32) -> Result<()> {
    let mut before = cpu(pid)?;
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        std::thread::sleep(CALM);
        let now = cpu(pid)?;
        // It falls where a thread has ended: then something happens still.
        if now.checked_sub(before).is_some_and(|spent| spent <= IDLE) {
            return Ok(());
        }
        before = now;
    }
    Err(format!("process {pid} is busy for {PATIENCE:?}").into())
}

/// CPU time of all threads of a process (/proc/PID/task/*/schedstat, first field, ns).
///
/// # Errors
/// When it has ended.
pub fn cpu(pid: u32) -> Result<Duration> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended since.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        sum += text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(sum))
}
