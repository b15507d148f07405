//! Policy rules: which table a packet is looked up in.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleHeader, RuleMessage, RulePortRange};
use netlink_packet_route::{AddressFamily, IpProtocol, RouteNetlinkMessage};

use super::table::deleted;
use super::{PROTOCOL, Prefix, RouteSocket};
use crate::error::Error;

/// `FIB_RULE_FIND_SADDR` (include/uapi/linux/fib_rules.h).
const FIND_SOURCE: u32 = 0x0001_0000;

/// The name of an interface: 15 bytes at the most (IFNAMSIZ, include/uapi/linux/if.h), padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceName([u8; 16]);

impl InterfaceName {
    /// `None`: no interface can have this name.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let fits = !name.is_empty() && name.len() < bytes.len() && !name.contains('\0');
        fits.then(|| {
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            Self(bytes)
        })
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        f.write_str(&String::from_utf8_lossy(&self.0[..length]))
    }
}

/// Which packets a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Selector {
    /// Packets of this host (not forwarded ones) that are sent from this address. Reverse-path checks of packets to
    /// this address count as such.
    From(IpAddr),
    /// As [`From`](Self::From), but only packets whose firewall mark has none of the bits of `mask`.
    FromUnmarked {
        /// The source.
        address: IpAddr,
        /// Which bits have to be zero.
        mask: u32,
    },
    /// As [`FromUnmarked`](Self::FromUnmarked), and packets that have no source yet, where the table's route would have
    /// the kernel choose this one (`FIB_RULE_FIND_SADDR`). IPv6 only: for IPv4 such packets are from 0.0.0.0.
    FromOrChosen {
        /// The source.
        address: Ipv6Addr,
        /// Which bits have to be zero.
        mask: u32,
    },
    /// Packets whose firewall mark has `value` in the bits of `mask`.
    Mark {
        /// Compared under the mask.
        value: u32,
        /// Which bits count.
        mask: u32,
        /// The family of the packets.
        ipv4: bool,
    },
    /// Packets that this host itself sends and whose firewall mark has none of these bits.
    OwnUnmarked {
        /// Which bits have to be zero.
        mask: u32,
        /// The family of the packets.
        ipv4: bool,
    },
    /// Packets to these addresses, whoever's they are, whose firewall mark has `value` in the bits of `mask`.
    MarkedTo {
        /// The destination.
        to: Prefix,
        /// Compared under the mask.
        value: u32,
        /// Which bits count.
        mask: u32,
    },
    /// Datagrams of UDP to this port of these addresses, whoever's they are. Later fragments have no ports.
    Asked {
        /// The destination.
        to: Prefix,
        /// The port.
        port: u16,
    },
    /// Datagrams of UDP that this host itself sends from this address and port, and that name an interface
    /// (IPV6_PKTINFO, ipv6(7)) or are of a socket that is bound to one.
    Named {
        /// The source.
        address: IpAddr,
        /// The source port.
        port: u16,
        /// The interface.
        interface: InterfaceName,
    },
    /// Packets that come in by this interface.
    Arrived {
        /// Its name.
        interface: &'static str,
        /// The family of the packets.
        ipv4: bool,
    },
}

impl Selector {
    fn is_ipv4(self) -> bool {
        match self {
            Self::From(address) | Self::FromUnmarked { address, .. } | Self::Named { address, .. } => address.is_ipv4(),
            Self::Asked { to, .. } | Self::MarkedTo { to, .. } => to.address.is_ipv4(),
            Self::FromOrChosen { .. } => false,
            Self::Mark { ipv4, .. } | Self::OwnUnmarked { ipv4, .. } | Self::Arrived { ipv4, .. } => ipv4,
        }
    }
}

/// A rule of Whimbrel's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// Rules are tried in the order of this; 0 is the table of local addresses, 32766 the main table.
    pub priority: u32,
    /// For which packets.
    pub selector: Selector,
    /// Where they are looked up; the next rule is tried where that table has nothing.
    pub table: u32,
}

