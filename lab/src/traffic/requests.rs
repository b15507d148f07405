//! Rates: requests on one connection, and connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use super::{Line, print};
use crate::{Error, Result};

/// Result of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchReport {
    /// Requests or connections that were completed.
    pub done: u64,
    /// In this time.
    pub seconds: f64,
    /// Median time of one, µs.
    pub median_us: f64,
    /// 99th percentile of the time of one, µs.
    pub p99_us: f64,
}

impl BenchReport {
    fn new(mut each: Vec<Duration>, total: Duration) -> Self {
        each.sort_unstable();
        let at = |q: f64| {
            let i = ((each.len() as f64 * q) as usize).min(each.len().saturating_sub(1));
            each.get(i).map_or(0.0, |d| d.as_secs_f64() * 1e6)
        };
        Self { done: each.len() as u64, seconds: total.as_secs_f64(), median_us: at(0.5), p99_us: at(0.99) }
    }

    /// Done a second.
    pub fn per_second(&self) -> f64 {
        self.done as f64 / self.seconds
    }
}

pub(super) fn requests(to: SocketAddr, duration: Duration) -> Result<()> {
    let on = |e| Error::call("request", to.to_string(), e);
    let stream = TcpStream::connect(to).map_err(on)?;
    stream.set_nodelay(true).map_err(on)?;
    measure(duration, || ask(&stream).map_err(on))
}

pub(super) fn connections(to: SocketAddr, duration: Duration) -> Result<()> {
    let on = |e| Error::call("connect", to.to_string(), e);
    measure(duration, || {
        let stream = TcpStream::connect(to).map_err(on)?;
        ask(&stream).map_err(on)?;
        // Aborted, not closed: TIME_WAIT would use up the ports within a second or two.
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).map_err(|e| on(e.into()))
    })
}

fn ask(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}

fn measure(duration: Duration, mut one: impl FnMut() -> Result<()>) -> Result<()> {
    let mut each = Vec::new();
    let start = Instant::now();
    let mut last = start;
    while last - start < duration {
        one()?;
        let now = Instant::now();
        each.push(now - last);
        last = now;
    }
    print(&Line::Bench(BenchReport::new(each, last - start)));
    Ok(())
}
