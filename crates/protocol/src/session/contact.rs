//! First contact and handshakes: who is asked whether it runs Whimbrel, how often, and what comes of it.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{Contact as Knowledge, CookieChecker, PublicKey};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::datagram::Kind;

use crate::Time;
use crate::base::Base;
use crate::base::bucket::Bucket;
use crate::base::config::{Config, Trust};
use crate::base::event::Event;
use crate::base::op::PeerId;
use crate::base::random::Random;
use crate::base::timer::Timer;
use crate::session::SessionLayer;
use crate::session::contact::handshake::Purpose;
use crate::session::pins::{Held, Pin, Pins, Want};

pub(crate) mod handshake;
mod hello;
mod otherwise;
mod questions;
mod referred;
mod responding;
mod trust;

use handshake::Pending;
use questions::Questions;
use referred::Referred;
use responding::Responding;

/// Pauses after each try (P-10).
const PAUSES: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(3)];
/// How long a question waits before it is looked again whether it may be asked.
const TURN: Duration = Duration::from_millis(500);
/// Silence after an address did not answer, at first and at the longest (P-10).
const SILENCE: Duration = Duration::from_secs(600);
const SILENCE_LONGEST: Duration = Duration::from_secs(86_400);
/// How soon a rendezvous that did not answer is asked again, at first (P-57). Doubles, to what holds for other hosts at
/// first.
const UNANSWERED: Duration = Duration::from_secs(30);
/// How long an answer to an initiation is waited for.
const PENDING: Duration = Duration::from_secs(10);
/// How long the peer's first datagram in a session is waited for before another handshake.
const UNCONFIRMED: Duration = Duration::from_secs(1);
/// Of so many handshakes with a known peer that nothing comes of, one is a first contact.
const FRESH_EVERY: u32 = 3;
/// Tries to reach a peer that no introduced flow depends on.
const REACHES: u32 = 8;
/// The first byte of an initiation (§1).
pub(crate) const INITIATION: u8 = Kind::Initiation as u8;
/// So many times more handshakes are answered in all than without asking for a cookie.
const PROVEN_SHARE: u32 = 10;
/// Peers without flows that are kept at the most.
const IDLE_PEERS_MOST: usize = 4096;
/// So many of these are forgotten at a time: to find who goes takes a look at all, which no stranger's handshake is
/// worth.
const IDLE_PEERS_FORGOTTEN: usize = 64;
/// For so long nobody is worth less for not having shown that it holds the session's keys: its first word takes a round
/// trip.
pub(crate) const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);

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

/// Addresses that were or are asked, and handshakes under way.
pub(crate) struct Contacts {
    pub(crate) addresses: HashMap<IpAddr, Contact>,
    /// The pause before the question that is being asked again.
    pauses: HashMap<IpAddr, Duration>,
    /// Flows that wait for their remote address to answer, and who has opened them.
    waiting: HashMap<IpAddr, BTreeMap<FlowTuple, Option<u32>>>,
    /// What roles have written of hosts.
    pub(crate) pins: Pins,
    /// Hosts that a peer has named (P-87).
    referred: Referred,
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
    /// Whose key answers at an address: configured, or remembered.
    known_keys: HashMap<IpAddr, PublicKey>,
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
            pins: Pins::default(),
            referred: Referred::default(),
            pending: HashMap::new(),
            responding: Responding::default(),
            cookies: CookieChecker::new(public, &mut |bytes| random.fill(bytes)),
            unproven: Bucket::new(handshakes_per_second),
            proven: Bucket::new(handshakes_per_second.saturating_mul(PROVEN_SHARE)),
            questions: Questions::new(config.questions_per_second),
            refusals: Bucket::new(1),
            known_keys: config.known_keys.clone(),
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
    pub(crate) fn addresses_of(&self, id: PeerId) -> Vec<IpAddr> {
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

    /// A flow waits for an address to answer. `user`: who has opened it, where that is known.
    pub(crate) fn await_answer(&mut self, address: IpAddr, flow: FlowTuple, user: Option<u32>) {
        self.waiting.entry(address).or_default().insert(flow, user);
    }

    /// Takes the flows that wait for an address to answer.
    pub(crate) fn take_waiting(&mut self, address: IpAddr) -> Vec<FlowTuple> {
        self.waiting.remove(&address).unwrap_or_default().into_keys().collect()
    }

    /// The addresses that were silent.
    pub(crate) fn silent(&self) -> Vec<IpAddr> {
        let silent =
            |(address, contact): (&IpAddr, &Contact)| matches!(contact, Contact::Silent { .. }).then_some(*address);
        let mut addresses: Vec<IpAddr> = self.addresses.iter().filter_map(silent).collect();
        addresses.sort_unstable();
        addresses
    }

    /// The address that a handshake under way, of this index of ours, was begun with.
    pub(crate) fn asked_at(&self, index: u32) -> Option<SocketAddr> {
        self.pending.get(&index).map(|pending| pending.to)
    }

    /// Takes the room for one more peer. `None`: it is to be looked first whether there is any
    /// ([`Contacts::set_room`]).
    pub(crate) fn take_room(&mut self) -> Option<()> {
        self.room = self.room.checked_sub(1)?;
        Some(())
    }

    /// So many peers have no flows. Tells how many of them are to be forgotten.
    pub(crate) fn set_room(&mut self, idle: usize) -> usize {
        self.room = IDLE_PEERS_MOST.saturating_sub(idle).max(IDLE_PEERS_FORGOTTEN);
        (idle + IDLE_PEERS_FORGOTTEN).saturating_sub(IDLE_PEERS_MOST)
    }

    /// Whose key is to answer at an address.
    pub(crate) fn known_key(&self, address: &IpAddr) -> Option<PublicKey> {
        self.known_keys.get(address).copied()
    }

    /// Whether this peer lives at an address.
    pub(crate) fn is_known(&self, address: IpAddr, id: PeerId) -> bool {
        matches!(self.addresses.get(&address), Some(Contact::Known(known)) if *known == id)
    }
}

impl SessionLayer {
    pub(crate) fn may_ask(&self, address: IpAddr, base: &Base) -> bool {
        let pinned = base.config().trust == Trust::Pinned;
        base.config().ask.permits(address)
            && !base.attachments().is_behind(address)
            && (!pinned || self.contacts.known_keys.contains_key(&address))
    }

