//! Peers and the sessions with them: who is asked, whose key is believed, and a channel that loses nothing.

use std::collections::{BTreeMap, HashMap};

use whimbrel_handshake::PublicKey;

use crate::base::op::PeerId;
use crate::session::contact::Contacts;
use crate::session::peer::Peer;

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
    pub(crate) contacts: Contacts,
    pub(crate) peers: BTreeMap<PeerId, Peer>,
    pub(crate) by_key: HashMap<PublicKey, PeerId>,
    pub(crate) by_index: HashMap<u32, PeerId>,
    next_peer: u32,
}

impl SessionLayer {
    pub(crate) fn new(contacts: Contacts) -> Self {
        Self { contacts, peers: BTreeMap::new(), by_key: HashMap::new(), by_index: HashMap::new(), next_peer: 1 }
    }
}
