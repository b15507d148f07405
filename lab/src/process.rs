//! Programs inside a host: started in its network namespace, ended by pid, output kept.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::sys::{ChildSetup, prepare_child};
use crate::{Error, Host, Result, patience, wait_for};

/// A program to run on a host; see [`Host::command`].
#[derive(Debug)]
pub struct Cmd {
    host: Host,
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    stdin: Option<Vec<u8>>,
    terminal: Option<OwnedFd>,
    label: String,
}

impl Cmd {
    pub(crate) fn new(host: &Host, program: &OsStr) -> Self {
        let label = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
        let (args, env) = (Vec::new(), Vec::new());
        Self { host: host.clone(), program: program.into(), args, env, stdin: None, terminal: None, label }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().into());
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(|a| a.as_ref().into()));
        self
    }

    /// Sets a variable of the environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// Gives it these bytes on standard input ([`Cmd::run`] and [`Cmd::output`] only).
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Name of its log files: `LABEL.out` and `LABEL.err` in the host's directory; a number is added if that is taken.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Uses the slave end of a pseudo-terminal for its standard streams.
    pub(crate) fn terminal(mut self, slave: OwnedFd) -> Self {
        self.terminal = Some(slave);
        self
    }

    /// Runs it to its end and gives its standard output. A failure is an error that carries its standard error.
    pub fn run(self) -> Result<String> {
        let (command, host) = (self.line(), self.host.name().to_owned());
        let output = self.output()?;
        if !output.status.success() {
            // With `--json` a program may say on standard output what is wrong.
            let said = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
            let stderr = tail(&String::from_utf8_lossy(said));
            return Err(Error::Command { command, host, status: describe(output.status), stderr });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs it to its end.
    pub fn output(mut self) -> Result<Output> {
        let stdin = self.stdin.take();
        let mut command = self.command(false);
        command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |e| self.spawn_error(e);
        let mut child = command.spawn().map_err(failed)?;
        if let (Some(bytes), Some(mut pipe)) = (stdin, child.stdin.take()) {
            // A program that does not read all of it says why itself.
            let _ = pipe.write_all(&bytes);
        }
        child.wait_with_output().map_err(failed)
    }

    /// Starts it and returns at once.
    pub fn spawn(mut self) -> Result<Process> {
        let (out_path, err_path) = self.host.log_paths(&self.label);
        let create = |path: &Path| File::create(path).map_err(|e| Error::call("open", path.display().to_string(), e));
        let (out, err) = (create(&out_path)?, create(&err_path)?);
        let mut command = self.command(true);
        if let Some(slave) = self.terminal.take() {
            let clone = || slave.try_clone().map_err(|e| Error::call("dup", "pseudo-terminal", e));
            command.stdin(clone()?).stdout(clone()?).stderr(clone()?);
        } else {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(err);
        }
        // On the thread that lives as long as the process: children die with the thread that forked them.
        let host = self.host.clone();
        let mut child = on_spawner(move || {
            let _namespace_stays_open = host;
            command.spawn()
        })
        .map_err(|e| self.spawn_error(e))?;
        let seen = Arc::new(Seen::default());
        if let Some(mut stdout) = child.stdout.take() {
            let seen = seen.clone();
            std::thread::spawn(move || seen.follow(&mut stdout, out));
        }
        Ok(Process {
            label: self.label,
            host: self.host.name().to_owned(),
            stdin: child.stdin.take(),
            child,
            seen,
            out_path,
            err_path,
        })
    }

    fn command(&self, die_with_parent: bool) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().map(|(k, v)| (k, v)));
        let netns = Some(self.host.netns_fd().as_raw_fd());
        prepare_child(&mut command, ChildSetup { netns, die_with_parent, terminal: self.terminal.is_some() });
        command
    }

    fn line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    fn spawn_error(&self, source: std::io::Error) -> Error {
        Error::Spawn { program: self.program.to_string_lossy().into(), host: self.host.name().into(), source }
    }
}

/// Standard output so far.
#[derive(Debug, Default)]
struct Seen {
    state: Mutex<SeenState>,
    grown: Condvar,
}

