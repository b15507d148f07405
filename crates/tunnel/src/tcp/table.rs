//! Which endpoint stands for which connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use whimbrel_wire::{FlowTuple, Transport};

/// A connection, as others see it.
#[derive(Debug)]
struct Entry {
    /// The far end's address; its endpoint has the number of the entry for a port.
    far: IpAddr,
    /// The socket on loopback that stands for it.
    socket: Arc<UdpSocket>,
    at: SocketAddr,
    /// Its own names.
    tuple: FlowTuple,
    /// Something was sent to its endpoint. The socket stays then when the connection has ended, so that no other
    /// program gets what is still sent there.
    asked: bool,
    /// Paths of the tunnel that lead there.
    leading: Arc<AtomicU32>,
    /// When it has ended, among those that have.
    ended: Option<u64>,
}

/// Where connections come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listening {
    pub(super) at: SocketAddr,
    /// IPv6 takes IPv4 as well.
    pub(super) both: bool,
}

impl Listening {
    fn takes(&self, local: SocketAddr) -> bool {
        let all = self.at.ip().is_unspecified() && (self.both || self.at.is_ipv4() == local.is_ipv4());
        local.port() == self.at.port() && (all || local.ip() == self.at.ip())
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct Table {
    entries: Mutex<Entries>,
    /// There was one.
    is_used: AtomicBool,
}

#[derive(Debug)]
struct Entries {
    by_number: HashMap<u16, Entry>,
    numbers: RangeInclusive<u16>,
    next: u16,
    ended: u64,
    listening: Option<Listening>,
}

impl Entries {
    fn open(&self) -> impl Iterator<Item = (&u16, &Entry)> {
        self.by_number.iter().filter(|(_, entry)| entry.ended.is_none())
    }

    fn of(&self, endpoint: SocketAddr) -> Option<&Entry> {
        self.by_number.get(&endpoint.port()).filter(|entry| entry.far == endpoint.ip())
    }

    /// A number that nothing has had lately: one that stands for nothing, in turn, or that of the connection that has
    /// ended first.
    fn free(&mut self) -> Option<u16> {
        for _ in 0..self.numbers.len() {
            let number = self.next;
            self.next = if number == *self.numbers.end() { *self.numbers.start() } else { number + 1 };
            if !self.by_number.contains_key(&number) {
                return Some(number);
            }
        }
        let ended = self.by_number.iter().filter_map(|(number, entry)| Some((entry.ended?, *number)));
        ended.min().map(|(_, number)| number)
    }
}

impl Table {
    pub(super) fn new(numbers: RangeInclusive<u16>) -> Self {
        let next = *numbers.start();
        let entries = Entries { by_number: HashMap::new(), numbers, next, ended: 0, listening: None };
        Self { entries: Mutex::new(entries), is_used: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections come there.
    pub(super) fn listen(&self, at: Listening) {
        self.lock().listening = Some(at);
        self.is_used.store(true, Ordering::Release);
    }

    /// A connection has this socket on loopback from now on: its number, and how many paths lead to it. `None`: there
    /// are too many.
    pub(super) fn add(
        &self,
        tuple: FlowTuple,
        socket: Arc<UdpSocket>,
        at: SocketAddr,
    ) -> Option<(u16, Arc<AtomicU32>)> {
        let mut entries = self.lock();
        let number = entries.free()?;
        let far = tuple.remote.ip();
        let leading = Arc::<AtomicU32>::default();
        let entry = Entry { far, socket, at, tuple, asked: false, leading: Arc::clone(&leading), ended: None };
        entries.by_number.insert(number, entry);
        self.is_used.store(true, Ordering::Release);
        Some((number, leading))
    }

    /// The connection has ended.
    pub(super) fn end(&self, number: u16) {
        let mut entries = self.lock();
        entries.ended += 1;
        let ended = entries.ended;
        if entries.by_number.get(&number).is_some_and(|entry| !entry.asked) {
            entries.by_number.remove(&number);
        }
        if let Some(entry) = entries.by_number.get_mut(&number) {
            entry.ended = Some(ended);
            // Takes in nothing any more but from a port that nobody has.
            let nobody = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9);
            let nobody = if entry.at.is_ipv4() { nobody } else { SocketAddr::new([0, 0, 0, 0, 0, 0, 0, 1].into(), 9) };
            let _ = entry.socket.connect(nobody);
        }
    }

    /// The endpoint that stands for a connection.
    pub(super) fn endpoint(&self, number: u16) -> Option<SocketAddr> {
        self.lock().by_number.get(&number).map(|entry| SocketAddr::new(entry.far, number))
    }

    /// Where a datagram to an endpoint is to be sent: to the socket that stands for it, if it is that of a connection.
    pub(super) fn way_to(&self, endpoint: SocketAddr) -> Option<SocketAddr> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        let mut entries = self.lock();
        let entry = entries.by_number.get_mut(&endpoint.port()).filter(|entry| entry.far == endpoint.ip())?;
        entry.asked = true;
        Some(entry.at)
    }

    /// A path of the tunnel leads to an endpoint from now on, and no longer to another.
    pub(super) fn lead(&self, to: Option<SocketAddr>, before: Option<SocketAddr>) {
        if to == before || !self.is_used.load(Ordering::Acquire) {
            return;
        }
        let entries = self.lock();
        if let Some(entry) = before.and_then(|endpoint| entries.of(endpoint)) {
            // It may stand for another connection by now, which nothing leads to yet.
            let one_less = |leading: u32| leading.checked_sub(1);
            let _ = entry.leading.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        }
        if let Some(entry) = to.and_then(|endpoint| entries.of(endpoint)) {
            entry.leading.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The endpoint that such a socket stands for.
    pub(super) fn named(&self, at: SocketAddr) -> Option<SocketAddr> {
        if !at.ip().is_loopback() || !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        let entries = self.lock();
        let mut all = entries.open().filter(|(_, entry)| entry.at == at);
        all.next().map(|(number, entry)| SocketAddr::new(entry.far, *number))
    }

    /// Whether this is a connection of this module's.
    pub(super) fn is_own(&self, tuple: &FlowTuple) -> bool {
        if tuple.transport != Transport::Tcp || !self.is_used.load(Ordering::Acquire) {
            return false;
        }
        let entries = self.lock();
        let listened = entries.listening.is_some_and(|listening| listening.takes(tuple.local));
        listened || entries.by_number.values().any(|entry| entry.tuple == *tuple)
    }

    /// The far end of the connection that an endpoint stands for.
    pub(super) fn far_end(&self, endpoint: SocketAddr) -> Option<SocketAddr> {
        self.lock().of(endpoint).map(|entry| entry.tuple.remote)
    }
}
