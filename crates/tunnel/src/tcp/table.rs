//! Which endpoint stands for which connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use whimbrel_wire::{FlowTuple, Transport};

/// A connection, as others see it.
#[derive(Debug)]
struct Entry {
    /// The far end's address; its endpoint has the number of the entry for a port.
    far: IpAddr,
    /// The socket on loopback that stands for it. It stays when the connection has ended, so that no other program gets
    /// what is still sent there.
    socket: UdpSocket,
    at: SocketAddr,
    /// Its own names.
    tuple: FlowTuple,
    is_open: bool,
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
    listening: Option<u16>,
}

impl Table {
    pub(super) fn new(numbers: RangeInclusive<u16>) -> Self {
        let next = *numbers.start();
        let entries = Entries { by_number: HashMap::new(), numbers, next, listening: None };
        Self { entries: Mutex::new(entries), is_used: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections come to this port.
    pub(super) fn listen(&self, port: u16) {
        self.lock().listening = Some(port);
        self.is_used.store(true, Ordering::Release);
    }

    /// A connection has this socket on loopback from now on. `None`: there are too many.
    pub(super) fn add(&self, tuple: FlowTuple, socket: UdpSocket, at: SocketAddr) -> Option<u16> {
        let mut entries = self.lock();
        let count = entries.numbers.len();
        let number = (0..count).find_map(|_| {
            let number = entries.next;
            entries.next = if number == *entries.numbers.end() { *entries.numbers.start() } else { number + 1 };
            entries.by_number.get(&number).is_none_or(|entry| !entry.is_open).then_some(number)
        })?;
        let far = tuple.remote.ip();
        entries.by_number.insert(number, Entry { far, socket, at, tuple, is_open: true });
        self.is_used.store(true, Ordering::Release);
        Some(number)
    }

    /// The connection has ended.
    pub(super) fn end(&self, number: u16) {
        if let Some(entry) = self.lock().by_number.get_mut(&number) {
            entry.is_open = false;
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
        let entries = self.lock();
        let entry = entries.by_number.get(&endpoint.port()).filter(|entry| entry.far == endpoint.ip());
        entry.map(|entry| entry.at)
    }

    /// The endpoint that such a socket stands for.
    pub(super) fn named(&self, at: SocketAddr) -> Option<SocketAddr> {
        if !at.ip().is_loopback() || !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        let entries = self.lock();
        let mut all = entries.by_number.iter().filter(|(_, entry)| entry.is_open && entry.at == at);
        all.next().map(|(number, entry)| SocketAddr::new(entry.far, *number))
    }

    /// Whether this is a connection of this module's.
    pub(super) fn is_own(&self, tuple: &FlowTuple) -> bool {
        if tuple.transport != Transport::Tcp || !self.is_used.load(Ordering::Acquire) {
            return false;
        }
        let entries = self.lock();
        let listened = entries.listening == Some(tuple.local.port());
        listened || entries.by_number.values().any(|entry| entry.tuple == *tuple)
    }

    /// The far end of the connection that an endpoint stands for.
    pub(super) fn far_end(&self, endpoint: SocketAddr) -> Option<SocketAddr> {
        let entries = self.lock();
        let entry = entries.by_number.get(&endpoint.port()).filter(|entry| entry.far == endpoint.ip());
        entry.map(|entry| entry.tuple.remote)
    }
}
