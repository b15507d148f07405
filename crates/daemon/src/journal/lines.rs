//! The lines of the journal.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{
    Carrier, FlowEntry, FlowName, KnownPlace, LeaseName, LocalEnd, Manner, MoveName, PeerId, Places, Request,
    SavedAcceptance, SavedDonation, SavedHeld, SavedLease, SavedPeer, SavedTenancy, Ticket, View, Waits,
};
use whimbrel_wire::lending::Ends;
use whimbrel_wire::moving::TicketMac;
use whimbrel_wire::snapshot::Family;
use whimbrel_wire::{FlowTuple, Transport};

use super::SavedNamespace;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Peer(PeerLine),
    Suspended(bool),
    /// Nothing new is lent (`whimbrel anchor stop`).
    LendingStopped(bool),
    /// What names the memory of flows of hosts behind this one (protocol.md P-123).
    Memory(u64),
    Forget(u32),
    Flow(FlowLine),
    Gone(TupleLine),
    /// A flow as it was before it became direct, of which who has passed it on is to be told; and that he was.
    Left(FlowLine),
    LeftOver(TupleLine),
    /// A socket that is being given away, taken, or held for others; and that this is over.
    Donation(DonationLine),
    DonationOver(NameLine),
    /// A process that stands still for such moves, and when it was started; and that it does so no more.
    Halted(u32, u64),
    HaltedOver(u32),
    Acceptance(AcceptanceLine),
    AcceptanceOver(NameLine),
    Held(HeldLine),
    /// By its name alone in journals of before, where no two had the same.
    HeldOver(u64),
    HeldOverWith(KeyLine, u64),
    /// Endpoints that another host has on lease, or this one of another; and that this is over.
    Lease(LeaseLine),
    LeaseOver(KeyLine, u64),
    Tenancy(TenancyLine),
    /// By its number alone in journals of before, where no two had the same.
    TenancyOver(u64),
    TenancyOverOf(KeyLine, u64),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FlowLine {
    pub(super) own: TupleLine,
    #[serde(flatten)]
    pub(super) entry: EntryLine,
}

/// Protocol number, local, remote.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct TupleLine(u8, SocketAddr, SocketAddr);

impl From<FlowTuple> for TupleLine {
    fn from(tuple: FlowTuple) -> Self {
        Self(tuple.transport.protocol(), tuple.local, tuple.remote)
    }
}

