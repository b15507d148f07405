//! What this host knows of where a peer's flows go, beside the peer and its flows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};

use whimbrel_wire::FlowTuple;
use whimbrel_wire::message::UpdateFlags;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::op::windows::Networks;
use crate::base::op::{Binding, Carrier, FlowEntry, KnownPlace, NOWHERE, PeerId, Places, SavedPeer};
use crate::base::output::OpId;
use crate::base::pace::FORMER;
use crate::binding::BindingLayer;
use crate::binding::masks::Masks;
use crate::binding::placed::Sides;
use crate::binding::untold::Forgotten;
use crate::binding::update::{Meanwhile, PendingUpdate};
use crate::binding::windows::Windows;
use crate::flow::peers::{Away, FlowPeer};
use crate::path::challenge::Awaited;
use crate::path::fallback::stands_in;
use crate::path::paths::Paths;
use crate::session::peer::Peer;
use crate::session::pins::Held;

/// Places remembered for a return (P-25).
const PLACES_REMEMBERED: usize = 8;

/// Round trips after an update of ours was accepted in which one of the peer's may come that it sent before: it may
/// have confirmed the place later, and each goes a way of its own.
const CROSSING: u32 = 3;

/// The carrier probe towards the peer (P-20).
#[derive(Debug, Default)]
pub(crate) struct CarrierProbe {
    /// Nonce and tuple of the outstanding one.
    pub(super) nonce: u64,
    pub(super) wire: Option<FlowTuple>,
    pub(super) tries: u32,
    /// The peer saw ours.
    pub(super) forward: bool,
    /// We are the end that moved last, so that we probe first.
    pub(super) leading: bool,
}

/// Where a peer's flows go.
#[derive(Default)]
pub(crate) struct BoundPeer {
    pub(super) sequence_sent: u32,
    pub(super) sequence_accepted: u32,
    pub(super) carrier: Carrier,
    pub(super) former: Vec<(IpAddr, IpAddr)>,
    pub(super) update: Option<PendingUpdate>,
    /// When it accepted the last update of ours that has told it of another place.
    pub(super) answered: Option<Time>,
    pub(super) probe: CarrierProbe,
    /// The op that is to put the newest binding in force, until that is done.
    pub(super) binding_asked: Option<OpId>,
    /// A probe of the peer's that is answered then: its tuple on the wire and its nonce.
    pub(super) probed_early: Option<(FlowTuple, u64)>,
    pub(super) known_places: Vec<KnownPlace>,
    /// Our addresses at places of ours that flows are at home at.
    pub(super) own_places: BTreeMap<u32, IpAddr>,
    /// Addresses of ours, of the other family than the path, from which its flows go and no route leads to it (P-33).
    pub(super) stranded: BTreeSet<IpAddr>,
    pub(super) peer_refuses_rewrite: bool,
    /// The peer may not know where we are: it is told when there is a session.
    pub(super) unannounced: bool,
    /// The tunnel of a daemon before this one has carried its flows, which the peer does not know yet (P-226).
    pub(super) tunnel_lost: bool,
    /// Its last move has broken nothing (P-38): what is under way need not be sent again.
    pub(super) unbroken: bool,
    /// The pair of locators, ours and its own, that rewritten packets are accepted between as this peer's.
    pub(super) pair: Option<(IpAddr, IpAddr)>,
    /// Held flows that are heard under their own names after all are to be told (P-39).
    pub(super) listens: bool,
    /// The life of its sockets, as it said last; 0: it said nothing (P-47).
    pub(super) life: u64,
    /// When the session began that it was told in.
    pub(super) life_since: Time,
    /// What names its memory of flows of hosts behind it, as it said last, and when the session began that it was told
    /// in (P-123).
    pub(super) memory: u64,
    pub(super) memory_since: Time,
    /// Places of the peer's that it was seen to be at, by their numbers, and when it left them: those of the last
    /// minute (P-104).
    pub(super) left_places: BTreeMap<u32, Time>,
    /// It never answered the word that this host goes away.
    pub(super) unheard: bool,
    /// The sockets of its flows are kept from giving up (P-46).
    pub(super) parked: bool,
    /// Its flows go by the tunnel as long as both ends are where they are: their own packets do not pass (P-49), or a
    /// program of this host would get them (P-160).
    pub(super) only_tunnel: bool,
    /// It was heard again, and is yet to answer before that is told.
    pub(super) back_untold: bool,
    /// Since when it had not answered as that was told last, until it answers.
    pub(super) doubt_told: Option<Time>,
    /// Whether it was told that its flows go over TCP.
    pub(super) told_by_tcp: bool,
    /// Addresses of ours that paths are kept ready from.
    pub(super) keeps_from: BTreeSet<IpAddr>,
    /// One is kept ready from each other network of ours.
    pub(super) keeps_all: bool,
    /// Bindings of single flows.
    pub(super) sides: Sides,
    /// What it is to be told before this host forgets its flows for good.
    pub(super) forgotten: Forgotten,
    /// What its senders had elsewhere.
    pub(super) windows: Windows,
    /// What its masked updates may have this host do (P-244).
    pub(super) masks: Masks,
}

