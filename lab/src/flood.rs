//! Somebody who sends more than a daemon can look at: introductions for a session whose index it has seen, and
//! datagrams to the control port that nobody has asked for. It needs no key, and no address but its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Error, Frame, Host, Link, Random, Result};

/// UDP port of the control protocol, and one that nobody listens at.
const CONTROL: u16 = 2031;
const DISCARD: u16 = 9;
/// Option of introductions: kind, length, ExID (docs/protocol.md §4).
const OPTION: [u8; 4] = [253, 16, 0x57, 0x42];
/// What introductions in datagrams begin with (docs/protocol.md §4).
const PREFIX: &[u8] = b"\xffWBintro";
/// Kinds of control datagrams (docs/protocol.md §1).
const KINDS: [u8; 5] = [0x01, 0x02, 0x03, 0x04, 0x10];
/// As long as the longest initiations.
const CONTROL_BYTES: usize = 1200;
/// Between two bursts.
const PAUSE: Duration = Duration::from_millis(2);
/// No index has been seen.
const NONE: u64 = u64::MAX;

/// The session index that introductions on a link bear which go to one host.
#[derive(Clone, Debug)]
pub struct SeenIndex(Arc<AtomicU64>);

impl SeenIndex {
    /// Watches `link` for those that go to `to`.
    pub fn watch(link: &Link, to: IpAddr) -> Self {
        let seen = Arc::new(AtomicU64::new(NONE));
        let this = Self(Arc::clone(&seen));
        link.observe(move |_, frame: &Frame<'_>| {
            let Some(packet) = frame.ip().filter(|packet| packet.destination == to) else { return };
            let Some(tcp) = packet.tcp() else { return };
            let Some(at) = tcp.options.windows(OPTION.len()).position(|window| window == OPTION) else { return };
            let index = tcp.options.get(at + OPTION.len()..at + OPTION.len() + 4);
            if let Some(index) = index.and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()) {
                seen.store(u32::from_be_bytes(index).into(), Ordering::Relaxed);
            }
        });
        this
    }

    /// The last one, if there was any.
    pub fn get(&self) -> Option<u32> {
        u32::try_from(self.0.load(Ordering::Relaxed)).ok()
    }
}

/// What is sent, a second.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Introductions for the index that was seen last.
    pub introductions: u32,
    /// Control datagrams of all kinds, with random contents.
    pub control: u32,
}

/// A flood that goes on until it is dropped.
#[derive(Debug)]
pub struct Flood {
    over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Has `host` send to `target`.
    ///
    /// # Errors
    /// When the host cannot have a socket.
    pub fn start(host: &Host, target: IpAddr, index: SeenIndex, rates: Rates, mut random: Random) -> Result<Self> {
        let open = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        let socket = host.enter(open)?.map_err(|e| Error::call("bind", format!("UDP on {}", host.name()), e))?;
        let (over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop, count) = (Arc::clone(&over), Arc::clone(&sent));
        let run = move || {
            let (began, mut done) = (Instant::now(), [0u64; 2]);
            let mut control: Vec<u8> = (0..CONTROL_BYTES).map(|_| random.below(256) as u8).collect();
            while !stop.load(Ordering::Relaxed) {
                let elapsed = began.elapsed().as_secs_f64();
                let due = [rates.introductions, rates.control].map(|rate| (elapsed * f64::from(rate)) as u64);
                while done[0] < due[0] && !stop.load(Ordering::Relaxed) {
                    done[0] += 1;
                    let Some(index) = index.get() else { continue };
                    // The top bits tell an introducer's nonce.
                    let nonce = random.next_u64() >> 2;
                    let bytes = [PREFIX, &index.to_be_bytes(), &nonce.to_be_bytes()].concat();
                    // Whatever the network does not take is not sent.
                    let sent = socket.send_to(&bytes, SocketAddr::new(target, DISCARD));
                    count.fetch_add(u64::from(sent.is_ok()), Ordering::Relaxed);
                }
                while done[1] < due[1] && !stop.load(Ordering::Relaxed) {
                    done[1] += 1;
                    control[0] = KINDS[done[1] as usize % KINDS.len()];
                    control[4..12].copy_from_slice(&random.next_u64().to_be_bytes());
                    let sent = socket.send_to(&control, SocketAddr::new(target, CONTROL));
                    count.fetch_add(u64::from(sent.is_ok()), Ordering::Relaxed);
                }
                std::thread::sleep(PAUSE);
            }
        };
        let thread = std::thread::Builder::new().name("flood".into()).spawn(run);
        let thread = thread.map_err(|e| Error::call("clone", "a thread", e))?;
        Ok(Self { over, sent, thread: Some(thread) })
    }

    /// Datagrams that were sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
