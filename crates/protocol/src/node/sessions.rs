//! What follows from handshakes: for flows that wait, for bindings, and for roles.

use std::net::{IpAddr, SocketAddr};

use whimbrel_handshake::PublicKey;
use whimbrel_wire::{Datagram, FlowTuple};

use crate::Time;
use crate::base::event::Event;
use crate::base::op::PeerId;
use crate::base::timer::Timer;
use crate::flow::Stage;
use crate::node::Node;
use crate::session::contact::{CONFIRMED_WITHIN, Contact, Ended, INITIATION, Reach, Verdict};
use crate::session::peer::Peer;
use crate::session::pins::Pin;

impl Node {
    /// A datagram of a handshake came.
    pub(super) fn take_in_handshake(
        &mut self,
        now: Time,
        source: SocketAddr,
        destination: Option<IpAddr>,
        datagram: &Datagram<'_>,
    ) {
        let Some(ended) = self.handle_handshake(now, source, destination, datagram) else { return };
        match self.check_key(now, &ended) {
            Verdict::Refused => {}
            Verdict::Another { expected, found, at } => self.find_another(now, expected, found, at),
            Verdict::Accepted { stranger } => {
                if stranger {
                    self.make_room(now);
                }
                self.establish(now, ended);
            }
        }
    }

    /// A handshake ended well: the session begins.
    fn establish(&mut self, now: Time, ended: Ended) {
        let Some(begun) = self.begin_session(now, ended) else { return };
        let id = begun.id;
        if begun.joins {
            self.note_joined_peer(id, begun.source);
        }
        // The peer may introduce flows before its first word is read here: the programs read those, unless there are very many
        // sessions already that they look for.
        self.listen_in_new_session(now, id);
        self.settle(now);
        if begun.confirmed {
            self.confirm(now, id, begun.index);
        }
        if begun.initiated {
            self.check_new_session(now, &begun);
        }
        if let Some(address) = begun.asked {
            let waiting = self.find_at(id, address);
            self.meet_later(now);
            for flow in waiting {
                if self.is_introducible(&flow) {
                    self.queue_introduction(now, id, flow);
                }
            }
        }
        self.introduce_failed(now, id);
        self.await_confirmation(now, id);
        if self.peers.get(&id).is_some_and(|peer| !peer.introductions.active.is_empty()) {
            self.base.set_timer(Timer::Introductions(id), now);
        }
        if begun.reached {
            let took = now.since(begun.started);
            self.base.event(Event::PeerReached { peer: id, key: begun.key, remote: begun.source, took });
        }
    }

    /// The peer may have shown that it holds the keys of a session.
    pub(super) fn confirm(&mut self, now: Time, id: PeerId, index: u32) {
        let Some(confirmed) = self.confirm_session(now, id, index) else { return };
        self.set_tunnel_path(id);
        if confirmed.shown {
            self.put_binding_in_force(now, id);
        }
        self.listen_in_new_session(now, id);
        self.settle(now);
        self.base.sweep_later(now);
        if let Some(update) = self.peers.get_mut(&id).and_then(|peer| peer.update.as_mut()) {
            // The session was wanted for this.
            update.tries = 0;
            self.repeat_update(now, id);
        }
        self.announce_late(now, id);
        self.note_life(now, id, confirmed.life, confirmed.begun);
        self.note_sighting(now, id, confirmed.proven);
        self.tell_waiting(now, id);
        self.settle(now);
        self.register_anew(now, id);
        self.note_endpoint(now, id);
        self.note_move_session(now, id);
        self.note_community_session(now, id);
    }

