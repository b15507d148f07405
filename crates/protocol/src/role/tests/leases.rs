//! What anchors lend, to whom and for how long, and what may be claimed (P-84…P-86).

use std::collections::BTreeSet;
use std::net::IpAddr;

use whimbrel_wire::lending::{Ends, Granted};

use super::*;
use crate::base::op::relocation::{LeaseName, Lending, SavedLease, SavedTenancy};

/// An anchor that lends to the donor, for a minute.
fn lessor() -> Host {
    let mut anchor = Host::new(HOLDER);
    anchor.moves.config().lending =
        Some(Lending { to: Vec::new(), most: 2, lifetime: Duration::from_secs(60), ports: vec![(8000, 8999)] });
    anchor
}

fn ends() -> Ends {
    Ends { first: far().remote, count: 2 }
}

fn leased(anchor: &mut Host, to: usize) -> Result<Granted, Refusal> {
    let said = anchor.said(to);
    let Some(Record::Leased { outcome, .. }) = said.last() else { panic!("{said:?}") };
    *outcome
}

/// A lease of these ends in force.
fn lend(anchor: &mut Host, number: u64) {
    lend_for(anchor, number, Granted { ends: ends(), lifetime: 60 });
}

fn lend_for(anchor: &mut Host, number: u64, granted: Granted) {
    anchor.hear(DONOR, Record::Lease { number, ends: ends() });
    let (id, op) = anchor.op();
    assert!(matches!(op, MoveOp::Lend { name: LeaseName { tenant, .. }, .. } if tenant == key(DONOR)), "{op:?}");
    anchor.moves.handle_done(At { now: anchor.now, around: &Known }, id, Ok(OpDone::Lent(ends())));
    assert_eq!(leased(anchor, DONOR), Ok(granted));
}

#[test]
fn endpoints_are_lent_to_whom_the_anchor_knows_and_as_long_as_they_are_asked_for() {
    // P-84, P-85
    let mut anchor = Host::new(HOLDER);
    anchor.hear(DONOR, Record::Lease { number: 1, ends: ends() });
    assert_eq!(leased(&mut anchor, DONOR), Err(Refusal::NotLent), "it is no anchor");
    let mut anchor = lessor();
    anchor.hear(THIEF, Record::Lease { number: 1, ends: ends() });
    assert_eq!(leased(&mut anchor, THIEF), Err(Refusal::NotAllowed));
    lend(&mut anchor, 1);
    lend(&mut anchor, 2);
    anchor.hear(DONOR, Record::Lease { number: 3, ends: ends() });
    assert_eq!(leased(&mut anchor, DONOR), Err(Refusal::NoRoom));
    // One is asked for again, the other is not.
    anchor.pass(40);
    anchor.hear(DONOR, Record::Lease { number: 1, ends: ends() });
    assert!(leased(&mut anchor, DONOR).is_ok());
    anchor.pass(40);
    assert_eq!(leased(&mut anchor, DONOR), Err(Refusal::Expired));
    let taken_back = |number| MoveOp::TakeBack { name: LeaseName { tenant: key(DONOR), number } };
    assert_eq!(anchor.carry_out(), [taken_back(2)]);
    // A thief cannot give back what is another's.
    anchor.hear(THIEF, Record::Return { number: 1 });
    assert!(anchor.carry_out().is_empty());
    anchor.hear(DONOR, Record::Return { number: 1 });
    assert_eq!(anchor.carry_out(), [taken_back(1)]);
    anchor.moves.anchor.lessor_mut().stop_lending(true);
    anchor.hear(DONOR, Record::Lease { number: 4, ends: ends() });
    assert_eq!(leased(&mut anchor, DONOR), Err(Refusal::Stopping));
}

