//! How the hosts of a community come to know the same (P-81).

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::{Contact as Knowledge, PublicKey};
use whimbrel_wire::community::{CommunityKey, MAX_STATEMENTS, MemberStanding, RosterDigest, Statement, Word};
use whimbrel_wire::message::Message;

use super::SAVED_LATER;
use super::roster::{Roster, Told, belongs};
use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::event::community::CommunityEvent;
use crate::base::op::PeerId;
use crate::role::At;
use crate::role::community::Community;

/// Pause before a host is asked again that has not answered, at first.
const AGAIN: Duration = Duration::from_millis(500);
/// How often hosts that know the same see that they do: who was revoked while it was asleep finds out no later.
const ROUND: Duration = Duration::from_secs(600);
const DOUBLINGS: u32 = 11;
/// Of so many handshakes that nothing came of one is a first contact (P-9).
const FRESH_EVERY: u32 = 3;
/// Tries to tell a host that it was revoked.
const PARTING_TRIES: u32 = 12;

/// How it stands with telling a host what this one knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Telling {
    due: Time,
    tries: u32,
    /// What it knew when it was heard last.
    digest: Option<RosterDigest>,
}

impl Telling {
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// There is something new, or it may be there at last.
    pub(super) fn hurry(&mut self, now: Time) {
        (self.due, self.tries) = (now, 0);
    }

    pub(super) fn knows(&self, digest: Option<RosterDigest>) -> bool {
        digest.is_some() && self.digest == digest
    }

    fn record(&mut self, now: Time, theirs: RosterDigest, ours: RosterDigest) {
        self.digest = Some(theirs);
        if theirs == ours {
            (self.due, self.tries) = (now + ROUND, 0);
        }
    }
}

impl Community {
    /// A host is told that is not one of the community's: one that was revoked.
    pub(super) fn send_to_one(&mut self, host: PublicKey) {
        self.telling.insert(host, Telling::default());
    }

    /// The one that has let this host in is asked for statements.
    pub(super) fn learn_from(&mut self, now: Time, inviter: PublicKey) {
        // It has just been heard, and tells by itself first.
        let due = now + AGAIN;
        self.telling.insert(inviter, Telling { due, ..Telling::default() });
    }

    /// Asks those hosts what they know that it is time for.
    pub(super) fn continue_telling(&mut self, at: &mut At<'_>) {
        let due = |telling: &Telling| telling.due <= at.now;
        let hosts: Vec<PublicKey> =
            self.telling.iter().filter(|(_, telling)| due(telling)).map(|(host, _)| *host).collect();
        for host in hosts {
            let Some(telling) = self.telling.get_mut(&host) else { continue };
            let tries = telling.tries;
            telling.tries += 1;
            telling.due = at.now + (AGAIN * 2u32.pow(tries.min(DOUBLINGS))).min(ROUND);
            if at.base.is_suspended() {
                // All are asked when this host is back.
                continue;
            }
            let revoked =
                self.roster.as_ref().is_some_and(|roster| roster.about(&host).is_some_and(|s| !belongs(s.standing)));
            if revoked && tries >= PARTING_TRIES {
                self.telling.remove(&host);
                continue;
            }
            let peer = at.low.flow().peer_with(&host);
            match peer.map(|peer| (peer.id(), peer.has_session(), peer.flow.away().is_some())) {
                Some((id, true, _)) => self.ask_roster(id, at),
                // It says itself when it is back.
                Some((_, false, true)) => {}
                Some((id, false, false)) => at.low.path_mut().start_handshake_with(at.now, id, at.base),
                None => {
                    let fresh = tries % FRESH_EVERY == FRESH_EVERY - 1;
                    let knowledge = if fresh { Knowledge::First } else { Knowledge::Known(host) };
                    if let Some(place) = self.hints.get(&host).copied() {
                        at.low.session_mut().initiate_with_key(at.now, knowledge, place, host, at.base);
                    }
                }
            }
        }
    }

