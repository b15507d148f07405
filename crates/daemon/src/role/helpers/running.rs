//! A helper program while it runs (`docs/helpers.md`).

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitStatus;

use rustix::event::epoll::{self, EventData, EventFlags};
use whimbrel_kernel::child::Child;
use whimbrel_protocol::Time;
use whimbrel_wire::FlowTuple;

use super::section::Program;
use super::store::Store;

/// What is read or written at once: as much as a pipe holds.
const CHUNK: usize = 64 << 10;
/// Of what it says on its standard error: lines that are logged of one run, and how long they may be.
const LINES: usize = 20;
const LINE: usize = 400;

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// Bytes of what is kept that it was handed.
    handed: u64,
    /// Of what it answers, bytes that a run before this one has answered already.
    skip: u64,
    /// Bytes of these that it is known to have read, and when that was last seen to have grown.
    read: u64,
    progress: Time,
    /// What it has said of a line that it has not ended.
    unfinished: Vec<u8>,
    complaint: Vec<u8>,
    complaints: usize,
}

/// What came out of a program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    /// Its answers.
    pub(crate) bytes: Vec<u8>,
    /// There will be no more.
    pub(crate) ended: bool,
}

impl Running {
    /// Starts it. It is handed everything from the beginning of the absence; as many bytes as were `answered` before
    /// are left out of what it says.
    pub(crate) fn start(
        now: Time,
        name: &str,
        program: &Program,
        flow: &FlowTuple,
        answered: u64,
        (epoll, token): (impl AsFd, u64),
    ) -> io::Result<Self> {
        let environment = environment(name, flow.local, flow.remote);
        let child = Child::start(&program.command, program.account, Path::new("/"), environment)?;
        let watched = [
            (child.stdin.as_ref().map(AsFd::as_fd), EventFlags::OUT | EventFlags::ET),
            (child.stdout.as_ref().map(AsFd::as_fd), EventFlags::IN),
            (child.stderr.as_ref().map(AsFd::as_fd), EventFlags::IN),
            (Some(child.ended()), EventFlags::IN),
        ];
        for (fd, flags) in watched {
            let fd = fd.ok_or(io::ErrorKind::BrokenPipe)?;
            epoll::add(&epoll, fd, EventData::new_u64(token), flags)?;
        }
        let unfinished = Vec::new();
        Ok(Self {
            child,
            handed: 0,
            skip: answered,
            read: 0,
            progress: now,
            unfinished,
            complaint: Vec::new(),
            complaints: 0,
        })
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Hands on what it takes.
    ///
    /// # Errors
    /// When what is kept cannot be read.
    pub(crate) fn hand(&mut self, now: Time, store: &Store) -> io::Result<()> {
        self.look(now);
        while self.handed < store.kept() {
            let Some(stdin) = &mut self.child.stdin else { return Ok(()) };
            let bytes = store.read_kept(self.handed, CHUNK)?;
            match stdin.write(&bytes) {
                Ok(written) => self.handed += written as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It does not want to hear any more. Whether it has ended is seen elsewhere.
                Err(_) => self.child.stdin = None,
            }
        }
        Ok(())
    }

    /// Looks what it has read: what the pipe holds still is handed, but not taken.
    pub(crate) fn look(&mut self, now: Time) {
        let Some(stdin) = &self.child.stdin else { return };
        let read = self.handed.saturating_sub(rustix::io::ioctl_fionread(stdin).unwrap_or(0));
        // What it has read in time does not count against what comes later.
        if read > self.read || read == self.handed {
            self.read = read;
            self.progress = now;
        }
    }

    /// Since when it has not read what there is for it, as far as was looked.
    pub(crate) fn waits_since(&self, kept: u64) -> Option<Time> {
        (self.child.stdin.is_some() && self.read < kept).then_some(self.progress)
    }

    /// There is nothing more to be handed.
    pub(crate) fn close(&mut self) {
        self.child.stdin = None;
    }

    /// Takes what it has said: at most `most` bytes and one.
    pub(crate) fn take_output(&mut self, most: u64) -> Output {
        let mut output = Output::default();
        let Some(stdout) = &mut self.child.stdout else { return Output { ended: true, ..output } };
        let mut chunk = vec![0; CHUNK];
        while output.bytes.len() as u64 <= most {
            match stdout.read(&mut chunk) {
                Ok(0) => {
                    self.child.stdout = None;
                    output.ended = true;
                    break;
                }
                Ok(read) => {
                    let known = usize::try_from(self.skip).unwrap_or(usize::MAX).min(read);
                    self.skip -= known as u64;
                    output.bytes.extend_from_slice(&chunk[known..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        output
    }

    /// Of what it has said, what is to be answered where only whole lines are: what it has not said to the end waits.
    pub(crate) fn whole_lines(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let mut said = std::mem::take(&mut self.unfinished);
        said.extend(bytes);
        self.unfinished = said.split_off(whole(&said).unwrap_or(0));
        said
    }

    /// What it has said of a line that it has not ended.
    pub(crate) fn unfinished(&self) -> &[u8] {
        &self.unfinished
    }

    /// Logs what it complains of, in lines.
    pub(crate) fn take_complaints(&mut self, name: &str) {
        let Some(stderr) = &mut self.child.stderr else { return };
        let mut chunk = [0; 4096];
        loop {
            match stderr.read(&mut chunk) {
                Ok(0) => {
                    self.child.stderr = None;
                    break;
                }
                Ok(read) => {
                    for byte in &chunk[..read] {
                        if *byte == b'\n' {
                            self.complaints += 1;
                            log(name, self.complaints, &std::mem::take(&mut self.complaint));
                        } else if self.complaint.len() < LINE {
                            self.complaint.push(*byte);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }

    /// How it ended, if it has.
    pub(crate) fn take_end(&mut self) -> Option<ExitStatus> {
        self.child.take_status()
    }

    pub(crate) fn terminate(&self) {
        self.child.terminate();
    }

    pub(crate) fn kill(&self) {
        self.child.kill();
    }
}

/// The end of the last whole line, if there is one.
pub(crate) fn whole(bytes: &[u8]) -> Option<usize> {
    bytes.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1)
}

fn log(name: &str, line: usize, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    if line <= LINES {
        tracing::info!(helper = name, "{}", text.escape_debug());
    } else if line == LINES + 1 {
        tracing::info!(helper = name, "it says more than is logged");
    }
}

fn environment(name: &str, local: SocketAddr, remote: SocketAddr) -> Vec<(String, String)> {
    let named = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ("WHIMBREL_HELPER", name.to_owned()),
        ("WHIMBREL_LOCAL_ADDRESS", local.ip().to_string()),
        ("WHIMBREL_LOCAL_PORT", local.port().to_string()),
        ("WHIMBREL_REMOTE_ADDRESS", remote.ip().to_string()),
        ("WHIMBREL_REMOTE_PORT", remote.port().to_string()),
    ];
    named.map(|(name, value)| (name.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    use super::super::store::{Note, Progress};
    use super::*;
    use rustix::event::epoll::CreateFlags;
    use std::path::PathBuf;
    use std::time::{Duration, Instant};
    use whimbrel_kernel::child::Account;
    use whimbrel_wire::Transport;

    const START: Time = Time::from_micros(1);
    const STALL: Duration = Duration::from_secs(60);

    /// A program that runs, and what is kept for it, in a folder that is its own.
    struct Fixture {
        running: Running,
        store: Store,
        folder: PathBuf,
    }

    impl Fixture {
        fn new(name: &str, script: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("whimbrel-running-{name}-{}", std::process::id()));
            let [local, remote] = ["192.0.2.1:6667", "192.0.2.2:9"].map(|end| end.parse().expect("an endpoint"));
            let note = Note {
                local,
                remote,
                helper: name.into(),
                progress: Progress::Helping,
                base: 1,
                start: 1,
                before: 0,
                window_scale: 0,
                window: 1000,
                segment: 1000,
                flight: 0,
                delivered: 0,
            };
            let store = Store::create(&folder, &note).expect("stored");
            let program = Program {
                command: ["/bin/sh", "-c", script].map(str::to_owned).into(),
                account: Account { uid: 65534, gid: 65534 },
                keep: 1000,
                answer: 1000,
                lines: true,
                stall: STALL,
            };
            let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
            let flow = FlowTuple { transport: Transport::Tcp, local, remote };
            let running = Running::start(START, name, &program, &flow, 0, (&epoll, 1)).expect("started");
            Self { running, store, folder }
        }

        fn keep(&mut self, now: Time, bytes: &[u8]) {
            self.store.keep(bytes).expect("stored");
            self.running.hand(now, &self.store).expect("handed");
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    fn wait(mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(20), "this takes too long");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_line_that_nobody_reads_counts_as_unread() {
        let mut fixture = Fixture::new("hangs", "exec sleep 1000");
        fixture.keep(START, b"PING :x\r\n");
        let later = START + STALL;
        fixture.running.look(later);
        assert_eq!(fixture.running.waits_since(fixture.store.kept()), Some(START));
        // More of it changes nothing.
        fixture.keep(later, b"PING :y\r\n");
        assert_eq!(fixture.running.waits_since(fixture.store.kept()), Some(START));

        let mut fixture = Fixture::new("reads", "read one; read two; exec sleep 1000");
        fixture.keep(START, b"PING :x\r\n");
        wait(|| {
            fixture.running.look(later);
            fixture.running.waits_since(fixture.store.kept()).is_none()
        });
        // What comes later counts from then on.
        let last = later + STALL;
        fixture.keep(last, b"PING :y\r\n");
        wait(|| {
            fixture.running.look(last + STALL);
            fixture.running.waits_since(fixture.store.kept()).is_none()
        });
        fixture.keep(last + STALL, b"PING :z\r\n");
        fixture.running.look(last + 2 * STALL);
        assert_eq!(fixture.running.waits_since(fixture.store.kept()), Some(last + STALL));
    }

    #[test]
    fn what_is_no_whole_line_waits_for_its_rest() {
        let mut fixture = Fixture::new("lines", "exec sleep 1000");
        let running = &mut fixture.running;
        for (said, whole, unfinished) in [
            ("PONG :ir", "", "PONG :ir"),
            ("c\r\nPO", "PONG :irc\r\n", "PO"),
            ("", "", "PO"),
            ("NG\n\nP", "PONG\n\n", "P"),
        ] {
            assert_eq!(running.whole_lines(said.into()), whole.as_bytes());
            assert_eq!(running.unfinished(), unfinished.as_bytes());
        }
    }
}