#[test]
fn who_asks_for_what_is_not_lent_is_told_what_is() {
    // P-129
    let mut anchor = lessor();
    anchor.hear(DONOR, Record::Lease { number: 1, ends: ends() });
    let (id, _) = anchor.op();
    let not_lent = OpFailed { refusal: Some(Refusal::NotLent), sentence: "of ports 8000-8999 are lent".to_owned() };
    anchor.moves.handle_done(At { now: anchor.now, around: &Known }, id, Err(not_lent));
    let said = anchor.said(DONOR);
    let offer = Record::Offer { number: 1, ports: vec![(8000, 8999)] };
    assert_eq!(said, [offer.clone(), Record::Leased { number: 1, outcome: Err(Refusal::NotLent) }]);
    // Ports are of no use to who wants an address as a whole.
    let whole = Ends { first: SocketAddr::new(ends().first.ip(), 0), count: 0 };
    anchor.hear(DONOR, Record::Lease { number: 2, ends: whole });
    let (id, _) = anchor.op();
    let not_lent = OpFailed { refusal: Some(Refusal::NotLent), sentence: "no addresses are lent".to_owned() };
    anchor.moves.handle_done(At { now: anchor.now, around: &Known }, id, Err(not_lent));
    assert_eq!(anchor.said(DONOR), [Record::Leased { number: 2, outcome: Err(Refusal::NotLent) }]);
    // Who may have nothing is not told.
    anchor.hear(THIEF, Record::Lease { number: 1, ends: ends() });
    assert_eq!(anchor.said(THIEF), [Record::Leased { number: 1, outcome: Err(Refusal::NotAllowed) }]);

    let mut tenant = Host::new(DONOR);
    let at = At { now: tenant.now, around: &Known };
    tenant.moves.rent(at, 1, key(HOLDER), None, ends());
    tenant.said(HOLDER);
    tenant.hear(THIEF, Record::Offer { number: 1, ports: vec![(1, 2)] });
    tenant.hear(HOLDER, offer);
    tenant.hear(HOLDER, Record::Leased { number: 1, outcome: Err(Refusal::NotLent) });
    let event = tenant.moves.poll_event();
    let (anchor, offered) = (key(HOLDER), vec![(8000, 8999)]);
    let expected = MoveEvent::NotLeased { number: 1, anchor, ends: ends(), why: Refusal::NotLent, offered };
    assert_eq!(event, Some(expected));
}

#[test]
fn a_tenant_is_told_that_its_anchor_is_not_reached_at_what_it_lends() {
    // P-131
    let mut anchor = lessor();
    lend(&mut anchor, 1);
    let mut gone = |addresses: &[IpAddr]| {
        let at = At { now: anchor.now, around: &Known };
        anchor.moves.on_unreached(at, addresses.iter().copied().collect());
        anchor.said(DONOR)
    };
    let (of, other) = (ends().first.ip(), "192.0.2.250".parse().expect("an address"));
    assert_eq!(gone(&[other]), []);
    let unreached = Record::Reached { number: 1, reached: false };
    assert_eq!(gone(&[of, other]), std::slice::from_ref(&unreached));
    assert_eq!(gone(&[of]), []);
    let reached = Record::Reached { number: 1, reached: true };
    assert_eq!(gone(&[]), std::slice::from_ref(&reached));

    let mut tenant = Host::new(DONOR);
    let at = At { now: tenant.now, around: &Known };
    tenant.moves.rent(at, 1, key(HOLDER), None, ends());
    tenant.hear(HOLDER, unreached.clone());
    tenant.hear(HOLDER, Record::Leased { number: 1, outcome: Ok(Granted { ends: ends(), lifetime: 60 }) });
    let (id, _) = tenant.op();
    tenant.moves.handle_done(At { now: tenant.now, around: &Known }, id, Ok(OpDone::Done));
    assert!(matches!(tenant.moves.poll_event(), Some(MoveEvent::Leased { .. })), "it is told before it is on lease");
    tenant.hear(THIEF, unreached.clone());
    tenant.hear(HOLDER, reached.clone());
    assert_eq!(tenant.moves.poll_event(), None);
    let mut hears = |records: &[&Record], after| {
        tenant.pass(after);
        records.iter().for_each(|record| tenant.hear(HOLDER, (*record).clone()));
        std::iter::from_fn(|| tenant.moves.poll_event()).collect::<Vec<_>>()
    };
    let told = |reached| vec![MoveEvent::Reached { anchor: key(HOLDER), ends: ends(), reached }];
    assert_eq!(hears(&[&unreached], 0), told(false));
    assert_eq!(hears(&[&unreached], 0), [], "it says nothing new");
    assert_eq!(hears(&[&reached], 10), told(true));
    assert_eq!(tenant.moves.anchor.limits(), 1);
}

