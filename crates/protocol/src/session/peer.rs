//! What a node knows of one peer: its sessions, where it is, where we are towards it, and how its flows are carried.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{PublicKey, Session};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::hello::Capabilities;

use crate::Time;
use crate::base::attachments::Attachment;
use crate::base::op::{Binding, Carrier, KnownPlace, NOWHERE, PeerId, Places, SavedPeer};
use crate::base::output::OpId;
use crate::base::pace::FORMER;
use crate::binding::update::{Meanwhile, PendingUpdate};
use crate::path::challenge::Candidate;
use crate::path::shown::Shown;

/// Round trip assumed before one was measured.
const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(200);

/// An association with a peer, as one slot of it.
pub(crate) struct SessionSlot {
    pub(crate) session: Session,
    /// Whether it took the place of the others: the peer has shown that it holds the keys too.
    pub(crate) settled: bool,
    /// When it is no longer received from: once another took its place, and before the peer has shown that it holds the keys.
    pub(crate) until: Option<Time>,
    /// When its handshake began here.
    pub(crate) begun: Time,
    /// Where the peer asked for it, and at which of our addresses. That it knows the keys will show that it is there.
    pub(crate) origin: Option<Met>,
    /// The peer's life, as its hello says (P-47).
    pub(crate) life: u64,
    /// Whether the tunnel seals with AES.
    pub(crate) aes: bool,
    /// What the peer is able to do, as its hello says.
    pub(crate) capabilities: Capabilities,
}

/// Where a handshake was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub(crate) remote: SocketAddr,
    /// Our address.
    pub(crate) destination: Option<IpAddr>,
    /// The peer's endpoint as it knows it.
    pub(crate) claimed: SocketAddr,
}

/// A peer that is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Away {
    /// It said so; its next update brings it back (P-44).
    Announced,
    /// It is not heard, and neither are its flows: whatever is heard of it brings it back (P-45). The flows are `held` where
    /// they were native, since another host may be given its address; moved ones are carried on.
    Silent { held: bool },
}

/// The carrier probe towards the peer (P-20).
#[derive(Debug, Default)]
pub(crate) struct CarrierProbe {
    /// Nonce and tuple of the outstanding one.
    pub(crate) nonce: u64,
    pub(crate) wire: Option<FlowTuple>,
    pub(crate) tries: u32,
    /// The peer saw ours.
    pub(crate) forward: bool,
    /// We are the end that moved last, so that we probe first.
    pub(crate) leading: bool,
}

pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) key: PublicKey,
    pub(crate) sessions: Vec<SessionSlot>,
    /// The confirmed endpoint.
    pub(crate) remote: SocketAddr,
    /// Where its last handshake came from, if that is not the confirmed endpoint: it was there, and has not said that its
    /// flows are.
    pub(crate) met: Option<SocketAddr>,
    /// Our address towards it.
    pub(crate) source: Option<IpAddr>,
    /// The attachment that it belongs to; `None`: we cannot reach the peer.
    pub(crate) attachment: Option<Attachment>,
    /// Our address where it takes us to be, while we are elsewhere and it has not answered.
    pub(crate) left: Option<IpAddr>,
    /// Other addresses that it told.
    pub(crate) locators: Vec<IpAddr>,
    pub(crate) sequence_sent: u32,
    pub(crate) sequence_accepted: u32,
    pub(crate) places: Places,
    pub(crate) carrier: Carrier,
    pub(crate) former: Vec<(IpAddr, IpAddr)>,
    pub(crate) update: Option<PendingUpdate>,
    pub(crate) candidate: Option<Candidate>,
    pub(crate) probe: CarrierProbe,
    /// The op that is to put the newest binding in force, until that is done.
    pub(crate) binding_asked: Option<OpId>,
    /// A probe of the peer's that is answered then: its tuple on the wire and its nonce.
    pub(crate) probed_early: Option<(FlowTuple, u64)>,
    pub(crate) known_places: Vec<KnownPlace>,
    /// Our addresses at places of ours that flows are at home at.
    pub(crate) own_places: BTreeMap<u32, IpAddr>,
    /// Our own address and port as the peer sees them.
    pub(crate) observed: Option<SocketAddr>,
    pub(crate) peer_refuses_rewrite: bool,
    /// Token of the last unsolicited challenge, for the round trip and the observed address.
    pub(crate) check: Option<(u64, Time)>,
    /// Where it went.
    pub(crate) checked: Option<IpAddr>,
    /// How often it was repeated.
    pub(crate) check_tries: u32,
    /// The peer may not know where we are: it is told when there is a session.
    pub(crate) unannounced: bool,
    /// Addresses of ours that it has been told, and those that go along with the last check.
    pub(crate) told: Vec<IpAddr>,
    pub(crate) telling: Vec<IpAddr>,
    pub(crate) round_trip: Option<Duration>,
    /// The addresses where we asked and it answered.
    pub(crate) answers_at: BTreeSet<IpAddr>,
    pub(crate) last_heard: Time,
    /// Timestamp of the newest IK initiation accepted (P-9).
    pub(crate) newest_initiation: u64,
    pub(crate) reach_tries: u32,
    /// Handshakes begun since a session was confirmed.
    pub(crate) handshakes: u32,
    /// It was taken over from a daemon before this one, and where we are was not looked at since.
    pub(crate) restored: bool,
    /// It has not shown since then that it is where it said.
    pub(crate) unproven: bool,
    /// Where else it has received something.
    pub(crate) shown: Shown,
    /// Its last move has broken nothing (P-38): what is under way need not be sent again.
    pub(crate) unbroken: bool,
    /// The pair of locators, ours and its own, that rewritten packets are accepted between as this peer's.
    pub(crate) pair: Option<(IpAddr, IpAddr)>,
    /// Another key answers where it was: nothing of it is worth keeping once its flows are gone.
    pub(crate) replaced: bool,
    /// Held flows that are heard under their own names after all are to be told (P-39).
    pub(crate) listens: bool,
    /// The address that was chosen by hand, as long as this host has it.
    pub(crate) preferred: Option<Attachment>,
    /// The life of its sockets, as it said last; 0: it said nothing (P-47).
    pub(crate) life: u64,
    /// When the session began that it was told in.
    pub(crate) life_since: Time,
    /// What names its memory of flows of hosts behind it, as it said last, and when the session began that it was told in (P-123).
    pub(crate) memory: u64,
    pub(crate) memory_since: Time,
    /// Places of the peer's that it was seen to be at, by their numbers, and when it left them: those of the last minute (P-104).
    pub(crate) left_places: BTreeMap<u32, Time>,
    pub(crate) away: Option<Away>,
    /// It never answered the word that this host goes away.
    pub(crate) unheard: bool,
    /// The sockets of its flows are kept from giving up (P-46).
    pub(crate) parked: bool,
    /// Its flows go by the tunnel as long as both ends are where they are: their own packets do not pass (P-49), or a program of this
    /// host would get them (P-160).
    pub(crate) only_tunnel: bool,
    /// The attachment of the other family that leads to it, tried where nobody answers by the one that was chosen.
    pub(crate) otherwise: Option<Attachment>,
    /// The one that it was left for since nobody answered.
    pub(crate) unanswered: Option<Attachment>,
}

