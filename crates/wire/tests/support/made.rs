//! Packets for tests.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::SocketAddr;

use whimbrel_wire::packet::write::pseudo_sum;
use whimbrel_wire::packet::{Headers, Ip, Tcp};
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
        let (source_port, destination_port) = (self.source.port(), self.destination.port());
        let ip = Ip { identification: 0x12ff, ..Ip::new(self.source.ip(), self.destination.ip()) };
        let options = vec![1; self.options];
        let packet = match self.transport {
            Transport::Tcp => ip.tcp(&Tcp {
                source_port,
                destination_port,
                sequence: 0xffff_ff00,
                acknowledgement: 77,
                flags: self.flags,
                window: 0x100,
                options: &options,
                payload: &self.payload,
            }),
            Transport::Udp => ip.udp(source_port, destination_port, &self.payload),
        };
        let mut packet = packet.unwrap();
        if partial {
            let headers = Headers::parse(&packet).unwrap();
            let length = headers.end - headers.transport_offset;
            let sum = pseudo_sum(ip.source, ip.destination, self.transport.protocol(), length);
            let at = headers.checksum_offset();
            packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        packet
    }
}

/// Whether both checksums of a packet are right.
pub(crate) fn checksums_hold(packet: &[u8]) -> bool {
    let headers = Headers::parse(packet).unwrap();
    let body = &packet[headers.transport_offset..headers.end];
    let pseudo = pseudo_sum(headers.source.ip(), headers.destination.ip(), headers.transport.protocol(), body.len());
    let network = headers.is_v6() || checksum::sum(&packet[..headers.transport_offset]) == 0xffff;
    network && checksum::add(pseudo, checksum::sum(body)) == 0xffff
}