impl TupleLine {
    pub(super) fn tuple(self) -> Option<FlowTuple> {
        Some(FlowTuple { transport: Transport::from_protocol(self.0)?, local: self.1, remote: self.2 })
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct EntryLine {
    peer: u32,
    name: u64,
    home: (u32, u32),
    peer_tuple: TupleLine,
    /// Here, there.
    waits: (bool, bool),
    #[serde(default)]
    view: ViewLine,
    #[serde(default)]
    gives_way: bool,
    wire: (u16, u16),
    #[serde(default)]
    end: EndLine,
    #[serde(default)]
    passed_on: bool,
    #[serde(default)]
    hidden: bool,
    #[serde(default)]
    beyond: bool,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EndLine {
    #[default]
    Here,
    Endpoint,
    Behind,
    Passing,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ViewLine {
    #[default]
    Virtual,
    Real,
    Lasting,
}

impl From<FlowEntry> for EntryLine {
    fn from(entry: FlowEntry) -> Self {
        Self {
            peer: entry.peer.0,
            name: entry.name,
            home: (entry.home.local, entry.home.peer),
            peer_tuple: entry.peer_tuple.into(),
            waits: (entry.waits.here, entry.waits.there),
            view: match entry.manner.view {
                View::Virtual => ViewLine::Virtual,
                View::Real => ViewLine::Real,
                View::Lasting => ViewLine::Lasting,
            },
            gives_way: entry.manner.gives_way,
            wire: (entry.wire_local_port, entry.wire_remote_port),
            end: match entry.end {
                LocalEnd::Here => EndLine::Here,
                LocalEnd::Endpoint => EndLine::Endpoint,
                LocalEnd::Behind => EndLine::Behind,
                LocalEnd::Passing => EndLine::Passing,
            },
            passed_on: entry.passed_on,
            hidden: entry.hidden,
            beyond: entry.beyond,
        }
    }
}

impl EntryLine {
    pub(super) fn entry(self) -> Option<FlowEntry> {
        Some(FlowEntry {
            peer: PeerId(self.peer),
            name: self.name,
            home: Places { local: self.home.0, peer: self.home.1 },
            peer_tuple: self.peer_tuple.tuple()?,
            waits: Waits { here: self.waits.0, there: self.waits.1 },
            manner: Manner {
                view: match self.view {
                    ViewLine::Virtual => View::Virtual,
                    ViewLine::Real => View::Real,
                    ViewLine::Lasting => View::Lasting,
                },
                gives_way: self.gives_way,
            },
            wire_local_port: self.wire.0,
            wire_remote_port: self.wire.1,
            end: match self.end {
                EndLine::Here => LocalEnd::Here,
                EndLine::Endpoint => LocalEnd::Endpoint,
                EndLine::Behind => LocalEnd::Behind,
                EndLine::Passing => LocalEnd::Passing,
            },
            passed_on: self.passed_on,
            hidden: self.hidden,
            beyond: self.beyond,
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PeerLine {
    pub(super) id: u32,
    key: [u8; 32],
    remote: SocketAddr,
    source: Option<IpAddr>,
    locators: Vec<IpAddr>,
    sequence: (u32, u32),
    places: (u32, u32),
    carrier: CarrierLine,
    former: Vec<(IpAddr, IpAddr)>,
    observed: Option<SocketAddr>,
    absent: bool,
    #[serde(default)]
    silent: bool,
    life: u64,
    #[serde(default)]
    memory: u64,
    waiting: (u32, u32),
    /// Number, claimed, observed.
    known_places: Vec<(u32, SocketAddr, SocketAddr)>,
    /// Numbers of those that are translated, whatever the two are by now.
    #[serde(default)]
    translated_places: Vec<u32>,
    own_places: Vec<(u32, IpAddr)>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CarrierLine {
    Hold,
    Tunnel,
    FollowRewrite,
    Rewrite,
}

impl From<SavedPeer> for PeerLine {
    fn from(peer: SavedPeer) -> Self {
        Self {
            id: peer.id.0,
            key: *peer.key.as_bytes(),
            remote: peer.remote,
            source: peer.source,
            locators: peer.locators,
            sequence: (peer.sequence_sent, peer.sequence_accepted),
            places: (peer.places.local, peer.places.peer),
            carrier: match peer.carrier {
                Carrier::Hold => CarrierLine::Hold,
                Carrier::Tunnel => CarrierLine::Tunnel,
                Carrier::FollowRewrite => CarrierLine::FollowRewrite,
                Carrier::Rewrite => CarrierLine::Rewrite,
            },
            former: peer.former,
            observed: peer.observed,
            absent: peer.absent,
            silent: peer.silent,
            life: peer.life,
            memory: peer.memory,
            waiting: peer.waiting,
            own_places: peer.own_places,
            translated_places: peer
                .known_places
                .iter()
                .filter(|place| place.translated)
                .map(|place| place.number)
                .collect(),
            known_places: peer.known_places.iter().map(|place| (place.number, place.claimed, place.observed)).collect(),
        }
    }
}

impl From<PeerLine> for SavedPeer {
    fn from(line: PeerLine) -> Self {
        Self {
            id: PeerId(line.id),
            key: PublicKey::from(line.key),
            remote: line.remote,
            source: line.source,
            locators: line.locators,
            sequence_sent: line.sequence.0,
            sequence_accepted: line.sequence.1,
            places: Places { local: line.places.0, peer: line.places.1 },
            carrier: match line.carrier {
                CarrierLine::Hold => Carrier::Hold,
                CarrierLine::Tunnel => Carrier::Tunnel,
                CarrierLine::FollowRewrite => Carrier::FollowRewrite,
                CarrierLine::Rewrite => Carrier::Rewrite,
            },
            former: line.former,
            observed: line.observed,
            absent: line.absent,
            silent: line.silent,
            life: line.life,
            memory: line.memory,
            waiting: line.waiting,
            own_places: line.own_places,
            known_places: line
                .known_places
                .into_iter()
                .map(|(number, claimed, observed)| {
                    let mut place = KnownPlace::new(number, claimed, observed);
                    place.translated |= line.translated_places.contains(&number);
                    place
                })
                .collect(),
        }
    }
}

/// Donor's key and number of a move.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NameLine(KeyLine, u64);

impl From<MoveName> for NameLine {
    fn from(name: MoveName) -> Self {
        Self(KeyLine(PublicKey::from(name.donor)), name.number)
    }
}

impl From<NameLine> for MoveName {
    fn from(line: NameLine) -> Self {
        Self { donor: *line.0.0.as_bytes(), number: line.1 }
    }
}

/// A key, as people see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyLine(PublicKey);

impl Serialize for KeyLine {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for KeyLine {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DonationLine {
    name: NameLine,
    tuple: TupleLine,
    flow: u64,
    holder: KeyLine,
    holder_at: Option<SocketAddr>,
    acceptor: KeyLine,
}

impl From<SavedDonation> for DonationLine {
    fn from(saved: SavedDonation) -> Self {
        let SavedDonation { name, tuple, flow, holder_at, acceptor } = saved;
        let (flow, holder, acceptor) = (flow.value(), KeyLine(flow.peer()), KeyLine(acceptor));
        Self { name: name.into(), tuple: tuple.into(), flow, holder, holder_at, acceptor }
    }
}

impl DonationLine {
    pub(super) fn saved(self) -> Option<SavedDonation> {
        let Self { name, tuple, flow, holder, holder_at, acceptor } = self;
        let (flow, acceptor) = (FlowName::new(holder.0, flow), acceptor.0);
        Some(SavedDonation { name: name.into(), tuple: tuple.tuple()?, flow, holder_at, acceptor })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AcceptanceLine {
    name: NameLine,
    flow: u64,
    tuple: TupleLine,
    holder: KeyLine,
    holder_at: SocketAddr,
    /// 6 of a socket of IPv6, whatever it talks.
    family: u8,
    receiver: Vec<u8>,
    acceptor: KeyLine,
    sequence: u32,
    lifetime: u32,
    mac: TicketMac,
    wire_port: u16,
}

impl From<SavedAcceptance> for AcceptanceLine {
    fn from(saved: SavedAcceptance) -> Self {
        let SavedAcceptance { request, ticket, wire_port } = saved;
        Self {
            name: ticket.name.into(),
            flow: ticket.flow,
            tuple: request.tuple.into(),
            holder: KeyLine(PublicKey::from(request.holder)),
            holder_at: request.holder_at,
            family: if request.family == Family::Ipv6 { 6 } else { 4 },
            receiver: request.receiver,
            acceptor: KeyLine(PublicKey::from(ticket.acceptor)),
            sequence: ticket.sequence,
            lifetime: ticket.lifetime,
            mac: ticket.mac,
            wire_port,
        }
    }
}

impl AcceptanceLine {
    pub(super) fn saved(self) -> Option<SavedAcceptance> {
        let ticket = Ticket {
            name: self.name.into(),
            flow: self.flow,
            acceptor: *self.acceptor.0.as_bytes(),
            sequence: self.sequence,
            lifetime: self.lifetime,
            mac: self.mac,
        };
        let request = Request {
            holder: *self.holder.0.as_bytes(),
            holder_at: self.holder_at,
            flow: self.flow,
            tuple: self.tuple.tuple()?,
            family: if self.family == 6 { Family::Ipv6 } else { Family::Ipv4 },
            // What it was asked with is used up.
            size: 0,
            options: Vec::new(),
            receiver: self.receiver,
        };
        Some(SavedAcceptance { request, ticket, wire_port: self.wire_port })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HeldLine {
    flow: u64,
    far: Option<TupleLine>,
    owner: KeyLine,
    wire_port: u16,
    sequence: u32,
    last: NameLine,
    unsettled: Vec<(NameLine, Option<SocketAddr>)>,
    #[serde(default)]
    hidden: bool,
    #[serde(default)]
    ending: bool,
}

impl From<SavedHeld> for HeldLine {
    fn from(saved: SavedHeld) -> Self {
        let SavedHeld { flow, far, wire_port, sequence, last, unsettled, hidden, ending } = saved;
        let (flow, owner) = (flow.value(), KeyLine(flow.peer()));
        let unsettled = unsettled.into_iter().map(|(name, at)| (name.into(), at)).collect();
        let far = far.map(TupleLine::from);
        Self { flow, far, owner, wire_port, sequence, last: last.into(), unsettled, hidden, ending }
    }
}

impl HeldLine {
    pub(super) fn saved(self) -> Option<SavedHeld> {
        let Self { flow, far, owner, wire_port, sequence, last, unsettled, hidden, ending } = self;
        let far = match far {
            Some(line) => Some(line.tuple()?),
            None => None,
        };
        let unsettled = unsettled.into_iter().map(|(name, at)| (name.into(), at)).collect();
        let (flow, last) = (FlowName::new(owner.0, flow), last.into());
        Some(SavedHeld { flow, far, wire_port, sequence, last, unsettled, hidden, ending })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LeaseLine {
    tenant: KeyLine,
    number: u64,
    /// The first endpoint, and how many.
    ends: (SocketAddr, u16),
    /// The address was of a subnet of this host's links when it was lent.
    #[serde(default)]
    on_link: bool,
}

impl From<(SavedLease, bool)> for LeaseLine {
    fn from((saved, on_link): (SavedLease, bool)) -> Self {
        let SavedLease { name, ends } = saved;
        Self { tenant: KeyLine(name.tenant), number: name.number, ends: (ends.first, ends.count), on_link }
    }
}

impl LeaseLine {
    pub(super) fn saved(self) -> (SavedLease, bool) {
        let Self { tenant, number, ends: (first, count), on_link } = self;
        (SavedLease { name: LeaseName { tenant: tenant.0, number }, ends: Ends { first, count } }, on_link)
    }
}

impl From<FlowName> for Line {
    fn from(name: FlowName) -> Self {
        Self::HeldOverWith(KeyLine(name.peer()), name.value())
    }
}

/// The end of a lease of another host's.
pub(super) fn tenancy_over(lease: FlowName) -> Line {
    Line::TenancyOverOf(KeyLine(lease.peer()), lease.value())
}

impl From<LeaseName> for Line {
    fn from(name: LeaseName) -> Self {
        Self::LeaseOver(KeyLine(name.tenant), name.number)
    }
}

impl KeyLine {
    pub(super) fn key(self) -> PublicKey {
        self.0
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TenancyLine {
    number: u64,
    anchor: KeyLine,
    anchor_at: Option<SocketAddr>,
    /// The first endpoint, and how many.
    ends: (SocketAddr, u16),
    /// Of the namespace that a program has brought along.
    cookie: Option<u64>,
    /// Far ends are not to learn where that is.
    #[serde(default)]
    hidden: bool,
    /// The protocol that it is of alone, since it came with a socket.
    moved: Option<u8>,
}

impl From<(SavedTenancy, Option<SavedNamespace>)> for TenancyLine {
    fn from((saved, brought): (SavedTenancy, Option<SavedNamespace>)) -> Self {
        let SavedTenancy { number, anchor, anchor_at, ends, moved } = saved;
        let moved = moved.map(Transport::protocol);
        let (cookie, hidden) = brought.map(|of| (of.cookie, of.hidden)).unzip();
        let (ends, hidden) = ((ends.first, ends.count), hidden.unwrap_or(false));
        Self { number, anchor: KeyLine(anchor), anchor_at, ends, cookie, hidden, moved }
    }
}

impl TenancyLine {
    pub(super) fn saved(self) -> (SavedTenancy, Option<SavedNamespace>) {
        let Self { number, anchor, anchor_at, ends: (first, count), cookie, hidden, moved } = self;
        let moved = moved.and_then(Transport::from_protocol);
        let brought = cookie.map(|cookie| SavedNamespace { cookie, hidden });
        (SavedTenancy { number, anchor: anchor.0, anchor_at, ends: Ends { first, count }, moved }, brought)
    }
}
