//! Sockets without another end, whose endpoints go with them (P-96).

use whimbrel_wire::lending::Granted;

use super::*;
use crate::base::op::relocation::Lending;

/// A holder whose own socket that listens is being moved away, and the ticket.
fn listening() -> (Host, Ticket, Ends) {
    let mut holder = Host::new(HOLDER);
    let end = FlowTuple::unconnected(Transport::Tcp, far().remote);
    holder.moves.lend(with(DONOR, FLOW), end.mirrored());
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
    holder.moves.handle_done(at, lent, Ok(OpDone::Lent(ends)));
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
    assert!(ops.contains(&MoveOp::ForgetHeld { flow: with(ACCEPTOR, FLOW) }), "{ops:?}");
    assert_eq!(holder.moves.relocation.held().len() + holder.moves.anchor.leases().len(), 0);
}

#[test]
fn an_endpoint_that_moves_on_is_lent_to_one_host_alone() {
    let (mut holder, ticket, ends) = listening();
    let lend = |holder: &mut Host| {
        while let Some((id, op)) = holder.ops().pop() {
            let done = if matches!(op, MoveOp::Lend { .. }) { OpDone::Lent(ends) } else { OpDone::Done };
            holder.moves.handle_done(At { now: holder.now, around: &Known }, id, Ok(done));
        }
    };
    holder.hear(ACCEPTOR, present(ticket));
    lend(&mut holder);
    let acceptor = *key(THIEF).as_bytes();
    holder.hear(ACCEPTOR, Record::Announce { number: 9, flow: FLOW, lifetime: 60, acceptor });
    let mut next = Ticket { sequence: ticket.sequence + 1, acceptor, ..ticket };
    next.name = MoveName { donor: *key(ACCEPTOR).as_bytes(), number: 9 };
    assert!(Host::new(ACCEPTOR).moves.relocation.sign(&mut next, key(HOLDER)));
    holder.said(THIEF);
    holder.hear(THIEF, present(next));
    let (kept, op) = holder.op();
    assert!(matches!(op, MoveOp::SaveHeld(_)), "{op:?}");
    holder.done(kept);
    // Nothing is taken back before it goes to the next: nobody is to hear in between that there is no such endpoint.
    let (lent, op) = holder.op();
    assert!(matches!(op, MoveOp::Lend { .. }), "{op:?}");
    holder.moves.handle_done(At { now: holder.now, around: &Known }, lent, Ok(OpDone::Lent(ends)));
    let former = LeaseName { tenant: key(ACCEPTOR), number: FLOW };
    assert_eq!(holder.carry_out(), [MoveOp::TakeBack { name: former }]);
    assert_eq!(verdict(&mut holder, THIEF), None);
    let tenants: Vec<PublicKey> = holder.moves.anchor.leases().iter().map(|name| name.tenant).collect();
    assert_eq!(tenants, [key(THIEF)]);
}

/// Carries out what is asked for; what is lent is lent.
fn lend_all(host: &mut Host) -> Vec<MoveOp> {
    let mut done = Vec::new();
    loop {
        let ops = host.ops();
        if ops.is_empty() {
            return done;
        }
        for (id, op) in ops {
            let at = At { now: host.now, around: &Known };
            let result = match &op {
                MoveOp::Lend { ends, .. } => OpDone::Lent(*ends),
                _ => OpDone::Done,
            };
            host.moves.handle_done(at, id, Ok(result));
            host.change_flows();
            done.push(op);
        }
    }
}

