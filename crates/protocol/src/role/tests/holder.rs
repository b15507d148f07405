//! Saying whose a socket is, to whoever asks.

use super::*;

#[test]
fn only_the_right_ticket_from_the_right_host_commits() {
    // P-74
    let (mut holder, right) = announced(NUMBER);
    refused(&mut holder, THIEF, right, Refusal::NotYours);
    for byte in 0..16 {
        let mut forged = right;
        forged.mac[byte] ^= 1;
        refused(&mut holder, ACCEPTOR, forged, Refusal::Forged);
    }
    // The thief puts itself in, and cannot sign that.
    refused(&mut holder, THIEF, Ticket { acceptor: *key(THIEF).as_bytes(), ..right }, Refusal::NotYours);
    refused(&mut holder, ACCEPTOR, Ticket { sequence: right.sequence + 1, ..right }, Refusal::Forged);
    // What the donor itself signs wrongly.
    refused(&mut holder, ACCEPTOR, ticket(NUMBER, ACCEPTOR, right.sequence + 1, 60), Refusal::OtherSequence);
    refused(&mut holder, ACCEPTOR, ticket(NUMBER + 1, ACCEPTOR, right.sequence, 60), Refusal::NotAnnounced);
    refused(&mut holder, ACCEPTOR, ticket(NUMBER, THIEF, right.sequence, 60), Refusal::NotYours);
    // After all that the right one is good.
    holder.hear(ACCEPTOR, present(right));
    let ops = holder.carry_out();
    let saved = SavedHeld {
        flow: with(ACCEPTOR, FLOW),
        far: Some(far()),
        wire_port: 2048,
        sequence: right.sequence,
        last: name(NUMBER),
        unsettled: vec![(name(NUMBER), None)],
        hidden: false,
        ending: false,
    };
    assert_eq!(ops, [MoveOp::SaveHeld(vec![saved])]);
    assert_eq!(holder.led, [(key(ACCEPTOR), 2048)]);
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
    assert_eq!(holder.said(DONOR), [Record::Decided { number: NUMBER, decision: Decision::Committed }]);
}

#[test]
fn a_ticket_that_is_presented_again_is_answered_and_changes_nothing() {
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(ACCEPTOR, present(ticket));
    // Again, before it is kept.
    holder.hear(ACCEPTOR, present(ticket));
    holder.carry_out();
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
    holder.hear(ACCEPTOR, present(ticket));
    assert!(holder.ops().is_empty());
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
    refused(&mut holder, THIEF, ticket, Refusal::NotAnnounced);
    // The flow moved on meanwhile, to the thief: the ticket is worth nothing any more.
    let acceptor = *key(THIEF).as_bytes();
    holder.hear(ACCEPTOR, Record::Announce { number: 9, flow: FLOW, lifetime: 60, acceptor });
    let mut next = Ticket { sequence: ticket.sequence + 1, acceptor, ..ticket };
    next.name = MoveName { donor: *key(ACCEPTOR).as_bytes(), number: 9 };
    assert!(Host::new(ACCEPTOR).moves.relocation.sign(&mut next, key(HOLDER)));
    holder.hear(THIEF, present(next));
    holder.carry_out();
    holder.said(ACCEPTOR);
    refused(&mut holder, ACCEPTOR, ticket, Refusal::NotAnnounced);
}

#[test]
fn an_expired_ticket_is_worth_nothing() {
    let (mut holder, ticket) = announced(NUMBER);
    // Late by the holder's clock, before it has looked.
    holder.now = holder.now + Duration::from_secs(60);
    refused(&mut holder, ACCEPTOR, ticket, Refusal::Expired);
    holder.pass(0);
    refused(&mut holder, ACCEPTOR, ticket, Refusal::NotAnnounced);
    // Nor is it when the donor announces another move, which has another number.
    let next = announce(&mut holder, NUMBER + 1);
    assert!(next.sequence > ticket.sequence);
    refused(&mut holder, ACCEPTOR, ticket, Refusal::NotAnnounced);
}