impl Peer {
    pub(crate) fn new(id: PeerId, key: PublicKey, remote: SocketAddr, now: Time) -> Self {
        Self {
            id,
            key,
            sessions: Vec::new(),
            remote,
            met: None,
            source: None,
            attachment: None,
            left: None,
            locators: Vec::new(),
            sequence_sent: 0,
            sequence_accepted: 0,
            places: Places::default(),
            carrier: Carrier::Tunnel,
            former: Vec::new(),
            update: None,
            candidate: None,
            probe: CarrierProbe::default(),
            binding_asked: None,
            probed_early: None,
            known_places: vec![KnownPlace::new(0, remote, remote)],
            own_places: BTreeMap::new(),
            observed: None,
            peer_refuses_rewrite: false,
            check: None,
            checked: None,
            check_tries: 0,
            unannounced: false,
            told: Vec::new(),
            telling: Vec::new(),
            round_trip: None,
            answers_at: BTreeSet::new(),
            last_heard: now,
            newest_initiation: 0,
            reach_tries: 0,
            handshakes: 0,
            restored: false,
            unproven: false,
            shown: Shown::default(),
            unbroken: false,
            pair: None,
            listens: false,
            replaced: false,
            preferred: None,
            life: 0,
            life_since: Time::default(),
            memory: 0,
            memory_since: Time::default(),
            left_places: BTreeMap::new(),
            away: None,
            unheard: false,
            parked: false,
            only_tunnel: false,
            otherwise: None,
            unanswered: None,
        }
    }

    pub(crate) fn restored(saved: &SavedPeer, now: Time) -> Self {
        let mut peer = Self::new(saved.id, saved.key, saved.remote, now);
        peer.restored = true;
        peer.unproven = true;
        peer.source = saved.source;
        peer.locators.clone_from(&saved.locators);
        peer.sequence_sent = saved.sequence_sent;
        peer.sequence_accepted = saved.sequence_accepted;
        peer.places = saved.places;
        peer.carrier = saved.carrier;
        peer.former.clone_from(&saved.former);
        peer.observed = saved.observed;
        peer.own_places = saved.own_places.iter().copied().collect();
        peer.life = saved.life;
        peer.memory = saved.memory;
        peer.away = match (saved.absent, saved.silent) {
            (true, _) => Some(Away::Announced),
            (false, true) => Some(Away::Silent { held: true }),
            (false, false) => None,
        };
        peer.listens = peer.away == Some(Away::Silent { held: true });
        // When it left them nobody has written down.
        peer.left_places = saved.known_places.iter().map(|place| (place.number, now)).collect();
        peer.parked = peer.away.is_some();
        if saved.known_places.is_empty() {
            peer.known_places[0].number = saved.places.peer;
        } else {
            peer.known_places.clone_from(&saved.known_places);
        }
        peer
    }

    /// The session to send with: the one that was confirmed last (P-8), or else one that we began, so that the peer can
    /// confirm it.
    pub(crate) fn session(&mut self) -> Option<&mut SessionSlot> {
        let settled = self.sessions.iter().rposition(|slot| slot.settled && slot.until.is_none());
        let at = settled.or_else(|| self.sessions.iter().rposition(|slot| slot.session.is_initiator()))?;
        self.sessions.get_mut(at)
    }

