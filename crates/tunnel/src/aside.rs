//! Packets for sockets that are being moved: kept while nobody has the socket, then handed to whoever does.
//!
//! At the donor they come from the TUN device, where the data plane leads what comes for a socket at rest ([`Aside`]).
//! At the acceptor they come out of the tunnel before the node there knows that the flow is its own ([`Early`]). Order
//! is kept in both.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_wire::{FlowTuple, PeerId, Transport};

/// Of one flow at the most, in bytes: a receive window of TCP's.
const FLOW_BYTES: usize = 8 << 20;
/// The same in packets, which may be as long as 64 KiB at the donor.
const FLOW_PACKETS: usize = 4096;
/// Of all flows together, in bytes.
const ALL_BYTES: usize = 64 << 20;
/// How long packets are handed on after the socket has gone, and are taken from others than the flow's peer after it
/// has come: what waits in queues on the way comes after the word that nothing more goes there.
pub const LATE: Duration = Duration::from_secs(2);
/// Between looks at all flows for those that are over.
const FORGET_PAUSE: Duration = Duration::from_millis(250);

/// Where that goes which was kept, and what still comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nobody knows yet.
    Waits,
    /// As the flow says: it is this host that leads it to whoever has the socket.
    ByFlow,
    /// To a peer that has the socket now.
    To(PeerId),
    /// To the socket, which goes on here.
    Here,
}

/// What a packet meets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// No socket that is being moved. It goes its way.
    Nothing,
    /// It waits.
    Waits,
    /// There is no room for it: what comes last is dropped.
    Full,
    /// It goes there, behind these.
    Goes(Fate, Vec<Vec<u8>>),
}

#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Queue {
    /// Takes a packet if there is room for it beside the others'.
    fn push(&mut self, all: &mut usize, packet: Vec<u8>) -> bool {
        let bytes = packet.len();
        if self.packets.len() >= FLOW_PACKETS || self.bytes + bytes > FLOW_BYTES || *all + bytes > ALL_BYTES {
            return false;
        }
        self.bytes += bytes;
        *all += bytes;
        self.packets.push_back(packet);
        true
    }

    fn take(&mut self, all: &mut usize) -> Vec<Vec<u8>> {
        *all -= std::mem::take(&mut self.bytes);
        std::mem::take(&mut self.packets).into()
    }
}

/// Flows, and the bytes that are kept for all of them.
#[derive(Debug)]
struct Kept<T> {
    flows: HashMap<FlowTuple, T>,
    bytes: usize,
    /// Of which something has been decided since they were looked at last.
    decided: Vec<FlowTuple>,
    /// When some are to be forgotten at the soonest. All are looked at for that, so it is not done for each that ends.
    forget_at: Option<Instant>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { flows: HashMap::new(), bytes: 0, decided: Vec::new(), forget_at: None }
    }
}

impl<T> Kept<T> {
    /// One of the flows is over then.
    fn forget_from(&mut self, until: Instant) {
        self.forget_at = Some(self.forget_at.map_or(until, |at| at.min(until)));
    }

    /// Whether flows are to be looked at for some that are over. Those that end soon after are not looked for before a
    /// while has passed.
    fn take_forget(&mut self, now: Instant) -> bool {
        let due = self.forget_at.is_some_and(|at| at <= now);
        if due {
            self.forget_at = Some(now + FORGET_PAUSE);
        }
        due
    }
}

/// The name under which packets are awaited that have this one: its own, or that of a socket without another end. One
/// of UDP takes what anybody sends, one that listens what `opens` a connection.
fn known_as<T>(
    flows: &HashMap<FlowTuple, T>,
    name: FlowTuple,
    opens: bool,
    unconnected: impl Fn() -> FlowTuple,
) -> FlowTuple {
    if name.transport == Transport::Tcp && !opens || flows.contains_key(&name) { name } else { unconnected() }
}

/// Packets for sockets that are at rest at this host, by the name of the flow as whoever sends them has it.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    kept: Mutex<Kept<Resting>>,
    /// How many there are, so that nobody waits for the lock where there are none.
    flows: AtomicUsize,
}

