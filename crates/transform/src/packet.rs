//! Reading the headers of an inner packet: IPv4 or IPv6, TCP or UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use whimbrel_wire::{FlowTuple, Transport};

/// Place of the checksum in a TCP header.
pub const TCP_CHECKSUM: usize = 16;
/// Place of the checksum in a UDP header.
pub const UDP_CHECKSUM: usize = 6;

const MIN_TCP: usize = 20;
const UDP_LEN: usize = 8;
/// Place of the flags in a TCP header, and some of these (RFC 9293 §3.1).
const TCP_FLAGS: usize = 13;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// How many IPv6 extension headers are walked before a packet is refused.
const MAX_EXTENSIONS: usize = 8;

/// Whether a packet is a part of a fragmented one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// A whole packet.
    Whole,
    /// The fragment that has the transport header; the number is the IP identification.
    First(u32),
    /// A fragment without transport header: the ports are unknown.
    Later(u32),
}

/// What was found in a packet's headers. All offsets are in bytes from the packet's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Transport protocol.
    pub transport: Transport,
    /// Source address and port (port 0 in a later fragment).
    pub source: SocketAddr,
    /// Destination address and port (port 0 in a later fragment).
    pub destination: SocketAddr,
    /// Whole, or which fragment.
    pub fragment: Fragment,
    /// Where the transport header begins.
    pub transport_offset: usize,
    /// Where the payload begins; equal to `transport_offset` in a later fragment.
    pub payload_offset: usize,
    /// Where the packet ends by its IP header: bytes after it are padding.
    pub end: usize,
}

/// Why a packet is not one that a flow can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Shorter than its headers say.
    #[error("truncated packet")]
    Truncated,
    /// The version is neither 4 nor 6.
    #[error("not an IP packet")]
    NotIp,
    /// The transport is neither TCP nor UDP, or hidden behind an extension header that is not understood.
    #[error("transport protocol {0} is not carried")]
    Transport(u8),
    /// A length field contradicts another.
    #[error("malformed header")]
    Malformed,
}

impl Headers {
    /// Reads the headers of `packet`.
    ///
    /// # Errors
    /// [`PacketError`] for what is not an IPv4 or IPv6 packet of TCP or UDP, complete by its own length fields.
    pub fn parse(packet: &[u8]) -> Result<Self, PacketError> {
        let Network { protocol, source, destination, fragment, offset, end } = Network::parse(packet)?;
        let transport = Transport::from_protocol(protocol).ok_or(PacketError::Transport(protocol))?;
        let body = packet.get(..end).and_then(|whole| whole.get(offset..)).ok_or(PacketError::Truncated)?;
        let (source_port, destination_port, header_len) = if let Fragment::Later(_) = fragment {
            (0, 0, 0)
        } else {
            let header_len = match transport {
                Transport::Tcp => usize::from(body.get(12).ok_or(PacketError::Truncated)? >> 4) * 4,
                Transport::Udp => UDP_LEN,
            };
            if transport == Transport::Tcp && header_len < MIN_TCP {
                return Err(PacketError::Malformed);
            }
            if body.len() < header_len {
                return Err(PacketError::Truncated);
            }
            (u16::from_be_bytes([body[0], body[1]]), u16::from_be_bytes([body[2], body[3]]), header_len)
        };
        Ok(Self {
            transport,
            source: SocketAddr::new(source, source_port),
            destination: SocketAddr::new(destination, destination_port),
            fragment,
            transport_offset: offset,
            payload_offset: offset + header_len,
            end,
        })
    }

    /// The flow as the host knows it that **sends** the packet.
    #[must_use]
    pub fn outbound_tuple(&self) -> FlowTuple {
        FlowTuple { transport: self.transport, local: self.source, remote: self.destination }
    }

    /// The flow as the host knows it that **receives** the packet.
    #[must_use]
    pub fn inbound_tuple(&self) -> FlowTuple {
        FlowTuple { transport: self.transport, local: self.destination, remote: self.source }
    }