#[test]
fn an_anchor_that_says_something_new_all_the_time_is_told_of_now_and_then() {
    // P-131
    let mut tenant = Host::new(DONOR);
    tenant.moves.rent(At { now: tenant.now, around: &Known }, 1, key(HOLDER), None, ends());
    let granted = Ok(Granted { ends: ends(), lifetime: 3600 });
    tenant.hear(HOLDER, Record::Leased { number: 1, outcome: granted });
    let says = |tenant: &mut Host, reached| tenant.hear(HOLDER, Record::Reached { number: 1, reached });
    // With the lease: it is told behind that.
    says(&mut tenant, false);
    let (id, _) = tenant.op();
    tenant.done(id);
    let told = |tenant: &mut Host| std::iter::from_fn(|| tenant.moves.poll_event()).collect::<Vec<_>>();
    let event = |reached| MoveEvent::Reached { anchor: key(HOLDER), ends: ends(), reached };
    let events = told(&mut tenant);
    assert!(matches!(&events[..], [MoveEvent::Leased { .. }, last] if *last == event(false)), "{events:?}");
    for last in [true, false] {
        for n in 0..10_001 {
            says(&mut tenant, (n % 2 == 0) == last);
        }
        assert_eq!(told(&mut tenant).len(), 0);
        tenant.pass(9);
        assert_eq!(told(&mut tenant).len(), 0);
        tenant.pass(1);
        // What it was told as last is told if it is not what it was.
        assert_eq!(told(&mut tenant), [event(last)]);
    }
    // What is as it was told by then is not.
    says(&mut tenant, true);
    says(&mut tenant, false);
    tenant.pass(10);
    assert_eq!(told(&mut tenant), []);
    // Nothing is left of a lease that is over.
    says(&mut tenant, true);
    says(&mut tenant, false);
    told(&mut tenant);
    assert_eq!(tenant.moves.anchor.limits(), 2);
    tenant.hear(HOLDER, Record::Leased { number: 1, outcome: Err(Refusal::Expired) });
    assert!(tenant.moves.anchor.limits() == 0);
}

#[test]
fn who_is_cut_off_as_it_is_told_of_an_address_hears_of_it_later() {
    // P-131
    let gone: BTreeSet<IpAddr> = [ends().first.ip()].into();
    let told = |reached| Record::Reached { number: 1, reached };
    for by_session in [true, false] {
        let mut anchor = lessor();
        anchor.moves.config().lending.as_mut().expect("it lends").lifetime = Duration::from_secs(86_400);
        let granted = Granted { ends: ends(), lifetime: 86_400 };
        lend_for(&mut anchor, 1, granted);
        let told_in_vain = |anchor: &mut Host, unreached: BTreeSet<IpAddr>| {
            anchor.moves.on_unreached(At { now: anchor.now, around: &Known }, unreached);
            while anchor.moves.records().wants(&key(DONOR)) {
                while anchor.moves.records().poll(anchor.now, &key(DONOR)).is_some() {}
                let due = anchor.moves.deadline(At { now: anchor.now, around: &Known });
                anchor.now = due.expect("it is given up").max(anchor.now + Duration::from_millis(1));
                anchor.moves.handle_timeout(At { now: anchor.now, around: &Known });
            }
            anchor.unread.clear();
        };
        let hears = |anchor: &mut Host| {
            let expected = match by_session {
                true => {
                    anchor.moves.handle_session(At { now: anchor.now, around: &Known }, key(DONOR));
                    vec![]
                }
                false => {
                    anchor.hear(DONOR, Record::Lease { number: 1, ends: ends() });
                    vec![Record::Leased { number: 1, outcome: Ok(granted) }]
                }
            };
            let mut said = anchor.said(DONOR);
            said.retain(|record| !expected.contains(record));
            said
        };
        assert_eq!(hears(&mut anchor), [], "there is nothing to tell");
        told_in_vain(&mut anchor, gone.clone());
        assert_eq!(hears(&mut anchor), [told(false)]);
        told_in_vain(&mut anchor, BTreeSet::new());
        assert_eq!(hears(&mut anchor), [told(true)]);
    }
}