impl BoundPeer {
    pub(crate) fn new(remote: SocketAddr) -> Self {
        Self { known_places: vec![KnownPlace::new(0, remote, remote)], ..Self::default() }
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        let places = self.known_places.len() + self.own_places.len();
        self.former.len() + places + self.sides.entries() + self.windows.entries()
    }

    /// A peer that a daemon before this one knew.
    fn restored(saved: &SavedPeer, now: Time) -> Self {
        let mut known_places = saved.known_places.clone();
        if known_places.is_empty() {
            known_places
                .push(KnownPlace { number: saved.places.peer, ..KnownPlace::new(0, saved.remote, saved.remote) });
        }
        Self {
            sequence_sent: saved.sequence_sent,
            sequence_accepted: saved.sequence_accepted,
            carrier: saved.carrier,
            former: saved.former.clone(),
            own_places: saved.own_places.iter().copied().collect(),
            life: saved.life,
            memory: saved.memory,
            listens: saved.silent && !saved.absent,
            // When it left them nobody has written down.
            left_places: saved.known_places.iter().map(|place| (place.number, now)).collect(),
            parked: saved.absent || saved.silent,
            known_places,
            ..Self::new(saved.remote)
        }
    }
}

/// A peer, with its flows and where they go.
pub(crate) struct Bound<S, P, F, B> {
    pub(super) peer: S,
    pub(super) path: P,
    pub(super) flow: F,
    pub(super) binding: B,
}

/// To be looked at.
pub(crate) type BoundRef<'a> = Bound<&'a Peer, &'a Paths, &'a FlowPeer, &'a BoundPeer>;
/// To be changed.
pub(crate) type BoundMut<'a> = Bound<&'a mut Peer, &'a mut Paths, &'a mut FlowPeer, &'a mut BoundPeer>;

impl<S: Deref<Target = Peer>, P, F, B> Deref for Bound<S, P, F, B> {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.peer
    }
}

/// Looks a peer up in a binding layer, with its flows and where they go. A macro, so that what else is in the layer can
/// be used meanwhile.
macro_rules! bound {
    ($layer:expr, $id:expr) => {
        match ($layer.flow.peer($id), $layer.peers.get($id)) {
            (Some($crate::flow::peers::WithFlows { peer, path, flow }), Some(binding)) => {
                Some($crate::binding::peers::Bound { peer, path, flow, binding })
            }
            _ => None,
        }
    };
}

/// As [`bound`], to be changed.
macro_rules! bound_mut {
    ($layer:expr, $id:expr) => {
        match ($layer.flow.peer_mut($id), $layer.peers.get_mut($id)) {
            (Some($crate::flow::peers::WithFlows { peer, path, flow }), Some(binding)) => {
                Some($crate::binding::peers::Bound { peer, path, flow, binding })
            }
            _ => None,
        }
    };
}

