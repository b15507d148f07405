//! Snapshots of sockets: what is written is read back, and what another host says is believed only where it makes
//! sense.

use std::net::{IpAddr, SocketAddr};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use whimbrel_wire::snapshot::{
    Body, Datagrams, Family, MAX_LEN, MAX_STATE, Metadata, Negotiated, OptionKind, PathState, Queued, ReceiveQueue,
    Scale, Segment, SendQueue, Shut, Snapshot, SocketOption, Stream, StreamState, Unreadable, Window,
};

fn endpoint(family: Family) -> BoxedStrategy<SocketAddr> {
    let address = match family {
        Family::Ipv4 => any::<[u8; 4]>().prop_map(IpAddr::from).boxed(),
        Family::Ipv6 => any::<[u8; 16]>()
            .prop_map(|octets| IpAddr::from(octets).to_canonical())
            .prop_filter("IPv6", IpAddr::is_ipv6)
            .boxed(),
    };
    (address.prop_filter("somebody", |address| !address.is_unspecified()), 1..=u16::MAX)
        .prop_map(SocketAddr::from)
        .boxed()
}

fn options() -> impl Strategy<Value = Vec<SocketOption>> {
    let all: Vec<_> = OptionKind::ALL.to_vec();
    (proptest::sample::subsequence(all.clone(), 0..=all.len()), any::<u64>()).prop_map(|(kinds, value)| {
        let value_of = |kind: OptionKind| match kind {
            OptionKind::Priority => value % 7,
            _ if kind.waits_until_awake() => value >> 33,
            _ => value,
        };
        let option = |kind| SocketOption { kind, value: value_of(kind) };
        kinds.into_iter().map(option).collect()
    })
}

fn negotiated() -> impl Strategy<Value = Negotiated> {
    let scale = option::of((0..15u8, 0..15u8).prop_map(|(send, receive)| Scale { send, receive }));
    (48..=u16::MAX, scale, any::<bool>(), any::<bool>(), option::of(any::<u32>()))
        .prop_map(|(mss, scale, sack, ecn, timestamp)| Negotiated { mss, scale, sack, ecn, timestamp })
}

fn path() -> impl Strategy<Value = PathState> {
    ("[!-~]{0,15}", any::<[u32; 5]>()).prop_map(|(congestion_control, numbers)| PathState {
        congestion_control,
        congestion_window: numbers[0],
        slow_start_threshold: numbers[1],
        round_trip: numbers[2],
        variation: numbers[3],
        mtu: numbers[4],
    })
}

prop_compose! {
    fn stream(family: Family)(
        remote in endpoint(family),
        state in proptest::sample::select(StreamState::ALL.to_vec()),
        sent in vec(any::<u8>(), 0..50),
        unsent in vec(any::<u8>(), 0..50),
        received in vec(any::<u8>(), 0..50),
        ends in any::<[u32; 2]>(),
        negotiated in negotiated(),
        sequences in any::<[u32; 2]>(),
        windows in [0..1_000_000u32, 0..1_000_000, 0..1_000_000],
        gaps in vec((1..1000u32, vec(any::<u8>(), 1..20)), 0..4),
        path in option::of(path()),
    ) -> Stream {
        let acknowledged = state.finish_acknowledged();
        let bytes = if acknowledged { Vec::new() } else { [sent, unsent.clone()].concat() };
        let unsent = if acknowledged { 0 } else { unsent.len() as u32 };
        let mut out_of_order = Vec::new();
        let mut at = ends[1];
        for (gap, bytes) in gaps.into_iter().filter(|_| !state.peer_has_finished()) {
            let sequence = at.wrapping_add(gap);
            at = sequence.wrapping_add(bytes.len() as u32);
            out_of_order.push(Segment { sequence, bytes });
        }
        Stream {
            remote,
            state,
            send: SendQueue { end: ends[0], bytes, unsent },
            receive: ReceiveQueue { end: ends[1], bytes: received },
            negotiated,
            window: Window {
                send_updated: sequences[0],
                send: windows[0],
                send_max: windows[1],
                receive: windows[2],
                receive_updated: sequences[1],
            },
            out_of_order,
            path,
        }
    }
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    prop_oneof![Just(Family::Ipv4), Just(Family::Ipv6)].prop_flat_map(|family| {
        let queue = vec((endpoint(family), vec(any::<u8>(), 0..40)), 0..4)
            .prop_map(|queue| queue.into_iter().map(|(from, bytes)| Queued { from, bytes }).collect::<Vec<_>>());
        let body = prop_oneof![
            stream(family).prop_map(Body::Stream),
            any::<u32>().prop_map(|backlog| Body::Listening { backlog }),
            (option::of(endpoint(family)), queue)
                .prop_map(|(remote, queue)| Body::Datagram(Datagrams { remote, queue })),
        ];
        let metadata = option::of((any::<[u8; 16]>(), vec(any::<u8>(), 0..50)));
        let metadata = metadata.prop_map(|some| some.map(|(uuid, state)| Metadata { uuid, state }));
        let parts = (endpoint(family), body, options(), metadata, any::<[bool; 2]>());
        parts.prop_map(move |(local, body, options, metadata, [receive, send])| {
            let shut = match &body {
                Body::Stream(stream) => Shut { receive: receive && !stream.state.peer_has_finished(), send: false },
                Body::Listening { .. } => Shut::default(),
                Body::Datagram(_) => Shut { receive, send },
            };
            Snapshot { family, local, body, shut, options, metadata }
        })
    })
}

