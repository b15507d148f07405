//! The flows of this host that are known, and what they are found by.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::config::Config;
use crate::base::op::{FlowEntry, PeerId, Places};
use crate::base::random::Random;
use crate::flow::known::{Flow, Stage};
use crate::flow::ports::Ports;

/// Age at which a connection is introduced that has not had its turn before (P-15): short ones are left alone.
pub(crate) const MATURE: Duration = Duration::from_secs(1);
/// How long closed flows stay known: the last acknowledgements of a moved connection are translated too.
const LINGER: Duration = Duration::from_secs(60);
/// Connections that may be introduced late (P-204): not older than that, and not more.
pub(super) const YOUNG: Duration = Duration::from_secs(10);
const YOUNG_MOST: usize = 16_384;

/// All flows that this host knows, with the deadlines that concern them alone.
pub(crate) struct Flows {
    known: HashMap<FlowTuple, Flow>,
    /// How many of them are introduced.
    introduced: usize,
    /// Nonces of ours that are in flows.
    nonces: HashMap<u64, FlowTuple>,
    /// Flows that this host opened and that could not be introduced, by their remote addresses.
    failed: HashMap<IpAddr, BTreeSet<FlowTuple>>,
    /// Flows that are too young to be introduced, or are to be introduced again, by when they have their turn.
    young: BTreeSet<(Time, FlowTuple)>,
    /// Connections that were opened of late, the oldest first: whoever moves does not go through all that there are.
    opened: VecDeque<(Time, FlowTuple)>,
    /// Closed flows, oldest first.
    closed: VecDeque<(Time, FlowTuple)>,
    /// Those of them that are introduced, counted by their peers.
    over: HashMap<PeerId, Over>,
    /// Flows whose sockets are not connected, by when they end.
    leases: BTreeSet<(Time, FlowTuple)>,
    /// Those of them that others have begun, by where these are.
    unconnected_from: HashMap<IpAddr, BTreeSet<FlowTuple>>,
    /// They by the ports of their sockets and the remotes: such a socket may be bound to no address.
    by_remote: HashMap<(u16, SocketAddr), FlowTuple>,
    /// How many this host has begun, by the ports of their sockets, and in all.
    sent_by: HashMap<u16, usize>,
    sent: usize,
    /// Ports of this host that no moved flow is called by.
    ports: Ports,
    /// Flows whose sockets are on their way, from here or to here: who has them is being decided.
    reserved: HashSet<FlowTuple>,
    /// Flows that are opened from now on wait for their ruling.
    awaits_verdicts: bool,
}

impl Flows {
    pub(crate) fn new(config: &Config, random: &mut Random) -> Self {
        Self {
            known: HashMap::new(),
            introduced: 0,
            nonces: HashMap::new(),
            failed: HashMap::new(),
            young: BTreeSet::new(),
            opened: VecDeque::new(),
            closed: VecDeque::new(),
            over: HashMap::new(),
            leases: BTreeSet::new(),
            unconnected_from: HashMap::new(),
            by_remote: HashMap::new(),
            sent_by: HashMap::new(),
            sent: 0,
            ports: Ports::new(config, random),
            reserved: HashSet::new(),
            awaits_verdicts: false,
        }
    }

    pub(crate) fn get(&self, flow: &FlowTuple) -> Option<&Flow> {
        self.known.get(flow)
    }

    /// What is agreed of a flow, if it is introduced.
    pub(crate) fn entry(&self, flow: &FlowTuple) -> Option<&FlowEntry> {
        self.known.get(flow)?.entry()
    }

    pub(super) fn get_mut(&mut self, flow: &FlowTuple) -> Option<&mut Flow> {
        self.known.get_mut(flow)
    }

    /// A flow, to be changed, and the ports that are in use.
    pub(crate) fn get_mut_with_ports(&mut self, flow: &FlowTuple) -> Option<(&mut Flow, &Ports)> {
        let Self { known, ports, .. } = self;
        known.get_mut(flow).map(|known| (known, &*ports))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&FlowTuple, &Flow)> {
        self.known.iter()
    }

