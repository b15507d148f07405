//! What the pumps have to know of flows and peers. The control thread writes it, the pumps read it.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use whimbrel_transform::datagram::FRAMING;
use whimbrel_transform::seal::KEY_LEN;
use whimbrel_transform::{Aead, Algorithm, ReplayWindow, TAG_LEN};
use whimbrel_wire::FlowTuple;

/// A peer's number, the same as its binding's.
pub type PeerId = u32;

/// Indices of one peer that are received from at once: sending session, the previous one, one from a crossing
/// initiation, and one to spare. An older one is retired.
const RECEIVERS: usize = 4;
/// P-7: datagrams under one key.
const COUNTER_LIMIT: u64 = 1 << 60;
const UDP_HEADER: u32 = 8;

/// A flow that the tunnel carries, once moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelFlow {
    /// As this host's socket has it.
    pub own: FlowTuple,
    /// Whose flow it is.
    pub peer: PeerId,
    /// As the peer's socket has it; its `local` is the peer's address.
    pub peer_tuple: FlowTuple,
}

/// This host's end of a tunnel to one peer: one session and one path.
#[derive(Clone, PartialEq, Eq)]
pub struct TunnelEnd {
    /// The index that this host gave the session.
    pub receive_index: u32,
    /// The index that the peer gave the session.
    pub send_index: u32,
    /// Cipher of both directions.
    pub algorithm: Algorithm,
    /// Tunnel key towards the peer.
    pub send_key: [u8; KEY_LEN],
    /// Tunnel key from the peer.
    pub receive_key: [u8; KEY_LEN],
    /// Send plain datagrams with this token, which the peer offered. None: send sealed ones.
    pub send_token: Option<u64>,
    /// Accept plain datagrams with this token, which was offered to the peer. Sealed ones are accepted always.
    pub receive_token: Option<u64>,
    /// Where plain datagrams may come from beside `remote`: locators that are still accepted (P-22).
    pub receive_sources: Vec<SocketAddr>,
    /// Address of this host to send from; None leaves it to routing.
    pub local: Option<IpAddr>,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The longest IP packet that the path carries whole, in bytes.
    pub path_mtu: u32,
}

impl fmt::Debug for TunnelEnd {
    /// Without keys and tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TunnelEnd")
            .field("receive_index", &self.receive_index)
            .field("send_index", &self.send_index)
            .field("algorithm", &self.algorithm)
            .field("plain", &self.send_token.is_some())
            .field("local", &self.local)
            .field("remote", &self.remote)
            .field("path_mtu", &self.path_mtu)
            .finish_non_exhaustive()
    }
}

impl TunnelEnd {
    /// Bytes that the tunnel adds to an inner packet, outer IP header included.
    #[must_use]
    pub fn overhead(&self) -> u32 {
        let ip = if self.remote.is_ipv4() { 20 } else { 40 };
        let tag = if self.send_token.is_some() { 0 } else { TAG_LEN as u32 };
        ip + UDP_HEADER + FRAMING as u32 + tag
    }

    /// The longest inner packet that goes without fragments: what the MTU of the flows' routes should be. Never below
    /// 1280, which IPv6 demands (RFC 8200 §5); on a path that is smaller still, fragments make up for it.
    #[must_use]
    pub fn inner_mtu(&self) -> u32 {
        self.path_mtu.saturating_sub(self.overhead()).max(1280)
    }
}

/// Keys, counter and replay window of a session: they outlive changes of path.
pub(super) struct Session {
    receive_index: u32,
    send_index: u32,
    algorithm: Algorithm,
    send_key: [u8; KEY_LEN],
    receive_key: [u8; KEY_LEN],
    pub(super) sealing: Box<dyn Aead>,
    pub(super) opening: Box<dyn Aead>,
    pub(super) replay: Mutex<ReplayWindow>,
    counter: AtomicU64,
}

impl Session {
    fn new(end: &TunnelEnd) -> Self {
        Self {
            receive_index: end.receive_index,
            send_index: end.send_index,
            algorithm: end.algorithm,
            send_key: end.send_key,
            receive_key: end.receive_key,
            // The nonce carries the index that the header carries: the receiver's.
            sealing: end.algorithm.key(&end.send_key, end.send_index),
            opening: end.algorithm.key(&end.receive_key, end.receive_index),
            replay: Mutex::default(),
            counter: AtomicU64::new(0),
        }
    }

    fn is_of(&self, end: &TunnelEnd) -> bool {
        (self.receive_index, self.send_index, self.algorithm) == (end.receive_index, end.send_index, end.algorithm)
            && self.send_key == end.send_key
            && self.receive_key == end.receive_key
    }

    /// The first of `count` counters that nobody else gets, unless the key is used up.
    pub(super) fn take_counters(&self, count: usize) -> Option<u64> {
        let first = self.counter.fetch_add(count as u64, Ordering::Relaxed);
        (first < COUNTER_LIMIT).then_some(first)
    }
}