#[test]
fn a_tenant_is_told_of_an_address_that_is_gone_already() {
    // P-131
    let gone = |anchor: &mut Host| {
        let at = At { now: anchor.now, around: &Known };
        anchor.moves.on_unreached(at, [ends().first.ip()].into());
    };
    let unreached = |number| Record::Reached { number, reached: false };
    // As it is lent.
    let mut anchor = lessor();
    gone(&mut anchor);
    anchor.hear(DONOR, Record::Lease { number: 1, ends: ends() });
    let (id, _) = anchor.op();
    anchor.moves.handle_done(At { now: anchor.now, around: &Known }, id, Ok(OpDone::Lent(ends())));
    let granted = Record::Leased { number: 1, outcome: Ok(Granted { ends: ends(), lifetime: 60 }) };
    assert_eq!(anchor.said(DONOR), [granted, unreached(1)]);
    // By a daemon that finds it lent; where it is there again, one before it may have said otherwise.
    for there in [false, true] {
        let mut anchor = lessor();
        if !there {
            gone(&mut anchor);
        }
        let saved = SavedLease { name: LeaseName { tenant: key(DONOR), number: 1 }, ends: ends() };
        anchor.moves.restore_leases(At { now: anchor.now, around: &Known }, &[saved]);
        let (id, _) = anchor.op();
        anchor.moves.handle_done(At { now: anchor.now, around: &Known }, id, Ok(OpDone::Lent(ends())));
        assert_eq!(anchor.said(DONOR), [Record::Reached { number: 1, reached: there }]);
    }
}

#[test]
fn only_connections_of_ones_own_endpoints_are_claimed() {
    // P-86
    let mut anchor = lessor();
    let tuple = far().mirrored();
    let claim = |tuple| Record::Claim { flow: FLOW, tuple, wire_port: 2048, hidden: false };
    anchor.hear(DONOR, claim(tuple));
    assert_eq!(verdict(&mut anchor, DONOR), Some(Refusal::NotLent), "it has no lease yet");
    lend(&mut anchor, 1);
    anchor.hear(THIEF, claim(tuple));
    assert_eq!(verdict(&mut anchor, THIEF), Some(Refusal::NotLent), "another has the lease");
    let local = SocketAddr::new(tuple.local.ip(), tuple.local.port() + 2);
    anchor.hear(DONOR, claim(FlowTuple { local, ..tuple }));
    assert_eq!(verdict(&mut anchor, DONOR), Some(Refusal::NotLent), "of a port behind the last");
    anchor.hear(DONOR, claim(tuple));
    let saved = anchor.carry_out();
    assert!(
        matches!(&saved[..], [MoveOp::SaveHeld(saved)] if saved[0].flow.peer() == key(DONOR) && saved[0].far == Some(far()))
    );
    assert_eq!(verdict(&mut anchor, DONOR), None);
    assert_eq!(anchor.led, [(key(DONOR), 2048)]);
    // It was not heard, so it is claimed again; to know the name is of no use to anybody else.
    anchor.hear(DONOR, claim(tuple));
    assert_eq!(verdict(&mut anchor, DONOR), None);
    anchor.hear(THIEF, claim(tuple));
    assert_eq!(verdict(&mut anchor, THIEF), Some(Refusal::NotLent));
    // What was claimed outlives the lease, and is moved as any other flow.
    anchor.hear(DONOR, Record::Return { number: 1 });
    anchor.carry_out();
    let ticket = announce(&mut anchor, NUMBER);
    anchor.hear(ACCEPTOR, present(ticket));
    anchor.carry_out();
    assert_eq!(verdict(&mut anchor, ACCEPTOR), None);
    assert_eq!(anchor.led.last(), Some(&(key(ACCEPTOR), 2048)));
}