    /// Those of TCP that were opened of late and are known still; one whose tuple was used again may come twice.
    pub(super) fn opened(&self) -> impl Iterator<Item = (&FlowTuple, &Flow)> {
        self.opened.iter().filter_map(|(_, flow)| self.known.get_key_value(flow))
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// How many flows are introduced.
    pub(crate) fn introduced(&self) -> usize {
        self.introduced
    }

    /// Ports of this host that are in use.
    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// A socket came into being.
    pub(crate) fn open(&mut self, now: Time, flow: FlowTuple, accepted: bool) {
        let opened = Flow::opened(now, accepted);
        if flow.transport == Transport::Tcp {
            let is_old = |(since, _): &(Time, FlowTuple)| *since + YOUNG <= now;
            while self.opened.front().is_some_and(is_old) || self.opened.len() >= YOUNG_MOST {
                self.opened.pop_front();
            }
            self.opened.push_back((now, flow));
        }
        let verdict = opened.verdict.clone().filter(|_| !self.awaits_verdicts);
        self.put(flow, Flow { verdict, ..opened });
    }

    /// Knows a flow from now on, or knows something else of it.
    pub(crate) fn put(&mut self, flow: FlowTuple, known: Flow) {
        self.introduced += usize::from(known.entry().is_some());
        self.count_lease(flow, &known);
        self.count_over(known.closed, known.entry().copied());
        match self.known.insert(flow, known) {
            Some(before) => {
                self.introduced -= usize::from(before.entry().is_some());
                self.uncount_over(before.closed, before.entry().copied());
                // That of the new one is there once, if it is the same.
                let same = self.known.get(&flow).and_then(|known| known.lease) == before.lease;
                self.uncount_lease(&flow, &before, same);
            }
            None => self.ports.record_flow(flow.local.port()),
        }
    }

    /// A socket that is not connected has a flow, which ends at this moment unless something comes of it. `introducer`:
    /// who has begun it, if that was not this host.
    pub(super) fn open_unconnected(&mut self, now: Time, flow: FlowTuple, introducer: Option<PeerId>, until: Time) {
        self.open(now, flow, introducer.is_some());
        if let Some(known) = self.known.get_mut(&flow) {
            known.introducer = introducer;
        }
        self.set_lease(&flow, Some(until));
    }

    /// When a flow of a socket that is not connected ends; `None`: it is a connected one's.
    pub(crate) fn set_lease(&mut self, flow: &FlowTuple, until: Option<Time>) {
        let Some(known) = self.known.get(flow) else { return };
        let changed = Flow { lease: until, ..known.clone() };
        self.put(*flow, changed);
    }

    fn count_lease(&mut self, flow: FlowTuple, known: &Flow) {
        if let Some(until) = known.lease {
            self.leases.insert((until, flow));
            self.by_remote.insert((flow.local.port(), flow.remote), flow);
            match known.accepted {
                true => drop(self.unconnected_from.entry(site(flow.remote.ip())).or_default().insert(flow)),
                false => {
                    *self.sent_by.entry(flow.local.port()).or_default() += 1;
                    self.sent += 1;
                }
            }
        }
    }

    fn uncount_lease(&mut self, flow: &FlowTuple, known: &Flow, stays: bool) {
        let Some(until) = known.lease else { return };
        if !stays {
            self.leases.remove(&(until, *flow));
        }
        let is_still = self.known.get(flow).filter(|known| known.is_unconnected()).map(|known| known.accepted);
        let remote = (flow.local.port(), flow.remote);
        if is_still.is_none() && self.by_remote.get(&remote) == Some(flow) {
            self.by_remote.remove(&remote);
        }
        if !known.accepted {
            release(&mut self.sent_by, flow.local.port());
            self.sent -= 1;
        } else if is_still != Some(true)
            && let Entry::Occupied(mut from) = self.unconnected_from.entry(site(flow.remote.ip()))
        {
            from.get_mut().remove(flow);
            if from.get().is_empty() {
                from.remove();
            }
        }
    }

    /// Another address of this host's under which a socket with this port that is not connected has an introduced flow
    /// with the same remote already.
    pub(super) fn elsewhere(&self, flow: &FlowTuple) -> Option<IpAddr> {
        let other = self.by_remote.get(&(flow.local.port(), flow.remote)).filter(|other| *other != flow);
        other.filter(|other| self.entry(other).is_some()).map(|other| other.local.ip())
    }

    /// How many flows this host has begun by sockets that are not connected: by those with a port, and by all.
    pub(crate) fn sent_by(&self, port: u16) -> usize {
        self.sent_by.get(&port).copied().unwrap_or_default()
    }

    /// The second.
    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    /// The flows of sockets that are not connected which somebody has begun who is where this address is.
    pub(super) fn unconnected_from(&self, address: IpAddr) -> Option<&BTreeSet<FlowTuple>> {
        self.unconnected_from.get(&site(address))
    }

    /// The next flow that ends now. It is to be forgotten, or has another lease.
    pub(crate) fn lapsed(&self, now: Time) -> Option<FlowTuple> {
        self.leases.first().filter(|(until, _)| *until <= now).map(|(_, flow)| *flow)
    }

    /// A flow is at another stage; the stage before. The nonce that was for it alone is forgotten.
    pub(crate) fn set_stage(&mut self, flow: &FlowTuple, stage: Stage) -> Option<Stage> {
        let known = self.known.get_mut(flow)?;
        let (closed, former) = (known.closed, known.entry().copied());
        let before = std::mem::replace(&mut known.stage, stage);
        let entry = known.entry().copied();
        known.settled |= entry.is_some();
        self.introduced += usize::from(entry.is_some());
        self.introduced -= usize::from(former.is_some());
        self.count_over(closed, entry);
        self.uncount_over(closed, former);
        if let Some(nonce) = before.own_nonce() {
            self.nonces.remove(&nonce);
        }
        Some(before)
    }

    /// Forgets a flow. Its nonces are those of who put them there.
    pub(crate) fn take(&mut self, flow: &FlowTuple) -> Option<Flow> {
        let known = self.known.remove(flow)?;
        self.introduced -= usize::from(known.entry().is_some());
        self.uncount_over(known.closed, known.entry().copied());
        self.uncount_lease(flow, &known, false);
        self.ports.forget_flow(flow.local.port());
        if let Some(failed) = self.failed.get_mut(&flow.remote.ip()) {
            failed.remove(flow);
            if failed.is_empty() {
                self.failed.remove(&flow.remote.ip());
            }
        }
        Some(known)
    }

    /// A flow's socket is on its way from now on, or no more.
    pub(crate) fn reserve(&mut self, flow: FlowTuple, reserved: bool) {
        if reserved {
            self.reserved.insert(flow);
        } else {
            self.reserved.remove(&flow);
        }
    }

    /// Whether a flow's socket is on its way.
    pub(crate) fn is_reserved(&self, flow: &FlowTuple) -> bool {
        self.reserved.contains(flow)
    }

    /// The flow that a nonce of ours is in.
    pub(crate) fn with_nonce(&self, nonce: u64) -> Option<FlowTuple> {
        self.nonces.get(&nonce).copied()
    }

    /// A nonce of ours goes into a flow.
    pub(crate) fn add_nonce(&mut self, nonce: u64, flow: FlowTuple) {
        self.nonces.insert(nonce, flow);
    }

    pub(crate) fn forget_nonce(&mut self, nonce: u64) {
        self.nonces.remove(&nonce);
    }

    /// A flow that this host opened could not be introduced.
    pub(crate) fn on_failed(&mut self, flow: FlowTuple) {
        self.failed.entry(flow.remote.ip()).or_default().insert(flow);
    }

    /// Takes the flows to an address that could not be introduced.
    pub(crate) fn take_failed(&mut self, address: IpAddr) -> BTreeSet<FlowTuple> {
        self.failed.remove(&address).unwrap_or_default()
    }

    /// A flow has its turn to be introduced a moment later.
    pub(crate) fn put_off(&mut self, now: Time, flow: FlowTuple) {
        self.put_off_until(now + MATURE, flow);
    }

    /// A flow has its turn then.
    pub(crate) fn put_off_until(&mut self, when: Time, flow: FlowTuple) {
        self.young.insert((when, flow));
    }

    /// Takes the next flow that has its turn to be introduced.
    pub(crate) fn take_mature(&mut self, now: Time) -> Option<FlowTuple> {
        let due = self.young.first().filter(|(when, _)| *when <= now).copied()?;
        self.young.remove(&due);
        Some(due.1)
    }

    /// A flow's socket is gone. It stays known for what is under way.
    pub(crate) fn close(&mut self, now: Time, flow: FlowTuple) {
        if let Some(known) = self.known.get_mut(&flow) {
            let entry = known.entry().copied();
            let first = !std::mem::replace(&mut known.closed, true);
            self.closed.push_back((now + LINGER, flow));
            self.count_over(first, entry);
        }
    }

    /// Introduced flows with a peer whose sockets are gone and that are still known, if there are any.
    pub(crate) fn over(&self, peer: PeerId) -> Option<&Over> {
        self.over.get(&peer)
    }

    fn count_over(&mut self, closed: bool, entry: Option<FlowEntry>) {
        if let Some(entry) = entry.filter(|_| closed) {
            let over = self.over.entry(entry.peer).or_default();
            over.all += 1;
            if entry.is_at_a_place() {
                *over.homes.entry(entry.home).or_default() += 1;
            }
        }
    }

    fn uncount_over(&mut self, closed: bool, entry: Option<FlowEntry>) {
        let Some(entry) = entry.filter(|_| closed) else { return };
        let Entry::Occupied(mut counted) = self.over.entry(entry.peer) else { return };
        let over = counted.get_mut();
        over.all -= 1;
        if entry.is_at_a_place() {
            release(&mut over.homes, entry.home);
        }
        if over.all == 0 {
            counted.remove();
        }
    }

    /// Takes the next flow that was closed long enough ago, and may have been opened again since.
    pub(crate) fn take_lingered(&mut self, now: Time) -> Option<FlowTuple> {
        let due = self.closed.front().is_some_and(|(when, _)| *when <= now);
        if due { self.closed.pop_front().map(|(_, flow)| flow) } else { None }
    }

    /// When a flow has its turn, or is closed long enough.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let next = |queue: &BTreeSet<(Time, FlowTuple)>| queue.first().map(|(when, _)| *when);
        let closed = self.closed.front().map(|(when, _)| *when);
        [next(&self.young), closed, next(&self.leases)].into_iter().flatten().min()
    }

