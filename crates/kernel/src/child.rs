//! Programs that the daemon starts and that must not outlive it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, pidfd_send_signal, waitid,
};

/// Who a program runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// User.
    pub uid: u32,
    /// Its only group.
    pub gid: u32,
}

/// A program that was started, in a process group of its own. Dropping it kills the group.
#[derive(Debug)]
pub struct Child {
    inner: std::process::Child,
    pidfd: OwnedFd,
    group: Pid,
    reaped: bool,
    /// Its standard input, not blocking.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, not blocking.
    pub stdout: Option<ChildStdout>,
    /// Its standard error, not blocking.
    pub stderr: Option<ChildStderr>,
}

impl Child {
    /// Starts a program: with these arguments and no environment but this, in this directory, as this user if the
    /// calling process is root, without a way to more privileges (PR_SET_NO_NEW_PRIVS), with no descriptors but three
    /// pipes, and killed when the calling thread ends (PR_SET_PDEATHSIG).
    ///
    /// # Errors
    /// When it cannot be executed, or a pipe or process cannot be made.
    pub fn start(
        command: &[String],
        account: Account,
        directory: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(environment).current_dir(directory).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if rustix::process::geteuid().is_root() {
            // Whoever is given a user is left without root's other groups.
            command.uid(account.uid).gid(account.gid);
        }
        // SAFETY: only system calls that are async-signal-safe, on values of its own.
        unsafe { command.pre_exec(settle) };
        let mut inner = command.spawn()?;
        let group = i32::try_from(inner.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        // Nobody has waited for it, so its number is still its own.
        let pidfd = pidfd_open(group, PidfdFlags::NONBLOCK)?;
        let (stdin, stdout, stderr) = (inner.stdin.take(), inner.stdout.take(), inner.stderr.take());
        let child = Self { inner, pidfd, group, reaped: false, stdin, stdout, stderr };
        for fd in [
            child.stdin.as_ref().map(AsFd::as_fd),
            child.stdout.as_ref().map(AsFd::as_fd),
            child.stderr.as_ref().map(AsFd::as_fd),
        ] {
            rustix::io::ioctl_fionbio(fd.ok_or(io::ErrorKind::BrokenPipe)?, true)?;
        }
        Ok(child)
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// Readable once it has ended.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
    }

    /// Ends it and all that it has started and that is still in its process group.
    pub fn kill(&self) {
        if !self.reaped {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// How it ended, if it has. What it has started, and what is still in its process group, is ended as well.
    pub fn take_status(&mut self) -> Option<ExitStatus> {
        if self.reaped {
            return None;
        }
        let only_look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::PidFd(self.pidfd.as_fd()), only_look).ok().flatten()?;
        // As long as nobody has waited for it, the group's number is nobody else's.
        self.kill();
        let status = self.inner.try_wait().ok().flatten()?;
        self.reaped = true;
        Some(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            // It was killed, so this does not wait for anything that it does.
            let _ = self.inner.wait();
        }
    }
}

/// Between fork and exec.
fn settle() -> io::Result<()> {
    let check = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: all zero is a valid set; it is made empty before it is used.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: room for a set.
    check(unsafe { libc::sigemptyset(&raw mut none) })?;
    // SAFETY: an empty set, and nobody asks for the former one. The daemon blocks what it reads by signalfd.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) })?;
    // What whoever started the daemon has left open. Not closed yet: std reports by one of them that exec failed.
    // SAFETY: takes numbers.
    check(unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) })?;
    // SAFETY: as above.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: as above. After the change of user, which would undo it.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::{Duration, Instant};

    fn start(script: &str) -> Child {
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        let nobody = Account { uid: 65534, gid: 65534 };
        let environment = [("NAME".to_owned(), "value".to_owned())];
        Child::start(&command, nobody, Path::new("/"), environment).expect("started")
    }

    fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = ask() {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "this takes too long");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn said(child: &mut Child) -> String {
        let mut text = Vec::new();
        let mut stdout = child.stdout.take().expect("stdout");
        until(|| match stdout.read_to_end(&mut text) {
            Ok(_) => Some(()),
            Err(error) => (error.kind() != io::ErrorKind::WouldBlock).then_some(()),
        });
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn it_has_what_it_was_given_and_nothing_else() {
        let mut child = start(
            "id -u; id -G; env | grep -v -e ^PWD -e ^_ -e ^SHLVL; ls /proc/self/fd | wc -l; read line; echo $line",
        );
        child.stdin.take().expect("stdin").write_all(b"hello\n").expect("written");
        let text = said(&mut child);
        let lines: Vec<&str> = text.lines().collect();
        if rustix::process::geteuid().is_root() {
            assert_eq!(lines[..2], ["65534", "65534"]);
        }
        // ls has one open itself.
        assert_eq!(lines[2..], ["NAME=value", "4", "hello"]);
        assert!(until(|| child.take_status()).success());
    }

    #[test]
    fn all_that_it_started_ends_with_it() {
        let mut child = start("sleep 1000 & echo $!; wait");
        let mut text = [0; 16];
        let mut stdout = child.stdout.take().expect("stdout");
        let length = until(|| stdout.read(&mut text).ok());
        let below: i32 = String::from_utf8_lossy(&text[..length]).trim().parse().expect("a number");
        let there = || std::fs::read_to_string(format!("/proc/{below}/stat")).is_ok_and(|stat| !stat.contains(") Z"));
        assert!(there());
        drop(child);
        until(|| (!there()).then_some(()));
    }

    #[test]
    fn all_that_it_started_ends_when_it_has_ended_by_itself() {
        let mut child = start("sleep 1000 & echo $!");
        let mut text = [0; 16];
        let mut stdout = child.stdout.take().expect("stdout");
        let length = until(|| stdout.read(&mut text).ok());
        let below: i32 = String::from_utf8_lossy(&text[..length]).trim().parse().expect("a number");
        let there = || std::fs::read_to_string(format!("/proc/{below}/stat")).is_ok_and(|stat| !stat.contains(") Z"));
        assert!(until(|| child.take_status()).success());
        until(|| (!there()).then_some(()));
    }

    #[test]
    fn it_takes_signals_that_the_daemon_blocks() {
        let mut child = start("echo ready; sleep 1000");
        let mut stdout = child.stdout.take().expect("stdout");
        until(|| stdout.read(&mut [0; 8]).ok());
        child.terminate();
        assert!(!until(|| child.take_status()).success());
    }
}
