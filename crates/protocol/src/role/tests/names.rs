//! Names of flows that are said by others than those whose flows they are (P-132).

use super::*;
use crate::base::op::relocation::Lending;

/// Everybody has a session with everybody, and one flow is introduced.
struct Introduced(FlowName, FlowTuple);

impl Around for Introduced {
    fn has_session(&self, with: &PublicKey) -> bool {
        Known.has_session(with)
    }
    fn flow(&self, name: &FlowName) -> Option<FlowTuple> {
        (*name == self.0).then_some(self.1)
    }
    fn is_known(&self, flow: &FlowTuple) -> bool {
        *flow == self.1
    }
    fn partner(&self, flow: &FlowTuple) -> Option<PublicKey> {
        (*flow == self.1).then_some(self.0.peer())
    }
    fn wire_port(&self, with: &PublicKey, flow: &FlowTuple) -> Option<u16> {
        Known.wire_port(with, flow)
    }
    fn peer(&self, of: &PublicKey) -> Option<PeerId> {
        Known.peer(of)
    }
    fn whereabouts(&self, of: &PublicKey) -> Option<SocketAddr> {
        Known.whereabouts(of)
    }
}

impl Host {
    fn hear_among(&mut self, around: &dyn Around, from: usize, record: Record) {
        let at = At { now: self.now, around };
        self.moves.hear(at, key(from), record);
    }
}

fn other() -> FlowTuple {
    request(2, 0).tuple.mirrored()
}

fn announce_of(number: u64, acceptor: usize) -> Record {
    Record::Announce { number, flow: FLOW, lifetime: 60, acceptor: *key(acceptor).as_bytes() }
}

/// What a holder answers to an announcement.
fn answer(holder: &mut Host, to: usize) -> Option<Refusal> {
    let said = holder.said(to);
    let Some(Record::Announced { refusal, .. }) = said.last() else { panic!("{said:?}") };
    *refusal
}

/// A holder that has committed the donor's flow to the acceptor.
fn committed() -> Host {
    let (mut holder, ticket) = announced(NUMBER);
    holder.hear(ACCEPTOR, present(ticket));
    holder.carry_out();
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
    holder.said(DONOR);
    holder
}

#[test]
fn two_hosts_have_a_flow_each_of_one_name_and_each_moves_its_own() {
    let mut holder = Host::new(HOLDER);
    holder.moves.lend(with(DONOR, FLOW), far());
    holder.moves.lend(with(THIEF, FLOW), other());
    // As the thief announces a move of it, and gives it up, the donor's is as it was.
    holder.hear(THIEF, announce_of(NUMBER, ACCEPTOR));
    assert_eq!(answer(&mut holder, THIEF), None);
    let ticket = announce(&mut holder, NUMBER);
    holder.hear(THIEF, Record::Recall { number: NUMBER, flow: FLOW, gone: true });
    let ops = holder.carry_out();
    assert_eq!(ops, [MoveOp::CloseFarEnd { flow: with(THIEF, FLOW) }]);
    assert_eq!(holder.released, [other()], "another's flow is closed");
    holder.hear(ACCEPTOR, present(ticket));
    let ops = holder.carry_out();
    assert!(
        matches!(&ops[..], [MoveOp::SaveHeld(saved)]
            if (saved[0].flow, saved[0].far) == (with(ACCEPTOR, FLOW), Some(far()))),
        "{ops:?}"
    );
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
    assert!(holder.moves.relocation.held().contains(&with(THIEF, FLOW)));
}

#[test]
fn who_has_no_flow_of_a_name_can_do_nothing_with_it() {
    let (mut holder, _) = announced(NUMBER);
    holder.hear(THIEF, announce_of(NUMBER, ACCEPTOR));
    assert_eq!(answer(&mut holder, THIEF), Some(Refusal::NoSuchFlow));
    holder.hear(THIEF, Record::Recall { number: NUMBER, flow: FLOW, gone: true });
    assert_eq!(holder.said(THIEF), [Record::Decided { number: NUMBER, decision: Decision::NoSuchFlow }]);
    holder.hear(THIEF, Record::Belongs { number: NUMBER, flow: FLOW, first: 1 });
    assert!(holder.carry_out().is_empty() && holder.released.is_empty());
    assert_eq!(holder.moves.relocation.indexed()[2..], [0, 0]);
}

