//! What this host knows of a peer's flows, beside the peer itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::ops::Deref;

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::op::{FlowEntry, LocalEnd, NOWHERE, Places, SavedPeer, Waits};
use crate::flow::known::Responding;
use crate::flow::pairings::Pairings;
use crate::flow::paused::Paused;
use crate::flow::ports::Ports;
use crate::flow::stall::Stalls;
use crate::path::paths::Paths;
use crate::session::peer::Peer;

/// Flows that ended are told so many in a datagram, so often each.
const CLOSED_AT_ONCE: usize = 128;
const CLOSED_TOLD: u32 = 3;

/// Introductions with one peer that are not finished.
#[derive(Debug, Default)]
pub(super) struct Introductions {
    /// Flows to be introduced by us, oldest first.
    pub(super) queue: VecDeque<FlowTuple>,
    /// Flows whose introduction is under way.
    pub(super) active: BTreeSet<FlowTuple>,
    /// Those of them that have been begun, and some that are over. All others, of which there may be very many, are not
    /// looked at in every step.
    pub(super) begun: BTreeSet<FlowTuple>,
    /// A connection to the peer is being made, or was a moment ago: it is asked to look for introductions meanwhile.
    pub(super) expected_until: Option<Time>,
    /// Tag of the request that awaits its answer, which address of the peer's it was sent to, and when.
    pub(super) request: Option<(u32, IpAddr, Time)>,
    pub(super) request_tries: u32,
    /// The peer looks for introductions until then.
    pub(super) ready_until: Option<Time>,
    /// We look for the peer's until then.
    pub(super) listen_until: Option<Time>,
    /// The peer's, of which each flow has one at the most: nobody else's can displace it.
    pub(super) responding: BTreeMap<FlowTuple, Responding>,
    /// Flows that ended here by their introducers' nonces, and how often the peer was told.
    pub(super) closed: Vec<(u64, u32)>,
    pub(super) pairings: Pairings,
    /// Flows that it has named late and does not get, until then: somebody was there.
    pub(super) refused: BTreeMap<FlowTuple, Time>,
}

/// What a peer may never have accepted (P-203).
#[derive(Clone, Copy, Debug)]
pub(super) struct Unaccepted {
    pub(super) flow: FlowTuple,
    /// When that is taken for certain.
    pub(super) due: Time,
    /// Until then the peer may name it (P-204); `None`: it is known not to, or whoever is still where it was has been
    /// asked.
    pub(super) named_until: Option<Time>,
}

/// A peer that is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Away {
    /// It said so; its next update brings it back (P-44).
    Announced,
    /// It is not heard, and neither are its flows: whatever is heard of it brings it back (P-45). The flows are `held`
    /// where they were native, since another host may be given its address; moved ones are carried on.
    Silent { held: bool },
}

/// The flows that are ones with a peer, and what is under way about them.
#[derive(Default)]
pub(crate) struct FlowPeer {
    pub(super) introductions: Introductions,
    pub(super) flows: BTreeSet<FlowTuple>,
    /// Flows by their home and the address of this host that they use.
    pub(super) homes: BTreeMap<(Places, IpAddr), usize>,
    /// Flows whose end here is no socket of the host's own namespace, nor one that it is the router of: they are at
    /// home nowhere, and need no addresses of the host.
    pub(super) elsewhere: usize,
    local_addresses: BTreeMap<IpAddr, usize>,
    remote_addresses: BTreeMap<IpAddr, usize>,
    wire_ports: HashSet<(u16, u16)>,
    /// Flows by their names.
    pub(super) named: HashMap<u64, FlowTuple>,
    /// Where the two were before this host left, while it has not named what is young from there (P-204).
    left: Option<Places>,
    pub(super) unaccepted: Vec<Unaccepted>,
    pub(super) waiting: Paused,
    pub(super) stalls: Stalls,
    /// A flow of its sends again and again and is not answered: if the checks of its path are not either, it is away.
    pub(super) stalled: bool,
    /// Where the two are, as the binding says.
    pub(super) places: Places,
    pub(super) away: Option<Away>,
}

impl FlowPeer {
    /// A peer that a daemon before this one knew.
    pub(crate) fn restored(saved: &SavedPeer) -> Self {
        let away = match (saved.absent, saved.silent) {
            (true, _) => Some(Away::Announced),
            (false, true) => Some(Away::Silent { held: true }),
            (false, false) => None,
        };
        Self { waiting: Paused::restored(saved.waiting), places: saved.places, away, ..Self::default() }
    }