#[derive(Debug)]
struct Resting {
    queue: Queue,
    fate: Fate,
    /// When it is over.
    until: Option<Instant>,
}

impl Aside {
    fn lock(&self) -> MutexGuard<'_, Kept<Resting>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Packets of this flow wait from now on.
    pub(crate) fn keep(&self, flow: FlowTuple) {
        let mut kept = self.lock();
        let Kept { flows, bytes, .. } = &mut *kept;
        let resting = Resting { queue: Queue::default(), fate: Fate::Waits, until: None };
        if let Some(mut before) = flows.insert(flow, resting) {
            before.queue.take(bytes);
        }
        self.flows.store(flows.len(), Ordering::Release);
    }

    /// Whether there is such a flow.
    pub(crate) fn knows(&self, flow: &FlowTuple) -> bool {
        self.flows.load(Ordering::Acquire) != 0 && self.lock().flows.contains_key(flow)
    }

    /// What waits goes there; whether [`Self::take_due`] has something to do now. Otherwise its thread need not be
    /// woken, which is a tenth of what moving an idle socket costs.
    pub(crate) fn decide(&self, flow: &FlowTuple, fate: Fate, now: Instant) -> bool {
        if self.flows.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut kept = self.lock();
        let Some(resting) = kept.flows.get_mut(flow).filter(|resting| resting.fate == Fate::Waits) else {
            return false;
        };
        resting.fate = fate;
        resting.until = Some(now + LATE);
        let waits = !resting.queue.packets.is_empty();
        if waits {
            kept.decided.push(*flow);
        } else if fate == Fate::ByFlow {
            kept.flows.remove(flow);
            self.flows.store(kept.flows.len(), Ordering::Release);
        }
        kept.forget_from(now + LATE);
        waits || kept.forget_at.is_some_and(|at| at <= now)
    }

    /// Forgets a flow, and what waits for it.
    pub(crate) fn forget(&self, flow: &FlowTuple) {
        let mut kept = self.lock();
        let Kept { flows, bytes, .. } = &mut *kept;
        if let Some(mut resting) = flows.remove(flow) {
            resting.queue.take(bytes);
        }
        self.flows.store(flows.len(), Ordering::Release);
    }

    /// What becomes of a packet. `opens`: it opens a connection of TCP. `packet` is asked for only where it has to
    /// wait.
    pub(crate) fn meet(&self, flow: &FlowTuple, opens: bool, packet: impl FnOnce() -> Vec<u8>) -> Meeting {
        if self.flows.load(Ordering::Acquire) == 0 {
            return Meeting::Nothing;
        }
        let mut kept = self.lock();
        let Kept { flows, bytes, .. } = &mut *kept;
        let unconnected = || FlowTuple::unconnected(flow.transport, flow.remote).mirrored();
        let known = known_as(flows, *flow, opens, unconnected);
        let Some(resting) = flows.get_mut(&known) else { return Meeting::Nothing };
        if resting.fate == Fate::Waits {
            return if resting.queue.push(bytes, packet()) { Meeting::Waits } else { Meeting::Full };
        }
        Meeting::Goes(resting.fate, resting.queue.take(bytes))
    }

    /// What waits and may go now. Flows that are over are forgotten.
    pub(crate) fn take_due(&self, now: Instant) -> Vec<(FlowTuple, Fate, Vec<Vec<u8>>)> {
        let mut kept = self.lock();
        let forgets = kept.take_forget(now);
        let Kept { flows, bytes, decided, forget_at } = &mut *kept;
        let mut due = Vec::new();
        for flow in decided.drain(..) {
            let Some(resting) = flows.get_mut(&flow).filter(|resting| resting.fate != Fate::Waits) else { continue };
            if !resting.queue.packets.is_empty() {
                due.push((flow, resting.fate, resting.queue.take(bytes)));
            }
            // Behind what waited, what comes goes by the flow itself.
            if resting.fate == Fate::ByFlow {
                flows.remove(&flow);
            }
        }
        if forgets {
            flows.retain(|_, resting| resting.until.is_none_or(|until| now < until));
            if flows.is_empty() {
                *forget_at = None;
            }
        }
        self.flows.store(flows.len(), Ordering::Release);
        due
    }
}

