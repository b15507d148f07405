//! What a node is told once.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use whimbrel_handshake::PublicKey;
use zeroize::Zeroizing;

use crate::base::op::relocation::Moving;

/// Whom a node believes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The first key that answers at an address is remembered, and another one later is refused, as ssh does.
    #[default]
    Tofu,
    /// Only configured keys.
    Pinned,
    /// Whoever holds the pre-shared key.
    Psk,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Any address of the range.
    pub address: IpAddr,
    /// Leading bits that count, at most 32 or 128.
    pub length: u8,
}

impl Prefix {
    /// Whether `address` lies in the range. IPv4 and IPv6 never contain one another.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other, width) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u128::from(own.to_bits()), u128::from(other.to_bits()), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let ignored = width - u32::from(self.length).min(width);
        own.checked_shr(ignored).unwrap_or(0) == other.checked_shr(ignored).unwrap_or(0)
    }
}

/// Which addresses may be asked whether they run Whimbrel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Only these; everybody where empty.
    pub allow: Vec<Prefix>,
    /// Never these.
    pub deny: Vec<Prefix>,
}

impl Ask {
    /// Whether `address` may be asked.
    #[must_use]
    pub fn permits(&self, address: IpAddr) -> bool {
        !self.deny.iter().any(|prefix| prefix.contains(address))
            && (self.allow.is_empty() || self.allow.iter().any(|prefix| prefix.contains(address)))
    }
}

/// Which flows a peer may name after it has left the address that they are from (P-204).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateIntroductions {
    /// Also those from addresses that several hosts share.
    #[default]
    Everywhere,
    /// Only those from addresses that it had for itself (P-136).
    Alone,
    /// None.
    Never,
}

/// Ways to carry moved flows that this host offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carriers {
    /// Addresses replaced in eBPF.
    pub rewrite: bool,
    /// In UDP.
    pub tunnel: bool,
}

/// When it is looked for networks of this host that are silent, though nothing says so (decision 0106).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SilenceMode {
    /// Never.
    #[default]
    Off,
    /// When something was sent and is not answered.
    Idle,
    /// All the time: a peer is asked when nothing was heard for a moment.
    Vigilant,
}

/// After how long a silence something is done. Both grow with the measured round trip: these are for a LAN, and those
/// of VHF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilenceThresholds {
    /// The peer is asked; in vigilant mode.
    pub first: Duration,
    /// The network is left, unless the peer has answered.
    pub second: Duration,
}

impl Default for SilenceThresholds {
    fn default() -> Self {
        Self { first: Duration::from_millis(30), second: Duration::from_millis(45) }
    }
}

/// How silent networks are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// When they are looked for.
    pub mode: SilenceMode,
    /// After how long.
    pub thresholds: SilenceThresholds,
}