#[derive(Debug, Default)]
struct SeenState {
    bytes: Vec<u8>,
    ended: bool,
    /// Where [`Process::wait_line`] goes on.
    read: usize,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, SeenState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn follow(&self, from: &mut impl Read, mut log: File) {
        let mut buffer = [0u8; 65_536];
        loop {
            let n = from.read(&mut buffer).unwrap_or(0);
            // The log is for people; a full disk must not stop the program.
            let _ = log.write_all(&buffer[..n]);
            let mut state = self.lock();
            state.bytes.extend_from_slice(&buffer[..n]);
            state.ended = n == 0;
            self.grown.notify_all();
            if n == 0 {
                return;
            }
        }
    }
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    label: String,
    host: String,
    child: Child,
    stdin: Option<ChildStdin>,
    seen: Arc<Seen>,
    out_path: PathBuf,
    err_path: PathBuf,
}

impl Process {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything on its standard output so far.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().bytes).into_owned()
    }

    /// Everything on its standard error so far.
    pub fn stderr(&self) -> String {
        std::fs::read(&self.err_path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// Log of its standard output.
    pub fn out_path(&self) -> &Path {
        &self.out_path
    }

    /// Log of its standard error.
    pub fn err_path(&self) -> &Path {
        &self.err_path
    }

    /// Writes a line to its standard input.
    pub fn send_line(&mut self, line: &str) -> Result<()> {
        let label = self.label.clone();
        let pipe = self.stdin.as_mut().ok_or_else(|| Error::Usage(format!("{label} has no standard input")))?;
        pipe.write_all(format!("{line}\n").as_bytes()).map_err(|e| Error::call("write", format!("stdin of {label}"), e))
    }

    /// Closes its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Reads lines of its standard output, each once, until `pick` chooses one.
    pub fn wait_line<T>(
        &mut self,
        timeout: Duration,
        what: &str,
        mut pick: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        let timeout = timeout * patience();
        let start = Instant::now();
        let mut state = self.seen.lock();
        loop {
            while let Some(end) = state.bytes[state.read..].iter().position(|b| *b == b'\n') {
                let at = state.read;
                state.read += end + 1;
                if let Some(value) = pick(String::from_utf8_lossy(&state.bytes[at..at + end]).trim_end()) {
                    return Ok(value);
                }
            }
            let left = timeout.saturating_sub(start.elapsed());
            if state.ended || left.is_zero() {
                drop(state);
                let last = format!("; {} on {} said: {}", self.label, self.host, tail(&self.stderr()));
                return Err(Error::Timeout { what: what.into(), after: start.elapsed(), last });
            }
            state = self.seen.grown.wait_timeout(state, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    /// True while it has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let what = format!("{} on {} ends", self.label, self.host);
        let child = &mut self.child;
        wait_for(timeout, &what, || child.try_wait().map_err(|e| Error::call("waitid", what.clone(), e)))
    }

    /// Waits for its end and fails unless it says success.
    pub fn wait_success(&mut self, timeout: Duration) -> Result<()> {
        let status = self.wait(timeout)?;
        if status.success() {
            return Ok(());
        }
        let (command, host) = (self.label.clone(), self.host.clone());
        Err(Error::Command { command, host, status: describe(status), stderr: tail(&self.stderr()) })
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // The child is not reaped before this value is gone or has waited for it, so the pid is still its own.
        let Some(pid) = Pid::from_raw(self.child.id() as i32) else { return Ok(()) };
        kill_process(pid, signal).map_err(|e| Error::call("kill", self.label.clone(), e))
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        if self.is_running() {
            self.signal(Signal::KILL)?;
            self.wait(Duration::from_secs(10))?;
        }
        Ok(())
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    pub fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        if self.is_running() {
            self.signal(Signal::TERM)?;
        }
        self.wait(timeout)
    }

    /// User and system CPU time it has used so far, in seconds (proc_pid_stat(5), fields 14 and 15).
    pub fn cpu_seconds(&self) -> Result<f64> {
        cpu_seconds(self.pid())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// CPU time of a process in seconds, in steps of a clock tick (10 ms).
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).map_err(|e| Error::call("read", path.clone(), e))?;
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, f)| f).split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

type Job = Box<dyn FnOnce() + Send>;

/// Runs `job` on a thread that lives as long as this process.
fn on_spawner<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    static SPAWNER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = channel::<Job>();
        std::thread::spawn(move || queue.into_iter().for_each(|job| job()));
        Mutex::new(jobs)
    });
    let (done, result) = channel();
    let job = Box::new(move || {
        let _ = done.send(job());
    });
    let sent = spawner.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).send(job);
    assert!(sent.is_ok(), "the spawner never ends");
    result.recv().expect("a job that starts a program does not panic")
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown status".into(),
    }
}

/// The last lines, as much as an error message should carry.
pub(crate) fn tail(text: &str) -> String {
    let text = text.trim_end();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
