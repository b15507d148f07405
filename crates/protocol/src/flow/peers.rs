//! What this host knows of a peer's flows, beside the peer itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};

use whimbrel_wire::FlowTuple;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::op::{Carrier, FlowEntry, KnownPlace, LocalEnd, NOWHERE, PeerId, Places, SavedPeer};
use crate::flow::pairing::Pairings;
use crate::flow::pause::Waiting;
use crate::flow::ports::Ports;
use crate::flow::stall::Stalls;
use crate::flow::{FlowLayer, Responding};
use crate::path::challenge::Awaited;
use crate::session::peer::{Away, CarrierProbe, Peer};
use crate::session::pins::Held;

/// Places remembered for a return (P-25).
const PLACES_REMEMBERED: usize = 8;

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
    pub(crate) tag: u32,
    pub(crate) request_tries: u32,
    /// The peer looks for introductions until then.
    pub(crate) ready_until: Option<Time>,
    /// We look for the peer's until then.
    pub(crate) listen_until: Option<Time>,
    /// The peer's, of which each flow has one at the most: nobody else's can displace it.
    pub(crate) responding: BTreeMap<FlowTuple, Responding>,
    /// Datagram sockets of the peer's that cannot be moved, and until when that is believed.
    pub(crate) refused: BTreeMap<SocketAddr, Time>,
    /// Flows that ended here by their introducers' nonces, and how often the peer was told.
    pub(crate) closed: Vec<(u64, u32)>,
    pub(crate) pairings: Pairings,
}

/// The flows that are ones with a peer, and what is under way about them.
#[derive(Default)]
pub(crate) struct FlowPeer {
    pub(crate) introductions: Introductions,
    pub(crate) flows: BTreeSet<FlowTuple>,
    /// Flows by their home and the address of this host that they use.
    homes: BTreeMap<(Places, IpAddr), usize>,
    /// Flows whose end here is no socket of the host's own namespace, nor one that it is the router of: they are at home nowhere, and
    /// need no addresses of the host.
    elsewhere: usize,
    local_addresses: BTreeMap<IpAddr, usize>,
    remote_addresses: BTreeMap<IpAddr, usize>,
    wire_ports: HashSet<(u16, u16)>,
    /// Flows by their names.
    pub(crate) named: HashMap<u64, FlowTuple>,
    pub(crate) waiting: Waiting,
    pub(crate) stalls: Stalls,
    /// A flow of its sends again and again and is not answered: if the checks of its path are not either, it is away.
    pub(crate) stalled: bool,
}

impl FlowPeer {
    /// A peer that a daemon before this one knew.
    pub(crate) fn restored(saved: &SavedPeer) -> Self {
        Self { waiting: Waiting::restored(saved.waiting), ..Self::default() }
    }

    /// A flow is one with the peer from now on: it is counted by where it is at home, and by its addresses.
    fn add(&mut self, flow: FlowTuple, entry: &FlowEntry) {
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
            self.waiting.flows += usize::from(entry.waits.any());
        }
    }

    /// A local wire port that no other flow of this peer has together with `remote_port`, and that nothing else of this host has
    /// (P-16), if one is found.
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
        self.waiting.untold.remove(&entry.name);
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
            self.waiting.flows -= usize::from(entry.waits.any());
        }
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        let under_way = &self.introductions;
        let introductions = under_way.queue.len() + under_way.active.len() + under_way.responding.len();
        let introductions = introductions + under_way.refused.len() + under_way.closed.len();
        let introductions = introductions + under_way.pairings.claims.len();
        let absence = self.waiting.entries() + self.stalls.entries();
        let addresses = self.local_addresses.len() + self.remote_addresses.len();
        let flows = self.flows.len() + self.homes.len() + self.wire_ports.len() + self.named.len();
        introductions + addresses + flows + absence
    }
}

/// A peer, with its flows.
pub(crate) struct WithFlows<S, F> {
    pub(crate) peer: S,
    pub(crate) flow: F,
}

impl<S: Deref<Target = Peer>, F> Deref for WithFlows<S, F> {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.peer
    }
}

impl<S: DerefMut<Target = Peer>, F> DerefMut for WithFlows<S, F> {
    fn deref_mut(&mut self) -> &mut Peer {
        &mut self.peer
    }
}

/// To be looked at.
pub(crate) type PeerRef<'a> = WithFlows<&'a Peer, &'a FlowPeer>;

/// Looks a peer up in a flow layer, with its flows. A macro, so that what else is in the layer can be used meanwhile.
macro_rules! peer {
    ($layer:expr, $id:expr) => {
        match ($layer.path.session.peers.get($id), $layer.peers.get($id)) {
            (Some(peer), Some(flow)) => Some($crate::flow::peers::WithFlows { peer, flow }),
            _ => None,
        }
    };
}

