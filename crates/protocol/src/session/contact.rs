//! First contact and handshakes: who is asked whether it runs Whimbrel, how often, and what comes of it.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{
    Contact as Knowledge, CookieChecker, Error as HandshakeError, Finished, Incoming, Initiator, Local, PublicKey,
};
use whimbrel_wire::datagram::Kind;
use whimbrel_wire::message::Message;
use whimbrel_wire::{Capabilities, Datagram, FlowTuple};

use crate::Time;
use crate::base::bucket::Bucket;
use crate::base::config::{Config, Trust};
use crate::base::event::Event;
use crate::base::op::{PeerId, TunnelOp};
use crate::base::output::{Asked, State, Transmit};
use crate::base::random::Random;
use crate::base::timer::Timer;
use crate::node::Node;
use crate::role::gateway::attached;
use crate::session::peer::{Met, Peer, SessionSlot};

mod hello;
mod otherwise;
mod questions;
mod responding;
mod trust;

use questions::Questions;
use responding::Responding;

/// Pauses after each try (P-10).
const PAUSES: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(3)];
/// How long a question waits before it is looked again whether it may be asked.
const TURN: Duration = Duration::from_millis(500);
/// Silence after an address did not answer, at first and at the longest (P-10).
pub(crate) const SILENCE: Duration = Duration::from_secs(600);
pub(crate) const SILENCE_LONGEST: Duration = Duration::from_secs(86_400);
/// How long an answer to an initiation is waited for.
const PENDING: Duration = Duration::from_secs(10);
/// How long the peer's first datagram in a session is waited for before another handshake.
const UNCONFIRMED: Duration = Duration::from_secs(1);
/// Of so many handshakes with a known peer that nothing comes of, one is a first contact.
const FRESH_EVERY: u32 = 3;
/// Tries to reach a peer that no introduced flow depends on.
const REACHES: u32 = 8;
/// The first byte of an initiation (§1).
const INITIATION: u8 = Kind::Initiation as u8;
/// So many times more handshakes are answered in all than without asking for a cookie.
const PROVEN_SHARE: u32 = 10;
/// How long a former session is still received from (P-7).
const FORMER_SESSION: Duration = Duration::from_secs(30);
/// How long a session waits to be confirmed: what confirms it may have been kept back until it does harm.
const UNSETTLED: Duration = Duration::from_secs(60);
/// Sessions of one peer that wait to be confirmed at the most.
const UNSETTLED_MOST: usize = 4;
/// Peers without flows that are kept at the most.
const IDLE_PEERS_MOST: usize = 4096;
/// So many of these are forgotten at a time: to find who goes takes a look at all, which no stranger's handshake is
/// worth.
const IDLE_PEERS_FORGOTTEN: usize = 64;
/// For so long nobody is worth less for not having shown that it holds the session's keys: its first word takes a round
/// trip.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Contact {
    /// It was asked `tries` times.
    Asking { tries: usize, source: Option<IpAddr> },
    /// A peer answered.
    Known(PeerId),
    /// It runs nothing, as far as we know; it is asked again after `pause`, at the earliest.
    Silent { pause: Duration, until: Time },
}

/// What is known of whether an address runs Whimbrel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A peer answered there.
    Known,
    /// It is being asked.
    Asking,
    /// It was asked in vain, and is left alone until then (P-10).
    Silent {
        /// When it may be asked again.
        until: Time,
    },
    /// The configuration keeps this host from asking.
    Barred,
    /// It was not asked, or long ago.
    Unasked,
}

/// What a handshake is for.
enum Purpose {
    /// To find out who lives at an address.
    Address(IpAddr),
    /// To have a new session with the peer of this key.
    Peer(PublicKey),
    /// To use a code there.
    Join,
    /// The other end knows.
    Theirs,
}

struct Pending {
    initiator: Initiator,
    to: SocketAddr,
    source: Option<IpAddr>,
    purpose: Purpose,
    started: Time,
}