fn encoded(snapshot: &Snapshot) -> Vec<u8> {
    let mut out = Vec::new();
    snapshot.encode(&mut out);
    out
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(snapshot in snapshot()) {
        let bytes = encoded(&snapshot);
        prop_assert_eq!(Snapshot::decode(&bytes), Ok(snapshot));
    }

    #[test]
    fn what_is_cut_off_is_refused(snapshot in snapshot(), share in 0.0..1.0f64) {
        let bytes = encoded(&snapshot);
        let cut = (bytes.len() as f64 * share) as usize;
        prop_assert!(Snapshot::decode(&bytes[..cut]).is_err());
    }

    #[test]
    fn what_is_changed_is_refused_or_means_something_else(snapshot in snapshot(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut bytes = encoded(&snapshot);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(read) = Snapshot::decode(&bytes) {
            prop_assert_eq!(Snapshot::decode(&encoded(&read)), Ok(read));
        }
    }

    #[test]
    fn no_bytes_bring_the_reader_down(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Snapshot::decode(&bytes);
        let mut headed = b"WBSS\x00\x01".to_vec();
        headed.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        headed.extend_from_slice(&bytes);
        let _ = Snapshot::decode(&headed);
    }
}

fn connection() -> Snapshot {
    Snapshot {
        family: Family::Ipv4,
        local: "192.0.2.1:22".parse().unwrap(),
        body: Body::Stream(Stream {
            remote: "198.51.100.7:40000".parse().unwrap(),
            state: StreamState::Established,
            send: SendQueue { end: 1000, bytes: b"hello".to_vec(), unsent: 2 },
            receive: ReceiveQueue { end: 2000, bytes: b"world".to_vec() },
            negotiated: Negotiated {
                mss: 1448,
                scale: Some(Scale { send: 7, receive: 9 }),
                sack: true,
                ecn: false,
                timestamp: Some(77),
            },
            window: Window { send_updated: 1, send: 64_000, send_max: 65_000, receive: 66_000, receive_updated: 2 },
            out_of_order: vec![Segment { sequence: 2010, bytes: b"!".to_vec() }],
            path: Some(PathState { congestion_control: "cubic".into(), congestion_window: 10, ..PathState::default() }),
        }),
        shut: Shut::default(),
        options: vec![SocketOption { kind: OptionKind::NoDelay, value: 1 }],
        metadata: None,
    }
}

fn stream_of(snapshot: &mut Snapshot) -> &mut Stream {
    match &mut snapshot.body {
        Body::Stream(stream) => stream,
        _ => unreachable!(),
    }
}

#[test]
fn the_vector_is_what_is_written() {
    // docs/snapshot.md shows these bytes.
    let expected = include_str!("vectors/snapshot_stream.hex");
    let expected: String = expected.lines().map(|line| line.split('#').next().unwrap_or("")).collect();
    let expected: String = expected.split_whitespace().collect();
    let written: String = encoded(&connection()).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(written, expected);
}

#[test]
fn a_later_version_is_named() {
    let mut bytes = encoded(&connection());
    bytes[5] = 2;
    assert_eq!(Snapshot::decode(&bytes), Err(Unreadable::Newer { version: 2, record: None }));
}

/// The snapshot with a record put at its end.
fn with_record(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = encoded(&connection());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(body);
    let length = (bytes.len() - 10) as u32;
    bytes[6..10].copy_from_slice(&length.to_be_bytes());
    bytes
}

#[test]
fn what_is_not_known_is_passed_over_unless_it_must_be_understood() {
    assert_eq!(Snapshot::decode(&with_record(0x7001, b"anything")), Ok(connection()));
    let newer = Unreadable::Newer { version: 1, record: Some(0xf001) };
    assert_eq!(Snapshot::decode(&with_record(0xf001, b"anything")), Err(newer));
}

#[test]
fn an_option_that_is_not_known_is_refused() {
    // The number, and a value.
    let option = [&0x1234u16.to_be_bytes()[..], &1u64.to_be_bytes()].concat();
    let read = Snapshot::decode(&with_record(0x0011, &option));
    assert_eq!(read, Err(Unreadable::UnknownOption { number: 0x1234 }));
    assert!(read.unwrap_err().to_string().contains("4660, which this host does not know"));
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_anything_is_read() {
    let mut bytes = encoded(&connection());
    bytes[6..10].copy_from_slice(&(MAX_LEN as u32 + 1).to_be_bytes());
    assert_eq!(Snapshot::decode(&bytes), Err(Unreadable::TooLarge { length: MAX_LEN as u64 + 1 }));
}

#[test]
fn contradictions_are_refused() {
    type Change = fn(&mut Snapshot);
    let cases: [(&str, Change); 16] = [
        ("send buffer", |s| s.options = vec![SocketOption { kind: OptionKind::SendBuffer, value: 1 << 31 }]),
        ("receive buffer", |s| s.options = vec![SocketOption { kind: OptionKind::ReceiveBuffer, value: 1 << 40 }]),
        ("user timeout", |s| s.options = vec![SocketOption { kind: OptionKind::UserTimeout, value: u64::MAX }]),
        ("says no more", |s| s.shut.send = true),
        ("reads no more, at the end", |s| {
            (stream_of(s).state, s.shut.receive) = (StreamState::CloseWait, true);
            stream_of(s).out_of_order.clear();
        }),
        ("a server that reads no more", |s| (s.body, s.shut.receive) = (Body::Listening { backlog: 1 }, true)),
        ("priority", |s| s.options[0] = SocketOption { kind: OptionKind::Priority, value: 7 }),
        ("unsent", |s| stream_of(s).send.unsent = 6),
        ("finished", |s| stream_of(s).state = StreamState::FinWait2),
        ("mss", |s| stream_of(s).negotiated.mss = 47),
        ("scale", |s| stream_of(s).negotiated.scale = Some(Scale { send: 15, receive: 0 })),
        ("window", |s| stream_of(s).window.send = u32::MAX),
        ("in order", |s| stream_of(s).out_of_order[0].sequence = 2000),
        ("behind", |s| stream_of(s).out_of_order[0].sequence = 1990),
        ("nobody", |s| stream_of(s).remote = "0.0.0.0:1".parse().unwrap()),
        ("family", |s| stream_of(s).remote = "[2001:db8::1]:1".parse().unwrap()),
    ];
    for (what, change) in cases {
        let mut snapshot = connection();
        change(&mut snapshot);
        let read = Snapshot::decode(&encoded(&snapshot));
        assert!(matches!(read, Err(Unreadable::Inconsistent(_))), "{what}: {read:?}");
    }
}

#[test]
fn so_many_datagrams_go_along_and_no_more() {
    let from = "192.0.2.7:53".parse().unwrap();
    let with = |count, length| {
        let queue = vec![Queued { from, bytes: vec![1; length] }; count];
        let body = Body::Datagram(Datagrams { remote: Some(from), queue });
        Snapshot { body, shut: Shut::default(), options: Vec::new(), ..connection() }
    };
    for (most, length) in [(16_384, 0), (13_107, 4096), (1008, 65_535)] {
        assert_eq!(Snapshot::decode(&encoded(&with(most, length))), Ok(with(most, length)));
        assert!(Snapshot::decode(&encoded(&with(most + 1, length))).is_err(), "{length}");
    }
    let mut pieces = connection();
    let first = stream_of(&mut pieces).receive.end.wrapping_add(1);
    let piece = |at: u32| Segment { sequence: first.wrapping_add(2 * at), bytes: vec![1] };
    stream_of(&mut pieces).out_of_order = (0..65_536).map(piece).collect();
    assert_eq!(Snapshot::decode(&encoded(&pieces)), Ok(pieces.clone()));
    stream_of(&mut pieces).out_of_order.push(piece(65_536));
    assert!(Snapshot::decode(&encoded(&pieces)).is_err());
}

#[test]
fn a_program_hands_over_so_much_and_no_more() {
    let with = |length| Snapshot { metadata: Some(Metadata { uuid: [7; 16], state: vec![1; length] }), ..connection() };
    assert_eq!(Snapshot::decode(&encoded(&with(MAX_STATE))), Ok(with(MAX_STATE)));
    assert!(Snapshot::decode(&encoded(&with(MAX_STATE + 1))).is_err());
}

#[test]
fn what_is_shut_down_is_nothing_that_may_be_passed_over() {
    let shut = Shut { receive: true, send: false };
    assert_eq!(Snapshot::decode(&with_record(0x8013, &[1])), Ok(Snapshot { shut, ..connection() }));
    for wrong in [&[][..], &[0], &[4], &[255], &[1, 1]] {
        assert!(Snapshot::decode(&with_record(0x8013, wrong)).is_err(), "{wrong:?}");
    }
}
