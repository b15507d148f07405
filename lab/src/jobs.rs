//! Several scenarios at a time, each in a process of its own.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use whimbrel_lab::{Error, Result};

/// What this program does for one scenario.
pub(crate) struct Task {
    pub(crate) scenario: &'static str,
    pub(crate) arguments: Vec<String>,
}

/// Whether it is too late to begin a scenario, which is said.
pub(crate) fn is_left_out(scenario: &str, last: Option<Instant>) -> bool {
    let late = last.is_some_and(|last| Instant::now() > last);
    if late {
        println!("LATE {scenario}: no time was left for it");
    }
    late
}

/// Runs this program once for each of `tasks`, `jobs` at a time, and begins none after `last`. What one prints is shown when it has
/// ended, so that no two are mixed. Returns whether all that were begun succeeded.
pub(crate) fn run(tasks: &[Task], jobs: usize, last: Option<Instant>) -> Result<bool> {
    let program = std::env::current_exe().map_err(|e| Error::call("readlink", "/proc/self/exe", e))?;
    let waiting = Mutex::new(tasks.iter());
    let worker = || -> Result<bool> {
        let mut good = true;
        loop {
            let next = waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
            let Some(task) = next else { return Ok(good) };
            if is_left_out(task.scenario, last) {
                continue;
            }
            let output = Command::new(&program)
                .args(&task.arguments)
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
