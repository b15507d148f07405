//! Handshakes: from a datagram to a session that is confirmed.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::{
    Contact as Knowledge, Error as HandshakeError, Finished, Incoming, Initiator, Local, PublicKey,
};
use whimbrel_wire::{Capabilities, Datagram};

use super::{Pending, Purpose, hello};
use crate::Time;
use crate::base::Base;
use crate::base::event::Event;
use crate::base::op::{PeerId, TunnelOp};
use crate::base::output::{Asked, State, Transmit};
use crate::base::timer::Timer;
use crate::session::SessionLayer;
use crate::session::peer::{Met, SessionSlot};

/// How long a former session is still received from (P-7).
const FORMER_SESSION: Duration = Duration::from_secs(30);
/// For so long what comes in a session says nothing of which one the peer sends in after another took its place here:
/// it may not have learned of that one yet.
const CROSSING: Duration = Duration::from_secs(3);
/// Each end says so often in which session it sends, as long as the other one may send in another (P-8).
pub(crate) const SHOWN_EVERY: Duration = Duration::from_secs(6);
/// A session that ends sooner is not followed into any more: the peer has time to show once more where it sends.
const LEFT_LEAST: Duration = Duration::from_secs(10);
/// How long a session waits to be confirmed: what confirms it may have been kept back until it does harm.
const UNSETTLED: Duration = Duration::from_secs(60);
/// Sessions of one peer that wait to be confirmed at the most.
const UNSETTLED_MOST: usize = 4;

impl SessionLayer {
    /// Tells why a handshake came to nothing, where this end alone knows and somebody can mend it (P-29).
    pub(super) fn send_refusal(&mut self, now: Time, remote: SocketAddr, error: &HandshakeError, base: &mut Base) {
        let reason = match error {
            HandshakeError::PskMissing => "it uses a pre-shared key, and this host has none",
            HandshakeError::PskExpected => "it uses no pre-shared key, and this host demands one",
            HandshakeError::NotAuthentic if base.config().psk.is_some() => "it seems to have another pre-shared key",
            // P-5
            HandshakeError::Version(_) => {
                "it speaks no version of the protocol that this host knows: Whimbrel is to be upgraded here"
            }
            _ => return,
        };
        if self.contacts.refusals.take(now) {
            base.event(Event::HandshakeRefused { remote, reason });
        }
    }

    pub(super) fn initiate(
        &mut self,
        now: Time,
        knowledge: Knowledge,
        to: SocketAddr,
        source: Option<IpAddr>,
        purpose: Purpose,
        base: &mut Base,
    ) {
        let index = self.free_index(base);
        let hello = self.hello(now, source, base);
        let (key, config, random) = base.identity();
        let local = Local { key, psk: config.psk.as_deref() };
        let started = Initiator::start(knowledge, local, index, hello, &mut |bytes| random.fill(bytes));
        let Ok((initiator, payload)) = started else { return };
        self.contacts.pending.insert(index, Pending { initiator, to, source, purpose, started: now });
        base.sweep_later(now);
        base.transmit(Transmit { source, link: None, mask: None, destination: to, payload });
    }

