//! The formats against fixed bytes, which are in `tests/vectors`: hexadecimal, `#` starts a comment.

use std::net::SocketAddr;

use whimbrel_wire::chain::Parameter;
use whimbrel_wire::codec::Malformed;
use whimbrel_wire::community::{CommunitySecret, Joined, Word};
use whimbrel_wire::datagram::{self, Datagram, Pattern};
use whimbrel_wire::lending::{Ends, Granted};
use whimbrel_wire::message::decode_all;
use whimbrel_wire::moving::{
    AcceptorStanding, Decision, LoadStanding, MoveName, Received, Record, Refusal, Request, StreamStanding, Terms,
    Ticket,
};
use whimbrel_wire::snapshot::Family;
use whimbrel_wire::{Capabilities, ChainSpec, FlowTuple, Hello, Introduction, Message, Stage, TransformId, Transport};

const MESSAGES: &str = include_str!("vectors/messages.hex");

fn bytes(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/vectors/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    from_hex(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")))
}

fn from_hex(text: &str) -> Vec<u8> {
    let lines = text.lines().filter_map(|line| line.split('#').next());
    let digits: Vec<u8> = lines.flat_map(str::bytes).filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn endpoint(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The messages, each with its name and its bytes.
fn messages() -> Vec<(&'static str, Vec<u8>, Message)> {
    let section = |section: &'static str| {
        let (name, hex) = section.split_once('\n').unwrap();
        let bytes = from_hex(hex.split('>').next().unwrap());
        let read = decode_all(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let [message] = <[_; 1]>::try_from(read).unwrap();
        (name, bytes, message)
    };
    MESSAGES.split("\n= ").skip(1).map(section).collect()
}

fn message(name: &str) -> Vec<u8> {
    messages().into_iter().find(|(of, ..)| *of == name).unwrap().1
}

#[test]
fn messages_are_as_in_the_vectors() {
    let mut together = Vec::new();
    for (name, bytes, message) in messages() {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        assert_eq!(encoded, bytes, "{name}");
        assert_eq!(encoded.len(), message.encoded_len(), "{name}");
        together.extend(encoded);
    }
    let all: Vec<_> = messages().into_iter().map(|(.., message)| message).collect();
    assert_eq!(decode_all(&together), Ok(all));
}

#[test]
fn what_is_read_is_as_in_the_vectors() {
    let mut read = messages().into_iter().map(|(.., message)| format!("> {message:x?}"));
    let mut now = |line: &str| if line.starts_with('>') { read.next().unwrap() } else { line.to_owned() };
    let now: Vec<String> = MESSAGES.lines().map(&mut now).collect();
    if std::env::var_os("WHIMBREL_WRITE_DATA").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/messages.hex");
        std::fs::write(path, now.join("\n") + "\n").unwrap();
        return;
    }
    MESSAGES.lines().zip(&now).for_each(|(then, now)| assert_eq!(now, then));
    // It is not shown.
    let secret = Some(CommunitySecret([0xf6; 32]));
    let joined = Word::Joined(Joined { number: 7, proof: [0xd4; 32], community: [0xe5; 32], secret, lifetime: 3600 });
    assert_eq!(decode_all(&message("joined")), Ok(vec![Message::Community(joined)]));
}

#[test]
fn messages_cut_short_are_malformed() {
    // P-11
    for (name, whole, message) in messages() {
        for length in 1..whole.len() {
            assert!(decode_all(&whole[..length]).is_err(), "{name}: {length} bytes");
        }
        // Also where the length field says so. Padding, what is passed on and what a stream carries may have any
        // length.
        let least = match message {
            Message::Padding { .. } | Message::PassedOn { .. } => continue,
            Message::Stream(_) => 3 + 17,
            _ => whole.len(),
        };
        for length in 3..least {
            let mut cut = whole[..length].to_vec();
            cut[1..3].copy_from_slice(&((length - 3) as u16).to_be_bytes());
            assert!(decode_all(&cut).is_err(), "{name}: body of {}", length - 3);
        }
        if matches!(message, Message::Stream(_)) {
            continue;
        }
        let mut longer = whole.clone();
        longer.push(0);
        longer[1..3].copy_from_slice(&((whole.len() - 2) as u16).to_be_bytes());
        let error = decode_all(&longer).unwrap_err();
        assert!(error.what == "end of message" || error.what.starts_with("count of"), "{name}: {error}");
    }
}

#[test]
fn what_is_no_chain_is_malformed() {
    let whole = message("chain");
    // Whether it is known; how many transforms; the number of the second parameter.
    for (at, value) in [(3 + 9, 2), (3 + 10, 0), (3 + 10, 9), (3 + 14, 9), (3 + 18, 9), (3 + 28, 1), (3 + 28, 0)] {
        let mut changed = whole.clone();
        assert_ne!(std::mem::replace(&mut changed[at], value), value);
        assert!(decode_all(&changed).is_err(), "{value} at {at}");
    }
    for at in [3 + 9, 3 + 10] {
        let mut changed = message("chain_empty");
        changed[at] = 1;
        assert!(decode_all(&changed).is_err(), "the empty chain with 1 at {at}");
    }
    let stage = |parameters| Stage { transform: TransformId(1), version: 1, parameters };
    let parameter = |number| Parameter { number, value: 0 };
    for stages in [
        vec![],
        vec![stage(vec![]); 9],
        vec![stage(vec![parameter(1), parameter(1)])],
        vec![stage((0..9).map(parameter).collect())],
    ] {
        assert!(ChainSpec::new(stages).is_err());
    }
}

#[test]
fn unknown_types_are_skipped() {
    // P-11
    let mut plaintext = vec![0xee, 0, 3, 1, 2, 3];
    plaintext.extend(message("path_challenge"));
    plaintext.extend([0x7e, 0, 0]);
    assert_eq!(decode_all(&plaintext), Ok(vec![Message::PathChallenge { token: 0x1112_1314_1516_1718 }]));
}

#[test]
fn an_error_says_where() {
    let mut plaintext = message("path_challenge");
    plaintext.extend(message("introduction_echo"));
    // The transport of the tuple, after 11 bytes of challenge, 3 of header and 26 of fields.
    plaintext[11 + 3 + 26] = 132;
    assert_eq!(decode_all(&plaintext), Err(Malformed { what: "introducer's tuple", at: 40 }));
}

#[test]
fn a_datagram_holds_a_bounded_number_of_messages() {
    let ready = message("close");
    let most = ready.repeat(whimbrel_wire::message::MAX_MESSAGES);
    assert!(decode_all(&most).is_ok());
    assert!(decode_all(&[most, ready].concat()).is_err());
}

#[test]
fn hello_is_as_in_the_vector() {
    let hello = Hello {
        version: 1,
        capabilities: Capabilities::REWRITE | Capabilities::TUNNEL_SEALED,
        timestamp: 1_700_000_000_123,
        life: 0xb0b1_b2b3_b4b5_b6b7,
        locators: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        tcp_port: 0,
    };
    let mut encoded = Vec::new();
    hello.encode(&mut encoded);
    assert_eq!(encoded, bytes("hello"));
    assert_eq!(encoded.len(), hello.encoded_len());
    for length in 0..encoded.len() {
        assert!(Hello::decode(&encoded[..length]).is_err(), "{length} bytes");
    }
    // P-250
    let listens = Hello { tcp_port: 443, ..hello.clone() };
    let mut port = Vec::new();
    listens.encode(&mut port);
    assert_eq!(port, [encoded.as_slice(), &[0x01, 0xbb]].concat());
    assert_eq!((port.len(), Hello::decode(&port)), (listens.encoded_len(), Ok(listens)));
    assert_eq!(Hello::decode(&port[..port.len() - 1]), Ok(hello.clone()), "half a port is padding");
    encoded.extend([0; 100]);
    assert_eq!(Hello::decode(&encoded), Ok(hello), "padding");
    encoded[0] = 0;
    assert_eq!(Hello::decode(&encoded), Err(Malformed { what: "hello version", at: 0 }));
    encoded[0] = 1;
    encoded[21] = 33;
    encoded.resize(2000, 0);
    assert_eq!(Hello::decode(&encoded), Err(Malformed { what: "locator count", at: 21 }));
}

#[test]
fn introductions_are_as_in_the_vectors() {
    let introduction = Introduction { index: 0x0102_0304, nonce: 0xa0a1_a2a3_a4a5_a6a7 };
    assert_eq!(introduction.tcp_option().to_vec(), bytes("introduction_option"));
    assert_eq!(introduction.udp_payload().to_vec(), bytes("introduction_udp"));
    let among_others = bytes("introduction_option_after_timestamps");
    assert_eq!(Introduction::in_tcp_options(&among_others), Some(introduction));
}

#[test]
fn headers_are_as_in_the_vectors() {
    assert_eq!(datagram::initiation_header(Pattern::IkPsk, 1, 0x0102_0304).to_vec(), bytes("header_initiation"));
    assert_eq!(datagram::response_header(0x0102_0304, 0x0506_0708).to_vec(), bytes("header_response"));
    assert_eq!(datagram::finish_header(0x0506_0708).to_vec(), bytes("header_finish"));
    assert_eq!(datagram::cookie_header(0x0102_0304).to_vec(), bytes("header_cookie"));
    assert_eq!(datagram::control_header(0x0102_0304, 0x1112_1314_1516_1718).to_vec(), bytes("header_control"));
    assert_eq!(
        datagram::tunnel_sealed_header(3, 0x0102_0304, 0x1112_1314_1516_1718).to_vec(),
        bytes("header_tunnel_sealed")
    );
    assert_eq!(
        datagram::tunnel_plain_header(3, 0x0102_0304, 0x1112_1314_1516_1718).to_vec(),
        bytes("header_tunnel_plain")
    );
}

#[test]
fn session_datagrams_are_taken_apart() {
    let control = [bytes("header_control"), vec![7; 16]].concat();
    let Ok(Datagram::Control(parsed)) = Datagram::parse(&control) else { panic!("control") };
    assert_eq!((parsed.receiver, parsed.counter), (0x0102_0304, 0x1112_1314_1516_1718));
    assert_eq!((parsed.header.as_slice(), parsed.sealed), (&control[..16], &control[16..]));
    assert_eq!(Datagram::parse(&control[..31]), Err(Malformed { what: "tag", at: 31 }));

    let sealed = [bytes("header_tunnel_sealed"), vec![7; 20]].concat();
    let Ok(Datagram::TunnelSealed(parsed)) = Datagram::parse(&sealed) else { panic!("sealed tunnel") };
    assert_eq!((parsed.chain, parsed.receiver, parsed.counter), (3, 0x0102_0304, 0x1112_1314_1516_1718));
    assert_eq!(parsed.sealed, [7; 20]);

    let plain = [bytes("header_tunnel_plain"), vec![7; 3]].concat();
    let Ok(Datagram::TunnelPlain(parsed)) = Datagram::parse(&plain) else { panic!("plain tunnel") };
    assert_eq!((parsed.chain, parsed.receiver, parsed.token), (3, 0x0102_0304, 0x1112_1314_1516_1718));
    assert_eq!(parsed.packets, [7; 3]);
}

#[test]
fn datagrams_that_nobody_speaks_are_malformed() {
    // P-1, P-5
    let kind = Malformed { what: "datagram kind", at: 0 };
    assert_eq!(Datagram::parse(&[]), Err(kind));
    for other in (0..=255).filter(|kind| ![1, 2, 3, 4, 0x10, 0x20, 0x21].contains(kind)) {
        assert_eq!(Datagram::parse(&[other; 1300]), Err(kind));
    }
    let mut initiation = vec![0; datagram::INITIATION_LEN];
    initiation[..8].copy_from_slice(&bytes("header_initiation"));
    assert!(Datagram::parse(&initiation).is_ok());
    assert!(Datagram::parse(&initiation[..datagram::INITIATION_LEN - 1]).is_err());
    for (at, value, what) in [(1, 0, "pattern"), (1, 5, "pattern"), (2, 0, "version")] {
        let mut wrong = initiation.clone();
        wrong[at] = value;
        assert_eq!(Datagram::parse(&wrong), Err(Malformed { what, at }));
    }
    initiation[3] = 0xff;
    assert!(Datagram::parse(&initiation).is_ok(), "P-4");
}

fn records() -> Vec<Record> {
    let (number, flow, acceptor) = (0xa0a1_a2a3_a4a5_a6a7, 0xb0b1_b2b3_b4b5_b6b7, [0xac; 32]);
    let name = MoveName { donor: [0xd0; 32], number };
    let ticket = Ticket { name, flow, acceptor, sequence: 5, lifetime: 60, mac: *b"0123456789abcdef" };
    let tuple = FlowTuple {
        transport: Transport::Tcp,
        local: endpoint("192.0.2.1:22"),
        remote: endpoint("198.51.100.7:40000"),
    };
    let request = Request {
        holder: [0x40; 32],
        holder_at: endpoint("203.0.113.5:2031"),
        flow,
        tuple,
        family: Family::Ipv4,
        size: 300,
        options: vec![1, 60],
        receiver: b"mail".to_vec(),
    };
    let ends = Ends { first: endpoint("[2001:db8::1]:40000"), count: 64 };
    let terms = |home: Option<(u32, u32)>| {
        let passed_on = home.is_none();
        Terms { far: tuple.mirrored(), wire_port: 1024, home, passed_on, hidden: false }
    };
    vec![
        Record::Ask { number, request },
        Record::Answer { number, standing: AcceptorStanding::Refused, refusal: Some(Refusal::NoRoom) },
        Record::Announce { number, flow, lifetime: 60, acceptor },
        Record::Announced { number, sequence: 5, lifetime: 60, refusal: None },
        Record::Part { number, total: 300, offset: 16, bytes: b"hello".to_vec() },
        Record::Ticket(ticket),
        Record::Verdict { name, outcome: Err(Refusal::Expired) },
        Record::Recall { number, flow, gone: true },
        Record::Decided { number, decision: Decision::Committed },
        Record::Settled { number },
        Record::Surrender(ticket),
        Record::Cancel { number },
        Record::Verdict { name, outcome: Ok(terms(None)) },
        Record::Verdict { name, outcome: Ok(terms(Some((3, 0)))) },
        Record::Present { ticket, wire_port: 22 },
        Record::Load { number, total: 300, offset: 16, bytes: b"hello".to_vec() },
        Record::Loaded { number, standing: LoadStanding::Refused, sentence: b"no".to_vec() },
        Record::Lease { number, ends: Ends { first: endpoint("0.0.0.0:0"), count: 64 } },
        Record::Leased { number, outcome: Err(Refusal::NotLent) },
        Record::Leased { number, outcome: Ok(Granted { ends, lifetime: 3600 }) },
        Record::Return { number },
        Record::Claim { flow, tuple, wire_port: 1024, hidden: true },
        Record::Ending { flow },
        Record::Offer { number, ports: vec![(8080, 8207), (40_000, 44_999)] },
        Record::Belongs { number, flow, first: number + 1 },
        Record::Reached { number, reached: false },
    ]
}

#[test]
fn records_are_as_in_the_vector() {
    let whole = bytes("records");
    let mut rest = &whole[..];
    for record in records() {
        let mut encoded = Vec::new();
        record.encode(&mut encoded);
        let (read, length) = Record::decode(rest).unwrap().unwrap();
        assert_eq!((read, length), (Some(record.clone()), encoded.len()));
        assert_eq!(encoded, rest[..length], "{record:?}");
        // A body that is cut short, or has more behind it.
        for wrong in (0..length - 3).chain([length - 2]) {
            let mut other = encoded.clone();
            other.resize(3 + wrong, 0);
            other[1..3].copy_from_slice(&(wrong as u16).to_be_bytes());
            // What a part holds may have any length, and so may a sentence.
            let least = match record {
                Record::Part { .. } | Record::Load { .. } => 16,
                Record::Loaded { .. } => 9,
                _ => usize::MAX,
            };
            if wrong < least {
                assert!(Record::decode(&other).is_err(), "{record:?}: body of {wrong}");
            }
        }
        rest = &rest[length..];
    }
    assert!(rest.is_empty());
}

#[test]
fn a_ticket_signs_all_but_its_mac() {
    let Some(Record::Ticket(ticket)) = records().into_iter().find(|record| matches!(record, Record::Ticket(_))) else {
        panic!("no ticket")
    };
    let mut encoded = Vec::new();
    Record::Ticket(ticket).encode(&mut encoded);
    assert_eq!(ticket.signed(), encoded[3..encoded.len() - 16]);
}

#[test]
fn what_contradicts_itself_is_malformed() {
    let mut part = Vec::new();
    Record::Part { number: 1, total: 4, offset: 2, bytes: vec![1, 2, 3] }.encode(&mut part);
    assert_eq!(Record::decode(&part), Err(Malformed { what: "part of a snapshot", at: 15 }));
    for ranges in [vec![(5, 9)], vec![(10, 9)], vec![(20, 30), (30, 40)], vec![(20, 30), (25, 40)]] {
        let standing = StreamStanding::Taken;
        let mut encoded = Vec::new();
        Message::Received(Received { stream: 1, standing, before: 5, limit: 9, ranges }).encode(&mut encoded);
        assert_eq!(decode_all(&encoded).unwrap_err().what, "range of a stream");
    }
}
