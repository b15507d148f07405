//! Several scenarios at a time, each in a process of its own.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use whimbrel_lab::{Error, Result};

/// Runs this program with each of these arguments, `jobs` at a time. What one prints is shown when it has ended, so
/// that no two are mixed. Returns whether all succeeded.
pub(crate) fn run(each: &[Vec<String>], jobs: usize) -> Result<bool> {
    let program = std::env::current_exe().map_err(|e| Error::call("readlink", "/proc/self/exe", e))?;
    let waiting = Mutex::new(each.iter());
    let worker = || -> Result<bool> {
        let mut good = true;
        loop {
            let next = waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
            let Some(arguments) = next else { return Ok(good) };
            let output = Command::new(&program)
                .args(arguments)
                .stdin(Stdio::null())
                .stderr(Stdio::inherit())
                .output()
                .map_err(|e| Error::call("run", program.display().to_string(), e))?;
            good &= output.status.success();
            let mut out = std::io::stdout().lock();
            out.write_all(&output.stdout)
                .and_then(|()| out.flush())
                .map_err(|e| Error::call("write", "the standard output", e))?;
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        let mut good = true;
        for worker in workers {
            good &= worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(good)
    })
}