    pub(super) fn free_index(&mut self, base: &mut Base) -> u32 {
        loop {
            let index = base.random().u32();
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
        base: &mut Base,
    ) -> Option<Ended> {
        match datagram {
            Datagram::Initiation(initiation) => self.handle_initiation(now, source, destination, initiation, base),
            Datagram::Response(response) => {
                let Some(pending) = self.contacts.pending.remove(&response.receiver) else {
                    base.drop_datagram();
                    return None;
                };
                let Pending { initiator, to, source: from, purpose, started } = pending;
                match initiator.handle_response(response, now.as_micros()) {
                    Ok(finished) => {
                        // It is where it was asked, whatever address its answer names: that one has proven nothing.
                        let how = How { source: to, destination: destination.or(from), started, purpose };
                        Some(Ended { finished, how })
                    }
                    Err(rejected) => {
                        base.drop_datagram();
                        self.send_refusal(now, to, &rejected.error, base);
                        let pending = Pending { initiator: rejected.state, to, source: from, purpose, started };
                        self.contacts.pending.insert(response.receiver, pending);
                        None
                    }
                }
            }
            Datagram::Finish(finish) => {
                let Some((responder, since, to)) = self.contacts.responding.remove(finish.receiver) else {
                    base.drop_datagram();
                    return None;
                };
                match responder.handle_finish(finish, now.as_micros()) {
                    Ok(finished) => {
                        let purpose = Purpose::Theirs;
                        // It is where it was answered, wherever its last word comes from: that one has proven nothing.
                        let how = How { source: to, destination, started: since, purpose };
                        Some(Ended { finished, how })
                    }
                    Err(rejected) => {
                        base.drop_datagram();
                        self.send_refusal(now, source, &rejected.error, base);
                        self.contacts.responding.insert(finish.receiver, rejected.state, since, to);
                        None
                    }
                }
            }
            Datagram::Cookie(reply) => {
                let Some(pending) = self.contacts.pending.get_mut(&reply.receiver) else {
                    base.drop_datagram();
                    return None;
                };
                let (to, from) = (pending.to, pending.source);
                match pending.initiator.handle_cookie(reply) {
                    Ok(payload) => {
                        base.transmit(Transmit { source: from, link: None, mask: None, destination: to, payload })
                    }
                    Err(_) => base.drop_datagram(),
                }
                None
            }
            _ => {
                base.drop_datagram();
                None
            }
        }
    }

    pub(super) fn handle_initiation(
        &mut self,
        now: Time,
        source: SocketAddr,
        destination: Option<IpAddr>,
        initiation: &whimbrel_wire::datagram::Initiation<'_>,
        base: &mut Base,
    ) -> Option<Ended> {
        // P-3
        let loaded = !self.contacts.unproven.take(now) || self.contacts.responding.is_full();
        if loaded {
            let random = base.random();
            let cookies = &self.contacts.cookies;
            if !cookies.check(initiation, source, now.as_micros()) {
                let payload = cookies.reply(initiation, source, now.as_micros(), &mut |bytes| random.fill(bytes));
                base.transmit(Transmit {
                    source: destination,
                    link: None,
                    mask: None,
                    destination: source,
                    payload: payload.to_vec(),
                });
                return None;
            }
            if !self.contacts.proven.take(now) {
                base.drop_datagram();
                return None;
            }
        }
        let index = self.free_index(base);
        let hello = self.hello(now, destination, base);
        let (key, config, random) = base.identity();
        let local = Local { key, psk: config.psk.as_deref() };
        let incoming = match Incoming::read(initiation, local, &mut |bytes| random.fill(bytes)) {
            Ok(incoming) => incoming,
            Err(error) => {
                base.drop_datagram();
                // Else it may be anything: made for another key, or no handshake at all.
                if matches!(error, HandshakeError::PskMissing | HandshakeError::PskExpected) {
                    self.send_refusal(now, source, &error, base);
                }
                return None;
            }
        };
        match incoming {
            Incoming::First(xx) => {
                let Ok((responder, payload)) = xx.respond(index, hello) else {
                    base.drop_datagram();
                    return None;
                };
                self.contacts.responding.insert(index, responder, now, source);
                base.sweep_later(now);
                base.transmit(Transmit { source: destination, link: None, mask: None, destination: source, payload });
                None
            }
            Incoming::Known(ik) => {
                // P-9
                let (remote, timestamp) = (ik.remote(), ik.hello().timestamp);
                let known = self.by_key.get(&remote).and_then(|id| self.peers.get(id));
                if known.is_some_and(|peer| timestamp <= peer.newest_initiation) || !self.trusts(now, &remote, base) {
                    base.drop_datagram();
                    return None;
                }
                let Ok(finished) = ik.respond(index, hello, now.as_micros()) else {
                    base.drop_datagram();
                    return None;
                };
                let how = How { source, destination, started: now, purpose: Purpose::Theirs };
                Some(Ended { finished, how })
            }
        }
    }

    /// Whether the session that a handshake ended with is to be had: that is the right key, and one that counts.
    pub(crate) fn check_key(&mut self, now: Time, ended: &Ended, base: &mut Base) -> Verdict {
        let (key, how) = (ended.finished.remote, &ended.how);
        if let Purpose::Address(address) = how.purpose {
            let expected = self.contacts.known_key(&address);
            if let Some(expected) = expected.filter(|expected| *expected != key) {
                base.stop_timer(Timer::Contact(address));
                base.event(Event::KeyMismatch { address, expected, found: Some(key) });
                self.give_up(now, address, base);
                return Verdict::Refused;
            }
        }
        if let Purpose::Peer(expected) = how.purpose
            && expected != key
        {
            base.drop_datagram();
            // Where only named keys count, any other says something only at an address that one is named for.
            let at = how.source.ip();
            let says = self.trusts(now, &key, base) || self.contacts.known_keys.contains_key(&at);
            return if says { Verdict::Another { expected, found: key, at } } else { Verdict::Refused };
        }
        if key == base.public_key() || !self.trusts(now, &key, base) {
            base.drop_datagram();
            return Verdict::Refused;
        }
        Verdict::Accepted { known: self.by_key.get(&key).copied() }
    }

    /// The session begins that a handshake has ended with.
    pub(crate) fn begin_session(&mut self, now: Time, ended: Ended, base: &mut Base) -> Option<Begun> {
        let Ended { finished, how } = ended;
        let Finished { session, remote: key, hello, answer } = finished;
        let known = self.by_key.get(&key).copied();
        let id = known.unwrap_or_else(|| self.new_peer(now, key));
        let peer = self.peers.get_mut(&id)?;
        let reached = !peer.has_session();
        let life = hello.life;
        let claimed = SocketAddr::new(hello::claimed(&hello.locators, how.source.ip()), base.config().port);
        if hello.timestamp != 0 && !session.is_initiator() {
            peer.newest_initiation = peer.newest_initiation.max(hello.timestamp);
        }
        let index = session.local_index();
        let (initiated, confirmed) = (session.is_initiator(), session.is_confirmed());
        // XX has a third message, and its responder no answer to that.
        let first = initiated == answer.is_some();
        let keys = session.tunnel_keys().clone();
        // One key may ask again and again without ever showing that it holds the session's keys.
        let unsettled = peer.sessions.iter().filter(|slot| !slot.settled).count();
        let surplus =
            if unsettled >= UNSETTLED_MOST { peer.sessions.iter().position(|slot| !slot.settled) } else { None };
        let surplus = surplus.map(|at| peer.sessions.remove(at).session.local_index());
        let origin = Some(Met { remote: how.source, destination: how.destination, claimed });
        let aes = base.config().prefer_aes && hello.capabilities.contains(Capabilities::TUNNEL_AES);
        let (until, begun, capabilities) = (Some(now + UNSETTLED), how.started, hello.capabilities);
        peer.sessions.push(SessionSlot { session, settled: false, until, begun, origin, aes, life, capabilities });
        peer.last_heard = now;
        if let Some(receive_index) = surplus {
            self.drop_index(receive_index, base);
        }
        self.by_index.insert(index, id);
        let op = TunnelOp::AddKeys { peer: id, receive_index: index, keys, aes };
        base.ask(op, Asked::State("adding tunnel keys", State::Keys(id)));
        if let Some(payload) = answer {
            // XX's finish is repeated by asking again; the question is the same until the session is confirmed.
            base.transmit(Transmit {
                source: how.destination,
                link: None,
                mask: None,
                destination: how.source,
                payload,
            });
        }
        let (asked, joins) = match how.purpose {
            Purpose::Address(address) => (Some(address), false),
            Purpose::Join => (None, true),
            Purpose::Peer(_) | Purpose::Theirs => (None, false),
        };
        let (source, destination, started) = (how.source, how.destination, how.started);
        Some(Begun {
            id,
            key,
            index,
            source,
            destination,
            started,
            reached,
            confirmed,
            initiated,
            first,
            again: known.is_some(),
            claimed,
            locators: hello.locators,
            tcp_port: hello.tcp_port,
            asked,
            joins,
        })
    }

    /// The peer has shown that it holds the keys of this session: it takes the place of the others (P-8).
    pub(crate) fn confirm_session(&mut self, now: Time, id: PeerId, index: u32, base: &mut Base) -> Option<Confirmed> {
        let peer = self.peers.get_mut(&id)?;
        let at = peer.sessions.iter().position(|slot| slot.session.local_index() == index)?;
        if peer.sessions[at].settled {
            return None;
        }
        let mut slot = peer.sessions.remove(at);
        slot.settled = true;
        let (life, begun) = (slot.life, slot.begun);
        peer.replaced = false;
        let origin = slot.origin.take();
        let initiated = slot.session.is_initiator();
        peer.use_session(slot, now + FORMER_SESSION);
        peer.reach_tries = 0;
        peer.handshakes = 0;
        base.stop_timer(Timer::Reach(id));
        Some(Confirmed { origin, initiated, life, begun })
    }

    /// The peer goes on sending in this session, though another took its place here. Tells whether this end follows
    /// (P-8).
    pub(crate) fn follow_session(&mut self, now: Time, id: PeerId, index: u32, base: &Base) -> bool {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| base.public_key() < peer.key) else { return false };
        let is_left = |slot: &SessionSlot| {
            let fits = |until: Time| until + CROSSING <= now + FORMER_SESSION && until >= now + LEFT_LEAST;
            slot.settled && slot.until.is_some_and(fits) && slot.local_index() == index
        };
        let Some(at) = peer.sessions.iter().position(is_left) else { return false };
        let slot = peer.sessions.remove(at);
        peer.use_session(slot, now + FORMER_SESSION);
        true
    }
}

