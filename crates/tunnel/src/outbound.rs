//! From the TUN device to UDP: look the flow up, translate, cut, seal, send.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use whimbrel_kernel::tun::{MAX_PACKET, Tun, VNET_LEN};
use whimbrel_kernel::udp::{Transmit, UdpSocket};
use whimbrel_transform::datagram::{FRAMING, HEADER_LEN, LENGTH_LEN, Protection, TunnelHeader, length_prefix};
use whimbrel_transform::fragment::FragmentMemory;
use whimbrel_transform::message::too_long;
use whimbrel_transform::rewrite::{ChecksumState, rewrite};
use whimbrel_transform::segment::{complete_checksum, fitting, segment};
use whimbrel_transform::{Batch, Message, Span, TAG_LEN, VnetHeader};
use whimbrel_wire::packet::{Fragment, Headers};
use whimbrel_wire::{FlowTuple, Transport};

use crate::aside::{Fate, Meeting};
use crate::chains::Chains;
use crate::counters::{Counter, Counters};
use crate::table::{Admission, NoRoute, Route, Table, Way};
use crate::{READS, Tunnel, Woken, wait};

/// Datagrams are sent when so many bytes have gathered, or the device has no more.
const GATHER: usize = 48 << 10;
/// Pause between what senders are told of packets that are too long: who does not heed it hears it often enough (RFC
/// 1812 §4.3.2.8).
const TOLD_EVERY: Duration = Duration::from_millis(1);

pub(crate) struct Outbound {
    tun: Arc<Tun>,
    udp: Arc<UdpSocket>,
    table: Arc<Table>,
    counters: Arc<Counters>,
    stop: Arc<OwnedFd>,
    nudge: Arc<OwnedFd>,
    keeper: SyncSender<Vec<u8>>,
    wake: Arc<OwnedFd>,
    packet: Vec<u8>,
    /// Datagrams of one peer that are not sent yet.
    batch: Batch,
    way: Option<Arc<Way>>,
    fragments: FragmentMemory<FlowTuple>,
    last: Option<(u64, FlowTuple, Route)>,
    /// When somebody was told last that a packet is too long.
    told: Option<Instant>,
    chains: Chains,
}

impl Outbound {
    /// `keeper`: takes the packets of flows that are kept; `wake` is said so.
    pub(crate) fn new(tunnel: &Tunnel, keeper: SyncSender<Vec<u8>>, wake: Arc<OwnedFd>) -> Self {
        Self {
            tun: Arc::clone(&tunnel.tun),
            udp: Arc::clone(&tunnel.udp),
            table: Arc::clone(&tunnel.table),
            counters: Arc::clone(&tunnel.counters),
            stop: Arc::clone(&tunnel.stop),
            nudge: Arc::clone(&tunnel.nudge),
            keeper,
            wake,
            packet: vec![0; MAX_PACKET],
            batch: Batch::new(FRAMING, 0),
            way: None,
            fragments: FragmentMemory::default(),
            last: None,
            told: None,
            chains: Chains::new(tunnel),
        }
    }

    pub(crate) fn run(mut self) {
        loop {
            let timeout = self.chains.handle_timeouts();
            match wait(&*self.tun, &self.stop, Some(&self.nudge), timeout) {
                Ok(Woken::Ready(_)) => {}
                Ok(Woken::TimedOut) => continue,
                Ok(Woken::Nudged) => {
                    // What it holds is a count, which is taken by reading.
                    let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
                    self.let_go();
                    continue;
                }
                Ok(Woken::Stop) => return,
                Err(error) => return tracing::error!(%error, "poll on the tunnel device"),
            }
            for _ in 0..READS {
                let mut header = [0; VNET_LEN];
                let buffers = &mut [IoSliceMut::new(&mut header), IoSliceMut::new(&mut self.packet)];
                match self.tun.read(buffers) {
                    Ok(Some(len)) => self.take(&header, len.saturating_sub(VNET_LEN)),
                    Ok(None) => break,
                    Err(error) => return tracing::error!(%error, device = self.tun.name(), "read"),
                }
            }
            self.flush();
        }
    }

