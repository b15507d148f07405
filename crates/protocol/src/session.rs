//! Peers and the sessions with them: who is asked, whose key is believed, and a channel that loses nothing.

use std::collections::{BTreeMap, HashMap};

use whimbrel_handshake::{Opened, PublicKey};
use whimbrel_wire::datagram::Control;

use crate::Time;
use crate::base::Base;
use crate::base::op::{PeerId, TunnelOp};
use crate::base::output::Asked;
use crate::session::contact::Contacts;
use crate::session::peer::Peer;
use crate::session::pins::Pins;

pub(crate) mod channel;
pub(crate) mod contact;
pub(crate) mod peer;
pub(crate) mod peers;
pub(crate) mod permits;
pub(crate) mod pins;
pub(crate) mod records;
mod stream;

/// Who is known, and the sessions with them.
pub(crate) struct SessionLayer {
    contacts: Contacts,
    peers: BTreeMap<PeerId, Peer>,
    by_key: HashMap<PublicKey, PeerId>,
    by_index: HashMap<u32, PeerId>,
    next_peer: PeerId,
}

impl SessionLayer {
    pub(crate) fn new(contacts: Contacts) -> Self {
        Self {
            contacts,
            peers: BTreeMap::new(),
            by_key: HashMap::new(),
            by_index: HashMap::new(),
            next_peer: PeerId::FIRST,
        }
    }

    pub(crate) fn contacts(&self) -> &Contacts {
        &self.contacts
    }

    pub(crate) fn contacts_mut(&mut self) -> &mut Contacts {
        &mut self.contacts
    }

    /// What roles have written of hosts.
    pub(crate) fn pins(&self) -> &Pins {
        self.contacts.pins()
    }

    pub(crate) fn pins_mut(&mut self) -> &mut Pins {
        self.contacts.pins_mut()
    }

    pub(crate) fn peer(&self, id: &PeerId) -> Option<&Peer> {
        self.peers.get(id)
    }

    pub(crate) fn peer_mut(&mut self, id: &PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(id)
    }

    /// All peers, by number.
    pub(crate) fn ids(&self) -> Vec<PeerId> {
        self.peers.keys().copied().collect()
    }

    /// The key of a peer.
    pub(crate) fn key_of(&self, id: PeerId) -> Option<PublicKey> {
        self.peers.get(&id).map(Peer::key)
    }

    /// The number of the peer with this key.
    pub(crate) fn with_key(&self, key: &PublicKey) -> Option<PeerId> {
        self.by_key.get(key).copied()
    }

    /// The peer whose session has this index of ours.
    pub(crate) fn with_index(&self, index: u32) -> Option<PeerId> {
        self.by_index.get(&index).copied()
    }

    /// The number of the peer with this key, if there is a session with it.
    pub(crate) fn met(&self, key: &PublicKey) -> Option<PeerId> {
        self.with_key(key).filter(|id| self.has_session(*id))
    }

    #[cfg(test)]
    pub(crate) fn set_index(&mut self, index: u32, id: PeerId) {
        self.by_index.insert(index, id);
    }

    /// Whether there is a session with a peer.
    pub(crate) fn has_session(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(Peer::has_session)
    }

    /// A peer is forgotten, with its key.
    pub(crate) fn forget_peer(&mut self, id: PeerId) -> Option<PublicKey> {
        let key = self.peers.remove(&id)?.key;
        self.by_key.remove(&key);
        self.contacts.forget_peer(id);
        Some(key)
    }

    /// A peer has sealed this in one of its sessions: what it is, if it is no forgery and was not had before.
    pub(crate) fn open(&mut self, now: Time, id: PeerId, control: &Control<'_>) -> Option<Opened> {
        let peer = self.peers.get_mut(&id)?;
        let slot = peer.sessions.iter_mut().find(|slot| slot.local_index() == control.receiver)?;
        let opened = slot.session.open(control).ok()?;
        peer.last_heard = now;
        Some(opened)
    }

    /// Ends sessions whose time is over. Tells whether others end in time.
    pub(crate) fn sweep_sessions(&mut self, now: Time, base: &mut Base) -> bool {
        let (mut ended, mut more) = (Vec::new(), false);
        for peer in self.peers.values_mut() {
            peer.sessions.retain(|slot| {
                let over = slot.until.is_some_and(|until| until <= now);
                ended.extend(over.then(|| slot.local_index()));
                more |= slot.until.is_some() && !over;
                !over
            });
        }
        ended.into_iter().for_each(|index| self.drop_index(index, base));
        more
    }

    /// A session of this index of ours is no more.
    fn drop_index(&mut self, receive_index: u32, base: &mut Base) {
        self.by_index.remove(&receive_index);
        base.ask(TunnelOp::RemoveKeys { receive_index }, Asked::Effect("dropping tunnel keys"));
    }

    /// Entries of the tables that peers are found by, and of what is known of addresses.
    pub(crate) fn entries(&self) -> usize {
        self.by_key.len() + self.by_index.len() + self.contacts.entries()
    }
}
