//! What this host says of itself in a handshake.

use std::net::{IpAddr, Ipv4Addr};

use whimbrel_wire::{Capabilities, Hello};

use crate::Time;
use crate::base::Base;
use crate::session::SessionLayer;

impl SessionLayer {
    /// `source`: the address that it is said from, as far as this host knows; where it does not, it says so, and
    /// [`claimed`] finds it among the others.
    pub(super) fn hello(&self, now: Time, source: Option<IpAddr>, base: &Base) -> Hello {
        let mut capabilities = Capabilities::IPV6_LOCATORS;
        if base.config().carriers.rewrite {
            capabilities = capabilities | Capabilities::REWRITE;
        }
        if base.config().carriers.tunnel {
            let sealed = Capabilities::TUNNEL_SEALED | Capabilities::DUPLICATION;
            let tunnel = sealed | Capabilities::TUNNEL_PLAIN | Capabilities::TRANSFORMS;
            capabilities = capabilities | tunnel;
        }
        if base.config().prefer_aes {
            capabilities = capabilities | Capabilities::TUNNEL_AES;
        }
        if !base.config().behind.is_empty() {
            capabilities = capabilities | Capabilities::GATEWAY;
        }
        if base.config().serve_rendezvous {
            capabilities = capabilities | Capabilities::RENDEZVOUS;
        }
        // The first is the source of this datagram as we know it: it tells the peer whether a NAT is on the way (P-19).
        let mut locators = vec![source.unwrap_or(NOT_KNOWN)];
        locators.extend(base.attachments().addresses().filter(|address| Some(**address) != source));
        Hello {
            capabilities,
            timestamp: base.config().wall_clock_at_zero + now.as_millis(),
            life: base.config().life,
            locators,
            tcp_port: base.config().tcp_port,
            ..Hello::default()
        }
    }
}

/// The first locator of who does not know by which of its addresses its hello leaves.
const NOT_KNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The address that a peer has on the path by which it was seen at `seen`, as its hello says it (P-19): the first that
/// it names. Who does not know it has the one that it was seen at, if that is one of its own, or, behind a NAT, one of
/// the same family. That is never searched for where it is known: a NAT may have an address outside that the peer has
/// too, on another link of its own.
pub(super) fn claimed(locators: &[IpAddr], seen: IpAddr) -> IpAddr {
    let Some((first, others)) = locators.split_first() else { return seen };
    if !first.is_unspecified() {
        return *first;
    }
    let own = others.iter().find(|locator| **locator == seen);
    let alike = || others.iter().find(|locator| locator.is_ipv4() == seen.is_ipv4());
    *own.or_else(alike).or(others.first()).unwrap_or(&seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_the_address_that_it_was_seen_at_or_one_behind_a_nat() {
        let of = |locators: &[&str], seen: &str| {
            let locators: Vec<IpAddr> = locators.iter().map(|text| text.parse().expect("an address")).collect();
            claimed(&locators, seen.parse().expect("an address")).to_string()
        };
        let own = ["0.0.0.0", "10.0.0.2", "192.0.2.7", "2001:db8::7"];
        assert_eq!(of(&own, "2001:db8::7"), "2001:db8::7");
        assert_eq!(of(&own, "192.0.2.7"), "192.0.2.7");
        assert_eq!(of(&own, "203.0.113.1"), "10.0.0.2", "a NAT");
        assert_eq!(of(&own, "2001:db8:9::1"), "2001:db8::7", "a NAT of IPv6");
        assert_eq!(of(&own[..2], "2001:db8::7"), "10.0.0.2", "its addresses are others");
        assert_eq!(of(&own[..1], "192.0.2.7"), "192.0.2.7");
        assert_eq!(of(&[], "192.0.2.7"), "192.0.2.7");
        // The NAT of a machine has outside what the guest behind it has for guests of its own.
        assert_eq!(of(&["192.168.122.50", "172.17.0.1"], "172.17.0.1"), "192.168.122.50", "a NAT");
    }
}