    /// Tells a host what this one is, which it may not know, and asks it what it knows.
    fn ask_roster(&mut self, id: PeerId, at: &mut At<'_>) {
        let Some(roster) = &self.roster else { return };
        let community = *roster.community();
        let own = roster.about(&at.base.public_key()).map(|statement| (statement.clone(), None));
        let statements: Vec<_> = own.into_iter().collect();
        let state = Word::RosterState { community, digest: roster.digest(), asks: true };
        let mut messages = vec![Message::Community(state)];
        if !statements.is_empty() {
            messages.insert(0, Message::Community(Word::Roster { community, statements }));
        }
        at.low.path_mut().send(id, &messages, at.base);
    }

    /// There is a new session with a peer.
    pub(crate) fn on_community_session(&mut self, id: PeerId, at: &mut At<'_>) {
        self.begin_exchange(id, at);
        let Some(peer) = at.low.flow().peer(&id) else { return };
        let (key, remote) = (peer.key(), peer.path.remote());
        if let Some(telling) = self.telling.get_mut(&key) {
            telling.hurry(at.now);
            if self.hints.insert(key, remote) != Some(remote) && self.is_in_community(&key, at.base) {
                self.unsaved.get_or_insert(at.now + SAVED_LATER);
            }
            self.continue_telling(at);
        }
    }

    /// A peer says something about a community.
    pub(crate) fn handle_word(&mut self, id: PeerId, arrival: &Arrival, word: Word, at: &mut At<'_>) -> Vec<Message> {
        let answer = match word {
            Word::Join { number, purpose, element } => self.handle_join(id, number, purpose, element, at),
            Word::JoinProof { number, proof, name } => self.handle_join_proof(id, arrival, number, &proof, &name, at),
            Word::JoinAnswer { number, element } => {
                self.handle_join_answer(id, number, &element, at);
                None
            }
            Word::JoinRefused { number, refusal } => {
                self.handle_join_refused(at.now, id, number, refusal, at.base);
                None
            }
            Word::Joined(joined) => {
                self.handle_joined(id, joined, at);
                None
            }
            Word::RosterState { community, digest, asks } => {
                self.handle_roster_state(id, arrival, &community, digest, asks, at);
                None
            }
            Word::Roster { community, statements } => {
                self.handle_roster(id, &community, &statements, at);
                None
            }
        };
        answer.map(Message::Community).into_iter().collect()
    }

    /// A host says what it knows. Strangers are told nothing, not even that there is a community, and a host that was
    /// revoked only that.
    fn handle_roster_state(
        &mut self,
        id: PeerId,
        arrival: &Arrival,
        community: &CommunityKey,
        theirs: RosterDigest,
        asks: bool,
        at: &mut At<'_>,
    ) {
        let Some(key) = at.low.session().key_of(id) else { return };
        let me = at.base.public_key();
        let Some(roster) = self.own(&me).filter(|roster| roster.community() == community) else { return };
        let Some(about) = roster.about(&key).cloned() else { return };
        let (ours, community) = (roster.digest(), *community);
        if !belongs(about.standing) {
            let told = Word::Roster { community, statements: vec![(about, None)] };
            at.low.path_mut().send_to(id, arrival.destination, arrival.source, &[Message::Community(told)], at.base);
            return;
        }
        if let Some(telling) = self.telling.get_mut(&key) {
            telling.record(at.now, theirs, ours);
        }
        if theirs != ours {
            self.send_all(id, arrival, at);
        }
        // An answer is not answered, whatever it says: two that never come to know the same would not come to rest.
        if asks {
            let state = Word::RosterState { community, digest: ours, asks: false };
            at.low.path_mut().send_to(id, arrival.destination, arrival.source, &[Message::Community(state)], at.base);
        }
    }

