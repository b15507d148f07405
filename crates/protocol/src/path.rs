//! Ways to a peer: which are confirmed, and which are shared with others.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::message::Message;

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::op::{PeerId, SavedPeer};
use crate::base::timer::Timer;
use crate::path::challenge::{Claim, Path};
use crate::path::paths::Paths;
use crate::path::ping::Ping;
use crate::path::shared::Sightings;
use crate::session::SessionLayer;
use crate::session::contact::handshake::{Begun, Confirmed};
use crate::session::peer::Peer;
use crate::session::pins::Held;

mod asks;
pub(crate) mod challenge;
pub(crate) mod estimate;
pub(crate) mod fallback;
pub(crate) mod kept;
pub(crate) mod paths;
pub(crate) mod ping;
mod rival;
mod send;
pub(crate) mod shared;
pub(crate) mod shown;
mod stand_in;

/// Where peers are, and what is sent to them there.
pub(crate) struct PathLayer {
    session: SessionLayer,
    peers: BTreeMap<PeerId, Paths>,
    /// Who was seen at which address, and which several hosts share.
    sightings: Sightings,
}

impl PathLayer {
    pub(crate) fn new(session: SessionLayer) -> Self {
        Self { session, peers: BTreeMap::new(), sightings: Sightings::default() }
    }

    /// A peer is known from now on, or is already.
    pub(crate) fn know(&mut self, id: PeerId, remote: SocketAddr) {
        self.peers.entry(id).or_insert_with(|| Paths::new(remote));
    }

    /// Takes over what a daemon before this one knew of a peer.
    pub(crate) fn restore(&mut self, saved: &SavedPeer) {
        self.peers.insert(saved.id, Paths::restored(saved));
    }

    /// A session begins. Where a peer that nothing depends on is met now: which endpoint it claims, and which it is
    /// seen at.
    pub(crate) fn on_begun(&mut self, begun: &Begun, held: Held, base: &Base) -> Option<(SocketAddr, SocketAddr)> {
        let paths = self.peers.get_mut(&begun.id)?;
        paths.begin(begun, !held.flows && !held.updating, base).then_some((begun.claimed, begun.source))
    }

    /// A session is confirmed. Where a peer that nothing depends on is met now, as [`PathLayer::on_begun`] says it; and
    /// whether it has shown for the first time that it is where a daemon before this one took it to be.
    pub(crate) fn on_confirmed(
        &mut self,
        now: Time,
        id: PeerId,
        confirmed: &Confirmed,
        held: Held,
        base: &Base,
    ) -> (Option<(SocketAddr, SocketAddr)>, bool) {
        let Some(paths) = self.peers.get_mut(&id) else { return (None, false) };
        let (is_met, shown) = paths.meet(now, confirmed.origin, !held.flows && !held.updating, base);
        (confirmed.origin.filter(|_| is_met).map(|origin| (origin.claimed, origin.remote)), shown)
    }

    /// Confirms a session that this host has initiated at the other end, measures the round trip and tells how we are
    /// seen.
    pub(crate) fn check_new_session(&mut self, now: Time, begun: &Begun, held: Held, base: &mut Base) {
        let token = base.random().u64();
        let own: Vec<IpAddr> = base.attachments().addresses().copied().collect();
        let id = begun.id;
        if let Some(paths) = self.peers.get_mut(&id) {
            paths.begin_first_check(now, token, begun.source.ip(), own.clone());
            if held.flows {
                base.set_timer_earlier(Timer::Keepalive(id), now + paths.repeat_after(1));
            }
        }
        let mut plaintext = Vec::new();
        Message::PathChallenge { token }.encode(&mut plaintext);
        Message::Locators(own).encode(&mut plaintext);
        self.session.send_in(id, begun.index, begun.destination, begun.source, &plaintext, base);
    }

    /// Begins a handshake with a peer that is known, beside whatever session is there.
    pub(crate) fn start_handshake_with(&mut self, now: Time, id: PeerId, base: &mut Base) {
        if let Some((peer, paths)) = self.peer(&id) {
            let to = paths.asked_at(peer.answers_at(), base.config().port);
            self.start_handshake_at(now, id, to, base);
        }
    }

