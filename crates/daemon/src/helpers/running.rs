//! A helper program while it runs (`docs/helpers.md`).

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;

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
    /// When it last took something.
    progress: Time,
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
    /// Starts it. It is handed everything from the beginning of the absence; as many bytes as were `answered` before are
    /// left out of what it says.
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
        Ok(Self { child, handed: 0, skip: answered, progress: now, complaint: Vec::new(), complaints: 0 })
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
        while self.handed < store.kept() {
            let Some(stdin) = &mut self.child.stdin else { return Ok(()) };
            let bytes = store.read_kept(self.handed, CHUNK)?;
            match stdin.write(&bytes) {
                Ok(written) => {
                    self.handed += written as u64;
                    self.progress = now;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It does not want to hear any more. Whether it has ended is seen elsewhere.
                Err(_) => self.child.stdin = None,
            }
        }
        // What it has read in time does not count against what comes later.
        self.progress = now;
        Ok(())
    }

    /// Since when it has not taken what there is for it.
    pub(crate) fn waits_since(&self, kept: u64) -> Option<Time> {
        (self.child.stdin.is_some() && self.handed < kept).then_some(self.progress)
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

    /// How it ended, in words, if it has.
    pub(crate) fn take_end(&mut self) -> Option<String> {
        let status = self.child.take_status()?;
        Some(status.to_string())
    }

    pub(crate) fn terminate(&self) {
        self.child.terminate();
    }

    pub(crate) fn kill(&self) {
        self.child.kill();
    }
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
