//! Meeting through a third host: this host keeps its rendezvous informed of where it is, and learns from them where
//! peers are that it lost sight of (`docs/protocol.md` §8). What a rendezvous does is in `server.rs`.

mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_wire::hello::Capabilities;
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
use crate::session::peer::Peer;
use crate::session::pins::{Pin, Want};

/// Until a rendezvous that refused is asked again.
const REFUSED: Duration = Duration::from_secs(600);
/// Registrations in close succession before the pauses become long.
const REGISTRATIONS: u32 = 8;
const REGISTRATION_PAUSE: Duration = Duration::from_secs(60);
/// Hosts of the community that serve this host at a time.
const MEMBERS_MOST: usize = 8;
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
    /// Where peers are, by who said so.
    found: BTreeMap<(PeerId, Informant), Found>,
    /// There are hosts of the community that this host may meet others at.
    has_members: bool,
    /// The peers that are gone and have names, with how often these were asked for.
    sought: BTreeMap<PeerId, u32>,
    /// Named hosts that did not offer to be a rendezvous when they were asked.
    declined: BTreeSet<IpAddr>,
}

/// A rendezvous that was reached.
struct Registrar {
    /// Why it is one.
    by: RendezvousBy,
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
    /// Others of the community come before it: nobody is met there any more, which it may have to be told yet.
    over: bool,
}

/// What became of the last registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegistrationStanding {
    Unanswered,
    Accepted,
    Full,
    Refused,
}

/// Who says where a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Informant {
    /// A rendezvous.
    Rendezvous(PeerId),
    /// A name server, of one of the addresses of the peer's name.
    Name(u8),
}

/// Where a peer is, as somebody says. That proves nothing.
struct Found {
    endpoint: SocketAddr,
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
    /// As configured, or where it is.
    pub address: IpAddr,
    /// Why it is one.
    pub by: RendezvousBy,
    /// How it stands.
    pub standing: RendezvousStanding,
}

/// Why a host is this one's rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RendezvousBy {
    /// `rendezvous` names it.
    Configured,
    /// Its key is configured, and it offers itself.
    Named,
    /// It belongs to the community.
    Community,
}

