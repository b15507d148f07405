//! Handshakes that no flow of this host's is the reason for.

use std::net::SocketAddr;

use whimbrel_handshake::{Contact as Knowledge, PublicKey};

use super::handshake::Purpose;
use crate::Time;
use crate::base::Base;
use crate::session::SessionLayer;

impl SessionLayer {
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