    /// Tells a host all that this one knows.
    fn send_all(&mut self, id: PeerId, arrival: &Arrival, at: &mut At<'_>) {
        let Some(roster) = &self.roster else { return };
        let community = *roster.community();
        let place = |host: &[u8; 32]| {
            let key = PublicKey::from(*host);
            let peer = at.low.flow().peer_with(&key).filter(|peer| peer.has_session());
            peer.map(|peer| peer.path.remote()).or_else(|| self.hints.get(&key).copied())
        };
        let all: Vec<(Statement, Option<SocketAddr>)> =
            roster.statements().map(|statement| (statement.clone(), place(&statement.host))).collect();
        for statements in all.chunks(MAX_STATEMENTS) {
            // One to a datagram (P-37).
            let told = Word::Roster { community, statements: statements.to_vec() };
            at.low.path_mut().send_to(id, arrival.destination, arrival.source, &[Message::Community(told)], at.base);
        }
    }

    /// Statements came. They prove themselves, whoever tells them.
    fn handle_roster(
        &mut self,
        id: PeerId,
        community: &CommunityKey,
        statements: &[(Statement, Option<SocketAddr>)],
        at: &mut At<'_>,
    ) {
        let me = at.base.public_key();
        let Some(from) = at.low.session().key_of(id) else { return };
        if self.roster.as_ref().is_none_or(|roster| roster.community() != community) || !self.rosters.take(at.now) {
            return;
        }
        let before = self.own(&me).is_some();
        let mut events = Vec::new();
        let mut parted = Vec::new();
        for (statement, _) in statements {
            let Some(roster) = &mut self.roster else { return };
            let host = PublicKey::from(statement.host);
            let belonged = roster.has(&host);
            if roster.hear(statement) != Told::News || host == me {
                continue;
            }
            let name = statement.name.clone();
            if belongs(statement.standing) {
                let steward = statement.standing == MemberStanding::Steward;
                events.push(CommunityEvent::HostJoined { host, name, steward });
            } else if belonged {
                events.push(CommunityEvent::HostRevoked { host, name });
                parted.push(host);
            }
        }
        let is_news = !events.is_empty();
        let after = self.own(&me).is_some();
        if before != after {
            self.on_own_standing(after, from, at.base);
        }
        self.take_hints(&from, statements, at);
        // What happened before this host belonged to it is no news.
        if before && after {
            events.into_iter().for_each(|event| at.base.event(event));
        }
        if (is_news || before != after) && (before || after) {
            self.save_community(at.base);
            parted.into_iter().for_each(|host| self.send_to_one(host));
            self.send_to_everybody(at);
        }
    }

    /// This host belongs to the community from now on, or no more.
    fn on_own_standing(&mut self, belongs: bool, from: PublicKey, base: &mut Base) {
        let me = base.public_key();
        let Some(roster) = &mut self.roster else { return };
        if belongs {
            let community = *roster.community();
            base.event(CommunityEvent::Joined { community, by: from });
        } else {
            roster.keep_only(&me);
            self.offers.retain(|_, offer| !offer.is_for_members());
            base.event(CommunityEvent::Revoked);
        }
    }

    /// Where hosts are said to be by one of them, where this host does not know better.
    fn take_hints(&mut self, from: &PublicKey, statements: &[(Statement, Option<SocketAddr>)], at: &mut At<'_>) {
        if !self.is_in_community(from, at.base) {
            return;
        }
        for (statement, place) in statements {
            let host = PublicKey::from(statement.host);
            let sought = self.telling.get(&host).is_none_or(|telling| telling.tries > 0);
            let met = at.low.session().met(&host).is_some();
            let known = self.roster.as_ref().is_some_and(|roster: &Roster| roster.has(&host));
            let place = place.filter(|place| !place.ip().is_unspecified() && !place.ip().is_multicast());
            if let Some(place) = place.filter(|_| known && !met && (sought || !self.hints.contains_key(&host))) {
                self.hints.insert(host, place);
            }
        }
    }
}
