//! Packets from what is in them, checksums and all, so that a translated packet can be compared with the one that its
//! sender would have made.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::{IpAddr, SocketAddr};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ETHERNET: usize = 14;

#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) protocol: u8,
    pub(crate) payload: Vec<u8>,
    /// TCP options, a multiple of four bytes.
    pub(crate) tcp_options: Vec<u8>,
    pub(crate) tcp_flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) window: u16,
    /// IPv4 options, a multiple of four bytes.
    pub(crate) ip_options: Vec<u8>,
    /// IPv6 extension headers and their numbers.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    /// UDP only.
    pub(crate) no_checksum: bool,
    pub(crate) hop_limit: u8,
}

pub(crate) fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

pub(crate) fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

pub(crate) fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u32 {
    sum(&octets(source)) + sum(&octets(destination)) + u32::from(protocol) + length as u32
}

pub(crate) fn ethernet(ip: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = if ip[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind, ip].concat()
}

/// An IP packet of any content.
pub(crate) fn ip(source: IpAddr, destination: IpAddr, protocol: u8, hop_limit: u8, body: &[u8]) -> Vec<u8> {
    ip_with(source, destination, protocol, hop_limit, &[], 0, body)
}

fn ip_with(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    hop_limit: u8,
    options: &[u8],
    fragment: u16,
    body: &[u8],
) -> Vec<u8> {
    let mut packet;
    if source.is_ipv4() {
        let length = (20 + options.len() + body.len()) as u16;
        packet = vec![0x45 + (options.len() / 4) as u8, 0];
        packet.extend(length.to_be_bytes());
        packet.extend([0x12, 0x34]);
        packet.extend(fragment.to_be_bytes());
        packet.extend([hop_limit, protocol, 0, 0]);
        packet.extend(octets(source));
        packet.extend(octets(destination));
        packet.extend(options);
        let checksum = fold(sum(&packet));
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        packet = vec![0x60, 0, 0, 0];
        packet.extend((body.len() as u16).to_be_bytes());
        packet.extend([protocol, hop_limit]);
        packet.extend(octets(source));
        packet.extend(octets(destination));
    }
    packet.extend(body);
    packet
}

impl Packet {
    pub(crate) fn new(protocol: u8, source: SocketAddr, destination: SocketAddr) -> Self {
        Self {
            source,
            destination,
            protocol,
            payload: (0..101).collect(),
            tcp_options: Vec::new(),
            tcp_flags: 0x18,
            sequence: 0x0102_0304,
            acknowledgement: 0x0506_0708,
            window: 0x2000,
            ip_options: Vec::new(),
            extensions: Vec::new(),
            no_checksum: false,
            hop_limit: 61,
        }
    }

    /// The TCP segment or UDP datagram.
    pub(crate) fn segment(&self) -> Vec<u8> {
        let mut segment = Vec::new();
        segment.extend(self.source.port().to_be_bytes());
        segment.extend(self.destination.port().to_be_bytes());
        let at = if self.protocol == TCP {
            segment.extend(self.sequence.to_be_bytes());
            segment.extend(self.acknowledgement.to_be_bytes());
            segment.extend([((5 + self.tcp_options.len() / 4) << 4) as u8, self.tcp_flags]);
            segment.extend(self.window.to_be_bytes());
            segment.extend([0; 4]);
            segment.extend(&self.tcp_options);
            16
        } else {
            segment.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            segment.extend([0, 0]);
            6
        };
        segment.extend(&self.payload);
        if !self.no_checksum {
            let pseudo = pseudo_header(self.source.ip(), self.destination.ip(), self.protocol, segment.len());
            let checksum = match fold(pseudo + sum(&segment)) {
                0 if self.protocol == UDP => 0xffff,
                checksum => checksum,
            };
            segment[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        segment
    }

    /// The IP packet.
    pub(crate) fn ip(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let mut first = self.protocol;
        for (at, (number, extension)) in self.extensions.iter().enumerate() {
            if at == 0 {
                first = *number;
            }
            let next = self.extensions.get(at + 1).map_or(self.protocol, |(number, _)| *number);
            body.push(next);
            body.extend(&extension[1..]);
        }
        body.extend(self.segment());
        ip_with(self.source.ip(), self.destination.ip(), first, self.hop_limit, &self.ip_options, 0x4000, &body)
    }

    /// With an Ethernet header.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        ethernet(&self.ip())
    }

    /// The packet in fragments, the first with `first` bytes of the segment (a multiple of eight).
    pub(crate) fn fragments(&self, first: usize) -> [Vec<u8>; 2] {
        let segment = self.segment();
        let (head, tail) = segment.split_at(first);
        let (source, destination) = (self.source.ip(), self.destination.ip());
        let make = |body: &[u8], offset: u16, more: bool| {
            let ip = if source.is_ipv4() {
                let field = (offset / 8) | (u16::from(more) << 13);
                ip_with(source, destination, self.protocol, self.hop_limit, &[], field, body)
            } else {
                let field = (offset | u16::from(more)).to_be_bytes();
                let extension = [self.protocol, 0, field[0], field[1], 0xde, 0xad, 0xbe, 0xef];
                ip(source, destination, 44, self.hop_limit, &[&extension, body].concat())
            };
            ethernet(&ip)
        };
        [make(head, 0, true), make(tail, first as u16, false)]
    }
}

/// An ICMP or ICMPv6 message with an Ethernet header.
pub(crate) fn icmp(source: IpAddr, destination: IpAddr, kind: u8, code: u8, rest: [u8; 4], quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest);
    message.extend(quoted);
    let protocol = if source.is_ipv4() { 1 } else { 58 };
    let pseudo = if source.is_ipv4() { 0 } else { pseudo_header(source, destination, protocol, message.len()) };
    let checksum = fold(pseudo + sum(&message));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    ethernet(&ip(source, destination, protocol, 61, &message))
}