/// Addresses that were or are asked, and handshakes under way.
pub(crate) struct Contacts {
    pub(crate) addresses: HashMap<IpAddr, Contact>,
    /// The pause before the question that is being asked again.
    pauses: HashMap<IpAddr, Duration>,
    /// Flows that wait for their remote address to answer.
    waiting: HashMap<IpAddr, BTreeSet<FlowTuple>>,
    pending: HashMap<u32, Pending>,
    responding: Responding,
    cookies: CookieChecker,
    /// Handshakes that are answered without a cookie, and with one (P-3).
    unproven: Bucket,
    proven: Bucket,
    /// Questions to addresses of which nothing is known (P-10).
    questions: Questions,
    /// Refused handshakes that are told.
    refusals: Bucket,
    /// Peers that may become known before it is looked whether there is room for more.
    room: usize,
}

impl Contacts {
    pub(crate) fn new(public: PublicKey, random: &mut Random, config: &Config) -> Self {
        let handshakes_per_second = config.handshakes_per_second;
        Self {
            addresses: HashMap::new(),
            pauses: HashMap::new(),
            waiting: HashMap::new(),
            pending: HashMap::new(),
            responding: Responding::default(),
            cookies: CookieChecker::new(public, &mut |bytes| random.fill(bytes)),
            unproven: Bucket::new(handshakes_per_second),
            proven: Bucket::new(handshakes_per_second.saturating_mul(PROVEN_SHARE)),
            questions: Questions::new(config.questions_per_second),
            refusals: Bucket::new(1),
            room: IDLE_PEERS_MOST,
        }
    }

    pub(crate) fn forget_peer(&mut self, id: PeerId) {
        self.addresses.retain(|_, contact| !matches!(contact, Contact::Known(known) if *known == id));
    }

    /// Entries of all tables together.
    pub(crate) fn entries(&self) -> usize {
        let waiting: usize = self.waiting.values().map(|flows| 1 + flows.len()).sum();
        self.addresses.len() + self.pauses.len() + waiting + self.pending.len() + self.responding.len()
    }

    /// The addresses at which a peer answered.
    fn addresses_of(&self, id: PeerId) -> Vec<IpAddr> {
        let known = |contact: &Contact| matches!(contact, Contact::Known(known) if *known == id);
        self.addresses.iter().filter(|(_, contact)| known(contact)).map(|(address, _)| *address).collect()
    }

    /// A flow that waits for its remote address to answer is gone.
    pub(crate) fn forget_waiting(&mut self, flow: &FlowTuple) {
        let address = flow.remote.ip();
        if let Some(flows) = self.waiting.get_mut(&address) {
            flows.remove(flow);
            if flows.is_empty() {
                self.waiting.remove(&address);
            }
        }
    }

    /// Whether this peer lives at an address.
    pub(crate) fn is_known(&self, address: IpAddr, id: PeerId) -> bool {
        matches!(self.addresses.get(&address), Some(Contact::Known(known)) if *known == id)
    }
}

impl Node {
    /// A flow that this host opened is old enough: its remote address is asked, or the peer there is known.
    pub(crate) fn want_introduction(&mut self, now: Time, flow: FlowTuple) {
        if let Some(key) = self.flows.get(&flow).and_then(|known| known.referred) {
            self.introduce_elsewhere(now, flow, key);
            return;
        }
        let address = flow.remote.ip();
        match self.contacts.addresses.get(&address) {
            Some(Contact::Known(id)) if self.peers.contains_key(id) => {
                let id = *id;
                if !self.peers[&id].has_session() {
                    self.reach_again(now, id);
                }
                self.queue_introduction(now, id, flow);
            }
            Some(&contact @ (Contact::Asking { .. } | Contact::Silent { .. })) => {
                self.contacts.waiting.entry(address).or_default().insert(flow);
                if matches!(contact, Contact::Silent { until, .. } if until <= now) {
                    self.continue_contact(now, address);
                }
            }
            _ if !self.may_ask(address) => {}
            _ => {
                self.contacts.waiting.entry(address).or_default().insert(flow);
                let source = Some(flow.local.ip());
                self.contacts.addresses.insert(address, Contact::Asking { tries: 0, source });
                self.continue_contact(now, address);
            }
        }
    }

    pub(crate) fn may_ask(&self, address: IpAddr) -> bool {
        let pinned = self.config.trust == Trust::Pinned;
        self.config.ask.permits(address)
            && !self.is_behind(address)
            && (!pinned || self.config.known_keys.contains_key(&address))
    }