/// What a node is told once.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whom to believe.
    pub trust: Trust,
    /// Mixed into every handshake; needed with [`Trust::Psk`].
    pub psk: Option<Zeroizing<[u8; 32]>>,
    /// Keys by address: configured, or remembered from first use.
    pub known_keys: HashMap<IpAddr, PublicKey>,
    /// Who may be asked.
    pub ask: Ask,
    /// What is offered.
    pub carriers: Carriers,
    /// Whether the tunnel seals its packets.
    pub tunnel_sealed: bool,
    /// Whether this machine seals faster with AES-256-GCM than with ChaCha20-Poly1305.
    pub prefer_aes: bool,
    /// The control port of all hosts, 2031.
    pub port: u16,
    /// The port at which this host takes connections of TCP that carry its datagrams (P-250); 0: at none.
    pub tcp_port: u16,
    /// Ports that this host gives to connections by itself (`net.ipv4.ip_local_port_range`, for IPv6 as well; P-16).
    pub drawn_ports: RangeInclusive<u16>,
    /// Milliseconds of the wall clock when the caller's clock was zero, so that initiations rise over restarts (P-9).
    pub wall_clock_at_zero: u64,
    /// Names the life of this host's sockets: another number when the host was started anew (P-47). 0: not told.
    pub life: u64,
    /// Names what this host remembers of flows of hosts behind it: another number once it has lost that (P-123). 0: not
    /// told.
    pub memory: u64,
    /// Handshakes a second that are answered without asking for a cookie first (P-3).
    pub handshakes_per_second: u32,
    /// Initiations a second that ask addresses of which nothing is known (P-10).
    pub questions_per_second: u32,
    /// Hosts that this host meets its peers at, when neither finds the other (P-55).
    pub rendezvous: Vec<IpAddr>,
    /// Hosts whose keys are configured: those of them that offer it serve this host as its rendezvous (P-216).
    pub named: Vec<IpAddr>,
    /// Hosts that a name server can be asked for (P-217).
    pub with_names: Vec<PublicKey>,
    /// Whether hosts of the community meet at this one, and this host its peers of the community at them (P-216).
    pub community_rendezvous: bool,
    /// An update to a peer that is behind a NAT, or does not answer, is also sent so that it seems to come from where
    /// this host was (P-239).
    pub masked_updates: bool,
    /// Whether a path is kept ready to each peer from each link beside the one in use (P-180).
    pub keep_paths: bool,
    /// How networks of this host that are silent are found.
    pub links: Links,
    /// Whether others may meet at this host.
    pub serve_rendezvous: bool,
    /// Whether this host stands in for hosts that have left its links (P-60).
    pub neighbour_proxy: bool,
    /// Hosts that this one is the router of, and speaks for: they run nothing (P-100).
    pub behind: Vec<Prefix>,
    /// Sockets that move from host to host.
    pub moving: Moving,
    /// Which young flows peers may name that have moved away from them (P-204).
    pub late: LateIntroductions,
    /// Flows that may be introduced with one peer at a time.
    pub flows_per_peer: usize,
    /// Flows that may be introduced at a time, with all peers.
    pub flows: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            trust: Trust::Tofu,
            psk: None,
            known_keys: HashMap::new(),
            ask: Ask::default(),
            carriers: Carriers { rewrite: true, tunnel: true },
            tunnel_sealed: true,
            prefer_aes: false,
            port: 2031,
            tcp_port: 0,
            drawn_ports: 32_768..=60_999,
            wall_clock_at_zero: 0,
            life: 0,
            memory: 0,
            handshakes_per_second: 100,
            questions_per_second: 20,
            rendezvous: Vec::new(),
            named: Vec::new(),
            with_names: Vec::new(),
            community_rendezvous: true,
            masked_updates: true,
            keep_paths: false,
            links: Links::default(),
            serve_rendezvous: false,
            neighbour_proxy: false,
            behind: Vec::new(),
            moving: Moving::default(),
            late: LateIntroductions::default(),
            flows_per_peer: 262_144,
            flows: 524_288,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_hold_their_own_family() {
        let prefix = Prefix { address: "10.1.0.0".parse().unwrap(), length: 16 };
        assert!(prefix.contains("10.1.255.1".parse().unwrap()));
        assert!(!prefix.contains("10.2.0.1".parse().unwrap()));
        assert!(!prefix.contains("::1".parse().unwrap()));
        let all = Prefix { address: "::".parse().unwrap(), length: 0 };
        assert!(all.contains("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn denied_goes_before_allowed() {
        let ask = Ask {
            allow: vec![Prefix { address: "10.0.0.0".parse().unwrap(), length: 8 }],
            deny: vec![Prefix { address: "10.9.0.0".parse().unwrap(), length: 16 }],
        };
        assert!(ask.permits("10.1.1.1".parse().unwrap()));
        assert!(!ask.permits("10.9.1.1".parse().unwrap()));
        assert!(!ask.permits("192.0.2.1".parse().unwrap()));
        assert!(Ask::default().permits("192.0.2.1".parse().unwrap()));
    }
}
