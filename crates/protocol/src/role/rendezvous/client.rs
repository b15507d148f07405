//! Meeting through a third host: this host keeps its rendezvous informed of where it is, and learns from them where
//! peers are that it lost sight of (`docs/protocol.md` §8). What a rendezvous does is in `server.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::message::{MAX_REGISTERED, MeetingTag, Message, RegistrationChange, RegistrationStatus};

use crate::Time;
use crate::base::Base;
use crate::base::arrival::Arrival;
use crate::base::bucket::Bucket;
use crate::base::event::Event;
use crate::base::op::PeerId;
use crate::base::pace::REFRESH;
use crate::base::timer::Timer;
use crate::binding::BindingLayer;
use crate::flow::peers::PeerRef;
use crate::role::At;
use crate::role::rendezvous::{Due, RendezvousRole};
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
/// What a rendezvous can have a host send on account of one peer, whatever it tells: so many datagrams at once, and one
/// more in so long (P-58).
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

impl RendezvousRole {
    /// Sessions are kept with the rendezvous that serve this host, and those are asked that are not reached, while
    /// there is a peer to be met.
    fn pin_registrars(&mut self, at: &mut At<'_>) {
        let needed = !self.client.tags.is_empty();
        let serving = self.registrars().into_iter().filter(|_| needed);
        let hosts = serving.filter_map(|id| Some(at.low.session().peer(&id)?.key())).collect();
        at.low.session_mut().pins_mut().set(Pin::Kept, hosts);
        let addresses = at.base.config().rendezvous.iter().filter(|_| needed).copied().collect();
        at.low.session_mut().pins_mut().want(Want::Rendezvous, addresses);
    }

    /// There is a peer to be met, a rendezvous answers at last, or time has passed.
    pub(crate) fn meet_later(&mut self, now: Time, base: &mut Base) {
        if !base.config().rendezvous.is_empty() {
            self.timers.set_earlier(Due::Rendezvous, now);
        }
    }

    /// Looks which peers are to be met and which rendezvous answer.
    pub(crate) fn search_for_rendezvous(&mut self, at: &mut At<'_>) {
        if at.base.config().rendezvous.is_empty() || at.base.is_suspended() {
            return;
        }
        self.name_meetings(at);
        self.pin_registrars(at);
        if self.client.tags.is_empty() {
            let ids: Vec<PeerId> = self.client.registrars.keys().copied().collect();
            for id in ids {
                self.register(id, at);
                at.base.set_timer_earlier(Timer::Idle(id), at.now + REFRESH);
            }
            return;
        }
        for address in at.base.config().rendezvous.clone() {
            match at.low.session().contacts().get(&address) {
                Some(Contact::Known(id)) => {
                    let registrar = self.client.registrars.entry(id).or_insert_with(Registrar::new);
                    let refused = registrar.standing == RegistrationStanding::Refused;
                    self.pin_registrars(at);
                    if refused {
                        // It is asked again in its own time.
                        continue;
                    }
                    if at.low.session().has_session(id) {
                        self.register(id, at);
                    } else {
                        at.low.session_mut().reach_again(at.now, id, at.base);
                    }
                }
                Some(Contact::Asking { .. } | Contact::Silent { .. }) => {}
                None => {
                    at.low.session_mut().ask(at.now, address, None, at.base);
                }
            }
        }
        self.ask_neighbour_proxies(at);
        self.timers.set(Due::Rendezvous, at.now + REFRESH);
    }

    /// A peer is forgotten.
    pub(crate) fn leave_rendezvous(&mut self, id: PeerId, at: &mut At<'_>) {
        self.client.forget(id);
        self.pin_registrars(at);
    }

    /// The network is another: whoever did not answer may answer now.
    pub(crate) fn ask_rendezvous_again(&mut self, at: &mut At<'_>) {
        for address in at.base.config().rendezvous.clone() {
            if matches!(at.low.session().contacts().get(&address), Some(Contact::Silent { .. })) {
                at.low.session_mut().contacts_mut().forget(&address);
                at.base.stop_timer(Timer::Contact(address));
            }
        }
        self.meet_later(at.now, at.base);
        self.ask_neighbour_proxies(at);
    }

    /// A peer does not answer our updates. It may have moved as well, and a rendezvous may have forgotten us: that is
    /// found out sooner than it would be otherwise.
    pub(crate) fn check_rendezvous(&mut self, id: PeerId, at: &mut At<'_>) {
        if !self.client.tags.contains_key(&id) {
            return;
        }
        let registrars: Vec<PeerId> = self.client.registrars.keys().copied().collect();
        for registrar in registrars.into_iter().filter(|registrar| *registrar != id) {
            if at.low.path().paths(&registrar).is_some_and(|paths| paths.check_tries() == 0) {
                at.base.set_timer(Timer::Keepalive(registrar), at.now);
            }
        }
    }

