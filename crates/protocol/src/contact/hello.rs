//! What this host says of itself in a handshake.

use std::net::IpAddr;

use whimbrel_wire::{Capabilities, Hello};

use crate::Time;
use crate::node::Node;

impl Node {
    /// `source`: the address that it is said from, as far as this host knows.
    pub(super) fn hello(&self, now: Time, source: Option<IpAddr>) -> Hello {
        let mut capabilities = Capabilities::IPV6_LOCATORS;
        if self.config.carriers.rewrite {
            capabilities = capabilities | Capabilities::REWRITE;
        }
        if self.config.carriers.tunnel {
            capabilities = capabilities | Capabilities::TUNNEL_SEALED | Capabilities::TUNNEL_PLAIN;
        }
        if self.config.prefer_aes {
            capabilities = capabilities | Capabilities::TUNNEL_AES;
        }
        if !self.config.behind.is_empty() {
            capabilities = capabilities | Capabilities::GATEWAY;
        }
        // The first is the source of this datagram as we know it: it tells the peer whether a NAT is on the way (P-19).
        let mut locators: Vec<IpAddr> = source.into_iter().collect();
        locators.extend(self.attachments.keys().filter(|address| Some(**address) != source));
        Hello {
            capabilities,
            timestamp: self.config.wall_clock_at_zero + now.as_millis(),
            life: self.config.life,
            locators,
            ..Hello::default()
        }
    }
}