/// As [`peer`], to be changed.
macro_rules! peer_mut {
    ($layer:expr, $id:expr) => {
        match ($layer.path.session.peers.get_mut($id), $layer.peers.get_mut($id)) {
            (Some(peer), Some(flow)) => Some($crate::flow::peers::WithFlows { peer, flow }),
            _ => None,
        }
    };
}

impl FlowLayer {
    /// A peer is known from now on, or is already.
    pub(crate) fn know(&mut self, id: PeerId) {
        self.peers.entry(id).or_default();
    }

    /// Takes over what a daemon before this one knew of a peer.
    pub(crate) fn restore(&mut self, saved: &SavedPeer) {
        self.peers.insert(saved.id, FlowPeer::restored(saved));
    }

    /// What a peer's session is for.
    pub(crate) fn held(&self, id: PeerId) -> Held {
        let of = |peer: &FlowPeer| Held {
            flows: !peer.flows.is_empty(),
            introductions: !peer.introductions.active.is_empty(),
        };
        self.peers.get(&id).map_or(Held::default(), of)
    }

    /// All peers, by number, with their flows.
    pub(crate) fn each(&self) -> impl Iterator<Item = WithFlows<&Peer, &FlowPeer>> {
        let pairs = self.path.session.peers.iter().filter_map(|(id, peer)| Some((peer, self.peers.get(id)?)));
        pairs.map(|(peer, flow)| WithFlows { peer, flow })
    }
}

impl<S: Deref<Target = Peer>, F: Deref<Target = FlowPeer>> WithFlows<S, F> {
    /// How many flows are at home where this host is at this address.
    pub(crate) fn flows_at_home(&self, address: IpAddr) -> usize {
        let homes = self.flow.homes.iter().filter(|((home, _), _)| home.peer == self.places.peer);
        let here = homes.filter(|((home, _), _)| self.own_places.get(&home.local) == Some(&address));
        here.map(|(_, count)| count).sum()
    }

    /// How many flows that this host is away from home with are of this address's family. Those that only the peer is away with go where the
    /// peer is.
    pub(crate) fn flows_of_family(&self, address: IpAddr) -> usize {
        let away = self.flow.homes.iter().filter(|((home, _), _)| home.local != self.places.local);
        let alike = away.filter(|((_, own), _)| own.is_ipv4() == address.is_ipv4());
        alike.map(|(_, count)| count).sum()
    }

    /// Whether flows are at home at another place of this host than the one where it is or goes to.
    pub(crate) fn has_gone(&self) -> bool {
        self.flow.homes.keys().any(|(home, _)| home.local != self.places.local)
    }

    /// Whether the peer is elsewhere than at the home of any of its flows.
    pub(crate) fn has_left(&self) -> bool {
        let places = self.places_in_force();
        self.flow.homes.keys().any(|(home, _)| home.peer != places.peer)
    }

    /// Whether a flow is at home at the address where this host is.
    pub(crate) fn is_home_address(&self) -> bool {
        let here = self.attachment.map(|attachment| attachment.address);
        self.flow.homes.keys().any(|(home, address)| Some(*address) == here && home.peer == self.places.peer)
    }

    /// Whether any flow that is at home uses one of these addresses of this host.
    pub(crate) fn is_rooted(&self, gone: impl Fn(&IpAddr) -> bool) -> bool {
        self.flow.homes.keys().any(|(home, address)| *home == self.places && gone(address))
    }

    /// Whether segments of this peer's that introduce or probe are to be consumed.
    pub(crate) fn is_listened_for(&self, now: Time) -> bool {
        self.flow.introductions.listen_until.is_some_and(|until| until > now) || self.moved_flows() > 0
    }

    /// How many flows are not where they are at home.
    pub(crate) fn moved_flows(&self) -> usize {
        let places = self.places_in_force();
        let away = self.flow.homes.iter().filter(|((home, _), _)| *home != places).map(|(_, count)| count);
        self.flow.elsewhere + away.sum::<usize>()
    }

    pub(crate) fn saved(&self) -> SavedPeer {
        SavedPeer {
            id: self.id,
            key: self.key,
            // The peer said that it is there. A session with it, without which nothing is sent, will prove it.
            remote: self.heading(),
            source: self.source,
            locators: self.locators.clone(),
            sequence_sent: self.sequence_sent,
            sequence_accepted: self.sequence_accepted,
            places: self.places,
            carrier: self.carrier,
            former: self.former.clone(),
            absent: self.away == Some(Away::Announced),
            silent: self.away == Some(Away::Silent { held: true }),
            life: self.life,
            memory: self.memory,
            waiting: (self.flow.waiting.sent, self.flow.waiting.seen),
            observed: self.observed,
            known_places: self.known_places.clone(),
            own_places: self.own_places.iter().map(|(number, address)| (*number, *address)).collect(),
        }
    }

