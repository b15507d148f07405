//! From UDP to the TUN device: check, open, check again, merge, deliver.

use std::fmt;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, PoisonError};

use rustix::event::PollFlags;
use whimbrel_kernel::clock;
use whimbrel_kernel::tun::Tun;
use whimbrel_kernel::udp::{ReceiveBatch, UdpSocket};
use whimbrel_transform::datagram::{HEADER_LEN, Protection, Train, TunnelHeader, chain_of, is_tunnel};
use whimbrel_transform::fragment::FragmentMemory;
use whimbrel_transform::{Coalescer, Message, Span};
use whimbrel_wire::datagram::Kind;
use whimbrel_wire::packet::{Fragment, Headers};
use whimbrel_wire::{FlowTuple, PeerId};

use crate::aside::Arrival;
use crate::chains::{Arrived, Chains};
use crate::counters::{Counter, Counters};
use crate::table::{Accepted, Lease, Table};
use crate::{READS, Received, Tunnel, Woken, signal, wait};

/// What waits for the control thread.
pub(crate) struct Queues {
    pub(crate) control: SyncSender<Received>,
    pub(crate) initiations: SyncSender<Received>,
}

pub(crate) struct Inbound {
    udp: Arc<UdpSocket>,
    stop: Arc<OwnedFd>,
    queues: Queues,
    wake: Arc<OwnedFd>,
    delivery: Delivery,
    arrived: Arrived,
    chains: Chains,
}

/// Checks packets, merges them and writes them to the device.
#[derive(Debug)]
pub(crate) struct Delivery {
    tun: Arc<Tun>,
    checks: Checks,
    coalescer: Coalescer,
}

/// What decides whether a datagram and its packets are taken.
struct Checks {
    table: Arc<Table>,
    counters: Arc<Counters>,
    /// Whose packet a fragmented one is.
    fragments: FragmentMemory<PeerId>,
    last_session: Option<(u64, u32, Accepted)>,
    last_flow: Option<(u64, FlowTuple, PeerId)>,
    /// When what is taken now came, in microseconds.
    now: u64,
}

/// A datagram that was checked.
struct Opened {
    peer: PeerId,
    /// The chain that its packets have gone through, or 0.
    chain: u8,
    /// How many bytes of packets there are.
    train: usize,
}

impl Inbound {
    pub(crate) fn new(tunnel: &Tunnel, queues: Queues, wake: Arc<OwnedFd>) -> Self {
        Self {
            udp: Arc::clone(&tunnel.udp),
            stop: Arc::clone(&tunnel.stop),
            queues,
            wake,
            delivery: Delivery::new(&tunnel.tun, &tunnel.table, &tunnel.counters),
            arrived: Arrived::default(),
            chains: Chains::new(tunnel),
        }
    }

