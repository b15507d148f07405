//! The packets that are injected.

use std::net::IpAddr;

use whimbrel_wire::packet::tcp::flag::{ACK, FIN, PSH, RST};
use whimbrel_wire::packet::{Ip, Tcp, WriteError};
use whimbrel_wire::{FlowTuple, Transport};

use crate::error::Error;
use crate::inject::{Numbers, Segment};

/// In a quoted packet: a socket with IP_MINTTL ignores errors that quote less (`tcp_v4_err`).
const QUOTED_HOPS: u8 = 255;

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
    tcp(tuple, &Tcp { flags: ACK, options, ..numbered(tuple, numbers) })
}

/// A TCP segment without data that ends what its sender has to say.
pub(crate) fn tcp_finish(tuple: &FlowTuple, numbers: Numbers) -> Result<Vec<u8>, Error> {
    tcp(tuple, &Tcp { flags: ACK | FIN, ..numbered(tuple, numbers) })
}

/// A TCP segment with data or without, and timestamps (RFC 7323) where there are some, laid out as Linux does.
pub(crate) fn tcp_data(tuple: &FlowTuple, segment: &Segment<'_>) -> Result<Vec<u8>, Error> {
    let Segment { numbers, timestamps, payload } = *segment;
    let options = timestamps.map(|(own, echo)| {
        let mut option = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
        option[4..8].copy_from_slice(&own.to_be_bytes());
        option[8..].copy_from_slice(&echo.to_be_bytes());
        option
    });
    let options = options.as_ref().map_or(&[][..], |options| options);
    let flags = if payload.is_empty() { ACK } else { ACK | PSH };
    tcp(tuple, &Tcp { flags, options, payload, ..numbered(tuple, numbers) })
}

/// A TCP reset, acceptable to who expects `sequence` next.
pub(crate) fn tcp_reset(tuple: &FlowTuple, sequence: u32) -> Result<Vec<u8>, Error> {
    let numbers = Numbers { sequence, acknowledgement: 0, window: 0 };
    tcp(tuple, &Tcp { flags: RST, ..numbered(tuple, numbers) })
}

/// A UDP datagram.
pub(crate) fn udp_datagram(tuple: &FlowTuple, payload: &[u8]) -> Result<Vec<u8>, Error> {
    ip(tuple).udp(tuple.local.port(), tuple.remote.port(), payload).map_err(|why| refused(tuple, why))
}

/// An ICMP error from an address to the flow's local one that quotes the head of a segment of `tuple`: as much of it as
/// the kernel looks at.
pub(crate) fn icmp_error(from: IpAddr, tuple: &FlowTuple, sequence: u32, kind: IcmpError) -> Result<Vec<u8>, Error> {
    let numbers = Numbers { sequence, acknowledgement: 0, window: 0 };
    let head = Tcp { flags: ACK, ..numbered(tuple, numbers) };
    let written = |why| refused(tuple, why);
    let quoted = Ip { hops: QUOTED_HOPS, ..ip(tuple) };
    let quoted = quoted.packet(Transport::Tcp.protocol(), &head.write().map_err(written)?).map_err(written)?;
    let (kind4, kind6, rest4, rest6) = match kind {
        IcmpError::HostUnreachable => ([3, 1], [1, 0], [0; 4], [0; 4]),
        IcmpError::TooBig { mtu } => {
            let [high, low] = mtu.to_be_bytes();
            ([3, 4], [2, 0], [0, 0, high, low], u32::from(mtu).to_be_bytes())
        }
    };
    let ([kind, code], rest) = if tuple.local.is_ipv4() { (kind4, rest4) } else { (kind6, rest6) };
    Ip::new(from, tuple.local.ip()).icmp(kind, code, rest, &quoted).map_err(written)
}

fn ip(tuple: &FlowTuple) -> Ip<'static> {
    Ip::new(tuple.local.ip(), tuple.remote.ip())
}

fn numbered(tuple: &FlowTuple, numbers: Numbers) -> Tcp<'static> {
    let Numbers { sequence, acknowledgement, window } = numbers;
    let (source_port, destination_port) = (tuple.local.port(), tuple.remote.port());
    Tcp { source_port, destination_port, sequence, acknowledgement, window, ..Tcp::default() }
}

fn tcp(tuple: &FlowTuple, segment: &Tcp<'_>) -> Result<Vec<u8>, Error> {
    ip(tuple).tcp(segment).map_err(|why| refused(tuple, why))
}

fn refused(tuple: &FlowTuple, why: WriteError) -> Error {
    let detail = match why {
        WriteError::MixedFamilies => "mixes address families",
        WriteError::TooLong => "payload is too long for a packet",
    };
    Error::Argument { object: tuple.to_string(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_wire::checksum;
    use whimbrel_wire::packet::ICMPV6;
    use whimbrel_wire::packet::write::pseudo_sum;

    const TCP: u8 = 6;
    const UDP: u8 = 17;

    /// Whether the checksum in what a packet carries is right.
    fn holds(source: IpAddr, destination: IpAddr, protocol: u8, body: &[u8]) -> bool {
        checksum::add(pseudo_sum(source, destination, protocol, body.len()), checksum::sum(body)) == 0xffff
    }

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
                assert!(holds(tuple.local.ip(), tuple.remote.ip(), TCP, &segment), "the checksum holds");
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
        assert_eq!(checksum::sum(&packet[..20]), 0xffff);
        assert_eq!(packet[20..].len(), 36);
        assert!(holds(v4.local.ip(), v4.remote.ip(), TCP, &packet[20..]));
        assert_eq!(packet[32] >> 4, 9);

        let v6 = tuple(Transport::Udp, "[2001:db8::1]:1000", "[2001:db8::2]:2000");
        let packet = udp_datagram(&v6, b"odd").unwrap();
        assert_eq!(packet.len(), 40 + 11);
        assert!(holds(v6.local.ip(), v6.remote.ip(), UDP, &packet[40..]));
        assert_eq!(packet[44..46], [0, 11]);
    }

    #[test]
    fn an_error_quotes_the_segment() {
        let v4 = tuple(Transport::Tcp, "192.0.2.1:1000", "198.51.100.2:2000");
        let packet = icmp_error(v4.local.ip(), &v4, 0x0102_0304, IcmpError::TooBig { mtu: 0x0506 }).unwrap();
        assert_eq!(packet[12..20], [192, 0, 2, 1, 192, 0, 2, 1]);
        assert_eq!(packet[20..22], [3, 4]);
        assert_eq!(packet[24..28], [0, 0, 5, 6]);
        assert_eq!(checksum::sum(&packet[20..]), 0xffff);
        assert_eq!(packet[40..44], [192, 0, 2, 1]);
        assert_eq!(packet[52..56], [1, 2, 3, 4]);

        let v6 = tuple(Transport::Tcp, "[2001:db8::1]:1000", "[2001:db8::2]:2000");
        let packet = icmp_error(v6.local.ip(), &v6, 7, IcmpError::HostUnreachable).unwrap();
        let here = v6.local.ip();
        assert_eq!(packet[40..42], [1, 0]);
        assert!(holds(here, here, ICMPV6, &packet[40..]));
    }

    #[test]
    fn a_tuple_of_two_families_is_refused() {
        let mixed = tuple(Transport::Udp, "192.0.2.1:1", "[2001:db8::2]:2");
        assert!(matches!(udp_datagram(&mixed, b""), Err(Error::Argument { .. })));
    }
}
