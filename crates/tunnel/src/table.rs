//! What the pumps have to know of flows and peers. The control thread writes it, the pumps read it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use whimbrel_kernel::clock;
use whimbrel_transform::datagram::FRAMING;
use whimbrel_transform::{Aead, Algorithm, Chain, TAG_LEN};
use whimbrel_wire::{BindingId, FlowTuple, PeerId, ReplayWindow, Transport, TunnelKeys};

use crate::aside::{Aside, Early};

/// P-7: datagrams under one key.
const COUNTER_LIMIT: u64 = 1 << 60;
const UDP_HEADER: u32 = 8;
/// Bytes of datagrams that wait for a path to be confirmed at the most: a window of TCP's, or a few.
const WAITING_MOST: usize = 4 << 20;
/// How long they wait at the most. By then TCP has sent again what they bring. An acknowledgement that is older does
/// harm: it is taken for one that a round trip as long has brought, so the far end takes back all that it holds for
/// lost, and waits as long before it looks again.
const WAITING_LONGEST: Duration = Duration::from_secs(1);

/// A flow that the tunnel carries, once moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelFlow {
    /// As this host's socket has it.
    pub own: FlowTuple,
    /// What leads it; of the peer whose flow it is.
    pub binding: BindingId,
    /// As the peer's socket has it; its `local` is the peer's address.
    pub peer_tuple: FlowTuple,
    /// Its local end is not in this host's own stack: whoever sends from there does not go by this host's routes.
    pub elsewhere: bool,
}

/// A local end of many flows: of all that have this address and port at the end that it is local to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeasedEnd {
    /// Its transport protocol.
    pub transport: Transport,
    /// Its address.
    pub address: IpAddr,
    /// Its port; 0 stands for every one that is not leased by itself.
    pub port: u16,
}

/// Who has a [`LeasedEnd`] from whom. What is of no flow then goes through the tunnel under the names that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// This host has it from that peer: packets to it are accepted from there, and what is sent from it goes there.
    From(PeerId),
    /// That peer has it from this host: packets from it are accepted from there, and what is sent to it goes there.
    To(PeerId),
}

/// A way that datagrams go by beside that of their path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondWay {
    /// Address of this host to send from; None leaves it to routing.
    pub source: Option<IpAddr>,
    /// Index of the interface that they leave by, whichever the routes prefer.
    pub interface: Option<u32>,
    /// The peer's address and port.
    pub remote: SocketAddr,
}

/// Where the packets of a binding go, and what is accepted of its peer beside sealed datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelPath {
    /// The session's index at the peer.
    pub send_index: u32,
    /// Send sealed datagrams; else plain ones with the session's token.
    pub sealed: bool,
    /// Accept plain datagrams of this session, if they come from `remote` or one of `former`. Sealed ones are accepted
    /// always and from anywhere.
    pub accept_plain: bool,
    /// Earlier locators of the peer that are still accepted (P-22).
    pub former: Vec<SocketAddr>,
    /// Address of this host to send from; None leaves it to routing.
    pub source: Option<IpAddr>,
    /// Index of the interface that they leave by, whichever the routes prefer.
    pub interface: Option<u32>,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Another way to the same peer, which each datagram goes by as well: what comes first counts there, since the
    /// second has a counter that was received (P-6, P-262). Only what is sealed has counters.
    pub second: Option<SecondWay>,
    /// UDP payload in bytes that may still be sent before the path is confirmed (P-18); None: confirmed.
    pub allowance: Option<u64>,
    /// The longest IP packet that the path carries whole, in bytes, and the second way.
    pub path_mtu: u32,
    /// The chain of transforms that what is sent goes through; `None` is the empty one. What comes may have gone
    /// through any that [`crate::Tunnel::set_chain`] has given.
    pub chain: Option<NonZeroU8>,
}

impl TunnelPath {
    /// Bytes that the tunnel adds to an inner packet, outer IP header included.
    #[must_use]
    pub fn overhead(&self) -> u32 {
        let tag = if self.sealed { TAG_LEN as u32 } else { 0 };
        self.outer_headers() + FRAMING as u32 + tag
    }

