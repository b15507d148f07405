//! Introductions and carrier probes: segments that are put into a flow without its socket's knowing.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use whimbrel_datapath::{self as datapath, Datapath, Position, TcpSocket};
use whimbrel_kernel::inject::{Injector, Numbers, Way};
use whimbrel_kernel::sock_diag::{SockDiag, TcpState};
use whimbrel_protocol::SocketNumbers;
use whimbrel_wire::introduction::Introduction;
use whimbrel_wire::{FlowTuple, Transport};

use super::{Failure, PAST_THE_HOLD};

/// In the segment's header, before scaling. The receiver consumes the segment, so nobody takes it for an announcement;
/// connection tracking on the way only ever widens what it accepts by it.
pub(crate) const WINDOW: u16 = 512;

/// The TCP sockets of flows as they were found, kept for the ops that are queued together.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// `None`: it was looked for.
    sockets: HashMap<FlowTuple, Option<TcpSocket>>,
    /// Where the numbers of those began that are connected, by their remote addresses.
    numbers: Option<HashMap<IpAddr, Vec<SocketNumbers>>>,
}

impl Snapshot {
    /// Looks flows of the calling thread's network namespace up that were not yet.
    pub(crate) fn look_up(&mut self, datapath: &Datapath, flows: &[FlowTuple]) -> Result<(), datapath::Error> {
        let wanted: Vec<FlowTuple> = flows.iter().filter(|flow| !self.sockets.contains_key(flow)).copied().collect();
        if !wanted.is_empty() {
            let found = datapath.look_up(&wanted)?;
            self.take(&wanted, found);
        }
        Ok(())
    }

    /// Takes in what was found of some.
    pub(crate) fn take(&mut self, wanted: &[FlowTuple], found: Vec<TcpSocket>) {
        self.sockets.extend(wanted.iter().map(|flow| (*flow, None)));
        self.sockets.extend(found.into_iter().map(|socket| (socket.flow, Some(socket))));
    }

    /// Of what was looked up.
    pub(crate) fn get(&self, flow: &FlowTuple) -> Option<&TcpSocket> {
        self.sockets.get(flow)?.as_ref()
    }

    /// The socket of one.
    pub(crate) fn socket(
        &mut self,
        datapath: &Datapath,
        flow: &FlowTuple,
    ) -> Result<Option<&TcpSocket>, datapath::Error> {
        self.look_up(datapath, std::slice::from_ref(flow))?;
        Ok(self.get(flow))
    }

    /// What sockets that are connected to `remotes` know of where their numbers began. Many peers may be asked for at
    /// once.
    pub(crate) fn numbers_of(
        &mut self,
        datapath: &Datapath,
        connections: &mut SockDiag,
        remotes: &[IpAddr],
    ) -> Result<Vec<SocketNumbers>, Failure> {
        if self.numbers.is_none() {
            let mut numbers: HashMap<IpAddr, Vec<SocketNumbers>> = HashMap::new();
            let all = connections.tcp(&[TcpState::Established])?.into_iter().map(|connection| connection.tuple);
            let all: Vec<FlowTuple> = all.filter(|flow| !flow.remote.ip().is_loopback()).collect();
            for socket in datapath.look_up(&all)? {
                let (first_sent, first_received) = (socket.first_sent(), socket.first_received());
                let of = SocketNumbers {
                    flow: socket.flow,
                    first_sent,
                    first_received,
                    heard: socket.heard,
                    round_trip: socket.round_trip,
                };
                numbers.entry(of.flow.remote.ip()).or_default().push(of);
            }
            self.numbers = Some(numbers);
        }
        let found = self.numbers.iter().flat_map(|numbers| remotes.iter().filter_map(|remote| numbers.get(remote)));
        Ok(found.flatten().copied().collect())
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
            // P-35, P-220. A socket that is bound to an interface is only found among all.
            let there = connections.find(&flow)?.is_some()
                || connections.find_unconnected(&flow)?.is_some()
                || connections.udp()?.iter().any(|connection| connection.tuple == flow);
            if !there {
                return Err(Failure::NoSocket(flow));
            }
            injector.introduce_udp(&flow, introduction, Way::default())?;
        }
        Transport::Tcp => {
            // One that is bound to an interface takes longer to find.
            let position = match datapath.tcp_position(&flow)? {
                Some(position) => position,
                None => snapshot.socket(datapath, &flow)?.ok_or(Failure::NoSocket(flow))?.into(),
            };
            injector.introduce_tcp(&flow, keepalive(position), introduction, Way::default())?;
        }
    }
    Ok(())
}

/// Sends a keepalive in a TCP flow that is on hold. `helped`: what its peer lacks next and will send next, where
/// somebody has answered in its name, so that its socket does not know it.
pub(super) fn ask(
    injector: &Injector,
    datapath: &mut Datapath,
    snapshot: &mut Snapshot,
    flow: FlowTuple,
    helped: Option<(u32, u32)>,
) -> Result<(), Failure> {
    let mut socket = *snapshot.socket(datapath, &flow)?.ok_or(Failure::NoSocket(flow))?;
    (socket.snd_una, socket.rcv_nxt) = helped.unwrap_or((socket.snd_una, socket.rcv_nxt));
    let way = Way { mark: Some(PAST_THE_HOLD), interface: None };
    Ok(injector.ask_tcp(&socket.flow, keepalive((&socket).into()), way)?)
}

/// Has the other end of a flow's socket say again what it has and how much more it takes, by a keepalive.
pub(crate) fn inquire(injector: &Injector, socket: &TcpSocket, way: Way) -> Result<(), Failure> {
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
pub(crate) struct Listening {
    wanted: BTreeSet<u32>,
    /// Those of the daemon before: its peers may go on for a while, and a program would read what nobody consumes
    /// (P-207).
    former: BTreeSet<u32>,
}

impl Listening {
    /// With those that the data plane has from the daemon before.
    pub(crate) fn after(datapath: &Datapath) -> Result<Self, whimbrel_datapath::Error> {
        Ok(Self { wanted: BTreeSet::new(), former: datapath.introduction_indices()?.into_iter().collect() })
    }

    /// Whether there are any of the daemon before.
    pub(crate) fn has_former(&self) -> bool {
        !self.former.is_empty()
    }

    /// Makes the data plane listen for these and no others, those of the daemon before excepted.
    pub(crate) fn set(&mut self, datapath: &Datapath, indices: Vec<u32>) -> Result<(), whimbrel_datapath::Error> {
        let wanted: BTreeSet<u32> = indices.into_iter().collect();
        for index in wanted.difference(&self.wanted) {
            datapath.listen_introductions(*index)?;
            self.former.remove(index);
        }
        for index in self.wanted.difference(&wanted) {
            datapath.ignore_introductions(*index)?;
        }
        self.wanted = wanted;
        Ok(())
    }

    /// Lets pass what is for sessions of the daemon before.
    pub(crate) fn forget_former(&mut self, datapath: &Datapath) {
        for index in std::mem::take(&mut self.former) {
            if let Err(error) = datapath.ignore_introductions(index) {
                tracing::debug!(%error, "an index of a session of before is consumed on");
            }
        }
    }
}
