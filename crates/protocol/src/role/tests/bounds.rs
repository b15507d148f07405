//! What others can have a host keep of moves.

use super::*;

#[test]
fn a_flow_does_not_go_on_as_long_as_who_had_it_has_not_heard() {
    // P-78
    let mut holder = Host::new(HOLDER);
    holder.moves.lend(with(DONOR, FLOW), far());
    let pass = |holder: &mut Host, from: usize, to: usize, number| {
        let acceptor = *key(to).as_bytes();
        holder.hear(from, Record::Announce { number, flow: FLOW, lifetime: 60, acceptor });
        let said = holder.said(from);
        let Some(Record::Announced { sequence, lifetime, refusal, .. }) = said.last() else { panic!("{said:?}") };
        if refusal.is_some() {
            return *refusal;
        }
        let name = MoveName { donor: *key(from).as_bytes(), number };
        let (sequence, lifetime) = (*sequence, *lifetime);
        let mut ticket = Ticket { name, flow: FLOW, acceptor, sequence, lifetime, mac: [0; 16] };
        assert!(Host::new(from).moves.relocation.sign(&mut ticket, key(HOLDER)));
        holder.hear(to, Record::Present { ticket, wire_port: 2048 });
        holder.carry_out();
        let said = holder.said(to);
        assert!(matches!(said.last(), Some(Record::Verdict { outcome: Ok(_), .. })), "{said:?}");
        None
    };
    for number in 0..2 {
        assert_eq!(pass(&mut holder, DONOR, ACCEPTOR, number), None);
        assert_eq!(pass(&mut holder, ACCEPTOR, DONOR, number), None);
    }
    assert_eq!(pass(&mut holder, DONOR, ACCEPTOR, 2), Some(Refusal::Busy));
    for of in [DONOR, ACCEPTOR] {
        (0..2).for_each(|number| holder.hear(of, Record::Settled { number }));
    }
    assert_eq!(pass(&mut holder, DONOR, ACCEPTOR, 3), None);
    // By who says that it knows it moves to and fro, and not without end.
    holder.hear(DONOR, Record::Settled { number: 3 });
    let (mut one, mut other, mut moved) = (ACCEPTOR, DONOR, 0);
    while moved < 1000 && pass(&mut holder, one, other, 10 + moved).is_none() {
        holder.hear(one, Record::Settled { number: 10 + moved });
        (one, other, moved) = (other, one, moved + 1);
    }
    assert!((32..=64).contains(&moved), "{moved}");
    holder.pass(1);
    assert_eq!(pass(&mut holder, one, other, 2000), None, "a second brings five");
}

#[test]
fn one_host_s_flows_leave_room_for_those_of_others() {
    let mut holder = Host::new(HOLDER);
    let refusal = |holder: &mut Host, of: usize, flow: u64| {
        let acceptor = *key(9).as_bytes();
        let known = Among;
        let at = At { now: holder.now, around: &known };
        holder.moves.hear(at, key(of), Record::Announce { number: flow, flow, lifetime: 60, acceptor });
        let said = holder.said(of);
        let Some(Record::Announced { refusal, .. }) = said.last() else { panic!("{said:?}") };
        *refusal
    };
    let refused: Vec<_> = (0..6).map(|flow| refusal(&mut holder, THIEF, flow)).collect();
    assert_eq!(refused, [None, None, None, None, Some(Refusal::NoRoom), Some(Refusal::NoRoom)]);
    assert_eq!(refusal(&mut holder, DONOR, 6), None);
    assert_eq!(refusal(&mut holder, THIEF, 1), None, "what is there already is no more");
    holder.pass(600);
    assert!(holder.moves.relocation.held().is_empty());
    assert_eq!(holder.moves.relocation.indexed(), [0; 4]);
}

/// Every host has every flow.
struct Among;

impl Around for Among {
    fn has_session(&self, _: &PublicKey) -> bool {
        true
    }
    fn flow(&self, name: &FlowName) -> Option<FlowTuple> {
        (name.peer() != key(9)).then(far)
    }
    fn is_known(&self, _: &FlowTuple) -> bool {
        true
    }
    fn partner(&self, _: &FlowTuple) -> Option<PublicKey> {
        None
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

#[test]
fn what_is_held_is_found_however_it_is_looked_for() {
    let mut holder = Host::new(HOLDER);
    let other = |port| FlowTuple { local: SocketAddr::new(far().local.ip(), port), ..far() };
    for flow in 1..=3 {
        holder.moves.lend(with(DONOR, flow), other(flow as u16));
    }
    let found = |holder: &Host| {
        let values = |flows: Vec<FlowName>| flows.iter().map(FlowName::value).collect::<Vec<u64>>();
        let of_owner = values(holder.moves.relocation.held_of(&key(DONOR)).0);
        let by_far = (1..=3).flat_map(|port| values(holder.moves.relocation.lent_as(&other(port)))).collect();
        let by_far: Vec<u64> = by_far;
        (of_owner, by_far)
    };
    assert_eq!(found(&holder), (vec![1, 2, 3], vec![1, 2, 3]));
    assert_eq!(holder.moves.relocation.held_of(&key(DONOR)).1, 3);
    holder.moves.end_flow(with(DONOR, 2));
    assert_eq!(found(&holder), (vec![1, 3], vec![1, 3]));
    let at = At { now: holder.now, around: &Known };
    holder.moves.act(at, |relocation, _, below| relocation.handle_unmoved(below, with(DONOR, 3)));
    assert_eq!(found(&holder), (vec![1], vec![1]));
    holder.moves.end_flow(with(DONOR, 1));
    assert_eq!(holder.moves.relocation.indexed(), [0; 4]);
}
