//! Packets on their way through chains of transforms, and what comes out of these on either side.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use whimbrel_kernel::udp::UdpSocket;
use whimbrel_transform::datagram::FRAMING;
use whimbrel_transform::{Batch, Chain, Direction, Packets, TAG_LEN};
use whimbrel_wire::PeerId;

use crate::counters::{Counter, Counters};
use crate::inbound::Delivery;
use crate::outbound::send;
use crate::table::{Chained, Table, Way};
use crate::{Tunnel, signal};

/// Packets that came for chains, in batches of one chain each.
#[derive(Debug, Default)]
pub(crate) struct Arrived(Vec<(PeerId, u8, Batch)>);

impl Arrived {
    pub(crate) fn push(&mut self, peer: PeerId, number: u8, packet: &[u8]) {
        match self.0.last_mut() {
            Some((of, with, batch)) if (*of, *with) == (peer, number) => batch.push_packet(packet),
            _ => {
                let mut batch = Batch::new(0, 0);
                batch.push_packet(packet);
                self.0.push((peer, number, batch));
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What one thread needs to drive chains.
pub(crate) struct Chains {
    udp: Arc<UdpSocket>,
    table: Arc<Table>,
    counters: Arc<Counters>,
    nudge: Arc<OwnedFd>,
    /// Of all threads: what belongs together may come out in different ones.
    delivery: Arc<Mutex<Delivery>>,
    packets: Packets,
}

impl Chains {
    pub(crate) fn new(tunnel: &Tunnel) -> Self {
        Self {
            udp: Arc::clone(&tunnel.udp),
            table: Arc::clone(&tunnel.table),
            counters: Arc::clone(&tunnel.counters),
            nudge: Arc::clone(&tunnel.nudge),
            delivery: Arc::clone(&tunnel.delivery),
            packets: Packets::default(),
        }
    }

    /// Sends a batch by this way, through its chain. For the outbound pump, which asks [`Self::handle_timeouts`]
    /// afterwards.
    pub(crate) fn send(&mut self, way: &Way, chained: &Chained, batch: &mut Batch) {
        self.drive(Some(way), chained, |chain, packets| {
            std::mem::swap(packets.get_mut(Direction::Outbound), batch);
            chain.handle_packets(Instant::now(), Direction::Outbound, packets);
        });
    }

    /// Delivers what came for chains.
    pub(crate) fn receive(&mut self, arrived: &mut Arrived) {
        for (peer, number, mut batch) in arrived.0.drain(..) {
            let Some(chained) = self.table.chain(peer, number) else {
                self.counters.add(Counter::Malformed, batch.len());
                continue;
            };
            self.drive_and_nudge(&chained, |chain, packets| {
                std::mem::swap(packets.get_mut(Direction::Inbound), &mut batch);
                chain.handle_packets(Instant::now(), Direction::Inbound, packets);
            });
        }
    }

    /// Gives out all that this chain keeps.
    pub(crate) fn release(&mut self, chained: &Chained) {
        self.drive_and_nudge(chained, |chain, packets| chain.release(Instant::now(), packets));
    }

    /// Calls the chains whose moment has come, and says when the next one's does.
    pub(crate) fn handle_timeouts(&mut self) -> Option<Instant> {
        if !self.table.has_chains() {
            return None;
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for chained in self.table.chains() {
            let mut due = chained.lock().poll_timeout();
            if due.is_some_and(|due| due <= now) {
                let way = self.table.way(chained.peer);
                due = self.drive(way.as_deref(), &chained, |chain, packets| chain.handle_timeout(now, packets)).1;
            }
            next = [next, due].into_iter().flatten().min();
        }
        next
    }

    /// For all threads but the outbound pump's, which is to know of an earlier timeout.
    fn drive_and_nudge(&mut self, chained: &Chained, work: impl FnOnce(&mut Chain, &mut Packets)) {
        let way = self.table.way(chained.peer);
        let (before, after) = self.drive(way.as_deref(), chained, work);
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            signal(&self.nudge);
        }
    }

    /// Has a chain do something, and gives away what comes out. Returns its timeouts of before and after.
    fn drive(
        &mut self,
        way: Option<&Way>,
        chained: &Chained,
        work: impl FnOnce(&mut Chain, &mut Packets),
    ) -> (Option<Instant>, Option<Instant>) {
        let tailroom = if way.is_some_and(|way| way.path.sealed) { TAG_LEN } else { 0 };
        self.packets.get_mut(Direction::Outbound).reset(FRAMING, tailroom);
        self.packets.get_mut(Direction::Inbound).reset(0, 0);
        let timeouts = {
            let mut chain = chained.lock();
            let before = chain.poll_timeout();
            work(&mut chain, &mut self.packets);
            (before, chain.poll_timeout())
        };
        let outbound = self.packets.get_mut(Direction::Outbound);
        match way {
            _ if outbound.is_empty() => {}
            Some(way) => send(&self.udp, &self.counters, outbound, way, chained.number),
            None => self.counters.add(Counter::NoPath, outbound.len()),
        }
        let inbound = self.packets.get_mut(Direction::Inbound);
        if !inbound.is_empty() {
            let (buffer, spans) = inbound.parts_mut();
            lock(&self.delivery).deliver(buffer, spans, chained.peer);
        }
        timeouts
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
