//! Leases of several anchors that are called the same: whoever gives a socket away says what its endpoint is called.

use super::*;

/// `sooner`: the holder that lies answers before the honest one, else while the endpoint of the honest one's socket is
/// being made ready.
fn race(sooner: bool) {
    // Its key sorts before the donor's: keys are free before one joins.
    let liar = (3..20).find(|of| key(*of).as_bytes() < key(DONOR).as_bytes()).expect("one");
    let mut host = Host::new(ACCEPTOR);
    host.moves.accept_from(key(liar));
    let socket = |last: u8| {
        let local: SocketAddr = format!("192.0.2.{last}:443").parse().unwrap();
        FlowTuple::unconnected(Transport::Tcp, local)
    };
    // It gives a socket of its own, which it calls as the honest one is called: it had that one once.
    let of = [(liar, liar, 1_u64, 66), (DONOR, HOLDER, NUMBER, 7)];
    for (donor, holder, number, last) in of {
        let request = Request { holder: *key(holder).as_bytes(), flow: FLOW, tuple: socket(last), ..request(1, 100) };
        host.hear(donor, Record::Ask { number, request });
        for (id, op) in host.ops() {
            assert!(matches!(op, MoveOp::Admit { .. }));
            host.done(id);
        }
        let said = host.said(donor);
        assert!(matches!(said.last(), Some(Record::Answer { standing: AcceptorStanding::Ready, .. })), "{said:?}");
    }
    for (donor, _, number, _) in of {
        host.hear(donor, Record::Part { number, total: 4, offset: 0, bytes: vec![1; 4] });
        let name = MoveName { donor: *key(donor).as_bytes(), number };
        let acceptor = *key(ACCEPTOR).as_bytes();
        host.hear(
            donor,
            Record::Ticket(Ticket { name, flow: FLOW, acceptor, sequence: 1, lifetime: 60, mac: [0; 16] }),
        );
        host.carry_out();
    }
    let verdict = |of: usize, number| Record::Verdict {
        name: MoveName { donor: *key(of).as_bytes(), number },
        outcome: Ok(Terms { far: far(), wire_port: 0, home: None, passed_on: false, hidden: false }),
    };
    let both = [(HOLDER, DONOR, NUMBER), (liar, liar, 1)];
    let order = if sooner { [both[1], both[0]] } else { both };
    for (holder, donor, number) in order {
        let at = At { now: host.now, around: &Known };
        host.moves.hear(at, key(holder), verdict(donor, number));
        host.change_flows();
    }
    let mut woken = Vec::new();
    for second in 0..2000 {
        while let Some((id, op)) = host.moves.poll_op() {
            if let MoveOp::Thaw { name } = &op {
                woken.push(*name);
            }
            host.done(id);
            host.change_flows();
        }
        if second < 1990 {
            host.pass(1);
            if sooner {
                let ends = Ends { first: socket(66).local, count: 1 };
                let granted = whimbrel_wire::lending::Granted { ends, lifetime: 600 };
                host.hear(liar, Record::Leased { number: FLOW, outcome: Ok(granted) });
            }
            host.change_flows();
        }
    }
    let honest = MoveName { donor: *key(DONOR).as_bytes(), number: NUMBER };
    assert!(woken.contains(&honest), "committed and never woken; woken: {woken:?}");
}

#[test]
fn a_socket_that_was_committed_is_woken_whatever_another_donor_calls_his_own() {
    race(false);
}

#[test]
fn the_same_where_the_other_holder_is_faster() {
    race(true);
}

#[test]
fn an_endpoint_that_is_on_lease_is_nobody_else_s_to_give() {
    let mut host = Host::new(ACCEPTOR);
    host.moves.accept_from(key(THIEF));
    let end: SocketAddr = "192.0.2.66:443".parse().unwrap();
    let at = At { now: host.now, around: &Known };
    host.moves.rent(at, 1, key(HOLDER), None, Ends { first: end, count: 1 });
    let granted = whimbrel_wire::lending::Granted { ends: Ends { first: end, count: 1 }, lifetime: 600 };
    host.hear(HOLDER, Record::Leased { number: 1, outcome: Ok(granted) });
    host.carry_out();
    let tuple = FlowTuple::unconnected(Transport::Udp, end);
    for (holder, expected) in [(THIEF, false), (HOLDER, true)] {
        let number = 7 + holder as u64;
        let request = Request { holder: *key(holder).as_bytes(), flow: 77, tuple, ..request(1, 100) };
        host.hear(THIEF, Record::Ask { number, request });
        let asked = host.ops().into_iter().any(|(_, op)| matches!(op, MoveOp::Admit { .. }));
        assert_eq!(asked, expected, "of a socket that {holder} holds");
    }
}
