//! What lets an acceptor have a move committed: the donor's word, which nobody else can give (P-73).

use std::collections::HashMap;

use ring::hmac;
use whimbrel_handshake::{PublicKey, StaticKey};
use whimbrel_wire::moving::{Ticket, TicketMac};

/// Signs tickets and tells whose they are.
pub(super) struct Tickets {
    key: StaticKey,
    /// What they are authenticated with, by the other host.
    keys: HashMap<PublicKey, hmac::Key>,
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tickets").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl Tickets {
    pub(super) fn new(key: StaticKey) -> Self {
        Self { key, keys: HashMap::new() }
    }

    fn key(&mut self, with: PublicKey) -> Option<&hmac::Key> {
        if !self.keys.contains_key(&with) {
            let key = self.key.ticket_key(&with)?;
            self.keys.insert(with, hmac::Key::new(hmac::HMAC_SHA256, &key));
        }
        self.keys.get(&with)
    }

    /// Puts the MAC into a ticket that a holder is to accept.
    pub(super) fn sign(&mut self, ticket: &mut Ticket, holder: PublicKey) -> bool {
        let Some(key) = self.key(holder) else { return false };
        let mac = hmac::sign(key, &ticket.signed());
        let Some(first) = mac.as_ref().first_chunk::<{ size_of::<TicketMac>() }>() else { return false };
        ticket.mac = *first;
        true
    }

    /// Whether a ticket is its donor's.
    pub(super) fn is_genuine(&mut self, ticket: &Ticket) -> bool {
        let mut right = *ticket;
        self.sign(&mut right, PublicKey::from(ticket.name.donor)) && equal(&right.mac, &ticket.mac)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Forgets the keys, which may be computed again.
    pub(super) fn forget(&mut self) {
        self.keys.clear();
    }
}

/// Whether two MACs are equal, in a time that does not depend on where they differ.
fn equal(one: &TicketMac, other: &TicketMac) -> bool {
    one.iter().zip(other).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}
