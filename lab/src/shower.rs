//! An attacker for scenarios: it hears the control packets of others and sends copies, mutilated ones and inventions.
//!
//! What it sends carries a DSCP of its own, so that it does not take its own packets for those of others. IPv4 only.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use whimbrel_wire::packet::write::body_checksum;
use whimbrel_wire::packet::{Ip, TCP_CHECKSUM};

use crate::{Direction, Error, Frame, Host, Link, Packet, Random, Result, wait_until};

/// UDP port of the control protocol.
const PORT: u16 = 2031;
/// DSCP CS1 (RFC 2474), as it stands in the second byte of the IPv4 header.
const MARK: u8 = 0x20;
/// Packets of one kind that are remembered; older ones make room.
const HEARD: usize = 256;
/// Packets that are sent at once, and the pause after them: about 4,000 a second.
const BURST: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);
/// Largest payload that is invented: it fits in one frame.
const LARGEST: usize = 1400;
/// Kinds of datagrams (docs/protocol.md §1), and some that there are not.
const KINDS: [u8; 10] = [0x01, 0x02, 0x03, 0x04, 0x10, 0x20, 0x21, 0x00, 0x7f, 0xff];
/// Where a datagram's receiver index is, by its kind; the sender's in an initiation.
const INDEX: std::ops::Range<usize> = 4..8;
/// Option of introductions and carrier probes: kind, length, ExID (docs/protocol.md §4).
const OPTION: [u8; 4] = [253, 16, 0x57, 0x42];

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A packet as it was heard: what follows the IPv4 header, or for UDP what follows the UDP header.
#[derive(Clone, Debug)]
struct Heard {
    from: SocketAddrV4,
    to: SocketAddrV4,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Handshakes, control.
    control: VecDeque<Heard>,
    /// Tunnel.
    tunnel: VecDeque<Heard>,
    /// TCP segments with the option of introductions.
    segments: VecDeque<Heard>,
}

impl Memory {
    fn hear(&mut self, packet: &Packet<'_>) {
        let Some((SocketAddr::V4(from), SocketAddr::V4(to))) = packet.endpoints() else { return };
        let (queue, bytes) = if let Some(segment) = packet.tcp() {
            if !segment.options.windows(OPTION.len()).any(|w| w == OPTION) {
                return;
            }
            (&mut self.segments, packet.payload)
        } else {
            let Some(datagram) = packet.udp().filter(|_| from.port() == PORT || to.port() == PORT) else { return };
            (
                if datagram.first().is_some_and(|kind| *kind < 0x20) { &mut self.control } else { &mut self.tunnel },
                datagram,
            )
        };
        if queue.len() == HEARD {
            // The first ones, the handshakes, stay.
            queue.remove(HEARD / 2);
        }
        queue.push_back(Heard { from, to, bytes: bytes.to_vec() });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// True for what an attacker of this module has sent itself.
fn is_own(frame: &Frame<'_>) -> bool {
    frame.bytes().get(15) == Some(&MARK)
}

/// Opens a socket that sends whole IPv4 packets, from any source address (raw(7), IP_HDRINCL).
fn raw_socket(host: &Host) -> Result<UdpSocket> {
    let open = || {
        let protocol = Protocol::from_raw(std::num::NonZeroU32::new(255).unwrap_or(std::num::NonZeroU32::MIN));
        socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))
    };
    let socket: OwnedFd =
        host.enter(open)?.map_err(|e| Error::call("socket", format!("SOCK_RAW on {}", host.name()), e))?;
    Ok(UdpSocket::from(socket))
}

/// Headers that [`is_own`] knows; the kernel fills in the identification.
fn ip(from: Ipv4Addr, to: Ipv4Addr) -> Ip<'static> {
    Ip { class: MARK, ..Ip::new(from.into(), to.into()) }
}

/// A UDP datagram. What is too long for one is none.
fn udp(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    ip(*from.ip(), *to.ip()).udp(from.port(), to.port(), payload).unwrap_or_default()
}