    /// What is known of whether an address runs Whimbrel.
    #[must_use]
    pub fn standing(&self, address: IpAddr) -> Standing {
        match self.contacts.addresses.get(&address) {
            Some(Contact::Known(_)) => Standing::Known,
            Some(Contact::Asking { .. }) => Standing::Asking,
            Some(Contact::Silent { until, .. }) => Standing::Silent { until: *until },
            None if !self.may_ask(address) => Standing::Barred,
            None => Standing::Unasked,
        }
    }

    /// Asks once more, or gives up; or the silence about an address is over.
    pub(crate) fn continue_contact(&mut self, now: Time, address: IpAddr) {
        match self.contacts.addresses.get(&address).copied() {
            Some(Contact::Asking { tries: 0, .. })
                if !self.contacts.waiting.contains_key(&address)
                    && !self.is_rendezvous(address)
                    && !self.opened.wants(address) =>
            {
                // Whoever wanted to know is gone before it was its turn.
                self.contacts.addresses.remove(&address);
            }
            Some(Contact::Asking { tries, source }) if tries < PAUSES.len() => {
                if !self.may_ask_now(now, address) {
                    self.timers.set(Timer::Contact(address), now + TURN);
                    return;
                }
                let known = self.config.known_keys.get(&address).copied();
                // The last try is a first contact in any case: it finds out whether somebody else lives there now.
                let last = tries + 1 == PAUSES.len();
                let knowledge = match known {
                    Some(key) if !last => Knowledge::Known(key),
                    _ => Knowledge::First,
                };
                self.contacts.addresses.insert(address, Contact::Asking { tries: tries + 1, source });
                self.timers.set(Timer::Contact(address), now + PAUSES[tries]);
                let to = SocketAddr::new(address, self.config.port);
                let source = source.filter(|source| self.attachments.contains_key(source));
                self.initiate(now, knowledge, to, source, Purpose::Address(address));
            }
            Some(Contact::Asking { .. }) => self.give_up(now, address),
            Some(Contact::Silent { pause, until }) if until <= now => {
                let mut waiting = self.contacts.waiting.remove(&address).unwrap_or_default();
                waiting.retain(|flow| self.flows.get(flow).is_some_and(|known| !known.closed));
                let source = waiting.first().map(|first| first.local.ip());
                if source.is_none() && !self.is_rendezvous(address) && !self.opened.wants(address) {
                    // Remembered as long again, so that the next silence is the longer one.
                    if until + pause <= now {
                        self.contacts.addresses.remove(&address);
                    } else {
                        self.timers.set(Timer::Contact(address), until + pause);
                    }
                    return;
                }
                if !waiting.is_empty() {
                    self.contacts.waiting.insert(address, waiting);
                }
                // Two tries less than at first contact.
                self.contacts.addresses.insert(address, Contact::Asking { tries: PAUSES.len() - 1, source });
                self.contacts.pauses.insert(address, pause);
                self.continue_contact(now, address);
            }
            Some(Contact::Silent { until, .. }) => self.timers.set(Timer::Contact(address), until),
            Some(Contact::Known(_)) | None => {}
        }
    }

    /// Nobody answered at an address.
    fn give_up(&mut self, now: Time, address: IpAddr) {
        let (first, longest) = self.silence(address);
        let pause = self.contacts.pauses.remove(&address).map_or(first, |last| (last * 2).min(longest));
        self.contacts.addresses.insert(address, Contact::Silent { pause, until: now + pause });
        self.timers.set(Timer::Contact(address), now + pause);
        self.output.event(Event::NobodyThere { address, again_in: pause });
    }