    /// Whether the packet is IPv6.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// Place of the transport checksum in the packet.
    #[must_use]
    pub fn checksum_offset(&self) -> usize {
        self.transport_offset
            + match self.transport {
                Transport::Tcp => TCP_CHECKSUM,
                Transport::Udp => UDP_CHECKSUM,
            }
    }

    /// Whether it is the first segment of a connection of TCP: SYN without ACK. `packet` is what was [parsed](Self::parse).
    #[must_use]
    pub fn opens(&self, packet: &[u8]) -> bool {
        let whole = self.transport == Transport::Tcp && !matches!(self.fragment, Fragment::Later(_));
        let flags = packet.get(self.transport_offset + TCP_FLAGS).filter(|_| whole);
        flags.is_some_and(|flags| flags & (SYN | RST | ACK) == SYN)
    }
}

/// What an IP header says, with its extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    /// What follows, by its number.
    pub(crate) protocol: u8,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) fragment: Fragment,
    /// Where that begins.
    pub(crate) offset: usize,
    /// Where the packet ends, as it says: it may have been cut off before.
    pub(crate) end: usize,
}

impl Network {
    pub(crate) fn parse(packet: &[u8]) -> Result<Self, PacketError> {
        match packet.first().ok_or(PacketError::Truncated)? >> 4 {
            4 => Self::parse_v4(packet),
            6 => Self::parse_v6(packet),
            _ => Err(PacketError::NotIp),
        }
    }

    fn parse_v4(packet: &[u8]) -> Result<Self, PacketError> {
        let header: &[u8; 20] = packet.first_chunk().ok_or(PacketError::Truncated)?;
        let offset = usize::from(header[0] & 15) * 4;
        let end = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if offset < 20 || end < offset {
            return Err(PacketError::Malformed);
        }
        let fragment_field = u16::from_be_bytes([header[6], header[7]]);
        let id = u32::from(u16::from_be_bytes([header[4], header[5]]));
        let fragment = match (fragment_field & 0x1fff, fragment_field & 0x2000 != 0) {
            (0, false) => Fragment::Whole,
            (0, true) => Fragment::First(id),
            _ => Fragment::Later(id),
        };
        let source = IpAddr::V4(Ipv4Addr::from([header[12], header[13], header[14], header[15]]));
        let destination = IpAddr::V4(Ipv4Addr::from([header[16], header[17], header[18], header[19]]));
        Ok(Self { protocol: header[9], source, destination, fragment, offset, end })
    }