impl Rule {
    fn object(&self) -> String {
        match self.selector {
            Selector::From(address) => format!("from {address} lookup {}", self.table),
            Selector::FromUnmarked { address, mask } => {
                format!("from {address} fwmark 0/{mask:#x} lookup {}", self.table)
            }
            Selector::FromOrChosen { address, mask } => {
                format!("from {address} or chosen fwmark 0/{mask:#x} lookup {}", self.table)
            }
            Selector::Mark { value, mask, .. } => format!("fwmark {value:#x}/{mask:#x} lookup {}", self.table),
            Selector::OwnUnmarked { mask, .. } => format!("fwmark 0/{mask:#x} iif lo lookup {}", self.table),
            Selector::MarkedTo { to, value, mask } => {
                format!("to {to} fwmark {value:#x}/{mask:#x} lookup {}", self.table)
            }
            Selector::Asked { to, port } => {
                format!("to {to} ipproto udp dport {port} lookup {}", self.table)
            }
            Selector::Named { address, port, interface } => {
                format!("from {address} iif lo oif {interface} ipproto udp sport {port} lookup {}", self.table)
            }
            Selector::Arrived { interface, .. } => format!("iif {interface} lookup {}", self.table),
        }
    }
}

impl RouteSocket {
    /// Adds a rule; one that is there already is left as it is.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn set_rule(&mut self, rule: &Rule) -> Result<(), Error> {
        match self.change(&RouteNetlinkMessage::NewRule(encode(rule)), NLM_F_CREATE | NLM_F_EXCL) {
            Err(refusal) if refusal.errno() == libc::EEXIST => Ok(()),
            other => other.map_err(|e| e.of("RTM_NEWRULE", rule.object())),
        }
    }

    /// Deletes a rule; returns whether there was one.
    ///
    /// # Errors
    /// [`Error::Call`]; nothing has changed then.
    pub fn delete_rule(&mut self, rule: &Rule) -> Result<bool, Error> {
        deleted(self.change(&RouteNetlinkMessage::DelRule(encode(rule)), 0))
            .map_err(|e| e.of("RTM_DELRULE", rule.object()))
    }

    /// The rules that have [`PROTOCOL`], whoever left them, except for those with [`Selector::Arrived`]: these are in
    /// namespaces that end by themselves.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn own_rules(&mut self) -> Result<Vec<Rule>, Error> {
        let mut rules = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let message = of_family(family);
            for part in self.dump("RTM_GETRULE", &RouteNetlinkMessage::GetRule(message))? {
                let RouteNetlinkMessage::NewRule(message) = part else { continue };
                rules.extend(decode(&message));
            }
        }
        Ok(rules)
    }
}

fn of_family(family: AddressFamily) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header = RuleHeader { family, ..RuleHeader::default() };
    message
}

