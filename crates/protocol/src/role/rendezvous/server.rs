//! Serving as a rendezvous: who wants to be met by whom, and telling each where the other is (`docs/protocol.md` §8).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use whimbrel_handshake::PublicKey;
use whimbrel_wire::message::{MAX_WHEREABOUTS, MeetingTag, Message, RegistrationChange, RegistrationStatus};

use crate::Time;
use crate::base::op::PeerId;
use crate::base::timer::Timers;
use crate::binding::BindingLayer;
use crate::binding::handoff::SEQUENCES;
use crate::role::At;
use crate::session::pins::Pin;

/// Tags that are remembered of one host, and of all together (P-55).
const TAGS_OF_ONE: usize = 4096;
const TAGS_OF_ALL: usize = 131_072;
/// Hosts that share a tag: it is that of a pair.
const HOSTS_OF_A_TAG: usize = 2;
/// How often a host is told where another is, until it is heard again.
const TELLS: u32 = 10;
/// Addresses of a host that are remembered as those that it was met at (P-60).
const ADDRESSES: usize = 4;

/// Who wants to be met.
#[derive(Default)]
pub(super) struct RendezvousServer {
    tags: HashMap<MeetingTag, Vec<PeerId>>,
    registrants: BTreeMap<PeerId, Registrant>,
    /// Of all registrants together.
    count: usize,
    /// Who is to be told again where others are.
    due: Timers<PeerId>,
}

/// A host that wants to be met.
struct Registrant {
    /// Newest number of its registrations, and what became of that.
    newest: u32,
    status: RegistrationStatus,
    /// Our index of the session that it was said in.
    session: Option<u32>,
    /// Where it has answered last.
    endpoint: SocketAddr,
    /// Addresses of its own, without a NAT, that it has answered at, the last one last.
    was_at: Vec<IpAddr>,
    /// Its tags, with the endpoint of the other that it was told or is to be told.
    tags: BTreeMap<MeetingTag, Option<SocketAddr>>,
    /// What it is to be told.
    untold: BTreeSet<MeetingTag>,
    /// What it was told and has not acknowledged.
    told: Vec<MeetingTag>,
    /// Number of that.
    number: u32,
    tries: u32,
}

impl RendezvousServer {
    pub(super) fn entries(&self) -> usize {
        let untold: usize = self.registrants.values().map(|of| 1 + of.untold.len() + of.told.len()).sum();
        self.tags.len() + 2 * self.count + untold
    }

    /// Whether a host that is registered here was met at an address.
    pub(super) fn was_at(&self, id: PeerId, address: IpAddr) -> bool {
        self.registrants.get(&id).is_some_and(|registrant| registrant.was_at.contains(&address))
    }

    fn withdraw(&mut self, id: PeerId, tag: &MeetingTag) {
        let Some(registrant) = self.registrants.get_mut(&id) else { return };
        if registrant.tags.remove(tag).is_none() {
            return;
        }
        registrant.untold.remove(tag);
        registrant.told.retain(|told| told != tag);
        self.count -= 1;
        if let Some(hosts) = self.tags.get_mut(tag) {
            hosts.retain(|host| *host != id);
            if hosts.is_empty() {
                self.tags.remove(tag);
            }
        }
    }

    /// Remembers a tag of a host's. Tells whether there is room.
    fn add(&mut self, id: PeerId, tag: MeetingTag) -> bool {
        let Some(registrant) = self.registrants.get_mut(&id) else { return false };
        if registrant.tags.contains_key(&tag) {
            return true;
        }
        let hosts = self.tags.get(&tag).map_or(0, Vec::len);
        if hosts >= HOSTS_OF_A_TAG || registrant.tags.len() >= TAGS_OF_ONE || self.count >= TAGS_OF_ALL {
            return false;
        }
        registrant.tags.insert(tag, None);
        self.tags.entry(tag).or_default().push(id);
        self.count += 1;
        true
    }

    /// Has all who share a tag be told of one another once more.
    fn unsay(&mut self, tag: &MeetingTag) {
        for host in self.tags.get(tag).into_iter().flatten() {
            if let Some(registrant) = self.registrants.get_mut(host)
                && let Some(known) = registrant.tags.get_mut(tag)
            {
                *known = None;
            }
        }
    }