    /// Names the meetings with all peers that there are flows with, and no others.
    fn name_meetings(&mut self, at: &mut At<'_>) {
        let flow = at.low.flow();
        let over: Vec<PeerId> = self.client.tags.keys().copied().collect();
        for id in over.into_iter().filter(|id| !flow.held(*id).flows) {
            if let Some(tag) = self.client.tags.remove(&id) {
                self.client.by_tag.remove(&tag);
            }
            self.client.found.remove(&id);
            self.timers.stop(Due::Found(id));
        }
        for peer in flow.each().filter(|peer| !peer.flow.flows().is_empty()) {
            if !self.client.tags.contains_key(&peer.id())
                && let Some(tag) = at.base.key().meeting_tag(&peer.key())
            {
                self.client.tags.insert(peer.id(), tag);
                self.client.by_tag.insert(tag, peer.id());
            }
        }
    }

    /// There is a new session with a peer. If it is a rendezvous it may have started anew.
    pub(crate) fn register_anew(&mut self, id: PeerId, at: &mut At<'_>) {
        if let Some(registrar) = self.client.registrars.get_mut(&id) {
            registrar.afresh = true;
            registrar.told.clear();
            registrar.untold = None;
            registrar.heard = 0;
            self.register(id, at);
            self.ask_neighbour_proxy_anew(id, at);
        }
    }

    /// Tells a rendezvous what it does not know, for the first time or again.
    pub(crate) fn register(&mut self, id: PeerId, at: &mut At<'_>) {
        if at.base.is_suspended() {
            return;
        }
        let reachable = |peer: &PeerRef<'_>| peer.has_session() && peer.path.attachment().is_some();
        let Some(peer) = at.low.flow().peer(&id).filter(reachable) else { return };
        let Some(registrar) = self.client.registrars.get_mut(&id) else { return };
        if registrar.untold.is_none() {
            // Nobody is met at a host that it has flows with itself.
            let wanted = self.client.by_tag.iter().filter(|(_, with)| **with != id).map(|(tag, _)| *tag);
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
            ..=REGISTRATIONS => peer.path.repeat_after(registrar.tries),
            _ => REGISTRATION_PAUSE,
        };
        let number = registrar.number;
        self.timers.set(Due::Registration(id), at.now + again);
        at.low.path_mut().send(id, &[Message::Register { number, change, tags }], at.base);
    }

