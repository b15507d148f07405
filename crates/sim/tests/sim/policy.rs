//! Flows that a policy leaves alone (P-59).

use whimbrel_handshake::PublicKey;
use whimbrel_protocol::{Config, FlowState, Manner, Rule, Verdict, View};
use whimbrel_sim::{Carried, FlowId, HostId};
use whimbrel_wire::Transport;

use crate::common::{AWAY, FURTHER, HOME, SECOND, SERVICE, Two, introduced, settle_as};

const LEFT_ALONE: Rule = Rule { excluded_by: Some(7), manner: Manner { view: View::Virtual, gives_way: false } };

/// Both hosts ask what is wanted for each flow.
fn asking(seed: u64) -> Two {
    let mut two = Two::with(seed, Config::default(), Config::default());
    for host in [two.client, two.server] {
        two.world.with_node(host, |node| node.await_verdicts(true));
    }
    two
}

fn rule(two: &mut Two, flow: FlowId, end: usize, verdict: &Verdict) {
    let tuple = two.world.flow(flow).tuples[end];
    let (host, now) = ([two.client, two.server][end], two.world.now());
    two.world.with_node(host, |node| node.handle_verdict(now, tuple, verdict.clone()));
}

fn state(two: &Two, flow: FlowId, end: usize) -> FlowState {
    two.world.view(flow, end).expect("a flow").state
}

fn key_of(two: &Two, host: HostId) -> PublicKey {
    two.world.at(host).public_key()
}

#[test]
fn a_flow_that_its_opener_leaves_alone_asks_nobody() {
    let mut two = asking(901);
    let flow = two.world.connect(two.client, SERVICE);
    rule(&mut two, flow, 0, &Verdict { otherwise: LEFT_ALONE, ..Verdict::default() });
    rule(&mut two, flow, 1, &Verdict::default());
    let sent = two.world.datagrams();
    two.world.run_for(20 * SECOND);
    assert_eq!(state(&two, flow, 0), FlowState::Excluded(7));
    assert_eq!(two.world.datagrams(), sent, "the other end was asked on its account");
    assert_eq!(two.world.peers(two.client).len(), 0);
    two.world.check();
}

#[test]
fn a_flow_that_its_acceptor_leaves_alone_is_refused_at_once() {
    let mut two = asking(902);
    two.world.set_beat(Some(SECOND / 10));
    let alone = two.world.connect(two.client, SERVICE);
    let other = two.world.connect(two.client, SERVICE);
    rule(&mut two, alone, 1, &Verdict { otherwise: LEFT_ALONE, ..Verdict::default() });
    for (flow, end) in [(alone, 0), (other, 0), (other, 1)] {
        rule(&mut two, flow, end, &Verdict::default());
    }
    introduced(&mut two.world, &[other]);
    two.world.run_for(2 * SECOND);
    assert_eq!(state(&two, alone, 1), FlowState::Excluded(7));
    assert_eq!(state(&two, alone, 0), FlowState::Failed("the peer's policy leaves it alone"));
    two.world.close(alone);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &[other], Carried::Rewritten);
    two.world.check();
}

#[test]
fn nothing_is_done_about_a_flow_before_its_verdict() {
    let mut two = asking(903);
    let flow = two.world.connect(two.client, SERVICE);
    two.world.run_for(30 * SECOND);
    assert_eq!(state(&two, flow, 0), FlowState::Unknown);
    assert_eq!(two.world.peers(two.client).len(), 0);
    // One end long before the other, as where finding out who has it takes a while.
    rule(&mut two, flow, 0, &Verdict::default());
    two.world.run_for(SECOND / 2);
    rule(&mut two, flow, 1, &Verdict::default());
    introduced(&mut two.world, &[flow]);
    // What was said once stays.
    rule(&mut two, flow, 0, &Verdict { otherwise: LEFT_ALONE, ..Verdict::default() });
    assert_eq!(state(&two, flow, 0), FlowState::Native);
    two.world.check();
}