impl BindingLayer {
    /// A peer is known from now on, or is already.
    pub(crate) fn know(&mut self, id: PeerId, remote: SocketAddr) {
        self.flow.know(id, remote);
        self.peers.entry(id).or_insert_with(|| BoundPeer::new(remote));
    }

    /// Takes over what a daemon before this one knew of a peer.
    pub(crate) fn restore(&mut self, saved: &SavedPeer, now: Time) {
        self.flow.restore(saved);
        self.peers.insert(saved.id, BoundPeer::restored(saved, now));
    }

    /// A peer is forgotten.
    pub(crate) fn forget_peer(&mut self, id: PeerId) {
        self.peers.remove(&id);
        self.pairs.retain(|_, holder| *holder != id);
    }

    /// What a peer's session is for.
    pub(crate) fn held(&self, id: PeerId) -> Held {
        let updating = self.peers.get(&id).is_some_and(|peer| peer.update.is_some());
        Held { updating, ..self.flow.held(id) }
    }

    /// All peers, by number, with their flows and where these go.
    pub(crate) fn each(&self) -> impl Iterator<Item = BoundRef<'_>> {
        self.flow.session().ids().into_iter().filter_map(|id| bound!(self, &id))
    }
}

impl<S, P, F, B> Bound<S, P, F, B>
where
    S: Deref<Target = Peer>,
    P: Deref<Target = Paths>,
    F: Deref<Target = FlowPeer>,
    B: Deref<Target = BoundPeer>,
{
    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        self.peer.entries() + self.path.entries() + self.flow.entries() + self.binding.entries()
    }

    /// The paths to it.
    pub(crate) fn path(&self) -> &Paths {
        &self.path
    }

    /// What is known of its flows.
    pub(crate) fn flow(&self) -> &FlowPeer {
        &self.flow
    }

    /// How many flows are at home where this host is at this address.
    pub(crate) fn flows_at_home(&self, address: IpAddr) -> usize {
        let homes = self.flow.homes().filter(|(home, ..)| home.peer == self.flow.places().peer);
        let here = homes.filter(|(home, ..)| self.binding.own_places.get(&home.local) == Some(&address));
        here.map(|(.., count)| count).sum()
    }

    /// How many flows that this host is away from home with are of this address's family. Those that only the peer is
    /// away with go where the peer is.
    pub(crate) fn flows_of_family(&self, address: IpAddr) -> usize {
        let away = self.flow.homes().filter(|(home, ..)| home.local != self.flow.places().local);
        let alike = away.filter(|(_, own, _)| own.is_ipv4() == address.is_ipv4());
        alike.map(|(.., count)| count).sum()
    }

    /// Whether flows are at home at another place of this host than the one where it is or goes to.
    pub(crate) fn has_gone(&self) -> bool {
        self.flow.homes().any(|(home, ..)| home.local != self.flow.places().local)
    }

    /// Whether the peer is elsewhere than at the home of any of its flows.
    pub(crate) fn has_left(&self) -> bool {
        let places = self.current_places();
        self.flow.homes().any(|(home, ..)| home.peer != places.peer)
    }

    /// Whether a flow is at home at the address where this host is.
    pub(crate) fn is_home_address(&self) -> bool {
        let here = self.path.attachment().map(|attachment| attachment.address);
        self.flow.homes().any(|(home, address, _)| Some(address) == here && home.peer == self.flow.places().peer)
    }

    /// Whether any flow that is at home uses one of these addresses of this host.
    pub(crate) fn is_rooted(&self, gone: impl Fn(&IpAddr) -> bool) -> bool {
        self.flow.homes().any(|(home, address, _)| home == self.flow.places() && gone(&address))
    }

    /// Whether segments of this peer's that introduce or probe are to be consumed.
    pub(crate) fn is_listened_for(&self, now: Time) -> bool {
        self.flow.listens(now) || self.moved_flows() > 0
    }

    /// How many flows are not where they are at home.
    pub(crate) fn moved_flows(&self) -> usize {
        let places = self.current_places();
        let away = self.flow.homes().filter(|(home, ..)| *home != places).map(|(.., count)| count);
        self.flow.elsewhere() + away.sum::<usize>()
    }

    /// What carries its flows.
    pub(crate) fn carrier(&self) -> Carrier {
        self.binding.carrier
    }

    /// Sequence numbers of the last update sent and accepted.
    pub(crate) fn sequences(&self) -> (u32, u32) {
        (self.binding.sequence_sent, self.binding.sequence_accepted)
    }

    /// Whether an update of ours is on its way, and then whether it says where this host is, and not that it goes.
    pub(crate) fn updating(&self) -> Option<bool> {
        self.binding.update.as_ref().map(|update| !update.absent)
    }

    pub(crate) fn saved(&self) -> SavedPeer {
        SavedPeer {
            id: self.id(),
            key: self.key(),
            // The peer said that it is there. A session with it, without which nothing is sent, will prove it.
            remote: Some(self.path.heading()).filter(|at| !stands_in(*at)).unwrap_or(self.path.direct()),
            tcp_port: self.path.tcp_port(),
            source: self.path.source(),
            locators: self.path.locators().to_vec(),
            former_locators: self.path.former_locators().to_vec(),
            sequence_sent: self.binding.sequence_sent,
            sequence_accepted: self.binding.sequence_accepted,
            places: self.flow.places(),
            carrier: self.binding.carrier,
            former: self.binding.former.clone(),
            absent: self.flow.away() == Some(Away::Announced),
            silent: self.flow.away() == Some(Away::Silent { held: true }),
            life: self.binding.life,
            memory: self.binding.memory,
            waiting: self.flow.waiting().numbers(),
            observed: self.path.observed(),
            known_places: self.binding.known_places.clone(),
            own_places: self.binding.own_places.iter().map(|(number, address)| (*number, *address)).collect(),
        }
    }

    /// Whether flows wait for this host or for the peer, so that their sockets may come to give up.
    pub(crate) fn waits(&self) -> bool {
        let held = self.binding.carrier == Carrier::Hold || self.flow.places().local == NOWHERE;
        !self.flow.flows().is_empty() && (self.flow.away().is_some() || (held && self.meanwhile().is_none()))
    }

    /// Whether it has flows that the tunnel carries, as far as is known.
    pub(crate) fn goes_by_tunnel(&self) -> bool {
        self.moved_flows() > 0 && self.binding.carrier == Carrier::Tunnel
    }

    /// The pair of locators that rewritten packets may come between. Through a NAT nothing arrives rewritten, and what
    /// arrives under its address may be anybody's (`shared`: other hosts have been seen under it); so may what seems to
    /// come from a place that is not confirmed.
    pub(crate) fn wanted_pair(&self, shared: bool) -> Option<(IpAddr, IpAddr)> {
        let tunnelled = self.translated() || self.path.is_by_tcp();
        if self.flow.flows().is_empty() || self.path.is_unconfirmed() || shared || tunnelled {
            return None;
        }
        let remote = self.path.remote().ip();
        self.path.source().filter(|source| source.is_ipv4() == remote.is_ipv4()).map(|source| (source, remote))
    }

    /// The place and endpoint that the peer announced last, the refusal of rewritten packets that went with it.
    pub(crate) fn announced(&self) -> (u32, SocketAddr, bool) {
        match self.path.awaited() {
            Some((remote, awaited)) => (awaited.place, remote, awaited.refuses_rewrite),
            None => (self.flow.places().peer, self.path.heading(), self.binding.peer_refuses_rewrite),
        }
    }

    /// Whether the present path carries flows: no move of either end is under way.
    pub(crate) fn carries(&self) -> bool {
        let settled = self.binding.update.is_none() && !self.path.is_unconfirmed();
        settled && self.path.attachment().is_some() && self.flow.away().is_none()
    }

    /// Whether either end has said that it is elsewhere than where they met.
    pub(crate) fn has_moved(&self) -> bool {
        self.binding.sequence_sent > 0 || self.binding.sequence_accepted > 0
    }

    /// Whether the peer's place is behind a NAT, so that it may be seen under another mapping. A place that nothing is
    /// known of may be.
    pub(crate) fn is_mapped(&self) -> bool {
        let here = self.binding.known_places.iter().find(|place| place.number == self.flow.places().peer);
        here.is_none_or(|place| place.translated)
    }

    /// What carries the flows while an update is not answered.
    pub(crate) fn meanwhile(&self) -> Option<&Meanwhile> {
        self.binding.update.as_ref()?.meanwhile.as_ref()
    }

    /// Whether segments of its flows are to be made small enough for the tunnel. To make them so has TCP send again all
    /// that is under way, where a first segment of the old size meets the new route (`ip_fragment` tells of it by
    /// ICMP): after a move that has broken nothing the tunnel cuts them instead.
    pub(crate) fn needs_small_segments(&self) -> bool {
        self.binding.carrier != Carrier::Rewrite && !self.binding.unbroken
    }

    /// The places as the data plane is to have them. No flow is at home at a place that is not confirmed: native
    /// packets would know no allowance (P-18).
    pub(crate) fn current_places(&self) -> Places {
        if let Some(meanwhile) = self.meanwhile() {
            return meanwhile.binding.places;
        }
        if self.path.is_unconfirmed() || self.flow.is_held_away() {
            Places { peer: NOWHERE, ..self.flow.places() }
        } else {
            self.flow.places()
        }
    }

    /// The networks that it and this host meet by, as far as this host knows them.
    pub(crate) fn networks(&self) -> Option<Networks> {
        let Attachment { link, address, .. } = self.path.attachment()?;
        let here = self.binding.known_places.iter().rfind(|place| place.number == self.flow.places().peer);
        let seen = self.path.remote().ip();
        let (claimed, observed) = here.map_or((seen, seen), |here| (here.claimed.ip(), here.observed.ip()));
        Some(Networks { link, source: address, claimed, observed })
    }

    /// Whether something between us translates addresses, in either direction.
    pub(crate) fn translated(&self) -> bool {
        self.is_mapped() || self.is_translated_here()
    }

    /// Whether something translates this host's address towards it.
    pub(crate) fn is_translated_here(&self) -> bool {
        match (self.path.observed(), self.path.source()) {
            // Seen by way of the other family, it says nothing of this one.
            (Some(observed), Some(source)) if observed.is_ipv4() == source.is_ipv4() => observed.ip() != source,
            _ => false,
        }
    }

    /// Until when what comes from a place of the peer's may be the peer's own still, since it was under way; `None`: it
    /// is not.
    pub(crate) fn under_way_until(&self, now: Time, place: u32) -> Option<Time> {
        let there = self.flow.places().peer == place && self.flow.away().is_none();
        let until = |left: &Time| Some(*left + FORMER).filter(|until| *until > now);
        if there { Some(now + FORMER) } else { self.binding.left_places.get(&place).and_then(until) }
    }

    /// Where the peer may be, the likeliest first: where it said that it is, its other addresses, and where it was
    /// before. `anywhere`: the last as well.
    pub(crate) fn whereabouts(&self, port: u16, anywhere: bool) -> Vec<SocketAddr> {
        let before = self.binding.known_places.iter().rev().filter(|place| anywhere && !place.translated);
        let mut all = Vec::new();
        for to in self.path.whereabouts(self.answers_at(), port).chain(before.map(|place| place.observed)) {
            if !all.contains(&to) {
                all.push(to);
            }
        }
        all
    }

    /// The binding as the data plane is to have it.
    pub(crate) fn binding(&self) -> Binding {
        if let Some(meanwhile) = self.meanwhile() {
            return meanwhile.binding.clone();
        }
        let peer_locator = self.path.heading().ip();
        let unspecified = match peer_locator {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        };
        Binding {
            places: self.current_places(),
            carrier: self.binding.carrier,
            local_locator: self.binding.pair.map_or(unspecified, |(local, _)| local),
            peer_locator,
            proven: Some(self.path.remote().ip()).filter(|_| self.path.is_proven()),
            source: self.path.source(),
            former: self.binding.former.clone(),
            listens: self.binding.listens && self.binding.carrier == Carrier::Hold,
            parked: self.binding.parked,
        }
    }

    /// The places at which a flow between these addresses, of this host and of the peer, is native now.
    pub(crate) fn native_places(&self, local: IpAddr, remote: IpAddr) -> Option<Places> {
        let places = self.flow.places_agreed();
        let there = self.path.source() == Some(local) && self.path.remote().ip() == remote && !self.translated();
        let settled = self.binding.update.is_none() && self.path.candidate().is_none();
        (there && settled && places.local != NOWHERE && places.peer != NOWHERE).then_some(places)
    }

    /// Whether a flow between these addresses is native whenever this host is at its place of that number and the peer
    /// at the one in force: each address is that of its end there.
    pub(crate) fn may_be_native(&self, number: u32, local: IpAddr, remote: IpAddr) -> bool {
        let in_force = number == self.flow.places().local && self.path.source() == Some(local);
        let here = in_force || self.binding.own_places.get(&number) == Some(&local);
        here && self.path.remote().ip() == remote && !self.translated()
    }
}

