//! Packets from what is in them, checksums and all, so that a translated packet can be compared with the one that its
//! sender would have made.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::packet::write::{DONT_FRAGMENT, MORE_FRAGMENTS};
use whimbrel_wire::packet::{Headers, Ip, TCP_CHECKSUM, Tcp, UDP_CHECKSUM};

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

pub(crate) fn ethernet(ip: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = if ip[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind, ip].concat()
}

/// An IP packet of any content.
pub(crate) fn ip(source: IpAddr, destination: IpAddr, protocol: u8, hops: u8, body: &[u8]) -> Vec<u8> {
    headers(source, destination, hops).packet(protocol, body).expect("a packet")
}

fn headers(source: IpAddr, destination: IpAddr, hops: u8) -> Ip<'static> {
    Ip { hops, identification: 0x1234, fragment: 0, ..Ip::new(source, destination) }
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
        let ip = headers(self.source.ip(), self.destination.ip(), self.hop_limit);
        let (source_port, destination_port) = (self.source.port(), self.destination.port());
        let packet = if self.protocol == TCP {
            ip.tcp(&Tcp {
                source_port,
                destination_port,
                sequence: self.sequence,
                acknowledgement: self.acknowledgement,
                flags: self.tcp_flags,
                window: self.window,
                options: &self.tcp_options,
                payload: &self.payload,
            })
        } else {
            ip.udp(source_port, destination_port, &self.payload)
        };
        let packet = packet.expect("a packet");
        let at = Headers::parse(&packet).expect("headers").transport_offset;
        let mut segment = packet[at..].to_vec();
        if self.no_checksum {
            let at = if self.protocol == TCP { TCP_CHECKSUM } else { UDP_CHECKSUM };
            segment[at..at + 2].fill(0);
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
        let ip = headers(self.source.ip(), self.destination.ip(), self.hop_limit);
        let ip = Ip { options: &self.ip_options, fragment: DONT_FRAGMENT, ..ip };
        ip.packet(first, &body).expect("a packet")
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
                let fragment = (offset / 8) | if more { MORE_FRAGMENTS } else { 0 };
                let ip = Ip { fragment, ..headers(source, destination, self.hop_limit) };
                ip.packet(self.protocol, body).expect("a packet")
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
    ethernet(&headers(source, destination, 61).icmp(kind, code, rest, quoted).expect("a packet"))
}
