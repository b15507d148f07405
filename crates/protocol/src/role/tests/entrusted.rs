//! Sockets that are another host's, and what that says has become of them (P-145).

use super::*;

/// A donor whose socket is committed and has ended there, and that has heard nothing of it since.
fn entrusting() -> Host {
    let mut donor = offering();
    decided(&mut donor);
    let (id, op) = donor.op();
    assert!(matches!(op, MoveOp::Destroy { .. }), "{op:?}");
    donor.done(id);
    assert!(donor.said(HOLDER).contains(&Record::Settled { number: NUMBER }));
    donor
}

fn offering() -> Host {
    let mut donor = giving(false);
    is_announced(&mut donor);
    is_answered(&mut donor, AcceptorStanding::Ready, None);
    for _ in 0..2 {
        let (id, _) = donor.op();
        donor.done(id);
    }
    let (id, op) = donor.op();
    assert!(matches!(op, MoveOp::Dump { .. }), "{op:?}");
    let at = At { now: donor.now, around: &Known };
    donor.moves.handle_done(at, id, Ok(OpDone::Dumped(vec![7; 600])));
    events(&mut donor);
    donor
}

fn decided(donor: &mut Host) {
    donor.hear(HOLDER, Record::Decided { number: NUMBER, decision: Decision::Committed });
}

fn lost(why: Refusal) -> [MoveEvent; 1] {
    [MoveEvent::LostThere { name: name(NUMBER), to: key(ACCEPTOR), why, snapshot: vec![7; 600] }]
}

fn given() -> [MoveEvent; 1] {
    [MoveEvent::Given { name: name(NUMBER), to: key(ACCEPTOR) }]
}

#[test]
fn a_socket_is_given_once_it_goes_on_there() {
    let mut donor = entrusting();
    donor.carry_out();
    assert_eq!(events(&mut donor), [], "nobody has said so");
    donor.hear(THIEF, Record::Answer { number: NUMBER, standing: AcceptorStanding::GoesOn, refusal: None });
    assert_eq!(events(&mut donor), [], "only its acceptor can");
    is_answered(&mut donor, AcceptorStanding::GoesOn, None);
    assert_eq!(events(&mut donor), given());
    is_answered(&mut donor, AcceptorStanding::Lost, Some(Refusal::NotWoken));
    donor.pass(60);
    assert_eq!(events(&mut donor), [], "it is said once");
    assert_eq!(donor.moves.entries(), donor.moves.records().entries(), "nothing is left of it");
}

#[test]
fn what_is_lost_at_its_new_host_is_not_lost_to_its_donor() {
    let mut donor = entrusting();
    is_answered(&mut donor, AcceptorStanding::Lost, Some(Refusal::NotWoken));
    assert_eq!(events(&mut donor), lost(Refusal::NotWoken));
    let mut donor = entrusting();
    donor.pass(19);
    assert_eq!(events(&mut donor), []);
    donor.pass(1);
    assert_eq!(events(&mut donor), lost(Refusal::AcceptorUnreached));
}

#[test]
fn a_late_word_is_heard_once() {
    for (standing, outcome) in [(AcceptorStanding::GoesOn, Ok(())), (AcceptorStanding::Lost, Err(Refusal::NotWoken))] {
        let mut donor = entrusting();
        donor.pass(20);
        assert_eq!(events(&mut donor), lost(Refusal::AcceptorUnreached));
        donor.pass(3600);
        let refusal = outcome.err();
        donor.hear(THIEF, Record::Answer { number: NUMBER, standing, refusal });
        assert_eq!(events(&mut donor), [], "only its acceptor can");
        is_answered(&mut donor, standing, refusal);
        assert_eq!(events(&mut donor), [MoveEvent::HeardOf { name: name(NUMBER), to: key(ACCEPTOR), outcome }]);
        is_answered(&mut donor, standing, refusal);
        assert_eq!(events(&mut donor), []);
    }
}

#[test]
fn the_acceptors_word_may_come_before_the_holders_and_does_not_replace_it() {
    for (standing, then) in [(AcceptorStanding::GoesOn, given()), (AcceptorStanding::Lost, lost(Refusal::NotWoken))] {
        let mut donor = offering();
        is_answered(&mut donor, standing, None);
        assert!(donor.ops().is_empty() && events(&mut donor).is_empty(), "the holder alone decides");
        decided(&mut donor);
        let (id, op) = donor.op();
        assert!(matches!(op, MoveOp::Destroy { .. }), "{op:?}");
        donor.done(id);
        assert_eq!(events(&mut donor), then);
        // Revoked, it is the donor's.
        let mut donor = offering();
        is_answered(&mut donor, standing, None);
        donor.hear(HOLDER, Record::Decided { number: NUMBER, decision: Decision::Revoked });
        let (_, op) = donor.op();
        assert!(matches!(op, MoveOp::Thaw { .. }), "{op:?}");
    }
}

#[test]
fn what_waits_for_a_word_is_bounded() {
    let mut donor = entrusting();
    donor.moves.config().most = 1;
    let Request { tuple, family, .. } = request(2, 600);
    let gift = Gift {
        tuple,
        family,
        size: 600,
        options: Vec::new(),
        receiver: Vec::new(),
        holder_at: None,
        flow: with(HOLDER, FLOW + 1),
        acceptor: key(ACCEPTOR),
        acceptor_at: None,
        after: None,
    };
    let at = At { now: donor.now, around: &Known };
    assert_eq!(donor.moves.give(at, NUMBER + 1, gift.clone(), false).err(), Some(NotGiven::TooMany));
    is_answered(&mut donor, AcceptorStanding::GoesOn, None);
    assert!(donor.moves.give(at, NUMBER + 1, gift, false).is_ok());
}

#[test]
fn an_acceptor_says_whether_a_socket_goes_on() {
    for fails in [false, true] {
        let mut acceptor = ready();
        let number = NUMBER;
        let ticket = ticket(number, ACCEPTOR, 1, 60);
        acceptor.hear(DONOR, Record::Part { number, total: 4, offset: 0, bytes: vec![7; 4] });
        acceptor.hear(DONOR, Record::Ticket(ticket));
        // Rebuilt, and saved.
        for _ in 0..2 {
            let (id, _) = acceptor.op();
            acceptor.done(id);
        }
        assert!(acceptor.said(HOLDER).iter().any(|record| matches!(record, Record::Present { .. })));
        acceptor.said(DONOR);
        acceptor.hear(HOLDER, Record::Verdict { name: name(number), outcome: Ok(terms()) });
        let (id, op) = acceptor.op();
        assert!(matches!(op, MoveOp::Thaw { .. }), "{op:?}");
        match fails {
            true => acceptor.failed(id),
            false => acceptor.done(id),
        }
        let told = answers(acceptor.said(DONOR));
        let surrenders = acceptor.said(HOLDER).contains(&Record::Surrender(ticket));
        assert_eq!(surrenders, fails);
        match fails {
            true => assert_eq!(told, [(number, AcceptorStanding::Lost, Some(Refusal::NotKept))]),
            false => assert_eq!(told, [(number, AcceptorStanding::GoesOn, None)]),
        }
    }
}