fn encode(rule: &Rule) -> RuleMessage {
    let family = if rule.selector.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let mut message = of_family(family);
    message.header.action = RuleAction::ToTable;
    message.header.table = u8::try_from(rule.table).unwrap_or(0);
    let attributes = &mut message.attributes;
    attributes.push(RuleAttribute::Priority(rule.priority));
    attributes.push(RuleAttribute::Table(rule.table));
    attributes.push(RuleAttribute::Protocol(RouteProtocol::from(PROTOCOL)));
    match rule.selector {
        Selector::From(address) => {
            message.header.src_len = Prefix::host(address).length;
            attributes.push(RuleAttribute::Source(address));
            attributes.push(RuleAttribute::Iifname("lo".to_owned()));
        }
        Selector::FromUnmarked { address, mask } => {
            message.header.src_len = Prefix::host(address).length;
            attributes.push(RuleAttribute::Source(address));
            attributes.push(RuleAttribute::FwMark(0));
            attributes.push(RuleAttribute::FwMask(mask));
            attributes.push(RuleAttribute::Iifname("lo".to_owned()));
        }
        Selector::FromOrChosen { address, mask } => {
            message.header.src_len = 128;
            message.header.flags = RuleFlags::from_bits_retain(FIND_SOURCE);
            attributes.push(RuleAttribute::Source(address.into()));
            attributes.push(RuleAttribute::FwMark(0));
            attributes.push(RuleAttribute::FwMask(mask));
            attributes.push(RuleAttribute::Iifname("lo".to_owned()));
        }
        Selector::Mark { value, mask, .. } => {
            attributes.push(RuleAttribute::FwMark(value));
            attributes.push(RuleAttribute::FwMask(mask));
        }
        Selector::OwnUnmarked { mask, .. } => {
            attributes.push(RuleAttribute::FwMark(0));
            attributes.push(RuleAttribute::FwMask(mask));
            attributes.push(RuleAttribute::Iifname("lo".to_owned()));
        }
        Selector::MarkedTo { to, value, mask } => {
            message.header.dst_len = to.length;
            attributes.push(RuleAttribute::Destination(to.address));
            attributes.push(RuleAttribute::FwMark(value));
            attributes.push(RuleAttribute::FwMask(mask));
        }
        Selector::Asked { to, port } => {
            message.header.dst_len = to.length;
            attributes.push(RuleAttribute::Destination(to.address));
            attributes.push(RuleAttribute::IpProtocol(IpProtocol::Udp));
            attributes.push(RuleAttribute::DestinationPortRange(RulePortRange { start: port, end: port }));
        }
        Selector::Named { address, port, interface } => {
            message.header.src_len = Prefix::host(address).length;
            attributes.push(RuleAttribute::Source(address));
            // Of this host's own packets alone: the kernel would look for the ports of every one that it forwards
            // (`fib_rule_requires_fldissect`).
            attributes.push(RuleAttribute::Iifname("lo".to_owned()));
            attributes.push(RuleAttribute::Oifname(interface.to_string()));
            attributes.push(RuleAttribute::IpProtocol(IpProtocol::Udp));
            attributes.push(RuleAttribute::SourcePortRange(RulePortRange { start: port, end: port }));
        }
        Selector::Arrived { interface, .. } => attributes.push(RuleAttribute::Iifname(interface.to_owned())),
    }
    message
}

fn decode(message: &RuleMessage) -> Option<Rule> {
    let ipv4 = message.header.family == AddressFamily::Inet;
    let (mut priority, mut table, mut own) = (0, u32::from(message.header.table), false);
    let (mut source, mut value, mut mask) = (None, None, None);
    let (mut to, mut port) = (None, None);
    let (mut named, mut own_port) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(number) => priority = *number,
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Protocol(protocol) => own = u8::from(*protocol) == PROTOCOL,
            RuleAttribute::Source(address) => source = Some(*address),
            RuleAttribute::Destination(address) => {
                to = Some(Prefix { address: *address, length: message.header.dst_len })
            }
            RuleAttribute::DestinationPortRange(range) => port = Some(range.start),
            RuleAttribute::Oifname(name) => named = InterfaceName::new(name),
            RuleAttribute::SourcePortRange(range) => own_port = Some(range.start),
            RuleAttribute::FwMark(number) => value = Some(*number),
            RuleAttribute::FwMask(number) => mask = Some(*number),
            _ => {}
        }
    }
    if let Some(to) = to {
        let selector = match (port, value) {
            (Some(port), _) => Selector::Asked { to, port },
            (None, Some(value)) => Selector::MarkedTo { to, value, mask: mask.unwrap_or(u32::MAX) },
            (None, None) => return None,
        };
        return own.then_some(Rule { priority, selector, table });
    }
    if let (Some(address), Some(port), Some(interface)) = (source, own_port, named) {
        let selector = Selector::Named { address, port, interface };
        return own.then_some(Rule { priority, selector, table });
    }
    if let (Some(IpAddr::V6(address)), true) = (source, message.header.flags.bits() & FIND_SOURCE != 0) {
        let selector = Selector::FromOrChosen { address, mask: mask.unwrap_or(0) };
        return own.then_some(Rule { priority, selector, table });
    }
    // The kernel reports no mark of zero.
    let selector = match (source, value, mask) {
        (Some(address), None, Some(mask)) if mask != 0 => Selector::FromUnmarked { address, mask },
        (Some(address), ..) => Selector::From(address),
        (None, Some(value), mask) => Selector::Mark { value, mask: mask.unwrap_or(u32::MAX), ipv4 },
        (None, None, Some(mask)) => Selector::OwnUnmarked { mask, ipv4 },
        (None, None, None) => return None,
    };
    own.then_some(Rule { priority, selector, table })
}