    pub(crate) fn await_verdicts(&mut self, awaited: bool) {
        self.awaits_verdicts = awaited;
    }

    /// The ports that sockets are bound to which take what anybody sends, and those that the kernel gives by itself.
    pub(crate) fn set_bound_ports(&mut self, bound: BTreeSet<u16>, drawn: RangeInclusive<u16>) {
        self.ports.set_bound(bound, drawn);
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        let failed: usize = self.failed.values().map(BTreeSet::len).sum();
        let from: usize = self.unconnected_from.values().map(BTreeSet::len).sum();
        let unconnected = self.leases.len() + from + self.by_remote.len() + self.sent_by.len();
        let queues = self.young.len() + self.closed.len() + self.over.len();
        self.known.len() + self.nonces.len() + failed + queues + unconnected + self.ports.entries()
    }
}

/// Flows with one peer whose sockets are gone, counted as the peer's flows are.
#[derive(Debug, Default)]
pub(crate) struct Over {
    all: usize,
    /// Those with an end at a place of this host's, by where they are at home. All others are elsewhere.
    homes: HashMap<Places, usize>,
}

impl Over {
    /// How many they are.
    pub(crate) fn all(&self) -> usize {
        self.all
    }

    /// How many of them are elsewhere than at home, where the two hosts are at these places.
    pub(crate) fn moved(&self, places: Places) -> usize {
        self.all - self.homes.get(&places).copied().unwrap_or_default()
    }
}

