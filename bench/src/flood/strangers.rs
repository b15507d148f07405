//! Strangers with keys made on the spot, each with a session.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use whimbrel_handshake::{Contact, Finished, Initiator, Local, StaticKey};
use whimbrel_lab::{Host, Random};
use whimbrel_wire::message::Message;
use whimbrel_wire::{Datagram, Hello};

use crate::Result;

/// UDP port of the control protocol.
const CONTROL: u16 = 2031;
/// Handshakes that wait for an answer at the most; older ones are given up.
const WAITING: usize = 4096;
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST: usize = 2048;

/// Strangers that go on coming until this is dropped.
#[derive(Debug)]
pub(super) struct Strangers {
    over: Arc<AtomicBool>,
    begun: Arc<AtomicU64>,
    met: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Strangers {
    /// Has so many a second begin a handshake with the daemon at `target`, from `host`.
    pub(super) fn start(host: &Host, target: IpAddr, a_second: u32, random: Random) -> Result<Self> {
        let socket = host.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
        socket.set_nonblocking(true)?;
        let (over, begun, met) = (Arc::new(AtomicBool::new(false)), Arc::default(), Arc::default());
        let crowd = Crowd {
            socket,
            target: SocketAddr::new(target, CONTROL),
            random,
            next: 1,
            waiting: VecDeque::new(),
            begun: Arc::clone(&begun),
            met: Arc::clone(&met),
        };
        let stop = Arc::clone(&over);
        let thread = std::thread::Builder::new().name("strangers".into()).spawn(move || crowd.run(&stop, a_second))?;
        Ok(Self { over, begun, met, thread: Some(thread) })
    }

    /// Handshakes that were begun, and those that came to a session.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.begun.load(Ordering::Relaxed), self.met.load(Ordering::Relaxed))
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Crowd {
    socket: UdpSocket,
    target: SocketAddr,
    random: Random,
    next: u32,
    /// Oldest first, by their indices.
    waiting: VecDeque<(u32, Initiator)>,
    begun: Arc<AtomicU64>,
    met: Arc<AtomicU64>,
}

impl Crowd {
    fn run(mut self, over: &AtomicBool, a_second: u32) {
        let (began, mut done) = (Instant::now(), 0);
        let mut buffer = [0; LONGEST];
        while !over.load(Ordering::Relaxed) {
            let due = (began.elapsed().as_secs_f64() * f64::from(a_second)) as u64;
            while done < due && !over.load(Ordering::Relaxed) {
                done += 1;
                self.begin();
                self.receive(&mut buffer);
            }
            self.receive(&mut buffer);
            std::thread::sleep(PAUSE);
        }
    }

    /// Somebody whom nobody has met.
    fn begin(&mut self) {
        let random = &mut self.random;
        let mut fill = |out: &mut [u8]| out.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        let key = StaticKey::generate(&mut fill);
        let index = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        let hello = Hello { timestamp: 1_700_000_000_000 + u64::from(index), ..Hello::default() };
        let local = Local { key: &key, psk: None };
        let Ok((initiator, initiation)) = Initiator::start(Contact::First, local, index, hello, &mut fill) else {
            return;
        };
        // What the network does not take is lost, as elsewhere.
        let _ = self.socket.send_to(&initiation, self.target);
        self.begun.fetch_add(1, Ordering::Relaxed);
        if self.waiting.len() == WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back((index, initiator));
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        while let Ok((length, _)) = self.socket.recv_from(buffer) {
            match Datagram::parse(&buffer[..length]) {
                Ok(Datagram::Cookie(reply)) => {
                    let waiting = self.waiting.iter_mut().find(|(index, _)| *index == reply.receiver);
                    if let Some(again) = waiting.and_then(|(_, initiator)| initiator.handle_cookie(&reply).ok()) {
                        let _ = self.socket.send_to(&again, self.target);
                    }
                }
                Ok(Datagram::Response(response)) => {
                    let at = self.waiting.iter().position(|(index, _)| *index == response.receiver);
                    let Some((_, initiator)) = at.and_then(|at| self.waiting.remove(at)) else { continue };
                    let Ok(Finished { mut session, answer, .. }) = initiator.handle_response(&response, 0) else {
                        continue;
                    };
                    if let Some(finish) = answer {
                        let _ = self.socket.send_to(&finish, self.target);
                    }
                    // The other end knows by this that there is a session, and looks for introductions of it.
                    let mut plaintext = Vec::new();
                    Message::IntroductionRequest { tag: 1 }.encode(&mut plaintext);
                    if let Ok(said) = session.seal(&plaintext) {
                        let _ = self.socket.send_to(&said, self.target);
                    }
                    self.met.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }
}
