//! Waking senders that wait out a back-off though there is a path again (DESIGN §2, *Kick*).

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use whimbrel_datapath::{Datapath, TcpSocket};
use whimbrel_kernel::inject::Injector;
use whimbrel_protocol::{FlowEntry, PeerId, Time};
use whimbrel_wire::FlowTuple;

use super::introductions::Snapshot;

/// Pauses between looks at a peer's sockets. A retransmission shows at the next look.
const PAUSES: [Duration; 7] = [
    Duration::from_millis(3),
    Duration::from_millis(6),
    Duration::from_millis(12),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
];

/// The kernel counts back-off steps in 8 bits; TCP gives up long before so many.
const STEPS: u8 = 32;

/// Peers whose senders are being woken.
#[derive(Debug, Default)]
pub(crate) struct Kicks {
    rounds: BTreeMap<PeerId, Round>,
}

#[derive(Debug)]
struct Round {
    looks: usize,
    next: Time,
    /// Where what was in flight when it began is lost: the longest packet, in bytes, that moved flows are to send from now
    /// on. To believe in it makes a sender that is not in back-off yet send again at once.
    shrink_to: Option<u32>,
    /// What waits, as it was when it was kicked last.
    waiting: HashMap<FlowTuple, TcpSocket>,
}

impl Kicks {
    /// Begins with a peer's senders; [`Kicks::run`] does the rest.
    pub(crate) fn begin(&mut self, now: Time, peer: PeerId, shrink_to: Option<u32>) {
        self.rounds.insert(peer, Round { looks: 0, next: now, shrink_to, waiting: HashMap::new() });
    }

    /// Forgets a peer.
    pub(crate) fn remove_peer(&mut self, peer: PeerId) {
        self.rounds.remove(&peer);
    }

    /// When to come back.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.rounds.values().map(|round| round.next).min()
    }

    /// Kicks what is due. Returns how many sockets were kicked. `open` is
    /// called right before anything of a peer's is sent again.
    ///
    /// # Errors
    /// When the sockets cannot be listed, or nothing can be injected; the rounds go on.
    pub(crate) fn run(
        &mut self,
        now: Time,
        datapath: &mut Datapath,
        injector: &Injector,
        flows: &HashMap<FlowTuple, FlowEntry>,
        snapshot: &mut Snapshot,
        mut open: impl FnMut(PeerId),
    ) -> Result<usize, super::Failure> {
        let mut kicked = 0;
        let mut result = Ok(());
        for (peer, round) in self.rounds.iter_mut().filter(|(_, round)| round.next <= now) {
            let first = round.looks == 0;
            match PAUSES.get(round.looks) {
                Some(pause) => round.next = now + *pause,
                None => round.waiting.clear(),
            }
            round.looks += 1;
            let sockets = match snapshot.sockets(datapath) {
                Ok(sockets) => sockets,
                Err(error) => {
                    result = Err(error.into());
                    continue;
                }
            };
            let candidates: Vec<FlowTuple> = if first {
                // Whichever is shorter is looked through: a peer has few of many flows, or many of few sockets.
                sockets
                    .keys()
                    .filter(|flow| flows.get(flow).is_some_and(|entry| entry.peer == *peer))
                    .copied()
                    .collect()
            } else {
                round.waiting.keys().copied().collect()
            };
            if first {
                open(*peer);
            }
            for flow in candidates {
                let Some(socket) = sockets.get(&flow).filter(|socket| in_flight(socket)) else {
                    round.waiting.remove(&flow);
                    continue;
                };
                let before = round.waiting.insert(flow, *socket);
                if before.is_some_and(|before| went_on(&before, socket)) {
                    round.waiting.remove(&flow);
                    continue;
                }
                for _ in 0..socket.backoff.min(STEPS) {
                    if let Err(error) = injector.kick(&flow, socket.snd_una) {
                        result = Err(error.into());
                        break;
                    }
                }
                // A step of back-off less is still at least the timer's smallest value since the last transmission.
                let shrink_to = round.shrink_to.filter(|_| first);
                if let Some(mtu) = shrink_to
                    && let Err(error) = injector.shrink(&flow, socket.snd_una, shrunken(mtu, socket))
                {
                    result = Err(error.into());
                }
                kicked += usize::from(socket.backoff > 0 || shrink_to.is_some());
            }
        }
        self.rounds.retain(|_, round| round.looks <= PAUSES.len() && !round.waiting.is_empty());
        result.map(|()| kicked)
    }
}

/// The MTU that a socket is told: a byte above the route's own leaves no trace in the kernel; where the route's is not
/// lower than what the socket uses, one below that.
fn shrunken(inner_mtu: u32, socket: &TcpSocket) -> u16 {
    let told = if inner_mtu + 1 < socket.pmtu_cookie { inner_mtu + 1 } else { socket.pmtu_cookie.saturating_sub(8) };
    u16::try_from(told).unwrap_or(u16::MAX)
}

/// Whether anything that was sent is not acknowledged.
fn in_flight(socket: &TcpSocket) -> bool {
    socket.snd_una != socket.snd_nxt
}

/// Whether a socket has sent again, or was answered, since `before`.
fn went_on(before: &TcpSocket, now: &TcpSocket) -> bool {
    now.snd_una != before.snd_una || (before.backoff > 0 && now.retransmits > before.retransmits)
}
