//! NATs of the kinds that RFC 3489 names, by nftables. What they do with UDP is what tells them apart; connections of
//! TCP are masqueraded by all.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::{Host, Result};

/// The port that a host's control datagrams leave by, inside.
const INSIDE: u16 = 2031;
/// What a NAT that rewrites ports makes of it.
const REWRITTEN: u16 = 40_031;

/// Which datagrams from outside a NAT lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// Everybody's, to a port that something has left by.
    FullCone,
    /// Those from an address that something has gone to by that port.
    Restricted,
    /// Those from an address and port that something has gone to by that port.
    PortRestricted,
    /// The same, and each destination sees another port, drawn by lot.
    Symmetric,
}

impl NatKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::FullCone, Self::Restricted, Self::PortRestricted, Self::Symmetric];

    /// How it is called in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FullCone => "full-cone",
            Self::Restricted => "restricted",
            Self::PortRestricted => "port-restricted",
            Self::Symmetric => "symmetric",
        }
    }

    /// The rule that lets in what connection tracking does not know yet.
    fn admits(self, outside: &str) -> String {
        match self {
            Self::FullCone => format!("iifname \"{outside}\" meta l4proto udp dnat to udp dport map @mapped;"),
            Self::Restricted => {
                format!("iifname \"{outside}\" ip saddr . udp dport @spoken_to dnat to udp dport map @mapped;")
            }
            Self::PortRestricted | Self::Symmetric => String::new(),
        }
    }
}

impl Host {
    /// Makes it a NAT of this kind, whose mappings for UDP end `expiry` after they were used last. `rewrites`: host's
    /// control datagrams leave by another port than their own also where everybody sees the same. What nobody inside
    /// asked for is dropped, and not taken for the router's own.
    pub fn nat(&self, outside: &str, kind: NatKind, rewrites: bool, expiry: Duration) -> Result<()> {
        let seconds = expiry.as_secs();
        let changed = match kind {
            NatKind::Symmetric => format!("oifname \"{outside}\" masquerade fully-random;"),
            _ if rewrites => format!(
                "oifname \"{outside}\" udp sport {INSIDE} masquerade to :{REWRITTEN};\noifname \"{outside}\" masquerade;"
            ),
            _ => format!("oifname \"{outside}\" masquerade;"),
        };
        let admits = kind.admits(outside);
        // Behind the translation a packet has its outer port, and connection tracking knows the inner one.
        self.nft(&format!(
            "table ip nat {{
                map mapped {{ type inet_service : ipv4_addr . inet_service; flags dynamic, timeout; \
                    timeout {seconds}s; size 4096; }}
                set spoken_to {{ type ipv4_addr . inet_service; flags dynamic, timeout; timeout {seconds}s; size 4096; }}
                chain prerouting {{ type nat hook prerouting priority dstnat; {admits}\n }}
                chain postrouting {{ type nat hook postrouting priority srcnat; {changed}\n }}
                chain learn {{ type filter hook postrouting priority 200;
                    oifname \"{outside}\" meta l4proto udp ct direction original \
                        update @mapped {{ udp sport : ct original ip saddr . ct original proto-src }}
                    oifname \"{outside}\" meta l4proto udp ct direction reply \
                        update @mapped {{ udp sport : ct reply ip saddr . ct reply proto-src }}
                    oifname \"{outside}\" meta l4proto udp update @spoken_to {{ ip daddr . udp sport }}
                }}
                chain input {{ type filter hook input priority filter; \
                    iifname \"{outside}\" ct state new meta l4proto {{ tcp, udp }} drop;\n }}
            }}\n"
        ))?;
        // After the rules: the variables appear with the first use of connection tracking in the namespace.
        for name in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
            self.sysctl(&format!("net.netfilter.{name}"), &seconds.to_string())?;
        }
        Ok(())
    }

    /// Has a NAT lead all new connections of TCP from outside to a host behind it, and where `control` says so control
    /// datagrams as well.
    pub fn forward_ports(&self, outside: &str, inside: Ipv4Addr, control: bool) -> Result<()> {
        let control = if control {
            format!("iifname \"{outside}\" udp dport {INSIDE} dnat to {inside};\n")
        } else {
            String::new()
        };
        self.nft(&format!(
            "table ip forwards {{ chain prerouting {{ type nat hook prerouting priority dstnat - 1; \
             iifname \"{outside}\" meta l4proto tcp dnat to {inside};\n{control} }}\n}}\n"
        ))
    }
}