    /// Its flows.
    pub(crate) fn flows(&self) -> &BTreeSet<FlowTuple> {
        &self.flows
    }

    /// Its flows by their homes and the addresses of this host that they use, each with how many there are.
    pub(crate) fn homes(&self) -> impl Iterator<Item = (Places, IpAddr, usize)> {
        self.homes.iter().map(|((home, address), count)| (*home, *address, *count))
    }

    /// How many of its flows are at home nowhere.
    pub(crate) fn elsewhere(&self) -> usize {
        self.elsewhere
    }

    /// The flow of this name.
    pub(crate) fn named(&self, name: u64) -> Option<FlowTuple> {
        self.named.get(&name).copied()
    }

    /// Where the two are, as the binding says.
    pub(crate) fn places(&self) -> Places {
        self.places
    }

    pub(crate) fn set_local_place(&mut self, place: u32) {
        if self.places.local != place && self.places.local != NOWHERE {
            self.left = Some(self.places);
        }
        self.places.local = place;
    }

    /// Takes where the two were before this host left.
    pub(crate) fn take_left(&mut self) -> Option<Places> {
        self.left.take()
    }

    pub(crate) fn set_peer_place(&mut self, place: u32) {
        self.places.peer = place;
    }

    pub(crate) fn away(&self) -> Option<Away> {
        self.away
    }

    /// The peer is away from now on, or back. Gives how it was before.
    pub(crate) fn set_away(&mut self, away: Option<Away>) -> Option<Away> {
        std::mem::replace(&mut self.away, away)
    }

