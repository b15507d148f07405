//! Datagrams in a stream: each behind its length, in two bytes (P-252).

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};

/// The longest datagram that UDP carries over IPv4, in bytes.
pub(super) const LONGEST: usize = 65_507;
/// Bytes of a length.
const HEADER: usize = 2;
/// What is read at a time.
const READ: usize = 65_536;

/// Takes datagrams out of a stream.
#[derive(Debug, Default)]
pub(super) struct Reader {
    bytes: Vec<u8>,
    /// What was taken out already.
    taken: usize,
}

/// What a stream brought is not framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotFramed;

impl Reader {
    /// Reads once. Tells whether the stream goes on.
    pub(super) fn read(&mut self, stream: &mut impl Read) -> io::Result<bool> {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        let before = self.bytes.len();
        self.bytes.resize(before + READ, 0);
        let read = stream.read(&mut self.bytes[before..]);
        self.bytes.truncate(before + *read.as_ref().unwrap_or(&0));
        Ok(read? > 0)
    }

    /// The next whole datagram, if it is there.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, NotFramed> {
        let rest = &self.bytes[self.taken..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes(*header));
        if length == 0 || length > LONGEST {
            return Err(NotFramed);
        }
        let Some(datagram) = rest.get(..length) else { return Ok(None) };
        self.taken += HEADER + length;
        Ok(Some(datagram))
    }
}

/// Datagrams that wait for a stream to take them: so many bytes at the most, and what comes beyond is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    waiting: VecDeque<u8>,
    most: usize,
}

impl Writer {
    pub(super) fn new(most: usize) -> Self {
        Self { waiting: VecDeque::new(), most }
    }

    /// Tells whether there was room.
    pub(super) fn push(&mut self, datagram: &[u8]) -> bool {
        let Ok(length) = u16::try_from(datagram.len()) else { return false };
        let fits = length > 0 && self.waiting.len() + HEADER + datagram.len() <= self.most;
        if fits {
            self.waiting.extend(length.to_be_bytes());
            self.waiting.extend(datagram);
        }
        fits
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes what the stream takes.
    pub(super) fn write(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while !self.waiting.is_empty() {
            let (first, second) = self.waiting.as_slices();
            match stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.waiting.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A stream that takes and gives so many bytes at a time.
    struct Narrow {
        bytes: VecDeque<u8>,
        widths: Vec<usize>,
        turn: usize,
    }

    impl Narrow {
        fn width(&mut self) -> usize {
            self.turn += 1;
            self.widths[self.turn % self.widths.len()]
        }
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let width = self.width().min(bytes.len());
            if width == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.bytes.extend(&bytes[..width]);
            Ok(width)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Narrow {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let width = self.width().max(1).min(bytes.len()).min(self.bytes.len());
            let given: Vec<u8> = self.bytes.drain(..width).collect();
            bytes[..width].copy_from_slice(&given);
            Ok(width)
        }
    }

    proptest! {
        #[test]
        fn datagrams_come_out_as_they_went_in(
            datagrams in vec(vec(any::<u8>(), 1..300), 0..30),
            mut widths in vec(0..400_usize, 1..10),
        ) {
            widths.push(7);
            let mut stream = Narrow { bytes: VecDeque::new(), widths, turn: 0 };
            let mut writer = Writer::new(1 << 20);
            for datagram in &datagrams {
                prop_assert!(writer.push(datagram));
                writer.write(&mut stream).expect("writing");
            }
            while !writer.is_empty() {
                writer.write(&mut stream).expect("writing");
            }
            let (mut reader, mut got) = (Reader::default(), Vec::new());
            while reader.read(&mut stream).expect("reading") {
                while let Some(datagram) = reader.next().expect("framed") {
                    got.push(datagram.to_vec());
                }
            }
            prop_assert_eq!(got, datagrams);
        }

        #[test]
        fn whatever_comes_is_taken_apart_or_refused(bytes in vec(any::<u8>(), 0..3000), width in 1..500_usize) {
            let mut stream = Narrow { bytes: bytes.clone().into(), widths: vec![width], turn: 0 };
            let (mut reader, mut taken) = (Reader::default(), 0);
            'all: while reader.read(&mut stream).expect("reading") {
                loop {
                    match reader.next() {
                        Ok(Some(datagram)) => taken += HEADER + datagram.len(),
                        Ok(None) => break,
                        Err(NotFramed) => break 'all,
                    }
                }
            }
            prop_assert!(taken <= bytes.len());
        }
    }

    #[test]
    fn nothing_and_too_much_is_no_datagram() {
        for (bytes, expected) in [
            (vec![0, 0, 1], Err(NotFramed)),
            (vec![0xff, 0xff], Err(NotFramed)),
            (vec![0, 3, 1, 2], Ok(None)),
            (vec![0], Ok(None)),
            (vec![0, 2, 1, 2, 9], Ok(Some(vec![1, 2]))),
        ] {
            let mut reader = Reader::default();
            reader.read(&mut bytes.as_slice()).expect("reading");
            assert_eq!(reader.next().map(|datagram| datagram.map(<[u8]>::to_vec)), expected, "{bytes:?}");
        }
        assert!(!Writer::new(1 << 20).push(&[]) && !Writer::new(1 << 20).push(&vec![0; 1 << 16]));
        let mut full = Writer::new(10);
        assert!(full.push(&[1; 8]) && !full.push(&[2]), "what comes beyond is dropped");
    }
}
