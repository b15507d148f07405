//! Datagrams in a stream: each behind its length, in two bytes (P-252).

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::time::{Duration, Instant};

/// The longest datagram that UDP carries over IPv4, in bytes.
pub(super) const LONGEST: usize = 65_507;
/// Bytes of a length.
const HEADER: usize = 2;

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
    /// Reads once, as much as fits the buffer. Tells whether the stream goes on.
    pub(super) fn read(&mut self, stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        let read = stream.read(buffer)?;
        self.bytes.extend_from_slice(&buffer[..read]);
        Ok(read > 0)
    }

    /// Whether there is something for [`Reader::next`] to tell.
    pub(super) fn has_next(&self) -> bool {
        let rest = &self.bytes[self.taken..];
        let header = rest.first_chunk::<HEADER>().map(|header| usize::from(u16::from_be_bytes(*header)));
        header.is_some_and(|length| length == 0 || length > LONGEST || rest.len() >= HEADER + length)
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

/// Datagrams that wait for a stream to take them: so many bytes at the most, and so long. What comes beyond is dropped,
/// and what has waited longer.
#[derive(Debug)]
pub(super) struct Writer {
    waiting: VecDeque<u8>,
    /// How long each of these is, and since when it waits.
    frames: VecDeque<(usize, Instant)>,
    /// How much of the first has gone.
    gone: usize,
    most: usize,
    longest: Duration,
}

impl Writer {
    pub(super) fn new(most: usize, longest: Duration) -> Self {
        Self { waiting: VecDeque::new(), frames: VecDeque::new(), gone: 0, most, longest }
    }

    /// Tells whether there was room.
    pub(super) fn push(&mut self, datagram: &[u8], now: Instant) -> bool {
        let Ok(length) = u16::try_from(datagram.len()) else { return false };
        self.drop_late(now);
        let fits = length > 0 && self.waiting.len() + HEADER + datagram.len() <= self.most;
        if fits {
            self.waiting.extend(length.to_be_bytes());
            self.waiting.extend(datagram);
            self.frames.push_back((HEADER + datagram.len(), now));
        }
        fits
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes what the stream takes.
    pub(super) fn write(&mut self, stream: &mut impl Write, now: Instant) -> io::Result<()> {
        self.drop_late(now);
        while !self.waiting.is_empty() {
            let (first, second) = self.waiting.as_slices();
            match stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.on_written(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn on_written(&mut self, written: usize) {
        self.waiting.drain(..written);
        self.gone += written;
        while let Some((length, _)) = self.frames.front().filter(|(length, _)| *length <= self.gone) {
            self.gone -= length;
            self.frames.pop_front();
        }
    }

    /// Drops what has waited too long, but for what has gone in part: the rest of that must follow.
    fn drop_late(&mut self, now: Instant) {
        let begun = usize::from(self.gone > 0);
        let is_late = |(_, since): &&(usize, Instant)| now.saturating_duration_since(*since) > self.longest;
        let late = self.frames.iter().skip(begun).take_while(is_late).count();
        if late > 0 {
            let start = self.frames.front().filter(|_| begun > 0).map_or(0, |(length, _)| length - self.gone);
            let dropped: usize = self.frames.drain(begun..begun + late).map(|(length, _)| length).sum();
            self.waiting.drain(start..start + dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

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
            let (mut writer, now) = (Writer::new(1 << 20, LONG), Instant::now());
            for datagram in &datagrams {
                prop_assert!(writer.push(datagram, now));
                writer.write(&mut stream, now).expect("writing");
            }
            while !writer.is_empty() {
                writer.write(&mut stream, now).expect("writing");
            }
            let (mut reader, mut got, mut buffer) = (Reader::default(), Vec::new(), vec![0; 1000]);
            while reader.read(&mut stream, &mut buffer).expect("reading") {
                while let Some(datagram) = reader.next().expect("framed") {
                    got.push(datagram.to_vec());
                }
            }
            prop_assert_eq!(got, datagrams);
        }

        #[test]
        fn whatever_comes_is_taken_apart_or_refused(bytes in vec(any::<u8>(), 0..3000), width in 1..500_usize) {
            let mut stream = Narrow { bytes: bytes.clone().into(), widths: vec![width], turn: 0 };
            let (mut reader, mut taken, mut buffer) = (Reader::default(), 0, vec![0; 1000]);
            'all: while reader.read(&mut stream, &mut buffer).expect("reading") {
                loop {
                    let has_next = reader.has_next();
                    let next = reader.next();
                    prop_assert_eq!(has_next, next != Ok(None));
                    match next {
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
            reader.read(&mut bytes.as_slice(), &mut [0; 100]).expect("reading");
            assert_eq!(reader.next().map(|datagram| datagram.map(<[u8]>::to_vec)), expected, "{bytes:?}");
        }
        let (mut writer, now) = (Writer::new(1 << 20, LONG), Instant::now());
        assert!(!writer.push(&[], now) && !writer.push(&vec![0; 1 << 16], now));
        let mut full = Writer::new(10, LONG);
        assert!(full.push(&[1; 8], now) && !full.push(&[2], now), "what comes beyond is dropped");
    }

    #[test]
    fn what_has_waited_too_long_is_dropped_whole() {
        let (now, longest) = (Instant::now(), Duration::from_millis(500));
        let mut writer = Writer::new(1 << 20, longest);
        let mut stream = Narrow { bytes: VecDeque::new(), widths: vec![0, 5], turn: 0 };
        assert!(writer.push(&[1; 8], now) && writer.push(&[2; 8], now));
        // Five bytes of the first are gone.
        writer.write(&mut stream, now).expect("writing");
        assert!(writer.push(&[3; 8], now + longest));
        writer.write(&mut stream, now + longest * 2).expect("writing");
        stream.widths = vec![100];
        writer.write(&mut stream, now + longest * 2).expect("writing");
        assert!(writer.is_empty());
        let expected = [[[0, 8].as_slice(), &[1; 8]].concat(), [[0, 8].as_slice(), &[3; 8]].concat()].concat();
        assert_eq!(stream.bytes, expected, "the second alone is left out");
    }
}
