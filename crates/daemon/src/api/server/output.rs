//! What clients are told and have not read yet.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use whimbrel_ipc::send_line;

use crate::closing::Received;

/// Lines that were not written yet.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// What goes with lines: each with the place of its line's first byte, and of its end.
    descriptors: VecDeque<(usize, usize, Vec<Received>)>,
}

impl Output {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn push(&mut self, line: &str, descriptors: Vec<Received>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(line.as_bytes());
        if !descriptors.is_empty() {
            self.descriptors.push_back((start, self.bytes.len(), descriptors));
        }
    }

    /// Writes what the client takes.
    pub(crate) fn write(&mut self, stream: &UnixStream) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            if written == self.bytes.len() {
                break Ok(());
            }
            // A line with descriptors goes by itself, as its reader expects.
            let sent = match self.descriptors.front() {
                Some((start, end, with)) if *start == written => {
                    let with: Vec<_> = with.iter().map(AsFd::as_fd).collect();
                    send_line(stream, &self.bytes[written..*end], &with)
                }
                Some((start, ..)) => send_line(stream, &self.bytes[written..*start], &[]),
                None => send_line(stream, &self.bytes[written..], &[]),
            };
            match sent {
                Ok(count) => {
                    if count > 0 && self.descriptors.front().is_some_and(|(start, ..)| *start == written) {
                        self.descriptors.pop_front();
                    }
                    written += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.bytes.drain(..written);
        for (start, end, _) in &mut self.descriptors {
            *start -= written;
            *end -= written;
        }
        result
    }
}