/// Packets for sockets that come to this host, by the name of the flow as the socket has it.
#[derive(Debug, Default)]
pub(crate) struct Early {
    kept: Mutex<Kept<Coming>>,
    flows: AtomicUsize,
}

#[derive(Debug)]
struct Coming {
    /// Who may send them: donor and holder.
    from: Vec<PeerId>,
    queue: Queue,
    /// It has come. Packets are still taken from all of them for a while.
    open_until: Option<Instant>,
}

/// What becomes of a packet that is early, or late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is no such packet.
    Other,
    /// It waits.
    Waits,
    /// There is no room for it: what comes last is dropped.
    Full,
    /// It may go to the socket.
    Passes,
}

impl Early {
    fn lock(&self) -> MutexGuard<'_, Kept<Coming>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A socket may come, and packets for it from these peers before it.
    pub(crate) fn expect(&self, flow: FlowTuple, from: Vec<PeerId>, now: Instant) {
        let mut kept = self.lock();
        let forgets = kept.take_forget(now);
        let Kept { flows, bytes, .. } = &mut *kept;
        if forgets {
            flows.retain(|_, coming| coming.open_until.is_none_or(|until| now < until));
        }
        let coming = Coming { from, queue: Queue::default(), open_until: None };
        if let Some(mut before) = flows.insert(flow, coming) {
            before.queue.take(bytes);
        }
        self.flows.store(flows.len(), Ordering::Release);
    }

    /// It has come: `deliver` gets what waits. Nothing that comes meanwhile gets ahead of that.
    pub(crate) fn open(&self, flow: &FlowTuple, now: Instant, deliver: impl FnMut(Vec<u8>)) {
        if self.flows.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut kept = self.lock();
        let Kept { flows, bytes, .. } = &mut *kept;
        let Some(coming) = flows.get_mut(flow).filter(|coming| coming.open_until.is_none()) else { return };
        coming.open_until = Some(now + LATE);
        coming.queue.take(bytes).into_iter().for_each(deliver);
        kept.forget_from(now + LATE);
    }

    /// It does not come.
    pub(crate) fn forget(&self, flow: &FlowTuple) {
        let mut kept = self.lock();
        let Kept { flows, bytes, .. } = &mut *kept;
        if flows.get(flow).is_some_and(|coming| coming.open_until.is_none())
            && let Some(mut coming) = flows.remove(flow)
        {
            coming.queue.take(bytes);
        }
        self.flows.store(flows.len(), Ordering::Release);
    }

