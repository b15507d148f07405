//! One stream, as fast as it goes, and when what came of it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use whimbrel_lab::MonoTime;

use crate::Result;

const SECOND: Duration = Duration::from_secs(1);
const CHUNK: usize = 64 << 10;

/// Sends as fast as it goes.
pub(crate) struct Sender {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<TcpStream>,
}

impl Sender {
    pub(crate) fn begin(mut stream: TcpStream) -> Result<Self> {
        // So that it stops where it is told to, and not in the kernel.
        stream.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            let bytes = vec![0; CHUNK];
            while !told.load(Ordering::Relaxed) {
                match stream.write(&bytes) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
                    Err(_) => break,
                }
            }
            stream
        });
        Ok(Self { stop, thread })
    }

    pub(crate) fn end(self) -> Result<TcpStream> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "a sender has failed".into())
    }
}

/// The far end, and when what came.
pub(crate) struct Heard(std::sync::mpsc::Receiver<(MonoTime, u64)>);

impl Heard {
    pub(crate) fn begin(mut stream: TcpStream) -> Self {
        let (tell, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = vec![0; CHUNK];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                if tell.send((MonoTime::now(), length as u64)).is_err() {
                    break;
                }
            }
        });
        Self(heard)
    }

    pub(crate) fn wait(&self, bytes: u64) -> Result<()> {
        let mut came = 0;
        while came < bytes {
            came += self.0.recv_timeout(SECOND * 20)?.1;
        }
        Ok(())
    }

    /// How much comes within that time.
    pub(crate) fn in_time(&self, from: MonoTime, span: Duration) -> Result<u64> {
        Ok(self.in_times(from, &[span])?[0])
    }

    /// How much comes within each of these times.
    pub(crate) fn in_times(&self, from: MonoTime, spans: &[Duration]) -> Result<Vec<u64>> {
        let longest = spans.iter().copied().max().unwrap_or_default();
        let came = self.arrivals(from, longest)?;
        Ok(spans.iter().map(|span| within(&came, from, *span)).collect())
    }

    /// What comes from then on for so long, and when. What came before is forgotten.
    pub(crate) fn arrivals(&self, from: MonoTime, span: Duration) -> Result<Vec<(MonoTime, u64)>> {
        let (mut came, end) = (Vec::new(), from + span);
        loop {
            let left = end.since(MonoTime::now());
            match self.0.recv_timeout(left.max(Duration::from_millis(1))) {
                Ok((time, _)) if time >= end => return Ok(came),
                Ok((time, more)) if time >= from => came.push((time, more)),
                // It was on its way before.
                Ok(_) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) if MonoTime::now() >= end => return Ok(came),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// How much of it came in that time.
pub(crate) fn within(came: &[(MonoTime, u64)], from: MonoTime, span: Duration) -> u64 {
    let counts = came.iter().filter(|(time, _)| (from..from + span).contains(time));
    counts.map(|(_, bytes)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_in_time_counts() {
        let (tell, heard) = std::sync::mpsc::channel();
        let from = MonoTime::now();
        for (after, bytes) in [(1, 5), (900, 7), (1_000, 100)] {
            tell.send((from + Duration::from_millis(after), bytes)).expect("somebody listens");
        }
        let spans = [SECOND, Duration::from_millis(500)];
        assert_eq!(Heard(heard).in_times(from, &spans).expect("it is known"), [12, 5]);
    }
}