#[test]
fn what_has_ended_at_its_owner_depends_on_nobody() {
    // P-121
    let mut anchor = lessor();
    lend(&mut anchor, 1);
    let claim = Record::Claim { flow: FLOW, tuple: far().mirrored(), wire_port: 2048, hidden: false };
    anchor.hear(DONOR, claim);
    anchor.carry_out();
    assert_eq!(verdict(&mut anchor, DONOR), None);
    let passed_on = |anchor: &Host| anchor.moves.relocation.holder().passed_on(key(HOLDER)).count();
    assert_eq!(passed_on(&anchor), 1);
    anchor.hear(THIEF, Record::Ending { flow: FLOW });
    anchor.hear(DONOR, Record::Ending { flow: FLOW + 1 });
    assert_eq!(passed_on(&anchor), 1, "another host's word counts");
    anchor.hear(DONOR, Record::Ending { flow: FLOW });
    assert_eq!(passed_on(&anchor), 0);
    let ops = anchor.carry_out();
    let [MoveOp::SaveHeld(saved)] = &ops[..] else { panic!("it is passed on until it is over: {ops:?}") };
    assert!(anchor.moves.is_ending(&with(DONOR, FLOW)) && saved[0].ending);
    anchor.hear(DONOR, Record::Ending { flow: FLOW });
    assert!(anchor.carry_out().is_empty(), "it is kept twice");
    // The next daemon knows it too, and counts the flow again once somebody else has its socket.
    let mut next = lessor();
    next.moves.restore_held(At { now: next.now, around: &Known }, &saved[0]);
    assert_eq!(passed_on(&next), 0);
    next.carry_out();
    let ticket = announce(&mut next, NUMBER);
    next.hear(ACCEPTOR, present(ticket));
    let ops = next.carry_out();
    assert!(matches!(&ops[..], [MoveOp::SaveHeld(saved)] if !saved[0].ending), "{ops:?}");
    assert_eq!(passed_on(&next), 1);
}

#[test]
fn a_connection_is_claimed_anew_by_who_has_forgotten_that_it_did() {
    // P-86
    let mut anchor = lessor();
    lend(&mut anchor, 1);
    let claim = |flow| Record::Claim { flow, tuple: far().mirrored(), wire_port: 2048, hidden: false };
    anchor.hear(DONOR, claim(FLOW));
    anchor.carry_out();
    assert_eq!(verdict(&mut anchor, DONOR), None);
    anchor.hear_where_known(DONOR, claim(FLOW + 1));
    let ops = anchor.carry_out();
    assert!(
        matches!(&ops[..], [MoveOp::ForgetHeld { flow }, MoveOp::SaveHeld(saved)]
            if (*flow, saved[0].flow) == (with(DONOR, FLOW), with(DONOR, FLOW + 1))),
        "{ops:?}"
    );
    assert_eq!(verdict(&mut anchor, DONOR), None);
    assert_eq!(anchor.led.len(), 2);
    // What has been moved since is not its to claim, nor what another host's daemon says to be its own.
    let mut moved = lessor();
    lend(&mut moved, 1);
    moved.hear(DONOR, claim(FLOW));
    moved.carry_out();
    verdict(&mut moved, DONOR);
    let ticket = announce(&mut moved, NUMBER);
    moved.hear_where_known(DONOR, claim(FLOW + 1));
    assert_eq!(verdict(&mut moved, DONOR), Some(Refusal::Taken), "it is on its way");
    moved.hear(ACCEPTOR, present(ticket));
    moved.carry_out();
    verdict(&mut moved, ACCEPTOR);
    moved.said(DONOR);
    moved.hear_where_known(DONOR, claim(FLOW + 1));
    assert_eq!(verdict(&mut moved, DONOR), Some(Refusal::Taken), "it is with another");
}