/// An anchor that has lent two ports to the donor, which has claimed the endpoint of one for TCP.
fn claimed() -> (Host, Ends, LeaseName) {
    let mut anchor = Host::new(HOLDER);
    anchor.moves.config().lending =
        Some(Lending { to: Vec::new(), most: 2, lifetime: Duration::from_secs(60), ports: vec![(8000, 8999)] });
    let ends = Ends { first: far().remote, count: 2 };
    anchor.hear(DONOR, Record::Lease { number: 1, ends });
    lend_all(&mut anchor);
    anchor.said(DONOR);
    anchor.hear(DONOR, claim(FLOW, Transport::Tcp));
    let one = Ends { count: 1, ..ends };
    let name = LeaseName { tenant: key(DONOR), number: FLOW };
    let peer = Known.peer(&key(DONOR)).expect("a peer");
    let ops = lend_all(&mut anchor);
    assert!(ops.contains(&MoveOp::Lend { name, peer, ends: one, moved: Some(Transport::Tcp) }), "{ops:?}");
    assert_eq!(verdict(&mut anchor, DONOR), None);
    (anchor, one, name)
}

fn claim(flow: u64, transport: Transport) -> Record {
    let tuple = FlowTuple::unconnected(transport, far().remote);
    Record::Claim { flow, tuple, wire_port: 0, hidden: false }
}

#[test]
fn an_endpoint_that_is_on_lease_is_claimed_and_goes_to_another_host_with_its_socket() {
    // P-115
    let (mut anchor, ends, of_donor) = claimed();
    // It says so again, and by another name as a daemon does that was started anew: there is one such part of the
    // lease.
    anchor.hear(DONOR, claim(FLOW, Transport::Tcp));
    lend_all(&mut anchor);
    assert_eq!(verdict(&mut anchor, DONOR), None);
    let ticket = announce(&mut anchor, NUMBER);
    anchor.hear(DONOR, claim(FLOW + 1, Transport::Tcp));
    assert_eq!(verdict(&mut anchor, DONOR), Some(Refusal::Taken), "it is on its way");
    anchor.hear(ACCEPTOR, present(ticket));
    let ops = lend_all(&mut anchor);
    let to = LeaseName { tenant: key(ACCEPTOR), number: FLOW };
    let led = ops.iter().position(|op| matches!(op, MoveOp::Lend { name, .. } if *name == to));
    let taken = ops.iter().position(|op| *op == MoveOp::TakeBack { name: of_donor });
    assert!(led.zip(taken).is_some_and(|(led, taken)| led < taken), "{ops:?}");
    assert_eq!(verdict(&mut anchor, ACCEPTOR), None);
    anchor.said(DONOR);
    // The rest of the lease is the donor's, and that endpoint is not: neither what comes to it, nor it.
    let connection = FlowTuple { local: ends.first, remote: "192.0.2.77:7".parse().expect("an endpoint"), ..far() };
    let of_connection = |flow| Record::Claim { flow, tuple: connection, wire_port: 9, hidden: false };
    for (flow, record) in [(8, claim(8, Transport::Tcp)), (9, of_connection(9))] {
        anchor.hear(DONOR, record);
        assert!(verdict(&mut anchor, DONOR).is_some(), "{flow}");
    }
    anchor.hear(ACCEPTOR, of_connection(10));
    anchor.carry_out();
    assert_eq!(verdict(&mut anchor, ACCEPTOR), None);
    // Another transport of it is the donor's.
    anchor.hear(DONOR, claim(11, Transport::Udp));
    lend_all(&mut anchor);
    assert_eq!(verdict(&mut anchor, DONOR), None);
    // The lease that it was a part of ends; it does not.
    anchor.hear(DONOR, Record::Return { number: 1 });
    anchor.hear(DONOR, Record::Return { number: 11 });
    lend_all(&mut anchor);
    let left: Vec<LeaseName> = anchor.moves.anchor.leases();
    assert_eq!(left, [to]);
}

#[test]
fn an_endpoint_is_claimed_anew_by_who_has_forgotten_its_claim() {
    // P-115
    let (mut anchor, _, of_donor) = claimed();
    anchor.hear(DONOR, claim(FLOW + 1, Transport::Tcp));
    let ops = lend_all(&mut anchor);
    assert_eq!(verdict(&mut anchor, DONOR), None);
    assert!(ops.contains(&MoveOp::TakeBack { name: of_donor }), "{ops:?}");
    let parts: Vec<u64> = anchor.moves.relocation.held().iter().map(FlowName::value).collect();
    assert_eq!(parts, [FLOW + 1]);
    let numbers: Vec<u64> = anchor.moves.anchor.leases().iter().map(|name| name.number).collect();
    assert_eq!(numbers, [1, FLOW + 1]);
}

