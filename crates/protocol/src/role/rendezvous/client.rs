//! Meeting through a third host: this host keeps its rendezvous informed of where it is, and learns from them where peers
//! are that it lost sight of (`docs/protocol.md` §8). What a rendezvous does is in `meetings.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::message::{MAX_REGISTERED, MeetingTag, Message, RegistrationChange, RegistrationStatus};

use crate::Time;
use crate::base::arrival::Arrival;
use crate::base::bucket::Bucket;
use crate::base::event::Event;
use crate::base::op::PeerId;
use crate::base::pace::REFRESH;
use crate::base::timer::Timer;
use crate::node::Node;
use crate::session::contact::Contact;
use crate::session::pins::{Pin, Want};

/// Until a rendezvous that refused is asked again.
const REFUSED: Duration = Duration::from_secs(600);
/// Registrations in close succession before the pauses become long.
const REGISTRATIONS: u32 = 8;
const REGISTRATION_PAUSE: Duration = Duration::from_secs(60);
/// Registrations are numbered below this, as updates are (P-17).
const NUMBERS: u32 = crate::binding::handoff::SEQUENCES;
/// Datagrams to one endpoint that a rendezvous told: while this host has a move to tell, and while it has not.
const TRIES: u32 = 20;
const KNOCKS: u32 = 3;
/// Of these so many come in close succession, and one goes along with a handshake.
const CLOSE_TRIES: u32 = 8;
const HANDSHAKE_AT: u32 = 4;
const TRY_PAUSE: Duration = Duration::from_secs(4);
const TRY_PAUSE_LONGEST: Duration = Duration::from_secs(60);
/// What a rendezvous can have a host send on account of one peer, whatever it tells: so many datagrams at once, and one more
/// in so long (P-58).
const BUDGET: f64 = 12.0;
const BUDGET_PAUSE: Duration = Duration::from_secs(10);

/// What this host does to be found, and whom it finds.
#[derive(Default)]
pub(crate) struct Rendezvous {
    /// What this host calls its meetings with each peer that it has flows with.
    tags: BTreeMap<PeerId, MeetingTag>,
    by_tag: BTreeMap<MeetingTag, PeerId>,
    /// The rendezvous that have been reached.
    registrars: BTreeMap<PeerId, Registrar>,
    found: BTreeMap<PeerId, Found>,
}

/// A rendezvous that was reached.
struct Registrar {
    /// It has acknowledged these.
    told: BTreeSet<MeetingTag>,
    /// It may have forgotten all that it was told.
    afresh: bool,
    /// Of the last registration.
    number: u32,
    /// What it has not acknowledged yet.
    untold: Option<(RegistrationChange, Vec<MeetingTag>)>,
    tries: u32,
    /// Its idea of the numbers was taken over, and has not proven right since.
    corrected: bool,
    standing: RegistrationStanding,
    /// Newest number of what it told.
    heard: u32,
}

/// What became of the last registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegistrationStanding {
    Unanswered,
    Accepted,
    Full,
    Refused,
}

/// Where a peer is, as a rendezvous says. That proves nothing.
struct Found {
    endpoint: SocketAddr,
    /// Who said so.
    by: PeerId,
    /// Of the challenge that goes there while there is no update to send.
    token: u64,
    tries: u32,
    /// The peer was heard from there.
    reported: bool,
    budget: Bucket,
}

/// A rendezvous as `whimbrel status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousView {
    /// As configured.
    pub address: IpAddr,
    /// How it stands.
    pub standing: RendezvousStanding,
}

/// How a configured rendezvous stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RendezvousStanding {
    /// There is no peer to be met.
    Unneeded,
    /// It is being asked, or does not answer.
    Unanswered,
    /// It answers, and knows this host for so many peers.
    Registered {
        /// Peers that this host can be met by.
        peers: usize,
    },
    /// It has no room for all peers of this host.
    Full {
        /// Peers that this host can be met by, and some that it cannot.
        peers: usize,
    },
    /// It is nobody's rendezvous, or not ours.
    Refused,
}