#[test]
fn what_is_passed_on_for_a_host_that_is_revoked_is_over() {
    // P-105
    let claimed = || {
        let mut anchor = lessor();
        anchor.moves.accept_nobody();
        set_members(&mut anchor, &[DONOR]);
        lend(&mut anchor, 1);
        anchor.hear(DONOR, Record::Claim { flow: FLOW, tuple: far().mirrored(), wire_port: 2048, hidden: false });
        anchor
    };
    let forgotten = MoveOp::ForgetHeld { flow: with(DONOR, FLOW) };
    let mut anchor = claimed();
    anchor.carry_out();
    assert_eq!(verdict(&mut anchor, DONOR), None);
    // Another's revocation changes nothing.
    set_members(&mut anchor, &[DONOR]);
    anchor.change_flows();
    assert!(anchor.ended.is_empty() && anchor.carry_out().is_empty());
    set_members(&mut anchor, &[]);
    anchor.change_flows();
    assert_eq!(anchor.ended, [far()]);
    assert!(anchor.carry_out().contains(&forgotten));
    assert!(anchor.moves.relocation.held().is_empty() && anchor.moves.anchor.leases().is_empty());
    // It is revoked while the claim is being kept.
    let mut anchor = claimed();
    let (id, _) = anchor.op();
    set_members(&mut anchor, &[]);
    anchor.done(id);
    anchor.change_flows();
    assert_eq!((&anchor.ended[..], &anchor.led[..]), (&[far()][..], &[][..]));
    assert!(anchor.carry_out().contains(&forgotten));
    assert!(anchor.moves.relocation.held().is_empty());
    // The connection has moved on to a host that is none of the community's any more; or was given by a grant to one
    // that never was.
    for (revoked, goes_on) in [(true, false), (false, true)] {
        let mut anchor = claimed();
        anchor.carry_out();
        let ticket = announce(&mut anchor, NUMBER);
        anchor.hear(ACCEPTOR, present(ticket));
        anchor.carry_out();
        assert_eq!(anchor.led.last(), Some(&(key(ACCEPTOR), 2048)));
        let at = At { now: anchor.now, around: &Known };
        let revoked = revoked.then(|| key(ACCEPTOR)).into_iter().collect();
        anchor.moves.set_members(at, [key(DONOR)].into(), revoked, true);
        anchor.change_flows();
        assert_eq!(anchor.ended.is_empty(), goes_on);
        // The anchor itself leaves the community, which revokes nobody.
        anchor.moves.set_members(at, [].into(), [].into(), false);
        anchor.change_flows();
        assert_eq!(anchor.ended.is_empty(), goes_on);
    }
}

#[test]
fn a_claim_that_cannot_be_kept_is_none() {
    let mut anchor = lessor();
    lend(&mut anchor, 1);
    anchor.hear(DONOR, Record::Claim { flow: FLOW, tuple: far().mirrored(), wire_port: 2048, hidden: false });
    let (id, _) = anchor.op();
    anchor.failed(id);
    assert_eq!(verdict(&mut anchor, DONOR), Some(Refusal::NotKept));
    assert!(anchor.led.is_empty());
}

