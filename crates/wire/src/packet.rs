//! Headers of packets: IPv4 and IPv6, TCP, UDP and ICMP (RFC 791, 8200, 9293, 768, 792, 4443).
//!
//! [`Network`], [`Headers`] and [`Tcp`] read them, [`write`] makes whole packets. They are of this workspace since what
//! they read decides whose a packet is: fragments by their identification, packets that are quoted and cut off, no
//! header that is not understood (docs/decisions/0044).

pub mod tcp;
pub mod write;

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{FlowTuple, Transport};
pub use tcp::Tcp;
use tcp::flag::{ACK, RST, SYN};
pub use write::{Ip, WriteError};

/// Place of the checksum in a TCP header.
pub const TCP_CHECKSUM: usize = 16;
/// Place of the checksum in a UDP header.
pub const UDP_CHECKSUM: usize = 6;

/// Protocol numbers beside those of [`Transport`].
pub const ICMP: u8 = 1;
/// Of IPv6.
pub const ICMPV6: u8 = 58;
const UDP: u8 = Transport::Udp as u8;
const MIN_TCP: usize = 20;
const UDP_LEN: usize = 8;
/// Place of the flags in a TCP header.
const TCP_FLAGS: usize = 13;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// Shorter than its headers say.
    Truncated,
    /// The version is neither 4 nor 6.
    NotIp,
    /// The transport is neither TCP nor UDP, or hidden behind an extension header that is not understood.
    Transport(u8),
    /// A length field contradicts another.
    Malformed,
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("truncated packet"),
            Self::NotIp => f.write_str("not an IP packet"),
            Self::Transport(protocol) => write!(f, "transport protocol {protocol} is not carried"),
            Self::Malformed => f.write_str("malformed header"),
        }
    }
}

impl core::error::Error for PacketError {}

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
    #[inline]
    #[must_use]
    pub fn outbound_tuple(&self) -> FlowTuple {
        FlowTuple { transport: self.transport, local: self.source, remote: self.destination }
    }

    /// The flow as the host knows it that **receives** the packet.
    #[inline]
    #[must_use]
    pub fn inbound_tuple(&self) -> FlowTuple {
        FlowTuple { transport: self.transport, local: self.destination, remote: self.source }
    }

    /// Whether the packet is IPv6.
    #[inline]
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// Place of the transport checksum in the packet.
    #[inline]
    #[must_use]
    pub fn checksum_offset(&self) -> usize {
        self.transport_offset
            + match self.transport {
                Transport::Tcp => TCP_CHECKSUM,
                Transport::Udp => UDP_CHECKSUM,
            }
    }

    /// Whether it is the first segment of a connection of TCP: SYN without ACK. `packet` is what was
    /// [parsed](Self::parse).
    #[inline]
    #[must_use]
    pub fn opens(&self, packet: &[u8]) -> bool {
        let whole = self.transport == Transport::Tcp && !matches!(self.fragment, Fragment::Later(_));
        let flags = packet.get(self.transport_offset + TCP_FLAGS).filter(|_| whole);
        flags.is_some_and(|flags| flags & (SYN | RST | ACK) == SYN)
    }
}

/// What an IP header says, with its extensions. Offsets are in bytes from the packet's start.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// What follows, by its number.
    pub protocol: u8,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Whole, or which fragment.
    pub fragment: Fragment,
    /// Where that begins.
    pub offset: usize,
    /// Where the packet ends, as it says: it may have been cut off before.
    pub end: usize,
}

impl Network {
    /// Reads the IP header of `packet`, which need not be whole behind it.
    ///
    /// # Errors
    /// [`PacketError`] for what is no IP header, or has an extension that is cut off.
    pub fn parse(packet: &[u8]) -> Result<Self, PacketError> {
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