    fn parse_v6(packet: &[u8]) -> Result<Self, PacketError> {
        let header: &[u8; 40] = packet.first_chunk().ok_or(PacketError::Truncated)?;
        let end = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
        let (source, _) = header[8..].split_first_chunk::<16>().ok_or(PacketError::Truncated)?;
        let (destination, _) = header[24..].split_first_chunk::<16>().ok_or(PacketError::Truncated)?;
        let (mut protocol, mut offset, mut fragment) = (header[6], 40, Fragment::Whole);
        for _ in 0..MAX_EXTENSIONS {
            let extension = packet.get(offset..offset + 8);
            match protocol {
                // Hop-by-hop and destination options (RFC 8200 §4.3, §4.6). A routing header changes the destination
                // on the way, so a packet that has one is refused.
                0 | 60 => {
                    let extension = extension.ok_or(PacketError::Truncated)?;
                    protocol = extension[0];
                    offset += 8 + 8 * usize::from(extension[1]);
                }
                44 => {
                    let extension = extension.ok_or(PacketError::Truncated)?;
                    let field = u16::from_be_bytes([extension[2], extension[3]]);
                    let id = u32::from_be_bytes([extension[4], extension[5], extension[6], extension[7]]);
                    protocol = extension[0];
                    offset += 8;
                    fragment = match (field & 0xfff8, field & 1 != 0) {
                        (0, false) => Fragment::Whole,
                        (0, true) => Fragment::First(id),
                        _ => Fragment::Later(id),
                    };
                    if let Fragment::Later(_) = fragment {
                        break;
                    }
                }
                _ => break,
            }
        }
        let source = IpAddr::V6(Ipv6Addr::from(*source));
        let destination = IpAddr::V6(Ipv6Addr::from(*destination));
        Ok(Self { protocol, source, destination, fragment, offset, end })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::checksum;
    use proptest::prelude::*;

    /// What a test packet is made of.
    #[derive(Clone, Debug)]
    pub(crate) struct Made {
        pub(crate) transport: Transport,
        pub(crate) source: SocketAddr,
        pub(crate) destination: SocketAddr,
        pub(crate) options: usize,
        pub(crate) flags: u8,
        pub(crate) payload: Vec<u8>,
    }

    impl Made {
        pub(crate) fn tcp(payload: Vec<u8>) -> Self {
            Self {
                transport: Transport::Tcp,
                source: "10.1.2.3:40000".parse().unwrap(),
                destination: "192.0.2.9:80".parse().unwrap(),
                options: 12,
                flags: 0x10,
                payload,
            }
        }

        pub(crate) fn udp(payload: Vec<u8>) -> Self {
            Self { transport: Transport::Udp, ..Self::tcp(payload) }
        }

        pub(crate) fn v6(mut self) -> Self {
            self.source = "[2001:db8::1]:40000".parse().unwrap();
            self.destination = "[2001:db8:ffff::9]:80".parse().unwrap();
            self
        }

        /// The packet; with `partial`, its checksum is the pseudo-header's sum.
        pub(crate) fn build(&self, partial: bool) -> Vec<u8> {
            let mut body = Vec::new();
            body.extend(self.source.port().to_be_bytes());
            body.extend(self.destination.port().to_be_bytes());
            let checksum_at = if self.transport == Transport::Tcp {
                body.extend(0xffff_ff00u32.to_be_bytes());
                body.extend(77u32.to_be_bytes());
                body.extend([((20 + self.options) as u8 / 4) << 4, self.flags, 1, 0, 0, 0, 0, 0]);
                body.extend(std::iter::repeat_n(1, self.options));
                TCP_CHECKSUM
            } else {
                body.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                body.extend([0, 0]);
                UDP_CHECKSUM
            };
            body.extend(&self.payload);
            let pseudo = pseudo_sum(self.source, self.destination, self.transport, body.len());
            let value = if partial { pseudo } else { !checksum::add(pseudo, checksum::sum(&body)) };
            let value = if value == 0 && self.transport == Transport::Udp { 0xffff } else { value };
            body[checksum_at..checksum_at + 2].copy_from_slice(&value.to_be_bytes());
            let mut packet = Vec::new();
            match (self.source.ip(), self.destination.ip()) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    packet.extend([0x45, 0]);
                    packet.extend((20 + body.len() as u16).to_be_bytes());
                    packet.extend([0x12, 0xff, 0x40, 0, 64, self.transport.protocol(), 0, 0]);
                    packet.extend(source.octets());
                    packet.extend(destination.octets());
                    let value = !checksum::sum(&packet);
                    packet[10..12].copy_from_slice(&value.to_be_bytes());
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    packet.extend([0x60, 0, 0, 1]);
                    packet.extend((body.len() as u16).to_be_bytes());
                    packet.extend([self.transport.protocol(), 64]);
                    packet.extend(source.octets());
                    packet.extend(destination.octets());
                }
                _ => unreachable!(),
            }
            packet.extend(body);
            packet
        }
    }

    pub(crate) fn pseudo_sum(source: SocketAddr, destination: SocketAddr, transport: Transport, len: usize) -> u16 {
        let mut bytes = Vec::new();
        for address in [source.ip(), destination.ip()] {
            match address {
                IpAddr::V4(address) => bytes.extend(address.octets()),
                IpAddr::V6(address) => bytes.extend(address.octets()),
            }
        }
        bytes.extend((len as u32).to_be_bytes());
        bytes.extend([0, transport.protocol()]);
        checksum::sum(&bytes)
    }

    /// Whether both checksums of a packet are right.
    pub(crate) fn checksums_hold(packet: &[u8]) -> bool {
        let headers = Headers::parse(packet).unwrap();
        let body = &packet[headers.transport_offset..headers.end];
        let pseudo = pseudo_sum(headers.source, headers.destination, headers.transport, body.len());
        let network = headers.is_v6() || checksum::sum(&packet[..headers.transport_offset]) == 0xffff;
        network && checksum::add(pseudo, checksum::sum(body)) == 0xffff
    }

    #[test]
    fn the_first_segment_of_a_connection_is_told_from_others() {
        for v6 in [false, true] {
            for (flags, opens) in [(0x02, true), (0xc2, true), (0x12, false), (0x06, false), (0x10, false)] {
                let packet = Made { flags, ..Made::tcp(Vec::new()) }.build(v6);
                assert_eq!(Headers::parse(&packet).expect("a packet").opens(&packet), opens, "{flags:#x}");
            }
            let datagram = Made { flags: 0x02, ..Made::udp(vec![2; 20]) }.build(v6);
            assert!(!Headers::parse(&datagram).expect("a packet").opens(&datagram));
        }
    }

    #[test]
    fn headers_are_found() {
        let made = Made::tcp(b"hello".to_vec());
        for made in [made.clone(), made.v6(), Made::udp(vec![1; 9]), Made::udp(vec![]).v6()] {
            let packet = made.build(false);
            let headers = Headers::parse(&packet).unwrap();
            assert_eq!((headers.source, headers.destination), (made.source, made.destination));
            assert_eq!(&packet[headers.payload_offset..headers.end], &made.payload);
            assert_eq!(headers.fragment, Fragment::Whole);
            assert!(checksums_hold(&packet));
        }
    }

    #[test]
    fn fragments_are_told_apart() {
        let mut packet = Made::udp(vec![1; 64]).build(false);
        packet[6] = 0x20;
        assert_eq!(Headers::parse(&packet).unwrap().fragment, Fragment::First(0x12ff));
        packet[7] = 9;
        let later = Headers::parse(&packet).unwrap();
        assert_eq!((later.fragment, later.source.port()), (Fragment::Later(0x12ff), 0));
        let mut packet = Made::udp(vec![1; 64]).v6().build(false);
        packet[6] = 44;
        packet[4..6].copy_from_slice(&80u16.to_be_bytes());
        packet.splice(40..40, [17, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!(Headers::parse(&packet).unwrap().fragment, Fragment::First(7));
    }

    #[test]
    fn other_transports_are_refused() {
        let mut packet = Made::tcp(vec![]).build(false);
        packet[9] = 1;
        assert_eq!(Headers::parse(&packet), Err(PacketError::Transport(1)));
        assert_eq!(Headers::parse(&[]), Err(PacketError::Truncated));
        assert_eq!(Headers::parse(&[0x70; 60]), Err(PacketError::NotIp));
    }

    proptest! {
        #[test]
        fn noise_never_panics(mut data in proptest::collection::vec(any::<u8>(), 0..200), v6: bool) {
            if let Some(first) = data.first_mut() {
                *first = if v6 { 0x60 } else { 0x45 };
            }
            if let Ok(headers) = Headers::parse(&data) {
                prop_assert!(headers.payload_offset <= headers.end && headers.end <= data.len());
            }
        }

        #[test]
        fn truncation_is_seen(v6: bool, len in 0usize..60, cut in 1usize..80) {
            let made = Made::tcp(vec![3; len]);
            let packet = if v6 { made.v6() } else { made }.build(false);
            let cut = cut.min(packet.len());
            prop_assert!(Headers::parse(&packet[..packet.len() - cut]).is_err());
        }
    }
}
