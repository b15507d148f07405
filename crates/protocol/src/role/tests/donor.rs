//! Giving sockets away, one or thousands.

use super::*;

#[test]
fn thousands_move_at_once() {
    let count: u64 = if cfg!(debug_assertions) { 500 } else { 4000 };
    let mut three = Three { hosts: [DONOR, ACCEPTOR, HOLDER].map(Host::new), datagrams: 0 };
    for host in &mut three.hosts {
        host.moves.config().most = count as usize;
        host.moves.config().bytes = 1 << 30;
    }
    let start = three.hosts[DONOR].now;
    let at = At { now: start, around: &Known };
    for flow in 0..count {
        three.hosts[HOLDER].moves.lend(with(DONOR, flow), far());
        let Request { tuple, family, .. } = request(1, 600);
        let remote = SocketAddr::new([10, 0, (flow >> 8) as u8, flow as u8].into(), 9);
        let gift = Gift {
            tuple: FlowTuple { remote, ..tuple },
            family,
            size: 600,
            options: Vec::new(),
            receiver: Vec::new(),
            flow: with(HOLDER, flow),
            holder_at: None,
            acceptor: key(ACCEPTOR),
            acceptor_at: None,
            after: None,
        };
        assert!(three.hosts[DONOR].moves.give(at, 1_000_000 + flow, gift, false).is_ok());
    }
    let taken =
        |three: &Three| three.hosts[HOLDER].moves.relocation.held().iter().all(|flow| flow.peer() == key(ACCEPTOR));
    let busy = |three: &Three| three.hosts.iter().any(|host| host.moves.relocation.under_way() != (0, 0));
    while busy(&three) {
        if !three.step() {
            three.pass();
        }
    }
    assert!(taken(&three));
    let took = three.hosts[DONOR].now.since(start);
    // Nothing but pacing and acknowledgements that wait takes time here.
    assert!(took < Duration::from_secs(2), "{took:?}");
    // Of about 1 KB for each move; what is said together goes together.
    assert!(three.datagrams < 3 * count as usize, "{}", three.datagrams);
}

#[test]
fn a_host_that_does_not_answer_is_not_said_to_have_no_program() {
    for announced in [false, true] {
        let mut donor = giving(false);
        donor.carry_out();
        if announced {
            is_announced(&mut donor);
        }
        donor.pass(60);
        donor.carry_out();
        let why = events(&mut donor).into_iter().find_map(|event| match event {
            MoveEvent::Kept { why, .. } => Some(why),
            _ => None,
        });
        let silent = if announced { Refusal::AcceptorUnreached } else { Refusal::HolderUnreached };
        assert_eq!(why, Some(silent));
    }
}

#[test]
fn an_acceptor_that_has_much_to_do_is_waited_for_as_long_as_it_answers() {
    const SLOW: u64 = 100;
    let mut donor = giving(false);
    (donor.moves.config().most, donor.moves.config().bytes) = (64, 1 << 20);
    let Request { tuple, family, .. } = request(2, 600);
    let mut give = |number: u64, port: u16| {
        let mut remote = tuple.remote;
        remote.set_port(port);
        let gift = Gift {
            tuple: FlowTuple { remote, ..tuple },
            family,
            size: 600,
            options: Vec::new(),
            receiver: Vec::new(),
            flow: with(HOLDER, number),
            holder_at: None,
            acceptor: key(ACCEPTOR),
            acceptor_at: None,
            after: None,
        };
        assert!(donor.moves.give(At { now: donor.now, around: &Known }, number, gift, true).is_ok());
        donor.hear(HOLDER, Record::Announced { number, sequence: 1, lifetime: 60, refusal: None });
    };
    (SLOW..SLOW + 20).zip(7_000..).for_each(|(number, port)| give(number, port));
    let kept = |donor: &mut Host| {
        donor.carry_out();
        let is_slow = |event: &MoveEvent| matches!(event, MoveEvent::Kept { name, .. } if name.number == SLOW);
        events(donor).iter().any(is_slow)
    };
    // It says of the others that it is ready, one after the other; nothing of the first.
    let mut seconds = 0;
    for number in SLOW + 1..SLOW + 20 {
        if seconds >= 60 {
            break;
        }
        assert!(!kept(&mut donor), "given up after {seconds} s");
        donor.hear(ACCEPTOR, Record::Answer { number, standing: AcceptorStanding::Ready, refusal: None });
        donor.pass(5);
        seconds += 5;
    }
    assert!(seconds >= 60 && kept(&mut donor), "not for ever");
    // Who says nothing of anything is not waited for so long.
    let mut donor = giving(false);
    is_announced(&mut donor);
    donor.pass(11);
    donor.carry_out();
    assert!(events(&mut donor).iter().any(|event| matches!(event, MoveEvent::Kept { .. })));
}