impl Rendezvous {
    pub(crate) fn entries(&self) -> usize {
        let told: usize = self.registrars.values().map(|registrar| 1 + registrar.told.len()).sum();
        self.tags.len() + self.by_tag.len() + self.found.len() + told
    }

    fn forget(&mut self, id: PeerId) {
        self.registrars.remove(&id);
        self.found.remove(&id);
        if let Some(tag) = self.tags.remove(&id) {
            self.by_tag.remove(&tag);
        }
    }
}

impl Node {
    /// Sessions are kept with the rendezvous that serve this host, and those are asked that are not reached, while there is a peer to
    /// be met.
    fn pin_registrars(&mut self) {
        let needed = !self.rendezvous.tags.is_empty();
        let serving = self.registrars().into_iter().filter(|_| needed);
        let hosts = serving.filter_map(|id| Some(self.peers.get(&id)?.key)).collect();
        self.contacts.pins.set(Pin::Kept, hosts);
        let addresses = self.base.config().rendezvous.iter().filter(|_| needed).copied().collect();
        self.contacts.pins.want(Want::Rendezvous, addresses);
    }

    /// There is a peer to be met, a rendezvous answers at last, or time has passed.
    pub(crate) fn meet_later(&mut self, now: Time) {
        if !self.base.config().rendezvous.is_empty() {
            self.base.set_timer_earlier(Timer::Rendezvous, now);
        }
    }

    /// Looks which peers are to be met and which rendezvous answer.
    pub(crate) fn look_for_rendezvous(&mut self, now: Time) {
        if self.base.config().rendezvous.is_empty() || self.base.is_suspended() {
            return;
        }
        self.name_meetings();
        self.pin_registrars();
        if self.rendezvous.tags.is_empty() {
            let ids: Vec<PeerId> = self.rendezvous.registrars.keys().copied().collect();
            for id in ids {
                self.register(now, id);
                self.base.set_timer_earlier(Timer::Idle(id), now + REFRESH);
            }
            return;
        }
        for address in self.base.config().rendezvous.clone() {
            match self.contacts.addresses.get(&address) {
                Some(Contact::Known(id)) => {
                    let id = *id;
                    let registrar = self.rendezvous.registrars.entry(id).or_insert_with(Registrar::new);
                    let refused = registrar.standing == RegistrationStanding::Refused;
                    self.pin_registrars();
                    if refused {
                        // It is asked again in its own time.
                        continue;
                    }
                    if self.peers.get(&id).is_some_and(|peer| peer.has_session()) {
                        self.register(now, id);
                    } else {
                        self.reach_again(now, id);
                    }
                }
                Some(Contact::Asking { .. } | Contact::Silent { .. }) => {}
                None => {
                    self.contacts.addresses.insert(address, Contact::Asking { tries: 0, source: None });
                    self.continue_contact(now, address);
                }
            }
        }
        self.ask_stand_ins(now);
        self.base.set_timer(Timer::Rendezvous, now + REFRESH);
    }

    /// A peer is forgotten.
    pub(crate) fn leave_rendezvous(&mut self, id: PeerId) {
        self.rendezvous.forget(id);
        self.pin_registrars();
    }

    /// The network is another: whoever did not answer may answer now.
    pub(crate) fn ask_rendezvous_again(&mut self, now: Time) {
        for address in self.base.config().rendezvous.clone() {
            if matches!(self.contacts.addresses.get(&address), Some(Contact::Silent { .. })) {
                self.contacts.addresses.remove(&address);
                self.base.stop_timer(Timer::Contact(address));
            }
        }
        self.meet_later(now);
        self.ask_stand_ins(now);
    }

    /// A peer does not answer our updates. It may have moved as well, and a rendezvous may have forgotten us: that is found out
    /// sooner than it would be otherwise.
    pub(crate) fn check_rendezvous(&mut self, now: Time, id: PeerId) {
        if !self.rendezvous.tags.contains_key(&id) {
            return;
        }
        let registrars: Vec<PeerId> = self.rendezvous.registrars.keys().copied().collect();
        for registrar in registrars.into_iter().filter(|registrar| *registrar != id) {
            if self.peers.get(&registrar).is_some_and(|peer| peer.check_tries == 0) {
                self.base.set_timer(Timer::Keepalive(registrar), now);
            }
        }
    }