    /// The longest inner packet that goes without fragments where there is no chain: what the MTU of the flows' routes
    /// should be, less the overhead of a chain. Never below 1280, which IPv6 demands (RFC 8200 §5); on a path that is
    /// smaller still, fragments make up for it.
    #[must_use]
    pub fn inner_mtu(&self) -> u32 {
        self.inner_mtu_behind(0)
    }

    /// The same where a chain adds so many bytes.
    #[must_use]
    pub fn inner_mtu_behind(&self, chain: u32) -> u32 {
        self.path_mtu.saturating_sub(self.overhead() + chain).max(1280)
    }

    /// The longest UDP payload that is not sent in fragments.
    pub(crate) fn longest_datagram(&self) -> usize {
        self.path_mtu.saturating_sub(self.outer_headers()) as usize
    }

    /// The longest packet in it, behind the last transform.
    fn longest_packet(&self) -> usize {
        self.path_mtu.saturating_sub(self.overhead()) as usize
    }

    fn outer_headers(&self) -> u32 {
        let is_ipv4 = self.remote.is_ipv4() && self.second.is_none_or(|second| second.remote.is_ipv4());
        UDP_HEADER + if is_ipv4 { 20 } else { 40 }
    }
}

/// Keys, counter and replay window of a session: they outlive changes of path.
pub(crate) struct Session {
    pub(crate) peer: PeerId,
    pub(crate) keys: TunnelKeys,
    algorithm: Algorithm,
    pub(crate) sealing: Box<dyn Aead>,
    pub(crate) opening: Box<dyn Aead>,
    pub(crate) replay: Mutex<ReplayWindow>,
    counter: AtomicU64,
    /// When something that was sealed came last, in microseconds of the clock that counts while the machine sleeps; 0:
    /// never.
    heard: AtomicU64,
}

impl Session {
    fn new(peer: PeerId, algorithm: Algorithm, keys: &TunnelKeys) -> Self {
        Self {
            peer,
            keys: keys.clone(),
            algorithm,
            sealing: algorithm.key(&keys.send),
            opening: algorithm.key(&keys.receive),
            replay: Mutex::default(),
            counter: AtomicU64::new(0),
            heard: AtomicU64::new(0),
        }
    }

    /// Something that was sealed in it has come at this moment, in microseconds: the same one for a whole batch, of
    /// which the first alone takes the cache line from who sends.
    pub(crate) fn hear(&self, at: u64) {
        if self.heard.load(Ordering::Relaxed) != at {
            self.heard.store(at, Ordering::Relaxed);
        }
    }

    /// The first of `count` counters that nobody else gets, unless the key is used up.
    pub(crate) fn take_counters(&self, count: usize) -> Option<u64> {
        let first = self.counter.fetch_add(count as u64, Ordering::Relaxed);
        (first < COUNTER_LIMIT).then_some(first)
    }
}

/// A chain of transforms between this host and a peer. All threads use the same one.
#[derive(Clone)]
pub(crate) struct Chained {
    pub(crate) peer: PeerId,
    /// What its datagrams bear.
    pub(crate) number: u8,
    chain: Arc<Mutex<Chain>>,
}

impl Chained {
    /// Whoever has it must not ask for the table: that may wait for a chain.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A way to a peer as the outbound pump uses it.
pub(crate) struct Way {
    pub(crate) session: Arc<Session>,
    pub(crate) path: TunnelPath,
    /// What is sent goes through it.
    pub(crate) chain: Option<Chained>,
    /// The longest inner packet that goes without fragments.
    pub(crate) inner_mtu: u32,
    /// What is left of [`TunnelPath::allowance`]; `u64::MAX` stands for a confirmed path.
    allowance: AtomicU64,
    waiting: Mutex<Waiting>,
}

/// Datagrams that may not go to a path before it is confirmed. They would be lost otherwise, and TCP, which has just
/// sent all that was in flight once more, would find that out late.
#[derive(Default)]
struct Waiting {
    /// The path was confirmed meanwhile.
    released: bool,
    /// Each with when it came, by the clock that counts while the machine sleeps.
    datagrams: Vec<(Duration, Vec<u8>)>,
    bytes: usize,
}

impl Waiting {
    fn keep(&mut self, now: Duration, datagram: &[u8]) -> Admission {
        if self.bytes + datagram.len() > WAITING_MOST {
            self.drop_old(now);
        }
        if self.bytes + datagram.len() > WAITING_MOST {
            return Admission::Dropped;
        }
        self.bytes += datagram.len();
        self.datagrams.push((now, datagram.to_vec()));
        Admission::Waits
    }