    /// See [`Node::standing`](crate::Node::standing).
    pub(crate) fn standing(&self, address: IpAddr, base: &Base) -> Standing {
        match self.contacts.addresses.get(&address) {
            Some(Contact::Known(_)) => Standing::Known,
            Some(Contact::Asking { .. }) => Standing::Asking,
            Some(Contact::Silent { until, .. }) => Standing::Silent { until: *until },
            None if !self.may_ask(address, base) => Standing::Barred,
            None => Standing::Unasked,
        }
    }

    /// Asks once more, or gives up; or the silence about an address is over.
    pub(crate) fn continue_contact(&mut self, now: Time, address: IpAddr, base: &mut Base) {
        match self.contacts.addresses.get(&address).copied() {
            Some(Contact::Asking { tries: 0, .. })
                if !self.contacts.waiting.contains_key(&address) && !self.contacts.pins.is_wanted(address) =>
            {
                // Whoever wanted to know is gone before it was its turn.
                self.contacts.addresses.remove(&address);
            }
            Some(Contact::Asking { tries, source }) if tries < PAUSES.len() => {
                if !self.may_ask_now(now, address) {
                    base.set_timer(Timer::Contact(address), now + TURN);
                    return;
                }
                let known = self.contacts.known_key(&address);
                // The last try is a first contact in any case: it finds out whether somebody else lives there now.
                let last = tries + 1 == PAUSES.len();
                let knowledge = match known {
                    Some(key) if !last => Knowledge::Known(key),
                    _ => Knowledge::First,
                };
                self.contacts.addresses.insert(address, Contact::Asking { tries: tries + 1, source });
                base.set_timer(Timer::Contact(address), now + PAUSES[tries]);
                let to = SocketAddr::new(address, base.config().port);
                let source = source.filter(|source| base.attachments().has(source));
                self.initiate(now, knowledge, to, source, Purpose::Address(address), base);
            }
            Some(Contact::Asking { .. }) => self.give_up(now, address, base),
            Some(Contact::Silent { pause, until }) if until <= now => {
                let waiting = self.contacts.waiting.remove(&address).unwrap_or_default();
                let source = waiting.keys().next().map(|first| first.local.ip());
                if source.is_none() && !self.contacts.pins.is_wanted(address) {
                    // Remembered as long again, so that the next silence is the longer one.
                    if until + pause <= now {
                        self.contacts.addresses.remove(&address);
                    } else {
                        base.set_timer(Timer::Contact(address), until + pause);
                    }
                    return;
                }
                if !waiting.is_empty() {
                    self.contacts.waiting.insert(address, waiting);
                }
                // Two tries less than at first contact.
                self.contacts.addresses.insert(address, Contact::Asking { tries: PAUSES.len() - 1, source });
                self.contacts.pauses.insert(address, pause);
                self.continue_contact(now, address, base);
            }
            Some(Contact::Silent { until, .. }) => base.set_timer(Timer::Contact(address), until),
            Some(Contact::Known(_)) | None => {}
        }
    }

