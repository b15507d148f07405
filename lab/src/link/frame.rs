//! A look at a frame on a link: as much of Ethernet, IP, TCP and UDP as scenarios ask about.

use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::packet::{Fragment, Network};
pub use whimbrel_wire::packet::{Tcp as Segment, tcp::flag as tcp_flags};

const ETHER_IPV4: u16 = 0x0800;
const ETHER_IPV6: u16 = 0x86dd;
const ETHER_ARP: u16 = 0x0806;
/// IP protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A frame as it entered a link.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The whole Ethernet frame, without checksum.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// EtherType.
    pub fn ethertype(&self) -> u16 {
        self.u16_at(12).unwrap_or(0)
    }

    /// True for ARP.
    pub fn is_arp(&self) -> bool {
        self.ethertype() == ETHER_ARP
    }

    /// Decodes IPv4 or IPv6 and what is inside. `None` for everything else.
    pub fn ip(&self) -> Option<Packet<'a>> {
        let ip = self.bytes.get(14..)?;
        let v6 = match self.ethertype() {
            ETHER_IPV4 => false,
            ETHER_IPV6 => true,
            _ => return None,
        };
        let Network { protocol, source, destination, fragment, offset, end } = Network::parse(ip).ok()?;
        let payload = ip.get(offset..end.min(ip.len()))?;
        (source.is_ipv6() == v6).then_some(Packet { source, destination, protocol, payload, fragment })
    }

    fn u16_at(&self, at: usize) -> Option<u16> {
        Some(u16::from_be_bytes([*self.bytes.get(at)?, *self.bytes.get(at + 1)?]))
    }
}

/// An IP packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Number of the protocol inside.
    pub protocol: u8,
    /// What follows the IP header.
    pub payload: &'a [u8],
    /// Whether it is a part of a fragmented packet. What is said of the protocol's header is of the first part alone.
    pub fragment: Fragment,
}

impl<'a> Packet<'a> {
    /// True if it comes from or goes to this address.
    pub fn involves(&self, address: IpAddr) -> bool {
        self.source == address || self.destination == address
    }

    /// Source and destination port of TCP and UDP.
    pub fn ports(&self) -> Option<(u16, u16)> {
        let p = self.header()?.get(..4)?;
        matches!(self.protocol, TCP | UDP).then(|| (u16::from_be_bytes([p[0], p[1]]), u16::from_be_bytes([p[2], p[3]])))
    }

    /// Source and destination with ports.
    pub fn endpoints(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (s, d) = self.ports()?;
        Some((SocketAddr::new(self.source, s), SocketAddr::new(self.destination, d)))
    }

    /// The TCP segment, if it is one.
    pub fn tcp(&self) -> Option<Segment<'a>> {
        self.header().filter(|_| self.protocol == TCP).and_then(|bytes| Segment::parse(bytes).ok())
    }

    /// The payload of a UDP datagram, if it is one.
    pub fn udp(&self) -> Option<&'a [u8]> {
        self.header().filter(|_| self.protocol == UDP)?.get(8..)
    }

    /// What follows the IP header, unless it is the middle or the end of a packet that was fragmented.
    fn header(&self) -> Option<&'a [u8]> {
        (!matches!(self.fragment, Fragment::Later(_))).then_some(self.payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp_v4() -> Vec<u8> {
        let mut f = vec![0; 12];
        f.extend([0x08, 0x00]);
        f.extend([0x45, 0, 0, 43, 0, 0, 0x40, 0, 64, 6, 0, 0, 198, 51, 100, 2, 203, 0, 113, 9]);
        f.extend([0x30, 0x39, 0, 80, 0, 0, 0, 7, 0, 0, 0, 9, 0x50, 0x14, 0, 0, 0, 0, 0, 0]);
        f.extend(b"abc");
        f.extend([0; 6]); // Ethernet padding is not data
        f
    }

    #[test]
    fn tcp_over_ipv4() {
        let bytes = tcp_v4();
        let packet = Frame::new(&bytes).ip().unwrap();
        let (from, to) = packet.endpoints().unwrap();
        assert_eq!((from.to_string(), to.to_string()), ("198.51.100.2:12345".into(), "203.0.113.9:80".into()));
        let segment = packet.tcp().unwrap();
        assert_eq!((segment.sequence, segment.acknowledgement, segment.payload), (7, 9, &b"abc"[..]));
        assert!(segment.has(tcp_flags::RST | tcp_flags::ACK) && !segment.has(tcp_flags::SYN));
        assert!(packet.udp().is_none());
    }

    #[test]
    fn the_end_of_a_fragmented_packet_has_no_ports_and_no_flags() {
        let mut bytes = tcp_v4();
        for (offset, parsed) in [(0x2000_u16, true), (0x0001, false), (0x2001, false)] {
            bytes[20..22].copy_from_slice(&offset.to_be_bytes());
            let packet = Frame::new(&bytes).ip().unwrap();
            assert_eq!((packet.tcp().is_some(), packet.endpoints().is_some()), (parsed, parsed), "{offset:#x}");
        }
    }

    #[test]
    fn no_prefix_of_a_frame_panics() {
        let bytes = tcp_v4();
        for n in 0..bytes.len() {
            let frame = Frame::new(&bytes[..n]);
            if let Some(p) = frame.ip() {
                let _ = (p.endpoints(), p.tcp(), p.udp());
            }
        }
    }
}