    fn drop_old(&mut self, now: Duration) {
        // In the order in which they came.
        let is_old = |(came, _): &(Duration, Vec<u8>)| now.saturating_sub(*came) > WAITING_LONGEST;
        if !self.datagrams.first().is_some_and(is_old) {
            return;
        }
        self.datagrams.retain(|waiting| !is_old(waiting));
        self.bytes = self.datagrams.iter().map(|(_, datagram)| datagram.len()).sum();
    }

    /// What is still of use.
    fn take(&mut self, now: Duration) -> Vec<(Duration, Vec<u8>)> {
        self.drop_old(now);
        self.bytes = 0;
        std::mem::take(&mut self.datagrams)
    }
}

/// What becomes of a datagram on its way to a path that may not be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Send,
    Waits,
    Dropped,
}

impl Way {
    /// Whether this datagram may be sent yet; it counts as sent then (P-18). Else it is kept until the path is
    /// confirmed, in the order of arrival. What is allowed does not wait behind what is not: it may be what the peer
    /// lacks.
    pub(crate) fn admit(&self, datagram: &[u8]) -> Admission {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.released {
            return Admission::Send;
        }
        let length = datagram.len() as u64;
        let spend = |left: u64| left.checked_sub(length);
        if self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok() {
            return Admission::Send;
        }
        waiting.keep(clock::boottime(), datagram)
    }

    /// Lets datagrams of another way to the same place wait for this one.
    fn wait(&self, datagrams: Vec<(Duration, Vec<u8>)>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.bytes = datagrams.iter().map(|(_, datagram)| datagram.len()).sum();
        waiting.datagrams = datagrams;
    }

    /// Allows so many bytes more.
    fn grant(&self, bytes: u64) {
        let add = |left: u64| Some(left.saturating_add(bytes));
        // Never fails: it always gives a value.
        let _ = self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes what waits; from now on nothing does.
    fn release(&self) -> Vec<(Duration, Vec<u8>)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.released = true;
        waiting.take(clock::boottime())
    }
}

/// A session as the inbound pump uses it.
#[derive(Clone)]
pub(crate) struct Accepted {
    pub(crate) session: Arc<Session>,
    way: Option<Arc<Way>>,
}

impl Accepted {
    /// Whether plain datagrams may come from there.
    pub(crate) fn accepts_plain_from(&self, source: SocketAddr) -> bool {
        self.way.as_ref().is_some_and(|way| {
            way.path.accept_plain && (way.path.remote == source || way.path.former.contains(&source))
        })
    }

    /// Whether plain datagrams with this token may come at all.
    pub(crate) fn accepts_token(&self, token: u64) -> bool {
        self.way.as_ref().is_some_and(|way| way.path.accept_plain) && self.session.keys.receive_token == token
    }
}

/// Where a flow's packets go.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) way: Arc<Way>,
    pub(crate) peer_tuple: FlowTuple,
    /// As in [`TunnelFlow`].
    pub(crate) elsewhere: bool,
}

/// Why there is no route.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoute {
    Flow,
    Path,
    /// It is not to leave this host.
    Kept,
}

/// A path was not set. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// No keys were given for this session, or they are another peer's.
    #[error("the tunnel has no keys for session {receive_index:#010x} of peer {peer}")]
    UnknownSession {
        /// Whose it was to be.
        peer: PeerId,
        /// Its index here.
        receive_index: u32,
    },
    /// The chain was not given.
    #[error("the tunnel has no chain {number} of peer {peer}")]
    UnknownChain {
        /// Whose it was to be.
        peer: PeerId,
        /// Its number.
        number: NonZeroU8,
    },
}

#[derive(Default)]
struct Contents {
    flows: HashMap<FlowTuple, TunnelFlow>,
    leases: HashMap<LeasedEnd, Lease>,
    /// By this host's index.
    sessions: HashMap<u32, Accepted>,
    /// The ways that are sent on.
    ways: HashMap<BindingId, Arc<Way>>,
    /// Flows whose packets go to the control thread.
    kept: HashSet<FlowTuple>,
    chains: HashMap<(PeerId, u8), Chained>,
}