/// How a rendezvous stands.
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
        self.tags.len() + self.by_tag.len() + self.found.len() + self.sought.len() + told
    }

    fn forget(&mut self, id: PeerId) {
        self.registrars.remove(&id);
        self.sought.remove(&id);
        self.found.retain(|(peer, by), _| *peer != id && *by != Informant::Rendezvous(id));
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
        let serving = self.registrars().into_iter().filter(|id| self.is_needed(*id, at));
        let hosts = serving.filter_map(|id| at.low.session().key_of(id)).collect();
        at.low.session_mut().pins_mut().set(Pin::Kept, hosts);
        // Named hosts are many, and most offer nothing: only what `rendezvous` names is asked so often.
        let addresses = at.base.config().rendezvous.iter().filter(|_| needed).copied().collect();
        at.low.session_mut().pins_mut().want(Want::Rendezvous, addresses);
    }

    /// Whether anybody is to be met at a rendezvous.
    fn is_needed(&self, id: PeerId, at: &At<'_>) -> bool {
        let by = self.client.registrars.get(&id).map(|registrar| registrar.by);
        match by {
            Some(RendezvousBy::Community) => !self.wanted_at(id, RendezvousBy::Community, at.low).is_empty(),
            Some(_) => !self.client.tags.is_empty(),
            None => false,
        }
    }

    /// The meetings that a rendezvous is to know of. Nobody is met at a host that it has flows with itself, and only
    /// hosts of the community at one of that.
    fn wanted_at(&self, id: PeerId, by: RendezvousBy, low: &BindingLayer) -> BTreeSet<MeetingTag> {
        let all = by != RendezvousBy::Community;
        let there = |with: &PeerId| *with != id && (all || is_member(*with, low));
        self.client.by_tag.iter().filter(|(_, with)| there(with)).map(|(tag, _)| *tag).collect()
    }

    /// Where rendezvous are asked that this host is told of.
    fn addresses(&self, base: &Base) -> impl Iterator<Item = (IpAddr, RendezvousBy)> {
        let configured = base.config().rendezvous.iter().map(|address| (*address, RendezvousBy::Configured));
        let counts = |at: &&IpAddr| !self.client.declined.contains(at) && !base.config().rendezvous.contains(at);
        let named = base.config().named.iter().filter(counts);
        configured.chain(named.map(|address| (*address, RendezvousBy::Named)))
    }

    /// There is a peer to be met, a rendezvous answers at last, or time has passed.
    pub(crate) fn meet_later(&mut self, now: Time, base: &mut Base) {
        // Those too that have declined: one may offer itself now.
        let config = base.config();
        if self.client.has_members || !config.rendezvous.is_empty() || !config.named.is_empty() {
            self.timers.set_earlier(Due::Rendezvous, now);
        }
    }

    /// The hosts of the community are others.
    pub(super) fn handle_members(&mut self, none: bool, at: &mut At<'_>) {
        self.client.has_members = !none && at.base.config().community_rendezvous;
        let of_community = |registrar: &Registrar| registrar.by == RendezvousBy::Community;
        let registrars = self.client.registrars.iter().filter(|(_, registrar)| of_community(registrar));
        let left = registrars.map(|(id, _)| *id).filter(|id| !is_member(*id, at.low)).collect::<Vec<_>>();
        for id in left {
            self.client.registrars.remove(&id);
            self.client.found.retain(|(_, by), _| *by != Informant::Rendezvous(id));
        }
        self.server.forget_strangers(at);
        self.pin_registrars(at);
        self.timers.set_earlier(Due::Rendezvous, at.now);
    }

    /// There is a session with a host: it may be one that serves this host, by being of the community or by its offer.
    pub(super) fn consider(&mut self, id: PeerId, at: &mut At<'_>) {
        let contacts = at.low.session().contacts();
        let named = at.base.config().named.iter().any(|address| contacts.is_known(*address, id));
        if named || (self.client.has_members && is_member(id, at.low)) {
            self.meet_later(at.now, at.base);
        }
    }

    /// Hosts of the community that this one has a session with, while one of them is to be met, serve it: the first of
    /// them all that do not refuse, by their keys, so that others come to the same ones. What those know that served it
    /// before, and come after them, is withdrawn.
    fn choose_members(&mut self, at: &mut At<'_>) {
        if !self.client.has_members || !self.client.tags.keys().any(|id| is_member(*id, at.low)) {
            return;
        }
        let session = at.low.session();
        let registrars = &mut self.client.registrars;
        let refuses = |registrar: &Registrar| registrar.standing == RegistrationStanding::Refused;
        let met = session.pins().members().filter_map(|key| session.met(key));
        let willing = met.filter(|id| !registrars.get(id).is_some_and(refuses));
        let chosen: BTreeSet<PeerId> = willing.take(MEMBERS_MOST).collect();
        for id in &chosen {
            registrars.entry(*id).or_insert_with(|| Registrar::new(RendezvousBy::Community)).over = false;
        }
        if chosen.len() < MEMBERS_MOST {
            // Who has no session now is wanted still.
            return;
        }
        let mut over = Vec::new();
        for (id, registrar) in registrars.iter_mut().filter(|(id, _)| !chosen.contains(*id)) {
            // Who refuses is asked again in its own time.
            let counts = registrar.by == RendezvousBy::Community && !refuses(registrar);
            if counts && !std::mem::replace(&mut registrar.over, true) {
                over.push(*id);
            }
        }
        for id in over {
            self.client.found.retain(|(_, by), _| *by != Informant::Rendezvous(id));
            self.register(id, at);
        }
    }

    /// Named hosts that declined, and have a session with this one now in which they offer themselves, as when started
    /// anew, are considered again.
    fn reconsider_declined(&mut self, at: &At<'_>) {
        let contacts = at.low.session().contacts();
        self.client.declined.retain(|address| match contacts.get(address) {
            Some(Contact::Known(id)) => offers(id, at.low) != Some(true),
            _ => true,
        });
    }

    /// A host answers that may serve this one. A named one does where it offers itself.
    fn take_answering(&mut self, id: PeerId, address: IpAddr, by: RendezvousBy, at: &At<'_>) {
        if by == RendezvousBy::Named {
            match offers(id, at.low) {
                Some(true) => {}
                Some(false) => {
                    self.client.declined.insert(address);
                    return;
                }
                None => return,
            }
        }
        let registrar = self.client.registrars.entry(id).or_insert_with(|| Registrar::new(by));
        // Whom the configuration names is told of all meetings.
        if registrar.by == RendezvousBy::Community {
            (registrar.by, registrar.over) = (by, false);
        }
    }

    /// Looks which peers are to be met and which rendezvous answer.
    pub(crate) fn search_for_rendezvous(&mut self, at: &mut At<'_>) {
        self.reconsider_declined(at);
        let addresses: Vec<(IpAddr, RendezvousBy)> = self.addresses(at.base).collect();
        let nobody = addresses.is_empty() && !self.client.has_members && self.client.tags.is_empty();
        if nobody || at.base.is_suspended() {
            return;
        }
        self.name_meetings(addresses.is_empty(), at);
        self.choose_members(at);
        self.pin_registrars(at);
        if self.client.tags.is_empty() {
            let ids: Vec<PeerId> = self.client.registrars.keys().copied().collect();
            for id in ids {
                self.register(id, at);
                at.base.set_timer_earlier(Timer::Idle(id), at.now + REFRESH);
            }
            return;
        }
        for (address, by) in addresses {
            match at.low.session().contacts().get(&address) {
                Some(Contact::Known(id)) => self.take_answering(id, address, by, at),
                Some(Contact::Asking { .. } | Contact::Silent { .. }) => {}
                None if by == RendezvousBy::Named => at.low.session_mut().ask_by_hand(at.now, address, at.base),
                None => at.low.session_mut().ask(at.now, address, None, at.base),
            }
        }
        self.pin_registrars(at);
        for id in self.registrars() {
            // One that has refused is asked again in its own time.
            if at.low.session().has_session(id) {
                self.register(id, at);
            } else {
                at.low.session_mut().reach_again(at.now, id, at.base);
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
        let addresses: Vec<IpAddr> = self.addresses(at.base).map(|(address, _)| address).collect();
        for address in addresses {
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
        for registrar in self.registrars().into_iter().filter(|registrar| *registrar != id) {
            if at.low.path().paths(&registrar).is_some_and(|paths| paths.check_tries() == 0) {
                at.base.set_timer(Timer::Keepalive(registrar), at.now);
            }
        }
    }

    /// Names the meetings with all peers that there are flows with, or with those of the community alone, and no
    /// others.
    fn name_meetings(&mut self, members_alone: bool, at: &mut At<'_>) {
        let flow = at.low.flow();
        let counts = |id: PeerId| flow.held(id).flows && (!members_alone || is_member(id, at.low));
        let over: Vec<PeerId> = self.client.tags.keys().copied().collect();
        for id in over.into_iter().filter(|id| !counts(*id)) {
            if let Some(tag) = self.client.tags.remove(&id) {
                self.client.by_tag.remove(&tag);
            }
            self.client.found.retain(|(peer, _), _| *peer != id);
        }
        for peer in flow.each().filter(|peer| counts(peer.id())) {
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
        let Some((by, over)) = self.client.registrars.get(&id).map(|registrar| (registrar.by, registrar.over)) else {
            return;
        };
        let wanted = if over { BTreeSet::new() } else { self.wanted_at(id, by, at.low) };
        let Some(registrar) = self.client.registrars.get_mut(&id) else { return };
        if registrar.untold.is_none() {
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
                let of_community = registrar.by == RendezvousBy::Community;
                self.pin_registrars(at);
                at.base.stop_timer(Timer::Keepalive(id));
                at.low.flow_mut().idle_later(at.now, id, at.base);
                self.timers.set(Due::Registration(id), at.now + REFUSED);
                if of_community {
                    // The next one of the community comes in its place.
                    self.meet_later(at.now, at.base);
                }
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
        let registrar = self.client.registrars.get_mut(&id).filter(|registrar| !registrar.over)?;
        if number > registrar.heard {
            registrar.heard = number;
            for (tag, endpoint) in found {
                if let Some(peer) = self.client.by_tag.get(tag).copied() {
                    self.find(peer, *endpoint, Informant::Rendezvous(id), at);
                }
            }
        }
        Some(Message::WhereaboutsSeen { number })
    }

    /// Somebody says where a peer is.
    pub(super) fn find(&mut self, id: PeerId, endpoint: SocketAddr, by: Informant, at: &mut At<'_>) {
        let own = at.base.attachments().has(&endpoint.ip());
        let address = endpoint.ip();
        if own || address.is_unspecified() || address.is_multicast() || address.is_loopback() || endpoint.port() == 0 {
            return;
        }
        let token = at.base.random().u64();
        let fresh = Found { endpoint, token, tries: 0, reported: false, budget: Bucket::of(BUDGET, BUDGET_PAUSE) };
        // What one says does not displace what another has said (P-216).
        let found = self.client.found.entry((id, by)).or_insert(fresh);
        if found.endpoint != endpoint {
            (found.endpoint, found.token, found.reported) = (endpoint, token, false);
        }
        found.tries = 0;
        self.try_found(id, by, at);
    }

    /// This host has moved: a peer that it does not find where it was may be where a rendezvous said, and a name server
    /// that could not be asked before can be.
    pub(crate) fn try_found_again(&mut self, id: PeerId, at: &At<'_>) {
        self.forget_named(id, at);
        for ((_, by), found) in self.client.found.iter_mut().filter(|((peer, _), _)| *peer == id) {
            found.tries = 0;
            self.timers.set(Due::Found(id, *by), at.now);
        }
        if let Some(tries) = self.client.sought.get_mut(&id) {
            *tries = 0;
            self.timers.set(Due::Name(id), at.now);
        }
    }

    /// Sends something to where a peer is said to be: an update of ours that it does not know, or else a check, which
    /// opens the NAT before us for what it sends (P-58).
    pub(super) fn try_found(&mut self, id: PeerId, by: Informant, at: &mut At<'_>) {
        let Some(found) = self.client.found.get_mut(&(id, by)) else { return };
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
            self.timers.set(Due::Found(id, by), at.now + BUDGET_PAUSE);
            return;
        }
        found.tries += 1;
        let tries = found.tries;
        let again = match tries.checked_sub(CLOSE_TRIES) {
            None => peer.path().repeat_after(tries),
            Some(beyond) => (TRY_PAUSE * 2u32.pow(beyond.min(5))).min(TRY_PAUSE_LONGEST),
        };
        let (source, session) = (peer.path().source(), peer.has_session());
        // What several say is tried on account of one, as long as that may go on.
        for ((_, by), _) in self.client.found.iter().filter(|((of, _), found)| *of == id && found.endpoint == endpoint)
        {
            self.timers.set(Due::Found(id, *by), at.now + again);
        }
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
        if self.client.found.is_empty() {
            return;
        }
        let elsewhere = at.low.path().paths(&id).is_some_and(|paths| paths.remote() != arrival.source);
        let said = |((peer, _), found): &(&(PeerId, Informant), &mut Found)| {
            *peer == id && found.endpoint == arrival.source && !found.reported
        };
        let mut first = None;
        for ((_, by), found) in self.client.found.iter_mut().filter(|entry| elsewhere && said(entry)) {
            // It was said truly, so there may be more of it.
            (found.reported, found.budget) = (true, Bucket::of(BUDGET, BUDGET_PAUSE));
            first = first.or(Some(*by));
        }
        let (remote, Some(by)) = (arrival.source, first) else { return };
        let rendezvous = match by {
            Informant::Rendezvous(id) => Some(id),
            Informant::Name(_) => None,
        };
        at.base.event(Event::PeerFound { peer: id, remote, rendezvous });
    }

    /// An answer to a challenge that went to where a peer was said to be: it is there. Tells whether it was one.
    pub(crate) fn prove_found(&mut self, id: PeerId, token: u64, low: &mut BindingLayer) -> bool {
        let mut all = self.client.found.iter().filter(|((peer, _), _)| *peer == id);
        let Some(((_, by), found)) = all.find(|(_, found)| found.token == token) else { return false };
        if let Some(paths) = low.path_mut().paths_mut(&id) {
            paths.find_at(found.endpoint);
        }
        self.timers.stop(Due::Found(id, *by));
        true
    }

    /// The rendezvous that `rendezvous` names and that serve this host.
    pub(super) fn configured_registrars(&self) -> Vec<PeerId> {
        let configured = |id: &PeerId| self.client.registrars.get(id).map(|of| of.by) == Some(RendezvousBy::Configured);
        self.registrars().into_iter().filter(configured).collect()
    }

    /// The rendezvous that serve this host.
    pub(crate) fn registrars(&self) -> Vec<PeerId> {
        let serves = |(_, registrar): &(&PeerId, &Registrar)| {
            registrar.standing != RegistrationStanding::Refused && !registrar.over
        };
        self.client.registrars.iter().filter(serves).map(|(id, _)| *id).collect()
    }

    /// See [`Node::rendezvous`](crate::Node::rendezvous).
    pub(crate) fn rendezvous(&self, low: &BindingLayer, base: &Base) -> Vec<RendezvousView> {
        let standing = |id: Option<PeerId>| {
            if self.client.tags.is_empty() {
                return RendezvousStanding::Unneeded;
            }
            let Some(id) = id else { return RendezvousStanding::Unanswered };
            let Some(registrar) = self.client.registrars.get(&id) else { return RendezvousStanding::Unanswered };
            let silent = low.flow().peer(&id).is_none_or(|peer| !peer.has_session() || peer.path.check_tries() > 2);
            let peers = registrar.told.len();
            match registrar.standing {
                RegistrationStanding::Refused => RendezvousStanding::Refused,
                _ if silent => RendezvousStanding::Unanswered,
                // It is asked for nobody, as where the one peer that there is to be met is that host itself.
                RegistrationStanding::Unanswered if registrar.untold.is_none() => RendezvousStanding::Unneeded,
                RegistrationStanding::Unanswered => RendezvousStanding::Unanswered,
                RegistrationStanding::Accepted => RendezvousStanding::Registered { peers },
                RegistrationStanding::Full => RendezvousStanding::Full { peers },
            }
        };
        let by_address = self.addresses(base).map(|(address, by)| {
            let id = match low.session().contacts().get(&address) {
                Some(Contact::Known(id)) => Some(id),
                _ => None,
            };
            RendezvousView { address, by, standing: standing(id) }
        });
        let present = |of: &Registrar| of.by == RendezvousBy::Community && !of.over;
        let of_community = self.client.registrars.iter().filter(|(_, of)| present(of));
        let of_community = of_community.filter_map(|(id, of)| {
            let address = low.path().paths(id)?.remote().ip();
            Some(RendezvousView { address, by: of.by, standing: standing(Some(*id)) })
        });
        by_address.chain(of_community).collect()
    }
}

/// Whether a peer is of the community.
fn is_member(id: PeerId, low: &BindingLayer) -> bool {
    low.session().key_of(id).is_some_and(|key| low.session().pins().is_member(&key))
}

/// Whether a host offers itself as a rendezvous, where there is a session with it.
fn offers(id: PeerId, low: &BindingLayer) -> Option<bool> {
    let session = low.session().peer(&id).and_then(Peer::confirmed)?;
    Some(session.capabilities().contains(Capabilities::RENDEZVOUS))
}

impl Registrar {
    fn new(by: RendezvousBy) -> Self {
        Self {
            by,
            told: BTreeSet::new(),
            afresh: true,
            number: 0,
            untold: None,
            tries: 0,
            corrected: false,
            standing: RegistrationStanding::Unanswered,
            heard: 0,
            over: false,
        }
    }
}