/// An end as the pumps use it.
pub(super) struct End {
    pub(super) peer: PeerId,
    pub(super) session: Arc<Session>,
    pub(super) end: TunnelEnd,
}

impl End {
    /// The longest UDP payload that is not sent in fragments.
    pub(super) fn longest_datagram(&self) -> usize {
        let headers = UDP_HEADER + if self.end.remote.is_ipv4() { 20 } else { 40 };
        self.end.path_mtu.saturating_sub(headers) as usize
    }

    /// Whether plain datagrams may come from there.
    pub(super) fn accepts_from(&self, source: SocketAddr) -> bool {
        source == self.end.remote || self.end.receive_sources.contains(&source)
    }
}

/// Where a flow's packets go.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) end: Arc<End>,
    pub(super) peer_tuple: FlowTuple,
}

/// Why there is no route.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoute {
    Flow,
    End,
}

#[derive(Default)]
struct Contents {
    flows: HashMap<FlowTuple, (PeerId, FlowTuple)>,
    senders: HashMap<PeerId, Arc<End>>,
    receivers: HashMap<u32, Arc<End>>,
    /// Receive indices of each peer, oldest first.
    indices: HashMap<PeerId, Vec<u32>>,
}

/// Flows and ends. Readers remember what they looked up together with the [`Table::generation`] of before.
#[derive(Default)]
pub(super) struct Table {
    contents: RwLock<Contents>,
    generation: AtomicU64,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contents = self.read();
        write!(f, "Table({} flows, {} ends)", contents.flows.len(), contents.receivers.len())
    }
}

impl Table {
    /// Changes whenever the contents do: what was looked up before is to be looked up again.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The way of a packet that this host sends.
    pub(super) fn route(&self, own: &FlowTuple) -> Result<Route, NoRoute> {
        let contents = self.read();
        let (peer, peer_tuple) = contents.flows.get(own).ok_or(NoRoute::Flow)?;
        let end = contents.senders.get(peer).ok_or(NoRoute::End)?;
        Ok(Route { end: Arc::clone(end), peer_tuple: *peer_tuple })
    }

    /// The end that a received datagram is for.
    pub(super) fn receiver(&self, index: u32) -> Option<Arc<End>> {
        self.read().receivers.get(&index).cloned()
    }

    /// Whose flow this is.
    pub(super) fn owner(&self, own: &FlowTuple) -> Option<PeerId> {
        self.read().flows.get(own).map(|(peer, _)| *peer)
    }

    pub(super) fn set_flows(&self, flows: impl IntoIterator<Item = TunnelFlow>) {
        let mut contents = self.write();
        contents.flows.extend(flows.into_iter().map(|flow| (flow.own, (flow.peer, flow.peer_tuple))));
    }

    pub(super) fn remove_flow(&self, own: &FlowTuple) {
        self.write().flows.remove(own);
    }

    pub(super) fn set_end(&self, peer: PeerId, end: &TunnelEnd, send: bool) {
        let mut contents = self.write();
        let known = contents.receivers.get(&end.receive_index).filter(|known| known.peer == peer);
        let session = match known {
            Some(known) if known.session.is_of(end) => Arc::clone(&known.session),
            _ => Arc::new(Session::new(end)),
        };
        let shared = Arc::new(End { peer, session, end: end.clone() });
        if let Some(old) = contents.receivers.insert(end.receive_index, Arc::clone(&shared))
            && old.peer != peer
        {
            contents.forget_index(old.peer, end.receive_index);
        }
        let indices = contents.indices.entry(peer).or_default();
        indices.retain(|index| *index != end.receive_index);
        indices.push(end.receive_index);
        if indices.len() > RECEIVERS {
            let oldest = indices.remove(0);
            contents.receivers.remove(&oldest);
        }
        // An end that is set again with another path replaces the one that is sent through, too.
        let sending = contents.senders.get(&peer).is_some_and(|sender| sender.session.is_of(end));
        if send || sending {
            contents.senders.insert(peer, shared);
        }
    }

    pub(super) fn retire(&self, receive_index: u32) {
        let mut contents = self.write();
        if let Some(end) = contents.receivers.remove(&receive_index) {
            contents.forget_index(end.peer, receive_index);
        }
    }

    pub(super) fn remove_end(&self, peer: PeerId) {
        let mut contents = self.write();
        contents.senders.remove(&peer);
        for index in contents.indices.remove(&peer).unwrap_or_default() {
            contents.receivers.remove(&index);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Contents> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation is raised before the lock is given, so whoever reads the old one after this looks up again.
    fn write(&self) -> RwLockWriteGuard<'_, Contents> {
        let contents = self.contents.write().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::Release);
        contents
    }
}

impl Contents {
    fn forget_index(&mut self, peer: PeerId, index: u32) {
        if let Some(indices) = self.indices.get_mut(&peer) {
            indices.retain(|known| *known != index);
            if indices.is_empty() {
                self.indices.remove(&peer);
            }
        }
    }
}