    /// A peer without a session is tried again.
    pub(super) fn reach(&mut self, now: Time, id: PeerId) {
        match self.continue_reaching(now, id) {
            Reach::Unneeded => {}
            Reach::Tried(tries) => self.tell_silence(id, tries),
            Reach::Lost => self.lose(now, id),
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

    /// Somebody becomes a peer. Where too many have no flows, those are forgotten that are worth least.
    fn make_room(&mut self, now: Time) {
        if self.contacts.take_room().is_some() {
            return;
        }
        // Those first that have not shown in time that they hold the keys.
        let worth = |peer: &Peer| {
            let counts = peer.has_session() || peer.last_heard + CONFIRMED_WITHIN > now;
            (counts, self.contacts.pins.has(Pin::Registered, &peer.key), peer.last_heard, peer.id)
        };
        let mut idle: Vec<_> = self.peers.values().filter(|peer| self.is_idle(peer)).map(worth).collect();
        let surplus = self.contacts.set_room(idle.len());
        if surplus > 0 {
            idle.sort_unstable();
            for (.., id) in idle.into_iter().take(surplus) {
                self.drop_peer(id);
            }
        }
        self.contacts.take_room();
    }

    /// Whether nothing depends on a peer.
    fn is_idle(&self, peer: &Peer) -> bool {
        let introduces = !peer.introductions.active.is_empty() || !peer.introductions.queue.is_empty();
        peer.flows.is_empty() && !introduces && !self.contacts.pins.keeps(&peer.key)
    }

    /// Asks all addresses that were silent as if for the first time: at once where a flow waits for one or it is a rendezvous,
    /// else when the next connection opens. How many questions a second there are stays limited (P-10).
    pub fn ask_again(&mut self, now: Time) {
        for address in self.contacts.silent() {
            self.forget_contact(address);
            for flow in self.contacts.take_waiting(address) {
                if self.is_introducible(&flow) {
                    self.want_introduction(now, flow);
                }
            }
        }
        // No flow waits for a rendezvous.
        self.meet_later(now);
    }

    /// An ICMP error says that nobody listens at `destination`. `quoted`: how the datagram that it is about begins. It
    /// counts only where that is an initiation of ours (P-10): both ports are known to everybody, its index is not.
    pub fn handle_unreachable(&mut self, now: Time, destination: SocketAddr, quoted: Option<[u8; 8]>) {
        let address = destination.ip();
        let index = match quoted {
            Some([INITIATION, _, _, _, index @ ..]) => u32::from_be_bytes(index),
            _ => return,
        };
        if self.contacts.asked_at(index) != Some(destination) {
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

    /// Another key answers where a peer was asked for, as after a host was set up anew: the address is that peer's no longer,
    /// and what waits to be introduced there is another's. Of a peer that is known by nothing else nothing is kept.
    fn find_another(&mut self, now: Time, expected: PublicKey, found: PublicKey, address: IpAddr) {
        let Some(&id) = self.by_key.get(&expected) else { return };
        if !self.contacts.is_known(address, id) {
            return;
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.answers_at.remove(&address);
        peer.replaced = true;
        let flows: Vec<FlowTuple> =
            peer.introductions.active.iter().filter(|flow| flow.remote.ip() == address).copied().collect();
        for flow in &flows {
            let Some(known) = self.flows.get_mut(flow) else { continue };
            let unchanged = known.clone();
            known.stage = Stage::Open;
            self.abandon_introduction(flow, &unchanged);
        }
        self.contacts.addresses.remove(&address);
        match self.contacts.known_key(&address) {
            Some(expected) if expected != found => {
                for flow in flows {
                    let user = self.flows.get(&flow).and_then(|known| known.user);
                    self.contacts.await_answer(address, flow, user);
                }
                self.base.event(Event::KeyMismatch { address, expected, found: Some(found) });
                self.give_up(now, address);
            }
            _ => flows.into_iter().for_each(|flow| self.want_introduction(now, flow)),
        }
        let forgotten = |peer: &Peer| peer.flows.is_empty() && peer.introductions.active.is_empty();
        if !self.keeps(id) && self.peers.get(&id).is_some_and(forgotten) && self.contacts.addresses_of(id).is_empty() {
            self.drop_peer(id);
        }
    }

    /// Forgets the key that was remembered for an address, so that another may answer there: that which a code has proven to be the
    /// host's there takes its place (P-148), or else the next that answers. It is asked again when the next connection opens. Tells
    /// whether one was remembered.
    pub fn forget_key(&mut self, address: IpAddr) -> bool {
        let forgotten = self.forget_key_at(address);
        if let Some(proven) = self.take_proven_key(address).filter(|_| forgotten) {
            self.remember_key_at(address, proven);
        }
        forgotten
    }
}