    /// Nobody answered at an address.
    pub(crate) fn give_up(&mut self, now: Time, address: IpAddr, base: &mut Base) {
        let asked_sooner = self.contacts.pins.wants(Want::Rendezvous, address);
        let (first, longest) = if asked_sooner { (UNANSWERED, SILENCE) } else { (SILENCE, SILENCE_LONGEST) };
        let pause = self.contacts.pauses.remove(&address).map_or(first, |last| (last * 2).min(longest));
        self.contacts.addresses.insert(address, Contact::Silent { pause, until: now + pause });
        base.set_timer(Timer::Contact(address), now + pause);
        base.event(Event::NobodyThere { address, again_in: pause });
    }

    /// Begins a handshake with a peer that is known, beside whatever session is there, at an address that may be its.
    pub(crate) fn start_handshake(
        &mut self,
        now: Time,
        id: PeerId,
        to: SocketAddr,
        source: Option<IpAddr>,
        base: &mut Base,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let key = peer.key;
        peer.handshakes += 1;
        // A first contact is not refused for its timestamp, as P-9 demands where our clock was set back.
        let knowledge =
            if peer.handshakes.is_multiple_of(FRESH_EVERY) { Knowledge::First } else { Knowledge::Known(key) };
        self.initiate(now, knowledge, to, source, Purpose::Peer(key), base);
    }

    /// Makes sure that there will be a session with a peer, and goes on trying.
    ///
    /// Nothing is hurried that goes on already: every connection to a host that stopped running Whimbrel comes by here.
    pub(crate) fn reach_again(&mut self, now: Time, id: PeerId, base: &mut Base) {
        let Some(peer) = self.peers.get(&id) else { return };
        let pause = if peer.reach_tries == 0 { Duration::ZERO } else { reach_pause(peer.reach_tries) };
        base.set_timer_earlier(Timer::Reach(id), now + pause);
    }

    /// Whether a peer is to be tried again, by another handshake.
    pub(crate) fn continue_reaching(&mut self, now: Time, id: PeerId, held: Held, base: &mut Base) -> Reach {
        let Some(peer) = self.peers.get_mut(&id) else { return Reach::Unneeded };
        let pins = &self.contacts.pins;
        let (keeps, needed) = (pins.keeps(&peer.key) || pins.has(Pin::Sought, &peer.key), pins.needs(&peer.key));
        // Whom nothing is heard of is looked for (P-45), and who said that it goes is not.
        let wanted = keeps || held.flows && !held.away;
        if peer.has_session() || held.updating || (!held.introductions && !wanted) {
            return Reach::Unneeded;
        }
        peer.reach_tries += 1;
        let tries = peer.reach_tries;
        if !held.flows && tries > REACHES && !needed {
            // No connection depends on it.
            return Reach::Lost;
        }
        if base.is_suspended() && tries > REACHES {
            // It is reached when this host is back.
            return Reach::Unneeded;
        }
        base.set_timer(Timer::Reach(id), now + reach_pause(tries));
        Reach::Tried(tries)
    }

    /// A peer answers at an address that was asked: the flows that wait for that.
    pub(crate) fn find_at(&mut self, id: PeerId, address: IpAddr, base: &mut Base) -> Vec<FlowTuple> {
        self.contacts.addresses.insert(address, Contact::Known(id));
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.answers_at.insert(address);
        }
        self.contacts.pauses.remove(&address);
        base.stop_timer(Timer::Contact(address));
        self.contacts.take_waiting(address)
    }

    /// Until the peer has shown that it has the keys too, the last message of the handshake may have been lost.
    pub(crate) fn await_confirmation(&mut self, now: Time, id: PeerId, base: &mut Base) {
        base.sweep_later(now);
        if self.peers.get(&id).is_some_and(|peer| !peer.has_session()) {
            base.set_timer(Timer::Reach(id), now + UNCONFIRMED);
        }
        self.renew_later(now, id, base);
    }

    /// Nothing is known of an address any more: it is asked as if for the first time.
    pub(crate) fn forget_contact(&mut self, address: IpAddr, base: &mut Base) {
        self.contacts.addresses.remove(&address);
        self.contacts.pauses.remove(&address);
        base.stop_timer(Timer::Contact(address));
    }

    /// Drops what nobody answered. Tells whether more is under way.
    pub(crate) fn sweep_contacts(&mut self, now: Time) -> bool {
        self.contacts.pending.retain(|_, pending| pending.started + PENDING > now);
        self.contacts.responding.forget_older(PENDING, now);
        !self.contacts.pending.is_empty() || !self.contacts.responding.is_empty()
    }
}

/// The pause after this many tries to reach a peer again.
fn reach_pause(tries: u32) -> Duration {
    (Duration::from_millis(500) * 2u32.pow(tries.min(7))).min(Duration::from_secs(60))
}

/// What comes of another try to reach a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    Unneeded,
    /// It is tried so often with this time.
    Tried(u32),
    /// It does not answer, and nothing depends on it.
    Lost,
}