impl<S, P, F, B> Bound<S, P, F, B>
where
    S: DerefMut<Target = Peer>,
    P: DerefMut<Target = Paths>,
    F: DerefMut<Target = FlowPeer>,
    B: DerefMut<Target = BoundPeer>,
{
    /// A flow is one with the peer from now on.
    pub(crate) fn add_flow(&mut self, flow: FlowTuple, entry: &FlowEntry) {
        if self.flow.flows().is_empty() {
            let networks = self.networks();
            self.binding.windows.settle(networks);
        }
        self.record_own_place();
        self.flow.add(flow, entry);
    }

    /// A daemon before this one knew a flow. Where this host was it has written down, of this flow's home as of those
    /// of flows that come after it.
    pub(crate) fn restore_flow(&mut self, flow: FlowTuple, entry: &FlowEntry) {
        self.flow.add(flow, entry);
    }

    /// The peer is at another place. `asked`: that of this host's which it named.
    pub(crate) fn follow(&mut self, now: Time, awaited: &Awaited, asked: Option<Attachment>) {
        self.retire_path();
        self.leave_place(now);
        // Where it only says something else of the same place, this host's reason stays.
        self.binding.only_tunnel &= self.flow.places().peer == awaited.place;
        self.flow.set_peer_place(awaited.place);
        self.binding.peer_refuses_rewrite = awaited.refuses_rewrite;
        self.flow.forget_stalls();
        self.binding.probe = CarrierProbe::default();
        // The answer leaves from the address that the peer asked; that it is our locator towards it now. What it asked
        // before it knew where this host has moved to means nothing.
        let crossed = |asked: &Attachment| {
            let alike = self.path.source().is_some_and(|source| source.is_ipv4() == asked.address.is_ipv4());
            let within = self.path.round_trip() * CROSSING;
            alike && self.binding.answered.is_some_and(|answered| now < answered + within)
        };
        let asked = asked.filter(|asked| self.binding.update.is_none() && !crossed(asked));
        if let Some(attachment) = asked {
            self.path.answer_from(attachment);
        }
    }

    /// Remembers which address of ours the place in force is at, and forgets where no flow is at home.
    pub(crate) fn record_own_place(&mut self) {
        let Self { path, flow, binding, .. } = self;
        let (here, source) = (flow.places().local, path.source());
        binding.own_places.extend(source.filter(|_| here != NOWHERE).map(|source| (here, source)));
        binding.own_places.retain(|number, _| *number == here || flow.homes().any(|(home, ..)| home.local == *number));
    }

    /// Numbers the place that an update with `sequence` announces (P-25) and remembers it.
    pub(crate) fn number_place(
        &mut self,
        sequence: u32,
        claimed: SocketAddr,
        observed: SocketAddr,
        flags: UpdateFlags,
    ) -> u32 {
        // Which connection it came by says nothing of the place.
        let by_tcp = stands_in(observed) && claimed.ip() == observed.ip();
        let observed = if by_tcp { claimed } else { observed };
        // Behind a NAT even the place in force is not the same after the host was away: the NAT may have forgotten its
        // flows.
        let away = flags.contains(UpdateFlags::FORMER_PATH_LOST) && claimed != observed;
        // P-33: no flow is at home there.
        let uprooted = away || flags.contains(UpdateFlags::UPROOTED);
        let in_force = self.flow.places().peer;
        let same = |place: &KnownPlace| (place.claimed, place.observed) == (claimed, observed);
        // What is written down of the place in force stays until the peer has left it (P-135). After that its number is
        // no longer that of its sources, if they have got another.
        let newest = self.binding.known_places.iter().rposition(same);
        let mut at = 0;
        self.binding.known_places.retain(|place| {
            let superseded = same(place) && (uprooted || newest != Some(at));
            at += 1;
            !superseded || place.number == in_force
        });
        let here = self.binding.known_places.iter().rfind(|place| same(place)).filter(|_| !uprooted);
        if let Some(place) = here.filter(|place| !place.translated || place.number == in_force) {
            return place.number;
        }
        if self.binding.known_places.len() >= PLACES_REMEMBERED {
            let at_home = |place: &KnownPlace| self.flow.homes().any(|(home, ..)| home.peer == place.number);
            let known = &self.binding.known_places;
            let oldest = known.iter().position(|place| place.number != in_force && !at_home(place));
            let oldest = oldest.or_else(|| known.iter().position(|place| place.number != in_force));
            if let Some(oldest) = oldest {
                self.binding.known_places.remove(oldest);
            }
        }
        // Where a copy was followed (P-17) its place has had the number.
        self.binding.known_places.retain(|place| place.number != sequence);
        self.binding.known_places.push(KnownPlace::new(sequence, claimed, observed));
        sequence
    }

    /// The place in force is seen under another mapping of its NAT from now on (P-26).
    pub(crate) fn follow_mapping(&mut self, observed: SocketAddr) {
        let here = self.flow.places().peer;
        if let Some(place) = self.binding.known_places.iter_mut().find(|place| place.number == here)
            && place.translated
        {
            place.observed = observed;
        }
    }

    /// The peer leaves the place in force. That counts if it has shown that it was there, and not been absent since:
    /// else whoever says that he was somewhere for a moment could say so again and again (P-104).
    pub(crate) fn leave_place(&mut self, now: Time) {
        self.binding.left_places.retain(|_, left| *left + FORMER > now);
        let number = self.flow.places().peer;
        let here = self.binding.known_places.iter().find(|place| place.number == number);
        if here.is_some_and(|place| place.observed.ip() == self.path.remote().ip())
            && self.flow.away() != Some(Away::Announced)
        {
            self.binding.left_places.insert(number, now);
        }
    }

    /// The peer, which has no flows, is met at another endpoint. Place 0 is where it was met before any update (§5).
    pub(crate) fn meet_at(&mut self, claimed: SocketAddr, observed: SocketAddr) {
        if self.binding.sequence_accepted == 0 {
            self.binding.known_places = vec![KnownPlace::new(0, claimed, observed)];
        }
    }

    /// It was reached at another of its addresses, at the same place. What does not bear out that this is its own is
    /// behind a NAT (P-19), and so is the place from now on.
    pub(crate) fn record_other_address(&mut self, remote: SocketAddr, port: u16) {
        let own = remote.port() == port && self.path.locators().contains(&remote.ip());
        let mut places = self.binding.known_places.iter_mut();
        let here = places.find(|place| place.number == self.flow.places().peer && place.observed != remote);
        here.into_iter().for_each(|place| place.translated |= !own);
    }

    /// Keeps the present pair of locators acceptable while another takes its place (P-22): the one that it had, and
    /// none where it had none (P-135).
    pub(crate) fn retire_path(&mut self) {
        if let Some(pair) = self.binding.pair {
            self.binding.former.retain(|former| *former != pair);
            self.binding.former.insert(0, pair);
            self.binding.former.truncate(2);
        }
    }

    /// This host leaves the place where the peer takes it to be.
    pub(crate) fn on_left(&mut self) {
        if self.flow.places().local != NOWHERE {
            self.path.record_left();
        }
    }
}
