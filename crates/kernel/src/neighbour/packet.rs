//! Questions for link-layer addresses, answers and claims (RFC 826, 5227, 4861), without their link-layer headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use whimbrel_wire::Transport;
use whimbrel_wire::packet::{Fragment, Headers, ICMPV6, Ip, Network};

/// A link-layer address of Ethernet.
pub(crate) type Mac = [u8; 6];

/// Ethertypes (RFC 9542, appendix B).
pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;

const ARP_LEN: usize = 28;
/// Ethernet, IPv4, and the lengths of their addresses.
const ARP_START: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
const UDP_HEADER: usize = 8;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
/// Neighbour discovery takes only what has passed no router (RFC 4861 §7.1).
const HOPS: u8 = 255;

/// What a packet on the link is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Somebody asks for an address, to send there.
    Asks { address: IpAddr, asker: IpAddr, mac: Mac },
    /// Somebody has an address, or looks whether anybody has it since it wants it.
    Claims { address: IpAddr },
    /// A datagram to a port of an address.
    Datagram { address: IpAddr, source: IpAddr, source_port: u16, port: u16, payload: Vec<u8> },
}

/// Reads what came from somebody with this link-layer address.
pub(crate) fn read(ethertype: u16, packet: &[u8]) -> Option<Said> {
    match ethertype {
        ETHERTYPE_ARP => read_arp(packet),
        ETHERTYPE_IPV4 => read_ipv4(packet),
        ETHERTYPE_IPV6 => read_ipv6(packet),
        _ => None,
    }
}

fn read_arp(packet: &[u8]) -> Option<Said> {
    let packet = packet.get(..ARP_LEN).filter(|packet| packet.starts_with(&ARP_START))?;
    let mac: Mac = packet[8..14].try_into().ok()?;
    let address = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
    let (sender, target) = (address(14), address(24));
    if !sender.is_unspecified() {
        // One that asks for itself says that it has its address (RFC 5227 §3).
        return Some(if packet[7] == ARP_REQUEST && sender != target {
            Said::Asks { address: target.into(), asker: sender.into(), mac }
        } else {
            Said::Claims { address: sender.into() }
        });
    }
    (packet[7] == ARP_REQUEST).then_some(Said::Claims { address: target.into() })
}

fn read_ipv4(packet: &[u8]) -> Option<Said> {
    Headers::parse(packet).ok().filter(|headers| !headers.is_v6()).and_then(|headers| read_udp(packet, &headers))
}

fn read_ipv6(packet: &[u8]) -> Option<Said> {
    let Network { protocol, source, fragment, offset, end, .. } = Network::parse(packet).ok()?;
    let IpAddr::V6(source) = source else { return None };
    if protocol != ICMPV6 {
        return Headers::parse(packet).ok().and_then(|headers| read_udp(packet, &headers));
    }
    // RFC 6980: what is cut up is none.
    if packet.get(7) != Some(&HOPS) || fragment != Fragment::Whole {
        return None;
    }
    let body = packet.get(offset..end)?;
    let target = IpAddr::from(<[u8; 16]>::try_from(body.get(8..24)?).ok()?);
    match body[0] {
        // RFC 4862 §5.4.3: who has no address yet looks whether anybody has this one.
        SOLICITATION if source.is_unspecified() => Some(Said::Claims { address: target }),
        SOLICITATION => {
            let mac = option(body.get(24..)?, SOURCE_LINK_ADDRESS)?;
            Some(Said::Asks { address: target, asker: source.into(), mac })
        }
        ADVERTISEMENT => Some(Said::Claims { address: target }),
        _ => None,
    }
}

/// The link-layer address in an option of neighbour discovery (RFC 4861 §4.6.1).
fn option(mut options: &[u8], kind: u8) -> Option<Mac> {
    loop {
        let length = usize::from(*options.get(1)?) * 8;
        if length == 0 {
            return None;
        }
        if options[0] == kind {
            return options.get(2..8)?.try_into().ok();
        }
        options = options.get(length..)?;
    }
}

