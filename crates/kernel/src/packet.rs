//! The bytes of injected packets: IP, TCP, UDP and ICMP headers (RFC 791, 8200, 9293, 768, 792, 4443).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use whimbrel_wire::FlowTuple;

use crate::error::Error;
use crate::inject::{Numbers, Segment};

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const HOPS: u8 = 64;
/// In a quoted packet: a socket with IP_MINTTL ignores errors that quote less (`tcp_v4_err`).
const QUOTED_HOPS: u8 = 255;
const FLAG_ACK: u8 = 0x10;
const FLAG_PSH: u8 = 0x08;
const TIMESTAMPS_LEN: usize = 12;
const FLAG_RST: u8 = 0x04;
const FLAG_FIN: u8 = 0x01;

/// What an ICMP error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    /// ICMP type 3 code 1; ICMPv6 type 1 code 0 ("no route": of its codes the only one that undoes a back-off).
    HostUnreachable,
    /// ICMP type 3 code 4; ICMPv6 type 2.
    TooBig {
        /// In bytes.
        mtu: u16,
    },
}

/// A TCP segment without data; the options are a multiple of 4 bytes.
pub(crate) fn tcp_segment(tuple: &FlowTuple, numbers: Numbers, options: &[u8]) -> Result<Vec<u8>, Error> {
    tcp_bare(tuple, numbers, FLAG_ACK, options)
}

/// A TCP segment without data that ends what its sender has to say.
pub(crate) fn tcp_finish(tuple: &FlowTuple, numbers: Numbers) -> Result<Vec<u8>, Error> {
    tcp_bare(tuple, numbers, FLAG_ACK | FLAG_FIN, &[])
}

fn tcp_bare(tuple: &FlowTuple, numbers: Numbers, flags: u8, options: &[u8]) -> Result<Vec<u8>, Error> {
    debug_assert!(options.len().is_multiple_of(4) && options.len() <= 40);
    let mut segment = Vec::with_capacity(20 + options.len());
    segment.extend_from_slice(&tuple.local.port().to_be_bytes());
    segment.extend_from_slice(&tuple.remote.port().to_be_bytes());
    segment.extend_from_slice(&numbers.sequence.to_be_bytes());
    segment.extend_from_slice(&numbers.acknowledgement.to_be_bytes());
    segment.push((((20 + options.len()) / 4) << 4) as u8);
    segment.push(flags);
    segment.extend_from_slice(&numbers.window.to_be_bytes());
    segment.extend_from_slice(&[0; 4]);
    segment.extend_from_slice(options);
    whole(tuple, TCP, segment, 16)
}

