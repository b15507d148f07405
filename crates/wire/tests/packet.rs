//! Reading the headers of packets.

#[path = "support/made.rs"]
mod made;

use made::{Made, checksums_hold};
use proptest::prelude::*;
use whimbrel_wire::packet::{Fragment, Headers, Ip, PacketError, Tcp, WriteError};

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

    #[test]
    fn what_is_written_is_read(
        v6: bool, sequence: u32, acknowledgement: u32, flags: u8, window: u16, class: u8, hops: u8,
        options in 0usize..=10, payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let made = if v6 { Made::tcp(vec![]).v6() } else { Made::tcp(vec![]) };
        let options: Vec<u8> = (0..options as u8 * 4).collect();
        let (source_port, destination_port) = (made.source.port(), made.destination.port());
        let (options, payload) = (&options[..], &payload[..]);
        let segment =
            Tcp { source_port, destination_port, sequence, acknowledgement, flags, window, options, payload };
        let ip = Ip { class, hops, ..Ip::new(made.source.ip(), made.destination.ip()) };
        let packet = ip.tcp(&segment).unwrap();
        prop_assert!(checksums_hold(&packet));
        let headers = Headers::parse(&packet).unwrap();
        prop_assert_eq!((headers.source, headers.destination, headers.end), (made.source, made.destination, packet.len()));
        prop_assert_eq!(Tcp::parse(&packet[headers.transport_offset..headers.end]), Ok(segment));
        let (read_class, read_hops) =
            if v6 { (packet[0] << 4 | packet[1] >> 4, packet[7]) } else { (packet[1], packet[8]) };
        prop_assert_eq!((read_class, read_hops), (class, hops));
    }

    #[test]
    fn noise_is_no_segment_or_one_within_it(data in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(segment) = Tcp::parse(&data) {
            prop_assert_eq!(20 + segment.options.len() + segment.payload.len(), data.len());
        }
    }
}

#[test]
fn what_does_not_fit_is_not_written() {
    let ip = Ip::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    assert_eq!(ip.packet(6, &vec![0; 65_516]), Err(WriteError::TooLong));
    assert_eq!(ip.udp(1, 2, &vec![0; 65_530]), Err(WriteError::TooLong));
    assert_eq!(Ip { options: &[1; 44], ..ip }.packet(6, &[]), Err(WriteError::TooLong));
    assert_eq!(ip.tcp(&Tcp { options: &[1; 44], ..Tcp::default() }), Err(WriteError::TooLong));
    let mixed = Ip { destination: std::net::Ipv6Addr::LOCALHOST.into(), ..ip };
    assert_eq!(mixed.packet(6, &[]), Err(WriteError::MixedFamilies));
    // A datagram whose checksum comes to zero has the other zero (RFC 768).
    let sum = |last: [u8; 2]| ip.udp(0, 0, &last).unwrap()[26..28].to_vec();
    let lacking = u16::from_be_bytes(sum([0, 0]).try_into().unwrap());
    assert_eq!(sum(lacking.to_be_bytes()), [0xff, 0xff]);
}
