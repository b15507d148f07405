//! The tunnel carrier: packets of moved flows between the TUN device and UDP.
//!
//! Two threads pump, [`outbound`] from the device to the socket and [`inbound`] back. They share a [`table`] with the
//! control thread, which writes it, and hand everything on the socket that is not a tunnel datagram to the control
//! thread through a bounded queue and an eventfd.
#![forbid(unsafe_code)]

mod aside;
mod chains;
mod counters;
mod inbound;
mod outbound;
mod table;
pub mod tcp;

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;
use whimbrel_kernel::tun::Tun;
use whimbrel_kernel::udp::{ErrorReport, SendReport, Transmit, UdpSocket};
use whimbrel_transform::{Algorithm, Chain, VnetHeader};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, TunnelKeys};

use aside::Fate;
pub use aside::LATE;
use chains::Chains;
pub use counters::{Counter, Counters};
use inbound::{Delivery, Inbound, Queues};
use outbound::Outbound;
use table::Table;
pub use table::{Lease, LeasedEnd, PathError, SecondWay, TunnelFlow, TunnelPath};

/// Control datagrams that wait for the control thread at most; more are dropped and counted.
const CONTROL_QUEUE: usize = 4096;
/// Initiations that wait at the most. Whoever is not answered asks again.
const INITIATION_QUEUE: usize = 512;
/// Packets of flows that are kept, which may be as long as 64 KiB, that wait for it at most. What is dropped is sent
/// again.
const KEPT_QUEUE: usize = 256;
/// Reads in a row before a pump looks whether it is to stop.
const READS: usize = 256;

/// Something for the control thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A datagram that is not one of a tunnel.
    Datagram {
        /// Sender.
        source: SocketAddr,
        /// The address of this host that it came to, if the kernel told.
        destination: Option<IpAddr>,
        /// Index of the interface that it came in by, if the kernel told.
        interface: Option<u32>,
        /// Its payload.
        bytes: Vec<u8>,
    },
    /// A datagram that was sent did not arrive, as an ICMP message or the kernel says.
    Error(ErrorReport),
}

/// The running tunnel of a daemon. Dropping it ends both threads; the device stays.
#[derive(Debug)]
pub struct Tunnel {
    tun: Arc<Tun>,
    udp: Arc<UdpSocket>,
    table: Arc<Table>,
    counters: Arc<Counters>,
    control: Receiver<Received>,
    initiations: Receiver<Received>,
    kept: Receiver<Vec<u8>>,
    stop: Arc<OwnedFd>,
    /// Wakes the outbound pump: something that waited may go, or a chain has an earlier timeout.
    nudge: Arc<OwnedFd>,
    /// Of what comes out of chains.
    delivery: Arc<Mutex<Delivery>>,
    threads: Vec<JoinHandle<()>>,
}

/// The tunnel's threads could not be started. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[error("{call} for the tunnel: {source}")]
pub struct StartError {
    call: &'static str,
    source: io::Error,
}