    /// An ICMP error says that nobody listens at `destination`. `quoted`: how the datagram that it is about begins. It
    /// counts only where that is an initiation of ours (P-10): both ports are known to everybody, its index is not.
    pub fn handle_unreachable(&mut self, now: Time, destination: SocketAddr, quoted: Option<[u8; 8]>) {
        let address = destination.ip();
        let index = match quoted {
            Some([INITIATION, _, _, _, index @ ..]) => u32::from_be_bytes(index),
            _ => return,
        };
        if self.contacts.pending.get(&index).is_none_or(|pending| pending.to != destination) {
            return;
        }
        match self.contacts.addresses.get(&address).copied() {
            Some(Contact::Asking { .. }) => self.give_up(now, address),
            Some(Contact::Known(id)) => {
                // It ran Whimbrel once.
                let lost = |peer: &Peer| peer.flows.is_empty() && !peer.has_session() && peer.remote == destination;
                if !self.keeps(id) && self.peers.get(&id).is_some_and(lost) {
                    self.lose(now, id);
                }
            }
            Some(Contact::Silent { .. }) | None => {}
        }
    }

    /// A peer on which no connection depends has stopped answering: its addresses are left alone (P-10).
    fn lose(&mut self, now: Time, id: PeerId) {
        self.abandon_introductions(now, id);
        let mut addresses = self.contacts.addresses_of(id);
        addresses.sort_unstable();
        self.drop_peer(id);
        for address in addresses {
            self.give_up(now, address);
        }
    }

    /// Begins a handshake with a peer that is known, beside whatever session is there.
    pub(crate) fn start_handshake_with(&mut self, now: Time, id: PeerId) {
        if let Some(peer) = self.peers.get(&id) {
            self.start_handshake_at(now, id, peer.remote);
        }
    }

