//! Hosts that a peer has named: their keys count for a while, also where only named ones do (P-87).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::{Contact as Knowledge, PublicKey};

use crate::Time;
use crate::base::Base;
use crate::base::op::PeerId;
use crate::session::SessionLayer;

/// How long a key counts that somebody has vouched for: in that time there is a session, or there is none.
const REFERRED: Duration = Duration::from_secs(60);
/// How many of these are remembered.
const REFERRED_MOST: usize = 1024;
/// How soon, and how often, a host is asked that somebody has referred to.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;

/// Hosts that peers have named, and that count until then.
#[derive(Debug, Default)]
pub(super) struct Referred {
    hosts: HashMap<PublicKey, Named>,
}

#[derive(Clone, Copy, Debug)]
struct Named {
    until: Time,
    at: SocketAddr,
    /// When it may be asked for a session again, and how often it was.
    ask: Time,
    tries: u32,
}

impl Referred {
    /// Whether a peer has named this key a moment ago.
    pub(super) fn counts(&self, now: Time, key: &PublicKey) -> bool {
        self.hosts.get(key).is_some_and(|named| named.until > now)
    }
}

impl SessionLayer {
    /// A peer names a host. One that is only known because another has named it names nobody.
    pub(crate) fn add_referred(&mut self, now: Time, by: PeerId, key: PublicKey, at: SocketAddr, base: &mut Base) {
        let by = self.peers.get(&by).map(|peer| peer.key);
        let counts = by.is_some_and(|by| self.counts(&by, base));
        let hosts = &mut self.contacts.referred.hosts;
        hosts.retain(|_, named| named.until > now);
        let sensible = !at.ip().is_unspecified() && !at.ip().is_multicast() && !at.ip().is_loopback() && at.port() != 0;
        if sensible && counts && hosts.len() < REFERRED_MOST {
            let until = now + REFERRED;
            hosts.entry(key).or_insert(Named { until, at, ask: now, tries: 0 }).at = at;
        }
    }

    /// Asks a host for a session that a peer has named: three times, a second apart, and as seldom as all that is asked
    /// (P-10). Tells whether there is hope.
    pub(crate) fn ask_referred(&mut self, now: Time, key: PublicKey, base: &mut Base) -> bool {
        let named = self.contacts.referred.hosts.get(&key).copied().filter(|named| named.until > now);
        let Some(named) = named else { return false };
        if named.ask > now {
            return true;
        }
        if named.tries >= TRIES {
            return false;
        }
        if self.contacts.may_ask_another(now) {
            let (ask, tries) = (now + ASKED_AGAIN, named.tries + 1);
            self.contacts.referred.hosts.insert(key, Named { ask, tries, ..named });
            self.initiate_with_key(now, Knowledge::Known(key), named.at, key, base);
        }
        true
    }
}