#[test]
fn a_socket_that_waits_goes_when_that_is_said_and_not_before() {
    let go_on = |donor: &mut Host| {
        let at = At { now: donor.now, around: &Known };
        donor.moves.go_on(at, NUMBER)
    };
    let prepared = || {
        let mut donor = giving(true);
        is_announced(&mut donor);
        is_answered(&mut donor, AcceptorStanding::Ready, None);
        assert!(donor.ops().is_empty(), "nothing is done to it");
        assert_eq!(events(&mut donor), [MoveEvent::Prepared { name: name(NUMBER) }]);
        donor
    };
    let stays = |mut donor: Host, why| {
        assert!(donor.ops().is_empty());
        assert_eq!(events(&mut donor), [MoveEvent::Kept { name: name(NUMBER), why }]);
        assert_eq!(donor.said(ACCEPTOR).last(), Some(&Record::Cancel { number: NUMBER }));
        assert_eq!(donor.said(HOLDER).last(), Some(&Record::Recall { number: NUMBER, flow: FLOW, gone: false }));
        assert!(!go_on(&mut donor));
    };
    let mut donor = prepared();
    is_answered(&mut donor, AcceptorStanding::Ready, None);
    donor.pass(29);
    assert!(donor.ops().is_empty() && events(&mut donor).is_empty());
    assert!(go_on(&mut donor));
    assert!(matches!(donor.op().1, MoveOp::SaveDonation(_)));
    assert!(!go_on(&mut donor), "it is under way");

    // It is said before they are ready.
    let mut donor = giving(true);
    assert!(go_on(&mut donor));
    is_announced(&mut donor);
    is_answered(&mut donor, AcceptorStanding::Ready, None);
    assert!(matches!(donor.op().1, MoveOp::SaveDonation(_)));

    let mut donor = prepared();
    donor.pass(30);
    stays(donor, Refusal::Cancelled);
    let mut donor = prepared();
    is_answered(&mut donor, AcceptorStanding::Refused, Some(Refusal::NoRoom));
    stays(donor, Refusal::NoRoom);
    let mut donor = prepared();
    let at = At { now: donor.now, around: &Known };
    donor.moves.cancel(at, NUMBER);
    stays(donor, Refusal::Cancelled);

    // One that waits for nothing is not hurried.
    assert!(!go_on(&mut giving(false)));
}

#[test]
fn a_donor_that_is_revoked_hands_nothing_over_that_is_not_decided() {
    // P-83. So many steps before it is revoked: asked, admitted, sent, restored, saved.
    for steps in 1..=5 {
        let mut acceptor = of_one_community(ACCEPTOR);
        let signed = ticket(NUMBER, ACCEPTOR, 1, 60);
        acceptor.hear(DONOR, Record::Ask { number: NUMBER, request: request(1, 10) });
        let mut ops = acceptor.ops();
        for step in 1..steps {
            if step == 2 {
                acceptor.hear(DONOR, Record::Part { number: NUMBER, total: 4, offset: 0, bytes: vec![7; 4] });
                acceptor.hear(DONOR, Record::Ticket(signed));
            } else {
                ops.drain(..).for_each(|(id, _)| acceptor.done(id));
            }
            ops.extend(acceptor.ops());
        }
        acceptor.said(DONOR);
        set_members(&mut acceptor, &[]);
        ops.into_iter().for_each(|(id, _)| acceptor.done(id));
        let after = acceptor.carry_out();
        let presented = acceptor.said(HOLDER).iter().any(|record| matches!(record, Record::Present { .. }));
        assert_eq!(presented, steps == 5, "after {steps} steps");
        if steps < 5 {
            let refused = (NUMBER, AcceptorStanding::Refused, Some(Refusal::NotAllowed));
            assert!(answers(acceptor.said(DONOR)).contains(&refused), "after {steps} steps");
            assert!(!after.iter().any(|op| matches!(op, MoveOp::Thaw { .. })));
            assert_eq!((acceptor.moves.relocation.reserved(), acceptor.moves.relocation.under_way().1), (0, 0));
        } else {
            // The holder alone decides.
            assert_eq!(acceptor.moves.relocation.under_way().1, 1);
        }
        acceptor.hear(DONOR, Record::Ask { number: NUMBER + 1, request: request(9, 10) });
        let refused = (NUMBER + 1, AcceptorStanding::Refused, Some(Refusal::NotAllowed));
        assert!(answers(acceptor.said(DONOR)).contains(&refused));
    }
}
