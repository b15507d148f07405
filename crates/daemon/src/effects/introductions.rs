//! Introductions and carrier probes: segments that are put into a flow without its socket's knowing.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use whimbrel_datapath::{Datapath, Position, TcpSocket};
use whimbrel_kernel::inject::{Injector, Numbers, Way};
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_protocol::SocketNumbers;
use whimbrel_wire::introduction::Introduction;
use whimbrel_wire::{FlowTuple, Transport};

use super::{Failure, MARK};

/// In the segment's header, before scaling. The receiver consumes the segment, so nobody takes it for an announcement;
/// connection tracking on the way only ever widens what it accepts by it.
pub(super) const WINDOW: u16 = 512;
/// `TCP_ESTABLISHED`, `include/net/tcp_states.h`.
const ESTABLISHED: u8 = 1;

/// The TCP sockets as one pass of the kernel's iterator found them, kept for the ops that are queued together.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    sockets: Option<HashMap<FlowTuple, TcpSocket>>,
    /// Where the numbers of those began that are connected, by their remote addresses.
    numbers: Option<HashMap<IpAddr, Vec<SocketNumbers>>>,
}

impl Snapshot {
    /// The sockets, looked up once.
    pub(crate) fn sockets(
        &mut self,
        datapath: &mut Datapath,
    ) -> Result<&HashMap<FlowTuple, TcpSocket>, whimbrel_datapath::Error> {
        if self.sockets.is_none() {
            let mut sockets = HashMap::new();
            datapath.tcp_sockets(|socket| {
                sockets.insert(socket.flow, *socket);
            })?;
            self.sockets = Some(sockets);
        }
        Ok(self.sockets.get_or_insert_default())
    }

    /// What sockets that are connected to `remote` know of where their numbers began. Many peers may be asked for at once.
    pub(crate) fn numbers_of(
        &mut self,
        datapath: &mut Datapath,
        remote: IpAddr,
    ) -> Result<Vec<SocketNumbers>, whimbrel_datapath::Error> {
        if self.numbers.is_none() {
            let mut numbers: HashMap<IpAddr, Vec<SocketNumbers>> = HashMap::new();
            for socket in self.sockets(datapath)?.values().filter(|socket| socket.state == ESTABLISHED) {
                let TcpSocket { flow, first_sent, first_received, .. } = *socket;
                let of = SocketNumbers { flow, first_sent, first_received };
                numbers.entry(flow.remote.ip()).or_default().push(of);
            }
            self.numbers = Some(numbers);
        }
        Ok(self.numbers.iter().filter_map(|numbers| numbers.get(&remote)).flatten().copied().collect())
    }

    /// Adds one of another network namespace.
    pub(crate) fn add(&mut self, socket: TcpSocket) {
        self.sockets.get_or_insert_default().insert(socket.flow, socket);
    }
}

/// Injects an introduction into a flow of a socket.
pub(crate) fn introduce(
    injector: &Injector,
    datapath: &mut Datapath,
    connections: &mut SockDiag,
    snapshot: &mut Snapshot,
    flow: FlowTuple,
    introduction: Introduction,
) -> Result<(), Failure> {
    match flow.transport {
        Transport::Udp => {
            // P-35. A socket that is bound to an interface is only found among all.
            let there = connections.find(&flow)?.is_some()
                || connections.udp()?.iter().any(|connection| connection.tuple == flow);
            if !there {
                return Err(Failure::NoSocket(flow));
            }
            injector.introduce_udp(&flow, introduction, Way::default())?;
        }
        Transport::Tcp => {
            // One that is bound to an interface is only found among all.
            let position = match datapath.tcp_position(&flow)? {
                Some(position) => position,
                None => snapshot.sockets(datapath)?.get(&flow).ok_or(Failure::NoSocket(flow))?.into(),
            };
            injector.introduce_tcp(&flow, keepalive(position), introduction, Way::default())?;
        }
    }
    Ok(())
}

/// Sends a keepalive in a TCP flow that is on hold. `helped`: what its peer lacks next and will send next, where somebody has
/// answered in its name, so that its socket does not know it.
pub(crate) fn ask(
    injector: &Injector,
    datapath: &mut Datapath,
    snapshot: &mut Snapshot,
    flow: FlowTuple,
    helped: Option<(u32, u32)>,
) -> Result<(), Failure> {
    let mut socket = *snapshot.sockets(datapath)?.get(&flow).ok_or(Failure::NoSocket(flow))?;
    (socket.snd_una, socket.rcv_nxt) = helped.unwrap_or((socket.snd_una, socket.rcv_nxt));
    // Past the hold, and not by the ways of moved flows.
    inquire(injector, &socket, Way { mark: Some(MARK.mask & !MARK.value), interface: None })
}

/// Has the other end of a flow's socket say again what it has and how much more it takes, by a keepalive.
pub(super) fn inquire(injector: &Injector, socket: &TcpSocket, way: Way) -> Result<(), Failure> {
    // No daemon consumes it: session index 0 is nobody's.
    injector.introduce_tcp(&socket.flow, keepalive(socket.into()), Introduction { index: 0, nonce: 0 }, way)?;
    Ok(())
}

fn keepalive(socket: Position) -> Numbers {
    Numbers {
        // As a keepalive has it (RFC 9293 §3.8.4): a stack that does not know the option only acknowledges it.
        sequence: socket.snd_una.wrapping_sub(1),
        acknowledgement: socket.rcv_nxt,
        window: WINDOW,
    }
}

/// Sends a carrier probe on a tuple that no socket has.
pub(crate) fn probe(injector: &Injector, wire: FlowTuple, introduction: Introduction) -> Result<(), Failure> {
    // Any numbers do: nobody on the way knows the connection.
    let sequence = u32::from_be_bytes(introduction.nonce.to_be_bytes()[..4].try_into().unwrap_or_default());
    let numbers = Numbers { sequence, acknowledgement: !sequence, window: WINDOW };
    injector.introduce_tcp(&wire, numbers, introduction, Way::default())?;
    Ok(())
}

/// The session indices that introductions are consumed for.
#[derive(Debug, Default)]
pub(crate) struct Listening(BTreeSet<u32>);

impl Listening {
    /// Makes the data plane listen for these and no others.
    pub(crate) fn set(&mut self, datapath: &Datapath, indices: Vec<u32>) -> Result<(), whimbrel_datapath::Error> {
        let wanted: BTreeSet<u32> = indices.into_iter().collect();
        for index in wanted.difference(&self.0) {
            datapath.listen_introductions(*index)?;
        }
        for index in self.0.difference(&wanted) {
            datapath.ignore_introductions(*index)?;
        }
        self.0 = wanted;
        Ok(())
    }
}