#[test]
fn a_tenant_asks_again_in_time_and_takes_no_other_endpoints_than_it_asked_for() {
    let any = |count| Ends { first: "0.0.0.0:0".parse().unwrap(), count };
    let mut tenant = Host::new(DONOR);
    let at = |tenant: &Host| At { now: tenant.now, around: &Known };
    tenant.moves.rent(at(&tenant), 7, key(HOLDER), None, any(2));
    assert_eq!(tenant.said(HOLDER), [Record::Lease { number: 7, ends: any(2) }]);
    let granted = |count| Ok(Granted { ends: Ends { count, ..ends() }, lifetime: 60 });
    // Another host's answer is none.
    tenant.hear(THIEF, Record::Leased { number: 7, outcome: granted(2) });
    assert!(tenant.ops().is_empty());
    tenant.hear(HOLDER, Record::Leased { number: 7, outcome: granted(2) });
    let (id, op) = tenant.op();
    assert!(matches!(op, MoveOp::Occupy { number: 7, fresh: true, .. }), "{op:?}");
    tenant.done(id);
    // A third of the time has passed: it is still used.
    tenant.pass(21);
    let (id, op) = tenant.op();
    assert!(matches!(op, MoveOp::Occupy { number: 7, fresh: false, .. }), "{op:?}");
    tenant.done(id);
    assert_eq!(tenant.said(HOLDER), [Record::Lease { number: 7, ends: ends() }]);
    tenant.hear(HOLDER, Record::Leased { number: 7, outcome: granted(2) });
    // The next time it is not.
    tenant.pass(21);
    let (id, _) = tenant.op();
    tenant.failed(id);
    assert_eq!(tenant.said(HOLDER), [Record::Return { number: 7 }]);
    assert_eq!(tenant.carry_out(), [MoveOp::Vacate { lease: with(HOLDER, 7) }]);

    tenant.moves.rent(at(&tenant), 8, key(HOLDER), None, any(2));
    tenant.said(HOLDER);
    tenant.hear(HOLDER, Record::Leased { number: 8, outcome: granted(1) });
    assert_eq!(tenant.said(HOLDER), [Record::Return { number: 8 }]);
    assert!(tenant.carry_out().is_empty());
    // What it does not know it gives back.
    tenant.hear(HOLDER, Record::Leased { number: 9, outcome: granted(2) });
    assert_eq!(tenant.said(HOLDER), [Record::Return { number: 9 }]);
}

#[test]
fn a_lease_that_ran_out_before_it_was_asked_for_anew_is_not_taken_for_refused() {
    // P-85
    let mut tenant = Host::new(DONOR);
    let saved =
        SavedTenancy { number: 7, anchor: key(HOLDER), anchor_at: None, ends: ends(), moved: None, parts: false };
    let at = At { now: tenant.now, around: &Known };
    tenant.moves.restore_tenancies(at, &[saved]);
    let (id, _) = tenant.op();
    tenant.done(id);
    assert_eq!(tenant.said(HOLDER), [Record::Lease { number: 7, ends: ends() }]);
    // What the daemon before this one was to hear comes first.
    tenant.hear(HOLDER, Record::Leased { number: 7, outcome: Err(Refusal::Expired) });
    tenant.hear(HOLDER, Record::Leased { number: 7, outcome: Ok(Granted { ends: ends(), lifetime: 60 }) });
    assert!(tenant.said(HOLDER).is_empty() && tenant.carry_out().is_empty());
    assert_eq!(tenant.moves.anchor.tenant().lessor_of(ends().first), Some(key(HOLDER)));
    // In force it is over with that word.
    tenant.hear(HOLDER, Record::Leased { number: 7, outcome: Err(Refusal::Expired) });
    assert_eq!(tenant.carry_out(), [MoveOp::Vacate { lease: with(HOLDER, 7) }]);
}
