//! Which keys are believed: whose address it is that answers, and what becomes of a peer whose address is another's.

use std::net::IpAddr;

use whimbrel_handshake::PublicKey;
use whimbrel_wire::{FlowTuple, Transport};

use crate::Time;
use crate::base::Base;
use crate::base::config::Trust;
use crate::base::op::{PeerId, StoreOp};
use crate::base::output::Asked;
use crate::session::SessionLayer;

impl SessionLayer {
    /// Whether a key that somebody shows may become a peer's. Under `tofu` everybody may: what a peer may move is
    /// proven flow by flow, and which key lives at an address that we ask is checked where we asked.
    pub(crate) fn counts(&self, key: &PublicKey, base: &Base) -> bool {
        match base.config().trust {
            Trust::Pinned => {
                self.contacts.known_keys.values().any(|known| known == key) || self.contacts.pins.is_member(key)
            }
            Trust::Tofu | Trust::Psk => true,
        }
    }

    /// Whether a session with this key may be had now: also of one that a peer which counts has named a moment ago
    /// (P-87).
    pub(super) fn trusts(&self, now: Time, key: &PublicKey, base: &Base) -> bool {
        self.counts(key, base) || self.contacts.referred.counts(now, key)
    }

    /// Remembers whose address it is that a connection of ours leads to, where the peer has proven that it sits on that
    /// (P-42). A datagram flow proves it for a port alone, which any user of that host may have.
    pub(crate) fn remember_key(&mut self, id: PeerId, flow: &FlowTuple, base: &mut Base) {
        let address = flow.remote.ip();
        let Some(key) = self.peers.get(&id).map(|peer| peer.key) else { return };
        if base.config().trust == Trust::Tofu
            && flow.transport == Transport::Tcp
            && self.contacts.is_known(address, id)
            && !self.contacts.known_keys.contains_key(&address)
        {
            self.remember_key_at(address, key, base);
        }
    }

    /// Forgets the key that was remembered for an address, so that another may answer there. It is asked again when the
    /// next connection opens. Tells whether one was remembered.
    pub(crate) fn forget_key_at(&mut self, address: IpAddr, base: &mut Base) -> bool {
        self.forget_contact(address, base);
        self.contacts.known_keys.remove(&address).is_some()
    }

    /// Remembers whose address it is.
    pub(crate) fn remember_key_at(&mut self, address: IpAddr, key: PublicKey, base: &mut Base) {
        self.contacts.known_keys.insert(address, key);
        base.ask(StoreOp::RememberKey { address, key }, Asked::Effect("remembering a key"));
    }
}