#[test]
fn a_former_owner_knows_the_name_and_has_no_flow_of_it() {
    for led in [true, false] {
        let (mut holder, ticket) = announced(NUMBER);
        holder.hear(ACCEPTOR, present(ticket));
        if led {
            holder.carry_out();
        } else {
            let (kept, _) = holder.op();
            let at = At { now: holder.now, around: &Known };
            holder.moves.handle_done(at, kept, Ok(OpDone::Done));
        }
        // As far as the table of flows knows the flow may still be the donor's.
        let table = Introduced(with(DONOR, FLOW), far());
        holder.hear_among(&table, DONOR, announce_of(NUMBER + 1, THIEF));
        while holder.moves.poll_change().is_some() {}
        let said = holder.said(DONOR);
        let Some(Record::Announced { refusal, .. }) = said.last() else { panic!("{said:?}") };
        assert_eq!(*refusal, (!led).then_some(Refusal::NoSuchFlow));
        // What is its own under that name is another flow, of which it does what it likes; that one is not led
        // anywhere.
        holder.hear(DONOR, Record::Recall { number: NUMBER + 1, flow: FLOW, gone: false });
        holder.hear(DONOR, Record::Ending { flow: FLOW });
        assert!(!holder.moves.is_ending(&with(ACCEPTOR, FLOW)));
        // Of the move that was committed it hears so as long as anybody knows, also after it has said that it knows.
        for _ in 0..2 {
            holder.said(DONOR);
            holder.hear(DONOR, Record::Recall { number: NUMBER, flow: FLOW, gone: true });
            assert_eq!(
                holder.said(DONOR).last(),
                Some(&Record::Decided { number: NUMBER, decision: Decision::Committed })
            );
            holder.hear(DONOR, Record::Settled { number: NUMBER });
        }
        assert!(holder.released.is_empty());
    }
}

#[test]
fn nothing_is_committed_to_a_host_that_has_another_flow_of_that_name() {
    // Introduced, before the move is announced and after.
    let has = Introduced(with(ACCEPTOR, FLOW), other());
    let mut holder = Host::new(HOLDER);
    holder.moves.lend(with(DONOR, FLOW), far());
    holder.hear_among(&has, DONOR, announce_of(NUMBER, ACCEPTOR));
    assert_eq!(answer(&mut holder, DONOR), Some(Refusal::Taken));
    let ticket = announce(&mut holder, NUMBER);
    holder.hear_among(&has, ACCEPTOR, present(ticket));
    assert!(holder.ops().is_empty());
    assert_eq!(verdict(&mut holder, ACCEPTOR), Some(Refusal::Taken));
    // Held for it.
    holder.moves.lend(with(ACCEPTOR, FLOW), other());
    holder.hear(ACCEPTOR, present(ticket));
    assert!(holder.ops().is_empty());
    assert_eq!(verdict(&mut holder, ACCEPTOR), Some(Refusal::Taken));
    // On its way to it: of two the first is committed.
    let (mut holder, ticket) = announced(NUMBER);
    holder.moves.lend(with(THIEF, FLOW), other());
    holder.hear(THIEF, announce_of(NUMBER, ACCEPTOR));
    let said = holder.said(THIEF);
    let Some(Record::Announced { sequence, lifetime, refusal: None, .. }) = said.last() else { panic!("{said:?}") };
    let name = MoveName { donor: *key(THIEF).as_bytes(), number: NUMBER };
    let mut of_thief = Ticket { name, sequence: *sequence, lifetime: *lifetime, ..ticket };
    assert!(Host::new(THIEF).moves.relocation.sign(&mut of_thief, key(HOLDER)));
    holder.hear(ACCEPTOR, present(ticket));
    holder.hear(ACCEPTOR, present(of_thief));
    assert_eq!(verdict(&mut holder, ACCEPTOR), Some(Refusal::Taken));
    let ops = holder.carry_out();
    assert!(matches!(&ops[..], [MoveOp::SaveHeld(saved)] if saved[0].far == Some(far())), "{ops:?}");
    holder.hear(ACCEPTOR, present(of_thief));
    holder.carry_out();
    let said = holder.said(ACCEPTOR);
    assert!(matches!(said.last(), Some(Record::Verdict { outcome: Err(Refusal::Taken), .. })), "{said:?}");
}

