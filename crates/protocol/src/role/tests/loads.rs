//! What goes ahead of the connections of a process (P-93).

use super::*;

/// Parts of a load, in order.
fn load(number: u64, length: usize, part_length: usize) -> Vec<Record> {
    let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
    let part = |(at, bytes): (usize, &[u8])| Record::Load {
        number,
        total: length as u32,
        offset: (at * part_length) as u32,
        bytes: bytes.to_vec(),
    };
    bytes.chunks(part_length).enumerate().map(part).collect()
}

fn loaded(records: Vec<Record>) -> Vec<LoadStanding> {
    let standing = |record| match record {
        Record::Loaded { standing, .. } => standing,
        other => panic!("{other:?}"),
    };
    records.into_iter().map(standing).collect()
}

#[test]
fn what_goes_ahead_of_a_process_arrives_whole_or_not_at_all() {
    let mut acceptor = Host::new(ACCEPTOR);
    load(5, 1000, 600).into_iter().for_each(|record| acceptor.hear(DONOR, record));
    let name = MoveName { donor: *key(DONOR).as_bytes(), number: 5 };
    let Some(MoveEvent::Loaded { name: of, bytes }) = acceptor.moves.poll_event() else { panic!("it did not arrive") };
    assert!(of == name && bytes.len() == 1000 && bytes[999] == 231);
    // From its beginning again, as when the words had to be said anew.
    for record in [load(6, 1000, 600), load(6, 1000, 600)].concat() {
        acceptor.hear(DONOR, record);
    }
    assert!(matches!(acceptor.moves.poll_event(), Some(MoveEvent::Loaded { bytes, .. }) if bytes.len() == 1000));
    assert!(acceptor.moves.poll_event().is_some(), "said twice, it is there twice");
    assert!(loaded(acceptor.said(DONOR)).is_empty());
    // What does not fit together, is too much, or is a stranger's.
    acceptor.hear(DONOR, load(7, 1000, 600).remove(0));
    acceptor.hear(DONOR, load(7, 1000, 500).remove(1));
    acceptor.hear(DONOR, load(8, 100_001, 600).remove(0));
    assert_eq!(loaded(acceptor.said(DONOR)), [LoadStanding::Refused; 2]);
    acceptor.hear(THIEF, load(9, 1000, 600).remove(0));
    assert_eq!(loaded(acceptor.said(THIEF)), [LoadStanding::Refused]);
    // One that takes sockets need not take processes.
    acceptor.moves.config().processes = false;
    load(10, 1000, 600).into_iter().for_each(|record| acceptor.hear(DONOR, record));
    assert_eq!(loaded(acceptor.said(DONOR)), [LoadStanding::Refused]);
    assert!(acceptor.moves.poll_event().is_none());
    // What stays away is not waited for.
    acceptor.moves.config().processes = true;
    acceptor.hear(DONOR, load(11, 1000, 600).remove(0));
    assert!(acceptor.moves.relocation.loads() > 0);
    acceptor.now = acceptor.now + Duration::from_secs(3600);
    let at = At { now: acceptor.now, around: &Known };
    acceptor.moves.handle_timeout(at);
    assert_eq!(acceptor.moves.relocation.loads(), 0);
}

#[test]
fn the_donor_of_a_process_hears_of_it_or_gives_it_up() {
    let mut donor = Host::new(DONOR);
    let at = At { now: donor.now, around: &Known };
    donor.moves.send_load(at, 5, key(ACCEPTOR), vec![7; 10_000]);
    let parts = donor.said(ACCEPTOR);
    assert_eq!(parts.len(), 1);
    assert!(parts.iter().all(|part| matches!(part, Record::Load { number: 5, total: 10_000, .. })));
    let ready = Record::Loaded { number: 5, standing: LoadStanding::Ready, sentence: b"yes".to_vec() };
    donor.hear(ACCEPTOR, ready);
    let event = donor.moves.poll_event();
    assert!(
        matches!(&event, Some(MoveEvent::LoadAnswered { number: 5, standing: LoadStanding::Ready, sentence, .. }) if sentence == "yes"),
        "{event:?}"
    );
    donor.moves.send_load(at, 6, key(ACCEPTOR), vec![7; 10]);
    donor.now = donor.now + Duration::from_secs(3600);
    donor.moves.handle_timeout(At { now: donor.now, around: &Known });
    let event = donor.moves.poll_event();
    assert!(
        matches!(&event, Some(MoveEvent::LoadAnswered { number: 6, standing: LoadStanding::Refused, .. })),
        "{event:?}"
    );
    assert_eq!(donor.moves.relocation.loads(), 0);
}