/// Sets the checksum of a TCP segment (RFC 9293).
fn checksum(from: Ipv4Addr, to: Ipv4Addr, segment: &mut [u8]) {
    segment[TCP_CHECKSUM..TCP_CHECKSUM + 2].fill(0);
    let checksum = body_checksum(from.into(), to.into(), TCP, segment);
    segment[TCP_CHECKSUM..TCP_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Hears what is said and repeats it, whole and in pieces, and makes up the rest.
#[derive(Debug)]
pub(crate) struct Shower {
    memory: Arc<Mutex<Memory>>,
    random: Random,
}

impl Shower {
    pub(crate) fn new(random: Random) -> Self {
        Self { memory: Arc::default(), random }
    }

    /// Hears what enters this link.
    pub(crate) fn listen(&self, link: &Link) {
        let memory = self.memory.clone();
        link.observe(move |_, frame| {
            if let Some(packet) = frame.ip().filter(|_| !is_own(frame)) {
                lock(&memory).hear(&packet);
            }
        });
    }

    /// Sends from these hosts in turn, with the sources of what was heard and with `places` as sources, to the
    /// destinations of what was heard and to `targets`.
    pub(crate) fn start(self, hosts: &[&Host], places: Vec<Ipv4Addr>, targets: Vec<SocketAddrV4>) -> Result<Rain> {
        let sockets = hosts.iter().map(|host| raw_socket(host)).collect::<Result<Vec<_>>>()?;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), sent.clone());
        let mut cloud = Cloud { memory: self.memory, random: self.random, places, targets };
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..BURST {
                    let n = cloud.random.below(sockets.len() as u64) as usize;
                    // From its own network it can only name addresses of that.
                    let (to, packet) = cloud.packet(n == 0);
                    // A full queue, or an address that is not there at the moment.
                    if sockets[n].send_to(&packet, to).is_ok() {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                }
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Rain { stop, sent, thread: Some(thread) })
    }
}

/// Counts the bytes of UDP that go up a link from now on, and those that come down.
pub(crate) fn exchanged(link: &Link) -> (Bytes, Bytes) {
    let (up, down) = (Bytes::default(), Bytes::default());
    let counts = (up.clone(), down.clone());
    link.observe(move |direction, frame| {
        let Some(packet) = frame.ip().filter(|p| p.protocol == UDP) else { return };
        let count = if direction == Direction::Up { &counts.0 } else { &counts.1 };
        count.0.fetch_add(packet.payload.len() as u64, Ordering::Relaxed);
    });
    (up, down)
}

/// Bytes so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes(Arc<AtomicU64>);

impl Bytes {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A shower that goes on until it is stopped or dropped.
#[derive(Debug)]
pub(crate) struct Rain {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Rain {
    /// Waits until so many packets have been sent in all.
    pub(crate) fn wait(&self, sent: u64, timeout: Duration) -> Result<()> {
        wait_until(timeout, &format!("{sent} packets of the attacker are sent"), || {
            self.sent.load(Ordering::Relaxed) >= sent
        })
    }

    /// Ends it, and says how many packets were sent.
    pub(crate) fn stop(mut self) -> Result<u64> {
        self.end();
        Ok(self.sent.load(Ordering::Relaxed))
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it does, no more is sent, which the waiting sees.
            let _ = thread.join();
        }
    }
}

impl Drop for Rain {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where the packets come from.
struct Cloud {
    memory: Arc<Mutex<Memory>>,
    random: Random,
    places: Vec<Ipv4Addr>,
    targets: Vec<SocketAddrV4>,
}

impl Cloud {
    fn one<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { of.get(self.random.below(of.len() as u64) as usize).cloned() }
    }