    /// The same, at an address that may be another of the peer's.
    pub(crate) fn start_handshake_at(&mut self, now: Time, id: PeerId, to: SocketAddr) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (key, source) = (peer.key, peer.source);
        peer.handshakes += 1;
        // A first contact is not refused for its timestamp, as P-9 demands where our clock was set back.
        let knowledge =
            if peer.handshakes.is_multiple_of(FRESH_EVERY) { Knowledge::First } else { Knowledge::Known(key) };
        self.initiate(now, knowledge, to, source, Purpose::Peer(key));
    }

    /// Makes sure that there will be a session with a peer, and goes on trying.
    ///
    /// Nothing is hurried that goes on already: every connection to a host that stopped running Whimbrel comes by here.
    pub(crate) fn reach_again(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else { return };
        let pause = if peer.reach_tries == 0 { Duration::ZERO } else { reach_pause(peer.reach_tries) };
        self.timers.set_earlier(Timer::Reach(id), now + pause);
    }

    pub(crate) fn continue_reaching(&mut self, now: Time, id: PeerId) {
        let (keeps, needed) = (self.keeps(id) || self.is_left(id), self.moves_with(id));
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // Whom nothing is heard of is looked for (P-45), and who said that it goes is not.
        let wanted = keeps || !peer.flows.is_empty() && peer.away.is_none();
        if peer.has_session() || peer.update.is_some() || (peer.introductions.active.is_empty() && !wanted) {
            return;
        }
        peer.reach_tries += 1;
        let tries = peer.reach_tries;
        if peer.flows.is_empty() && tries > REACHES && !needed {
            // No connection depends on it.
            self.lose(now, id);
            return;
        }
        if self.suspended && tries > REACHES {
            // It is reached when this host is back.
            return;
        }
        self.timers.set(Timer::Reach(id), now + reach_pause(tries));
        self.tell_silence(id, tries);
        self.start_handshake_with(now, id);
    }

    /// Tells why a handshake came to nothing, where this end alone knows and somebody can mend it (P-29).
    fn tell_refusal(&mut self, now: Time, remote: SocketAddr, error: &HandshakeError) {
        let reason = match error {
            HandshakeError::PskMissing => "it uses a pre-shared key, and this host has none",
            HandshakeError::PskExpected => "it uses no pre-shared key, and this host demands one",
            HandshakeError::NotAuthentic if self.config.psk.is_some() => "it seems to have another pre-shared key",
            _ => return,
        };
        if self.contacts.refusals.take(now) {
            self.output.event(Event::HandshakeRefused { remote, reason });
        }
    }

    fn initiate(&mut self, now: Time, knowledge: Knowledge, to: SocketAddr, source: Option<IpAddr>, purpose: Purpose) {
        let index = self.free_index();
        let hello = self.hello(now, source);
        let local = Local { key: &self.key, psk: self.config.psk.as_deref() };
        let random = &mut self.random;
        let started = Initiator::start(knowledge, local, index, hello, &mut |bytes| random.fill(bytes));
        let Ok((initiator, payload)) = started else { return };
        self.contacts.pending.insert(index, Pending { initiator, to, source, purpose, started: now });
        self.sweep_later(now);
        self.output.transmit(Transmit { source, destination: to, payload });
    }

    fn free_index(&mut self) -> u32 {
        loop {
            let index = self.random.u32();
            let taken = self.by_index.contains_key(&index)
                || self.contacts.pending.contains_key(&index)
                || self.contacts.responding.has(index);
            if !taken {
                return index;
            }
        }
    }

    pub(crate) fn handle_handshake(
        &mut self,
        now: Time,
        source: SocketAddr,
        destination: Option<IpAddr>,
        datagram: &Datagram<'_>,
    ) {
        match datagram {
            Datagram::Initiation(initiation) => self.handle_initiation(now, source, destination, initiation),
            Datagram::Response(response) => {
                let Some(pending) = self.contacts.pending.remove(&response.receiver) else {
                    self.drop_datagram();
                    return;
                };
                let Pending { initiator, to, source: from, purpose, started } = pending;
                match initiator.handle_response(response, now.as_micros()) {
                    Ok(finished) => {
                        // It is where it was asked, whatever address its answer names: that one has proven nothing.
                        let established =
                            Established { source: to, destination: destination.or(from), started, purpose };
                        self.establish(now, finished, &established);
                    }
                    Err(rejected) => {
                        self.drop_datagram();
                        self.tell_refusal(now, to, &rejected.error);
                        let pending = Pending { initiator: rejected.state, to, source: from, purpose, started };
                        self.contacts.pending.insert(response.receiver, pending);
                    }
                }
            }
            Datagram::Finish(finish) => {
                let Some((responder, since, to)) = self.contacts.responding.remove(finish.receiver) else {
                    self.drop_datagram();
                    return;
                };
                match responder.handle_finish(finish, now.as_micros()) {
                    Ok(finished) => {
                        let purpose = Purpose::Theirs;
                        // It is where it was answered, wherever its last word comes from: that one has proven nothing.
                        let established = Established { source: to, destination, started: since, purpose };
                        self.establish(now, finished, &established);
                    }
                    Err(rejected) => {
                        self.drop_datagram();
                        self.tell_refusal(now, source, &rejected.error);
                        self.contacts.responding.insert(finish.receiver, rejected.state, since, to);
                    }
                }
            }
            Datagram::Cookie(reply) => {
                let Some(pending) = self.contacts.pending.get_mut(&reply.receiver) else {
                    self.drop_datagram();
                    return;
                };
                let (to, from) = (pending.to, pending.source);
                match pending.initiator.handle_cookie(reply) {
                    Ok(payload) => self.output.transmit(Transmit { source: from, destination: to, payload }),
                    Err(_) => self.drop_datagram(),
                }
            }
            _ => self.drop_datagram(),
        }
    }

    fn handle_initiation(
        &mut self,
        now: Time,
        source: SocketAddr,
        destination: Option<IpAddr>,
        initiation: &whimbrel_wire::datagram::Initiation<'_>,
    ) {
        // P-3
        let loaded = !self.contacts.unproven.take(now) || self.contacts.responding.is_full();
        if loaded {
            let random = &mut self.random;
            let cookies = &self.contacts.cookies;
            if !cookies.check(initiation, source, now.as_micros()) {
                let payload = cookies.reply(initiation, source, now.as_micros(), &mut |bytes| random.fill(bytes));
                self.output.transmit(Transmit { source: destination, destination: source, payload: payload.to_vec() });
                return;
            }
            if !self.contacts.proven.take(now) {
                self.drop_datagram();
                return;
            }
        }
        let index = self.free_index();
        let hello = self.hello(now, destination);
        let local = Local { key: &self.key, psk: self.config.psk.as_deref() };
        let random = &mut self.random;
        let incoming = match Incoming::read(initiation, local, &mut |bytes| random.fill(bytes)) {
            Ok(incoming) => incoming,
            Err(error) => {
                self.drop_datagram();
                // Else it may be anything: made for another key, or no handshake at all.
                if matches!(error, HandshakeError::PskMissing | HandshakeError::PskExpected) {
                    self.tell_refusal(now, source, &error);
                }
                return;
            }
        };
        match incoming {
            Incoming::First(xx) => {
                let Ok((responder, payload)) = xx.respond(index, hello) else {
                    self.drop_datagram();
                    return;
                };
                self.contacts.responding.insert(index, responder, now, source);
                self.sweep_later(now);
                self.output.transmit(Transmit { source: destination, destination: source, payload });
            }
            Incoming::Known(ik) => {
                // P-9
                let (remote, timestamp) = (ik.remote(), ik.hello().timestamp);
                let known = self.by_key.get(&remote).and_then(|id| self.peers.get(id));
                if known.is_some_and(|peer| timestamp <= peer.newest_initiation) || !self.trusts(now, &remote) {
                    self.drop_datagram();
                    return;
                }
                let Ok(finished) = ik.respond(index, hello, now.as_micros()) else {
                    self.drop_datagram();
                    return;
                };
                let established = Established { source, destination, started: now, purpose: Purpose::Theirs };
                self.establish(now, finished, &established);
            }
        }
    }

    /// A handshake ended well: the session begins.
    fn establish(&mut self, now: Time, finished: Finished, how: &Established) {
        let Finished { session, remote: key, hello, answer } = finished;
        if let Purpose::Address(address) = how.purpose {
            let expected = self.config.known_keys.get(&address).copied();
            if let Some(expected) = expected.filter(|expected| *expected != key) {
                self.timers.stop(Timer::Contact(address));
                self.output.event(Event::KeyMismatch { address, expected, found: Some(key) });
                self.give_up(now, address);
                return;
            }
        }
        if let Purpose::Peer(expected) = how.purpose
            && expected != key
        {
            self.drop_datagram();
            // Where only named keys count, any other says something only at an address that one is named for.
            let at = how.source.ip();
            if self.trusts(now, &key) || self.config.known_keys.contains_key(&at) {
                self.find_another(now, expected, key, at);
            }
            return;
        }
        if key == self.key.public() || !self.trusts(now, &key) {
            self.drop_datagram();
            return;
        }
        let known = self.by_key.get(&key).copied();
        if known.is_none() {
            self.make_room(now);
        }
        let id = known.unwrap_or_else(|| self.new_peer(now, key, how.source));
        if matches!(how.purpose, Purpose::Join) {
            self.note_joined_peer(id, how.source);
        }
        let attachment = how.destination.and_then(|address| self.attachment_at(address));
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let reached = !peer.has_session();
        let life = hello.life;
        let idle = peer.flows.is_empty() && peer.update.is_none();
        let claimed = SocketAddr::new(hello::claimed(&hello.locators, how.source.ip()), self.config.port);
        if known.is_none() || (idle && session.is_confirmed()) {
            peer.candidate = None;
            peer.remote = how.source;
            if peer.source != how.destination {
                // How another address of ours is seen says nothing of this one.
                peer.observed = None;
            }
            peer.source = how.destination;
            peer.attachment = attachment;
            peer.meet_at(claimed, how.source);
        } else if peer.attachment.is_none() && how.destination == peer.source {
            peer.attachment = attachment;
        }
        peer.locators = hello.locators.into_iter().filter(|locator| !locator.is_unspecified()).collect();
        if known.is_some() && peer.sequence_sent > 0 {
            // It may have started anew and not know where we are.
            peer.unannounced = true;
        }
        if hello.timestamp != 0 && !session.is_initiator() {
            peer.newest_initiation = peer.newest_initiation.max(hello.timestamp);
        }
        let index = session.local_index();
        let initiated = session.is_initiator();
        let confirmed = session.is_confirmed();
        let keys = session.tunnel_keys().clone();
        // One key may ask again and again without ever showing that it holds the session's keys.
        let unsettled = peer.sessions.iter().filter(|slot| !slot.settled).count();
        let surplus =
            if unsettled >= UNSETTLED_MOST { peer.sessions.iter().position(|slot| !slot.settled) } else { None };
        let surplus = surplus.map(|at| peer.sessions.remove(at).session.local_index());
        let origin = Some(Met { remote: how.source, destination: how.destination, claimed });
        let aes = self.config.prefer_aes && hello.capabilities.contains(Capabilities::TUNNEL_AES);
        let (until, begun, capabilities) = (Some(now + UNSETTLED), how.started, hello.capabilities);
        peer.sessions.push(SessionSlot { session, settled: false, until, begun, origin, aes, life, capabilities });
        peer.last_heard = now;
        if let Some(receive_index) = surplus {
            self.by_index.remove(&receive_index);
            self.output.ask(TunnelOp::RemoveKeys { receive_index }, Asked::Effect("dropping tunnel keys"));
        }
        self.by_index.insert(index, id);
        // The peer may introduce flows before its first word is read here: the programs read those, unless there are very many
        // sessions already that they look for.
        self.listen_in_new_session(now, id);
        let op = TunnelOp::AddKeys { peer: id, receive_index: index, keys, aes };
        self.output.ask(op, Asked::State("adding tunnel keys", State::Keys(id)));
        if let Some(payload) = answer {
            // XX's finish is repeated by asking again; the question is the same until the session is confirmed.
            self.output.transmit(Transmit { source: how.destination, destination: how.source, payload });
        }
        if confirmed {
            self.confirm_session(now, id, index);
        }
        if initiated {
            // Confirms the session at the other end, measures the round trip and tells how we are seen.
            let token = self.random.u64();
            let locators = Message::Locators(self.attachments.keys().copied().collect());
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.check = Some((token, now));
                peer.checked = Some(how.source.ip());
                peer.telling = self.attachments.keys().copied().collect();
                if !peer.flows.is_empty() {
                    self.timers.set_earlier(Timer::Keepalive(id), now + peer.repeat_after(1));
                }
            }
            let mut plaintext = Vec::new();
            Message::PathChallenge { token }.encode(&mut plaintext);
            locators.encode(&mut plaintext);
            self.send_in(id, index, how.destination, how.source, &plaintext);
        }
        if let Purpose::Address(address) = how.purpose {
            self.contacts.addresses.insert(address, Contact::Known(id));
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.answers_at.insert(address);
            }
            self.contacts.pauses.remove(&address);
            self.timers.stop(Timer::Contact(address));
            self.meet_later(now);
            for flow in self.contacts.waiting.remove(&address).unwrap_or_default() {
                if self.is_introducible(&flow) {
                    self.queue_introduction(now, id, flow);
                }
            }
        }
        self.introduce_failed(now, id);
        self.sweep_later(now);
        // Until the peer has shown that it has the keys too, the last message of the handshake may have been lost.
        if self.peers.get(&id).is_some_and(|peer| !peer.has_session()) {
            self.timers.set(Timer::Reach(id), now + UNCONFIRMED);
        }
        self.renew_later(now, id);
        if self.peers.get(&id).is_some_and(|peer| !peer.introductions.active.is_empty()) {
            self.timers.set(Timer::Introductions(id), now);
        }
        if reached {
            self.output.event(Event::PeerReached { peer: id, key, remote: how.source, took: now.since(how.started) });
        }
    }

    /// Somebody becomes a peer. Where too many have no flows, those are forgotten that are worth least.
    fn make_room(&mut self, now: Time) {
        if self.contacts.room == 0 {
            // Those first that have not shown in time that they hold the keys.
            let worth = |peer: &Peer| {
                let counts = peer.has_session() || peer.last_heard + CONFIRMED_WITHIN > now;
                (counts, self.meetings.knows(peer.id), peer.last_heard, peer.id)
            };
            let mut idle: Vec<_> = self.peers.values().filter(|peer| self.is_idle(peer)).map(worth).collect();
            let surplus = (idle.len() + IDLE_PEERS_FORGOTTEN).saturating_sub(IDLE_PEERS_MOST);
            self.contacts.room = IDLE_PEERS_MOST.saturating_sub(idle.len()).max(IDLE_PEERS_FORGOTTEN);
            if surplus > 0 {
                idle.sort_unstable();
                for (.., id) in idle.into_iter().take(surplus) {
                    self.drop_peer(id);
                }
            }
        }
        self.contacts.room -= 1;
    }

    /// The peer has shown that it holds the keys of this session: it takes the place of the others (P-8).
    pub(crate) fn confirm_session(&mut self, now: Time, id: PeerId, index: u32) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(at) = peer.sessions.iter().position(|slot| slot.session.local_index() == index) else { return };
        if peer.sessions[at].settled {
            return;
        }
        let mut slot = peer.sessions.remove(at);
        (slot.settled, slot.until) = (true, None);
        let (life, begun) = (slot.life, slot.begun);
        peer.replaced = false;
        // It knows the keys, so it has received what was sent to where it asked from.
        peer.met = None;
        let origin = slot.origin.take();
        let proven = origin.map(|met| met.remote);
        origin.iter().for_each(|met| peer.shown.note(now, met.remote.ip()));
        let met = origin.filter(|met| met.remote != peer.remote);
        let shown = peer.unproven && met.is_none();
        peer.unproven &= !shown;
        if let Some(Met { remote, destination, claimed }) = met {
            if peer.flows.is_empty() && peer.update.is_none() {
                peer.candidate = None;
                peer.remote = remote;
                peer.meet_at(claimed, remote);
                if destination.is_some_and(|destination| peer.source != Some(destination)) {
                    peer.observed = None;
                }
                peer.source = destination.or(peer.source);
                let source = peer.source;
                let attachment = source.and_then(|source| attached(&self.attachments, &self.config.behind, source));
                peer.attachment = attachment;
            } else {
                peer.met = Some(remote);
            }
        }
        for former in &mut peer.sessions {
            if former.settled {
                former.until.get_or_insert(now + FORMER_SESSION);
            }
        }
        peer.sessions.push(slot);
        peer.reach_tries = 0;
        peer.handshakes = 0;
        self.timers.stop(Timer::Reach(id));
        // Before the tunnel is led by it: the peer may know of no chain any more.
        self.agree_on_chains_anew(now, id);
        self.set_tunnel_path(id);
        if shown {
            self.put_binding_in_force(now, id);
        }
        self.listen_in_new_session(now, id);
        self.sweep_later(now);
        if let Some(update) = self.peers.get_mut(&id).and_then(|peer| peer.update.as_mut()) {
            // The session was wanted for this.
            update.tries = 0;
            self.repeat_update(now, id);
        }
        self.announce_late(now, id);
        self.note_life(now, id, life, begun);
        self.note_sighting(now, id, proven);
        self.tell_waiting(now, id);
        self.register_anew(now, id);
        self.note_endpoint(now, id);
        self.note_move_session(now, id);
        self.note_community_session(now, id);
    }

    /// Drops what nobody answered. Tells whether more is under way.
    pub(crate) fn sweep_contacts(&mut self, now: Time) -> bool {
        self.contacts.pending.retain(|_, pending| pending.started + PENDING > now);
        self.contacts.responding.forget_older(PENDING, now);
        !self.contacts.pending.is_empty() || !self.contacts.responding.is_empty()
    }

    /// Asks all addresses that were silent as if for the first time: at once where a flow waits for one or it is a rendezvous,
    /// else when the next connection opens. How many questions a second there are stays limited (P-10).
    pub fn ask_again(&mut self, now: Time) {
        let silent =
            |(address, contact): (&IpAddr, &Contact)| matches!(contact, Contact::Silent { .. }).then_some(*address);
        let mut addresses: Vec<IpAddr> = self.contacts.addresses.iter().filter_map(silent).collect();
        addresses.sort_unstable();
        for address in addresses {
            self.contacts.addresses.remove(&address);
            self.contacts.pauses.remove(&address);
            self.timers.stop(Timer::Contact(address));
            for flow in self.contacts.waiting.remove(&address).unwrap_or_default() {
                if self.is_introducible(&flow) {
                    self.want_introduction(now, flow);
                }
            }
        }
        // No flow waits for a rendezvous.
        self.meet_later(now);
    }
}

/// The pause after this many tries to reach a peer again.
fn reach_pause(tries: u32) -> Duration {
    (Duration::from_millis(500) * 2u32.pow(tries.min(7))).min(Duration::from_secs(60))
}

/// How a handshake ended.
struct Established {
    source: SocketAddr,
    destination: Option<IpAddr>,
    started: Time,
    purpose: Purpose,
}