impl Contents {
    /// Whose flow this is, and its names there.
    fn flow(&self, own: &FlowTuple) -> Option<TunnelFlow> {
        let leased = || {
            let binding = BindingId::first(self.lessee(own)?);
            Some(TunnelFlow { own: *own, binding, peer_tuple: own.mirrored(), elsewhere: true })
        };
        self.flows.get(own).copied().or_else(leased)
    }

    /// The chain of this number, if one is named.
    fn chain(&self, peer: PeerId, number: Option<NonZeroU8>) -> Result<Option<Chained>, PathError> {
        let Some(number) = number else { return Ok(None) };
        let chained = self.chains.get(&(peer, number.get())).cloned();
        chained.map(Some).ok_or(PathError::UnknownChain { peer, number })
    }

    /// The peer that one end of it is leased from or to.
    fn lessee(&self, own: &FlowTuple) -> Option<PeerId> {
        let (Lease::From(peer) | Lease::To(peer)) = self.lease(own)?;
        Some(peer)
    }

    /// The lease of one end of it.
    fn lease(&self, own: &FlowTuple) -> Option<Lease> {
        if self.leases.is_empty() {
            return None;
        }
        let of = |end: SocketAddr| {
            let leased = LeasedEnd { transport: own.transport, address: end.ip(), port: end.port() };
            self.leases.get(&leased).or_else(|| self.leases.get(&LeasedEnd { port: 0, ..leased }))
        };
        match (of(own.local), of(own.remote)) {
            (Some(lease @ Lease::From(_)), _) | (_, Some(lease @ Lease::To(_))) => Some(*lease),
            _ => None,
        }
    }
}

/// Flows, leases, sessions and paths. Readers remember what they looked up together with the [`Table::generation`] of
/// before.
#[derive(Default)]
pub(crate) struct Table {
    contents: RwLock<Contents>,
    generation: AtomicU64,
    /// How many chains there are, so that nobody looks for timeouts where there are none.
    chains: AtomicUsize,
    /// Packets for sockets that are at rest here.
    pub(crate) aside: Aside,
    /// Packets for sockets that come here.
    pub(crate) early: Early,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contents = self.read();
        write!(f, "Table({} flows, {} sessions)", contents.flows.len(), contents.sessions.len())
    }
}

impl Table {
    /// Changes whenever the contents do: what was looked up before is to be looked up again.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The way of a packet that this host sends.
    pub(crate) fn route(&self, own: &FlowTuple) -> Result<Route, NoRoute> {
        let contents = self.read();
        if contents.kept.contains(own) {
            return Err(NoRoute::Kept);
        }
        let TunnelFlow { binding, peer_tuple, elsewhere, .. } = contents.flow(own).ok_or(NoRoute::Flow)?;
        let way = contents.ways.get(&binding).ok_or(NoRoute::Path)?;
        Ok(Route { way: Arc::clone(way), peer_tuple, elsewhere })
    }

    /// The way of a packet that is another host's, under the names that it has.
    pub(crate) fn route_to(&self, own: &FlowTuple, peer: PeerId) -> Result<Route, NoRoute> {
        let way = self.way(peer).ok_or(NoRoute::Path)?;
        Ok(Route { way, peer_tuple: own.mirrored(), elsewhere: false })
    }

    /// The way of what is of no flow to a peer, and of what goes through a chain: its first binding's.
    pub(crate) fn way(&self, peer: PeerId) -> Option<Arc<Way>> {
        self.read().ways.get(&BindingId::first(peer)).cloned()
    }

    /// Whether there is any chain.
    pub(crate) fn has_chains(&self) -> bool {
        self.chains.load(Ordering::Acquire) != 0
    }

    pub(crate) fn chains(&self) -> Vec<Chained> {
        self.read().chains.values().cloned().collect()
    }

    pub(crate) fn chain(&self, peer: PeerId, number: u8) -> Option<Chained> {
        self.read().chains.get(&(peer, number)).cloned()
    }

    pub(crate) fn set_chain(&self, peer: PeerId, number: NonZeroU8, chain: Chain) {
        let chained = Chained { peer, number: number.get(), chain: Arc::new(Mutex::new(chain)) };
        let mut contents = self.write();
        contents.chains.insert((peer, number.get()), chained);
        self.chains.store(contents.chains.len(), Ordering::Release);
    }