#[test]
fn a_flow_comes_back_to_who_had_it() {
    // The name is the donor's again, and what is kept of the moves is under it.
    let mut holder = committed();
    let back = Record::Announce { number: 9, flow: FLOW, lifetime: 60, acceptor: *key(DONOR).as_bytes() };
    holder.hear(ACCEPTOR, back);
    let said = holder.said(ACCEPTOR);
    let Some(Record::Announced { sequence, lifetime, refusal: None, .. }) = said.last() else { panic!("{said:?}") };
    let name = MoveName { donor: *key(ACCEPTOR).as_bytes(), number: 9 };
    let acceptor = *key(DONOR).as_bytes();
    let mut ticket = Ticket { name, flow: FLOW, acceptor, sequence: *sequence, lifetime: *lifetime, mac: [0; 16] };
    assert!(Host::new(ACCEPTOR).moves.relocation.sign(&mut ticket, key(HOLDER)));
    holder.hear(DONOR, present(ticket));
    let ops = holder.carry_out();
    let [MoveOp::SaveHeld(saved)] = &ops[..] else { panic!("{ops:?}") };
    assert_eq!((saved[0].flow, saved[0].formerly()), (with(DONOR, FLOW), with(ACCEPTOR, FLOW)));
    assert_eq!(saved[0].unsettled.len(), 2);
    // Presented again it is answered again, and either donor settles.
    holder.hear(DONOR, present(ticket));
    assert!(matches!(
        holder.said(DONOR)[..],
        [Record::Verdict { outcome: Ok(_), .. }, Record::Verdict { outcome: Ok(_), .. }]
    ));
    holder.hear(DONOR, Record::Settled { number: NUMBER });
    holder.hear(ACCEPTOR, Record::Settled { number: 9 });
    holder.carry_out();
    let keys: Vec<FlowName> = holder.moves.relocation.held();
    assert_eq!((keys, holder.moves.relocation.settling()), (vec![with(DONOR, FLOW)], 0));
}

#[test]
fn a_claim_is_not_made_under_the_name_of_another_flow() {
    let lending =
        Lending { to: vec![key(DONOR), key(THIEF)], most: 4, lifetime: Duration::from_secs(60), ports: Vec::new() };
    let anchor = |lent: &[usize]| {
        let mut anchor = Host::new(HOLDER);
        anchor.moves.config().lending = Some(lending.clone());
        for of in lent {
            let first = SocketAddr::new(far().remote.ip(), 1 + *of as u16);
            let ends = Ends { first, count: 1 };
            anchor.hear(*of, Record::Lease { number: 3, ends });
            for (id, _) in anchor.ops() {
                let at = At { now: anchor.now, around: &Known };
                anchor.moves.handle_done(at, id, Ok(OpDone::Lent(ends)));
            }
            anchor.said(*of);
        }
        anchor
    };
    let of = |host: usize| {
        let tuple = far().mirrored();
        let local = SocketAddr::new(tuple.local.ip(), 1 + host as u16);
        FlowTuple { local, ..tuple }
    };
    let claim = |host| Record::Claim { flow: FLOW, tuple: of(host), wire_port: 2048, hidden: false };
    // Of two tenants each has its own, whatever the other calls it.
    let mut two = anchor(&[DONOR, THIEF]);
    for host in [DONOR, THIEF] {
        two.hear(host, claim(host));
        two.carry_out();
        assert_eq!(verdict(&mut two, host), None);
    }
    let keys: Vec<FlowName> = two.moves.relocation.held();
    assert_eq!(keys.len(), 2);
    // What is said again is answered again.
    two.hear(THIEF, claim(THIEF));
    assert!(two.carry_out().is_empty());
    assert_eq!(verdict(&mut two, THIEF), None);
    // One that is another flow of its own already.
    let mut one = anchor(&[THIEF]);
    let has = Introduced(with(THIEF, FLOW), other());
    one.hear_among(&has, THIEF, claim(THIEF));
    assert!(one.carry_out().is_empty());
    assert_eq!(verdict(&mut one, THIEF), Some(Refusal::Taken));
    // One that it has given away: what is kept of that one would be forgotten with it.
    let mut one = anchor(&[DONOR]);
    one.moves.lend(with(DONOR, FLOW), other());
    let ticket = announce(&mut one, NUMBER);
    one.hear(ACCEPTOR, present(ticket));
    one.carry_out();
    one.said(DONOR);
    one.hear(DONOR, claim(DONOR));
    assert!(one.carry_out().is_empty());
    assert_eq!(verdict(&mut one, DONOR), Some(Refusal::Taken));
}