#[test]
fn what_is_recalled_is_never_committed_and_what_is_committed_is_never_recalled() {
    // P-75
    let recall = Record::Recall { number: NUMBER, flow: FLOW, gone: false };
    let decided = |decision| Record::Decided { number: NUMBER, decision };
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(DONOR, recall.clone());
    assert_eq!(holder.said(DONOR), [decided(Decision::Revoked)]);
    refused(&mut holder, ACCEPTOR, ticket, Refusal::NotAnnounced);
    // Somebody else may not recall it.
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(THIEF, recall.clone());
    assert_eq!(holder.said(THIEF), [decided(Decision::NoSuchFlow)]);
    // While it is being kept nobody knows.
    holder.hear(ACCEPTOR, present(ticket));
    let (keep, _) = holder.op();
    holder.hear(DONOR, recall.clone());
    assert!(holder.said(DONOR).is_empty());
    holder.done(keep);
    holder.carry_out();
    assert_eq!(holder.said(DONOR), [decided(Decision::Committed)]);
    holder.hear(DONOR, recall.clone());
    assert_eq!(holder.said(DONOR), [decided(Decision::Committed)]);
    // It could not be kept.
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(ACCEPTOR, present(ticket));
    let (keep, _) = holder.op();
    holder.hear(DONOR, recall);
    holder.failed(keep);
    assert_eq!(holder.said(DONOR), [decided(Decision::Revoked)]);
    assert_eq!(verdict(&mut holder, ACCEPTOR), Some(Refusal::NotKept));
    refused(&mut holder, ACCEPTOR, ticket, Refusal::NotAnnounced);
}

#[test]
fn a_commit_is_not_overwritten_by_what_was_before_it() {
    let (mut holder, first) = announced(NUMBER);
    holder.hear(ACCEPTOR, present(first));
    holder.carry_out();
    // The acceptor gives it back before the donor has said that it knows.
    let acceptor = *key(DONOR).as_bytes();
    holder.hear(ACCEPTOR, Record::Announce { number: 9, flow: FLOW, lifetime: 60, acceptor });
    let mut back = Ticket { sequence: first.sequence + 1, acceptor, ..first };
    back.name = MoveName { donor: *key(ACCEPTOR).as_bytes(), number: 9 };
    assert!(Host::new(ACCEPTOR).moves.relocation.sign(&mut back, key(HOLDER)));
    holder.hear(DONOR, present(back));
    let (keep, op) = holder.op();
    assert!(matches!(op, MoveOp::SaveHeld(saved) if saved[0].flow.peer() == key(DONOR)));
    holder.hear(DONOR, Record::Settled { number: NUMBER });
    assert!(holder.ops().is_empty(), "nothing older is saved behind it");
    holder.done(keep);
    holder.carry_out();
    holder.hear(ACCEPTOR, Record::Settled { number: 9 });
    let (id, op) = holder.op();
    let MoveOp::SaveHeld(saved) = &op else { panic!("{op:?}") };
    assert_eq!((saved[0].flow.peer(), saved[0].unsettled.len()), (key(DONOR), 0));
    // It fails, and is asked for again, as it is by then.
    holder.failed(id);
    holder.pass(1);
    assert_eq!(holder.op().1, op);
}

#[test]
fn a_lost_copy_closes_the_far_end_and_only_its_acceptor_may_say_so() {
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(ACCEPTOR, present(ticket));
    holder.carry_out();
    holder.said(ACCEPTOR);
    let mut forged = ticket;
    forged.mac[3] ^= 4;
    for (from, ticket) in [(THIEF, ticket), (ACCEPTOR, forged)] {
        holder.hear(from, Record::Surrender(ticket));
        assert_eq!(verdict(&mut holder, from), Some(Refusal::NotAnnounced));
        assert!(holder.ops().is_empty());
    }
    assert_eq!(holder.released, []);
    holder.hear(ACCEPTOR, Record::Surrender(ticket));
    assert_eq!(holder.carry_out(), [MoveOp::CloseFarEnd { flow: with(ACCEPTOR, FLOW) }]);
    assert_eq!(holder.released, [far()], "its packets would go to where the socket was");
    assert_eq!(verdict(&mut holder, ACCEPTOR), Some(Refusal::Cancelled));
    // The donor still learns that it has the socket no more; then nothing is left.
    holder.hear(DONOR, Record::Recall { number: NUMBER, flow: FLOW, gone: false });
    assert!(holder.said(DONOR).contains(&Record::Decided { number: NUMBER, decision: Decision::Committed }));
    holder.hear(DONOR, Record::Settled { number: NUMBER });
    assert_eq!(holder.carry_out(), [MoveOp::ForgetHeld { flow: with(ACCEPTOR, FLOW) }]);
    assert!(holder.moves.relocation.held().is_empty());
}