    /// The same, at an address that may be another of the peer's.
    pub(crate) fn start_handshake_at(&mut self, now: Time, id: PeerId, to: SocketAddr, base: &mut Base) {
        let source = self.peers.get(&id).and_then(Paths::source);
        self.session.start_handshake(now, id, to, source, base);
    }

    /// Something authentic came from an endpoint that is not confirmed: as much more may go there (P-18), and one that
    /// was given up is challenged again.
    pub(crate) fn hear_candidate(&mut self, now: Time, id: PeerId, arrival: &Arrival, base: &mut Base) {
        let Some(paths) = self.peers.get_mut(&id) else { return };
        paths.note_heard(now, arrival);
        paths.on_kept_heard(arrival);
        let rival = paths.rival.as_mut().map(|rival| &mut rival.path);
        rival.filter(|path| path.remote == arrival.source).into_iter().for_each(|path| path.hear(arrival.length));
        let candidate = paths.candidate.as_mut().filter(|path| path.remote == arrival.source);
        if candidate.is_some_and(|candidate| candidate.hear_again(arrival.length)) {
            base.set_timer(Timer::Challenge(id), now);
        }
    }

    /// P-26: the peer's NAT gave it another mapping. `answered`: bytes of messages that went there already.
    pub(crate) fn notice_rebinding(
        &mut self,
        now: Time,
        id: PeerId,
        arrival: &Arrival,
        answered: usize,
        mapped: bool,
        base: &mut Base,
    ) {
        let token = base.random().u64();
        let Some(paths) = self.peers.get_mut(&id) else { return };
        let known = arrival.source == paths.remote || paths.challenge_to(arrival.source).is_some();
        let known = known || paths.is_told(now, arrival.source);
        if !arrival.is_newest || known || !mapped {
            return;
        }
        // Where the place itself is not confirmed yet, it stands for that place, and the first that answers counts.
        let claim = paths.candidate().map_or(Claim::Mapping, Path::claim_of_place);
        let contests = !matches!(claim, Claim::Mapping) && !paths.candidate().is_some_and(Path::is_given_up);
        let mut candidate = Path::new(arrival.source, token, now, arrival.length, claim);
        candidate.charge(answered + if answered > 0 { whimbrel_handshake::CONTROL_OVERHEAD } else { 0 });
        if !contests {
            paths.expect(candidate);
        } else if !paths.contest(candidate, None) {
            return;
        }
        let again = paths.repeat_after(1);
        base.set_timer(Timer::Challenge(id), now + again);
        self.send_to(id, arrival.destination, arrival.source, &[Message::PathChallenge { token }], base);
    }

    /// Asks a peer now, once, on the path in use. Tells whether that is possible.
    pub(crate) fn ping(&mut self, now: Time, id: PeerId, base: &mut Base) -> bool {
        let token = base.random().u64();
        let Some(paths) = self.peers.get_mut(&id).filter(|paths| paths.attachment().is_some()) else { return false };
        if !self.session.has_session(id) {
            return false;
        }
        paths.set_ping(Ping::new(token, now, paths.ping()));
        self.send(id, &[Message::PathChallenge { token }], base);
        true
    }

    /// A peer, and the paths to it.
    pub(crate) fn peer(&self, id: &PeerId) -> Option<(&Peer, &Paths)> {
        self.session.peer(id).zip(self.peers.get(id))
    }

    /// The same, to be changed.
    pub(crate) fn peer_mut(&mut self, id: &PeerId) -> Option<(&mut Peer, &mut Paths)> {
        self.session.peer_mut(id).zip(self.peers.get_mut(id))
    }

    /// The paths to a peer.
    pub(crate) fn paths(&self, id: &PeerId) -> Option<&Paths> {
        self.peers.get(id)
    }

    /// The same, to be changed.
    pub(crate) fn paths_mut(&mut self, id: &PeerId) -> Option<&mut Paths> {
        self.peers.get_mut(id)
    }

    /// A peer is forgotten.
    pub(crate) fn forget_peer(&mut self, id: PeerId) {
        self.peers.remove(&id);
    }

    pub(crate) fn sightings(&self) -> &Sightings {
        &self.sightings
    }

    pub(crate) fn sightings_mut(&mut self) -> &mut Sightings {
        &mut self.sightings
    }

    pub(crate) fn session(&self) -> &SessionLayer {
        &self.session
    }

    pub(crate) fn session_mut(&mut self) -> &mut SessionLayer {
        &mut self.session
    }
}
