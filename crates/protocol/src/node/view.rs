//! What the outside may see of a node.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::FlowTuple;
use whimbrel_wire::hello::Capabilities;

use crate::Time;
use crate::base::event::Doubt;
use crate::base::id::{LinkId, PathId};
use crate::base::op::{Carrier, FlowEntry, LocalEnd, PeerId, Places};
use crate::binding::peers::BoundRef;
use crate::flow::known::{Flow, FlowView};
use crate::flow::peers::Away;
use crate::node::Node;
use crate::path::challenge::Path;
use crate::path::kept::PathView;
use crate::path::paths::Paths;
use crate::path::ping::Ping;
use crate::session::peer::SessionSlot;

/// A peer as `whimbrel peers` and `whimbrel paths` show it.
#[derive(Clone, Debug)]
pub struct PeerView {
    /// Its number.
    pub id: PeerId,
    /// Its key.
    pub key: PublicKey,
    /// Its confirmed endpoint.
    pub remote: SocketAddr,
    /// An endpoint that it announced and that is not confirmed.
    pub candidate: Option<SocketAddr>,
    /// Whether the path in use goes by TCP (P-250).
    pub by_tcp: bool,
    /// Our address towards it; `None`: it can't be reached now.
    pub source: Option<IpAddr>,
    /// Our endpoint as it sees it.
    pub observed: Option<SocketAddr>,
    /// Whether a session is there.
    pub session: bool,
    /// Smoothed round trip.
    pub round_trip: Option<Duration>,
    /// Places now.
    pub places: Places,
    /// How moved flows are carried.
    pub carrier: Carrier,
    /// The path in use.
    pub path: PathId,
    /// Paths that this host keeps ready beside it.
    pub kept: Vec<PathView>,
    /// Whether addresses are translated on the way.
    pub translated: bool,
    /// Flows that were introduced.
    pub flows: usize,
    /// Of these, how many are not where they are at home.
    pub moved: usize,
    /// Its other addresses.
    pub locators: Vec<IpAddr>,
    /// Sequence numbers of the last update sent and accepted.
    pub sequences: (u32, u32),
    /// When it was last heard.
    pub last_heard: Time,
    /// Whether its place is behind a NAT, as far as is known.
    pub mapped: bool,
    /// The last question by hand whether it answers ([`Node::ping`]).
    pub ping: Option<Ping>,
    /// What makes it doubtful that its flows arrive, and since when: it does not answer.
    pub doubt: Option<(Doubt, Time)>,
    /// Whether it is away, and then whether it said so.
    pub away: Option<bool>,
    /// What it is able to do, while a session is there.
    pub capabilities: Option<Capabilities>,
}

impl Node {
    /// The number of the peer with this key, and its smoothed round trip, where that was measured.
    #[must_use]
    pub fn peer_with(&self, key: &PublicKey) -> Option<(PeerId, Option<Duration>)> {
        let id = self.binding.session().with_key(key)?;
        Some((id, self.binding.path().paths(&id).and_then(Paths::measured)))
    }

    /// The key of a peer.
    #[must_use]
    pub fn key_of(&self, id: PeerId) -> Option<PublicKey> {
        self.binding.session().key_of(id)
    }

    /// All peers, by number.
    pub fn peers(&self) -> impl Iterator<Item = PeerView> + '_ {
        self.binding.each().map(move |peer| self.view_of(&peer))
    }

    /// One of them.
    #[must_use]
    pub fn peer(&self, id: PeerId) -> Option<PeerView> {
        self.binding.peer(&id).map(|peer| self.view_of(&peer))
    }

    fn view_of(&self, peer: &BoundRef<'_>) -> PeerView {
        // Of its flows those that are over do not count, nor of those that have moved.
        let (ended, ended_away) = self.binding.ended(peer.id());
        PeerView {
            id: peer.id(),
            key: peer.key(),
            remote: peer.path().remote(),
            candidate: peer.path().candidate().map(Path::remote),
            by_tcp: peer.path().is_by_tcp(),
            source: peer.path().attachment().and(peer.path().source()),
            observed: peer.path().observed(),
            session: peer.has_session(),
            round_trip: peer.path().measured(),
            places: peer.flow().places(),
            carrier: peer.carrier(),
            translated: peer.translated(),
            path: peer.path().in_use(),
            kept: peer.path().kept().collect(),
            flows: peer.flow().flows().len().saturating_sub(ended),
            moved: peer.moved_flows().saturating_sub(ended_away),
            locators: peer.path().locators().to_vec(),
            sequences: peer.sequences(),
            last_heard: peer.last_heard(),
            mapped: peer.is_mapped(),
            ping: peer.path().ping(),
            doubt: self.binding.doubt(peer.id(), &self.base),
            away: peer.flow().away().map(|away| away == Away::Announced),
            capabilities: peer.confirmed().map(SessionSlot::capabilities),
        }
    }

    /// All flows that are known and have not ended, in no order.
    pub fn flows(&self) -> impl Iterator<Item = FlowView> + '_ {
        let ending = |entry: &FlowEntry| {
            let is_ending = |name| self.roles.relocation.holder().is_ending(&name);
            entry.end == LocalEnd::Behind && self.binding.flow().name_of(entry).is_some_and(is_ending)
        };
        let there = move |flow: &Flow| !flow.is_closed() && !flow.entry().is_some_and(ending);
        self.binding.flow().flows().iter().filter(move |(_, flow)| there(flow)).map(|(tuple, flow)| {
            let peer = flow.entry().and_then(|entry| self.binding.peer(&entry.peer));
            let places = peer.map(|peer| peer.current_places());
            flow.view(*tuple, places)
        })
    }

    /// The link by which a flow goes that has a path of its own (P-186), as far as that is known, and the one by which
    /// it goes as well (P-262).
    #[must_use]
    pub fn own_links_of(&self, flow: &FlowTuple) -> Option<(LinkId, Option<LinkId>)> {
        let entry = self.binding.flow().flows().get(flow)?.entry()?;
        let (way, second) = self.binding.ways_of(entry.peer, entry.side)?;
        let link_of = |source: Option<IpAddr>, link: Option<LinkId>| {
            source.and_then(|source| self.base.attachments().get(&source)).map(|at| at.link).or(link)
        };
        let second = second.and_then(|second| link_of(second.source, second.link));
        Some((link_of(way.source, way.link)?, second))
    }

    /// Whether an address is that of a host behind this one (P-100).
    #[must_use]
    pub fn is_behind(&self, address: IpAddr) -> bool {
        self.base.attachments().is_behind(address)
    }

    /// This host's public key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.base.public_key()
    }

    /// Entries of all tables together: what must not grow without bound.
    #[must_use]
    pub fn entries(&self) -> usize {
        let peers: usize = self.binding.each().map(|peer| peer.entries()).sum();
        let own = [
            self.binding.flow().flows().entries(),
            self.binding.flow().turns(),
            self.base.awaited(),
            self.binding.session().entries(),
            self.binding.entries(),
            self.binding.path().sightings().entries(),
        ];
        peers + own.iter().sum::<usize>() + self.binding.transfer_entries() + self.roles.entries()
    }

    /// Distinct addresses of peers' flows; for tests of invariants.
    #[must_use]
    pub fn kept_addresses(&self) -> HashSet<IpAddr> {
        self.binding.keeping().iter().copied().collect()
    }
}