    /// Names the meetings with all peers that there are flows with, and no others.
    fn name_meetings(&mut self) {
        let peers = &self.peers;
        let over: Vec<PeerId> = self.rendezvous.tags.keys().copied().collect();
        for id in over.into_iter().filter(|id| peers.get(id).is_none_or(|peer| peer.flows.is_empty())) {
            if let Some(tag) = self.rendezvous.tags.remove(&id) {
                self.rendezvous.by_tag.remove(&tag);
            }
            self.rendezvous.found.remove(&id);
            self.base.stop_timer(Timer::Found(id));
        }
        for peer in peers.values().filter(|peer| !peer.flows.is_empty()) {
            if !self.rendezvous.tags.contains_key(&peer.id)
                && let Some(tag) = self.base.key().meeting_tag(&peer.key)
            {
                self.rendezvous.tags.insert(peer.id, tag);
                self.rendezvous.by_tag.insert(tag, peer.id);
            }
        }
    }

    /// There is a new session with a peer. If it is a rendezvous it may have started anew.
    pub(crate) fn register_anew(&mut self, now: Time, id: PeerId) {
        if let Some(registrar) = self.rendezvous.registrars.get_mut(&id) {
            registrar.afresh = true;
            registrar.told.clear();
            registrar.untold = None;
            registrar.heard = 0;
            self.register(now, id);
            self.ask_stand_in_anew(now, id);
        }
    }

    /// Tells a rendezvous what it does not know, for the first time or again.
    pub(crate) fn register(&mut self, now: Time, id: PeerId) {
        if self.base.is_suspended() {
            return;
        }
        let Some(peer) = self.peers.get(&id).filter(|peer| peer.has_session() && peer.attachment.is_some()) else {
            return;
        };
        let Some(registrar) = self.rendezvous.registrars.get_mut(&id) else { return };
        if registrar.untold.is_none() {
            // Nobody is met at a host that it has flows with itself.
            let wanted = self.rendezvous.by_tag.iter().filter(|(_, with)| **with != id).map(|(tag, _)| *tag);
            let wanted: BTreeSet<MeetingTag> = wanted.collect();
            let (change, tags): (_, Vec<MeetingTag>) = if registrar.afresh {
                (RegistrationChange::Replace, wanted.into_iter().take(MAX_REGISTERED).collect())
            } else {
                let added: Vec<MeetingTag> = wanted.difference(&registrar.told).take(MAX_REGISTERED).copied().collect();
                if added.is_empty() {
                    let over = registrar.told.difference(&wanted).take(MAX_REGISTERED).copied().collect();
                    (RegistrationChange::Withdraw, over)
                } else {
                    (RegistrationChange::Add, added)
                }
            };
            if tags.is_empty() {
                return;
            }
            registrar.number = (registrar.number + 1).min(NUMBERS - 1);
            registrar.untold = Some((change, tags));
            registrar.tries = 0;
        }
        let Some((change, tags)) = registrar.untold.clone() else { return };
        registrar.tries += 1;
        let again = match registrar.tries {
            ..=REGISTRATIONS => peer.repeat_after(registrar.tries),
            _ => REGISTRATION_PAUSE,
        };
        let number = registrar.number;
        self.base.set_timer(Timer::Registration(id), now + again);
        self.send(id, &[Message::Register { number, change, tags }]);
    }