    fn take(&mut self, header: &[u8; VNET_LEN], len: usize) {
        let Ok(headers) = Headers::parse(&self.packet[..len]) else {
            return self.take_message(header, len);
        };
        let own = match headers.fragment {
            Fragment::Later(_) => self.fragments.recall(&headers),
            _ => Some(headers.outbound_tuple()),
        };
        let Some(own) = own else {
            return self.counters.count(Counter::NoFlow);
        };
        if let Fragment::First(_) = headers.fragment {
            self.fragments.remember(&headers, own);
        }
        let whole = || [header.as_slice(), &self.packet[..len]].concat();
        match self.table.aside.meet(&own, headers.opens(&self.packet[..len]), whole) {
            Meeting::Nothing => self.carry(header, len, headers, &own, Fate::ByFlow),
            Meeting::Waits => {}
            Meeting::Full => self.counters.count(Counter::AsideOverflow),
            Meeting::Goes(fate, earlier) => {
                if !earlier.is_empty() {
                    let last = self.packet[..len].to_vec();
                    self.carry_all(&own, fate, earlier);
                    self.packet[..len].copy_from_slice(&last);
                }
                self.carry(header, len, headers, &own, fate);
            }
        }
    }

    /// What waited and may go now.
    fn let_go(&mut self) {
        for (own, fate, packets) in self.table.aside.take_due(Instant::now()) {
            self.carry_all(&own, fate, packets);
        }
        self.flush();
    }

    /// Sends packets that waited, each behind its `virtio_net_hdr`.
    fn carry_all(&mut self, own: &FlowTuple, fate: Fate, packets: Vec<Vec<u8>>) {
        for packet in packets {
            let Some((header, packet)) = packet.split_first_chunk::<VNET_LEN>() else { continue };
            self.packet[..packet.len()].copy_from_slice(packet);
            if let Ok(headers) = Headers::parse(packet) {
                // What waits for a socket that is not connected is of many. Of a later fragment only the addresses
                // matter.
                let own = if matches!(fate, Fate::To(_)) { headers.outbound_tuple() } else { *own };
                self.carry(header, packet.len(), headers, &own, fate);
            }
        }
    }

    /// Sends the packet that is in the buffer.
    fn carry(&mut self, header: &[u8; VNET_LEN], len: usize, mut headers: Headers, own: &FlowTuple, fate: Fate) {
        let offload = VnetHeader::decode(header);
        let route = match fate {
            Fate::ByFlow | Fate::Waits => self.route(own),
            Fate::To(peer) => self.table.route_to(own, peer),
            Fate::Here => {
                if self.tun.write(&[IoSlice::new(header), IoSlice::new(&self.packet[..len])]).is_err() {
                    self.counters.count(Counter::WriteFailed);
                }
                return;
            }
        };
        let route = match route {
            Ok(route) => route,
            Err(NoRoute::Flow) => return self.counters.count(Counter::NoFlow),
            Err(NoRoute::Path) => return self.counters.count(Counter::NoPath),
            Err(NoRoute::Kept) => {
                if self.keeper.try_send(self.packet[..len].to_vec()).is_ok() {
                    crate::signal(&self.wake);
                }
                return;
            }
        };
        self.go_by(&route);
        self.send_too_long(len, &headers, &offload, &route);
        let state = if offload.needs_checksum() { ChecksumState::Partial } else { ChecksumState::Whole };
        let packet = &mut self.packet[..len];
        // The peer's names, seen from here: what it calls remote is this host.
        let (source, destination) = (route.peer_tuple.remote, route.peer_tuple.local);
        let translated = rewrite(packet, &mut headers, source, destination, state).is_ok();
        let offload = fitting(&headers, offload, route.way.inner_mtu as usize);
        if !translated || segment(packet, &headers, &offload, &mut self.batch).is_err() {
            return self.counters.count(Counter::Unsuitable);
        }
        if self.batch.used() >= GATHER {
            self.flush();
        }
    }

