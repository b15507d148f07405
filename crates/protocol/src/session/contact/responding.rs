//! Handshakes that were answered and wait for their end.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_handshake::XxResponder;

use crate::Time;

/// So many wait at the most; with as many, all initiations are answered with cookies.
const MOST: usize = 1024;

/// Handshakes of first contact that this host has answered, by its index.
#[derive(Default)]
pub(super) struct Responding {
    /// Each with when it was answered, and where the answer went.
    handshakes: HashMap<u32, (XxResponder, Time, SocketAddr)>,
}

impl Responding {
    pub(super) fn len(&self) -> usize {
        self.handshakes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.handshakes.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.handshakes.len() >= MOST
    }

    pub(super) fn has(&self, index: u32) -> bool {
        self.handshakes.contains_key(&index)
    }

    /// Adds one. Where as many as fit wait for their end, the oldest gives way of the network that has most of them:
    /// who never ends any takes room from nobody else (P-3).
    pub(super) fn insert(&mut self, index: u32, responder: XxResponder, since: Time, source: SocketAddr) {
        if self.is_full() {
            let mut counts: HashMap<IpAddr, usize> = HashMap::new();
            for (.., source) in self.handshakes.values() {
                *counts.entry(network_of(source.ip())).or_default() += 1;
            }
            let worth = |(index, (_, since, source)): (&u32, &(XxResponder, Time, SocketAddr))| {
                let of_network = counts.get(&network_of(source.ip())).copied().unwrap_or_default();
                (Reverse(of_network), *since, *index)
            };
            if let Some((.., index)) = self.handshakes.iter().map(worth).min() {
                self.handshakes.remove(&index);
            }
        }
        self.handshakes.insert(index, (responder, since, source));
    }

    /// Takes one out, with when it was answered, and where the answer went.
    pub(super) fn remove(&mut self, index: u32) -> Option<(XxResponder, Time, SocketAddr)> {
        self.handshakes.remove(&index)
    }

    /// Forgets those that were answered longer ago than `age`.
    pub(super) fn forget_older(&mut self, age: Duration, now: Time) {
        self.handshakes.retain(|_, (_, since, _)| *since + age > now);
    }
}

/// What one owner has of addresses: of IPv6 the first 64 bits.
fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
    }
}