#[test]
fn who_has_given_an_endpoint_on_asks_for_it_no_more_and_has_it_again_when_it_comes_back() {
    // P-115
    let mut donor = Host::new(DONOR);
    let at = |donor: &Host| At { now: donor.now, around: &Known };
    let socket = FlowTuple::unconnected(Transport::Tcp, far().remote);
    assert!(donor.moves.rent_moved(at(&donor), with(HOLDER, FLOW), socket).is_none());
    let settle = |donor: &mut Host| {
        while let Some((id, _)) = donor.ops().pop() {
            donor.done(id);
        }
    };
    settle(&mut donor);
    let granted = Granted { ends: Ends { first: far().remote, count: 1 }, lifetime: 60 };
    donor.pass(1);
    settle(&mut donor);
    donor.said(HOLDER);
    donor.hear(HOLDER, Record::Leased { number: FLOW, outcome: Ok(granted) });
    assert_eq!(donor.moves.anchor.tenant().lessor_of(far().remote), Some(key(HOLDER)));
    donor.moves.part(at(&donor), with(HOLDER, FLOW));
    assert_eq!(donor.moves.anchor.tenant().lessor_of(far().remote), None);
    let kept = |donor: &mut Host| match &donor.carry_out()[..] {
        [MoveOp::SaveTenancy(saved), ..] => *saved,
        ops => panic!("{ops:?}"),
    };
    let parts = kept(&mut donor);
    assert!(parts.parts);
    // It comes back at once.
    assert_eq!(donor.moves.rent_moved(at(&donor), with(HOLDER, FLOW), socket), Some(Ok(())));
    assert!(!kept(&mut donor).parts);
    assert_eq!(donor.moves.anchor.tenant().lessor_of(far().remote), Some(key(HOLDER)));
    assert!(donor.said(HOLDER).contains(&Record::Lease { number: FLOW, ends: granted.ends }));
    donor.hear(HOLDER, Record::Leased { number: FLOW, outcome: Ok(granted) });
    // And goes for good: nothing is said of it, since its anchor has led it elsewhere.
    donor.moves.part(at(&donor), with(HOLDER, FLOW));
    settle(&mut donor);
    // Nor by a daemon that was started anew meanwhile.
    let mut anew = Host::new(DONOR);
    anew.moves.restore_tenancies(at(&anew), &[parts]);
    settle(&mut anew);
    for mut donor in [donor, anew] {
        donor.pass(30);
        assert_eq!(donor.carry_out(), [MoveOp::Vacate { lease: with(HOLDER, FLOW) }]);
        assert!(donor.said(HOLDER).is_empty() && donor.moves.anchor.tenancies().is_empty());
    }
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
            let done = if matches!(op, MoveOp::Lend { .. }) { OpDone::Lent(ends) } else { OpDone::Done };
            holder.moves.handle_done(At { now: holder.now, around: &Known }, id, Ok(done));
        }
        assert_eq!(verdict(&mut holder, ACCEPTOR), None);
        set(&mut holder, if known { &[ACCEPTOR, THIEF] } else { &[THIEF] });
        holder.hear(ACCEPTOR, Record::Lease { number: FLOW, ends });
        let said = holder.said(ACCEPTOR);
        assert!(matches!(said[..], [Record::Leased { outcome: Ok(_), .. }]), "{said:?}");
        set(&mut holder, &[THIEF]);
        assert_eq!(holder.moves.anchor.leases().len(), usize::from(!known));
        let said = holder.said(ACCEPTOR);
        let refused = Record::Leased { number: FLOW, outcome: Err(Refusal::NotAllowed) };
        assert_eq!(said, if known { vec![refused] } else { Vec::new() });
    }
}