    /// Whether a flow of its sends again and again and is not answered: if the checks of its path are not either, it is
    /// away.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    pub(crate) fn set_stalled(&mut self, stalled: bool) {
        self.stalled = stalled;
    }

    pub(crate) fn stalls(&mut self) -> &mut Stalls {
        &mut self.stalls
    }

    /// The flows go another way: how they fared on this one says nothing.
    pub(crate) fn forget_stalls(&mut self) {
        self.stalls = Stalls::default();
    }

    /// What waits by request.
    pub(crate) fn waiting(&self) -> &Paused {
        &self.waiting
    }

    /// Whether flows are being introduced to the peer.
    pub(crate) fn introduces(&self) -> bool {
        !self.introductions.active.is_empty()
    }

    /// A flow is introduced, whoever began it.
    pub(crate) fn end_introduction(&mut self, flow: &FlowTuple) {
        self.introductions.active.remove(flow);
    }

    /// Whether this host looks for introductions of the peer's.
    pub(crate) fn listens(&self, now: Time) -> bool {
        self.introductions.listen_until.is_some_and(|until| until > now)
    }

    /// The flows that the peer introduces, and that this host has answered.
    pub(crate) fn answered(&self) -> impl Iterator<Item = FlowTuple> {
        self.introductions.responding.keys().copied()
    }

    /// Whether the peer is to be told of flows that have ended.
    pub(crate) fn has_ended(&self) -> bool {
        !self.introductions.closed.is_empty()
    }

    /// The next that the peer is to be told of flows that have ended, so often that it can be taken to know, and
    /// whether there is more that it was told less often.
    pub(super) fn take_ended(&mut self) -> (Vec<u64>, bool) {
        let closed = &mut self.introductions.closed;
        let count = closed.len().min(CLOSED_AT_ONCE);
        let mut told: Vec<(u64, u32)> = closed.drain(..count).collect();
        let names = told.iter().map(|(name, _)| *name).collect();
        told.iter_mut().for_each(|(_, times)| *times += 1);
        let least = told.iter().map(|(_, times)| *times).min().unwrap_or_default();
        closed.extend(told.into_iter().filter(|(_, times)| *times < CLOSED_TOLD));
        let more = closed.first().is_some_and(|(_, times)| *times < least);
        (names, more)
    }

    /// Whether flows wait since the peer is away.
    pub(crate) fn is_held_away(&self) -> bool {
        matches!(self.away, Some(Away::Announced | Away::Silent { held: true }))
    }

    /// The places that an introduction is to agree about (P-14). With a peer that is away there are none: that it takes
    /// part in an introduction shows that it is back, and it is made to say where.
    pub(crate) fn places_agreed(&self) -> Places {
        if self.is_held_away() { Places { peer: NOWHERE, ..self.places } } else { self.places }
    }

    /// A flow is one with the peer from now on: it is counted by where it is at home, and by its addresses.
    pub(crate) fn add(&mut self, flow: FlowTuple, entry: &FlowEntry) {
        self.named.insert(entry.name, flow);
        if self.flows.insert(flow) {
            if entry.is_at_a_place() {
                *self.homes.entry((entry.home, flow.local.ip())).or_default() += 1;
            } else {
                self.elsewhere += 1;
            }
            if entry.end == LocalEnd::Here {
                *self.local_addresses.entry(flow.local.ip()).or_default() += 1;
                *self.remote_addresses.entry(flow.remote.ip()).or_default() += 1;
            }
            self.wire_ports.insert((entry.wire_local_port, entry.wire_remote_port));
            self.waiting.count(Waits::default(), entry.waits);
        }
    }

    /// A local wire port that no other flow of this peer has together with `remote_port`, and that nothing else of this
    /// host has (P-16), if one is found.
    pub(crate) fn free_wire_port(&self, remote_port: u16, ports: &Ports) -> Option<u16> {
        ports.wire_port(|port| !self.wire_ports.contains(&(port, remote_port)))
    }

    /// Whether another flow with this peer is called so (P-132).
    pub(crate) fn has_another_named(&self, name: u64, flow: &FlowTuple) -> bool {
        self.named.get(&name).is_some_and(|named| named != flow)
    }

    /// Whether anything of what is wanted of the kernel for all peers together (`refresh_sets`) is on its account.
    pub(crate) fn is_in_sets(&self) -> bool {
        !self.homes.is_empty() || !self.local_addresses.is_empty()
    }

    pub(crate) fn local_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.local_addresses.keys().copied()
    }

    pub(crate) fn remote_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.remote_addresses.keys().copied()
    }

    pub(crate) fn remove_flow(&mut self, flow: &FlowTuple, entry: &FlowEntry) {
        if self.named.get(&entry.name) == Some(flow) {
            self.named.remove(&entry.name);
        }
        self.waiting.forget(entry.name);
        if self.flows.remove(flow) {
            if entry.is_at_a_place() {
                release(&mut self.homes, (entry.home, flow.local.ip()));
            } else {
                self.elsewhere -= 1;
            }
            if entry.end == LocalEnd::Here {
                release(&mut self.local_addresses, flow.local.ip());
                release(&mut self.remote_addresses, flow.remote.ip());
            }
            self.wire_ports.remove(&(entry.wire_local_port, entry.wire_remote_port));
            self.waiting.count(entry.waits, Waits::default());
        }
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        let under_way = &self.introductions;
        let introductions = under_way.queue.len() + under_way.active.len() + under_way.responding.len();
        let introductions = introductions + under_way.closed.len();
        let introductions = introductions + under_way.pairings.waiting() + under_way.refused.len();
        let introductions = introductions + self.unaccepted.len();
        let absence = self.waiting.entries() + self.stalls.entries();
        let addresses = self.local_addresses.len() + self.remote_addresses.len();
        let flows = self.flows.len() + self.homes.len() + self.wire_ports.len() + self.named.len();
        introductions + addresses + flows + absence
    }
}

/// A peer, with its flows.
pub(crate) struct WithFlows<S, P, F> {
    pub peer: S,
    pub path: P,
    pub flow: F,
}

impl<S: Deref<Target = Peer>, P, F> Deref for WithFlows<S, P, F> {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.peer
    }
}

/// To be looked at.
pub(crate) type PeerRef<'a> = WithFlows<&'a Peer, &'a Paths, &'a FlowPeer>;
/// To be changed.
pub(crate) type PeerMut<'a> = WithFlows<&'a mut Peer, &'a mut Paths, &'a mut FlowPeer>;

/// Looks a peer up in a flow layer, with its flows. A macro, so that what else is in the layer can be used meanwhile.
macro_rules! peer {
    ($layer:expr, $id:expr) => {
        match ($layer.path.peer($id), $layer.peers.get($id)) {
            (Some((peer, path)), Some(flow)) => Some($crate::flow::peers::WithFlows { peer, path, flow }),
            _ => None,
        }
    };
}

/// As [`peer`], to be changed.
macro_rules! peer_mut {
    ($layer:expr, $id:expr) => {
        match ($layer.path.peer_mut($id), $layer.peers.get_mut($id)) {
            (Some((peer, path)), Some(flow)) => Some($crate::flow::peers::WithFlows { peer, path, flow }),
            _ => None,
        }
    };
}

fn release<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}