    /// Whether flows wait for this host or for the peer, so that their sockets may come to give up.
    pub(crate) fn waits(&self) -> bool {
        let held = self.carrier == Carrier::Hold || self.places.local == NOWHERE;
        !self.flow.flows.is_empty() && (self.away.is_some() || (held && self.meanwhile().is_none()))
    }

    /// The pair of locators that rewritten packets may come between. Through a NAT nothing arrives rewritten, and what
    /// arrives under its address may be anybody's (`shared`: other hosts have been seen under it); so may what seems to come
    /// from a place that is not confirmed.
    pub(crate) fn wanted_pair(&self, shared: bool) -> Option<(IpAddr, IpAddr)> {
        let unconfirmed = self.candidate.as_ref().is_some_and(|candidate| candidate.announced);
        if self.flow.flows.is_empty() || unconfirmed || shared || self.translated() {
            return None;
        }
        self.source.filter(|source| source.is_ipv4() == self.remote.is_ipv4()).map(|source| (source, self.remote.ip()))
    }
}

impl<S: DerefMut<Target = Peer>, F: DerefMut<Target = FlowPeer>> WithFlows<S, F> {
    /// A flow is one with the peer from now on.
    pub(crate) fn add_flow(&mut self, flow: FlowTuple, entry: &FlowEntry) {
        self.flow.named.insert(entry.name, flow);
        self.note_own_place();
        self.flow.add(flow, entry);
    }

    /// The peer is at another place. `asked`: that of this host's which it named.
    pub(crate) fn follow(&mut self, now: Time, awaited: &Awaited, asked: Option<Attachment>) {
        self.retire_path();
        self.leave_place(now);
        // Where it only says something else of the same place, this host's reason stays.
        self.only_tunnel &= self.places.peer == awaited.place;
        self.places.peer = awaited.place;
        self.peer_refuses_rewrite = awaited.refuses_rewrite;
        self.flow.stalls = Stalls::default();
        self.probe = CarrierProbe::default();
        // The answer leaves from the address that the peer asked; that it is our locator towards it now.
        if let (None, Some(attachment)) = (&self.update, asked) {
            self.source = Some(attachment.address);
            self.attachment = Some(attachment);
        }
    }

    /// Remembers which address of ours the place in force is at, and forgets where no flow is at home.
    pub(crate) fn note_own_place(&mut self) {
        let WithFlows { peer, flow } = self;
        let (here, source) = (peer.places.local, peer.source);
        peer.own_places.extend(source.filter(|_| here != NOWHERE).map(|source| (here, source)));
        let homes = &flow.homes;
        peer.own_places.retain(|number, _| *number == here || homes.keys().any(|(home, _)| home.local == *number));
    }

    /// Numbers the place that an update with `sequence` announces (P-25) and remembers it. `uprooted`: no flow is at home
    /// there (P-33).
    pub(crate) fn number_place(
        &mut self,
        sequence: u32,
        claimed: SocketAddr,
        observed: SocketAddr,
        uprooted: bool,
    ) -> u32 {
        let in_force = self.places.peer;
        let same = |place: &KnownPlace| (place.claimed, place.observed) == (claimed, observed);
        // What is written down of the place in force stays until the peer has left it (P-135). After that its number is no
        // longer that of its sources, if they have got another.
        let newest = self.known_places.iter().rposition(same);
        let mut at = 0;
        self.known_places.retain(|place| {
            let superseded = same(place) && (uprooted || newest != Some(at));
            at += 1;
            !superseded || place.number == in_force
        });
        let here = self.known_places.iter().rfind(|place| same(place)).filter(|_| !uprooted);
        if let Some(place) = here.filter(|place| !place.translated || place.number == in_force) {
            return place.number;
        }
        if self.known_places.len() >= PLACES_REMEMBERED {
            let at_home = |place: &KnownPlace| self.flow.homes.keys().any(|(home, _)| home.peer == place.number);
            let known = &self.known_places;
            let oldest = known.iter().position(|place| place.number != in_force && !at_home(place));
            let oldest = oldest.or_else(|| known.iter().position(|place| place.number != in_force));
            if let Some(oldest) = oldest {
                self.known_places.remove(oldest);
            }
        }
        self.known_places.push(KnownPlace::new(sequence, claimed, observed));
        sequence
    }
}

fn release<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}
