//! Nothing of a run stays behind, however it ends. Needs root.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use whimbrel_lab::{Lab, Options, Result, wait_until};

const LONG: Duration = Duration::from_secs(20);

/// What exists of a run: namespaces, its directory.
fn remains(id: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&format!("wb-{id}-")) {
            found.push(name);
        }
    }
    if Path::new("/run/whimbrel-lab").join(id).exists() {
        found.push(id.into());
    }
    found
}

/// A run with a process in it.
fn busy() -> Result<(Lab, u32)> {
    let mut lab = Lab::new(Options::default())?;
    let host = lab.host("host")?;
    let process = host.command("sleep").arg("1000").spawn()?;
    let pid = process.pid();
    // Not ended by its own handle: the lab has to find it.
    std::mem::forget(process);
    Ok((lab, pid))
}

fn is_alive(pid: u32) -> bool {
    // A zombie is of nobody's concern but its parent's.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

#[test]
#[ignore = "needs root"]
fn a_lab_that_is_dropped_leaves_nothing() {
    let (lab, pid) = busy().unwrap();
    let id = lab.id().to_owned();
    assert!(!remains(&id).is_empty() && is_alive(pid));
    drop(lab);
    assert_eq!(remains(&id), Vec::<String>::new());
    wait_until(LONG, "the process has ended", || !is_alive(pid)).unwrap();
}

#[test]
#[ignore = "needs root"]
fn a_lab_whose_user_panics_leaves_nothing() {
    let (lab, pid) = busy().unwrap();
    let id = lab.id().to_owned();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _lab = lab;
        panic!("as a scenario might");
    }));
    assert!(panicked.is_err());
    assert_eq!(remains(&id), Vec::<String>::new());
    wait_until(LONG, "the process has ended", || !is_alive(pid)).unwrap();
}

/// `whimbrel-lab shell` with a `cat` in place of the shell, and the id of its run.
fn shell() -> (Child, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_whimbrel-lab"))
        .args(["shell", "nat"])
        .env("SHELL", "/bin/cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.find(|l| l.as_ref().is_ok_and(|l| l.contains("/run/netns/wb-"))).unwrap().unwrap();
    let id = line.split("wb-").nth(1).unwrap().split('-').next().unwrap().to_owned();
    assert!(!remains(&id).is_empty());
    std::thread::spawn(move || lines.for_each(drop));
    (child, id)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

#[test]
#[ignore = "needs root"]
fn a_run_that_is_terminated_leaves_nothing() {
    for end in [Signal::TERM, Signal::INT] {
        let (mut child, id) = shell();
        signal(&child, end);
        assert_eq!(child.wait().unwrap().code(), Some(128 + end.as_raw()));
        assert_eq!(remains(&id), Vec::<String>::new());
    }
}

#[test]
#[ignore = "needs root"]
fn clean_removes_what_a_killed_run_left_and_nothing_else() {
    let (mut living, living_id) = shell();
    let (mut child, id) = shell();
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    assert!(!remains(&id).is_empty(), "SIGKILL cannot be caught");
    let clean = Command::new(env!("CARGO_BIN_EXE_whimbrel-lab")).arg("clean").output().unwrap();
    assert!(clean.status.success());
    assert!(String::from_utf8_lossy(&clean.stdout).contains(&id));
    assert_eq!(remains(&id), Vec::<String>::new());

    assert!(!remains(&living_id).is_empty(), "the other run lives");
    living.stdin.take().unwrap().flush().unwrap(); // and its standard input ends here, so `cat` does
    wait_until(LONG, "the other run ends", || matches!(living.try_wait(), Ok(Some(_)))).unwrap();
    assert_eq!(remains(&living_id), Vec::<String>::new());
}