    /// What is sent next goes this way.
    fn go_by(&mut self, route: &Route) {
        if !self.way.as_ref().is_some_and(|way| Arc::ptr_eq(way, &route.way)) {
            self.flush();
            self.batch.reset(FRAMING, if route.way.path.sealed { TAG_LEN } else { 0 });
            self.way = Some(Arc::clone(&route.way));
        }
    }

    /// Sends an ICMP message about a flow (P-110). It tells who hears it of the flow under the names that are known
    /// there.
    fn take_message(&mut self, header: &[u8; VNET_LEN], len: usize) {
        let Ok(message) = Message::parse(&self.packet[..len]) else {
            return self.counters.count(Counter::Unsuitable);
        };
        let own = match message.flow {
            Some(flow) => Some(flow.mirrored()),
            None => self.fragments.recall(&message),
        };
        let Some(own) = own else { return self.counters.count(Counter::NoFlow) };
        if let Fragment::First(_) = message.fragment {
            self.fragments.remember(&message, own);
        }
        let route = match self.route(&own) {
            Ok(route) => route,
            Err(NoRoute::Path) => return self.counters.count(Counter::NoPath),
            // What is kept is what sockets have sent.
            Err(NoRoute::Flow | NoRoute::Kept) => return self.counters.count(Counter::NoFlow),
        };
        self.go_by(&route);
        let packet = &mut self.packet[..message.end];
        let whole = complete_checksum(packet, &VnetHeader::decode(header));
        if whole.is_err() || message.rename(packet, &route.peer_tuple).is_err() {
            return self.counters.count(Counter::Unsuitable);
        }
        self.batch.push_packet(packet);
        if self.batch.used() >= GATHER {
            self.flush();
        }
    }

    /// Whoever sends by the tunnel and not by this host's routes has to be told what fits it whole (P-111). The packet
    /// goes nevertheless, in fragments of the tunnel's. TCP's is cut and needs none.
    fn send_too_long(&mut self, len: usize, headers: &Headers, offload: &VnetHeader, route: &Route) {
        if !route.elsewhere || headers.transport == Transport::Tcp {
            return;
        }
        let mtu = route.way.inner_mtu;
        let Some(error) = too_long(&self.packet[..len], headers, offload, mtu) else { return };
        let now = Instant::now();
        if self.told.is_some_and(|told| now < told + TOLD_EVERY) {
            return;
        }
        self.told = Some(now);
        let none = VnetHeader::default().encode();
        if self.tun.write(&[IoSlice::new(&none), IoSlice::new(&error)]).is_err() {
            self.counters.count(Counter::WriteFailed);
        }
    }

    fn route(&mut self, own: &FlowTuple) -> Result<Route, NoRoute> {
        let generation = self.table.generation();
        if let Some((then, tuple, route)) = &self.last
            && *then == generation
            && tuple == own
        {
            return Ok(route.clone());
        }
        let route = self.table.route(own)?;
        self.last = Some((generation, *own, route.clone()));
        Ok(route)
    }

    fn flush(&mut self) {
        let Some(way) = self.way.clone() else { return };
        if self.batch.is_empty() {
            return;
        }
        match &way.chain {
            None => send(&self.udp, &self.counters, &mut self.batch, &way, 0),
            Some(chained) => self.chains.send(&way, chained, &mut self.batch),
        }
        let tailroom = if way.path.sealed { TAG_LEN } else { 0 };
        self.batch.reset(FRAMING, tailroom);
    }
}

