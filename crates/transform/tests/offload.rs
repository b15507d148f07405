//! Segmentation and coalescing undo each other, and what lies between them is what a network card would send.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use whimbrel_transform::segment::{SegmentError, fitting, segment};
use whimbrel_transform::vnet::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM};
use whimbrel_transform::{Batch, Coalescer, Span, VnetHeader};
use whimbrel_wire::packet::tcp::flag::{ACK, CWR, FIN, PSH};
use whimbrel_wire::packet::write::pseudo_sum;
use whimbrel_wire::packet::{Headers, Ip, Tcp};
use whimbrel_wire::{Introduction, Transport, checksum};

#[derive(Clone, Copy, Debug)]
struct Shape {
    v6: bool,
    tcp: bool,
    port: u16,
    flags: u8,
    sequence: u32,
    identification: u16,
    window: u16,
}

impl Shape {
    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let (a, b): (IpAddr, IpAddr) = if self.v6 {
            ("2001:db8::5".parse().unwrap(), "2001:db8:1::6".parse().unwrap())
        } else {
            ("10.0.0.5".parse().unwrap(), "198.51.100.6".parse().unwrap())
        };
        (SocketAddr::new(a, self.port), SocketAddr::new(b, 443))
    }

    /// The super-packet as an offloading stack hands it over: pseudo-header sum only, FIN, PSH and CWR as given.
    fn build(&self, payload: &[u8], size: u16) -> (VnetHeader, Vec<u8>) {
        let (source, destination) = self.addresses();
        let ip =
            Ip { class: 2, identification: self.identification, fragment: 0, ..Ip::new(source.ip(), destination.ip()) };
        let (source_port, destination_port) = (source.port(), destination.port());
        let (mut packet, at, kind) = if self.tcp {
            let segment = Tcp {
                source_port,
                destination_port,
                sequence: self.sequence,
                acknowledgement: 9,
                flags: self.flags,
                window: self.window,
                options: &[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8],
                payload,
            };
            let ecn = if self.flags & CWR != 0 { GSO_ECN } else { 0 };
            (ip.tcp(&segment).unwrap(), 16, ecn | if self.v6 { GSO_TCPV6 } else { GSO_TCPV4 })
        } else {
            (ip.udp(source_port, destination_port, payload).unwrap(), 6, GSO_UDP_L4)
        };
        let start = if self.v6 { 40 } else { 20 };
        let pseudo = pseudo_sum(ip.source, ip.destination, self.protocol(), packet.len() - start);
        packet[start + at..start + at + 2].copy_from_slice(&pseudo.to_be_bytes());
        let offload = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: kind,
            hdr_len: (packet.len() - payload.len()) as u16,
            gso_size: size,
            csum_start: start as u16,
            csum_offset: at as u16,
        };
        (offload, packet)
    }

    fn protocol(&self) -> u8 {
        if self.tcp { 6 } else { 17 }
    }
}

fn checksums_hold(packet: &[u8]) -> bool {
    let headers = Headers::parse(packet).unwrap();
    let body = &packet[headers.transport_offset..headers.end];
    let protocol = headers.transport.protocol();
    let pseudo = pseudo_sum(headers.source.ip(), headers.destination.ip(), protocol, body.len());
    let network = headers.is_v6() || checksum::sum(&packet[..20]) == 0xffff;
    network && checksum::add(pseudo, checksum::sum(body)) == 0xffff
}

fn cut(offload: &VnetHeader, packet: &[u8]) -> Batch {
    let mut batch = Batch::new(18, 16);
    let count = segment(packet, &Headers::parse(packet).unwrap(), offload, &mut batch).unwrap();
    assert_eq!(count, batch.len());
    batch
}

fn merge(coalescer: &mut Coalescer, buffer: &mut [u8], spans: &[Span]) -> Vec<(VnetHeader, Vec<u8>)> {
    coalescer.clear();
    for &span in spans {
        coalescer.push(buffer, span, &Headers::parse(&buffer[span.range()]).unwrap());
    }
    let packets: Vec<_> =
        coalescer.finish(buffer).iter().map(|packet| (*packet.offload(), packet.pieces().to_vec())).collect();
    let gather = |pieces: Vec<Span>| pieces.into_iter().flat_map(|piece| buffer[piece.range()].to_vec()).collect();
    packets.into_iter().map(|(offload, pieces)| (offload, gather(pieces))).collect()
}