#[test]
fn a_lease_of_another_host_does_not_end_with_a_socket_that_has_its_number() {
    let mut holder = Host::new(HOLDER);
    let lending = Lending { to: vec![key(THIEF)], most: 4, lifetime: Duration::from_secs(60), ports: Vec::new() };
    holder.moves.config().lending = Some(lending);
    let ends = Ends { first: SocketAddr::new(far().remote.ip(), 7), count: 1 };
    holder.hear(THIEF, Record::Lease { number: FLOW, ends });
    let lend = |holder: &mut Host, ends| {
        for (id, op) in holder.ops() {
            let done = if matches!(op, MoveOp::Lend { .. }) { OpDone::Lent(ends) } else { OpDone::Done };
            holder.moves.handle_done(At { now: holder.now, around: &Known }, id, Ok(done));
        }
    };
    lend(&mut holder, ends);
    let end = FlowTuple::unconnected(Transport::Tcp, far().remote);
    holder.moves.lend(with(DONOR, FLOW), end.mirrored());
    let ticket = announce(&mut holder, NUMBER);
    holder.hear(ACCEPTOR, present(ticket));
    lend(&mut holder, ends);
    lend(&mut holder, Ends { first: end.local, count: 1 });
    assert_eq!(verdict(&mut holder, ACCEPTOR), None);
    let tenants: Vec<PublicKey> = holder.moves.anchor.leases().iter().map(|lease| lease.tenant).collect();
    assert!(tenants.contains(&key(THIEF)) && tenants.contains(&key(ACCEPTOR)), "{tenants:?}");
}

#[test]
fn an_acceptor_takes_no_socket_under_the_name_of_another_flow() {
    let ask = |port| Record::Ask { number: u64::from(port), request: request(port, 100) };
    let refused = |host: &mut Host| {
        let said = host.said(DONOR);
        let Some(Record::Answer { standing, refusal, .. }) = said.last() else { return None };
        assert_eq!(*standing, AcceptorStanding::Refused);
        *refusal
    };
    let mut host = Host::new(ACCEPTOR);
    host.hear_among(&Introduced(with(HOLDER, FLOW), request(2, 0).tuple), DONOR, ask(1));
    assert_eq!(refused(&mut host), Some(Refusal::Taken));
    // Of another holder it may be called what it likes, and of the same flow it is the name.
    host.hear_among(&Introduced(with(THIEF, FLOW), request(2, 0).tuple), DONOR, ask(1));
    assert_eq!(refused(&mut host), None);
    // Two that come.
    host.hear(DONOR, ask(2));
    assert_eq!(refused(&mut host), Some(Refusal::Taken));
    host.hear(DONOR, Record::Cancel { number: 1 });
    host.carry_out();
    host.said(DONOR);
    host.hear(DONOR, ask(2));
    assert_eq!(refused(&mut host), None);
    // A lease of another anchor's that has its number is another.
    let mut host = Host::new(ACCEPTOR);
    let at = At { now: host.now, around: &Known };
    let ends = Ends { first: "192.0.2.9:80".parse().unwrap(), count: 1 };
    host.moves.rent(at, FLOW, key(THIEF), None, ends);
    let socket = FlowTuple::unconnected(Transport::Tcp, request(1, 0).tuple.local);
    let request = Request { tuple: socket, ..request(1, 100) };
    host.hear(DONOR, Record::Ask { number: 1, request });
    assert_eq!(refused(&mut host), None);
    assert_eq!(host.moves.rent_moved(at, with(HOLDER, FLOW), socket), None);
    let leases: Vec<FlowName> = host.moves.anchor.tenancies();
    assert!(leases.contains(&with(THIEF, FLOW)) && leases.contains(&with(HOLDER, FLOW)), "{leases:?}");
}

#[test]
fn what_is_kept_is_found_by_the_next_daemon_under_its_owner() {
    let holder = committed();
    let saved = holder.moves.relocation.kept(with(ACCEPTOR, FLOW)).expect("saved");
    assert_eq!(holder.moves.relocation.kept(with(DONOR, FLOW)), None);
    let mut next = Host::new(HOLDER);
    next.moves.restore_held(At { now: next.now, around: &Known }, &saved);
    next.carry_out();
    let table = Introduced(with(DONOR, FLOW), far());
    next.hear_among(&table, DONOR, announce_of(NUMBER + 1, THIEF));
    next.said(DONOR);
    next.hear(ACCEPTOR, announce_of(2, THIEF));
    assert_eq!(answer(&mut next, ACCEPTOR), None);
    // The donor of before has nothing under that name, also where the table of flows was not saved after it was led
    // elsewhere.
    next.hear_among(&table, DONOR, announce_of(3, THIEF));
    assert_eq!(answer(&mut next, DONOR), None, "what is led elsewhere leaves the name free");
    // What is said to have been lent from the start is not its again.
    let mut next = Host::new(HOLDER);
    next.moves.restore_held(At { now: next.now, around: &Known }, &saved);
    next.hear_among(&table, DONOR, announce_of(3, THIEF));
    while next.moves.poll_change().is_some() {}
    assert_eq!(answer(&mut next, DONOR), Some(Refusal::NoSuchFlow));
    next.moves.lend(with(DONOR, FLOW), far());
    assert_eq!(next.moves.relocation.held(), [with(ACCEPTOR, FLOW)]);
}