    /// A rendezvous answers.
    pub(crate) fn handle_registered(
        &mut self,
        id: PeerId,
        number: u32,
        status: RegistrationStatus,
        newest: u32,
        at: &mut At<'_>,
    ) {
        let Some(registrar) = self.client.registrars.get_mut(&id).filter(|of| of.number == number) else { return };
        let Some((change, tags)) = registrar.untold.take() else { return };
        self.timers.stop(Due::Registration(id));
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
                self.pin_registrars(at);
                at.low.check_later(at.now, id, at.base);
                self.register(id, at);
            }
            RegistrationStatus::NotNewer => {
                // We lost count, as after a restart (P-17).
                registrar.number = newest.max(number).min(NUMBERS - 1);
                registrar.afresh = true;
                registrar.told.clear();
                // Once at once: who says so again and again is told no sooner than who says nothing.
                let pause =
                    if std::mem::replace(&mut registrar.corrected, true) { REGISTRATION_PAUSE } else { Duration::ZERO };
                self.timers.set(Due::Registration(id), at.now + pause);
            }
            _ => {
                registrar.standing = RegistrationStanding::Refused;
                registrar.afresh = true;
                registrar.told.clear();
                self.pin_registrars(at);
                at.base.stop_timer(Timer::Keepalive(id));
                at.low.flow_mut().idle_later(at.now, id, at.base);
                self.timers.set(Due::Registration(id), at.now + REFUSED);
            }
        }
    }

    /// A rendezvous says where peers are. Gives the answer.
    pub(crate) fn handle_whereabouts(
        &mut self,
        id: PeerId,
        number: u32,
        found: &[(MeetingTag, SocketAddr)],
        at: &mut At<'_>,
    ) -> Option<Message> {
        let registrar = self.client.registrars.get_mut(&id)?;
        if number > registrar.heard {
            registrar.heard = number;
            for (tag, endpoint) in found {
                if let Some(peer) = self.client.by_tag.get(tag).copied() {
                    self.find(peer, *endpoint, id, at);
                }
            }
        }
        Some(Message::WhereaboutsSeen { number })
    }

    fn find(&mut self, id: PeerId, endpoint: SocketAddr, by: PeerId, at: &mut At<'_>) {
        let own = at.base.attachments().has(&endpoint.ip());
        let address = endpoint.ip();
        if own || address.is_unspecified() || address.is_multicast() || address.is_loopback() || endpoint.port() == 0 {
            return;
        }
        let token = at.base.random().u64();
        let fresh = Found { endpoint, by, token, tries: 0, reported: false, budget: Bucket::of(BUDGET, BUDGET_PAUSE) };
        let found = self.client.found.entry(id).or_insert(fresh);
        found.by = by;
        if found.endpoint != endpoint {
            (found.endpoint, found.token, found.reported) = (endpoint, token, false);
        }
        found.tries = 0;
        self.try_found(id, at);
    }

    /// This host has moved: a peer that it does not find where it was may be where a rendezvous said.
    pub(crate) fn try_found_again(&mut self, now: Time, id: PeerId) {
        if let Some(found) = self.client.found.get_mut(&id) {
            found.tries = 0;
            self.timers.set(Due::Found(id), now);
        }
    }

    /// Sends something to where a peer is said to be: an update of ours that it does not know, or else a check, which
    /// opens the NAT before us for what it sends (P-58).
    pub(crate) fn try_found(&mut self, id: PeerId, at: &mut At<'_>) {
        let Some(found) = self.client.found.get_mut(&id) else { return };
        let (endpoint, token) = (found.endpoint, found.token);
        let Some(peer) = at.low.peer(&id) else { return };
        let same_family = peer.path().source().is_some_and(|source| source.is_ipv4() == endpoint.is_ipv4());
        let known = peer.path().has_shown(endpoint) || (peer.updating().is_none() && peer.path().heading() == endpoint);
        if at.base.is_suspended() || known || peer.path().attachment().is_none() || !same_family {
            return;
        }
        let updating = peer.updating();
        let most = match updating {
            Some(true) => TRIES,
            Some(false) => return,
            None => KNOCKS,
        };
        if found.tries >= most {
            return;
        }
        if !found.budget.take(at.now) {
            self.timers.set(Due::Found(id), at.now + BUDGET_PAUSE);
            return;
        }
        found.tries += 1;
        let tries = found.tries;
        let again = match tries.checked_sub(CLOSE_TRIES) {
            None => peer.path().repeat_after(tries),
            Some(beyond) => (TRY_PAUSE * 2u32.pow(beyond.min(5))).min(TRY_PAUSE_LONGEST),
        };
        let (source, session) = (peer.path().source(), peer.has_session());
        self.timers.set(Due::Found(id), at.now + again);
        // It may have started anew, and know of no session.
        if (!session && tries % HANDSHAKE_AT == 1) || (session && updating.is_some() && tries == HANDSHAKE_AT) {
            at.low.path_mut().start_handshake_at(at.now, id, endpoint, at.base);
        }
        if !session {
            return;
        }
        if updating.is_some() {
            at.low.send_update(id, endpoint, at.base);
        } else {
            let locators = Message::Locators(at.base.attachments().addresses().copied().collect());
            at.low.path_mut().send_to(id, source, endpoint, &[Message::PathChallenge { token }, locators], at.base);
        }
    }

    /// A peer was heard from an endpoint: perhaps the one that a rendezvous told.
    pub(crate) fn on_found(&mut self, id: PeerId, arrival: &Arrival, at: &mut At<'_>) {
        let Some(found) = self.client.found.get_mut(&id) else { return };
        let elsewhere = at.low.path().paths(&id).is_some_and(|paths| paths.remote() != arrival.source);
        if found.endpoint != arrival.source || !elsewhere || std::mem::replace(&mut found.reported, true) {
            return;
        }
        // It was said truly, so there may be more of it.
        found.budget = Bucket::of(BUDGET, BUDGET_PAUSE);
        let (remote, rendezvous) = (found.endpoint, found.by);
        at.base.event(Event::PeerFound { peer: id, remote, rendezvous });
    }

    /// An answer to a challenge that went to where a peer was said to be: it is there. Tells whether it was one.
    pub(crate) fn prove_found(&mut self, id: PeerId, token: u64, low: &mut BindingLayer) -> bool {
        let Some(found) = self.client.found.get(&id).filter(|found| found.token == token) else { return false };
        if let Some(paths) = low.path_mut().paths_mut(&id) {
            paths.find_at(found.endpoint);
        }
        self.timers.stop(Due::Found(id));
        true
    }

    /// The rendezvous that serve this host.
    pub(crate) fn registrars(&self) -> Vec<PeerId> {
        let serves = |(_, registrar): &(&PeerId, &Registrar)| registrar.standing != RegistrationStanding::Refused;
        self.client.registrars.iter().filter(serves).map(|(id, _)| *id).collect()
    }

    /// See [`Node::rendezvous`](crate::Node::rendezvous).
    pub(crate) fn rendezvous(&self, low: &BindingLayer, base: &Base) -> Vec<RendezvousView> {
        let standing = |address: &IpAddr| {
            if self.client.tags.is_empty() {
                return RendezvousStanding::Unneeded;
            }
            let Some(Contact::Known(id)) = low.session().contacts().get(address) else {
                return RendezvousStanding::Unanswered;
            };
            let Some(registrar) = self.client.registrars.get(&id) else { return RendezvousStanding::Unanswered };
            let silent = low.flow().peer(&id).is_none_or(|peer| !peer.has_session() || peer.path.check_tries() > 2);
            let peers = registrar.told.len();
            match registrar.standing {
                RegistrationStanding::Refused => RendezvousStanding::Refused,
                _ if silent => RendezvousStanding::Unanswered,
                RegistrationStanding::Unanswered => RendezvousStanding::Unanswered,
                RegistrationStanding::Accepted => RendezvousStanding::Registered { peers },
                RegistrationStanding::Full => RendezvousStanding::Full { peers },
            }
        };
        let configured = base.config().rendezvous.iter();
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
