//! A look at a frame on a link: as much of Ethernet, IP, TCP and UDP as scenarios ask about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// TCP flag bits (RFC 9293 §3.1).
pub mod tcp_flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
}

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

    /// Decodes IPv4 or IPv6 (without extension headers) and what is inside. `None` for everything else.
    pub fn ip(&self) -> Option<Packet<'a>> {
        let ip = self.bytes.get(14..)?;
        let (source, destination, protocol, payload, fragment) = match self.ethertype() {
            ETHER_IPV4 => {
                let header = usize::from(*ip.first()? & 0x0f) * 4;
                let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
                let fragment = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff != 0;
                let source: [u8; 4] = ip.get(12..16)?.try_into().ok()?;
                let destination: [u8; 4] = ip.get(16..20)?.try_into().ok()?;
                let payload = ip.get(header..total.min(ip.len()))?;
                (Ipv4Addr::from(source).into(), Ipv4Addr::from(destination).into(), *ip.get(9)?, payload, fragment)
            }
            ETHER_IPV6 => {
                let length = usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]));
                let source: [u8; 16] = ip.get(8..24)?.try_into().ok()?;
                let destination: [u8; 16] = ip.get(24..40)?.try_into().ok()?;
                let payload = ip.get(40..(40 + length).min(ip.len()))?;
                (Ipv6Addr::from(source).into(), Ipv6Addr::from(destination).into(), *ip.get(6)?, payload, false)
            }
            _ => return None,
        };
        Some(Packet { source, destination, protocol, payload, fragment })
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
    /// IP protocol number (of the first header, for IPv6).
    pub protocol: u8,
    /// What follows the IP header.
    pub payload: &'a [u8],
    /// True for every fragment of a fragmented packet.
    pub fragment: bool,
}

impl<'a> Packet<'a> {
    /// True if it comes from or goes to this address.
    pub fn involves(&self, address: IpAddr) -> bool {
        self.source == address || self.destination == address
    }

    /// Source and destination port of TCP and UDP.
    pub fn ports(&self) -> Option<(u16, u16)> {
        let p = self.payload.get(..4)?;
        matches!(self.protocol, TCP | UDP).then(|| (u16::from_be_bytes([p[0], p[1]]), u16::from_be_bytes([p[2], p[3]])))
    }

    /// Source and destination with ports.
    pub fn endpoints(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (s, d) = self.ports()?;
        Some((SocketAddr::new(self.source, s), SocketAddr::new(self.destination, d)))
    }

    /// The TCP segment, if it is one.
    pub fn tcp(&self) -> Option<Segment<'a>> {
        let p = self.payload;
        if self.protocol != TCP || p.len() < 20 {
            return None;
        }
        let header = usize::from(p[12] >> 4) * 4;
        Some(Segment {
            sequence: u32::from_be_bytes([p[4], p[5], p[6], p[7]]),
            acknowledgement: u32::from_be_bytes([p[8], p[9], p[10], p[11]]),
            flags: p[13],
            options: p.get(20..header)?,
            data: p.get(header..)?,
        })
    }

    /// The payload of a UDP datagram, if it is one.
    pub fn udp(&self) -> Option<&'a [u8]> {
        if self.protocol == UDP { self.payload.get(8..) } else { None }
    }
}

/// A TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// See [`tcp_flags`].
    pub flags: u8,
    /// Options as they stand.
    pub options: &'a [u8],
    /// Data.
    pub data: &'a [u8],
}

impl Segment<'_> {
    /// True if all of these flags are set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
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
        assert_eq!((segment.sequence, segment.acknowledgement, segment.data), (7, 9, &b"abc"[..]));
        assert!(segment.has(tcp_flags::RST | tcp_flags::ACK) && !segment.has(tcp_flags::SYN));
        assert!(packet.udp().is_none());
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
