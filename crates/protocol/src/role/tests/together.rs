//! Moves that one brings along (P-130).

use super::*;

const OTHER: u64 = FLOW + 1;

/// A holder that has lent two flows, of which the donor has announced moves, the second with the first.
fn two() -> (Host, [Ticket; 2]) {
    two_for(ACCEPTOR)
}

fn two_for(acceptor: usize) -> (Host, [Ticket; 2]) {
    let mut holder = Host::new(HOLDER);
    let acceptor = *key(acceptor).as_bytes();
    let tickets = [(FLOW, NUMBER), (OTHER, NUMBER + 1)].map(|(flow, number)| {
        holder.moves.lend(with(DONOR, flow), far());
        holder.hear(DONOR, Record::Announce { number, flow, lifetime: 60, acceptor });
        // Of the first that says nothing.
        holder.hear(DONOR, Record::Belongs { number, flow, first: NUMBER });
        let said = holder.said(DONOR);
        let Some(Record::Announced { sequence, lifetime, refusal: None, .. }) = said.last() else { panic!("{said:?}") };
        let (sequence, lifetime) = (*sequence, *lifetime);
        let mut ticket = Ticket { name: name(number), flow, acceptor, sequence, lifetime, mac: [0; 16] };
        assert!(Host::new(DONOR).moves.relocation.sign(&mut ticket, key(HOLDER)));
        ticket
    });
    (holder, tickets)
}

/// What is kept, in the order in which it is.
fn lines(ops: &[MoveOp]) -> Vec<SavedHeld> {
    let saved = |op: &MoveOp| match op {
        MoveOp::SaveHeld(saved) => saved.clone(),
        other => panic!("{other:?}"),
    };
    ops.iter().flat_map(saved).collect()
}

fn saved(ops: &[MoveOp]) -> Vec<(u64, PublicKey, u16)> {
    lines(ops).iter().map(|saved| (saved.flow.value(), saved.flow.peer(), saved.wire_port)).collect()
}

#[test]
fn what_belongs_together_is_committed_together() {
    let (mut holder, [first, other]) = two();
    holder.hear(ACCEPTOR, present(first));
    let guess = far().remote.port();
    assert_eq!(saved(&holder.carry_out()), [(FLOW, key(ACCEPTOR), 2048), (OTHER, key(ACCEPTOR), guess)]);
    assert_eq!(verdict(&mut holder, ACCEPTOR), None, "only of that which was presented");
    let committed = |number| Record::Decided { number, decision: Decision::Committed };
    assert_eq!(holder.said(DONOR), [committed(NUMBER), committed(NUMBER + 1)]);
    // So it is whatever happens now.
    holder.hear(DONOR, Record::Recall { number: NUMBER + 1, flow: OTHER, gone: false });
    assert_eq!(holder.said(DONOR), [committed(NUMBER + 1)]);
    holder.led.clear();
    holder.hear(ACCEPTOR, present(other));
    assert_eq!(saved(&holder.carry_out()), [(OTHER, key(ACCEPTOR), 2048)], "now its port is known");
    assert_eq!(holder.led, [(key(ACCEPTOR), 2048)]);
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
}

#[test]
fn what_is_presented_while_it_is_kept_is_answered_then() {
    let (mut holder, [first, other]) = two();
    holder.hear(ACCEPTOR, present(first));
    let ops = holder.ops();
    holder.hear(ACCEPTOR, present(other));
    ops.into_iter().for_each(|(id, _)| holder.done(id));
    assert_eq!(saved(&holder.carry_out()), [(OTHER, key(ACCEPTOR), 2048)]);
    let said = holder.said(ACCEPTOR);
    assert!(
        matches!(said[..], [Record::Verdict { outcome: Ok(_), .. }, Record::Verdict { outcome: Ok(_), .. }]),
        "{said:?}"
    );
}