/// A TCP segment with data or without, and timestamps (RFC 7323) where there are some, laid out as Linux does.
pub(crate) fn tcp_data(tuple: &FlowTuple, segment: &Segment<'_>) -> Result<Vec<u8>, Error> {
    let Segment { numbers, timestamps, payload } = segment;
    let options = if timestamps.is_some() { TIMESTAMPS_LEN } else { 0 };
    let mut bytes = Vec::with_capacity(20 + options + payload.len());
    bytes.extend_from_slice(&tuple.local.port().to_be_bytes());
    bytes.extend_from_slice(&tuple.remote.port().to_be_bytes());
    bytes.extend_from_slice(&numbers.sequence.to_be_bytes());
    bytes.extend_from_slice(&numbers.acknowledgement.to_be_bytes());
    let flags = if payload.is_empty() { FLAG_ACK } else { FLAG_ACK | FLAG_PSH };
    bytes.extend_from_slice(&[(((20 + options) / 4) << 4) as u8, flags]);
    bytes.extend_from_slice(&numbers.window.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    if let Some((own, echo)) = timestamps {
        bytes.extend_from_slice(&[1, 1, 8, 10]);
        bytes.extend_from_slice(&own.to_be_bytes());
        bytes.extend_from_slice(&echo.to_be_bytes());
    }
    bytes.extend_from_slice(payload);
    whole(tuple, TCP, bytes, 16)
}

/// A TCP reset, acceptable to who expects `sequence` next.
pub(crate) fn tcp_reset(tuple: &FlowTuple, sequence: u32) -> Result<Vec<u8>, Error> {
    let mut segment = Vec::with_capacity(20);
    segment.extend_from_slice(&tuple.local.port().to_be_bytes());
    segment.extend_from_slice(&tuple.remote.port().to_be_bytes());
    segment.extend_from_slice(&sequence.to_be_bytes());
    segment.extend_from_slice(&[0, 0, 0, 0, 5 << 4, FLAG_RST, 0, 0, 0, 0, 0, 0]);
    whole(tuple, TCP, segment, 16)
}

/// A UDP datagram.
pub(crate) fn udp_datagram(tuple: &FlowTuple, payload: &[u8]) -> Result<Vec<u8>, Error> {
    let length = u16::try_from(8 + payload.len())
        .map_err(|_| Error::Argument { object: tuple.to_string(), detail: "payload is too long for a datagram" })?;
    let mut datagram = Vec::with_capacity(usize::from(length));
    datagram.extend_from_slice(&tuple.local.port().to_be_bytes());
    datagram.extend_from_slice(&tuple.remote.port().to_be_bytes());
    datagram.extend_from_slice(&length.to_be_bytes());
    datagram.extend_from_slice(&[0; 2]);
    datagram.extend_from_slice(payload);
    whole(tuple, UDP, datagram, 6)
}

/// An ICMP error from an address to the flow's local one that quotes the head of a segment of `tuple`: as much of it as the
/// kernel looks at.
pub(crate) fn icmp_error(from: IpAddr, tuple: &FlowTuple, sequence: u32, kind: IcmpError) -> Result<Vec<u8>, Error> {
    let mut head = Vec::with_capacity(20);
    head.extend_from_slice(&tuple.local.port().to_be_bytes());
    head.extend_from_slice(&tuple.remote.port().to_be_bytes());
    head.extend_from_slice(&sequence.to_be_bytes());
    head.extend_from_slice(&[0, 0, 0, 0, 5 << 4, FLAG_ACK, 0, 0, 0, 0, 0, 0]);
    let quoted = match (tuple.local.ip(), tuple.remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => ipv4(local, remote, TCP, QUOTED_HOPS, &head)?,
        (IpAddr::V6(local), IpAddr::V6(remote)) => ipv6(local, remote, TCP, QUOTED_HOPS, &head)?,
        _ => return Err(mixed(tuple)),
    };
    let (kind4, kind6, rest4, rest6) = match kind {
        IcmpError::HostUnreachable => ([3, 1], [1, 0], [0; 4], [0; 4]),
        IcmpError::TooBig { mtu } => {
            let [high, low] = mtu.to_be_bytes();
            ([3, 4], [2, 0], [0, 0, high, low], u32::from(mtu).to_be_bytes())
        }
    };
    let (kind, rest) = if tuple.local.is_ipv4() { (kind4, rest4) } else { (kind6, rest6) };
    let mut message = Vec::with_capacity(8 + quoted.len());
    message.extend_from_slice(&kind);
    message.extend_from_slice(&[0; 2]);
    message.extend_from_slice(&rest);
    message.extend_from_slice(&quoted);
    match (from, tuple.local.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let sum = fold(add(0, &message));
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            ipv4(from, to, ICMP, HOPS, &message)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let sum = fold(add(pseudo_header(from.into(), to.into(), ICMPV6, message.len()), &message));
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            ipv6(from, to, ICMPV6, HOPS, &message)
        }
        _ => Err(mixed(tuple)),
    }
}

/// Fills in the checksum at `at` and puts the IP header in front.
fn whole(tuple: &FlowTuple, protocol: u8, mut payload: Vec<u8>, at: usize) -> Result<Vec<u8>, Error> {
    let (local, remote) = (tuple.local.ip(), tuple.remote.ip());
    let mut sum = fold(add(pseudo_header(local, remote, protocol, payload.len()), &payload));
    // In UDP zero means "none" (RFC 768).
    if sum == 0 && protocol == UDP {
        sum = 0xffff;
    }
    payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    match (local, remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => ipv4(local, remote, protocol, HOPS, &payload),
        (IpAddr::V6(local), IpAddr::V6(remote)) => ipv6(local, remote, protocol, HOPS, &payload),
        _ => Err(mixed(tuple)),
    }
}

fn mixed(tuple: &FlowTuple) -> Error {
    Error::Argument { object: tuple.to_string(), detail: "mixes address families" }
}

fn too_long(object: IpAddr) -> Error {
    Error::Argument { object: object.to_string(), detail: "payload is too long for a packet" }
}

fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, hops: u8, payload: &[u8]) -> Result<Vec<u8>, Error> {
    let length = u16::try_from(IPV4_HEADER + payload.len()).map_err(|_| too_long(destination.into()))?;
    let mut packet = Vec::with_capacity(usize::from(length));
    packet.extend_from_slice(&[0x45, 0]);
    packet.extend_from_slice(&length.to_be_bytes());
    // Identification 0 (the kernel draws one for what goes out), do not fragment.
    packet.extend_from_slice(&[0, 0, 0x40, 0, hops, protocol, 0, 0]);
    packet.extend_from_slice(&source.octets());
    packet.extend_from_slice(&destination.octets());
    let sum = fold(add(0, &packet));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(payload);
    Ok(packet)
}

fn ipv6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, hops: u8, payload: &[u8]) -> Result<Vec<u8>, Error> {
    let length = u16::try_from(payload.len()).map_err(|_| too_long(destination.into()))?;
    let mut packet = Vec::with_capacity(IPV6_HEADER + payload.len());
    packet.extend_from_slice(&[0x60, 0, 0, 0]);
    packet.extend_from_slice(&length.to_be_bytes());
    packet.extend_from_slice(&[protocol, hops]);
    packet.extend_from_slice(&source.octets());
    packet.extend_from_slice(&destination.octets());
    packet.extend_from_slice(payload);
    Ok(packet)
}