    pub(crate) fn remove_chain(&self, peer: PeerId, number: NonZeroU8) -> Option<Chained> {
        let mut contents = self.write();
        let removed = contents.chains.remove(&(peer, number.get()));
        self.chains.store(contents.chains.len(), Ordering::Release);
        removed
    }

    /// The session that a received datagram is of.
    pub(crate) fn session(&self, receive_index: u32) -> Option<Accepted> {
        self.read().sessions.get(&receive_index).cloned()
    }

    /// Whose flow this is.
    pub(crate) fn owner(&self, own: &FlowTuple) -> Option<PeerId> {
        self.read().flow(own).map(|flow| flow.binding.peer())
    }

    /// The lease that one of no flow's ends is of.
    pub(crate) fn lease_of(&self, own: &FlowTuple) -> Option<Lease> {
        let contents = self.read();
        if contents.flows.contains_key(own) { None } else { contents.lease(own) }
    }

    pub(crate) fn set_lease(&self, end: LeasedEnd, lease: Lease) {
        self.write().leases.insert(end, lease);
    }

    pub(crate) fn remove_lease(&self, end: &LeasedEnd) {
        self.write().leases.remove(end);
    }

    pub(crate) fn set_flows(&self, flows: impl IntoIterator<Item = TunnelFlow>) {
        let mut contents = self.write();
        contents.flows.extend(flows.into_iter().map(|flow| (flow.own, flow)));
    }

    pub(crate) fn remove_flow(&self, own: &FlowTuple) {
        self.write().flows.remove(own);
    }

    pub(crate) fn keep(&self, own: FlowTuple, kept: bool) {
        // Writers make readers look everything up again.
        if self.read().kept.contains(&own) == kept {
            return;
        }
        let mut contents = self.write();
        if kept {
            contents.kept.insert(own);
        } else {
            contents.kept.remove(&own);
        }
    }

    pub(crate) fn add_keys(&self, peer: PeerId, receive_index: u32, algorithm: Algorithm, keys: &TunnelKeys) {
        let mut contents = self.write();
        let known = contents.sessions.get(&receive_index).is_some_and(|known| {
            known.session.peer == peer && known.session.algorithm == algorithm && known.session.keys == *keys
        });
        if !known {
            let session = Arc::new(Session::new(peer, algorithm, keys));
            contents.sessions.insert(receive_index, Accepted { session, way: None });
        }
    }

    pub(crate) fn remove_keys(&self, receive_index: u32) {
        let mut contents = self.write();
        if let Some(removed) = contents.sessions.remove(&receive_index) {
            // What is sent under a key ends with it: nobody would count on in its place.
            contents.ways.retain(|_, way| !Arc::ptr_eq(&way.session, &removed.session));
        }
    }

    /// When something came last that each peer had sealed.
    pub(crate) fn heard(&self) -> HashMap<PeerId, Duration> {
        let mut heard = HashMap::new();
        for accepted in self.read().sessions.values() {
            let at = Duration::from_micros(accepted.session.heard.load(Ordering::Relaxed));
            let last: &mut Duration = heard.entry(accepted.session.peer).or_default();
            *last = at.max(*last);
        }
        heard.retain(|_, at| !at.is_zero());
        heard
    }

    /// Gives the datagrams that have waited for this path to be confirmed, not for too long, to be sent now.
    pub(crate) fn set_path(
        &self,
        id: BindingId,
        receive_index: u32,
        path: TunnelPath,
    ) -> Result<Vec<Vec<u8>>, PathError> {
        let (mut contents, peer) = (self.write(), id.peer());
        let chain = contents.chain(peer, path.chain)?;
        let unknown = PathError::UnknownSession { peer, receive_index };
        let accepted = contents.sessions.get_mut(&receive_index).filter(|known| known.session.peer == peer);
        let accepted = accepted.ok_or(unknown)?;
        let allowance = AtomicU64::new(path.allowance.unwrap_or(u64::MAX));
        let confirmed = path.allowance.is_none();
        let waiting = Mutex::new(Waiting { released: confirmed, ..Waiting::default() });
        let inner_mtu = path.inner_mtu_behind(lead_into(chain.as_ref(), &path));
        let session = Arc::clone(&accepted.session);
        let way = Arc::new(Way { session, path, chain, inner_mtu, allowance, waiting });
        // What is not sealed is taken from where the peer is.
        if id.is_first() {
            accepted.way = Some(Arc::clone(&way));
        }
        let before = contents.ways.insert(id, Arc::clone(&way));
        let same = before.filter(|before| before.path.remote == way.path.remote);
        let waited = same.map_or_else(Vec::new, |before| before.release());
        if confirmed {
            return Ok(waited.into_iter().map(|(_, datagram)| datagram).collect());
        }
        // Sealed for the session before, which the peer still opens (P-7).
        way.wait(waited);
        Ok(Vec::new())
    }