    /// Notes that a host is to be told where the other of a tag is, if it does not know. Tells whether it is.
    fn record(&mut self, to: PeerId, tag: &MeetingTag, endpoint: SocketAddr) -> bool {
        let Some(registrant) = self.registrants.get_mut(&to) else { return false };
        let Some(known) = registrant.tags.get_mut(tag) else { return false };
        if known.replace(endpoint) == Some(endpoint) {
            return false;
        }
        registrant.untold.insert(*tag);
        true
    }

    /// A host registers. Gives the answer.
    pub(super) fn handle_registration(
        &mut self,
        id: PeerId,
        number: u32,
        change: RegistrationChange,
        tags: &[MeetingTag],
        at: &mut At<'_>,
    ) -> Option<Message> {
        let answer = |status, newest| Some(Message::Registered { number, status, newest });
        let peer = at.low.flow().peer(&id).filter(|peer| peer.has_session())?;
        let (key, endpoint) = (peer.key(), peer.path.remote());
        let session = peer.session().map(|slot| slot.local_index());
        if !serves(&key, at) || number >= SEQUENCES || matches!(change, RegistrationChange::Other(_)) {
            return answer(RegistrationStatus::Refused, 0);
        }
        at.low.session_mut().pins_mut().pin(Pin::Registered, key, true);
        let registrant = self.registrants.entry(id).or_insert_with(|| Registrant::at(endpoint));
        let newest = registrant.newest;
        // In another session it is no repetition: a host that was started anew counts from 1 again.
        let repeated = number == newest && registrant.session == session;
        if number < newest || repeated {
            let status = if repeated { registrant.status } else { RegistrationStatus::NotNewer };
            return answer(status, newest);
        }
        (registrant.newest, registrant.session) = (number, session);
        if change == RegistrationChange::Replace {
            // It may have forgotten what it was told.
            let before: Vec<MeetingTag> = registrant.tags.keys().copied().collect();
            before.iter().for_each(|tag| self.withdraw(id, tag));
            // It may have been out of reach where it was said to be, so that others have given up.
            tags.iter().for_each(|tag| self.unsay(tag));
        }
        let mut status = RegistrationStatus::Accepted;
        for tag in tags {
            if change == RegistrationChange::Withdraw {
                self.withdraw(id, tag);
            } else if !self.add(id, *tag) {
                status = RegistrationStatus::Full;
            }
        }
        if let Some(registrant) = self.registrants.get_mut(&id) {
            registrant.status = status;
        }
        if change != RegistrationChange::Withdraw {
            self.introduce_registrants(id, tags, at);
        }
        answer(status, number)
    }

    /// Has a registrant and those who share these tags with it told of one another.
    fn introduce_registrants(&mut self, id: PeerId, tags: &[MeetingTag], at: &mut At<'_>) {
        let mut to_tell: BTreeSet<PeerId> = BTreeSet::new();
        for tag in tags {
            let hosts = self.tags.get(tag).cloned().unwrap_or_default();
            if !hosts.contains(&id) {
                continue;
            }
            for other in hosts.into_iter().filter(|other| *other != id) {
                for (to, of) in [(id, other), (other, id)] {
                    let endpoint = self.registrants.get(&of).map(|registrant| registrant.endpoint);
                    if endpoint.is_some_and(|endpoint| self.record(to, tag, endpoint)) {
                        to_tell.insert(to);
                    }
                }
            }
        }
        for to in to_tell {
            self.send_whereabouts_anew(to, at);
        }
    }

    /// Something came from a peer: its confirmed endpoint may be another than before.
    pub(super) fn record_endpoint(&mut self, id: PeerId, at: &mut At<'_>) {
        let Some(registrant) = self.registrants.get_mut(&id) else { return };
        let Some(peer) = at.low.peer(&id).filter(|peer| peer.has_session()) else { return };
        let (remote, here) = (peer.path().remote(), peer.path().remote().ip());
        if registrant.was_at.last() != Some(&here) && remote.port() == at.base.config().port && !peer.is_mapped() {
            registrant.was_at.retain(|address| *address != here);
            registrant.was_at.push(here);
            let over = registrant.was_at.len().saturating_sub(ADDRESSES);
            registrant.was_at.drain(..over);
        }
        let moved = std::mem::replace(&mut registrant.endpoint, remote) != remote;
        let given_up = registrant.tries > TELLS;
        if moved {
            let tags: Vec<MeetingTag> = registrant.tags.keys().copied().collect();
            self.introduce_registrants(id, &tags, at);
        }
        if given_up || moved {
            self.send_whereabouts_anew(id, at);
        }
    }

