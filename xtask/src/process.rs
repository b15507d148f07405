//! Running programs: output passed on and looked at, a bound on their time.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, OnObject};

/// How long a program has to clean up after it was told to end.
const GRACE: Duration = Duration::from_secs(20);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With exit status 0.
    Success,
    /// With another one, or by a signal.
    Failure,
    /// It took too long and was ended.
    TimedOut,
}

/// Runs a program, its standard error left as it is, and shows each line of its standard output to `look`.
pub(crate) fn run(command: &mut Command, limit: Duration, look: impl FnMut(&str)) -> Result<End, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().failed("start", &program)?;
    let output = child.stdout.take().ok_or_else(|| Failure::new("a program was started without an output"))?;
    follow(&program, child, output, limit, look)
}

/// Runs a program; how it ended, and all that it printed to either of its outputs.
pub(crate) fn capture(mut command: Command, limit: Duration) -> Result<(End, String), Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let (output, input) = io::pipe().failed("make", "a pipe")?;
    let second = input.try_clone().failed("duplicate", "a pipe")?;
    let child = command.stdin(Stdio::null()).stdout(input).stderr(second).spawn().failed("start", &program)?;
    // It holds the pipe's other end, which would keep it open.
    drop(command);
    let mut text = String::new();
    let end = follow(&program, child, output, limit, |line| {
        text.push_str(line);
        text.push('\n');
    })?;
    Ok((end, text))
}

/// Reads what a program prints until it has closed its output or its time is up.
fn follow(
    program: &str,
    mut child: Child,
    output: impl Read + Send + 'static,
    limit: Duration,
    mut look: impl FnMut(&str),
) -> Result<End, Failure> {
    let lines = read_lines(output);
    let deadline = Instant::now() + limit;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => look(&line),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                end(&mut child)?;
                return Ok(End::TimedOut);
            }
        }
    }
    let status = child.wait().failed("wait for", program)?;
    Ok(if status.success() { End::Success } else { End::Failure })
}

fn read_lines(output: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        // A serial console's output need not be UTF-8.
        while matches!(reader.read_until(b'\n', &mut line), Ok(length) if length > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(text).is_err() {
                break;
            }
            line.clear();
        }
    });
    receiver
}

/// Asks a program and all its descendants to end, then makes them.
fn end(child: &mut Child) -> Result<(), Failure> {
    let family = family(child.id());
    signal("TERM", &family);
    let deadline = Instant::now() + GRACE;
    while child.try_wait().failed("wait for", child.id())?.is_none() {
        if Instant::now() >= deadline {
            signal("KILL", &family);
            child.wait().failed("wait for", child.id())?;
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn signal(name: &str, pids: &[u32]) {
    // Some may be gone already, which kill(1) complains of.
    let _ = Command::new("kill")
        .arg(format!("-{name}"))
        .args(pids.iter().map(u32::to_string))
        .stderr(Stdio::null())
        .status();
}

/// A process and its descendants, parents first.
fn family(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // pid (comm) state ppid …; comm may hold spaces and parentheses
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_status_come_through() {
        let mut lines = Vec::new();
        let end = run(Command::new("sh").args(["-c", "echo one; echo two; exit 3"]), Duration::from_secs(60), |line| {
            lines.push(line.to_owned());
        });
        assert_eq!(end.unwrap(), End::Failure);
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn both_outputs_are_captured() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; kill -9 $$"]);
        let (end, text) = capture(command, Duration::from_secs(60)).unwrap();
        assert_eq!((end, text.as_str()), (End::Failure, "one\ntwo\n"));
    }

    #[test]
    fn what_takes_too_long_is_ended_with_its_children() {
        let started = Instant::now();
        let end = run(Command::new("sh").args(["-c", "sleep 1000 & wait"]), Duration::from_millis(200), |_| {});
        assert_eq!(end.unwrap(), End::TimedOut);
        assert!(started.elapsed() < GRACE);
    }
}