#[test]
fn what_comes_home_is_held_until_it_is_presented() {
    let (mut holder, [first, other]) = two_for(HOLDER);
    holder.hear(HOLDER, present(first));
    assert_eq!(saved(&holder.carry_out()).len(), 2);
    let rebound = |holder: &mut Host| {
        let events = std::iter::from_fn(|| holder.moves.poll_event());
        events.filter(|event| matches!(event, MoveEvent::Rebound { .. })).collect::<Vec<_>>()
    };
    let of = |flow| MoveEvent::Rebound { flow: with(HOLDER, flow), far: Some(far()) };
    assert_eq!(rebound(&mut holder), [of(FLOW)]);
    holder.hear(HOLDER, present(other));
    holder.carry_out();
    assert_eq!(rebound(&mut holder), [of(OTHER)], "whoever hears it forgets the flow");
}

#[test]
fn where_the_first_is_not_kept_nothing_is() {
    let (mut holder, [first, _]) = two();
    holder.hear(ACCEPTOR, present(first));
    let (keep, op) = holder.op();
    assert_eq!(saved(&[op]).len(), 2, "in one write");
    holder.failed(keep);
    assert_eq!(holder.carry_out(), []);
    let revoked = |number| Record::Decided { number, decision: Decision::Revoked };
    assert_eq!(holder.said(DONOR), [revoked(NUMBER), revoked(NUMBER + 1)]);
}

#[test]
fn what_was_called_back_or_goes_to_another_host_is_not_brought_along() {
    let (mut holder, [first, _]) = two();
    holder.hear(DONOR, Record::Recall { number: NUMBER + 1, flow: OTHER, gone: false });
    holder.hear(ACCEPTOR, present(first));
    assert_eq!(saved(&holder.carry_out()), [(FLOW, key(ACCEPTOR), 2048)]);

    let (mut holder, [first, _]) = two();
    let acceptor = *key(THIEF).as_bytes();
    let number = NUMBER + 2;
    holder.hear(DONOR, Record::Announce { number, flow: OTHER, lifetime: 60, acceptor });
    holder.hear(DONOR, Record::Belongs { number, flow: OTHER, first: NUMBER });
    holder.hear(ACCEPTOR, present(first));
    assert_eq!(saved(&holder.carry_out()), [(FLOW, key(ACCEPTOR), 2048)]);
}

#[test]
fn what_is_announced_anew_or_named_by_others_is_not_brought_along() {
    let alone = |holder: &mut Host, first| {
        holder.hear(ACCEPTOR, present(first));
        assert_eq!(saved(&holder.carry_out()), [(FLOW, key(ACCEPTOR), 2048)]);
    };
    let acceptor = *key(ACCEPTOR).as_bytes();
    let anew = Record::Announce { number: NUMBER + 2, flow: OTHER, lifetime: 60, acceptor };
    let (mut holder, [first, _]) = two();
    holder.hear(DONOR, anew.clone());
    alone(&mut holder, first);

    let (mut holder, [first, _]) = two();
    holder.hear(DONOR, anew);
    // Of a move that is not announced any more, and of another donor's.
    holder.hear(DONOR, Record::Belongs { number: NUMBER + 1, flow: OTHER, first: NUMBER });
    holder.hear(THIEF, Record::Belongs { number: NUMBER + 2, flow: OTHER, first: NUMBER });
    alone(&mut holder, first);
}

#[test]
fn a_process_is_not_ended_unless_its_first_move_is_committed() {
    // The holder is killed while it keeps what it has decided, and finds the beginning of it.
    let (mut holder, [first, _]) = two();
    holder.hear(ACCEPTOR, present(first));
    let lines = lines(&holder.carry_out());
    assert_eq!(lines.len(), 2);
    for found in 0..=lines.len() {
        let mut next = Host::new(HOLDER);
        for saved in &lines[..found] {
            next.moves.restore_held(At { now: next.now, around: &Known }, saved);
        }
        let said = next.said(DONOR);
        let is_committed = |number| said.contains(&Record::Decided { number, decision: Decision::Committed });
        assert_eq!([is_committed(NUMBER), is_committed(NUMBER + 1)], [found > 0, found > 1], "{found}: {said:?}");
        next.hear(ACCEPTOR, present(first));
        let outcome = verdict(&mut next, ACCEPTOR);
        assert_eq!(outcome, (found == 0).then_some(Refusal::NotAnnounced), "{found}: the acceptor drops its copy");
    }
}