/// Not folded yet (RFC 9293 §3.1, RFC 8200 §8.1: as sums both come to the same).
fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u64 {
    let mut sum = length as u64 + u64::from(protocol);
    for address in [source, destination] {
        sum = match address {
            IpAddr::V4(v4) => add(sum, &v4.octets()),
            IpAddr::V6(v6) => add(sum, &v6.octets()),
        };
    }
    sum
}

fn add(sum: u64, bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .fold(sum, |sum, pair| sum + u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()])))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_wire::Transport;

    fn tuple(transport: Transport, local: &str, remote: &str) -> FlowTuple {
        FlowTuple { transport, local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    #[test]
    fn data_follows_timestamps() {
        for (local, remote) in [("192.0.2.1:7", "192.0.2.2:9"), ("[2001:db8::1]:7", "[2001:db8::2]:9")] {
            let tuple = tuple(Transport::Tcp, local, remote);
            let numbers = Numbers { sequence: 1, acknowledgement: 2, window: 3 };
            let header = if tuple.local.is_ipv4() { 20 } else { 40 };
            let segment = |timestamps, payload| {
                let packet = tcp_data(&tuple, &Segment { numbers, timestamps, payload }).unwrap();
                let segment = packet[header..].to_vec();
                let pseudo = pseudo_header(tuple.local.ip(), tuple.remote.ip(), TCP, segment.len());
                assert_eq!(fold(add(pseudo, &segment)), 0, "the checksum holds");
                segment
            };
            let data = segment(Some((0x0102_0304, 0x0506_0708)), b"hello");
            assert_eq!(data[12..16], [0x80, 0x18, 0, 3]);
            assert_eq!(data[20..], *b"\x01\x01\x08\x0a\x01\x02\x03\x04\x05\x06\x07\x08hello");
            let bare = segment(None, b"");
            assert_eq!((bare.len(), bare[12], bare[13]), (20, 0x50, 0x10));
        }
    }

    #[test]
    fn checksums_are_right() {
        let numbers = Numbers { sequence: 0x0102_0304, acknowledgement: 5, window: 6 };
        let v4 = tuple(Transport::Tcp, "192.0.2.1:1000", "198.51.100.2:2000");
        let packet = tcp_segment(&v4, numbers, &[253; 16]).unwrap();
        assert_eq!(packet.len(), 20 + 36);
        assert_eq!(fold(add(0, &packet[..20])), 0);
        assert_eq!(fold(add(pseudo_header(v4.local.ip(), v4.remote.ip(), TCP, 36), &packet[20..])), 0);
        assert_eq!(packet[32] >> 4, 9);

        let v6 = tuple(Transport::Udp, "[2001:db8::1]:1000", "[2001:db8::2]:2000");
        let packet = udp_datagram(&v6, b"odd").unwrap();
        assert_eq!(packet.len(), 40 + 11);
        assert_eq!(fold(add(pseudo_header(v6.local.ip(), v6.remote.ip(), UDP, 11), &packet[40..])), 0);
        assert_eq!(packet[44..46], [0, 11]);
    }

    #[test]
    fn an_error_quotes_the_segment() {
        let v4 = tuple(Transport::Tcp, "192.0.2.1:1000", "198.51.100.2:2000");
        let packet = icmp_error(v4.local.ip(), &v4, 0x0102_0304, IcmpError::TooBig { mtu: 0x0506 }).unwrap();
        assert_eq!(packet[12..20], [192, 0, 2, 1, 192, 0, 2, 1]);
        assert_eq!(packet[20..22], [3, 4]);
        assert_eq!(packet[24..28], [0, 0, 5, 6]);
        assert_eq!(fold(add(0, &packet[20..])), 0);
        assert_eq!(packet[40..44], [192, 0, 2, 1]);
        assert_eq!(packet[52..56], [1, 2, 3, 4]);

        let v6 = tuple(Transport::Tcp, "[2001:db8::1]:1000", "[2001:db8::2]:2000");
        let packet = icmp_error(v6.local.ip(), &v6, 7, IcmpError::HostUnreachable).unwrap();
        let here = v6.local.ip();
        assert_eq!(packet[40..42], [1, 0]);
        assert_eq!(fold(add(pseudo_header(here, here, ICMPV6, packet.len() - 40), &packet[40..])), 0);
    }

    #[test]
    fn a_tuple_of_two_families_is_refused() {
        let mixed = tuple(Transport::Udp, "192.0.2.1:1", "[2001:db8::2]:2");
        assert!(matches!(udp_datagram(&mixed, b""), Err(Error::Argument { .. })));
    }
}