    fn heard(&mut self, of: impl Fn(&Memory) -> &VecDeque<Heard>) -> Option<Heard> {
        let memory = self.memory.clone();
        let memory = lock(&memory);
        let queue = of(&memory);
        let n = queue.len() as u64;
        if n == 0 { None } else { queue.get(self.random.below(n) as usize).cloned() }
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.random.next_u64().to_ne_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    /// The next packet and where it goes. `anywhere`: it may have any source.
    fn packet(&mut self, anywhere: bool) -> (SocketAddr, Vec<u8>) {
        let (to, packet) = self.segment(anywhere).unwrap_or_else(|| {
            let (from, to, payload) = self.datagram(anywhere);
            (to, udp(from, to, &payload))
        });
        (SocketAddr::new(IpAddr::V4(*to.ip()), 0), packet)
    }

    /// One in ten, if any was heard: a segment of an introduction or a carrier probe, as it was or with another nonce.
    fn segment(&mut self, anywhere: bool) -> Option<(SocketAddrV4, Vec<u8>)> {
        if !anywhere || !self.random.chance(0.1) {
            return None;
        }
        let mut heard = self.heard(|memory| &memory.segments)?;
        let at = heard.bytes.windows(OPTION.len()).position(|w| w == OPTION)?;
        // Of index and nonce the last bytes, or all.
        let from = *[at + 4, at + 8, at + 15].get(self.random.below(4) as usize).unwrap_or(&(at + 16));
        let mut nonce = [0; 12];
        self.fill(&mut nonce);
        if let Some(bytes) = heard.bytes.get_mut(from..at + 16) {
            bytes.copy_from_slice(&nonce[..bytes.len()]);
        }
        checksum(*heard.from.ip(), *heard.to.ip(), &mut heard.bytes);
        let packet = ip(*heard.from.ip(), *heard.to.ip()).packet(TCP, &heard.bytes).ok()?;
        Some((heard.to, packet))
    }

    fn datagram(&mut self, anywhere: bool) -> (SocketAddrV4, SocketAddrV4, Vec<u8>) {
        let tunnel = self.random.chance(0.2);
        let heard = self.heard(|memory| if tunnel { &memory.tunnel } else { &memory.control });
        let places = self.places.clone();
        let place = self.one(&places).unwrap_or(Ipv4Addr::LOCALHOST);
        let port = if self.random.chance(0.5) { PORT } else { 1024 + self.random.below(60_000) as u16 };
        let elsewhere = SocketAddrV4::new(place, port);
        let targets = self.targets.clone();
        let target = self.one(&targets).unwrap_or(elsewhere);
        let Some(heard) = heard else { return (elsewhere, target, self.invented(None)) };
        let from = if anywhere && self.random.chance(0.6) { heard.from } else { elsewhere };
        // Sometimes back to who said it.
        let to = match self.random.below(8) {
            0 => heard.from,
            1 => target,
            _ => heard.to,
        };
        let payload = self.mutilated(&heard.bytes);
        (from, to, payload)
    }

    fn mutilated(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let length = bytes.len() as u64;
        match self.random.below(6) {
            // A copy.
            0 | 1 => {}
            2 => bytes.truncate(self.random.below(length) as usize),
            3 => {
                for _ in 0..=self.random.below(8) {
                    let bit = self.random.below(length * 8);
                    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
                }
            }
            4 => {
                let more = self.random.below(200) as usize;
                let old = bytes.len();
                bytes.resize((old + more).min(LARGEST.max(old)), 0);
                self.fill(&mut bytes[old..]);
            }
            _ => bytes = self.invented(Some(&bytes)),
        }
        bytes
    }

    /// A kind, and noise; perhaps with the index of a true one.
    fn invented(&mut self, like: Option<&[u8]>) -> Vec<u8> {
        let length = match self.random.below(3) {
            0 => self.random.below(64),
            1 => 1200,
            _ => self.random.below(LARGEST as u64),
        };
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes);
        if let Some(kind) = bytes.first_mut() {
            *kind = KINDS[self.random.below(KINDS.len() as u64) as usize];
        }
        if let Some(bytes) = bytes.get_mut(1) {
            *bytes %= 6;
        }
        if let (Some(true_one), Some(index)) = (like.and_then(|like| like.get(INDEX)), bytes.get_mut(INDEX)) {
            index.copy_from_slice(true_one);
        }
        bytes
    }
}

/// Sends a copy of each control packet from an address of its own.
#[derive(Debug)]
pub(crate) struct Overtaking {
    queue: Sender<(SocketAddrV4, Vec<u8>)>,
    on: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
}

impl Overtaking {
    /// From `host`, whose address is `place`.
    pub(crate) fn start(host: &Host, place: Ipv4Addr) -> Result<Self> {
        let socket = raw_socket(host)?;
        let (queue, packets): (_, Receiver<(SocketAddrV4, Vec<u8>)>) = channel();
        let (on, sent) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let counted = sent.clone();
        // Ends when the last link that is listened to has gone.
        std::thread::spawn(move || {
            for (to, payload) in packets {
                let packet = udp(SocketAddrV4::new(place, PORT), to, &payload);
                if socket.send_to(&packet, SocketAddr::V4(SocketAddrV4::new(*to.ip(), 0))).is_ok() {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self { queue, on, sent })
    }

    /// Copies what goes in this direction of a link, until [`Overtaking::stop`].
    pub(crate) fn overtake(&self, link: &Link, direction: Direction) {
        self.on.store(true, Ordering::Relaxed);
        let (queue, on) = (self.queue.clone(), self.on.clone());
        link.observe(move |d, frame| {
            if d != direction || is_own(frame) || !on.load(Ordering::Relaxed) {
                return;
            }
            let Some(packet) = frame.ip() else { return };
            let Some((_, SocketAddr::V4(to))) = packet.endpoints().filter(|(_, to)| to.port() == PORT) else { return };
            let Some(payload) = packet.udp().filter(|p| p.first().is_some_and(|kind| *kind < 0x20)) else { return };
            // The receiver lives as long as this sender.
            let _ = queue.send((to, payload.to_vec()));
        });
    }

    /// Copies so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Copies no more.
    pub(crate) fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
    }
}
