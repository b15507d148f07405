//! Other processes' sockets, and these processes held still while their sockets are at rest.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal};

use crate::error::Error;
use crate::process::socket_inode;
use crate::process_tree::{is_over, started};

/// How long a process may take to stand still: most take microseconds, and on a busy machine one waits for its turn.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Between looks at it.
const LOOK: Duration = Duration::from_micros(20);

/// Duplicates of the sockets with these inodes that a process has open, with their inodes: one of each, closed on exec.
/// Needs CAP_SYS_PTRACE or the same user (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS).
///
/// # Errors
/// [`Error::Call`]: the process is gone, or may not be looked into.
pub fn borrow(pid: u32, inodes: &HashSet<u32>) -> Result<Vec<(u32, OwnedFd)>, Error> {
    let process = open(pid)?;
    let path = format!("/proc/{pid}/fd");
    let entries = std::fs::read_dir(&path).map_err(|e| Error::call("readdir", path, e))?;
    let mut found = Vec::new();
    let mut left = inodes.clone();
    for entry in entries.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let inode = std::fs::read_link(entry.path()).ok().and_then(|link| socket_inode(&link));
        let (Some(number), Some(inode)) = (number, inode) else { continue };
        if left.contains(&inode)
            && let Some(socket) = duplicate(pid, &process, number, inode)?
        {
            left.remove(&inode);
            found.push((inode, socket));
        }
        if left.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// A duplicate of the socket with this inode that a process has as this descriptor, closed on exec; none if the
/// descriptor is another file's by now. Needs what [`borrow`] needs, and walks no list.
///
/// # Errors
/// [`Error::Call`]: the process is gone, or may not be looked into.
pub fn borrow_descriptor(pid: u32, number: i32, inode: u32) -> Result<Option<OwnedFd>, Error> {
    duplicate(pid, &open(pid)?, number, inode)
}

/// A duplicate of a process's descriptor, unless it is closed or another file's by now.
fn duplicate(pid: u32, process: &OwnedFd, number: i32, inode: u32) -> Result<Option<OwnedFd>, Error> {
    let socket = match pidfd_getfd(process, number, PidfdGetfdFlags::empty()) {
        Ok(socket) => socket,
        Err(rustix::io::Errno::BADF) => return Ok(None),
        Err(error) => return Err(Error::call("pidfd_getfd", format!("process {pid}"), error)),
    };
    let same = rustix::fs::fstat(socket.as_fd()).is_ok_and(|stat| stat.st_ino == u64::from(inode));
    Ok(same.then_some(socket))
}

/// Whether any socket that a process has open is such a one. It has a duplicate of one at a time.
///
/// # Errors
/// [`Error::Call`]: the process is gone (ENOENT, ESRCH), or may not be looked into; or an error of `is_such`.
pub fn any_socket(pid: u32, is_such: impl Fn(BorrowedFd<'_>) -> Result<bool, Error>) -> Result<bool, Error> {
    let path = format!("/proc/{pid}/fd");
    let read = |e| Error::call("readdir", path.clone(), e);
    let mut process = None;
    for entry in std::fs::read_dir(&path).map_err(read)? {
        let entry = entry.map_err(read)?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        match std::fs::read_link(entry.path()) {
            Ok(link) if socket_inode(&link).is_some() => {}
            // It was closed.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::call("readlink", format!("{path}/{number}"), error));
            }
            Ok(_) | Err(_) => continue,
        }
        let process = match &process {
            Some(process) => process,
            None => process.insert(open(pid)?),
        };
        let socket = match pidfd_getfd(process, number, PidfdGetfdFlags::empty()) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::BADF) => continue,
            Err(error) => return Err(Error::call("pidfd_getfd", format!("process {pid}"), error)),
        };
        match is_such(socket.as_fd()) {
            Ok(true) => return Ok(true),
            // The number is another file's by now.
            Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => {}
            Ok(false) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// A process that stands still (SIGSTOP) until this is dropped. One that stood still before stays so. It survives
/// whoever has stopped it: it does not go on before somebody continues it.
#[derive(Debug)]
pub struct Halted {
    process: OwnedFd,
    pid: u32,
    /// It was stopped by somebody else.
    before: bool,
}

impl Halted {
    /// Stops a process, and waits until none of its threads runs.
    ///
    /// # Errors
    /// [`Error::Call`]: it is gone, may not be stopped, or does not stop within a second, as while it waits for a
    /// disk; it runs as before.
    pub fn stop(pid: u32) -> Result<Self, Error> {
        Self::stop_within(pid, PATIENCE)
    }

    /// The same within another time: on a busy machine a process may not have been run at all meanwhile.
    ///
    /// # Errors
    /// Those of [`stop`](Self::stop).
    pub fn stop_within(pid: u32, patience: Duration) -> Result<Self, Error> {
        let process = open(pid)?;
        let object = || format!("process {pid}");
        let before = stands_still(pid) == Some(true);
        let halted = Self { process, pid, before };
        if before {
            return Ok(halted);
        }
        pidfd_send_signal(&halted.process, Signal::STOP)
            .map_err(|e| Error::call("pidfd_send_signal SIGSTOP", object(), e))?;
        let deadline = Instant::now() + patience;
        loop {
            match stands_still(pid) {
                Some(true) => return Ok(halted),
                Some(false) if Instant::now() < deadline => std::thread::sleep(LOOK),
                still => {
                    let errno = if still.is_none() { rustix::io::Errno::SRCH } else { rustix::io::Errno::TIMEDOUT };
                    return Err(Error::call("pidfd_send_signal SIGSTOP", object(), errno));
                }
            }
        }
    }

    /// Stops all of these processes that are not over, each within this time, or none. The oldest first: who has
    /// started another by vfork(2) stands still only when that one executes its program, which it does not once it is
    /// stopped. Numbers do not tell which is older, since they begin anew.
    ///
    /// # Errors
    /// Those of [`stop`](Self::stop) for one that is not over meanwhile.
    pub fn stop_all(pids: &[u32], patience: Duration) -> Result<Vec<Self>, Error> {
        let mut live: Vec<(u64, u32)> = pids.iter().filter_map(|pid| Some((started(*pid)?, *pid))).collect();
        live.sort_unstable();
        let stop = |(since, pid)| match Self::stop_within(pid, patience) {
            Err(_) if is_over(pid) || started(pid) != Some(since) => None,
            stopped => Some(stopped),
        };
        live.into_iter().filter_map(stop).collect()
    }

    /// One that whoever was here before has stopped: it goes on when this is dropped.
    ///
    /// # Errors
    /// [`Error::Call`]: it is gone, or may not be signalled.
    pub fn adopt(pid: u32) -> Result<Self, Error> {
        Ok(Self { process: open(pid)?, pid, before: false })
    }

    /// Leaves it as it is: somebody else has it go on.
    pub fn leave(mut self) {
        self.before = true;
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        if !self.before {
            // It may be gone.
            let _ = pidfd_send_signal(&self.process, Signal::CONT);
        }
    }
}

/// A descriptor of a process, which stays that one's (pidfd_open(2)).
pub(crate) fn open(pid: u32) -> Result<OwnedFd, Error> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number =
        number.ok_or(Error::Argument { object: format!("process {pid}"), detail: "there is no such number" })?;
    pidfd_open(number, PidfdFlags::empty()).map_err(|e| Error::call("pidfd_open", format!("process {pid}"), e))
}

/// Whether no thread of a process runs, nor would without SIGCONT; `None`: it is gone.
#[must_use]
pub fn stands_still(pid: u32) -> Option<bool> {
    let mut any = false;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else { continue };
        // The name, in parentheses, may have any bytes.
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        match state {
            Some('Z' | 'X') => {}
            Some('T' | 't') => any = true,
            _ => return Some(false),
        }
    }
    any.then_some(true)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn who_waits_for_what_it_has_started_stands_still_before_that_and_what_is_over_is_left_out() {
        let inputs = std::env::temp_dir().join(format!("whimbrel-stop-all-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &inputs, rustix::fs::Mode::RWXU).expect("mkfifo");
        // Starts a program as vfork(2) does, whose input is opened only when somebody writes there.
        let spawns = "import os, sys; opens = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)\n\
            os.waitpid(os.posix_spawn('/bin/cat', ['cat'], {}, file_actions=[opens]), 0)";
        let mut parent = Command::new("/usr/bin/python3").args(["-c", spawns]).arg(&inputs).spawn().expect("python3");
        let children = format!("/proc/{0}/task/{0}/children", parent.id());
        let started: u32 = loop {
            let children = std::fs::read_to_string(&children).expect("children");
            match children.trim().parse() {
                Ok(pid) => break pid,
                Err(_) => std::thread::sleep(LOOK),
            }
        };
        let mut over = Command::new("true").spawn().expect("true");
        while !is_over(over.id()) {
            std::thread::sleep(LOOK);
        }
        let (pids, patience) = ([over.id(), started, parent.id()], Duration::from_secs(60));
        let stopping = std::thread::spawn(move || Halted::stop_all(&pids, patience));
        // Held open, so that neither is over.
        let input = std::fs::OpenOptions::new().write(true).open(&inputs).expect("open");
        let halted = stopping.join().expect("join").expect("all stand still");
        assert_eq!(halted.iter().map(Halted::pid).collect::<Vec<_>>(), [parent.id(), started]);
        assert!(halted.iter().all(|halted| stands_still(halted.pid()) == Some(true)));
        drop((halted, input));
        assert!(parent.wait().expect("wait").success());
        over.wait().expect("wait");
        std::fs::remove_file(&inputs).expect("remove");
    }

    #[test]
    fn a_process_stands_still_and_goes_on() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cat");
        let (mut input, output) = (child.stdin.take().expect("pipe"), child.stdout.take().expect("pipe"));
        let mut output = BufReader::new(output);
        let mut line = String::new();
        input.write_all(b"one\n").expect("write");
        output.read_line(&mut line).expect("read");
        let halted = Halted::stop(child.id()).expect("stop");
        assert_eq!(stands_still(child.id()), Some(true));
        let again = Halted::stop(child.id()).expect("stop");
        drop(again);
        assert_eq!(stands_still(child.id()), Some(true), "who has found it so leaves it so");
        input.write_all(b"two\n").expect("write");
        drop(halted);
        output.read_line(&mut line).expect("read");
        assert_eq!(line, "one\ntwo\n");
        drop(input);
        child.wait().expect("wait");
        assert!(Halted::stop(child.id()).is_err(), "it is gone");
        assert!(Halted::adopt(child.id()).is_err());
    }

    #[test]
    fn the_sockets_of_a_process_are_borrowed() {
        let sockets = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("bind"));
        let inode = |socket: &TcpListener| rustix::fs::fstat(socket).expect("fstat").st_ino as u32;
        let wanted: HashSet<u32> = sockets[..2].iter().map(inode).chain([1]).collect();
        let found = borrow(std::process::id(), &wanted).expect("borrow");
        let names: HashSet<u32> = found.iter().map(|(inode, _)| *inode).collect();
        assert_eq!(names, sockets[..2].iter().map(inode).collect());
        for (_, socket) in found {
            assert!(sockets.iter().all(|own| own.as_raw_fd() != socket.as_raw_fd()));
        }
    }
}