/// How a handshake came about.
struct How {
    source: SocketAddr,
    destination: Option<IpAddr>,
    started: Time,
    purpose: Purpose,
}

/// A handshake that ended well.
pub(crate) struct Ended {
    finished: Finished,
    how: How,
}

/// Whether the session is to be had that a handshake has ended with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    Refused,
    /// Another key answers at an address than the one that was asked for there.
    Another {
        expected: PublicKey,
        found: PublicKey,
        at: IpAddr,
    },
    /// It is, with this peer, if one has the key.
    Accepted {
        known: Option<PeerId>,
    },
}

/// A session that begins.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub id: PeerId,
    pub key: PublicKey,
    pub index: u32,
    /// Where the peer is, and our address towards it.
    pub source: SocketAddr,
    pub destination: Option<IpAddr>,
    /// When its handshake began.
    pub started: Time,
    /// There was no session with the peer.
    pub reached: bool,
    /// The peer has shown that it holds the keys.
    pub confirmed: bool,
    /// This host has asked for it.
    pub initiated: bool,
    /// The handshake was one of first contact: its responder has told one address alone (P-30).
    pub first: bool,
    /// The peer was known before.
    pub again: bool,
    /// Its endpoint and all its addresses, as it says.
    pub claimed: SocketAddr,
    pub locators: Vec<IpAddr>,
    /// Where it takes connections of TCP (P-250).
    pub tcp_port: u16,
    /// To find out who lives at this address.
    pub asked: Option<IpAddr>,
    /// To use a code.
    pub joins: bool,
}

/// A peer has shown that it holds the keys of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirmed {
    /// Where the peer asked for it: that it knows the keys shows that it received what was sent there.
    pub origin: Option<Met>,
    /// This host has asked for it.
    pub initiated: bool,
    /// Its life, as it said when its handshake began.
    pub life: u64,
    pub begun: Time,
}