impl Tunnel {
    /// Starts pumping. `wake` is an eventfd: it becomes readable when [`Tunnel::receive_control`] or
    /// [`Tunnel::receive_initiation`] has something.
    ///
    /// # Errors
    /// [`StartError`] if a descriptor or a thread could not be made.
    pub fn start(tun: Tun, udp: UdpSocket, wake: OwnedFd) -> Result<Self, StartError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| StartError { call: "eventfd", source: error.into() })?;
        let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| StartError { call: "eventfd", source: error.into() })?;
        let (sender, control) = sync_channel(CONTROL_QUEUE);
        let (initiator, initiations) = sync_channel(INITIATION_QUEUE);
        let (keeper, kept) = sync_channel(KEPT_QUEUE);
        let (tun, table, counters) = (Arc::new(tun), Arc::default(), Arc::default());
        let delivery = Delivery::new(&tun, &table, &counters);
        let mut tunnel = Self {
            tun,
            udp: Arc::new(udp),
            table,
            counters,
            delivery: Arc::new(Mutex::new(delivery)),
            control,
            initiations,
            kept,
            stop: Arc::new(stop),
            nudge: Arc::new(nudge),
            threads: Vec::new(),
        };
        let wake = Arc::new(wake);
        let outbound = Outbound::new(&tunnel, keeper, Arc::clone(&wake));
        let inbound = Inbound::new(&tunnel, Queues { control: sender, initiations: initiator }, Arc::clone(&wake));
        tunnel.spawn("tunnel-out", &wake, move || outbound.run())?;
        tunnel.spawn("tunnel-in", &wake, move || inbound.run())?;
        Ok(tunnel)
    }

    /// Adds or replaces flows, all at once.
    pub fn set_flows(&self, flows: impl IntoIterator<Item = TunnelFlow>) {
        self.table.set_flows(flows);
    }

    /// What comes for this flow's socket, and the data plane leads to the TUN device, waits from now on: up to 8 MiB
    /// and 4096 packets, 64 MiB for all flows; what comes beyond is dropped. It goes to whom [`Tunnel::set_flow`] gives
    /// the flow of the socket's far end, where that has it, or [`Tunnel::hand_on`].
    pub fn set_aside(&self, own: &FlowTuple) {
        self.table.aside.keep(own.mirrored());
    }

    /// What waits for this flow's socket, and what still comes in the next two seconds, goes to a peer as it is, or to
    /// the socket itself with `None`. Where it is decided already that is left so.
    pub fn hand_on(&self, own: &FlowTuple, to: Option<PeerId>) {
        self.decide(&own.mirrored(), to.map_or(Fate::Here, Fate::To));
    }

    /// Whether what comes for this flow's socket waits, or is handed on.
    pub fn sets_aside(&self, own: &FlowTuple) -> bool {
        self.table.aside.knows(&own.mirrored())
    }

    /// Nothing waits for this flow's socket any longer, and what did is gone.
    pub fn forget_aside(&self, own: &FlowTuple) {
        self.table.aside.forget(&own.mirrored());
    }

    fn decide(&self, flow: &FlowTuple, fate: Fate) {
        if self.table.aside.decide(flow, fate, Instant::now()) {
            signal(&self.nudge);
        }
    }

    /// A socket of this flow may come here: what these peers send for it waits, within the bounds of
    /// [`Tunnel::set_aside`].
    pub fn expect_flow(&self, own: FlowTuple, from: Vec<PeerId>) {
        self.table.early.expect(own, from, Instant::now());
    }

    /// The socket is there, and the data plane knows the way to it: it gets what waits, and for two seconds more what
    /// these peers send.
    pub fn open_flow(&self, own: &FlowTuple) {
        let header = VnetHeader::default().encode();
        self.table.early.open(own, Instant::now(), |packet| {
            let written = self.tun.write(&[IoSlice::new(&header), IoSlice::new(&packet)]);
            self.counters.count(if written.is_ok() { Counter::PacketsReceived } else { Counter::WriteFailed });
        });
    }

    /// It does not come.
    pub fn forget_expected(&self, own: &FlowTuple) {
        self.table.early.forget(own);
    }

    /// Adds or replaces one flow.
    pub fn set_flow(&self, flow: TunnelFlow) {
        self.table.set_flows([flow]);
        self.decide(&flow.own, Fate::ByFlow);
    }

    /// Forgets a flow: its packets are dropped in both directions from now on.
    pub fn remove_flow(&self, own: &FlowTuple) {
        self.table.remove_flow(own);
    }

    /// Carries what goes to and from an end that is leased, and is of no flow, or changes from or to whom it is.
    pub fn set_lease(&self, end: LeasedEnd, lease: Lease) {
        self.table.set_lease(end, lease);
    }

    /// Forgets a lease: what is of no flow is dropped again in both directions.
    pub fn remove_lease(&self, end: &LeasedEnd) {
        self.table.remove_lease(end);
    }

    /// From now on what the TUN device has of this flow goes to [`Tunnel::receive_kept`], or no longer.
    pub fn keep(&self, own: FlowTuple, kept: bool) {
        self.table.keep(own, kept);
    }

    /// Takes the next packet of a flow that is kept: a whole IP packet, perhaps as long as several segments, whose
    /// checksum may not be filled in. The eventfd given at the start becomes readable when there are some.
    #[must_use]
    pub fn receive_kept(&self) -> Option<Vec<u8>> {
        self.kept.try_recv().ok()
    }

    /// Receives sealed datagrams of this session from now on. The same keys given again go on with their counter and
    /// replay window.
    ///
    /// Keys that were removed must never be added again: their counter would start anew.
    pub fn add_keys(&self, peer: PeerId, receive_index: u32, algorithm: Algorithm, keys: &TunnelKeys) {
        self.table.add_keys(peer, receive_index, algorithm, keys);
    }

    /// When something came last that a peer has sealed, of each that any has come of: by CLOCK_BOOTTIME. What is plain
    /// does not count: whoever has seen a datagram of it can make others.
    #[must_use]
    pub fn heard(&self) -> HashMap<PeerId, Duration> {
        self.table.heard()
    }

    /// Neither receives nor sends with this session any longer.
    pub fn remove_keys(&self, receive_index: u32) {
        self.table.remove_keys(receive_index);
    }

    /// Sends the packets of a binding's flows on `path`, with the session of its peer's that has this index here. To be
    /// called again whenever session or path change.
    ///
    /// # Errors
    /// [`PathError`] if [`Tunnel::add_keys`] was not called for the session, or [`Tunnel::set_chain`] for the path's
    /// chain; nothing is changed.
    pub fn set_path(&self, id: BindingId, receive_index: u32, path: TunnelPath) -> Result<(), PathError> {
        let (destination, source, interface) = (path.remote, path.source, path.interface);
        let waited = self.table.set_path(id, receive_index, path)?;
        let transmits: Vec<Transmit<'_>> = waited
            .iter()
            .map(|contents| Transmit { destination, source, interface, contents, segment_size: None })
            .collect();
        let report = self.udp.send(&transmits);
        self.counters.add(Counter::PacketsSent, report.sent);
        self.counters.add(Counter::SendFailed, report.dropped);
        Ok(())
    }

    /// Lets so many bytes more go by this binding, whose path is not confirmed (P-18).
    pub fn grant(&self, id: BindingId, bytes: u64) {
        self.table.grant(id, bytes);
    }

    /// Sends nothing more by this binding. What its peer sends is still received.
    pub fn remove_path(&self, id: BindingId) {
        self.table.remove_path(id);
    }

    /// What comes from a peer with this number goes through this chain from now on, and what its first binding sends
    /// where [`TunnelPath::chain`] says so. The peer has its like. A chain outlives sessions and paths. One that has
    /// the number already is forgotten, with what it keeps.
    pub fn set_chain(&self, peer: PeerId, number: NonZeroU8, chain: Chain) {
        self.table.set_chain(peer, number, chain);
    }

    /// What a peer's first binding sends goes through this chain from now on, whatever its path says; `None`: through
    /// none. The one before gives out what it keeps. Without a path to the peer nothing happens.
    ///
    /// # Errors
    /// [`PathError::UnknownChain`]; nothing is changed.
    pub fn send_through(&self, peer: PeerId, number: Option<NonZeroU8>) -> Result<(), PathError> {
        let before = self.table.send_through(peer, number)?;
        if let Some(before) = before.filter(|before| Some(before.number) != number.map(NonZeroU8::get)) {
            Chains::new(self).release(&before);
        }
        Ok(())
    }

    /// Looks at a chain's counters, or changes its parameters; `None` if there is none of this number. Packets wait
    /// meanwhile, and so would a call of the tunnel in `work`.
    pub fn with_chain<T>(&self, peer: PeerId, number: NonZeroU8, work: impl FnOnce(&mut Chain) -> T) -> Option<T> {
        let chained = self.table.chain(peer, number.get())?;
        let done = work(&mut chained.lock());
        signal(&self.nudge);
        Some(done)
    }

    /// Gives out at once what a chain keeps.
    pub fn release_chain(&self, peer: PeerId, number: NonZeroU8) {
        if let Some(chained) = self.table.chain(peer, number.get()) {
            Chains::new(self).release(&chained);
        }
    }

    /// Gives out what a chain keeps and forgets it. What still comes with its number is dropped. The path must not lead
    /// through it any longer ([`Tunnel::set_path`]).
    pub fn remove_chain(&self, peer: PeerId, number: NonZeroU8) {
        if let Some(chained) = self.table.remove_chain(peer, number) {
            Chains::new(self).release(&chained);
        }
    }

    /// Sends one datagram from the port of the tunnel, from an address of choice, by an interface of choice.
    ///
    /// # Errors
    /// The kernel's reason: ENETUNREACH, EADDRNOTAVAIL (the source is no address of this host), EMSGSIZE…
    pub fn send_control(
        &self,
        source: Option<IpAddr>,
        interface: Option<u32>,
        destination: SocketAddr,
        contents: &[u8],
    ) -> io::Result<()> {
        let transmit = Transmit { destination, source, interface, contents, segment_size: None };
        match self.udp.send(&[transmit]) {
            SendReport { error: Some(error), .. } => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes the next control datagram or error report, initiations excepted.
    #[must_use]
    pub fn receive_control(&self) -> Option<Received> {
        self.control.try_recv().ok()
    }

    /// Takes the next initiation of a handshake. Anybody can send these, and answering one is dear.
    #[must_use]
    pub fn receive_initiation(&self) -> Option<Received> {
        self.initiations.try_recv().ok()
    }

    /// What was carried and dropped since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The TUN device, for its name, index and MTU.
    #[must_use]
    pub fn device(&self) -> &Tun {
        &self.tun
    }

    /// The UDP socket, for its port and don't-fragment setting.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.udp
    }

    /// Whether both directions are still pumped. They are until something happens to device or socket that cannot be
    /// waited for, such as the device's removal by somebody else; the log says what. The eventfd wakes then, too.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    fn spawn(
        &mut self,
        name: &str,
        wake: &Arc<OwnedFd>,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        let end = WakeAtEnd(Arc::clone(wake));
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _end = end;
            run();
        });
        self.threads.push(thread.map_err(|source| StartError { call: "clone", source })?);
        Ok(())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        signal(&self.stop);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Wakes the control thread when a pump ends, in whatever way.
struct WakeAtEnd(Arc<OwnedFd>);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        signal(&self.0);
    }
}

/// Adds one to an eventfd. It can only be full if it is readable already.
fn signal(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// What a pump was woken by.
enum Woken {
    /// The descriptor has something to read, or an error queued.
    Ready(PollFlags),
    /// There is something else to do.
    Nudged,
    /// The moment has come.
    TimedOut,
    /// The tunnel ends.
    Stop,
}

fn wait(
    fd: impl std::os::fd::AsFd,
    stop: &OwnedFd,
    nudge: Option<&OwnedFd>,
    until: Option<Instant>,
) -> io::Result<Woken> {
    loop {
        let mut fds = vec![PollFd::new(&fd, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        fds.extend(nudge.map(|nudge| PollFd::new(nudge, PollFlags::IN)));
        // What is too long for the kernel is for ever.
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(0) => return Ok(Woken::TimedOut),
            Ok(_) if !fds[1].revents().is_empty() => return Ok(Woken::Stop),
            Ok(_) if fds.get(2).is_some_and(|nudged| !nudged.revents().is_empty()) => return Ok(Woken::Nudged),
            Ok(_) => return Ok(Woken::Ready(fds[0].revents())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