    pub(crate) fn run(mut self) {
        let mut batch = ReceiveBatch::new();
        loop {
            match wait(&*self.udp, &self.stop, None, None) {
                Ok(Woken::Ready(flags)) => {
                    if flags.contains(PollFlags::ERR) {
                        self.report_errors();
                    }
                }
                Ok(Woken::Nudged | Woken::TimedOut | Woken::Stop) => return,
                Err(error) => return tracing::error!(%error, "poll on the tunnel socket"),
            }
            for _ in 0..READS {
                match self.udp.receive(&mut batch) {
                    Ok(0) => break,
                    Ok(_) => self.deliver(&mut batch),
                    Err(error) if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS)) => break,
                    Err(error) => return tracing::error!(%error, port = self.udp.port(), "receive"),
                }
            }
        }
    }

    fn deliver(&mut self, batch: &mut ReceiveBatch) {
        let (buffer, messages) = batch.parts();
        self.delivery.coalescer.clear();
        self.delivery.checks.now = u64::try_from(clock::boottime().as_micros()).unwrap_or(u64::MAX);
        let mut for_control = false;
        for message in messages {
            let end = message.start + message.len;
            for start in (message.start..end).step_by(message.stride) {
                let datagram = Span { start, len: message.stride.min(end - start) };
                if is_tunnel(buffer[start]) {
                    // Order is kept where packets go through a chain no longer.
                    if !self.arrived.is_empty() && chain_of(&buffer[datagram.range()]) == Some(0) {
                        self.finish(buffer);
                        self.delivery.coalescer.clear();
                    }
                    self.delivery.take(buffer, datagram, message.source, &mut self.arrived);
                } else {
                    for_control |= self.hand_over(Received::Datagram {
                        source: message.source,
                        destination: message.destination,
                        interface: message.interface,
                        bytes: buffer[datagram.range()].to_vec(),
                    });
                }
            }
        }
        if for_control {
            signal(&self.wake);
        }
        self.finish(buffer);
    }

    /// Writes what was taken so far.
    fn finish(&mut self, buffer: &mut [u8]) {
        self.delivery.write(buffer);
        if !self.arrived.is_empty() {
            self.chains.receive(&mut self.arrived);
        }
    }

    fn report_errors(&mut self) {
        let mut any = false;
        loop {
            match self.udp.receive_error() {
                Ok(Some(report)) => any |= self.hand_over(Received::Error(report)),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "error queue of the tunnel socket");
                    break;
                }
            }
        }
        if any {
            signal(&self.wake);
        }
    }

    fn hand_over(&self, received: Received) -> bool {
        let is_initiation =
            matches!(&received, Received::Datagram { bytes, .. } if bytes.first() == Some(&(Kind::Initiation as u8)));
        let queue = if is_initiation { &self.queues.initiations } else { &self.queues.control };
        match queue.try_send(received) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.delivery.checks.counters.count(Counter::ControlOverflow);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

impl Delivery {
    pub(crate) fn new(tun: &Arc<Tun>, table: &Arc<Table>, counters: &Arc<Counters>) -> Self {
        Self {
            tun: Arc::clone(tun),
            checks: Checks {
                table: Arc::clone(table),
                counters: Arc::clone(counters),
                fragments: FragmentMemory::default(),
                last_session: None,
                last_flow: None,
                now: 0,
            },
            coalescer: Coalescer::new(tun.has_udp_segmentation()),
        }
    }

    /// Takes a datagram. What has gone through a chain is left to that.
    fn take(&mut self, buffer: &mut [u8], datagram: Span, source: SocketAddr, arrived: &mut Arrived) {
        let Opened { peer, chain, train } = match self.checks.open(&mut buffer[datagram.range()], source) {
            Ok(opened) => opened,
            Err(reason) => return self.checks.counters.count(reason),
        };
        let start = datagram.start + HEADER_LEN;
        let bytes = &buffer[start..start + train];
        if chain != 0 {
            return self.leave(peer, chain, bytes, arrived);
        }
        for packet in Train::new(bytes) {
            let Ok((at, len)) = packet else {
                return self.checks.counters.count(Counter::Malformed);
            };
            self.take_packet(&bytes[at..at + len], Span { start: start + at, len }, buffer, peer);
        }
    }

    /// Leaves a train to its chain.
    #[cold]
    fn leave(&self, peer: PeerId, chain: u8, bytes: &[u8], arrived: &mut Arrived) {
        for packet in Train::new(bytes) {
            let Ok((at, len)) = packet else {
                return self.checks.counters.count(Counter::Malformed);
            };
            arrived.push(peer, chain, &bytes[at..at + len]);
        }
    }

    /// Takes `packet`, which is `buffer[span]`, where it is the peer's to send.
    #[inline]
    fn take_packet(&mut self, packet: &[u8], span: Span, buffer: &[u8], peer: PeerId) {
        match Headers::parse(packet) {
            Ok(headers) => match self.checks.inspect(&headers, peer, packet) {
                Arrival::Passes => self.coalescer.push(buffer, span, &headers),
                Arrival::Other => self.checks.counters.count(Counter::ForeignFlow),
                Arrival::Full => self.checks.counters.count(Counter::AsideOverflow),
                Arrival::Waits => {}
            },
            Err(_) => match Message::parse(packet) {
                Ok(message) if self.checks.is_about(&message, peer) => {
                    self.coalescer.push_single(Span { start: span.start, len: message.end });
                }
                Ok(_) => self.checks.counters.count(Counter::ForeignFlow),
                Err(_) => self.checks.counters.count(Counter::Malformed),
            },
        }
    }

    /// Takes packets that a chain has given out, and writes those that the peer may send.
    pub(crate) fn deliver(&mut self, buffer: &mut [u8], spans: &[Span], peer: PeerId) {
        self.coalescer.clear();
        for span in spans {
            self.take_packet(&buffer[span.range()], *span, buffer, peer);
        }
        self.write(buffer);
    }

    /// Writes what was taken.
    fn write(&mut self, buffer: &mut [u8]) {
        let counters = &self.checks.counters;
        for packet in self.coalescer.finish(buffer) {
            let header = packet.offload().encode();
            let mut vectors = Vec::with_capacity(1 + packet.pieces().len());
            vectors.push(IoSlice::new(&header));
            vectors.extend(packet.pieces().iter().map(|piece| IoSlice::new(&buffer[piece.range()])));
            if self.tun.write(&vectors).is_ok() {
                counters.add(Counter::PacketsReceived, packet.pieces().len());
                counters.add(Counter::BytesReceived, packet.wire_len());
            } else {
                counters.add(Counter::WriteFailed, packet.pieces().len());
            }
        }
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checks")
    }
}

impl Checks {
    /// Checks a datagram (P-1, P-6).
    fn open(&mut self, datagram: &mut [u8], source: SocketAddr) -> Result<Opened, Counter> {
        let header = TunnelHeader::decode(datagram).map_err(|_| Counter::Malformed)?;
        if header.chain != 0 {
            self.find_chain(&header)?;
        }
        let now = self.now;
        let accepted = self.session(header.receiver).ok_or(Counter::UnknownIndex)?;
        let (associated, body) = datagram.split_at_mut(HEADER_LEN);
        let train = match header.protection {
            Protection::Plain { token } => {
                if !accepted.accepts_token(token) {
                    return Err(Counter::BadToken);
                }
                if !accepted.accepts_plain_from(source) {
                    return Err(Counter::BadSource);
                }
                body.len()
            }
            Protection::Sealed { counter } => {
                let session = &accepted.session;
                let len = session.opening.open(counter, associated, body).map_err(|_| Counter::BadTag)?;
                let mut replay = session.replay.lock().unwrap_or_else(PoisonError::into_inner);
                if !replay.accept(counter) {
                    return Err(Counter::Replayed);
                }
                session.hear(now);
                len
            }
        };
        Ok(Opened { peer: accepted.session.peer, chain: header.chain, train })
    }

    /// P-1: what names a chain that is not known of this peer is malformed.
    #[cold]
    fn find_chain(&mut self, header: &TunnelHeader) -> Result<(), Counter> {
        if !self.table.has_chains() {
            return Err(Counter::Malformed);
        }
        let peer = self.session(header.receiver).ok_or(Counter::UnknownIndex)?.session.peer;
        self.table.chain(peer, header.chain).map(drop).ok_or(Counter::Malformed)
    }

    fn session(&mut self, index: u32) -> Option<&Accepted> {
        let generation = self.table.generation();
        if !matches!(&self.last_session, Some((then, last, _)) if (*then, *last) == (generation, index)) {
            self.last_session = Some((generation, index, self.table.session(index)?));
        }
        self.last_session.as_ref().map(|(_, _, accepted)| accepted)
    }

    /// What becomes of a packet: of a socket that is coming, or of the peer's own flows.
    fn inspect(&mut self, headers: &Headers, peer: PeerId, packet: &[u8]) -> Arrival {
        let own = match headers.fragment {
            Fragment::Later(_) => None,
            _ => Some(headers.inbound_tuple()),
        };
        let arrival = own
            .map_or(Arrival::Other, |own| self.table.early.meet(&own, headers.opens(packet), peer, || packet.to_vec()));
        if arrival == Arrival::Other && self.is_of(headers, peer) {
            return Arrival::Passes;
        }
        // Its other fragments do not wait, so neither need this be remembered.
        if let (Arrival::Passes, Fragment::First(_)) = (arrival, headers.fragment) {
            self.fragments.remember(headers, peer);
        }
        arrival
    }

    /// P-110: an ICMP message about a flow of the peer's, or of an end that is leased from it or to it.
    fn is_about(&mut self, message: &Message, peer: PeerId) -> bool {
        let Some(own) = message.flow else { return self.fragments.recall(message) == Some(peer) };
        let of_peer = match self.table.lease_of(&own) {
            // Whoever has an end on lease speaks in its name alone.
            Some(Lease::To(lessee)) => lessee == peer && message.source == own.remote.ip(),
            _ => self.table.owner(&own) == Some(peer),
        };
        if let (true, Fragment::First(_)) = (of_peer, message.fragment) {
            self.fragments.remember(message, peer);
        }
        of_peer
    }

    /// P-23: only packets of the peer's own flows, or of an end that is leased from it or to it.
    fn is_of(&mut self, headers: &Headers, peer: PeerId) -> bool {
        if let Fragment::Later(_) = headers.fragment {
            return self.fragments.recall(headers) == Some(peer);
        }
        let own = headers.inbound_tuple();
        let generation = self.table.generation();
        if !matches!(&self.last_flow, Some((then, last, _)) if (*then, *last) == (generation, own)) {
            let Some(owner) = self.table.owner(&own) else { return false };
            self.last_flow = Some((generation, own, owner));
        }
        let owned = self.last_flow.as_ref().is_some_and(|(_, _, owner)| *owner == peer);
        if let (true, Fragment::First(_)) = (owned, headers.fragment) {
            self.fragments.remember(headers, peer);
        }
        owned
    }
}