#[test]
fn a_rule_that_names_a_key_counts_once_the_peer_is_known() {
    let mut two = asking(904);
    let server = key_of(&two, two.server);
    let flow = two.world.connect(two.client, SERVICE);
    rule(&mut two, flow, 0, &Verdict { for_keys: vec![(server, LEFT_ALONE)], otherwise: Rule::default() });
    rule(&mut two, flow, 1, &Verdict::default());
    two.world.run_for(5 * SECOND);
    assert_eq!(state(&two, flow, 0), FlowState::Excluded(7));
    // The other way round: all but this one.
    let flow = two.world.connect(two.client, SERVICE);
    rule(&mut two, flow, 0, &Verdict { for_keys: vec![(server, Rule::default())], otherwise: LEFT_ALONE });
    rule(&mut two, flow, 1, &Verdict::default());
    introduced(&mut two.world, &[flow]);
    two.world.check();
}

#[test]
fn flows_are_not_paired_before_their_verdict_or_against_it() {
    let mut two = asking(905);
    two.world.strips_options = true;
    let flow = two.world.connect(two.client, SERVICE);
    two.world.set_beat(Some(SECOND / 10));
    rule(&mut two, flow, 0, &Verdict::default());
    two.world.run_for(6 * SECOND);
    assert!(!two.world.introduced(flow));
    rule(&mut two, flow, 1, &Verdict { otherwise: LEFT_ALONE, ..Verdict::default() });
    two.world.run_for(20 * SECOND);
    assert_eq!(state(&two, flow, 0), FlowState::Failed("the peer's policy leaves it alone"));
    two.world.check();
}

#[test]
fn whoever_claims_the_names_of_a_moved_flow_is_refused_or_gets_them() {
    let mut two = asking(906);
    two.world.set_beat(Some(SECOND / 10));
    let flows = [(); 2].map(|()| two.world.connect(two.client, SERVICE));
    for (flow, gives_way) in flows.into_iter().zip([false, true]) {
        rule(&mut two, flow, 0, &Verdict::default());
        let manner = Manner { view: View::Virtual, gives_way };
        rule(&mut two, flow, 1, &Verdict { otherwise: Rule { excluded_by: None, manner }, ..Verdict::default() });
    }
    introduced(&mut two.world, &flows);
    two.world.move_to(two.client, two.away, AWAY);
    settle_as(&mut two.world, &flows, Carried::Rewritten);
    let claim = |two: &mut Two, flow: FlowId| {
        let (tuple, now) = (two.world.flow(flow).tuples[1], two.world.now());
        two.world.with_node(two.server, |node| node.handle_claim(now, tuple));
    };
    // What nobody knows is nobody's business.
    let strange = two.world.connect(two.client, SERVICE);
    claim(&mut two, strange);
    flows.into_iter().for_each(|flow| claim(&mut two, flow));
    assert_eq!(two.world.resets(two.server), [flows[1]]);
    assert_eq!(two.world.view(flows[1], 1).map(|view| view.state), None);
    assert_eq!(state(&two, flows[0], 1), FlowState::Moved);
    two.world.close_end(strange, 0);
    two.world.close(flows[1]);
    two.world.run_for(2 * SECOND);
    two.world.assert_delivering(SECOND);
    two.world.check();
}

#[test]
fn the_new_owner_of_an_address_that_runs_whimbrel_is_a_peer_of_its_own() {
    for server_opens in [false, true] {
        let mut two = Two::new(907);
        let flows = two.flow(3);
        two.world.move_to(two.client, two.away, AWAY);
        settle_as(&mut two.world, &flows, Carried::Rewritten);
        let other = two.world.host("other");
        two.world.attach(other, two.home, HOME);
        let theirs = two.world.connect_from(other, 45_000, SERVICE, Transport::Tcp);
        introduced(&mut two.world, &[theirs]);
        let mut all = flows.clone();
        all.push(theirs);
        if server_opens {
            let to_them = two.world.connect_from(two.server, 45_001, "10.1.0.2:80", Transport::Tcp);
            introduced(&mut two.world, &[to_them]);
            all.push(to_them);
        }
        two.world.run_for(2 * SECOND);
        two.world.assert_delivering(SECOND);
        // It leaves the address in its turn: two peers have flows with the server that were at home there.
        two.world.move_to(other, two.further, FURTHER);
        settle_as(&mut two.world, &[theirs], Carried::Rewritten);
        two.world.assert_delivering(SECOND);
        // And the first comes back to it.
        two.world.move_to(two.client, two.home, HOME);
        settle_as(&mut two.world, &flows, Carried::Native);
        two.world.run_for(5 * SECOND);
        two.world.assert_delivering(SECOND);
        two.world.check();
    }
}