    /// What is sent to a peer goes through this chain from now on. Gives the one that it went through before.
    pub(crate) fn send_through(&self, peer: PeerId, number: Option<NonZeroU8>) -> Result<Option<Chained>, PathError> {
        let (mut contents, id) = (self.write(), BindingId::first(peer));
        let chain = contents.chain(peer, number)?;
        let Some(before) = contents.ways.get(&id).cloned() else { return Ok(None) };
        let path = TunnelPath { chain: number, ..before.path.clone() };
        let inner_mtu = path.inner_mtu_behind(lead_into(chain.as_ref(), &path));
        // What is left of what is allowed, and what waits for it, go along.
        let confirmed = path.allowance.is_none();
        let left = if confirmed { u64::MAX } else { before.allowance.swap(0, Ordering::Relaxed) };
        let waiting = Mutex::new(Waiting { released: confirmed, ..Waiting::default() });
        let (session, allowance) = (Arc::clone(&before.session), AtomicU64::new(left));
        let way = Arc::new(Way { session, path, chain, inner_mtu, allowance, waiting });
        if !confirmed {
            way.wait(before.release());
        }
        let theirs = contents.sessions.values_mut();
        for accepted in theirs.filter(|accepted| accepted.way.as_ref().is_some_and(|way| Arc::ptr_eq(way, &before))) {
            accepted.way = Some(Arc::clone(&way));
        }
        contents.ways.insert(id, way);
        Ok(before.chain.clone())
    }

    /// Allows so many bytes more on the path of a binding, where that is not confirmed.
    pub(crate) fn grant(&self, id: BindingId, bytes: u64) {
        if let Some(way) = self.read().ways.get(&id) {
            way.grant(bytes);
        }
    }

    pub(crate) fn remove_path(&self, id: BindingId) {
        self.write().ways.remove(&id);
    }

    fn read(&self) -> RwLockReadGuard<'_, Contents> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation is raised under the lock. Whoever reads the old number and then finds the old contents looks up
    /// again the next time; whoever reads the new one waits for the new contents.
    fn write(&self) -> RwLockWriteGuard<'_, Contents> {
        let contents = self.contents.write().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::Release);
        contents
    }
}

/// Tells a chain the path that it leads to. Gives what it adds to a packet, in bytes.
fn lead_into(chain: Option<&Chained>, path: &TunnelPath) -> u32 {
    chain.map_or(0, |chained| {
        let mut chain = chained.lock();
        chain.set_mtu(path.longest_packet());
        chain.overhead() as u32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_waited_through_an_outage_is_not_sent() {
        let mut waiting = Waiting::default();
        let now = Duration::from_secs(1000);
        assert_eq!(waiting.keep(now, b"old"), Admission::Waits);
        let later = now + WAITING_LONGEST;
        assert_eq!(waiting.keep(later, b"new"), Admission::Waits);
        assert_eq!(waiting.take(later + Duration::from_millis(1)), [(later, b"new".to_vec())]);
        assert_eq!((waiting.bytes, waiting.datagrams.len()), (0, 0));
    }

    #[test]
    fn what_is_old_takes_no_room() {
        let mut waiting = Waiting::default();
        let now = Duration::from_secs(1000);
        let long = vec![0; WAITING_MOST / 2];
        assert_eq!([&long, &long].map(|datagram| waiting.keep(now, datagram)), [Admission::Waits; 2]);
        assert_eq!(waiting.keep(now + WAITING_LONGEST, b"one more"), Admission::Dropped);
        assert_eq!(waiting.keep(now + WAITING_LONGEST * 2, b"one more"), Admission::Waits);
        assert_eq!(waiting.bytes, 8);
    }
}