    /// What becomes of a packet that a peer sent. `opens`: it opens a connection of TCP.
    pub(crate) fn meet(
        &self,
        flow: &FlowTuple,
        opens: bool,
        from: PeerId,
        packet: impl FnOnce() -> Vec<u8>,
    ) -> Arrival {
        if self.flows.load(Ordering::Acquire) == 0 {
            return Arrival::Other;
        }
        let mut kept = self.lock();
        let Kept { flows, bytes, .. } = &mut *kept;
        let known = known_as(flows, *flow, opens, || FlowTuple::unconnected(flow.transport, flow.local));
        let Some(coming) = flows.get_mut(&known).filter(|coming| coming.from.contains(&from)) else {
            return Arrival::Other;
        };
        match coming.open_until {
            Some(until) if Instant::now() < until => Arrival::Passes,
            Some(_) => Arrival::Other,
            None if coming.queue.push(bytes, packet()) => Arrival::Waits,
            None => Arrival::Full,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_wire::Transport;

    fn flow(port: u16) -> FlowTuple {
        let end = |host: &str, port| std::net::SocketAddr::new(host.parse().expect("an address"), port);
        FlowTuple { transport: Transport::Udp, local: end("192.0.2.1", port), remote: end("192.0.2.2", 9) }
    }

    #[test]
    fn what_waited_goes_before_what_comes() {
        let (aside, now) = (Aside::default(), Instant::now());
        assert_eq!(aside.meet(&flow(1), false, || vec![0]), Meeting::Nothing);
        aside.keep(flow(1));
        assert_eq!(aside.meet(&flow(1), false, || vec![1]), Meeting::Waits);
        assert_eq!(aside.meet(&flow(1), false, || vec![2]), Meeting::Waits);
        assert_eq!(aside.meet(&flow(2), false, || vec![3]), Meeting::Nothing, "another flow");
        assert!(aside.take_due(now).is_empty(), "nothing is decided");
        assert!(aside.decide(&flow(1), Fate::To(PeerId(4)), now));
        assert!(!aside.decide(&flow(1), Fate::Here, now), "decided is decided");
        assert_eq!(
            aside.meet(&flow(1), false, || panic!("it need not wait")),
            Meeting::Goes(Fate::To(PeerId(4)), vec![vec![1], vec![2]])
        );
        assert_eq!(aside.meet(&flow(1), false, Vec::new), Meeting::Goes(Fate::To(PeerId(4)), Vec::new()));
        assert!(aside.take_due(now + LATE).is_empty());
        assert_eq!(aside.meet(&flow(1), false, Vec::new), Meeting::Nothing, "it is over");
    }

    #[test]
    fn where_the_flow_leads_it_all_is_as_usual_once_nothing_waits() {
        let (aside, now) = (Aside::default(), Instant::now());
        aside.keep(flow(1));
        assert_eq!(aside.meet(&flow(1), false, || vec![1]), Meeting::Waits);
        assert!(aside.decide(&flow(1), Fate::ByFlow, now));
        assert_eq!(aside.take_due(now), [(flow(1), Fate::ByFlow, vec![vec![1]])]);
        assert_eq!(aside.meet(&flow(1), false, Vec::new), Meeting::Nothing);
    }

    #[test]
    fn nobody_is_woken_for_sockets_for_which_nothing_came() {
        let (aside, now) = (Aside::default(), Instant::now());
        for port in 1..4 {
            aside.keep(flow(port));
        }
        assert!(!aside.decide(&flow(1), Fate::ByFlow, now) && !aside.knows(&flow(1)));
        assert!(!aside.decide(&flow(2), Fate::To(PeerId(4)), now));
        assert_eq!(aside.meet(&flow(2), false, Vec::new), Meeting::Goes(Fate::To(PeerId(4)), Vec::new()));
        assert!(aside.decide(&flow(3), Fate::Here, now + LATE), "but for what is to be forgotten");
        assert!(aside.take_due(now + LATE).is_empty());
        assert!(!aside.knows(&flow(2)) && aside.knows(&flow(3)));
    }

    #[test]
    fn what_comes_last_finds_no_room() {
        let aside = Aside::default();
        aside.keep(flow(1));
        for _ in 0..FLOW_PACKETS {
            assert_eq!(aside.meet(&flow(1), false, || vec![1]), Meeting::Waits);
        }
        assert_eq!(aside.meet(&flow(1), false, || vec![1]), Meeting::Full);
        let long = || vec![0; FLOW_BYTES / 8];
        let flows = (2..).map(flow).take(ALL_BYTES / FLOW_BYTES);
        let mut full = 0;
        for other in flows {
            aside.keep(other);
            full += (0..9).filter(|_| aside.meet(&other, false, long) == Meeting::Full).count();
        }
        // One too many of each, and one more for what was there.
        assert_eq!(full, ALL_BYTES / FLOW_BYTES + 1);
        aside.forget(&flow(2));
        aside.keep(flow(2));
        assert_eq!(aside.meet(&flow(2), false, long), Meeting::Waits, "there is room again");
    }

    #[test]
    fn what_anybody_sends_waits_for_a_socket_that_is_not_connected() {
        let now = Instant::now();
        let socket = FlowTuple::unconnected(Transport::Udp, flow(1).local);
        let (aside, early) = (Aside::default(), Early::default());
        aside.keep(socket.mirrored());
        let (one, other) = (flow(1).mirrored(), FlowTuple { remote: flow(3).local, ..flow(1) }.mirrored());
        assert_eq!(aside.meet(&one, false, || vec![1]), Meeting::Waits);
        assert_eq!(aside.meet(&other, false, || vec![2]), Meeting::Waits);
        assert_eq!(aside.meet(&flow(2).mirrored(), false, Vec::new), Meeting::Nothing, "to another port");
        let stream = FlowTuple { transport: Transport::Tcp, ..one };
        assert_eq!(aside.meet(&stream, true, Vec::new), Meeting::Nothing, "of another transport");
        assert!(aside.decide(&socket.mirrored(), Fate::To(PeerId(4)), now));
        let all = [(socket.mirrored(), Fate::To(PeerId(4)), vec![vec![1], vec![2]])];
        assert_eq!(aside.take_due(now), all);

        early.expect(socket, vec![PeerId(1)], now);
        assert_eq!(early.meet(&flow(1), false, PeerId(1), || vec![1]), Arrival::Waits);
        assert_eq!(early.meet(&other.mirrored(), false, PeerId(1), || vec![2]), Arrival::Waits);
        assert_eq!(early.meet(&flow(1), false, PeerId(2), Vec::new), Arrival::Other);
        let mut came = Vec::new();
        early.open(&socket, now, |packet| came.push(packet));
        assert_eq!(came, [[1], [2]]);
        assert_eq!(early.meet(&other.mirrored(), false, PeerId(1), Vec::new), Arrival::Passes);
    }

    #[test]
    fn what_opens_a_connection_waits_for_a_socket_that_listens_and_nothing_else_does() {
        let now = Instant::now();
        let stream = FlowTuple { transport: Transport::Tcp, ..flow(1) };
        let socket = FlowTuple::unconnected(Transport::Tcp, stream.local);
        let (aside, early) = (Aside::default(), Early::default());
        aside.keep(socket.mirrored());
        assert_eq!(aside.meet(&stream.mirrored(), false, Vec::new), Meeting::Nothing, "of a connection that is there");
        assert_eq!(aside.meet(&stream.mirrored(), true, || vec![1]), Meeting::Waits);
        assert!(aside.decide(&socket.mirrored(), Fate::To(PeerId(4)), now));
        assert_eq!(aside.take_due(now), [(socket.mirrored(), Fate::To(PeerId(4)), vec![vec![1]])]);
        early.expect(socket, vec![PeerId(1)], now);
        assert_eq!(early.meet(&stream, false, PeerId(1), Vec::new), Arrival::Other);
        assert_eq!(early.meet(&stream, true, PeerId(1), || vec![1]), Arrival::Waits);
        assert_eq!(early.meet(&stream, true, PeerId(2), Vec::new), Arrival::Other, "from somebody else");
        let mut came = Vec::new();
        early.open(&socket, now, |packet| came.push(packet));
        assert_eq!(came, [[1]]);
        assert_eq!(early.meet(&stream, false, PeerId(1), Vec::new), Arrival::Other, "it is whose the connection is");
    }

    #[test]
    fn what_is_early_waits_and_what_is_late_passes() {
        let (early, now) = (Early::default(), Instant::now());
        let (donor, holder, other) = (PeerId(1), PeerId(2), PeerId(3));
        assert_eq!(early.meet(&flow(1), false, donor, Vec::new), Arrival::Other);
        early.expect(flow(1), vec![donor, holder], now);
        assert_eq!(early.meet(&flow(1), false, holder, || vec![1]), Arrival::Waits);
        assert_eq!(early.meet(&flow(1), false, donor, || vec![2]), Arrival::Waits);
        assert_eq!(early.meet(&flow(1), false, other, Vec::new), Arrival::Other, "somebody else");
        let mut came = Vec::new();
        early.open(&flow(1), now, |packet| came.push(packet));
        assert_eq!(came, [[1], [2]]);
        early.open(&flow(1), now, |_| panic!("nothing is left"));
        assert_eq!(early.meet(&flow(1), false, donor, Vec::new), Arrival::Passes);
        early.forget(&flow(1));
        assert_eq!(early.meet(&flow(1), false, donor, Vec::new), Arrival::Passes, "it has come");
        early.expect(flow(2), vec![donor], now + LATE);
        assert_eq!(early.meet(&flow(1), false, donor, Vec::new), Arrival::Other, "it was long ago");
        early.forget(&flow(2));
        assert_eq!(early.meet(&flow(2), false, donor, Vec::new), Arrival::Other);
    }
}