/// Sends a batch whose packets have gone through this chain, or through none (0). They have the rooms around them that
/// the way's framing needs.
pub(crate) fn send(udp: &UdpSocket, counters: &Counters, batch: &mut Batch, way: &Way, chain: u8) {
    let count = batch.len();
    let bytes: usize = batch.spans().iter().map(|span| span.len).sum();
    if !frame(batch, way, chain) {
        return counters.add(Counter::SendFailed, count);
    }
    let mut transmits = if way.path.allowance.is_none() { trains(batch, way) } else { admitted(batch, way, counters) };
    let report = udp.send(&transmits);
    if let Some(second) = way.path.second.filter(|_| way.path.sealed) {
        for transmit in &mut transmits {
            (transmit.destination, transmit.source) = (second.remote, second.source);
            transmit.interface = second.interface;
        }
        // That it may lead nowhere is why there are two, and that it has no room is not to hold up the first.
        counters.add(Counter::DuplicatesSent, udp.send_now(&transmits).sent);
    }
    counters.add(Counter::PacketsSent, report.sent);
    if report.dropped == 0 {
        counters.add(Counter::BytesSent, bytes);
    } else {
        counters.add(Counter::SendFailed, report.dropped);
        counters.add(Counter::BytesSent, bytes / count * report.sent);
    }
}

/// The datagrams that may go to a path that is not confirmed.
fn admitted<'a>(batch: &'a Batch, way: &Way, counters: &Counters) -> Vec<Transmit<'a>> {
    let mut transmits = Vec::new();
    for span in batch.spans() {
        let contents = &batch.buffer()[span.start..span.end()];
        match way.admit(contents) {
            Admission::Send => transmits.push(Transmit {
                destination: way.path.remote,
                source: way.path.source,
                interface: way.path.interface,
                contents,
                segment_size: None,
            }),
            Admission::Waits | Admission::Dropped => counters.count(Counter::Unconfirmed),
        }
    }
    transmits
}

/// Makes a datagram of each packet of the batch, in the room around it; false if the key is used up.
fn frame(batch: &mut Batch, way: &Way, chain: u8) -> bool {
    let (buffer, spans) = batch.parts_mut();
    let Some(first) = (if way.path.sealed { way.session.take_counters(spans.len()) } else { Some(0) }) else {
        return false;
    };
    for (span, counter) in spans.iter_mut().zip(first..) {
        let Ok(length) = length_prefix(span.len) else { return false };
        let protection = if way.path.sealed {
            Protection::Sealed { counter }
        } else {
            Protection::Plain { token: way.session.keys.send_token }
        };
        let header = TunnelHeader { chain, receiver: way.path.send_index, protection }.encode();
        let start = span.start - FRAMING;
        buffer[start..start + HEADER_LEN].copy_from_slice(&header);
        buffer[start + HEADER_LEN..span.start].copy_from_slice(&length);
        let mut end = span.end();
        if way.path.sealed {
            let Ok(tag) = way.session.sealing.seal(counter, &header, &mut buffer[span.start - LENGTH_LEN..end]) else {
                return false;
            };
            buffer[end..end + TAG_LEN].copy_from_slice(&tag);
            end += TAG_LEN;
        }
        *span = Span { start, len: end - start };
    }
    true
}

/// Joins datagrams that lie side by side and are equally long except for the last into trains. Those that the path can
/// only carry in fragments go singly: the kernel cuts no train of such.
fn trains<'a>(batch: &'a Batch, way: &Way) -> Vec<Transmit<'a>> {
    let longest = way.path.longest_datagram();
    let mut transmits = Vec::new();
    let mut spans = batch.spans().iter().copied().peekable();
    while let Some(first) = spans.next() {
        let (size, mut end, mut last) = (first.len, first.end(), first.len);
        while size <= longest && last == size {
            match spans.next_if(|next| next.start == end && next.len <= size) {
                Some(next) => (end, last) = (next.end(), next.len),
                None => break,
            }
        }
        transmits.push(Transmit {
            destination: way.path.remote,
            source: way.path.source,
            interface: way.path.interface,
            contents: &batch.buffer()[first.start..end],
            segment_size: u16::try_from(size).ok(),
        });
    }
    transmits
}