    pub(crate) fn has_session(&self) -> bool {
        self.sessions.iter().any(|slot| slot.settled && slot.until.is_none())
    }

    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip.unwrap_or(INITIAL_ROUND_TRIP)
    }

    /// RFC 6298's smoothing.
    pub(crate) fn sample_round_trip(&mut self, sample: Duration) {
        self.round_trip = Some(match self.round_trip {
            None => sample,
            Some(smoothed) => (smoothed * 7 + sample) / 8,
        });
    }

    /// The delay before try number `tries` + 1 of a request (P-12).
    pub(crate) fn repeat_after(&self, tries: u32) -> Duration {
        let first = (self.round_trip() * 3 / 2).max(Duration::from_millis(50));
        (first * 2u32.pow(tries.saturating_sub(1).min(8))).min(Duration::from_secs(2))
    }

    /// The places as the data plane is to have them. No flow is at home at a place that is not confirmed: native
    /// packets would know no allowance (P-18).
    pub(crate) fn places_in_force(&self) -> Places {
        if let Some(meanwhile) = self.meanwhile() {
            return meanwhile.binding.places;
        }
        let unconfirmed = self.candidate.as_ref().is_some_and(|candidate| candidate.announced);
        if unconfirmed || self.is_held_away() { Places { peer: NOWHERE, ..self.places } } else { self.places }
    }

    /// The places that an introduction is to agree about (P-14). With a peer that is away there are none: that it takes part in
    /// an introduction shows that it is back, and it is made to say where.
    pub(crate) fn places_agreed(&self) -> Places {
        if self.is_held_away() { Places { peer: NOWHERE, ..self.places } } else { self.places }
    }

    /// Whether flows wait since the peer is away.
    pub(crate) fn is_held_away(&self) -> bool {
        matches!(self.away, Some(Away::Announced | Away::Silent { held: true }))
    }

    /// Where flows are led: the endpoint that was announced last, whether or not it is confirmed.
    pub(crate) fn heading(&self) -> SocketAddr {
        match &self.candidate {
            Some(candidate) if candidate.announced => candidate.remote,
            _ => self.remote,
        }
    }

    /// The place and endpoint that the peer announced last, the refusal of rewritten packets that went with it.
    pub(crate) fn announced(&self) -> (u32, SocketAddr, bool) {
        let candidate = self.candidate.as_ref();
        match candidate.and_then(|candidate| Some((candidate.remote, candidate.awaited?))) {
            Some((remote, awaited)) => (awaited.place, remote, awaited.refuses_rewrite),
            None => (self.places.peer, self.heading(), self.peer_refuses_rewrite),
        }
    }

    /// Whether its flows may come by another path at any moment: it has told of one that is not confirmed yet, and need not wait
    /// with what it sends itself (P-21, P-38).
    pub(crate) fn may_come_anew(&self) -> bool {
        self.candidate.as_ref().is_some_and(|candidate| candidate.awaited.is_some() && !candidate.doubted)
    }

    /// Whether either end has said that it is elsewhere than where they met.
    pub(crate) fn has_moved(&self) -> bool {
        self.sequence_sent > 0 || self.sequence_accepted > 0
    }

    /// Whether the present path carries flows: no move of either end is under way.
    pub(crate) fn carries(&self) -> bool {
        let announced = self.candidate.as_ref().is_some_and(|candidate| candidate.announced);
        self.update.is_none() && self.attachment.is_some() && !announced && self.away.is_none()
    }

    /// The peer leaves the place in force. That counts if it has shown that it was there, and not been absent since: else whoever says that
    /// he was somewhere for a moment could say so again and again (P-104).
    pub(crate) fn leave_place(&mut self, now: Time) {
        self.left_places.retain(|_, left| *left + FORMER > now);
        let number = self.places.peer;
        let here = self.known_places.iter().find(|place| place.number == number);
        if here.is_some_and(|place| place.observed.ip() == self.remote.ip()) && self.away != Some(Away::Announced) {
            self.left_places.insert(number, now);
        }
    }

    /// Until when what comes from a place of the peer's may be the peer's own still, since it was under way; `None`: it is not.
    pub(crate) fn under_way_until(&self, now: Time, place: u32) -> Option<Time> {
        let there = self.places.peer == place && self.away.is_none();
        let until = |left: &Time| Some(*left + FORMER).filter(|until| *until > now);
        if there { Some(now + FORMER) } else { self.left_places.get(&place).and_then(until) }
    }

    /// What carries the flows while an update is not answered.
    pub(crate) fn meanwhile(&self) -> Option<&Meanwhile> {
        self.update.as_ref()?.meanwhile.as_ref()
    }

    /// Whether segments of its flows are to be made small enough for the tunnel. To make them so has TCP send again all that
    /// is under way, where a first segment of the old size meets the new route (`ip_fragment` tells of it by ICMP): after a
    /// move that has broken nothing the tunnel cuts them instead.
    pub(crate) fn needs_small_segments(&self) -> bool {
        self.carrier != Carrier::Rewrite && !self.unbroken
    }

    /// The binding as the data plane is to have it.
    pub(crate) fn binding(&self) -> Binding {
        if let Some(meanwhile) = self.meanwhile() {
            return meanwhile.binding.clone();
        }
        let peer_locator = self.heading().ip();
        let unspecified = match peer_locator {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        };
        Binding {
            places: self.places_in_force(),
            carrier: self.carrier,
            local_locator: self.pair.map_or(unspecified, |(local, _)| local),
            peer_locator,
            proven: Some(self.remote.ip()).filter(|_| !self.unproven),
            source: self.source,
            former: self.former.clone(),
            listens: self.listens && self.carrier == Carrier::Hold,
            parked: self.parked,
        }
    }

    /// Where the peer may be, the likeliest first: where it said that it is, its other addresses, and where it was before.
    /// `anywhere`: the last as well.
    pub(crate) fn whereabouts(&self, port: u16, anywhere: bool) -> Vec<SocketAddr> {
        let told = self.locators.iter().map(|address| SocketAddr::new(*address, port));
        let before = self.known_places.iter().rev().filter(|place| anywhere && !place.translated);
        let mut all = Vec::new();
        let likely = [self.heading(), self.remote].into_iter().chain(self.met);
        for to in likely.chain(told).chain(before.map(|place| place.observed)) {
            if !all.contains(&to) {
                all.push(to);
            }
        }
        all
    }

    /// Whether the peer has shown that it is at an endpoint. What it told, or announced once, shows nothing.
    pub(crate) fn has_shown(&self, endpoint: SocketAddr) -> bool {
        self.remote == endpoint || self.met == Some(endpoint)
    }

    /// Keeps the present pair of locators acceptable while another takes its place (P-22): the one that it had, and none
    /// where it had none (P-135).
    pub(crate) fn retire_path(&mut self) {
        if let Some(pair) = self.pair {
            self.former.retain(|former| *former != pair);
            self.former.insert(0, pair);
            self.former.truncate(2);
        }
    }

    /// The session that the peer calls by this index of its.
    pub(crate) fn session_to(&self, remote_index: u32) -> Option<&SessionSlot> {
        self.sessions.iter().find(|slot| slot.session.remote_index() == remote_index)
    }

    /// Whether something between us translates addresses, in either direction.
    pub(crate) fn translated(&self) -> bool {
        let theirs = self.is_mapped();
        let ours = match (self.observed, self.source) {
            // Seen by way of the other family, it says nothing of this one.
            (Some(observed), Some(source)) if observed.is_ipv4() == source.is_ipv4() => observed.ip() != source,
            _ => false,
        };
        theirs || ours
    }

    /// Whether the peer's place is behind a NAT, so that it may be seen under another mapping. A place that nothing is known
    /// of may be.
    pub(crate) fn is_mapped(&self) -> bool {
        let here = self.known_places.iter().find(|place| place.number == self.places.peer);
        here.is_none_or(|place| place.translated)
    }

    /// The place in force is seen under another mapping of its NAT from now on (P-26).
    pub(crate) fn follow_mapping(&mut self, observed: SocketAddr) {
        let here = self.places.peer;
        if let Some(place) = self.known_places.iter_mut().find(|place| place.number == here)
            && place.translated
        {
            place.observed = observed;
        }
    }

    /// The peer, which has no flows, is met at another endpoint. Place 0 is where it was met before any update (§5).
    pub(crate) fn meet_at(&mut self, claimed: SocketAddr, observed: SocketAddr) {
        if self.sequence_accepted == 0 {
            self.known_places = vec![KnownPlace::new(0, claimed, observed)];
        }
    }

    /// It was reached at another of its addresses, at the same place. What does not bear out that this is its own is behind a NAT (P-19), and
    /// so is the place from now on.
    pub(crate) fn note_other_address(&mut self, remote: SocketAddr, port: u16) {
        let own = remote.port() == port && self.locators.contains(&remote.ip());
        let mut places = self.known_places.iter_mut();
        let here = places.find(|place| place.number == self.places.peer && place.observed != remote);
        here.into_iter().for_each(|place| place.translated |= !own);
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        1 + self.sessions.len()
            + self.former.len()
            + self.known_places.len()
            + self.answers_at.len()
            + self.own_places.len()
            + self.locators.len()
    }
}