fn read_udp(packet: &[u8], headers: &Headers) -> Option<Said> {
    if headers.transport != Transport::Udp || headers.fragment != Fragment::Whole {
        return None;
    }
    let body = packet.get(headers.transport_offset..headers.end)?;
    let length = usize::from(u16::from_be_bytes([*body.get(4)?, *body.get(5)?]));
    let payload = body.get(UDP_HEADER..length)?.to_vec();
    let (source, destination) = (headers.source, headers.destination);
    Some(Said::Datagram {
        address: destination.ip(),
        source: source.ip(),
        source_port: source.port(),
        port: destination.port(),
        payload,
    })
}

/// Who is asked, and what is said: a packet, where it goes and its ethertype.
pub(crate) struct Frame {
    pub(crate) ethertype: u16,
    pub(crate) to: Mac,
    pub(crate) packet: Vec<u8>,
}

/// Asks whether anybody has an address (RFC 5227 §2.1.1, RFC 4862 §5.4.2).
pub(crate) fn probe(own: Mac, address: IpAddr) -> Frame {
    match address {
        IpAddr::V4(address) => arp(ARP_REQUEST, (own, Ipv4Addr::UNSPECIFIED), ([0; 6], address), BROADCAST),
        IpAddr::V6(address) => {
            let group = solicited_node(address);
            neighbour(Ipv6Addr::UNSPECIFIED, group, (SOLICITATION, 0), (address, &[]), multicast(group))
        }
    }
}

/// Asks all on the link where `address` is, in the name of an address that this host has there. Whoever answers knows
/// by this where the asker is (RFC 826, RFC 4861 §7.2.2). `None`: the two are not of one family.
pub(crate) fn question(own: Mac, asker: IpAddr, address: IpAddr) -> Option<Frame> {
    match (asker, address) {
        (IpAddr::V4(asker), IpAddr::V4(address)) => Some(arp(ARP_REQUEST, (own, asker), ([0; 6], address), BROADCAST)),
        (IpAddr::V6(asker), IpAddr::V6(address)) => {
            let group = solicited_node(address);
            let option = [&[SOURCE_LINK_ADDRESS, 1], &own[..]].concat();
            Some(neighbour(asker, group, (SOLICITATION, 0), (address, &option), multicast(group)))
        }
        _ => None,
    }
}

/// Says to all that `own` is to be sent what goes to an address (RFC 5227 §2.3, RFC 4861 §7.2.6).
pub(crate) fn announcement(own: Mac, address: IpAddr) -> Frame {
    match address {
        IpAddr::V4(address) => arp(ARP_REQUEST, (own, address), ([0; 6], address), BROADCAST),
        IpAddr::V6(address) => {
            let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            advertisement(own, address, false, all, multicast(all))
        }
    }
}

/// Answers who asks for an address.
pub(crate) fn answer(own: Mac, address: IpAddr, asker: IpAddr, mac: Mac) -> Option<Frame> {
    match (address, asker) {
        (IpAddr::V4(address), IpAddr::V4(asker)) => Some(arp(ARP_REPLY, (own, address), (mac, asker), mac)),
        (IpAddr::V6(address), IpAddr::V6(asker)) => Some(advertisement(own, address, true, asker, mac)),
        _ => None,
    }
}

const BROADCAST: Mac = [0xff; 6];

fn arp(operation: u8, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr), to: Mac) -> Frame {
    let mut packet = ARP_START.to_vec();
    packet.extend_from_slice(&[0, operation]);
    for (mac, address) in [sender, target] {
        packet.extend_from_slice(&mac);
        packet.extend_from_slice(&address.octets());
    }
    Frame { ethertype: ETHERTYPE_ARP, to, packet }
}

/// As a home agent does for a node that is away, with the override flag (RFC 6275 §10.4.1): what neighbours remember is
/// the address of a host that is gone.
fn advertisement(own: Mac, address: Ipv6Addr, solicited: bool, to: Ipv6Addr, mac: Mac) -> Frame {
    const SOLICITED: u8 = 0x40;
    const OVERRIDE: u8 = 0x20;
    let flags = if solicited { SOLICITED | OVERRIDE } else { OVERRIDE };
    let option = [&[TARGET_LINK_ADDRESS, 1], &own[..]].concat();
    neighbour(address, to, (ADVERTISEMENT, flags), (address, &option), mac)
}

