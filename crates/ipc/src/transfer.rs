//! Lines with descriptors (`unix(7)`, SCM_RIGHTS).
//!
//! A line's descriptors are sent with its first byte, by a call of its own that carries nothing of the line before. The
//! kernel gives them to whoever reads that byte, and reads no further than to the end of what was sent in that call. So
//! they belong to the line that the last byte of such a read is part of.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Descriptors of a line. What comes beyond that is closed.
pub const MAX_DESCRIPTORS: usize = 8;

/// Descriptors that come at once at the most (SCM_MAX_FD, include/net/scm.h). There is room for all, since the kernel
/// closes on the reader's thread what it finds no room for, and closing may take a while.
const MOST_AT_ONCE: usize = 253;

/// Descriptors that wait for the ends of their lines. Who sends more without ending a line loses them.
const MAX_WAITING: usize = 4 * MAX_DESCRIPTORS;

/// Bytes that are read at a time.
const CHUNK: usize = 16 * 1024;

/// Sends the beginning of a line, with its descriptors, or more of it, without; gives how many bytes were taken. If any
/// were, so were the descriptors. No signal is raised where the other end is gone.
///
/// # Errors
/// Those of sendmsg(2); nothing was sent then.
pub fn send_line(stream: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // There may be a little more room than was asked for.
    let few = descriptors.len() <= MAX_DESCRIPTORS;
    let pushed = descriptors.is_empty() || few && control.push(SendAncillaryMessage::ScmRights(descriptors));
    if !pushed {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for a line"));
    }
    loop {
        match sendmsg(&stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// A line as it came. `D` holds a descriptor.
#[derive(Debug)]
pub struct ReceivedLine<D = OwnedFd> {
    /// Without its end.
    pub text: String,
    /// What came with it. Closed when dropped; not inherited by programs that are executed.
    pub descriptors: Vec<D>,
    /// Whether there were more descriptors than a line may have.
    pub truncated: bool,
}

/// What was read of a stream and is not a whole line yet, or was not asked for. `D` holds a descriptor, and closes it
/// when dropped.
#[derive(Debug)]
pub struct Lines<D = OwnedFd> {
    bytes: Vec<u8>,
    /// Bytes that have no line's end among them.
    scanned: usize,
    /// Where the first line ends, if it does.
    end: Option<usize>,
    /// Each with the place of the last byte that was read with it.
    descriptors: VecDeque<(usize, D)>,
    /// Places of such bytes whose descriptors were too many.
    truncated: VecDeque<usize>,
}

impl<D> Default for Lines<D> {
    fn default() -> Self {
        let (descriptors, truncated) = (VecDeque::new(), VecDeque::new());
        Self { bytes: Vec::new(), scanned: 0, end: None, descriptors, truncated }
    }
}

impl Lines {
    /// Reads once; gives how many bytes were read, 0 at the end of the stream.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn read(&mut self, stream: impl AsFd) -> io::Result<usize> {
        self.read_with(stream, |descriptor| descriptor)
    }
}

impl<D> Lines<D> {
    /// As [`Lines::read`]; `hold` takes each descriptor that comes, also those that are too many.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn read_with(&mut self, stream: impl AsFd, mut hold: impl FnMut(OwnedFd) -> D) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_AT_ONCE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let before = self.bytes.len();
        self.bytes.resize(before + CHUNK, 0);
        let received = loop {
            let mut room = [IoSliceMut::new(&mut self.bytes[before..])];
            match recvmsg(&stream, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result,
            }
        };
        let count = received.as_ref().map_or(0, |received| received.bytes);
        self.bytes.truncate(before + count);
        let received = received?;
        let last = (before + count).saturating_sub(1);
        let mut lost = received.flags.contains(ReturnFlags::CTRUNC);
        for message in control.drain() {
            let RecvAncillaryMessage::ScmRights(descriptors) = message else { continue };
            for descriptor in descriptors.map(&mut hold) {
                if self.descriptors.len() < MAX_WAITING {
                    self.descriptors.push_back((last, descriptor));
                } else {
                    lost = true;
                }
            }
        }
        if lost && self.truncated.back() != Some(&last) {
            self.truncated.push_back(last);
        }
        self.scan();
        Ok(count)
    }

    /// Looks for the end of the first line.
    fn scan(&mut self) {
        if self.end.is_none() {
            let end = self.bytes[self.scanned..].iter().position(|byte| *byte == b'\n');
            self.end = end.map(|end| self.scanned + end);
            self.scanned = self.bytes.len();
        }
    }

    /// The next whole line.
    pub fn take(&mut self) -> Option<ReceivedLine<D>> {
        let end = self.end.take()?;
        let text = String::from_utf8_lossy(&self.bytes[..end]).into_owned();
        self.bytes.drain(..=end);
        self.scanned = 0;
        self.scan();
        let mut descriptors = Vec::new();
        while self.descriptors.front().is_some_and(|(place, _)| *place <= end) {
            descriptors.extend(self.descriptors.pop_front().map(|(_, descriptor)| descriptor));
        }
        self.descriptors.iter_mut().for_each(|(place, _)| *place -= end + 1);
        let mut truncated = descriptors.len() > MAX_DESCRIPTORS;
        descriptors.truncate(MAX_DESCRIPTORS);
        while self.truncated.front().is_some_and(|place| *place <= end) {
            self.truncated.pop_front();
            truncated = true;
        }
        self.truncated.iter_mut().for_each(|place| *place -= end + 1);
        Some(ReceivedLine { text, descriptors, truncated })
    }

    /// Whether [`take`](Self::take) would give a line.
    #[must_use]
    pub fn has_line(&self) -> bool {
        self.end.is_some()
    }

    /// Whether descriptors have come with what was not taken yet.
    #[must_use]
    pub fn has_descriptors(&self) -> bool {
        !self.descriptors.is_empty()
    }

    /// Bytes that were read and not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether all that was read was taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets what was read, and closes what came with it.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn file(content: &str) -> OwnedFd {
        let (mut write, read) = UnixStream::pair().expect("pair");
        write.write_all(content.as_bytes()).expect("write");
        read.into()
    }

    fn send(stream: &UnixStream, text: &str, descriptors: &[OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        assert_eq!(send_line(stream, text.as_bytes(), &descriptors).expect("sent"), text.len());
    }

    fn contents(line: ReceivedLine) -> Vec<String> {
        let read = |descriptor: OwnedFd| {
            let mut text = String::new();
            File::from(descriptor).read_to_string(&mut text).expect("read");
            text
        };
        line.descriptors.into_iter().map(read).collect()
    }

    fn read_all(stream: UnixStream) -> Vec<(String, Vec<String>)> {
        let mut lines = Lines::default();
        let mut taken = Vec::new();
        while lines.read(&stream).expect("read") > 0 {
            while let Some(line) = lines.take() {
                assert!(!line.truncated);
                taken.push((line.text.clone(), contents(line)));
            }
        }
        assert!(lines.is_empty());
        taken
    }

    #[test]
    fn descriptors_belong_to_the_line_that_they_were_sent_with() {
        let (here, there) = UnixStream::pair().expect("pair");
        send(&here, "one\ntw", &[]);
        send(&here, "o\n", &[]);
        send(&here, "three\n", &[file("a"), file("b")]);
        send(&here, "four\n", &[]);
        send(&here, "fi", &[file("c")]);
        send(&here, "ve\nsix\n", &[]);
        send(&here, "seven\n", &[file("d")]);
        drop(here);
        let expected = [
            ("one", vec![]),
            ("two", vec![]),
            ("three", vec!["a", "b"]),
            ("four", vec![]),
            ("five", vec!["c"]),
            ("six", vec![]),
            ("seven", vec!["d"]),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(text, with)| (text.to_owned(), with.into_iter().map(str::to_owned).collect::<Vec<_>>()))
            .collect();
        assert_eq!(read_all(there), expected);
    }

    #[test]
    fn a_long_line_keeps_its_descriptor() {
        let (here, there) = UnixStream::pair().expect("pair");
        let text = "x".repeat(1 << 20);
        let line = format!("{text}\n");
        let sender = std::thread::spawn(move || {
            let with = file("a");
            let mut sent = send_line(&here, line.as_bytes(), &[with.as_fd()]).expect("sent");
            while sent < line.len() {
                sent += send_line(&here, &line.as_bytes()[sent..], &[]).expect("sent");
            }
        });
        assert_eq!(read_all(there), [(text, vec!["a".to_owned()])]);
        sender.join().expect("sender");
    }

    #[test]
    fn more_than_a_line_may_have_are_told_and_closed() {
        let (here, there) = UnixStream::pair().expect("pair");
        let many: Vec<OwnedFd> = (0..=MAX_DESCRIPTORS).map(|_| file("x")).collect();
        let borrowed: Vec<_> = many.iter().map(AsFd::as_fd).collect();
        assert!(send_line(&here, b"a\n", &borrowed).is_err(), "the sender is told");
        // Somebody else's client, which does not care.
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        sendmsg(&here, &[IoSlice::new(b"a\n")], &mut control, SendFlags::empty()).expect("sent");
        let mut lines = Lines::default();
        lines.read(&there).expect("read");
        let line = lines.take().expect("a line");
        assert!(line.truncated);
        assert!(line.descriptors.len() <= MAX_DESCRIPTORS);
    }

    #[test]
    fn who_never_ends_a_line_cannot_have_descriptors_kept_without_bound() {
        let (here, there) = UnixStream::pair().expect("pair");
        let mut lines = Lines::default();
        for _ in 0..100 {
            send(&here, "x", &[file("x")]);
            lines.read(&there).expect("read");
        }
        assert_eq!(lines.descriptors.len(), MAX_WAITING);
        send(&here, "\n", &[]);
        lines.read(&there).expect("read");
        assert!(lines.take().expect("a line").truncated);
        assert!(lines.descriptors.is_empty());
    }
}
