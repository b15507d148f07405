//! Hosts that say what is not so, strangers and such as are trusted with something else.

use whimbrel_wire::lending::Granted;
use whimbrel_wire::message::Message;
use whimbrel_wire::moving::{Received, StreamStanding, Stretch};

use super::*;

fn at(now: Time) -> At<'static> {
    At { now, around: &Known }
}

fn stranger(number: u32) -> PublicKey {
    let mut bytes = [0x55u8; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    PublicKey::from(bytes)
}

fn encoded(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

/// A word that is answered, whoever says it.
fn word() -> Vec<u8> {
    encoded(&Record::Part { number: 1, total: 10, offset: 0, bytes: Vec::new() })
}

/// What is said to a host next: the number of its stream.
fn stream_to(host: &mut Host, to: PublicKey) -> Option<u64> {
    let messages: Vec<_> = std::iter::from_fn(|| host.moves.records().poll(host.now, &to)).collect();
    messages.into_iter().rev().find_map(|message| match message {
        Message::Stream(stretch) => Some(stretch.stream),
        _ => None,
    })
}

#[test]
fn a_number_that_somebody_remembers_counts_for_his_lane_alone() {
    let mut host = Host::new(HOLDER);
    host.moves.handle_stretch(at(host.now), stranger(1), Stretch { stream: 5, fresh: true, offset: 0, bytes: word() });
    let first = stream_to(&mut host, stranger(1)).expect("an answer");
    let lie =
        |before| Received { stream: first, standing: StreamStanding::NotNewest, before, limit: 0, ranges: vec![] };
    // There is no number above this one.
    host.moves.handle_received(at(host.now), stranger(1), &lie(u64::MAX));
    host.moves.handle_received(at(host.now), stranger(1), &lie(u64::MAX - 1));
    assert_eq!(stream_to(&mut host, stranger(1)), Some(u64::MAX), "it is believed of its own");
    host.hear(DONOR, Record::Part { number: 2, total: 10, offset: 0, bytes: Vec::new() });
    let other = stream_to(&mut host, key(DONOR)).expect("an answer");
    assert!(other < first + 10, "{other} after {first}");
}

#[test]
fn strangers_leave_room_for_those_of_whom_something_is_expected() {
    let mut host = Host::new(ACCEPTOR);
    for number in 0..4096 {
        let stretch = Stretch { stream: 5, fresh: true, offset: 0, bytes: word() };
        host.moves.handle_stretch(at(host.now), stranger(number), stretch);
    }
    assert!(host.moves.records().hosts().len() < 2000);
    host.hear(DONOR, Record::Ask { number: 9, request: request(1, 0) });
    host.carry_out();
    assert!(host.said(DONOR).iter().any(|record| matches!(record, Record::Answer { .. })));
}

#[test]
fn a_flow_that_is_with_another_is_not_a_donors_to_give() {
    let mut host = Host::new(ACCEPTOR);
    let stretch = |record| Stretch { stream: 5, fresh: true, offset: 0, bytes: encoded(&record) };
    let ask = Record::Ask { number: 9, request: request(1, 0) };
    host.moves.handle_stretch(At { now: host.now, around: &Occupied }, key(DONOR), stretch(ask));
    let said = host.said(DONOR);
    let is_refused =
        |record: &Record| matches!(record, Record::Answer { refusal: Some(Refusal::Taken), number: 9, .. });
    assert!(said.iter().any(is_refused), "{said:?}");
}

#[test]
fn a_snapshot_that_is_too_long_takes_no_room() {
    let mut host = Host::new(ACCEPTOR);
    let long = Request { size: (1 << 30) - 1, ..request(1, 0) };
    host.hear(DONOR, Record::Ask { number: 8, request: long });
    host.carry_out();
    host.hear(DONOR, Record::Ask { number: 9, request: request(1, 0) });
    host.carry_out();
    let refused: Vec<u64> = host.said(DONOR).into_iter().filter_map(refused_number).collect();
    assert_eq!(refused, [8]);
}

fn refused_number(record: Record) -> Option<u64> {
    match record {
        Record::Answer { number, refusal: Some(_), .. } => Some(number),
        _ => None,
    }
}

#[test]
fn a_lease_of_no_time_is_not_renewed_without_pause() {
    let mut host = Host::new(DONOR);
    let ends = Ends { first: "192.0.2.1:8000".parse().unwrap(), count: 1 };
    host.moves.rent(at(host.now), 7, key(HOLDER), None, ends);
    let (mut asked, start) = (0, host.now);
    while host.now.since(start) < Duration::from_secs(1) {
        asked += host.said(HOLDER).iter().filter(|record| matches!(record, Record::Lease { .. })).count();
        host.hear(HOLDER, Record::Leased { number: 7, outcome: Ok(Granted { ends, lifetime: 0 }) });
        host.carry_out();
        host.now = host.now + Duration::from_millis(1);
        host.moves.handle_timeout(at(host.now));
        host.carry_out();
    }
    assert!((1..10).contains(&asked), "asked {asked} times within a second");
}

#[test]
fn nothing_is_no_process() {
    let mut host = Host::new(ACCEPTOR);
    host.moves.config().processes = true;
    host.hear(DONOR, Record::Load { number: 1, total: 0, offset: 0, bytes: Vec::new() });
    assert!(std::iter::from_fn(|| host.moves.poll_event()).all(|event| !matches!(event, MoveEvent::Loaded { .. })));
    assert!(host.said(DONOR).iter().any(|record| matches!(record, Record::Loaded { number: 1, .. })));
}
