//! Sockets without another end, whose endpoints go with them (P-96).

use super::*;

/// A holder whose own socket that listens is being moved away, and the ticket.
fn listening() -> (Host, Ticket, Ends) {
    let mut holder = Host::new(HOLDER);
    let end = FlowTuple::unconnected(Transport::Tcp, far().remote);
    holder.moves.lend(FLOW, end.mirrored(), key(DONOR));
    let ticket = announce(&mut holder, NUMBER);
    (holder, ticket, Ends { first: end.local, count: 1 })
}

#[test]
fn who_gets_a_socket_that_listens_has_its_endpoint_before_it_hears_so() {
    // P-96
    let (mut holder, ticket, ends) = listening();
    holder.hear(ACCEPTOR, present(ticket));
    let (kept, op) = holder.op();
    assert!(matches!(op, MoveOp::SaveHeld(_)), "{op:?}");
    holder.done(kept);
    let (lent, op) = holder.op();
    let lease = LeaseName { tenant: key(ACCEPTOR), number: FLOW };
    let peer = Known.peer(&key(ACCEPTOR)).expect("a peer");
    assert_eq!(op, MoveOp::Lend { name: lease, peer, ends, moved: Some(Transport::Tcp) });
    assert!(holder.said(ACCEPTOR).is_empty(), "it is told before anything leads to it");
    // It is tried until it works: the move is decided.
    holder.failed(lent);
    assert!(holder.said(ACCEPTOR).is_empty());
    holder.pass(1);
    let (lent, op) = holder.op();
    assert!(matches!(op, MoveOp::Lend { .. }), "{op:?}");
    let at = At { now: holder.now, around: &Known };
    holder.moves.handle_done(at, lent, Ok(MoveDone::Lent(ends)));
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
    // Its lease lasts as any, and the endpoint is the holder's again when it is returned.
    holder.hear(ACCEPTOR, Record::Lease { number: FLOW, ends });
    let said = holder.said(ACCEPTOR);
    assert!(matches!(said[..], [Record::Leased { number: FLOW, outcome: Ok(_) }]), "{said:?}");
    holder.hear(DONOR, Record::Settled { number: NUMBER });
    holder.carry_out();
    holder.hear(ACCEPTOR, Record::Return { number: FLOW });
    let ops = holder.carry_out();
    assert!(ops.contains(&MoveOp::TakeBack { name: lease }), "{ops:?}");
    assert!(ops.contains(&MoveOp::ForgetHeld { flow: FLOW }), "{ops:?}");
    assert_eq!(holder.moves.held.len() + holder.moves.leases.len(), 0);
}

#[test]
fn an_endpoint_that_moves_on_is_lent_to_one_host_alone() {
    let (mut holder, ticket, ends) = listening();
    let lend = |holder: &mut Host| {
        while let Some((id, op)) = holder.ops().pop() {
            let done = if matches!(op, MoveOp::Lend { .. }) { MoveDone::Lent(ends) } else { MoveDone::Done };
            holder.moves.handle_done(At { now: holder.now, around: &Known }, id, Ok(done));
        }
    };
    holder.hear(ACCEPTOR, present(ticket));
    lend(&mut holder);
    let acceptor = *key(THIEF).as_bytes();
    holder.hear(ACCEPTOR, Record::Announce { number: 9, flow: FLOW, lifetime: 60, acceptor });
    let mut next = Ticket { sequence: ticket.sequence + 1, acceptor, ..ticket };
    next.name = MoveName { donor: *key(ACCEPTOR).as_bytes(), number: 9 };
    assert!(Host::new(ACCEPTOR).moves.sign(&mut next, key(HOLDER)));
    holder.said(THIEF);
    holder.hear(THIEF, present(next));
    let (kept, op) = holder.op();
    assert!(matches!(op, MoveOp::SaveHeld(_)), "{op:?}");
    holder.done(kept);
    // Nothing is taken back before it goes to the next: nobody is to hear in between that there is no such endpoint.
    let (lent, op) = holder.op();
    assert!(matches!(op, MoveOp::Lend { .. }), "{op:?}");
    holder.moves.handle_done(At { now: holder.now, around: &Known }, lent, Ok(MoveDone::Lent(ends)));
    let former = LeaseName { tenant: key(ACCEPTOR), number: FLOW };
    assert_eq!(holder.carry_out(), [MoveOp::TakeBack { name: former }]);
    assert_eq!(verdict(&mut holder, THIEF), None);
    let tenants: Vec<PublicKey> = holder.moves.leases.keys().map(|name| name.tenant).collect();
    assert_eq!(tenants, [key(THIEF)]);
}

#[test]
fn an_endpoint_that_moved_is_its_new_hosts_until_that_is_revoked() {
    // The holder lends nothing, and need not know the host that got it by a grant.
    for known in [false, true] {
        let (mut holder, ticket, ends) = listening();
        let members = |of: &[usize]| of.iter().map(|of| key(*of)).collect();
        let set = |holder: &mut Host, of: &[usize]| {
            let at = At { now: holder.now, around: &Known };
            let gone = [key(ACCEPTOR)].into_iter().filter(|_| known && !of.contains(&ACCEPTOR));
            holder.moves.set_members(at, members(of), gone.collect(), true);
        };
        if known {
            set(&mut holder, &[ACCEPTOR]);
        }
        holder.hear(ACCEPTOR, present(ticket));
        while let Some((id, op)) = holder.ops().pop() {
            let done = if matches!(op, MoveOp::Lend { .. }) { MoveDone::Lent(ends) } else { MoveDone::Done };
            holder.moves.handle_done(At { now: holder.now, around: &Known }, id, Ok(done));
        }
        assert_eq!(verdict(&mut holder, ACCEPTOR), None);
        set(&mut holder, if known { &[ACCEPTOR, THIEF] } else { &[THIEF] });
        holder.hear(ACCEPTOR, Record::Lease { number: FLOW, ends });
        let said = holder.said(ACCEPTOR);
        assert!(matches!(said[..], [Record::Leased { outcome: Ok(_), .. }]), "{said:?}");
        set(&mut holder, &[THIEF]);
        assert_eq!(holder.moves.leases.len(), usize::from(!known));
        let said = holder.said(ACCEPTOR);
        let refused = Record::Leased { number: FLOW, outcome: Err(Refusal::NotAllowed) };
        assert_eq!(said, if known { vec![refused] } else { Vec::new() });
    }
}