    /// A host is told at once, whatever it has not acknowledged.
    fn send_whereabouts_anew(&mut self, id: PeerId, at: &mut At<'_>) {
        if let Some(registrant) = self.registrants.get_mut(&id) {
            // What it was told and has not acknowledged is told again, with what is new.
            registrant.untold.extend(std::mem::take(&mut registrant.told));
            registrant.tries = 0;
            self.send_whereabouts(id, at);
        }
    }

    /// Tells a host where others are, for the first time or again.
    pub(super) fn send_whereabouts(&mut self, id: PeerId, at: &mut At<'_>) {
        let Some(registrant) = self.registrants.get_mut(&id) else { return };
        if registrant.told.is_empty() {
            registrant.told = registrant.untold.iter().take(MAX_WHEREABOUTS).copied().collect();
            registrant.told.iter().for_each(|tag| {
                registrant.untold.remove(tag);
            });
            registrant.number += u32::from(!registrant.told.is_empty());
            registrant.tries = 0;
        }
        let Some(peer) = at.low.flow().peer(&id).filter(|_| !registrant.told.is_empty()) else { return };
        registrant.tries += 1;
        if registrant.tries > TELLS || peer.flow.away().is_some() {
            // It is told when it is heard again.
            registrant.tries = TELLS + 1;
            return;
        }
        let again = peer.path.repeat_after(registrant.tries);
        let known = |tag: &MeetingTag| Some((*tag, registrant.tags.get(tag).copied().flatten()?));
        let found = registrant.told.iter().filter_map(known).collect();
        let number = registrant.number;
        self.due.set(id, at.now + again);
        at.low.path_mut().send(id, &[Message::Whereabouts { number, found }], at.base);
    }

    /// A host has acknowledged what it was told.
    pub(super) fn handle_whereabouts_seen(&mut self, id: PeerId, number: u32, at: &mut At<'_>) {
        let Some(registrant) = self.registrants.get_mut(&id) else { return };
        if registrant.number == number && !registrant.told.is_empty() {
            registrant.told.clear();
            registrant.tries = 0;
            self.due.stop(id);
            self.send_whereabouts(id, at);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.due.next()
    }

    /// Somebody is due to be told again.
    pub(super) fn handle_timeout(&mut self, at: &mut At<'_>) {
        if let Some(id) = self.due.take_due(at.now) {
            self.send_whereabouts(id, at);
        }
    }

    /// The hosts of the community are others: who is none any more is not met here (P-216).
    pub(super) fn forget_strangers(&mut self, at: &mut At<'_>) {
        let known = self.registrants.keys().filter_map(|id| Some((*id, at.low.session().key_of(*id)?)));
        let strangers: Vec<(PeerId, PublicKey)> = known.filter(|(_, key)| !serves(key, at)).collect();
        strangers.into_iter().for_each(|(id, key)| self.forget(id, key, at.low));
    }

    /// A peer is forgotten, which has this key.
    pub(super) fn forget(&mut self, id: PeerId, key: PublicKey, low: &mut BindingLayer) {
        low.session_mut().pins_mut().pin(Pin::Registered, key, false);
        let tags: Vec<MeetingTag> =
            self.registrants.get(&id).map(|of| of.tags.keys().copied().collect()).unwrap_or_default();
        for tag in &tags {
            self.withdraw(id, tag);
        }
        self.registrants.remove(&id);
        self.due.stop(id);
    }

    /// See [`Node::rendezvous_server`](crate::Node::meetings).
    pub(super) fn meetings(&self) -> (usize, usize) {
        let pairs = self.tags.values().filter(|hosts| hosts.len() == HOSTS_OF_A_TAG).count();
        (self.registrants.len(), pairs)
    }
}

/// Whether a host may be met here (P-216).
fn serves(key: &PublicKey, at: &At<'_>) -> bool {
    let config = at.base.config();
    config.serve_rendezvous || (config.community_rendezvous && at.low.session().pins().is_member(key))
}

impl Registrant {
    fn at(endpoint: SocketAddr) -> Self {
        let (tags, untold, told) = Default::default();
        let status = RegistrationStatus::Accepted;
        Self { newest: 0, status, session: None, endpoint, was_at: Vec::new(), tags, untold, told, number: 0, tries: 0 }
    }
}