fn shapes() -> impl Strategy<Value = Shape> {
    let flags = prop_oneof![Just(0), Just(PSH), Just(FIN), Just(CWR), Just(CWR | PSH | FIN)];
    (any::<bool>(), any::<bool>(), 1024u16.., flags, any::<u32>(), any::<u16>(), any::<u16>()).prop_map(
        |(v6, tcp, port, flags, sequence, identification, window)| Shape {
            v6,
            tcp,
            port,
            flags: flags | ACK,
            sequence,
            identification,
            window,
        },
    )
}

fn payloads() -> impl Strategy<Value = Vec<u8>> {
    (1usize..20_000, any::<u8>()).prop_map(|(len, seed)| (0..len).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect())
}

proptest! {
    #[test]
    fn coalescing_undoes_segmentation(shape in shapes(), payload in payloads(), size in 320u16..1500) {
        let (offload, packet) = shape.build(&payload, size);
        let mut batch = cut(&offload, &packet);
        prop_assert!(batch.packets().all(checksums_hold));
        let spans = batch.spans().to_vec();
        let merged = merge(&mut Coalescer::new(true), batch.buffer_mut(), &spans);
        if spans.len() > 1 {
            prop_assert_eq!(merged, vec![(offload, packet)]);
        } else {
            prop_assert_eq!(merged.len(), 1);
            prop_assert_eq!(merged[0].0, VnetHeader::default());
            prop_assert!(checksums_hold(&merged[0].1));
        }
    }

    #[test]
    fn flows_in_one_batch_keep_their_own_order(
        flows in proptest::collection::vec((shapes(), payloads(), 320u16..1500), 2..5), turns: Vec<u8>,
    ) {
        let mut supers = Vec::new();
        for (i, (shape, payload, size)) in flows.into_iter().enumerate() {
            let shape = Shape { port: 5000 + i as u16, ..shape };
            supers.push(shape.build(&payload, size));
        }
        let cuts: Vec<Vec<Vec<u8>>> =
            supers.iter().map(|(offload, packet)| cut(offload, packet).packets().map(<[u8]>::to_vec).collect()).collect();
        let mut next = vec![0; cuts.len()];
        let mut wire = Batch::new(0, 0);
        let total: usize = cuts.iter().map(Vec::len).sum();
        for turn in turns.into_iter().map(usize::from).chain(0..total * cuts.len()) {
            let flow = turn % cuts.len();
            if let Some(packet) = cuts[flow].get(next[flow]) {
                wire.push_packet(packet);
                next[flow] += 1;
            }
        }
        let spans = wire.spans().to_vec();
        prop_assert_eq!(spans.len(), total);
        let merged = merge(&mut Coalescer::new(true), wire.buffer_mut(), &spans);
        for (i, (offload, packet)) in supers.into_iter().enumerate() {
            let port = 5000 + i as u16;
            let mine: Vec<_> = merged.iter().filter(|(_, p)| Headers::parse(p).unwrap().source.port() == port).collect();
            prop_assert_eq!(mine.len(), 1);
            if cuts[i].len() > 1 {
                prop_assert_eq!(mine[0], &(offload, packet));
            }
        }
    }

    #[test]
    fn tcp_is_cut_to_fit(shape in shapes(), payload in payloads(), size in 320u16..1500, mtu in 576usize..1500, single: bool) {
        let (mut offload, packet) = shape.build(&payload, size);
        if single && shape.tcp {
            // As a stack without offload made it for a larger path.
            (offload.gso_type, offload.gso_size) = (0, 0);
        }
        let headers = Headers::parse(&packet).unwrap();
        let fit = fitting(&headers, offload, mtu);
        if !shape.tcp {
            prop_assert_eq!(fit, offload);
            return Ok(());
        }
        let batch = cut(&fit, &packet);
        let mut stream = Vec::new();
        for span in batch.spans() {
            let segment = &batch.buffer()[span.start..span.end()];
            prop_assert!(segment.len() <= mtu, "{} for {mtu}", segment.len());
            prop_assert!(checksums_hold(segment));
            let of = Headers::parse(segment).unwrap();
            stream.extend_from_slice(&segment[of.payload_offset..of.end]);
        }
        prop_assert_eq!(stream, payload);
    }

    #[test]
    fn a_damaged_segment_stays_damaged_and_alone(
        shape in shapes(), payload in payloads(), size in 320u16..1500, at: usize, which: usize,
    ) {
        let (offload, packet) = shape.build(&payload, size);
        let mut batch = cut(&offload, &packet);
        let spans = batch.spans().to_vec();
        let victim = which % spans.len();
        let payload_offset = Headers::parse(&packet).unwrap().payload_offset;
        let place = spans[victim].start + payload_offset + at % (spans[victim].len - payload_offset);
        batch.buffer_mut()[place] ^= 0x40;
        let damaged = batch.buffer()[spans[victim].range()].to_vec();
        let merged = merge(&mut Coalescer::new(true), batch.buffer_mut(), &spans);
        prop_assert!(merged.iter().any(|(offload, packet)| offload.gso_type == 0 && packet == &damaged));
    }
}

