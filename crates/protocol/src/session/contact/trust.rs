//! Which keys are believed: whose address it is that answers, and what becomes of a peer whose address is another's.

use std::net::IpAddr;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::config::Trust;
use crate::base::event::Event;
use crate::base::op::{PeerId, StoreOp};
use crate::base::output::Asked;
use crate::base::timer::Timer;
use crate::flow::Stage;
use crate::node::Node;
use crate::session::peer::Peer;

impl Node {
    /// Whether a key that somebody shows may become a peer's. Under `tofu` everybody may: what a peer may move is
    /// proven flow by flow, and which key lives at an address that we ask is checked where we asked.
    pub(crate) fn counts(&self, key: &PublicKey) -> bool {
        match self.base.config().trust {
            Trust::Pinned => self.contacts.known_keys.values().any(|known| known == key) || self.is_in_community(key),
            Trust::Tofu | Trust::Psk => true,
        }
    }

    /// Whether a session with this key may be had now: also of one that a peer which counts has named a moment ago (P-87).
    pub(super) fn trusts(&self, now: Time, key: &PublicKey) -> bool {
        self.counts(key) || self.is_vouched(now, key)
    }

    /// Another key answers where a peer was asked for, as after a host was set up anew: the address is that peer's no longer,
    /// and what waits to be introduced there is another's. Of a peer that is known by nothing else nothing is kept.
    pub(super) fn find_another(&mut self, now: Time, expected: PublicKey, found: PublicKey, address: IpAddr) {
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
                self.contacts.waiting.entry(address).or_default().extend(flows);
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

    /// Remembers whose address it is that a connection of ours leads to, where the peer has proven that it sits on that
    /// (P-42). A datagram flow proves it for a port alone, which any user of that host may have.
    pub(crate) fn remember_key(&mut self, id: PeerId, flow: &FlowTuple) {
        let address = flow.remote.ip();
        let Some(key) = self.peers.get(&id).map(|peer| peer.key) else { return };
        if self.base.config().trust == Trust::Tofu
            && flow.transport == Transport::Tcp
            && self.contacts.is_known(address, id)
            && !self.contacts.known_keys.contains_key(&address)
        {
            self.remember_key_at(address, key);
        }
    }

    /// Remembers whose address it is.
    pub(crate) fn remember_key_at(&mut self, address: IpAddr, key: PublicKey) {
        self.contacts.known_keys.insert(address, key);
        self.base.ask(StoreOp::RememberKey { address, key }, Asked::Effect("remembering a key"));
    }

    /// Forgets the key that was remembered for an address, so that another may answer there: that which a code has proven to be the
    /// host's there takes its place (P-148), or else the next that answers. It is asked again when the next connection opens. Tells
    /// whether one was remembered.
    pub fn forget_key(&mut self, address: IpAddr) -> bool {
        self.contacts.addresses.remove(&address);
        self.contacts.pauses.remove(&address);
        self.base.stop_timer(Timer::Contact(address));
        let forgotten = self.contacts.known_keys.remove(&address).is_some();
        if let Some(proven) = self.take_proven_key(address).filter(|_| forgotten) {
            self.remember_key_at(address, proven);
        }
        forgotten
    }
}