/// A message of neighbour discovery about an address, with options.
fn neighbour(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    (kind, flags): (u8, u8),
    (about, options): (Ipv6Addr, &[u8]),
    to: Mac,
) -> Frame {
    let ip = Ip { hops: HOPS, ..Ip::new(source.into(), destination.into()) };
    let body = [&about.octets(), options].concat();
    // One family, and shorter than any packet may be.
    let packet = ip.icmp(kind, 0, [flags, 0, 0, 0], &body).unwrap_or_default();
    Frame { ethertype: ETHERTYPE_IPV6, to, packet }
}

/// The group that questions for an address go to (RFC 4291 §2.7.1).
pub(crate) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// Where a group is on Ethernet (RFC 2464 §7).
fn multicast(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_said_is_understood() {
        for (left, asker) in [("10.0.0.9", "10.0.0.1"), ("2001:db8::9", "2001:db8::1")] {
            let (left, asker) = (address(left), address(asker));
            let claims = Some(Said::Claims { address: left });
            for frame in [probe(OTHER, left), announcement(OTHER, left), answer(OTHER, left, asker, OWN).unwrap()] {
                assert_eq!(read(frame.ethertype, &frame.packet), claims, "{left}");
                for short in 0..frame.packet.len().min(28) {
                    assert_eq!(read(frame.ethertype, &frame.packet[..short]), None);
                }
            }
        }
        assert_eq!(answer(OWN, address("10.0.0.9"), address("::1"), OTHER).map(|frame| frame.to), None);
    }

    #[test]
    fn questions_are_told_from_claims() {
        for (asker, left) in [("10.0.0.1", "10.0.0.9"), ("2001:db8::1", "2001:db8::9")] {
            let (asker, left) = (address(asker), address(left));
            let frame = question(OTHER, asker, left).unwrap();
            let asks = Said::Asks { address: left, asker, mac: OTHER };
            assert_eq!(read(frame.ethertype, &frame.packet), Some(asks));
        }
        assert!(question(OTHER, address("10.0.0.1"), address("2001:db8::9")).is_none());
        let (asker, left) = ("2001:db8::1".parse().unwrap(), "2001:db8::9".parse::<Ipv6Addr>().unwrap());
        let options = [&[14, 1, 0, 0, 0, 0, 0, 0, SOURCE_LINK_ADDRESS, 1], &OTHER[..]].concat();
        let frame = neighbour(asker, solicited_node(left), (SOLICITATION, 0), (left, &options), OWN);
        let asks = Said::Asks { address: left.into(), asker: asker.into(), mac: OTHER };
        assert_eq!(read(frame.ethertype, &frame.packet), Some(asks));
        // From beyond a router.
        let mut far = frame.packet;
        far[7] = 254;
        assert_eq!(read(frame.ethertype, &far), None);
    }

    #[test]
    fn datagrams_are_whole_or_nothing() {
        let mut packet = vec![0x45, 0, 0, 33, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 9];
        packet.extend_from_slice(&[0x07, 0xd0, 0x07, 0xef, 0, 13, 0, 0]);
        packet.extend_from_slice(b"hello and padding");
        let said = read(ETHERTYPE_IPV4, &packet);
        let (address, source) = (address("10.0.0.9"), address("10.0.0.1"));
        let payload = b"hello".to_vec();
        assert_eq!(said, Some(Said::Datagram { address, source, source_port: 2000, port: 2031, payload }));
        for (at, value) in [(0, 0x44), (0, 0x65), (6, 0x20), (9, 6), (25, 7), (25, 255)] {
            let mut other = packet.clone();
            other[at] = value;
            assert_eq!(read(ETHERTYPE_IPV4, &other), None, "{at}");
        }
        assert_eq!(read(0x88cc, &packet), None);
    }

    #[test]
    fn groups_and_checksums_are_as_the_standards_have_them() {
        let target = "fe80::1234:56ff:fe78:9abc".parse().unwrap();
        assert_eq!(solicited_node(target), "ff02::1:ff78:9abc".parse::<Ipv6Addr>().unwrap());
        let frame = probe(OWN, target.into());
        assert_eq!(frame.to, [0x33, 0x33, 0xff, 0x78, 0x9a, 0xbc]);
        // The sum over everything with its checksum in place is all ones.
        let mut sum = u32::from(ICMPV6) + 24;
        for pair in frame.packet[8..].chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        assert_eq!((sum >> 16) + (sum & 0xffff), 0xffff);
    }
}
