//! What this host knows of a peer's flows, beside the peer itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};

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

/// Introductions with one peer that are not finished.
#[derive(Debug, Default)]
pub(crate) struct Introductions {
    /// Flows to be introduced by us, oldest first.
    pub(crate) queue: VecDeque<FlowTuple>,
    /// Flows whose introduction is under way.
    pub(crate) active: BTreeSet<FlowTuple>,
    /// Those of them that have been begun, and some that are over. All others, of which there may be very many, are not
    /// looked at in every step.
    pub(crate) begun: BTreeSet<FlowTuple>,
    /// Tag of the request.
    pub(super) tag: u32,
    pub(super) request_tries: u32,
    /// The peer looks for introductions until then.
    pub(super) ready_until: Option<Time>,
    /// We look for the peer's until then.
    pub(crate) listen_until: Option<Time>,
    /// The peer's, of which each flow has one at the most: nobody else's can displace it.
    pub(crate) responding: BTreeMap<FlowTuple, Responding>,
    /// Datagram sockets of the peer's that cannot be moved, and until when that is believed.
    pub(super) refused: BTreeMap<SocketAddr, Time>,
    /// Flows that ended here by their introducers' nonces, and how often the peer was told.
    pub(crate) closed: Vec<(u64, u32)>,
    pub(super) pairings: Pairings,
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
    pub(crate) introductions: Introductions,
    pub(crate) flows: BTreeSet<FlowTuple>,
    /// Flows by their home and the address of this host that they use.
    pub(crate) homes: BTreeMap<(Places, IpAddr), usize>,
    /// Flows whose end here is no socket of the host's own namespace, nor one that it is the router of: they are at
    /// home nowhere, and need no addresses of the host.
    pub(crate) elsewhere: usize,
    local_addresses: BTreeMap<IpAddr, usize>,
    remote_addresses: BTreeMap<IpAddr, usize>,
    wire_ports: HashSet<(u16, u16)>,
    /// Flows by their names.
    pub(crate) named: HashMap<u64, FlowTuple>,
    pub(crate) waiting: Paused,
    pub(crate) stalls: Stalls,
    /// A flow of its sends again and again and is not answered: if the checks of its path are not either, it is away.
    pub(crate) stalled: bool,
    /// Where the two are, as the binding says.
    pub(crate) places: Places,
    pub(crate) away: Option<Away>,
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
        if self.flows.insert(flow) {
            if matches!(entry.end, LocalEnd::Here | LocalEnd::Passing) {
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
            if matches!(entry.end, LocalEnd::Here | LocalEnd::Passing) {
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
        let introductions = introductions + under_way.refused.len() + under_way.closed.len();
        let introductions = introductions + under_way.pairings.waiting();
        let absence = self.waiting.entries() + self.stalls.entries();
        let addresses = self.local_addresses.len() + self.remote_addresses.len();
        let flows = self.flows.len() + self.homes.len() + self.wire_ports.len() + self.named.len();
        introductions + addresses + flows + absence
    }
}

/// A peer, with its flows.
pub(crate) struct WithFlows<S, P, F> {
    pub(crate) peer: S,
    pub(crate) path: P,
    pub(crate) flow: F,
}

impl<S: Deref<Target = Peer>, P, F> Deref for WithFlows<S, P, F> {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.peer
    }
}

impl<S: DerefMut<Target = Peer>, P, F> DerefMut for WithFlows<S, P, F> {
    fn deref_mut(&mut self) -> &mut Peer {
        &mut self.peer
    }
}

/// To be looked at.
pub(crate) type PeerRef<'a> = WithFlows<&'a Peer, &'a Paths, &'a FlowPeer>;

/// Looks a peer up in a flow layer, with its flows. A macro, so that what else is in the layer can be used meanwhile.
macro_rules! peer {
    ($layer:expr, $id:expr) => {
        match ($layer.path.session.peers.get($id), $layer.path.peers.get($id), $layer.peers.get($id)) {
            (Some(peer), Some(path), Some(flow)) => Some($crate::flow::peers::WithFlows { peer, path, flow }),
            _ => None,
        }
    };
}

/// As [`peer`], to be changed.
macro_rules! peer_mut {
    ($layer:expr, $id:expr) => {
        match ($layer.path.session.peers.get_mut($id), $layer.path.peers.get_mut($id), $layer.peers.get_mut($id)) {
            (Some(peer), Some(path), Some(flow)) => Some($crate::flow::peers::WithFlows { peer, path, flow }),
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
