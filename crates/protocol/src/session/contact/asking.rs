//! Who is asked whether it runs Whimbrel, or for another session, how often, and what comes of it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{Contact as Knowledge, PublicKey};
use whimbrel_wire::FlowTuple;

use super::{Contact, Purpose, Standing};
use crate::Time;
use crate::base::Base;
use crate::base::config::Trust;
use crate::base::event::Event;
use crate::base::op::PeerId;
use crate::base::timer::Timer;
use crate::session::SessionLayer;
use crate::session::pins::{Held, Pin, Want};

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
/// Flows of one address that are looked through for users.
const LOOKED_AT: usize = 64;

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

    /// Asks an address whether it runs Whimbrel, as if for the first time. `source`: from this address of ours.
    pub(crate) fn ask(&mut self, now: Time, address: IpAddr, source: Option<IpAddr>, base: &mut Base) {
        self.contacts.addresses.insert(address, Contact::Asking { tries: 0, sent: 0, source, prompted: false });
        self.continue_contact(now, address, base);
    }

    /// The same, though no connection waits for it: twice, as one that nobody waits for any more. What was silent is
    /// left alone for twice as long if it still is, as after any other question.
    pub(crate) fn ask_by_hand(&mut self, now: Time, address: IpAddr, base: &mut Base) {
        self.ask_anew(now, address, false, base);
    }

    /// An address that is left alone says that it runs Whimbrel: it is asked, once in each silence (P-242).
    pub(crate) fn ask_prompted(&mut self, now: Time, address: IpAddr, base: &mut Base) {
        if let Some(Contact::Silent { prompted: false, .. }) = self.contacts.addresses.get(&address) {
            self.ask_anew(now, address, true, base);
        }
    }

    fn ask_anew(&mut self, now: Time, address: IpAddr, prompted: bool, base: &mut Base) {
        match self.contacts.addresses.get(&address) {
            Some(Contact::Known(_) | Contact::Asking { .. }) => return,
            Some(Contact::Silent { pause, .. }) => {
                self.contacts.pauses.insert(address, *pause);
            }
            None => {}
        }
        self.contacts.addresses.insert(address, Contact::Asking { tries: 1, sent: 0, source: None, prompted });
        self.continue_contact(now, address, base);
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
            Some(Contact::Asking { tries, sent, source, prompted }) if tries < PAUSES.len() => {
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
                let asking = Contact::Asking { tries: tries + 1, sent: sent + 1, source, prompted };
                self.contacts.addresses.insert(address, asking);
                base.set_timer(Timer::Contact(address), now + PAUSES[tries]);
                let to = SocketAddr::new(address, base.config().port);
                let source = source.filter(|source| base.attachments().has(source));
                self.initiate(now, knowledge, to, source, Purpose::Address(address), base);
            }
            Some(Contact::Asking { .. }) => self.give_up(now, address, base),
            Some(Contact::Silent { pause, until, .. }) if until <= now => {
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
                let tries = PAUSES.len() - 1;
                let asking = Contact::Asking { tries, sent: 0, source, prompted: false };
                self.contacts.addresses.insert(address, asking);
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
        let prompted = matches!(self.contacts.get(&address), Some(Contact::Asking { prompted: true, .. }));
        self.contacts.addresses.insert(address, Contact::Silent { pause, until: now + pause, prompted });
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
            peer.record_answer_at(address);
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

    /// Takes the question to an address, on account of one of those whose flows wait for its answer.
    pub(super) fn may_ask_now(&mut self, now: Time, address: IpAddr) -> bool {
        let flows = self.contacts.waiting.get(&address).into_iter().flatten().take(LOOKED_AT);
        let mut users: BTreeSet<Option<u32>> = flows.map(|(_, user)| *user).collect();
        if users.is_empty() {
            users.insert(None);
        }
        users.into_iter().any(|user| self.contacts.questions.take(now, user))
    }

    /// A peer names a host. One that is only known because another has named it names nobody.
    pub(crate) fn add_referred(&mut self, now: Time, by: PeerId, key: PublicKey, at: SocketAddr, base: &mut Base) {
        if self.peers.get(&by).is_some_and(|by| self.counts(&by.key, base)) {
            self.contacts.referred.add(now, key, at);
        }
    }

    /// Asks a host for a session that a peer has named: three times, a second apart, and as seldom as all that is asked
    /// (P-10). Tells whether there is hope.
    pub(crate) fn ask_referred(&mut self, now: Time, key: PublicKey, base: &mut Base) -> bool {
        let Some(turn) = self.contacts.referred.hope(now, &key) else { return false };
        if let Some(at) = turn.filter(|_| self.contacts.may_ask_another(now)) {
            self.contacts.referred.on_asked(now, &key);
            self.initiate_with_key(now, Knowledge::Known(key), at, key, base);
        }
        true
    }

    /// Begins a handshake with a host that is known by its key alone.
    pub(crate) fn initiate_with_key(
        &mut self,
        now: Time,
        knowledge: Knowledge,
        to: SocketAddr,
        key: PublicKey,
        base: &mut Base,
    ) {
        self.initiate(now, knowledge, to, None, Purpose::Peer(key), base);
    }

    /// Begins a handshake with whoever is at an address, to use a code.
    pub(crate) fn initiate_to_join(&mut self, now: Time, to: SocketAddr, base: &mut Base) {
        self.initiate(now, Knowledge::First, to, None, Purpose::Join, base);
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
