//! First contact and handshakes: who is asked whether it runs Whimbrel, how often, and what comes of it.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{CookieChecker, Initiator, PublicKey};
use whimbrel_wire::FlowTuple;
use whimbrel_wire::datagram::Kind;

use crate::Time;
use crate::base::bucket::Bucket;
use crate::base::config::Config;
use crate::base::op::PeerId;
use crate::base::random::Random;
use crate::session::pins::Pins;

pub(crate) mod asking;
pub(crate) mod handshake;
mod hello;
mod questions;
mod referred;
mod responding;
mod trust;

use questions::Questions;
use referred::Referred;
use responding::Responding;

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
    /// Of the tries that it is worth so many are over; `sent`: questions that have gone out. `prompted`: it was left
    /// alone, and has said in a handshake of TCP that it runs Whimbrel (P-242).
    Asking { tries: usize, sent: u32, source: Option<IpAddr>, prompted: bool },
    /// A peer answered.
    Known(PeerId),
    /// It runs nothing, as far as we know; it is asked again after `pause`, at the earliest. `prompted`: it has said
    /// otherwise, and was asked for that in vain.
    Silent { pause: Duration, until: Time, prompted: bool },
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
    pub(super) addresses: HashMap<IpAddr, Contact>,
    /// The pause before the question that is being asked again.
    pauses: HashMap<IpAddr, Duration>,
    /// Flows that wait for their remote address to answer, and who has opened them.
    waiting: HashMap<IpAddr, BTreeMap<FlowTuple, Option<u32>>>,
    /// What roles have written of hosts.
    pub(super) pins: Pins,
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

    pub(super) fn pins(&self) -> &Pins {
        &self.pins
    }

    pub(super) fn pins_mut(&mut self) -> &mut Pins {
        &mut self.pins
    }

    /// Nothing is known of an address.
    pub(crate) fn forget(&mut self, address: &IpAddr) {
        self.addresses.remove(address);
    }

    /// What is known of an address.
    pub(crate) fn get(&self, address: &IpAddr) -> Option<Contact> {
        self.addresses.get(address).copied()
    }

    pub(super) fn forget_peer(&mut self, id: PeerId) {
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

    /// How many addresses are asked, or will be, on a user's account.
    pub(crate) fn waiting_for(&self, user: u32) -> usize {
        self.waiting.values().filter(|flows| flows.values().any(|account| *account == Some(user))).count()
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

    /// Whose keys are to answer at which addresses: configured, or remembered.
    pub(super) fn known_keys(&self) -> impl Iterator<Item = (IpAddr, PublicKey)> {
        self.known_keys.iter().map(|(address, key)| (*address, *key))
    }

    /// Whether this peer lives at an address.
    pub(crate) fn is_known(&self, address: IpAddr, id: PeerId) -> bool {
        matches!(self.addresses.get(&address), Some(Contact::Known(known)) if *known == id)
    }

    /// Who has opened a flow that waits for its remote address to answer.
    pub(crate) fn record_user(&mut self, flow: &FlowTuple, user: u32) {
        let known = self.waiting.get_mut(&flow.remote.ip()).and_then(|flows| flows.get_mut(flow));
        known.into_iter().for_each(|known| *known = Some(user));
    }

    /// Takes one question to a host of those that may be asked a second (P-10).
    pub(crate) fn may_ask_another(&mut self, now: Time) -> bool {
        self.questions.take(now, None)
    }
}

/// A handshake under way that this host has begun.
pub(super) struct Pending {
    pub(super) initiator: Initiator,
    pub(super) to: SocketAddr,
    pub(super) source: Option<IpAddr>,
    pub(super) purpose: Purpose,
    pub(super) started: Time,
}

/// What a handshake is for.
pub(super) enum Purpose {
    /// To find out who lives at an address.
    Address(IpAddr),
    /// To have a new session with the peer of this key.
    Peer(PublicKey),
    /// To use a code there.
    Join,
    /// The other end knows.
    Theirs,
}