fn shape() -> Shape {
    Shape { v6: false, tcp: true, port: 4000, flags: ACK, sequence: 0, identification: 0xffff, window: 500 }
}

fn merge_packets(packets: &[Vec<u8>]) -> Vec<(VnetHeader, Vec<u8>)> {
    let mut batch = Batch::new(0, 0);
    packets.iter().for_each(|packet| batch.push_packet(packet));
    let spans = batch.spans().to_vec();
    merge(&mut Coalescer::new(true), batch.buffer_mut(), &spans)
}

fn single(shape: Shape, payload: &[u8]) -> Vec<u8> {
    let (offload, packet) = shape.build(payload, 1000);
    cut(&offload, &packet).packets().next().unwrap_or(&packet).to_vec()
}

#[test]
fn flags_go_where_a_card_puts_them() {
    let (offload, packet) = Shape { flags: CWR | PSH | FIN | ACK, ..shape() }.build(&[1; 2500], 1000);
    let flags: Vec<u8> = cut(&offload, &packet).packets().map(|packet| packet[33]).collect();
    assert_eq!(flags, [CWR | ACK, ACK, PSH | FIN | ACK]);
}

#[test]
fn push_ends_a_super_packet() {
    let next = |sequence, identification, flags| {
        single(Shape { sequence, identification, flags, ..shape() }, &[sequence as u8; 100])
    };
    let packets = [next(0, 0, ACK), next(100, 1, ACK | PSH), next(200, 2, ACK), next(300, 3, ACK)];
    let merged = merge_packets(&packets);
    assert_eq!(merged.iter().map(|(offload, _)| offload.gso_size).collect::<Vec<_>>(), [100, 100]);
}

/// By the end of a super-packet of datagrams nobody would see it, and a program would read it.
#[test]
fn an_introduction_stays_alone() {
    let introduction = Introduction { index: 1, nonce: 2 }.udp_payload();
    let datagram = |identification, payload: &[u8]| single(Shape { identification, tcp: false, ..shape() }, payload);
    let other: Vec<u8> = introduction.iter().rev().copied().collect();
    for (last, packets) in [(other.as_slice(), 1), (introduction.as_slice(), 2)] {
        let merged = merge_packets(&[datagram(1, &[5; 100]), datagram(2, &[6; 100]), datagram(3, last)]);
        assert_eq!(merged.len(), packets);
    }
}

#[test]
fn what_differs_is_not_merged() {
    let first = Shape { sequence: 0, identification: 1, ..shape() };
    let second = Shape { sequence: 100, identification: 2, ..shape() };
    let pair = |second: Shape| merge_packets(&[single(first, &[1; 100]), single(second, &[2; 100])]).len();
    assert_eq!(pair(second), 1);
    assert_eq!(pair(Shape { sequence: 99, ..second }), 2, "sequence");
    assert_eq!(pair(Shape { identification: 3, ..second }), 2, "identification");
    assert_eq!(pair(Shape { window: 501, ..second }), 2, "window");
    assert_eq!(pair(Shape { port: 4001, ..second }), 2, "port");
    assert_eq!(pair(Shape { flags: ACK | CWR, ..second }), 2, "CWR");
    assert_eq!(pair(Shape { flags: ACK | 4, ..second }), 2, "RST");
}

#[test]
fn contradicting_offloads_are_refused() {
    let (offload, packet) = shape().build(&[1; 2500], 1000);
    let headers = Headers::parse(&packet).unwrap();
    let mut batch = Batch::new(0, 0);
    let mut attempt = |offload| segment(&packet, &headers, &offload, &mut batch);
    assert_eq!(attempt(VnetHeader { gso_type: GSO_TCPV6, ..offload }), Err(SegmentError::Type(GSO_TCPV6)));
    assert_eq!(attempt(VnetHeader { gso_type: GSO_UDP_L4, ..offload }), Err(SegmentError::Type(GSO_UDP_L4)));
    assert_eq!(attempt(VnetHeader { gso_size: 0, ..offload }), Err(SegmentError::Size));
    let outside = VnetHeader { gso_type: 0, csum_start: 2540, csum_offset: 16, ..offload };
    assert_eq!(attempt(outside), Err(SegmentError::Checksum));
    assert!(batch.is_empty());
    assert_eq!(headers.transport, Transport::Tcp);
}