    /// A rendezvous answers.
    pub(crate) fn handle_registered(
        &mut self,
        now: Time,
        id: PeerId,
        number: u32,
        status: RegistrationStatus,
        newest: u32,
    ) {
        let Some(registrar) = self.rendezvous.registrars.get_mut(&id).filter(|of| of.number == number) else { return };
        let Some((change, tags)) = registrar.untold.take() else { return };
        self.base.stop_timer(Timer::Registration(id));
        match status {
            RegistrationStatus::Accepted | RegistrationStatus::Full => {
                // Those that it has no room for are not named again and again.
                if change == RegistrationChange::Withdraw {
                    tags.iter().for_each(|tag| {
                        registrar.told.remove(tag);
                    });
                } else {
                    registrar.told.extend(tags);
                }
                registrar.afresh = false;
                registrar.corrected = false;
                let full = status == RegistrationStatus::Full;
                registrar.standing = if full { RegistrationStanding::Full } else { RegistrationStanding::Accepted };
                self.pin_registrars();
                self.check_later(now, id);
                self.register(now, id);
            }
            RegistrationStatus::NotNewer => {
                // We lost count, as after a restart (P-17).
                registrar.number = newest.max(number).min(NUMBERS - 1);
                registrar.afresh = true;
                registrar.told.clear();
                // Once at once: who says so again and again is told no sooner than who says nothing.
                let pause =
                    if std::mem::replace(&mut registrar.corrected, true) { REGISTRATION_PAUSE } else { Duration::ZERO };
                self.base.set_timer(Timer::Registration(id), now + pause);
            }
            _ => {
                registrar.standing = RegistrationStanding::Refused;
                registrar.afresh = true;
                registrar.told.clear();
                self.pin_registrars();
                self.base.stop_timer(Timer::Keepalive(id));
                self.idle_later(now, id);
                self.base.set_timer(Timer::Registration(id), now + REFUSED);
            }
        }
    }

    /// A rendezvous says where peers are. Gives the answer.
    pub(crate) fn handle_whereabouts(
        &mut self,
        now: Time,
        id: PeerId,
        number: u32,
        found: &[(MeetingTag, SocketAddr)],
    ) -> Option<Message> {
        let registrar = self.rendezvous.registrars.get_mut(&id)?;
        if number > registrar.heard {
            registrar.heard = number;
            for (tag, endpoint) in found {
                if let Some(peer) = self.rendezvous.by_tag.get(tag).copied() {
                    self.find(now, peer, *endpoint, id);
                }
            }
        }
        Some(Message::WhereaboutsSeen { number })
    }

    fn find(&mut self, now: Time, id: PeerId, endpoint: SocketAddr, by: PeerId) {
        let own = self.base.attachments().has(&endpoint.ip());
        let address = endpoint.ip();
        if own || address.is_unspecified() || address.is_multicast() || address.is_loopback() || endpoint.port() == 0 {
            return;
        }
        let token = self.base.random().u64();
        let fresh = Found { endpoint, by, token, tries: 0, reported: false, budget: Bucket::of(BUDGET, BUDGET_PAUSE) };
        let found = self.rendezvous.found.entry(id).or_insert(fresh);
        found.by = by;
        if found.endpoint != endpoint {
            (found.endpoint, found.token, found.reported) = (endpoint, token, false);
        }
        found.tries = 0;
        self.try_found(now, id);
    }

    /// This host has moved: a peer that it does not find where it was may be where a rendezvous said.
    pub(crate) fn try_found_again(&mut self, now: Time, id: PeerId) {
        if let Some(found) = self.rendezvous.found.get_mut(&id) {
            found.tries = 0;
            self.base.set_timer(Timer::Found(id), now);
        }
    }

