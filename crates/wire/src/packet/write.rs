//! Whole packets from what is to stand in them, with their lengths and checksums.

use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use super::{ICMP, ICMPV6, Tcp, UDP};
use crate::Transport;
use crate::checksum;

/// What a packet begins with, in hops, unless it is said otherwise.
pub const HOPS: u8 = 64;
/// Of [`Ip::fragment`]: the packet must not be cut.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// Of [`Ip::fragment`]: it is not the last fragment.
pub const MORE_FRAGMENTS: u16 = 0x2000;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;

/// A packet cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// Source and destination are of two address families.
    MixedFamilies,
    /// A length does not fit its field.
    TooLong,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MixedFamilies => "mixes address families",
            Self::TooLong => "payload is too long for a packet",
        })
    }
}

impl core::error::Error for WriteError {}

/// What is to stand in an IP header.
#[derive(Clone, Copy, Debug)]
pub struct Ip<'a> {
    /// The sender.
    pub source: IpAddr,
    /// The receiver.
    pub destination: IpAddr,
    /// Time to live, or hop limit.
    pub hops: u8,
    /// DSCP and ECN (RFC 2474, RFC 3168).
    pub class: u8,
    /// IPv4 only.
    pub identification: u16,
    /// IPv4 only: flags, and the offset in units of 8 bytes.
    pub fragment: u16,
    /// IPv4 only: a multiple of 4 bytes.
    pub options: &'a [u8],
}

impl Ip<'_> {
    /// A header with [`HOPS`] that must not be cut, with identification 0 (RFC 6864 §4.1).
    #[must_use]
    pub fn new(source: IpAddr, destination: IpAddr) -> Self {
        Self { source, destination, hops: HOPS, class: 0, identification: 0, fragment: DONT_FRAGMENT, options: &[] }
    }

    /// The packet that carries this payload of a protocol.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn packet(&self, protocol: u8, payload: &[u8]) -> Result<Vec<u8>, WriteError> {
        let short = |length: usize| u16::try_from(length).map_err(|_| WriteError::TooLong);
        let mut packet;
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = IPV4_HEADER + self.options.len();
                let words = u8::try_from(header / 4).ok().filter(|words| *words < 16).ok_or(WriteError::TooLong)?;
                let length = short(header + payload.len())?;
                packet = Vec::with_capacity(usize::from(length));
                packet.extend_from_slice(&[0x40 | words, self.class]);
                for number in [length, self.identification, self.fragment] {
                    packet.extend_from_slice(&number.to_be_bytes());
                }
                packet.extend_from_slice(&[self.hops, protocol, 0, 0]);
                packet.extend_from_slice(&source.octets());
                packet.extend_from_slice(&destination.octets());
                packet.extend_from_slice(self.options);
                let value = !checksum::sum(&packet);
                packet[10..12].copy_from_slice(&value.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let length = short(payload.len())?.to_be_bytes();
                packet = Vec::with_capacity(IPV6_HEADER + payload.len());
                packet.extend_from_slice(&[0x60 | self.class >> 4, self.class << 4, 0, 0]);
                packet.extend_from_slice(&[length[0], length[1], protocol, self.hops]);
                packet.extend_from_slice(&source.octets());
                packet.extend_from_slice(&destination.octets());
            }
            _ => return Err(WriteError::MixedFamilies),
        }
        packet.extend_from_slice(payload);
        Ok(packet)
    }

    /// A segment of TCP.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn tcp(&self, segment: &Tcp<'_>) -> Result<Vec<u8>, WriteError> {
        let protocol = Transport::Tcp.protocol();
        self.packet(protocol, &self.complete(protocol, segment.write()?, super::TCP_CHECKSUM))
    }

    /// A datagram of UDP.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn udp(&self, source_port: u16, destination_port: u16, payload: &[u8]) -> Result<Vec<u8>, WriteError> {
        let length = u16::try_from(UDP_HEADER + payload.len()).map_err(|_| WriteError::TooLong)?;
        let mut datagram = Vec::with_capacity(usize::from(length));
        for number in [source_port, destination_port, length, 0] {
            datagram.extend_from_slice(&number.to_be_bytes());
        }
        datagram.extend_from_slice(payload);
        self.packet(UDP, &self.complete(UDP, datagram, super::UDP_CHECKSUM))
    }

    /// A message of ICMP, or of ICMPv6: `rest` is what follows the checksum, `body` what follows that.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn icmp(&self, kind: u8, code: u8, rest: [u8; 4], body: &[u8]) -> Result<Vec<u8>, WriteError> {
        let protocol = if self.source.is_ipv4() { ICMP } else { ICMPV6 };
        let mut message = Vec::with_capacity(8 + body.len());
        message.extend_from_slice(&[kind, code, 0, 0]);
        message.extend_from_slice(&rest);
        message.extend_from_slice(body);
        self.packet(protocol, &self.complete(protocol, message, 2))
    }

    /// Fills in the checksum at `at`, where there is zero.
    fn complete(&self, protocol: u8, mut body: Vec<u8>, at: usize) -> Vec<u8> {
        let value = body_checksum(self.source, self.destination, protocol, &body);
        body[at..at + 2].copy_from_slice(&value.to_be_bytes());
        body
    }
}

/// The checksum of what a packet carries, as it stands in its header, which has zero for it.
#[must_use]
pub fn body_checksum(source: IpAddr, destination: IpAddr, protocol: u8, body: &[u8]) -> u16 {
    // Of all these ICMP alone has no pseudo-header.
    let pseudo = if protocol == ICMP { 0 } else { pseudo_sum(source, destination, protocol, body.len()) };
    match !checksum::add(pseudo, checksum::sum(body)) {
        // In UDP zero means "none" (RFC 768).
        0 if protocol == UDP => 0xffff,
        value => value,
    }
}

/// The sum of the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1: as sums both come to the same). `length`: of what the
/// packet carries.
#[must_use]
pub fn pseudo_sum(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u16 {
    let of = |address: IpAddr| match address {
        IpAddr::V4(address) => checksum::sum(&address.octets()),
        IpAddr::V6(address) => checksum::sum(&address.octets()),
    };
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    let rest = checksum::add(checksum::sum(&length), protocol.into());
    checksum::add(checksum::add(of(source), of(destination)), rest)
}
