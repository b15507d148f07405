//! Getting sockets, of donors that say what they like.

use super::*;

#[test]
fn an_acceptor_bounds_what_it_takes() {
    // P-72
    let mut acceptor = ready();
    acceptor.hear(THIEF, Record::Ask { number: 1, request: request(2, 1000) });
    assert_eq!(answers(acceptor.said(THIEF)), [(1, AcceptorStanding::Refused, Some(Refusal::NotAllowed))]);
    let no_room = |number| (number, AcceptorStanding::Refused, Some(Refusal::NoRoom));
    acceptor.hear(DONOR, Record::Ask { number: 6, request: request(3, 99_000) });
    assert_eq!(answers(acceptor.said(DONOR)), [no_room(6)]);
    acceptor.moves.accept_from(key(THIEF));
    acceptor.hear(THIEF, Record::Ask { number: 7, request: request(1, 10) });
    assert_eq!(answers(acceptor.said(THIEF)), [(7, AcceptorStanding::Refused, Some(Refusal::Busy))]);
    for number in 10..13 {
        acceptor.hear(DONOR, Record::Ask { number, request: Request { flow: number, ..request(number as u16, 10) } });
    }
    acceptor.hear(DONOR, Record::Ask { number: 13, request: Request { flow: 13, ..request(13, 10) } });
    assert_eq!(answers(acceptor.said(DONOR)), [no_room(13)]);
    // A snapshot that turns out longer than there is room.
    acceptor.hear(DONOR, Record::Part { number: NUMBER, total: 98_000, offset: 0, bytes: vec![1; 10] });
    assert_eq!(answers(acceptor.said(DONOR)), [no_room(NUMBER)]);
    (10..13).for_each(|number| acceptor.hear(DONOR, Record::Cancel { number }));
    assert!(acceptor.ops().iter().all(|(_, op)| matches!(op, MoveOp::Admit { .. } | MoveOp::ForgetAcceptance { .. })));
    assert_eq!((acceptor.moves.relocation.reserved(), acceptor.moves.relocation.under_way().1), (0, 0));
}

#[test]
fn a_donor_that_asks_anew_is_not_kept_from_it_by_what_it_asked_before() {
    // P-72. How far the former move is: admitted, sent in part, being restored, presented.
    let signed = ticket(NUMBER, ACCEPTOR, 1, 60);
    let part = |total| Record::Part { number: NUMBER, total, offset: 0, bytes: vec![7; 1000] };
    for step in 0..4 {
        let mut acceptor = ready();
        if step > 0 {
            acceptor.hear(DONOR, part(if step == 1 { 2000 } else { 1000 }));
        }
        if step > 1 {
            acceptor.hear(DONOR, Record::Ticket(signed));
        }
        if step > 2 {
            acceptor.carry_out();
        }
        acceptor.ops();
        acceptor.hear(DONOR, Record::Ask { number: 7, request: request(1, 1000) });
        let admitted = acceptor.ops().iter().any(|(_, op)| matches!(op, MoveOp::Admit { .. }));
        assert_eq!(admitted, step < 2, "{step}");
        let busy = answers(acceptor.said(DONOR)).contains(&(7, AcceptorStanding::Refused, Some(Refusal::Busy)));
        // Of a copy that is there already the holder decides.
        assert_eq!(busy, step >= 2, "{step}");
    }
}

#[test]
fn a_snapshot_that_does_not_fit_together_is_refused() {
    let signed = ticket(NUMBER, ACCEPTOR, 1, 60);
    let part = |total, offset: usize, length| Record::Part {
        number: NUMBER,
        total,
        offset: offset as u32,
        bytes: vec![7; length],
    };
    let bad: [Vec<Record>; 5] = [
        vec![part(1000, 0, 500), part(1000, 600, 100)],
        vec![part(1000, 0, 500), part(1001, 500, 100)],
        vec![part(1000, 0, 500), Record::Ticket(signed)],
        vec![Record::Ticket(signed)],
        vec![part(1000, 0, 1000), Record::Ticket(ticket(NUMBER, THIEF, 1, 60))],
    ];
    for records in bad {
        let mut acceptor = ready();
        records.iter().for_each(|record| acceptor.hear(DONOR, record.clone()));
        let refused = (NUMBER, AcceptorStanding::Refused, Some(Refusal::BadSnapshot));
        assert_eq!(answers(acceptor.said(DONOR)), [refused], "{records:?}");
        assert!(!acceptor.ops().iter().any(|(_, op)| matches!(op, MoveOp::Restore { .. })));
        assert_eq!(acceptor.moves.relocation.reserved(), 0);
    }
    // From its beginning again, as when the words had to be said anew.
    let mut acceptor = ready();
    for record in [part(1000, 0, 500), part(1000, 0, 500), part(1000, 500, 500), Record::Ticket(signed)] {
        acceptor.hear(DONOR, record);
    }
    let (_, op) = acceptor.op();
    assert!(matches!(op, MoveOp::Restore { snapshot, .. } if snapshot == vec![7; 1000]));
    // Somebody else's parts and ticket are about another move.
    let mut acceptor = ready();
    acceptor.hear(THIEF, part(1000, 0, 1000));
    assert_eq!(answers(acceptor.said(THIEF)), [(NUMBER, AcceptorStanding::Unknown, None)]);
}

#[test]
fn who_asks_and_does_not_listen_is_not_answered_for_ever() {
    let mut acceptor = Host::new(ACCEPTOR);
    let mut offset = 0;
    let mut bytes = Vec::new();
    (0..10).for_each(|number| Record::Ask { number, request: request(1, 10) }.encode(&mut bytes));
    for _ in 0..40_000 {
        let stretch = Stretch { stream: 1, fresh: true, offset, bytes: bytes.clone() };
        let at = At { now: acceptor.now, around: &Known };
        acceptor.moves.handle_stretch(at, key(THIEF), stretch);
        let limit = acceptor.moves.records().poll(acceptor.now, &key(THIEF));
        offset += bytes.len() as u64;
        drop(limit);
    }
    let entries = acceptor.moves.entries();
    assert!(entries < 2 << 20, "{entries}");
    assert!(acceptor.moves.relocation.keys() == 0 && acceptor.ops().is_empty());
}

#[test]
fn a_part_is_no_longer_than_a_record_may_be() {
    let mut bytes = Vec::new();
    Record::Part { number: 1, total: MAX_PART as u32, offset: 0, bytes: vec![0; MAX_PART] }.encode(&mut bytes);
    assert!(Record::decode(&bytes).is_ok_and(|record| record.is_some()));
}
