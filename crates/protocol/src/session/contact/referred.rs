//! Hosts that a peer has named: their keys count for a while, also where only named ones do (P-87).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_handshake::PublicKey;

use crate::Time;

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

    /// A peer that counts itself has named a host.
    pub(super) fn add(&mut self, now: Time, key: PublicKey, at: SocketAddr) {
        self.hosts.retain(|_, named| named.until > now);
        let sensible = !at.ip().is_unspecified() && !at.ip().is_multicast() && !at.ip().is_loopback() && at.port() != 0;
        if sensible && self.hosts.len() < REFERRED_MOST {
            self.hosts.entry(key).or_insert(Named { until: now + REFERRED, at, ask: now, tries: 0 }).at = at;
        }
    }

    /// Whether a session with a host may still be hoped for, and if so whether it is to be asked for one now: where.
    pub(super) fn hope(&self, now: Time, key: &PublicKey) -> Option<Option<SocketAddr>> {
        let named = self.hosts.get(key).filter(|named| named.until > now)?;
        if named.ask > now {
            return Some(None);
        }
        (named.tries < TRIES).then_some(Some(named.at))
    }

    /// A host is being asked.
    pub(super) fn on_asked(&mut self, now: Time, key: &PublicKey) {
        if let Some(named) = self.hosts.get_mut(key) {
            (named.ask, named.tries) = (now + ASKED_AGAIN, named.tries + 1);
        }
    }
}