/// Where an address is: all of a /64 of IPv6 may be one host's.
fn site(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

fn release<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::op::{LocalEnd, Manner, Waits};
    use crate::flow::known::Origin;

    fn flow(port: u16) -> FlowTuple {
        let (local, remote) = (([192, 0, 2, 1], port).into(), ([198, 51, 100, 1], 80).into());
        FlowTuple { transport: whimbrel_wire::Transport::Tcp, local, remote }
    }

    fn entry(flow: FlowTuple) -> FlowEntry {
        FlowEntry {
            peer: PeerId(1),
            name: 7,
            home: Places::default(),
            peer_tuple: flow.mirrored(),
            side: 0,
            waits: Waits::default(),
            manner: Manner::default(),
            wire_local_port: 1,
            wire_remote_port: 2,
            end: LocalEnd::Here,
            passed_on: false,
            hidden: false,
            beyond: false,
            late: false,
            unconnected: false,
            begun: false,
        }
    }

    #[test]
    fn introduced_flows_are_counted_whichever_way_they_come_and_go() {
        let (now, mut flows) = (Time::default(), Flows::new(&Config::default(), &mut Random::new([1; 32])));
        (1..=3).for_each(|port| flows.open(now, flow(port), false));
        let stage = |port| Stage::Introduced {
            entry: entry(flow(port)),
            origin: Origin::Answered { introducer_nonce: 9, nonce: port.into() },
        };
        (1..=2).for_each(|port| {
            flows.set_stage(&flow(port), stage(port));
            flows.add_nonce(port.into(), flow(port));
        });
        flows.put(flow(4), Flow::introduced(entry(flow(4)), now));
        flows.put(flow(4), Flow::introduced(entry(flow(4)), now));
        assert_eq!((flows.introduced(), flows.len()), (3, 4));
        flows.set_stage(&flow(1), Stage::Open);
        assert_eq!((flows.with_nonce(1), flows.with_nonce(2)), (None, Some(flow(2))));
        flows.take(&flow(2));
        flows.put(flow(4), Flow::opened(now, false));
        assert_eq!((flows.introduced(), flows.take(&flow(9)).is_none()), (0, true));
    }

    #[test]
    fn flows_that_are_over_are_counted_whichever_way_they_come_and_go() {
        let (now, mut flows) = (Time::default(), Flows::new(&Config::default(), &mut Random::new([1; 32])));
        let away = Places { local: 1, peer: 2 };
        let counted = |flows: &Flows| flows.over(PeerId(1)).map(|over| (over.all(), over.moved(Places::default())));
        let put = |flows: &mut Flows, port, entry| flows.put(flow(port), Flow::introduced(entry, now));
        put(&mut flows, 1, entry(flow(1)));
        put(&mut flows, 2, FlowEntry { home: away, ..entry(flow(2)) });
        // Whoever passes it on has no socket that is at home somewhere.
        put(&mut flows, 3, FlowEntry { end: LocalEnd::Behind, ..entry(flow(3)) });
        flows.open(now, flow(4), false);
        assert_eq!(counted(&flows), None);
        (1..=4).for_each(|port| flows.close(now, flow(port)));
        flows.close(now, flow(1));
        assert_eq!(counted(&flows), Some((3, 2)), "one that closes twice counts once");
        assert_eq!(flows.over(PeerId(1)).map(|over| over.moved(away)), Some(2));
        // Opened anew, forgotten, no flow of the peer's any more.
        flows.open(now, flow(1), false);
        flows.take(&flow(2));
        assert_eq!(counted(&flows), Some((1, 1)));
        flows.set_stage(&flow(3), Stage::Open);
        assert_eq!(counted(&flows), None);
        let origin = Origin::Introduced;
        flows.set_stage(&flow(4), Stage::Introduced { entry: entry(flow(4)), origin });
        assert_eq!(counted(&flows), Some((1, 0)));
    }

    #[test]
    fn flows_have_their_turns_in_order_of_time() {
        let at = |seconds| Time::default() + Duration::from_secs(seconds);
        let mut flows = Flows::new(&Config::default(), &mut Random::new([1; 32]));
        flows.open(at(0), flow(1), false);
        flows.put_off(at(0), flow(1));
        flows.put_off(at(1), flow(2));
        assert_eq!((flows.poll_timeout(), flows.take_mature(at(0))), (Some(at(1)), None));
        assert_eq!((flows.take_mature(at(1)), flows.take_mature(at(1))), (Some(flow(1)), None));
        flows.put_off_until(at(1), flow(3));
        assert_eq!(flows.poll_timeout(), Some(at(1)));
        assert_eq!([flows.take_mature(at(2)), flows.take_mature(at(2))], [Some(flow(3)), Some(flow(2))]);
        flows.close(at(3), flow(1));
        assert!(flows.get(&flow(1)).is_some_and(|known| known.closed));
        assert_eq!((flows.poll_timeout(), flows.take_lingered(at(62))), (Some(at(63)), None));
        assert_eq!((flows.take_lingered(at(63)), flows.poll_timeout()), (Some(flow(1)), None));
    }
}
