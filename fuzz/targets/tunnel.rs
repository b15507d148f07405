//! The plaintext of tunnel datagrams, which a peer may fill as it likes: what is taken of it is whole, merged and cut
//! alike, and can be sent on.
#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use whimbrel_transform::datagram::Train;
use whimbrel_transform::rewrite::{ChecksumState, rewrite};
use whimbrel_transform::segment::{fitting, segment};
use whimbrel_transform::{Batch, Coalescer, Span, VnetHeader};
use whimbrel_wire::packet::Headers;

/// The longest packet that a path carries, in bytes.
const MTU: usize = 100;

fuzz_target!(|input: &[u8]| {
    let Some((choice, train)) = input.split_first() else { return };
    let mut buffer = train.to_vec();
    let mut coalescer = Coalescer::new(choice & 1 == 1);
    let mut bytes = 0;
    for packet in Train::new(train) {
        let Ok((at, len)) = packet else { break };
        let packet = &train[at..at + len];
        let Ok(headers) = Headers::parse(packet) else { continue };
        assert!(headers.transport_offset <= headers.payload_offset && headers.payload_offset <= headers.end);
        assert!(headers.end <= len);
        coalescer.push(&buffer, Span { start: at, len }, &headers);
        bytes += headers.end;
        send_on(packet, headers);
    }
    let packets = coalescer.finish(&mut buffer);
    assert_eq!(packets.iter().map(|packet| packet.wire_len()).sum::<usize>(), bytes);
    for packet in packets {
        let pieces = packet.pieces();
        let whole: Vec<u8> = pieces.iter().flat_map(|piece| buffer[piece.range()].iter().copied()).collect();
        assert_eq!(whole.len(), packet.len());
        if pieces.len() > 1 {
            let headers = Headers::parse(&whole).expect("what was merged is a packet");
            let mut batch = Batch::new(0, 0);
            assert_eq!(segment(&whole, &headers, packet.offload(), &mut batch), Ok(pieces.len()));
        }
    }
});

/// As the other direction has it: translated, and cut to fit a path.
fn send_on(packet: &[u8], mut headers: Headers) {
    let mut packet = packet.to_vec();
    let [source, destination]: [SocketAddr; 2] = if headers.is_v6() {
        ["[2001:db8:1::1]:1024", "[2001:db8:2::1]:2031"].map(|endpoint| endpoint.parse().expect("an endpoint"))
    } else {
        ["192.0.2.9:1024", "203.0.113.9:2031"].map(|endpoint| endpoint.parse().expect("an endpoint"))
    };
    rewrite(&mut packet, &mut headers, source, destination, ChecksumState::Whole).expect("of one family");
    let offload = fitting(&headers, VnetHeader::default(), MTU);
    let mut batch = Batch::new(0, 0);
    let count = segment(&packet, &headers, &offload, &mut batch).expect("it was asked for");
    assert_eq!(batch.packets().count(), count);
    for piece in batch.packets() {
        let cut = Headers::parse(piece).expect("what was cut is a packet");
        assert_eq!((cut.source, cut.destination), (headers.source, headers.destination));
        assert!(count == 1 || piece.len() <= MTU, "{} bytes", piece.len());
    }
}