    /// Sends something to where a peer is said to be: an update of ours that it does not know, or else a check, which opens
    /// the NAT before us for what it sends (P-58).
    pub(crate) fn try_found(&mut self, now: Time, id: PeerId) {
        let Some(found) = self.rendezvous.found.get_mut(&id) else { return };
        let (endpoint, token) = (found.endpoint, found.token);
        let Some(peer) = self.peers.get(&id) else { return };
        let same_family = peer.source.is_some_and(|source| source.is_ipv4() == endpoint.is_ipv4());
        let known = peer.has_shown(endpoint) || (peer.update.is_none() && peer.heading() == endpoint);
        if self.base.is_suspended() || known || peer.attachment.is_none() || !same_family {
            return;
        }
        let updating = peer.update.as_ref().map(|update| !update.absent);
        let most = match updating {
            Some(true) => TRIES,
            Some(false) => return,
            None => KNOCKS,
        };
        if found.tries >= most {
            return;
        }
        if !found.budget.take(now) {
            self.base.set_timer(Timer::Found(id), now + BUDGET_PAUSE);
            return;
        }
        found.tries += 1;
        let tries = found.tries;
        let again = match tries.checked_sub(CLOSE_TRIES) {
            None => peer.repeat_after(tries),
            Some(beyond) => (TRY_PAUSE * 2u32.pow(beyond.min(5))).min(TRY_PAUSE_LONGEST),
        };
        let (source, session) = (peer.source, peer.has_session());
        self.base.set_timer(Timer::Found(id), now + again);
        // It may have started anew, and know of no session.
        if (!session && tries % HANDSHAKE_AT == 1) || (session && updating.is_some() && tries == HANDSHAKE_AT) {
            self.start_handshake_at(now, id, endpoint);
        }
        if !session {
            return;
        }
        if updating.is_some() {
            self.say_update(id, endpoint);
        } else {
            let locators = Message::Locators(self.base.attachments().addresses().copied().collect());
            self.send_to(id, source, endpoint, &[Message::PathChallenge { token }, locators]);
        }
    }

    /// A peer was heard from an endpoint: perhaps the one that a rendezvous told.
    pub(crate) fn note_found(&mut self, id: PeerId, arrival: &Arrival) {
        let Some(found) = self.rendezvous.found.get_mut(&id) else { return };
        let elsewhere = self.peers.get(&id).is_some_and(|peer| peer.remote != arrival.source);
        if found.endpoint != arrival.source || !elsewhere || std::mem::replace(&mut found.reported, true) {
            return;
        }
        // It was said truly, so there may be more of it.
        found.budget = Bucket::of(BUDGET, BUDGET_PAUSE);
        let (remote, rendezvous) = (found.endpoint, found.by);
        self.base.event(Event::PeerFound { peer: id, remote, rendezvous });
    }

    /// An answer to a challenge that went to where a peer was said to be: it is there. Tells whether it was one.
    pub(crate) fn prove_found(&mut self, id: PeerId, token: u64) -> bool {
        let Some(found) = self.rendezvous.found.get(&id).filter(|found| found.token == token) else { return false };
        if let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.remote != found.endpoint) {
            peer.met = Some(found.endpoint);
        }
        self.base.stop_timer(Timer::Found(id));
        true
    }

    /// The rendezvous that serve this host.
    pub(crate) fn registrars(&self) -> Vec<PeerId> {
        let serves = |(_, registrar): &(&PeerId, &Registrar)| registrar.standing != RegistrationStanding::Refused;
        self.rendezvous.registrars.iter().filter(serves).map(|(id, _)| *id).collect()
    }

    /// The configured rendezvous, and how they stand.
    #[must_use]
    pub fn rendezvous(&self) -> Vec<RendezvousView> {
        let standing = |address: &IpAddr| {
            if self.rendezvous.tags.is_empty() {
                return RendezvousStanding::Unneeded;
            }
            let Some(Contact::Known(id)) = self.contacts.addresses.get(address) else {
                return RendezvousStanding::Unanswered;
            };
            let Some(registrar) = self.rendezvous.registrars.get(id) else { return RendezvousStanding::Unanswered };
            let silent = self.peers.get(id).is_none_or(|peer| !peer.has_session() || peer.check_tries > 2);
            let peers = registrar.told.len();
            match registrar.standing {
                RegistrationStanding::Refused => RendezvousStanding::Refused,
                _ if silent => RendezvousStanding::Unanswered,
                RegistrationStanding::Unanswered => RendezvousStanding::Unanswered,
                RegistrationStanding::Accepted => RendezvousStanding::Registered { peers },
                RegistrationStanding::Full => RendezvousStanding::Full { peers },
            }
        };
        let configured = self.base.config().rendezvous.iter();
        configured.map(|address| RendezvousView { address: *address, standing: standing(address) }).collect()
    }
}

impl Registrar {
    fn new() -> Self {
        Self {
            told: BTreeSet::new(),
            afresh: true,
            number: 0,
            untold: None,
            tries: 0,
            corrected: false,
            standing: RegistrationStanding::Unanswered,
            heard: 0,
        }
    }
}
