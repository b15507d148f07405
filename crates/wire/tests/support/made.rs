//! Packets for tests.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::{IpAddr, SocketAddr};

use whimbrel_wire::packet::{Headers, TCP_CHECKSUM, UDP_CHECKSUM};
use whimbrel_wire::{Transport, checksum};

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
